"""`condens predict`: means, quantiles, intervals and log densities of rows."""

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
    Sources,
    probabilities,
)
from condens.cli.scoring import Scoring
from condens.cli.tables import Input, condition_names, numeric_names, take, target_names
from condens.errors import ArgumentError

if TYPE_CHECKING:
    import pyarrow as pa

    from condens.estimator.regressor import MDNRegressor

# Rows that are predicted at a time.
ROWS_PER_BLOCK = 65_536


def predict(
    model: ModelFile,
    data: Sources,
    quantile: Annotated[
        list[float] | None,
        typer.Option("--quantile", "-q", min=0, max=1, help="A level, such as 0.05; repeatable."),
    ] = None,
    interval: Annotated[
        list[float] | None,
        typer.Option(
            "--interval",
            "-i",
            callback=probabilities,
            help="The probability of a central interval, such as 0.9; repeatable.",
        ),
    ] = None,
    conformal: Annotated[
        list[float] | None,
        typer.Option(
            callback=probabilities,
            help="A probability, such as 0.9: intervals and a joint region that hold this share of "
            "new targets even where the model is wrong. Needs `condens fit --calibrate`.",
        ),
    ] = None,
    log_density: Annotated[
        bool,
        typer.Option(
            "--log-density", help="The log density at the targets, which the table must have too."
        ),
    ] = False,
    keep: Annotated[
        list[str] | None, typer.Option(help="A column of the table to carry over, such as an id.")
    ] = None,
    output: OutputOrDirectory = None,
    format: Format = None,  # noqa: A002
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    dates: Dates = "refuse",
    force: Force = False,
    check: Check = False,
) -> None:
    """Predict the targets of every row: mean, standard deviation, and what else is asked for.

    Tables larger than memory are read, predicted and written in parts. Of many files, what is
    finished is skipped, and the processes of torchrun share the rest.

    Example: condens predict model.condens new.csv --interval 0.9 -o predictions.csv

    Example: condens predict model.condens 'shards/*.csv' -o out/
    """
    fitted = load_model(model)
    if conformal and not hasattr(fitted, "calibration_"):
        raise ArgumentError(
            "--conformal",
            got="was asked of a model without calibration",
            expected="rows that were kept for it were expected",
            fix="Fit it again with --calibrate 0.1.",
        )
    targets = target_names(fitted) if log_density else []
    names, kept = condition_names(fitted), keep or []

    def answer(X: "pa.Table", block: "pa.Table", _: int) -> dict[str, Any]:  # noqa: N803
        y = take(block, targets, "the target")
        columns: dict[str, Any] = {name: block[name] for name in kept}
        columns |= _moments(fitted, X)
        columns |= _quantiles(fitted, X, quantile or [])
        columns |= _intervals(fitted, X, interval or [])
        columns |= _conformal(fitted, X, y, conformal or [])
        if log_density:
            columns["log_density"] = fitted.score_samples(X, y)
        return columns

    scoring = Scoring(
        command="predict",
        model=model,
        fitted=fitted,
        reading=Input("", delimiter, decimal, encoding, dates),
        columns=[*dict.fromkeys([*names, *targets, *kept])],
        numeric=[*numeric_names(fitted), *targets],
        rows_per_block=ROWS_PER_BLOCK,
        options={
            "quantile": quantile,
            "interval": interval,
            "conformal": conformal,
            "log_density": log_density,
            "keep": keep,
        },
        answer=lambda _: answer,
    )
    scoring.run(data, output, format, force=force, check=check)


def _moments(model: "MDNRegressor", X: "pa.Table") -> dict[str, Any]:  # noqa: N803
    mean, deviation = (part.reshape(len(X), -1) for part in model.predict(X, return_std=True))
    found = {}
    for place, name in enumerate(target_names(model)):
        found[f"{name}_mean"], found[f"{name}_std"] = mean[:, place], deviation[:, place]
    return found


def _quantiles(model: "MDNRegressor", X: "pa.Table", levels: list[float]) -> dict[str, Any]:  # noqa: N803
    if not levels:
        return {}
    found = model.predict_quantiles(X, levels).reshape(len(X), -1, len(levels))
    return {
        f"{name}_q{level:g}": found[:, place, number]
        for place, name in enumerate(target_names(model))
        for number, level in enumerate(levels)
    }


def _intervals(model: "MDNRegressor", X: "pa.Table", levels: list[float]) -> dict[str, Any]:  # noqa: N803
    found = {}
    for level in levels:
        ends = model.predict_interval(X, level).reshape(len(X), -1, 2)
        for place, name in enumerate(target_names(model)):
            found[f"{name}_low{level:g}"] = ends[:, place, 0]
            found[f"{name}_high{level:g}"] = ends[:, place, 1]
    return found


def _conformal(
    model: "MDNRegressor",
    X: "pa.Table",  # noqa: N803
    y: "pa.Table",
    levels: list[float],
) -> dict[str, Any]:
    """Return calibrated intervals, and the log density from which on a point is in the region."""
    found: dict[str, Any] = {}
    for level in levels:
        region = model.predict_region(X, level)
        for place, name in enumerate(target_names(model)):
            found[f"{name}_conformal_low{level:g}"] = region.lower[:, place]
            found[f"{name}_conformal_high{level:g}"] = region.upper[:, place]
        found[f"region_log_density{level:g}"] = region.log_threshold
        if y.num_columns:
            found[f"in_region{level:g}"] = model.score_samples(X, y) >= region.log_threshold.numpy()
    return found
