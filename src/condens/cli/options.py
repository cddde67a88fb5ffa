"""Arguments and options that several commands have."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

MAX_SEED = 2**32 - 1


def probabilities(value: float | Sequence[float] | None) -> float | Sequence[float] | None:
    """Refuse numbers that are no probability of an interval."""
    for each in [value] if isinstance(value, float | int) else value or ():
        if not 0 < each < 1:
            raise typer.BadParameter(f"{each:g} is not between 0 and 1. For 90 %, pass 0.9.")
    return value


ModelFile = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A model file, as `condens fit` writes it.")
]
Source = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A table: CSV, TSV, Parquet, Arrow or JSON lines, or - for standard input.",
    ),
]
Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="DATA…",
        help="A table: CSV, TSV, Parquet, Arrow or JSON lines, or - for standard input. Or many: "
        "several files, a directory, or a pattern in quotes such as 'shards/*.parquet'; then -o "
        "names a directory.",
    ),
]
Delimiter = Annotated[
    str | None, typer.Option(help="Between the cells of a text file; recognised by default.")
]
Decimal = Annotated[
    str | None, typer.Option(help="Decimal mark of a text file, . or , ; recognised by default.")
]
Encoding = Annotated[
    str | None,
    typer.Option(help="Character encoding of a text file, such as latin-1; recognised by default."),
]
Dates = Annotated[
    str, typer.Option(help="What to do with dates: refuse, or read them as seconds since 1970.")
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Write there, not to standard output: .csv, .tsv, .jsonl, .json, .parquet, .arrow.",
    ),
]
OutputOrDirectory = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        help="Write there, not to standard output: .csv, .tsv, .jsonl, .json, .parquet, .arrow; or "
        "a directory, such as out/, with a file for every table, in the table's own format.",
    ),
]
Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Only list what the directory of -o lacks of this command, and exit with 1 if "
        "anything is missing.",
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="table, csv, tsv, jsonl, json, parquet or arrow; by default what the output's name "
        "ends with, a table on a terminal, CSV elsewhere.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what is there.")]
Seed = Annotated[
    int,
    typer.Option(min=0, max=MAX_SEED, help="The same seed gives the same random numbers."),
]
Weights = Annotated[
    str | None, typer.Option(help="A column with the weights of the rows, 0 or more.")
]
Groups = Annotated[
    str | None,
    typer.Option(
        help="A column, such as a patient's id: rows with the same value stay together wherever "
        "rows are divided."
    ),
]
Targets = Annotated[
    list[str], typer.Option("--target", "-t", help="A column to predict; repeat for several.")
]
Conditions = Annotated[
    list[str] | None,
    typer.Option(
        "--condition",
        "-c",
        help="A column to predict from; repeat for several; by default all others.",
    ),
]
Ignored = Annotated[list[str] | None, typer.Option(help="A column to leave out.")]
ModelOutput = Annotated[Path, typer.Option("--output", "-o", help="Where the model goes.")]
