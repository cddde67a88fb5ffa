"""The kernel in plain torch, batch-last, with the analytic gradient; for any device.

Every operation runs over contiguous lines of the batch: no gather, no scatter, no dense
D×D. The factors are read in the forward pass only; their gradient needs d, z and r. Where the
loss or its gradients exceed the precision of the sums, the loss is infinite or NaN, so that
the caller can tell.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class _State(NamedTuple):
    """What the gradients are made of: [D, K, b], but the last two [K, b]."""

    difference: Tensor  # d = x − μ
    latent: Tensor  # z = Ūd
    pulled: Tensor  # Ūᵀz
    diagonal: Tensor  # the part of z that the diagonal of Ū contributes
    responsibility: Tensor  # r
    prior: Tensor  # π


def serves(target: Tensor) -> bool:
    """Tell whether the kernel takes tensors like this one."""
    return target.dtype in (torch.float32, torch.float64)


def forward(inputs: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the loss of each row, and what `backward` needs besides the inputs."""
    target, logits, means, factors = inputs
    dimensions = means.shape[-1]
    upper = factors.permute(2, 1, 0).contiguous()
    diagonal = upper[:dimensions]
    difference = target.T.unsqueeze(1) - means.permute(2, 1, 0).contiguous()
    scale, rows = diagonal.exp(), _strict_rows(upper, dimensions)
    on_diagonal = scale * difference
    latent = on_diagonal.clone() if rows else on_diagonal
    for m, row in enumerate(rows):
        if m == dimensions - 2:
            latent[m].addcmul_(row[0], difference[m + 1])
        else:
            latent[m] += (row * difference[m + 1 :]).sum(0)
    pulled = scale.mul_(latent)
    for m, row in enumerate(rows):
        pulled[m + 1 :].addcmul_(row, latent[m])
    log_prior = torch.log_softmax(logits.T.contiguous(), 0)
    joint = log_prior.add((latent * latent).sum(0), alpha=-0.5).add_(diagonal.sum(0))
    top = joint.amax(0)
    r = joint.sub_(top).exp_()
    whole = r.sum(0)
    r /= whole
    # Smaller ones would make subnormal gradients, which slow down whatever reads them.
    torch.threshold_(r, torch.finfo(r.dtype).tiny * 2.0**32, 0.0)
    loss = whole.log_().add_(top).neg_().add_(0.91893853320467274178 * dimensions)
    # NaN where a gradient would be: 0 · ∞ where r = 0.
    for part in (difference, pulled, latent * on_diagonal):
        loss.add_(part.sum((0, 1)).mul_(0.0))
    return loss, _State(difference, latent, pulled, on_diagonal, r, log_prior.exp_())


def backward(
    inputs: Sequence[Tensor], state: tuple[Tensor, ...], weights: Tensor, to_target: bool
) -> tuple[Tensor | None, ...]:
    """Return the gradients of Σ weights · loss."""
    difference, latent, pulled, on_diagonal, r, prior = state
    dimensions = difference.shape[0]
    r = weights * r
    pull = r * pulled
    gradient = difference.new_empty(inputs[3].shape[-1], *r.shape)
    weighted = r * latent
    diagonal = gradient[:dimensions]
    torch.mul(weighted, on_diagonal, out=diagonal)
    diagonal -= r
    for m, row in enumerate(_strict_rows(gradient, dimensions)):
        torch.mul(difference[m + 1 :], weighted[m], out=row)
    return (
        pull.sum(1).T if to_target else None,
        torch.sub(weights * prior, r).T,
        pull.neg_().permute(2, 1, 0),
        gradient.permute(2, 1, 0),
    )


def _strict_rows(packed: Tensor, dimensions: int) -> Sequence[Tensor]:
    """View the strict triangle of factors [T, K, b] row by row; diagonal ones have none."""
    sizes = range(dimensions - 1, 0, -1) if len(packed) > dimensions else ()
    return packed.split_with_sizes([dimensions, *sizes])[1:]


def total(
    inputs: Sequence[Tensor], *, weights: Tensor | None, to_target: bool
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return Σ weights · loss and its gradients; the mean where weights is None."""
    loss, state = forward(inputs)
    if weights is None:
        weights = loss.new_full((), 1 / max(loss.shape[0], 1))
        return loss.sum() * weights, backward(inputs, state, weights, to_target)
    return torch.dot(loss, weights), backward(inputs, state, weights, to_target)
