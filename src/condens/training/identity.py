"""Whose state a run directory holds."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from condens.data import Rows
from condens.errors import RunDirectoryError
from condens.nn import MLP, DensityNetwork, Head, TableMLP
from condens.training.settings import Settings

Identity = dict[str, Any]

# What every module has, and the names of the targets, which change nothing that is learned.
_USUAL = vars(nn.Module()).keys() | {"names"}
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def identity(
    network: DensityNetwork, settings: Settings, rows: Rows, validation: Rows | None
) -> Identity:
    """Return the network's form, the settings, and a hash of every byte of the data."""
    parts = {"rows": rows, "validation": validation or ()}
    told = [
        (name, place, _hash(tensor))
        for name, part in parts.items()
        for place, tensor in enumerate(part)
        if tensor is not None
    ]
    data = hashlib.sha256(repr(told).encode()).hexdigest()
    # Through JSON and back, as the one it will be compared with.
    given: dict[str, Any] = json.loads(json.dumps(settings.to_dict()))
    return {"network": _form(network), "settings": given, "data": data}


def check_same(path: Path, theirs: Any, ours: Identity) -> None:
    """Refuse to go on with a run that had another network, other settings or other data."""
    if theirs == ours:
        return
    before = theirs if isinstance(theirs, Mapping) else {}
    other = _differences(before.get("settings"), ours["settings"])
    layers = _differences(before.get("network"), ours["network"])
    if other:
        came, expected = f"holds a run with other {', '.join(other)}", "a run keeps its settings"
    elif layers:
        came, expected = f"holds another network (see {layers[0]})", "a run keeps its network"
    else:
        came, expected = "holds a run on other data", "a run keeps its data"
    raise RunDirectoryError(
        str(path),
        got=came,
        expected=expected,
        fix="Use the same again to go on, or name another directory.",
    )


def _form(network: DensityNetwork) -> dict[str, str]:
    """Return what a network's state must fit into, and all that is in no tensor of its state.

    Weights and buffers come from the state; what makes them what they become does not: which
    are trained, the classes of the modules, and their numbers and words, such as the rate of a
    dropout, wherever a module keeps them. A number that a module changes itself belongs in a
    buffer: kept as an attribute it would not be resumed, and makes another network here.
    """
    frozen = {name for name, p in network.named_parameters() if not p.requires_grad}
    held = {
        name: f"{t.dtype} {list(t.shape)}" + (", frozen" if name in frozen else "")
        for name, t in network.state_dict().items()
    }
    for name, module in network.named_modules():
        held |= {".".join(filter(None, (name, key))): text for key, text in _options(module)}
    return held


def _options(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield what a module is made with, beside its weights."""
    yield "class", type(module).__qualname__
    if isinstance(module, MLP | TableMLP | Head):  # the arguments, by their names
        yield from ((key, _told(value)) for key, value in module.to_dict().items())
    # As a copy would have it: what a module only remembers of its last use is none of its form.
    copied = module.__getstate__()
    for key, value in (copied if isinstance(copied, dict) else vars(module)).items():
        if key not in _USUAL:
            yield key, _told(value)
    for name in _HOOKS:
        if hooks := list(vars(module).get(name, {}).values()):
            yield name, _told(hooks)
    lasting = module.state_dict(keep_vars=True).keys()
    for name, buffer in module.named_buffers(recurse=False):
        if name not in lasting:
            yield name, _told(buffer)


def _told(value: Any, depth: int = 8) -> str:
    """Return a text that is the same in every process for the same value."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, torch.dtype | torch.device | torch.Size):
        return str(value)
    if isinstance(value, Tensor):
        return _hash(value)
    if not depth or isinstance(value, nn.Module):
        return type(value).__qualname__
    if isinstance(value, Mapping):
        pairs = [f"{_told(k, depth - 1)}: {_told(v, depth - 1)}" for k, v in value.items()]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_told(part, depth - 1) for part in value)}]"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(_told(part, depth - 1) for part in value))}}}"
    if hasattr(value, "func") and hasattr(value, "args"):  # functools.partial
        return _told([value.func, value.args, getattr(value, "keywords", None)], depth - 1)
    if hasattr(value, "__qualname__"):  # a function or a class
        return str(value.__qualname__)
    if type(value).__module__ == "numpy":
        return f"{type(value).__name__} {_told(value.tolist(), depth - 1)}"
    # Of other objects only what they hold themselves: they may know half the program.
    held = getattr(value, "__dict__", None)
    return f"{type(value).__qualname__} {_told(held, min(depth - 1, 2)) if held else ''}"


def _hash(tensor: Tensor) -> str:
    tensor = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return f"{tensor.dtype} {list(tensor.shape)} {digest.hexdigest()}"


def _differences(before: Any, now: Mapping[str, Any]) -> list[str]:
    known = before if isinstance(before, Mapping) else {}
    return [name for name in {**now, **known} if known.get(name) != now.get(name)]
