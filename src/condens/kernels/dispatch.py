"""How autograd sees the kernels, and when they are used."""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from condens.functional.mixture import log_prob
from condens.functional.triangular import packed_size
from condens.kernels import eager, library, native  # noqa: F401  (library registers operators)
from condens.kernels.choice import choose
from condens.kernels.passes import differentiable, take


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
    def forward(ctx: Any, module: ModuleType, weights: Tensor, *inputs: Tensor) -> Tensor:
        needs = ctx.needs_input_grad[2]
        loss, ctx.gradients = module.total(*inputs, weights=weights, to_target=needs)
        ctx.module = module
        ctx.save_for_backward(weights, *inputs)
        return torch.dot(loss, weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (upstream,) = gradients
        weights, *inputs = ctx.saved_tensors
        needs = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():
            return None, None, *differentiable(_plain, inputs, upstream * weights, needs)

        def again() -> Any:
            return ctx.module.total(*inputs, weights=weights, to_target=needs[0])[1]

        return None, None, *take(ctx, again, upstream)


def nll(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return −log p(x) of each row, as `condens.functional.nll` does."""
    inputs = (target, logits, means, factors)
    module = choose(target)
    if module is None or not _fused(*inputs):
        return -log_prob(*inputs)
    if torch.compiler.is_compiling():
        return torch.ops.condens.nll(*_rows(*inputs)).reshape(target.shape[:-1])
    loss: Tensor = _RowLoss.apply(module, *_rows(*inputs))  # type: ignore[no-untyped-call]
    if module is eager and not bool(loss.isfinite().all()):
        # Beyond the precision of its sums: plain autograd knows what to do there.
        return -log_prob(*inputs)
    return loss.reshape(target.shape[:-1])


def weighted_nll(
    target: Tensor, logits: Tensor, means: Tensor, factors: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Return Σ weights · −log p(x), reading the factors once for the loss and every gradient.

    Weights are constants: they get no gradient. Shapes: weights [...], as the batch; by
    default one over the number of rows, so that the result is the mean.
    """
    inputs = (target, logits, means, factors)
    rows = target.shape[:-1].numel()
    if weights is None:
        weights = target.new_full((), 1 / max(rows, 1)).expand(rows)
    else:
        weights = weights.detach().expand(target.shape[:-1]).reshape(-1).to(target.dtype)
    module = choose(target)
    plain = module is None or not _fused(*inputs) or torch.compiler.is_compiling()
    if not plain:
        made: Tensor = _TotalLoss.apply(module, weights, *_rows(*inputs))  # type: ignore[no-untyped-call]
        if module is native or bool(made.isfinite()):
            return made
    return torch.dot(nll(*inputs).reshape(-1), weights)


def _fused(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> bool:
    """Tell whether the tensors share device, dtype and batch shape, outside torch.func."""
    batch = target.shape[:-1]
    return (
        logits.shape[:-1] == means.shape[:-2] == factors.shape[:-2] == batch
        and logits.shape[-1] == means.shape[-2] == factors.shape[-2]
        and target.shape[-1] == means.shape[-1]
        and target.dtype == logits.dtype == means.dtype == factors.dtype
        and target.device == logits.device == means.device == factors.device
        and factors.shape[-1] in (target.shape[-1], packed_size(target.shape[-1]))
        and not torch._C._are_functorch_transforms_active()
    )


def _rows(*inputs: Tensor) -> tuple[Tensor, ...]:
    """Flatten the batch axes into one."""
    # A stride of zero would make rows of the gradient share their memory.
    inputs = tuple(t.contiguous() if 0 in t.stride() else t for t in inputs)
    if inputs[0].dim() == 2:
        return inputs
    axes = inputs[0].dim() - 1
    rows = inputs[0].shape[:-1].numel()
    return tuple(tensor.reshape(rows, *tensor.shape[axes:]) for tensor in inputs)
