"""Training for sbi: through condens' loop and through sbi's own, beside sbi's MDN.

    python benchmarks/speed/sbi_training.py [--epochs 50] [--rounds 2] [--threads 1]

20 000 simulations of 4 parameters from 10 observed numbers. All three hold out a tenth of them,
train 10 components with full covariances for the same number of epochs, in batches of 256, and
return the weights that were best on what they held out; the negative log-likelihood is then
taken on the same 20 000 fresh simulations. The rounds are interleaved, and the best time is
told.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from fit import draw
from sbi.inference import NPE
from sbi.neural_nets import posterior_nn
from torch import Tensor

from condens.integrations.sbi import density_estimator, fit
from condens.training import Settings


def trainer(build: Any, theta: Tensor, x: Tensor) -> NPE:
    """Return sbi's trainer with the simulations, seeded."""
    torch.manual_seed(0)
    inference = NPE(density_estimator=build, show_progress_bars=False)
    return inference.append_simulations(theta, x)


def by_condens(theta: Tensor, x: Tensor, epochs: int) -> torch.nn.Module:
    """Train our estimator with our loop."""
    inference = trainer(density_estimator(n_components=10), theta, x)
    return fit(inference, Settings(epochs=epochs, patience=epochs, batch_size=256), progress=False)


def by_sbi(build: Any, theta: Tensor, x: Tensor, epochs: int) -> torch.nn.Module:
    """Train an estimator with sbi's loop."""
    return trainer(build, theta, x).train(
        training_batch_size=256,
        validation_fraction=0.1,
        max_num_epochs=epochs - 1,
        stop_after_epochs=epochs + 1,
    )


def ours_by_sbi(theta: Tensor, x: Tensor, epochs: int) -> torch.nn.Module:
    """Train our estimator with sbi's loop."""
    return by_sbi(density_estimator(n_components=10), theta, x, epochs)


def theirs_by_sbi(theta: Tensor, x: Tensor, epochs: int) -> torch.nn.Module:
    """Train sbi's MDN, of the width and components of ours, with sbi's loop."""
    return by_sbi(posterior_nn("mdn", hidden_features=128, num_components=10), theta, x, epochs)


WAYS: dict[str, Callable[[Tensor, Tensor, int], torch.nn.Module]] = {
    "condens, condens' loop": by_condens,
    "condens, sbi's loop": ours_by_sbi,
    "sbi's MDN, sbi's loop": theirs_by_sbi,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    (x, theta), (x_test, theta_test) = draw(20_000, 1), draw(20_000, 2)
    for train in WAYS.values():  # what is imported at first use
        train(theta[:512], x[:512], 2)
    best, nll = dict.fromkeys(WAYS, float("inf")), {}
    for _ in range(options.rounds):
        for name, train in WAYS.items():
            start = time.perf_counter()
            estimator = train(theta, x, options.epochs)
            best[name] = min(best[name], time.perf_counter() - start)
            with torch.no_grad():
                nll[name] = -float(estimator.log_prob(theta_test[None], x_test).mean())
    slowest = best["sbi's MDN, sbi's loop"]
    for name in WAYS:
        times = f"{best[name]:.1f} s, {slowest / best[name]:.1f} times as fast as sbi"
        print(f"{name:24}{times}, test NLL {nll[name]:.3f}")


if __name__ == "__main__":
    main()
