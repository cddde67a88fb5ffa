"""What a network computes, as modules of plain operations that other formats know.

Tensors in, tensors out, in the targets' own units: no distribution object, no kernel, no
operation without an equal in ONNX. Weights keep their dtype; standardising and densities are
in double precision, as in the network itself.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from condens.errors import ArgumentError
from condens.functional import algebra
from condens.functional.algebra import Parameters
from condens.functional.normal import LOG_2PI
from condens.functional.precision import widen
from condens.functional.triangular import (
    is_diagonal,
    log_determinant,
    unpack,
    unwhiten,
    whiten,
)
from condens.nn import DensityNetwork, Ensemble, MixtureNetwork, TableMLP
from condens.nn.heads.triangular import TriangularHead
from condens.transforms import Real, Transform

# In deviations: the square of what is farther away is no number in double precision.
REACH = 1e150


class Graph(nn.Module, ABC):
    """A network's answer to one question.

    Args:
        network: with triangular heads, on numbers.
    """

    inputs: ClassVar[tuple[str, ...]]
    outputs: ClassVar[tuple[str, ...]]

    def __init__(self, network: DensityNetwork) -> None:
        super().__init__()
        _check(network)
        self.network = network
        self.transforms: tuple[Transform, ...] = (
            network.transforms or (Real(),) * network.dimensions
        )

    @abstractmethod
    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the answer."""

    def _standard(self, condition: Tensor) -> Parameters:
        """Return the mixtures of standardised targets, in double precision."""
        parameters = self.network.parameters_of(self.network.standardise_condition(condition))
        return Parameters(*widen(*parameters))


class LogDensity(Graph):
    """log p(target | condition); −inf outside the support, NaN where an entry is NaN.

    Shapes: condition [b, C], target [b, D] → [b].

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
                fix="Export what='mixture' or 'sample', or call the network's own log_prob.",
            )

    def forward(self, condition: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
        """Return the log density of each row."""
        values, slope = widen(target), torch.zeros_like(target[:, 0], dtype=torch.float64)
        inside, columns = [], []
        for own, column in zip(self.transforms, values.unbind(1), strict=True):
            held = own.contains(column) | column.isnan()
            column = torch.where(held, column, own.from_real(torch.zeros_like(column)))
            slope = slope + own.log_slope(column)
            inside.append(held)
            columns.append(own.to_real(column))
        scaling = self.network.target_scaling
        real = (torch.stack(columns, 1) - scaling.location) / scaling.scale
        far = real.abs() > REACH
        outside = far | ~torch.stack(inside, 1)
        density = _log_density(torch.where(far, 0.0, real), *self._standard(condition))
        density = density + slope - scaling.scale.log().sum()
        return torch.where(outside.any(1), -torch.inf, density).to(self.network.dtype)


class MixtureParameters(Graph):
    """The mixture: what `GaussianMixture` is made of.

    Where the network has maps, it is that of the targets' real coordinates.

    Shapes: condition [b, C] → log weights [b, K], means [b, K, D], factors [b, K, T].

    >>> from condens import GaussianMixture
    >>> network = MixtureNetwork.of(conditions=3, targets=2, n_components=4)
    >>> GaussianMixture(*MixtureParameters(network)(torch.zeros(5, 3)))
    GaussianMixture(batch_shape=[5], n_components=4, dimensions=2, covariance='full')
    """

    inputs = ("condition",)
    outputs = ("logits", "means", "factors")

    def forward(self, condition: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Return the parameters."""
        scaling = self.network.target_scaling
        logits, means, factors = self._standard(condition)
        own = algebra.affine_scale(
            torch.log_softmax(logits, -1), means, factors, scaling.scale, scaling.location
        )
        return tuple(own.to(self.network.dtype))


class Sampler(Graph):
    """Draws x = μₖ + Ūₖ⁻¹η: the randomness comes as input.

    The component k is the one whose share of [0, 1] the uniform number falls to.

    Shapes: condition [b, C], standard normal noise η [S, b, D], uniform [S, b] → [S, b, D].

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
        ends = torch.stack([own.nearest(infinite) for own in self.transforms], -1)
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
        columns = [
            own.from_real(x) for own, x in zip(self.transforms, real.unbind(-1), strict=True)
        ]
        draws = torch.stack(columns, -1).to(self.network.dtype)
        # Not a clamp, which in some runtimes makes a bound of NaN.
        low, high = self.ends.unbind(0)
        return torch.where(draws < low, low, torch.where(draws > high, high, draws))


GRAPHS: dict[str, type[Graph]] = {
    "log_density": LogDensity,
    "mixture": MixtureParameters,
    "sample": Sampler,
}


def _log_density(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Return the log density of a mixture as `functional.mixture.log_prob`, without gradients."""
    dimensions = means.shape[-1]
    latent = whiten(target.unsqueeze(-2) - means, factors)
    each = log_determinant(factors, dimensions) - 0.5 * latent.square().sum(-1)
    joint = torch.log_softmax(logits, -1) + each - 0.5 * dimensions * LOG_2PI
    return joint.logsumexp(-1)


def _chosen(tensor: Tensor, component: Tensor) -> Tensor:
    """Return the parameters of one component a draw. Shapes: [b, K, N], [S, b] → [S, b, N]."""
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


def _check(network: DensityNetwork) -> None:
    """Refuse what plain operations cannot tell."""
    if isinstance(network, Ensemble):
        for member in network.members:
            _check(member)
        return
    if not isinstance(network, MixtureNetwork):
        raise ArgumentError(
            "network",
            got=f"is {type(network).__name__}",
            expected="a MixtureNetwork or Ensemble was expected",
            fix="Pass one of these.",
        )
    if not isinstance(network.head, TriangularHead):
        raise ArgumentError(
            "network",
            got=f"has a head of structure {network.head.covariance!r}",
            expected="full, diagonal, isotropic and tied covariances are exported",
            fix="Train one of these.",
        )
    if isinstance(network.backbone, TableMLP):
        raise ArgumentError(
            "network",
            got="reads codes of categories",
            expected="only numbers are exported",
            fix="Train on numbers, such as one column of 0 and 1 for each category.",
        )
