"""Runs that are killed, interrupted and resumed end with the bytes of a run left alone."""

import json
import os
import random
import signal
import threading
import time
from contextlib import nullcontext

import pytest
import torch
from helpers import runs

from condens.errors import RunDirectoryError
from condens.training import train

VARIANTS = {
    "plain": ({}, {}),
    "without average": ({"average": 0.0}, {}),
    "plateau": ({"schedule": "plateau", "patience": 3, "learning_rate": 0.05, "epochs": 6}, {}),
    "weights and gaps": ({"bound": "uniform"}, {"weights": True, "missing": 0.3}),
    "own validation": ({"entropy": 0.1}, {"validation": True}),
}


def number(directory):
    """Return the number of the last state, −1 before there is one."""
    names = (path.stem.removeprefix("state-") for path in directory.glob("state-*.json"))
    return max(map(int, names), default=-1)


def result(out):
    """Return the weights, and the history without what the clock says."""
    record = torch.load(out)
    for epoch in record["history"]["epochs"]:
        del epoch["seconds"]
    # As text: NaN is not equal to itself.
    return record["weights"], json.dumps(record["history"])


def assert_same_run(one, other):
    (weights, history), (weights_too, history_too) = result(one), result(other)
    assert weights.keys() == weights_too.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, weights_too[name]), name
    assert history == history_too


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Give the file of an undisturbed run of a variant, made once."""
    place, made = tmp_path_factory.mktemp("undisturbed"), {}

    def get(variant):
        if variant not in made:
            made[variant] = place / variant
            assert runs.finish(runs.run, made[variant], None, *VARIANTS[variant]) == 0
        return made[variant]

    return get


def kill_and_resume(tmp_path, variant, kills, seed):
    """Run to the end with kills at random moments of random batches; return where it wrote."""
    chance, directory, out = random.Random(seed), tmp_path / "run", tmp_path / "out"
    for moment in sorted(chance.sample(range(1, 75), kills)):
        with runs.process(runs.run, out, directory, *VARIANTS[variant]) as running:
            runs.wait_for(lambda: number(directory) >= moment or running.exitcode is not None)  # noqa: B023
            time.sleep(0.01 * chance.random())
            running.kill()
            running.join()
            assert running.exitcode == -signal.SIGKILL
        assert not out.exists()
    assert runs.finish(runs.run, out, directory, *VARIANTS[variant]) == 0
    assert not list(directory.glob("*.part"))
    return out


def test_three_kills_change_no_byte(tmp_path, undisturbed):
    out = kill_and_resume(tmp_path, "weights and gaps", kills=3, seed=0)
    assert_same_run(out, undisturbed("weights and gaps"))
    epochs = json.loads(result(out)[1])["epochs"]
    log = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in log] == [epoch["epoch"] for epoch in epochs]
    assert [line["validation_nll"] for line in log] == [e["validation_nll"] for e in epochs]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("variant", VARIANTS)
def test_ten_kills_change_no_byte(tmp_path, undisturbed, variant, seed):
    out = kill_and_resume(tmp_path, variant, kills=10, seed=seed)
    assert_same_run(out, undisturbed(variant))


def test_kills_within_a_save_change_no_byte(tmp_path, undisturbed):
    """One process after another dies at the next place of a save, each a few saves on.

    A save opens, moves and syncs the tensors, then the JSON, then removes two files: eight
    places. The log opens before, three places.
    """
    directory, out = tmp_path / "run", tmp_path / "out"
    for place in range(8):
        arguments = (out, directory, *VARIANTS["plain"], 3 + 8 * 4 + place)
        assert runs.finish(runs.run, *arguments) == -signal.SIGKILL
    assert runs.finish(runs.run, out, directory, *VARIANTS["plain"]) == 0
    assert_same_run(out, undisturbed("plain"))
    assert not list(directory.glob("*.part"))
    assert len(list(directory.glob("state-*"))) == 4


@pytest.mark.slow
def test_a_kill_at_every_file_operation_of_the_beginning(tmp_path, undisturbed):
    for event in range(1, 40):
        directory, out = tmp_path / f"{event}", tmp_path / f"{event}.out"
        arguments = (out, directory, *VARIANTS["plain"])
        assert runs.finish(runs.run, *arguments, event) == -signal.SIGKILL
        assert runs.finish(runs.run, *arguments) == 0
        assert_same_run(out, undisturbed("plain"))


def test_an_interrupted_process_ends_well_and_goes_on(tmp_path, undisturbed):
    directory, out = tmp_path / "run", tmp_path / "out"
    with runs.process(runs.run, out, directory, *VARIANTS["plain"]) as running:
        runs.wait_for(lambda: number(directory) >= 12)
        os.kill(running.pid, signal.SIGINT)
        running.join(runs.PATIENCE)
        assert running.exitcode == 0
    history = json.loads(result(out)[1])
    assert history["stopped"] == "interrupted"
    assert len(history["epochs"]) < 3
    with pytest.raises(AssertionError):
        assert_same_run(out, undisturbed("plain"))
    assert runs.finish(runs.run, out, directory, *VARIANTS["plain"]) == 0
    assert_same_run(out, undisturbed("plain"))


def start(directory=None, network=None, options=None, interrupt=None, **changes):
    """Train a small network here; interrupt it in an epoch."""

    def callback(epoch):
        if epoch.epoch == interrupt:
            signal.raise_signal(signal.SIGINT)

    network = runs.network() if network is None else network
    given = runs.problem(200, **(options or {}))
    said = pytest.warns(UserWarning, match="Training was interrupted after epoch")
    with nullcontext() if interrupt is None else said:
        history = train(
            network,
            settings=runs.settings(**changes),
            directory=directory,
            callbacks=callback,
            checkpoint_seconds=1e9,
            **given,
        )
    return network, history


class TestInterruption:
    def test_without_a_directory_the_best_so_far_comes_back(self):
        network, history = start(interrupt=1, epochs=5)
        assert history.stopped == "interrupted"
        assert len(history.epochs) == 2
        assert not network.training
        x, y = runs.problem(200)["data"]
        assert network.loss(x, y).isfinite()

    def test_goes_on_to_the_same_end_in_the_same_process(self, tmp_path):
        whole, expected = start(epochs=4)
        start(tmp_path, interrupt=1, epochs=4)
        network, history = start(tmp_path, epochs=4)
        assert history.stopped == expected.stopped == "all epochs"
        assert len(history.epochs) == 4
        for name, tensor in whole.state_dict().items():
            assert torch.equal(tensor, network.state_dict()[name])

    def test_the_handler_is_given_back(self):
        before = signal.getsignal(signal.SIGINT)
        start(interrupt=0)
        assert signal.getsignal(signal.SIGINT) is before

    def test_other_threads_train_too(self):
        histories = []
        thread = threading.Thread(target=lambda: histories.append(start(epochs=1)[1]))
        thread.start()
        thread.join()
        assert histories[0].stopped == "all epochs"


class TestAnotherRun:
    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"learning_rate": 0.1}, "other learning_rate,"),
            ({"seed": 6, "epochs": 9}, "other epochs, seed,"),
            ({"target_noise": "rule"}, "other target_noise,"),
        ],
    )
    def test_other_settings_are_refused_by_name(self, tmp_path, changes, named):
        start(tmp_path, interrupt=0)
        with pytest.raises(RunDirectoryError) as raised:
            start(tmp_path, **changes)
        assert str(raised.value) == (
            f"{tmp_path} holds a run with {named} "
            "but a run keeps its network, settings and data. Use the same again to go on, or name "
            "another directory."
        )

    @pytest.mark.parametrize("options", [{"missing": 0.2}, {"weights": True}, {"validation": True}])
    def test_other_data_are_refused(self, tmp_path, options):
        start(tmp_path, interrupt=0)
        with pytest.raises(RunDirectoryError) as raised:
            start(tmp_path, options=options)
        assert str(raised.value) == (
            f"{tmp_path} holds a run on other data, "
            "but a run keeps its network, settings and data. Use the same again to go on, or name "
            "another directory."
        )

    def test_one_other_number_is_other_data(self, tmp_path):
        x, y = runs.problem(200)["data"]
        train(runs.network(), (x, y), runs.settings(), directory=tmp_path)
        y[117, 1] += 1e-6
        with pytest.raises(RunDirectoryError, match="holds a run on other data"):
            train(runs.network(), (x, y), runs.settings(), directory=tmp_path)

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ({"width": 13}, "backbone.layers.0.weight"),
            ({"n_components": 4}, "head.linear.weight"),
            ({"floor": 0.5}, "head.floor"),
            ({"covariance": "diagonal"}, "head.linear.weight"),
        ],
    )
    def test_another_network_is_refused(self, tmp_path, options, named):
        start(tmp_path, interrupt=0)
        with pytest.raises(RunDirectoryError) as raised:
            start(tmp_path, runs.network(**options))
        assert str(raised.value) == (
            f"{tmp_path} holds another network (see {named}), "
            "but a run keeps its network, settings and data. Use the same again to go on, or name "
            "another directory."
        )

    def test_the_refused_run_is_left_as_it_was(self, tmp_path):
        start(tmp_path, interrupt=0)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(RunDirectoryError):
            start(tmp_path, learning_rate=0.1)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_finished_run_is_returned_at_once(tmp_path):
    first, expected = start(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    stranger = runs.network(seed=99)
    again, history = start(tmp_path, stranger)
    assert history == expected
    assert again is stranger
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, stranger.state_dict()[name])
    assert not stranger.training
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_damaged_state_costs_only_what_came_after_the_one_before(tmp_path, undisturbed):
    directory, out = tmp_path / "run", tmp_path / "out"
    with runs.process(runs.run, out, directory, *VARIANTS["plain"]) as running:
        runs.wait_for(lambda: number(directory) >= 20)
        running.kill()
        running.join()
    last = directory / f"state-{number(directory):08d}.safetensors"
    last.write_bytes(last.read_bytes()[:-100])
    assert runs.finish(runs.run, out, directory, *VARIANTS["plain"]) == 0
    assert_same_run(out, undisturbed("plain"))
