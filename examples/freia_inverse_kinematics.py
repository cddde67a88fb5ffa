"""Inverse kinematics with the invertible block and FrEIA: the joints of an arm given its hand.

An arm of three links on a rail: four numbers (height on the rail, three angles) put the hand at
a point of the plane. The point is the condition, the four numbers are the target. Two models:

- a network that predicts the mixture, through the block, with the exact loss, and
- a coupling flow of FrEIA whose latent is not standard normal but such a mixture.

    python examples/freia_inverse_kinematics.py
"""

import argparse

import torch
from FrEIA.framework import SequenceINN
from FrEIA.modules import AllInOneBlock
from torch import Tensor, nn

from condens.nn import MLP, FullHead, GaussianMixtureBlock

LINKS = (0.5, 0.5, 1.0)
SPREAD = torch.tensor([0.25, 0.5, 0.5, 0.5])


def hand(joints: Tensor) -> Tensor:
    """Return the points [n, 2] that the hands of arms [n, 4] reach."""
    height, angles = joints[:, :1], joints[:, 1:].cumsum(1)
    links = torch.tensor(LINKS)
    across, along = (links * angles.cos()).sum(1), (links * angles.sin()).sum(1)
    return torch.stack([across, height[:, 0] + along], 1)


def arms(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return points and the standardised joints [n, 4] that made them."""
    joints = torch.randn(count, 4, generator=generator)
    return hand(SPREAD * joints), joints


def subnet(inputs: int, outputs: int) -> nn.Module:
    """Return what a coupling predicts its scales and shifts with."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.SiLU(), nn.Linear(64, outputs))


class Posterior(nn.Module):
    """A mixture of the joints given the point, behind `couplings` of a flow."""

    def __init__(self, couplings: int, n_components: int = 10, width: int = 64) -> None:
        super().__init__()
        self.backbone = MLP(2, width)
        self.head = FullHead(self.backbone.features, 4, n_components)
        self.block = GaussianMixtureBlock([(4,)], [])
        self.flow = SequenceINN(4)
        for _ in range(couplings):
            self.flow.append(AllInOneBlock, cond=0, cond_shape=(2,), subnet_constructor=subnet)

    def mixture(self, point: Tensor) -> list[Tensor]:
        """Return weights, means and factors, as the block takes them."""
        logits, means, factors = self.head.parameters_of(self.backbone(point))
        return [self.block.normalize_weights(logits), means, factors]

    def loss(self, point: Tensor, joints: Tensor) -> Tensor:
        """Return −log p(joints | point) of each row."""
        mixture = self.mixture(point)
        inner, log_determinant = self.flow(joints, c=[point])
        (latent,), log_jacobian = self.block([inner], [*mixture, None])
        return self.block.nll_loss(mixture[0], latent, log_jacobian) - log_determinant

    @torch.no_grad()
    def sample(self, point: Tensor) -> Tensor:
        """Draw the joints [n, 4] of an arm for each point."""
        mixture = self.mixture(point)
        component = self.block.pick_mixture_component(mixture[0])
        (inner,), _ = self.block([torch.randn(len(point), 4)], [*mixture, component], rev=True)
        joints, _ = self.flow(inner, c=[point], rev=True)
        return joints


def fit(model: Posterior, point: Tensor, joints: Tensor, epochs: int) -> None:
    """Minimise the mean loss."""
    steps = epochs * -(-len(point) // 256)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(point)).split(256):
            optimiser.zero_grad()
            model.loss(point[rows], joints[rows]).mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimiser.step()
            schedule.step()


def main() -> None:
    """Train both and see whether the arms they draw reach their points."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=30)
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    known, test = arms(options.rows, generator), arms(2000, generator)
    for name, couplings in (("mixture", 0), ("flow with a mixture inside", 4)):
        model = Posterior(couplings)
        fit(model, *known, options.epochs)
        with torch.no_grad():
            nll = model.loss(*test).mean()
        missed = (hand(SPREAD * model.sample(test[0])) - test[0]).norm(dim=1).median()
        print(f"{name}: test NLL {nll:.3f}; half of the hands miss by less than {missed:.3f}")


if __name__ == "__main__":
    main()
