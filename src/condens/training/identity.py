"""Whose state a run directory holds."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from condens.data import Rows
from condens.errors import RunDirectoryError, message
from condens.nn import DensityNetwork, Head
from condens.training.settings import Settings

Identity = dict[str, Any]


def identity(
    network: DensityNetwork, settings: Settings, rows: Rows, validation: Rows | None
) -> Identity:
    """Return the network's form, the settings, and a hash of every byte of the data."""
    digest = hashlib.sha256()
    for tensor in (*rows, *(validation or ())):
        if tensor is not None:
            digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
            digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    # Through JSON and back, as the one it will be compared with.
    given: dict[str, Any] = json.loads(json.dumps(settings.as_dict()))
    return {"network": _form(network), "settings": given, "data": digest.hexdigest()}


def _form(network: DensityNetwork) -> dict[str, str]:
    """Return what a network's state must fit into, and what is in no tensor: bounds and codes."""
    held = {name: f"{t.dtype} {list(t.shape)}" for name, t in network.state_dict().items()}
    heads = [module for module in network.modules() if isinstance(module, Head)]
    held["head"] = ", ".join(
        f"{h.structure}, floor {h.floor!r}, ceiling {h.ceiling!r}" for h in heads
    )
    # Only where there are some: the runs of networks without them do not name them.
    if network.condition_codes:
        held["codes"] = str(network.condition_codes)
    if network.maps is not None:
        held["maps"] = repr(network.maps)
    return held


def check_same(path: Path, theirs: Identity, ours: Identity) -> None:
    """Refuse to go on with a run that had another network, other settings or other data."""
    if theirs == ours:
        return
    other = _differences(theirs.get("settings", {}), ours["settings"])
    layers = _differences(theirs.get("network", {}), ours["network"])
    if other:
        came, expected = f"holds a run with other {', '.join(other)}", "a run keeps its settings"
    elif layers:
        came, expected = f"holds another network (see {layers[0]})", "a run keeps its network"
    else:
        came, expected = "holds a run on other data", "a run keeps its data"
    remedy = "Use the same again to go on, or name another directory."
    raise RunDirectoryError(message(str(path), came, expected, remedy))


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [name for name in {**now, **before} if before.get(name) != now.get(name)]
