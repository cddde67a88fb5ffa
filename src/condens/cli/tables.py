"""Tables in and out: files and streams to columns, columns to what the user asked for."""

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from csv import writer
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Self

from condens.cli.console import number, say, show_table
from condens.errors import ArgumentError, DimensionError
from condens.files import cannot_hold, writing

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from condens.estimator.regressor import MDNRegressor

ENDINGS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}
FORMATS = ("table", "csv", "tsv", "jsonl", "json", "parquet", "arrow")
BINARY = ("parquet", "arrow")
# Rows that a table on a terminal shows.
MAX_SHOWN_ROWS = 30


class Input(NamedTuple):
    """A table that a user named, and how to read it."""

    source: str
    delimiter: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    dates: str = "refuse"

    def read(self, numeric: Sequence[str] = ()) -> "pa.Table":
        """Return the whole table; the columns in `numeric` must hold numbers."""
        from condens.data.readers import read_table

        return read_table(self.source, numeric=[*dict.fromkeys(numeric)], **self.options())

    def batches(
        self, numeric: Sequence[str] = (), columns: Sequence[str] | None = None
    ) -> Iterator["pa.Table"]:
        """Yield the table in parts; columns that are not in `numeric` are text."""
        from condens.data.readers import read_batches

        names = [*dict.fromkeys(numeric)]
        return read_batches(self.source, numeric=names, columns=columns, **self.options())

    def options(self) -> dict[str, Any]:
        """Return how to read, as the readers take it."""
        return {name: value for name, value in self._asdict().items() if name != "source"}


def take(table: "pa.Table", names: Sequence[str], what: str) -> "pa.Table":
    """Return some columns, or refuse names that the table does not have."""
    check_names(table.column_names, names, what)
    return table.select(list(names))


def check_names(known: Sequence[str], names: Sequence[str], what: str) -> None:
    """Refuse names that a table does not have, and those that were given twice."""
    refuse_twice(names, what)
    for name in names:
        if name not in known:
            raise DimensionError(
                what,
                got=f"is {name!r}",
                expected=f"the columns are {listed(known)}",
                fix="Use one of these.",
            )


def refuse_twice(names: Sequence[str], what: str) -> None:
    """Refuse a name that an option was given twice."""
    for place, name in enumerate(names):
        if name in names[:place]:
            raise DimensionError(
                what,
                got=f"names {name!r} twice",
                expected="each may be named once",
                fix="Leave one out.",
            )


def listed(names: Sequence[str], most: int = 12) -> str:
    """Return names for a message, not too many of them.

    >>> listed(["a", "b", "c"], most=2)
    "'a', 'b' and 1 more"
    """
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def condition_names(model: "MDNRegressor") -> list[str]:
    """Return the columns that a model reads; refuse one that was fitted without names."""
    names = model.encoder_.feature_names
    if names is None:
        raise ArgumentError(
            "the model",
            got="knows its columns by number",
            expected="files have them by name",
            fix="Fit it with a data frame, or by `condens fit`.",
        )
    return list(names)


def numeric_names(model: "MDNRegressor") -> list[str]:
    """Return those of the columns that a model reads as numbers."""
    from condens.data.encoder import Numbers

    features = zip(condition_names(model), model.encoder_.features, strict=True)
    return [name for name, feature in features if isinstance(feature, Numbers)]


def target_names(model: "MDNRegressor") -> list[str]:
    """Return the names of a model's targets; by number where it has none."""
    return list(model.target_names_ or (f"y{number}" for number in range(model.n_targets_)))


class Names(NamedTuple):
    """What errors call the columns of conditions and of targets."""

    conditions: str = "the model's column"
    targets: str = "the target"


class Labelled(NamedTuple):
    """Rows with known targets, and their weights and groups, if there are any."""

    conditions: "pa.Table"
    targets: "pa.Table"
    weights: "NDArray[np.float64] | None" = None
    groups: "NDArray[Any] | None" = None

    @classmethod
    def of(
        cls,
        table: "pa.Table",
        conditions: Sequence[str],
        targets: Sequence[str],
        weights: str | None,
        groups: str | None,
        names: Names = Names(),  # noqa: B008
    ) -> "Labelled":
        """Return columns of a table; refuse names that it lacks, and weights below 0."""
        weight = None if weights is None else take(table, [weights], "--weights")[weights]
        group = None if groups is None else take(table, [groups], "--groups")[groups]
        return cls(
            take(table, conditions, names.conditions),
            take(table, targets, names.targets),
            None if weight is None else _checked_weights(weight.to_numpy()),
            None if group is None else group.to_numpy(),
        )

    @classmethod
    def read(
        cls, source: Input, model: "MDNRegressor", weights: str | None, groups: str | None
    ) -> "Labelled":
        """Read the rows of a file that a model is judged by."""
        targets = target_names(model)
        numeric = [*numeric_names(model), *targets, *filter(None, [weights])]
        return cls.of(source.read(numeric), condition_names(model), targets, weights, groups)

    def take(self, rows: "NDArray[np.int64]") -> "Labelled":
        """Return some of the rows."""
        return Labelled(
            self.conditions.take(rows),
            self.targets.take(rows),
            None if self.weights is None else self.weights[rows],
            None if self.groups is None else self.groups[rows],
        )


def _checked_weights(weights: "NDArray[np.float64]") -> "NDArray[np.float64]":
    import numpy as np

    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        row = int(bad.argmax())
        raise ArgumentError(
            "--weights",
            got=f"has {weights[row]:g} at index [{row}]",
            expected="numbers from 0 were expected",
            fix="Use 0 to leave a row out.",
        )
    return weights


# Out.


def place_for(path: Path, *, force: bool, inputs: Sequence[str | Path] = ()) -> Path:
    """Return where a file goes; refuse to overwrite one, and places that can hold none.

    What the command reads, `inputs`, is not overwritten even by force.
    """
    fault = cannot_hold(path)
    if fault is not None:
        raise ArgumentError(str(path), **fault)
    if path.exists() and any(path.samefile(each) for each in inputs if Path(each).exists()):
        raise ArgumentError(
            str(path),
            got="is a file that this command reads",
            expected="that is never overwritten",
            fix="Pass another name.",
        )
    if path.exists() and not force:
        raise ArgumentError(
            str(path),
            got="exists",
            expected="nothing is overwritten unasked",
            fix="Pass --force to overwrite it, or another name.",
        )
    return path


class Writer:
    """Writes a table in parts, in the format asked for, to a file or to standard output.

    Args:
        path: of the file; None for standard output.
        format: see `options.Format`.
        force: overwrite a file.
        inputs: files that the command reads.
        metadata: of the schema, in the formats that have one.
        before_move: is called with the size and time of the written file, before it takes its
            place.
    """

    def __init__(
        self,
        path: Path | None,
        format: str | None,  # noqa: A002
        *,
        force: bool = False,
        inputs: Sequence[str | Path] = (),
        metadata: dict[bytes, bytes] | None = None,
        before_move: Callable[[os.stat_result], None] | None = None,
    ) -> None:
        if format is not None and format not in FORMATS:
            raise ArgumentError(
                "--format",
                got=f"is {format!r}",
                expected=f"{', '.join(FORMATS)} were expected",
                fix="Use one of these.",
            )
        terminal = path is None and sys.stdout.isatty()
        suffix = "" if path is None else path.suffix.lower()
        if suffix and suffix not in ENDINGS and format is None:
            raise ArgumentError(
                str(path),
                got=f"ends with {suffix}",
                expected=f"{', '.join(ENDINGS)} were expected",
                fix="Pass another name, or --format.",
            )
        if path is not None and format == "table":
            raise ArgumentError(
                "--format",
                got="is table, for a file",
                expected="tables are drawn on a terminal",
                fix="Pass --format csv, or leave -o out.",
            )
        ending = ENDINGS.get(suffix)
        self.format = format or ending or ("table" if terminal else "csv")
        if terminal and self.format in BINARY:
            raise ArgumentError(
                "--format",
                got=f"is {self.format}, to a terminal",
                expected="it holds bytes that are no text",
                fix="Pass -o with a name.",
            )
        self.path = None if path is None else place_for(path, force=force, inputs=inputs)
        self.count = 0
        self._metadata, self._before_move = metadata, before_move
        self._stack, self._file = ExitStack(), sys.stdout.buffer
        self._inner: Any = None
        self._shown: list[pa.Table] = []

    def __enter__(self) -> Self:
        if self.path is not None:
            self._file = self._stack.enter_context(writing(self.path))
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is not None:
            if self._inner is not None and self.format in BINARY:
                with suppress(Exception):  # the first error is the one to tell
                    self._inner.close()
            self._stack.__exit__(*error)
            return
        with self._stack:
            self._end()
            if self._before_move is not None:
                self._before_move(os.fstat(self._file.fileno()))

    def write(self, part: "pa.Table") -> None:
        """Write some rows; every part has the same columns."""
        if self.format == "table":
            if self.count <= MAX_SHOWN_ROWS:
                self._shown.append(part)
        elif self.format in ("json", "jsonl"):
            self._write_json(part)
        else:
            if self.format in BINARY:
                part = part.replace_schema_metadata(self._metadata)
            if self._inner is None:
                self._inner = _opened(self.format, self._file, part.schema)
            self._inner.write_table(part)
        self.count += len(part)

    def _write_json(self, part: "pa.Table") -> None:
        before, between = (b"", b"\n") if self.format == "jsonl" else (b"[\n", b",\n")
        for place, row in enumerate(part.to_pylist()):
            first = not self.count and not place
            text = json.dumps({k: _plain(v) for k, v in row.items()}, ensure_ascii=False)
            self._file.write((before if first else between) + text.encode())

    def _end(self) -> None:
        if self.format == "table":
            self._show()
        elif self.format == "json":
            self._file.write(b"\n]\n" if self.count else b"[]\n")
        elif self.format == "jsonl" and self.count:
            self._file.write(b"\n")
        elif self._inner is not None:
            self._inner.close()
        self._file.flush()

    def _show(self) -> None:
        import pyarrow as pa

        if not self._shown:
            say("No rows.")
            return
        whole = pa.concat_tables(self._shown)
        rows = whole.slice(0, MAX_SHOWN_ROWS).to_pylist()
        show_table(None, whole.column_names, ([_cell(v) for v in row.values()] for row in rows))
        if self.count > len(rows):
            say(f"… and {self.count - len(rows)} rows more: -o out.csv writes them all.")


def _opened(kind: str, file: BinaryIO, schema: "pa.Schema") -> Any:
    """Return pyarrow's writer of a format."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    if kind == "parquet":
        return parquet.ParquetWriter(file, schema)
    if kind == "arrow":
        return pa.ipc.new_file(file, schema)
    delimiter = "\t" if kind == "tsv" else ","
    # pyarrow would put every name into quotes.
    line = io.StringIO()
    writer(line, delimiter=delimiter, lineterminator="\n").writerow(schema.names)
    file.write(line.getvalue().encode())
    options = csv.WriteOptions(include_header=False, delimiter=delimiter)
    return csv.CSVWriter(file, schema, write_options=options)


def _plain(value: Any) -> Any:
    """Return a value that JSON has: numbers that are not finite are null there."""
    return None if isinstance(value, float) and value - value != 0 else value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return number(value) if isinstance(value, float) else str(value)


def table_of(columns: dict[str, Any]) -> "pa.Table":
    """Return a table of named arrays, tensors or pyarrow columns."""
    import pyarrow as pa

    return pa.table({name: _array(values) for name, values in columns.items()})


def _array(values: Any) -> Any:
    import pyarrow as pa

    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    detached = values.detach().numpy() if hasattr(values, "detach") else values
    return pa.array(detached)


def parse_pairs(given: Iterable[str], option: str) -> dict[str, str]:
    """Return options of the form name=value.

    >>> parse_pairs(["price=250000"], "--given")
    {'price': '250000'}
    """
    pairs: dict[str, str] = {}
    for each in given:
        name, sign, value = each.rpartition("=")
        if not sign or not name or not value:
            raise ArgumentError(
                option,
                got=f"is {each!r}",
                expected="name=value was expected",
                fix=f"Write {option} price=250000, for instance.",
            )
        refuse_twice([*pairs, name.strip()], option)
        pairs[name.strip()] = value.strip()
    return pairs


def parse_number(name: str, text: str) -> float:
    """Return a number that a user typed."""
    try:
        return float(text)
    except ValueError:
        raise ArgumentError(
            name,
            got=f"is {text!r}",
            expected="a number was expected",
            fix="Write it with a decimal point.",
        ) from None
