"""The native kernel, called with addresses and strides.

C cannot know how large a tensor is. These functions check whatever they are called with, unless
it comes as `Rows`, which have been checked; and they write to tensors that they allocate, or that
they have found to have the right shape and to overlap no other.
"""

import importlib
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from condens.errors import ArgumentError, KindError
from condens.kernels import memory
from condens.kernels.checks import (
    Rows,
    as_rows,
    check,
    check_draws,
    check_kind,
    check_strided,
)


def _load() -> tuple[ModuleType | None, str]:
    try:
        return importlib.import_module("condens.kernels._native"), ""
    except ImportError as error:  # not built, or built for a machine with OpenMP
        return None, str(error)


_module, missing = _load()
_DOUBLE = torch.empty(0, dtype=torch.float64, device="cpu")
_WORDS = torch.empty(0, dtype=torch.int64, device="cpu")
# Values of 16 random bits.
HALVES = 1 << 16
single_threaded = _module is not None and not _module.openmp


def describe() -> str:
    """Say which instructions the kernel uses, or why there is none."""
    if _module is None:
        return f"not available: {missing}"
    return f"{_module.level()}, " + (
        "one thread: built without OpenMP" if single_threaded else "OpenMP"
    )


def serves(target: Tensor) -> bool:
    """Tell whether the kernel takes tensors like this one."""
    return (
        _module is not None
        and target.is_cpu
        and (target.dtype is torch.float32 or target.dtype is torch.float64)
    )


def forward(inputs: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the loss of each row, and what `backward` needs besides the inputs: nothing.

    Reading the factors a second time costs less than writing and reading what would spare it.
    """
    rows = _readable_rows(inputs)
    loss = rows.target.new_empty(rows.target.shape[0])
    _run(rows, loss)
    return loss, ()


def backward(
    inputs: Sequence[Tensor], _state: tuple[Tensor, ...], weights: Tensor, to_target: bool
) -> tuple[Tensor | None, ...]:
    """Return the gradients of Σ weights · loss."""
    return total(inputs, weights=weights, to_target=to_target)[1]


def total(
    inputs: Sequence[Tensor], *, weights: Tensor | None, to_target: bool
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return Σ weights · loss and its gradients, in one pass; the mean where weights is None."""
    # Gradients are written with the strides of what they are gradients of.
    rows = Rows(
        *(t if t.is_contiguous() or _compact(t) else t.contiguous() for t in _readable_rows(inputs))
    )
    target, *others = rows
    made = (_like(target) if to_target else None, *map(_like, others))
    value = target.new_empty(())
    _run(rows, target.new_empty(target.shape[0]), value, made, as_weights(weights, target))
    return value, made


def from_outputs(
    outputs: Tensor,
    pulled: Tensor,
    target: Tensor,
    to_target: Tensor | None,
    sizes: tuple[int, int, int],
    weights: Tensor | None,
    floor: float,
    ceiling: float,
) -> Tensor:
    """Return Σ weights · loss of a linear layer's outputs; write their gradient to `pulled`.

    No part is viewed as a tensor: for small mixtures, making views takes longer than the rest.
    Shapes: outputs and pulled [P, b]: K logits, K×D means and K×T factors; target and
    to_target [b, D]; all but the target contiguous. Sizes (K, D, T). With a further axis in front
    of all of them, [M, P, b] and so on, the sum over the M losses.
    """
    check_strided("target", target)
    check_strided("target", target, 3 if target.dim() == 3 else 2)
    check_served(target)
    (*lead, rows), (components, dimensions, packed) = target.shape[:-1], sizes
    outer = (*lead, components * (1 + dimensions + packed), rows)
    inner = (*lead, rows, dimensions)
    named = [("outputs", outputs, outer), ("pulled", pulled, outer), ("target", target, inner)]
    if to_target is not None:
        named.append(("to_target", to_target, inner))
    check(named, target)
    for name, tensor in (("outputs", outputs), ("pulled", pulled), ("to_target", to_target)):
        if tensor is not None:
            check_contiguous(name, tensor)
    target = readable(target if target.is_contiguous() else target.contiguous())
    weights = as_weights(weights, target)
    step, size = 0 if weights is None else weights.stride(-1), target.element_size()
    line, members = rows * size, lead[0] if lead else 1
    starts = (0, components * line, components * (1 + dimensions) * line)
    strides = (dimensions, 1, 1, rows, 1, dimensions * rows, rows, 1, packed * rows, rows)
    values, losses = target.new_empty(members), target.new_empty(rows)
    # The addresses of the first member, and how far apart the members are.
    places = [
        (target.data_ptr(), dimensions * line),
        *((outputs.data_ptr() + start, outer[-2] * line) for start in starts),
        (0, 0) if weights is None else (weights.data_ptr(), weights.stride(0) * size),
        (losses.data_ptr(), 0),
        (values.data_ptr(), size),
        (0, 0) if to_target is None else (to_target.data_ptr(), dimensions * line),
        *((pulled.data_ptr() + start, outer[-2] * line) for start in starts),
    ]
    numbers = _numbers((rows, *sizes), losses, floor, 1 / ceiling if ceiling else math.inf)
    for m in range(members):
        addresses = [first + m * apart for first, apart in places]
        call("nll", *numbers, *addresses, *strides, step)
    return values.sum() if lead else values.squeeze(0)


def partial(
    inputs: Sequence[Tensor], *, weights: Tensor | None = None, gradients: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return weights · log density of the entries that are not NaN [R], and gradients if wanted.

    Shapes: target [R, D], logits [R, K], means [R, K, D], factors [R, K, T], weights [R], in
    any dtype; all results are in double precision.
    """
    for name, tensor in zip(Rows._fields, inputs, strict=True):
        check_strided(name, tensor)
    wide = _readable_rows([tensor.double().contiguous() for tensor in inputs])
    if weights is not None:
        check_strided("weights", weights)
        weights = as_weights(weights.double().contiguous(), wide.target)
    value = wide.target.new_empty(wide.target.shape[0])
    made = tuple(torch.empty_like(tensor) for tensor in wide) if gradients else ()
    call(
        "partial",
        float(torch.finfo(inputs[2].dtype).max ** 0.5),
        threads(),
        *wide.means.shape,
        wide.factors.shape[2],
        *(tensor.data_ptr() for tensor in wide),
        0 if weights is None else weights.data_ptr(),
        *(tensor.data_ptr() for tensor in (value, *made)),
        *[0] * (4 - len(made)),
    )
    return value, made


def partial_total(
    inputs: Sequence[Tensor], *, weights: Tensor, to_target: bool
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return what `total` does, for rows of which NaN entries were not observed."""
    value, made = partial(inputs, weights=-weights, gradients=True)
    return value.sum(), (made[0] if to_target else None, *made[1:])


def draw(
    noise: Tensor, uniform: Tensor, cumulative: Tensor, means: Tensor, factors: Tensor
) -> None:
    """Turn standard normal noise into draws, in place.

    Shapes: noise [S, B, D], uniform [S, B] and cumulative weights [B, K] in double, all
    contiguous; means [B, K, D], factors [B, K, T].
    """
    check_draws(noise, uniform, cumulative, means, factors)
    for name, tensor, like in (
        ("means", means, noise),
        ("factors", factors, noise),
        ("cumulative", cumulative, _DOUBLE),
    ):
        check_kind(name, tensor, like)
    check_served(noise)
    for name, tensor in (("noise", noise), ("uniform", uniform), ("cumulative", cumulative)):
        check_contiguous(name, tensor)
    means, factors = readable(means), readable(factors)
    call(
        "sample",
        noise.dtype is torch.float64,
        threads(),
        noise.shape[0],
        *means.shape,
        factors.shape[2],
        noise.data_ptr(),
        uniform.data_ptr(),
        cumulative.data_ptr(),
        means.data_ptr(),
        factors.data_ptr(),
        *means.stride(),
        *factors.stride(),
    )


def mask(
    bases: Tensor, rows: int, columns: int, *, place: int, first: int, dropped: int, like: Tensor
) -> Tensor:
    """Return a mask of dropout: 0 for `dropped` of 65536 values of 16 bits, else their inverse.

    An entry's bits are a quarter of SplitMix64's hash of its row's key and its word's number,
    counted from `first`; the key is that of its member's base and its row's number, counted from
    `place`. Shapes: bases [M] of 64 bits → [M, rows, columns], of the dtype of `like`.
    """
    check_served(like)
    bases = as_bases(bases)
    if not 0 <= dropped < HALVES:
        raise ArgumentError(
            "dropped",
            got=f"is {dropped}",
            expected=f"0 to {HALVES - 1} was expected",
            fix="Pass how many of as many values are dropped.",
        )
    made = like.new_empty(bases.shape[0], rows, columns)
    call(
        "mask",
        HALVES / (HALVES - dropped),
        like.dtype is torch.float64,
        *made.shape,
        place,
        first,
        dropped - HALVES // 2,
        bases.data_ptr(),
        made.data_ptr(),
    )
    return made


def as_bases(bases: Tensor) -> Tensor:
    """Return what the keys of `mask` are counted from, checked, as C can read it."""
    check_strided("bases", bases, 1)
    check_kind("bases", bases, _WORDS)
    return readable(bases.contiguous())


def _run(
    rows: Rows,
    loss: Tensor,
    value: Tensor | None = None,
    gradients: Sequence[Tensor | None] = (None,) * 4,
    weights: Tensor | None = None,
) -> None:
    target, logits, means, factors = rows
    call(
        "nll",
        *_numbers((*means.shape, factors.shape[2]), loss),
        *(target.data_ptr(), logits.data_ptr(), means.data_ptr(), factors.data_ptr()),
        0 if weights is None else weights.data_ptr(),
        loss.data_ptr(),
        0 if value is None else value.data_ptr(),
        *(0 if gradient is None else gradient.data_ptr() for gradient in gradients),
        *(*target.stride(), *logits.stride(), *means.stride(), *factors.stride()),
        0 if weights is None else weights.stride(0),
    )


def _numbers(
    sizes: tuple[int, ...], like: Tensor, floor: float = 0.0, tightness: float = 0.0
) -> tuple[float, ...]:
    """Return what the kernel is told before the addresses."""
    return 1 / max(sizes[0], 1), floor, tightness, like.dtype is torch.float64, threads(), *sizes


def call(name: str, *numbers: float) -> Any:
    """Call a function of the extension; raise its refusals as errors of condens."""
    try:
        return getattr(_module, name)(*numbers)
    except (ValueError, OverflowError) as error:
        raise ArgumentError(*error.args) from None


def address(tensor: Tensor | None) -> int:
    """Return where a tensor is; 0 for none."""
    return 0 if tensor is None else tensor.data_ptr()


def threads() -> int:
    """Return how many threads C may use."""
    return 1 if single_threaded else torch.get_num_threads()


def in_lines(tensor: Tensor) -> Tensor:
    """Return the tensor as C can read it, contiguous in its last axis."""
    return readable(tensor if tensor.stride(-1) == 1 or not tensor.numel() else tensor.contiguous())


def _readable_rows(inputs: Sequence[Tensor]) -> Rows:
    """Return checked inputs as C can read them."""
    rows = inputs if isinstance(inputs, Rows) else as_rows(*inputs)
    target, logits, means, factors = rows
    check_served(target)
    start = target.data_ptr() | logits.data_ptr() | means.data_ptr() | factors.data_ptr()
    negated = target.is_neg() or logits.is_neg() or means.is_neg() or factors.is_neg()
    if negated or start % target.element_size():
        return Rows(*map(readable, rows))
    return rows


def as_weights(weights: Tensor | None, target: Tensor) -> Tensor | None:
    """Return the weights of the target's rows, checked, as C can read them."""
    if weights is None:
        return None
    check((("weights", weights, target.shape[:-1]),), target)
    return readable(weights)


def readable(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy where memory does not hold its numbers as they are."""
    if tensor.is_neg() or tensor.data_ptr() % tensor.element_size():
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor


def _compact(tensor: Tensor) -> bool:
    """Tell whether no two entries share their memory, and gaps take up no more than they do."""
    reach = 0
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if step <= reach:
                return False
            reach += (size - 1) * step
    return reach < 2 * tensor.numel() or not tensor.numel()


def _like(tensor: Tensor) -> Tensor:
    # Not empty_like, which would lay out a view with gaps anew.
    if tensor.numel() * tensor.element_size() >= memory.MIN_BYTES:
        return memory.scratch(tensor.shape, tensor, tensor.stride())
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


def check_served(tensor: Tensor) -> None:
    """Raise a named error unless the kernel takes tensors like this one."""
    if not serves(tensor):
        raise KindError(
            "a tensor",
            got=f"is {tensor.dtype} on {tensor.device}",
            expected=f"the native kernel ({describe()}) takes float32 and float64 on the CPU",
            fix="Call condens.functional, which serves every dtype and device.",
        )


def check_contiguous(name: str, tensor: Tensor) -> None:
    """Raise a named error unless memory holds a tensor's numbers as they are, one by one."""
    if not tensor.is_contiguous() or tensor.is_neg():
        raise ArgumentError(
            name,
            got=f"has the strides {tensor.stride()}",
            expected="contiguous memory was expected",
            fix=f"Pass {name}.contiguous().",
        )
