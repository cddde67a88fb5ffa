"""The density of rows that are observed in part."""

import torch
from torch import Tensor

from condens.functional.dtypes import widen
from condens.functional.normal import LOG_2PI
from condens.functional.triangular import is_diagonal, log_determinant, unpack, whiten


def partial_log_prob(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return log p(x_o), the marginal density of the entries of x that are not NaN.

    With P = ŪᵀŪ, o the n_o observed and m the missing dimensions, the missing entries enter
    at the point that makes ‖Ū(x − μ)‖ least, and the normaliser loses what they had:

    log pₖ(x_o) = −½ min ‖Ū(x − μ)‖² + log det Ū − ½ log det P_mm − ½ n_o log 2π

    A row with nothing observed has log density zero. Shapes: target [..., D] → [...].

    >>> x = torch.tensor([0.5, float("nan")])
    >>> partial_log_prob(x, torch.zeros(1), torch.zeros(1, 2), torch.zeros(1, 3))
    tensor(-1.0439)
    """
    dtype = means.dtype
    target, logits, means, factors = widen(target, logits, means, factors)
    dimensions = means.shape[-1]
    missing = target.isnan().unsqueeze(-2)
    # Zero where missing, and not the difference masked: its gradient would be 0 · NaN.
    offset = torch.where(missing, 0.0, target.unsqueeze(-2).nan_to_num(nan=0.0) - means)
    if is_diagonal(factors, dimensions):
        lost = torch.where(missing, factors, 0.0).sum(-1)
    else:
        offset, lost = _least(offset, unpack(factors, dimensions), missing)
    energy = 0.5 * whiten(offset, factors).square().sum(-1)
    observed = (~missing).sum(-1).to(means.dtype)
    density = log_determinant(factors, dimensions) - lost - energy - 0.5 * LOG_2PI * observed
    return torch.logsumexp(torch.log_softmax(logits, -1) + density, -1).to(dtype)


def _least(offset: Tensor, upper: Tensor, missing: Tensor) -> tuple[Tensor, Tensor]:
    """Fill the missing entries of x − μ to make ‖Ū(x − μ)‖ least; return ½ log|P_mm| too."""
    precision = upper.mT @ upper
    both = missing.unsqueeze(-1) & missing.unsqueeze(-2)
    # P_mm on the missing entries and the identity on the rest: one shape for every row.
    identity = torch.eye(offset.shape[-1], dtype=offset.dtype, device=offset.device)
    root = torch.linalg.cholesky(torch.where(both, precision, identity))
    pull = torch.where(missing, (precision @ offset.unsqueeze(-1)).squeeze(-1), 0.0)
    filled = torch.cholesky_solve(pull.unsqueeze(-1), root).squeeze(-1)
    return offset - filled, root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
