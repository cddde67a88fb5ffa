import math

import pytest
import torch
from helpers.reference import COVARIANCES, random_parameters
from torch.testing import assert_close

from condens.functional import (
    component_log_prob,
    log_prob,
    nll,
    report_printed_form,
    uniform_bound,
    weighted_bound,
)

LOSSES = [nll, weighted_bound, uniform_bound, report_printed_form]


def case(covariance="full", n_components=4, dimensions=3):
    parameters = random_parameters((200,), n_components, dimensions, covariance=covariance)
    return 2 * torch.randn(200, dimensions, dtype=torch.float64), *parameters


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_definitions(covariance):
    x, logits, means, factors = case(covariance)
    weights = torch.softmax(logits, -1)
    density = component_log_prob(x, means, factors).exp()
    exact = -(weights * density).sum(-1).log()
    assert_close(nll(x, logits, means, factors), exact, rtol=1e-10, atol=1e-10)
    weighted = -(weights * density.log()).sum(-1)
    assert_close(weighted_bound(x, logits, means, factors), weighted, rtol=1e-10, atol=1e-10)
    printed = -(weights * density).log().sum(-1)
    assert_close(report_printed_form(x, logits, means, factors), printed, rtol=1e-10, atol=1e-10)
    uniform = printed / 4 - math.log(4)
    assert_close(uniform_bound(x, logits, means, factors), uniform, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("bound", [weighted_bound, uniform_bound])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_bounds_hold_and_are_tight_for_one_component(bound, covariance):
    arguments = case(covariance)
    assert (bound(*arguments) >= nll(*arguments) - 1e-9).all()
    single = case(covariance, n_components=1)
    assert_close(bound(*single), nll(*single), rtol=1e-12, atol=1e-12)


def test_nll_is_minus_log_prob_per_row():
    arguments = case()
    assert nll(*arguments).shape == (200,)
    assert_close(nll(*arguments), -log_prob(*arguments), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_derivatives(loss, covariance):
    arguments = tuple(tensor[:2].clone().requires_grad_() for tensor in case(covariance))
    assert torch.autograd.gradcheck(loss, arguments)
    assert torch.autograd.gradgradcheck(loss, arguments)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_component_without_weight_gives_no_nan(loss):
    x, logits, means, factors = case()
    logits[:, 1] = -torch.inf
    tensors = [t.requires_grad_() for t in (x, logits, means, factors)]
    value = loss(*tensors)
    assert not value.isnan().any()
    if loss in (nll, weighted_bound):
        assert value.isfinite().all()
        value.sum().backward()
        assert all(t.grad.isfinite().all() for t in tensors)


def test_a_weight_that_underflows_beside_a_density_that_does_gives_no_nan():
    logits, means = torch.tensor([0.0, -1e4]), torch.tensor([[0.0], [1e30]])
    value = weighted_bound(torch.zeros(1), logits, means, torch.zeros(2, 1))
    assert_close(value, torch.tensor(0.5 * math.log(2 * math.pi)))
