"""Predictions: densities along a condition, slices, and predicted against observed values."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from condens.distributions import Mixture
from condens.distributions.checks import as_tensor, check_coverage
from condens.distributions.dimensions import Dimension
from condens.errors import ArgumentError, ShapeError
from condens.plots.density import marginal
from condens.plots.grids import (
    Array,
    label_of,
    line_density,
    make_grid,
    plain,
    read_mixture,
    resolve,
    set_axis,
)
from condens.plots.style import (
    BLUE,
    COLOURS,
    DARK,
    GREY,
    ORANGE,
    axes_or_new,
    density_map,
    leaves_no_figure,
    legend,
    literal,
    number,
    percent,
    thinned,
    white_edge,
)
from condens.scalars import as_levels

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
GRID_POINTS = 240
# Probability beyond either end of the axis of an effect, in its widest density.
EFFECT_TAIL = 0.005
# Rows with an interval each; of more, some are chosen.
MAX_INTERVALS = 150
# Rows whose quantiles are asked.
MAX_ROWS = 5000


@leaves_no_figure
def effect(
    mixtures: Mixture,
    values: ArrayLike | Sequence[str],
    dim: Dimension | None = None,
    *,
    name: str = "condition",
    quantiles: Sequence[float] = QUANTILES,
    data: tuple[ArrayLike, ArrayLike] | None = None,
    colorbar: bool = True,
    axes: "Axes | None" = None,
) -> "Axes":
    """Draw the density of one target along a condition: a heat map with quantiles and data.

    Colours are densities per unit of the target (per decade on a logarithmic axis, probabilities
    of whole numbers), on a scale by their square root.

    Args:
        mixtures: the densities at the values of the condition, a batch of n.
        values: of the condition [n]: numbers, or texts, which are drawn as columns.
        dim: the target, by index or name; not needed if there is one only.
        name: of the condition.
        quantiles: to draw as lines; those with equal tails have the same style.
        data: values of the condition and of the target [S] to draw as dots.
        colorbar: whether to add the scale of the colours.
        axes: where to draw; by default on a new figure of pyplot.

    >>> import torch
    >>> from condens import GaussianMixture
    >>> x = torch.linspace(0, 6, 50)
    >>> m = GaussianMixture(torch.zeros(50, 1), x.sin()[:, None, None], torch.ones(50, 1, 1))
    >>> axes = effect(m, x, name="angle in rad")
    """
    lines, _, label = _batch("mixtures", mixtures, dim)
    positions, texts = _positions("values", values, len(lines))
    order = np.argsort(positions, kind="stable")
    positions, lines = positions[order], lines[torch.from_numpy(order)]
    asked = np.array(as_levels("quantiles", quantiles))
    levels = torch.from_numpy(asked[:, None])
    points = None if data is None else _pairs(data, texts)
    axes = axes_or_new(axes, 6.6, 4.2)
    from matplotlib.colors import PowerNorm

    shown = None
    if points is not None and len(points):
        shown = np.quantile(points[:, 1], [0.005, 0.995])
    grid = make_grid([lines], GRID_POINTS, shown, tail=EFFECT_TAIL)
    heights, drawn_at = line_density(lines, grid), positions
    # One value alone is a column of some width.
    alone = not texts and bool(positions[0] == positions[-1])
    if alone:
        half = max(0.5, 1e-3 * abs(float(positions[0])))
        drawn_at, heights = positions[0] + np.array([-half, half]), heights[:, [0, 0]]
    mesh = axes.pcolormesh(
        drawn_at,
        grid.points,
        heights,
        cmap=density_map(),
        norm=PowerNorm(0.5, vmin=0.0),
        shading="nearest",
        rasterized=True,
    )
    if points is not None:
        some = points[thinned(len(points))]
        axes.scatter(some[:, 0], some[:, 1], s=5, color=DARK, alpha=0.45, linewidths=0)
    found = lines.quantile(levels).numpy()
    entries: dict[str, Artist] = {}
    for level, curve in zip(levels.ravel().tolist(), found, strict=True):
        style = _quantile_style(level)
        if texts or alone:
            width = 0.35 if texts else 0.7 * half
            drawn: Artist = axes.hlines(curve, positions - width, positions + width, **style)
        else:
            (drawn,) = axes.plot(
                positions, curve, drawstyle="steps-mid" if grid.step else "default", **style
            )
        entries.setdefault(_tails(level), drawn)
    set_axis(axes, "y", label, grid)
    axes.set_xlabel(literal(name))
    if texts:
        axes.set_xticks(range(len(texts)), [literal(text, 16) for text in texts])
        axes.set_xlim(-0.5, len(texts) - 0.5)
    else:
        axes.set_xlim(drawn_at[0], drawn_at[-1])
    if alone:
        axes.set_xticks(positions[:1], [number(positions[0])])
    if colorbar:
        axes.figure.colorbar(mesh, ax=axes, label=grid.quantity, pad=0.02)
    legend(axes, entries)
    return axes


@leaves_no_figure
def slices(
    mixture: Mixture,
    dim: Dimension,
    given: Dimension,
    values: ArrayLike | None = None,
    *,
    axes: "Axes | None" = None,
) -> "Axes":
    """Draw what becomes of one dimension if another one has some value: p(xₐ | x_b = value).

    Args:
        mixture: one density.
        dim: the dimension a, by index or name.
        given: the dimension b.
        values: of b, up to six; by default its quantiles at 10, 50 and 90 %. The density without
            knowing b comes with them.
        axes: where to draw; by default on a new figure of pyplot.

    >>> import torch
    >>> from condens import GaussianMixture
    >>> m = GaussianMixture(torch.zeros(2), torch.randn(2, 2), torch.randn(2, 3), names=["a", "b"])
    >>> axes = slices(m, "a", given="b", values=[-1.0, 1.0])
    """
    one = read_mixture("mixture", mixture)
    of, known = resolve("dim", dim, one), resolve("given", given, one)
    if of == known:
        raise ArgumentError(
            "given",
            got=f"is {given!r}, as dim is",
            expected="two dimensions were expected",
            fix="Pass another one.",
        )
    plane = one.marginal([of, known])
    if values is None:
        found = one.quantile(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64), known).unique()
    else:
        found = as_tensor("values", values, one.means).double().reshape(-1)
    if not 1 <= len(found) < len(COLOURS):
        raise ArgumentError(
            "values",
            got=f"has {len(found)} entries",
            expected=f"1 to {len(COLOURS) - 1} can be told apart",
            fix="Pass some, or draw all: effect(mixture.condition({b: values}), values, a).",
        )
    label = label_of(one, known)
    texts = [number(value) for value in found.tolist()]
    if len(set(texts)) < len(texts):  # values that differ by little
        found = found.unique()
        texts = [f"{value!r}".replace("-", "−") for value in found.tolist()]
    parts = {
        f"given {label} = {text}": plane.condition({1: value})
        for text, value in zip(texts, found.tolist(), strict=True)
    }
    axes = marginal({**parts, f"any {label}": plane.marginal(0)}, axes=axes)
    axes.set_xlabel(literal(label_of(one, of)))
    return axes


@leaves_no_figure
def predictions(
    mixtures: Mixture,
    observed: ArrayLike,
    dim: Dimension | None = None,
    *,
    coverage: float = 0.9,
    axes: "Axes | None" = None,
) -> "Axes":
    """Draw predicted medians and intervals against observed values of one target.

    Observed values outside their interval are marked. Intervals have equal tails.

    Args:
        mixtures: the predicted densities, a batch of n; of more than 5000 some are drawn.
        observed: the targets [n] or [n, D]; NaN is left out.
        dim: the target, by index or name; not needed if there is one only.
        coverage: of the intervals; of more than 150 rows some have one.
        axes: where to draw; by default on a new figure of pyplot.

    >>> import torch
    >>> from condens import GaussianMixture
    >>> m = GaussianMixture(torch.zeros(50, 1), torch.randn(50, 1, 1), torch.ones(50, 1, 1))
    >>> axes = predictions(m, m.sample())
    """
    lines, place, label = _batch("mixtures", mixtures, dim)
    target = as_tensor("observed", observed, lines.means).detach().double()
    if target.dim() == 2 and target.shape[1] == mixtures.dimensions:
        target = target[:, place]
    if target.shape != lines.batch_shape:
        raise ShapeError(
            "observed",
            got=f"has shape {list(target.shape)}",
            expected=f"there are {len(lines)} densities",
            fix="Pass one value, or one row, for each.",
        )
    band = check_coverage("coverage", coverage)
    seen = (~target.isnan()).nonzero().flatten()
    if not len(seen):
        raise ArgumentError(
            "observed",
            got="has no value",
            expected="at least one is needed",
            fix="Pass the targets of these rows.",
        )
    some = seen[torch.from_numpy(thinned(len(seen), MAX_ROWS))]
    lines, truth = lines[some], target[some].numpy()
    median = lines.quantile(0.5).numpy()
    low, high = (end.squeeze(-1).numpy() for end in lines.interval(band))
    inside = (truth >= low) & (truth <= high)
    axes = axes_or_new(axes, 5.0, 4.8)
    shown = thinned(len(truth), MAX_INTERVALS)
    grid = make_grid([lines], 20, truth, tail=(1 - band) / 2)
    entries: dict[str, Artist] = {}
    (entries["equal"],) = axes.plot(grid.limits, grid.limits, color=GREY, lw=1, ls=":")
    few = len(truth) <= MAX_INTERVALS
    entries[f"{percent(band)} interval" + ("" if few else f", of {len(shown)} rows")] = axes.vlines(
        truth[shown], low[shown], high[shown], color=BLUE, lw=1.2, alpha=0.5
    )
    size = 16 if few else 5
    for chosen, colour, marker, text in (
        (inside, BLUE, "o", "median, observed value inside"),
        (~inside, ORANGE, "x", "outside"),
    ):
        entries[f"{text}: {percent(round(float(chosen.mean()), 3))}"] = axes.scatter(
            truth[chosen],
            median[chosen],
            s=size + 4 * (marker == "x"),
            color=colour,
            marker=marker,
            alpha=0.8,
            linewidths=1.0 if marker == "x" else 0,
            zorder=3,
        )
    note = "" if len(some) == len(seen) else f" ({len(some)} of {len(seen)} rows)"
    set_axis(axes, "x", label, grid)
    set_axis(axes, "y", label, grid)
    axes.set(xlabel=f"observed {literal(label)}{note}", ylabel=f"predicted {literal(label)}")
    legend(axes, entries)
    return axes


def _batch(name: str, mixtures: Mixture, dim: Dimension | None) -> tuple[Mixture, int, str]:
    """Return the one-dimensional marginals of a batch [n], their dimension and its name."""
    if not isinstance(mixtures, Mixture) or len(mixtures.batch_shape) != 1 or not len(mixtures):
        got = (
            f"batch shape {list(mixtures.batch_shape)}"
            if isinstance(mixtures, Mixture)
            else type(mixtures).__name__
        )
        raise ShapeError(
            name,
            got=f"has {got}",
            expected="a batch [n] of densities was expected",
            fix="Pass what predict_dist returns for the rows.",
        )
    place = resolve("dim", dim, mixtures)
    return plain(mixtures.marginal(place)), place, label_of(mixtures, place)


def _positions(name: str, values: Any, count: int) -> tuple[Array, list[str]]:
    """Return where the values lie [n], and the texts of those that are no numbers."""
    plain = isinstance(values, torch.Tensor | np.ndarray) or not isinstance(values, Iterable)
    listed = [] if plain else list(values)
    if any(isinstance(value, str) for value in listed):
        positions, texts = np.arange(len(listed), dtype=np.float64), [str(v) for v in listed]
    else:
        positions, texts = as_tensor(name, values, torch.empty(0)).detach().double().numpy(), []
    if positions.shape != (count,) or not np.isfinite(positions).all():
        raise ShapeError(
            name,
            got=f"has shape {list(positions.shape)}",
            expected=f"a finite number or a text for each of {count} densities was expected",
            fix="Pass the values of the condition.",
        )
    return positions, texts


def _pairs(data: Any, texts: list[str]) -> Array:
    """Return dots [S, 2], texts at the position of their column."""
    if not isinstance(data, Sequence) or len(data) != 2:
        raise ShapeError(
            "data",
            got=f"is a {type(data).__name__}",
            expected="a pair was expected",
            fix="Pass (values of the condition, targets).",
        )
    first, second = data
    if texts:
        places = {text: float(place) for place, text in enumerate(texts)}
        first = [places.get(str(value), np.nan) for value in first]
    columns = [
        as_tensor("data", one, torch.empty(0)).detach().double().reshape(-1).numpy()
        for one in (first, second)
    ]
    if len(columns[0]) != len(columns[1]):
        raise ShapeError(
            "data",
            got=f"has {len(columns[0])} and {len(columns[1])} entries",
            expected="pairs were expected",
            fix="Pass (values of the condition, targets).",
        )
    pairs = np.stack(columns, -1)
    pairs = pairs[np.isfinite(pairs).all(-1)]
    if texts:
        pairs[:, 0] += np.random.default_rng(0).uniform(-0.3, 0.3, len(pairs))
    return pairs


def _quantile_style(level: float) -> dict[str, Any]:
    width = 2.0 if level == 0.5 else 1.2
    return {
        "color": ORANGE,
        "lw": width,
        "linestyle": "-" if 0.25 <= level <= 0.75 else "--",
        "path_effects": white_edge(),
    }


def _tails(level: float) -> str:
    """Return how a quantile and its mirror image are called."""
    if level == 0.5:
        return "median"
    low, high = sorted((level, 1 - level))
    return f"{percent(round(low, 6))} and {percent(round(high, 6))}".replace(" % and", " and")
