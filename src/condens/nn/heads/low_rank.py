"""The head of low-rank covariances, for many targets."""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from condens.distributions.low_rank import LowRankMixture
from condens.functional.low_rank.algebra import Parameters, ensemble
from condens.functional.low_rank.mixture import log_prob, partial_log_prob
from condens.functional.tracing import anywhere, checks_values
from condens.functional.triangular import bounded_log_scales
from condens.nn.heads.base import CEILING, FLOOR, Head
from condens.nn.initialise import Start
from condens.scalars import as_whole


class LowRankHead(Head[Parameters]):
    """Every component has a covariance diag(s²) + VVᵀ with V [D, r], for many dimensions.

    Args:
        features: F.
        dimensions: D.
        n_components: K.
        floor, ceiling: of every s, in units of the standardised target.
        rank: r.
        generator: draws the initial weights; torch's by default.
    """

    covariance = "low_rank"
    options = ("rank",)

    def __init__(
        self,
        features: int,
        dimensions: int,
        n_components: int = 10,
        *,
        floor: float = FLOOR,
        ceiling: float | None = CEILING,
        rank: int = 5,
        generator: Generator | None = None,
    ) -> None:
        self.rank = as_whole("rank", rank, 1, fix="Pass the number of columns of V, such as 5.")
        super().__init__(
            features, dimensions, n_components, floor=floor, ceiling=ceiling, generator=generator
        )

    @property
    def _scale_outputs(self) -> int:
        return self.n_components * self.dimensions * (1 + self.rank)

    def parameters_of(self, features: Tensor) -> Parameters:
        """Return logits [..., K], means [..., K, D], log s [..., K, D] and V [..., K, D, r]."""
        logits, means, outputs = self._split(self.linear(features))
        outputs = outputs.unflatten(-1, (self.n_components, self.dimensions, 1 + self.rank))
        log_scales = bounded_log_scales(outputs[..., 0], self.floor, self.ceiling)
        return Parameters(logits, means, log_scales, outputs[..., 1:])

    join = staticmethod(ensemble)

    @staticmethod
    def mixture(parameters: Parameters, names: Sequence[str] | None = None) -> LowRankMixture:
        """Return the mixtures that have these parameters."""
        return LowRankMixture(*parameters, names=names, validate_args=False)

    @staticmethod
    def nll_of(parameters: Parameters, target: Tensor) -> Tensor:
        """Return −log p(target) of each row; NaN entries are unobserved."""
        if not checks_values(target) or anywhere(target.isnan()):
            return -partial_log_prob(target, *parameters)
        return -log_prob(target, *parameters)

    def components(self, logits: Tensor, start: Start) -> Parameters:
        """Return components with these variances and the r largest principal axes."""
        scales, loadings, _ = self._axes(start)
        if not loadings.shape[-1]:
            # One dimension has none, and torch.export no product over an axis of length 0.
            loadings = torch.zeros_like(scales).unsqueeze(-1)
        return Parameters(logits, start.means, scales.log(), loadings)

    def _axes(self, start: Start) -> tuple[Tensor, Tensor, Tensor]:
        """Return scales, loadings and eigenvectors, smallest first.

        The loadings are the r largest principal axes, less the mean of the others.
        """
        values, vectors = torch.linalg.eigh(start.covariances)
        rank = min(self.rank, self.dimensions - 1)
        noise = values[:, : self.dimensions - rank].mean(-1, keepdim=True)
        length = (values[:, self.dimensions - rank :] - noise).clamp(min=0).sqrt()
        loadings = vectors[:, :, self.dimensions - rank :] * length.unsqueeze(-2)
        whole = start.covariances.diagonal(dim1=-2, dim2=-1)
        rest = (whole - loadings.square().sum(-1)).clamp(min=0.01 * whole).sqrt()
        return rest, loadings, vectors

    def _scales_from(self, start: Start) -> Tensor:
        rest, loadings, vectors = self._axes(start)
        log_scales = -self._unbounded(-rest.log()).unsqueeze(-1)
        # At zero a loading has no gradient: those beyond D start small.
        more = 0.01 * vectors[:, :, :1].expand(-1, -1, self.rank - loadings.shape[-1])
        return torch.cat([log_scales, loadings, more], -1).flatten()
