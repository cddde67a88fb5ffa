"""Checks of what a user passes to a mixture, each with an error that says what to do."""

import math
import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from condens.errors import ArgumentError, NotFiniteError, ShapeError, message
from condens.functional.dtypes import widen
from condens.functional.low_rank import largest_ratio


def as_tensor(name: str, value: Any, like: Tensor | None = None) -> Tensor:
    """Return value as a real floating tensor, on the device of `like`.

    Arrays keep their precision, and so do numbers that are asked about (`like` given):
    answers are computed in double precision.
    """
    try:
        if not isinstance(value, Tensor):
            # torch warns of memory that may not be written, such as a data frame's.
            array = value if like is None else np.require(np.asarray(value), requirements="W")
            value = torch.as_tensor(array)
            value = value if like is None else value.to(like.device)
    except (TypeError, ValueError, RuntimeError):
        came, expected = f"is {type(value).__name__}", "numbers were expected"
        remedy = "Pass a tensor, an array or a list of numbers."
        raise ArgumentError(message(name, came, expected, remedy)) from None
    if value.is_complex():
        expected = "real numbers were expected"
        remedy = "Pass real and imaginary parts as two dimensions."
        raise ArgumentError(message(name, "is complex", expected, remedy))
    if not value.is_floating_point():
        value = value.to(torch.get_default_dtype() if like is None else like.dtype)
    return value


def check_sizes(tensors: Mapping[str, Tensor], axes: Mapping[str, str]) -> None:
    """Check that every tensor has the axes of one mixture, and as many components and dimensions.

    `axes` names them, such as {"means": "K, D"}; the sizes of K and D are those of the means.
    """
    for name, event in axes.items():
        check_axes(name, tensors[name], event)
    means = tensors["means"]
    components, dimensions = means.shape[-2:]
    if components == 0 or dimensions == 0:
        expected = "at least one component and one dimension were expected"
        remedy = "Pass means with K ≥ 1 and D ≥ 1."
        raise ShapeError(message("means", f"has shape {list(means.shape)}", expected, remedy))
    for letter, size, word in (("K", components, "component"), ("D", dimensions, "dimension")):
        for name, event in axes.items():
            letters = event.split(", ")
            if letter not in letters:
                continue
            count = tensors[name].shape[letters.index(letter) - len(letters)]
            if count != size:
                came, expected = f"has {count} {word}s", f"means has {size}"
                remedy = f"Pass one entry of {name} for each {word} of means."
                raise ShapeError(message(name, came, expected, remedy))


def check_batch(tensors: Mapping[str, Tensor], axes: Mapping[str, str]) -> torch.Size:
    """Check that the axes before those of one mixture broadcast; return the batch shape."""
    leading = [tensors[name].shape[: -len(event.split())] for name, event in axes.items()]
    try:
        return torch.broadcast_shapes(*leading)
    except RuntimeError:
        came = f"have shapes {', '.join(str(list(tensor.shape)) for tensor in tensors.values())}"
        expected = "their leading (batch) axes must broadcast"
        *others, last = tensors
        which = f"{', '.join(others)} and {last}"
        remedy = "Make the axes before K equal, or one."
        raise ShapeError(message(which, came, expected, remedy)) from None


def check_axes(name: str, tensor: Tensor, event: str) -> None:
    """Check that a tensor has at least the axes of one mixture."""
    if tensor.dim() < len(event.split()):
        came, expected = f"has shape {list(tensor.shape)}", f"[..., {event}] was expected"
        remedy = "Add the missing axes: a single Gaussian has K = 1, one dimension has D = 1."
        raise ShapeError(message(name, came, expected, remedy))


def check_values(logits: Tensor, **others: Tensor) -> None:
    """Check that logits are log weights, and that every other parameter is finite."""
    remedy = "Check what it was computed from; values beyond the dtype's range need float64."
    for name, tensor in others.items():
        check_finite(name, tensor, remedy)
    if bool((logits.isnan() | logits.isposinf()).any()):
        check_finite("logits", logits.masked_fill(logits.isneginf(), 0), remedy)
    if bool(logits.isneginf().all(-1).any()):
        came = "is −inf for every component of a mixture"
        expected = "at least one component must have weight"
        raise NotFiniteError(
            message("logits", came, expected, "Give one component a finite logit.")
        )


def check_log_scales(name: str, entry: str, log_scales: Tensor) -> None:
    """Check that scales given as logarithms fit the dtype."""
    # Half the exponent range: squares of the scales, and their inverses, exist too.
    largest = 0.5 * math.log(torch.finfo(log_scales.dtype).max)
    if log_scales.numel() and float(log_scales.detach().abs().max()) > largest:
        came = f"has a {entry} of {float(log_scales.detach().abs().max()):.4g} in absolute value"
        expected = f"{log_scales.dtype} holds scales up to exp({largest:.4g})"
        remedy = "Standardise the target, or use float64."
        raise NotFiniteError(message(name, came, expected, remedy))


def check_rank(loadings: Tensor) -> None:
    """Check that there is at least one factor."""
    if loadings.shape[-1] == 0:
        came, expected = f"has shape {list(loadings.shape)}", "[..., K, D, r] needs r ≥ 1"
        remedy = "For diagonal covariances, take GaussianMixture with −log_scales as factors."
        raise ShapeError(message("loadings", came, expected, remedy))


def check_loadings(log_scales: Tensor, loadings: Tensor) -> None:
    """Check that loadings have squares in their dtype, and leave room for the scales' digits."""
    largest = torch.finfo(loadings.dtype).max ** 0.5
    log_scales, loadings = widen(log_scales.detach(), loadings.detach())
    size = loadings.abs().amax(-1)
    if size.numel() and float(size.max()) > largest:
        came = f"has an entry of {float(size.max()):.4g} in absolute value"
        expected = f"its dtype holds squares of up to {largest:.4g}"
        remedy = "Standardise the target, or use float64."
        raise NotFiniteError(message("loadings", came, expected, remedy))
    ratio, bound = size * (-log_scales).exp(), largest_ratio(loadings.dtype)
    if ratio.numel() and float(ratio.max()) > bound:
        came = f"has an entry {float(ratio.max()):.2g} times its scale"
        expected = f"beyond {bound:.2g} double precision does not resolve the two"
        remedy = "Raise log_scales, for instance by a floor on the scales."
        raise NotFiniteError(message("loadings", came, expected, remedy))


def check_finite(name: str, tensor: Tensor, remedy: str) -> None:
    """Refuse NaN and infinities, and tell where the first one is."""
    bad = ~tensor.isfinite()
    if bool(bad.any()):
        where = bad.nonzero()[0].tolist()
        came = f"has {int(bad.sum())} value(s) that are NaN or infinite, the first at index {where}"
        raise NotFiniteError(message(name, came, "finite numbers were expected", remedy))


def check_event(
    name: str, value: Any, batch: torch.Size, means: Tensor, *, allow_nan: bool
) -> Tensor:
    """Return value as a tensor [..., D] that broadcasts against the batch.

    For D = 1 a number for each member of the batch, without the last axis, will do.
    """
    value, dimensions = as_tensor(name, value, means), means.shape[-1]
    came = f"has shape {list(value.shape)}"
    if dimensions == 1 and value.shape == batch and value.shape[-1:] != (1,):
        value = value.unsqueeze(-1)
    if value.dim() == 0 or value.shape[-1] != dimensions:
        expected = f"its last axis must hold the {dimensions} dimension(s) of the mixture"
        remedy = (
            f"Add the axis: {name}[..., None]."
            if dimensions == 1
            else "Pass every dimension, or take marginal(dims) first."
        )
        raise ShapeError(message(name, came, expected, remedy))
    check_leading(name, value.shape, value.shape[:-1], batch)
    if not allow_nan and bool(value.isnan().any()):
        expected = "a density is defined for numbers only"
        remedy = "Drop those rows, or take marginal(dims) over the dimensions that were observed."
        raise NotFiniteError(message(name, "has NaN", expected, remedy))
    return value


def check_leading(name: str, shape: torch.Size, leading: torch.Size, batch: torch.Size) -> None:
    """Check that the leading axes of a shape broadcast against the batch shape."""
    try:
        torch.broadcast_shapes(leading, batch)
    except RuntimeError:
        came = f"has shape {list(shape)}"
        expected = f"its leading axes must broadcast against the batch shape {list(batch)}"
        remedy = "Put further axes in front of the batch's, and give each batch axis its size or 1."
        raise ShapeError(message(name, came, expected, remedy)) from None


def check_probabilities(value: Any, batch: torch.Size, means: Tensor) -> Tensor:
    """Return value as a tensor of probabilities that broadcasts against the batch."""
    levels = as_tensor("value", value, means)
    if bool((~((levels >= 0) & (levels <= 1))).any()):
        came, expected = "has an entry outside [0, 1]", "probabilities were expected"
        raise ArgumentError(message("value", came, expected, "For the median, pass 0.5."))
    check_leading("value", levels.shape, levels.shape, batch)
    return levels


def check_affine(linear: Any, loc: Any, means: Tensor, batch: torch.Size) -> tuple[Tensor, Tensor]:
    """Return a scale [D] or a matrix [..., M, D], and the loc [..., M] that goes with it."""
    name, dimensions = "matrix_or_scale", means.shape[-1]
    linear, loc = as_tensor(name, linear, means), as_tensor("loc", loc, means)
    check_finite(name, linear, "Check how it was computed.")
    check_finite("loc", loc, "Check how it was computed.")
    if linear.dim() == 0:
        linear = linear.expand(dimensions)
    rows = linear.shape[-1] if linear.dim() == 1 else linear.shape[-2]
    if linear.shape[-1] != dimensions or not 1 <= rows <= dimensions:
        came = f"has shape {list(linear.shape)}"
        expected = f"a number, [{dimensions}] or [..., M, {dimensions}] with M ≤ {dimensions} fits"
        remedy = "More outputs than dimensions have no density."
        raise ShapeError(message(name, came, expected, remedy))
    if linear.dim() == 1 and bool((linear == 0).any()):
        came, expected = "has a zero", "a dimension scaled by zero has no density"
        remedy = "Drop that dimension with marginal(dims)."
        raise ArgumentError(message(name, came, expected, remedy))
    if linear.dim() > 1:
        check_leading(name, linear.shape, linear.shape[:-2], batch)
    if loc.dim() and loc.shape[-1] != rows:
        came, expected = f"has shape {list(loc.shape)}", f"the map has {rows} output(s)"
        raise ShapeError(message("loc", came, expected, f"Pass a number or [{rows}]."))
    leading = linear.shape[:-2] if linear.dim() > 1 else torch.Size()
    check_leading("loc", loc.shape, loc.shape[:-1], torch.broadcast_shapes(leading, batch))
    return linear, loc.expand(*loc.shape[:-1], rows)


def check_direction(direction: Any, means: Tensor, batch: torch.Size) -> Tensor:
    """Return a direction as a tensor [..., D] that is nowhere zero."""
    direction = check_event("direction", direction, batch, means, allow_nan=False)
    check_finite("direction", direction, "Check how it was computed.")
    if bool((direction == 0).all(-1).any()):
        expected = "a projection needs a direction"
        remedy = "Pass one with an entry that is not zero."
        raise ArgumentError(message("direction", "is zero", expected, remedy))
    return direction


def check_mass(name: str, mass: float) -> float:
    """Check that a probability mass lies strictly between 0 and 1."""
    try:
        number = float(mass)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not 0 < number < 1:
        expected = "one number between 0 and 1, both excluded, was expected"
        raise ArgumentError(message(name, f"is {mass}", expected, "For 90 %, pass 0.9."))
    return number


def check_count(name: str, count: int, *, mass: float | None = None) -> int:
    """Check that a number of draws allows a standard error, on both sides of a mass."""
    try:
        count = operator.index(count)
    except TypeError:
        expected = "a whole number was expected"
        raise ArgumentError(message(name, f"is {count!r}", expected, "Pass an int.")) from None
    least = 2 if mass is None else math.ceil(10 / min(mass, 1 - mass))
    if count < least:
        remedy = f"Pass {max(least, 1000)} or more."
        expected = f"a standard error needs at least {least}"
        raise ArgumentError(message(name, f"is {count}", expected, remedy))
    return count


def check_shape(name: str, shape: Any) -> tuple[int, ...]:
    """Check a shape of samples."""
    try:
        sizes = tuple(operator.index(size) for size in shape)
    except TypeError:
        sizes = (-1,)
    if any(size < 0 for size in sizes):
        expected = "a tuple of sizes was expected"
        remedy = "For 1000 draws, pass (1000,)."
        raise ShapeError(message(name, f"is {shape!r}", expected, remedy))
    return sizes
