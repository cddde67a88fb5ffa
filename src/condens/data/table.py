"""Tables as they are read: a matrix of numbers, and coded columns of categories."""

from typing import Any, NamedTuple, Self

import numpy as np

from condens.data.arrays import Doubles, as_doubles, refuse_infinite
from condens.data.frames import Codes, columns_of, is_frame
from condens.errors import ArgumentError, ShapeError


class Table(NamedTuple):
    """The columns of a table, numbers apart from categories.

    Args:
        numbers: [n, P], NaN where one is missing; columns without any value are among them.
        places: the positions of these P columns in the table.
        codes: the other columns, by position.
        labels: of the columns, in messages.
        names: of the columns, if all of them are text.
    """

    numbers: Doubles
    places: list[int]
    codes: dict[int, Codes]
    labels: list[str]
    names: tuple[str, ...] | None

    @classmethod
    def read(cls, table: Any, name: str) -> Self:
        """Return a checked frame, array, tensor or list of rows; a `Table` as it is."""
        if isinstance(table, cls):
            return table
        made = cls._of_frame(table, name) if is_frame(table) else cls._of_array(table, name)
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
    def _of_frame(cls, frame: Any, name: str) -> Self:
        names, columns = columns_of(frame, name)
        numbers = {i: c for i, c in enumerate(columns) if not isinstance(c, Codes)}
        codes = {i: c for i, c in enumerate(columns) if isinstance(c, Codes)}
        matrix = np.column_stack(list(numbers.values())) if numbers else np.empty((len(frame), 0))
        labels = [f"column {label!r}" for label in names]
        return cls(matrix, list(numbers), codes, labels, _text_names(names, name))

    @classmethod
    def _of_array(cls, table: Any, name: str) -> Self:
        matrix = as_doubles(table, name)
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
        other = type(names[text.index(False)]).__name__
        raise ArgumentError(
            name,
            got=f"has columns named by str and by {other}",
            expected="text alone was expected",
            fix=f"Rename them, such as by {name}.columns = {name}.columns.astype(str).",
        )
    return tuple(names) if names and all(text) else None
