"""Regions and intervals of fitted regressors hold what they promise, right models or wrong."""

import math
import warnings

import numpy as np
import pytest
from helpers.regressors import regressor
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


# What they hold does not depend on how well a model is trained.
PROBLEMS = {
    "heteroscedastic": (heteroscedastic, {"n_components": 3, "width": 32}, 5),
    "bimodal": (bimodal, {"n_components": 4, "width": 32}, 5),
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
    ends = model.predict_interval(x, COVERAGE, calibrated=True)
    assert ends.shape == (*y.shape, 2)
    assert np.isfinite(ends).all()
    inside = ((ends[..., 0] <= y) & (y <= ends[..., 1])).reshape(len(x), -1)
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
        assert low <= share <= high


@pytest.mark.parametrize(
    "problem", ["heteroscedastic", pytest.param("bimodal", marks=pytest.mark.slow)]
)
@pytest.mark.filterwarnings("ignore::condens.errors.ExtrapolationWarning")
def test_nine_tenths_where_a_fifth_of_the_rows_is_far_outside_the_fit(problem):
    draw, options, epochs = PROBLEMS[problem]
    rng = np.random.default_rng(4)

    def with_far(rows):
        x, y = draw(rows, rng)
        return np.where(rng.random((rows, 1)) < 0.2, 1e4 * x, x), y

    model = regressor(**options, settings=Settings(epochs=epochs)).fit(*draw(1500, rng))
    model.calibrate(*with_far(CALIBRATION))
    low, high = bounds(CALIBRATION, TEST, COVERAGE)
    x, y = with_far(TEST)
    for share in coverages(model, x, y):
        assert low < share < high + 0.005
    region = model.predict_region(x, COVERAGE)
    assert np.isfinite(region.lower.numpy()).all()
    assert np.isfinite(region.upper.numpy()).all()


def test_the_model_alone_would_miss_it():
    draw, options, epochs = PROBLEMS["heavy tails"]
    rng = np.random.default_rng(4)
    # A fitted spread would take most of the error.
    settings = Settings(epochs=epochs, spread=1.0, tail=0.001)
    model = regressor(**options, settings=settings).fit(*draw(1500, rng))
    model.calibrate(*draw(CALIBRATION, rng))
    x, y = draw(TEST, rng)
    low, high = bounds(CALIBRATION, TEST, 0.5)
    lower, upper = model.predict_interval(x, 0.5).T
    assert ((lower <= y) & (y <= upper)).mean() > high + 0.1
    region = model.predict_region(x, 0.5)
    assert low <= float(region.contains(y).double().mean()) <= high


def test_a_share_of_the_rows_may_be_kept_for_it():
    rng = np.random.default_rng(6)
    model = regressor(3, width=32, calibration_fraction=0.4, settings=Settings(epochs=5))
    model.fit(*heteroscedastic(2500, rng))
    assert model.history_.rows + model.history_.validation_rows == 1425
    assert model.history_.adjustment.rows == 75
    low, high = bounds(1000, TEST, COVERAGE)
    for share in coverages(model, *heteroscedastic(TEST, rng)):
        assert low <= share <= high


def test_better_models_have_smaller_regions():
    rng = np.random.default_rng(7)
    rows, held, (x, _) = bimodal(1500, rng), bimodal(500, rng), bimodal(200, rng)
    volumes = []
    for epochs in (1, 40):
        model = regressor(4, width=32, settings=Settings(epochs=epochs)).fit(*rows)
        region = model.calibrate(*held).predict_region(x, COVERAGE)
        volumes.append(float(region.volume(n_samples=300).value.median()))
    assert volumes[1] < 0.7 * volumes[0]


# Targets with ties, as functions of x, with atoms where rounding would lose them.


def coins(x, rng):
    return rng.integers(0, 2, len(x)).astype(float)


def zero_inflated(x, rng):
    return np.where(rng.random(len(x)) < 0.3, 1.0, np.exp(x[:, 0] + 0.5 * rng.normal(size=len(x))))


def censored(x, rng):
    share = 1 / (1 + np.exp(-x[:, 0] - rng.normal(size=len(x))))
    return np.clip(share, 0.125, 0.875)


def counts(x, rng):
    return rng.poisson(np.exp(1 + 0.5 * x[:, 0])).astype(float)


def steps(x, rng):
    return np.round(2 * x[:, 0] + rng.normal(size=len(x)))


TIES = {
    "coins": (coins, None),
    "coins as integers": (coins, "integer"),
    "coins as counts": (coins, "count"),
    "atom of positive": (zero_inflated, "positive"),
    "atoms of shares": (censored, "unit"),
    "atoms of reals": (censored, None),
    "counts": (counts, "count"),
    "counts as reals": (counts, None),
    "integers": (steps, "integer"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("name", "informed"),
    [
        *((name, False) for name in TIES),
        *((name, True) for name in ("coins", "atoms of shares", "counts")),
    ],
)
def test_equal_scores_are_held_together(name, informed):
    # Without information every row has the same density, and equal targets equal scores.
    draw, transform = TIES[name]
    rng = np.random.default_rng(8)

    def rows(count):
        x = rng.normal(size=(count, 1))
        return x if informed else np.zeros_like(x), draw(x, rng)

    model = regressor(2, target_transform=transform, settings=Settings(epochs=3))
    model.fit(*rows(300)).calibrate(*rows(CALIBRATION))
    low, _ = bounds(CALIBRATION, TEST, COVERAGE)
    # Equal scores make both larger than need be, never smaller.
    for share in coverages(model, *rows(TEST)):
        assert low <= share


def test_targets_far_out_are_held():
    # A fifth lies where F is exactly 0 or 1 in double precision.
    rng = np.random.default_rng(9)

    def rows(count, share):
        x = rng.normal(size=(count, 1))
        far = rng.choice([-1, 1], count) * 10.0 ** rng.uniform(3, 9, count)
        return x, x[:, 0] + rng.normal(size=count) + far * (rng.random(count) < share)

    model = regressor(2, settings=Settings(epochs=10)).fit(*rows(1000, 0.0))
    model.calibrate(*rows(CALIBRATION, 0.2))
    low, high = bounds(CALIBRATION, TEST, COVERAGE)
    for share in coverages(model, *rows(TEST, 0.2)):
        assert low <= share <= high


@pytest.mark.parametrize("far", [30.0, 1e3, 1e4])
def test_conditions_far_out_are_held(far):
    rng = np.random.default_rng(10)

    def rows(count, share):
        x = rng.normal(size=(count, 2))
        x[rng.random(count) < share] *= far
        return x, np.tanh(x[:, 0]) + 0.2 * rng.normal(size=count)

    model = regressor(2, settings=Settings(epochs=10)).fit(*rows(1000, 0.0))
    with warnings.catch_warnings():
        # That conditions are far out may be told: here they are so on purpose.
        warnings.simplefilter("ignore")
        model.calibrate(*rows(CALIBRATION, 0.2))
        shares = coverages(model, *rows(TEST, 0.2))
    low, high = bounds(CALIBRATION, TEST, COVERAGE)
    for share in shares:
        assert low <= share <= high
