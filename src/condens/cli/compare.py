"""`condens compare`: which of several models is better, and whether that is more than chance."""

from pathlib import Path
from typing import Annotated

import typer

from condens.cli.console import say, show_table
from condens.cli.models import load_model
from condens.cli.options import Dates, Decimal, Delimiter, Encoding, Groups, Seed, Weights
from condens.cli.tables import Input, Labelled, condition_names, target_names
from condens.errors import ArgumentError


def compare(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL…", help="Model files.")],
    data: Annotated[str, typer.Option("--data", "-d", help="A table with known targets.")],
    json: Annotated[bool, typer.Option("--json", help="All figures as JSON.")] = False,
    weights: Weights = None,
    groups: Groups = None,
    seed: Seed = 0,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    dates: Dates = "refuse",
) -> None:
    """Compare models by the same rows, and tell which differences are more than chance.

    Example: condens compare model.condens other.condens --data new.csv
    """
    from condens.evaluation import compare as judge

    loaded = {str(path): load_model(path) for path in models}
    first, *others = loaded.values()
    names, targets = condition_names(first), target_names(first)
    for path, model in loaded.items():
        theirs = {*condition_names(model)}, target_names(model)
        if theirs != ({*names}, targets):
            raise ArgumentError(
                path,
                got="has other columns or targets than the first model",
                expected="models of the same ones can be compared",
                fix="Fit them with the same --target and --condition.",
            )
    source = Input(data, delimiter, decimal, encoding, dates)
    rows = Labelled.read(source, first, weights, groups)
    found = judge(
        dict(loaded),
        rows.conditions,
        rows.targets,
        sample_weight=rows.weights,
        groups=rows.groups,
        seed=seed,
    )
    if json:
        say(found.to_json(rows=False))
        return
    say(found.verdict if others else "One model has nothing to be compared with.")
    for section in found.sections():
        say()
        show_table(section.title, section.heads, section.rows)
