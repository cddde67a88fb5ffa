"""Float32 where a capacitance matrix is singular, and beyond what float32 holds."""

import hypothesis
import mpmath
import pytest
import torch
from helpers.reference import random_low_rank
from hypothesis import strategies as st
from torch.testing import assert_close

from condens.functional.low_rank import mixture as low_rank


def exact(target, means, log_scales, loadings):
    """Return the log density of one component and its gradients, to sixty digits."""
    with mpmath.workdps(60):
        dimensions, rank = loadings.shape
        offset = mpmath.matrix(target.tolist()) - mpmath.matrix(means.tolist())
        v = mpmath.matrix(loadings.tolist())
        scale = [mpmath.exp(mpmath.mpf(entry)) for entry in log_scales.tolist()]
        covariance = v * v.T + mpmath.diag([s**2 for s in scale])
        precision = covariance**-1
        pull = precision * offset
        log_root = mpmath.log(mpmath.det(covariance)) / 2
        energy = (offset.T * pull)[0] / 2
        value = -energy - log_root - mpmath.mpf(dimensions) / 2 * mpmath.log(2 * mpmath.pi)
        slope = (pull * pull.T - precision) * v
        curve = [(pull[i] ** 2 - precision[i, i]) * scale[i] ** 2 for i in range(dimensions)]
        gradients = (
            torch.tensor([float(p) for p in pull], dtype=torch.float64),
            torch.tensor([float(c) for c in curve], dtype=torch.float64),
            torch.tensor(
                [[float(slope[i, j]) for j in range(rank)] for i in range(dimensions)],
                dtype=torch.float64,
            ),
        )
        return float(value), gradients


# Range of the logarithms of the scales, size of the loadings, and the error allowed in
# ∂/∂log s: where factors explain x wholly, it is the square of what rounding leaves of z.
EXTREMES = {
    "tight": ((-13.8, -13.8), 1e3, 1e-5),
    "tight and wide": ((-13.8, 0.0), 1e3, 1e-5),
    "tight and wide, near the largest ratio": ((-20.0, 5.0), 1e3, 1e-2),
    "near the largest ratio": ((-20.0, -20.0), 1e3, 1e-2),
    "wide": ((13.8, 13.8), 1e-3, 1e-5),
}


@pytest.mark.parametrize(("dimensions", "rank"), [(1, 1), (1, 3), (5, 2), (5, 5), (3, 5)])
@pytest.mark.parametrize("name", EXTREMES)
def test_float32_at_a_hundred_deviations_against_sixty_digits(name, dimensions, rank):
    """A capacitance I + WᵀW, or a Woodbury difference, has no digit left here."""
    (low, high), size, allowed = EXTREMES[name]
    for _ in range(5):
        log_scales = torch.empty(dimensions).uniform_(low, high)
        loadings = size * torch.randn(dimensions, rank)
        noise, factors = 100 * torch.randn(dimensions), 100 * torch.randn(rank)
        # The mean is the origin: elsewhere float32 cannot even hold x − μ.
        target = (log_scales.exp() * noise + loadings @ factors).requires_grad_()
        means = torch.zeros(1, dimensions, requires_grad=True)
        inputs = [means, log_scales[None].requires_grad_(), loadings[None].requires_grad_()]
        value = low_rank.component_log_prob(target, *inputs)
        found = torch.autograd.grad(value, inputs)
        expected, gradients = exact(target, means[0], log_scales, loadings)
        assert_close(value.item(), expected, rtol=1e-6, atol=1e-6)
        for ours, reference, least in zip(found, gradients, (0.0, 1.0, 0.0), strict=True):
            # In units of the least entry, or, for the pure number ∂/∂log s, of one.
            unit = max(reference.abs().max().item(), least)
            error = (ours[0].double() - reference).abs().max().item() / unit
            assert error < (allowed if least else 1e-5)


@pytest.mark.parametrize("far", [1e20, 1e30, 3e38, float("inf")])
def test_beyond_float32_is_minus_infinity_with_a_finite_gradient(far):
    parameters = [p.float() for p in random_low_rank((4,), 2, 3, 2)]
    target = torch.zeros(4, 3)
    target[:, 1] = far
    inputs = [t.requires_grad_() for t in (target, *parameters)]
    value = low_rank.log_prob(*inputs)
    assert value.isneginf().all()
    value.sum().backward()
    assert all(t.grad.isfinite().all() for t in inputs)
    assert_close(low_rank.responsibilities(*inputs), torch.softmax(parameters[0], -1))


def test_one_lost_component_does_not_spoil_the_others():
    logits, means, log_scales, loadings = (p.float() for p in random_low_rank((4,), 3, 3, 2))
    target = torch.zeros(4, 3)
    others = [p[:, 1:] for p in (logits, means, log_scales, loadings)]
    expected = low_rank.log_prob(target, *others)
    log_weight = torch.log_softmax(logits, -1)[:, 1:].logsumexp(-1)
    means[:, 0] = 1e30
    inputs = [t.requires_grad_() for t in (target, logits, means, log_scales, loadings)]
    value = low_rank.log_prob(*inputs)
    assert_close(value, expected + log_weight)
    value.sum().backward()
    assert all(t.grad.isfinite().all() for t in inputs)


@pytest.mark.parametrize("position", range(5))
def test_nan_is_not_hidden(position):
    inputs = [torch.zeros(6, 3), *(p.float() for p in random_low_rank((6,), 3, 3, 2))]
    inputs[position][3, ..., 1] = torch.nan
    assert low_rank.log_prob(*inputs).isnan().nonzero().tolist() == [[3]]


@hypothesis.given(
    st.integers(0, 2**31),
    st.floats(-1000, 1000),
    st.floats(-30, 37),
    st.floats(0, 38),
    st.sampled_from([1, 2, 5]),
)
def test_never_nan(seed, log_scale, log_loading, log_distance, rank):
    generator = torch.Generator().manual_seed(seed)
    log_scales = torch.randn(5, 2, 3, generator=generator) + log_scale
    loadings = 10**log_loading * torch.randn(5, 2, 3, rank, generator=generator)
    means = 10**log_distance * torch.randn(5, 2, 3, generator=generator)
    logits, target = torch.randn(5, 2, generator=generator), torch.randn(5, 3, generator=generator)
    target[0] = means[0, 0]
    inputs = [t.requires_grad_() for t in (target, logits, means, log_scales, loadings)]
    value = low_rank.log_prob(*inputs)
    assert not value.isnan().any()
    value.sum().backward()
    assert not any(t.grad.isnan().any() for t in inputs)


def test_autocast_does_not_touch_the_likelihood():
    inputs = [torch.zeros(6, 3), *(p.float() for p in random_low_rank((6,), 3, 3, 2))]
    expected = low_rank.log_prob(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(low_rank.log_prob(*inputs), expected)
