"""From features to a mixture: one class for each structure of the covariances.

A head is a linear layer and the meaning of its outputs. Every scale has a floor and a ceiling
inside the factor, σ = floor + 1/(exp(u) + 1/ceiling), so that the density stays normalised and
bounded, and its quantiles finite.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Generator, Tensor, nn

from condens.distributions.gaussian import GaussianMixture
from condens.distributions.low_rank import LowRankMixture
from condens.errors import ArgumentError, ShapeError
from condens.functional import algebra, linear_loss, loss, nll
from condens.functional.algebra import Parameters
from condens.functional.fused_linear import Layout
from condens.functional.losses import weighted_sum
from condens.functional.missing import partial_log_prob
from condens.functional.tracing import anywhere, checks_values
from condens.functional.triangular import bounded_scales, check_bounds, packed_size
from condens.kernels.checks import check, check_strided, check_weights
from condens.nn.initialise import Start
from condens.nn.randomness import linear

Mixture = GaussianMixture | LowRankMixture

# In units of the standardised targets. The ceiling is wider than the tails that a component has
# to reach (standardising goes by the quartiles where outliers are 20 deviations wide), and it
# changes a scale of one by a ten-thousandth.
FLOOR, CEILING = 1e-3, 1e4
# Size of the first outputs' dependence on the features: small, so that the start decides.
GAIN = 0.1


class Head(nn.Module, ABC):
    """Maps features [b, F] to mixtures of K components over D dimensions.

    Args:
        features: F.
        dimensions: D.
        n_components: K.
        floor: added to every scale, in units of the standardised target; 0 for none.
        ceiling: of every scale before that; None for none.
        generator: of the first weights; by default torch's.
    """

    covariance: ClassVar[str]

    def __init__(
        self,
        features: int,
        dimensions: int,
        n_components: int = 10,
        *,
        floor: float = FLOOR,
        ceiling: float | None = CEILING,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        for name, value in (
            ("features", features),
            ("dimensions", dimensions),
            ("n_components", n_components),
        ):
            if not value >= 1:
                raise ArgumentError(
                    name, got=f"is {value}", expected="at least 1 was expected", fix="Change it."
                )
        self.dimensions, self.n_components = int(dimensions), int(n_components)
        self.floor, self.ceiling = float(floor), math.inf if ceiling is None else float(ceiling)
        check_bounds(self.floor, self.ceiling)
        self.linear = linear(features, self._outputs, generator)
        with torch.no_grad():
            self.linear.weight.mul_(GAIN)
            self.linear.bias.zero_()

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments that make another one like this.

        >>> FullHead(16, 2, 3).to_dict()
        {'features': 16, 'dimensions': 2, 'components': 3, 'floor': 0.001, 'ceiling': 10000.0}
        """
        return {
            "features": int(self.linear.in_features),
            "dimensions": int(self.dimensions),
            "n_components": int(self.n_components),
            "floor": float(self.floor),
            "ceiling": None if self.ceiling == math.inf else float(self.ceiling),
        }

    @property
    def _outputs(self) -> int:
        return self.n_components * (1 + self.dimensions) + self._scale_outputs

    @property
    @abstractmethod
    def _scale_outputs(self) -> int:
        """How many outputs describe the covariances; they follow the logits and the means."""

    @abstractmethod
    def _scales_from(self, start: Start) -> Tensor:
        """Return the outputs [S] that describe the covariances of a start best."""

    @abstractmethod
    def parameters_of(self, features: Tensor) -> Any:
        """Return the mixtures' parameters."""

    @staticmethod
    @abstractmethod
    def join(members: Sequence[Any], log_weights: Tensor) -> Any:
        """Return the parameters of an ensemble, from those of its members."""

    @staticmethod
    @abstractmethod
    def mixture(parameters: Any, names: Sequence[str] | None = None) -> Mixture:
        """Return the mixtures that have these parameters."""

    @staticmethod
    @abstractmethod
    def nll_of(parameters: Any, target: Tensor) -> Tensor:
        """Return −log p(target) of each row; entries that are NaN were not observed."""

    def forward(self, features: Tensor, names: Sequence[str] | None = None) -> Mixture:
        """Return the mixtures."""
        return self.mixture(self.parameters_of(features), names)

    def nll(self, features: Tensor, target: Tensor) -> Tensor:
        """Return −log p(target) of each row; entries that are NaN were not observed."""
        if target.shape != (*features.shape[:-1], self.dimensions):
            raise ShapeError(
                "target",
                got=f"has shape {list(target.shape)}",
                expected=f"{[*features.shape[:-1], self.dimensions]} was expected",
                fix="Pass a row for each row of features, and a column for each dimension.",
            )
        return self.nll_of(self.parameters_of(features), target)

    def logits_of(self, features: Tensor) -> Tensor:
        """Return the logits of the weights alone [..., K]."""
        weight, bias = (
            self.linear.weight[: self.n_components],
            self.linear.bias[: self.n_components],
        )
        return nn.functional.linear(features, weight, bias)

    def loss(
        self,
        features: Tensor,
        target: Tensor,
        weights: Tensor | None = None,
        *,
        complete: bool = False,
    ) -> Tensor:
        """Return Σ weights · −log p(target), the mean by default, by the fastest way there is.

        Entries of the target that are NaN were not observed: such a row counts with the
        exact marginal density of the others. `complete` says that there are none, which saves
        time while torch.compile or torch.export record: every row then counts as incomplete.
        """
        check_strided("features", features)
        rows, inputs = features.shape[:-1], self.linear.in_features
        named = (
            ("features", features, (*rows, inputs)),
            ("target", target, (*rows, self.dimensions)),
        )
        check(named, self.linear.weight)
        if weights is not None:
            weights = check_weights(weights, target)
        if complete:
            return self._complete_loss(features, target, weights)
        if not checks_values(target):
            return weighted_sum(self.nll(features, target), weights)
        if bool(target.isnan().any()):
            return self._partial_loss(features, target, weights)
        return self._complete_loss(features, target, weights)

    def _complete_loss(self, features: Tensor, target: Tensor, weights: Tensor | None) -> Tensor:
        """Return the loss of rows that have every entry."""
        return weighted_sum(self.nll(features, target), weights)

    def _partial_loss(self, features: Tensor, target: Tensor, weights: Tensor | None) -> Tensor:
        """Return the loss of rows some of which have gaps."""
        return weighted_sum(self.nll(features, target), weights)

    @torch.no_grad()
    def start_from(self, start: Start) -> None:
        """Begin at these components, with equal weights, whatever the features."""
        logits = torch.zeros(self.n_components, dtype=start.means.dtype)
        bias = torch.cat([logits, start.means.flatten(), self._scales_from(start)])
        self.linear.bias.copy_(bias)

    @torch.no_grad()
    def with_components(self, kept: Sequence[int]) -> Self:
        """Return a head with some of the components, its other outputs as they are."""
        made = self._of(len(kept)).to(self.linear.weight)
        first, second = self.n_components, self.n_components * (1 + self.dimensions)
        for ours, theirs in (
            (self.linear.weight, made.linear.weight),
            (self.linear.bias, made.linear.bias),
        ):
            parts = [ours[:first], ours[first:second], ours[second:]]
            shared = len(parts[2]) == made._scale_outputs
            chosen = [
                part.unflatten(0, (first, -1))[list(kept)].flatten(0, 1) for part in parts[:2]
            ]
            rest = (
                parts[2] if shared else parts[2].unflatten(0, (first, -1))[list(kept)].flatten(0, 1)
            )
            theirs.copy_(torch.cat([*chosen, rest]))
        return made

    def _of(self, n_components: int) -> Self:
        """Return a new head that differs in the number of components only."""
        made = copy.deepcopy(self)
        made.n_components = n_components
        # From a generator of no account: its numbers are written over.
        made.linear = linear(self.linear.in_features, made._outputs, Generator())
        return made

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first, second = self.n_components, self.n_components * (1 + self.dimensions)
        means = outputs[..., first:second].unflatten(-1, (self.n_components, self.dimensions))
        return outputs[..., :first], means, outputs[..., second:]

    def _unbounded(self, log_diagonal: Tensor) -> Tensor:
        """Return the u with floor + 1/(exp(u) + 1/ceiling) = exp(−log_diagonal).

        As far as there is one: scales too near to a bound become ones that are not.
        """
        rest = (-log_diagonal).exp() - self.floor
        if self.floor:
            rest = rest.clamp(min=0.1 * self.floor)
        # At least 0.1/ceiling: a scale of ten elevenths of the ceiling is the widest start.
        return (1 / rest - 1 / self.ceiling).clamp(min=0.1 / self.ceiling).log()


class TriangularHead(Head):
    """Predicts triangular factors of the precisions, in one way or another."""

    @abstractmethod
    def _factors_of(self, outputs: Tensor) -> Tensor:
        """Return packed factors [..., K, T] from the last outputs [..., S], within the bounds."""

    def parameters_of(self, features: Tensor) -> Parameters:
        """Return logits [..., K], means [..., K, D] and factors [..., K, T]."""
        logits, means, scales = self._split(self.linear(features))
        return Parameters(logits, means, self._factors_of(scales))

    join = staticmethod(algebra.ensemble)

    @staticmethod
    def mixture(parameters: Parameters, names: Sequence[str] | None = None) -> GaussianMixture:
        """Return the mixtures that have these parameters."""
        return GaussianMixture(*parameters, names=names, validate_args=False)

    @staticmethod
    def nll_of(parameters: Parameters, target: Tensor) -> Tensor:
        """Return −log p(target) of each row; entries that are NaN were not observed."""
        if not checks_values(target) or anywhere(target.isnan()):
            return -partial_log_prob(target, *parameters)
        return nll(target, *parameters)

    def _complete_loss(self, features: Tensor, target: Tensor, weights: Tensor | None) -> Tensor:
        return loss(target, *self.parameters_of(features), weights)


class _Packed(TriangularHead):
    """A factor for each component, as the fused loss reads it."""

    @property
    def _layout(self) -> Layout:
        """Where the parameters lie among the outputs."""
        return Layout.of(self.n_components, self.dimensions, self.covariance)

    @property
    def _scale_outputs(self) -> int:
        return self.n_components * self._layout.packed

    def _factors_of(self, outputs: Tensor) -> Tensor:
        factors = outputs.unflatten(-1, (self.n_components, self._layout.packed))
        return bounded_scales(factors, self.dimensions, self.floor, self.ceiling)

    def _scales_from(self, start: Start) -> Tensor:
        diagonal = self._unbounded(start.factors[:, : self.dimensions])
        strict = start.factors[:, self.dimensions : self._layout.packed]
        return torch.cat([diagonal, strict], -1).flatten()

    def _complete_loss(self, features: Tensor, target: Tensor, weights: Tensor | None) -> Tensor:
        if not torch.is_grad_enabled():  # the fused way makes every gradient on its way
            return weighted_sum(self.nll(features, target), weights)
        return self._fused_loss(features, target, weights)

    def _partial_loss(self, features: Tensor, target: Tensor, weights: Tensor | None) -> Tensor:
        if not torch.is_grad_enabled():
            return super()._partial_loss(features, target, weights)
        return self._fused_loss(features, target, weights, gaps=True)

    def _fused_loss(
        self, features: Tensor, target: Tensor, weights: Tensor | None, *, gaps: bool = False
    ) -> Tensor:
        return linear_loss(
            features,
            self.linear.weight,
            self.linear.bias,
            target,
            self.n_components,
            weights,
            floor=self.floor,
            ceiling=self.ceiling,
            gaps=gaps,
        )


class FullHead(_Packed):
    """Every component has a full covariance of its own."""

    covariance = "full"


class DiagonalHead(_Packed):
    """Every component has independent dimensions."""

    covariance = "diagonal"

    def _scales_from(self, start: Start) -> Tensor:
        return self._unbounded(_marginal_log_diagonals(start)).flatten()


class IsotropicHead(TriangularHead):
    """Every component has one scale for all dimensions."""

    covariance = "isotropic"

    @property
    def _scale_outputs(self) -> int:
        return self.n_components

    def _factors_of(self, outputs: Tensor) -> Tensor:
        lifted = bounded_scales(outputs.unsqueeze(-1), 1, self.floor, self.ceiling)
        return lifted.expand(*lifted.shape[:-1], self.dimensions)

    def _scales_from(self, start: Start) -> Tensor:
        return self._unbounded(_marginal_log_diagonals(start).mean(-1))


class TiedHead(TriangularHead):
    """One full covariance, which varies with the condition, for all components."""

    covariance = "tied"

    @property
    def _scale_outputs(self) -> int:
        return packed_size(self.dimensions)

    def _factors_of(self, outputs: Tensor) -> Tensor:
        lifted = bounded_scales(outputs, self.dimensions, self.floor, self.ceiling).unsqueeze(-2)
        return lifted.expand(*lifted.shape[:-2], self.n_components, -1)

    def _scales_from(self, start: Start) -> Tensor:
        mean = start.factors.mean(0)
        diagonal = self._unbounded(mean[: self.dimensions])
        return torch.cat([diagonal, mean[self.dimensions :]])


def _marginal_log_diagonals(start: Start) -> Tensor:
    """Return −log of the standard deviations of a start's components [K, D]."""
    return -0.5 * start.covariances.diagonal(dim1=-2, dim2=-1).log()
