"""`condens fit`: a table to a model, and a verdict."""

import shutil
import sys
import warnings as warnings_
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from condens.cli.console import note, say
from condens.cli.options import (
    Dates,
    Decimal,
    Delimiter,
    Encoding,
    Force,
    Groups,
    Seed,
    Source,
    Weights,
)
from condens.cli.tables import (
    Input,
    Labelled,
    Names,
    check_names,
    listed,
    parse_pairs,
    place_for,
    take,
)
from condens.errors import (
    ArgumentError,
    CollapsedComponentsWarning,
    CondensError,
    IllConditionedWarning,
    RunDirectoryError,
    UnexplainedRowsWarning,
    UnusedComponentsWarning,
)

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from condens.estimator.regressor import MDNRegressor
    from condens.evaluation.report import Report

# Rows that a verdict needs, and the most that it gets.
MIN_TEST_ROWS, MAX_TEST_ROWS = 20, 10_000
NAMES = Names("--condition", "--target")
# Warnings of the training's history.
TOLD_BY_THE_VERDICT = (
    CollapsedComponentsWarning,
    IllConditionedWarning,
    UnexplainedRowsWarning,
    UnusedComponentsWarning,
)


def fit(
    data: Source,
    target: Annotated[
        list[str], typer.Option("--target", "-t", help="A column to predict; repeat for several.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the model goes.")],
    condition: Annotated[
        list[str] | None,
        typer.Option(
            "--condition",
            "-c",
            help="A column to predict from; repeat for several; by default all others.",
        ),
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="A column to leave out.")] = None,
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
    transforms = _transforms(transform or (), target)
    run = _run_directory(place) if resume is None else resume
    from condens.data.stream import is_many
    from condens.estimator.regressor import MDNRegressor
    from condens.training.distributed import Group

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
            chosen = _columns(table, target, condition, ignore or (), weights, groups)
            _check_targets(chosen.targets, transforms or {})
            fitted = _fit_table(model, data, chosen, test, seed)
    if not group.first:
        return
    report = None if fitted.held_out is None else _judge(model, fitted.held_out)
    model.notes_ = _notes(fitted, report)
    model.save(place)
    if resume is None:
        shutil.rmtree(run)
    say(_verdict(model, report, place, test=test, calibrated=calibrate > 0))


class Fitted(NamedTuple):
    """What a fit leaves for the verdict: rows that it has not seen, and what the data were."""

    held_out: Labelled | None
    source: str
    rows: int
    digest: str


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
    from condens.data.fingerprint import fingerprint

    kept, held = _divide(chosen.targets, chosen.groups, test, seed)
    train = chosen.take(kept)
    model.fit(train.conditions, train.targets, train.weights, groups=train.groups)
    return Fitted(
        None if held is None else chosen.take(held),
        "standard input" if data == "-" else Path(data).name,
        len(chosen.targets),
        fingerprint(chosen.conditions, chosen.targets),
    )


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
    _check_test(test)
    _refuse_contradictions(targets, conditions, ignored, weights, groups)
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


def _columns(
    table: "pa.Table",
    targets: Sequence[str],
    conditions: Sequence[str] | None,
    ignored: Sequence[str],
    weights: str | None,
    groups: str | None,
) -> Labelled:
    take(table, ignored, "--ignore")
    take(table, targets, "--target")
    _refuse_contradictions(targets, conditions, ignored, weights, groups)
    out = {*targets, *ignored, weights, groups}
    used = conditions or [name for name in table.column_names if name not in out]
    if not used:
        raise ArgumentError(
            "the table",
            got=f"has the columns {listed(table.column_names)}",
            expected="one to predict from must be left",
            fix="Ignore fewer, or name fewer targets.",
        )
    return Labelled.of(table, used, targets, weights, groups, NAMES)


def _refuse_contradictions(
    targets: Sequence[str],
    conditions: Sequence[str] | None,
    ignored: Sequence[str],
    weights: str | None,
    groups: str | None,
) -> None:
    one, other = [weights] if weights else [], [groups] if groups else []
    _refuse_both(
        "--target", targets, {"--condition": conditions, "--weights": one, "--groups": other}
    )
    _refuse_both(
        "--ignore",
        ignored,
        {"--target": targets, "--condition": conditions, "--weights": one, "--groups": other},
    )


def _refuse_both(
    option: str, names: Sequence[str], others: Mapping[str, Sequence[str] | None]
) -> None:
    """Refuse a column that two options claim, which do not go together."""
    for other, theirs in others.items():
        both = [name for name in names if name in (theirs or ())]
        if both:
            raise ArgumentError(
                f"the column {both[0]!r}",
                got=f"is named by {option} and by {other}",
                expected="it can be only one of the two",
                fix="Leave it out of either.",
            )


def _check_targets(targets: "pa.Table", transforms: Mapping[str, Any]) -> None:
    """Refuse targets before the rows are divided, so that errors count all of them."""
    import torch

    from condens.transforms.choice import resolve

    for name, spec in transforms.items():
        if spec != "auto":
            values = torch.tensor(targets[name].to_numpy(), dtype=torch.float64)
            resolve(spec, "--transform").check(f"the column {name!r}", values)


def _divide(
    table: "pa.Table", groups: "NDArray[Any] | None", fraction: float, seed: int
) -> tuple["NDArray[np.int64]", "NDArray[np.int64] | None"]:
    """Return the rows to fit and those to judge by, or None where there are too few."""
    import numpy as np

    _check_test(fraction)
    rows = np.arange(len(table))
    labels = rows if groups is None else np.unique(groups, return_inverse=True)[1]
    # Of its own: the estimator divides by the seed itself.
    order = np.random.default_rng([seed, 1]).permutation(labels.max(initial=-1) + 1)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    wanted = min(round(fraction * len(rows)), MAX_TEST_ROWS)
    # Whole groups, until there are enough rows.
    sizes = np.bincount(labels, minlength=len(order))[order].cumsum()
    held = rank[labels] < np.searchsorted(sizes, wanted, side="right")
    if held.sum() < MIN_TEST_ROWS:
        return rows, None
    return rows[~held], rows[held]


def _check_test(fraction: float) -> None:
    if not 0 <= fraction < 1:
        raise ArgumentError(
            "--test",
            got=f"is {fraction:g}",
            expected="a fraction from 0 to below 1 was expected",
            fix="Pass 0.1, or 0 for none.",
        )


def _judge(model: "MDNRegressor", rows: Labelled) -> "Report":
    from condens.evaluation import evaluate

    return evaluate(
        model, rows.conditions, rows.targets, sample_weight=rows.weights, groups=rows.groups
    )


def _verdict(
    model: "MDNRegressor", report: "Report | None", place: Path, *, test: float, calibrated: bool
) -> str:
    """Return what a user wants to know at the end, in plain words."""
    lines = []
    if report is not None:
        found = report.scores["log_likelihood"]
        lines += [f"Judged by {report.n_rows} rows that were not fitted:", report.verdict]
        lines.append(f"Mean log-likelihood {found} nats a row; gained over")
        for name, one in report.baselines.items():
            if one.gain is not None:
                lines.append(f"  {_BASELINES.get(name, name)}: {one.gain}")
    elif test:
        lines.append(
            f"No verdict: it needs {MIN_TEST_ROWS} rows, and --test {test:g} keeps fewer. Pass a "
            "larger --test, or judge by a table of its own with condens evaluate."
        )
    else:
        lines.append("No rows were kept for a verdict (--test 0).")
    lines += [f"Warning: {text}" for text in model.history_.warnings]
    lines += ["", f"The model is in {place}. What to try next:"]
    lines += [f"  {text}" for text in _advice(report, place, calibrated=calibrated)]
    return "\n".join(lines)


_BASELINES = {"linear": "a linear model", "marginal": "one Gaussian for all rows"}


def _advice(report: "Report | None", place: Path, *, calibrated: bool) -> list[str]:
    """Return the next steps that this result asks for."""
    found = [f"condens explore {place}    to see the densities in a browser"]
    gains = [] if report is None else [one.gain for one in report.baselines.values() if one.gain]
    if any(gain.value < 2 * gain.standard_error for gain in gains):
        found.append("more rows or other columns: a simple model is as good as this one")
    off = report is not None and any(not one.is_expected for one in report.coverage)
    if off and not calibrated:
        found.append("condens fit … --calibrate 0.1    for intervals with guaranteed coverage")
    found.append(f"condens evaluate {place} NEW.csv --html report.html    on new rows")
    return found


def _notes(fitted: Fitted, report: "Report | None") -> dict[str, Any]:
    """Return what `condens info` shows of a fit: the data, and the held-out scores."""
    notes: dict[str, Any] = {
        "data": {"source": fitted.source, "rows": fitted.rows, "sha256": fitted.digest}
    }
    if report is not None:
        notes["held_out"] = {
            "rows": report.n_rows,
            "log_likelihood": report.scores["log_likelihood"].value,
            "gains": {n: b.gain.value for n, b in report.baselines.items() if b.gain is not None},
            "verdict": report.verdict,
        }
    return notes


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


def _transforms(given: Sequence[str], targets: Sequence[str]) -> dict[str, Any] | None:
    """Return `target_transform` from name=word or name=low,high."""
    found: dict[str, Any] = {}
    for name, text in parse_pairs(given, "--transform").items():
        if name not in targets:
            raise ArgumentError(
                "--transform",
                got=f"names {name!r}",
                expected=f"the targets are {listed(targets)}",
                fix="Use one of these.",
            )
        low, comma, high = text.partition(",")
        try:
            found[name] = (float(low), float(high)) if comma else text
        except ValueError:
            raise ArgumentError(
                "--transform",
                got=f"is {name}={text}",
                expected="two numbers with a comma between were expected",
                fix="Write share=0,100, for instance.",
            ) from None
    return found or None


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
