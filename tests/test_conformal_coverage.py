"""Regions and intervals of fitted regressors hold what they promise, right models or wrong."""

import math

import numpy as np
import pytest
from regressors import regressor
from scipy import stats

from condens.training import Settings

CALIBRATION, TEST, COVERAGE = 1000, 2000, 0.9


def heteroscedastic(rows, rng):
    x = rng.uniform(-2, 2, size=(rows, 1))
    noise = rng.normal(size=(rows, 2)) @ [[1.0, 0.6], [0.0, 0.8]]
    return x, np.column_stack([x, np.sin(2 * x)]) + (0.1 + np.abs(x)) * noise


def bimodal(rows, rng):
    x = rng.normal(size=(rows, 2))
    side = np.where(rng.random((rows, 1)) < 0.3, -2.0, 2.0)
    return x, np.column_stack([side * (1 + x[:, :1] ** 2), x[:, 1:] * side]) + 0.3 * rng.normal(
        size=(rows, 2)
    )


def heavy(rows, rng):
    x = rng.normal(size=(rows, 1))
    return x, x[:, 0] + rng.standard_t(2, size=rows)


PROBLEMS = {
    "heteroscedastic": (heteroscedastic, {"n_components": 3, "width": 32}, 20),
    "bimodal": (bimodal, {"n_components": 4, "width": 32}, 20),
    # One component, without correlation, barely trained.
    "misspecified": (bimodal, {"n_components": 1, "covariance": "diagonal"}, 1),
    "heavy tails": (heavy, {"n_components": 1}, 5),
}


def bounds(calibration, test, coverage, rejected=1e-4):
    """Return what the share of covered test rows exceeds, and stays below, but for `rejected`.

    The coverage given the calibration rows is Beta(k, m + 1 − k), k = ⌈(m + 1)·coverage⌉ where
    no scores are equal; the test rows covered then are binomial: together beta-binomial.
    """
    place = math.ceil((calibration + 1) * coverage)
    law = stats.betabinom(test, place, calibration + 1 - place)
    return law.ppf(rejected / 2) / test, law.isf(rejected / 2) / test


def coverages(model, x, y):
    """Return the shares of rows in the region, and in each target's interval."""
    region = model.predict_region(x, COVERAGE)
    y = y.reshape(len(x), -1)
    inside = (region.lower.numpy() <= y) & (y <= region.upper.numpy())
    return [float(region.contains(y).double().mean()), *inside.mean(0)]


@pytest.mark.filterwarnings("ignore:.*explained by no component")
@pytest.mark.parametrize("name", PROBLEMS)
def test_nine_tenths_are_nine_tenths(name):
    draw, options, epochs = PROBLEMS[name]
    rng = np.random.default_rng(4)
    model = regressor(**options, settings=Settings(epochs=epochs)).fit(*draw(1500, rng))
    model.calibrate(*draw(CALIBRATION, rng))
    x, y = draw(TEST, rng)
    low, high = bounds(CALIBRATION, TEST, COVERAGE)
    assert 0.85 < low < 0.9 < high < 0.95
    for share in coverages(model, x, y):
        # The region's scores are counts of draws: of equal ones a few more are held.
        assert low < share < high + 0.005


def test_the_model_alone_would_miss_it():
    draw, options, epochs = PROBLEMS["heavy tails"]
    rng = np.random.default_rng(4)
    model = regressor(**options, settings=Settings(epochs=epochs)).fit(*draw(1500, rng))
    model.calibrate(*draw(CALIBRATION, rng))
    x, y = draw(TEST, rng)
    low, high = bounds(CALIBRATION, TEST, 0.5)
    lower, upper = model.predict_interval(x, 0.5).T
    assert ((lower <= y) & (y <= upper)).mean() > high + 0.1
    region = model.predict_region(x, 0.5)
    assert low < float(region.contains(y).double().mean()) < high + 0.005


def test_a_share_of_the_rows_may_be_kept_for_it():
    rng = np.random.default_rng(6)
    model = regressor(3, width=32, calibration_fraction=0.4, settings=Settings(epochs=20))
    model.fit(*heteroscedastic(2500, rng))
    assert model.history_.rows + model.history_.validation_rows == 1500
    low, high = bounds(1000, TEST, COVERAGE)
    for share in coverages(model, *heteroscedastic(TEST, rng)):
        assert low < share < high + 0.005


def test_better_models_have_smaller_regions():
    rng = np.random.default_rng(7)
    rows, held, (x, _) = bimodal(1500, rng), bimodal(500, rng), bimodal(200, rng)
    volumes = []
    for epochs in (1, 40):
        model = regressor(4, width=32, settings=Settings(epochs=epochs)).fit(*rows)
        region = model.calibrate(*held).predict_region(x, COVERAGE)
        volumes.append(float(region.volume(n_samples=300).value.median()))
    assert volumes[1] < 0.7 * volumes[0]


def test_counts_are_covered_at_least():
    rng = np.random.default_rng(8)

    def draw(rows):
        x = rng.normal(size=(rows, 1))
        return x, rng.poisson(np.exp(1 + 0.5 * x[:, 0]))

    model = regressor(2, target_transform="count", settings=Settings(epochs=10)).fit(*draw(1000))
    model.calibrate(*draw(1000))
    x, y = draw(2000)
    low, _ = bounds(1000, 2000, COVERAGE)
    # Equal scores make both larger than need be, never smaller.
    for share in coverages(model, x, y):
        assert low < share < 0.99
