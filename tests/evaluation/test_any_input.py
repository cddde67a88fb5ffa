"""Whatever is passed to `condens.evaluation`: a right answer, or an error by name."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Generator
from torch import distributions as td

from condens import GaussianMixture, MDNRegressor
from condens.errors import ArgumentError, CondensError
from condens.evaluation import (
    Baselines,
    Novelty,
    c2st,
    compare,
    cross_evaluate,
    evaluate,
    expected_coverage,
    importance,
    mmd_squared,
    predictive_distance,
    sbc,
    tarp,
)

N = 40


def normals(n=N, size=2, names=None):
    zeros = torch.zeros(n, 1, dtype=torch.float64)
    means = torch.randn(n, 1, size, generator=Generator().manual_seed(0)).double()
    factors = zeros.unsqueeze(-1).expand(n, 1, size * (size + 1) // 2)
    return GaussianMixture(zeros, means, factors, names=names)


DENSITY = normals()
Y = DENSITY.sample(generator=Generator().manual_seed(1)).numpy()
ONE, THETA = torch.ones(N), torch.as_tensor(Y)
FAST = {"epochs": 2, "n_components": 1, "n_members": 1, "random_state": 0}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("X has 39 rows", {"X": np.zeros((N - 1, 2))}),
        (r"train\[0\] has 0 sample", {"X": Y, "train": (Y[:0], Y[:0])}),
        (r"train\[0\] is None", {"X": Y, "train": (None, Y)}),
        (r"train\[1\] has 1 column", {"X": Y, "train": (Y, Y[:, :1])}),
        ("coverages is None", {"coverages": None}),
        ("coverages is '0.9'", {"coverages": "0.9"}),
        ("quantiles is <", {"quantiles": object()}),
        (r"quantiles\[0\] is 50", {"quantiles": [50]}),
    ],
)
def test_evaluate_names_what_is_wrong(name, options):
    with pytest.raises(ArgumentError, match=name):
        evaluate(DENSITY, **{"X": None, "y": Y, **options})


@pytest.mark.parametrize("levels", [0.9, np.float64(0.9), np.array([0.9]), torch.tensor([0.9])])
def test_levels_come_in_any_form(levels):
    report = evaluate(DENSITY, None, Y, coverages=levels, quantiles=levels)
    assert report.coverages == report.quantiles == pytest.approx((0.9,))
    assert expected_coverage(DENSITY, THETA).at(levels)[0].coverage == pytest.approx(0.9)


@pytest.mark.parametrize("size", [1e-320, 1e-300, 1e300])
def test_weights_of_any_size_count_alike(size):
    plain = evaluate(DENSITY, Y, Y, sample_weight=np.ones(N))
    sized = evaluate(DENSITY, Y, Y, sample_weight=np.full(N, size))
    assert sized.scores["log_likelihood"] == pytest.approx(plain.scores["log_likelihood"])
    assert sized.coverage == plain.coverage
    drops = [
        importance(lambda x: normals(len(x)), Y, Y, sample_weight=weights)["0"].standard_error
        for weights in (np.ones(N), np.full(N, size))
    ]
    assert drops[0] == pytest.approx(drops[1])


def test_a_target_that_was_never_observed_is_left_out_by_name():
    y = Y.copy()
    y[:, 0] = np.nan
    report = evaluate(normals(names=["a", "b"]), None, y)
    assert report.left_out["a"] == "it was never observed"
    assert not report.targets["a"]
    assert report.targets["b"]["crps"].value > 0
    assert {one.subject for one in report.coverage} == {"b", "joint density"}
    assert all(math.isfinite(test.effect) for test in report.tests)
    found = compare({"one": DENSITY, "other": normals()}, None, y)
    assert found.left_out["CRPS of y[0]"] == "it was never observed"
    assert "nan" not in str(found)
    assert "nan" not in str(report).replace("nan (nan ± nan)", "")


def test_a_target_may_have_any_name():
    report = evaluate(normals(names=["joint density", "b"]), None, Y)
    assert report.names == ("target 'joint density'", "b")
    assert len({(one.subject, one.coverage) for one in report.coverage}) == len(report.coverage)


def test_densities_without_a_mean_have_no_error_of_it():
    y = Y[:, 0]
    report = evaluate(td.Cauchy(0 * ONE, ONE), None, y)
    assert report.n_rows == N
    assert "rmse" not in report.targets["y"]
    assert "no mean" in report.left_out["rmse, mae and r2 of y"]
    codes = evaluate(td.Categorical(torch.ones(N, 3)), None, np.arange(N) % 3)
    assert codes.targets["y"]["rmse"].value == pytest.approx(math.sqrt(2 / 3), rel=0.1)
    infinite = evaluate(td.Pareto(ONE, ONE), None, 1 + abs(y))
    assert infinite.targets["y"]["rmse"].value == math.inf


def test_rows_of_an_inverted_transform():
    """Gumbel's distribution inverts two of its transforms."""
    y = Y[:, 0]
    for posterior in (td.Gumbel(0 * ONE, ONE), td.Gumbel(THETA[:, 0], ONE.double())):
        expected = posterior.log_prob(torch.as_tensor(y).to(posterior.loc)).mean()
        found = evaluate(posterior, None, y).scores["log_likelihood"].value
        assert found == pytest.approx(float(expected), rel=1e-6)


def test_a_row_that_every_model_finds_impossible_is_no_gain():
    gain = evaluate(
        td.Uniform(0 * ONE, ONE), None, np.full(N, 2.0), train=(None, np.full(N, 2.0) + Y[:, 0])
    ).baselines["marginal"]
    assert gain.gain.value == -math.inf
    found = compare({"a": td.Uniform(0.0, 1.0), "b": td.Uniform(0.0, 1.5)}, None, np.full(N, 2.0))
    assert found.difference("a", "b").value == 0


def test_models_are_ranked_by_the_rows_that_all_of_them_have():
    """On its own rows the second has the higher mean; on those of both, the first."""
    mean = torch.zeros(N, 2).double()
    good = td.Independent(td.Normal(mean, 1.0), 1)
    worse = td.Independent(td.Laplace(mean, torch.ones(2).double()), 1)
    y = 0.5 * np.ones((N, 2))
    y[: N // 2] = [50.0, np.nan]  # impossible for both, and no marginal of the second
    found = compare({"worse": worse, "good": good}, None, y)
    assert found.names == ("good", "worse")
    expected = float(good.log_prob(torch.tensor([0.5, 0.5]).double())[0])
    assert found.scores["log_likelihood"]["good"].value == pytest.approx(expected)
    assert f"log-likelihood of {N // 2} rows" in found.left_out


def test_models_of_one_name_are_refused():
    with pytest.raises(ArgumentError, match="names"):
        compare({1: DENSITY, "1": DENSITY}, None, Y)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("cv", {"cv": "5"}),
        ("cv", {"cv": N + 1}),
        ("cv", {"cv": iter([])}),
        ("cv", {"cv": [(np.arange(3), np.arange(0))]}),
        ("cv", {"cv": [([0, 1], [N])]}),
        ("cv", {"groups": ["a"] * N}),
        ("y has shape", {"y": None}),
        ("y has shape", {"y": 3.0}),
        ("X has 3 rows", {"X": Y[:3]}),
        ("X is None", {"X": None}),
        ("sample_weight", {"sample_weight": [1.0, 2.0]}),
        ("model is a StandardScaler", {"estimator": StandardScaler()}),
        ("fit of PCA takes none", {"estimator": PCA(), "sample_weight": np.ones(N)}),
        ("estimator", {"estimator": MDNRegressor}),
        ("estimator", {"estimator": None}),
        ("seed", {"seed": -1}),
    ],
)
def test_cross_evaluate_names_what_is_wrong(name, arguments):
    given = {"estimator": MDNRegressor(**FAST), "X": Y, "y": Y, "cv": 2, **arguments}
    with pytest.raises(CondensError, match=name):
        cross_evaluate(given.pop("estimator"), given.pop("X"), given.pop("y"), **given)


def test_cross_evaluate_passes_weights_through_pipelines_and_searches():
    weights = np.arange(N) % 2
    model = MDNRegressor(**FAST)
    pipeline = make_pipeline(StandardScaler(), model)
    search = GridSearchCV(pipeline, {"mdnregressor__width": [8]}, cv=2)
    folds = [(np.arange(N), np.arange(N))]
    for estimator in (pipeline, search):
        found = cross_evaluate(estimator, Y, Y, cv=folds, sample_weight=weights)
        assert found.n_rows == N // 2
    other = cross_evaluate(pipeline, Y, Y, cv=folds, seed=2**40)
    assert other.n_rows == N
    assert cross_evaluate(pipeline, Y, Y, cv=folds, groups=np.arange(N) % 9).n_groups == 9


def test_importance_of_a_model_in_a_pipeline_and_of_columns_by_name():
    y = Y[:, 0]
    pipeline = make_pipeline(StandardScaler(), MDNRegressor(**FAST)).fit(Y, y)
    scaled = pipeline[0].transform(Y)
    assert importance(pipeline, Y, y).columns == importance(pipeline[-1], scaled, y).columns
    frame = pd.DataFrame(scaled, columns=["a", "b\n"])
    found = importance(pipeline[-1].network_, frame, y)
    assert found.columns.keys() == {"a", "b\n"}
    assert len(str(found).splitlines()) == 3
    impossible = importance(lambda x: normals(len(x)), Y, np.full((N, 2), 1e200))
    assert impossible["0"].value == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda: importance(lambda _: 3, Y, Y),
        lambda: Novelty.fit(np.zeros((5, 2))),
        lambda: Novelty.fit(torch.zeros(5)),
        lambda: Novelty.fit(torch.full((5, 2), torch.nan)),
        lambda: Novelty.fit(torch.zeros(5, 2), torch.ones(3)),
        lambda: Novelty.fit(torch.zeros(5, 2))(torch.zeros(2)),
        lambda: Novelty.fit(torch.zeros(5, 2))(np.zeros((2, 2))),
        lambda: Baselines.fit(np.zeros((5, 2)), np.zeros((5, 1))),
        lambda: sbc(DENSITY, THETA, functions={"a": lambda t, x: None}),  # noqa: ARG005
        lambda: sbc(DENSITY, THETA, functions=[1]),
        lambda: expected_coverage(DENSITY, THETA, log_prob="a"),
        lambda: expected_coverage(DENSITY, THETA).at(None),
        lambda: tarp(DENSITY, THETA, references=lambda x: None),  # noqa: ARG005
        lambda: predictive_distance(DENSITY[0], "a", [0.0, 0.0]),
        lambda: predictive_distance(DENSITY[0], lambda t: t, [0.0, 0.0], distance="l2"),
        lambda: predictive_distance(
            DENSITY[0], lambda t: t, [0.0, 0.0], distance=lambda s, _: s[:, 0] * math.nan
        ),
        lambda: mmd_squared(Y, Y, n_permutations=10**11),
    ],
)
def test_it_is_refused_by_name(call):
    with pytest.raises(CondensError):
        call()


def test_few_truths_are_written_without_tests():
    for ask in (sbc, expected_coverage, tarp):
        plain = ask(DENSITY[:3], THETA[:3]).to_dict()
        assert plain["tests"] == []
        json.dumps(plain, allow_nan=False)


def test_distances_of_numbers():
    found = predictive_distance(normals(1, 1)[0], lambda theta: theta[:, 0], 0.0)
    mean = float(normals(1, 1).means)
    # E|Z| of Z ~ N(mean, 1)
    expected = math.sqrt(2 / math.pi) * math.exp(-(mean**2) / 2)
    expected += mean * math.erf(mean / math.sqrt(2))
    assert abs(found.mean.value - expected) < 4 * found.mean.standard_error


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_two_sets_of_any_scale(scale):
    first, second = np.random.default_rng(0).normal(size=(2, 20, 1))
    second = second + 30
    here, there = mmd_squared(first, second), mmd_squared(scale * first, scale * second)
    assert (there.value, there.p_value) == pytest.approx((here.value, here.p_value))
    assert there.bandwidth == pytest.approx(scale * here.bandwidth)
    # Of draws that are as good as constant it would be one half or less.
    assert c2st(scale * first[:9], scale * second[:9], n_folds=2).value == 1
