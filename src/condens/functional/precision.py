"""The precision of the arithmetic, whatever the dtype of the arguments."""

from typing import overload

import torch
from torch import Tensor


def working_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype to compute in: double where the device has it.

    A QR of a factor whose log-diagonals differ by 16 loses seven digits, all that
    float32 has. At 1000 σ the energy ½‖z‖² is 5·10⁵, and float32 would round what
    decides between two components to a multiple of 0.03.
    """
    return torch.float32 if tensor.device.type == "mps" else torch.float64


@overload
def widen(first: Tensor, /) -> Tensor: ...
@overload
def widen(first: Tensor, /, *others: Tensor) -> tuple[Tensor, ...]: ...
def widen(first: Tensor, /, *others: Tensor) -> Tensor | tuple[Tensor, ...]:
    """Convert tensors to their working precision; gradients flow back in the original one.

    >>> widen(torch.zeros(1, dtype=torch.float16)).dtype
    torch.float64
    """
    wide = first.to(working_dtype(first))
    if not others:
        return wide
    return wide, *(other.to(working_dtype(other)) for other in others)
