"""Standardising conditions and targets."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from condens.distributions.base import Mixture
from condens.errors import NotFiniteError
from condens.functional.tracing import checks_values

# A standard deviation this many times the estimate from the quartiles is due to outliers: then
# median and quartiles decide.
HEAVY_TAIL_RATIO = 20.0
# Rows of a large table that are standardised, or looked at, at a time: they fit into the cache.
ROWS_PER_BLOCK = 1 << 14
# Rows whose quartiles are taken.
MAX_QUARTILE_ROWS = 50_000
QUARTILES = (0.25, 0.5, 0.75)
# 1 / (2 Φ⁻¹(¾)): the standard deviation of a normal from the distance of its quartiles.
_FROM_QUARTILES = 0.7413011092528009
# Sums and differences of numbers above _LARGE might overflow: they are divided by _UNIT first.
# Both are powers of two, so that no digit is lost.
_LARGE, _UNIT = 2.0**900, 2.0**100

# The bounds of an empty range, lower and −upper: any number widens it. Not infinite, because model
# files hold finite numbers only.
EMPTY = torch.finfo(torch.float64).max
# Fraction of its range by which a column may leave it without being changed.
MARGIN = 0.5
# Fraction of its range by which values beyond that can still grow.
REACH = 0.25
# Standardised numbers beyond this are always pulled in: a few products of them must stay below the
# largest number of single precision.
MAX_STANDARDISED = 1e9


def in_blocks(change: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """Return change(values), of large tables some rows at a time: the same numbers, less memory.

    At once where a gradient is asked for, or a graph recorded.
    """
    if not checks_values(values) or (torch.is_grad_enabled() and values.requires_grad):
        return change(values)
    if not values.dim() or len(values) <= ROWS_PER_BLOCK:
        return change(values)
    whole = None
    for start in range(0, len(values), ROWS_PER_BLOCK):
        part = change(values[start : start + ROWS_PER_BLOCK])
        if whole is None:
            whole = part.new_empty(len(values), *part.shape[1:])
        whole[start : start + len(part)] = part
    assert whole is not None  # there are rows
    return whole


class Exact(nn.Module):
    """Base class: buffers stay in double precision, whatever the dtype of the network."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        # `network.float()` may move these buffers to another device, but must not round them.
        exact = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in exact.items():
            self._buffers[name] = buffer.to(getattr(self, name).device)
        return self


@dataclass(frozen=True)
class ColumnStatistics:
    """Statistics of columns that are not in memory, all in double precision.

    Args:
        mean, deviation, lower, upper: of the values that are not missing [D].
        quantiles: returns those at levels from 0 to 1. Shapes: [L] → [L, D].
    """

    mean: Tensor
    deviation: Tensor
    lower: Tensor
    upper: Tensor
    quantiles: Callable[[Sequence[float]], Tensor]


class Standardiser(Exact):
    """Subtract a location and divide by a scale, column by column.

    Fitted in double precision and kept in it, whatever the dtype of the network, so that
    columns of any scale (1e-30, 1e30, seconds since 1970) keep their digits. Missing entries (NaN)
    are left out. A constant column has scale one.

    Args:
        columns: D.
        fixed: how many of the last columns stay as they are, such as codes of categories.

    Shapes: [b, D] → [b, D].
    """

    def __init__(self, columns: int, fixed: int = 0) -> None:
        super().__init__()
        self.free = columns - fixed
        self.location = nn.Buffer(torch.zeros(columns, dtype=torch.float64))
        self.scale = nn.Buffer(torch.ones(columns, dtype=torch.float64))

    @torch.no_grad()
    def fit(self, values: Tensor, name: str = "values") -> Self:
        """Take location and scale from data [n, D]."""
        for number, some in enumerate(values.split(ROWS_PER_BLOCK)):
            if some.isinf().any():
                row, column = (int(i) for i in some.isinf().nonzero()[0])
                raise NotFiniteError(
                    name,
                    got=f"is infinite in row {number * ROWS_PER_BLOCK + row}, column {column}",
                    expected="finite numbers were expected",
                    fix="Remove the row, or mark the entry as missing with NaN.",
                )
        unit = torch.where(_largest(values) > _LARGE, _UNIT, 1.0)
        count = sum((~some.isnan()).sum(0) for some in values.split(ROWS_PER_BLOCK))
        # One copy of the table in double precision, changed in place: sums in blocks would be
        # others in their last digits.
        exact = values.double() / unit if bool((unit != 1).any()) else values.double()
        location = (torch.nansum(exact, 0) / count).nan_to_num(nan=0.0)
        some = exact[:: 1 + len(values) // MAX_QUARTILE_ROWS]
        quartiles = torch.nanquantile(some, some.new_tensor(QUARTILES), 0)
        ours = exact.data_ptr() != values.data_ptr()
        centred = exact.sub_(location) if ours else exact - location
        # Divided by the largest before squaring: 1e200 squared would be infinite.
        largest = _largest(centred)
        largest = torch.where(largest > 0, largest, 1.0)
        squares = centred.div_(largest).square_()
        deviation = largest * (torch.nansum(squares, 0) / count).sqrt()
        return self._choose(location, deviation, quartiles, unit)

    @torch.no_grad()
    def take(self, found: ColumnStatistics) -> Self:
        """Take location and scale from statistics of D columns."""
        largest = torch.maximum(found.lower.abs(), found.upper.abs()).nan_to_num(posinf=0.0)
        unit = torch.where(largest > _LARGE, _UNIT, 1.0)
        quartiles = found.quantiles(QUARTILES) / unit
        return self._choose(found.mean / unit, found.deviation / unit, quartiles, unit)

    def _choose(self, location: Tensor, deviation: Tensor, quartiles: Tensor, unit: Tensor) -> Self:
        """Set location and scale, from numbers that were divided by a unit."""
        low, middle, high = quartiles
        robust = _FROM_QUARTILES * (high - low)
        heavy = (robust > 0) & (deviation > HEAVY_TAIL_RATIO * robust)
        location = torch.where(heavy, middle, location)
        scale = torch.where(heavy, robust, deviation).nan_to_num(nan=0.0)
        self.location.copy_(location * unit)
        # The deviation of a constant column is rounding.
        self.scale.copy_(torch.where(scale > 1e-14 * location.abs(), scale * unit, 1.0))
        self.location[self.free :], self.scale[self.free :] = 0.0, 1.0
        return self

    def forward(self, values: Tensor) -> Tensor:
        """Return (values − location) / scale, in double precision."""
        return in_blocks(self._standardise, values)

    def _standardise(self, values: Tensor) -> Tensor:
        values = values.double()
        difference = values - self.location
        standard, infinite = difference / self.scale, difference.isinf()
        if checks_values(values) and not bool(infinite.any()):
            return standard
        # The difference of numbers near the largest may overflow.
        halves = 2 * ((0.5 * values - 0.5 * self.location) / self.scale)
        return torch.where(infinite, halves, standard)

    def inverse(self, mixture: Mixture) -> Mixture:
        """Return the mixture of location + scale · x, in double precision."""
        return mixture.to(torch.float64).affine(self.scale, self.location)


def _largest(values: Tensor) -> Tensor:
    """Return the largest size in each column, 0 where none was observed. Shapes: [n, D] → [D]."""
    parts = values.split(ROWS_PER_BLOCK)
    return torch.stack([part.abs().double().nan_to_num(nan=0.0).amax(0) for part in parts]).amax(0)


class Ends(NamedTuple):
    """Bounds of standardised columns, all of shape [C].

    The training range is `low` to `high`; values from `first` to `last` stay unchanged; beyond, a
    column grows by less than `reach`.
    """

    low: Tensor
    high: Tensor
    first: Tensor
    last: Tensor
    reach: Tensor


class ConditionScaling(Standardiser):
    """Standardise conditions, and pull in those far outside the training rows.

    It keeps the range [lower, upper] of every column. With z the standardised number and w the
    width of the range, at least 1, the result is

        z  inside the range and up to w/2 outside of it, bit for bit;
        e + r·t/(1 + t),  t = (z − e)/r,  r = w/4,  beyond the end e of that, and so below e + r.

    It is monotone, has a continuous slope, and is finite for every finite number. Columns without
    a range (codes of categories always, all columns before the first `fit`) stay unchanged, numbers
    up to 10⁹, which float32 can compute with. Columns that are `unused` become zero.

    Shapes: [..., C] → [..., C].

    >>> scaling = ConditionScaling(1)
    >>> _ = scaling.fit(torch.tensor([[-1.0], [1.0]]))
    >>> scaling(torch.tensor([[-1.0], [2.0], [3.0], [1e300]])).flatten()
    tensor([-1.0000, 2.0000, 2.3333, 2.5000], dtype=torch.float64)
    """

    def __init__(self, columns: int, fixed: int = 0, unused: Sequence[int] = ()) -> None:
        super().__init__(columns, fixed)
        self.unused = tuple(unused)
        self.lower = nn.Buffer(torch.full((columns,), EMPTY, dtype=torch.float64))
        self.upper = nn.Buffer(torch.full((columns,), -EMPTY, dtype=torch.float64))
        self._known: dict[Any, tuple[list[tuple[int, int]], Ends, tuple[Tensor, ...]]] = {}

    @torch.no_grad()
    def fit(self, values: Tensor, name: str = "values") -> Self:
        """Take location, scale and range from data [n, C]."""
        super().fit(values, name)
        self.lower.fill_(EMPTY)
        self.upper.fill_(-EMPTY)
        return self.extend(values)

    @torch.no_grad()
    def take(self, found: ColumnStatistics) -> Self:
        """Take location, scale and range from statistics of C columns."""
        super().take(found)
        self.lower.fill_(EMPTY)
        self.upper.fill_(-EMPTY)
        return self.extend(torch.stack([found.lower, found.upper]))

    @torch.no_grad()
    def extend(self, values: Tensor) -> Self:
        """Widen the range to hold these data [n, C] too."""
        lower, upper = self.lower[: self.free], self.upper[: self.free]
        for some in values[:, : self.free].split(ROWS_PER_BLOCK):
            numbers = some.double()
            lower.copy_(torch.minimum(lower, numbers.nan_to_num(nan=EMPTY).amin(0)))
            upper.copy_(torch.maximum(upper, numbers.nan_to_num(nan=-EMPTY).amax(0)))
        return self

    def forward(self, values: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return the input of a network of this dtype."""
        read = in_blocks(partial(self._read, dtype=dtype), values)
        return read * self._used(read) if self.unused else read

    def _used(self, like: Tensor) -> Tensor:
        """Return 1 for columns that are used, 0 for others [C]."""
        return like.new_tensor([column not in self.unused for column in range(len(self.scale))])

    def _read(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        ends = self._ends(dtype)
        if checks_values(values) and values.numel():
            # The common case, in a third of the time; a difference that overflows is beyond an end.
            standard = (values.double() - self.location) / self.scale
            room = torch.minimum((standard - ends.first).amin(), (ends.last - standard).amin())
            if bool(room >= 0):
                return standard.to(dtype)
        standard = self._standardise(values)
        inside = standard.clamp(ends.first, ends.last)
        unchanged = standard == inside
        steps = (standard - inside) / ends.reach
        # t/(1 + t) would be NaN where the division overflowed.
        held = inside + ends.reach * steps.sign() * (1 - 1 / (1 + steps.abs()))
        return torch.where(unchanged, standard, held).to(dtype)

    def outside(self, values: Tensor) -> Tensor:
        """Tell which values are pulled in. Shapes: [..., C] → [..., C]."""
        standard, ends = super().forward(values), self._ends(torch.float64)
        beyond = (standard < ends.first) | (standard > ends.last)
        return beyond & self._used(beyond) if self.unused else beyond

    def holds(self, read: Tensor) -> bool:
        """Tell whether `forward` left all these rows unchanged; no, if values are not checked."""
        ends = self._ends(read.dtype, read.dtype)
        return checks_values(read) and torch.equal(read, read.clamp(ends.first, ends.last))

    def departure(self, read: Tensor) -> Tensor:
        """Return how far out the rows from `forward` are, from 0 (unchanged) to 1.

        It reaches 1, smoothly, where some column is r/2 beyond its end. Shapes: [..., C] → [...].
        """
        ends = self._ends(read.dtype, read.dtype)
        steps = (read - read.clamp(ends.first, ends.last)).abs() / ends.reach
        part = (2 * steps.amax(-1)).clamp(max=1.0)
        return part.square() * (3 - 2 * part)

    def nearest(self, read: Tensor) -> Tensor:
        """Return the nearest rows in the training range. Shapes: [..., C] → [..., C]."""
        ends = self._ends(read.dtype, read.dtype)
        return read.clamp(ends.low, ends.high)

    def _ends(self, limit: torch.dtype, dtype: torch.dtype = torch.float64) -> Ends:
        """Return the ends for a network of the dtype `limit`, in standardised units.

        Cached while the buffers are unchanged: finding them takes as long as a small network.
        """
        buffers = (self.location, self.scale, self.lower, self.upper)
        if not checks_values(*buffers) or any(buffer.is_inference() for buffer in buffers):
            return self._find_ends(limit, dtype)
        # The entry keeps the buffers alive, so that their ids stay theirs.
        stamp = [(id(buffer), buffer._version) for buffer in buffers]
        if self._known.get((limit, dtype), (None,))[0] != stamp:
            self._known[limit, dtype] = stamp, self._find_ends(limit, dtype), buffers
        return self._known[limit, dtype][1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}

    def _find_ends(self, limit: torch.dtype, dtype: torch.dtype) -> Ends:
        known = self.lower <= self.upper
        # Where a column varies its range is longer than its scale; a constant one has scale one.
        margin = MARGIN * torch.maximum(self.upper - self.lower, self.scale)
        raw = torch.stack([self.lower, self.upper, self.lower - margin, self.upper + margin])
        # Through the function that values go through: rounding puts none inside on the outside.
        low, high, first, last = super().forward(raw).unbind()
        most = min(MAX_STANDARDISED, math.sqrt(torch.finfo(limit).max))
        number = torch.arange(len(known), device=known.device) < self.free
        bound = torch.where(number, torch.full_like(self.scale, most), torch.inf)
        low, first = (torch.where(known, end, -torch.inf).clamp(min=-bound) for end in (low, first))
        high, last = (torch.where(known, end, torch.inf).clamp(max=bound) for end in (high, last))
        reach = (REACH * (high - low)).clamp(min=REACH, max=most)
        return Ends(*(end.to(dtype) for end in (low, high, first, last, reach)))
