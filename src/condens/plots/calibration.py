"""Calibration: histograms of probabilities and ranks, and coverage asked against observed."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from condens.distributions.checks import as_tensor, check_coverage
from condens.errors import ArgumentError, NotFiniteError, ShapeError
from condens.plots.grids import Array, default_name
from condens.plots.style import (
    BLUE,
    COLOURS,
    DARK,
    DASHES,
    GREY,
    axes_or_new,
    check_overlaid,
    figure_or_new,
    leaves_no_figure,
    legend,
    literal,
    percent,
)
from condens.scalars import as_whole

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

# Bars of a histogram, and the fewest values that one shall stand for.
MAX_BINS, ROWS_PER_BIN = 20, 20
CURVE_POINTS = 99
# Targets with a histogram each on one figure.
MAX_PANELS = 12


@leaves_no_figure
def pit_histogram(
    uniform: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    n_bins: int | None = None,
    coverage: float = 0.95,
    simultaneous: bool = True,
    name: str | None = None,
    axes: "Axes | None" = None,
) -> "Axes":
    """Draw a histogram of probability integral transforms with the band of a calibrated model.

    Heights are relative to the number expected. High at both ends says that
    densities are too narrow, high in the middle too wide, and a slope that they are biased.

    Args:
        uniform: P(Y ≤ y) of each row [n], randomised for whole numbers; NaN is left out.
        weights: of the rows [n]; the band is that of their effective number, (Σw)²/Σw².
        n_bins: how many bars; by default up to 20, with 20 rows each.
        coverage: of the band, from binomial quantiles.
        simultaneous: whether the band holds all bars together with this probability or more (by
            Bonferroni), or each bar alone.
        name: of the target.
        axes: where to draw; by default on a new figure of pyplot.

    >>> import numpy as np
    >>> axes = pit_histogram(np.random.default_rng(0).uniform(size=1000))
    """
    values, shares = _read_uniform("uniform", uniform, weights)
    chosen = _n_bins(n_bins, len(values))
    edges = np.linspace(0.0, 1.0, chosen + 1)
    axes = axes_or_new(axes)
    _histogram(axes, values, shares, edges, np.full(chosen, 1 / chosen), coverage, simultaneous)
    label = "probability integral transform"
    axes.set(xlabel=label if name is None else f"{label} of {literal(name)}", xlim=(0, 1))
    return axes


@leaves_no_figure
def rank_histogram(
    ranks: ArrayLike,
    n_samples: int,
    *,
    n_bins: int | None = None,
    coverage: float = 0.95,
    simultaneous: bool = True,
    name: str | None = None,
    axes: "Axes | None" = None,
) -> "Axes":
    """Draw the ranks of simulation-based calibration with the band of a calibrated posterior.

    Args:
        ranks: how many of `n_samples` draws lie below the truth [n], 0 to `n_samples`.
        n_samples: S. All S + 1 ranks are equally probable; bars of unequal numbers of ranks have
            bands of their own.
        n_bins, coverage, simultaneous, name, axes: as in `pit_histogram`.

    >>> import numpy as np
    >>> axes = rank_histogram(np.random.default_rng(0).integers(0, 100, 1000), 99)
    """
    count = as_whole("n_samples", n_samples, 1, fix="Pass the number of draws a rank is among.")
    values, shares = _read_uniform("ranks", ranks, None, most=count)
    chosen = min(_n_bins(n_bins, len(values)), count + 1)
    if n_bins is None:
        # Bars of equally many ranks, if their number has a divisor near.
        chosen = next((b for b in range(chosen, chosen // 2, -1) if (count + 1) % b == 0), chosen)
    edges = np.round(np.linspace(0, count + 1, chosen + 1)) - 0.5
    axes = axes_or_new(axes)
    probabilities = np.diff(edges) / (count + 1)
    _histogram(axes, values, shares, edges, probabilities, coverage, simultaneous)
    of = "" if name is None else f" of {literal(name)}"
    axes.set(xlabel=f"rank{of} among {count} draws", xlim=(-0.5, count + 0.5))
    return axes


@leaves_no_figure
def coverage_curve(
    reached: ArrayLike | Mapping[str, ArrayLike],
    *,
    weights: ArrayLike | None = None,
    coverage: float = 0.95,
    axes: "Axes | None" = None,
) -> "Axes":
    """Draw which fraction of the values lies in regions of each coverage.

    Below the diagonal regions are too small, and densities over-confident. The band holds the
    curve of a calibrated model at each coverage alone, from binomial quantiles.

    Args:
        reached: the coverage of the region whose edge runs through each value [n], such as
            `hpd_coverage` or, of intervals with equal tails, `abs(2 * u - 1)` with the
            probability integral transform u; or {label: [n], …}. NaN is left out.
        weights: of the rows [n]; the band is that of their effective number.
        coverage: of the band.
        axes: where to draw; by default on a new figure of pyplot.

    >>> import numpy as np
    >>> axes = coverage_curve(np.random.default_rng(0).uniform(size=1000))
    """
    given = reached if isinstance(reached, Mapping) else {"": reached}
    check_overlaid("reached", len(given))
    read = {str(key): _read_uniform("reached", one, weights) for key, one in given.items()}
    band = check_coverage("coverage", coverage)
    axes = axes_or_new(axes, 4.6, 4.4)
    asked = np.linspace(0, 1, CURVE_POINTS + 2)[1:-1]
    # Of several curves that of the fewest values has the widest band.
    rows = min(_effective(shares) for _, shares in read.values())
    ends = np.array([binomial_quantiles(rows, p, ((1 - band) / 2, (1 + band) / 2)) for p in asked])
    low, high = ends.T / rows
    entries: dict[str, Artist] = {}
    for place, (label, (values, shares)) in enumerate(read.items()):
        order = np.argsort(values, kind="stable")
        total = np.append(0.0, np.cumsum(shares[order]))
        inside = total[np.searchsorted(values[order], asked, side="right")]
        (entries[label],) = axes.plot(
            asked, inside, color=COLOURS[place], ls=DASHES[place], lw=1.8, zorder=3
        )
    entries.pop("", None)
    axes.plot([0, 1], [0, 1], color=GREY, lw=1, ls=":")
    entries[f"{percent(band)} band, pointwise"] = axes.fill_between(
        asked, low, high, color=GREY, alpha=0.25, linewidth=0
    )
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="coverage asked", ylabel="coverage observed")
    axes.set_aspect("equal")
    legend(axes, entries, loc="upper left", fontsize="x-small")
    return axes


@leaves_no_figure
def calibration_figure(
    uniform: ArrayLike,
    *,
    regions: ArrayLike | None = None,
    names: Sequence[str] | None = None,
    weights: ArrayLike | None = None,
    coverage: float = 0.95,
    figure: "Figure | SubFigure | None" = None,
) -> "Figure | SubFigure":
    """Draw a histogram for each target, and the coverage of its intervals and of joint regions.

    Args:
        uniform: probability integral transforms of each target [n, D]; NaN is left out.
        regions: coverages that joint highest-density regions reach [n], as from `hpd_coverage`.
        names: of the targets.
        weights: of the rows [n].
        coverage: of all bands.
        figure: where to draw; by default a new figure of pyplot.

    >>> import numpy as np
    >>> figure = calibration_figure(np.random.default_rng(0).uniform(size=(1000, 2)))
    """
    table = _doubles("uniform", uniform)
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or not 1 <= table.shape[1] <= MAX_PANELS:
        raise ShapeError(
            "uniform",
            got=f"has shape {list(table.shape)}",
            expected=f"[n, D] with up to {MAX_PANELS} targets was expected",
            fix="Pass some of the columns.",
        )
    size = table.shape[1]
    labels = [default_name(d, size) for d in range(size)] if names is None else [*map(str, names)]
    if len(labels) != size:
        raise ShapeError(
            "names",
            got=f"has {len(labels)} entries",
            expected=f"there are {size} targets",
            fix="Pass one for each.",
        )
    # A target that was never observed has no picture.
    seen = [d for d in range(size) if not np.isnan(table[:, d]).all()] or [0]
    table, labels, size = table[:, seen], [labels[d] for d in seen], len(seen)
    n_columns = {1: 2, 2: 3, 3: 2}.get(size, 3)
    n_rows = math.ceil((size + 1) / n_columns)
    figure = figure_or_new(figure, 3.9 * n_columns, 3.4 * n_rows)
    panels: list[Axes] = figure.subplots(n_rows, n_columns, squeeze=False).ravel().tolist()
    for panel, label, column in zip(panels, labels, table.T, strict=False):
        pit_histogram(column, weights=weights, coverage=coverage, axes=panel)
        panel.set(title=literal(label))
    # One colour must be left for the joint regions.
    some = [*zip(labels, table.T, strict=True)][: len(COLOURS) - 1]
    curves: dict[str, ArrayLike] = {label: abs(2 * column - 1) for label, column in some}
    if regions is not None:
        curves["joint region"] = regions
    coverage_curve(curves, weights=weights, coverage=coverage, axes=panels[size])
    for panel in panels[size + 1 :]:
        panel.set_visible(False)
    return figure


def binomial_quantiles(n_rows: int, probability: float, levels: Sequence[float]) -> list[int]:
    """Return the smallest k with P(X ≤ k) ≥ level, for X binomial.

    >>> binomial_quantiles(100, 0.5, [0.025, 0.5, 0.975])
    [40, 50, 60]
    """
    # Less than 10⁻³⁰ lies more than these deviations away.
    reach = 12 * math.sqrt(n_rows * probability * (1 - probability)) + 60
    first = max(0, math.floor(n_rows * probability - reach))
    last = min(n_rows, math.ceil(n_rows * probability + reach))
    k = torch.arange(first, last + 1, dtype=torch.float64)
    n = torch.tensor(float(n_rows), dtype=torch.float64)
    log_ways = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    log_p, log_q = math.log(probability), math.log1p(-probability)
    cumulative = (log_ways + k * log_p + (n - k) * log_q).softmax(0).cumsum(0)
    found = torch.searchsorted(cumulative, torch.tensor([*levels], dtype=torch.float64))
    return [min(first + int(place), last) for place in found]


def _histogram(
    axes: "Axes",
    values: Array,
    shares: Array,
    edges: Array,
    probabilities: Array,
    coverage: float,
    simultaneous: bool,
) -> None:
    """Draw bars relative to what is expected, and the band around it."""
    band = check_coverage("coverage", coverage)
    rows = _effective(shares)
    tail = (1 - band) / 2 / (len(probabilities) if simultaneous else 1)
    ends = np.array([binomial_quantiles(rows, p, (tail, 1 - tail)) for p in probabilities])
    heights, _ = np.histogram(values, edges, weights=shares)
    axes.bar(
        edges[:-1],
        heights / probabilities,
        np.diff(edges),
        align="edge",
        color=BLUE,
        alpha=0.75,
        edgecolor="white",
        linewidth=0.6,
    )
    low, high = (ends / (rows * probabilities[:, None])).T
    # A step more, so that the band reaches the end of the last bar.
    shade = axes.fill_between(
        edges,
        np.append(low, low[-1]),
        np.append(high, high[-1]),
        step="post",
        color=DARK,
        alpha=0.22,
        linewidth=0,
        zorder=2,
    )
    line = axes.axhline(1.0, color=DARK, lw=1, ls=":")
    scope = "all bars together" if simultaneous else "each bar alone"
    axes.set_ylabel("rows, relative to expected")
    axes.set_ylim(0, 1.25 * max(1.0, float(high.max()), float((heights / probabilities).max())))
    legend(axes, {"calibrated": line, f"{percent(band)} band, {scope}": shade}, fontsize="x-small")


def _n_bins(n_bins: int | None, n_rows: int) -> int:
    if n_bins is not None:
        return as_whole("n_bins", n_bins, 2, 10_000, fix="Pass 20, for instance.")
    return max(2, min(MAX_BINS, n_rows // ROWS_PER_BIN))


def _effective(shares: Array) -> int:
    """Return the effective number of rows with shares that sum to one."""
    # Rounding must not make 999 of 1000 equal shares.
    return max(1, math.floor(1 / float(np.square(shares).sum()) * (1 + 1e-9)))


def _doubles(name: str, values: Any) -> Array:
    return as_tensor(name, values, torch.empty(0)).detach().double().numpy()


def _read_uniform(
    name: str, values: Any, weights: Any, *, most: float = 1.0
) -> tuple[Array, Array]:
    """Return the values that are not NaN [n], from 0 to `most`, and their shares, of sum one."""
    read = _doubles(name, values)
    if read.ndim != 1:
        raise ShapeError(
            name,
            got=f"has shape {list(read.shape)}",
            expected="[n] was expected",
            fix="Pass one column.",
        )
    shares = np.ones(len(read)) if weights is None else _doubles("weights", weights)
    if shares.shape != read.shape:
        raise ShapeError(
            "weights",
            got=f"has shape {list(shares.shape)}",
            expected=f"there are {len(read)} rows",
            fix="Pass one a row.",
        )
    seen = ~np.isnan(read) & (shares != 0)
    read, shares = read[seen], shares[seen]
    if not len(read) or not np.isfinite(shares).all() or (shares < 0).any():
        raise NotFiniteError(
            "weights" if len(read) else name,
            got="has negative or infinite entries" if len(read) else "has no entry that counts",
            expected="at least one row and weights of zero and more were expected",
            fix="Pass the observed rows.",
        )
    if (read < 0).any() or (read > most).any():
        raise ArgumentError(
            name,
            got=f"has {read[(read < 0) | (read > most)][0]:g}",
            expected=f"numbers from 0 to {most:g} were expected",
            fix="Pass probabilities." if most == 1 else "Check n_samples.",
        )
    shares = shares / shares.max()  # the sum of the largest numbers would overflow
    return read, shares / shares.sum()
