"""A run directory: the state of a run on disk, whole or not at all.

A state is two files. The tensors come first, then a JSON file that names them, holds every
other value and the hash of the tensors' bytes. Each is written beside its place, synced, and
moved there; a state exists once its JSON does. The state before is kept until the next is
safe, so a kill at any moment, or a full disk, leaves one that is good.
"""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import safetensors.torch
from torch import Tensor

from condens.errors import RunDirectoryError, message

if os.name == "posix":
    import fcntl

KEPT = 2


class RunDirectory:
    """A directory that one process writes at a time.

    >>> import torch
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place, RunDirectory(place) as run:
    ...     run.save({"x": torch.ones(2)}, {"step": 3})
    ...     run.load()
    ({'x': tensor([1., 1.])}, {'step': 3})
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock: IO[str] | None = None
        self._next = 0

    def __enter__(self) -> Self:
        if self.path.exists() and not self.path.is_dir():
            came, expected = "is not a directory", "a run needs one of its own"
            remedy = "Name another place."
            raise RunDirectoryError(message(str(self.path), came, expected, remedy))
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = (self.path / "lock").open("a+")
        try:
            _lock(self._lock)
        except OSError as error:
            self._lock.close()
            came, expected = "is being written by another process", "a run has one writer"
            remedy = "Wait for it to end, stop it, or name another directory."
            raise RunDirectoryError(message(str(self.path), came, expected, remedy)) from error
        self._next = 1 + max(self._numbers(), default=-1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            self._lock.close()

    def save(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Write a state; states before the last one go."""
        number = self._next
        self._next += 1
        data = safetensors.torch.save({name: t.contiguous() for name, t in tensors.items()})
        digest = hashlib.sha256(data).hexdigest()
        _write(self._tensors(number), data)
        text = json.dumps({"sha256": digest, "values": values}, indent=1)
        _write(self._values(number), text.encode())
        for old in self._numbers():
            if old <= number - KEPT:
                # The JSON first: without it there is no state, whole or broken.
                self._values(old).unlink(missing_ok=True)
                self._tensors(old).unlink(missing_ok=True)

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the last state that is whole, or None where there was never one."""
        numbers = sorted(self._numbers(), reverse=True)
        for number in numbers:
            with suppress(OSError, ValueError, KeyError):
                record = json.loads(self._values(number).read_bytes())
                data = self._tensors(number).read_bytes()
                if hashlib.sha256(data).hexdigest() == record["sha256"]:
                    return safetensors.torch.load(data), record["values"]
        if not numbers:
            return None
        came, expected = "holds no state that is whole", "what was written has been changed"
        remedy = "Restore the files from a copy, or begin again in another directory."
        raise RunDirectoryError(message(str(self.path), came, expected, remedy))

    def log(self, line: dict[str, Any]) -> None:
        """Append a line to log.jsonl."""
        with (self.path / "log.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _numbers(self) -> list[int]:
        names = (file.stem.removeprefix("state-") for file in self.path.glob("state-*.json"))
        return [int(name) for name in names if name.isdigit()]

    def _tensors(self, number: int) -> Path:
        return self.path / f"state-{number:08d}.safetensors"

    def _values(self, number: int) -> Path:
        return self.path / f"state-{number:08d}.json"


def _lock(file: IO[str]) -> None:
    """Take the lock that the system lets go of when the process dies, however it dies."""
    if os.name == "posix":
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]


def _write(path: Path, data: bytes) -> None:
    """Write a file whole: beside its place, synced, then moved, and the directory synced."""
    beside = path.with_name(path.name + ".part")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise
    if os.name == "posix":
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
