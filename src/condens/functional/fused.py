"""The negative log-likelihood by a fused kernel, per row and reduced.

Autograd functions around the kernels, the same as torch operators for torch.compile and
torch.export, and the rules for when plain autograd takes over.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from condens.functional.losses import weighted_sum
from condens.functional.mixture import log_prob
from condens.functional.precision import widen
from condens.functional.shapes import check_mixture
from condens.kernels import eager, native
from condens.kernels.checks import Rows, as_rows, check, check_weights, fits
from condens.kernels.choice import choose, traced, watched


def nll(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return the exact, normalised negative log-likelihood −log p(x) of each row.

    Shapes: → [...].

    >>> one = torch.zeros(1, 1)
    >>> nll(torch.zeros(1), torch.zeros(1), means=one, factors=one)
    tensor(0.9189)
    """
    inputs = (target, logits, means, factors)
    rows = _rows(*inputs)
    module = None if rows is None else choose(target)
    if rows is None or module is None:
        return _plain(*inputs)
    if watched(target):
        return torch.ops.condens.nll(*rows).reshape(target.shape[:-1])
    each: Tensor = _RowLoss.apply(module, *rows)  # type: ignore[no-untyped-call]
    if module is eager and not bool(each.isfinite().all()):
        # Beyond the precision of eager's sums: plain autograd, in double, holds more.
        return _plain(*inputs)
    return each.reshape(target.shape[:-1])


def log_density(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return `mixture.log_prob`, by the kernel where no gradient is asked for.

    For many points of each mixture: they share its parameters, which are not copied. Always in
    double precision. Shapes: target [..., *batch, D] → [..., *batch].

    >>> one = torch.zeros(1, 1)
    >>> log_density(torch.zeros(3, 1), torch.zeros(1), means=one, factors=one)
    tensor([-0.9189, -0.9189, -0.9189])
    """
    inputs = (target, logits, means, factors)
    batch = means.shape[:-2]
    lead = target.dim() - 1 - len(batch)
    if (
        (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs))
        or traced(means)
        or not logits.shape[:-1] == factors.shape[:-2] == batch == target.shape[max(lead, 0) : -1]
        or not target.numel()
        or choose(widen(means[..., :0])) is not native
    ):
        return log_prob(*inputs)
    count = batch.numel()
    points, *mixture = widen(*(tensor.detach() for tensor in inputs))
    points = points.reshape(-1, count, points.shape[-1])
    rows = [t.reshape(count, *t.shape[len(batch) :]) for t in mixture]
    if len(points) <= count:
        each = [native.forward(Rows(some, *rows))[0] for some in points]
        found = torch.stack(each).neg()
    else:
        shared = [[t[i].expand(len(points), *t.shape[1:]) for t in rows] for i in range(count)]
        pairs = zip(points.unbind(1), shared, strict=True)
        each = [native.forward(Rows(some, *one))[0] for some, one in pairs]
        found = torch.stack(each, 1).neg()
    if not bool(found.isfinite().all()):  # the kernel's energies end a little earlier
        return log_prob(*inputs)
    return found.reshape(target.shape[:-1]).to(means.dtype)


def loss(
    target: Tensor, logits: Tensor, means: Tensor, factors: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Return Σ weights · −log p(x), reading the factors once for the loss and every gradient.

    Weights are constants: they get no gradient. A row of weight zero takes no part. Shapes:
    weights [...], as the batch; by default one over the number of rows: the mean → [].

    >>> zero = torch.zeros(4, 1, 1)
    >>> loss(torch.zeros(4, 1), torch.zeros(4, 1), means=zero, factors=zero)
    tensor(0.9189)
    """
    inputs = (target, logits, means, factors)
    rows = _rows(*inputs)
    if weights is not None:
        weights = check_weights(weights, target).detach().reshape(-1).to(target.dtype)
    module = None if rows is None or watched(target) else choose(target)
    if rows is not None and module is not None:
        total: Tensor = FusedLoss.apply(module.total, _weighted, weights, *rows)  # type: ignore[no-untyped-call]
        if module is native or math.isfinite(total.item()):
            return total
    return weighted_sum(nll(*inputs).reshape(-1), weights)


def _rows(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Rows | None:
    """Return the tensors with one batch axis, or None where a kernel cannot take them.

    They must share device, dtype and batch shape, outside of torch.func.
    """
    inputs = Rows(target, logits, means, factors)
    if not fits(*inputs):
        check_mixture(inputs._asdict())
        return None
    if torch._C._are_functorch_transforms_active():
        return None
    if means.dim() == 3:
        return inputs
    count = math.prod(target.shape[:-1])  # Size.numel would make a number of a symbol
    return Rows(*(t.reshape(count, *t.shape[target.dim() - 1 :]) for t in inputs))


class _RowLoss(torch.autograd.Function):
    """−log p of each row."""

    @staticmethod
    def forward(ctx: Any, module: ModuleType, *inputs: Tensor) -> Tensor:
        each, state = module.forward(Rows(*inputs))
        ctx.module = module
        ctx.save_for_backward(*inputs, *state)
        return each

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (weights,) = gradients
        needs = ctx.needs_input_grad[1:]
        # Saved, so that torch notices when one of them has been changed since; not `Rows`,
        # because hooks may have replaced them.
        inputs, state = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        if torch.is_grad_enabled():
            return None, *differentiable(_plain, inputs, weights, needs)
        return None, *ctx.module.backward(inputs, state, weights, needs[0])


class FusedLoss(torch.autograd.Function):
    """Σ weights · −log p, its gradients made in the forward pass.

    `fused(inputs, weights=…, to_target=…)` returns the loss and the gradients of its inputs, of
    which the target is the first; `plain(weights, *inputs)` is the same loss for plain autograd.
    """

    @staticmethod
    def forward(
        ctx: Any,
        fused: Callable[..., Any],
        plain: Callable[..., Tensor],
        weights: Tensor | None,
        *inputs: Tensor,
    ) -> Tensor:
        """Return the loss; keep its gradients."""
        # As `Rows`: nothing is checked again.
        needs_target, rows = ctx.needs_input_grad[3], Rows(*inputs)
        total, ctx.gradients = fused(rows, weights=weights, to_target=needs_target)
        ctx.fused, ctx.plain = fused, plain
        ctx.save_for_backward(weights, *inputs)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return the gradients, or with a graph their graph too."""
        (upstream,) = gradients
        (weights, *inputs), needs = ctx.saved_tensors, ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():
            plain = partial(ctx.plain, weights)
            return None, None, None, *differentiable(plain, inputs, upstream, needs)
        # The gradients are handed out once; a second pass over the graph makes them again.
        made, ctx.gradients = ctx.gradients, None
        if made is None:
            made = ctx.fused(inputs, weights=weights, to_target=needs[0])[1]
        factor = float(upstream)
        if factor != 1:
            for gradient in made:
                if gradient is not None:
                    gradient.mul_(factor)
        return None, None, None, *made


def _plain(*inputs: Tensor) -> Tensor:
    return -log_prob(*inputs)


def _weighted(weights: Tensor | None, *inputs: Tensor) -> Tensor:
    return weighted_sum(-log_prob(*inputs), weights)


def differentiable(
    function: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    upstream: Tensor,
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """Return gradients that can themselves be differentiated, by plain autograd."""
    wanted = [tensor for tensor, need in zip(inputs, needs, strict=True) if need]
    made = iter(torch.autograd.grad(function(*inputs), wanted, upstream, create_graph=True))
    return [next(made) if need else None for need in needs]


# The kernel as torch operators, which torch.compile and torch.export record, and which anyone
# may call.


@torch.library.custom_op("condens::nll", mutates_args=())
def _nll(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return −log p of each row. Shapes: [b, D], [b, K], [b, K, D], [b, K, T] → [b]."""
    rows, module = as_rows(target, logits, means, factors), choose(target) or eager
    each: Tensor = module.forward(rows)[0]
    if module is eager and not bool(each.isfinite().all()):
        return -log_prob(*rows)
    return each


@_nll.register_fake
def _(target: Tensor, *_: Tensor) -> Tensor:
    return target.new_empty(target.shape[0])


@torch.library.custom_op("condens::nll_backward", mutates_args=())
def _nll_backward(
    weights: Tensor, target: Tensor, logits: Tensor, means: Tensor, factors: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of Σ weights · loss with respect to every input."""
    rows, module = as_rows(target, logits, means, factors), choose(target) or eager
    check((("weights", weights, target.shape[:1]),), target)
    value, made = module.total(rows, weights=weights, to_target=True)
    if module is eager and not bool(value.isfinite()):
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_() for tensor in rows]
            made = torch.autograd.grad(-log_prob(*leaves), leaves, weights)
    return tuple(gradient.contiguous() for gradient in made)


@_nll_backward.register_fake
def _(weights: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # noqa: ARG001
    return tuple(tensor.new_empty(tensor.shape) for tensor in inputs)  # type: ignore[return-value]


_nll.register_autograd(
    lambda ctx, weights: _nll_backward(weights, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),  # noqa: ARG005
)
