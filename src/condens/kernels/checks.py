"""Checks of tensors before C reads or writes them by address.

Every call into C passes one of these, whichever function it comes from. Errors name the
arguments as a user typed them.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from condens.errors import KindError, ShapeError
from condens.kernels.packing import is_diagonal, packed_size


class Rows(NamedTuple):
    """Checked tensors of one mixture a row: [b, D], [b, K], [b, K, D] and [b, K, T], of one kind.

    Made by `as_rows`, or from tensors that `fits` has just accepted: nothing is checked again.
    """

    target: Tensor
    logits: Tensor
    means: Tensor
    factors: Tensor


def as_rows(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Rows:
    """Return tensors with one batch axis and of one kind, or raise a named error."""
    rows = Rows(target, logits, means, factors)
    if not (fits(*rows) and means.dim() == 3):
        for name, axes in (("target", 2), ("logits", 2), ("means", 3), ("factors", 3)):
            check_strided(name, getattr(rows, name), axes)
        _check_components(means, factors)
        batch, components, dimensions = means.shape
        check(
            (
                ("target", target, (batch, dimensions)),
                ("logits", logits, (batch, components)),
                ("means", means, means.shape),
                ("factors", factors, (batch, components, factors.shape[2])),
            ),
            target,
        )
    return rows


def fits(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> bool:
    """Tell whether a kernel can take the tensors: alike in kind, with the same batch axes."""
    if not (
        isinstance(target, Tensor)
        and isinstance(logits, Tensor)
        and isinstance(means, Tensor)
        and isinstance(factors, Tensor)
        and means.dim() > 1
        and factors.dim() > 1
    ):
        return False
    *batch, components, dimensions = means.shape
    packed, dtype, device = factors.shape[-1], target.dtype, target.device
    return (
        target.shape == (*batch, dimensions)
        and logits.shape == (*batch, components)
        and factors.shape == (*batch, components, packed)
        and (packed == dimensions or packed == packed_size(dimensions))
        and components > 0
        and dimensions > 0
        and dtype.is_floating_point
        and logits.dtype is means.dtype is factors.dtype is dtype
        and logits.device == means.device == factors.device == device
        and target.layout is logits.layout is means.layout is factors.layout is torch.strided
    )


def check(tensors: Iterable[tuple[str, Any, tuple[int, ...]]], like: Tensor) -> None:
    """Raise a named error unless all are dense tensors of these shapes and of one kind."""
    for name, tensor, shape in tensors:
        check_shape(name, tensor, shape)
        check_kind(name, tensor, like)


def check_shape(
    name: str,
    tensor: Any,
    shape: tuple[int, ...],
    fix: str = "Make its shape fit the other arguments.",
) -> None:
    """Raise a named error unless this is a dense tensor of the shape."""
    check_strided(name, tensor)
    if tensor.shape != shape:
        raise ShapeError(
            name,
            got=f"has shape {list(tensor.shape)}",
            expected=f"{list(shape)} was expected",
            fix=fix,
        )


def check_kind(name: str, tensor: Tensor, like: Tensor) -> None:
    """Raise a named error unless a tensor has the dtype and the device of another."""
    if tensor.dtype is not like.dtype:
        raise KindError(
            name,
            got=f"is {tensor.dtype}",
            expected=f"{like.dtype} was expected, as the others are",
            fix=f"Convert it: {name}.to({like.dtype}).",
        )
    check_device(name, tensor, like)


def check_device(name: str, tensor: Tensor, like: Tensor) -> None:
    """Raise a named error unless a tensor is on the device of another."""
    if tensor.device != like.device:
        raise KindError(
            name,
            got=f"is on {tensor.device}",
            expected=f"{like.device} was expected, where the others are",
            fix=f"Move it: {name}.to({str(like.device)!r}).",
        )


def check_strided(name: str, tensor: Any, axes: int | None = None) -> None:
    """Raise a named error unless this is a dense tensor of real numbers, with so many axes."""
    if not isinstance(tensor, Tensor):
        raise KindError(
            name,
            got=f"is {type(tensor).__name__}",
            expected="a tensor of real numbers was expected",
            fix="Pass a torch.Tensor; the methods of a mixture take arrays too.",
        )
    if tensor.layout is not torch.strided:
        raise KindError(
            name,
            got=f"has the layout {tensor.layout}",
            expected="a dense tensor was expected",
            fix=f"Pass {name}.to_dense().",
        )
    if tensor.is_complex():
        raise KindError(
            name,
            got=f"is {tensor.dtype}",
            expected="real numbers were expected",
            fix=f"Pass {name}.real.",
        )
    if axes is not None and tensor.dim() != axes:
        raise ShapeError(
            name,
            got=f"has shape {list(tensor.shape)}",
            expected=f"{axes} axes were expected",
            fix="Flatten the batch axes into one.",
        )


def check_weights(weights: Tensor, target: Tensor, name: str = "weights") -> Tensor:
    """Return weights expanded to the batch of the target, or raise a named error."""
    batch = target.shape[:-1]
    check_strided(name, weights)
    check_device(name, weights, target)
    try:
        return weights.expand(batch)
    except RuntimeError:
        raise ShapeError(
            name,
            got=f"has shape {list(weights.shape)}",
            expected=f"{list(batch)} was expected, one for each row of target",
            fix="Pass one weight for each row.",
        ) from None


def check_draws(
    noise: Tensor, uniform: Tensor, cumulative: Tensor, means: Tensor, factors: Tensor
) -> None:
    """Raise a named error unless the shapes are those of noise and of the mixtures to draw from.

    Shapes: noise [S, B, D], uniform [S, B], cumulative [B, K], means [B, K, D], factors [B, K, T].
    """
    for name, tensor in (("noise", noise), ("means", means), ("factors", factors)):
        check_strided(name, tensor, 3)
    _check_components(means, factors)
    (rows, components, dimensions), draws = means.shape, noise.shape[0]
    if not noise.is_floating_point():
        raise KindError(
            "noise",
            got=f"is {noise.dtype}",
            expected="a floating dtype was expected",
            fix="Make it with torch.randn.",
        )
    check_shape("noise", noise, (draws, rows, dimensions))
    check_shape("factors", factors, (rows, components, factors.shape[2]))
    check_shape("cumulative", cumulative, (rows, components))
    check((("uniform", uniform, (draws, rows)),), cumulative)


def _check_components(means: Tensor, factors: Tensor) -> None:
    """Raise a named error unless there is a component, a dimension, and factors that fit them."""
    if 0 in means.shape[-2:]:
        raise ShapeError(
            "means",
            got=f"has shape {list(means.shape)}",
            expected="at least one component and one dimension were expected",
            fix="Pass means with K ≥ 1 and D ≥ 1.",
        )
    is_diagonal(factors, means.shape[-1])
