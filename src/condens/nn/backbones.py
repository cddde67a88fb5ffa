"""Networks from a condition to features, and the registry of those that a model file can name.

A backbone may be any module from a batch of conditions to features [b, F]. `MLP` reads vectors;
`TableMLP` reads numbers and codes of categories.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor, nn

from condens.errors import ArgumentError
from condens.functional.tracing import anywhere
from condens.kernels.checks import check_shape
from condens.nn.embeddings import PiecewiseLinear
from condens.nn.randomness import Dropout, linear
from condens.scalars import as_choice, as_fraction, as_truth, as_whole

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "silu": nn.SiLU,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
}
# Standard deviation of the initial embeddings: small beside the standardised numbers, so that
# rare categories start, and stay, close to one another.
EMBEDDING_SCALE = 0.1
MAX_EMBEDDING_SIZE = 16


class MLP(nn.Module):
    """A linear layer, then residual blocks h ← h + dropout(act(W·norm(h) + b)).

    Args:
        inputs: features of the condition, C.
        width: of every layer, and of the features that come out.
        depth: number of layers.
        activation: one of `silu`, `relu`, `tanh`, `gelu`.
        normalise: put a `LayerNorm` before the linear layer of every block.
        dropout: fraction of a block's outputs set to zero in training.
        bins: pieces of a `PiecewiseLinear` embedding of every column, in front; 0 for none.
        shortcut: append the condition to the features, so that the head has a linear part.
        generator: draws the initial weights; torch's by default.

    Shapes: [b, C] → [b, width], with the shortcut [b, width + C].

    >>> MLP(3, width=16)(torch.zeros(5, 3)).shape
    torch.Size([5, 16])
    """

    kind: ClassVar[str] = "mlp"

    def __init__(
        self,
        inputs: int,
        width: int = 128,
        depth: int = 2,
        *,
        activation: str = "silu",
        normalise: bool = False,
        dropout: float = 0.0,
        bins: int = 0,
        shortcut: bool = False,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        activation = as_choice(
            "activation", activation, tuple(ACTIVATIONS), fix="Pass one of these names."
        )
        inputs = as_whole("inputs", inputs, 1, fix="Pass the number of columns of the condition.")
        width = as_whole("width", width, 1, fix="Pass the number of units of a layer, such as 128.")
        depth = as_whole("depth", depth, 1, fix="Pass the number of layers, such as 2.")
        normalise = as_truth("normalise", normalise, fix="Pass True for a LayerNorm in each block.")
        dropout = as_fraction("dropout", dropout, fix="Pass 0 for none, or a fraction such as 0.1.")
        bins, shortcut = _check_bins(bins), _check_shortcut(shortcut)
        self._arguments = {
            "inputs": inputs,
            "width": width,
            "depth": depth,
            "activation": activation,
            "normalise": normalise,
            "dropout": dropout,
            "bins": bins,
            "shortcut": shortcut,
        }
        act = ACTIVATIONS[activation]
        blocks = [Block(width, act(), normalise, dropout, generator) for _ in range(depth - 1)]
        embedding = [PiecewiseLinear(inputs, bins)] if bins else []
        first = linear(inputs * (1 + bins), width, generator)
        self.layers = nn.Sequential(*embedding, first, act(), *blocks)
        self.inputs, self.shortcut = inputs, inputs if shortcut else 0
        self.features = width + self.shortcut

    def to_dict(self) -> dict[str, Any]:
        """Return kind and arguments as JSON values; `backbone_from_dict` reads them.

        >>> MLP(3, width=16).to_dict()["width"]
        16
        """
        return {"kind": self.kind, **self._arguments}

    def forward(self, condition: Tensor) -> Tensor:
        """Return features."""
        features: Tensor = self.layers(condition)
        return torch.cat([features, condition], -1) if self.shortcut else features

    def shortcut_of(self, condition: Tensor) -> Tensor:
        """Return the last features, if there is a shortcut: the condition."""
        return condition


class Block(nn.Module):
    """A residual block of an `MLP`. Shapes: [..., width] → [..., width]."""

    def __init__(
        self,
        width: int,
        activation: nn.Module,
        normalise: bool,
        dropout: float,
        generator: Generator | None,
    ) -> None:
        super().__init__()
        before = [nn.LayerNorm(width)] if normalise else []
        after = [Dropout(dropout)] if dropout else []
        self.change = nn.Sequential(*before, linear(width, width, generator), activation, *after)

    def forward(self, features: Tensor) -> Tensor:
        """Return h + dropout(act(W·norm(h) + b))."""
        return features + self.change(features)


class TableMLP(nn.Module):
    """An `MLP` on numbers and embedded categories.

    A category is a code: 0 for an unknown one, 1 … n for one of n. The embedding of an unknown
    category is the mean of the others, so that it acts like an average category.

    Args:
        numeric: columns of numbers; they come first.
        categories: 1 + n for every column of codes.
        width: see `MLP`, as for all that follow.
        depth: number of layers.
        activation: its name.
        normalise: put a `LayerNorm` before the linear layer of every block.
        dropout: fraction of a block's outputs set to zero in training.
        bins: pieces of every column of numbers.
        shortcut: append the numbers and the embedded categories to the features.
        generator: draws the initial weights; torch's by default.

    Shapes: [b, numeric + len(categories)] → [b, width], more with the shortcut.

    >>> TableMLP(2, [4], width=16)(torch.tensor([[0.5, -1.0, 3.0]])).shape
    torch.Size([1, 16])
    """

    kind: ClassVar[str] = "table"

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
        bins: int = 0,
        shortcut: bool = False,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.numeric = as_whole("numeric", numeric, 0, fix="Pass the number of numeric columns.")
        listed = list(categories) if isinstance(categories, Iterable) else []
        fix = "Count unknown as one, or use an MLP where there are no categories."
        if not listed:
            raise ArgumentError(
                "categories",
                got=f"is {categories!r}",
                expected="the number of codes of every column was expected",
                fix=fix,
            )
        self.categories = tuple(as_whole("categories", size, 2, fix=fix) for size in listed)
        known = [size - 1 for size in self.categories]
        self.embeddings = nn.ParameterList(
            EMBEDDING_SCALE * torch.randn(n, embedding_size(n), generator=generator) for n in known
        )
        self.bins = _check_bins(bins)
        self.numbers = PiecewiseLinear(self.numeric, self.bins) if self.bins else None
        self.mlp = MLP(
            self.numeric * (1 + self.bins) + sum(map(embedding_size, known)),
            width,
            depth,
            activation=activation,
            normalise=normalise,
            dropout=dropout,
            generator=generator,
        )
        self.inputs = self.numeric + len(self.categories)
        size = self.numeric + sum(map(embedding_size, known))
        self.shortcut = size if _check_shortcut(shortcut) else 0
        self.features = self.mlp.features + self.shortcut

    def to_dict(self) -> dict[str, Any]:
        """Return kind and arguments as JSON values; `backbone_from_dict` reads them."""
        options = {name: value for name, value in self.mlp.to_dict().items() if name != "inputs"}
        return {
            **options,
            "kind": self.kind,
            "bins": self.bins,
            "shortcut": self.shortcut > 0,
            "numeric": self.numeric,
            "categories": list(self.categories),
        }

    def forward(self, condition: Tensor) -> Tensor:
        """Return features."""
        plain = read = self.shortcut_of(condition)
        if self.numbers is not None:
            numbers, vectors = plain.tensor_split((self.numeric,), -1)
            read = torch.cat([self.numbers(numbers), vectors], -1)
        features: Tensor = self.mlp(read)
        return torch.cat([features, plain], -1) if self.shortcut else features

    def shortcut_of(self, condition: Tensor) -> Tensor:
        """Return the last features, if there is a shortcut: numbers and embedded categories."""
        return torch.cat([condition[..., : self.numeric], self.vectors_of(condition)], -1)

    def vectors_of(self, condition: Tensor) -> Tensor:
        """Return the embedded categories."""
        vectors = [
            _look_up(codes, torch.cat([known.mean(-2, keepdim=True), known], -2))
            for codes, known in zip(self._codes(condition).unbind(-1), self.embeddings, strict=True)
        ]
        return torch.cat(vectors, -1)

    def _codes(self, condition: Tensor) -> Tensor:
        """Return the codes [b, q] as whole numbers; refuse anything else."""
        check_shape(
            "condition",
            condition,
            (*condition.shape[:-1], self.inputs),
            fix="Pass the columns of numbers, then those of codes.",
        )
        largest, dtype = max(self.categories), condition.dtype
        # Beyond this, two codes are the same number.
        if dtype.is_floating_point and largest > 2 / torch.finfo(dtype).eps:
            raise ArgumentError(
                "condition",
                got=f"is {dtype}",
                expected=f"it cannot tell {largest} categories apart",
                fix="Use a network in float32.",
            )
        given = condition[..., self.numeric :]
        codes = given.long()
        wrong = (codes != given) | (codes < 0) | (codes >= codes.new_tensor(self.categories))
        if anywhere(wrong):
            *place, column = (int(i) for i in wrong.nonzero()[0])
            raise ArgumentError(
                "condition",
                got=f"has the code {given[*place, column]:g} in column {self.numeric + column}",
                expected=f"a whole number from 0 to {self.categories[column] - 1} was expected",
                fix="Encode tables with the encoder that the network was made for.",
            )
        return codes


def _look_up(codes: Tensor, vectors: Tensor) -> Tensor:
    """Return the vectors of codes, from one table or from one for each member.

    Shapes: codes [b], vectors [n, e] → [b, e]; codes [M, b], vectors [M, n, e] → [M, b, e].
    """
    if vectors.dim() == 3:
        first = vectors.shape[1] * torch.arange(len(vectors), device=codes.device)
        codes, vectors = codes + first.unsqueeze(1), vectors.flatten(0, 1)
    return nn.functional.embedding(codes, vectors)


# Each has a `to_dict()` that names all its arguments, and keeps every tensor in its state.
BACKBONES: dict[str, type[MLP] | type[TableMLP]] = {MLP.kind: MLP, TableMLP.kind: TableMLP}


def backbone_from_dict(values: Mapping[str, Any]) -> MLP | TableMLP:
    """Return the backbone that `to_dict` described, with new weights.

    >>> backbone_from_dict(MLP(3, width=16).to_dict()).features
    16
    """
    options = dict(values)
    return BACKBONES[options.pop("kind")](**options)


def _check_shortcut(shortcut: bool) -> bool:
    return as_truth("shortcut", shortcut, fix="Pass True for a linear part.")


def _check_bins(bins: int) -> int:
    return as_whole("bins", bins, 0, fix="Pass the pieces of a column, such as 24, or 0 for none.")


def embedding_size(n_categories: int) -> int:
    """Return min(16, ⌈1.6 n^0.56⌉), the length of the embeddings of n categories.

    >>> [embedding_size(n) for n in (1, 2, 10, 1000)]
    [2, 3, 6, 16]
    """
    return min(MAX_EMBEDDING_SIZE, math.ceil(1.6 * n_categories**0.56))
