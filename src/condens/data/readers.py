"""Tables in files: CSV, TSV, Parquet, Arrow and JSON lines, whole or in batches."""

import codecs
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from condens.data.sources import FORMATS, TableSource
from condens.errors import KindError
from condens.scalars import as_choice, refused

if TYPE_CHECKING:
    import pyarrow as pa

    from condens.data.formats import Request

Format = Literal["csv", "tsv", "parquet", "arrow", "jsonl"]
Dates = Literal["refuse", "seconds"]


def read_table(
    source: TableSource,
    *,
    columns: Sequence[str] | None = None,
    format: Format | None = None,  # noqa: A002
    delimiter: str | None = None,
    decimal: Literal[".", ","] | None = None,
    encoding: str | None = None,
    numeric: Sequence[str] = (),
    dates: Dates = "refuse",
) -> "pa.Table":
    r"""Read a table from a file.

    The format is that of the file's content or ending: CSV or TSV (gzip-compressed too), Parquet,
    Arrow (Feather), or JSON lines. Of text, the delimiter (comma, semicolon, tab or bar), the
    decimal separator and the encoding (UTF-8, UTF-16 with its mark, Windows-1252) are recognised;
    cells that are empty, NA, NaN or null are missing, and blanks around a cell are removed.
    Columns of text whose cells are all numbers or all true and false are read as such.

    Args:
        source: a path, a stream of bytes, or "-" for standard input.
        columns: the columns to read, in this order; all by default.
        format: "csv", "tsv", "parquet", "arrow" or "jsonl".
        delimiter: the character between the cells of text.
        decimal: "." or ",".
        encoding: of text.
        numeric: the columns that must be numbers; true and false are 1 and 0.
        dates: "refuse" columns of ISO dates and times, or read them as "seconds" since 1970, in
            UTC where they name no zone; times of day since midnight.

    >>> import io
    >>> read_table(io.BytesIO(b"size;town\n1,5;Ulm\n;Aix")).to_pydict()
    {'size': [1.5, None], 'town': ['Ulm', 'Aix']}
    """
    formats = _formats("read_table")
    request = _request(columns, numeric, format, delimiter, decimal, encoding, dates)
    return formats.whole(source, request)


def read_batches(
    source: TableSource,
    *,
    columns: Sequence[str] | None = None,
    format: Format | None = None,  # noqa: A002
    delimiter: str | None = None,
    decimal: Literal[".", ","] | None = None,
    encoding: str | None = None,
    numeric: Sequence[str] = (),
    dates: Dates = "refuse",
) -> "Iterator[pa.Table]":
    r"""Read a table in batches of rows, for files larger than memory.

    The arguments are those of `read_table`. Every batch has the same types: the `numeric` columns
    are doubles; the others are text, or in Parquet and Arrow files what they are there. A Parquet
    file that comes from a stream is held in memory.

    >>> import io
    >>> [batch.to_pydict() for batch in read_batches(io.BytesIO(b"a,b\n1,2"), numeric=["a"])]
    [{'a': [1.0], 'b': ['2']}]
    """
    formats = _formats("read_batches")
    request = _request(columns, numeric, format, delimiter, decimal, encoding, dates)
    batches = formats.batches(source, request)
    # The first batch now, so that a wrong file is refused here.
    return chain([next(batches)], batches)


def _formats(name: str) -> ModuleType:
    try:
        from condens.data import formats
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{name} needs pyarrow. Install it: pip install 'condens[data]'."
        ) from error
    return formats


def _request(
    columns: Sequence[str] | None,
    numeric: Sequence[str],
    file_format: Format | None,
    delimiter: str | None,
    decimal: Literal[".", ","] | None,
    encoding: str | None,
    dates: Dates,
) -> "Request":
    """Return what to read, checked."""
    from condens.data.formats import Request

    chosen = None if columns is None else _names("columns", columns)
    numbers = _names("numeric", numeric)
    if chosen is not None:
        if not chosen:
            raise refused(
                "columns",
                columns,
                "at least one name was expected",
                "Leave it out for all columns.",
            )
        if unread := [name for name in numbers if name not in chosen]:
            raise refused(
                "numeric", unread, "names among columns were expected", "Name them in both."
            )
    as_choice("format", file_format, (*FORMATS, None), fix="Leave it out to recognise the format.")
    as_choice("decimal", decimal, (".", ",", None), fix="Leave it out to recognise it.")
    as_choice("dates", dates, ("refuse", "seconds"), fix='Pass dates="seconds" for numbers.')
    if delimiter is not None and not _separates(delimiter):
        raise refused(
            "delimiter",
            delimiter,
            "a single character was expected that is no letter, digit, quote or line end",
            "Leave it out to recognise it.",
        )
    return Request(chosen, numbers, file_format, delimiter, decimal, _codec(encoding), dates)


def _names(argument: str, names: Any) -> tuple[str, ...]:
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise KindError(
            argument,
            got=f"is {reprlib.repr(names)}",
            expected="a list of names was expected",
            fix="Pass a list, of a single name too.",
        )
    listed = tuple(names)
    distinct = {name for name in listed if isinstance(name, str)}
    if len(distinct) < len(listed):
        raise refused(
            argument, list(listed), "distinct names were expected", "Name each column once."
        )
    return listed


def _separates(delimiter: Any) -> bool:
    single = isinstance(delimiter, str) and len(delimiter) == 1 and delimiter.isascii()
    return (
        single
        and not delimiter.isalnum()
        and (delimiter.isprintable() or delimiter == "\t")
        and delimiter not in '"+-.'
    )


def _codec(encoding: Any) -> str | None:
    """Return the name of an encoding of text that can be decoded piece by piece."""
    if encoding is None:
        return None
    try:
        name = codecs.lookup(encoding).name
        bytes(4).decode(name, "ignore")  # refuses codecs that are not of text
        codecs.getincrementaldecoder(name)
    except (LookupError, TypeError, ValueError):
        raise refused(
            "encoding",
            encoding,
            "an encoding that Python knows was expected",
            "Pass one such as utf-8, utf-16 or cp1252.",
        ) from None
    return "utf-8-sig" if name == "utf-8" else name
