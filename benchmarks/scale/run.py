"""Rows a second against processes, file format, row groups and batch; results and a picture.

    OMP_NUM_THREADS=1 python benchmarks/scale/run.py OUT [--quick] [--rounds 2]

Each measurement is a process of its own, or two by torchrun; a round takes all cases in turn and
adds a line for each to results.jsonl, so that a run that was stopped, or another one, adds to what
is there. The best epoch of all rounds counts. results.md and results.png show them.
"""

import argparse
import json
import os
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import plot
import shards
import worker
from measure import launch

BATCHES, PROCESSES = (512, 4096), (1, 2)
# A source, the rows of a row group.
SOURCES = (
    ("memory", 0),
    ("arrow", 50_000),
    ("parquet", 200_000),
    ("parquet", 50_000),
    ("parquet", 5_000),
)
COLUMNS, FILES = worker.DEFAULTS["columns"], 8
ROWS = {True: 100_000, False: 400_000}


def cases(quick: bool) -> list[dict[str, Any]]:
    """Return what is measured."""
    sources = [pair for pair in SOURCES if pair[1] in (0, 50_000)] if quick else SOURCES
    return [
        {"processes": count, "batch": batch, "source": source, "group_rows": group or 50_000}
        for count, batch, (source, group) in product(PROCESSES, BATCHES, sources)
    ]


def measure(case: dict[str, Any], rows: int, place: Path) -> dict[str, Any]:
    """Return a measurement; files are written the first time that they are needed."""
    path = place / f"{case['source']}-{case['group_rows']}"
    files = FILES if case["group_rows"] * FILES <= rows else max(1, rows // case["group_rows"])
    size = {"rows": rows, "files": files, "columns": COLUMNS, "group_rows": case["group_rows"]}
    if case["source"] != "memory" and not path.exists():
        shards.write(path, form=case["source"], **size)
    job = size | {"source": case["source"], "path": str(path), "batch": case["batch"]}
    return launch("worker.py", job, case["processes"]) | case


def main() -> None:
    """Measure, write and draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--quick", action="store_true", help="fewer rows and sources, one round")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    path = given.directory / "results.jsonl"
    with tempfile.TemporaryDirectory() as place, path.open("a") as lines:
        for _ in range(1 if given.quick else given.rounds):
            for case in cases(given.quick):
                found = measure(case, ROWS[given.quick], Path(place))
                found |= {"path": "", "directory": None, "cores": os.cpu_count()}
                print(json.dumps(found), file=lines, flush=True)
                print(plot.words(found), file=sys.stderr, flush=True)
    plot.draw(given.directory)
    print(plot.table(given.directory))


if __name__ == "__main__":
    main()
