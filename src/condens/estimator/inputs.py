"""What a model reads: tables X and y, checked against those of its fit."""

import warnings
from typing import Any

from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from condens.data import Rows, TableEncoder, TargetColumns
from condens.errors import ArgumentError, DimensionError, ShapeError, TargetWarning
from condens.estimator.construction import choose_transforms, transforms_asked_for
from condens.transforms import Transform, choice


class Tables:
    """Tables of a model: what it has learnt of their columns, and how it reads new ones.

    With `reset` columns are learnt; without, they must be those that were.
    """

    target_transform: Any
    encoder_: TableEncoder
    transforms_: tuple[Transform, ...]
    n_targets_: int
    target_names_: tuple[str, ...] | None
    flat_: bool

    def _condition(self, X: Any, *, reset: bool = False) -> Tensor:  # noqa: N803
        """Return rows as the network reads them [n, C]."""
        if reset:
            self.encoder_ = TableEncoder.fit(X, "X")
        else:
            check_is_fitted(self)
        if getattr(X, "ndim", 2) == 2:
            try:
                validate_data(self, X, reset=reset, skip_check_array=True)
            except ValueError as error:
                told = str(error).rstrip().rstrip(".")
                raise ShapeError(f"{told}. Pass {self.encoder_.described}, or fit again.") from None
            except (TypeError, LookupError):  # what is no table is refused below, by name
                pass
        return self.encoder_.encode(X, "X")

    def _rows(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> Rows:  # noqa: N803
        """Return checked rows, X encoded."""
        if y is None:
            came = "requires y to be passed, but the target y is None"
            raise ArgumentError(f"{type(self).__name__} {came}. Pass the targets.")
        condition = self._condition(X, reset=reset)
        target = TargetColumns.of(y, "y", observed=reset)
        if reset:
            self.n_targets_, self.flat_ = target.values.shape[1], target.flat
            self.target_names_ = target.names
            self.transforms_ = self._choose_transforms(target.values)
        else:
            target = self._those_fitted(target)
        return Rows.of(condition, target.values, sample_weight, names=("X", "y", "sample_weight"))

    def _those_fitted(self, target: TargetColumns) -> TargetColumns:
        """Return targets in the order of the fit, by their names if they have any."""
        count, names = target.values.shape[1], target.names
        ours = f"{self.n_targets_} target(s)"
        if self.target_names_ is not None:
            ours += f" ({', '.join(self.target_names_)})"
        expected, remedy = f"the model was fitted on {ours}", "Pass those columns, or fit again."
        if count != self.n_targets_:
            raise ShapeError("y", got=f"has {count} column(s)", expected=expected, fix=remedy)
        if names is None or self.target_names_ is None:
            return target
        if set(names) != set(self.target_names_):
            raise DimensionError(
                "y", got=f"has columns {', '.join(names)}", expected=expected, fix=remedy
            )
        return target.in_order(self.target_names_)

    def _check_support(self, target: Tensor) -> None:
        """Refuse targets that have no density."""
        labels = self.target_names_ or range(self.n_targets_)
        for label, own, column in zip(labels, self.transforms_, target.unbind(1), strict=True):
            own.check(f"y, column {label!r},", column)

    def _choose_transforms(self, target: Tensor) -> tuple[Transform, ...]:
        """Return the map of each target, from what was asked for or from the data."""
        labels = self.target_names_ or range(self.n_targets_)
        proposed: dict[int, Transform] = {}

        def propose(place: int) -> Transform:
            return proposed.setdefault(place, choice.propose(target[:, place]))

        transforms = choose_transforms(self.target_transform, labels, propose)
        if proposed:
            told = ", ".join(f"{labels[place]!r}: {own}" for place, own in proposed.items())
            warnings.warn(
                f"target_transform: 'auto' chose {{{told}}}. Pass these to be sure of them.",
                stacklevel=6,
            )
        asked = transforms_asked_for(self.target_transform, labels)
        heavy = [
            repr(label)
            for label, given, column in zip(labels, asked, target.unbind(1), strict=True)
            if given is None and choice.spans_decades(column)
        ]
        if heavy:
            warnings.warn(
                f"y is positive in column(s) {', '.join(heavy)} and reaches over orders of "
                "magnitude, which a mixture of a few Gaussians hardly does. Pass "
                "target_transform='positive', in {name: …} for some columns, or 'real' to leave "
                "it as it is.",
                TargetWarning,
                stacklevel=6,
            )
        return transforms
