"""Ctrl-C, by real signals to real processes: nothing goes on, and the best weights stay."""

import json
import os
import signal
import threading
import time

import pytest
import torch
from helpers import runs

from condens.training.history import Epoch, History
from condens.training.interruption import how_far, interruption

EARLY = ("making", "first validation", "first batch")


def outcome(tmp_path, *arguments):
    out = tmp_path / "out"
    assert runs.finish(runs.interrupted_fit, out, *arguments) == 0
    found = json.loads(out.read_text())
    assert found["handler"]
    return found


@pytest.mark.parametrize("moment", EARLY)
def test_before_the_first_epoch_the_model_is_as_it_was(tmp_path, moment):
    found = outcome(tmp_path, "fit", moment)
    expected = "fit was interrupted before its first epoch ended. The model is as it was."
    assert found["raised"] == expected
    assert found["new"] == []


@pytest.mark.parametrize("moment", ["making", "first batch"])
def test_a_model_that_was_fitted_stays(tmp_path, moment):
    found = outcome(tmp_path, "fit", moment, 1, True)
    assert found["raised"] is not None
    assert found["as before"]
    assert found["new"] == []


@pytest.mark.parametrize(
    ("moment", "epochs"), [("middle", 2), ("validation", 3), ("last validation", 6)]
)
def test_later_the_best_weights_are_kept(tmp_path, moment, epochs):
    found = outcome(tmp_path, "fit", moment)
    assert found["epochs"] == epochs
    assert found["best"] >= 0
    assert found["raised"] == (
        f"fit was interrupted after epoch {epochs}, with the best weights so far, of epoch "
        f"{found['best'] + 1}. The model has them."
    )
    assert found["stopped"] == ("all epochs" if epochs == 6 else "interrupted")
    # What an unconditional normal would get is about −3.
    assert found["score"] > -3


def test_in_the_calibration_the_model_is_kept_without_it(tmp_path):
    found = outcome(tmp_path, "calibrated", "calibration")
    assert found["raised"] is not None
    assert found["stopped"] == "all epochs"
    assert "network_" in found["new"]
    assert "calibration_" not in found["new"]


def test_a_second_signal_does_not_wait(tmp_path):
    found = outcome(tmp_path, "fit", "middle", 2, True)
    assert found["raised"] == ""
    assert found["as before"]
    assert found["new"] == []


@pytest.mark.parametrize("door", ["cross_val_score", "GridSearchCV", "auto", "members"])
@pytest.mark.parametrize("moment", ["first batch", "middle"])
def test_loops_around_a_fit_end(tmp_path, door, moment):
    found = outcome(tmp_path, door, moment)
    assert "fit was interrupted" in found["raised"]
    # The members are made after the choice, which is where it ended.
    assert found["made"] == (4 if door == "members" else 1)
    if door == "auto":
        assert found["epochs" if moment == "middle" else "made"] == (2 if moment == "middle" else 1)
    else:
        assert found["new"] == []


@pytest.mark.parametrize("door", ["fit", "cross_val_score", "GridSearchCV", "auto", "posterior"])
def test_one_signal_from_outside_ends_it(tmp_path, door):
    """The runs have no end of their own."""
    out = tmp_path / "out"
    with runs.process(runs.interrupted_fit, out, door, "parent") as running:
        runs.wait_for((tmp_path / "out.ready").exists)
        time.sleep(0.3)
        os.kill(running.pid, signal.SIGINT)
        running.join(runs.PATIENCE)
        assert running.exitcode == 0
    found = json.loads(out.read_text())
    assert "was interrupted after epoch" in found["raised"]
    assert found["made"] <= 1


class TestInterruption:
    def test_a_second_one_interrupts_at_once(self):
        with interruption() as asked:
            assert not asked.is_set()
            signal.raise_signal(signal.SIGINT)
            assert asked.is_set()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)

    def test_one_within_another_shares_its_event(self):
        with interruption() as outer:
            with interruption() as inner:
                signal.raise_signal(signal.SIGINT)
            assert inner is outer
            assert outer.is_set()
            with interruption() as later:
                assert later.is_set()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with interruption() as another:
            assert not another.is_set()

    @pytest.mark.parametrize("theirs", [signal.SIG_IGN, lambda *_: None])
    def test_who_handles_or_ignores_signals_goes_on_doing_so(self, theirs):
        """A process in the background of a script ignores them, for one."""
        before = signal.signal(signal.SIGINT, theirs)
        try:
            with interruption() as asked:
                assert signal.getsignal(signal.SIGINT) == theirs
                signal.raise_signal(signal.SIGINT)
                assert not asked.is_set()
            assert signal.getsignal(signal.SIGINT) == theirs
        finally:
            signal.signal(signal.SIGINT, before)

    def test_other_threads_have_an_event_that_never_comes(self):
        found = []

        def enter():
            with interruption() as asked:
                found.append(asked.is_set())

        with interruption():
            signal.raise_signal(signal.SIGINT)
            thread = threading.Thread(target=enter)
            thread.start()
            thread.join()
        assert found == [False]


def test_how_far_a_run_got():
    epoch = Epoch(**dict.fromkeys(Epoch.__dataclass_fields__, 0.0))
    assert how_far(History()) == "before its first epoch ended"
    text = how_far(History(epochs=3 * [epoch], best_epoch=1))
    assert text == "after epoch 3, with the best weights so far, of epoch 2"
    text = how_far(History(epochs=3 * [epoch]))
    assert text == "after epoch 3, with the best weights so far, the first ones"


def test_sigterm_saves_ends_the_process_by_it_and_goes_on_to_the_same_bytes(tmp_path):
    changes = {"epochs": 15}
    assert runs.finish(runs.run, tmp_path / "whole", None, changes) == 0
    directory = tmp_path / "run"
    with runs.process(runs.run, tmp_path / "out", directory, changes) as running:
        runs.wait_for(lambda: len(list(directory.glob("state-*.json"))) > 1)
        os.kill(running.pid, signal.SIGTERM)
        running.join(runs.PATIENCE)
        assert running.exitcode == -signal.SIGTERM
    assert not (tmp_path / "out").exists()
    assert runs.finish(runs.run, tmp_path / "out", directory, changes) == 0
    whole, again = (torch.load(tmp_path / name)["weights"] for name in ("whole", "out"))
    assert all(torch.equal(again[name], tensor) for name, tensor in whole.items())
