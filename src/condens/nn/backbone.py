"""Networks from a condition to features.

Any module that maps a batch of conditions to features [b, F] will do; `MLP` is for vectors.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Generator, Tensor, nn

from condens.errors import ArgumentError
from condens.nn.randomness import Dropout, linear
from condens.scalars import as_fraction, as_truth, as_whole

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "silu": nn.SiLU,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
}


class MLP(nn.Module):
    """A linear layer, then residual blocks h ← h + dropout(act(W·norm(h) + b)).

    Args:
        inputs: features of the condition, C.
        width: of every layer, and of the features that come out.
        depth: number of layers.
        activation: one of `silu`, `relu`, `tanh`, `gelu`.
        normalise: put a `LayerNorm` before the linear map of every block.
        dropout: share of a block's outputs set to zero in training.
        generator: of the first weights; by default torch's.

    Shapes: [b, C] → [b, width].

    >>> import torch
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
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(activation, str) or activation not in ACTIVATIONS:
            raise ArgumentError(
                "activation",
                got=f"is {activation!r}",
                expected="it names no activation",
                fix=f"Choose one of {', '.join(ACTIVATIONS)}.",
            )
        inputs = as_whole("inputs", inputs, 1, fix="Pass the number of condition columns.")
        width = as_whole("width", width, 1, fix="Pass the number of units in a hidden layer.")
        depth = as_whole("depth", depth, 1, fix="Pass the number of hidden layers.")
        dropout = as_fraction("dropout", dropout, fix="Pass 0 for no dropout.")
        normalise = as_truth("normalise", normalise, fix="Pass True to normalise every layer.")
        self._arguments = {
            "inputs": inputs,
            "width": width,
            "depth": depth,
            "activation": str(activation),
            "normalise": normalise,
            "dropout": dropout,
        }
        act = ACTIVATIONS[activation]
        blocks = [_Block(width, act(), normalise, dropout, generator) for _ in range(depth - 1)]
        self.layers = nn.Sequential(linear(inputs, width, generator), act(), *blocks)
        self.inputs, self.features = inputs, width

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments that make another one like this.

        >>> MLP(3, width=16).to_dict()["width"]
        16
        """
        return dict(self._arguments)

    def forward(self, condition: Tensor) -> Tensor:
        """Return features."""
        features: Tensor = self.layers(condition)
        return features


class _Block(nn.Module):
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
        changed: Tensor = self.change(features)
        return features + changed
