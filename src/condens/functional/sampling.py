"""Draws from Gaussian mixtures."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from condens.functional.dtypes import widen
from condens.functional.implicit import attach_gradient
from condens.functional.mixture import broadcast
from condens.functional.triangular import unwhiten
from condens.kernels import native
from condens.kernels.choice import choose


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
    logits, means, factors = (t.detach() for t in broadcast(logits, means, factors))
    cumulative, uniform, noise = _randomness(logits, means, shape, generator)
    if choose(means) is native:
        rows = logits.shape[:-1].numel()
        flat = (t.reshape(rows, *t.shape[-2:]) for t in (means, factors))
        draws = noise.reshape(len(noise), rows, -1) if noise.numel() else noise
        native.draw(draws, uniform, cumulative, *flat)
    else:
        noise = _solve(cumulative, uniform, noise, means, factors).to(means.dtype)
    return noise.reshape(*shape, *logits.shape[:-1], means.shape[-1])


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
    cumulative, uniform, noise = _randomness(logits, means, shape, generator)
    draws = _solve(cumulative, uniform, noise, means.detach(), factors.detach())
    draws = draws.reshape(*shape, *logits.shape[:-1], means.shape[-1])
    return attach_gradient(draws, torch.zeros_like(draws), logits, means, factors)


def _randomness(
    logits: Tensor, means: Tensor, shape: Sequence[int], generator: Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return cumulative weights [*b, K], uniform [S, *b] in double, and noise [S, *b, D]."""
    cumulative = torch.softmax(widen(logits.detach()), -1).cumsum(-1)
    size = (math.prod(shape), *logits.shape[:-1])
    options: dict[str, Any] = {"device": means.device, "generator": generator}
    uniform = torch.rand(size, dtype=cumulative.dtype, **options)
    noise = torch.randn((*size, means.shape[-1]), dtype=means.dtype, **options)
    return cumulative, uniform, noise


def _solve(
    cumulative: Tensor, uniform: Tensor, noise: Tensor, means: Tensor, factors: Tensor
) -> Tensor:
    """Return draws in double precision: a coordinate may be the small difference of large ones."""
    total = cumulative[..., -1:]
    levels = (uniform.movedim(0, -1) * total).contiguous()
    index = torch.searchsorted(cumulative.contiguous(), levels, right=True)
    # Rounding may reach the total itself; a component without weight is never drawn.
    last = (cumulative < total).sum(-1, keepdim=True)
    index = torch.minimum(index, last).movedim(-1, 0)[..., None, None]
    centre = torch.take_along_dim(means.unsqueeze(0), index, -2).squeeze(-2)
    chosen = torch.take_along_dim(factors.unsqueeze(0), index, -2).squeeze(-2)
    centre, noise, chosen = widen(centre, noise, chosen)
    return centre + unwhiten(noise, chosen)


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
