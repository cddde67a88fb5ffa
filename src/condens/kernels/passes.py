"""What the fused losses share in their backward passes."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def differentiable(
    loss: Callable[..., Tensor], inputs: Sequence[Tensor], upstream: Tensor, needs: Sequence[bool]
) -> list[Tensor | None]:
    """Return gradients that can themselves be differentiated, by plain autograd."""
    wanted = [tensor for tensor, need in zip(inputs, needs, strict=True) if need]
    made = iter(torch.autograd.grad(loss(*inputs), wanted, upstream, create_graph=True))
    return [next(made) if need else None for need in needs]


def weighted_sum(loss: Tensor, weights: Tensor | None) -> Tensor:
    """Return Σ weights · loss, or the mean. A row without weight takes no part, be it infinite."""
    if weights is None:
        return loss.mean() if loss.shape[0] else loss.sum()
    return torch.where(weights == 0, 0.0, weights * loss).sum()


def take(ctx: Any, again: Callable[[], Sequence[Tensor | None]], upstream: Tensor) -> Any:
    """Return the gradients that the forward pass made, scaled in place.

    They are handed out once; a second pass over the graph makes them `again`.
    """
    made, ctx.gradients = ctx.gradients, None
    if made is None:
        made = again()
    factor = float(upstream)
    if factor != 1:
        for gradient in made:
            if gradient is not None:
                gradient.mul_(factor)
    return made
