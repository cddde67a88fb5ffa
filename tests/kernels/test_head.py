"""The chunked linear layer and loss against the two done one after the other."""

import pytest
import torch
from implementations import IMPLEMENTATIONS, forced
from reference import STRUCTURES
from torch.testing import assert_close

from condens.errors import ShapeError
from condens.functional import log_prob
from condens.kernels import linear_nll
from condens.kernels.head import Layout


@pytest.fixture(params=[*IMPLEMENTATIONS, "reference"])
def implementation(request, monkeypatch):
    yield from forced(request.param, monkeypatch)


def case(structure="full", rows=150, inputs=6, components=3, dimensions=4):
    packed = dimensions * (dimensions + 1) // 2 if structure == "full" else dimensions
    layout = Layout(components, dimensions, packed)
    features = torch.randn(rows, inputs, dtype=torch.float64)
    weight = 0.2 * torch.randn(layout.outputs, inputs, dtype=torch.float64)
    bias = 0.2 * torch.randn(layout.outputs, dtype=torch.float64)
    target = torch.randn(rows, dimensions, dtype=torch.float64)
    return layout, [t.requires_grad_() for t in (features, weight, bias, target)]


def plainly(layout, features, weight, bias, target, row_weights, floor=0.0):
    """Logits, then means component by component, then packed factors component by component."""
    outputs = features @ weight.T + bias
    k, d, t = layout
    logits, rest = outputs[:, :k], outputs[:, k:]
    means, factors = rest[:, : k * d].reshape(-1, k, d), rest[:, k * d :].reshape(-1, k, t)
    scales = (-factors[..., :d]).exp() + floor
    factors = torch.cat([-scales.log(), factors[..., d:]], -1)
    return -(log_prob(target, logits, means, factors) * row_weights).sum()


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("floor", [0.0, 0.3])
@pytest.mark.parametrize("chunk", [1, 64, 150, 1000])
def test_same_loss_and_gradients_for_every_chunk(implementation, chunk, floor, structure):
    layout, tensors = case(structure)
    row_weights = torch.rand(150, dtype=torch.float64)
    expected = plainly(layout, *tensors, row_weights, floor)
    value = linear_nll(*tensors, layout.components, row_weights, floor=floor, chunk=chunk)
    assert_close(value, expected, rtol=1e-11, atol=1e-11)
    reference = torch.autograd.grad(expected, tensors)
    assert_close(
        torch.autograd.grad(2 * value, tensors), [2 * g for g in reference], rtol=1e-9, atol=1e-11
    )


def test_mean_by_default_and_a_second_backward_pass(implementation):
    layout, tensors = case()
    rows = torch.full((150,), 1 / 150, dtype=torch.float64)
    reference = torch.autograd.grad(plainly(layout, *tensors, rows), tensors)
    value = linear_nll(*tensors, layout.components, chunk=40)
    for _ in range(2):
        made = torch.autograd.grad(value, tensors, retain_graph=True)
        assert_close(made, reference, rtol=1e-9, atol=1e-12)


def test_derivatives_of_both_orders(implementation):
    layout, tensors = case(rows=3, inputs=2, components=2, dimensions=2)

    def loss(*inputs):
        return linear_nll(*inputs, layout.components, floor=0.2, chunk=2)

    assert torch.autograd.gradcheck(loss, tensors)
    assert torch.autograd.gradgradcheck(loss, tensors)


def test_wrong_number_of_outputs_is_refused():
    layout, (features, weight, bias, target) = case()
    with pytest.raises(ShapeError, match=r"weight has 44 outputs.*45 \(full\) or 27 \(diagonal\)"):
        linear_nll(features, weight[:-1], bias[:-1], target, layout.components)


@pytest.mark.parametrize("chunk", [3, 100])
def test_a_row_without_weight_takes_no_part_even_where_its_loss_is_infinite(implementation, chunk):
    layout, (features, weight, bias, target) = case(rows=8)
    features, weight, bias, target = (t.detach().float() for t in (features, weight, bias, target))
    target[2] = 1e30  # beyond every component, in this precision
    row_weights = torch.full((8,), 1 / 7)
    row_weights[2] = 0.0
    tensors = [t.requires_grad_() for t in (features, weight, bias)]
    value = linear_nll(*tensors, target, layout.components, row_weights, chunk=chunk)
    others = [i for i in range(8) if i != 2]
    expected = linear_nll(features[others], weight, bias, target[others], layout.components)
    assert_close(value, expected, rtol=1e-5, atol=1e-6)
    gradients = torch.autograd.grad(value, tensors)
    assert_close(gradients[0][2], torch.zeros(6))
    assert_close(gradients, torch.autograd.grad(expected, tensors), rtol=1e-4, atol=1e-6)
