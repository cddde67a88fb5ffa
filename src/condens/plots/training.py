"""Training runs: losses and the diagnostics of the components."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from condens.plots.style import (
    BLUE,
    COLOURS,
    DASHES,
    GREEN,
    GREY,
    ORANGE,
    axes_or_new,
    density_map,
    figure_or_new,
    leaves_no_figure,
    legend,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure


@leaves_no_figure
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
    axes = axes_or_new(axes)
    entries: dict[str, Artist] = {}
    (entries["training"],) = axes.plot(train_nll, color=ORANGE, ls="--", lw=1.2)
    (entries["validation"],) = axes.plot(validation_nll, color=BLUE, lw=1.8)
    entries |= _mark_best(axes, best_epoch)
    axes.set(xlabel="epoch", ylabel="negative log-likelihood")
    legend(axes, entries)
    return axes


@leaves_no_figure
def training_diagnostics(
    epochs: Sequence[Mapping[str, Any]],
    *,
    best_epoch: int = -1,
    figure: "Figure | SubFigure | None" = None,
) -> "Figure | SubFigure":
    """Draw the losses, how many components are used, by how much each, and signs of trouble.

    Args:
        epochs: a dictionary an epoch, as `History.table` returns them.
        best_epoch: where to draw a line, unless it is negative.
        figure: where to draw; by default a new figure of pyplot.

    The usage of the components is stacked, that of the most used one at the bottom. Condition
    numbers above 10¹⁰ mean that some targets are almost functions of others, and unexplained
    rows are beyond 1 − 10⁻⁶ of every component.
    """
    figure = figure_or_new(figure, 9.5, 6.4)
    (losses, counts), (usage, trouble) = figure.subplots(2, 2)

    def column(name: str) -> list[float]:
        return [float(epoch[name]) for epoch in epochs]

    plot_losses(column("train_nll"), column("validation_nll"), best_epoch=best_epoch, axes=losses)
    entries: dict[str, Artist] = {}
    for place, name in enumerate(("used_components", "distinct_components")):
        (entries[name.replace("_", " ")],) = counts.plot(
            column(name), color=COLOURS[place], ls=DASHES[place], lw=1.6
        )
    counts.set(xlabel="epoch", ylabel="effective number", ylim=(0, None))
    legend(counts, entries | _mark_best(counts, best_epoch))
    n_components = len([key for key in (epochs[0] if epochs else ()) if key.startswith("usage_")])
    table = np.array([[epoch[f"usage_{k}"] for k in range(n_components)] for epoch in epochs])
    if table.size:
        order = np.argsort(-table[-1], kind="stable")
        shades = density_map()(np.linspace(0.85, 0.2, n_components))
        usage.stackplot(
            range(len(table)), table[:, order].T, colors=shades, edgecolor="white", linewidth=0.4
        )
        usage.set(xlim=(0, max(len(table) - 1, 1)), ylim=(0, 1))
        _mark_best(usage, best_epoch)
    usage.set(xlabel="epoch", ylabel=f"usage of {n_components} component(s), stacked")
    signs: dict[str, Artist] = {}
    (signs["largest condition number (left)"],) = trouble.plot(
        column("largest_condition_number"), color=BLUE, lw=1.6
    )
    fraction = trouble.twinx()
    (signs["unexplained rows (right)"],) = fraction.plot(
        column("unexplained_fraction"), color=GREEN, ls="--", lw=1.6
    )
    trouble.set(xlabel="epoch", ylabel="condition number", yscale="log")
    fraction.set(ylabel="fraction of rows", ylim=(0, None))
    fraction.set_ylim(
        0, max(0.02, 1.3 * max(np.nan_to_num(column("unexplained_fraction")), default=0))
    )
    legend(trouble, signs)
    return figure


def _mark_best(axes: "Axes", best_epoch: int) -> "dict[str, Artist]":
    if best_epoch < 0:
        return {}
    return {"best": axes.axvline(best_epoch, color=GREY, lw=1, ls=":")}
