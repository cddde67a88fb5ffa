"""Tables in many Parquet or Arrow files, larger than memory, read in an order of their own.

The order of an epoch is that of row groups, shuffled by (seed, epoch), as one long sequence. It is
cut into lanes of equal length. A batch takes as many rows from every lane; a lane is shuffled
within windows. So a batch has rows from many places, no more than a window of each lane is in
memory, any window can be entered without the ones before, and nothing of it depends on the number
of processes that share the reading.
"""

import ctypes
import glob
import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from condens.errors import ArgumentError, TableFileError, TableFileNotFoundError
from condens.scalars import printable

if TYPE_CHECKING:
    import pyarrow as pa

    from condens.data.formats import ColumnReader

Integers = NDArray[np.int64]
ENDINGS = {".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow"}
# Faults that an error lists; there may be thousands.
MAX_FAULTS = 10
# Rows that are converted at a time, and their memory: every lane keeps what it has not passed on.
ROWS_PER_READ, BYTES_PER_READ = 1 << 14, 1 << 21
# Memory of row groups that are open at a time, and of a column of one. Smaller row groups are
# decoded at once: an open Parquet file has pages and dictionaries, up to three times the values.
OPEN_BYTES, OPEN_COLUMN_BYTES = 160 << 20, 1 << 21
MAX_LANES = 64


class Piece(NamedTuple):
    """A row group of a Parquet file, or a batch of an Arrow file: `rows` rows from `first` on.

    `bytes` is the memory of its values.
    """

    file: int
    number: int
    first: int
    rows: int
    bytes: int


class Part(NamedTuple):
    """Consecutive rows of a file: its number, the number of the first row, and the rows."""

    file: int
    first: int
    table: "pa.Table"


class Shards:
    """A table in many files with the same columns.

    All files are looked at when it is made: those that are missing, empty, damaged, or have other
    columns are named in one error.

    Args:
        source: a directory, a pattern such as ``shards/*.parquet``, or a list of files. Files of a
            directory or a pattern are taken in the order of their names.
        columns: those to read; all by default.
        dates: "refuse" columns of dates and times, or read them as "seconds" since 1970.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        columns: Sequence[str] | None = None,
        dates: Literal["refuse", "seconds"] = "refuse",
    ) -> None:
        self.paths = expand(source)
        self.dates = dates
        self._wanted = columns
        self.pieces: list[Piece] = []
        found: dict[str, str | None] = {}
        self.sizes: list[int] = []
        faults: list[str] = []
        for number, path in enumerate(self.paths):
            try:
                self._look_at(number, path, found)
            except (TableFileError, TableFileNotFoundError) as error:
                faults.append(str(error))
        if faults:
            more = len(faults) - MAX_FAULTS
            rest = [f"… and {more} files more"] if more > 0 else []
            raise TableFileError(
                f"{len(faults)} of {len(self.paths)} files cannot be used:\n"
                + "\n".join(f"  {text}" for text in [*faults[:MAX_FAULTS], *rest])
            )
        # What the columns hold: numbers, categories, or categories of another type than text.
        self.kinds = {name: kind or "numbers" for name, kind in found.items()}

    @property
    def columns(self) -> list[str]:
        """The names of the columns that are read."""
        return list(self.kinds)

    @cached_property
    def n_rows(self) -> int:
        """The rows of all files."""
        return sum(piece.rows for piece in self.pieces)

    def digest(self) -> str:
        """Return a hash of the files' names, sizes and row groups, not of what they hold."""
        names = [path.name for path in self.paths]
        found = repr((names, self.sizes, self.pieces, self.kinds))
        return hashlib.sha256(found.encode()).hexdigest()

    def read(self, piece: Piece, columns: Sequence[str]) -> Iterator[Part]:
        """Yield a row group in parts; numbers as floats, in single precision where the file is."""
        from condens.data import formats

        path = self.paths[piece.file]
        label = _label(path)
        request = formats.Request(tuple(columns), (), None, None, None, None, self.dates)
        reader, first = formats.ColumnReader(label, request), piece.first
        # Opening a pipe would wait for ever.
        if not path.is_file() or path.stat().st_size != self.sizes[piece.file]:
            raise TableFileError(
                label,
                got="is gone, or of another size than before",
                expected="the files stay as they are while they are read",
                fix="Begin again, with files that nothing changes.",
            )
        with formats.guarded(label):
            for table in _raw(path, piece, columns):
                table.validate(full=True)
                place = partial(_place, first)
                made = [
                    _numbers(reader, name, column, place)
                    if self.kinds[name] == "numbers"
                    else self._categories(reader, name, column)
                    for name, column in zip(columns, table.columns, strict=True)
                ]
                yield Part(piece.file, first, formats.table_of(made, columns))
                first += len(table)
            if first != piece.first + piece.rows:
                raise TableFileError(
                    label,
                    got=f"has {first - piece.first} rows in row group {piece.number}",
                    expected=f"{piece.rows} were expected, as its footer says",
                    fix="It was changed or is damaged: write it again.",
                )

    def _categories(self, reader: Any, name: str, column: "pa.ChunkedArray") -> "pa.ChunkedArray":
        """Return a column of categories, of the same type in every file."""
        from condens.data import formats

        if reader.settled(name, column) is not column:
            raise TableFileError(
                reader.label,
                got=f"holds dates as text in column {name!r}",
                expected="files that are read in parts have them as dates, times or numbers",
                fix="Convert the column, or leave it out.",
            )
        return formats.as_categories(column, self.kinds[name])

    def n_lanes(self, batch_size: int) -> int:
        """Return the number of lanes: a power of two that divides the batch.

        As many as the row groups allow, and the memory of those that are open at a time.
        """
        cost = OPEN_COLUMN_BYTES * max(len(self.kinds), 1)
        largest = max((min(piece.bytes, cost) for piece in self.pieces), default=1)
        most = min(MAX_LANES, len(self.pieces), max(OPEN_BYTES // max(largest, 1), 1))
        lanes = 1
        while 2 * lanes <= most and not batch_size % (2 * lanes):
            lanes *= 2
        return lanes

    def rows(
        self, order: Sequence[int], begin: int, end: int, columns: Sequence[str]
    ) -> "LaneReader":
        """Return the rows from number `begin` to `end` of the pieces in an order."""
        return LaneReader(self, order, begin, end, columns)

    def _look_at(self, number: int, path: Path, known: dict[str, str | None]) -> None:
        from condens.data import formats

        label = _label(path)
        if not path.exists():
            raise TableFileNotFoundError(
                label, got="does not exist", expected="a file was expected", fix="Check the path."
            )
        if not path.is_file() or path.suffix.lower() not in ENDINGS:
            raise TableFileError(
                label,
                got="is no Parquet or Arrow file",
                expected=f"a file that ends with {', '.join(ENDINGS)} was expected",
                fix="Convert the table, or leave the file out.",
            )
        if not path.stat().st_size:
            raise _empty(label)
        try:
            str(path).encode()
        except UnicodeEncodeError:
            raise TableFileError(
                label,
                got="has a name that is not UTF-8",
                expected="pyarrow opens no other",
                fix="Rename it.",
            ) from None
        what = "a Parquet file" if ENDINGS[path.suffix.lower()] == "parquet" else "an Arrow file"
        with formats.guarded(label, what):
            schema, groups = _footer(path)
            found = _kinds(schema, self._wanted, label, self.dates)
        if not sum(rows for rows, _ in groups):
            raise _empty(label)
        # A column of nulls alone has no kind of its own: it may be all that a file has of any.
        kinds = {name: kind or known.get(name) for name, kind in found.items()}
        before = {name: kind or kinds.get(name) for name, kind in known.items()}
        if known and list(kinds.items()) != list(before.items()):
            raise _drift(label, kinds, before)
        known |= kinds
        first = 0
        for group, (rows, size) in enumerate(groups):
            if rows:
                self.pieces.append(Piece(number, group, first, rows, size))
            first += rows
        self.sizes.append(path.stat().st_size)


class LaneReader:
    """Consecutive rows of an order, from which any number can be taken at a time."""

    def __init__(
        self, shards: Shards, order: Sequence[int], begin: int, end: int, columns: Sequence[str]
    ) -> None:
        self._parts = _between(shards, order, begin, end, columns)
        self._left: Part | None = None

    def take(self, count: int) -> Iterator[Part]:
        """Yield the next rows, in parts; fewer at the end."""
        while count:
            part = self._left or next(self._parts, None)
            self._left = None
            if part is None:
                break
            if len(part.table) > count:
                rest = part.table.slice(count)
                self._left = Part(part.file, part.first + count, rest)
                part = part._replace(table=part.table.slice(0, count))
            count -= len(part.table)
            yield part


def _between(
    shards: Shards, order: Sequence[int], begin: int, end: int, columns: Sequence[str]
) -> Iterator[Part]:
    start = 0
    for number in order:
        piece = shards.pieces[number]
        if start >= end:
            return
        if start + piece.rows > begin:
            for part in shards.read(piece, columns):
                place = start + part.first - piece.first
                low, high = max(begin - place, 0), min(end - place, len(part.table))
                if low < high:
                    table = part.table.slice(low, high - low)
                    yield Part(part.file, part.first + low, table)
                if place + len(part.table) >= end:
                    break
        start += piece.rows


def expand(source: Any) -> list[Path]:
    """Return the files of a directory, a pattern or a list; those of the first two by name.

    >>> expand("no/such/*.parquet")
    Traceback (most recent call last):
    condens.errors.TableFileNotFoundError: no/such/*.parquet matches no file, but Parquet or Arrow \
files were expected. Check the path.
    """
    if isinstance(source, Iterable) and not isinstance(source, str | bytes | os.PathLike):
        found = list(source)
        for each in found:
            _check_path(each)
        if not found:
            raise ArgumentError(
                "source", got="is empty", expected="files were expected", fix="Name some."
            )
        return [Path(each) for each in found]
    _check_path(source)
    path = Path(source)
    if path.is_dir():
        paths = sorted(each for each in path.iterdir() if each.suffix.lower() in ENDINGS)
    elif path.exists():
        return [path]
    else:
        paths = sorted(map(Path, glob.glob(os.fspath(source), recursive=True)))  # noqa: PTH207
    if not paths:
        raise TableFileNotFoundError(
            printable(os.fspath(source)),
            got="holds none" if path.is_dir() else "matches no file",
            expected="Parquet or Arrow files were expected",
            fix="Check the path.",
        )
    return paths


def _check_path(path: Any) -> None:
    """Refuse what is no path, or one that no file can have."""
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(
            "source",
            got=f"has a {type(path).__name__}",
            expected="a directory, a pattern, or a list of files was expected",
            fix="Pass a path, or several.",
        )
    try:
        Path(path).exists()
        wrong = "has a null character in its path" if "\0" in os.fspath(path) else ""
    except (OSError, ValueError) as error:
        wrong = f"cannot be looked at ({getattr(error, 'strerror', None) or error})"
    if wrong:
        raise TableFileError(
            printable(os.fspath(path))[:200],
            got=wrong,
            expected="a path was expected",
            fix="Check it.",
        )


def is_many(source: str) -> bool:
    """Tell whether a user's text names several files: a directory or a pattern.

    >>> is_many("shards/*.parquet"), is_many("table.csv")
    (True, False)
    """
    return not Path(source).is_file() and (Path(source).is_dir() or any(c in source for c in "*?["))


def hash_rows(seed: int, file: int, rows: Integers) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each row of a file, which only these decide."""
    base = int.from_bytes(hashlib.sha256(f"{seed} {file}".encode()).digest()[:8], "little")
    with np.errstate(over="ignore"):
        return uniform(rows.astype(np.uint64) + np.uint64(base))


def uniform(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return numbers in [0, 1) by SplitMix64's hash of words."""
    with np.errstate(over="ignore"):
        words = (words + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
        words = words ^ (words >> np.uint64(31))
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def hash_values(seed: int, values: "pa.ChunkedArray") -> NDArray[np.float64]:
    """Return a number in [0, 1) for each value of a column, equal for equal ones."""
    import pyarrow as pa

    if pa.types.is_floating(values.type):
        values = pa.compute.add(values, 0.0)  # -0.0 is 0.0
    coded = values.combine_chunks().dictionary_encode()
    coded = coded.combine_chunks() if hasattr(coded, "combine_chunks") else coded
    texts = [f"{seed} {value!r}".encode() for value in coded.dictionary.to_pylist()]
    each = [int.from_bytes(hashlib.sha256(text).digest()[:7], "little") / 2**56 for text in texts]
    nothing = int.from_bytes(hashlib.sha256(f"{seed}".encode()).digest()[:7], "little") / 2**56
    codes = coded.indices.fill_null(len(each)).to_numpy(zero_copy_only=False)
    return np.array([*each, nothing])[codes]


def give_back_freed() -> None:
    """Give the system the memory that a survey, or the reading of a window, has freed.

    The C library keeps it, 100 MB and more, in pieces that are too small for a window.
    """
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    with suppress(AttributeError, OSError, TypeError):  # of glibc
        ctypes.CDLL(None).malloc_trim(0)


def _numbers(
    reader: "ColumnReader", name: str, column: "pa.ChunkedArray", place: Callable[[int], str]
) -> "pa.ChunkedArray":
    """Return a column as floats; one in single precision stays so, in half the memory."""
    import pyarrow as pa

    read = reader.finite if pa.types.is_float32(column.type) else partial(reader.of, decimal=".")
    return read(name, column, place=place)


def _place(first: int, row: int) -> str:
    return f"row {first + row}"


def _label(path: Path) -> str:
    return printable(str(path))


def _footer(path: Path) -> tuple["pa.Schema", list[tuple[int, int]]]:
    """Return the columns of a file, and the rows and bytes of its row groups."""
    import pyarrow as pa
    import pyarrow.ipc
    import pyarrow.parquet

    if ENDINGS[path.suffix.lower()] == "parquet":
        with pa.parquet.ParquetFile(path) as file:
            groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
            width = sum(_width(field.type) for field in file.schema_arrow)
            sizes = [(g.num_rows, max(g.total_byte_size, g.num_rows * width)) for g in groups]
            return file.schema_arrow, sizes
    with pa.memory_map(str(path)) as source:
        opened = pa.ipc.open_file(source)
        # One after the other: those of a compressed file are decoded.
        batches = (opened.get_batch(i) for i in range(opened.num_record_batches))
        return opened.schema, [(batch.num_rows, batch.nbytes) for batch in batches]


def _width(dtype: "pa.DataType") -> int:
    """Return the bytes of a value in memory; 0 where they vary."""
    try:
        return -(-dtype.bit_width // 8)
    except ValueError:
        return 0


def _raw(path: Path, piece: Piece, columns: Sequence[str]) -> Iterator["pa.Table"]:
    import pyarrow as pa
    import pyarrow.ipc
    import pyarrow.parquet

    names = list(columns)
    size = max(1, min(ROWS_PER_READ, BYTES_PER_READ // (8 * len(names))))
    if ENDINGS[path.suffix.lower()] == "parquet":
        with pa.parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 16) as file:
            if piece.bytes > OPEN_COLUMN_BYTES * len(names):
                for batch in file.iter_batches(
                    size, row_groups=[piece.number], columns=names, use_threads=False
                ):
                    yield pa.Table.from_batches([batch]).select(names)
                return
            table = file.read_row_group(piece.number, names, use_threads=False).select(names)
        decoded = deque(_moved(batch) for batch in table.to_batches(size))
        del table
        while decoded:
            yield decoded.popleft()
        return
    with pa.memory_map(str(path)) as source:
        batch = pa.ipc.open_file(source).get_batch(piece.number)
        table = pa.Table.from_batches([batch]).select(names)
        for start in range(0, len(table), size):
            yield table.slice(start, size)


def _moved(batch: "pa.RecordBatch") -> "pa.Table":
    """Return a table with its floats in memory of their own, which is freed with it.

    What pyarrow's allocator keeps for columns of a few kilobytes is half as much again, and one
    column in use keeps the memory of its whole row group.
    """
    import pyarrow as pa

    def moved(column: "pa.Array") -> "pa.Array":
        floats = pa.types.is_float32(column.type) or pa.types.is_float64(column.type)
        return pa.array(column.to_numpy().copy()) if floats and not column.null_count else column

    return pa.table([moved(column) for column in batch.columns], names=batch.schema.names)


def _kinds(
    schema: "pa.Schema",
    wanted: Sequence[str] | None,
    label: str,
    dates: Literal["refuse", "seconds"],
) -> dict[str, str | None]:
    """Return what the columns hold, None for nulls alone; refuse columns of other kinds."""
    from condens.data import formats

    names = list(schema.names if wanted is None else wanted)
    formats.check_names(label, names, schema.names)
    request = formats.Request(tuple(names), (), None, None, None, None, dates)
    reader = formats.ColumnReader(label, request)
    types = {name: schema.field(name).type for name in names}
    return {name: formats.kind_of_type(reader, name, dtype) for name, dtype in types.items()}


def _empty(label: str) -> TableFileError:
    return TableFileError(
        label,
        got="has no rows",
        expected="at least one was expected",
        fix="Leave it out, or write it again.",
    )


def _drift(
    label: str, found: dict[str, str | None], first: dict[str, str | None]
) -> TableFileError:
    lacking = [name for name in first if name not in found]
    further = [name for name in found if name not in first]
    changed = [name for name in first if name in found and found[name] != first[name]]
    if lacking:
        got, expected = f"lacks the column {lacking[0]!r}", "the first file has it"
    elif further:
        got, expected = f"has the column {further[0]!r}", "the first file has none of this name"
    elif changed:
        name = changed[0]
        got = f"holds {found[name]} in column {name!r}"
        expected = f"the files before hold {first[name]}"
    else:
        return TableFileError(
            label,
            got="has its columns in another order",
            expected="the order of the first file was expected",
            fix="Say which columns to read.",
        )
    fix = "Write all files with the same columns, or say which to read."
    return TableFileError(label, got=got, expected=expected, fix=fix)
