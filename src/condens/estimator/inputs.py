"""Tables X and y: what a fit learns about their columns, how they are read, which are held out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.model_selection import GroupShuffleSplit
from torch import Tensor

from condens.data import Rows, Table, TableEncoder, TableLike, TargetColumns
from condens.data.groups import Groups, number_groups
from condens.data.table import in_order
from condens.errors import ArgumentError, ShapeError
from condens.estimator.construction import Splitter, announced_transforms
from condens.persistence.header import reason
from condens.training.batches import random_folds
from condens.transforms import Transform, choice

NAMES = ("X", "y", "sample_weight")
VALIDATION_NAMES = ("validation_data[0]", "validation_data[1]", "validation_data[2]")


@dataclass(frozen=True)
class Inputs:
    """The columns of X and y that a model was fitted on.

    Args:
        encoder: turns X into what the network reads.
        target_names: of the columns of y; None if it had none.
        flat: whether y had no axis for the targets.
        transforms: of the targets, one for each.
    """

    encoder: TableEncoder
    target_names: tuple[str, ...] | None
    flat: bool
    transforms: tuple[Transform, ...]

    @classmethod
    def fit(
        cls,
        X: TableLike,  # noqa: N803
        y: TableLike,
        sample_weight: ArrayLike | None,
        target_transform: choice.TargetTransform,
    ) -> tuple[Self, Rows]:
        """Learn the columns; return them and the rows."""
        table = Table.read_compact(X, "X")
        target = _read_targets(y, "y")
        encoder = TableEncoder.fit(table, "X")
        rows = Rows.of(encoder.encode(table, "X"), target.values, sample_weight, names=NAMES)
        seen = target._replace(values=rows.target[rows.useful])
        transforms = announced_transforms(target_transform, seen)
        inputs = cls(encoder, target.names, target.flat, transforms)
        return inputs, inputs.supported(rows)

    @property
    def labels(self) -> Sequence[str | int]:
        """The names of the targets, or their numbers."""
        return self.target_names or range(len(self.transforms))

    def rows(
        self,
        X: TableLike | Table,  # noqa: N803
        y: TableLike,
        sample_weight: ArrayLike | None = None,
        *,
        names: tuple[str, str, str] = NAMES,
    ) -> Rows:
        """Return checked rows: X encoded, the columns of y in the order of the fit."""
        return Rows.of(
            self.encoder.encode(X, names[0]),
            self._target(y, names[1]),
            sample_weight,
            names=names,
        )

    def validation(self, data: Any) -> Rows:
        """Return the rows of `validation_data`: (X, y) or (X, y, sample_weight)."""
        if not isinstance(data, tuple | list) or len(data) not in (2, 3):
            raise ArgumentError(
                "validation_data",
                got=f"is a {type(data).__name__}",
                expected="(X, y) or (X, y, sample_weight) was expected",
                fix="Pass a tuple of these.",
            )
        rows = self.rows(*data, names=VALIDATION_NAMES)
        return self.supported(rows, VALIDATION_NAMES[1]).observed(VALIDATION_NAMES[1])

    def supported(self, rows: Rows, name: str = "y") -> Rows:
        """Return the rows; refuse targets outside the support of their transform."""
        for label, transform, column in zip(
            self.labels, self.transforms, rows.target.unbind(1), strict=True
        ):
            transform.check(f"{name}, column {label!r},", column)
        return rows

    def _target(self, y: TableLike, name: str) -> Tensor:
        """Return targets [n, D], taken by their names where both tables have them."""
        given = _read_targets(y, name, observed=False)
        count, fitted, ours = given.values.shape[1], len(self.transforms), self.target_names
        listed = "" if ours is None else f" ({', '.join(ours)})"
        expected = f"the model was fitted on {fitted} target(s){listed}"
        fix = "Pass those columns, or fit again."
        if count != fitted:
            raise ShapeError(name, got=f"has {count} column(s)", expected=expected, fix=fix)
        return in_order(given.values, given.names, ours, name, expected=expected, fix=fix)


def _read_targets(y: TableLike, name: str, *, observed: bool = True) -> TargetColumns:
    if y is None:
        # The words of scikit-learn, which users know and search for.
        raise ArgumentError(
            "MDNRegressor requires y to be passed, but the target y is None. Pass the targets."
        )
    return TargetColumns.of(y, name, observed=observed)


# Rows held out for validation, adjustment and calibration.

# Fraction of the rows, or of the groups, that spread and tail are set on, and how many of either
# there must be: with fewer, training needs them more.
ADJUSTMENT_FRACTION = 0.05
MIN_ADJUSTMENT_ROWS, MIN_ADJUSTMENT_GROUPS = 200, 20


class Division(NamedTuple):
    """The rows of a fit, divided; `rows_left_out` were not observed, or no part of a split.

    `calibration_groups` are the numbers of the groups of the rows to calibrate on, if rows have
    groups. `folds` are those of the rows that members validate on, if they go by groups.
    """

    rows: Rows
    validation: Rows | None
    adjustment: Rows | None
    calibration: Rows | None
    rows_left_out: int
    calibration_groups: Tensor | None = None
    folds: Tensor | None = None


def divide(
    given: Rows,
    groups: Groups | None,
    *,
    splitter: Splitter | None,
    calibration_fraction: float,
    validation_fraction: float,
    validation: Rows | None,
    seed: int,
    adjusts: bool = True,
    n_members: int = 1,
    again: bool = False,
) -> Division:
    """Hold out rows for calibration, then for adjustment if it `adjusts`, then for validation.

    Without splitter and groups the training loop takes validation rows itself, at random; and
    several members validate on different groups, while a splitter holds out rows for all. A
    splitter knows of no third part: there half of the validation rows are for adjustment. Where
    the same rows are to be held out `again` in a later fit, a splitter must not draw others.
    """
    random = splitter is None and groups is None
    # A splitter sees all rows, as the user counts them.
    rows, calibration, count = given.observed("y") if random else given, None, len(given)
    validates = validation is None and validation_fraction > 0
    if again and splitter is not None and (calibration_fraction or validates):
        _check_repeats(rows, groups, splitter)
    apart: Groups | None = None
    adjustment: Rows | None = None
    if calibration_fraction:
        rows, groups, calibration, apart = _hold_out(
            rows, groups, splitter, calibration_fraction, seed
        )
        count -= len(calibration)
    if adjusts and splitter is None and _are_enough(rows, groups, 1.0):
        rows, groups, adjustment, _ = _hold_out(rows, groups, None, ADJUSTMENT_FRACTION, seed)
        count -= len(adjustment)
    folds: Tensor | None = None
    if validates and n_members > 1 and splitter is None and groups is not None:
        folds = _group_folds(groups[rows.useful.numpy()], validation_fraction, seed)
    elif validates and not random:
        rows, groups, validation, others = _hold_out(
            rows, groups, splitter, validation_fraction, seed
        )
        count -= len(validation)
        if adjusts and splitter is not None and _are_enough(validation, others, 0.2):
            validation, _, adjustment, _ = _hold_out(validation, others, None, 0.5, seed)
    rows = rows.observed("y")
    numbers = None if apart is None else number_groups(apart)
    return Division(rows, validation, adjustment, calibration, count - len(rows), numbers, folds)


def _are_enough(rows: Rows, groups: Groups | None, fraction: float) -> bool:
    """Tell whether a part of the rows may be held out for adjustment, from a fraction of all."""
    some = groups is None or len(set(groups)) >= fraction * MIN_ADJUSTMENT_GROUPS
    return some and len(rows) >= fraction * MIN_ADJUSTMENT_ROWS


def _group_folds(groups: Groups, fraction: float, seed: int) -> Tensor:
    """Return the fold of each row [n], whole groups in each, a fraction of the groups at random."""
    numbers = number_groups(groups)
    count = int(numbers.max()) + 1
    if count == 1:
        raise ArgumentError(
            "groups",
            got=f"cannot divide {len(groups)} rows (all are of one group)",
            expected="validation and calibration rows are held out by it",
            fix="Pass more groups.",
        )
    return random_folds(count, fraction, seed)[0][numbers]


def _last_split(rows: Rows, groups: Groups | None, splitter: Splitter) -> list[NDArray[np.int64]]:
    """Return the numbers of the training rows and of the test rows."""
    *_, (stay, held) = splitter.split(rows.condition.numpy(), rows.target.numpy(), groups)
    return [np.asarray(part, dtype=np.int64) for part in (stay, held)]


def _check_repeats(rows: Rows, groups: Groups | None, splitter: Splitter) -> None:
    """Refuse a splitter that draws other rows in every fit."""
    try:
        one, other = (_last_split(rows, groups, splitter) for _ in range(2))
    except Exception:  # code of others, and told of where rows are held out
        return
    if not all(map(np.array_equal, one, other)):
        raise ArgumentError(
            "splitter",
            got="holds out other rows every time",
            expected="a fit that goes on, by directory or warm_start, needs the same ones again",
            fix="Give the splitter a number as its random_state, such as random_state=0.",
        )


def _hold_out(
    rows: Rows, groups: Groups | None, splitter: Splitter | None, fraction: float, seed: int
) -> tuple[Rows, Groups | None, Rows, Groups | None]:
    """Return the rows that stay, their groups, the rows that are held out, and their groups.

    These are the test rows of the splitter's last split, and its training rows stay; without a
    splitter, a random fraction of the groups; without groups, of the rows.
    """
    if splitter is None and groups is None:
        rest, held_out = rows.split(fraction, seed)
        return rest, None, held_out, None
    subject = "groups" if splitter is None else "splitter"
    if splitter is None:
        splitter = GroupShuffleSplit(1, test_size=fraction, random_state=seed)
    try:
        stay, held = _last_split(rows, groups, splitter)
        counts = np.bincount(np.concatenate([stay, held]), minlength=len(rows))
    except Exception as error:  # code of others
        raise ArgumentError(
            subject,
            got=f"cannot divide {len(rows)} rows ({reason(error).rstrip('.')})",
            expected="validation and calibration rows are held out by it",
            fix="Pass more groups, the groups= that the splitter needs, or another splitter.",
        ) from error
    if len(counts) > len(rows) or counts.max() > 1 or not len(stay) or not len(held):
        raise ArgumentError(
            subject,
            got=f"gives {len(stay)} training and {len(held)} test rows of {len(rows)}",
            expected="some of each, none of them twice, were expected",
            fix="Pass a splitter that divides any number of rows, such as GroupShuffleSplit().",
        )
    kept, out = (rows.take(torch.from_numpy(part)) for part in (stay, held))
    if groups is None:
        return kept, None, out.observed("y"), None
    return kept, groups[stay], out.observed("y"), groups[held][out.useful.numpy()]
