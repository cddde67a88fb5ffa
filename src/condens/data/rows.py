"""Conditions, targets and weights, row by row."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condens.data.arrays import NUMBERS_EXPECTED, as_array
from condens.errors import ArgumentError, NotFiniteError, ShapeError


class Rows(NamedTuple):
    """The rows that a network is trained on, checked by `Rows.of`.

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

        Errors call them by their `names`.
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
        fix = "Drop such rows, or fill the entries and add a column that says which were filled."
        _check_finite(first, condition, ~condition.isfinite(), fix)
        fix = "Drop the row, or mark the entry missing with NaN."
        _check_finite(second, target, target.isinf(), fix)
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
    def normalised_weights(self) -> Tensor | None:
        """The weights [n] with sum 1; None where every row counts once."""
        if self.weights is None:
            return None
        # Divided by the largest first: a sum of large weights would overflow.
        relative = self.weights / self.weights.amax()
        return relative / relative.sum()

    def __len__(self) -> int:  # rows, not fields
        return self.target.shape[0]

    def take(self, index: Tensor) -> "Rows":
        """Return some of the rows, in this order."""
        weights = None if self.weights is None else self.weights[index]
        return Rows(self.condition[index], self.target[index], weights)

    def observed(self, name: str = "target") -> "Rows":
        """Return the rows with an observed target and a weight above zero.

        An error calls the target by its `name`.
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

    def to(self, device: torch.device | None) -> "Rows":
        """Return the rows on a device; None for where they are."""
        if device is None:
            return self
        weights = None if self.weights is None else self.weights.to(device)
        return Rows(self.condition.to(device), self.target.to(device), weights)

    def split(self, fraction: float, seed: int) -> tuple["Rows", "Rows"]:
        """Return the rest and a random fraction of the rows, at least one each of two or more."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self), generator=generator)
        count = min(max(round(fraction * len(self)), 1), len(self) - 1)
        return self.take(order[count:]), self.take(order[:count])


def _tensor(values: Any, name: str) -> Tensor:
    if not isinstance(values, Tensor):
        values = torch.from_numpy(_native(as_array(values, name), name))
    elif values.is_complex() or values.is_meta:
        raise _no_numbers(name, "no data" if values.is_meta else values.dtype)
    values = values.detach()
    return values if values.dim() else values.unsqueeze(0)


def _native(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Return what torch takes: the native byte order, no long doubles, nothing read-only."""
    if array.dtype.kind not in "fiub":
        raise _no_numbers(name, array.dtype)
    native = np.dtype(np.float64) if array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
    return np.require(array, native, ["C", "W"])


def _no_numbers(name: str, dtype: object) -> ArgumentError:
    return ArgumentError(
        name,
        got=f"holds {dtype}",
        expected=NUMBERS_EXPECTED,
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
    wrong = ~(weights.isfinite() & (weights >= 0))
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise NotFiniteError(
            name,
            got=f"is {weights[row]:g} in row {row}",
            expected="finite numbers that are not negative were expected",
            fix="Use zero to leave a row out.",
        )
    return weights


def _check_finite(name: str, values: Tensor, wrong: Tensor, fix: str) -> None:
    if bool(wrong.any()):
        place = [int(i) for i in wrong.nonzero()[0]]
        raise NotFiniteError(
            name,
            got=f"is {values[tuple(place)]:g} at {place}",
            expected="finite numbers were expected",
            fix=fix,
        )
