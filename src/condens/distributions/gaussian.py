"""`GaussianMixture`: one object that answers the questions about a joint density."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

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
from condens.distributions.batched import BatchedMixture
from condens.distributions.dimensions import Dimension, resolve_dimensions, resolve_fixed
from condens.distributions.sampled import SampledMixture
from condens.errors import (
    ArgumentError,
    NoClosedFormError,
    NotADensityError,
    NotPositiveDefiniteError,
)
from condens.functional import algebra, estimates, mixture, sampling, scores, triangular, univariate
from condens.functional import modes as mode_search
from condens.functional.algebra import Parameters
from condens.functional.estimates import Estimate
from condens.functional.missing import partial_log_prob
from condens.functional.modes import Modes
from condens.functional.precision import widen
from condens.functional.tracing import anywhere, traceable


@traceable
class GaussianMixture(BatchedMixture, SampledMixture):
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

    The leading axes broadcast to the batch shape. An event has its axis: a one-dimensional
    mixture has event shape [1], though values may come without it (`checks.with_event_axis`).
    Values may be tensors, arrays, lists or data frames. Answers have the dtype of the mixture
    and are computed in double precision. Every answer that is estimated rather than computed
    comes as an `Estimate(value, standard_error)`, `entropy` included.

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
    _axes = {"logits": "K", "means": "K, D", "factors": "K, T"}  # noqa: RUF012
    _join = staticmethod(algebra.ensemble)
    factors: Tensor

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
        weights: Any,
        means: Any,
        covariances: Any,
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
        weights: Any,
        means: Any,
        precisions: Any,
        *,
        names: Iterable[str] | None = None,
        validate_args: bool | None = None,
    ) -> Self:
        """Build from weights [..., K], means [..., K, D] and Σₖ⁻¹ [..., K, D, D]."""
        logits, means, matrices = conversions.check_components(
            weights, means, "precisions", precisions
        )
        factors = triangular.pack(conversions.cholesky("precisions", matrices).mT)
        factors = factors.to(matrices.dtype)
        return cls(logits, means, factors, names=names, validate_args=validate_args)

    @classmethod
    def from_scale_tril(
        cls,
        weights: Any,
        means: Any,
        scale_tril: Any,
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

    def to_mixture_same_family(self) -> MixtureSameFamily:
        """Return the same density as torch's own mixture.

        >>> m = GaussianMixture(torch.zeros(2), torch.zeros(2, 2), torch.zeros(2, 3))
        >>> m.to_mixture_same_family().log_prob(torch.zeros(2))
        tensor(-1.8379)
        """
        return conversions.to_mixture_same_family(*self.parameters)

    # The parameters, in the forms people ask for.

    @property
    def parameters(self) -> Parameters:
        """The defining tensors (logits, means, factors)."""
        return Parameters(self.logits, self.means, self.factors)

    @property
    def precision_factors(self) -> Tensor:
        """The upper triangular Ūₖ [..., K, D, D] with Σₖ⁻¹ = ŪₖᵀŪₖ."""
        return triangular.unpack(self.factors, self.dimensions)

    @property
    def covariance_matrices(self) -> Tensor:
        """The covariances Σₖ [..., K, D, D] of the components."""
        return mixture.component_covariances(self.factors, self.dimensions)

    @property
    def variance(self) -> Tensor:
        """The variance of each dimension of the mixture [..., D]."""
        return mixture.variance(*self.parameters)

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance of the mixture [..., D, D], by the law of total covariance."""
        return mixture.covariance(*self.parameters)

    @property
    def mode(self) -> Tensor:
        """The highest of `modes()` [..., D]."""
        return self.modes().points[..., 0, :]

    # Density and samples.

    def log_prob(self, value: Any) -> Tensor:
        """Return the normalised log density at value [..., D]."""
        return mixture.log_prob(self._event(value), *self.parameters)

    def observed_log_prob(self, value: Any) -> Tensor:
        """Return the log density of the entries of value [..., D] that are not NaN.

        By the exact marginal over them; 0 where there is none.
        """
        return partial_log_prob(self._event(value, allow_nan=True), *self.parameters)

    def component_log_prob(self, value: Any) -> Tensor:
        """Return the log density of every component at value, without the weights [..., K]."""
        return mixture.component_log_prob(self._event(value), self.means, self.factors)

    def responsibilities(self, value: Any) -> Tensor:
        """Return the probability of each component given value [..., K]."""
        return mixture.responsibilities(self._event(value), *self.parameters)

    @checks.within_memory
    def sample(
        self, sample_shape: Sequence[int] = (), *, generator: Generator | None = None
    ) -> Tensor:
        """Draw `[*sample_shape, *batch_shape, D]`."""
        shape = self._shape(sample_shape, generator)
        return sampling.sample(*self.parameters, shape, generator=generator)

    @checks.within_memory
    def rsample(
        self, sample_shape: Sequence[int] = (), *, generator: Generator | None = None
    ) -> Tensor:
        """Draw as `sample` does, with pathwise gradients for all parameters, logits included.

        By implicit differentiation of the conditional distribution functions; of any order.
        Weight moves between components through the density between them: where they
        hardly overlap, no practical number of draws shows the logits' gradient.
        """
        shape = self._shape(sample_shape, generator)
        return sampling.rsample(*self.parameters, shape, generator=generator)

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
        free = [d for d in range(self.dimensions) if d not in dims]
        conditional = algebra.condition(*self.parameters, dims, fixed)
        return self._with(conditional, self._names_of(free))

    def affine(self, matrix_or_scale: Any, loc: Any = 0.0) -> Self:
        """Return the mixture of A x + loc.

        Args:
            matrix_or_scale: a number or [D] scales each dimension by itself. Two axes or
                more are a matrix [..., M, D] of full row rank, its leading axes broadcast
                against the batch; a scale for each member of a batch is a batch of
                diagonal matrices, `torch.diag_embed(scale)`.
            loc: a number, [M], or [..., M] with leading axes as the batch's.

        >>> m = GaussianMixture(torch.zeros(1), torch.zeros(1, 2), torch.zeros(1, 3))
        >>> m.affine(torch.tensor([2.0, 3.0]), 1.0).variance
        tensor([4., 9.])
        """
        linear, loc = checks.check_affine(matrix_or_scale, loc, self.means, self.batch_shape)
        if linear.dim() == 1:
            return self._with(algebra.affine_scale(*self.parameters, linear, loc), self.names)
        image, slack = algebra.affine_matrix(*self.parameters, linear, loc)
        if anywhere(~(slack > self._resolution(linear))):
            raise NotPositiveDefiniteError(
                "matrix_or_scale",
                got="does not have full row rank",
                expected="its outputs would depend on each other",
                fix="Drop the rows that are combinations of others.",
            )
        return self._with(image, None)

    def project(self, direction: Any) -> Self:
        """Return the one-dimensional mixture of wᵀx, for a direction w [D] or [..., D]."""
        direction = checks.check_direction(direction, self.means, self.batch_shape)
        return self.affine(direction.unsqueeze(-2))

    def multiply(self, gaussian: Distribution) -> Self:
        """Return the normalised product of this density with a Gaussian's.

        Args:
            gaussian: a `MultivariateNormal`, an `Independent(Normal, 1)`, or a mixture of
                one component, over the same dimensions.
        """
        product, _ = algebra.multiply(*self.parameters, *self._gaussian(gaussian))
        return self._with(product, self.names)

    def divide(self, gaussian: Distribution) -> Self:
        """Return the normalised quotient of this density by a Gaussian's.

        The quotient is a density only if the Gaussian is wider than every component in
        every direction; otherwise `NotADensityError`. The argument is as in `multiply`.
        """
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
        return self._with(quotient, self.names)

    # One dimension.

    def cdf(self, value: Any) -> Tensor:
        """Return P(X ≤ value) of a one-dimensional mixture; value [..., 1] → [...]."""
        self._require_one_dimension("cdf")
        return univariate.cdf(self._event(value), *self.parameters)

    def icdf(self, value: Any) -> Tensor:
        """Return the quantiles of a one-dimensional mixture; probabilities [...] → [..., 1].

        The probabilities broadcast against the batch shape: for many quantiles of each
        member of a batch [B], pass [N, 1].
        """
        self._require_one_dimension("icdf")
        levels = checks.check_probabilities(value, self.batch_shape, self.means)
        return univariate.icdf(levels, *self.parameters)

    def interval(self, coverage: Any) -> tuple[Tensor, Tensor]:
        """Return the ends of the interval that leaves (1 − mass)/2 on either side.

        Shapes: mass [...] → [..., 1] twice, as `icdf` takes probabilities.
        """
        self._require_one_dimension("interval")
        tail = 0.5 * (
            1 - widen(checks.check_coverages("coverage", coverage, self.batch_shape, self.means))
        )
        # The upper end through the mirror image: 1 − tail has lost the tail's digits.
        mirrored = univariate.icdf(tail, self.logits, -self.means, self.factors)
        lower = univariate.icdf(tail, *self.parameters)
        # Both within rounding of one another, they may come in the other order.
        return lower, torch.maximum(lower, -mirrored)

    def crps(self, value: Any) -> Tensor:
        """Return the exact continuous ranked probability score; value [..., 1] → [...]."""
        self._require_one_dimension("crps")
        return scores.crps(self._finite_event(value), *self.parameters)

    # Shape of the density.

    def modes(self) -> Modes:
        """Return the distinct local maxima reached from the components' means, highest first.

        The points [..., M, D] come with their log density [..., M]; see `Modes`.
        """
        return mode_search.modes(*self.parameters)

    @checks.within_memory
    def entropy(  # type: ignore[override]  # an estimate is not passed off as exact
        self, *, n_samples: int = 10_000, generator: Generator | None = None
    ) -> Estimate:
        """Estimate the differential entropy; exact for one component. Differentiable."""
        count = self._count(n_samples, generator)
        return estimates.entropy(*self.parameters, count, generator=generator)

    @checks.within_memory
    def kl_divergence(
        self, other: Distribution, *, n_samples: int = 10_000, generator: Generator | None = None
    ) -> Estimate:
        """Estimate KL(self ‖ other); exact between single Gaussians. Differentiable.

        `other` is a mixture, or anything with a log_prob over the same dimensions.
        """
        conversions.check_distribution("other", other, self.event_shape)
        checks.check_leading("other", other.batch_shape, other.batch_shape, self.batch_shape)
        gaussian = self._as_gaussian(other) if self.n_components == 1 else None
        if gaussian is not None:
            exact = estimates.gaussian_kl(self.means[..., 0, :], self.factors[..., 0, :], *gaussian)
            return Estimate(exact, torch.zeros_like(exact))
        count = self._count(n_samples, generator)
        wide = self.expand(torch.broadcast_shapes(self.batch_shape, other.batch_shape))
        return estimates.kl_divergence(*wide.parameters, other.log_prob, count, generator=generator)

    # What the methods above share.

    def _check_sizes(self, **tensors: Tensor) -> None:
        triangular.is_diagonal(tensors["factors"], tensors["means"].shape[-1])

    def _check_range(self) -> None:
        log_diagonal = self.factors[..., : self.dimensions]
        checks.check_log_scales("factors", "log-diagonal", log_diagonal)

    def _masked_log_prob(self, value: Tensor) -> Tensor:
        return partial_log_prob(value, *self.parameters)

    def _exact_score(self, target: Tensor) -> Tensor | None:
        return self.crps(target) if self.dimensions == 1 else None

    def _covariance_text(self) -> str:
        if self.dimensions == 1:
            return ""
        diagonal = triangular.is_diagonal(self.factors, self.dimensions)
        return f"covariance={'diagonal' if diagonal else 'full'!r}"

    def _resolution(self, given: Tensor) -> float:
        """Return the size below which a number may be rounding, of the mixture or of `given`."""
        coarsest = max(torch.finfo(self.dtype).eps, torch.finfo(given.dtype).eps)
        return 10 * self.dimensions * coarsest

    def _as_gaussian(self, other: Distribution) -> tuple[Tensor, Tensor] | None:
        """Return mean and dense precision factor, in double precision, of a single Gaussian."""
        if not isinstance(other, GaussianMixture):
            return conversions.precision_factor(other)
        if other.n_components > 1:
            return None
        loc, factor = widen(other.means[..., 0, :], other.factors[..., 0, :])
        return loc, triangular.unpack(factor, other.dimensions)

    def _gaussian(self, gaussian: Distribution) -> tuple[Tensor, Tensor]:
        conversions.check_distribution("gaussian", gaussian, self.event_shape)
        found = self._as_gaussian(gaussian)
        if found is None:
            raise ArgumentError(
                "gaussian",
                got=f"is {gaussian}",
                expected="a MultivariateNormal, Independent(Normal, 1) or one "
                "component was expected",
                fix="Pass a single Gaussian.",
            )
        shape = gaussian.batch_shape
        checks.check_leading("gaussian", shape, shape, self.batch_shape)
        return found


def _kl_from_mixture(p: GaussianMixture, q: Distribution) -> Tensor:
    if p.n_components > 1 or p._as_gaussian(q) is None:
        raise NoClosedFormError(
            "p and q",
            got=f"are {p} and {q}",
            expected="only single Gaussians have a closed form",
            fix="Call p.kl_divergence(q), which estimates it with a standard error.",
        )
    return p.kl_divergence(q).value


def _kl_to_mixture(p: Distribution, q: GaussianMixture) -> Tensor:
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
    return _kl_from_mixture(single, q).to(q.dtype)


register_kl(GaussianMixture, GaussianMixture)(_kl_from_mixture)
for _gaussian in (MultivariateNormal, Independent):
    register_kl(GaussianMixture, _gaussian)(_kl_from_mixture)
    register_kl(_gaussian, GaussianMixture)(_kl_to_mixture)
