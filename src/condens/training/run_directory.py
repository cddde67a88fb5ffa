"""Run directories: the state of a run on disk, whose it is, and going on from it.

A state is two files. The tensors come first, then a JSON file that names them, holds every
other value and the hash of both. Each is written beside its place, synced, and moved there; a
state exists once its JSON does. The state before is kept until the next is safe, so a kill at
any moment, or a full disk, leaves one that is good. No link in the directory is written through.

A state belongs to one network, one `Settings` and one set of rows, its identity; a run goes on
only from its own.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from condens.data.arrays import ROWS_PER_BLOCK
from condens.errors import CondensError, RunDirectoryError
from condens.files import append, as_path, open_regular, take_lock, write_whole
from condens.nn import MLP, DensityNetwork, Head, TableMLP
from condens.scalars import encode_floats
from condens.training.settings import Settings
from condens.training.state import State, Tensors

STATES_KEPT = 2
_WRITING = (
    "cannot be written ({})",
    "a run keeps its state there",
    "Make room, and run again: it goes on from the last state that is there.",
)
_RESTORE = "Restore the files from a copy, or begin again in another directory."
_STATE_FILE = re.compile(r"state-([0-9]{8,})\.(json|safetensors)")

Identity = dict[str, Any]


class RunDirectory:
    """A directory that one process writes at a time.

    Args:
        path: of the directory, made if it is missing.
        wait: seconds to wait for another process that writes there, such as one that is dying.

    >>> import torch
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place, RunDirectory(place) as run:
    ...     run.save({"x": torch.ones(2)}, {"step": 3})
    ...     run.load()
    ({'x': tensor([1., 1.])}, {'step': 3})
    """

    def __init__(self, path: str | os.PathLike[str], *, wait: float = 0.0) -> None:
        self.path, self._wait = as_path("directory", path), wait
        self._lock = ExitStack()
        self._next = 0

    def __enter__(self) -> Self:
        with ExitStack() as lock:
            with self._refusing(
                "cannot be a run directory ({})",
                "a run needs one of its own",
                "Name another place.",
            ):
                self.path.mkdir(parents=True, exist_ok=True)
                file = open_regular(self.path / "lock", os.O_RDWR | os.O_CREAT, follow=False)
                lock.callback(os.close, file)
            with self._refusing(
                "is being written by another process",
                "a run has one writer",
                "Wait for it to end, stop it, or name another directory.",
            ):
                self._take_lock(file)
            with self._refusing(*_WRITING):
                self._next = 1 + max(self._numbers(), default=-1)
            self._lock = lock.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def _take_lock(self, file: int) -> None:
        until = time.monotonic() + self._wait
        while True:
            try:
                return take_lock(file)
            except OSError:
                if time.monotonic() > until:
                    raise
            time.sleep(0.1)

    def save(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Write a state; states before the last one go."""
        # Cloned: modules may share a tensor, and safetensors refuses that.
        data = safetensors.torch.save({name: t.clone().contiguous() for name, t in tensors.items()})
        text = json.dumps({"sha256": _digest(data, values), "values": values}, indent=1)
        with self._refusing(*_WRITING):
            write_whole(self._file(self._next, "safetensors"), data)
            write_whole(self._file(self._next, "json"), text.encode())
            # In the order of their names the JSON goes first: without it there is no state at all.
            for file in sorted(self.path.iterdir()):
                ours = _STATE_FILE.fullmatch(file.name)
                if ours and int(ours[1]) <= self._next - STATES_KEPT:
                    file.unlink(missing_ok=True)
        self._next += 1

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the last whole state, or None if there was never one."""
        numbers = sorted(self._numbers(), reverse=True)
        for number in numbers:
            with suppress(
                OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError
            ):
                record = json.loads(_read(self._file(number, "json")))
                data = _read(self._file(number, "safetensors"))
                if _digest(data, record["values"]) == record["sha256"]:
                    tensors = safetensors.torch.load(data)
                    # The next state takes the place of a damaged one, not of this.
                    self._next = number + 1
                    return tensors, record["values"]
        if not numbers:
            return None
        raise RunDirectoryError(
            str(self.path),
            got="holds no state that is whole",
            expected="what was written has been changed",
            fix=_RESTORE,
        )

    def begin_log(self, lines: Iterable[dict[str, Any]]) -> None:
        """Write log.jsonl anew, without what a killed run logged and a resumed one will again."""
        with self._refusing(*_WRITING):
            write_whole(self.path / "log.jsonl", "".join(map(_line, lines)).encode())

    def log(self, line: dict[str, Any]) -> None:
        """Append a line to log.jsonl."""
        with self._refusing(*_WRITING):
            append(self.path / "log.jsonl", _line(line).encode())

    @contextmanager
    def _refusing(self, got: str, expected: str, fix: str) -> Iterator[None]:
        """Raise `RunDirectoryError` for what the system refuses, with its reason within `got`."""
        try:
            yield
        except (OSError, ValueError) as error:
            raise RunDirectoryError(
                str(self.path),
                got=got.format(getattr(error, "strerror", None) or error),
                expected=expected,
                fix=fix,
            ) from error

    def _numbers(self) -> list[int]:
        names = (_STATE_FILE.fullmatch(file.name) for file in self.path.iterdir())
        return [int(name[1]) for name in names if name and name[2] == "json"]

    def _file(self, number: int, kind: str) -> Path:
        return self.path / f"state-{number:08d}.{kind}"


def resume(path: Path, state: State, tensors: Tensors, values: Any, ours: Identity) -> None:
    """Let a new state become one that was loaded; raise `RunDirectoryError` if it cannot.

    A hash says that a state is what was written, not that this program wrote it.
    """
    values = values if isinstance(values, Mapping) else {}
    check_same(path, values.get("identity"), ours)
    try:
        state.load(tensors, values)
    except (CondensError, RuntimeError, ValueError, TypeError, KeyError) as error:
        text = str(error).strip().partition("\n")[0][:200]
        raise RunDirectoryError(
            str(path),
            got=f"holds a state that cannot be read ({text})",
            expected="a run goes on from what condens wrote",
            fix=_RESTORE,
        ) from error


def _digest(data: bytes, values: dict[str, Any]) -> str:
    # JSON of JSON is the same text: numbers are written with all their digits.
    return hashlib.sha256(data + json.dumps(values).encode()).hexdigest()


def _read(path: Path) -> bytes:
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read()


def _line(record: dict[str, Any]) -> str:
    return json.dumps(encode_floats(record), allow_nan=False) + "\n"


# Attributes of every module, and the names of the targets: they change nothing that is learned.
_IGNORED = vars(nn.Module()).keys() | {"names"}
# Values whose repr says all of them.
_PLAIN = (type(None), int, float, complex, str, bytes, torch.dtype, torch.Size)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def identity(network: DensityNetwork, settings: Settings, data: str) -> Identity:
    """Return the architecture of the network, the settings, and a hash of the data."""
    return {"network": _architecture(network), "settings": settings.to_dict(), "data": data}


def check_same(path: Path, theirs: Any, ours: Identity) -> None:
    """Refuse to go on with a run that had another network, other settings or other data."""
    if theirs != ours:
        before = theirs if isinstance(theirs, Mapping) else {}
        settings = _differences(before.get("settings"), ours["settings"])
        layers = _differences(before.get("network"), ours["network"])
        raise RunDirectoryError(
            str(path),
            got=f"holds a run with other {', '.join(settings)}"
            if settings
            else f"holds another network (see {layers[0]})"
            if layers
            else "holds a run on other data",
            expected="a run keeps its network, settings and data",
            fix="Use the same again to go on, or name another directory.",
        )


def _architecture(network: DensityNetwork) -> dict[str, str]:
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
    if "dynamo_ctx" in vars(module):  # of torch.compile: what it compiles is a module of its own
        return
    if isinstance(module, MLP | TableMLP | Head):  # the arguments, by their names
        yield from ((key, _describe(value)) for key, value in module.to_dict().items())
    # As a copy would have it: what a module only remembers of its last use is none of its form.
    copied = module.__getstate__()
    for key, value in (copied if isinstance(copied, dict) else vars(module)).items():
        if key not in _IGNORED:
            yield key, _describe(value)
    for name in _HOOKS:
        if hooks := list(vars(module).get(name, {}).values()):
            yield name, _describe(hooks)
    for name in sorted(module._non_persistent_buffers_set):
        yield name, _describe(module._buffers[name])


def _describe(value: Any, depth: int = 8) -> str:
    """Return a text that is the same in every process for the same value."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, Tensor):
        return hash_tensor(value)
    if isinstance(value, torch.device):  # of which each process has its own
        return value.type
    kind = type(value).__qualname__
    if not depth or isinstance(value, nn.Module):
        return kind
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        parts = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
        texts = [_describe(part, depth - 1) for part in parts]
        unordered = isinstance(value, set | frozenset)
        return f"{kind} [{', '.join(sorted(texts) if unordered else texts)}]"
    if hasattr(value, "func") and hasattr(value, "args"):  # functools.partial
        return _describe([value.func, value.args, getattr(value, "keywords", None)], depth - 1)
    if hasattr(value, "__qualname__"):  # a function or a class
        return str(value.__qualname__)
    if type(value).__module__ == "numpy":
        return f"{kind} {_describe(value.tolist(), depth - 1)}"
    # Of other objects only what they hold themselves: they may know half the program.
    return f"{kind} {_describe(getattr(value, '__dict__', None), min(depth - 1, 2))}"


def hash_tensor(tensor: Tensor) -> str:
    """Return the form of a tensor and a hash of its bytes."""
    tensor = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return f"{tensor.dtype} {list(tensor.shape)} {digest.hexdigest()}"


def hash_numbers(rows: Tensor) -> str:
    """Return a hash of numbers, floats as doubles: the same in whatever precision they are kept."""
    digest = hashlib.sha256()
    for some in rows.split(ROWS_PER_BLOCK):
        some = some.double() if some.is_floating_point() else some
        digest.update(some.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    dtype = torch.float64 if rows.is_floating_point() else rows.dtype
    return f"{dtype} {list(rows.shape)} {digest.hexdigest()}"


def _differences(before: Any, now: Mapping[str, Any]) -> list[str]:
    known = before if isinstance(before, Mapping) else {}
    return [name for name in {**now, **known} if known.get(name) != now.get(name)]
