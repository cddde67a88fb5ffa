"""Comparison of models: differences with their intervals."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike

from condens.distributions.checks import as_tensor
from condens.errors import KindError, ShapeError
from condens.plots.style import BLUE, GREY, axes_or_new, leaves_no_figure, legend, literal

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes


@leaves_no_figure
def differences(
    names: Sequence[str],
    values: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    *,
    label: str = "difference of mean log-likelihood in nats a row",
    reference: str | None = None,
    axes: "Axes | None" = None,
) -> "Axes":
    """Draw differences from a reference with their intervals, the first name on top.

    Filled where the interval leaves out zero: a difference larger than chance.

    Args:
        names: of the models.
        values, lower, upper: the differences of the models from the reference, and the ends
            of their intervals [n]. NaN leaves out the mark, for what was not compared.
        label: of the axis, with its unit.
        reference: the model that zero stands for.
        axes: where to draw; by default on a new figure of pyplot.

    >>> axes = differences(["full", "diagonal"], [0.0, -0.62], [0.0, -0.68], [0.0, -0.56],
    ...                    reference="full")
    """
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise KindError(
            "names",
            got=f"is {names!r}",
            expected="a list of names was expected",
            fix="Pass one name for each difference.",
        )
    table = [
        as_tensor(name, column, torch.empty(0)).detach().double().numpy()
        for name, column in zip(("values", "lower", "upper"), (values, lower, upper), strict=True)
    ]
    shapes = [column.shape for column in table]
    if shapes != [(len(names),)] * 3 or not len(names):
        raise ShapeError(
            "values, lower and upper",
            got=f"have shapes {[list(shape) for shape in shapes]}",
            expected=f"there are {len(names)} names",
            fix="Pass one number of each for every name.",
        )
    axes = axes_or_new(axes, 6.4, 1.2 + 0.42 * len(names))
    entries: dict[str, Artist] = {}
    for place, (value, low, high) in enumerate(np.stack(table, -1)):
        if np.isnan([value, low, high]).any():
            continue
        apart = low > 0 or high < 0
        axes.plot([low, high], [place, place], color=BLUE, lw=2, solid_capstyle="butt")
        (mark,) = axes.plot(
            value, place, "o", color=BLUE, mfc=BLUE if apart else "white", ms=7, mew=1.6
        )
        entries["larger than chance" if apart else "within chance"] = mark
    axes.axvline(0.0, color=GREY, lw=1, ls="--", zorder=0)
    axes.set_yticks(range(len(names)), [literal(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel(label if reference is None else f"{label}, against {literal(reference)}")
    legend(axes, entries)
    return axes
