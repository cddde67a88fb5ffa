"""Probabilities of boxes under Gaussians, and conditioning on a box.

A box is a cell of whole numbers: its ends [..., n] may be infinite. Ū is upper triangular,
so the last dimension is free of the others and each earlier one follows from those after
it: zᵢ = Ūᵢᵢδᵢ + Σⱼ﹥ᵢ Ūᵢⱼδⱼ with δ = x − μ. Walking from the last to the first (Genz 1992),
one zᵢ at a time is integrated over its interval, in log space: far cells are as accurate
as near ones. The arithmetic has the precision of the arguments.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from condens.functional.algebra import Parameters, marginal, normalised
from condens.functional.algebra import condition as condition_on_values
from condens.functional.estimates import Estimate, standard_error
from condens.functional.mixture import log_total
from condens.functional.normal import LOG_2PI, at_most_one, cdf, gauss_legendre, log_interval
from condens.functional.triangular import component_variances, is_diagonal, reorder, unpack

# The most Gauss–Legendre nodes a dimension, by the number of dimensions; beyond, Sobol points.
_MAX_NODES = {1: 256, 2: 48, 3: 16}
_SOBOL_POINTS = 2048
# Where the density falls below e⁻²⁸ of its largest (7.5 σ), an interval is cut off.
_CUT_DEPTH = 28.0
# Nodes for a point, and for each unit of length: measured to give 10⁻⁸.
_MIN_NODES, _NODES_PER_LENGTH = 6, 1.6
_NUMBERS_PER_BLOCK = 100_000
# Boxes of so many dimensions may be integrated to 10⁻⁹.
MAX_EXACT_DIMENSIONS = 3
# Sets of shifted points, whose spread is the standard error.
_SHIFTS = 16
# Fractions of a probability stay away from its ends, which may be infinite.
_EDGE = 2.0**-50


def box_log_prob(
    lower: Tensor, upper: Tensor, means: Tensor, factors: Tensor, width: Tensor | None = None
) -> Tensor:
    """Return log P(lower ≤ X < upper) under every component.

    Pass the width upper − lower where the rounded ends have lost it.

    Exact for n = 1. Beyond, one dimension is exact and the others are integrated: by
    Gauss–Legendre nodes, as many as the box and the correlations need, up to n = 4, and
    by 2048 Sobol points beyond. The relative error is below 10⁻⁹ up to n = 3
    for correlations up to 0.99, and below 10⁻⁵ for n = 4 and correlations up to 0.9; from
    n = 5 on it is some 10⁻³ for likely boxes, 10⁻² for rare ones.

    Shapes: lower, upper and width [..., n], means [..., K, n], factors [..., K, T] → [..., K].

    >>> at, one = torch.zeros(1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    >>> box_log_prob(at - 1, at + 1, one, one).exp()
    tensor([0.6827], dtype=torch.float64)
    """
    box = _Box.of(lower, upper, means, factors, width)
    if box.dimensions == 1:
        return log_interval(*box.ends(0, torch.zeros_like(box.low[..., 0])))
    shape, box = box.low.shape[:-1], box.flatten()
    needs = box.needs(_over(box.triangle[..., :1, 1:], box.triangle[..., 1:, 1:]), first=1)
    found = box.low.new_zeros(len(box.low))
    for need in needs.unique().tolist():
        rule = _rule(box.dimensions - 1, need, means)
        # No more rows at once than memory holds with all their points.
        size = 1 + _NUMBERS_PER_BLOCK // len(rule.points)
        for rows in (needs == need).nonzero().flatten().split(size):
            found[rows] = _integral(_Box(*(tensor[rows] for tensor in box)), rule)[0]
    return found.reshape(shape)


def box_probability(
    lower: Tensor,
    upper: Tensor,
    logits: Tensor,
    means: Tensor,
    factors: Tensor,
    width: Tensor | None = None,
    *,
    count: int,
    generator: Generator | None = None,
) -> Estimate:
    """Return P(lower ≤ X < upper) under mixtures; 0 where an end is not above the other one.

    Exact, to some 10⁻⁹ relative, for n = 1, for diagonal factors, and for n ≤ 3 where
    `box_log_prob` has as many nodes as it needs. Else by `count` quasi-random points in sixteen
    sets, shifted at random: their means are independent, and tell the standard error. The width
    is as in `box_log_prob`. Shapes: lower, upper and width [R, n], logits [R, K], means
    [R, K, n], factors [R, K, T] → [R].

    >>> ends = torch.zeros(2, 2, dtype=torch.float64), torch.full((2, 2), torch.inf).double()
    >>> mean, factor = torch.zeros(2, 1, 2).double(), torch.zeros(2, 1, 3).double()
    >>> box_probability(*ends, mean[..., 0], mean, factor, count=1000).value
    tensor([0.2500, 0.2500], dtype=torch.float64)
    """
    n, log_weights = means.shape[-1], torch.log_softmax(logits, -1)
    wide = upper - lower if width is None else width
    # From −inf to −inf, or both +inf, the difference is NaN.
    empty = ~(wide > 0).all(-1)
    lower, upper = (
        torch.where(empty.unsqueeze(-1), s, e) for e, s in ((lower, -1.0), (upper, 1.0))
    )
    wide = torch.where(empty.unsqueeze(-1), 2.0, wide)
    if is_diagonal(factors, n):
        box = _Box.of(lower, upper, means, factors, wide)
        still = torch.zeros_like(box.low[..., 0])
        each = sum((log_interval(*box.ends(i, still)) for i in range(n)), still)
        exact = torch.ones_like(empty)
    else:
        exact = _is_resolved(lower, upper, means, factors, wide)
        each = log_weights.new_zeros(log_weights.shape)
        each[exact] = box_log_prob(*(t[exact] for t in (lower, upper, means, factors, wide)))
    value = log_total(log_weights + each).exp()
    error = torch.zeros_like(value)
    if not bool(exact.all()):
        rest = ~exact
        some = (t[rest] for t in (lower, upper, log_weights, means, factors, wide))
        value[rest], error[rest] = _shifted(*some, count=count, generator=generator)
    value = at_most_one(value)
    return Estimate(torch.where(empty, 0.0, value), torch.where(empty, 0.0, error))


def _is_resolved(
    lower: Tensor, upper: Tensor, means: Tensor, factors: Tensor, width: Tensor
) -> Tensor:
    """Tell for which boxes [R] every component has as many nodes as it needs."""
    n = means.shape[-1]
    if n > MAX_EXACT_DIMENSIONS:
        return torch.zeros(len(means), dtype=torch.bool, device=means.device)
    if n == 1:
        return torch.ones(len(means), dtype=torch.bool, device=means.device)
    box = _Box.of(lower, upper, means, factors, width)
    speed = _over(box.triangle[..., :1, 1:], box.triangle[..., 1:, 1:])
    return (box.wants(speed, first=1) <= _MAX_NODES[n - 1]).all(-1)


def _shifted(
    lower: Tensor,
    upper: Tensor,
    log_weights: Tensor,
    means: Tensor,
    factors: Tensor,
    width: Tensor,
    *,
    count: int,
    generator: Generator | None,
) -> Estimate:
    """Estimate probabilities by sets of Sobol points, each shifted at random."""
    order = _tightest_last(lower, upper, means, factors)
    lower, upper, means, width = (tensor[..., order] for tensor in (lower, upper, means, width))
    box = _Box.of(lower, upper, means, reorder(factors, order), width).flatten()
    points = _sobol(means.shape[-1] - 1, max(64, math.ceil(count / _SHIFTS))).to(means)
    options: dict[str, Any] = {"dtype": points.dtype, "device": points.device}
    shifts = torch.rand(_SHIFTS, 1, points.shape[-1], generator=generator, **options)
    # Folded, so that the integrand has no jump where a shift takes it around.
    folded = (1 - (2 * ((points + shifts) % 1.0) - 1).abs()).clamp(_EDGE, 1 - _EDGE).flatten(0, 1)
    share = torch.full_like(folded[:, 0], -math.log(len(points)))
    rule = _Rule(folded, share, _by_probability)
    parts = torch.arange(len(box.low), device=points.device).split(
        1 + _NUMBERS_PER_BLOCK // len(folded)
    )
    each = [_integral(_Box(*(t[rows] for t in box)), rule, _SHIFTS) for rows in parts]
    levels = log_total(log_weights + torch.cat(each, -1).reshape(_SHIFTS, *log_weights.shape))
    # Relative to the largest: a set may be below the smallest number, and the mean not.
    top = levels.amax(0)
    unit = torch.where(top.isneginf(), 0.0, top)
    sets = (levels - unit).exp()
    return Estimate(sets.mean(0) * unit.exp(), standard_error(sets) * unit.exp())


def _tightest_last(lower: Tensor, upper: Tensor, means: Tensor, factors: Tensor) -> list[int]:
    """Return an order in which the least probable interval is walked through first.

    What is left to the others then varies less (Gibson, Glasbey and Elston 1994).
    """
    deviations = component_variances(factors, means.shape[-1]).sqrt()
    ends = ((end.unsqueeze(-2) - means) / deviations for end in (lower, upper))
    held = log_interval(*ends).clamp(min=-1e3).reshape(-1, means.shape[-1])
    return list(held.mean(0).argsort(descending=True).tolist())


def _integral(box: "_Box", rule: "_Rule", sets: int = 1) -> Tensor:
    """Return log P(box), the first dimension exact and the others by sets of points of a rule.

    Shapes: → [sets, R].
    """
    deltas, log_weight = box.walk(rule, down_to=1)
    total = log_weight + log_interval(*box.ends(0, box.carry(0, deltas)))
    return log_total(total.unflatten(0, (sets, -1)).movedim(1, -1))


def condition(
    logits: Tensor,
    means: Tensor,
    factors: Tensor,
    dims: Sequence[int],
    lower: Tensor,
    upper: Tensor,
    width: Tensor | None = None,
) -> Parameters:
    """Return the mixture of the other dimensions, in ascending order, given a box of x[dims].

    p(x_a | box) ∝ Σₖ πₖ ∫ Nₖ(x_b) Nₖ(x_a | x_b) dx_b over the box: every component becomes
    Q of them, one for each of its points in the box. For one dimension these are 6 to 256
    nodes, as the box and the correlation need; for two at most 48², for three at most 16³;
    beyond, 2048 Sobol points. The width is as in `box_log_prob`. Shapes: lower, upper and
    width [..., len(dims)] → K·Q components.
    """
    fixed = marginal(logits, means, factors, dims)
    log_probability = box_log_prob(lower, upper, fixed.means, fixed.factors, width)
    box = _Box.of(lower, upper, fixed.means, fixed.factors, width)
    needs = box.needs(_speed(means, factors, dims), first=0)
    rule = _rule(len(dims), int(needs.max()) if needs.numel() else _MIN_NODES, means)
    deltas, log_weight = box.walk(rule, down_to=0)
    points = fixed.means + torch.stack([deltas[i] for i in range(len(dims))], -1)
    # Components as a batch of single Gaussians: each is conditioned on its points.
    single = torch.zeros_like(means[..., :1]), means.unsqueeze(-2), factors.unsqueeze(-2)
    given = condition_on_values(*single, dims, points)
    weights = normalised(logits + log_probability, logits) + torch.log_softmax(log_weight, 0)
    centres = given.means.squeeze(-2).movedim(0, -2)
    return Parameters(
        weights.movedim(0, -1).flatten(-2),
        centres.flatten(-3, -2),
        given.factors.expand(*centres.shape[:-1], -1).flatten(-3, -2),
    )


def _speed(means: Tensor, factors: Tensor, dims: Sequence[int]) -> Tensor:
    """Return Ū_ab Ū_bb⁻¹: how fast the others' z move with that of x[dims]."""
    dimensions = means.shape[-1]
    free = [d for d in range(dimensions) if d not in dims]
    upper = unpack(reorder(factors, [*free, *dims]), dimensions)
    return _over(upper[..., : len(free), len(free) :], upper[..., len(free) :, len(free) :])


def _over(rows: Tensor, triangle: Tensor) -> Tensor:
    """Return rows·Ū⁻¹. Shapes: [..., m, n], [..., n, n] → [..., m, n]."""
    return torch.linalg.solve_triangular(triangle, rows, upper=True, left=False)


class _Box(NamedTuple):
    """Ends and widths of boxes [..., n], relative to components' means, and Ū [..., n, n]."""

    low: Tensor
    high: Tensor
    width: Tensor
    triangle: Tensor

    @classmethod
    def of(
        cls, lower: Tensor, upper: Tensor, means: Tensor, factors: Tensor, width: Tensor | None
    ) -> "_Box":
        """Build from ends and widths [..., n] and components, [..., K, n] and [..., K, T]."""
        # Infinity leaves before the arithmetic: in the backward pass 0 · ∞ would be NaN.
        largest = torch.finfo(means.dtype).max ** 0.5
        lower, upper = lower.unsqueeze(-2), upper.unsqueeze(-2)
        low, high = lower - means, upper - means
        wide = upper - lower if width is None else width.unsqueeze(-2)
        if width is not None:
            # From the lower end: beyond 2⁵³ the upper one may be no other number.
            high = torch.where(lower.isinf() | upper.isinf(), high, low + wide)
        low, high = (end.clamp(-largest, largest) for end in (low, high))
        wide = wide.clamp(max=2 * largest).expand_as(low)
        return cls(low, high, wide, unpack(factors, means.shape[-1]))

    @property
    def dimensions(self) -> int:
        """The number of dimensions, n."""
        return self.low.shape[-1]

    def flatten(self) -> "_Box":
        """Return the boxes as rows [R, n]."""
        n = self.dimensions
        low, high, width = (tensor.reshape(-1, n) for tensor in self[:3])
        return _Box(low, high, width, self.triangle.expand(*self.low.shape, n).flatten(0, -3))

    def ends(self, i: int, carried: Tensor) -> "_Interval":
        """Return the interval of zᵢ, given what the later dimensions add to it."""
        scale = self.triangle[..., i, i]
        low, high, width = (scale * tensor[..., i] for tensor in self[:3])
        return _Interval(low + carried, high + carried, width)

    def carry(self, i: int, deltas: dict[int, Tensor]) -> Tensor:
        """Return Σⱼ﹥ᵢ Ūᵢⱼδⱼ."""
        parts = [self.triangle[..., i, j] * delta for j, delta in deltas.items()]
        return sum(parts, torch.zeros_like(self.low[..., i]))

    def needs(self, speed: Tensor, *, first: int) -> Tensor:
        """Return how many nodes the dimensions from `first` on need [...]; 0 for Sobol points.

        That depends on the widths of the intervals of z, the speed at which other
        dimensions move with them, [..., m, n − first], and the slope of φ far from zero.
        """
        most = _MAX_NODES.get(self.dimensions - first, 0)
        needed = self.wants(speed, first=first).nan_to_num(nan=most).clamp(max=most)
        # In steps of four: few rules serve all.
        return (needed / 4).ceil().to(torch.int64).mul(4).clamp(max=most)

    def wants(self, speed: Tensor, *, first: int) -> Tensor:
        """Return how many nodes would do [...], without a bound."""
        dims, still = range(self.dimensions), torch.zeros_like(self.low[..., 0])
        cuts = [_cut(_mirror(self.ends(i, still))[1]) for i in dims]
        far = 0.3 * torch.stack([upper.neg() for upper, _ in cuts], -1).amax(-1, keepdim=True)
        widths = torch.stack([width for _, width in cuts[first:]], -1)
        length = widths * speed.norm(dim=-2).clamp(min=1.0) * far.clamp(min=1.0)
        return (_MIN_NODES + _NODES_PER_LENGTH * length.amax(-1)).detach()

    def walk(self, rule: "_Rule", *, down_to: int) -> tuple[dict[int, Tensor], Tensor]:
        """Return δ of the dimensions from the last down to a given one, and log weights."""
        ones = [1] * (self.low.dim() - 1)
        total = rule.log_weights.reshape(-1, *ones)
        deltas: dict[int, Tensor] = {}
        for i, column in zip(
            reversed(range(down_to, self.dimensions)), rule.points.unbind(-1), strict=True
        ):
            carried = self.carry(i, deltas)
            latent, log_weight = rule.place(self.ends(i, carried), column.reshape(-1, *ones))
            total = total + log_weight
            deltas[i] = (latent - carried) / self.triangle[..., i, i]
        return deltas, total


class _Interval(NamedTuple):
    """Ends of an interval of z, and its width, which the rounded ends may have lost."""

    lower: Tensor
    upper: Tensor
    width: Tensor


def _evenly(interval: _Interval, fraction: Tensor) -> tuple[Tensor, Tensor]:
    """Return z at fractions of an interval, cut off where φ is lost, and log(φ(z)·width)."""
    mirrored, interval = _mirror(interval)
    upper, width = _cut(interval)
    latent = upper - width * fraction
    log_weight = width.log() - 0.5 * (latent.square() + LOG_2PI)
    return torch.where(mirrored, -latent, latent), log_weight


def _cut(interval: _Interval) -> tuple[Tensor, Tensor]:
    """Return the upper end and the width of an interval, cut off where φ is lost."""
    upper = interval.upper.clamp(max=math.sqrt(2 * _CUT_DEPTH))
    below = upper.clamp(max=0.0)
    # √(b² + 2·depth) − |b|, without the difference.
    span = upper.clamp(min=0.0) + 2 * _CUT_DEPTH / (
        (below.square() + 2 * _CUT_DEPTH).sqrt() - below
    )
    width = interval.width - (interval.upper - upper)
    return upper, torch.minimum(width, span).clamp(min=torch.finfo(upper.dtype).tiny)


def _by_probability(interval: _Interval, fraction: Tensor) -> tuple[Tensor, Tensor]:
    """Return z at fractions of the probability of an interval, and its logarithm."""
    mirrored, (low, high, _) = _mirror(interval)
    # In the far tail evenly: there the probability has no digits to be divided by.
    near = high > -6
    first, last = cdf(torch.where(near, low, -1.0)), cdf(torch.where(near, high, 0.0))
    latent = torch.special.ndtri(last - fraction * (last - first))
    far, log_weight = _evenly(interval, fraction)
    return (
        torch.where(near, torch.where(mirrored, -latent, latent), far),
        torch.where(near, log_interval(*interval), log_weight),
    )


def _mirror(interval: _Interval) -> tuple[Tensor, _Interval]:
    """Return whether an interval's middle is positive, and the interval with that undone."""
    lower, upper, width = interval
    mirrored = lower + upper > 0
    ends = torch.where(mirrored, -upper, lower), torch.where(mirrored, -lower, upper)
    return mirrored, _Interval(*ends, width)


class _Rule(NamedTuple):
    """Points [N, d] of the unit cube, their log weights [N], and how they divide an interval.

    Nodes want a smooth integrand, and divide its length; Sobol points want one that is nearly
    constant, and divide its probability.
    """

    points: Tensor
    log_weights: Tensor
    place: Callable[[_Interval, Tensor], tuple[Tensor, Tensor]]


def _rule(dimensions: int, count: int, like: Tensor) -> _Rule:
    """Return a product of `count` nodes for each dimension, or Sobol points for none."""
    if not count:
        points = _sobol(dimensions, _SOBOL_POINTS).to(like)
        return _Rule(points, torch.full_like(points[:, 0], -math.log(len(points))), _by_probability)
    nodes, weights = gauss_legendre(count, like)
    points, products = (
        torch.cartesian_prod(*[axis] * dimensions).reshape(-1, dimensions)
        for axis in (nodes, weights)
    )
    return _Rule(points, products.log().sum(-1), _evenly)


@cache
def _sobol(dimensions: int, count: int) -> Tensor:
    """Return the first Sobol points, moved to the middle of their cells: none is at an end."""
    points = torch.quasirandom.SobolEngine(dimensions).draw(count, dtype=torch.float64)
    return points + 0.5 / count
