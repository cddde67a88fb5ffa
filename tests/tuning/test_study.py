"""Searches in this process: what is compared, what is returned, and whose study it is."""

import json
import math
import os
import subprocess
import sys
import time

import numpy as np
import optuna
import pandas as pd
import polars
import pyarrow as pa
import pytest
import torch
from optuna.trial import TrialState

from condens.errors import ArgumentError, StudyError
from condens.tuning import Range, Study, tune
from condens.tuning import study as study_module

SPACE = {
    "learning_rate": Range(1e-3, 2e-2, log=True),
    "n_components": [1, 2],
    "width": 8,
    "depth": 1,
    "epochs": 3,
    "shortcut": False,
}
# Every step of a network with such noise has a loss that is not finite.
DIVERGES = {"target_noise": 1e38, "batch_size": 8, "epochs": 5, "width": 8, "shortcut": False}


def rows(n=120, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    return x, np.stack([x[:, 0], x[:, 1] - x[:, 0]], 1) + 0.2 * rng.normal(size=(n, 2))


@pytest.fixture
def open_study(tmp_path):
    def open_study(*table, **changes):
        options = {"space": SPACE, "storage": tmp_path / "study.db", "n_members": 1}
        return Study(*(table or rows()), **(options | changes))

    return open_study


def frozen(study):
    return study.study.trials


@pytest.fixture(scope="module")
def found():
    return tune(*rows(), space=SPACE, trials=4, n_members=2)


class TestSearching:
    def test_the_defaults_come_first_and_nothing_worse_is_chosen(self, found):
        (default,) = [trial for trial in found.trials if trial.number == 0]
        assert default.parameters == {"learning_rate": 0.008}  # one component is not the default
        assert found.best.nll <= default.nll
        assert found.model.history_.best_nll <= found.default.history_.best_nll
        assert [trial.state for trial in found.trials] == ["complete"] * 4
        assert [t.nll for t in found.trials] == sorted(t.nll for t in found.trials)

    def test_the_model_has_what_was_chosen(self, found):
        assert (found.model.n_members, found.model.width, found.model.random_state) == (2, 8, 0)
        assert found.model.settings.epochs == 3
        assert found.model.directory is None
        assert found.default.settings.learning_rate == 0.008
        if found.model is not found.default:
            assert found.model.settings.learning_rate == found.best.parameters["learning_rate"]

    def test_processes_of_torchrun_have_trials_of_their_own(self, found, monkeypatch):
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "2")  # of which the other is nowhere
        again = tune(*rows(), space=SPACE, trials=1, n_members=2)
        assert again.trials == tuple(trial for trial in found.trials if trial.number == 0)

    @pytest.mark.slow
    def test_the_same_seed_gives_the_same(self, found):
        again = tune(*rows(), space=SPACE, trials=4, n_members=2)
        assert again.trials == found.trials
        assert again.toml == found.toml
        x, y = rows(30, seed=1)
        assert np.array_equal(again.model.score_samples(x, y), found.model.score_samples(x, y))

    @pytest.mark.slow
    def test_trials_that_were_run_count(self, open_study):
        with open_study() as study:
            study.search(2)
            study.search(2)
        with open_study() as study:
            study.search(3)
            assert [t.state for t in study.trials] == ["complete"] * 3

    @pytest.mark.slow
    def test_a_minute_that_is_over_leaves_the_defaults(self, open_study):
        with open_study() as study:
            study.search(5, minutes=0)
            assert [t.number for t in study.trials] == [0]
            assert study.fit().parameters == {
                n: v for n, v in SPACE.items() if n in study.space.fixed
            }

    def test_the_nll_is_that_of_rows_never_trained_on(self, open_study):
        x, y = rows()
        with open_study() as study:
            held = study.division.held
            other = y.copy()
            other[held] += 100.0  # what training saw of them would show
            assert len(held) == 24
            study.search(1)
            nll = study.trials[0].nll
        with open_study(x, other, name="other") as study:
            assert np.array_equal(study.division.held, held)
            study.search(1)
            assert study.trials[0].nll > nll + 5

    @pytest.mark.slow
    def test_whole_groups_are_held_out(self, open_study):
        x, y = rows()
        groups = np.arange(120) // 8
        with open_study(x, y, groups=groups) as study:
            held = {*groups[study.division.held]}
            assert not held & {*groups[study.division.train]}
            study.search(1)
            assert math.isfinite(study.trials[0].nll)

    def test_missing_targets_and_weights(self, open_study):
        x, y = rows(200)
        y[::3, 0] = np.nan
        y[:10] = np.nan
        weights = np.ones(200)
        weights[::5] = 0
        with open_study(x, y, weights) as study:
            study.search(2)
            assert math.isfinite(study.trials[0].nll)
            assert study.fit().model.network_ is not None

    @pytest.mark.parametrize(
        "kind",
        [
            "pyarrow",
            *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("pandas", "polars")),
            *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("lists", "tensors")),
        ],
    )
    def test_any_table_is_the_same_study(self, open_study, kind):
        x, y = rows()
        names, targets = ["a", "b"], ["u", "v"]
        frames = pd.DataFrame(x, columns=names), pd.DataFrame(y, columns=targets)
        with open_study(*frames) as study:
            study.search(1)
            known = study.trials
        other = {
            "pandas": frames,
            "polars": tuple(map(polars.from_pandas, frames)),
            "pyarrow": tuple(map(pa.Table.from_pandas, frames)),
            "lists": (x.tolist(), y.tolist()),
            "tensors": (torch.tensor(x), torch.tensor(y)),
        }[kind]
        named = kind not in ("lists", "tensors")
        with open_study(*other, name="condens" if named else "numbers") as study:
            if named:
                assert study.trials == known
            study.search(2)
            assert len(study.trials) == 2

    def test_categories_that_only_held_out_rows_have(self, open_study):
        x, y = rows()
        with open_study() as study:
            held = study.division.held
        frame = pd.DataFrame(x, columns=["a", "b"])
        frame["kind"] = "usual"
        frame.loc[held[0], "kind"] = "rare"
        frame.loc[held[1], "a"] = np.nan
        with open_study(frame, y, name="odd") as study:
            study.search(2)
            assert [t.state for t in study.trials] == ["complete"] * 2


class TestPruning:
    @pytest.mark.slow
    def test_a_trial_that_is_left_behind_ends_early(self, open_study):
        space = {**SPACE, "learning_rate": Range(1e-7, 1e-2, log=True), "epochs": 12}
        del space["n_components"]
        with open_study(space=space) as study:
            for number in range(4):  # good ones, by hand
                study.study.enqueue_trial({"learning_rate": 0.009 + 1e-4 * number})
            study.study.enqueue_trial({"learning_rate": 1e-7})
            study.search(6)
            (pruned,) = [t for t in study.trials if t.state == "pruned"]
            assert pruned.parameters == {"learning_rate": 1e-7}
            (ended,) = [t for t in frozen(study) if t.state == TrialState.PRUNED]
            assert 2 <= len(ended.intermediate_values) < 12
            assert study.trials[0].state == "complete"
            assert study.fit().best.parameters["learning_rate"] > 1e-3

    @pytest.mark.slow
    def test_at_most_some_epochs_are_reported(self, open_study, monkeypatch):
        monkeypatch.setattr(study_module, "MAX_REPORTS", 2)
        with open_study() as study:
            study.search(1)
            assert [*frozen(study)[0].intermediate_values] == [0, 2]


class TestFailing:
    def test_a_trial_that_cannot_be_fitted_fails_alone(self, open_study):
        space = {
            "covariance": ["full", "low_rank"],
            "rank": [1, 2],
            "width": 8,
            "epochs": 1,
            "shortcut": False,
        }
        with open_study(space=space) as study:
            for covariance in ("full", "low_rank"):
                study.study.enqueue_trial({"covariance": covariance, "rank": 1})
            study.search(3)
            failed, good = study.trials[-1], study.trials[0]
            assert (failed.state, failed.parameters["covariance"]) == ("failed", "full")
            assert "rank is 1 with covariance='full'" in failed.reason
            assert good.state == "complete"

    @pytest.mark.slow
    def test_training_that_diverges_is_a_reason(self, open_study):
        with open_study(space={**DIVERGES, "target_noise": [1e37, 1e38]}) as study:
            study.search(2)
            good, bad = study.trials
            assert (good.state, bad.state) == ("complete", "failed")
            assert bad.reason.startswith("The loss or its gradient was not finite")

    @pytest.mark.slow
    def test_a_search_in_which_all_fails_ends(self, open_study):
        with (
            open_study(space={**DIVERGES, "depth": [1, 2]}) as study,
            pytest.raises(StudyError, match=r"has no trial that ended; the last one failed .The"),
        ):
            study.search(9)

    def test_unusable_data_are_refused_before_the_first_trial(self, open_study, tmp_path):
        x, y = rows()
        y[3, 0] = np.inf
        with pytest.raises(ArgumentError, match="y"):
            open_study(x, y)
        assert not (tmp_path / "study.db").exists()

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"validation_fraction": 0.1}, "leaves 108 rows to train on and 12 to judge by"),
            ({"validation_fraction": 1.0}, "validation_fraction is 1.0"),
            ({"name": ""}, "name is ''"),
            ({"name": "a\nb"}, "a text in one line"),
            ({"name": "x" * 300}, "1 to 200 characters"),
            ({"name": 3}, "name is 3"),
            ({"random_state": None}, "random_state is None"),
            ({"grace_seconds": 0}, "grace_seconds is 0"),
            ({"n_members": 0}, "n_members is 0"),
            ({"groups": np.zeros(120)}, "leaves 0 rows to train on and 120"),
        ],
    )
    def test_arguments_are_refused_by_name(self, open_study, changes, message):
        with pytest.raises(ArgumentError, match=message):
            open_study(**changes)

    def test_budgets_are_refused_by_name(self, open_study):
        with open_study() as study:
            with pytest.raises(ArgumentError, match="trials is 0"):
                study.search(0)
            with pytest.raises(ArgumentError, match="minutes is -1"):
                study.search(1, minutes=-1)
            with pytest.raises(StudyError, match=r"has no trial that ended .none was run"):
                study.fit()


class TestJoining:
    def test_another_table_is_refused(self, open_study):
        open_study().close()
        x, y = rows(seed=1)
        with pytest.raises(StudyError, match=r"is one of another table, or .* another name"):
            open_study(x, y)

    @pytest.mark.parametrize(
        ("changes", "word"),
        [
            ({"random_state": 1}, "seed"),
            ({"validation_fraction": 0.3}, "validation fraction"),
            ({"space": {**SPACE, "width": 16}}, "search space"),
            ({"target_transform": (-100, 100)}, "target transform"),
            ({"groups": np.arange(120)}, "table, or other .* groups"),
        ],
        ids=str,
    )
    def test_other_trials_are_refused(self, open_study, changes, word):
        open_study().close()
        with pytest.raises(StudyError, match=f"is one of another {word}"):
            open_study(**changes)

    def test_the_names_of_categories_count(self, open_study):
        x, y = rows()
        frame = pd.DataFrame({"kind": np.where(x[:, 0] > 0, "a", "b")})
        open_study(frame, y).close()
        with pytest.raises(StudyError, match="another table"):
            open_study(frame.replace({"a": "c"}), y)

    def test_all_processes_have_the_patience_of_the_first(self, open_study):
        open_study(grace_seconds=9).close()
        with open_study(grace_seconds=5) as study:
            assert study.grace == study.storage.backend.grace_period == 9

    @pytest.mark.parametrize("name", ["../ö'\";--{x}%s", "名前"])
    def test_names_may_hold_anything_in_one_line(self, open_study, name):
        open_study(name=name).close()
        with open_study(name=name) as study:
            assert study.name == name

    @pytest.mark.parametrize("name", ["a {x}?b#c%20", "ü"])
    def test_so_may_paths(self, tmp_path, name):
        (tmp_path / name).mkdir()
        path = tmp_path / name / f"{name}.db"
        Study(*rows(), storage=path, space=SPACE).close()
        assert path.is_file()

    def test_what_is_no_study_is_refused(self, tmp_path):
        (tmp_path / "text").write_text("this is a text, and no database at all\n" * 100)
        (tmp_path / "directory").mkdir()
        os.mkfifo(tmp_path / "pipe")
        for name, reason in (
            ("text", "file is not a database"),
            ("directory", "Is a directory"),
            ("pipe", "Not a regular file"),
            ("nowhere/study", "No such file"),
        ):
            with pytest.raises(StudyError, match=reason):
                Study(*rows(), storage=tmp_path / name, space=SPACE)
        assert (tmp_path / "text").read_text().startswith("this is a text")


class TestTakingUp:
    """What dead processes leave, as they leave it."""

    @pytest.mark.slow
    def test_a_stale_trial_is_run_again(self, open_study):
        with open_study(grace_seconds=2) as dead:
            trial = optuna.load_study(study_name="condens", storage=dead.storage.backend)
            with pytest.warns(UserWarning, match="Heartbeat"):
                asked = trial.ask()
            asked.set_user_attr("begun", True)
            dead.storage.backend.record_heartbeat(asked._trial_id)
        with open_study(grace_seconds=2) as study:
            began = time.monotonic()
            study.search(2)
            assert time.monotonic() - began > 2
            assert [(t.number, t.state) for t in sorted(study.trials)] == [
                (0, "complete"),
                (1, "complete"),
            ]
            attempts = [t for t in frozen(study) if t.user_attrs.get("default")]
            assert [t.state for t in attempts] == [TrialState.FAIL, TrialState.COMPLETE]

    @pytest.mark.slow
    def test_so_is_one_that_never_gave_a_sign(self, open_study):
        with open_study(grace_seconds=2) as dead, pytest.warns(UserWarning, match="Heartbeat"):
            dead.study.ask()
        with open_study(grace_seconds=2) as study:
            study.search(1)
            assert [t.state for t in study.trials] == ["complete"]

    @pytest.mark.slow
    def test_one_that_was_failed_and_not_given_back(self, open_study):
        with open_study() as dead, pytest.warns(UserWarning, match="Heartbeat"):
            dead.study.tell(dead.study.ask(), state=TrialState.FAIL)
        with open_study() as study:
            study.search(1)
            assert [t.state for t in study.trials] == ["complete"]

    @pytest.mark.slow
    def test_one_that_kills_its_workers_is_given_up(self, open_study):
        with open_study() as study:
            with pytest.warns(UserWarning, match="Heartbeat"):
                trial = study.study.ask()
            trial.set_user_attr("killed", study_module.MAX_KILLED)
            study.study.tell(trial, state=TrialState.FAIL)
            study.search(2)
            bad, good = sorted(study.trials)
            assert (bad.state, good.state) == ("failed", "complete")
            assert "was killed 4 times" in bad.reason
            assert study.fit().best is not None

    @pytest.mark.slow
    def test_a_study_whose_maker_was_killed_at_once(self, open_study):
        open_study(name="first", grace_seconds=2).close()
        with open_study(name="first", grace_seconds=2) as study:
            optuna.create_study(storage=study.storage.backend, study_name="second")
        with open_study(name="second", grace_seconds=2) as study:
            study.search(1)
            assert study.trials[0].number == 0

    def test_a_process_taken_for_dead_leaves_the_trial_to_others(self, open_study):
        with open_study() as study:
            chosen = []

            def report(trial):
                chosen.append(trial)

            run = study._run

            def taken(trial, *rest):  # by another process, in the middle
                study._run = run
                study.study.tell(trial, state=TrialState.FAIL)
                return run(trial, *rest)

            study._run = taken
            study.search(2, report=report)
            assert [t.state for t in study.trials] == ["complete"] * 2
            assert [t.number for t in chosen] == [1, 0]

    def test_an_interruption_gives_the_trial_back(self, open_study):
        with open_study() as study:

            def interrupt(trial):
                raise KeyboardInterrupt

            study._nll = interrupt
            with pytest.raises(KeyboardInterrupt):
                study.search(1)
            assert [t.state for t in study.trials] == ["waiting"]
        with open_study() as study:
            study.search(1)
            assert [(t.number, t.state) for t in study.trials] == [(0, "complete")]
            assert frozen(study)[-1].user_attrs["killed"] == 0

    @pytest.mark.slow
    def test_a_full_disk_does_not_end_a_trial(self, open_study, tmp_path):
        (tmp_path / "file").write_text("")
        with open_study(directory=tmp_path / "file") as study:
            study.search(1)
            assert study.trials[0].state == "complete"


@pytest.mark.slow
def test_without_optuna_the_extra_is_named():
    code = """
import sys
sys.modules["optuna"] = None
import condens
condens.tuning
try:
    condens.tuning.tune
except ImportError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "tune needs optuna. Install it: pip install 'condens[tune]'.\n", run.stderr


@pytest.mark.slow
def test_importances_are_fractions(open_study, monkeypatch):
    monkeypatch.setattr(study_module, "MIN_IMPORTANCE_TRIALS", 4)
    space = {**SPACE, "epochs": 1, "n_components": [1, 3], "learning_rate": Range(1e-5, 1e-2)}
    with open_study(space=space) as study:
        study.search(6)
        found = study.fit()
        assert {*found.importances} == {"learning_rate", "n_components"}
        assert sum(found.importances.values()) == pytest.approx(1.0)
        assert json.dumps(found.importances)
