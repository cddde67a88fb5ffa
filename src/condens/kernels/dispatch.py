"""How autograd sees the kernels, and when they are used."""

import math
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from condens.functional.mixture import log_prob
from condens.functional.triangular import packed_size
from condens.kernels import eager, library, native  # noqa: F401  (library registers operators)
from condens.kernels.choice import choose
from condens.kernels.passes import differentiable, take, weighted_sum


def _plain(*inputs: Tensor) -> Tensor:
    return -log_prob(*inputs)


class _RowLoss(torch.autograd.Function):
    """−log p of each row."""

    @staticmethod
    def forward(ctx: Any, module: ModuleType, *inputs: Tensor) -> Tensor:
        loss, ctx.state = module.forward(*inputs)
        ctx.module = module
        ctx.save_for_backward(*inputs)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (weights,) = gradients
        needs = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():
            return None, *differentiable(_plain, ctx.saved_tensors, weights, needs)
        return None, *ctx.module.backward(ctx.state, weights.contiguous(), needs[0])


class _TotalLoss(torch.autograd.Function):
    """Σ weights · −log p, its gradients made in the forward pass."""

    @staticmethod
    def forward(ctx: Any, module: ModuleType, weights: Tensor | None, *inputs: Tensor) -> Tensor:
        needs = ctx.needs_input_grad[2]
        loss: Tensor
        loss, ctx.gradients = module.total(*inputs, weights=weights, to_target=needs)
        ctx.module = module
        ctx.save_for_backward(weights, *inputs)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (upstream,) = gradients
        weights, *inputs = ctx.saved_tensors
        needs = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():
            if weights is None:
                rows = len(inputs[0])
                weights = inputs[0].new_full((), 1 / max(rows, 1)).expand(rows)
            return None, None, *differentiable(_plain, inputs, upstream * weights, needs)

        def again() -> Any:
            return ctx.module.total(*inputs, weights=weights, to_target=needs[0])[1]

        return None, None, *take(ctx, again, upstream)


def nll(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return −log p(x) of each row, as `condens.functional.nll` does."""
    inputs = (target, logits, means, factors)
    module = choose(target)
    rows = None if module is None else _rows(*inputs)
    if rows is None:
        return -log_prob(*inputs)
    if torch.compiler.is_compiling():
        return torch.ops.condens.nll(*rows).reshape(target.shape[:-1])
    loss: Tensor = _RowLoss.apply(module, *rows)  # type: ignore[no-untyped-call]
    if module is eager and not bool(loss.isfinite().all()):
        # Beyond the precision of its sums: plain autograd knows what to do there.
        return -log_prob(*inputs)
    return loss.reshape(target.shape[:-1])


def weighted_nll(
    target: Tensor, logits: Tensor, means: Tensor, factors: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Return Σ weights · −log p(x), reading the factors once for the loss and every gradient.

    Weights are constants: they get no gradient. A row of weight zero takes no part. Shapes:
    weights [...], as the batch; by default one over the number of rows: the mean.
    """
    inputs = (target, logits, means, factors)
    if weights is not None:
        weights = weights.detach().expand(target.shape[:-1]).reshape(-1).to(target.dtype)
    module = choose(target)
    rows = None if module is None or torch.compiler.is_compiling() else _rows(*inputs)
    if rows is not None:
        made: Tensor = _TotalLoss.apply(module, weights, *rows)  # type: ignore[no-untyped-call]
        if module is native or math.isfinite(made.item()):
            return made
    return weighted_sum(nll(*inputs).reshape(-1), weights)


def _rows(
    target: Tensor, logits: Tensor, means: Tensor, factors: Tensor
) -> tuple[Tensor, ...] | None:
    """Return the tensors with one batch axis, or None where a kernel cannot take them.

    They must share device, dtype and batch shape, outside of torch.func.
    """
    *batch, components, dimensions = means.shape
    packed = factors.shape[-1]
    dtype = target.dtype
    if (
        target.shape != (*batch, dimensions)
        or logits.shape != (*batch, components)
        or factors.shape != (*batch, components, packed)
        or (packed != dimensions and packed != packed_size(dimensions))
        or not (logits.dtype is dtype and means.dtype is dtype and factors.dtype is dtype)
        or not (target.device == logits.device == means.device == factors.device)
        or torch._C._are_functorch_transforms_active()
    ):
        return None
    # A stride of zero would make rows of the gradient share their memory.
    inputs = tuple(
        t.contiguous() if 0 in t.stride() else t for t in (target, logits, means, factors)
    )
    if len(batch) == 1:
        return inputs
    count = target.shape[:-1].numel()
    return tuple(tensor.reshape(count, *tensor.shape[len(batch) :]) for tensor in inputs)
