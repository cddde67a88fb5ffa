"""Densities of one, two and up to ten dimensions, from their closed forms."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from condens.distributions import GaussianMixture, Mixture
from condens.distributions.checks import Numbers, as_tensor
from condens.distributions.dimensions import Dimension, resolve_dimensions
from condens.errors import ArgumentError, DimensionError, ShapeError
from condens.plots.grids import (
    LEVEL_DRAWS,
    Array,
    Grid,
    Mixtures,
    Point,
    check_coverages,
    draws,
    finite_exp,
    label_of,
    levels_of,
    line_density,
    make_grid,
    plane_log_density,
    read_mixture,
    read_mixtures,
    read_point,
    read_table,
    resolve,
    set_axis,
)
from condens.plots.style import (
    BLUE,
    COLOURS,
    DARK,
    DASHES,
    ORANGE,
    axes_or_new,
    density_map,
    distinct,
    figure_or_new,
    leaves_no_figure,
    legend,
    percent,
    thinned,
    white_edge,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

COVERAGES = (0.5, 0.9)
MAX_CORNER = 10
# Components whose ellipses can be told apart.
MAX_ELLIPSES = 8
LINE_POINTS = 400
# Points of one axis of a plane alone, of one in a corner plot, and of one of many.
JOINT_POINTS, PLANE_POINTS, SMALL_PLANE_POINTS = 400, 200, 90
# Cells of whole numbers on one axis.
MAX_CELLS, SMALL_MAX_CELLS = 100, 40
# Components of less weight have no ellipse, and of less than this no number.
LEAST_WEIGHT, LEAST_LABELLED = 0.01, 0.03
# How far below the lowest contour a log density is told apart: contours between points are then
# not drawn towards those where there is next to no density.
DEPTH = 12.0


@leaves_no_figure
def marginal(
    mixtures: Mixtures,
    dim: Dimension | None = None,
    *,
    coverages: Sequence[float] = (),
    truth: Point | None = None,
    samples: Numbers | None = None,
    axes: "Axes | None" = None,
) -> "Axes":
    """Draw the density of one dimension; of whole numbers, bars of their probability.

    A positive target that spans more than three decades gets a logarithmic axis, and its density
    is per decade, so that areas are probabilities.

    Args:
        mixtures: one density, a list of them, or {label: density}.
        dim: index or name of the dimension; not needed if there is one only.
        coverages: of intervals with equal tails to shade, where there is one density.
        truth: a point [D], or {dimension: value}, to mark.
        samples: points [S, D] whose histogram is drawn.
        axes: where to draw; by default on a new figure of pyplot.

    >>> import torch
    >>> from condens import GaussianMixture
    >>> m = GaussianMixture(torch.zeros(2), torch.tensor([[0.0], [3.0]]), torch.zeros(2, 1))
    >>> axes = marginal(m, coverages=(0.9,))
    """
    read = read_mixtures("mixtures", mixtures)
    first = next(iter(read.values()))
    place = resolve("dim", dim, first)
    lines = {label: one.marginal(place) for label, one in read.items()}
    wanted = check_coverages(coverages)
    if wanted and len(lines) > 1:
        raise ArgumentError(
            "coverages",
            got=f"is {tuple(coverages)} with {len(lines)} densities",
            expected="intervals of one were expected",
            fix="Leave them out, or draw one density.",
        )
    point, table = _extras(first, truth, samples)
    axes = axes_or_new(axes)
    grid = make_grid([*lines.values()], LINE_POINTS, _column(point, place))
    entries = _draw_lines(axes, lines, grid, faint=bool(wanted))
    shades = np.linspace(0.25, 0.6, len(wanted))
    for shade, coverage in zip(shades, wanted, strict=True):
        (line,) = lines.values()
        entries[f"{percent(coverage)} interval"] = _shade(axes, line, grid, coverage, shade)
    entries |= _draw_extras(axes, grid, _column(point, place), _column(table, place))
    set_axis(axes, "x", label_of(first, place), grid)
    axes.set_ylabel(grid.quantity)
    axes.set_ylim(bottom=0)
    entries.pop("", None)
    legend(axes, entries)
    return axes


@leaves_no_figure
def joint(
    mixture: Mixture,
    dims: Sequence[Dimension] | None = None,
    *,
    coverages: Sequence[float] = COVERAGES,
    components: bool | None = None,
    truth: Point | None = None,
    samples: Numbers | None = None,
    limits: Sequence[tuple[float, float]] | None = None,
    axes: "Axes | None" = None,
) -> "Axes":
    """Draw the density of two dimensions, highest-density contours and the components.

    Every contour holds the stated coverage. Components are ellipses of one and two standard
    deviations with their weights, bent as the transforms bend them; whole numbers have cells in
    place of contours between them, and no ellipses.

    Args:
        mixture: one density.
        dims: two dimensions, by index or name; not needed if there are just two.
        coverages: of the regions inside the contours.
        components: whether to draw the components; by default up to eight, which can be told apart.
        truth: a point [D], or {dimension: value}, to mark.
        samples: points [S, D] to draw as dots.
        limits: of both axes, ((low, high), (low, high)), for densities side by side.
        axes: where to draw; by default on a new figure of pyplot.

    >>> import torch
    >>> from condens import GaussianMixture
    >>> m = GaussianMixture(torch.zeros(2), torch.randn(2, 2), torch.randn(2, 3))
    >>> axes = joint(m)
    """
    one = read_mixture("mixture", mixture)
    places = resolve_dimensions(
        "dims", range(one.dimensions) if dims is None else dims, one.dimensions, one.names
    )
    if len(places) != 2:
        raise DimensionError(
            "dims",
            got=f"has {len(places)} dimension(s)",
            expected="a plane has two",
            fix="Pass two of them, or draw all with corner(mixture).",
        )
    wanted = check_coverages(coverages)
    shown = np.empty((2, 0)) if limits is None else _check_limits(limits)
    point, table = _extras(one, truth, samples)
    axes = axes_or_new(axes, 5.6, 4.8)
    from matplotlib.colors import PowerNorm

    plane = one.marginal(places)
    x, y = (
        make_grid(
            [one.marginal(d)],
            JOINT_POINTS,
            np.append(ends, [] if point is None else point[d]),
            most=MAX_CELLS,
        )
        for d, ends in zip(places, shown, strict=True)
    )
    heights = plane_log_density(plane, x, y)
    axes.pcolormesh(
        x.points,
        y.points,
        finite_exp(heights),
        cmap=density_map(),
        norm=PowerNorm(0.5, vmin=0.0),
        shading="nearest",
        rasterized=True,
    )
    if table is not None:
        _dots(axes, table[:, places])
    if wanted:
        levels = levels_of(plane, draws(plane), wanted, x, y)
        lines = _contour(axes, heights, x, y, levels, colors=DARK, linewidths=0.9, linestyles="-")
        words = dict(zip(levels, map(percent, wanted), strict=True))
        for text in axes.clabel(lines, fmt=words, fontsize=8, inline=False, colors=DARK):
            text.set_path_effects(white_edge())
    if components is None:
        components = int((one.weights >= LEAST_WEIGHT).sum()) <= MAX_ELLIPSES
    if components and not (x.step or y.step):
        _draw_components(axes, plane)
    if point is not None:
        _cross(axes, point[places])
    set_axis(axes, "x", label_of(one, places[0]), x)
    set_axis(axes, "y", label_of(one, places[1]), y)
    if limits is not None:
        axes.set(xlim=shown[0], ylim=shown[1])
    return axes


@leaves_no_figure
def corner(
    mixtures: Mixtures,
    *,
    truth: Point | None = None,
    samples: Numbers | None = None,
    coverages: Sequence[float] = COVERAGES,
    dims: Sequence[Dimension] | None = None,
    figure: "Figure | SubFigure | None" = None,
) -> "Figure | SubFigure":
    """Draw every dimension alone and every two of them, from marginals in closed form.

    On the diagonal the densities of one dimension, below it highest-density contours of two,
    each with the stated coverage of its plane. The axes of the figure come row by row.

    Args:
        mixtures: one density, a list of them, or {label: density} to overlay.
        truth: a point [D], or {dimension: value}, to mark.
        samples: points [S, D]: dots and histograms.
        coverages: of the regions inside the contours.
        dims: some dimensions, by index or name; up to ten.
        figure: where to draw; by default a new figure of pyplot.

    >>> import torch
    >>> from condens import GaussianMixture
    >>> m = GaussianMixture(torch.zeros(2), torch.randn(2, 3), torch.randn(2, 6))
    >>> len(corner(m, truth=[0.0, 0.0, 0.0]).axes)
    6
    """
    read = read_mixtures("mixtures", mixtures)
    first = next(iter(read.values()))
    point, table = _extras(first, truth, samples)
    places = resolve_dimensions(
        "dims", range(first.dimensions) if dims is None else dims, first.dimensions, first.names
    )
    size = len(places)
    if size > MAX_CORNER:
        raise DimensionError(
            "the mixture" if dims is None else "dims",
            got=f"has {size} dimensions",
            expected=f"up to {MAX_CORNER} fit on one figure",
            fix="Choose some: dims=[0, 1, 2], or their names.",
        )
    wanted = check_coverages(coverages)
    side = {1: 3.6, 2: 4.6, 3: 6.0, 4: 7.2}.get(size, 1.15 * size + 1.6)
    figure = figure_or_new(figure, side, side)
    spec = figure.add_gridspec(size, size, wspace=0.06, hspace=0.06)
    n_points, most = (
        (PLANE_POINTS, MAX_CELLS) if size <= 4 else (SMALL_PLANE_POINTS, SMALL_MAX_CELLS)
    )
    grids = [
        make_grid(
            [one.marginal(d) for one in read.values()], n_points, _column(point, d), most=most
        )
        for d in places
    ]
    drawn = {
        label: draws(one, LEVEL_DRAWS if size <= 4 else LEVEL_DRAWS // 2)
        for label, one in read.items()
    }
    # Ticks, characters and points of the type that a panel has room for.
    n_ticks, length, font = (3, 22, 9) if size <= 4 else (2, 11, 7)
    names = distinct([label_of(first, place) for place in places], length)
    mark = ORANGE if len(read) == 1 else DARK
    entries: dict[str, Artist] = {}
    for i, row in enumerate(places):
        for j, column in enumerate(places[: i + 1]):
            axes = figure.add_subplot(spec[i, j])
            if i == j:
                lines = {label: one.marginal(row) for label, one in read.items()}
                entries |= _draw_lines(axes, lines, grids[i])
                entries |= _draw_extras(
                    axes, grids[i], _column(point, row), _column(table, row), mark
                )
                axes.set_yticks([])
                axes.set_ylim(bottom=0)
            else:
                pair = [column, row]
                planes = [
                    (one.marginal(pair), drawn[label][:, pair]) for label, one in read.items()
                ]
                _draw_plane(axes, planes, grids[j], grids[i], wanted, _pick(table, pair))
                if point is not None:
                    _cross(axes, point[pair], mark)
                set_axis(axes, "y", names[i], grids[i], n_ticks=n_ticks, length=length)
            set_axis(axes, "x", names[j], grids[j], n_ticks=n_ticks, length=length)
            _trim(axes, font, bottom=i == size - 1, left=not j)
    figure.align_labels()
    entries.pop("", None)
    title = f"regions: {', '.join(map(percent, sorted(wanted)))}" if size > 1 and wanted else None
    if size == 1:
        legend(figure.axes[0], entries)
    else:
        legend(figure, entries, title=title, loc="upper right")
    return figure


def _check_limits(limits: Any) -> Array:
    """Return the ends of both axes [2, 2]."""
    ends = as_tensor("limits", limits, torch.empty(0)).detach().double().numpy()
    if ends.shape != (2, 2) or not np.isfinite(ends).all() or (ends[:, 0] == ends[:, 1]).any():
        raise ShapeError(
            "limits",
            got=f"is {limits!r}",
            expected="two different ends of each of two axes were expected",
            fix="Pass ((0, 1), (0, 1)), for instance.",
        )
    return ends


def _extras(mixture: Mixture, truth: Any, samples: Any) -> tuple[Array | None, Array | None]:
    """Return a point [D] and samples [S, D], if there are any."""
    table = None if samples is None else read_table("samples", samples, mixture)
    return read_point("truth", truth, mixture), table


def _column(values: Array | None, place: int) -> Array | None:
    return None if values is None else np.atleast_1d(values[..., place])


def _pick(table: Array | None, pair: list[int]) -> Array | None:
    return None if table is None else table[:, pair]


def _draw_plane(
    axes: "Axes",
    planes: Sequence[tuple[Mixture, torch.Tensor]],
    x: Grid,
    y: Grid,
    coverages: Sequence[float],
    samples: Array | None,
) -> None:
    """Draw the regions of densities of two dimensions, each with draws of it."""
    if samples is not None:
        _dots(axes, samples)
    for place, (plane, drawn) in enumerate(planes):
        levels = levels_of(plane, drawn, coverages, x, y)
        heights = plane_log_density(plane, x, y)
        _regions(axes, heights, x, y, levels, place, filled=len(planes) == 1)


def _trim(axes: "Axes", font: float, *, bottom: bool, left: bool) -> None:
    """Set the size of the type, and leave names and numbers to the panels at the edge."""
    axes.tick_params(labelsize=font, labelbottom=bottom, labelleft=left)
    axes.xaxis.label.set_fontsize(font)
    axes.yaxis.label.set_fontsize(font)
    if not bottom:
        axes.set_xlabel("")
    if not left:
        axes.set_ylabel("")


def _draw_lines(
    axes: "Axes", lines: Mapping[str, Mixture], grid: Grid, *, faint: bool = False
) -> "dict[str, Artist]":
    """Draw the densities of one dimension, bars for whole numbers; return what the legend shows."""
    entries: dict[str, Artist] = {}
    for place, (label, line) in enumerate(lines.items()):
        heights = line_density(line, grid)
        colour = COLOURS[place]
        if grid.step:
            # Beside one another, each group within its cell.
            width = _bar_width(grid) / len(lines)
            centres = grid.values[::2] + (place - (len(lines) - 1) / 2) * width
            bars = axes.bar(centres, heights[::2], width, color=colour, alpha=0.25 if faint else 1)
            entries[label] = bars.patches[0]
            continue
        (entries[label],) = axes.plot(
            grid.points, heights, color=colour, ls=DASHES[place], lw=1.6, zorder=3
        )
        if len(lines) == 1:
            axes.fill_between(grid.points, heights, color=colour, alpha=0.12, linewidth=0)
    return entries


def _bar_width(grid: Grid) -> float:
    """Return the width of bars: with gaps between them, unless they are many."""
    return grid.step * (0.85 if len(grid.values) <= 120 else 1.0)


def _shade(axes: "Axes", line: Mixture, grid: Grid, coverage: float, alpha: float) -> "Artist":
    """Shade the interval with equal tails."""
    low, high = (float(end) for end in line.interval(coverage))
    if grid.step:
        centres, heights = grid.values[::2], line_density(line, grid)[::2]
        inside = (centres >= low) & (centres <= high)
        bars = axes.bar(centres[inside], heights[inside], _bar_width(grid), color=BLUE, alpha=alpha)
        return bars.patches[0]
    low, high = np.clip([low, high], grid.points[0], grid.points[-1])
    inside = (grid.points > low) & (grid.points < high)
    points = np.concatenate([[low], grid.points[inside], [high]])
    heights = line_density(line, grid._replace(points=points, values=points))
    return axes.fill_between(points, heights, color=BLUE, alpha=alpha, linewidth=0)


def _draw_extras(
    axes: "Axes",
    grid: Grid,
    point: Array | None,
    samples: Array | None,
    colour: str = ORANGE,
) -> "dict[str, Artist]":
    """Draw a histogram of samples and a line at the truth."""
    entries: dict[str, Artist] = {}
    if samples is not None:
        seen = samples[np.isfinite(samples)]
        edges = _edges(grid, len(seen))
        counts, _ = np.histogram(seen, edges)
        widths = np.diff(np.log10(edges)) if grid.log else np.diff(edges)
        entries["samples"] = axes.stairs(
            counts / (max(len(seen), 1) * widths), edges, color=DARK, linewidth=1.0
        )
    if point is not None and np.isfinite(point).all():
        entries["truth"] = axes.axvline(point[0], color=colour, lw=1.6, ls=(0, (4, 2)))
    return entries


def _edges(grid: Grid, count: int) -> Array:
    """Return the edges of a histogram's bins."""
    if grid.step:
        return np.append(grid.values[::2], grid.values[-1] + grid.step) - 0.5 * grid.step
    n_bins = int(np.clip(2 * count ** (1 / 3), 10, 60))
    low, high = grid.points[[0, -1]]
    return (np.geomspace if grid.log else np.linspace)(low, high, n_bins + 1)


def _dots(axes: "Axes", table: Array) -> None:
    some = table[thinned(len(table))]
    axes.scatter(some[:, 0], some[:, 1], s=3, color=DARK, alpha=0.35, linewidths=0, rasterized=True)


def _cross(axes: "Axes", point: Array, colour: str = ORANGE) -> None:
    axes.plot(*point, "P", color=colour, mec="white", mew=1.2, ms=10, zorder=5)


def _regions(
    axes: "Axes", heights: Array, x: Grid, y: Grid, levels: Array, place: int, *, filled: bool
) -> None:
    """Draw highest-density regions: filled where there is one density, else their outlines."""
    if not len(levels):
        return
    if filled:
        shades = density_map()(np.linspace(0.25, 0.6, len(levels)))
        ends = np.append(np.unique(levels), max(heights.max(), levels.max()) + 1)
        _contour(axes, heights, x, y, ends, filled=True, colors=shades[-len(ends) + 1 :])
    colour = DARK if filled else COLOURS[place]
    _contour(
        axes,
        heights,
        x,
        y,
        levels,
        colors=colour,
        linewidths=0.8 if filled else 1.2,
        linestyles=["-"] if filled else [DASHES[place]],
    )


def _contour(
    axes: "Axes",
    heights: Array,
    x: Grid,
    y: Grid,
    levels: Array,
    *,
    filled: bool = False,
    **options: Any,
) -> Any:
    """Draw contours of log densities, between whose points straight lines are nearly exact."""
    distinct = np.unique(levels)
    floor = distinct[0] - DEPTH
    # A frame of low density closes regions that reach the end of the grid.
    closed = np.pad(np.maximum(heights, floor), 1, constant_values=floor)
    draw = axes.contourf if filled else axes.contour
    return draw(_framed(x), _framed(y), closed, levels=distinct, **options)


def _framed(grid: Grid) -> Array:
    """Return the points with one more at either end, next to it."""
    low, high = grid.points[[0, -1]]
    width = 1e-9 * (low if grid.log else high - low)
    return np.concatenate([[low - width], grid.points, [high + width]])


def _draw_components(axes: "Axes", plane: Mixture) -> None:
    """Draw one and two standard deviations of each component, with its weight."""
    from matplotlib.patches import Ellipse, Polygon

    latent = GaussianMixture(*plane._gaussians())
    bent = any(transform.kind != "real" for transform in plane.transforms)
    turn = torch.linspace(0, 2 * torch.pi, 181, dtype=torch.float64)
    circle = torch.stack([turn.cos(), turn.sin()], -1)
    parts = (latent.weights, latent.means, latent.covariance_matrices)
    for weight, mean, covariance in zip(*(part.unbind(0) for part in parts), strict=True):
        if weight < LEAST_WEIGHT:
            continue
        variances, directions = torch.linalg.eigh(covariance)
        axis = directions[:, 1]
        for radius in (1, 2):
            style: dict[str, Any] = {
                "fill": False,
                "edgecolor": ORANGE,
                "linewidth": 2.4 - 0.7 * radius,
                "linestyle": "-" if radius == 1 else "--",
                "path_effects": white_edge(),
            }
            if bent:
                rim = mean + radius * (circle * variances.sqrt()) @ directions.mT
                axes.add_patch(Polygon(_from_real(plane, rim).numpy(), **style))
            else:
                axes.add_patch(
                    Ellipse(
                        mean.tolist(),
                        2 * radius * float(variances[1].sqrt()),
                        2 * radius * float(variances[0].sqrt()),
                        angle=float(torch.atan2(axis[1], axis[0]).rad2deg()),
                        **style,
                    )
                )
        if weight >= LEAST_LABELLED:
            x, y = _from_real(plane, mean).tolist()
            text = axes.text(
                x, y, f"{weight:.2f}", ha="center", va="center", size=9, color=DARK, clip_on=True
            )
            text.set_path_effects(white_edge())


def _from_real(plane: Mixture, points: torch.Tensor) -> torch.Tensor:
    columns = zip(plane.transforms, points.unbind(-1), strict=True)
    return torch.stack([transform.from_real(column) for transform, column in columns], -1)
