"""Measure how soon the explorer answers: one client, and many at once, on this machine alone.

    python benchmarks/explorer/run.py [--seconds 5]

A model of five targets with twenty components is made for it, of one network and of five. Every
client keeps one connection open. States requests a second, and the times within which half and 99 %
of them are answered. The clients are threads of one process, the server is another.
"""

import argparse
import http.client
import json
import re
import statistics
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pandas as pd

from condens import MDNRegressor

QUESTIONS = [{"ask": "mean"}, {"ask": "quantiles", "target": "t0"}]


class Server(NamedTuple):
    """Where a server is, and what it asks for."""

    port: int
    token: str


def made(members: int) -> MDNRegressor:
    """Return a model of three conditions and five targets, with twenty components a member."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 3))
    y = x @ rng.normal(size=(3, 5)) + rng.normal(size=(2000, 5))
    frames = pd.DataFrame(x, columns=["a", "b", "c"]), pd.DataFrame(y).add_prefix("t")
    options = {"n_bins": 0, "shortcut": False, "epochs": 3, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MDNRegressor(20, n_members=members, **options).fit(*frames)


def client(server: Server, path: str, request: dict, until: float, times: list[float]) -> None:
    """Ask until a time, and note how long each answer took."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json"}
    number = 0
    while time.monotonic() < until:
        number += 1
        body = json.dumps(request | {"condition": {"a": number % 20 / 10 - 1, "b": 0, "c": 0}})
        began = time.perf_counter()
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status == 503:
            time.sleep(float(answer.headers["Retry-After"]))
            continue
        assert answer.status == 200, answer.status
        times.append(time.perf_counter() - began)
    connection.close()


def measure(server: Server, path: str, request: dict, clients: int, seconds: float) -> list[float]:
    """Return the times of all answers to clients that ask at once."""
    until, times = time.monotonic() + seconds, list[float]()
    threads = [
        threading.Thread(target=client, args=(server, path, request, until, times))
        for _ in range(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="for each line")
    seconds = parser.parse_args().seconds
    density = {"encoding": "base64"}
    cases = [
        ("/api/density", density, 1),
        ("/api/density", density, 8),
        ("/api/query", {"questions": QUESTIONS}, 1),
        ("/api/query", {"questions": QUESTIONS}, 32),
        ("/api/query", {"questions": QUESTIONS}, 200),
    ]
    print("| members | address | clients | requests/s | p50, ms | p99, ms |\n" + "|---" * 6 + "|")
    with TemporaryDirectory() as place:
        for members in (1, 5):
            path = Path(place, f"{members}.condens")
            made(members).save(path)
            command = [sys.executable, "-m", "condens", "serve", str(path), "--port", "0"]
            process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            said = process.stderr.readline() + process.stderr.readline()
            port, token = re.search(r":(\d+)\nToken: (\S+)", said).groups()
            server = Server(int(port), token)
            for address, request, clients in cases:
                measure(server, address, request, clients, min(seconds, 1.0))  # to warm up
                times = sorted(measure(server, address, request, clients, seconds))
                late = times[int(0.99 * (len(times) - 1))]
                print(
                    f"| {members} | {address} | {clients} | {len(times) / seconds:.0f} "
                    f"| {1e3 * statistics.median(times):.0f} | {1e3 * late:.0f} |",
                    flush=True,
                )
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
