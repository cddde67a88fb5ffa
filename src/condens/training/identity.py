"""Whose state a run directory holds."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from condens.data import Rows
from condens.errors import RunDirectoryError, message
from condens.training.settings import Settings

Identity = dict[str, Any]


def identity(settings: Settings, rows: Rows, validation: Rows | None) -> Identity:
    """Return the settings, and a hash of every byte of the data."""
    digest = hashlib.sha256()
    for tensor in (*rows, *(validation or ())):
        if tensor is not None:
            digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
            digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    # Through JSON and back, as the one it will be compared with.
    given: dict[str, Any] = json.loads(json.dumps(settings.as_dict()))
    return {"settings": given, "data": digest.hexdigest()}


def check_same(path: Path, theirs: Identity, ours: Identity) -> None:
    """Refuse to go on with a run that had other settings or other data."""
    if theirs == ours:
        return
    before, now = theirs["settings"], ours["settings"]
    other = [name for name in now if before.get(name) != now[name]]
    if other:
        came, expected = f"holds a run with other {', '.join(other)}", "a run keeps its settings"
    else:
        came, expected = "holds a run on other data", "a run keeps its data"
    remedy = "Use the same again to go on, or name another directory."
    raise RunDirectoryError(message(str(path), came, expected, remedy))
