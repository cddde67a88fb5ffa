"""Draws from Gaussian mixtures."""

import math
from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from condens.functional.dtypes import widen
from condens.functional.implicit import attach_gradient
from condens.functional.mixture import broadcast
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

    Carries no gradient: `rsample` does. Shapes: → `[*shape, *batch, D]`.
    """
    return _draw(logits, means, factors, shape, generator).to(means.dtype)


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
    they hardly overlap, the draws that would carry the logits' gradient never come, and
    neither the estimate nor its spread shows it.

    Shapes: → `[*shape, *batch, D]`.
    """
    logits, means, factors = broadcast(logits, means, factors)
    draw = _draw(logits, means, factors, shape, generator)
    return attach_gradient(draw, torch.zeros_like(draw), logits, means, factors)


def _draw(
    logits: Tensor,
    means: Tensor,
    factors: Tensor,
    shape: Sequence[int],
    generator: Generator | None,
) -> Tensor:
    """Draw in double precision: a coordinate may be the small difference of large ones."""
    logits, means, factors = (t.detach() for t in broadcast(logits, means, factors))
    count, batch, dimensions = math.prod(shape), logits.shape[:-1], means.shape[-1]
    index = _draw_components(logits, count, generator)[..., None, None]
    noise = torch.randn(
        (count, *batch, dimensions), dtype=means.dtype, device=means.device, generator=generator
    )
    centre = torch.take_along_dim(means.unsqueeze(0), index, -2).squeeze(-2)
    chosen = torch.take_along_dim(factors.unsqueeze(0), index, -2).squeeze(-2)
    centre, noise, chosen = widen(centre, noise, chosen)
    return (centre + unwhiten(noise, chosen)).reshape(*shape, *batch, dimensions)


def sample_components(
    means: Tensor, factors: Tensor, count: int, *, generator: Generator | None = None
) -> Tensor:
    """Draw from every component, with plain pathwise gradients: x = μₖ + Ūₖ⁻¹η.

    Shapes: → [count, ..., K, D].
    """
    noise = torch.randn(
        (count, *means.shape), dtype=means.dtype, device=means.device, generator=generator
    )
    wide_means, wide_noise, wide_factors = widen(means, noise, factors)
    return (wide_means + unwhiten(wide_noise, wide_factors)).to(means.dtype)


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
