"""Component diagnostics: how many are used and distinct, and which rows they explain."""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from condens.distributions.base import Mixture
from condens.errors import (
    CollapsedComponentsWarning,
    CondensWarning,
    IllConditionedWarning,
    UnexplainedRowsWarning,
    UnusedComponentsWarning,
)
from condens.nn import DensityNetwork

ROWS_DIAGNOSED = 256
# Multiplications spent on condition numbers, an epoch.
MAX_MULTIPLICATIONS = 100_000
# Warnings of more components than the data need: no news where nobody chose their number.
UNNEEDED = (CollapsedComponentsWarning, UnusedComponentsWarning)
# A row whose distance from every component is less probable than this is explained by none.
UNEXPLAINED_PROBABILITY = 1e-6
# Fewer such rows are chance: one in a small fold would be several percent.
MIN_UNEXPLAINED_ROWS = 3


class Diagnosis(NamedTuple):
    """Numbers about the mixtures predicted for some rows; of several members, their means.

    Args:
        used_components: exp of the entropy of the mean responsibilities.
        distinct_components: exp of the mutual information of component and row; 1 if all
            components are alike.
        largest_condition_number: of the covariances of all members.
        unexplained_fraction: of the rows, those beyond 1 − 10⁻⁶ of every component.
        usage: mean responsibility of each component, over the number of members.
    """

    used_components: float
    distinct_components: float
    largest_condition_number: float
    unexplained_fraction: float
    usage: list[float]


@torch.no_grad()
def diagnose(network: DensityNetwork, condition: Tensor, target: Tensor) -> Diagnosis:
    """Diagnose the mixtures of the first rows, which are standardised and in random order."""
    complete = (~target.isnan().any(1)).nonzero().flatten()[:ROWS_DIAGNOSED]
    if not len(complete):
        return Diagnosis(math.nan, math.nan, math.nan, math.nan, [])
    return diagnose_mixtures(network.mixture_of(condition[complete]), target[complete])


@torch.no_grad()
def diagnose_mixtures(mixture: Mixture, target: Tensor) -> Diagnosis:
    """Diagnose the mixtures of complete rows, [b] or of several members [M, b]."""
    density = mixture.component_log_prob(target).double()
    logits = mixture.logits.double()
    joint = torch.log_softmax(logits, -1) + density
    # A row with density 0 in every component says nothing: its responsibilities are the weights.
    lost = joint.amax(-1, keepdim=True) == -torch.inf
    responsibilities = torch.softmax(torch.where(lost, logits, joint), -1)
    usage = responsibilities.mean(-2)
    used = _entropy(usage)
    distinct = used - _entropy(responsibilities).mean(-1)
    # Half the squared distance from the nearest component.
    half_square = (mixture.peak_log_prob() - density).amin(-1)
    unexplained = half_square > _unexplained_from(target.shape[-1])
    members = usage.numel() // usage.shape[-1]
    return Diagnosis(
        float(used.exp().mean()),
        float(distinct.clamp(min=0).exp().mean()),
        mixture.largest_condition_number(MAX_MULTIPLICATIONS),
        float(unexplained.double().mean()),
        (usage.flatten() / members).tolist(),
    )


def combine(found: Sequence[Diagnosis]) -> Diagnosis:
    """Return the mean over members, of which some may have had no row to be diagnosed on."""
    known = [one for one in found if one.usage]
    if len(found) == 1 or not known:
        return found[0]
    count = len(known)
    return Diagnosis(
        sum(one.used_components for one in known) / count,
        sum(one.distinct_components for one in known) / count,
        max(one.largest_condition_number for one in known),
        sum(one.unexplained_fraction for one in known) / count,
        [part / count for one in known for part in one.usage],
    )


@cache
def _unexplained_from(dimensions: int) -> float:
    """Return the half of a squared distance with this tail of χ², by bisection."""
    low, high = 0.0, 100.0 + dimensions
    shape = torch.tensor(dimensions / 2, dtype=torch.float64)
    while (middle := (low + high) / 2) not in (low, high):
        tail = float(torch.special.gammaincc(shape, torch.full_like(shape, middle)))
        low, high = (low, middle) if tail < UNEXPLAINED_PROBABILITY else (middle, high)
    return high


def problems(found: Diagnosis, n_rows: int, members: int = 1) -> list[CondensWarning]:
    """Return a warning for every problem in `n_rows` rows of all members, with what to do."""
    n_components, used = len(found.usage) // members, found.used_components
    candidates = [
        (
            found.unexplained_fraction > max(0.01, (MIN_UNEXPLAINED_ROWS - 0.5) / max(n_rows, 1)),
            UnexplainedRowsWarning(
                f"{found.unexplained_fraction:.1%} of the validation rows are explained by no "
                "component. Use more components, a larger floor or more target_noise, or look for "
                "outliers."
            ),
        ),
        (
            found.largest_condition_number > 1e10,
            IllConditionedWarning(
                f"A covariance has condition number {found.largest_condition_number:.0e}: some "
                "targets are almost functions of others. Drop them, or raise the floor or "
                "target_noise."
            ),
        ),
        (
            n_components > 1 and used > 1.5 and found.distinct_components < 1.02,
            CollapsedComponentsWarning(
                f"All {n_components} components are alike: one would give the same density. Use "
                "fewer components; if the target should have several modes, train with "
                "start='data' and without a bound."
            ),
        ),
        (
            n_components > 2 and used < 1.1,
            UnusedComponentsWarning(
                f"Nearly all weight is on one of {n_components} components. Use fewer components; "
                "if the target should have several modes, train with start='data', a smaller "
                "learning_rate or some entropy."
            ),
        ),
    ]
    return [warning for applies, warning in candidates if applies]


def _entropy(probabilities: Tensor) -> Tensor:
    return -torch.special.xlogy(probabilities, probabilities).sum(-1)
