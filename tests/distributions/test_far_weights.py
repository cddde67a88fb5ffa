"""Weights after evidence so far away that log densities have no digits left to compare."""

import math

import mpmath
import pytest
import torch
from helpers.transformed import reals
from torch.distributions import Independent, MultivariateNormal, Normal
from torch.testing import assert_close

from condens import GaussianMixture, LowRankMixture, TransformedMixture
from condens.transforms import Positive, Real

LOGITS = reals(0.3, -0.4, 0.0)
# Apart in the first dimension; in the second they still compete at 1e8 σ.
MEANS = reals([0.1, 0.3], [0.7, 0.3 + 2e-9], [5.0, 0.3 - 5e-9])
FAR = [1e8 + 0.37, -1e8 + 0.5, 3e6 + 0.1, 40.0]


def full():
    factors = reals(0.2, -0.1, 0.3).expand(3, 3)
    return GaussianMixture(LOGITS, MEANS, factors)


def diagonal():
    return GaussianMixture(LOGITS, MEANS, reals(0.2, -0.1).expand(3, 2))


def low_rank():
    scales, loadings = reals(-0.2, 0.1).expand(3, 2), reals([0.5], [-0.3]).expand(3, 2, 1)
    return LowRankMixture(LOGITS, MEANS, scales, loadings)


def expected_weights(energies):
    """Return softmax(logits − energies), with digits for the energies' differences."""
    joint = [mpmath.mpf(float(logit)) - e for logit, e in zip(LOGITS, energies, strict=True)]
    parts = [mpmath.exp(j - max(joint)) for j in joint]
    assert sorted(parts)[1] > 1e-4  # two of them compete
    return torch.tensor([float(p / mpmath.fsum(parts)) for p in parts], dtype=torch.float64)


def shift_energies(mixture, value, dim):
    """Return ½(v − μₖ)²/σ² for the dimension that is given, with many digits."""
    variance = mpmath.mpf(float(mixture.covariance_matrices[0, dim, dim]))
    means = [mpmath.mpf(float(mean)) for mean in mixture.means[:, dim]]
    return [(mpmath.mpf(value) - mean) ** 2 / (2 * variance) for mean in means]


@pytest.mark.parametrize("value", FAR)
@pytest.mark.parametrize("make", [full, diagonal, low_rank])
def test_conditioning_far_away(make, value):
    with mpmath.workdps(60):
        expected = expected_weights(shift_energies(make(), value, 1))
        assert_close(make().condition({1: value}).weights, expected, rtol=1e-7, atol=1e-12)
        alone = make().marginal(1)
        assert_close(alone.responsibilities([value]), expected, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("make", [full, diagonal, low_rank])
def test_responsibilities_in_several_dimensions(make):
    value = [5e7 + 0.25, -3e7 + 0.5]
    made = make()
    means = reals([0.1, 0.3], [0.1 + 3e-9, 0.3 + 2e-9], [0.1, 0.3 - 5e-9])
    mixture = type(made)(made.logits, means, *made.parameters[2:])
    with mpmath.workdps(60):
        covariance = mpmath.matrix(mixture.covariance_matrices[0].tolist())
        at = mpmath.matrix(value)
        offsets = [at - mpmath.matrix(mean) for mean in mixture.means.tolist()]
        expected = expected_weights(
            [(d.T * mpmath.lu_solve(covariance, d))[0] / 2 for d in offsets]
        )
    assert_close(mixture.responsibilities(value), expected, rtol=1e-6, atol=1e-12)


def test_gradients_far_away():
    """d log(w₁/w₀)/dv = (μ₁ − μ₀)/σ², a difference of numbers of 1e8 each."""
    mixture = GaussianMixture(reals(0.0, 0.0), reals([0.1, 0.3], [0.7, 0.5]), torch.zeros(2, 2))
    value = reals(1e8).requires_grad_()
    logits = mixture.condition({1: value}).logits
    ratio = logits[..., 1] - logits[..., 0]
    (slope,) = torch.autograd.grad(ratio.sum(), value)
    assert float(slope) == pytest.approx(0.2, rel=1e-12)


def test_positive_targets_far_away():
    base = GaussianMixture(LOGITS, MEANS, reals(8.0, 8.1).expand(3, 2))
    mixture = TransformedMixture(base, [Real(), Positive()])
    value = math.exp(12.0)
    with mpmath.workdps(60):
        variance = mpmath.exp(mpmath.mpf(-2 * 8.1))
        means = [mpmath.mpf(float(mean)) for mean in MEANS[:, 1]]
        at = mpmath.mpf(math.log(value))
        expected = expected_weights([(at - mean) ** 2 / (2 * variance) for mean in means])
    assert_close(mixture.condition({1: value}).weights, expected, rtol=1e-9, atol=1e-12)
    assert_close(mixture.marginal(1).responsibilities([value]), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_products_with_a_gaussian_far_away(kind):
    """Evidence in both dimensions, of variance σ² + τ² about the component's mean."""
    loc, scale = reals(0.125, 1e8 + 0.37), reals(0.5, 2.0)
    gaussian = Independent(Normal(loc, scale), 1)
    if kind == "full":
        gaussian = MultivariateNormal(loc, torch.diag(scale.square()))
    product = diagonal().multiply(gaussian)
    with mpmath.workdps(60):
        energies = []
        for mean in MEANS.tolist():
            parts = [
                (mpmath.mpf(float(at)) - mpmath.mpf(m)) ** 2
                / (2 * (mpmath.exp(-2 * mpmath.mpf(u)) + mpmath.mpf(float(t)) ** 2))
                for at, m, u, t in zip(loc, mean, (0.2, -0.1), scale, strict=True)
            ]
            energies.append(mpmath.fsum(parts))
        expected = expected_weights(energies)
    assert_close(product.weights, expected, rtol=1e-6, atol=1e-12)


def test_quotients_by_a_gaussian_far_away():
    """Of N(μ, σ²) by N(m, τ²): what is left over grows with ½(μ − m)²/(τ² − σ²)."""
    loc, scale = reals(0.125, 1e8 + 0.37), reals(1.5, 2.0)
    quotient = diagonal().divide(Independent(Normal(loc, scale), 1))
    with mpmath.workdps(60):
        gains = []
        for mean in MEANS.tolist():
            parts = [
                (mpmath.mpf(float(at)) - mpmath.mpf(m)) ** 2
                / (2 * (mpmath.mpf(float(t)) ** 2 - mpmath.exp(-2 * mpmath.mpf(u))))
                for at, m, u, t in zip(loc, mean, (0.2, -0.1), scale, strict=True)
            ]
            gains.append(-mpmath.fsum(parts))
        expected = expected_weights(gains)
    assert_close(quotient.weights, expected, rtol=1e-6, atol=1e-12)
