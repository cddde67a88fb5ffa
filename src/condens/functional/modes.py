"""Local maxima of a mixture's density."""

from typing import NamedTuple

import torch
from torch import Tensor

from condens.functional.mixture import joint_log_prob, log_prob
from condens.functional.precision import widen
from condens.functional.triangular import unpack, whiten

_MOST_STEPS = 2000
_MOST_ESCAPES = 8
# Two ascents that end within this many local standard deviations found one mode.
_SAME = 1e-4


class Modes(NamedTuple):
    """Modes, highest first: points [..., M, D] and their log density [..., M].

    In a batch, M is the largest number of modes of any member. Members with fewer
    repeat their highest mode, with log density −inf.
    """

    points: Tensor
    log_density: Tensor


class _Local(NamedTuple):
    log_density: Tensor
    gradient: Tensor
    precision: Tensor  # Σₖ rₖΛₖ, always positive definite
    curvature: Tensor  # minus the Hessian of the log density


def modes(logits: Tensor, means: Tensor, factors: Tensor) -> Modes:
    """Find every local maximum that an ascent from a component's mean reaches.

    Newton's step where the log density is concave and the step goes up; elsewhere the
    fixed-point step x ← (Σₖ rₖΛₖ)⁻¹ Σₖ rₖΛₖμₖ, which never goes down. A saddle is left
    along its direction of ascent. In more than one dimension a mixture can have further
    modes that no component's mean leads to. Carries no gradient.
    """
    with torch.no_grad():
        wide = widen(logits, means, factors)
        points = wide[1].movedim(-2, 0)
        for _ in range(_MOST_ESCAPES):
            points = _ascend(points, *wide)
            points, stuck = _leave_saddles(points, *wide)
            if not stuck:
                break
        return _distinct(points, *wide, dtype=means.dtype)


def _local(points: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> _Local:
    joint = joint_log_prob(points, logits, means, factors)
    log_density = joint.logsumexp(-1)
    share = (joint - log_density.unsqueeze(-1)).exp()
    upper = unpack(factors, means.shape[-1])
    latent = whiten(points.unsqueeze(-2) - means, factors)
    pulls = -torch.einsum("...kij,...ki->...kj", upper, latent)
    gradient = (share.unsqueeze(-1) * pulls).sum(-2)
    precision = torch.einsum("...k,...kij->...ij", share, upper.mT @ upper)
    spread = pulls - gradient.unsqueeze(-2)
    scatter = torch.einsum("...k,...ki,...kj->...ij", share, spread, spread)
    return _Local(log_density, gradient, precision, precision - scatter)


def _ascend(points: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    tolerance = 1e-2 * torch.finfo(points.dtype).eps ** 0.5
    done = torch.zeros_like(points[..., 0], dtype=torch.bool)
    for _ in range(_MOST_STEPS):
        here = _local(points, logits, means, factors)
        right = here.gradient.unsqueeze(-1)
        safe = torch.cholesky_solve(right, torch.linalg.cholesky_ex(here.precision).L).squeeze(-1)
        root, failed = torch.linalg.cholesky_ex(here.curvature)
        newton = torch.cholesky_solve(right, root).squeeze(-1)
        there = log_prob(points + newton, logits, means, factors)
        # A step of more than one local deviation could leap into another mode's basin.
        short = torch.einsum("...i,...ij,...j->...", newton, here.precision, newton) <= 1
        better = (failed == 0) & short & (there >= here.log_density)
        step = torch.where(better.unsqueeze(-1), newton, safe)
        points = torch.where(done.unsqueeze(-1), points, points + step)
        length = torch.einsum("...i,...ij,...j->...", step, here.precision, step).clamp(min=0)
        done = done | (length.sqrt() <= tolerance)
        if bool(done.all()):
            break
    return points


def _leave_saddles(
    points: Tensor, logits: Tensor, means: Tensor, factors: Tensor
) -> tuple[Tensor, bool]:
    """Step a tenth of a local deviation along the steepest upward curvature, if there is any."""
    here = _local(points, logits, means, factors)
    # In coordinates whitened by Σₖ rₖΛₖ, so that no unit of a dimension matters.
    root = torch.linalg.cholesky(here.precision)
    half = torch.linalg.solve_triangular(root, here.curvature, upper=False)
    scaled = torch.linalg.solve_triangular(root, half.mT, upper=False)
    values, vectors = torch.linalg.eigh(0.5 * (scaled + scaled.mT))
    saddle = values[..., 0] < -1e-9
    direction = torch.linalg.solve_triangular(root.mT, vectors[..., :1], upper=True).squeeze(-1)
    return torch.where(saddle.unsqueeze(-1), points + 0.1 * direction, points), bool(saddle.any())


def _distinct(
    points: Tensor, logits: Tensor, means: Tensor, factors: Tensor, *, dtype: torch.dtype
) -> Modes:
    log_density, order = log_prob(points, logits, means, factors).sort(0, descending=True)
    points = torch.take_along_dim(points, order.unsqueeze(-1), 0)
    precision = _local(points, logits, means, factors).precision
    gap = points.unsqueeze(1) - points.unsqueeze(0)
    distance = torch.einsum("ij...a,j...ab,ij...b->ij...", gap, precision, gap)
    count = points.shape[0]
    earlier = torch.ones(count, count, dtype=torch.bool, device=points.device).tril(-1)
    earlier = earlier.reshape(count, count, *[1] * (log_density.dim() - 1))
    repeated = (earlier & (distance <= _SAME**2)).any(1)
    # Stable: the modes move to the front, still highest first.
    _, order = repeated.to(torch.uint8).sort(dim=0, stable=True)
    most = int((~repeated).sum(0).max()) if repeated.numel() else count
    order = order[:most]
    repeated = torch.take_along_dim(repeated, order, 0)
    log_density = torch.take_along_dim(log_density, order, 0).masked_fill(repeated, -torch.inf)
    points = torch.take_along_dim(points, order.unsqueeze(-1), 0)
    points = torch.where(repeated.unsqueeze(-1), points[:1], points)
    return Modes(points.movedim(0, -2).to(dtype), log_density.movedim(0, -1).to(dtype))
