"""Distribution function and quantiles of one-dimensional mixtures.

Here D = 1, so a factor is one log-precision and z = exp(U)(x − μ).
"""

import torch
from torch import Tensor

from condens.functional import normal
from condens.functional.implicit import attach_gradient
from condens.functional.precision import widen

# Steps halve, or the bracket does: a quantile takes 5 to 60. The bound guards a defect.
_MOST_STEPS = 1000


def cdf(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return P(X ≤ x) = Σₖ πₖ Φ(zₖ), relatively accurate far into the lower tail.

    Shapes: target [..., 1] → [...].

    >>> one = torch.zeros(1, 1)
    >>> cdf(torch.zeros(1), torch.zeros(1), means=one, factors=one)
    tensor(0.5000)
    """
    latent = (target - means.squeeze(-1)) * factors.squeeze(-1).exp()
    return (torch.softmax(logits, -1) * normal.cdf(latent)).sum(-1)


def icdf(probability: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return the quantile x with P(X ≤ x) = probability, to near machine precision.

    Newton's method inside a bracket, in double precision. The quantiles of the single
    components enclose the quantile of the mixture, so the bracket needs no search.
    Differentiable, to any order, in the probability and in every parameter.

    Shapes: probability [...], broadcast against the batch → [..., 1].
    """
    shape = torch.broadcast_shapes(probability.shape, logits.shape[:-1])
    batch = shape[len(shape) - logits.dim() + 1 :]
    probability = probability.expand(shape)
    logits = logits.expand(*batch, -1)
    means, factors = means.expand(*batch, -1, -1), factors.expand(*batch, -1, -1)
    with torch.no_grad():
        wide = widen(probability, logits, means.squeeze(-1), factors.squeeze(-1))
        quantile = _quantile(*wide).to(means.dtype)
    levels = probability.to(means.dtype).unsqueeze(-1)
    quantile = attach_gradient(quantile.unsqueeze(-1), levels, logits, means, factors)
    edge = torch.where(probability > 0, torch.inf, -torch.inf).unsqueeze(-1)
    return torch.where(((probability <= 0) | (probability >= 1)).unsqueeze(-1), edge, quantile)


def _quantile(probability: Tensor, logits: Tensor, means: Tensor, log_precision: Tensor) -> Tensor:
    """Solve P(X ≤ x) = probability. Shapes: probability [...], the others [..., K] → [...]."""
    limits = torch.finfo(means.dtype)
    weights, deviation = torch.softmax(logits, -1), log_precision.neg().exp()
    inner = probability.clamp(limits.tiny, 1 - limits.eps / 2)
    own = means + torch.special.ndtri(inner).unsqueeze(-1) * deviation
    # The margin covers the rounding of ndtri.
    lower, upper = (own - 0.01 * deviation).amin(-1), (own + 0.01 * deviation).amax(-1)
    finest = torch.where(weights > 0, deviation, torch.inf).amin(-1)
    quantile, step = lower + 0.5 * (upper - lower), upper - lower
    done = torch.zeros_like(quantile, dtype=torch.bool)
    for _ in range(_MOST_STEPS):
        excess, density = _excess(quantile, inner, weights, means, deviation)
        lower = torch.where(excess <= 0, quantile, lower)
        upper = torch.where(excess >= 0, quantile, upper)
        newton = torch.where(excess == 0, 0.0, -excess / density)
        candidate = quantile + newton
        # Newton only while it stays inside and its steps at least halve; else bisect.
        trusted = (candidate >= lower) & (candidate <= upper) & (newton.abs() <= 0.5 * step.abs())
        move = torch.where(trusted, newton, 0.5 * (lower + upper) - quantile)
        step = torch.where(trusted, newton, 0.5 * (upper - lower))
        quantile = torch.where(done, quantile, quantile + move)
        done = done | (step.abs() <= limits.eps * (quantile.abs() + finest))
        if bool(done.all()):
            break
    return quantile


def _excess(
    x: Tensor, probability: Tensor, weights: Tensor, means: Tensor, deviation: Tensor
) -> tuple[Tensor, Tensor]:
    """Return P(X ≤ x) − probability and the density at x.

    Each component enters through its smaller tail, and probabilities above one half
    through their complement: nothing small is ever the difference of large numbers.
    """
    latent = (x.unsqueeze(-1) - means) / deviation
    passed = latent >= 0
    tails = weights * normal.cdf(-latent.abs())
    from_below = torch.where(passed, weights, 0.0).sum(-1) - probability
    from_above = (1 - probability) - torch.where(passed, 0.0, weights).sum(-1)
    whole = torch.where(probability <= 0.5, from_below, from_above)
    excess = whole + torch.where(passed, -tails, tails).sum(-1)
    return excess, (weights * normal.density(latent) / deviation).sum(-1)
