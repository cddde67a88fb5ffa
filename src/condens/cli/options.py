"""Arguments and options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

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
Delimiter = Annotated[
    str | None, typer.Option(help="Between the cells of a text file; recognised by default.")
]
Decimal = Annotated[
    str | None, typer.Option(help="Decimal mark of a text file, . or , ; recognised by default.")
]
Encoding = Annotated[
    str | None, typer.Option(help="Of a text file, such as latin-1; recognised by default.")
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
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="table, csv, tsv, jsonl, json, parquet or arrow; by default what the output's name "
        "ends with, a table on a terminal, CSV elsewhere.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what is there.")]
Seed = Annotated[int, typer.Option(help="Of everything random.")]
Weights = Annotated[str | None, typer.Option(help="A column with the weights of the rows.")]
Groups = Annotated[
    str | None, typer.Option(help="A column; rows that are alike in it are not independent.")
]
