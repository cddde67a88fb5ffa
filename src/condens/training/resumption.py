"""Going on from a state on disk: only from one of this run, with everything it needs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from condens.errors import CondensError, RunDirectoryError
from condens.training.history import History
from condens.training.identity import Identity, check_same
from condens.training.state import State, Tensors

# What AdamW keeps for a parameter, once it has had a gradient.
_MOMENTS = ("exp_avg", "exp_avg_sq")


def resume(path: Path, state: State, tensors: Tensors, values: Any, ours: Identity) -> None:
    """Let a new state become the one that was read; raise `RunDirectoryError` where it cannot.

    A hash says that a state is what was written, not that this program wrote it.
    """
    told = values if isinstance(values, Mapping) else {}
    check_same(path, told.get("identity"), ours)
    fault = _missing(state, tensors) or _wrong(state, told)
    if fault is not None:
        raise _damaged(path, fault)
    try:
        state.load(tensors, values)
    except (CondensError, RuntimeError, ValueError, TypeError, KeyError) as error:
        text = str(error).strip().partition("\n")[0][:200]
        raise _damaged(path, f"cannot be taken ({text})") from error


def _missing(state: State, tensors: Tensors) -> str | None:
    """Return what is wrong with the tensors, if anything: absent, too many, of another form."""
    expected, optional = _forms(state)
    for name in expected:
        if name not in tensors:
            return f"lacks {name}"
    for name, tensor in tensors.items():
        form = expected.get(name, optional.get(name))
        if form is None:
            return f"has an unknown {name[:100]!r}"
        if (tensor.dtype, tensor.shape) != (form.dtype, form.shape):
            came = f"{tensor.dtype} {list(tensor.shape)}"
            return f"has {name} as {came} for {form.dtype} {list(form.shape)}"
    # One of a group means all of it.
    begun = {_group(name) for name in tensors if name in optional}
    lost = [name for name in optional if name not in tensors and _group(name) in begun]
    return f"lacks {lost[0]}" if lost else None


def _group(name: str) -> str:
    """Return which tensors come together: all good ones, all best ones, a parameter's moments."""
    kind, part, *_ = name.split(".")
    return name.rpartition(".")[0] if part == "optimiser" else kind


def _forms(state: State) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return tensors like those that a state must have, and those that it may have."""
    expected = state.tensors()
    now = {name: tensor for name, tensor in expected.items() if name.startswith("now.")}
    moments = {
        f"now.optimiser.{i}.{name}": tensor
        for i, parameter in enumerate(state.parameters)
        for name, tensor in (*((m, parameter) for m in _MOMENTS), ("step", torch.tensor(0.0)))
    }
    optional = dict(moments)
    optional |= {name.replace("now.", "good.", 1): t for name, t in (now | moments).items()}
    optional |= {f"best.{name}": t for name, t in state.network.state_dict().items()}
    return expected, optional


def _wrong(state: State, values: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the other values, if anything."""
    position = values.get("position")
    if not isinstance(position, Mapping) or position.keys() != state.position.keys():
        return "has another position"
    for name, known in state.position.items():
        came = position[name]
        if type(came) is not type(known) or (type(came) is int and not 0 <= came < 2**53):
            return f"has {name} {str(came)[:100]!r} in its position"
    try:
        History.from_dict(values.get("history", {}))
    except CondensError as error:
        return f"has a history that cannot be read ({str(error)[:200]})"
    return None


def _damaged(path: Path, fault: str) -> RunDirectoryError:
    return RunDirectoryError(
        str(path),
        got=f"holds a state that {fault}",
        expected="a run goes on from what condens wrote",
        fix="Restore the files from a copy, or begin again in another directory.",
    )
