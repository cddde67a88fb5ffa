"""The training loop."""

import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader, Dataset

from condens.data import Data, Rows
from condens.errors import (
    ArgumentError,
    InterruptedWarning,
    KindError,
    NotFiniteError,
    ProcessWarning,
    TrainingError,
)
from condens.kernels.networks import MAX_STEPS
from condens.nn import DensityNetwork, Ensemble, Head
from condens.nn.randomness import RowDraws, drawing_from, draws_from_torch, torch_seeded_by
from condens.scalars import as_real, is_truth
from condens.training.adjustment import adjust
from condens.training.batches import Batch, Batches, member_seed
from condens.training.diagnostics import ROWS_DIAGNOSED, Diagnosis, problems
from condens.training.distributed import Group, wait_seconds
from condens.training.history import Epoch, History
from condens.training.interruption import how_far, interruption
from condens.training.loaders import LoadedRows
from condens.training.progress import Progress
from condens.training.run_directory import (
    Identity,
    RunDirectory,
    hash_numbers,
    identity,
    resume,
)
from condens.training.settings import Settings
from condens.training.sources import RowsInMemory, Source, check_rows
from condens.training.state import State
from condens.training.threads import MAX_SMALL_STEP, one_thread

# Steps in a row with a loss or gradient that is not finite, before the weights go back.
MAX_SKIPPED_IN_A_ROW = 5
# How often they go back, each time with this fraction of the rate, before training gives up.
MAX_RETURNS = 5
RATE_AFTER_RETURN = 0.3
# Of a forward pass of the steps that are taken in one call, some tenths of a second.
MAX_MULTIPLICATIONS = 1 << 29
# Of a step of a network alone, which the native kernel computes by one thread: with larger ones,
# torch's many threads may be faster.
MAX_LONE_STEP = 1 << 25
# Beyond the first epochs: components change slowly, and looking at them costs as much as a step.
EPOCHS_PER_DIAGNOSIS = 5
# Seconds to wait for a process of this run that another launcher left, and that is dying.
LOCK_SECONDS = 30.0
# What torch raises where a covariance is not finite, or singular to all digits.
DIVERGED: type[RuntimeError] = torch.linalg.LinAlgError  # type: ignore[attr-defined]

# Enables gradients, within `torch.no_grad` too.
gradients = partial(torch.inference_mode, mode=False)

Callback = Callable[[Epoch], object]
Context = Callable[[], AbstractContextManager[None]]


def train(
    network: DensityNetwork,
    data: "Data | Source | Dataset[Any] | DataLoader[Any]",
    settings: Settings | None = None,
    *,
    validation: Data | None = None,
    folds: Tensor | None = None,
    adjustment: Data | None = None,
    directory: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 10.0,
    callbacks: Callback | Sequence[Callback] = (),
    progress: bool | None = None,
    warn: bool = True,
) -> History:
    """Fit a network to rows by maximum likelihood; return the history of the run.

    The network ends with the averaged weights that are best on the validation rows, never with
    NaN: a step whose loss or gradient is not finite is skipped; after several in a row the
    weights return to the last good ones and the rate falls; if that does not help, training
    raises a `TrainingError` and leaves the best weights so far in the network.

    The members of an `Ensemble` are trained at once, and each as it would be alone: by its own
    order of the rows and its own clip, it ends with the weights that were best on its own
    validation rows, and takes no more after its patience. The run ends when all have stalled. A
    step is skipped by all members. Without `validation`, members validate on different folds, so
    that together they train on every row; what the history reports is the mean over members.

    Args:
        network: trained in place, also under `torch.no_grad`; it ends in evaluation mode.
            Parameters without `requires_grad` stay as they are; `trim`, `limit`, `spread` and
            `tail`, if it has some, are dropped.
        data: `Rows`, or (condition, target) or (condition, target, weights). An entry of the
            target that is NaN was not observed; a row with none observed is left out. Or a
            `Stream` of shards that are larger than memory, or a `Dataset` or `DataLoader` of
            torch, see `condens.training.loaders.LoadedRows`.
        settings: see `Settings`.
        validation: rows to validate on, in place of a fraction of the data; of all members.
        folds: the fold of each row of the data [n], whole numbers from 0, −1 for none. A network
            validates on fold 0 and trains on all other rows; member m of an ensemble does so with
            fold m, and again from 0 where there are fewer folds. By default random ones of
            `validation_fraction`.
        adjustment: rows to set spread and tail on in the end, in neither `data` nor `validation`;
            see `adjust`. Without them the network gets neither, and no limit.
        directory: where to keep the state of the run. If it holds one already, training goes
            on from there, with the bytes an uninterrupted run would have given.
        checkpoint_seconds: time between two states.
        callbacks: a function, or several, called with every `Epoch` that ends. One that returns
            True ends the run, with `history.stopped == "callback"`. What one raises ends it too,
            with the state saved and the best weights in the network. Of several processes,
            process 0 calls its own, for all.
        progress: show a line; by default where stderr is a terminal.
        warn: issue the warnings in `history.warnings`, and one where Ctrl-C ended the run.

    Ctrl-C stops after the batch, with a warning, the state saved and
    `history.stopped == "interrupted"`; a second one stops at once.

    Runs in threads give the same bytes as alone, and torch's global generator is left as it was:
    everything random comes from a generator of the run. Modules that condens does not know, and
    hooks, may draw from the global one; a network with some borrows it for every step, seeded by
    the run. Such steps wait for one another, and other threads should not draw from it meanwhile.
    """
    settings = Settings.given(settings)
    _check_network(network)
    seconds = as_real(
        "checkpoint_seconds",
        checkpoint_seconds,
        "0 or more was expected",
        lambda number: number >= 0,
        fix="Pass the seconds between two states.",
    )
    called = _callbacks(callbacks)
    group = Group.current(network.target_scaling.scale.device)
    members = len(network.members) if isinstance(network, Ensemble) else 1
    if group.first and not group.alone:
        _warn_of_batch_norm(network, group)
    show = group.first and (sys.stderr.isatty() if progress is None else progress)
    with ExitStack() as stack:
        stack.enter_context(group.telling())
        source = _source(data, validation, folds, settings, members)
        others = None if adjustment is None else Rows.given(adjustment, "adjustment").observed()
        if others is not None:
            check_rows(network, others)
        stack.enter_context(gradients())
        interrupted = stack.enter_context(interruption())
        place = Place.open(directory, seconds, group, stack)
        loop = _Loop(network, source, settings, place, interrupted, group, others)
        with drawing_from(network, loop.draws):
            history = loop.run(called, Progress(settings.epochs) if show else None)
        if others is not None:
            history.adjustment = adjust(network, others, settings, training=source.typical)
    if warn and interrupted.is_set():
        again = "" if directory is None else " Run the same again to go on."
        warnings.warn(
            f"Training was interrupted {how_far(history)}.{again}", InterruptedWarning, stacklevel=2
        )
    if warn and group.first:
        history.warn(stacklevel=2)
    return history


def _source(
    data: "Data | Source | Dataset[Any] | DataLoader[Any]",
    validation: Data | None,
    folds: Tensor | None,
    settings: Settings,
    n_members: int,
) -> Source:
    """Return what to train on."""
    if isinstance(data, Source):
        for name, given in (("validation", validation), ("folds", folds)):
            if given is not None:
                raise ArgumentError(
                    name,
                    got=f"was passed with a {type(data).__name__}",
                    expected="that says itself which rows are held out",
                    fix="Leave it out.",
                )
        return data
    held_out = None if validation is None else Rows.given(validation, "validation").observed()
    if isinstance(data, Dataset | DataLoader):
        if folds is not None:
            raise ArgumentError(
                "folds",
                got=f"was passed with a {type(data).__name__}",
                expected="only rows in memory have some",
                fix="Pass validation, or leave it out.",
            )
        return LoadedRows(data, held_out, settings, n_members)
    rows = Rows.given(data, "data")
    observed = rows.observed()
    if folds is not None:
        folds = _check_folds(folds, rows, validation)[rows.useful.cpu()]
    source = RowsInMemory(observed, held_out, folds, settings, n_members)
    source.rows_left_out = len(rows) - len(observed)
    return source


class Place(NamedTuple):
    """Where a run keeps its state; only process 0 opens the directory."""

    path: Path
    directory: RunDirectory | None
    seconds: float

    @classmethod
    def open(
        cls, path: str | os.PathLike[str] | None, seconds: float, group: Group, stack: ExitStack
    ) -> "Place | None":
        """Open a directory until the stack is left, that of process 0 for all; None for none."""
        # Others wait meanwhile, and no longer than their limit.
        wait = 0.0 if group.alone else min(LOCK_SECONDS, wait_seconds() / 2)
        opened: list[RunDirectory] = []

        def enter() -> Path | None:
            if path is None:
                return None
            opened.append(stack.enter_context(RunDirectory(path, wait=wait)))
            return opened[0].path

        found = group.from_first(enter)
        return None if found is None else cls(found, opened[0] if opened else None, seconds)


class _Loop:
    def __init__(
        self,
        network: DensityNetwork,
        source: Source,
        settings: Settings,
        place: Place | None,
        interrupted: threading.Event,
        group: Group,
        adjustment: Rows | None = None,
    ) -> None:
        self.network, self.settings, self.place, self.group = network, settings, place, group
        self.interrupted, self.halted = interrupted, False
        _check_trainable(network, settings)
        source.check(network)
        network.drop_adjustment()
        digest = "" if place is None and group.alone else source.digest()
        recorded = place is not None or not group.alone
        self.identity = identity(network, settings, digest) if recorded else {}
        if not group.alone:
            _check_alike(group, self.identity, adjustment)
        self.batch_size = source.batch_size(settings)
        weights = sum(parameter.numel() for parameter in network.parameters())
        # Of what is computed at once: half a batch, where one process computes the parts of two.
        parts = 2 if group.alone and (group.divided or source.divided) else group.size
        step = min(self.batch_size, source.n_rows) // parts
        self.threads: Context = one_thread if step * weights < MAX_SMALL_STEP else nullcontext
        opened = None if place is None else place.directory
        loaded = group.from_first(lambda: None if opened is None else opened.load())
        self.resumed = loaded is not None
        if loaded is None:
            with self.threads():
                source.prepare(network, settings)
        if not group.alone:
            network.load_state_dict(group.agree(network.state_dict()))
        self.state = State(network, settings, small=step * weights < MAX_LONE_STEP)
        self.members = self.state.members
        self.draws = RowDraws([], network.target_scaling.scale.device)
        self.foreign = draws_from_torch(network)
        with ExitStack() as undoing:
            undoing.callback(self.members.release)
            if place is not None:
                if loaded is not None:
                    tensors, values = loaded
                    resume(place.path, self.state, tensors, values, self.identity)
                if not self.state.position.done:
                    self.history.stopped = ""
                epochs = [vars(epoch) for epoch in self.history.epochs]
                group.from_first(lambda: None if opened is None else opened.begin_log(epochs))
            _check_weights(network)
            self.batches, held_out = source.batches(network)
            self.validation = held_out
            self._turn_to_learning()
            undoing.pop_all()
        self.noise = source.noise(settings, network)
        # Steps in one call of the native kernel: few large ones, so that a stop need not wait.
        self.steps_at_once = min(max(MAX_MULTIPLICATIONS // max(step * weights, 1), 1), MAX_STEPS)
        self.several = (
            self.members.stack is not None
            and group.alone
            and parts == 1
            and self.batches.complete
            and settings.accumulation == 1
            and not (settings.autocast or self.noise.condition or self.noise.target)
        )
        self.history.rows_left_out = source.rows_left_out
        self.history.rows, self.history.validation_rows = source.n_rows, len(held_out or ())
        self.saved = time.monotonic()

    def _turn_to_learning(self) -> None:
        """Draw random numbers, and take rows, for those members that learn.

        They are validated on the training rows where none are held out.
        """
        learning, seed = self.members.learning, self.settings.seed
        self.draws.turn_to([member_seed(seed, member) for member in learning])
        some = len(learning) < len(self.members)
        self.learning = torch.tensor(learning, device=self.draws.device) if some else None
        looked = self.batches if self.validation is None else self.validation
        self.looked_at = looked if isinstance(looked, Batches) else None
        if some and self.looked_at is not None:
            parts = self.looked_at.parts
            self.looked_at = self.looked_at.with_parts([parts[member] for member in learning])

    def loan(self) -> AbstractContextManager[None]:
        """Return the context in which the network may be called."""
        if not self.foreign:
            return nullcontext()
        return torch_seeded_by(self.draws.generator(self.group.rank))

    @property
    def history(self) -> History:
        return self.state.history

    def run(self, callbacks: Sequence[Callback], line: Progress | None) -> History:
        """Train to the end, or to an interruption."""
        position = self.state.position
        try:
            if not self.resumed:
                self.history.member_epochs = [-1] * len(self.members)
                self.history.member_nlls = [math.inf] * len(self.members)
                with self.state.averaged():
                    self._consider(-1, self._validate())
            finished = position.done
            while not position.done and not self._halts():
                with self.threads():
                    epoch = self._epoch()
                if epoch is not None:
                    self._report(epoch, callbacks, line)
            if not position.done:
                self.history.stopped = "interrupted"
            if not finished:
                self._save()
        finally:
            self.state.close()
            self.network.eval()
            if line is not None:
                line.close(
                    f"best validation {self.history.best_nll:.4g} "
                    f"in epoch {self.history.best_epoch + 1}"
                )
        self._turn_to_learning()  # all are there again
        if position.done and self.looked_at is not None:
            rows = sum(min(len(part), ROWS_DIAGNOSED) for part in self.looked_at.parts)
            found = problems(self._diagnose(), rows, len(self.members))
            self.history.warnings = [str(problem) for problem in found]
            self.history.warning_classes = [type(problem).__name__ for problem in found]
        return self.history

    def _report(self, epoch: Epoch, callbacks: Sequence[Callback], line: Progress | None) -> None:
        """Log an epoch, call the callbacks with it, and show it; process 0 does, for all."""

        def tell() -> bool:
            if self.place is not None and self.place.directory is not None:
                self.place.directory.log(vars(epoch))
            try:
                answers = [callback(epoch) for callback in callbacks]
            except BaseException:
                self._save()  # what it has seen it need not see again
                raise
            return any(is_truth(answer) and bool(answer) for answer in answers)

        if self.group.from_first(tell) and not self.history.stopped:
            self.history.stopped, self.state.position.done = "callback", True
        if line is not None:
            line.show(epoch)

    def _epoch(self) -> Epoch | None:
        """Go through the rest of an epoch; return it, or None where it was interrupted."""
        position, began = self.state.position, time.monotonic()
        spent, seed = position.seconds, self.settings.seed
        last = self.history.epochs[-1:]
        if not position.batch and all(math.isfinite(epoch.validation_nll) for epoch in last):
            self.state.keep_good()
        self.members.train()
        batches = self.batches.shuffled(
            seed, position.epoch, position.batch, self.batch_size, self.group
        )
        some = self.steps_at_once if self.several else 1
        while waiting := list(islice(batches, some)):
            while waiting:
                taken = self._several_steps(waiting)
                if not taken:
                    self._step(waiting[0])
                    taken = 1
                del waiting[:taken]
                position.batch += taken
                position.seconds = spent + time.monotonic() - began
                if self.place is not None and time.monotonic() - self.saved > self.place.seconds:
                    self._save()
                if self._halts():
                    return None
        return self._close_epoch()

    def _halts(self) -> bool:
        """Tell whether to stop: of several processes all after the same step, see `_step`."""
        return self.interrupted.is_set() if self.group.alone else self.halted

    def _step(self, batch: Batch) -> None:
        """Take a step, or skip it where its numbers are not finite."""
        position, state = self.state.position, self.state
        for parameter in state.parameters:
            parameter.grad = None
        try:
            value = self._backward(batch)
        except DIVERGED:
            value = math.nan
        if not self.group.alone:
            stop = float(self.interrupted.is_set())
            value, stops = self.group.sum_gradients(state.parameters, [value, stop])
            self.halted = stops > 0
        elif math.isnan(value):
            self._skip(value)
            return
        if not (math.isfinite(value) and state.step(self._rate())):
            self._skip(value)
            return
        position.skipped_in_a_row = 0
        position.loss_sum += value / len(self.members.learning) * batch.total
        position.rows += batch.total

    def _several_steps(self, batches: Sequence[Batch]) -> int:
        """Take steps at once where that is possible; return how many were taken."""
        if not self.several:
            return 0
        some = batches
        if self.learning is not None:
            some = [batch.of_members(self.learning) for batch in batches]
        rates = [self._rate(ahead) for ahead in range(len(batches))]
        losses = self.state.several_steps(some, rates, self.draws)
        if losses is None:
            self.several = False
            return 0
        position, learning = self.state.position, len(self.members.learning)
        for loss, batch in zip(losses, batches, strict=False):
            position.skipped_in_a_row = 0
            position.loss_sum += loss / learning * batch.total
            position.rows += batch.total
        return len(losses)

    def _backward(self, batch: Batch) -> float:
        """Compute the gradient of this process's part of the loss, and return that part."""
        parameters, (first, *others) = self.state.parameters, batch.halves()
        total = self._accumulate(first)
        for half in others:
            before = [parameter.grad for parameter in parameters]
            for parameter in parameters:
                parameter.grad = None
            total += self._accumulate(half)
            # One sum of two, as processes add theirs.
            for parameter, gradient in zip(parameters, before, strict=True):
                own = parameter.grad
                if own is None or gradient is None:
                    parameter.grad = gradient if own is None else own
                else:
                    own.add_(gradient)
        return total

    def _accumulate(self, batch: Batch) -> float:
        """Add the gradient of a part of a batch, in one pass or several; return its loss."""
        epoch, total = self.state.position.epoch, 0.0
        for part in batch.divided(self.settings.accumulation):
            self.draws.begin(epoch=epoch, first=part.first, rows=len(part))
            rows = part.rows if self.learning is None else part.rows.take(self.learning)
            rows = self.noise.add(rows, self.draws)
            # With weights, these add up over the batch.
            share = 1.0 if rows.weights is not None else len(part) / batch.total
            with self.loan():
                total += self._pull(epoch, rows, share)
        return total

    def _pull(self, epoch: int, rows: Rows, part: float) -> float:
        """Add the gradient of a part of the loss; return that part."""
        complete = self.batches.complete
        try:
            return self.members.backward(epoch, rows, self.draws, complete=complete, part=part)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise ArgumentError(
                "network",
                got="has a batch norm, and a process has one row of a batch",
                expected="it normalises over two at least",
                fix="Choose another batch_size, accumulation or number of processes, or a "
                "LayerNorm.",
            ) from error

    def _rate(self, ahead: int = 0) -> float:
        """Return the learning rate of the next step, or of one that many steps later."""
        settings, position = self.settings, self.state.position
        rate = settings.learning_rate * position.rate_factor
        rate *= min(1.0, (position.step + ahead + 1) / (settings.warmup_steps + 1))
        if settings.schedule == "cosine":
            batches = max(math.ceil(len(self.batches) / self.batch_size), 1)
            done = (position.epoch + (position.batch + ahead) / batches) / settings.epochs
            rate *= 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
        return rate

    def _skip(self, loss: float) -> None:
        """Count a step that was not taken; after several, go back and slow down, or give up."""
        position = self.state.position
        position.skipped_steps += 1
        position.skipped_in_a_row += 1
        if position.skipped_in_a_row < MAX_SKIPPED_IN_A_ROW:
            return
        position.skipped_in_a_row = 0
        position.returns += 1
        position.rate_factor *= RATE_AFTER_RETURN
        if position.returns <= MAX_RETURNS:
            self.state.return_to_good()
            return
        if self.members.stack is not None:
            self.members.stack.show_gradients()
        computed = tuple(self.members.prefixes[member] for member in self.members.learning)
        named = {n: p for n, p in self.network.named_parameters() if n.startswith(computed)}
        worst = max(named, key=lambda name: _badness(named[name]))
        self.history.stopped = "failed"
        self._save()
        raise TrainingError(
            f"The loss or its gradient was not finite {position.skipped_steps} times in epoch "
            f"{position.epoch + 1}, last in batch {position.batch + 1} (loss {loss:g}); "
            f"going back {MAX_RETURNS} times to smaller rates did not help. The worst parameter is "
            f"{worst}. Lower learning_rate or clip, raise the floor of the head, add "
            f"target_noise, or look for outliers in the data.",
            outcome="The best weights so far are in the network.",
        )

    def _validate(self) -> list[float]:
        """Return each member's loss on its validation rows; the weights are the averaged ones.

        Without such rows, that of the last epoch's steps. Of a member that no longer learns, the
        loss at its best.
        """
        self.members.train(False)
        losses, learning = list(self.history.member_nlls), self.members.learning
        for member, loss in zip(learning, self._validate_learning(), strict=True):
            losses[member] = loss
        return losses

    def _validate_learning(self) -> list[float]:
        """Return the loss of each member that learns."""
        looked, learning = self.looked_at, self.members.learning
        if looked is None:
            position = self.state.position
            mean = position.loss_sum / position.rows if position.rows else math.inf
            return [mean + self.batches.offsets[member] for member in learning]
        if not self.group.alone and self.members.stack is None:
            # Such as the running means of a batch norm, which has seen the rows of its process.
            self.network.load_state_dict(self.group.agree(self.network.state_dict()))
        found = [math.nan] * len(learning)
        with self.threads(), self.loan(), suppress(DIVERGED):
            found = self.members.validate(looked, self.group)
        return list(self.group.agree(found))

    def _consider(self, number: int, losses: Sequence[float]) -> None:
        """Keep the members that are better than before; those that have stalled stay as they are.

        The weights are the averaged ones.
        """
        history, stalled = self.history, self.state.position.stalled_epochs
        for member, loss in enumerate(losses):
            if stalled[member] >= self.settings.patience:
                continue
            stalled[member] += number >= 0
            if loss < history.member_nlls[member]:
                history.member_nlls[member], history.member_epochs[member] = loss, number
                stalled[member] = 0
                self.state.keep_best(member)
        history.best_epoch = max(history.member_epochs)
        history.best_nll = sum(history.member_nlls) / len(losses)

    def _close_epoch(self) -> Epoch:
        """Validate, diagnose the components, and decide whether to go on."""
        position, settings = self.state.position, self.settings
        with self.state.averaged():
            losses = self._validate()
            found = self._last_diagnosis() or self._diagnose()
            self._consider(position.epoch, losses)
        mean = position.loss_sum / position.rows if position.rows else math.nan
        learning = self.members.learning
        offset = sum(self.batches.offsets[member] for member in learning) / len(learning)
        epoch = Epoch(
            epoch=position.epoch,
            steps=position.batch,
            rate=self._rate(),
            train_nll=mean + offset,
            validation_nll=sum(losses) / len(losses),
            seconds=position.seconds,
            skipped_steps=position.skipped_steps,
            **found._asdict(),
        )
        self.history.epochs.append(epoch)
        stalled = min(position.stalled_epochs)
        halved_after = max(settings.patience // 3, 1)
        if settings.schedule == "plateau" and stalled and not stalled % halved_after:
            position.rate_factor *= 0.5
        position.next_epoch()
        if position.epoch >= settings.epochs:
            self.history.stopped = "all epochs"
        elif stalled >= settings.patience:
            self.history.stopped = "no better validation loss"
        position.done = bool(self.history.stopped)
        left = [m for m in learning if position.stalled_epochs[m] < settings.patience]
        if self.members.stack is not None and 0 < len(left) < len(learning):
            self.state.keep_learning(left)
            self._turn_to_learning()
        return epoch

    def _last_diagnosis(self) -> Diagnosis | None:
        """Return what the last epoch has, where this one need not be looked at."""
        number, epochs = self.state.position.epoch, self.history.epochs
        if number < EPOCHS_PER_DIAGNOSIS or not number % EPOCHS_PER_DIAGNOSIS or not epochs:
            return None
        return Diagnosis(*(getattr(epochs[-1], name) for name in Diagnosis._fields))

    def _diagnose(self) -> Diagnosis:
        if self.looked_at is None:
            return Diagnosis(math.nan, math.nan, math.nan, math.nan, [])
        with self.threads(), self.loan():
            found = self.members.diagnose(self.looked_at)
        return found if self.learning is None else self._with_others(found)

    def _with_others(self, found: Diagnosis) -> Diagnosis:
        """Return a diagnosis with the usage that members had who no longer learn."""
        learning, members = self.members.learning, len(self.members)
        usage, count = list(self.history.epochs[-1].usage), len(found.usage) // len(learning)
        if len(usage) != members * count:  # some had no rows to be looked at
            return found
        for place, member in enumerate(learning):
            own = found.usage[place * count : (place + 1) * count]
            usage[member * count : (member + 1) * count] = [
                part * len(learning) / members for part in own
            ]
        return found._replace(usage=usage)

    def _save(self) -> None:
        directory = None if self.place is None else self.place.directory
        if directory is not None:
            directory.save(self.state.tensors(), {"identity": self.identity, **self.state.values()})
            self.saved = time.monotonic()


def _badness(parameter: Tensor) -> float:
    """Return how far from usable a parameter is: infinite if its gradient is not finite."""
    gradient = parameter.grad
    if gradient is not None and not bool(gradient.isfinite().all()):
        return math.inf
    return float(parameter.detach().abs().amax())


def _check_alike(group: Group, ours: Identity, adjustment: Rows | None) -> None:
    """Refuse processes that were given different things."""
    rows = [hash_numbers(part) for part in adjustment or () if part is not None]
    group.check_same(
        {
            "data": {"": ours["data"]},
            "settings": ours["settings"],
            "network": ours["network"],
            "adjustment": {"": rows},
        },
        fix={
            "data": "Pass the same rows and the same seed to each: they share every batch.",
            "settings": "Pass the same settings to each.",
            "network": "Make the same network in each.",
            "adjustment": "Pass the same rows to each.",
        },
    )


def _warn_of_batch_norm(network: DensityNetwork, group: Group) -> None:
    for name, module in network.named_modules():
        # Within torch itself GPUs can do it: SyncBatchNorm.
        if isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm):
            warnings.warn(
                f"The network has a batch norm, {name}: each of {group.size} processes normalises "
                "by its own rows of a batch, and learns something else than one process would. "
                "LayerNorm and GroupNorm do not depend on other rows.",
                ProcessWarning,
                stacklevel=3,
            )
            return


def _check_network(network: Any) -> None:
    if not isinstance(network, DensityNetwork):
        raise KindError(
            "network",
            got=f"is the class {network.__name__}"
            if isinstance(network, type)
            else f"is a {type(network).__name__}",
            expected="a DensityNetwork was expected",
            fix="Make it the backbone of one: MixtureNetwork(backbone, head)."
            if isinstance(network, nn.Module)
            else "Pass one, such as MixtureNetwork.of(conditions, targets).",
        )


def _callbacks(given: Any) -> tuple[Callback, ...]:
    """Return the callbacks as a tuple: one function, several, or None for none."""
    listed = tuple(given) if isinstance(given, list | tuple) else () if given is None else (given,)
    for callback in listed:
        if not callable(callback):
            raise KindError(
                "callbacks",
                got=f"has a {type(callback).__name__}",
                expected="functions of an Epoch were expected",
                fix="Pass one, a list of them, or leave it out.",
            )
    return listed


def _check_trainable(network: DensityNetwork, settings: Settings) -> None:
    """Refuse networks that no step can change, or whose frozen bias the start would change."""
    named = dict(network.named_parameters())
    lazy = next((n for n, p in named.items() if isinstance(p, nn.UninitializedParameter)), None)
    # Parameters without a shape cannot be asked.
    inference = next((n for n, p in named.items() if lazy is None and p.is_inference()), None)
    dtypes = {str(p.dtype).removeprefix("torch.") for p in named.values()}
    heads = [module for module in network.modules() if isinstance(module, Head)]
    faults = (
        (
            lazy is not None,
            f"has {lazy}, which has no shape yet",
            "every layer's size is needed",
            "Call the backbone once with some standardised conditions.",
        ),
        (
            inference is not None,
            f"has {inference}, made under torch.inference_mode",
            "such tensors have no gradient",
            "Make the network outside of it.",
        ),
        (
            not any(p.requires_grad for p in named.values()),
            "has no parameter that requires a gradient",
            "training changes some",
            "Call network.requires_grad_(True), or on the part to be trained.",
        ),
        (
            # Foreign modules may mix precisions on purpose.
            len(dtypes) > 1 and not draws_from_torch(network),
            f"is in {' and '.join(sorted(dtypes))}",
            "one precision was expected",
            "Call network.float().",
        ),
        (
            settings.start == "data" and not all(h.linear.bias.requires_grad for h in heads),
            "has a head whose bias is frozen",
            "start='data' would move it",
            "Pass Settings(start='keep').",
        ),
    )
    for wrong, got, expected, fix in faults:
        if wrong:
            raise ArgumentError("network", got=got, expected=expected, fix=fix)


def _check_folds(folds: Any, rows: Rows, validation: Data | None) -> Tensor:
    """Return the fold of each row, on the CPU; refuse anything else."""
    given = torch.as_tensor(folds).cpu()
    shape, whole = list(given.shape), not given.is_floating_point() and given.dtype != torch.bool
    faults = (
        (validation is not None, "was passed with validation", "one of them was expected"),
        (not whole, f"is {given.dtype}", "whole numbers were expected"),
        (shape != [len(rows)], f"has shape {shape}", f"there are {len(rows)} rows"),
        (whole and bool((given < -1).any()), "has numbers below −1", "−1 means no fold"),
    )
    for wrong, got, expected in faults:
        if wrong:
            fix = "Pass the number of its fold for each row, or leave it out."
            raise ArgumentError("folds", got=got, expected=expected, fix=fix)
    return given.long()


@torch.no_grad()
def _check_weights(network: DensityNetwork) -> None:
    """Refuse to start from weights that no step can repair."""
    for name, parameter in network.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise NotFiniteError(
                "network",
                got=f"has NaN or infinity in {name}",
                expected="training starts from its weights",
                fix="Make the network anew, or load one with finite weights.",
            )
