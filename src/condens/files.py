"""Files that are written whole or not at all."""

import os
import shutil
from contextlib import suppress
from pathlib import Path


def cannot_hold(path: Path) -> tuple[str, str, str] | None:
    """Return why no file can be written at a path: what came, what was expected, what to do.

    >>> cannot_hold(Path("/"))
    ('is a directory', 'a regular file was expected', 'Name a file.')
    """
    if path.is_symlink() and not path.exists():
        came, expected = "is a link to nothing", "a file or a new name was expected"
        return came, expected, "Remove the link, or name another place."
    path = path.resolve()
    if path.exists() and not path.is_file():
        came = "is a directory" if path.is_dir() else "is a device, a pipe or a socket"
        return came, "a regular file was expected", "Name a file."
    if not path.parent.is_dir():
        return "is in no directory", f"{path.parent} was expected to be one", "Make it first."
    return None


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
