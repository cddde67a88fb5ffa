"""Tables as they are passed: numbers and coded categories of a condition, numbers of targets."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from condens.data.arrays import (
    NUMBERS_EXPECTED,
    Floats,
    Precision,
    as_doubles,
    as_floats,
    refuse_infinite,
    text_advice,
)
from condens.data.frames import Codes, columns_of, is_frame, kind_of
from condens.errors import ArgumentError, DimensionError, ShapeError

# What users may pass as a table: arrays, tensors, frames, and lists with None where one is missing.
TableLike: TypeAlias = ArrayLike | Sequence[object]


class Table(NamedTuple):
    """The columns of a table, numbers apart from categories.

    Args:
        numbers: [n, P], NaN where one is missing; columns without any value are among them. In
            double precision, or, by `read_compact`, in single precision.
        places: the positions of these P columns in the table.
        codes: the other columns, by position.
        labels: of the columns, in messages.
        names: of the columns, if all of them are text.
    """

    numbers: Floats
    places: list[int]
    codes: dict[int, Codes]
    labels: list[str]
    names: tuple[str, ...] | None

    @classmethod
    def read(cls, table: TableLike, name: str) -> Self:
        """Return a checked frame, array, tensor or list of rows; a `Table` as it is."""
        return cls._checked(table, name, np.float64)

    @classmethod
    def read_compact(cls, table: TableLike, name: str) -> Self:
        """Return the same in single precision, if that holds all numbers of the table exactly.

        An array may share its memory.

        >>> Table.read_compact(np.zeros((2, 1), np.float32), "X").numbers.dtype
        dtype('float32')
        """
        return cls._checked(table, name, None)

    @classmethod
    def _checked(cls, table: TableLike, name: str, precision: Precision | None) -> Self:
        if isinstance(table, cls):
            return table
        read = cls._of_frame if is_frame(table) else cls._of_array
        made = read(table, name, precision)
        rows, columns = len(made.numbers), len(made.labels)
        if not rows or not columns:
            # The words of scikit-learn, which users know and search for.
            raise ShapeError(
                f"{name} has 0 {'feature' if rows else 'sample'}(s) (shape=({rows}, {columns})) "
                "while a minimum of 1 is required. Pass some data."
            )
        refuse_infinite(made.numbers, [made.labels[place] for place in made.places], name)
        return made

    @classmethod
    def _of_frame(cls, frame: Any, name: str, precision: Precision | None) -> Self:
        names, columns = columns_of(frame, name)
        numbers = {i: c for i, c in enumerate(columns) if not isinstance(c, Codes)}
        codes = {i: c for i, c in enumerate(columns) if isinstance(c, Codes)}
        matrix = (
            np.stack(list(numbers.values()), 1, dtype=precision)
            if numbers
            else np.empty((len(frame), 0))
        )
        return cls(
            matrix,
            list(numbers),
            codes,
            [f"column {label!r}" for label in names],
            _text_names(names, name),
        )

    @classmethod
    def _of_array(cls, table: Any, name: str, precision: Precision | None) -> Self:
        matrix = as_floats(table, name) if precision is None else as_doubles(table, name)
        if matrix.ndim != 2:
            # The words of scikit-learn again.
            raise ShapeError(
                name,
                got=f"has shape {list(matrix.shape)}",
                expected="[rows, columns] was expected",
                fix="Reshape your data either using array.reshape(-1, 1) if your data has a single "
                "feature or array.reshape(1, -1) if it contains a single sample.",
            )
        places = list(range(matrix.shape[1]))
        return cls(matrix, places, {}, [f"column {place}" for place in places], None)


def _text_names(names: list[Any], name: str) -> tuple[str, ...] | None:
    """Return names if all are text, None if none is, and refuse a mixture, as scikit-learn does."""
    text = [isinstance(label, str) for label in names]
    if any(text) and not all(text):
        raise ArgumentError(
            name,
            got=f"has columns named by str and by {type(names[text.index(False)]).__name__}",
            expected="text alone was expected",
            fix=f"Rename them, such as by {name}.columns = {name}.columns.astype(str).",
        )
    return tuple(names) if names and all(text) else None


class TargetColumns(NamedTuple):
    """Targets as they were passed.

    Args:
        values: [n, D] in double precision; NaN where one was not observed.
        names: of the targets, if all of them are text.
        flat: whether they were passed without an axis for the targets.

    >>> TargetColumns.of([1, None, 3]).values.tolist()
    [[1.0], [nan], [3.0]]
    """

    values: Tensor
    names: tuple[str, ...] | None
    flat: bool

    @classmethod
    def of(cls, target: TableLike, name: str = "target", *, observed: bool = True) -> Self:
        """Read an array, a tensor, a list, a series or a frame.

        With `observed`, as for fitting, a target without any value is refused.
        """
        given, flat = _read(target, name)
        for place, codes in given.codes.items():
            raise ArgumentError(
                name,
                got=f"holds categories ({kind_of(codes.values)}) in {given.labels[place]}",
                expected=NUMBERS_EXPECTED,
                fix=text_advice([value for value in codes.values if isinstance(value, str)])
                or "Encode it as numbers, or drop the column.",
            )
        empty = np.isnan(given.numbers).all(0)
        if observed and empty.any():
            raise ArgumentError(
                name,
                got=f"has no value at all in {given.labels[int(empty.argmax())]}",
                expected="at least one is needed",
                fix="Drop the target.",
            )
        return cls(torch.from_numpy(given.numbers), given.names, flat)


def in_order(
    values: Tensor,
    theirs: tuple[str, ...] | None,
    ours: tuple[str, ...] | None,
    name: str,
    *,
    expected: str,
    fix: str,
) -> Tensor:
    """Return values [..., D] with their columns in our order, where both have names.

    >>> in_order(torch.tensor([1, 2]), ("b", "a"), ("a", "b"), "y", expected="…", fix="…")
    tensor([2, 1])
    """
    if ours is None or theirs is None or ours == theirs:
        return values
    if sorted(ours) != sorted(theirs):
        raise DimensionError(
            name, got=f"has columns {', '.join(theirs)}", expected=expected, fix=fix
        )
    return values[..., [theirs.index(label) for label in ours]]


def _read(target: Any, name: str) -> tuple[Table, bool]:
    if is_frame(target):
        return Table.read(target, name), False
    if hasattr(type(target), "to_frame"):
        given = Table.read(target.to_frame(), name)
        # polars calls a series without a name "".
        return given._replace(names=given.names if given.names != ("",) else None), True
    array = as_doubles(target, name)
    if array.ndim not in (1, 2):
        raise ShapeError(
            name,
            got=f"has shape {list(array.shape)}",
            expected="[rows] or [rows, targets] was expected",
            fix="Pass one column for each target.",
        )
    return Table.read(array[:, None] if array.ndim == 1 else array, name), array.ndim == 1
