"""Answers of the explorer: a model and a checked request in, JSON values out.

The mathematics is that of `Mixture`; here it is asked, and put on the axes of a page.
"""

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from condens._version import __version__
from condens.data.encoder import Categories
from condens.data.frames import Category, Codes, is_frame
from condens.data.rows import Rows
from condens.data.table import Table, TableLike
from condens.distributions import GaussianMixture, Mixture, TransformedMixture
from condens.errors import ArgumentError, CondensError
from condens.estimator.predictions import Predictions
from condens.estimator.regressor import MDNRegressor
from condens.estimator.summary import CategorySummary, Summary
from condens.evaluation import evaluate
from condens.explorer.schema import MAX_NEAR, MAX_TARGETS, Column, RequestError, Requests, shown
from condens.functional.estimates import hpd_threshold
from condens.plots.grids import Grid, draws, line_density, log_unit, make_grid
from condens.transforms import Real

Values = dict[str, Any]
Array = NDArray[np.float64]

# Draws that find the contours: a standard error of 1.6 % for 50 %.
LEVEL_DRAWS = 1000
# Probability beyond either end of an axis, and how much longer it is than what lies between.
AXIS_TAIL, AXIS_MARGIN = 4e-3, 0.06
# Quantiles that find the ends of an axis of constrained targets, twice.
AXIS_POINTS = 18
# Cells of whole numbers on one axis, of a line and of a plane.
MAX_CELLS, MAX_PLANE_CELLS = 100, 40
# Components with an ellipse, and points of each.
MIN_WEIGHT, MAX_ELLIPSES, ELLIPSE_POINTS = 0.01, 30, 33
# Rows of data that are kept to be shown near a condition, and that a report is made of.
MAX_DATA_ROWS, MAX_REPORT_ROWS = 200_000, 5_000
# Another category counts as this many standard deviations.
CATEGORY_DISTANCE = 2.0
# At least so many rows are near, and at most one in so many.
MIN_NEAR, NEAR_PART = 20, 20


@dataclass(frozen=True)
class Subject:
    """A model, its name, and rows to show beside its densities.

    Args:
        model: fitted.
        name: of its file.
        rows: encoded conditions and targets; None where no data may be shown.
        n_left_out: rows that were too many.
        judged: X and y that the report is about.
    """

    model: MDNRegressor
    name: str = "model.condens"
    rows: Rows | None = None
    n_left_out: int = 0
    judged: tuple[Any, Any] | None = None
    requests: Requests = field(init=False)

    def __post_init__(self) -> None:
        """Read the columns."""
        encoder = self.model.encoder_
        names = encoder.feature_names or map(str, range(encoder.n_features))
        columns = tuple(
            Column(
                name,
                feature.values if isinstance(feature, Categories) else None,
                feature.missing if isinstance(feature, Categories) else feature.fill is not None,
            )
            for name, feature in zip(names, encoder.features, strict=True)
        )
        targets = self.model.target_names_ or tuple(map(str, range(self.model.n_targets_)))
        object.__setattr__(self, "requests", Requests(columns, tuple(targets)))

    @classmethod
    def of(cls, model: MDNRegressor, name: str, data: TableLike | None = None) -> "Subject":
        """Return a model with the rows of a frame that has its conditions and targets."""
        if data is None:
            return cls(model, name)
        X, y = _divide(data, cls(model, name))  # noqa: N806
        rows = model.read_rows(X, y).observed("data")
        left_out = max(len(rows) - MAX_DATA_ROWS, 0)
        if left_out:
            order = torch.randperm(len(rows), generator=Generator().manual_seed(0))
            rows = rows.take(order[:MAX_DATA_ROWS].sort().values)
        judged = (_some(X, MAX_REPORT_ROWS), _some(y, MAX_REPORT_ROWS))
        return cls(model, name, rows, left_out, judged)

    @property
    def conditions(self) -> tuple[Column, ...]:
        """The columns of X."""
        return self.requests.conditions

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the targets."""
        return self.requests.targets

    @property
    def summary(self) -> Summary | None:
        """The summary of the fit, if it was stored."""
        return getattr(self.model, "summary_", None)

    def table(self, conditions: Sequence[Mapping[str, Any]]) -> Table:
        """Return checked conditions as a table of rows."""
        numbers: list[Array] = []
        places: list[int] = []
        codes: dict[int, Codes] = {}
        for place, column in enumerate(self.conditions):
            values = [condition[column.name] for condition in conditions]
            if column.categories is None:
                places.append(place)
                numbers.append(np.array([np.nan if v is None else v for v in values], np.float64))
            else:
                seen: list[Category] = sorted({_category(v) for v in values if v is not None})
                at = [-1 if v is None else seen.index(_category(v)) for v in values]
                if seen:
                    codes[place] = Codes(np.array(at), seen)
                else:
                    places.append(place)
                    numbers.append(np.full(len(values), np.nan))
        matrix = np.column_stack(numbers) if numbers else np.empty((len(conditions), 0))
        labels = [f"column {column.name!r}" for column in self.conditions]
        return Table(matrix, places, codes, labels, self.model.encoder_.feature_names)

    @cached_property
    def report(self) -> str:
        """The page that judges the model by the rows of data."""
        if self.judged is None:
            raise RequestError(
                "the report",
                status=404,
                code="no_data",
                got="needs rows",
                expected="the explorer was started without any",
                fix="Start it with --data, and rows that were not used in fit.",
            )
        found = evaluate(self.model, *self.judged, progress=False)
        return found.to_html(progress=False)


class State(NamedTuple):
    """The density for a request, what is given, and how unusual the condition is."""

    subject: Subject
    density: Mixture
    free: list[int]
    condition: Tensor
    given: dict[int, float]
    log_prob_given: float
    novelty: float


def answer_all(
    subject: Subject, asked: Sequence[tuple[str, Values]]
) -> list[Values | CondensError]:
    """Return the answers to requests, with one pass of the network for all of them.

    Args:
        subject: what is asked.
        asked: kinds (`density`, `sample`, `query`, `python`) and checked requests.
    """
    with torch.no_grad():
        condition = subject.model.encoder_.encode(
            subject.table([request["condition"] for _, request in asked]), "condition"
        )
        found = Predictions(subject.model.network_, condition, flat=False).densities(tail=False)
        novelty = subject.model.novelty_(condition).tolist()
        rows = zip(found, condition, novelty, asked, strict=True)
        return [_answer(subject, *row) for row in rows]


def answer(subject: Subject, kind: str, request: Values) -> Values:
    """Return the answer to one request, or raise."""
    (found,) = answer_all(subject, [(kind, request)])
    if isinstance(found, CondensError):
        raise found
    return found


def _answer(
    subject: Subject,
    density: Mixture,
    condition: Tensor,
    novelty: float,
    asked: tuple[str, Values],
) -> Values | CondensError:
    kind, request = asked
    try:
        state = _state(subject, density, condition, request["given"], novelty)
        return KINDS[kind](state, request)
    except CondensError as error:
        return error


def _state(
    subject: Subject, density: Mixture, condition: Tensor, given: Values, novelty: float
) -> State:
    """Return the density of the free targets, given values of the others."""
    fixed = {subject.targets.index(name): value for name, value in given.items()}
    free = [dim for dim in range(density.dimensions) if dim not in fixed]
    if not free:
        raise RequestError(
            "given",
            code="all_given",
            got="has a value for every target",
            expected="one target at least has to be free",
            fix="Leave one of them out.",
        )
    log_prob = 0.0
    if fixed:
        for dim, value in fixed.items():
            transform = density.transforms[dim]
            try:
                transform.check(shown(subject.targets[dim]), _doubles([value]))
            except ArgumentError as error:
                raise RequestError(str(error), code="outside_support") from None
        dims = sorted(fixed)
        log_prob = float(density.marginal(dims).log_prob(_doubles([fixed[d] for d in dims])))
        density = density.condition(fixed)
    return State(subject, density, free, condition, fixed, log_prob, novelty)


# The model.


def describe(subject: Subject) -> Values:
    """Return what the page shows of a model before any density is asked for."""
    model, summary = subject.model, subject.summary
    columns = [_describe_condition(subject, place) for place in range(len(subject.conditions))]
    targets = []
    for place, (name, transform) in enumerate(zip(subject.targets, model.transforms_, strict=True)):
        one = None if summary is None else dict(enumerate(summary.targets)).get(place)
        targets.append(
            {
                "name": name,
                "whole": transform.discrete,
                "low": None if one is None else one.low,
                "high": None if one is None else one.high,
                "counts": [] if one is None else list(one.counts),
            }
        )
    return {
        "name": subject.name,
        "version": __version__,
        "conditions": columns,
        "targets": targets,
        "n_rows": None if summary is None else summary.n_rows,
        "n_components": model.n_components_,
        "n_members": model.n_members,
        "calibrated": hasattr(model, "calibration_"),
        "data": None if subject.rows is None else len(subject.rows),
        "data_left_out": subject.n_left_out,
        "limits": {"targets": MAX_TARGETS, "near": MAX_NEAR},
    }


def _describe_condition(subject: Subject, place: int) -> Values:
    column, encoder = subject.conditions[place], subject.model.encoder_
    summaries = () if subject.summary is None else subject.summary.conditions
    one = summaries[place] if place < len(summaries) else None
    found: Values = {"name": column.name, "may_miss": column.may_miss, "counts": []}
    if column.categories is not None:
        counts = {}
        if isinstance(one, CategorySummary):
            counts = dict(zip(one.values, one.counts, strict=True))
        start = next(iter(counts), column.categories[0])
        return found | {
            "kind": "categories",
            "values": list(column.categories),
            "counts": [counts.get(value) for value in column.categories],
            "start": start,
        }
    if one is not None and not isinstance(one, CategorySummary):
        return found | {
            "kind": "numbers",
            "low": one.low,
            "high": one.high,
            "start": one.quantiles[2],
            "whole": one.whole,
            "counts": list(one.counts),
        }
    scaling, at = subject.model.network_.condition_scaling, encoder.places[place][0]
    assert scaling is not None  # of every network that MDNRegressor builds
    low, high = float(scaling.lower[at]), float(scaling.upper[at])
    low, high = (low, high) if low <= high else (-1.0, 1.0)
    start = min(max(float(scaling.location[at]), low), high)
    return found | {"kind": "numbers", "low": low, "high": high, "start": start, "whole": False}


# Densities.


def density(state: State, request: Values) -> Values:
    """Return marginals, pairs and numbers of the density of the free targets."""
    subject, whole = state.subject, state.density
    coverages = sorted(set(request["coverages"]))
    lines = [whole.marginal(place) for place in range(whole.dimensions)]
    tails = [AXIS_TAIL, *(0.5 * (1 - coverage) for coverage in coverages)]
    found = _quantiles(lines, [*request["levels"], *tails, *(1 - tail for tail in tails)])
    drawn = draws(whole, LEVEL_DRAWS)
    shown_targets = _shown(state, request["targets"])
    grids = {}
    targets = _numbers(state, lines, request["levels"], coverages, found)
    n_levels = len(request["levels"])
    ends = [(each[n_levels], each[n_levels + len(tails)]) for each in found]
    for dim in shown_targets:
        place = state.free.index(dim)
        curve, plane = _grids(lines[place], ends[place], request, subject.targets[dim])
        grids[dim] = plane
        targets[place] |= {
            "axis": _axis(curve),
            "points": curve.points.tolist(),
            "density": _finite(line_density(lines[place], curve).tolist()),
        }
    return {
        **_about(state),
        "targets": targets,
        "pairs": _pairs(state, grids, drawn, coverages, request["encoding"]),
        "coverages": coverages,
        "region": _region(state, drawn, coverages),
        "near": _near(state, request["near"]),
        "encoding": request["encoding"],
    }


def _stacked(mixtures: Sequence[Mixture]) -> Mixture:
    """Return mixtures with the same transforms as a batch: one call in place of many."""
    first = mixtures[0]
    if len(mixtures) == 1:
        return first.expand((1,))
    parts = [torch.stack(each) for each in zip(*(m.parameters for m in mixtures), strict=True)]
    if isinstance(first, TransformedMixture):
        return TransformedMixture(GaussianMixture(*parts), first.transforms)
    return type(first)(*parts)


def _groups(keys: Sequence[Any]) -> list[list[int]]:
    """Return the places of equal keys."""
    found: dict[Any, list[int]] = {}
    for place, key in enumerate(keys):
        found.setdefault(key, []).append(place)
    return list(found.values())


def _quantiles(lines: Sequence[Mixture], levels: Sequence[float]) -> list[list[float]]:
    """Return quantiles of one-dimensional mixtures."""
    asked = _doubles(levels)[:, None]
    found: dict[int, list[float]] = {}
    for places in _groups([line.transforms for line in lines]):
        values = _stacked([lines[place] for place in places]).quantile(asked)
        found |= dict(zip(places, values.T.tolist(), strict=True))
    return [found[place] for place in range(len(lines))]


def _about(state: State) -> Values:
    """Return what is asked, and how far it may be trusted."""
    subject = state.subject
    model, encoder = subject.model, subject.model.encoder_
    scaling = model.network_.condition_scaling
    assert scaling is not None  # of every network that MDNRegressor builds
    outside = scaling.outside(state.condition)
    places = zip(subject.conditions, encoder.places, encoder.features, strict=True)
    found = list(places)
    return {
        "given": {subject.targets[dim]: value for dim, value in state.given.items()},
        "log_prob_given": _finite([state.log_prob_given])[0],
        "novelty": _finite([state.novelty])[0],
        "outside": [column.name for column, where, _ in found if bool(outside[where].any())],
        "unknown": [
            column.name
            for column, where, feature in found
            if isinstance(feature, Categories) and float(state.condition[where[0]]) == 0
        ],
    }


def _shown(state: State, names: Sequence[str]) -> list[int]:
    """Return the free targets to draw: those asked for, else the first ones."""
    asked = [state.subject.targets.index(name) for name in dict.fromkeys(names)]
    return [dim for dim in asked if dim in state.free] if asked else state.free[:MAX_TARGETS]


def _grids(line: Mixture, ends: Sequence[float], request: Values, name: str) -> tuple[Grid, Grid]:
    """Return the axis of a target, for a curve and for a plane: even steps between limits."""
    transform = line.transforms[0]
    if transform.discrete:
        curve, plane = (
            make_grid([line], AXIS_POINTS, most=n) for n in (MAX_CELLS, MAX_PLANE_CELLS)
        )
        # Of a whole number's two edges the plane needs one, its middle.
        middles = plane.values[::2]
        return curve, plane._replace(points=middles, values=middles)
    if isinstance(transform, Real):
        margin = AXIS_MARGIN * (ends[1] - ends[0]) or 1e-3 * abs(ends[0]) or 1e-3
        low, high, log = ends[0] - margin, ends[1] + margin, False
    else:
        found = make_grid([line], AXIS_POINTS)
        (low, high), log = found.limits, found.log
    asked = request["limits"].get(name)
    if asked is not None and asked[0] < asked[1] and (asked[0] > 0 or not log):
        low, high = asked
    start, end = transform.nearest(_doubles([low, high])).tolist()
    space = np.geomspace if log else np.linspace
    counts = (request["points"], request["pixels"])
    curve, plane = (
        Grid(points, points, (low, high), log, 0)
        for points in (space(start, end, count) for count in counts)
    )
    return curve, plane


def _axis(grid: Grid) -> Values:
    low, high = grid.limits
    return {
        "low": low,
        "high": high,
        "log": grid.log,
        "step": grid.step,
        "quantity": grid.quantity,
    }


def _numbers(
    state: State,
    lines: Sequence[Mixture],
    levels: Sequence[float],
    coverages: list[float],
    found: list[list[float]],
) -> list[Values]:
    """Return moments, quantiles and intervals of every free target.

    `found` are quantiles at the levels, then at the lower ends of axis and intervals, then at the
    upper ones.
    """
    moments = (state.density.mean.tolist(), state.density.stddev.tolist())
    numbers = []
    for dim, line, quantiles, mean, spread in zip(state.free, lines, found, *moments, strict=True):
        below, above = np.split(np.array(quantiles[len(levels) :]), 2)
        below, above = below[1:], above[1:]
        if line.transforms[0].discrete:
            # The upper end of whole numbers is not the quantile of what lies below it.
            asked = _doubles(coverages)
            below, above = (end.squeeze(-1).numpy() for end in line.interval(asked))
        numbers.append(
            {
                "name": state.subject.targets[dim],
                "mean": _finite([mean])[0],
                "stddev": _finite([spread])[0],
                "levels": list(levels),
                "quantiles": _finite(quantiles[: len(levels)]),
                "intervals": [
                    _finite(pair) for pair in zip(below.tolist(), above.tolist(), strict=True)
                ],
            }
        )
    return numbers


def _pairs(
    state: State,
    grids: Mapping[int, Grid],
    drawn: Tensor,
    coverages: list[float],
    encoding: str,
) -> list[Values]:
    """Return the densities of pairs of targets on grids, relative to the highest point there."""
    dims = list(combinations(grids, 2))
    places = [[state.free.index(dim) for dim in pair] for pair in dims]
    planes = [state.density.marginal(pair) for pair in places]
    shapes = [tuple(len(grids[dim].points) for dim in pair) for pair in dims]
    keys = [(plane.transforms, shape) for plane, shape in zip(planes, shapes, strict=True)]
    encode = _encoded if encoding == "base64" else _listed
    found: dict[int, Values] = {}
    for group in _groups(keys):
        stack = _stacked([planes[one] for one in group])
        points, units = [], []
        for one in group:
            x, y = (grids[dim] for dim in dims[one])
            at_x, at_y = np.tile(x.values, len(y.values)), y.values.repeat(len(x.values))
            mine = torch.cat([torch.from_numpy(np.stack([at_x, at_y], -1)), drawn[:, places[one]]])
            points.append(mine)
            units.append(
                sum(log_unit(c, g.log) for c, g in zip(mine.numpy().T, (x, y), strict=True))
            )
        logs = stack.log_prob(torch.stack(points, 1)).T.numpy() + np.stack(units)
        ellipses = _ellipses(stack)
        for one, level, rims in zip(group, logs, ellipses, strict=True):
            x, y = (grids[dim] for dim in dims[one])
            values, of_draws = np.split(level, [len(level) - len(drawn)])
            # The level itself may be that of a whole number's cell, a plateau.
            levels = np.quantile(of_draws, 1 - np.array(coverages), method="lower") - 1e-6
            peak = float(max(values.max(), -1e300))
            marks = np.exp(np.minimum(levels - peak, 0.0))
            weights, rim = rims
            found[one] = {
                "x": state.subject.targets[dims[one][0]],
                "y": state.subject.targets[dims[one][1]],
                "axes": [_axis(x), _axis(y)],
                "shape": [len(y.points), len(x.points)],
                "log_peak": peak,
                "density": encode(np.exp(values - peak).reshape(len(y.points), -1)),
                "levels": marks.tolist(),
                "ellipses": {
                    "weights": weights,
                    "shape": list(rim.shape),
                    "points": encode(rim),
                },
            }
    return [found[one] for one in range(len(dims))]


def _ellipses(planes: Mixture) -> list[tuple[list[float], Array]]:
    """Return weights and one standard deviation of the components that count, for each plane."""
    latent = planes.base if isinstance(planes, TransformedMixture) else planes
    if any(transform.discrete for transform in planes.transforms):
        return [([], np.zeros((0, ELLIPSE_POINTS, 2)))] * len(planes)
    turn = torch.linspace(0, 2 * torch.pi, ELLIPSE_POINTS, dtype=torch.float64)
    circle = torch.stack([turn.cos(), turn.sin()], -1)
    variances, directions = torch.linalg.eigh(latent.covariance_matrices.double())
    rims = (circle * variances.clamp(min=0).sqrt().unsqueeze(-2)) @ directions.mT
    points = latent.means.double().unsqueeze(-2) + rims
    columns = zip(planes.transforms, points.unbind(-1), strict=True)
    bent = torch.stack([transform.from_real(each) for transform, each in columns], -1)
    found = []
    for weights, mine in zip(latent.weights, bent.clamp(-1e300, 1e300), strict=True):
        heaviest = weights.argsort(descending=True)[:MAX_ELLIPSES]
        heaviest = heaviest[weights[heaviest] >= MIN_WEIGHT]
        found.append((weights[heaviest].tolist(), mine[heaviest].numpy()))
    return found


def _region(state: State, drawn: Tensor, coverages: list[float]) -> list[Values]:
    """Return the log densities above which the coverages of all free targets lie."""
    levels = state.density.log_prob(drawn)
    return [
        {"coverage": c, "log_threshold": _finite([hpd_threshold(levels, c).value.item()])[0]}
        for c in coverages
    ]


def _near(state: State, count: int) -> Values | None:
    """Return the targets of the rows of data whose conditions, and given targets, are nearest."""
    subject, rows = state.subject, state.subject.rows
    if rows is None or not count:
        return None
    network, encoder = subject.model.network_, subject.model.encoder_
    scaling = network.condition_scaling
    assert scaling is not None  # of every network that MDNRegressor builds
    numbers = encoder.numeric
    scale = scaling.scale[:numbers].double()
    apart = (rows.condition[:, :numbers] - state.condition[:numbers]) / scale
    squares = apart.square().sum(1)
    codes = rows.condition[:, numbers:] != state.condition[numbers:]
    squares = squares + CATEGORY_DISTANCE**2 * codes.sum(1)
    if state.given:
        spread = torch.from_numpy(np.nanstd(rows.target.numpy(), 0)).clamp(min=1e-300)
        for dim, value in state.given.items():
            squares = squares + ((rows.target[:, dim] - value) / spread[dim]).square()
    squares = squares.nan_to_num(nan=math.inf)
    # Of few rows most are not near.
    most = max(MIN_NEAR, len(rows) // NEAR_PART)
    found, order = squares.topk(min(count, most, len(rows)), largest=False)
    columns = [rows.target[order, dim].tolist() for dim in state.free]
    return {
        "n_rows": len(rows),
        "distances": _finite(found.sqrt().tolist()),
        "targets": {
            subject.targets[dim]: _finite(column)
            for dim, column in zip(state.free, columns, strict=True)
        },
    }


# Draws and questions.


def sample(state: State, request: Values) -> Values:
    """Return draws of the free targets."""
    generator = Generator().manual_seed(request["seed"])
    drawn = state.density.sample((request["n_samples"],), generator=generator)
    names = [state.subject.targets[dim] for dim in state.free]
    columns = (_finite(column.tolist()) for column in drawn.unbind(-1))
    return {**_about(state), "samples": dict(zip(names, columns, strict=True))}


def query(state: State, request: Values) -> Values:
    """Return the answers to several questions about one density."""
    return {
        **_about(state),
        "targets": [state.subject.targets[dim] for dim in state.free],
        "answers": [_question(state, one) for one in request["questions"]],
    }


def _question(state: State, question: Values) -> Any:
    ask, whole = question["ask"], state.density
    if ask == "novelty":
        return _finite([state.novelty])[0]
    if ask in ("mean", "stddev"):
        return _finite(getattr(whole, ask).tolist())
    if ask == "covariance":
        return [_finite(row) for row in whole.covariance_matrix.tolist()]
    if ask == "calibrated_intervals":
        return _calibrated(state, question["coverage"])
    if ask in ("quantiles", "interval", "cdf"):
        (dim,) = _free(state, [question["target"]])
        line = whole.marginal(dim)
        if ask == "quantiles":
            return _finite(line.quantile(_doubles(question["levels"])).tolist())
        if ask == "interval":
            return _finite([float(end) for end in line.interval(question["coverage"])])
        return float(line.cdf(_doubles([question["value"]])))
    if ask == "log_prob":
        values = question["value"]
        if not values:
            return 0.0
        part = whole.marginal(_free(state, values))
        return _finite([float(part.log_prob(_doubles([*values.values()])))])[0]
    lower, upper = (
        dict[int | str, float](zip(_free(state, ends), ends.values(), strict=True))
        for ends in (question["lower"], question["upper"])
    )
    found = whole.probability(lower, upper, generator=Generator().manual_seed(0))
    return {"value": float(found.value), "standard_error": float(found.standard_error)}


def _calibrated(state: State, coverage: float) -> dict[str, list[float | None]]:
    """Return calibrated intervals of every target, without any that is given."""
    model, targets = state.subject.model, state.subject.targets
    if state.given or not hasattr(model, "calibration_"):
        raise RequestError(
            "calibrated_intervals",
            code="not_calibrated",
            got="were asked for " + ("with given targets" if state.given else "of this model"),
            expected="they hold for all rows like those of calibrate(X, y)",
            fix="Leave given out." if state.given else "Calibrate the model, and save it again.",
        )
    # With the tail, as the rows of calibrate were scored.
    whole = Predictions(model.network_, state.condition[None], flat=False).densities(tail=True)
    ends = torch.cat(model.calibration_.interval(whole, coverage)).T.tolist()
    return dict(zip(targets, map(_finite, ends), strict=True))


def _free(state: State, names: Iterable[str]) -> list[int]:
    """Return the places of targets among the free ones."""
    dims = [state.subject.targets.index(name) for name in names]
    for dim in dims:
        if dim in state.given:
            raise RequestError(
                shown(state.subject.targets[dim]),
                code="is_given",
                got="is among the given targets",
                expected="a question is about the others",
                fix="Leave it out of either.",
            )
    return [state.free.index(dim) for dim in dims]


# A program.


def python(state: State, request: Values) -> Values:
    """Return a program that makes the same view."""
    subject = state.subject
    encoder, condition = subject.model.encoder_, request["condition"]
    values = [condition[column.name] for column in subject.conditions]
    frame = encoder.feature_names is not None or any(
        column.categories is not None for column in subject.conditions
    )
    lines = ["import condens"]
    if frame:
        names: Sequence[str | int] = encoder.feature_names or range(len(values))
        cells = [f"    {name!r}: [{_literal(v)}]," for name, v in zip(names, values, strict=True)]
        words = [
            repr(name)
            for name, column in zip(names, subject.conditions, strict=True)
            if column.categories is not None and not isinstance(column.categories[0], str)
        ]
        lines += ["import pandas as pd", "", "X = pd.DataFrame({", *cells, "})"]
        lines += [f'X[{word}] = X[{word}].astype("category")' for word in words]
    else:
        lines += ["", f"X = [[{', '.join(map(_literal, values))}]]"]
    lines += [
        f"model = condens.load({subject.name!r})",
        "density = model.predict_dist(X, tail=False)[0]",
    ]
    if state.given:
        named = subject.model.target_names_ is not None
        keys = [subject.targets[dim] if named else dim for dim in state.given]
        given = dict(zip(keys, state.given.values(), strict=True))
        lines.append(f"density = density.condition({given!r})")
    coverages = tuple(sorted(set(request["coverages"])))
    lines += [
        "print(density.mean, density.stddev)",
        "for dim in range(density.dimensions):",
        f"    print(density.quantile({request['levels']!r}, dim))",
        f"density.plot(coverages={coverages!r})",
    ]
    return {"code": "\n".join(lines) + "\n"}


def _literal(value: Any) -> str:
    return "None" if value is None else repr(value)


KINDS = {"density": density, "sample": sample, "query": query, "python": python}


# Values.


def _doubles(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _finite(values: Sequence[float]) -> list[float | None]:
    """Return numbers as JSON can hold them: null for what is not finite."""
    return [value if math.isfinite(value) else None for value in values]


def _listed(values: Array) -> Any:
    """Return numbers as nested lists."""
    return values.tolist()


def _encoded(values: Array) -> str:
    """Return numbers as base64 of 32-bit floats, the lowest byte first."""
    return base64.b64encode(values.astype("<f4").tobytes()).decode("ascii")


def _category(value: Any) -> Any:
    """Return a category of JSON as a frame holds it: whole numbers have no point."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _divide(data: TableLike, subject: "Subject") -> tuple[Any, Any]:
    """Return the conditions and the targets of a frame, by name, or by place if they have none."""
    frame: Any = data
    if not is_frame(data) or not hasattr(frame, "__len__"):
        raise ArgumentError(
            "data",
            got=f"is a {type(data).__name__}",
            expected="a data frame with the conditions and the targets was expected",
            fix="Pass a DataFrame of pandas or polars.",
        )
    model = subject.model
    # The columns of a table of pyarrow are arrays.
    columns = list(getattr(frame, "column_names", frame.columns))
    width = len(subject.conditions)
    if model.encoder_.feature_names is None or model.target_names_ is None:
        if len(columns) != width + len(subject.targets):
            raise ArgumentError(
                "data",
                got=f"has {len(columns)} columns",
                expected=f"the model has {width} conditions and {len(subject.targets)} targets",
                fix="Pass those, the conditions first, or start without data.",
            )
        return _take(frame, columns[:width]), _take(frame, columns[width:])
    names = [column.name for column in subject.conditions]
    missing = [name for name in (*names, *subject.targets) if name not in columns]
    if missing:
        raise ArgumentError(
            "data",
            got=f"lacks the columns {', '.join(map(shown, missing[:10]))}",
            expected="the conditions and the targets of the model were expected",
            fix="Add them, or start without data.",
        )
    return _take(frame, names), _take(frame, list(subject.targets))


def _take(frame: Any, names: list[Any]) -> Any:
    """Return some columns of a frame of pandas, polars or pyarrow."""
    return frame[names] if hasattr(type(frame), "iloc") else frame.select(names)


def _some(frame: Any, most: int) -> Any:
    """Return at most so many rows of a frame, evenly chosen."""
    places = np.linspace(0, len(frame) - 1, min(most, len(frame))).astype(int)
    if hasattr(type(frame), "iloc"):
        return frame.iloc[places]
    return frame.take(places) if hasattr(frame, "column_names") else frame[places.tolist()]
