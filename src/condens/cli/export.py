"""`condens export`: a model for other programs."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from condens.cli.console import note
from condens.cli.models import load_model
from condens.cli.options import Force, ModelFile
from condens.cli.tables import place_for


def export(
    model: ModelFile,
    onnx: Annotated[Path, typer.Option(help="Where the ONNX file goes.")],
    force: Force = False,
) -> None:
    """Export a model to ONNX: from the columns to the mixture of the targets, in their own units.

    Example: condens export model.condens --onnx model.onnx
    """
    place = place_for(onnx, force=force, inputs=(model,))
    from condens.integrations import onnx as integration

    # torch logs which of its own parts are missing.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    integration.export(load_model(model), place)
    note(f"The graph is {place}.")
