"""The standard normal distribution of one variable."""

import math

import torch
from torch import Tensor

LOG_2PI = math.log(2 * math.pi)
# Smaller probabilities have few digits, or none.
_TINY = 1e-300


def density(latent: Tensor) -> Tensor:
    """Return φ(z) = exp(−z²/2)/√(2π)."""
    return torch.exp(-0.5 * latent.square()) / math.sqrt(2 * math.pi)


def cdf(latent: Tensor) -> Tensor:
    """Return Φ(z) = ½ erfc(−z/√2).

    Unlike `torch.special.ndtr`, which is ½ + ½ erf(z/√2) and has no digits left at
    z = −8, relatively accurate until it underflows.

    >>> cdf(torch.tensor(-10.0))
    tensor(7.6199e-24)
    """
    return 0.5 * torch.erfc(latent * -math.sqrt(0.5))


def quantile(part: Tensor, whole: Tensor) -> Tensor:
    """Return z ≤ 0 with Φ(z) = part/whole ≤ ½, also where the quotient is too small for a number.

    >>> quantile(torch.tensor(1e-300, dtype=torch.float64), torch.tensor(1e9, dtype=torch.float64))
    tensor(-37.6019, dtype=torch.float64)
    """
    share = part / whole
    tiny = (share < _TINY) & (part > 0)
    usual = torch.special.ndtri(torch.where(tiny, 0.5, share))
    log_share = torch.where(tiny, part, _TINY).log() - torch.where(tiny, whole, 1.0).log()
    # Φ(−z) = φ(z)/z (1 − 1/z² + 3/z⁴ − …), solved for z; a step divides the error by z² > 1300.
    far = (-2 * log_share).sqrt()
    for _ in range(6):
        inverse = far.square().reciprocal()
        series = -inverse * (1 - inverse * (3 - inverse * (15 - 105 * inverse)))
        far = (-2 * (log_share + far.log() - series.log1p()) - LOG_2PI).sqrt()
    return torch.where(tiny, -far, usual)


def at_most_one(probability: Tensor) -> Tensor:
    """Return a sum of weighted probabilities without the last place by which it may exceed one.

    Weights sum to one only up to rounding. The gradient is left as it is.
    """
    return probability - (probability - 1).clamp(min=0.0).detach()


def log_interval(lower: Tensor, upper: Tensor, width: Tensor | None = None) -> Tensor:
    """Return log(Φ(b) − Φ(a)) for ends a ≤ b, relatively accurate for narrow and far intervals.

    Ends may be infinite. The width b − a may be given apart, where the ends, rounded, have
    lost it. Where even the logarithm is beyond the precision the result is −inf, with a
    gradient of zero. Shapes: → [...].

    >>> log_interval(torch.tensor([-1.0, 30.0]), torch.tensor([1.0, 31.0]))
    tensor([-3.8172e-01, -4.5432e+02])
    """
    reach = 0.1 * torch.finfo(lower.dtype).max ** 0.5
    # By symmetry the middle lies at or below zero, where Φ has all its digits.
    mirrored = lower + upper > 0
    lower, upper = torch.where(mirrored, -upper, lower), torch.where(mirrored, -lower, upper)
    lost = (upper <= -reach) | (upper <= lower if width is None else width <= 0)
    lower, upper = lower.clamp(min=-reach), upper.clamp(max=reach)
    width = upper - lower if width is None else width.clamp(max=2 * reach)
    middle = 0.5 * (lower + upper)
    narrow = width * (1 - middle) < 0.5
    usual = ~(narrow | lost)
    # Each branch gets numbers that it can differentiate where the other one answers.
    places = ((lower, -1.0), (upper, 0.0), (width, 1.0))
    wide = _log_difference(*(torch.where(usual, place, safe) for place, safe in places))
    thin = narrow & ~lost
    near = _log_quadrature(torch.where(thin, middle, 0.0), torch.where(thin, 0.5 * width, 0.1))
    return torch.where(lost, -torch.inf, torch.where(narrow, near, wide))


def _log_difference(lower: Tensor, upper: Tensor, width: Tensor) -> Tensor:
    """Return log Φ(b) + log(1 − Φ(a)/Φ(b)), the middle at or below zero."""
    above = torch.special.log_ndtr(upper)
    near = torch.special.log_ndtr(lower) - above
    # Far away these are −z²/2 both: their difference is −½(b − a)|a + b| and little else.
    far = upper < -2
    low, high = (torch.where(far, end, safe) for end, safe in ((lower, -4.0), (upper, -3.0)))
    scaled = [torch.special.erfcx(end * -math.sqrt(0.5)).log() for end in (low, high)]
    ratio = torch.where(far, scaled[0] - scaled[1] + 0.5 * width * (low + high), near)
    return above + torch.log1p(-torch.exp(ratio))


def _log_quadrature(middle: Tensor, half: Tensor) -> Tensor:
    """Return log ∫ φ over middle ± half by six Gauss–Legendre nodes: no difference to round."""
    nodes, weights = gauss_legendre(6, middle)
    step = half.unsqueeze(-1) * (2 * nodes - 1)
    relative = torch.exp(-step * (middle.unsqueeze(-1) + 0.5 * step)) @ weights
    return (2 * half * relative).log() - 0.5 * (middle.square() + LOG_2PI)


def gauss_legendre(count: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return nodes and weights on [0, 1], in the dtype and on the device of `like`."""
    # Golub and Welsch: the nodes are the eigenvalues of the recurrence's matrix.
    order = torch.arange(1, count, dtype=torch.float64)
    matrix = torch.diag(order / (4 * order.square() - 1).sqrt(), 1)
    nodes, vectors = torch.linalg.eigh(matrix + matrix.mT)
    return (0.5 * (nodes + 1)).to(like), vectors[0].square().to(like)
