"""`MDNRegressor` as a scikit-learn estimator: its contract, what goes in, and what is refused."""

import copy
import io
import pickle
import sys
import warnings

import joblib
import matplotlib as mpl
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import sklearn
import torch
from helpers.regressors import MIXED, NAMED, Bent, X, Y, deep, regressor
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError, UndefinedMetricWarning
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from condens import GaussianMixture, MDNRegressor
from condens.errors import (
    ArgumentError,
    CondensError,
    CondensWarning,
    DimensionError,
    ExtrapolationWarning,
    KindError,
    NotFiniteError,
    ShapeError,
    TargetWarning,
    TrainingError,
)
from condens.estimator.scorers import energy_scorer, log_likelihood_scorer
from condens.nn import Ensemble
from condens.training import Settings

NEEDS_Y = "score_samples takes y; the law is tested below for every method"
DECLARED = {
    "check_sample_weight_equivalence_on_dense_data": (
        "rows are drawn in shuffled batches: weights and repetitions agree in expectation only"
    ),
    "check_methods_sample_order_invariance": NEEDS_Y,
    "check_methods_subset_invariance": NEEDS_Y,
}


@parametrize_with_checks(
    [
        MDNRegressor(
            2,
            n_members=1,
            width=16,
            settings=Settings(epochs=6, batch_size=32, learning_rate=0.02),
        )
    ],
    expected_failed_checks=lambda _: DECLARED,
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_contract(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def fitted():
    return regressor(calibration_fraction=0.3).fit(X, Y)


@pytest.fixture(scope="module")
def plain():
    """Return a model fitted to the plain table. Tests that change one change a copy."""
    return regressor().fit(X, Y)


METHODS = {
    "predict": lambda model, x, _: model.predict(x),
    "std": lambda model, x, _: model.predict(x, return_std=True)[1],
    "cov": lambda model, x, _: model.predict(x, return_cov=True)[1],
    "quantiles": lambda model, x, _: model.predict_quantiles(x),
    "interval": lambda model, x, _: model.predict_interval(x),
    "calibrated": lambda model, x, _: model.predict_interval(x, calibrated=True),
    "region": lambda model, x, _: model.predict_region(x).log_threshold.numpy(),
    "score_samples": lambda model, x, y: model.score_samples(x, y),
    "log_prob": lambda model, x, y: model.predict_dist(x).log_prob(y).numpy(),
}


@pytest.mark.parametrize("ask", METHODS.values(), ids=METHODS)
def test_a_row_has_one_answer_in_whatever_order_and_batch(fitted, ask):
    together = ask(fitted, X, Y)
    order = np.random.default_rng(1).permutation(len(X))
    assert_allclose(ask(fitted, X[order], Y[order]), together[order], rtol=1e-9, atol=1e-12)
    some = [ask(fitted, X[i : i + 7], Y[i : i + 7]) for i in range(0, len(X), 7)]
    assert_allclose(np.concatenate(some), together, rtol=1e-9, atol=1e-12)


# Same predictions from what means the same.

SAME = {
    "float32": (lambda: X.astype("f4").astype("f8"), lambda: X.astype("f4")),
    "fortran": (lambda: X, lambda: np.asfortranarray(X)),
    "list": (lambda: X, lambda: X.tolist()),
    "tensor": (lambda: X, lambda: torch.from_numpy(X)),
    "strided": (lambda: X, lambda: np.repeat(X, 2, 0)[::2]),
    "big endian": (lambda: X, lambda: X.astype(">f8")),
    "objects": (lambda: X, lambda: X.astype(object)),
    "pandas": (lambda: X, lambda: pd.DataFrame(X)),
    "polars": (lambda: X, lambda: pl.DataFrame(X)),
}


@pytest.mark.parametrize("kind", SAME)
def test_equivalent_tables_give_the_same_bytes(plain, kind):
    x, other = (make() for make in SAME[kind])
    one = plain if x is X else regressor().fit(x, Y)
    two = regressor().fit(other, Y)
    if kind == "polars":  # whose columns always have names
        with pytest.warns(UserWarning, match="without feature names"):
            assert_array_equal(one.predict(other), two.predict(other))
        return
    assert_array_equal(one.predict(x), two.predict(other))
    assert_array_equal(one.predict(other), two.predict(x))


@pytest.mark.parametrize(
    "make",
    [
        lambda: pd.DataFrame(Y, columns=["a", "b"]),
        lambda: pl.DataFrame({"a": Y[:, 0], "b": Y[:, 1]}),
        lambda: Y.tolist(),
        lambda: np.asfortranarray(Y),
        lambda: torch.from_numpy(Y),
    ],
    ids=["pandas", "polars", "list", "fortran", "tensor"],
)
def test_equivalent_targets_give_the_same_bytes(plain, make):
    model = regressor().fit(X, make())
    assert_array_equal(plain.predict(X), model.predict(X))
    assert_array_equal(plain.score_samples(X, make()), model.score_samples(X, Y))


def test_one_target_as_vector_series_or_column():
    vector, column = regressor().fit(X, Y[:, 0]), regressor().fit(X, Y[:, :1])
    assert vector.predict(X).shape == (240,)
    assert column.predict(X).shape == (240, 1)
    assert_array_equal(vector.predict(X), column.predict(X)[:, 0])
    for series in (pd.Series(Y[:, 0], name="price"), pl.Series("price", Y[:, 0])):
        named = regressor().fit(X, series)
        assert named.target_names_ == ("price",)
        assert_array_equal(named.predict(X), vector.predict(X))
        assert_array_equal(named.score_samples(X, series), vector.score_samples(X, Y[:, :1]))
    assert regressor().fit(X, pd.Series(Y[:, 0])).target_names_ is None
    shapes = {
        "std": (240,),
        "quantiles": (240, 3),
        "interval": (240, 2),
        "cov": (240, 1, 1),
    }
    for name, shape in shapes.items():
        assert METHODS[name](vector, X, Y).shape == shape
    assert vector.sample(X, 5).shape == (5, 240)


def test_what_is_given_stays_as_it_was():
    x, y, weights = X.copy(), Y.copy(), np.ones(240)
    for part in (x, y, weights):
        part.flags.writeable = False
    state, global_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = regressor(calibration_fraction=0.1).fit(x, y, weights)
        model.predict(x)
        model.predict_region(x)
        model.sample(x, random_state=0)
    assert_array_equal(x, X)
    assert_array_equal(y, Y)
    assert torch.equal(torch.get_rng_state(), state)
    assert_array_equal(np.random.get_state()[1], global_state)  # noqa: NPY002


def test_mixed_tables_and_missing_values():
    polars = pl.DataFrame(
        MIXED.assign(town=MIXED["town"].astype(str)).to_dict("list")
    ).with_columns(pl.col("area").fill_nan(None))
    one, two = regressor().fit(MIXED, NAMED), regressor().fit(polars, NAMED)
    assert list(one.feature_names_in_) == ["area", "town", "new"] == list(two.feature_names_in_)
    assert one.n_features_in_ == 3
    assert_array_equal(one.predict(MIXED), two.predict(polars))
    assert_array_equal(one.predict(polars), two.predict(MIXED))
    assert np.isfinite(one.predict(MIXED.assign(town="Rom"))).all()


# Parameters, copies, searches.


def test_parameters_and_clones(plain):
    model = regressor(backbone=Bent, target_transform=["positive", None])
    copied = clone(model)
    assert copied.get_params().keys() == model.get_params().keys()
    assert copied.backbone is Bent
    assert copied.settings == model.settings
    assert not hasattr(clone(plain), "network_")
    assert regressor().set_params(n_components=5).n_components == 5
    with pytest.raises(ValueError, match="Invalid parameter 'components'"):
        model.set_params(components=3)


# A validation row in 30 that no component explains is 3 %.
@pytest.mark.filterwarnings("ignore::condens.errors.UnexplainedRowsWarning")
@pytest.mark.parametrize("options", [{}, {"n_members": 2}, {"backbone": Bent}, {"backbone": deep}])
def test_pickles(options):
    model = regressor(calibration_fraction=0.3, **options).fit(MIXED, NAMED)
    file = io.BytesIO()
    joblib.dump(model, file)
    file.seek(0)
    for again in (pickle.loads(pickle.dumps(model)), joblib.load(file)):
        assert_array_equal(again.predict(MIXED), model.predict(MIXED))
        assert_array_equal(again.score_samples(MIXED, NAMED), model.score_samples(MIXED, NAMED))
        one, two = (m.predict_region(MIXED) for m in (again, model))
        assert torch.equal(one.log_threshold, two.log_threshold)


def test_the_same_seed_gives_the_same_bytes():
    once, again, other = (regressor(random_state=s).fit(X, Y).predict(X) for s in (3, 3, 4))
    assert_array_equal(once, again)
    assert (once != other).all()
    state = np.random.RandomState(3)
    assert_array_equal(regressor(random_state=state).fit(X, Y).predict(X), once)
    assert (regressor(random_state=state).fit(X, Y).predict(X) != once).all()


def test_search_pipeline_and_cross_validation():
    pipeline = make_pipeline(StandardScaler(), regressor())
    grid = {"mdnregressor__n_components": np.array([1, 2]), "mdnregressor__covariance": ["tied"]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(X, Y)
    assert search.best_estimator_[-1].covariance == "tied"
    mean, deviation = search.best_estimator_.predict(X, return_std=True)
    assert mean.shape == deviation.shape == (240, 2)
    scores = cross_val_score(regressor(settings=Settings(epochs=60)), X, Y[:, 0], cv=2)
    # R² of the truth is 1 − 0.09/Var(y) = 0.96.
    assert scores.min() > 0.85
    assert cross_val_predict(regressor(), X, Y, cv=2).shape == (240, 2)
    # A log of y outside, its exponential back on the means.
    wrapped = TransformedTargetRegressor(regressor(), func=np.log, inverse_func=np.exp)
    assert (wrapped.fit(X, np.exp(Y)).predict(X) > 0).all()


def test_weights_are_routed():
    weights = np.where(np.arange(240) < 120, 1.0, 0.0)
    with sklearn.config_context(enable_metadata_routing=True):
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        asking = regressor().set_fit_request(sample_weight=True)
        asking.set_score_request(sample_weight=True).set_partial_fit_request(sample_weight=True)
        pipeline = make_pipeline(scaler, asking).fit(X, Y, sample_weight=weights)
        scaled = StandardScaler().fit(X).transform(X)
        direct = regressor().fit(scaled, Y, weights)
        assert_array_equal(pipeline.predict(X), direct.predict(scaled))
        expected = direct.score(scaled, Y, weights)
        assert pipeline.score(X, Y, sample_weight=weights) == pytest.approx(expected, abs=1e-12)


def test_weights_of_zero_leave_rows_out_to_the_bit():
    weights = np.where(np.arange(240) < 120, 1.0, 0.0)
    with_weights = regressor().fit(X, Y, weights)
    assert with_weights.history_.rows_left_out == 120
    far = np.where(weights[:, None] > 0, Y, 1e6)
    assert_array_equal(regressor().fit(X, far, weights).predict(X), with_weights.predict(X))


def test_weights_are_repetitions_in_expectation():
    rng = np.random.default_rng(5)
    x, side = rng.normal(size=(2000, 1)), rng.random(2000) < 0.5
    y = np.where(side, 4.0, 0.0) + 0.3 * rng.normal(size=2000)
    settings = Settings(epochs=15, batch_size=64, learning_rate=0.01, validation_fraction=0.0)
    weights = np.where(side, 3.0, 1.0)
    model = regressor(settings=settings).fit(x, y, weights)
    # Three of four by weight lie at 4; without weights the mean would be 2.
    assert_allclose(model.predict(x).mean(), np.average(y, weights=weights), atol=0.05)


# Going on.


def problem(rows, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    return x, np.stack([x.sum(1), np.sin(2 * x[:, 0])], 1) + 0.2 * rng.normal(size=(rows, 2))


def test_partial_fit_and_warm_start_go_on():
    x, y = problem(1500, 0)
    fresh = problem(500, 1)
    model, scores = regressor(width=32), []
    for _ in range(12):
        model.partial_fit(x, y)
        scores.append(model.score_samples(*fresh).mean())
        assert model.history_.validation_rows == 0
    assert scores[-1] > scores[5] > scores[0] + 0.1
    scale = model.network_.target_scaling.scale.clone()
    encoder = model.encoder_
    model.set_params(warm_start=True, settings=Settings(epochs=15)).fit(x + 0.1, 1.1 * y)
    assert torch.equal(model.network_.target_scaling.scale, scale)
    assert model.encoder_ is encoder
    model.fit(x, y)
    assert model.score_samples(*fresh).mean() > scores[-1]
    anew = clone(model).set_params(warm_start=False, settings=Settings(epochs=1)).fit(x, y)
    assert anew.score_samples(*fresh).mean() < model.score_samples(*fresh).mean()


def test_without_warm_start_a_fit_begins_anew(plain):
    model = copy.deepcopy(plain)
    first = model.predict(X)
    assert_array_equal(model.fit(X, Y).predict(X), first)
    model.fit(X[:, :2], Y[:, 0])
    assert model.n_features_in_ == 2
    assert model.predict(X[:, :2]).shape == (240,)


def test_rows_kept_for_calibration_are_never_trained_on():
    settings = Settings(epochs=2, validation_fraction=0.0)
    model = regressor(calibration_fraction=0.25, random_state=None, settings=settings)
    model.set_params(warm_start=True).fit(X, Y)
    first = model.calibration_.ranks.shape
    seed = model.seed_
    model.fit(X, Y)
    assert model.seed_ == seed  # the same rows are held out
    assert model.calibration_.ranks.shape == first == (60,)
    assert model.history_.rows == 180


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_components": 3}, "head.n_components"),
        ({"covariance": "tied"}, "head"),
        ({"width": 9}, "backbone.width|head.features"),
        ({"depth": 3}, "backbone.depth"),
        ({"n_members": 2}, ""),
        ({"backbone": Bent}, "backbone"),
        ({"target_transform": ["real", (-99, 99)]}, "transforms"),
    ],
)
def test_going_on_with_other_parameters_is_refused(plain, change, message):
    model = copy.deepcopy(plain).set_params(warm_start=True)
    before = model.predict(X)
    model.set_params(**change)
    for go_on in (model.fit, model.partial_fit):
        with pytest.raises(
            ArgumentError, match=rf"({message}).* changed since the fit.*Set them back"
        ):
            go_on(X, Y)
    assert_array_equal(model.predict(X), before)
    model.set_params(warm_start=False).fit(X, Y)


def test_going_on_with_an_automatic_number_of_components():
    model = regressor("auto", warm_start=True, target_transform="real").fit(X, Y)
    n_components = model.predict_dist(X).n_components
    assert model.fit(X, Y).predict_dist(X).n_components == n_components


def test_a_fit_that_fails_leaves_the_model_as_it_was(fitted):
    model = clone(fitted).fit(X, Y)
    before, attributes = model.predict(X), set(vars(model))
    with pytest.raises(ShapeError):
        model.fit(X[:, :2], Y[:5])
    with pytest.raises(CondensError):
        model.set_params(covariance="none").fit(X[:, :2], Y)
    assert_array_equal(model.predict(X), before)
    assert set(vars(model)) == attributes
    assert model.n_features_in_ == 3
    empty = regressor()
    with pytest.raises(ShapeError):
        empty.fit(X, Y[:3])
    assert not hasattr(empty, "n_features_in_")


# Members, components, backbones.


def test_members_are_averaged_and_differ():
    model = regressor(n_members=3).fit(X, Y)
    assert isinstance(model.network_, Ensemble)
    assert model.predict_dist(X, tail=False).n_components == 6
    model.network_.drop_adjustment()
    with torch.no_grad():
        parts = [member(torch.from_numpy(X)) for member in model.network_.members]
    each = torch.stack([part.log_prob(torch.from_numpy(Y)) for part in parts])
    assert (each[0] != each[1]).all()
    expected = torch.logsumexp(each, 0) - np.log(3)
    assert_allclose(model.score_samples(X, Y), expected.numpy(), rtol=1e-9)


@pytest.mark.slow
def test_components_are_found():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(1500, 1))
    y = np.where(rng.random(1500) < 0.5, -3.0, 3.0) + x[:, 0] + 0.3 * rng.normal(size=1500)
    settings = Settings(epochs=12, batch_size=64, learning_rate=0.01)
    model = regressor("auto", width=16, settings=settings).fit(x, y)
    assert 2 <= model.predict_dist(x, tail=False).n_components <= 8
    several = regressor("auto", width=8, n_members=2, settings=Settings(epochs=4)).fit(x, y)
    assert several.predict_dist(x, tail=False).n_components % 2 == 0


def test_backbones():
    model = regressor(backbone=Bent, n_members=2).fit(MIXED, NAMED)
    assert isinstance(model.network_.members[0].backbone, Bent)
    # Four columns come out of three: one says where the area was missing.
    assert model.network_.members[0].backbone.linear.in_features == 4
    assert np.isfinite(model.score_samples(MIXED, NAMED)).all()


# Names.


def test_names_work_wherever_a_target_is_asked_for():
    model = regressor(target_transform=None).fit(MIXED, NAMED)
    density = model.predict_dist(MIXED)
    assert isinstance(density, GaussianMixture)
    assert density.names == model.target_names_ == ("price", "größe")
    rest = density.condition({"price": 2.0}).marginal(["größe"])
    assert rest.names == ("größe",)
    pair = torch.tensor([2.0, 1.5]).double()
    expected = density.log_prob(pair) - density.marginal(["price"]).log_prob(pair[:1])
    assert_allclose(rest.log_prob(pair[1:]).numpy(), expected.numpy(), rtol=1e-8, atol=1e-8)
    assert_array_equal(density.quantile(0.5, "größe").numpy(), density.quantile(0.5, 1).numpy())


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
def test_targets_are_taken_by_their_names(frame):
    y = frame({"price": Y[:, 0], "größe": Y[:, 1]})
    swapped = y[["größe", "price"]]
    model = regressor(settings=Settings(epochs=5)).fit(X, y)
    assert model.score(X, swapped) == model.score(X, y)
    assert model.score(X, y) == model.score(X, Y)
    assert_array_equal(model.score_samples(X, swapped), model.score_samples(X, y))
    for scorer in (log_likelihood_scorer, energy_scorer):
        assert scorer(model, X, swapped) == scorer(model, X, y)
    one, other = (copy.deepcopy(model).calibrate(X, part) for part in (y, swapped))
    assert torch.equal(one.calibration_.ranks, other.calibration_.ranks)
    assert torch.equal(one.calibration_.levels[0], other.calibration_.levels[0])
    one, other = (copy.deepcopy(model).partial_fit(X, part) for part in (y, swapped))
    assert_array_equal(one.predict(X), other.predict(X))
    one, other = (
        copy.deepcopy(model).set_params(warm_start=True).fit(X, part) for part in (y, swapped)
    )
    assert_array_equal(one.predict(X), other.predict(X))
    region = one.calibrate(X, y).predict_region(X)
    assert torch.equal(region.contains(swapped), region.contains(y))


# Scores.


def test_score_is_that_of_scikit_learn():
    weights = np.arange(240) % 3
    for y in (Y, Y[:, 0], Y[:, :1]):
        model = regressor().fit(X, y)
        expected = r2_score(y, model.predict(X))
        assert model.score(X, y) == pytest.approx(expected, rel=1e-14)
        expected = r2_score(y, model.predict(X), sample_weight=weights)
        assert model.score(X, y, weights) == pytest.approx(expected, abs=1e-12)
        # Weights count by their ratios, be their sum or their products beyond all numbers.
        for unit in (1e307, 1e-307):
            assert model.score(X, y, unit * weights) == pytest.approx(expected, abs=1e-12)
    with pytest.warns(UndefinedMetricWarning):
        assert np.isnan(model.score(X[:1], y[:1]))


def test_what_was_not_observed_is_left_out_of_the_score():
    model = regressor(settings=Settings(epochs=30)).fit(X, Y)
    gaps = Y.copy()
    gaps[:80, 0], gaps[60:160, 1], gaps[200:] = np.nan, np.nan, np.nan
    mean, weights = model.predict(X), 1.0 + np.arange(240) % 3

    def expected(y, weights):
        seen = [~np.isnan(column) for column in y.T]
        return np.mean(
            [r2_score(y[s, d], mean[s, d], sample_weight=weights[s]) for d, s in enumerate(seen)]
        )

    assert model.score(X, gaps) == pytest.approx(expected(gaps, np.ones(240)), abs=1e-12)
    assert model.score(X, gaps, weights) == pytest.approx(expected(gaps, weights), abs=1e-12)
    # A target that nobody saw twice has no R².
    gaps[1:, 0] = np.nan
    seen = ~np.isnan(gaps[:, 1])
    assert model.score(X, gaps) == pytest.approx(r2_score(Y[seen, 1], mean[seen, 1]), abs=1e-12)
    with pytest.raises(ArgumentError, match="y has no row that counts"):
        model.score(X, np.full_like(Y, np.nan))


def test_cross_validation_with_missing_targets():
    gaps = np.where(np.random.default_rng(3).random(Y.shape) < 0.2, np.nan, Y)
    model = regressor(settings=Settings(epochs=60, spread=1.0, tail=0.001))
    scores = cross_val_score(model, X, gaps, cv=2)
    # R² of the truth is 1 − 0.09/Var(y), 0.96 and 0.93.
    assert scores.min() > 0.8
    model.set_params(settings=Settings(epochs=5))
    for scorer in (log_likelihood_scorer, energy_scorer):
        assert np.isfinite(cross_val_score(model, X, gaps, cv=2, scoring=scorer)).all()


# Extremes.


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_any_scale(plain, scale):
    scaled = regressor().fit(scale * X, scale * Y)
    assert_allclose(scaled.predict(scale * X) / scale, plain.predict(X), rtol=1e-4, atol=1e-5)
    density = scaled.score_samples(scale * X, scale * Y) + 2 * np.log(scale)
    assert_allclose(density, plain.score_samples(X, Y), rtol=1e-3, atol=1e-3)
    for method in ("std", "cov", "quantiles", "interval"):
        assert np.isfinite(METHODS[method](scaled, scale * X, Y)).all()


def test_columns_of_unlike_scales_together(plain):
    scales = np.array([1e-30, 1.0, 1e30])
    model = regressor().fit(X * scales, Y * scales[[0, 2]])
    assert_allclose(
        model.predict(X * scales) / scales[[0, 2]], plain.predict(X), rtol=1e-4, atol=1e-5
    )


def test_constant_columns():
    x = np.column_stack([X, np.full(240, 7.0)])
    model = regressor().fit(x, Y)
    assert_allclose(model.predict(x), regressor().fit(x, Y).predict(x))
    assert np.isfinite(
        regressor().fit(np.ones((240, 1)), Y).score_samples(np.ones((240, 1)), Y)
    ).all()
    settings = Settings(epochs=40)
    constant = regressor(settings=settings).fit(X, np.column_stack([Y[:, 0], np.full(240, 1e9)]))
    assert_allclose(constant.predict(X)[:, 1], 1e9, rtol=1e-9)
    assert np.isfinite(constant.predict(X, return_std=True)[1]).all()


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"n_components": "auto"}, {"calibration_fraction": 0.5}])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_few_rows(rows, options):
    model = regressor(**options).fit(X[:rows], Y[:rows])
    assert np.isfinite(model.predict(X)).all()
    assert np.isfinite(model.score_samples(X, Y)).all()
    if "calibration_fraction" in options:
        with pytest.raises(ArgumentError, match=r"coverage is 0.9, with . rows.*at least 9"):
            model.predict_region(X)


# Missing targets.


def test_missing_targets_count_by_their_exact_marginal(plain):
    gaps = Y.copy()
    gaps[:80, 0], gaps[80:160, 1], gaps[160:170] = np.nan, np.nan, np.nan
    density = plain.predict_dist(X)
    expected = density.log_prob(Y)
    expected[:80] = density.marginal(1).log_prob(Y[:, 1:])[:80]
    expected[80:160] = density.marginal(0).log_prob(Y[:, :1])[80:160]
    expected[160:170] = 0.0
    assert_allclose(plain.score_samples(X, gaps), expected.numpy(), rtol=1e-9, atol=1e-12)
    trained = regressor(1).fit(X, gaps)
    assert trained.history_.rows_left_out == 10
    assert np.isfinite(trained.predict(X)).all()


# Errors: what was passed, what was expected, what to do.

SERIES = pd.Series(["a"] * 240)
REFUSED = {
    "no rows": (X[:0], Y[:0], ShapeError, r"X has 0 sample\(s\).*Pass some data"),
    "no columns": (X[:, :0], Y, ShapeError, r"X has 0 feature\(s\).*Pass some data"),
    "no targets": (X, Y[:, :0], ShapeError, r"y has 0 feature\(s\).*Pass some data"),
    "vector": (X[:, 0], Y, ShapeError, r"X has shape \[240\], but \[rows, columns\].*Reshape"),
    "cube": (X, Y[..., None], ShapeError, r"y has shape \[240, 2, 1\].*Pass one column"),
    "lengths": (X, Y[:5], ShapeError, r"y has 5 rows, but X has 240\. Pass one row for each"),
    "ragged": ([[1.0], [1.0, 2.0]], [1.0, 2.0], ShapeError, "X has rows of different lengths"),
    "no y": (X, None, ArgumentError, r"requires y to be passed.*Pass the targets"),
    "text": (SERIES.to_numpy()[:, None], Y, KindError, r"X holds str.*real numbers.*Encode"),
    "text targets": (X, SERIES, ArgumentError, r"y holds categories \(text\).*Encode it"),
    "complex": (X + 1j, Y, KindError, r"X holds complex128.*two columns"),
    "complex targets": (X, Y + 1j, KindError, r"y holds complex128.*two columns"),
    "infinite": (np.full((240, 1), np.inf), Y, NotFiniteError, "X is inf in row 0.*Remove"),
    "infinite targets": (X, np.full(240, np.inf), NotFiniteError, "y is inf in row 0.*missing"),
    "nothing observed": (X, np.full(240, np.nan), ArgumentError, "y has no value at all.*Drop"),
    "sparse": (scipy.sparse.csr_array(X), Y, KindError, r"X holds csr_array.*dense.*toarray\(\)"),
    "sparse targets": (X, scipy.sparse.csr_array(Y), KindError, r"y holds csr_array.*toarray"),
    "dates": (pd.DataFrame({"t": pd.date_range("2020", periods=240)}), Y, KindError, "X holds"),
    "lazy": (pl.DataFrame(X).lazy(), Y, ArgumentError, "X is a polars LazyFrame.*collect"),
    "same names": (X, pd.DataFrame(Y, columns=["a", "a"]), ArgumentError, "y has 2 columns 'a'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_tables_that_are_refused(case):
    x, y, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        regressor().fit(x, y)
    with pytest.raises(error, match=message):
        regressor().partial_fit(x, y)


WEIGHTS = {
    "length": (np.ones(3), ShapeError, r"sample_weight has shape \[3\], but there are 240 rows"),
    "shape": (np.ones((240, 1)), ShapeError, r"sample_weight has shape \[240, 1\]"),
    "negative": (-np.ones(240), NotFiniteError, r"sample_weight is -1 in row 0.*Use zero"),
    "nan": (np.full(240, np.nan), NotFiniteError, r"sample_weight is nan in row 0"),
    "text": (["a"] * 240, ArgumentError, "sample_weight holds"),
    "zero": (np.zeros(240), ArgumentError, "y has no row that counts.*weight above zero"),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_that_are_refused(case):
    weights, error, message = WEIGHTS[case]
    with pytest.raises(error, match=message):
        regressor().fit(X, Y, sample_weight=weights)


PARAMETERS = [
    *((name, value) for name in ("warm_start", "verbose") for value in ("yes", None, 0.5, [])),
    *(("random_state", value) for value in ("seed", -1, 2**32, 0.5, np.random.default_rng(0))),
    *(("n_components", value) for value in (0, -1, 2.5, "many", True, np.ones(2))),
    *(("covariance", value) for value in ("spherical", None, ["full"])),
    *((name, value) for name in ("width", "depth", "n_members") for value in (0, 1.5, "a", True)),
    *(("dropout", value) for value in (1.0, -0.1, np.nan, "a")),
    *(("calibration_fraction", value) for value in (1.0, -0.1, np.nan, "a")),
    ("settings", {"epochs": 3}),
    ("backbone", 3),
    ("backbone", Bent(3)),
    ("backbone", int),
    ("backbone", lambda columns: torch.nn.Linear(columns, 4)),
    *(("target_transform", value) for value in ("log", 3, ["positive"], {"a": "real"}, (0, 1, 2))),
]


@pytest.mark.parametrize(
    ("name", "value"), PARAMETERS, ids=lambda value: repr(value).partition(" at 0x")[0][:30]
)
def test_parameters_that_are_refused(name, value):
    with pytest.raises(ArgumentError, match=rf"(?s)^{name} .*, but .*\. \w") as raised:
        regressor(**{name: value}).fit(X, Y)
    assert "Change it" not in str(raised.value)


def test_settings_in_a_dictionary_are_told_how():
    with pytest.raises(
        ArgumentError, match=r"^settings is a dict.*Settings\(epochs=5, clip=1\.0\)"
    ):
        regressor(settings={"epochs": 5, "clip": 1.0}).fit(X, Y)


class Broken(Bent):
    def forward(self, condition):
        return super().forward(condition) * torch.nan


def test_training_that_fails_tells_of_the_model_and_leaves_it():
    model = regressor(backbone=Bent).fit(X, Y)
    before = model.predict(X)
    with pytest.raises(TrainingError, match=r"The model is as it was before") as raised:
        model.set_params(backbone=Broken, settings=Settings(epochs=60)).fit(X, Y)
    assert "in the network" not in str(raised.value)
    assert str(raised.value).startswith("The loss or its gradient was not finite")
    assert_array_equal(model.predict(X), before)
    with pytest.raises(TrainingError, match=r"The model is as it was before"):
        regressor(backbone=Broken, settings=Settings(epochs=60)).fit(X, Y)


@pytest.mark.parametrize("again", [False, True])
def test_where_warnings_are_errors_the_fit_is_whole_all_the_same(again):
    rows = X[:8], Y[:8]  # too few for nine components
    quiet, strict = (regressor(9, calibration_fraction=0.25) for _ in range(2))
    with pytest.warns(CondensWarning) as told:
        quiet.fit(*rows)
    assert told[0].filename == __file__
    if again:
        strict.fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CondensWarning):
            strict.fit(*rows)
    assert vars(strict).keys() == vars(quiet).keys()
    assert strict.history_.warnings == quiet.history_.warnings
    assert_array_equal(strict.predict(X[:8]), quiet.predict(X[:8]))
    assert torch.equal(strict.calibration_.ranks, quiet.calibration_.ranks)


def test_code_without_a_module_may_fit_and_predict():
    names = {"model": regressor(), "X": X, "Y": Y}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec("model.fit(X, Y)", names)
    del names["__builtins__"]
    assert names.keys() == {"model", "X", "Y"}
    with pytest.warns(ExtrapolationWarning) as told:
        exec("model.predict(100 * X)", names)
    assert told[0].filename == "<string>"


@pytest.mark.filterwarnings("ignore:.*explained by no component")
def test_code_without_a_module_is_advised_too():
    with pytest.warns(TargetWarning):
        exec("model.fit(X, y)", {"model": regressor(), "X": X, "y": np.exp(3 * Y)})


@pytest.mark.filterwarnings("ignore:.*explained by no component")
def test_positive_targets_over_orders_of_magnitude_are_advised():
    wide = np.exp(3 * Y)
    with pytest.warns(
        TargetWarning, match=r"column\(s\) 0, 1 and .*target_transform='positive'"
    ) as message:
        regressor().fit(X, wide)
    assert sum(one.category is TargetWarning for one in message) == 1
    named = pd.DataFrame({"price": wide[:, 0], "lat": Y[:, 1]})
    with pytest.warns(TargetWarning, match=r"column\(s\) 'price' and"):
        model = regressor().fit(X, named)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TargetWarning)
        model.partial_fit(X, named)
        for transform in ("positive", "real", ["real", "positive"], {0: "positive", 1: "real"}):
            regressor(target_transform=transform).fit(X, wide)
        regressor().fit(X, np.exp(Y))
        regressor().fit(X, Y)
        regressor(target_transform={"price": "positive"}).fit(X, named)


def test_transforms_that_do_not_fit_are_refused():
    with pytest.raises(ArgumentError, match=r"y, column 0, has -.* above 0 were expected"):
        regressor(target_transform="positive").fit(X, Y)
    with pytest.raises(ArgumentError, match=r"y, column 'price', has .* between 0 and 1"):
        regressor(target_transform={"price": "unit"}).fit(X, NAMED)
    model = regressor(target_transform="positive").fit(X, np.exp(Y))
    with pytest.raises(ArgumentError, match=r"y, column 0, has -.* above 0 were expected"):
        model.partial_fit(X, Y)
    with pytest.raises(ArgumentError, match=r"y, column 0, has -.* above 0 were expected"):
        model.calibrate(X, Y)
    with pytest.raises(ArgumentError, match=r"target_transform goes with covariance='low_rank'"):
        regressor(covariance="low_rank", target_transform="positive").fit(X, NAMED)


def test_other_columns_than_those_fitted_are_refused(plain):
    model = regressor().fit(MIXED, NAMED)
    with pytest.raises(ShapeError, match=r"same order.*\(area, town, new\), or fit again"):
        model.predict(MIXED[["town", "area", "new"]])
    with pytest.raises(ShapeError, match=r"(?s)unseen at fit time:\n- flats.*area, town, new"):
        model.predict(MIXED.rename(columns={"area": "flats"}))
    with pytest.raises(ShapeError, match=r"(?s)now missing:\n.*- town.*area, town, new"):
        model.predict(MIXED[["area"]])
    with pytest.raises(ArgumentError, match=r"X holds categories \(text\) in column 'area'"):
        model.predict(MIXED.assign(area="large"))
    with pytest.raises(NotFiniteError, match=r"X lacks a number.*fit on a table in which"):
        model.predict(MIXED.assign(new=np.nan))
    with pytest.raises(ArgumentError, match=r"X is a polars LazyFrame.*collect"):
        model.predict(pl.DataFrame(X, schema=["area", "town", "new"]).lazy())
    with pytest.raises(ShapeError, match=r"X has 2 features.*expecting 3.*Pass the 3 column"):
        plain.predict(X[:, :2])
    other = NAMED.rename(columns={"größe": "size"})
    for method in (model.score, model.score_samples, model.calibrate, model.partial_fit):
        with pytest.raises(DimensionError, match=r"y has columns price, size.*\(price, größe\)"):
            method(MIXED, other)
    for method in (model.score, model.score_samples, model.calibrate, model.partial_fit):
        with pytest.raises(ShapeError, match=r"y has 1 column.*2 target.*price, größe.*fit again"):
            method(MIXED, NAMED["price"])


def test_nothing_is_answered_before_a_fit(tmp_path):
    model = regressor()
    for ask in (
        lambda: model.predict(X),
        lambda: model.predict_dist(X),
        lambda: model.predict_quantiles(X),
        lambda: model.predict_interval(X),
        lambda: model.predict_interval(X, calibrated=True),
        lambda: model.predict_region(X),
        lambda: model.sample(X),
        lambda: model.score(X, Y),
        lambda: model.score_samples(X, Y),
        lambda: model.calibrate(X, Y),
        lambda: model.plot_history(),
        lambda: model.save(tmp_path / "model"),
    ):
        with pytest.raises(NotFittedError, match=r"not fitted yet\. Call 'fit'"):
            ask()


def test_regions_need_a_calibration(fitted, plain):
    plain = copy.deepcopy(plain)
    for ask in (plain.predict_region, lambda x: plain.predict_interval(x, calibrated=True)):
        with pytest.raises(ArgumentError, match=r"the model is not calibrated.*calibrate\(X, y\)"):
            ask(X)
    assert bool(plain.calibrate(X, Y).predict_region(X).log_threshold.isfinite().all())
    plain.fit(X, Y)
    assert not hasattr(plain, "calibration_")  # it was that of another network
    with pytest.raises(ArgumentError, match=r"coverage is 0.999, with 72 rows.*at least 999"):
        fitted.predict_region(X, 0.999)
    with pytest.raises(ArgumentError, match=r"coverage is 0.999, with 72 rows.*at least 999"):
        fitted.predict_interval(X, 0.999, calibrated=True)
    with pytest.raises(NotFiniteError, match="points without gaps"):
        fitted.predict_region(X).contains(np.full((240, 2), np.nan))


def test_questions_that_are_refused(fitted):
    for quantiles in ([1.5], [-0.1], "half", None, [[0.1]], [], [np.nan]):
        with pytest.raises(ArgumentError, match=r"^quantiles is .*from 0 to 1.*pass 0.5"):
            fitted.predict_quantiles(X, quantiles)
    for coverage in (0, 1, 1.5, "a", None, np.nan):
        for ask in (fitted.predict_interval, fitted.predict_region):
            with pytest.raises(ArgumentError, match=r"^coverage is .*For 90 %, pass 0.9"):
                ask(X, coverage)
    for count in (0, -1, 2.5, "a", None):
        with pytest.raises(
            ArgumentError, match=r"^n_samples is .*(whole number|at least 1) was expected"
        ):
            fitted.sample(X, count)
    with pytest.raises(ArgumentError, match="return_std and return_cov are both true"):
        fitted.predict(X, return_std=True, return_cov=True)


def test_history(fitted, plain):
    assert [epoch.epoch for epoch in fitted.history_.epochs] == [0, 1, 2]
    # Where a third calibrates, too few rows are left to hold out others for spread and tail.
    assert fitted.history_.rows + fitted.history_.validation_rows == 168
    assert fitted.history_.adjustment.rows == 0
    whole = plain.history_
    assert whole.rows + whole.validation_rows == 228
    assert whole.adjustment.rows == 12


def test_the_history_is_drawn_where_pyplot_sees_it(fitted, tmp_path):
    mpl.use("agg")
    axes = fitted.plot_history()
    assert axes.get_xlabel() == "epoch"
    assert axes.figure is plt.gcf()
    plt.savefig(tmp_path / "history.png")
    colours = np.unique(plt.imread(tmp_path / "history.png").reshape(-1, 4), axis=0)
    assert len(colours) > 100
    plt.close(axes.figure)
    axes = Figure().subplots()
    assert fitted.plot_history(axes) is axes
    assert not plt.get_fignums()


def test_plots_need_matplotlib(fitted, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"needs matplotlib.*pip install 'condens\[plot\]'"):
        fitted.plot_history()


def test_it_is_printed_shortly():
    model = MDNRegressor(settings=Settings(epochs=5), random_state=0)
    assert repr(model) == "MDNRegressor(random_state=0, settings=Settings(epochs=5))"
    assert repr(Settings()) == "Settings()"
    assert eval(repr(Settings(clip=1, seed=3))) == Settings(clip=1, seed=3)
    long = regressor(settings=Settings(epochs=30)).fit(X, Y)
    assert repr(long.history_).count("\n") == 0
    assert len(repr(long.history_)) < 200
    assert repr(long.history_).startswith("History(epochs=30, best_epoch=")
