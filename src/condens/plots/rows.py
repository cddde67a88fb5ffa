"""Pictures of many rows: observed against predicted, predicted spreads, coverage by bins."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike

from condens.distributions.checks import as_tensor
from condens.errors import ShapeError
from condens.plots.style import (
    BLUE,
    DARK,
    GREY,
    ORANGE,
    axes_or_new,
    leaves_no_figure,
    legend,
    literal,
    percent,
    thinned,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

# Bars of a histogram.
SPREAD_BARS = 40
# Points that are drawn: more of them hide one another, and make files large.
MAX_RESIDUALS = 1000


@leaves_no_figure
def residuals(
    mean: ArrayLike,
    spread: ArrayLike,
    observed: ArrayLike,
    *,
    name: str = "",
    axes: "Axes | None" = None,
) -> "Axes":
    """Draw observed values against predicted means, with a line where they are equal.

    Values more than three predicted standard deviations away are marked.

    Args:
        mean, spread: the predicted means and standard deviations [n]; of more than 1000 rows
            some are drawn, the same every time.
        observed: the values [n]; NaN is left out.
        name: of the target.
        axes: where to draw; by default on a new figure of pyplot.

    >>> axes = residuals([1.0, 2.0], [0.1, 0.1], [1.1, 2.5], name="price")
    """
    centre, width, seen = _columns(mean=mean, spread=spread, observed=observed)
    fine = np.isfinite(centre) & np.isfinite(width) & np.isfinite(seen)
    centre, width, seen = centre[fine], width[fine], seen[fine]
    rows = thinned(len(seen), MAX_RESIDUALS)
    centre, width, seen = centre[rows], width[rows], seen[rows]
    axes = axes_or_new(axes, 4.6, 4.2)
    entries: dict[str, Artist] = {}
    far = np.abs(seen - centre) > 3 * width
    for label, which, colour, size in (
        ("within 3 standard deviations", ~far, BLUE, 8),
        ("further away", far, ORANGE, 18),
    ):
        if which.any():
            entries[label] = axes.scatter(
                centre[which], seen[which], s=size, color=colour, alpha=0.6, linewidths=0
            )
    if len(seen):
        ends = [min(centre.min(), seen.min()), max(centre.max(), seen.max())]
        (entries["equal"],) = axes.plot(ends, ends, color=GREY, lw=1, ls="--", zorder=0)
    axes.set(xlabel="predicted mean", ylabel="observed", title=literal(name))
    legend(axes, entries, fontsize="small")
    return axes


@leaves_no_figure
def spread_histogram(
    spread: ArrayLike, *, overall: float | None = None, name: str = "", axes: "Axes | None" = None
) -> "Axes":
    """Draw how many rows have which predicted standard deviation.

    Args:
        spread: the predicted standard deviations [n]; what is not finite is left out.
        overall: the standard deviation of the values themselves, marked by a line.
        name: of the target.
        axes: where to draw; by default on a new figure of pyplot.

    >>> axes = spread_histogram([0.1, 0.2, 0.2, 0.4], overall=1.0, name="price")
    """
    (width,) = _columns(spread=spread)
    width = width[np.isfinite(width)]
    axes = axes_or_new(axes, 4.6, 3.2)
    entries: dict[str, Artist] = {}
    if len(width):
        # A few far larger ones would leave all others in one bar.
        most = float(np.quantile(width, 0.995))
        beyond = int((width > most).sum())
        shown = width[width <= most] if beyond else width
        label = "rows" if not beyond else f"rows ({beyond} more to the right)"
        heights, edges = np.histogram(shown, SPREAD_BARS)
        entries[label] = axes.bar(
            edges[:-1], heights, np.diff(edges), align="edge", color=BLUE, label=""
        ).patches[0]
    if overall is not None and np.isfinite(overall):
        entries["of all observed values"] = axes.axvline(overall, color=ORANGE, lw=1.6, ls="--")
    axes.set(xlabel="predicted standard deviation", ylabel="rows", title=literal(name))
    legend(axes, entries, fontsize="small")
    return axes


@leaves_no_figure
def coverage_by_bin(
    labels: Sequence[str],
    observed: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    *,
    coverage: float,
    name: str = "",
    axes: "Axes | None" = None,
) -> "Axes":
    """Draw the coverage observed in each bin of a column, the first on top.

    Args:
        labels: of the bins.
        observed, lower, upper: fractions inside their regions, and the ends of their intervals.
        coverage: that the regions state.
        name: of the column.
        axes: where to draw; by default on a new figure of pyplot.

    >>> axes = coverage_by_bin(["0 to 1", "1 to 2"], [0.9, 0.8], [0.85, 0.75], [0.95, 0.85],
    ...                        coverage=0.9, name="age")
    """
    seen, low, high = _columns(observed=observed, lower=lower, upper=upper)
    if len(labels) != len(seen):
        raise ShapeError(
            "labels",
            got=f"has {len(labels)} entries",
            expected=f"there are {len(seen)} bins",
            fix="Pass one for each.",
        )
    axes = axes_or_new(axes, 4.6, 1.1 + 0.28 * len(labels))
    places = np.arange(len(seen))
    off = (coverage < low) | (coverage > high)
    axes.hlines(places, low, high, color=[ORANGE if one else BLUE for one in off], lw=2)
    for which, colour, mark in ((~off, BLUE, "o"), (off, ORANGE, "D")):
        axes.plot(seen[which], places[which], mark, color=colour, ms=5)
    axes.axvline(coverage, color=DARK, lw=1, ls="--", zorder=0)
    axes.set_yticks(places, [literal(label, 24) for label in labels])
    axes.set_ylim(len(seen) - 0.4, -0.6)
    axes.set(xlabel=f"rows inside their {percent(coverage)} regions", title=literal(name))
    return axes


def _columns(**columns: ArrayLike) -> list["np.ndarray[tuple[int], np.dtype[np.float64]]"]:
    """Return columns of numbers, all of one length."""
    read = [
        as_tensor(name, column, torch.empty(0)).detach().double().numpy()
        for name, column in columns.items()
    ]
    for name, column in zip(columns, read, strict=True):
        if column.ndim != 1 or len(column) != len(read[0]):
            raise ShapeError(
                name,
                got=f"has shape {list(column.shape)}",
                expected=f"[{len(read[0]) if read[0].ndim else 'n'}] was expected",
                fix="Pass one number for each row.",
            )
    return read
