"""The record of a training run, epoch by epoch."""

import csv
import io
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, get_args, get_origin

from condens.errors import (
    ArgumentError,
    CollapsedComponentsWarning,
    CondensWarning,
    IllConditionedWarning,
    UnexplainedRowsWarning,
    UnusedComponentsWarning,
)
from condens.scalars import as_choice, as_real, as_truth, as_whole, decode_float, encode_floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

_FIX = "Pass what to_dict returned."
_WARNINGS: dict[str, type[CondensWarning]] = {
    category.__name__: category
    for category in (
        UnexplainedRowsWarning,
        IllConditionedWarning,
        CollapsedComponentsWarning,
        UnusedComponentsWarning,
    )
}


@dataclass
class Epoch:
    """One pass over the data.

    Losses are mean negative log-likelihoods in the target's units; the training loss is the
    mean over the epoch's batches, noise included, at the weights of each step. Those of an
    ensemble are means over its members, each on its own rows: not the loss of the ensemble, whose
    average density is better than they are on average. So are the numbers about components, which
    are those of every epoch at first, and of every fifth one later. A member that has stopped
    counts with its best validation loss and its last usage, and in nothing else.
    """

    epoch: int
    steps: int
    rate: float
    train_nll: float
    validation_nll: float
    seconds: float
    skipped_steps: int
    used_components: float
    distinct_components: float
    largest_condition_number: float
    unexplained_fraction: float
    usage: list[float] = field(default_factory=list)


@dataclass
class Adjustment:
    """What `condens.training.adjust` found on held-out rows.

    Args:
        spread: t, by which the deviations of all components are multiplied.
        standard_error: of log t as the rows alone suggest it, before it is drawn towards what is
            usual; NaN where it was not fitted.
        tail: ε, the weight of the tail.
        nll_before: mean negative log-likelihood of the rows without both, in the target's units;
            NaN where there were no rows.
        nll_after: the same with both.
        rows: how many rows were held out for it.
    """

    spread: float
    standard_error: float
    tail: float
    nll_before: float
    nll_after: float
    rows: int


@dataclass
class History:
    """The epochs of a run, the best of them, and its warnings.

    Args:
        epochs: one `Epoch` for each pass over the data that ended.
        best_epoch: the epoch whose weights the network has; −1 for those before the first. Of an
            ensemble, the last of its members'.
        best_nll: its validation loss; of an ensemble, the mean of its members', each on its own
            validation rows and in its best epoch: not the loss of the ensemble.
        stopped: why the run ended: "all epochs", "no better validation loss", "callback",
            "interrupted" or "failed".
        warnings: texts of the warnings about the trained network.
        warning_classes: names of their classes in `condens.errors`.
        rows, validation_rows: how many rows were trained and validated on; of an ensemble, by
            each member.
        rows_left_out: rows with no target observed, or with a weight of zero.
        member_epochs, member_nlls: the best epoch of each member, and its validation loss.
        adjustment: the spread and the tail that were set after training; None for none.
    """

    epochs: list[Epoch] = field(default_factory=list)
    best_epoch: int = -1
    best_nll: float = float("inf")
    stopped: str = ""
    warnings: list[str] = field(default_factory=list)
    warning_classes: list[str] = field(default_factory=list)
    rows: int = 0
    validation_rows: int = 0
    rows_left_out: int = 0
    member_epochs: list[int] = field(default_factory=list)
    member_nlls: list[float] = field(default_factory=list)
    adjustment: Adjustment | None = None

    def __repr__(self) -> str:
        """Summarise the run in one line; `table` has the rest.

        >>> History(rows=90, validation_rows=10)
        History(epochs=0, best_epoch=-1, best_nll=inf, stopped='', rows=90, validation_rows=10)
        """
        left_out, warned = self.rows_left_out, len(self.warnings)
        return (
            f"{type(self).__name__}(epochs={len(self.epochs)}, best_epoch={self.best_epoch}, "
            f"best_nll={self.best_nll:.6g}, stopped={self.stopped!r}, rows={self.rows}, "
            f"validation_rows={self.validation_rows}"
            + (f", rows_left_out={left_out}" if left_out else "")
            + (f", warnings={warned})" if warned else ")")
        )

    def table(self) -> list[dict[str, Any]]:
        """Return one flat dictionary for each epoch, with the usage as usage_0, usage_1 and on."""
        return [
            {name: value for name, value in vars(epoch).items() if name != "usage"}
            | {f"usage_{k}": part for k, part in enumerate(epoch.usage)}
            for epoch in self.epochs
        ]

    def to_csv(self) -> str:
        """Return the table as text."""
        lines = self.table()
        text = io.StringIO()
        writer = csv.DictWriter(text, lines[0].keys() if lines else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return text.getvalue()

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """Draw both losses and mark the best epoch, on given axes or those of a new figure."""
        from condens.plots import plot_losses

        return plot_losses(
            [epoch.train_nll for epoch in self.epochs],
            [epoch.validation_nll for epoch in self.epochs],
            best_epoch=self.best_epoch,
            axes=axes,
        )

    def plot_diagnostics(self, figure: "Figure | SubFigure | None" = None) -> "Figure | SubFigure":
        """Draw the losses, the use of the components and signs of trouble, epoch by epoch."""
        from condens.plots import training_diagnostics

        return training_diagnostics(self.table(), best_epoch=self.best_epoch, figure=figure)

    def warn(self, *, stacklevel: int = 1, ignore: tuple[type[CondensWarning], ...] = ()) -> None:
        """Issue the warnings of the run, except those of some classes.

        >>> history = History(warnings=["…"], warning_classes=["UnusedComponentsWarning"])
        >>> history.warn(ignore=(UnusedComponentsWarning,))
        """
        for text, name in zip(self.warnings, self.warning_classes, strict=True):
            if not issubclass(_WARNINGS[name], ignore):
                warnings.warn(text, _WARNINGS[name], stacklevel=stacklevel + 1)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON, in which NaN and infinity are words."""
        return {
            **record_to_dict(self),
            "epochs": [record_to_dict(epoch) for epoch in self.epochs],
            "adjustment": None if self.adjustment is None else record_to_dict(self.adjustment),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "History":
        """Return the history of what `to_dict` returned; anything else is refused by name."""
        history = cls(**record_from_dict(cls, values))
        history.epochs = [Epoch(**record_from_dict(Epoch, epoch)) for epoch in history.epochs]
        if history.adjustment is not None:
            history.adjustment = Adjustment(**record_from_dict(Adjustment, history.adjustment))
        for name in history.warning_classes:
            as_choice("warning_classes", name, tuple(_WARNINGS), fix=_FIX)
        if len(history.warning_classes) != len(history.warnings):
            raise ArgumentError(
                "warning_classes",
                got=f"has {len(history.warning_classes)} names",
                expected=f"there are {len(history.warnings)} warnings",
                fix=_FIX,
            )
        return history


def record_to_dict(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass instance as JSON can hold them."""
    return {
        f.name: encode_floats(_plain(f.name, getattr(record, f.name), f.type))
        for f in fields(record)
    }


def record_from_dict(kind: type[Any], values: Any) -> dict[str, Any]:
    """Return the fields of a dataclass from what JSON held."""
    subject, types = kind.__name__.lower(), {f.name: f.type for f in fields(kind)}
    _expect(subject, values, Mapping, "a dictionary")
    if values.keys() != types.keys():
        raise ArgumentError(
            subject,
            got=f"has {sorted(map(str, values))[:20]}",
            expected=f"{', '.join(types)} were expected",
            fix=_FIX,
        )
    return {name: _plain(name, values[name], of) for name, of in types.items()}


def _plain(name: str, value: Any, kind: Any) -> Any:
    """Return the plain value of a field of some type."""
    if get_origin(kind) is not list:
        return _CHECKS[kind](name, value)
    _expect(name, value, (list, tuple), "a list")
    return [_plain(name, part, get_args(kind)[0]) for part in value]


def _expect(name: str, value: Any, kind: type | tuple[type, ...], expected: str) -> Any:
    if not isinstance(value, kind):
        raise ArgumentError(
            name, got=f"is {type(value).__name__}", expected=f"{expected} was expected", fix=_FIX
        )
    return value


_CHECKS: Mapping[Any, Callable[[str, Any], Any]] = {
    int: partial(as_whole, fix=_FIX),
    float: lambda name, value: as_real(name, decode_float(value), fits=lambda _: True, fix=_FIX),
    bool: partial(as_truth, fix=_FIX),
    str: lambda name, value: str(_expect(name, value, str, "text")),
    Epoch: lambda _, value: value,
    Adjustment | None: lambda _, value: value,
}
