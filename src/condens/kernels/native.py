"""The native kernel, called with addresses and strides.

What is below this module cannot know how large a tensor is. So whatever these functions are
called with they check, and they write to tensors of their own, or to such as they have found
to be of the right shape and apart from all others.
"""

import importlib
import math
from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from condens.errors import ArgumentError, KindError
from condens.kernels import memory
from condens.kernels.checks import check, check_draws, check_mixture, check_strided, draws_fit, fits


def _load() -> tuple[ModuleType | None, str]:
    try:
        return importlib.import_module("condens.kernels._native"), ""
    except ImportError as error:  # not built, or built for a machine with OpenMP
        return None, str(error)


_module, missing = _load()
_DOUBLE = torch.empty(0, dtype=torch.float64, device="cpu")
_NAMES = ("target", "logits", "means", "factors")
alone = _module is not None and not _module.openmp


def describe() -> str:
    """Say which instructions the kernel uses, or why there is none."""
    if _module is None:
        return f"not available: {missing}"
    threads = "one thread: built without OpenMP" if alone else "OpenMP"
    return f"{_module.level()}, {threads}"


def serves(target: Tensor) -> bool:
    """Tell whether the kernel takes tensors like this one."""
    return (
        _module is not None
        and target.is_cpu
        and (target.dtype is torch.float32 or target.dtype is torch.float64)
    )


def forward(*inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the loss of each row, and what `backward` needs besides the inputs: nothing.

    Reading the factors a second time costs less than writing and reading what would spare it.
    """
    sizes, inputs = _mixture(inputs)
    loss = inputs[0].new_empty(sizes[0])
    _run(sizes, inputs, loss)
    return loss, ()


def backward(
    inputs: Sequence[Tensor], _state: tuple[Tensor, ...], weights: Tensor, to_target: bool
) -> tuple[Tensor | None, ...]:
    """Return the gradients of Σ weights · loss."""
    return total(*inputs, weights=weights, to_target=to_target)[1]


def total(
    *inputs: Tensor, weights: Tensor | None, to_target: bool
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return Σ weights · loss and its gradients, in one pass; the mean where weights is None."""
    sizes, inputs = _mixture(inputs)
    # Gradients are written with the strides of what they are gradients of.
    inputs = tuple(t if t.is_contiguous() or _compact(t) else t.contiguous() for t in inputs)
    target, *others = inputs
    made = (_like(target) if to_target else None, *map(_like, others))
    value = target.new_empty(())
    _run(sizes, inputs, target.new_empty(sizes[0]), value, made, _weights(weights, target))
    return value, made


def into(gradients: Sequence[Tensor | None], *inputs: Tensor, weights: Tensor | None) -> Tensor:
    """Return Σ weights · loss; write the gradients, which have the inputs' shapes and strides.

    That of the target may be None.
    """
    sizes, read = _mixture(inputs)
    for name, to, of in zip(_NAMES, gradients, read, strict=True):
        if to is None and name == "target":
            continue
        gradient = f"the gradient of {name}"
        check(((gradient, to, of.shape),), of)
        assert to is not None
        if to.stride() != of.stride() or not _compact(of):
            raise ArgumentError(
                gradient,
                got=f"has the strides {to.stride()}",
                expected=f"{name} has {of.stride()}",
                fix="Make both contiguous.",
            )
    value = read[0].new_empty(())
    loss = read[0].new_empty(sizes[0])
    _run(sizes, read, loss, value, gradients, _weights(weights, read[0]))
    return value


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
    """Return Σ weights · loss of what a linear layer put out; write its gradient to `pulled`.

    Without a view of any part: for small mixtures, making views takes longer than the rest.
    Shapes: outputs and pulled [P, b]: K logits, K×D means and K×T factors; target and
    to_target [b, D]; what is written is contiguous, and outputs are. Sizes (K, D, T).
    """
    check_strided("target", target, 2)
    _check_served(target)
    rows, (components, dimensions, packed) = target.shape[0], sizes
    outer, inner = (components * (1 + dimensions + packed), rows), (rows, dimensions)
    named = [("outputs", outputs, outer), ("pulled", pulled, outer), ("target", target, inner)]
    if to_target is not None:
        named.append(("to_target", to_target, inner))
    check(named, target)
    _check_contiguous(outputs=outputs, pulled=pulled)
    if to_target is not None:
        _check_contiguous(to_target=to_target)
    target = _readable(target if target.is_contiguous() else target.contiguous())
    line = rows * target.element_size()
    starts = (0, components * line, components * (1 + dimensions) * line)
    value = target.new_empty(())
    _call(
        (rows, *sizes),
        (target.data_ptr(), *(outputs.data_ptr() + start for start in starts)),
        (dimensions, 1, 1, rows, 1, dimensions * rows, rows, 1, packed * rows, rows),
        target.new_empty(rows),
        value,
        (
            0 if to_target is None else to_target.data_ptr(),
            *(pulled.data_ptr() + start for start in starts),
        ),
        _weights(weights, target),
        floor,
        1 / ceiling if ceiling else math.inf,
    )
    return value


def partial(
    *inputs: Tensor, weights: Tensor | None = None, gradients: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return weights · log density of the entries that are not NaN [R], and gradients if wanted.

    Shapes: target [R, D], logits [R, K], means [R, K, D], factors [R, K, T], weights [R], in
    any dtype; all results are in double precision.
    """
    for name, tensor in zip(_NAMES, inputs, strict=True):
        check_strided(name, tensor)
    sizes, wide = _mixture([tensor.double().contiguous() for tensor in inputs])
    if weights is not None:
        check_strided("weights", weights)
        weights = _weights(weights.double().contiguous(), wide[0])
    value = wide[0].new_empty(sizes[0])
    made = tuple(torch.empty_like(tensor) for tensor in wide) if gradients else ()
    _native(
        "partial",
        float(torch.finfo(inputs[2].dtype).max ** 0.5),
        1 if alone else torch.get_num_threads(),
        *sizes,
        *(tensor.data_ptr() for tensor in wide),
        0 if weights is None else weights.data_ptr(),
        *(tensor.data_ptr() for tensor in (value, *made)),
        *[0] * (4 - len(made)),
    )
    return value, made


def partial_total(
    *inputs: Tensor, weights: Tensor, to_target: bool
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return what `total` does for rows of which NaN entries were not observed."""
    value, made = partial(*inputs, weights=-weights, gradients=True)
    return value.sum(), (made[0] if to_target else None, *made[1:])


def draw(
    noise: Tensor, uniform: Tensor, cumulative: Tensor, means: Tensor, factors: Tensor
) -> None:
    """Turn standard normal noise into draws, in place.

    Shapes: noise [S, B, D], uniform [S, B] and cumulative weights [B, K] in double, all
    contiguous; means [B, K, D], factors [B, K, T].
    """
    if not draws_fit(noise, uniform, cumulative, means, factors):
        check_draws(noise, uniform, cumulative, means, factors)
        check((("means", means, means.shape), ("factors", factors, factors.shape)), noise)
        check((("uniform", uniform, uniform.shape),), _DOUBLE)
    _check_served(noise)
    _check_contiguous(noise=noise, uniform=uniform, cumulative=cumulative)
    means, factors = _readable(means), _readable(factors)
    _native(
        "sample",
        noise.dtype is torch.float64,
        1 if alone else torch.get_num_threads(),
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


def _run(
    sizes: tuple[int, int, int, int],
    inputs: Sequence[Tensor],
    loss: Tensor,
    value: Tensor | None = None,
    gradients: Sequence[Tensor | None] = (None,) * 4,
    weights: Tensor | None = None,
) -> None:
    target, logits, means, factors = inputs
    _call(
        sizes,
        (target.data_ptr(), logits.data_ptr(), means.data_ptr(), factors.data_ptr()),
        (*target.stride(), *logits.stride(), *means.stride(), *factors.stride()),
        loss,
        value,
        [0 if gradient is None else gradient.data_ptr() for gradient in gradients],
        weights,
    )


def _call(
    sizes: tuple[int, ...],
    addresses: tuple[int, ...],
    strides: tuple[int, ...],
    loss: Tensor,
    value: Tensor | None,
    gradients: Sequence[int],
    weights: Tensor | None,
    floor: float = 0.0,
    tightness: float = 0.0,
) -> None:
    _native(
        "nll",
        1 / max(sizes[0], 1),
        floor,
        tightness,
        loss.dtype is torch.float64,
        1 if alone else torch.get_num_threads(),
        *sizes,
        *addresses,
        0 if weights is None else weights.data_ptr(),
        loss.data_ptr(),
        0 if value is None else value.data_ptr(),
        *gradients,
        *strides,
        0 if weights is None else weights.stride(0),
    )


def _native(name: str, *numbers: float) -> None:
    """Call a function of the extension; what it refuses in turn gets an error of ours."""
    try:
        getattr(_module, name)(*numbers)
    except (ValueError, OverflowError) as error:
        raise ArgumentError(*error.args) from None


def _mixture(inputs: Sequence[Tensor]) -> tuple[tuple[int, int, int, int], tuple[Tensor, ...]]:
    """Return the sizes (b, K, D, T) of checked inputs, and the inputs as C can read them."""
    target, logits, means, factors = inputs
    if not fits(target, logits, means, factors, 1):
        check_mixture(target, logits, means, factors)
    _check_served(target)
    rows, components, dimensions = means.shape
    sizes = rows, components, dimensions, factors.shape[2]
    start = target.data_ptr() | logits.data_ptr() | means.data_ptr() | factors.data_ptr()
    negated = target.is_neg() or logits.is_neg() or means.is_neg() or factors.is_neg()
    if negated or start % target.element_size():
        inputs = [_readable(tensor) for tensor in inputs]
    return sizes, tuple(inputs)


def _weights(weights: Tensor | None, target: Tensor) -> Tensor | None:
    if weights is None:
        return None
    check((("weights", weights, target.shape[:1]),), target)
    return _readable(weights)


def _readable(tensor: Tensor) -> Tensor:
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
    if tensor.numel() * tensor.element_size() >= memory.SMALLEST:
        return memory.scratch(tensor.shape, tensor, tensor.stride())
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


def _check_served(tensor: Tensor) -> None:
    if not serves(tensor):
        raise KindError(
            "a tensor",
            got=f"is {tensor.dtype} on {tensor.device}",
            expected=f"the native kernel ({describe()}) takes float32 and float64 on the CPU",
            fix="Call condens.functional.",
        )


def _check_contiguous(**named: Tensor) -> None:
    for name, tensor in named.items():
        if not tensor.is_contiguous() or tensor.is_neg():
            raise ArgumentError(
                name,
                got=f"has the strides {tensor.stride()}",
                expected="contiguous memory was expected",
                fix=f"Pass {name}.contiguous().",
            )
