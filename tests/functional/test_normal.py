"""The probability of an interval under the standard normal, against many digits."""

import math

import mpmath
import pytest
import torch
from torch.testing import assert_close

from condens.functional import normal

INF = float("inf")
INTERVALS = [
    (-1.0, 1.0), (0.3, 1.2), (-20.0, 10.0), (-0.25, 0.2), (3.0, 3.1), (30.0, 31.0), (-31.0, -30.0),
    (1e-7, 2e-7), (5.0, 5.0 + 2.0**-30), (-INF, -35.0), (37.0, INF), (1000.0, 1000.0 + 2.0**-10),
    (-0.249, 0.25), (-0.26, 0.25), (2.0, 2.16), (2.0, 2.17),
]  # fmt: skip


def exact(lower, upper):
    with mpmath.workdps(60):
        a, b = (lower, upper) if upper <= 0 else (-upper, -lower)
        root = mpmath.sqrt(2)
        return float(mpmath.log((mpmath.erfc(-b / root) - mpmath.erfc(-a / root)) / 2))


@pytest.mark.parametrize("ends", INTERVALS, ids=str)
def test_log_interval(ends):
    lower, upper = torch.tensor(ends, dtype=torch.float64)
    assert_close(float(normal.log_interval(lower, upper)), exact(*ends), rtol=1e-14, atol=2e-15)


@pytest.mark.parametrize("lower", [-1e8, -3e4, -5.0, 0.25, 40.0, 1e5, 1e8, 1e12])
@pytest.mark.parametrize("width", [1e-30, 1e-17, 1e-9, 3e-8, 0.1])
def test_log_interval_of_a_width_that_the_ends_have_lost(lower, width):
    """Against −½z² and what is left of it: Φ(a + w) − Φ(a) = φ(a)·(1 − e^(−|a|w))/|a|, nearly."""
    ends = torch.tensor([lower, lower + width], dtype=torch.float64)
    found = normal.log_interval(*ends, torch.tensor(width, dtype=torch.float64))
    with mpmath.workdps(60):
        a, w = mpmath.mpf(lower), mpmath.mpf(width)
        inner = mpmath.quad(
            lambda t: mpmath.exp(-a * t - t * t / 2),
            [0, min(w, 1 / abs(a)), min(w, 40 / abs(a)), w] if a > 0 else mpmath.linspace(0, w, 4),
        )
        if a < 0 and abs(a) * w > 1:  # from the end that has the probability
            inner = mpmath.exp(-a * w - w * w / 2) * mpmath.quad(
                lambda t: mpmath.exp((a + w) * t - t * t / 2),
                [0, min(w, 1 / abs(a)), min(w, 40 / abs(a)), w],
            )
        expected = mpmath.log(inner) - a * a / 2 - mpmath.log(2 * mpmath.pi) / 2
    # z²/2 is as exact as the middle of the ends is.
    allowed = 1e-13 + abs(lower) * (math.ulp(lower) + width * 2**-50)
    assert float(found) == pytest.approx(float(expected), rel=1e-14, abs=allowed)


def test_gradients_of_log_interval():
    finite = torch.tensor([i for i in INTERVALS if abs(i[0]) < 100 and abs(i[1]) < 100])
    wide = finite[(finite[:, 1] - finite[:, 0]) > 1e-2].double()
    lower, upper = (end.clone().requires_grad_() for end in wide.unbind(-1))
    assert torch.autograd.gradcheck(normal.log_interval, (lower, upper))


def test_log_interval_beyond_the_precision():
    lower = torch.tensor([1e200, -INF, -INF], dtype=torch.float64, requires_grad=True)
    upper = torch.tensor([1e200, -1e200, INF], dtype=torch.float64, requires_grad=True)
    result = normal.log_interval(lower, upper)
    assert result.tolist() == [-INF, -INF, 0.0]
    for gradient in torch.autograd.grad(result.exp().sum(), (lower, upper)):
        assert (gradient == 0).all()


@pytest.mark.parametrize("count", [1, 5, 24])
def test_gauss_legendre(count):
    nodes, weights = normal.gauss_legendre(count, torch.zeros(1, dtype=torch.float64))
    for power in range(2 * count):
        assert_close(float(weights @ nodes**power), 1 / (power + 1), rtol=1e-13, atol=0)
