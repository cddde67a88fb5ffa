"""What an invertible block is given: the forms of its condition, and checks of each part."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from condens.errors import ArgumentError, KindError, NotFiniteError, ShapeError
from condens.functional.fused_linear import Layout
from condens.functional.tracing import anywhere
from condens.functional.triangular import packed_size


def read(c: Any, dimensions: int) -> tuple[Tensor, Tensor, Tensor, Any]:
    """Return w, mu, U and i of a condition in any of its forms."""
    parts = [c] if isinstance(c, Tensor) else list(c if c is not None else ())
    if len(parts) == 1 and isinstance(parts[0], list | tuple):
        parts = list(parts[0])
    if not 1 <= len(parts) <= 4:
        raise ArgumentError(
            "c",
            got=f"has {len(parts)} entries",
            expected="[w, mu, U, i], [packed, i] or [packed] was expected",
            fix="Pass the mixture's parameters as the condition.",
        )
    tensors, choice = (parts, None) if len(parts) % 2 else (parts[:-1], parts[-1])
    for name, tensor in zip(
        ("w", "mu", "U") if len(tensors) == 3 else ("packed",), tensors, strict=True
    ):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            raise KindError(
                name,
                got=f"is {tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__}",
                expected="a tensor of real numbers was expected",
                fix="Check the order of c.",
            )
    w, means, factors = tensors if len(tensors) == 3 else _unpacked(tensors[0], dimensions)
    _check_sizes(w, means, factors, dimensions)
    return w, means, factors, choice


def _unpacked(packed: Tensor, dimensions: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights, means and factors of a packed condition."""
    single = Layout.of(1, dimensions).outputs
    if packed.dim() != 2 or packed.shape[1] % single or not packed.shape[1]:
        raise ShapeError(
            "packed",
            got=f"has shape {list(packed.shape)}",
            expected=f"[b, {single}·K] was expected for {dimensions} dimensions",
            fix="Make it with GaussianMixtureBlock.pack(logits, means, factors).",
        )
    layout = Layout.of(packed.shape[1] // single, dimensions)
    logits, means, factors = layout.split(packed)
    return torch.softmax(logits, -1), means, factors


def _check_sizes(w: Tensor, means: Tensor, factors: Tensor, dimensions: int) -> None:
    """Check that the parameters are those of one batch of mixtures."""
    full = packed_size(dimensions)
    _check_axes(w)
    if means.shape != (*w.shape, dimensions):
        raise ShapeError(
            "mu",
            got=f"has shape {list(means.shape)}",
            expected=f"{[*w.shape, dimensions]} was expected",
            fix="Its axes are those of w [b, K], then the dimensions of x.",
        )
    if factors.shape != (*w.shape, full) and factors.shape != means.shape:
        raise ShapeError(
            "U",
            got=f"has shape {list(factors.shape)}",
            expected=f"{[*w.shape, full]} was expected",
            fix=f"Pass D log-diagonals, then the strict upper triangle; or {dimensions} alone.",
        )


def one_input(x: Sequence[Tensor], means: Tensor, *, alone: bool) -> Tensor:
    """Return the input of a list of one, which must fit the means [b, K, D]."""
    if isinstance(x, Tensor) or len(x) != 1:
        raise ArgumentError(
            "x",
            got="is a tensor" if isinstance(x, Tensor) else f"has {len(x)} inputs",
            expected="a list of one tensor was expected",
            fix="Pass [x], as to any FrEIA block.",
        )
    rows, _, dimensions = means.shape
    shapes = [(rows, dimensions)] if alone else [(rows, dimensions), tuple(means.shape)]
    if tuple(x[0].shape) not in shapes:
        raise ShapeError(
            "x",
            got=f"has shape {list(x[0].shape)}",
            expected=f"{' or '.join(str(list(shape)) for shape in shapes)} was expected",
            fix="Give x and the condition as many rows; only all components take one x each.",
        )
    return x[0]


def seeded(seed: int, device: torch.device) -> Generator:
    """Return a generator of its own that begins at the seed."""
    try:
        return Generator(device).manual_seed(operator.index(seed))
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(
            "seed",
            got=f"is {seed!r}",
            expected="a whole number of 64 bits was expected",
            fix="Pass an int, or None to go on with torch's generator.",
        ) from None


def check_weights(w: Tensor) -> None:
    """Refuse what cannot be weights [b, K]; logits above all."""
    _check_axes(w)
    slack = max(1e-3, 4 * torch.finfo(w.dtype).eps)
    total = w.detach().sum(-1)
    if anywhere(~((total - 1).abs() <= slack)) or anywhere(~(w.detach() >= 0)):
        came = f"has entries from {float(w.min()):.4g} and sums from {float(total.min()):.4g}"
        raise NotFiniteError(
            "w",
            got=f"{came} to {float(total.max()):.4g}",
            expected="weights that are not negative and sum to one were expected",
            fix="Pass logits through normalize_weights first, and look for NaN.",
        )


def _check_axes(w: Tensor) -> None:
    if w.dim() != 2 or not w.shape[1]:
        raise ShapeError(
            "w",
            got=f"has shape {list(w.shape)}",
            expected="[b, K] with K ≥ 1 was expected",
            fix="Pass the weights of every component, in a row for each row of x.",
        )
