"""`GaussianMixture`: Gaussian mixtures with full or diagonal covariances."""

from collections.abc import Iterable
from functools import partial
from typing import Self

import torch
from torch import Generator, Tensor
from torch.distributions import (
    Distribution,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    constraints,
)
from torch.distributions.kl import register_kl

from condens.distributions import checks, conversions
from condens.distributions.base import Mixture
from condens.distributions.checks import Numbers
from condens.errors import (
    ArgumentError,
    NoClosedFormError,
    NotADensityError,
    NotPositiveDefiniteError,
)
from condens.functional import algebra, estimates, mixture, nll, sampling, triangular
from condens.functional import modes as mode_search
from condens.functional.algebra import Parameters
from condens.functional.estimates import Estimate
from condens.functional.fused import log_density
from condens.functional.missing import partial_log_prob
from condens.functional.modes import Modes
from condens.functional.normal import LOG_2PI
from condens.functional.precision import widen
from condens.functional.rosenblatt import rosenblatt
from condens.functional.tracing import anywhere, traceable


@traceable
class GaussianMixture(Mixture):
    """A batch of Gaussian mixtures with full or diagonal covariances.

    p(x) = Σₖ softmax(logits)ₖ N(x; μₖ, Σₖ),  Σₖ⁻¹ = ŪₖᵀŪₖ

    Args:
        logits: [..., K], unnormalised log weights; −inf is a weight of zero.
        means: [..., K, D].
        factors: [..., K, D(D+1)/2], the packed upper triangle of Uₖ: first the D
            logarithms of the diagonal, then the strict upper triangle row by row; or
            [..., K, D], the log-diagonals alone, for diagonal covariances.
        names: of the D dimensions; wherever a dimension is asked for, name or index will do.
        validate_args: as in every `torch.distributions.Distribution`.

    The leading axes broadcast to the batch shape. What it answers, `Mixture` says.

    >>> m = GaussianMixture(torch.zeros(2), torch.tensor([[-2.0, 0.0], [2.0, 1.0]]),
    ...                     torch.zeros(2, 3), names=["lat", "lon"])
    >>> m
    GaussianMixture(batch_shape=[], n_components=2, dimensions=2, covariance='full',
                    names=('lat', 'lon'))
    >>> m.log_prob(torch.zeros(2))
    tensor(-4.0569)
    >>> m.condition({"lat": 2.0}).mean
    tensor([0.9997])
    """

    arg_constraints = {  # noqa: RUF012  (torch's own signature)
        "logits": constraints.real_vector,
        "means": constraints.independent(constraints.real, 2),
        "factors": constraints.independent(constraints.real, 2),
    }
    has_rsample = True
    parameters: Parameters
    _form = Parameters
    _axes = {"logits": "K", "means": "K, D", "factors": "K, T"}  # noqa: RUF012
    _density = mixture
    _algebra = algebra

    def __init__(
        self,
        logits: Tensor,
        means: Tensor,
        factors: Tensor,
        *,
        names: Iterable[str] | None = None,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(logits, means, factors, names=names, validate_args=validate_args)

    @classmethod
    def from_covariances(
        cls,
        weights: Numbers,
        means: Numbers,
        covariances: Numbers,
        *,
        names: Iterable[str] | None = None,
        validate_args: bool | None = None,
    ) -> Self:
        """Build from weights [..., K], means [..., K, D] and Σₖ [..., K, D, D].

        >>> GaussianMixture.from_covariances(
        ...     torch.ones(1), torch.zeros(1, 2), 4 * torch.eye(2)[None]
        ... ).variance
        tensor([4., 4.])
        """
        logits, means, matrices = conversions.check_components(
            weights, means, "covariances", covariances
        )
        # The Cholesky factor of the flipped matrix, flipped back, is upper: Σ = W Wᵀ.
        upper = conversions.cholesky("covariances", matrices.flip(-1, -2)).flip(-1, -2)
        factors = triangular.from_upper_root(upper).to(matrices.dtype)
        return cls(logits, means, factors, names=names, validate_args=validate_args)

    @classmethod
    def from_precisions(
        cls,
        weights: Numbers,
        means: Numbers,
        precisions: Numbers,
        *,
        names: Iterable[str] | None = None,
        validate_args: bool | None = None,
    ) -> Self:
        """Build from weights [..., K], means [..., K, D] and Σₖ⁻¹ [..., K, D, D]."""
        logits, means, matrices = conversions.check_components(
            weights, means, "precisions", precisions
        )
        upper = conversions.cholesky("precisions", matrices).mT
        factors = triangular.pack(upper).to(matrices.dtype)
        return cls(logits, means, factors, names=names, validate_args=validate_args)

    @classmethod
    def from_scale_tril(
        cls,
        weights: Numbers,
        means: Numbers,
        scale_tril: Numbers,
        *,
        names: Iterable[str] | None = None,
        validate_args: bool | None = None,
    ) -> Self:
        """Build from weights [..., K], means [..., K, D] and lower Cholesky factors of Σₖ."""
        logits, means, roots = conversions.check_components(
            weights, means, "scale_tril", scale_tril
        )
        conversions.check_lower("scale_tril", roots)
        factors = triangular.from_square_root(roots)
        return cls(logits, means, factors, names=names, validate_args=validate_args)

    @classmethod
    def from_mixture_same_family(
        cls,
        mixture: MixtureSameFamily,
        *,
        names: Iterable[str] | None = None,
        validate_args: bool | None = None,
    ) -> Self:
        """Build from torch's mixture of MultivariateNormal, Independent(Normal, 1) or Normal.

        >>> from torch.distributions import Categorical, Normal
        >>> parts = Normal(torch.tensor([-1.0, 3.0]), torch.ones(2))
        >>> weights = Categorical(torch.tensor([0.5, 0.5]))
        >>> GaussianMixture.from_mixture_same_family(MixtureSameFamily(weights, parts)).mean
        tensor([1.])
        """
        parameters = conversions.from_mixture_same_family("mixture", mixture)
        return cls(*parameters, names=names, validate_args=validate_args)

    def to_full(self) -> Self:
        return self

    def to_mixture_same_family(self) -> MixtureSameFamily:
        return conversions.to_mixture_same_family(*self.parameters)

    # Parameters and moments.

    @property
    def factors(self) -> Tensor:
        """The packed precision factors [..., K, T]."""
        return self.parameters.factors

    @property
    def precision_factors(self) -> Tensor:
        return triangular.unpack(self.factors, self.dimensions)

    @property
    def covariance_matrices(self) -> Tensor:
        return mixture.component_covariances(self.factors, self.dimensions)

    def peak_log_prob(self) -> Tensor:
        log_root = triangular.log_determinant(widen(self.factors), self.dimensions)
        return log_root - 0.5 * self.dimensions * LOG_2PI

    def _condition_number(self, max_multiplications: int) -> float:
        if triangular.is_diagonal(self.factors, self.dimensions):
            logs = widen(self.factors)
            return float((2 * (logs.amax(-1) - logs.amin(-1))).amax().exp())
        count = max(1, max_multiplications // (self.n_components * self.dimensions**3))
        factors = self.factors.reshape(-1, *self.factors.shape[-2:])[:count]
        upper = triangular.unpack(widen(factors), self.dimensions)
        # What has diverged has no singular values, and torch would raise.
        if not bool(upper.isfinite().all()):
            return torch.inf
        values = torch.linalg.svdvals(upper)
        return float((values[..., 0] / values[..., -1]).square().amax())

    # Density and samples.

    def log_prob(self, value: Numbers) -> Tensor:
        return log_density(self._event(value), *self.parameters)

    def observed_log_prob(self, value: Numbers) -> Tensor:
        return partial_log_prob(self._event(value, allow_nan=True), *self.parameters)

    def _rosenblatt(self, value: Tensor, generator: Generator | None) -> Tensor:  # noqa: ARG002
        logits, means, factors = widen(*self.parameters)
        root = triangular.inverse_factors(factors, self.dimensions)
        return rosenblatt(widen(value), logits, means, root)

    def _sample(self, shape: tuple[int, ...], generator: Generator | None) -> Tensor:
        return sampling.sample(*self.parameters, shape, generator=generator)

    def _rsample(self, shape: tuple[int, ...], generator: Generator | None) -> Tensor:
        return sampling.rsample(*self.parameters, shape, generator=generator)

    @staticmethod
    def _from_latent(noise: Tensor, *component: Tensor) -> Tensor:
        means, factors = component
        return sampling.from_latent(noise.expand_as(means), means, factors)

    def _log_prob_at(self, points: Tensor) -> Tensor:
        # Point by point, by the fast path, which takes a row of points at a time.
        parameters = [tensor.contiguous() for tensor in self.parameters]
        return torch.stack([-nll(some, *parameters) for some in points])

    # New mixtures from this one.

    def _image(self, matrix: Tensor, loc: Tensor) -> Self:
        image, slack = algebra.affine_matrix(*self.parameters, matrix, loc)
        if anywhere(~(slack > self._resolution(matrix))):
            raise NotPositiveDefiniteError(
                "matrix_or_scale",
                got="does not have full row rank",
                expected="its outputs would depend on each other",
                fix="Drop the rows that are combinations of others.",
            )
        return self._with(image, None)

    def _project(self, direction: Tensor) -> Self:
        return self._image(direction.unsqueeze(-2), torch.zeros_like(direction[..., :1]))

    def multiply(self, gaussian: Distribution) -> Self:
        product, _ = algebra.multiply(*self.parameters, *self._gaussian(gaussian))
        return self._with(product, range(self.dimensions))

    def divide(self, gaussian: Distribution) -> Self:
        quotient, slack = algebra.divide(*self.parameters, *self._gaussian(gaussian))
        narrow = ~(slack > self._resolution(self.means))
        if anywhere(narrow):
            where = narrow.nonzero()[0].tolist()
            raise NotADensityError(
                "gaussian",
                got=f"is not wider than the component at index {where} in every direction",
                expected="the quotient would grow without bound",
                fix="Divide by a wider Gaussian, or drop the components that are too wide.",
            )
        return self._with(quotient, range(self.dimensions))

    # Shape of the density.

    def modes(self) -> Modes:
        return mode_search.modes(*self.parameters)

    def _entropy(self, count: int, generator: Generator | None) -> Estimate:
        return estimates.entropy(*self.parameters, count, generator=generator)

    def _exact_kl(self, other: Distribution) -> Tensor | None:
        gaussian = as_gaussian(other) if self.n_components == 1 else None
        if gaussian is None:
            return None
        return estimates.gaussian_kl(self.means[..., 0, :], self.factors[..., 0, :], *gaussian)

    def _kl_divergence(
        self, other: Distribution, count: int, generator: Generator | None
    ) -> Estimate:
        log_prob = partial(conversions.log_prob_at, other)
        return estimates.kl_divergence(*self.parameters, log_prob, count, generator=generator)

    # What the methods above share.

    def _check_sizes(self, **tensors: Tensor) -> None:
        triangular.is_diagonal(tensors["factors"], tensors["means"].shape[-1])

    def _check_range(self) -> None:
        log_diagonal = self.parameters.factors[..., : self.dimensions]
        checks.check_log_scales("factors", "log-diagonal", log_diagonal)

    def _covariance_text(self) -> str:
        if self.dimensions == 1:
            return ""
        diagonal = triangular.is_diagonal(self.factors, self.dimensions)
        return f"covariance={'diagonal' if diagonal else 'full'!r}"

    def _full(self, call: str, *, real: bool = True) -> Self:  # noqa: ARG002
        return self

    def _resolution(self, given: Tensor) -> float:
        """Return the size below which a number may be rounding, of the mixture or of `given`."""
        coarsest = max(torch.finfo(self.dtype).eps, torch.finfo(given.dtype).eps)
        return 10 * self.dimensions * coarsest

    def _gaussian(self, gaussian: Distribution) -> tuple[Tensor, Tensor]:
        conversions.check_distribution("gaussian", gaussian, self.batch_shape, self.event_shape)
        found = as_gaussian(gaussian)
        if found is None:
            raise ArgumentError(
                "gaussian",
                got=f"is {gaussian}",
                expected="a MultivariateNormal, Independent(Normal, 1) or one "
                "component was expected",
                fix="Pass a single Gaussian.",
            )
        return found


def as_gaussian(other: Distribution) -> tuple[Tensor, Tensor] | None:
    """Return mean and dense precision factor, in double precision, of a single Gaussian."""
    if not isinstance(other, Mixture):
        return conversions.precision_factor(other)
    if other.n_components > 1 or not other._is_real:
        return None
    _, means, factors = other._wide()._gaussians()
    return means[..., 0, :], triangular.unpack(factors[..., 0, :], other.dimensions)


def _kl_to_mixture(p: Distribution, q: Mixture) -> Tensor:
    found = conversions.precision_factor(p)
    if found is None:
        raise NoClosedFormError(
            "p",
            got=f"is {p}",
            expected="only single Gaussians have a closed form",
            fix="Estimate it by sampling from p.",
        )
    loc, upper = found
    factors = triangular.pack(upper).unsqueeze(-2)
    single = GaussianMixture(torch.zeros_like(loc[..., :1]), loc.unsqueeze(-2), factors)
    return torch.distributions.kl_divergence(single, q).to(q.dtype)


for _gaussian in (MultivariateNormal, Independent):
    register_kl(_gaussian, Mixture)(_kl_to_mixture)
