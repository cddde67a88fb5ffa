"""What is measured: losses of a mixture's raw parameters, and condens' ways to compute them.

A loss takes target [b, D] and raw parameters: logits [b, K], means [b, K, D] and packed
factors [b, K, T]. The peers are in `peers`.
"""

import math
import os
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from condens import functional
from condens.functional import nll
from condens.kernels.choice import VARIABLE

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Contender(NamedTuple):
    """A loss, and whether its parameters lie batch-last in memory."""

    loss: Loss
    batch_last: bool = False


def condens_rows(*arguments: Tensor) -> Tensor:
    """`condens.functional.nll`, per row, then the mean."""
    return nll(*arguments).mean()


def condens_eager(*arguments: Tensor) -> Tensor:
    """`condens.functional.loss` without the native kernel."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "eager"
    try:
        return functional.loss(*arguments)
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before


OURS = {
    "condens": Contender(functional.loss),
    "condens batch-last": Contender(functional.loss, batch_last=True),
    "condens rows": Contender(condens_rows),
    "condens eager": Contender(condens_eager),
    "condens eager batch-last": Contender(condens_eager, batch_last=True),
}


class Problem:
    """Random target and parameters, in both layouts, and what is to be done with them."""

    def __init__(
        self, batch: int, n_components: int, dimensions: int, *, diagonal: bool = False
    ) -> None:
        packed = dimensions if diagonal else dimensions * (dimensions + 1) // 2
        self.target = torch.randn(batch, dimensions)
        self.parameters = (
            torch.randn(batch, n_components),
            torch.randn(batch, n_components, dimensions),
            0.1 / math.sqrt(dimensions) * torch.randn(batch, n_components, packed),
        )

    @property
    def bytes(self) -> int:
        """The size of the parameters."""
        return sum(p.nbytes for p in self.parameters)

    def laid_out(self, *, batch_last: bool) -> tuple[Tensor, ...]:
        """Return the parameters, batch-last if so wished: same shapes, other strides."""
        if not batch_last:
            return self.parameters
        return tuple(p.movedim(0, -1).contiguous().movedim(-1, 0) for p in self.parameters)

    def job(self, contender: Contender) -> Callable[[], object]:
        """Return the work of a contender: the loss and the gradients of the parameters."""
        target, parameters = self.target, self.laid_out(batch_last=contender.batch_last)

        def loss_and_gradients() -> None:
            leaves = [p.detach().requires_grad_() for p in parameters]
            torch.autograd.grad(contender.loss(target, *leaves), leaves)

        return loss_and_gradients

    def copy(self) -> Callable[[], object]:
        """Return a copy of the parameters' size: as much traffic as the work cannot avoid."""
        source = torch.randn(self.bytes // 4)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)
