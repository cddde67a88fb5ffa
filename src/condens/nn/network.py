"""A backbone and a head: condition in, mixture out."""

import copy
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Generator, Tensor, nn

from condens.errors import ArgumentError, KindError, ShapeError
from condens.nn.backbones import MLP, TableMLP
from condens.nn.base import DensityNetwork
from condens.nn.heads import HEADS
from condens.nn.heads.base import CEILING, FLOOR, Head, Parameters
from condens.nn.initialise import MAX_LINEAR_ROWS, Start, ridge, spread
from condens.scalars import as_choice
from condens.transforms import Transform


class MixtureNetwork(DensityNetwork):
    """A backbone and a head, from a condition to the density of the targets.

    Args:
        backbone: any module from a batch of conditions to features [b, F]. If it has an attribute
            `features`, that must equal the head's.
        head: see `condens.nn.HEADS`.
        condition_columns: C where the condition is a vector to be standardised; None where
            the backbone takes it as it is (images, sequences, …).
        condition_codes: how many of the last columns are codes of categories.
        names: of the targets.
        transforms: of constrained targets, one for each target; see `condens.transforms`.
        unused: columns of numbers that are not read, by their positions.

    >>> network = MixtureNetwork.of(conditions=3, targets=2, n_components=5)
    >>> network(torch.zeros(7, 3))
    GaussianMixture(batch_shape=[7], n_components=5, dimensions=2, covariance='full')
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: Head[Any],
        *,
        condition_columns: int | None = None,
        condition_codes: int = 0,
        names: Sequence[str] | None = None,
        transforms: Sequence[Transform] | None = None,
        unused: Sequence[int] = (),
    ) -> None:
        _check_parts(backbone, head, condition_columns)
        super().__init__(
            head.dimensions, condition_columns, names, condition_codes, transforms, unused
        )
        if transforms is not None and not head.triangular:
            raise ArgumentError(
                "head",
                got=f"is {head.covariance}",
                expected="transforms need triangular factors",
                fix="Choose another covariance, such as 'full', or leave transforms out.",
            )
        self.backbone, self.head = backbone, head

    @classmethod
    def of(
        cls,
        conditions: int,
        targets: int,
        *,
        n_components: int = 10,
        covariance: str = "full",
        width: int = 128,
        depth: int = 2,
        normalise: bool = False,
        dropout: float = 0.0,
        bins: int = 0,
        shortcut: bool = False,
        floor: float = FLOOR,
        ceiling: float | None = CEILING,
        rank: int | None = None,
        categories: Sequence[int] = (),
        names: Sequence[str] | None = None,
        transforms: Sequence[Transform] | None = None,
        unused: Sequence[int] = (),
        generator: Generator | None = None,
    ) -> Self:
        """Return an MLP with a head, for vectors of `conditions` and `targets` numbers.

        `floor`, `ceiling` and, for the covariance `low_rank`, `rank` are those of the head. With
        `categories`, as `TableMLP` takes them, the last columns are codes. With `bins` the network
        also reads every number in that many linear pieces, see `PiecewiseLinear`. With a `shortcut`
        it has a linear part, which starts as a ridge regression. Columns of numbers that are
        `unused` are not read. The `generator` draws the initial weights, torch's by default.

        >>> MixtureNetwork.of(3, 40, covariance="low_rank", rank=2)(torch.zeros(1, 3))
        LowRankMixture(batch_shape=[1], n_components=10, dimensions=40, rank=2)
        """
        as_choice("covariance", covariance, tuple(HEADS), fix="Pass one of these names.")
        if rank is not None and "rank" not in HEADS[covariance].options:
            raise ArgumentError(
                "rank",
                got=f"is {rank!r}",
                expected=f"the covariance {covariance!r} has no rank",
                fix="Leave it out, or choose covariance='low_rank'.",
            )
        codes = len(categories)
        layers: dict[str, Any] = {
            "width": width,
            "depth": depth,
            "normalise": normalise,
            "dropout": dropout,
            "bins": bins,
            "shortcut": shortcut,
            "generator": generator,
        }
        backbone = (
            TableMLP(conditions - codes, categories, **layers)
            if codes
            else MLP(conditions, **layers)
        )
        options: dict[str, Any] = {} if rank is None else {"rank": rank}
        head = HEADS[covariance](
            backbone.features,
            targets,
            n_components,
            floor=floor,
            ceiling=ceiling,
            generator=generator,
            **options,
        )
        return cls(
            backbone,
            head,
            condition_columns=conditions,
            condition_codes=codes,
            names=names,
            transforms=transforms,
            unused=unused,
        )

    @property
    def dtype(self) -> torch.dtype:
        """The dtype the head computes in."""
        return self.head.linear.weight.dtype

    @property
    def form(self) -> type[Head[Any]]:
        """The class of the head."""
        return type(self.head)

    def features(self, condition: Tensor) -> Tensor:
        """Return the backbone's features of standardised conditions, in the head's dtype."""
        features, width = self.backbone(condition), self.head.linear.in_features
        if not isinstance(features, Tensor):
            raise KindError(
                "backbone",
                got=f"returns a {type(features).__name__}",
                expected=f"features [b, {width}] were expected",
                fix="Wrap it in a module that returns one tensor, such as the last state of a GRU.",
            )
        rows = condition.shape[:-1] if self.condition_scaling is not None else condition.shape[:1]
        if features.shape[-1:] != (width,) or features.shape[: len(rows)] != rows:
            raise ShapeError(
                "backbone",
                got=f"returns shape {list(features.shape)} for {list(condition.shape)}",
                expected=f"{[*rows, width]} was expected, as the head reads {width} features",
                fix="Give the head as many features as the backbone returns for each row.",
            )
        return features.to(self.dtype)

    @property
    def member_sizes(self) -> list[int]:
        """The number of components: a single member."""
        return [self.head.n_components]

    def free_parameters(self, condition: Tensor) -> Parameters:
        """Return the head's parameters for standardised conditions."""
        return self.head.parameters_of(self.features(condition))

    def _free_nll(self, condition: Tensor, target: Tensor) -> Tensor:
        return self.head.nll(self.features(condition), target)

    def _free_loss(self, condition: Tensor, target: Tensor, weights: Tensor | None) -> Tensor:
        return self.head.loss(self.features(condition), target, weights)

    def components(self, logits: Tensor, start: Start) -> Parameters:
        """Return components [S] of the head's form."""
        return self.head.components(logits, start)

    def start(
        self,
        condition: Tensor,
        target: Tensor,
        generator: Generator,
        parts: Sequence[Tensor] | None = None,
    ) -> None:
        """Place the components on standardised targets, or around a linear fit to them.

        With a shortcut, the means are those of a ridge regression on its columns, and the
        components are placed on what that leaves.
        """
        head, linear = self.head, None
        own = torch.arange(len(target), device=target.device) if parts is None else parts[0]
        target = target[own].cpu()
        if isinstance(self.backbone, MLP | TableMLP) and self.backbone.shortcut:
            features = self.backbone.shortcut_of(condition[own[:MAX_LINEAR_ROWS]])
            linear = ridge(features.cpu(), target[:MAX_LINEAR_ROWS])
            target = linear.residuals
        start = spread(target, head.n_components, floor=head.floor, generator=generator)
        head.start_from(start, linear)

    def with_components(self, kept: Sequence[int]) -> Self:
        """Return a copy with some of the components, without what is set after training."""
        made = copy.deepcopy(self)
        made.drop_adjustment()
        made.head = self.head.with_components(kept)
        return made


def _check_parts(backbone: Any, head: Any, columns: int | None) -> None:
    """Refuse parts that are not modules, or whose known sizes do not fit."""
    for name, part, kind, expected in (
        ("backbone", backbone, nn.Module, "a torch.nn.Module"),
        ("head", head, Head, "a head of condens.nn.HEADS"),
    ):
        if not isinstance(part, kind):
            raise KindError(
                name,
                got=f"is the class {part.__name__}" if isinstance(part, type) else f"is {part!r}",
                expected=f"{expected} was expected",
                fix="Pass an instance, such as MLP(3) or FullHead(128, 2).",
            )
    features, width = getattr(backbone, "features", None), head.linear.in_features
    if isinstance(features, int) and features != width:
        raise ShapeError(
            "head",
            got=f"has {width} features",
            expected=f"backbone.features is {features}",
            fix=f"Make it with features={features}.",
        )
    if isinstance(backbone, MLP | TableMLP) and columns is not None and columns != backbone.inputs:
        raise ShapeError(
            "condition_columns",
            got=f"is {columns}",
            expected=f"the backbone reads {backbone.inputs}",
            fix=f"Pass condition_columns={backbone.inputs}, or another backbone.",
        )
