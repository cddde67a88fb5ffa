"""Arrays, lists and tensors as doubles, NaN where missing; errors for what is not numbers."""

import datetime
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condens.errors import ArgumentError, KindError, NotFiniteError, ShapeError

Doubles = NDArray[np.float64]
# Of single or of double precision.
Floats = NDArray[np.floating[Any]]
Precision = type[np.float32] | type[np.float64]

# Rows that are looked at, or changed, at a time: a part of a large table fits into the cache.
ROWS_PER_BLOCK = 1 << 14
# Dtypes whose numbers single precision holds exactly; those of numpy are asked.
_NARROW = {
    *(torch.float32, torch.float16, torch.bfloat16),
    *(torch.bool, torch.int8, torch.uint8, torch.int16),
}

NUMBERS = (Real, np.bool_, Decimal)
NUMBERS_EXPECTED = "real numbers were expected"
_ADVICE: tuple[tuple[tuple[type, ...], str], ...] = (
    (
        (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64),
        "Derive numbers such as the year, the day of the year, or seconds since an origin.",
    ),
    (
        (complex, np.complexfloating),
        "Complex data not supported: pass the real and the imaginary part as two columns.",
    ),
    (
        (str, bytes),
        "Encode it as numbers; where X is a DataFrame, MDNRegressor reads its columns of text as "
        "categories.",
    ),
)
_IN_FRAME = "Decode it to text, which is read as categories, or encode it as numbers."
# Cells of text that are looked at for advice.
_CELLS_READ = 1000
_OTHER = "The argument must be a table with a string (in a DataFrame) or a number in every cell."


def as_doubles(values: Any, name: str) -> Doubles:
    """Return numbers as doubles, in their shape, with at most one copy.

    >>> as_doubles([[1, None], [True, 0.5]], "table").tolist()
    [[1.0, nan], [1.0, 0.5]]
    """
    return np.asarray(as_floats(values, name, lambda _: np.float64), dtype=np.float64)


def exact_precision(dtype: np.dtype[Any]) -> Precision:
    """Return single precision where it holds every number of a dtype, else double precision.

    >>> exact_precision(np.dtype("int16")), exact_precision(np.dtype("int32"))
    (<class 'numpy.float32'>, <class 'numpy.float64'>)
    """
    return np.float32 if np.can_cast(dtype, np.float32) else np.float64


def as_floats(
    values: Any, name: str, precision: Callable[[np.dtype[Any]], Precision] = exact_precision
) -> Floats:
    """Return numbers in the precision for their dtype, in their shape, with at most one copy."""
    if isinstance(values, Tensor):
        given = dense(values, name).cpu()
        found = precision(np.dtype("float32" if given.dtype in _NARROW else "float64"))
        dtype = torch.float32 if found is np.float32 else torch.float64
        return given.to(dtype).contiguous().numpy()
    if hasattr(values, "nnz") and hasattr(values, "toarray"):
        raise sparse(name, type(values).__name__, ".toarray()")
    if isinstance(values, np.ma.MaskedArray):
        whole = as_floats(values.data, name, precision)
        return np.where(np.ma.getmaskarray(values), whole.dtype.type(np.nan), whole)
    return as_numbers(values, name, precision)


def as_numbers(
    values: Any, name: str, precision: Callable[[np.dtype[Any]], Precision] | None = None
) -> NDArray[Any]:
    """Return real numbers in an array that torch takes; by default of the dtype they have."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ShapeError(
            name,
            got="has rows of different lengths",
            expected="a table was expected",
            fix="Give every row the same length.",
        ) from error
    if array.dtype == object:
        return from_objects(array, name)
    if array.dtype.kind not in "fiub":
        cells = array.ravel()[:_CELLS_READ].tolist() if array.dtype.kind == "U" else []
        raise unusable(name, array.dtype, array.dtype.type, text=cells)
    # Torch has neither long doubles nor another byte order than the machine's.
    native = np.float64 if array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
    with np.errstate(over="ignore"):  # a number that a double cannot hold is refused as infinite
        dtype = native if precision is None else precision(array.dtype)
        return np.require(array, dtype, ["C", "W"])


def dense(values: Tensor, name: str) -> Tensor:
    """Return a tensor, detached; refuse one that is sparse, complex or without data."""
    if values.layout != torch.strided:
        raise sparse(name, str(values.layout), ".to_dense()")
    if values.is_complex():
        raise unusable(name, values.dtype, complex)
    if values.is_meta:
        raise KindError(
            name,
            got="is a tensor of torch's meta device",
            expected="numbers were expected",
            fix="Pass a tensor of a device that holds data.",
        )
    return values.detach()


def from_objects(objects: NDArray[np.object_], name: str, where: str = "") -> Doubles:
    """Return Python's numbers as doubles; None, NaN and pandas' NA are missing."""
    cells = objects.ravel().tolist()
    for kind in {type(cell) for cell in cells} - {type(None)}:
        # pandas cannot be asked for its NA: it may not be installed.
        if kind.__name__ == "NAType":
            cells = [None if type(cell) is kind else cell for cell in cells]
        elif not issubclass(kind, NUMBERS):
            first = np.unravel_index(list(map(type, cells)).index(kind), objects.shape)
            text = [cell for cell in cells[:_CELLS_READ] if isinstance(cell, str)]
            place = where or f" at {[int(i) for i in first]}"
            raise unusable(name, kind.__name__, kind, place, text=text)
    try:
        return np.array(cells, dtype=object).astype(np.float64).reshape(objects.shape)
    except (OverflowError, ValueError):  # the latter of decimals that signal
        raise NotFiniteError(
            name,
            got=f"holds a number{where} that a double cannot hold",
            expected="finite numbers were expected",
            fix="Scale the column, or pass it as text if it names something.",
        ) from None


def row_blocks(n_rows: int) -> list[slice]:
    """Return the rows of a table, some at a time."""
    return [slice(start, start + ROWS_PER_BLOCK) for start in range(0, n_rows, ROWS_PER_BLOCK)]


def refuse_infinite(numbers: Floats, labels: list[str], name: str) -> None:
    """Raise where a number is infinite. Shapes: numbers [n, P]; a label for each column."""
    for some in row_blocks(len(numbers)):
        infinite = np.isinf(numbers[some])
        if infinite.any():
            row, column = np.argwhere(infinite)[0] + (some.start, 0)
            raise NotFiniteError(
                name,
                got=f"is {numbers[row, column]:g} in row {row}, {labels[column]}",
                expected="finite numbers were expected",
                fix="Remove the row, or mark the entry as missing with NaN.",
            )


def unusable(
    name: str,
    what: object,
    kind: type,
    where: str = "",
    expected: str = NUMBERS_EXPECTED,
    *,
    text: Sequence[str] = (),
) -> ArgumentError:
    """Return the error for cells of a kind that is not numbers, with advice for that kind.

    Where scikit-learn has a message for a case, it is in its words: users know and search them.
    """
    fix = next((advice for kinds, advice in _ADVICE if issubclass(kind, kinds)), _OTHER)
    if issubclass(kind, bytes) and expected != NUMBERS_EXPECTED:  # a frame, whose text is read
        fix = _IN_FRAME
    return KindError(
        name, got=f"holds {what}{where}", expected=expected, fix=text_advice(text) or fix
    )


def text_advice(text: Sequence[str]) -> str:
    """Return advice for text that is mostly numbers or dates; "" where it is neither.

    >>> text_advice(["1.5", "2", "n/a"])[:30]
    'These are numbers read as text'
    """
    some = text[:_CELLS_READ]
    if _mostly(lambda cell: math.isfinite(float(cell)), some):
        return (
            "These are numbers read as text: convert them, by .astype(float) or "
            'pandas.to_numeric(…, errors="coerce") where some are not.'
        )
    if _mostly(datetime.datetime.fromisoformat, some):
        return f"These are dates read as text. {_ADVICE[0][1]}"
    return ""


def _mostly(read: Callable[[str], object], cells: Sequence[str]) -> bool:
    """Return whether more than half of the cells can be read."""
    count = 0
    for cell in cells:
        with suppress(ValueError):
            count += bool(read(cell))
    return 2 * count > len(cells)


def sparse(name: str, what: str, method: str, where: str = "") -> ArgumentError:
    """Return the error for a sparse table, and the method that makes it dense."""
    return KindError(
        name,
        got=f"holds {what}{where}",
        expected="a dense table was expected, not a sparse one",
        fix=f"Convert it by {method}.",
    )
