"""The chunked linear layer and loss against the two done one after the other."""

import math
from functools import cache

import mpmath
import pytest
import torch
from helpers.implementations import IMPLEMENTATIONS, forced
from helpers.reference import COVARIANCES
from torch.testing import assert_close

from condens.errors import ArgumentError, ShapeError
from condens.functional import bounded_scales, linear_loss, log_prob
from condens.functional.fused_linear import Layout

BOUNDS = [(0.0, torch.inf), (0.3, torch.inf), (0.0, 2.0), (0.3, 2.0), (1e-3, 50.0)]


@pytest.fixture(params=[*IMPLEMENTATIONS, "reference"])
def implementation(request, monkeypatch):
    yield from forced(request.param, monkeypatch)


def case(covariance="full", rows=150, inputs=6, n_components=3, dimensions=4):
    packed = dimensions * (dimensions + 1) // 2 if covariance == "full" else dimensions
    layout = Layout(n_components, dimensions, packed)
    features = torch.randn(rows, inputs, dtype=torch.float64)
    weight = 0.2 * torch.randn(layout.outputs, inputs, dtype=torch.float64)
    bias = 0.2 * torch.randn(layout.outputs, dtype=torch.float64)
    target = torch.randn(rows, dimensions, dtype=torch.float64)
    return layout, [t.requires_grad_() for t in (features, weight, bias, target)]


def plainly(layout, features, weight, bias, target, row_weights, floor=0.0, ceiling=torch.inf):
    """Logits, then means component by component, then packed factors component by component."""
    outputs = features @ weight.T + bias
    k, d, t = layout
    logits, rest = outputs[:, :k], outputs[:, k:]
    means, factors = rest[:, : k * d].reshape(-1, k, d), rest[:, k * d :].reshape(-1, k, t)
    scales = floor + 1 / (factors[..., :d].exp() + 1 / ceiling)
    factors = torch.cat([-scales.log(), factors[..., d:]], -1)
    return -(log_prob(target, logits, means, factors) * row_weights).sum()


@cache
def bounded(u, floor, ceiling):
    """Return −u′ = log(floor + 1/(eᵘ + 1/ceiling)) and du′/du in many digits."""
    with mpmath.workdps(4_500):
        e = mpmath.exp(mpmath.mpf(u))
        s = 1 / (e + 1 / mpmath.mpf(ceiling))
        return mpmath.log(floor + s), s / (floor + s) * (e * s)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@pytest.mark.parametrize("chunk", [1, 64, 150, 1000])
def test_same_loss_and_gradients_for_every_chunk(implementation, chunk, bounds, covariance):
    layout, tensors = case(covariance)
    row_weights = torch.rand(150, dtype=torch.float64)
    expected = plainly(layout, *tensors, row_weights, *bounds)
    floor, ceiling = bounds
    value = linear_loss(
        *tensors, layout.n_components, row_weights, floor=floor, ceiling=ceiling, chunk=chunk
    )
    assert_close(value, expected, rtol=1e-11, atol=1e-11)
    reference = torch.autograd.grad(expected, tensors)
    assert_close(
        torch.autograd.grad(2 * value, tensors), [2 * g for g in reference], rtol=1e-9, atol=1e-11
    )


def test_mean_by_default_and_a_second_backward_pass(implementation):
    layout, tensors = case()
    rows = torch.full((150,), 1 / 150, dtype=torch.float64)
    reference = torch.autograd.grad(plainly(layout, *tensors, rows), tensors)
    value = linear_loss(*tensors, layout.n_components, chunk=40)
    for _ in range(2):
        made = torch.autograd.grad(value, tensors, retain_graph=True)
        assert_close(made, reference, rtol=1e-9, atol=1e-12)


def test_derivatives_of_both_orders(implementation):
    layout, tensors = case(rows=3, inputs=2, n_components=2, dimensions=2)

    def loss(*inputs):
        return linear_loss(*inputs, layout.n_components, floor=0.2, ceiling=2.0, chunk=2)

    assert torch.autograd.gradcheck(loss, tensors)
    assert torch.autograd.gradgradcheck(loss, tensors)


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scales_far_beyond_their_bounds(implementation, bounds, dtype):
    """At the mean the loss is the sum of the log scales, and each has its own slope."""
    floor, ceiling = bounds
    entries = [-1e4, -800.0, -100.0, -30.0, -1.0, 0.0, 1.0, 30.0, 80.0, 800.0, 1e4]
    exact = [bounded(u, floor, ceiling) for u in entries]
    bias = torch.zeros(1 + 2 * len(entries), dtype=dtype)
    bias[1 + len(entries) :] = torch.tensor(entries)
    target = torch.zeros(1, len(entries), dtype=dtype)
    bias.requires_grad_()
    weight = torch.zeros(len(bias), 1, dtype=dtype)
    value = linear_loss(target[:, :1], weight, bias, target, 1, floor=floor, ceiling=ceiling)
    constant = 0.5 * len(entries) * math.log(2 * math.pi)
    digits = 1e-11 if dtype is torch.float64 else 1e-5
    expected = float(sum(log_scale for log_scale, _ in exact)) + constant
    assert value.item() == pytest.approx(expected, rel=digits, abs=2e4 * digits)
    value.backward()
    slopes = torch.tensor([-float(slope) for _, slope in exact], dtype=dtype)
    assert_close(bias.grad[1 + len(entries) :], slopes, rtol=digits, atol=1e-30)


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        (
            {"floor": -1.0},
            "floor is -1.0, but a number between 1e-30 and 1e30 was expected, or 0",
        ),
        ({"floor": float("nan")}, "floor is nan"),
        ({"floor": float("inf")}, "floor is inf"),
        ({"ceiling": 0.0}, "ceiling is 0.0.* or inf for none"),
        ({"ceiling": -3.0}, "ceiling is -3.0"),
        ({"ceiling": float("nan")}, "ceiling is nan"),
    ],
)
def test_bounds_that_no_scale_has_are_refused(bounds, text):
    layout, tensors = case()
    with pytest.raises(ArgumentError, match=text):
        linear_loss(*tensors, layout.n_components, **bounds)
    with pytest.raises(ArgumentError, match=text):
        bounded_scales(torch.zeros(3), 2, **bounds)


def test_wrong_number_of_outputs_is_refused():
    layout, (features, weight, bias, target) = case()
    with pytest.raises(ShapeError, match=r"weight has 44 outputs.*45 \(full\) or 27 \(diagonal\)"):
        linear_loss(features, weight[:-1], bias[:-1], target, layout.n_components)


@pytest.mark.parametrize("chunk", [3, 100])
def test_a_row_without_weight_takes_no_part_even_where_its_loss_is_infinite(implementation, chunk):
    layout, (features, weight, bias, target) = case(rows=8)
    features, weight, bias, target = (t.detach().float() for t in (features, weight, bias, target))
    target[2] = 1e30  # beyond every component, in this precision
    row_weights = torch.full((8,), 1 / 7)
    row_weights[2] = 0.0
    tensors = [t.requires_grad_() for t in (features, weight, bias)]
    value = linear_loss(*tensors, target, layout.n_components, row_weights, chunk=chunk)
    others = [i for i in range(8) if i != 2]
    expected = linear_loss(features[others], weight, bias, target[others], layout.n_components)
    assert_close(value, expected, rtol=1e-5, atol=1e-6)
    gradients = torch.autograd.grad(value, tensors)
    assert_close(gradients[0][2], torch.zeros(6))
    assert_close(gradients, torch.autograd.grad(expected, tensors), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("which", range(4), ids=["features", "weight", "bias", "target"])
def test_a_change_between_the_passes_is_noticed(implementation, which):
    layout, leaves = case()
    for passes in (0, 1):
        tensors = [leaf * 1 for leaf in leaves]
        value = linear_loss(*tensors, layout.n_components)
        for _ in range(passes):
            value.backward(retain_graph=True)
        with torch.no_grad():
            tensors[which].add_(1)
        if implementation == "reference" and which > 1:
            value.backward()  # plain autograd only adds these, and needs them no more
            continue
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            value.backward()


@pytest.mark.parametrize("which", [0, 3], ids=["features", "target"])
def test_overlapping_rows_share_their_gradient(implementation, which):
    layout, tensors = case()
    width = tensors[which].shape[1]
    series = torch.randn(149 + width, dtype=torch.float64, requires_grad=True)
    tensors[which] = series.unfold(0, width, 1)
    row_weights = torch.rand(150, dtype=torch.float64)
    value = linear_loss(*tensors, layout.n_components, row_weights, chunk=64)
    expected = plainly(layout, *tensors, row_weights)
    assert_close(value, expected, rtol=1e-11, atol=1e-11)
    (gradient,), (exact,) = (torch.autograd.grad(loss, series) for loss in (value, expected))
    assert_close(gradient, exact, rtol=1e-9, atol=1e-11)


def test_no_rows_have_no_loss(implementation):
    layout, tensors = case(rows=0)
    value = linear_loss(*tensors, layout.n_components, floor=0.1)
    assert value == 0
    assert all(not gradient.any() for gradient in torch.autograd.grad(value, tensors))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_under_transforms_and_traces(implementation):
    _, (features, *others) = case(rows=6)
    weight, bias, target = (t.detach() for t in others)

    def loss(features):
        return linear_loss(features, weight, bias, target, 3, floor=0.1)

    (expected,) = torch.autograd.grad(loss(features), features)
    assert_close(torch.func.grad(loss)(features.detach()), expected)
    stacked = torch.stack([features, 2 * features]).detach()
    assert_close(torch.vmap(loss)(stacked), torch.stack([loss(rows) for rows in stacked]))
    traced = torch.jit.trace(loss, features.detach(), check_trace=False)
    assert_close(traced(2 * features), loss(2 * features))
