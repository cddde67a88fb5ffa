"""Mixtures from mixtures: marginals, conditionals, affine transforms, products, ensembles.

A Gaussian mixture stays a Gaussian mixture under each of these, with full covariances
or diagonal ones. Every function returns the parameters of the new mixture. All run in
double precision and return the dtype of the means.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from condens.functional.mixture import compared, posterior_logits, variance
from condens.functional.normal import LOG_2PI
from condens.functional.precision import widen
from condens.functional.triangular import (
    between,
    blend,
    block,
    component_deviations,
    deviation_bounds,
    from_square_root,
    inverse_factors,
    log_determinant,
    log_diagonal,
    pack,
    reorder,
    rescale,
    solve_upper,
    triangularise,
    unpack,
    unwhiten,
    whiten,
)


class Parameters(NamedTuple):
    """What defines a mixture: logits [..., K], means [..., K, D], factors [..., K, T]."""

    logits: Tensor
    means: Tensor
    factors: Tensor

    def to(self, dtype: torch.dtype) -> "Parameters":
        """Return the parameters in another precision."""
        return Parameters(*(tensor.to(dtype) for tensor in self))

    @property
    def variances(self) -> Tensor:
        """The variance 1/Ūⱼⱼ² of each dimension given those after it [..., K, D]."""
        return (-2 * self.factors[..., : self.means.shape[-1]]).exp()

    @property
    def deviations(self) -> Tensor:
        """The standard deviation (Σⱼⱼ)^½ of each dimension, in each component [..., K, D]."""
        return component_deviations(self.factors, self.means.shape[-1])

    @property
    def deviation_bounds(self) -> Tensor:
        """What no `deviations` are above, faster than these [..., K, D]."""
        return deviation_bounds(self.factors, self.means.shape[-1])

    def affine(self, scale: Tensor, loc: Tensor) -> "Parameters":
        """Return the mixture of scale·x + loc, elementwise.

        Shapes: scale [D], or [..., 1, D] one for each mixture, and loc [..., D].
        """
        logits, means, factors, scale, loc = widen(*self, scale, loc)
        centre = means * scale + loc.unsqueeze(-2)
        return Parameters(logits, centre, rescale(factors, scale)).to(self.means.dtype)

    def blended(self, other: "Parameters", part: Tensor) -> "Parameters":
        """Return the mixtures between these, 0, and others, 1, in logits, means and square roots.

        Shapes: part [...], one for each mixture.
        """
        return Parameters(
            between(self.logits, other.logits, part),
            between(self.means, other.means, part),
            blend(self.factors, other.factors, part, self.means.shape[-1]),
        )

    def scaled(self, scale: Tensor) -> "Parameters":
        """Return the mixture with covariances SΣS, S = diag(scale); weights and means stay.

        Shapes: scale [D], or [..., K, D] one for each component, above zero.
        """
        factors = rescale(*widen(self.factors, scale)).to(self.factors.dtype)
        return self._replace(factors=factors)


def marginal(logits: Tensor, means: Tensor, factors: Tensor, dims: Sequence[int]) -> Parameters:
    """Return the mixture of x[dims], in the order asked for.

    With the kept dimensions last, their factor is the trailing block.
    """
    dimensions = means.shape[-1]
    rest = [d for d in range(dimensions) if d not in dims]
    kept = block(reorder(factors, [*rest, *dims]), dimensions, len(rest), dimensions)
    return Parameters(logits, means[..., list(dims)], kept)


def condition(
    logits: Tensor, means: Tensor, factors: Tensor, dims: Sequence[int], value: Tensor
) -> Parameters:
    """Return the mixture of the other dimensions, in ascending order, given x[dims] = value.

    With the free dimensions a first and the fixed ones b last, z splits into
    z_a = Ū_aa(x_a − μ_a) + Ū_ab(v − μ_b) and z_b = Ū_bb(v − μ_b): the new factor is
    Ū_aa, the new mean makes z_a zero, and z_b re-weights the component.

    Shapes: value [..., len(dims)], broadcast against the leading axes.
    """
    dimensions = means.shape[-1]
    free = [d for d in range(dimensions) if d not in dims]
    dtype = means.dtype
    logits, means, given, value = widen(logits, means, factors, value)
    factors = reorder(given, [*free, *dims])
    fixed = means[..., list(dims)]
    offset = value.unsqueeze(-2) - fixed
    latent = whiten(torch.nn.functional.pad(offset, (len(free), 0)), factors)
    lead, tail = latent[..., : len(free)], latent[..., len(free) :]
    kept, last = (
        block(factors, dimensions, *ends) for ends in ((0, len(free)), (len(free), dimensions))
    )
    centre = means[..., free] - unwhiten(lead, kept)
    rest = logits + log_determinant(last, len(dims))
    joint = rest - 0.5 * tail.square().sum(-1)
    joint = compared(joint, rest, value, fixed, [given], partial(whiten, factors=last))
    return Parameters(normalised(joint, logits), centre, kept).to(dtype)


def affine_matrix(
    logits: Tensor, means: Tensor, factors: Tensor, matrix: Tensor, loc: Tensor
) -> tuple[Parameters, Tensor]:
    """Return the mixture of A x + b, and how far the rows of A are from dependent.

    The factor is that of Ū A⁻¹ for square A; else A Ū⁻¹ is a square root of A Σ Aᵀ.
    Shapes: matrix [..., M, D], loc [..., M], their leading axes broadcast against the
    batch. The second result, [...], is the smallest sine between a row, in units of the
    dimensions' deviations, and the rows before it: zero where A lacks full row rank.
    """
    dtype = means.dtype
    logits, means, factors, matrix, loc = widen(logits, means, factors, matrix, loc)
    rows = matrix * variance(logits, means, factors).detach().sqrt().unsqueeze(-2)
    _, r = triangularise((rows / rows.norm(dim=-1, keepdim=True)).mT)
    matrix = matrix.unsqueeze(-3)
    centre = (matrix @ means.unsqueeze(-1)).squeeze(-1) + loc.unsqueeze(-2)
    moved = Parameters(logits, centre, _transformed(matrix, factors)).to(dtype)
    return moved, r.diagonal(dim1=-2, dim2=-1).amin(-1)


def _transformed(matrix: Tensor, factors: Tensor) -> Tensor:
    """Return the packed factors of A x. Shapes: matrix [..., 1, M, D], factors [..., K, T]."""
    rows, dimensions = matrix.shape[-2:]
    if rows < dimensions:
        return from_square_root(matrix @ inverse_factors(factors, dimensions))
    # With as many axes each: one less would be a batch of vectors to torch.
    matrix, upper = torch.broadcast_tensors(matrix, unpack(factors, dimensions))
    return pack(triangularise(torch.linalg.solve_ex(matrix, upper, left=False).result)[1])


def multiply(
    logits: Tensor, means: Tensor, factors: Tensor, loc: Tensor, precision_factor: Tensor
) -> tuple[Parameters, Tensor]:
    """Return the normalised product with a Gaussian N(x; m, (VᵀV)⁻¹), and its log normaliser.

    The product's precision is ŪᵀŪ + VᵀV, so a QR of Ū stacked on V gives its factor R.
    The exponent left over re-weights the component.

    Shapes: loc [..., D], precision_factor V [..., D, D] upper triangular; the log
    normaliser, log ∫ p(x) N(x) dx, has shape [...].
    """
    dimensions, dtype = means.shape[-1], means.dtype
    logits, means, factors, loc, other = widen(logits, means, factors, loc, precision_factor)
    upper, other = torch.broadcast_tensors(unpack(factors, dimensions), other.unsqueeze(-3))
    q, r = triangularise(torch.cat([upper, other], dim=-2))
    # Least squares, centred on μ: minimise ‖Ū s‖² + ‖V(s − δ)‖² over the shift s.

    def settle(offset: Tensor) -> tuple[Tensor, Tensor]:
        pull = other @ offset.unsqueeze(-1)
        right = torch.cat([torch.zeros_like(pull), pull], dim=-2)
        shift = solve_upper(r, q.mT @ right)
        return shift.squeeze(-1), torch.cat([upper @ shift, other @ shift - pull], -2).squeeze(-1)

    shift, left_over = settle(loc.unsqueeze(-2) - means)
    rest = (
        torch.log_softmax(logits, -1)
        + log_determinant(factors, dimensions)
        + log_diagonal(other)
        - log_diagonal(r)
        - 0.5 * dimensions * LOG_2PI
    )
    joint = rest - 0.5 * left_over.square().sum(-1)
    compare = compared(joint, rest, loc, means, [factors], lambda offset: settle(offset)[1])
    product = Parameters(normalised(compare, logits), means + shift, pack(r))
    return product.to(dtype), joint.logsumexp(-1).to(dtype)


def divide(
    logits: Tensor, means: Tensor, factors: Tensor, loc: Tensor, precision_factor: Tensor
) -> tuple[Parameters, Tensor]:
    """Return the normalised quotient by a Gaussian N(x; m, (VᵀV)⁻¹), and where it exists.

    With M = V Ū⁻¹ the quotient's precision is Ūᵀ(I − MᵀM)Ū. It is a density where
    I − MᵀM is positive definite for every component: where the divisor is wider than
    the component in every direction.

    Shapes: loc [..., D], precision_factor V [..., D, D] upper triangular; the second
    result is the smallest eigenvalue of I − MᵀM, [..., K].
    """
    dimensions, dtype = means.shape[-1], means.dtype
    logits, means, factors, loc, other = widen(logits, means, factors, loc, precision_factor)
    upper, other = torch.broadcast_tensors(unpack(factors, dimensions), other.unsqueeze(-3))
    ratio = other @ inverse_factors(factors, dimensions)
    identity = torch.eye(dimensions, dtype=means.dtype, device=means.device)
    remainder = identity - ratio.mT @ ratio
    kept = torch.linalg.cholesky_ex(remainder).L.mT
    new_upper = kept @ upper
    # The exponent, centred on μ: −½ yᵀ(Λ − Λ_g) y + yᵀΛ_g d + ½ dᵀΛ_g d with d = μ − m.

    def settle(offset: Tensor) -> tuple[Tensor, Tensor]:
        pull = -other @ offset.unsqueeze(-1)
        shift = torch.cholesky_solve(other.mT @ pull, new_upper, upper=True)
        return shift.squeeze(-1), torch.cat([new_upper @ shift, pull], -2).squeeze(-1)

    shift, gained = settle(loc.unsqueeze(-2) - means)
    rest = logits - log_diagonal(kept)
    joint = rest + 0.5 * gained.square().sum(-1)
    joint = compared(joint, rest, loc, means, [factors], lambda offset: settle(offset)[1], sign=1.0)
    quotient = Parameters(normalised(joint, logits), means + shift, pack(new_upper))
    return quotient.to(dtype), torch.linalg.eigvalsh(remainder.detach())[..., 0]


def ensemble(members: Sequence[Parameters], log_weights: Tensor) -> Parameters:
    """Return one mixture of all the members' components.

    Shapes: members with equal batch shape and D; log_weights [M], normalised.
    """
    logits, means, factors = zip(*members, strict=True)
    return Parameters(
        joined_logits(logits, log_weights),
        torch.cat(means, -2),
        # In one packing, diagonal only if all of them are.
        torch.cat(padded(factors), -2),
    )


def padded(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors whose last axes have the longest one's length, by zeros at the end."""
    size = max(tensor.shape[-1] for tensor in tensors)
    return [torch.nn.functional.pad(tensor, (0, size - tensor.shape[-1])) for tensor in tensors]


def joined_logits(logits: Sequence[Tensor], log_weights: Tensor) -> Tensor:
    """Return the logits of all members' components. Shapes: M times [..., K], [M] → [..., ΣK]."""
    pairs = zip(logits, log_weights, strict=True)
    return torch.cat([torch.log_softmax(each, -1) + weight for each, weight in pairs], -1)


def normalised(joint: Tensor, logits: Tensor) -> Tensor:
    """Return normalised log weights from joint log densities; the old ones where all are lost."""
    return torch.log_softmax(posterior_logits(joint, logits), -1)
