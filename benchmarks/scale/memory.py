"""Train on shards that are larger than the memory a process may use, score them, and say the peak.

    python benchmarks/scale/memory.py SHARDS [--gigabytes 2] [--columns 32] [--limit 700]

Writes 20 Parquet files of float32 columns into a directory that must not exist, and removes it at
the end. A process of its own surveys them, trains for one epoch and scores every row; its memory is
sampled and compared with that after its imports. Another trains on rows in memory, of the same
columns. Exit 1 where the peak is above the limit or the streamed loop has less than 80 % of the
other's rows a second; `--hard` also forbids the process to ask for more. A second core reads ahead:
by CPU seconds, which are printed too, reading counts in full.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import shards as tables
import torch
import worker

from condens.data import Shards
from condens.training import Settings, train

FILES, GROUP_ROWS = 20, 50_000
LEAST_FRACTION = 0.8
SAMPLE_SECONDS = 0.02


def status(name: str) -> int:
    """Return a count of bytes of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise KeyError(name)


class Peak(threading.Thread):
    """Samples the resident memory; `highest` is the largest since it was last set to 0."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.highest = 0

    def run(self) -> None:
        """Sample until the process ends."""
        while True:
            self.highest = max(self.highest, status("VmRSS"))
            time.sleep(SAMPLE_SECONDS)


class Phase:
    """Prints wall and CPU seconds and the peak of a phase above the memory after the imports."""

    def __init__(self, sampler: Peak, base: int) -> None:
        self.sampler, self.base = sampler, base
        self.found: dict[str, float] = {}
        self.begin()

    def begin(self) -> None:
        """Forget what was before."""
        self.sampler.highest = 0
        self.clocks = time.perf_counter(), time.process_time()

    def end(self, name: str, rows: int) -> None:
        """Note a phase of so many rows, and begin the next."""
        seconds = time.perf_counter() - self.clocks[0]
        cpu = time.process_time() - self.clocks[1]
        peak = max(self.sampler.highest, status("VmRSS")) - self.base
        self.found |= {
            f"{name}_peak": peak,
            f"{name}_rows_per_second": rows / seconds,
            f"{name}_rows_per_cpu_second": rows / cpu,
        }
        print(
            f"{name:8} peak {peak / 1e6:5.0f} MB   {rows / seconds:9.0f} rows/s   "
            f"{rows / cpu:9.0f} rows/CPU s",
            file=sys.stderr,
            flush=True,
        )
        self.begin()


def limit_memory(more: int) -> None:
    """Forbid this process to ask the system for more than so many bytes above what it has."""
    most = status("VmData") + more
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def streamed(job: dict[str, Any]) -> dict[str, float]:
    """Survey, train and score shards."""
    torch.randn(8, 8) @ torch.randn(8, 8)  # libraries that load at their first use
    import pyarrow.parquet  # noqa: F401

    sampler = Peak()
    sampler.start()
    if job["hard"]:
        limit_memory(job["limit"])
    phase = Phase(sampler, status("VmRSS"))
    stream = worker.data(job)
    phase.end("survey", stream.n_rows)
    network = worker.network(job)
    settings = Settings(epochs=1, batch_size=job["batch"])
    history = train(network, stream, settings, progress=False, warn=False)
    phase.end("train", stream.n_rows)
    phase.found["nll"] = history.best_nll
    phase.found["scored_nll"] = score(network, Shards(job["path"]), job["columns"])
    phase.end("score", stream.n_rows)
    return phase.found


@torch.no_grad()
def score(network: Any, shards: Shards, columns: int) -> float:
    """Return the mean negative log-likelihood of all rows, read in parts."""
    total, names = 0.0, [*tables.conditions(columns), *tables.TARGETS]
    for piece in shards.pieces:
        for part in shards.read(piece, names):
            rows = torch.stack([torch.tensor(part.table[name].to_numpy()) for name in names], 1)
            rows = rows.to(network.dtype)
            nll = network.nll(rows[:, :columns], rows[:, columns:])
            total += float(nll.double().sum())
    return total / shards.n_rows


def in_memory(job: dict[str, Any]) -> dict[str, float]:
    """Train on rows in memory; the first epoch does not count, which has the start in it."""
    rows = worker.data(job)
    settings = Settings(epochs=3, batch_size=job["batch"], validation_fraction=job["validation"])
    clock: list[float] = []
    history = train(
        worker.network(job),
        rows,
        settings,
        callbacks=lambda _: clock.append(time.process_time()),
        progress=False,
        warn=False,
    )
    cpu = min(after - before for before, after in pairwise(clock))
    seconds = min(epoch.seconds for epoch in history.epochs)
    return {"rows_per_cpu_second": history.rows / cpu, "rows_per_second": history.rows / seconds}


def run(job: dict[str, Any]) -> dict[str, float]:
    """Return what a process of its own found."""
    command = [sys.executable, __file__, "--job", json.dumps(job)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Write, measure, compare."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path, nargs="?")
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--limit", type=float, default=700.0, help="megabytes above the imports")
    parser.add_argument("--columns", type=int, default=32, help="of conditions")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--hard", action="store_true", help="RLIMIT_DATA, at the limit")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        warnings.simplefilter("ignore")
        job = json.loads(given.job)
        found = streamed(job) if job["source"] != "memory" else in_memory(job)
        print(json.dumps(found))
        return
    if given.directory is None or given.directory.exists():
        parser.error("name a directory that does not exist yet")
    rows = int(given.gigabytes * 1e9 / (4 * (given.columns + len(tables.TARGETS))))
    job = worker.DEFAULTS | {
        "path": str(given.directory),
        "columns": given.columns,
        "batch": given.batch,
        "members": given.members,
        "limit": int(given.limit * 1e6),
        "hard": given.hard,
    }
    size = {"files": FILES, "group_rows": GROUP_ROWS, "columns": given.columns}
    try:
        written = tables.write(given.directory, rows=rows, form="parquet", **size)
        kept = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(f"wrote {written / 1e9:.2f} GB, {rows} rows, in at most {kept:.0f} MB with imports")
        parts = [run(job | {"source": source}) for source in ("memory", "parquet", "memory")]
    finally:
        shutil.rmtree(given.directory, ignore_errors=True)
    found = parts[1] | {"load": os.getloadavg()[0], "bytes": written, "rows": rows}
    best = {name: max(parts[0][name], parts[2][name]) for name in parts[0]}
    found |= {f"memory_{name}": value for name, value in best.items()}
    peak = max(found[f"{name}_peak"] for name in ("survey", "train", "score"))
    fraction = found["train_rows_per_second"] / best["rows_per_second"]
    by_cpu = found["train_rows_per_cpu_second"] / best["rows_per_cpu_second"]
    print(json.dumps(found | {"peak": peak, "fraction_of_memory": fraction}))
    print(
        f"peak {peak / 1e6:.0f} MB (limit {given.limit:.0f}); of the rows in memory, "
        f"{fraction:.0%} a second, {by_cpu:.0%} a CPU second"
    )
    sys.exit(peak > given.limit * 1e6 or fraction < LEAST_FRACTION)


if __name__ == "__main__":
    main()
