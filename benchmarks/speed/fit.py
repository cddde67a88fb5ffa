"""A whole fit beside sbi's: 20 000 rows, D = 4, 10 features, 50 epochs of batches of 256.

    python benchmarks/speed/fit.py [--epochs 50] [--rounds 2] [--threads 1]

Both hold out a tenth of the rows, train 10 components with full covariances for the same
number of epochs, and return the weights that were best on their held-out rows; the negative
log-likelihood is then taken on the same 20 000 fresh rows. The rounds are interleaved.
"""

import argparse
import time
import warnings

import torch
from sbi.inference import NPE
from sbi.neural_nets import posterior_nn
from torch import Tensor

from condens.nn import MixtureNetwork
from condens.training import Settings, train


def draw(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return conditions [n, 10] and targets [n, 4] with two modes and correlated noise."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(10, 8, generator=torch.Generator().manual_seed(0)) / 3
    condition = torch.randn(rows, 10, generator=generator)
    first, second = torch.tanh(condition @ mixing).chunk(2, 1)
    side = torch.randint(2, (rows, 1), generator=generator) * 2 - 1
    noise = torch.randn(rows, 4, generator=generator)
    return condition, side * first + 0.3 * (noise + second * noise.flip(1))


def ours(condition: Tensor, target: Tensor, epochs: int) -> MixtureNetwork:
    """Fit with condens."""
    torch.manual_seed(0)
    network = MixtureNetwork.of(10, 4)
    train(network, (condition, target), Settings(epochs=epochs, patience=epochs, batch_size=256))
    return network


def theirs(condition: Tensor, target: Tensor, epochs: int) -> torch.nn.Module:
    """Fit with sbi: its MDN behind NPE, the width and components of ours."""
    torch.manual_seed(0)
    build = posterior_nn("mdn", hidden_features=128, num_components=10)
    inference = NPE(density_estimator=build, show_progress_bars=False)
    return inference.append_simulations(target, condition).train(
        training_batch_size=256,
        validation_fraction=0.1,
        max_num_epochs=epochs - 1,
        stop_after_epochs=epochs + 1,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    data, test = draw(20_000, 1), draw(20_000, 2)
    best = {"condens": float("inf"), "sbi": float("inf")}
    for fit in (ours, theirs):  # what is imported at first use
        fit(data[0][:512], data[1][:512], 2)
    for _ in range(options.rounds):
        start = time.perf_counter()
        network = ours(*data, options.epochs)
        best["condens"] = min(best["condens"], time.perf_counter() - start)
        start = time.perf_counter()
        estimator = theirs(*data, options.epochs)
        best["sbi"] = min(best["sbi"], time.perf_counter() - start)
        with torch.no_grad():
            nll = -network(test[0]).log_prob(test[1]).mean()
            other = -estimator.log_prob(test[1][None], test[0]).mean()
        print(
            f"condens {best['condens']:.1f} s, test NLL {nll:.3f}; "
            f"sbi {best['sbi']:.1f} s, test NLL {other:.3f}; "
            f"{best['sbi'] / best['condens']:.1f} times faster",
            flush=True,
        )


if __name__ == "__main__":
    main()
