"""Hermite coefficients of the exponential, the logistic function, Φ and the floor."""

import mpmath
import numpy as np
import pytest
import torch
from scipy import special, stats
from torch.testing import assert_close

from condens.functional import pushforward

PAIRS = [(0.3, 0.2), (-0.5, 0.9), (0.7, 1.5), (1.2, 3.0)]


def by_quadrature(function, mean, deviation, breaks, orders):
    """Return E[f(μ + σZ) heₙ(Z)] with panels that end where the function jumps."""
    z = (np.asarray(breaks) - mean) / deviation
    edges = np.unique(np.concatenate([np.linspace(-14, 14, 281), z[np.abs(z) < 14]]))
    x, w = np.polynomial.legendre.leggauss(16)
    half = 0.5 * np.diff(edges)[:, None]
    at = (edges[:-1, None] + half * (x + 1)).ravel()
    w = (half * w).ravel() * stats.norm.pdf(at) * function(mean + deviation * at)
    return [w @ special.eval_hermitenorm(n, at) / np.sqrt(special.factorial(n)) for n in orders]


def compare(ours, exact, orders):
    for n, value in zip(orders, exact, strict=True):
        assert_close(float(ours[n - 1]), value, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("mean", "deviation"), PAIRS)
def test_exponential(mean, deviation):
    orders = [1, 2, 3, 8, 20]
    m, d = (torch.tensor(v, dtype=torch.float64) for v in (mean, deviation))
    exact = by_quadrature(np.exp, mean, deviation, [], orders)
    compare(pushforward.lognormal_coefficients(m, d), exact, orders)


@pytest.mark.parametrize(("mean", "deviation"), PAIRS)
def test_logistic(mean, deviation):
    orders = [1, 2, 3, 8, 20, 60]
    m, d = (torch.tensor(v, dtype=torch.float64) for v in (mean, deviation))
    exact = by_quadrature(special.expit, mean, deviation, [], orders)
    compare(pushforward.logistic_coefficients(m, d), exact, orders)


@pytest.mark.parametrize(
    ("mean", "deviation"),
    [*PAIRS, (-50.0, 0.5), (-9.0, 1.0), (50.0, 20.0), (3.0, 1e-9), (-1.0, 1e8)],
)
def test_softplus_mean(mean, deviation):
    m, d = (torch.tensor(v, dtype=torch.float64) for v in (mean, deviation))
    with mpmath.workdps(30):
        bends = [(x - mean) / deviation for x in (-80, -20, -3, 0, 3, 20, 80)]
        places = sorted({*range(-12, 13, 2), *(z for z in bends if abs(z) < 12)})
        exact = mpmath.quad(
            lambda z: mpmath.npdf(z) * mpmath.log1p(mpmath.exp(mean + deviation * z)), places
        )
    assert_close(float(pushforward.softplus_mean(m, d)), float(exact), rtol=1e-11, atol=1e-16)


@pytest.mark.parametrize(("mean", "deviation"), [(0.3, 0.2), (-0.5, 0.9), (0.7, 1.5)])
def test_floor(mean, deviation):
    orders = [1, 2, 3, 8, 20, 60]
    m, d = (torch.tensor(v, dtype=torch.float64) for v in (mean, deviation))
    exact = by_quadrature(np.floor, mean, deviation, np.arange(-30, 31), orders)
    compare(pushforward.floor_coefficients(m, d, log=False), exact, orders)


@pytest.mark.parametrize(("mean", "deviation"), [(0.3, 0.2), (-0.5, 0.6), (2.0, 0.15), (3.0, 0.3)])
def test_floor_of_the_exponential(mean, deviation):
    orders = [1, 2, 3, 8, 20, 60]
    m, d = (torch.tensor(v, dtype=torch.float64) for v in (mean, deviation))
    jumps = np.log(np.arange(1, 2000))

    def function(x):
        return np.floor(np.exp(x))

    exact = by_quadrature(function, mean, deviation, jumps, orders)
    compare(pushforward.floor_coefficients(m, d, log=True), exact, orders)


@pytest.mark.parametrize(("mean", "deviation"), PAIRS)
def test_probit(mean, deviation):
    orders = [1, 2, 3, 8, 20, 60]
    m, d = (torch.tensor(v, dtype=torch.float64) for v in (mean, deviation))
    exact = by_quadrature(special.ndtr, mean, deviation, [], orders)
    compare(pushforward.probit_coefficients(m, d), exact, orders)
    inputs = m.requires_grad_(), d.requires_grad_()
    assert torch.autograd.gradcheck(lambda *x: pushforward.probit_coefficients(*x)[::9], inputs)


def test_parseval():
    """Var f = Σ aₙ², for functions that the order resolves."""
    m, d = (torch.tensor(v, dtype=torch.float64) for v in (0.4, 0.9))
    total = pushforward.logistic_coefficients(m, d).square().sum()
    assert_close(total, pushforward.logistic_moments(m, d)[1], rtol=1e-12, atol=0)
    total = pushforward.probit_coefficients(m, d).square().sum()
    assert_close(total, pushforward.probit_variance(m, d), rtol=1e-12, atol=0)
    total = pushforward.lognormal_coefficients(m, d).square().sum()
    assert_close(total, pushforward.lognormal_variance(m, d), rtol=1e-12, atol=0)


@pytest.mark.parametrize("mean", [-300.0, -30.0, -2.0, 0.0, 20.0, 300.0])
@pytest.mark.parametrize("deviation", [1e-12, 1e-6])
def test_narrow_logistic_moments_are_relatively_accurate(mean, deviation):
    """To first order s(X) = s(μ) + s′(μ)σZ, of variance s′²σ²; the next is σ² smaller."""
    found = pushforward.logistic_moments(
        *(torch.tensor(v, dtype=torch.float64) for v in (mean, deviation))
    )
    with mpmath.workdps(300):
        s = 1 / (1 + mpmath.exp(-mpmath.mpf(mean)))
        slope = s * (1 - s) * mpmath.mpf(deviation)
        curvature = s * (1 - s) * (1 - 2 * s) * mpmath.mpf(deviation) ** 2 / 2
        expected = float(s + curvature), float(slope**2)
    assert float(found[0]) == pytest.approx(expected[0], rel=1e-14)
    assert float(found[1]) == pytest.approx(expected[1], rel=1e-11)
