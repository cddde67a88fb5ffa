"""Scores of rows: what each forecast says about its target, block by block."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor

from condens.evaluation.forecasts import MAX_DRAW, Forecast, randomised_rank
from condens.evaluation.statistics import Array, Integers, Mean

# Rows whose draws are in memory at a time, at most,
ROWS_PER_BLOCK = 5000
# and numbers of draws.
NUMBERS_PER_BLOCK = 3_000_000
# One number for each row, and one for each row and target.
JOINT = ("log_likelihood", "entropy", "energy_score", "hpd_coverage")
ALONE = ("crps", "mean", "spread", "pit", "rosenblatt")


@dataclass(frozen=True)
class Questions:
    """What is asked of every forecast.

    Args:
        coverages: of intervals and regions.
        quantiles: whose pinball loss is asked for.
        n_samples: draws that HPD ranks, entropy and energy score rest on.
    """

    coverages: tuple[float, ...]
    quantiles: tuple[float, ...]
    n_samples: int

    @property
    def levels(self) -> list[float]:
        """The quantiles that pinball losses and widths need, in order and once each."""
        tails = [0.5 * (1 + side * c) for c in self.coverages for side in (-1, 1)]
        # (1 − 0.9)/2 and 0.05 are the same level.
        return sorted({round(level, 12) for level in (*self.quantiles, *tails)})

    def places(self, levels: Sequence[float]) -> list[int]:
        """Return where the given levels are among all."""
        known = self.levels
        return [known.index(round(level, 12)) for level in levels]


class RowScores:
    """The scores of n rows of D targets; NaN where a target was not observed.

    Args:
        values: by the names in `JOINT` [n] and `ALONE` [n, D].
        pinball: the mean pinball losses [D, Q].
        width: the mean widths of intervals [D, coverages].
    """

    def __init__(
        self,
        shape: tuple[int, int],
        weights: Array | None = None,
        groups: Integers | None = None,
    ) -> None:
        self.values: dict[str, Array] = {}
        self.shape = shape
        self.weights, self.groups = weights, groups
        n_groups = None if groups is None else int(groups.max(initial=-1)) + 1
        self.pinball, self.width = Mean(n_groups), Mean(n_groups)

    def put(self, rows: Integers, answers: Mapping[str, Tensor]) -> None:
        """Keep the answers for some rows."""
        weights = None if self.weights is None else self.weights[rows]
        groups = None if self.groups is None else self.groups[rows]
        for name, answer in answers.items():
            if name in ("pinball", "width"):
                getattr(self, name).add(answer.numpy(), weights, groups)
                continue
            if name not in self.values:
                shape = self.shape if name in ALONE else self.shape[:1]
                self.values[name] = np.full(shape, math.nan)
            self.values[name][rows] = answer.numpy()


def rows_per_block(n_samples: int, n_targets: int, n_components: int = 1) -> int:
    """Return how many rows to score at a time, in bounded memory."""
    # The CRPS compares every pair of components.
    numbers = max(n_samples * n_targets, 2 * n_components**2)
    return max(1, min(ROWS_PER_BLOCK, NUMBERS_PER_BLOCK // numbers))


@torch.no_grad()
def score(
    forecast: Forecast,
    target: Tensor,
    questions: Questions,
    generator: Generator,
    *,
    brief: bool = False,
) -> dict[str, Tensor]:
    """Return every score of b rows: [b], [b, D], and pinball and width [b, D, …].

    A row with missing entries is scored by the exact marginal of the others. `brief` leaves out
    what is about calibration and sharpness.
    """
    observed = ~target.isnan()
    if bool(observed.all()):
        return _score_complete(forecast, target, questions, generator, brief)
    count, dimensions = target.shape
    result: dict[str, Tensor] = {}
    for seen in observed.unique(dim=0):
        dims = seen.nonzero().flatten().tolist()
        if not dims:
            continue
        rows = (observed == seen).all(1).nonzero().flatten()
        part = forecast.take(rows)
        if len(dims) < dimensions:
            part = part.marginal(dims)
        answers = _score_complete(part, target[rows][:, dims], questions, generator, brief)
        for name, answer in answers.items():
            wide = (count, *answer.shape[1:])
            if answer.dim() > 1:
                wide = (count, dimensions, *answer.shape[2:])
            into = result.setdefault(name, torch.full(wide, math.nan, dtype=torch.float64))
            if answer.dim() == 1:
                into[rows] = answer
            else:
                into[rows[:, None], torch.tensor(dims)] = answer
    return result


def _score_complete(
    forecast: Forecast, target: Tensor, questions: Questions, generator: Generator, brief: bool
) -> dict[str, Tensor]:
    draws = forecast.sample(questions.n_samples, generator)
    crps = forecast.crps(target, draws)
    one = forecast.dimensions == 1
    result = {
        "crps": crps,
        "mean": forecast.mean(draws),
        "energy_score": crps.squeeze(-1) if one else energy_score(target, draws),
    }
    density = forecast.log_prob(target)
    if density is not None:
        result["log_likelihood"] = density
    if brief:
        return result
    result["spread"] = forecast.spread(draws)
    result["pit"] = forecast.pit(target, draws, generator)
    chained = result["pit"] if one else forecast.rosenblatt(target, generator)
    if chained is not None:
        result["rosenblatt"] = chained
    around = None if density is None else forecast.log_prob_at(draws)
    if density is not None and around is not None:
        result["entropy"] = -around.mean(0)
        level = forecast.level(target, density)
        above, equal = (around > level).sum(0), (around == level).sum(0)
        result["hpd_coverage"] = randomised_rank(above, equal, draws, generator)
    quantiles = forecast.quantiles(torch.tensor(questions.levels, dtype=torch.float64), draws)
    asked = torch.tensor(questions.quantiles, dtype=torch.float64)
    result["pinball"] = pinball_loss(
        target, quantiles[..., questions.places(questions.quantiles)], asked
    )
    lower, upper = (
        quantiles[..., questions.places([0.5 * (1 + side * c) for c in questions.coverages])]
        for side in (-1, 1)
    )
    result["width"] = upper - lower
    return {name: answer.double() for name, answer in result.items()}


def energy_score(target: Tensor, draws: Tensor) -> Tensor:
    """Estimate E‖Y − y‖ − ½E‖Y − Y′‖ without bias. Shapes: [b, D], [S, b, D] → [b].

    Each draw is compared with the target and with the draw after it, the last with the first.
    """
    draws = draws.clamp(-MAX_DRAW, MAX_DRAW)
    reach = torch.zeros(draws.shape[:2], dtype=torch.float64)
    apart = torch.zeros_like(reach)
    # Column by column: the axis of the targets is short, and sums along it are slow.
    for dim in range(draws.shape[-1]):
        column = draws[..., dim]
        reach += (column - target[:, dim]).square_()
        apart += (column - column.roll(1, 0)).square_()
    return reach.sqrt_().mean(0) - 0.5 * apart.sqrt_().mean(0)


def pinball_loss(target: Tensor, quantiles: Tensor, levels: Tensor) -> Tensor:
    """Return (y − q)(τ − 1[y < q]). Shapes: [b, D], [b, D, Q], [Q] → [b, D, Q]."""
    gap = target.unsqueeze(-1) - quantiles
    return torch.maximum(levels * gap, (levels - 1) * gap)
