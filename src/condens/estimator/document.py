"""What a model file holds of an `MDNRegressor`, and the regressor back from it.

A regressor that is made from a file must describe itself as the file does; else the file is
refused.
"""

import copy
import math
import numbers
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from condens.data import TableEncoder
from condens.errors import ArgumentError, CondensError, ModelFileError
from condens.evaluation.conformal import Calibration
from condens.nn import DensityNetwork, TableMLP
from condens.persistence import network_from_dict, network_to_dict
from condens.persistence.header import canonical, reason, short
from condens.training import History, Settings
from condens.transforms import Real

Document = dict[str, Any]

# Parameters of the constructor that JSON can hold as they are.
_PLAIN = (
    "covariance",
    "depth",
    "dropout",
    "n_components",
    "n_members",
    "calibration_fraction",
    "random_state",
    "verbose",
    "warm_start",
    "width",
)
_FIELDS = {
    "backbone",
    "encoder",
    "flat",
    "history",
    "network",
    "parameters",
    "seed",
    "settings",
}
_LARGEST = torch.finfo(torch.float64).max


def to_document(model: Any) -> tuple[Document, dict[str, Tensor]]:
    """Return what JSON can hold of a fitted regressor, and tensors."""
    network = _shortest(model.network_)
    settings = model.settings
    document = {
        "backbone": model.backbone is not None,
        "encoder": model.encoder_.to_dict(),
        "flat": model.flat_,
        "history": model.history_.to_dict(),
        "network": network_to_dict(network),
        "parameters": {name: _plain(getattr(model, name)) for name in _PLAIN},
        "seed": model.seed_,
        "settings": None if settings is None else settings.to_dict(),
    }
    tensors = network.state_dict(prefix="network.")
    calibration = getattr(model, "calibration_", None)
    if calibration is not None:
        # A file holds finite numbers only.
        for name, scores in zip(
            _score_names(model.n_targets_),
            (calibration.ranks, *calibration.levels),
            strict=True,
        ):
            tensors[name] = scores.clamp(max=_LARGEST)
    return document, tensors


def from_document(
    make: Callable[..., Any],
    document: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    backbone: Callable[[int], nn.Module] | None,
) -> Any:
    """Return the regressor; raise `ModelFileError` where the document makes none."""
    given = {key: value for key, value in document.items() if key != "kind"}
    if given.keys() != _FIELDS:
        raise _damaged(f"has {short(sorted(document))}", f"{sorted(_FIELDS)} were expected")
    try:
        encoder = TableEncoder.from_dict(document["encoder"])
    except CondensError as error:
        raise _no_model(error) from error
    network = _network(document, tensors, encoder, backbone)
    try:
        model = _model(make, document, tensors, encoder, network)
        again, stored = to_document(model)
    except ModelFileError:
        raise
    except (CondensError, AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise _no_model(error) from error
    former = _former_names(model.n_targets_) & tensors.keys()
    if canonical(again) != canonical(given) or stored.keys() | former != tensors.keys():
        raise _damaged("makes another model", "the same was expected to come out")
    if document["backbone"]:
        model.backbone = missing_backbone if backbone is None else backbone
    return model


def missing_backbone(columns: int) -> nn.Module:
    """Stand for the function that made the backbone of a loaded model, and was not passed."""
    raise ArgumentError(
        "backbone",
        got="is not known",
        expected=f"a new one for {columns} columns is needed to fit",
        fix="Pass it to load, or by set_params(backbone=...).",
    )


def _network(
    document: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    encoder: TableEncoder,
    backbone: Callable[[int], nn.Module] | None,
) -> DensityNetwork:
    """Return the network; errors that the user's own backbone causes stay as they are."""
    if type(document["backbone"]) is not bool:
        raise _damaged("does not tell of a backbone", "true or false was expected")
    if backbone is not None and (not callable(backbone) or isinstance(backbone, nn.Module)):
        raise ArgumentError(
            "backbone",
            got=f"is {type(backbone).__name__}",
            expected="the function of the fit was expected",
            fix="Pass what makes a module from the number of columns.",
        )
    if backbone is not None and not document["backbone"]:
        raise ArgumentError(
            "backbone",
            got="was given",
            expected="the model was fitted without one",
            fix="Leave it out.",
        )
    made = None
    # The file knows the backbones of condens itself.
    if backbone is not None and canonical({"kind": "custom"}) in canonical(document["network"]):
        try:
            made = backbone(encoder.columns)
        except Exception as error:  # code of the user
            raise ArgumentError(
                "backbone",
                got=f"failed ({reason(error)})",
                expected=f"{encoder.columns} columns are to be read",
                fix="Pass the function that the model was fitted with.",
            ) from error
    return network_from_dict(document["network"], tensors, prefix="network.", backbone=made)


def _model(
    make: Callable[..., Any],
    document: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    encoder: TableEncoder,
    network: DensityNetwork,
) -> Any:
    _check_fit(network, encoder)
    transforms = network.transforms or (Real(),) * network.dimensions
    settings = document["settings"]
    model = make(
        **document["parameters"],
        backbone=missing_backbone if document["backbone"] else None,
        settings=None if settings is None else Settings.from_dict(settings),
        target_transform=None if network.transforms is None else list(transforms),
    )
    model.network_, model.encoder_, model.transforms_ = network.double(), encoder, transforms
    model.n_targets_, model.target_names_ = network.dimensions, network.names
    model.flat_, model.seed_ = document["flat"], document["seed"]
    if type(model.flat_) is not bool or (model.flat_ and model.n_targets_ > 1):
        raise _damaged(f"has flat {short(model.flat_)}", f"there are {model.n_targets_} targets")
    if type(model.seed_) is not int or model.seed_ >> 31:
        raise _damaged(f"has seed {short(model.seed_)}", "a number below 2³¹ was expected")
    model.history_ = History.from_dict(document["history"])
    model.n_features_in_ = encoder.n_features
    if encoder.feature_names is not None:
        model.feature_names_in_ = np.array(encoder.feature_names, dtype=object)
    names = _score_names(network.dimensions)
    if _former_names(network.dimensions) <= tensors.keys():
        warnings.warn(
            "The model file has a calibration by scores that are not used any more: its regions "
            "would not hold what they promise. Call calibrate(X, y) before predict_region.",
            stacklevel=7,
        )
    elif names[0] in tensors:
        model.calibration_ = _calibration([tensors[name] for name in names])
    return model


def _check_fit(network: DensityNetwork, encoder: TableEncoder) -> None:
    """Refuse parts that each are sound but do not belong together."""
    scaling = network.condition_scaling
    ours = (None if scaling is None else len(scaling.location), network.condition_codes)
    theirs = (encoder.columns, len(encoder.categories))
    if ours != theirs:
        raise _damaged(f"has a network for {ours}", f"columns and codes are {theirs}")
    for module in network.modules():
        if isinstance(module, TableMLP) and list(module.categories) != encoder.categories:
            came = f"has a network for {short(module.categories)} codes"
            raise _damaged(came, f"the table has {short(encoder.categories)}")


def _score_names(targets: int) -> list[str]:
    return ["scores.region", *(f"scores.interval.{dim}" for dim in range(targets))]


def _former_names(targets: int) -> set[str]:
    """Return the names of scores that nothing is calibrated by any more."""
    return {"calibration.ranks", *(f"calibration.levels.{dim}" for dim in range(targets))}


def _calibration(parts: Sequence[Tensor]) -> Calibration:
    for part in parts:
        flat = part.dim() == 1 and part.dtype == torch.float64
        if not flat or not bool(((part >= 0) & (part <= _LARGEST)).all()):
            raise _damaged("has a calibration that is none", "scores in a row were expected")
    ranks, *levels = (torch.where(part == _LARGEST, math.inf, part) for part in parts)
    return Calibration(ranks, levels)


def _shortest(network: DensityNetwork) -> DensityNetwork:
    """Return the network in single precision, if that is all there is to it."""
    short = copy.deepcopy(network).float()
    same = zip(short.state_dict().values(), network.state_dict().values(), strict=True)
    return short if all(torch.equal(a.double(), b.double()) for a, b in same) else network


def _plain(value: Any) -> Any:
    """Return numbers of any kind as Python's, and what is neither number nor word as None."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, numbers.Real) and not isinstance(value, bool | int):
        value = float(value)
    return value if isinstance(value, bool | int | float | str) else None


def _damaged(came: str, expected: str) -> ModelFileError:
    return ModelFileError("its document", got=came, expected=expected)


def _no_model(error: Exception) -> ModelFileError:
    return _damaged(f"makes no model ({reason(error)})", "what was saved was expected")
