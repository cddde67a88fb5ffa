"""What a model file tells about the columns of a fit: ranges, quantiles and histograms, no rows."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from condens.data import Rows, TableEncoder
from condens.data.encoder import Categories
from condens.data.frames import Category, kind_of
from condens.scalars import as_real, as_truth, as_whole

# Columns of X, and of y, that are summarised: the first ones.
MAX_COLUMNS = 256
MAX_BINS = 40
# Categories that are counted: the most frequent ones.
MAX_COUNTED = 50
# Of columns of numbers, beside their ends.
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
# Fraction of the rows beyond either end of a column, of many rows and of few.
MANY_ROWS, TAIL, WIDE_TAIL = 1000, 0.001, 0.01
# Ends and quantiles are rounded to this fraction of a power of ten within the range.
ROUNDING = 0.01
# Beyond these widths rounding or dividing a range is not exact enough, or not possible.
MIN_WIDTH, MAX_WIDTH = 1e-290, 1e290
FIX = "Save the model again."


@dataclass(frozen=True)
class NumberSummary:
    """A column of numbers.

    Args:
        low, high: quantiles at 0.1 and 99.9 %, of fewer than 1000 rows at 1 and 99 %, rounded
            outwards to three digits of their distance: no row's own value, unless all are equal.
        quantiles: at the `LEVELS`, rounded alike.
        counts: of rows in bins of equal width from low to high, of whole numbers around each;
            rows beyond the ends are in none.
        whole: whether all numbers are whole.
        missing: rows without a number.
    """

    low: float
    high: float
    quantiles: tuple[float, ...]
    counts: tuple[int, ...]
    whole: bool
    missing: int

    @classmethod
    def of(cls, column: NDArray[np.float64]) -> Self:
        """Summarise numbers, NaN where one is missing."""
        seen = column[~np.isnan(column)]
        missing = len(column) - len(seen)
        if not len(seen):
            return cls(0.0, 0.0, (0.0,) * len(LEVELS), (), False, missing)
        # Divided by the largest: differences of huge numbers have no finite number.
        largest = float(np.abs(seen).max()) or 1.0
        tail = TAIL if len(seen) >= MANY_ROWS else WIDE_TAIL
        levels = np.quantile(seen / largest, [tail, *LEVELS, 1 - tail])
        low, *inner, high = (levels.clip(-1, 1) * largest).tolist()
        whole = bool(np.all(seen == np.round(seen)))
        width = high - low
        if not MIN_WIDTH < width < MAX_WIDTH:
            return cls(low, high, tuple(inner), (), whole, missing)
        step = ROUNDING * 10.0 ** math.floor(math.log10(width))
        step = max(step, 1.0) if whole else step
        low, high = math.floor(low / step) * step, math.ceil(high / step) * step
        # The product may have digits of rounding: 3 · 0.1.
        digits = max(-math.floor(math.log10(step)), 0)
        low, high = round(low, digits), round(high, digits)
        inner = [min(max(round(round(q / step) * step, digits), low), high) for q in inner]
        each = whole and high - low < MAX_BINS
        edges = (
            np.arange(low - 0.5, high + 1)
            if each
            else np.linspace(low, high, 1 + min(MAX_BINS, math.ceil(2 * math.sqrt(len(seen)))))
        )
        counts = np.histogram(seen, edges)[0].tolist()
        return cls(low, high, tuple(inner), tuple(counts), whole, missing)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return what `asdict` described; refuse anything else."""
        low, high = (as_real(name, values[name], fix=FIX) for name in ("low", "high"))
        inner = tuple(as_real("quantiles", one, fix=FIX) for one in values["quantiles"])
        ordered = [low, *inner, high]
        if len(inner) != len(LEVELS) or ordered != sorted(ordered):
            raise ValueError("the quantiles are no quantiles")
        return cls(
            low,
            high,
            inner,
            _counts(values["counts"], MAX_BINS),
            as_truth("whole", values["whole"], fix=FIX),
            as_whole("missing", values["missing"], 0, fix=FIX),
        )


@dataclass(frozen=True)
class CategorySummary:
    """A column of categories.

    Args:
        values: the most frequent ones, in order of frequency.
        counts: of their rows.
        others: rows with another one.
        missing: rows without any.
    """

    values: tuple[Category, ...]
    counts: tuple[int, ...]
    others: int
    missing: int

    @classmethod
    def of(cls, codes: NDArray[np.float64], feature: Categories) -> Self:
        """Summarise codes as `TableEncoder` makes them."""
        counts = np.bincount(codes.astype(np.int64), minlength=feature.size)
        known = counts[1 : 1 + len(feature.values)]
        order = np.argsort(-known, kind="stable")[:MAX_COUNTED]
        return cls(
            tuple(feature.values[place] for place in order),
            tuple(known[order].tolist()),
            int(counts[0] + known.sum() - known[order].sum()),
            int(counts[-1]) if feature.missing else 0,
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return what `asdict` described; refuse anything else."""
        names, counts = tuple(values["values"]), _counts(values["counts"], MAX_COUNTED)
        if len(names) != len(counts) or kind_of(names) is None:
            raise ValueError("counts of categories are needed")
        others, missing = (as_whole(n, values[n], 0, fix=FIX) for n in ("others", "missing"))
        return cls(names, counts, others, missing)


@dataclass(frozen=True)
class Summary:
    """The columns of the rows that a model was trained on, at most 256 of X and of y.

    A few numbers and a histogram each, from which no row can be read off.

    Args:
        n_rows: how many rows there were.
        conditions: the columns of X.
        targets: the columns of y, in their own units.

    >>> import torch
    >>> rows = Rows.of(torch.arange(200.0).reshape(-1, 1), torch.zeros(200, 1))
    >>> found = Summary.of(rows, TableEncoder.fit([[0.0]])).conditions[0]
    >>> found.low, found.high, found.quantiles[2]
    (1.0, 198.0, 100.0)
    """

    n_rows: int
    conditions: tuple[NumberSummary | CategorySummary, ...]
    targets: tuple[NumberSummary, ...]

    @classmethod
    def of(cls, rows: Rows, encoder: TableEncoder) -> Self:
        """Summarise rows that an encoder has read."""
        return cls(
            len(rows),
            tuple(_conditions(rows.condition, encoder)),
            tuple(
                NumberSummary.of(column.double().numpy())
                for column in rows.target[:, :MAX_COLUMNS].unbind(1)
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], encoder: TableEncoder, n_targets: int) -> Self:
        """Return what `to_dict` described; refuse what does not belong to these columns."""
        features = encoder.features[:MAX_COLUMNS]
        conditions, targets = values["conditions"], values["targets"]
        if len(conditions) != len(features) or len(targets) != min(n_targets, MAX_COLUMNS):
            raise ValueError("a summary has an entry for each column")
        return cls(
            as_whole("n_rows", values["n_rows"], 1, fix=FIX),
            tuple(
                (CategorySummary if isinstance(feature, Categories) else NumberSummary).from_dict(
                    one
                )
                for feature, one in zip(features, conditions, strict=True)
            ),
            tuple(map(NumberSummary.from_dict, targets)),
        )


def _conditions(
    condition: Tensor, encoder: TableEncoder
) -> Iterator[NumberSummary | CategorySummary]:
    pairs = zip(encoder.features, encoder.places, strict=True)
    for feature, (place, *flag) in list(pairs)[:MAX_COLUMNS]:
        column = condition[:, place].double().numpy()
        if isinstance(feature, Categories):
            yield CategorySummary.of(column, feature)
        else:
            missing = condition[:, flag[0]].numpy() > 0 if flag else False
            yield NumberSummary.of(np.where(missing, np.nan, column))


def _counts(values: Sequence[Any], most: int) -> tuple[int, ...]:
    if len(values) > most:
        raise ValueError(f"at most {most} counts were expected")
    return tuple(as_whole("counts", value, 0, fix=FIX) for value in values)
