"""`compare`: paired differences against scipy, and probabilities apart from densities."""

import json
import math
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import Generator, distributions

from condens import GaussianMixture, TransformedMixture
from condens.errors import ArgumentError, CondensError
from condens.evaluation import Comparison, compare, cross_evaluate, evaluate
from condens.integrations.sbi import density_estimator
from condens.transforms import Integer, Positive

N = 300
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2))


def gaussian(mean, scale):
    mean = torch.as_tensor(mean).reshape(N, 1, -1)
    factors = torch.zeros(N, 1, mean.shape[-1] * (mean.shape[-1] + 1) // 2).double()
    factors[..., : mean.shape[-1]] = -math.log(scale)
    return GaussianMixture(torch.zeros(N, 1).double(), mean, factors)


def three():
    y = X[:, :1] + RNG.normal(size=(N, 1))
    models = {"wide": gaussian(X[:, :1], 1.5), "right": gaussian(X[:, :1], 1.0),
              "nearly": gaussian(X[:, :1] + 0.01, 1.0)}  # fmt: skip
    return models, y


def test_differences_are_those_of_paired_rows():
    models, y = three()
    found = compare(models, X, y)
    assert set(found.names[:2]) == {"right", "nearly"}
    assert found.names[2] == "wide"
    rows = {name: model.log_prob(torch.from_numpy(y)).numpy() for name, model in models.items()}
    chances = []
    for first, second in (("right", "wide"), ("right", "nearly"), ("nearly", "wide")):
        one = found.difference(first, second)
        gap = rows[first] - rows[second]
        assert one.value == pytest.approx(gap.mean(), rel=1e-9)
        assert one.standard_error == pytest.approx(gap.std(ddof=1) / math.sqrt(N), rel=1e-9)
        chances.append(stats.ttest_rel(rows[first], rows[second]).pvalue)
        assert one.p_value == pytest.approx(chances[-1], rel=1e-8)
        back = found.difference(second, first)
        assert (back.value, back.adjusted) == (-one.value, one.adjusted)
    order = np.argsort(chances)
    adjusted = np.maximum.accumulate(np.array(chances)[order] * [3, 2, 1]).clip(max=1)
    for place, value in zip(order, adjusted, strict=True):
        first, second = (("right", "wide"), ("right", "nearly"), ("nearly", "wide"))[place]
        assert found.difference(first, second).adjusted == pytest.approx(value, rel=1e-8)
    assert "not by more than chance" in found.verdict
    assert not found.difference("right", "nearly").significant
    assert found.difference("right", "wide").significant


def test_groups_and_weights_count():
    models, y = three()
    twice, weights = np.repeat(np.arange(N), 2), np.tile([1.0, 0.0], N)
    doubled = {name: model[torch.from_numpy(twice)] for name, model in models.items()}
    once = compare(models, None, y).difference("right", "wide")
    for options in ({"groups": twice}, {"sample_weight": weights}):
        again = compare(doubled, None, y[twice], **options).difference("right", "wide")
        assert again[4:] == pytest.approx(once[4:], rel=1e-8)


def test_equal_models_do_not_differ():
    models, y = three()
    found = compare({"one": models["right"], "two": models["right"].to_mixture_same_family()}, X, y)
    assert found.difference("one", "two").value == 0
    assert found.difference("one", "two").p_value == 1


def test_to_json_and_back(tmp_path):
    models, y = three()
    found = compare(models, X, y)
    text = found.to_json(tmp_path / "file.json")
    again = Comparison.from_dict(json.loads((tmp_path / "file.json").read_text()))
    assert again.to_dict() == found.to_dict() == json.loads(text)
    assert str(again) == str(found)
    assert "right" in found.to_csv()


def test_draws_are_compared_by_the_energy_score():
    models, y = three()
    draws = models["wide"].sample((50,), generator=Generator().manual_seed(0))
    found = compare({"draws": draws, "right": models["right"]}, X, y)
    assert found.score == "energy_score"
    assert found.names[0] == "right"
    assert "log-likelihood of draws" in found.left_out
    with pytest.raises(ArgumentError, match="first and second are 'draws' and 'right', in log"):
        found.difference("draws", "right", "log_likelihood")


# Probabilities and densities.


def counts():
    rate = torch.from_numpy(np.exp(1 + 0.3 * X[:, 0]))
    return rate, torch.poisson(rate, generator=Generator().manual_seed(0))


def test_a_density_is_integrated_over_the_cells_of_whole_numbers():
    rate, y = counts()
    scale = rate.sqrt()
    normal, laplace = distributions.Normal(rate, scale), distributions.Laplace(rate, scale)
    mixture = GaussianMixture(torch.zeros(N, 1), rate[:, None, None], -scale.log()[:, None, None])
    cells = TransformedMixture(mixture.affine(1.0, 0.5), [Integer()])
    found = compare(
        {"poisson": distributions.Poisson(rate), "normal": normal, "mixture": mixture,
         "cells": cells, "laplace": laplace},
        None,
        y,
    )  # fmt: skip
    for name, given in (("normal", normal), ("mixture", normal), ("cells", normal),
                        ("laplace", laplace)):  # fmt: skip
        expected = (given.cdf(y + 0.5) - given.cdf(y - 0.5)).log()
        np.testing.assert_allclose(found.rows[name]["log_likelihood"], expected, rtol=1e-7)
    expected = stats.poisson(rate).logpmf(y)
    np.testing.assert_allclose(found.rows["poisson"]["log_likelihood"], expected, rtol=1e-9)


def test_several_targets_of_which_one_is_whole():
    rate, y = counts()
    both = torch.stack([y, torch.from_numpy(X[:, 1])], -1)
    means = torch.stack([rate, torch.zeros(N).double()], -1)
    smooth = gaussian(means, 1.5)
    mixed = TransformedMixture(gaussian(means + 0.5, 1.5), [Integer(), Positive(lower=-9.0)])
    found = compare({"smooth": smooth, "mixed": mixed}, None, both)
    normal = distributions.Normal(means, 1.5)
    mass = (normal.cdf(both + 0.5) - normal.cdf(both - 0.5))[:, 0].log()
    expected = mass + normal.log_prob(both)[:, 1]
    np.testing.assert_allclose(found.rows["smooth"]["log_likelihood"], expected, rtol=1e-7)


def test_what_cannot_be_integrated_is_refused():
    rate, y = counts()
    student = distributions.StudentT(4.0, rate, 1.0)
    with pytest.raises(ArgumentError, match=r"models\['other'\] gives a density of y"):
        compare({"poisson": distributions.Poisson(rate), "other": student}, None, y)
    both, means = torch.stack([y, y], -1), torch.stack([rate, rate], -1).log()
    whole = TransformedMixture(gaussian(means, 1.0), [Integer(0), Integer(0)])
    positive = TransformedMixture(gaussian(means, 1.0), [Positive(lower=-1.0), Integer(0)])
    with pytest.raises(ArgumentError, match=r"models\['other'\] gives a density of y\[0\]"):
        compare({"whole": whole, "other": positive}, None, both)


# Neighbours.


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def ngboost():
    # Three seconds, in the one process that needs it.
    import ngboost

    return ngboost


@pytest.mark.parametrize("name", ["Normal", "NormalFixedVar", "LogNormal", "Gamma", "Poisson"])
def test_ngboost(ngboost, name):
    _, y = counts()
    y = y.numpy() if name == "Poisson" else y.numpy() + 0.5
    options = {"n_estimators": 5, "verbose": False, "random_state": 0}
    model = ngboost.NGBRegressor(Dist=getattr(ngboost.distns, name), **options).fit(X, y)
    predicted = model.pred_dist(X)
    report, given = evaluate(model, X, y), evaluate(predicted, None, y)
    density = predicted.dist.logpmf(y) if name == "Poisson" else predicted.dist.logpdf(y)
    for one in (report, given):
        np.testing.assert_allclose(one.rows["log_likelihood"], density, rtol=1e-8)
        np.testing.assert_allclose(one.rows["mean"][:, 0], predicted.mean(), rtol=1e-8)
    if name != "Poisson":
        np.testing.assert_allclose(report.rows["pit"][:, 0], predicted.cdf(y), atol=1e-10)
        found = compare({"ng": model, "cells": distributions.Poisson(torch.ones(N))}, X, y.round())
        mass = predicted.cdf(y.round() + 0.5) - predicted.cdf(y.round() - 0.5)
        seen = mass > 1e-9  # further out their difference cancels
        density = found.rows["ng"]["log_likelihood"][seen]
        np.testing.assert_allclose(density, np.log(mass[seen]), rtol=1e-6)


def test_ngboost_of_several_targets(ngboost):
    y = X + RNG.normal(size=(N, 2))
    family = ngboost.distns.MultivariateNormal(2)
    model = ngboost.NGBRegressor(Dist=family, n_estimators=5, verbose=False).fit(X, y)
    report = evaluate(model, X, y)
    np.testing.assert_allclose(
        report.rows["log_likelihood"], model.pred_dist(X).logpdf(y), rtol=1e-8
    )


FEW = {"n_estimators": 2, "verbose": False, "random_state": 0}


def test_classes_and_survival_times_of_ngboost(ngboost):
    codes, times = np.arange(N) % 3, np.exp(X[:, 0])
    family = ngboost.distns.k_categorical(3)
    classes = ngboost.NGBClassifier(Dist=family, **FEW).fit(X, codes)
    found = evaluate(classes, X, codes).rows["log_likelihood"]
    own = classes.predict_proba(X)[np.arange(N), codes]
    np.testing.assert_allclose(found, np.log(own), rtol=1e-6)
    assert evaluate(classes, X, codes + 1).scores["log_likelihood"].value == -math.inf
    survival = ngboost.NGBSurvival(**FEW).fit(X, times, np.ones(N))
    predicted = survival.pred_dist(X)
    found = evaluate(survival, X, times).rows["log_likelihood"]
    np.testing.assert_allclose(found, predicted.dist.logpdf(times), rtol=1e-8)
    with pytest.raises(CondensError, match="estimator is a NGBSurvival that cannot be cloned"):
        cross_evaluate(survival, X, times)


def test_ngboost_names_what_is_wrong(ngboost):
    y = X[:, 0]
    model = ngboost.NGBRegressor(**FEW).fit(X, y)
    broken = np.stack([np.where(np.arange(N) == 3, np.nan, y), 0 * y])
    for match, given, x, target in (
        (r"model\(X\) has 5 rows, but y has", model, X[:5], y),
        ("X cannot be read by NGBRegressor", model, X[:, :1], y),
        ("X cannot be read by NGBRegressor", model, pd.DataFrame({"a": ["b"] * N}), y),
        ("Fit it", ngboost.NGBRegressor(), X, y),
        ("X is None", model, None, y),
        ("y has 2 column", model, X, X),
        ("model has a Normal with NaN", ngboost.distns.Normal(broken), None, y),
        ("model has a Laplace with NaN", ngboost.distns.Laplace(broken), None, y),
        ("model has a Cauchy", distributions.Cauchy(*torch.tensor(broken), False), None, y),
    ):
        with pytest.raises(CondensError, match=match):
            evaluate(given, x, target)


def test_a_posterior_of_sbi():
    from sbi.inference import NPE

    prior = distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    theta = prior.sample((200,))
    x = theta + 0.3 * torch.randn(200, 2)
    inference = NPE(prior, density_estimator=density_estimator(), show_progress_bars=False)
    inference.append_simulations(theta, x).train(max_num_epochs=2)
    posterior = inference.build_posterior()
    found = compare({"prior": prior, "npe": posterior}, x[:40], theta[:40], n_samples=20)
    expected = [
        posterior.log_prob(theta[i : i + 1], x=x[i : i + 1], norm_posterior=False).item()
        for i in range(40)
    ]
    np.testing.assert_allclose(found.rows["npe"]["log_likelihood"], expected, rtol=0.2, atol=0.2)
    for match, wrong in (
        ("X is None", None),
        ("X has 39 rows", x[:39]),
        ("X cannot be read by DirectPosterior", x[:40, :1]),
        ("X is NaN or infinite", torch.where(x[:40] > 1, torch.nan, x[:40])),
    ):
        with pytest.raises(CondensError, match=match):
            evaluate(posterior, wrong, theta[:40])
    gaps = theta[:40].clone()
    gaps[3, 0] = math.nan
    report = evaluate(posterior, x[:40], gaps, n_samples=20)
    assert math.isnan(report.rows["log_likelihood"][3])
    assert "log_likelihood of 1 rows" in report.left_out
    assert not math.isnan(report.rows["crps"][3, 1])
    assert report.scores["log_likelihood"].value < 0
