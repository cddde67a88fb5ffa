"""Densities for conditions far outside the training rows."""

import math

import torch
from torch import Tensor

from condens.functional import mixture
from condens.nn.heads.base import P, Parameters

# Factor that a density is stretched by at most: a network's scales grow exponentially.
MAX_STRETCH = 10.0


def extrapolate(free: P, edge: P, departure: Tensor) -> P:
    """Return mixtures that are no narrower than those at the edge of the training rows.

    Where it was never trained, a network may shrink its scales or favour one narrow component.
    With `free` its mixture for a row and `edge` that for the nearest row in the training range,
    the density becomes that of

        Y = m + γ·(Y_edge − m_edge),   γⱼ = (vⱼ / v_edge,ⱼ)^½, clamped to [1, 10]

    with m the mean of `free` and v a measure of its variances: the mean is the network's, the
    width is the network's within these bounds, and the shape is that at the edge. No two outcomes
    are closer to each other than at the edge, in any dimension, so that no deviation, no range of
    quantiles and no entropy is smaller. `departure` interpolates from `free` (0) to this (1), in
    square roots of the covariances: no deviation is above the larger one of both.

    Shapes: departure [...], the batch shape of the mixtures.
    """
    given, known = free.to(torch.float64), edge.to(torch.float64)
    centre, origin = (mixture.mean(m.logits, m.means) for m in (given, known))
    stretch = (_log_scale(given) - _log_scale(known)).clamp(0.0, math.log(MAX_STRETCH)).exp()
    moved = known.affine(stretch.unsqueeze(-2), centre - stretch * origin)
    return given.blended(moved, departure.double()).to(free.means.dtype)


def _log_scale(parameters: Parameters) -> Tensor:
    """Return the logarithm of v^½ [..., D].

    For full covariances these are the variances of each dimension given those after it: the
    marginal ones need a triangular solve, and would only change where the stretch begins.
    """
    size = mixture.total_variance(parameters.logits, parameters.means, parameters.variances)
    # Without a floor a variance may underflow.
    return 0.5 * size.clamp(min=torch.finfo(size.dtype).tiny).log()
