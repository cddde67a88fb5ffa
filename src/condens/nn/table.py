"""A network from a table's rows to features: numbers as they are, categories embedded."""

import math
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Generator, Tensor, nn

from condens.errors import ArgumentError, ShapeError
from condens.functional.tracing import anywhere
from condens.nn.backbone import MLP
from condens.scalars import as_whole

# Standard deviation of the first embeddings: small beside the standardised numbers, so that
# categories that have few rows start, and stay, alike.
SMALL = 0.1
LARGEST = 16


def embedding_size(categories: int) -> int:
    """Return min(16, ⌈1.6 n^0.56⌉), the numbers that stand for one of n categories.

    >>> [embedding_size(n) for n in (1, 2, 10, 1000)]
    [2, 3, 6, 16]
    """
    return min(LARGEST, math.ceil(1.6 * categories**0.56))


class TableMLP(nn.Module):
    """An `MLP` on numbers and embedded categories.

    A category is a code: 0 where it is unknown, 1 … n where it is one of n. The vector of an
    unknown one is the mean of the others', so that it acts like an average category.

    Args:
        numeric: columns of numbers; they come first.
        categories: 1 + n of every column of codes.
        width: see `MLP`, as for all that follow.
        depth: number of layers.
        activation: its name.
        normalise: put a `LayerNorm` before the linear map of every block.
        dropout: share of a block's outputs set to zero in training.
        generator: of the first weights; by default torch's.

    Shapes: [b, numeric + len(categories)] → [b, width].

    >>> TableMLP(2, [4], width=16)(torch.tensor([[0.5, -1.0, 3.0]])).shape
    torch.Size([1, 16])
    """

    kind = "table"

    def __init__(
        self,
        numeric: int,
        categories: Sequence[int],
        width: int = 128,
        depth: int = 2,
        *,
        activation: str = "silu",
        normalise: bool = False,
        dropout: float = 0.0,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.numeric = as_whole("numeric", numeric, 0, fix="Pass the number of numeric columns.")
        self.categories = _sizes(categories)
        known = [size - 1 for size in self.categories]
        self.embeddings = nn.ParameterList(
            SMALL * torch.randn(n, embedding_size(n), generator=generator) for n in known
        )
        self.mlp = MLP(
            self.numeric + sum(map(embedding_size, known)),
            width,
            depth,
            activation=activation,
            normalise=normalise,
            dropout=dropout,
            generator=generator,
        )
        self.inputs, self.features = self.numeric + len(self.categories), self.mlp.features

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments that make a network of this form, as JSON values."""
        options = self.mlp.to_dict()
        del options["inputs"]
        return {"numeric": self.numeric, "categories": list(self.categories), **options}

    def forward(self, condition: Tensor) -> Tensor:
        """Return features."""
        codes = self._codes(condition)
        vectors = [
            nn.functional.embedding(column, torch.cat([known.mean(0, keepdim=True), known]))
            for column, known in zip(codes.unbind(1), self.embeddings, strict=True)
        ]
        features: Tensor = self.mlp(torch.cat([condition[:, : self.numeric], *vectors], 1))
        return features

    def _codes(self, condition: Tensor) -> Tensor:
        """Return the codes [b, q] as whole numbers; refuse what is none."""
        columns = self.numeric + len(self.categories)
        if condition.dim() != 2 or condition.shape[1] != columns:
            raise ShapeError(
                "condition",
                got=f"has shape {list(condition.shape)}",
                expected=f"[b, {columns}] was expected",
                fix="Pass the columns of numbers, then those of codes.",
            )
        _check_digits(condition.dtype, max(self.categories))
        given = condition[:, self.numeric :]
        codes = given.long()
        sizes = torch.tensor(self.categories, device=codes.device)
        wrong = (codes != given) | (codes < 0) | (codes >= sizes)
        if anywhere(wrong):
            row, column = (int(i) for i in wrong.nonzero()[0])
            raise ArgumentError(
                "condition",
                got=f"has the code {given[row, column]:g} in column {self.numeric + column}",
                expected=f"a whole number from 0 to {self.categories[column] - 1} was expected",
                fix="Encode tables by the encoder the network was made for.",
            )
        return codes


def _sizes(categories: Any) -> tuple[int, ...]:
    """Return the number of codes of every column."""
    listed = list(categories) if isinstance(categories, Iterable) else []
    remedy = "Count unknown as one, or use an MLP where there are no categories."
    if not listed or any(isinstance(size, Integral) and size < 2 for size in listed):
        raise ArgumentError(
            "categories",
            got=f"is {categories!r}",
            expected="2 or more for every column of codes was expected",
            fix=remedy,
        )
    return tuple(as_whole("categories", size, 2, fix=remedy) for size in listed)


def _check_digits(dtype: torch.dtype, categories: int) -> None:
    """Refuse a dtype in which two codes are the same number."""
    if dtype.is_floating_point and categories > 2 / torch.finfo(dtype).eps:
        raise ArgumentError(
            "condition",
            got=f"is {dtype}",
            expected=f"it cannot tell {categories} categories apart",
            fix="Use a network in float32.",
        )
