"""Predictions of a fitted model, against its densities."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.regressors import MIXED, NAMED, X, Y, regressor
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from condens import MDNRegressor
from condens.errors import ExtrapolationWarning
from condens.estimator import predictions
from condens.training import Settings


@pytest.fixture(scope="module", params=["full", "diagonal", "isotropic", "tied", "low_rank"])
def model(request):
    return regressor(3, covariance=request.param, settings=Settings(epochs=10)).fit(X, Y)


@pytest.fixture(scope="module")
def parts(model):
    """Return weights [n, K] and means [n, K, D] of the components."""
    density = model.predict_dist(X, tail=False)
    return torch.softmax(density.logits, -1).numpy(), density.means.numpy()


def test_moments_are_those_of_the_components(model, parts):
    weights, means = parts
    expected = (weights[..., None] * means).sum(1)
    assert_allclose(model.predict(X), expected, rtol=1e-9, atol=1e-12)
    mean, deviation = model.predict(X, return_std=True)
    again, covariance = model.predict(X, return_cov=True)
    assert_array_equal(mean, model.predict(X))
    assert_array_equal(again, mean)
    assert_allclose(np.sqrt(np.einsum("ndd->nd", covariance)), deviation, rtol=1e-9)
    assert_allclose(covariance, covariance.transpose(0, 2, 1), rtol=1e-12)
    draws = model.sample(X[:5], 20_000, random_state=0)
    for row in range(5):
        # The errors of a sample covariance of near normal draws, five of them.
        error = 5 * np.sqrt(2 / 20_000) * np.outer(deviation[row], deviation[row])
        assert (np.abs(np.cov(draws[:, row].T) - covariance[row]) < 1.5 * error).all()


def test_quantiles_have_their_levels(model):
    levels = [0.01, 0.3, 0.5, 0.99]
    found = model.predict_quantiles(X, levels)
    assert found.shape == (240, 2, 4)
    density = model.predict_dist(X, tail=False)
    for dim in range(2):
        for place, level in enumerate(levels):
            at = torch.from_numpy(found[:, dim, place, None])
            assert_allclose(density.marginal(dim).cdf(at).numpy(), level, atol=1e-9)
    assert_array_equal(model.predict_quantiles(X, 0.3), found[..., 1:2])
    assert_array_equal(model.predict_quantiles(X, levels[::-1]), found[..., ::-1])


def test_intervals_leave_equal_tails(model):
    found = model.predict_interval(X, 0.8)
    assert found.shape == (240, 2, 2)
    assert_allclose(found, model.predict_quantiles(X, [0.1, 0.9]), rtol=1e-8, atol=1e-10)


def test_draws_follow_the_density(model):
    draws = model.sample(X[:4], 3000, random_state=1)
    assert draws.shape == (3000, 4, 2)
    density = model.predict_dist(X[:4])
    for dim in range(2):
        levels = density.marginal(dim).cdf(torch.from_numpy(draws[..., dim, None])).numpy()
        for row in range(4):
            assert stats.kstest(levels[:, row], "uniform").pvalue > 1e-4
    assert_array_equal(draws, model.sample(X[:4], 3000, random_state=1))
    assert (draws != model.sample(X[:4], 3000, random_state=2)).any()


def test_scores_are_log_densities(model):
    expected = model.predict_dist(X).log_prob(Y).numpy()
    assert_allclose(model.score_samples(X, Y), expected, rtol=1e-12)


def test_blocks_do_not_matter(model, monkeypatch):
    asked = (
        lambda: model.predict(X, return_cov=True)[1],
        lambda: model.predict_quantiles(X),
        lambda: model.predict_interval(X),
    )
    whole = [ask() for ask in asked]
    monkeypatch.setattr(predictions, "ROWS_PER_BLOCK", 17)
    for ask, expected in zip(asked, whole, strict=True):
        assert_allclose(ask(), expected, rtol=1e-9, atol=1e-12)


def test_score_is_the_explained_fraction_of_variance():
    model = regressor(settings=Settings(epochs=60)).fit(X, Y)
    rest = ((Y - model.predict(X)) ** 2).sum(0) / ((Y - Y.mean(0)) ** 2).sum(0)
    assert model.score(X, Y) == pytest.approx(1 - rest.mean(), abs=1e-12)


# Rows far outside those of the fit.

LARGEST = np.finfo(float).max
FAR = np.array(
    [[999.0, 0.0], [9999.0, 0.0], [-1e4, 1e4], [1e30, -1e300], [LARGEST, LARGEST], [0.0, -LARGEST]]
)


@pytest.fixture(scope="module")
def normal():
    """Return rows of standard normal conditions and their targets."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 2))
    return x, x @ [[1.0, 0.0], [1.0, 2.0]] + 0.3 * rng.normal(size=(500, 2))


@pytest.mark.filterwarnings("ignore::condens.errors.ExtrapolationWarning")
@pytest.mark.parametrize("transform", [None, "positive"])
def test_far_rows_have_finite_answers_no_narrower_than_at_the_edge(normal, transform):
    """With every default: weights that were trained, not made up."""
    x, y = normal
    y = y if transform is None else np.exp(y)
    model = MDNRegressor(random_state=0, target_transform=transform, epochs=8).fit(x, y)
    seen = model.network_.condition_scaling
    edge = np.clip(FAR, seen.lower.numpy(), seen.upper.numpy())
    for answer in (
        model.predict(FAR),
        *model.predict(FAR, return_std=True),
        *model.predict(FAR, return_cov=True),
        model.predict_quantiles(FAR, [1e-9, 0.5, 1 - 1e-9]),
        model.predict_interval(FAR),
        model.sample(FAR, 100, random_state=0),
        model.score_samples(FAR, y[: len(FAR)]),
    ):
        assert np.isfinite(answer).all()
    for coverage in (0.1, 0.5, 0.9, 0.999):
        # Of positive targets the ratio of the ends: widths are those of the logarithms.
        measure = np.log if transform else np.asarray
        far, near = (
            np.diff(measure(model.predict_interval(rows, coverage))) for rows in (FAR, edge)
        )
        assert (far >= (1 - 1e-9) * near).all()


def asked(model, rows):
    """Return every question that a model answers for rows."""
    return {
        "predict": lambda: model.predict(rows),
        "std": lambda: model.predict(rows, return_std=True),
        "quantiles": lambda: model.predict_quantiles(rows),
        "interval": lambda: model.predict_interval(rows),
        "dist": lambda: model.predict_dist(rows),
        "region": lambda: model.predict_region(rows, 0.8),
        "sample": lambda: model.sample(rows),
    }


@pytest.fixture(scope="module")
def named():
    """Return a table whose columns have names, and a calibrated model of it."""
    frame = pd.DataFrame(X, columns=["a", "b", "größe"])
    return frame, regressor(calibration_fraction=0.2).fit(frame, Y)


@pytest.mark.parametrize(
    "question", ["predict", "std", "quantiles", "interval", "dist", "region", "sample"]
)
def test_one_warning_names_the_columns_their_ranges_and_the_rows(named, question, monkeypatch):
    monkeypatch.setattr(predictions, "ROWS_PER_BLOCK", 17)
    frame, model = named
    seen = model.network_.condition_scaling
    width = seen.upper - seen.lower
    asked(model, frame)[question]()  # as they were: no word
    inside = frame.copy()
    inside.loc[3, "b"] = float(seen.upper[1] + 0.5 * width[1])
    inside.loc[5, "a"] = float(seen.lower[0] - 0.5 * width[0])
    asked(model, inside)[question]()
    far = inside.copy()
    far.loc[[3, 60], "b"], far.loc[[3, 5, 9], "größe"] = 1e3, -1e300
    with pytest.warns(ExtrapolationWarning) as raised:
        asked(model, far)[question]()
    (one,) = raised
    ranges = [f"{seen.lower[c]:.6g} to {seen.upper[c]:.6g}" for c in range(3)]
    assert str(one.message) == (
        "X is far outside the rows of the fit in 4 of 240 row(s): column 'b' in 2 row(s), where "
        f"{ranges[1]} was fitted; column 'größe' in 3 row(s), where {ranges[2]} was fitted. No "
        "data support these predictions: leave such rows out, or fit on rows like them."
    )
    assert one.filename == __file__


def test_a_warning_knows_columns_by_number_and_tables_with_gaps():
    many = np.repeat(X, 3, 1)
    model = regressor().fit(many, Y)
    with pytest.warns(
        ExtrapolationWarning, match=r"column 0 in 1 row.*column 4 .*; and 4 more col"
    ):
        model.predict(1e6 * np.ones((1, 9)))
    model = regressor().fit(MIXED, NAMED)
    model.predict(MIXED.assign(town="Ulm"))
    with pytest.warns(ExtrapolationWarning, match=r"3 of 240 row\(s\): column 'area' in 3 row"):
        model.predict(MIXED.assign(area=np.where(np.arange(240) < 3, -500.0, MIXED["area"])))


def test_going_on_with_other_rows_widens_what_is_known():
    model = regressor(warm_start=True).fit(X, Y)
    with pytest.warns(ExtrapolationWarning):
        model.predict(10 * X)
    model.partial_fit(10 * X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(10 * X)
        model.fit(X, Y)
        model.predict(10 * X)
    with pytest.warns(ExtrapolationWarning):
        model.set_params(warm_start=False).fit(X, Y).predict(10 * X)


@pytest.mark.filterwarnings("ignore::condens.errors.ExtrapolationWarning")
def test_a_file_keeps_the_range(tmp_path):
    model = regressor(2, n_members=2).fit(MIXED, NAMED)
    model.save(tmp_path / "m")
    loaded = MDNRegressor.load(tmp_path / "m")
    far = MIXED.assign(area=1e5 * MIXED["area"])
    assert_array_equal(loaded.predict_quantiles(far), model.predict_quantiles(far))
    with pytest.warns(ExtrapolationWarning, match="column 'area'"):
        loaded.predict(far)


def test_answers_beyond_double_precision_are_its_largest_number():
    model = regressor(target_transform="positive").fit(X, np.exp(Y))
    model.network_.target_scaling.location += 2000.0  # of the logarithms
    assert (model.predict(X[:3]) == LARGEST).all()
    for option in ("return_std", "return_cov"):
        mean, spread = model.predict(X[:3], **{option: True})
        assert (mean == LARGEST).all()
        assert np.isfinite(spread).all()
    assert model.predict_dist(X[:3]).mean.isinf().all()
    assert (model.predict_interval(X[:3]) == LARGEST).all()
    quantiles = model.predict_quantiles(X[:3], [0.0, 0.5, 1.0])
    assert (quantiles == [0.0, LARGEST, np.inf]).all()
