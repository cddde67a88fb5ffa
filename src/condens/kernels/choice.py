"""Which implementation runs."""

import os
import warnings
from types import ModuleType

import torch
from torch import Tensor

from condens.errors import ArgumentError
from condens.kernels import eager, native

VARIABLE = "CONDENS_KERNEL"
_CHOICES: dict[str, ModuleType | None] = {"native": native, "eager": eager, "reference": None}
_told = False


def active() -> str:
    """Say which implementation serves float32 tensors on the CPU.

    >>> active().split()[0] in ("native", "eager", "reference")
    True
    """
    chosen = choose(torch.empty(0))
    if chosen is native:
        return f"native ({native.describe()})"
    return "eager" if chosen is eager else "reference"


def choose(target: Tensor) -> ModuleType | None:
    """Return the implementation for tensors like this one; None for plain autograd."""
    forced = os.environ.get(VARIABLE)
    if forced:
        if forced not in _CHOICES:
            raise ArgumentError(
                VARIABLE,
                got=f"is {forced!r}",
                expected="it names no kernel",
                fix=f"Set it to one of {', '.join(_CHOICES)}, or unset it.",
            )
        module = _CHOICES[forced]
        return module if module is None or module.serves(target) else None
    if native.serves(target):
        if native.alone and not _told and torch.get_num_threads() > 1:
            _tell(
                "condens' native kernel was built without OpenMP and runs on one thread; install "
                "a compiler that has it and reinstall."
            )
        return native
    if native.missing and target.is_cpu and not _told:
        _tell(
            f"condens runs without its native kernel ({native.missing}); results are the "
            f"same, training is slower. Install a C compiler and reinstall, or set "
            f"{VARIABLE}=eager to choose this."
        )
    return eager if eager.serves(target) else None


def watched(tensor: Tensor) -> bool:
    """Tell whether torch must see operators, because it compiles, exports, traces or pretends."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or type(tensor) not in (Tensor, torch.nn.Parameter)
    )


def _tell(text: str) -> None:
    global _told
    _told = True
    warnings.warn(text, stacklevel=4)
