"""`condens sample`: draws from the predicted densities."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from condens.cli.models import load_model
from condens.cli.options import (
    Check,
    Dates,
    Decimal,
    Delimiter,
    Encoding,
    Force,
    Format,
    ModelFile,
    OutputOrDirectory,
    Seed,
    Sources,
)
from condens.cli.scoring import Answer, Scoring
from condens.cli.tables import Input, condition_names, numeric_names, target_names

if TYPE_CHECKING:
    import pyarrow as pa

    from condens.estimator.regressor import MDNRegressor

# Numbers and rows that are drawn at a time. The draws of a seed depend on both.
NUMBERS_PER_BLOCK, MAX_ROWS_PER_BLOCK = 4_000_000, 8192


def sample(
    model: ModelFile,
    data: Sources,
    number: Annotated[
        int, typer.Option("-n", "--number", min=1, help="Draws for every row.")
    ] = 100,
    seed: Seed = 0,
    output: OutputOrDirectory = None,
    format: Format = None,  # noqa: A002
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    dates: Dates = "refuse",
    force: Force = False,
    check: Check = False,
) -> None:
    """Draw targets for every row of a table: columns row, draw and the targets.

    The same seed gives the same draws, whatever the format of the table. Of many files, each has
    draws of its own by its name; what is finished is skipped, and the processes of torchrun share
    the rest.

    Example: condens sample model.condens new.csv -n 1000 -o draws.parquet

    Example: condens sample model.condens 'shards/*.csv' -o draws/ --format parquet
    """
    fitted = load_model(model)
    rows = max(1, NUMBERS_PER_BLOCK // (number * fitted.n_targets_))
    scoring = Scoring(
        command="sample",
        model=model,
        fitted=fitted,
        reading=Input("", delimiter, decimal, encoding, dates),
        columns=condition_names(fitted),
        numeric=numeric_names(fitted),
        rows_per_block=min(rows, MAX_ROWS_PER_BLOCK),
        options={"number": number, "seed": seed},
        answer=lambda name: _drawing(fitted, number, seed, name),
    )
    scoring.run(data, output, format, force=force, check=check)


def _drawing(model: "MDNRegressor", number: int, seed: int, name: str) -> Answer:
    """Return what draws for the blocks of one table, one after the other.

    From one stream of random numbers for the table: a seed for every block could meet another.
    """
    import numpy as np

    from condens.nn.randomness import seeded_generator

    generator = seeded_generator(seed, "draws", name)

    def answer(X: "pa.Table", _: "pa.Table", first: int) -> dict[str, Any]:  # noqa: N803
        drawn = model.predict_dist(X, tail=False).sample((number,), generator=generator)
        columns: dict[str, Any] = {
            "row": np.repeat(np.arange(first, first + len(X)), number),
            "draw": np.tile(np.arange(number), len(X)),
        }
        for place, target in enumerate(target_names(model)):
            columns[target] = drawn[:, :, place].T.flatten()
        return columns

    return answer
