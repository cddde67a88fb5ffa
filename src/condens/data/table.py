"""Tables as they are read: a matrix of numbers, and columns of categories."""

from typing import Any, NamedTuple, Self

import numpy as np

from condens.data.arrays import Doubles, as_doubles, refuse_infinite
from condens.data.frames import Codes, columns_of, is_frame
from condens.errors import ArgumentError, ShapeError


class Table(NamedTuple):
    """The columns of a table, numbers apart from categories.

    Args:
        numbers: [n, P], NaN where one is missing; columns without any value are among them.
        places: which columns of the table these are, P of them.
        codes: the other columns, by place.
        labels: what messages call the columns.
        names: of the columns, where all of them are text.
    """

    numbers: Doubles
    places: list[int]
    codes: dict[int, Codes]
    labels: list[str]
    names: tuple[str, ...] | None

    @classmethod
    def read(cls, table: Any, name: str) -> Self:
        """Return a frame, an array, a tensor or a list of rows, checked."""
        made = cls._of_frame(table, name) if is_frame(table) else cls._of_array(table, name)
        rows, columns = len(made.numbers), len(made.labels)
        if not rows or not columns:
            empty = "0 feature(s)" if rows else "0 sample(s)"
            # The words of scikit-learn, which users know and look for.
            came = f"has {empty} (shape=({rows}, {columns})) while a minimum of 1 is required"
            raise ShapeError(f"{name} {came}. Pass some data.")
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
            # Scikit-learn's words again.
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
    """Return names that are text, or None where none is, as scikit-learn does."""
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
