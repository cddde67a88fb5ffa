"""Spread and tail of a fitted model: which answers have them, and what drops them."""

import numpy as np
import pytest
import torch
from helpers.regressors import X, Y, regressor
from numpy.testing import assert_allclose, assert_array_equal

from condens import MDNRegressor
from condens.errors import ArgumentError
from condens.evaluation import evaluate
from condens.training import Settings

FAR = np.vstack([Y[:50], np.full((1, 2), 1e5)])
ROWS = np.vstack([X[:50], X[:1]])


@pytest.fixture(scope="module")
def model():
    settings = Settings(epochs=5, spread=1.2, tail=0.02)
    return regressor(3, settings=settings, calibration_fraction=0.25).fit(X, Y)


def test_which_answers_have_the_tail(model):
    whole, body = model.predict_dist(X), model.predict_dist(X, tail=False)
    assert (whole.n_components, body.n_components) == (3 + 11, 3)
    assert_allclose(whole.weights[:, :3], 0.98 * body.weights, rtol=1e-12)
    assert_array_equal(whole.means[:, :3], body.means)
    assert_allclose(model.predict(X), body.mean, rtol=1e-12)
    assert_allclose(model.predict(X, return_std=True)[1], body.stddev, rtol=1e-12)
    assert_allclose(model.score_samples(ROWS, FAR)[-1], whole[:1].log_prob(FAR[-1:])[0])
    assert model.score_samples(ROWS, FAR)[-1] > -100 > body[:1].log_prob(FAR[-1:])[0]
    median = model.predict_quantiles(X, 0.5)[..., 0]
    assert_allclose(body.marginal(0).cdf(torch.from_numpy(median[:, :1])), 0.5, atol=1e-9)
    assert np.abs(model.sample(X, 2000, random_state=0)).max() < 100
    region = model.predict_region(X)
    assert region.mixture.n_components == 14
    assert_array_equal(model.predict_interval(X, 0.8, calibrated=True)[..., 0], region_low(model))


def region_low(model):
    return model.predict_region(X, 0.8).lower.numpy()


def test_an_evaluation_has_it_in_the_log_likelihood_alone(model):
    settings = Settings(epochs=5, spread=1.2, tail=0)
    without = regressor(3, settings=settings, calibration_fraction=0.25).fit(X, Y)
    found, other = (evaluate(one, ROWS, FAR).rows for one in (model, without))
    assert_allclose(found["log_likelihood"], model.score_samples(ROWS, FAR), rtol=1e-9)
    assert found["log_likelihood"][-1] > -100 > other["log_likelihood"][-1]
    for name in ("energy_score", "entropy", "hpd_coverage"):
        assert_array_equal(found[name], other[name])


def test_files_keep_them(model, tmp_path):
    model.save(tmp_path / "model")
    loaded = MDNRegressor.load(tmp_path / "model")
    assert_array_equal(loaded.score_samples(X, Y), model.score_samples(X, Y))
    assert_array_equal(loaded.predict_dist(X).factors, model.predict_dist(X).factors)
    assert loaded.history_.to_dict() == model.history_.to_dict()
    again = tmp_path / "again"
    loaded.save(again)
    assert again.read_bytes() == (tmp_path / "model").read_bytes()


def test_a_model_that_goes_on_sets_them_anew():
    model = regressor(calibration_fraction=0.1, warm_start=True).fit(X, Y)
    first, components = model.history_.adjustment, model.network_.tail.components
    assert model.calibration_ is not None
    assert first.rows == 11
    model.set_params(calibration_fraction=0.0).fit(X, Y)
    assert model.history_.adjustment != first
    assert not hasattr(model, "calibration_")
    components = model.network_.tail.components
    model.partial_fit(X[:5], Y[:5])
    found = model.history_.adjustment
    assert (found.spread, found.tail, found.rows) == (1.0, 0.001, 0)
    assert model.network_.spread is None
    # Five rows say less of all targets than those before.
    for before, now in zip(components, model.network_.tail.components, strict=True):
        assert torch.equal(before, now)


def test_the_limit_stays_that_of_the_training_targets():
    """Also without a tail, and also where other rows adjust."""
    model = regressor(settings=Settings(tail=0.0), warm_start=True).fit(X, Y)
    reach = model.network_.limit.reach
    few = Y[:20] + 2 * np.random.default_rng(0).normal(size=Y[:20].shape)
    model.adjust(X[:20], few)
    assert torch.equal(model.network_.limit.reach, reach)
    model.partial_fit(X[:20], Y[:20] / 2)
    assert torch.equal(model.network_.limit.reach, reach)
    assert model.network_.limit.factor == 1
    model.set_params(settings=Settings(tail=0.0, limit=7.0)).adjust(X[:20], few)
    assert torch.equal(model.network_.limit.reach, reach)
    assert model.network_.limit.factor == 7


def test_other_rows_adjust_a_fitted_model():
    model = regressor(3, calibration_fraction=0.2).fit(X, Y)
    mean, network = model.predict(X), model.network_
    wide = Y + 5 * np.random.default_rng(0).normal(size=Y.shape)
    assert model.adjust(X, wide) is model
    assert model.history_.adjustment.rows == 240
    assert model.history_.adjustment.spread > 1.5
    assert_allclose(model.predict(X), mean, rtol=1e-12)
    assert model.network_ is not network
    with pytest.raises(ArgumentError, match="is not calibrated"):
        model.predict_region(X)


def test_defaults_meet_the_bars():
    """A surprise costs under 120 nats; deviations of half a training deviation hardly grow."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2))
    y = 0.5 * x @ rng.normal(size=(2, 3)) + rng.normal(size=(400, 3))
    y = (y - y.mean(0)) / y.std(0)
    # Of positive targets the price is about 2 log y for each: no bar of theirs.
    for transform, target, most in ((None, y, 120), ("positive", np.exp(0.3 * y), 200)):
        model = MDNRegressor(epochs=15, target_transform=transform, random_state=0).fit(x, target)
        assert model.history_.adjustment.tail >= 0.001
        unit = target.std(0)
        cost = -model.score_samples(x[:3], np.tile(1e6 * unit, (3, 1)))
        assert cost.max() < most
        growth = model.predict_dist(x).stddev - model.predict_dist(x, tail=False).stddev
        assert (growth.numpy() / unit).max() < 0.01 * model.history_.adjustment.tail / 0.001
