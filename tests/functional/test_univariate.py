import hypothesis
import mpmath
import numpy as np
import pytest
import torch
from helpers.reference import dense, random_parameters
from hypothesis import strategies as st
from scipy import stats
from torch.testing import assert_close

from condens import GaussianMixture, TransformedMixture
from condens.functional import cdf, conditional_cdfs, icdf, log_prob
from condens.transforms import Positive

mpmath.mp.dps = 60


def exact_cdf(x, weights, means, deviations):
    """Return P(X ≤ x) to sixty digits."""
    return mpmath.fsum(
        w * mpmath.ncdf((x - m) / s) for w, m, s in zip(weights, means, deviations, strict=True)
    )


def exact_quantile(p, weights, means, deviations):
    """Bisect to sixty digits the exact mixture of the given floating-point numbers."""
    total = mpmath.fsum(weights)
    weights = [w / total for w in weights]
    reach = 45 * max(deviations)
    low, high = min(means) - reach, max(means) + reach
    for _ in range(230):
        middle = (low + high) / 2
        if exact_cdf(middle, weights, means, deviations) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def build(weights, means, deviations):
    weights, means, deviations = (
        torch.tensor(t, dtype=torch.float64) for t in (weights, means, deviations)
    )
    return weights.log(), means[:, None], -deviations.log()[:, None]


HARD = {
    # Weights that binary numbers hold exactly: else their rounding moves the quantiles.
    "far apart": ([0.25, 0.75], [0.0, 1e6], [1.0, 1.0]),
    "far apart, unequal scales": ([0.5, 0.125, 0.375], [-1e6, 0.0, 1e6], [2**-10, 1.0, 2**10]),
    "tiny weight": ([1 - 2**-40, 2**-40], [0.0, 50.0], [1.0, 1.0]),
    "tiny weight far below": ([2**-40, 1 - 2**-40], [-1e6, 0.0], [1.0, 1.0]),
    "narrow in wide": ([0.5, 0.5], [0.0, 0.25], [1.0, 2**-26]),
    "one": ([1.0], [3.0], [2.0]),
}
LEVELS = [1e-300, 1e-30, 5e-13, 2e-12, 0.01, 0.299, 0.49, 0.6, 0.9, 0.999, 1 - 1e-12]


@pytest.mark.parametrize("name", HARD)
def test_quantiles_against_sixty_digits(name):
    weights, means, deviations = HARD[name]
    parameters = build(weights, means, deviations)
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    ours = icdf(levels, *parameters).squeeze(-1)
    for p, x in zip(LEVELS, ours.tolist(), strict=True):
        exact = exact_quantile(mpmath.mpf(p), weights, means, deviations)
        # One rounding of the quantile and of the means, and one of the tail beyond it.
        density = log_prob(torch.tensor([x], dtype=torch.float64), *parameters).exp().item()
        rounding = 1e-15 * min(p, 1 - p) / density + 1e-15 * (abs(x) + max(map(abs, means)))
        assert abs(x - exact) <= 4 * rounding, (p, x, float(exact))


def test_components_narrower_than_the_spacing_of_numbers():
    """A mean is hit exactly, and Newton's step there is below the resolution: no convergence."""
    for dtype in (torch.float32, torch.float64):
        for means, log_precision in (([0.0, 1e8, 2e8], 20.0), ([0.0, 1.0, 2.0], 40.0)):
            parameters = (
                torch.zeros(3, dtype=dtype),
                torch.tensor(means, dtype=dtype)[:, None],
                torch.full((3, 1), log_precision, dtype=dtype),
            )
            quantiles = icdf(torch.tensor([0.1, 0.5, 0.9], dtype=dtype), *parameters)
            expected = torch.tensor(means, dtype=dtype)[:, None]
            assert_close(quantiles, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_at_the_ends_and_in_a_gap_are_never_nan(dtype):
    parameters = [
        torch.zeros(2, dtype=dtype),
        torch.tensor([[0.0], [100.0]], dtype=dtype),
        torch.tensor([[-2.0], [3.0]], dtype=dtype),
    ]
    inputs = [p.requires_grad_() for p in parameters]
    levels = torch.tensor([0.0, 1e-30, 0.5, 1.0], dtype=dtype, requires_grad=True)
    x = icdf(levels, *inputs)
    gradients = torch.autograd.grad(x[1:3].sum(), [levels, *inputs], retain_graph=True)
    assert not any(g.isnan().any() for g in gradients)
    (at_ends,) = torch.autograd.grad(x[1:3].sum(), levels)
    assert (at_ends[[0, 3]] == 0).all()


def test_far_tails_of_a_float32_mixture():
    one = torch.zeros(1, 1)
    mixture = GaussianMixture(torch.zeros(1), one, one)
    for coverage in (0.9, 1 - 1e-6, 1 - 1e-8, 1 - 1e-12):
        low, high = mixture.interval(coverage)
        assert_close(-low, high, rtol=0, atol=0)
        assert_close(high.item(), stats.norm.isf(0.5 * (1 - coverage)), rtol=1e-6, atol=0)


def test_answers_keep_the_mixtures_dtype_whatever_the_default():
    parameters = [p.float() for p in random_parameters((), 2, 1)]
    torch.set_default_dtype(torch.float64)
    try:
        assert icdf(torch.tensor([0.0, 0.5]), *parameters).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_parameters_of_different_batches_broadcast():
    logits, means, factors = random_parameters((4,), 3, 1)
    levels = torch.tensor(0.3, dtype=torch.float64)
    together = icdf(levels, logits[0], means, factors[:1])
    for i in range(4):
        alone = icdf(levels, logits[0], means[i], factors[0])
        assert_close(together[i], alone, rtol=1e-13, atol=1e-13)


def test_quantile_in_the_gap_balances_the_tails():
    logits, means, factors = build([0.5, 0.5], [-10.0, 10.0], [1.0, 1.0])
    median = icdf(torch.tensor(0.5, dtype=torch.float64), logits, means, factors)
    assert_close(median, torch.zeros(1, dtype=torch.float64), rtol=0, atol=1e-12)


@hypothesis.given(st.integers(0, 2**31), st.floats(1e-15, 1 - 1e-15), st.integers(1, 6))
def test_round_trip(seed, level, n_components):
    logits, means, factors = random_parameters((3,), n_components, 1, seed=seed, spread=10.0)
    levels = torch.tensor(level, dtype=torch.float64)
    x = icdf(levels, logits, means, factors)
    assert x.shape == (3, 1)
    back = cdf(x, logits, means, factors)
    assert_close(back, levels.expand(3), rtol=1e-12, atol=1e-15)


def test_round_trip_in_float32_and_monotone():
    parameters = [p.float() for p in random_parameters((), 4, 1, spread=5.0)]
    levels = torch.linspace(0.001, 0.999, 999)
    x = icdf(levels, *parameters)
    assert x.dtype == torch.float32
    assert_close(cdf(x, *parameters), levels, rtol=0, atol=1e-6)
    assert (x.diff(dim=0) > 0).all()


def test_ends_are_infinite_and_carry_no_gradient():
    parameters = [p.requires_grad_() for p in random_parameters((), 3, 1)]
    x = icdf(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64), *parameters)
    assert x[0].isneginf()
    assert x[2].isposinf()
    (x.squeeze(-1) * torch.tensor([0.0, 1.0, 0.0])).nan_to_num(0, 0, 0).sum().backward()
    assert all(p.grad.isfinite().all() for p in parameters)


def test_levels_broadcast_against_the_batch():
    parameters = random_parameters((4,), 3, 1)
    levels = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    x = icdf(levels[:, None], *parameters)
    assert x.shape == (3, 4, 1)
    for i in range(4):
        alone = icdf(levels, *(p[i] for p in parameters))
        assert_close(x[:, i], alone, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("n_components", [1, 3, 20])
def test_cdf_against_scipy(n_components):
    parameters = random_parameters((), n_components, 1)
    weights, means, covariances = dense(*parameters)
    x = torch.linspace(-8, 8, 33, dtype=torch.float64)[:, None]
    each = stats.norm.cdf(x.numpy(), means[:, 0], covariances[:, 0, 0] ** 0.5)
    np.testing.assert_allclose(cdf(x, *parameters), each @ weights, rtol=1e-12)


def test_cdf_keeps_its_digits_in_the_lower_tail():
    x = torch.tensor([[-37.0]], dtype=torch.float64)
    value = cdf(x, *build([0.3, 0.7], [0.0, 5.0], [1.0, 1.0])).item()
    assert value == pytest.approx(float(0.3 * mpmath.ncdf(-37)), rel=1e-12)


def test_derivative_of_the_cdf_is_the_density():
    parameters = random_parameters((5,), 3, 1)
    x = torch.randn(5, 1, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(cdf(x, *parameters).sum(), x)
    assert_close(slope.squeeze(-1), log_prob(x, *parameters).exp(), rtol=1e-10, atol=1e-12)


def test_derivatives():
    parameters = [p.requires_grad_() for p in random_parameters((2,), 3, 1)]
    x = torch.randn(2, 1, dtype=torch.float64, requires_grad=True)
    levels = torch.tensor([[0.2, 0.7], [0.5, 0.95]], dtype=torch.float64, requires_grad=True)
    for function, first in ((cdf, x), (icdf, levels)):
        assert torch.autograd.gradcheck(function, (first, *parameters))
        assert torch.autograd.gradgradcheck(function, (first, *parameters))


@pytest.mark.parametrize("size", [354.0, 300.0, 200.0])
@pytest.mark.parametrize("p", [1e-10, 0.3, 0.55, 0.7, 0.9])
def test_quantiles_across_three_hundred_decades(p, size):
    """One component of width e^−354 and one of e^354: halving lengths would take 1000 steps."""
    zero = torch.zeros(2, dtype=torch.float64)
    factors = torch.tensor([[size], [-size]], dtype=torch.float64)
    level = torch.tensor(p, dtype=torch.float64)
    at = icdf(level, zero, zero[:, None], factors)
    deviations = [mpmath.exp(-size), mpmath.exp(size)]
    # Where the narrow one decides, the wide one counts a half; elsewhere the narrow one is 0 or 1.
    if 0.25 < p < 0.75:
        exact = deviations[0] * mpmath.erfinv(2 * (2 * mpmath.mpf(p) - 0.5) - 1) * mpmath.sqrt(2)
    else:
        half = 2 * mpmath.mpf(p) - (1 if p > 0.5 else 0)
        exact = deviations[1] * mpmath.erfinv(2 * half - 1) * mpmath.sqrt(2)
    assert float(at) == pytest.approx(float(exact), rel=1e-12)
    assert float(cdf(at, zero, zero[:, None], factors)) == pytest.approx(p, rel=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_no_probability_exceeds_one(seed):
    """Weights sum to one up to rounding: in a sixth of mixtures of seven to more than one."""
    mixture = GaussianMixture(*random_parameters((50,), 7, 1, seed=seed))
    assert (mixture.cdf(torch.full((50, 1), 1e3)) <= 1).all()
    positive = TransformedMixture(mixture, [Positive()])
    assert (positive.cdf(torch.full((50, 1), 1e300, dtype=torch.float64)) <= 1).all()
    joint = random_parameters((50,), 7, 3, seed=seed)
    far = torch.full((50, 3), 1e3, dtype=torch.float64)
    assert (conditional_cdfs(far, *joint) <= 1).all()


def test_the_gradient_of_a_probability_of_one_is_the_density():
    """Capping a probability leaves its gradient alone."""
    logits, means, factors = random_parameters((200,), 7, 1)
    x = (means.amax(-2) + 6.0 * (-factors).exp().amax(-2)).requires_grad_()
    total = cdf(x, logits, means, factors)
    (slope,) = torch.autograd.grad(total.sum(), x)
    density = log_prob(x, logits, means, factors).exp()
    assert_close(slope.squeeze(-1), density.detach(), rtol=1e-10, atol=0)


def test_infinite_values_have_probabilities_without_gradients():
    logits, means, factors = random_parameters((2,), 3, 1)
    parameters = [t.requires_grad_() for t in (logits, means, factors)]
    x = torch.tensor([[torch.inf], [-torch.inf]], dtype=torch.float64)
    probability = cdf(x, *parameters)
    assert_close(probability, torch.tensor([1.0, 0.0], dtype=torch.float64), rtol=1e-15, atol=0)
    for gradient in torch.autograd.grad(probability.sum(), parameters):
        assert gradient.isfinite().all()


def test_ends_of_an_interval_are_in_order():
    # Both ends within rounding of a narrow component's mean, found from either side.
    generator = torch.Generator().manual_seed(0)
    logits, means = (torch.randn(4000, 3, generator=generator, dtype=torch.float64) for _ in "ab")
    scales = torch.rand(4000, 3, 1, generator=generator, dtype=torch.float64) * 60 - 20
    mixture = GaussianMixture(logits, means.unsqueeze(-1), scales)
    for coverage in (0.01, 0.1, 0.35, 0.6):
        lower, upper = mixture.interval(coverage)
        assert bool((lower <= upper).all())
