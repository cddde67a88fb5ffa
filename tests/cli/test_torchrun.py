"""`condens fit` under torchrun, killed in every way; the resumed run ends with the same bytes."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from helpers import processes

pytestmark = pytest.mark.slow
PATIENCE = 240.0


OFTEN = """
import os
if "RANK" in os.environ:
    from condens.training import train
    train.__kwdefaults__["checkpoint_seconds"] = 0.3
"""
# Process 0 dies between the writing of a state's tensors and of its JSON.
DYING = """
if os.environ.get("RANK") == "0":
    import pathlib, signal
    count, replace = [], pathlib.Path.replace
    def dying(self, target):
        if str(target).endswith(".json") and "members" in str(target):
            count.append(1)
            if len(count) == 4:
                os.kill(os.getpid(), signal.SIGKILL)
        return replace(self, target)
    pathlib.Path.replace = dying
"""


def torchrun(*options):
    return [sys.executable, "-m", "torch.distributed.run", *options]


def command(pattern, run, model, *more):
    return [
        *("-m", "condens", "fit", pattern, "--target", "u", "--target", "v"),
        *("--seed", "3", "--epochs", "40", "--members", "1", "--resume", str(run)),
        *("-o", str(model), "--settings", str(run.parent / "settings.toml"), *more),
    ]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    return processes.write_shards(folder, processes.table(6000), files=4, group=200)


class Run:
    """A fit in several processes, and what it leaves."""

    def __init__(self, folder, pattern, size=2, *options):
        self.folder, self.run, self.model = folder, folder / "run", folder / "model.condens"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "settings.toml").write_text("[model]\nn_bins = 0\nshortcut = false\n")
        # A state every third of a second, so that every run that is killed has some.
        (folder / "sitecustomize.py").write_text(OFTEN)
        given = options or ("--standalone", "--nproc-per-node", str(size))
        self.line = [*torchrun(*given), *command(pattern, self.run, self.model)]

    def start(self, **environment):
        paths = os.pathsep.join([str(self.folder), os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen(
            self.line,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def finish(self, **environment):
        started = self.start(**environment)
        out, _ = started.communicate(timeout=PATIENCE)
        assert started.returncode == 0, out
        return self.tensors()

    def epochs(self):
        log = self.run / "members" / "log.jsonl"
        return len(log.read_text().splitlines()) if log.exists() else 0

    def tensors(self):
        data = self.model.read_bytes()
        length = int.from_bytes(data[:8], "little")
        return hashlib.sha256(data[8 + length :]).hexdigest()

    def workers(self):
        """Return the processes of this run, by rank."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes().split(b"\0")
                environment = (entry / "environ").read_bytes().split(b"\0")
                ranks = [value[5:] for value in environment if value.startswith(b"RANK=")]
                ours = b"fit" in line and str(self.run).encode() in line
                if ours and ranks and b"torch.distributed.run" not in line:
                    found[int(ranks[0])] = int(entry.name)
        return found


def wait_for(condition, what="waited in vain"):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def end(started):
    """Kill what is left of a run."""
    if started.poll() is None:
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    started.stdout.close()


@pytest.fixture(scope="module", params=[2, 4])
def undisturbed(request, shards, tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("undisturbed"), shards, request.param)
    return request.param, run.finish()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_is_started_again(tmp_path, shards, undisturbed, rank):
    size, expected = undisturbed
    options = ("--standalone", "--nproc-per-node", str(size), "--max-restarts", "2")
    run = Run(tmp_path, shards, size, *options)
    started = run.start()
    try:
        wait_for(lambda: run.epochs() >= 4)
        assert list((run.run / "members").glob("state-*.json"))
        os.kill(run.workers()[rank], signal.SIGKILL)
        out, _ = started.communicate(timeout=PATIENCE)
        assert started.returncode == 0, out
    finally:
        end(started)
    assert run.tensors() == expected


def test_a_killed_agent_leaves_nobody_who_writes(tmp_path, shards, undisturbed):
    size, expected = undisturbed
    run = Run(tmp_path, shards, size)
    started = run.start()
    try:
        wait_for(lambda: run.epochs() >= 2)
        workers = run.workers()
        assert len(workers) == size
        started.kill()
        started.wait()
        wait_for(lambda: not run.workers())
        before = {file: file.stat().st_mtime_ns for file in run.run.rglob("*")}
        time.sleep(1)
        assert {file: file.stat().st_mtime_ns for file in run.run.rglob("*")} == before
    finally:
        end(started)
    assert run.finish() == expected


def test_killed_in_the_middle_of_a_checkpoint(tmp_path, shards, undisturbed):
    size, expected = undisturbed
    run = Run(tmp_path, shards, size)
    (tmp_path / "sitecustomize.py").write_text(OFTEN + DYING)
    started = run.start()
    out, _ = started.communicate(timeout=PATIENCE)
    assert started.returncode != 0, out
    assert not run.model.exists()
    numbers = [file.stem for file in (run.run / "members").glob("state-*")]
    assert len(set(numbers)) < len(numbers), "a state that is whole"
    (tmp_path / "sitecustomize.py").write_text(OFTEN)
    assert run.finish() == expected


def test_sigterm_saves_and_goes_on(tmp_path, shards, undisturbed):
    size, expected = undisturbed
    run = Run(tmp_path, shards, size)
    started = run.start()
    try:
        wait_for(lambda: run.epochs() >= 2)
        started.terminate()
        out, _ = started.communicate(timeout=60)
        assert started.returncode != 0
        assert not run.workers()
        state = max((run.run / "members").glob("state-*.json"))
        position = json.loads(state.read_text())["values"]["position"]
        assert position["epoch"] >= 2, out
    finally:
        end(started)
    assert run.finish() == expected


def test_the_number_of_processes_changes_nothing_but_rounding(tmp_path, shards):
    """One process and two give the same bits; four add the same gradients in another order."""
    curves, models = [], []
    for size in (1, 2, 4):
        run = Run(tmp_path / str(size), shards, size)
        models.append(run.finish())
        log = (run.run / "members" / "log.jsonl").read_text().splitlines()
        curves.append(
            [[json.loads(line)[n] for n in ("train_nll", "validation_nll")] for line in log]
        )
    assert models[0] == models[1]
    # Training amplifies rounding: after three epochs it was 4·10⁻³ nats.
    assert curves[2][0] == pytest.approx(curves[0][0], rel=1e-4)


def test_a_hung_worker_is_reported_in_time(tmp_path, shards):
    run = Run(tmp_path, shards)
    started = run.start(CONDENS_WAIT_SECONDS="5")
    try:
        wait_for(lambda: run.epochs() >= 1)
        os.kill(run.workers()[1], signal.SIGSTOP)
        began = time.monotonic()
        out, _ = started.communicate(timeout=PATIENCE)
        # The agent gives a stopped process 30 s before it kills it.
        assert time.monotonic() - began < 60
        assert started.returncode != 0
        assert "waited 5 s for the others in vain" in out
        assert "Process 1 gave its last sign of life" in out
    finally:
        end(started)


@pytest.mark.parametrize("undisturbed", [2], indirect=True)
def test_two_nodes_one_of_which_is_killed_and_returns(tmp_path, shards, undisturbed):
    """Two agents with a common rendezvous, as on two hosts."""
    _, expected = undisturbed
    port = processes.free_port()
    options = (
        *("--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "3"),
        *("--rdzv-backend", "c10d", "--rdzv-id", "nodes"),
        *("--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1"),
    )
    run = Run(tmp_path, shards, 2, *options)
    # Where agents share their store, torchrun 2.13 does not tell a node that returns its address.
    variables = {"CONDENS_WAIT_SECONDS": "20", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    # The first hosts the rendezvous.
    host = run.start(**variables)
    time.sleep(1)
    other = run.start(**variables)
    again = None
    try:
        wait_for(lambda: run.epochs() >= 2)
        os.killpg(other.pid, signal.SIGKILL)
        other.wait()
        again = run.start(**variables)
        out, _ = host.communicate(timeout=PATIENCE)
        assert host.returncode == 0, out
        out, _ = again.communicate(timeout=PATIENCE)
        assert again.returncode == 0, out
    finally:
        for started in filter(None, (host, other, again)):
            end(started)
    assert run.tensors() == expected
