"""Conditions, targets and weights of the same rows, in memory."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condens.errors import ArgumentError, NotFiniteError, ShapeError


class Rows(NamedTuple):
    """What a network is trained on, row by row.

    Args:
        condition: [n, C], or whatever the backbone reads with the rows as first axis.
        target: [n, D]; an entry that is NaN was not observed.
        weights: [n], not negative; None where every row counts once.

    >>> Rows.of([[0.0], [1.0]], [[1.0, float("nan")], [2.0, 3.0]]).target.shape
    torch.Size([2, 2])
    """

    condition: Tensor
    target: Tensor
    weights: Tensor | None = None

    @classmethod
    def of(
        cls,
        condition: Any,
        target: Any,
        weights: Any = None,
        *,
        names: tuple[str, str, str] = ("condition", "target", "weights"),
    ) -> "Rows":
        """Return checked rows from tensors, arrays or lists; a flat target is one column.

        `names` is what the errors call them.
        """
        first, second, third = names
        condition, target = _tensor(condition, first), _tensor(target, second)
        if condition.dim() == 1:
            condition = condition.unsqueeze(1)
        if target.dim() == 1:
            target = target.unsqueeze(1)
        if not target.is_floating_point():
            target = target.double()
        if target.dim() != 2:
            raise ShapeError(
                second,
                got=f"has shape {list(target.shape)}",
                expected="[rows, targets] was expected",
                fix="Pass one column for each target.",
            )
        if len(condition) != len(target):
            raise ShapeError(
                second,
                got=f"has {len(target)} rows",
                expected=f"{first} has {len(condition)}",
                fix="Pass one row for each.",
            )
        if not len(target):
            raise ShapeError(
                second, got="has no rows", expected="at least one is needed", fix="Pass some data."
            )
        _check_finite(condition, target, names)
        return cls(condition, target, None if weights is None else _weights(weights, target, third))

    @classmethod
    def given(cls, data: Any, name: str = "data") -> "Rows":
        """Return checked rows from `Rows`, (condition, target) or (condition, target, weights)."""
        # A tensor would unpack into its rows.
        if isinstance(data, Rows) or (isinstance(data, tuple | list) and len(data) in (2, 3)):
            return cls.of(*data)
        raise ArgumentError(
            name,
            got=f"is a {type(data).__name__}",
            expected="(condition, target) or (condition, target, weights) was expected",
            fix="Pass these.",
        )

    @property
    def shares(self) -> Tensor | None:
        """The weights [n] as parts of one; None where every row counts once."""
        if self.weights is None:
            return None
        # Of the largest first: a sum of large weights would overflow.
        relative = self.weights / self.weights.amax()
        return relative / relative.sum()

    def __len__(self) -> int:  # rows, not fields
        return self.target.shape[0]

    def take(self, index: Tensor) -> "Rows":
        """Return some of the rows, in this order."""
        weights = None if self.weights is None else self.weights[index]
        return Rows(self.condition[index], self.target[index], weights)

    def observed(self, name: str = "target") -> "Rows":
        """Return the rows that tell something: a target observed, a weight that is not zero.

        The target is called by its `name` where there are none.
        """
        useful = ~self.target.isnan().all(1)
        if self.weights is not None:
            useful &= self.weights > 0
        if bool(useful.all()):
            return self
        if not bool(useful.any()):
            raise ArgumentError(
                name,
                got="has no row that counts",
                expected="at least one is needed",
                fix="Pass rows with an observed target and a weight above zero.",
            )
        return self.take(useful.nonzero().flatten())

    def split(self, share: float, seed: int) -> tuple["Rows", "Rows"]:
        """Return the rest and a random share of the rows, at least one each if there are two."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self), generator=generator)
        count = min(max(round(share * len(self)), 1), len(self) - 1)
        return self.take(order[count:]), self.take(order[:count])


def _tensor(values: Any, name: str) -> Tensor:
    if not isinstance(values, Tensor):
        values = torch.from_numpy(_array(values, name))
    elif values.is_complex() or values.is_meta:
        raise _no_numbers(name, "no data" if values.is_meta else values.dtype)
    values = values.detach()
    return values if values.dim() else values.unsqueeze(0)


def _array(values: Any, name: str) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ShapeError(
            name,
            got="has rows of different lengths",
            expected="a table was expected",
            fix="Make every row as long.",
        ) from error
    if array.dtype.kind not in "fiub":
        raise _no_numbers(name, array.dtype)
    # torch takes the native byte order, no long doubles, and nothing that may not be written.
    native = np.dtype(np.float64) if array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
    return np.require(array, native, ["C", "W"])


def _no_numbers(name: str, dtype: object) -> ArgumentError:
    return ArgumentError(
        name,
        got=f"holds {dtype}",
        expected="real numbers were expected",
        fix="Encode text and dates as numbers.",
    )


def _weights(values: Any, target: Tensor, name: str) -> Tensor:
    weights = _tensor(values, name).to(target.device, torch.float64)
    if weights.shape != (len(target),):
        raise ShapeError(
            name,
            got=f"has shape {list(weights.shape)}",
            expected=f"there are {len(target)} rows",
            fix="Pass one weight a row.",
        )
    if not bool((weights.isfinite() & (weights >= 0)).all()):
        row = int((~(weights.isfinite() & (weights >= 0))).nonzero()[0])
        raise NotFiniteError(
            name,
            got=f"is {weights[row]:g} in row {row}",
            expected="finite numbers that are not negative were expected",
            fix="Use zero to leave a row out.",
        )
    return weights


def _check_finite(condition: Tensor, target: Tensor, names: tuple[str, str, str]) -> None:
    for name, values, bad, remedy in (
        (
            names[0],
            condition,
            ~condition.isfinite(),
            "Drop such rows, or fill the entries and add a column that tells which were filled.",
        ),
        (names[1], target, target.isinf(), "Drop the row, or mark the entry missing with NaN."),
    ):
        if bool(bad.any()):
            place = [int(i) for i in bad.nonzero()[0]]
            raise NotFiniteError(
                name,
                got=f"is {values[tuple(place)]:g} at {place}",
                expected="finite numbers were expected",
                fix=remedy,
            )
