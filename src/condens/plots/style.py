"""Figures, colours and labels of all plots; no setting of matplotlib is changed."""

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar

import numpy as np

from condens.errors import ArgumentError, KindError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.patheffects import AbstractPathEffect

Given = ParamSpec("Given")
Drawn = TypeVar("Drawn")

# The colours of Okabe and Ito, distinct to colour-blind readers; their yellow is too pale for
# lines. The dashes tell them apart in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 3)), (0, (1, 3)))
BLUE, ORANGE, GREEN = COLOURS[:3]
DARK, GREY = "#222222", "#777777"
# From white to navy in equal steps of CIELAB, so that equal differences look equal, in grey too.
DENSITY_COLOURS = (
    "#ffffff", "#e8f5fa", "#d1eaf5", "#baddef", "#a5cfe8", "#91c0e1", "#7db2d9", "#68a3d1",
    "#5394c7", "#4185be", "#3477b5", "#2868aa", "#1d599c", "#14498a", "#103a77", "#112c64",
    "#122051",
)  # fmt: skip
# Characters of a name on an axis, and of one beside a legend's line.
MAX_LABEL = 32
# Points of a scatter plot: more of them hide one another.
MAX_POINTS = 2000
_TEX = {ord(c): rf"\{c}" for c in "$_%&#{}"} | {
    ord("\\"): r"\textbackslash{}",
    ord("~"): r"\textasciitilde{}",
    ord("^"): r"\textasciicircum{}",
}


def new_figure(width: float, height: float) -> "Figure":
    """Return a new figure of pyplot, so that `plt.show()` and `plt.savefig(…)` know it."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            "plot needs matplotlib. Install it: pip install 'condens[plot]'."
        ) from error
    return pyplot.figure(figsize=(width, height), layout="constrained")


def axes_or_new(axes: "Axes | None", width: float = 6.0, height: float = 4.0) -> "Axes":
    """Return the axes given, or those of a new figure."""
    if axes is None:
        return new_figure(width, height).subplots()
    if not hasattr(type(axes), "pcolormesh"):
        raise _no_place(
            "axes", axes, "ax of fig, ax = plt.subplots(), one of them if there are several"
        )
    return axes


def figure_or_new(
    figure: "Figure | SubFigure | None", width: float, height: float
) -> "Figure | SubFigure":
    """Return the figure given, or a new one."""
    if figure is None:
        return new_figure(width, height)
    if not hasattr(type(figure), "add_gridspec"):
        raise _no_place("figure", figure, "plt.figure(), or ax.figure")
    return figure


def _no_place(name: str, given: object, example: str) -> KindError:
    return KindError(
        name,
        got=f"is a {type(given).__name__}",
        expected=f"what matplotlib calls {name} was expected",
        fix=f"Pass {example}, or leave it out.",
    )


def leaves_no_figure(plot: Callable[Given, Drawn]) -> Callable[Given, Drawn]:
    """Let a function close the figures of pyplot that it made, if it fails."""

    def known() -> set[int]:
        pyplot = sys.modules.get("matplotlib.pyplot")
        return set() if pyplot is None else set(pyplot.get_fignums())

    @wraps(plot)
    def guarded(*args: Given.args, **options: Given.kwargs) -> Drawn:
        before = known()
        try:
            return plot(*args, **options)
        except BaseException:
            for number in known() - before:
                sys.modules["matplotlib.pyplot"].close(number)
            raise

    return guarded


def density_map() -> "Colormap":
    """Return the colours of densities, from white for zero to navy."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("density", DENSITY_COLOURS)


def white_edge(width: float = 1.2) -> "list[AbstractPathEffect]":
    """Return the effect of a white edge, which parts lines and texts from any shade below."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2 * width, foreground="white")]


def literal(text: object, length: int = MAX_LABEL) -> str:
    r"""Return text that matplotlib draws as it is, shortened in the middle.

    >>> print(literal("price in $ per m$"))
    price in \$ per m\$
    >>> literal("a" * 30 + "b" * 30, length=9)
    'aaaa…bbbb'
    """
    from matplotlib import rcParams

    shown = "".join(c if c.isprintable() else " " for c in str(text))
    if len(shown) > length:
        shown = f"{shown[: length // 2]}…{shown[len(shown) - (length - 1) // 2 :]}"
    return shown.translate(_TEX) if rcParams["text.usetex"] else shown.replace("$", r"\$")


def distinct(names: Sequence[str], length: int) -> list[str]:
    """Return names that stay different when they are shortened to a length.

    >>> distinct(["mean radius of cells", "mean width of cells"], 11)
    ['…radius of cells', '…width of cells']
    """
    if len({literal(name, length) for name in names}) == len(set(names)):
        return list(names)
    start = next((i for i, c in enumerate(zip(*names, strict=False)) if len({*c}) > 1), 0)
    parts = [f"…{name[start:]}" for name in names]
    if len({literal(part, length) for part in parts}) == len(set(names)):
        return parts
    return [f"{place}: {name}" for place, name in enumerate(names)]


def number(value: float) -> str:
    """Return a number with the digits that a label has room for."""
    return f"{value:.3g}".replace("-", "−")


def percent(fraction: float) -> str:
    """Return a fraction as a percentage.

    >>> percent(0.5), percent(0.975)
    ('50 %', '97.5 %')
    """
    return f"{100 * fraction:.4g} %"


def legend(
    owner: "Axes | Figure | SubFigure",
    entries: "dict[str, Artist]",
    *,
    title: str | None = None,
    loc: Literal["best", "upper left", "upper right"] = "best",
    fontsize: Literal["medium", "small", "x-small"] = "medium",
) -> None:
    """Add a legend with the texts as they are: matplotlib leaves out those that begin with _."""
    if not entries:
        return
    made = owner.legend(
        [*entries.values()],
        [str(i) for i in range(len(entries))],
        title=title,
        loc=loc,
        fontsize=fontsize,
        framealpha=0.8,
        labelspacing=0.5 if fontsize == "medium" else 0.25,
        handlelength=2.0 if fontsize == "medium" else 1.5,
        edgecolor="none",
    )
    for text, label in zip(made.get_texts(), entries, strict=True):
        text.set_text(literal(label, 2 * MAX_LABEL))


def thinned(n_rows: int, most: int = MAX_POINTS) -> "np.ndarray[tuple[int], np.dtype[np.intp]]":
    """Return the numbers of all rows, or of some chosen at random, the same every time."""
    if n_rows <= most:
        return np.arange(n_rows)
    return np.sort(np.random.default_rng(0).choice(n_rows, most, replace=False))


def check_overlaid(name: str, count: int) -> None:
    """Refuse more lines on one picture than can be told apart."""
    if not 1 <= count <= len(COLOURS):
        raise ArgumentError(
            name,
            got=f"has {count} entries",
            expected=f"1 to {len(COLOURS)} can be told apart",
            fix="Pass the most interesting ones.",
        )
