"""`LowRankMixture`: joint densities over hundreds of dimensions."""

from collections.abc import Iterable
from typing import NoReturn, Self

import torch
from torch import Generator, Tensor
from torch.distributions import Distribution, constraints

from condens.distributions import checks
from condens.distributions.base import Mixture
from condens.distributions.checks import Numbers
from condens.distributions.gaussian import GaussianMixture, as_gaussian
from condens.functional import triangular
from condens.functional.algebra import Parameters as FullParameters
from condens.functional.estimates import Estimate
from condens.functional.low_rank import algebra
from condens.functional.low_rank import mixture as low_rank
from condens.functional.low_rank.algebra import Parameters
from condens.functional.precision import widen
from condens.functional.rosenblatt import rosenblatt
from condens.functional.tracing import traceable


@traceable
class LowRankMixture(Mixture):
    """A batch of Gaussian mixtures with diagonal plus low-rank covariances.

    p(x) = Σₖ softmax(logits)ₖ N(x; μₖ, Σₖ),  Σₖ = diag(sₖ²) + VₖVₖᵀ

    Each component explains x by r standard normal factors f and independent noise,
    x = μₖ + sₖ·ε + Vₖf, with D(r + 1) numbers for its covariance. Memory and time grow
    with D, so that a thousand dimensions are possible; only `covariance_matrix`,
    `covariance_matrices`, `precision_factors`, `to_full` and the exact `kl_divergence` of
    single Gaussians make D×D numbers.

    Args:
        logits: [..., K], unnormalised log weights; −inf is a weight of zero.
        means: [..., K, D].
        log_scales: [..., K, D], the logarithms of the standard deviations sₖ of the noise.
        loadings: [..., K, D, r], the matrices Vₖ; r may exceed D.
        names: of the D dimensions; wherever a dimension is asked for, name or index will do.
        validate_args: as in every `torch.distributions.Distribution`.

    It answers as `GaussianMixture` does, and in the same precision. Marginals and
    conditionals are again of this kind, with the same r. What needs full covariances
    raises `NoClosedFormError`, and `to_full()` answers it.

    >>> import torch
    >>> m = LowRankMixture(torch.zeros(1), torch.zeros(1, 3), torch.zeros(1, 3),
    ...                    torch.ones(1, 3, 1), names=["a", "b", "c"])
    >>> m
    LowRankMixture(batch_shape=[], n_components=1, dimensions=3, rank=1, names=('a', 'b', 'c'))
    >>> m.covariance_matrix
    tensor([[2., 1., 1.],
            [1., 2., 1.],
            [1., 1., 2.]])
    >>> m.condition({"a": 2.0, "c": 1.0}).mean
    tensor([1.])
    """

    arg_constraints = {  # noqa: RUF012  (torch's own signature)
        "logits": constraints.real_vector,
        "means": constraints.independent(constraints.real, 2),
        "log_scales": constraints.independent(constraints.real, 2),
        "loadings": constraints.independent(constraints.real, 3),
    }
    has_rsample = False
    parameters: Parameters
    _form = Parameters
    _axes = {"logits": "K", "means": "K, D", "log_scales": "K, D", "loadings": "K, D, r"}  # noqa: RUF012
    _density = low_rank
    _algebra = algebra

    def __init__(
        self,
        logits: Tensor,
        means: Tensor,
        log_scales: Tensor,
        loadings: Tensor,
        *,
        names: Iterable[str] | None = None,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(
            logits, means, log_scales, loadings, names=names, validate_args=validate_args
        )

    def to_full(self) -> GaussianMixture:
        """Return the same density as a `GaussianMixture`, with D(D+1)/2 numbers a component.

        At D = 1000 those are four megabytes a component in double precision, and some
        forty while they are computed.
        """
        return GaussianMixture(
            *self._gaussians(), names=self.names, validate_args=self._validate_args
        )

    # Parameters and moments.

    @property
    def rank(self) -> int:
        """The number of factors, r."""
        return self.loadings.shape[-1]

    @property
    def log_scales(self) -> Tensor:
        """The logarithms of the standard deviations of the noise [..., K, D]."""
        return self.parameters.log_scales

    @property
    def scales(self) -> Tensor:
        """The standard deviations sₖ of the noise [..., K, D]."""
        return self.log_scales.exp()

    @property
    def loadings(self) -> Tensor:
        """The matrices Vₖ [..., K, D, r]."""
        return self.parameters.loadings

    @property
    def covariance_matrices(self) -> Tensor:
        return low_rank.component_covariances(self.log_scales, self.loadings)

    @property
    def precision_factors(self) -> Tensor:
        return triangular.unpack(self._gaussians().factors, self.dimensions)

    def peak_log_prob(self) -> Tensor:
        centre = torch.zeros_like(widen(self.means))
        rest = widen(self.log_scales, self.loadings)
        return low_rank.component_log_prob(centre[..., 0, :], centre, *rest)

    def _condition_number(self, max_multiplications: int) -> float:  # noqa: ARG002
        logs, loadings = 2 * widen(self.log_scales), widen(self.loadings)
        largest = logs.amax(-1).exp() + loadings.square().sum((-1, -2))
        return float((largest / logs.amin(-1).exp()).amax())

    # Density and samples.

    def observed_log_prob(self, value: Numbers) -> Tensor:
        return low_rank.partial_log_prob(self._event(value, allow_nan=True), *self.parameters)

    def _rosenblatt(self, value: Tensor, generator: Generator | None) -> Tensor:  # noqa: ARG002
        logits, means, log_scales, loadings = widen(*self.parameters)
        return rosenblatt(widen(value), logits, means, loadings, log_scales)

    def _sample(self, shape: tuple[int, ...], generator: Generator | None) -> Tensor:
        return low_rank.sample(*self.parameters, shape, generator=generator)

    def _entropy(self, count: int, generator: Generator | None) -> Estimate:
        return low_rank.entropy(*self.parameters, count, generator=generator)

    def _exact_kl(self, other: Distribution) -> Tensor | None:
        if self.n_components > 1 or as_gaussian(other) is None:
            return None
        exact = self._wide().to_full()._exact_kl(other)
        return None if exact is None else exact.to(self.dtype)

    @property
    def _latent_dimensions(self) -> int:
        return self.dimensions + self.rank

    @staticmethod
    def _from_latent(noise: Tensor, *component: Tensor) -> Tensor:
        centre, log_scale, loadings = component
        noise, factors = noise.split([centre.shape[-1], loadings.shape[-1]], -1)
        explained = (loadings @ factors.unsqueeze(-1)).squeeze(-1)
        return centre + log_scale.exp() * noise + explained

    def _log_prob_at(self, points: Tensor) -> Tensor:
        return self.log_prob(points)

    # New mixtures from this one.

    def _project(self, direction: Tensor) -> Self:
        return self._with(algebra.project(*self.parameters, direction), None)

    # What the methods above share.

    def _check_sizes(self, **tensors: Tensor) -> None:
        checks.check_rank(tensors["loadings"])

    def _check_range(self) -> None:
        checks.check_log_scales("log_scales", "log scale", self.log_scales)
        checks.check_loadings(self.log_scales, self.loadings)

    def _covariance_text(self) -> str:
        return f"rank={self.rank}"

    def _gaussians(self) -> FullParameters:
        factors = algebra.full_factors(self.log_scales, self.loadings)
        return FullParameters(self.logits, self.means, factors)

    def _full(self, call: str, *, real: bool = True) -> NoReturn:  # noqa: ARG002
        fix = f"Call to_full().{call}; the full factors take D(D+1)/2 numbers a component."
        self._refuse(call, fix)
