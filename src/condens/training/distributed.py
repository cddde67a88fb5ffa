"""Data-parallel training: the processes of a run, started by torchrun, as one.

Every process has the same weights and takes its part of every batch. The gradients are summed by
one flat all-reduce, which has the same order of summation in every step, and so do all processes
take the same step, bit for bit. What decides the course of a run (losses, a stop, a state that is
loaded) comes from process 0. Process 0 alone writes.

A process that one of these starts, such as a worker of joblib, is not one of them and trains alone.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from condens.errors import ArgumentError, CondensError, ProcessError

# Seconds that a process waits for the others before it gives up; the name of the variable in the
# environment that says another number.
WAIT_SECONDS, WAIT_VARIABLE = 300.0, "CONDENS_WAIT_SECONDS"
# Beyond this the clocks of torch overflow.
MAX_WAIT_SECONDS = 1e7
# Seconds between two signs of life.
SIGN_SECONDS = 1.0
# Says in the environment which process the launcher started: those that it starts inherit all else.
MEMBER_VARIABLE = "CONDENS_MEMBER"
# A worker that outlives the agent that started it would write into a run that somebody resumes.
_PARENT_DEATH_SIGNAL = 1

T = TypeVar("T")


@dataclass
class Group:
    """The processes of a run: this one's number, and how many there are.

    Args:
        rank, size: the number of this process, and how many there are.
        device: of the tensors that they pass to each other.
        divided: whether one alone computes every batch in the two parts that two would have, so
            that both learn the same bits.

    >>> alone = Group()
    >>> alone.share(10), Group(rank=1, size=4).share(10)
    ((0, 10), (2, 5))
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    divided: bool = False
    _signed: float = field(default=-math.inf, repr=False)

    @classmethod
    def current(cls, device: torch.device | str | None = None) -> "Group":
        """Return the processes that torchrun started, or that torch.distributed knows."""
        if _PRIVATE.alone or not dist.is_available():
            return cls()
        join(device)
        if not dist.is_initialized() or _inherited:
            started = os.environ.get("RANK") == "0" and os.environ.get("WORLD_SIZE") == "1"
            return cls(divided=started and _is_member())
        if dist.get_world_size() > 1:
            _check_thread()
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

    def cut(self, rows: int) -> int | None:
        """Return where the second of the two parts of a batch begins, if it has two here.

        >>> Group(divided=True).cut(5), Group().cut(5)
        (2, None)
        """
        return rows // 2 if self.divided and self.alone else None

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

    def from_first(self, act: Callable[[], T]) -> T:
        """Return what process 0 finds or does; what it raises there is raised in all processes."""
        if self.alone:
            return act()
        found: T | None = None
        error: BaseException | None = None
        if self.first:
            try:
                found = act()
            except BaseException as raised:
                error = raised
        told, answer = self.agree((None if error is None else _to_others(error), found))
        if error is not None:
            raise error
        if told is not None:
            raise told
        here: T = answer
        return here

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, in the order of their numbers."""
        if self.alone:
            return [value]
        held: list[Any] = [None] * self.size
        with self._waiting():
            dist.all_gather_object(held, value)
        return held

    def check_same(
        self, values: Mapping[str, Mapping[str, Any]], *, fix: Mapping[str, str]
    ) -> None:
        """Refuse to go on where processes hold different values, such as a digest of the rows.

        Args:
            values: by the argument that they belong to, and by name within it.
            fix: of each argument, what to do.
        """
        found = self.gather(values)
        for rank, theirs in enumerate(found):
            for name, ours in found[0].items():
                parts = {*ours, *theirs[name]}
                differing = sorted(p for p in parts if ours.get(p) != theirs[name].get(p))
                if differing:
                    which = f" ({differing[0]})" if differing[0] else ""
                    raise ArgumentError(
                        name,
                        got=f"differs between process 0 and process {rank}{which}",
                        expected="all processes of a run train on the same",
                        fix=fix[name],
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
        return counts[: len(extras)]

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Leave what ends this process's part of a run, for the others to say."""
        if not self.alone:
            with suppress(RuntimeError):
                _store().delete_key(f"condens/failed {self.rank}")  # of an earlier run
        try:
            yield
        except ProcessError:  # of which another one is the cause
            raise
        except BaseException as error:
            if not self.alone:
                self._leave(f"failed {self.rank}", _short(error))
            raise

    def _leave(self, key: str, text: str) -> None:
        """Leave a text in the store that all processes see."""
        with suppress(RuntimeError):
            _store().set(f"condens/{key}", text)

    def _found(self, key: str) -> str | None:
        with suppress(RuntimeError):
            if _store().check([f"condens/{key}"]):
                return str(_store().get(f"condens/{key}").decode())
        return None

    def _sign(self) -> None:
        """Leave a sign of life, for others to find who is missing."""
        now = time.monotonic()
        if now - self._signed > SIGN_SECONDS:
            self._signed = now
            self._leave(f"sign {self.rank}", f"{time.time()}")

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Name the processes that are missing where the others do not answer."""
        self._sign()
        began = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            waited = _limit or round(time.monotonic() - began)
            reason = str(error).strip().partition("\n")[0].rpartition("] ")[2].split(". ")[0]
            late = "timed out" in str(error).lower() or "timeout" in str(error).lower()
            raise ProcessError(
                f"process {self.rank} of {self.size}",
                got=f"waited {waited:g} s for the others in vain"
                if late
                else f"has lost the others ({reason[:200]})",
                expected=f"a step needs all of them{self._missing(late=late)}",
                fix="Run the same again: with a run directory it goes on from the last state"
                + (f"; {WAIT_VARIABLE} sets another limit." if late else "."),
            ) from error

    def _missing(self, *, late: bool) -> str:
        """Return who has failed, or who has given no sign of life for the longest time."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        if late:
            # Those that wait as well say so at about the same time.
            self._leave(f"waited {self.rank}", f"{time.time()}")
            time.sleep(SIGN_SECONDS)
        for rank in others:
            if reason := self._found(f"failed {rank}"):
                return f". Process {rank} failed: {reason}"
        signs = {rank: self._found(f"sign {rank}") for rank in others}
        silent = [r for r in others if not (late and self._found(f"waited {r}"))] or others
        if not any(signs.values()):
            return ""  # the store has gone as well
        if none := [rank for rank in silent if signs[rank] is None]:
            return f". Process {none[0]} has given no sign of life"
        ages = {rank: time.time() - float(signs[rank] or 0.0) for rank in silent}
        worst = max(ages, key=ages.__getitem__)
        return f". Process {worst} gave its last sign of life {ages[worst]:.0f} s ago"


def wait_seconds() -> float:
    """Return how long a process waits for the others."""
    text = os.environ.get(WAIT_VARIABLE, "")
    try:
        seconds = float(text) if text else WAIT_SECONDS
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MAX_WAIT_SECONDS:
        raise ArgumentError(
            WAIT_VARIABLE,
            got=f"is {text!r}",
            expected=f"seconds above 0, up to {MAX_WAIT_SECONDS:g}, were expected",
            fix="Set it to 300, for instance, or leave it out.",
        )
    return seconds


class _Private(threading.local):
    """Whether this thread trains alone, whatever other processes there are."""

    alone = False


_PRIVATE = _Private()
# Whether a group was joined by the process that this one was forked from.
_inherited = False
# The thread that speaks with the other processes; seconds that it waits, where we set them.
_speaker: threading.Thread | None = None
_limit: float | None = None
# How often this process has joined the others.
_joined = 0


@contextmanager
def alone() -> Iterator[None]:
    """Let what this thread trains be its own, where several processes have different things to do.

    >>> with alone():
    ...     Group.current()
    Group(rank=0, size=1, device=device(type='cpu'), divided=False)
    """
    before, _PRIVATE.alone = _PRIVATE.alone, True
    try:
        yield
    finally:
        _PRIVATE.alone = before


def launched() -> bool:
    """Tell whether torchrun, or a launcher like it, started this process as one of several."""
    given = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    rank, size = given.values()
    if not rank or not size or size == "1" or not _is_member():
        return False
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    whole = all(text.isdecimal() for text in (rank, size))
    faults = (
        (
            not whole or not int(rank) < int(size),
            "RANK and WORLD_SIZE",
            f"are {rank!r} and {size!r}",
            "a number from 0 and a larger one were expected",
        ),
        (
            not address or not port,
            "MASTER_ADDR and MASTER_PORT",
            f"are {address!r} and {port!r}",
            f"the {size} processes that WORLD_SIZE says meet there",
        ),
        (
            port is not None and not (port.isdecimal() and int(port) < 1 << 16),
            "MASTER_PORT",
            f"is {port!r}",
            "the number of a port was expected",
        ),
    )
    for wrong, name, got, expected in faults:
        if wrong:
            fix = "Start the processes with torchrun, or unset WORLD_SIZE to train in one."
            raise ArgumentError(name, got=got, expected=expected, fix=fix)
    return True


def _is_member() -> bool:
    """Tell whether the launcher started this process itself.

    The first process that reads the launcher's variables is the one; those that it starts, such as
    workers of joblib, inherit them.
    """
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    variables = " ".join(os.environ.get(name, "") for name in names)
    pid, _, theirs = os.environ.get(MEMBER_VARIABLE, "").partition(" ")
    if theirs == variables:
        return pid == str(os.getpid())
    if os.environ.get("RANK"):
        os.environ[MEMBER_VARIABLE] = f"{os.getpid()} {variables}"
    return True


def _note_fork() -> None:
    global _inherited
    # Its sockets are those of the process that has joined.
    _inherited = _inherited or (dist.is_available() and dist.is_initialized())


def _check_thread() -> None:
    """Refuse a second thread: processes meet in an order that two threads would not keep."""
    global _speaker
    this = threading.current_thread()
    if _speaker is not None and _speaker is not this and _speaker.is_alive():
        raise ProcessError(
            f"the thread {this.name}",
            got=f"trains, and so did {_speaker.name}",
            expected="several processes train in one thread each",
            fix="Pass n_jobs=1, or start one process, without torchrun.",
        )
    _speaker = this


def join(device: torch.device | str | None = None) -> None:
    """Join the processes that torchrun started, once; alone this does nothing.

    By `nccl` where the device is a CUDA one, by `gloo` elsewhere. The group is left at the end of
    the program.
    """
    global _limit, _joined
    if not dist.is_available() or dist.is_initialized() or not launched():
        return
    cuda = device is not None and torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    _end_with_parent()
    seconds = wait_seconds()
    limit = datetime.timedelta(seconds=seconds)
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=limit, **_rendezvous(limit)
        )
        # Nobody goes on, and perhaps ends, before the others have found it.
        dist.all_reduce(torch.zeros(()))
    except RuntimeError as error:
        raise ProcessError(
            f"process {os.environ['RANK']} of {os.environ['WORLD_SIZE']}",
            got=f"did not find the others ({str(error).strip().splitlines()[0][:200]})",
            expected="all of them were expected to start",
            fix=f"Look at what they say; {WAIT_VARIABLE} sets how long to wait.",
        ) from error
    _limit, _joined = seconds, _joined + 1
    if _joined == 1:
        atexit.register(_leave)


def _rendezvous(limit: datetime.timedelta) -> dict[str, Any]:
    """Return where the processes meet: the agent's store, apart from that of earlier attempts.

    An agent that starts its workers again keeps the store, with the addresses of the dead ones,
    and so it does where a script leaves the group and joins it again.
    """
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    given = os.environ
    if given.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    address, port = given["MASTER_ADDR"], int(given["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=limit)
    attempt = f"attempt {given.get('TORCHELASTIC_RESTART_COUNT', '0')} {_joined}"
    return {
        "store": PrefixStore(attempt, store),
        "rank": int(given["RANK"]),
        "world_size": int(given["WORLD_SIZE"]),
    }


def _leave() -> None:
    if dist.is_initialized():
        with suppress(RuntimeError):
            dist.destroy_process_group()


def _to_others(error: BaseException) -> CondensError:
    """Return an error of process 0 as the other processes raise it."""
    if isinstance(error, CondensError):
        return error
    return ProcessError(
        "process 0",
        got=f"has ended the run ({_short(error)})",
        expected="all processes need it",
        fix="Look at what it says.",
    )


def _short(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0][:300].rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
# Now, before anything that this process starts can take its place.
_is_member()
