"""Learning curves."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from condens.plots.style import new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def losses(
    epochs: Sequence[int],
    training: Sequence[float],
    validation: Sequence[float],
    *,
    best_epoch: int | None = None,
    axes: "Axes | None" = None,
) -> "Axes":
    """Draw the negative log-likelihood of each epoch and mark the best one.

    >>> from matplotlib.figure import Figure
    >>> axes = losses([0, 1], [2.0, 1.2], [2.1, 1.5], best_epoch=1, axes=Figure().subplots())
    >>> axes.get_ylabel()
    'negative log-likelihood'
    """
    if axes is None:
        axes = new_axes()
    axes.plot(epochs, training, lw=1.2, label="training")
    axes.plot(epochs, validation, lw=1.8, label="validation")
    if best_epoch is not None:
        axes.axvline(best_epoch, color="0.6", lw=1, ls=":", label="best")
    axes.set(xlabel="epoch", ylabel="negative log-likelihood")
    axes.legend(frameon=False)
    return axes
