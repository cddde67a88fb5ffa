"""Moments of transformed mixtures, against numerical integration and sums over cells."""

import math

import numpy as np
import pytest
import torch
from helpers.transformed import KINDS, MIXED, gaussian, mixture_of, reals
from scipy import special, stats
from torch.testing import assert_close

from condens import GaussianMixture, TransformedMixture
from condens.transforms import Integer, Interval, Positive, Real

INF, NAN = float("inf"), float("nan")


FUNCTIONS = {
    "real": lambda x: x,
    "positive": lambda x: np.exp(x) - 1.0,
    "interval": lambda x: -2.0 + 5.0 * special.expit(x),
}


def brute_force(kinds, mean, covariance):
    """Return mean and covariance of two transformed Gaussians: x₁ on a grid, and x₂ given x₁."""
    z = np.linspace(-12, 12, 241)
    w = stats.norm.pdf(z) / stats.norm.pdf(z).sum()
    root = np.linalg.cholesky(covariance)
    first = FUNCTIONS[kinds[0]](mean[0] + root[0, 0] * z)
    second = FUNCTIONS[kinds[1]](mean[1] + root[1, 0] * z[:, None] + root[1, 1] * z)
    given = second @ w
    centre = np.array([w @ first, w @ given])
    cross = w @ ((first - centre[0]) * (given - centre[1]))
    spread = w @ (first - centre[0]) ** 2, w @ (((second - centre[1]) ** 2) @ w)
    return centre, np.array([[spread[0], cross], [cross, spread[1]]])


@pytest.mark.parametrize("first", FUNCTIONS)
@pytest.mark.parametrize("second", FUNCTIONS)
@pytest.mark.parametrize("cross", [0.5, -0.7])
def test_moments_against_brute_force(first, second, cross):
    mean, covariance = [0.4, 0.8], np.array([[0.8, cross], [cross, 0.9]])
    m = gaussian([KINDS[first], KINDS[second]], mean, covariance.tolist())
    centre, spread = brute_force((first, second), mean, covariance)
    np.testing.assert_allclose(m.mean, centre, rtol=1e-10)
    np.testing.assert_allclose(m.covariance_matrix, spread, rtol=1e-10)
    assert_close(m.variance, m.covariance_matrix.diagonal(), rtol=1e-12, atol=0)
    assert_close(m.stddev, m.variance.sqrt())


@pytest.mark.parametrize(
    "kinds", [("integer", "integer"), ("integer", "count"), ("count", "count")]
)
def test_moments_of_pairs_of_whole_numbers_against_their_probabilities(kinds):
    m = mixture_of([KINDS[kind] for kind in kinds], n_components=2, spread=0.5, seed=4, tight=1.2)
    sizes = [(-20, 24) if kind == "integer" else (0, 250) for kind in kinds]
    grid = torch.cartesian_prod(*(torch.arange(*size) for size in sizes)).double()
    p = m.log_prob(grid).exp()
    centre = p @ grid
    spread = torch.einsum("n,ni,nj->ij", p, grid - centre, grid - centre)
    assert_close(p.sum(), reals(1.0)[0], rtol=1e-9, atol=0)
    assert_close(m.mean, centre, rtol=1e-7, atol=1e-9)
    assert_close(m.covariance_matrix, spread, rtol=1e-6, atol=1e-8)


def test_covariance_of_a_mixture_is_the_total_of_its_components():
    m = mixture_of(MIXED)
    parts = [
        TransformedMixture(GaussianMixture(*(t[k : k + 1] for t in m.base.parameters)), MIXED)
        for k in range(3)
    ]
    means = torch.stack([part.mean for part in parts])
    centre = m.weights @ means
    within = sum(w * part.covariance_matrix for w, part in zip(m.weights, parts, strict=True))
    between = torch.einsum("k,ki,kj->ij", m.weights, means - centre, means - centre)
    assert_close(m.mean, centre, rtol=1e-11, atol=0)
    assert_close(m.covariance_matrix, within + between, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("other", ["real", "positive", "interval"])
@pytest.mark.parametrize("whole", ["integer", "count"])
def test_covariance_with_a_whole_number_by_conditioning(whole, other):
    """Cov(Y₁, Y₂) = Σₙ P(n) (n − μ) E[Y₁ | n]."""
    m = mixture_of([KINDS[other], KINDS[whole]], n_components=2, spread=0.5, seed=4, tight=0.7)
    n = torch.arange(-20, 24).double() if whole == "integer" else torch.arange(0, 1500).double()
    p = m.marginal(1).log_prob(n[:, None]).exp()
    keep = p > 1e-13
    n, p = n[keep], p[keep]
    given = m.condition({1: n}).mean[:, 0]
    exact = (p * (n - (p * n).sum()) * given).sum()
    assert_close(m.covariance_matrix[0, 1], exact, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("mean", "deviation"), [(0.3, 0.1), (1.0, 0.99), (1.0, 1.01), (-3.0, 3.0),
                                                 (2.0, 10.0), (0.5, 100.0)])  # fmt: skip
def test_moments_of_an_interval(mean, deviation):
    m = gaussian([Interval(0.0, 1.0)], [mean], [[deviation**2]])
    # Panels fine enough for the step of the logistic function at any deviation.
    edges = np.unique(
        np.concatenate([np.linspace(-40, 40, 801), mean + deviation * np.linspace(-9, 9, 181)])
    )
    x, w = np.polynomial.legendre.leggauss(12)
    half = 0.5 * np.diff(edges)[:, None]
    x = edges[:-1, None] + half * (x + 1)
    w = half * w * stats.norm.pdf(x, mean, deviation)
    first = (w * special.expit(x)).sum()
    second = (w * (special.expit(x) - first) ** 2).sum()
    assert_close(float(m.mean), first, rtol=1e-12, atol=0)
    assert_close(float(m.variance), second, rtol=1e-11, atol=0)


@pytest.mark.parametrize("lower", [None, 0])
@pytest.mark.parametrize(("mean", "deviation"), [(0.3, 0.05), (2.2, 0.7), (1.9, 1.2), (5.0, 0.2),
                                                 (6.9, 1e-3), (5.0, 0.8), (-3.0, 1.5)])  # fmt: skip
def test_moments_of_a_whole_number(mean, deviation, lower):
    m = gaussian([Integer(lower)], [mean], [[deviation**2]])
    n = np.arange(-80, 80) if lower is None else np.arange(0, 400_000)
    low, high = (np.asarray(end) for end in Integer(lower).cell(torch.tensor(n)))
    low, high = (low - mean) / deviation, (high - mean) / deviation
    p = np.where(
        low > 0, special.ndtr(-low) - special.ndtr(-high), special.ndtr(high) - special.ndtr(low)
    )
    first = p @ n
    assert_close(float(m.mean), first, rtol=1e-10, atol=1e-15)
    assert_close(float(m.variance), p @ (n - first) ** 2, rtol=1e-8, atol=1e-15)


def test_moments_beyond_double_precision_are_infinite():
    for transform in (Positive(), Integer(0)):
        m = gaussian([transform, Real(), Interval(0.0, 1.0)], [500.0, 0.0, 0.0],
                     [[900.0, 10.0, -5.0], [10.0, 1.0, 0.0], [-5.0, 0.0, 1.0]])  # fmt: skip
        assert m.mean[0] == INF
        assert m.variance[0] == INF
        assert m.mean[1:].isfinite().all()
        assert m.covariance_matrix[0].tolist() == [INF, INF, -INF]
        assert m.covariance_matrix[1:, 1:].isfinite().all()
    # A component without weight does not count, however large.
    base = GaussianMixture(reals(0.0, -INF), reals([0.0], [900.0]), reals([0.0], [0.0]))
    assert_close(TransformedMixture(base, [Positive()]).mean, torch.exp(reals(0.5)))


def test_large_counts():
    """e^X of a billion, give or take ten: the floor is that of a smooth density."""
    m = gaussian([Integer(0)], [math.log(1e9)], [[1e-16]])
    assert_close(float(m.variance), 1e2 + 1 / 12, rtol=1e-6, atol=0)
    assert_close(float(m.mean), 1e9 - 0.5, rtol=1e-12, atol=0)


@pytest.mark.parametrize("deviation", [2.0, 5.0, 7.0, 9.0])
@pytest.mark.parametrize("correlation", [0.5, 0.9, -0.5])
def test_wide_counts_are_lognormal(deviation, correlation):
    """Where counts reach millions their floors do not matter to the covariance."""
    spread = deviation**2 * np.array([[1.0, correlation], [correlation, 1.0]])
    counts, plain = (
        gaussian([transform, transform], [6.0, 6.0], spread.tolist()).covariance_matrix
        for transform in (Integer(0), Positive())
    )
    assert_close(counts, plain, rtol=1e-5, atol=0)


def test_nothing_is_ever_nan():
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    for size in (0.1, 3.0, 100.0, 1e4):
        for spread in (0.3, 3.0, 8.0):
            factors = torch.cat([spread * normal(6, 2, 5), spread * normal(6, 2, 10)], -1)
            base = GaussianMixture(3 * normal(6, 2), size * normal(6, 2, 5), factors)
            m = TransformedMixture(base, MIXED)
            y = m.sample(generator=generator)
            for d, transform in enumerate(MIXED):
                assert transform.contains(y[:, d]).all()
            for answer in (m.log_prob(y), m.mean, m.variance, m.covariance_matrix):
                assert not answer.isnan().any()
            assert (m.variance >= 0).all()
            for dims in ([3], [4], [3, 4], [0, 1, 4]):
                free = [d for d in range(5) if d not in dims]
                given = m.condition({d: y[:, d] for d in dims})
                assert not given.log_prob(y[:, free]).isnan().any()


def test_narrowed_components_keep_their_means_and_correlations():
    torch.manual_seed(0)
    base = GaussianMixture(torch.zeros(5, 2), torch.randn(5, 2, 3), torch.randn(5, 2, 6))
    mixture = TransformedMixture(base.to(torch.float64), [Positive(), Real(), Positive()])
    before = mixture.base.covariance_matrices
    limits = torch.tensor([0.5, math.inf, 1e9], dtype=torch.float64)
    after = mixture.narrowed(limits).base.covariance_matrices
    deviations = before.diagonal(dim1=-2, dim2=-1).sqrt()
    found = after.diagonal(dim1=-2, dim2=-1).sqrt()
    assert_close(found, torch.minimum(deviations, limits), rtol=1e-9, atol=1e-12)
    for matrix, spread in ((before, deviations), (after, found)):
        matrix /= spread.unsqueeze(-1) * spread.unsqueeze(-2)
    assert_close(after, before, rtol=1e-8, atol=1e-9)
    assert torch.equal(mixture.narrowed(limits).base.means, mixture.base.means)
