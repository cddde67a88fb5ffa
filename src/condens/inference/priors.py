"""Priors of a simulator's parameters: which transform makes each parameter a real number.

A box becomes standard normal by the probit, so that nothing is left for the mixture to bend where
the observation says little.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.constraints import Constraint

from condens.data.arrays import as_doubles
from condens.distributions import Mixture
from condens.distributions.checks import Numbers
from condens.errors import ArgumentError
from condens.transforms import Integer, Interval, Positive, Real, Transform

Prior: TypeAlias = Distribution | Sequence[Distribution] | tuple[Numbers, Numbers]

# Half a step of single precision between 0 and 1: draws in it reach the bounds of a box.
HALF_STEP = 2.0**-25
# Where more of the draws lie on a bound, they were not rounded to it.
MAX_ROUNDED = 1e-3


def transforms_of(prior: Prior, count: int) -> tuple[Transform, ...]:
    """Return the transform of each parameter, from the support of their prior.

    Args:
        prior: see `posterior`.
        count: of the parameters.

    >>> from torch.distributions import Gamma, Normal, Uniform
    >>> transforms_of(([0, -1], [5, 1]), 2)[1]
    Interval(lower=-1.0, upper=1.0, link='probit')
    >>> transforms_of([Gamma(2.0, 1.0), Normal(0.0, 1.0)], 2)
    (Positive(lower=0.0), Real())
    """
    if isinstance(prior, Mixture):
        found = list(prior.transforms)
    elif isinstance(prior, Distribution):
        found = _of_distribution(prior, count)
    elif not isinstance(prior, tuple | list):
        raise _refused(prior)
    elif parts := [one for one in prior if isinstance(one, Distribution)]:
        if len(parts) < len(prior):
            raise _refused(prior)
        found = [each for one in parts for each in _of_distribution(one, 1)]
    elif len(prior) == 2:
        lower, upper = (
            torch.from_numpy(as_doubles(end, f"prior[{i}]")) for i, end in enumerate(prior)
        )
        found = _of_bounds(prior, lower, upper, count)
    else:
        raise _refused(prior)
    if len(found) != count:
        raise ArgumentError(
            "prior",
            got=f"is over {len(found)} parameter(s)",
            expected=f"parameters has {count} column(s)",
            fix="Pass the prior that the parameters were drawn from.",
        )
    return tuple(found)


def off_bounds(transform: Transform, draws: Tensor) -> Tensor:
    """Return draws [n] of a prior, those that were rounded to a bound moved half a step inside."""
    if not isinstance(transform, Interval):
        return draws
    draws, step = draws.double(), HALF_STEP * transform.width
    low, high = draws == transform.lower, draws == transform.upper
    if float((low | high).double().mean()) > max(MAX_ROUNDED, 1 / len(draws)):
        return draws
    inside = torch.where(low, transform.lower + step, draws)
    return torch.where(high, transform.upper - step, inside)


def _of_distribution(prior: Distribution, count: int) -> list[Transform]:
    """Return the transforms of a distribution; one over a single number is that of each."""
    shape = prior.batch_shape + prior.event_shape
    return _of_support(prior, prior.support, shape.numel() if shape else count)


def _of_support(prior: Distribution, support: Constraint | None, count: int) -> list[Transform]:
    """Return the transforms of a constraint over `count` numbers."""
    if isinstance(support, constraints.independent):
        return _of_support(prior, support.base_constraint, count)
    if isinstance(support, constraints.cat):
        parts = zip(support.cseq, support.lengths, strict=True)
        return [each for part, length in parts for each in _of_support(prior, part, length)]
    if support in (constraints.real, constraints.real_vector):
        return [Real()] * count
    lower, upper = (getattr(support, f"{end}_bound", None) for end in ("lower", "upper"))
    if support is None or lower is None or (upper is not None and support.is_discrete):
        raise _refused(prior)
    lower = torch.as_tensor(lower, dtype=torch.float64)
    if upper is not None:
        return _of_bounds(prior, lower, torch.as_tensor(upper, dtype=torch.float64), count)
    bounds = _spread(prior, lower, count)
    return [Integer(int(low)) if support.is_discrete else Positive(low) for low in bounds]


def _of_bounds(prior: Any, lower: Tensor, upper: Tensor, count: int) -> list[Transform]:
    pairs = zip(_spread(prior, lower, count), _spread(prior, upper, count), strict=True)
    return [Interval(*pair) for pair in pairs]


def _spread(prior: Any, bound: Tensor, count: int) -> list[float]:
    """Return one bound for each parameter."""
    flat: list[float] = bound.flatten().tolist()
    if len(flat) not in (1, count):
        raise _refused(prior)
    return flat * count if len(flat) == 1 else flat


def _refused(prior: Any) -> ArgumentError:
    return ArgumentError(
        "prior",
        got=f"is {str(prior)[:200]}",
        expected="bounds (lower, upper), a torch distribution over real, positive, bounded or "
        "whole numbers, or a list with one for each parameter was expected",
        fix="Leave it out, and pass target_transform.",
    )
