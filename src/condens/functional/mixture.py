"""Density, responsibilities and moments of Gaussian mixtures given as plain tensors.

Shapes, here and in every function of this package: logits [..., K], means [..., K, D],
packed factors [..., K, T] with T = D(D+1)/2 for full covariances or T = D for
diagonal ones, and target [..., D]; leading axes broadcast.
"""

import torch
from torch import Tensor

from condens.functional.normal import LOG_2PI
from condens.functional.triangular import (
    inverse_factors,
    is_diagonal,
    log_determinant,
    whiten,
)


def component_log_prob(target: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return the normalised log density of every component.

    log pₖ(x) = −½‖zₖ‖² + Σⱼ(Uₖ)ⱼⱼ − (D/2) log 2π,  zₖ = Ūₖ(x − μₖ)

    Where ‖zₖ‖² is beyond the precision's largest number the result is −inf, with a
    gradient of zero. Shapes: → [..., K].

    >>> component_log_prob(torch.zeros(1), torch.zeros(1, 1), torch.zeros(1, 1))
    tensor([-0.9189])
    """
    dimensions = means.shape[-1]
    difference = target.unsqueeze(-2) - means
    # Numbers whose square overflows leave before the arithmetic: in the backward pass
    # 0 · ∞ would be NaN. A NaN that came in is not hidden.
    near = ~difference.isinf()
    latent = whiten(torch.where(near, difference, 0.0), factors)
    reach = torch.finfo(latent.dtype).max ** 0.5
    broken = difference.isnan().any(-1) | factors.sum(-1).isnan()
    held = near & ((latent.abs() < reach) | broken.unsqueeze(-1))
    energy = 0.5 * torch.where(held, latent, 0.0).square().sum(-1)
    constant = 0.5 * dimensions * LOG_2PI
    log_density = log_determinant(factors, dimensions) - energy - constant
    return torch.where(held.all(-1), log_density, -torch.inf)


def joint_log_prob(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return log πₖ + log pₖ(x), the joint log density of component and target.

    Shapes: → [..., K].
    """
    return torch.log_softmax(logits, -1) + component_log_prob(target, means, factors)


def log_prob(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return the normalised log density of the mixture.

    log p(x) = logsumexpₖ( log softmax(logits)ₖ + log pₖ(x) )

    Shapes: → [...].

    >>> one = torch.zeros(1, 1)
    >>> log_prob(torch.zeros(1), torch.zeros(1), means=one, factors=one)
    tensor(-0.9189)
    """
    joint = joint_log_prob(target, logits, means, factors)
    # A target that no component can hold in this precision: −inf, and no gradient
    # rather than the NaN of a softmax over −inf alone.
    lost = joint.isneginf().all(-1)
    held = torch.where(lost.unsqueeze(-1), 0.0, joint)
    return torch.where(lost, -torch.inf, held.logsumexp(-1))


def responsibilities(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return the probability of each component given the target.

    rₖ = softmaxₖ( log πₖ + log pₖ(x) )

    A target that no component can hold in this precision tells nothing about the
    component: it gets the weights. Shapes: → [..., K].
    """
    joint = joint_log_prob(target, logits, means, factors)
    lost = joint.isneginf().all(-1, keepdim=True)
    return torch.softmax(torch.where(lost, logits, joint), -1)


def mean(logits: Tensor, means: Tensor) -> Tensor:
    """Return the mean of the mixture, Σₖ πₖ μₖ. Shapes: → [..., D]."""
    return (torch.softmax(logits, -1).unsqueeze(-1) * means).sum(-2)


def variance(logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return the variance of each dimension of the mixture. Shapes: → [..., D]."""
    dimensions = means.shape[-1]
    if is_diagonal(factors, dimensions):
        within = (-2 * factors).exp()
    else:
        within = inverse_factors(factors, dimensions).square().sum(-1)
    between = (means - mean(logits, means).unsqueeze(-2)).square()
    return (torch.softmax(logits, -1).unsqueeze(-1) * (within + between)).sum(-2)


def component_covariances(factors: Tensor, dimensions: int) -> Tensor:
    """Return Σₖ = Ūₖ⁻¹Ūₖ⁻ᵀ of every component. Shapes: → [..., K, D, D]."""
    root = inverse_factors(factors, dimensions)
    return root @ root.mT


def covariance(logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return the covariance of the mixture, by the law of total covariance.

    Σ = Σₖ πₖ (Σₖ + (μₖ − μ)(μₖ − μ)ᵀ). Shapes: → [..., D, D].
    """
    weights = torch.softmax(logits, -1)
    offset = means - mean(logits, means).unsqueeze(-2)
    between = torch.einsum("...k,...ki,...kj->...ij", weights, offset, offset)
    components = component_covariances(factors, means.shape[-1])
    return between + (weights[..., None, None] * components).sum(-3)
