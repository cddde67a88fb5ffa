"""Measure what the defaults learn, against truths that are known.

python benchmarks/quality/run.py [joint] [missing] [arm] [--seeds 3] [--threads 1]
"""

import argparse
import time

import torch
from problems import Arm, JointMixture
from torch import Tensor

from condens.nn import MixtureNetwork
from condens.training import choose_components, train


def fit(condition: Tensor, target: Tensor, seed: int, **options: object) -> MixtureNetwork:
    """Train a network with the defaults."""
    torch.manual_seed(seed)
    network = MixtureNetwork.of(condition.shape[1], target.shape[1], **options)
    train(network, (condition, target))
    return network


def score(network: MixtureNetwork, condition: Tensor, target: Tensor) -> Tensor:
    """Return the log density of each row."""
    with torch.no_grad():
        return network(condition).log_prob(target)


def joint(seed: int) -> None:
    """KL from the truth, D = 5, n = 10⁴: full, diagonal, and a chosen number of components."""
    problem = JointMixture(seed)
    data, test = problem.draw(10_000), problem.draw(20_000)
    truth = problem.log_prob(*test).mean()
    for covariance in ("full", "diagonal"):
        start = time.perf_counter()
        network = fit(*data, seed, covariance=covariance)
        seconds = time.perf_counter() - start
        each = score(network, *test)
        print(
            f"joint mixture, seed {seed}, {covariance}: KL {truth - each.mean():.4f}, "
            f"worst row {each.min():.1f}, {seconds:.1f} s",
            flush=True,
        )
    start = time.perf_counter()
    torch.manual_seed(seed)
    chosen = choose_components(lambda k: MixtureNetwork.of(3, 5, n_components=k), data)
    seconds = time.perf_counter() - start
    each = score(chosen.network, *test)
    print(
        f"joint mixture, seed {seed}, {chosen.network.head.n_components} components chosen: "
        f"KL {truth - each.mean():.4f}, worst row {each.min():.1f}, {seconds:.1f} s",
        flush=True,
    )


def missing(seed: int) -> None:
    """KL with 30 % of the target entries removed, against what else one could do."""
    problem = JointMixture(seed)
    (condition, target), test = problem.draw(10_000), problem.draw(20_000)
    truth = problem.log_prob(*test).mean()
    generator = torch.Generator().manual_seed(seed)
    gaps = torch.rand(target.shape, generator=generator) < 0.3
    observed = target.masked_fill(gaps, torch.nan)
    whole = (~gaps).all(1)
    same = round(0.7 * len(target))
    for name, rows in {
        "30 % missing": (condition, observed),
        "as many entries in complete rows": (condition[:same], target[:same]),
        "incomplete rows dropped": (condition[whole], target[whole]),
    }.items():
        start = time.perf_counter()
        each = score(fit(*rows, seed), *test)
        print(
            f"missing entries, seed {seed}, {name}: KL {truth - each.mean():.4f}, "
            f"{time.perf_counter() - start:.1f} s",
            flush=True,
        )


def arm(seed: int) -> None:
    """Regret of noisy inverse kinematics, n = 5·10⁴."""
    for noise in (0.05, 0.1):
        problem = Arm(noise)
        generator = torch.Generator().manual_seed(seed)
        data, test = problem.draw(50_000, generator), problem.draw(3_000, generator)
        truth = problem.log_prob(*test).mean()
        start = time.perf_counter()
        each = score(fit(*data, seed), *test)
        print(
            f"arm, noise {noise}, seed {seed}: regret {truth - each.mean():.4f} "
            f"(optimum {-truth:.3f}), worst row {each.min():.1f}, "
            f"{time.perf_counter() - start:.1f} s",
            flush=True,
        )


TABLES = {"joint": joint, "missing": missing, "arm": arm}


def main() -> None:
    """Run the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tables", nargs="*", choices=[*TABLES, []], default=list(TABLES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in options.tables:
        for seed in range(options.seeds):
            TABLES[name](seed)


if __name__ == "__main__":
    main()
