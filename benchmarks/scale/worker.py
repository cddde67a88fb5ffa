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
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import shards as tables
import torch

from condens.data import Rows, Shards
from condens.nn import Ensemble, MixtureNetwork
from condens.training import Settings, Stream, train

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


class Steps:
    """Wall and CPU seconds of steps: from one backward pass to the next."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self._before: tuple[float, float] | None = None
        backward = torch.Tensor.backward

        def noted(*arguments: Any, **options: Any) -> None:
            self._note()
            backward(*arguments, **options)

        torch.Tensor.backward = noted  # type: ignore[method-assign]

    def _note(self) -> None:
        now = time.perf_counter(), time.process_time()
        if self._before is not None:
            self.wall.append(now[0] - self._before[0])
            self.cpu.append(now[1] - self._before[1])
        self._before = now


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
    began = time.perf_counter()
    rows = data(job)
    opened = time.perf_counter() - began
    settings = Settings(
        epochs=job["epochs"],
        patience=job["epochs"],
        batch_size=job["batch"],
        validation_fraction=job["validation"],
    )
    steps, clock = Steps(), []
    history = train(
        network(job),
        rows,
        settings,
        callbacks=lambda _: clock.append(time.process_time()),
        directory=job["directory"],
        checkpoint_seconds=job["checkpoint_seconds"],
        progress=False,
        warn=False,
    )
    if os.environ.get("RANK", "0") == "0":
        found = {
            "rows": history.rows,
            "steps": history.epochs[0].steps,
            "seconds": [epoch.seconds for epoch in history.epochs],
            "cpu": [after - before for before, after in pairwise(clock)],
            "step": _quantiles(steps.wall),
            "step_cpu": _quantiles(steps.cpu),
            "opened": opened,
            "nll": history.best_nll,
            "processes": int(os.environ.get("WORLD_SIZE", "1")),
            "threads": torch.get_num_threads(),
            "load": os.getloadavg()[0],
        }
        print(json.dumps(job | found), flush=True)


def _quantiles(values: list[float]) -> dict[str, float]:
    levels = (0.0, 0.1, 0.5)
    return {f"{level:g}": float(np.quantile(values, level)) for level in levels}


if __name__ == "__main__":
    main()
