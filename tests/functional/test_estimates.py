import math

import pytest
import torch
from helpers.reference import COVARIANCES, random_parameters
from scipy import stats
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence
from torch.testing import assert_close

from condens import GaussianMixture
from condens.errors import NoClosedFormError


def mixture_of(batch=(), n_components=3, dimensions=2, covariance="full", seed=0, spread=1.0):
    parameters = random_parameters(
        batch, n_components, dimensions, covariance=covariance, seed=seed, spread=spread
    )
    return GaussianMixture(*parameters)


def normal_of(mixture):
    return MultivariateNormal(mixture.means[..., 0, :], mixture.covariance_matrices[..., 0, :, :])


def by_quadrature(integrand, points=1201, reach=30.0):
    axis = torch.linspace(-reach, reach, points, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    return (integrand(grid).sum() * (axis[1] - axis[0]) ** 2).item()


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_entropy_against_quadrature(covariance):
    mixture = mixture_of(covariance=covariance)
    exact = by_quadrature(lambda x: -mixture.log_prob(x).exp() * mixture.log_prob(x))
    value, error = mixture.entropy(n_samples=60_000, generator=seeded())
    assert 0 < error < 0.005
    assert abs(value.item() - exact) < 5 * error


def test_entropy_is_exact_for_one_component_and_for_separate_ones():
    single = mixture_of((4,), 1, 5)
    value, error = single.entropy()
    assert_close(value, normal_of(single).entropy(), rtol=1e-9, atol=1e-9)
    assert (error == 0).all()
    apart = GaussianMixture(torch.zeros(2), torch.tensor([[0.0], [1e3]]), torch.zeros(2, 1))
    value, error = apart.entropy()
    assert error == 0
    assert value.item() == pytest.approx(0.5 * math.log(2 * math.pi * math.e) + math.log(2))


def test_kl_between_mixtures_against_quadrature():
    p, q = mixture_of(seed=1), mixture_of(n_components=2, seed=2)
    exact = by_quadrature(lambda x: p.log_prob(x).exp() * (p.log_prob(x) - q.log_prob(x)))
    value, error = p.kl_divergence(q, n_samples=60_000, generator=seeded())
    assert 0 < error < 0.05
    assert abs(value.item() - exact) < 5 * error
    itself = p.kl_divergence(p, n_samples=100, generator=seeded())
    assert itself.value.abs() < 1e-12
    assert itself.standard_error < 1e-12


@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_kl_of_single_gaussians_is_exact_and_registered_with_torch(dimensions):
    p = mixture_of((3,), 1, dimensions, seed=1)
    q = mixture_of((3,), 1, dimensions, seed=2)
    expected = kl_divergence(normal_of(p), normal_of(q))
    for first, second in ((p, q), (p, normal_of(q)), (normal_of(p), q)):
        assert_close(kl_divergence(first, second), expected, rtol=1e-8, atol=1e-8)
    diagonal = Independent(Normal(q.means[:, 0], q.variance.sqrt()), 1)
    dense_twin = MultivariateNormal(q.means[:, 0], torch.diag_embed(q.variance))
    for first, second in ((p, diagonal), (diagonal, p)):
        twins = [dense_twin if d is diagonal else normal_of(p) for d in (first, second)]
        assert_close(kl_divergence(first, second), kl_divergence(*twins), rtol=1e-8, atol=1e-8)
    mixed = p.to(torch.float32).kl_divergence(q).value
    assert_close(mixed.double(), expected, rtol=1e-5, atol=1e-5)
    estimate = p.kl_divergence(q)
    assert_close(estimate.value, expected, rtol=1e-8, atol=1e-8)
    assert (estimate.standard_error == 0).all()


def test_kl_broadcasts_batches():
    p, q = mixture_of((3, 1), seed=1), mixture_of((4,), seed=2)
    together = p.kl_divergence(q, n_samples=40_000, generator=seeded())
    assert together.value.shape == (3, 4)
    alone = p[1, 0].kl_divergence(q[2], n_samples=40_000, generator=seeded(1))
    error = together.standard_error[1, 2] + alone.standard_error
    assert abs(together.value[1, 2] - alone.value) < 5 * error
    single = mixture_of((), 1, seed=3)
    assert single.kl_divergence(normal_of(mixture_of((4,), 1, seed=2))).value.shape == (4,)


def test_torchs_kl_refuses_what_has_no_closed_form():
    p, q = mixture_of(), mixture_of(n_components=1, seed=3)
    for first, second in ((p, p), (p, q), (q, p), (normal_of(q), p), (p, normal_of(q))):
        with pytest.raises(NoClosedFormError, match=r"kl_divergence\(q\)"):
            kl_divergence(first, second)
    # One event of 5×2 numbers is not five Gaussians of two.
    block = Independent(Normal(torch.zeros(5, 2), torch.ones(5, 2)), 2)
    with pytest.raises(NoClosedFormError, match="only single Gaussians"):
        kl_divergence(block, q)


def test_stated_errors_are_the_actual_ones():
    p, q = mixture_of((2,), seed=1), mixture_of((2,), seed=2)
    for method in (
        lambda g: p.entropy(n_samples=600, generator=g),
        lambda g: p.kl_divergence(q, n_samples=600, generator=g),
        lambda g: p.hpd_threshold(0.9, n_samples=2000, generator=g),
    ):
        runs = [method(seeded(i)) for i in range(300)]
        assert runs[0].value.shape == (2,)
        spread = torch.stack([r.value for r in runs]).std(0)
        stated = torch.stack([r.standard_error for r in runs]).mean(0)
        # The deviation of 300 values is known to about 4 %.
        assert ((spread / stated - 1).abs() < 0.17).all()


def test_entropy_and_kl_have_unbiased_gradients_for_every_parameter():
    parameters = [p.requires_grad_() for p in random_parameters((), 2, 2, seed=4, spread=1.0)]
    other = mixture_of(seed=5)

    def exact(kind):
        mixture = GaussianMixture(*parameters)
        axis = torch.linspace(-14, 14, 281, dtype=torch.float64)
        grid = torch.cartesian_prod(axis, axis)
        log_p = mixture.log_prob(grid)
        against = 0.0 if kind == "entropy" else other.log_prob(grid)
        sign = -1 if kind == "entropy" else 1
        return (sign * log_p.exp() * (log_p - against)).sum() * (axis[1] - axis[0]) ** 2

    for kind in ("entropy", "kl"):
        expected = torch.autograd.grad(exact(kind), parameters)
        runs = []
        for i in range(30):
            mixture = GaussianMixture(*parameters)
            options = {"n_samples": 4000, "generator": seeded(i)}
            estimate = (
                mixture.entropy(**options)
                if kind == "entropy"
                else mixture.kl_divergence(other, **options)
            )
            runs.append(torch.autograd.grad(estimate.value, parameters))
        for position, reference in enumerate(expected):
            values = torch.stack([r[position] for r in runs])
            error = values.std(0) / math.sqrt(len(runs))
            assert ((values.mean(0) - reference).abs() < 5 * error + 1e-9).all()


@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_hpd_threshold_of_a_gaussian_has_a_closed_form(dimensions):
    """For one Gaussian the region is an ellipsoid: the level follows from χ²."""
    mixture = mixture_of((), 1, dimensions)
    peak = mixture.log_prob(mixture.mean)
    for coverage in (0.1, 0.5, 0.9, 0.99):
        exact = peak - 0.5 * stats.chi2(dimensions).ppf(coverage)
        value, error = mixture.hpd_threshold(coverage, n_samples=40_000, generator=seeded())
        assert abs(value - exact) < 5 * error
        assert error < 0.2


def test_hpd_region_holds_its_mass():
    mixture = mixture_of((2,), 3, 2, spread=3.0)
    for coverage in (0.5, 0.9):
        fresh = mixture.sample((20_000,), generator=seeded(1))
        inside = mixture.hpd_contains(fresh, coverage, n_samples=20_000, generator=seeded(2))
        assert inside.shape == (20_000, 2)
        # Two binomial errors: of the threshold and of the check.
        error = math.sqrt(2 * coverage * (1 - coverage) / 20_000)
        assert (inside.double().mean(0) - coverage).abs().max() < 4.5 * error
    assert mixture.hpd_contains(mixture.mode, 0.05).all()
    x = mixture.sample((2000,))
    level = mixture.hpd_threshold(0.7, n_samples=100, generator=seeded(3)).value
    inside = mixture.hpd_contains(x, 0.7, n_samples=100, generator=seeded(3))
    assert torch.equal(inside, mixture.log_prob(x) >= level)


def test_draws_from_components_without_weight_do_not_count():
    mixture = GaussianMixture(
        torch.tensor([0.0, -torch.inf]), torch.tensor([[0.0], [1e25]]), torch.zeros(2, 1)
    )
    assert mixture.entropy().value.item() == pytest.approx(0.5 * math.log(2 * math.pi * math.e))
    other = GaussianMixture(torch.zeros(1), torch.zeros(1, 1), torch.zeros(1, 1))
    assert mixture.kl_divergence(other).value.abs() < 1e-6


def test_empty_batches():
    mixture = mixture_of((4,))[:0]
    assert mixture.entropy().value.shape == (0,)
    assert mixture.kl_divergence(mixture).value.shape == (0,)
    assert mixture.energy_score(torch.zeros(0, 2)).value.shape == (0,)
    assert mixture.modes().points.shape[0] == 0
