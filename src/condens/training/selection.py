"""What validation rows decide: the number of components, and the kind of an ensemble's members."""

import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from condens.data import Data, Rows
from condens.errors import InterruptedWarning, KindError
from condens.nn import Ensemble, MixtureNetwork
from condens.nn.randomness import loan, torch_seeded_by
from condens.scalars import as_whole
from condens.training.batches import Batches, random_folds
from condens.training.distributed import Group
from condens.training.history import History
from condens.training.interruption import how_far, interruption
from condens.training.loop import Callback, gradients, train
from condens.training.settings import Settings

MAX_COMPONENTS = 16
# What leaving components out may cost at first, in nats a row; training on wins it back.
MAX_FIRST_LOSS = 0.05
# Trials in a row that may be worse.
MAX_FAILURES = 2
# Members of each kind that are tried before one kind is chosen, and how many times the rows of a
# later member's fold each validates on, up to a fraction of all: these rows decide.
TRIAL_MEMBERS, TRIAL_FOLDS, MAX_TRIAL_FOLD = 3, 2, 0.25
# Part of the epochs that they are trained for: the first, up to a number, or else the second.
TRIAL_FRACTION, TRIAL_EPOCHS, LONG_TRIAL_FRACTION = 0.25, 25, 0.15
# Part of these that a member may be without a better loss: more than in long runs, since at a high
# rate the first epochs are often worse than the start.
TRIAL_PATIENCE = 1 / 3
# What a row may say for or against a variant, in nats: a single one would decide the mean.
MAX_DIFFERENCE = 1.0
# Rows that are compared, and rows that decide which components or columns matter least.
ROWS_COMPARED, ROWS_RANKED = 20_000, 2000
# A column is not needed if shuffling it costs less than so many standard errors. Networks without
# such columns are tried where they are a third of all, and taken where they are better by more: the
# same rows have chosen the columns.
ERRORS, CLEAR_ERRORS, PART_UNUSED = 2.0, 3.0, 1 / 3
# Shuffles of each column, fewer where there are many rows and columns to compute.
SHUFFLES, MAX_SHUFFLED_ROWS = 5, 300_000


# Makes a number of new networks; where columns are selected, also with `unused` ones.
Make = Callable[..., list[MixtureNetwork]]


class Variant(NamedTuple):
    """Another kind of members, made from the best so far.

    Args:
        change: returns the other kind, or None where the best one has no such variant.
        errors: standard errors by which it has to be better.
    """

    change: Callable[[Any], Make | None]
    errors: float = 0.0


class Losses(NamedTuple):
    """The losses of rows, and the rows' weights."""

    nll: Tensor
    weights: Tensor


class Trial(NamedTuple):
    """A number of components, its validation loss, and by how much it is worse than the best.

    The standard error is that of the difference, row by row.
    """

    n_components: int
    nll: float
    worse: float
    standard_error: float


class Selection(NamedTuple):
    """A network with as few components as the data need, its history, and all trials."""

    network: MixtureNetwork
    history: History
    trials: list[Trial]


def choose_components(
    make: Callable[[int], MixtureNetwork],
    data: Data,
    settings: Settings | None = None,
    *,
    max_components: int = MAX_COMPONENTS,
    validation: Data | None = None,
    directory: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 10.0,
    callbacks: Callback | Sequence[Callback] = (),
    progress: bool | None = None,
    warn: bool = True,
) -> Selection:
    """Train with many components, leave out those that matter least, train on, and compare.

    Fewer components are taken where the validation loss is not worse than the best by more
    than a standard error. Ends when that failed twice in a row.

    Args:
        make: returns a network with a given number of components; called once, with torch's
            generator seeded by that of the settings.
        data, settings, validation: as `train` takes them.
        max_components: the number to begin with.
        directory: gets one run directory for each number.
        checkpoint_seconds, callbacks, progress: as `train` takes them.
        warn: issue the warnings of the chosen network's history, and one where Ctrl-C ended it.

    Ctrl-C ends it at what was chosen so far, with `history.stopped == "interrupted"`.
    """
    settings = Settings.given(settings)
    count = as_whole("max_components", max_components, 1, fix="Pass the number to begin with.")
    with gradients(), interruption() as interrupted:
        with torch_seeded_by(Generator().manual_seed(settings.seed)):
            network = make(count)
        if not isinstance(network, MixtureNetwork):
            raise KindError(
                "make",
                got=f"returned a {type(network).__name__}",
                expected="a MixtureNetwork was expected",
                fix="Return one, such as MixtureNetwork.of(conditions, targets, n_components=k).",
            )
        chosen = reduce_components(
            network,
            data,
            settings,
            validation=validation,
            directory=directory,
            checkpoint_seconds=checkpoint_seconds,
            callbacks=callbacks,
            progress=progress,
        )
    if warn and interrupted.is_set():
        warnings.warn(
            f"The choice was interrupted; its network was trained {how_far(chosen.history)}.",
            InterruptedWarning,
            stacklevel=2,
        )
    if warn:
        chosen.history.warn(stacklevel=2)
    return chosen


def reduce_components(
    network: MixtureNetwork,
    data: Data,
    settings: Settings,
    *,
    validation: Data | None = None,
    directory: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 10.0,
    callbacks: Callback | Sequence[Callback] = (),
    progress: bool | None = None,
) -> Selection:
    """Train a network, then copies with fewer components while they are no worse; never warn."""
    rows, held_out = _divide(data, validation, settings)
    generator = Generator().manual_seed(settings.seed)
    group = Group.current(rows.target.device)

    def fit(network: MixtureNetwork, settings: Settings) -> tuple[History, Losses]:
        """Return the history, and the losses of the validation rows."""
        place = None if directory is None else Path(directory) / str(network.head.n_components)
        history = train(
            network,
            rows,
            settings,
            validation=held_out,
            directory=place,
            checkpoint_seconds=checkpoint_seconds,
            callbacks=callbacks,
            progress=progress,
            warn=False,
        )
        with loan(network, generator):
            return history, _losses(network, held_out)

    with gradients(), interruption() as interrupted:
        history, best = fit(network, settings)
        trials = [Trial(network.head.n_components, history.best_nll, 0.0, 0.0)]
        chosen = Selection(network, history, trials)
        again = replace(
            settings,
            start="keep",
            bound=None,
            epochs=math.ceil(settings.epochs / 3),
            warmup_steps=20,
        )
        smaller, failed = network, 0

        def stopped() -> bool:
            return group.any(interrupted.is_set()) or history.stopped == "callback"

        while smaller.head.n_components > 1 and failed < MAX_FAILURES and not stopped():
            with loan(network, generator):
                smaller = _without(smaller, held_out)
            history, losses = fit(smaller, again)
            if stopped():  # not trained to its end, it cannot be compared
                break
            trial = _trial(smaller.head.n_components, history.best_nll, losses, best)
            trials.append(group.agree(trial))
            if trials[-1].worse > trials[-1].standard_error:
                failed += 1
            else:
                chosen, failed = Selection(smaller, history, trials), 0
                best = losses if trials[-1].worse < 0 else best
        if group.any(interrupted.is_set()):
            chosen.history.stopped = "interrupted"
    return chosen


class Choice(NamedTuple):
    """The kind of members that validation rows prefer, or what was trained until a stop.

    Args:
        make: the best kind.
        ensemble, history: of the last trial, if there was one.
        stopped: whether a callback or an interruption ended the trials.
    """

    make: Make
    ensemble: Ensemble | None = None
    history: History | None = None
    stopped: bool = False


def choose_kind(
    kind: Make,
    data: Data,
    settings: Settings,
    *,
    n_members: int,
    validation: Data | None = None,
    folds: Tensor | None = None,
    directory: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 10.0,
    callbacks: Callback | Sequence[Callback] = (),
    progress: bool | None = None,
    variants: Sequence[Variant] = (),
    select_columns: bool = False,
) -> Choice:
    """Try some members of a kind for part of the epochs, and of variants of it; never warn.

    A kind makes a number of new networks. Every variant of the best kind so far is compared with
    it, in turn: row by row on the same folds, with up to a nat for each row. Without validation
    rows the first kind is taken. With `select_columns` that kind is compared at first with one that
    does without the columns its validation rows do not need, if these are many, and if it is
    clearly better all kinds do without them.
    """
    rows = Rows.given(data, "data").observed()
    fraction = min(TRIAL_FOLDS * settings.validation_fraction, MAX_TRIAL_FOLD)
    if folds is None and validation is None and fraction and len(rows) > 1:
        folds = random_folds(len(rows), fraction, settings.seed)[0]
    held_out = None if validation is None else Rows.given(validation, "validation").observed()
    group = Group.current(rows.target.device)
    if (folds is None and held_out is None) or not (variants or select_columns):
        return Choice(kind)
    part = max(min(TRIAL_FRACTION, TRIAL_EPOCHS / settings.epochs), LONG_TRIAL_FRACTION)
    epochs = math.ceil(part * settings.epochs)
    patience = max(math.ceil(part * settings.patience), math.ceil(TRIAL_PATIENCE * epochs))
    trial = replace(settings, epochs=epochs, patience=patience)

    def attempt(make: Make, name: str) -> tuple[Ensemble, History, bool]:
        ensemble = Ensemble(make(min(TRIAL_MEMBERS, n_members)))
        history = train(
            ensemble,
            rows,
            trial,
            validation=validation,
            folds=folds,
            directory=None if directory is None else Path(directory) / name,
            checkpoint_seconds=checkpoint_seconds,
            callbacks=callbacks,
            progress=progress,
            warn=False,
        )
        stopped = group.any(interrupted.is_set()) or history.stopped == "callback"
        return ensemble, history, stopped

    with gradients(), interruption() as interrupted:
        best, tried = kind, 1
        ensemble, history, stopped = attempt(kind, "kind-0")
        parts = _parts(ensemble, rows, held_out, folds)
        lowest = _fold_losses(ensemble, parts)
        unused: tuple[int, ...] = ()
        if select_columns and not stopped:
            unused = group.agree(_unneeded(ensemble, parts, settings.seed))
            if unused:
                fewer = partial(kind, unused=unused)
                ensemble, history, stopped = attempt(fewer, "columns")
                found = _fold_losses(ensemble, parts)
                worse, error = _difference(found, lowest, MAX_DIFFERENCE)
                if group.agree(worse + CLEAR_ERRORS * error < 0):
                    lowest = found
                else:
                    unused = ()
        for variant in variants:
            other = None if stopped else variant.change(best)
            if other is None:
                continue
            make = partial(other, unused=unused) if unused else other
            ensemble, history, stopped = attempt(make, f"kind-{tried}")
            tried += 1
            found = _fold_losses(ensemble, parts)
            worse, error = _difference(found, lowest, MAX_DIFFERENCE)
            if group.agree(worse + variant.errors * error < 0) and not stopped:
                best, lowest = other, found
    make = partial(best, unused=unused) if unused else best
    return Choice(make, ensemble, history, stopped)


def train_members(
    kind: Make,
    data: Data,
    settings: Settings,
    *,
    n_members: int,
    validation: Data | None = None,
    folds: Tensor | None = None,
    directory: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 10.0,
    callbacks: Callback | Sequence[Callback] = (),
    progress: bool | None = None,
    variants: Sequence[Variant] = (),
    select_columns: bool = False,
) -> tuple[Ensemble, History]:
    """Choose a kind by `choose_kind`, then train all members of it; never warn."""
    rows = Rows.given(data, "data").observed()
    with gradients(), interruption() as interrupted:
        chosen = choose_kind(
            kind,
            rows,
            settings,
            n_members=n_members,
            validation=validation,
            folds=folds,
            directory=directory,
            checkpoint_seconds=checkpoint_seconds,
            callbacks=callbacks,
            progress=progress,
            variants=variants,
            select_columns=select_columns,
        )
        ensemble, history = chosen.ensemble, chosen.history
        if not chosen.stopped or ensemble is None or history is None:
            ensemble = Ensemble(chosen.make(n_members))
            history = train(
                ensemble,
                rows,
                settings,
                validation=validation,
                folds=folds,
                directory=None if directory is None else Path(directory) / "members",
                checkpoint_seconds=checkpoint_seconds,
                callbacks=callbacks,
                progress=progress,
                warn=False,
            )
        if Group.current(rows.target.device).any(interrupted.is_set()):
            history.stopped = "interrupted"
    return ensemble, history


def train_alone(
    make: Make,
    data: Data,
    settings: Settings,
    *,
    variant: Make | None = None,
    directory: str | os.PathLike[str] | None = None,
    **options: Any,
) -> tuple[MixtureNetwork, History]:
    """Train one network, or a variant of it that is better before it has learned anything.

    A variant that, after one epoch, has a lower validation loss than the network has in the end is
    trained too, and the better of both returned. The options are those of `train`; never warn.
    """
    given = (options.get(name) is not None for name in ("validation", "folds"))
    if not settings.validation_fraction and not any(given):
        variant = None  # there is nothing to compare by
    group = Group.current()
    with gradients(), interruption() as interrupted:
        (network,) = make(1)
        history = train(network, data, settings, directory=directory, warn=False, **options)
        stopped = group.any(interrupted.is_set()) or history.stopped == "callback"
        if variant is None or stopped:
            return network, history
        first = {**options, "callbacks": (), "progress": False}
        (other,) = variant(1)
        begun = train(other, data, replace(settings, epochs=1), warn=False, **first)
        if group.any(interrupted.is_set()) or not begun.best_nll < history.best_nll:
            return network, history
        place = None if directory is None else Path(directory) / "variant"
        (other,) = variant(1)
        later = train(other, data, settings, directory=place, warn=False, **options)
    return (other, later) if later.best_nll < history.best_nll else (network, history)


def _divide(data: Data, validation: Data | None, settings: Settings) -> tuple[Rows, Rows]:
    """Return the rows to train on and those to compare on; a single row is both."""
    rows = Rows.given(data, "data").observed()
    if validation is not None:
        return rows, Rows.given(validation, "validation").observed()
    if len(rows) == 1:
        return rows, rows
    return rows.split(settings.validation_fraction or 0.1, settings.seed)


def _trial(n_components: int, nll: float, losses: Losses, best: Losses) -> Trial:
    return Trial(n_components, nll, *_difference(losses, best))


def _difference(losses: Losses, others: Losses, most: float = math.inf) -> tuple[float, float]:
    """Return the mean difference of losses of the same rows, each up to `most`, and its error."""
    worse, weights = (losses.nll - others.nll).clamp(-most, most), losses.weights
    share, count = weights / weights.sum(), len(worse)
    mean = share @ worse
    error = (share * (worse - mean)).norm().item() * math.sqrt(count / max(count - 1, 1))
    return mean.item(), error


def _parts(
    ensemble: Ensemble, rows: Rows, held_out: Rows | None, folds: Tensor | None
) -> list[Rows]:
    """Return the validation rows of each member; all have the same where these are given."""
    members = len(ensemble.members)
    if held_out is not None:
        return [held_out] * members
    assert folds is not None  # there are validation rows
    count = int(folds.max()) + 1
    return [rows.take(folds == member % count) for member in range(members)]


def _fold_losses(ensemble: Ensemble, parts: Sequence[Rows]) -> Losses:
    """Return the loss of each validation row by the member that validates on it.

    Where all members validate on the same rows, the mean of their losses.
    """
    with loan(ensemble, Generator().manual_seed(0)):
        pairs = zip(ensemble.members, parts, strict=True)
        each = [_losses(member, part) for member, part in pairs]
    if all(part is parts[0] for part in parts):
        return Losses(torch.stack([part.nll for part in each]).mean(0), each[0].weights)
    return Losses(*map(torch.cat, zip(*each, strict=True)))


@torch.no_grad()
def _unneeded(ensemble: Ensemble, parts: Sequence[Rows], seed: int) -> tuple[int, ...]:
    """Return the columns of numbers that validation rows do as well with shuffled, if many are.

    None where all would be left out.
    """
    columns = (ensemble.condition_columns or 0) - ensemble.condition_codes
    generator = Generator().manual_seed(seed)
    found: list[Losses] = []
    with loan(ensemble, Generator().manual_seed(0)):
        for member, part in zip(ensemble.members, parts, strict=True):
            condition, target, weights = Batches(member, part).rows.take(
                torch.arange(min(len(part), ROWS_RANKED), device=part.target.device)
            )
            count = len(target)
            shuffles = max(1, min(SHUFFLES, MAX_SHUFFLED_ROWS // max(count * columns, 1)))
            before = member.standard_nll(condition, target).double()
            worse = torch.zeros(columns, count, dtype=torch.float64, device=target.device)
            for column in range(columns):
                for _ in range(shuffles):
                    order = torch.randperm(count, generator=generator).to(target.device)
                    shuffled = condition.clone()
                    shuffled[:, column] = condition[order, column]
                    after = member.standard_nll(shuffled, target).double()
                    worse[column] += (after - before).clamp(-MAX_DIFFERENCE, MAX_DIFFERENCE)
            share = torch.ones_like(before) if weights is None else weights.to(before)
            found.append(Losses(worse / shuffles, share))
    worse, weights = torch.cat([one.nll for one in found], 1), torch.cat([o.weights for o in found])
    zero = Losses(torch.zeros_like(weights), weights)
    each = (_difference(Losses(row, weights), zero) for row in worse)
    unused = tuple(i for i, (mean, error) in enumerate(each) if mean <= ERRORS * error)
    many = PART_UNUSED * columns <= len(unused) < columns
    return unused if many else ()


@torch.no_grad()
def _losses(network: MixtureNetwork, rows: Rows) -> Losses:
    """Return the loss of each of the first rows."""
    some = rows.take(torch.arange(min(len(rows), ROWS_COMPARED)))
    condition, target, _ = Batches(network, some).rows
    nll = network.standard_nll(condition, target).double()
    return Losses(nll, torch.ones_like(nll) if some.weights is None else some.weights.to(nll))


@torch.no_grad()
def _without(network: MixtureNetwork, rows: Rows) -> MixtureNetwork:
    """Return a copy without the components that matter least: one at least, half at most."""
    condition, target, _ = Batches(network, rows).rows.take(torch.arange(len(rows))[:ROWS_RANKED])
    features, head = network.features(condition), network.head

    def loss(kept: list[int]) -> float:
        return float(head.with_components(kept).nll(features, target).mean())

    kept = list(range(head.n_components))
    before = loss(kept)
    while len(kept) > max(1, head.n_components // 2):
        fewer = [[j for j in kept if j != k] for k in kept]
        losses = [loss(candidate) for candidate in fewer]
        cheapest = min(range(len(kept)), key=losses.__getitem__)
        if losses[cheapest] - before > MAX_FIRST_LOSS and len(kept) < head.n_components:
            break
        kept = fewer[cheapest]
    return network.with_components(kept)
