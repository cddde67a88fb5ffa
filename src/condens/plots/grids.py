"""Mixtures on the axes of a picture: where to ask them, and which level has a coverage."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from condens.distributions import Mixture
from condens.distributions.checks import Numbers, as_tensor
from condens.distributions.dimensions import Dimension, in_order, resolve_dimensions
from condens.errors import DimensionError, KindError, ShapeError
from condens.plots.style import MAX_LABEL, check_overlaid, literal
from condens.scalars import as_levels
from condens.transforms import Positive, Transform

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array: TypeAlias = NDArray[np.float64]
# A point [D], or the values of some dimensions.
Point: TypeAlias = Mapping[str, float] | Mapping[int, float] | Numbers
# One density, or several with or without names.
Mixtures: TypeAlias = Mixture | Sequence[Mixture] | Mapping[str, Mixture]

# Probability beyond either end of an axis.
TAIL, COUNT_TAIL = 1e-3, 5e-3
# How much longer than the range of 90 % the axis of a count may be.
COUNT_REACH = 5.0
# Ratio of a positive target's quantiles from which on its axis is logarithmic.
LOG_RATIO = 300.0
# Half the gap between the cells of two whole numbers, which keeps contours along their edges.
GAP = 1e-6
# Draws that find the level of a coverage: a standard error of 0.25 % for 50 %.
LEVEL_DRAWS = 40_000
# Whole numbers with a bar each; beyond, a bar stands for several.
MAX_BARS = 200
# Points asked at once.
POINTS_PER_BLOCK = 20_000


class Grid(NamedTuple):
    """The points of one axis.

    Args:
        points: where they are drawn [n], ascending.
        values: what the density is asked of [n]: the points, or the whole number of their cell.
        limits: of the axis.
        log: whether the axis is logarithmic; then densities are per decade.
        step: 0 of continuous axes, else how many whole numbers one cell stands for.
    """

    points: Array
    values: Array
    limits: tuple[float, float]
    log: bool
    step: int

    @property
    def log_unit(self) -> Array:
        """The logarithm of how many units of the target one unit of the drawn axis has."""
        return log_unit(self.points, self.log)

    @property
    def quantity(self) -> str:
        """What the height of a curve over the axis is."""
        return "probability" if self.step else f"density{' per decade' * self.log}"


def log_unit(values: Array, log: bool) -> Array:
    """Return log(dy/d log₁₀ y) of an axis that is logarithmic, else 0."""
    return np.log(values * math.log(10)) if log else np.zeros_like(values)


def read_mixture(name: str, mixture: Mixture) -> Mixture:
    """Return one mixture without batch axes, in double precision."""
    if not isinstance(mixture, Mixture):
        raise KindError(
            name,
            got=f"is {type(mixture).__name__}",
            expected="a mixture was expected",
            fix="Pass what predict_dist or a network returns, one of the batch.",
        )
    if mixture.batch_shape.numel() != 1:
        raise ShapeError(
            name,
            got=f"has batch shape {list(mixture.batch_shape)}",
            expected="one density was expected",
            fix=f"Pass one of them, {name}[0], or overlay some: list({name}[:3]), or "
            f"{name}[:3].plot(overlay=True).",
        )
    return plain(mixture[(0,) * len(mixture.batch_shape)])


def plain(mixture: Mixture) -> Mixture:
    """Return a mixture in double precision on the CPU, without gradients."""
    moved = mixture.to("cpu", torch.float64)
    return moved._rearranged(tensor.detach() for tensor in moved.parameters)


def read_mixtures(name: str, mixtures: Mixtures) -> dict[str, Mixture]:
    """Return mixtures over the same dimensions by their labels; "" for one alone."""
    if isinstance(mixtures, Mixture | str) or not isinstance(mixtures, Mapping | Sequence):
        return {"": read_mixture(name, mixtures)}
    given = mixtures if isinstance(mixtures, Mapping) else dict(enumerate(mixtures))
    check_overlaid(name, len(given))
    read = {str(label): read_mixture(f"{name}[{label!r}]", one) for label, one in given.items()}
    first = next(iter(read.values()))
    for label, one in read.items():
        if (one.dimensions, one.names, one.transforms) != (
            first.dimensions,
            first.names,
            first.transforms,
        ):
            raise DimensionError(
                f"{name}[{label!r}]",
                got=f"is {one}",
                expected=f"the first one is {first}",
                fix="Overlay mixtures over the same dimensions; reorder with marginal(dims).",
            )
    return read


def label_of(mixture: Mixture, dim: int) -> str:
    """Return the name of a dimension."""
    return default_name(dim, mixture.dimensions) if mixture.names is None else mixture.names[dim]


def default_name(dim: int, dimensions: int) -> str:
    """Return what a dimension without a name is called."""
    return "value" if dimensions == 1 else f"dimension {dim}"


def resolve(argument: str, dim: Dimension | None, mixture: Mixture) -> int:
    """Return the index of one dimension; None is the only one."""
    if dim is None and mixture.dimensions > 1:
        raise DimensionError(
            argument,
            got="is None",
            expected=f"the mixture has {mixture.dimensions} dimensions",
            fix="Pass the index or the name of one.",
        )
    found = resolve_dimensions(
        argument, 0 if dim is None else dim, mixture.dimensions, mixture.names
    )
    if len(found) > 1:
        raise DimensionError(
            argument, got=f"is {dim!r}", expected="one dimension was expected", fix="Pass one."
        )
    return found[0]


def read_point(name: str, value: Any, mixture: Mixture) -> Array | None:
    """Return a point [D], NaN where it is not known; by names, a frame's row or an array."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        point = np.full(mixture.dimensions, np.nan)
        for dim, entry in value.items():
            point[resolve(name, dim, mixture)] = as_tensor(name, entry, mixture.means).item()
        return point
    if hasattr(value, "index") and hasattr(value, "to_frame") and mixture.names is not None:
        value = value.to_frame().T if set(value.index) == set(mixture.names) else value
    table = read_table(name, value, mixture)
    if len(table) != 1:
        raise ShapeError(
            name,
            got=f"has {len(table)} rows",
            expected="one point was expected",
            fix="Pass one row.",
        )
    return table[0]


def read_table(name: str, value: Any, mixture: Mixture) -> Array:
    """Return points [S, D], NaN where an entry is not known."""
    ordered = in_order(name, value, mixture.names)
    tensor = as_tensor(name, ordered, mixture.means).detach().cpu().double()
    dimensions = mixture.dimensions
    flat = tensor.dim() < 2 and dimensions == 1
    if not flat and (not tensor.dim() or tensor.shape[-1] != dimensions):
        raise ShapeError(
            name,
            got=f"has shape {list(tensor.shape)}",
            expected=f"the mixture has {dimensions} dimension(s)",
            fix=f"Pass [..., {dimensions}].",
        )
    return tensor.reshape(-1, dimensions).numpy()


def make_grid(
    lines: Sequence[Mixture],
    n_points: int,
    include: Array | None = None,
    *,
    tail: float = TAIL,
    most: int = MAX_BARS,
) -> Grid:
    """Return the axis on which all of some one-dimensional mixtures are seen.

    Half of the points are even, half are quantiles, which are dense where the densities are.

    Args:
        lines: mixtures with the same transform, of any batch shape.
        n_points: how many to ask.
        include: further values that the axis shall show.
        tail: probability beyond either end.
        most: cells of whole numbers.
    """
    transform = lines[0].transforms[0]
    counts = transform.discrete and transform.exponential
    tail = max(tail, COUNT_TAIL) if counts else tail
    # Of many densities a few quantiles each.
    n_levels = max(n_points // 2 // max(line.batch_shape.numel() for line in lines), 9)
    levels = torch.linspace(tail, 1 - tail, n_levels, dtype=torch.float64)
    quantiles = np.sort(
        np.concatenate(
            [
                line.quantile(levels.reshape(-1, *[1] * len(line.batch_shape))).ravel()
                for line in lines
            ]
        ).clip(-1e300, 1e300)
    )
    if counts:
        # A linear axis has no room for a tail that is hundreds of times as long as the rest.
        ends = [float(line.quantile(torch.tensor(0.9)).max()) for line in lines]
        quantiles = quantiles[quantiles <= max(COUNT_REACH * max(ends), quantiles[0] + 10)]
    dense = quantiles[np.linspace(0, len(quantiles) - 1, n_points // 2).astype(int)]
    shown = dense if include is None else np.append(dense, include[np.isfinite(include)])
    low, high = float(shown.min()), float(shown.max())
    if transform.discrete:
        return _whole_grid(low, high, most)
    lower, upper = _support(transform)
    if isinstance(transform, Positive) and lower == 0 < low and high > LOG_RATIO * low:
        even = np.geomspace(low, high, n_points - len(dense))
        points = np.unique(np.concatenate([even, dense]))
        return Grid(points, points, (low, high), log=True, step=0)
    margin = 0.03 * (high - low) or 1e-3 * abs(high) or 1e-3
    # A bound that is near belongs to the picture; nothing is drawn beyond it.
    limits = (
        lower if low - lower < 3 * margin else low - margin,
        upper if upper - high < 3 * margin else high + margin,
    )
    start, end = transform.nearest(torch.tensor(limits, dtype=torch.float64)).tolist()
    even = np.linspace(start, end, n_points - len(dense))
    points = np.unique(np.concatenate([even, dense]))
    return Grid(points, points, limits, log=False, step=0)


def _whole_grid(low: float, high: float, most: int) -> Grid:
    """Return cells of whole numbers: both edges of each, at which it has the same value."""
    first, last = math.floor(low), math.ceil(high)
    step = 1 + 2 * math.ceil(((last - first + 1) / most - 1) / 2)  # odd, with one in the middle
    values = np.arange(first, last + 1, step, dtype=np.float64)
    half = 0.5 * step
    edges = np.stack([values - half * (1 - GAP), values + half * (1 - GAP)], -1)
    limits = (float(values[0] - half), float(values[-1] + half))
    return Grid(edges.ravel(), values.repeat(2), limits, log=False, step=step)


def _support(transform: Transform) -> tuple[float, float]:
    ends = torch.tensor([-torch.inf, torch.inf], dtype=torch.float64)
    lower, upper = transform.from_real(ends).tolist()
    return lower, upper


def line_density(line: Mixture, grid: Grid) -> Array:
    """Return densities of a one-dimensional mixture at the points of a grid [n, *batch].

    Per unit of the drawn axis; of whole numbers their probability, the mean of a cell's.
    """
    shape = (-1, *[1] * len(line.batch_shape))
    values = torch.from_numpy(grid.values.reshape(shape))
    if grid.step > 1:
        half = grid.step / 2
        below, up_to = (line.cdf((values + end).unsqueeze(-1)) for end in (-half, half))
        return ((up_to - below) / grid.step).numpy()
    log_density = line.log_prob(values.unsqueeze(-1)).numpy()
    return finite_exp(log_density + grid.log_unit.reshape(shape))


def finite_exp(log_density: Array) -> Array:
    """Return densities up to 10²⁵⁰, more than which matplotlib cannot scale."""
    return np.exp(np.minimum(log_density, math.log(1e250)))


def plane_log_density(plane: Mixture, x: Grid, y: Grid) -> Array:
    """Return log densities of a two-dimensional mixture on a grid [len(y), len(x)].

    Per unit of the drawn axes.
    """
    # Both edges of a whole number's cell have one value.
    columns, to_x = np.unique(x.values, return_inverse=True)
    rows, to_y = np.unique(y.values, return_inverse=True)
    points = torch.cartesian_prod(torch.from_numpy(rows), torch.from_numpy(columns)).flip(-1)
    density = _log_prob(plane, points).reshape(len(rows), len(columns))[np.ix_(to_y, to_x)]
    return density + x.log_unit + y.log_unit[:, None]


def _log_prob(mixture: Mixture, points: Tensor) -> Array:
    """Return the log density at points [S, D], some at a time."""
    parts = points.split(POINTS_PER_BLOCK)
    return torch.cat([mixture.log_prob(part) for part in parts]).numpy()


def draws(mixture: Mixture, n_samples: int = LEVEL_DRAWS) -> Tensor:
    """Return the same draws of a mixture every time [S, D]."""
    return mixture.sample((n_samples,), generator=Generator().manual_seed(0))


def levels_of(plane: Mixture, drawn: Tensor, coverages: Sequence[float], x: Grid, y: Grid) -> Array:
    """Return the log densities above which the coverages lie, per unit of the drawn axes.

    Shapes: drawn [S, 2], from the plane; coverages [L] → [L].
    """
    if x.step and y.step:
        # Whole numbers are drawn many times: pairs as complex numbers are told apart fast.
        pairs = np.ascontiguousarray(drawn.numpy()).view(np.complex128).ravel()
        distinct, where = np.unique(pairs, return_inverse=True)
        found = _log_prob(plane, torch.view_as_real(torch.from_numpy(distinct)))[where]
    else:
        found = _log_prob(plane, drawn)
    for column, grid in zip(drawn.numpy().T, (x, y), strict=True):
        found = found + log_unit(column, grid.log)
    # Below the level itself, which may be that of a whole number's cell, a plateau.
    return np.quantile(found, 1 - np.asarray(coverages), method="lower") - 1e-6


def check_coverages(coverages: Sequence[float]) -> list[float]:
    """Return coverages, each once, the largest first."""
    return sorted({*as_levels("coverages", coverages)}, reverse=True)


def set_axis(
    axes: "Axes",
    side: Literal["x", "y"],
    name: str,
    grid: Grid,
    *,
    n_ticks: int = 6,
    length: int = MAX_LABEL,
) -> None:
    """Set scale, limits, ticks and name of an axis."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    axis = axes.xaxis if side == "x" else axes.yaxis
    if grid.log:
        axes.set(**{f"{side}scale": "log"})
        axis.set_major_locator(LogLocator(numticks=n_ticks))
    else:
        axis.set_major_locator(MaxNLocator(n_ticks, integer=grid.step > 0, min_n_ticks=2))
    axes.set(**{f"{side}lim": grid.limits, f"{side}label": literal(name, length)})
