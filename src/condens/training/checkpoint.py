"""A run directory: the state of a run on disk, whole or not at all.

A state is two files. The tensors come first, then a JSON file that names them, holds every
other value and the hash of both. Each is written beside its place, synced, and moved there; a
state exists once its JSON does. The state before is kept until the next is
safe, so a kill at any moment, or a full disk, leaves one that is good.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import safetensors.torch
from torch import Tensor

from condens.errors import RunDirectoryError, message
from condens.files import write_whole

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
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / "lock").open("a+")
        except OSError as error:
            came = f"cannot be a run directory ({error.strerror})"
            expected, remedy = "a run needs one of its own", "Name another place."
            raise RunDirectoryError(message(str(self.path), came, expected, remedy)) from error
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
        # Cloned: modules may share a tensor, and safetensors refuses that.
        data = safetensors.torch.save({name: t.clone().contiguous() for name, t in tensors.items()})
        text = json.dumps({"sha256": _digest(data, values), "values": values}, indent=1)
        try:
            _write(self._tensors(self._next), data)
            _write(self._values(self._next), text.encode())
            self._remove_up_to(self._next - KEPT)
        except OSError as error:
            raise self._unwritable(error) from error
        self._next += 1

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the last state that is whole, or None where there was never one."""
        numbers = sorted(self._numbers(), reverse=True)
        for number in numbers:
            with suppress(OSError, ValueError, KeyError, TypeError):
                record = json.loads(self._values(number).read_bytes())
                data = self._tensors(number).read_bytes()
                if _digest(data, record["values"]) == record["sha256"]:
                    # The next state takes the place of a damaged one, not of this.
                    self._next = number + 1
                    return safetensors.torch.load(data), record["values"]
        if not numbers:
            return None
        came, expected = "holds no state that is whole", "what was written has been changed"
        remedy = "Restore the files from a copy, or begin again in another directory."
        raise RunDirectoryError(message(str(self.path), came, expected, remedy))

    def begin_log(self, lines: Iterable[dict[str, Any]]) -> None:
        """Write log.jsonl anew, without what a killed run logged and a resumed one will again."""
        text = "".join(json.dumps(line) + "\n" for line in lines)
        try:
            _write(self.path / "log.jsonl", text.encode())
        except OSError as error:
            raise self._unwritable(error) from error

    def log(self, line: dict[str, Any]) -> None:
        """Append a line to log.jsonl."""
        try:
            with (self.path / "log.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> RunDirectoryError:
        came = f"cannot be written ({error.strerror})"
        expected = "a run keeps its state there; the one before is still good"
        remedy = "Make room, and run again to go on from it."
        return RunDirectoryError(message(str(self.path), came, expected, remedy))

    def _remove_up_to(self, last: int) -> None:
        # In the order of their names the JSON goes first: without it there is no state at all.
        for file in sorted(self.path.glob("state-*")):
            number = file.name.removeprefix("state-").partition(".")[0]
            if number.isdigit() and int(number) <= last:
                file.unlink(missing_ok=True)

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


def _digest(data: bytes, values: dict[str, Any]) -> str:
    # JSON of JSON is the same text: numbers are written with all their digits.
    return hashlib.sha256(data + json.dumps(values).encode()).hexdigest()


def _write(path: Path, data: bytes) -> None:
    # The same name each time: what a kill left there, the next writer takes away.
    write_whole(path, data, beside=path.with_name(path.name + ".part"))
