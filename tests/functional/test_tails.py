"""Tails on a logarithmic scale, against mpmath at any depth."""

import math

import mpmath
import pytest
import torch
from helpers.reference import random_parameters
from helpers.transformed import reals
from torch.testing import assert_close

from condens.functional import tails, univariate


def exact(x, logits, means, factors):
    """Return log F(x) of one mixture with a hundred digits."""
    with mpmath.workdps(100):
        logits, means, factors = (
            [mpmath.mpf(v) for v in t.flatten().tolist()] for t in (logits, means, factors)
        )
        total = sum(mpmath.exp(logit) for logit in logits)
        parts = [
            mpmath.exp(logit)
            / total
            * mpmath.erfc((mean - x) * mpmath.exp(factor) / mpmath.sqrt(2))
            / 2
            for logit, mean, factor in zip(logits, means, factors, strict=True)
        ]
        return float(mpmath.log(sum(parts)))


@pytest.mark.parametrize("n_components", [1, 3])
@pytest.mark.parametrize("at", [-1e6, -300.0, -40.0, -9.0, -1.0, 0.0, 2.0, 30.0])
def test_log_cdf(at, n_components):
    parameters = random_parameters((), n_components, 1, seed=3)
    found = tails.log_cdf(reals(at), *parameters)
    assert_close(float(found), exact(at, *parameters), rtol=1e-12, atol=1e-300)


def test_log_cdf_of_the_ends_and_of_what_has_no_weight():
    logits, means, factors = reals(0, -math.inf), reals([0], [0]), reals([0], [-30])
    ends = reals([-math.inf], [math.inf])
    assert tails.log_cdf(ends, logits, means, factors).tolist() == [-math.inf, 0.0]
    alone = tails.log_cdf(reals(-50), logits, means, factors)
    assert_close(alone, torch.special.log_ndtr(reals(-50)[0]))
    assert_close(tails.log_icdf(float(alone), logits, means, factors), reals(-50))


@pytest.mark.parametrize(
    "level", [math.log(0.5), -0.8, -3.0, -40.0, -700.0, -800.0, -1e6, -1e100, -1e300]
)
@pytest.mark.parametrize("n_components", [1, 3, 20])
def test_log_icdf_is_the_inverse(level, n_components):
    parameters = random_parameters((50,), n_components, 1, seed=5)
    found = tails.log_icdf(level, *parameters)
    assert found.shape == (50, 1)
    back = tails.log_cdf(found, *parameters)
    # Of a number near −1e150 half a unit in the last place is that much of the level.
    assert_close(back, torch.full_like(back, level), rtol=2e-10, atol=2e-10)
    if level > -700:
        expected = univariate.icdf(reals(math.exp(level))[0], *parameters)
        assert_close(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("level", [-5.0, -200.0, -2000.0])
def test_log_icdf_with_components_of_hardly_any_weight(level):
    # The wide component, far below any probability, has the far tail; the other one the rest.
    logits, means, factors = reals(0, -500), reals([3], [1e80]), reals([2], [-230])
    found = tails.log_icdf(level, logits, means, factors)
    assert_close(exact(mpmath.mpf(float(found)), logits, means, factors), level, rtol=1e-9, atol=0)
    assert bool((found.abs() > 1e50) == (level < -600))


def test_log_icdf_where_doubles_are_far_apart_is_the_one_below():
    # 1e9 + z·1e-9: neighbouring doubles are a hundred deviations apart.
    parameters = reals(0), reals([1e9]), reals([math.log(1e9)])
    found = tails.log_icdf(-3.0, *parameters)
    assert float(tails.log_cdf(found, *parameters)) <= -3.0
    assert abs(float(found) - 1e9) <= 4e-6
