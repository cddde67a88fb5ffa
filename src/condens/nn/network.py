"""A backbone and a head: condition in, mixture out."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Generator, Tensor, nn

from condens.distribution import GaussianMixture
from condens.errors import ArgumentError, NotFiniteError, ShapeError, message
from condens.nn.backbone import MLP
from condens.nn.head import FLOOR, HEADS, Head
from condens.nn.scaling import Standardiser
from condens.nn.start import spread


class MixtureNetwork(nn.Module):
    """A network that maps a condition to the density of the targets.

    It has two doors: calling it gives a `GaussianMixture` in the target's own units, and
    `nll` gives the loss, head and kernel fused, without building the object. Both agree.
    Condition and target are standardised inside, with statistics that `prepare` takes from
    the training data and that are part of the network's state.

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
        super().__init__()
        self.backbone, self.head = backbone, head
        self.condition_scaling = (
            None if condition_columns is None else Standardiser(condition_columns)
        )
        self.target_scaling = Standardiser(head.dimensions)
        self.names = None if names is None else tuple(names)

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
        """The dtype the network computes in."""
        return self.head.linear.weight.dtype

    def forward(self, condition: Tensor) -> GaussianMixture:
        """Return the mixtures, in the target's own units and the dtype of the condition.

        Shapes: condition [b, C], or what the backbone takes → batch shape [b].
        """
        features = self.features(self.standardise_condition(condition))
        mixture = self.target_scaling.inverse(self.head(features, self.names))
        return mixture.to(condition.dtype if condition.is_floating_point() else self.dtype)

    def nll(self, condition: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return Σ weights · −log p(target | condition), the mean by default.

        Entries of the target that are NaN were not observed. Shapes: target [b, D],
        weights [b] → [].
        """
        self.check(condition, target)
        loss = self.loss(
            self.standardise_condition(condition), self.standardise_target(target), weights
        )
        return loss + self.log_scale(target, weights)

    def loss(self, condition: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the negative log-likelihood of what is standardised already."""
        return self.head.nll(self.features(condition), target, weights)

    def features(self, condition: Tensor) -> Tensor:
        """Return the backbone's features of standardised conditions, in the head's dtype."""
        features: Tensor = self.backbone(condition)
        return features.to(self.dtype)

    def standardise_condition(self, condition: Tensor) -> Tensor:
        """Return what the backbone reads; whole numbers (tokens, …) stay whole."""
        if self.condition_scaling is None:
            return condition.to(self.dtype) if condition.is_floating_point() else condition
        self._check_columns(condition)
        return self.condition_scaling(condition).to(self.dtype)

    def standardise_target(self, target: Tensor) -> Tensor:
        """Return what the head's density is over."""
        return self.target_scaling(target).to(self.dtype)

    def log_scale(self, target: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return what standardising the target takes from its negative log-likelihood."""
        each = (~target.isnan()).to(torch.float64) @ self.target_scaling.scale.log()
        total = each.mean() if weights is None else each @ weights.to(torch.float64)
        return total.to(self.dtype)

    @torch.no_grad()
    def prepare(
        self,
        condition: Tensor,
        target: Tensor,
        *,
        generator: Generator | None = None,
        from_data: bool = True,
    ) -> Self:
        """Take the scales from data, and start the components where the targets are.

        With `from_data=False` only the scales: every component starts as the same standard
        normal, as in the report.
        """
        self.check(condition, target)
        if self.condition_scaling is not None:
            self.condition_scaling.fit(condition, "condition")
        self.target_scaling.fit(target, "target")
        if from_data:
            if generator is None:
                generator = Generator().manual_seed(0)
            self.head.start_from(
                spread(
                    self.target_scaling(target).cpu(),
                    self.head.components,
                    floor=self.head.floor,
                    generator=generator,
                )
            )
        return self

    def check(self, condition: Tensor, target: Tensor) -> None:
        """Raise a named error where rows do not fit this network."""
        if target.dim() != 2 or target.shape[1] != self.head.dimensions:
            came = f"has shape {list(target.shape)}"
            expected = f"[rows, {self.head.dimensions}] was expected"
            raise ShapeError(message("target", came, expected, "Pass one column a dimension."))
        if len(condition) != len(target):
            came, expected = f"has {len(condition)} rows", f"target has {len(target)}"
            raise ShapeError(message("condition", came, expected, "Pass one row for each."))
        self._check_columns(condition)
        if condition.is_floating_point() and not bool(condition.isfinite().all()):
            row = int((~condition.isfinite()).nonzero()[0, 0])
            came, expected = f"is NaN or infinite in row {row}", "the network reads every entry"
            remedy = "Drop such rows, or fill the entries (and add a column that tells which)."
            raise NotFiniteError(message("condition", came, expected, remedy))

    def _check_columns(self, condition: Tensor) -> None:
        if self.condition_scaling is None:
            return
        columns = len(self.condition_scaling.location)
        # Without this, a single column would be read as if it were all of them.
        if condition.shape[-1:] != (columns,):
            came, expected = f"has shape {list(condition.shape)}", f"[rows, {columns}] was expected"
            raise ShapeError(message("condition", came, expected, "Pass one column a feature."))
