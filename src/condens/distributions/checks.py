"""Checks of what a user passes to a mixture, each with an error that says what to do."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from condens.errors import ArgumentError, KindError, NotFiniteError, ShapeError
from condens.functional.low_rank.mixture import largest_ratio
from condens.functional.precision import widen
from condens.functional.tracing import anywhere

# What users may pass where numbers are expected.
Numbers = Tensor | ArrayLike

# Bytes that 48-bit pointers reach, half of which a process may have.
MAX_BYTES = 2**47

P = ParamSpec("P")
R = TypeVar("R")


def as_tensor(name: str, value: Any, like: Tensor | None = None) -> Tensor:
    """Return value as a real floating tensor, on the device of `like`.

    Arrays keep their precision, and so do numbers that are asked about (`like` given):
    answers are computed in double precision. What an array masks is NaN.
    """
    if not isinstance(value, Tensor):
        try:
            arrays = like is not None or hasattr(value, "__array__")
            value = torch.as_tensor(_plain_array(value) if arrays else value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise ArgumentError(
                name,
                got=f"is {type(value).__name__}",
                expected="numbers were expected",
                fix="Pass a tensor, an array or a list of numbers.",
            ) from None
        value = value if like is None else value.to(like.device)
    if value.layout is not torch.strided or value.is_nested:
        raise KindError(
            name,
            got="is nested" if value.is_nested else f"has the layout {value.layout}",
            expected="an ordinary tensor was expected",
            fix="Pass its to_dense(), or pad it.",
        )
    if value.is_complex():
        raise ArgumentError(
            name,
            got="is complex",
            expected="real numbers were expected",
            fix="Pass real and imaginary parts as two dimensions.",
        )
    if value.is_floating_point() and value.dtype.itemsize < 2:
        raise KindError(
            name,
            got=f"is {value.dtype}",
            expected="torch does not compute with numbers of eight bits",
            fix=f"Convert it: {name}.float().",
        )
    if not value.is_floating_point():
        value = value.to(torch.get_default_dtype() if like is None else like.dtype)
    return value if like is None else _on_device(name, value, like.device)


def _plain_array(value: Any) -> Any:
    """Return value as an array whose memory torch can share: native, aligned, writable."""
    array = np.asarray(value)
    if np.ma.isMaskedArray(value):
        array = np.ma.filled(value.astype(np.float64), np.nan)
    if array.dtype.kind == "f" and (array.dtype.itemsize > 8 or not array.dtype.isnative):
        array = array.astype(np.float64)
    # torch warns of memory that may not be written, such as a data frame's.
    return np.require(array, requirements=["C", "W"])


def _on_device(name: str, value: Tensor, device: torch.device) -> Tensor:
    """Return value, which must lie on the device; a number may come from anywhere but meta."""
    if value.device != device and (value.dim() > 0 or value.is_meta):
        raise ArgumentError(
            name,
            got=f"is on {value.device}",
            expected=f"the mixture is on {device}",
            fix=f"Pass {name}.to({str(device)!r}).",
        )
    return value.to(device)


def check_devices(tensors: Mapping[str, Tensor]) -> None:
    """Check that tensors lie on one device."""
    if len({tensor.device for tensor in tensors.values()}) > 1:
        *others, last = tensors
        raise ArgumentError(
            f"{', '.join(others)} and {last}",
            got=f"are on {', '.join(str(tensor.device) for tensor in tensors.values())}",
            expected="one device was expected",
            fix="Move them to one.",
        )


def check_flag(name: str, flag: Any, default: bool) -> bool:
    """Check that something is True, False or None; return the default for None."""
    if flag is not None and not isinstance(flag, bool):
        raise KindError(
            name,
            got=f"is {type(flag).__name__}",
            expected="True, False or None was expected",
            fix="Leave it out, or pass a bool.",
        )
    return default if flag is None else flag


def check_values(logits: Tensor, **others: Tensor) -> None:
    """Check that logits are log weights, and that every other parameter is finite."""
    fix = "Check what it was computed from; values beyond the dtype's range need float64."
    weighted = logits.masked_fill(logits.isneginf(), 0)
    for name, tensor in (*others.items(), ("logits", weighted)):
        check_finite(name, tensor, fix)
    if anywhere(logits.isneginf().all(-1)):
        raise NotFiniteError(
            "logits",
            got="is −inf for every component of a mixture",
            expected="at least one component must have weight",
            fix="Give one component a finite logit.",
        )


def check_log_scales(name: str, entry: str, log_scales: Tensor) -> None:
    """Check that scales given as logarithms fit the dtype."""
    # Half the exponent range: squares of the scales, and their inverses, exist too.
    largest = 0.5 * math.log(torch.finfo(log_scales.dtype).max)
    if anywhere(log_scales.detach().abs() > largest):
        raise NotFiniteError(
            name,
            got=f"has a {entry} of {float(log_scales.detach().abs().max()):.4g} in absolute value",
            expected=f"{log_scales.dtype} holds scales up to exp({largest:.4g})",
            fix="Standardise the target, or use float64.",
        )


def check_rank(loadings: Tensor) -> None:
    """Check that there is at least one factor."""
    if loadings.shape[-1] == 0:
        raise ShapeError(
            "loadings",
            got=f"has shape {list(loadings.shape)}",
            expected="[..., K, D, r] needs r ≥ 1",
            fix="For diagonal covariances, take GaussianMixture with −log_scales as factors.",
        )


def check_loadings(log_scales: Tensor, loadings: Tensor) -> None:
    """Check that loadings have squares in their dtype, and leave room for the scales' digits."""
    largest = torch.finfo(loadings.dtype).max ** 0.5
    log_scales, loadings = widen(log_scales.detach(), loadings.detach())
    size = loadings.abs().amax(-1)
    if anywhere(size > largest):
        raise NotFiniteError(
            "loadings",
            got=f"has an entry of {float(size.max()):.4g} in absolute value",
            expected=f"its dtype holds squares of up to {largest:.4g}",
            fix="Standardise the target, or use float64.",
        )
    ratio, bound = size * (-log_scales).exp(), largest_ratio(loadings.dtype)
    if anywhere(ratio > bound):
        raise NotFiniteError(
            "loadings",
            got=f"has an entry {float(ratio.max()):.2g} times its scale",
            expected=f"beyond {bound:.2g} double precision does not resolve the two",
            fix="Raise log_scales, for instance by a floor on the scales.",
        )


def check_finite(name: str, tensor: Tensor, fix: str) -> None:
    """Refuse NaN and infinities, and tell where the first one is."""
    bad = ~tensor.isfinite()
    if anywhere(bad):
        where = bad.nonzero()[0].tolist()
        raise NotFiniteError(
            name,
            got=f"has {int(bad.sum())} value(s) that are NaN or infinite, the first "
            f"at index {where}",
            expected="finite numbers were expected",
            fix=fix,
        )


def check_event(name: str, value: Any, means: Tensor, *, allow_nan: bool) -> Tensor:
    """Return value as a tensor [..., D] whose leading axes broadcast against the means' batch.

    In one dimension the event's axis may be left out, see `with_event_axis`.
    """
    given, batch, dimensions = as_tensor(name, value, means), means.shape[:-2], means.shape[-1]
    value = with_event_axis(name, given, batch) if dimensions == 1 else given
    if value.dim() == 0 or value.shape[-1] != dimensions:
        raise ShapeError(
            name,
            got=f"has shape {list(given.shape)}",
            expected=f"its last axis must hold the {dimensions} dimensions of the mixture",
            fix="Pass every dimension, or take marginal(dims) first.",
        )
    check_leading(name, given.shape, value.shape[:-1], batch, event=(dimensions,))
    if not allow_nan and anywhere(value.isnan()):
        raise NotFiniteError(
            name,
            got="has NaN",
            expected="a density is defined for numbers only",
            fix="Drop those rows, or take marginal(dims) over the dimensions that were observed.",
        )
    return value


def with_event_axis(name: str, value: Tensor, batch: torch.Size) -> Tensor:
    """Return numbers of a one-dimensional mixture with the axis of their event, [..., 1].

    A last axis of size one is that axis; every other shape lacks it, and the numbers broadcast
    against the batch as they are. What follows is that a shape equal to the batch's is a number
    for each member:

        batch   value      read as        answer
        []      [200]      [200, 1]       [200]
        []      [200, 1]   as it is       [200]
        [4]     []         [1]            [4]
        [4]     [4]        [4, 1]         [4]
        [4]     [4, 1]     as it is       [4]
        [4]     [200, 4]   [200, 4, 1]    [200, 4]
        [4]     [200]      refused: [200, 1, 1] gives every member the same points
        [4]     [3, 1]     refused: three rows for four members
        [1]     [200, 1]   as it is       [200]
        [4, 1]  [3, 4, 1]  [3, 4, 1, 1]   [3, 4, 1]
        [4, 1]  [4, 1]     refused: a number for each member, or four for each

    A batch may itself end in axes of size one. A value that ends in no more of them leaves
    both readings open: the one that fits is taken, that with the axis where both give the same
    numbers, and where they give different ones the value is refused.
    """
    ones = _last_ones(value.shape)
    if ones == 0:
        return value.unsqueeze(-1)
    if ones > _last_ones(batch):
        return value
    with_axis, without = broadcast(value.shape[:-1], batch), broadcast(value.shape, batch)
    every = value.numel() * batch.numel()
    if with_axis and without and not with_axis.numel() == without.numel() == every:
        shape = [*value.shape[:-1], *[1] * (1 + len(batch))]
        raise ShapeError(
            name,
            got=f"has shape {list(value.shape)}",
            expected=f"beside the batch shape {list(batch)} its last axis may be the "
            "event's or not",
            fix=f"Pass {name}[..., None] if it is not, or {name}.reshape({shape}) for the same "
            "numbers in every member.",
        )
    return value.unsqueeze(-1) if with_axis is None and without else value


def _last_ones(shape: torch.Size) -> int:
    """Return how many axes of size one a shape ends in."""
    return next((i for i, size in enumerate(reversed(shape)) if size != 1), len(shape))


def broadcast(*shapes: torch.Size) -> torch.Size | None:
    """Return the shape that shapes broadcast to, if they do."""
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError:
        return None


def check_leading(
    name: str,
    shape: torch.Size,
    leading: torch.Size,
    batch: torch.Size,
    *,
    event: Sequence[int] = (),
) -> None:
    """Check that the leading axes of a shape, which `event` follows, broadcast with the batch."""
    if broadcast(leading, batch) is None:
        raise ShapeError(
            name,
            got=f"has shape {list(shape)}",
            expected=f"its leading axes must broadcast against the batch shape {list(batch)}",
            fix=f"End it in {[*batch, *event]} for one to each member, or in "
            f"{[*[1] * len(batch), *event]} for the same in all; put further axes in front.",
        )


def check_probabilities(value: Any, means: Tensor) -> Tensor:
    """Return value as a tensor of probabilities that broadcasts against the means' batch."""
    levels = as_tensor("value", value, means)
    if anywhere(~((levels >= 0) & (levels <= 1))):
        raise ArgumentError(
            "value",
            got="has an entry outside [0, 1]",
            expected="probabilities were expected",
            fix="For the median, pass 0.5.",
        )
    check_leading("value", levels.shape, levels.shape, means.shape[:-2])
    return levels


def check_affine(linear: Any, loc: Any, means: Tensor) -> tuple[Tensor, Tensor]:
    """Return a scale [D] or a matrix [..., M, D], and the loc [..., M] that goes with it."""
    name, dimensions = "matrix_or_scale", means.shape[-1]
    linear, loc = as_tensor(name, linear, means), as_tensor("loc", loc, means)
    check_finite(name, linear, "Check how it was computed.")
    check_finite("loc", loc, "Check how it was computed.")
    if linear.dim() == 0:
        linear = linear.expand(dimensions)
    rows = linear.shape[-1] if linear.dim() == 1 else linear.shape[-2]
    if linear.shape[-1] != dimensions or not 1 <= rows <= dimensions:
        raise ShapeError(
            name,
            got=f"has shape {list(linear.shape)}",
            expected=f"a number, [{dimensions}] or [..., M, {dimensions}] with M ≤ "
            f"{dimensions} fits",
            fix="More outputs than dimensions have no density.",
        )
    if linear.dim() == 1 and anywhere(linear == 0):
        raise ArgumentError(
            name,
            got="has a zero",
            expected="a dimension scaled by zero has no density",
            fix="Drop that dimension with marginal(dims).",
        )
    batch, leading = means.shape[:-2], linear.shape[:-2]
    check_leading(name, linear.shape, leading, batch, event=linear.shape[-2:])
    if loc.dim() and loc.shape[-1] != rows:
        raise ShapeError(
            "loc",
            got=f"has shape {list(loc.shape)}",
            expected=f"the image has {rows} output(s)",
            fix=f"Pass a number or [{rows}].",
        )
    batch = torch.broadcast_shapes(leading, batch)
    check_leading("loc", loc.shape, loc.shape[:-1], batch, event=(rows,))
    return linear, loc.expand(*loc.shape[:-1], rows)


def check_direction(direction: Any, means: Tensor) -> Tensor:
    """Return a direction as a tensor [..., D] that is nowhere zero."""
    direction = check_event("direction", direction, means, allow_nan=False)
    check_finite("direction", direction, "Check how it was computed.")
    if anywhere((direction == 0).all(-1)):
        raise ArgumentError(
            "direction",
            got="is zero",
            expected="a projection needs a direction",
            fix="Pass one with an entry that is not zero.",
        )
    return direction


def check_coverage(name: str, coverage: float) -> float:
    """Return a coverage as a float strictly between 0 and 1."""
    try:
        number = float(coverage)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    if not 0 < number < 1:
        raise _no_coverage(name, f"is {coverage}", "one number")
    return number


def check_log_tail(name: str, log_tail: float) -> float:
    """Return the logarithm of a probability of one half at most, as a float."""
    try:
        number = float(log_tail)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    if not number <= -math.log(2):
        raise ArgumentError(
            name,
            got=f"is {log_tail}",
            expected="the logarithm of a probability up to one half was expected",
            fix="For 5 % on either side, pass math.log(0.05).",
        )
    return number


def check_coverages(name: str, coverages: Any, means: Tensor) -> Tensor:
    """Return coverages strictly between 0 and 1, as a tensor that broadcasts with the batch."""
    coverages = as_tensor(name, coverages, means)
    if anywhere(~((coverages > 0) & (coverages < 1))):
        raise _no_coverage(name, f"is {coverages.tolist()}", "numbers")
    check_leading(name, coverages.shape, coverages.shape, means.shape[:-2])
    return coverages


def _no_coverage(name: str, got: str, what: str) -> ArgumentError:
    return ArgumentError(
        name,
        got=got,
        expected=f"{what} between 0 and 1, both excluded, were expected",
        fix="For 90 %, pass 0.9.",
    )


def check_count(name: str, count: int, *, coverage: float | None = None) -> int:
    """Check that a number of draws allows a standard error, on both sides of a coverage."""
    try:
        count = operator.index(count)
    except TypeError:
        raise ArgumentError(
            name, got=f"is {count!r}", expected="a whole number was expected", fix="Pass an int."
        ) from None
    # Ten to either side; of a tiny coverage more than there are whole numbers for, or floats.
    least = 2.0 if coverage is None else 10 / min(coverage, 1 - coverage)
    if count < least:
        needed = str(math.ceil(least)) if least < 1e12 else f"{least:.1g}"
        raise ArgumentError(
            name,
            got=f"is {count}",
            expected=f"a standard error needs at least {needed}",
            fix=f"Pass {max(1000, math.ceil(least))} or more."
            if least < 1e12
            else "Ask for a coverage nearer to one half.",
        )
    return count


def check_shape(name: str, shape: Any) -> tuple[int, ...]:
    """Check a shape, such as that of samples."""
    try:
        sizes = tuple(operator.index(size) for size in shape)
    except (TypeError, RuntimeError):
        sizes = (-1,)
    if any(size < 0 for size in sizes):
        raise ShapeError(
            name,
            got=f"is {shape!r}",
            expected="a tuple of whole numbers, none of them negative, was expected",
            fix="For 1000 draws, pass (1000,).",
        )
    return sizes


def check_room(name: str, given: Any, shape: Sequence[int], like: Tensor) -> None:
    """Check that numbers of a shape are not more than memory can ever hold."""
    # An axis without entries frees no other one: torch multiplies the sizes all the same.
    size = math.prod([max(size, 1) for size in shape]) * like.element_size()
    if size > MAX_BYTES:
        raise ShapeError(
            name,
            got=f"is {given}",
            expected=f"no process can have the 2**{size.bit_length() - 1} bytes that it takes",
            fix="Ask for less at a time.",
        )


def within_memory(method: Callable[P, R]) -> Callable[P, R]:
    """Return a method that names the error where its draws do not fit into memory."""

    @wraps(method)
    def door(*args: P.args, **options: P.kwargs) -> R:
        try:
            return method(*args, **options)
        except RuntimeError as error:
            if "DefaultCPUAllocator" not in str(error):
                raise
            raise ShapeError(
                "the draws",
                got="do not fit into memory",
                expected="torch could not have as much",
                fix="Ask for fewer at a time, or for part of the batch.",
            ) from error

    return door
