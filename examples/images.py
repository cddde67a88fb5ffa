"""Joint density of centre and radius of a ring in an image, by a convolutional network.

Images of two faint rings. The network predicts the density of centre and radius of one of
them, whichever: two modes, and within each the radius depends on the centre.

    python examples/images.py
"""

import argparse

import torch
from torch import Tensor, nn

from condens.nn import FullHead, MixtureNetwork
from condens.training import Settings, train

SIDE = 24


def rings(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return images [n, 1, S, S] and the (x, y, radius) of one ring in each."""
    place = torch.rand(count, 2, 3, generator=generator)
    place = place * torch.tensor([1.2, 1.2, 0.25]) + torch.tensor([-0.6, -0.6, 0.15])
    line = torch.linspace(-1, 1, SIDE)
    x, y, radius = (place[:, :, i, None, None] for i in range(3))
    distance = ((line - x).square() + (line[:, None] - y).square()).sqrt()
    image = (-0.5 * ((distance - radius) / 0.06).square()).exp().amax(1, keepdim=True)
    image = image + 0.3 * torch.randn(image.shape, generator=generator)
    return image, place[:, 0]


class Convolutions(nn.Module):
    """Images to features: any module does that ends in [b, F]."""

    def __init__(self, features: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2, padding=2),
            nn.SiLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.SiLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(32 * (SIDE // 4) ** 2, features),
            nn.SiLU(),
        )

    def forward(self, image: Tensor) -> Tensor:
        """Return features."""
        features: Tensor = self.layers(image)
        return features


def main() -> None:
    """Train and look at one image."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    network = MixtureNetwork(
        Convolutions(), FullHead(128, 3, n_components=8), names=["x", "y", "radius"]
    )
    data = rings(options.rows, generator)
    history = train(network, data, Settings(epochs=options.epochs))
    print(f"validation NLL {history.best_nll:.3f} after {len(history.epochs)} epochs")
    image, target = rings(1000, generator)
    with torch.no_grad():
        mixture = network(image)
    print(f"test NLL {-mixture.log_prob(target).mean():.3f}")
    one = mixture[0]
    print("modes of the first image (x, y, radius):")
    found = one.marginal(["x", "y"]).modes()
    for point in found.points[found.log_density > found.log_density.max() - 3][:3]:
        given = one.condition({"x": point[0], "y": point[1]})
        print(
            f"  {point[0]:+.2f} {point[1]:+.2f}  radius {given.mean[0]:.2f} ± {given.stddev[0]:.2f}"
        )


if __name__ == "__main__":
    main()
