"""Moments of transformed mixtures, against numerical integration and sums over cells."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from helpers.transformed import KINDS, MIXED, gaussian, mixture_of, reals
from scipy import special, stats
from torch.testing import assert_close

from condens import GaussianMixture, TransformedMixture
from condens.functional import pushforward
from condens.transforms import Integer, Interval, Positive, Real

INF, NAN = float("inf"), float("nan")


FUNCTIONS = {
    "real": lambda x: x,
    "positive": lambda x: np.exp(x) - 1.0,
    "probit": lambda x: -2.0 + 5.0 * special.ndtr(x),
    "logit": lambda x: -2.0 + 5.0 * special.expit(x),
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


@pytest.mark.parametrize("other", ["real", "positive", "probit", "logit"])
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
@pytest.mark.parametrize("link", ["probit", "logit"])
def test_moments_of_an_interval(mean, deviation, link):
    m = gaussian([Interval(0.0, 1.0, link)], [mean], [[deviation**2]])
    share = special.ndtr if link == "probit" else special.expit
    # Panels fine enough for the step of the logistic function at any deviation.
    edges = np.unique(
        np.concatenate([np.linspace(-40, 40, 801), mean + deviation * np.linspace(-9, 9, 181)])
    )
    x, w = np.polynomial.legendre.leggauss(12)
    half = 0.5 * np.diff(edges)[:, None]
    x = edges[:-1, None] + half * (x + 1)
    w = half * w * stats.norm.pdf(x, mean, deviation)
    first = (w * share(x)).sum()
    second = (w * (share(x) - first) ** 2).sum()
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

    bounded = [Interval(0.0, 1.0), Interval(-5.0, 0.0), Interval(-5.0, 0.0, link="logit")]
    cases = itertools.product((0.1, 3.0, 100.0, 1e4), (0.3, 3.0, 8.0))
    for (size, spread), transforms in zip(
        cases, itertools.cycle([MIXED, bounded + MIXED[3:]]), strict=False
    ):
        factors = torch.cat([spread * normal(6, 2, 5), spread * normal(6, 2, 10)], -1)
        base = GaussianMixture(3 * normal(6, 2), size * normal(6, 2, 5), factors)
        m = TransformedMixture(base, transforms)
        y = m.sample(generator=generator)
        for d, transform in enumerate(transforms):
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


# Bounded numbers by the probit: closed forms.


def bivariate(first, second, correlation):
    """Return Φ₂(h, k; ρ) − Φ(h) Φ(k) with many digits, as the integral of its derivative in ρ."""
    with mpmath.workdps(50):
        h, k, rho = (mpmath.mpf(part) for part in (first, second, correlation))

        def density(r):
            energy = (h**2 - 2 * r * h * k + k**2) / (2 * (1 - r**2))
            return mpmath.exp(-energy) / (2 * mpmath.pi * mpmath.sqrt(1 - r**2))

        steps = [rho * (1 - mpmath.mpf(2) ** -i) for i in range(40)] + [rho]
        return mpmath.quad(density, steps)


@pytest.mark.parametrize(
    ("mean", "deviation"),
    [(0.0, 1.0), (0.3, 1e-9), (-12.0, 0.01), (30.0, 0.5), (-45.0, 1.2), (3.0, 40.0), (0.2, 1e5)],
)
def test_variance_of_the_probit_has_all_digits(mean, deviation):
    """However narrow the density is, and however near a bound."""
    with mpmath.workdps(50):
        s = mpmath.mpf(deviation) ** 2
        h = mpmath.mpf(mean) / mpmath.sqrt(1 + s)
        exact = 25 * bivariate(h, h, s / (1 + s))
    m = gaussian([Interval(-5.0, 0.0)], [mean], [[deviation**2]])
    assert float(m.variance) == pytest.approx(float(exact), rel=1e-12)
    with mpmath.workdps(50):
        exact = float(-5 * mpmath.erfc(h / mpmath.sqrt(2)) / 2)
    assert float(m.mean) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("correlation", [1e-9, 0.4, -0.4, 0.95, -0.999, 0.9999999])
@pytest.mark.parametrize(
    ("first", "second"),
    [((0.3, 0.5), (-1.0, 2.0)), ((4.0, 30.0), (5.0, 31.0)), ((-9.0, 1.0), (-8.0, 0.7))],
)
def test_covariance_of_two_probits_has_all_digits(first, second, correlation):
    cross = correlation * first[1] * second[1]
    spread = [[first[1] ** 2, cross], [cross, second[1] ** 2]]
    m = gaussian([Interval(0.0, 1.0), Interval(0.0, 4.0)], [first[0], second[0]], spread)
    # Of the component as it is: its factors were rounded.
    mean, spread = m.base.means[0], m.base.covariance_matrices[0]
    with mpmath.workdps(50):
        scales = [mpmath.sqrt(1 + mpmath.mpf(float(s))) for s in spread.diagonal()]
        places = [mpmath.mpf(float(x)) / scale for x, scale in zip(mean, scales, strict=True)]
        rho = mpmath.mpf(float(spread[0, 1])) / (scales[0] * scales[1])
        exact = float(4 * bivariate(*places, rho))
    found = float(m.covariance_matrix[0, 1])
    size = float((m.variance[0] * m.variance[1]).sqrt())
    assert found == pytest.approx(exact, rel=1e-10, abs=1e-12 * size)


def test_gradients_of_the_moments_of_two_probits():
    def moments(mean, root):
        spread = root @ root.mT + 0.1 * torch.eye(2).double()
        one, two = mean, spread.diagonal().sqrt()
        variance = pushforward.probit_variance(one, two)
        cross = pushforward.probit_covariance(one[0], two[0], one[1], two[1], spread[0, 1])
        return pushforward.probit_mean(one, two), variance, cross

    inputs = reals(0.3, -0.8).requires_grad_(), reals([0.9, 0.2], [0.7, 1.3]).requires_grad_()
    assert torch.autograd.gradcheck(moments, inputs)
    assert torch.autograd.gradgradcheck(moments, inputs)
