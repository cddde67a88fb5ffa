"""The objective of a step: the NLL, a bound on it, and the entropy of the weights."""

import torch
from torch import Tensor

from condens.data import Rows
from condens.errors import ArgumentError
from condens.functional.losses import (
    report_printed_form,
    uniform_bound,
    weighted_bound,
    weighted_sum,
)
from condens.nn import DensityNetwork, MixtureNetwork
from condens.nn.heads.triangular import TriangularHead
from condens.training.settings import Settings

_BOUNDS = {
    "weighted": weighted_bound,
    "uniform": uniform_bound,
    "printed": report_printed_form,
}


def objective(
    network: DensityNetwork, settings: Settings, epoch: int, batch: Rows, *, complete: bool = False
) -> Tensor:
    """Return the loss of a batch of standardised rows; `complete`: no target is missing."""
    if isinstance(network, MixtureNetwork):
        return _loss(network, settings, epoch, batch, complete)
    return network.standard_loss(*batch)


def _loss(
    network: MixtureNetwork, settings: Settings, epoch: int, batch: Rows, complete: bool
) -> Tensor:
    condition, target, weights = batch
    with torch.autocast(condition.device.type, torch.bfloat16, enabled=settings.autocast):
        features = network.features(condition)
    if settings.bound is not None and epoch < settings.bound_epochs:
        loss = _bound(network, settings.bound, features, target, weights)
    else:
        loss = network.head.loss(features, target, weights, complete=complete)
    if settings.entropy:
        log_weights = torch.log_softmax(network.head.logits_of(features), -1)
        entropy = -(log_weights.exp() * log_weights).sum(-1)
        loss = loss - settings.entropy * weighted_sum(entropy, weights)
    return loss


def _bound(
    network: MixtureNetwork, name: str, features: Tensor, target: Tensor, weights: Tensor | None
) -> Tensor:
    """Return a Jensen bound over the complete rows; the others wait for the exact loss.

    They count as rows of bound zero, so that a batch may be computed in parts.
    """
    if not isinstance(network.head, TriangularHead):
        raise ArgumentError(
            "bound",
            got=f"is {name!r}",
            expected="covariance 'low_rank' has no such bound",
            fix="Leave bound out, or choose another covariance.",
        )
    whole = (~target.isnan().any(1)).nonzero().flatten()
    parameters = network.head.parameters_of(features[whole])
    each = _BOUNDS[name](target[whole], *parameters)
    return each.sum() / len(target) if weights is None else weighted_sum(each, weights[whole])
