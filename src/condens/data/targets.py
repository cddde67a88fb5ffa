"""Tables of targets: numbers, some of them missing."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from condens.data.arrays import NUMBERS_EXPECTED, as_doubles, text_advice
from condens.data.frames import is_frame, kind_of
from condens.data.table import Table
from condens.errors import ArgumentError, ShapeError


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
    def of(cls, target: Any, name: str = "target", *, observed: bool = True) -> Self:
        """Read an array, a tensor, a list, a series or a frame.

        With `observed`, as for fitting, a target without any value is refused.
        """
        given, flat = _read(target, name)
        for place, codes in given.codes.items():
            text = [value for value in codes.values if isinstance(value, str)]
            raise ArgumentError(
                name,
                got=f"holds categories ({kind_of(codes.values)}) in {given.labels[place]}",
                expected=NUMBERS_EXPECTED,
                fix=text_advice(text) or "Encode it as numbers, or drop the column.",
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

    def in_order(self, names: Sequence[str]) -> Self:
        """Return the columns in the order of the given names, the same ones."""
        if self.names is None or self.names == tuple(names):
            return self
        order = [self.names.index(name) for name in names]
        return self._replace(values=self.values[:, order], names=tuple(names))


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
