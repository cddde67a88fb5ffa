"""What training and prediction need of a network that gives densities."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Generator, Tensor, nn

from condens.distributions.transformed import TransformedMixture, check_transforms
from condens.errors import ArgumentError, NotFiniteError, ShapeError
from condens.functional.tracing import anywhere, checks_values
from condens.kernels.passes import weighted_sum
from condens.nn.extrapolation import extrapolate
from condens.nn.heads.triangular import Head, Mixture
from condens.nn.scaling import ConditionScaling, Standardiser
from condens.transforms import Integer, Transform


class DensityNetwork(nn.Module, ABC):
    """A network from a condition to the density of D targets.

    It has two doors: calling it gives a `GaussianMixture` (a `LowRankMixture` for heads of
    low rank) in the target's own units, and `nll` gives the loss, by the fastest way there
    is, without building the object. Both agree. Condition and target are standardised inside,
    with statistics that `prepare` takes from the training data and that are part of the
    network's state. Far outside the training rows conditions are read as less far, see
    `condens.nn.scaling.ConditionScaling`, and no density is narrower than at their edge, see
    `condens.nn.extrapolation.extrapolate`. The last `condition_codes` columns of the condition
    are codes of categories, which are neither standardised nor given noise. With `transforms`,
    one for each target, the density is that of constrained targets, a `TransformedMixture`.
    """

    condition_scaling: ConditionScaling | None
    target_scaling: Standardiser
    names: tuple[str, ...] | None
    transforms: tuple[Transform, ...] | None

    def __init__(
        self,
        dimensions: int,
        condition_columns: int | None,
        names: Sequence[str] | None,
        condition_codes: int = 0,
        transforms: Sequence[Transform] | None = None,
    ) -> None:
        super().__init__()
        whole = type(condition_codes) is int
        if not whole or not 0 <= condition_codes <= (condition_columns or 0):
            raise ArgumentError(
                "condition_codes",
                got=f"is {condition_codes!r}",
                expected=f"0 to {condition_columns or 0} was expected, of so many "
                "condition_columns",
                fix="Change either.",
            )
        self.dimensions, self.condition_codes = dimensions, condition_codes
        self.condition_scaling = (
            None
            if condition_columns is None
            else ConditionScaling(condition_columns, fixed=condition_codes)
        )
        self.target_scaling = Standardiser(dimensions)
        self.names = None if names is None else tuple(names)
        self.transforms = None if transforms is None else check_transforms(transforms, dimensions)

    @property
    def discrete(self) -> bool:
        """Whether some targets are whole numbers, trained as cells with noise in them."""
        return any(own.discrete for own in self.transforms or ())

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The dtype the network computes in."""

    @property
    @abstractmethod
    def form(self) -> type[Head]:
        """The kind of head, which knows what the parameters mean."""

    @abstractmethod
    def free_parameters(self, condition: Tensor) -> Any:
        """Return the parameters for standardised conditions, also far outside the training rows."""

    @abstractmethod
    def _free_nll(self, condition: Tensor, target: Tensor) -> Tensor:
        """Return the negative log-likelihood of each row under `free_parameters`."""

    @abstractmethod
    def _free_loss(self, condition: Tensor, target: Tensor, weights: Tensor | None) -> Tensor:
        """Return the sum of these by weight, by the fastest way there is."""

    @abstractmethod
    def start(self, target: Tensor, generator: Generator) -> None:
        """Place the components on standardised targets."""

    def parameters_of(self, condition: Tensor) -> Any:
        """Return the parameters of the mixtures of standardised targets.

        Far outside the training rows by `extrapolate`. Shapes: condition standardised, [b, C].
        """
        free, scaling = self.free_parameters(condition), self.condition_scaling
        if scaling is None or scaling.holds(condition):
            return free
        departure = scaling.departure(condition)
        if not departure.dim() or not checks_values(departure):
            edge = self.free_parameters(scaling.nearest(condition))
            return extrapolate(free, edge, departure)
        rows = departure > 0
        edge = self.free_parameters(scaling.nearest(condition[rows]))
        chosen = type(free)(*(tensor[rows] for tensor in free))
        parts = zip(free, extrapolate(chosen, edge, departure[rows]), strict=True)
        return type(free)(*(tensor.index_put((rows,), far) for tensor, far in parts))

    def mixture_of(self, condition: Tensor) -> Mixture:
        """Return the mixtures of standardised targets for standardised conditions."""
        return self.form.mixture(self.parameters_of(condition), self.names)

    def standard_nll(self, condition: Tensor, target: Tensor) -> Tensor:
        """Return the negative log-likelihood of each standardised row."""
        if self.condition_scaling is None or self.condition_scaling.holds(condition):
            return self._free_nll(condition, target)
        return self.form.nll_of(self.parameters_of(condition), target)

    def standard_loss(
        self, condition: Tensor, target: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        """Return the negative log-likelihood of what is standardised already."""
        if self.condition_scaling is None or self.condition_scaling.holds(condition):
            return self._free_loss(condition, target, weights)
        return weighted_sum(self.standard_nll(condition, target), weights)

    def forward(self, condition: Tensor) -> Any:
        """Return the mixtures, in the target's own units and the dtype of the condition.

        Shapes: condition [b, C], or what the backbone takes → batch shape [b].
        """
        self._check_condition(condition)
        standard = self.mixture_of(self.standardise_condition(condition))
        mixture = self.target_scaling.inverse(standard)
        if self.transforms is not None:
            mixture = TransformedMixture(mixture, self.transforms)
        return mixture.to(condition.dtype if condition.is_floating_point() else self.dtype)

    def loss(self, condition: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return Σ weights · −log p(target | condition), the mean by default.

        Entries of the target that are NaN were not observed. While torch.compile or
        torch.export record, only shapes are checked, and NaN among targets of which some are
        whole numbers gives NaN. Shapes: target [b, D], weights [b] → [].
        """
        self.check(condition, target)
        if self.discrete:
            return weighted_sum(self._discrete_nll(condition, target), weights)
        loss = self.standard_loss(
            self.standardise_condition(condition), self.standardise_target(target), weights
        )
        return loss + self.log_scale(self.real_target(target), weights)

    def nll(self, condition: Tensor, target: Tensor) -> Tensor:
        """Return −log p(target | condition) of each row. Shapes: target [b, D] → [b]."""
        self.check(condition, target)
        if self.discrete:
            return self._discrete_nll(condition, target)
        rows = self.standard_nll(
            self.standardise_condition(condition), self.standardise_target(target)
        )
        return rows + self.row_log_scale(self.real_target(target)).to(self.dtype)

    def _discrete_nll(self, condition: Tensor, target: Tensor) -> Tensor:
        density = self(condition)
        ask = density.observed_log_prob if checks_values(target) else density.log_prob
        rows: Tensor = -ask(target)
        return rows

    def standardise_condition(self, condition: Tensor) -> Tensor:
        """Return what the backbone reads; whole numbers (tokens, …) stay whole."""
        if self.condition_scaling is None:
            return condition.to(self.dtype) if condition.is_floating_point() else condition
        self._check_columns(condition)
        return self.condition_scaling(condition, self.dtype)

    def standardise_target(self, target: Tensor, generator: Generator | None = None) -> Tensor:
        """Return what the head's density is over, `real_target` standardised."""
        return self.target_scaling(self.real_target(target, generator)).to(self.dtype)

    def log_scale(self, real: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return what standardising takes from the negative log-likelihood of `real_target`."""
        each = self.row_log_scale(real)
        total = each.mean() if weights is None else each @ weights.to(torch.float64)
        return total.to(self.dtype)

    def row_log_scale(self, real: Tensor) -> Tensor:
        """Return what it takes from each row, in double precision. Shapes: [b, D] → [b]."""
        each = (~real.isnan()).to(torch.float64) @ self.target_scaling.scale.log()
        for own, column in zip(self.transforms or (), real.unbind(1), strict=False):
            each = each - own.log_slope_at(column).nan_to_num(nan=0.0)
        return each

    def extend_range(self, condition: Tensor) -> Self:
        """Let the training range hold these conditions too; the scales stay."""
        if self.condition_scaling is not None:
            self._check_columns(condition)
            self.condition_scaling.extend(condition)
        return self

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
        generator = Generator().manual_seed(0) if generator is None else generator
        real = self.real_target(target, generator)
        self.target_scaling.fit(real, "target")
        if from_data:
            self.start(self.target_scaling(real).cpu(), generator)
        return self

    def check(self, condition: Tensor, target: Tensor) -> None:
        """Raise a named error where rows do not fit this network."""
        if target.dim() != 2 or target.shape[1] != self.dimensions:
            raise ShapeError(
                "target",
                got=f"has shape {list(target.shape)}",
                expected=f"[rows, {self.dimensions}] was expected",
                fix="Pass one column a dimension.",
            )
        # Not by len(), which would fix the number of rows of an exported graph.
        if condition.shape[:1] != target.shape[:1]:
            raise ShapeError(
                "condition",
                got=f"has {condition.shape[0] if condition.dim() else 'no'} rows",
                expected=f"target has {target.shape[0]}",
                fix="Pass one row for each.",
            )
        self._check_condition(condition)
        for column, own in enumerate(self.transforms or ()):
            own.check(f"target {self.names[column] if self.names else column}", target[:, column])

    def real_target(self, target: Tensor, generator: Generator | None = None) -> Tensor:
        """Return the real coordinates of targets [b, D], in double precision.

        Whole numbers are the middles of their cells or, with a generator, anywhere in them.
        """
        if self.transforms is None:
            return target.double()
        columns = [
            own.dequantise(column, generator)
            if generator is not None and isinstance(own, Integer)
            else own.to_real(column)
            for own, column in zip(self.transforms, target.unbind(1), strict=True)
        ]
        return torch.stack(columns, 1)

    def _check_condition(self, condition: Tensor) -> None:
        self._check_columns(condition)
        if condition.is_floating_point() and anywhere(~condition.isfinite()):
            row = int((~condition.isfinite()).nonzero()[0, 0])
            raise NotFiniteError(
                "condition",
                got=f"is NaN or infinite in row {row}",
                expected="the network reads every entry",
                fix="Drop such rows, or fill the entries (and add a column that tells which).",
            )

    def _check_columns(self, condition: Tensor) -> None:
        if self.condition_scaling is None:
            return
        columns = len(self.condition_scaling.location)
        # Without this, a single column would be read as if it were all of them.
        if condition.shape[-1:] != (columns,):
            raise ShapeError(
                "condition",
                got=f"has shape {list(condition.shape)}",
                expected=f"[rows, {columns}] was expected",
                fix="Pass one column a feature.",
            )
