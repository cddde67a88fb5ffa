"""Entropies of averages, and their parts: against closed forms, quadrature and sums."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy import integrate
from scipy.stats import norm

from condens import GaussianMixture, LowRankMixture, TransformedMixture
from condens.distributions.entropies import entropies
from condens.errors import ArgumentError
from condens.transforms import Integer, Positive, Real


def seed(number=0):
    return torch.Generator().manual_seed(number)


def dense(n_components, dimensions, spread, batch=(), number=0):
    """Return a mixture with full covariances."""
    generator = seed(number)
    packed = dimensions * (dimensions + 1) // 2
    shapes = ((n_components,), (n_components, dimensions), (n_components, packed))
    parts = [torch.randn(*batch, *s, generator=generator, dtype=torch.float64) for s in shapes]
    return GaussianMixture(parts[0], spread * parts[1], 0.5 * parts[2])


def assert_sums(found):
    total = found.aleatoric.value + found.epistemic.value
    assert_allclose(found.total.value, total, rtol=1e-10, atol=1e-10)


def test_equal_gaussians_disagree_about_nothing():
    factors = torch.tensor([0.3, -0.2, 0.7], dtype=torch.float64).repeat(3, 1)
    density = GaussianMixture(torch.zeros(3), torch.ones(3, 2), factors)
    found = entropies(density, [1, 1, 1])
    exact = 1 + math.log(2 * math.pi) - 0.1
    assert_allclose(found.aleatoric.value, exact, rtol=1e-12)
    assert_allclose(found.epistemic.value, 0.0, atol=1e-12)
    assert float(found.total.standard_error) < 1e-12
    assert_sums(found)


@pytest.mark.parametrize("count", [2, 5])
def test_members_far_apart_disagree_by_log_m(count):
    """The entropies of single Gaussians of one covariance, and of which one it is."""
    means = 1000.0 * torch.arange(float(count), dtype=torch.float64)[:, None].expand(-1, 2)
    factors = torch.tensor([0.3, -0.2, 0.7], dtype=torch.float64).repeat(count, 1)
    found = entropies(GaussianMixture(torch.zeros(count), means, factors), [1] * count)
    assert_allclose(found.epistemic.value, math.log(count), rtol=1e-12)
    assert_allclose(found.aleatoric.value, 1 + math.log(2 * math.pi) - 0.1, rtol=1e-12)
    assert float(found.total.standard_error) == 0.0
    assert_sums(found)


@pytest.mark.parametrize("distance", [0.5, 2.0, 5.0])
def test_two_overlapping_members_against_quadrature(distance):
    def density(x):
        return 0.5 * norm.pdf(x) + 0.5 * norm.pdf(x, distance)

    total = integrate.quad(lambda x: -density(x) * np.log(density(x)), -9, distance + 9)[0]
    alone = 0.5 * (1 + math.log(2 * math.pi))
    means = torch.tensor([[0.0], [distance]], dtype=torch.float64)
    mixture = GaussianMixture(torch.zeros(2), means, torch.zeros(2, 1).double())
    found = entropies(mixture, [1, 1], n_samples=40_000, generator=seed())
    assert_allclose(found.aleatoric.value, alone, rtol=1e-12)
    for estimate, exact in ((found.total, total), (found.epistemic, total - alone)):
        assert 0 < float(estimate.standard_error) < 0.005
        assert abs(float(estimate.value) - exact) < 4 * float(estimate.standard_error)
    assert_sums(found)


KINDS = {
    "full": lambda: dense(5, 3, 2.0, (4,)),
    "low rank": lambda: LowRankMixture(
        *(
            torch.randn(*shape, generator=seed(1), dtype=torch.float64)
            for shape in ((4, 5), (4, 5, 3), (4, 5, 3), (4, 5, 3, 1))
        )
    ),
    "transformed": lambda: TransformedMixture(
        dense(5, 2, 1.0, (4,)), [Positive(), Real()]
    ),
    "whole numbers": lambda: TransformedMixture(
        dense(5, 2, 2.0, (4,)), [Integer(), Real()]
    ),
    "single precision": lambda: dense(5, 3, 2.0, (4,)).to(torch.float32),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_parts_against_the_entropies_of_members(kind):
    """Members of two and three components, of unequal weight, by draws of their own."""
    density = KINDS[kind]()
    found = entropies(density, [2, 3], n_samples=20_000, generator=seed(3))
    weights = torch.softmax(density.logits.double(), -1)
    whole = density.entropy(n_samples=20_000, generator=seed(4))
    parts, error = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for some in (slice(0, 2), slice(2, 5)):
        chosen = [part[:, some] for part in density.parameters]
        member = density._with(chosen, range(density.dimensions))
        own = member.entropy(n_samples=20_000, generator=seed(5))
        weight = weights[:, some].sum(-1)
        parts += weight * own.value
        error += (weight * own.standard_error) ** 2
    for ours, exact, theirs in (
        (found.total, whole.value, whole.standard_error),
        (found.aleatoric, parts, error.sqrt()),
        (found.epistemic, whole.value - parts, (whole.standard_error**2 + error).sqrt()),
    ):
        allowed = 5 * (ours.standard_error**2 + theirs**2).sqrt() + 1e-5
        assert bool(((ours.value - exact).abs() < allowed).all())
    if kind != "single precision":
        assert_sums(found)


def test_one_member_disagrees_with_nobody():
    found = entropies(dense(4, 2, 3.0), [4], generator=seed())
    assert float(found.epistemic.value) == float(found.epistemic.standard_error) == 0.0
    assert torch.equal(found.total.value, found.aleatoric.value)


def test_never_negative_for_members_of_equal_weight():
    generator = seed(7)
    means = torch.randn(200, 4, 2, generator=generator, dtype=torch.float64)
    factors = 0.3 * torch.randn(200, 4, 3, generator=generator, dtype=torch.float64)
    found = entropies(GaussianMixture(torch.zeros(200, 4), means, factors), [2, 2], n_samples=20)
    assert bool((found.epistemic.value >= 0).all())
    assert bool((found.epistemic.value <= math.log(2)).all())


@pytest.mark.parametrize("sizes", [[], [3], [2, 3], [4, 0], [5, -1]])
def test_refusals(sizes):
    with pytest.raises(ArgumentError, match=r"sizes is \[.*\], but the density has 4 components"):
        entropies(dense(4, 2, 1.0), sizes)
