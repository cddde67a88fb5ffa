"""The number of components, chosen on validation rows."""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from condens.data import Rows
from condens.nn import MixtureNetwork
from condens.training.batches import Batches
from condens.training.history import History
from condens.training.loop import train
from condens.training.settings import Settings

# Components to begin with.
MOST = 16
# What leaving components out may cost at first, in nats a row; training on wins it back.
FIRST_LOSS = 0.05
# Trials in a row that may be worse.
FAILURES = 2
# Rows that are compared.
COMPARED = 20_000


class Trial(NamedTuple):
    """A number of components, its validation loss, and by how much it is worse than the best.

    The standard error is that of the difference, row by row.
    """

    components: int
    nll: float
    worse: float
    standard_error: float


class Selection(NamedTuple):
    """A network with as few components as the data ask for, and what was tried."""

    network: MixtureNetwork
    history: History
    trials: list[Trial]


def choose_components(
    make: Callable[[int], MixtureNetwork],
    data: Any,
    settings: Settings | None = None,
    *,
    most: int = MOST,
    validation: Any = None,
    **options: Any,
) -> Selection:
    """Train with many components, leave out those that matter least, train on, and compare.

    Fewer components are taken where the validation loss is not worse than the best by more
    than a standard error. Ends when that failed twice in a row.

    Args:
        make: returns a network with a given number of components.
        data, settings, validation, options: as `train` takes them.
        most: the number to begin with.
    """
    settings = Settings() if settings is None else settings
    rows = Rows.of(*data).observed()
    held_out = None if validation is None else Rows.of(*validation).observed()
    if held_out is None:
        share = settings.validation_share or 0.1
        rows, held_out = rows.split(share, settings.seed) if len(rows) > 1 else (rows, rows)
    network = make(most)
    history = _quietly(network, rows, settings, validation=held_out, **options)
    chosen, best = Selection(network, history, []), _each(network, held_out)
    chosen.trials.append(Trial(most, history.best_nll, 0.0, 0.0))
    again = replace(
        settings, start="keep", bound=None, epochs=math.ceil(settings.epochs / 3), warmup_steps=20
    )
    smaller, failed = network, 0
    while smaller.head.components > 1 and failed < FAILURES:
        smaller = _without(smaller, held_out)
        history = _quietly(smaller, rows, again, validation=held_out, **options)
        loss = _each(smaller, held_out)
        trial = _trial(smaller.head.components, history.best_nll, loss - best)
        chosen.trials.append(trial)
        if trial.worse > trial.standard_error:
            failed += 1
            continue
        chosen, failed = Selection(smaller, history, chosen.trials), 0
        if trial.worse < 0:
            best = loss
    for advice in chosen.history.warnings:
        warnings.warn(advice, stacklevel=2)
    return chosen


def _quietly(*arguments: Any, **options: Any) -> History:
    """Train without a word: too few components are expected to look bad."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(*arguments, **options)


def _trial(components: int, nll: float, worse: Tensor) -> Trial:
    error = worse.std().item() / math.sqrt(len(worse)) if len(worse) > 1 else 0.0
    return Trial(components, nll, worse.mean().item(), error)


@torch.no_grad()
def _each(network: MixtureNetwork, rows: Rows) -> Tensor:
    """Return the loss of each of the first rows."""
    condition, target, _ = Batches(network, rows).rows.take(torch.arange(len(rows))[:COMPARED])
    return network.row_loss(condition, target).double()


@torch.no_grad()
def _without(network: MixtureNetwork, rows: Rows) -> MixtureNetwork:
    """Return a copy without the components that matter least: one at least, half at most."""
    batch = Batches(network, rows).rows
    whole = (~batch.target.isnan().any(1)).nonzero().flatten()[:COMPARED]
    mixture = network.mixture_of(batch.condition[whole])
    prior = torch.log_softmax(mixture.logits.double(), -1)
    joint = prior + mixture.component_log_prob(batch.target[whole]).double()
    kept = list(range(joint.shape[-1]))
    before = _density(joint, prior, kept)
    least = max(1, joint.shape[-1] // 2)
    while len(kept) > least:
        costs = [before - _density(joint, prior, [j for j in kept if j != k]) for k in kept]
        cheapest = min(range(len(kept)), key=costs.__getitem__)
        if costs[cheapest] > FIRST_LOSS and len(kept) < joint.shape[-1]:
            break
        del kept[cheapest]
    return network.with_components(kept)


def _density(joint: Tensor, prior: Tensor, kept: list[int]) -> float:
    """Return the mean log density of a mixture of some of the components."""
    part = joint[:, kept].logsumexp(-1) - prior[:, kept].logsumexp(-1)
    return float(part.mean())
