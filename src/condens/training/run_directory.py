"""A run directory: the state of a run on disk, whole or not at all.

A state is two files. The tensors come first, then a JSON file that names them, holds every
other value and the hash of both. Each is written beside its place, synced, and moved there; a
state exists once its JSON does. The state before is kept until the next is safe, so a kill at
any moment, or a full disk, leaves one that is good. No link in the directory is written through.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from condens.errors import RunDirectoryError
from condens.files import append, open_regular, write_whole
from condens.scalars import spelt

if os.name == "posix":
    import fcntl

KEPT = 2
# Our own names; the last group is of what an earlier version left half written.
_FILE = re.compile(r"(?:state-([0-9]{8,})\.(json|safetensors)|log\.jsonl)(\.part)?")


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
        self._lock: int | None = None
        self._next = 0

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT
            self._lock = open_regular(self.path / "lock", flags, follow=False)
        except (OSError, ValueError) as error:
            raise RunDirectoryError(
                str(self.path),
                got=f"cannot be a run directory ({getattr(error, 'strerror', None) or error})",
                expected="a run needs one of its own",
                fix="Name another place.",
            ) from error
        try:
            _lock(self._lock)
        except OSError as error:
            self._unlock()
            raise RunDirectoryError(
                str(self.path),
                got="is being written by another process",
                expected="a run has one writer",
                fix="Wait for it to end, stop it, or name another directory.",
            ) from error
        try:
            self._remove(lambda _, part: part)
            self._next = 1 + max(self._numbers(), default=-1)
        except OSError as error:
            self._unlock()
            raise self._unwritable(error) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._unlock()

    def save(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Write a state; states before the last one go."""
        # Cloned: modules may share a tensor, and safetensors refuses that.
        data = safetensors.torch.save({name: t.clone().contiguous() for name, t in tensors.items()})
        text = json.dumps({"sha256": _digest(data, values), "values": values}, indent=1)
        last = self._next - KEPT
        try:
            write_whole(self._tensors(self._next), data)
            write_whole(self._values(self._next), text.encode())
            self._remove(lambda number, _: number is not None and number <= last)
        except OSError as error:
            raise self._unwritable(error) from error
        self._next += 1

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the last state that is whole, or None where there was never one."""
        numbers = sorted(self._numbers(), reverse=True)
        for number in numbers:
            with suppress(
                OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError
            ):
                record = json.loads(_read(self._values(number)))
                data = _read(self._tensors(number))
                if _digest(data, record["values"]) == record["sha256"]:
                    tensors = safetensors.torch.load(data)
                    # The next state takes the place of a damaged one, not of this.
                    self._next = number + 1
                    return tensors, record["values"]
        if not numbers:
            return None
        raise RunDirectoryError(
            str(self.path),
            got="holds no state that is whole",
            expected="what was written has been changed",
            fix="Restore the files from a copy, or begin again in another directory.",
        )

    def begin_log(self, lines: Iterable[dict[str, Any]]) -> None:
        """Write log.jsonl anew, without what a killed run logged and a resumed one will again."""
        text = "".join(_line(line) for line in lines)
        try:
            write_whole(self.path / "log.jsonl", text.encode())
        except OSError as error:
            raise self._unwritable(error) from error

    def log(self, line: dict[str, Any]) -> None:
        """Append a line to log.jsonl."""
        try:
            append(self.path / "log.jsonl", _line(line).encode())
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> RunDirectoryError:
        return RunDirectoryError(
            str(self.path),
            got=f"cannot be written ({error.strerror})",
            expected="a run keeps its state there; the one before is still good",
            fix="Make room, and run again to go on from it.",
        )

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _remove(self, unwanted: Callable[[int | None, bool], bool]) -> None:
        """Remove our own files, by the number of their state and whether they are half written."""
        # In the order of their names the JSON goes first: without it there is no state at all.
        for file in sorted(self.path.iterdir()):
            ours = _FILE.fullmatch(file.name)
            if ours and unwanted(int(ours[1]) if ours[1] else None, bool(ours[3])):
                file.unlink(missing_ok=True)

    def _numbers(self) -> list[int]:
        names = (_FILE.fullmatch(file.name) for file in self.path.iterdir())
        return [int(name[1]) for name in names if name and name[2] == "json" and not name[3]]

    def _tensors(self, number: int) -> Path:
        return self.path / f"state-{number:08d}.safetensors"

    def _values(self, number: int) -> Path:
        return self.path / f"state-{number:08d}.json"


def _lock(descriptor: int) -> None:
    """Take the lock that the system lets go of when the process dies, however it dies."""
    if os.name == "posix":
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]


def _digest(data: bytes, values: dict[str, Any]) -> str:
    # JSON of JSON is the same text: numbers are written with all their digits.
    return hashlib.sha256(data + json.dumps(values).encode()).hexdigest()


def _read(path: Path) -> bytes:
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read()


def _line(record: dict[str, Any]) -> str:
    return json.dumps(spelt(record), allow_nan=False) + "\n"
