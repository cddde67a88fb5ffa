"""Whole journeys of a regressor: random tables, far rows, regions, copies, exports, times."""

import copy
import math
import pickle
import re
import tempfile
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from helpers.search import Wrong, finite, near, need, no_nan, property_of
from sklearn.base import clone

from condens import GaussianMixture, MDNRegressor
from condens.errors import CondensError
from condens.estimator.scorers import log_likelihood_scorer
from condens.nn import HEADS
from condens.training import Settings

pytestmark = pytest.mark.slow


def regressor(**options):
    return MDNRegressor(**{"n_components": 3, "n_members": 1, "width": 16, "random_state": 0,
                           "settings": Settings(epochs=30), **options})  # fmt: skip


def targets(kind, x, rng):
    y = x[:, :2] @ np.array([[1.0, 0.4], [-0.5, 0.8]]) + 0.3 * rng.normal(size=(len(x), 2))
    return {"positive": np.exp(y), "count": rng.poisson(np.exp(y / 2)).astype(float),
            "unit": 1 / (1 + np.exp(-y)), "integer": np.round(3 * y)}.get(kind, y)  # fmt: skip


KINDS = ["plain", "one target", "positive", "count", "unit", "integer", "frame", "low_rank", "tied",
         "ensemble", "offset", "default"]  # fmt: skip


@cache
def fitted(kind):
    """Return a fitted and calibrated regressor with the rows it was fitted to."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(240, 2))
    y = targets(kind, x, rng)
    options = {"calibration_fraction": 0.25}
    if kind in ("positive", "count", "unit", "integer"):
        options["target_transform"] = kind
    elif kind in ("low_rank", "tied"):
        options["covariance"] = kind
    elif kind == "ensemble":
        options["n_members"] = 2
    elif kind == "one target":
        y = y[:, 0]
    elif kind == "default":
        options.update(settings=None, n_components=None, width=128)
    elif kind == "offset":
        x = 1e6 + 1e-3 * x
    if kind == "frame":
        x = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "town": rng.choice(["Bern", "Köln"], 240)})
        x.loc[::9, "b"] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return regressor(**options).fit(x, y), x, y


def far_rows(d, x):
    """Return some rows of x with one number or all numbers far outside, and that rows as they were."""
    rows = d.rng.choice(len(x), 3, replace=False)
    near_by = x.iloc[rows].reset_index(drop=True) if hasattr(x, "iloc") else x[rows]
    far = near_by.copy()
    size = d.power("far", 0.7, 300)
    for j in range(2):
        if j == 0 or d.flag("all columns"):
            value = size * d.random.choice([-1, 1])
            if hasattr(far, "iloc"):
                far.iloc[:, j] = value
            else:
                far[:, j] = value
    return far, near_by


@property_of(420, refusals=False)
def test_far_conditions(d):
    """However far a condition lies, every prediction is finite and no narrower than nearby."""
    kind = d.choice("model", KINDS)
    model, x, y = fitted(kind)
    far, _ = far_rows(d, x)
    some = np.asarray(y)[:3]
    question = d.choice("question", ["predict", "std", "cov", "quantiles", "interval", "sample",
                                     "score_samples", "region", "log_prob", "condition"])  # fmt: skip
    if question == "predict":
        finite(model.predict(far), "predict")
    elif question in ("std", "cov"):
        answer = model.predict(far, **{f"return_{question}": True})
        finite(answer, f"predict with {question}")
    elif question == "quantiles":
        answer = finite(model.predict_quantiles(far, [0.01, 0.5, 0.99]), "predict_quantiles")
        need(bool((np.diff(answer, axis=-1) >= 0).all()), "quantiles fall")
    elif question == "interval":
        ends = finite(model.predict_interval(far, 0.9), "predict_interval")
        if kind not in ("positive", "count", "unit", "integer"):
            width, usual = (np.diff(e, axis=-1) for e in (ends, model.predict_interval(x, 0.9)))
            least = 0.5 * usual.min(0)
            need(
                bool((width >= least).all()),
                f"intervals of {width.min():g}, {least.min():g} nearby",
            )
    elif question == "sample":
        finite(model.sample(far, 5, random_state=0), "sample")
    elif question == "score_samples":
        finite(model.score_samples(far, some), "score_samples")
    elif question == "region":
        region = model.predict_region(far, 0.8)
        finite([region.log_threshold, region.lower, region.upper], "predict_region")
    else:
        density = model.predict_dist(far)
        if question == "log_prob":
            finite(density.log_prob(some), "log_prob")
        elif density.dimensions > 1:
            given = density.condition({0: torch.from_numpy(some[:, 0].copy())})
            no_nan(given.mean, "mean given a target")


@property_of(24, refusals=False)
def test_far_conditions_are_told(d):
    """A prediction far outside warns once, and names the column."""
    kind = d.choice("model", ["plain", "frame", "one target", "positive"])
    model, x, _ = fitted(kind)
    model = copy.deepcopy(model)
    far, near_by = far_rows(d, x)
    question = d.choice("question", ["predict", "predict_quantiles", "predict_interval"])
    told = []
    for rows in (near_by, far):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            getattr(model, question)(rows)
        told.append([str(w.message) for w in caught])
    need(not told[0], f"warned of rows like those of the fit: {told[0]}")
    if d.facts["far"] < 30:
        return  # where exactly a row becomes far is not for this test to say
    need(1 <= len(told[1]) <= 2, f"{len(told[1])} warnings of a row {d.facts['far']:.1e} away")
    if kind == "frame":
        need("a" in re.findall(r"\w+", told[1][0]), f"the column is not named: {told[1][0]}")


@property_of(4, refusals=False, seconds=120)
def test_calibrated_intervals_with_far_rows(d):
    """Calibrated intervals hold where a fifth of old and new rows lie far outside."""
    model, _, _ = fitted(d.choice("model", ["plain", "one target"]))
    model = copy.deepcopy(model)

    def rows(n):
        x = d.rng.normal(size=(n, 2))
        y = targets("plain", x, d.rng)
        x[: n // 5] *= d.facts.get("far") or d.power("far", 1, 6)
        return x, y[:, 0] if model.inputs_.flat else y

    coverage = 0.9
    region = model.calibrate(*rows(400)).predict_region((new := rows(1500))[0], coverage)
    y = torch.from_numpy(new[1]).reshape(1500, -1)
    held = ((y >= region.lower) & (y <= region.upper)).double().mean(0)
    # Four standard errors of 400 and of 1500 rows.
    need(float(held.min()) > coverage - 0.07, f"intervals hold {held.tolist()}")
    inside = float(region.contains(new[1]).double().mean())
    need(inside > coverage - 0.07, f"regions hold {inside:.3f}")


@property_of(10, refusals=False, seconds=120)
def test_regions_of_targets_with_ties(d):
    """Coverage holds for targets of a few values."""
    values = d.choice("values", [(0.0, 1.0), (0.0, 0.1, 5.0), (-3.0, 1e3), (1.0, 2.0, 3.0, 4.0)])
    rng = d.rng

    def rows(n):
        # Few conditions too: rows of one density have scores that are equal to the bit.
        x = rng.choice([-1.0, 0.5, 2.0], size=(n, 1))
        return x, rng.choice(values, n) if d.facts["noise"] else np.where(
            x[:, 0] > 0, values[0], values[-1]
        )

    d.flag("noise")
    model = regressor(settings=Settings(epochs=8), width=8).fit(*rows(150))
    coverage = d.choice("coverage", [0.5, 0.8, 0.9])
    region = model.calibrate(*rows(300)).predict_region((new := rows(1500))[0], coverage)
    y = torch.from_numpy(new[1])[:, None]
    held = float(((y >= region.lower) & (y <= region.upper)).double().mean())
    need(held > coverage - 0.1, f"intervals hold {held:.3f} of {coverage}")
    inside = float(region.contains(new[1]).double().mean())
    need(inside > coverage - 0.1, f"regions hold {inside:.3f} of {coverage}")


@property_of(250, refusals=False)
def test_predictions_agree_with_each_other(d):
    """Rows alone and together, intervals and quantiles, draws and supports."""
    kind = d.choice("model", KINDS)
    model, x, _ = fitted(kind)
    rows = d.rng.choice(len(x), d.integer("rows", 1, 9), replace=False)
    some = x.iloc[rows] if hasattr(x, "iloc") else x[rows]
    one = some.iloc[:1] if hasattr(x, "iloc") else some[:1]
    question = d.choice("question", ["alone", "interval", "sample", "coverage", "nothing"])
    if question == "alone":
        for method in ("predict", "predict_quantiles", "predict_interval"):
            whole, single = (getattr(model, method)(part) for part in (some, one))
            near(single, whole[:1], f"{method} of one row", rtol=1e-9, atol=1e-12)
    elif question == "interval":
        p = d.number("coverage", 0.01, 0.999)
        ends = model.predict_interval(some, p)
        need(
            bool((ends[..., 0] <= ends[..., 1]).all()), "an interval's ends are in the wrong order"
        )
        if kind not in ("count", "integer"):
            near(
                ends,
                model.predict_quantiles(some, [(1 - p) / 2, (1 + p) / 2]),
                "interval",
                rtol=1e-6,
                atol=1e-9,
            )
    elif question == "sample":
        draws = finite(model.sample(some, 20, random_state=1), "sample")
        if kind in ("positive", "unit"):
            need(bool((draws > 0).all()), "a draw is not above 0")
        if kind in ("count", "integer"):
            need(bool((draws == np.floor(draws)).all()), "a draw is not whole")
        near(model.sample(some, 20, random_state=1), draws, "the same seed", rtol=0)
    elif question == "nothing":
        empty = some.iloc[:0] if hasattr(x, "iloc") else some[:0]
        try:
            answer = model.predict(empty)
        except (CondensError, ValueError):
            return
        need(len(answer) == 0, "predictions of no rows")
    else:
        small, large = (model.predict_region(some, c) for c in (0.3, 0.9))
        need(bool((small.log_threshold >= large.log_threshold).all()), "regions are not nested")
        no_nan(large.volume(n_samples=50), "volume")


@property_of(60, refusals=False)
def test_copies_of_regressors(d):
    """clone, copy, deepcopy, pickle and files give the same predictions."""
    kind = d.choice("model", KINDS)
    model, x, y = fitted(kind)
    how = d.choice("how", ["copy", "deepcopy", "pickle", "file", "clone"])
    if how == "clone":
        made = clone(model)
        need(repr(made.get_params()) == repr(model.get_params()), "parameters differ")
        need(not hasattr(made, "network_"), "a clone is fitted")
        return
    if how == "file":
        with tempfile.TemporaryDirectory() as folder:
            model.save(Path(folder, "m"))
            made = MDNRegressor.load(Path(folder, "m"))
    else:
        made = {"copy": copy.copy, "deepcopy": copy.deepcopy,
                "pickle": lambda m: pickle.loads(pickle.dumps(m))}[how](model)  # fmt: skip
    for method in ("predict", "predict_quantiles", "predict_interval"):
        one, other = (getattr(m, method)(x[:5]) for m in (model, made))
        need(one.tobytes() == other.tobytes(), f"{method} differs")
    near(made.score(x, y), model.score(x, y), "score", rtol=0)
    near(made.predict_region(x[:5]).upper, model.predict_region(x[:5]).upper, "region", rtol=0)


def random_table(d, n):
    """Return a table with columns of many kinds, and targets with a transform that they bear."""
    columns = {}
    for i in range(d.integer("columns", 1, 4)):
        kind = d.choice(f"column {i}", ["normal", "constant", "whole", "text", "bool", "gaps", "tiny",
                                        "huge", "heavy", "category", "all gaps but one"])  # fmt: skip
        rng = d.rng
        columns[f"c{i}"] = {
            "normal": lambda: rng.normal(size=n), "constant": lambda: np.full(n, 3.5),
            "whole": lambda: rng.integers(-5, 5, n), "text": lambda: rng.choice(["p", "q", "ü"], n),
            "bool": lambda: rng.random(n) < 0.5, "tiny": lambda: 1e-300 * rng.normal(size=n),
            "gaps": lambda: np.where(rng.random(n) < 0.3, np.nan, rng.normal(size=n)),
            "huge": lambda: 1e300 * rng.normal(size=n), "heavy": lambda: rng.standard_cauchy(n) ** 3,
            "category": lambda: pd.Categorical(rng.choice(["x", "y"], n)),
            "all gaps but one": lambda: np.where(np.arange(n) == 0, 1.0, np.nan),
        }[kind]()  # fmt: skip
    kinds = d.choice(
        "targets",
        ["real", "positive", "count", "unit", "tied", "constant", "gaps", "huge", "tiny", "heavy"],
    )
    y = d.rng.normal(size=(n, d.integer("n targets", 1, 3)))
    transform = None
    if kinds in ("positive", "count", "unit"):
        transform = kinds
        y = {"positive": np.exp(3 * y), "count": np.floor(np.exp(y)), "unit": 1 / (1 + np.exp(-y))}[
            kinds
        ]
    elif kinds == "tied":
        y = np.round(y)
    elif kinds == "constant":
        y[:, 0] = -1.0
    elif kinds == "gaps":
        y[d.rng.random(y.shape) < 0.3] = np.nan
    elif kinds in ("huge", "tiny"):
        y = y * {"huge": 1e150, "tiny": 1e-150}[kinds]
    elif kinds == "heavy":
        y = y / d.rng.normal(size=y.shape) ** 3
    if transform is None and d.flag("auto", 0.2):
        transform = "auto"
    return pd.DataFrame(columns), y, transform


@property_of(90, seconds=120)
def test_random_tables(d):
    """A fit of any small table is refused by name, or every answer about its rows is finite."""
    n = d.integer("rows", 1, 60)
    x, y, transform = random_table(d, n)
    plain = all(x[c].dtype.kind in "fib" for c in x)
    forms = {"pandas": lambda: x, "polars": lambda: pl.DataFrame({c: x[c].tolist() for c in x})}
    if plain:
        forms["array"] = lambda: x.to_numpy(dtype=float)
        forms["lists"] = lambda: x.to_numpy(dtype=float).tolist()
    given = d.choice("as", forms)()
    weights = d.rng.uniform(0, 2, n) if d.flag("weights", 0.3) else None
    model = regressor(
        n_components=d.choice("k", [1, 2, 5]), width=6, settings=Settings(epochs=2), target_transform=transform,
        covariance=d.choice("covariance", list(HEADS)), calibration_fraction=d.choice("calibration", [0.0, 0.3]),
    )  # fmt: skip
    model.fit(given, y, sample_weight=weights)
    finite(model.predict(given), "predict")
    ends = finite(model.predict_interval(given), "predict_interval")
    need(bool((ends[..., 0] <= ends[..., 1]).all()), "an interval's ends are in the wrong order")
    finite(model.sample(given, 3, random_state=0), "sample")
    no_nan(model.score_samples(given, y), "score_samples")
    if hasattr(model, "calibration_"):
        region = model.predict_region(given, 0.2)
        no_nan([region.lower, region.upper, region.log_threshold], "predict_region")


@property_of(24, seconds=120)
def test_weights_of_any_scale_in_fits(d):
    """Weights count by their ratios, in fits, scores and scorers."""
    n = d.integer("rows", 100, 600)
    x = d.rng.normal(size=(n, 2))
    y = targets("plain", x, d.rng)
    weights = d.rng.uniform(0.5, 1, n)
    unit = 2.0 ** math.floor(math.log2(d.edge("unit", -300, 308.2)))
    door = d.choice("door", ["fit", "score", "scorer"])
    if door == "fit":
        one, other = (regressor(settings=Settings(epochs=2)).fit(x, y, sample_weight=w)
                      for w in (weights, weights * unit))  # fmt: skip
        near(
            other.predict(x[:9]),
            one.predict(x[:9]),
            "a fit with scaled weights",
            rtol=1e-5,
            atol=1e-5,
        )
        return
    model, _, _ = fitted("plain")
    if door == "score":
        one, other = (model.score(x, y, sample_weight=w) for w in (weights, weights * unit))
    else:
        one, other = (
            log_likelihood_scorer(model, x, y, sample_weight=w) for w in (weights, weights * unit)
        )
    near(other, one, f"{door} with scaled weights", rtol=1e-9)


@property_of(24, seconds=120)
def test_units_of_any_scale_in_fits(d):
    """A fit in other units predicts the same in these units."""
    n = d.integer("rows", 60, 150)
    x = d.rng.normal(size=(n, 2)).clip(-1.7, 1.7)
    y = targets("plain", x, d.rng)
    of_x = 2.0 ** math.floor(math.log2(d.edge("unit of X", -300, 308)))
    of_y = 2.0 ** round(math.log2(d.power("unit of y", -140, 140)))
    one = regressor(settings=Settings(epochs=2)).fit(x, y)
    other = regressor(settings=Settings(epochs=2)).fit(x * of_x, y * of_y)
    near(
        other.predict(x * of_x) / of_y,
        one.predict(x),
        "prediction in other units",
        rtol=1e-3,
        atol=1e-3,
    )
    finite(other.predict_interval(x * of_x), "predict_interval")


@property_of(2, seconds=300, refusals=False)
def test_exported_networks_agree(d):
    """The ONNX graph gives the network's answers, far outside too."""
    import onnxruntime

    from condens.integrations.onnx import export

    model, x, _ = fitted(["plain", "positive"][d.case % 2])
    far = torch.from_numpy(np.concatenate([x[:4], d.power("far", 1, 6) * x[:4]]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.onnx")
        export(model.network_, path, "mixture")
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        outputs = session.run(None, {name: far.numpy()})
    with torch.no_grad():
        density = model.network_(far)
    expected = getattr(density, "base", density)
    got = GaussianMixture(*(torch.from_numpy(output) for output in outputs))
    for what in ("weights", "means", "factors"):
        near(getattr(got, what), getattr(expected, what), what, rtol=1e-6, atol=1e-8)


@property_of(30)
def test_repeated_fits_and_streams(d):
    """partial_fit, warm starts and refits: named errors or finite answers, and nothing lost."""
    kind = d.choice("kind", ["partial", "warm", "again", "failed"])
    n = d.integer("rows", 40, 90)
    x = d.rng.normal(size=(n, 2))
    y = targets("plain", x, d.rng)
    model = regressor(settings=Settings(epochs=2), width=8, warm_start=kind == "warm").fit(x, y)
    before = model.predict(x)
    if kind == "failed":
        try:
            model.fit(x, np.full_like(y, np.nan))
        except CondensError:
            need(np.array_equal(model.predict(x), before), "a failed fit changed the model")
            return
        raise Wrong("fitted targets that are all missing")
    if kind == "partial":
        for _ in range(2):
            model.partial_fit(x * d.power("scale", -2, 3), y)
    else:
        model.fit(x, y)
        if kind == "again":
            need(np.array_equal(model.predict(x), before), "the same fit, other bytes")
    finite(model.predict(x), "predict")
