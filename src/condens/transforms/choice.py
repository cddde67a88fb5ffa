"""The transform of a column: by a word, by bounds, or proposed from the values."""

from collections.abc import Mapping, Sequence
from numbers import Number
from typing import TypeAlias

import torch
from torch import Tensor

from condens.errors import ArgumentError
from condens.functional.precision import widen
from condens.transforms.base import Transform
from condens.transforms.kinds import Integer, Interval, Positive, Real

# What stands for the transform of one target, and for those of all of them.
TransformLike: TypeAlias = Transform | str | tuple[float, float]
TargetTransform: TypeAlias = (
    TransformLike
    | Sequence[TransformLike | None]
    | Mapping[str, TransformLike]
    | Mapping[int, TransformLike]
    | None
)
_WORDS: Mapping[str, Transform] = {
    "real": Real(),
    "positive": Positive(),
    "count": Integer(lower=0),
    "integer": Integer(),
    "unit": Interval(0.0, 1.0),
}


def resolve(spec: TransformLike, name: str = "transform") -> Transform:
    """Return the transform that a word, a pair of bounds, or a transform stands for.

    >>> resolve("count")
    Integer(lower=0)
    >>> resolve((0, 100))
    Interval(lower=0.0, upper=100.0, link='probit')
    """
    if isinstance(spec, Transform):
        return spec
    if isinstance(spec, str) and spec in _WORDS:
        return _WORDS[spec]
    pair = isinstance(spec, tuple | list) and len(spec) == 2
    if pair and all(isinstance(bound, Number) for bound in spec):
        return Interval(*spec)
    raise ArgumentError(
        name,
        got=f"is {spec!r}",
        expected=f"{', '.join(map(repr, _WORDS))}, a pair (lower, upper) or a Transform was "
        "expected",
        fix="For a density over all numbers, pass 'real'.",
    )


def propose(values: Tensor) -> Transform:
    """Return the transform proposed for a column of values; NaN is a missing one.

    Whole numbers, with at most 100 distinct values over a range below 200, are integers,
    and counts if none is negative. Numbers strictly between 0 and 1 get that interval. Positive
    numbers are positive where they are clearly skewed: the largest is more than 5 times
    the median, and Bowley's skewness of the quartiles, (q₁ + q₃ − 2q₂)/(q₃ − q₁), is
    nearer zero for the logarithms. All else is real. Shapes: values [N].

    >>> import torch
    >>> propose(torch.tensor([0.0, 3.0, 1.0, float("nan")]))
    Integer(lower=0)
    """
    seen = widen(values[~values.isnan()])
    if not len(seen) or not bool(seen.isfinite().all()):
        return Real()
    lowest, highest = float(seen.min()), float(seen.max())
    if bool((seen == seen.floor()).all()) and highest - lowest < 200 and len(seen.unique()) <= 100:
        return Integer(lower=0) if lowest >= 0 else Integer()
    if lowest > 0 and highest < 1:
        return Interval(0.0, 1.0)
    if lowest > 0 and highest > 5 * float(seen.median()) and _skew(seen.log()) < _skew(seen):
        return Positive()
    return Real()


def spans_decades(values: Tensor) -> bool:
    """Tell whether values, NaN left out, are positive, skewed and reach over orders of magnitude.

    That is, `propose` finds `Positive`, and the largest is over a hundred times the median.
    """
    seen = widen(values[~values.isnan()])
    return propose(seen) == Positive() and float(seen.max()) > 100 * float(seen.median())


def spikes(values: Tensor) -> dict[float, float]:
    """Return the ends of the values' range at which many of them lie, and the share at each.

    An end is a spike if two of a hundred values or more, and five or more, are exactly there, and
    twice as many as at any value between the ends. Values that are fewer than ten different ones
    have no spikes: they are labels or levels. NaN is a missing one.

    >>> import torch
    >>> spikes(torch.cat([torch.zeros(25), torch.linspace(0.1, 5, 75)]))
    {0.0: 0.25}
    """
    seen = widen(values[values.isfinite()])
    levels, counts = seen.unique(return_counts=True)
    if len(levels) < 10:
        return {}
    least = max(5.0, 0.02 * len(seen), 2.0 * float(counts[1:-1].max()))
    ends = ((float(levels[i]), int(counts[i])) for i in (0, -1))
    return {level: count / len(seen) for level, count in ends if count >= least}


def on_bounds(values: Tensor) -> dict[float, float]:
    """Return the share of values at 0 and at 1, if these alone keep `propose` from a bound.

    >>> import torch
    >>> on_bounds(torch.cat([torch.ones(1), torch.rand(99)]))
    {1.0: 0.01}
    """
    seen = widen(values[values.isfinite()])
    ends = [
        end for end in (0.0, 1.0) if len(seen) and end in (float(seen.min()), float(seen.max()))
    ]
    inner = seen[~torch.isin(seen, seen.new_tensor(ends))]
    if propose(seen) != Real() or not isinstance(propose(inner), Positive | Interval):
        return {}
    shares = {end: float((seen == end).double().mean()) for end in ends}
    return {end: round(share, 6) for end, share in shares.items() if share}


def _skew(values: Tensor) -> float:
    """Return the absolute value of Bowley's skewness; 0 where the quartiles coincide."""
    ordered = values.sort().values
    low, middle, high = (float(ordered[round(p * (len(ordered) - 1))]) for p in (0.25, 0.5, 0.75))
    return abs(low + high - 2 * middle) / (high - low) if high > low else 0.0
