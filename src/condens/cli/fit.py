"""`condens fit`: a table to a model, and a verdict."""

import shutil
import sys
import warnings as warnings_
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from condens.cli.console import note, say
from condens.cli.fitting import (
    MAX_TEST_ROWS,
    MIN_TEST_ROWS,
    NAMES,
    TOLD_BY_THE_VERDICT,
    Fitted,
    check_targets,
    check_test,
    choose_columns,
    hold_out,
    judge,
    notes_of,
    read_transforms,
    refuse_contradictions,
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
from condens.cli.tables import (
    Input,
    Labelled,
    check_names,
    place_for,
)
from condens.errors import (
    ArgumentError,
    CondensError,
    RunDirectoryError,
)

if TYPE_CHECKING:
    from condens.estimator.regressor import MDNRegressor


def fit(
    data: Source,
    target: Targets,
    output: ModelOutput,
    condition: Conditions = None,
    ignore: Ignored = None,
    transform: Annotated[
        list[str] | None,
        typer.Option(
            help="What a target may be, as in price=positive: positive, count, integer, unit, "
            "auto, real, or bounds such as share=0,100."
        ),
    ] = None,
    components: Annotated[
        str | None,
        typer.Option(
            help="Gaussians in each predicted mixture: a number, or auto to try several; chosen by "
            "the number of rows by default."
        ),
    ] = None,
    covariance: Annotated[
        str | None, typer.Option(help="full, diagonal, tied or low_rank.", show_default="full")
    ] = None,
    members: Annotated[
        int | None,
        typer.Option(min=1, help="Networks whose densities are averaged.", show_default="5"),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Passes over the rows, at most; chosen by their number by default."
        ),
    ] = None,
    test: Annotated[
        float, typer.Option(help="Fraction of the rows that are kept for the verdict; 0 for none.")
    ] = 0.1,
    calibrate: Annotated[
        float,
        typer.Option(help="Fraction of the rows that are kept for intervals with a guarantee."),
    ] = 0.0,
    weights: Weights = None,
    groups: Groups = None,
    settings: Annotated[
        Path | None,
        typer.Option(help=r"A TOML file with parameters in \[model] and in \[training]."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="A directory for the state of the run. After a stop or a crash the same command "
            "goes on there. By default one beside the model, removed at the end."
        ),
    ] = None,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Read a Parquet or Arrow file in parts, as directories and patterns are: for "
            "tables that are larger than memory.",
        ),
    ] = False,
    seed: Seed = 0,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    dates: Dates = "refuse",
    force: Force = False,
) -> None:
    """Fit a model to a table, write it to a file, and say in plain words how good it is.

    A directory, or a pattern in quotes such as 'shards/*.parquet', is a table in many files, read
    in parts. Several processes share the work if torchrun starts them:
    torchrun --nproc-per-node 4 -m condens fit …

    Example: condens fit houses.csv --target lat --target lon -o model.condens
    """
    place = place_for(output, force=force, inputs=(data, *filter(None, [settings])))
    parameters = _parameters(settings)
    given = {
        "n_components": components if components in (None, "auto") else _whole(components),
        "covariance": covariance,
        "n_members": members,
        "epochs": epochs,
    }
    parameters |= {name: value for name, value in given.items() if value is not None}
    transforms = read_transforms(transform or (), target)
    run = _run_directory(place) if resume is None else resume
    from condens.data.stream import is_many
    from condens.estimator.regressor import MDNRegressor
    from condens.training.distributed import Group

    refuse_shared_input(data)
    group = Group.current(parameters.get("device"))
    model = MDNRegressor(
        target_transform=transforms,
        calibration_fraction=calibrate,
        directory=run,
        random_state=seed,
        verbose=sys.stderr.isatty() and group.first,
        **parameters,
    )
    with _resumable(run):
        if stream or is_many(data):
            roles = (target, condition, ignore or (), weights, groups)
            fitted = _fit_shards(model, data, roles, test, dates)
        else:
            table = Input(data, delimiter, decimal, encoding, dates).read(
                [*target, *filter(None, [weights])]
            )
            chosen = choose_columns(table, target, condition, ignore or (), weights, groups)
            check_targets(chosen.targets, transforms or {})
            fitted = _fit_table(model, data, chosen, test, seed)
    if not group.first:
        return
    report = None if fitted.held_out is None else judge(model, fitted.held_out)
    model.notes_ = notes_of(fitted, report)
    model.save(place)
    if resume is None:
        shutil.rmtree(run)
    say(verdict(model, report, place, test=test, calibrated=calibrate > 0))


@contextmanager
def _resumable(run: Path) -> Iterator[None]:
    """Say how to go on, or to begin anew, where a fit does not end."""
    try:
        with warnings_.catch_warnings():
            for category in TOLD_BY_THE_VERDICT:
                warnings_.simplefilter("ignore", category)
            yield
    except RunDirectoryError as error:
        raise RunDirectoryError(
            f"{error} To begin anew, remove {run}, unless another fit uses it."
        ) from error
    except KeyboardInterrupt:
        if run.exists():
            note(f"Stopped. The run is kept in {run}: the same command goes on there.")
        raise


def _fit_table(
    model: "MDNRegressor", data: str, chosen: Labelled, test: float, seed: int
) -> Fitted:
    kept, held = hold_out(chosen.targets, chosen.groups, test, seed)
    train = chosen.take(kept)
    model.fit(train.conditions, train.targets, train.weights, groups=train.groups)
    return Fitted.of(data, chosen, None if held is None else chosen.take(held))


def _fit_shards(
    model: "MDNRegressor",
    data: str,
    columns: tuple[Sequence[str], Sequence[str] | None, Sequence[str], str | None, str | None],
    test: float,
    dates: Any,
) -> Fitted:
    """Fit to files that are read in parts, each process its own."""
    from condens.data.stream import Shards

    targets, conditions, ignored, weights, groups = columns
    check_test(test)
    refuse_contradictions(targets, conditions, ignored, weights, groups)
    named = None
    if conditions is not None:
        named = [*dict.fromkeys([*conditions, *targets, *filter(None, [weights, groups])])]
    shards = Shards(data, columns=named, dates=dates)
    for names, option in ((targets, "--target"), (ignored, "--ignore")):
        check_names(shards.columns, names, option)
    for name, option in ((weights, "--weights"), (groups, "--groups")):
        check_names(shards.columns, [name] if name else [], option)
    out = {*targets, *ignored, weights, groups}
    used = conditions or [name for name in shards.columns if name not in out]
    model.fit_shards(
        shards,
        targets,
        used,
        sample_weight=weights,
        groups=groups,
        test_fraction=min(test, MAX_TEST_ROWS / shards.n_rows),
    )
    apart = model.held_out_
    held = None
    if apart is not None and len(apart.rows) >= MIN_TEST_ROWS:
        held = Labelled.of(apart.table, used, targets, weights, groups, NAMES)
    return Fitted(held, Path(data).name, shards.n_rows, shards.digest())


def _run_directory(place: Path) -> Path:
    return place.with_name(f"{place.name}.run")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ArgumentError(
            "--components",
            got=f"is {text!r}",
            expected="a whole number or auto was expected",
            fix="Pass 5, for instance.",
        ) from None


def _parameters(path: Path | None) -> dict[str, Any]:
    """Return the parameters of a TOML file: [model] of `MDNRegressor`, [training] of `Settings`."""
    if path is None:
        return {}
    import tomllib
    from dataclasses import fields

    from condens.estimator.construction import check_parameter
    from condens.estimator.document import PLAIN_PARAMETERS
    from condens.training import Settings

    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ArgumentError(
            str(path),
            got=f"cannot be read ({error})",
            expected="TOML was expected",
            fix="Correct that line.",
        ) from None
    # What an option says, and what belongs to a machine.
    model = {*PLAIN_PARAMETERS} - {"calibration_fraction", "random_state", "verbose", "warm_start"}
    training = {field.name for field in fields(Settings)} - {"seed"}
    for part, known in (("model", model), ("training", training)):
        _check_keys(path, f"[{part}]", document.get(part, {}), known)
    _check_keys(path, "the file", document, {"model", "training"})
    found = dict(document.get("model", {}))
    try:
        for name, value in found.items():
            check_parameter(name, value)
    except CondensError as error:
        raise ArgumentError(f"{path}: [model] {error}") from None
    try:
        if document.get("training"):
            found["settings"] = Settings(**document["training"])
    except CondensError as error:
        raise ArgumentError(f"{path}: [training] {error}") from None
    return found


def _check_keys(path: Path, what: str, given: Any, known: set[str]) -> None:
    wrong = [key for key in given if key not in known] if isinstance(given, dict) else [given]
    if wrong:
        raise ArgumentError(
            f"{path}: {what}",
            got=f"has {wrong[0]!r}",
            expected=f"{', '.join(sorted(known))} were expected",
            fix="Correct it, or leave it out.",
        )
