"""What five members cost, as ratios of one.

    python benchmarks/speed/ensemble.py [--rounds 5] [--threads 1]

A step of an MLP of three layers of 128 for batches of 32 to 256 rows, and a whole fit of a small
and of a larger table with the default settings but a fixed number of epochs. The rounds are
interleaved; of the steps the best epoch counts, of the fits the best round.
"""

import argparse
import math
from dataclasses import replace

import torch
from timing import best_times
from torch import Tensor

from condens.nn import DensityNetwork, Ensemble, MixtureNetwork
from condens.training import History, Settings, default_components, default_settings, train

COLUMNS, MEMBERS, STEPS = 8, 5, 20


def draw(rows: int, targets: int) -> tuple[Tensor, Tensor]:
    """Return conditions [n, 8] and targets [n, D]."""
    generator = torch.Generator().manual_seed(0)
    condition = torch.randn(rows, COLUMNS, generator=generator)
    noise = torch.randn(rows, targets, generator=generator)
    return condition, torch.tanh(condition[:, :targets]) + 0.3 * noise


def fit(members: int, data: tuple[Tensor, Tensor], n_components: int, how: Settings) -> History:
    """Train one network or several."""
    generator = torch.Generator().manual_seed(0)
    targets = data[1].shape[1]
    networks = [
        MixtureNetwork.of(COLUMNS, targets, n_components=n_components, depth=3, generator=generator)
        for _ in range(members)
    ]
    network: DensityNetwork = networks[0] if members == 1 else Ensemble(networks)
    return train(network, data, how, progress=False, warn=False)


def step(size: int, targets: int, rounds: int) -> str:
    """Return a line about steps of so many rows."""
    data = draw(math.ceil(size * STEPS / 0.95), targets)
    how = Settings(batch_size=size, epochs=6, patience=6, validation_fraction=0.05)
    best = {1: math.inf, MEMBERS: math.inf}
    for _ in range(rounds):
        for members in best:
            epochs = fit(members, data, 10, how).epochs
            best[members] = min(best[members], *(e.seconds / e.steps for e in epochs))
    ratio = best[MEMBERS] / best[1]
    return f"step, b = {size}, D = {targets}, K = 10: {1e3 * best[1]:.2f} ms, five {ratio:.2f}×"


def whole(rows: int, epochs: int, rounds: int) -> str:
    """Return a line about fits of so many rows."""
    data = draw(rows, 2)
    how = replace(default_settings(rows), epochs=epochs, patience=epochs)
    components = default_components(rows)
    jobs = {
        "one": lambda: fit(1, data, components, how),
        "five": lambda: fit(MEMBERS, data, components, how),
    }
    best = best_times(jobs, seconds=0.0, rounds=rounds)
    ratio = best["five"] / best["one"]
    return f"{epochs} epochs of {rows} rows: {best['one']:.2f} s, five {ratio:.2f}×"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for targets in (2, 6):
        for size in (32, 64, 128, 256):
            print(step(size, targets, options.rounds), flush=True)
    print(whole(400, 40, options.rounds), flush=True)
    print(whole(5000, 5, options.rounds), flush=True)


if __name__ == "__main__":
    main()
