"""Means over rows and their standard errors, with weights, groups and missing entries."""

import math
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from condens.scalars import decode_float

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

# In units of the first rows' spread: from here on a value counts as infinite.
MAX_GAP = 1e100


class Score(NamedTuple):
    """A mean over rows and its standard error; NaN where one row, or one group, is all there is.

    >>> print(Score(-1.2346, 0.0123))
    -1.235 ± 0.012
    """

    value: float
    standard_error: float = math.nan

    def __str__(self) -> str:
        return plus_minus(self.value, self.standard_error)

    def to_dict(self) -> dict[str, float]:
        """Return value and error under their names."""
        return {"value": self.value, "standard_error": self.standard_error}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the score of `to_dict`."""
        return cls(*(float(decode_float(values[name])) for name in cls._fields))


def plus_minus(value: float, error: float, n_digits: int = 2) -> str:
    """Return a number with its error, both rounded to the digits of the error that are asked for.

    >>> plus_minus(1234.5, 67.8), plus_minus(0.5, math.nan), plus_minus(2.0, 0.0)
    ('1234 ± 68', '0.5', '2')
    """
    if not math.isfinite(value) or not math.isfinite(error) or error <= 0:
        return f"{value:.4g}"
    digits = n_digits - 1 - math.floor(math.log10(error))
    # An error far above or far below the value: powers of ten say it better.
    if not -6 < digits < 7:
        return f"{value:.4g} ± {error:.2g}"
    return f"{round(value, digits):.{max(digits, 0)}f} ± {round(error, digits):.{max(digits, 0)}f}"


class Mean:
    """The weighted mean of rows that come in blocks, and its standard error.

    m = Σ wᵢvᵢ / Σ wᵢ,  error² = n/(n−1) Σ wᵢ²(vᵢ − m)² / (Σ wᵢ)²

    With groups the sums Σ wᵢ(vᵢ − m) within each of the n groups take the place of the rows'.
    Rows of weight zero and NaN entries do not count. Shapes: values [b, ...], each entry of the
    other axes with a mean of its own.
    """

    def __init__(self, n_groups: int | None = None) -> None:
        self.n_groups = n_groups
        self._shift: Array | None = None

    def add(
        self, values: ArrayLike, weights: Array | None = None, groups: Integers | None = None
    ) -> Self:
        """Add rows [b, ...], with weights [b] and numbers of groups [b]."""
        values = np.asarray(values, dtype=np.float64)
        wide = (len(values), *[1] * (values.ndim - 1))
        each = np.ones(wide) if weights is None else np.asarray(weights, np.float64).reshape(wide)
        each = np.where(np.isnan(values), 0.0, np.broadcast_to(each, values.shape))
        seen = each > 0
        values = np.where(seen, values, 0.0)
        if self._shift is None:
            self._start(values, each)
        with np.errstate(over="ignore", invalid="ignore"):
            gap = (values - self._shift) / self._unit
        # A difference of infinities is NaN, a square of large numbers infinite: they count apart.
        far = seen & ~(np.abs(gap) < MAX_GAP)
        with np.errstate(invalid="ignore"):  # both infinities have no mean
            self._infinite += np.where(far, np.copysign(np.inf, values), 0.0).sum(0, initial=0.0)
        gap = np.where(seen & ~far, gap, 0.0)
        self._weight += each.sum(0)
        self._first += (each * gap).sum(0)
        if groups is None:
            self._count += seen.sum(0)
            for power in range(3):
                self._squares[power] += (each**2 * gap**power).sum(0)
        else:
            for sums, part in zip(self._grouped, (each, each * gap), strict=True):
                np.add.at(sums, groups, part)
        return self

    def _start(self, values: Array, each: Array) -> None:
        shape = values.shape[1:]
        total = np.maximum(each.sum(0), np.finfo(np.float64).tiny)
        finite = np.where(np.isinf(values), 0.0, values)
        # About the mean of the first block, in units of its spread: other squares would cancel,
        # or be too small or too large for double precision.
        self._shift = (each / total * finite).sum(0)
        with np.errstate(over="ignore"):
            spread = np.where(each > 0, np.abs(finite - self._shift), 0.0).max(0, initial=0.0)
        self._unit = np.where((spread > 0) & np.isfinite(spread), spread, 1.0)
        self._weight, self._first, self._count, self._infinite = (np.zeros(shape) for _ in range(4))
        self._squares = np.zeros((3, *shape))
        self._grouped = np.zeros((2, self.n_groups or 0, *shape))

    @property
    def value(self) -> Array:
        """The mean [...]."""
        return self._answer()[0]

    @property
    def standard_error(self) -> Array:
        """The standard error of the mean [...]."""
        return self._answer()[1]

    def _answer(self) -> tuple[Array, Array]:
        if self._shift is None:
            return np.array(math.nan), np.array(math.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            gap = self._first / self._weight
            if self.n_groups is None:
                count = self._count
                spread = self._squares[2] - 2 * gap * self._squares[1] + gap**2 * self._squares[0]
            else:
                weight, first = self._grouped
                count = (weight > 0).sum(0).astype(np.float64)
                spread = ((first - gap * weight) ** 2).sum(0)
            # Of equal values rounding may leave a sum below zero.
            error = np.sqrt(np.maximum(spread, 0.0) * count / (count - 1)) / self._weight
        settled = self._infinite != 0
        value = np.where(settled, self._infinite, self._shift + self._unit * gap)
        return value, np.where(settled | (count < 2), math.nan, self._unit * error)

    def score(self, *place: int) -> Score:
        """Return one of the means."""
        value, error = self._answer()
        return Score(float(value[place]), float(error[place]))


def weighted_mean(
    values: ArrayLike, weights: Array | None = None, groups: Integers | None = None
) -> Score:
    """Return the mean of rows [n] and its standard error, clustered by the numbers of groups [n].

    >>> weighted_mean([1.0, 2.0, 3.0])
    Score(value=2.0, standard_error=0.577...)
    """
    n_groups = None if groups is None else int(groups.max(initial=-1)) + 1
    return Mean(n_groups).add(values, weights, groups).score()


def root_mean_square(
    errors: Array, weights: Array | None = None, groups: Integers | None = None
) -> Score:
    """Return √(Σ w e² / Σ w) of errors [n], with the standard error that follows at first order.

    >>> root_mean_square(np.array([3e200, 4e200]))
    Score(value=3.535...e+200, standard_error=4.949...e+199)
    """
    unit = _unit(errors)
    square, error = weighted_mean((errors / unit) ** 2, weights, groups)
    value = math.sqrt(square)
    return Score(unit * value, unit * (error / (2 * value) if value else error))


def explained_variance(
    target: Array, mean: Array, weights: Array | None = None, groups: Integers | None = None
) -> Score:
    """Return R² = 1 − Σ w(y − m)² / Σ w(y − ȳ)² [n] → [], NaN where y is constant.

    Its error is that of the mean of the rows' influence,
    ((1 − R²)(y − ȳ)² − (y − m)²) / variance of y.
    """
    centre = weighted_mean(target, weights, groups).value
    unit = _unit(target - centre)
    with np.errstate(over="ignore", invalid="ignore"):
        about, off = ((target - centre) / unit) ** 2, ((target - mean) / unit) ** 2
    total = weighted_mean(about, weights, groups).value
    # A spread within rounding of the values is none.
    if not math.sqrt(total) * unit > np.finfo(np.float64).eps * abs(centre):
        return Score(math.nan)
    left = weighted_mean(off, weights, groups).value / total
    if not math.isfinite(left):
        return Score(-math.inf if left == math.inf else math.nan)
    influence = (left * about - off) / total
    error = weighted_mean(influence, weights, groups).standard_error
    # Of a constant mean both are zero but for rounding.
    return Score(*(0.0 if abs(number) < 1e-12 else number for number in (1 - left, error)))


def paired_difference(one: Array, other: Array) -> Array:
    """Return one − other [n], 0 where both are the same infinity: such a row tells nothing."""
    with np.errstate(invalid="ignore"):
        return np.where(one == other, 0.0, one - other)


def _unit(values: Array) -> float:
    """Return the largest finite size of values, 1 where they are all zero."""
    size = np.abs(values[np.isfinite(values)])
    return float(size.max(initial=0.0)) or 1.0
