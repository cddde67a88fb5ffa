"""Distribution function and quantiles of one-dimensional mixtures.

Here D = 1, so a factor is one log-precision and z = exp(U)(x − μ).
"""

import math
from collections.abc import Callable, Sequence

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
    target, logits, centres, factors = widen(target, logits, means, factors)
    # Infinity leaves before and after the product: in the backward pass 0 · ∞ would be NaN.
    largest = torch.finfo(centres.dtype).max
    difference = (target - centres.squeeze(-1)).clamp(-largest, largest)
    latent = (difference * factors.squeeze(-1).exp()).clamp(-(largest**0.4), largest**0.4)
    total = (torch.softmax(logits, -1) * normal.cdf(latent)).sum(-1)
    return normal.at_most_one(total).to(means.dtype)


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
    return solve(_excess, lower, upper, finest, (level, weights, means, deviations))[0]


def solve(
    function: Callable[..., tuple[Tensor, Tensor]],
    lower: Tensor,
    upper: Tensor,
    finest: Tensor,
    parameters: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:
    """Return roots of a rising function, by Newton's method inside brackets, and their lower ends.

    A step that Newton's method cannot be trusted with halves the bracket; after many, it halves
    the numbers in it: from 10¹⁵⁴ to 10⁻¹⁵⁴ the halves of a length are too many. A bracket is
    narrowed to 4 eps (|x| + finest), or to nothing where the function is zero.

    Args:
        function: takes x [N'] and the parameters of these rows to values and slopes [N'].
        lower, upper: the brackets [N].
        finest: [N].
        parameters: tensors [N, ...].
    """
    eps, row = torch.finfo(lower.dtype).eps, torch.arange(len(lower), device=lower.device)
    at, step = lower + 0.5 * (upper - lower), upper - lower
    roots, below = torch.empty_like(lower), torch.empty_like(lower)
    for count in range(_MAX_STEPS):
        value, slope = function(at, *parameters)
        lower, upper = torch.where(value <= 0, at, lower), torch.where(value >= 0, at, upper)
        roots[row], below[row] = at, lower
        resolution, width = eps * (at.abs() + finest), upper - lower
        # Never shorter than the resolution: beside the root it must step over it, so that
        # the bracket closes.
        newton = -value.sign() * (value / slope).abs().clamp(min=2 * resolution)
        inside = (at + newton > lower) & (at + newton < upper)
        trusted = inside & (newton.abs() <= (0.5 * step.abs()).clamp(min=2 * resolution))
        middle = lower + 0.5 * width if count < _NEWTON_STEPS else _middle(lower, upper)
        # What is NaN stays so.
        done = (width <= 4 * resolution) | value.isnan()
        at = torch.where(done, at, torch.where(trusted, at + newton, middle))
        step = torch.where(trusted, newton, 0.5 * width)
        # Dropping rows copies the others: worth it once a quarter of them is done.
        if int(done.sum()) * 4 >= len(done):
            row, at, step, lower, upper, finest, *parameters = (
                tensor[~done] for tensor in (row, at, step, lower, upper, finest, *parameters)
            )
        if not len(row):
            break
    return roots, below


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


def _excess(
    at: Tensor, level: Tensor, weights: Tensor, means: Tensor, deviations: Tensor
) -> tuple[Tensor, Tensor]:
    """Return P(X ≤ x) − level and the density at x.

    Each component enters through its smaller tail, and levels above one half through
    their complement: nothing small is ever the difference of large numbers.
    """
    latent = (at.unsqueeze(-1) - means) / deviations
    passed = latent >= 0
    tails = weights * normal.cdf(-latent.abs())
    from_below = torch.where(passed, weights, 0.0).sum(-1) - level
    from_above = (1 - level) - torch.where(passed, 0.0, weights).sum(-1)
    whole = torch.where(level <= 0.5, from_below, from_above)
    excess = whole + torch.where(passed, -tails, tails).sum(-1)
    return excess, (weights * normal.density(latent) / deviations).sum(-1)
