"""Component diagnostics: how many are used and distinct, and which rows they explain."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from condens.distributions.low_rank import LowRankMixture
from condens.errors import (
    CollapsedComponentsWarning,
    CondensWarning,
    IllConditionedWarning,
    UnexplainedRowsWarning,
    UnusedComponentsWarning,
)
from condens.functional.normal import LOG_2PI
from condens.functional.triangular import is_diagonal, log_determinant, unpack
from condens.nn import DensityNetwork

ROWS_DIAGNOSED = 256
# Multiplications spent on condition numbers, an epoch.
EFFORT = 100_000
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
    return Diagnosis(
        float(used.exp()),
        float(distinct.clamp(min=0).exp()),
        _largest_condition_number(mixture),
        float(_beyond(2 * (_highest(mixture) - density).amin(-1), x.shape[1]).double().mean()),
        usage.tolist(),
    )


def problems(found: Diagnosis) -> list[CondensWarning]:
    """Return a warning for every problem, with what to do about it."""
    problems: list[CondensWarning] = []
    n_components = len(found.usage)
    if found.unexplained_fraction > 0.01:
        problems.append(
            UnexplainedRowsWarning(
                f"{found.unexplained_fraction:.1%} of the validation rows are explained by no "
                "component. Use more components, a larger floor or more target_noise, or look for "
                "outliers."
            )
        )
    if found.largest_condition_number > 1e10:
        problems.append(
            IllConditionedWarning(
                f"A covariance has condition number {found.largest_condition_number:.0e}: some "
                "targets are almost functions of others. Drop them, or raise the floor or "
                "target_noise."
            )
        )
    if n_components > 1 and found.used_components > 1.5 and found.distinct_components < 1.02:
        problems.append(
            CollapsedComponentsWarning(
                f"All {n_components} components are alike: one would give the same density. Use "
                "fewer components; if the target should have several modes, train with "
                "start='data' and without a bound."
            )
        )
    if n_components > 2 and found.used_components < 1.1:
        problems.append(
            UnusedComponentsWarning(
                f"Nearly all weight is on one of {n_components} components. Use fewer components; "
                "if the target should have several modes, train with start='data', a smaller "
                "learning_rate or some entropy."
            )
        )
    return problems


def _entropy(probabilities: Tensor) -> Tensor:
    return -torch.special.xlogy(probabilities, probabilities).sum(-1)


def _beyond(distance: Tensor, dimensions: int) -> Tensor:
    """Return whether squared distances lie beyond the 1 − 10⁻⁶ quantile of χ²."""
    half = distance.new_tensor(dimensions / 2)
    return torch.special.gammaincc(half, distance / 2) < UNEXPLAINED_PROBABILITY


def _highest(mixture: Any) -> Tensor:
    """Return the log density of every component at its mean."""
    if isinstance(mixture, LowRankMixture):
        logits, means, *rest = mixture.parameters
        centred = LowRankMixture(logits, torch.zeros_like(means), *rest, validate_args=False)
        return centred.component_log_prob(torch.zeros_like(means[..., 0, :])).double()
    dimensions = mixture.dimensions
    return log_determinant(mixture.factors.double(), dimensions) - 0.5 * dimensions * LOG_2PI


def _largest_condition_number(mixture: Any) -> float:
    """Return that of the first covariances; for low rank, what it can be at most."""
    dimensions = mixture.dimensions
    if isinstance(mixture, LowRankMixture):
        logs, loadings = 2 * mixture.log_scales.double(), mixture.loadings.double()
        largest = logs.amax(-1).exp() + loadings.square().sum((-1, -2))
        return float((largest / logs.amin(-1).exp()).amax())
    factors = mixture.factors
    if is_diagonal(factors, dimensions):
        logs = factors.double()
        return float((2 * (logs.amax(-1) - logs.amin(-1))).amax().exp())
    count = max(1, EFFORT // (factors.shape[-2] * dimensions**3))
    upper = unpack(factors[:count].double(), dimensions)
    # What has diverged has no singular values, and torch would raise.
    if not bool(upper.isfinite().all()):
        return math.inf
    values = torch.linalg.svdvals(upper)
    return float((values[..., 0] / values[..., -1]).square().amax())
