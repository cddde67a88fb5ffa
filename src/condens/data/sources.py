"""Files and streams of tables: opened, decompressed, and recognised by how they begin."""

import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import IO, Any, Final, TypeAlias, cast

from condens.errors import KindError, TableFileError, TableFileNotFoundError
from condens.files import as_path, open_regular
from condens.scalars import printable

# A path, "-" for standard input, or a stream of bytes.
TableSource: TypeAlias = str | os.PathLike[str] | IO[bytes]

# Bytes that are read ahead to recognise a format.
HEAD_BYTES: Final = 4096
ENDINGS: Final = {
    ".csv": "csv",
    ".txt": "csv",
    ".dat": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
FORMATS: Final = tuple(dict.fromkeys(ENDINGS.values()))
KNOWN: Final = "CSV, TSV, Parquet, Arrow or JSON lines was expected"
_GZIP = b"\x1f\x8b"
_BEGINNINGS = {
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"\xff\xff\xff\xff": "arrow",
}
_FOREIGN = {
    b"PK\x03\x04": "an Excel workbook or a ZIP archive",
    b"\xd0\xcf\x11\xe0": "an Excel workbook",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
    b"BZh": "compressed by bzip2",
    b"\xfd7zXZ": "compressed by xz",
    b"FEA1": "a Feather file of the first version",
    b"PARE": "an encrypted Parquet file",
    b"%PDF": "a PDF",
    b"SQLite format 3\0": "a database of SQLite",
    b"\x89HDF": "an HDF5 file",
    b"\x93NUMPY": "a file of numpy",
    b"\x80\x02": "a pickle of Python",
    b"\x80\x03": "a pickle of Python",
    b"\x80\x04": "a pickle of Python",
    b"\x80\x05": "a pickle of Python",
}
_DAMAGED = (OSError, EOFError, ValueError, zlib.error)


class Source:
    """A file or stream that is being read.

    Args:
        label: what messages call it.
        path: its name, whose ending may tell the format.
        raw: its bytes.
        own: whether nobody else reads it.
    """

    def __init__(self, label: str, path: PurePath, raw: IO[bytes], *, own: bool = False) -> None:
        self.label, self._own = label, own
        self.endings = [ending.lower() for ending in path.suffixes]
        self._raw, self._head = raw, b""
        self._head = self._ahead()
        if self._head.startswith(_GZIP):
            self._raw = gzip.GzipFile(fileobj=_Rejoined(self._head, raw))  # type: ignore[assignment]
            self._head, self._own = b"", False
            self._head = self._ahead()
            self.endings = [ending for ending in self.endings if ending != ".gz"]

    @property
    def head(self) -> bytes:
        """The first bytes."""
        return self._head

    def read(self, size: int) -> bytes:
        """Return as many bytes as asked for, fewer at the end."""
        parts, count = [self._head[:size]], len(self._head[:size])
        self._head = self._head[size:]
        while count < size:
            try:
                part = self._raw.read(size - count)
            except _DAMAGED as error:
                raise unreadable(self.label, error) from None
            if not part:
                break
            if isinstance(part, str):
                raise _text_stream(self.label)
            parts.append(bytes(part))
            count += len(part)
        return b"".join(parts)

    def seekable(self) -> IO[bytes]:
        """Return the whole file, with a position that can be set."""
        if self._own:
            self._raw.seek(0)
            return self._raw
        return io.BytesIO(self.rest())

    def stream(self) -> IO[bytes]:
        """Return the file from here on, for libraries that read streams."""
        return _Rejoined(b"", self)  # type: ignore[return-value, arg-type]

    def rest(self) -> bytes:
        """Return all bytes to the end."""
        parts = []
        while part := self.read(1 << 20):
            parts.append(part)
        return b"".join(parts)

    def _ahead(self) -> bytes:
        return self.read(HEAD_BYTES)


@contextmanager
def opened(source: TableSource) -> Iterator[Source]:
    """Open a path, or read a stream or standard input from where it is."""
    if isinstance(source, str) and source == "-":
        # A notebook has none.
        raw = getattr(sys.stdin, "buffer", io.BytesIO())
        yield Source("standard input", PurePath("-"), raw)
        return
    if not isinstance(source, str | os.PathLike) and hasattr(source, "read"):
        if isinstance(source, io.TextIOBase):
            raise _text_stream("source")
        name = getattr(source, "name", None)
        path = PurePath(name) if isinstance(name, str) else PurePath("stream")
        yield Source(_label(path), path, source)
        return
    path = as_path(
        "source",
        cast("str", source),
        fix="Pass a path, a stream of bytes, or - for standard input.",
    )
    with _open(path) as file:
        yield Source(_label(path), path, file, own=True)


def format_of(source: Source) -> str:
    """Return the format of a file, by its first bytes, else by its ending.

    Whatever begins with a brace is JSON lines, and other text is CSV.
    """
    for beginning, found in _BEGINNINGS.items():
        if source.head.startswith(beginning):
            return found
    # Marks of encodings, and the null bytes of UTF-16, say nothing about the format.
    text = source.head.lstrip(b"\xef\xbb\xbf\xff\xfe").replace(b"\0", b"").lstrip().lower()
    foreign = [what for beginning, what in _FOREIGN.items() if source.head.startswith(beginning)]
    if text.startswith((b"<!doctype html", b"<html")):
        foreign = ["a web page"]
    if foreign:
        raise TableFileError(
            source.label,
            got=f"is {foreign[0]}",
            expected=KNOWN,
            fix="Save the table in one of these formats; gzip is the only compression read.",
        )
    ending = ENDINGS.get(source.endings[-1]) if source.endings else None
    return ending or ("jsonl" if text.startswith((b"{", b"[{")) else "csv")


def unreadable(label: str, error: BaseException, what: str = "a table") -> TableFileError:
    """Return the error for a file that another library could not read, with its reason."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    short = printable(reason.strip().splitlines()[0])[:200].rstrip(". ")
    return TableFileError(
        label,
        got=f"cannot be read ({short})",
        expected=f"{what} was expected",
        fix="Check that the file is complete, and its format.",
    )


def _open(path: Path) -> IO[bytes]:
    label = _label(path)
    try:
        return os.fdopen(open_regular(path), "rb")
    except FileNotFoundError:
        raise TableFileNotFoundError(
            label,
            got="does not exist",
            expected="a file was expected",
            fix="Check the path.",
        ) from None
    except IsADirectoryError:
        kind = "a directory"
    except PermissionError:
        raise TableFileError(
            label,
            got="may not be read",
            expected="a file was expected that you have permission to read",
            fix="Change its permissions, or copy it.",
        ) from None
    except (OSError, ValueError) as error:  # the latter of a path with a null character
        if not path.exists() or path.is_file():
            raise unreadable(label, error) from None
        kind = "a directory" if path.is_dir() else "a device, a pipe or a socket"
    raise TableFileError(
        label,
        got=f"is {kind}",
        expected="a regular file was expected",
        fix="Name a file, or pass - and pipe the table into standard input.",
    )


def _label(path: PurePath) -> str:
    return printable(str(path))


def _text_stream(label: str) -> KindError:
    return KindError(
        label,
        got="is a stream of text",
        expected="a stream of bytes was expected",
        fix='Open the file with mode="rb"; of sys.stdin, pass sys.stdin.buffer.',
    )


class _Rejoined(io.RawIOBase):
    """Bytes that were read ahead, and then the rest of a stream."""

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self.head, self.rest = head, rest

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> Any:
        if not self.head:
            return self.rest.read(size)
        part = self.head if size < 0 else self.head[:size]
        self.head = self.head[len(part) :]
        return part
