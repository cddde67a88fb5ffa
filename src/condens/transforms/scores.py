"""CRPS of bounded and whole-numbered targets, by adaptive quadrature and summation.

CRPS = ∫ (F(t) − 1(y ≤ t))² dt, and for whole numbers Σₜ (F(t) − 1(y ≤ t))². The integral is taken
over the real line, t = t(x) with dt = t′(x) dx: near a bound t has few digits. Both are computed
piece by piece with Gauss rules of 8 and 16 points, and pieces are halved until these agree. The
rule for a sum over N whole numbers has the nodes of the discrete Chebyshev polynomials; it is the
sum itself where N ≤ 8, and tends to the rule of Gauss and Legendre as N grows.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from condens.functional import normal
from condens.functional.precision import widen

# Ends of the first pieces, in deviations from each mean: within a piece no part of F is narrow.
_ENDS = (0.0, 2.0, 5.0, 10.0, 20.0, 38.0)
# How far the two rules may differ on a piece, relative to the score.
_TOLERANCE = 1e-11
# Pieces of a piece: double precision has no more halves.
_MAX_HALVINGS = 1100
_ROWS_PER_BLOCK = 256
# Up to so many whole numbers Gauss rules are tabulated; beyond, they are polynomials in N⁻².
_FEW, _DEGREE = 64, 10


def bounded_crps(
    target: Tensor,
    logits: Tensor,
    means: Tensor,
    factors: Tensor,
    *,
    rate: Callable[[Tensor], Tensor],
    reach: float,
) -> Tensor:
    """Return the CRPS of a share F(X) for a one-dimensional mixture of X.

    Args:
        target: as its x, and ±inf where it is at an end of the support, or beyond.
        rate: F′, of width one.
        reach: the x beyond which F is as good as 0 or 1.

    Shapes: target [..., 1] → [...], in double precision.
    """
    within_reach = partial(torch.clamp, min=-reach, max=reach)
    # F′ has the width one, whatever those of the components are.
    ends = [side * end for end in (*_ENDS, reach) for side in (-1, 1)]
    return _in_blocks(
        within_reach(widen(target)),
        logits,
        means,
        factors,
        partial(
            _crps,
            from_real=within_reach,
            to_real=lambda x: x,
            more_ends=ends,
            rate=rate,
            whole=False,
        ),
    )


def whole_crps(
    target: Tensor,
    logits: Tensor,
    means: Tensor,
    factors: Tensor,
    *,
    from_real: Callable[[Tensor], Tensor],
    to_real: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return the CRPS of the whole number Y = from_real(X) for a one-dimensional mixture of X.

    `to_real` continues the x with {Y ≤ t} = {X ≤ x} smoothly between whole numbers.
    Shapes: target [..., 1] → [...], in double precision.
    """
    return _in_blocks(
        target,
        logits,
        means,
        factors,
        partial(
            _crps,
            from_real=from_real,
            to_real=to_real,
            more_ends=(),
            rate=torch.ones_like,
            whole=True,
        ),
    )


@torch.no_grad()
def _in_blocks(
    target: Tensor, logits: Tensor, means: Tensor, factors: Tensor, score: Callable[..., Tensor]
) -> Tensor:
    """Return the scores [...], some rows at a time."""
    target, logits, means, factors = widen(target, logits, means, factors)
    shape = torch.broadcast_shapes(target.shape[:-1], logits.shape[:-1])
    parts = (target, torch.softmax(logits, -1), means.squeeze(-1), factors.squeeze(-1).neg().exp())
    rows = (part.expand(*shape, -1).reshape(-1, part.shape[-1]) for part in parts)
    blocks = zip(*(part.split(_ROWS_PER_BLOCK) for part in rows), strict=True)
    return torch.cat([score(*block) for block in blocks]).reshape(shape)


def _crps(
    target: Tensor,
    weights: Tensor,
    means: Tensor,
    deviations: Tensor,
    *,
    from_real: Callable[[Tensor], Tensor],
    to_real: Callable[[Tensor], Tensor],
    more_ends: Sequence[float],
    rate: Callable[[Tensor], Tensor],
    whole: bool,
) -> Tensor:
    """Return the scores [N] of mixtures [N, K] at targets [N, 1]; t counts at a rate."""
    places = means.new_tensor([side * end for end in _ENDS for side in (-1, 1)])
    largest = 0.25 * torch.finfo(means.dtype).max
    ends = from_real(means.unsqueeze(-1) + places * deviations.unsqueeze(-1)).flatten(1)
    ends = ends.clamp(-largest, largest)
    last = target.floor() + 1 if whole else target
    fixed = ends.new_tensor(more_ends).expand(len(ends), -1)
    ends = torch.cat([ends, fixed, target.floor() if whole else target, last], -1).sort(-1).values
    row = torch.arange(len(ends), device=ends.device).repeat_interleave(ends.shape[1] - 1)
    start, size = ends[:, :-1].flatten(), ends.diff(dim=-1).flatten()

    def values(row: Tensor, t: Tensor) -> Tensor:
        latent = (to_real(t).unsqueeze(-1) - means[row, None]) / deviations[row, None]
        below, above = ((weights[row, None] * normal.cdf(s * latent)).sum(-1) for s in (1, -1))
        # The part of a cell that lies below the target.
        part = (target[row] - t).clamp(0, 1) if whole else (t < target[row]).to(t)
        return rate(t) * (part * below.square() + (1 - part) * above.square())

    total = torch.zeros_like(ends[:, 0])
    for _ in range(_MAX_HALVINGS):
        row, start, size = (part[size > 0] for part in (row, start, size))
        if not len(row):
            break
        few, many = (_gauss(values, row, start, size, nodes, whole=whole) for nodes in (8, 16))
        scale = total.index_add(0, row, many)[row]
        done = (many - few).abs() <= _TOLERANCE * scale
        done |= size <= 4 * torch.finfo(size.dtype).eps * start.abs()
        total = total.index_add(0, row[done], many[done])
        half = 0.5 * size[~done]
        half = half.floor() if whole else half
        row, start, size = row[~done].repeat(2), start[~done], size[~done]
        start, size = torch.cat([start, start + half]), torch.cat([half, size - half])
    return total


def _gauss(
    values: Callable[[Tensor, Tensor], Tensor],
    row: Tensor,
    start: Tensor,
    size: Tensor,
    nodes: int,
    *,
    whole: bool,
) -> Tensor:
    """Return the sum, or the integral, of a function over pieces [M] by Gauss rules."""
    places, weights = _rule(size if whole else torch.full_like(size, torch.inf), nodes)
    middle = start + 0.5 * (size - (1 if whole else 0))
    at = middle.unsqueeze(-1) + size.unsqueeze(-1) * places
    return size * (weights * values(row, at)).sum(-1)


def _rule(counts: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Return places in (−½, ½) and weights [M, nodes] of the Gauss rules for N numbers [M]."""
    powers = (_FEW / counts).square().unsqueeze(-1) ** torch.arange(_DEGREE + 1).to(counts)
    few, which = counts <= _FEW, counts.clamp(max=_FEW).long()
    places, weights = (
        torch.where(few.unsqueeze(-1), exact.to(counts)[which], powers @ series.to(counts))
        for exact, series in _tables(nodes)
    )
    return places, weights


@cache
def _tables(nodes: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return places and weights, each for N = 0, …, 64 and as a polynomial in (64/N)² ≤ 1."""
    angles = (torch.arange(_DEGREE + 1, dtype=torch.float64) + 0.5) * (math.pi / (_DEGREE + 1))
    ratios = 0.5 - 0.5 * angles.cos()
    counts = torch.cat([torch.arange(_FEW + 1), _FEW * ratios.rsqrt()]).double()
    order = torch.arange(1, nodes, dtype=torch.float64)
    left = (1 - (order / counts.unsqueeze(-1)).square()).clamp(min=0)
    beside = order * (left / (4 * (4 * order.square() - 1))).sqrt()
    places, vectors = torch.linalg.eigh(torch.diag_embed(beside, -1))
    powers = ratios.unsqueeze(-1) ** torch.arange(_DEGREE + 1)
    first, second = (
        (numbers[: _FEW + 1], torch.linalg.solve(powers, numbers[_FEW + 1 :]))
        for numbers in (places, vectors[:, 0].square())
    )
    return first, second


def is_smooth(log_deviations: Tensor, logits: Tensor) -> Tensor:
    """Tell whether every component is so wide that whole numbers are as good as real ones [...]."""
    return ((log_deviations > math.log(1e6)) | logits.isneginf()).all(-1)
