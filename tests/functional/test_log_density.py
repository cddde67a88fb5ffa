"""`log_density`: many points of each mixture by the kernel, as by plain torch."""

import math

import pytest
import torch
from helpers.reference import random_parameters
from torch.testing import assert_close

from condens import GaussianMixture
from condens.functional import fused, mixture
from condens.functional.fused import log_density
from condens.kernels import native

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("lead", [(), (1,), (3,), (50,), (2, 7)])
@pytest.mark.parametrize("batch", [(), (1,), (6,), (2, 3)])
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_as_plain_torch(lead, batch, covariance):
    parameters = random_parameters(batch, 3, 4, covariance=covariance)
    x = 3 * torch.randn(*lead, *batch, 4, dtype=torch.float64)
    expected = mixture.log_prob(x, *parameters)
    assert log_density(x, *parameters).shape == expected.shape
    assert_close(log_density(x, *parameters), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.skipif(native.missing != "", reason="no native kernel")
def test_the_kernel_is_asked(monkeypatch):
    """And only where it serves: not for gradients, nor for shapes that broadcast."""
    parameters = random_parameters((6,), 3, 2)
    monkeypatch.delenv("CONDENS_KERNEL", raising=False)
    monkeypatch.setattr(fused, "log_prob", lambda *_: "plain")
    x = torch.randn(5, 6, 2, dtype=torch.float64)
    assert log_density(x, *parameters) != "plain"
    assert log_density(x.clone().requires_grad_(), *parameters) == "plain"
    with torch.no_grad():
        assert log_density(x.clone().requires_grad_(), *parameters) != "plain"
    assert log_density(x[:, :1], *parameters) == "plain"
    monkeypatch.setenv("CONDENS_KERNEL", "reference")
    assert log_density(x, *parameters) == "plain"


def test_in_double_precision_whatever_the_dtype():
    parameters = [tensor.float() for tensor in random_parameters((6,), 3, 2)]
    x = torch.randn(5, 6, 2)
    assert torch.equal(log_density(x, *parameters), mixture.log_prob(x, *parameters))
    assert_close(log_density(x.double(), *parameters), mixture.log_prob(x.double(), *parameters))


@pytest.mark.parametrize("far", [1e3, 1e100, 1e160, 1e300, INF, -INF, NAN])
def test_extremes_are_those_of_plain_torch(far):
    parameters = random_parameters((6,), 3, 2)
    x = torch.randn(5, 6, 2, dtype=torch.float64)
    x[2, 3, 1] = far
    expected = mixture.log_prob(x, *parameters)
    assert_close(log_density(x, *parameters), expected, rtol=1e-12, atol=1e-12, equal_nan=True)


def test_a_component_without_weight():
    logits, means, factors = random_parameters((6,), 3, 2)
    logits[:, 0] = -INF
    x = torch.randn(5, 6, 2, dtype=torch.float64)
    expected = mixture.log_prob(x, logits, means, factors)
    assert_close(log_density(x, logits, means, factors), expected, rtol=1e-12, atol=1e-12)


def test_gradients_flow_through_log_prob():
    parameters = [tensor.requires_grad_() for tensor in random_parameters((4,), 3, 2)]
    GaussianMixture(*parameters).log_prob(torch.zeros(5, 4, 2)).sum().backward()
    assert all(tensor.grad is not None for tensor in parameters)
