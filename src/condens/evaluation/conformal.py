"""Regions of guaranteed coverage, whatever the model, by split-conformal calibration.

A model's 90 % region holds 90 % of the targets only if the model is right. On m rows it was not
fitted to, each target gets a score: the probability that the model gives to points of higher
density. The region of all targets up to the ⌈(m+1)·0.9⌉-th smallest score holds at least 90 % of
new targets on average, if these come as the m rows did, and no more than 90 % + 1/(m+1) where no
scores are equal (Vovk et al. 2005; for highest-density regions Izbicki et al. 2022). This holds
for any score that is the same function of density and target for both: nothing here is random.

Rows that come in groups, such as those of one patient, are not m independent ones. There the
groups count once each, whatever their number of rows, and the region holds a new target of a new
group with the probability asked for (hierarchical conformal prediction, Lee et al. 2023).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TypeVar

import torch
from torch import Generator, Tensor

from condens.distributions import checks
from condens.distributions.base import Mixture
from condens.distributions.checks import Numbers
from condens.errors import ArgumentError, NotFiniteError, ShapeError
from condens.functional.estimates import Estimate
from condens.functional.tracing import anywhere

Number = TypeVar("Number", Tensor, float)

# Points that a row's density is ranked among.
POINTS = 128
# Numbers held at a time, for the components that points are drawn from.
NUMBERS_PER_BLOCK = 1_000_000
# What equal scores may differ by, relative to 1 + their size: another batch may round a density
# differently.
SLACK = 1e-9


@dataclass(frozen=True, eq=False)
class Region:
    """For each member of a batch, a region of high density with the coverage asked for.

    Thresholds and intervals are computed when they are asked for.

    Args:
        mixture: the batch of densities [n].
        coverage: the probability that the region holds a new target, and each interval one.
        calibration: the scores it comes from.
    """

    mixture: Mixture
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

    def contains(self, value: Numbers) -> Tensor:
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
        return levels >= self.log_threshold

    def volume(self, *, n_samples: int = 1000, generator: Generator | None = None) -> Estimate:
        """Estimate the volume of each region [n] (of integers, their number).

        As the mean of 1/p over the draws that lie in it, which is never above 1/threshold.
        """
        count = checks.check_count("n_samples", n_samples)
        levels = self.mixture.log_prob(self.mixture.sample((count,), generator=generator))
        # Relative to the threshold: the densities of many dimensions are beyond all scales.
        each = torch.where(levels >= self.log_threshold, (self.log_threshold - levels).exp(), 0.0)
        unit = (-self.log_threshold).exp()
        value, error = unit * each.mean(0), unit * each.std(0) / math.sqrt(count)
        return Estimate(*(torch.where(unit.isinf(), math.inf, part) for part in (value, error)))


class Calibration:
    """Scores of rows that a model was not fitted to; higher is less like the model.

    Args:
        ranks: [m], how many of `POINTS` points spread over its density have a higher one than
            the target, and on to the next one by the part of the way in log density; where
            all have, the distance in log density from the lowest of them is added.
        levels: [m] for each target alone, where it was observed, −log of twice the probability
            on the far side of it: 0 at the median, and finite far beyond the last digit of a
            probability.
        weights: of the ranks, then of the levels of each target: one over the number of scores
            of the same group. None where every row counts once.
    """

    def __init__(
        self, ranks: Tensor, levels: Sequence[Tensor], weights: Sequence[Tensor] | None = None
    ) -> None:
        self.ranks, self.levels = ranks, tuple(levels)
        self.weights = None if weights is None else tuple(weights)

    @classmethod
    def of_parts(
        cls, parts: Iterable[tuple[Mixture, Tensor]], groups: Tensor | None = None
    ) -> "Calibration":
        """Score targets by their densities as `of` does, some rows at a time, in double precision.

        `groups` are the numbers of the groups of all rows [m].
        """
        found, gaps = list[Calibration](), list[Tensor]()
        for mixture, target in parts:
            found.append(cls.of(mixture, target))
            gaps.append(target.isnan())
        ranks = torch.cat([part.ranks for part in found])
        levels = [torch.cat(each) for each in zip(*(part.levels for part in found), strict=True)]
        if groups is None:
            return cls(ranks, levels)
        missing = torch.cat(gaps)
        counted = (~missing.any(1), *(~missing).unbind(1))
        return cls(ranks, levels, [_weights(groups[rows]) for rows in counted])

    @classmethod
    @torch.no_grad()
    def of(cls, mixture: Mixture, target: Numbers, groups: Tensor | None = None) -> "Calibration":
        """Score targets [m, D] by their densities [m]; rows with NaN count for intervals only.

        `groups` are the numbers of the rows' groups [m].
        """
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
        observed = [(~column.isnan()).nonzero().flatten() for column in target.unbind(1)]
        scores = [
            _scores(mixture[seen].marginal(dim), target[seen, dim, None])
            for dim, seen in enumerate(observed)
        ]
        weights = None if groups is None else [_weights(groups[r]) for r in (whole, *observed)]
        return cls(torch.cat([*ranks, target[:0, 0]]), scores, weights)

    def region(self, mixture: Mixture, coverage: float) -> Region:
        """Return the regions of new densities [n]."""
        coverage = checks.check_coverage("coverage", coverage)
        self._threshold(0, coverage)  # refused here, not where it is first asked
        return Region(mixture, coverage, self)

    @torch.no_grad()
    def log_threshold(self, mixture: Mixture, coverage: float) -> Tensor:
        """Return the log density [n] from which on a point belongs to the region."""
        rank = self._threshold(0, coverage)
        blocks = _blocks(mixture, torch.arange(len(mixture)))
        found = torch.cat([_ranked(_levels(part), rank) for _, part in blocks])
        return found - _slack(found, mixture.dtype)

    @torch.no_grad()
    def interval(self, mixture: Mixture, coverage: float) -> tuple[Tensor, Tensor]:
        """Return the ends [n, D], in double precision, of an interval for each target alone."""
        ends = [
            mixture.marginal(dim).tail_interval(_log_tail(self._threshold(1 + dim, coverage)))
            for dim in range(len(self.levels))
        ]
        lower, upper = (torch.cat(side, -1) for side in zip(*ends, strict=True))
        return lower, upper

    def _threshold(self, place: int, coverage: float) -> float:
        """Return the threshold of the ranks, at place 0, or of a target's levels."""
        return _conformal(
            (self.ranks, *self.levels)[place],
            checks.check_coverage("coverage", coverage),
            None if self.weights is None else self.weights[place],
        )


def _conformal(scores: Tensor, coverage: float, weights: Tensor | None = None) -> float:
    """Return the score that new ones reach at most, with the probability asked for.

    The least score up to which the weights sum to (their sum + 1) · coverage.
    """
    # As it was typed: in binary 0.9 is a hair above nine tenths, and one row more.
    exact, unit = Fraction(str(coverage)), "rows" if weights is None else "groups"
    count = len(scores) if weights is None else round(weights.sum().item())
    needed = (count + 1) * exact
    if needed > count:
        raise ArgumentError(
            "coverage",
            got=f"is {coverage}, with {count} {unit} to calibrate on",
            expected=f"so high a coverage takes at least {math.ceil(exact / (1 - exact))}",
            fix=f"Calibrate on more {unit}, or ask for less.",
        )
    ordered = scores.sort()
    if weights is None:
        return float(ordered.values[math.ceil(needed) - 1])
    # Sums of 1/n are rounded: where they reach it but for the last digits, they do.
    short = weights[ordered.indices].cumsum(0) < float(needed) * (1 - SLACK)
    return float(ordered.values[min(int(short.sum()), len(scores) - 1)])


def _weights(groups: Tensor) -> Tensor:
    """Return one over the size of each row's group. Shapes: [m] → [m]."""
    _, place, counts = groups.unique(return_inverse=True, return_counts=True)
    return 1 / counts[place].double()


def _slack(size: Number, dtype: torch.dtype = torch.float64) -> Number:
    return max(SLACK, 10 * torch.finfo(dtype).eps) * (1 + abs(size))


# Regions.


def _ranks(levels: Tensor, level: Tensor) -> Tensor:
    """Return the places [m] of levels among falling ones [POINTS, m], the first being 1."""
    level, last = level.double(), len(levels) - 1
    above = (levels > level).sum(0)
    before = levels.gather(0, (above - 1).clamp(min=0).unsqueeze(0)).squeeze(0)
    after = levels.gather(0, above.clamp(max=last).unsqueeze(0)).squeeze(0)
    between = above + (before - level) / (before - after)
    return torch.where(
        above == 0,
        1 / (1 + level - levels[0]),
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


def _blocks(mixture: Mixture, rows: Tensor) -> Iterator[tuple[Tensor, Mixture]]:
    """Yield some rows at a time, and their densities."""
    axes = len(mixture.batch_shape) + 1
    size = sum(part.shape[axes:].numel() for part in mixture.parameters[1:])
    for some in rows.split(max(1, NUMBERS_PER_BLOCK // (POINTS * size))):
        yield some, mixture[some]


def _levels(mixture: Mixture) -> Tensor:
    """Return the log densities [POINTS, n], falling, of points spread over each density."""
    return mixture.stratified_log_prob(POINTS).sort(0, descending=True).values


# Intervals.


def _scores(alone: Mixture, target: Tensor) -> Tensor:
    """Return −log 2min(P(Y ≤ y), P(Y ≥ y)), or 0 where both are above ½. Shapes: [m, 1] → [m]."""
    return (-math.log(2) - torch.minimum(*alone.log_tails(target))).clamp(min=0)


def _log_tail(score: float) -> float:
    """Return the log probability on the far side of targets with a score, or a hair less."""
    return -math.log(2) - score - _slack(score)
