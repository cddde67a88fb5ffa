"""`condens query`: the density of some targets, given others."""

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

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

    from condens.distributions import Mixture
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
    question = _question(fitted, parse_pairs(given or (), "--given"), ask)
    columns = _answers(_density(fitted, question), question.asked, interval)
    with Writer(output, format, force=force, inputs=(model,)) as writer:
        writer.write(table_of(columns))
    if writer.format == "table":
        said = ", ".join(f"{name} = {text}" for name, text in question.given.items()) or "nothing"
        say(f"Given {said}.")


class Question(NamedTuple):
    """What is given, as typed; the targets among it; and the targets that are asked for."""

    given: dict[str, str]
    fixed: dict[str, float]
    asked: list[str]


def _question(model: "MDNRegressor", given: dict[str, str], ask: str | None) -> Question:
    """Return a question; refuse names that the model does not know, or that are given and asked."""
    targets = target_names(model)
    known = [*condition_names(model), *targets]
    for name in given:
        if name not in known:
            raise DimensionError(
                "--given",
                got=f"names {name!r}",
                expected=f"the columns are {listed(known)}",
                fix="Use one of these.",
            )
    fixed = {n: parse_number(f"--given {n}", t) for n, t in given.items() if n in targets}
    free = [name for name in targets if name not in fixed]
    asked = [name.strip() for name in ask.split(",")] if ask else free
    refuse_twice(asked, "--ask")
    for name in asked:
        if name not in free:
            raise DimensionError(
                "--ask",
                got=f"names {name!r}",
                expected=f"{listed(free)} can be asked for",
                fix="Ask for targets that are not given.",
            )
    if not asked:
        raise ArgumentError(
            "--given",
            got="names every target",
            expected="one to ask for must be left",
            fix="Give fewer.",
        )
    return Question(given, fixed, asked)


def _density(model: "MDNRegressor", question: Question) -> "Mixture":
    """Return the joint density of the targets asked for, in the order asked."""
    targets = target_names(model)
    row = _row(model, condition_names(model), question.given)
    # By number: a model that was fitted to arrays has no names.
    fixed = {targets.index(name): value for name, value in question.fixed.items()}
    free = [name for name in targets if name not in question.fixed]
    density = model.predict_dist(row, tail=False)
    density = density.condition(fixed) if fixed else density
    return density.marginal([free.index(name) for name in question.asked])


def _answers(density: "Mixture", asked: list[str], coverage: float) -> dict[str, Any]:
    """Return the columns of the answer, a row for each target."""
    parts = [density.marginal(place) for place in range(len(asked))]
    ends = [part.interval(coverage) for part in parts]
    columns: dict[str, Any] = {
        "target": asked,
        "mean": [part.mean.item() for part in parts],
        "std": [part.stddev.item() for part in parts],
        "median": [part.icdf(0.5).item() for part in parts],
        f"low{coverage:g}": [low.item() for low, _ in ends],
        f"high{coverage:g}": [high.item() for _, high in ends],
    }
    if len(asked) > 1:
        covariance = density.covariance_matrix[0]
        scale = covariance.diagonal().sqrt()
        correlation = covariance / scale / scale[:, None]
        for name, values in zip(asked, correlation.tolist(), strict=True):
            columns[f"correlation with {name}"] = values
    return columns


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
