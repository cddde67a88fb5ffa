"""What a fit stores about its columns: the right numbers, bounded, and no rows."""

import json

import numpy as np
import pandas as pd
import pytest
from helpers.regressors import MIXED, NAMED, X, Y, regressor
from sklearn.base import clone

from condens import MDNRegressor
from condens.estimator.summary import MAX_BINS, NumberSummary
from condens.training import Settings

# Nothing is held out for adjustment, so that all rows are summarised.
ALL = Settings(epochs=1, spread=1.0, tail=0.001)


def numbers(values):
    return NumberSummary.of(np.asarray(values, dtype=np.float64))


def test_ranges_quantiles_and_histograms_are_those_of_the_rows():
    model = regressor(settings=ALL).fit(X, Y)
    found = model.summary_
    assert found.n_rows == 240
    for columns, values in ((found.conditions, X), (found.targets, Y)):
        for one, column in zip(columns, values.T, strict=True):
            width = one.high - one.low
            expected = np.quantile(column, [0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99])
            assert np.abs([one.low, *one.quantiles, one.high] - expected).max() < 0.011 * width
            edges = np.linspace(one.low, one.high, len(one.counts) + 1)
            assert list(one.counts) == np.histogram(column, edges)[0].tolist()
            assert len(one.counts) <= MAX_BINS


def test_categories_gaps_and_truth_values():
    area, town, new = regressor(settings=ALL).fit(MIXED, NAMED).summary_.conditions
    assert area.missing == MIXED["area"].isna().sum() > 0
    assert dict(zip(town.values, town.counts, strict=True)) == dict(MIXED["town"].value_counts())
    assert list(town.counts) == sorted(town.counts, reverse=True)
    assert new.counts == ((~MIXED["new"]).sum(), MIXED["new"].sum())
    assert (new.low, new.high, new.whole) == (0, 1, True)


def test_at_most_fifty_categories_are_counted():
    words = [f"c{i}" for i in range(120) for _ in range(2)]
    frame = pd.DataFrame({"word": words})
    (found,) = regressor(settings=ALL).fit(frame, Y).summary_.conditions
    assert (len(found.values), sum(found.counts), found.others) == (50, 100, 140)


def test_no_value_of_a_row_is_in_it():
    column = np.random.default_rng(1).normal(size=5000)
    found = numbers(column)
    stored = [found.low, found.high, *found.quantiles]
    assert not np.isin(stored, column).any()
    assert column.min() < found.low < found.high < column.max()
    assert (column < found.low).sum() <= 5


@pytest.mark.parametrize(
    "values",
    [
        [0.0],
        [np.nan],
        [3.0] * 5,
        [-1.7e308, 1.7e308],
        [5e-324, 0.0],
        [1e9, 1e9 + 1e-6],
        [1e15, 1e15 + 2],
        [-(10.0**200), 1.0],
        [0.1, 0.2, 0.3],
    ],
)
def test_any_numbers(values):
    found = numbers(values)
    ordered = [found.low, *found.quantiles, found.high]
    assert np.isfinite(ordered).all()
    assert ordered == sorted(ordered)
    assert NumberSummary.from_dict(vars(found)) == found


def test_it_is_left_out_if_asked(tmp_path):
    model = regressor(store_summary=False).fit(X, Y)
    assert not hasattr(model, "summary_")
    model.save(tmp_path / "model")
    assert not hasattr(MDNRegressor.load(tmp_path / "model"), "summary_")
    assert clone(model).store_summary is False
    again = model.set_params(store_summary=True).fit(X, Y)
    assert again.summary_.n_rows > 200
    assert not hasattr(model.set_params(store_summary=False).fit(X, Y), "summary_")


def test_a_file_holds_it_and_it_stays_small(tmp_path):
    wide = np.random.default_rng(0).normal(size=(60, 300))
    model = regressor().fit(wide, wide[:, :2])
    assert len(model.summary_.conditions) == 256
    assert len(json.dumps(model.summary_.to_dict())) < 150_000
    model.save(tmp_path / "model")
    assert MDNRegressor.load(tmp_path / "model").summary_ == model.summary_
    assert model.adjust(wide, wide[:, :2]).summary_.n_rows == 60


def test_going_on_keeps_that_of_the_most_rows():
    model = regressor(settings=ALL, warm_start=True).fit(X, Y)
    before = model.summary_
    assert model.fit(X[:50], Y[:50]).summary_ == before
    assert model.fit(X, Y).summary_.n_rows == 240
