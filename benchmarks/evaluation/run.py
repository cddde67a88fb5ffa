"""Time and memory of `evaluate`: 10⁵ rows, D = 3, K = 10, every score, on one thread.

    python benchmarks/evaluation/run.py [--rows 100000] [--dimensions 3] [--components 10]

Prints seconds, the memory beyond what the densities and targets take, and the first line of the
verdict. `/usr/bin/time -v` measures the whole process.
"""

import argparse
import resource
import time

import torch
from torch import Generator

from condens import GaussianMixture
from condens.evaluation import evaluate


def peak_megabytes():
    """Return the largest memory that the process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def densities(rows, dimensions, components):
    """Return a batch of random mixtures."""
    generator = Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(rows, components, *shape, dtype=torch.float64, generator=generator)

    size = dimensions * (dimensions + 1) // 2
    return GaussianMixture(draw(), 3 * draw(dimensions), 0.3 * draw(size))


def main():
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=3)
    parser.add_argument("--components", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    mixture = densities(given.rows, given.dimensions, given.components)
    target = mixture.sample(generator=Generator().manual_seed(1))
    condition = torch.randn(given.rows, 5, generator=Generator().manual_seed(2))
    evaluate(mixture[:500], condition[:500], target[:500], progress=False)  # imports
    before, began = peak_megabytes(), time.perf_counter()
    report = evaluate(mixture, condition, target, train=(condition, target))
    seconds = time.perf_counter() - began
    print(
        f"{given.rows} rows, D = {given.dimensions}, K = {given.components}: {seconds:.1f} s, "
        f"peak {peak_megabytes():.0f} MB, {peak_megabytes() - before:.0f} MB of it by evaluate"
    )
    print(report.verdict.splitlines()[0])


if __name__ == "__main__":
    main()
