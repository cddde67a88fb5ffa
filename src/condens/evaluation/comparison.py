"""`compare`: several models on the same rows, with paired standard errors."""

import csv
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import combinations
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import special
from torch import Generator

from condens.data import TableLike
from condens.errors import ArgumentError
from condens.evaluation.assessment import N_SAMPLES, check_observed, read_clusters
from condens.evaluation.calibration import holm
from condens.evaluation.forecasts import Forecast
from condens.evaluation.models import Model, Source, read_source
from condens.evaluation.report import (
    LABELS,
    Section,
    harmless,
    section_html,
    section_text,
    written,
)
from condens.evaluation.scores import Questions, RowScores, rows_per_block, score
from condens.evaluation.statistics import (
    Array,
    Integers,
    Score,
    paired_difference,
    plus_minus,
    weighted_mean,
)
from condens.nn.randomness import seeded_generator
from condens.progress import Progress
from condens.scalars import as_whole, decode_float, encode_floats

# A difference with a corrected p-value below is larger than chance.
SIGNIFICANCE = 0.05
# Scores that differ by less, relative to 1 + their size, are the same.
SLACK = 1e-12
# Scores of which more is better.
HIGHER_IS_BETTER = ("log_likelihood",)


class Difference(NamedTuple):
    """What one model has more than another, row by row on average.

    Args:
        score: `log_likelihood` (more is better), `energy_score`, or `crps` of a target.
        target: the target, "" where the score is of all.
        first, second: the models; the difference is first − second.
        value, standard_error: of the mean difference, with paired rows.
        p_value: of a difference as large by chance (Student's t).
        adjusted: the same, corrected for all pairs of models in this score (Holm).
    """

    score: str
    target: str
    first: str
    second: str
    value: float
    standard_error: float
    p_value: float
    adjusted: float

    @property
    def significant(self) -> bool:
        """Whether the difference is larger than chance."""
        return self.adjusted < SIGNIFICANCE


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several models judged by the same rows; `print` it, or end a notebook's cell with it.

    Attributes:
        names: of the models, the best first: by log-likelihood if all have one, or by the energy
            score.
        n_rows, n_groups: that count; no groups: None.
        targets: their names.
        scores: `log_likelihood` and `energy_score`, by model.
        target_scores: `crps`, by target and by model.
        differences: of every pair of models, in every score that both have.
        rows: `log_likelihood` and `energy_score` of every row [n], by model.
        left_out: what is not here, and why.
    """

    names: tuple[str, ...]
    n_rows: int
    n_groups: int | None
    targets: tuple[str, ...]
    scores: dict[str, dict[str, Score]]
    target_scores: dict[str, dict[str, dict[str, Score]]]
    differences: tuple[Difference, ...]
    rows: dict[str, dict[str, Array]]
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def score(self) -> str:
        """The score that the models are ranked by."""
        complete = len(self.scores.get("log_likelihood", {})) == len(self.names)
        return "log_likelihood" if complete else "energy_score"

    def difference(self, first: str, second: str, score: str | None = None) -> Difference:
        """Return first − second in a score of all targets, by default the one of the ranking."""
        asked = self.score if score is None else score
        for one in self.differences:
            if one.score == asked and not one.target and {one.first, one.second} == {first, second}:
                if one.first == first:
                    return one
                return one._replace(first=first, second=second, value=0.0 - one.value)
        raise ArgumentError(
            "first and second",
            got=f"are {first!r} and {second!r}, in {asked}",
            expected=f"two of {', '.join(self.names)} that both have it were expected",
            fix="Pass their names.",
        )

    @property
    def verdict(self) -> str:
        """Which model is best, and whether by more than chance."""
        best, *others = self.names
        if not others:
            return f"{best} is the only model."
        unit = " nats a row" if self.score == "log_likelihood" else " in energy score"
        pairs = [self.difference(best, other) for other in others]
        equal = [one for one in pairs if not one.significant]
        if not equal:
            nearest = pairs[0]
            size = plus_minus(abs(nearest.value), nearest.standard_error, 1)
            return f"{best} is best, ahead of {nearest.second} by {size}{unit}."
        listed = ", ".join(
            f"{one.second} ({plus_minus(abs(one.value), one.standard_error, 1)}{unit} behind)"
            for one in equal
        )
        return f"{best} is best, but not by more than chance from {listed}."

    def sections(self) -> tuple[Section, ...]:
        """Return every figure as text, in tables."""
        best, rows = self.names[0], []
        for name in self.names:
            gap = "" if name == best else str(_score_of(self.difference(name, best)))
            chance = "" if name == best else f"{self.difference(name, best).adjusted:.2g}"
            cells = [_text(self.scores[one].get(name)) for one in self.scores]
            alone = [_text(self.target_scores[t]["crps"].get(name)) for t in self.targets]
            rows.append((name, gap, chance, *cells, *alone))
        heads = (
            "model",
            f"difference in {LABELS[self.score]}",
            "p, corrected",
            *(LABELS[one] for one in self.scores),
            *(f"CRPS of {target}" for target in self.targets),
        )
        made = (
            Section(f"Models, on {self.n_rows} rows", heads, tuple(rows)),
            Section("Left out", ("what", "why"), tuple(self.left_out.items())),
        )
        return tuple(section for section in made if section.rows)

    def __str__(self) -> str:
        return "\n".join([self.verdict, *map(section_text, self.sections())])

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self.names)}: {self.verdict})"

    def _repr_html_(self) -> str:
        tables = "".join(map(section_html, self.sections()))
        return f"<div><p>{escape(self.verdict)}</p>{tables}</div>"

    def to_dict(self, *, rows: bool = True) -> dict[str, Any]:
        """Return every figure in plain values that JSON has; without `rows`, no figures of rows."""
        plain: dict[str, Any] = {
            "verdict": self.verdict,
            "names": list(self.names),
            "n_rows": self.n_rows,
            "n_groups": self.n_groups,
            "targets": list(self.targets),
            "scores": _plain(self.scores),
            "target_scores": {name: _plain(each) for name, each in self.target_scores.items()},
            "differences": [one._asdict() for one in self.differences],
            "left_out": dict(self.left_out),
        }
        if rows:
            plain["rows"] = {
                model: {name: values.tolist() for name, values in each.items()}
                for model, each in self.rows.items()
            }
        encoded: dict[str, Any] = encode_floats(plain)
        return encoded

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the comparison of `to_dict`."""
        numbers = ("value", "standard_error", "p_value", "adjusted")
        return cls(
            names=tuple(values["names"]),
            n_rows=values["n_rows"],
            n_groups=values["n_groups"],
            targets=tuple(values["targets"]),
            scores=_from_plain(values["scores"]),
            target_scores={name: _from_plain(v) for name, v in values["target_scores"].items()},
            differences=tuple(
                Difference(**{**one, **{name: decode_float(one[name]) for name in numbers}})
                for one in values["differences"]
            ),
            rows={
                model: {
                    name: np.array([decode_float(cell) for cell in cells], dtype=np.float64)
                    for name, cells in each.items()
                }
                for model, each in values.get("rows", {}).items()
            },
            left_out=dict(values["left_out"]),
        )

    def to_json(self, path: str | os.PathLike[str] | None = None, *, rows: bool = True) -> str:
        """Return the comparison as JSON, and write it to a file if a path is given."""
        return written(path, json.dumps(self.to_dict(rows=rows), indent=1, allow_nan=False))

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the scores and the differences in a table of CSV, and write it to a file.

        A name that a spreadsheet would read as a formula gets an apostrophe in front.
        """
        stream = io.StringIO(newline="")
        writer = csv.writer(stream)
        heads = ("score", "target", "model", "minus", "value", "standard_error", "p_corrected")
        writer.writerow(heads)
        for name, scores in self.scores.items():
            for model, one in scores.items():
                writer.writerow([name, "", harmless(model), "", *map(repr, one), ""])
        for target, each in self.target_scores.items():
            for name, scores in each.items():
                for model, one in scores.items():
                    cells = [name, harmless(target), harmless(model), ""]
                    writer.writerow([*cells, *map(repr, one), ""])
        for gap in self.differences:
            words = [gap.score, *map(harmless, (gap.target, gap.first, gap.second))]
            numbers = (gap.value, gap.standard_error, gap.adjusted)
            writer.writerow([*words, *map(repr, numbers)])
        return written(path, stream.getvalue())


def compare(
    models: Mapping[str, Model],
    X: TableLike | None,  # noqa: N803
    y: TableLike,
    *,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    n_samples: int = N_SAMPLES,
    seed: int = 0,
    progress: bool | None = None,
) -> Comparison:
    """Judge several models by the same rows, and tell which differences are larger than chance.

    Args:
        models: name → what `evaluate` takes as model; NGBoost's, sbi's and torch's too.
        X, y, sample_weight, groups, n_samples, seed, progress: as in `evaluate`.

    Differences are those of paired rows. A probability and a density are never compared: where
    one model gives probabilities of whole numbers, the density of another is integrated over
    y ± ½, or refused if there is no way to.

    >>> from condens import GaussianMixture
    >>> wide, good = (GaussianMixture(torch.zeros(1), torch.zeros(1, 1), torch.full((1, 1), f))
    ...               for f in (-1.0, 0.0))
    >>> y = good.sample((400,), generator=Generator().manual_seed(0))
    >>> compare({"good": good, "wide": wide}, None, y).verdict
    'good is best, ahead of wide by 0.56 ± 0.03 nats a row.'
    """
    if not isinstance(models, Mapping) or not models:
        raise ArgumentError(
            "models",
            got=f"is a {type(models).__name__}",
            expected="at least one model by its name was expected",
            fix='Pass {"mine": model, "theirs": other}.',
        )
    questions = Questions((), (), as_whole("n_samples", n_samples, 2, fix="Pass 199."))
    seeded_generator(seed)  # refuses what is none, before the work
    if len({str(name) for name in models}) < len(models):
        raise ArgumentError(
            "models",
            got=f"has the names {[*models]}",
            expected="names that read alike were not expected",
            fix="Give every model a name of its own.",
        )
    with Progress("comparing", show=progress) as line:
        sources = {
            str(name): read_source(model, X, y, sample_weight) for name, model in models.items()
        }
        first = next(iter(sources.values()))
        _check_alike(sources, first)
        clusters = read_clusters(groups, len(first))
        weights = None if first.weights is None else first.weights.numpy()
        check_observed(first, weights)
        discrete = _discrete(sources)
        rows = {name: RowScores(first.shape, weights, clusters) for name in sources}
        line.total = len(first) * len(sources)
        for name, source in sources.items():
            _score(name, source, rows[name], discrete, questions, seeded_generator(seed), line)
        return _summary(sources, rows, clusters, weights)


def _check_alike(sources: Mapping[str, Source], first: Source) -> None:
    """Refuse models that put the columns of y in different orders."""
    for name, source in sources.items():
        if not torch.equal(source.target.nan_to_num(), first.target.nan_to_num()):
            raise ArgumentError(
                f"models[{name!r}]",
                got=f"is over {', '.join(source.names)}",
                expected=f"the first is over {', '.join(first.names)}",
                fix="Compare models over the same targets in the same order.",
            )


def _first_row(source: Source) -> Forecast:
    return source.forecast(torch.arange(len(source) if source.whole else 1))


def _discrete(sources: Mapping[str, Source]) -> tuple[bool, ...]:
    """Return which targets some model gives probabilities of."""
    each = [one.discrete for one in map(_first_row, sources.values()) if one.has_density]
    return tuple(map(any, zip(*each, strict=True)))


def _in_cells(
    name: str, forecast: Forecast, discrete: Sequence[bool], targets: Sequence[str]
) -> Forecast:
    """Return a forecast that gives probabilities of the same targets as the others."""
    if not forecast.has_density or forecast.discrete == tuple(discrete):
        return forecast
    found = forecast.in_cells(discrete)
    if found is None or found.discrete != tuple(discrete):
        whole = ", ".join(t for t, is_whole in zip(targets, discrete, strict=True) if is_whole)
        raise ArgumentError(
            f"models[{name!r}]",
            got=f"gives a density of {whole}",
            expected="another model gives probabilities of these whole numbers, and neither can be "
            "compared with the other",
            fix="Leave it out, or pass draws of it: these are compared by the energy score.",
        )
    return found


def _score(
    name: str,
    source: Source,
    rows: RowScores,
    discrete: tuple[bool, ...],
    questions: Questions,
    generator: Generator,
    line: Progress,
) -> None:
    count, dimensions = source.target.shape
    size = rows_per_block(questions.n_samples, dimensions, source.n_components)
    for block in torch.arange(count).split(count if source.whole else size):
        target, forecast = source.target[block], source.forecast(block)
        answers = score(forecast, target, questions, generator, brief=True)
        cells = _in_cells(name, forecast, discrete, source.names)
        if cells is not forecast:
            again = score(cells, target, questions, generator, brief=True)
            answers["log_likelihood"] = again["log_likelihood"]
        rows.put(block.numpy(), answers)
        line.advance(len(block))


def _summary(
    sources: Mapping[str, Source],
    rows: Mapping[str, RowScores],
    groups: Integers | None,
    weights: Array | None,
) -> Comparison:
    first = next(iter(sources.values()))
    observed: NDArray[np.bool_] = (~first.target.isnan()).numpy()
    counted: NDArray[np.bool_] = (~first.target.isnan()).any(1).numpy()
    counted = counted if weights is None else counted & (weights > 0)
    left_out = _on_common_rows(sources, rows, counted)
    scores = {
        name: {
            model: weighted_mean(one.values[name], weights, groups)
            for model, one in rows.items()
            if name in one.values
        }
        for name in ("log_likelihood", "energy_score")
    }
    scores = {name: each for name, each in scores.items() if each}
    complete = len(scores.get("log_likelihood", {})) == len(rows)
    key = "log_likelihood" if complete else "energy_score"
    sign = -1 if key in HIGHER_IS_BETTER else 1
    names = sorted(rows, key=lambda model: sign * scores[key][model].value)
    differences: list[Difference] = []
    for name in scores:
        differences += _differences(name, "", names, rows, lambda one, n=name: one.values.get(n))
    target_scores: dict[str, dict[str, dict[str, Score]]] = {}
    for dim, target in enumerate(first.names):
        columns = {model: rows[model].values["crps"][:, dim] for model in names}
        if not (observed[:, dim] & counted).any():
            columns, left_out[f"CRPS of {target}"] = {}, "it was never observed"
        means = {m: weighted_mean(column, weights, groups) for m, column in columns.items()}
        target_scores[target] = {"crps": means}
        differences += _differences(
            "crps", target, [*columns], rows, lambda one, d=dim: one.values["crps"][:, d]
        )
    return Comparison(
        names=tuple(names),
        n_rows=int(counted.sum()),
        n_groups=None if groups is None else len(np.unique(groups[counted])),
        targets=first.names,
        scores={name: {m: each[m] for m in names if m in each} for name, each in scores.items()},
        target_scores=target_scores,
        differences=tuple(differences),
        rows={
            model: {name: v for name, v in rows[model].values.items() if name in scores}
            for model in names
        },
        left_out=left_out,
    )


def _on_common_rows(
    sources: Mapping[str, Source], rows: Mapping[str, RowScores], counted: NDArray[np.bool_]
) -> dict[str, str]:
    """Leave log-likelihoods of the rows that every model has; return what is left out, and why."""
    left_out, common = {}, counted.copy()
    for name, one in rows.items():
        density = one.values.get("log_likelihood")
        if density is None or np.isnan(density[counted]).all():
            one.values.pop("log_likelihood", None)
            left_out[f"log-likelihood of {name}"] = f"{sources[name].kind} has no density here"
        elif np.isnan(density[counted]).any():
            common &= ~np.isnan(density)
            left_out[f"log-likelihood of {int((counted & ~common).sum())} rows"] = (
                f"{sources[name].kind} ({name}) has no marginal where y has gaps"
            )
    for one in rows.values():
        if "log_likelihood" in one.values:
            one.values["log_likelihood"][~common] = math.nan
    return left_out


def _differences(
    score_name: str,
    target: str,
    names: Sequence[str],
    rows: Mapping[str, RowScores],
    values_of: Any,
) -> list[Difference]:
    """Return the paired differences of all models that have a score, corrected together."""
    found = []
    for first, second in combinations(names, 2):
        one, other = values_of(rows[first]), values_of(rows[second])
        if one is None or other is None:
            continue
        gap = paired_difference(one, other)
        with np.errstate(invalid="ignore"):  # a difference within rounding is none
            gap = np.where(np.abs(gap) <= SLACK * (1 + np.abs(one)), 0.0, gap)
        weights, groups = rows[first].weights, rows[first].groups
        value, error = weighted_mean(gap, weights, groups)
        counts = ~np.isnan(gap) if weights is None else ~np.isnan(gap) & (weights > 0)
        units = int(counts.sum()) if groups is None else len(np.unique(groups[counts]))
        chance = _chance(value, error, units)
        found.append(Difference(score_name, target, first, second, value, error, chance, chance))
    adjusted = holm([one.p_value for one in found]).tolist()
    return [one._replace(adjusted=p) for one, p in zip(found, adjusted, strict=True)]


def _chance(value: float, error: float, units: int) -> float:
    """Return the probability of a difference as large, by Student's t with units − 1."""
    if math.isinf(value):
        return 0.0
    if units < 2 or not math.isfinite(error):
        return 1.0
    if not error:
        return 1.0 if not value else 0.0
    return float(2 * special.stdtr(units - 1, -abs(value) / error))


def _score_of(one: Difference) -> Score:
    return Score(one.value, one.standard_error)


def _text(score: Score | None) -> str:
    return "" if score is None else str(score)


def _plain(scores: Mapping[str, Mapping[str, Score]]) -> dict[str, dict[str, Any]]:
    return {name: {m: one.to_dict() for m, one in each.items()} for name, each in scores.items()}


def _from_plain(values: Mapping[str, Any]) -> dict[str, dict[str, Score]]:
    return {
        name: {model: Score.from_dict(one) for model, one in each.items()}
        for name, each in values.items()
    }
