"""Scores of rows against scoringrules, scipy, scikit-learn and closed forms."""

import math

import numpy as np
import pytest
import scoringrules
import torch
from scipy import stats
from sklearn.metrics import mean_absolute_error, mean_pinball_loss, r2_score
from sklearn.metrics import root_mean_squared_error as rmse
from torch import Generator, distributions

from condens import GaussianMixture, LowRankMixture, TransformedMixture
from condens.evaluation import evaluate
from condens.evaluation.scores import energy_score
from condens.transforms import Integer, Interval, Positive

N, K, D = 150, 3, 2


def mixtures(n=N, components=K, dimensions=D, seed=0):
    generator = Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(n, components, *shape, dtype=torch.float64, generator=generator)

    size = dimensions * (dimensions + 1) // 2
    return GaussianMixture(draw(), 2 * draw(dimensions), 0.4 * draw(size))


def targets(mixture, seed=1):
    return mixture.sample(generator=Generator().manual_seed(seed))


def dense(mixture):
    return (mixture.weights.numpy(), mixture.means.numpy(), mixture.covariance_matrices.numpy())


@pytest.fixture(scope="module")
def judged():
    mixture = mixtures()
    y = targets(mixture)
    weights = np.random.default_rng(0).exponential(size=N)
    return mixture, y.numpy(), weights, evaluate(mixture, None, y, sample_weight=weights)


def test_log_likelihood_is_that_of_scipy(judged):
    mixture, y, weights, report = judged
    pi, mu, sigma = dense(mixture)
    expected = [
        np.log(sum(pi[i, k] * stats.multivariate_normal(mu[i, k], sigma[i, k]).pdf(y[i])
                   for k in range(K)))
        for i in range(N)
    ]  # fmt: skip
    np.testing.assert_allclose(report.rows["log_likelihood"], expected, rtol=1e-10)
    found = report.scores["log_likelihood"].value
    assert found == pytest.approx(np.average(expected, weights=weights), rel=1e-10)


def test_crps_is_that_of_scoringrules(judged):
    mixture, y, weights, report = judged
    pi, mu, sigma = dense(mixture)
    for dim in range(D):
        scale = np.sqrt(sigma[..., dim, dim])
        expected = scoringrules.crps_mixnorm(y[:, dim], mu[..., dim], scale, pi)
        np.testing.assert_allclose(report.rows["crps"][:, dim], expected, rtol=1e-8, atol=1e-10)
        found = report.targets[f"y[{dim}]"]["crps"].value
        assert found == pytest.approx(np.average(expected, weights=weights), rel=1e-8)


def test_the_mean_is_judged_as_scikit_learn_does(judged):
    mixture, y, weights, report = judged
    mean = mixture.mean.numpy()
    for dim in range(D):
        found = report.targets[f"y[{dim}]"]
        for name, metric in (("rmse", rmse), ("mae", mean_absolute_error), ("r2", r2_score)):
            expected = metric(y[:, dim], mean[:, dim], sample_weight=weights)
            assert found[name].value == pytest.approx(expected, rel=1e-10)


def test_pinball_losses_and_widths(judged):
    mixture, y, weights, report = judged
    for dim in range(D):
        alone, found = mixture.marginal(dim), report.targets[f"y[{dim}]"]
        for level in report.quantiles:
            at = alone.icdf(level).squeeze(-1).numpy()
            expected = mean_pinball_loss(y[:, dim], at, alpha=level, sample_weight=weights)
            assert found[f"pinball_{level:g}"].value == pytest.approx(expected, rel=1e-9)
        for coverage in report.coverages:
            lower, upper = alone.interval(coverage)
            expected = np.average((upper - lower).squeeze(-1).numpy(), weights=weights)
            assert found[f"width_{coverage:g}"].value == pytest.approx(expected, rel=1e-9)


def test_the_energy_score_is_that_of_scoringrules_within_its_error():
    mixture = mixtures(25)
    y = targets(mixture)
    few = np.stack([
        evaluate(mixture, None, y, n_samples=50, seed=seed).rows["energy_score"]
        for seed in range(12)
    ])  # fmt: skip
    draws = mixture.sample((300,), generator=Generator().manual_seed(9)).numpy()
    many = scoringrules.es_ensemble(
        y.numpy(), draws.swapaxes(0, 1), estimator="fair", backend="numpy"
    )
    # A biased estimate of 50 draws would be off by 1 % of the distance between draws.
    error = few.std(0, ddof=1) / math.sqrt(len(few))
    z = (few.mean(0) - many) / error
    assert np.abs(z.mean()) * math.sqrt(len(z)) < 4
    assert few.mean() == pytest.approx(many.mean(), abs=4 * few.mean(1).std() / math.sqrt(12))


def test_the_energy_score_of_two_draws():
    target, draws = torch.tensor([[0.0, 0.0]]), torch.tensor([[[3.0, 4.0]], [[0.0, 1.0]]])
    expected = (5 + 1) / 2 - 0.5 * math.hypot(3, 3)
    assert energy_score(target.double(), draws.double()).item() == pytest.approx(expected)


def test_of_one_target_the_energy_score_is_the_crps():
    mixture = mixtures(30, dimensions=1)
    report = evaluate(mixture, None, targets(mixture))
    np.testing.assert_array_equal(report.rows["energy_score"], report.rows["crps"][:, 0])


def test_entropy_and_regions_of_a_gaussian():
    mixture = mixtures(400, components=1, dimensions=3)
    y = targets(mixture)
    report = evaluate(mixture, None, y)
    exact = mixture.entropy().value.numpy()
    # The entropy of a Gaussian is estimated from draws with variance D/2 each.
    z = (report.rows["entropy"] - exact) / math.sqrt(1.5 / 199)
    assert abs(z.mean()) * 20 < 4
    assert z.std() == pytest.approx(1, abs=0.15)
    _, mu, sigma = dense(mixture)
    gap = y.numpy() - mu[:, 0]
    squared = np.einsum("ni,nij,nj->n", gap, np.linalg.inv(sigma[:, 0]), gap)
    inside = stats.chi2(3).cdf(squared)
    z = (report.rows["hpd_coverage"] - inside) / np.sqrt((inside * (1 - inside) + 0.01) / 199)
    assert np.abs(z).max() < 5


def test_pit_is_the_distribution_function(judged):
    mixture, y, _, report = judged
    pi, mu, sigma = dense(mixture)
    for dim in range(D):
        z = (y[:, dim, None] - mu[..., dim]) / np.sqrt(sigma[..., dim, dim])
        expected = (pi * stats.norm.cdf(z)).sum(-1)
        np.testing.assert_allclose(report.rows["pit"][:, dim], expected, atol=1e-12)
    np.testing.assert_allclose(report.rows["rosenblatt"][:, 0], report.rows["pit"][:, 0])


def whole(n=400):
    base = mixtures(n, dimensions=2)
    return TransformedMixture(base, [Integer(), Integer(lower=0)])


@pytest.mark.parametrize("make", [whole, lambda: mixtures(3000)])
def test_what_should_be_uniform_is(make):
    """The right densities, whole numbers too: eight tests at 0.1 %."""
    mixture = make()
    rows = evaluate(mixture, None, targets(mixture), n_samples=39).rows
    for name in ("pit", "rosenblatt", "hpd_coverage"):
        for column in np.atleast_2d(rows[name].T):
            assert stats.kstest(column, "uniform").pvalue > 1e-3, name


def test_draws_are_scored_as_an_ensemble():
    rng = np.random.default_rng(0)
    draws, y = rng.normal(size=(40, 30, 2)), rng.normal(size=(30, 2))
    report = evaluate(draws, None, y)
    for dim in range(2):
        expected = scoringrules.crps_ensemble(y[:, dim], draws[..., dim].T, estimator="fair")
        np.testing.assert_allclose(report.rows["crps"][:, dim], expected, rtol=1e-10)
        assert report.targets[f"y[{dim}]"]["pinball_0.25"].value == pytest.approx(
            mean_pinball_loss(y[:, dim], np.quantile(draws[..., dim], 0.25, 0), alpha=0.25)
        )
    np.testing.assert_allclose(report.rows["mean"], draws.mean(0))
    below = (draws < y).sum(0)
    assert ((report.rows["pit"] * 41 - below > 0) & (report.rows["pit"] * 41 - below < 1)).all()
    assert "log_likelihood" not in report.scores
    assert "draws" in str(report.left_out)


def test_missing_entries_count_by_the_marginal(judged):
    mixture, complete, _, _ = judged
    y = complete.copy()
    y[::3, 0] = math.nan
    y[1::5, 1] = math.nan
    report = evaluate(mixture, None, y)
    pi, mu, sigma = dense(mixture)
    for i in range(N):
        seen = ~np.isnan(y[i])
        expected = 0.0
        if seen.any():
            expected = np.log(sum(
                pi[i, k] * stats.multivariate_normal(
                    mu[i, k][seen], sigma[i, k][np.ix_(seen, seen)]).pdf(y[i][seen])
                for k in range(K)
            ))  # fmt: skip
            assert report.rows["log_likelihood"][i] == pytest.approx(expected, rel=1e-9)
        else:
            assert math.isnan(report.rows["log_likelihood"][i])
        for name in ("crps", "pit", "rosenblatt", "mean", "spread"):
            np.testing.assert_array_equal(~np.isnan(report.rows[name][i]), seen, name)
    whole_report = evaluate(mixture, None, complete)
    seen = ~np.isnan(y)
    for name in ("crps", "pit", "mean"):
        np.testing.assert_allclose(report.rows[name][seen], whole_report.rows[name][seen])
    # One entry left is scored by the CRPS.
    one = seen.sum(1) == 1
    np.testing.assert_allclose(
        report.rows["energy_score"][one], np.nansum(report.rows["crps"][one], 1)
    )
    assert report.n_rows == int(seen.any(1).sum())


@pytest.mark.parametrize(
    "make",
    [
        lambda base: TransformedMixture(base, [Positive(), Interval(-1.0, 4.0)]),
        lambda base: LowRankMixture(
            base.logits, base.means, torch.zeros(N, K, 2), torch.ones(N, K, 2, 1)
        ),
    ],
)
def test_log_densities_of_draws_take_the_same_units(make):
    """−E log p of the draws is the entropy, by another way than log_prob."""
    mixture = make(mixtures())
    y = targets(mixture)
    report = evaluate(mixture, None, y, n_samples=400)
    z = (report.rows["entropy"] - mixture.to(torch.float64).entropy(
        n_samples=2000, generator=Generator().manual_seed(3)).value.numpy())  # fmt: skip
    assert abs(z.mean()) < 4 * z.std() / math.sqrt(N)
    density = mixture.log_prob(y).numpy()
    np.testing.assert_allclose(report.rows["log_likelihood"], density, rtol=1e-9)


def kinds_of_distribution():
    n = 400
    rate = torch.linspace(1, 6, n, dtype=torch.float64)
    two = torch.stack([rate, 1 / rate], -1)
    yield "poisson", distributions.Poisson(rate)
    yield "gamma", distributions.Gamma(rate, 2 * torch.ones_like(rate))
    yield "student", distributions.Independent(distributions.StudentT(6.0, two, 0.5), 1)
    yield "laplace", distributions.Laplace(rate, rate.sqrt())
    yield (
        "affine",
        distributions.TransformedDistribution(
            distributions.Normal(rate, torch.ones_like(rate)),
            [distributions.AffineTransform(rate, 2.0)],
        ),
    )
    yield "normal", distributions.Normal(rate, rate.sqrt())


@pytest.mark.parametrize(("name", "given"), list(kinds_of_distribution()))
def test_torch_distributions(name, given, monkeypatch):
    monkeypatch.setattr("condens.evaluation.scores.ROWS_PER_BLOCK", 150)
    before = torch.random.get_rng_state()
    y = given.sample()
    torch.random.set_rng_state(before)
    report = evaluate(given, None, y)
    assert torch.equal(torch.random.get_rng_state(), before)
    expected = given.log_prob(y).numpy()
    np.testing.assert_allclose(report.rows["log_likelihood"], expected, rtol=1e-6, atol=1e-6)
    for column in np.atleast_2d(report.rows["pit"].T):
        assert stats.kstest(column, "uniform").pvalue > 1e-3
    assert min(test.adjusted for test in report.tests) > 1e-3
    if name != "affine":  # torch does not know its mean
        mean = given.mean.reshape(report.rows["mean"].shape)
        np.testing.assert_allclose(report.rows["mean"], mean, rtol=1e-6)


def test_outside_the_support_a_target_is_impossible():
    given = distributions.Gamma(torch.ones(50), torch.ones(50))
    y = given.sample()
    y[7] = -1.0
    report = evaluate(given, None, y)
    assert report.rows["log_likelihood"][7] == -math.inf
    assert report.rows["pit"][7, 0] == 0.0
    assert report.scores["log_likelihood"].value == -math.inf
    assert "1 row(s) are impossible under the model: 7." in report.verdict
    assert report.worst_rows[0].label == "7"
