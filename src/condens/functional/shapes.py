"""The sizes that the tensors of one mixture share, and functions that check them."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from condens.errors import KindError, ShapeError
from condens.functional.triangular import is_diagonal

# Axes of one mixture; those in front are the batch's and broadcast.
AXES: Mapping[str, str] = {"logits": "K", "means": "K, D", "factors": "K, T"}

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R], *, dimensions: int | None = None) -> Callable[P, R]:
    """Return a function of a mixture's tensors that refuses shapes which do not fit.

    torch would broadcast a target over dimensions, or a weight over components, and the answer
    would be another mixture's. With `dimensions`, only so many are allowed.
    """
    names = tuple(inspect.signature(function).parameters)

    @wraps(function)
    def door(*args: P.args, **options: P.kwargs) -> R:
        _check({**dict(zip(names, args, strict=False)), **options}, dimensions)
        return function(*args, **options)

    return door


def _check(given: Mapping[str, Any], dimensions: int | None) -> None:
    own = {name: axes for name, axes in AXES.items() if name in given}
    asked = next((name for name in ("target", "probability") if name in given), None)
    for name in own if asked is None else (asked, *own):
        if not isinstance(given[name], Tensor) or not given[name].is_floating_point():
            raise KindError(
                name,
                got=f"is {getattr(given[name], 'dtype', type(given[name]).__name__)}",
                expected="a tensor of real numbers was expected",
                fix="Convert it; mixtures take arrays too.",
            )
    if not {"means", "factors"} <= set(own):
        return  # the call itself says what is missing
    means, factors = given["means"], given["factors"]
    if means.dim() < 2 or not _alike(given, means.shape):
        check_sizes(given, own)
        _check_asked(asked, given, means.shape[-1], check_batch(given, own))
    is_diagonal(factors, means.shape[-1])
    if dimensions is not None and means.shape[-1] != dimensions:
        raise ShapeError(
            "means",
            got=f"has {means.shape[-1]} dimensions",
            expected=f"{dimensions} was expected",
            fix="Take a marginal first.",
        )


def _alike(given: Mapping[str, Any], shape: torch.Size) -> bool:
    """Tell whether nothing needs to be broadcast: the usual case, told in no time."""
    batch, components, dimensions = shape[:-2], shape[-2], shape[-1]
    return (
        components * dimensions > 0
        and given["factors"].shape[:-1] == shape[:-1]
        and ("logits" not in given or given["logits"].shape == shape[:-1])
        and ("target" not in given or given["target"].shape == (*batch, dimensions))
        and ("probability" not in given or given["probability"].shape == batch)
    )


def _check_asked(
    name: str | None, given: Mapping[str, Any], dimensions: int, batch: torch.Size
) -> None:
    """Check that a target [..., D], or a probability [...], broadcasts against the batch."""
    if name is None:
        return
    shape: torch.Size = given[name].shape
    if name == "target" and shape[-1:] != (dimensions,):
        raise ShapeError(
            name,
            got=f"has shape {list(shape)}",
            expected=f"means has {dimensions} dimension(s)",
            fix="Give its last axis as many.",
        )
    try:
        torch.broadcast_shapes(batch, shape[:-1] if name == "target" else shape)
    except RuntimeError:
        raise ShapeError(
            name,
            got=f"has shape {list(shape)}",
            expected=f"its leading axes must broadcast against the batch shape {list(batch)}",
            fix="Put further axes in front, and give each batch axis its size or 1.",
        ) from None


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
    leading = [tensors[name].shape[: -len(event.split())] for name, event in axes.items()]
    try:
        return torch.broadcast_shapes(*leading)
    except RuntimeError:
        came = f"have shapes {', '.join(str(list(tensor.shape)) for tensor in tensors.values())}"
        expected = "their leading (batch) axes must broadcast"
        *others, last = tensors
        raise ShapeError(
            f"{', '.join(others)} and {last}",
            got=came,
            expected=expected,
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
