"""`Report`: the figures of an evaluation, as a verdict in words, tables and files."""

import csv
import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from html import escape
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from condens.errors import ArgumentError
from condens.evaluation.calibration import Bins, Coverage, Test
from condens.evaluation.models import JOINT
from condens.evaluation.statistics import Array, Score, plus_minus
from condens.files import as_path, cannot_hold, write_whole
from condens.scalars import decode_float, encode_floats, printable

Record = TypeVar("Record")

# An effect matters from here on: a bias in predicted standard deviations,
BIAS_THAT_MATTERS = 0.1
# a factor by which densities are too narrow or too wide,
FACTOR_THAT_MATTERS = 1.1
# a distance between distribution functions,
DISTANCE_THAT_MATTERS = 0.05
# a coverage that is off;
COVERAGE_THAT_MATTERS = 0.03
# and it is larger than chance below this corrected p-value.
SIGNIFICANCE = 0.05
# A bin is named if it is this many times worse than all rows.
WORSE_IN_A_BIN = 1.5
# Standard errors that make a difference.
ERRORS_OF_A_DIFFERENCE = 1.96
# Of the regions whose coverage is looked at in bins.
BIN_COVERAGE = 0.9
# Faults named in the verdict.
MAX_FAULTS = 8

LABELS = {
    "log_likelihood": "log-likelihood",
    "energy_score": "energy score",
    "entropy": "entropy",
    "crps": "CRPS",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
}
BASELINE_NAMES = {"linear": "a linear model", "marginal": "the unconditional Gaussian"}


class WorstRow(NamedTuple):
    """A row that the model explains worst.

    Args:
        row: its number, from 0.
        label: its name in the index of a data frame, or the number.
        score: what it is worst in, `log_likelihood` or `energy_score`.
        value: that score.
        observed, predicted, spread: the targets, their predicted means and standard deviations.
    """

    row: int
    label: str
    score: str
    value: float
    observed: tuple[float, ...]
    predicted: tuple[float, ...]
    spread: tuple[float, ...]


class Baseline(NamedTuple):
    """The same scores of a simple model, and what the model gains over it in log-likelihood."""

    scores: dict[str, Score]
    targets: dict[str, dict[str, Score]]
    gain: Score | None


class Section(NamedTuple):
    """A table of text: a title, the heads of its columns, and its rows.

    The first cell of a row, and the heads, may be names that users chose.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, eq=False)
class Report:
    """How good predicted densities are; `print` it, or end a notebook's cell with it.

    Attributes:
        kind: the class of the model.
        names: of the targets.
        n_rows, n_groups: that count; no groups: None.
        coverages, quantiles: that were asked for.
        scores: `log_likelihood`, `energy_score` and `entropy`, means over rows. The entropy is
            what the log-likelihood would be, with its sign turned, if the model were right.
        targets: for each target `crps`, `rmse`, `mae` and `r2` of the mean, `pinball_0.5` and so
            on, and `width_0.9` and so on of central intervals.
        coverage: of central intervals of each target, and of highest-density regions, called
            `joint density`.
        tests: of uniformity, corrected for their number (Holm).
        bins: calibration by bins of X and of the predicted spread.
        worst_rows: those that the model explains worst.
        baselines: the scores of simple models on the same rows.
        rows: for every row, by name: `log_likelihood`, `energy_score`, `entropy` and
            `hpd_coverage` [n]; `target`, `mean`, `spread`, `crps`, `pit`, `rosenblatt` [n, D].
        weights: of the rows, if they have any.
        left_out: what is not here, and why.
    """

    kind: str
    names: tuple[str, ...]
    n_rows: int
    n_groups: int | None
    coverages: tuple[float, ...]
    quantiles: tuple[float, ...]
    scores: dict[str, Score]
    targets: dict[str, dict[str, Score]]
    coverage: tuple[Coverage, ...]
    tests: tuple[Test, ...]
    bins: Bins | None
    worst_rows: tuple[WorstRow, ...]
    baselines: dict[str, Baseline]
    rows: dict[str, Array]
    weights: Array | None = None
    left_out: dict[str, str] = field(default_factory=dict)

    # In words.

    @property
    def verdict(self) -> str:
        """Whether the model is any good, and what is wrong with it, a sentence a line."""
        faults = list(self._faults())
        more = len(faults) - MAX_FAULTS
        if more > 0:
            faults = [*faults[:MAX_FAULTS], f"{more} more: see tests and coverage."]
        return "\n".join([self._headline(), *(faults or [self._all_well()])])

    def _headline(self) -> str:
        first = self._quality()
        regions = self._regions()
        return f"{first}; {regions}." if regions else f"{first}."

    def _quality(self) -> str:
        """Return the gain over the best baseline that there is."""
        gains = {name: one.gain for name, one in self.baselines.items() if one.gain is not None}
        if gains:
            name = min(gains, key=lambda each: gains[each].value)
            return compared(gains[name], BASELINE_NAMES.get(name, name))
        if "log_likelihood" in self.scores:
            return f"The mean log-likelihood is {self.scores['log_likelihood']} nats a row"
        return f"The mean energy score is {self.scores['energy_score']}"

    def _regions(self) -> str:
        """Return the coverage nearest to 90 %, of the joint or, for draws, of all targets."""
        level = min(self.coverages, key=lambda one: abs(one - 0.9), default=None)
        joint = [one for one in self.coverage if one.subject == JOINT]
        found = [one for one in joint or self.coverage if one.coverage == level]
        if not found:
            return ""
        one = max(found, key=lambda each: abs(each.observed - each.coverage))
        what = "regions" if joint else f"intervals of {one.subject}"
        return f"its {percent(one.coverage)} {what} hold {percent(one.observed)} ({_expected(one)})"

    def _faults(self) -> Iterator[str]:
        """Yield what is wrong by enough to matter."""
        density = self.rows.get("log_likelihood")
        if density is not None and np.isneginf(density).any():
            count = int(np.isneginf(density).sum())
            worst = ", ".join(row.label for row in self.worst_rows if row.value == -math.inf)
            yield f"{count} row(s) are impossible under the model: {worst}."
        found: dict[tuple[str, str], tuple[str, float]] = {}
        for test in self.tests:
            fault = None if test.subject == JOINT else _fault(test)
            # A bias or a spread of a target shows in its distribution function too, and what is
            # wrong with a target shows in those given it and in the joint.
            alone = test.subject in self.names
            told = any(
                not alone or (test.name == "shape" and key[0] == test.subject) for key in found
            )
            if fault and not told:
                found[test.subject, test.name] = fault
        yield from (text for text, _ in sorted(found.values(), key=lambda fault: -fault[1]))
        if not found:
            yield from self._region_fault()
        yield from self._bin_fault({key: size for key, (_, size) in found.items()})

    def _region_fault(self) -> Iterator[str]:
        """Yield the joint coverage that is furthest off, if the regions fail their test."""
        if not any(test.subject == JOINT and test.adjusted < SIGNIFICANCE for test in self.tests):
            return
        off = [one for one in self.coverage if one.subject == JOINT and not one.is_expected]
        one = max(off, key=lambda each: abs(each.observed - each.coverage), default=None)
        if one is not None:
            size = abs(one.observed - one.coverage) / COVERAGE_THAT_MATTERS
            what = "narrow" if one.observed < one.coverage else "wide"
            if size > 1:
                yield (
                    f"Too {what}: joint {percent(one.coverage)} regions hold "
                    f"{percent(one.observed)} ({_expected(one)})."
                )

    def _bin_fault(self, found: Mapping[tuple[str, str], float]) -> Iterator[str]:
        """Yield what is wrong in the worst bin, if more so than everywhere."""
        worst = None if self.bins is None or not self.bins.alarm else self.bins.worst
        fault = None if worst is None else _fault(worst.worst)
        if worst is None or fault is None:
            return
        text, size = fault
        overall = found.get((worst.worst.subject, worst.worst.name), 0.0)
        if size > WORSE_IN_A_BIN * overall:
            where = f"Where {worst.column} is {worst.label} ({worst.n_rows} rows): "
            yield where + text[0].lower() + text[1:]

    def _all_well(self) -> str:
        joint = [one for one in self.coverage if one.subject == JOINT] or self.coverage
        width = max((one.expected_upper - one.expected_lower for one in joint), default=1.0)
        if width > 0.2:
            return f"{self.n_rows} rows are too few to judge the calibration closely."
        return "No miscalibration large enough to matter was found."

    # In tables.

    def sections(self) -> tuple[Section, ...]:
        """Return every figure as text, in tables."""
        made = [
            self._score_section(),
            *self._target_sections(),
            self._coverage_section(),
            self._test_section(),
            self._bin_section(),
            self._worst_section(),
            Section("Left out", ("what", "why"), tuple(self.left_out.items())),
        ]
        return tuple(section for section in made if section.rows)

    def _score_section(self) -> Section:
        rows = []
        for name in self.scores:
            others = [one.scores.get(name) for one in self.baselines.values()]
            rows.append((LABELS[name], str(self.scores[name]), *map(_text, others)))
        gains = [one.gain for one in self.baselines.values()]
        if any(gains):
            rows.append(("gain in log-likelihood", "", *map(_text, gains)))
        return Section("Scores, means over rows", ("", "model", *self.baselines), tuple(rows))

    def _target_sections(self) -> Iterator[Section]:
        for target, scores in self.targets.items():
            rows = []
            for name, score in scores.items():
                others = [one.targets.get(target, {}).get(name) for one in self.baselines.values()]
                rows.append((_label(name), str(score), *map(_text, others)))
            yield Section(target, ("", "model", *self.baselines), tuple(rows))

    def _coverage_section(self) -> Section:
        rows = []
        for subject in dict.fromkeys(one.subject for one in self.coverage):
            cells = [
                f"{percent(one.observed)} ({_expected(one)})"
                for one in self.coverage
                if one.subject == subject
            ]
            rows.append((subject, *cells))
        heads = ("", *(percent(coverage) for coverage in self.coverages))
        return Section("Coverage", heads, tuple(rows))

    def _test_section(self) -> Section:
        rows = tuple(
            (
                test.subject,
                test.name,
                f"{test.effect:.3g}",
                f"{test.lower:.3g} to {test.upper:.3g}",
                f"{test.adjusted:.2g}",
            )
            for test in self.tests
        )
        heads = ("", "of", "effect", "95 % interval", "p, corrected")
        return Section("Calibration", heads, rows)

    def _bin_section(self) -> Section:
        if self.bins is None:
            return Section("", (), ())
        ranked = sorted(self.bins.bins, key=lambda one: one.worst.p_value)[:5]
        rows = tuple(
            (
                one.column,
                one.label,
                str(one.n_rows),
                f"{one.worst.name} of {one.worst.subject}",
                f"{one.worst.effect:.3g} ({one.worst.lower:.3g} to {one.worst.upper:.3g})",
                f"{one.worst.adjusted:.2g}",
            )
            for one in ranked
        )
        heads = ("", "where", "rows", "of", "effect", "p, corrected")
        return Section("Worst bins", heads, rows)

    def _worst_section(self) -> Section:
        if not self.worst_rows:
            return Section("", (), ())
        rows = tuple(
            (
                row.label,
                f"{row.value:.4g}",
                *(
                    f"{seen:.4g} ({mean:.4g} ± {spread:.2g})"
                    for seen, mean, spread in zip(
                        row.observed, row.predicted, row.spread, strict=True
                    )
                ),
            )
            for row in self.worst_rows
        )
        heads = ("row", LABELS[self.worst_rows[0].score], *self.names)
        return Section("Worst rows: observed (predicted)", heads, rows)

    def __str__(self) -> str:
        return "\n".join([self.verdict, "", self._about(), *map(section_text, self.sections())])

    def _about(self) -> str:
        count = f"{self.n_rows} rows"
        if self.n_groups is not None:
            count += f" in {self.n_groups} groups"
        return f"{self.kind}, {count}, {len(self.names)} target(s)"

    def __repr__(self) -> str:
        return f"Report({self.kind}, n_rows={self.n_rows}: {self._headline()})"

    def _repr_html_(self) -> str:
        lines = "".join(f"<p>{escape(line)}</p>" for line in self.verdict.splitlines())
        return f"<div>{lines}{''.join(map(section_html, self.sections()))}</div>"

    # To files.

    def to_dict(self, *, rows: bool = True) -> dict[str, Any]:
        """Return every figure in plain values that JSON has; without `rows`, no figures of rows."""
        plain: dict[str, Any] = {
            "verdict": self.verdict,
            "kind": self.kind,
            "names": list(self.names),
            "n_rows": self.n_rows,
            "n_groups": self.n_groups,
            "coverages": list(self.coverages),
            "quantiles": list(self.quantiles),
            "scores": _plain_scores(self.scores),
            "targets": {name: _plain_scores(each) for name, each in self.targets.items()},
            "coverage": [one.to_dict() for one in self.coverage],
            "tests": [one.to_dict() for one in self.tests],
            "bins": None if self.bins is None else self.bins.to_dict(),
            "worst_rows": [one._asdict() for one in self.worst_rows],
            "baselines": {
                name: {
                    "scores": _plain_scores(one.scores),
                    "targets": {target: _plain_scores(v) for target, v in one.targets.items()},
                    "gain": None if one.gain is None else one.gain.to_dict(),
                }
                for name, one in self.baselines.items()
            },
            "left_out": dict(self.left_out),
        }
        if rows:
            plain["rows"] = {name: values.tolist() for name, values in self.rows.items()}
            plain["weights"] = None if self.weights is None else self.weights.tolist()
        encoded: dict[str, Any] = encode_floats(plain)
        return encoded

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the report of `to_dict`."""
        bins, weights = values["bins"], values.get("weights")
        return cls(
            kind=values["kind"],
            names=tuple(values["names"]),
            n_rows=values["n_rows"],
            n_groups=values["n_groups"],
            coverages=tuple(values["coverages"]),
            quantiles=tuple(values["quantiles"]),
            scores=_scores_from(values["scores"]),
            targets={name: _scores_from(each) for name, each in values["targets"].items()},
            coverage=tuple(
                Coverage.from_dict(_decoded(Coverage, one)) for one in values["coverage"]
            ),
            tests=tuple(Test.from_dict(_decoded(Test, one)) for one in values["tests"]),
            bins=None if bins is None else Bins.from_dict(_decoded_bins(bins)),
            worst_rows=tuple(_worst_row(one) for one in values["worst_rows"]),
            baselines={
                name: Baseline(
                    _scores_from(one["scores"]),
                    {target: _scores_from(each) for target, each in one["targets"].items()},
                    None if one["gain"] is None else Score.from_dict(one["gain"]),
                )
                for name, one in values["baselines"].items()
            },
            rows={name: _array(each) for name, each in values.get("rows", {}).items()},
            weights=None if weights is None else _array(weights),
            left_out=dict(values["left_out"]),
        )

    def to_json(self, path: str | os.PathLike[str] | None = None, *, rows: bool = True) -> str:
        """Return the report as JSON, and write it to a file if a path is given."""
        text = json.dumps(self.to_dict(rows=rows), indent=1, allow_nan=False)
        return written(path, text)

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return every figure but those of rows in a table of CSV, and write it to a file.

        The columns are section, subject, name, value, standard_error, lower and upper. A name
        that a spreadsheet would read as a formula gets an apostrophe in front.
        """
        stream = io.StringIO(newline="")
        writer = csv.writer(stream)
        writer.writerow(("section", "subject", "name", "value", "standard_error", "lower", "upper"))
        for section, subject, name, *numbers in self._figures():
            cells = ["" if number is None else repr(float(number)) for number in numbers]
            writer.writerow([section, harmless(subject), harmless(name), *cells])
        return written(path, stream.getvalue())

    def to_html(
        self, path: str | os.PathLike[str] | None = None, *, progress: bool | None = None
    ) -> str:
        """Return the report as one page with its pictures inside, and write it to a file.

        The page asks for nothing from elsewhere, runs no script, and is light or dark as the
        reader's system is. Needs the extra `plot`.

        Args:
            path: of the file, such as "report.html".
            progress: show a line; by default where stderr is a terminal.
        """
        from condens.evaluation.page import Content, page

        check_place(path)  # before the work, and again after it
        gains = {name: one.gain for name, one in self.baselines.items() if one.gain is not None}
        content = Content(
            self._about(),
            self.names,
            self.verdict,
            self.sections(),
            gains,
            self.tests,
            self.bins,
            self.rows,
            self.weights,
        )
        return written(path, page(content, progress=progress))

    def _figures(self) -> Iterator[tuple[Any, ...]]:
        """Yield section, subject, name, value, standard error, lower and upper end."""
        for name, score in self.scores.items():
            yield ("scores", JOINT, name, *score, None, None)
        for target, scores in self.targets.items():
            for name, score in scores.items():
                yield ("targets", target, name, *score, None, None)
        for one in self.coverage:
            yield (
                "coverage", one.subject, f"{one.coverage:g}", one.observed, None,
                one.expected_lower, one.expected_upper,
            )  # fmt: skip
        for test in self.tests:
            yield ("tests", test.subject, test.name, test.effect, None, test.lower, test.upper)
            yield ("p-values", test.subject, test.name, test.adjusted, None, None, None)
        for baseline, other in self.baselines.items():
            for name, score in other.scores.items():
                yield (baseline, JOINT, name, *score, None, None)
            if other.gain is not None:
                yield (baseline, JOINT, "gain", *other.gain, None, None)
            for target, scores in other.targets.items():
                for name, score in scores.items():
                    yield (baseline, target, name, *score, None, None)
        for row in self.worst_rows:
            yield ("worst rows", row.label, row.score, row.value, None, None, None)


# Words.


def compared(gain: Score, other: str) -> str:
    """Return what a difference in log-likelihood means, in words.

    >>> compared(Score(0.62, 0.03), "a linear model")
    'Better than a linear model by 0.62 ± 0.03 nats a row'
    """
    if gain.value == math.inf:
        return f"Better than {other}, which finds some rows impossible"
    if gain.value == -math.inf:
        return f"Worse than {other}: some rows are impossible under the model"
    if not abs(gain.value) > ERRORS_OF_A_DIFFERENCE * gain.standard_error:
        return f"Not better than {other}, within chance ({gain} nats a row)"
    side = "Better" if gain.value > 0 else "Worse"
    size = plus_minus(abs(gain.value), gain.standard_error, 1)
    return f"{side} than {other} by {size} nats a row"


def percent(fraction: float) -> str:
    """Return a fraction in per cent.

    >>> percent(0.9), percent(0.975), percent(1.0)
    ('90 %', '97.5 %', '100 %')
    """
    return f"{round(100 * fraction, 1):g} %"


def _expected(one: Coverage) -> str:
    ends = 100 * one.expected_lower, 100 * one.expected_upper
    lower, upper = (f"{end:.{0 if ends[1] - ends[0] > 2 else 1}f}" for end in ends)
    return f"expected {lower}–{upper}"


def _fault(test: Test) -> tuple[str, float] | None:
    """Return a test's effect in words and in units of what matters, if it does.

    It has to be larger than chance, after the correction, and large enough to matter.
    """
    if not test.adjusted < SIGNIFICANCE:
        return None
    interval = f"({test.lower:.2f} to {test.upper:.2f})"
    if test.name == "bias":
        side = "low" if test.effect > 0 else "high"
        size = abs(test.effect) / BIAS_THAT_MATTERS
        ends = sorted((abs(test.lower), abs(test.upper)))
        text = (
            f"Biased: {test.subject} is predicted too {side}, by {abs(test.effect):.2f} "
            f"({ends[0]:.2f} to {ends[1]:.2f}) predicted standard deviations."
        )
    elif test.name == "spread" and test.effect > 0:
        narrow = test.effect > 1
        size = abs(math.log(test.effect)) / math.log(FACTOR_THAT_MATTERS)
        factor, *ends = (
            (test.effect, test.lower, test.upper)
            if narrow
            else (1 / test.effect, 1 / test.upper, 1 / max(test.lower, 1e-300))
        )
        words = ("Over-confident", "narrow") if narrow else ("Under-confident", "wide")
        text = (
            f"{words[0]}: the densities of {test.subject} are too {words[1]}, by a factor of "
            f"{factor:.2f} ({ends[0]:.2f} to {ends[1]:.2f})."
        )
    elif test.name == "shape":
        size = test.lower / DISTANCE_THAT_MATTERS
        text = (
            f"Wrong in shape: the distribution function of {test.subject} is off by "
            f"{test.effect:.2f} {interval}."
        )
    elif test.name == "coverage":
        size = abs(test.effect - BIN_COVERAGE) / COVERAGE_THAT_MATTERS
        what = "narrow" if test.effect < BIN_COVERAGE else "wide"
        text = (
            f"Too {what}: {percent(BIN_COVERAGE)} regions hold {percent(test.effect)} "
            f"({100 * test.lower:.0f} to {100 * test.upper:.0f})."
        )
    else:
        return None
    return (text, size) if size > 1 else None


def harmless(name: str) -> str:
    """Return a name that no spreadsheet reads as a formula.

    >>> harmless("=cmd()"), harmless("price")
    ("'=cmd()", 'price')
    """
    text = printable(name)
    return f"'{text}" if name[:1] in tuple("=+-@\t\r\n\0") or text != name else text


def _label(name: str) -> str:
    """Return a score's name in words."""
    what, _, level = name.partition("_")
    if what == "pinball":
        return f"pinball loss at {level}"
    return f"width of {percent(float(level))} intervals" if what == "width" else LABELS[name]


def _text(score: Score | None) -> str:
    return "" if score is None else str(score)


def section_text(section: Section) -> str:
    """Return a section for a terminal, names without control characters."""
    table = [[printable(cell) for cell in line] for line in (section.heads, *section.rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if not place else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    ]
    return "\n".join(["", printable(section.title), *lines])


def section_html(section: Section) -> str:
    """Return a section as a table of HTML, every cell escaped."""

    def line(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

    body = "".join(line(row, "td") for row in section.rows)
    return (
        f"<table><caption>{escape(section.title)}</caption>"
        f"<thead>{line(section.heads, 'th')}</thead><tbody>{body}</tbody></table>"
    )


# Plain values.


def _plain_scores(scores: Mapping[str, Score]) -> dict[str, dict[str, float]]:
    return {name: score.to_dict() for name, score in scores.items()}


def _scores_from(values: Mapping[str, Any]) -> dict[str, Score]:
    return {name: Score.from_dict(each) for name, each in values.items()}


def _decoded(record: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a record with its numbers as such; a name may be "nan"."""
    numbers = {each.name for each in fields(record) if each.type in (float, "float")}
    return {name: decode_float(v) if name in numbers else v for name, v in values.items()}


def _decoded_bins(values: Mapping[str, Any]) -> dict[str, Any]:
    bins = [
        {
            **one,
            "coverages": [_decoded(Coverage, each) for each in one["coverages"]],
            "tests": [_decoded(Test, each) for each in one["tests"]],
        }
        for one in values["bins"]
    ]
    return {**values, "bins": bins}


def _worst_row(values: Mapping[str, Any]) -> WorstRow:
    numbers = {
        name: tuple(map(decode_float, values[name])) for name in ("observed", "predicted", "spread")
    }
    return WorstRow(**{**values, "value": decode_float(values["value"]), **numbers})


def _array(values: Any) -> Array:
    return np.array(
        [
            [decode_float(cell) for cell in each] if isinstance(each, list) else decode_float(each)
            for each in values
        ],
        dtype=np.float64,
    )


def check_place(path: str | os.PathLike[str] | None) -> Path | None:
    """Return where a file is written, if there is a path; refuse a place that cannot hold one."""
    if path is None:
        return None
    place = as_path("path", path)
    fault = cannot_hold(place)
    if fault is not None:
        raise ArgumentError(f"{place}", **fault)
    return place.resolve()


def written(path: str | os.PathLike[str] | None, text: str) -> str:
    """Write text to a file, if there is a path, and return it."""
    place = check_place(path)
    if place is not None:
        write_whole(place, text.encode())
    return text
