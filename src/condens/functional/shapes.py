"""Checks of the shapes that the tensors of a mixture share."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from condens.errors import KindError, ShapeError
from condens.kernels.checks import check_device, check_kind, check_strided
from condens.kernels.packing import is_diagonal
from condens.scalars import as_whole

# Axes of one mixture; those in front are the batch's and broadcast.
AXES: Mapping[str, str] = {
    "target": "D",
    "probability": "",
    "logits": "K",
    "means": "K, D",
    "factors": "K, T",
}

# Axes of the factor of one Gaussian, and of what it acts on.
FACTOR_AXES: Mapping[str, str] = {"upper": "D, D", "difference": "D", "latent": "D", "factors": "T"}
# The squares of more are no sizes.
MAX_DIMENSIONS = 2**31

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R], *, dimensions: int | None = None) -> Callable[P, R]:
    """Return a function of a mixture's tensors that refuses shapes which do not fit.

    torch would broadcast a target over dimensions, or a weight over components, and the answer
    would be another mixture's. With `dimensions`, only so many are allowed.
    """

    def check(given: Mapping[str, Any]) -> None:
        check_mixture({name: given[name] for name in AXES if name in given}, dimensions)

    return _checked(function, check)


def checked_factors(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function of packed factors, or of what they act on, that refuses what does not fit.

    The factors of one Gaussian are [T], and K is an axis like those of the batch.
    """
    return _checked(function, _check_factors)


def _checked(
    function: Callable[P, R], check: Callable[[Mapping[str, Any]], None]
) -> Callable[P, R]:
    """Return a function that first has its arguments, by name, checked."""
    parameters = inspect.signature(function).parameters
    names = tuple(parameters)
    needed = {name for name in names if parameters[name].default is inspect.Parameter.empty}

    @wraps(function)
    def wrapper(*args: P.args, **options: P.kwargs) -> R:
        given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **options}
        if needed <= given.keys():  # else the call itself names what it lacks
            check(given)
        return function(*args, **options)

    return wrapper


def _check_factors(given: Mapping[str, Any]) -> None:
    tensors = {name: given[name] for name in FACTOR_AXES if name in given}
    for name, tensor in tensors.items():
        _check_real(name, tensor)
        check_axes(name, tensor, FACTOR_AXES[name])
    if "upper" in tensors and tensors["upper"].shape[-1] != tensors["upper"].shape[-2]:
        raise ShapeError(
            "upper",
            got=f"has shape {list(tensors['upper'].shape)}",
            expected="[..., D, D] was expected",
            fix="Pass square matrices.",
        )
    dimensions = [tensor.shape[-1] for name, tensor in tensors.items() if name != "factors"]
    if "dimensions" in given:
        size = given["dimensions"]
        # Sizes in a graph may be symbols, which are no whole numbers yet.
        if not isinstance(size, torch.SymInt):
            size = as_whole("dimensions", size, 1, MAX_DIMENSIONS, fix="Pass D.")
        dimensions = [size]
    if "factors" not in tensors:
        return
    is_diagonal(tensors["factors"], dimensions[0])
    for name, tensor in tensors.items():
        check_kind(name, tensor, tensors["factors"])
    check_batch(tensors, {name: FACTOR_AXES[name] for name in tensors})


def _check_real(name: str, tensor: Any) -> None:
    """Refuse all but dense tensors of real numbers."""
    check_strided(name, tensor)
    # torch stores numbers of eight bits, and does not compute with them.
    if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
        raise KindError(
            name,
            got=f"is {tensor.dtype}",
            expected="real numbers were expected",
            fix=f"Convert it: {name}.float().",
        )


def check_mixture(tensors: Mapping[str, Tensor], dimensions: int | None = None) -> torch.Size:
    """Return the batch shape of a mixture's tensors, or raise a named error.

    They are means and factors, and any others of `AXES`.
    """
    for name, tensor in tensors.items():
        _check_real(name, tensor)
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
