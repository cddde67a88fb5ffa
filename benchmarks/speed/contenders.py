"""condens and its peers, each doing the same work from the same numbers.

A loss takes target [b, D] and raw parameters: logits [b, K], means [b, K, D] and packed
factors [b, K, T]. Each peer builds its own distribution from them with its own code, as
its networks do. (Libraries that factorise the covariance read the numbers as that factor:
another density, the same amount of work.)
"""

import math
from collections.abc import Callable

import torch
from FrEIA.modules import GaussianMixtureModel
from sbi.neural_nets.estimators.mixture_density_estimator import MultivariateGaussianMDN
from torch import Tensor, nn
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal
from zuko.mixtures import GMM

from condens import kernels
from condens.functional import nll, sample, unpack

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def freia(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """FrEIA's block and loss."""
    block = GaussianMixtureModel([(target.shape[-1],)], [])
    weights = block.normalize_weights(logits)
    (latent,), log_jacobian = block([target], [weights, means, factors, None])
    return block.nll_loss(weights, latent, log_jacobian).mean()


def _torch(logits: Tensor, **components: Tensor) -> MixtureSameFamily:
    normal = MultivariateNormal(**components, validate_args=False)
    return MixtureSameFamily(Categorical(logits=logits), normal, validate_args=False)


def torch_scale_tril(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """torch.distributions with Cholesky factors of the covariances."""
    lower = unpack(factors, target.shape[-1]).mT
    return -_torch(logits, loc=means, scale_tril=lower).log_prob(target).mean()


def torch_precision(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """torch.distributions with precision matrices."""
    upper = unpack(factors, target.shape[-1])
    return -_torch(logits, loc=means, precision_matrix=upper.mT @ upper).log_prob(target).mean()


class _Given(nn.Module):
    """A layer whose output is known."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output

    def forward(self, _: Tensor) -> Tensor:
        """Return it."""
        return self.output


def sbi_network(logits: Tensor, means: Tensor, factors: Tensor) -> MultivariateGaussianMDN:
    """Sbi's mixture density network with given outputs."""
    components, dimensions = means.shape[-2:]
    network = MultivariateGaussianMDN(
        features=dimensions, context_features=1, hidden_features=1, num_components=components
    )
    network._hidden_net = nn.Identity()
    network._logits_layer = _Given(logits)
    network._means_layer = _Given(means.flatten(1))
    network._unconstrained_diagonal_layer = _Given(factors[..., :dimensions].flatten(1))
    if dimensions > 1:
        network._upper_layer = _Given(factors[..., dimensions:].flatten(1))
    return network


def sbi(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Sbi's log_prob."""
    network = sbi_network(logits, means, factors)
    return -network.log_prob(target, target.new_zeros(len(target), 1)).mean()


def zuko(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """Zuko's log_prob."""
    components, dimensions = means.shape[-2:]
    model = GMM(dimensions, context=0, components=components)
    diagonal, strict = factors[..., :dimensions], factors[..., dimensions:]
    return -model._forward_full(logits, means, diagonal, strict).log_prob(target).mean()


def condens_rows(*arguments: Tensor) -> Tensor:
    """`condens.functional.nll`, per row, then the mean."""
    return nll(*arguments).mean()


PEERS: dict[str, Loss] = {
    "FrEIA": freia,
    "torch tril": torch_scale_tril,
    "torch prec": torch_precision,
    "sbi": sbi,
    "zuko": zuko,
}
OURS: dict[str, Loss] = {"condens": kernels.weighted_nll, "condens rows": condens_rows}


class Network(nn.Module):
    """The network of the training step: 10-128-128 and a linear head."""

    def __init__(self, components: int, dimensions: int) -> None:
        super().__init__()
        packed = dimensions * (dimensions + 1) // 2
        self.shape = (components, dimensions, packed)
        self.body = nn.Sequential(nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.head = nn.Linear(128, components * (1 + dimensions + packed))
        nn.init.normal_(self.head.weight, std=0.01)

    def parameters_of(self, condition: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, means and packed factors."""
        components, dimensions, packed = self.shape
        outputs = self.head(self.body(condition))
        logits, means, factors = outputs.split(
            [components, components * dimensions, components * packed], -1
        )
        return (
            logits,
            means.unflatten(-1, (components, dimensions)),
            factors.unflatten(-1, (components, packed)),
        )

    def loss(self, loss: Loss, condition: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a peer."""
        return loss(target, *self.parameters_of(condition))

    def chunked_loss(self, condition: Tensor, target: Tensor) -> Tensor:
        """Return condens' loss, head and kernel together."""
        features = self.body(condition)
        return kernels.linear_nll(features, self.head.weight, self.head.bias, target, self.shape[0])


SAMPLERS: dict[str, Callable[[Tensor, Tensor, Tensor, int], Tensor]] = {
    "condens": lambda lo, mu, f, n: sample(lo, mu, f, (n,)),
    "torch tril": lambda lo, mu, f, n: _torch(
        lo, loc=mu, scale_tril=unpack(f, mu.shape[-1]).mT
    ).sample((n,)),
    "sbi": lambda lo, mu, f, n: sbi_network(lo, mu, f).sample(
        torch.Size((n,)), lo.new_zeros(len(lo), 1)
    ),
    "zuko": lambda lo, mu, f, n: (
        GMM(mu.shape[-1], components=mu.shape[-2])
        ._forward_full(lo, mu, f[..., : mu.shape[-1]], f[..., mu.shape[-1] :])
        .sample((n,))
    ),
}


def random_parameters(batch: int, components: int, dimensions: int) -> list[Tensor]:
    """Return target, logits, means and packed factors."""
    packed = dimensions * (dimensions + 1) // 2
    scale = 0.1 / math.sqrt(dimensions)
    return [
        torch.randn(batch, dimensions),
        torch.randn(batch, components),
        torch.randn(batch, components, dimensions),
        scale * torch.randn(batch, components, packed),
    ]
