"""Modules for export: log density, mixture and draws of a network by ONNX's operations alone.

Tensors in, tensors out, in original units: no distribution object, no kernel. Weights keep their
dtype; standardising and densities are in double precision, as in the network itself.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from condens.errors import ArgumentError
from condens.functional.mixture import log_prob
from condens.functional.precision import widen
from condens.functional.triangular import is_diagonal, unpack, unwhiten
from condens.nn import DensityNetwork
from condens.nn.heads.base import Parameters
from condens.transforms import Real, Transform


class Graph(nn.Module, ABC):
    """Base class: a network's answer to one question.

    Args:
        network: with triangular heads, on numbers.
    """

    inputs: ClassVar[tuple[str, ...]]
    outputs: ClassVar[tuple[str, ...]]

    def __init__(self, network: DensityNetwork) -> None:
        super().__init__()
        if not network.form.triangular:
            raise ArgumentError(
                "network",
                got=f"has a head with covariance {network.form.covariance!r}",
                expected="only triangular factors are exported",
                fix="Train with covariance 'full', 'diagonal', 'isotropic' or 'tied'.",
            )
        if network.condition_codes:
            raise ArgumentError(
                "network",
                got="reads codes of categories",
                expected="only numbers are exported",
                fix="Train on numbers, such as one column of 0 and 1 for each category.",
            )
        self.network = network
        self.transforms: tuple[Transform, ...] = (
            network.transforms or (Real(),) * network.dimensions
        )

    @abstractmethod
    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the answer."""

    def _standard(self, condition: Tensor) -> Parameters:
        """Return the mixtures of standardised targets, in double precision."""
        read = self.network.standardise_condition(condition)
        return self.network.parameters_of(read).to(torch.float64)


class LogDensity(Graph):
    """log p(target | condition); −inf outside the support, NaN where an entry is NaN.

    Shapes: condition [b, C], target [b, D] → [b].

    >>> from condens.nn import MixtureNetwork
    >>> network = MixtureNetwork.of(conditions=3, targets=2, n_components=4)
    >>> LogDensity(network)(torch.zeros(5, 3), torch.zeros(5, 2)).shape
    torch.Size([5])
    """

    inputs = ("condition", "target")
    outputs = ("log_density",)

    def __init__(self, network: DensityNetwork) -> None:
        super().__init__(network)
        if network.discrete:
            raise ArgumentError(
                "network",
                got="has targets that are whole numbers",
                expected="these are not exported",
                fix="Export what='mixture' or what='sample'.",
            )

    def forward(self, condition: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
        """Return the log density of each row."""
        scaling, columns = self.network.target_scaling, []
        correction = torch.zeros_like(target[:, 0], dtype=torch.float64) - scaling.scale.log().sum()
        for transform, column in zip(self.transforms, widen(target).unbind(1), strict=True):
            inside = transform.contains(column) | column.isnan()
            column = torch.where(inside, column, transform.from_real(torch.zeros_like(column)))
            columns.append(transform.to_real(column))
            correction = correction + torch.where(inside, transform.log_slope(column), -torch.inf)
        real = (torch.stack(columns, 1) - scaling.location) / scaling.scale
        density = log_prob(real, *self._standard(condition)) + correction
        return density.to(self.network.dtype)


class MixtureParameters(Graph):
    """The mixture: what `GaussianMixture` is made of.

    Where the network has transforms, it is the mixture of the real coordinates.

    Shapes: condition [b, C] → log weights [b, K], means [b, K, D], factors [b, K, T].

    >>> from condens import GaussianMixture
    >>> from condens.nn import MixtureNetwork
    >>> network = MixtureNetwork.of(conditions=3, targets=2, n_components=4)
    >>> GaussianMixture(*MixtureParameters(network)(torch.zeros(5, 3)))
    GaussianMixture(batch_shape=[5], n_components=4, dimensions=2, covariance='full')
    """

    inputs = ("condition",)
    outputs = ("logits", "means", "factors")

    def forward(self, condition: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Return the parameters."""
        scaling = self.network.target_scaling
        logits, *rest = self._standard(condition).affine(scaling.scale, scaling.location)
        return tuple(t.to(self.network.dtype) for t in (torch.log_softmax(logits, -1), *rest))


class Sampler(Graph):
    """Draws x = μₖ + Ūₖ⁻¹η, with the random numbers as inputs.

    The component k is the first whose cumulative weight exceeds the uniform number.

    Shapes: condition [b, C], standard normal noise η [S, b, D], uniform [S, b] → [S, b, D].

    >>> from condens.nn import MixtureNetwork
    >>> network = MixtureNetwork.of(conditions=3, targets=2, n_components=4)
    >>> Sampler(network)(torch.zeros(5, 3), torch.randn(10, 5, 2), torch.rand(10, 5)).shape
    torch.Size([10, 5, 2])
    """

    inputs = ("condition", "noise", "uniform")
    outputs = ("draws",)
    ends: Tensor

    def __init__(self, network: DensityNetwork) -> None:
        super().__init__(network)
        infinite = torch.tensor([-torch.inf, torch.inf], dtype=network.dtype)
        ends = torch.stack([transform.nearest(infinite) for transform in self.transforms], -1)
        self.register_buffer("ends", ends.to(network.target_scaling.scale.device))

    def forward(  # type: ignore[override]
        self, condition: Tensor, noise: Tensor, uniform: Tensor
    ) -> Tensor:
        """Return the draws."""
        logits, means, factors = self._standard(condition)
        cumulative = torch.softmax(logits, -1).cumsum(-1)
        total = cumulative[..., -1:]
        component = (widen(uniform).unsqueeze(-1) * total >= cumulative).sum(-1)
        # Rounding may reach the total itself; a component without weight is never drawn.
        component = torch.minimum(component, (cumulative < total).sum(-1))
        mean, factor = _chosen(means, component), _chosen(factors, component)
        scaling = self.network.target_scaling
        real = (mean + _substitute(widen(noise), factor)) * scaling.scale + scaling.location
        pairs = zip(self.transforms, real.unbind(-1), strict=True)
        draws = torch.stack([transform.from_real(x) for transform, x in pairs], -1)
        draws = draws.to(self.network.dtype)
        # Not a clamp, which in some runtimes makes a bound of NaN.
        low, high = self.ends.unbind(0)
        return torch.where(draws < low, low, torch.where(draws > high, high, draws))


GRAPHS: dict[str, type[Graph]] = {
    "log_density": LogDensity,
    "mixture": MixtureParameters,
    "sample": Sampler,
}


def _chosen(tensor: Tensor, component: Tensor) -> Tensor:
    """Return the parameters of each draw's component. Shapes: [b, K, N], [S, b] → [S, b, N]."""
    draws, rows = component.shape
    every = tensor.expand(draws, *tensor.shape)
    place = component.unsqueeze(-1).unsqueeze(-1).expand(draws, rows, 1, tensor.shape[-1])
    return every.gather(2, place).squeeze(2)


def _substitute(latent: Tensor, factors: Tensor) -> Tensor:
    """Return Ū⁻¹z as `triangular.unwhiten`, each step of the back substitution written out."""
    dimensions = latent.shape[-1]
    if is_diagonal(factors, dimensions):
        return unwhiten(latent, factors)
    upper = unpack(factors, dimensions)
    solved = latent[..., -1:] / upper[..., -1, -1:]
    for i in reversed(range(dimensions - 1)):
        known = (upper[..., i, i + 1 :] * solved).sum(-1, keepdim=True)
        solved = torch.cat(
            [(latent[..., i : i + 1] - known) / upper[..., i, i : i + 1], solved], -1
        )
    return solved
