"""What happened in a run, epoch by epoch."""

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from condens.errors import ArgumentError
from condens.scalars import as_real, as_whole, spelt, unspelt


@dataclass
class Epoch:
    """One pass over the data.

    Losses are mean negative log-likelihoods in the target's own units; the training loss is
    the mean over the epoch's batches, noise included, at the weights of each step.
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
class History:
    """The epochs of a run, the best of them, and what was warned of.

    Rows left out are those with no target observed, or with a weight of zero.
    """

    epochs: list[Epoch] = field(default_factory=list)
    best_epoch: int = -1
    best_nll: float = float("inf")
    stopped: str = ""
    warnings: list[str] = field(default_factory=list)
    rows: int = 0
    validation_rows: int = 0
    rows_left_out: int = 0

    def __repr__(self) -> str:
        """Tell how long it was, what came of it and how often was warned; `table` has the rest.

        >>> History(rows=90, validation_rows=10)
        History(epochs=0, best_epoch=-1, best_nll=inf, stopped='', rows=90, validation_rows=10)
        """
        parts = [f"epochs={len(self.epochs)}", f"best_epoch={self.best_epoch}"]
        parts += [f"best_nll={self.best_nll:.6g}", f"stopped={self.stopped!r}"]
        parts += [f"rows={self.rows}", f"validation_rows={self.validation_rows}"]
        parts += [f"rows_left_out={self.rows_left_out}"] if self.rows_left_out else []
        parts += [f"warnings={len(self.warnings)}"] if self.warnings else []
        return f"{type(self).__name__}({', '.join(parts)})"

    def table(self) -> list[dict[str, Any]]:
        """Return one flat dictionary for each epoch, with the usage as usage_0, usage_1 and on."""
        lines = []
        for epoch in self.epochs:
            line = asdict(epoch)
            usage = line.pop("usage")
            lines.append(line | {f"usage_{k}": share for k, share in enumerate(usage)})
        return lines

    def to_csv(self) -> str:
        """Return the table as text."""
        lines = self.table()
        text = io.StringIO()
        writer = csv.DictWriter(text, lines[0].keys() if lines else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return text.getvalue()

    def plot(self, axes: Any = None) -> Any:
        """Draw both losses and mark the best epoch, on given axes or those of a new figure.

        The figure is pyplot's: `plt.show()` and `plt.savefig(…)` know it.
        """
        if axes is None:
            try:
                from matplotlib import pyplot
            except ImportError as error:
                told = "plot needs matplotlib. Install it: pip install 'condens[plot]'."
                raise ImportError(told) from error
            _, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
        numbers = [epoch.epoch for epoch in self.epochs]
        axes.plot(numbers, [e.train_nll for e in self.epochs], lw=1.2, label="training")
        axes.plot(numbers, [e.validation_nll for e in self.epochs], lw=1.8, label="validation")
        if self.best_epoch >= 0:
            axes.axvline(self.best_epoch, color="0.6", lw=1, ls=":", label="best")
        axes.set(xlabel="epoch", ylabel="negative log-likelihood")
        axes.legend(frameon=False)
        return axes

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON, in which NaN and infinity are words."""
        return {**_plain(self), "epochs": [_plain(epoch) for epoch in self.epochs]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "History":
        """Return the history that `to_dict` was taken of; refuse, by name, what is none."""
        record = _read(cls, values)
        record["epochs"] = [Epoch(**_read(Epoch, epoch)) for epoch in record["epochs"]]
        return cls(**record)


def _word(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ArgumentError(
            name,
            got=f"is {type(value).__name__}",
            expected="text was expected",
            fix="Make it text.",
        )
    return str(value)


def _number(name: str, value: Any) -> float:
    return as_real(name, unspelt(value), fits=lambda _: True)


def _list(name: str, value: Any, each: Callable[[str, Any], Any]) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ArgumentError(
            name,
            got=f"is {type(value).__name__}",
            expected="a list was expected",
            fix="Make it one.",
        )
    return [each(name, part) for part in value]


# By the type of a field: its plain value.
_KINDS: Mapping[Any, Callable[[str, Any], Any]] = {
    int: as_whole,
    float: _number,
    str: _word,
    list[float]: lambda name, value: _list(name, value, _number),
    list[str]: lambda name, value: _list(name, value, _word),
    list[Epoch]: lambda name, value: _list(name, value, lambda _, part: part),
}


def _plain(record: Epoch | History) -> dict[str, Any]:
    """Return the fields of a record as JSON can hold them."""
    values = {f.name: _KINDS[f.type](f.name, getattr(record, f.name)) for f in fields(record)}
    found: dict[str, Any] = spelt(values)
    return found


def _read(kind: type[Epoch | History], values: Any) -> dict[str, Any]:
    """Return the fields of a record from what JSON held."""
    names = [f.name for f in fields(kind)]
    if not isinstance(values, Mapping) or values.keys() != set(names):
        raise ArgumentError(
            "history",
            got=f"has {sorted(map(str, values))[:20]}"
            if isinstance(values, Mapping)
            else "is none",
            expected=f"{', '.join(names)} were expected",
            fix="Pass what to_dict returned.",
        )
    return {f.name: _KINDS[f.type](f.name, values[f.name]) for f in fields(kind)}
