"""Two simulators with known posteriors or shapes, as the literature has them."""

import math

import torch
from torch.distributions import MultivariateNormal


class GaussianLinear:
    """x = θ + noise, both normal: the posterior is known."""

    def __init__(self, dimensions=2, correlation=0.6):
        noise = torch.full((dimensions, dimensions), correlation).fill_diagonal_(1.0)
        self.prior = MultivariateNormal(torch.zeros(dimensions), 0.1 * torch.eye(dimensions))
        self.noise = MultivariateNormal(torch.zeros(dimensions), 0.1 * noise)
        self.observation = torch.linspace(0.3, -0.3, dimensions)

    def __call__(self, theta):
        return theta + self.noise.sample(theta.shape[:1])

    def posterior(self):
        precision = self.prior.precision_matrix + self.noise.precision_matrix
        covariance = precision.inverse()
        mean = covariance @ self.noise.precision_matrix @ self.observation
        return MultivariateNormal(mean, covariance)


class TwoMoons:
    """A crescent whose place tells θ but for a reflection: two modes."""

    def __init__(self):
        from sbi.utils import BoxUniform  # what is collected without sbi must be imported

        self.prior = BoxUniform(-torch.ones(2), torch.ones(2))
        self.observation = torch.zeros(2)

    def __call__(self, theta):
        angle = math.pi * (torch.rand(len(theta)) - 0.5)
        radius = 0.1 + 0.01 * torch.randn(len(theta))
        crescent = torch.stack([radius * angle.cos() + 0.25, radius * angle.sin()], 1)
        first, second = theta.unbind(1)
        shift = torch.stack([-(first + second).abs(), second - first], 1) / math.sqrt(2)
        return crescent + shift
