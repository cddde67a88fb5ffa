"""Two processes learn what one learns; what goes wrong in one is named by the others."""

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import processes, runs
from torch import distributed as dist

from condens.errors import ArgumentError, ProcessError, ProcessWarning
from condens.nn import FullHead, MixtureNetwork
from condens.training import train
from condens.training.distributed import MEMBER_VARIABLE, Group, launched


def curve(result):
    return np.array(result["curve"])


def alone(folder, task, *arguments):
    (result,), codes = processes.together(folder / "one", 1, task, *arguments)
    assert codes == [0]
    return result


def pair(folder, task, *arguments, size=2):
    results, codes = processes.together(folder / str(size), size, task, *arguments)
    assert codes == [0] * size
    assert all(result == results[0] for result in results)
    return results[0]


CASES = {
    "plain": (processes.in_memory, 1, {}, {}),
    "members, gaps, weights": (
        processes.in_memory,
        3,
        {},
        {"missing": 0.2, "weights": True},
    ),
    "accumulation": (processes.in_memory, 2, {"accumulation": 3}, {}),
    "a bound": (processes.in_memory, 2, {"bound": "weighted"}, {}),
    "a bound, gaps": (processes.in_memory, 1, {"bound": "weighted"}, {"missing": 0.2}),
    "rows of its own to validate on": (processes.in_memory, 1, {}, {"validation": True}),
}


SLOW = ("plain", "accumulation", "a bound", "a bound, gaps", "rows of its own to validate on")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if case in SLOW else ()) for case in CASES]
)
def test_two_processes_give_the_bits_of_one(tmp_path, case):
    one, two = (run(tmp_path, *CASES[case]) for run in (alone, pair))
    assert two["weights"] == one["weights"]
    # Losses of the steps are added in single precision.
    np.testing.assert_allclose(curve(two), curve(one), rtol=1e-6)
    assert two["rows"] == one["rows"]


def test_of_one_that_no_launcher_started_the_curve(tmp_path):
    """It computes batches at once: another order of sums, whose rounding grows."""
    case = CASES["members, gaps, weights"]
    plain, two = processes.in_memory(*case[1:]), pair(tmp_path, *case)
    assert plain["weights"] != two["weights"]
    np.testing.assert_allclose(curve(two), curve(plain), rtol=1e-4)


@pytest.mark.slow
def test_more_processes_than_divide_the_batch(tmp_path):
    one = alone(tmp_path, processes.in_memory, 1, {"batch_size": 50})
    three = pair(tmp_path, processes.in_memory, 1, {"batch_size": 50}, size=3)
    np.testing.assert_allclose(curve(three), curve(one), rtol=1e-4)


def test_accumulated_gradients_are_those_of_the_batch():
    whole, parts = (processes.in_memory(2, {"accumulation": n, "epochs": 2}) for n in (1, 5))
    np.testing.assert_allclose(curve(parts), curve(whole), rtol=1e-5)


def test_running_means_are_those_of_process_0_in_all(tmp_path):
    result = pair(tmp_path, processes.batch_norm)
    assert np.isfinite(curve(result)).all()


def test_a_batch_norm_is_warned_of_and_needs_two_rows(tmp_path):
    results, _ = processes.together(tmp_path, 2, _normalises)
    assert [result["warned"] for result in results] == [True, False]
    assert any("a process has one row of a batch" in result["message"] for result in results)


def _normalises():
    layers = torch.nn.Linear(2, 8), torch.nn.BatchNorm1d(8)
    network = MixtureNetwork(torch.nn.Sequential(*layers), FullHead(8, 2, 3), condition_columns=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            train(network, **runs.problem(rows=60), settings=runs.settings(batch_size=3))
        except (ArgumentError, ProcessError) as error:
            message = str(error)
    warned = [w for w in caught if w.category is ProcessWarning]
    return {"message": message, "warned": len(warned) == 1}


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("settings differs between process 0 and process 1 (seed)", {}, {"seed": 9}),
        ("settings differs between process 0 and process 1 (epochs)", {}, {"epochs": 4}),
        ("network differs between process 0 and process 1", {}, {"width": 13}),
        ("adjustment differs between process 0 and process 1", {}, {"adjustment": 40}),
    ],
)
def test_different_arguments_are_refused(tmp_path, name, one, other):
    results, _ = processes.together(tmp_path, 2, _given, one, other)
    for result in results:
        assert result["error"] == "ArgumentError"
        assert name in result["message"]


def _given(*by_rank):
    changes = dict(by_rank[int(os.environ["RANK"])])
    width, rows = changes.pop("width", 12), changes.pop("adjustment", 50)
    network, data = runs.network(width=width), runs.problem(rows=200)
    adjustment = tuple(part[:rows] for part in data["data"])
    history = train(network, **data, settings=runs.settings(**changes), adjustment=adjustment)
    return processes.outcome(network, history)


def test_callbacks_and_the_directory_are_those_of_process_0(tmp_path):
    whole = pair(tmp_path / "whole", processes.in_memory)
    results, _ = processes.together(tmp_path / "run", 2, _only_the_first, str(tmp_path / "state"))
    assert [result.pop("seen") for result in results] == [3, 0]
    assert results == [whole] * 2


def _only_the_first(directory):
    """Fail after two epochs, then go on, with a directory and callbacks in process 0 alone."""
    first, seen = os.environ["RANK"] == "0", []

    def run(*callbacks):
        network = runs.network(0)
        options = {"directory": directory, "callbacks": callbacks} if first else {}
        history = train(network, **runs.problem(rows=600), settings=runs.settings(), **options)
        return processes.outcome(network, history)

    def fail(epoch):
        seen.append(epoch)
        if epoch.epoch == 1:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError if first else ProcessError, match="mine"):
        run(fail)
    return {**run(seen.append), "seen": len(seen)}


def test_a_directory_that_process_0_cannot_open_is_named_by_all(tmp_path):
    (tmp_path / "file").touch()
    results, _ = processes.together(tmp_path, 2, _goes_on, str(tmp_path / "file"))
    assert results[0] == results[1]
    assert "cannot be a run directory (File exists)" in results[1]["message"]


def test_why_another_process_failed_is_told(tmp_path):
    results, _ = processes.together(tmp_path, 2, _has_a_bad_disk)
    assert results[1] == {"error": "OSError", "message": "the disk is gone"}
    assert results[0]["error"] == "ProcessError"
    assert "Process 1 failed: OSError: the disk is gone" in results[0]["message"]


def test_why_another_process_could_not_begin_is_told(tmp_path):
    pattern = processes.write_shards(tmp_path / "shards", processes.table(200), files=1)
    results, _ = processes.together(tmp_path, 2, _has_no_shards, pattern)
    assert results[1]["error"] == "TableFileNotFoundError"
    assert "Process 1 failed: TableFileNotFoundError: nowhere" in results[0]["message"]


def _has_no_shards(pattern):
    return processes.fitted(pattern if os.environ["RANK"] == "0" else "nowhere/*.parquet")


class Disk(torch.utils.data.Dataset):
    """Rows that process 1 cannot read for long."""

    def __init__(self):
        self.rows, self.read = runs.problem(rows=100)["data"], 0

    def __len__(self):
        return 100

    def __getitem__(self, number):
        self.read += 1
        if os.environ["RANK"] == "1" and self.read > 120:
            raise OSError("the disk is gone")
        return tuple(part[number] for part in self.rows)


def _has_a_bad_disk():
    return train(runs.network(), Disk(), runs.settings())


@pytest.mark.parametrize("change", [-10, 10])
def test_an_iterable_that_differs_in_a_later_epoch_is_refused(tmp_path, change):
    results, _ = processes.together(tmp_path, 2, _iterates, change)
    assert results[1]["error"] == "ShapeError"
    assert "rows in epoch 2 of process 1, but processes share its batches" in results[1]["message"]
    assert results[0]["error"] == "ProcessError"


class Uneven(torch.utils.data.IterableDataset):
    """Rows whose number changes in process 1, after the count and an epoch."""

    def __init__(self, change):
        self.change, self.passes = change, 0

    def __iter__(self):
        self.passes += 1
        changed = os.environ["RANK"] == "1" and self.passes > 2
        yield from zip(*runs.problem(rows=100 + changed * self.change)["data"], strict=True)


def _iterates(change):
    return train(runs.network(), Uneven(change), runs.settings(batch_size=20))


def test_different_rows_are_refused(tmp_path):
    results, _ = processes.together(tmp_path, 2, processes.other_rows)
    for result in results:
        assert result["error"] == "ArgumentError"
        assert "data differs between process 0 and process 1" in result["message"]


def test_a_run_of_two_processes_goes_on_bit_for_bit(tmp_path):
    whole = pair(tmp_path / "whole", processes.in_memory, 2, {"epochs": 4})
    directory = str(tmp_path / "run")
    pair(tmp_path / "first", _stopped_after_two, directory)
    again = pair(tmp_path / "again", _goes_on, directory)
    assert again["curve"] == whole["curve"]
    assert again["weights"] == whole["weights"]


def _stopped_after_two(directory):
    """End in the middle of the third epoch, by a signal to one process alone."""
    from condens.training import loop

    step = loop._Loop._step

    def watched(self, batch):
        step(self, batch)
        position = self.state.position
        if (position.epoch, position.batch) == (2, 3) and self.group.rank == 1:
            os.kill(os.getpid(), signal.SIGINT)

    loop._Loop._step = watched
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = processes.in_memory(2, {"epochs": 4}, directory=directory)
    assert result["stopped"] == "interrupted"
    return result


def _goes_on(directory):
    return processes.in_memory(2, {"epochs": 4}, directory=directory)


@pytest.mark.slow
def test_a_process_that_hangs_is_named_in_time(tmp_path):
    began = time.monotonic()
    results, _ = processes.together(tmp_path, 2, _hangs, environment={"CONDENS_WAIT_SECONDS": "2"})
    assert results[1] is None
    assert results[0]["error"] == "ProcessError"
    assert "waited 2 s for the others in vain" in results[0]["message"]
    assert "Process 1 gave its last sign of life" in results[0]["message"]
    assert time.monotonic() - began < runs.PATIENCE / 2


def _hangs():
    if os.environ["RANK"] == "1":
        signal.setitimer(signal.ITIMER_REAL, 0)
        from condens.training import loop

        step = loop._Loop._step

        def stuck(self, batch):
            if self.state.position.epoch == 1:
                # Until the others have given up, and the store with them.
                time.sleep(5)
                os._exit(7)
            step(self, batch)

        loop._Loop._step = stuck
    return processes.in_memory(1, {"epochs": 50})


@pytest.mark.slow
@pytest.mark.parametrize("task", ["_silent_from_the_start", "_silent_later"])
def test_of_three_the_one_that_does_not_wait_is_named(tmp_path, task):
    limit = {"CONDENS_WAIT_SECONDS": "2"}
    results, _ = processes.together(tmp_path, 3, globals()[task], environment=limit)
    assert "waited 2 s for the others in vain" in results[0]["message"]
    assert "Process 1 " in results[0]["message"]
    assert "of life" in results[0]["message"]


def _silent_from_the_start():
    Group.current()
    if os.environ["RANK"] == "1":
        time.sleep(5)
    return processes.in_memory()


def _silent_later():
    from condens.training import loop

    step = loop._Loop._step

    def slow(self, batch):
        time.sleep(0.05)
        if os.environ["RANK"] == "1" and self.state.position.epoch == 3:
            time.sleep(5)
        step(self, batch)

    loop._Loop._step = slow
    return processes.in_memory(1, {"epochs": 50})


def test_a_group_may_be_left_and_joined_again(tmp_path):
    port = processes.free_port()
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    agent = {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    results, _ = processes.together(tmp_path, 2, _leaves_and_joins, environment=agent)
    del store
    assert results == [[2, 2]] * 2


def _leaves_and_joins():
    found = []
    for _ in range(2):
        group = Group.current()
        found.append(int(group.sum(torch.ones(()))))
        dist.destroy_process_group()
    return found


def test_no_process_goes_on_before_all_have_joined(tmp_path):
    results, _ = processes.together(tmp_path, 2, _joins_late, str(tmp_path / "joined"))
    assert results == [True, True]


def _joins_late(path):
    init = dist.init_process_group

    def slow(*arguments, **options):
        init(*arguments, **options)
        if os.environ["RANK"] == "1":
            time.sleep(1)
            Path(path).touch()

    dist.init_process_group = slow
    Group.current()
    return Path(path).exists()


def test_a_second_thread_is_refused(tmp_path):
    results, _ = processes.together(tmp_path, 2, _trains_in_threads)
    for result in results:
        assert "several processes train in one thread each. Pass n_jobs=1" in result


def _trains_in_threads():
    Group.current()
    found = []

    def ask():
        try:
            Group.current()
        except ProcessError as error:
            found.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.slow
def test_a_process_that_a_member_starts_is_alone(tmp_path):
    results, _ = processes.together(tmp_path, 2, _starts_others)
    assert results == [{"forked": 1, "started": 1}] * 2


def _starts_others():
    Group.current()
    read, write = os.pipe()
    if not (child := os.fork()):
        os.write(write, b"%d" % Group.current().size)
        os._exit(0)
    os.waitpid(child, 0)
    line = "from condens.training.distributed import Group; print(Group.current().size)"
    found = subprocess.run([sys.executable, "-c", line], capture_output=True, check=True)
    return {"forked": int(os.read(read, 10)), "started": int(found.stdout)}


@pytest.fixture
def launcher(monkeypatch):
    """Set the variables of a launcher."""

    def launcher(**variables):
        monkeypatch.delenv(MEMBER_VARIABLE, raising=False)
        usual = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "29500"}
        for name, value in (usual | variables).items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)

    return launcher


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "two"}, "RANK and WORLD_SIZE are '0' and 'two'"),
        ({"RANK": "2"}, "RANK and WORLD_SIZE are '2' and '2'"),
        ({"RANK": "-1"}, "RANK and WORLD_SIZE are '-1' and '2'"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR and MASTER_PORT are None and '29500'"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT is 'http'"),
    ],
)
def test_variables_of_no_launcher_are_refused(launcher, variables, message):
    launcher(**variables)
    with pytest.raises(ArgumentError, match=message):
        launched()


@pytest.mark.parametrize("variables", [{"WORLD_SIZE": "1"}, {"RANK": None}, {"WORLD_SIZE": None}])
def test_one_process_is_alone(launcher, variables):
    launcher(**variables)
    assert not launched()


def test_a_new_launch_within_a_process_is_one(launcher):
    launcher()
    assert launched()
    assert launched()
    os.environ[MEMBER_VARIABLE] = os.environ[MEMBER_VARIABLE].replace(str(os.getpid()), "1", 1)
    assert not launched()
    os.environ["MASTER_PORT"] = "29501"
    assert launched()


def test_a_process_that_dies_is_told_of_at_once(tmp_path):
    began = time.monotonic()
    results, codes = processes.together(tmp_path, 2, _dies)
    assert codes[1] == -signal.SIGKILL
    assert results[0]["error"] == "ProcessError"
    assert "process 0 of 2 has lost the others" in results[0]["message"]
    assert "Run the same again" in results[0]["message"]
    assert time.monotonic() - began < runs.PATIENCE / 2


def _dies():
    if os.environ["RANK"] == "1":
        from condens.training import loop

        loop._Loop._close_epoch = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    return processes.in_memory(1, {"epochs": 50})


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon", "1e300"])
def test_a_limit_that_is_none_is_refused(monkeypatch, text):
    from condens.training.distributed import wait_seconds

    monkeypatch.setenv("CONDENS_WAIT_SECONDS", text)
    with pytest.raises(ArgumentError, match="CONDENS_WAIT_SECONDS is "):
        wait_seconds()


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [0, 1, 5, 64])
def test_shares_are_every_row_once(size, rows):
    shares = [Group(rank, size).share(rows) for rank in range(size)]
    numbers = [number for low, high in shares for number in range(low, high)]
    assert numbers == list(range(rows))
    assert max(high - low for low, high in shares) <= -(-rows // size)
