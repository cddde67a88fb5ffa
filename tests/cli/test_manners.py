"""Exit codes, errors in one line, streams, signals and files that are there."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
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
def test_broken_tables_are_one_line(tmp_path, kind):
    content, word = BROKEN[kind]
    if content is not None:
        (tmp_path / "no.csv").write_bytes(content)
    code, out, err = finished(["fit", "no.csv", *FIT, "-o", "m.condens"], tmp_path)
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


def refused_with_all_as_before(call, directory, arguments):
    """Return the error of a command that changes no file."""
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    code, out, err = call(*arguments)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    return err


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit", "houses.csv", *FIT, "-o", "model.condens"],
        ["predict", "model.condens", "new.csv", "-o", "there.csv"],
        ["evaluate", "model.condens", "new.csv", "--html", "there.csv"],
        ["plot", "model.condens", "new.csv", "-o", "there.csv"],
        ["export", "model.condens", "--onnx", "there.csv"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_nothing_is_overwritten_unasked(call, houses, arguments):
    (houses / "there.csv").write_text("a\n1\n")
    err = refused_with_all_as_before(call, houses, arguments)
    assert "exists, but nothing is overwritten unasked. Pass --force" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit", "houses.csv", *FIT, "-o", "houses.csv"],
        ["predict", "model.condens", "new.csv", "-o", "./new.csv"],
        ["sample", "model.condens", "new.csv", "-o", "link.csv"],
        ["predict", "model.condens", "new.csv", "-o", "./"],
        ["evaluate", "model.condens", "new.csv", "--json", "model.condens"],
        ["plot", "model.condens", "new.csv", "-o", "new.csv"],
        ["export", "model.condens", "--onnx", "model.condens"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_is_read_is_not_overwritten_even_by_force(call, houses, arguments):
    (houses / "link.csv").symlink_to("new.csv")
    err = refused_with_all_as_before(call, houses, [*arguments, "--force"])
    assert "is a file that this command reads" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-t", "lat", "-t", "lat"], "--target names 'lat' twice"),
        (["-c", "rooms", "-c", "rooms"], "--condition names 'rooms' twice"),
        (["-c", "lat"], "the column 'lat' is named by --target and by --condition"),
        (["--weights", "lat"], "the column 'lat' is named by --target and by --weights"),
        (["-c", "rooms", "--ignore", "rooms"], "the column 'rooms' is named by --ignore and by"),
        (["--weights", "kind"], "houses.csv holds '"),
        (
            ["--weights", "offset"],
            "--weights has -1 at index [230], but numbers from 0",
        ),
        (["--components", "0"], "--components is 0, but at least 1"),
        (["--calibrate", "1"], "--calibrate is 1.0, but a fraction"),
        (["--covariance", "round"], "--covariance is 'round'"),
        (["--transform", "lat=round"], "--transform is 'round'"),
        (["--transform", "offset=count"], "the column 'offset' has -1 at index [230], but whole"),
        (["--dates", "maybe"], "--dates is 'maybe'"),
        (["--settings", "no.toml"], "no.toml: No such file or directory. Check the path."),
        (["--settings", "model.toml"], "model.toml: [model] width is 0, but"),
        (["--settings", "training.toml"], "training.toml: [training] clip is -1"),
        (["--settings", "kind.toml"], "kind.toml: [training] epochs is 'many', but"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_errors_name_what_was_typed(call, houses, arguments, message):
    table = pd.read_csv("houses.csv")
    table["offset"] = np.where(table.index == 230, -1, 1)
    Path("model.toml").write_text("[model]\nwidth = 0\n")
    Path("training.toml").write_text("[training]\nclip = -1\n")
    Path("kind.toml").write_text('[training]\nepochs = "many"\n')
    table.to_csv("houses.csv", index=False)
    target = "offset" if "offset=count" in arguments else "lat"
    code, out, err = call("fit", "houses.csv", "-t", target, *arguments, "-o", "m.condens")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"Error: {message}")


@pytest.mark.parametrize("name", ["when.csv", "shards"])
def test_the_remedy_for_dates_is_an_option(call, houses, name):
    Path("shards").mkdir()
    table = pd.read_csv("new.csv").assign(price="2024-05-01")
    table.to_csv("when.csv", index=False)
    table.to_csv("shards/when.csv", index=False)
    code, _, err = call("predict", "model.condens", name, "-o", "out.csv" if "." in name else "o")
    assert code == 1
    assert "when.csv holds '2024-05-01' in line 2, column 'price'" in err
    assert "pass --dates seconds, or leave the column out." in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit", "houses.csv", *FIT, "-o", "m.condens", "--seed", "-1"],
        ["fit", "houses.csv", "-t", "lat", "-o", "m.condens", "--members", "0"],
        ["sample", "model.condens", "new.csv", "--seed", str(2**32)],
        ["sample", "model.condens", "new.csv", "-n", "0"],
        ["predict", "model.condens", "new.csv", "-q", "2"],
        ["predict", "model.condens", "new.csv", "-i", "0"],
        ["predict", "model.condens", "new.csv", "--conformal", "nan"],
        ["query", "model.condens", "--interval", "1"],
    ],
    ids=lambda arguments: " ".join(arguments[-2:]),
)
def test_numbers_out_of_range_are_wrong_usage(call, houses, arguments):
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert f"Invalid value for '-{arguments[-2].strip('-')[0]}" in err.replace("'--", "'-")


@pytest.mark.parametrize(
    ("output", "more"), [("out.xls", []), ("out.csv", ["--format", "table"])], ids=str
)
def test_formats_that_no_file_has(call, houses, output, more):
    code, out, err = call("predict", "model.condens", "new.csv", "-o", output, *more)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert not (houses / output).exists()


def test_a_table_in_place_of_the_model(call, houses):
    code, _, err = call("predict", "new.csv", "model.condens")
    assert code == 1
    assert "Check that it is the model and not the table" in err


def test_weights_may_be_a_condition(call, houses):
    found = call("evaluate", "model.condens", "new.csv", "--weights", "rooms", "--json", "-")
    assert (found.code, found.err) == (0, "")


@pytest.mark.usefixtures("houses")
def test_a_warning_is_said_once_and_counts_all_parts(call, monkeypatch):
    monkeypatch.setattr("condens.cli.sample.NUMBERS_PER_BLOCK", 10)
    monkeypatch.setattr("condens.cli.predict.ROWS_PER_BLOCK", 7)
    table = pd.read_csv("new.csv")
    table.assign(price=table["price"].where(table.index % 4 > 0, 1e12)).to_csv(
        "far.csv", index=False
    )
    for arguments in (["predict", "-q", "0.5", "-i", "0.9"], ["sample", "-n", "1"]):
        command, *options = arguments
        code, _, err = call(command, "model.condens", "far.csv", *options)
        assert (code, err.count("\n")) == (0, 1)
        assert err.startswith(
            "Warning: The table is far outside the rows of the fit in 10 of 40 row(s): "
            "column 'price' in 10 row(s), where "
        )
    _, _, err = call("predict", "model.condens", "far.csv", "new.csv", "-o", "out")
    assert err.count("Warning: ") == 1
    assert "The table is far outside the rows of the fit in 10 of 80 row(s): " in err


def test_the_verdict_alone_has_the_warnings_of_the_training(call, tmp_path):
    (tmp_path / "constant.csv").write_text("x,y\n" + "".join(f"{x},3\n" for x in range(30)))
    code, out, err = call(
        *("fit", tmp_path / "constant.csv", "-t", "y", "--members", "1", "--epochs", "1"),
        *("--components", "2", "-o", tmp_path / "m.condens"),
    )
    assert (code, err) == (0, "")
    assert out.count("Warning: All 2 components are alike") == 1


def test_a_run_of_another_fit_says_what_to_remove(call, houses):
    arguments = ["fit", "houses.csv", *FIT, "--components", "1", "--resume", "run"]
    assert call(*arguments, "--epochs", "1", "-o", "a.condens").code == 0
    code, _, err = call(*arguments, "--epochs", "2", "-o", "b.condens")
    assert (code, err.count("\n")) == (1, 1)
    assert "holds a run with other epochs" in err
    assert err.endswith("To begin anew, remove run, unless another fit uses it.\n")


def test_help_loses_no_word_in_brackets(call):
    out = " ".join(call("fit", "--help", columns="200").out.split())
    assert "parameters in [model] and in [training]" in out


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
    @pytest.mark.parametrize(
        ("shell", "variables"),
        [(">&-", {}), ("", {"PYTHONIOENCODING": "ascii"})],
        ids=["closed", "ascii"],
    )
    @pytest.mark.usefixtures("houses")
    @pytest.mark.slow
    def test_any_standard_output_will_do(self, shell, variables):
        done = subprocess.run(
            f"{sys.executable} -m condens doctor {shell}",
            shell=True,
            capture_output=True,
            env={**os.environ, **variables},
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.isascii()

    def test_standard_input_to_standard_output(self, houses):
        found = finished(["predict", "model.condens", "-"], houses, stdin=houses / "new.csv")
        assert (found.code, found.err) == (0, "")
        again = finished(["predict", "model.condens", "new.csv"], houses)
        assert found.out == again.out
        assert len(pd.read_csv(houses / "out")) == 40

    def test_a_closed_pipe_is_quiet(self, houses):
        pipe = houses / "pipe"
        os.mkfifo(pipe)
        command = ["sample", "model.condens", "new.csv", "-n", "20000"]
        with started(command, houses, stdout=pipe) as process:
            with pipe.open("rb") as reader:
                assert reader.read(4) == b"row,"
            process.join(runs.PATIENCE)
            assert process.exitcode in (1, 141)
        assert (houses / "err").read_text() == ""

    @pytest.mark.slow
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

    @pytest.mark.slow
    @pytest.mark.usefixtures("houses")
    def test_a_million_rows_take_no_more_memory_than_some(self):
        write_houses(Path("some.csv"), rows=20_000)
        text = Path("some.csv").read_text()
        header, rows = text.split("\n", 1)
        Path("many.csv").write_text("\n".join([header, *([rows.rstrip("\n")] * 50), ""]))
        used = {}
        for name in ("some", "many"):
            command = ["predict", "model.condens", f"{name}.csv", "-o", f"{name}.parquet"]
            with subprocess.Popen([sys.executable, "-m", "condens", *command]) as process:
                used[name] = os.wait4(process.pid, 0)[2].ru_maxrss / 1024
        assert len(pd.read_parquet("many.parquet")) == 1_000_000
        assert used["many"] < used["some"] + 200  # MB; the rows and their answers take more


class TestLaunched:
    """What a process does that torchrun started among others."""

    @pytest.fixture
    def launched(self, monkeypatch):
        def launched(rank):
            # Nobody to meet: joining would be an error.
            for name in ("MASTER_ADDR", "MASTER_PORT"):
                monkeypatch.delenv(name, raising=False)
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", "2")

        return launched

    @pytest.mark.usefixtures("houses")
    @pytest.mark.parametrize(
        "command",
        [("info", "model.condens"), ("evaluate", "model.condens", "new.csv", "--html", "new.html")],
    )
    def test_a_command_of_one_is_that_of_process_0(self, call, launched, command):
        launched(1)
        assert call(*command) == (0, "", "")
        assert not Path("new.html").exists()
        launched(0)
        code, out, err = call(*command)
        assert (code, err.splitlines()[0]) == (
            0,
            f"{command[0]} is for one process: the others have nothing to do.",
        )
        assert out

    @pytest.mark.parametrize("command", ["fit", "tune"])
    def test_standard_input_is_refused(self, call, launched, command):
        launched(0)
        code, _, err = call(command, "-", *FIT, "-o", "never.condens")
        assert code == 1
        assert "standard input is to be read by 2 processes, but only one of them" in err


def parts_of(path):
    """Return what a model file holds, without times of the clock."""
    document, tensors = read(path)
    for epoch in document["history"]["epochs"]:
        del epoch["seconds"]
    return document, {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}
