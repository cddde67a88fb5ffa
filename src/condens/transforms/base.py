"""`Transform`: the base of the transforms between constrained targets and the real line."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor
from torch.distributions import biject_to, constraints, transform_to
from torch.distributions import transforms as torch_transforms
from torch.distributions.constraints import Constraint

from condens.errors import ArgumentError, NoClosedFormError
from condens.functional import pushforward
from condens.functional.precision import widen
from condens.functional.tracing import anywhere

# What to do about values that many rows share, at a bound or at an end of the range.
ON_A_BOUND = (
    "A continuous density gives a single value no probability. Leave these rows out and let a "
    "classifier tell how often they occur, pass 'count' if all are whole numbers, or widen the "
    "bounds by half the resolution of the measurement if they are only rounded."
)


class Transform(ABC):
    """A monotone transform between the values y of a target and real numbers x.

    Every method works elementwise and in double precision. NaN, which means "not
    observed", passes through.
    """

    kind: ClassVar[str]
    discrete: ClassVar[bool] = False
    # What `from_dict` adds where it is not said.
    implied: ClassVar[Mapping[str, Any]] = {}

    @property
    def exponential(self) -> bool:
        """Whether y grows with the exponential of x."""
        return False

    @property
    def slope_growth(self) -> float:
        """The q of dx/dz = exp(½ q x²) Σ exp(a x + c); see `slope_terms`."""
        return 0.0

    @property
    @abstractmethod
    def description(self) -> str:
        """What the values are, such as "numbers above 0"."""

    @property
    @abstractmethod
    def constraint(self) -> Constraint:
        """The support as a torch constraint; `biject_to` finds the transform of it, if any."""

    @abstractmethod
    def contains(self, y: Tensor) -> Tensor:
        """Tell which values lie in the support; NaN does not."""

    @abstractmethod
    def to_real(self, y: Tensor) -> Tensor:
        """Return the real x of values in the support."""

    @abstractmethod
    def from_real(self, x: Tensor) -> Tensor:
        """Return the value of a real x; ±inf gives the ends of the support."""

    def log_slope(self, y: Tensor) -> Tensor:
        """Return log|dx/dy|, what the density gains by the change of units; 0 of whole numbers."""
        return torch.zeros_like(widen(y)) if self.discrete else self.log_slope_at(self.to_real(y))

    def log_slope_at(self, x: Tensor) -> Tensor:
        """Return log|dx/dz| from x, where z is y itself or, of whole numbers, a point in a cell."""
        x = widen(x)
        terms = [torch.full_like(x, c) + (a * x if a else 0) for a, c in self.slope_terms().items()]
        total = terms[0] if len(terms) == 1 else torch.stack(terms).logsumexp(0)
        return total + 0.5 * self.slope_growth * x.square() if self.slope_growth else total

    @abstractmethod
    def slope_terms(self) -> dict[int, float]:
        """Return {a: c, …} with dx/dz = exp(½ q x²) Σ exp(a x + c), z as in `log_slope_at`."""

    @abstractmethod
    def mean_log_slope(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return E[log|dx/dz|] where X ~ N(mean, deviation²), z as in `log_slope_at`."""

    @abstractmethod
    def affine(self, scale: float, loc: float) -> tuple["Transform", float, float]:
        """Return the transform of scale·y + loc, and scale and loc of its x in terms of x."""

    @abstractmethod
    def crps(self, y: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
        """Return the CRPS at y where X is a one-dimensional mixture. Shapes: [..., 1] → [...]."""

    @abstractmethod
    def mean(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return E[Y] where X ~ N(mean, deviation²)."""

    @abstractmethod
    def variance(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return Var[Y] where X ~ N(mean, deviation²)."""

    @abstractmethod
    def coefficients(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return the Hermite coefficients of Y [..., ORDER]; see `functional.pushforward`."""

    def overflows(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Tell whether E[Y²] is beyond double precision, where X ~ N(mean, deviation²)."""
        return pushforward.lognormal_overflows(mean, deviation) & self.exponential

    def threshold(self, y: Tensor) -> Tensor:
        """Return the x with {Y ≤ y} = {X ≤ x}: −inf below the support, +inf above."""
        y = widen(y)
        inside = self.contains(y)
        x = self.to_real(torch.where(inside, y, self.from_real(torch.zeros_like(y))))
        below = y <= self.from_real(torch.full_like(y, -torch.inf))
        beyond = torch.where(below, -torch.inf, torch.where(y.isnan(), torch.nan, torch.inf))
        return torch.where(inside, x, beyond)

    def ends(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the real x of {Y < y} = {X < x}, that of {Y ≤ y}, and the distance of the two."""
        x = self.threshold(y)
        return x, x, torch.zeros_like(x)

    def box_ends(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the real ends of {lower ≤ Y ≤ upper}, and their distance: not above 0 of none."""
        (low, _, _), (_, high, width) = self.ends(lower), self.ends(upper)
        # Of two infinities of one sign the difference is NaN, and there is nothing between.
        between = torch.where(low == high, 0.0, high - low)
        return low, high, torch.where(lower == upper, width, between)

    def nearest(self, y: Tensor) -> Tensor:
        """Return the nearest value in the support, in the dtype that comes."""
        ends = torch.tensor([-torch.inf, torch.inf], dtype=torch.float64)
        lower, upper = self.from_real(ends).to(y.dtype).to(y.device)
        return y.clamp(torch.nextafter(lower, upper), torch.nextafter(upper, lower))

    def check(self, name: str, y: Tensor) -> None:
        """Refuse values outside the support, and say how many lie on its bounds; NaN passes."""
        bad = ~(self.contains(widen(y)) | y.isnan())
        if not anywhere(bad):
            return
        where, fix = bad.nonzero()[0].tolist(), "Correct the value, or choose another transform."
        got = f"has {float(y[tuple(where)]):g}" + (f" at index {where}" if where else "")
        ends = self.from_real(torch.tensor([-torch.inf, torch.inf], dtype=torch.float64)).tolist()
        seen = widen(y[~y.isnan()])
        shares = {end: float((seen == end).double().mean()) for end in ends if math.isfinite(end)}
        crowded = [f"{share:.2%} of the rows on {end:g}" for end, share in shares.items() if share]
        if crowded and len(seen) > 1:
            got, fix = f"{got}, and {' and '.join(crowded)}", ON_A_BOUND
        raise ArgumentError(name, got=got, expected=f"{self.description} were expected", fix=fix)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values from which `from_dict` builds an equal transform.

        >>> from condens.transforms.kinds import Interval
        >>> Interval(0.0, 10.0).to_dict()
        {'kind': 'interval', 'lower': 0.0, 'upper': 10.0, 'link': 'probit'}
        """
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "Transform":
        """Return the transform that `to_dict` described.

        >>> Transform.from_dict({"kind": "integer", "lower": 0})
        Integer(lower=0)
        """
        try:
            rest = dict(values)
            kind = TRANSFORMS[rest.pop("kind")]
            return kind(**{**kind.implied, **rest})
        except ArgumentError:
            raise
        except (KeyError, TypeError, ValueError):
            raise ArgumentError(
                "values",
                got=f"is {str(values)[:200]}",
                expected=f"kind must be one of {', '.join(TRANSFORMS)}",
                fix="Pass what to_dict() returned.",
            ) from None

    def _refuse_affine(self, scale: float, loc: float, *, expected: str, fix: str) -> NoReturn:
        raise NoClosedFormError(
            f"affine by {scale:g} and {loc:g}",
            got=f"was asked of {self.description}",
            expected=expected,
            fix=fix,
        )


# The transforms that go into files, by kind; `kinds` fills it.
TRANSFORMS: dict[str, type[Transform]] = {}


class WholeNumbers(Constraint):
    """Whole numbers from a lower bound on, if there is one, as a torch constraint."""

    is_discrete = True

    def __init__(self, lower_bound: int | None) -> None:
        self.lower_bound = lower_bound

    def check(self, value: Tensor) -> Tensor:
        """Tell which values are whole and not below the bound."""
        whole = (value == value.floor()) & value.isfinite()
        return whole if self.lower_bound is None else whole & (value >= self.lower_bound)

    def __repr__(self) -> str:
        return f"WholeNumbers(lower_bound={self.lower_bound})"


class Between(constraints.interval):
    """The support of numbers between two bounds as a torch constraint, with its own bijection."""

    def __init__(self, transform: "Transform", lower_bound: float, upper_bound: float) -> None:
        super().__init__(lower_bound, upper_bound)  # type: ignore[no-untyped-call]
        self.transform = transform


class Bijection(torch_transforms.Transform):
    """A transform from real numbers to targets, as torch has them: x ↦ from_real(x)."""

    domain = constraints.real
    bijective = True
    sign = 1

    def __init__(self, support: Between, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.codomain = support
        self._support = support

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bijection) and other._own == self._own

    def __hash__(self) -> int:
        return hash(self._own)

    def with_cache(self, cache_size: int = 1) -> "Bijection":
        """Return the same bijection with another cache."""
        return Bijection(self._support, cache_size)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:  # noqa: ARG002
        """Return log|dy/dx|."""
        return -self._own.log_slope_at(x).to(x.dtype)

    @property
    def _own(self) -> Transform:
        return self._support.transform

    def _call(self, x: Tensor) -> Tensor:
        return self._own.nearest(self._own.from_real(x).to(x.dtype))

    def _inverse(self, y: Tensor) -> Tensor:
        return self._own.to_real(y).to(y.dtype)


def _refuse(constraint: WholeNumbers) -> NoReturn:
    raise NoClosedFormError(
        "the support",
        got=f"has {constraint}",
        expected="no bijection leads from the real line to whole numbers",
        fix="Take marginal(dims) over the continuous dimensions, condition on the whole numbers, "
        "or infer them by importance sampling.",
    )


for _registry in (biject_to, transform_to):
    _registry.register(WholeNumbers, _refuse)
    _registry.register(Between, Bijection)
