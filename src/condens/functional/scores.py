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


def _mean_absolute(centre: Tensor, deviation: Tensor) -> Tensor:
    """Return E|N(centre, deviation²)|."""
    ratio = centre / deviation
    return 2 * deviation * normal.density(ratio) + centre * torch.erf(ratio / math.sqrt(2))


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
