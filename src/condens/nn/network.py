"""A backbone and a head: condition in, mixture out."""

import copy
from collections.abc import Sequence
from typing import Self

import torch
from torch import Generator, Tensor, nn

from condens.errors import ArgumentError, message
from condens.functional.algebra import Parameters
from condens.nn.backbone import MLP
from condens.nn.density import DensityNetwork
from condens.nn.head import FLOOR, HEADS, Head
from condens.nn.start import spread


class MixtureNetwork(DensityNetwork):
    """A backbone and a head, from a condition to the density of the targets.

    Args:
        backbone: any module from a batch of conditions to features [b, F].
        head: see `condens.nn.HEADS`.
        condition_columns: C where the condition is a vector to be standardised; None where
            the backbone takes it as it comes (images, sequences, …).
        names: of the targets.

    >>> network = MixtureNetwork.of(conditions=3, targets=2, components=5)
    >>> network(torch.zeros(7, 3))
    GaussianMixture(batch_shape=[7], components=5, dimensions=2, covariance='full')
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: Head,
        *,
        condition_columns: int | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(head.dimensions, condition_columns, names)
        self.backbone, self.head = backbone, head

    @classmethod
    def of(
        cls,
        conditions: int,
        targets: int,
        *,
        components: int = 10,
        structure: str = "full",
        width: int = 128,
        depth: int = 2,
        normalise: bool = False,
        dropout: float = 0.0,
        floor: float = FLOOR,
        names: Sequence[str] | None = None,
    ) -> Self:
        """Return an MLP with a head, for vectors of `conditions` and `targets` numbers."""
        if structure not in HEADS:
            remedy = f"Choose one of {', '.join(HEADS)}."
            raise ArgumentError(
                message("structure", f"is {structure!r}", "it names no head", remedy)
            )
        backbone = MLP(conditions, width, depth, normalise=normalise, dropout=dropout)
        head = HEADS[structure](width, targets, components, floor=floor)
        return cls(backbone, head, condition_columns=conditions, names=names)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype the head computes in."""
        return self.head.linear.weight.dtype

    def features(self, condition: Tensor) -> Tensor:
        """Return the backbone's features of standardised conditions, in the head's dtype."""
        features: Tensor = self.backbone(condition)
        return features.to(self.dtype)

    def parameters_of(self, condition: Tensor) -> Parameters:
        """Return the mixture's parameters for what is standardised already."""
        return self.head.parameters_of(self.features(condition))

    def loss(self, condition: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the negative log-likelihood of what is standardised already, head fused."""
        return self.head.nll(self.features(condition), target, weights)

    def start(self, target: Tensor, generator: Generator) -> None:
        """Place the components on standardised targets."""
        head = self.head
        head.start_from(spread(target, head.components, floor=head.floor, generator=generator))

    def with_components(self, kept: Sequence[int]) -> "MixtureNetwork":
        """Return a copy that has some of the components only."""
        made = copy.deepcopy(self)
        made.head = self.head.with_components(kept)
        return made
