"""Draws from Gaussian mixtures."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from condens.errors import ArgumentError, KindError
from condens.functional.implicit import attach_gradient
from condens.functional.mixture import broadcast
from condens.functional.precision import widen
from condens.functional.shapes import check_mixture
from condens.functional.tracing import anywhere, checks_values
from condens.functional.triangular import unwhiten
from condens.kernels import native
from condens.kernels.checks import check_draws
from condens.kernels.choice import choose, traced, watched
from condens.scalars import as_whole

DRAWS_PER_BLOCK = 32  # that share a factor
NUMBERS_PER_CHUNK = 2**19  # of factors and noise, as many as a cache holds
MAX_NUMBERS = 2**48  # in a result: beyond any memory


def sample(
    logits: Tensor,
    means: Tensor,
    factors: Tensor,
    shape: Sequence[int] = (),
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Draw x = μₖ + Ūₖ⁻¹η with k ~ softmax(logits), η ~ N(0, I).

    Carries no gradient: `rsample` does. Shapes: → `[*shape, *batch, D]`.
    """
    check_mixture({"logits": logits, "means": means, "factors": factors})
    logits, means, factors = (t.detach() for t in broadcast(logits, means, factors))
    cumulative, uniform, noise = randomness(logits, means, _counts(shape, means), generator)
    return _draw(noise, uniform, cumulative, means, factors).reshape(*shape, *noise.shape[1:])


def rsample(
    logits: Tensor,
    means: Tensor,
    factors: Tensor,
    shape: Sequence[int] = (),
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Draw as `sample` does, with pathwise gradients for every parameter, logits included.

    The gradient of a sample average is an unbiased estimate of the gradient of the
    expectation. Weight moves between components through the density between them: where
    they hardly overlap, the draws that would carry the logits' gradient are too rare to occur,
    and neither the estimate nor its spread shows it.

    Shapes: → `[*shape, *batch, D]`.
    """
    check_mixture({"logits": logits, "means": means, "factors": factors})
    logits, means, factors = broadcast(logits, means, factors)
    cumulative, uniform, noise = randomness(logits, means, _counts(shape, means), generator)
    # In double: the density at a draw rounded to float32 is another one.
    noise, *wide = widen(noise, means.detach(), factors.detach())
    draws = _draw(noise, uniform, cumulative, *wide).reshape(*shape, *noise.shape[1:])
    return attach_gradient(draws, torch.zeros_like(draws), logits, means, factors)


def _counts(shape: Sequence[int], means: Tensor) -> Sequence[int]:
    """Return the shape of draws, checked outside of graphs, where sizes may be symbols."""
    if not checks_values():
        return shape
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise KindError(
            "shape",
            got=f"is {shape!r}",
            expected="the numbers of draws along every axis were expected",
            fix="Pass a tuple, such as (1000,).",
        )
    fix = "Pass the number of draws along every axis; ask for fewer at a time if they are many."
    numbers = math.prod(as_whole("shape", count, 0, MAX_NUMBERS, fix=fix) for count in shape)
    as_whole("shape", numbers * means.numel(), 0, MAX_NUMBERS, fix=fix)
    return shape


def randomness(
    logits: Tensor, means: Tensor, shape: Sequence[int], generator: Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return cumulative weights [*b, K], uniform [S, *b] in double, and noise [S, *b, D]."""
    cumulative = torch.softmax(widen(logits.detach()), -1).cumsum(-1).contiguous()
    size = (math.prod(shape), *logits.shape[:-1])
    check_generator(generator, means.device)
    # A generator that is None would keep symbolic sizes out of exported graphs.
    options: dict[str, Any] = {} if generator is None else {"generator": generator}
    options["device"] = means.device
    uniform = torch.rand(size, dtype=cumulative.dtype, **options)
    noise = torch.randn((*size, means.shape[-1]), dtype=means.dtype, **options)
    # No component is drawn by weights that are NaN, and a number would hide it.
    lost = cumulative[..., -1:].isnan()
    return cumulative, uniform, noise.masked_fill(lost, torch.nan) if anywhere(lost) else noise


def check_generator(generator: Any, device: torch.device) -> None:
    """Check that a generator, if there is one, draws on the device."""
    if not isinstance(generator, Generator | None):
        raise KindError(
            "generator",
            got=f"is {type(generator).__name__}",
            expected="a torch.Generator was expected",
            fix="Pass torch.Generator().manual_seed(0), or None to use torch's own.",
        )
    if generator is not None and generator.device.type != device.type:
        raise ArgumentError(
            "generator",
            got=f"draws on {generator.device}",
            expected=f"the mixture is on {device}",
            fix=f"Pass torch.Generator({device.type!r}).",
        )


def _in_rows(noise: Tensor, uniform: Tensor, *mixture: Tensor) -> tuple[Tensor, ...]:
    """Make one axis of the batch axes: noise [S, B, D], uniform [S, B], mixture [B, ...]."""
    draws, *batch, dimensions = noise.shape
    rows = math.prod(batch)
    return (
        noise.view(draws, rows, dimensions),
        uniform.view(draws, rows),
        *(t.reshape(rows, *t.shape[len(batch) :]) for t in mixture),
    )


def _draw(
    noise: Tensor, uniform: Tensor, cumulative: Tensor, means: Tensor, factors: Tensor
) -> Tensor:
    """Return x = μₖ + Ūₖ⁻¹η in the noise's dtype; its memory may be used for them.

    Shapes: noise [S, *b, D], uniform [S, *b], cumulative [*b, K], means [*b, K, D], factors
    [*b, K, T] → [S, B, D].
    """
    rows = _in_rows(noise, uniform, cumulative, means, factors)
    if torch._C._are_functorch_transforms_active() or (_native(*rows) and watched(means)):
        return torch.ops.condens.draw(*rows)
    return _draw_now(*rows)


def _draw_now(*tensors: Tensor) -> Tensor:
    if not _native(*tensors):
        return _solve(*tensors).view_as(tensors[0])
    native.draw(*tensors)
    return tensors[0]


def _native(noise: Tensor, _uniform: Tensor, _cumulative: Tensor, *components: Tensor) -> bool:
    """Tell whether the native kernel takes the draws: means and factors are of the noise's kind."""
    return choose(noise) is native and all(t.dtype is noise.dtype for t in components)


@torch.library.custom_op("condens::draw", mutates_args=())
def _operator(
    noise: Tensor, uniform: Tensor, cumulative: Tensor, means: Tensor, factors: Tensor
) -> Tensor:
    """Return draws as `_draw` does: an operator, for torch to record and anyone to call."""
    check_draws(noise, uniform, cumulative, means, factors)
    made = noise.clone(memory_format=torch.contiguous_format)
    return _draw_now(made, uniform.contiguous(), cumulative.contiguous(), means, factors)


@_operator.register_fake
def _(noise: Tensor, *_: Tensor) -> Tensor:
    return noise.new_empty(noise.shape)


@_operator.register_vmap
def _(info: Any, axes: Sequence[int | None], *tensors: Tensor) -> tuple[Tensor, int]:
    """Merge the axis of vmap with the batch's, which is the second of [S, B, …]."""
    merged = []
    for tensor, axis, place in zip(tensors, axes, (1, 1, 0, 0, 0), strict=True):
        if axis is None:
            tensor, axis = tensor.expand(info.batch_size, *tensor.shape), 0
        merged.append(tensor.movedim(axis, place).flatten(place, place + 1))
    return torch.ops.condens.draw(*merged).unflatten(1, (info.batch_size, -1)), 1


def _solve(
    noise: Tensor, uniform: Tensor, cumulative: Tensor, means: Tensor, factors: Tensor
) -> Tensor:
    """Return x = μₖ + Ūₖ⁻¹η in the noise's dtype, solved for blocks of draws that share a factor.

    The arithmetic is in double: a coordinate may be the small difference of large ones. Every
    shape follows from the arguments' shapes, so nothing waits for a device and torch.compile
    sees one graph.

    Shapes: noise [S, B, D], uniform [S, B], cumulative [B, K], means [B, K, D], factors
    [B, K, T] → [S·B, D].
    """
    components, dimensions = means.shape[-2:]
    width = max(1, min(DRAWS_PER_BLOCK, len(noise) // components))
    rows = noise.flatten(0, 1)
    order, chosen, start, stop = _blocks(_cells(uniform, cumulative), cumulative.numel(), width)
    lanes = torch.arange(width, device=noise.device)
    solved = rows.new_empty(len(rows) + 1, dimensions)
    size = max(1, NUMBERS_PER_CHUNK // (dimensions * (dimensions + width)))
    for first in range(0, len(chosen), size):
        part = slice(first, first + size)
        place = start[part, None] + lanes
        row = order[place.clamp(max=len(rows) - 1)]
        member, component = chosen[part] // components, chosen[part] % components
        latent, centre, factor = widen(
            # Not indexed: index_select moves whole rows, not number by number.
            rows.index_select(0, row.flatten()).unflatten(0, row.shape),
            means[member, component],
            factors[member, component],
        )
        draws = (unwhiten(latent.movedim(1, 0), factor) + centre).movedim(1, 0)
        # What fills up a block goes to a row that is never read.
        target = torch.where(place < stop[part, None], row, len(rows))
        solved.index_copy_(0, target.flatten(), draws.flatten(0, 1).to(rows.dtype))
    return solved[:-1]


def pick(uniform: Tensor, cumulative: Tensor) -> Tensor:
    """Return the components that uniform numbers fall to. Shapes: [S, *b], [*b, K] → [S, *b]."""
    total = cumulative[..., -1:]
    levels = (uniform.movedim(0, -1) * total).contiguous()
    index = torch.searchsorted(cumulative.contiguous(), levels, right=True)
    # Rounding may reach the total itself; a component without weight is never drawn.
    return torch.minimum(index, (cumulative < total).sum(-1, keepdim=True)).movedim(-1, 0)


def _cells(uniform: Tensor, cumulative: Tensor) -> Tensor:
    """Return bK + k for a draw of component k of member b. Shapes: [S, B], [B, K] → [S·B]."""
    batch, components = cumulative.shape
    cell = pick(uniform, cumulative) + components * torch.arange(batch, device=uniform.device)
    # Sorting takes a pass for every byte.
    return cell.flatten().to(torch.int32 if cumulative.numel() < 2**31 else torch.int64)


def _blocks(cell: Tensor, cells: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return draws sorted by cell, and for every block its cell and where it starts and stops.

    A block holds up to `width` sorted draws, from `start` on, of a cell that ends at `stop`.
    There are as many blocks as there might have to be; the last ones are empty.
    """
    ordered, order = cell.sort(stable=True)
    options: dict[str, Any] = {"device": cell.device, "dtype": cell.dtype}
    bounds = torch.searchsorted(ordered, torch.arange(cells + 1, **options))
    blocks = (bounds.diff() + width - 1) // width
    until = blocks.cumsum(0)
    most = (len(cell) + (width - 1) * min(cells, len(cell))) // width
    number = torch.arange(most, device=cell.device)
    chosen = torch.searchsorted(until, number, right=True).clamp(max=cells - 1)
    start = bounds[chosen] + width * (number - (until - blocks)[chosen])
    return order, chosen, start, bounds[chosen + 1]


def sample_components(
    means: Tensor, factors: Tensor, count: int, *, generator: Generator | None = None
) -> Tensor:
    """Draw from every component, with plain pathwise gradients: x = μₖ + Ūₖ⁻¹η.

    Shapes: → [count, ..., K, D].
    """
    noise = torch.randn(
        (count, *means.shape), dtype=means.dtype, device=means.device, generator=generator
    )
    wide_means, wide_noise, wide_factors = widen(means, noise, factors)
    return (wide_means + unwhiten(wide_noise, wide_factors)).to(means.dtype)


def from_latent(latent: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return x = μ + Ū⁻¹z of single Gaussians, with plain gradients.

    Shapes: latent [..., D], broadcast against means [..., D] with factors [..., T] → [..., D].
    """
    tensors = (latent, means, factors)
    dtype = torch.result_type(latent, means)
    differentiated = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    alike = all(t.dtype is dtype and t.device == means.device for t in tensors)
    if differentiated or traced(means) or not alike or choose(means) is not native:
        wide_latent, wide_means, wide_factors = widen(*tensors)
        return (wide_means + unwhiten(wide_latent, wide_factors)).to(dtype)
    draws = latent.expand_as(means).clone(memory_format=torch.contiguous_format)
    # Mixtures of one component, which has all the weight.
    cumulative = torch.ones(*means.shape[:-1], 1, dtype=torch.float64)
    uniform = torch.zeros(1, *means.shape[:-1], dtype=torch.float64)
    mixture = (cumulative, means.unsqueeze(-2), factors.unsqueeze(-2))
    native.draw(*_in_rows(draws.unsqueeze(0), uniform, *mixture))
    return draws
