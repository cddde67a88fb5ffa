"""Links of bounded targets: from a share between 0 and 1 to a real number.

A link is the quantile function of a distribution on the real line, symmetric about 0, that a share
has when it is uniform: s = F(x). F(−x) = 1 − F(x), so that digits are kept by counting from the
nearer end.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from condens.functional import normal, pushforward


class Link(ABC):
    """A link, of shares between 0 and 1; every function works elementwise, in double precision."""

    # The x beyond which F is 0 or 1 in double precision.
    reach: ClassVar[float]
    # q and {a: c, …} of the slope dx/ds = exp(½ q x²) Σ exp(a x + c).
    slope_growth: ClassVar[float] = 0.0
    slope_terms: ClassVar[Mapping[int, float]]

    @abstractmethod
    def cdf(self, x: Tensor) -> Tensor:
        """Return F(x), relatively accurate where x < 0."""

    @abstractmethod
    def density(self, x: Tensor) -> Tensor:
        """Return F′(x)."""

    @abstractmethod
    def quantile(self, below: Tensor, above: Tensor) -> Tensor:
        """Return the x of a share, given in any unit as its distances from 0 and from 1."""

    @abstractmethod
    def mean_log_slope(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return E[log dx/ds] where X ~ N(mean, deviation²)."""

    @abstractmethod
    def mean(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return E F(X) where X ~ N(mean, deviation²)."""

    @abstractmethod
    def variance(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return Var F(X) where X ~ N(mean, deviation²)."""

    @abstractmethod
    def coefficients(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return the Hermite coefficients of F(X) [..., ORDER]; see `functional.pushforward`."""


class Logit(Link):
    """x = log(s/(1 − s)); F is the logistic function 1/(1 + e^−x)."""

    reach = 745.0
    # dx/ds = 2 + e^x + e^−x.
    slope_terms: ClassVar[Mapping[int, float]] = {0: math.log(2), 1: 0.0, -1: 0.0}

    def cdf(self, x: Tensor) -> Tensor:
        """Return 1/(1 + e^−x)."""
        return torch.sigmoid(x)

    def density(self, x: Tensor) -> Tensor:
        """Return F(x) F(−x)."""
        return torch.sigmoid(x) * torch.sigmoid(-x)

    def quantile(self, below: Tensor, above: Tensor) -> Tensor:
        """Return log below − log above."""
        return below.log() - above.log()

    def mean_log_slope(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return E[log(1 + e^X) + log(1 + e^−X)], by quadrature."""
        above, below = (pushforward.softplus_mean(side * mean, deviation) for side in (1, -1))
        return above + below

    def mean(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return the mean, by quadrature."""
        return pushforward.logistic_moments(mean, deviation)[0]

    def variance(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return the variance, by quadrature."""
        return pushforward.logistic_moments(mean, deviation)[1]

    def coefficients(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return those of the logistic function, by quadrature."""
        return pushforward.logistic_coefficients(mean, deviation)


class Probit(Link):
    """x = Φ⁻¹(s): a uniform share is a standard normal x, and the moments have closed forms."""

    reach = 38.5
    # dx/ds = 1/φ(x).
    slope_growth = 1.0
    slope_terms: ClassVar[Mapping[int, float]] = {0: 0.5 * normal.LOG_2PI}

    def cdf(self, x: Tensor) -> Tensor:
        """Return Φ(x)."""
        return normal.cdf(x)

    def density(self, x: Tensor) -> Tensor:
        """Return φ(x)."""
        return normal.density(x)

    def quantile(self, below: Tensor, above: Tensor) -> Tensor:
        """Return Φ⁻¹(s), from the nearer end."""
        low = below < above
        x = normal.quantile(torch.where(low, below, above), below + above)
        return torch.where(low, x, -x)

    def mean_log_slope(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return ½ E[X²] + ½ log 2π."""
        return 0.5 * (mean.square() + deviation.square() + normal.LOG_2PI)

    def mean(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return Φ(μ/√(1 + σ²))."""
        return pushforward.probit_mean(mean, deviation)

    def variance(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return the variance, by the distribution function of two normal variables."""
        return pushforward.probit_variance(mean, deviation)

    def coefficients(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return those of Φ, in closed form."""
        return pushforward.probit_coefficients(mean, deviation)


LINKS: Mapping[str, Link] = {"logit": Logit(), "probit": Probit()}
