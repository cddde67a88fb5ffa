"""`expectation` of functions, by draws."""

import math

import numpy as np
import pytest
import torch
from helpers.reference import random_low_rank, random_parameters
from helpers.transformed import MIXED, mixture_of
from torch.testing import assert_close

from condens import GaussianMixture, LowRankMixture
from condens.distributions import base
from condens.errors import ArgumentError, KindError, NotFiniteError, ShapeError


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


MIXTURES = {
    "full": lambda: GaussianMixture(*random_parameters((4,), 3, 2)),
    "low_rank": lambda: LowRankMixture(*random_low_rank((4,), 3, 3, 1)),
    "float32": lambda: GaussianMixture(*random_parameters((4,), 3, 2)).to(torch.float32),
    "mixed": lambda: mixture_of(MIXED, batch=(4,), tight=1.0),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_moments_within_their_errors(name):
    """At most one entry in a thousand is 3.3 errors away; here all are within 4.5."""
    m = MIXTURES[name]()
    first = m.expectation(lambda y: y, generator=seeded(1))
    assert first.value.shape == (4, m.dimensions)
    assert first.value.dtype is m.dtype
    assert ((first.value - m.mean).abs() < 4.5 * first.standard_error).all()
    assert_close(first.standard_error, m.stddev / 100, rtol=0.2, atol=0)
    centre = m.mean

    def outer(y):
        return (y - centre).unsqueeze(-1) * (y - centre).unsqueeze(-2)

    second = m.expectation(outer, generator=seeded(2))
    assert second.value.shape == (4, m.dimensions, m.dimensions)
    slack = 4.5 * second.standard_error + 1e-3 * m.variance.amax()
    assert ((second.value - m.covariance_matrix).abs() < slack).all()


def test_a_truth_is_a_probability():
    m = GaussianMixture(*random_parameters((), 3, 2))
    found = m.expectation(lambda y: (y > 0).all(-1), generator=seeded())
    exact = m.probability(0.0).value
    assert abs(found.value - exact) < 4.5 * found.standard_error
    p = float(found.value)
    assert_close(float(found.standard_error), math.sqrt(p * (1 - p) / 9_999), rtol=1e-6, atol=0)


def test_blocks_are_one_sample(monkeypatch):
    """Mean and error over all draws, whatever the blocks; far from zero too."""
    m = GaussianMixture(*random_parameters((3,), 2, 2)).affine(1.0, 1e6)
    seen, sizes = [], []

    def keep(y):
        seen.append(y)
        sizes.append(len(y))
        return y.sum(-1)

    monkeypatch.setattr(base, "NUMBERS_PER_BLOCK", 6 * 70)
    found = m.expectation(keep, n_samples=1000, generator=seeded())
    assert sizes == [70] * 14 + [20]
    values = torch.cat(seen).sum(-1)
    assert_close(found.value, values.mean(0), rtol=1e-12, atol=0)
    assert_close(found.standard_error, values.std(0) / math.sqrt(1000), rtol=1e-9, atol=0)
    monkeypatch.setattr(base, "NUMBERS_PER_BLOCK", 1)
    one = m.expectation(lambda y: y.sum(-1), n_samples=5, generator=seeded())
    assert one.standard_error.isfinite().all()


def test_the_error_is_honest():
    m = GaussianMixture(*random_parameters((400,), 2, 1))
    found = m.expectation(lambda y: y.squeeze(-1), n_samples=200, generator=seeded())
    z = (found.value - m.mean.squeeze(-1)) / found.standard_error
    assert 0.9 < z.std() < 1.1


def test_arrays_will_do():
    m = GaussianMixture(*random_parameters((3,), 2, 2))
    one, other = (
        m.expectation(f, generator=seeded()).value
        for f in (lambda y: y.square(), lambda y: np.square(y.numpy()))
    )
    assert_close(one, other, rtol=1e-12, atol=0)


def test_no_gradient_and_empty_batches():
    parameters = [tensor.requires_grad_() for tensor in random_parameters((2,), 2, 2)]
    m = GaussianMixture(*parameters)
    assert not m.expectation(lambda y: y).value.requires_grad
    assert m[:0].expectation(lambda y: y, n_samples=3).value.shape == (0, 2)


def test_mistakes_have_names():
    m = GaussianMixture(*random_parameters((3,), 2, 2))
    with pytest.raises(KindError, match="function is int"):
        m.expectation(3)
    with pytest.raises(ShapeError, match=r"function\(draws\) has shape \[\]"):
        m.expectation(lambda _: 1.0)
    with pytest.raises(ArgumentError, match=r"function\(draws\) is complex"):
        m.expectation(lambda y: torch.complex(y, y))
    with pytest.raises(ShapeError, match=r"function\(draws\) has shape \[3, 2\]"):
        m.expectation(lambda y: y.mean(0))
    with pytest.raises(NotFiniteError, match=r"function\(draws\) has \d+ value"):
        m.expectation(lambda y: y.log())
    with pytest.raises(ArgumentError, match="n_samples"):
        m.expectation(lambda y: y, n_samples=1)
    with pytest.raises(ZeroDivisionError):
        m.expectation(lambda y: y / (1 // 0))
