"""The kernel in plain torch, batch-last, with the analytic gradient; for any device.

Every operation runs over contiguous lines of the batch: no gather, no scatter, no dense
D×D. The factors are read in the forward pass only; their gradient needs d, z and r.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from condens.kernels.passes import weighted_sum


class _State(NamedTuple):
    """What the gradients are made of: [D, K, b], but the last two [K, b]."""

    difference: Tensor
    latent: Tensor
    pulled: Tensor
    own: Tensor
    share: Tensor
    prior: Tensor
    packed: int


def serves(target: Tensor) -> bool:
    """Tell whether the kernel takes tensors like this one."""
    return target.dtype in (torch.float32, torch.float64)


def forward(*inputs: Tensor) -> tuple[Tensor, Any]:
    """Return the loss of each row, and what `backward` needs."""
    target, logits, means, factors = inputs
    dimensions, packed = means.shape[-1], factors.shape[-1]
    upper = factors.permute(2, 1, 0).contiguous()
    diagonal, strict = upper[:dimensions], upper[dimensions:]
    difference = target.T.unsqueeze(1) - means.permute(2, 1, 0)
    scale = diagonal.exp()
    own = scale * difference
    latent = own.clone()
    rows = strict.split(list(range(dimensions - 1, 0, -1))) if packed > dimensions else ()
    for m, row in enumerate(rows):
        latent[m] += (row * difference[m + 1 :]).sum(0)
    pulled = scale * latent
    for m, row in enumerate(rows):
        pulled[m + 1 :] += row * latent[m]
    log_prior = torch.log_softmax(logits.T, 0)
    joint = log_prior + diagonal.sum(0) - 0.5 * latent.square().sum(0)
    log_density = joint.logsumexp(0)
    share = (joint - log_density).exp()
    loss = 0.91893853320467274178 * dimensions - log_density
    state = _State(difference, latent, pulled, own, share, log_prior.exp(), packed)
    return loss, state


def backward(state: _State, weights: Tensor, to_target: bool) -> tuple[Tensor | None, ...]:
    """Return the gradients of Σ weights · loss."""
    difference, latent = state.difference, state.latent
    dimensions = len(difference)
    share = weights * state.share
    to_logits = weights * state.prior - share
    pull = share * state.pulled
    gradient = difference.new_empty(state.packed, *share.shape)
    weighted = share * latent
    torch.mul(weighted, state.own, out=gradient[:dimensions])
    gradient[:dimensions] -= share
    start = dimensions
    for m in range(dimensions - 1 if state.packed > dimensions else 0):
        stop = start + dimensions - 1 - m
        torch.mul(difference[m + 1 :], weighted[m], out=gradient[start:stop])
        start = stop
    return (
        pull.sum(1).T if to_target else None,
        to_logits.T,
        -pull.permute(2, 1, 0),
        gradient.permute(2, 1, 0),
    )


def total(
    *inputs: Tensor, weights: Tensor | None, to_target: bool
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return Σ weights · loss and its gradients; the mean where weights is None."""
    loss, state = forward(*inputs)
    if weights is None:
        weights = loss.new_full((), 1 / max(len(loss), 1)).expand(len(loss))
    return weighted_sum(loss, weights), backward(state, weights, to_target)
