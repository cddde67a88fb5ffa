"""Tails of one-dimensional mixtures on a logarithmic scale, for probabilities that underflow.

Here D = 1, as in `univariate`. An upper tail is the lower tail of the mirrored mixture, −x and −μ.
"""

import math
from functools import partial

import torch
from torch import Tensor

from condens.functional.normal import LOG_2PI
from condens.functional.precision import widen
from condens.functional.univariate import solve

# How near log F comes to the level asked for, relative to 1 + |level|.
TOLERANCE = 1e-10


def log_cdf(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return log P(X ≤ x) = logsumexpₖ(log πₖ + log Φ(zₖ)), in double precision.

    Finite as far out as z² is. Shapes: target [..., 1], which may be infinite → [...].

    >>> one = torch.zeros(1, 1)
    >>> log_cdf(torch.tensor([-100.0]), torch.zeros(1), means=one, factors=one)
    tensor(-5005.5242, dtype=torch.float64)
    """
    target, logits, means, factors = widen(target, logits, means, factors)
    latent = (target - means.squeeze(-1)) * factors.squeeze(-1).exp()
    joint = torch.log_softmax(logits, -1) + torch.special.log_ndtr(latent)
    return joint.logsumexp(-1).clamp(max=0.0)


def log_icdf(log_level: float, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return the x with log P(X ≤ x) = log_level, up to log ½, in double precision.

    To `TOLERANCE` on the scale of the level; where doubles are too far apart for that, the
    one below. Newton's method inside a bracket from the quantiles of the components.

    Shapes: logits [..., K], means and factors [..., K, 1] → [..., 1].

    >>> one = torch.zeros(1, 1)
    >>> log_icdf(-5005.5242086942, torch.zeros(1), means=one, factors=one)
    tensor([-100.0000], dtype=torch.float64)
    """
    logits, means, factors = widen(logits, means, factors)
    batch = torch.broadcast_shapes(logits.shape, means.shape[:-1], factors.shape[:-1])
    logits, means, logs = (
        part.expand(batch).reshape(-1, batch[-1])
        for part in (logits.log_softmax(-1), means.squeeze(-1), factors.squeeze(-1))
    )
    lower, upper = _bracket(log_level, logits, means, logs)
    # The terms of a component's log density besides −z²/2.
    log_rate = logits + logs - 0.5 * LOG_2PI
    function, finest = partial(_excess, log_level), torch.zeros_like(lower)
    _, below = solve(function, lower, upper, finest, (logits, means, logs.exp(), log_rate))
    return below.reshape(*batch[:-1], 1)


def _bracket(
    level: float, log_weights: Tensor, means: Tensor, logs: Tensor
) -> tuple[Tensor, Tensor]:
    """Return bounds [N] of the quantile at a level, however small a component's weight is.

    πₖFₖ(x) ≤ F(x) ≤ K maxₖ πₖFₖ(x): a component alone reaches the level no sooner than all
    do, and one of them has a K-th of it.
    """
    largest = 0.25 * torch.finfo(means.dtype).max
    deviations = (-logs).exp().clamp(max=largest)

    def quantiles(levels: Tensor) -> Tensor:
        # The margin covers the rounding; a level that a component never has is infinitely far.
        held = levels < 0
        latent = _log_ndtri(torch.where(held, levels, -1.0))
        return torch.where(held, means + latent * deviations, torch.inf)

    alone = level - log_weights
    lower = (quantiles(alone - math.log(alone.shape[-1])) - 0.01 * deviations).amin(-1)
    upper = (quantiles(alone) + 0.01 * deviations).amin(-1)
    # Where no component has all of the level, all have it at the last of their quantiles.
    last = quantiles(torch.full_like(alone, level)) + 0.01 * deviations
    last = torch.where(log_weights > -torch.inf, last, -torch.inf).amax(-1)
    upper = torch.minimum(upper, last).clamp(max=largest)
    lower = torch.minimum(lower, upper).clamp(min=-largest)
    margin = 4 * torch.finfo(means.dtype).eps * torch.maximum(lower.abs(), upper.abs())
    return lower - margin, upper + margin


def _excess(
    level: float,
    at: Tensor,
    log_weights: Tensor,
    means: Tensor,
    precision: Tensor,
    log_rate: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return log P(X ≤ x) − level, zero where it is near enough, and its slope at x."""
    latent = (at.unsqueeze(-1) - means) * precision
    joint = torch.special.log_ndtr(latent) + log_weights
    # Relative to the largest tail, so that tails and density stay finite.
    largest = joint.amax(-1, keepdim=True)
    tails = (joint - largest).exp().sum(-1)
    density = (log_rate - 0.5 * latent.square() - largest).exp().sum(-1)
    excess = tails.log() + largest.squeeze(-1) - level
    return excess.masked_fill(excess.abs() <= TOLERANCE * (1 + abs(level)), 0.0), density / tails


def _log_ndtri(log_level: Tensor) -> Tensor:
    """Return z with log Φ(z) = log_level, near enough for a bracket."""
    near = torch.special.ndtri(log_level.exp())
    far = log_level.clamp(max=-100.0)
    latent = -(-2 * far).sqrt()
    for _ in range(3):  # the slope of log Φ far out is −z
        latent = latent + (torch.special.log_ndtr(latent) - far) / latent
    return torch.where(log_level < -100, latent, near)
