"""`condens info`: what a model file holds."""

import json as json_
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from condens.cli.console import say, show_table
from condens.cli.models import load_model
from condens.cli.options import ModelFile
from condens.cli.tables import condition_names, target_names

if TYPE_CHECKING:
    from condens.estimator.regressor import MDNRegressor


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
            "dropout": fitted.dropout_,
            "unused columns": ", ".join(map(str, fitted.unused_columns_)) or "none",
            "parameters": sum(p.numel() for p in fitted.network_.parameters()),
        },
        "training": {
            "rows": history.rows,
            "epochs": len(history.epochs),
            "best validation NLL": history.best_nll if math.isfinite(history.best_nll) else None,
            "stopped": history.stopped,
            "seed": fitted.seed_,
            "calibrated": hasattr(fitted, "calibration_"),
            "warnings": "; ".join(history.warnings) or "none",
        },
        "settings": _settings(fitted),
        "versions": versions_of(model),
    }
    for name, value in fitted.notes_.items():  # anything that a user put there
        found.setdefault(name, value if isinstance(value, dict) else {"": value})
    if json:
        say(json_.dumps(found, indent=2, ensure_ascii=False, default=str))
        return
    for title, values in found.items():
        rows = [(name, _text(value)) for name, value in values.items()]
        show_table(title.replace("_", "-"), ("", ""), rows, right=False)


def _settings(model: "MDNRegressor") -> dict[str, Any]:
    """Return the parameters and settings that were chosen, not left as they are by default."""
    from condens.training import Settings

    usual = type(model)().get_params(deep=False)
    given = model.get_params(deep=False)
    found = {n: v for n, v in given.items() if n not in ("settings", "target_transform")}
    found = {n: v for n, v in found.items() if v != usual[n]}
    if model.settings is not None:
        default = Settings().to_dict()
        found |= {n: v for n, v in model.settings.to_dict().items() if v != default[n]}
    return found or {"": "all by default"}


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(each)}" for name, each in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)
