"""Checks of what a user passes to a mixture, each with an error that says what to do."""

import math
import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

from condens.errors import (
    ArgumentError,
    NotFiniteError,
    NotPositiveDefiniteError,
    ShapeError,
    message,
)
from condens.functional.triangular import from_square_root, is_diagonal, unpack


def as_tensor(value: Any, like: Tensor) -> Tensor:
    """Return value as a floating tensor; arrays and numbers take dtype and device of `like`."""
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else value.to(like.dtype)
    return torch.as_tensor(np.asarray(value), dtype=like.dtype, device=like.device)


def check_parameters(logits: Tensor, means: Tensor, factors: Tensor) -> torch.Size:
    """Check that shapes and types fit together; return the batch shape."""
    axes = {"logits": "K", "means": "K, D", "factors": "K, T"}
    for (name, event), tensor in zip(axes.items(), (logits, means, factors), strict=True):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            came = f"is of type {getattr(tensor, 'dtype', type(tensor).__name__)}"
            expected = "a tensor of floating-point numbers was expected"
            remedy = f"Pass torch.as_tensor({name}, dtype=torch.float32)."
            raise ArgumentError(message(name, came, expected, remedy))
        if tensor.dim() < len(event.split()):
            expected = f"the shape [..., {event}] was expected"
            remedy = "Add the missing axes: a single Gaussian has K = 1, one dimension has D = 1."
            raise ShapeError(message(name, f"has shape {list(tensor.shape)}", expected, remedy))
    components, dimensions = means.shape[-2:]
    if components == 0 or dimensions == 0:
        expected = "at least one component and one dimension were expected"
        remedy = "Pass means with K ≥ 1 and D ≥ 1."
        raise ShapeError(message("means", f"has shape {list(means.shape)}", expected, remedy))
    for name, count in (("logits", logits.shape[-1]), ("factors", factors.shape[-2])):
        if count != components:
            came, expected = f"has {count} components", f"means has {components}"
            remedy = f"Pass one entry of {name} for each mean."
            raise ShapeError(message(name, came, expected, remedy))
    is_diagonal(factors, dimensions)
    try:
        return torch.broadcast_shapes(logits.shape[:-1], means.shape[:-2], factors.shape[:-2])
    except RuntimeError:
        shapes = ", ".join(str(list(t.shape)) for t in (logits, means, factors))
        came = f"have shapes {shapes}"
        expected = "their leading (batch) axes must broadcast"
        remedy = "Make the axes before K equal, or one."
        raise ShapeError(message("logits, means and factors", came, expected, remedy)) from None


def check_values(logits: Tensor, means: Tensor, factors: Tensor) -> None:
    """Check that every parameter can be computed with."""
    remedy = "If a network made it, its input or its weights are not finite: check both."
    for name, tensor in (("means", means), ("factors", factors)):
        check_finite(name, tensor, remedy)
    if bool((logits.isnan() | logits.isposinf()).any()):
        check_finite("logits", logits.masked_fill(logits.isneginf(), 0), remedy)
    if bool(logits.isneginf().all(-1).any()):
        came = "is −inf for every component of a mixture"
        expected = "at least one component must have weight"
        raise NotFiniteError(
            message("logits", came, expected, "Give one component a finite logit.")
        )
    log_diagonal = factors.detach()[..., : means.shape[-1]]
    # Half the exponent range: squares of the scales, and their inverses, exist too.
    largest = 0.5 * math.log(torch.finfo(factors.dtype).max)
    if log_diagonal.numel() and float(log_diagonal.abs().max()) > largest:
        came = f"has a log-diagonal of {float(log_diagonal.abs().max()):.4g} in absolute value"
        expected = f"{factors.dtype} holds scales up to exp({largest:.4g})"
        remedy = "Standardise the target, or use float64."
        raise NotFiniteError(message("factors", came, expected, remedy))


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
    """Return value as a tensor [..., D] that broadcasts against the batch."""
    value, dimensions = as_tensor(value, means), means.shape[-1]
    came = f"has shape {list(value.shape)}"
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
    levels = as_tensor(value, means)
    if bool((~((levels >= 0) & (levels <= 1))).any()):
        came, expected = "has an entry outside [0, 1]", "probabilities were expected"
        raise ArgumentError(message("value", came, expected, "For the median, pass 0.5."))
    check_leading("value", levels.shape, levels.shape, batch)
    return levels


def check_affine(linear: Any, loc: Any, means: Tensor, batch: torch.Size) -> tuple[Tensor, Tensor]:
    """Return a scale [D] or a matrix [..., M, D], and the loc [..., M] that goes with it."""
    name, dimensions = "matrix_or_scale", means.shape[-1]
    linear, loc = as_tensor(linear, means), as_tensor(loc, means)
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
    check_leading("loc", loc.shape, loc.shape[:-1], batch)
    return linear, loc.expand(*loc.shape[:-1], rows)


def check_mass(name: str, mass: float) -> float:
    """Check that a probability mass lies strictly between 0 and 1."""
    if not 0 < mass < 1:
        expected = "a number between 0 and 1, both excluded, was expected"
        raise ArgumentError(message(name, f"is {mass}", expected, "For 90 %, pass 0.9."))
    return float(mass)


def check_count(name: str, count: int) -> int:
    """Check that a number of draws allows a standard error."""
    if operator.index(count) < 2:
        raise ArgumentError(
            message(name, f"is {count}", "a standard error needs 2", "Pass 1000 or more.")
        )
    return operator.index(count)


def log_weights(weights: Tensor) -> Tensor:
    """Return logits of weights; a weight of zero becomes −inf, with a gradient of zero."""
    if bool((~(weights >= 0) | weights.isinf()).any()) or bool((weights.sum(-1) <= 0).any()):
        came = "has an entry that is negative or not finite, or sums to zero"
        expected = "each weight must be 0 or more, and one of them positive"
        raise ArgumentError(message("weights", came, expected, "Pass logits if they are logs."))
    empty = weights == 0
    return torch.where(empty, -torch.inf, torch.where(empty, 1.0, weights).log())


def check_square(name: str, matrices: Tensor, means: Tensor) -> None:
    """Check that there is a finite D×D matrix for each component."""
    if matrices.dim() < 3 or matrices.shape[-3:] != (*means.shape[-2:], means.shape[-1]):
        came = f"has shape {list(matrices.shape)}"
        expected = f"means of shape {list(means.shape)} need [..., K, D, D]"
        remedy = "Pass one D×D matrix for each component."
        raise ShapeError(message(name, came, expected, remedy))
    check_finite(name, matrices, "Check how the matrices were computed.")


def cholesky(name: str, matrices: Tensor, means: Tensor) -> Tensor:
    """Return the lower Cholesky factor of symmetric positive definite matrices."""
    check_square(name, matrices, means)
    size = matrices.abs().amax((-1, -2), keepdim=True)
    asymmetry = (matrices - matrices.mT).abs() / size
    if bool((asymmetry > 1e3 * torch.finfo(matrices.dtype).eps).any()):
        came, expected = "is not symmetric", "symmetric matrices were expected"
        raise NotPositiveDefiniteError(
            message(name, came, expected, "Pass 0.5 * (matrix + matrix.mT) if that is meant.")
        )
    root, info = torch.linalg.cholesky_ex(matrices)
    if bool((info != 0).any()):
        where = (info != 0).nonzero()[0].tolist()
        lowest = float(torch.linalg.eigvalsh(matrices[tuple(where)].detach())[0])
        came = f"at index {where} has the smallest eigenvalue {lowest:.4g}"
        expected = "every matrix must be positive definite"
        remedy = "Add a small multiple of the identity, or drop dimensions that repeat others."
        raise NotPositiveDefiniteError(message(name, came, expected, remedy))
    return root


def check_lower(name: str, roots: Tensor, means: Tensor) -> None:
    """Check that matrices are lower triangular with a positive diagonal."""
    check_square(name, roots, means)
    if bool((roots.triu(1) != 0).any()) or bool((roots.diagonal(dim1=-2, dim2=-1) <= 0).any()):
        came = "is not lower triangular with a positive diagonal"
        expected = "Cholesky factors of covariances were expected"
        remedy = "Pass torch.linalg.cholesky(covariances), or use from_covariances."
        raise NotPositiveDefiniteError(message(name, came, expected, remedy))


def gaussian_factor(gaussian: Distribution) -> tuple[Tensor, Tensor] | None:
    """Return mean and dense precision factor of torch's Gaussians; None for anything else."""
    if isinstance(gaussian, MultivariateNormal):
        loc, root = gaussian.loc, gaussian.scale_tril
    elif isinstance(gaussian, Independent) and isinstance(gaussian.base_dist, Normal):
        loc, root = gaussian.base_dist.loc, torch.diag_embed(gaussian.base_dist.scale)
    else:
        return None
    return loc, unpack(from_square_root(root), loc.shape[-1])
