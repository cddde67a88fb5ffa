"""The choice of an implementation."""

import os
import warnings
from types import ModuleType

import torch
from torch import Tensor

from condens.errors import ArgumentError, KernelWarning
from condens.kernels import eager, native

VARIABLE = "CONDENS_KERNEL"
_CHOICES: dict[str, ModuleType | None] = {"native": native, "eager": eager, "reference": None}
_warned = False


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
        if native.single_threaded and torch.get_num_threads() > 1:
            _warn_once(
                "condens' native kernel was built without OpenMP and runs on one thread; install "
                "a compiler that has it and reinstall."
            )
        return native
    if native.missing and target.is_cpu:
        _warn_once(
            f"condens runs without its native kernel ({native.missing}); results are the "
            f"same, training is slower. Install a C compiler and reinstall, or set "
            f"{VARIABLE}=eager to choose this."
        )
    return eager if eager.serves(target) else None


def watched(tensor: Tensor) -> bool:
    """Tell whether torch must see operators: it compiles, exports, traces or uses fake tensors."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or type(tensor) not in (Tensor, torch.nn.Parameter)
    )


def traced(tensor: Tensor) -> bool:
    """Tell whether torch must see plain operators: it is `watched`, or under torch.func."""
    return watched(tensor) or torch._C._are_functorch_transforms_active()


def _warn_once(text: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(text, KernelWarning, stacklevel=4)
