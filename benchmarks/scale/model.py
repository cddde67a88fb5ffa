"""What a step costs with many workers, on paper: bytes, FLOPs, communication and efficiency.

    python benchmarks/scale/model.py                # the tables, from constants.json
    python benchmarks/scale/measure.py              # measures constants.json anew

A step of p workers with b rows each takes

    t(p, b) = a + c b + pack + exchange(p, 4 P),     exchange(1, n) = 0
    ring:  2 (p − 1) α + 2 (p − 1)/p · n/β           gloo, on CPUs
    tree:  2 log₂ p · α + 2 n/β                      what NCCL chooses for small messages

a: seconds of a step without rows (Python, optimiser), c: seconds a row; both measured in one
process. P: parameters; all gradients, in single precision, are summed by one all-reduce after the
backward pass, which nothing overlaps; pack: copies into and out of its buffer. α: seconds a hop,
the software's as measured on loopback plus those of the link; β: bytes a second.

Weak scaling keeps the rows of a worker, and the batch grows; its efficiency is t(1, b) / t(p, b).
Strong scaling keeps the batch B; its efficiency is t(1, B) / (p t(p, B/p)). Streamed, a thread of
each worker decodes rows on a core of its own; a worker decodes whole lanes, of which there are at
most 64, so B / min(p, 64) rows a step; the step takes no less. Left out: workers that are slower
than others, links that are shared, and reading that the disks or the network cannot follow.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONSTANTS = Path(__file__).with_name("constants.json")
WORKERS = (8, 64, 1024)
MAX_LANES = 64
# Of what a link promises, what one connection gets.
USABLE = 0.9
VALIDATION_ROWS, CHECKPOINT_SECONDS = 100_000, 10.0


@dataclass(frozen=True)
class Network:
    """What a step of a network costs.

    Args:
        parameters, matrices: how many numbers, and how many of them are in matrices.
        tensors: how many parameters there are, each with a number beside its gradient.
        fixed, row: seconds of a step, and of a row in it.
        pack: seconds to copy the gradients into one buffer and back.
        checkpoint: seconds to write the state.
    """

    name: str
    parameters: int
    matrices: int
    tensors: int
    fixed: float
    row: float
    pack: float
    checkpoint: float

    @property
    def flops_per_row(self) -> int:
        """Multiplications and additions: forward, and twice as many backward."""
        return 6 * self.matrices

    @property
    def bytes_exchanged(self) -> int:
        """The gradients, a flag for each tensor, the loss and whether to stop."""
        return 4 * (self.parameters + self.tensors + 2)

    @property
    def bytes_of_optimiser(self) -> int:
        """Adam and the averaged weights: reads five arrays and writes four."""
        return 9 * 4 * self.parameters


@dataclass(frozen=True)
class Link:
    """Seconds a hop and bytes a second."""

    latency: float
    bandwidth: float

    @classmethod
    def of(cls, gigabits: float, wire: float, software: float) -> "Link":
        """Return a link by what it promises."""
        return cls(software + wire, USABLE * gigabits * 1e9 / 8)


def ring(link: Link, workers: int, size: float) -> float:
    """Return the seconds of an all-reduce around a ring."""
    if workers == 1:
        return 0.0
    hops = 2 * (workers - 1)
    return hops * link.latency + hops / workers * size / link.bandwidth


def tree(link: Link, workers: int, size: float) -> float:
    """Return the seconds of a reduction and a broadcast along a binary tree, in pieces."""
    if workers == 1:
        return 0.0
    return 2 * math.ceil(math.log2(workers)) * link.latency + 2 * size / link.bandwidth


def computing(network: Network, rows: float) -> float:
    """Return the seconds of a step in one process."""
    return network.fixed + network.row * rows


def step(network: Network, rows: float, workers: int, exchange: float) -> float:
    """Return the seconds of a step of several workers with so many rows each."""
    return computing(network, rows) + (network.pack if workers > 1 else 0.0) + exchange


def reading(seconds_per_row: float, rows: float, workers: int) -> float:
    """Return the seconds in which a worker's thread decodes what a step needs."""
    return seconds_per_row * rows * workers / min(workers, MAX_LANES)


def weak(network: Network, rows: int, workers: int, exchange: float, least: float = 0.0) -> float:
    """Return the efficiency at fixed rows a worker; a step takes `least` seconds at least."""
    return computing(network, rows) / max(step(network, rows, workers, exchange), least)


def strong(
    network: Network, batch: int, workers: int, exchange: float, least: float = 0.0
) -> float:
    """Return the efficiency at a fixed batch."""
    taken = max(step(network, batch / workers, workers, exchange), least)
    return computing(network, batch) / (workers * taken)


def load(path: Path = CONSTANTS) -> dict[str, Any]:
    """Return what was measured."""
    return json.loads(path.read_text())


def networks(constants: dict[str, Any]) -> list[Network]:
    """Return the networks that were measured."""
    names = Network.__dataclass_fields__
    return [Network(**{n: one[n] for n in names}) for one in constants["networks"]]


def links(constants: dict[str, Any]) -> dict[str, Link]:
    """Return the links of the tables; the wire and a switch take some microseconds."""
    software = constants["link"]["latency"]
    return {
        "10 Gb/s": Link.of(10, 15e-6, software),
        "100 Gb/s": Link.of(100, 5e-6, software),
    }


def describe(constants: dict[str, Any]) -> str:
    """Return the table of what a step costs."""
    lines = [
        "| network | parameters | MFLOP a row | optimiser, MB a step | sent a worker and step, MB "
        "| fixed, ms | µs a row | pack, ms | checkpoint, % of time |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.name} | {one.parameters} | {one.flops_per_row / 1e6:.2f} "
        f"| {one.bytes_of_optimiser / 1e6:.1f} | {2 * one.bytes_exchanged / 1e6:.2f} "
        f"| {1e3 * one.fixed:.2f} | {1e6 * one.row:.2f} | {1e3 * one.pack:.2f} "
        f"| {100 * one.checkpoint / CHECKPOINT_SECONDS:.2f} |"
        for one in networks(constants)
    ]
    return "\n".join(lines)


def predict(constants: dict[str, Any]) -> str:
    """Return the table of efficiencies, in percent."""
    known = links(constants)
    ways = [(link, way) for link in known.values() for way in (ring, tree)]
    titles = [f"{name}, {way.__name__}" for name in known for way in (ring, tree)]
    lines = [
        f"| network | rows | workers | {' | '.join(titles)} | streamed, 100 Gb/s, tree |",
        "|---" * (4 + len(titles)) + "|",
    ]
    cost = constants["reading"]["row"]
    for one in networks(constants):
        for title, rows, scaling in (
            ("512 a worker", 512, weak),
            ("4096 a worker", 4096, weak),
            ("65 536 in all", 65_536, strong),
        ):
            for workers in WORKERS:
                times = [way(link, workers, one.bytes_exchanged) for link, way in ways]
                found = [scaling(one, rows, workers, seconds) for seconds in times]
                each = rows if scaling is weak else rows / workers
                least = reading(cost, each, workers)
                found.append(scaling(one, rows, workers, times[-1], least))
                cells = " | ".join(f"{100 * value:.0f}" for value in found)
                lines.append(f"| {one.name} | {title} | {workers} | {cells} |")
    return "\n".join(lines)


def compare(constants: dict[str, Any]) -> str:
    """Return the table of predicted and measured steps at one and two processes."""
    known = {one.name: one for one in networks(constants)}
    loopback = Link(**constants["link"])
    lines = [
        "| network | batch | processes | predicted, ms | clock, ms | error | CPU, ms | error "
        "| efficiency predicted | clock |",
        "|---" * 10 + "|",
    ]
    alone = {
        (one["network"], one["batch"]): one for one in constants["steps"] if one["processes"] == 1
    }
    for one in constants["steps"]:
        network, batch, count = known[one["network"]], one["batch"], one["processes"]
        seconds = ring(loopback, count, network.bytes_exchanged)
        found = step(network, batch / count, count, seconds)
        first = alone[one["network"], batch]
        cells = [network.name, str(batch), str(count), f"{1e3 * found:.2f}"]
        for way in ("wall", "cpu"):
            cells += [f"{1e3 * one[way]:.2f}", f"{100 * (found / one[way] - 1):+.0f} %"]
        cells.append(f"{100 * computing(network, batch) / (count * found):.0f} %")
        cells.append(f"{100 * first['wall'] / (count * one['wall']):.0f} %")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables."""
    constants = load()
    link, cost = constants["link"], constants["reading"]["row"]
    print("## What a step costs\n")
    print(describe(constants))
    print(
        f"\ngloo on loopback: {1e6 * link['latency']:.0f} µs a hop, "
        f"{link['bandwidth'] / 1e9:.2f} GB/s. Reading: {1e6 * cost:.2f} µs a row of "
        f"{constants['reading']['columns']} columns. Load while measuring: "
        f"{constants['load'][0]:.1f} to {constants['load'][1]:.1f} on {constants['cores']} cores."
    )
    first = networks(constants)[0]
    print(
        f"Validation of {VALIDATION_ROWS} rows, {first.name}: about "
        f"{VALIDATION_ROWS * first.row / 3:.2f} s of an epoch, divided by the workers."
    )
    print("\n## Predicted and measured\n")
    print(compare(constants))
    print("\n## Predicted efficiency, %\n")
    print(predict(constants))


if __name__ == "__main__":
    main()
