"""Gaussians as users give them: weights and matrices, or torch's own distributions."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Categorical,
    Distribution,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
)
from torch.distributions.constraints import Constraint

from condens.distributions.checks import as_tensor, check_finite, check_leading
from condens.errors import ArgumentError, NotPositiveDefiniteError, ShapeError
from condens.functional.precision import widen
from condens.functional.shapes import check_axes
from condens.functional.tracing import anywhere
from condens.functional.triangular import (
    from_square_root,
    inverse_factors,
    is_diagonal,
    triangularise,
    unpack,
)


def check_components(
    weights: Any, means: Any, name: str, matrices: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits, means and matrices as tensors; one D×D matrix for each component."""
    weights, means = as_tensor("weights", weights), as_tensor("means", means)
    matrices = as_tensor(name, matrices)
    check_axes("weights", weights, "K")
    check_axes("means", means, "K, D")
    if weights.shape[-1] != means.shape[-2]:
        raise ShapeError(
            "weights",
            got=f"has {weights.shape[-1]} entries",
            expected=f"means has {means.shape[-2]}",
            fix="Pass one weight for each mean.",
        )
    if matrices.dim() < 3 or matrices.shape[-3:] != (*means.shape[-2:], means.shape[-1]):
        raise ShapeError(
            name,
            got=f"has shape {list(matrices.shape)}",
            expected=f"means of shape {list(means.shape)} need [..., K, D, D]",
            fix="Pass one D×D matrix for each component.",
        )
    check_finite(name, matrices, "Check how the matrices were computed.")
    return log_weights(weights), means, matrices


def log_weights(weights: Tensor) -> Tensor:
    """Return logits of weights; a weight of zero becomes −inf, with a gradient of zero."""
    if anywhere(~(weights >= 0) | weights.isinf()) or anywhere(weights.sum(-1) <= 0):
        raise ArgumentError(
            "weights",
            got="has an entry that is negative or not finite, or sums to zero",
            expected="each weight must be 0 or more, and one of them positive",
            fix="Pass exp of log weights.",
        )
    empty = weights == 0
    return torch.where(empty, -torch.inf, torch.where(empty, 1.0, weights).log())


def cholesky(name: str, matrices: Tensor) -> Tensor:
    """Return the lower Cholesky factor of symmetric positive definite matrices, in double."""
    size = matrices.abs().amax((-1, -2), keepdim=True)
    if anywhere((matrices - matrices.mT).abs() > 1e3 * torch.finfo(matrices.dtype).eps * size):
        raise NotPositiveDefiniteError(
            name,
            got="is not symmetric",
            expected="symmetric matrices were expected",
            fix="Pass 0.5 * (matrix + matrix.mT) if that is meant.",
        )
    wide = widen(matrices)
    root, info = torch.linalg.cholesky_ex(wide)
    if anywhere(info != 0):
        where = (info != 0).nonzero()[0].tolist()
        lowest = float(torch.linalg.eigvalsh(wide[tuple(where)].detach())[0])
        raise NotPositiveDefiniteError(
            name,
            got=f"at index {where} has the smallest eigenvalue {lowest:.4g}",
            expected="every matrix must be positive definite",
            fix="Add a small multiple of the identity, or drop dimensions that repeat others.",
        )
    return root


def check_lower(name: str, roots: Tensor) -> None:
    """Check that matrices are lower triangular with a positive diagonal."""
    if anywhere(roots.triu(1) != 0) or anywhere(roots.diagonal(dim1=-2, dim2=-1) <= 0):
        raise NotPositiveDefiniteError(
            name,
            got="is not lower triangular with a positive diagonal",
            expected="Cholesky factors of covariances were expected",
            fix="Pass torch.linalg.cholesky(covariances), or use from_covariances.",
        )


def precision_factor(gaussian: Any) -> tuple[Tensor, Tensor] | None:
    """Return mean and dense precision factor of torch's Gaussians; None for anything else."""
    if isinstance(gaussian, MultivariateNormal):
        loc, root = widen(gaussian.loc, gaussian.scale_tril)
    elif _is_diagonal_normal(gaussian):
        loc, scale = widen(gaussian.base_dist.loc, gaussian.base_dist.scale)
        root = torch.diag_embed(scale)
    else:
        return None
    return loc, unpack(from_square_root(root), loc.shape[-1])


def _is_diagonal_normal(gaussian: Any) -> bool:
    return (
        isinstance(gaussian, Independent)
        and isinstance(gaussian.base_dist, Normal)
        and gaussian.reinterpreted_batch_ndims == 1
    )


def to_mixture_same_family(logits: Tensor, means: Tensor, factors: Tensor) -> MixtureSameFamily:
    """Return torch's mixture of the same density: of Normals where factors are diagonal."""
    dimensions = means.shape[-1]
    components: Distribution
    if is_diagonal(factors, dimensions):
        scale = widen(factors).neg().exp().to(means.dtype)
        components = Independent(Normal(means, scale, validate_args=False), 1)
    else:
        # Σ = RᵀR for Ū⁻ᵀ = QR: its lower Cholesky factor, without Σ itself.
        _, right = triangularise(inverse_factors(widen(factors), dimensions).mT)
        root = right.mT.to(means.dtype)
        components = MultivariateNormal(means, scale_tril=root, validate_args=False)
    return MixtureSameFamily(Categorical(logits=logits, validate_args=False), components)


def from_mixture_same_family(name: str, mixture: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits, means and factors of torch's mixture of Gaussians."""
    got = f"is {type(mixture).__name__}"
    if isinstance(mixture, MixtureSameFamily):
        logits, components = mixture.mixture_distribution.logits, mixture.component_distribution
        if isinstance(components, MultivariateNormal):
            return logits, components.loc, from_square_root(components.scale_tril)
        if isinstance(components, Normal):
            return logits, components.loc.unsqueeze(-1), -components.scale.log().unsqueeze(-1)
        if _is_diagonal_normal(components):
            normal: Any = components
            return logits, normal.base_dist.loc, -normal.base_dist.scale.log()
        got = f"is a mixture of {components}"
    raise ArgumentError(
        name,
        got=got,
        expected="a MixtureSameFamily of MultivariateNormal, Independent(Normal, 1) or Normal "
        "was expected",
        fix="Pass one of these, or build the mixture with from_covariances.",
    )


def check_distribution(name: str, other: Any, batch: torch.Size, event: torch.Size) -> None:
    """Check that something is a distribution over the same dimensions, with a batch that fits."""
    if not isinstance(other, Distribution):
        raise ArgumentError(
            name,
            got=f"is {type(other).__name__}",
            expected="a distribution was expected",
            fix="Pass a torch Distribution.",
        )
    if tuple(other.event_shape) != tuple(event):
        raise ShapeError(
            name,
            got=f"has event shape {list(other.event_shape)}",
            expected=f"this mixture has {list(event)}",
            fix="Take marginal(dims) of one of them.",
        )
    check_leading(name, other.batch_shape, other.batch_shape, batch)


def log_prob_at(other: Distribution, draws: Tensor) -> Tensor:
    """Return the log density of any distribution at draws; −inf outside its support.

    Torch's own distributions raise an error there, or return NaN, and check no empty batch.
    """
    if not draws.numel():
        return draws.new_zeros(torch.broadcast_shapes(draws.shape[:-1], other.batch_shape))
    support = support_of(other)
    inside = None if support is None else support.check(draws)
    if inside is None or not anywhere(~inside):
        return other.log_prob(draws)
    # In place of those outside any value inside; torch's generator stays its user's.
    with torch.random.fork_rng(devices=[]):
        within = other.sample().to(draws)
    kept = torch.where(inside.unsqueeze(-1), draws, within)
    return torch.where(inside, other.log_prob(kept), -torch.inf)


def support_of(other: Distribution) -> Constraint | None:
    """Return the support of any distribution, if it says."""
    try:
        return other.support
    except NotImplementedError:
        return None
