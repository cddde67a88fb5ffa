"""Mixtures from mixtures with covariances diag(s²) + VVᵀ, without a matrix of D×D numbers.

This form survives marginals, conditionals, elementwise scaling, projections and
ensembles; `full_factors` leaves it. Shapes as in `condens.functional.low_rank`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from condens.functional.algebra import joined_logits, normalised, padded
from condens.functional.low_rank.mixture import comparison, decompose, explain
from condens.functional.mixture import compared, expand_batch
from condens.functional.precision import widen
from condens.functional.triangular import between, from_square_root, on_vectors, saturated_exp


class Parameters(NamedTuple):
    """What defines a mixture: logits, means, log_scales and loadings."""

    logits: Tensor
    means: Tensor
    log_scales: Tensor
    loadings: Tensor

    def to(self, dtype: torch.dtype) -> "Parameters":
        """Return the parameters in another precision."""
        return Parameters(*(tensor.to(dtype) for tensor in self))

    @property
    def variances(self) -> Tensor:
        """The variance sⱼ² + Σ Vⱼ² of each dimension [..., K, D]."""
        return (2 * self.log_scales).exp() + self.loadings.square().sum(-1)

    @property
    def deviations(self) -> Tensor:
        """The standard deviation of each dimension, in each component [..., K, D]."""
        return self.variances.sqrt()

    @property
    def deviation_bounds(self) -> Tensor:
        """What no `deviations` are above: these [..., K, D]."""
        return self.deviations

    def affine(self, scale: Tensor, loc: Tensor) -> "Parameters":
        """Return the mixture of scale·x + loc, elementwise.

        Shapes: scale [D], or [..., 1, D] one for each mixture, and loc [..., D].
        """
        logits, means, log_scales, loadings, scale, loc = widen(*self, scale, loc)
        return Parameters(
            logits,
            means * scale + loc.unsqueeze(-2),
            log_scales + scale.abs().log(),
            loadings * scale.unsqueeze(-1),
        ).to(self.means.dtype)

    def blended(self, other: "Parameters", part: Tensor) -> "Parameters":
        """Return the mixtures between these, 0, and others, 1, in all of the four.

        Shapes: part [...], one for each mixture.
        """
        pairs = zip(self, other, strict=True)
        return Parameters(*(between(ours, theirs, part) for ours, theirs in pairs))

    def scaled(self, scale: Tensor) -> "Parameters":
        """Return the mixture with covariances SΣS, S = diag(scale); weights and means stay.

        Shapes: scale [D], or [..., K, D] one for each component, above zero.
        """
        log_scales, loadings, scale = widen(self.log_scales, self.loadings, scale)
        return self._replace(
            log_scales=log_scales + scale.log(), loadings=loadings * scale.unsqueeze(-1)
        ).to(self.means.dtype)


def marginal(
    logits: Tensor, means: Tensor, log_scales: Tensor, loadings: Tensor, dims: Sequence[int]
) -> Parameters:
    """Return the mixture of x[dims], in the order asked for: rows of s and V."""
    rows = list(dims)
    return Parameters(logits, means[..., rows], log_scales[..., rows], loadings[..., rows, :])


def condition(
    logits: Tensor,
    means: Tensor,
    log_scales: Tensor,
    loadings: Tensor,
    dims: Sequence[int],
    value: Tensor,
) -> Parameters:
    """Return the mixture of the other dimensions, in ascending order, given x[dims] = value.

    The fixed dimensions b tell about the factors alone: f | x_b ~ N(m, (RᵀR)⁻¹), where m
    explains x_b best. Of the free ones, a, the mean moves by V_a m, and V_a R⁻¹ are the
    loadings that are left. Shapes: value [..., len(dims)], broadcast against the leading axes.
    """
    dtype, fixed = means.dtype, set(dims)
    free = [d for d in range(means.shape[-1]) if d not in fixed]
    logits, means, log_scales, loadings, value = widen(logits, means, log_scales, loadings, value)
    given = marginal(logits, means, log_scales, loadings, dims)
    rest = marginal(logits, means, log_scales, loadings, free)
    latent = (value.unsqueeze(-2) - given.means) * saturated_exp(-given.log_scales)
    system = decompose(given.log_scales, given.loadings)
    parts = explain(system, latent)
    shift = on_vectors(torch.matmul, rest.loadings, parts[..., len(dims) :])
    left = torch.linalg.solve_triangular(system.upper, rest.loadings, upper=True, left=False)
    constant = logits - system.log_root
    joint = constant - 0.5 * parts.square().sum(-1)
    compare = comparison(given.log_scales, given.loadings, system)
    new_logits = normalised(compared(joint, constant, value, given.means, *compare), logits)
    return Parameters(new_logits, rest.means + shift, rest.log_scales, left).to(dtype)


def project(
    logits: Tensor, means: Tensor, log_scales: Tensor, loadings: Tensor, direction: Tensor
) -> Parameters:
    """Return the one-dimensional mixture of wᵀx. Shapes: direction w [..., D]."""
    dtype = means.dtype
    means, log_scales, loadings, direction = widen(means, log_scales, loadings, direction)
    row = direction.unsqueeze(-2)
    centre = (row * means).sum(-1, keepdim=True)
    deviation = (row * log_scales.exp()).norm(dim=-1, keepdim=True)
    return Parameters(logits, centre, deviation.log(), row.unsqueeze(-2) @ loadings).to(dtype)


def ensemble(members: Sequence[Parameters], log_weights: Tensor) -> Parameters:
    """Return one mixture of all the members' components; missing loadings are zero.

    Shapes: members with equal batch shape and D; log_weights [M], normalised.
    """
    logits, means, log_scales, loadings = zip(*members, strict=True)
    return Parameters(
        joined_logits(logits, log_weights),
        torch.cat(means, -2),
        torch.cat(log_scales, -2),
        torch.cat(padded(loadings), -3),
    )


def full_factors(log_scales: Tensor, loadings: Tensor) -> Tensor:
    """Return packed factors with ŪᵀŪ = (diag(s²) + VVᵀ)⁻¹. Shapes: → [..., K, D(D+1)/2].

    >>> full_factors(torch.zeros(1, 1), torch.full((1, 1, 1), 3**0.5)).exp()
    tensor([[0.5000]])
    """
    logs, wide = expand_batch(widen(log_scales, loadings), (2, 3))
    root = torch.cat([torch.diag_embed(logs.exp()), wide], -1)
    return from_square_root(root).to(log_scales.dtype)
