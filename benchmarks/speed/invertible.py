"""The invertible block beside FrEIA's: one sample of each of 1000 rows, by fixed indices.

Both take the same tensors and return the samples and the log-determinants. The rounds are
interleaved, the best one counts, on one thread.

    python benchmarks/speed/invertible.py
"""

import argparse
from collections.abc import Callable

import torch
from FrEIA.modules import GaussianMixtureModel
from timing import best_times

from condens.nn import GaussianMixtureBlock

SIZES = [(5, 2), (10, 4), (5, 10), (10, 20)]  # K, D
ROWS = 1000


def jobs(n_components: int, dimensions: int, *, watched: bool) -> dict[str, Callable[[], object]]:
    """Return the reverse pass of both blocks, recorded by autograd if watched."""
    packed = dimensions * (dimensions + 1) // 2
    weights = torch.softmax(torch.randn(ROWS, n_components), -1)
    means = torch.randn(ROWS, n_components, dimensions, requires_grad=watched)
    factors = (0.1 * torch.randn(ROWS, n_components, packed)).requires_grad_(watched)
    noise, index = torch.randn(ROWS, dimensions), torch.randint(n_components, (ROWS,))
    condition = [weights, means, factors, index]
    ours = GaussianMixtureBlock([(dimensions,)], [])
    theirs = GaussianMixtureModel([(dimensions,)], [])
    torch.testing.assert_close(
        ours([noise], condition, rev=True), theirs([noise], condition, rev=True)
    )
    return {
        "condens": lambda: ours([noise], condition, rev=True),
        "FrEIA": lambda: theirs([noise], condition, rev=True),
    }


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="for each line of the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("| K | D | for gradients | condens (ms) | FrEIA (ms) | times |")
    print("|---|---|---|---|---|---|")
    for n_components, dimensions in SIZES:
        for watched in (False, True):
            best = best_times(jobs(n_components, dimensions, watched=watched), options.seconds)
            ours, theirs = 1e3 * best["condens"], 1e3 * best["FrEIA"]
            says = "yes" if watched else "no"
            line = f"| {n_components} | {dimensions} | {says} | {ours:.3f} | {theirs:.1f} |"
            print(f"{line} {theirs / ours:.0f} |")


if __name__ == "__main__":
    main()
