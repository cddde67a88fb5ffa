"""Conditions, targets and weights, row by row."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from condens.data.arrays import ROWS_PER_BLOCK, as_numbers, dense
from condens.errors import ArgumentError, NotFiniteError, ShapeError


class Rows(NamedTuple):
    """The rows that a network is trained on; made by `Rows.of`, which checks them.

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
        condition: ArrayLike,
        target: ArrayLike,
        weights: ArrayLike | None = None,
        *,
        names: tuple[str, str, str] = ("condition", "target", "weights"),
    ) -> "Rows":
        """Return checked rows from tensors, arrays or lists; a flat target is one column.

        Errors call them by their `names`.
        """
        first, second, third = names
        condition, target = _columns(condition, first), _columns(target, second)
        if not target.is_floating_point():
            target = target.double()
        faults = (
            (
                target.dim() != 2,
                f"has shape {list(target.shape)}",
                "[rows, targets] was expected",
                "Pass one column for each target.",
            ),
            (
                len(condition) != len(target),
                f"has {len(target)} rows",
                f"{first} has {len(condition)}",
                "Pass one row for each.",
            ),
            (not len(target), "has no rows", "at least one is needed", "Pass some data."),
        )
        for wrong, got, expected, fix in faults:
            if wrong:
                raise ShapeError(second, got=got, expected=expected, fix=fix)
        _check_finite(
            first,
            condition,
            lambda some: ~some.isfinite(),
            "Drop such rows, or fill the entries and add a column that says which were filled.",
        )
        _check_finite(
            second, target, torch.isinf, "Drop the row, or mark the entry missing with NaN."
        )
        return cls(condition, target, None if weights is None else _weights(weights, target, third))

    @classmethod
    def given(cls, data: "Data", name: str = "data") -> "Rows":
        """Return `Rows` as they are; check (condition, target) or (condition, target, weights)."""
        if isinstance(data, Rows):
            return data
        # A tensor would unpack into its rows.
        if isinstance(data, tuple | list) and len(data) in (2, 3):
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

    @property
    def useful(self) -> Tensor:
        """Whether a row has an observed target and a weight above zero [n]."""
        seen = ~self.target.isnan().all(1)
        return seen if self.weights is None else seen & (self.weights > 0)

    def __len__(self) -> int:  # rows, not fields
        return self.target.shape[0]

    def take(self, index: Tensor) -> "Rows":
        """Return some of the rows, by their numbers, in this order and shape, or by a mask."""
        numbers = index.nonzero()[:, 0] if index.dtype == torch.bool else index
        # Several times as fast as brackets, which take one number at a time.
        return self._each(
            lambda part: part.index_select(0, numbers.flatten()).unflatten(0, numbers.shape)
        )

    def observed(self, name: str = "target") -> "Rows":
        """Return the rows with an observed target and a weight above zero.

        An error calls the target by its `name`.
        """
        useful = self.useful
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
        return self if device is None else self._each(lambda part: part.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Rows":
        weights = None if self.weights is None else change(self.weights)
        return Rows(change(self.condition), change(self.target), weights)

    def split(self, fraction: float, seed: int) -> tuple["Rows", "Rows"]:
        """Return the rest and a random fraction of the rows, at least one each of two or more."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        count = min(max(round(fraction * len(self)), 1), len(self) - 1)
        return self.take(order[count:]), self.take(order[:count])


# What users may pass as rows.
Data: TypeAlias = Rows | tuple[ArrayLike, ArrayLike] | tuple[ArrayLike, ArrayLike, ArrayLike | None]


def _tensor(values: Any, name: str) -> Tensor:
    if isinstance(values, Tensor):
        return dense(values, name)
    return torch.from_numpy(as_numbers(values, name))


def _columns(values: Any, name: str) -> Tensor:
    tensor = _tensor(values, name)
    return tensor if tensor.dim() > 1 else tensor.reshape(-1, 1)


def _weights(values: Any, target: Tensor, name: str) -> Tensor:
    weights = torch.atleast_1d(_tensor(values, name).to(target.device, torch.float64))
    if weights.shape != (len(target),):
        raise ShapeError(
            name,
            got=f"has shape {list(weights.shape)}",
            expected=f"there are {len(target)} rows",
            fix="Pass one weight a row.",
        )
    _check_finite(
        name,
        weights,
        lambda some: ~(some.isfinite() & (some >= 0)),
        "Use zero to leave a row out.",
        expected="finite numbers that are not negative were expected",
    )
    return weights


def _check_finite(
    name: str,
    values: Tensor,
    wrong: Callable[[Tensor], Tensor],
    fix: str,
    expected: str = "finite numbers were expected",
) -> None:
    for number, some in enumerate(values.split(ROWS_PER_BLOCK)):
        found = wrong(some)
        if not bool(found.any()):
            continue
        row, *others = (int(i) for i in found.nonzero()[0])
        place = [number * ROWS_PER_BLOCK + row, *others]
        where = f"at {place}" if len(place) > 1 else f"in row {place[0]}"
        raise NotFiniteError(
            name,
            got=f"is {values[tuple(place)]:g} {where}",
            expected=expected,
            fix=fix,
        )
