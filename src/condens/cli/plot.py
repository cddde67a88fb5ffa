"""`condens plot`: pictures of a model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from condens.cli.console import note
from condens.cli.models import load_model
from condens.cli.options import Dates, Decimal, Delimiter, Encoding, Force, ModelFile, Source
from condens.cli.tables import (
    Input,
    condition_names,
    listed,
    numeric_names,
    place_for,
    take,
    target_names,
)
from condens.errors import ArgumentError

KINDS = ("density", "calibration", "predictions", "effect", "history")


def plot(
    model: ModelFile,
    data: Source,
    output: Annotated[Path, typer.Option("--output", "-o", help="A .png, .svg or .pdf file.")],
    kind: Annotated[str, typer.Option(help=", ".join(KINDS) + ".")] = "density",
    row: Annotated[
        int, typer.Option(min=0, help="Whose density is drawn; the first row is 0.")
    ] = 0,
    column: Annotated[str | None, typer.Option(help="Along which an effect is drawn.")] = None,
    target: Annotated[str | None, typer.Option(help="Whose effect or predictions.")] = None,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    dates: Dates = "refuse",
    force: Force = False,
) -> None:
    """Draw the joint density of a row, the calibration, predictions, an effect or the training.

    Targets in the table, if it has them, are drawn too; calibration and predictions need them.

    Example: condens plot model.condens new.csv --kind density --row 3 -o density.png
    """
    if kind not in KINDS:
        raise ArgumentError(
            "--kind",
            got=f"is {kind!r}",
            expected=f"{', '.join(KINDS)} can be drawn",
            fix="Use one.",
        )
    place = place_for(output, force=force, inputs=(model, data))
    from condens.files import writing

    fitted = load_model(model)
    names, targets = condition_names(fitted), target_names(fitted)
    table = Input(data, delimiter, decimal, encoding, dates).read(numeric_names(fitted))
    X = take(table, names, "the model's column")  # noqa: N806
    known = all(name in table.column_names for name in targets)
    y: Any = take(table, targets, "the target") if known or kind in KINDS[1:3] else None
    if kind == "density":
        if not 0 <= row < len(X):
            raise ArgumentError(
                "--row",
                got=f"is {row}",
                expected=f"the table has {len(X)} rows",
                fix="Pass a number from 0.",
            )
        drawn = fitted.plot_density(X.slice(row, 1), None if y is None else y.slice(row, 1))
    elif kind == "calibration":
        drawn = fitted.plot_calibration(X, y)
    elif kind == "predictions":
        drawn = fitted.plot_predictions(X, y, target)
    elif kind == "history":
        drawn = fitted.plot_history()
    else:
        if column is None or column not in names:
            raise ArgumentError(
                "--column",
                got=f"is {column!r}",
                expected=f"the conditions are {listed(names)}",
                fix="Name one of these.",
            )
        drawn = fitted.plot_effect(X, column, target, y=y)
    from matplotlib.figure import Figure

    figure = drawn if isinstance(drawn, Figure) else drawn.figure
    assert isinstance(figure, Figure)  # no part of a larger one
    ending = place.suffix[1:].lower() or "png"
    if ending not in figure.canvas.get_supported_filetypes():
        raise ArgumentError(
            str(place),
            got=f"ends with .{ending}",
            expected="a picture was expected",
            fix="Call it .png, .svg or .pdf.",
        )
    with writing(place) as file:
        figure.savefig(file, format=ending, dpi=150, bbox_inches="tight")
    note(f"The picture is {place}.")
