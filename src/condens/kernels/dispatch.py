"""How autograd sees the kernels, and when they are used."""

import math
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from condens.functional.mixture import log_prob
from condens.kernels import eager, library, native  # noqa: F401  (library registers operators)
from condens.kernels.checks import check_broadcast, check_strided, check_weights, fits
from condens.kernels.choice import choose, watched
from condens.kernels.passes import differentiable, take, weighted_sum


def _plain(*inputs: Tensor) -> Tensor:
    return -log_prob(*inputs)


class _RowLoss(torch.autograd.Function):
    """−log p of each row."""

    @staticmethod
    def forward(ctx: Any, module: ModuleType, *inputs: Tensor) -> Tensor:
        loss: Tensor
        loss, state = module.forward(*inputs)
        ctx.module = module
        ctx.save_for_backward(*inputs, *state)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (weights,) = gradients
        needs = ctx.needs_input_grad[1:]
        # Saved, so that torch notices when one of them has been changed since.
        target, logits, means, factors, *state = ctx.saved_tensors
        inputs = (target, logits, means, factors)
        if torch.is_grad_enabled():
            return None, *differentiable(_plain, inputs, weights, needs)
        return None, *ctx.module.backward(inputs, state, weights, needs[0])


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
    rows = _rows(*inputs)
    module = None if rows is None else choose(target)
    if rows is None or module is None:
        return -log_prob(*inputs)
    if watched(target):
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
    rows = _rows(*inputs)
    if weights is not None:
        weights = check_weights(weights, target).detach().reshape(-1).to(target.dtype)
    module = None if rows is None or watched(target) else choose(target)
    if rows is not None and module is not None:
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
    if not fits(target, logits, means, factors):
        check_strided("target", target)
        check_broadcast(target, logits, means, factors)
        return None
    if torch._C._are_functorch_transforms_active():
        return None
    inputs = (target, logits, means, factors)
    if means.dim() == 3:
        return inputs
    count = math.prod(target.shape[:-1])  # Size.numel would make a number of a symbol
    return tuple(tensor.reshape(count, *tensor.shape[target.dim() - 1 :]) for tensor in inputs)
