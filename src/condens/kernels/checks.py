"""What tensors must be before C reads or writes them by address: the one place that asks.

Every call into C passes `check`, whichever way it came. The errors name arguments as a user
typed them, so doors with names of their own ask here first.
"""

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from condens.errors import ArgumentError, KindError, ShapeError
from condens.functional.triangular import is_diagonal, packed_size

# Numbers in a tensor: beyond any memory, and no product of sizes overflows before it.
MOST = 2**48


def check(tensors: Iterable[tuple[str, Any, tuple[int, ...]]], like: Tensor) -> None:
    """Raise a named error unless all are strided tensors of these shapes, alike in kind."""
    dtype, device = like.dtype, like.device
    for name, tensor, shape in tensors:
        check_strided(name, tensor)
        if tensor.shape != shape:
            expected = f"{list(shape)} was expected"
            raise _misshapen(name, tensor, expected, "Make its shape fit the other arguments.")
        if tensor.dtype is not dtype:
            raise KindError(
                name,
                got=f"is {tensor.dtype}",
                expected=f"{dtype} was expected, as the others are",
                fix=f"Convert it: {name}.to({dtype}).",
            )
        if tensor.device != device:
            raise KindError(
                name,
                got=f"is on {tensor.device}",
                expected=f"{device} was expected, as the others are",
                fix=f"Move it: {name}.to({str(device)!r}).",
            )


def check_strided(name: str, tensor: Any, axes: int | None = None) -> None:
    """Raise a named error for what is no dense tensor of real numbers, with so many axes."""
    if not isinstance(tensor, Tensor):
        raise KindError(
            name,
            got=f"is {type(tensor).__name__}",
            expected="a tensor was expected",
            fix="Pass a torch.Tensor.",
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
        expected = f"{axes} axes were expected"
        raise _misshapen(name, tensor, expected, "Make one axis of the batch axes.")


def fits(
    target: Tensor, logits: Tensor, means: Tensor, factors: Tensor, axes: int | None = None
) -> bool:
    """Tell whether the tensors are alike, with the same batch axes: what kernels can take.

    `axes` says how many.
    """
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
        (axes is None or len(batch) == axes)
        and target.shape == (*batch, dimensions)
        and logits.shape == (*batch, components)
        and factors.shape == (*batch, components, packed)
        and (packed == dimensions or packed == packed_size(dimensions))
        and components > 0
        and dimensions > 0
        and logits.dtype is means.dtype is factors.dtype is dtype
        and logits.device == means.device == factors.device == device
        and target.layout is logits.layout is means.layout is factors.layout is torch.strided
    )


def check_mixture(
    target: Tensor, logits: Tensor, means: Tensor, factors: Tensor
) -> tuple[int, int, int, int]:
    """Return (b, K, D, T) of tensors that a kernel takes: one batch axis, one kind."""
    check_strided("target", target, 2)
    check_broadcast(target, logits, means, factors)
    if means.dim() != 3:
        expected = "[b, K, D] was expected"
        raise _misshapen("means", means, expected, "Make one axis of the batch axes.")
    rows, components, dimensions = means.shape
    packed = factors.shape[-1]
    check(
        (
            ("target", target, (rows, dimensions)),
            ("logits", logits, (rows, components)),
            ("means", means, (rows, components, dimensions)),
            ("factors", factors, (rows, components, packed)),
        ),
        target,
    )
    return rows, components, dimensions, packed


def check_broadcast(
    target: Tensor | None, logits: Tensor, means: Tensor, factors: Tensor
) -> torch.Size:
    """Return the batch shape of mixtures whose batch axes broadcast, or raise a named error.

    K is the number of logits; means or factors that all components share have one instead.
    """
    named = {"logits": (logits, 1), "means": (means, 2), "factors": (factors, 2)}
    if target is not None:
        named = {"target": (target, 1), **named}
    for name, (tensor, _) in named.items():
        check_strided(name, tensor)
    for name, (tensor, axes) in named.items():
        if tensor.device != logits.device:
            raise KindError(
                name,
                got=f"is on {tensor.device}",
                expected=f"logits is on {logits.device}",
                fix="Move them to one device.",
            )
        if tensor.dim() < axes or 0 in tensor.shape[-axes:]:
            letters = {"means": "K, D", "factors": "K, T", "target": "D", "logits": "K"}[name]
            expected = f"[..., {letters}] was expected, none of these zero"
            raise _misshapen(name, tensor, expected, "Add what is missing.")
    is_diagonal(factors, means.shape[-1])
    if target is not None and target.shape[-1] != means.shape[-1]:
        expected = f"means has {means.shape[-1]} dimensions"
        raise _misshapen("target", target, expected, "Pass one entry for each dimension.")
    components = logits.shape[-1]
    for name, tensor in (("means", means), ("factors", factors)):
        if tensor.shape[-2] != components and tensor.shape[-2] != 1:
            expected = f"logits has {components} components"
            raise _misshapen(name, tensor, expected, "Pass one for each component, or one for all.")
    batches = [tensor.shape[: tensor.dim() - axes] for tensor, axes in named.values()]
    if all(batch == batches[0] for batch in batches):  # torch takes its time
        return batches[0]
    try:
        return torch.broadcast_shapes(*batches)
    except RuntimeError:
        *others, last = (f"{name} {list(t.shape)}" for name, (t, _) in named.items())
        raise ShapeError(
            f"{', '.join(others)} and {last}",
            got="have batch axes that do not go together",
            expected="axes before those of a mixture must be equal, or one",
            fix="Make them so.",
        ) from None


def check_weights(weights: Tensor, target: Tensor, name: str = "weights") -> Tensor:
    """Return weights expanded to the batch of the target, or raise a named error."""
    batch = target.shape[:-1]
    check_strided(name, weights)
    if weights.device != target.device:
        raise KindError(
            name,
            got=f"is on {weights.device}",
            expected=f"target is on {target.device}",
            fix="Move them to one device.",
        )
    try:
        return weights.expand(batch)
    except RuntimeError:
        expected = f"{list(batch)} was expected, one for each row of target"
        raise _misshapen(name, weights, expected, "Pass one weight for each row.") from None


def check_packed(components: int, dimensions: int, packed: int) -> None:
    """Raise a named error unless there is a mixture of such sizes."""
    check_count("K", components, 1)
    check_count("D", dimensions, 1)
    if packed != dimensions and packed != packed_size(dimensions):
        raise ShapeError(
            "T",
            got=f"is {packed}",
            expected=f"{dimensions} or {packed_size(dimensions)} was expected",
            fix="Pass packed factors of D dimensions.",
        )


def draws_fit(
    noise: Tensor, uniform: Tensor, cumulative: Tensor, means: Tensor, factors: Tensor
) -> bool:
    """Tell whether noise and mixtures go together as the native kernel takes them."""
    tensors = (noise, uniform, cumulative, means, factors)
    if not all(isinstance(t, Tensor) and t.is_cpu and t.layout is torch.strided for t in tensors):
        return False
    if means.dim() != 3 or factors.dim() != 3 or not noise.dim():
        return False
    (rows, components, dimensions), draws = means.shape, noise.shape[0]
    return (
        noise.shape == (draws, rows, dimensions)
        and uniform.shape == (draws, rows)
        and cumulative.shape == (rows, components)
        and factors.shape[:2] == (rows, components)
        and noise.dtype is means.dtype is factors.dtype
        and uniform.dtype is cumulative.dtype is torch.float64
    )


def check_draws(
    noise: Tensor, uniform: Tensor, cumulative: Tensor, means: Tensor, factors: Tensor
) -> tuple[int, int, int, int, int]:
    """Return (S, B, K, D, T) of noise and the mixtures it is to become draws of."""
    check_strided("noise", noise, 3)
    check_strided("cumulative", cumulative, 2)
    check_strided("means", means, 3)
    check_strided("factors", factors, 3)
    rows, components, dimensions = means.shape
    draws, packed = noise.shape[0], factors.shape[2]
    check_packed(components, dimensions, packed)
    if not noise.is_floating_point():
        raise KindError(
            "noise",
            got=f"is {noise.dtype}",
            expected="a floating dtype was expected",
            fix="Make it with torch.randn.",
        )
    check((("noise", noise, (draws, rows, dimensions)),), noise)
    check((("means", means, (rows, components, dimensions)),), means)
    check((("factors", factors, (rows, components, packed)),), factors)
    check(
        (("uniform", uniform, (draws, rows)), ("cumulative", cumulative, (rows, components))),
        cumulative,
    )
    return draws, rows, components, dimensions, packed


def check_count(name: str, value: Any, least: int, most: int = MOST) -> int:
    """Return a whole number within bounds, or raise a named error."""
    if type(value) is int and least <= value <= most:
        return value
    try:
        count = operator.index(value)
    except TypeError:
        count = -1
    if isinstance(value, bool) or not least <= count <= most:
        raise ArgumentError(
            name,
            got=f"is {value!r}",
            expected=f"a whole number from {least} to {most} was expected",
            fix="Change it.",
        )
    return count


def _misshapen(name: str, tensor: Tensor, expected: str, remedy: str) -> ShapeError:
    return ShapeError(name, got=f"has shape {list(tensor.shape)}", expected=expected, fix=remedy)
