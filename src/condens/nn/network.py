"""A backbone and a head: condition in, mixture out."""

import copy
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Generator, Tensor, nn

from condens.errors import ArgumentError, message
from condens.maps import Map
from condens.nn.backbone import MLP
from condens.nn.density import DensityNetwork
from condens.nn.head import CEILING, FLOOR, Head, TriangularHead
from condens.nn.heads import HEADS
from condens.nn.start import spread
from condens.nn.table import TableMLP


class MixtureNetwork(DensityNetwork):
    """A backbone and a head, from a condition to the density of the targets.

    Args:
        backbone: any module from a batch of conditions to features [b, F].
        head: see `condens.nn.HEADS`.
        condition_columns: C where the condition is a vector to be standardised; None where
            the backbone takes it as it comes (images, sequences, …).
        condition_codes: how many of the last columns are codes of categories.
        names: of the targets.
        maps: of the targets, where they are not any real number; see `condens.maps`.

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
        condition_codes: int = 0,
        names: Sequence[str] | None = None,
        maps: Sequence[Map] | None = None,
    ) -> None:
        super().__init__(head.dimensions, condition_columns, names, condition_codes, maps)
        if maps is not None and not isinstance(head, TriangularHead):
            came, expected = f"is {head.structure}", "maps go with covariances in full"
            raise ArgumentError(
                message("head", came, expected, "Choose another, or leave out maps.")
            )
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
        ceiling: float | None = CEILING,
        rank: int = 5,
        categories: Sequence[int] = (),
        names: Sequence[str] | None = None,
        maps: Sequence[Map] | None = None,
    ) -> Self:
        """Return an MLP with a head, for vectors of `conditions` and `targets` numbers.

        `rank` is for the structure `low_rank`. With `categories`, which are those of a
        `TableMLP`, the last columns are codes.
        """
        if structure not in HEADS:
            remedy = f"Choose one of {', '.join(HEADS)}."
            raise ArgumentError(
                message("structure", f"is {structure!r}", "it names no head", remedy)
            )
        codes = len(categories)
        backbone = (
            TableMLP(
                conditions - codes, categories, width, depth, normalise=normalise, dropout=dropout
            )
            if codes
            else MLP(conditions, width, depth, normalise=normalise, dropout=dropout)
        )
        options: dict[str, Any] = {"floor": floor, "ceiling": ceiling}
        if structure == "low_rank":
            options["rank"] = rank
        head = HEADS[structure](width, targets, components, **options)
        return cls(
            backbone,
            head,
            condition_columns=conditions,
            condition_codes=codes,
            names=names,
            maps=maps,
        )

    @property
    def dtype(self) -> torch.dtype:
        """The dtype the head computes in."""
        return self.head.linear.weight.dtype

    @property
    def form(self) -> type[Head]:
        """The class of the head."""
        return type(self.head)

    def features(self, condition: Tensor) -> Tensor:
        """Return the backbone's features of standardised conditions, in the head's dtype."""
        features: Tensor = self.backbone(condition)
        return features.to(self.dtype)

    def free_parameters(self, condition: Tensor) -> Any:
        """Return the parameters that the head gives standardised conditions, wherever they are."""
        return self.head.parameters_of(self.features(condition))

    def _free_row_loss(self, condition: Tensor, target: Tensor) -> Tensor:
        return self.head.row_nll(self.features(condition), target)

    def _free_loss(self, condition: Tensor, target: Tensor, weights: Tensor | None) -> Tensor:
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
