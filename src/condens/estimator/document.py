"""What a model file holds of an `MDNRegressor`, as JSON values and tensors.

A model that is read must describe itself as its file does; otherwise the file is refused.
"""

import copy
import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from condens.data import TableEncoder
from condens.errors import ArgumentError, ModelFileError
from condens.estimator.construction import check_parameter
from condens.estimator.inputs import Inputs
from condens.estimator.summary import Summary
from condens.evaluation.baselines import Baselines
from condens.evaluation.conformal import Calibration
from condens.evaluation.novelty import Novelty
from condens.nn import DensityNetwork, TableMLP
from condens.persistence import network_from_dict, network_to_dict
from condens.persistence.header import canonical, reason, short
from condens.scalars import as_whole
from condens.training import History, Settings
from condens.transforms import Real

Document = dict[str, Any]
Backbone = Callable[[int], nn.Module]

# Parameters that JSON can hold as they are. Not `directory`: a file that a stranger made would
# say where `fit` writes.
PLAIN_PARAMETERS = (
    "batch_size",
    "calibration_fraction",
    "covariance",
    "depth",
    "device",
    "dropout",
    "epochs",
    "floor",
    "learning_rate",
    "n_components",
    "n_bins",
    "shortcut",
    "select_columns",
    "n_members",
    "random_state",
    "rank",
    "store_summary",
    "validation_fraction",
    "verbose",
    "warm_start",
    "width",
)
MAX_DOUBLE = torch.finfo(torch.float64).max


class Fitted(NamedTuple):
    """What a fit has learned.

    Args:
        inputs: the columns of X and y.
        network: in double precision on the CPU.
        history: of its training.
        baselines: simple densities fitted to the same rows.
        novelty: what conditions are usual among them.
        seed: that the rows held out were drawn with.
        summary: of the columns of these rows, if it is to be stored.
        calibration: scores of rows that were not trained on, if there were any.
        notes: JSON values of the user's.
    """

    inputs: Inputs
    network: DensityNetwork
    history: History
    baselines: Baselines
    novelty: Novelty
    seed: int
    summary: Summary | None = None
    calibration: Calibration | None = None
    notes: Mapping[str, Any] = MappingProxyType({})


def to_dict(parameters: Mapping[str, Any], fitted: Fitted) -> tuple[Document, dict[str, Tensor]]:
    """Return what JSON can hold of a model's parameters and its fit, and the tensors."""
    network, settings = _shortest(fitted.network), parameters["settings"]
    document = {
        "backbone": parameters["backbone"] is not None,
        "baselines": {"n_rows": fitted.baselines.n_rows},
        "encoder": fitted.inputs.encoder.to_dict(),
        "flat": fitted.inputs.flat,
        "history": fitted.history.to_dict(),
        "network": network_to_dict(network),
        "notes": {**fitted.notes},
        "novelty": {"n_rows": fitted.novelty.n_rows},
        "parameters": {name: _plain(parameters[name]) for name in PLAIN_PARAMETERS},
        "seed": fitted.seed,
        "settings": None if settings is None else Settings.given(settings).to_dict(),
        "summary": None if fitted.summary is None else fitted.summary.to_dict(),
    }
    tensors = network.state_dict(prefix="network.")
    for kind, part in (("baselines", fitted.baselines), ("novelty", fitted.novelty)):
        tensors |= {f"{kind}.{name}": tensor for name, tensor in part.tensors().items()}
    if fitted.calibration is not None:
        scores = (fitted.calibration.ranks, *fitted.calibration.levels)
        names = _names("scores", network.dimensions)
        # A file holds finite numbers only.
        tensors |= {n: s.clamp(max=MAX_DOUBLE) for n, s in zip(names, scores, strict=True)}
        if fitted.calibration.weights is not None:
            names = _names("weights", network.dimensions)
            tensors |= dict(zip(names, fitted.calibration.weights, strict=True))
    return document, tensors


def from_dict(
    document: Mapping[str, Any], tensors: Mapping[str, Tensor], backbone: Backbone | None = None
) -> tuple[dict[str, Any], Fitted]:
    """Return the parameters and the fit; raise `ModelFileError` where the document has none."""
    with _refusing():
        encoder = TableEncoder.from_dict(document["encoder"])
        architecture, has_backbone = document["network"], document["backbone"]
    # Not within: an error of the user's backbone is none of the file's.
    made = None if backbone is None else _made(backbone, encoder, architecture, has_backbone)
    network = network_from_dict(architecture, tensors, prefix="network.", backbone=made)
    with _refusing():
        settings, summary = document["settings"], document["summary"]
        parameters = {
            **document["parameters"],
            "backbone": missing_backbone if has_backbone else None,
            "settings": None if settings is None else Settings.from_dict(settings),
            "target_transform": None if network.transforms is None else list(network.transforms),
        }
        _check_columns(network, encoder)
        targets = network.dimensions
        flat = bool(document["flat"]) and targets == 1
        transforms = network.transforms or (Real(),) * targets
        fitted = Fitted(
            Inputs(encoder, network.names, flat, transforms),
            network.double(),
            History.from_dict(document["history"]),
            Baselines.from_tensors(
                _below("baselines.", tensors),
                _n_rows(document["baselines"]),
                encoder.columns,
                transforms,
                encoder.categories,
                network.names,
            ),
            Novelty.from_tensors(
                _below("novelty.", tensors),
                _n_rows(document["novelty"]),
                encoder.columns,
                encoder.categories,
            ),
            as_whole("seed", document["seed"], 0, 2**31 - 1, fix="Save the model again."),
            None if summary is None else Summary.from_dict(summary, encoder, targets),
            _calibration(tensors, targets),
            {**document["notes"]},
        )
        again, stored = to_dict(parameters, fitted)
        # What is read must be written the same: no other key, type or value.
        if canonical(again) != canonical(document) or stored.keys() != tensors.keys():
            raise _damaged("makes another model", "the same was expected to come out")
    return {**parameters, "backbone": backbone or parameters["backbone"]}, fitted


def missing_backbone(columns: int) -> nn.Module:
    """Stand for the `backbone` of a loaded model that was not passed to `load`."""
    raise ArgumentError(
        "backbone",
        got="is not known",
        expected=f"a new one for {columns} columns is needed to fit",
        fix="Pass it to load, or by set_params(backbone=...).",
    )


def _made(
    backbone: Backbone, encoder: TableEncoder, architecture: Any, has_backbone: bool
) -> nn.Module | None:
    """Return the module that a user's function makes, or None if the file describes it."""
    check_parameter("backbone", backbone)
    custom = canonical({"kind": "custom"}) in canonical(architecture)
    # The parameter may have been set to None since the fit.
    if not has_backbone and not custom:
        raise ArgumentError(
            "backbone",
            got="was given",
            expected="the model was fitted without one",
            fix="Leave it out.",
        )
    if not custom:
        return None
    try:
        return backbone(encoder.columns)
    except Exception as error:  # code of the user
        raise ArgumentError(
            "backbone",
            got=f"failed ({reason(error)})",
            expected=f"{encoder.columns} columns are to be read",
            fix="Pass the function that the model was fitted with.",
        ) from error


def _check_columns(network: DensityNetwork, encoder: TableEncoder) -> None:
    """Refuse a network and an encoder that are valid but do not belong together."""
    scaling = network.condition_scaling
    ours = (None if scaling is None else len(scaling.location), network.condition_codes)
    theirs = (encoder.columns, len(encoder.categories))
    if ours != theirs:
        raise _damaged(f"has a network for {ours}", f"columns and codes are {theirs}")
    for module in network.modules():
        if isinstance(module, TableMLP) and list(module.categories) != encoder.categories:
            raise _damaged(
                f"has a network for {short(module.categories)} codes",
                f"the table has {short(encoder.categories)}",
            )


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, by the rest of their names."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _n_rows(described: Mapping[str, Any]) -> int:
    return as_whole("n_rows", described["n_rows"], 1, fix="Save the model again.")


def _names(kind: str, targets: int) -> list[str]:
    return [f"{kind}.region", *(f"{kind}.interval.{dim}" for dim in range(targets))]


def _calibration(tensors: Mapping[str, Tensor], targets: int) -> Calibration | None:
    if "scores.region" not in tensors:
        return None
    scores = [tensors[name] for name in _names("scores", targets)]
    weights = None
    if "weights.region" in tensors:
        weights = [tensors[name] for name in _names("weights", targets)]
    for score, weight in zip(scores, weights or map(torch.ones_like, scores), strict=True):
        valid = (
            score.dim() == 1
            and score.shape == weight.shape
            and score.dtype == weight.dtype == torch.float64
            and bool(((score >= 0) & (score <= MAX_DOUBLE) & (weight > 0) & (weight <= 1)).all())
        )
        if not valid:
            raise _damaged("has an invalid calibration", "scores and their weights were expected")
    ranks, *levels = (torch.where(score == MAX_DOUBLE, math.inf, score) for score in scores)
    return Calibration(ranks, levels, weights)


def _shortest(network: DensityNetwork) -> DensityNetwork:
    """Return the network in single precision if that loses nothing."""
    single = copy.deepcopy(network).float()
    pairs = zip(single.state_dict().values(), network.state_dict().values(), strict=True)
    return single if all(torch.equal(a.double(), b.double()) for a, b in pairs) else network


def _plain(value: Any) -> Any:
    """Return numbers of any type as Python's, devices as text, anything else as None."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bool | int | str):
        return plain
    if isinstance(plain, torch.device):
        return str(plain)
    return float(plain) if isinstance(plain, numbers.Real) else None


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn any error into a `ModelFileError`: a document may be wrong in any way."""
    try:
        yield
    except ModelFileError:
        raise
    except Exception as error:
        raise _damaged(
            f"makes no model ({reason(error)})", "what was saved was expected"
        ) from error


def _damaged(got: str, expected: str) -> ModelFileError:
    return ModelFileError("its document", got=got, expected=expected)
