"""The one-line doors from a fitted model to its pictures."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from helpers.pictures import heat_map
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from scipy import stats

from condens import MDNRegressor
from condens.errors import ArgumentError, DimensionError, ShapeError
from condens.estimator.predictions import Predictions
from condens.training import Settings

RNG = np.random.default_rng(0)
N = 240
X = pd.DataFrame(
    {
        "size": RNG.gamma(4, 20, N),
        "kind $": RNG.choice(["flat", "house"], N),
        "age": RNG.normal(size=N),
    }
)
Y = pd.DataFrame(
    {"price in $": np.exp(0.02 * X["size"] + 0.2 * RNG.normal(size=N)), "rooms": RNG.poisson(3, N)}
)


@pytest.fixture(scope="module")
def model():
    made = MDNRegressor(
        n_members=1,
        target_transform={"price in $": "positive", "rooms": "count"},
        # Nothing is fitted on rows of its own, so that the ranges are those of all rows.
        settings=Settings(epochs=5, spread=1.0, tail=0.001),
        random_state=0,
    )
    return made.fit(X, Y)


def test_an_effect_is_the_density_of_the_changed_row(model):
    row = X[:1]
    axes = model.plot_effect(row, "size", "price in $", values=[20.0, 60.0, 100.0])
    x, y, values = heat_map(axes)
    assert x == pytest.approx([20, 60, 100])
    for size, column in zip(x, values.T, strict=True):
        density = model.predict_dist(row.assign(size=size), tail=False).marginal("price in $")[0]
        expected = density.log_prob(torch.from_numpy(y)[:, None]).exp()
        scale = y * np.log(10) if axes.get_yscale() == "log" else 1.0
        assert np.allclose(column, expected * scale, rtol=1e-5, atol=1e-12)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("size", r"price in \$")
    assert row.equals(X[:1])


def test_the_effect_in_many_rows_is_their_mean(model):
    rows = X[:30]
    axes = model.plot_effect(rows, "kind $", "rooms", y=Y[:30])
    lines = [one for one in axes.collections if isinstance(one, LineCollection)]
    for place, kind in enumerate(("flat", "house")):
        each = model.predict_dist(rows.assign(**{"kind $": kind})).marginal("rooms")
        for level, drawn in zip((0.05, 0.25, 0.5, 0.75, 0.95), lines, strict=True):
            height = drawn.get_segments()[place][0, 1]
            at, below = (each.cdf(torch.full((30, 1), v)).mean() for v in (height, height - 1))
            assert at >= level > below
    assert [label.get_text() for label in axes.get_xticklabels()] == ["flat", "house"]
    dots = next(one.get_offsets() for one in axes.collections if len(one.get_offsets()) == 30)
    assert dots[:, 1].tolist() == Y["rooms"][:30].tolist()


def test_an_effect_runs_through_the_range_of_the_fit_or_of_the_rows(model):
    x, *_ = heat_map(model.plot_effect(X[:1], "size", 0))
    assert x[[0, -1]] == pytest.approx([X["size"].min(), X["size"].max()])
    x, *_ = heat_map(model.plot_effect(X, 0, 0))
    assert x[[0, -1]] == pytest.approx(np.quantile(X["size"], [0.01, 0.99]))


def test_slices_are_conditional_densities_of_one_row(model):
    axes = model.plot_slices(X[:1], "price in $", given="rooms", values=[1, 5])
    density = model.predict_dist(X[:1], tail=False)[0]
    for line, rooms in zip(axes.get_lines(), (1, 5, None), strict=True):
        points = torch.from_numpy(line.get_xdata())
        one = density if rooms is None else density.condition({"rooms": rooms})
        expected = one.marginal("price in $").log_prob(points[:, None]).exp()
        scale = points * np.log(10) if axes.get_xscale() == "log" else 1.0
        assert np.allclose(line.get_ydata(), expected * scale, rtol=1e-4, atol=1e-12)
    assert axes.get_xlabel() == r"price in \$"


def test_arrays_and_polars_are_swept_too():
    array = RNG.normal(size=(60, 2))
    options = {"n_members": 1, "settings": Settings(epochs=2), "random_state": 0}
    model = MDNRegressor(**options).fit(array, array[:, 0])
    axes = model.plot_effect(array[:2], 1, y=array[:2, 0])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("column 1", "value")
    frame = pl.DataFrame({"a": array[:, 0], "b": ["x", "y"] * 30})
    model = MDNRegressor(**options).fit(frame, array[:, 1])
    assert model.plot_effect(frame, "b").get_xlabel() == "b"
    assert model.plot_effect(frame, "a").get_xlabel() == "a"


def test_a_density_is_drawn_with_its_row(model):
    axes = model.plot_density(X[:1], Y[:1])
    assert (axes.get_xlabel(), axes.get_ylabel()) == (r"price in \$", "rooms")
    assert axes.get_lines()[-1].get_xdata()[0] == pytest.approx(Y.iloc[0, 0])
    given = Figure().subplots()
    assert model.plot_density(X[:1], axes=given) is given
    with pytest.raises(ShapeError, match=r"batch shape \[2\].*overlay=True"):
        model.plot_density(X[:2])
    assert len(model.plot_density(X[:2], overlay=True).axes) == 3


def test_predictions_are_those_of_the_model(model):
    axes = model.plot_predictions(X[:50], Y[:50], "rooms", coverage=0.8)
    (bars,) = [one for one in axes.collections if isinstance(one, LineCollection)]
    expected = model.predict_interval(X[:50], 0.8)[:, 1]
    for segment, ends, rooms in zip(bars.get_segments(), expected, Y["rooms"], strict=False):
        assert segment.tolist() == [[rooms, ends[0]], [rooms, ends[1]]]
    assert axes.get_xlabel() == "observed rooms"


@pytest.mark.slow
def test_the_calibration_of_a_true_model_is_uniform(model):
    """Targets drawn from the model itself: their transforms are uniform, of counts too."""
    many = pd.concat([X] * 8)
    drawn = model.sample(many, 1, random_state=1)[0]
    drawn[5, 0] = np.nan
    rows = model.read_rows(many, drawn)
    found = Predictions(model.network_, rows.condition, flat=False)
    uniform, regions = found.calibration(rows.target)
    assert np.isnan(uniform).sum() == 1
    assert np.isnan(uniform[5, 0])
    for column in (*uniform.T, regions):
        assert stats.kstest(column[~np.isnan(column)], "uniform").pvalue > 0.01
    # Of continuous targets it is the distribution function.
    density = model.predict_dist(many[:5], tail=False).marginal("price in $")
    assert uniform[:5, 0] == pytest.approx(density.cdf(rows.target[:5, :1]).numpy(), abs=1e-9)
    figure = model.plot_calibration(many, drawn)
    assert [axes.get_title() for axes in figure.axes] == [r"price in \$", "rooms", ""]
    curve = figure.axes[2].get_lines()[2]
    asked, observed = curve.get_data()
    assert observed == pytest.approx([(regions <= level).mean() for level in asked])
    weighted = model.plot_calibration(many, drawn, np.ones(len(many)))
    heights = [[bar.get_height() for bar in one.axes[0].patches] for one in (figure, weighted)]
    assert heights[0] == pytest.approx(heights[1])


def test_the_diagnostics_are_those_of_the_history(model):
    figure = model.plot_diagnostics()
    line = figure.axes[1].get_lines()[0]
    assert line.get_ydata().tolist() == [e.used_components for e in model.history_.epochs]
    assert model.history_.plot_diagnostics(given := Figure()) is given


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.plot_effect(X, "colour", 0), DimensionError, "column is 'colour'.*size"),
        (lambda m: m.plot_slices(X[:1], "colour", 0), DimensionError, "target"),
        (lambda m: m.plot_slices(X[:1], 0, "colour"), DimensionError, "given"),
        (lambda m: m.plot_slices(X[:1], 0, 0), ArgumentError, "given is 0"),
        (lambda m: m.plot_slices(X, 0, 1), ShapeError, "one density"),
        (lambda m: m.plot_effect(X, 7, 0), DimensionError, "column is 7"),
        (lambda m: m.plot_effect(X, True, 0), DimensionError, "column is True"),
        (lambda m: m.plot_effect(X, "size"), DimensionError, "target is None"),
        (lambda m: m.plot_effect(X, "size", 0, values=[]), ArgumentError, "values has no entries"),
        (lambda m: m.plot_effect(X[["size"]], "size", 0), ShapeError, "age"),
        (lambda m: m.plot_predictions(X, Y), DimensionError, "dim is None"),
        (lambda m: m.plot_predictions(X, Y[:3], 0), ShapeError, "3"),
        (lambda m: m.plot_calibration(X, Y[["rooms"]]), ShapeError, "1 column"),
        (lambda _: MDNRegressor().plot_density(X), ValueError, "not fitted"),
        (lambda _: MDNRegressor().plot_diagnostics(), ValueError, "not fitted"),
    ],
)
def test_mistakes_are_named(model, call, error, message):
    with pytest.raises(error, match=message):
        call(model)
