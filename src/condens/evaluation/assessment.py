"""`evaluate` and `cross_evaluate`: from a model and rows to a `Report`."""

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Generator, Tensor

from condens.data import TableLike, TargetColumns
from condens.data.groups import number_groups, read_groups
from condens.errors import ArgumentError, KindError
from condens.evaluation import calibration
from condens.evaluation.forecasts import MixtureForecast
from condens.evaluation.models import (
    JOINT,
    Model,
    Source,
    columns_of,
    needed,
    read_source,
    read_weights,
    row_labels,
)
from condens.evaluation.report import BIN_COVERAGE, Baseline, Report, WorstRow
from condens.evaluation.scores import Questions, RowScores, rows_per_block, score
from condens.evaluation.statistics import (
    Array,
    Integers,
    Score,
    explained_variance,
    paired_difference,
    root_mean_square,
    weighted_mean,
)
from condens.nn.randomness import mixed_seed, seeded_generator
from condens.progress import Progress
from condens.scalars import as_levels, as_whole

COVERAGES = (0.5, 0.8, 0.9, 0.95)
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
N_SAMPLES = 199
# Rows listed as the worst,
N_WORST = 10
# and columns that calibration is looked at by, at most.
MAX_BIN_COLUMNS = 100


def evaluate(
    model: Model,
    X: TableLike | None,  # noqa: N803
    y: TableLike,
    *,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    train: tuple[TableLike, TableLike]
    | tuple[TableLike, TableLike, ArrayLike | None]
    | None = None,
    coverages: Sequence[float] = COVERAGES,
    quantiles: Sequence[float] = QUANTILES,
    n_samples: int = N_SAMPLES,
    seed: int = 0,
    progress: bool | None = None,
) -> Report:
    """Judge predicted densities by rows that the model was not fitted to.

    Args:
        model: a fitted `MDNRegressor` (also at the end of a pipeline or a search), any
            `DensityNetwork`, mixtures or torch distributions with batch shape [n], draws
            [S, n, D], a posterior of sbi or of `condens.inference`, a fitted NGBoost model or
            what it predicts.
        X: [n, C]; None where the densities are given.
        y: [n] or [n, D]; NaN was not observed, and counts by the exact marginal of the others.
        sample_weight: [n].
        groups: the group of each row [n]; standard errors are then those of groups.
        train: (X, y), or (X, y, sample_weight), that the model was fitted to, for baselines. A
            fitted `MDNRegressor` has its own.
        coverages: of intervals and regions.
        quantiles: whose pinball loss is reported.
        n_samples: draws for each row, on which HPD ranks, entropy and energy score rest.
        seed: of the draws.
        progress: show a line after a second; by default where stderr is a terminal.

    >>> from condens import GaussianMixture
    >>> means = torch.randn(500, 1, 2, generator=Generator().manual_seed(0))
    >>> densities = GaussianMixture(torch.zeros(500, 1), means, torch.zeros(500, 1, 3))
    >>> y = densities.sample(generator=Generator().manual_seed(2))
    >>> report = evaluate(densities, None, y)
    >>> print(report.verdict)
    The mean log-likelihood is ... nats a row; its 90 % regions hold ... % (expected 87–93).
    No miscalibration large enough to matter was found.
    """
    questions = _questions(coverages, quantiles, n_samples)
    generator = seeded_generator(seed)
    with Progress("evaluating", show=progress) as line:
        source = read_source(model, X, y, sample_weight, train=train)
        clusters = read_clusters(groups, len(source))
        weights = None if source.weights is None else source.weights.numpy()
        check_observed(source, weights)
        rows, line.total = RowScores(source.shape, weights, clusters), len(source)
        baselines: dict[str, RowScores] = {}
        _score(source, np.arange(len(source)), rows, baselines, questions, generator, line)
        return summarise(source, rows, baselines, questions)


class Estimator(Protocol):
    """What `cross_evaluate` fits: an estimator of scikit-learn with densities."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters."""
        ...


def cross_evaluate(
    estimator: Estimator,
    X: TableLike,  # noqa: N803
    y: TableLike,
    *,
    cv: Any = 5,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    coverages: Sequence[float] = COVERAGES,
    quantiles: Sequence[float] = QUANTILES,
    n_samples: int = N_SAMPLES,
    seed: int = 0,
    progress: bool | None = None,
) -> Report:
    """Judge an estimator by rows out of fold: each by a clone fitted to the other folds.

    Args:
        estimator: an `MDNRegressor`, or anything with `fit` that `evaluate` takes when fitted.
        X, y: as in `evaluate`.
        cv: a number of folds, shuffled by `seed`, a splitter of scikit-learn, or pairs of rows to
            fit and to test. Rows that are never tested are left out.
        sample_weight: [n], in the fits and in the scores.
        groups: [n]; whole groups are held out, and standard errors are those of groups.
        coverages, quantiles, n_samples, seed, progress: as in `evaluate`.
    """
    from sklearn.base import clone
    from sklearn.utils import _safe_indexing

    questions = _questions(coverages, quantiles, n_samples)
    seeded_generator(seed)  # refuses what is none, before the work
    if isinstance(estimator, type) or not hasattr(estimator, "fit"):
        raise KindError(
            "estimator",
            got=f"is {estimator!r}",
            expected="an estimator to fit was expected",
            fix="Pass MDNRegressor(), for instance.",
        )
    count = len(TargetColumns.of(y, "y", observed=False).values)
    columns_of(needed(X, "X"), count, {})
    weights = read_weights(sample_weight, count)
    labels = None if groups is None else read_groups(groups, count)
    splits = _splits(cv, count, labels, seed)
    whole: Source | None = None
    rows: RowScores | None = None
    baselines: dict[str, RowScores] = {}
    tested = np.zeros(count, dtype=bool)
    with Progress("cross-evaluating", len(splits) * count, progress) as line:
        for number, (fit, test) in enumerate(splits):
            parameters = {
                "sample_weight": None if weights is None else weights.numpy()[fit],
                "groups": None if labels is None else labels[fit],
            }
            fitted = clone(estimator)
            fitted.fit(
                _safe_indexing(X, fit),
                _safe_indexing(y, fit),
                **_fit_parameters(estimator, parameters),
            )
            line.advance(count - len(test))
            some = None if weights is None else weights.numpy()[test]
            source = read_source(fitted, _safe_indexing(X, test), _safe_indexing(y, test), some)
            if whole is None or rows is None:
                whole = _empty(source, estimator, X, y, weights)
                rows = RowScores(
                    whole.shape,
                    None if weights is None else weights.numpy(),
                    read_clusters(groups, count),
                )
            whole.target[test] = source.target
            tested[test] = True
            generator = seeded_generator(seed, number)
            _score(source, test, rows, baselines, questions, generator, line)
    assert whole is not None  # there is a fold at least
    assert rows is not None
    if not tested.all():
        whole.left_out[f"{int((~tested).sum())} rows"] = "the splitter never tests them"
    return summarise(whole, rows, baselines, questions)


def _splits(cv: Any, n_rows: int, groups: Any, seed: int) -> list[tuple[Integers, Integers]]:
    """Return the numbers of the rows that are fitted and tested in each fold."""
    from sklearn.model_selection import GroupKFold, KFold, check_cv

    if isinstance(cv, Integral):
        folds = as_whole("cv", cv, 2, fix="Pass 5, for instance.")
        kind = KFold if groups is None else GroupKFold
        cv = kind(folds, shuffle=True, random_state=mixed_seed(seed) % 2**32)
    try:
        found = list(check_cv(cv).split(np.zeros(n_rows), None, groups))
        splits = [(np.arange(n_rows)[fit], np.arange(n_rows)[test]) for fit, test in found]
    except (TypeError, ValueError, IndexError) as error:
        raise ArgumentError(
            "cv",
            got=f"cannot divide {n_rows} rows ({type(error).__name__}: {error})",
            expected="a number of folds, a splitter or pairs of rows were expected",
            fix="Pass fewer folds, or the groups= that the splitter needs.",
        ) from error
    if not splits or not all(len(fit) and len(test) for fit, test in splits):
        raise ArgumentError(
            "cv",
            got="has no folds, or one without rows",
            expected="rows to fit and to test were expected",
            fix="Pass 5.",
        )
    return splits


def _fit_parameters(estimator: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return what is given to `fit`, by the names under which it reaches the end of a pipeline."""
    from inspect import signature

    prefix = ""
    while True:
        if hasattr(type(estimator), "named_steps"):
            name, estimator = estimator.steps[-1]
            prefix += f"{name}__"
        elif hasattr(estimator, "estimator"):
            # A search takes groups for its own folds, and does not pass them on.
            given, estimator = {**given, "groups": None}, estimator.estimator
        else:
            break
    known = signature(estimator.fit).parameters
    given = {name: value for name, value in given.items() if value is not None}
    if "sample_weight" in given and "sample_weight" not in known:
        raise ArgumentError(
            "sample_weight",
            got="was passed",
            expected=f"fit of {type(estimator).__name__} takes none",
            fix="Leave it out.",
        )
    return {f"{prefix}{name}": value for name, value in given.items() if name in known}


def _empty(
    source: Source,
    estimator: Any,
    X: Any,  # noqa: N803
    y: Any,
    weights: Tensor | None,
) -> Source:
    """Return a source of all rows, with what is the same in every fold, and no targets yet."""
    count = len(y)
    left_out = dict(source.left_out)
    return Source(
        type(estimator).__name__,
        source.forecast,
        torch.full((count, source.target.shape[1]), math.nan, dtype=torch.float64),
        weights,
        source.names,
        columns_of(X, count, left_out),
        row_labels(X, y),
        left_out=left_out,
    )


def _questions(coverages: Any, quantiles: Any, n_samples: Any) -> Questions:
    count = as_whole("n_samples", n_samples, 2, fix="Pass 199, for instance.")
    levels = (as_levels("coverages", coverages), as_levels("quantiles", quantiles))
    return Questions(*levels, count)


def read_clusters(groups: Any, n_rows: int) -> Integers | None:
    """Return the numbers of the rows' groups [n]."""
    return None if groups is None else number_groups(read_groups(groups, n_rows)).numpy()


def check_observed(source: Source, weights: Array | None) -> None:
    """Refuse rows of which none counts."""
    useful = ~source.target.isnan().all(1).numpy()
    if weights is not None:
        useful &= weights > 0
    if not useful.any():
        raise ArgumentError(
            "y",
            got="has no row that counts",
            expected="at least one is needed",
            fix="Pass rows with an observed target and a weight above zero.",
        )


def _score(
    source: Source,
    places: Integers,
    rows: RowScores,
    baselines: dict[str, RowScores],
    questions: Questions,
    generator: Generator,
    line: Progress,
) -> None:
    """Score the rows of a source, which are those at `places` in `rows`."""
    count, dimensions = source.target.shape
    size = rows_per_block(questions.n_samples, dimensions, source.n_components)
    for block in torch.arange(count).split(count if source.whole else size):
        target, place = source.target[block], places[block.numpy()]
        answers = score(source.forecast(block), target, questions, generator)
        if source.mean is not None:
            answers["mean"] = source.mean[block].masked_fill(target.isnan(), math.nan)
        rows.put(place, answers)
        for name, mixture in (source.baselines(block) if source.baselines else {}).items():
            if name not in baselines:
                baselines[name] = RowScores(rows.shape, rows.weights, rows.groups)
            brief = score(MixtureForecast(mixture), target, questions, generator, brief=True)
            baselines[name].put(place, brief)
        line.advance(len(block))


def summarise(
    source: Source, rows: RowScores, baselines: dict[str, RowScores], questions: Questions
) -> Report:
    """Return the report of rows that have been scored."""
    target, values = source.target.numpy(), rows.values
    weights, groups, left_out = rows.weights, rows.groups, dict(source.left_out)
    if "log_likelihood" not in values:
        left_out["log_likelihood, entropy, coverage of regions"] = (
            f"{source.kind} has no density here, only draws"
        )
    if "rosenblatt" not in values:
        left_out["Rosenblatt transform"] = f"{source.kind} has no conditional distributions"
    observed = ~np.isnan(target).all(1)
    counted = observed if weights is None else observed & (weights > 0)
    if "log_likelihood" in values:
        # Rows that no fold tests have no score at all.
        asked = counted & ~np.isnan(values["crps"]).all(1)
        missing = int(np.isnan(values["log_likelihood"][asked]).sum())
        if missing:
            left_out[f"log_likelihood of {missing} rows"] = (
                f"{source.kind} has no marginal density where y has gaps"
            )
        counted = asked
    targets = _target_scores(source, rows, target, questions, left_out)
    tests, coverage = _calibration(source, rows, questions, left_out)
    return Report(
        kind=source.kind,
        names=source.names,
        n_rows=int(counted.sum()),
        n_groups=None if groups is None else len(np.unique(groups[counted])),
        coverages=questions.coverages,
        quantiles=questions.quantiles,
        scores=_joint_scores(rows),
        targets=targets,
        coverage=coverage,
        tests=tests,
        bins=_bins(source, rows, left_out),
        worst_rows=_worst(source, rows, target, counted),
        baselines={
            name: Baseline(
                _joint_scores(one),
                _target_scores(source, one, target, None, {}),
                _gain(rows, one),
            )
            for name, one in baselines.items()
        },
        rows={"target": target, **values},
        weights=weights,
        left_out=left_out,
    )


def _joint_scores(rows: RowScores) -> dict[str, Score]:
    names = ("log_likelihood", "energy_score", "entropy")
    return {
        name: weighted_mean(rows.values[name], rows.weights, rows.groups)
        for name in names
        if name in rows.values
    }


def _gain(rows: RowScores, other: RowScores) -> Score | None:
    """Return the mean difference of the log-likelihoods, row by row."""
    if "log_likelihood" not in rows.values:
        return None
    difference = paired_difference(rows.values["log_likelihood"], other.values["log_likelihood"])
    return weighted_mean(difference, rows.weights, rows.groups)


def _target_scores(
    source: Source,
    rows: RowScores,
    target: Array,
    questions: Questions | None,
    left_out: dict[str, str],
) -> dict[str, dict[str, Score]]:
    """Return the scores of each target; with questions, pinball losses and widths too."""
    found: dict[str, dict[str, Score]] = {}
    about = (rows.weights, rows.groups)
    for dim, name in enumerate(source.names):
        y, mean = target[:, dim], rows.values["mean"][:, dim]
        scores = {"crps": weighted_mean(rows.values["crps"][:, dim], *about)}
        if math.isnan(scores["crps"].value):
            found[name], left_out[name] = {}, "it was never observed"
            continue
        with np.errstate(over="ignore"):
            error = np.abs(y - mean)
        if np.isnan(error).all():
            left_out[f"rmse, mae and r2 of {name}"] = "its densities have no mean"
        else:
            scores["rmse"] = root_mean_square(error, *about)
            scores["mae"] = weighted_mean(error, *about)
            scores["r2"] = explained_variance(y, mean, *about)
            if math.isnan(scores["r2"].value):
                del scores["r2"]
                left_out[f"r2 of {name}"] = "its observed values are constant"
        if questions is not None:
            for place, level in enumerate(questions.quantiles):
                scores[f"pinball_{level:g}"] = rows.pinball.score(dim, place)
            for place, level in enumerate(questions.coverages):
                scores[f"width_{level:g}"] = rows.width.score(dim, place)
        found[name] = scores
    return found


def _calibration(
    source: Source, rows: RowScores, questions: Questions, left_out: dict[str, str]
) -> tuple[tuple[calibration.Test, ...], tuple[calibration.Coverage, ...]]:
    """Return tests of uniformity, corrected for their number, and coverages."""
    about = (rows.weights, rows.groups)
    tests: list[calibration.Test] = []
    coverage: list[calibration.Coverage] = []

    def test(uniform: Array, subject: str, kinds: tuple[str, ...]) -> None:
        try:
            found = calibration.uniformity_tests(uniform, *about, subject=subject)
        except ArgumentError as error:
            left_out[f"tests of {subject}"] = str(error)
            return
        tests.extend(one for one in found if one.name in kinds)

    every = ("bias", "spread", "shape")
    for dim, name in enumerate(source.names):
        uniform = rows.values["pit"][:, dim]
        if name in left_out:  # never observed
            continue
        test(uniform, name, every)
        coverage.extend(
            calibration.coverage_table(
                np.abs(2 * uniform - 1), questions.coverages, *about, subject=name
            )
        )
    # The first coordinate is the first target alone.
    for dim, name in enumerate(source.names if "rosenblatt" in rows.values else ()):
        if dim:
            test(rows.values["rosenblatt"][:, dim], f"{name} given those before it", every)
    if "hpd_coverage" in rows.values:
        test(rows.values["hpd_coverage"], JOINT, ("shape",))
        coverage.extend(
            calibration.coverage_table(
                rows.values["hpd_coverage"], questions.coverages, *about, subject=JOINT
            )
        )
    return calibration.adjust(tests), tuple(coverage)


def _bins(source: Source, rows: RowScores, left_out: dict[str, str]) -> calibration.Bins | None:
    """Return calibration by bins of the conditions and of the predicted spread."""
    columns = dict(source.columns)
    if len(columns) > MAX_BIN_COLUMNS:
        left_out[f"bins of {len(columns) - MAX_BIN_COLUMNS} columns of X"] = (
            f"only the first {MAX_BIN_COLUMNS} are looked at"
        )
        columns = dict(list(columns.items())[:MAX_BIN_COLUMNS])
    for dim, name in enumerate(source.names[:MAX_BIN_COLUMNS]):
        columns[f"predicted spread of {name}"] = rows.values["spread"][:, dim]
    uniform = {name: rows.values["pit"][:, dim] for dim, name in enumerate(source.names)}
    needed = {JOINT: rows.values["hpd_coverage"]} if "hpd_coverage" in rows.values else {}
    return calibration.conditional_calibration(
        columns,
        uniform,
        needed,
        coverage=BIN_COVERAGE,
        weights=rows.weights,
        groups=rows.groups,
    )


def _worst(source: Source, rows: RowScores, target: Array, counted: Any) -> tuple[WorstRow, ...]:
    """Return the rows of lowest log-likelihood, or of highest energy score."""
    values = rows.values
    name = "log_likelihood" if "log_likelihood" in values else "energy_score"
    badness = -values[name] if name == "log_likelihood" else values[name]
    badness = np.where(counted & ~np.isnan(badness), badness, -math.inf)
    order = np.argsort(-badness, kind="stable")[: min(N_WORST, int(counted.sum()))]
    return tuple(
        WorstRow(
            int(row),
            str(row) if source.labels is None else source.labels[row],
            name,
            float(values[name][row]),
            tuple(target[row].tolist()),
            tuple(values["mean"][row].tolist()),
            tuple(values["spread"][row].tolist()),
        )
        for row in order
    )
