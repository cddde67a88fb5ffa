"""Problems whose true conditional density is known."""

import math
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.distributions import MultivariateNormal


class JointMixture:
    """A random Gaussian mixture over condition and target together.

    So p(target | condition) is a Gaussian mixture with full covariances, exactly.
    """

    def __init__(
        self,
        seed: int,
        conditions: int = 3,
        targets: int = 5,
        n_components: int = 4,
        spread: float = 2.0,
    ) -> None:
        self.generator = Generator().manual_seed(seed)
        columns, options = conditions + targets, {"generator": self.generator}
        root = torch.randn(n_components, columns, columns, dtype=torch.float64, **options)
        identity = torch.eye(columns, dtype=torch.float64)
        self.covariances = root @ root.mT / columns + 0.1 * identity
        self.means = spread * torch.randn(n_components, columns, dtype=torch.float64, **options)
        self.log_weights = torch.log_softmax(
            0.5 * torch.randn(n_components, dtype=torch.float64, **options), 0
        )
        self.conditions = conditions

    def draw(self, rows: int) -> tuple[Tensor, Tensor]:
        """Return conditions and targets."""
        options = {"generator": self.generator}
        weights = self.log_weights.exp()
        component = torch.multinomial(weights, rows, replacement=True, **options)
        noise = torch.randn(rows, self.means.shape[1], 1, dtype=torch.float64, **options)
        root = torch.linalg.cholesky(self.covariances)
        both = self.means[component] + (root[component] @ noise).squeeze(-1)
        return both[:, : self.conditions], both[:, self.conditions :]

    def log_prob(self, condition: Tensor, target: Tensor) -> Tensor:
        """Return log p(target | condition)."""
        c = self.conditions
        both = MultivariateNormal(self.means, self.covariances)
        alone = MultivariateNormal(self.means[:, :c], self.covariances[:, :c, :c])
        joint = both.log_prob(torch.cat([condition, target], 1)[:, None])
        marginal = alone.log_prob(condition[:, None])
        weights = self.log_weights
        return (weights + joint).logsumexp(1) - (weights + marginal).logsumexp(1)


class Arm(NamedTuple):
    """Inverse kinematics with noise: the joint angles that put the hand there.

    x ~ N(0, diag(.25, .5, .5, .5)²): a vertical offset and three angles of an arm with
    lengths .5, .5, 1; y is the end point, seen with noise of standard deviation `noise`.
    """

    noise: float = 0.05

    @staticmethod
    def _hand(angles: Tensor) -> tuple[Tensor, Tensor]:
        total = angles.cumsum(-1)
        lengths = torch.tensor([0.5, 0.5, 1.0], dtype=angles.dtype)
        return (lengths * total.cos()).sum(-1), (lengths * total.sin()).sum(-1)

    def draw(self, rows: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return end points [n, 2] and what led to them [n, 4]."""
        scale = torch.tensor([0.25, 0.5, 0.5, 0.5], dtype=torch.float64)
        x = scale * torch.randn(rows, 4, dtype=torch.float64, generator=generator)
        across, up = self._hand(x[:, 1:])
        y = torch.stack([across, x[:, 0] + up], 1)
        return y + self.noise * torch.randn(y.shape, dtype=y.dtype, generator=generator), x

    def log_prob(self, y: Tensor, x: Tensor, samples: int = 1_000_000) -> Tensor:
        """Return log p(x | y) by Bayes' rule.

        The evidence p(y) is an average over angles; the offset integrates in closed form.
        """
        scale = torch.tensor([0.25, 0.5, 0.5, 0.5], dtype=x.dtype)
        prior = -0.5 * (x / scale).square().sum(1) - scale.log().sum() - 2 * math.log(2 * math.pi)
        across, up = self._hand(x[:, 1:])
        end = torch.stack([across, x[:, 0] + up], 1)
        likelihood = _normal(y - end, torch.tensor([self.noise] * 2, dtype=x.dtype))
        generator = Generator().manual_seed(1234)
        angles = 0.5 * torch.randn(samples, 3, generator=generator)
        hand = torch.stack(self._hand(angles), 1)
        spread = torch.tensor([self.noise, math.hypot(self.noise, 0.25)])
        evidence = torch.stack(
            [_normal(row.float() - hand, spread).double().logsumexp(0) for row in y]
        )
        return prior + likelihood - (evidence - math.log(samples))


def _normal(difference: Tensor, scale: Tensor) -> Tensor:
    density = -0.5 * (difference / scale).square().sum(-1)
    return density - scale.log().sum() - math.log(2 * math.pi)
