"""Upper bounds of the negative log-likelihood, per row, and the weighted sum over rows.

Jensen's inequality gives two upper bounds of the negative log-likelihood. Their
minimisers are not the mixture one wants: the weighted bound gives all weight to one
component, the uniform one makes every component the same Gaussian. They serve as a
short warm-up; then minimise `nll`.
"""

import math

import torch
from torch import Tensor

from condens.functional.mixture import component_log_prob, joint_log_prob


def weighted_sum(each: Tensor, weights: Tensor | None) -> Tensor:
    """Return Σ weights · each over the rows, or their mean where weights is None.

    A row of weight zero takes no part, even if its value is infinite. Shapes: [b], [b] → [].
    """
    if weights is None:
        return each.mean() if each.shape[0] else each.sum()
    return torch.where(weights == 0, 0.0, weights * each).sum()


def weighted_bound(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return −Σₖ πₖ log pₖ(x) ≥ −log p(x): Jensen with the mixture's weights.

    Shapes: → [...].
    """
    weights = torch.softmax(logits, -1)
    log_density = component_log_prob(target, means, factors)
    # A weight that underflowed takes no part, not even where the density is zero too.
    return -(weights * torch.where(weights == 0, 0.0, log_density)).sum(-1)


def uniform_bound(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return −log K − (1/K) Σₖ (log πₖ + log pₖ(x)) ≥ −log p(x): Jensen with equal weights.

    Shapes: → [...].
    """
    joint = joint_log_prob(target, logits, means, factors)
    return (-math.log(joint.shape[-1]) - joint.mean(-1)).to(means.dtype)


def report_printed_form(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return −Σₖ (log πₖ + log pₖ(x)), which the report prints as a bound; it is not a bound.

    For two equal components with p = 6 it gives −2.197 where the negative
    log-likelihood is −1.792. It has the minimiser of `uniform_bound` and is kept for
    comparison with FrEIA's `nll_upper_bound`, which drops K·(D/2)·log 2π.
    Shapes: → [...].
    """
    return -joint_log_prob(target, logits, means, factors).sum(-1).to(means.dtype)
