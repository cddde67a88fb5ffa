"""`rosenblatt`: conditional distribution functions, one dimension after the other."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from helpers.reference import dense, dense_low_rank, random_low_rank, random_parameters
from helpers.transformed import MIXED, gaussian, mixture_of, reals
from scipy import integrate, stats
from torch.testing import assert_close

from condens import GaussianMixture, LowRankMixture
from condens.distributions import base
from condens.errors import ArgumentError, KindError, ShapeError
from condens.transforms import Integer, Interval, Positive, Real

NAN, INF = math.nan, math.inf


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def twin(y, weights, means, covariances):
    """Return P(Y_d ≤ y_d | y before) of one mixture by Schur complements, NaN left out."""
    result = np.full(len(y), NAN)
    seen = [d for d in range(len(y)) if not np.isnan(y[d])]
    for place, d in enumerate(seen):
        before, parts = seen[:place], []
        for weight, mean, covariance in zip(weights, means, covariances, strict=True):
            inner = covariance[np.ix_(before, before)]
            gain = np.linalg.solve(inner, covariance[before, d]) if before else np.zeros(0)
            centre = mean[d] + gain @ (y[before] - mean[before])
            deviation = math.sqrt(covariance[d, d] - gain @ covariance[before, d])
            density = stats.multivariate_normal(mean[before], inner).pdf(y[before]) if before else 1
            parts.append((weight * density, stats.norm.cdf(y[d], centre, deviation)))
        total = sum(part for part, _ in parts)
        result[d] = sum(part * below for part, below in parts) / total
    return result


MAKERS = {
    "full": lambda k, d, batch=(): GaussianMixture(*random_parameters(batch, k, d)),
    "diagonal": lambda k, d, batch=(): GaussianMixture(
        *random_parameters(batch, k, d, covariance="diagonal")
    ),
    "low_rank": lambda k, d, batch=(): LowRankMixture(*random_low_rank(batch, k, d, 2)),
}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("dimensions", [1, 2, 5])
@pytest.mark.parametrize("components", [1, 3])
def test_by_schur_complements_on_every_subset(kind, dimensions, components):
    m = MAKERS[kind](components, dimensions)
    parts = (dense_low_rank if kind == "low_rank" else dense)(*m.parameters)
    y = m.sample(generator=seeded(1)).numpy()
    subsets = itertools.product([False, True], repeat=dimensions)
    rows = [np.where(missing, NAN, y) for missing in subsets]
    expected = np.array([twin(row, *parts) for row in rows])
    found = m.rosenblatt(np.array(rows))
    assert_close(found, torch.from_numpy(expected), rtol=1e-10, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("kind", MAKERS)
def test_one_dimension_is_the_distribution_function(kind):
    m = MAKERS[kind](3, 1, (4,))
    y = 3 * torch.randn(9, 4, 1, dtype=torch.float64, generator=seeded())
    assert_close(m.rosenblatt(y).squeeze(-1), m.cdf(y), rtol=1e-12, atol=0)


def test_far_tails_have_their_digits():
    m = gaussian([Real(), Real()], [0.0, 0.0], [[1.0, 0.6], [0.6, 1.0]]).base
    y = reals(-30.0, 0.6 * -30.0 - 0.8 * 20.0)
    expected = torch.from_numpy(stats.norm.cdf([-30.0, -20.0]))
    assert_close(m.rosenblatt(y), expected, rtol=1e-9, atol=0)
    assert m.rosenblatt(reals(1e200, 3.0)).tolist()[0] == 1.0
    assert not m.rosenblatt(reals(1e200, 3.0)).isnan().any()


@pytest.mark.parametrize("gap", [1e-3, 1e-8])
def test_nearly_singular_covariances(gap):
    """1 − ρ² = gap: what is left after the first dimension is small."""
    rho = math.sqrt(1 - gap)
    m = gaussian([Real(), Real()], [0.0, 0.0], [[1.0, rho], [rho, 1.0]]).base
    latent = torch.randn(50, 2, dtype=torch.float64, generator=seeded())
    root = math.sqrt(gap)
    y = torch.stack([latent[:, 0], rho * latent[:, 0] + root * latent[:, 1]], -1)
    expected = torch.from_numpy(stats.norm.cdf(latent.numpy()))
    assert_close(m.rosenblatt(y), expected, rtol=0, atol=3e-15 / gap + 1e-13)


def test_seen_through_transforms_it_is_that_of_the_real_line():
    transforms = [Positive(-1.0), Interval(-2.0, 3.0), Real(), Interval(-2.0, 3.0, link="logit")]
    m = mixture_of(transforms, batch=(4,))
    x = m.base.sample((20,), generator=seeded())
    # Nearer to the bounds, numbers have few digits left for the distance to them.
    x[..., 1] = x[..., 1].clamp(-3, 3)
    y = torch.stack([t.from_real(x[..., d]) for d, t in enumerate(transforms)], -1)
    assert_close(m.rosenblatt(y), m.base.rosenblatt(x), rtol=1e-9, atol=1e-12)
    y[0, :, 1] = NAN
    x[0, :, 1] = NAN
    found = m.rosenblatt(y)
    assert_close(found, m.base.rosenblatt(x), rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("lower", [None, 0])
def test_whole_numbers_by_sums_of_probabilities(lower):
    """u lies between P(Y < y | ·) and P(Y ≤ y | ·), at the generator's place."""
    transform = Integer(lower)
    m = mixture_of([transform, transform], n_components=2, spread=0.5, tight=0.3)
    grid = torch.arange(-30 if lower is None else 0, 31 if lower is None else 400).double()
    table = m.log_prob(torch.cartesian_prod(grid, grid)).exp().reshape(len(grid), -1)
    y = m.sample((40,), generator=seeded(3))
    places = torch.rand(y.shape, dtype=torch.float64, generator=seeded(7))
    found = m.rosenblatt(y, generator=seeded(7))
    for row, place, u in zip(y, places, found, strict=True):
        i, j = (int((grid == value).nonzero()) for value in row)
        for d, line in enumerate((table.sum(1), table[i] / table[i].sum())):
            at = (i, j)[d]
            expected = line[:at].sum() + place[d] * line[at]
            assert_close(u[d], expected, rtol=0, atol=2e-7 if lower == 0 else 1e-8)


def test_a_real_number_given_a_whole_one_and_back():
    """By quadrature of the joint density of both kinds."""
    for order in ([0, 1], [1, 0]):
        transforms = [[Integer(), Real()][d] for d in order]
        m = mixture_of(transforms, n_components=2, spread=0.5)
        y = m.sample(generator=seeded(5))
        (place,) = torch.rand(1, 2, dtype=torch.float64, generator=seeded(2))
        (found,) = m.rosenblatt(y[None], generator=seeded(2))

        def density(whole, real, m=m, order=order):
            return math.exp(m.log_prob(reals(*([whole, real][d] for d in order))))

        whole, real = (float(y[order.index(d)]) for d in (0, 1))
        if order == [0, 1]:
            given = partial(density, whole)
            below, above = (integrate.quad(given, *ends)[0] for ends in ((-15, real), (real, 15)))
            assert_close(float(found[1]), below / (below + above), rtol=1e-6, atol=1e-7)
        else:
            line = [density(k, real) for k in range(-30, 31)]
            at = int(whole) + 30
            expected = (sum(line[:at]) + float(place[1]) * line[at]) / sum(line)
            assert_close(float(found[1]), expected, rtol=1e-8, atol=1e-9)


def test_gaps_among_whole_numbers_are_left_out():
    m = mixture_of(MIXED, n_components=2, batch=(6,))
    y = m.sample(generator=seeded())
    y[0, 1], y[1, 3], y[2, [0, 4]], y[3] = NAN, NAN, NAN, NAN
    places = torch.rand(y.shape, dtype=torch.float64, generator=seeded(1))
    found = m.rosenblatt(y, generator=seeded(1))
    assert torch.equal(found.isnan(), y.isnan())
    kept = [0, 1, 2, 4]
    alone = m[1].marginal(kept)
    ends = [alone._discrete_rosenblatt(y[1:2, kept], seeded(s))[0] for s in (1, 2)]
    assert_close(found[1, [0, 1, 2]], ends[0][:3], rtol=1e-10, atol=0)
    others = [torch.rand(1, 4, dtype=torch.float64, generator=seeded(s))[0, 3] for s in (1, 2)]
    slope = (ends[1][3] - ends[0][3]) / (others[1] - others[0])
    expected = ends[0][3] + slope * (places[1, 4] - others[0])
    assert_close(found[1, 4], expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("dimensions", [1, 2, 5])
@pytest.mark.parametrize("kind", ["full", "low_rank", "mixed", "counts", "float32"])
def test_draws_become_uniform_and_independent(kind, dimensions):
    """At 10⁻⁴ for each of these tests."""
    if kind == "mixed":
        transforms = (MIXED[::-1] * 2)[:dimensions]
        m = mixture_of(transforms, batch=(50,))
    elif kind == "counts":
        m = mixture_of([Integer(0)] * min(dimensions, 3), n_components=2, batch=(50,))
    elif kind == "low_rank":
        m = MAKERS[kind](3, dimensions, (50,))
    else:
        m = MAKERS["full"](3, dimensions, (50,))
    m = m.to(torch.float32) if kind == "float32" else m
    draws = 20 if m._is_real else 8
    u = m.rosenblatt(m.sample((draws,), generator=seeded(2)), generator=seeded(3))
    assert u.dtype is torch.float64
    u = u.reshape(-1, m.dimensions).numpy()
    assert min(stats.kstest(column, "uniform").pvalue for column in u.T) > 1e-4
    for a, b in itertools.combinations(range(m.dimensions), 2):
        assert stats.spearmanr(u[:, a], u[:, b]).pvalue > 1e-4
        # Dependence without correlation too: both far out, or both near the middle.
        assert stats.spearmanr(abs(u[:, a] - 0.5), abs(u[:, b] - 0.5)).pvalue > 1e-4


def test_a_value_outside_the_support_says_nothing_of_the_others():
    m = mixture_of([Positive(), Real(), Interval(0.0, 1.0)])
    u = m.rosenblatt([[-1.0, 0.3, 0.5], [NAN, 0.3, 0.5]])
    assert u[0, 0] == 0
    assert_close(u[0, 1:], u[1, 1:], rtol=0, atol=0)
    u = m.rosenblatt([[INF, 0.3, 2.0], [NAN, 0.3, NAN]])
    assert_close(u[0], reals(1.0, u[1, 1], 1.0), rtol=1e-15, atol=0)
    counts = mixture_of([Integer(0), Real()])
    u = counts.rosenblatt([[-1.0, 0.3], [NAN, 0.3], [2.5, 0.3]])
    assert u[0, 0] == 0
    assert_close(u[:, 1], u[1:2, 1].expand(3), rtol=1e-12, atol=0)
    assert_close(u[2, 0], counts.marginal(0).cdf([2.5]), rtol=1e-9, atol=0)


def test_an_impossible_cell_before_is_no_nan():
    m = gaussian([Integer(), Real()], [0.0, 0.0], [[1.0, 0.5], [0.5, 1.0]])
    u = m.rosenblatt(reals(1e200, 0.3), generator=seeded())
    assert u[0] == 1
    assert not u.isnan().any()


@pytest.mark.parametrize("kind", ["full", "low_rank", "mixed"])
def test_shapes_and_blocks(kind, monkeypatch):
    make = {**MAKERS, "mixed": lambda k, _, batch: mixture_of([Integer(), Real()], k, batch)}[kind]
    m = make(2, 2, (3, 4))
    y = m.sample((5,), generator=seeded())
    u = m.rosenblatt(y, generator=seeded(1))
    assert u.shape == (5, 3, 4, 2)
    columns = slice(None) if kind != "mixed" else slice(1, None)
    assert_close(m[1, 2].rosenblatt(y[:, 1, 2])[..., columns], u[:, 1, 2, columns])
    assert_close(m[:, :1].rosenblatt(y[:, :, :1])[..., columns], u[:, :, :1, columns])
    monkeypatch.setattr(base, "NUMBERS_PER_BLOCK", 40)
    assert_close(m.rosenblatt(y)[..., columns], u[..., columns], rtol=1e-12, atol=0)
    assert m[:0].rosenblatt(y[:, :0]).shape == (5, 0, 4, 2)
    assert m.rosenblatt(y[:0]).shape == (0, 3, 4, 2)


def test_names_and_arguments_are_checked():
    m = GaussianMixture(*random_parameters((), 2, 2), names=["a", "b"])
    with pytest.raises(ShapeError, match="2 dimensions"):
        m.rosenblatt([1.0, 2.0, 3.0])
    with pytest.raises(KindError, match="generator"):
        m.rosenblatt([1.0, 2.0], generator=0)
    with pytest.raises(ArgumentError, match="numbers were expected"):
        m.rosenblatt("no")


def test_the_gradient_is_the_conditional_density():
    """∂u_d/∂y_d = p(y_d | y before)."""
    m = GaussianMixture(*random_parameters((), 3, 3))
    y = m.sample(generator=seeded()).requires_grad_()
    jacobian = torch.autograd.functional.jacobian(m.rosenblatt, y)
    density = m.log_prob(y) - m.marginal([0, 1]).log_prob(y[:2])
    assert_close(jacobian[2, 2].log(), density, rtol=1e-9, atol=1e-9)
    assert_close(jacobian.diagonal().log().sum(), m.log_prob(y), rtol=1e-9, atol=1e-9)
