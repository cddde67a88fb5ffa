"""Mixtures seen through maps, against scipy, sums over cells and numerical integration."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from reference import dense, random_parameters
from scipy import integrate, special, stats
from torch.testing import assert_close

from condens import GaussianMixture, TransformedMixture
from condens.errors import ArgumentError, DimensionError, NoClosedFormError, NotFiniteError
from condens.maps import Integer, Interval, Positive, Real

INF, NAN = float("inf"), float("nan")
KINDS = {
    "real": Real(),
    "positive": Positive(-1.0),
    "interval": Interval(-2.0, 3.0),
    "integer": Integer(),
    "count": Integer(0),
}
MIXED = [Real(), Positive(), Interval(0.0, 10.0), Integer(), Integer(0)]


def reals(*values):
    return torch.tensor(values, dtype=torch.float64)


def mixture_of(maps, components=3, batch=(), seed=0, spread=1.0, tight=0.0, **options):
    """Return a mixture with dense covariances; e^tight divides all their deviations."""
    logits, means, factors = random_parameters(
        batch, components, len(maps), seed=seed, spread=spread
    )
    factors = torch.cat(
        [factors[..., : len(maps)] + tight, factors[..., len(maps) :] * math.exp(tight)], -1
    )
    return TransformedMixture(GaussianMixture(logits, means, factors, **options), maps)


def gaussian(maps, mean, covariance):
    base = GaussianMixture.from_covariances(
        torch.ones(1, dtype=torch.float64),
        torch.tensor([mean], dtype=torch.float64),
        torch.tensor([covariance], dtype=torch.float64),
    )
    return TransformedMixture(base, maps)


# Real dimensions only: the mixture itself.


def test_real_maps_change_nothing():
    for dtype in (torch.float32, torch.float64):
        base = GaussianMixture(*random_parameters((4,), 3, 2), names=["a", "b"]).to(dtype)
        same = TransformedMixture(base, [Real(), Real()])
        value = torch.randn(4, 2, dtype=dtype)
        for ours, theirs in (
            (same.log_prob(value), base.log_prob(value)),
            (same.responsibilities(value), base.responsibilities(value)),
            (same.marginal("b").cdf(value[:, 1:]), base.marginal("b").cdf(value[:, 1:])),
            (same.marginal("a").icdf(0.3), base.marginal("a").icdf(0.3)),
            (same.marginal("a").interval(0.9)[1], base.marginal("a").interval(0.9)[1]),
            (same.condition({"a": 0.2}).base.means, base.condition({"a": 0.2}).means),
            (same.marginal("a").crps(value[:, :1]).value, base.marginal("a").crps(value[:, :1])),
        ):
            assert torch.equal(ours, theirs)
        for name in ("mean", "variance", "stddev", "covariance_matrix"):
            assert_close(getattr(same, name), getattr(base, name))
        draws = [m.sample((5,), generator=torch.Generator().manual_seed(3)) for m in (same, base)]
        assert torch.equal(*draws)


# Densities.


def test_one_component_is_scipys_lognormal():
    m = gaussian([Positive(2.0)], [0.3], [[0.49]])
    y = torch.linspace(2.01, 9, 40, dtype=torch.float64)
    twin = stats.lognorm(0.7, loc=2.0, scale=np.exp(0.3))
    assert_close(m.log_prob(y[:, None]), reals(*twin.logpdf(y)), rtol=1e-11, atol=1e-11)
    assert_close(m.cdf(y[:, None]), reals(*twin.cdf(y)), rtol=1e-11, atol=1e-13)
    assert_close(m.mean, reals(twin.mean()), rtol=1e-12, atol=0)
    assert_close(m.variance, reals(twin.var()), rtol=1e-12, atol=0)


def test_one_component_is_the_logit_normal():
    m = gaussian([Interval(-1.0, 3.0)], [0.3], [[0.49]])
    y = torch.linspace(-0.99, 2.99, 40, dtype=torch.float64)
    share = (y.numpy() + 1) / 4
    density = stats.norm(0.3, 0.7).pdf(special.logit(share)) / (share * (1 - share)) / 4
    assert_close(m.log_prob(y[:, None]), reals(*np.log(density)), rtol=1e-11, atol=1e-11)


def test_continuous_density_integrates_to_one():
    m = mixture_of([Positive(), Interval(0.0, 2.0)])

    def density(b, a):
        return float(m.log_prob(reals(a, b)).exp())

    # The grid is even in the real coordinates, where the density has no corners.
    x = np.linspace(-25, 25, 501)
    first, second = m.maps[0].from_real(reals(*x)), m.maps[1].from_real(reals(*x))
    grid = torch.cartesian_prod(first, second)
    slopes = m.maps[0].log_slope(grid[:, 0]) + m.maps[1].log_slope(grid[:, 1])
    total = (m.log_prob(grid) - slopes).exp().sum() * 0.1**2
    assert_close(total, torch.ones_like(total), rtol=1e-12, atol=0)
    part = integrate.dblquad(density, 0.5, 1.5, 0.2, 0.9, epsabs=1e-10)[0]
    draws = m.sample((200_000,), generator=torch.Generator().manual_seed(0))
    inside = (draws > reals(0.5, 0.2)) & (draws < reals(1.5, 0.9))
    error = (part * (1 - part) / len(draws)) ** 0.5
    assert abs(float(inside.all(-1).double().mean()) - part) < 4 * error


@pytest.mark.parametrize("own", [Integer(), Integer(0), Integer(-4)], ids=repr)
def test_probabilities_of_whole_numbers(own):
    m = mixture_of([own], spread=0.7, tight=0.7)
    y = torch.arange(own.lower if own.lower is not None else -40, 4000, dtype=torch.float64)
    probability = m.log_prob(y[:, None]).exp()
    assert_close(probability.sum(), reals(1.0)[0], rtol=1e-12, atol=0)
    weights, means, covariances = dense(*m.base.parameters)
    for n in y[:6]:
        low, high = (end.numpy() for end in own.cell(n))
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
    """From five whole numbers on a lattice integrates; it is exact without correlation."""
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
    """e^X below one almost surely: zero has all the mass, one a probability of 10⁻³⁰⁰."""
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


# Marginals and conditionals.

SUBSETS = [list(s) for size in range(1, 5) for s in combinations(range(5), size)]


@pytest.mark.parametrize("dims", SUBSETS, ids=str)
def test_joint_is_marginal_times_conditional(dims):
    m = mixture_of(MIXED, components=2, spread=0.6)
    y = m.sample((4,), generator=torch.Generator().manual_seed(len(dims)))
    free = [d for d in range(5) if d not in dims]
    given = m.condition({d: y[:, d] for d in dims})
    assert given.batch_shape == (4,)
    assert given.maps == tuple(MIXED[d] for d in free)
    total = m.marginal(dims).log_prob(y[:, dims]) + given.log_prob(y[:, free])
    continuous = not {3, 4} & set(dims)
    assert_close(total, m.log_prob(y), rtol=0, atol=1e-9 if continuous else 1e-7)


def test_condition_on_a_count_against_integration():
    m = gaussian([Real(), Integer(0)], [0.3, 0.5], [[1.0, 0.8], [0.8, 1.3]])
    for n in (0, 1, 5):
        low, high = (float(end) for end in Integer(0).cell(reals(n)))
        marginal, slope = stats.norm(0.5, math.sqrt(1.3)), 0.8 / 1.3
        own = math.sqrt(1.0 - 0.8 * slope)

        def joint(x, a, marginal=marginal, slope=slope, own=own):
            return marginal.pdf(x) * stats.norm.pdf(a, 0.3 + slope * (x - 0.5), own)

        mass = marginal.cdf(high) - marginal.cdf(low)
        given = m.condition({1: n})
        for a in (-1.5, 0.0, 1.2):
            exact = integrate.quad(joint, max(low, -9.0), high, args=(a,), epsabs=1e-13)[0] / mass
            assert_close(float(given.log_prob(reals(a)).exp()), exact, rtol=1e-8, atol=0)


@pytest.mark.parametrize("correlation", [0.9, 0.99])
def test_condition_on_whole_numbers_with_strong_correlation(correlation):
    for scale in (0.3, 1.0, 10.0):
        cross = correlation * scale
        for own in (Integer(), Integer(0)):
            m = gaussian([Real(), own], [0.0, 0.3], [[1.0, cross], [cross, scale**2]])
            x = torch.linspace(-2, 2, 21, dtype=torch.float64)[:, None]
            for n in (0.0, 2.0):
                joint = m.log_prob(torch.cat([x, torch.full_like(x, n)], -1))
                exact = joint - m.marginal(1).log_prob(reals(n))
                likely = exact > -12
                ours = m.condition({1: n}).log_prob(x)
                assert_close(ours[likely], exact[likely], rtol=0, atol=1e-8)


def test_condition_far_from_every_component():
    m = mixture_of([Real(), Integer()])
    for n in (60, -60, 10_000):
        given = m.condition({1: n})
        assert given.base.means.isfinite().all()
        assert_close(given.weights.sum(), reals(1.0)[0])


def test_names_and_order():
    m = mixture_of([Real(), Positive(), Integer(0)], names=["a", "b", "c"])
    kept = m.marginal(["c", "a"])
    assert kept.names == ("c", "a")
    assert kept.maps == (Integer(0), Real())
    assert m.condition({"b": 1.0}).names == ("a", "c")


# Quantiles.


@pytest.mark.parametrize("own", KINDS.values(), ids=KINDS)
def test_quantiles(own):
    m = mixture_of([own], batch=(3,), spread=0.8)
    p = torch.tensor([1e-12, 0.01, 0.2, 0.5, 0.9, 0.999], dtype=torch.float64)[:, None]
    y = m.icdf(p)
    if own.discrete:
        assert torch.equal(y, y.floor())
        assert (m.cdf(y) >= p).all()
        assert (m.cdf(y - 1) < p).all()
    else:
        assert_close(m.cdf(y), p.expand(6, 3), rtol=1e-8, atol=0)
    low, high = m.interval(0.8)
    assert_close(low, m.icdf(0.1), rtol=1e-10, atol=1e-10)
    assert_close(high, m.icdf(0.9), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("own", [Integer(), Integer(0)], ids=repr)
def test_quantiles_at_the_end_of_a_cell(own):
    """Asked for the very probability that a cell ends with, the cell answers."""
    for dtype in (torch.float32, torch.float64):
        m = mixture_of([own], spread=0.8).to(dtype)
        y = torch.arange(0, 5, dtype=torch.float64)[:, None]
        wide = m.to(torch.float64)
        assert torch.equal(wide.icdf(wide.cdf(y)), y)
        assert torch.equal(m.icdf(wide.cdf(y)), y.to(dtype))


def test_quantiles_at_zero_and_one():
    for own, ends in ((Positive(2.0), (2.0, INF)), (Interval(0.0, 3.0), (0.0, 3.0)),
                      (Integer(0), (0.0, INF)), (Integer(), (-INF, INF))):  # fmt: skip
        m = mixture_of([own])
        assert m.icdf(reals(0.0, 1.0)).flatten().tolist() == list(ends)


# Samples.


@pytest.mark.parametrize("own", KINDS.values(), ids=KINDS)
def test_samples_match_the_cdf(own):
    m = mixture_of([own])
    draws = m.sample((20_000,), generator=torch.Generator().manual_seed(5))
    assert own.contains(draws).all()
    levels = draws.unique()
    seen = (
        (draws.flatten().sort().values[:, None] <= levels).double().mean(0)
        if own.discrete
        else (torch.arange(1, len(draws) + 1, dtype=torch.float64) / len(draws))
    )
    at = levels if own.discrete else draws.flatten().sort().values
    # Kolmogorov–Smirnov at 0.1 %; conservative for whole numbers.
    assert (m.cdf(at[:, None]) - seen).abs().max() < 1.95 / len(draws) ** 0.5


def test_samples_stay_inside_where_rounding_would_not():
    base = GaussianMixture(torch.zeros(1), torch.tensor([[-200.0, 60.0, 200.0]]), torch.zeros(1, 3))
    m = TransformedMixture(base, [Positive(5.0), Interval(0.0, 1.0), Positive()])
    draws = m.sample((100,))
    for own, column in zip(m.maps, draws.unbind(-1), strict=True):
        assert own.contains(column).all()


def test_pathwise_gradients():
    inputs = [p.requires_grad_() for p in random_parameters((), 2, 2)]

    def draw(*parameters):
        base = GaussianMixture(*parameters, validate_args=False)
        m = TransformedMixture(base, [Positive(), Interval(0.0, 1.0)])
        return m.rsample((2,), generator=torch.Generator().manual_seed(1))

    value = draw(*inputs)
    (slope,) = torch.autograd.grad(value[..., 0].log().sum(), inputs[1])
    base = GaussianMixture(*inputs)
    plain = base.rsample((2,), generator=torch.Generator().manual_seed(1))
    (twin,) = torch.autograd.grad(plain[..., 0].sum(), inputs[1])
    assert_close(slope, twin, rtol=1e-10, atol=1e-12)
    with pytest.raises(NoClosedFormError, match=r"whole numbers in dimension\(s\) \[1\]"):
        mixture_of([Real(), Integer()]).rsample()
    assert not mixture_of([Real(), Integer()]).has_rsample
    assert mixture_of([Real(), Positive()]).has_rsample


# Moments.

FUNCTIONS = {
    "real": lambda x: x,
    "positive": lambda x: np.exp(x) - 1.0,
    "interval": lambda x: -2.0 + 5.0 * special.expit(x),
}


def brute_force(kinds, mean, covariance):
    """Return mean and covariance of two mapped Gaussians: x₁ on a grid, and x₂ given x₁."""
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
    m = mixture_of([KINDS[kind] for kind in kinds], components=2, spread=0.5, seed=4, tight=1.2)
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
    m = mixture_of([KINDS[other], KINDS[whole]], components=2, spread=0.5, seed=4, tight=0.7)
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
    for own in (Positive(), Integer(0)):
        m = gaussian([own, Real(), Interval(0.0, 1.0)], [500.0, 0.0, 0.0],
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


# Scores and estimates.


def test_crps_of_a_lognormal():
    m = gaussian([Positive()], [0.2], [[0.25]])
    twin = stats.lognorm(0.5, scale=np.exp(0.2))
    y = 1.7
    exact = integrate.quad(lambda t: twin.cdf(t) ** 2, 0, y)[0]
    exact += integrate.quad(lambda t: twin.sf(t) ** 2, y, np.inf)[0]
    value, error = m.crps(reals(y), n_samples=200_000, generator=torch.Generator().manual_seed(0))
    assert 0 < error < 0.01
    assert abs(value - exact) < 4 * error


def test_entropy_and_highest_density():
    m = gaussian([Positive()], [0.2], [[0.25]])
    value, error = m.entropy(n_samples=100_000, generator=torch.Generator().manual_seed(0))
    assert abs(value - stats.lognorm(0.5, scale=np.exp(0.2)).entropy()) < 4 * error
    counts = gaussian([Integer(0)], [1.0], [[0.25]])
    y = torch.arange(0, 60).double()[:, None]
    log_p = counts.log_prob(y)
    value, error = counts.entropy(n_samples=100_000, generator=torch.Generator().manual_seed(0))
    assert abs(value + (log_p.exp() * log_p).sum()) < 4 * error
    threshold = m.hpd_threshold(0.8, n_samples=100_000).value
    inside = m.log_prob(m.sample((100_000,))) >= threshold
    assert abs(inside.double().mean() - 0.8) < 0.008
    assert m.hpd_contains(reals(1.0), 0.8)
    assert not m.hpd_contains(reals(20.0), 0.8)


def test_energy_score_of_mixed_targets():
    m = mixture_of(MIXED)
    value, error = m.energy_score(m.sample(), n_samples=1000)
    assert value.isfinite()
    assert error > 0


# Gradients.


@pytest.mark.parametrize(
    ("maps", "value"),
    [
        ([Positive(), Interval(0.0, 2.0)], [0.7, 1.9]),
        ([Real(), Integer()], [0.7, 1.0]),
        ([Real(), Integer(0)], [0.7, 0.0]),
        ([Integer(0), Positive()], [3.0, 0.2]),
        ([Integer()], [40.0]),
        ([Integer(), Integer(0)], [1.0, 0.0]),
    ],
    ids=str,
)
def test_gradients_of_log_prob(maps, value):
    inputs = [p.requires_grad_() for p in random_parameters((2,), 2, len(maps))]

    def log_prob(*parameters):
        base = GaussianMixture(*parameters, validate_args=False)
        return TransformedMixture(base, maps).log_prob(reals(*value))

    assert torch.autograd.gradcheck(log_prob, inputs)


def test_gradients_outside_the_support_are_zero():
    inputs = [p.requires_grad_() for p in random_parameters((), 2, 3)]
    m = TransformedMixture(GaussianMixture(*inputs), [Positive(), Interval(0.0, 1.0), Integer(0)])
    value = reals([-1.0, 0.5, 1.0], [1.0, 2.0, 1.0], [1.0, 0.5, -1.0]).requires_grad_()
    log_prob = m.log_prob(value)
    assert (log_prob == -INF).all()
    for gradient in torch.autograd.grad(log_prob.exp().sum(), [*inputs, value]):
        assert (gradient == 0).all()


# The batch.


def test_batches():
    m = mixture_of(MIXED, batch=(4,))
    y = m.sample((3,))
    assert y.shape == (3, 4, 5)
    together = m.log_prob(y)
    for i, one in enumerate(m):
        assert_close(one.log_prob(y[:, i]), together[:, i], rtol=1e-10, atol=1e-10)
    assert len(m) == 4
    assert m[1:3].batch_shape == (2,)
    assert m[0].expand((2, 3)).batch_shape == (2, 3)
    assert m.to(torch.float32).dtype == torch.float32
    assert m.to(torch.float32).log_prob(y).dtype == torch.float32
    assert "maps=(Real(), Positive(lower=0.0)" in repr(m)
    assert m.mean.shape == (4, 5)
    assert m.covariance_matrix.shape == (4, 5, 5)


def test_empty_batches():
    m = mixture_of([Real(), Integer(), Integer(0)], batch=(0,))
    assert m.log_prob(torch.zeros(0, 3)).shape == (0,)
    assert m.condition({1: 2}).batch_shape == (0,)
    assert m.covariance_matrix.shape == (0, 3, 3)
    assert m.sample().shape == (0, 3)


def test_ensembles():
    first, second = mixture_of(MIXED, seed=1), mixture_of(MIXED, components=2, seed=2)
    both = TransformedMixture.ensemble([first, second], [1.0, 3.0])
    y = first.sample((5,))
    exact = torch.logaddexp(first.log_prob(y) + math.log(0.25), second.log_prob(y) + math.log(0.75))
    assert_close(both.log_prob(y), exact, rtol=1e-9, atol=1e-9)
    with pytest.raises(ArgumentError, match=r"members has maps .* the first member has"):
        TransformedMixture.ensemble([first, mixture_of([Real()] * 5)])
    with pytest.raises(ArgumentError, match="at least one TransformedMixture"):
        TransformedMixture.ensemble([])


# Errors.


def test_bad_arguments():
    m = mixture_of([Positive(), Integer(0)], names=["price", "rooms"])
    with pytest.raises(ArgumentError, match=r"values\['rooms'\] has 2.5, but whole numbers from 0"):
        m.condition({"rooms": 2.5})
    with pytest.raises(
        ArgumentError, match=r"values\['price'\] has -1, but finite numbers above 0"
    ):
        m.condition({"price": -1.0})
    with pytest.raises(NotFiniteError, match="value has NaN"):
        m.log_prob(reals(NAN, 1.0))
    with pytest.raises(DimensionError, match=r"cdf needs exactly one. Take marginal\(dim\) first"):
        m.cdf(reals(1.0, 1.0))
    with pytest.raises(ArgumentError, match=r"maps is .*, but 2 map\(s\) were expected"):
        TransformedMixture(m.base, [Real()])
    with pytest.raises(ArgumentError, match=r"maps is 'ab'"):
        TransformedMixture(m.base, "ab")
    with pytest.raises(ArgumentError, match="mixture is int, but a GaussianMixture"):
        TransformedMixture(3, [Real()])
    assert not hasattr(m, "affine")
    assert not hasattr(m, "multiply")
