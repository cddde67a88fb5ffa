"""Density, responsibilities and moments of Gaussian mixtures given as plain tensors.

Shapes, here and in every function of this package: logits [..., K], means [..., K, D],
packed factors [..., K, T] with T = D(D+1)/2 for full covariances or T = D for
diagonal ones, and target [..., D]; leading axes broadcast. Results have the dtype of the
means; the arithmetic is done in double precision.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from condens.functional.normal import LOG_2PI
from condens.functional.precision import widen
from condens.functional.tracing import anywhere
from condens.functional.triangular import (
    component_variances,
    inverse_factors,
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
    return _component_log_prob(target, means, factors).to(means.dtype)


def longest(means: Tensor) -> float:
    """Return the bound of a latent whose square fits the dtype of the result."""
    return float(torch.finfo(means.dtype).max ** 0.5)


def _component_log_prob(target: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return `component_log_prob` in double precision."""
    dimensions, reach = means.shape[-1], longest(means)
    target, means, factors = widen(target, means, factors)
    difference = target.unsqueeze(-2) - means
    # Numbers whose square overflows leave before the arithmetic: in the backward pass
    # 0 · ∞ would be NaN. A NaN of the input is not hidden.
    near = ~difference.isinf()
    latent = whiten(torch.where(near, difference, 0.0), factors)
    broken = difference.isnan().any(-1) | factors.sum(-1).isnan()
    held = near & ((latent.abs() < reach) | broken.unsqueeze(-1))
    energy = 0.5 * torch.where(held, latent, 0.0).square().sum(-1)
    log_density = log_determinant(factors, dimensions) - energy - 0.5 * dimensions * LOG_2PI
    return torch.where(held.all(-1), log_density, -torch.inf)


def joint_log_prob(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return log πₖ + log pₖ(x), the joint log density of component and target.

    In double precision, for what follows. Shapes: → [..., K].
    """
    return torch.log_softmax(widen(logits), -1) + _component_log_prob(target, means, factors)


def log_prob(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return the normalised log density of the mixture.

    log p(x) = logsumexpₖ( log softmax(logits)ₖ + log pₖ(x) )

    Shapes: → [...].

    >>> one = torch.zeros(1, 1)
    >>> log_prob(torch.zeros(1), torch.zeros(1), means=one, factors=one)
    tensor(-0.9189)
    """
    return log_total(joint_log_prob(target, logits, means, factors)).to(means.dtype)


def log_total(joint: Tensor) -> Tensor:
    """Sum joint densities over the components, in log space. Shapes: [..., K] → [...]."""
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
    joint = comparable(target, logits, means, factors)
    return torch.softmax(posterior_logits(joint, logits.to(joint.dtype)), -1).to(means.dtype)


def comparable(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return `joint_log_prob`, for comparing components only: see `compared`."""
    joint = joint_log_prob(target, logits, means, factors)
    target, logits, means, factors = widen(target, logits, means, factors)
    rest = torch.log_softmax(logits, -1) + log_determinant(factors, means.shape[-1])
    return compared(joint, rest, target, means, [factors], partial(whiten, factors=factors))


# Energies from here on have rounded more than 10⁻¹⁰ away.
_FAR = 2.0**20


def compared(
    joint: Tensor,
    rest: Tensor,
    target: Tensor,
    means: Tensor,
    covariances: Sequence[Tensor],
    latent: Callable[[Tensor], Tensor],
    *,
    sign: float = -1.0,
) -> Tensor:
    """Return the joint log densities restₖ ± ½‖zₖ‖², where these cancel less the highest one.

    At 10⁸ σ they are ±5·10¹⁵, and what decides between two components is less than a unit of
    the last place. With l the most likely one,

    ½‖zₖ‖² − ½‖zₗ‖² = ½(zₖ − zₗ)·(zₖ + zₗ),  zₖ − zₗ = Ūₖ(μₗ − μₖ) + (Ūₖ − Ūₗ)(x − μₗ)

    which keeps every digit where the covariances are equal. Where they are not, the last
    digits of the covariances themselves decide.

    Args:
        joint: [..., K], −inf where it is beyond the precision.
        rest: [..., K], what does not depend on x.
        target: x [..., D].
        means: [..., K, D].
        covariances: tensors [..., K, *], equal for components of equal covariance.
        latent: takes x − μ [..., K, D] to z [..., K, *], linearly.
        sign: of the energies.
    """
    if joint.shape[-1] == 1 or not anywhere(joint.detach().abs() > _FAR):
        return joint
    best = joint.detach().nan_to_num(nan=-torch.inf).argmax(-1, keepdim=True)
    means = means.expand(*joint.shape, means.shape[-1])
    centre = means.take_along_dim(best.unsqueeze(-1), -2)
    place = latent(target.unsqueeze(-2) - means).take_along_dim(best.unsqueeze(-1), -2)
    alike = _alike(covariances).expand_as(joint)
    equal = (alike == alike.gather(-1, best)).unsqueeze(-1)
    moved = latent((target.unsqueeze(-2) - centre).expand_as(means)) - place
    step = latent(centre - means) + torch.where(equal, 0.0, moved)
    rest = rest.expand_as(joint)
    energy = 0.5 * (step * (2 * place + step)).sum(-1)
    exact = rest - rest.gather(-1, best) + sign * energy
    return torch.where(joint.isneginf(), joint, exact)


def _alike(covariances: Sequence[Tensor]) -> Tensor:
    """Return for each component the first one with the same numbers [..., K]."""
    first = torch.zeros((), dtype=torch.int64, device=covariances[0].device)
    for component in reversed(range(covariances[0].shape[-2])):
        same = [(numbers == numbers[..., component, None, :]).all(-1) for numbers in covariances]
        first = torch.where(torch.stack(torch.broadcast_tensors(*same)).all(0), component, first)
    return first


def posterior_logits(joint: Tensor, logits: Tensor) -> Tensor:
    """Return joint log densities as logits; evidence lost to overflow says nothing."""
    lost = joint.isneginf().all(-1, keepdim=True)
    return torch.where(lost, logits, joint)


def mean(logits: Tensor, means: Tensor) -> Tensor:
    """Return the mean of the mixture, Σₖ πₖ μₖ. Shapes: → [..., D]."""
    weights, offset = _spread(logits, means)
    return (means[..., 0, :] + (weights * offset).sum(-2)).to(means.dtype)


def variance(logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return the variance of each dimension of the mixture. Shapes: → [..., D]."""
    return total_variance(logits, means, component_variances(widen(factors), means.shape[-1]))


def total_variance(logits: Tensor, means: Tensor, within: Tensor) -> Tensor:
    """Return the variance of a mixture of components with variances [..., K, D]."""
    weights, offset = _spread(logits, means)
    between = (offset - (weights * offset).sum(-2, keepdim=True)).square()
    return _weighted(weights, within + between).to(means.dtype)


def component_covariances(factors: Tensor, dimensions: int) -> Tensor:
    """Return Σₖ = Ūₖ⁻¹Ūₖ⁻ᵀ of every component. Shapes: → [..., K, D, D]."""
    root = inverse_factors(widen(factors), dimensions)
    return (root @ root.mT).to(factors.dtype)


def covariance(logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return the covariance of the mixture, by the law of total covariance.

    Σ = Σₖ πₖ (Σₖ + (μₖ − μ)(μₖ − μ)ᵀ). Shapes: → [..., D, D].
    """
    return total_covariance(logits, means, component_covariances(widen(factors), means.shape[-1]))


def total_covariance(logits: Tensor, means: Tensor, within: Tensor) -> Tensor:
    """Return the covariance of a mixture of components with covariances [..., K, D, D]."""
    weights, offset = _spread(logits, means)
    offset = offset - (weights * offset).sum(-2, keepdim=True)
    between = offset.unsqueeze(-1) * offset.unsqueeze(-2)
    return _weighted(weights.unsqueeze(-1), within + between, -3).to(means.dtype)


def _spread(logits: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights [..., K, 1] and offsets from the first mean [..., K, D].

    Weights sum to one only up to rounding, which a large common offset would magnify.
    """
    logits, means = widen(logits, means)
    return torch.softmax(logits, -1).unsqueeze(-1), means - means[..., :1, :]


def _weighted(weights: Tensor, values: Tensor, axis: int = -2) -> Tensor:
    """Sum weighted values over the components; without weight, even infinity is nothing."""
    return (weights * torch.where(weights > 0, values, 0.0)).sum(axis)


def broadcast(logits: Tensor, means: Tensor, factors: Tensor) -> list[Tensor]:
    """Expand the parameters to one batch shape. Shapes: [*b, K], [*b, K, D], [*b, K, T]."""
    return expand_batch((logits, means, factors), (1, 2, 2))


def expand_batch(tensors: Sequence[Tensor], axes: Sequence[int]) -> list[Tensor]:
    """Expand tensors to one batch shape; the last `axes` axes of each are not the batch's."""
    pairs = list(zip(tensors, axes, strict=True))
    batch = torch.broadcast_shapes(*(tensor.shape[: tensor.dim() - n] for tensor, n in pairs))
    return [tensor.expand(*batch, *[-1] * n) for tensor, n in pairs]
