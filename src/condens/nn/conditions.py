"""What an invertible block is given: the forms of its condition, and checks of each part."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from condens.errors import ArgumentError, KindError, NotFiniteError, ShapeError, message
from condens.functional.triangular import packed_size
from condens.kernels.head import Layout
from condens.tracing import anywhere


def read(c: Any, dimensions: int) -> tuple[Tensor, Tensor, Tensor, Any]:
    """Return w, mu, U and i of a condition in any of its forms."""
    parts = [c] if isinstance(c, Tensor) else list(c if c is not None else ())
    if len(parts) == 1 and isinstance(parts[0], list | tuple):
        parts = list(parts[0])
    if not 1 <= len(parts) <= 4:
        expected = "[w, mu, U, i], [packed, i] or [packed] was expected"
        remedy = "Pass the mixture's parameters as the condition."
        raise ArgumentError(message("c", f"has {len(parts)} entries", expected, remedy))
    tensors, choice = (parts, None) if len(parts) % 2 else (parts[:-1], parts[-1])
    for name, tensor in zip(
        ("w", "mu", "U") if len(tensors) == 3 else ("packed",), tensors, strict=True
    ):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            came = f"is {tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__}"
            expected, remedy = "a tensor of real numbers was expected", "Check the order of c."
            raise KindError(message(name, came, expected, remedy))
    w, means, factors = tensors if len(tensors) == 3 else _unpacked(tensors[0], dimensions)
    _check_sizes(w, means, factors, dimensions)
    return w, means, factors, choice


def _unpacked(packed: Tensor, dimensions: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights, means and factors of a packed condition."""
    single = Layout.of(1, dimensions).outputs
    if packed.dim() != 2 or packed.shape[1] % single or not packed.shape[1]:
        came = f"has shape {list(packed.shape)}"
        expected = f"[b, {single}·K] was expected for {dimensions} dimensions"
        remedy = "Make it with GaussianMixtureBlock.pack(logits, means, factors)."
        raise ShapeError(message("packed", came, expected, remedy))
    layout = Layout.of(packed.shape[1] // single, dimensions)
    logits, means, factors = layout.split(packed)
    return torch.softmax(logits, -1), means, factors


def _check_sizes(w: Tensor, means: Tensor, factors: Tensor, dimensions: int) -> None:
    """Check that the parameters are those of one batch of mixtures."""
    full = packed_size(dimensions)
    _check_axes(w)
    if means.shape != (*w.shape, dimensions):
        came, expected = f"has shape {list(means.shape)}", f"{[*w.shape, dimensions]} was expected"
        remedy = "Its axes are those of w [b, K], then the dimensions of x."
        raise ShapeError(message("mu", came, expected, remedy))
    if factors.shape != (*w.shape, full) and factors.shape != means.shape:
        came, expected = f"has shape {list(factors.shape)}", f"{[*w.shape, full]} was expected"
        remedy = f"Pass D log-diagonals, then the strict upper triangle; or {dimensions} alone."
        raise ShapeError(message("U", came, expected, remedy))


def one_input(x: Sequence[Tensor], means: Tensor, *, alone: bool) -> Tensor:
    """Return the input of a list of one, which must fit the means [b, K, D]."""
    if isinstance(x, Tensor) or len(x) != 1:
        came = "is a tensor" if isinstance(x, Tensor) else f"has {len(x)} inputs"
        expected, remedy = "a list of one tensor was expected", "Pass [x], as to any FrEIA block."
        raise ArgumentError(message("x", came, expected, remedy))
    rows, _, dimensions = means.shape
    shapes = [(rows, dimensions)] if alone else [(rows, dimensions), tuple(means.shape)]
    if tuple(x[0].shape) not in shapes:
        came = f"has shape {list(x[0].shape)}"
        expected = f"{' or '.join(str(list(shape)) for shape in shapes)} was expected"
        remedy = "Give x and the condition as many rows; only all components take one x each."
        raise ShapeError(message("x", came, expected, remedy))
    return x[0]


def seeded(seed: int, device: torch.device) -> Generator:
    """Return a generator of its own that begins at the seed."""
    try:
        return Generator(device).manual_seed(operator.index(seed))
    except (TypeError, ValueError, RuntimeError):
        expected = "a whole number of 64 bits was expected"
        remedy = "Pass an int, or None to go on with torch's generator."
        raise ArgumentError(message("seed", f"is {seed!r}", expected, remedy)) from None


def check_weights(w: Tensor) -> None:
    """Refuse what cannot be weights [b, K]; logits above all."""
    _check_axes(w)
    slack = max(1e-3, 4 * torch.finfo(w.dtype).eps)
    total = w.detach().sum(-1)
    if anywhere(~((total - 1).abs() <= slack)) or anywhere(~(w.detach() >= 0)):
        came = f"has entries from {float(w.min()):.4g} and sums from {float(total.min()):.4g}"
        came = f"{came} to {float(total.max()):.4g}"
        expected = "weights that are not negative and sum to one were expected"
        remedy = "Pass logits through normalize_weights first, and look for NaN."
        raise NotFiniteError(message("w", came, expected, remedy))


def _check_axes(w: Tensor) -> None:
    if w.dim() != 2 or not w.shape[1]:
        came, expected = f"has shape {list(w.shape)}", "[b, K] with K ≥ 1 was expected"
        remedy = "Pass the weights of every component, in a row for each row of x."
        raise ShapeError(message("w", came, expected, remedy))
