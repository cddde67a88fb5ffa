"""The base class of networks from a condition to the density of the targets."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Generator, Tensor, nn

from condens.distributions.base import Mixture
from condens.distributions.entropies import Entropies, entropies
from condens.distributions.gaussian import GaussianMixture
from condens.distributions.transformed import TransformedMixture, check_transforms
from condens.errors import ArgumentError, NotFiniteError, ShapeError
from condens.functional.estimates import Estimate
from condens.functional.losses import weighted_sum
from condens.functional.tracing import checks_values
from condens.nn.adjustment import SCALES, Limit, Spread, Tail, Trim, moments, surround
from condens.nn.embeddings import PiecewiseLinear
from condens.nn.extrapolation import extrapolate
from condens.nn.heads.base import Head, Parameters, change_some, chooses_places, places
from condens.nn.initialise import Start
from condens.nn.scaling import (
    ROWS_PER_BLOCK,
    ColumnStatistics,
    ConditionScaling,
    Standardiser,
)
from condens.scalars import as_whole
from condens.transforms import Integer, Transform

# Numbers in memory at a time, for draws and their densities.
NUMBERS_PER_BLOCK = 4_000_000


class DensityNetwork(nn.Module, ABC):
    """A network from a condition to the density of D targets.

    Calling it returns the mixture in the original units of the targets; `loss` and `nll` compute
    the same density on the fastest path, without building the object. Condition and target are
    standardised inside, with statistics that `prepare` takes from the training data and that are
    part of the network's state. Conditions far outside the training rows are pulled in, see
    `condens.nn.scaling.ConditionScaling`, and no density there is narrower than at the edge of
    the training rows, see `condens.nn.extrapolation.extrapolate`. The last `condition_codes`
    columns of the condition are codes of categories, which are neither standardised nor given
    noise; columns that are `unused` are checked, but not read. With `transforms`, one for each
    target, the density is that of constrained targets, a `TransformedMixture`.

    Four parts are set after training, by `condens.training.adjust`, and belong to the density
    from then on: `trim`, the weight of the components left out, `limit`, beyond which none is
    wide, `spread`, one scale for all covariances, and `tail`, a wide density with a small weight;
    see `condens.nn.adjustment`. Training anew drops them.
    """

    trim: Trim | None
    limit: Limit | None
    spread: Spread | None
    tail: Tail | None

    def __init__(
        self,
        dimensions: int,
        condition_columns: int | None,
        names: Sequence[str] | None,
        condition_codes: int = 0,
        transforms: Sequence[Transform] | None = None,
        unused: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.dimensions = dimensions
        self.condition_codes = as_whole(
            "condition_codes",
            condition_codes,
            0,
            condition_columns or 0,
            fix="Pass how many of the condition_columns, at their end, are codes.",
        )
        unused = _check_unused(unused, (condition_columns or 0) - self.condition_codes)
        self.condition_scaling = (
            None
            if condition_columns is None
            else ConditionScaling(condition_columns, fixed=self.condition_codes, unused=unused)
        )
        self.target_scaling = Standardiser(dimensions)
        self.names = None if names is None else tuple(names)
        self.transforms = None if transforms is None else check_transforms(transforms, dimensions)
        self.register_module("trim", None)
        self.register_module("limit", None)
        self.register_module("spread", None)
        self.register_module("tail", None)

    @property
    def condition_columns(self) -> int | None:
        """How many columns the condition has; None where the backbone takes it as it is."""
        return None if self.condition_scaling is None else len(self.condition_scaling.location)

    @property
    def unused(self) -> tuple[int, ...]:
        """The columns of numbers that are checked, but not read."""
        return () if self.condition_scaling is None else self.condition_scaling.unused

    @property
    def discrete(self) -> bool:
        """Whether some targets are whole numbers, trained as cells with noise in them."""
        return any(transform.discrete for transform in self.transforms or ())

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The dtype the network computes in."""

    @property
    @abstractmethod
    def form(self) -> type[Head[Any]]:
        """The class of the head, which knows what the parameters mean."""

    @abstractmethod
    def free_parameters(self, condition: Tensor) -> Parameters:
        """Return the parameters for standardised conditions, without `extrapolate`."""

    @abstractmethod
    def _free_nll(self, condition: Tensor, target: Tensor) -> Tensor:
        """Return the negative log-likelihood of each row under `free_parameters`."""

    def _free_loss(self, condition: Tensor, target: Tensor, weights: Tensor | None) -> Tensor:
        """Return the weighted sum of these, on the fastest path."""
        return weighted_sum(self._free_nll(condition, target), weights)

    @abstractmethod
    def components(self, logits: Tensor, start: Start) -> Parameters:
        """Return components [S] of the head's form, whatever the condition."""

    @abstractmethod
    def start(
        self,
        condition: Tensor,
        target: Tensor,
        generator: Generator,
        parts: Sequence[Tensor] | None = None,
    ) -> None:
        """Place the components on standardised rows; of each member, on its part of them."""

    def parameters_of(self, condition: Tensor, *, tail: bool = True) -> Parameters:
        """Return the parameters of the mixtures of standardised targets.

        `trim` leaves out the lightest, none is wider than the `limit`; `extrapolate` changes those
        of rows far outside the training rows; then `spread` scales them, and the `tail` comes
        last, without which they are those of the body alone.

        Shapes: condition [b, C], standardised.
        """
        body = self._extrapolated(condition)
        if self.spread is not None:
            body = self.spread(body)
        return self.tail(body) if tail and self.tail is not None else body

    def _extrapolated(self, condition: Tensor) -> Parameters:
        scaling = self.condition_scaling
        if scaling is None or scaling.holds(condition):
            return self._trimmed(condition)
        departure = scaling.departure(condition)
        if not departure.dim() or not chooses_places(departure):
            return extrapolate(*self._both(condition, scaling.nearest(condition)), departure)
        rows = places(departure > 0)
        free, edge = self._both(condition, scaling.nearest(condition[rows]))
        return change_some(free, rows, lambda some: extrapolate(some, edge, departure[rows]))

    def _both(self, first: Tensor, second: Tensor) -> tuple[Parameters, Parameters]:
        """Return the parameters for both conditions."""
        if checks_values(first):
            return self._trimmed(first), self._trimmed(second)
        # Together, so that a graph has half as many nodes.
        rows = [torch.atleast_2d(condition) for condition in (first, second)]
        both = self._trimmed(torch.cat(rows))
        parts = (tensor.split([some.shape[0] for some in rows]) for tensor in both)
        ours, others = (type(both)(*part) for part in zip(*parts, strict=True))
        if first.dim() > 1:
            return ours, others
        return type(both)(*(t[0] for t in ours)), type(both)(*(t[0] for t in others))

    def _trimmed(self, condition: Tensor) -> Parameters:
        body = self.free_parameters(condition)
        if self.trim is not None:
            body = self.trim(body)
        return body if self.limit is None else self.limit(body)

    def mixture_of(self, condition: Tensor, *, tail: bool = True) -> Mixture:
        """Return the mixtures of standardised targets for standardised conditions."""
        return self.form.mixture(self.parameters_of(condition, tail=tail), self.names)

    def standard_nll(self, condition: Tensor, target: Tensor) -> Tensor:
        """Return the negative log-likelihood of each standardised row."""
        if self._is_free(condition):
            body = self._free_nll(condition, target)
        else:
            body = self.form.nll_of(self.parameters_of(condition, tail=False), target)
        return body if self.tail is None else self.tail.nll(body, target)

    def _is_free(self, condition: Tensor) -> bool:
        """Tell whether the body has its `free_parameters` at these standardised conditions."""
        if any(part is not None for part in (self.trim, self.limit, self.spread)):
            return False
        return self.condition_scaling is None or self.condition_scaling.holds(condition)

    def standard_loss(
        self, condition: Tensor, target: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        """Return Σ weights · −log p of standardised rows, the mean by default."""
        if self.tail is None and self._is_free(condition):
            return self._free_loss(condition, target, weights)
        return weighted_sum(self.standard_nll(condition, target), weights)

    def forward(self, condition: Tensor, *, tail: bool = True) -> Mixture:
        """Return the mixtures, in the original units and the dtype of the condition.

        With `tail=False` without the components of the tail, which come last, if there are any.
        Shapes: condition [b, C], or what the backbone takes → batch shape [b].
        """
        self._check_condition(condition)
        mixture = self.target_scaling.inverse(
            self.mixture_of(self.standardise_condition(condition), tail=tail)
        )
        if self.transforms is not None:
            assert isinstance(mixture, GaussianMixture)  # transforms need triangular heads
            mixture = TransformedMixture(mixture, self.transforms)
        return mixture.to(condition.dtype if condition.is_floating_point() else self.dtype)

    @property
    @abstractmethod
    def member_sizes(self) -> list[int]:
        """The number of components of each member; of a single network, all."""

    @torch.no_grad()
    def entropies(
        self, condition: Tensor, *, n_samples: int = 1000, generator: Generator | None = None
    ) -> Entropies:
        """Estimate what the densities leave open, and how much of it members disagree about.

        Of a single network, which nobody disagrees with, the epistemic part is 0 by definition.
        The tail, which belongs to no member, is left out. Some rows at a time. Shapes: condition
        [b, C] → [b].
        """
        sizes = self.member_sizes
        count = as_whole("n_samples", n_samples, 2, fix="Pass 1000, for instance.")
        numbers = count * sum(sizes) * (self.dimensions + 2)
        found = [
            entropies(self(part, tail=False), sizes, n_samples=count, generator=generator)
            for part in condition.split(max(1, NUMBERS_PER_BLOCK // numbers))
        ]
        columns = zip(*found, strict=True)
        return Entropies(*(Estimate(*map(torch.cat, zip(*part, strict=True))) for part in columns))

    def loss(self, condition: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return Σ weights · −log p(target | condition), the mean by default.

        NaN entries of the target are unobserved. While torch.compile or torch.export record, only
        shapes are checked, and NaN entries give NaN where some targets are whole numbers.
        Shapes: target [b, D], weights [b] → [].
        """
        if self.discrete:
            return weighted_sum(self.nll(condition, target), weights)
        self.check(condition, target)
        return self.standard_loss(
            self.standardise_condition(condition), self.standardise_target(target), weights
        ) + self.log_scale(self.real_target(target), weights)

    def nll(self, condition: Tensor, target: Tensor) -> Tensor:
        """Return −log p(target | condition) of each row. Shapes: target [b, D] → [b]."""
        self.check(condition, target)
        if self.discrete:
            density = self(condition)
            return -(
                density.observed_log_prob(target)
                if checks_values(target)
                else density.log_prob(target)
            )
        return self.standard_nll(
            self.standardise_condition(condition), self.standardise_target(target)
        ) + self.row_log_scale(self.real_target(target)).to(self.dtype)

    def standardise_condition(self, condition: Tensor) -> Tensor:
        """Return the condition as the backbone reads it; whole numbers (tokens, …) stay whole."""
        if self.condition_scaling is None:
            return condition.to(self.dtype) if condition.is_floating_point() else condition
        self._check_columns(condition)
        return self.condition_scaling(condition, self.dtype)

    def standardise_target(self, target: Tensor, generator: Generator | None = None) -> Tensor:
        """Return `real_target` standardised, which the head's density is over."""
        return self.target_scaling(self.real_target(target, generator)).to(self.dtype)

    def log_scale(self, real: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the correction of the NLL from standardised to original units, reduced."""
        return weighted_sum(self.row_log_scale(real), weights).to(self.dtype)

    def row_log_scale(self, real: Tensor) -> Tensor:
        """Return this correction for each row, in double precision. Shapes: [b, D] → [b].

        Σⱼ log scaleⱼ − log (∂realⱼ/∂targetⱼ) over the observed entries of `real_target`.
        """
        each = (~real.isnan()).to(torch.float64) @ self.target_scaling.scale.log()
        for transform, column in zip(self.transforms or (), real.unbind(1), strict=False):
            each = each - transform.log_slope_at(column).nan_to_num(nan=0.0)
        return each

    def tail_around(
        self, target: Tensor, weights: Tensor | None = None, *, weight: float = 0.001
    ) -> Tail:
        """Return a tail of some weight around targets; see `condens.nn.adjustment.surround`.

        Shapes: target [n, D], in original units; weights [n].
        """
        real = self.real_target(target, Generator(target.device).manual_seed(0))
        made = surround(self.target_scaling(real), weights, self.transforms, self.target_scaling)
        return Tail(weight, self.form, self.components(*made))

    def reach_of(self, target: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return how far targets are from their mean at most, standardised, and at least 1 [D].

        Shapes: target [n, D], in original units; weights [n].
        """
        real = self.real_target(target, Generator(target.device).manual_seed(0))
        standard = self.target_scaling(real)
        centre, _ = moments(standard, weights)
        distances = (standard - centre).abs().nan_to_num(nan=0.0)
        if weights is not None:
            distances = distances * (weights > 0).unsqueeze(-1)
        # Few rows, and others than those it is standardised by, may hardly vary.
        return distances.amax(0).clamp(min=1.0)

    def drop_adjustment(self) -> None:
        """Drop `trim`, `limit`, `spread` and `tail`: they were set for other weights."""
        self.trim = self.limit = self.spread = self.tail = None

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        # As many parts as the state has; those without memory get their tensors next.
        device = self.target_scaling.scale.device
        if f"{prefix}trim.part" not in state_dict:
            self.trim = None
        elif self.trim is None:
            self.trim = Trim(0.5).to(device)
        if f"{prefix}limit.factor" not in state_dict:
            self.limit = None
        elif self.limit is None:
            self.limit = empty_limit(self)
        if f"{prefix}spread.factor" not in state_dict:
            self.spread = None
        elif self.spread is None:
            self.spread = Spread().to(device)
        if f"{prefix}tail.weight" not in state_dict:
            self.tail = None
        elif self.tail is None:
            self.tail = empty_tail(self)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extend_range(self, condition: Tensor) -> None:
        """Widen the training range to hold these conditions too; the scales stay."""
        if self.condition_scaling is not None:
            self._check_columns(condition)
            self.condition_scaling.extend(condition)
            self._share_scaling()

    def _share_scaling(self) -> None:
        """Pass new scales and ranges on to the members, if the network has any."""

    @torch.no_grad()
    def prepare(
        self,
        condition: Tensor,
        target: Tensor,
        *,
        generator: Generator | None = None,
        from_data: bool = True,
        parts: Sequence[Tensor] | None = None,
        statistics: tuple[ColumnStatistics, ColumnStatistics] | None = None,
    ) -> Self:
        """Take the scales from data, and place the components on the targets.

        With `from_data=False` only the scales: every component starts as the same standard
        normal. The components of a member of an ensemble are placed on its part of the rows, if
        `parts` has their numbers. Where the data are a sample of more, `statistics` of all
        conditions and of all real coordinates of the targets decide the scales.
        """
        self.check(condition, target)
        self.drop_adjustment()
        embeddings = [module for module in self.modules() if isinstance(module, PiecewiseLinear)]
        generator = Generator().manual_seed(0) if generator is None else generator
        real, standard = self.real_target(target, generator), condition
        if statistics is None:
            if self.condition_scaling is not None:
                self.condition_scaling.fit(condition, "condition")
            if embeddings or from_data:
                standard = self.standardise_condition(condition)
            for module in embeddings:
                module.fit(standard)
            self.target_scaling.fit(real, "target")
        else:
            conditions, targets = statistics
            if self.condition_scaling is not None:
                self.condition_scaling.take(conditions)
            for module in embeddings:
                quantiles = self.standardise_condition(conditions.quantiles(module.levels))
                module.take(quantiles.T)
            self.target_scaling.take(targets)
            standard = self.standardise_condition(condition)
        self._share_scaling()
        if from_data:
            self.start(standard, self.target_scaling(real), generator, parts)
        return self

    def check(self, condition: Tensor, target: Tensor) -> None:
        """Raise a named error unless the rows fit this network."""
        if target.dim() != 2 or target.shape[1] != self.dimensions:
            raise ShapeError(
                "target",
                got=f"has shape {list(target.shape)}",
                expected=f"[rows, {self.dimensions}] was expected",
                fix="Pass one column for each dimension.",
            )
        # Not by len(), which would fix the number of rows of an exported graph.
        if condition.shape[:1] != target.shape[:1]:
            raise ShapeError(
                "condition",
                got=f"has {condition.shape[0] if condition.dim() else 'no'} rows",
                expected=f"target has {target.shape[0]}",
                fix="Pass one condition for each row of target.",
            )
        self._check_condition(condition)
        for column, transform in enumerate(self.transforms or ()):
            transform.check(
                f"target {self.names[column] if self.names else column}", target[:, column]
            )

    def real_target(self, target: Tensor, generator: Generator | None = None) -> Tensor:
        """Return the real coordinates of targets [b, D], in double precision.

        Whole numbers become the middles of their cells or, with a generator, uniform in them.
        """
        if self.transforms is None:
            return target.double()
        return torch.stack(
            [
                transform.dequantise(column, generator)
                if generator is not None and isinstance(transform, Integer)
                else transform.to_real(column)
                for transform, column in zip(self.transforms, target.unbind(1), strict=True)
            ],
            1,
        )

    def _check_condition(self, condition: Tensor) -> None:
        self._check_columns(condition)
        if not condition.is_floating_point() or not checks_values(condition):
            return
        for number, some in enumerate(torch.atleast_1d(condition).split(ROWS_PER_BLOCK)):
            wrong = ~some.isfinite()
            if bool(wrong.any()):
                row = number * ROWS_PER_BLOCK + int(wrong.nonzero()[0, 0])
                raise NotFiniteError(
                    "condition",
                    got=f"is NaN or infinite in row {row}",
                    expected="the network reads every entry",
                    fix="Drop such rows, or fill the entries (and add a column that marks them).",
                )

    def _check_columns(self, condition: Tensor) -> None:
        columns = self.condition_columns
        # Without this, a single column would broadcast to all of them.
        if columns is not None and condition.shape[-1:] != (columns,):
            raise ShapeError(
                "condition",
                got=f"has shape {list(condition.shape)}",
                expected=f"[rows, {columns}] was expected",
                fix="Pass one column for each feature.",
            )


def empty_limit(network: DensityNetwork) -> Limit:
    """Return a limit with the shape that a network's has, for a state to be loaded into."""
    return Limit(1.0, torch.ones_like(network.target_scaling.scale))


def empty_tail(network: DensityNetwork) -> Tail:
    """Return a tail with the shapes that a network's has, for a state to be loaded into."""
    device, dimensions = network.target_scaling.scale.device, network.dimensions
    zeros = torch.zeros(len(SCALES), dimensions, dtype=torch.float64, device=device)
    start = Start(zeros, torch.diag_embed(zeros + 1))
    return Tail(0.5, network.form, network.components(zeros[:, 0].clone(), start)).to(device)


def _check_unused(unused: Sequence[int], columns: int) -> tuple[int, ...]:
    """Return columns of numbers in order, each once."""
    every = set(unused)
    if not all(type(column) is int and 0 <= column < columns for column in every):
        raise ArgumentError(
            "unused",
            got=f"is {list(unused)!r}",
            expected=f"positions of the {columns} columns of numbers were expected",
            fix="Count them from 0.",
        )
    return tuple(sorted(every))
