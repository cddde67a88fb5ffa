"""A run directory: whole states or none, one writer, and nothing left behind."""

import hashlib
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from helpers import runs

from condens.errors import RunDirectoryError
from condens.nn import MixtureNetwork
from condens.training import Settings, train
from condens.training.run_directory import RunDirectory


def files(path):
    return sorted(file.name for file in path.iterdir())


def states(path):
    return [name for name in files(path) if name.startswith("state-")]


def saved(path, count):
    with RunDirectory(path) as run:
        for step in range(count):
            run.save(*runs.state(step))
    return path


def step_of(path):
    with RunDirectory(path) as run:
        tensors, values = run.load()
    expected, others = runs.state(values["step"])
    assert torch.equal(tensors["x"], expected["x"])
    assert values == others
    return values["step"]


class TestStates:
    def test_come_back_as_they_were(self, tmp_path):
        tensors = {
            "float": torch.randn(3, 4),
            "double": torch.tensor([1e-300, torch.pi, -0.0], dtype=torch.float64),
            "not finite": torch.tensor([torch.nan, torch.inf]),
            "scalar": torch.tensor(3.5),
            "whole": torch.tensor([2**62]),
            "bytes": torch.get_rng_state(),
            "empty": torch.zeros(0, 2),
            "turned": torch.randn(3, 4).T,
            "half": torch.randn(5).bfloat16(),
        }
        values = {"list": [1, 0.1, 1e-320], "inf": float("inf"), "deep": {"a": None, "b": True}}
        with RunDirectory(tmp_path) as run:
            assert run.load() is None
            run.save(tensors, values)
        with RunDirectory(tmp_path) as run:
            found, others = run.load()
        assert others == values
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name].nan_to_num(), tensor.nan_to_num())

    def test_tensors_that_share_memory(self, tmp_path):
        shared = torch.randn(4, 4)
        with RunDirectory(tmp_path) as run:
            run.save({"a": shared, "b": shared, "row": shared[1]}, {})
            found, _ = run.load()
        assert torch.equal(found["b"], shared)
        assert torch.equal(found["row"], shared[1])

    def test_two_are_kept_and_numbers_go_on(self, tmp_path):
        saved(tmp_path, 5)
        expected = [f"state-{n:08d}.{kind}" for n in (3, 4) for kind in ("json", "safetensors")]
        assert states(tmp_path) == expected
        with RunDirectory(tmp_path) as run:
            run.save(*runs.state(9))
        assert states(tmp_path)[-1] == "state-00000005.safetensors"
        assert step_of(tmp_path) == 9

    def test_nothing_else_is_written(self, tmp_path):
        place = tmp_path / "deep" / "run"
        (tmp_path / "neighbour").write_text("mine")
        saved(place, 3)
        with RunDirectory(place) as run:
            run.begin_log([])
            run.log({"epoch": 0})
        assert files(tmp_path) == ["deep", "neighbour"]
        assert files(tmp_path / "deep") == ["run"]
        assert [f for f in files(place) if not f.startswith("state-")] == ["lock", "log.jsonl"]

    def test_other_files_in_the_directory_are_left_alone(self, tmp_path):
        for name in ("state-of-the-art.json", "state-x.json", "notes.txt"):
            (tmp_path / name).write_text("mine")
        saved(tmp_path, 4)
        for name in ("state-of-the-art.json", "state-x.json", "notes.txt"):
            assert (tmp_path / name).read_text() == "mine"

    def test_leftovers_of_a_kill_go(self, tmp_path):
        saved(tmp_path, 3)
        # Killed between two removals; killed before a move.
        (tmp_path / "state-00000000.safetensors").write_bytes(b"old")
        (tmp_path / ".condens-0123456789abcdef.part").write_bytes(b"half")
        assert step_of(tmp_path) == 2
        with RunDirectory(tmp_path) as run:
            run.save(*runs.state(3))
        assert len(states(tmp_path)) == 4
        assert not list(tmp_path.glob("*.part"))


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 0x04
    path.write_bytes(data)


DAMAGE = {
    "flipped bit": lambda path: flip(path, path.stat().st_size // 2),
    "flipped last": lambda path: flip(path, path.stat().st_size - 2),
    "cut short": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "gone": lambda path: path.unlink(),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}


class TestDamage:
    @pytest.mark.parametrize("damage", DAMAGE)
    @pytest.mark.parametrize("kind", ["json", "safetensors"])
    def test_falls_back_to_the_state_before(self, tmp_path, kind, damage):
        saved(tmp_path, 3)
        DAMAGE[damage](tmp_path / f"state-00000002.{kind}")
        assert step_of(tmp_path) == 1

    @pytest.mark.parametrize("text", ["null", "[]", "3", '{"sha256": 1}', '"state"', "{}", "[[["])
    def test_json_of_another_kind(self, tmp_path, text):
        saved(tmp_path, 3)
        (tmp_path / "state-00000002.json").write_text(text)
        assert step_of(tmp_path) == 1

    def test_a_changed_number_in_the_json_is_noticed(self, tmp_path):
        saved(tmp_path, 3)
        path = tmp_path / "state-00000002.json"
        path.write_text(path.read_text().replace('"step": 2', '"step": 7'))
        assert step_of(tmp_path) == 1

    def test_a_damaged_state_is_replaced_before_the_good_one(self, tmp_path):
        saved(tmp_path, 3)
        DAMAGE["cut short"](tmp_path / "state-00000002.safetensors")
        with RunDirectory(tmp_path) as run:
            run.load()
            run.save(*runs.state(5))
        assert step_of(tmp_path) == 5
        DAMAGE["cut short"](sorted(tmp_path.glob("*.safetensors"))[-1])
        assert step_of(tmp_path) == 1

    @pytest.mark.parametrize("kind", ["json", "safetensors"])
    def test_both_damaged_is_named(self, tmp_path, kind):
        saved(tmp_path, 3)
        for path in tmp_path.glob(f"*.{kind}"):
            DAMAGE["cut short"](path)
        with RunDirectory(tmp_path) as run, pytest.raises(RunDirectoryError) as raised:
            run.load()
        assert str(raised.value) == (
            f"{tmp_path} holds no state that is whole, but what was written has been changed. "
            "Restore the files from a copy, or begin again in another directory."
        )


class TestPlace:
    @pytest.mark.parametrize("below", ["", "run"])
    def test_a_file_is_no_directory(self, tmp_path, below):
        (tmp_path / "file").write_text("mine")
        with pytest.raises(RunDirectoryError, match="cannot be a run directory") as raised:
            RunDirectory(tmp_path / "file" / below).__enter__()
        assert str(raised.value).endswith("a run needs one of its own. Name another place.")
        assert (tmp_path / "file").read_text() == "mine"

    def test_one_writer_in_this_process_too(self, tmp_path):
        with RunDirectory(tmp_path), pytest.raises(RunDirectoryError) as raised:
            RunDirectory(tmp_path).__enter__()
        assert str(raised.value) == (
            f"{tmp_path} is being written by another process, but a run has one writer. "
            "Wait for it to end, stop it, or name another directory."
        )
        with RunDirectory(tmp_path):
            pass

    def test_one_process_at_a_time_and_a_killed_one_counts_no_more(self, tmp_path):
        place, ready = tmp_path / "run", tmp_path / "ready"
        with runs.process(runs.hold, place, ready) as first:
            runs.wait_for(ready.exists)
            assert runs.finish(runs.enter, place) == 3
            with pytest.raises(RunDirectoryError, match="is being written by another process"):
                RunDirectory(place).__enter__()
            first.kill()
            first.join()
            assert runs.finish(runs.enter, place) == 0
        assert step_of(place) == 0


def test_a_directory_that_is_removed_while_in_use(tmp_path):
    """The error promises no state that is gone, and the same call begins again."""

    def fit(**options):
        network = MixtureNetwork.of(1, 1, n_components=2, generator=torch.Generator())
        rows = torch.linspace(-1, 1, 60)[:, None].expand(60, 2).split(1, 1)
        train(network, rows, Settings(epochs=4), directory=tmp_path / "run", **options)
        return network

    with pytest.raises(RunDirectoryError) as raised:
        fit(callbacks=lambda _: shutil.rmtree(tmp_path / "run"))
    assert str(raised.value) == (
        f"{tmp_path / 'run'} cannot be written (No such file or directory), but a run keeps its "
        "state there. Make room, and run again: it goes on from the last state that is there."
    )
    seen = []
    again = fit(callbacks=lambda epoch: seen.append(epoch.epoch))
    assert seen == [0, 1, 2, 3]
    shutil.rmtree(tmp_path / "run")
    whole = fit()
    assert all(map(torch.equal, again.parameters(), whole.parameters()))


class TestFullDisk:
    def test_the_state_before_survives(self, tmp_path):
        """A limit on the size of files makes the writes themselves fail."""
        assert runs.finish(runs.save_until_full, tmp_path, 20_000) == 3
        assert not list(tmp_path.glob("*.part"))
        assert step_of(tmp_path) == 2
        assert len(states(tmp_path)) == 4

    @pytest.mark.skipif(sys.platform != "linux", reason="mounts a file system")
    def test_a_disk_that_is_really_full(self, tmp_path):
        place = tmp_path / "disk"
        place.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)]
        try:
            subprocess.run(mount, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("may not mount")
        try:
            saved(place, 2)
            with RunDirectory(place) as run:
                with pytest.raises(RunDirectoryError) as raised:
                    run.save(*runs.state(2, size=50_000))
                assert not list(place.glob("*.part"))
                assert run.load()[1]["step"] == 1
                # Room again: the same run goes on.
                run.save(*runs.state(3))
            assert str(raised.value) == (
                f"{place} cannot be written (No space left on device), but a run keeps its state "
                "there. Make room, and run again: it goes on from the last state that is there."
            )
            assert step_of(place) == 3
        finally:
            subprocess.run(["umount", str(place)], check=True)

    def test_an_interruption_leaves_no_half_file(self, tmp_path, monkeypatch):
        saved(tmp_path, 2)

        def interrupted(_):
            raise KeyboardInterrupt

        with RunDirectory(tmp_path) as run:
            monkeypatch.setattr(os, "fsync", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run.save(*runs.state(2))
            monkeypatch.undo()
        assert not list(tmp_path.glob("*.part"))
        assert step_of(tmp_path) == 1


def test_the_log_begins_anew_and_grows(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"epoch": 0}\n{"epo')
    with RunDirectory(tmp_path) as run:
        run.begin_log([{"epoch": 0}])
        run.log({"epoch": 1})
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"epoch": 0}, {"epoch": 1}]


def test_the_hash_is_of_the_tensors_and_the_values(tmp_path):
    saved(tmp_path, 1)
    record = json.loads((tmp_path / "state-00000000.json").read_text())
    data = (tmp_path / "state-00000000.safetensors").read_bytes()
    text = json.dumps(record["values"]).encode()
    assert record["sha256"] == hashlib.sha256(data + text).hexdigest()


@pytest.mark.skipif(os.name != "posix", reason="has other links")
class TestLinks:
    """Whatever lies in a run directory, nothing outside it is written."""

    @pytest.fixture
    def mine(self, tmp_path):
        (tmp_path / "mine").write_text("mine")
        return tmp_path / "mine"

    @pytest.mark.parametrize(
        "name",
        [
            "state-00000000.safetensors",
            "log.jsonl",
        ],
    )
    def test_are_not_written_through(self, tmp_path, mine, name):
        place = tmp_path / "run"
        place.mkdir()
        (place / name).symlink_to(mine)
        with RunDirectory(place) as run:
            run.begin_log([])
            run.save(*runs.state())
            run.log({"epoch": 0})
        assert mine.read_text() == "mine"
        assert step_of(place) == 0
        assert not list(place.glob("*.part"))

    def test_a_log_that_became_one(self, tmp_path, mine):
        with RunDirectory(tmp_path / "run") as run:
            run.begin_log([])
            (tmp_path / "run/log.jsonl").unlink()
            (tmp_path / "run/log.jsonl").symlink_to(mine)
            with pytest.raises(RunDirectoryError, match=r"cannot be written .*symbolic links"):
                run.log({"epoch": 0})
        assert mine.read_text() == "mine"

    @pytest.mark.parametrize("target", ["mine", "nothing"])
    def test_as_the_lock(self, tmp_path, mine, target):
        assert mine.exists()
        (tmp_path / "run").mkdir()
        (tmp_path / "run/lock").symlink_to(tmp_path / target)
        with pytest.raises(RunDirectoryError, match=r"cannot be a run directory .*symbolic links"):
            RunDirectory(tmp_path / "run").__enter__()
        assert not (tmp_path / "nothing").exists()

    def test_pipes_are_not_waited_for(self, tmp_path):
        saved(tmp_path, 2)
        os.mkfifo(tmp_path / "state-00000002.json")
        assert step_of(tmp_path) == 1
        (tmp_path / "state-00000001.safetensors").unlink()
        os.mkfifo(tmp_path / "state-00000001.safetensors")
        assert step_of(tmp_path) == 0


def test_files_with_names_like_ours_stay(tmp_path):
    """Only what this class itself may have written goes."""
    others = ("state-1.json", "state-00000000.notes.txt", "state-²²²²²²²².json", "x.part")
    for name in others:
        (tmp_path / name).write_text("mine")
    saved(tmp_path, 5)
    assert all((tmp_path / name).read_text() == "mine" for name in others)
    assert step_of(tmp_path) == 4


def test_a_path_that_is_none(tmp_path):
    with pytest.raises(RunDirectoryError, match=r"cannot be a run directory .*null"):
        RunDirectory(f"{tmp_path}/a\0b").__enter__()


def test_the_log_is_json_for_every_reader(tmp_path):
    with RunDirectory(tmp_path) as run:
        run.begin_log([{"loss": float("nan")}])
        run.log({"loss": float("inf"), "usage": [float("-inf"), 0.5]})

    def refused(word):
        raise AssertionError(word)

    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    read = [json.loads(line, parse_constant=refused) for line in lines]
    assert read == [{"loss": "nan"}, {"loss": "inf", "usage": ["-inf", 0.5]}]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_json_nested_without_end(tmp_path, text):
    saved(tmp_path, 3)
    (tmp_path / "state-00000002.json").write_text(text)
    assert step_of(tmp_path) == 1


def test_a_right_hash_of_what_are_no_tensors(tmp_path):
    saved(tmp_path, 3)
    for number in (1, 2):
        seal(tmp_path, number, b"\0" * 100, {})
    with RunDirectory(tmp_path) as run, pytest.raises(RunDirectoryError, match="no state that is"):
        run.load()


def seal(path, number, data, values):
    """Write a state of any content with a hash that is right."""
    digest = hashlib.sha256(data + json.dumps(values).encode()).hexdigest()
    (path / f"state-{number:08d}.safetensors").write_bytes(data)
    (path / f"state-{number:08d}.json").write_text(json.dumps({"sha256": digest, "values": values}))
