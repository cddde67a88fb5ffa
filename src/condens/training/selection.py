"""The number of components, chosen on validation rows."""

import math
import os
import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from condens.data import Rows
from condens.errors import ArgumentError, KindError
from condens.nn import MixtureNetwork
from condens.nn.randomness import loan, torch_seeded_by
from condens.training.batches import Batches
from condens.training.history import History
from condens.training.interruption import how_far, interruption
from condens.training.loop import gradients, run, tell
from condens.training.settings import Settings

# Components to begin with.
MOST = 16
# What leaving components out may cost at first, in nats a row; training on wins it back.
FIRST_LOSS = 0.05
# Trials in a row that may be worse.
FAILURES = 2
# Rows that are compared, and rows that tell which components matter least.
COMPARED, LOOKED_AT = 20_000, 2000


class Trial(NamedTuple):
    """A number of components, its validation loss, and by how much it is worse than the best.

    The standard error is that of the difference, row by row.
    """

    n_components: int
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
    directory: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Selection:
    """Train with many components, leave out those that matter least, train on, and compare.

    Fewer components are taken where the validation loss is not worse than the best by more
    than a standard error. Ends when that failed twice in a row.

    Args:
        make: returns a network with a given number of components; called once, with torch's
            generator seeded by that of the settings.
        data, settings, validation, options: as `train` takes them.
        most: the number to begin with.
        directory: where to keep the states of the runs, in a directory for each number.

    Ctrl-C ends it, with a warning, at what was chosen so far, whose history tells
    `"interrupted"`.
    """
    with interruption() as asked:
        chosen = select(
            make, data, settings, most=most, validation=validation, directory=directory, **options
        )
    if asked.is_set():
        told = f"The choice was interrupted; its network was trained {how_far(chosen.history)}."
        warnings.warn(told, stacklevel=2)
    tell(chosen.history, stacklevel=3)
    return chosen


@gradients()
def select(
    make: Callable[[int], MixtureNetwork],
    data: Any,
    settings: Settings | None = None,
    *,
    most: int = MOST,
    validation: Any = None,
    directory: str | os.PathLike[str] | None = None,
    seeded: bool = True,
    **options: Any,
) -> Selection:
    """Choose as `choose_components` does, without a word.

    With `seeded`, `make` draws from torch's generator, which is lent to it meanwhile.
    """
    settings = Settings.given(settings)
    if not isinstance(most, Integral) or most < 1:
        raise ArgumentError(
            "most",
            got=f"is {most!r}",
            expected="a whole number from 1 was expected",
            fix="Change it.",
        )
    rows = Rows.given(data, "data").observed()
    held_out = None if validation is None else Rows.given(validation, "validation").observed()
    if held_out is None:
        share = settings.validation_fraction or 0.1
        rows, held_out = rows.split(share, settings.seed) if len(rows) > 1 else (rows, rows)

    def fit(network: MixtureNetwork, settings: Settings) -> History:
        place = None if directory is None else Path(directory) / str(network.head.n_components)
        return run(network, rows, settings, validation=held_out, directory=place, **options)

    generator = Generator().manual_seed(settings.seed)
    with torch_seeded_by(generator) if seeded else nullcontext():
        network = make(int(most))
    if not isinstance(network, MixtureNetwork):
        raise KindError(
            "make",
            got=f"returned a {type(network).__name__}",
            expected="a MixtureNetwork was expected",
            fix="Return one, such as MixtureNetwork.of(conditions, targets, n_components=k).",
        )
    with interruption() as asked:
        chosen = _fewer(network, held_out, settings, fit, asked, generator)
    if asked.is_set():
        chosen.history.stopped = "interrupted"
    return chosen


def _fewer(
    network: MixtureNetwork,
    held_out: Rows,
    settings: Settings,
    fit: Callable[[MixtureNetwork, Settings], History],
    asked: threading.Event,
    generator: Generator,
) -> Selection:
    """Train a network, then smaller ones while they are no worse."""
    history = fit(network, settings)
    with loan(network, generator):
        best = _each(network, held_out)
    chosen = Selection(network, history, [])
    chosen.trials.append(Trial(network.head.n_components, history.best_nll, 0.0, 0.0))
    again = replace(
        settings, start="keep", bound=None, epochs=math.ceil(settings.epochs / 3), warmup_steps=20
    )
    smaller, failed = network, 0
    while smaller.head.n_components > 1 and failed < FAILURES and not asked.is_set():
        with loan(network, generator):
            smaller = _without(smaller, held_out)
        history = fit(smaller, again)
        if asked.is_set():  # not trained to its end, it cannot be compared
            break
        with loan(network, generator):
            loss = _each(smaller, held_out)
        trial = _trial(smaller.head.n_components, history.best_nll, loss - best)
        chosen.trials.append(trial)
        if trial.worse > trial.standard_error:
            failed += 1
            continue
        chosen, failed = Selection(smaller, history, chosen.trials), 0
        if trial.worse < 0:
            best = loss
    return chosen


def _trial(n_components: int, nll: float, worse: Tensor) -> Trial:
    error = worse.std().item() / math.sqrt(len(worse)) if len(worse) > 1 else 0.0
    return Trial(n_components, nll, worse.mean().item(), error)


@torch.no_grad()
def _each(network: MixtureNetwork, rows: Rows) -> Tensor:
    """Return the loss of each of the first rows."""
    condition, target, _ = Batches(network, rows).rows.take(torch.arange(len(rows))[:COMPARED])
    return network.standard_nll(condition, target).double()


@torch.no_grad()
def _without(network: MixtureNetwork, rows: Rows) -> MixtureNetwork:
    """Return a copy without the components that matter least: one at least, half at most."""
    condition, target, _ = Batches(network, rows).rows.take(torch.arange(len(rows))[:LOOKED_AT])
    features, head = network.features(condition), network.head

    def loss(kept: list[int]) -> float:
        return float(head.with_components(kept).nll(features, target).mean())

    kept = list(range(head.n_components))
    before = loss(kept)
    while len(kept) > max(1, head.n_components // 2):
        fewer = [[j for j in kept if j != k] for k in kept]
        losses = [loss(candidate) for candidate in fewer]
        cheapest = min(range(len(kept)), key=losses.__getitem__)
        if losses[cheapest] - before > FIRST_LOSS and len(kept) < head.n_components:
            break
        kept = fewer[cheapest]
    return network.with_components(kept)
