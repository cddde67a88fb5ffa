"""`probability` of boxes, exact or with an honest error."""

import itertools
import math

import numpy as np
import pytest
import torch
from helpers.reference import dense, random_low_rank, random_parameters
from helpers.transformed import KINDS, gaussian, mixture_of, reals
from scipy import integrate, stats
from torch.testing import assert_close

from condens import GaussianMixture, LowRankMixture
from condens.distributions import base
from condens.errors import ArgumentError, DimensionError, NotFiniteError, ShapeError
from condens.transforms import Integer, Interval, Positive, Real

INF = math.inf


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def equicorrelated(dimensions, rho):
    covariance = np.full((dimensions, dimensions), rho) + (1 - rho) * np.eye(dimensions)
    return gaussian([Real()] * dimensions, [0.0] * dimensions, covariance.tolist()).base


def within(found, expected, errors=4.5):
    """Compare an estimate with the truth, by its own error."""
    return abs(float(found.value) - expected) <= errors * float(found.standard_error)


@pytest.mark.parametrize("dimensions", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("components", [1, 3])
def test_by_scipy(dimensions, components):
    m = GaussianMixture(*random_parameters((), components, dimensions))
    random, accuracy = np.random.default_rng(dimensions), 1e-9 if dimensions < 3 else 1e-4
    for seed in range(3 if dimensions < 3 else 2):
        middle = m.sample(generator=seeded(seed)).numpy()
        below, above = random.exponential(1.5, (2, dimensions))
        lower = np.where(random.random(dimensions) < 0.2, -INF, middle - below)
        upper = np.where(random.random(dimensions) < 0.2, INF, middle + above)
        expected = sum(
            weight
            * stats.multivariate_normal(
                mean, covariance, abseps=1e-2 * accuracy, releps=accuracy
            ).cdf(upper, lower_limit=lower)
            for weight, mean, covariance in zip(*dense(*m.parameters), strict=True)
        )
        found = m.probability(lower, upper, generator=seeded())
        assert isinstance(found.value, torch.Tensor)
        if dimensions <= 3:
            # From three dimensions on scipy has errors of its own.
            tolerance = 1e-9 if dimensions < 3 else 1e-3
            assert found.standard_error == 0
            assert_close(
                float(found.value),
                expected,
                rtol=tolerance,
                atol=5e-6 if dimensions == 3 else 1e-13,
            )
        else:
            assert 0 <= found.standard_error < 3e-3 * found.value
            slack = 4.5 * float(found.standard_error) + 1e-3 * expected + 5e-6
            assert abs(float(found.value) - expected) < slack


@pytest.mark.parametrize("dimensions", [2, 3, 4, 5, 8])
def test_orthants_with_a_closed_form(dimensions):
    """P(X > 0) = 1/(D+1) at ρ = ½; in three dimensions 1/8 + Σ asin ρ/4π."""
    found = equicorrelated(dimensions, 0.5).probability(0.0, generator=seeded())
    expected = 1 / (dimensions + 1)
    if dimensions <= 3:
        assert_close(float(found.value), expected, rtol=1e-9, atol=0)
        assert found.standard_error == 0
    else:
        assert 0 < found.standard_error < 1e-3 * expected
        assert within(found, expected)
    rho = [[1.0, 0.9, -0.3], [0.9, 1.0, -0.5], [-0.3, -0.5, 1.0]]
    three = gaussian([Real()] * 3, [0.0] * 3, rho).base
    angles = math.asin(0.9) + math.asin(-0.3) + math.asin(-0.5)
    expected = 1 / 8 + angles / (4 * math.pi)
    for name, end in (("lower", 0.0), ("upper", 0.0)):
        assert_close(float(three.probability(**{name: end}).value), expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("rho", [0.999, 0.999999])
def test_extreme_correlations(rho):
    """Exact, or with an error that says otherwise."""
    expected = 1 / 8 + 3 * math.asin(rho) / (4 * math.pi)
    found = equicorrelated(3, rho).probability(0.0, generator=seeded())
    assert abs(float(found.value) - expected) < 5 * float(found.standard_error) + 1e-9


def test_the_error_is_honest():
    """Over 60 seeds the deviation in errors has Student's spread: 1.07 for fifteen degrees."""
    m, expected = equicorrelated(4, 0.5), 0.2
    found = [m.probability(0.0, n_samples=1000, generator=seeded(s)) for s in range(60)]
    z = np.array([float((one.value - expected) / one.standard_error) for one in found])
    assert 0.75 < z.std() < 1.45
    assert abs(z.mean()) < 4 * z.std() / math.sqrt(60)
    more = m.probability(0.0, n_samples=64_000, generator=seeded())
    assert more.standard_error < 0.3 * np.mean([float(one.standard_error) for one in found])


@pytest.mark.parametrize("kind", ["full", "diagonal", "low_rank"])
def test_the_parts_of_space_sum_to_one(kind):
    if kind == "low_rank":
        m = LowRankMixture(*random_low_rank((), 3, 3, 1))
    else:
        m = GaussianMixture(*random_parameters((), 3, 3, covariance=kind))
    cuts = [-INF, -0.7, 1.1, INF]
    boxes = torch.tensor(list(itertools.product(range(3), repeat=3)))
    cuts = torch.tensor(cuts, dtype=torch.float64)
    found = m.probability(cuts[boxes], cuts[boxes + 1])
    assert_close(float(found.value.sum()), 1.0, rtol=1e-9, atol=0)
    assert (found.standard_error == 0).all()
    assert m.probability().value == 1
    assert m.probability(-INF, INF).standard_error == 0


def test_diagonal_covariances_are_products_in_any_dimension():
    m = GaussianMixture(*random_parameters((), 1, 7, covariance="diagonal"))
    lower, upper = m.mean - 1.5, m.mean + torch.arange(7)
    expected = stats.norm.cdf(upper, m.mean, m.stddev) - stats.norm.cdf(lower, m.mean, m.stddev)
    found = m.probability(lower, upper)
    assert_close(float(found.value), float(expected.prod()), rtol=1e-10, atol=0)
    assert found.standard_error == 0


def test_tiny_probabilities_keep_their_digits():
    line = gaussian([Real()], [0.0], [[1.0]]).base
    assert_close(float(line.probability(30.0).value), stats.norm.sf(30.0), rtol=1e-9, atol=0)
    narrow = line.probability(30.0, 30.0 + 1e-9).value
    assert_close(float(narrow), stats.norm.pdf(30.0) * 1e-9, rtol=1e-6, atol=0)
    # x = √ρ t + √(1 − ρ) ε: one integral, of any dimension.
    rho = 0.4
    for dimensions, exact in ((3, True), (5, False)):

        def density(t, dimensions=dimensions):
            inner = stats.norm.logsf((8 - math.sqrt(rho) * t) / math.sqrt(1 - rho))
            return math.exp(dimensions * inner + stats.norm.logpdf(t))

        expected = integrate.quad(density, 4, 16, epsabs=0, epsrel=1e-10)[0]
        assert expected < 1e-25
        found = equicorrelated(dimensions, rho).probability(8.0, generator=seeded())
        if exact:
            assert_close(float(found.value), expected, rtol=1e-7, atol=0)
        assert (
            abs(float(found.value) - expected) < 4.5 * float(found.standard_error) + 1e-7 * expected
        )
        assert found.standard_error < 0.05 * found.value


@pytest.mark.parametrize("kind", KINDS)
def test_one_dimension_is_a_difference_of_distribution_functions(kind):
    m = mixture_of([KINDS[kind]])
    lower, upper = reals(-0.5), reals(2.0)
    found = m.probability(lower, upper)
    below = m.cdf(lower.ceil() - 1 if KINDS[kind].discrete else lower)
    assert_close(found.value, m.cdf(upper) - below, rtol=1e-10, atol=1e-14)
    assert found.standard_error == 0


@pytest.mark.parametrize("lower", [None, 0])
def test_whole_numbers_by_sums_of_probabilities(lower):
    """Ends belong to the box; ends between whole numbers are rounded inwards."""
    m = mixture_of([Integer(lower), Integer(lower)], n_components=2, tight=0.3)
    a, b = torch.tensor([0.0, 1.0]), torch.tensor([3.0, 2.0])
    values = torch.cartesian_prod(torch.arange(0.0, 4.0), torch.arange(1.0, 3.0)).double()
    expected = m.log_prob(values).exp().sum()
    assert_close(m.probability(a, b).value, expected, rtol=1e-8, atol=0)
    assert_close(m.probability(a - 0.5, b + 0.5).value, expected, rtol=1e-8, atol=0)
    assert m.probability([0.2, 1.0], [0.8, 2.0]).value == 0
    assert_close(m.probability(a, a).value, m.log_prob(a).exp(), rtol=1e-8, atol=0)
    if lower == 0:
        assert m.probability(-5.0, -1.0).value == 0
        assert_close(m.probability(-5.0, b).value, m.probability(0.0, b).value)


def test_a_large_whole_number_has_its_own_cell():
    """Beyond 10⁸ the real ends of a cell have lost its width."""
    m = gaussian([Integer(0)], [21.0], [[1.0]])
    assert_close(m.probability(1e9, 1e9).value, m.log_prob([1e9]).exp(), rtol=1e-9, atol=0)


def test_mixed_kinds_by_quadrature():
    m = mixture_of([Integer(), Real()], n_components=2)
    expected = sum(
        integrate.quad(lambda t, k=k: math.exp(m.log_prob(reals(k, t))), -0.5, 1.5)[0]
        for k in (0.0, 1.0, 2.0)
    )
    found = m.probability([0.0, -0.5], [2.0, 1.5])
    assert_close(float(found.value), expected, rtol=1e-8, atol=0)


def test_transformed_targets_are_boxes_of_the_real_line():
    transforms = [Positive(), Interval(0.0, 10.0), Real()]
    m = mixture_of(transforms, batch=(4,))
    lower, upper = reals(0.2, 1.0, -1.0), reals(3.0, 6.0, 2.0)
    ends = [
        torch.stack([t.to_real(end[d]) for d, t in enumerate(transforms)]) for end in (lower, upper)
    ]
    expected = m.base.probability(*ends)
    assert_close(m.probability(lower, upper).value, expected.value, rtol=1e-12, atol=0)
    outside = m.probability([-5.0, -3.0, -INF], [3.0, 20.0, INF])
    assert_close(outside.value, m.marginal(0).cdf(reals(3.0)), rtol=1e-9, atol=0)


@pytest.mark.parametrize("dimensions", [2, 5])
def test_low_rank_as_full(dimensions):
    m = LowRankMixture(*random_low_rank((), 2, dimensions, 1))
    one, other = (each.probability(-1.0, 2.5, generator=seeded()) for each in (m, m.to_full()))
    assert_close(one.value, other.value, rtol=1e-9, atol=0)
    assert_close(one.standard_error, other.standard_error, rtol=1e-6, atol=1e-300)


def test_names_numbers_and_batches(monkeypatch):
    m = GaussianMixture(*random_parameters((3,), 2, 3), names=["a", "b", "c"])
    some = m.probability({"b": -1.0}, {"b": 1.0, "c": 2.0})
    lower, upper = torch.tensor([-INF, -1.0, -INF]), torch.tensor([INF, 1.0, 2.0])
    assert_close(some.value, m.probability(lower, upper).value, rtol=0, atol=0)
    assert_close(some.value, m.marginal(["b", "c"]).probability([-1.0, -INF], [1.0, 2.0]).value)
    assert_close(m.probability({"a": 0.0}).value, 1 - m.marginal("a").cdf(torch.zeros(3)))
    assert_close(m.probability({}, {0: 0.0}).value, m.marginal("a").cdf(torch.zeros(3)))
    ends = torch.randn(5, 3, dtype=torch.float64, generator=seeded())
    many = m.probability({"a": ends}, {"c": reals(0.5)}).value
    assert many.shape == (5, 3)
    assert_close(many[2, 1], m[1].probability({"a": ends[2, 1]}, {"c": 0.5}).value)
    monkeypatch.setattr(base, "NUMBERS_PER_BLOCK", 1)
    assert_close(m.probability({"a": ends}, {"c": reals(0.5)}).value, many, rtol=1e-12, atol=0)
    assert m[:0].probability({"a": 0.0}).value.shape == (0,)
    half = m.to(torch.float32).probability({"b": -1.0}, {"b": 1.0, "c": 2.0})
    assert half.value.dtype is half.standard_error.dtype is torch.float32
    assert_close(half.value.double(), some.value, rtol=1e-5, atol=0)


def test_an_empty_box_has_none():
    m = GaussianMixture(*random_parameters((), 2, 2))
    for lower, upper in ((1.0, 0.0), (1.0, 1.0), (INF, INF), (-INF, -INF), (INF, -INF)):
        found = m.probability([lower, 0.0], [upper, 1.0])
        assert (float(found.value), float(found.standard_error)) == (0.0, 0.0)
    mixed = m.probability([[0.0, 0.0], [0.0, 2.0]], [1.0, 1.0])
    assert mixed.value[0] > 0
    assert mixed.value[1] == 0


def test_mistakes_have_names():
    m = GaussianMixture(*random_parameters((), 2, 2), names=["a", "b"])
    with pytest.raises(NotFiniteError, match="upper has NaN"):
        m.probability(0.0, [math.nan, 1.0])
    with pytest.raises(ShapeError, match="lower"):
        m.probability([0.0, 0.0, 0.0])
    with pytest.raises(DimensionError, match="'x'"):
        m.probability({"x": 0.0})
    with pytest.raises(ShapeError, match="broadcast"):
        m.probability({"a": [0.0, 1.0], "b": [0.0, 1.0, 2.0]})
    with pytest.raises(ArgumentError, match="n_samples"):
        m.probability(0.0, n_samples=1)
    with pytest.raises(ArgumentError, match="numbers were expected"):
        m.probability("low")


def test_gradients_of_exact_answers():
    """d P(X ≤ b)/db is the density at b."""
    m = GaussianMixture(*random_parameters((), 3, 1))
    end = reals(0.7).requires_grad_()
    (slope,) = torch.autograd.grad(m.probability(upper=end).value, end)
    assert_close(slope.squeeze(), m.log_prob(end.detach()).exp(), rtol=1e-9, atol=0)
