"""Data-parallel training: the processes of a run, started by torchrun, as one.

Every process has the same weights and takes its part of every batch. The gradients are summed by
one flat all-reduce, which has the same order of summation in every step, and so do all processes
take the same step, bit for bit. What decides the course of a run (losses, a stop, a state that is
loaded) comes from process 0. Process 0 alone writes.
"""

import atexit
import ctypes
import datetime
import functools
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from condens.errors import ArgumentError, ProcessError

# Seconds that a process waits for the others before it gives up; the name of the variable in the
# environment that says another number.
WAIT_SECONDS, WAIT_VARIABLE = 300.0, "CONDENS_WAIT_SECONDS"
# Seconds after which the launcher of another node has noticed that a node is gone: it drops those
# from which it has not heard for 15 s, and would start anew with a dead one before.
NODE_SECONDS = 20.0
# Seconds between two signs of life.
SIGN_SECONDS = 1.0
# A worker that outlives the agent that started it would write into a run that somebody resumes.
_PARENT_DEATH_SIGNAL = 1


@dataclass
class Group:
    """The processes of a run: this one's number, and how many there are.

    >>> alone = Group()
    >>> alone.share(10), Group(rank=1, size=4).share(10)
    ((0, 10), (2, 5))
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    _signed: float = field(default=-math.inf, repr=False)
    _steps: int = field(default=0, repr=False)

    @classmethod
    def current(cls, device: torch.device | str | None = None) -> "Group":
        """Return the processes that torchrun started, or that torch.distributed knows."""
        join(device)
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        place = torch.device("cpu")
        if dist.get_backend() == "nccl":  # which passes tensors of its own devices only
            place = torch.device("cuda", torch.cuda.current_device())
        return cls(dist.get_rank(), dist.get_world_size(), place)

    @property
    def alone(self) -> bool:
        """Whether there is no other process."""
        return self.size == 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def share(self, rows: int) -> tuple[int, int]:
        """Return where this process's part of some rows begins and ends."""
        return rows * self.rank // self.size, rows * (self.rank + 1) // self.size

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes, the same bits in each."""
        if self.alone:
            return values
        total = values.detach().to(self.device, copy=True)
        with self._waiting():
            dist.all_reduce(total)
        return total.to(values.device)

    def any(self, flag: bool) -> bool:
        """Tell whether a flag is true in some process."""
        return bool(self.sum(torch.tensor(float(flag)))) if not self.alone else flag

    def agree(self, value: Any) -> Any:
        """Return the value that process 0 has: numbers, text, bytes, tensors, lists of these."""
        if self.alone:
            return value
        held = [value if self.first else None]
        with self._waiting():
            dist.broadcast_object_list(held, 0, device=self.device)
        return held[0]

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, in the order of their numbers."""
        if self.alone:
            return [value]
        held: list[Any] = [None] * self.size
        with self._waiting():
            dist.all_gather_object(held, value)
        return held

    def check_same(self, name: str, value: str, *, fix: str) -> None:
        """Refuse to go on where processes hold different values, such as a digest of the rows."""
        found = self.gather(value)
        other = next((rank for rank, theirs in enumerate(found) if theirs != found[0]), None)
        if other is not None:
            raise ArgumentError(
                name,
                got=f"differs between process 0 and process {other}",
                expected="all processes of a run train on the same",
                fix=fix,
            )

    def sum_gradients(self, parameters: Sequence[Tensor], extras: Sequence[float]) -> list[float]:
        """Sum the gradients, and further numbers, over all processes by one all-reduce.

        A parameter has no gradient where it has none in any process.
        """
        here = [0.0 if p.grad is None else 1.0 for p in parameters]
        dtype = functools.reduce(torch.promote_types, {p.dtype for p in parameters}, torch.float32)
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        numbers = torch.tensor([*extras, *here], dtype=dtype, device=parts[0].device)
        flat = torch.cat([*(part.reshape(-1).to(dtype) for part in parts), numbers])
        summed = self.sum(flat)
        counts = summed[-len(numbers) :].tolist()
        place = 0
        for parameter, part, count in zip(parameters, parts, counts[len(extras) :], strict=True):
            view = summed[place : place + part.numel()].view(part.shape)
            parameter.grad = view.to(part.dtype) if count else None
            place += part.numel()
        self._sign()
        return counts[: len(extras)]

    def _sign(self) -> None:
        """Leave a sign of life, with the number of the step, for others to find who is missing."""
        self._steps += 1
        now = time.monotonic()
        if now - self._signed > SIGN_SECONDS:
            self._signed = now
            with suppress(RuntimeError):
                _store().set(f"condens/{self.rank}", f"{self._steps} {time.time()}")

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Name the processes that are missing where the others do not answer."""
        try:
            yield
        except RuntimeError as error:
            missing = self._missing()
            _wait_for_launcher()
            reason = str(error).strip().partition("\n")[0].rpartition("] ")[2].split(". ")[0]
            late = "timed out" in str(error).lower() or "timeout" in str(error).lower()
            raise ProcessError(
                f"process {self.rank} of {self.size}",
                got=f"waited {wait_seconds():g} s for the others in vain"
                if late
                else f"has lost the others ({reason[:200]})",
                expected=f"a step needs all of them.{missing}",
                fix="Run the same again: it goes on from the last state that was saved"
                + (f"; {WAIT_VARIABLE} sets another limit." if late else "."),
            ) from error

    def _missing(self) -> str:
        """Return who has given no sign of life for the longest time."""
        ages = {}
        for rank in range(self.size):
            with suppress(RuntimeError, ValueError):
                key = f"condens/{rank}"
                if rank != self.rank and _store().check([key]):
                    ages[rank] = time.time() - float(_store().get(key).split()[1])
        if not ages:
            return ""
        worst = max(ages, key=ages.__getitem__)
        return f" Process {worst} gave its last sign of life {ages[worst]:.0f} s ago"


def wait_seconds() -> float:
    """Return how long a process waits for the others."""
    text = os.environ.get(WAIT_VARIABLE, "")
    try:
        seconds = float(text) if text else WAIT_SECONDS
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ArgumentError(
            WAIT_VARIABLE,
            got=f"is {text!r}",
            expected="seconds above 0 were expected",
            fix="Set it to 300, for instance, or leave it out.",
        )
    return seconds


def launched() -> bool:
    """Tell whether torchrun, or a launcher like it, started several processes."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return all(os.environ.get(name) for name in names) and os.environ["WORLD_SIZE"] != "1"


def join(device: torch.device | str | None = None) -> None:
    """Join the processes that torchrun started, once; alone this does nothing.

    By `nccl` where the device is a CUDA one, by `gloo` elsewhere. The group is left at the end of
    the program.
    """
    if not dist.is_available() or dist.is_initialized() or not launched():
        return
    cuda = device is not None and torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    _end_with_parent()
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if cuda else "gloo",
        timeout=datetime.timedelta(seconds=wait_seconds()),
    )
    atexit.register(_leave)


def _leave() -> None:
    if dist.is_initialized():
        with suppress(RuntimeError):
            dist.destroy_process_group()


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _wait_for_launcher() -> None:
    """Give torchrun time to notice a node that is gone; on one node it ends us at once."""
    if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) == dist.get_world_size():
        return
    if dist.is_torchelastic_launched():
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(NODE_SECONDS)


def _end_with_parent() -> None:
    """End this process when the agent that started it ends, however that happens.

    By the signal that Linux sends then; elsewhere by looking who the parent is, every second.
    """
    if not dist.is_torchelastic_launched():
        return
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before we asked
            os._exit(1)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(SIGN_SECONDS)
    os._exit(1)
