"""The peers: each builds its distribution from the numbers with its own code.

Modules are built once, as they are in training. Libraries that factorise the covariance
read the numbers as that factor: another density, the same amount of work.
"""

from collections.abc import Callable
from functools import cache

import torch
from contenders import OURS, Contender
from FrEIA.modules import GaussianMixtureModel
from sbi.neural_nets.estimators.mixture_density_estimator import MultivariateGaussianMDN
from torch import Tensor, nn
from torch.distributions import (
    Categorical,
    Distribution,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
)
from zuko.mixtures import GMM

from condens.functional import sample, unpack


@cache
def _freia_block(dimensions: int) -> GaussianMixtureModel:
    return GaussianMixtureModel([(dimensions,)], [])


def freia(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """FrEIA's block and loss."""
    block = _freia_block(target.shape[-1])
    weights = block.normalize_weights(logits)
    (latent,), log_jacobian = block([target], [weights, means, factors, None])
    return block.nll_loss(weights, latent, log_jacobian).mean()


def _torch(logits: Tensor, **n_components: Tensor) -> MixtureSameFamily:
    normal = MultivariateNormal(**n_components, validate_args=False)
    return MixtureSameFamily(Categorical(logits=logits), normal, validate_args=False)


def torch_scale_tril(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """torch.distributions with Cholesky factors of the covariances."""
    lower = unpack(factors, target.shape[-1]).mT
    return -_torch(logits, loc=means, scale_tril=lower).log_prob(target).mean()


def torch_precision(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """torch.distributions with precision matrices."""
    upper = unpack(factors, target.shape[-1])
    return -_torch(logits, loc=means, precision_matrix=upper.mT @ upper).log_prob(target).mean()


def torch_normal(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """torch.distributions with diagonal covariances."""
    normal = Independent(Normal(means, factors.exp(), validate_args=False), 1)
    mixture = MixtureSameFamily(Categorical(logits=logits), normal, validate_args=False)
    return -mixture.log_prob(target).mean()


class _Given(nn.Module):
    """A layer whose output is known."""

    output: Tensor | None = None

    def forward(self, _: Tensor) -> Tensor | None:
        """Return it."""
        return self.output


class _GivenMDN(MultivariateGaussianMDN):
    """Sbi's mixture density network, whose layers are given their outputs."""

    def __init__(self, n_components: int, dimensions: int) -> None:
        super().__init__(dimensions, 1, 1, n_components)
        self._hidden_net = nn.Identity()
        self._logits_layer, self._means_layer = _Given(), _Given()
        self._unconstrained_diagonal_layer = _Given()
        if dimensions > 1:
            self._upper_layer = _Given()

    def give(self, logits: Tensor | None, means: Tensor | None, factors: Tensor | None) -> None:
        """Set what the layers return; None lets go of it."""
        size = self.features
        self._logits_layer.output, self._means_layer.output = logits, means
        self._unconstrained_diagonal_layer.output = None if factors is None else factors[..., :size]
        if self._upper_layer is not None:
            self._upper_layer.output = None if factors is None else factors[..., size:]


_sbi_network = cache(_GivenMDN)


def sbi(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Sbi's log_prob."""
    network = _sbi_network(*means.shape[-2:])
    network.give(logits, means, factors)
    loss = -network.log_prob(target, target.new_zeros(len(target), 1)).mean()
    network.give(None, None, None)
    return loss


def sbi_sample(logits: Tensor, means: Tensor, factors: Tensor, draws: int) -> Tensor:
    """Sbi's draws."""
    network = _sbi_network(*means.shape[-2:])
    network.give(logits, means, factors)
    drawn = network.sample(torch.Size((draws,)), logits.new_zeros(len(logits), 1))
    network.give(None, None, None)
    return drawn


@cache
def _zuko_model(n_components: int, dimensions: int) -> GMM:
    return GMM(dimensions, context=0, n_components=n_components)


def _zuko_mixture(logits: Tensor, means: Tensor, factors: Tensor) -> Distribution:
    n_components, dimensions = means.shape[-2:]
    diagonal, strict = factors[..., :dimensions], factors[..., dimensions:]
    return _zuko_model(n_components, dimensions)._forward_full(logits, means, diagonal, strict)


def zuko(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Zuko's log_prob."""
    return -_zuko_mixture(logits, means, factors).log_prob(target).mean()


def zuko_diagonal(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Zuko's log_prob with diagonal covariances."""
    model = _zuko_model(*means.shape[-2:])
    return -model._forward_diagonal(logits, means, factors).log_prob(target).mean()


PEERS = {
    "FrEIA": Contender(freia),
    "torch tril": Contender(torch_scale_tril),
    "torch prec": Contender(torch_precision),
    "sbi": Contender(sbi),
    "zuko": Contender(zuko),
}
DIAGONAL = OURS | {"torch Normal": Contender(torch_normal), "zuko": Contender(zuko_diagonal)}

SAMPLERS: dict[str, Callable[[Tensor, Tensor, Tensor, int], Tensor]] = {
    "condens": lambda lo, mu, f, n: sample(lo, mu, f, (n,)),
    "torch tril": lambda lo, mu, f, n: _torch(
        lo, loc=mu, scale_tril=unpack(f, mu.shape[-1]).mT
    ).sample((n,)),
    "sbi": sbi_sample,
    "zuko": lambda lo, mu, f, n: _zuko_mixture(lo, mu, f).sample((n,)),
}
