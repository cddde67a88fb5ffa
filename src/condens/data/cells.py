"""Columns of cells as numbers: text, booleans and dates; and which cell is none."""

from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

Decimal: TypeAlias = Literal[".", ","]
Reading: TypeAlias = Callable[[pa.ChunkedArray], pa.ChunkedArray | None]

MISSING: Final = pa.array(
    [
        *("", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>"),
        *("NaN", "nan", "-NaN", "-nan", "NULL", "null", "None"),
    ]
)
_TIME = r"^([0-9]{1,2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?)$"


def tidied(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return text without surrounding blanks, null where it says that a value is missing.

    >>> tidied(pa.chunked_array([[" a ", "NA", ""]])).to_pylist()
    ['a', None, None]
    """
    text = pc.utf8_trim_whitespace(cells)
    return pc.if_else(pc.is_in(text, value_set=MISSING), None, text)


def as_numbers(cells: pa.ChunkedArray, decimal: Decimal = ".") -> pa.ChunkedArray | None:
    """Return text as doubles, true and false as 1 and 0; None if a cell is no number.

    >>> as_numbers(pa.chunked_array([["1,5", "-2", None]]), ",").to_pylist()
    [1.5, -2.0, None]
    """
    if decimal == ",":
        # Points would be those of thousands.
        if pc.any(pc.match_substring(cells, ".")).as_py():
            return None
        cells = pc.replace_substring(cells, ",", ".")
    try:
        return cells.cast(pa.float64())
    except pa.ArrowInvalid:
        words = pc.utf8_lower(cells)
        cells = pc.if_else(pc.equal(words, "true"), "1", cells)
        cells = pc.if_else(pc.equal(words, "false"), "0", cells)
    try:
        return cells.cast(pa.float64())
    except pa.ArrowInvalid:
        return None


def as_seconds(cells: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return ISO dates and times as seconds since 1970, or midnight; None if a cell is neither.

    >>> as_seconds(pa.chunked_array([["1970-01-02", "1970-01-01T00:00:01.5"]])).to_pylist()
    [86400.0, 1.5]
    """
    if cells.null_count == len(cells):
        return None
    if pc.all(pc.match_substring_regex(cells, _TIME)).as_py():
        hours = pc.if_else(pc.equal(pc.find_substring(cells, ":"), 1), "0", "")
        cells = pc.binary_join_element_wise("1970-01-01T", hours, cells, "")
    for zone in (None, "UTC"):
        for unit in ("us", "ns"):
            try:
                return seconds_of(cells.cast(pa.timestamp(unit, zone)))
            except pa.ArrowInvalid:
                continue
    return None


def seconds_of(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return dates, times or durations as seconds."""
    dtype = column.type
    if kinds.is_time(dtype):
        fine = pa.time64("us")
    elif kinds.is_duration(dtype):
        fine = pa.duration("us")
    else:
        fine = pa.timestamp("us", getattr(dtype, "tz", None))
    whole = column.cast(fine, safe=False).cast(pa.int64())
    return pc.divide(whole.cast(pa.float64(), safe=False), 1e6)


def inferred(cells: pa.ChunkedArray, decimal: Decimal = ".") -> pa.ChunkedArray:
    """Return text as booleans, whole numbers or doubles where every cell is one, else as it is."""
    numbers = as_numbers(cells, decimal)
    if numbers is None:
        return cells
    words = pc.utf8_lower(cells)
    booleans = pc.is_in(words, value_set=pa.array(["true", "false"]))
    truth = pc.if_else(pc.is_null(cells), None, booleans)
    if cells.null_count < len(cells) and pc.all(truth).as_py():
        return pc.equal(words, "true")
    # A number among words is no boolean.
    if pc.any(truth).as_py():
        return cells
    try:
        return cells.cast(pa.int64()) if cells.null_count < len(cells) else numbers
    except pa.ArrowInvalid:
        return numbers


def first_failure(cells: pa.ChunkedArray, read: Reading) -> int:
    """Return the place of the first cell that cannot be read, of some that cannot.

    >>> first_failure(pa.chunked_array([["1", "x", "2", "y"]]), as_numbers)
    1
    """
    low, high = 0, len(cells)
    while high - low > 1:
        middle = (low + high) // 2
        some = cells[:middle]
        if some.null_count < len(some) and read(some) is None:
            high = middle
        else:
            low = middle
    return low
