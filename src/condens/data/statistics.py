"""Statistics of columns that are read once, in parts: moments, ranges, quantiles."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
# Sums of larger numbers might overflow; a longer number has a larger exponent.
_LARGE = 1e150


@dataclass
class Moments:
    """Count, mean, sum of squares about the mean, and range of each of C columns.

    Parts are merged by the formula of Chan, Golub and LeVeque (1979), in the order of the calls;
    missing values (NaN) are left out.

    >>> parts = Moments.of(np.array([[1.0], [2.0]])).merged(Moments.of(np.array([[6.0]])))
    >>> parts.count, parts.mean, parts.deviation, parts.upper
    (array([3.]), array([3.]), array([2.1602469]), array([6.]))
    """

    count: Doubles
    mean: Doubles
    squares: Any
    lower: Doubles
    upper: Doubles

    @classmethod
    def of(cls, values: Doubles) -> "Moments":
        """Return the moments of rows [n, C]."""
        seen = ~np.isnan(values)
        count = seen.sum(0).astype(np.float64)
        some = np.maximum(count, 1.0)
        wide = np.longdouble if np.abs(values).max(initial=0, where=seen) > _LARGE else np.float64
        rows = values.astype(wide, copy=False)
        mean = np.where(seen, rows, 0).sum(0) / some
        rest = np.where(seen, rows - mean, 0)
        # The sum of the rest is rounding, and corrects the mean.
        mean = mean + rest.sum(0) / some
        rest = np.where(seen, rows - mean, 0)
        # Of the size of one before it is squared, which might be too large or too small.
        _, exponent = np.frexp(np.abs(rest).max(0, initial=0))
        parts = np.ldexp(rest, -exponent).astype(np.float64)
        squares = np.ldexp((parts**2).sum(0).astype(np.longdouble), 2 * exponent)
        return cls(
            count,
            mean.astype(np.float64),
            squares,
            np.where(seen, values, np.inf).min(0, initial=np.inf),
            np.where(seen, values, -np.inf).max(0, initial=-np.inf),
        )

    def merged(self, other: "Moments") -> "Moments":
        """Return the moments of both parts together."""
        count = self.count + other.count
        some = np.maximum(count, 1.0)
        # Halved: the difference of two large numbers may overflow.
        gap = 2 * (other.mean.astype(np.longdouble) / 2 - self.mean.astype(np.longdouble) / 2)
        mean = self.mean + gap * (other.count / some)
        mean = np.where(self.count == 0, other.mean, np.where(other.count == 0, self.mean, mean))
        apart = gap**2 * (self.count / some) * other.count
        return Moments(
            count,
            mean.astype(np.float64),
            self.squares + other.squares + apart,
            np.minimum(self.lower, other.lower),
            np.maximum(self.upper, other.upper),
        )

    @property
    def deviation(self) -> Doubles:
        """The standard deviation of each column, 0 where there is no value."""
        found = np.sqrt(self.squares / np.maximum(self.count, 1.0))
        return np.asarray(found, dtype=np.float64)


# Values of a sketch's buffers, and of one that is passed on. Of n values the rank of a quantile is
# off by at most log₂(n/16 384)/32 768, that is 5·10⁻⁴ for 10⁹, and by 1/4096 more where it was
# passed on, by every one of up to 64 segments: they stay in memory.
BUFFER_VALUES, PASSED_VALUES = 1 << 14, 1 << 11


@dataclass
class Sketch:
    """Quantiles of a column, from sorted buffers whose values count for 1, 2, 4, ….

    Two buffers of a level become one of the next, with every second value (Manku, Rajagopalan and
    Lindsay, 1998). Nothing is random.

    >>> sketch = Sketch()
    >>> sketch.add(np.arange(100_000.0))
    >>> sketch.quantiles([0.0, 0.25, 1.0]).tolist()
    [0.0, 24999.0, 99999.0]
    """

    _waiting: list[Doubles] = field(default_factory=list)
    _levels: dict[int, Doubles] = field(default_factory=dict)
    _odd: dict[int, bool] = field(default_factory=dict)
    _passed: list[tuple[Doubles, Doubles]] = field(default_factory=list)
    _ends: tuple[float, float] = (np.inf, -np.inf)

    def add(self, values: Doubles) -> None:
        """Add values; those that are NaN are left out."""
        values = values[~np.isnan(values)]
        if not len(values):
            return
        self._ends = min(self._ends[0], values.min()), max(self._ends[1], values.max())
        self._waiting.append(values)
        if sum(map(len, self._waiting)) < BUFFER_VALUES:
            return
        joined = np.concatenate(self._waiting)
        whole = len(joined) // BUFFER_VALUES * BUFFER_VALUES
        self._waiting = [joined[whole:].copy()]
        for buffer in joined[:whole].reshape(-1, BUFFER_VALUES):
            self._insert(np.sort(buffer), 0)

    def _insert(self, buffer: Doubles, level: int) -> None:
        while level in self._levels:
            both = np.sort(np.concatenate([self._levels.pop(level), buffer]), kind="stable")
            # Taking turns: always the lower of a pair would lean to one side.
            odd = self._odd[level] = not self._odd.get(level, False)
            buffer, level = both[int(odd) :: 2], level + 1
        self._levels[level] = buffer

    def points(self) -> tuple[Doubles, Doubles]:
        """Return sorted values and what each counts for."""
        parts = [(np.concatenate(self._waiting), 1.0)] if self._waiting else []
        parts += [(buffer, 2.0**level) for level, buffer in self._levels.items()]
        values = [part for part, _ in parts] + [part for part, _ in self._passed]
        weights = [np.full(len(part), weight) for part, weight in parts]
        weights += [weight for _, weight in self._passed]
        if not values:
            return np.empty(0), np.empty(0)
        every = np.concatenate(values)
        order = np.argsort(every, kind="stable")
        return every[order], np.concatenate(weights)[order]

    def passed_on(self) -> tuple[Doubles, Doubles, tuple[float, float]]:
        """Return some points that stand for all, to be merged elsewhere, and the range."""
        values, weights = self.points()
        if len(values) <= PASSED_VALUES:
            return values, weights, self._ends
        ranks = np.cumsum(weights)
        middles = (np.arange(PASSED_VALUES) + 0.5) * (ranks[-1] / PASSED_VALUES)
        chosen = values[np.searchsorted(ranks, middles)]
        return chosen, _alike(np.full(PASSED_VALUES, ranks[-1] / PASSED_VALUES)), self._ends

    def take(self, passed: tuple[Doubles, Doubles, tuple[float, float]]) -> None:
        """Merge what another sketch passed on."""
        values, weights, (low, high) = passed
        self._passed.append((values, _alike(weights)))
        self._ends = min(self._ends[0], low), max(self._ends[1], high)

    def quantiles(self, levels: Sequence[float], repeated: tuple[float, float] = (0, 0)) -> Doubles:
        """Return the values at levels from 0 to 1; `repeated` is one more value and its count."""
        values, weights = self.points()
        if repeated[1]:
            values, weights = np.append(values, repeated[0]), np.append(weights, repeated[1])
            order = np.argsort(values, kind="stable")
            values, weights = values[order], weights[order]
        if not len(values):
            return np.full(len(levels), np.nan)
        ranks = np.cumsum(weights)
        places = np.searchsorted(ranks, np.asarray(levels) * ranks[-1])
        found = values[np.minimum(places, len(values) - 1)]
        low, high = self._ends
        if repeated[1]:
            low, high = min(low, repeated[0]), max(high, repeated[0])
        at = np.asarray(levels, dtype=np.float64)
        return np.where(at <= 0, low, np.where(at >= 1, high, found))


def _alike(weights: Doubles) -> Doubles:
    """Return weights in the memory of one, where all are the same."""
    if not len(weights) or (weights != weights[0]).any():
        return weights
    return np.broadcast_to(weights[:1].copy(), weights.shape)
