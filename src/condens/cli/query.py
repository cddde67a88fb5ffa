"""`condens query`: the density of some targets, given others."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from condens.cli.console import say
from condens.cli.models import load_model
from condens.cli.options import Force, Format, ModelFile, Output, probabilities
from condens.cli.tables import (
    Writer,
    condition_names,
    listed,
    parse_number,
    parse_pairs,
    refuse_twice,
    table_of,
    target_names,
)
from condens.errors import ArgumentError, DimensionError

if TYPE_CHECKING:
    import pyarrow as pa

    from condens.estimator.regressor import MDNRegressor


def query(
    model: ModelFile,
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--given",
            "-g",
            help="What is known, as price=250000: conditions, and any of the targets.",
        ),
    ] = None,
    ask: Annotated[
        str | None,
        typer.Option("--ask", "-a", help="Targets, as lat,lon; by default all that are not given."),
    ] = None,
    interval: Annotated[
        float, typer.Option(callback=probabilities, help="The probability of the intervals.")
    ] = 0.9,
    output: Output = None,
    format: Format = None,  # noqa: A002
    force: Force = False,
) -> None:
    """Ask for the density of some targets given a condition and, if known, other targets.

    A condition that is not given counts as missing, if the table that was fitted had gaps there.

    Example: condens query model.condens --given rooms=3 --given price=250000 --ask lat,lon
    """
    fitted = load_model(model)
    pairs = parse_pairs(given or (), "--given")
    conditions, targets = condition_names(fitted), target_names(fitted)
    known = [*conditions, *targets]
    for name in pairs:
        if name not in known:
            raise DimensionError(
                "--given",
                got=f"names {name!r}",
                expected=f"the columns are {listed(known)}",
                fix="Use one of these.",
            )
    fixed = {n: parse_number(f"--given {n}", t) for n, t in pairs.items() if n in targets}
    asked = [n.strip() for n in ask.split(",")] if ask else [n for n in targets if n not in fixed]
    refuse_twice(asked, "--ask")
    for name in asked:
        if name not in targets or name in fixed:
            raise DimensionError(
                "--ask",
                got=f"names {name!r}",
                expected=f"{listed([n for n in targets if n not in fixed])} can be asked for",
                fix="Ask for targets that are not given.",
            )
    if not asked:
        raise ArgumentError(
            "--given",
            got="names every target",
            expected="one to ask for must be left",
            fix="Give fewer.",
        )
    row = _row(fitted, conditions, pairs)
    density = fitted.predict_dist(row, tail=False)
    names = list(density.names) if density.names is not None else None
    places = {name: (name if names else targets.index(name)) for name in targets}
    if fixed:
        density = density.condition({places[name]: value for name, value in fixed.items()})
        if names is None:  # numbers of what is left
            left = [name for name in targets if name not in fixed]
            places = {name: left.index(name) for name in left}
    columns: dict[str, Any] = {"target": asked}
    parts = [density.marginal(places[name]) for name in asked]
    columns["mean"] = [float(part.mean.flatten()[0]) for part in parts]
    columns["std"] = [float(part.stddev.flatten()[0]) for part in parts]
    columns["median"] = [float(part.icdf(0.5).flatten()[0]) for part in parts]
    ends = [part.interval(interval) for part in parts]
    columns[f"low{interval:g}"] = [float(low.flatten()[0]) for low, _ in ends]
    columns[f"high{interval:g}"] = [float(high.flatten()[0]) for _, high in ends]
    joint = density.marginal([places[name] for name in asked])
    if len(asked) > 1:
        covariance = joint.covariance_matrix[0]
        scale = covariance.diagonal().sqrt()
        correlation = covariance / scale / scale[:, None]
        for name, values in zip(asked, correlation.tolist(), strict=True):
            columns[f"correlation with {name}"] = values
    with Writer(output, format, force=force, inputs=(model,)) as writer:
        writer.write(table_of(columns))
    if writer.format == "table":
        said = ", ".join(f"{name} = {text}" for name, text in pairs.items()) or "nothing"
        say(f"Given {said}.")


def _row(model: "MDNRegressor", names: list[str], pairs: dict[str, str]) -> "pa.Table":
    """Return one row of conditions; what is not given is missing."""
    import pyarrow as pa

    from condens.data.encoder import Numbers

    columns = {}
    for name, feature in zip(names, model.encoder_.features, strict=True):
        text = pairs.get(name)
        if isinstance(feature, Numbers):
            if text is None and feature.fill is None:
                raise ArgumentError(
                    "--given",
                    got=f"lacks the condition {name!r}",
                    expected="it was never missing in the table that was fitted",
                    fix=f"Add --given {name}=…",
                )
            value = None if text is None else parse_number(f"--given {name}", text)
            columns[name] = pa.array([value], pa.float64())
        else:
            columns[name] = pa.array([text], pa.string())
    return pa.table(columns)
