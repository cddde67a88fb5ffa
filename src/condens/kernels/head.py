"""A linear layer and the loss of the mixture it parameterises, a chunk of rows at a time.

The parameters of a mixture are many: K(1 + D + D(D+1)/2) numbers a row. Here they are made,
used and turned into gradients chunk by chunk, so that none but a chunk's ever exist, in
memory that every chunk and every step uses again.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from condens.errors import ShapeError, message
from condens.functional.mixture import log_prob
from condens.kernels import native
from condens.kernels.choice import choose
from condens.kernels.passes import differentiable, take

# Rows a chunk: at K = 10, D = 30 its parameters take 5 MB and stay in the cache.
CHUNK = 256


class Layout(NamedTuple):
    """Where logits, means and factors lie among a row's outputs, in this order."""

    components: int
    dimensions: int
    packed: int

    @property
    def outputs(self) -> int:
        """How many numbers parameterise one mixture."""
        return self.components * (1 + self.dimensions + self.packed)

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """View outputs [..., P] as logits [..., K], means [..., K, D] and factors [..., K, T]."""
        components, dimensions, packed = self
        first, second = components, components * (1 + dimensions)
        return (
            outputs[..., :first],
            outputs[..., first:second].unflatten(-1, (components, dimensions)),
            outputs[..., second:].unflatten(-1, (components, packed)),
        )


def linear_nll(
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
    target: Tensor,
    components: int,
    row_weights: Tensor | None = None,
    *,
    chunk: int = CHUNK,
) -> Tensor:
    """Return Σ row_weights · −log p(target | features) for parameters W·features + bias.

    The outputs are K logits, K×D means and K×T packed factors, in this order; T, and with
    it full or diagonal covariances, follows from their number. The loss and the gradients
    of features, weight and bias are made in one pass, with memory for one chunk of outputs.

    Shapes: features [b, F], weight [P, F], bias [P], target [b, D], row_weights [b] (the
    mean by default) → [].
    """
    layout = _layout(weight, target, components)
    rows = len(target)
    if row_weights is None:
        row_weights = target.new_full((), 1 / max(rows, 1)).expand(rows)
    row_weights = row_weights.detach().to(target.dtype)
    if choose(target) is None or torch.compiler.is_compiling():
        return _plain(layout, row_weights, target, features, weight, bias)
    made: Tensor = _LinearLoss.apply(  # type: ignore[no-untyped-call]
        layout, chunk, row_weights, target, features, weight, bias
    )
    return made


def _layout(weight: Tensor, target: Tensor, components: int) -> Layout:
    dimensions = target.shape[-1]
    for packed in (dimensions * (dimensions + 1) // 2, dimensions):
        layout = Layout(components, dimensions, packed)
        if layout.outputs == weight.shape[0]:
            return layout
    full = Layout(components, dimensions, dimensions * (dimensions + 1) // 2).outputs
    diagonal = Layout(components, dimensions, dimensions).outputs
    came = f"has {weight.shape[0]} outputs"
    expected = f"K = {components}, D = {dimensions} need {full} (full) or {diagonal} (diagonal)"
    raise ShapeError(message("weight", came, expected, "Make its first axis one of these."))


class _LinearLoss(torch.autograd.Function):
    """The loss, with every gradient made in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        layout: Layout,
        chunk: int,
        row_weights: Tensor,
        target: Tensor,
        features: Tensor,
        weight: Tensor,
        bias: Tensor,
    ) -> Tensor:
        ctx.layout = layout
        ctx.save_for_backward(row_weights, target, features, weight, bias)
        ctx.chunk = chunk
        loss, ctx.gradients = _pass(layout, chunk, row_weights, target, features, weight, bias)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (upstream,) = gradients
        row_weights, *inputs = ctx.saved_tensors
        if torch.is_grad_enabled():
            loss = partial(_plain, ctx.layout, row_weights)
            made = differentiable(loss, inputs, upstream, ctx.needs_input_grad[3:])
        else:
            again = partial(_pass, ctx.layout, ctx.chunk, row_weights, *inputs)
            made = take(ctx, lambda: again()[1], upstream)
        return None, None, None, *made


def _plain(
    layout: Layout,
    row_weights: Tensor,
    target: Tensor,
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
) -> Tensor:
    outputs = torch.nn.functional.linear(features, weight, bias)
    return torch.dot(-log_prob(target, *layout.split(outputs)), row_weights)


def _pass(
    layout: Layout,
    chunk: int,
    row_weights: Tensor,
    target: Tensor,
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the loss and the gradients of (target, features, weight, bias)."""
    module: Any = choose(target)
    rows = min(chunk, len(target))
    outputs, pulled = target.new_empty(2, rows, layout.outputs)
    to_target, to_features = torch.empty_like(target), torch.empty_like(features)
    to_weight, to_bias = torch.zeros_like(weight), torch.zeros_like(bias)
    loss = target.new_zeros(())
    for start in range(0, len(target), chunk):
        part = slice(start, min(start + chunk, len(target)))
        size = part.stop - part.start
        made, cotangent = outputs[:size], pulled[:size]
        torch.addmm(bias, features[part], weight.T, out=made)
        inputs = (target[part], *layout.split(made))
        buffers = (to_target[part], *layout.split(cotangent))
        if module is native:
            losses = native.into(buffers, *inputs, weights=row_weights[part])
        else:
            losses, gradients = module.total(*inputs, weights=row_weights[part], to_target=True)
            for buffer, gradient in zip(buffers, gradients, strict=True):
                buffer.copy_(gradient)
        loss += torch.dot(losses, row_weights[part])
        torch.mm(cotangent, weight, out=to_features[part])
        to_weight.addmm_(cotangent.T, features[part])
        to_bias += cotangent.sum(0)
    return loss, (to_target, to_features, to_weight, to_bias)
