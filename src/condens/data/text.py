"""Text of tables: encodings, blocks of whole rows, delimiters, and the line of each row."""

import codecs
import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Final, NamedTuple

import pyarrow as pa
from pyarrow import csv as arrow_csv

from condens.data.cells import Decimal
from condens.data.sources import KNOWN, Source, unreadable
from condens.errors import TableFileError

BLOCK_BYTES: Final = 1 << 22
# A longer row is none: a quote was not closed, or there are no lines at all.
MAX_ROW_BYTES: Final = 1 << 24
# Rows that are looked at to find the delimiter and the decimal separator.
SAMPLE_ROWS: Final = 1000
SAMPLE_CELLS: Final = 20_000
# The comma last: it is the one that other files hold in their cells.
DELIMITERS: Final = ("\t", ";", "|", ",")
_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Windows' encoding is Latin-1 but for these; five bytes mean nothing in it.
_WINDOWS = {
    code: text for code in range(128, 160) if (text := bytes([code]).decode("cp1252", "ignore"))
}
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_NUMBER = re.compile(r"[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?")
_WITH_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
_WITH_POINT = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")


class Block(NamedTuple):
    """Whole rows of a file, in UTF-8, and the number of the first line."""

    line: int
    data: bytes


class Layout(NamedTuple):
    """How a file of delimited text is written."""

    names: list[str]
    delimiter: str
    decimal: Decimal


def chunks_of(source: Source, encoding: str | None) -> Iterator[bytes]:
    """Yield the bytes of a file, in UTF-8 or in the 8-bit encoding it has."""
    head = source.head
    encoding = encoding or next((name for bom, name in _BOMS if head.startswith(bom)), None)
    decoder = None if encoding is None else codecs.getincrementaldecoder(encoding)()
    first, old_mac = True, False
    while chunk := source.read(BLOCK_BYTES):
        if decoder is not None:
            chunk = _recoded(source, decoder, chunk)
        if first:
            chunk = chunk.removeprefix(codecs.BOM_UTF8)
            first, old_mac = False, b"\r" in chunk[:-1] and b"\n" not in chunk
        yield chunk.replace(b"\r", b"\n") if old_mac else chunk
    if decoder is not None:
        _recoded(source, decoder, b"", final=True)


def _recoded(
    source: Source, decoder: codecs.IncrementalDecoder, chunk: bytes, *, final: bool = False
) -> bytes:
    try:
        return decoder.decode(chunk, final).encode()
    except UnicodeError as error:
        raise TableFileError(
            source.label,
            got=f"is not text in the encoding {getattr(error, 'encoding', 'given')}",
            expected="every byte of it must be",
            fix="Pass the encoding that it was written in.",
        ) from None


def blocks_of(label: str, chunks: Iterable[bytes], delimiter: str | None) -> Iterator[Block]:
    """Yield a file in blocks of whole rows; without a delimiter, a row is a line."""
    line, rest, decoder = 1, b"", _Decoder(label)
    for chunk in chunks:
        data = rest + chunk
        decoder.refuse_null(line, data)
        cut = _end_of_rows(label, line, data, delimiter)
        if cut:
            yield Block(line, decoder.decode(line, data[:cut]))
            line += data.count(b"\n", 0, cut)
        rest = data[cut:]
        if len(rest) > MAX_ROW_BYTES:
            raise _endless(label, line, rest)
    if rest:
        rest += b"\n"
        cut = _end_of_rows(label, line, rest, delimiter)
        if cut < len(rest):
            raise _endless(label, line + rest.count(b"\n", 0, cut), rest)
        yield Block(line, decoder.decode(line, rest))


def _end_of_rows(label: str, line: int, data: bytes, delimiter: str | None) -> int:
    """Return where the last whole row ends."""
    if delimiter is None or b'"' not in data:
        return data.rfind(b"\n") + 1
    lines = data.decode("latin-1").split("\n")
    whole = 0
    for _, end in _records(label, line, lines[:-1], delimiter):
        whole = end
    return sum(map(len, lines[:whole])) + whole


def _records(
    label: str, line: int, lines: Sequence[str], delimiter: str
) -> Iterator[tuple[list[str], int]]:
    """Yield whole rows, empty ones too, each with the number of lines up to its end."""
    left = iter(lines)
    ended = False

    def feed() -> Iterator[str]:
        nonlocal ended
        for each in left:
            yield f"{each}\n"
        ended = True

    reader = csv.reader(feed(), delimiter=delimiter)
    try:
        for cells in reader:
            if ended:  # within a quoted cell
                return
            yield cells, reader.line_num
    except csv.Error as error:
        long = "limit" in str(error)
        raise TableFileError(
            label,
            got=f"has {'an endless cell' if long else 'a carriage return'} in line "
            f"{line + max(reader.line_num, 1) - 1}",
            expected=f"cells of at most {csv.field_size_limit()} characters, and a line for every "
            "row, were expected",
            fix="Close the quote before it." if long else "Quote the cell, or remove it.",
        ) from None


def rows_of(label: str, block: Block, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a block that are not empty, each with the line it begins in."""
    before = 0
    lines = block.data.decode(errors="replace").split("\n")[:-1]
    for cells, end in _records(label, block.line, lines, delimiter):
        if cells:
            yield block.line + before, cells
        before = end


class _Decoder:
    """Turns lines into UTF-8: those of Windows' encoding too, if no other line says otherwise."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.encoding: str | None = None  # none but ASCII yet

    def decode(self, line: int, data: bytes) -> bytes:
        if data.isascii():
            return data
        if self.encoding != "cp1252":
            try:
                data.decode()
            except UnicodeDecodeError as error:
                wrong = line + data.count(b"\n", 0, error.start)
                if self.encoding == "utf-8" or not data[: error.start].isascii():
                    raise self._mixed(wrong) from None
                self.encoding = "cp1252"
            else:
                self.encoding = "utf-8"
                return data
        if found := _CONTROL.search(data):
            raise self._no_text(line + data.count(b"\n", 0, found.start()))
        return data.decode("latin-1").translate(_WINDOWS).encode()

    def refuse_null(self, line: int, data: bytes) -> None:
        if b"\0" in data:
            raise self._no_text(line + data.count(b"\n", 0, data.index(b"\0")))

    def _no_text(self, line: int) -> TableFileError:
        return TableFileError(
            self.label,
            got=f"holds bytes in line {line} that are no text",
            expected=KNOWN,
            fix="Check that it is a table; of UTF-16 without a mark at its beginning, pass the "
            "encoding.",
        )

    def _mixed(self, line: int) -> TableFileError:
        return TableFileError(
            self.label,
            got=f"is UTF-8 up to line {line}, which is not",
            expected="one encoding was expected",
            fix="Correct that line, or pass the encoding.",
        )


def _endless(label: str, line: int, data: bytes) -> TableFileError:
    quoted = b'"' in data
    return TableFileError(
        label,
        got=f"has a {'quote' if quoted else 'row'} in line {line} that does not end",
        expected="rows on lines of their own were expected",
        fix="Close the quote." if quoted else "Check that the file is a table.",
    )


def layout_of(
    label: str,
    chunks: Iterator[bytes],
    *,
    delimiter: str | None,
    decimal: Decimal | None,
) -> tuple[Layout, Iterator[Block]]:
    """Return how delimited text is written, and its blocks after the header."""
    first = next(chunks, b"")
    # Bytes as they are: what separates cells is the same in every encoding that comes here.
    sample = first.decode("latin-1").split("\n")
    delimiter = delimiter or _delimiter_of(label, sample)
    blocks = blocks_of(label, chain([first], chunks), delimiter)
    for block in blocks:
        lines = block.data.decode().split("\n")[:-1]
        rows = _records(label, block.line, lines, delimiter)
        cells, end = next(((c, end) for c, end in rows if "".join(c).strip()), ([], 0))
        if not cells:
            continue
        names = [cell.strip() for cell in cells]
        _check_header(label, names, block.line + end - 1)
        rest = _after(block.data, end)
        if decimal is None:
            decimal = _decimal_of(label, sample, delimiter)
        return Layout(names, delimiter, decimal), chain([Block(block.line + end, rest)], blocks)
    raise empty(label)


def _after(data: bytes, n_lines: int) -> bytes:
    place = 0
    for _ in range(n_lines):
        place = data.index(b"\n", place) + 1
    return data[place:]


def _check_header(label: str, names: Sequence[str], line: int) -> None:
    """Refuse a first row of numbers; whole ones may be names, such as years."""
    if all(map(_NUMBER.fullmatch, names)) and not all(map(str.isdecimal, names)):
        raise TableFileError(
            label,
            got=f"has numbers alone in line {line}",
            expected="the names of the columns were expected in the first row",
            fix="Add a header.",
        )


def _delimiter_of(label: str, sample: Sequence[str]) -> str:
    """Return the delimiter by which most rows have the header's number of cells, two at least.

    Among equals it is the one by which most cells are numbers.
    """
    best, most = ",", (0.0, 0.0)
    for delimiter in DELIMITERS:
        with suppress(TableFileError):
            rows = [row for row in _sampled(label, sample, delimiter) if "".join(row).strip()]
            if not rows or len(rows[0]) < 2:
                continue
            cells = [cell.strip() for row in rows[1:] for cell in row]
            numbers = sum(map(bool, map(_NUMBER.fullmatch, cells)))
            even = sum(len(row) == len(rows[0]) for row in rows)
            score = even / len(rows), numbers / max(len(cells), 1)
            if score > most:
                best, most = delimiter, score
    return best


def _decimal_of(label: str, sample: Sequence[str], delimiter: str) -> Decimal:
    """Return the decimal separator of a sample; cells separated by commas have a point."""
    if delimiter == ",":
        return "."
    cells = [cell.strip() for row in _sampled(label, sample, delimiter)[1:] for cell in row]
    commas, points = (list(filter(form.fullmatch, cells)) for form in (_WITH_COMMA, _WITH_POINT))
    if commas and points:
        raise TableFileError(
            label,
            got=f"holds numbers with a comma ({commas[0]}) and with a point ({points[0]})",
            expected="one decimal separator was expected",
            fix='Pass decimal="," or decimal=".": cells with the other one are text.',
        )
    return "," if commas else "."


def _sampled(label: str, sample: Sequence[str], delimiter: str) -> list[list[str]]:
    """Return the first rows, fewer if they have many cells."""
    rows, count = [], 0
    for row, _ in islice(_records(label, 1, sample, delimiter), SAMPLE_ROWS):
        rows.append(row)
        count += len(row)
        if count > SAMPLE_CELLS:
            break
    return rows


def parsed(
    label: str, block: Block, layout: Layout, places: Sequence[int]
) -> list[pa.ChunkedArray]:
    """Return the cells of some columns as text; refuse rows with more or fewer than the header."""
    names = [str(place) for place in range(len(layout.names))]
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(block.data),
            arrow_csv.ReadOptions(
                column_names=names, use_threads=False, block_size=len(block.data) + 1
            ),
            arrow_csv.ParseOptions(
                delimiter=layout.delimiter, newlines_in_values=b'"' in block.data
            ),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                include_columns=[names[place] for place in places],
            ),
        )
    except pa.ArrowInvalid as error:
        for line, cells in rows_of(label, block, layout.delimiter):
            if len(cells) != len(names):
                raise _ragged(label, line, len(cells), layout) from None
        raise unreadable(label, error) from None
    return table.columns


def _ragged(label: str, line: int, count: int, layout: Layout) -> TableFileError:
    return TableFileError(
        label,
        got=f"has {count} cell(s) in line {line}",
        expected=f"its header has {len(layout.names)}, separated by {layout.delimiter!r}",
        fix="Correct that line (cells that hold the delimiter are quoted), or pass the delimiter.",
    )


def empty(label: str) -> TableFileError:
    """Return the error for a file that holds nothing."""
    return TableFileError(
        label,
        got="is empty",
        expected="a table was expected",
        fix="Check how the file was written.",
    )
