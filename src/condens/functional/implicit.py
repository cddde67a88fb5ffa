"""Pathwise gradients of mixture samples and quantiles, by implicit differentiation.

The conditional distribution functions of a mixture take it to the unit cube:

    Fᵢ(x; θ) = P(Xᵢ ≤ xᵢ | xᵢ₊₁, …, x_D) = Σₖ wₖᵢ Φ(zₖᵢ),
    wₖᵢ ∝ πₖ Πₘ﹥ᵢ φ(zₖₘ) exp(Uₖₘₘ).

Ū is upper triangular, so one whitening z = Ū(x − μ) holds all of them. A sample x
solves F(x; θ) = u for uniform u; hence dx = (∂F/∂x)⁻¹ (du − ∂F/∂θ dθ), for the
logits as for every other parameter (Figurnov, Mohamed, Mnih 2018).
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from condens.functional import normal
from condens.functional.precision import widen
from condens.functional.triangular import unpack, whiten, whiten_gradient


class _Terms(NamedTuple):
    """What F and its derivatives are made of; all [S, ..., K, D] but log_density [S, ..., D]."""

    difference: Tensor
    latent: Tensor
    log_weights: Tensor
    log_posteriors: Tensor
    log_density: Tensor


def _terms(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> _Terms:
    dimensions = means.shape[-1]
    difference = target.unsqueeze(-2) - means
    latent = whiten(difference, factors)
    steps = factors[..., :dimensions] - 0.5 * (latent.square() + normal.LOG_2PI)
    # Sums over the dimensions that come later, m > i; not by subtracting term i
    # from all, which may be so large as to leave no digits.
    later = torch.nn.functional.pad(steps[..., 1:].flip(-1).cumsum(-1).flip(-1), (0, 1))
    log_weights = torch.log_softmax(logits.unsqueeze(-1) + later, -2)
    joint = log_weights + steps
    log_density = joint.logsumexp(-2)
    return _Terms(difference, latent, log_weights, joint - log_density.unsqueeze(-2), log_density)


def conditional_cdfs(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return Fᵢ(x) = P(Xᵢ ≤ xᵢ | xᵢ₊₁, …, x_D) for every dimension i.

    Independent and uniform if x is drawn from the mixture (Rosenblatt's transform).
    Shapes: target [..., D] → [..., D].
    """
    terms = _terms(*widen(target, logits, means, factors))
    total = (terms.log_weights.exp() * normal.cdf(terms.latent)).sum(-2)
    return normal.at_most_one(total).to(means.dtype)


def attach_gradient(
    solution: Tensor, probability: Tensor, logits: Tensor, means: Tensor, factors: Tensor
) -> Tensor:
    """Return the solution of F(x; θ) = probability as a function of all its arguments.

    The value is `solution` itself, best given in double precision; the derivatives, of
    any order, are those of the implicit function. Returns the dtype of the means.

    Shapes: solution and probability `[..., *batch, D]`, logits `[*batch, K]`, and so on:
    the parameters must already have the full batch shape.
    """
    extra = solution.dim() - logits.dim()
    # Not −1, which an empty batch would leave ambiguous.
    shape = (math.prod(solution.shape[:extra]), *solution.shape[extra:])
    wide = widen(solution.reshape(shape), probability.reshape(shape), logits, means, factors)
    attached: Tensor = _Implicit.apply(*wide)  # type: ignore[no-untyped-call]
    return attached.reshape(solution.shape).to(means.dtype)


class _Implicit(torch.autograd.Function):
    """The implicit function x(u, θ) of F(x; θ) = u, given its value."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        solution: Tensor, _probability: Tensor, _logits: Tensor, _means: Tensor, _factors: Tensor
    ) -> Tensor:
        return solution.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        # The output is saved, not the input: in a second backward pass it must be
        # seen to depend on the parameters.
        ctx.save_for_backward(output, *inputs[2:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        return (None, *_pull_back(gradient, *ctx.saved_tensors))


def _pull_back(
    gradient: Tensor, target: Tensor, logits: Tensor, means: Tensor, factors: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients with respect to (probability, logits, means, factors).

    Row i of dF = ∂F/∂x dx + ∂F/∂θ dθ is divided by the conditional density pᵢ, so
    that it has the unit of xᵢ and a unit diagonal:

        dFᵢ/pᵢ = Σₖ ρₖᵢ dzₖᵢ / exp(Uₖᵢᵢ) + Σₖ bₖᵢ d log-weightₖᵢ

    with ρₖᵢ the responsibilities given xᵢ, …, x_D, and bₖᵢ = aₖᵢ − wₖᵢ Σₗ aₗᵢ for
    aₖᵢ = wₖᵢ Φ(zₖᵢ)/pᵢ. `carried` sums vᵢ bₖᵢ over i < j; `pull` is the cotangent of z.
    The adjoint system (∂F/∂x)ᵀ v = gradient is solved by substitution on the way.
    """
    dimensions = means.shape[-1]
    terms = _terms(target, logits, means, factors)
    step_ratio = _exp(terms.log_posteriors - factors[..., :dimensions])
    weight_ratio = _weight_ratio(terms)
    upper = unpack(factors, dimensions)
    columns: list[tuple[Tensor, Tensor, Tensor]] = []
    carried = torch.zeros_like(terms.latent[..., 0])
    moved = torch.zeros_like(gradient)
    for j in range(dimensions):
        drift = carried * terms.latent[..., j]
        v = gradient[..., j] - moved[..., j] + (drift * upper[..., j, j]).sum(-1)
        h = v.unsqueeze(-1) * step_ratio[..., j] - drift
        moved = moved + torch.einsum("s...k,...kd->s...d", h, upper[..., j, :])
        columns.append((v, h, carried))
        carried = carried + v.unsqueeze(-1) * weight_ratio[..., j]
    solved, pull, carries = (torch.stack(parts, -1) for parts in zip(*columns, strict=True))
    to_means = torch.einsum("s...ki,...kij->...kj", pull, upper)
    to_diagonal = torch.nn.functional.pad(carries.sum(0), (0, factors.shape[-1] - dimensions))
    to_factors = whiten_gradient(pull, terms.difference, factors) + to_diagonal
    return solved * _exp(-terms.log_density), -carried.sum(0), to_means, -to_factors


def _weight_ratio(terms: _Terms) -> Tensor:
    """Return bₖᵢ, from whichever tail is smaller.

    Φ(z) and Φ(z) − 1 serve alike, since the weights' changes sum to zero; the smaller
    of the two keeps its digits.
    """
    above = (terms.log_weights.exp() * normal.cdf(terms.latent)).sum(-2, keepdim=True) > 0.5
    side = torch.where(above, -1.0, 1.0).to(terms.latent.dtype)
    log_tail = terms.log_weights + torch.special.log_ndtr(side * terms.latent)
    ratio = side * _exp(log_tail - terms.log_density.unsqueeze(-2))
    return ratio - terms.log_weights.exp() * ratio.sum(-2, keepdim=True)


def _exp(exponent: Tensor) -> Tensor:
    # In a gap between components one over the density overflows. It stays a number of
    # half the range, so that a product of two is at worst infinite and never NaN.
    return exponent.clamp(max=0.5 * math.log(torch.finfo(exponent.dtype).max)).exp()
