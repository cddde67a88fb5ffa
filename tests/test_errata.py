"""The report's four errata: what it prints fails here, what we compute does not."""

import math

import pytest
import torch
from helpers.reference import random_parameters
from torch.testing import assert_close

from condens import GaussianMixture
from condens.errors import ShapeError
from condens.functional import (
    log_prob,
    nll,
    packed_size,
    report_printed_form,
    sample,
    uniform_bound,
    unpack,
    unwhiten,
    weighted_bound,
)


def test_1_normaliser_has_the_power_of_the_dimensions_not_of_the_components():
    dimensions, n_components = 2, 5
    parameters = random_parameters((), n_components, dimensions, spread=1.0)
    axis = torch.linspace(-30, 30, 601, dtype=torch.float64)
    log_density = log_prob(torch.cartesian_prod(axis, axis), *parameters)
    cell = (axis[1] - axis[0]) ** 2
    assert_close((log_density.exp().sum() * cell).item(), 1.0, rtol=0, atol=1e-9)
    # As printed: (2π)^K under the root in place of (2π)^D.
    printed = log_density + 0.5 * (dimensions - n_components) * math.log(2 * math.pi)
    assert abs((printed.exp().sum() * cell).item() - 1) > 0.9


def test_2_sampling_factor_is_the_inverse_not_its_transpose():
    logits, means, factors = random_parameters((), 1, 3, seed=4)
    upper = unpack(factors, 3)
    covariance = torch.linalg.inv(upper.mT @ upper)[0]
    noise = torch.randn(200_000, 1, 3, dtype=torch.float64)
    ours = unwhiten(noise, factors)[:, 0].T.cov()
    printed = (noise @ torch.linalg.inv(upper))[:, 0].T.cov()  # rows times Ū⁻¹: Ū⁻ᵀ on columns
    # The entries of a sample covariance have a standard error of about |Σ| √(2/n).
    error = covariance.abs().max() * math.sqrt(2 / 200_000)
    drawn = sample(logits, means, factors, (200_000,)).T.cov()
    assert (ours - covariance).abs().max() < 5 * error
    assert (drawn - covariance).abs().max() < 5 * error
    assert (printed - covariance).abs().max() > 50 * error


def test_3_a_factor_has_its_diagonal():
    dimensions = 4
    assert packed_size(dimensions) == dimensions * (dimensions + 1) // 2 == 10
    printed = dimensions * (dimensions - 1) // 2
    logits, means = torch.zeros(1), torch.zeros(1, dimensions)
    with pytest.raises(ShapeError, match="factors has 6 numbers"):
        GaussianMixture(logits, means, torch.zeros(1, printed))
    assert "full" in repr(GaussianMixture(logits, means, torch.zeros(1, 10)))


def test_4_printed_bound_is_not_a_bound():
    # Two equal components with density 6 at x = 0, in one dimension.
    log_precision = math.log(6) + 0.5 * math.log(2 * math.pi)
    logits, means = torch.zeros(2, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64)
    arguments = (torch.zeros(1, dtype=torch.float64), logits, means, means + log_precision)
    exact = nll(*arguments).item()
    assert exact == pytest.approx(-1.791759, abs=1e-6)
    assert report_printed_form(*arguments).item() == pytest.approx(-2.197225, abs=1e-6)
    assert report_printed_form(*arguments) < exact
    assert weighted_bound(*arguments).item() >= exact - 1e-12
    assert uniform_bound(*arguments).item() >= exact - 1e-12
