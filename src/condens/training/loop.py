"""The training loop."""

import hashlib
import json
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from condens.data import Rows
from condens.errors import RunDirectoryError, TrainingError, message
from condens.nn import MixtureNetwork
from condens.training.checkpoint import RunDirectory
from condens.training.diagnostics import diagnose, remedies
from condens.training.history import Epoch, History
from condens.training.objective import objective
from condens.training.progress import Progress
from condens.training.settings import Settings
from condens.training.state import State

# Steps in a row with a loss or gradient that is not finite, before the weights go back.
TRIES = 5
# How often they go back, each time with this fraction of the rate, before training gives up.
RETURNS = 5
SLOWER = 0.3
# Rows validated at a time.
BLOCK = 4096


def train(
    network: MixtureNetwork,
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
        network: trained in place.
        data: `Rows`, or (condition, target) or (condition, target, weights). An entry of the
            target that is NaN was not observed; a row with none observed is left out.
        settings: see `Settings`.
        validation: rows to validate on, in place of a share of the data.
        directory: where to keep the state of the run. If it holds one already, training goes
            on from there, with the bytes an uninterrupted run would have given.
        checkpoint_seconds: time between two states.
        callback: called with every `Epoch` that ends.
        progress: show a line; by default where stderr is a terminal.

    Ctrl-C stops after the batch, with the state saved and `history.stopped == "interrupted"`;
    a second one stops at once.
    """
    settings = Settings() if settings is None else settings
    rows = _rows(data)
    kept = rows.observed()
    held_out = None if validation is None else _rows(validation).observed()
    place = nullcontext() if directory is None else RunDirectory(directory)
    with place as run, torch.random.fork_rng(), _interruption() as interrupted:
        torch.manual_seed(settings.seed)
        loop = _Loop(network, kept, held_out, settings, run, checkpoint_seconds, interrupted)
        loop.history.rows_without_target = len(rows) - len(kept)
        show = sys.stderr.isatty() if progress is None else progress
        return loop.run(callback, Progress(settings.epochs) if show else None)


class _Loop:
    def __init__(
        self,
        network: MixtureNetwork,
        rows: Rows,
        validation: Rows | None,
        settings: Settings,
        run: RunDirectory | None,
        checkpoint_seconds: float,
        interrupted: threading.Event,
    ) -> None:
        self.network, self.settings, self.directory = network, settings, run
        self.checkpoint_seconds, self.interrupted = checkpoint_seconds, interrupted
        self.state = State(network, settings)
        fingerprint = "" if run is None else _fingerprint(rows, validation)
        self.identity = {"settings": settings.as_dict(), "data": fingerprint}
        if validation is None and settings.validation_share and len(rows) > 1:
            rows, validation = rows.split(settings.validation_share, settings.seed)
        resumed = self._resume()
        if not resumed:
            generator = torch.Generator().manual_seed(settings.seed)
            network.prepare(
                rows.condition, rows.target, generator=generator, from_data=settings.start == "data"
            )
            self.state = State(network, settings)
        self.train_offset = float(network.log_scale(rows.target, _normalised(rows)))
        self.rows = _standardised(network, rows)
        self.validation = self.rows
        self.offset = self.train_offset
        if validation is not None:
            self.validation = _standardised(network, validation)
            self.offset = float(network.log_scale(validation.target, _normalised(validation)))
        self.history.rows, self.history.validation_rows = len(rows), len(validation or ())
        self.noise = _noise(settings, self.rows)
        self.saved = time.monotonic()

    @property
    def history(self) -> History:
        return self.state.history

    def run(self, callback: Callable[[Epoch], object] | None, line: Progress | None) -> History:
        """Train to the end, or to an interruption."""
        position = self.state.position
        try:
            if not self.state.best:
                self._consider(-1, self._validate())
            while not position["done"] and not self.interrupted.is_set():
                self._epoch(callback, line)
            if not position["done"]:
                self.history.stopped = "interrupted"
            self._save()
        finally:
            if self.state.best:
                self.network.load_state_dict(self.state.best)
            if line is not None:
                best = self.history
                line.close(f"best validation {best.best_nll:.4g} in epoch {best.best_epoch + 1}")
        return self.history

    def _epoch(self, callback: Callable[[Epoch], object] | None, line: Progress | None) -> None:
        """Go through the rest of an epoch; look at the network when it is over."""
        position, began = self.state.position, time.monotonic()
        spent = position["seconds"]
        if not position["batch"]:
            self.state.keep_good()
        self.network.train()
        for batch in self._batches():
            self._step(batch)
            position["batch"] += 1
            position["seconds"] = spent + time.monotonic() - began
            if time.monotonic() - self.saved > self.checkpoint_seconds:
                self._save()
            if self.interrupted.is_set():
                return
        epoch = self._close_epoch()
        if self.directory is not None:
            self.directory.log({k: v for k, v in vars(epoch).items() if k != "usage"})
        if callback is not None:
            callback(epoch)
        if line is not None:
            line.show(epoch)

    def _batches(self) -> Iterator[Rows]:
        """Yield what is left of this epoch's batches, shuffled by seed and epoch alone."""
        position, size = self.state.position, self.settings.batch_size
        generator = torch.Generator().manual_seed(_mixed(self.settings.seed, position["epoch"]))
        order = torch.randperm(len(self.rows), generator=generator)
        shuffled = self.rows.take(order)
        for start in range(position["batch"] * size, len(order), size):
            part = slice(start, start + size)
            weights = None if shuffled.weights is None else shuffled.weights[part]
            yield Rows(shuffled.condition[part], shuffled.target[part], weights)

    def _step(self, batch: Rows) -> None:
        """Take a step, or leave it out where its numbers are not finite."""
        position = self.state.position
        condition, target = self._noisy(batch)
        weights = None if batch.weights is None else batch.weights / len(batch)
        self.state.optimiser.zero_grad()
        loss = objective(self.network, self.settings, position["epoch"], condition, target, weights)
        loss.backward()
        gradients = [p.grad for p in self.state.parameters if p.grad is not None]
        size = get_total_norm(gradients)
        value = loss.item()
        if not (math.isfinite(value) and math.isfinite(size.item())):
            self._leave_out(value)
            return
        clip_grads_with_norm_(self.state.parameters, self.settings.clip, size)
        for group in self.state.optimiser.param_groups:
            group["lr"] = self._rate()
        self.state.optimiser.step()
        position["step"] += 1
        position["streak"] = 0
        position["loss"] += value * len(batch)
        position["weight"] += len(batch)
        if self.settings.average:
            self.state.follow(self.settings.average)

    def _noisy(self, batch: Rows) -> tuple[Tensor, Tensor]:
        condition, target = batch.condition, batch.target
        of_condition, of_target = self.noise
        if of_condition and condition.is_floating_point():
            condition = condition + of_condition * torch.randn_like(condition)
        if of_target:
            target = target + of_target * torch.randn_like(target)
        return condition, target

    def _rate(self) -> float:
        settings, position = self.settings, self.state.position
        rate = settings.learning_rate * position["reduction"]
        rate *= min(1.0, (position["step"] + 1) / (settings.warmup_steps + 1))
        if settings.schedule == "cosine":
            batches = math.ceil(len(self.rows) / settings.batch_size)
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

    def _give_up(self, loss: float) -> None:
        position = self.state.position
        named = dict(self.network.named_parameters())
        worst = max(named, key=lambda name: _badness(named[name]))
        self.history.stopped = "failed"
        raise TrainingError(
            f"The loss or its gradient was not finite {position['skipped']} times in epoch "
            f"{position['epoch'] + 1}, last in batch {position['batch'] + 1} (loss {loss:g}); "
            f"going back {RETURNS} times to smaller rates did not help. The worst parameter is "
            f"{worst}. Lower learning_rate or clip, raise the floor of the head, add "
            f"target_noise, or look for outliers in the data. The best weights so far are in "
            f"the network."
        )

    @torch.no_grad()
    def _validate(self) -> float:
        """Return the loss of the averaged weights on the validation rows, in own units."""
        self._averaged(True)
        self.network.eval()
        total = 0.0
        for start in range(0, len(self.validation), BLOCK):
            part = slice(start, start + BLOCK)
            condition, target, weights = (None if t is None else t[part] for t in self.validation)
            assert condition is not None
            assert target is not None
            loss = self.network.loss(
                condition, target, None if weights is None else weights / len(target)
            )
            total += float(loss) * len(target)
        self._averaged(False)
        return total / len(self.validation) + self.offset

    def _averaged(self, _: bool) -> None:
        if self.settings.average:
            self.state.swap()

    def _consider(self, number: int, loss: float) -> None:
        """Keep the averaged weights if they are the best, and count the epochs since."""
        position = self.state.position
        position["stalled"] += 1
        if loss < self.history.best_nll or not self.state.best:
            self.history.best_nll, self.history.best_epoch = loss, number
            position["stalled"] = 0
            self._averaged(True)
            self.state.keep_best()
            self._averaged(False)

    def _close_epoch(self) -> Epoch:
        position, settings = self.state.position, self.settings
        number = position["epoch"]
        rate = self._rate()
        loss = self._validate()
        self._averaged(True)
        found = diagnose(self.network, self.validation.condition, self.validation.target)
        self._averaged(False)
        mean = position["loss"] / position["weight"] if position["weight"] else math.nan
        epoch = Epoch(
            epoch=number,
            steps=position["batch"],
            rate=rate,
            train_nll=mean + self.train_offset,
            validation_nll=loss,
            seconds=position["seconds"],
            skipped_steps=position["skipped"],
            used_components=found.used,
            distinct_components=found.distinct,
            largest_condition_number=found.condition_number,
            unexplained_share=found.unexplained,
            usage=found.usage,
        )
        self.history.epochs.append(epoch)
        self._consider(number, loss)
        stalled = position["stalled"]
        if (
            settings.schedule == "plateau"
            and stalled
            and stalled % max(settings.patience // 3, 1) == 0
        ):
            position["reduction"] *= 0.5
        position |= {"epoch": number + 1, "batch": 0, "loss": 0.0, "weight": 0.0}
        position |= {"seconds": 0.0, "skipped": 0}
        if number + 1 >= settings.epochs:
            self.history.stopped = "all epochs"
        elif stalled >= settings.patience:
            self.history.stopped = "no better validation loss"
        position["done"] = bool(self.history.stopped)
        if position["done"]:
            self._warn()
        return epoch

    def _warn(self) -> None:
        """Say what is bad about the network that is returned."""
        self.network.load_state_dict(self.state.best)
        self.network.eval()
        found = diagnose(self.network, self.validation.condition, self.validation.target)
        for kind, advice in remedies(found, self.network.head.components):
            self.history.warnings.append(f"{kind}: {advice}")
            warnings.warn(advice, stacklevel=5)

    def _save(self) -> None:
        if self.directory is not None:
            values = {"identity": self.identity, **self.state.values()}
            self.directory.save(self.state.tensors(), values)
            self.saved = time.monotonic()

    def _resume(self) -> bool:
        if self.directory is None:
            return False
        loaded = self.directory.load()
        if loaded is None:
            return False
        tensors, values = loaded
        theirs, ours = values["identity"], json.loads(json.dumps(self.identity))
        if theirs["settings"] != ours["settings"]:
            names = [
                n for n in ours["settings"] if theirs["settings"].get(n) != ours["settings"][n]
            ]
            came, expected = (
                f"holds a run with other {', '.join(names)}",
                "a run keeps its settings",
            )
        elif theirs["data"] != ours["data"]:
            came, expected = "holds a run on other data", "a run keeps its data"
        else:
            self.state.load(tensors, values)
            self.state.history.stopped = self.state.history.stopped.replace("interrupted", "")
            return True
        remedy = "Use the same again to go on, or name another directory."
        raise RunDirectoryError(message(str(self.directory.path), came, expected, remedy))


def _rows(data: Any) -> Rows:
    return Rows.of(*data)


def _standardised(network: MixtureNetwork, rows: Rows) -> Rows:
    return Rows(
        network.standardise_condition(rows.condition),
        network.standardise_target(rows.target),
        None if rows.weights is None else (_normalised(rows) * len(rows)).to(network.dtype),
    )


def _normalised(rows: Rows) -> Any:
    """Return weights that sum to one."""
    return None if rows.weights is None else rows.weights / rows.weights.sum()


def _noise(settings: Settings, rows: Rows) -> tuple[float, float]:
    """Return the noise of condition and target; the rule is that of kernel densities."""
    columns = rows.target.shape[1]
    if rows.condition.dim() == 2:
        columns += rows.condition.shape[1]
    rule = 1.06 * len(rows) ** (-1 / (4 + columns))
    given = (settings.condition_noise, settings.target_noise)
    first, second = (rule if noise == "rule" else float(noise) for noise in given)
    return first, second


def _mixed(seed: int, epoch: int) -> int:
    """Return a seed for an epoch that no other epoch of a nearby seed has."""
    data = f"{seed} {epoch}".encode()
    return int.from_bytes(hashlib.sha256(data).digest()[:7], "little")


def _badness(parameter: Tensor) -> float:
    """Return how far from usable a parameter's gradient is, or its values."""
    gradient = parameter.grad
    if gradient is not None and not bool(gradient.isfinite().all()):
        return math.inf
    return float(parameter.detach().abs().amax())


def _fingerprint(rows: Rows, validation: Rows | None) -> str:
    digest = hashlib.sha256()
    for tensor in (*rows, *(validation or ())):
        if tensor is not None:
            digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
            digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def _interruption() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event; in another thread than the main one, do nothing."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.getsignal(signal.SIGINT)

    def ask(*_: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
