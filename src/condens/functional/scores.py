"""Numbers that judge a mixture by what was then observed. Lower is better."""

import math

import torch
from torch import Tensor

from condens.functional import normal
from condens.functional.dtypes import widen
from condens.functional.estimates import Estimate, standard_error


def crps(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return the exact continuous ranked probability score of a one-dimensional mixture.

    CRPS = Σₖ πₖ A(x − μₖ, σₖ) − ½ Σₖₗ πₖπₗ A(μₖ − μₗ, √(σₖ² + σₗ²)),
    A(m, s) = E|N(m, s²)| = 2s φ(m/s) + m (2Φ(m/s) − 1)    (Grimit et al. 2006)

    Shapes: target [..., 1] → [...].
    """
    dtype = means.dtype
    target, logits, means, factors = widen(target, logits, means, factors)
    weights = torch.softmax(logits, -1)
    centres, deviation = means.squeeze(-1), factors.squeeze(-1).neg().exp()
    to_target = (weights * _mean_absolute(target - centres, deviation)).sum(-1)
    pairs = _mean_absolute(
        centres.unsqueeze(-1) - centres.unsqueeze(-2),
        torch.hypot(deviation.unsqueeze(-1), deviation.unsqueeze(-2)),
    )
    among = torch.einsum("...k,...kl,...l->...", weights, pairs, weights)
    return (to_target - 0.5 * among).to(dtype)


def lognormal_crps(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return the exact CRPS of e^X at a target, for a one-dimensional mixture of X.

    With m = E[e^X], t = (log y − μ)/σ, s² = σₖ² + σₗ² and e(t) = 2Φ(t) − 1:
    E|e^X − y| = y e(t) − m e(t − σ),
    E|e^X − e^X′| = mₖ e((μₖ − μₗ + σₖ²)/s) − mₗ e((μₖ − μₗ − σₗ²)/s)

    Infinite where a mean overflows. Shapes: target [..., 1] → [...].
    """
    dtype = means.dtype
    target, logits, means, factors = widen(target, logits, means, factors)
    weights = torch.softmax(logits, -1)
    centres, deviation = means.squeeze(-1), factors.squeeze(-1).neg().exp()
    own = (centres + 0.5 * deviation.square()).exp()
    beyond = (own.isinf() & (weights > 0)).any(-1)
    own = torch.where(own.isinf(), 0.0, own)
    above = target > 0
    latent = (torch.where(above, target, 1.0).log() - centres) / deviation
    reach = torch.where(
        above, target * _two_sided(latent) - own * _two_sided(latent - deviation), own - target
    )
    gap, spread = centres.unsqueeze(-1) - centres.unsqueeze(-2), deviation.square()
    both = (spread.unsqueeze(-1) + spread.unsqueeze(-2)).sqrt()
    pairs = own.unsqueeze(-1) * _two_sided((gap + spread.unsqueeze(-1)) / both)
    # The sum over both orders of a pair holds the second term once more.
    among = 2 * torch.einsum("...k,...kl,...l->...", weights, pairs, weights)
    score = (weights * reach).sum(-1) - 0.5 * among
    return torch.where(beyond, torch.inf, score).to(dtype)


def _two_sided(latent: Tensor) -> Tensor:
    """Return 2Φ(t) − 1."""
    return torch.erf(latent / math.sqrt(2))


def _mean_absolute(centre: Tensor, deviation: Tensor) -> Tensor:
    """Return E|N(centre, deviation²)|."""
    ratio = centre / deviation
    return 2 * deviation * normal.density(ratio) + centre * _two_sided(ratio)


def energy_score(target: Tensor, first: Tensor, second: Tensor) -> Estimate:
    """Estimate E‖X − x‖ − ½E‖X − X′‖ from independent pairs of draws.

    Shapes: target [..., D], draws [N, *batch, D] → [...]; the target's leading axes
    broadcast against the batch.
    """
    extra = [1] * (target.dim() + 1 - first.dim())
    shape = (len(first), *extra, *first.shape[1:])
    first, second = first.reshape(shape), second.reshape(shape)
    reach = 0.5 * ((first - target).norm(dim=-1) + (second - target).norm(dim=-1))
    score = reach - 0.5 * (first - second).norm(dim=-1)
    return Estimate(score.mean(0), standard_error(score))
