"""Bringing conditions and targets to a common scale."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from condens.errors import NotFiniteError, message

# A standard deviation this many times what the middle half of a column tells is an
# outlier's, not the column's: then the middle half decides.
HEAVY = 20.0
# Rows whose quartiles are taken.
SORTED = 50_000
# 1 / (2 Φ⁻¹(¾)): the standard deviation of a normal from the distance of its quartiles.
_FROM_QUARTILES = 0.7413011092528009


class Standardiser(nn.Module):
    """Subtract a location and divide by a scale, column by column.

    Fitted in double precision and kept in it, whatever the dtype of the network, so that
    columns of any scale (1e-30, 1e30, years since 1970 in seconds) keep their digits. Missing
    entries (NaN) take no part. A constant column has scale one.

    Args:
        columns: D.
        fixed: how many of the last columns stay as they are, such as codes of categories.

    Shapes: [b, D] → [b, D].
    """

    location: Tensor
    scale: Tensor

    def __init__(self, columns: int, fixed: int = 0) -> None:
        super().__init__()
        self.free = columns - fixed
        self.register_buffer("location", torch.zeros(columns, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(columns, dtype=torch.float64))

    @torch.no_grad()
    def fit(self, values: Tensor, name: str = "values") -> Self:
        """Take location and scale from data [n, D]."""
        values = values.double()
        if values.isinf().any():
            row, column = (int(i) for i in values.isinf().nonzero()[0])
            came = f"is infinite in row {row}, column {column}"
            remedy = "Remove the row, or mark the entry as missing with NaN."
            raise NotFiniteError(message(name, came, "finite numbers were expected", remedy))
        self.location.copy_(torch.nanmean(values, 0).nan_to_num(nan=0.0))
        centred = values - self.location
        # Divided by the largest before squaring: 1e200 squared would be infinite.
        largest = centred.abs().nan_to_num(nan=0.0).amax(0)
        unit = torch.where(largest > 0, largest, 1.0)
        deviation = unit * torch.nanmean((centred / unit).square(), 0).sqrt()
        some = values[:: 1 + len(values) // SORTED]
        levels = values.new_tensor([0.25, 0.5, 0.75])
        low, middle, high = torch.nanquantile(some, levels, 0).nan_to_num(nan=0.0)
        robust = _FROM_QUARTILES * (high - low)
        heavy = (robust > 0) & (deviation > HEAVY * robust)
        self.location.copy_(torch.where(heavy, middle, self.location))
        scale = torch.where(heavy, robust, deviation).nan_to_num(nan=0.0)
        # What is left of a constant column is rounding.
        rounding = 1e-14 * self.location.abs()
        self.scale.copy_(torch.where(scale > rounding, scale, 1.0))
        self.location[self.free :], self.scale[self.free :] = 0.0, 1.0
        return self

    def forward(self, values: Tensor) -> Tensor:
        """Return (values − location) / scale, in double precision."""
        return (values.double() - self.location) / self.scale

    def inverse(self, mixture: Any) -> Any:
        """Return the mixture of location + scale · x, in double precision."""
        return mixture.to(torch.float64).affine(self.scale, self.location)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        # `network.float()` must not round what only moves to another device.
        exact = dict(self._buffers)
        applied = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in exact.items():
            moved = self._buffers[name]
            if buffer is not None and moved is not None:
                self._buffers[name] = buffer.to(moved.device)
        return applied
