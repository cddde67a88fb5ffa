"""Files that are written whole or not at all."""

import os
import shutil
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, data: bytes, *, beside: Path) -> None:
    """Write to `beside`, synced, move it to its place, and sync the directory.

    A full disk, an error or an interruption leaves what was at `path`, and nothing else.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     path = Path(place, "file")
    ...     write_whole(path, b"new", beside=path.with_name("file.part"))
    ...     [(file.name, file.read_bytes()) for file in Path(place).iterdir()]
    [('file', b'new')]
    """
    try:
        with beside.open("wb") as file:
            # A file kept private stays private, where files have permissions of their own.
            with suppress(OSError):
                shutil.copymode(path, beside)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:  # an interruption too
        with suppress(OSError):
            beside.unlink()
        raise
    if os.name == "posix":
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
