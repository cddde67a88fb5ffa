"""Atomic writes of whole files, never through a symbolic link."""

import errno
import os
import re
import reprlib
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from condens.errors import KindError

if os.name == "posix":
    import fcntl

# Files being written lie beside their place, under a name by which condens knows them.
_PART = re.compile(r"\.condens-[0-9a-f]{16}\.part")
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
# A pipe that nobody writes to is opened at once, and then refused.
_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def as_path(
    name: str, value: str | os.PathLike[str], *, fix: str = "Pass a str or a pathlib.Path."
) -> Path:
    """Return a path that a user passed; raise `KindError` for anything that is none.

    >>> as_path("directory", None)
    Traceback (most recent call last):
    condens.errors.KindError: directory is None, but a path was expected. Pass a str or a \
pathlib.Path.
    """
    try:
        return Path(value)
    except TypeError:
        raise KindError(
            name, got=f"is {reprlib.repr(value)}", expected="a path was expected", fix=fix
        ) from None


def cannot_hold(path: Path) -> dict[str, str] | None:
    """Return why no file can be written at a path, as parts of an error; None if one can.

    >>> cannot_hold(Path("/"))
    {'got': 'is a directory', 'expected': 'a regular file was expected', 'fix': 'Name a file.'}
    """
    if path.is_symlink() and not path.exists():
        return {
            "got": "is a link to nothing",
            "expected": "a file or a new name was expected",
            "fix": "Remove the link, or name another place.",
        }
    path = path.resolve()
    if path.exists() and not path.is_file():
        return {
            "got": "is a directory" if path.is_dir() else "is a device, a pipe or a socket",
            "expected": "a regular file was expected",
            "fix": "Name a file.",
        }
    if not path.parent.is_dir():
        return {
            "got": "is in no directory",
            "expected": f"{path.parent} was expected to be one",
            "fix": "Make that directory first.",
        }
    return None


def open_regular(path: Path, flags: int = os.O_RDONLY, *, follow: bool = True) -> int:
    """Open a regular file and return its descriptor; raise `OSError` for pipes and devices.

    Reading from those might never end. Without `follow`, symbolic links are refused too.
    """
    descriptor = os.open(path, flags | _NO_WAIT | (0 if follow else _NO_LINK), 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return descriptor


def write_whole(path: Path, data: bytes) -> None:
    """Write a file as `writing` does.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     write_whole(Path(place, "file"), b"new")
    ...     [(file.name, file.read_bytes()) for file in Path(place).iterdir()]
    [('file', b'new')]
    """
    with writing(path) as file:
        file.write(data)


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """Write to a new file beside its place, synced, move it there, and sync the directory.

    A full disk, an error or an interruption leaves what was at `path`, and nothing else; what a
    killed writer left is removed by the next write in that directory. A link at `path` is
    replaced.
    """
    remove_parts(path.parent)
    part, descriptor = _new_part(path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            # A private file stays private, on systems whose files have permissions.
            with suppress(OSError, AttributeError):
                os.fchmod(descriptor, stat.S_IMODE(path.lstat().st_mode))
            yield file
            file.flush()
            os.fsync(descriptor)
            if os.name != "posix":  # others move no file that is open
                file.close()
            part.replace(path)
    except BaseException:  # an interruption too
        with suppress(OSError):
            part.unlink()
        raise
    if os.name == "posix":
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def append(path: Path, data: bytes) -> None:
    """Add to the end of a file, which need not exist yet; a link raises `OSError`."""
    descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, follow=False)
    with os.fdopen(descriptor, "ab") as file:
        file.write(data)


def take_lock(descriptor: int) -> None:
    """Lock an open file, or raise `OSError`; however its process dies, the system unlocks it."""
    if os.name == "posix":
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]


def _new_part(directory: Path) -> tuple[Path, int]:
    """Create a file under a new name, locked for as long as its writer lives."""
    while True:
        part = directory / f".condens-{token_hex(8)}.part"
        descriptor = open_regular(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, follow=False)
        if os.name != "posix":
            return part, descriptor
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Before it was locked, another writer may have removed it as a dead one's.
        if os.fstat(descriptor).st_nlink:
            return part, descriptor
        os.close(descriptor)


def remove_parts(directory: Path) -> None:
    """Remove what killed writers left: files of condens that nobody holds a lock on."""
    if os.name != "posix":
        return
    with suppress(OSError), os.scandir(directory) as entries:
        for name in [entry.name for entry in entries if _PART.fullmatch(entry.name)]:
            with suppress(OSError):
                descriptor = open_regular(directory / name, follow=False)
                try:
                    take_lock(descriptor)
                    (directory / name).unlink()
                finally:
                    os.close(descriptor)
