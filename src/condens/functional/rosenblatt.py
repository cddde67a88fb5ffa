"""The transform of Rosenblatt: from a mixture to independent uniform numbers, one by one.

A component is x = μ + s·ε + Vf with standard normal ε and f. With full covariances V = Ū⁻¹ and
s = 0. Walking from the first dimension to the last, each observed one takes what it tells of f
out of the rows of V that are left: with v the row of dimension d and α = s_d² + ‖v‖²,

    z_d = δ_d/√α,   δⱼ ← δⱼ − (Vⱼ·v) z_d/√α,   Vⱼ ← Vⱼ − (Vⱼ·v) v/(α + s_d√α)   for j > d

by which VVᵀ stays the covariance that the dimensions before leave to f (Potter's square root; for
s = 0 the method of Gram and Schmidt). So δ is x minus its conditional mean, and z_d is standard
normal given the dimensions before.
"""

import torch
from torch import Tensor

from condens.functional import normal
from condens.functional.mixture import posterior_logits


def rosenblatt(
    target: Tensor,
    logits: Tensor,
    means: Tensor,
    loadings: Tensor,
    log_scales: Tensor | None = None,
) -> Tensor:
    """Return u_d = P(X_d ≤ x_d | x₁, …, x_{d−1}), in the precision of the arguments.

    u_d = Σₖ wₖ Φ(zₖ_d), where wₖ are the weights given the dimensions before. A NaN of the target
    was not observed: it stays, and the others are as without this dimension. An infinite number
    has u = 0 or 1, and says nothing about the others.

    Shapes: target [..., D], logits [..., K], means [..., K, D], loadings V [..., K, D, r], and
    log s [..., K, D], none for s = 0 → [..., D].

    >>> x, mean = torch.tensor([0.0, 1.0]), torch.zeros(1, 2)
    >>> rosenblatt(x, torch.zeros(1), mean, torch.eye(2)[None])
    tensor([0.5000, 0.8413])
    """
    # Squares of these, and sums of them, still fit.
    reach = torch.finfo(means.dtype).max ** 0.4
    missing = target.isnan()
    known = target.isfinite().unsqueeze(-2)
    offset = torch.where(known, target.unsqueeze(-2), means) - means
    evidence, found = torch.log_softmax(logits, -1), []
    for d in range(target.shape[-1]):
        row, rest, seen = loadings[..., 0, :], loadings[..., 1:, :], known[..., d]
        square = row.square().sum(-1)
        scale = None if log_scales is None else log_scales[..., d].exp()
        square = square if scale is None else square + scale.square()
        deviation = square.sqrt()
        latent = (offset[..., 0] / deviation).clamp(-reach, reach)
        infinite = target[..., d].unsqueeze(-1).masked_fill(missing[..., d : d + 1], 0.0)
        place = torch.where(seen, latent, infinite)
        weights = torch.softmax(posterior_logits(evidence, logits), -1)
        found.append(normal.at_most_one((weights * normal.cdf(place)).sum(-1)))
        # A dimension that was not observed leaves all as it is.
        shared = (rest @ row.unsqueeze(-1)).squeeze(-1).masked_fill(~seen.unsqueeze(-1), 0.0)
        offset = offset[..., 1:] - shared * (latent / deviation).unsqueeze(-1)
        divisor = square if scale is None else square + scale * deviation
        loadings = rest - (shared / divisor.unsqueeze(-1)).unsqueeze(-1) * row.unsqueeze(-2)
        gained = -0.5 * latent.square() - deviation.log()
        evidence = evidence + gained.masked_fill(~seen, 0.0)
    return torch.stack(found, -1).masked_fill(missing, torch.nan)
