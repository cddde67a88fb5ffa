"""Densities of partly observed rows against the dense formulas, on every pattern."""

from itertools import product

import pytest
import torch
from reference import STRUCTURES, random_parameters
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from condens.functional import log_prob, partial_log_prob
from condens.functional.algebra import marginal
from condens.functional.mixture import component_covariances

PATTERNS = list(product([False, True], repeat=4))


def with_gaps(batch, dimensions, share=0.4):
    target = torch.randn(batch, dimensions, dtype=torch.float64)
    return torch.where(torch.rand(batch, dimensions) < share, torch.nan, target)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("observed", PATTERNS, ids=str)
def test_every_pattern_is_the_dense_marginal(observed, structure):
    logits, means, factors = random_parameters((3,), 3, 4, structure=structure)
    target = torch.randn(3, 4, dtype=torch.float64)
    kept = [d for d in range(4) if observed[d]]
    covariances = component_covariances(factors, 4)[..., kept, :][..., kept]
    expected = torch.zeros(3, dtype=torch.float64)
    if kept:
        normal = MultivariateNormal(means[..., kept], covariances)
        each = normal.log_prob(target[:, None, kept])
        expected = (torch.log_softmax(logits, -1) + each).logsumexp(-1)
    target[:, [d for d in range(4) if not observed[d]]] = torch.nan
    value = partial_log_prob(target, logits, means, factors)
    assert_close(value, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_rows_of_different_patterns_side_by_side(structure):
    logits, means, factors = random_parameters((40,), 3, 5, structure=structure)
    target = with_gaps(40, 5)
    value = partial_log_prob(target, logits, means, factors)
    for row in range(40):
        dims = (~target[row].isnan()).nonzero().flatten().tolist()
        if dims:
            kept = marginal(logits[row], means[row], factors[row], dims)
            assert_close(value[row], log_prob(target[row, dims], *kept), rtol=1e-9, atol=1e-9)


def test_a_complete_row_has_its_density():
    parameters = random_parameters((7,), 3, 4)
    target = torch.randn(7, 4, dtype=torch.float64)
    assert_close(
        partial_log_prob(target, *parameters), log_prob(target, *parameters), rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize("structure", STRUCTURES)
def test_gradients(structure):
    parameters = [t.requires_grad_() for t in random_parameters((3,), 2, 3, structure=structure)]
    target = torch.tensor(
        [[0.3, torch.nan, -1.0], [torch.nan] * 3, [1.0, 0.2, torch.nan]], dtype=torch.float64
    )

    def density(*tensors):
        return partial_log_prob(target, *tensors)

    assert torch.autograd.gradcheck(density, parameters)
    assert torch.autograd.gradgradcheck(density, parameters)


def test_nothing_observed_says_nothing():
    parameters = [t.requires_grad_() for t in random_parameters((2,), 3, 4)]
    value = partial_log_prob(torch.full((2, 4), torch.nan), *parameters)
    assert_close(value, torch.zeros_like(value), atol=1e-12, rtol=0)
    for gradient in torch.autograd.grad(value.sum(), parameters):
        assert_close(gradient, torch.zeros_like(gradient), atol=1e-12, rtol=0)


def test_float32_far_away():
    parameters = [t.float() for t in random_parameters((5,), 3, 4)]
    target = 1e3 * with_gaps(5, 4).float()
    value = partial_log_prob(target, *parameters)
    expected = partial_log_prob(target.double(), *(t.double() for t in parameters))
    assert_close(value.double(), expected, rtol=1e-6, atol=1e-5)
