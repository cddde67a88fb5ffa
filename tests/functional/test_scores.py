import math

import numpy as np
import pytest
import torch
from reference import STRUCTURES, dense, random_parameters
from scipy import integrate, stats
from torch.testing import assert_close

from condens import GaussianMixture


@pytest.mark.parametrize("components", [1, 3, 20])
def test_crps_against_its_integral(components):
    mixture = GaussianMixture(*random_parameters((), components, 1))
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


@pytest.mark.parametrize("structure", STRUCTURES)
def test_energy_score_of_a_gaussian_against_its_closed_form(structure):
    """For N(0, σ²I) at the origin: σ(√2 − 1)·√2 Γ((D+1)/2)/Γ(D/2) by the χ distribution."""
    dimensions, deviation = 3, 2.0
    size = 6 if structure == "full" else 3
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


@pytest.mark.parametrize("structure", STRUCTURES)
def test_energy_score_of_a_mixture_against_independent_draws(structure):
    """From its definition, with numpy's draws and every pair of two sets of them."""
    mixture = GaussianMixture(*random_parameters((), 3, 2, structure=structure, seed=3))
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
