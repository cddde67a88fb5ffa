"""The base class of heads: from features to the parameters of a mixture.

A head is a linear layer and the meaning of its outputs. Every scale has a floor and a ceiling
inside the factor, σ = floor + 1/(exp(u) + 1/ceiling), so that the density stays normalised and
bounded, and its quantiles finite.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import torch
from torch import Generator, Tensor, nn

from condens.distributions.base import Mixture
from condens.functional.losses import weighted_sum
from condens.functional.tracing import checks_values
from condens.functional.triangular import check_bounds
from condens.kernels.checks import check, check_shape, check_strided, check_weights
from condens.nn.initialise import Linear, Start
from condens.nn.randomness import linear
from condens.scalars import as_whole

# In units of the standardised targets. The ceiling is wider than the tails that a component has
# to reach (standardising goes by the quartiles where outliers are 20 deviations wide), and it
# changes a scale of one by a ten-thousandth.
FLOOR, CEILING = 1e-3, 1e4
# Initial weights are this fraction of torch's: small, so that the initial biases decide.
WEIGHT_GAIN = 0.1


class Parameters(Protocol):
    """The tensors that define a batch of mixtures, as a named tuple."""

    @property
    def logits(self) -> Tensor:
        """The logits of the weights [..., K]."""

    @property
    def means(self) -> Tensor:
        """The means [..., K, D]."""

    @property
    def variances(self) -> Tensor:
        """A variance of each dimension [..., K, D]."""

    @property
    def deviations(self) -> Tensor:
        """The standard deviation of each dimension, in each component [..., K, D]."""

    @property
    def deviation_bounds(self) -> Tensor:
        """What no `deviations` are above, faster than these [..., K, D]."""

    def to(self, dtype: torch.dtype) -> Self:
        """Return the parameters in another precision."""

    def affine(self, scale: Tensor, loc: Tensor) -> Self:
        """Return the parameters of the mixtures of scale·x + loc."""

    def scaled(self, scale: Tensor) -> Self:
        """Return the parameters of the mixtures with covariances SΣS, S = diag(scale)."""

    def blended(self, other: Self, part: Tensor) -> Self:
        """Return the parameters of mixtures between these, 0, and others, 1."""

    def __init__(self, *tensors: Tensor) -> None:
        """Take the tensors in their order."""

    def __iter__(self) -> Iterator[Tensor]:
        """Return the tensors in their order."""


P = TypeVar("P", bound=Parameters)


def chooses_places(tensor: Tensor) -> bool:
    """Tell whether what is done may be done for some places only: not in most graphs."""
    return checks_values(tensor) or torch.compiler.is_exporting()


def places(some: Tensor) -> tuple[Tensor, ...]:
    """Return where a mask is true, as indices. Shapes: some [b] or [b, K].

    While torch.export records, it is the rows where it is true somewhere, and the first one: how to
    multiply none, runtimes do not know.
    """
    if torch.compiler.is_exporting():
        first = torch.arange(some.shape[0], device=some.device) == 0
        some = first | (some.any(-1) if some.dim() > 1 else some)
    return some.nonzero().unbind(-1)


def change_some(parameters: P, where: tuple[Tensor, ...], change: Callable[[P], P]) -> P:
    """Return the parameters with those of some mixtures or components changed; see `places`."""
    changed = change(type(parameters)(*(tensor[where] for tensor in parameters)))
    pairs = zip(parameters, changed, strict=True)
    return type(parameters)(*(whole.index_put(where, part) for whole, part in pairs))


class Head(nn.Module, ABC, Generic[P]):
    """Base class: features [b, F] to mixtures of K components over D dimensions.

    Args:
        features: F.
        dimensions: D.
        n_components: K.
        floor: added to every scale, in units of the standardised target; 0 for none.
        ceiling: of every scale before that; None for none.
        generator: draws the initial weights; torch's by default.
    """

    covariance: ClassVar[str]
    # Names of the arguments that a class has beyond those of `Head`; each is an attribute too.
    options: ClassVar[tuple[str, ...]] = ()
    # Whether the parameters are triangular factors, which transforms and ONNX files need.
    triangular: ClassVar[bool] = False

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
        inputs = as_whole("features", features, 1, fix="Pass the features that the backbone gives.")
        self.dimensions = as_whole("dimensions", dimensions, 1, fix="Pass the number of targets.")
        self.n_components = as_whole(
            "n_components", n_components, 1, fix="Pass the number of components, such as 10."
        )
        self.floor, self.ceiling = float(floor), math.inf if ceiling is None else float(ceiling)
        check_bounds(self.floor, self.ceiling)
        self.linear = linear(
            inputs, self.n_components * (1 + self.dimensions) + self._scale_outputs, generator
        )
        with torch.no_grad():
            self.linear.weight.mul_(WEIGHT_GAIN)
            self.linear.bias.zero_()

    def to_dict(self) -> dict[str, Any]:
        """Return covariance and arguments as JSON values; `head_from_dict` reads them.

        >>> from condens.nn import FullHead
        >>> FullHead(16, 2, 3).to_dict()
        {'covariance': 'full', 'features': 16, 'dimensions': 2, 'n_components': 3, 'floor': 0.001,
         'ceiling': 10000.0}
        """
        return {
            "covariance": self.covariance,
            "features": self.linear.in_features,
            "dimensions": self.dimensions,
            "n_components": self.n_components,
            "floor": self.floor,
            "ceiling": None if self.ceiling == math.inf else self.ceiling,
            **{name: getattr(self, name) for name in self.options},
        }

    @property
    @abstractmethod
    def _scale_outputs(self) -> int:
        """How many outputs describe the covariances; they follow the logits and the means."""

    @abstractmethod
    def _scales_from(self, start: Start) -> Tensor:
        """Return the outputs [S] that describe the covariances of a start best."""

    @abstractmethod
    def parameters_of(self, features: Tensor) -> P:
        """Return the mixtures' parameters."""

    @abstractmethod
    def components(self, logits: Tensor, start: Start) -> P:
        """Return components of this form [S], whatever the features; no bound applies to them."""

    @staticmethod
    @abstractmethod
    def join(members: Sequence[P], log_weights: Tensor) -> P:
        """Return the parameters of an ensemble, from those of its members."""

    @staticmethod
    @abstractmethod
    def mixture(parameters: P, names: Sequence[str] | None = None) -> Mixture:
        """Return the mixtures that have these parameters."""

    @staticmethod
    @abstractmethod
    def nll_of(parameters: P, target: Tensor) -> Tensor:
        """Return −log p(target) of each row; NaN entries are unobserved."""

    def forward(self, features: Tensor, names: Sequence[str] | None = None) -> Mixture:
        """Return the mixtures."""
        return self.mixture(self.parameters_of(features), names)

    def nll(self, features: Tensor, target: Tensor) -> Tensor:
        """Return −log p(target) of each row; NaN entries are unobserved."""
        check_shape(
            "target",
            target,
            (*features.shape[:-1], self.dimensions),
            fix="Pass a row for each row of features, and a column for each dimension.",
        )
        return self.nll_of(self.parameters_of(features), target)

    def logits_of(self, features: Tensor) -> Tensor:
        """Return the logits of the weights alone [..., K]."""
        weight, bias = (tensor[: self.n_components] for tensor in self.linear.parameters())
        return nn.functional.linear(features, weight, bias)

    def loss(
        self,
        features: Tensor,
        target: Tensor,
        weights: Tensor | None = None,
        *,
        complete: bool = False,
    ) -> Tensor:
        """Return Σ weights · −log p(target), the mean by default, on the fastest path.

        NaN entries of the target are unobserved: such a row counts with the exact marginal
        density of its other entries. `complete` promises that there are none, which saves time
        while torch.compile or torch.export record: otherwise they treat every row as incomplete.
        """
        check_strided("features", features)
        rows, weight = features.shape[:-1], self.linear.weight
        check(
            (
                ("features", features, (*rows, self.linear.in_features)),
                ("target", target, (*rows, self.dimensions)),
            ),
            weight,
        )
        if weights is not None:
            weights = check_weights(weights, target)
        if not complete and not checks_values(target):
            return weighted_sum(self.nll(features, target), weights)
        return self._loss(
            features, target, weights, gaps=not complete and bool(target.isnan().any())
        )

    def _loss(
        self,
        features: Tensor,
        target: Tensor,
        weights: Tensor | None,
        *,
        gaps: bool,  # noqa: ARG002
    ) -> Tensor:
        """Return the loss of checked rows; `gaps` says whether some entries are unobserved."""
        return weighted_sum(self.nll(features, target), weights)

    @torch.no_grad()
    def start_from(self, start: Start, linear: Linear | None = None) -> None:
        """Begin at these components, with equal weights, for all features.

        With a `linear` fit on the last features, the components are those of its residuals: all
        means move with these features, and nothing with others.
        """
        if linear is not None:
            start = start._replace(means=start.means + linear.bias)
            means = self._split(torch.arange(self.linear.out_features))[1]
            self.linear.weight.zero_()
            columns = self.linear.weight[:, -linear.weights.shape[1] :]
            columns[means.flatten()] = linear.weights.to(columns).repeat(self.n_components, 1)
        logits = torch.zeros(self.n_components, dtype=start.means.dtype)
        self.linear.bias.copy_(torch.cat([logits, start.means.flatten(), self._scales_from(start)]))

    @torch.no_grad()
    def with_components(self, kept: Sequence[int]) -> Self:
        """Return a head with some of the components, its other outputs unchanged."""
        made = copy.deepcopy(self)
        made.n_components, chosen = len(kept), list(kept)
        logits, means, scales = self._split(torch.arange(self.linear.out_features))
        if len(scales) != made._scale_outputs:  # they are not shared by all components
            scales = scales.unflatten(0, (self.n_components, -1))[chosen]
        rows = torch.cat([logits[chosen], means[chosen].flatten(), scales.flatten()])
        made.linear.weight = nn.Parameter(self.linear.weight[rows])
        made.linear.bias = nn.Parameter(self.linear.bias[rows])
        made.linear.out_features = len(rows)
        return made

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, means, scales = outputs.split(
            [self.n_components, self.n_components * self.dimensions, self._scale_outputs], -1
        )
        return logits, means.unflatten(-1, (self.n_components, self.dimensions)), scales

    def _unbounded(self, log_diagonal: Tensor) -> Tensor:
        """Return the u with floor + 1/(exp(u) + 1/ceiling) = exp(−log_diagonal).

        Scales at or beyond a bound, for which there is none, are moved inside first.
        """
        rest = ((-log_diagonal).exp() - self.floor).clamp(min=0.1 * self.floor)
        # At least 0.1/ceiling: a scale of ten elevenths of the ceiling is the widest start.
        return (1 / rest - 1 / self.ceiling).clamp(min=0.1 / self.ceiling).log()
