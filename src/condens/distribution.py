"""`GaussianMixture`: one object that answers every question about a joint density."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Generator, Tensor
from torch.distributions import Distribution, MultivariateNormal, constraints
from torch.distributions.kl import register_kl

from condens import arguments
from condens.dimensions import Dimension, check_names, resolve_dimensions, resolve_fixed
from condens.errors import (
    ArgumentError,
    DimensionError,
    NoClosedFormError,
    NotADensityError,
    NotPositiveDefiniteError,
    ShapeError,
    message,
)
from condens.functional import algebra, estimates, mixture, sampling, scores, triangular, univariate
from condens.functional import modes as mode_search
from condens.functional.algebra import Parameters
from condens.functional.estimates import Estimate
from condens.functional.modes import Modes


class GaussianMixture(Distribution):
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

    The leading axes broadcast to the batch shape. An event always has its axis: a
    one-dimensional mixture has event shape [1]. Every answer that is estimated rather
    than computed comes as an `Estimate(value, standard_error)`.

    >>> m = GaussianMixture(torch.zeros(2), torch.tensor([[-2.0, 0.0], [2.0, 1.0]]),
    ...                     torch.zeros(2, 3), names=["lat", "lon"])
    >>> m
    GaussianMixture(batch_shape=[], components=2, dimensions=2, covariance='full',
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
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self,
        logits: Tensor,
        means: Tensor,
        factors: Tensor,
        *,
        names: Iterable[str] | None = None,
        validate_args: bool | None = None,
    ) -> None:
        batch = arguments.check_parameters(logits, means, factors)
        dtype = torch.promote_types(torch.promote_types(logits.dtype, means.dtype), factors.dtype)
        self.logits = logits.expand(*batch, -1).to(dtype)
        self.means = means.expand(*batch, -1, -1).to(dtype)
        self.factors = factors.expand(*batch, -1, -1).to(dtype)
        self.names = check_names(names, means.shape[-1])
        # Our own checks in place of torch's: they tell what to do, and admit an empty batch.
        super().__init__(batch, means.shape[-1:], validate_args=False)
        self._validate_args = (
            Distribution._validate_args if validate_args is None else validate_args
        )
        if self._validate_args:
            arguments.check_values(*self.parameters)

    @classmethod
    def from_covariances(
        cls,
        weights: Tensor,
        means: Tensor,
        covariances: Tensor,
        *,
        names: Iterable[str] | None = None,
        validate_args: bool | None = None,
    ) -> "GaussianMixture":
        """Build from weights [..., K], means [..., K, D] and Σₖ [..., K, D, D].

        >>> GaussianMixture.from_covariances(
        ...     torch.ones(1), torch.zeros(1, 2), 4 * torch.eye(2)[None]
        ... ).variance
        tensor([4., 4.])
        """
        flipped = arguments.cholesky("covariances", covariances.flip(-1, -2), means)
        factors = triangular.from_square_root(flipped.flip(-1, -2))
        return cls(
            arguments.log_weights(weights), means, factors, names=names, validate_args=validate_args
        )

    @classmethod
    def from_precisions(
        cls,
        weights: Tensor,
        means: Tensor,
        precisions: Tensor,
        *,
        names: Iterable[str] | None = None,
        validate_args: bool | None = None,
    ) -> "GaussianMixture":
        """Build from weights [..., K], means [..., K, D] and Σₖ⁻¹ [..., K, D, D]."""
        factors = triangular.pack(arguments.cholesky("precisions", precisions, means).mT)
        return cls(
            arguments.log_weights(weights), means, factors, names=names, validate_args=validate_args
        )

    @classmethod
    def from_scale_tril(
        cls,
        weights: Tensor,
        means: Tensor,
        scale_tril: Tensor,
        *,
        names: Iterable[str] | None = None,
        validate_args: bool | None = None,
    ) -> "GaussianMixture":
        """Build from weights [..., K], means [..., K, D] and lower Cholesky factors of Σₖ."""
        arguments.check_lower("scale_tril", scale_tril, means)
        factors = triangular.from_square_root(scale_tril)
        return cls(
            arguments.log_weights(weights), means, factors, names=names, validate_args=validate_args
        )

    @classmethod
    def ensemble(
        cls, members: Sequence["GaussianMixture"], weights: Any = None
    ) -> "GaussianMixture":
        """Return the average density of M mixtures as one mixture of all their components.

        Args:
            members: mixtures of the same dimensions, with batch shapes that broadcast.
            weights: [M], equal by default.

        >>> m = GaussianMixture(torch.zeros(2), torch.randn(2, 1), torch.zeros(2, 1))
        >>> GaussianMixture.ensemble([m, m, m]).components
        6
        """
        members = list(members)
        if not members:
            came, expected = "is empty", "at least one mixture was expected"
            raise ArgumentError(message("members", came, expected, "Pass the mixtures to average."))
        first = members[0]
        if weights is None:
            weights = torch.ones(len(members), dtype=first.dtype, device=first.device)
        weights = arguments.as_tensor(weights, first.means)
        if weights.shape != (len(members),):
            came = f"has shape {list(weights.shape)}"
            expected = f"there are {len(members)} members"
            raise ShapeError(message("weights", came, expected, "Pass one weight for each."))
        for member in members:
            if member.event_shape != first.event_shape or member.names != first.names:
                came, expected = f"has {member}", f"the first member is {first}"
                remedy = "Average mixtures over the same dimensions; reorder with marginal(dims)."
                raise DimensionError(message("members", came, expected, remedy))
            arguments.check_leading(
                "members", member.batch_shape, member.batch_shape, first.batch_shape
            )
        batch = torch.broadcast_shapes(*(member.batch_shape for member in members))
        parameters = algebra.ensemble(
            [member.expand(batch).parameters for member in members],
            torch.log_softmax(arguments.log_weights(weights), -1),
        )
        return first._with(parameters, first.names)

    # The parameters, in the forms people ask for.

    @property
    def parameters(self) -> Parameters:
        """The defining tensors (logits, means, factors)."""
        return Parameters(self.logits, self.means, self.factors)

    @property
    def components(self) -> int:
        """The number of components, K."""
        return self.means.shape[-2]

    @property
    def dimensions(self) -> int:
        """The number of dimensions, D."""
        return self.means.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        """The precision of every parameter."""
        return self.means.dtype

    @property
    def device(self) -> torch.device:
        """The device of every parameter."""
        return self.means.device

    @property
    def weights(self) -> Tensor:
        """The weights πₖ [..., K], which sum to one."""
        return torch.softmax(self.logits, -1)

    @property
    def precision_factors(self) -> Tensor:
        """The upper triangular Ūₖ [..., K, D, D] with Σₖ⁻¹ = ŪₖᵀŪₖ."""
        return triangular.unpack(self.factors, self.dimensions)

    @property
    def covariance_matrices(self) -> Tensor:
        """The covariances Σₖ [..., K, D, D] of the components."""
        return mixture.component_covariances(self.factors, self.dimensions)

    @property
    def mean(self) -> Tensor:
        """The mean of the mixture [..., D]."""
        return mixture.mean(self.logits, self.means)

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

    def component_log_prob(self, value: Any) -> Tensor:
        """Return the log density of every component at value, without the weights [..., K]."""
        return mixture.component_log_prob(self._event(value), self.means, self.factors)

    def responsibilities(self, value: Any) -> Tensor:
        """Return the probability of each component given value [..., K]."""
        return mixture.responsibilities(self._event(value), *self.parameters)

    def sample(
        self, sample_shape: Sequence[int] = (), *, generator: Generator | None = None
    ) -> Tensor:
        """Draw `[*sample_shape, *batch_shape, D]`."""
        return sampling.sample(*self.parameters, tuple(sample_shape), generator=generator)

    def rsample(
        self, sample_shape: Sequence[int] = (), *, generator: Generator | None = None
    ) -> Tensor:
        """Draw as `sample` does, with pathwise gradients for all parameters, logits included.

        By implicit differentiation of the conditional distribution functions; of any order.
        Weight moves between components through the density between them: where they
        hardly overlap, the logits' gradient is unbiased but of large variance.
        """
        return sampling.rsample(*self.parameters, tuple(sample_shape), generator=generator)

    # New mixtures from this one.

    def marginal(self, dims: Dimension | Iterable[Dimension]) -> "GaussianMixture":
        """Return the mixture of the given dimensions, in the order given."""
        resolved = resolve_dimensions("dims", dims, self.dimensions, self.names)
        return self._with(algebra.marginal(*self.parameters, resolved), self._names_of(resolved))

    def condition(self, values: Mapping[Any, Any]) -> "GaussianMixture":
        """Return the mixture of the other dimensions, given values {dimension: value, …}.

        A value is a number, or a tensor that broadcasts against the batch shape. The
        remaining dimensions keep their order.
        """
        dims, fixed = resolve_fixed(values, self.means, self.names, self.batch_shape)
        free = [d for d in range(self.dimensions) if d not in dims]
        conditional = algebra.condition(*self.parameters, dims, fixed)
        return self._with(conditional, self._names_of(free))

    def affine(self, matrix_or_scale: Any, loc: Any = 0.0) -> "GaussianMixture":
        """Return the mixture of A x + loc.

        Args:
            matrix_or_scale: a number or [D] scales each dimension by itself; [..., M, D]
                is a matrix of full row rank, its leading axes broadcast against the batch.
            loc: a number, [M], or [..., M] with leading axes as the matrix's.

        >>> m = GaussianMixture(torch.zeros(1), torch.zeros(1, 2), torch.zeros(1, 3))
        >>> m.affine(torch.tensor([2.0, 3.0]), 1.0).variance
        tensor([4., 9.])
        """
        linear, loc = arguments.check_affine(matrix_or_scale, loc, self.means, self.batch_shape)
        if linear.dim() == 1:
            return self._with(algebra.affine_scale(*self.parameters, linear, loc), self.names)
        image, slack = algebra.affine_matrix(*self.parameters, linear, loc)
        if bool((slack <= 1e2 * self.dimensions * torch.finfo(slack.dtype).eps).any()):
            came, expected = "does not have full row rank", "its outputs would depend on each other"
            remedy = "Drop the rows that are combinations of others."
            raise NotPositiveDefiniteError(message("matrix_or_scale", came, expected, remedy))
        return self._with(image, None)

    def project(self, direction: Any) -> "GaussianMixture":
        """Return the one-dimensional mixture of wᵀx, for a direction w [D] or [..., D]."""
        direction = arguments.as_tensor(direction, self.means)
        if direction.dim() == 0:
            came, expected = "is a single number", f"{self.dimensions} numbers were expected"
            raise ShapeError(message("direction", came, expected, "Pass one for each dimension."))
        return self.affine(direction.unsqueeze(-2))

    def multiply(self, gaussian: Distribution) -> "GaussianMixture":
        """Return the normalised product of this density with a Gaussian's.

        Args:
            gaussian: a `MultivariateNormal`, an `Independent(Normal)`, or a mixture of
                one component, over the same dimensions.
        """
        product, _ = algebra.multiply(*self.parameters, *self._gaussian(gaussian))
        return self._with(product, self.names)

    def divide(self, gaussian: Distribution) -> "GaussianMixture":
        """Return the normalised quotient of this density by a Gaussian's.

        The quotient is a density only if the Gaussian is wider than every component in
        every direction; otherwise `NotADensityError`. The argument is as in `multiply`.
        """
        quotient, slack = algebra.divide(*self.parameters, *self._gaussian(gaussian))
        narrow = slack <= 1e2 * self.dimensions * torch.finfo(slack.dtype).eps
        if bool(narrow.any()):
            where = narrow.nonzero()[0].tolist()
            came = f"is not wider than the component at index {where} in every direction"
            expected = "the quotient would grow without bound"
            remedy = "Divide by a wider Gaussian, or drop the components that are too wide."
            raise NotADensityError(message("gaussian", came, expected, remedy))
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
        levels = arguments.check_probabilities(value, self.batch_shape, self.means)
        return univariate.icdf(levels, *self.parameters)

    def interval(self, mass: float) -> tuple[Tensor, Tensor]:
        """Return the ends [..., 1] of the interval that leaves (1 − mass)/2 on either side."""
        self._require_one_dimension("interval")
        tail = 0.5 * (1 - arguments.check_mass("mass", mass))
        return self.icdf(tail), self.icdf(1 - tail)

    def crps(self, value: Any) -> Tensor:
        """Return the exact continuous ranked probability score; value [..., 1] → [...]."""
        self._require_one_dimension("crps")
        return scores.crps(self._event(value), *self.parameters)

    # Shape of the density.

    def modes(self) -> Modes:
        """Return the distinct local maxima reached from the components' means, highest first.

        The points [..., M, D] come with their log density [..., M]; see `Modes`.
        """
        return mode_search.modes(*self.parameters)

    def hpd_threshold(
        self, mass: float, *, n_samples: int = 10_000, generator: Generator | None = None
    ) -> Estimate:
        """Estimate the log density level whose region {x : log p(x) ≥ level} holds the mass.

        The mass actually inside has the standard error √(mass(1 − mass)/n_samples):
        0.003 for 90 % and the default number.
        """
        mass = arguments.check_mass("mass", mass)
        count = arguments.check_count("n_samples", n_samples)
        return estimates.hpd_threshold(*self.parameters, mass, count, generator=generator)

    def hpd_contains(
        self,
        value: Any,
        mass: float,
        *,
        n_samples: int = 10_000,
        generator: Generator | None = None,
    ) -> Tensor:
        """Tell whether value [..., D] lies in the highest-density region of the given mass.

        Points within a few standard errors of the threshold may go either way.
        """
        threshold = self.hpd_threshold(mass, n_samples=n_samples, generator=generator).value
        return self.log_prob(value) >= threshold

    def entropy(  # type: ignore[override]  # an estimate is not passed off as exact
        self, *, n_samples: int = 10_000, generator: Generator | None = None
    ) -> Estimate:
        """Estimate the differential entropy; exact for one component. Differentiable."""
        count = arguments.check_count("n_samples", n_samples)
        return estimates.entropy(*self.parameters, count, generator=generator)

    def perplexity(self) -> Tensor:
        """Return exp of the entropy's estimate."""
        return self.entropy().value.exp()

    def kl_divergence(
        self, other: Distribution, *, n_samples: int = 10_000, generator: Generator | None = None
    ) -> Estimate:
        """Estimate KL(self ‖ other); exact between single Gaussians. Differentiable.

        `other` is a mixture, or anything with a log_prob over the same dimensions.
        """
        if tuple(other.event_shape) != tuple(self.event_shape):
            came = f"has event shape {list(other.event_shape)}"
            expected = f"this mixture has {list(self.event_shape)}"
            raise ShapeError(message("other", came, expected, "Take marginal(dims) of one."))
        gaussian = self._as_gaussian(other) if self.components == 1 else None
        if gaussian is not None:
            exact = estimates.gaussian_kl(self.means[..., 0, :], self.factors[..., 0, :], *gaussian)
            return Estimate(exact, torch.zeros_like(exact))
        count = arguments.check_count("n_samples", n_samples)
        arguments.check_leading("other", other.batch_shape, other.batch_shape, self.batch_shape)
        wide = self.expand(torch.broadcast_shapes(self.batch_shape, other.batch_shape))
        return estimates.kl_divergence(*wide.parameters, other.log_prob, count, generator=generator)

    def energy_score(
        self, value: Any, *, n_samples: int = 1_000, generator: Generator | None = None
    ) -> Estimate:
        """Estimate E‖X − value‖ − ½E‖X − X′‖ [...]; exact (the CRPS) in one dimension."""
        count = arguments.check_count("n_samples", n_samples)
        target = self._event(value)
        return scores.energy_score(target, *self.parameters, count, generator=generator)

    # Batches.

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> "GaussianMixture":
        """Return a mixture with a larger batch shape that shares the parameters' memory."""
        new: GaussianMixture = self._get_checked_instance(  # type: ignore[no-untyped-call]
            GaussianMixture, _instance
        )
        batch = torch.Size(batch_shape)
        new.logits = self.logits.expand(*batch, -1)
        new.means = self.means.expand(*batch, -1, -1)
        new.factors = self.factors.expand(*batch, -1, -1)
        new.names = self.names
        Distribution.__init__(new, batch, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def __getitem__(self, index: Any) -> "GaussianMixture":
        """Return the mixture of part of the batch: anything that indexes a tensor of its shape."""
        # Applied first to a tensor of the batch's shape: an index too many is refused here.
        self.logits[..., 0][index]
        parts = index if isinstance(index, tuple) else (index,)
        if not any(part is Ellipsis for part in parts):
            parts = (*parts, Ellipsis)
            return self._with(
                Parameters(*(tensor[parts] for tensor in self.parameters)), self.names
            )
        event = (slice(None),)
        return self._with(
            Parameters(
                self.logits[parts + event],
                self.means[parts + 2 * event],
                self.factors[parts + 2 * event],
            ),
            self.names,
        )

    def __len__(self) -> int:
        if not self.batch_shape:
            raise TypeError("a mixture without batch axes has no length")
        return self.batch_shape[0]

    def __iter__(self) -> Iterator["GaussianMixture"]:
        return (self[i] for i in range(len(self)))

    def to(self, *args: Any, **kwargs: Any) -> "GaussianMixture":
        """Return the mixture with other device or dtype, as `Tensor.to` takes them."""
        return self._with(Parameters(*(t.to(*args, **kwargs) for t in self.parameters)), self.names)

    def __repr__(self) -> str:
        diagonal = triangular.is_diagonal(self.factors, self.dimensions)
        parts = [
            f"batch_shape={list(self.batch_shape)}",
            f"components={self.components}",
            f"dimensions={self.dimensions}",
            f"covariance={'diagonal' if diagonal else 'full'!r}",
        ]
        if self.names is not None:
            parts.append(f"names={self.names}")
        return f"{type(self).__name__}({', '.join(parts)})"

    # What the methods above share.

    def _with(self, parameters: Parameters, names: Sequence[str] | None) -> "GaussianMixture":
        return GaussianMixture(*parameters, names=names, validate_args=self._validate_args)

    def _names_of(self, dims: Sequence[int]) -> list[str] | None:
        return None if self.names is None else [self.names[d] for d in dims]

    def _event(self, value: Any) -> Tensor:
        return arguments.check_event(
            "value", value, self.batch_shape, self.means, allow_nan=not self._validate_args
        )

    def _require_one_dimension(self, method: str) -> None:
        if self.dimensions != 1:
            came, expected = f"has {self.dimensions} dimensions", f"{method} needs exactly one"
            remedy = "Take marginal(dim) or project(direction) first."
            raise DimensionError(message("the mixture", came, expected, remedy))

    def _as_gaussian(self, other: Distribution) -> tuple[Tensor, Tensor] | None:
        if isinstance(other, GaussianMixture):
            if other.components > 1:
                return None
            return other.means[..., 0, :], other.precision_factors[..., 0, :, :]
        return arguments.gaussian_factor(other)

    def _gaussian(self, gaussian: Distribution) -> tuple[Tensor, Tensor]:
        found = self._as_gaussian(gaussian)
        if found is None:
            expected = "a MultivariateNormal, Independent(Normal) or one component was expected"
            remedy = "Pass a single Gaussian."
            raise ArgumentError(message("gaussian", f"is {gaussian}", expected, remedy))
        if found[0].shape[-1] != self.dimensions:
            came, expected = (
                f"has {found[0].shape[-1]} dimension(s)",
                f"the mixture has {self.dimensions}",
            )
            raise ShapeError(message("gaussian", came, expected, "Take marginal(dims) of one."))
        return found


def _kl_from_mixture(p: GaussianMixture, q: Distribution) -> Tensor:
    if p.components > 1 or (isinstance(q, GaussianMixture) and q.components > 1):
        came, expected = f"are {p} and {q}", "only single Gaussians have a closed form"
        remedy = "Call p.kl_divergence(q), which estimates it with a standard error."
        raise NoClosedFormError(message("p and q", came, expected, remedy))
    return p.kl_divergence(q).value


def _kl_to_mixture(p: MultivariateNormal, q: GaussianMixture) -> Tensor:
    weights = torch.ones_like(p.loc[..., :1])
    single = GaussianMixture.from_scale_tril(
        weights, p.loc.unsqueeze(-2), p.scale_tril.unsqueeze(-3)
    )
    return _kl_from_mixture(single, q)


register_kl(GaussianMixture, GaussianMixture)(_kl_from_mixture)
register_kl(GaussianMixture, MultivariateNormal)(_kl_from_mixture)
register_kl(MultivariateNormal, GaussianMixture)(_kl_to_mixture)
