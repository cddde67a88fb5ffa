"""What fitting commands share: which columns, which rows are kept for the verdict, the verdict."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from condens.cli.shards import Process
from condens.cli.tables import Labelled, Names, listed, parse_pairs, take
from condens.errors import (
    ArgumentError,
    CollapsedComponentsWarning,
    IllConditionedWarning,
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


class Fitted(NamedTuple):
    """What a fit leaves for the verdict: rows that it has not seen, and what the data were."""

    held_out: Labelled | None
    source: str
    rows: int
    digest: str

    @classmethod
    def of(cls, data: str, chosen: Labelled, held_out: Labelled | None) -> "Fitted":
        """Return what a fit to a table in memory leaves."""
        from condens.data.fingerprint import fingerprint

        name = "standard input" if data == "-" else Path(data).name
        digest = fingerprint(chosen.conditions, chosen.targets)
        return cls(held_out, name, len(chosen.targets), digest)


def choose_columns(
    table: "pa.Table",
    targets: Sequence[str],
    conditions: Sequence[str] | None,
    ignored: Sequence[str],
    weights: str | None,
    groups: str | None,
) -> Labelled:
    """Return the columns that a user named; conditions are all others by default."""
    take(table, ignored, "--ignore")
    take(table, targets, "--target")
    refuse_contradictions(targets, conditions, ignored, weights, groups)
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


def refuse_contradictions(
    targets: Sequence[str],
    conditions: Sequence[str] | None,
    ignored: Sequence[str],
    weights: str | None,
    groups: str | None,
) -> None:
    """Refuse a column that is named for two things which do not go together."""
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


def refuse_shared_input(data: str) -> None:
    """Refuse standard input in several processes: each would get a part of it."""
    world = Process.current().world
    if data == "-" and world > 1:
        raise ArgumentError(
            "standard input",
            got=f"is to be read by {world} processes",
            expected="only one of them would get it",
            fix="Write it to a file, or start one process.",
        )


def check_targets(targets: "pa.Table", transforms: Mapping[str, Any]) -> None:
    """Refuse targets before the rows are divided, so that errors count all of them."""
    import torch

    from condens.transforms.choice import resolve

    for name, spec in transforms.items():
        if spec != "auto":
            values = torch.tensor(targets[name].to_numpy(), dtype=torch.float64)
            resolve(spec, "--transform").check(f"the column {name!r}", values)


def hold_out(
    table: "pa.Table", groups: "NDArray[Any] | None", fraction: float, seed: int
) -> tuple["NDArray[np.int64]", "NDArray[np.int64] | None"]:
    """Return the rows to fit and those to judge by, or None where there are too few."""
    import numpy as np

    check_test(fraction)
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


def check_test(fraction: float) -> None:
    """Refuse a number that is no fraction."""
    if not 0 <= fraction < 1:
        raise ArgumentError(
            "--test",
            got=f"is {fraction:g}",
            expected="a fraction from 0 to below 1 was expected",
            fix="Pass 0.1, or 0 for none.",
        )


def judge(model: "MDNRegressor", rows: Labelled) -> "Report":
    """Return the report of a model on rows that it was not fitted to."""
    from condens.evaluation import evaluate

    return evaluate(
        model, rows.conditions, rows.targets, sample_weight=rows.weights, groups=rows.groups
    )


def verdict(
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


def notes_of(fitted: Fitted, report: "Report | None") -> dict[str, Any]:
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


def read_transforms(given: Sequence[str], targets: Sequence[str]) -> dict[str, Any] | None:
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
