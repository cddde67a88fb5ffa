"""A linear layer fused with the loss of the mixture that its outputs parameterise.

The parameters of a mixture are many: K(1 + D + D(D+1)/2) numbers a row. Here they are computed,
used and turned into gradients chunk by chunk, in memory that every chunk and every step uses
again. They are computed batch-last, [P, b]: the matrix product costs the same, and the loss runs
along contiguous lines.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor

from condens.errors import ShapeError
from condens.functional.fused import FusedLoss
from condens.functional.losses import weighted_sum
from condens.functional.missing import partial_log_prob
from condens.functional.mixture import log_prob
from condens.functional.triangular import (
    bounded_log_scales,
    bounded_scales,
    check_bounds,
    packed_size,
)
from condens.kernels import native
from condens.kernels.checks import check, check_strided, check_weights
from condens.kernels.choice import choose, traced
from condens.kernels.memory import scratch
from condens.scalars import as_whole

# At K = 10, D = 30 the parameters of a chunk take 5 MB and stay in the cache.
ROWS_PER_CHUNK = 256
# Outputs of a member above which its own product is as fast as a batched one, and its chunks are
# better off in the cache.
MAX_STACKED_OUTPUTS = 1 << 18


class Layout(NamedTuple):
    """Where logits, means and factors lie among a row's outputs, in this order."""

    n_components: int
    dimensions: int
    packed: int

    @classmethod
    def of(cls, n_components: int, dimensions: int, covariance: str = "full") -> "Layout":
        """Return the layout of mixtures with `full` or `diagonal` covariances."""
        packed = packed_size(dimensions) if covariance == "full" else dimensions
        return cls(n_components, dimensions, packed)

    @property
    def outputs(self) -> int:
        """How many numbers parameterise one mixture."""
        return self.n_components * (1 + self.dimensions + self.packed)

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """View outputs [..., P] as logits [..., K], means [..., K, D] and factors [..., K, T]."""
        n_components, dimensions, packed = self
        first, second = n_components, n_components * (1 + dimensions)
        return (
            outputs[..., :first],
            outputs[..., first:second].unflatten(-1, (n_components, dimensions)),
            outputs[..., second:].unflatten(-1, (n_components, packed)),
        )

    def log_diagonals(self, outputs: Tensor) -> Tensor:
        """View outputs [P, b] as the log-diagonals of the factors [K, D, b]."""
        n_components, dimensions, packed = self
        first = n_components * (1 + dimensions)
        return outputs[first:].view(n_components, packed, -1)[:, :dimensions]


class _Plan(NamedTuple):
    """What a loss is computed with, besides tensors."""

    layout: Layout
    floor: float
    ceiling: float
    chunk: int
    gaps: bool


def linear_loss(
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
    target: Tensor,
    n_components: int,
    row_weights: Tensor | None = None,
    *,
    floor: float = 0.0,
    ceiling: float = math.inf,
    chunk: int = ROWS_PER_CHUNK,
    gaps: bool = False,
) -> Tensor:
    """Return Σ row_weights · −log p(target | features) for parameters W·features + bias.

    The outputs are K logits, K×D means and K×T packed factors, in this order; T, and with
    it full or diagonal covariances, follows from their number. The loss and the gradients
    of features, weight and bias come from one pass, with memory for one chunk of outputs.
    `floor` and `ceiling` bound the scales of the factors, as `functional.bounded_scales` does.
    With `gaps`, entries of the target that are NaN were not observed, and a row counts with
    the marginal density of the others.

    Shapes: features [b, F], weight [P, F], bias [P], target [b, D], row_weights [b] (the
    mean by default) → [].

    >>> features, weight, bias = torch.zeros(4, 3), torch.zeros(3, 3), torch.zeros(3)
    >>> linear_loss(features, weight, bias, torch.zeros(4, 1), n_components=1)
    tensor(0.9189)
    """
    check_bounds(floor, ceiling)
    chunk = as_whole(
        "chunk", chunk, 1, fix="Pass the number of rows to compute at a time, such as 256."
    )
    layout = _layout(features, weight, bias, target, n_components)
    if row_weights is not None:
        row_weights = check_weights(row_weights, target, "row_weights").detach().to(target.dtype)
    plan, inputs = _Plan(layout, floor, ceiling, chunk, gaps), (target, features, weight, bias)
    module = None if traced(target) else choose(target)
    # Only the native kernel knows of gaps.
    if module is native or (module is not None and not gaps):
        fused, plain = partial(_fused, plan), partial(_plain, plan)
        total: Tensor = FusedLoss.apply(fused, plain, row_weights, *inputs)  # type: ignore[no-untyped-call]
        # Beyond the precision of eager's sums plain autograd, in double, holds more.
        if module is native or math.isfinite(total.item()):
            return total
    return _plain(plan, row_weights, *inputs)


def stacked_linear_loss(
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
    target: Tensor,
    layout: Layout,
    row_weights: Tensor | None = None,
    *,
    floor: float = 0.0,
    ceiling: float = math.inf,
    gaps: bool = False,
) -> Tensor:
    """Return the sum over M members of `linear_loss`, each with its own rows and its own layer.

    The products of all members are batched; the kernel takes the members one after the other.

    Shapes: features [M, b, F], weight [M, F, P], bias [M, 1, P], target [M, b, D], row_weights
    [M, b] (the mean of each member's rows by default) → [].

    >>> features, weight, bias = torch.zeros(2, 4, 3), torch.zeros(2, 3, 3), torch.zeros(2, 1, 3)
    >>> stacked_linear_loss(features, weight, bias, torch.zeros(2, 4, 1), Layout(1, 1, 1))
    tensor(1.8379)
    """
    plan = _Plan(layout, floor, ceiling, ROWS_PER_CHUNK, gaps)
    inputs = (target, features, weight, bias)
    module = None if traced(target) else choose(target)
    # As in `linear_loss`.
    if module is native or (module is not None and not gaps):
        fused, plain = partial(_stacked_fused, plan), partial(_stacked_plain, plan)
        total: Tensor = FusedLoss.apply(fused, plain, row_weights, *inputs)  # type: ignore[no-untyped-call]
        if module is native or math.isfinite(total.item()):
            return total
    return _stacked_plain(plan, row_weights, *inputs)


def _layout(
    features: Tensor, weight: Tensor, bias: Tensor, target: Tensor, n_components: int
) -> Layout:
    """Return where the parameters lie among the outputs, or raise a named error."""
    for name, tensor in (("features", features), ("weight", weight), ("target", target)):
        check_strided(name, tensor, 2)
    (rows, inputs), (outputs, _), (_, dimensions) = features.shape, weight.shape, target.shape
    n_components = as_whole(
        "n_components",
        n_components,
        1,
        fix="Pass the number of components that weight has outputs for.",
    )
    check(
        (
            ("features", features, (rows, inputs)),
            ("weight", weight, (outputs, inputs)),
            ("bias", bias, (outputs,)),
            ("target", target, (rows, dimensions)),
        ),
        target,
    )
    if not dimensions:
        raise ShapeError(
            "target",
            got=f"has shape {list(target.shape)}",
            expected="at least one dimension was expected",
            fix="Pass one column for each dimension.",
        )
    layouts = [Layout.of(n_components, dimensions, kind) for kind in ("full", "diagonal")]
    for layout in layouts:
        if layout.outputs == outputs:
            return layout
    raise ShapeError(
        "weight",
        got=f"has {outputs} outputs",
        expected=f"K = {n_components}, D = {dimensions} need {layouts[0].outputs} (full) or "
        f"{layouts[1].outputs} (diagonal)",
        fix="Make its first axis one of these.",
    )


def _plain(
    plan: _Plan,
    row_weights: Tensor | None,
    target: Tensor,
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
) -> Tensor:
    outputs = torch.nn.functional.linear(features, weight, bias)
    logits, means, factors = plan.layout.split(outputs)
    factors = bounded_scales(factors, plan.layout.dimensions, plan.floor, plan.ceiling)
    density = partial_log_prob if plan.gaps else log_prob
    return weighted_sum(-density(target, logits, means, factors), row_weights)


def _fused(
    plan: _Plan, inputs: Sequence[Tensor], *, weights: Tensor | None, to_target: bool
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return the loss and the gradients of (target, features, weight, bias)."""
    target, features, weight, bias = inputs
    rows = target.shape[0]
    size = min(plan.chunk, rows)
    if weights is None and (plan.gaps or rows > size):
        weights = target.new_full((), 1 / rows).expand(rows)
    room = scratch((2, plan.layout.outputs, size), target)
    pull = target.new_empty(target.shape) if to_target else None
    to_features = torch.empty_like(features)
    to_weight, to_bias = torch.empty_like(weight), torch.zeros_like(bias)
    losses: list[Tensor] = []
    parts = _split(plan.chunk, target, features, weights, pull, to_features)
    for x, h, w, to_x, to_h in parts:
        count = x.shape[0]
        # The last chunk may be shorter: contiguous room for its columns, in the same memory.
        outputs, pulled = (
            room
            if count == size
            else room.flatten(1)[:, : plan.layout.outputs * count].view(2, -1, count)
        )
        torch.addmm(bias.unsqueeze(1), weight, h.T, out=outputs)
        losses.append(_pull_back(plan, outputs, pulled, x, to_x, w))
        torch.mm(pulled.T, weight, out=to_h)
        # The first chunk overwrites what is there.
        to_weight.addmm_(pulled, h, beta=0 if len(losses) == 1 else 1)
        to_bias += pulled.sum(1)
    total = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
    return total, (pull, to_features, to_weight, to_bias)


def _stacked_plain(
    plan: _Plan,
    row_weights: Tensor | None,
    target: Tensor,
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
) -> Tensor:
    members = len(target)
    weights = [None] * members if row_weights is None else row_weights.unbind()
    layers = zip(target, features, weight.transpose(1, 2), bias.squeeze(1), strict=True)
    losses = [_plain(plan, w, *layer) for w, layer in zip(weights, layers, strict=True)]
    return torch.stack(losses).sum()


def _stacked_fused(
    plan: _Plan, inputs: Sequence[Tensor], *, weights: Tensor | None, to_target: bool
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return the loss and the gradients of (target, features, weight, bias), of all members."""
    target, features, weight, bias = inputs
    members, rows = target.shape[:2]
    if rows * plan.layout.outputs > MAX_STACKED_OUTPUTS:
        return _one_by_one(plan, inputs, weights=weights, to_target=to_target)
    if weights is None and plan.gaps:
        weights = target.new_full((), 1 / rows).expand(members, rows)
    room = scratch((2, members, plan.layout.outputs, rows), target)
    outputs, pulled = room
    pull = target.new_empty(target.shape) if to_target else None
    torch.baddbmm(
        bias.transpose(1, 2), weight.transpose(1, 2), features.transpose(1, 2), out=outputs
    )
    if plan.gaps or choose(target) is not native:
        parts = zip(
            outputs,
            pulled,
            target,
            repeat(None) if pull is None else pull,
            repeat(None) if weights is None else weights,
            strict=False,
        )
        total = torch.stack([_pull_back(plan, *part) for part in parts]).sum()
    else:
        total = native.from_outputs(
            outputs, pulled, target, pull, plan.layout, weights, plan.floor, plan.ceiling
        )
    turned = pulled.transpose(1, 2)
    return total, (
        pull,
        torch.bmm(turned, weight.transpose(1, 2)),
        torch.bmm(features.transpose(1, 2), turned),
        pulled.sum(2).unsqueeze(1),
    )


def _one_by_one(
    plan: _Plan, inputs: Sequence[Tensor], *, weights: Tensor | None, to_target: bool
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return what `_stacked_fused` does, member by member, each chunk by chunk."""
    target, features, weight, bias = inputs
    found = [
        _fused(plan, layer, weights=None if weights is None else weights[m], to_target=to_target)
        for m, layer in enumerate(
            zip(target, features, weight.transpose(1, 2), bias.squeeze(1), strict=True)
        )
    ]
    pull, to_features, to_weight, to_bias = zip(*(made for _, made in found), strict=True)
    return torch.stack([total for total, _ in found]).sum(), (
        torch.stack(pull) if to_target else None,
        torch.stack(to_features),
        torch.stack(to_weight).transpose(1, 2),
        torch.stack(to_bias).unsqueeze(1),
    )


def _split(chunk: int, *tensors: Tensor | None) -> Iterable[tuple[Any, ...]]:
    """Split tensors along their rows; None stays None."""
    if tensors[0] is None or tensors[0].shape[0] <= chunk:
        return [tensors]
    return zip(*(repeat(t) if t is None else t.split(chunk) for t in tensors), strict=False)


def _pull_back(
    plan: _Plan,
    outputs: Tensor,
    pulled: Tensor,
    target: Tensor,
    to_target: Tensor | None,
    weights: Tensor | None,
) -> Tensor:
    """Return the loss of outputs [P, b]; write its gradients to `pulled` and `to_target`."""
    module: Any = choose(target)
    if module is not native:
        return _by_parts(module.total, plan, outputs, pulled, target, to_target, weights)
    bounds = plan.floor, plan.ceiling
    if not plan.gaps:
        return native.from_outputs(
            outputs, pulled, target, to_target, plan.layout, weights, *bounds
        )
    assert weights is not None
    missing = target.isnan()
    rows = missing.any(1).nonzero().flatten()
    # Rows with gaps have no weight at first; then their gradients are replaced.
    total = native.from_outputs(
        outputs,
        pulled,
        target.masked_fill(missing, 0.0),
        to_target,
        plan.layout,
        weights.index_fill(0, rows, 0.0),
        *bounds,
    )
    some = outputs.index_select(1, rows)
    made, to_some = torch.empty_like(some), None if to_target is None else to_target[rows]
    total += _by_parts(native.partial_total, plan, some, made, target[rows], to_some, weights[rows])
    pulled.index_copy_(1, rows, made)
    if to_target is not None and to_some is not None:
        to_target.index_copy_(0, rows, to_some)
    return total


def _by_parts(
    loss: Callable[..., Any],
    plan: _Plan,
    outputs: Tensor,
    pulled: Tensor,
    target: Tensor,
    to_target: Tensor | None,
    weights: Tensor | None,
) -> Tensor:
    """Return what `_pull_back` does, by a loss of logits, means and factors."""
    slope = _bound(plan.layout.log_diagonals(outputs), plan.floor, plan.ceiling)
    inputs = target, *plan.layout.split(outputs.T)
    total, gradients = loss(inputs, weights=weights, to_target=to_target is not None)
    for buffer, gradient in zip((to_target, *plan.layout.split(pulled.T)), gradients, strict=True):
        if buffer is not None:
            buffer.copy_(gradient)
    plan.layout.log_diagonals(pulled).mul_(slope)
    return total


def _bound(log_diagonals: Tensor, floor: float, ceiling: float) -> Tensor:
    """Bound the scales exp(−u), in place; return the derivative of the new u."""
    slope = torch.ones_like(log_diagonals)
    if ceiling < math.inf:
        slope = torch.sigmoid(log_diagonals + math.log(ceiling))
    log_scales = bounded_log_scales(-log_diagonals, 0.0, ceiling)
    if floor:
        slope.mul_(torch.sigmoid(log_scales - math.log(floor)))
    torch.neg(bounded_log_scales(log_scales, floor, math.inf), out=log_diagonals)
    return slope
