"""Checks of the shapes that the tensors of a mixture share."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from condens.errors import KindError, ShapeError
from condens.kernels.checks import check_device, check_strided
from condens.kernels.packing import is_diagonal

# Axes of one mixture; those in front are the batch's and broadcast.
AXES: Mapping[str, str] = {
    "target": "D",
    "probability": "",
    "logits": "K",
    "means": "K, D",
    "factors": "K, T",
}

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R], *, dimensions: int | None = None) -> Callable[P, R]:
    """Return a function of a mixture's tensors that refuses shapes which do not fit.

    torch would broadcast a target over dimensions, or a weight over components, and the answer
    would be another mixture's. With `dimensions`, only so many are allowed.
    """
    names = tuple(inspect.signature(function).parameters)

    @wraps(function)
    def wrapper(*args: P.args, **options: P.kwargs) -> R:
        given = {**dict(zip(names, args, strict=False)), **options}
        tensors: dict[str, Any] = {name: given[name] for name in AXES if name in given}
        if {"means", "factors"} <= tensors.keys():  # else the call itself names what it lacks
            check_mixture(tensors, dimensions)
        return function(*args, **options)

    return wrapper


def check_mixture(tensors: Mapping[str, Tensor], dimensions: int | None = None) -> torch.Size:
    """Return the batch shape of a mixture's tensors, or raise a named error.

    They are means and factors, and any others of `AXES`.
    """
    for name, tensor in tensors.items():
        check_strided(name, tensor)
        if not tensor.is_floating_point():
            raise KindError(
                name,
                got=f"is {tensor.dtype}",
                expected="real numbers were expected",
                fix=f"Convert it: {name}.float().",
            )
    means, axes = tensors["means"], {name: AXES[name] for name in tensors}
    for name, tensor in tensors.items():
        check_device(name, tensor, means)
    check_sizes(tensors, axes)
    is_diagonal(tensors["factors"], means.shape[-1])
    if dimensions is not None and means.shape[-1] != dimensions:
        raise ShapeError(
            "means",
            got=f"has {means.shape[-1]} dimensions",
            expected=f"{dimensions} was expected",
            fix="Take a marginal first.",
        )
    return check_batch(tensors, axes)


def check_sizes(tensors: Mapping[str, Tensor], axes: Mapping[str, str]) -> None:
    """Check that every tensor has the axes of one mixture, and as many components and dimensions.

    `axes` names them, such as {"means": "K, D"}; the sizes of K and D are those of the means.
    """
    for name, event in axes.items():
        check_axes(name, tensors[name], event)
    means = tensors["means"]
    components, dimensions = means.shape[-2:]
    if components == 0 or dimensions == 0:
        raise ShapeError(
            "means",
            got=f"has shape {list(means.shape)}",
            expected="at least one component and one dimension were expected",
            fix="Pass means with K ≥ 1 and D ≥ 1.",
        )
    for letter, size, word in (("K", components, "component"), ("D", dimensions, "dimension")):
        for name, event in axes.items():
            letters = event.split(", ")
            if letter not in letters:
                continue
            count = tensors[name].shape[letters.index(letter) - len(letters)]
            if count != size:
                raise ShapeError(
                    name,
                    got=f"has {count} {word}s",
                    expected=f"means has {size}",
                    fix=f"Pass one entry of {name} for each {word} of means.",
                )


def check_batch(tensors: Mapping[str, Tensor], axes: Mapping[str, str]) -> torch.Size:
    """Check that the axes before those of one mixture broadcast; return the batch shape."""
    leading = [
        tensors[name].shape[: tensors[name].dim() - len(event.split())]
        for name, event in axes.items()
    ]
    if all(shape == leading[0] for shape in leading):  # broadcast_shapes takes its time
        return leading[0]
    try:
        return torch.broadcast_shapes(*leading)
    except RuntimeError:
        *others, last = tensors
        raise ShapeError(
            f"{', '.join(others)} and {last}",
            got=f"have shapes {', '.join(str(list(t.shape)) for t in tensors.values())}",
            expected="their leading (batch) axes must broadcast",
            fix="Make the axes before K equal, or one.",
        ) from None


def check_axes(name: str, tensor: Tensor, event: str) -> None:
    """Check that a tensor has at least the axes of one mixture."""
    if tensor.dim() < len(event.split()):
        raise ShapeError(
            name,
            got=f"has shape {list(tensor.shape)}",
            expected=f"[..., {event}] was expected",
            fix="Add the missing axes: a single Gaussian has K = 1, one dimension has D = 1.",
        )
