"""Pushforwards f(X) of a normal X: moments of its exponential, logistic function, Φ and floor.

A function's Hermite coefficients aₙ = E[f(X) heₙ(Z)], X = μ + σZ, give its covariance with
any other by Mehler's expansion, Cov(f(X), g(Y)) = Σ aₙbₙρⁿ. A threshold 1(Z ≥ t) has
aₙ = φ(t) heₙ₋₁(t)/√n, and every f here is a sum of thresholds, or nearly.

Shapes: means μ and deviations σ [...] → [...]; coefficients n = 1, …, ORDER → [..., ORDER].
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from condens.functional import bivariate, normal

ORDER = 96
# Numbers beyond e³⁴⁰ have squares beyond double precision.
_MAX_LOG = 340.0
# Thresholds to either side of the median, of ⌊e^X⌋ and of ⌊X⌋; wider densities are smooth.
_LOG_WINDOW, _PLAIN_WINDOW = 128, 32
_ROWS_PER_BLOCK = 64
# Deviations beyond have squares that may overflow, and to which one adds nothing.
_WIDE = 1e10
# A density with this deviation is smooth at unit scale: all but e^(−2π²·4) of it.
_SMOOTH_DEVIATION = 2.0


def saturated(value: Tensor) -> Tensor:
    """Return the value, or ±e³⁴⁰ where it is larger: a number that has a square."""
    return value.clamp(-math.exp(_MAX_LOG), math.exp(_MAX_LOG))


def lognormal_mean(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return E[e^X] = exp(μ + σ²/2)."""
    return (mean + 0.5 * deviation.square()).exp()


def lognormal_variance(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return (e^σ² − 1) E[e^X]², at most e⁶⁸⁰."""
    spread = deviation.square()
    # log(e^s − 1) = s + log(1 − e^−s), which does not overflow.
    exponent = 2 * mean + 2 * spread + (-torch.expm1(-spread)).log()
    return exponent.clamp(max=2 * _MAX_LOG).exp()


def lognormal_covariance(
    mean: Tensor, deviation: Tensor, other_mean: Tensor, other_deviation: Tensor, covariance: Tensor
) -> Tensor:
    """Return Cov[e^X, e^Y] = E[e^X] E[e^Y] (e^c − 1), c = Cov[X, Y], at most e⁶⁸⁰."""
    size = mean + other_mean + 0.5 * (deviation.square() + other_deviation.square())
    product, joint = ((size + c).clamp(max=2 * _MAX_LOG).exp() for c in (0, covariance))
    return torch.where(
        covariance > 1, joint - product, product * torch.expm1(covariance.clamp(max=1))
    )


def lognormal_overflows(mean: Tensor, deviation: Tensor) -> Tensor:
    """Tell whether the second moment of e^X is beyond what is computed with."""
    return mean + deviation.square() > _MAX_LOG


def lognormal_coefficients(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return aₙ = e^(μ + σ²/2) σⁿ/√n!."""
    order = torch.arange(1, ORDER + 1, dtype=mean.dtype, device=mean.device)
    size = (mean + 0.5 * deviation.square()).unsqueeze(-1)
    exponent = size + order * deviation.log().unsqueeze(-1) - 0.5 * torch.lgamma(order + 1)
    return exponent.clamp(max=_MAX_LOG).exp()


def logistic_moments(mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of the logistic function s(X) = 1/(1 + e^−X), to 10⁻¹⁴.

    By the trapezium rule, which converges geometrically here: over z where σ < 1, and
    else over the thresholds l of s(x) = ∫ s′(l) 1(x ≥ l) dl, s(x)² = ∫ 2s(l)s′(l) 1(x ≥ l) dl.
    Where σ < 1 the errors are relative, however small the values are.
    """
    latent, weights = _latent_grid(mean)
    step = deviation.clamp(max=1.0).unsqueeze(-1) * latent
    values = torch.sigmoid(mean.unsqueeze(-1) + step)
    # s(μ + d) − s(μ) = −s(μ + d) s(−μ) expm1(−d): a difference would round small d away.
    rise = -values * torch.sigmoid(-mean).unsqueeze(-1) * torch.expm1(-step)
    gained = rise @ weights
    narrow = torch.sigmoid(mean) + gained
    narrow_spread = (rise - gained.unsqueeze(-1)).square() @ weights
    levels, slopes = _logistic_grid(mean)
    # From the side on which s is small: 1 − s has the same variance, with more digits.
    passed = normal.cdf((-mean.abs().unsqueeze(-1) - levels) / deviation.unsqueeze(-1))
    low, square = passed @ slopes, passed @ (2 * torch.sigmoid(levels) * slopes)
    wide, wide_spread = torch.where(mean > 0, 1 - low, low), (square - low.square()).clamp(min=0.0)
    small = deviation < 1
    return torch.where(small, narrow, wide), torch.where(small, narrow_spread, wide_spread)


def softplus_mean(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return E[log(1 + e^X)], by the rules of `logistic_moments`.

    Where σ ≥ 1 from log(1 + e^x) = ∫ s′(l) (x − l)₊ dl.
    """
    latent, weights = _latent_grid(mean)
    places = mean.unsqueeze(-1) + deviation.clamp(max=1.0).unsqueeze(-1) * latent
    narrow = torch.logaddexp(places, torch.zeros_like(places)) @ weights
    levels, slopes = _logistic_grid(mean)
    above = mean.unsqueeze(-1) - levels
    ratio = (above / deviation.unsqueeze(-1)).clamp(-1e150, 1e150)
    excess = deviation.unsqueeze(-1) * normal.density(ratio) + above * normal.cdf(ratio)
    return torch.where(deviation < 1, narrow, excess @ slopes)


def logistic_coefficients(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return the Hermite coefficients of the logistic function."""
    latent, weights = _latent_grid(mean)
    values = torch.sigmoid(mean.unsqueeze(-1) + deviation.unsqueeze(-1) * latent)
    # The weights include φ; the functions add heₙ.
    functions = torch.stack(list(_hermite(latent, torch.ones_like(latent), ORDER + 1)), -1)
    narrow = values @ (weights.unsqueeze(-1) * functions[..., 1:])
    levels, slopes = _logistic_grid(mean)
    wide = threshold_coefficients(
        (levels - mean.unsqueeze(-1)) / deviation.unsqueeze(-1), slopes.expand(*mean.shape, -1)
    )
    return torch.where((deviation < 1).unsqueeze(-1), narrow, wide)


def probit_mean(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return E Φ(X) = Φ(h), h = μ/√(1 + σ²): the chance that a standard normal is below X."""
    return normal.cdf(_probit_place(mean, deviation)[0])


def probit_variance(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return Var Φ(X) = Φ₂(h, h; ρ) − Φ(h)², ρ = σ²/(1 + σ²)."""
    place, _ = _probit_place(mean, deviation)
    # atanh ρ = ½ log(1 + 2σ²), where 1 − ρ would lose its digits; not squared beyond all numbers.
    wide = deviation > _WIDE
    usual = 0.5 * torch.log1p(2 * torch.where(wide, 1.0, deviation).square())
    far = torch.where(wide, deviation, 1.0).log() + 0.5 * math.log(2)
    return bivariate.excess(place, place, torch.where(wide, far, usual))


def probit_covariance(
    mean: Tensor, deviation: Tensor, other_mean: Tensor, other_deviation: Tensor, covariance: Tensor
) -> Tensor:
    """Return Cov[Φ(X), Φ(Y)] = Φ₂(h, k; ρ) − Φ(h) Φ(k), ρ = c/√((1 + σ²)(1 + τ²))."""
    (first, p), (second, q) = (
        _probit_place(mean, deviation),
        _probit_place(other_mean, other_deviation),
    )
    inner = (covariance / (deviation * other_deviation)).clamp(-1, 1)
    # 1 − ρ² = 1 − pq + pq(1 − r²) with p = σ²/(1 + σ²), and 1 − pq without a difference.
    correlation = inner * (p * q).sqrt()
    rest = [1 / (1 + one.clamp(max=_WIDE).square()) for one in (deviation, other_deviation)]
    left = rest[0] + p * rest[1] + p * q * (1 - inner.square())
    strong = correlation.abs() > 0.5
    size = torch.where(strong, correlation.abs(), 0.5)
    far = size.log1p() - 0.5 * torch.where(strong, left, 0.75).log()
    near = torch.atanh(torch.where(strong, 0.0, correlation))
    return bivariate.excess(first, second, torch.where(strong, far * correlation.sign(), near))


def probit_coefficients(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return aₙ = ρ^(n/2) φ(h) heₙ₋₁(−h)/√n, as of a threshold at −h, with ρ = σ²/(1 + σ²)."""
    place, share = _probit_place(mean, deviation)
    order = torch.arange(1, ORDER + 1, dtype=mean.dtype, device=mean.device)
    # At 40 the density is zero, and its product with a polynomial would be NaN.
    latent = -place.clamp(-40, 40).unsqueeze(-1)
    powers = (0.5 * order * share.log().unsqueeze(-1)).exp()
    return powers * threshold_coefficients(latent, torch.ones_like(latent))


def _probit_place(mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """Return h = μ/√(1 + σ²), and σ²/(1 + σ²)."""
    root = torch.hypot(torch.ones_like(deviation), deviation)
    return mean / root, (deviation / root).square()


def floor_moments(mean: Tensor, deviation: Tensor, *, log: bool) -> tuple[Tensor, Tensor]:
    """Return mean and variance of ⌊X⌋, or of ⌊e^X⌋ where `log`.

    With c near the median, ⌊z⌋ − c is the number of thresholds passed above c, less those
    missed below: sums of normal tails. Above the last of them ⌊z⌋ stands for z − ½, and so
    it does everywhere once the density is smooth at unit scale: E⌊z⌋ = E z − ½ and
    Var⌊z⌋ = Var z + 1/12, to all digits.
    """
    centre, steps, latent = _thresholds(mean, deviation, log=log)
    above = torch.where(steps > 0, normal.cdf(-latent), -normal.cdf(latent))
    first, second = above.sum(-1), (above * (2 * steps - 1)).sum(-1)
    if log:
        rest, rest_square = _beyond(centre, mean, deviation)
        first, second = first + rest, second + rest_square
    smooth = _is_smooth(mean, deviation, log=log)
    whole = lognormal_mean(mean, deviation) if log else mean
    spread = lognormal_variance(mean, deviation) if log else deviation.square()
    counted = (second - saturated(first).square()).clamp(min=0.0)
    return (
        torch.where(smooth, whole - 0.5, centre + first),
        torch.where(smooth, spread + 1 / 12, counted),
    )


def floor_coefficients(mean: Tensor, deviation: Tensor, *, log: bool) -> Tensor:
    """Return the Hermite coefficients of ⌊X⌋, or of ⌊e^X⌋ where `log`."""
    centre, _, latent = _thresholds(mean, deviation, log=log)
    counted = threshold_coefficients(latent, torch.ones_like(latent))
    if log:
        counted = counted + _beyond_coefficients(centre, mean, deviation)
        whole = lognormal_coefficients(mean, deviation)
    else:
        whole = torch.nn.functional.pad(deviation.unsqueeze(-1), (0, ORDER - 1))
    return torch.where(_is_smooth(mean, deviation, log=log).unsqueeze(-1), whole, counted)


def threshold_coefficients(latent: Tensor, weights: Tensor) -> Tensor:
    """Return aₙ = Σₘ wₘ φ(tₘ) heₙ₋₁(tₘ)/√n. Shapes: t and w [..., M] → [..., ORDER]."""
    rows = latent.reshape(-1, latent.shape[-1]), weights.reshape(-1, latent.shape[-1])
    # In blocks that stay in the cache: the recurrence passes over them ORDER times.
    sums = []
    for places, heights in zip(*(t.split(_ROWS_PER_BLOCK) for t in rows), strict=True):
        functions = _hermite(places, heights * normal.density(places), ORDER)
        sums.append(torch.stack([f.sum(-1) / math.sqrt(n) for n, f in enumerate(functions, 1)], -1))
    return torch.cat(sums).reshape(*latent.shape[:-1], ORDER)


def _hermite(latent: Tensor, first: Tensor, count: int) -> Iterator[Tensor]:
    """Yield first·heₙ(z), n = 0, …, count − 1, for the normalised Hermite polynomials."""
    before, now = torch.zeros_like(first), first
    for n in range(1, count + 1):
        yield now
        before, now = now, (latent * now - math.sqrt(n - 1) * before) / math.sqrt(n)


def _latent_grid(like: Tensor) -> tuple[Tensor, Tensor]:
    grid = torch.linspace(-12, 12, 121, dtype=like.dtype, device=like.device)
    return grid, 0.2 * normal.density(grid)


def _logistic_grid(like: Tensor) -> tuple[Tensor, Tensor]:
    grid = torch.linspace(-40, 40, 321, dtype=like.dtype, device=like.device)
    return grid, 0.25 * torch.sigmoid(grid) * torch.sigmoid(-grid)


def _thresholds(mean: Tensor, deviation: Tensor, *, log: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return c, the steps m and the standardised places of the thresholds c + m."""
    centre = (mean.detach().clamp(max=_MAX_LOG).exp() if log else mean.detach()).floor()
    if log:
        # Wide on the log scale: down to zero, so that only one side is left open.
        centre = torch.where(deviation > 0.2, centre.clamp(max=_LOG_WINDOW), centre)
    window = _LOG_WINDOW if log else _PLAIN_WINDOW
    steps = torch.arange(1 - window, window + 1, dtype=mean.dtype, device=mean.device)
    places = centre.unsqueeze(-1) + steps
    # A threshold at or below zero is always passed; −inf would make the gradient NaN.
    always = (places <= 0) & log
    places = torch.where(always, 1.0, places).log() if log else places
    latent = (places - mean.unsqueeze(-1)) / deviation.unsqueeze(-1)
    # At 40 the tail is zero, and a product with infinity would be NaN.
    return centre, steps, torch.where(always, -40.0, latent.clamp(-40, 40))


def _is_smooth(mean: Tensor, deviation: Tensor, *, log: bool) -> Tensor:
    if not log:
        return deviation > _SMOOTH_DEVIATION
    return deviation.log() + mean - 9 * deviation > math.log(_SMOOTH_DEVIATION)


def _open_end(centre: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    return ((centre + _LOG_WINDOW + 0.5).log() - mean) / deviation


def _beyond(centre: Tensor, mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """Return E[(⌊z⌋ − c − M)₊] and E[((⌊z⌋ − c)² − M²)₊] for z = e^X.

    Sums over thresholds as integrals from κ = c + M + ½ on, E[(z − κ)₊] and
    E[((z − c − ½)² − M²)₊], with the first term of Euler and Maclaurin.
    """
    latent, shift = _open_end(centre, mean, deviation), centre + 0.5
    tail, partial, square = (normal.cdf(p * deviation - latent) for p in range(3))
    first = lognormal_mean(mean, deviation) * partial
    exponent = (2 * (mean + deviation.square())).clamp(max=2 * _MAX_LOG)
    second = exponent.exp() * square - 2 * shift * saturated(first)
    excess = second + (shift.square() - _LOG_WINDOW**2) * tail
    density = normal.density(latent) / (deviation * (shift + _LOG_WINDOW))
    return (
        first - (shift + _LOG_WINDOW) * tail - density / 24,
        excess + (tail - _LOG_WINDOW * density) / 12,
    )


def _beyond_coefficients(centre: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Return the coefficients of what `_beyond` has the mean of.

    By parts, Iₙ = E[1(z ≥ κ) z heₙ] follows from Iₙ₋₁; the coefficients are σIₙ₋₁/√n.
    """
    latent = _open_end(centre, mean, deviation).clamp(-40, 40)
    integral = saturated(lognormal_mean(mean, deviation)) * normal.cdf(deviation - latent)
    functions = list(_hermite(latent, normal.density(latent), ORDER + 1))
    height, coefficients = centre + _LOG_WINDOW + 0.5, []
    for n in range(1, ORDER + 1):
        correction = functions[n] / (24 * deviation * height)
        coefficients.append(saturated(deviation * integral / math.sqrt(n)) - correction)
        integral = saturated((height * functions[n - 1] + deviation * integral) / math.sqrt(n))
    return torch.stack(coefficients, -1)
