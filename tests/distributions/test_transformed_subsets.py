"""Marginals and conditionals of transformed mixtures, on every subset of dimensions."""

import math
from itertools import combinations

import pytest
import torch
from helpers.transformed import MIXED, gaussian, mixture_of, reals
from scipy import integrate, stats
from torch.testing import assert_close

from condens.transforms import Integer, Interval, Positive, Real

INF, NAN = float("inf"), float("nan")


SUBSETS = [list(s) for size in range(1, 5) for s in combinations(range(5), size)]


@pytest.mark.parametrize("dims", SUBSETS, ids=str)
@pytest.mark.parametrize("link", ["probit", "logit"])
def test_joint_is_marginal_times_conditional(dims, link):
    transforms = [*MIXED[:2], Interval(0.0, 10.0, link), *MIXED[3:]]
    m = mixture_of(transforms, n_components=2, spread=0.6)
    y = m.sample((4,), generator=torch.Generator().manual_seed(len(dims)))
    free = [d for d in range(5) if d not in dims]
    given = m.condition({d: y[:, d] for d in dims})
    assert given.batch_shape == (4,)
    assert given.transforms == tuple(transforms[d] for d in free)
    total = m.marginal(dims).log_prob(y[:, dims]) + given.log_prob(y[:, free])
    continuous = not {3, 4} & set(dims)
    assert_close(total, m.log_prob(y), rtol=0, atol=1e-9 if continuous else 1e-7)


def test_condition_on_a_count_against_integration():
    m = gaussian([Real(), Integer(0)], [0.3, 0.5], [[1.0, 0.8], [0.8, 1.3]])
    for n in (0, 1, 5):
        low, high = (float(end) for end in Integer(0).cell(reals(n)))
        marginal, slope = stats.norm(0.5, math.sqrt(1.3)), 0.8 / 1.3
        transform = math.sqrt(1.0 - 0.8 * slope)

        def joint(x, a, marginal=marginal, slope=slope, transform=transform):
            return marginal.pdf(x) * stats.norm.pdf(a, 0.3 + slope * (x - 0.5), transform)

        coverage = marginal.cdf(high) - marginal.cdf(low)
        given = m.condition({1: n})
        for a in (-1.5, 0.0, 1.2):
            exact = (
                integrate.quad(joint, max(low, -9.0), high, args=(a,), epsabs=1e-13)[0] / coverage
            )
            assert_close(float(given.log_prob(reals(a)).exp()), exact, rtol=1e-8, atol=0)


@pytest.mark.parametrize("correlation", [0.9, 0.99])
def test_condition_on_whole_numbers_with_strong_correlation(correlation):
    for scale in (0.3, 1.0, 10.0):
        cross = correlation * scale
        for transform in (Integer(), Integer(0)):
            m = gaussian([Real(), transform], [0.0, 0.3], [[1.0, cross], [cross, scale**2]])
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
    assert kept.transforms == (Integer(0), Real())
    assert m.condition({"b": 1.0}).names == ("a", "c")
