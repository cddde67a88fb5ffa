"""Gaussian mixtures whose covariances are diagonal plus low rank, for many dimensions.

    Σₖ = diag(sₖ²) + VₖVₖᵀ,   x = μₖ + sₖ·ε + Vₖf,   ε ~ N(0, I), f ~ N(0, I)

With W = V/s, everything follows from one QR of r columns, [W; I] = QR: RᵀR = I + WᵀW, and
the factors f that explain z = (x − μ)/s best come from least squares. Matrices of D×D
numbers are made by `component_covariances`, `covariance` and `full_factors` alone.

Shapes: logits [..., K], means and log_scales = log s [..., K, D], loadings V [..., K, D, r]
and target [..., D]; leading axes broadcast. Results have the dtype of the means; the
arithmetic is done in double precision.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from condens.functional import estimates, mixture, sampling
from condens.functional.normal import LOG_2PI
from condens.functional.precision import widen
from condens.functional.triangular import (
    log_diagonal,
    on_vectors,
    saturated_exp,
    solve_upper,
    triangularise,
)


def largest_ratio(dtype: torch.dtype) -> float:
    """Return the ratio of loading to scale up to which answers keep their digits.

    z − Wf is a small difference of numbers as large as this ratio, and rounding must leave
    less than a thousandth of its unit. In double precision some 2·10¹².
    """
    return 5e-4 / torch.finfo(dtype).eps


# The least-squares problem: minimise ‖z − Wf‖² + ‖f‖² over the factors f.


class System(NamedTuple):
    """[W; I] = QR, and what its determinant gives."""

    scaled: Tensor  # W [..., D, r]
    orthonormal: Tensor  # Q [..., D + r, r]
    upper: Tensor  # R [..., r, r]
    log_root: Tensor  # ½ log|Σ| [...], by the matrix determinant lemma


def _largest(dtype: torch.dtype) -> float:
    # Products of two such numbers, and sums of many products, still fit.
    return float(torch.finfo(dtype).max ** 0.45)


def decompose(log_scales: Tensor, loadings: Tensor) -> System:
    """Factorise [V/s; I]. Shapes: log_scales [..., D], loadings [..., D, r]."""
    rank, bound = loadings.shape[-1], _largest(loadings.dtype)
    # The QR of an infinite number would be NaN.
    scaled = (loadings * saturated_exp(-log_scales).unsqueeze(-1)).clamp(-bound, bound)
    identity = torch.eye(rank, dtype=scaled.dtype, device=scaled.device)
    stacked = torch.cat([scaled, identity.expand(*scaled.shape[:-2], -1, -1)], -2)
    # A Cholesky factor of I + WᵀW would do for small W, but at W = 10⁸ the sum forgets I.
    q, r = triangularise(stacked)
    return System(scaled, q, r, log_scales.sum(-1) + log_diagonal(r))


def explain(system: System, latent: Tensor) -> Tensor:
    """Return z − Wf and the best factors f, side by side: their square sum is zᵀ(I + WWᵀ)⁻¹z.

    Shapes: latent z [..., D] → [..., D + r].
    """
    dimensions = latent.shape[-1]
    upper, top, bottom = (
        system.upper,
        system.orthonormal[..., :dimensions, :].mT,
        system.orthonormal[..., dimensions:, :].mT,
    )

    def residual(factors: Tensor) -> Tensor:
        return latent - on_vectors(torch.matmul, system.scaled, factors)

    # Two steps: the second, from a constant, solves for what the first left over. That
    # makes it exact, and the gradient of Q is multiplied by the residual instead of z.
    first = on_vectors(solve_upper, upper, on_vectors(torch.matmul, top, latent)).detach()
    remainder = on_vectors(torch.matmul, top, residual(first)) - on_vectors(
        torch.matmul, bottom, first
    )
    factors = first + on_vectors(solve_upper, upper, remainder)
    return torch.cat([residual(factors), factors], -1)


# Density and moments.


def component_log_prob(
    target: Tensor, means: Tensor, log_scales: Tensor, loadings: Tensor
) -> Tensor:
    """Return the normalised log density of every component.

    log pₖ(x) = −½ min_f (‖z − Wf‖² + ‖f‖²) − Σⱼ log sⱼ − ½ log|I + WᵀW| − (D/2) log 2π

    Where the minimum is beyond the precision's largest number the result is −inf, with a
    gradient of zero. Shapes: → [..., K].

    >>> one = torch.zeros(1, 1)
    >>> component_log_prob(torch.zeros(1), one, log_scales=one, loadings=torch.zeros(1, 1, 1))
    tensor([-0.9189])
    """
    return _component_log_prob(target, means, log_scales, loadings).to(means.dtype)


def _component_log_prob(
    target: Tensor,
    means: Tensor,
    log_scales: Tensor,
    loadings: Tensor,
    system: System | None = None,
) -> Tensor:
    """Return `component_log_prob` in double precision."""
    reach = mixture.longest(means)
    target, means, log_scales, loadings = widen(target, means, log_scales, loadings)
    difference = target.unsqueeze(-2) - means
    # Numbers whose square overflows leave before the arithmetic: in the backward pass
    # 0 · ∞ would be NaN. The comparisons keep a NaN of the input.
    finite = ~difference.isinf()
    latent = torch.where(finite, difference, 0.0) * saturated_exp(-log_scales)
    near = finite & ~(latent.abs() > _largest(latent.dtype))
    system = system or decompose(log_scales, loadings)
    parts = explain(system, torch.where(near, latent, 0.0))
    held = ~(parts.abs() >= reach)
    energy = 0.5 * torch.where(held, parts, 0.0).square().sum(-1)
    log_density = -system.log_root - energy - 0.5 * means.shape[-1] * LOG_2PI
    return torch.where(near.all(-1) & held.all(-1), log_density, -torch.inf)


def joint_log_prob(
    target: Tensor, logits: Tensor, means: Tensor, log_scales: Tensor, loadings: Tensor
) -> Tensor:
    """Return log πₖ + log pₖ(x), in double precision. Shapes: → [..., K]."""
    density = _component_log_prob(target, means, log_scales, loadings)
    return torch.log_softmax(widen(logits), -1) + density


def log_prob(
    target: Tensor, logits: Tensor, means: Tensor, log_scales: Tensor, loadings: Tensor
) -> Tensor:
    """Return the normalised log density of the mixture. Shapes: → [...].

    >>> one = torch.zeros(1, 1)
    >>> log_prob(torch.zeros(1), torch.zeros(1), one, log_scales=one, loadings=one[None])
    tensor(-0.9189)
    """
    joint = joint_log_prob(target, logits, means, log_scales, loadings)
    return mixture.log_total(joint).to(means.dtype)


def partial_log_prob(
    target: Tensor, logits: Tensor, means: Tensor, log_scales: Tensor, loadings: Tensor
) -> Tensor:
    """Return log p(x_o), the marginal density of the entries of x that are not NaN.

    A missing entry becomes a standard normal at its centre, apart from all others, and that
    density is taken off again. A row with nothing observed has log density zero. Shapes: → [...].

    >>> x, one = torch.tensor([0.5, float("nan")]), torch.zeros(1, 2)
    >>> partial_log_prob(x, torch.zeros(1), one, log_scales=one, loadings=torch.zeros(1, 2, 1))
    tensor(-1.0439)
    """
    dtype = means.dtype
    missing = target.isnan()
    each = missing.unsqueeze(-2)
    target, logits, means, log_scales, loadings = widen(target, logits, means, log_scales, loadings)
    means, log_scales = (torch.where(each, 0.0, t) for t in (means, log_scales))
    loadings = torch.where(each.unsqueeze(-1), 0.0, loadings)
    density = log_prob(target.masked_fill(missing, 0.0), logits, means, log_scales, loadings)
    found = density + 0.5 * LOG_2PI * missing.sum(-1).to(density.dtype)
    return found.masked_fill(missing.all(-1), 0.0).to(dtype)


def responsibilities(
    target: Tensor, logits: Tensor, means: Tensor, log_scales: Tensor, loadings: Tensor
) -> Tensor:
    """Return the probability of each component given the target. Shapes: → [..., K].

    A target that no component can hold in this precision gets the weights.
    """
    system = decompose(*widen(log_scales, loadings))
    density = _component_log_prob(target, means, log_scales, loadings, system)
    target, logits, centres, log_scales, loadings = widen(
        target, logits, means, log_scales, loadings
    )
    log_weights, compare = logits.log_softmax(-1), comparison(log_scales, loadings, system)
    joint = mixture.compared(
        log_weights + density, log_weights - system.log_root, target, centres, *compare
    )
    return torch.softmax(mixture.posterior_logits(joint, logits), -1).to(means.dtype)


def comparison(
    log_scales: Tensor, loadings: Tensor, system: System
) -> tuple[Sequence[Tensor], Callable[[Tensor], Tensor]]:
    """Return covariances and latents as `mixture.compared` takes them."""
    covariances = log_scales, loadings.flatten(-2)
    return covariances, lambda offset: explain(system, offset * saturated_exp(-log_scales))


def variance(logits: Tensor, means: Tensor, log_scales: Tensor, loadings: Tensor) -> Tensor:
    """Return the variance of each dimension of the mixture. Shapes: → [..., D]."""
    log_scales, loadings = widen(log_scales, loadings)
    within = (2 * log_scales).exp() + loadings.square().sum(-1)
    return mixture.total_variance(logits, means, within)


def component_covariances(log_scales: Tensor, loadings: Tensor) -> Tensor:
    """Return Σₖ = diag(sₖ²) + VₖVₖᵀ of every component. Shapes: → [..., K, D, D]."""
    logs, wide = widen(log_scales, loadings)
    return (torch.diag_embed((2 * logs).exp()) + wide @ wide.mT).to(log_scales.dtype)


def covariance(logits: Tensor, means: Tensor, log_scales: Tensor, loadings: Tensor) -> Tensor:
    """Return the covariance of the mixture. Shapes: → [..., D, D]."""
    within = component_covariances(*widen(log_scales, loadings))
    return mixture.total_covariance(logits, means, within)


def entropy(
    logits: Tensor,
    means: Tensor,
    log_scales: Tensor,
    loadings: Tensor,
    count: int,
    *,
    generator: Generator | None = None,
) -> estimates.Estimate:
    """Estimate −E[log p(X)], as `condens.functional.estimates.entropy` does. Shapes: → [...]."""

    def joint(number: int) -> Tensor:
        draws = sample_components(means, log_scales, loadings, number, generator=generator)
        return joint_log_prob(draws.movedim(-2, 1), logits, means, log_scales, loadings)

    log_root = decompose(*widen(log_scales, loadings)).log_root.to(means.dtype)
    return estimates.mixture_entropy(logits, log_root, means.shape[-1], joint, count)


# Draws.


def sample(
    logits: Tensor,
    means: Tensor,
    log_scales: Tensor,
    loadings: Tensor,
    shape: Sequence[int] = (),
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Draw x = μₖ + sₖ·ε + Vₖf with k ~ softmax(logits), ε and f ~ N(0, I).

    Carries no gradient. Shapes: → `[*shape, *batch, D]`.
    """
    given = mixture.expand_batch((logits, means, log_scales, loadings), (1, 2, 2, 3))
    logits, means, log_scales, loadings = (tensor.detach() for tensor in given)
    cumulative, uniform, noise = sampling.randomness(logits, means, shape, generator)
    factors = torch.randn(
        (*uniform.shape, loadings.shape[-1]),
        dtype=means.dtype,
        device=means.device,
        generator=generator,
    )
    index = sampling.pick(uniform, cumulative)
    centre, log_scale = (
        torch.take_along_dim(tensor.unsqueeze(0), index[..., None, None], -2).squeeze(-2)
        for tensor in (means, log_scales)
    )
    centre, log_scale, noise, factors, wide = widen(centre, log_scale, noise, factors, loadings)
    # Factors of every component side by side, zero but for the one drawn: one product for
    # all draws, and no draw needs a copy of its loadings.
    drawn = torch.nn.functional.one_hot(index, logits.shape[-1]).to(wide.dtype)
    latent = (drawn.unsqueeze(-1) * factors.unsqueeze(-2)).flatten(-2)
    low_rank = on_vectors(torch.matmul, wide.movedim(-3, -2).flatten(-2), latent)
    draws = (centre + log_scale.exp() * noise + low_rank).to(means.dtype)
    return draws.reshape(*shape, *logits.shape[:-1], means.shape[-1])


def sample_components(
    means: Tensor,
    log_scales: Tensor,
    loadings: Tensor,
    count: int,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Draw from every component, with pathwise gradients. Shapes: → [count, ..., K, D]."""
    batch = torch.broadcast_shapes(means.shape, log_scales.shape, loadings.shape[:-1])
    noise, factors = (
        torch.randn(
            (count, *batch[:-1], size), dtype=means.dtype, device=means.device, generator=generator
        )
        for size in (batch[-1], loadings.shape[-1])
    )
    centre, log_scales, wide, noise, factors = widen(means, log_scales, loadings, noise, factors)
    low_rank = on_vectors(torch.matmul, wide, factors)
    return (centre + log_scales.exp() * noise + low_rank).to(means.dtype)
