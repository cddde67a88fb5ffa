"""The density of rows that are observed in part."""

import math
from typing import Any

import torch
from torch import Tensor

from condens.functional import mixture
from condens.functional.fused import differentiable
from condens.functional.normal import LOG_2PI
from condens.functional.precision import widen
from condens.functional.shapes import check_mixture
from condens.functional.triangular import is_diagonal, triangularise, unpack, whiten
from condens.kernels import native
from condens.kernels.choice import choose, traced

# How many numbers the triangles of a block of rows have.
_NUMBERS_PER_BLOCK = 4_000_000


def partial_log_prob(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return log p(x_o), the marginal density of the entries of x that are not NaN.

    With the missing dimensions first, ŪP = QR, and R_oo, the trailing block of R, is the
    factor of the n_o observed ones. No condition number is squared:

    log pₖ(x_o) = −½‖R_oo(x_o − μ_o)‖² + log det R_oo − ½ n_o log 2π

    A row with nothing observed has log density zero. Shapes: target [..., D] → [...].

    >>> x = torch.tensor([0.5, float("nan")])
    >>> partial_log_prob(x, torch.zeros(1), torch.zeros(1, 2), torch.zeros(1, 3))
    tensor(-1.0439)
    """
    rows, batch = _rows(target, logits, means, factors)
    if traced(means):
        return _log_prob(*rows).reshape(batch)
    if choose(means) is native:
        found: Tensor = _Native.apply(*rows)  # type: ignore[no-untyped-call]
        return found.reshape(batch)
    # Complete rows need no new triangle. Those of the others take much memory.
    gaps = rows[0].isnan().any(-1)
    whole, rest = (~gaps).nonzero().flatten(), gaps.nonzero().flatten()
    some = rest.split(max(1, _NUMBERS_PER_BLOCK // (means.shape[-2] * means.shape[-1] ** 2)))
    parts = [mixture.log_prob(*(tensor[whole] for tensor in rows))]
    parts += [_log_prob(*(tensor[block] for tensor in rows)) for block in some]
    return torch.cat(parts)[torch.cat([whole, rest]).argsort()].reshape(batch)


def _rows(
    target: Tensor, logits: Tensor, means: Tensor, factors: Tensor
) -> tuple[list[Tensor], torch.Size]:
    """Return the tensors with one batch axis, and the shape it stands for."""
    tensors = {"target": target, "logits": logits, "means": means, "factors": factors}
    batch, event = check_mixture(tensors), (1, 1, 2, 2)
    count = math.prod(batch)  # Size.numel would make a number of a symbol
    rows = zip(mixture.expand_batch(tuple(tensors.values()), event), event, strict=True)
    return [tensor.reshape(count, *tensor.shape[-axes:]) for tensor, axes in rows], batch


def _log_prob(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return the density of rows [R, D], with plain gradients."""
    reach, dtype, dimensions = mixture.longest(means), means.dtype, means.shape[-1]
    target, logits, means, factors = widen(target, logits, means, factors)
    missing = target.isnan().unsqueeze(-2)
    # Zero where missing, and not the difference masked: its gradient would be 0 · NaN.
    offset = (target.unsqueeze(-2).masked_fill(missing, 0.0) - means).masked_fill(missing, 0.0)
    beyond = offset.isinf()
    offset = offset.masked_fill(beyond, 0.0)
    if is_diagonal(factors, dimensions):
        seen, latent, log_scales = ~missing, whiten(offset, factors), factors
    else:
        order = missing.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
        # Not take_along_dim, which would make numbers of symbolic sizes.
        seen, offset = (~missing).gather(-1, order), offset.gather(-1, order.expand_as(offset))
        upper = unpack(factors, dimensions)
        columns = upper.gather(-1, order.unsqueeze(-2).expand_as(upper))
        # One QR for every row: what is above R_oo meets offsets of zero, and is masked.
        upper = triangularise(columns)[1]
        latent = (upper @ offset.unsqueeze(-1)).squeeze(-1)
        log_scales = upper.diagonal(dim1=-2, dim2=-1).log()
    latent = latent.masked_fill(~seen, 0.0)
    beyond = beyond | (latent.abs() >= reach)
    energy = 0.5 * latent.masked_fill(beyond, 0.0).square().sum(-1)
    constant = 0.5 * LOG_2PI * seen.sum(-1).to(energy.dtype)
    density = log_scales.masked_fill(~seen, 0.0).sum(-1) - energy - constant
    density = density.masked_fill(beyond.any(-1), -torch.inf)
    total = mixture.log_total(torch.log_softmax(logits, -1) + density)
    return total.masked_fill(missing.all(-1).squeeze(-1), 0.0).to(dtype)


class _Native(torch.autograd.Function):
    """The same by the native kernel, every gradient made in the forward pass."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        value, made = native.partial(inputs, gradients=any(ctx.needs_input_grad))
        ctx.save_for_backward(*inputs, *made)
        return value.to(inputs[2].dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (upstream,) = gradients
        inputs, made = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        if torch.is_grad_enabled():
            return tuple(differentiable(_log_prob, inputs, upstream, ctx.needs_input_grad))
        return tuple(
            (gradient * upstream.view(-1, *[1] * (gradient.dim() - 1))).to(tensor.dtype)
            if need
            else None
            for tensor, gradient, need in zip(inputs, made, ctx.needs_input_grad, strict=True)
        )
