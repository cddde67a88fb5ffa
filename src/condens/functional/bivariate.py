"""The standard normal distribution of two variables, less what two independent ones give.

Ψ(h, k; ρ) = Φ₂(h, k; ρ) − Φ(h) Φ(k) = ∫₀^ρ φ₂(h, k; r) dr

is a covariance: of 1(X ≤ h) and 1(Y ≤ k), and of Φ(X) and Φ(Y) for wider X and Y. The integral has
no differences that cancel. With r = tanh v, a = (h − k)²/4 and b = (h + k)²/4 it is

Ψ = ∫₀^V exp(E(v)) dv/2π,  E(v) = −(a + b + a e^{2v} + b e^{−2v})/2 − log cosh v,  ρ = tanh V,

and E is concave. So the part that counts lies about one maximum, and is easily found; there Gauss
and Legendre's rule is used piece by piece.

Shapes: all [...] → [...], in double precision.
"""

import math

import torch
from torch import Tensor

from condens.functional import normal

# Beyond, Φ is 0 or 1 in double precision, and its square too.
_REACH = 60.0
# The integrand counts down to e^−40 of its maximum.
_DEPTH = 40.0
_PIECES, _NODES = 16, 12
# Halvings of an interval of v: what is left is narrow beside the narrowest integrand.
_HALVINGS = 24


def excess(first: Tensor, second: Tensor, rapidity: Tensor) -> Tensor:
    """Return Ψ(h, k; tanh V), to 10⁻¹³ relative.

    Args:
        first, second: h and k.
        rapidity: V, which keeps the digits of correlations near ±1.

    >>> zero = torch.zeros((), dtype=torch.float64)
    >>> excess(zero, zero, torch.atanh(zero + 0.5))  # asin(½)/2π = 1/12
    tensor(0.0833, dtype=torch.float64)
    """
    first, second = (end.clamp(-_REACH, _REACH) for end in (first, second))
    apart, together = (0.25 * (first + side * second).square() for side in (-1, 1))
    # A negative correlation is that of X and −Y.
    negative = rapidity < 0
    a, b = torch.where(negative, together, apart), torch.where(negative, apart, together)
    length = rapidity.abs()
    low, high = _held(a, b, length)
    places, weights = normal.gauss_legendre(_NODES, length)
    pieces = torch.arange(_PIECES, dtype=length.dtype, device=length.device)
    grid = ((pieces.unsqueeze(-1) + places) / _PIECES).flatten()
    at = low.unsqueeze(-1) + (high - low).unsqueeze(-1) * grid
    values = _exponent(a.unsqueeze(-1), b.unsqueeze(-1), at).exp()
    total = (high - low) / (2 * math.pi * _PIECES) * (values @ weights.repeat(_PIECES))
    return torch.where(negative, -total, total)


def _exponent(a: Tensor, b: Tensor, v: Tensor) -> Tensor:
    """Return E(v)."""
    log_cosh = v + torch.log1p((-2 * v).exp()) - math.log(2)
    return -0.5 * (a + b + a * (2 * v).exp() + b * (-2 * v).exp()) - log_cosh


def _held(a: Tensor, b: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ends of the part of [0, V] that counts; V has its gradient, where it is one."""
    with torch.no_grad():
        # e^2v overflows beyond; the integrand has fallen by e^−v.
        last = length.clamp(max=_DEPTH)
        start = torch.zeros_like(last)
        low, high = start, last
        for _ in range(_HALVINGS):
            v = 0.5 * (low + high)
            rises = b * (-2 * v).exp() - a * (2 * v).exp() > v.tanh()
            low, high = torch.where(rises, v, low), torch.where(rises, high, v)
        # The maximum may lie at either end.
        top = torch.where(low == start, low, torch.where(high == last, high, 0.5 * (low + high)))
        level = _exponent(a, b, top) - _DEPTH
        found = []
        for end in (start, last):
            outside, inside = end, top
            for _ in range(_HALVINGS):
                v = 0.5 * (outside + inside)
                beyond = _exponent(a, b, v) < level
                outside, inside = torch.where(beyond, v, outside), torch.where(beyond, inside, v)
            found.append(torch.where(_exponent(a, b, end) < level, outside, end))
    low, high = found
    return low, torch.where(high == length, length, high)
