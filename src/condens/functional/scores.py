"""Proper scores of a mixture at an observed target. Lower is better."""

import math

import torch
from torch import Tensor

from condens.functional import normal
from condens.functional.estimates import Estimate, length, standard_error
from condens.functional.precision import widen


def crps(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return the exact continuous ranked probability score of a one-dimensional mixture.

    CRPS = E|X − x| − ½E|X − X′| = Σₖₗ πₖπₗ (E(Xₖ − x)₊ + E(x − Xₗ)₊ − E(Xₖ − Xₗ′)₊),
    E(N(m, s²))₊ = s φ(m/s) + m Φ(m/s)    (Grimit et al. 2006)

    where (k, l) may be taken either way round. With the components in the order of their
    means, no term is larger than what it adds up to, however far apart they are.

    Shapes: target [..., 1] → [...].
    """
    target, (weights, centres, deviation) = widen(target), _components(logits, means, factors)
    weights, centres, deviation = _in_order(centres, weights, centres, deviation)
    pairs = _positive_part(
        centres.unsqueeze(-1) - centres.unsqueeze(-2),
        torch.hypot(deviation.unsqueeze(-1), deviation.unsqueeze(-2)),
    )
    above = _positive_part(centres - target, deviation)
    below = _positive_part(target - centres, deviation)
    return _paired(weights, above, below, pairs).to(means.dtype)


def _in_order(
    key: Tensor, weights: Tensor, means: Tensor, deviation: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights, means and deviations of the components [..., K], sorted by a key."""
    tensors = torch.broadcast_tensors(weights, means, deviation)
    order = key.detach().expand_as(tensors[0]).argsort(-1)
    weights, means, deviation = (tensor.gather(-1, order) for tensor in tensors)
    return weights, means, deviation


def _components(logits: Tensor, means: Tensor, factors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights, means and deviations [..., K]; a component without weight has no effect.

    In double precision.
    """
    logits, means, factors = widen(logits, means, factors)
    weights = torch.softmax(logits, -1)
    idle = weights == 0
    log_precision = factors.squeeze(-1).masked_fill(idle, 0.0)
    return weights, means.squeeze(-1).masked_fill(idle, 0.0), log_precision.neg().exp()


def _paired(weights: Tensor, above: Tensor, below: Tensor, pairs: Tensor) -> Tensor:
    """Return Σₖₗ πₖπₗ (aboveₖ + belowₗ − pairsₖₗ), k ≤ l in every term.

    Shapes: weights [..., K], above and below [..., K], pairs [..., K, K] → [...].
    """
    # πₗ and twice those before it, or after it.
    first, last = 2 * weights.cumsum(-1), 2 * weights.flip(-1).cumsum(-1).flip(-1)
    single = weights * ((last - weights) * above + (first - weights) * below)
    both = weights.unsqueeze(-1) * weights.unsqueeze(-2) * pairs
    among = 2 * both.triu(1).sum((-1, -2)) + both.diagonal(dim1=-2, dim2=-1).sum(-1)
    return single.sum(-1) - among


def _positive_part(centre: Tensor, deviation: Tensor) -> Tensor:
    """Return E(N(m, s²))₊."""
    # A bound whose square is finite: infinity times a density of zero would be NaN.
    ratio = (centre / deviation).clamp(-1e150, 1e150)
    return deviation * normal.density(ratio) + centre * normal.cdf(ratio)


# Deviations of X below which e^X is at most about as wide as its mean.
_NARROW_DEVIATION = 1.0
# The logarithm of the largest double, less the margin of a sum of a few such numbers.
_MAX_LOG = 709.0


def lognormal_crps(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return the exact CRPS of e^X at a target, for a one-dimensional mixture of X.

    As `crps` has it. With m = E[e^X], t = (log y − μ)/σ and s² = σₖ² + σₗ²,
    E(e^X − y)₊ = m Φ(σ − t) − y Φ(−t),  E(y − e^X)₊ = y Φ(t) − m Φ(t − σ),
    E min(e^X, e^X′) = mₖ Φ(−(μₖ − μₗ + σₖ²)/s) + mₗ Φ((μₖ − μₗ − σₗ²)/s)

    The mean of a wide component grows with e^(σ²/2), and would cancel against itself:
    there E(Yₖ − y)₊ − E(Yₖ − Yₗ)₊ is E min(Yₖ, Yₗ) − E min(Yₖ, y), which has no mean in it.
    Of a narrow one, both differences come from expm1. Infinite where it is beyond double
    precision, for a single component from σ of some 53 on. Shapes: target [..., 1] → [...].
    """
    target, (weights, centres, deviation) = widen(target), _components(logits, means, factors)
    beyond = _log_size(centres, deviation) > _MAX_LOG
    centres, deviation = centres.masked_fill(beyond, 0.0), deviation.masked_fill(beyond, 1.0)
    wide_first = torch.where(deviation < _NARROW_DEVIATION, centres, -torch.inf)
    weights, centres, deviation = _in_order(wide_first, weights, centres, deviation)
    narrow = deviation < _NARROW_DEVIATION
    above = torch.where(
        narrow,
        _excess(target, centres.masked_fill(~narrow, 0.0), deviation.masked_fill(~narrow, 0.5)),
        -_lesser(target, centres, deviation),
    )
    below, pairs = _shortfall(target, centres, deviation), _between(centres, deviation)
    score = _paired(weights, above, below, pairs)
    return torch.where((beyond & (logits > -torch.inf)).any(-1), torch.inf, score).to(means.dtype)


def _log_mean(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return log E[e^X]."""
    return mean + 0.5 * deviation.square()


def _log_size(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return log E[e^X] for narrow X, and log ½E min(e^X, e^X′) for wide ones."""
    shared = torch.special.log_ndtr(deviation * -math.sqrt(0.5))
    return _log_mean(mean, deviation) + torch.where(deviation < _NARROW_DEVIATION, 0.0, shared)


def _between(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return E(Yₖ − Yₗ)₊ for narrow k, and −E min(Yₖ, Yₗ) for wide ones [..., K, K]."""
    narrow = deviation < _NARROW_DEVIATION
    # Of the wide ones' exchange nothing is used, but its gradient must be a number.
    mean_, deviation_ = mean.masked_fill(~narrow, 0.0), deviation.masked_fill(~narrow, 0.5)
    spread, log_mean = deviation_.square(), _log_mean(mean_, deviation_)
    gap = mean_.unsqueeze(-1) - mean_.unsqueeze(-2)
    both = (spread.unsqueeze(-1) + spread.unsqueeze(-2)).sqrt()
    # In units of Yₗ the exchange is an excess over one.
    unit = log_mean.unsqueeze(-2).exp()
    exchange = unit * _excess(torch.ones_like(unit), gap - spread.unsqueeze(-2), both)
    spread, log_mean = deviation.square(), _log_mean(mean, deviation)
    gap = mean.unsqueeze(-1) - mean.unsqueeze(-2)
    both = (spread.unsqueeze(-1) + spread.unsqueeze(-2)).sqrt()
    lesser = [
        log_mean.unsqueeze(axis)
        + torch.special.log_ndtr((side * gap - spread.unsqueeze(axis)) / both)
        for axis, side in ((-1, -1), (-2, 1))
    ]
    return torch.where(narrow.unsqueeze(-1), exchange, -(lesser[0].exp() + lesser[1].exp()))


def _excess(strike: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Return E(e^X − c)₊ for narrow X."""
    growth, latent, positive = _place(strike, mean, deviation)
    near = positive & (growth < 1)
    # m Φ(σ − t) − c Φ(−t), at first order in small σ.
    close, place = torch.where(near, growth, 0.0), torch.where(near, latent, 0.0)
    risen = torch.expm1(close) * normal.cdf(deviation - place)
    inner = strike * (_slice(place, deviation) + risen)
    # Of what is below the support nothing falls short.
    held, kept = (torch.where(positive, normal.cdf(z), 1.0) for z in (deviation - latent, -latent))
    outer = _log_mean(mean, deviation).exp() * held - strike * kept
    return torch.where(near, inner, outer)


def _shortfall(strike: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Return E(c − e^X)₊."""
    growth, latent, positive = _place(strike, mean, deviation)
    near = (growth < 1) & (deviation < _NARROW_DEVIATION)
    close, place = torch.where(near, growth, 0.0), torch.where(near, latent, 0.0)
    narrow = deviation.masked_fill(~near, 0.5)
    inner = _slice(place, narrow) - torch.expm1(close) * normal.cdf(place - narrow)
    outer = normal.cdf(latent) - (growth + torch.special.log_ndtr(latent - deviation)).exp()
    return torch.where(positive, strike * torch.where(near, inner, outer), 0.0)


def _lesser(strike: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Return E min(e^X, c)."""
    growth, latent, positive = _place(strike, mean, deviation)
    part = (growth + torch.special.log_ndtr(latent - deviation)).exp() + normal.cdf(-latent)
    return torch.where(positive, strike * part, strike)


def _place(strike: Tensor, mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log E[e^X] − log c, t = (log c − μ)/σ, and whether c is in the support."""
    positive = strike > 0
    shift = mean - torch.where(positive, strike, 1.0).log()
    return _log_mean(shift, deviation), -shift / deviation, positive


def _slice(latent: Tensor, deviation: Tensor) -> Tensor:
    """Return Φ(t) − Φ(t − σ), which a difference would round to nothing for small σ."""
    return normal.log_interval(latent - deviation, latent, deviation).exp()


def energy_score(target: Tensor, first: Tensor, second: Tensor) -> Estimate:
    """Estimate E‖X − x‖ − ½E‖X − X′‖ from independent pairs of draws.

    Shapes: target [..., D], draws [N, *batch, D] → [...]; the target's leading axes
    broadcast against the batch.
    """
    first, second = (_beside(target, draws) for draws in (first, second))
    reach = 0.5 * (length(first - target) + length(second - target))
    score = reach - 0.5 * length(first - second)
    return Estimate(score.mean(0), standard_error(score))


def _beside(target: Tensor, draws: Tensor) -> Tensor:
    """Give draws [N, *batch, D] an axis for each leading axis the target has beyond the batch."""
    return draws.reshape(len(draws), *[1] * (target.dim() + 1 - draws.dim()), *draws.shape[1:])
