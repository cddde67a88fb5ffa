"""Marginals and conditionals on every subset of dimensions, and the laws that tie them."""

from itertools import combinations, permutations

import hypothesis
import numpy as np
import pytest
import torch
from helpers.reference import (
    COVARIANCES,
    assert_same,
    condition,
    dense,
    marginal,
    random_parameters,
)
from hypothesis import strategies as st
from torch.testing import assert_close

from condens import GaussianMixture

SUBSETS = [list(s) for size in range(1, 6) for s in combinations(range(5), size)]
PROPER = [s for s in SUBSETS if len(s) < 5]


def mixture_of(dimensions=5, n_components=3, covariance="full", seed=0, batch=()):
    parameters = random_parameters(
        batch, n_components, dimensions, covariance=covariance, seed=seed
    )
    return GaussianMixture(*parameters)


def assert_equal(first, second, tolerance=1e-9):
    assert_close(first.weights, second.weights, rtol=tolerance, atol=tolerance)
    assert_close(first.means, second.means, rtol=tolerance, atol=tolerance)
    assert_close(
        first.covariance_matrices, second.covariance_matrices, rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("n_components", [1, 3, 20])
def test_marginal_on_every_subset(n_components, covariance):
    mixture = mixture_of(n_components=n_components, covariance=covariance)
    twin = dense(*mixture.parameters)
    for dims in SUBSETS:
        assert_same(mixture.marginal(dims), *marginal(*twin, dims))


def test_marginal_in_every_order():
    mixture = mixture_of(dimensions=4)
    twin = dense(*mixture.parameters)
    for dims in permutations(range(4), 3):
        assert_same(mixture.marginal(dims), *marginal(*twin, list(dims)))


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("n_components", [1, 3, 20])
def test_condition_on_every_subset(n_components, covariance):
    mixture = mixture_of(n_components=n_components, covariance=covariance)
    twin = dense(*mixture.parameters)
    values = np.array([0.3, -0.7, 1.1, 0.2, -1.5])
    for dims in PROPER:
        ours = mixture.condition({d: float(values[d]) for d in dims})
        assert_same(ours, *condition(*twin, dims, values[dims]))


@pytest.mark.parametrize(("n_components", "dimensions"), [(1, 2), (3, 20), (20, 20)])
def test_subsets_in_two_and_twenty_dimensions(n_components, dimensions):
    mixture = mixture_of(dimensions, n_components)
    twin = dense(*mixture.parameters)
    dims = list(range(0, dimensions, 2))
    assert_same(mixture.marginal(dims), *marginal(*twin, dims), tolerance=1e-8)
    ours = mixture.condition(dict.fromkeys(dims, 0.5))
    assert_same(ours, *condition(*twin, dims, np.full(len(dims), 0.5)), tolerance=1e-8)


def test_order_of_the_fixed_values_does_not_matter():
    mixture = mixture_of()
    assert_equal(mixture.condition({3: 0.5, 0: -1.0}), mixture.condition({0: -1.0, 3: 0.5}))


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_joint_is_marginal_times_conditional(covariance):
    mixture = mixture_of(covariance=covariance)
    x = torch.randn(6, 5, dtype=torch.float64)
    for dims in PROPER:
        free = [d for d in range(5) if d not in dims]
        given = mixture.condition({d: x[:, d] for d in dims})
        assert given.batch_shape == (6,)
        total = mixture.marginal(dims).log_prob(x[:, dims]) + given.log_prob(x[:, free])
        assert_close(total, mixture.log_prob(x), rtol=1e-9, atol=1e-9)


def test_marginal_of_conditional_is_conditional_of_marginal():
    mixture = mixture_of(batch=(2,))
    for fixed in PROPER:
        free = [d for d in range(5) if d not in fixed]
        for size in range(1, len(free) + 1):
            for kept in combinations(free, size):
                first = mixture.condition(dict.fromkeys(fixed, 0.4))
                first = first.marginal([free.index(d) for d in kept])
                both = sorted([*kept, *fixed])
                second = mixture.marginal(both)
                second = second.condition({both.index(d): 0.4 for d in fixed})
                assert_equal(first, second)


def test_conditioning_in_two_steps():
    mixture = mixture_of()
    at_once = mixture.condition({0: 0.1, 2: -0.3, 4: 0.8})
    # Dimension 4 is number 2 among those left after 0 and 2 are fixed.
    assert_equal(mixture.condition({0: 0.1, 2: -0.3}).condition({2: 0.8}), at_once)


@hypothesis.given(st.integers(0, 2**31), st.permutations(range(4)), st.sampled_from(COVARIANCES))
def test_affine_and_marginal_commute(seed, order, covariance):
    mixture = mixture_of(4, 2, covariance, seed=seed)
    scale = torch.tensor([2.0, -0.5, 10.0, 0.1], dtype=torch.float64)
    loc = torch.tensor([1.0, 2.0, -3.0, 0.0], dtype=torch.float64)
    dims = order[:2]
    first = mixture.affine(scale, loc).marginal(dims)
    assert_equal(first, mixture.marginal(dims).affine(scale[dims], loc[dims]))


def test_affine_by_matrix_and_marginal_commute():
    """Outputs that are kept do not depend on those that are dropped."""
    mixture = mixture_of(4, 3)
    matrix = torch.randn(4, 4, dtype=torch.float64)
    for dims in ([0], [3, 1], [2, 0, 1]):
        assert_equal(mixture.affine(matrix, 1.0).marginal(dims), mixture.affine(matrix[dims], 1.0))


def test_affine_and_condition_commute():
    mixture = mixture_of()
    scale = torch.tensor([2.0, -0.5, 10.0, 0.1, -1.0], dtype=torch.float64)
    loc = torch.arange(5, dtype=torch.float64)
    for dims in PROPER:
        free = [d for d in range(5) if d not in dims]
        values = {d: 0.3 * d - 0.5 for d in dims}
        moved = {d: float(scale[d] * v + loc[d]) for d, v in values.items()}
        first = mixture.affine(scale, loc).condition(moved)
        assert_equal(first, mixture.condition(values).affine(scale[free], loc[free]))


def test_values_broadcast_against_the_batch():
    mixture = mixture_of(3, batch=(4,))
    value = torch.linspace(-1, 1, 7, dtype=torch.float64)[:, None]
    together = mixture.condition({1: value})
    assert together.batch_shape == (7, 4)
    for i in range(7):
        assert_equal(together[i], mixture.condition({1: float(value[i])}))


def test_far_evidence_still_gives_weights():
    """A value so far off that every density underflows: weights come from log space."""
    mixture = mixture_of(2, 3).to(torch.float32)
    given = mixture.condition({0: 1e6})
    twin = mixture.to(torch.float64).condition({0: 1e6})
    assert given.weights.isfinite().all()
    assert_close(given.weights.double(), twin.weights, rtol=1e-5, atol=1e-6)
    beyond = mixture.to(torch.float64).condition({0: 1e200})
    assert beyond.weights.isfinite().all()


def test_float32_factors_of_very_different_scales():
    """Log-diagonals of ±8 in one factor: seven digits lost in float32 without care."""
    torch.manual_seed(3)
    factors = torch.randn(2, 10)
    factors[:, :4] = torch.tensor([8.0, -8.0, 8.0, -8.0])
    mixture = GaussianMixture(torch.zeros(2), torch.randn(2, 4), factors)
    reference = mixture.to(torch.float64)
    for dims in [list(s) for size in (1, 2, 3) for s in combinations(range(4), size)]:
        for ours, exact in (
            (mixture.marginal(dims), reference.marginal(dims)),
            (
                mixture.condition(dict.fromkeys(dims, 0.5)),
                reference.condition(dict.fromkeys(dims, 0.5)),
            ),
        ):
            assert_close(ours.factors.double(), exact.factors, rtol=1e-5, atol=1e-5)
            assert_close(ours.means.double(), exact.means, rtol=1e-5, atol=1e-5)
            assert_close(ours.weights.double(), exact.weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_derivatives(covariance):
    parameters = random_parameters((2,), 2, 3, covariance=covariance)
    inputs = [p.requires_grad_() for p in parameters]
    value = torch.tensor([0.3, -0.2], dtype=torch.float64, requires_grad=True)

    def conditional(logits, means, factors, v):
        given = GaussianMixture(logits, means, factors, validate_args=False).condition({1: v})
        # One output: gradcheck passes over those that carry no gradient.
        return torch.cat([t.flatten() for t in (given.weights, given.means, given.factors)])

    def margin(logits, means, factors):
        kept = GaussianMixture(logits, means, factors, validate_args=False).marginal([2, 0])
        return torch.cat([t.flatten() for t in (kept.weights, kept.means, kept.factors)])

    assert torch.autograd.gradcheck(conditional, (*inputs, value))
    assert torch.autograd.gradgradcheck(conditional, (*inputs, value))
    assert torch.autograd.gradcheck(margin, inputs)
    assert torch.autograd.gradgradcheck(margin, inputs)
