"""Predictions as arrays: moments, quantiles, intervals and draws of the predicted densities.

Without the tail, which is there for surprises: only log densities and calibrated intervals have it.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from torch import Generator, Tensor

from condens.distributions import Mixture
from condens.errors import ArgumentError, ExtrapolationWarning
from condens.estimator.construction import caller_level
from condens.evaluation.conformal import Calibration
from condens.nn import DensityNetwork
from condens.nn.randomness import seeded_generator

Array = NDArray[np.float64]

# Rows whose densities are in memory at a time where only numbers computed from them are returned.
ROWS_PER_BLOCK = 5000
# Columns listed in a warning.
MAX_LISTED_COLUMNS = 5
# Widest component in moments of positive targets and counts, in standard deviations of the
# logarithms of the fitted targets.
MAX_LOG_SCALE = 3.0


@dataclass(frozen=True)
class Predictions:
    """The predicted densities of some rows, and arrays computed from them block by block.

    Args:
        network: in double precision on the CPU.
        condition: what it reads [n, C].
        flat: whether y had no axis for the targets; then no array has it either.
    """

    network: DensityNetwork
    condition: Tensor
    flat: bool

    @torch.no_grad()
    def densities(self, *, tail: bool) -> Mixture:
        """Return the densities of all rows, a batch of n."""
        found: Mixture = self.network(self.condition, tail=tail)
        return found

    def blocks(self, *, tail: bool = False) -> Iterator[Mixture]:
        """Yield the densities of some rows at a time."""
        for part in self.condition.split(ROWS_PER_BLOCK):
            yield Predictions(self.network, part, self.flat).densities(tail=tail)

    def pairs(self, target: Tensor) -> Iterator[tuple[Mixture, Tensor]]:
        """Yield the densities of some rows at a time, tail included, with the rows' targets."""
        yield from zip(self.blocks(tail=True), target.split(ROWS_PER_BLOCK), strict=True)

    def mean(self) -> Array:
        """Return the means, [n] or [n, D]."""
        return self._each(lambda part: _finite(self._bounded(part).mean))

    def moments(self, spread: Literal["stddev", "covariance_matrix"]) -> tuple[Array, Array]:
        """Return the means and, of the same densities, a measure of their spread."""
        parts = map(self._bounded, self.blocks())
        pairs = [(_finite(part.mean), _finite(getattr(part, spread))) for part in parts]
        mean, other = (torch.cat(column) for column in zip(*pairs, strict=True))
        return self._shaped(mean, 1), self._shaped(other, 1 if spread == "stddev" else None)

    def quantiles(self, quantiles: ArrayLike) -> Array:
        """Return quantiles of each target alone, [n, Q] or [n, D, Q]."""
        levels = _levels(quantiles)[:, None]

        def ask(part: Mixture) -> Tensor:
            each = torch.stack([part.quantile(levels, dim) for dim in range(part.dimensions)])
            # Only the ends of the real line are infinite.
            return torch.where((levels > 0) & (levels < 1), _finite(each), each).permute(2, 0, 1)

        return self._each(ask)

    def intervals(self, coverage: float, calibration: Calibration | None) -> Array:
        """Return intervals with equal tails, or calibrated ones, [n, 2] or [n, D, 2]."""

        def ask(part: Mixture) -> Tensor:
            if calibration is not None:
                return _finite(torch.stack(calibration.interval(part, coverage), -1))
            ends = [part.marginal(dim).interval(coverage) for dim in range(part.dimensions)]
            return _finite(torch.stack([torch.cat(pair, -1) for pair in ends], 1))

        return self._each(ask, tail=calibration is not None)

    def samples(self, n_samples: int, seed: int) -> Array:
        """Return draws, [S, n] or [S, n, D]."""
        drawn = self.densities(tail=False).sample(
            (n_samples,), generator=Generator().manual_seed(seed)
        )
        return self._shaped(drawn, 2)

    def log_prob(self, target: Tensor) -> Array:
        """Return the log density of the observed entries of each row [n]."""
        return torch.cat([p.observed_log_prob(some) for p, some in self.pairs(target)]).numpy()

    def calibration(self, target: Tensor, seed: int = 0) -> tuple[Array, Array]:
        """Return the probability integral transforms [n, D] and the coverages of regions [n].

        By `rosenblatt` of each target alone, and `hpd_coverage` of all; NaN where y is.
        """
        generator = seeded_generator(seed)
        uniform, regions = [], []
        for part, some in zip(self.blocks(), target.split(ROWS_PER_BLOCK), strict=True):
            columns = [
                part.marginal(dim).rosenblatt(column, generator=generator)
                for dim, column in enumerate(some.split(1, 1))
            ]
            uniform.append(torch.cat(columns, 1))
            regions.append(part.hpd_coverage(some, generator=generator))
        return torch.cat(uniform).numpy(), torch.cat(regions).numpy()

    def extrapolation(self, labels: list[str]) -> "Extrapolation | None":
        """Count rows far outside those of the fit; `labels` are the names of the columns."""
        scaling = self.network.condition_scaling
        if scaling is None:
            return None
        outside = scaling.outside(self.condition)
        return Extrapolation(
            len(outside),
            int(outside.any(1).sum()),
            outside.sum(0),
            scaling.lower,
            scaling.upper,
            labels,
        )

    def warn_of_extrapolation(self, labels: list[str]) -> None:
        """Warn of rows far outside those of the fit."""
        found = self.extrapolation(labels)
        if found is not None:
            found.warn()

    def _bounded(self, part: Mixture) -> Mixture:
        """Return densities with bounded components in the targets whose moments grow with exp."""
        exponential = torch.tensor([each.exponential for each in self.network.transforms or ()])
        if not bool(exponential.any()):
            return part
        widest = MAX_LOG_SCALE * self.network.target_scaling.scale
        return part.narrowed(torch.where(exponential, widest, torch.inf))

    def _each(self, ask: Callable[[Mixture], Tensor], *, tail: bool = False) -> Array:
        """Ask some rows at a time for answers [n, D, ...]."""
        return self._shaped(torch.cat([ask(part) for part in self.blocks(tail=tail)]), 1)

    def _shaped(self, answer: Tensor, axis: int | None) -> Array:
        """Return an array, without the axis of the targets if y had none."""
        return (answer.squeeze(axis) if self.flat and axis is not None else answer).numpy()


@dataclass(frozen=True, eq=False)
class Extrapolation:
    """How many rows are far outside those of a fit; the sum of two is that of both tables.

    Args:
        n_rows: of the table.
        n_outside: of them, outside in any column.
        counts: of rows outside, by column [C].
        lower, upper: what was fitted, by column [C].
        labels: names of the columns.
    """

    n_rows: int
    n_outside: int
    counts: Tensor
    lower: Tensor
    upper: Tensor
    labels: list[str]

    def __add__(self, other: "Extrapolation") -> "Extrapolation":
        return replace(
            self,
            n_rows=self.n_rows + other.n_rows,
            n_outside=self.n_outside + other.n_outside,
            counts=self.counts + other.counts,
        )

    def warn(self) -> None:
        """Warn if there are any."""
        columns = self.counts.nonzero().flatten().tolist()
        listed = [
            f"{self.labels[c]} in {self.counts[c]} row(s), where {self.lower[c]:.6g} to "
            f"{self.upper[c]:.6g} was fitted"
            for c in columns[:MAX_LISTED_COLUMNS]
        ]
        if len(columns) > MAX_LISTED_COLUMNS:
            listed.append(f"and {len(columns) - MAX_LISTED_COLUMNS} more column(s)")
        if columns:
            warnings.warn(
                f"X is far outside the rows of the fit in {self.n_outside} of {self.n_rows} "
                f"row(s): {'; '.join(listed)}. No data support these predictions: leave such rows "
                "out, or fit on rows like them.",
                ExtrapolationWarning,
                stacklevel=caller_level(),
            )


def draw_seed(random_state: Any) -> int:
    """Return a seed below 2³¹ from a random state of scikit-learn."""
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except (TypeError, ValueError):
        raise ArgumentError(
            "random_state",
            got=f"is {random_state!r}",
            expected="None, a whole number from 0 to 2**32 − 1 or a numpy RandomState was expected",
            fix="Pass 0.",
        ) from None


def _finite(answers: Tensor) -> Tensor:
    """Return the largest number for what overflows: scikit-learn's scores refuse infinity."""
    return answers.clamp(torch.finfo(answers.dtype).min, torch.finfo(answers.dtype).max)


def _levels(quantiles: ArrayLike) -> Tensor:
    """Return probabilities [Q]."""
    try:
        given = quantiles.detach().cpu() if isinstance(quantiles, Tensor) else quantiles
        levels = np.array(given, dtype=np.float64, ndmin=1)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        levels = np.full(1, np.nan)
    if levels.ndim != 1 or not levels.size or not np.all((levels >= 0) & (levels <= 1)):
        raise ArgumentError(
            "quantiles",
            got=f"is {quantiles!r}",
            expected="numbers from 0 to 1 were expected",
            fix="For the median, pass 0.5.",
        )
    return torch.from_numpy(levels)
