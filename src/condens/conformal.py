"""Regions that hold a share of new targets whatever the model, by split-conformal calibration.

A model's own 90 % region holds 90 % of the targets only if the model is right. On m rows it was
not fitted to, each target gets a score, here the model's mass at densities above its own; the
region that takes targets up to the ⌈(m+1)·0.9⌉-th smallest score holds at least 90 % of new
targets on average, if these come as the m rows did, and no more than 90 % + 1/(m+1) where no
scores are equal (Vovk et al. 2005; for highest-density regions Izbicki et al. 2022).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from condens import arguments
from condens.errors import ArgumentError, NotFiniteError, ShapeError, message
from condens.functional.estimates import Estimate
from condens.tracing import anywhere

# Draws that a row's density is ranked among; scores come in steps of one in so many.
DRAWS = 1000
# Numbers held at a time while draws are compared.
BLOCK = 4_000_000


@dataclass(frozen=True)
class Region:
    """For each member of a batch, the points of high density that a share of targets lies in.

    Args:
        mixture: the batch of densities [n].
        log_threshold: [n], the log density from which on a point belongs to the region.
        lower, upper: [n, D], ends of an interval for each target alone, calibrated likewise.
        coverage: the share of new targets the region holds, and each interval.
    """

    mixture: Any
    log_threshold: Tensor
    lower: Tensor
    upper: Tensor
    coverage: float

    def contains(self, value: Any) -> Tensor:
        """Tell whether points [..., n, D] lie in the regions [..., n].

        With one target its axis may be left out: [..., n].
        """
        levels = self.mixture.log_prob(value)
        if anywhere(levels.isnan()):
            came, expected = "has a density that is NaN", "points without gaps were expected"
            raise NotFiniteError(message("value", came, expected, "Leave such rows out."))
        inside: Tensor = levels >= self.log_threshold
        return inside

    def volume(self, *, n_samples: int = 1000, generator: Generator | None = None) -> Estimate:
        """Estimate the volume of each region [n] (of integers, their number).

        As the mean of 1/p over the draws that lie in it, which is never above 1/threshold.
        """
        count = arguments.check_count("n_samples", n_samples)
        levels = self.mixture.log_prob(self.mixture.sample((count,), generator=generator))
        inside = levels >= self.log_threshold
        # Relative to the threshold: the densities of many dimensions are beyond all scales.
        each = torch.where(inside, (self.log_threshold - levels).exp(), 0.0)
        unit = (-self.log_threshold).exp()
        value, error = unit * each.mean(0), unit * each.std(0) / math.sqrt(count)
        return Estimate(*(torch.where(unit.isinf(), math.inf, part) for part in (value, error)))


class Calibration:
    """Scores of rows that a model was not fitted to.

    Args:
        ranks: [m], how many of `DRAWS` draws had a higher density than the target; where all
            had, the distance in log density from the lowest of them is added.
        levels: [m] for each target alone, the distance of F(target) from ½ where it was observed.
    """

    def __init__(self, ranks: Tensor, levels: Sequence[Tensor]) -> None:
        self.ranks, self.levels = ranks, tuple(levels)

    @classmethod
    @torch.no_grad()
    def of(cls, mixture: Any, target: Any, *, generator: Generator | None = None) -> "Calibration":
        """Score targets [m, D] by their densities [m]; rows with NaN count for intervals only."""
        target = torch.as_tensor(target, dtype=torch.float64)
        if target.shape != (*mixture.batch_shape, mixture.dimensions) or target.dim() != 2:
            came, expected = f"has shape {list(target.shape)}", f"the densities are {mixture}"
            raise ShapeError(message("target", came, expected, "Pass a row for each."))
        whole = (~target.isnan().any(-1)).nonzero().flatten()
        ranks = [
            _rank(levels, part.log_prob(target[rows]))
            for rows, part, levels in _draws(mixture, whole, generator)
        ]
        levels = []
        for dim in range(mixture.dimensions):
            seen = (~target[:, dim].isnan()).nonzero().flatten()
            alone: Any = mixture[seen].marginal(dim)
            levels.append((alone.cdf(target[seen, dim, None]).double() - 0.5).abs())
        return cls(torch.cat([*ranks, target[:0, 0]]), levels)

    @torch.no_grad()
    def region(
        self, mixture: Any, coverage: float, *, generator: Generator | None = None
    ) -> Region:
        """Return the regions of new densities [n]."""
        coverage = arguments.check_mass("coverage", coverage)
        rank = float(_conformal(self.ranks, coverage))
        rows = torch.arange(len(mixture))
        threshold = [_ranked(levels, rank) for _, _, levels in _draws(mixture, rows, generator)]
        ends = [
            _interval(mixture.marginal(dim), _conformal(levels, coverage))
            for dim, levels in enumerate(self.levels)
        ]
        lower, upper = (torch.cat(side, -1) for side in zip(*ends, strict=True))
        return Region(mixture, torch.cat(threshold), lower, upper, coverage)


def _rank(levels: Tensor, level: Tensor) -> Tensor:
    """Return how many of the draws' levels [S, m] are above each level [m], and how far below."""
    lowest = levels.amin(0)
    below = torch.where(level < lowest, lowest - level, 0.0)
    return (levels > level).sum(0).double() + below.double()


def _ranked(levels: Tensor, rank: float) -> Tensor:
    """Return the level [m] below which a level's rank is higher."""
    if rank < DRAWS:
        return levels.topk(int(rank) + 1, 0).values[-1]
    return levels.amin(0) - (rank - DRAWS)


def _conformal(scores: Tensor, coverage: float) -> Tensor:
    """Return the score that a share of new ones stays below, this one included."""
    count = len(scores)
    # Not a hair above the whole number that (m+1)·coverage is.
    place = math.ceil((count + 1) * coverage - 1e-9)
    if place > count:
        came = f"is {coverage}, with {count} rows to calibrate on"
        expected = (
            f"so high a coverage takes at least {math.ceil(coverage / (1 - coverage) - 1e-9)}"
        )
        remedy = "Calibrate on more rows, or ask for less."
        raise ArgumentError(message("coverage", came, expected, remedy))
    return scores.sort().values[place - 1]


def _interval(one: Any, level: Tensor) -> tuple[Tensor, Tensor]:
    return one.icdf(0.5 - level), one.icdf(0.5 + level)


def _draws(mixture: Any, rows: Tensor, generator: Generator | None) -> Any:
    """Yield some rows at a time, their densities, and log densities of draws [DRAWS, some]."""
    size = max(1, BLOCK // (DRAWS * mixture.components * mixture.dimensions))
    for some in rows.split(size):
        part = mixture[some]
        yield some, part, part.log_prob(part.sample((DRAWS,), generator=generator))
