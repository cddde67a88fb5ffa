"""`condens sample`: draws from the predicted densities."""

from typing import Annotated, Any

import typer

from condens.cli.models import load_model
from condens.cli.options import (
    Dates,
    Decimal,
    Delimiter,
    Encoding,
    Force,
    Format,
    ModelFile,
    Output,
    Seed,
    Source,
)
from condens.cli.tables import (
    Input,
    Writer,
    condition_names,
    numeric_names,
    table_of,
    take,
    target_names,
)

# Numbers that are drawn at a time.
NUMBERS_AT_A_TIME = 4_000_000


def sample(
    model: ModelFile,
    data: Source,
    number: Annotated[
        int, typer.Option("-n", "--number", min=1, help="Draws for every row.")
    ] = 100,
    seed: Seed = 0,
    output: Output = None,
    format: Format = None,  # noqa: A002
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    dates: Dates = "refuse",
    force: Force = False,
) -> None:
    """Draw targets for every row of a table: columns row, draw and the targets.

    Example: condens sample model.condens new.csv -n 1000 -o draws.parquet
    """
    import numpy as np

    fitted = load_model(model)
    names, targets = condition_names(fitted), target_names(fitted)
    source = Input(data, delimiter, decimal, encoding, dates)
    some = max(1, NUMBERS_AT_A_TIME // (number * len(targets)))
    with Writer(output, format, force=force, inputs=(model, data)) as writer:
        row = 0
        for part in source.batches(numeric_names(fitted), names):
            for first in range(0, len(part), some):
                X = take(part, names, "the model's column").slice(first, some)  # noqa: N806
                # A seed of its own for every part, the same in any run.
                drawn = fitted.sample(X, number, random_state=(seed + row) % 2**32)
                drawn = drawn.reshape(number, len(X), -1)
                columns: dict[str, Any] = {
                    "row": np.repeat(np.arange(row, row + len(X)), number),
                    "draw": np.tile(np.arange(number), len(X)),
                }
                for place, name in enumerate(targets):
                    columns[name] = drawn[:, :, place].T.ravel()
                writer.write(table_of(columns))
                row += len(X)
