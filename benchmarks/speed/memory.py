"""Peak memory of a job above what it was given, seen from outside every allocator.

The system counts a process's resident pages and their maximum, whoever asked for them:
torch, MKL, the C kernel, Python. Each figure comes from a process of its own:

1. a small problem runs once, so that code and tables are there already;
2. the job runs three times: what then stays (scratch, pools, caches of libraries) is *kept*,
   the growth of anonymous memory since the small problem;
3. the maximum is reset, the job runs again: its rise above the start is the *peak*.

Kept + peak is what the job needs beside its inputs. malloc is told to give freed blocks
back at once; otherwise they would lie in wait for the measured call and hide it. `check`
measures allocations of known size in the same way.

    python benchmarks/speed/memory.py '["loss", "condens", 4096, 5, 10]'
"""

import ctypes
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timing import Job, Row
from torch.profiler import ProfilerActivity, profile

MB = 1e6
TOLERANCE = 0.5 * MB  # the system counts pages in batches, and blocks end within pages
_REPEATS = 3


def available() -> bool:
    """Tell whether the system counts pages and lets their maximum be reset."""
    return Path("/proc/self/clear_refs").exists() and hasattr(ctypes.CDLL(None), "mallopt")


def measure(*what: str | int, threads: int = 1) -> Any:
    """Return the figures of one job, measured in a process of its own."""
    command = [sys.executable, __file__, json.dumps(what), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the memory of {what} could not be measured:\n{done.stderr}")
    return json.loads(done.stdout)


def check() -> list[Row]:
    """Measure allocations of known size; raise if a figure is not what it must be."""
    rows: list[Row] = measure("known")
    for name, row in zip(_KNOWN, rows, strict=True):
        if abs(row["extra"] - row["expected"]) > TOLERANCE:
            raise RuntimeError(
                f"{name}: {row['expected'] / MB:.1f} MB were measured as "
                f"{row['extra'] / MB:.1f} MB, so memory cannot be measured on this system. "
                "Choose the other tables with --only."
            )
    return rows


def extra(job: Job, small: Job) -> Row:
    """Return the bytes that a job needs beside its inputs: kept, peak and their sum."""
    small()
    before = _anonymous()
    for _ in range(_REPEATS):
        job()
    # Not below zero: what the small problem left behind may have gone since.
    kept = max(_anonymous() - before, 0)
    # The largest of some: the system's running count lags by up to a batch of pages.
    peak = max(_rise(job) for _ in range(_REPEATS))
    return {"kept": kept, "peak": peak, "extra": kept + peak}


def profiled(job: Job) -> float:
    """Return the peak of a job as torch's profiler sees it: torch's allocations only."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        job()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    steps = [(e["ts"], e["args"]["Bytes"]) for e in events if e["name"] == "[memory]"]
    level = highest = 0
    for _, step in sorted(steps, key=lambda pair: pair[0]):
        level += step
        highest = max(highest, level)
    return highest


def _status() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = (line.split() for line in lines if line.endswith("kB"))
    return {name.rstrip(":"): 1024 * int(number) for name, number, _ in fields}


def _anonymous() -> int:
    ctypes.CDLL(None).malloc_trim(0)
    return _status()["RssAnon"]


def _rise(job: Job) -> int:
    Path("/proc/self/clear_refs").write_text("5")  # the maximum is now what there is
    start = _status()["VmRSS"]
    job()
    return _status()["VmHWM"] - start


def _give_back_freed() -> None:
    """Map blocks of 16 kB and more one by one; trim the heap below them at every free."""
    trim_threshold, top_pad, mmap_threshold, mmap_max = -1, -2, -3, -4  # as in malloc.h
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(mmap_threshold, 1 << 14)
    mallopt(mmap_max, 1 << 20)
    mallopt(trim_threshold, 0)
    mallopt(top_pad, 0)


def _loss(name: str, batch: int, n_components: int, dimensions: int) -> Row:
    from contenders import OURS, Problem

    if name in OURS:  # spares the import of the peers
        contender = OURS[name]
    else:
        from peers import PEERS

        contender = PEERS[name]
    problem = Problem(batch, n_components, dimensions)
    job = problem.job(contender)
    _give_back_freed()
    row = extra(job, Problem(2, 2, 2).job(contender))
    return row | {"profiled": profiled(job), "parameters": problem.bytes}


def _head(name: str, batch: int, n_components: int, dimensions: int, features: int) -> Row:
    from network import Head

    from condens.functional.fused_linear import ROWS_PER_CHUNK

    chunked = name == "chunked"
    head = Head(batch, n_components, dimensions, features)
    job = head.job(chunked=chunked)
    _give_back_freed()
    row = extra(job, Head(2, 2, 2, 2).job(chunked=chunked))
    outputs = head.inputs[2].nbytes
    sizes = {"chunk": ROWS_PER_CHUNK * outputs, "outputs": batch * outputs, "gradients": head.bytes}
    return row | {"profiled": profiled(job)} | sizes


def _tensor() -> float:
    return torch.ones(16_000_000).nbytes


def _one_after_the_other() -> float:
    return max(torch.ones(4_000_000).nbytes for _ in range(5))


def _outside_torch(size: int, count: int) -> float:
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    blocks = [ctypes.c_void_p(library.malloc(ctypes.c_size_t(size))) for _ in range(count)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks:
        library.free(block)
    return size * count


_kept: list[torch.Tensor] = []


def _kept_and_freed() -> float:
    if not _kept:
        _kept.append(torch.ones(4_000_000))
    return _kept[0].nbytes + torch.ones(2_000_000).nbytes


_KNOWN: dict[str, Callable[[], float]] = {
    "a tensor": _tensor,
    "five tensors one after the other": _one_after_the_other,
    "a block outside torch": lambda: _outside_torch(32_000_000, 1),
    "small blocks outside torch": lambda: _outside_torch(8_000, 2_000),
    "a tensor kept, another freed": _kept_and_freed,
}


def _known() -> list[Row]:
    _give_back_freed()
    made = {name: extra(job, lambda: torch.ones(1)) for name, job in _KNOWN.items()}
    return [row | {"expected": _KNOWN[name]()} for name, row in made.items()]


def _main(what: str, threads: str = "1") -> None:
    torch.set_num_threads(int(threads))
    kind, *arguments = json.loads(what)
    print(json.dumps({"loss": _loss, "head": _head, "known": _known}[kind](*arguments)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
