"""Measure condens beside its peers; write results.json and results.md.

Contenders of one table run in one process, interleaved round by round; the best of the
rounds counts. Times of peers are given in units of condens'.

    python benchmarks/speed/run.py benchmarks/speed/results [--quick] [--threads 1]
"""

import argparse
import json
import math
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
from contenders import OURS, PEERS, SAMPLERS, Network, random_parameters
from torch import Tensor

from condens import kernels

Row = dict[str, float]


def best_times(jobs: dict[str, Callable[[], object]], seconds: float, rounds: int) -> Row:
    """Return the best time of each job; rounds are interleaved and end when time is up."""
    best = dict.fromkeys(jobs, math.inf)
    stop = time.perf_counter() + seconds
    for round_ in range(rounds):
        for name, job in jobs.items():
            for _ in range(3):  # the first call after another contender finds cold caches
                start = time.perf_counter()
                job()
                best[name] = min(best[name], time.perf_counter() - start)
        if round_ >= 2 and time.perf_counter() > stop:
            break
    return best


def copy_time(numbers: int) -> float:
    """Return the time to read and write that many float32, by copying half of them."""
    source = torch.randn(max(numbers // 2, 1))
    target = torch.empty_like(source)
    return best_times({"copy": lambda: target.copy_(source)}, 0.2, 50)["copy"]


def loss_table(sizes: list[tuple[int, int, int]], seconds: float) -> list[Row]:
    """Measure loss and gradients for every (b, K, D)."""
    rows = []
    for batch, components, dimensions in sizes:
        target, *parameters = random_parameters(batch, components, dimensions)
        last = [p.movedim(0, -1).contiguous().movedim(-1, 0) for p in parameters]

        def job(loss: Callable[..., Tensor], inputs: list[Tensor], x: Tensor = target) -> None:
            leaves = [p.detach().requires_grad_() for p in inputs]
            torch.autograd.grad(loss(x, *leaves), leaves)

        jobs = {name: lambda f=f, p=parameters: job(f, p) for name, f in OURS.items()}
        jobs["condens batch-last"] = lambda p=last: job(OURS["condens"], p)
        numbers = 2 * sum(p.numel() for p in parameters)
        # Peers keep a dozen dense copies: what would not fit is left out.
        if batch * components * dimensions**2 < 6e7:
            jobs |= {name: lambda f=f, p=parameters: job(f, p) for name, f in PEERS.items()}
        row = best_times(jobs, seconds, 200)
        row |= {"b": batch, "K": components, "D": dimensions, "copy": copy_time(numbers)}
        rows.append(row)
        print(json.dumps({k: round(v, 7) for k, v in row.items()}), flush=True)
    return rows


def step_table(seconds: float) -> list[Row]:
    """Measure a training step: b = 256, K = 10, MLP 10-128-128, fused Adam for all."""
    rows = []
    for dimensions in (2, 10, 30):
        condition, target = torch.randn(256, 10), torch.randn(256, dimensions)

        def job(loss: Callable[[Network], Tensor], size: int = dimensions) -> Callable[[], None]:
            network = Network(10, size)
            # So slow that nobody's loss leaves the start: all do the same work all the time.
            adam = torch.optim.Adam(network.parameters(), lr=1e-9, fused=True)

            def step() -> None:
                adam.zero_grad()
                loss(network).backward()
                adam.step()

            return step

        jobs = {
            name: job(lambda n, f=f, c=condition, t=target: n.loss(f, c, t))
            for name, f in (OURS | PEERS).items()
        }
        jobs["condens chunked"] = job(lambda n, c=condition, t=target: n.chunked_loss(c, t))
        # The floor: the same network and optimiser with a loss that costs next to nothing.
        jobs["GEMM floor"] = job(lambda n, c=condition: n.head(n.body(c)).sum())
        row = best_times(jobs, seconds, 200) | {"D": dimensions}
        rows.append(row)
        print(json.dumps({k: round(v, 7) for k, v in row.items()}), flush=True)
    return rows


def sample_table(seconds: float, *, quick: bool) -> list[Row]:
    """Measure 10⁶ draws: 1000 conditions, 1000 each, K = 10."""
    rows = []
    for dimensions in (2, 10, 30):
        _, *parameters = random_parameters(1000, 10, dimensions)
        jobs: dict[str, Callable[[], object]] = {
            name: lambda f=f, p=parameters: f(*p, 1000)
            for name, f in SAMPLERS.items()
            # torch and zuko expand a factor for every draw: minutes, and gigabytes.
            if name in ("condens", "sbi") or dimensions < (10 if quick else 30)
        }
        jobs["randn"] = lambda d=dimensions: torch.randn(1000, 1000, d)
        with torch.no_grad():
            row = best_times(jobs, seconds, 2) | {"D": dimensions}
        rows.append(row)
        print(json.dumps({k: round(v, 5) for k, v in row.items()}), flush=True)
    return rows


def table(rows: list[Row], keys: list[str], unit: str) -> str:
    """Return a markdown table: the unit's time in milliseconds, the others in multiples of it."""
    names = [n for n in rows[0] if n not in keys and n != unit]
    lines = [
        f"| {' | '.join(keys)} | {unit}, ms | {' | '.join(names)} |",
        "|" + "---|" * (len(keys) + 1 + len(names)),
    ]
    for row in rows:
        sizes = " | ".join(f"{row[k]:.0f}" for k in keys)
        ratios = " | ".join(f"{row[n] / row[unit]:.2f}" if n in row else "" for n in names)
        lines.append(f"| {sizes} | {1e3 * row[unit]:.3f} | {ratios} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--quick", action="store_true", help="fewer sizes, under two minutes")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    sizes = [
        (b, k, d)
        for b in (256, 4096)
        for k in ((5,) if options.quick else (1, 5, 20))
        for d in ((1, 2, 10) if options.quick else (1, 2, 5, 10, 20, 50))
    ]
    seconds = 2.0 if options.quick else 5.0
    results = {
        "machine": f"{platform.machine()}, {torch.get_num_threads()} thread(s)",
        "torch": torch.__version__,
        "kernel": kernels.active(),
        "loss": loss_table(sizes, seconds),
        "step": step_table(seconds),
        "sample": sample_table(seconds, quick=options.quick),
    }
    options.directory.mkdir(parents=True, exist_ok=True)
    (options.directory / "results.json").write_text(json.dumps(results, indent=1))
    text = [
        "# Speed, measured",
        "",
        f"{results['machine']}, torch {results['torch']}, kernel {results['kernel']}, float32. "
        "Best of interleaved rounds; peers in units of the first column's time.",
        "",
        "## Loss and gradients",
        "",
        "`copy` is the time to read the parameters and write their gradients once.",
        "",
        table(results["loss"], ["b", "K", "D"], "condens"),
        "",
        "## Training step (b = 256, K = 10, MLP 10-128-128, fused Adam)",
        "",
        table(results["step"], ["D"], "condens chunked"),
        "",
        "## A million draws (1000 conditions, K = 10)",
        "",
        table(results["sample"], ["D"], "condens"),
        "",
        "## How time grows with D",
        "",
        "![Time of loss and gradients against D](growth.png)",
        "",
    ]
    (options.directory / "results.md").write_text("\n".join(text))
    print("\n".join(text))


if __name__ == "__main__":
    main()
