"""Moments of Gaussian components seen through one transform for each dimension.

Shapes: means [..., K, D] and covariances [..., K, D, D] of the components, D transforms.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from condens.functional import pushforward
from condens.transforms.base import Transform
from condens.transforms.kinds import Integer, Interval, Positive, Real

Moment = Literal["mean", "variance", "mean_log_slope", "overflows"]


def transformed(
    moment: Moment, transforms: Sequence[Transform], means: Tensor, variances: Tensor
) -> Tensor:
    """Return what a method of `Transform` tells of Yⱼ, of every component [..., K, D].

    Shapes: variances [..., K, D].
    """
    columns = _columns(transforms, means, variances)
    return torch.stack([getattr(c.transform, moment)(c.mean, c.deviation) for c in columns], -1)


def transformed_covariances(
    transforms: Sequence[Transform], means: Tensor, covariances: Tensor
) -> Tensor:
    """Return Cov[Yᵢ, Yⱼ] of every component [..., K, D, D].

    Exact where one of the two is real (Stein's lemma) or positive (a shift of the mean), and
    between intervals by the probit (the distribution function of two normal variables). Between
    other intervals and integers by `pushforward.ORDER` terms of Mehler's expansion, which
    converges slowly for integers, and intervals with deviations above 10, that are all but
    equal: relative to the variances the error is 10⁻⁷ at a correlation of 0.9 within a
    component, 4·10⁻⁴ at 0.97, 6·10⁻³ at 0.99, 4·10⁻² at 0.999.
    """
    variances = covariances.diagonal(dim1=-2, dim2=-1)
    dimensions, ones = range(len(transforms)), _columns(transforms, means, variances)
    entries = {(j, j): c.transform.variance(c.mean, c.deviation) for j, c in enumerate(ones)}
    for i in dimensions:
        for j in range(i):
            entries[i, j] = entries[j, i] = _cross(ones[i], ones[j], covariances[..., i, j])
    rows = [torch.stack([entries[i, j] for j in dimensions], -1) for i in dimensions]
    return torch.stack(rows, -2)


class _Column:
    """One dimension of every component; its coefficients are computed at most once."""

    def __init__(self, transform: Transform, mean: Tensor, deviation: Tensor) -> None:
        self.transform, self.mean, self.deviation = transform, mean, deviation

    @cached_property
    def coefficients(self) -> Tensor:
        return self.transform.coefficients(self.mean, self.deviation)


def _columns(transforms: Sequence[Transform], means: Tensor, variances: Tensor) -> list[_Column]:
    columns = zip(transforms, means.unbind(-1), variances.sqrt().unbind(-1), strict=True)
    return [_Column(*column) for column in columns]


def _cross(first: _Column, second: _Column, covariance: Tensor) -> Tensor:
    """Return Cov[f(X), g(Y)] given Cov[X, Y]."""
    for one, other in ((first, second), (second, first)):
        if isinstance(one.transform, Real):
            return _with_identity(other, covariance)
    for one, other in ((first, second), (second, first)):
        if isinstance(one.transform, Positive):
            return _with_exponential(one, other, covariance)
    if (width := _probit_width(first) * _probit_width(second)) > 0:
        return width * pushforward.probit_covariance(
            first.mean, first.deviation, second.mean, second.deviation, covariance
        )
    correlation = (covariance / (first.deviation * second.deviation)).clamp(-1, 1)
    order = torch.arange(1, pushforward.ORDER + 1, device=covariance.device)
    powers = correlation.unsqueeze(-1) ** order
    total = (first.coefficients * second.coefficients * powers).sum(-1)
    for one, other in ((first, second), (second, first)):
        if isinstance(one.transform, Integer) and one.transform.lower is not None:
            # The series is too short for so wide an exponential, and its floor does not matter.
            total = torch.where(one.deviation > 6, _with_exponential(one, other, covariance), total)
    return total


def _probit_width(column: _Column) -> float:
    """Return the width of an interval by the probit; 0 for any other transform."""
    one = column.transform
    return one.width if isinstance(one, Interval) and one.link == "probit" else 0.0


def _with_identity(other: _Column, covariance: Tensor) -> Tensor:
    """Return Cov[X, g(Y)] = Cov[X, Y] E[g′(Y)]; Stein's lemma, E[g′(Y)] = a₁/σ."""
    if isinstance(other.transform, Real):
        return covariance
    if isinstance(other.transform, Positive):
        return covariance * pushforward.saturated(
            pushforward.lognormal_mean(other.mean, other.deviation)
        )
    return covariance * other.coefficients[..., 0] / other.deviation


def _with_exponential(first: _Column, second: _Column, covariance: Tensor) -> Tensor:
    """Return Cov[e^X, g(Y)] = E[e^X] (E[g(Y + c)] − E[g(Y)]), c = Cov[X, Y]."""
    if isinstance(second.transform, Positive):
        return pushforward.lognormal_covariance(
            first.mean, first.deviation, second.mean, second.deviation, covariance
        )
    size = pushforward.saturated(pushforward.lognormal_mean(first.mean, first.deviation))
    moved = second.transform.mean(second.mean + covariance, second.deviation)
    still = second.transform.mean(second.mean, second.deviation)
    return size * (pushforward.saturated(moved) - pushforward.saturated(still))
