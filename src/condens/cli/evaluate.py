"""`condens evaluate`: how good a model is on rows that it was not fitted to."""

from pathlib import Path
from typing import Annotated

import typer

from condens.cli.console import note, say, show_table
from condens.cli.models import load_model
from condens.cli.options import (
    Dates,
    Decimal,
    Delimiter,
    Encoding,
    Force,
    Groups,
    ModelFile,
    Seed,
    Source,
    Weights,
)
from condens.cli.tables import Input, Labelled, place_for


def evaluate(
    model: ModelFile,
    data: Source,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with all figures and pictures.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write all figures; - for stdout.")] = None,
    weights: Weights = None,
    groups: Groups = None,
    seed: Seed = 0,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    dates: Dates = "refuse",
    force: Force = False,
) -> None:
    """Judge a model by rows with known targets, which it should not have been fitted to.

    Example: condens evaluate model.condens new.csv --html report.html
    """
    from condens.evaluation import evaluate as judge

    page = None if html is None else place_for(html, force=force, inputs=(model, data))
    figures = (
        None
        if json is None or str(json) == "-"
        else place_for(json, force=force, inputs=(model, data))
    )
    fitted = load_model(model)
    source = Input(data, delimiter, decimal, encoding, dates)
    rows = Labelled.read(source, fitted, weights, groups)
    report = judge(
        fitted,
        rows.conditions,
        rows.targets,
        sample_weight=rows.weights,
        groups=rows.groups,
        seed=seed,
    )
    if page is not None:
        report.to_html(page)
        note(f"The page is {page}.")
    if figures is not None:
        report.to_json(figures, rows=False)
        note(f"The figures are in {figures}.")
    if str(json) == "-":
        say(report.to_json(rows=False))
        return
    say(report.verdict)
    for section in report.sections():
        say()
        show_table(section.title, section.heads, section.rows)
