"""Scorers: the mean of the scores themselves, through searches, pipelines and routing."""

import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from helpers.regressors import X, Y, regressor
from sklearn.feature_selection import SelectKBest, f_regression
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from condens.errors import ArgumentError, DimensionError, NotFiniteError, ShapeError
from condens.estimator import scorers
from condens.estimator.scorers import energy_scorer, log_likelihood_scorer
from condens.training import Settings

BOTH = pytest.mark.parametrize("scorer", [log_likelihood_scorer, energy_scorer], ids=repr)


@pytest.fixture(scope="module")
def fitted():
    return regressor().fit(X, Y)


def test_log_likelihood_is_the_mean_log_density(fitted):
    expected = fitted.predict_dist(X).log_prob(Y).mean()
    assert log_likelihood_scorer(fitted, X, Y) == pytest.approx(float(expected), abs=1e-12)


def test_energy_score_in_one_dimension_is_the_exact_crps():
    model = regressor().fit(X, Y[:, 0])
    # ∫ (F(t) − 1[y ≤ t])² dt by a fine sum.
    density, grid = model.predict_dist(X[:20]), np.linspace(-30, 30, 20_001)
    cdf = density.cdf(grid[:, None, None]).numpy()
    crps = (((cdf - (Y[:20, 0] <= grid[:, None])) ** 2).sum(0) * (grid[1] - grid[0])).mean()
    assert energy_scorer(model, X[:20], Y[:20, 0]) == pytest.approx(-crps, rel=1e-3)


def test_energy_score_agrees_with_draws(fitted):
    draws = fitted.sample(X, 4000, random_state=1)
    first, second = draws[:2000], draws[2000:]
    each = np.linalg.norm(first - Y, axis=-1) - 0.5 * np.linalg.norm(first - second, axis=-1)
    error = each.mean(1).std() / np.sqrt(2000) + each.mean(0).std() / np.sqrt(1000)
    assert abs(energy_scorer(fitted, X, Y) + each.mean()) < 4 * error


def test_blocks_do_not_matter_in_one_dimension(monkeypatch):
    model = regressor().fit(X, Y[:, 0])
    whole = energy_scorer(model, X, Y[:, 0])
    monkeypatch.setattr(scorers, "ROWS_PER_BLOCK", 7)
    assert energy_scorer(model, X, Y[:, 0]) == pytest.approx(whole, abs=1e-12)


@BOTH
def test_better_models_score_higher(scorer, fitted):
    better = regressor(settings=Settings(epochs=80), width=32).fit(X[:160], Y[:160])
    assert scorer(better, X[160:], Y[160:]) > scorer(fitted, X[160:], Y[160:]) + 0.1


@BOTH
def test_weights(scorer, fitted):
    weights = np.arange(240) % 3
    repeated = np.repeat(np.arange(240), weights)
    expected = scorer(fitted, X[repeated], Y[repeated])
    # The draws of the energy score differ between the two calls.
    tolerance = 1e-12 if scorer is log_likelihood_scorer else 0.02
    assert scorer(fitted, X, Y, weights) == pytest.approx(expected, abs=tolerance)


def test_a_row_of_weight_zero_may_have_no_density():
    model = regressor(target_transform="positive").fit(X, np.exp(Y))
    y = np.exp(Y)
    y[0, 0] = -1.0
    assert log_likelihood_scorer(model, X, y) == -np.inf
    weights = np.where(np.arange(240) == 0, 0.0, 1.0)
    expected = log_likelihood_scorer(model, X[1:], y[1:])
    assert log_likelihood_scorer(model, X, y, weights) == pytest.approx(expected, abs=1e-12)


@BOTH
def test_pipelines_and_searches(scorer):
    pipeline = make_pipeline(StandardScaler(), regressor())
    pipeline.fit(X, Y)
    expected = scorer(pipeline[-1], pipeline[0].transform(X), Y)
    assert scorer(pipeline, X, Y) == expected
    search = GridSearchCV(pipeline, {"mdnregressor__n_components": [1, 2]}, cv=2, scoring=scorer)
    search.fit(X, Y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert scorer(search, X, Y) == scorer(search.best_estimator_, X, Y)
    nested = cross_val_score(search, X, Y, cv=2, scoring=scorer)
    assert np.isfinite(nested).all()
    chosen = make_pipeline(
        SelectKBest(f_regression, k=2), make_pipeline(StandardScaler(), regressor())
    )
    assert np.isfinite(cross_val_score(chosen, X, Y[:, 0], cv=2, scoring=scorer)).all()


def test_several_scores_at_once():
    scoring = {"log_likelihood": log_likelihood_scorer, "energy": energy_scorer, "r2": "r2"}
    found = cross_validate(regressor(), X, Y, cv=2, scoring=scoring)
    assert {"test_log_likelihood", "test_energy", "test_r2"} <= found.keys()


@pytest.mark.parametrize("size", [1e306, 1e-306])
def test_weights_whose_sum_is_no_number(size, fitted):
    weights = 1.0 + np.arange(240) % 3
    expected = log_likelihood_scorer(fitted, X, Y, weights)
    found = log_likelihood_scorer(fitted, X, Y, size * weights)
    assert found == pytest.approx(expected, rel=1e-12)


@BOTH
def test_weights_are_routed_where_asked_for(scorer):
    weights = np.where(np.arange(240) % 2, 1.0, 0.0)
    with sklearn.config_context(enable_metadata_routing=True):
        model = regressor().set_fit_request(sample_weight=False)
        asking = scorer.set_score_request(sample_weight=True)
        arguments = {"params": {"sample_weight": weights}, "cv": 2}
        weighted = cross_validate(model, X, Y, scoring=asking, **arguments)["test_score"]
        plain = cross_validate(model, X, Y, scoring=scorer, cv=2)["test_score"]
        with pytest.raises(ValueError, match="not explicitly set as requested"):
            cross_validate(model, X, Y, scoring=scorer, **arguments)
    expected = []
    for held in (np.arange(120), np.arange(120, 240)):
        rest = np.setdiff1d(np.arange(240), held)
        fold = regressor().fit(X[rest], Y[rest])
        expected.append(
            (scorer(fold, X[held], Y[held], weights[held]), scorer(fold, X[held], Y[held]))
        )
    assert np.stack([weighted, plain], 1) == pytest.approx(np.array(expected), rel=1e-12)
    assert (weighted != plain).all()


@BOTH
def test_they_can_be_pickled_and_printed(scorer, fitted):
    again = pickle.loads(pickle.dumps(scorer))
    assert again(fitted, X, Y) == scorer(fitted, X, Y)
    assert repr(again) == repr(scorer)
    assert repr(scorer) in ("log_likelihood_scorer", "energy_scorer")


@BOTH
def test_named_errors(scorer, fitted):
    with pytest.raises(ShapeError, match=r"sample_weight has shape \[3\]"):
        scorer(fitted, X, Y, np.ones(3))
    with pytest.raises(NotFiniteError, match="sample_weight is -1"):
        scorer(fitted, X, Y, -np.ones(240))
    with pytest.raises(ArgumentError, match="y has no row that counts"):
        scorer(fitted, X, Y, np.zeros(240))
    with pytest.raises(ShapeError, match="y has 1 column"):
        scorer(fitted, X, Y[:, 0])
    with pytest.raises(ShapeError, match="y has 5 rows, but X has 240"):
        scorer(fitted, X, Y[:5])
    named = regressor().fit(X, pd.DataFrame(Y, columns=["a", "b"]))
    assert scorer(named, X, pd.DataFrame(Y[:, ::-1], columns=["b", "a"])) == scorer(named, X, Y)
    with pytest.raises(DimensionError, match=r"y has columns b, c, but .* \(a, b\)"):
        scorer(named, X, pd.DataFrame(Y, columns=["b", "c"]))


@BOTH
def test_what_was_not_observed_is_left_out(scorer, fitted):
    gaps = Y.copy()
    gaps[:80, 0], gaps[80:160, 1], gaps[160:170] = np.nan, np.nan, np.nan
    density = fitted.predict_dist(X)
    second, first, both = slice(0, 80), slice(80, 160), slice(170, 240)
    if scorer is log_likelihood_scorer:
        parts = [
            density[second].marginal(1).log_prob(Y[second, 1:]),
            density[first].marginal(0).log_prob(Y[first, :1]),
            density[both].log_prob(Y[both]),
        ]
        tolerance = 1e-12
    else:
        joint = density[both].energy_score(Y[both], n_samples=4000)
        parts = [
            -density[second].marginal(1).crps(Y[second, 1:]),
            -density[first].marginal(0).crps(Y[first, :1]),
            -joint.value,
        ]
        # The other draws of the rows with both targets, a thousand each.
        tolerance = 4 * 2 * float(joint.standard_error.square().sum().sqrt()) / 230
    expected = float(torch.cat(parts).mean())
    assert scorer(fitted, X, gaps) == pytest.approx(expected, abs=tolerance)
    with pytest.raises(ArgumentError, match="y has no row that counts"):
        scorer(fitted, X, np.full_like(Y, np.nan))
