"""Exit codes, errors in one line, streams, signals and files that are there."""

import os
import signal
import subprocess
import sys

import pandas as pd
import pytest
from helpers import runs
from helpers.commands import finished, started, write_houses

from condens.persistence.container import read

FIT = ("-t", "lat", "-t", "lon", "--members", "1")


def test_help_imports_nothing_that_takes_time():
    code = (
        "import sys, contextlib, io\n"
        "from condens.cli.app import run\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    try: run(['--help'])\n"
        "    except SystemExit: pass\n"
        "print([m for m in ('torch', 'numpy', 'pyarrow', 'pandas', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_both_names_are_the_same_program():
    commands = ([sys.executable, "-m", "condens"], [f"{sys.prefix}/bin/condens"])
    found = [
        subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
        for command in commands
    ]
    assert found[0] == found[1] != ""


def test_usage_errors_exit_2(call):
    for arguments in (["fit"], ["predict", "m", "d", "--nonsense"], ["nonsense"]):
        code, out, err = call(*arguments)
        assert (code, out) == (2, "")
        assert "Usage" in err


BROKEN = {
    "missing file": (None, "no.csv"),
    "empty": (b"", "empty"),
    "header alone": (b"rooms,lat,lon\n", ""),
    "no such target": (b"rooms,lat\n1,2\n", "lon"),
    "text among numbers": (b"rooms,lat,lon\n1,2,3\n1,abc,3\n", "abc"),
    "short row": (b"rooms,lat,lon\n1,2,3\n1,2\n", ""),
    "rubbish": (bytes(range(256)) * 20, ""),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_tables_are_one_line(call, tmp_path, monkeypatch, kind):
    content, word = BROKEN[kind]
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "no.csv").write_bytes(content)
    code, out, err = call("fit", "no.csv", *FIT, "-o", "m.condens")
    assert (code, out) == (1, "")
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert word in err
    assert "Traceback" not in err
    assert not (tmp_path / "m.condens").exists()


def test_debug_shows_where(tmp_path, monkeypatch):
    from condens.cli.app import run
    from condens.errors import CondensError

    monkeypatch.chdir(tmp_path)
    with pytest.raises((CondensError, OSError)):
        run(["info", "nothing.condens", "--debug"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit", "houses.csv", *FIT, "-o", "model.condens"],
        ["predict", "model.condens", "new.csv", "-o", "new.csv"],
        ["evaluate", "model.condens", "new.csv", "--html", "new.csv"],
        ["plot", "model.condens", "new.csv", "-o", "new.csv"],
        ["export", "model.condens", "--onnx", "new.csv"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_nothing_is_overwritten_unasked(call, houses, arguments):
    before = {path.name: path.read_bytes() for path in houses.iterdir()}
    code, _, err = call(*arguments)
    assert code == 1
    assert "exists, but nothing is overwritten unasked. Pass --force" in err
    assert {path.name: path.read_bytes() for path in houses.iterdir()} == before


def test_directories_and_devices_are_no_place(call, houses):
    for place in (".", "/dev/null", "nowhere/x.csv"):
        code, _, err = call("predict", "model.condens", "new.csv", "-o", place, "--force")
        assert (code, err.count("\n")) == (1, 1)


def test_hostile_names_do_not_reach_the_terminal(call, houses):
    (houses / "bad.csv").write_text("a\x1b[31m,b\n" + "1,2\n" * 50)
    code, out, err = call("fit", "bad.csv", "-t", "c", "-o", "b.condens")
    assert code == 1
    assert "\x1b" not in out + err


def test_no_colour_where_nobody_looks(call, houses):
    for arguments in (["info", "model.condens"], ["evaluate", "model.condens", "new.csv"]):
        assert "\x1b[" not in call(*arguments).out


class TestProcesses:
    def test_standard_input_to_standard_output(self, houses):
        found = finished(["predict", "model.condens", "-"], houses, stdin=houses / "new.csv")
        assert (found.code, found.err) == (0, "")
        again = finished(["predict", "model.condens", "new.csv"], houses)
        assert found.out == again.out
        assert len(pd.read_csv(houses / "out")) == 40

    @pytest.mark.usefixtures("houses")
    def test_a_closed_pipe_is_quiet(self):
        reader, writer = os.pipe()
        with subprocess.Popen(
            [sys.executable, "-m", "condens", "sample", "model.condens", "new.csv", "-n", "20000"],
            stdout=writer,
            stderr=subprocess.PIPE,
        ) as process:
            os.close(writer)
            first = os.read(reader, 4)
            os.close(reader)
            assert (first, process.stderr.read()) == (b"row,", b"")
            assert process.wait(runs.PATIENCE) in (1, 141)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
    def test_an_interrupted_fit_goes_on_to_the_same_bytes(self, tmp_path, number):
        write_houses(tmp_path / "houses.csv")
        fit = ["fit", "houses.csv", "-t", "lat", "-t", "lon", "--members", "2", "--components", "2"]
        assert finished([*fit, "--epochs", "40", "-o", "whole.condens"], tmp_path).code == 0
        again = [*fit, "--epochs", "40", "-o", "stopped.condens"]
        state = tmp_path / "stopped.condens.run"
        with started(again, tmp_path) as process:
            runs.wait_for(lambda: any(state.rglob("*.jsonl")))
            os.kill(process.pid, number)
            process.join(runs.PATIENCE)
            assert process.exitcode == (130 if number == signal.SIGINT else -number)
        assert state.is_dir()
        assert not (tmp_path / "stopped.condens").exists()
        if number == signal.SIGINT:
            assert "the same command goes on there" in (tmp_path / "err").read_text()
        assert finished(again, tmp_path).code == 0
        assert not state.exists()
        whole, stopped = (parts_of(tmp_path / f"{name}.condens") for name in ("whole", "stopped"))
        assert whole == stopped


def parts_of(path):
    """Return what a model file holds, without times of the clock."""
    document, tensors = read(path)
    for epoch in document["history"]["epochs"]:
        del epoch["seconds"]
    return document, {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}
