"""Regions that hold a share of new targets whatever the model, by split-conformal calibration.

A model's own 90 % region holds 90 % of the targets only if the model is right. On m rows it was
not fitted to, each target gets a score, here how much of the model's mass lies at densities above
its own; the region that takes targets up to the ⌈(m+1)·0.9⌉-th smallest score holds at least 90 %
of new targets on average, if these come as the m rows did, and no more than 90 % + 1/(m+1) where
no scores are equal (Vovk et al. 2005; for highest-density regions Izbicki et al. 2022). Whatever
the score, that holds if it is the same function of density and target for both: nothing here is
random.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from typing import Any

import torch
from torch import Generator, Tensor

from condens.distributions import checks
from condens.distributions.low_rank import LowRankMixture
from condens.distributions.transformed import TransformedMixture
from condens.errors import ArgumentError, NotFiniteError, ShapeError
from condens.functional import nll, sampling, tails
from condens.functional.estimates import Estimate
from condens.functional.precision import widen
from condens.functional.tracing import anywhere
from condens.transforms import Real, Transform

# Points that a row's density is ranked among.
POINTS = 128
# Numbers held at a time, for the components that points are drawn from.
BLOCK = 1_000_000
# What equal scores may differ by, relative to 1 + their size: a density is rounded otherwise
# in another batch.
SLACK = 1e-9


@dataclass(frozen=True, eq=False)
class Region:
    """For each member of a batch, the points of high density that a share of targets lies in.

    Thresholds and intervals are computed when they are asked for.

    Args:
        mixture: the batch of densities [n].
        coverage: the share of new targets the region holds, and each interval.
        calibration: the scores it comes from.
    """

    mixture: Any
    coverage: float
    calibration: "Calibration"

    @cached_property
    def log_threshold(self) -> Tensor:
        """The log density from which on a point belongs to the region [n]."""
        return self.calibration.log_threshold(self.mixture, self.coverage)

    @property
    def lower(self) -> Tensor:
        """Lower ends of intervals for each target alone [n, D], calibrated likewise."""
        return self._ends[0]

    @property
    def upper(self) -> Tensor:
        """Upper ends of these intervals [n, D]."""
        return self._ends[1]

    @cached_property
    def _ends(self) -> tuple[Tensor, Tensor]:
        return self.calibration.interval(self.mixture, self.coverage)

    def contains(self, value: Any) -> Tensor:
        """Tell whether points [..., n, D] lie in the regions [..., n].

        With one target its axis may be left out: [..., n].
        """
        levels = self.mixture.log_prob(value)
        if anywhere(levels.isnan()):
            raise NotFiniteError(
                "value",
                got="has a density that is NaN",
                expected="points without gaps were expected",
                fix="Leave such rows out.",
            )
        inside: Tensor = levels >= self.log_threshold
        return inside

    def volume(self, *, n_samples: int = 1000, generator: Generator | None = None) -> Estimate:
        """Estimate the volume of each region [n] (of integers, their number).

        As the mean of 1/p over the draws that lie in it, which is never above 1/threshold.
        """
        count = checks.check_count("n_samples", n_samples)
        levels = self.mixture.log_prob(self.mixture.sample((count,), generator=generator))
        inside = levels >= self.log_threshold
        # Relative to the threshold: the densities of many dimensions are beyond all scales.
        each = torch.where(inside, (self.log_threshold - levels).exp(), 0.0)
        unit = (-self.log_threshold).exp()
        value, error = unit * each.mean(0), unit * each.std(0) / math.sqrt(count)
        return Estimate(*(torch.where(unit.isinf(), math.inf, part) for part in (value, error)))


class Calibration:
    """Scores of rows that a model was not fitted to; higher is less like the model.

    Args:
        ranks: [m], how many of `POINTS` points spread over its density have a higher one than
            the target, and on to the next one by the share of the way in log density; where
            all have, the distance in log density from the lowest of them is added.
        levels: [m] for each target alone, where it was observed, −log of twice the model's
            mass on the far side of it: 0 at the median, and finite far beyond the last
            digit of a probability.
    """

    def __init__(self, ranks: Tensor, levels: Sequence[Tensor]) -> None:
        self.ranks, self.levels = ranks, tuple(levels)

    @classmethod
    @torch.no_grad()
    def of(cls, mixture: Any, target: Any) -> "Calibration":
        """Score targets [m, D] by their densities [m]; rows with NaN count for intervals only."""
        target = torch.as_tensor(target, dtype=torch.float64)
        if target.shape != (*mixture.batch_shape, mixture.dimensions) or target.dim() != 2:
            raise ShapeError(
                "target",
                got=f"has shape {list(target.shape)}",
                expected=f"the densities are {mixture}",
                fix="Pass a row for each.",
            )
        whole = (~target.isnan().any(-1)).nonzero().flatten()
        ranks = [
            _ranks(_levels(part), part.log_prob(target[rows]))
            for rows, part in _blocks(mixture, whole)
        ]
        scores = []
        for dim in range(mixture.dimensions):
            seen = (~target[:, dim].isnan()).nonzero().flatten()
            scores.append(_scores(mixture[seen].marginal(dim), target[seen, dim, None]))
        return cls(torch.cat([*ranks, target[:0, 0]]), scores)

    def region(self, mixture: Any, coverage: float) -> Region:
        """Return the regions of new densities [n]."""
        coverage = checks.check_coverage("coverage", coverage)
        _conformal(self.ranks, coverage)  # refused here, not where it is first asked
        return Region(mixture, coverage, self)

    @torch.no_grad()
    def log_threshold(self, mixture: Any, coverage: float) -> Tensor:
        """Return the log density [n] from which on a point belongs to the region."""
        rank = _conformal(self.ranks, checks.check_coverage("coverage", coverage))
        blocks = _blocks(mixture, torch.arange(len(mixture)))
        found = torch.cat([_ranked(_levels(part), rank) for _, part in blocks])
        return found - _slack(found, mixture.dtype)

    @torch.no_grad()
    def interval(self, mixture: Any, coverage: float) -> tuple[Tensor, Tensor]:
        """Return the ends [n, D], in double precision, of an interval for each target alone."""
        coverage = checks.check_coverage("coverage", coverage)
        ends = [
            _interval(mixture.marginal(dim), _conformal(scores, coverage))
            for dim, scores in enumerate(self.levels)
        ]
        lower, upper = (torch.cat(side, -1) for side in zip(*ends, strict=True))
        return lower, upper


def _conformal(scores: Tensor, coverage: float) -> float:
    """Return the score that a share of new ones stays below, this one included."""
    # As it was typed: in binary 0.9 is a hair above nine tenths, and one row more.
    count, share = len(scores), Fraction(str(coverage))
    place = math.ceil((count + 1) * share)
    if place > count:
        raise ArgumentError(
            "coverage",
            got=f"is {coverage}, with {count} rows to calibrate on",
            expected=f"so high a coverage takes at least {math.ceil(share / (1 - share))}",
            fix="Calibrate on more rows, or ask for less.",
        )
    return float(scores.sort().values[place - 1])


def _slack(size: Any, dtype: torch.dtype = torch.float64) -> Any:
    return max(SLACK, 10 * torch.finfo(dtype).eps) * (1 + abs(size))


# Regions.


def _ranks(levels: Tensor, level: Tensor) -> Tensor:
    """Return the places [m] of levels among falling ones [POINTS, m], the first being 1."""
    level, last = level.double(), len(levels) - 1
    above = (levels > level).sum(0)
    before = levels.gather(0, (above - 1).clamp(min=0).unsqueeze(0)).squeeze(0)
    after = levels.gather(0, above.clamp(max=last).unsqueeze(0)).squeeze(0)
    between = above + (before - level) / (before - after)
    highest = 1 / (1 + level - levels[0])
    return torch.where(
        above == 0,
        highest,
        torch.where(above > last, len(levels) + levels[-1] - level, between),
    )


def _ranked(levels: Tensor, rank: float) -> Tensor:
    """Return the level [m] that has this place, the lowest if several have."""
    if rank >= len(levels):
        return levels[-1] - (rank - len(levels))
    if rank <= 1:
        return levels[0] + (1 / max(rank, torch.finfo(levels.dtype).tiny) - 1)
    place = math.ceil(rank)
    before, after = levels[place - 2], levels[place - 1]
    return before - (rank - (place - 1)) * (before - after)


def _blocks(mixture: Any, rows: Tensor) -> Iterator[tuple[Tensor, Any]]:
    """Yield some rows at a time, and their densities."""
    _, means, *rest = _parts(mixture)[0].parameters
    size = means.shape[-1] + sum(math.prod(part.shape[means.dim() - 1 :]) for part in rest)
    for some in rows.split(max(1, BLOCK // (POINTS * size))):
        yield some, mixture[some]


def _levels(mixture: Any) -> Tensor:
    """Return the log densities [POINTS, n], falling, of points spread over each density.

    Of whole numbers it is the density in their cells: log probabilities of cells cost much
    more, and a score need not be one.
    """
    base, transforms = _parts(mixture)
    points = _points(base)
    if isinstance(base, LowRankMixture):
        levels = base.log_prob(points)
    else:
        # Point by point, by the fast path, which takes a row of points at a time.
        parameters = [part.contiguous() for part in base.parameters]
        levels = torch.stack([-nll(some, *parameters) for some in points])
    levels = levels.double()
    for own, column in zip(transforms, points.unbind(-1), strict=True):
        if not isinstance(own, Real):
            levels = levels + own.log_slope_at(column)
    return levels.sort(0, descending=True).values


def _parts(mixture: Any) -> tuple[Any, tuple[Transform, ...]]:
    """Return the density over the real numbers, and the maps."""
    if isinstance(mixture, TransformedMixture):
        return mixture.base, mixture.transforms
    return mixture, (Real(),) * mixture.dimensions


def _points(base: Any) -> Tensor:
    """Return the same points [POINTS, n, D] of every density, as far as these are the same."""
    low_rank = isinstance(base, LowRankMixture)
    uniform, noise = _hypercube(base.dimensions + (base.rank if low_rank else 0))
    noise = noise.to(base.means)
    cumulative = torch.softmax(widen(base.logits), -1).cumsum(-1)
    chosen = sampling.pick(uniform.to(cumulative).expand(-1, len(cumulative)), cumulative)
    place = chosen[..., None, None]
    _, means, *rest = (part.unsqueeze(0) for part in base.parameters)
    centre = torch.take_along_dim(means, place, -2).squeeze(-2)
    if not low_rank:
        factors = torch.take_along_dim(rest[0], place, -2).squeeze(-2)
        return sampling.from_latent(noise.expand_as(centre), centre, factors)
    noise, factors = noise.split([base.dimensions, base.rank], -1)
    scale = torch.take_along_dim(rest[0], place, -2).squeeze(-2).exp()
    loadings = torch.take_along_dim(rest[1], place.unsqueeze(-1), -3).squeeze(-3)
    return centre + scale * noise + (loadings @ factors.unsqueeze(-1)).squeeze(-1)


@cache
def _hypercube(dimensions: int) -> tuple[Tensor, Tensor]:
    """Return uniform [POINTS, 1] and normal [POINTS, 1, dimensions] numbers, each one stratified.

    A Latin hypercube: in every coordinate one point for each of POINTS equal shares.
    """
    order = torch.rand(POINTS, 1 + dimensions, generator=Generator().manual_seed(0)).argsort(0)
    shares = (order.double() + 0.5) / POINTS
    return shares[:, :1], torch.special.ndtri(shares[:, None, 1:])


# Intervals.


def _scores(alone: Any, target: Tensor) -> Tensor:
    """Return −log 2min(P(Y ≤ y), P(Y ≥ y)), or 0 where both are above ½. Shapes: [m, 1] → [m]."""
    parameters, own = _line(alone)
    logits, means, factors = parameters
    below = own.threshold(target)
    above = own.threshold(target - 1) if own.discrete else below
    lower = tails.log_cdf(below, *parameters)
    upper = tails.log_cdf(-above, logits, -means, factors)
    return (-math.log(2) - torch.minimum(lower, upper)).clamp(min=0)


def _interval(alone: Any, score: float) -> tuple[Tensor, Tensor]:
    """Return the ends [n, 1] of the targets up to a score, none of them left out by rounding."""
    (logits, means, factors), own = _line(alone)
    support = own.from_real(torch.tensor([-torch.inf, torch.inf], dtype=torch.float64))
    ends = []
    for side, outmost in zip((-1, 1), support.to(means.device), strict=True):
        if math.isinf(score):
            ends.append(outmost.expand(len(alone), 1))
            continue
        level = -math.log(2) - score - _slack(score)
        real = -side * tails.log_icdf(level, logits, -side * means, factors)
        end = own.from_real(real + side * 8 * torch.finfo(real.dtype).eps * real.abs())
        if not own.discrete:
            # The map rounds to the nearest number, which may lie inside.
            end = torch.nextafter(end, end.new_tensor(side * torch.inf))
        furthest = min(side * float(outmost), torch.finfo(end.dtype).max)
        ends.append(side * (side * end).clamp(max=furthest))
    return ends[0], ends[1]


def _line(alone: Any) -> tuple[Any, Transform]:
    """Return the parameters of a one-dimensional density over the real numbers, and its map."""
    base, (own,) = _parts(alone)
    full = base.to_full() if isinstance(base, LowRankMixture) else base
    return full.parameters, own
