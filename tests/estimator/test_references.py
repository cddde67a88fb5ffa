"""What a fitted model is judged by: baselines and novelty, learned by `fit` and kept in files."""

import signal

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import model_files as files
from helpers.regressors import MIXED, NAMED, X, Y, regressor
from numpy.testing import assert_allclose, assert_array_equal

from condens import MDNRegressor
from condens.errors import ModelFileError
from condens.evaluation import Baselines, Novelty
from condens.training import Settings


def log_probs(model, x, y):
    """Return log densities of both baselines."""
    rows = model.read_rows(x, y)
    densities = model.baselines_.linear(rows.condition), model.baselines_.marginal(len(rows))
    return torch.stack([density.observed_log_prob(rows.target) for density in densities]).numpy()


@pytest.fixture(scope="module")
def mixed():
    gaps = NAMED.mask(np.random.default_rng(3).random(NAMED.shape) < 0.1)
    # Nothing is fitted on rows of its own, so that all rows are the model's.
    settings = Settings(epochs=3, spread=1.0, tail=0.001)
    return regressor(target_transform="positive", settings=settings).fit(MIXED, gaps), gaps


def test_fit_learns_them_from_its_rows(mixed):
    model, gaps = mixed
    rows = model.read_rows(MIXED, gaps).observed()
    expected = Baselines.fit(
        rows.condition, rows.target, None, model.transforms_, model.encoder_.categories, ["a", "b"]
    )
    assert model.baselines_.n_rows == len(rows)
    found = log_probs(model, MIXED, NAMED)[0]
    everything = model.read_rows(MIXED, NAMED)
    density = expected.linear(everything.condition)
    assert_allclose(found, density.log_prob(everything.target), rtol=1e-12)
    assert model.baselines_.linear(everything.condition).names == ("price", "größe")
    novelty = Novelty.fit(rows.condition, None, model.encoder_.categories, model.encoder_.gaps)
    assert_array_equal(model.novelty(MIXED), novelty(everything.condition).numpy())


def test_rows_held_out_for_calibration_and_adjustment_are_not_among_them():
    model = regressor(calibration_fraction=0.15).fit(X, Y)
    # Of 240 rows 36 calibrate, and of the others a twentieth adjusts.
    assert model.baselines_.n_rows == model.novelty_.n_rows == 194


def test_weights_count():
    weights = np.r_[np.ones(200), np.zeros(40)]
    weighted, fewer = regressor().fit(X, Y, weights), regressor().fit(X[:200], Y[:200])
    assert_allclose(log_probs(weighted, X, Y), log_probs(fewer, X, Y), rtol=1e-10)


def test_files_keep_them(mixed, tmp_path):
    model = mixed[0]
    model.save(tmp_path / "m")
    loaded = MDNRegressor.load(tmp_path / "m")
    assert_array_equal(log_probs(loaded, MIXED, NAMED), log_probs(model, MIXED, NAMED))
    assert_array_equal(loaded.novelty(MIXED), model.novelty(MIXED))
    assert loaded.baselines_.n_rows == model.baselines_.n_rows
    assert loaded.novelty_.n_rows == model.novelty_.n_rows


DAMAGE = {
    "baselines with a NaN": ("baselines.sloped.coefficients", np.nan, "holds NaN or infinity"),
    "a scale of zero": ("baselines.scale", 0.0, "its baselines have an impossible scale"),
    "an impossible factor": ("baselines.constant.factor", 1e3, "impossible scale in constant"),
    "novelty with infinity": ("novelty.means", np.inf, "holds NaN or infinity"),
    "a negative scale": ("novelty.scale", -1.0, "its novelty has a scale that is not positive"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_numbers_are_refused_by_name(mixed, tmp_path, case):
    name, value, message = DAMAGE[case]
    mixed[0].save(tmp_path / "m")
    record, tensors = files.arrays((tmp_path / "m").read_bytes())
    tensors[name][0] = value
    (tmp_path / "m").write_bytes(files.sealed(record, tensors))
    with pytest.raises(ModelFileError, match=message):
        MDNRegressor.load(tmp_path / "m")


@pytest.mark.parametrize("name", ["baselines.constant.factor", "novelty.levels", "novelty.codes.0"])
def test_other_tensors_are_refused_by_name(mixed, tmp_path, name):
    mixed[0].save(tmp_path / "m")
    for change in (lambda t: t[None], None):
        record, tensors = files.arrays((tmp_path / "m").read_bytes())
        tensors.pop(name) if change is None else tensors.update({name: change(tensors[name])})
        (tmp_path / "n").write_bytes(files.sealed(record, tensors))
        with pytest.raises(ModelFileError, match=rf"its {name.split('.')[0]} "):
            MDNRegressor.load(tmp_path / "n")


@pytest.mark.parametrize("value", [0, -1, 2.0, "3", None])
@pytest.mark.parametrize("part", ["baselines", "novelty"])
def test_a_number_of_rows_that_is_none(mixed, tmp_path, part, value):
    mixed[0].save(tmp_path / "m")
    record, tensors = files.arrays((tmp_path / "m").read_bytes())
    record["document"][part]["n_rows"] = value
    (tmp_path / "m").write_bytes(files.sealed(record, tensors))
    with pytest.raises(ModelFileError, match="n_rows is"):
        MDNRegressor.load(tmp_path / "m")


def test_going_on_keeps_those_of_the_most_rows():
    model = regressor().partial_fit(X[:100], Y[:100])
    first = model.baselines_
    model.partial_fit(X[100:150], Y[100:150])
    assert model.baselines_ is first
    model.partial_fit(X[:200], Y[:200])
    assert model.baselines_.n_rows == model.novelty_.n_rows == 200
    model.set_params(warm_start=True).fit(X[:50], Y[:50])
    assert model.baselines_.n_rows == 200
    model.fit(X, Y)
    assert_array_equal(log_probs(model, X, Y), log_probs(regressor().fit(X, Y), X, Y))
    # A fit that starts anew forgets.
    assert model.set_params(warm_start=False).fit(X[:50], Y[:50]).baselines_.n_rows == 50


def test_an_interrupted_fit_has_them():
    model = regressor(callbacks=lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt, match="The model has them"):
        model.fit(X, Y)
    assert model.baselines_.n_rows == model.novelty_.n_rows == 228


def test_novelty_of_frames():
    """Numbers between clusters, of another category, and beyond the range with an unknown one."""
    rng = np.random.default_rng(0)
    town = rng.choice(["Bern", "Köln"], 500)
    area = np.where(town == "Bern", 20.0, 80.0) + 5 * rng.normal(size=500)
    table = pd.DataFrame({"area": area, "town": town})
    model = regressor().fit(table, area)
    asked = pd.DataFrame(
        {"area": [20.0, 80.0, 50.0, 80.0, 200.0], "town": ["Bern", "Köln", "Köln", "Bern", "Bonn"]}
    )
    found = model.novelty(asked)
    assert (found[:2] < 0.9).all()
    assert (found[2:] > 0.98).all()
    assert (found[[2, 4]] > 1).all()
    assert found.dtype == np.float64
    assert model.novelty(table).mean() == pytest.approx(0.5, abs=0.1)


def test_entropy_tells_where_members_disagree():
    """Between two groups of rows the members disagree more than among the rows."""
    rng = np.random.default_rng(0)
    x = np.r_[rng.uniform(-3, -2, 200), rng.uniform(2, 3, 200)]
    y = np.sin(2 * x) + 0.1 * rng.normal(size=400)
    # Bins and a linear part would make members agree on what lies between.
    plain = {"n_bins": 0, "shortcut": False, "width": 32}
    model = MDNRegressor(2, n_members=4, epochs=30, random_state=0, **plain).fit(x[:, None], y)
    found = model.predict_entropy(np.array([[-2.5], [0.0], [2.5]]), random_state=0)
    outer, middle = found.epistemic.value[[0, 2]], found.epistemic.value[1]
    assert middle > 2 * outer.max()
    assert_allclose(found.total.value, found.aleatoric.value + found.epistemic.value)
    again = model.predict_entropy(np.array([[-2.5], [0.0], [2.5]]), random_state=0)
    assert torch.equal(again.total.value, found.total.value)
    alone = regressor().fit(X, Y).predict_entropy(X[:5], n_samples=50)
    assert bool((alone.epistemic.value == 0).all())
