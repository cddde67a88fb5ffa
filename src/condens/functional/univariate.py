"""Distribution function and quantiles of one-dimensional mixtures.

Here D = 1, so a factor is one log-precision and z = exp(U)(x − μ).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from condens.functional import normal
from condens.functional.implicit import attach_gradient
from condens.functional.mixture import broadcast
from condens.functional.precision import widen

# Steps halve, or the bracket does: a quantile takes 5 to 70, and then the numbers within the
# bracket do, of which there are at most 2⁶⁴. The bound guards against a defect.
_NEWTON_STEPS, _MAX_STEPS = 70, 400


def cdf(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return P(X ≤ x) = Σₖ πₖ Φ(zₖ), relatively accurate far into the lower tail.

    Shapes: target [..., 1] → [...].

    >>> one = torch.zeros(1, 1)
    >>> cdf(torch.zeros(1), torch.zeros(1), means=one, factors=one)
    tensor(0.5000)
    """
    dtype = means.dtype
    target, logits, means, factors = widen(target, logits, means, factors)
    # Infinity leaves before and after the product: in the backward pass 0 · ∞ would be NaN.
    largest = torch.finfo(means.dtype).max
    difference = (target - means.squeeze(-1)).clamp(-largest, largest)
    latent = (difference * factors.squeeze(-1).exp()).clamp(-(largest**0.4), largest**0.4)
    total = (torch.softmax(logits, -1) * normal.cdf(latent)).sum(-1)
    return normal.at_most_one(total).to(dtype)


def icdf(probability: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return the quantile x with P(X ≤ x) = probability, to near machine precision.

    Newton's method inside a bracket, in double precision. The quantiles of the single
    components enclose the quantile of the mixture, so the bracket needs no search.
    Differentiable, to any order, in the probability and in every parameter.

    Shapes: probability [...], broadcast against the batch → [..., 1].
    """
    logits, means, factors = broadcast(logits, means, factors)
    shape = torch.broadcast_shapes(probability.shape, logits.shape[:-1])
    batch = shape[len(shape) - logits.dim() + 1 :]
    probability = probability.expand(shape)
    logits = logits.expand(*batch, -1)
    means, factors = means.expand(*batch, -1, -1), factors.expand(*batch, -1, -1)
    with torch.no_grad():
        rows = [
            tensor.expand(*shape, -1).reshape(math.prod(shape), tensor.shape[-1])
            for tensor in (logits, means.squeeze(-1), factors.squeeze(-1))
        ]
        solution = _quantiles(*widen(probability.reshape(-1), *rows)).reshape(*shape, 1)
    quantile = attach_gradient(solution, probability.unsqueeze(-1), logits, means, factors)
    level = probability.unsqueeze(-1)
    # ∓inf at 0 and 1; the product keeps the dtype, which a pair of numbers would not.
    edge = torch.full_like(quantile, torch.inf) * torch.where(level > 0, 1, -1)
    return torch.where((level <= 0) | (level >= 1), edge, quantile)


class _Search(NamedTuple):
    """Quantiles still searched for: vectors [N], but weights, means and deviations [N, K]."""

    row: Tensor
    level: Tensor
    quantile: Tensor
    lower: Tensor
    upper: Tensor
    step: Tensor
    finest: Tensor
    weights: Tensor
    means: Tensor
    deviations: Tensor


def _quantiles(level: Tensor, logits: Tensor, means: Tensor, log_precision: Tensor) -> Tensor:
    """Solve P(X ≤ x) = level. Shapes: level [N], the others [N, K] → [N]."""
    limits = torch.finfo(means.dtype)
    weights, deviations = torch.softmax(logits, -1), log_precision.neg().exp()
    level = level.clamp(limits.tiny, 1 - limits.eps / 2)
    quantiles = means + torch.special.ndtri(level).unsqueeze(-1) * deviations
    # The margin covers the rounding of ndtri.
    lower, upper = (
        (quantiles - 0.01 * deviations).amin(-1),
        (quantiles + 0.01 * deviations).amax(-1),
    )
    finest = torch.where(weights > 0, deviations, torch.inf).amin(-1)
    row = torch.arange(len(level), device=level.device)
    middle, width = lower + 0.5 * (upper - lower), upper - lower
    search = _Search(row, level, middle, lower, upper, width, finest, weights, means, deviations)
    found = torch.empty_like(level)
    for step in range(_MAX_STEPS):
        search, done = _narrow(search, by_count=step >= _NEWTON_STEPS)
        found[search.row] = search.quantile
        # Dropping rows copies the others: worth it once a quarter of them is done.
        if int(done.sum()) * 4 >= len(done):
            search = _Search(*(tensor[~done] for tensor in search))
        if len(search.row) == 0:
            break
    return found


def _narrow(search: _Search, *, by_count: bool) -> tuple[_Search, Tensor]:
    """Take one step, by Newton where it can be trusted; tell which quantiles are found.

    Else the step halves the bracket, or with `by_count` the numbers in it: from 10¹⁵⁴ to
    10⁻¹⁵⁴ the halves of a length are too many.
    """
    excess, density = _excess(search)
    at = search.quantile
    lower = torch.where(excess <= 0, at, search.lower)
    upper = torch.where(excess >= 0, at, search.upper)
    resolution = torch.finfo(at.dtype).eps * (at.abs() + search.finest)
    done = upper - lower <= 4 * resolution
    # Never shorter than the resolution: beside the root it must step over it, so that
    # the bracket closes.
    newton = -excess.sign() * (excess / density).abs().clamp(min=2 * resolution)
    candidate = at + newton
    inside = (candidate > lower) & (candidate < upper)
    trusted = inside & (newton.abs() <= (0.5 * search.step.abs()).clamp(min=2 * resolution))
    half = 0.5 * (upper - lower)
    middle = _middle(lower, upper) if by_count else lower + half
    quantile = torch.where(done, at, torch.where(trusted, candidate, middle))
    step = torch.where(trusted, newton, half)
    return search._replace(quantile=quantile, lower=lower, upper=upper, step=step), done


def _middle(lower: Tensor, upper: Tensor) -> Tensor:
    """Return the number with as many floating-point numbers below it as above, in between."""
    whole = torch.int64 if lower.dtype is torch.float64 else torch.int32
    # The bits of a positive number count upwards, those of a negative one downwards.
    sign = torch.iinfo(whole).min
    low, high = (
        torch.where(bits < 0, sign - bits, bits)
        for bits in (end.contiguous().view(whole) for end in (lower, upper))
    )
    middle = (low >> 1) + (high >> 1) + (low & high & 1)
    return torch.where(middle < 0, sign - middle, middle).view(lower.dtype)


def _excess(search: _Search) -> tuple[Tensor, Tensor]:
    """Return P(X ≤ x) − level and the density at x.

    Each component enters through its smaller tail, and levels above one half through
    their complement: nothing small is ever the difference of large numbers.
    """
    weights, level = search.weights, search.level
    latent = (search.quantile.unsqueeze(-1) - search.means) / search.deviations
    passed = latent >= 0
    tails = weights * normal.cdf(-latent.abs())
    from_below = torch.where(passed, weights, 0.0).sum(-1) - level
    from_above = (1 - level) - torch.where(passed, 0.0, weights).sum(-1)
    whole = torch.where(level <= 0.5, from_below, from_above)
    excess = whole + torch.where(passed, -tails, tails).sum(-1)
    return excess, (weights * normal.density(latent) / search.deviations).sum(-1)
