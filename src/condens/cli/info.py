"""`condens info`: what a model file holds."""

import json as json_
from typing import Annotated, Any

import typer

from condens.cli.console import say, show_table
from condens.cli.models import load_model
from condens.cli.options import ModelFile
from condens.cli.tables import condition_names, target_names


def info(
    model: ModelFile,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show what a model file holds: columns, data, versions, seed, settings and scores.

    Example: condens info model.condens
    """
    from condens.data.encoder import Numbers
    from condens.persistence.container import versions_of

    fitted = load_model(model)
    features = zip(condition_names(fitted), fitted.encoder_.features, strict=True)
    conditions = {
        name: "number" if isinstance(feature, Numbers) else f"{len(feature.values)} categories"
        for name, feature in features
    }
    pairs = zip(target_names(fitted), fitted.transforms_, strict=True)
    history = fitted.history_
    found: dict[str, Any] = {
        "conditions": conditions,
        "targets": {name: str(transform) for name, transform in pairs},
        "network": {
            "members": fitted.n_members,
            "components": fitted.n_components_,
            "covariance": fitted.covariance,
            "bins": fitted.n_bins_,
            "linear part": fitted.shortcut_,
            "parameters": sum(p.numel() for p in fitted.network_.parameters()),
        },
        "training": {
            "rows": history.rows,
            "epochs": len(history.epochs),
            "best validation NLL": history.best_nll,
            "stopped": history.stopped,
            "seed": fitted.seed_,
            "calibrated": hasattr(fitted, "calibration_"),
            "warnings": "; ".join(history.warnings) or "none",
        },
        "versions": versions_of(model),
        **fitted.notes_,
    }
    if json:
        say(json_.dumps(found, indent=2, ensure_ascii=False, default=str))
        return
    for title, values in found.items():
        rows = [(name, _text(value)) for name, value in values.items()]
        show_table(title.replace("_", "-"), ("", ""), rows, right=False)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(each)}" for name, each in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)
