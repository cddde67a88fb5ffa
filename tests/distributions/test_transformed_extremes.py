"""Targets with a support of their transform, at scales where the obvious formulas cancel."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from helpers.reference import random_parameters
from helpers.transformed import gaussian, mixture_of, reals
from scipy import integrate, special, stats
from torch.testing import assert_close

from condens import GaussianMixture, TransformedMixture
from condens.transforms import Integer, Interval, Positive, Real

COUNTS = [0.0, 1.0, 1e6, 1e9, 1e12, 1e14, 1e15, 1e16, 1e18, 1e30, 1e300]


def count_log_prob(y, mean, log_precision, lower):
    """Return log P(Y = y) of ⌊z⌋ with many digits; z = lower + e^X, or X without a bound."""
    with mpmath.workdps(700):
        scale, y = mpmath.exp(log_precision), mpmath.mpf(y)
        ends = [y, y + 1]
        if lower is not None:
            ends = [mpmath.log(z - lower) if z > lower else -mpmath.inf for z in ends]
        below, above = (scale * (x - mpmath.mpf(mean)) for x in ends)
        if below > 0:  # from the side where Φ is small
            below, above = -above, -below
        return float(mpmath.log(mpmath.ncdf(above) - mpmath.ncdf(below)))


@pytest.mark.parametrize("deviation", [0.05, 1.0, 12.0])
@pytest.mark.parametrize("distance", [-20.0, -0.4, 0.3, 7.0])
@pytest.mark.parametrize("y", COUNTS)
@pytest.mark.parametrize("lower", [0, -7])
def test_probability_of_large_counts(y, distance, deviation, lower):
    log_precision = -math.log(deviation)
    mean = math.log(y + 1) + distance * deviation
    base = GaussianMixture(reals(0.0), reals(mean)[None], reals(log_precision)[None])
    found = TransformedMixture(base, [Integer(lower)]).log_prob(reals(y + lower))
    expected = count_log_prob(y + lower, mean, log_precision, lower)
    # The mean is rounded, and z with it: what that leaves of the energy is its transform.
    allowed = 1e-12 + abs(distance) * 4e-16 * abs(mean) / deviation
    assert float(found) == pytest.approx(expected, rel=1e-13, abs=allowed)


@pytest.mark.parametrize("deviation", [0.5, 40.0, 1e12])
@pytest.mark.parametrize("y", [-1e16, -1e9, 0.0, 1e14, 1e16])
def test_probability_of_large_whole_numbers_without_a_bound(y, deviation):
    mean, log_precision = y + 0.75 * deviation, -math.log(deviation)
    base = GaussianMixture(reals(0.0), reals(mean)[None], reals(log_precision)[None])
    found = TransformedMixture(base, [Integer()]).log_prob(reals(y))
    expected = count_log_prob(y, mean, log_precision, None)
    assert float(found) == pytest.approx(expected, rel=1e-13, abs=1e-13)


@pytest.mark.parametrize("dimensions", [2, 3, 4])
def test_joint_probability_of_large_counts_is_density_times_volume(dimensions):
    """At 1e15 a cell is a point: log P = log p(y), to 1e-15."""
    logits, means, factors = random_parameters((), 3, dimensions, seed=4)
    base = GaussianMixture(logits, means + math.log(1e15), factors)
    y = (1e15 * torch.linspace(0.3, 3.0, dimensions, dtype=torch.float64)).round()
    counts = TransformedMixture(base, [Integer(0)] * dimensions).log_prob(y)
    density = TransformedMixture(base, [Positive()] * dimensions).log_prob(y)
    assert_close(counts, density, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("y", [1e8, 1e14, 1e16, 1e300])
@pytest.mark.parametrize("correlation", [-0.9, 0.3, 0.99])
def test_conditioning_on_a_large_count_is_conditioning_on_a_point(y, correlation):
    mean, covariance = [0.4, math.log(y) - 0.2], [[4.0, 2 * correlation], [2 * correlation, 1.0]]
    given = gaussian([Real(), Integer(0)], mean, covariance).condition({1: y})
    expected = gaussian([Real(), Positive()], mean, covariance).condition({1: y + 0.5})
    assert_close(given.mean, expected.mean, rtol=1e-9, atol=1e-9)
    assert_close(given.variance, expected.variance, rtol=1e-9, atol=1e-9)
    at = reals(0.7)
    assert_close(given.log_prob(at), expected.log_prob(at), rtol=1e-9, atol=1e-9)


def test_conditioning_on_two_large_counts():
    transforms = [Real(), Integer(0), Integer(0)]
    given = mixture_of(transforms, tight=0.5, seed=2)
    points = mixture_of([Real(), Positive(), Positive()], tight=0.5, seed=2)
    shift = reals(0.0, math.log(1e14), math.log(1e14))
    given, points = (
        TransformedMixture(m.base.affine(torch.ones(3).double(), shift), m.transforms)
        for m in (given, points)
    )
    values = {1: 2e14, 2: 5e13}
    at = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    ours, theirs = (m.condition(values).log_prob(at) for m in (given, points))
    assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("y", [1e9, 1e15, 1e18])
def test_distribution_function_and_moments_of_large_counts(y):
    counts, values = (
        gaussian([transform], [math.log(y)], [[0.25]]) for transform in (Integer(0), Positive())
    )
    at = reals(0.8 * y).floor()
    assert_close(counts.cdf(at), values.cdf(at + 1), rtol=1e-13, atol=0)
    for coverage in (0.5, 0.999):
        for ours, theirs in zip(counts.interval(coverage), values.interval(coverage), strict=True):
            assert_close(ours, theirs.floor(), rtol=1e-13, atol=1.0)
    assert_close(counts.mean, values.mean - 0.5, rtol=1e-13, atol=0)
    assert_close(counts.variance, values.variance + 1 / 12, rtol=1e-12, atol=0)


def count_crps(y, mean, deviation, log):
    """Return Σ F² below y and Σ (1 − F)² from it on; the far tail by its integral."""
    ends = np.arange(0 if log else y - 200, y + 4000) + 1
    latent = ((np.log(ends) if log else ends) - mean) / deviation
    score = (stats.norm.cdf(latent[ends <= y]) ** 2).sum()
    score += (stats.norm.sf(latent[ends > y]) ** 2).sum()
    if log:  # from the middle between two whole numbers on, in x = log z
        start = math.log(ends[-1] + 0.5)
        panels = np.linspace(start, max(mean + deviation**2 + 12 * deviation, start), 60)
        score += sum(
            integrate.quad(
                lambda x: math.exp(x + 2 * special.log_ndtr((mean - x) / deviation)), *panel
            )[0]
            for panel in itertools.pairwise(panels)
        )
    return score


@pytest.mark.parametrize("deviation", [0.05, 0.5, 2.0, 12.0])
@pytest.mark.parametrize("y", [0.0, 3.0, 40.0])
def test_crps_of_counts_of_any_width(y, deviation):
    mean = math.log(4.3)
    value = gaussian([Integer(2)], [mean], [[deviation**2]]).crps(reals(y + 2))
    expected = count_crps(y, mean, deviation, log=True)
    assert float(value) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("deviation", [0.2, 3.0])
def test_crps_of_whole_numbers(deviation):
    value = gaussian([Integer()], [-1.3], [[deviation**2]]).crps(reals(-2.0))
    expected = count_crps(-2.0, -1.3, deviation, log=False)
    assert float(value) == pytest.approx(expected, rel=1e-9)


def test_crps_of_counts_far_beyond_whole_numbers():
    """At 1e30 counts are as good as positive numbers."""
    counts, values = (
        gaussian([transform], [math.log(1e30)], [[4.0]]).crps(reals(2e30))
        for transform in (Integer(0), Positive())
    )
    assert float(counts) == pytest.approx(float(values), rel=1e-14)
    wide = gaussian([Integer(0)], [600.0], [[400.0]]).crps(reals(1.0))
    assert math.isfinite(float(wide))


def interval_crps(y, lower, upper, mean, deviation, link):
    """Return the integral over x with many digits, outside of the support and the distance."""
    with mpmath.workdps(30):
        y, lower, upper = (mpmath.mpf(v) for v in (y, lower, upper))
        held = min(max(y, lower), upper)
        if lower < y < upper:
            at = mpmath.log((y - lower) / (upper - y))
            if link == "probit":
                nearer = min(y - lower, upper - y) / (upper - lower)
                sign, level = (-1 if y - lower < upper - y else 1), mpmath.log(nearer)
                at = sign * mpmath.findroot(
                    lambda z: mpmath.log(mpmath.ncdf(-z)) - level, mpmath.sqrt(-level) + 0.1
                )
        else:
            at = mpmath.mpf(-700 if y <= lower else 700)

        def integral(side, start, end):
            places = [mean + k * deviation for k in (-12, -8, -4, -2, -1, 0, 1, 2, 4, 8, 12)]
            places += [-60, -30, -10, -3, 0, 3, 10, 30, 60]
            places = [start, *sorted(p for p in set(places) if start < p < end), end]
            return mpmath.quad(
                lambda x: (
                    mpmath.ncdf(side * (x - mean) / deviation) ** 2
                    * (
                        mpmath.npdf(x)
                        if link == "probit"
                        else 1 / (2 + mpmath.exp(x) + mpmath.exp(-x))
                    )
                ),
                places,
            )

        inside = integral(1, -700, at) + integral(-1, at, 700)
        return float((upper - lower) * inside + abs(y - held))


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize(("lower", "upper"), [(-1.0, 3.0), (1e6, 1e6 + 1)])
@pytest.mark.parametrize(
    ("mean", "deviation", "x"),
    [(19.2, 5e-4, 19.3), (19.2, 7.0, 12.0), (0.5, 3.0, 2.0), (0.2, 80.0, -9.0), (30.0, 1.0, 900.0)],
)
@pytest.mark.parametrize("link", ["probit", "logit"])
def test_crps_beside_a_bound(mean, deviation, x, side, lower, upper, link):
    """The numbers beside a bound are few; the score is one of the real line."""
    transform = Interval(lower, upper, link)
    mean, deviation, x = (part / 4 if link == "probit" else part for part in (mean, deviation, x))
    y = float(transform.from_real(reals(side * x)))
    value = gaussian([transform], [side * mean], [[deviation**2]]).crps(reals(y))
    expected = interval_crps(y, lower, upper, side * mean, deviation, link)
    assert_close(float(value), expected, rtol=1e-9, atol=0)
