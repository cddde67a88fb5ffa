import math

import mpmath
import numpy as np
import pytest
import torch
from helpers.reference import COVARIANCES, dense, random_parameters
from scipy import integrate, stats
from torch.testing import assert_close

from condens import GaussianMixture, TransformedMixture
from condens.functional.scores import crps, energy_score, lognormal_crps
from condens.transforms import Positive


@pytest.mark.parametrize("n_components", [1, 3, 20])
def test_crps_against_its_integral(n_components):
    mixture = GaussianMixture(*random_parameters((), n_components, 1))
    weights, means, covariances = dense(*mixture.parameters)

    def cdf(t):
        return weights @ stats.norm.cdf(t, means[:, 0], covariances[:, 0, 0] ** 0.5)

    for y in (-3.0, 0.0, 2.5):
        below, _ = integrate.quad(lambda t: cdf(t) ** 2, -60, y, epsabs=1e-11, limit=500)
        above, _ = integrate.quad(lambda t: (1 - cdf(t)) ** 2, y, 60, epsabs=1e-11, limit=500)
        ours = mixture.crps(torch.tensor([y], dtype=torch.float64)).item()
        assert ours == pytest.approx(below + above, abs=1e-9)


def test_crps_of_a_gaussian_has_its_closed_form():
    y = np.linspace(-4, 4, 9)
    mixture = GaussianMixture(
        torch.zeros(1, dtype=torch.float64),
        torch.tensor([[1.0]], dtype=torch.float64),
        torch.tensor([[-math.log(2)]], dtype=torch.float64),
    )
    z = (y - 1) / 2
    expected = 2 * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - math.pi**-0.5)
    np.testing.assert_allclose(mixture.crps(y[:, None]), expected, rtol=1e-12)


def test_crps_shapes_and_derivatives():
    parameters = [p.requires_grad_() for p in random_parameters((2,), 3, 1)]
    x = torch.randn(4, 2, 1, dtype=torch.float64, requires_grad=True)

    def score(value, *tensors):
        return GaussianMixture(*tensors, validate_args=False).crps(value)

    assert score(x, *parameters).shape == (4, 2)
    assert torch.autograd.gradcheck(score, (x, *parameters))
    assert torch.autograd.gradgradcheck(score, (x, *parameters))


def test_crps_is_least_for_the_true_distribution():
    truth = GaussianMixture(*random_parameters((), 3, 1))
    y = truth.sample((50_000,))
    for wrong in (truth.affine(1.3), truth.affine(0.7), truth.affine(1.0, 0.5)):
        worse = wrong.crps(y) - truth.crps(y)
        assert worse.mean() > 5 * worse.std() / math.sqrt(len(y))


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_energy_score_of_a_gaussian_against_its_closed_form(covariance):
    """For N(0, σ²I) at the origin: σ(√2 − 1)·√2 Γ((D+1)/2)/Γ(D/2) by the χ distribution."""
    dimensions, deviation = 3, 2.0
    size = 6 if covariance == "full" else 3
    factors = torch.zeros(1, size, dtype=torch.float64)
    factors[:, :3] = -math.log(deviation)
    mixture = GaussianMixture(torch.zeros(1), torch.zeros(1, 3), factors)
    chi = math.sqrt(2) * math.gamma((dimensions + 1) / 2) / math.gamma(dimensions / 2)
    expected = deviation * chi * (1 - math.sqrt(2) / 2)
    generator = torch.Generator().manual_seed(0)
    value, error = mixture.energy_score(
        torch.zeros(3, dtype=torch.float64), n_samples=100_000, generator=generator
    )
    assert abs(value - expected) < 5 * error
    assert error < 0.01


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_energy_score_of_a_mixture_against_independent_draws(covariance):
    """From its definition, with numpy's draws and every pair of two sets of them."""
    mixture = GaussianMixture(*random_parameters((), 3, 2, covariance=covariance, seed=3))
    weights, means, covariances = dense(*mixture.parameters)
    generator = np.random.default_rng(0)

    def draw(count):
        component = generator.choice(3, count, p=weights)
        roots = np.linalg.cholesky(covariances)[component]
        noise = generator.normal(size=(count, 2))
        return means[component] + np.einsum("nij,nj->ni", roots, noise)

    y = np.array([1.5, -2.0])
    to_target = np.linalg.norm(draw(400_000) - y, axis=-1)
    among = np.linalg.norm(draw(400_000) - draw(400_000), axis=-1)
    expected = to_target.mean() - 0.5 * among.mean()
    other_error = math.hypot(to_target.std(), 0.5 * among.std()) / math.sqrt(400_000)
    value, error = mixture.energy_score(
        y, n_samples=200_000, generator=torch.Generator().manual_seed(0)
    )
    assert abs(value.item() - expected) < 5 * math.hypot(error, other_error)
    assert error < 0.01


def test_crps_does_not_cancel_in_float32():
    mixture = GaussianMixture(
        torch.tensor([0.0, math.log(1e-6)]),
        torch.tensor([[0.0], [1e6]]),
        torch.tensor([[15.0], [0.0]]),
    )
    exact = mixture.to(torch.float64).crps(torch.zeros(1))
    assert_close(mixture.crps(torch.zeros(1)).double(), exact, rtol=1e-6, atol=0)


def test_energy_score_in_one_dimension_is_the_crps():
    mixture = GaussianMixture(*random_parameters((2,), 3, 1))
    y = torch.randn(4, 2, 1, dtype=torch.float64)
    value, error = mixture.energy_score(y)
    assert_close(value, mixture.crps(y), rtol=0, atol=0)
    assert (error == 0).all()


def test_stated_error_of_the_energy_score_is_the_actual_one():
    mixture = GaussianMixture(*random_parameters((3,), 3, 2))
    y = torch.randn(5, 3, 2, dtype=torch.float64)
    runs = [
        mixture.energy_score(y, n_samples=500, generator=torch.Generator().manual_seed(i))
        for i in range(300)
    ]
    assert runs[0].value.shape == (5, 3)
    spread = torch.stack([r.value for r in runs]).std(0)
    stated = torch.stack([r.standard_error for r in runs]).mean(0)
    # The deviation of 300 values is known to about 4 %.
    assert ((spread / stated - 1).abs() < 0.17).all()


def lognormal_score(y, logits, means, log_precisions):
    """Return the CRPS of a mixture of lognormals by its textbook formula, in 600 digits."""
    with mpmath.workdps(600):
        weights = [mpmath.exp(value) for value in logits]
        weights = [w / mpmath.fsum(weights) for w in weights]
        means = [mpmath.mpf(value) for value in means]
        spreads = [mpmath.exp(-2 * mpmath.mpf(value)) for value in log_precisions]
        sizes = [mpmath.exp(m + s / 2) for m, s in zip(means, spreads, strict=True)]
        y, root = mpmath.mpf(y), mpmath.sqrt(2)

        def reach(mean, spread, size):
            if y <= 0:
                return size - y
            t = (mpmath.log(y) - mean) / mpmath.sqrt(spread)
            return y * mpmath.erf(t / root) - size * mpmath.erf((t - mpmath.sqrt(spread)) / root)

        total = mpmath.mpf(0)
        for weight, mean, spread, size in zip(weights, means, spreads, sizes, strict=True):
            total += weight * reach(mean, spread, size)
            for other, centre, width in zip(weights, means, spreads, strict=True):
                place = (mean - centre + spread) / mpmath.sqrt(2 * (spread + width))
                total -= weight * other * size * mpmath.erf(place)
        return float(total)


def lognormal_case(y, logits, means, deviations):
    logits, means, deviations = (
        torch.tensor(values, dtype=torch.float64) for values in (logits, means, deviations)
    )
    log_precisions = -deviations.log()
    found = lognormal_crps(
        torch.tensor([y], dtype=torch.float64), logits, means[:, None], log_precisions[:, None]
    )
    exact = lognormal_score(y, logits.tolist(), means.tolist(), log_precisions.tolist())
    return float(found), exact


@pytest.mark.parametrize("deviation", [1e-12, 1e-6, 0.1, 0.99, 1.0, 1.9, 2.1, 5, 12, 30, 50])
@pytest.mark.parametrize("y", [1.0, 1e-5, 7.0, 1e10, 0.0, -2.0])
def test_crps_of_a_lognormal_at_any_width(y, deviation):
    found, exact = lognormal_case(y, [0.0], [0.0], [deviation])
    assert found == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("seed", range(15))
def test_crps_of_mixtures_of_lognormals_of_all_widths(seed):
    generator = np.random.default_rng(seed)
    n_components = generator.integers(2, 6)
    deviations = 10 ** generator.uniform(-4, 1.47, n_components)
    means = generator.normal(size=n_components) * generator.choice([1, 20, 200], n_components)
    logits = generator.uniform(-20, 0, n_components)
    y = math.exp(means[0] + deviations[0] * generator.normal())
    found, exact = lognormal_case(y, logits, means, deviations)
    # An ulp of a mean of 200, in deviations of 1e-4, is 3e-10.
    assert found == pytest.approx(exact, rel=1e-9)


def test_crps_of_a_lognormal_beyond_double_precision_is_infinite():
    positive = TransformedMixture(
        GaussianMixture(torch.zeros(2), torch.zeros(2, 1).double(), torch.tensor([[0.0], [-4.1]])),
        [Positive()],
    )
    assert positive.crps([1.0]) == math.inf
    alone = lognormal_crps(
        torch.ones(1), torch.tensor([0.0, -math.inf]), *positive.base.parameters[1:]
    )
    assert float(alone) == pytest.approx(lognormal_score(1.0, [0.0], [0.0], [0.0]), rel=1e-12)


def test_derivatives_of_the_crps_of_lognormals():
    means = torch.tensor([[0.3], [-0.4], [1.0], [0.31]], dtype=torch.float64)
    factors = -torch.tensor([[0.3], [2.5], [1.2], [0.01]], dtype=torch.float64).log()
    logits = torch.tensor([0.1, -0.5, 0.3, -1.0], dtype=torch.float64)
    y = torch.tensor([[0.7], [1.36], [12.0], [-0.5]], dtype=torch.float64)
    inputs = [t.requires_grad_() for t in (y, logits, means, factors)]
    assert torch.autograd.gradcheck(lognormal_crps, inputs)
    assert torch.autograd.gradgradcheck(lognormal_crps, inputs)


@pytest.mark.parametrize("distance", [1e8, 1e16, -1e18])
@pytest.mark.parametrize("weight", [1e-300, 1e-9, 1e-4, 0.5])
def test_crps_beside_a_component_far_away(distance, weight):
    """(1 − w)² of the near one's score, w² times the distance, and what they share."""
    logits = torch.tensor([math.log1p(-weight), math.log(weight)], dtype=torch.float64)
    means = torch.tensor([[0.0], [distance]], dtype=torch.float64)
    found = crps(torch.tensor([0.5]), logits, means, torch.zeros(2, 1, dtype=torch.float64))
    near = 0.5 * (2 * stats.norm.cdf(0.5) - 1) + 2 * stats.norm.pdf(0.5)
    shared = near - 0.5 * math.copysign(1.0, distance)  # E(X − x)₊ towards it, twice
    far = abs(distance - 0.5) - math.pi**-0.5
    expected = (1 - weight) ** 2 * (near - math.pi**-0.5) + weight**2 * far
    expected += weight * (1 - weight) * shared
    assert float(found) == pytest.approx(expected, rel=1e-12)


def test_energy_score_of_numbers_whose_squares_overflow():
    for dimensions in (1, 2):
        first, second = 1e200 * torch.rand(2, 50, dimensions, dtype=torch.float64)
        value, error = energy_score(torch.zeros(dimensions).double(), first, second)
        small, other = energy_score(torch.zeros(dimensions).double(), first / 1e200, second / 1e200)
        assert_close(value / 1e200, small, rtol=1e-12, atol=0)
        assert_close(error / 1e200, other, rtol=1e-12, atol=0)
