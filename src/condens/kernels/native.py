"""The native kernel, called with addresses and strides."""

import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


def _load() -> tuple[ModuleType | None, str]:
    try:
        return importlib.import_module("condens.kernels._native"), ""
    except ImportError as error:  # not built, or built for a machine with OpenMP
        return None, str(error)


_module, missing = _load()


def describe() -> str:
    """Say which instructions the kernel uses, or why there is none."""
    if _module is None:
        return f"not available: {missing}"
    threads = "OpenMP" if _module.openmp else "one thread: built without OpenMP"
    return f"{_module.level}, {threads}"


def serves(target: Tensor) -> bool:
    """Tell whether the kernel takes tensors like this one."""
    return (
        _module is not None
        and target.device.type == "cpu"
        and target.dtype in (torch.float32, torch.float64)
    )


def _run(
    inputs: tuple[Tensor, ...],
    weights: Tensor | None,
    loss: Tensor,
    gradients: tuple[Tensor | None, ...],
) -> None:
    target, logits, means, factors = inputs
    assert _module is not None
    _module.nll(
        target.dtype is torch.float64,
        torch.get_num_threads() if _module.openmp else 1,
        *means.shape,
        factors.shape[-1],
        target.data_ptr(),
        logits.data_ptr(),
        means.data_ptr(),
        factors.data_ptr(),
        0 if weights is None else weights.data_ptr(),
        loss.data_ptr(),
        *[0 if gradient is None else gradient.data_ptr() for gradient in gradients],
        *target.stride(),
        *logits.stride(),
        *means.stride(),
        *factors.stride(),
        0 if weights is None else weights.stride(0),
    )


def forward(*inputs: Tensor) -> tuple[Tensor, Any]:
    """Return the loss of each row, and what `backward` needs: the inputs again.

    Reading the factors a second time costs less than writing and reading what would spare it.
    """
    loss = inputs[0].new_empty(len(inputs[0]))
    _run(inputs, None, loss, (None,) * 4)
    return loss, inputs


def backward(state: Any, weights: Tensor, to_target: bool) -> tuple[Tensor | None, ...]:
    """Return the gradients of Σ weights · loss."""
    return total(*state, weights=weights, to_target=to_target)[1]


def total(
    *inputs: Tensor, weights: Tensor | None, to_target: bool
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return the loss of each row and the gradients of Σ weights · loss, in one pass."""
    target, logits, means, factors = inputs
    results = (
        _like(target) if to_target else None,
        _like(logits),
        _like(means),
        _like(factors),
    )
    return into(results, *inputs, weights=weights), results


def into(gradients: tuple[Tensor | None, ...], *inputs: Tensor, weights: Tensor | None) -> Tensor:
    """Return the loss of each row; write the gradients, which have the inputs' strides."""
    loss = inputs[0].new_empty(len(inputs[0]))
    _run(inputs, weights, loss, gradients)
    return loss


def _like(tensor: Tensor) -> Tensor:
    # Not empty_like, which would lay out a view with gaps or overlaps anew.
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


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
        torch.get_num_threads() if _module.openmp else 1,
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
