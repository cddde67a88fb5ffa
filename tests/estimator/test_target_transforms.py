"""Constrained targets, fitted end to end by the estimator."""

import warnings
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.regressors import MIXED, NAMED, X, Y, regressor
from numpy.testing import assert_allclose
from scipy import integrate, special, stats

from condens import MDNRegressor, TransformedMixture
from condens.errors import ArgumentError, TargetTransformWarning, TargetWarning
from condens.training import Settings
from condens.transforms import Integer, Interval, Positive, Real


def positive(rows, rng):
    x = rng.normal(size=(rows, 1))
    return x, np.exp(x[:, 0] + rng.normal(size=rows))


def fraction(rows, rng):
    x = rng.normal(size=(rows, 1))
    return x, 1 / (1 + np.exp(-2 * x[:, 0] - 2 * rng.normal(size=rows)))


def between(rows, rng):
    x, y = fraction(rows, rng)
    return x, 40 * y - 10


def counts(rows, rng):
    x = rng.normal(size=(rows, 1))
    return x, rng.poisson(np.exp(0.5 + 0.8 * x[:, 0])).astype(float)


def signed(rows, rng):
    x = rng.normal(size=(rows, 1))
    return x, np.floor(2 * x[:, 0] + rng.normal(size=rows))


PROBLEMS = {
    "positive": (positive, "positive", (0.0, np.inf)),
    "unit": (fraction, "unit", (0.0, 1.0)),
    "between": (between, (-10, 30), (-10.0, 30.0)),
    "count": (counts, "count", (0.0, np.inf)),
    "integer": (signed, "integer", (-np.inf, np.inf)),
}
CONTINUOUS = ["positive", "unit", "between"]


@pytest.fixture(scope="module")
def fits():
    """Return test rows and the models with and without a transform, each fitted once."""
    made = {}

    def fit(name):
        if name not in made:
            draw, transform, _ = PROBLEMS[name]
            rng = np.random.default_rng(1)
            rows, test = draw(1500, rng), draw(1000, rng)
            settings = Settings(epochs=15, batch_size=64, learning_rate=0.01)
            models = [
                regressor(3, width=32, target_transform=spec, settings=settings).fit(*rows)
                for spec in (transform, "real")
            ]
            made[name] = (*test, *models)
        return made[name]

    return fit


@pytest.mark.parametrize("name", CONTINUOUS)
def test_transformed_densities_are_better(fits, name):
    x, y, transformed, plain = fits(name)
    gain = transformed.score_samples(x, y) - plain.score_samples(x, y)
    assert gain.mean() > 0.05
    assert stats.wilcoxon(gain, alternative="greater").pvalue < 1e-6


# The plain density of rounded normals is normal itself: there is nothing to gain.
@pytest.mark.parametrize(("name", "least"), [("count", 0.005), ("integer", -0.01)])
def test_probabilities_of_whole_numbers_against_those_of_cells(fits, name, least):
    x, y, transformed, plain = fits(name)
    # The fair rival is the plain density's probability between y − ½ and y + ½.
    density, at = plain.predict_dist(x), torch.from_numpy(y)[:, None]
    cell = np.log((density.cdf(at + 0.5) - density.cdf(at - 0.5)).numpy())
    gain = transformed.score_samples(x, y) - cell
    assert gain.mean() > least


def test_counts_come_near_the_truth(fits):
    x, y, model, _ = fits("count")
    truth = stats.poisson(np.exp(0.5 + 0.8 * x[:, 0])).logpmf(y).mean()
    assert truth - 0.03 < model.score_samples(x, y).mean() < truth + 0.01
    # Not the first network, whose components stand on the whole numbers themselves.
    assert model.history_.best_epoch > 3
    assert abs(model.history_.best_nll + truth) < 0.15


@pytest.mark.parametrize("name", PROBLEMS)
def test_answers_stay_in_the_support(fits, name):
    x, _, model, plain = fits(name)
    lower, upper = PROBLEMS[name][2]
    assert isinstance(model.predict_dist(x), TransformedMixture)
    draws = model.sample(x, 50, random_state=0)
    mean, deviation = model.predict(x, return_std=True)
    answers = [draws, mean, model.predict_quantiles(x, [0.001, 0.5, 0.999])]
    for answer in (*answers, model.predict_interval(x, 0.999)):
        assert np.isfinite(answer).all()
        assert (answer >= lower).all()
        assert (answer <= upper).all()
    assert np.isfinite(deviation).all()
    assert (deviation > 0).all()
    if name in ("count", "integer"):
        assert (draws == np.floor(draws)).all()
    if np.isfinite(lower):
        assert (plain.sample(x, 50, random_state=0) < lower).any()


@pytest.mark.parametrize("name", PROBLEMS)
def test_moments_and_quantiles_are_those_of_the_draws(fits, name):
    x, _, model, _ = fits(name)
    draws = model.sample(x[:20], 20_000, random_state=1)
    density = model.predict_dist(x[:20])
    mean, deviation = density.mean[:, 0].numpy(), density.stddev[:, 0].numpy()
    assert (np.abs(draws.mean(0) - mean) < 5 * deviation / np.sqrt(20_000)).all()
    low, high = model.predict_quantiles(x[:20], [0.25, 0.75]).T
    tolerance = 5 * np.sqrt(0.25 * 0.75 / 20_000)
    assert ((draws <= low).mean(0) > 0.25 - tolerance).all()
    assert ((draws < low).mean(0) < 0.25 + tolerance).all()
    assert ((draws <= high).mean(0) > 0.75 - tolerance).all()
    assert ((draws < high).mean(0) < 0.75 + tolerance).all()


@pytest.mark.parametrize("name", CONTINUOUS)
def test_densities_integrate_to_one(fits, name):
    x, _, model, _ = fits(name)
    lower, upper = PROBLEMS[name][2]
    row = x[:1]

    def density(value):
        return float(np.exp(model.score_samples(row, [value])[0]))

    def stretched(place):
        """Return the density of u, where u = log(y − a), or log((y − a)/(b − y)) with an upper b.

        That of y is steep at the bounds, where the tail is.
        """
        if upper == np.inf:
            return density(lower + np.exp(place)) * np.exp(place)
        part = special.expit(place)
        slope = (upper - lower) * part * special.expit(-place)
        return density(lower + (upper - lower) * part) * slope

    total = sum(
        integrate.quad(stretched, *ends, epsabs=1e-8, limit=200)[0]
        for ends in pairwise((-30, -5, 0, 5, 30))
    )
    assert_allclose(total, 1.0, atol=1e-4)


@pytest.mark.parametrize("name", ["count", "integer"])
def test_probabilities_sum_to_one(fits, name):
    x, _, model, _ = fits(name)
    values = np.arange(0 if name == "count" else -300, 3000, dtype=float)
    for row in x[:5]:
        each = model.score_samples(np.tile(row, (len(values), 1)), values)
        assert_allclose(np.exp(each).sum(), 1.0, atol=1e-6)
    outside = model.score_samples(x[:2], [0.5, -1.0 if name == "count" else 1.5])
    assert (outside == -np.inf).all()


def joint(rows, rng):
    x = rng.normal(size=(rows, 2))
    base = x + rng.normal(size=(rows, 2)) @ [[0.5, 0.4], [0.0, 0.3]]
    return x, pd.DataFrame({"price": np.exp(base[:, 0]), "rooms": np.floor(np.exp(base[:, 1]))})


def test_missing_targets_together_with_transforms():
    rng = np.random.default_rng(2)
    x, y = joint(1500, rng)
    gaps = y.mask(rng.random(y.shape) < 0.3)
    settings = Settings(epochs=15, batch_size=64, learning_rate=0.01)
    options = {"width": 32, "settings": settings}
    spec = {"price": "positive", "rooms": "count"}
    model = regressor(2, target_transform=spec, **options).fit(x, gaps)
    assert model.transforms_ == (Positive(), Integer(lower=0))
    assert model.history_.rows_left_out == int(gaps.isna().all(axis=1).sum()) > 50
    x, y = joint(300, rng)
    density = model.predict_dist(x)
    alone = y.assign(rooms=np.nan)
    expected = density.marginal("price").log_prob(y[["price"]].to_numpy())
    assert_allclose(model.score_samples(x, alone), expected.numpy(), rtol=1e-8)
    whole = regressor(2, target_transform=spec, **options).fit(*joint(1500, rng))
    # A third of the entries missing costs little.
    assert model.score_samples(x, y).mean() > whole.score_samples(x, y).mean() - 0.15
    # Price and rooms go together: one informs about the other.
    rooms = density.condition({"price": y["price"].to_numpy()}).log_prob(y[["rooms"]].to_numpy())
    assert float(rooms.mean()) > model.score_samples(x, y.assign(price=np.nan)).mean() + 0.05


@pytest.mark.parametrize(
    ("spec", "transforms"),
    [
        (None, (Real(), Real())),
        ("real", (Real(), Real())),
        ("positive", (Positive(), Positive())),
        ((0, 1e6), (Interval(0.0, 1e6), Interval(0.0, 1e6))),
        (Positive(-1.0), (Positive(-1.0), Positive(-1.0))),
        (["positive", None], (Positive(), Real())),
        ([(0, 1e6), Positive()], (Interval(0.0, 1e6), Positive())),
        ({"größe": "positive"}, (Real(), Positive())),
        ({}, (Real(), Real())),
    ],
)
def test_every_form_of_asking(spec, transforms):
    model = regressor(target_transform=spec).fit(MIXED, NAMED)
    assert model.transforms_ == transforms
    assert np.isfinite(model.score_samples(MIXED, NAMED)).all()


def test_places_where_there_are_no_names():
    assert (
        regressor(target_transform={1: "positive"}).fit(X, NAMED.to_numpy()).transforms_[1]
        == Positive()
    )


@pytest.mark.filterwarnings("ignore:.*explained by no component")
def test_automatic_transforms_are_named():
    rng = np.random.default_rng(3)
    y = pd.DataFrame(
        {
            "income": np.exp(2 * rng.normal(size=240)),
            "children": rng.poisson(1.5, 240),
            "fraction": rng.uniform(0.1, 0.9, 240),
            "change": Y[:, 0],
        }
    )
    message = r"'auto' chose {'income': Positive.*'children': Integer.*'fraction': Interval.*: Real"
    with pytest.warns(UserWarning, match=message) as seen:
        model = regressor(target_transform="auto").fit(X, y)
    assert seen[0].filename == __file__
    assert model.transforms_ == (Positive(), Integer(lower=0), Interval(0.0, 1.0), Real())
    with pytest.warns(UserWarning, match=r"'auto' chose {'children': Integer\(lower=0\)}\. Pass"):
        some = regressor(target_transform={"children": "auto", "income": "real"}).fit(X, y)
    assert some.transforms_ == (Real(), Integer(lower=0), Real(), Real())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*auto")
        regressor(target_transform=list(model.transforms_)).fit(X, y)


def spiked(share_of_zeros, seed=0, rows=300):
    rng = np.random.default_rng(seed)
    amount = np.exp(rng.normal(size=rows))
    amount[: int(share_of_zeros * rows)] = 0.0
    return rng.normal(size=(rows, 1)), pd.DataFrame(
        {"claim": amount, "other": rng.normal(size=rows)}
    )


@pytest.mark.parametrize("transform", [None, "auto"])
def test_a_spike_at_the_end_of_the_range_is_told(transform):
    x, y = spiked(0.3)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model = regressor(target_transform=transform).fit(x, y)
    (told,) = [w for w in seen if w.category is TargetWarning]
    assert told.filename == __file__
    message = str(told.message)
    assert "column(s) 'claim' (30.00% on 0)" in message
    assert "classifier" in message
    assert "'count'" in message
    assert "'other'" not in message
    assert model.transforms_ == (Real(), Real())
    with warnings.catch_warnings():
        warnings.simplefilter("error", TargetWarning)
        regressor(target_transform="real").fit(x, y)


def test_auto_tells_of_single_values_that_keep_it_from_a_bound():
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.uniform(0.01, 0.99, 299), [1.0]])
    x = rng.normal(size=(300, 1))
    with (
        pytest.warns(TargetTransformWarning),
        pytest.warns(TargetWarning, match=r"0 \(0\.33% on 1\)"),
    ):
        model = regressor(target_transform="auto").fit(x, y)
    assert model.transforms_ == (Real(),)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TargetWarning)
        regressor().fit(x, y)


@pytest.mark.parametrize(
    "transform", ["positive", "unit", (0, 1), [Positive()], Interval(0, 1, "logit")]
)
def test_targets_on_a_bound_are_refused_with_advice(transform):
    rng = np.random.default_rng(0)
    y = rng.uniform(0.01, 0.99, 200)
    y[5], y[30:40] = 0.0, 0.0
    message = r"y, column 0, has 0 at index \[5\], and 5\.50% of the rows on 0, but .*classifier"
    with pytest.raises(ArgumentError, match=message):
        regressor(target_transform=transform).fit(rng.normal(size=(200, 1)), y)


@pytest.mark.parametrize("transform", ["positive", "count"])
def test_a_rare_wide_component_does_not_decide_the_mean(transform):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 1))
    y = np.exp(1 + 0.3 * rng.normal(size=200))
    model = MDNRegressor(
        2,
        n_members=1,
        target_transform=transform,
        settings=Settings(epochs=5, limit=np.inf, trim=0.0),
        random_state=0,
    ).fit(x, np.floor(y) if transform == "count" else y)
    before = model.predict(x)
    # The second component: hardly any weight, 40 deviations wide.
    head = model.network_.head.linear
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([0.0, -9.0, 0.0, 0.0, 0.0, -np.log(40.0)]))
    assert float(model.predict_dist(x[:1]).mean) > 1e10
    mean, deviation = model.predict(x, return_std=True)
    assert (mean > 0).all()
    assert (mean < 2 * before.max()).all()
    assert (deviation < 1e3).all()
