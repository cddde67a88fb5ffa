"""The transforms: real, positive, interval and integer targets."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from condens.errors import ArgumentError
from condens.functional import pushforward, scores
from condens.functional.precision import widen
from condens.scalars import as_choice, as_real, as_whole
from condens.transforms import scores as adaptive
from condens.transforms.base import TRANSFORMS, Between, Transform, WholeNumbers
from condens.transforms.links import LINKS, Link

# Up to here double precision holds every whole number.
MAX_BOUND = 2**53
NO_BOUND = "Leave out a bound that there is not."


@dataclass(frozen=True)
class Real(Transform):
    """Any real number, as it is: x = y."""

    kind = "real"
    description = "finite numbers"
    constraint = constraints.real

    def contains(self, y: Tensor) -> Tensor:
        """Tell which values are finite."""
        return y.isfinite()

    def to_real(self, y: Tensor) -> Tensor:
        """Return y."""
        return widen(y)

    def from_real(self, x: Tensor) -> Tensor:
        """Return x."""
        return widen(x)

    def slope_terms(self) -> dict[int, float]:
        """Return those of 1."""
        return {0: 0.0}

    def mean_log_slope(self, mean: Tensor, deviation: Tensor) -> Tensor:  # noqa: ARG002
        """Return 0."""
        return torch.zeros_like(mean)

    def affine(self, scale: float, loc: float) -> tuple[Transform, float, float]:
        """Return what was asked of y."""
        return self, scale, loc

    def crps(self, y: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
        """Return the closed form for Gaussians."""
        return scores.crps(y, logits, means, factors)

    def mean(self, mean: Tensor, deviation: Tensor) -> Tensor:  # noqa: ARG002
        """Return μ."""
        return mean

    def variance(self, mean: Tensor, deviation: Tensor) -> Tensor:  # noqa: ARG002
        """Return σ²."""
        return deviation.square()

    def coefficients(self, mean: Tensor, deviation: Tensor) -> Tensor:  # noqa: ARG002
        """Return (σ, 0, 0, …)."""
        return torch.nn.functional.pad(deviation.unsqueeze(-1), (0, pushforward.ORDER - 1))


@dataclass(frozen=True)
class Positive(Transform):
    """Numbers above a bound: x = log(y − lower).

    >>> Positive().to_real(torch.tensor(1.0))
    tensor(0., dtype=torch.float64)
    """

    lower: float = 0.0
    kind = "positive"

    exponential = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "lower", as_real("lower", self.lower, fix=NO_BOUND))

    @property
    def description(self) -> str:
        """The bound in words."""
        return f"finite numbers above {self.lower:g}"

    @property
    def constraint(self) -> Constraint:
        """The bound as a torch constraint."""
        return constraints.greater_than(self.lower)

    def contains(self, y: Tensor) -> Tensor:
        """Tell which values are finite and above the bound."""
        return (y > self.lower) & y.isfinite()

    def to_real(self, y: Tensor) -> Tensor:
        """Return log(y − lower)."""
        return (widen(y) - self.lower).log()

    def from_real(self, x: Tensor) -> Tensor:
        """Return lower + e^x."""
        return self.lower + widen(x).exp()

    def slope_terms(self) -> dict[int, float]:
        """Return those of e^−x."""
        return {-1: 0.0}

    def mean_log_slope(self, mean: Tensor, deviation: Tensor) -> Tensor:  # noqa: ARG002
        """Return −μ."""
        return -mean

    def affine(self, scale: float, loc: float) -> tuple[Transform, float, float]:
        """Move the bound: log(scale (y − lower)) = x + log scale."""
        if scale < 0:
            self._refuse_affine(
                scale,
                loc,
                expected="a negative scale turns a lower bound into an upper one",
                fix="Scale by its absolute value.",
            )
        return Positive(scale * self.lower + loc), 1.0, math.log(scale)

    def crps(self, y: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
        """Return the closed form for lognormal numbers."""
        return scores.lognormal_crps(widen(y) - self.lower, logits, means, factors)

    def mean(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return lower + exp(μ + σ²/2)."""
        return self.lower + pushforward.lognormal_mean(mean, deviation)

    def variance(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return (e^σ² − 1) exp(2μ + σ²)."""
        return pushforward.lognormal_variance(mean, deviation)

    def coefficients(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return those of the exponential."""
        return pushforward.lognormal_coefficients(mean, deviation)


@dataclass(frozen=True)
class Interval(Transform):
    """Numbers between two bounds: y = lower + (upper − lower) F(x).

    Args:
        lower, upper: the bounds, which no number reaches.
        link: "probit" for F = Φ, the distribution function of a standard normal, so that a uniform
            y is a standard normal x; "logit" for the logistic function F(x) = 1/(1 + e^−x).

    A Gaussian x that is wider than the standard normal has, by the probit, a density of y that
    grows without limit towards the bounds; by the logit none does.

    >>> Interval(0.0, 10.0).from_real(torch.tensor(0.0))
    tensor(5., dtype=torch.float64)
    >>> Interval(0.0, 1.0, link="logit").to_real(torch.tensor(0.75))
    tensor(1.0986, dtype=torch.float64)
    """

    lower: float
    upper: float
    link: Literal["probit", "logit"] = "probit"
    kind = "interval"
    # Files from before there was a choice do not name the link.
    implied = {"link": "logit"}  # noqa: RUF012  (a constant of the class)

    def __post_init__(self) -> None:
        link = as_choice("link", self.link, tuple(LINKS), fix="Pass one of these words.")
        object.__setattr__(self, "link", link)
        for name in ("lower", "upper"):
            object.__setattr__(self, name, as_real(name, getattr(self, name), fix=NO_BOUND))
        if not self.lower < self.upper:
            raise ArgumentError(
                "upper",
                got=f"is {self.upper!r}",
                expected=f"it must be above lower, {self.lower!r}",
                fix="Swap them, or widen the range.",
            )
        if not math.isfinite(self.width) or math.nextafter(self.lower, self.upper) == self.upper:
            raise ArgumentError(
                "upper",
                got=f"is {self.upper!r}",
                expected=f"from lower, {self.lower!r}, to it there must be numbers, "
                "not all of them",
                fix="Scale the target.",
            )

    @property
    def description(self) -> str:
        """The bounds in words."""
        return f"numbers between {self.lower:g} and {self.upper:g}, both excluded,"

    @property
    def constraint(self) -> Constraint:
        """The bounds as a torch constraint."""
        return Between(self, self.lower, self.upper)

    @property
    def width(self) -> float:
        """The distance of the bounds."""
        return self.upper - self.lower

    def contains(self, y: Tensor) -> Tensor:
        """Tell which values lie strictly between the bounds."""
        return (y > self.lower) & (y < self.upper)

    def to_real(self, y: Tensor) -> Tensor:
        """Return F⁻¹((y − lower)/(upper − lower))."""
        y = widen(y)
        return self._link.quantile(y - self.lower, self.upper - y)

    def from_real(self, x: Tensor) -> Tensor:
        """Return the value, counted from the bound that is nearer."""
        x = widen(x)
        low = x < 0
        return self._counted(self._link.cdf(torch.where(low, x, -x)), low)

    @property
    def slope_growth(self) -> float:
        """That of the link."""
        return self._link.slope_growth

    def slope_terms(self) -> dict[int, float]:
        """Return those of the link, over upper − lower."""
        unit = math.log(self.width)
        return {a: c - unit for a, c in self._link.slope_terms.items()}

    def mean_log_slope(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return that of the link − log(upper − lower)."""
        return self._link.mean_log_slope(mean, deviation) - math.log(self.width)

    def affine(self, scale: float, loc: float) -> tuple[Transform, float, float]:
        """Move the bounds; a negative scale swaps them, and mirrors x."""
        lower, upper = sorted(scale * bound + loc for bound in (self.lower, self.upper))
        return Interval(lower, upper, self.link), math.copysign(1.0, scale), 0.0

    def crps(self, y: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
        """Return the integral, by adaptive quadrature; outside, and the distance to the bound."""
        link = self._link
        inside = adaptive.bounded_crps(
            self.threshold(y), logits, means, factors, rate=link.density, reach=link.reach
        )
        y = widen(y).squeeze(-1)
        return self.width * inside + (self.lower - y).relu() + (y - self.upper).relu()

    def mean(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return lower + (upper − lower) E F(X), counted from the bound that is nearer."""
        low = mean < 0
        return self._counted(self._link.mean(torch.where(low, mean, -mean), deviation), low)

    def variance(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return (upper − lower)² Var F(X)."""
        return self.width**2 * self._link.variance(mean, deviation)

    def coefficients(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return those of F, scaled."""
        return self.width * self._link.coefficients(mean, deviation)

    @property
    def _link(self) -> Link:
        return LINKS[self.link]

    def _counted(self, share: Tensor, low: Tensor) -> Tensor:
        """Return the value at a share of the width from the lower bound, or from the upper one."""
        inwards = self.width * share
        return torch.where(low, self.lower + inwards, self.upper - inwards)


@dataclass(frozen=True)
class Integer(Transform):
    """Whole numbers: y = ⌊z⌋ with z = x, or with a bound z = lower + e^x.

    A whole number is the cell y ≤ z < y + 1, and its probability that of the cell. In
    training a uniform part of the cell is added, `dequantise`: the bound of
    variational dequantisation.

    >>> counts = Integer(lower=0)
    >>> counts.cell(torch.tensor([0.0, 1.0]))
    (tensor([-inf, 0.], dtype=torch.float64), tensor([0.0000, 0.6931], dtype=torch.float64))
    """

    lower: int | None = None
    kind = "integer"
    discrete = True

    def __post_init__(self) -> None:
        if self.lower is not None:
            bound = as_whole("lower", self.lower, -MAX_BOUND, MAX_BOUND, fix="For counts, pass 0.")
            object.__setattr__(self, "lower", bound)

    @property
    def exponential(self) -> bool:
        """Whether there is a bound."""
        return self.lower is not None

    @property
    def description(self) -> str:
        """The bound in words."""
        return "whole numbers" + ("" if self.lower is None else f" from {self.lower}")

    @property
    def constraint(self) -> Constraint:
        """The bound as a torch constraint, to which there is no bijection."""
        return WholeNumbers(self.lower)

    def contains(self, y: Tensor) -> Tensor:
        """Tell which values are whole and not below the bound."""
        return self.constraint.check(y)

    def to_real(self, y: Tensor) -> Tensor:
        """Return the x of the middle of the cell."""
        return self._real(widen(y) + 0.5)

    def from_real(self, x: Tensor) -> Tensor:
        """Return ⌊z⌋."""
        x = widen(x)
        return x.floor() if self.lower is None else self.lower + x.exp().floor()

    def cell(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the real ends of the cell of y."""
        y = widen(y)
        return self._real(y), self._real(y + 1)

    def cell_width(self, y: Tensor) -> Tensor:
        """Return the real width of the cell of y, which its ends lose to rounding from 10⁸ on."""
        y = widen(y)
        return torch.ones_like(y) if self.lower is None else (y - self.lower).reciprocal().log1p()

    def dequantise(self, y: Tensor, generator: Generator | None = None) -> Tensor:
        """Return x of y + u, for u uniform strictly between 0 and 1."""
        y = widen(y)
        within = torch.rand(y.shape, dtype=y.dtype, device=y.device, generator=generator)
        # Half a step of the generator: never 0, and rounded it stays below 1.
        return self._real(y + within.clamp(2.0**-54, 1 - 2.0**-53))

    def threshold(self, y: Tensor) -> Tensor:
        """Return the upper end of the cell of ⌊y⌋; −inf below the bound."""
        return self._above(widen(y).floor())

    def ends(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the ends of the cell of y and its width; of other numbers the same end twice."""
        y = widen(y)
        lower, upper, inside = self._above(y.ceil() - 1), self.threshold(y), self.contains(y)
        width = self.cell_width(torch.where(inside, y, 1.0 + (self.lower or 0)))
        return lower, upper, torch.where(inside, width, 0.0)

    def nearest(self, y: Tensor) -> Tensor:
        """Return the value itself, or the largest number in place of infinity."""
        largest = torch.finfo(y.dtype).max
        return y.clamp(-largest, largest)

    def slope_terms(self) -> dict[int, float]:
        """Return those of dx/dz: 1, or e^−x where there is a bound."""
        return {0 if self.lower is None else -1: 0.0}

    def mean_log_slope(self, mean: Tensor, deviation: Tensor) -> Tensor:  # noqa: ARG002
        """Return 0, or −μ where there is a bound."""
        return torch.zeros_like(mean) if self.lower is None else -mean

    def affine(self, scale: float, loc: float) -> tuple[Transform, float, float]:
        """Shift by whole numbers."""
        if scale != 1 or not loc.is_integer():
            self._refuse_affine(
                scale,
                loc,
                expected="only a shift by a whole number keeps them whole",
                fix="Leave them out with marginal(dims), or condition on them.",
            )
        if self.lower is None:
            return self, 1.0, loc
        return Integer(self.lower + int(loc)), 1.0, 0.0

    def crps(self, y: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
        """Return the sum over whole numbers, by adaptive summation.

        Where every component is wider than a million of them, that of z at y + ½.
        """
        found = adaptive.whole_crps(
            y, logits, means, factors, from_real=self.from_real, to_real=self._above
        )
        log_deviations = -widen(factors.squeeze(-1))
        if self.lower is None:
            wide = scores.crps(widen(y) + 0.5, logits, means, factors)
        else:
            wide = scores.lognormal_crps(widen(y) - self.lower + 0.5, logits, means, factors)
            # Down to nine deviations below the mean of x.
            low = widen(means.squeeze(-1)) - 9 * log_deviations.exp()
            log_deviations = log_deviations + low
        return torch.where(adaptive.is_smooth(log_deviations, logits), widen(wide), found)

    def mean(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return E⌊z⌋."""
        first = pushforward.floor_moments(mean, deviation, log=self.lower is not None)[0]
        return first + (self.lower or 0)

    def variance(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return Var⌊z⌋."""
        return pushforward.floor_moments(mean, deviation, log=self.lower is not None)[1]

    def coefficients(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return those of ⌊z⌋."""
        return pushforward.floor_coefficients(mean, deviation, log=self.lower is not None)

    def _above(self, y: Tensor) -> Tensor:
        """Return the x of z = y + 1; −inf below the bound."""
        above = y + 1
        if self.lower is None:
            return above
        held = above > self.lower
        return torch.where(held, self._real(torch.where(held, above, self.lower + 1)), -torch.inf)

    def _real(self, z: Tensor) -> Tensor:
        return z if self.lower is None else (z - self.lower).log()


TRANSFORMS.update({one.kind: one for one in (Real, Positive, Interval, Integer)})
