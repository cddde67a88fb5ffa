"""Permutation importance: against closed forms, for tables of every kind."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.regressors import MIXED, NAMED, X, Y, regressor
from numpy.testing import assert_allclose

from condens import GaussianMixture
from condens.errors import ArgumentError, DimensionError, ShapeError
from condens.evaluation import importance
from condens.nn import MixtureNetwork

SLOPES = torch.tensor([[1.0, 0.0], [0.5, -2.0], [0.0, 0.0]], dtype=torch.float64)
COVARIANCE = torch.tensor([[0.5, 0.2], [0.2, 0.8]], dtype=torch.float64)


def densities(condition):
    """Return N(cB, Σ)."""
    means = (condition.double() @ SLOPES)[:, None]
    weights = torch.ones(len(means), 1, dtype=torch.float64)
    return GaussianMixture.from_covariances(weights, means, COVARIANCE.expand(len(means), 1, 2, 2))


def draw(n, seed=0, mixing=None):
    rng = np.random.default_rng(seed)
    condition = rng.normal(size=(n, 3)) @ (np.eye(3) if mixing is None else mixing)
    noise = rng.multivariate_normal(np.zeros(2), COVARIANCE.numpy(), n)
    return condition, condition @ SLOPES.numpy() + noise


def closed_form(moved):
    """Return E log p(y | c) − log p(y | c′) = ½ E dᵀΣ⁻¹d for d = (c − c′)B, of covariance."""
    slopes = SLOPES.numpy()
    return 0.5 * np.trace(np.linalg.solve(COVARIANCE.numpy(), slopes.T @ moved @ slopes))


def test_the_true_model_in_closed_form():
    condition, target = draw(20_000)
    found = importance(densities, condition, target, columns=[0, 1, 2, [0, 1]], n_repeats=3)
    for name, columns in (("0", [0]), ("1", [1]), ("0 + 1", [0, 1])):
        moved = 2 * np.diag(np.isin(range(3), columns).astype(float))
        assert abs(found[name].value - closed_form(moved)) < 4 * found[name].standard_error
        assert found[name].standard_error < 0.03 * found[name].value
    assert found["2"] == (0.0, 0.0)
    assert list(found.columns) == ["0 + 1", "1", "0", "2"]
    expected = densities(torch.from_numpy(condition)).log_prob(torch.from_numpy(target))
    assert found.log_likelihood.value == pytest.approx(expected.mean().item(), rel=1e-12)


def test_correlated_columns_are_permuted_alone_and_together():
    """Alone, a column leaves its distribution; together, both keep their correlation."""
    mixing = np.array([[1.0, 0.9, 0.0], [0.0, 0.4, 0.0], [0.0, 0.0, 1.0]])
    condition, target = draw(20_000, 1, mixing)
    covariance = mixing.T @ mixing
    found = importance(densities, condition, target, columns=[0, [0, 1]], n_repeats=3)
    for name, columns in (("0", [0]), ("0 + 1", [0, 1])):
        kept = np.isin(range(3), columns)
        moved = 2 * covariance * np.outer(kept, kept)
        assert abs(found[name].value - closed_form(moved)) < 4 * found[name].standard_error


def test_standard_errors_are_those_of_repeated_samples():
    """The spread of the importance over 60 samples, within a factor that 60 allow.

    Rows lend their columns too: errors of the drops alone would be a third too small.
    """
    found = [importance(densities, *draw(300, seed), columns=[1])["1"] for seed in range(60)]
    spread = np.std([score.value for score in found], ddof=1)
    stated = np.mean([score.standard_error for score in found])
    assert 0.8 < stated / spread < 1.3


def test_groups_that_repeat_their_rows():
    """Ten copies of each row tell no more than one, if the groups say so."""
    condition, target = draw(300)
    once = importance(densities, condition, target, n_repeats=20)["1"]
    copies = [np.repeat(part, 10, 0) for part in (condition, target)]
    groups = [f"row {number}" for number in np.repeat(np.arange(300), 10)]
    grouped = importance(densities, *copies, groups=groups, n_repeats=2)["1"]
    alone = importance(densities, *copies, n_repeats=2)["1"]
    assert grouped.standard_error == pytest.approx(once.standard_error, rel=0.15)
    assert alone.standard_error < 0.5 * grouped.standard_error


def test_weights_are_numbers_of_rows():
    condition, target = draw(4000)
    weights = np.random.default_rng(1).integers(0, 4, 4000)
    counted = [np.repeat(part, weights, 0) for part in (condition, target)]
    weighted = importance(densities, condition, target, sample_weight=weights)
    repeated = importance(densities, *counted)
    for name in ("0", "1"):
        one, two = weighted[name], repeated[name]
        assert abs(one.value - two.value) < 3 * np.hypot(one.standard_error, two.standard_error)
    assert weighted.log_likelihood.value == pytest.approx(repeated.log_likelihood.value, rel=1e-9)


def test_no_row_keeps_its_own():
    """With two rows, each has the other's column, whatever the seed."""
    condition, target = np.array([[0.0, 0, 0], [2.0, 0, 0]]), np.zeros((2, 2))
    found = {importance(densities, condition, target, n_repeats=1, seed=s)["0"] for s in range(9)}
    assert len(found) == 1
    with pytest.raises(ArgumentError, match=r"y has 1 row\(s\) that count"):
        importance(densities, condition, np.array([[0.0, 0.0], [np.nan, np.nan]]))


def test_gaps_in_y_and_rows_without_any():
    condition, target = draw(500)
    target[::3, 0] = np.nan
    target[::5] = np.nan
    rows = ~np.isnan(target).all(1)
    found, fewer = (
        importance(densities, *part)
        for part in ((condition, target), (condition[rows], target[rows]))
    )
    assert found == fewer
    seen = densities(torch.from_numpy(condition[rows]))
    expected = seen.observed_log_prob(torch.from_numpy(target[rows])).mean().item()
    assert found.log_likelihood.value == pytest.approx(expected)


def test_blocks_change_nothing(monkeypatch):
    condition, target = draw(100)
    whole = importance(densities, condition, target)
    monkeypatch.setattr("condens.evaluation.permutation.ROWS_PER_BLOCK", 7)
    parts = importance(densities, condition, target)
    for name, score in whole.columns.items():
        assert_allclose(score, parts[name], rtol=1e-9, atol=1e-12)


def test_frames_with_categories_and_gaps():
    """A column of a table may be several of the network's: all of them are exchanged."""
    model = regressor().fit(MIXED, NAMED)
    found = model.importance(MIXED, NAMED, random_state=3)
    assert set(found.columns) == {"area", "town", "new"}
    joint = model.importance(MIXED, NAMED, columns=[["area", "town", "new"], "town"])
    # All columns of another row: the same as another row's y.
    assert next(iter(joint.columns)) == "area + town + new"
    every = model.score_samples(MIXED, NAMED).mean()
    crossed = [
        model.score_samples(MIXED.iloc[np.roll(np.arange(240), shift)], NAMED).mean()
        for shift in range(1, 240, 8)
    ]
    drop = joint["area + town + new"]
    assert drop.value == pytest.approx(every - np.mean(crossed), abs=3 * drop.standard_error)
    # The gap goes with its number: what is permuted is a table that the encoder could have made.
    order = np.random.default_rng(0).permutation(240)
    changed = MIXED.assign(area=MIXED["area"].to_numpy()[order])
    rows, other = model.read_rows(MIXED, NAMED), model.read_rows(changed, NAMED)
    place = model.encoder_.places[0]
    assert torch.equal(rows.condition[order][:, place], other.condition[:, place])
    kept = [column for column in range(rows.condition.shape[1]) if column not in place]
    assert torch.equal(rows.condition[:, kept], other.condition[:, kept])


def test_places_of_every_column():
    frame = pd.DataFrame(
        {"a": ["x", "y"] * 5, "b": [1.0, None] * 5, "c": [True, False] * 5, "d": [None, "z"] * 5,
         "e": [None, 2.0] * 5}
    )  # fmt: skip
    encoder = regressor(1).fit(frame, np.arange(10.0)).encoder_
    assert encoder.labels == [
        "column 'b'", "column 'c'", "column 'e'", "the gaps of column 'b'",
        "the gaps of column 'e'", "column 'a'", "column 'd'",
    ]  # fmt: skip
    assert encoder.places == [[5], [0, 3], [1], [6], [2, 4]]
    assert encoder.gaps == [(0, 3), (2, 4)]


def test_networks_and_arrays():
    network = MixtureNetwork.of(3, 2, n_components=2, width=8)
    network.prepare(*map(torch.from_numpy, (X, Y)))
    found = importance(network, X, Y, n_repeats=1)
    assert set(found.columns) == {"0", "1", "2"}
    again = regressor().fit(X, Y).importance(X, Y, columns=[-1])
    assert set(again.columns) == {"2"}


def test_answers_print_and_become_json():
    found = importance(densities, *draw(100))
    assert str(found).splitlines()[0] == "column  nats a row"
    assert str(found).splitlines()[-1] == "2       0"
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert values["columns"]["1"]["value"] == found["1"].value


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"columns": ["area"]}, DimensionError, r"columns names 'area', but X has 3 columns"),
        ({"columns": [3]}, DimensionError, r"columns names 3"),
        ({"columns": [True]}, DimensionError, r"columns names True"),
        ({"columns": [[0, 0]]}, ArgumentError, r"columns holds \[0, 0\]"),
        ({"columns": [[]]}, ArgumentError, r"columns holds \[\]"),
        ({"columns": []}, ArgumentError, r"columns is empty"),
        ({"n_repeats": 0}, ArgumentError, r"n_repeats is 0"),
        ({"seed": -1}, ArgumentError, r"seed is -1"),
        ({"groups": [1, 2]}, ShapeError, r"groups has shape \[2\]"),
        ({"sample_weight": [1.0]}, ShapeError, r"sample_weight has shape"),
    ],
)
def test_refusals(options, error, message):
    with pytest.raises(error, match=message):
        importance(densities, *draw(10), **options)


def test_models_that_are_none():
    with pytest.raises(ArgumentError, match="model is a str"):
        importance("model", *draw(10))
