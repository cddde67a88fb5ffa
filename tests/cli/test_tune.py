"""`condens tune` as a shell calls it: killed, run twice at once, and on a server."""

import os
import re
import signal
import sqlite3
import tomllib
import traceback
from contextlib import ExitStack
from urllib.parse import quote

import numpy as np
import optuna
import pytest
from helpers import postgres, runs
from helpers.commands import finished, started, write_houses
from optuna.trial import TrialState

import condens

SPACE = """
[model]
width = 8
depth = 1
shortcut = false
n_components = [1, 2]

[training]
learning_rate = {low = 0.001, high = 0.02, log = true}
"""
TUNE = ["tune", "houses.csv", "-t", "lat", "-t", "lon", "--members", "1", "--space", "space.toml"]
MODEL = ["-o", "tuned.condens"]
# So many that a process can be killed in the middle.
LONG = ["--epochs", "100000"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONDENS_STUDY_URL", raising=False)
    write_houses(tmp_path / "houses.csv")
    (tmp_path / "space.toml").write_text(SPACE)
    return tmp_path


def trials_of(path, name="tuned.condens"):
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    try:
        return optuna.load_study(study_name=name, storage=storage).trials
    finally:
        storage.remove_session()
        storage.engine.dispose()


def test_ends_with_trials_a_gain_a_verdict_and_settings(place, call):
    code, out, err = call(*TUNE, "--epochs", "4", "--trials", "3", *MODEL)
    assert code == 0, err
    assert [line for line in err.splitlines() if not line.startswith("Trial ")] == []
    assert err.startswith("Trial 0: validation NLL ")
    assert "Study tuned.condens in tuned.condens.study: 3 complete, 0 pruned, 0 failed." in out
    assert "0 (defaults)" in out
    assert re.search("Gained over the defaults, in nats a row|The defaults are as good", out)
    assert "Judged by 24 rows that were not fitted:" in out
    assert {path.name for path in place.iterdir()} == {
        *("houses.csv", "space.toml", "tuned.condens", "tuned.condens.study")
    }
    model = condens.load(place / "tuned.condens")
    assert model.notes_["tuning"]["trials"] == 3
    assert model.notes_["held_out"]["rows"] == 24
    # The settings that are printed make the same model.
    settings = out[out.index("[model]") :]
    assert tomllib.loads(settings)["training"]["epochs"] == 4
    (place / "found.toml").write_text(settings)
    fit = ["fit", "houses.csv", "-t", "lat", "-t", "lon", "--settings", "found.toml"]
    assert call(*fit, "-o", "again.condens").code == 0
    again = condens.load(place / "again.condens")
    assert model.settings == again.settings
    tensors = zip(model.network_.parameters(), again.network_.parameters(), strict=True)
    assert all(np.array_equal(*(t.detach().numpy() for t in pair)) for pair in tensors)
    # More trials go on from there.
    assert "exists, but nothing is overwritten" in call(*TUNE, "--trials", "4", *MODEL).err
    code, out, err = call(*TUNE, "--epochs", "4", "--trials", "4", *MODEL, "--force")
    assert (code, err.count("Trial")) == (0, 1), err
    code, out, err = call(*TUNE, "--epochs", "4", "--trials", "4", *MODEL, "--force")
    assert (code, err, out) == (0, "", "Another process has written the model to tuned.condens.\n")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--storage-env", "NOTHING"], "--storage-env names NOTHING, which is not set"),
        (["--study", "a\tb"], r"--study is 'a\tb', but a text in one line"),
        (["--validation", "0.01"], "--validation is 0.01, which leaves"),
        (["--space", "no.toml"], "no.toml: No such file or directory"),
        (["--space", "bad.toml"], "bad.toml: [model] has 'witdh', but"),
        (["--space", "epochs.toml", "--epochs", "3"], "--epochs is 3, and epochs.toml searches"),
        (["--test", "1"], "--test is 1, but"),
        (["-o", "houses.csv", "--force"], "houses.csv is a file that this command reads"),
        (["-o", "space.toml", "--force"], "space.toml is a file that this command reads"),
        (["-o", "directory"], "directory.study cannot hold a study (Is a directory)"),
        (["-o", "text"], "text.study does not answer as a study (file is not a database)"),
        (["-o", "file"], "file.trials is a file, but trials keep their state in a directory"),
        (["-o", "nowhere/m"], "nowhere/m is in no directory"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_errors_are_one_line(place, call, more, message):
    (place / "bad.toml").write_text("[model]\nwitdh = [1, 2]\n")
    (place / "epochs.toml").write_text("[training]\nepochs = [1, 2]\n")
    (place / "directory.study").mkdir()
    (place / "file.trials").write_text("")
    (place / "text.study").write_text("no database, but a text\n" * 100)
    code, out, err = call(*TUNE, *MODEL, "--epochs", "1", *more)
    assert (code, out, err.count("\n")) == (1, "", 1), err
    assert err.startswith(f"Error: {message}")
    assert not [*place.glob("*.condens*")]


@pytest.mark.slow
def test_another_table_is_refused(place, call):
    assert call(*TUNE, "--epochs", "1", "--trials", "1", *MODEL).code == 0
    write_houses(place / "houses.csv", seed=1)
    code, _, err = call(*TUNE, "--epochs", "1", "--trials", "1", *MODEL, "--force")
    assert (code, err.count("\n")) == (1, 1)
    assert "study 'tuned.condens' in tuned.condens.study is one of another table" in err
    assert call(*TUNE, "--epochs", "1", "--trials", "1", "-o", "other.condens").code == 0
    for seed in ("1", "2"):  # which has other test rows too
        found = call(*TUNE, *("--epochs", "1", "-o", "other.condens", "--force", "--seed", seed))
        assert "is one of another seed, but" in found.err


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("no url", "holds no URL"),
        ("postgresql+psycopg://u:hunter2@127.0.0.1:1/d", "Connection refused"),
        ("postgresql+psycopg://u:hunter2@x@127.0.0.1:1/d", "cannot be read"),
        ("nothing://u:hunter2@127.0.0.1:1/d", "begins with 'nothing'"),
    ],
)
def test_no_password_is_printed(place, call, monkeypatch, url, word):
    monkeypatch.setenv("MY_URL", url)
    code, out, err = call(*TUNE, *MODEL, "--storage-env", "MY_URL")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert word in err
    assert "hunter2" not in err
    from condens.cli.app import run
    from condens.errors import CondensError

    with pytest.raises(CondensError) as raised:
        run([*TUNE, *MODEL, "--storage-env", "MY_URL", "--debug"])
    assert "hunter2" not in "".join(traceback.format_exception(raised.value))


def log_of(place):
    return [*place.glob("tuned.condens.trials/*/log.jsonl")]


def kill_in_the_middle(place, command, number=signal.SIGKILL):
    """Start a command, and kill it after some epochs of its first trial."""
    with started(command, place) as process:
        runs.wait_for(lambda: any(len(log.read_text().splitlines()) > 3 for log in log_of(place)))
        os.kill(process.pid, number)
        process.join(runs.PATIENCE)
        return process.exitcode


@pytest.mark.slow
def test_a_killed_trial_is_taken_up_where_it_was(place, call):
    quick = [*TUNE, "--epochs", "40", "--trials", "1", "--grace", "2"]
    assert kill_in_the_middle(place, [*quick, *MODEL]) == -signal.SIGKILL
    assert [t.state for t in trials_of(place / "tuned.condens.study")] == [TrialState.RUNNING]
    code, _, err = call(*quick, *MODEL)
    assert (code, err.count("\n")) == (0, 1), err
    killed, again = trials_of(place / "tuned.condens.study")
    assert (killed.state, again.state) == (TrialState.FAIL, TrialState.COMPLETE)
    assert again.user_attrs["killed"] == 1
    assert not (place / "tuned.condens.trials").exists()
    # What an undisturbed search finds.
    assert call(*quick, "-o", "whole.condens").code == 0
    (whole,) = trials_of(place / "whole.condens.study", "whole.condens")
    assert again.value == whole.value
    assert again.intermediate_values == whole.intermediate_values


@pytest.mark.slow
def test_ctrl_c_gives_the_trial_back(place):
    command = [*TUNE, *LONG, "--trials", "2", *MODEL]
    assert kill_in_the_middle(place, command, signal.SIGINT) == 130
    err = (place / "err").read_text()
    assert "Stopped. The study is kept: the same command goes on with it." in err
    assert "Traceback" not in err
    given_up, waiting = trials_of(place / "tuned.condens.study")
    assert (given_up.state, waiting.state) == (TrialState.FAIL, TrialState.WAITING)
    assert waiting.user_attrs["killed"] == 0
    assert log_of(place)  # to go on from
    assert not (place / "tuned.condens").exists()


def run_together(place, commands):
    """Run commands at once, each with streams of its own; return exit codes and messages."""
    with ExitStack() as stack:
        processes = []
        for number, command in enumerate(commands):
            own = place / str(number)
            own.mkdir()
            for name in ("houses.csv", "space.toml"):
                (own / name).write_bytes((place / name).read_bytes())
            processes.append(stack.enter_context(started(command, own)))
        for process in processes:
            process.join(runs.PATIENCE)
        codes = [process.exitcode for process in processes]
    texts = [
        (place / str(n) / "err").read_text() + (place / str(n) / "out").read_text()
        for n in range(len(commands))
    ]
    return codes, texts


@pytest.mark.slow
def test_two_processes_share_the_trials(place, call):
    command = [*TUNE, "--epochs", "3", "--trials", "5", *MODEL]
    with started(command, place) as process:
        code, out, err = call(*command)
        process.join(runs.PATIENCE)
        assert (code, process.exitcode) == (0, 0), err
    texts = [out + err, "".join((place / name).read_text() for name in ("out", "err"))]
    done = [t for t in trials_of(place / "tuned.condens.study") if "surplus" not in t.user_attrs]
    assert [t.state.is_finished() for t in done] == [True] * 5
    ended = [n for text in texts for n in re.findall(r"^Trial (\d+): ", text, re.MULTILINE)]
    assert len(ended) == len({*ended}) == 5
    assert sum("Study tuned.condens in" in text for text in texts) == 1
    assert condens.load(place / "tuned.condens").notes_["tuning"]["trials"] == 5


@pytest.mark.slow
def test_many_processes_begin_a_study_at_once(place):
    command = [*TUNE, "--epochs", "1", "--trials", "30", "-o", place / "tuned.condens"]
    codes, texts = run_together(place, [command] * 6)
    assert codes == [0] * 6, texts
    done = [t for t in trials_of(place / "tuned.condens.study") if "surplus" not in t.user_attrs]
    assert len(done) == 30
    begun = [n for text in texts for n in re.findall(r"^Trial (\d+): ", text, re.MULTILINE)]
    assert len(begun) == len({*begun}) == 30
    assert len([t for t in done if t.user_attrs.get("default")]) == 1


@pytest.mark.slow
def test_killed_at_any_moment_a_study_goes_on(place):
    """Kill a process after more and more writes of its study, and let the next one go on."""
    command = [*TUNE, "--epochs", "2", "--trials", "4", "--grace", "2", *MODEL]
    study = place / "tuned.condens.study"
    rng = np.random.default_rng(0)
    for _ in range(12):
        if (place / "tuned.condens").exists():
            break
        with started(command, place) as process:
            if not study.exists():
                runs.wait_for(study.exists)
            process.join(float(rng.uniform(0.0, 1.5)))
            if process.exitcode is None:
                os.kill(process.pid, signal.SIGKILL)
    if not (place / "tuned.condens").exists():
        found = finished(command, place)
        assert found.code == 0, found.err
    origins = {t.user_attrs.get("origin", t.number) for t in trials_of(study)}
    assert len(origins) == 4
    with sqlite3.connect(study) as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
    connection.close()


@pytest.mark.slow
def test_a_server_shared_by_processes_one_of_which_is_killed(place):
    with postgres.server() as (host, port):
        secret = quote(postgres.PASSWORD, safe="")
        url = f"postgresql+psycopg://{postgres.USER}:{secret}@{host}:{port}/postgres"
        command = ["--epochs", "300", "--trials", "4", "--grace", "2", "-o", "tuned.condens"]
        environment = {"CONDENS_STUDY_URL": url}
        first = place / "first"
        first.mkdir()
        for name in ("houses.csv", "space.toml"):
            (first / name).write_bytes((place / name).read_bytes())
        with started([*TUNE, *command], first, variables=environment) as process:
            runs.wait_for(lambda: any(first.glob("tuned.condens.trials/*/log.jsonl")))
            os.kill(process.pid, signal.SIGKILL)
            process.join(runs.PATIENCE)
        with started([*TUNE, *command], place, variables=environment) as process:
            process.join(runs.PATIENCE)
            assert process.exitcode == 0, (place / "err").read_text()
        text = "".join((place / name).read_text() for name in ("out", "err"))
        assert f"in postgresql+psycopg://{postgres.USER}:***@{host}:{port}/postgres: " in text
        assert (text + (first / "err").read_text()).count(secret) == 0
        assert postgres.PASSWORD not in text + (first / "err").read_text()
        model = (place / "tuned.condens").read_bytes()
        assert secret.encode() not in model
        assert postgres.PASSWORD.encode() not in model
        assert condens.load(place / "tuned.condens").notes_["tuning"]["trials"] == 4
        assert not (place / "tuned.condens.study").exists()
