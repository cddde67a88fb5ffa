"""The commands, called as a shell would: in this process, or in one of their own.

Processes are forked from a server that has imported torch: real ones that start in milliseconds.
"""

import os
import signal
import sys
from typing import NamedTuple

import numpy as np
from helpers import runs


class Result(NamedTuple):
    code: int
    out: str
    err: str


def write_houses(path, rows=240, seed=0, **changes):
    """Write a table of houses: rooms, kind, price, and where they are."""
    rng = np.random.default_rng(seed)
    rooms, kind = rng.integers(1, 7, rows), rng.choice(["flat", "house"], rows)
    price = 80_000 * rooms * np.exp(0.2 * rng.normal(size=rows))
    lat = 48 + 0.1 * rooms + 0.05 * rng.normal(size=rows)
    lon = 11 + (kind == "house") + 0.05 * rng.normal(size=rows)
    lines = ["rooms,kind,price,lat,lon"]
    columns = zip(rooms, kind, price, lat, lon, strict=True)
    lines += [f"{r},{k},{p:.2f},{a:.5f},{o:.5f}" for r, k, p, a, o in columns]
    path.write_text("\n".join(lines) + "\n")
    return path


def _main(arguments, streams, directory, variables, death):
    """Run a command with its streams in files, as a shell does; in a process of its own."""
    os.chdir(directory)
    os.environ.update(variables)
    if death is not None:
        runs.die_after(*death)
    for number, (path, flags) in enumerate(streams):
        descriptor = os.open(path, flags, 0o600)
        os.dup2(descriptor, number)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode) for number, mode in enumerate(("r", "w", "w"))
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["condens", *arguments]
    from condens.cli import main

    try:
        main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def started(arguments, directory, stdin=os.devnull, stdout=None, *, variables=None, death=None):
    """Start a command in a process of its own; its output goes to files `out` and `err` there.

    With `death`, a number and the name of a directory, it is killed at that number of events.
    """
    write = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    streams = [
        (str(stdin), os.O_RDONLY),
        (str(stdout or directory / "out"), write),
        (str(directory / "err"), write),
    ]
    return runs.process(
        _main, list(map(str, arguments)), streams, str(directory), variables or {}, death
    )


def finished(arguments, directory, stdin=os.devnull, **options):
    """Run a command in a process of its own to its end."""
    with started(arguments, directory, stdin, **options) as process:
        process.join(runs.PATIENCE)
        code = process.exitcode
    return Result(code, (directory / "out").read_text(), (directory / "err").read_text())
