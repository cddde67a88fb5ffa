"""Measure the quality of condens' densities beside its peers; write runs, table and picture.

    python benchmarks/quality/run.py benchmarks/quality/results --data-dir DIR [--hours 8]
    python benchmarks/quality/run.py OUT --tasks concrete steps --methods condens linear --splits 2
    python benchmarks/quality/run.py OUT --methods condens "condens:depth=3,dropout=0.1"
    python benchmarks/quality/run.py OUT --only condens

A run is one method on one split of one task. What has been run with the same version is not run
again: stop it at any time, in any way, and start it again. Scores are of rows kept from the
training rows; --final fits all of these, scores the test rows, and is counted.
"""

import argparse
import contextlib
import io
import json
import multiprocessing
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

import plot
import table
import torch
from journal import Journal, Key, Record
from methods import (
    DEFAULT_METHODS,
    METHODS,
    QUICK_METHODS,
    Method,
    UnsuitedError,
    find_method,
)
from scores import run
from tasks import QUICK_TASKS, TASKS, Part, Task

QUICK_SPLITS = 2


class Job(NamedTuple):
    """One run, by names: what is sent to another process."""

    task: str
    split: int
    method: str
    part: Part
    data_dir: Path | None


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="of the results")
    parser.add_argument("--data-dir", type=Path, help="of tables and reference posteriors")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, metavar="TASK", help="some of them")
    parser.add_argument("--methods", nargs="+", type=known_method, metavar="METHOD")
    parser.add_argument("--only", type=known_method, metavar="METHOD", help="a single method")
    parser.add_argument("--splits", type=int, help="the first of each task, at most")
    parser.add_argument("--jobs", type=int, default=1, help="processes, with one thread each")
    parser.add_argument("--hours", type=float, help="stop after so long")
    parser.add_argument("--quick", action="store_true", help="small tasks and few peers")
    parser.add_argument("--final", action="store_true", help="score the test rows")
    parser.add_argument("--retry", action="store_true", help="run again what failed or was skipped")
    return parser.parse_args(arguments)


def known_method(name: str) -> str:
    """Read the name of a method."""
    if name.partition(":")[0] not in METHODS:
        raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(METHODS)}")
    return name


def jobs_of(options: argparse.Namespace) -> Iterator[tuple[Job, Task, Method]]:
    """Yield the runs that were asked for: a first split of everything, then a second, …."""
    quick = options.quick
    tasks = options.tasks or (QUICK_TASKS if quick else tuple(TASKS))
    methods = [options.only] if options.only else options.methods
    methods = methods or (QUICK_METHODS if quick else DEFAULT_METHODS)
    most = options.splits or (QUICK_SPLITS if quick else max(t.n_splits for t in TASKS.values()))
    part: Part = "test" if options.final else "inner"
    for split in range(most):
        for name in tasks:
            if split < TASKS[name].n_splits:
                for method in methods:
                    job = Job(name, split, method, part, options.data_dir)
                    yield job, TASKS[name], find_method(method)


def perform(job: Job) -> Record:
    """Run one job on one thread, silently."""
    torch.set_num_threads(1)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return run(TASKS[job.task], job.split, find_method(job.method), job.part, job.data_dir)


def serve(connection: Connection) -> None:
    """Run jobs that come in, until the other end is closed or its process is gone."""
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            connection.send(perform(connection.recv()))


def in_processes(jobs: Sequence[Job], count: int, deadline: float) -> Iterator[Record]:
    """Yield the records of jobs as they end, run in several processes."""
    context = multiprocessing.get_context("spawn")
    waiting, busy = list(reversed(jobs)), {}
    processes = []
    try:
        for _ in range(min(count, len(jobs))):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(there,), daemon=True)
            process.start()
            there.close()
            processes.append(process)
            busy[here] = waiting.pop()
            here.send(busy[here])
        while busy:
            ready = wait(list(busy), max(0.0, min(deadline - time.monotonic(), 1e6)))
            if not ready:
                return
            for here in ready:
                job = busy.pop(here)
                try:
                    record = here.recv()
                except EOFError:
                    sys.exit(f"The process of {job.method} on {job.task} died. Start again.")
                if waiting and time.monotonic() < deadline:
                    busy[here] = waiting.pop()
                    here.send(busy[here])
                yield record
    finally:
        for process in processes:
            process.kill()
            process.join()


def in_turn(jobs: Sequence[Job], deadline: float) -> Iterator[Record]:
    """Yield the records of jobs, run in this process."""
    for job in jobs:
        if time.monotonic() >= deadline:
            return
        yield perform(job)


def to_do(options: argparse.Namespace, finished: set[Key]) -> list[Job]:
    """Return the jobs that were asked for and are not finished; say which cannot be done."""
    found, missing = [], {}
    for job, task, method in jobs_of(options):
        try:
            key = (job.task, job.split, job.method, method.version, job.part, task.revision)
        except UnsuitedError as reason:
            missing[job.method] = str(reason)
            continue
        if key not in finished:
            found.append(job)
    for name, reason in missing.items():
        print(f"{name} is left out: {reason}.", flush=True)
    return found


def count_use(directory: Path) -> None:
    """Append a use of the test rows to the log: a number, and the version of condens."""
    path = directory / "final_uses.jsonl"
    with Journal(path, key=lambda use: use["use"]) as log:
        log.append({"use": len(log.records) + 1, "version": METHODS["condens"].version})


def tell(record: Record, place: int, count: int) -> None:
    """Print a line about a run."""
    for word in ("skipped", "failed"):
        if word in record:
            result = f"{word}: {record[word]}"
            break
    else:
        names = ("nll", "regret", "c2st", "err_post", "err_resim", "fit_seconds")
        result = ", ".join(f"{n} {float(record[n]):.4g}" for n in names if n in record)
    who = f"{record['task']}, split {record['split']}, {record['method']}"
    print(f"[{place}/{count}] {who}: {result}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is not finished, then write the table and the picture."""
    options = parse(arguments)
    deadline = time.monotonic() + 3600 * options.hours if options.hours else float("inf")
    name = "final" if options.final else "runs"
    if options.final:
        count_use(options.directory)
    with Journal(options.directory / f"{name}.jsonl") as journal:
        finished = journal.finished
        if options.retry:
            again = [r for r in journal.records if "failed" in r or "skipped" in r]
            finished = finished - {journal.key(record) for record in again}
        jobs = to_do(options, finished)
        records = (
            in_turn(jobs, deadline)
            if options.jobs == 1
            else in_processes(jobs, options.jobs, deadline)
        )
        for place, record in enumerate(records, 1):
            journal.append(record)
            tell(record, place, len(jobs))
    print(json.dumps({"asked for": len(jobs), "in": str(options.directory)}), flush=True)
    table.write(options.directory, final=options.final)
    plot.draw(options.directory, final=options.final)


if __name__ == "__main__":
    main()
