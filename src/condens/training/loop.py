"""The training loop."""

import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_

from condens.data import Rows
from condens.errors import ArgumentError, TrainingError
from condens.nn import DensityNetwork
from condens.nn.randomness import drawing_from, draws_from_torch, torch_seeded_by
from condens.training.batches import Batches, Noise, batch_size
from condens.training.diagnostics import ALONE, Diagnosis, diagnose, remedies
from condens.training.history import Epoch, History
from condens.training.identity import identity
from condens.training.interruption import how_far, interruption
from condens.training.objective import objective
from condens.training.progress import Progress
from condens.training.readiness import (
    check_arguments,
    check_place,
    check_trainable,
    check_weights,
)
from condens.training.resumption import resume
from condens.training.run_directory import RunDirectory
from condens.training.settings import Settings
from condens.training.state import State
from condens.training.threads import SMALL, one_thread

# Steps in a row with a loss or gradient that is not finite, before the weights go back.
TRIES = 5
# How often they go back, each time with this fraction of the rate, before training gives up.
RETURNS = 5
SLOWER = 0.3
# What torch raises where a covariance is not finite, or singular to all digits.
DIVERGED: type[RuntimeError] = torch.linalg.LinAlgError  # type: ignore[attr-defined]
# Rows validated at a time.
BLOCK = 4096
# Told where training fails, and true for who has the network.
KEPT = "The best weights so far are in the network."


def train(
    network: DensityNetwork,
    data: Any,
    settings: Settings | None = None,
    *,
    validation: Any = None,
    directory: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 10.0,
    callback: Callable[[Epoch], object] | None = None,
    progress: bool | None = None,
) -> History:
    """Train a network to give the rows' targets a high density; return what happened.

    The network ends with the best averaged weights on the validation rows. It never ends
    with NaN: a step whose loss or gradient is not finite is left out; after several in a row
    the weights return to the last good ones and the rate falls; and if that does not help, a
    `TrainingError` says where, with the best weights so far in the network.

    Args:
        network: trained in place, whatever the mode of autograd around; it ends in evaluation
            mode. What `requires_grad` is off for stays as it is.
        data: `Rows`, or (condition, target) or (condition, target, weights). An entry of the
            target that is NaN was not observed; a row with none observed is left out.
        settings: see `Settings`.
        validation: rows to validate on, in place of a share of the data.
        directory: where to keep the state of the run. If it holds one already, training goes
            on from there, with the bytes an uninterrupted run would have given.
        checkpoint_seconds: time between two states.
        callback: called with every `Epoch` that ends. What it raises ends the run, with the
            state saved and the best weights in the network.
        progress: show a line; by default where stderr is a terminal.

    Ctrl-C stops after the batch, with a warning, the state saved and
    `history.stopped == "interrupted"`; a second one stops at once.

    Runs in threads give the bytes they give alone, and torch's own generator is left as it was:
    everything random comes from a generator of the run. Modules and hooks of others may draw
    from torch's, so a network that has some borrows it for every step, seeded by the run; such
    steps wait for one another, and other threads should not draw from it meanwhile.
    """
    with interruption() as asked:
        history = run(
            network,
            data,
            settings,
            validation=validation,
            directory=directory,
            checkpoint_seconds=checkpoint_seconds,
            callback=callback,
            progress=progress,
        )
    if asked.is_set():
        goes_on = "" if directory is None else " Run the same again to go on."
        told = f"Training was interrupted {how_far(history)}.{goes_on}"
        warnings.warn(told, stacklevel=2)
    tell(history, stacklevel=3)
    return history


def run(
    network: DensityNetwork,
    data: Any,
    settings: Settings | None = None,
    *,
    validation: Any = None,
    directory: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 10.0,
    callback: Callable[[Epoch], object] | None = None,
    progress: bool | None = None,
) -> History:
    """Train as `train` does, without a word: `tell` says what is to be said."""
    settings = Settings.given(settings)
    check_arguments(network, checkpoint_seconds, callback)
    rows = Rows.given(data, "data")
    kept = rows.observed()
    held_out = None if validation is None else Rows.given(validation, "validation").observed()
    place = nullcontext() if directory is None else RunDirectory(directory)
    with place as kept_in, gradients(), interruption() as interrupted:
        loop = _Loop(network, kept, held_out, settings, kept_in)
        loop.checkpoint_seconds, loop.interrupted = checkpoint_seconds, interrupted
        loop.history.rows_left_out = len(rows) - len(kept)
        show = sys.stderr.isatty() if progress is None else progress
        with drawing_from(network, loop.state.generator):
            return loop.run(callback, Progress(settings.epochs) if show else None)


def tell(history: History, *, stacklevel: int, components_by_default: bool = False) -> None:
    """Warn of what is bad about a trained network.

    With `components_by_default` their number was not the user's choice: some data need one only,
    and that is no news.
    """
    for advice in history.warnings:
        if not (components_by_default and advice.startswith(ALONE)):
            warnings.warn(advice, stacklevel=stacklevel)


@contextmanager
def gradients() -> Iterator[None]:
    """Compute gradients, whether or not the caller does."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


class _Loop:
    checkpoint_seconds: float
    interrupted: threading.Event

    def __init__(
        self,
        network: DensityNetwork,
        rows: Rows,
        validation: Rows | None,
        settings: Settings,
        directory: RunDirectory | None,
    ) -> None:
        self.network, self.settings, self.directory = network, settings, directory
        check_trainable(network, settings)
        for part in (rows, validation):
            if part is not None:
                check_place(network, part)
                network.check(part.condition, part.target)
        self.identity = {} if directory is None else identity(network, settings, rows, validation)
        if validation is None and settings.validation_fraction and len(rows) > 1:
            rows, validation = rows.split(settings.validation_fraction, settings.seed)
        self.batch_size = batch_size(settings, len(rows))
        weights = sum(parameter.numel() for parameter in network.parameters())
        self.small = min(self.batch_size, len(rows)) * weights < SMALL
        self.state = State(network, settings)
        resumed = self._resume()
        if not resumed and settings.start == "keep":
            network.extend_range(rows.condition)
        elif not resumed:
            generator = torch.Generator().manual_seed(settings.seed)
            with self._threads():
                network.prepare(
                    rows.condition,
                    rows.target,
                    generator=generator,
                    from_data=settings.start == "data",
                )
            self.state = State(network, settings)
        check_weights(network)
        self.foreign = draws_from_torch(network)
        if directory is not None:
            directory.begin_log(vars(epoch) for epoch in self.history.epochs)
        self.batches = Batches(network, rows)
        self.validation = self.batches if validation is None else Batches(network, validation)
        self.noise = Noise(settings, self.batches.rows, network.condition_codes)
        self.history.rows, self.history.validation_rows = len(rows), len(validation or ())
        self.saved = time.monotonic()

    @property
    def history(self) -> History:
        return self.state.history

    def run(self, callback: Callable[[Epoch], object] | None, line: Progress | None) -> History:
        """Train to the end, or to an interruption."""
        position = self.state.position
        try:
            if not self.state.best:
                with self._threads():
                    self._consider(-1, self._validate())
            finished = position["done"]
            while not position["done"] and not self.interrupted.is_set():
                with self._threads():
                    epoch = self._epoch()
                if epoch is None:
                    continue
                self._log(epoch)
                if callback is not None:
                    self._call(callback, epoch)
                if line is not None:
                    line.show(epoch)
            if not position["done"]:
                self.history.stopped = "interrupted"
            if not finished:
                self._save()
        finally:
            if self.state.best:
                self.network.load_state_dict(self.state.best)
            self.network.eval()
            if line is not None:
                best = self.history
                line.close(f"best validation {best.best_nll:.4g} in epoch {best.best_epoch + 1}")
        if position["done"]:
            with self._threads():
                self.history.warnings = remedies(self._diagnose())
        return self.history

    def _call(self, callback: Callable[[Epoch], object], epoch: Epoch) -> None:
        try:
            callback(epoch)
        except BaseException:
            self._save()  # what it has seen it need not see again
            raise

    def _threads(self) -> AbstractContextManager[None]:
        return one_thread() if self.small else nullcontext()

    def _loan(self) -> AbstractContextManager[None]:
        """Return the context in which the network may be called."""
        return torch_seeded_by(self.state.generator) if self.foreign else nullcontext()

    def _epoch(self) -> Epoch | None:
        """Go through the rest of an epoch; return it, or None where it was interrupted."""
        position, began = self.state.position, time.monotonic()
        spent, size = position["seconds"], self.batch_size
        if not position["batch"] and self._sound():
            self.state.keep_good()
        self.network.train()
        for batch in self.batches.shuffled(
            self.settings.seed, position["epoch"], position["batch"], size
        ):
            self._step(self.noise.add(batch, self.state.generator))
            position["batch"] += 1
            position["seconds"] = spent + time.monotonic() - began
            if time.monotonic() - self.saved > self.checkpoint_seconds:
                self._save()
            if self.interrupted.is_set():
                return None
        return self._close_epoch()

    def _sound(self) -> bool:
        """Whether the last epoch, if any, left weights worth returning to."""
        return not self.history.epochs or math.isfinite(self.history.epochs[-1].validation_nll)

    def _step(self, batch: Rows) -> None:
        """Take a step, or leave it out where its numbers are not finite."""
        position, state = self.state.position, self.state
        for parameter in state.parameters:
            parameter.grad = None
        try:
            with self._loan():
                loss = objective(
                    self.network,
                    self.settings,
                    position["epoch"],
                    batch,
                    complete=self.batches.complete,
                )
                if not loss.requires_grad:
                    raise ArgumentError(
                        "network",
                        got="has a loss without a gradient",
                        expected="training follows it",
                        fix="Let a parameter that the loss depends on require a gradient.",
                    )
                loss.backward()
        except DIVERGED:
            self._leave_out(math.nan)
            return
        gradients = [p.grad for p in state.parameters if p.grad is not None]
        size = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        value, length = loss.item(), size.item()
        if not (math.isfinite(value) and math.isfinite(length)):
            self._leave_out(value)
            return
        if length > self.settings.clip:
            clip_grads_with_norm_(state.parameters, self.settings.clip, size)
        state.step(self._rate())
        position["step"] += 1
        position["streak"] = 0
        position["loss"] += value * len(batch)
        position["rows"] += len(batch)
        if self.settings.average:
            state.follow(self.settings.average)

    def _rate(self) -> float:
        settings, position = self.settings, self.state.position
        rate = settings.learning_rate * position["reduction"]
        rate *= min(1.0, (position["step"] + 1) / (settings.warmup_steps + 1))
        if settings.schedule == "cosine":
            batches = math.ceil(len(self.batches) / self.batch_size)
            done = (position["epoch"] + position["batch"] / batches) / settings.epochs
            rate *= 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
        return rate

    def _leave_out(self, loss: float) -> None:
        """Count a step that was not taken; after several, go back and slow down."""
        position = self.state.position
        position["skipped"] += 1
        position["streak"] += 1
        if position["streak"] < TRIES:
            return
        position["streak"] = 0
        position["restores"] += 1
        position["reduction"] *= SLOWER
        if position["restores"] > RETURNS:
            self._give_up(loss)
        self.state.return_to_good()

    def _give_up(self, loss: float) -> NoReturn:
        position = self.state.position
        named = dict(self.network.named_parameters())
        worst = max(named, key=lambda name: _badness(named[name]))
        self.history.stopped = "failed"
        self._save()
        raise TrainingError(
            f"The loss or its gradient was not finite {position['skipped']} times in epoch "
            f"{position['epoch'] + 1}, last in batch {position['batch'] + 1} (loss {loss:g}); "
            f"going back {RETURNS} times to smaller rates did not help. The worst parameter is "
            f"{worst}. Lower learning_rate or clip, raise the floor of the head, add "
            f"target_noise, or look for outliers in the data. {KEPT}"
        )

    @torch.no_grad()
    def _validate(self) -> float:
        """Return the loss of the averaged weights on the validation rows, in own units."""
        self.network.eval()
        total = 0.0
        with self.state.averaged(), self._loan(), suppress(DIVERGED):
            for batch in self.validation.in_order(BLOCK):
                total += float(self.network.standard_loss(*batch)) * len(batch)
            return total / len(self.validation) + self.validation.offset
        return math.nan

    def _consider(self, number: int, loss: float) -> None:
        """Keep the averaged weights if they are the best, and count the epochs since."""
        self.state.position["stalled"] += 1
        if loss < self.history.best_nll or not self.state.best:
            self.history.best_nll, self.history.best_epoch = loss, number
            self.state.position["stalled"] = 0
            with self.state.averaged():
                self.state.keep_best()

    def _close_epoch(self) -> Epoch:
        """Validate, look at the components, and decide whether to go on."""
        position, settings, number = (
            self.state.position,
            self.settings,
            self.state.position["epoch"],
        )
        loss = self._validate()
        with self.state.averaged():
            found = self._diagnose()
        mean = position["loss"] / position["rows"] if position["rows"] else math.nan
        epoch = Epoch(
            epoch=number,
            steps=position["batch"],
            rate=self._rate(),
            train_nll=mean + self.batches.offset,
            validation_nll=loss,
            seconds=position["seconds"],
            skipped_steps=position["skipped"],
            **found.to_dict(),
        )
        self.history.epochs.append(epoch)
        self._consider(number, loss)
        stalled = position["stalled"]
        if (
            settings.schedule == "plateau"
            and stalled
            and not stalled % (settings.patience // 3 or 1)
        ):
            position["reduction"] *= 0.5
        position |= {"epoch": number + 1, "batch": 0, "loss": 0.0, "rows": 0}
        position |= {"seconds": 0.0, "skipped": 0}
        if number + 1 >= settings.epochs:
            self.history.stopped = "all epochs"
        elif stalled >= settings.patience:
            self.history.stopped = "no better validation loss"
        position["done"] = bool(self.history.stopped)
        return epoch

    def _diagnose(self) -> Diagnosis:
        with self._loan():
            return diagnose(self.network, *self.validation.rows[:2])

    def _log(self, epoch: Epoch) -> None:
        if self.directory is not None:
            self.directory.log(vars(epoch))

    def _save(self) -> None:
        if self.directory is not None:
            values = {"identity": self.identity, **self.state.values()}
            self.directory.save(self.state.tensors(), values)
            self.saved = time.monotonic()

    def _resume(self) -> bool:
        """Take the state from the run directory, if it has one of this run."""
        loaded = None if self.directory is None else self.directory.load()
        if self.directory is None or loaded is None:
            return False
        tensors, values = loaded
        resume(self.directory.path, self.state, tensors, values, self.identity)
        if not self.state.position["done"]:
            self.history.stopped = ""
        return True


def _badness(parameter: Tensor) -> float:
    """Return how far from usable a parameter is: infinite if its gradient is not finite."""
    gradient = parameter.grad
    if gradient is not None and not bool(gradient.isfinite().all()):
        return math.inf
    return float(parameter.detach().abs().amax())
