"""The kernel as torch operators, so that torch.compile and torch.export can see it."""

from typing import Any

import torch
from torch import Tensor

from condens.kernels.choice import choose


def _module(target: Tensor) -> Any:
    # Never None: the operators are only reached with tensors that a kernel serves.
    return choose(target)


@torch.library.custom_op("condens::nll", mutates_args=())
def nll(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return −log p of each row. Shapes: [b, D], [b, K], [b, K, D], [b, K, T] → [b]."""
    loss: Tensor = _module(target).forward(target, logits, means, factors)[0]
    return loss


@nll.register_fake
def _(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    return target.new_empty(target.shape[0])


@torch.library.custom_op("condens::nll_backward", mutates_args=())
def nll_backward(
    weights: Tensor, target: Tensor, logits: Tensor, means: Tensor, factors: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of Σ weights · loss with respect to every input."""
    made = _module(target).total(
        target, logits, means, factors, weights=weights.contiguous(), to_target=True
    )[1]
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
