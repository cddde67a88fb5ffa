"""Results, one line of JSON a run: a process may be killed at any byte."""

import fcntl
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

Record = dict[str, Any]
Key = tuple[str, int, str, str, str, int]


def key_of(record: Record) -> Key:
    """Return what makes a run the same as another."""
    names = ("task", "split", "method", "version", "part", "revision")
    return tuple(record[name] for name in names)  # type: ignore[return-value]


def read(path: Path) -> list[Record]:
    """Return the whole lines of a file; a last one without its end was cut off by a kill."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines[:-1]]


class Journal:
    """A file of runs that is appended to by one process at a time.

    Args:
        path: of the file.
        key: what makes a record the same as another.
    """

    def __init__(self, path: Path, key: Callable[[Record], Any] = key_of) -> None:
        self.key = key
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            sys.exit(f"Another run is writing {path}. Wait for it, or choose another directory.")
        self.records = read(path)
        whole = path.read_bytes().rfind(b"\n") + 1
        if whole < path.stat().st_size:
            self._file.truncate(whole)
        self.finished = {key(record) for record in self.records}

    def append(self, record: Record) -> None:
        """Write a record to the disk."""
        self._file.write(json.dumps(record).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.records.append(record)
        self.finished.add(self.key(record))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
