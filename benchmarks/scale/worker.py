"""One measurement, in a process of its own or in those that torchrun starts.

    python benchmarks/scale/worker.py '{"source": "parquet", "path": "shards", "batch": 512}'

Prints a line of JSON: seconds of every epoch's steps (validation and the like left out); wall and
CPU seconds of the steps of process 0, as quantiles over steps; CPU seconds of its epochs but the
first, with reading and all; and the load of the machine.
"""

import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import shards as tables
import torch

from condens.data import Rows, Shards
from condens.nn import DensityNetwork, Ensemble, MixtureNetwork
from condens.training import Settings, Source, Stream, train
from condens.training.distributed import Group
from condens.training.sources import RowsInMemory

DEFAULTS: dict[str, Any] = {
    "source": "memory",
    "path": "",
    "rows": 400_000,
    "columns": 8,
    "group_rows": 50_000,
    "files": 8,
    "batch": 512,
    "width": 128,
    "depth": 3,
    "members": 1,
    "epochs": 3,
    "validation": 0.01,
    "directory": None,
    "checkpoint_seconds": 10.0,
}


class Timed(Source):
    """A source that notes when each batch was asked for: a step lies between two of them."""

    def __init__(self, source: Source) -> None:
        self.source, self.rows_left_out = source, source.rows_left_out
        self.steps: list[tuple[float, float]] = []

    @property
    def n_rows(self) -> int:
        """Those of the source."""
        return self.source.n_rows

    @property
    def typical(self) -> Rows:
        """Those of the source."""
        return self.source.typical

    def check(self, network: DensityNetwork) -> None:
        """Let the source check."""
        self.source.check(network)

    def digest(self) -> str:
        """Return the source's."""
        return self.source.digest()

    def prepare(self, network: DensityNetwork, settings: Settings) -> None:
        """Let the source prepare."""
        self.source.prepare(network, settings)

    def noise(self, settings: Settings, network: DensityNetwork) -> Any:
        """Return the source's."""
        return self.source.noise(settings, network)

    def batches(self, network: DensityNetwork) -> Any:
        """Return the source's batches, timed."""
        batches, validation = self.source.batches(network)
        inner = batches.shuffled

        def shuffled(*arguments: Any) -> Iterator[Any]:
            before = None
            for batch in inner(*arguments):
                now = time.perf_counter(), time.process_time()
                if before is not None:
                    self.steps.append((now[0] - before[0], now[1] - before[1]))
                before = now
                yield batch

        batches.shuffled = shuffled  # type: ignore[method-assign]
        return batches, validation


def network(job: dict[str, Any]) -> MixtureNetwork | Ensemble:
    """Return the network of a job, with weights of seed 0."""
    torch.manual_seed(0)
    made = [
        MixtureNetwork.of(job["columns"], 2, width=job["width"], depth=job["depth"])
        for _ in range(job["members"])
    ]
    return made[0] if len(made) == 1 else Ensemble(made)


def data(job: dict[str, Any]) -> Any:
    """Return the rows, in memory or as a stream."""
    columns = job["columns"]
    if job["source"] == "memory":
        parts = tables.blocks(job["rows"], job["group_rows"], columns, job["files"])
        rows = torch.cat([torch.from_numpy(part) for part in parts]).double()
        return Rows(rows[:, :columns].contiguous(), rows[:, columns:].contiguous(), None)
    return Stream.open(
        Shards(Path(job["path"])),
        targets=tables.TARGETS,
        validation=job["validation"],
        n_members=job["members"],
    )


def main() -> None:
    """Train, and print what it took."""
    warnings.simplefilter("ignore")
    job = DEFAULTS | json.loads(sys.argv[1])
    group = Group.current()
    began = time.perf_counter()
    rows = data(job)
    opened = time.perf_counter() - began
    settings = Settings(
        epochs=job["epochs"],
        patience=job["epochs"],
        batch_size=job["batch"],
        validation_fraction=job["validation"],
    )
    if isinstance(rows, Rows):
        rows = RowsInMemory(rows, None, None, settings, job["members"])
    timed, clock = Timed(rows), []
    history = train(
        network(job),
        timed,
        settings,
        callbacks=lambda _: clock.append(time.process_time()),
        directory=job["directory"],
        checkpoint_seconds=job["checkpoint_seconds"],
        progress=False,
        warn=False,
    )
    if group.first:
        found = {
            "rows": history.rows,
            "steps": history.epochs[0].steps,
            "seconds": [epoch.seconds for epoch in history.epochs],
            "cpu": [after - before for before, after in pairwise(clock)],
            "step": _quantiles([wall for wall, _ in timed.steps]),
            "step_cpu": _quantiles([cpu for _, cpu in timed.steps]),
            "opened": opened,
            "nll": history.best_nll,
            "processes": group.size,
            "threads": torch.get_num_threads(),
            "load": os.getloadavg()[0],
        }
        print(json.dumps(job | found), flush=True)


def _quantiles(values: list[float]) -> dict[str, float]:
    levels = (0.0, 0.1, 0.5)
    return {f"{level:g}": float(np.quantile(values, level)) for level in levels}


if __name__ == "__main__":
    main()
