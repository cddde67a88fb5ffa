"""Local maxima of a mixture's density."""

from typing import NamedTuple

import torch
from torch import Tensor

from condens.functional.mixture import broadcast, joint_log_prob, log_prob
from condens.functional.precision import widen
from condens.functional.triangular import solve_upper, triangularise, unpack, whiten

_MAX_STEPS = 2000
_MAX_ESCAPES = 8
# Of the factors of all components around all points: these stay in the cache.
_NUMBERS_AT_A_TIME = 2**20
# Two ascents that end within this many local deviations found one mode.
_SAME_DISTANCE = 1e-4
# So did two within this many, unless the density dips between them.
_NEAR_DISTANCE = 0.5
# An ascent that comes this far in a dimension of growth goes on for ever.
_FAR = 1e8
# A point has come to rest where the slope is this small, in local deviations.
_REST = 1e-6


class Modes(NamedTuple):
    """Modes, highest first: points [..., M, D] and their log density [..., M].

    In a batch, M is the largest number of modes of any member. Members with fewer
    repeat their highest mode, with log density −inf.
    """

    points: Tensor
    log_density: Tensor


class _Local(NamedTuple):
    """The density around points, in coordinates y = Rx with RᵀR = Σₖ rₖΛₖ.

    There no unit of a dimension matters, and no condition number is squared.
    """

    log_density: Tensor
    root: Tensor  # R
    slope: Tensor  # the gradient of the log density
    curvature: Tensor  # minus its Hessian: the identity for a single Gaussian

    def to_points(self, steps: Tensor) -> Tensor:
        return solve_upper(self.root, steps.unsqueeze(-1)).squeeze(-1)


def modes(logits: Tensor, means: Tensor, factors: Tensor, growth: Tensor | None = None) -> Modes:
    """Find every local maximum that an ascent from a component's mean reaches.

    Newton's step where the log density is concave and the step goes up; elsewhere the
    fixed-point step x ← (Σₖ rₖΛₖ)⁻¹ Σₖ rₖΛₖμₖ, which never goes down. A saddle is left
    along its direction of ascent. In more than one dimension a mixture can have further
    modes that no component's mean leads to. Carries no gradient.

    With a growth q ≥ 0 [D] the maxima are those of p(x) exp(½ Σⱼ qⱼxⱼ²), a quotient of Gaussians
    that may grow without limit. Ascents also start where πₖ N(μₖ, Λₖ⁻¹) alone has its maximum,
    (Λₖ − diag q)⁻¹Λₖμₖ, if it has one; those that never come to rest are left out. Members
    without any maximum have a single one with log density −inf.
    """
    with torch.no_grad():
        wide = [t.detach() for t in widen(*broadcast(logits, means, factors))]
        batch = wide[0].shape[:-1]
        flat = [tensor.reshape(batch.numel(), *tensor.shape[len(batch) :]) for tensor in wide]
        quotient = None if growth is None or not bool(growth.any()) else widen(growth)
        starts = flat[1] if quotient is None else _with_peaks(flat[1], flat[2], quotient)
        flat.append(
            (starts.new_zeros(()) if quotient is None else quotient).expand_as(flat[1][:, 0])
        )
        size = _NUMBERS_AT_A_TIME // max(flat[1].numel() * means.shape[-1], 1)
        ends = torch.cat(
            [_climb(points, *flat) for points in starts.movedim(-2, 0).split(max(size, 1))]
        )
        points, log_density = _distinct(ends, *flat, may_grow=quotient is not None)
        return Modes(
            points.reshape(*batch, *points.shape[1:]).to(means.dtype),
            log_density.reshape(*batch, *log_density.shape[1:]).to(means.dtype),
        )


def _with_peaks(means: Tensor, factors: Tensor, growth: Tensor) -> Tensor:
    """Return the means [B, K, D], and the maximum of each component times the growth [B, 2K, D]."""
    upper = unpack(factors, means.shape[-1])
    precision = upper.mT @ upper
    root, failed = torch.linalg.cholesky_ex(precision - torch.diag(growth))
    root = torch.where((failed == 0)[..., None, None], root, upper.mT)
    peaks = torch.cholesky_solve(precision @ means.unsqueeze(-1), root).squeeze(-1)
    held = (peaks.abs() < _FAR).all(-1, keepdim=True)
    return torch.cat([means, torch.where(held, peaks, means)], -2)


def _log_prob(
    points: Tensor, logits: Tensor, means: Tensor, factors: Tensor, growth: Tensor
) -> Tensor:
    """Return the logarithm of what is climbed."""
    return log_prob(points, logits, means, factors) + 0.5 * (growth * points.square()).sum(-1)


def _climb(
    points: Tensor, logits: Tensor, means: Tensor, factors: Tensor, growth: Tensor
) -> Tensor:
    """Return where the ascents from points [N, B, D] end, past saddles."""
    for _ in range(_MAX_ESCAPES):
        points = _ascend(points, logits, means, factors, growth)
        points, stuck = _leave_saddles(points, logits, means, factors, growth)
        if not stuck:
            return points
    return _ascend(points, logits, means, factors, growth)


def _local(
    points: Tensor, logits: Tensor, means: Tensor, factors: Tensor, growth: Tensor
) -> _Local:
    """Return the density around points [N, B, D] of mixtures [B, K]."""
    joint = joint_log_prob(points, logits, means, factors)
    log_density = joint.logsumexp(-1)
    root_responsibility = (joint - log_density.unsqueeze(-1)).exp().sqrt()[..., None, None]
    # Row k of blocks: √rₖ Ūₖ, so that the product with its transpose sums rₖΛₖ.
    blocks = (root_responsibility * unpack(factors, means.shape[-1])).flatten(-3, -2)
    _, root = triangularise(blocks)
    white = torch.linalg.solve_triangular(root, blocks, upper=True, left=False)
    white = white.unflatten(-2, means.shape[-2:])
    latent = whiten(points.unsqueeze(-2) - means, factors)
    # √rₖ times the gradient of component k.
    pulls = -torch.einsum("...kij,...ki->...kj", white, latent)
    slope = (root_responsibility.squeeze(-1) * pulls).sum(-2)
    spread = pulls - root_responsibility.squeeze(-1) * slope.unsqueeze(-2)
    identity = torch.eye(points.shape[-1], dtype=points.dtype, device=points.device)
    # R⁻ᵀ√q: the growth adds its product with √q·x to the slope, and with itself to the Hessian.
    stretch = torch.linalg.solve_triangular(
        root.mT, torch.diag_embed(growth.sqrt()).expand_as(root), upper=False
    )
    slope = slope + (stretch @ (growth.sqrt() * points).unsqueeze(-1)).squeeze(-1)
    log_density = log_density + 0.5 * (growth * points.square()).sum(-1)
    return _Local(log_density, root, slope, identity - spread.mT @ spread - stretch @ stretch.mT)


def _ascend(
    points: Tensor, logits: Tensor, means: Tensor, factors: Tensor, growth: Tensor
) -> Tensor:
    """Climb from points [N, B, D] until they rest; starts and members leave when all of them do."""
    tolerance = 1e-2 * torch.finfo(points.dtype).eps ** 0.5
    rested, device = points.clone(), points.device
    starts, members = (torch.arange(n, device=device) for n in points.shape[:2])
    done = torch.zeros_like(points[..., 0], dtype=torch.bool)
    grows, boost = bool(growth.any()), torch.ones_like(points[..., 0])
    for _ in range(_MAX_STEPS):
        here = _local(points, logits, means, factors, growth)
        root, failed = torch.linalg.cholesky_ex(here.curvature)
        newton = torch.cholesky_solve(here.slope.unsqueeze(-1), root).squeeze(-1)
        there = _log_prob(points + here.to_points(newton), logits, means, factors, growth)
        # A step of more than one local deviation could leap into another mode's basin.
        better = (failed == 0) & (newton.norm(dim=-1) <= 1) & (there >= here.log_density)
        step = torch.where(better.unsqueeze(-1), newton, here.slope)
        if grows:
            # What grows without limit does so slowly at first: steps double while they go up.
            longer = boost.unsqueeze(-1) * step
            levels = [
                _log_prob(points + here.to_points(one), logits, means, factors, growth)
                for one in (step, longer)
            ]
            boosted = ~better & (levels[1] >= levels[0])
            step = torch.where(boosted.unsqueeze(-1), longer, step)
            boost = torch.where(boosted, 2 * boost, 1.0)
        points = torch.where(done.unsqueeze(-1), points, points + here.to_points(step))
        done = done | (step.norm(dim=-1) <= tolerance) | _is_far(points, growth)
        rested[starts[:, None], members] = points
        start, member = ~done.all(1), ~done.all(0)
        if not bool(start.any()):
            break
        if not bool(start.all() & member.all()):
            starts, members = starts[start], members[member]
            points, done = points[start][:, member], done[start][:, member]
            logits, means, factors = logits[member], means[member], factors[member]
            growth, boost = growth[member], boost[start][:, member]
    return rested


def _leave_saddles(
    points: Tensor, logits: Tensor, means: Tensor, factors: Tensor, growth: Tensor
) -> tuple[Tensor, bool]:
    """Step a tenth of a local deviation along the steepest upward curvature, if there is any."""
    here = _local(points, logits, means, factors, growth)
    values, vectors = torch.linalg.eigh(here.curvature)
    saddle = (values[..., 0] < -1e-9) & ~_is_far(points, growth)
    direction = here.to_points(vectors[..., 0])
    return torch.where(saddle.unsqueeze(-1), points + 0.1 * direction, points), bool(saddle.any())


def _is_far(points: Tensor, growth: Tensor) -> Tensor:
    """Tell which ascents [N, B] follow the growth for ever."""
    return ((growth > 0) & ~(points.abs() < _FAR)).any(-1)


def _distinct(
    points: Tensor,
    logits: Tensor,
    means: Tensor,
    factors: Tensor,
    growth: Tensor,
    *,
    may_grow: bool,
) -> Modes:
    """Sort points [N, B, D], drop repeats, and pad to [B, M, D] and [B, M]."""
    log_density = _log_prob(points, logits, means, factors, growth)
    if may_grow:
        slope = _local(points, logits, means, factors, growth).slope
        rested = ~_is_far(points, growth) & (slope.norm(dim=-1) <= _REST)
        log_density = torch.where(rested, log_density, -torch.inf)
    log_density, order = log_density.sort(0, descending=True)
    points = torch.take_along_dim(points, order.unsqueeze(-1), 0)
    repeated = _repeated(points, log_density, logits, means, factors, growth)
    repeated |= log_density.isneginf()
    most = max(int((~repeated).sum(0).max()), 1) if repeated.numel() else len(points)
    # Repeats move to the end, where they become the highest mode again.
    log_density, order = log_density.masked_fill(repeated, -torch.inf).sort(
        dim=0, descending=True, stable=True
    )
    order = torch.where(log_density.isneginf(), 0, order)[:most]
    points = torch.take_along_dim(points, order.unsqueeze(-1), 0)
    return Modes(points.movedim(0, -2), log_density[:most].movedim(0, -1))


def _repeated(
    points: Tensor,
    log_density: Tensor,
    logits: Tensor,
    means: Tensor,
    factors: Tensor,
    growth: Tensor,
) -> Tensor:
    """Tell which of the points [N, B, D], highest first, are an earlier one again."""
    repeated = torch.zeros_like(log_density, dtype=torch.bool)
    for i in range(1, len(points)):
        gap = points[i] - points[:i]
        root = _local(points[i], logits, means, factors, growth).root
        distance = (root @ gap.unsqueeze(-1)).squeeze(-1).norm(dim=-1)
        repeated[i] = (distance <= _SAME_DISTANCE).any(0)
        near = (distance <= _NEAR_DISTANCE) & ~repeated[i]
        pairs = near.any(1)
        if bool(pairs.any()):
            middle = _log_prob(points[i] - 0.5 * gap[pairs], logits, means, factors, growth)
            repeated[i] |= (near[pairs] & ~(middle < log_density[i] - 1e-12)).any(0)
    return repeated
