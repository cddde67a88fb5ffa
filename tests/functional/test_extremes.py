"""Float32 against float64 on the same numbers, where other libraries give inf or NaN."""

import hypothesis
import pytest
import torch
from helpers.reference import COVARIANCES
from hypothesis import strategies as st

from condens.functional import log_prob, nll, responsibilities, unwhiten
from condens.functional.triangular import packed_size
from condens.kernels import native

CASES = {
    "plain": (0.0, 0.0),
    "tight": (20.0, 20.0),
    "wide": (-20.0, -20.0),
    "mixed": (-8.0, 8.0),
}


def case(log_diagonals, distance, dimensions, covariance, logit=1e4, n_components=4):
    """Return float32 arguments with every target `distance` σ from a component's mean."""
    lowest, highest = log_diagonals
    rows = 16
    size = packed_size(dimensions) if covariance == "full" else dimensions
    factors = torch.randn(rows, n_components, size) / dimensions**0.5
    factors[..., :dimensions] = torch.empty(rows, n_components, dimensions).uniform_(
        lowest, highest
    )
    if size > dimensions:
        # Correlations of order one: an entry has the unit of its column's dimension.
        _, column = torch.triu_indices(dimensions, dimensions, 1)
        factors[..., dimensions:] *= factors[..., column].exp()
    direction = torch.nn.functional.normalize(torch.randn(rows, n_components, dimensions), dim=-1)
    # The target is the origin: elsewhere float32 cannot even hold x − μ = exp(−20).
    target = torch.zeros(rows, dimensions)
    means = -unwhiten((distance * direction).double(), factors.double()).float()
    logits = logit * torch.linspace(-1, 1, n_components).expand(rows, -1)
    return target, logits.clone(), means, factors


def loss_and_gradients(arguments, loss=lambda *a: -log_prob(*a)):
    arguments = [tensor.clone().requires_grad_() for tensor in arguments]
    value = loss(*arguments)
    return value.detach(), torch.autograd.grad(value.sum(), arguments)


def relative_error(single, double, unit=1.0):
    """Return the largest error of each row in units of its largest entry, or of one."""
    single, double = ((t.double() / unit).reshape(len(t), -1) for t in (single, double))
    size = double.abs().amax(-1).clamp(min=1.0)
    return ((single - double).abs().amax(-1) / size).max()


def units(factors, dimensions):
    """Return what makes each gradient a pure number: the scale of its dimension."""
    scale = factors[..., :dimensions].double().exp()
    _, column = torch.triu_indices(dimensions, dimensions, 1)
    strict = scale[..., column].reciprocal()[..., : factors.shape[-1] - dimensions]
    heaviest = scale[:, -1]
    return heaviest, 1.0, scale, torch.cat([torch.ones_like(scale), strict], -1)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("dimensions", [1, 5, 50])
@pytest.mark.parametrize("distance", [1.0, 30.0, 1e3])
@pytest.mark.parametrize("logit", [1.0, 1e4])
@pytest.mark.parametrize("name", CASES)
def test_float32_loss_and_gradients_are_those_of_float64(
    name, logit, distance, dimensions, covariance
):
    """All components are equally far: with logits of one they compete, at energies of 5e5."""
    arguments = case(CASES[name], distance, dimensions, covariance, logit)
    expected, expected_gradients = loss_and_gradients([a.double() for a in arguments])
    # The eager kernel sums in float32: it decides between equals at 30 σ, not at 1000.
    losses = [lambda *a: -log_prob(*a)]
    if not native.missing or logit > 1 or distance <= 30:
        losses.append(nll)
    for loss in losses:
        value, gradients = loss_and_gradients(arguments, loss)
        assert relative_error(value, expected) < 1e-3
        for gradient, reference, unit in zip(
            gradients, expected_gradients, units(arguments[3], dimensions), strict=True
        ):
            assert gradient.isfinite().all()
            assert relative_error(gradient, reference, unit) < 1e-3


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("far", [1e20, 1e30, 3e38, float("inf")])
def test_beyond_float32_is_minus_infinity_with_a_finite_gradient(far, covariance):
    target, logits, means, factors = case((0.0, 0.0), 1.0, 3, covariance, logit=1.0)
    target[:, 1] = far
    arguments = [t.requires_grad_() for t in (target, logits, means, factors)]
    value = log_prob(*arguments)
    assert value.isneginf().all()
    value.sum().backward()
    assert all(a.grad.isfinite().all() for a in arguments)
    found = responsibilities(target, logits, means, factors)
    torch.testing.assert_close(found, torch.softmax(logits, -1))


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_one_lost_component_does_not_spoil_the_others(covariance):
    target, logits, means, factors = case((0.0, 0.0), 1.0, 3, covariance, logit=1.0)
    expected = log_prob(target, logits[:, 1:], means[:, 1:], factors[:, 1:])
    log_weight = torch.log_softmax(logits, -1)[:, 1:].logsumexp(-1)
    with torch.no_grad():
        means[:, 0] = 1e30
    arguments = [t.requires_grad_() for t in (target, logits, means, factors)]
    value = log_prob(*arguments)
    torch.testing.assert_close(value, expected + log_weight)
    value.sum().backward()
    assert all(a.grad.isfinite().all() for a in arguments)


def test_float32_survives_cancellation_in_the_whitening():
    """Log-diagonals of ±8 and couplings of order one: z is a small difference of large terms."""
    factors = torch.randn(64, 2, 6)
    factors[..., :3] = torch.tensor([8.0, -8.0, 8.0])
    target = torch.zeros(64, 3)
    direction = torch.nn.functional.normalize(torch.randn(64, 2, 3), dim=-1)
    means = -unwhiten((1e3 * direction).double(), factors.double()).float()
    arguments = (target, torch.zeros(64, 2), means, factors)
    value, gradients = loss_and_gradients(arguments)
    expected, expected_gradients = loss_and_gradients([a.double() for a in arguments])
    assert relative_error(value, expected) < 1e-5
    for gradient, reference in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient.double(), reference, rtol=1e-4, atol=1e-30)


def test_autocast_does_not_touch_the_likelihood():
    target, logits, means, factors = case((0.0, 0.0), 3.0, 4, "full", logit=1.0)
    expected = log_prob(target, logits, means, factors)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(log_prob(target, logits, means, factors), expected)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("position", range(4))
def test_nan_is_not_hidden(position, covariance):
    arguments = case((0.0, 0.0), 1.0, 3, covariance)
    arguments[position][3, ..., 1] = torch.nan
    assert log_prob(*arguments).isnan().nonzero().tolist() == [[3]]


@hypothesis.given(
    st.integers(0, 2**31),
    st.sampled_from(COVARIANCES),
    st.floats(-300, 300),
    st.floats(0, 38),
    st.floats(-6, 6),
)
def test_never_nan(seed, covariance, log_diagonal, log_distance, log_logit):
    generator = torch.Generator().manual_seed(seed)
    size = 6 if covariance == "full" else 3
    factors = torch.randn(5, 2, size, generator=generator)
    factors[..., :3] += log_diagonal
    means = 10**log_distance * torch.randn(5, 2, 3, generator=generator)
    logits = 10**log_logit * torch.randn(5, 2, generator=generator)
    target = torch.randn(5, 3, generator=generator)
    target[0] = means[0, 0]
    arguments = [t.requires_grad_() for t in (target, logits, means, factors)]
    value = log_prob(*arguments)
    assert not value.isnan().any()
    value.sum().backward()
    assert not any(a.grad.isnan().any() for a in arguments)
