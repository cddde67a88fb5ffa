"""Equality with other libraries where they are right, and what they get wrong."""

import math

import pytest
import torch
from FrEIA.modules import GaussianMixtureModel
from helpers.reference import random_parameters
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal
from torch.testing import assert_close

from condens import GaussianMixture
from condens.functional import (
    log_determinant,
    nll,
    report_printed_form,
    unwhiten,
    whiten,
)


@pytest.fixture
def double():
    """FrEIA makes its triangles in the default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def freia_case(dimensions, batch=6, n_components=4, dtype=torch.float64):
    """Return FrEIA's block, its condition and our tensors."""
    parameters = random_parameters((batch,), n_components, dimensions, spread=0.7)
    tensors = [t.to(dtype) for t in parameters]
    block = GaussianMixtureModel([(dimensions,)], [(n_components,), (n_components, dimensions)])
    weights = block.normalize_weights(tensors[0])
    return block, [weights, *tensors[1:], None], tensors


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("dimensions", [1, 2, 5, 20])
def test_freia_latent_codes_jacobian_and_loss(dimensions):
    block, condition, (logits, means, factors) = freia_case(dimensions)
    x = torch.randn(6, dimensions)
    (z,), log_jacobian = block([x], condition)
    assert_close(whiten(x[:, None] - means, factors), z, rtol=1e-11, atol=1e-11)
    assert_close(log_determinant(factors, dimensions), log_jacobian, rtol=1e-11, atol=1e-11)
    constant = 0.5 * dimensions * math.log(2 * math.pi)
    theirs = block.nll_loss(condition[0], z, log_jacobian)
    assert_close(nll(x, logits, means, factors), theirs + constant, rtol=1e-11, atol=1e-11)
    bound = block.nll_upper_bound(condition[0], z, log_jacobian)
    printed = report_printed_form(x, logits, means, factors)
    assert_close(printed, bound + 4 * constant, rtol=1e-11, atol=1e-11)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("dimensions", [1, 2, 5, 20])
def test_freia_inverse(dimensions):
    block, condition, (_, means, factors) = freia_case(dimensions)
    noise = torch.randn(6, 4, dimensions)
    (x,), log_jacobian = block([noise], condition, rev=True)
    assert_close(means + unwhiten(noise, factors), x, rtol=1e-10, atol=1e-10)
    assert_close(-log_determinant(factors, dimensions), log_jacobian, rtol=1e-11, atol=1e-11)


def test_thirty_sigma_is_infinite_in_freia_and_exact_here():
    block, condition, (logits, means, factors) = freia_case(3, dtype=torch.float32)
    x = means[:, 0] + unwhiten(torch.full((6, 3), 30.0), factors[:, 0])
    (z,), log_jacobian = block([x], condition)
    assert block.nll_loss(condition[0], z, log_jacobian).isinf().any()
    ours = nll(x, logits, means, factors)
    exact = nll(x.double(), logits.double(), means.double(), factors.double())
    assert_close(ours.double(), exact, rtol=1e-5, atol=0)


@pytest.mark.parametrize(("n_components", "dimensions"), [(1, 1), (3, 2), (20, 5), (3, 20)])
def test_torch_mixture_same_family(n_components, dimensions):
    logits, means, factors = random_parameters((4,), n_components, dimensions)
    ours = GaussianMixture(logits, means, factors)
    theirs = MixtureSameFamily(
        Categorical(logits=logits), MultivariateNormal(means, ours.covariance_matrices)
    )
    x = theirs.sample((9,))
    assert_close(ours.log_prob(x), theirs.log_prob(x), rtol=1e-8, atol=1e-8)
    assert_close(ours.mean, theirs.mean, rtol=1e-9, atol=1e-9)
    assert_close(ours.variance, theirs.variance, rtol=1e-9, atol=1e-9)
    assert not theirs.has_rsample
