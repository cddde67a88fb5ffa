"""Heads that predict triangular factors of the precisions: full, diagonal, isotropic, tied."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from condens.distributions.gaussian import GaussianMixture
from condens.functional import algebra, linear_loss, loss, nll
from condens.functional.algebra import Parameters
from condens.functional.missing import partial_log_prob
from condens.functional.tracing import anywhere, checks_values
from condens.functional.triangular import bounded_scales, packed_size
from condens.nn.heads.base import Head
from condens.nn.initialise import Start


class TriangularHead(Head[Parameters]):
    """Base class: the last outputs become packed triangular factors."""

    triangular = True
    # Whether the last outputs are one packed factor a component, which the fused loss reads.
    packed: ClassVar[bool] = False

    def _factors_of(self, outputs: Tensor) -> Tensor:
        """Return packed factors [..., K, T] from the last outputs [..., S], within the bounds."""
        factors = outputs.unflatten(-1, (self.n_components, -1))
        return bounded_scales(factors, self.dimensions, self.floor, self.ceiling)

    def parameters_of(self, features: Tensor) -> Parameters:
        """Return logits [..., K], means [..., K, D] and factors [..., K, T]."""
        logits, means, scales = self._split(self.linear(features))
        return Parameters(logits, means, self._factors_of(scales))

    def components(self, logits: Tensor, start: Start) -> Parameters:
        """Return components with these covariances."""
        return Parameters(logits, start.means, start.factors)

    join = staticmethod(algebra.ensemble)

    @staticmethod
    def mixture(parameters: Parameters, names: Sequence[str] | None = None) -> GaussianMixture:
        """Return the mixtures that have these parameters."""
        return GaussianMixture(*parameters, names=names, validate_args=False)

    @staticmethod
    def nll_of(parameters: Parameters, target: Tensor) -> Tensor:
        """Return −log p(target) of each row; NaN entries are unobserved."""
        if not checks_values(target) or anywhere(target.isnan()):
            return -partial_log_prob(target, *parameters)
        return nll(target, *parameters)

    def _unbounded_factors(self, factors: Tensor) -> Tensor:
        """Return the outputs that become these packed factors."""
        diagonal = self._unbounded(factors[..., : self.dimensions])
        return torch.cat([diagonal, factors[..., self.dimensions :]], -1)

    def _loss(
        self, features: Tensor, target: Tensor, weights: Tensor | None, *, gaps: bool
    ) -> Tensor:
        # The fused loss computes every gradient along the way: a waste where none is asked for.
        if self.packed and torch.is_grad_enabled():
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
        if self.packed or gaps:
            return super()._loss(features, target, weights, gaps=gaps)
        return loss(target, *self.parameters_of(features), weights)


class FullHead(TriangularHead):
    """Every component has its own full covariance."""

    covariance = "full"
    packed = True

    @property
    def _scale_outputs(self) -> int:
        return self.n_components * packed_size(self.dimensions)

    def _scales_from(self, start: Start) -> Tensor:
        return self._unbounded_factors(start.factors).flatten()


class DiagonalHead(TriangularHead):
    """Every component has independent dimensions."""

    covariance = "diagonal"
    packed = True

    @property
    def _scale_outputs(self) -> int:
        return self.n_components * self.dimensions

    def components(self, logits: Tensor, start: Start) -> Parameters:
        """Return components with these variances."""
        return Parameters(logits, start.means, -start.scales.log())

    def _scales_from(self, start: Start) -> Tensor:
        return self._unbounded(-start.scales.log()).flatten()


class IsotropicHead(TriangularHead):
    """Every component has one scale for all dimensions."""

    covariance = "isotropic"

    @property
    def _scale_outputs(self) -> int:
        return self.n_components

    def _factors_of(self, outputs: Tensor) -> Tensor:
        return bounded_scales(outputs.unsqueeze(-1), 1, self.floor, self.ceiling).expand(
            *outputs.shape, self.dimensions
        )

    def components(self, logits: Tensor, start: Start) -> Parameters:
        """Return components with the smallest of the scales: no dimension gets a wider one."""
        return Parameters(
            logits, start.means, -start.scales.amin(-1, keepdim=True).log().expand_as(start.means)
        )

    def _scales_from(self, start: Start) -> Tensor:
        return self._unbounded(-start.scales.log().mean(-1))


class TiedHead(TriangularHead):
    """One full covariance, which varies with the condition, for all components."""

    covariance = "tied"

    @property
    def _scale_outputs(self) -> int:
        return packed_size(self.dimensions)

    def _factors_of(self, outputs: Tensor) -> Tensor:
        factors = bounded_scales(outputs, self.dimensions, self.floor, self.ceiling).unsqueeze(-2)
        return factors.expand(*factors.shape[:-2], self.n_components, -1)

    def _scales_from(self, start: Start) -> Tensor:
        return self._unbounded_factors(start.factors.mean(0))
