"""`LowRankMixture`: joint densities over hundreds of dimensions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn, Self

from torch import Generator, Tensor
from torch.distributions import constraints

from condens.distributions import checks
from condens.distributions.batched import BatchedMixture
from condens.distributions.dimensions import Dimension, resolve_dimensions, resolve_fixed
from condens.distributions.gaussian import GaussianMixture
from condens.distributions.sampled import SampledMixture
from condens.errors import NoClosedFormError
from condens.functional import triangular
from condens.functional.estimates import Estimate
from condens.functional.low_rank import algebra as algebra
from condens.functional.low_rank import mixture as low_rank
from condens.functional.low_rank.algebra import Parameters
from condens.functional.tracing import traceable


@traceable
class LowRankMixture(BatchedMixture, SampledMixture):
    """A batch of Gaussian mixtures with diagonal plus low-rank covariances.

    p(x) = Σₖ softmax(logits)ₖ N(x; μₖ, Σₖ),  Σₖ = diag(sₖ²) + VₖVₖᵀ

    Each component explains x by r standard normal factors f and independent noise,
    x = μₖ + sₖ·ε + Vₖf, with D(r + 1) numbers for its covariance. Memory and time grow
    with D, so that a thousand dimensions are possible; only `covariance_matrix`,
    `covariance_matrices`, `precision_factors` and `to_full` make D×D numbers.

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
    _axes = {"logits": "K", "means": "K, D", "log_scales": "K, D", "loadings": "K, D, r"}  # noqa: RUF012
    _join = staticmethod(algebra.ensemble)
    log_scales: Tensor
    loadings: Tensor

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

    # The parameters, in the forms people ask for.

    @property
    def parameters(self) -> Parameters:
        """The defining tensors (logits, means, log_scales, loadings)."""
        return Parameters(self.logits, self.means, self.log_scales, self.loadings)

    @property
    def rank(self) -> int:
        """The number of factors, r."""
        return self.loadings.shape[-1]

    @property
    def scales(self) -> Tensor:
        """The standard deviations sₖ of the noise [..., K, D]."""
        return self.log_scales.exp()

    @property
    def variance(self) -> Tensor:
        """The variance of each dimension of the mixture [..., D]."""
        return low_rank.variance(*self.parameters)

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance of the mixture [..., D, D], by the law of total covariance."""
        return low_rank.covariance(*self.parameters)

    @property
    def covariance_matrices(self) -> Tensor:
        """The covariances Σₖ [..., K, D, D] of the components."""
        return low_rank.component_covariances(self.log_scales, self.loadings)

    @property
    def precision_factors(self) -> Tensor:
        """The upper triangular Ūₖ [..., K, D, D] with Σₖ⁻¹ = ŪₖᵀŪₖ."""
        factors = algebra.full_factors(self.log_scales, self.loadings)
        return triangular.unpack(factors, self.dimensions)

    def to_full(self) -> GaussianMixture:
        """Return the same density as a `GaussianMixture`, with D(D+1)/2 numbers a component.

        At D = 1000 those are four megabytes a component in double precision, and some
        forty while they are computed.
        """
        factors = algebra.full_factors(self.log_scales, self.loadings)
        return GaussianMixture(
            self.logits,
            self.means,
            factors,
            names=self.names,
            validate_args=self._validate_args,
        )

    # Density and samples.

    def log_prob(self, value: Any) -> Tensor:
        """Return the normalised log density at value [..., D]."""
        return low_rank.log_prob(self._event(value), *self.parameters)

    def observed_log_prob(self, value: Any) -> Tensor:
        """Return the log density of the entries of value [..., D] that are not NaN.

        By the exact marginal over them; 0 where there is none.
        """
        return low_rank.partial_log_prob(self._event(value, allow_nan=True), *self.parameters)

    def component_log_prob(self, value: Any) -> Tensor:
        """Return the log density of every component at value, without the weights [..., K]."""
        return low_rank.component_log_prob(self._event(value), *self.parameters[1:])

    def responsibilities(self, value: Any) -> Tensor:
        """Return the probability of each component given value [..., K]."""
        return low_rank.responsibilities(self._event(value), *self.parameters)

    @checks.within_memory
    def sample(
        self, sample_shape: Sequence[int] = (), *, generator: Generator | None = None
    ) -> Tensor:
        """Draw `[*sample_shape, *batch_shape, D]`."""
        shape = self._shape(sample_shape, generator)
        return low_rank.sample(*self.parameters, shape, generator=generator)

    @checks.within_memory
    def entropy(  # type: ignore[override]  # an estimate is not passed off as exact
        self, *, n_samples: int = 10_000, generator: Generator | None = None
    ) -> Estimate:
        """Estimate the differential entropy; exact for one component. Differentiable."""
        count = self._count(n_samples, generator)
        return low_rank.entropy(*self.parameters, count, generator=generator)

    # New mixtures from this one.

    def marginal(self, dims: Dimension | Iterable[Dimension]) -> Self:
        """Return the mixture of the given dimensions, in the order given."""
        resolved = resolve_dimensions("dims", dims, self.dimensions, self.names)
        return self._with(algebra.marginal(*self.parameters, resolved), self._names_of(resolved))

    def condition(self, values: Mapping[Any, Any]) -> Self:
        """Return the mixture of the other dimensions, given values {dimension: value, …}.

        A value is a number, or a tensor that broadcasts against the batch shape. The
        remaining dimensions keep their order.
        """
        dims, fixed = resolve_fixed(values, self.means, self.names, self.batch_shape)
        free = sorted(set(range(self.dimensions)).difference(dims))
        conditional = algebra.condition(*self.parameters, dims, fixed)
        return self._with(conditional, self._names_of(free))

    def affine(self, matrix_or_scale: Any, loc: Any = 0.0) -> Self:
        """Return the mixture of scale·x + loc, elementwise.

        Args:
            matrix_or_scale: a number or [D]. The image under a matrix is not of this kind:
                `to_full()` has it.
            loc: a number, [D], or [..., D] with leading axes as the batch's.
        """
        scale, loc = checks.check_affine(matrix_or_scale, loc, self.means, self.batch_shape)
        if scale.dim() > 1:
            _refuse("affine by a matrix", "affine(…)")
        return self._with(algebra.affine_scale(*self.parameters, scale, loc), self.names)

    def project(self, direction: Any) -> Self:
        """Return the one-dimensional mixture of wᵀx, for a direction w [D] or [..., D]."""
        direction = checks.check_direction(direction, self.means, self.batch_shape)
        return self._with(algebra.project(*self.parameters, direction), None)

    # One dimension.

    def cdf(self, value: Any) -> Tensor:
        """Return P(X ≤ value) of a one-dimensional mixture; value [..., 1] → [...]."""
        return self._one_dimension("cdf").cdf(value)

    def icdf(self, value: Any) -> Tensor:
        """Return the quantiles of a one-dimensional mixture; probabilities [...] → [..., 1].

        The probabilities broadcast against the batch shape: for many quantiles of each
        member of a batch [B], pass [N, 1].
        """
        return self._one_dimension("icdf").icdf(value)

    def interval(self, coverage: Any) -> tuple[Tensor, Tensor]:
        """Return the ends of the interval that leaves (1 − mass)/2 on either side.

        Shapes: mass [...] → [..., 1] twice, as `icdf` takes probabilities.
        """
        return self._one_dimension("interval").interval(coverage)

    def crps(self, value: Any) -> Tensor:
        """Return the exact continuous ranked probability score; value [..., 1] → [...]."""
        return self._one_dimension("crps").crps(value)

    # What needs full covariances.

    def rsample(self, *_arguments: Any, **_options: Any) -> NoReturn:
        """Refuse: draws with gradients need `to_full()`."""
        _refuse("rsample", "rsample(…)")

    def modes(self) -> NoReturn:
        """Refuse: the ascent to the modes needs `to_full()`."""
        _refuse("modes", "modes()")

    @property
    def mode(self) -> NoReturn:
        """Refuse: the ascent to the highest mode needs `to_full()`."""
        _refuse("mode", "mode")

    def multiply(self, *_arguments: Any, **_options: Any) -> NoReturn:
        """Refuse: a product with a Gaussian need not be of this kind; `to_full()` has it."""
        _refuse("multiply", "multiply(…)")

    def divide(self, *_arguments: Any, **_options: Any) -> NoReturn:
        """Refuse: a quotient by a Gaussian need not be of this kind; `to_full()` has it."""
        _refuse("divide", "divide(…)")

    def kl_divergence(self, *_arguments: Any, **_options: Any) -> NoReturn:
        """Refuse: the KL divergence needs `to_full()`."""
        _refuse("kl_divergence", "kl_divergence(…)")

    def to_mixture_same_family(self) -> NoReturn:
        """Refuse: torch's mixtures are of full covariances; `to_full()` has it."""
        _refuse("to_mixture_same_family", "to_mixture_same_family()")

    # What the methods above share.

    def _check_sizes(self, **tensors: Tensor) -> None:
        checks.check_rank(tensors["loadings"])

    def _check_range(self) -> None:
        checks.check_log_scales("log_scales", "log scale", self.log_scales)
        checks.check_loadings(self.log_scales, self.loadings)

    def _masked_log_prob(self, value: Tensor) -> Tensor:
        return low_rank.partial_log_prob(value, *self.parameters)

    def _exact_score(self, target: Tensor) -> Tensor | None:
        return self.crps(target) if self.dimensions == 1 else None

    def _covariance_text(self) -> str:
        return f"rank={self.rank}"

    def _one_dimension(self, method: str) -> GaussianMixture:
        self._require_one_dimension(method)
        return self.to_full()


def _refuse(what: str, call: str) -> NoReturn:
    raise NoClosedFormError(
        what,
        got="was asked of a LowRankMixture",
        expected="it has no closed form in this structure",
        fix=f"Call to_full().{call}; the full factors take D(D+1)/2 numbers a component.",
    )
