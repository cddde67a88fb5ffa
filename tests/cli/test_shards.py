"""Many tables in one command: shares, what is finished, deaths at any moment, and the report."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.commands import finished, write_houses
from helpers.runs import PATIENCE, wait_for
from hypothesis import given
from hypothesis import strategies as st

from condens.cli.shards import Process
from condens.data.readers import read_table

ROWS = {"a": 30, "b": 12, "c": 21}
WRITERS = {
    "csv": lambda table, path: table.to_csv(path, index=False),
    "parquet": lambda table, path: table.to_parquet(path),
    "arrow": lambda table, path: table.to_feather(path),
    "jsonl": lambda table, path: table.to_json(path, orient="records", lines=True),
}
PREDICT = ("predict", "model.condens", "shards", "-o", "out/")


def write_shards(kind, names=ROWS):
    Path("shards").mkdir(exist_ok=True)
    for seed, name in enumerate(names):
        table = pd.read_csv(write_houses(Path("table"), rows=ROWS[name], seed=seed))
        WRITERS[kind](table, f"shards/{name}.{kind}")
    Path("table").unlink()


@pytest.fixture
def shards(houses):
    """Work in a directory with three tables of different sizes."""
    write_shards("csv")
    return houses


def answers(place="out"):
    """Return what a directory holds, records of the outputs aside."""
    return {p.name: p.read_bytes() for p in Path(place).iterdir() if not p.name.startswith(".")}


def torchrun(*arguments, processes=2):
    """Return the command that starts the processes of a command."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, "--nproc-per-node", str(processes), "-m", "condens", *arguments]


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize(
    "more", [("predict", "-i", "0.9", "--keep", "kind"), ("sample", "-n", "3")]
)
@pytest.mark.usefixtures("houses")
def test_every_table_has_the_answers_that_it_has_alone(call, kind, more):
    command, *options = more
    write_shards(kind)
    code, out, err = call(command, "model.condens", "shards", *options, "-o", "new/out")
    assert (code, out) == (0, "")
    assert err == "3 written, 0 finished before.\nnew/out has the answers to all 3 table(s).\n"
    assert answers("new/out").keys() == {f"{name}.{kind}" for name in ROWS}
    for name, rows in ROWS.items():
        found = read_table(f"new/out/{name}.{kind}").to_pandas()
        alone = call(command, "model.condens", f"shards/{name}.{kind}", *options, "-o", "one.csv")
        assert alone.code == 0
        expected = read_table("one.csv").to_pandas()
        Path("one.csv").unlink()
        assert len(found) == rows * (3 if command == "sample" else 1)
        if command == "sample":  # a table of many has draws of its own
            assert not np.isin(found["lat"], expected["lat"]).any()
            found, expected = found[["row", "draw"]], expected[["row", "draw"]]
        pd.testing.assert_frame_equal(found, expected, check_dtype=False, rtol=1e-12)


@pytest.mark.usefixtures("shards")
def test_a_directory_a_pattern_and_a_list_are_the_same(call):
    Path("shards/notes.md").write_text("no table")
    Path("shards/.hidden.csv").write_text("no table")
    files = [f"shards/{name}.csv" for name in ROWS]
    ways = {"directory": ["shards"], "pattern": ["shards/?.csv"], "list": [*files, files[0]]}
    for name, way in ways.items():
        assert call("predict", "model.condens", *way, "-o", name).code == 0
        assert answers(name) == answers("directory")
    assert call("predict", "model.condens", "shards/a.csv", "-o", "one/").code == 0
    assert answers("one") == {"a.csv": answers("directory")["a.csv"]}


def test_compressed_tables_keep_their_names(call, shards):
    import gzip

    Path("packed").mkdir()
    Path("packed/a.1.csv.gz").write_bytes(gzip.compress(Path("shards/a.csv").read_bytes()))
    assert call("predict", "model.condens", "packed", "-o", "out", "--format", "jsonl").code == 0
    assert answers().keys() == {"a.1.jsonl"}


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow"])
@pytest.mark.usefixtures("houses")
def test_what_is_finished_is_skipped(call, kind):
    write_shards(kind)
    assert call(*PREDICT).code == 0
    before = {p: p.stat().st_mtime_ns for p in Path("out").iterdir()}
    Path(f"out/b.{kind}").unlink()
    code, _, err = call(*PREDICT)
    assert code == 0
    assert err == "1 written, 2 finished before.\nout has the answers to all 3 table(s).\n"
    after = {p: p.stat().st_mtime_ns for p in Path("out").iterdir()}
    assert after.keys() == before.keys()
    assert {p.name for p in after if after[p] != before[p]} == (
        {"b.csv", ".condens-b.csv.json"} if kind == "csv" else {f"b.{kind}"}
    )


CHANGES = {
    "model": (["predict", "other.condens", "shards"], "was made with another model"),
    "options": (
        [*PREDICT[:3], "-i", "0.9", "--log-density"],
        "was made with another --interval, --log-density:",
    ),
    "reading": ([*PREDICT[:3], "--dates", "seconds"], "was made with another --dates:"),
    "command": (["sample", "model.condens", "shards"], "was written by condens predict"),
    "input": (PREDICT[:3], "was made from another b."),
    "output": (PREDICT[:3], "has changed since"),
    "not ours": (PREDICT[:3], "was not written by this command"),
}


@pytest.mark.parametrize(
    ("change", "kind"),
    # A Parquet file is known by the record in it alone.
    [*((change, "csv") for change in CHANGES), ("options", "parquet"), ("not ours", "parquet")],
)
@pytest.mark.usefixtures("houses")
def test_other_answers_are_overwritten_by_force_alone(call, change, kind):
    write_shards(kind, ["a", "b"])
    assert call(*PREDICT).code == 0
    first = answers()
    arguments, message = CHANGES[change]
    if change == "input":
        table = read_table(f"shards/b.{kind}").to_pandas()
        WRITERS[kind](table.assign(rooms=table["rooms"] + 1), f"shards/b.{kind}")
    elif change == "output":
        with Path("out/b.csv").open("a") as file:
            file.write("1,2,3,4\n")
    elif change == "not ours":
        Path("out/.condens-b.csv.json").unlink(missing_ok=True)
        WRITERS[kind](pd.DataFrame({"x": [1]}), f"out/b.{kind}")
    before = answers()
    code, out, err = call(*arguments, "-o", "out/")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"out/b.{kind} {message}" in err
    assert "nothing is overwritten unasked. Pass --force" in err
    assert answers() == before
    code, _, err = call(*arguments, "-o", "out/", "--force")
    assert code == 0
    one = change in ("input", "output", "not ours")
    assert err.startswith("1 written, 1 finished" if one else "2 written, 0 finished")
    assert answers()[f"a.{kind}"] == before[f"a.{kind}"] or not one
    if change in ("output", "not ours"):
        assert answers() == first
    assert call(*arguments, "-o", "out/").err.startswith("0 written, 2 finished")


@pytest.mark.usefixtures("houses")
def test_a_broken_table_stops_no_other(call):
    write_shards("parquet")
    whole = Path("shards/a.parquet").read_bytes()
    Path("shards/a.parquet").write_bytes(whole[:-300])
    pd.DataFrame({"rooms": [1], "kind": ["flat"]}).to_parquet("shards/d.parquet")
    for _ in range(2):  # what failed is tried again
        code, out, err = call(*PREDICT)
        assert (code, out) == (1, "")
        counts, first, second, last = err.splitlines()
        assert counts.endswith(", 2 failed.")
        assert first.startswith("Error: shards/a.parquet cannot be read (")
        assert second.startswith("Error: shards/d.parquet lacks the column 'price'")
        assert last.startswith("out has the answers to 2 of 4 tables.")
        assert answers().keys() == {"b.parquet", "c.parquet"}
    Path("shards/a.parquet").write_bytes(whole)
    Path("shards/d.parquet").unlink()
    code, _, err = call(*PREDICT)
    assert (code, err.splitlines()[0]) == (0, "1 written, 2 finished before.")
    assert {p.name for p in Path("out").iterdir()} == {
        *("a.parquet", "b.parquet", "c.parquet", ".condens-d.parquet.json")
    }


@pytest.mark.usefixtures("shards")
def test_a_check_lists_what_is_missing_and_writes_nothing(call):
    code, out, err = call(*PREDICT, "--check")
    assert (code, out) == (1, "")
    assert "Error: out/b.csv is missing: shards/b.csv has no answers yet." in err
    assert not Path("out").exists()
    assert call(*PREDICT).code == 0
    assert call(*PREDICT, "--check") == (0, "", "out has the answers to all 3 table(s).\n")
    Path("out/b.csv").unlink()
    with Path("out/c.csv").open("a") as file:
        file.write("1,2,3,4\n")
    code, _, err = call(*PREDICT, "--check")
    assert (code, err.splitlines()) == (
        1,
        [
            "Error: out/b.csv is missing: shards/b.csv has no answers yet.",
            "Error: out/c.csv has changed since.",
            "out has the answers to 1 of 3 tables. The same command makes those that are missing.",
        ],
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shards", "more", "-o", "out"], "shards/a.csv and more/a.parquet would both be written"),
        (["shards"], "-o is missing, but answers to several tables go to a directory"),
        (["shards", "-o", "out.csv"], "out.csv names a file, but answers to several tables"),
        (["shards", "-o", "new.csv"], "new.csv is a file, but answers to several tables"),
        (["shards", "-o", "shards"], "shards holds a.csv, which is a file that this command"),
        (["shards/a.csv", "-o", "shards/"], "shards/ holds a.csv, which is a file that this"),
        (["shards", "-", "-o", "out"], "DATA is -, standard input, among other tables"),
        (["shards/*.tsv", "-o", "out"], "shards/*.tsv matches no file, but"),
        (["empty", "-o", "out"], "empty has no tables, but CSV, TSV, Parquet, Arrow or"),
        (["shards", "no.csv", "-o", "out"], "no.csv does not exist, but a file was expected"),
        (["shards", "-o", "out", "--format", "table"], "--format is 'table', but csv, tsv"),
        (["shards", "-o", "full"], "full/b.csv is a directory, but a regular file"),
        (["new.csv", "--check"], "--check was asked of one file, but it looks at a directory"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_refuses_before_it_writes(call, shards, arguments, message):
    for name in ("more", "empty", "full/b.csv"):
        Path(name).mkdir(parents=True)
    pd.DataFrame({"x": [1]}).to_parquet("more/a.parquet")
    before = sorted(p for p in shards.rglob("*") if p.is_file())
    code, out, err = call("predict", "model.condens", *arguments, "--force")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"Error: {message}")
    assert sorted(p for p in shards.rglob("*") if p.is_file()) == before


class TestShares:
    @given(st.lists(st.integers(0, 10**12), max_size=40), st.integers(1, 9))
    def test_every_file_is_one_process_s_and_loads_are_even(self, sizes, world):
        shares = [Process(rank, world).share(sizes) for rank in range(world)]
        assert sorted(number for share in shares for number in share) == [*range(len(sizes))]
        loads = [sum(max(1, sizes[number]) for number in share) for share in shares]
        # No greedy deal leaves a process further behind than by one file.
        assert max(loads) - min(loads) <= max([1, *sizes])

    @pytest.mark.usefixtures("shards")
    @pytest.mark.parametrize(("rank", "world"), [("2", "2"), ("-1", "2"), ("x", "2"), ("0", "")])
    def test_wrong_variables_are_refused(self, call, monkeypatch, rank, world):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", world)
        code, _, err = call(*PREDICT)
        assert (code, err.count("\n")) == (1, 1)
        assert f": RANK and WORLD_SIZE are '{rank}' and '{world}', but" in err

    @pytest.mark.parametrize("launched", [False, True])
    @pytest.mark.usefixtures("shards")
    def test_the_last_process_reports(self, call, monkeypatch, launched):
        """Under torchrun an error of one ends all: there only the last one exits with it."""
        monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
        if launched:
            monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
        monkeypatch.setenv("WORLD_SIZE", "2")
        Path("shards/a.csv").write_text("rooms,kind\n" + "1,flat\n" * 1000)  # of the first process
        for _ in range(2):
            monkeypatch.setenv("RANK", "0")
            code, _, err = call(*PREDICT)
            assert code == (0 if launched else 1)
            assert err.startswith("Process 0 of 2: 0 written, 0 finished before, 1 failed.\n2 of 3")
            assert not Path("out/b.csv").exists()
            monkeypatch.setenv("RANK", "1")
            code, _, err = call(*PREDICT)
            assert code == 1
            counts, error, last = err.splitlines()
            assert counts == "Process 1 of 2: 2 written, 0 finished before."
            assert error.startswith("Error: shards/a.csv lacks the column 'price'")
            assert last.startswith("out has the answers to 2 of 3 tables")
            for name in ("b", "c"):
                Path(f"out/{name}.csv").unlink()

    @pytest.mark.usefixtures("shards")
    def test_an_earlier_failure_is_not_the_last_word(self, call, monkeypatch):
        """A process with nothing to do must not end a launch that tries a table again."""
        monkeypatch.setenv("WORLD_SIZE", "2")
        Path("shards/a.csv").write_text("rooms,kind\n" + "1,flat\n" * 1000)
        for number in range(2):
            monkeypatch.setenv("TORCHELASTIC_RUN_ID", f"launch {number}")
            monkeypatch.setenv("RANK", "1")
            code, _, err = call(*PREDICT)
            assert (code, err.splitlines()[-1]) == (
                0,
                "1 of 3 tables are still with other processes.",
            )
            monkeypatch.setenv("RANK", "0")
            code, _, err = call(*PREDICT)
            assert code == 1
            assert "Error: shards/a.csv lacks the column 'price'" in err
        assert "lacks the column 'price'" in call(*PREDICT, "--check").err

    @pytest.mark.usefixtures("shards")
    def test_one_table_is_one_process_s(self, call, monkeypatch):
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", "1")
        assert call("predict", "model.condens", "new.csv", "-o", "one.csv") == (0, "", "")
        assert not Path("one.csv").exists()
        monkeypatch.setenv("RANK", "0")
        assert call("predict", "model.condens", "new.csv", "-o", "one.csv").code == 0
        assert Path("one.csv").exists()


def some(quick, events):
    """Return numbers of events to die at, all but the quick ones for the slow tests."""
    return [pytest.param(n, marks=[] if n in quick else pytest.mark.slow) for n in events]


class TestDeaths:
    """Killed at the opening, the move or the removal of any file: the next run ends as if not."""

    ASK = ("predict", "model.condens", "shards", "-i", "0.5", "-o")

    @pytest.mark.parametrize("events", some([8], range(1, 34)))
    def test_text_with_records_beside(self, houses, events):
        self.die_and_go_on(houses, "csv", events)

    @pytest.mark.parametrize("events", some([6], range(1, 22)))
    def test_files_with_records_within(self, houses, events):
        self.die_and_go_on(houses, "parquet", events)

    @pytest.mark.parametrize("events", some([12], range(1, 40)))
    def test_no_old_answer_is_taken_for_a_new_one(self, houses, events):
        write_shards("csv")
        for place in ("whole", "made"):
            assert finished([*self.ASK, place], houses).code == 0
        for path in Path("made").glob("*.csv"):  # of the same size
            path.write_bytes(path.read_bytes().replace(b".", b"7"))
        again = [*self.ASK, "made", "--force"]
        first = finished(again, houses, death=(events, "made"))
        assert first.code in (-signal.SIGKILL, 0), first.err
        assert finished(again, houses).code == 0
        assert answers("made") == answers("whole")

    def die_and_go_on(self, houses, kind, events):
        write_shards(kind)
        assert finished([*self.ASK, "whole"], houses).code == 0
        first = finished([*self.ASK, "made"], houses, death=(events, "made"))
        assert first.code in (-signal.SIGKILL, 0), first.err
        before = {p: p.stat().st_mtime_ns for p in Path("made").glob(f"*.{kind}")}
        second = finished([*self.ASK, "made"], houses)
        assert second.code == 0, second.err
        counts = f"{3 - len(before)} written, {len(before)} finished before."
        assert second.err.splitlines()[0] == counts
        assert answers("made") == answers("whole")
        assert {p: p.stat().st_mtime_ns for p in before} == before
        records = {f".condens-{name}.csv.json" for name in ROWS} if kind == "csv" else set()
        assert {p.name for p in Path("made").iterdir()} == {*answers("made"), *records}


class TestTorchrun:
    @pytest.mark.usefixtures("houses")
    @pytest.mark.slow
    def test_processes_share_the_tables_and_a_broken_one_stops_no_other(self):
        write_shards("parquet")
        Path("shards/d.parquet").write_bytes(Path("shards/a.parquet").read_bytes()[:-200])
        arguments = ["predict", "model.condens", "shards/*.parquet", "-o", "out/"]
        done = subprocess.run(torchrun(*arguments), capture_output=True, text=True)
        assert done.returncode == 1
        assert answers().keys() == {"a.parquet", "b.parquet", "c.parquet"}
        for rank in range(2):
            assert f"Process {rank} of 2: " in done.stderr
        assert "Error: shards/d.parquet cannot be read (" in done.stderr
        assert "out has the answers to 3 of 4 tables." in done.stderr

    @pytest.mark.slow
    @pytest.mark.usefixtures("houses")
    @pytest.mark.parametrize("kind", ["csv", "parquet"])
    def test_killed_processes_go_on_to_the_same_bytes(self, call, kind):
        Path("shards").mkdir()
        for seed in range(12):
            table = pd.read_csv(write_houses(Path("table"), rows=20_000 + seed, seed=seed))
            WRITERS[kind](table, f"shards/{seed}.{kind}")
        sample = ["sample", "model.condens", "shards", "-n", "20"]
        assert call(*sample, "-o", "whole").code == 0
        arguments = torchrun(*sample, "-o", "out", processes=3)
        with subprocess.Popen(arguments) as running:
            wait_for(lambda: len([*Path("out").glob(f"*.{kind}")]) >= 4)
            for number in processes_of("out"):
                os.kill(number, signal.SIGKILL)
            running.wait(PATIENCE)
        wait_for(lambda: not processes_of("out"))
        before = {p.name: p.stat().st_mtime_ns for p in Path("out").glob(f"*.{kind}")}
        assert 4 <= len(before) < 12
        done = subprocess.run(arguments, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "out has the answers to all 12 table(s)." in done.stderr
        assert answers("out") == answers("whole")
        for name, written in before.items():
            assert Path("out", name).stat().st_mtime_ns == written


def processes_of(place):
    """Return the processes that this test has started with an argument, the launcher first."""
    found = []
    for each in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        with suppress(OSError):
            words = (each / "cmdline").read_bytes().split(b"\0")
            if place.encode() in words and (each / "cwd").readlink() == Path.cwd():
                found.append(int(each.name))
    return found


def test_the_record_in_a_file_says_what_it_was_made_from(call, shards):
    import pyarrow.parquet as pq

    from condens.cli.shards import digest_of

    assert call(*PREDICT, "-q", "0.5", "--format", "parquet").code == 0
    record = json.loads(pq.read_schema("out/a.parquet").metadata[b"condens"])
    status = Path("shards/a.csv").stat()
    assert record["model"] == digest_of(Path("model.condens"))
    assert record["input"] == {
        "name": "a.csv",
        "bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
    }
    assert (record["command"], record["options"]["quantile"]) == ("predict", [0.5])
