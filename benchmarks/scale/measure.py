"""Measure the constants of the scaling model; write constants.json.

    OMP_NUM_THREADS=1 python benchmarks/scale/measure.py [--rounds 3] [--out constants.json]

Steps are of rows in memory, and the quickest tenth of them counts, by the clock and in CPU seconds.
a and c are the line through the CPU seconds of steps of 64 and 4096 rows in one process, which
other work on the machine changes little. Steps of 512 rows, and all of two processes, are predicted
and compared, not fitted; CPU seconds leave out the waiting for the other process.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import model
import torch
import worker
from torch import distributed as dist

HERE = Path(__file__).parent
NETWORKS = {
    "one network": {"width": 128, "members": 1},
    "ensemble of five": {"width": 128, "members": 5},
    "width 512": {"width": 512, "members": 1},
}
FITTED = (64, 4096)
COMPARED = {1: (64, 512, 4096), 2: (512, 4096)}
STEPS, SIZES, REPEATS = 20, (4, 4096, 1 << 16, 1 << 18, 1 << 20, 1 << 22), 300
READING_BATCH, READING_ROWS = 4096, 400_000


def launch(script: str, job: dict[str, Any], processes: int = 1) -> Any:
    """Return what a script prints, run in processes of its own."""
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(processes)]
    command += [str(HERE / script), json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        sys.exit(f"{command} failed:\n{done.stderr[-2000:]}")
    return json.loads(lines[-1])


def step_seconds(network: str, batch: int, processes: int, **more: Any) -> dict[str, float]:
    """Return the seconds of a step, by the clock and of the CPU."""
    rows = STEPS * batch * 10 // 9
    epochs = 3 if batch > 1000 else 12
    job = {"rows": rows, "group_rows": rows, "files": 1, "batch": batch, "epochs": epochs}
    found = launch("worker.py", job | {"validation": 0.1} | NETWORKS[network] | more, processes)
    return {"wall": found["step"]["0.1"], "cpu": found["step_cpu"]["0.1"]}


def saving_seconds(network: str) -> float:
    """Return the seconds to write the state, as after every step."""
    with tempfile.TemporaryDirectory() as place:
        more = {"directory": f"{place}/run", "checkpoint_seconds": 0.0}
        with_it, without = (step_seconds(network, 64, 1, **each) for each in (more, {}))
    return with_it["wall"] - without["wall"]


def reading_seconds() -> float:
    """Return the CPU seconds that a streamed row takes more than one in memory."""
    job = {"rows": READING_ROWS, "batch": READING_BATCH, "epochs": 4}
    with tempfile.TemporaryDirectory() as place:
        import shards

        size = {name: worker.DEFAULTS[name] for name in ("files", "group_rows", "columns")}
        shards.write(Path(place) / "shards", rows=READING_ROWS, form="parquet", **size)
        best = {}
        for source in ("memory", "parquet"):
            found = launch("worker.py", job | {"source": source, "path": f"{place}/shards"})
            best[source] = min(found["cpu"]) / found["rows"]
    return best["parquet"] - best["memory"]


def exchanges() -> None:
    """Time all-reduces of several sizes, and those of each network's gradients; one process of two.

    Prints the best seconds of each.
    """
    dist.init_process_group("gloo")
    found: dict[str, dict[Any, float]] = {"all_reduce": {}, "gradients": {}}
    for size in SIZES:
        values = torch.zeros(size // 4)
        found["all_reduce"][size] = _best(lambda values=values: dist.all_reduce(values))
    for name, shape in NETWORKS.items():
        network = worker.network(worker.DEFAULTS | shape)
        gradients = [torch.zeros_like(parameter) for parameter in network.parameters()]
        found["gradients"][name] = _best(lambda gradients=gradients: _exchange(gradients))
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


def _exchange(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    """Sum gradients, and a number for each of them and two more, as a step does."""
    flags = torch.tensor([1.0] * (len(gradients) + 2))
    flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), flags])
    total = flat.clone()
    dist.all_reduce(total)
    total[-len(flags) :].tolist()
    parts = total[: -len(flags)].split([gradient.numel() for gradient in gradients])
    return [part.view(g.shape) for part, g in zip(parts, gradients, strict=True)]


def _best(job: Any) -> float:
    best = float("inf")
    for _ in range(REPEATS):
        dist.barrier()
        start = time.perf_counter()
        job()
        best = min(best, time.perf_counter() - start)
    return best


def line(points: dict[int, float]) -> tuple[float, float]:
    """Return constant and slope through the first and the last point."""
    (x0, y0), (x1, y1) = min(points.items()), max(points.items())
    slope = (y1 - y0) / (x1 - x0)
    return y0 - slope * x0, slope


def measure(rounds: int) -> dict[str, Any]:
    """Return the constants, the best of interleaved rounds."""
    loads = [os.getloadavg()[0]]
    steps: dict[tuple[str, int, int], dict[str, float]] = {}
    saving, reading = dict.fromkeys(NETWORKS, float("inf")), float("inf")
    reduce: dict[str, float] = {}
    summed: dict[str, float] = {}
    for number in range(rounds):
        for count, batches in COMPARED.items():
            for batch in batches:
                for name in NETWORKS:
                    key = name, batch, count
                    one = step_seconds(*key)
                    steps[key] = {k: min(v, steps.get(key, one)[k]) for k, v in one.items()}
        found = launch("measure.py", {}, 2)
        reduce = {k: min(v, reduce.get(k, v)) for k, v in found["all_reduce"].items()}
        summed = {k: min(v, summed.get(k, v)) for k, v in found["gradients"].items()}
        for name in NETWORKS:
            saving[name] = min(saving[name], saving_seconds(name))
        reading = min(reading, reading_seconds())
        loads.append(os.getloadavg()[0])
        print(f"round {number + 1} of {rounds}, load {loads[-1]:.1f}", file=sys.stderr, flush=True)
    # Of two processes a ring has two hops, and each sends as many bytes as there are.
    constant, slope = line({int(size): seconds for size, seconds in reduce.items()})
    link = {"latency": max(constant, 0.0) / 2, "bandwidth": 1 / slope}
    made = []
    for name, shape in NETWORKS.items():
        parameters = list(worker.network(worker.DEFAULTS | shape).parameters())
        fixed, row = line({batch: steps[name, batch, 1]["cpu"] for batch in FITTED})
        one = {
            "name": name,
            "parameters": sum(p.numel() for p in parameters),
            "matrices": sum(p.numel() for p in parameters if p.dim() > 1),
            "tensors": len(parameters),
            "fixed": fixed,
            "row": row,
            "checkpoint": max(saving[name], 0.0),
        }
        sent = model.Network(**one, pack=0.0).bytes_exchanged
        pack = summed[name] - model.ring(model.Link(**link), 2, sent)
        made.append(one | {"pack": max(pack, 0.0)})
    return {
        "networks": made,
        "link": link,
        "all_reduce": reduce,
        "reading": {"row": max(reading, 0.0), "columns": worker.DEFAULTS["columns"] + 2},
        "steps": [
            {"network": name, "batch": batch, "processes": count} | seconds
            for (name, batch, count), seconds in steps.items()
        ],
        "load": [min(loads), max(loads)],
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def main() -> None:
    """Measure and write; under torchrun, time the exchanges."""
    if os.environ.get("WORLD_SIZE"):
        exchanges()
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=model.CONSTANTS)
    given = parser.parse_args()
    given.out.write_text(json.dumps(measure(given.rounds), indent=1) + "\n")


if __name__ == "__main__":
    main()
