"""The one primitive: the whitening z = Ū(x − μ), its inverse and its log-determinant.

A *factor* is kept packed, in FrEIA's order: the D log-diagonals of U, then its
strict upper triangle row by row, D(D+1)/2 numbers. Ū is U with its diagonal
exponentiated, and Σ⁻¹ = ŪᵀŪ. A *diagonal* factor is the D log-diagonals alone. The
two differ in length, and only this file knows what that means for the arithmetic.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from condens.errors import ArgumentError
from condens.functional.precision import widen
from condens.functional.tracing import checks_values
from condens.kernels.packing import is_diagonal as is_diagonal
from condens.kernels.packing import packed_size as packed_size

# Factors whose rows are found together: few, so that they fit into the cache.
FACTORS_PER_BLOCK = 2048


def _packing(dimensions: int, device: torch.device) -> Tensor:
    """Where each packed entry lies in the flattened D×D triangle."""
    rows, columns = torch.triu_indices(dimensions, dimensions, 1, device=device)
    diagonal = torch.arange(dimensions, device=device) * (dimensions + 1)
    return torch.cat([diagonal, rows * dimensions + columns])


def _unpacking(dimensions: int, device: torch.device) -> Tensor:
    """Where each entry of the D×D triangle lies in (packed, 0)."""
    column = torch.arange(dimensions, device=device)
    row = column.unsqueeze(-1)
    # Above row i lie D diagonals and the strict rows 0 … i−1, of D−1, …, D−i entries.
    strict = dimensions * (row + 1) - row * (row + 1) // 2 + column - row - 1
    upper = torch.where(row < column, strict, packed_size(dimensions))
    return torch.where(row == column, row, upper)


def _take(tensor: Tensor, positions: Tensor) -> Tensor:
    # index_select, not an in-place scatter: it works under torch.func's transforms.
    return tensor.index_select(-1, positions.flatten())


def saturated_exp(log_scale: Tensor) -> Tensor:
    """Return exp, but at most just below the largest number: infinity times zero is NaN."""
    return log_scale.clamp(max=math.log(torch.finfo(log_scale.dtype).max) - 1).exp()


def unpack(factors: Tensor, dimensions: int) -> Tensor:
    """Return the upper triangular Ū, its diagonal exponentiated.

    Shapes: factors [..., D(D+1)/2] or [..., D] → [..., D, D].

    >>> unpack(torch.tensor([0.0, 0.0, 5.0]), 2)
    tensor([[1., 5.],
            [0., 1.]])
    """
    scales = saturated_exp(factors[..., :dimensions])
    if is_diagonal(factors, dimensions):
        return torch.diag_embed(scales)
    zero = torch.zeros_like(factors[..., :1])
    entries = torch.cat([scales, factors[..., dimensions:], zero], dim=-1)
    return _take(entries, _unpacking(dimensions, factors.device)).unflatten(
        -1, (dimensions, dimensions)
    )


def pack(upper: Tensor) -> Tensor:
    """Return the packed factor of an upper triangular matrix with a positive diagonal.

    Shapes: upper [..., D, D] → [..., D(D+1)/2]. Inverse of `unpack`.

    >>> pack(torch.tensor([[1.0, 5.0], [0.0, 1.0]]))
    tensor([0., 0., 5.])
    """
    dimensions = upper.shape[-1]
    packed = _take(upper.flatten(-2), _packing(dimensions, upper.device))
    return torch.cat([packed[..., :dimensions].log(), packed[..., dimensions:]], dim=-1)


def bounded_scales(
    factors: Tensor, dimensions: int, floor: float = 0.0, ceiling: float = math.inf
) -> Tensor:
    """Return factors whose scales σ = 1/Ūⱼⱼ have become floor + 1/(1/σ + 1/ceiling).

    1/Ūⱼⱼ is the standard deviation of xⱼ given the dimensions after it, so the density is
    at most (2π)^(−D/2) floor^(−D), and far from every component it falls off no slower than
    with scales of floor + ceiling. Shapes: factors [..., T] → [..., T].

    >>> bounded_scales(torch.tensor([0.0, 20.0, 5.0]), 2, floor=0.5)
    tensor([-0.4055,  0.6931,  5.0000])
    >>> bounded_scales(torch.tensor([0.0, -20.0, 5.0]), 2, ceiling=2.0)
    tensor([ 0.4055, -0.6931,  5.0000])
    """
    check_bounds(floor, ceiling)
    if not floor and ceiling == math.inf:
        return factors
    diagonal, strict = factors[..., :dimensions], factors[..., dimensions:]
    return torch.cat([-bounded_log_scales(-diagonal, floor, ceiling), strict], -1)


def bounded_log_scales(log_scales: Tensor, floor: float, ceiling: float) -> Tensor:
    """Return log(floor + 1/(1/σ + 1/ceiling)) from log σ, without leaving the logarithms."""
    if ceiling < math.inf:
        log_scales = -torch.logaddexp(-log_scales, torch.full_like(log_scales, -math.log(ceiling)))
    if floor:
        log_scales = torch.logaddexp(log_scales, torch.full_like(log_scales, math.log(floor)))
    return log_scales


def check_bounds(floor: float, ceiling: float) -> None:
    """Refuse bounds that no scale can have; within these, nothing overflows in double."""
    for name, value, off in (("floor", floor, 0.0), ("ceiling", ceiling, math.inf)):
        if not (1e-30 <= value <= 1e30 or value == off):
            raise ArgumentError(
                name,
                got=f"is {value}",
                expected=f"a number between 1e-30 and 1e30 was expected, or {off:g} for none",
                fix="Choose it in units of the standardised target.",
            )


def as_full(factors: Tensor, dimensions: int) -> Tensor:
    """Return factors in the full packing, zeros above the diagonal of diagonal ones."""
    return torch.nn.functional.pad(factors, (0, packed_size(dimensions) - factors.shape[-1]))


def log_determinant(factors: Tensor, dimensions: int) -> Tensor:
    """Return log|det Ū| = Σⱼ Uⱼⱼ, read off the packed factor.

    Shapes: factors [..., T] → [...].
    """
    return factors[..., :dimensions].sum(-1)


def component_variances(factors: Tensor, dimensions: int) -> Tensor:
    """Return the diagonal of Σ = Ū⁻¹Ū⁻ᵀ. Shapes: factors [..., T] → [..., D]."""
    if is_diagonal(factors, dimensions):
        return (-2 * factors).exp()
    return inverse_factors(factors, dimensions).square().sum(-1)


def component_deviations(factors: Tensor, dimensions: int) -> Tensor:
    """Return Σⱼⱼ^½, of many factors several times faster than by `component_variances`.

    Row i of Ū⁻¹ is (eᵢ − Σₖ Uᵢₖ rowₖ)/Ūᵢᵢ, k > i. Shapes: factors [..., T] → [..., D].

    >>> component_deviations(torch.tensor([0.0, 0.0, 1.0]), 2)
    tensor([1.4142, 1.0000])
    """

    def deviations(scales: Tensor, rows: Sequence[Tensor]) -> Tensor:
        inverse = scales[None, -1:]
        for row, scale in zip(reversed(rows), reversed(scales[:-1].split(1)), strict=True):
            above = torch.cat([scale, -scale * (row[:, None] * inverse).sum(0)])
            inverse = torch.cat([above[None], torch.nn.functional.pad(inverse, (0, 0, 1, 0))])
        # Where nothing can be told from zero the root has no slope.
        return inverse.square().sum(1).clamp(min=torch.finfo(scales.dtype).tiny).sqrt()

    return _side_by_side(deviations, factors, dimensions)


def deviation_bounds(factors: Tensor, dimensions: int) -> Tensor:
    """Return upper bounds of Σⱼⱼ^½, much faster than these: exact where D ≤ 2, or U is diagonal.

    xⱼ = (zⱼ − Σₖ Uⱼₖxₖ)/Ūⱼⱼ with zⱼ independent of the xₖ, k > j, whose sum has at most the
    deviation Σₖ |Uⱼₖ|σₖ. Shapes: factors [..., T] → [..., D].

    >>> deviation_bounds(torch.tensor([0.0, 0.0, 1.0]), 2)
    tensor([1.4142, 1.0000])
    """

    def bounds(scales: Tensor, rows: Sequence[Tensor]) -> Tensor:
        known = scales[-1:]
        for row, scale in zip(reversed(rows), reversed(scales[:-1].split(1)), strict=True):
            others = (row.abs() * known).sum(0, keepdim=True)
            known = torch.cat([scale * (1 + others.square()).sqrt(), known])
        return known

    return _side_by_side(bounds, factors, dimensions)


def _side_by_side(
    function: Callable[[Tensor, Sequence[Tensor]], Tensor], factors: Tensor, dimensions: int
) -> Tensor:
    """Return what a function makes of 1/Ūⱼⱼ and the rows of U, those of many factors together.

    Shapes: factors [..., T] → [..., D]; the function takes [D, n] and [D − j, n] to [D, n].
    """
    if is_diagonal(factors, dimensions):
        return factors.neg().exp()

    def together(some: Tensor) -> Tensor:
        diagonal, *rows = some.mT.contiguous().split([dimensions, *range(dimensions - 1, 0, -1)])
        return function(diagonal.neg().exp(), rows).mT

    flat = factors.reshape(-1, factors.shape[-1])
    parts = flat.split(FACTORS_PER_BLOCK) if checks_values(factors) else [flat]
    found = torch.cat([together(part) for part in parts])
    return found.reshape(*factors.shape[:-1], dimensions)


def between(first: Tensor, second: Tensor, part: Tensor) -> Tensor:
    """Return (1 − part)·first + part·second; the first where that is 0, whatever the second is.

    Shapes: first and second [..., *], part [...] → [..., *].
    """
    part = part.reshape(*part.shape, *[1] * (first.dim() - part.dim()))
    return torch.where(part > 0, torch.lerp(first, second, part), first)


def blend(first: Tensor, second: Tensor, part: Tensor, dimensions: int) -> Tensor:
    """Return factors with (1 − part)·Ū⁻¹ of the first and part·Ū⁻¹ of the second.

    No deviation is above the larger of both, as it may be, by far, between two packed factors.
    Where no number holds it, these are taken. With q the part of the one that is further away, the
    factor is Ū_near M⁻¹, M = (1 − q) I + q Ū_far⁻¹ Ū_near: at neither end is anything rounded.

    Shapes: factors [..., T], part [...] → [..., T].
    """
    linear = between(first, second, part)
    if is_diagonal(first, dimensions):
        return linear
    within = (part > 0) & (part < 1)
    if part.dim() and checks_values(part):
        if not bool(within.any()):
            return linear
        some = _blend(first[within], second[within], linear[within], part[within], dimensions)
        return linear.index_put((within,), some)
    ends = within.reshape(*part.shape, *[1] * (first.dim() - part.dim()))
    return torch.where(ends, _blend(first, second, linear, part, dimensions), linear)


def _blend(
    first: Tensor, second: Tensor, otherwise: Tensor, part: Tensor, dimensions: int
) -> Tensor:
    part = part.reshape(*part.shape, *[1] * (first.dim() - part.dim()))
    near, far = (
        unpack(torch.where(choice, first, second), dimensions)
        for choice in (part <= 0.5, part > 0.5)
    )
    further = torch.minimum(part, 1 - part).unsqueeze(-1)
    identity = torch.eye(dimensions, dtype=first.dtype, device=first.device)
    system = torch.lerp(identity.expand_as(near), solve_upper(far, near), further)
    held = _all(system.isfinite())
    root = near @ solve_upper(torch.where(held, system, identity), identity)
    held = held & _all(root.isfinite() & (root.diagonal(dim1=-2, dim2=-1) > 0).unsqueeze(-1))
    packed = pack(torch.where(held, root, identity))
    return torch.where(held.squeeze(-1), packed, otherwise)


def _all(matrices: Tensor) -> Tensor:
    return matrices.all(-1, keepdim=True).all(-2, keepdim=True)


def log_diagonal(upper: Tensor) -> Tensor:
    """Return log|det| of a dense triangular matrix. Shapes: [..., D, D] → [...]."""
    return upper.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def whiten(difference: Tensor, factors: Tensor) -> Tensor:
    """Return z = Ū(x − μ), which is standard normal when x ~ N(μ, Σ).

    Shapes: difference [..., D], factors [..., T], broadcast → [..., D].

    >>> whiten(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0, 5.0]))
    tensor([11.,  2.])
    """
    dimensions = difference.shape[-1]
    if is_diagonal(factors, dimensions):
        return saturated_exp(factors) * difference
    return on_vectors(torch.matmul, unpack(factors, dimensions), difference)


def unwhiten(latent: Tensor, factors: Tensor) -> Tensor:
    """Return x − μ = Ū⁻¹z by back substitution: the inverse of `whiten`.

    Shapes: latent [..., D], factors [..., T], broadcast → [..., D].

    >>> unwhiten(torch.tensor([11.0, 2.0]), torch.tensor([0.0, 0.0, 5.0]))
    tensor([1., 2.])
    """
    dimensions = latent.shape[-1]
    if is_diagonal(factors, dimensions):
        return latent / saturated_exp(factors)
    if factors.dtype in (torch.float16, torch.bfloat16):  # LAPACK has no half precision
        return unwhiten(*widen(latent, factors)).to(factors.dtype)
    return on_vectors(solve_upper, unpack(factors, dimensions), latent)


def whiten_gradient(cotangent: Tensor, difference: Tensor, factors: Tensor) -> Tensor:
    """Pull a cotangent of z = Ū(x − μ) back to the packed factors.

    ∂(h·Ūd)/∂U[i,j] = h[i] d[j] above the diagonal, h[i] d[i] exp(U[i,i]) on it.

    Shapes: cotangent and difference [S, ..., D], factors [..., T] → [..., T],
    summed over the leading axis.
    """
    dimensions = difference.shape[-1]
    scales = saturated_exp(factors[..., :dimensions])
    if is_diagonal(factors, dimensions):
        return (cotangent * difference).sum(0) * scales
    outer = cotangent.movedim(0, -1) @ difference.movedim(0, -2)
    entries = _take(outer.flatten(-2), _packing(dimensions, outer.device))
    return torch.cat([entries[..., :dimensions] * scales, entries[..., dimensions:]], dim=-1)


def inverse_factors(factors: Tensor, dimensions: int) -> Tensor:
    """Return Ū⁻¹, the square root of the covariance that sampling uses: Σ = Ū⁻¹Ū⁻ᵀ.

    Shapes: factors [..., T] → [..., D, D].
    """
    if is_diagonal(factors, dimensions):
        return torch.diag_embed(factors.neg().exp())
    identity = torch.eye(dimensions, dtype=factors.dtype, device=factors.device)
    return solve_upper(unpack(factors, dimensions), identity)


def reorder(factors: Tensor, order: Sequence[int]) -> Tensor:
    """Return the factors of the same Gaussians with their dimensions in another order.

    With P the permutation and ŪP = QR, the precision becomes PᵀŪᵀŪP = RᵀR: R is the
    new factor. Taking rows and columns of Ū instead is wrong for every order but the
    identity.

    Shapes: factors [..., T] → [..., T]; dimension j of the result is order[j].
    """
    dimensions = len(order)
    if list(order) == list(range(dimensions)):
        return factors
    if is_diagonal(factors, dimensions):
        return factors[..., list(order)]
    wide = widen(factors)
    upper = triangularise(unpack(wide, dimensions)[..., list(order)])[1]
    return _with_determinant(pack(upper), upper, log_determinant(wide, dimensions)).to(
        factors.dtype
    )


def _with_determinant(factors: Tensor, upper: Tensor, log_determinant: Tensor) -> Tensor:
    """Return factors whose least certain log-diagonal follows from a determinant that is known.

    An entry of R is as uncertain as its column is long. One that is much shorter has lost its
    digits, and the determinant, which no order of the dimensions changes, has them.
    """
    dimensions = upper.shape[-1]
    diagonal = factors[..., :dimensions]
    certain = upper.detach().diagonal(dim1=-2, dim2=-1).abs() / upper.detach().norm(dim=-2)
    least, place = certain.min(-1, keepdim=True)
    lost = (torch.arange(dimensions, device=upper.device) == place) & (least < 1e-4)
    others = diagonal.masked_fill(lost, 0.0).sum(-1, keepdim=True)
    diagonal = torch.where(lost, log_determinant.unsqueeze(-1) - others, diagonal)
    return torch.cat([diagonal, factors[..., dimensions:]], -1)


def block(factors: Tensor, dimensions: int, start: int, stop: int) -> Tensor:
    """Return the factor in rows and columns start…stop−1 of U.

    A leading block is the factor of p(x_lead | x_rest), a trailing block that of the
    marginal p(x_trail); a block in between has no such meaning.

    Shapes: factors [..., T] → [..., T'].
    """
    if is_diagonal(factors, dimensions):
        return factors[..., start:stop]
    inner = _unpacking(dimensions, factors.device)[start:stop, start:stop].flatten()
    return _take(factors, inner[_packing(stop - start, factors.device)])


def rescale(factors: Tensor, scale: Tensor) -> Tensor:
    """Return the factors of diag(scale)·x: Ū diag(1/scale), its rows' signs made positive.

    Shapes: factors [..., T], scale [D], or [..., D] one for each factor → [..., T].
    """
    dimensions = scale.shape[-1]
    diagonal = factors[..., :dimensions] - scale.abs().log()
    if is_diagonal(factors, dimensions):
        return diagonal
    rows, columns = torch.triu_indices(dimensions, dimensions, 1, device=scale.device)
    ratio = _take(scale.sign(), rows) / _take(scale, columns)
    return torch.cat([diagonal, factors[..., dimensions:] * ratio], dim=-1)


def triangularise(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return Q with orthonormal columns and upper triangular R, its diagonal ≥ 0: matrix = QR.

    RᵀR = matrixᵀ·matrix, without ever squaring the condition number.

    Shapes: [..., M, D] with M ≥ D → [..., M, D] and [..., D, D].
    """
    q, r = torch.linalg.qr(matrix)
    sign = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(r.dtype)
    return q * sign.unsqueeze(-2), r * sign.unsqueeze(-1)


def from_square_root(root: Tensor) -> Tensor:
    """Return the packed factor of the covariance root·rootᵀ.

    An upper triangular W with WWᵀ = root·rootᵀ comes from a QR of the flipped
    transpose; then Ū = W⁻¹. Shapes: root [..., D, N] with N ≥ D → [..., D(D+1)/2].
    """
    _, flipped = triangularise(widen(root).mT.flip(-1))
    return from_upper_root(flipped.mT.flip(-1, -2)).to(root.dtype)


def from_upper_root(upper: Tensor) -> Tensor:
    """Return the packed factor of W Wᵀ for upper triangular W: Ū = W⁻¹.

    Shapes: upper [..., D, D] → [..., D(D+1)/2].
    """
    identity = torch.eye(upper.shape[-1], dtype=upper.dtype, device=upper.device)
    return pack(solve_upper(upper, identity))


def solve_upper(upper: Tensor, right: Tensor) -> Tensor:
    """Return upper⁻¹·right by back substitution. Shapes: [..., D, D], [..., D, N] → [..., D, N]."""
    if not torch.compiler.is_exporting():
        return torch.linalg.solve_triangular(upper, right, upper=True)
    # Step by step, of operations that every runtime has.
    last = upper.shape[-1] - 1
    solved = right[..., last:, :] / upper[..., last:, last:]
    for i in reversed(range(last)):
        known = upper[..., i : i + 1, i + 1 :] @ solved
        row = (right[..., i : i + 1, :] - known) / upper[..., i : i + 1, i : i + 1]
        solved = torch.cat([row, solved], -2)
    return solved


def on_vectors(
    operator: Callable[[Tensor, Tensor], Tensor], matrices: Tensor, vectors: Tensor
) -> Tensor:
    """Apply a matrix operator to vectors; leading axes the matrices lack become columns.

    So many vectors of one matrix cost one GEMM, not one expanded matrix each.
    """
    extra = vectors.dim() + 1 - matrices.dim()
    if extra <= 0:
        return operator(matrices, vectors.unsqueeze(-1)).squeeze(-1)
    columns = vectors.flatten(0, extra - 1).movedim(0, -1)
    return operator(matrices, columns).movedim(-1, 0).unflatten(0, vectors.shape[:extra])
