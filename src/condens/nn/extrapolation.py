"""Densities for conditions far outside the training rows."""

import math
from typing import TypeVar

import torch
from torch import Tensor

from condens.functional import algebra, mixture
from condens.functional.low_rank import algebra as low_rank_algebra

Parameters = algebra.Parameters | low_rank_algebra.Parameters
Kind = TypeVar("Kind", algebra.Parameters, low_rank_algebra.Parameters)

# The most that a density is stretched by: scales grow exponentially with what a network reads.
STRETCH = 10.0


def extrapolate(free: Kind, edge: Kind, departure: Tensor) -> Kind:
    """Return mixtures that are no narrower than those at the edge of the training rows.

    A network is free to shrink its scales, or to favour one narrow component, where it was never
    trained. With `free` what it says of a row and `edge` what it says of the nearest row in the
    training range, the density becomes that of

        Y = m + γ·(Y_edge − m_edge),   γⱼ = (vⱼ / v_edge,ⱼ)^½, from 1 to 10

    with m the mean of `free` and v a measure of the variances: where the network's mean goes, and
    as wide as it says within these bounds, but in the form that it has learnt. No two outcomes
    are closer to each other than at the edge, in any dimension, so that no deviation, no range of
    quantiles and no entropy is smaller. `departure` leads over from `free` (0) to this (1), along
    straight lines in the parameters.

    Shapes: departure [...], the batch shape of the mixtures.
    """
    given, known = free.to(torch.float64), edge.to(torch.float64)
    centre, origin = (mixture.mean(m.logits, m.means) for m in (given, known))
    stretch = (0.5 * (_log_size(given) - _log_size(known))).clamp(0.0, math.log(STRETCH)).exp()
    moved = known.affine(stretch.unsqueeze(-2), centre - stretch * origin)
    blended = []
    for own, other in zip(given, moved, strict=True):
        share = departure.double().reshape(*departure.shape, *[1] * (own.dim() - departure.dim()))
        blended.append(torch.where(share > 0, own + share * (other - own), own))
    return type(free)(*blended).to(free.means.dtype)


def _log_size(parameters: Parameters) -> Tensor:
    """Return the logarithm of v [..., D].

    Of full covariances the variances of each dimension given those after it: what they are
    without these would need a triangular system, and only changes where the stretch begins.
    """
    size = mixture.total_variance(parameters.logits, parameters.means, parameters.variances)
    # Without a floor a variance may be too small for a number.
    return size.clamp(min=torch.finfo(size.dtype).tiny).log()
