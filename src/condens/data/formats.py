"""The formats of tables in files: delimited text, JSON lines, Parquet and Arrow."""

import re
import reprlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.ipc
import pyarrow.json
import pyarrow.parquet
import pyarrow.types as kinds

from condens.data import cells as reading
from condens.data import text
from condens.data.cells import Decimal
from condens.data.sources import Source, TableSource, format_of, opened, unreadable
from condens.errors import CondensError, TableFileError
from condens.scalars import printable

ROWS_PER_BATCH = 65_536
MAX_LISTED_NAMES = 10
_DATES = (
    'Convert them to numbers first, such as the year, the month or seconds, pass dates="seconds", '
    "or leave the column out."
)
_CELL = "Correct the cell, empty it if the value is missing, or leave the column out."
# What pyarrow raises on files that are damaged.
_DAMAGED = (pa.ArrowException, OSError, EOFError, ValueError, OverflowError, MemoryError)

_NO_OBJECT = re.compile(rb"^[ \t\r]*[^{ \t\r\n]", re.MULTILINE)

Place = Callable[[int], str]


class Request(NamedTuple):
    """What to read of a file, and how: the arguments of `read_table`."""

    columns: tuple[str, ...] | None
    numeric: tuple[str, ...]
    format: str | None
    delimiter: str | None
    decimal: Decimal | None
    encoding: str | None
    dates: Literal["refuse", "seconds"]


def whole(source: TableSource, request: Request) -> pa.Table:
    """Return the table of a file, its columns of text as what they hold."""
    with opened(source) as file, guarded(file.label):
        reader = _reader(file, request)
        return reader.whole(list(_filled(file.label, reader.tables())))


def batches(source: TableSource, request: Request) -> Iterator[pa.Table]:
    """Yield the table of a file in parts; only the numeric columns are converted."""
    with opened(source) as file, guarded(file.label):
        reader = _reader(file, request)
        yield from _filled(file.label, map(reader.steady, reader.tables()))


@contextmanager
def guarded(label: str, what: str = "a table") -> Iterator[None]:
    """Name the file in what pyarrow raises."""
    try:
        yield
    except CondensError:
        raise
    except _DAMAGED as error:
        raise unreadable(label, error, what) from None


def _filled(label: str, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield the tables that have rows; raise if none has."""
    found = False
    for table in tables:
        if len(table):
            found = True
            yield table
    if not found:
        raise TableFileError(
            label,
            got="has no rows",
            expected="at least one was expected below the names of the columns",
            fix="Check how the file was written.",
        )


def _reader(source: Source, request: Request) -> "_Reader":
    form = request.format or format_of(source)
    if not source.head:
        raise text.empty(source.label)
    kinds_of_files: dict[str, type[_Reader]] = {
        "csv": _Delimited,
        "tsv": _Delimited,
        "jsonl": _JsonLines,
        "parquet": _Parquet,
        "arrow": _Arrow,
    }
    tabs = b"\t" in source.head.partition(b"\n")[0]
    if form == "tsv" and tabs and request.delimiter is None:
        request = request._replace(delimiter="\t")
    return kinds_of_files[form](source, request)


class _Reader(ABC):
    """A file that is being read, part by part."""

    def __init__(self, source: Source, request: Request) -> None:
        self.source, self.label, self.request = source, source.label, request
        self.numeric = frozenset(request.numeric)
        self.numbers = ColumnReader(source.label, request)

    @abstractmethod
    def tables(self) -> Iterator[pa.Table]:
        """Yield the columns asked for, in parts, the numeric ones as doubles."""

    def steady(self, table: pa.Table) -> pa.Table:
        """Return a part whose types are those of every other."""
        return table

    def whole(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Return all parts as one table."""
        table = pa.concat_tables(tables)
        return self.each(table, self.numbers.settled)

    def each(
        self, table: pa.Table, read: Callable[[str, pa.ChunkedArray], pa.ChunkedArray]
    ) -> pa.Table:
        """Return a table with the columns that are not numeric converted."""
        columns = [
            column if name in self.numeric else read(name, column)
            for name, column in zip(table.column_names, table.columns, strict=True)
        ]
        return pa.table(columns, names=table.column_names)

    def chosen(self, names: Sequence[str]) -> list[str]:
        """Return the names of the columns to read, each of which the file has once."""
        wanted = names if self.request.columns is None else self.request.columns
        check_names(self.label, [*wanted, *self.request.numeric], names)
        return list(wanted)


def check_names(label: str, wanted: Sequence[str], names: Sequence[str]) -> None:
    """Refuse columns that a file does not have, has twice, or has without a name."""
    counts = Counter(names)
    for name in wanted:
        if name not in counts:
            raise _lacks(label, name, names)
        if not name:
            raise TableFileError(
                label,
                got=f"has no name for column {list(names).index('') + 1}",
                expected="every column needs one in the header",
                fix="Name it, or say which columns to read (pandas writes an index without a "
                "name: to_csv(index=False) leaves it out).",
            )
        if counts[name] > 1:
            raise TableFileError(
                label,
                got=f"has {counts[name]} columns {_short(name)}",
                expected="distinct names were expected",
                fix="Rename or remove one.",
            )


class _Delimited(_Reader):
    """CSV and its relatives."""

    def __init__(self, source: Source, request: Request) -> None:
        super().__init__(source, request)
        self.layout, self.blocks = text.layout_of(
            source.label,
            text.chunks_of(source, request.encoding),
            delimiter=request.delimiter,
            decimal=request.decimal,
        )
        self.names = self.chosen(self.layout.names)

    def tables(self) -> Iterator[pa.Table]:
        numbered = {name: place for place, name in enumerate(self.layout.names)}
        places = [numbered[name] for name in self.names]
        for block in self.blocks:
            if not block.data.strip(b"\r\n"):
                continue
            columns = map(reading.tidied, text.parsed(self.label, block, self.layout, places))
            place = _lines(self.label, block, self.layout.delimiter)
            made = [
                self.numbers.of(name, column, self.layout.decimal, place)
                if name in self.numeric
                else column
                for name, column in zip(self.names, columns, strict=True)
            ]
            yield pa.table(made, names=self.names)

    def whole(self, tables: Sequence[pa.Table]) -> pa.Table:
        def read(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
            found = reading.inferred(column, self.layout.decimal)
            return self.numbers.settled(name, found)

        return self.each(pa.concat_tables(tables), read)


def _lines(label: str, block: text.Block, delimiter: str) -> Place:
    def place(row: int) -> str:
        line, _ = next(islice(text.rows_of(label, block, delimiter), row, None))
        return f"line {line}"

    return place


class _JsonLines(_Reader):
    """An object of JSON in every line."""

    def __init__(self, source: Source, request: Request) -> None:
        super().__init__(source, request)
        self.kinds: dict[str, str] = {}

    def tables(self) -> Iterator[pa.Table]:
        names: list[str] | None = None
        chunks = text.chunks_of(self.source, self.request.encoding)
        for block in text.blocks_of(self.label, chunks, None):
            if not block.data.strip():
                continue
            table = self._parsed(block)
            if names is None:
                names = self.chosen(table.column_names)
            yield self._taken(table, names, block)

    def _taken(self, table: pa.Table, names: list[str], block: text.Block) -> pa.Table:
        known = set(table.column_names)
        new = known.difference(names) if self.request.columns is None else set()
        for name in sorted(new):
            raise TableFileError(
                self.label,
                got=f"has the column {_short(name)} only after line {block.line - 1}",
                expected="the lines before lack it",
                fix="Say which columns to read.",
            )
        nulls = pa.chunked_array([pa.nulls(len(table))])
        made = [table[name] if name in known else nulls for name in names]
        place = _json_place(block, len(table))
        for name, column in zip(names, made, strict=True):
            self._check_kind(name, column.type, block.line)
        for i, name in enumerate(names):
            if name in self.numeric:
                made[i] = self.numbers.of(name, made[i], ".", place)
        return pa.table(made, names=names)

    def _check_kind(self, name: str, dtype: pa.DataType, line: int) -> None:
        """Refuse a column of two kinds, wherever blocks end."""
        if kinds.is_null(dtype):
            return
        number = _is_number(dtype) and not kinds.is_boolean(dtype)
        kind = "numbers" if number else printable(str(dtype))
        before = self.kinds.setdefault(name, kind)
        if kind != before:
            raise TableFileError(
                self.label,
                got=f"holds {kind} in column {_short(name)} after line {line - 1}",
                expected=f"the lines before hold {before}",
                fix="Write one kind in each column, or leave the column out.",
            )

    def _parsed(self, block: text.Block, dates: Sequence[str] = ()) -> pa.Table:
        # pyarrow crashes on some values that are no objects.
        if found := _NO_OBJECT.search(block.data):
            line = block.line + block.data.count(b"\n", 0, found.start())
            raise self._damaged(f" in line {line}", "no object begins there")
        try:
            table = pa.json.read_json(
                pa.BufferReader(block.data),
                pa.json.ReadOptions(use_threads=False, block_size=len(block.data) + 1),
                pa.json.ParseOptions(
                    explicit_schema=pa.schema([(name, pa.string()) for name in dates])
                ),
            )
            stamps = [field.name for field in table.schema if kinds.is_timestamp(field.type)]
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            reason = str(error).removeprefix("JSON parse error: ")
            row, lines = re.search(r" in row (\d+)$", reason), _json_lines(block)
            if row and int(row[1]) < len(lines):
                where, reason = f" in line {lines[int(row[1])]}", reason[: row.start()]
            else:
                where = ""
            raise self._damaged(where, reason) from None
        # Text that looks like a date stays text until the whole column does.
        return self._parsed(block, stamps) if stamps and not dates else table

    def _damaged(self, where: str, reason: str) -> TableFileError:
        return TableFileError(
            self.label,
            got=f"cannot be read{where} ({printable(reason)[:200].rstrip('. ')})",
            expected="an object of JSON in every line was expected, with values of one kind in "
            "each column",
            fix="Correct that line, or write one object a line.",
        )

    def steady(self, table: pa.Table) -> pa.Table:
        def read(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
            if kinds.is_nested(column.type):
                raise self.numbers.unusable(name, column.type)
            return column.cast(pa.string())

        return self.each(table, read)

    def whole(self, tables: Sequence[pa.Table]) -> pa.Table:
        table = pa.concat_tables(tables, promote_options="permissive")
        return self.each(table, self.numbers.settled)


def _json_place(block: text.Block, n_rows: int) -> Place:
    lines = _json_lines(block)
    after = f"row {{}} after line {block.line - 1}"
    # A line may hold several objects.
    return lambda row: f"line {lines[row]}" if len(lines) == n_rows else after.format(row)


def _json_lines(block: text.Block) -> list[int]:
    """Return the numbers of the lines that hold objects."""
    lines = block.data.split(b"\n")
    return [block.line + i for i, line in enumerate(lines) if line.strip()]


class _Typed(_Reader):
    """Files that say what their columns are."""

    what: str

    def tables(self) -> Iterator[pa.Table]:
        before = 0
        with guarded(self.label, self.what):
            for table in self.parts():
                table.validate(full=True)
                yield self._converted(table, before)
                before += len(table)

    @abstractmethod
    def parts(self) -> Iterator[pa.Table]:
        """Yield the columns asked for, in parts, as they are in the file."""

    def _converted(self, table: pa.Table, before: int) -> pa.Table:
        made = [
            self.numbers.of(name, column, ".", lambda row: f"row {before + row}")
            if name in self.numeric
            else column
            for name, column in zip(table.column_names, table.columns, strict=True)
        ]
        return pa.table(made, names=table.column_names)


class _Parquet(_Typed):
    what = "a Parquet file"

    def parts(self) -> Iterator[pa.Table]:
        file = pa.parquet.ParquetFile(self.source.seekable(), pre_buffer=False)
        names = self.chosen(file.schema_arrow.names)
        for batch in file.iter_batches(ROWS_PER_BATCH, columns=names, use_threads=False):
            yield pa.Table.from_batches([batch]).select(names)


class _Arrow(_Typed):
    what = "an Arrow or Feather file"

    def parts(self) -> Iterator[pa.Table]:
        if self.source.head.startswith(b"ARROW1"):
            file = pa.ipc.open_file(self.source.seekable())
            found: Iterator[Any] = map(file.get_batch, range(file.num_record_batches))
        else:
            file = pa.ipc.open_stream(self.source.stream())
            found = iter(file)
        names = self.chosen(file.schema.names)
        for batch in found:
            yield pa.Table.from_batches([batch]).select(names)


class ColumnReader:
    """Turns columns into numbers; a column of numbers holds no dates, and the reverse."""

    def __init__(self, label: str, request: Request) -> None:
        self.label, self.dates = label, request.dates
        self.dated: dict[str, bool] = {}

    def of(
        self, name: str, column: pa.ChunkedArray, decimal: Decimal, place: Place
    ) -> pa.ChunkedArray:
        """Return a column that must be numbers as doubles."""
        column = _decoded(column)
        dtype = column.type
        if _is_text(dtype):
            numbers = self._of_text(name, reading.tidied(column.cast(pa.string())), decimal, place)
        elif kinds.is_temporal(dtype) and not kinds.is_interval(dtype):
            numbers = self.settled(name, column)
        elif _is_number(dtype):
            numbers = column.cast(pa.float64(), safe=False)
        else:
            raise self.unusable(name, dtype)
        return self.finite(name, numbers, place)

    def finite(self, name: str, numbers: pa.ChunkedArray, place: Place) -> pa.ChunkedArray:
        """Return a column of floats as it is; refuse one that holds infinity."""
        infinite = np.isinf(numbers.to_numpy())
        if infinite.any():
            row = int(infinite.argmax())
            raise TableFileError(
                self.label,
                got=f"is {numbers[row].as_py()} in {place(row)}, column {_short(name)}",
                expected="finite numbers were expected",
                fix="Correct the cell, or empty it if the value is missing.",
            )
        return numbers

    def _of_text(
        self, name: str, cells: pa.ChunkedArray, decimal: Decimal, place: Place
    ) -> pa.ChunkedArray:
        if cells.null_count == len(cells):
            return cells.cast(pa.float64())

        def numbers(some: pa.ChunkedArray) -> pa.ChunkedArray | None:
            return reading.as_numbers(some, decimal)

        if name not in self.dated:
            first = cells.drop_null()[:1]
            dated = self.dates == "seconds" and numbers(first) is None
            self.dated[name] = dated and reading.as_seconds(first) is not None
        read = reading.as_seconds if self.dated[name] else numbers
        found = read(cells)
        if found is None:
            row = reading.first_failure(cells, read)
            raise self._stray(name, cells[row].as_py(), decimal, place(row))
        return found

    def _stray(self, name: str, cell: str, decimal: Decimal, place: str) -> TableFileError:
        one = pa.chunked_array([[cell]])
        expected, fix = "numbers were expected", _CELL
        if self.dated[name]:
            expected = "dates of one form were expected"
        elif reading.as_seconds(one) is not None:
            fix = _DATES
        elif reading.as_numbers(one, "," if decimal == "." else ".") is not None:
            other = "," if decimal == "." else "."
            fix = f"Pass decimal={other!r} if that is the decimal separator."
        return TableFileError(
            self.label,
            got=f"holds {_short(cell)} in {place}, column {_short(name)}",
            expected=expected,
            fix=fix,
        )

    def settled(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return a column whose kind is free: dates as seconds, if they are not refused."""
        dtype = _decoded(column[:0]).type
        if _is_text(dtype):
            plain = not kinds.is_dictionary(column.type)
            seconds = reading.as_seconds(_decoded(column).cast(pa.string())) if plain else None
        elif kinds.is_temporal(dtype) and not kinds.is_interval(dtype):
            seconds = reading.seconds_of(_decoded(column))
        elif _is_number(dtype):
            seconds = None
        else:
            raise self.unusable(name, dtype)
        if seconds is not None and self.dates != "seconds":
            raise TableFileError(
                self.label,
                got=f"holds dates or times in column {_short(name)}",
                expected="numbers or categories were expected",
                fix=_DATES,
            )
        return column if seconds is None else seconds

    def unusable(self, name: str, dtype: pa.DataType) -> TableFileError:
        """Return the error for a column of lists, bytes or the like."""
        return TableFileError(
            self.label,
            got=f"holds {printable(str(dtype))[:80]} in column {_short(name)}",
            expected="numbers or categories were expected",
            fix="Convert it to columns of numbers or text, or leave the column out.",
        )


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if kinds.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    if kinds.is_run_end_encoded(column.type):
        return pa.compute.run_end_decode(column)
    return column


def kind_of_type(reader: ColumnReader, name: str, dtype: pa.DataType) -> str | None:
    """Return what a column of a type holds; None for nulls alone, which are of no kind.

    Numbers, categories, which are text, or categories of another type; others are refused.
    """
    plain = _decoded(pa.chunked_array([], dtype)).type
    reader.settled(name, pa.chunked_array([], plain))
    if kinds.is_null(plain):
        return None
    if _is_text(plain):
        return "categories"
    return f"categories of {plain}" if kinds.is_dictionary(dtype) else "numbers"


def as_categories(column: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    """Return a column of categories of a kind, of the same type whatever the file stores."""
    column = _decoded(column)
    if kind == "categories":
        return column.cast(pa.large_string())
    if kinds.is_null(column.type):
        plain = pa.type_for_alias(kind.removeprefix("categories of "))
        column = pa.chunked_array([pa.nulls(len(column), plain)])
    return column.dictionary_encode()


def table_of(columns: Sequence[pa.ChunkedArray], names: Sequence[str]) -> pa.Table:
    """Return a table of named columns."""
    return pa.table(list(columns), names=list(names))


def _is_text(dtype: pa.DataType) -> bool:
    return bool(
        kinds.is_string(dtype) or kinds.is_large_string(dtype) or kinds.is_string_view(dtype)
    )


def _is_number(dtype: pa.DataType) -> bool:
    return bool(
        kinds.is_integer(dtype)
        or kinds.is_floating(dtype)
        or kinds.is_decimal(dtype)
        or kinds.is_boolean(dtype)
        or kinds.is_null(dtype)
    )


def _lacks(label: str, name: str, names: Sequence[str]) -> TableFileError:
    rest = ", …" if len(names) > MAX_LISTED_NAMES else ""
    near = get_close_matches(name, names[:1000], 1)
    return TableFileError(
        label,
        got=f"lacks the column {_short(name)}",
        expected=f"its columns are {', '.join(map(_short, names[:MAX_LISTED_NAMES]))}{rest}",
        fix=f"Did you mean {_short(near[0])}?" if near else "Check the names, and the delimiter.",
    )


def _short(words: str) -> str:
    """Return text as Python writes it, without its middle if it is long."""
    return reprlib.repr(words) if len(words) > 60 else repr(words)
