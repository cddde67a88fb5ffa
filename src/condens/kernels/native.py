"""The native kernel, called with addresses and strides."""

import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from condens.errors import ShapeError, message
from condens.kernels import memory


def _load() -> tuple[ModuleType | None, str]:
    try:
        return importlib.import_module("condens.kernels._native"), ""
    except ImportError as error:  # not built, or built for a machine with OpenMP
        return None, str(error)


_module, missing = _load()
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


def forward(*inputs: Tensor) -> tuple[Tensor, Any]:
    """Return the loss of each row, and what `backward` needs: the inputs again.

    Reading the factors a second time costs less than writing and reading what would spare it.
    """
    target, logits, means, factors = inputs
    loss = target.new_empty(target.shape[0])
    _run(
        target,
        (*means.shape, factors.shape[-1]),
        (logits.data_ptr(), means.data_ptr(), factors.data_ptr()),
        (*logits.stride(), *means.stride(), *factors.stride()),
        None,
        loss,
    )
    return loss, inputs


def backward(state: Any, weights: Tensor, to_target: bool) -> tuple[Tensor | None, ...]:
    """Return the gradients of Σ weights · loss."""
    return total(*state, weights=weights, to_target=to_target)[1]


def total(
    *inputs: Tensor, weights: Tensor | None, to_target: bool
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return Σ weights · loss and its gradients, in one pass; the mean where weights is None."""
    target, logits, means, factors = inputs
    made = (_like(target) if to_target else None, *_like_all(logits, means, factors))
    return into(made, *inputs, weights=weights), made


def into(gradients: tuple[Tensor | None, ...], *inputs: Tensor, weights: Tensor | None) -> Tensor:
    """Return Σ weights · loss; write the gradients, which have the inputs' strides."""
    target, logits, means, factors = inputs
    value = target.new_empty(())
    _run(
        target,
        (*means.shape, factors.shape[-1]),
        (logits.data_ptr(), means.data_ptr(), factors.data_ptr()),
        (*logits.stride(), *means.stride(), *factors.stride()),
        weights,
        target.new_empty(target.shape[0]),
        value,
        [0 if gradient is None else gradient.data_ptr() for gradient in gradients],
    )
    return value


def from_outputs(
    outputs: Tensor,
    pulled: Tensor,
    target: Tensor,
    to_target: Tensor | None,
    sizes: tuple[int, int, int],
    weights: Tensor | None,
    floor: float,
) -> Tensor:
    """Return Σ weights · loss of what a linear layer put out; write its gradient to `pulled`.

    Without a view of any part: for small mixtures, making views takes longer than the rest.
    Shapes: outputs and pulled [P, b], of the same strides: K logits, K×D means and K×T
    factors; target and to_target [b, D]; sizes (K, D, T).
    """
    components, dimensions, packed = sizes
    line, step = outputs.stride()
    size = line * outputs.element_size()
    starts = (0, components * size, components * (1 + dimensions) * size)
    value = target.new_empty(())
    _run(
        target,
        (target.shape[0], *sizes),
        tuple(outputs.data_ptr() + start for start in starts),
        (step, line, step, dimensions * line, line, step, packed * line, line),
        weights,
        target.new_empty(target.shape[0]),
        value,
        (
            0 if to_target is None else to_target.data_ptr(),
            *(pulled.data_ptr() + start for start in starts),
        ),
        floor,
    )
    return value


def _run(
    target: Tensor,
    sizes: tuple[int, ...],
    addresses: tuple[int, ...],
    strides: tuple[int, ...],
    weights: Tensor | None,
    loss: Tensor,
    value: Tensor | None = None,
    gradients: Any = (0, 0, 0, 0),
    floor: float = 0.0,
) -> None:
    assert _module is not None
    _module.nll(
        1 / max(sizes[0], 1),
        floor,
        target.dtype is torch.float64,
        1 if alone else torch.get_num_threads(),
        *sizes,
        target.data_ptr(),
        *addresses,
        0 if weights is None else weights.data_ptr(),
        loss.data_ptr(),
        0 if value is None else value.data_ptr(),
        *gradients,
        *target.stride(),
        *strides,
        0 if weights is None else weights.stride(0),
    )


def partial(
    target: Tensor,
    logits: Tensor,
    means: Tensor,
    factors: Tensor,
    *,
    reach: float,
    gradients: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the log density of the entries that are not NaN [R], and its gradients if wanted.

    Latents from `reach` on count as infinitely far. Shapes: target [R, D], logits [R, K],
    means [R, K, D], factors [R, K, T], in any dtype; all results are in double precision.
    """
    assert _module is not None
    inputs = [tensor.double().contiguous() for tensor in (target, logits, means, factors)]
    rows, components, dimensions = means.shape
    sizes = [(rows, dimensions), (rows, components), factors.shape[:2]]
    if sizes != [target.shape, logits.shape, (rows, components)]:
        came = f"have shapes {[list(tensor.shape) for tensor in inputs]}"
        expected = "[R, D], [R, K], [R, K, D] and [R, K, T] were expected"
        raise ShapeError(message("the tensors", came, expected, "Make the axes agree."))
    value = inputs[0].new_empty(rows)
    made = tuple(torch.empty_like(tensor) for tensor in inputs) if gradients else ()
    _module.partial(
        reach,
        1 if alone else torch.get_num_threads(),
        *means.shape,
        factors.shape[-1],
        *(tensor.data_ptr() for tensor in (*inputs, value, *made)),
        *[0] * (4 - len(made)),
    )
    return value, made


def partial_total(
    *inputs: Tensor, weights: Tensor, to_target: bool
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return what `total` does for rows of which NaN entries were not observed."""
    target = inputs[0]
    reach = float(torch.finfo(target.dtype).max ** 0.5)
    value, made = partial(*inputs, reach=reach, gradients=True)
    # A row without weight takes no part, be it infinite.
    idle, scale = weights == 0, -weights.double()
    loss = (scale * value.masked_fill(idle, 0.0)).sum().to(target.dtype)
    pulled = [g * scale.view(-1, *[1] * (g.dim() - 1)) for g in made]
    return loss, (pulled[0] if to_target else None, *pulled[1:])


def _like(tensor: Tensor) -> Tensor:
    # Not empty_like, which would lay out a view with gaps or overlaps anew.
    if tensor.numel() * tensor.element_size() >= memory.SMALLEST:
        return memory.scratch(tensor.shape, tensor, tensor.stride())
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


def _like_all(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return an uninitialised tensor for each, with its strides.

    Views that fill one large tensor together get one buffer, or each would span it all.
    """
    *_, last = tensors
    size = last.element_size()
    if last.numel() * size >= memory.SMALLEST and not last.is_contiguous():
        starts = [tensor.data_ptr() // size for tensor in tensors]
        ends = [
            start + memory.span(tensor.shape, tensor.stride())
            for start, tensor in zip(starts, tensors, strict=True)
        ]
        whole = max(ends) - min(starts)
        if whole <= sum(tensor.numel() for tensor in tensors):
            buffer = memory.scratch((whole,), last)
            return tuple(
                buffer.as_strided(tensor.shape, tensor.stride(), start - min(starts))
                for start, tensor in zip(starts, tensors, strict=True)
            )
    return tuple(_like(tensor) for tensor in tensors)


def draw(
    noise: Tensor, uniform: Tensor, cumulative: Tensor, means: Tensor, factors: Tensor
) -> None:
    """Turn standard normal noise into draws, in place.

    Shapes: noise [S, B, D], uniform [S, B] and cumulative weights [B, K] in double, all
    contiguous; means [B, K, D], factors [B, K, T].
    """
    assert _module is not None
    _module.sample(
        noise.dtype is torch.float64,
        1 if alone else torch.get_num_threads(),
        len(noise),
        *means.shape,
        factors.shape[-1],
        noise.data_ptr(),
        uniform.data_ptr(),
        cumulative.data_ptr(),
        means.data_ptr(),
        factors.data_ptr(),
        *means.stride(),
        *factors.stride(),
    )
