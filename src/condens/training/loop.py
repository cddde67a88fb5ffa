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
from typing import Any

import torch
from torch import Tensor, nn

from condens.data import Data, Rows
from condens.errors import (
    ArgumentError,
    InterruptedWarning,
    KindError,
    NotFiniteError,
    TrainingError,
)
from condens.nn import DensityNetwork, Ensemble, Head
from condens.nn.randomness import drawing_from, draws_from_torch, torch_seeded_by
from condens.scalars import as_real, is_truth
from condens.training.adjustment import adjust
from condens.training.batches import Batches, Noise, batch_size, random_folds
from condens.training.diagnostics import ROWS_DIAGNOSED, Diagnosis, problems
from condens.training.history import Epoch, History
from condens.training.interruption import how_far, interruption
from condens.training.progress import Progress
from condens.training.run_directory import RunDirectory, identity
from condens.training.settings import Settings
from condens.training.state import State
from condens.training.threads import MAX_SMALL_STEP, one_thread

# Steps in a row with a loss or gradient that is not finite, before the weights go back.
MAX_SKIPPED_IN_A_ROW = 5
# How often they go back, each time with this fraction of the rate, before training gives up.
MAX_RETURNS = 5
RATE_AFTER_RETURN = 0.3
# Beyond the first epochs: components change slowly, and looking at them costs as much as a step.
EPOCHS_PER_DIAGNOSIS = 5
# What torch raises where a covariance is not finite, or singular to all digits.
DIVERGED: type[RuntimeError] = torch.linalg.LinAlgError  # type: ignore[attr-defined]

# Enables gradients, within `torch.no_grad` too.
gradients = partial(torch.inference_mode, mode=False)

Callback = Callable[[Epoch], object]
Context = Callable[[], AbstractContextManager[None]]


def train(
    network: DensityNetwork,
    data: Data,
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
            Parameters without `requires_grad` stay as they are; `spread` and `tail`, if it has
            some, are dropped.
        data: `Rows`, or (condition, target) or (condition, target, weights). An entry of the
            target that is NaN was not observed; a row with none observed is left out.
        settings: see `Settings`.
        validation: rows to validate on, in place of a fraction of the data; of all members.
        folds: the fold of each row of the data [n], whole numbers from 0, −1 for none. A network
            validates on fold 0 and trains on all other rows; member m of an ensemble does so with
            fold m, and again from 0 where there are fewer folds. By default random ones of
            `validation_fraction`.
        adjustment: rows to set spread and tail on in the end, in neither `data` nor `validation`;
            see `adjust`. Without them the network gets none.
        directory: where to keep the state of the run. If it holds one already, training goes
            on from there, with the bytes an uninterrupted run would have given.
        checkpoint_seconds: time between two states.
        callbacks: a function, or several, called with every `Epoch` that ends. One that returns
            True ends the run, with `history.stopped == "callback"`. What one raises ends it too,
            with the state saved and the best weights in the network.
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
    rows = Rows.given(data, "data")
    observed = rows.observed()
    held_out = None if validation is None else Rows.given(validation, "validation").observed()
    if folds is not None:
        folds = _check_folds(folds, rows, validation)[rows.useful.cpu()]
    others = None if adjustment is None else Rows.given(adjustment, "adjustment").observed()
    if others is not None:
        _check_rows(network, others)
    show = sys.stderr.isatty() if progress is None else progress
    place = nullcontext() if directory is None else RunDirectory(directory)
    with place as opened, gradients(), interruption() as interrupted:
        loop = _Loop(network, observed, held_out, folds, settings, opened, seconds, interrupted)
        loop.history.rows_left_out = len(rows) - len(observed)
        with drawing_from(network, loop.state.generator):
            history = loop.run(called, Progress(settings.epochs) if show else None)
        if others is not None:
            history.adjustment = adjust(network, others, settings, training=observed)
    if warn and interrupted.is_set():
        again = "" if directory is None else " Run the same again to go on."
        warnings.warn(
            f"Training was interrupted {how_far(history)}.{again}", InterruptedWarning, stacklevel=2
        )
    if warn:
        history.warn(stacklevel=2)
    return history


class _Loop:
    def __init__(
        self,
        network: DensityNetwork,
        rows: Rows,
        validation: Rows | None,
        folds: Tensor | None,
        settings: Settings,
        directory: RunDirectory | None,
        checkpoint_seconds: float,
        interrupted: threading.Event,
    ) -> None:
        self.checkpoint_seconds, self.interrupted = checkpoint_seconds, interrupted
        self.network, self.settings, self.directory = network, settings, directory
        _check_trainable(network, settings)
        for part in filter(None, (rows, validation)):
            _check_rows(network, part)
        network.drop_adjustment()
        self.identity = (
            {} if directory is None else identity(network, settings, rows, validation, folds)
        )
        order = torch.arange(len(rows))
        if folds is None and validation is None and settings.validation_fraction and len(rows) > 1:
            folds, order = random_folds(len(rows), settings.validation_fraction, settings.seed)
        members = len(network.members) if isinstance(network, Ensemble) else 1
        trained, validated = _parts(folds, order, members, rows.target.device)
        most = max(map(len, trained))
        self.batch_size = batch_size(settings, most)
        weights = sum(parameter.numel() for parameter in network.parameters())
        small = min(self.batch_size, most) * weights < MAX_SMALL_STEP
        self.threads: Context = one_thread if small else nullcontext
        loaded = None if directory is None else directory.load()
        self.resumed = loaded is not None
        if loaded is None:
            # Rows that no member trains on have no say in the scales.
            self._start(*_used(rows, trained))
        self.state = State(network, settings)
        # In which the network may be called.
        self.loan: Context = (
            partial(torch_seeded_by, self.state.generator)
            if draws_from_torch(network)
            else nullcontext
        )
        self.members = self.state.members
        with ExitStack() as undoing:
            undoing.callback(self.members.release)
            if directory is not None:
                if loaded is not None:
                    directory.resume(self.state, *loaded, self.identity)
                if not self.state.position.done:
                    self.history.stopped = ""
                directory.begin_log(vars(epoch) for epoch in self.history.epochs)
            _check_weights(network)
            self.batches = Batches(network, rows, trained)
            self.validation = self.batches
            if validation is not None:
                every = torch.arange(len(validation), device=validation.target.device)
                self.validation = Batches(network, validation, [every] * members)
            elif folds is not None:
                self.validation = self.batches.with_parts(validated)
            undoing.pop_all()
        # As many rows as the first member has, whichever: no more than their shape is asked.
        alike = Rows(*(part[: len(trained[0])] for part in rows[:2]))
        self.noise = Noise(settings, alike, network.condition_codes)
        held_out = None if self.validation is self.batches else self.validation
        self.history.rows, self.history.validation_rows = most, len(held_out or ())
        self.saved = time.monotonic()

    def _start(self, rows: Rows, parts: Sequence[Tensor]) -> None:
        """Give the network its scales and first components, or widen its range of conditions.

        Members start from the rows that they train on, whose numbers are in `parts`.
        """
        start, generator = self.settings.start, torch.Generator().manual_seed(self.settings.seed)
        with self.threads():
            if start == "keep":
                self.network.extend_range(rows.condition)
            else:
                self.network.prepare(
                    *rows[:2], generator=generator, from_data=start == "data", parts=parts
                )

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
            while not position.done and not self.interrupted.is_set():
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
        if position.done:
            rows = sum(min(len(part), ROWS_DIAGNOSED) for part in self.validation.parts)
            found = problems(self._diagnose(), rows, len(self.members))
            self.history.warnings = [str(problem) for problem in found]
            self.history.warning_classes = [type(problem).__name__ for problem in found]
        return self.history

    def _report(self, epoch: Epoch, callbacks: Sequence[Callback], line: Progress | None) -> None:
        """Log an epoch, call the callbacks with it, and show it."""
        if self.directory is not None:
            self.directory.log(vars(epoch))
        try:
            answers = [callback(epoch) for callback in callbacks]
        except BaseException:
            self._save()  # what it has seen it need not see again
            raise
        if any(is_truth(answer) and answer for answer in answers) and not self.history.stopped:
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
        for batch in self.batches.shuffled(seed, position.epoch, position.batch, self.batch_size):
            self._step(self.noise.add(batch, self.state.generator))
            position.batch += 1
            position.seconds = spent + time.monotonic() - began
            if time.monotonic() - self.saved > self.checkpoint_seconds:
                self._save()
            if self.interrupted.is_set():
                return None
        return self._close_epoch()

    def _step(self, batch: Rows) -> None:
        """Take a step, or skip it where its numbers are not finite."""
        position, state = self.state.position, self.state
        for parameter in state.parameters:
            parameter.grad = None
        try:
            with self.loan():
                loss = self.members.loss(position.epoch, batch, complete=self.batches.complete)
                if not loss.requires_grad:
                    raise ArgumentError(
                        "network",
                        got="has a loss without a gradient",
                        expected="training follows it",
                        fix="Let a parameter that the loss depends on require a gradient.",
                    )
                loss.backward()
        except DIVERGED:
            self._skip(math.nan)
            return
        lengths = self.members.gradient_lengths()
        value, each = loss.item(), lengths.tolist()
        if not (math.isfinite(value) and all(map(math.isfinite, each))):
            self._skip(value)
            return
        if max(each) > self.settings.clip:
            self.members.clip(lengths)
        state.step(self._rate())
        position.skipped_in_a_row = 0
        rows = batch.target.shape[1]
        position.loss_sum += value / len(self.members) * rows
        position.rows += rows

    def _rate(self) -> float:
        settings, position = self.settings, self.state.position
        rate = settings.learning_rate * position.rate_factor
        rate *= min(1.0, (position.step + 1) / (settings.warmup_steps + 1))
        if settings.schedule == "cosine":
            batches = math.ceil(len(self.batches) / self.batch_size)
            done = (position.epoch + position.batch / batches) / settings.epochs
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
        named = dict(self.network.named_parameters())
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
        """Return each member's loss on its validation rows; the weights are the averaged ones."""
        self.members.train(False)
        with self.threads(), self.loan(), suppress(DIVERGED):
            return self.members.validate(self.validation)
        return [math.nan] * len(self.members)

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
        offset = sum(self.batches.offsets) / len(losses)
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
        return epoch

    def _last_diagnosis(self) -> Diagnosis | None:
        """Return what the last epoch has, where this one need not be looked at."""
        number, epochs = self.state.position.epoch, self.history.epochs
        if number < EPOCHS_PER_DIAGNOSIS or not number % EPOCHS_PER_DIAGNOSIS or not epochs:
            return None
        return Diagnosis(*(getattr(epochs[-1], name) for name in Diagnosis._fields))

    def _diagnose(self) -> Diagnosis:
        with self.threads(), self.loan():
            return self.members.diagnose(self.validation)

    def _save(self) -> None:
        if self.directory is not None:
            self.directory.save(
                self.state.tensors(), {"identity": self.identity, **self.state.values()}
            )
            self.saved = time.monotonic()


def _badness(parameter: Tensor) -> float:
    """Return how far from usable a parameter is: infinite if its gradient is not finite."""
    gradient = parameter.grad
    if gradient is not None and not bool(gradient.isfinite().all()):
        return math.inf
    return float(parameter.detach().abs().amax())


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


def _parts(
    folds: Tensor | None, order: Tensor, members: int, device: torch.device
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the numbers of the rows that each member trains on, and validates on, in an order."""
    if folds is None:
        return [order.to(device)] * members, [order.to(device)] * members
    count = max(int(folds.max()) + 1, 1)
    held = [(folds == member % count)[order] for member in range(members)]
    for fold, part in enumerate(held[:count]):
        if not bool(part.any()) or bool(part.all()):
            raise ArgumentError(
                "folds",
                got=f"has {int(part.sum())} of {len(order)} observed rows in fold {fold}",
                expected="a member validates on some rows and trains on others",
                fix="Pass folds 0, 1, … that each hold some of the rows.",
            )
    return [order[~part].to(device) for part in held], [order[part].to(device) for part in held]


def _used(rows: Rows, parts: Sequence[Tensor]) -> tuple[Rows, Sequence[Tensor]]:
    """Return the rows that are in any part, in the order of a single one, and their parts."""
    if len(parts) == 1:
        return rows.take(parts[0]), [torch.arange(len(parts[0]), device=parts[0].device)]
    seen = torch.zeros(len(rows), dtype=torch.bool, device=parts[0].device)
    for part in parts:
        seen[part] = True
    if bool(seen.all()):
        return rows, parts
    places = seen.cumsum(0) - 1
    return rows.take(seen.nonzero().flatten()), [places[part] for part in parts]


def _check_rows(network: DensityNetwork, rows: Rows) -> None:
    """Refuse rows that do not fit the network, or are on another device."""
    device = network.target_scaling.scale.device
    if rows.target.device != device:
        raise ArgumentError(
            "target",
            got=f"is on {rows.target.device}",
            expected=f"the network is on {device}",
            fix="Move one of them with .to(device).",
        )
    network.check(rows.condition, rows.target)


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
