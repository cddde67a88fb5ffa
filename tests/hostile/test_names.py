"""Columns go by their names, wherever a frame comes in."""

import warnings
from functools import cache

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from helpers.search import Wrong, finite, near, property_of, refused
from sklearn.metrics import r2_score
from sklearn.model_selection import cross_val_score

from condens import MDNRegressor
from condens.estimator.scorers import energy_scorer, log_likelihood_scorer
from condens.inference import posterior
from condens.training import Settings

pytestmark = pytest.mark.slow

TARGETS = ["u", "größe", "w"]
COLUMNS = ["a", "b", "town"]


@cache
def fitted(kind):
    """Return a regressor on frames, and rows that it has not seen."""
    rng = np.random.default_rng(2)
    n = 160
    x = pd.DataFrame({"a": rng.normal(size=n), "b": 5 + 3 * rng.normal(size=n),
                      "town": rng.choice(["Bern", "Köln"], n)})  # fmt: skip
    noise = 0.2 * rng.normal(size=(n, 3))
    y = pd.DataFrame({"u": x.a + noise[:, 0], "größe": 10 * x.b + 3 * x.a + noise[:, 1],
                      "w": -x.a + noise[:, 2]})  # fmt: skip
    if kind == "positive":
        y = np.exp(y / 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MDNRegressor(
            2, width=16, random_state=0, settings=Settings(epochs=25), calibration_fraction=0.2,
            target_transform="positive" if kind == "positive" else None,
        ).fit(x[:120], y[:120])  # fmt: skip
    return model, x[120:].reset_index(drop=True), y[120:].reset_index(drop=True)


def shuffled(d, name, frame):
    """Return the same rows with other column orders, as one of the frames that users have."""
    columns = d.random.sample(list(frame.columns), len(frame.columns))
    d.note(f"{name} order", columns)
    frame = frame[columns]
    return d.choice(f"{name} as", {"pandas": lambda f: f, "polars": lambda f: pl.DataFrame(f.to_dict("list")),
                                   "float32": lambda f: f.astype({c: "float32" for c in f if f[c].dtype != object and c != "town"})})(frame)  # fmt: skip


@property_of(260)
def test_questions_by_name(d):
    """Every method gives the answer of the columns in their own order, or asks for that order."""
    model, x, y = fitted(d.choice("model", ["real", "positive"]))
    rows = d.rng.choice(len(x), size=d.integer("rows", 5, 30), replace=False)
    x, y = x.iloc[rows].reset_index(drop=True), y.iloc[rows].reset_index(drop=True)
    other_x = shuffled(d, "X", x) if d.flag("X shuffled", 0.15) else x
    other_y = shuffled(d, "y", y)
    question = d.choice("question", ["predict", "score", "score_samples", "log_likelihood", "energy",
                                     "calibrate", "contains", "log_prob", "condition", "partial_fit"])  # fmt: skip
    ask = {
        "predict": lambda x, y: model.predict(x),
        "score": model.score,
        "score_samples": model.score_samples,
        "log_likelihood": lambda x, y: log_likelihood_scorer(model, x, y),
        "energy": lambda x, y: energy_scorer(model, x, y),
        "calibrate": lambda x, y: _calibrated(model, x, y),
        "contains": lambda x, y: model.predict_region(x, 0.5).contains(y).double(),
        "log_prob": lambda x, y: model.predict_dist(x).log_prob(y),
        "condition": lambda x, y: model.predict_dist(x).condition({"w": torch.as_tensor(np.asarray(y["w"], dtype=float))}).mean,
        "partial_fit": lambda x, y: _trained(model, x, y),
    }[question]  # fmt: skip
    loose = "float32" in (d.facts.get("X as"), d.facts["y as"])
    near(
        ask(other_x, other_y),
        ask(x, y),
        question,
        rtol=1e-3 if loose else 1e-9,
        atol=1e-3 if loose else 1e-9,
    )


def _calibrated(model, x, y):
    import copy

    made = copy.copy(model).calibrate(x, y)
    return made.predict_region(x, 0.5).upper


def _trained(model, x, y):
    import copy

    return copy.deepcopy(model).partial_fit(x, y).predict(x)


@property_of(120)
def test_wrong_names_are_refused(d):
    """A frame whose names are others, or too few, is refused and not read by place."""
    model, x, y = fitted("real")
    side = d.choice("side", ["X", "y"])
    what = d.choice("what", ["renamed", "missing", "twice"] + ["more"] * (side == "X"))
    frame = x if side == "X" else y
    column = d.note("column", d.random.choice(list(frame.columns)))
    if what == "renamed":
        wrong = frame.rename(columns={column: "other"})
    elif what == "missing":
        wrong = frame.drop(columns=column)
    elif what == "twice":
        wrong = pd.concat([frame, frame[[column]]], axis=1)
    else:
        wrong = frame.assign(more=1.0)
    given = (wrong, y) if side == "X" else (x, wrong)
    call = d.choice("call", {"score": model.score, "score_samples": model.score_samples,
                             "calibrate": model.calibrate})  # fmt: skip
    refused(lambda: call(*given), f"{side} with a column {what}")


@property_of(160, refusals=False)
def test_scores_leave_out_what_was_not_observed(d):
    """NaN in y: score is R² of what was observed, of every target."""
    model, x, y = fitted("real")
    gaps = d.rng.random(y.shape) < d.number("share", 0.02, 0.5)
    gaps[:4] = False
    seen = y.mask(gaps)
    form = d.choice("y as", {"frame": lambda v: v, "array": lambda v: v.to_numpy(),
                             "shuffled": lambda v: v[TARGETS[::-1]]})(seen)  # fmt: skip
    weights = d.rng.uniform(0.1, 2, len(y)) if d.flag("weights", 0.3) else None
    predicted = model.predict(x)
    each = []
    for j in range(y.shape[1]):
        rows = ~gaps[:, j]
        w = None if weights is None else weights[rows]
        each.append(r2_score(y.to_numpy()[rows, j], predicted[rows, j], sample_weight=w))
    got = finite(model.score(x, form, sample_weight=weights), "score")
    whole = ~gaps.any(1)
    other = r2_score(
        y[whole], predicted[whole], sample_weight=None if weights is None else weights[whole]
    )
    if not (abs(got - np.mean(each)) < 1e-9 or abs(got - other) < 1e-9):
        raise Wrong(f"score {got} for {np.mean(each)} of each target, {other} of whole rows")


@property_of(6, refusals=False, seconds=120)
def test_cross_validation_with_gaps(d):
    """cross_val_score of targets with gaps gives numbers."""
    _, x, y = fitted("real")
    y = y.mask(d.rng.random(y.shape) < d.number("share", 0.05, 0.3))
    model = MDNRegressor(2, width=4, settings=Settings(epochs=2), random_state=0)
    scoring = d.choice("scoring", {"default": None, "log likelihood": log_likelihood_scorer})
    finite(cross_val_score(model, x, y, cv=2, scoring=scoring), "cross_val_score")


@cache
def learnt():
    rng = np.random.default_rng(5)
    theta = pd.DataFrame(rng.uniform(-1, 1, size=(200, 2)), columns=["p", "q"])
    seen = pd.DataFrame({"s": theta.p + 0.1 * rng.normal(size=200), "t": 100 + 10 * theta.q,
                         "v": theta.p - theta.q})  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return posterior(theta, seen, settings=Settings(epochs=15), n_components=2), theta, seen


@property_of(200)
def test_posteriors_by_name(d):
    """Observations in a frame go by its names, whatever their order."""
    model, theta, seen = learnt()
    n = d.integer("rows", 1, 8)
    some = seen.iloc[d.rng.choice(200, n, replace=False)].reset_index(drop=True)
    what = d.choice("what", ["given", "sample", "log_prob", "renamed", "missing", "series"])
    expected = model.given(some.to_numpy()).mean
    if what == "renamed":
        refused(lambda: model.given(some.rename(columns={"s": "other"})), "other names")
    elif what == "missing":
        refused(lambda: model.given(some[["s", "t"]]), "too few columns")
    elif what == "series":
        one = some.iloc[0][d.random.sample(["s", "t", "v"], 3)]
        near(model.given(one).mean, expected[0], "given a row by name", rtol=1e-9, atol=1e-9)
    else:
        other = shuffled(d, "observation", some)
        loose = 1e-3 if d.facts["observation as"] == "float32" else 1e-9
        if what == "given":
            near(model.given(other).mean, expected, "posterior mean", rtol=loose, atol=loose)
        elif what == "sample":
            draws = [
                model.sample((3,), o, generator=torch.Generator().manual_seed(1))
                for o in (other, some)
            ]
            near(draws[0], draws[1], "posterior draws", rtol=loose, atol=10 * loose)
        else:
            point = theta.iloc[:n].to_numpy()
            mixed = theta.iloc[:n][["q", "p"]]
            near(model.log_prob(mixed, other), model.given(some.to_numpy()).log_prob(point),
                 "posterior log_prob", rtol=10 * loose, atol=10 * loose)  # fmt: skip
