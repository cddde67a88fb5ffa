"""Draws from Gaussian mixtures."""

import math
from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from condens.functional.implicit import attach_gradient
from condens.functional.precision import widen
from condens.functional.triangular import unwhiten


def sample(
    logits: Tensor,
    means: Tensor,
    factors: Tensor,
    shape: Sequence[int] = (),
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Draw x = μₖ + Ūₖ⁻¹η with k ~ softmax(logits), η ~ N(0, I).

    Carries no gradient: `rsample` does. Shapes: the parameters share one batch shape
    → `[*shape, *batch, D]`.
    """
    batch = logits.shape[:-1]
    with torch.no_grad():
        component = _draw_components(logits, math.prod(shape), generator)
        noise = torch.randn(
            (math.prod(shape), *batch, means.shape[-1]),
            dtype=means.dtype,
            device=means.device,
            generator=generator,
        )
        index = component[..., None, None]
        centre = torch.take_along_dim(means.unsqueeze(0), index, -2).squeeze(-2)
        chosen = torch.take_along_dim(factors.unsqueeze(0), index, -2).squeeze(-2)
        return (centre + unwhiten(noise, chosen)).reshape(*shape, *batch, means.shape[-1])


def rsample(
    logits: Tensor,
    means: Tensor,
    factors: Tensor,
    shape: Sequence[int] = (),
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Draw as `sample` does, with pathwise gradients for every parameter, logits included.

    The gradient of a sample average is an unbiased estimate of the gradient of the
    expectation. Weight moves between components through the density between them: where
    they hardly overlap, few samples carry the logits' gradient and its variance is large.

    Shapes: the parameters share one batch shape → `[*shape, *batch, D]`.
    """
    draw = sample(logits, means, factors, shape, generator=generator)
    return attach_gradient(draw, torch.zeros_like(draw), logits, means, factors)


def sample_components(
    means: Tensor, factors: Tensor, count: int, *, generator: Generator | None = None
) -> Tensor:
    """Draw from every component, with plain pathwise gradients: x = μₖ + Ūₖ⁻¹η.

    Shapes: → [count, ..., K, D].
    """
    noise = torch.randn(
        (count, *means.shape), dtype=means.dtype, device=means.device, generator=generator
    )
    return means + unwhiten(noise, factors)


def _draw_components(logits: Tensor, count: int, generator: Generator | None) -> Tensor:
    """Draw component indices by inversion. Shapes: → [count, *batch]."""
    cumulative = torch.softmax(widen(logits), -1).cumsum(-1)
    total = cumulative[..., -1:]
    uniform = torch.rand(
        (*logits.shape[:-1], count),
        dtype=cumulative.dtype,
        device=logits.device,
        generator=generator,
    )
    index = torch.searchsorted(cumulative, uniform * total, right=True)
    # Rounding may reach the total itself; a component without weight is never drawn.
    last = (cumulative < total).sum(-1, keepdim=True)
    return torch.minimum(index, last).movedim(-1, 0)
