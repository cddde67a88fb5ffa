"""`tune`: a search over parameters that many processes may share, and the model it leads to."""

import hashlib
import json
import math
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import optuna
import torch
from numpy.typing import ArrayLike, NDArray
from optuna.exceptions import DuplicatedStudyError, ExperimentalWarning, UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState
from sklearn.utils import _safe_indexing

from condens.data import Rows, TableLike
from condens.data.frames import is_frame, take_rows
from condens.data.groups import Groups, number_groups, read_groups
from condens.errors import (
    ArgumentError,
    CondensWarning,
    RunDirectoryError,
    StudyError,
    TrainingError,
)
from condens.estimator.inputs import Inputs, divide
from condens.estimator.regressor import MDNRegressor
from condens.files import as_path
from condens.scalars import as_fraction, as_real, as_whole, refused
from condens.training import Epoch, default_settings
from condens.training.distributed import alone
from condens.transforms.choice import TargetTransform
from condens.tuning.space import (
    MODEL_NAMES,
    TRAINING_NAMES,
    Dimension,
    Space,
    Value,
    default_space,
    default_values,
    to_toml,
)
from condens.tuning.storage import Storage

# Rows that trials are compared by, at least: with fewer, chance decides.
MIN_VALIDATION_ROWS = 20
# Epochs of a trial that are reported to the others, at most: each costs a write.
MAX_REPORTS = 100
# Trials that end before any is stopped early, and the part of the epochs that each gets at least.
# By the median, which assumes nothing about the course of a loss: successive halving would rank
# trials before the rate has fallen, and large rates look bad until then.
TRIALS_BEFORE_PRUNING, EPOCHS_BEFORE_PRUNING = 5, 0.1
# How often a trial may lose its worker before it is given up: it may be what kills them.
MAX_KILLED = 3
# Trials that may fail in a row at the beginning, before the search is given up.
MAX_FIRST_FAILURES = 5
# Seconds between two looks at what others do, and before a trial that nobody has is taken up.
POLL_SECONDS, ORPHAN_SECONDS = 0.5, 1.0
# Trials that importances need, at least.
MIN_IMPORTANCE_TRIALS = 10
MAX_NAME = 200


class Trial(NamedTuple):
    """A trial of a study.

    Args:
        number: of the trial, from 0, which has the defaults.
        state: "complete", "pruned", "failed", "running" or "waiting".
        nll: of the validation rows, NaN unless it is complete.
        parameters: that were searched.
        reason: why it failed, "" otherwise.
    """

    number: int
    state: str
    nll: float
    parameters: dict[str, Value]
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Tuned:
    """What a search has led to.

    Attributes:
        model: fitted to all rows, with the parameters that were chosen.
        default: fitted to the same rows with the defaults; `model` itself where these are as good.
        parameters: that were chosen; empty for the defaults.
        trials: all of them, the best first.
        importances: the part of each parameter in what the best trials have in common; empty with
            fewer than ten complete trials.
        toml: the parameters as `condens fit --settings` reads them.
    """

    model: MDNRegressor
    default: MDNRegressor
    parameters: dict[str, Value]
    trials: tuple[Trial, ...]
    importances: dict[str, float]
    toml: str

    @property
    def best(self) -> Trial:
        """The trial with the lowest validation NLL."""
        return self.trials[0]


def tune(
    X: TableLike,  # noqa: N803
    y: TableLike,
    sample_weight: ArrayLike | None = None,
    *,
    groups: ArrayLike | None = None,
    trials: int = 50,
    minutes: float | None = None,
    space: Mapping[str, Dimension] | None = None,
    storage: str | os.PathLike[str] | None = None,
    name: str = "condens",
    directory: str | os.PathLike[str] | None = None,
    validation_fraction: float = 0.2,
    target_transform: TargetTransform = None,
    n_members: int = 5,
    random_state: int = 0,
    grace_seconds: int = 60,
    report: Callable[[Trial], object] | None = None,
) -> Tuned:
    """Search for parameters with the lowest validation NLL, and fit a model with them.

    The first trial has the defaults. Every trial is one network, judged by the same rows. The model
    is an ensemble fitted to all rows, and so is one with the defaults: whichever has the lower
    validation loss, on the members' own folds, is returned. Keep test rows out of X and y.

    Args:
        X, y, sample_weight, groups: as `MDNRegressor.fit` takes them.
        trials: of the study, by all processes together, those of earlier calls included.
        minutes: after which no trial begins.
        space: what to search, see `Space`; by default that of `default_space`.
        storage: the path of an SQLite file, or the URL of a server. Processes with the same one,
            the same `name` and the same rows share the trials; a call that was killed goes on. By
            default the study is forgotten.
        name: of the study.
        directory: where unfinished trials keep their state.
        validation_fraction: of the rows, or of the groups, that trials are judged by.
        target_transform: as `MDNRegressor` takes it.
        n_members: of the model.
        random_state: a seed; with one process it gives the same result again.
        grace_seconds: without a sign of life, after which a process is taken for dead, and its
            trial taken up by another; that of the process that made the study counts.
        report: called with every trial that ends here.

    Ctrl-C gives the running trial back, for the next call, and raises `KeyboardInterrupt`.

    >>> import numpy as np
    >>> from condens.tuning import Range, tune
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 1))
    >>> y = X + 0.1 * rng.normal(size=(200, 1))
    >>> space = {"learning_rate": Range(1e-3, 1e-2, log=True), "n_components": [1, 2], "epochs": 3}
    >>> found = tune(X, y, trials=2, space=space, n_members=1)
    >>> len(found.trials), found.model.predict(X).shape
    (2, (200, 1))
    """
    with (
        tempfile.TemporaryDirectory() as nowhere,
        Study(
            X,
            y,
            sample_weight,
            groups=groups,
            space=space,
            storage=Path(nowhere, "study") if storage is None else storage,
            name=name,
            directory=directory,
            validation_fraction=validation_fraction,
            target_transform=target_transform,
            n_members=n_members,
            random_state=random_state,
            grace_seconds=grace_seconds,
        ) as study,
    ):
        study.search(trials, minutes, report=report)
        return study.fit()


class Study:
    """A search that many processes may share; the arguments are those of `tune`.

    >>> with Study(X, y, storage="study.db") as study:  # doctest: +SKIP
    ...     study.search(trials=20)
    ...     tuned = study.fit()
    """

    def __init__(
        self,
        X: TableLike,  # noqa: N803
        y: TableLike,
        sample_weight: ArrayLike | None = None,
        *,
        storage: str | os.PathLike[str],
        groups: ArrayLike | None = None,
        space: "Mapping[str, Dimension] | Space | None" = None,
        name: str = "condens",
        directory: str | os.PathLike[str] | None = None,
        validation_fraction: float = 0.2,
        target_transform: TargetTransform = None,
        n_members: int = 5,
        random_state: int = 0,
        grace_seconds: int = 60,
    ) -> None:
        self.name = _check_name(name)
        self.n_members = as_whole("n_members", n_members, 1, fix="Pass a number such as 5.")
        self.seed = as_whole("random_state", random_state, 0, 2**32 - 1, fix="Pass 0, or another.")
        grace = as_whole("grace_seconds", grace_seconds, 2, fix="Pass 60, for instance.")
        fraction = as_fraction(
            "validation_fraction", validation_fraction, fix="Pass 0.2, for instance."
        )
        self.table, self.transform = (X, y, sample_weight), target_transform
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CondensWarning)  # the fit says it again
            inputs, self.rows = Inputs.fit(X, y, sample_weight, target_transform)
        self.groups = None if groups is None else read_groups(groups, len(self.rows))
        self.division = _divide(self.rows, self.groups, fraction, self.seed)
        self.n_rows = int(self.rows.useful[torch.from_numpy(self.division.train)].sum())
        self.space = (
            space
            if isinstance(space, Space)
            else Space(default_space(self.n_rows) if space is None else space)
        )
        self.directory = None if directory is None else as_path("directory", directory)
        self._identity = {
            "seed": self.seed,
            "validation fraction": fraction,
            "target transform": str(inputs.transforms),
            "search space": self.space.to_dict(),
            "table, or other columns, weights, groups or test rows": _fingerprint(
                inputs, self.rows, self.groups
            ),
        }
        self._seen: dict[tuple[str, int], float] = {}
        self._failures = 0
        self._verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            self.storage = Storage(storage, grace)
            with self._talking():
                self.study = self._join()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the storage."""
        optuna.logging.set_verbosity(self._verbosity)
        if hasattr(self, "storage"):
            with suppress(Exception):
                self.storage.close()

    @property
    def label(self) -> str:
        """Where the study is, without a password."""
        return self.storage.label

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials, the best first, then those that were pruned, and the others."""
        with self._talking():
            found = [_trial(number, each) for number, each in _chains(self._trials()).items()]
        order = ("complete", "pruned", "running", "waiting", "failed")
        return tuple(
            sorted(found, key=lambda t: (order.index(t.state), t.nll if t.nll == t.nll else 0.0))
        )

    @property
    def is_running(self) -> bool:
        """Whether another process is at work on a trial."""
        return any(trial.state == "running" for trial in self.trials)

    # Searching.

    def search(
        self,
        trials: int = 50,
        minutes: float | None = None,
        *,
        report: Callable[[Trial], object] | None = None,
    ) -> None:
        """Run trials until the study has as many, or the minutes are over; wait for the others'."""
        budget = as_whole("trials", trials, 1, fix="Pass 50, for instance.")
        end = math.inf
        if minutes is not None:
            seconds = 60 * as_real(
                "minutes", minutes, "0 or more was expected", lambda m: m >= 0, fix="Pass 10."
            )
            end = time.monotonic() + seconds
        while True:
            with self._talking():
                self._recover()
                chains = _chains(self._trials())
            states = [_state(chain) for chain in list(chains.values())[:budget]]
            # A first trial is run in any case: without one there is no result.
            open_ = len(chains) < budget or "waiting" in states
            first = "complete" not in states and "running" not in states
            if open_ and (time.monotonic() < end or first):
                done = self._attempt(budget)
                if done is not None and report is not None:
                    report(done)
            elif {"running", "orphaned"} & {*states} and time.monotonic() < end + self.grace:
                time.sleep(POLL_SECONDS)
            else:
                return

    @property
    def grace(self) -> int:
        """Seconds without a sign of life after which a process is taken for dead."""
        return self.storage.grace

    def _attempt(self, budget: int) -> Trial | None:
        """Take a trial and run it to its end; None if there was none to take."""
        with self._talking(), _quiet():
            trial = self.study.ask()
            trial_id = trial._trial_id
            chains = _chains(self._trials())
            known = self._known(trial.number)
            origin = known.user_attrs.get("origin", trial.number)
            place = [*chains].index(origin)
            if place >= budget:  # others were faster
                trial.set_user_attr("surplus", True)
                self.study.tell(trial, state=TrialState.FAIL)
                return None
            self.storage.backend.record_heartbeat(trial_id)
            trial.set_user_attr("begun", True)
        try:
            with self.storage.beating(trial_id):
                used = self._choose(trial, known, place)
                value, state, reason = self._run(trial, known, used)
                with self._talking():
                    if reason:
                        trial.set_user_attr("reason", reason)
                    self.study.tell(trial, value, state=state, skip_if_finished=True)
                    found = self._known(trial.number)
                states = self._place(used, 1)
                if states is not None:
                    shutil.rmtree(states, ignore_errors=True)
        except UpdateFinishedTrialError:  # taken for dead, and taken up by another process
            return None
        except BaseException:
            with suppress(Exception, KeyboardInterrupt):
                self.study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
                self._give_back(self._known(trial.number))
            raise
        self._failures = self._failures + 1 if found.state == TrialState.FAIL else 0
        if self._failures >= MAX_FIRST_FAILURES and not self._best():
            raise StudyError(
                f"study {self.name!r}",
                got=f"has no trial that ended; the last one failed ({reason.rstrip('.')})",
                expected="a search compares trials",
                fix="Look at the data, or search other parameters.",
            )
        return _trial(origin, [found])

    def _choose(self, trial: optuna.Trial, known: FrozenTrial, place: int) -> dict[str, Value]:
        """Return the parameters of a trial, which differ from the defaults."""
        # Of its own for every trial: processes with one seed would all try the same.
        seed = int(np.random.SeedSequence([self.seed, place]).generate_state(1)[0])
        default = known.user_attrs.get("default")
        with self._talking():
            self.study.sampler = optuna.samplers.TPESampler(seed=seed)
            values = {
                name: self.space.suggest(trial, name)
                for name in self.space.searched
                if not default or name in known.system_attrs.get("fixed_params", {})
            }
        return {**self.space.fixed, **({} if default else values)}

    def _run(
        self, trial: optuna.Trial, known: FrozenTrial, used: Mapping[str, Value]
    ) -> tuple[float | None, TrialState, str]:
        """Fit one network; return its validation NLL, the state of the trial, and a reason."""
        default = bool(known.user_attrs.get("default"))
        parameters = self._parameters(used, self.n_rows, 1)
        settings = parameters["settings"] or default_settings(self.n_rows)
        parameters["callbacks"] = self._watch(trial, known, settings.epochs, prunes=not default)
        parameters |= {"splitter": self.division, "store_summary": False}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CondensWarning)
                model = self._fit(used, parameters)
        except optuna.TrialPruned:
            return None, TrialState.PRUNED, ""
        except (TrainingError, MemoryError, torch.OutOfMemoryError) as error:
            return None, TrialState.FAIL, str(error) or "There is not enough memory."
        except ArgumentError as error:
            if default:  # the data are at fault, not the parameters
                raise
            return None, TrialState.FAIL, str(error)
        nll = self._nll(model)
        if not math.isfinite(nll):
            return None, TrialState.FAIL, f"The NLL of the validation rows is {nll:g}."
        return nll, TrialState.COMPLETE, ""

    def _fit(self, values: Mapping[str, Value], parameters: dict[str, Any]) -> MDNRegressor:
        """Fit a model, in a directory of its own, so that it can go on after a kill."""
        for directory in (self._place(values, parameters["n_members"]), None):
            model = MDNRegressor(
                target_transform=self.transform,
                directory=directory,
                random_state=self.seed,
                **parameters,
            )
            try:
                # Processes that torchrun started share the trials, not a trial.
                with alone():
                    model.fit(*self.table, groups=self.groups)
            except RunDirectoryError:  # in use by a process taken for dead, or the disk is full
                if directory is None:
                    raise
            else:
                break
        return model.set_params(directory=None)

    def _place(self, values: Mapping[str, Value], n_members: int) -> Path | None:
        """Return the directory of a model with some parameters, whoever fits it."""
        if self.directory is None:
            return None
        text = json.dumps([self._identity, values, n_members], sort_keys=True)
        return self.directory / hashlib.sha256(text.encode()).hexdigest()[:16]

    def _watch(
        self, trial: optuna.Trial, known: FrozenTrial, epochs: int, *, prunes: bool
    ) -> Callable[[Epoch], None]:
        """Return a callback that reports epochs, and ends a trial that others leave behind."""
        reported, every, last = {*known.intermediate_values}, math.ceil(epochs / MAX_REPORTS), -1
        warmup = math.ceil(EPOCHS_BEFORE_PRUNING * epochs)
        self.study.pruner = optuna.pruners.MedianPruner(TRIALS_BEFORE_PRUNING, warmup)

        def watch(epoch: Epoch) -> None:
            nonlocal last
            # A second network of the same fit begins at 0 again.
            if epoch.epoch <= last or epoch.epoch % every:
                return
            last = epoch.epoch
            with self._talking():
                if epoch.epoch not in reported:
                    trial.report(epoch.validation_nll, epoch.epoch)
                if prunes and trial.should_prune():
                    raise optuna.TrialPruned

        return watch

    def _nll(self, model: MDNRegressor) -> float:
        """Return the mean NLL of the rows that trials are judged by, spread and tail included."""
        held = self.division.held
        X, y = (_take(part, held) for part in self.table[:2])  # noqa: N806
        rows = self.rows.take(torch.from_numpy(held))
        nll, useful = -model.score_samples(X, y), rows.useful.numpy()
        weights = np.ones(len(held)) if rows.weights is None else rows.weights.double().numpy()
        return float(np.average(nll[useful], weights=weights[useful]))

    def _parameters(
        self, values: Mapping[str, Value], n_rows: int, n_members: int
    ) -> dict[str, Any]:
        """Return parameters of `MDNRegressor`: settings only where some are given."""
        training = {name: values[name] for name in TRAINING_NAMES if name in values}
        settings = (
            replace(default_settings(n_rows, n_members), **training)  # type: ignore[arg-type]
            if training
            else None
        )
        model = {name: values[name] for name in MODEL_NAMES if name in values}
        return {**model, "settings": settings, "n_members": n_members}

    # Fitting.

    def fit(self, *, verbose: bool = False) -> Tuned:
        """Fit models with the best parameters and with the defaults, and return the better one."""
        trials = self.trials
        best = self._best()
        if not best:
            reasons = [trial.reason for trial in trials if trial.reason]
            raise StudyError(
                f"study {self.name!r}",
                got=f"has no trial that ended ({(reasons or ['none was run'])[0].rstrip('.')})",
                expected="the best one is fitted",
                fix="Search on, or look at the data.",
            )
        searched = {} if best[0].user_attrs.get("default") else dict(best[0].params)
        chosen = {**self.space.fixed, **searched}
        default = self._final(self.space.fixed, verbose=verbose)
        model = default
        if searched:
            model = self._final(chosen, verbose=verbose)
            # Members' folds are the same in both.
            if not model.history_.best_nll < default.history_.best_nll:
                model, chosen = default, {**self.space.fixed}
        return Tuned(
            model=model,
            default=default,
            parameters=chosen,
            trials=trials,
            importances=self._importances(),
            toml=to_toml(self._whole(chosen)),
        )

    def _final(self, values: Mapping[str, Value], *, verbose: bool) -> MDNRegressor:
        parameters = self._parameters(values, self._n_final_rows(), self.n_members)
        return self._fit(values, {**parameters, "verbose": verbose}).set_params(verbose=False)

    def _n_final_rows(self) -> int:
        """Return the rows that an ensemble trains on, which its settings depend on."""
        default = default_settings(len(self.rows), self.n_members)
        division = divide(
            self.rows,
            self.groups,
            splitter=None,
            calibration_fraction=0.0,
            validation_fraction=default.validation_fraction,
            validation=None,
            seed=self.seed,
            n_members=self.n_members,
        )
        return len(division.rows)

    def _whole(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return parameters with the settings that a file has to name beside them."""
        found = dict(values)
        if any(name in TRAINING_NAMES for name in values):
            default = default_settings(self._n_final_rows(), self.n_members)
            names = ("epochs", "learning_rate", "patience", "validation_fraction")
            found = {**{name: getattr(default, name) for name in names}, **found}
        if self.n_members != MDNRegressor().n_members:
            found["n_members"] = self.n_members
        return found

    def _best(self) -> list[FrozenTrial]:
        """Return the best trial, if there is one; of equal ones the first."""
        with self._talking():
            complete = [t for t in self._trials() if t.state == TrialState.COMPLETE]
        return sorted(complete, key=lambda t: (t.value, t.number))[:1]

    def _importances(self) -> dict[str, float]:
        with self._talking(), _quiet():
            complete = [t for t in self._trials() if t.state == TrialState.COMPLETE]
            if len(complete) < MIN_IMPORTANCE_TRIALS:
                return {}
            found = optuna.importance.get_param_importances(
                self.study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
            )
        return {name: float(value) for name, value in found.items()}

    # Sharing.

    def _join(self) -> optuna.Study:
        """Make the study, or join it if it is one on the same rows."""
        backend = self.storage.backend
        try:
            study = optuna.create_study(storage=backend, study_name=self.name)
            self._begin(study)
        except DuplicatedStudyError:
            study = optuna.load_study(storage=backend, study_name=self.name)
        end = time.monotonic() + self.grace
        while "condens" not in study.user_attrs:
            if time.monotonic() > end:  # whoever made it was killed at once
                self._begin(study)
            time.sleep(POLL_SECONDS)
        theirs, ours = study.user_attrs["condens"], json.loads(json.dumps(self._identity))
        known = theirs if isinstance(theirs, dict) else {}
        # The first says enough: another seed holds out other rows too.
        other = next((name for name in ours if known.get(name) != ours[name]), None)
        if other is not None:
            raise StudyError(
                f"study {self.name!r} in {self.label}",
                got=f"is one of another {other}",
                expected="its trials are compared with one another",
                fix="Use the same again to go on, or give the study another name.",
            )
        self.storage.share(int(study.user_attrs.get("grace", self.grace)))
        return study

    def _begin(self, study: optuna.Study) -> None:
        """Put the defaults first, and then write whose study it is."""
        if not study.trials:
            defaults = default_values(self.n_rows)
            known = {
                name: defaults[name]
                for name in self.space.searched
                if name in defaults and self.space.holds(name, defaults[name])
            }
            study.enqueue_trial(known, user_attrs={"default": True})
        study.set_user_attr("grace", self.grace)
        study.set_user_attr("condens", self._identity)

    def _trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _known(self, number: int) -> FrozenTrial:
        return next(trial for trial in self._trials() if trial.number == number)

    def _recover(self) -> None:
        """Take up again what dead processes have left."""
        with _quiet():
            optuna.storages.fail_stale_trials(self.study)
        now, seen = time.monotonic(), {}
        for chain in _chains(self._trials()).values():
            state, last = _state(chain), chain[-1]
            # Killed before its first sign of life, a trial would count as running for ever.
            unborn = last.state == TrialState.RUNNING and not last.user_attrs.get("begun")
            if state != "orphaned" and not unborn:
                continue
            key = (state, last.number)
            seen[key] = self._seen.get(key, now)
            if unborn and now - seen[key] > self.grace:
                with suppress(UpdateFinishedTrialError):
                    self.storage.backend.set_trial_state_values(last._trial_id, TrialState.FAIL)
            elif state == "orphaned" and now - seen[key] > ORPHAN_SECONDS:
                self._give_back(last, killed=1)
        self._seen = seen

    def _give_back(self, trial: FrozenTrial, killed: int = 0) -> None:
        """Let a trial that did not end wait for another process."""
        if trial.state != TrialState.FAIL:
            return
        attributes = {k: v for k, v in trial.user_attrs.items() if k not in ("begun", "reason")}
        attributes["origin"] = attributes.get("origin", trial.number)
        attributes["killed"] = attributes.get("killed", 0) + killed
        self.study.add_trial(
            optuna.create_trial(
                state=TrialState.WAITING,
                params=trial.params,
                distributions=trial.distributions,
                user_attrs=attributes,
                system_attrs=trial.system_attrs,
                intermediate_values=trial.intermediate_values,
            )
        )

    @contextmanager
    def _talking(self) -> Iterator[None]:
        """Turn errors of the storage into ours."""
        with self.storage.answering():
            yield


class _Division(NamedTuple):
    """Holds out the same rows in every trial, as a splitter of scikit-learn."""

    train: NDArray[np.int64]
    held: NDArray[np.int64]

    def get_n_splits(self) -> int:
        """Return the number of splits."""
        return 1

    def split(self, *_: object) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the rows to train on and those to judge by."""
        yield self.train, self.held


def _divide(rows: Rows, groups: Groups | None, fraction: float, seed: int) -> _Division:
    """Hold out a fraction of the observed rows, in whole groups."""
    useful = rows.useful.numpy()
    labels = np.arange(len(rows)) if groups is None else number_groups(groups).numpy()
    present = np.unique(labels[useful])
    # Of its own: the estimator divides by the seed itself.
    order = np.random.default_rng([seed, 2]).permutation(present)
    counts = np.bincount(labels[useful], minlength=labels.max(initial=0) + 1)[order].cumsum()
    n_held = int(np.searchsorted(counts, fraction * useful.sum(), side="right"))
    held = np.isin(labels, order[: max(n_held, 1)])
    n_validation, n_train = int((held & useful).sum()), int((~held & useful).sum())
    if n_validation < MIN_VALIDATION_ROWS or n_train < MIN_VALIDATION_ROWS:
        raise ArgumentError(
            "validation_fraction",
            got=f"is {fraction:g}, which leaves {n_train} rows to train on and {n_validation} to "
            "judge by",
            expected=f"{MIN_VALIDATION_ROWS} of each were expected",
            fix="Pass more rows, another fraction, or fit the defaults.",
        )
    return _Division(np.flatnonzero(~held), np.flatnonzero(held))


def _take(table: Any, rows: NDArray[np.int64]) -> Any:
    return take_rows(table, rows) if is_frame(table) else _safe_indexing(table, rows)


def _fingerprint(inputs: Inputs, rows: Rows, groups: Groups | None) -> str:
    """Return a digest of the names and values of a table, whatever it came from."""
    columns = [inputs.encoder.to_dict(), inputs.target_names]
    digest = hashlib.sha256(json.dumps(columns, sort_keys=True, default=str).encode())
    for part in (*rows, None if groups is None else number_groups(groups)):
        if part is not None:
            digest.update(repr((part.dtype, part.shape)).encode())
            digest.update(part.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _chains(trials: list[FrozenTrial]) -> dict[int, list[FrozenTrial]]:
    """Return the attempts at each trial by the number of the first; those too many are left out."""
    found: dict[int, list[FrozenTrial]] = {}
    for trial in sorted(trials, key=lambda t: t.number):
        if not trial.user_attrs.get("surplus"):
            found.setdefault(trial.user_attrs.get("origin", trial.number), []).append(trial)
    return dict(sorted(found.items()))


def _state(chain: list[FrozenTrial]) -> str:
    """Return what has become of a trial, by all attempts at it."""
    states = {trial.state for trial in chain}
    for state, word in (
        (TrialState.COMPLETE, "complete"),
        (TrialState.PRUNED, "pruned"),
        (TrialState.RUNNING, "running"),
        (TrialState.WAITING, "waiting"),
    ):
        if state in states:
            return word
    given_up = chain[-1].user_attrs.get("killed", 0) >= MAX_KILLED
    return "failed" if given_up or any("reason" in t.user_attrs for t in chain) else "orphaned"


def _trial(number: int, chain: list[FrozenTrial]) -> Trial:
    state = _state(chain)
    last = next((t for t in chain if t.state.name.lower() == state), chain[-1])
    reason = ""
    if state == "failed":
        lost = f"Its process was killed {MAX_KILLED + 1} times."
        reason = next((t.user_attrs["reason"] for t in chain if "reason" in t.user_attrs), lost)
    nll = last.value if state == "complete" and last.value is not None else math.nan
    return Trial(
        number, "waiting" if state == "orphaned" else state, nll, dict(last.params), reason
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what Optuna says of its own interface, such as that it may change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        warnings.filterwarnings("ignore", "Heartbeat of storage is supposed")
        yield


def _check_name(name: Any) -> str:
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME:
        raise refused("name", name, f"a text of 1 to {MAX_NAME} characters was expected", _FIX_NAME)
    if not name.isprintable():
        raise refused("name", name, "a text in one line was expected", _FIX_NAME)
    return name


_FIX_NAME = "Pass a word, such as houses."
