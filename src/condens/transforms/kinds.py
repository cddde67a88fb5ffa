"""Maps between targets with a support of their own and the real line, one dimension each."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from condens.errors import ArgumentError
from condens.functional import pushforward
from condens.functional.precision import widen
from condens.scalars import as_whole
from condens.transforms.base import Transform, WholeNumbers, check_bound

# Up to here double precision holds every whole number.
LARGEST = 2**53


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

    def log_slope(self, y: Tensor) -> Tensor:
        """Return 0."""
        return torch.zeros_like(widen(y))

    def log_slope_at(self, x: Tensor) -> Tensor:
        """Return 0."""
        return torch.zeros_like(widen(x))

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
        object.__setattr__(self, "lower", check_bound("lower", self.lower))

    @property
    def description(self) -> str:
        """The bound in words."""
        return f"finite numbers above {self.lower:g}"

    @property
    def constraint(self) -> Constraint:
        """The bound as torch tells it."""
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

    def log_slope(self, y: Tensor) -> Tensor:
        """Return −log(y − lower)."""
        return -self.to_real(y)

    def log_slope_at(self, x: Tensor) -> Tensor:
        """Return −x."""
        return -widen(x)

    def mean(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return lower + exp(μ + σ²/2)."""
        return self.lower + pushforward.lognormal_mean(mean, deviation)

    def variance(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return (e^σ² − 1) exp(2μ + σ²)."""
        return pushforward.lognormal_variance(mean, deviation)

    def coefficients(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return those of the exponential."""
        return pushforward.lognormal_coefficients(mean, deviation)

    def overflows(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Tell whether E[Y²] is beyond double precision."""
        return pushforward.lognormal_overflows(mean, deviation)


@dataclass(frozen=True)
class Interval(Transform):
    """Numbers between two bounds: x = log((y − lower)/(upper − y)).

    >>> Interval(0.0, 10.0).from_real(torch.tensor(0.0))
    tensor(5., dtype=torch.float64)
    """

    lower: float
    upper: float
    kind = "interval"

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            object.__setattr__(self, name, check_bound(name, getattr(self, name)))
        came = f"is {self.upper!r}"
        if not self.lower < self.upper:
            raise ArgumentError(
                "upper",
                got=came,
                expected=f"it must be above lower, {self.lower!r}",
                fix="Swap them, or widen the range.",
            )
        if not math.isfinite(self._width) or math.nextafter(self.lower, self.upper) == self.upper:
            raise ArgumentError(
                "upper",
                got=came,
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
        """The bounds as torch tells them."""
        return constraints.interval(self.lower, self.upper)

    @property
    def _width(self) -> float:
        return self.upper - self.lower

    def contains(self, y: Tensor) -> Tensor:
        """Tell which values lie strictly between the bounds."""
        return (y > self.lower) & (y < self.upper)

    def to_real(self, y: Tensor) -> Tensor:
        """Return log((y − lower)/(upper − y))."""
        y = widen(y)
        return (y - self.lower).log() - (self.upper - y).log()

    def from_real(self, x: Tensor) -> Tensor:
        """Return the value, counted from the bound that is nearer."""
        x = widen(x)
        share = self._width * torch.sigmoid(-x.abs())
        return torch.where(x < 0, self.lower + share, self.upper - share)

    def log_slope(self, y: Tensor) -> Tensor:
        """Return log(upper − lower) − log(y − lower) − log(upper − y)."""
        y = widen(y)
        return math.log(self._width) - (y - self.lower).log() - (self.upper - y).log()

    def log_slope_at(self, x: Tensor) -> Tensor:
        """Return −log s(x) − log s(−x) − log(upper − lower) for the logistic function s."""
        x, log_s = widen(x), torch.nn.functional.logsigmoid
        return -log_s(x) - log_s(-x) - math.log(self._width)

    def mean(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return lower + (upper − lower) E[s(X)] for the logistic function s."""
        return self.lower + self._width * pushforward.logistic_moments(mean, deviation)[0]

    def variance(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return (upper − lower)² Var[s(X)]."""
        return self._width**2 * pushforward.logistic_moments(mean, deviation)[1]

    def coefficients(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return those of the scaled logistic function."""
        return self._width * pushforward.logistic_coefficients(mean, deviation)


@dataclass(frozen=True)
class Integer(Transform):
    """Whole numbers: y = ⌊z⌋ with z = x, or with a bound z = lower + e^x.

    A whole number is the cell y ≤ z < y + 1, and its probability that of the cell. In
    training a uniform share of the cell is added, `dequantise`: the bound of
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
            bound = as_whole("lower", self.lower, -LARGEST, LARGEST, fix="For counts, pass 0.")
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
        """The bound as torch is told; there is no bijection."""
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

    def log_slope(self, y: Tensor) -> Tensor:
        """Return 0: a probability has no unit."""
        return torch.zeros_like(widen(y))

    def log_slope_at(self, x: Tensor) -> Tensor:
        """Return 0, or −x where there is a bound."""
        return torch.zeros_like(widen(x)) if self.lower is None else -widen(x)

    def cell(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the real ends of the cell of y."""
        y = widen(y)
        return self._real(y), self._real(y + 1)

    def cell_width(self, y: Tensor) -> Tensor:
        """Return the real width of the cell of y, which its ends lose to rounding from 10⁸ on."""
        y = widen(y)
        if self.lower is None:
            return torch.ones_like(y)
        return (y - self.lower).reciprocal().log1p()

    def dequantise(self, y: Tensor, generator: Generator | None = None) -> Tensor:
        """Return x of y + u, for u uniform strictly between 0 and 1."""
        y = widen(y)
        share = torch.rand(y.shape, dtype=y.dtype, device=y.device, generator=generator)
        # Half a step of the generator: never 0, and rounded it stays below 1.
        return self._real(y + share.clamp(2.0**-54, 1 - 2.0**-53))

    def threshold(self, y: Tensor) -> Tensor:
        """Return the upper end of the cell of ⌊y⌋; −inf below the bound."""
        above = widen(y).floor() + 1
        if self.lower is None:
            return above
        held = above > self.lower
        return torch.where(held, self._real(torch.where(held, above, self.lower + 1)), -torch.inf)

    def nearest(self, y: Tensor) -> Tensor:
        """Return the value itself, or the largest number in place of infinity."""
        largest = torch.finfo(y.dtype).max
        return y.clamp(-largest, largest)

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

    def overflows(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Tell whether E[Y²] is beyond double precision."""
        if self.lower is None:
            return super().overflows(mean, deviation)
        return pushforward.lognormal_overflows(mean, deviation)

    def _real(self, z: Tensor) -> Tensor:
        return z if self.lower is None else (z - self.lower).log()


TRANSFORMS: Mapping[str, type[Transform]] = {m.kind: m for m in (Real, Positive, Interval, Integer)}


def transform_from_dict(values: Mapping[str, Any]) -> Transform:
    """Return the map that `to_dict` described.

    >>> transform_from_dict({"kind": "integer", "lower": 0})
    Integer(lower=0)
    """
    try:
        rest = dict(values)
        return TRANSFORMS[rest.pop("kind")](**rest)
    except ArgumentError:
        raise
    except (KeyError, TypeError, ValueError):
        raise ArgumentError(
            "values",
            got=f"is {str(values)[:200]}",
            expected=f"kind must be one of {', '.join(TRANSFORMS)}",
            fix="Pass what to_dict() returned.",
        ) from None
