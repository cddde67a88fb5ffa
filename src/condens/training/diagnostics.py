"""Component diagnostics: how many are used and distinct, and which rows they explain."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

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
# A row whose distance from every component is less probable than this is explained by none.
UNEXPLAINED_PROBABILITY = 1e-6


class Diagnosis(NamedTuple):
    """Numbers about the mixtures predicted for some rows.

    Args:
        used_components: exp of the entropy of the mean responsibilities.
        distinct_components: exp of the mutual information of component and row; 1 if all
            components are alike.
        largest_condition_number: of the covariances.
        unexplained_fraction: of the rows, those beyond 1 − 10⁻⁶ of every component.
        usage: mean responsibility of each component.
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
    mixture, x = network.mixture_of(condition[complete]), target[complete]
    density = mixture.component_log_prob(x).double()
    joint = torch.log_softmax(mixture.logits.double(), -1) + density
    # A row with density 0 in every component says nothing: its responsibilities are the weights.
    lost = joint.amax(-1, keepdim=True) == -torch.inf
    responsibilities = torch.softmax(torch.where(lost, mixture.logits.double(), joint), -1)
    usage = responsibilities.mean(0)
    used = _entropy(usage)
    distinct = used - _entropy(responsibilities).mean()
    # Half the squared distance from the nearest component; its tail is that of χ².
    half_square = (mixture.peak_log_prob() - density).amin(-1)
    tail = torch.special.gammaincc(half_square.new_tensor(x.shape[1] / 2), half_square)
    return Diagnosis(
        float(used.exp()),
        float(distinct.clamp(min=0).exp()),
        mixture.largest_condition_number(MAX_MULTIPLICATIONS),
        float((tail < UNEXPLAINED_PROBABILITY).double().mean()),
        usage.tolist(),
    )


def problems(found: Diagnosis) -> list[CondensWarning]:
    """Return a warning for every problem, with what to do about it."""
    n_components, used = len(found.usage), found.used_components
    candidates = [
        (
            found.unexplained_fraction > 0.01,
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
