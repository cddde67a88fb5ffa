"""`TransformedMixture`: joint densities of positive, bounded and whole-numbered targets."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Self

import torch
from torch import Generator, Tensor

from condens.distributions import checks
from condens.distributions.dimensions import Dimension, resolve_dimensions, resolve_fixed
from condens.distributions.gaussian import GaussianMixture
from condens.distributions.mapped import MappedMixture
from condens.distributions.sampled import SampledMixture
from condens.errors import ArgumentError, NoClosedFormError
from condens.functional import algebra, boxes, estimates, mixture, pushforward, scores, univariate
from condens.functional.algebra import Parameters
from condens.functional.estimates import Estimate
from condens.functional.missing import partial_log_prob
from condens.functional.precision import widen
from condens.functional.tracing import anywhere, traceable
from condens.functional.triangular import component_variances, rescale
from condens.transforms import Integer, Positive, Real, moments


@traceable
class TransformedMixture(MappedMixture, SampledMixture):
    """A Gaussian mixture seen through a monotone map for each dimension.

    Y = (f₁(X₁), …, f_D(X_D)),  X ~ mixture

    The maps act on one dimension each, so marginals, conditionals and quantiles are those
    of the mixture, mapped. Densities are in the targets' own units; a whole number enters
    with its probability.

    Args:
        mixture: the density of X, over the real numbers; its names are those of Y.
        transforms: one for each dimension.

    Answers are as exact as those of `GaussianMixture` but for these: probabilities of
    several whole numbers at once (`functional.cells.box_log_prob`), conditioning on whole
    numbers (`condition`), covariances between intervals and integers
    (`moments.image_covariances`), and every `Estimate`.

    >>> from condens.transforms import Integer, Positive
    >>> m = GaussianMixture(torch.zeros(1), torch.zeros(1, 2), torch.zeros(1, 3),
    ...                     names=["price", "rooms"])
    >>> m = TransformedMixture(m, [Positive(), Integer(lower=0)])
    >>> m
    TransformedMixture(batch_shape=[], n_components=1, dimensions=2, names=('price', 'rooms'),
                       transforms=(Positive(lower=0.0), Integer(lower=0)))
    >>> m.marginal("rooms").log_prob(torch.tensor([0.0])).exp()
    tensor(0.5000)
    >>> m.condition({"rooms": 2}).mean
    tensor([1.6487])
    """

    # Moments.

    @property
    def mean(self) -> Tensor:
        """The mean [..., D]; inf where it is beyond double precision."""
        logits, means, variances = self._gaussians()
        own = moments.image_means(self.transforms, means, variances)
        # As in `mixture.mean`, but without the infinities, whose differences are NaN.
        total = mixture.mean(logits, torch.where(own.isinf(), 0.0, own))
        reached = (own.isinf() & (logits > -torch.inf).unsqueeze(-1)).any(-2)
        return torch.where(reached, torch.inf, total).to(self.dtype)

    @property
    def variance(self) -> Tensor:
        """The variance of each dimension [..., D]; inf where it is beyond double precision."""
        logits, means, variances = self._gaussians()
        own = moments.image_means(self.transforms, means, variances)
        within = moments.image_variances(self.transforms, means, variances)
        total = mixture.total_variance(logits, pushforward.saturated(own), within)
        return torch.where(self._overflows(), torch.inf, total).to(self.dtype)

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance [..., D, D]; ±inf where it is beyond double precision.

        Within a component by closed forms and Mehler's expansion, see
        `moments.image_covariances`; between them by the law of total covariance.
        """
        logits, means, variances = self._gaussians()
        own = pushforward.saturated(moments.image_means(self.transforms, means, variances))
        between = mixture.component_covariances(widen(self.base.factors), self.dimensions)
        within = moments.image_covariances(self.transforms, means, between)
        total = mixture.total_covariance(logits, own, within)
        beyond = self._overflows()
        either = (beyond.unsqueeze(-1) | beyond.unsqueeze(-2)) & (total != 0)
        return torch.where(either, total.sign() * torch.inf, total).to(self.dtype)

    @property
    def mode(self) -> NoReturn:
        """Refuse: the maps move the modes, and none of them has a closed form."""
        raise NoClosedFormError(
            "mode",
            got="has no closed form",
            expected="it was asked of a TransformedMixture",
            fix="Take the draw with the highest log_prob, or base.mode on the real line.",
        )

    # Density and samples.

    def log_prob(self, value: Any) -> Tensor:
        """Return the log density at value [..., D]; −inf outside the support.

        Per own unit of each continuous dimension, times the probability of the whole
        numbers: exact with at most one of them, see `functional.cells.box_log_prob`.
        """
        return mixture.log_total(self._joint(value)).to(self.dtype)

    def observed_log_prob(self, value: Any) -> Tensor:
        """Return the log density of the entries of value [..., D] that are not NaN.

        By the exact marginal over them; 0 where there is none.
        """
        if any(own.discrete for own in self.transforms):
            return super().observed_log_prob(value)
        value = widen(self._event(value, allow_nan=True))
        missing = value.isnan()
        columns, inside = self._columns(torch.where(missing, torch.inf, value))
        at = self._points(columns, range(self.dimensions)).masked_fill(missing, torch.nan)
        slopes = torch.stack(
            [own.log_slope(columns[d]) for d, own in enumerate(self.transforms)], -1
        )
        density = partial_log_prob(at, *widen(*self.base.parameters))
        density = density + slopes.masked_fill(missing, 0.0).sum(-1)
        return torch.where((inside | missing).all(-1), density, -torch.inf).to(self.dtype)

    def responsibilities(self, value: Any) -> Tensor:
        """Return the probability of each component given value [..., K]."""
        joint = self._joint(value, density=mixture.comparable)
        logits = mixture.posterior_logits(joint, widen(self.base.logits))
        return torch.softmax(logits, -1).to(self.dtype)

    def sample(
        self, sample_shape: Sequence[int] = (), *, generator: Generator | None = None
    ) -> Tensor:
        """Draw `[*sample_shape, *batch_shape, D]`, every draw inside the support."""
        return self._from_real(self.base.sample(sample_shape, generator=generator))

    def rsample(
        self, sample_shape: Sequence[int] = (), *, generator: Generator | None = None
    ) -> Tensor:
        """Draw as `sample` does, with pathwise gradients; continuous dimensions only."""
        if not self.has_rsample:
            discrete = [d for d, own in enumerate(self.transforms) if own.discrete]
            raise NoClosedFormError(
                "the mixture",
                got=f"has whole numbers in dimension(s) {discrete}",
                expected="these have no slope",
                fix="Use sample, or take marginal(dims) over the continuous dimensions.",
            )
        return self._from_real(self.base.rsample(sample_shape, generator=generator))

    # New mixtures from this one.

    def marginal(self, dims: Dimension | Iterable[Dimension]) -> Self:
        """Return the mixture of the given dimensions, in the order given."""
        resolved = resolve_dimensions("dims", dims, self.dimensions, self.names)
        return type(self)(self.base.marginal(resolved), [self.transforms[d] for d in resolved])

    def condition(self, values: Mapping[Any, Any]) -> Self:
        """Return the mixture of the other dimensions, given values {dimension: value, …}.

        Exact for continuous dimensions. Given whole numbers, each component becomes several,
        at points of its own in the cell: some ten for one number and up to 256 where cells
        are wide and correlations strong, up to 2304 for two, 4096 for more. The density then
        is accurate to 10⁻⁹ relative, for correlations up to 0.99 within a component; given
        three whole numbers or more, to some 10⁻².
        """
        means, batch = self.base.means, self.batch_shape
        dims, fixed = resolve_fixed(values, means, self.names, batch)
        for dim, d, value in zip(values, dims, fixed.unbind(-1), strict=True):
            self.transforms[d].check(f"values[{dim!r}]", value)
        given = dict(zip(dims, fixed.unbind(-1), strict=True))
        free = [d for d in range(self.dimensions) if d not in dims]
        points, whole = self._kinds(dims)
        parameters = Parameters(*widen(*self.base.parameters))
        if points:
            parameters = algebra.condition(*parameters, points, self._points(given, points))
        if whole:
            left = sorted([*free, *whole])
            places = [left.index(d) for d in whole]
            parameters = boxes.condition(*parameters, places, **self._cells(given, whole))
        names = None if self.names is None else [self.names[d] for d in free]
        conditional = GaussianMixture(
            *parameters.to(self.dtype), names=names, validate_args=self._validate_args
        )
        return type(self)(conditional, [self.transforms[d] for d in free])

    def narrowed(self, limits: Any) -> Self:
        """Return the mixture with no component wider than `limits` [D] on the real line.

        A component beyond is drawn together about its mean, in the dimensions concerned. The
        moments of positive numbers grow with exp(σ²) and are then those of the widest
        component, however rare; this bounds them.
        """
        limits = widen(checks.as_tensor("limits", limits, self.base.means))
        if limits.shape not in ((), (self.dimensions,)) or anywhere(~(limits > 0)):
            raise ArgumentError(
                "limits",
                got=f"is {limits.tolist()}",
                expected=f"{self.dimensions} numbers above 0 fit",
                fix="Pass one for each dimension, or one for all.",
            )
        logits, means, factors = widen(*self.base.parameters)
        deviations = component_variances(factors, self.dimensions).sqrt()
        scale = (limits / deviations).clamp(max=1.0)
        parameters = Parameters(logits, means, rescale(factors, scale)).to(self.dtype)
        return type(self)(self.base._with(parameters, self.names), self.transforms)

    # One dimension.

    def cdf(self, value: Any) -> Tensor:
        """Return P(Y ≤ value) in one dimension; value [..., 1] → [...]."""
        self._require_one_dimension("cdf")
        return univariate.cdf(
            self.transforms[0].threshold(self._event(value)), *self.base.parameters
        )

    def icdf(self, value: Any) -> Tensor:
        """Return the quantiles in one dimension; probabilities [...] → [..., 1].

        Of whole numbers the smallest y with P(Y ≤ y) ≥ probability. The probabilities
        broadcast against the batch shape, as in `GaussianMixture.icdf`.
        """
        self._require_one_dimension("icdf")
        levels = checks.check_probabilities(value, self.batch_shape, self.base.means)
        return self._quantile(levels, upper=False)

    def interval(self, coverage: Any) -> tuple[Tensor, Tensor]:
        """Return the ends of the interval that leaves (1 − mass)/2 on either side.

        Of whole numbers it leaves at most that much. Shapes: mass [...] → [..., 1] twice, as
        `icdf` takes probabilities.
        """
        self._require_one_dimension("interval")
        coverages = checks.check_coverages("coverage", coverage, self.batch_shape, self.base.means)
        tail = 0.5 * (1 - widen(coverages))
        lower, upper = (self._quantile(tail, upper=end) for end in (False, True))
        # Both within rounding of one another, they may come in the other order.
        return lower, torch.maximum(lower, upper)

    def crps(
        self, value: Any, *, n_samples: int = 1_000, generator: Generator | None = None
    ) -> Estimate:
        """Estimate the continuous ranked probability score in one dimension.

        Exact, with an error of zero, for real and positive targets. Of whole numbers only
        what rounding adds to an exact score is estimated. value [..., 1] → [...].
        """
        self._require_one_dimension("crps")
        return self.energy_score(value, n_samples=n_samples, generator=generator)

    @checks.within_memory
    def entropy(  # type: ignore[override]  # an estimate is not passed off as exact
        self, *, n_samples: int = 10_000, generator: Generator | None = None
    ) -> Estimate:
        """Estimate −E[log p(Y)], in the units of `log_prob`.

        Carries no gradient, unless every dimension is real.
        """
        if self._is_real():
            return self.base.entropy(n_samples=n_samples, generator=generator)
        count = self._count(n_samples, generator)
        with torch.no_grad():
            surprise = -self.log_prob(self.sample((count,), generator=generator))
        return Estimate(surprise.mean(0), estimates.standard_error(surprise))

    # What the methods above share.

    def _masked_log_prob(self, value: Tensor) -> Tensor:
        if not self.has_rsample:
            raise NoClosedFormError(
                "observed_log_prob",
                got="was asked of whole numbers while torch records or transforms",
                expected="gaps can then not be told from numbers",
                fix="Call log_prob on rows without gaps.",
            )
        columns, inside = self._columns(widen(value))
        dims = range(self.dimensions)
        density = partial_log_prob(self._points(columns, dims), *widen(*self.base.parameters))
        for d in dims:
            density = density + self.transforms[d].log_slope(columns[d]).nan_to_num(nan=0.0)
        return torch.where(inside, density, -torch.inf).to(self.dtype)

    def _exact_score(self, target: Tensor) -> Tensor | None:
        own = self.transforms[0]
        if self.dimensions > 1 or not isinstance(own, Real | Positive):
            return None
        if isinstance(own, Real):
            return self.base.crps(target)
        return scores.lognormal_crps(widen(target) - own.lower, *self.base.parameters)

    def _sampled_score(self, target: Tensor, count: int, generator: Generator | None) -> Estimate:
        own = self.transforms[0]
        if self.dimensions > 1 or not isinstance(own, Integer):
            return super()._sampled_score(target, count, generator)
        # Draws of a wide count hardly ever show the ones that decide; the exact score does.
        parameters = widen(*self.base.parameters)
        at = widen(target) - (own.lower or 0)
        draws = widen(self.base.sample((2, count), generator=generator))
        if own.exponential:
            exact, draws = scores.lognormal_crps(at + 0.5, *parameters), draws.exp()
        else:
            exact = scores.crps(at + 0.5, *parameters)
        added, error = scores.floor_score(at, *draws)
        return Estimate(exact + added, error)

    def _is_real(self) -> bool:
        return all(isinstance(own, Real) for own in self.transforms)

    def _joint(self, value: Any, density: Callable[..., Tensor] = mixture.joint_log_prob) -> Tensor:
        """Return log πₖ + log pₖ(y) in double precision [..., K]; −inf outside the support."""
        columns, inside = self._columns(widen(self._event(value)))
        points, whole = self._kinds(range(self.dimensions))
        if not whole:
            joint = density(self._points(columns, points), *self.base.parameters)
        else:
            parameters = Parameters(*widen(*self.base.parameters))
            joint = torch.log_softmax(parameters.logits, -1)
            if points:
                at = self._points(columns, points)
                seen = algebra.marginal(*parameters, points)
                joint = density(at, *seen)
                parameters = algebra.condition(*parameters, points, at)
            joint = joint + boxes.box_log_prob(
                means=parameters.means, factors=parameters.factors, **self._cells(columns, whole)
            )
        slopes = [self.transforms[d].log_slope(columns[d]) for d in range(self.dimensions)]
        joint = joint + torch.stack(slopes).sum(0).unsqueeze(-1)
        return torch.where(inside.all(-1, keepdim=True), joint, -torch.inf)

    def _columns(self, value: Tensor) -> tuple[dict[int, Tensor], Tensor]:
        """Return the value of each dimension, and which of them lie in the support [..., D].

        What does not is replaced by something that does, so that no gradient is NaN.
        """
        columns, held = {}, []
        for d, (own, y) in enumerate(zip(self.transforms, value.unbind(-1), strict=True)):
            inside = own.contains(y) | y.isnan()
            columns[d] = torch.where(inside, y, own.from_real(torch.zeros_like(y)))
            held.append(inside)
        return columns, torch.stack(held, -1)

    def _points(self, columns: Mapping[int, Tensor], dims: Sequence[int]) -> Tensor:
        """Return the real coordinates of continuous dimensions [..., len(dims)]."""
        return torch.stack([self.transforms[d].to_real(columns[d]) for d in dims], -1)

    def _cells(self, columns: Mapping[int, Tensor], dims: Sequence[int]) -> dict[str, Tensor]:
        """Return the real ends and widths of the cells of discrete dimensions [..., len(dims)]."""
        parts = [
            (*own.cell(columns[d]), own.cell_width(columns[d]))
            for d in dims
            if isinstance(own := self.transforms[d], Integer)
        ]
        stacked = (torch.stack(part, -1) for part in zip(*parts, strict=True))
        return dict(zip(("lower", "upper", "width"), stacked, strict=True))

    def _quantile(self, level: Tensor, *, upper: bool) -> Tensor:
        """Return the value that leaves `level` below it, or above it where `upper`."""
        logits, means, factors = widen(*self.base.parameters)
        # The upper end through the mirror image: 1 − level has lost the level's digits.
        side, own = -1 if upper else 1, self.transforms[0]
        real = side * univariate.icdf(level, logits, side * means, factors)
        found = own.from_real(real)
        if own.discrete:
            found = self._smallest(found, widen(level).unsqueeze(-1), upper=upper)
        return found.to(self.dtype)

    def _smallest(self, found: Tensor, level: Tensor, *, upper: bool) -> Tensor:
        """Correct a whole quantile by one, where rounding at the end of a cell misled it."""
        logits, means, factors = widen(*self.base.parameters)
        side = -1 if upper else 1

        def reaches(y: Tensor) -> Tensor:
            at = side * self.transforms[0].threshold(y)
            passed = univariate.cdf(at, logits, side * means, factors).unsqueeze(-1)
            return passed <= level if upper else passed >= level

        inner = (level > 0) & (level < 1)
        found = torch.where(inner & ~reaches(found), found + 1, found)
        return torch.where(inner & reaches(found - 1), found - 1, found)

    def _gaussians(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, means and variances of the components, in double precision."""
        logits, means, factors = widen(*self.base.parameters)
        return logits, means, component_variances(factors, self.dimensions)

    def _overflows(self) -> Tensor:
        """Tell in which dimensions a component with weight has a square beyond precision."""
        logits, means, variances = self._gaussians()
        beyond = moments.image_overflows(self.transforms, means, variances)
        return (beyond & (logits > -torch.inf).unsqueeze(-1)).any(-2)
