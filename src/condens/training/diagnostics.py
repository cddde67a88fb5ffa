"""Whether a mixture is any good: components used, alike, degenerate, rows left out."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from condens.nn import DensityNetwork

ROWS = 256
# Multiplications spent on condition numbers, an epoch.
MAX_MULTIPLICATIONS = 100_000
# A row that far out with every component, by chance, is explained by none.
UNLIKELY = 1e-6
# How the advice begins that data with one mode get.
ALONE = "Nearly all weight is on one"


class Diagnosis(NamedTuple):
    """Numbers about the mixtures predicted for some rows.

    Args:
        used: exp of the entropy of the mean responsibilities: how many components serve.
        distinct: exp of the information a component has about its rows: 1 if all are alike.
        condition_number: the largest of the covariances'.
        unexplained: share of rows that lie beyond 1 − 10⁻⁶ of every component.
        usage: mean responsibility of each component.
    """

    used: float
    distinct: float
    condition_number: float
    unexplained: float
    usage: list[float]

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers under the names they have in the history."""
        return {
            "used_components": self.used,
            "distinct_components": self.distinct,
            "largest_condition_number": self.condition_number,
            "unexplained_fraction": self.unexplained,
            "usage": self.usage,
        }


@torch.no_grad()
def diagnose(network: DensityNetwork, condition: Tensor, target: Tensor) -> Diagnosis:
    """Look at the mixtures of the first rows, which are standardised and in random order."""
    complete = (~target.isnan().any(1)).nonzero().flatten()[:ROWS]
    if not len(complete):
        return Diagnosis(math.nan, math.nan, math.nan, math.nan, [])
    mixture, x = network.mixture_of(condition[complete]), target[complete]
    density = mixture.component_log_prob(x).double()
    joint = torch.log_softmax(mixture.logits.double(), -1) + density
    # A row that no component can hold says nothing: it gets the weights.
    lost = joint.amax(-1, keepdim=True) == -torch.inf
    shares = torch.softmax(torch.where(lost, mixture.logits.double(), joint), -1)
    usage = shares.mean(0)
    used = _entropy(usage)
    distinct = used - _entropy(shares).mean()
    return Diagnosis(
        float(used.exp()),
        float(distinct.clamp(min=0).exp()),
        mixture.largest_condition_number(MAX_MULTIPLICATIONS),
        float(
            _beyond(2 * (mixture.peak_log_prob() - density).amin(-1), x.shape[1]).double().mean()
        ),
        usage.tolist(),
    )


def remedies(found: Diagnosis) -> list[str]:
    """Return advice for everything that has gone bad."""
    advice, n_components = [], len(found.usage)
    if found.unexplained > 0.01:
        advice.append(
            f"{found.unexplained:.1%} of the validation rows are explained by no component. Use "
            "more components, a larger floor or more target_noise, or look for outliers."
        )
    if found.condition_number > 1e10:
        advice.append(
            f"A covariance has condition number {found.condition_number:.0e}: some targets are "
            "almost functions of others. Drop them, or raise the floor or target_noise."
        )
    if n_components > 1 and found.used > 1.5 and found.distinct < 1.02:
        advice.append(
            f"All {n_components} components are alike: one would give the same density. Use fewer "
            "components; if the target should have several modes, train with start='data' and "
            "without a bound."
        )
    if n_components > 2 and found.used < 1.1:
        advice.append(
            f"{ALONE} of {n_components} components. Use fewer components; if "
            "the target should have several modes, train with start='data', a smaller "
            "learning_rate or some entropy."
        )
    return advice


def _entropy(shares: Tensor) -> Tensor:
    return -torch.special.xlogy(shares, shares).sum(-1)


def _beyond(distance: Tensor, dimensions: int) -> Tensor:
    """Return whether squared distances lie beyond the 1 − 10⁻⁶ quantile of χ²."""
    half = distance.new_tensor(dimensions / 2)
    return torch.special.gammaincc(half, distance / 2) < UNLIKELY
