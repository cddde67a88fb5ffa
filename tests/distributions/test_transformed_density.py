"""Densities and probabilities of transformed mixtures, against scipy and sums over cells."""

import math

import numpy as np
import pytest
import torch
from helpers.reference import dense
from helpers.transformed import MIXED, gaussian, mixture_of, reals
from scipy import integrate, special, stats
from torch.testing import assert_close

from condens import GaussianMixture, TransformedMixture
from condens.transforms import Integer, Interval, Positive

INF, NAN = float("inf"), float("nan")


def test_one_component_is_scipys_lognormal():
    m = gaussian([Positive(2.0)], [0.3], [[0.49]])
    y = torch.linspace(2.01, 9, 40, dtype=torch.float64)
    twin = stats.lognorm(0.7, loc=2.0, scale=np.exp(0.3))
    assert_close(m.log_prob(y[:, None]), reals(*twin.logpdf(y)), rtol=1e-11, atol=1e-11)
    assert_close(m.cdf(y[:, None]), reals(*twin.cdf(y)), rtol=1e-11, atol=1e-13)
    assert_close(m.mean, reals(twin.mean()), rtol=1e-12, atol=0)
    assert_close(m.variance, reals(twin.var()), rtol=1e-12, atol=0)


def test_one_component_is_the_logit_normal():
    m = gaussian([Interval(-1.0, 3.0, link="logit")], [0.3], [[0.49]])
    y = torch.linspace(-0.99, 2.99, 40, dtype=torch.float64)
    share = (y.numpy() + 1) / 4
    density = stats.norm(0.3, 0.7).pdf(special.logit(share)) / (share * (1 - share)) / 4
    assert_close(m.log_prob(y[:, None]), reals(*np.log(density)), rtol=1e-11, atol=1e-11)


def test_one_component_is_the_probit_normal():
    m = gaussian([Interval(-1.0, 3.0)], [0.3], [[0.49]])
    y = torch.linspace(-0.99, 2.99, 40, dtype=torch.float64)
    x = special.ndtri((y.numpy() + 1) / 4)
    density = stats.norm(0.3, 0.7).pdf(x) / stats.norm.pdf(x) / 4
    assert_close(m.log_prob(y[:, None]), reals(*np.log(density)), rtol=1e-11, atol=1e-11)
    assert_close(m.cdf(y[:, None]), reals(*stats.norm(0.3, 0.7).cdf(x)), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(("link", "end", "tight"), [("logit", 25.0, 0.0), ("probit", 7.0, 1.5)])
def test_continuous_density_integrates_to_one(link, end, tight):
    m = mixture_of([Positive(), Interval(0.0, 2.0, link)], tight=tight)

    def density(b, a):
        return float(m.log_prob(reals(a, b)).exp())

    # The grid is even in the real coordinates, where the density has no corners.
    x = np.linspace(-end, end, 501)
    first, second = m.transforms[0].from_real(reals(*x)), m.transforms[1].from_real(reals(*x))
    grid = torch.cartesian_prod(first, second)
    slopes = m.transforms[0].log_slope(grid[:, 0]) + m.transforms[1].log_slope(grid[:, 1])
    total = (m.log_prob(grid) - slopes).exp().sum() * (x[1] - x[0]) ** 2
    assert_close(total, torch.ones_like(total), rtol=1e-12 if link == "logit" else 1e-9, atol=0)
    part = integrate.dblquad(density, 0.5, 1.5, 0.2, 0.9, epsabs=1e-10)[0]
    draws = m.sample((200_000,), generator=torch.Generator().manual_seed(0))
    inside = (draws > reals(0.5, 0.2)) & (draws < reals(1.5, 0.9))
    error = (part * (1 - part) / len(draws)) ** 0.5
    assert abs(float(inside.all(-1).double().mean()) - part) < 4 * error


@pytest.mark.parametrize("transform", [Integer(), Integer(0), Integer(-4)], ids=repr)
def test_probabilities_of_whole_numbers(transform):
    m = mixture_of([transform], spread=0.7, tight=0.7)
    y = torch.arange(
        transform.lower if transform.lower is not None else -40, 4000, dtype=torch.float64
    )
    probability = m.log_prob(y[:, None]).exp()
    assert_close(probability.sum(), reals(1.0)[0], rtol=1e-12, atol=0)
    weights, means, covariances = dense(*m.base.parameters)
    for n in y[:6]:
        low, high = (end.numpy() for end in transform.cell(n))
        twin = stats.norm(means[:, 0], np.sqrt(covariances[:, 0, 0]))
        exact = float((weights * (twin.cdf(high) - twin.cdf(low))).sum())
        assert_close(float(m.log_prob(n[None]).exp()), exact, rtol=1e-9, atol=1e-14)
    assert_close(m.cdf(y[:, None]), probability.cumsum(0), rtol=1e-9, atol=1e-12)


def test_pairs_of_whole_numbers_sum_to_one():
    m = mixture_of([Integer(), Integer(0)], spread=0.5, tight=0.7)
    grid = torch.cartesian_prod(torch.arange(-25, 26), torch.arange(0, 900)).double()
    assert_close(m.log_prob(grid).exp().sum(), reals(1.0)[0], rtol=1e-10, atol=0)
    rows = m.log_prob(grid).exp().reshape(51, 900).sum(1)
    alone = m.marginal(0).log_prob(grid[::900, :1]).exp()
    assert_close(rows, alone, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dimensions", [2, 3, 4])
@pytest.mark.parametrize("correlation", [0.5, 0.9])
def test_boxes_against_scipy(dimensions, correlation):
    covariance = np.full((dimensions, dimensions), correlation)
    covariance = 2.25 * (covariance + (1 - correlation) * np.eye(dimensions))
    mean = np.linspace(-0.4, 0.9, dimensions)
    m = gaussian([Integer()] * dimensions, mean.tolist(), covariance.tolist())
    twin = stats.multivariate_normal(mean, covariance, maxpts=200_000, abseps=1e-9, seed=0)
    for y in (np.zeros(dimensions), np.arange(dimensions) - 1.0):
        exact = twin.cdf(y + 1, lower_limit=y)
        assert_close(float(m.log_prob(y).exp()), float(exact), rtol=1e-4, atol=0)


def test_a_box_of_independent_dimensions_is_a_product():
    """From five whole numbers on Sobol points integrate; they are exact without correlation."""
    scales = torch.linspace(-0.5, 0.5, 6, dtype=torch.float64)[None]
    base = GaussianMixture(torch.zeros(1).double(), torch.zeros(1, 6).double(), scales)
    m = TransformedMixture(base, [Integer()] * 6)
    y = reals(0, 1, -1, 2, 0, -2)
    total = sum(m.marginal(d).log_prob(y[d : d + 1]) for d in range(6))
    assert_close(m.log_prob(y), total, rtol=1e-9, atol=0)


@pytest.mark.parametrize("dimensions", [5, 6])
def test_boxes_of_many_dimensions(dimensions):
    """Equal correlations ρ = r² come from one common factor: a one-dimensional integral."""
    r = math.sqrt(0.5)
    covariance = 2.0 * (0.5 * np.ones((dimensions, dimensions)) + 0.5 * np.eye(dimensions))
    m = gaussian([Integer()] * dimensions, [0.3] * dimensions, covariance.tolist())
    y = np.array([0, 1, -1, 0, 1, 0])[:dimensions]
    scale = math.sqrt(2.0)

    def integrand(f):
        low = ((y - 0.3) / scale - r * f) / r
        high = ((y + 0.7) / scale - r * f) / r
        return stats.norm.pdf(f) * np.prod(special.ndtr(high) - special.ndtr(low))

    exact = integrate.quad(integrand, -9, 9, epsabs=0, epsrel=1e-10, limit=200)[0]
    assert_close(float(m.log_prob(y).exp()), exact, rtol=3e-3, atol=0)


# Tails.


def test_cells_far_in_either_tail():
    m = gaussian([Integer()], [0.0], [[1.0]])
    for n in (30, 37, 100):
        exact = float(special.log_ndtr(-n)) + math.log1p(
            -math.exp(special.log_ndtr(-n - 1.0) - special.log_ndtr(-float(n)))
        )
        assert_close(float(m.log_prob(reals(n))), exact, rtol=1e-13, atol=0)
        assert_close(float(m.log_prob(reals(-n - 1.0))), exact, rtol=1e-13, atol=0)
    assert m.log_prob(reals(1e200)) == -INF
    wide = gaussian([Integer()], [0.0], [[1e18]])
    assert_close(
        float(wide.log_prob(reals(3.0))), stats.norm(0, 1e9).logpdf(3.5), rtol=1e-13, atol=0
    )


def test_far_pairs_of_cells():
    """Thirty deviations out the sum over the cells still is the density of one of them."""
    m = gaussian([Integer(), Integer()], [0.0, 0.0], [[1.0, 0.6], [0.6, 1.0]])
    y = torch.arange(-20, 61, dtype=torch.float64)
    pairs = torch.stack([torch.full_like(y, 30.0), y], -1)
    total = m.log_prob(pairs).logsumexp(0)
    assert_close(total, m.marginal(0).log_prob(reals(30.0)), rtol=1e-9, atol=0)


def test_tiny_counts():
    """e^X below one almost surely: zero has all probability, one a probability of 10⁻³⁰⁰."""
    m = gaussian([Integer(0)], [-37.0], [[1.0]])
    assert_close(float(m.log_prob(reals(0.0))), float(special.log_ndtr(37.0)), rtol=1e-12, atol=0)
    low, high = special.log_ndtr(-37.0), special.log_ndtr(-37.0 - math.log(2))
    exact = low + math.log1p(-math.exp(high - low))
    assert_close(float(m.log_prob(reals(1.0))), float(exact), rtol=1e-13, atol=0)


def test_outside_the_support():
    m = mixture_of(MIXED)
    inside = m.sample()
    assert m.log_prob(inside).isfinite()
    for d, bad in (
        (1, 0.0),
        (1, -3.0),
        (2, 0.0),
        (2, 10.0),
        (2, 11.0),
        (3, 0.5),
        (4, -1.0),
        (0, INF),
    ):
        value = inside.clone()
        value[d] = bad
        assert m.log_prob(value) == -INF
        assert_close(m.responsibilities(value), m.weights)
