"""What happened in a run, epoch by epoch."""

import csv
import io
from dataclasses import asdict, dataclass, field
from typing import Any


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
    unexplained_share: float
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
        """Draw both losses and mark the best epoch, on given matplotlib axes or new ones."""
        if axes is None:
            from matplotlib.figure import Figure

            axes = Figure(figsize=(6, 4), layout="constrained").subplots()
        numbers = [epoch.epoch for epoch in self.epochs]
        axes.plot(numbers, [e.train_nll for e in self.epochs], lw=1.2, label="training")
        axes.plot(numbers, [e.validation_nll for e in self.epochs], lw=1.8, label="validation")
        if self.best_epoch >= 0:
            axes.axvline(self.best_epoch, color="0.6", lw=1, ls=":", label="best")
        axes.set(xlabel="epoch", ylabel="negative log-likelihood")
        axes.legend(frameon=False)
        return axes

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "History":
        """Return the history that `as_dict` was taken of."""
        epochs = [Epoch(**epoch) for epoch in values["epochs"]]
        return cls(**{**values, "epochs": epochs})
