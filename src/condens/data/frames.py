"""Columns of pandas, polars and pyarrow tables, known by their attributes: none is imported."""

import datetime
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from condens.data.arrays import (
    NUMBERS,
    Floats,
    exact_precision,
    from_objects,
    sparse,
    unusable,
)
from condens.errors import ArgumentError
from condens.scalars import printable

Category = str | bool | int | float
EXPECTED = "numbers or categories were expected"


class Codes(NamedTuple):
    """A column of categories: `values[code]` in every row, and −1 where it is missing."""

    codes: NDArray[np.integer[Any]]
    values: list[Category]


Column = Floats | Codes


def is_frame(table: Any) -> bool:
    """Whether a table has named columns, each with a dtype."""
    # Asked of the type: the properties of a lazy frame would run its query.
    return hasattr(type(table), "columns")


def select(frame: Any, names: Sequence[Any]) -> Any:
    """Return a frame with some of its columns."""
    chosen = list(names)
    return frame[chosen] if hasattr(type(frame), "iloc") else frame.select(chosen)


def take_rows(frame: Any, rows: NDArray[np.integer[Any]]) -> Any:
    """Return a frame with some of its rows, by their numbers."""
    if hasattr(type(frame), "iloc"):
        return frame.iloc[rows]
    return frame.take(rows) if hasattr(type(frame), "take") else frame[rows.tolist()]


def names_of(frame: Any) -> list[Any]:
    """Return the names of a frame's columns."""
    return list(frame.column_names if hasattr(type(frame), "column_names") else frame.columns)


def columns_of(frame: Any, name: str) -> tuple[list[Any], list[Column]]:
    """Return the names of a frame's columns, and the columns.

    Numbers are in single precision where it holds them exactly, and may share the frame's memory.
    """
    pandas, polars = hasattr(type(frame), "iloc"), hasattr(type(frame), "get_columns")
    pyarrow = hasattr(type(frame), "column_names") and hasattr(type(frame), "schema")
    if not pandas and not polars and not pyarrow:
        raise ArgumentError(
            name,
            got=f"is a {type(frame).__module__.split('.')[0]} {type(frame).__name__}",
            expected="an array, a DataFrame of pandas or polars, or a pyarrow Table was expected",
            fix="Convert it, or collect it if lazy.",
        )
    names = names_of(frame)
    label, count = Counter(names).most_common(1)[0] if names else (None, 0)
    if count > 1:
        raise ArgumentError(
            name,
            got=f"has {count} columns {label!r}",
            expected="distinct names were expected",
            fix="Rename or drop them.",
        )
    if pyarrow:
        series, read = frame.columns, _of_pyarrow
    elif pandas:
        series, read = [frame.iloc[:, i] for i in range(len(names))], _of_pandas
    else:
        series, read = frame.get_columns(), _of_polars
    pairs = zip(names, series, strict=True)
    return names, [read(each, name, f" in column {label!r}") for label, each in pairs]


def _of_pandas(series: Any, name: str, where: str) -> Column:
    dtype = series.dtype
    if type(dtype).__name__ == "SparseDtype":
        raise sparse(name, str(dtype), ".sparse.to_dense()", where)
    if hasattr(dtype, "categories"):
        return _codes(series.cat.codes.to_numpy(), series.cat.categories.tolist(), name, where)
    if issubclass(dtype.type, NUMBERS) and dtype.kind in "fiub":
        precision = exact_precision(np.dtype(dtype.type))
        return np.asarray(series.to_numpy(dtype=precision, na_value=np.nan))
    if dtype.kind != "O" or hasattr(dtype, "freq"):  # periods have one
        kind = datetime.date if hasattr(dtype, "freq") else dtype.type
        raise unusable(name, dtype, kind, where, EXPECTED)
    try:
        codes, values = series.factorize()
    except TypeError:
        raise unusable(name, "lists or the like", object, where, EXPECTED) from None
    if all(isinstance(value, NUMBERS) for value in values.tolist()):
        return from_objects(series.to_numpy(dtype=object), name, where)
    return _codes(codes, values.tolist(), name, where)


def _of_polars(series: Any, name: str, where: str) -> Column:
    kind = series.dtype.to_python()
    if kind is type(None) or issubclass(kind, NUMBERS):
        narrow = str(series.dtype) == "Float32"
        return np.asarray((series if narrow else series.cast(float)).to_numpy())
    if kind is not str:
        raise unusable(name, series.dtype, kind, where, EXPECTED)
    text = series.cast(str)
    values = text.drop_nulls().unique().to_list()
    codes = text.replace_strict(values, list(range(len(values))), default=-1)
    return _codes(codes.to_numpy(), values, name, where)


def _of_pyarrow(series: Any, name: str, where: str) -> Column:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    dtype, categories = series.type, kinds.is_dictionary(series.type)
    if categories or kinds.is_run_end_encoded(dtype):
        dtype = dtype.value_type
        series = series.cast(dtype) if categories else pc.run_end_decode(series)
    text = kinds.is_string(dtype) or kinds.is_large_string(dtype) or kinds.is_string_view(dtype)
    number = kinds.is_integer(dtype) or kinds.is_floating(dtype) or kinds.is_decimal(dtype)
    if not text and not number and not kinds.is_boolean(dtype) and not kinds.is_null(dtype):
        date = kinds.is_temporal(dtype)
        binary = "binary" in str(dtype) and not kinds.is_nested(dtype)
        kind = datetime.date if date else bytes if binary else object
        raise unusable(name, printable(str(dtype)), kind, where, EXPECTED)
    if not text and not categories:
        # Unsafe: whole numbers above 2^53 are rounded, as in other frames.
        wide = series if kinds.is_float32(dtype) else series.cast(pa.float64(), safe=False)
        return np.asarray(wide.to_numpy(zero_copy_only=False))
    if kinds.is_floating(dtype):
        series = pc.if_else(pc.is_nan(series), None, series)
    coded = pa.chunked_array([series] if isinstance(series, pa.Array) else series.chunks, dtype)
    coded = coded.cast(pa.large_string()) if text else coded
    coded = coded.combine_chunks().dictionary_encode()
    try:
        values = coded.dictionary.to_pylist()
    except UnicodeDecodeError:
        raise unusable(name, "text that is not UTF-8", bytes, where, EXPECTED) from None
    return _codes(coded.indices.fill_null(-1).to_numpy(), values, name, where)


def _codes(codes: Any, values: list[Any], name: str, where: str) -> Column:
    """Return codes of values that can be compared, sorted and written to a file.

    A column without any value has no kind: it is one of missing numbers.
    """
    # Exactly str: what a subclass prints may be another text.
    values = [str.__str__(value) if isinstance(value, str) else value for value in values]
    if values and kind_of(values) is None:
        kinds = {type(value) for value in values}
        listed = " and ".join(sorted(kind.__name__ for kind in kinds))
        if len(kinds) == 1:
            raise unusable(name, listed, kinds.pop(), where, EXPECTED)
        raise ArgumentError(
            name,
            got=f"holds {listed}{where}",
            expected="text alone, numbers alone or booleans alone were expected",
            fix="Convert the column: .astype(str) makes categories, pandas.to_numeric(…, "
            'errors="coerce") numbers.',
        )
    return Codes(codes, values) if (codes >= 0).any() else np.full(len(codes), np.nan)


def kind_of(values: Sequence[Any]) -> str | None:
    """Return the kind of categories: text, booleans, numbers; None for anything else.

    >>> kind_of(["a", "b"]), kind_of([True]), kind_of([1, 2.5]), kind_of([1, "a"])
    ('text', 'booleans', 'numbers', None)
    """
    kinds = {type(value) for value in values}
    if kinds <= {int, float}:
        return "numbers" if all(math.isfinite(v) for v in values if type(v) is float) else None
    return "text" if kinds == {str} else "booleans" if kinds == {bool} else None
