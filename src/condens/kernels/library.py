"""The kernel as torch operators, so that torch.compile and torch.export can see it."""

from typing import Any

import torch
from torch import Tensor

from condens.functional.mixture import log_prob
from condens.kernels import eager
from condens.kernels.checks import check, check_mixture
from condens.kernels.choice import choose


def _module(*inputs: Tensor) -> Any:
    """Return the implementation for checked inputs: an operator may be called by anyone."""
    check_mixture(*inputs)
    return choose(inputs[0]) or eager


@torch.library.custom_op("condens::nll", mutates_args=())
def nll(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return −log p of each row. Shapes: [b, D], [b, K], [b, K, D], [b, K, T] → [b]."""
    inputs = (target, logits, means, factors)
    module = _module(*inputs)
    loss: Tensor = module.forward(*inputs)[0]
    if module is eager and not bool(loss.isfinite().all()):
        return -log_prob(*inputs)
    return loss


@nll.register_fake
def _(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    return target.new_empty(target.shape[0])


@torch.library.custom_op("condens::nll_backward", mutates_args=())
def nll_backward(
    weights: Tensor, target: Tensor, logits: Tensor, means: Tensor, factors: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of Σ weights · loss with respect to every input."""
    inputs = (target, logits, means, factors)
    module = _module(*inputs)
    check((("weights", weights, target.shape[:1]),), target)
    value, made = module.total(*inputs, weights=weights, to_target=True)
    if module is eager and not bool(value.isfinite()):
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_() for tensor in inputs]
            made = torch.autograd.grad(-log_prob(*leaves), leaves, weights)
    return tuple(gradient.contiguous() for gradient in made)


@nll_backward.register_fake
def _(
    weights: Tensor, target: Tensor, logits: Tensor, means: Tensor, factors: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    made = (target.new_empty(t.shape) for t in (target, logits, means, factors))
    return tuple(made)  # type: ignore[return-value]


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _pull_back(ctx: Any, weights: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return nll_backward(weights, *ctx.saved_tensors)


nll.register_autograd(_pull_back, setup_context=_keep)
