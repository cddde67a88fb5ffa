"""Joint density of the oscillator behind a signal, by a transformer over sequences.

Noisy signals a·cos(ωt + φ) seen at irregular moments. The network reads the moments and the
values, in no particular order, and predicts the joint density of amplitude, frequency and
phase (as its cosine and sine).

    python examples/sequences.py
"""

import argparse

import torch
from torch import Tensor, nn

from condens.nn import FullHead, MixtureNetwork
from condens.training import Settings, train

MOMENTS = 24


def signals(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return (moment, value) pairs [n, M, 2] and (amplitude, frequency, cos φ, sin φ)."""
    amplitude, frequency, phase = torch.rand(3, count, 1, generator=generator)
    amplitude, frequency, phase = 0.5 + amplitude, 1 + 3 * frequency, 6.2831853 * phase
    moment = 3 * torch.rand(count, MOMENTS, generator=generator)
    value = amplitude * (frequency * moment + phase).cos()
    value = value + 0.4 * torch.randn(value.shape, generator=generator)
    target = torch.cat([amplitude, frequency, phase.cos(), phase.sin()], 1)
    return torch.stack([moment, value], -1), target


class Transformer(nn.Module):
    """Sets of pairs to features: attention, then the mean over the moments."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Linear(2, width)
        layer = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=2 * width, dropout=0.0, batch_first=True
        )
        self.attend = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)

    def forward(self, pairs: Tensor) -> Tensor:
        """Return features."""
        attended: Tensor = self.attend(self.embed(pairs))
        return attended.mean(1)


def main() -> None:
    """Train and look at one signal."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=8_000)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    names = ["amplitude", "frequency", "cosine", "sine"]
    network = MixtureNetwork(Transformer(), FullHead(64, 4, n_components=8), names=names)
    history = train(network, signals(options.rows, generator), Settings(epochs=options.epochs))
    print(f"validation NLL {history.best_nll:.3f} after {len(history.epochs)} epochs")
    pairs, target = signals(1000, generator)
    with torch.no_grad():
        mixture = network(pairs)
    print(f"test NLL {-mixture.log_prob(target).mean():.3f}")
    one, truth = mixture[0].marginal(["amplitude", "frequency"]), target[0]
    print(f"first signal: amplitude {truth[0]:.2f}, frequency {truth[1]:.2f}")
    print(
        f"  mean {one.mean[0]:.2f}, {one.mean[1]:.2f}; ± {one.stddev[0]:.2f}, {one.stddev[1]:.2f}"
    )
    known = one.condition({"amplitude": truth[0]})
    print(f"  frequency if the amplitude were known: {known.mean[0]:.2f} ± {known.stddev[0]:.2f}")


if __name__ == "__main__":
    main()
