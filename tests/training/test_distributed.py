"""Two processes learn what one learns; what goes wrong in one is named by the others."""

import os
import signal
import time

import numpy as np
import pytest
from helpers import processes, runs

from condens.training.distributed import Group


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
    "rows of its own to validate on": (processes.in_memory, 1, {}, {"validation": True}),
}


SLOW = ("plain", "accumulation", "a bound", "rows of its own to validate on")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if case in SLOW else ()) for case in CASES]
)
def test_two_processes_give_the_curve_of_one(tmp_path, case):
    one, two = (run(tmp_path, *CASES[case]) for run in (alone, pair))
    # Sums of halves round otherwise: 10⁻⁷ a step, in single precision.
    np.testing.assert_allclose(curve(two), curve(one), rtol=1e-4)
    assert two["rows"] == one["rows"]


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
    import warnings

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


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon"])
def test_a_limit_that_is_none_is_refused(monkeypatch, text):
    from condens.errors import ArgumentError
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
