"""Losses of a training run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_losses(
    train_nll: Sequence[float],
    validation_nll: Sequence[float],
    *,
    best_epoch: int = -1,
    axes: "Axes | None" = None,
) -> "Axes":
    """Draw the losses of every epoch, and a line at the best one unless it is negative.

    Without `axes`, on those of a new figure of pyplot: `plt.show()` and `plt.savefig(…)` know it.
    """
    if axes is None:
        try:
            from matplotlib import pyplot
        except ImportError as error:
            raise ImportError(
                "plot needs matplotlib. Install it: pip install 'condens[plot]'."
            ) from error
        _, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    axes.plot(range(len(train_nll)), train_nll, lw=1.2, label="training")
    axes.plot(range(len(validation_nll)), validation_nll, lw=1.8, label="validation")
    if best_epoch >= 0:
        axes.axvline(best_epoch, color="0.6", lw=1, ls=":", label="best")
    axes.set(xlabel="epoch", ylabel="negative log-likelihood")
    axes.legend(frameon=False)
    return axes
