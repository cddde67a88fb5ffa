"""`TransformedMixture`: joint densities of positive, bounded and whole-numbered targets."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Self, TypeGuard

import torch
from torch import Generator, Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.constraints import Constraint

from condens.distributions import checks
from condens.distributions.base import Mixture
from condens.distributions.checks import Numbers
from condens.distributions.dimensions import listed
from condens.distributions.gaussian import GaussianMixture
from condens.errors import ArgumentError, NoClosedFormError, ShapeError
from condens.functional import algebra, boxes, estimates, mixture, pushforward
from condens.functional import modes as mode_search
from condens.functional.algebra import Parameters
from condens.functional.estimates import Estimate
from condens.functional.fused import log_density
from condens.functional.missing import partial_log_prob
from condens.functional.modes import Modes
from condens.functional.precision import widen
from condens.functional.tracing import anywhere, checks_values, traceable
from condens.functional.triangular import component_variances, inverse_factors
from condens.transforms import Integer, Real, Transform, moments

# Gaussians that one component may become in the search for modes: six intervals.
MAX_MODE_TERMS = 3**6


@traceable
class TransformedMixture(Mixture):
    """A Gaussian mixture seen through a monotone transform of each dimension.

    Y = (f₁(X₁), …, f_D(X_D)),  X ~ mixture

    The transforms act on one dimension each, so marginals, conditionals and quantiles are those
    of the mixture, transformed. Densities are per unit of Y; a whole number enters with its
    probability.

    Args:
        mixture: a `GaussianMixture`, the density of X over the real numbers; its names are
            those of Y.
        transforms: one for each dimension.
        validate_args: as in every `torch.distributions.Distribution`; by default as `mixture`.

    Its `parameters` are those of X; `means` and `covariance_matrices` are moments of Y in each
    component. Answers are as exact as those of `GaussianMixture` but for these: probabilities of
    several whole numbers at once (`functional.boxes.box_log_prob`), conditioning on whole
    numbers (see `condition`), covariances of integers, and of intervals by the logit, with each
    other (`moments.transformed_covariances`), and every `Estimate`.

    Given whole numbers, `condition` makes several components of each, at points of its own in
    the cell: some ten for one number and up to 256 where cells are wide and correlations strong,
    up to 2304 for two, 4096 for more. The density then is accurate to 10⁻⁹ relative, for
    correlations up to 0.99 within a component; given three whole numbers or more, to some 10⁻².

    >>> from condens.transforms import Integer, Positive
    >>> m = GaussianMixture(torch.zeros(1), torch.zeros(1, 2), torch.zeros(1, 3),
    ...                     names=["price", "rooms"])
    >>> m = TransformedMixture(m, [Positive(), Integer(lower=0)])
    >>> m
    TransformedMixture(batch_shape=[], n_components=1, dimensions=2,
                       transforms=(Positive(lower=0.0), Integer(lower=0)),
                       names=('price', 'rooms'))
    >>> m.marginal("rooms").log_prob(torch.tensor([0.0])).exp()
    tensor(0.5000)
    >>> m.condition({"rooms": 2}).mean
    tensor([1.6487])
    """

    arg_constraints = {}  # noqa: RUF012  (torch's own signature)
    parameters: Parameters
    _form = Parameters
    _axes = GaussianMixture._axes
    _density = mixture
    _algebra = algebra
    _from_latent = staticmethod(GaussianMixture._from_latent)
    _log_prob_at = GaussianMixture._log_prob_at
    _check_sizes = GaussianMixture._check_sizes
    _check_range = GaussianMixture._check_range

    def __init__(
        self,
        mixture: GaussianMixture,
        transforms: Sequence[Transform],
        *,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(mixture, GaussianMixture):
            raise ArgumentError(
                "mixture",
                got=f"is {type(mixture).__name__}",
                expected="a GaussianMixture was expected",
                fix="Pass the density over the real numbers, such as what a network returns.",
            )
        flag = checks.check_flag("validate_args", validate_args, mixture._validate_args)
        if flag and not mixture._validate_args:
            mixture._check_parameters()
        self._transforms = check_transforms(transforms, mixture.dimensions)
        self._set(mixture.parameters, mixture.names, flag)

    @property
    def transforms(self) -> tuple[Transform, ...]:
        return self._transforms

    @property
    def base(self) -> GaussianMixture:
        """The density of X, over the real numbers."""
        new = GaussianMixture.__new__(GaussianMixture)
        new._set(self.parameters, self.names, self._validate_args)
        return new

    @constraints.dependent_property(event_dim=1)
    def support(self) -> Constraint:
        """Return the support of every dimension, as torch and Pyro ask for it.

        `biject_to(support)` is the bijection that `transforms` are; with whole numbers there is
        none, and it raises `NoClosedFormError`.
        """
        each = [transform.constraint for transform in self.transforms]
        # One axis of events, over which `cat` alone does not collect.
        alike = len(set(self.transforms)) == 1
        return constraints.independent(each[0] if alike else constraints.cat(each, -1), 1)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]  # torch has a class attribute
        """Whether `rsample` is there: no dimension is discrete."""
        return not self._discrete

    # Moments.

    @property
    def means(self) -> Tensor:
        return self._moments("mean").to(self.dtype)

    @property
    def mean(self) -> Tensor:
        logits, means = widen(self.logits), self._moments("mean")
        # As in `mixture.mean`, but without the infinities, whose differences are NaN.
        total = mixture.mean(logits, torch.where(means.isinf(), 0.0, means))
        reached = (means.isinf() & (logits > -torch.inf).unsqueeze(-1)).any(-2)
        return torch.where(reached, torch.inf, total).to(self.dtype)

    @property
    def variance(self) -> Tensor:
        centres = pushforward.saturated(self._moments("mean"))
        total = mixture.total_variance(widen(self.logits), centres, self._moments("variance"))
        return torch.where(self._overflows(), torch.inf, total).to(self.dtype)

    @property
    def covariance_matrices(self) -> Tensor:
        return _unbounded(self._within(), self._moments("overflows")).to(self.dtype)

    @property
    def covariance_matrix(self) -> Tensor:
        centres = pushforward.saturated(self._moments("mean"))
        total = mixture.total_covariance(widen(self.logits), centres, self._within())
        return _unbounded(total, self._overflows()).to(self.dtype)

    def _moments(self, moment: moments.Moment) -> Tensor:
        """Return a moment of every component of Y [..., K, D], in double precision."""
        _, means, factors = widen(*self.parameters)
        variances = component_variances(factors, self.dimensions)
        return moments.transformed(moment, self.transforms, means, variances)

    def _within(self) -> Tensor:
        """Return the covariances of Y within each component, at most e⁶⁸⁰ [..., K, D, D]."""
        between = mixture.component_covariances(widen(self.parameters.factors), self.dimensions)
        return moments.transformed_covariances(
            self.transforms, widen(self.parameters.means), between
        )

    def _overflows(self) -> Tensor:
        """Tell in which dimensions a component with weight has a square beyond precision."""
        weighted = (self.logits > -torch.inf).unsqueeze(-1)
        return (self._moments("overflows") & weighted).any(-2)

    # Density and samples.

    def log_prob(self, value: Numbers) -> Tensor:
        if self._discrete:
            return mixture.log_total(self._joint(value, self.parameters)).to(self.dtype)
        columns, inside = self._columns(widen(self._event(value)))
        density = log_density(
            self._points(columns, range(self.dimensions)), *widen(*self.parameters)
        )
        slopes = [transform.log_slope(columns[d]) for d, transform in enumerate(self.transforms)]
        density = density + torch.stack(slopes).sum(0)
        return torch.where(inside.all(-1), density, -torch.inf).to(self.dtype)

    def component_log_prob(self, value: Numbers) -> Tensor:
        even = self.parameters._replace(logits=torch.zeros_like(self.logits))
        return (self._joint(value, even) + math.log(self.n_components)).to(self.dtype)

    def responsibilities(self, value: Numbers) -> Tensor:
        joint = self._joint(value, self.parameters, density=mixture.comparable)
        logits = mixture.posterior_logits(joint, widen(self.logits))
        return torch.softmax(logits, -1).to(self.dtype)

    def observed_log_prob(self, value: Numbers) -> Tensor:
        value = widen(self._event(value, allow_nan=True))
        if self._discrete:
            return self._log_prob_by_pattern(value)
        missing = value.isnan()
        columns, inside = self._columns(torch.where(missing, torch.inf, value))
        at = self._points(columns, range(self.dimensions)).masked_fill(missing, torch.nan)
        slopes = torch.stack(
            [transform.log_slope(columns[d]) for d, transform in enumerate(self.transforms)], -1
        )
        density = partial_log_prob(at, *widen(*self.parameters))
        density = density + slopes.masked_fill(missing, 0.0).sum(-1)
        return torch.where((inside | missing).all(-1), density, -torch.inf).to(self.dtype)

    def _log_prob_by_pattern(self, value: Tensor) -> Tensor:
        """Return `observed_log_prob` by the marginal over each set of observed dimensions."""
        if not checks_values(value):
            raise NoClosedFormError(
                "observed_log_prob",
                got="was asked of whole numbers while torch records or transforms",
                expected="gaps and numbers look alike to it",
                fix="Call log_prob on rows without gaps.",
            )
        batch = torch.broadcast_shapes(value.shape[:-1], self.batch_shape)
        wide, value = self.expand(batch), value.expand(*batch, value.shape[-1])
        result = torch.zeros(batch, dtype=self.dtype, device=value.device)
        if not batch.numel():  # unique takes no empty tensor
            return result
        observed = ~value.isnan()
        for seen in observed.reshape(-1, self.dimensions).unique(dim=0):
            rows, dims = (observed == seen).all(-1), seen.nonzero().flatten()
            if len(dims):
                result[rows] = wide[rows].marginal(dims).log_prob(value[rows][:, dims])
        return result

    def _rosenblatt(self, value: Tensor, generator: Generator | None) -> Tensor:
        if self._discrete:
            return self._discrete_rosenblatt(widen(value), generator)
        pairs = zip(self.transforms, value.unbind(-1), strict=True)
        return self.base._rosenblatt(torch.stack([t.threshold(y) for t, y in pairs], -1), generator)

    def _discrete_rosenblatt(self, value: Tensor, generator: Generator | None) -> Tensor:
        """Return u of each dimension given the cells and points of those before."""
        options: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
        uniform = torch.rand(value.shape, generator=generator, **options)
        result, observed = torch.full_like(value, torch.nan), ~value.isnan()
        wide = self.expand(value.shape[:-1])
        columns, inside = self._columns(value)
        # Rows in which the same dimensions are known, and the same follow from them.
        kind = observed.to(torch.int64) + (observed & inside).to(torch.int64)
        for pattern in kind.unique(dim=0) if len(value) else ():
            rows = (kind == pattern).all(-1)
            part = wide[rows]
            given = {d: column[rows] for d, column in columns.items()}
            for d in (pattern > 0).nonzero().flatten().tolist():
                before = [b for b in range(d) if pattern[b] == 2]
                ends = self.transforms[d].ends(value[rows, d])
                parts = part._log_parts(given, before, d, *ends)
                lost = parts.isneginf().all(0)
                if bool(lost.any()):  # what came before is beyond all numbers, and says nothing
                    parts = torch.where(lost, part._log_parts(given, [], d, *ends), parts)
                shares = torch.softmax(parts, 0)
                result[rows, d] = shares[0] + uniform[rows, d] * shares[1]
        return result

    def _log_parts(
        self,
        given: Mapping[int, Tensor],
        before: Sequence[int],
        dim: int,
        lower: Tensor,
        upper: Tensor,
        width: Tensor,
    ) -> Tensor:
        """Return log P(X_dim < lower), that of the interval and that above, given others [3, R]."""
        points, whole = self._kinds(before)
        logits, means, factors = widen(*self.parameters)
        parameters = algebra.marginal(logits, means, factors, [*before, dim])
        if points:
            places = [before.index(d) for d in points]
            parameters = algebra.condition(*parameters, places, self._points(given, points))
        cells = self._cells(given, whole) if whole else {}
        end = torch.full_like(lower, torch.inf)
        found = []
        for interval in ((-end, lower, end), (lower, upper, width), (upper, end, end)):
            box = {
                name: torch.cat([cells[name], part[..., None]], -1) if whole else part[..., None]
                for name, part in zip(("lower", "upper", "width"), interval, strict=True)
            }
            each = boxes.box_log_prob(means=parameters.means, factors=parameters.factors, **box)
            found.append(mixture.log_total(torch.log_softmax(parameters.logits, -1) + each))
        return torch.stack(found)

    def _sample(self, shape: tuple[int, ...], generator: Generator | None) -> Tensor:
        return self._from_real(self.base._sample(shape, generator))

    def _rsample(self, shape: tuple[int, ...], generator: Generator | None) -> Tensor:
        self._refuse_discrete("these have no slope", "Use sample")
        return self._from_real(self.base._rsample(shape, generator))

    # New mixtures from this one.

    def _condition(self, dims: Sequence[int], fixed: Tensor) -> Parameters:
        given = dict(zip(dims, fixed.unbind(-1), strict=True))
        points, whole = self._kinds(dims)
        parameters = Parameters(*widen(*self.parameters))
        if points:
            parameters = algebra.condition(*parameters, points, self._points(given, points))
        if whole:
            left = [d for d in range(self.dimensions) if d not in points]
            places = [left.index(d) for d in whole]
            parameters = boxes.condition(*parameters, places, **self._cells(given, whole))
        return parameters.to(self.dtype)

    def _affine(self, scale: Tensor, loc: Tensor) -> Self:
        if self._is_real:
            return self._like(self.base._affine(scale, loc))
        if loc.dim() > 1:
            raise ShapeError(
                "loc",
                got=f"has shape {list(loc.shape)}",
                expected="bounds are those of the whole batch",
                fix=f"Pass a number or [{self.dimensions}], or index the batch.",
            )
        pairs = zip(self.transforms, scale.tolist(), loc.tolist(), strict=True)
        try:
            moved = [transform.affine(*pair) for transform, *pair in pairs]
        except ArgumentError as error:
            raise ArgumentError(
                "matrix_or_scale and loc",
                got=f"are {scale.tolist()} and {loc.tolist()}",
                expected="the bounds that follow must be finite, and have numbers between them",
                fix="Scale and shift by less.",
            ) from error
        transforms, scales, locs = zip(*moved, strict=True)
        wide = Parameters(*widen(*self.parameters))
        scale, loc = (wide.means.new_tensor(numbers) for numbers in (scales, locs))
        return self._make(wide.affine(scale, loc).to(self.dtype), self.names, transforms)

    # Shape of the density.

    def modes(self) -> Modes:
        """Return the distinct local maxima of the density of Y, highest first.

        As a function of x, the density of Y is p(x) Π dxⱼ/dyⱼ, and every slope is a sum of
        exponentials of xⱼ: one for positive targets, three for intervals by the logit. A Gaussian
        times exp(a·x) is a Gaussian about μ + Σa, so that this is a Gaussian mixture, whose modes
        are climbed to from all its means. The slope of intervals by the probit is 1/φ(xⱼ): then it
        is a mixture over a Gaussian, which grows without limit towards the bounds if a component
        is wider than the standard normal. The bounds are no modes, and without any mode between
        them `NoClosedFormError` says so. The points [..., M, D] are values of Y.
        """
        self._refuse_discrete("their probabilities have no modes to climb to", "Condition on them")
        terms = list(product(*(one.slope_terms().items() for one in self.transforms)))
        if len(terms) > MAX_MODE_TERMS:
            self._refuse(
                "modes() over more than six intervals by the logit", "Take marginal(dims) first."
            )
        exponents, logs = zip(*(zip(*term, strict=True) for term in terms), strict=True)
        wide = Parameters(*(tensor.detach() for tensor in widen(*self.parameters)))
        tilted = _tilted(*wide, *(wide.means.new_tensor(part) for part in (exponents, logs)))
        growth = [one.slope_growth for one in self.transforms]
        points, log_density = mode_search.modes(*tilted, wide.means.new_tensor(growth))
        if anywhere(log_density[..., :1].isneginf()):
            raise NoClosedFormError(
                "modes()",
                got="was asked of a density without a maximum",
                expected="it grows without limit towards a bound of dimension(s) "
                f"{[d for d, q in enumerate(growth) if q]}",
                fix="Ask for hpd_threshold or interval; by Interval(…, link='logit') densities are "
                "bounded.",
            )
        log_density = log_density + tilted.logits.logsumexp(-1, keepdim=True)
        return Modes(self._from_real(points), log_density.to(self.dtype))

    def _entropy(self, count: int, generator: Generator | None) -> Estimate:
        if self._discrete:
            return super()._entropy(count, generator)
        # log p(y) = log p(x) + log|dx/dy|, and the second part has a mean of its own.
        wide = Parameters(*widen(*self.parameters))
        value, error = estimates.entropy(*wide, count, generator=generator)
        slopes = self._moments("mean_log_slope").sum(-1)
        gained = (torch.softmax(wide.logits, -1) * slopes).sum(-1)
        return Estimate(value - gained, error).to(self.dtype)

    def component_entropies(self) -> Tensor | None:
        if self._discrete:
            return None
        real = 0.5 * self.dimensions - self.base.peak_log_prob()
        return real - self._moments("mean_log_slope").sum(-1)

    def _exact_kl(self, other: Distribution) -> Tensor | None:
        return self.base._exact_kl(other.base) if self._comparable(other) else None

    def _kl_divergence(
        self, other: Distribution, count: int, generator: Generator | None
    ) -> Estimate:
        if not self._comparable(other):
            return super()._kl_divergence(other, count, generator)
        # A bijection of both densities leaves the divergence as it is.
        return self.base._kl_divergence(other.base, count, generator)

    def _comparable(self, other: Distribution) -> TypeGuard["TransformedMixture"]:
        """Tell whether the other density is seen through the same bijections."""
        alike = isinstance(other, TransformedMixture) and other.transforms == self.transforms
        return alike and not self._discrete

    # What the methods above share.

    def _covariance_text(self) -> str:
        return f"transforms={self.transforms}"

    def _tree(self) -> tuple[list[Any], Any]:
        leaves, context = super()._tree()
        return leaves, {**context, "transforms": [one.to_dict() for one in self.transforms]}

    @classmethod
    def _from_tree(cls, leaves: Iterable[Any], context: Any) -> Self:
        new = super()._from_tree(leaves, context)
        new._transforms = tuple(Transform.from_dict(values) for values in context["transforms"])
        return new

    def _make(
        self,
        parameters: Iterable[Tensor],
        names: Sequence[str] | None,
        transforms: Sequence[Transform],
    ) -> Self:
        base = GaussianMixture(*parameters, names=names, validate_args=self._validate_args)
        return type(self)(base, transforms)

    def _with(self, parameters: Iterable[Tensor], dims: Iterable[int] | None) -> Self:
        kept = list(dims or ())
        names = None if self.names is None else [self.names[d] for d in kept]
        return self._make(parameters, names, [self.transforms[d] for d in kept])

    def _like(self, full: Mixture) -> Self:
        return self._make(full.parameters, full.names, (Real(),) * full.dimensions)

    def _full(self, call: str, *, real: bool = True) -> GaussianMixture:
        if real and not self._is_real:
            self._refuse(call, f"Call base.{call} for the density over the real numbers.")
        return self.base

    @property
    def _discrete(self) -> list[int]:
        """The dimensions of whole numbers."""
        return self._kinds(range(self.dimensions))[1]

    def _refuse_discrete(self, expected: str, instead: str) -> None:
        if self._discrete:
            raise NoClosedFormError(
                "the mixture",
                got=f"has whole numbers in dimension(s) {self._discrete}",
                expected=expected,
                fix=f"{instead}, or take marginal(dims) over the continuous dimensions.",
            )

    def _kinds(self, dims: Iterable[int]) -> tuple[list[int], list[int]]:
        """Return the continuous ones of some dimensions, and the discrete ones."""
        dims = list(dims)
        continuous = [d for d in dims if not self.transforms[d].discrete]
        return continuous, [d for d in dims if self.transforms[d].discrete]

    def _from_real(self, draws: Tensor) -> Tensor:
        """Return draws of X as values inside the support, in the mixture's dtype."""
        columns = zip(self.transforms, draws.unbind(-1), strict=True)
        return torch.stack([one.nearest(one.from_real(x).to(self.dtype)) for one, x in columns], -1)

    def _joint(
        self,
        value: Numbers,
        parameters: Parameters,
        density: Callable[..., Tensor] = mixture.joint_log_prob,
    ) -> Tensor:
        """Return log πₖ + log pₖ(y) in double precision [..., K]; −inf outside the support."""
        columns, inside = self._columns(widen(self._event(value)))
        points, whole = self._kinds(range(self.dimensions))
        if not whole:
            joint = density(self._points(columns, points), *parameters)
        else:
            parameters = Parameters(*widen(*parameters))
            joint = torch.log_softmax(parameters.logits, -1)
            if points:
                at = self._points(columns, points)
                joint = density(at, *algebra.marginal(*parameters, points))
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
        for d, (transform, y) in enumerate(zip(self.transforms, value.unbind(-1), strict=True)):
            inside = transform.contains(y) | y.isnan()
            columns[d] = torch.where(inside, y, transform.from_real(torch.zeros_like(y)))
            held.append(inside)
        return columns, torch.stack(held, -1)

    def _points(self, columns: Mapping[int, Tensor], dims: Sequence[int]) -> Tensor:
        """Return the real coordinates of continuous dimensions [..., len(dims)]."""
        return torch.stack([self.transforms[d].to_real(columns[d]) for d in dims], -1)

    def _cells(self, columns: Mapping[int, Tensor], dims: Sequence[int]) -> dict[str, Tensor]:
        """Return the real ends and widths of the cells of discrete dimensions [..., len(dims)]."""
        parts = [
            (*transform.cell(columns[d]), transform.cell_width(columns[d]))
            for d in dims
            if isinstance(transform := self.transforms[d], Integer)
        ]
        stacked = (torch.stack(part, -1) for part in zip(*parts, strict=True))
        return dict(zip(("lower", "upper", "width"), stacked, strict=True))


def _unbounded(covariance: Tensor, beyond: Tensor) -> Tensor:
    """Return a covariance [..., D, D] with ±inf where a dimension [..., D] is beyond precision."""
    either = (beyond.unsqueeze(-1) | beyond.unsqueeze(-2)) & (covariance != 0)
    return torch.where(either, covariance.sign() * torch.inf, covariance)


def _tilted(
    logits: Tensor, means: Tensor, factors: Tensor, exponents: Tensor, logs: Tensor
) -> Parameters:
    """Return p(x) Σₜ exp(aₜ·x + cₜ) as a Gaussian mixture, up to its total.

    πₖ N(x; μₖ, Σₖ) exp(a·x) = πₖ exp(a·μₖ + ½aᵀΣₖa) N(x; μₖ + Σₖa, Σₖ)

    Shapes: exponents a [T, D], logs c [T, D], summed over D → K·T components, whose logits are
    not normalised.
    """
    root = inverse_factors(factors, means.shape[-1])
    latent = exponents @ root
    shifted = means.unsqueeze(-2) + latent @ root.mT
    gained = means @ exponents.mT + 0.5 * latent.square().sum(-1) + logs.sum(-1)
    repeated = factors.unsqueeze(-2).expand(*shifted.shape[:-1], factors.shape[-1])
    return Parameters(
        (torch.log_softmax(logits, -1).unsqueeze(-1) + gained).flatten(-2),
        shifted.flatten(-3, -2),
        repeated.flatten(-3, -2),
    )


def check_transforms(transforms: Any, dimensions: int) -> tuple[Transform, ...]:
    """Check that there is one transform for each dimension."""
    found = tuple(listed(transforms) or ())
    if len(found) != dimensions or not all(isinstance(one, Transform) for one in found):
        raise ArgumentError(
            "transforms",
            got=f"is {transforms!r}",
            expected=f"{dimensions} transform(s) were expected",
            fix="Pass one for each dimension; condens.transforms.resolve makes them from words.",
        )
    return found
