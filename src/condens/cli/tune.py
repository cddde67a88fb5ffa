"""`condens tune`: a search for parameters that several processes may share, and its model."""

import math
import os
import shutil
import sys
import warnings as warnings_
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from condens.cli.console import note, number, say, show_table
from condens.cli.fitting import (
    TOLD_BY_THE_VERDICT,
    Fitted,
    check_targets,
    choose_columns,
    hold_out,
    judge,
    notes_of,
    read_transforms,
    refuse_shared_input,
    verdict,
)
from condens.cli.options import (
    Conditions,
    Dates,
    Decimal,
    Delimiter,
    Encoding,
    Force,
    Groups,
    Ignored,
    ModelOutput,
    Seed,
    Source,
    Targets,
    Weights,
)
from condens.cli.tables import Input, Labelled, place_for
from condens.errors import ArgumentError, CondensError
from condens.files import open_regular, take_lock
from condens.scalars import encode_floats

if TYPE_CHECKING:
    from condens.tuning import Dimension, Space, Study, Trial, Tuned

# Where the URL of a server is looked for: on the command line all users of a machine would see it.
URL_VARIABLE = "CONDENS_STUDY_URL"
# Trials in the table at the end.
TRIALS_SHOWN = 5


def tune(
    data: Source,
    target: Targets,
    output: ModelOutput,
    condition: Conditions = None,
    ignore: Ignored = None,
    transform: Annotated[
        list[str] | None,
        typer.Option(help="What a target may be, as in price=positive; see condens fit."),
    ] = None,
    trials: Annotated[
        int,
        typer.Option(
            min=1, help="Trials of the study, by all processes together, earlier ones included."
        ),
    ] = 50,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Begin no trial after that time.")
    ] = None,
    space: Annotated[
        Path | None,
        typer.Option(
            help=r"A TOML file with what to search in \[model] and \[training]: ranges, lists of "
            "choices, or single values for all trials."
        ),
    ] = None,
    study: Annotated[
        str | None, typer.Option(help="Name of the study; by default that of the model's file.")
    ] = None,
    storage_env: Annotated[
        str | None,
        typer.Option(
            metavar="VARIABLE",
            help="Environment variable with the URL of a database server that keeps the study, "
            "for several machines; an SQLite file beside the model if it is not set.",
            show_default=URL_VARIABLE,
        ),
    ] = None,
    members: Annotated[
        int, typer.Option(min=1, help="Networks of the model whose densities are averaged.")
    ] = 5,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Passes over the rows, at most; chosen by their number by default."
        ),
    ] = None,
    test: Annotated[
        float,
        typer.Option(
            help="Fraction of the rows that are kept for the verdict, and that no trial sees; "
            "0 for none."
        ),
    ] = 0.1,
    validation: Annotated[
        float, typer.Option(help="Fraction of the other rows that trials are compared by.")
    ] = 0.2,
    grace: Annotated[
        int,
        typer.Option(
            min=2,
            help="Seconds without a sign of life after which a process is taken for dead, and its "
            "trial taken up again; as the process that began the study has it.",
        ),
    ] = 60,
    weights: Weights = None,
    groups: Groups = None,
    seed: Seed = 0,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    dates: Dates = "refuse",
    force: Force = False,
) -> None:
    """Search for better parameters than the defaults, and fit a model with them.

    The same command, run again, goes on where the last one ended, and run several times at once
    it shares the trials, as do the processes of torchrun.

    Example: condens tune houses.csv --target lat --target lon --trials 20 -o tuned.condens
    """
    place = place_for(output, force=force, inputs=(data, *filter(None, [space])))
    storage = _storage(place, storage_env)
    refuse_shared_input(data)
    table = Input(data, delimiter, decimal, encoding, dates).read(
        [*target, *filter(None, [weights])]
    )
    chosen = choose_columns(table, target, condition, ignore or (), weights, groups)
    transforms = read_transforms(transform or (), target)
    check_targets(chosen.targets, transforms or {})
    kept, held = hold_out(table, chosen.groups, test, seed)
    train = chosen.take(kept)
    from condens.tuning import Study

    directory = _directory(place)
    try:
        with Study(
            train.conditions,
            train.targets,
            train.weights,
            groups=train.groups,
            storage=storage,
            name=place.name if study is None else study,
            space=_space(space, epochs, len(kept) - math.ceil(validation * len(kept))),
            directory=directory,
            validation_fraction=validation,
            target_transform=transforms,
            n_members=members,
            random_state=seed,
            grace_seconds=grace,
        ) as opened:
            opened.search(trials, minutes, report=_Reporter())
            if opened.is_running:
                note(
                    "Other processes are still at work; the last one writes the model. The same "
                    "command goes on with them."
                )
                return
            with _alone(directory) as alone:
                if alone:
                    _end(opened, place, directory, data, chosen, held, test)
                else:
                    note(f"Another process fits the model, and writes it to {place}.")
    except KeyboardInterrupt:
        note("Stopped. The study is kept: the same command goes on with it.")
        raise
    finally:
        with suppress(OSError):  # unless there is something in it to go on from
            directory.rmdir()


def _storage(place: Path, variable: str | None) -> str | Path:
    """Return the URL of a server, or the path of a file beside the model."""
    url = os.environ.get(variable or URL_VARIABLE)
    if url:
        if "://" not in url:
            raise ArgumentError(
                f"the environment variable {variable or URL_VARIABLE}",
                got="holds no URL",
                expected="scheme://user:password@host/database was expected",
                fix="Set it to the URL of a server, or unset it for a file beside the model.",
            )
        return url
    if variable is not None:
        raise ArgumentError(
            "--storage-env",
            got=f"names {variable}, which is not set",
            expected="the URL of a server was expected in it",
            fix="Set it, or leave the option out for a file beside the model.",
        )
    return place.with_name(f"{place.name}.study")


def _directory(place: Path) -> Path:
    """Make the directory for the states of trials, before any is run."""
    directory = place.with_name(f"{place.name}.trials")
    if directory.exists() and not directory.is_dir():
        raise ArgumentError(
            str(directory),
            got="is a file",
            expected="trials keep their state in a directory there",
            fix="Remove it, or give the model another name.",
        )
    directory.mkdir(exist_ok=True)
    return directory


def _space(path: Path | None, epochs: int | None, n_rows: int) -> "Space | None":
    """Return what is searched: that of a file, or the default, with fixed epochs if asked for."""
    if path is None and epochs is None:
        return None
    from condens.tuning import Space, default_space

    found = Space(default_space(max(n_rows, 1))) if path is None else Space.read(path)
    if epochs is not None:
        if "epochs" in found.searched:
            raise ArgumentError(
                "--epochs",
                got=f"is {epochs}, and {path} searches them",
                expected="one of them was expected",
                fix="Leave either out.",
            )
        found.fixed["epochs"] = epochs
    return found


class _Reporter:
    """Writes a line about every trial that ends here."""

    best: float = math.inf

    def __call__(self, trial: "Trial") -> None:
        if trial.state == "complete":
            better = " (the best here so far)" if trial.nll < self.best else ""
            self.best = min(self.best, trial.nll)
            note(f"Trial {trial.number}: validation NLL {number(trial.nll)}{better}")
        else:
            reason = f": {trial.reason}" if trial.reason else ""
            note(f"Trial {trial.number}: {trial.state}{reason}")


@contextmanager
def _alone(directory: Path) -> Iterator[bool]:
    """Tell whether no other process holds the directory, and hold it."""
    while True:
        directory.mkdir(exist_ok=True)
        try:
            file = open_regular(directory / "lock", os.O_RDWR | os.O_CREAT, follow=False)
        except FileNotFoundError:  # removed by another process, just now
            continue
        try:
            take_lock(file)
        except OSError:
            os.close(file)
            yield False
            return
        if os.fstat(file).st_nlink:
            break
        os.close(file)
    try:
        yield True
    finally:
        os.close(file)


def _end(
    study: "Study",
    place: Path,
    directory: Path,
    data: str,
    chosen: Labelled,
    held: Any,
    test: float,
) -> None:
    """Fit the model, judge it, write it, and say what was found."""
    done = sum(trial.state in ("complete", "pruned", "failed") for trial in study.trials)
    about = {"study": study.name, "trials": done, "seed": study.seed, "members": study.n_members}
    rows = None if held is None else chosen.take(held)
    fitted = Fitted.of(data, chosen, rows)
    if _is_written(place, about, fitted.digest):
        shutil.rmtree(directory, ignore_errors=True)
        say(f"Another process has written the model to {place}.")
        return
    with warnings_.catch_warnings():
        for category in TOLD_BY_THE_VERDICT:
            warnings_.simplefilter("ignore", category)
        found = study.fit(verbose=sys.stderr.isatty())
    report = None if rows is None else judge(found.model, rows)
    found.model.notes_ = {
        **notes_of(fitted, report),
        "tuning": {
            **about,
            "best": found.best.number,
            "validation_nll": found.best.nll,
            "parameters": encode_floats(found.parameters),
        },
    }
    found.model.save(place)
    shutil.rmtree(directory, ignore_errors=True)
    _show_trials(study, found)
    say()
    say(_gain(found, rows))
    say()
    say(verdict(found.model, report, place, test=test, calibrated=False))
    say()
    say("The same model by condens fit --settings, with the same data, --test and --seed:")
    say()
    say(found.toml or "# the defaults")


def _is_written(place: Path, about: dict[str, Any], sha256: str) -> bool:
    """Tell whether the file is a model of this study, after as many trials."""
    if not place.is_file():
        return False
    from condens.estimator.regressor import MDNRegressor

    try:
        notes = MDNRegressor.load(place).notes_
    except CondensError:
        return False
    theirs = notes.get("tuning")
    same = isinstance(theirs, dict) and all(theirs.get(k) == v for k, v in about.items())
    return same and notes.get("data", {}).get("sha256") == sha256


def _show_trials(study: "Study", found: "Tuned") -> None:
    counts = {
        state: sum(trial.state == state for trial in found.trials)
        for state in ("complete", "pruned", "failed")
    }
    listed = ", ".join(f"{count} {state}" for state, count in counts.items())
    say(f"Study {study.name} in {study.label}: {listed}.")
    names = list(study.space.searched)
    best = [trial for trial in found.trials if trial.state == "complete"][:TRIALS_SHOWN]
    show_table(
        "The best trials, by validation NLL",
        ("trial", "NLL", *names),
        [
            (
                f"{trial.number}{' (defaults)' if not trial.number else ''}",
                number(trial.nll),
                *(_cell(trial.parameters.get(name)) for name in names),
            )
            for trial in best
        ],
    )
    if found.importances:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in found.importances.items())
        say(f"What the best trials have in common: {shares}")


def _cell(value: "Dimension") -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value).lower()


def _gain(found: "Tuned", rows: Labelled | None) -> str:
    """Return what was gained over the defaults, by the rows that no trial has seen."""
    if found.model is found.default:
        return "The defaults are as good as anything that was found: the model has them."
    folds = found.default.history_.best_nll - found.model.history_.best_nll
    text = f"Gained over the defaults, in nats a row: {number(folds)} on the members' folds"
    if rows is None:
        return f"{text}."
    from condens.evaluation import compare

    compared = compare(
        {"found": found.model, "default": found.default},
        rows.conditions,
        rows.targets,
        sample_weight=rows.weights,
        groups=rows.groups,
        n_samples=10,
        progress=False,
    )
    (one,) = [each for each in compared.differences if each.score == "log_likelihood"]
    sign = 1 if one.first == "found" else -1
    value, error = sign * one.value, one.standard_error
    sure = "" if one.significant else ", which may be chance"
    return f"{text}, {value:.3g} ± {error:.2g} on rows that no trial has seen{sure}."
