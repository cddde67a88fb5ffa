"""The table of results, from the lines of runs.

    python benchmarks/quality/table.py benchmarks/quality/results [--final]

Every method is shown at the version that ran last on a task.
"""

import argparse
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from journal import Record, read
from methods import METHODS, find_method
from tasks import TASKS, Task

LEVELS = {"coverage_50": 0.5, "coverage_90": 0.9}
# A table of so many scored rows or more must keep its coverage within the second number.
ROWS_FOR_COVERAGE, COVERAGE_ALLOWED = 500, 0.05
NAMES = {"nll": "NLL", "c2st": "C2ST", "err_post": "Err_post"}


class Value(NamedTuple):
    """A mean over splits and its standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        if not math.isfinite(self.mean):
            return "∞" if self.mean > 0 else "–"
        if not math.isfinite(self.error) or self.error <= 0:
            return f"{self.mean:.4g}"
        digits = min(5, max(0, 1 - math.floor(math.log10(self.error))))
        return f"{self.mean:.{digits}f} ± {self.error:.{digits}f}"


class Runs:
    """The runs of a file: for each task and method those of the version that ran last."""

    def __init__(self, records: Iterable[Record]) -> None:
        records = list(records)
        self.versions = {(r["task"], r["method"]): r["version"] for r in records}
        self.cells: dict[tuple[str, str], dict[int, Record]] = {}
        self.reasons: dict[tuple[str, str], str] = {}
        for record in records:
            task, method = record["task"], record["method"]
            known = TASKS.get(task)
            current = record["version"] == self.versions[task, method]
            if known is None or not current or record["revision"] != known.revision:
                continue
            split, place = record["split"], (task, method)
            self.cells.setdefault(place, {}).pop(split, None)  # a later run counts
            if "skipped" in record or "failed" in record:
                word = "skipped" if "skipped" in record else "failed"
                self.reasons[place] = f"{word}: {record[word]}"
            else:
                self.cells[place][split] = record
        self.cells = {place: cell for place, cell in self.cells.items() if cell}
        self.tasks = [TASKS[name] for name in TASKS if any(t == name for t, _ in self.cells)]
        order = list(METHODS)
        found = {method for _, method in self.versions}
        self.methods = sorted(found, key=lambda m: (order.index(m.partition(":")[0]), m))

    def values(self, task: str, method: str, score: str) -> dict[int, float]:
        """Return a score by split."""
        cell = self.cells.get((task, method), {})
        return {split: float(r[score]) for split, r in cell.items() if score in r}

    def value(self, task: str, method: str, score: str) -> Value | None:
        """Return the mean over splits; of a single split its own standard error."""
        found = self.values(task, method, score)
        if not found:
            return None
        each = np.array(list(found.values()))
        if len(each) > 1:
            return Value(float(each.mean()), float(each.std(ddof=1) / math.sqrt(len(each))))
        (record,) = self.cells[task, method].values()
        return Value(float(each[0]), float(record.get(f"{score}_error", math.nan)))

    def gap(self, task: str, method: str, other: str, score: str) -> float | None:
        """Return a method's score minus another's, mean over the splits of both."""
        mine, theirs = self.values(task, method, score), self.values(task, other, score)
        common = sorted(mine.keys() & theirs.keys())
        if not common:
            return None
        return float(np.mean([mine[split] - theirs[split] for split in common]))

    def difference(self, task: str, method: str, score: str) -> tuple[float, str] | None:
        """Return a method's score minus that of its best peer, on the splits of both."""
        peers = [peer for peer in self.methods if not find_method(peer).ours]
        found = {peer: self.gap(task, method, peer, score) for peer in peers}
        gaps = {peer: gap for peer, gap in found.items() if gap is not None}
        if not gaps:
            return None
        best = max(gaps, key=gaps.__getitem__)
        return gaps[best], best

    def coverage(self, task: str, method: str, level: str) -> tuple[float, int] | None:
        """Return the part of the rows inside, pooled over splits, and their number."""
        runs = [r for r in self.cells.get((task, method), {}).values() if level in r]
        rows = sum(r["n_drawn"] for r in runs)
        return (sum(float(r[level]) * r["n_drawn"] for r in runs) / rows, rows) if rows else None


class Standing(NamedTuple):
    """How a method stands beside its peers.

    Args:
        ahead, compared: tasks on which it is ahead of every peer, and all that were compared;
            tasks of the same building count as one, ahead if it is on each of them.
        behind: task → nats per target behind the best peer, where it is behind.
        off: mean absolute deviation of coverages over tasks and levels.
        worst_off: tables beyond the allowed deviation, with the deviation.
    """

    ahead: int
    compared: int
    behind: dict[str, float]
    off: float
    worst_off: dict[str, float]


def standing(runs: Runs, method: str = "condens") -> Standing:
    """Return the tally of a method."""
    ahead: dict[str, list[bool]] = {}
    behind, deviations, worst = {}, [], {}
    for task in runs.tasks:
        found = runs.difference(task.name, method, primary(runs, task))
        if found is not None:
            ahead.setdefault(task.building or task.name, []).append(found[0] < 0)
        nats = runs.difference(task.name, method, "nll")
        if nats is not None and nats[0] > 0:
            behind[task.name] = nats[0] / task.dimensions
        for level, expected in LEVELS.items():
            pooled = runs.coverage(task.name, method, level)
            if pooled is not None:
                off = abs(pooled[0] - expected)
                deviations.append(off)
                if pooled[1] >= ROWS_FOR_COVERAGE and off > COVERAGE_ALLOWED:
                    worst[task.name] = max(off, worst.get(task.name, 0.0))
    return Standing(
        sum(all(each) for each in ahead.values()),
        len(ahead),
        dict(sorted(behind.items(), key=lambda item: -item[1])),
        float(np.mean(deviations)) if deviations else math.nan,
        dict(sorted(worst.items(), key=lambda item: -item[1])),
    )


def primary(runs: Runs, task: Task) -> str:
    """Return the score that a task is compared by: its own, or the NLL where runs lack that."""
    cells = [
        c for (name, _), cell in runs.cells.items() if name == task.name for c in cell.values()
    ]
    return task.primary if any(task.primary in record for record in cells) else "nll"


# Text.


def markdown(runs: Runs, *, final: bool, uses: int) -> str:
    """Return the whole page."""
    kind = "test rows" if final else "rows kept from the training rows (inner scores)"
    command = "make quality-final" if final else "make quality"
    parts = [
        "# Quality of densities",
        f"Scores of {kind}, by `{command}`: mean ± standard error over splits, lower is better, "
        "in bold what no other beats on the splits of both. Defaults everywhere, one thread; n "
        "is the number of training rows, D of targets; a number in brackets, of splits where "
        "they are fewer than others of the row have.",
    ]
    if final:
        parts.append(f"The test rows have been looked at {uses} time(s): `final_uses.jsonl`.")
    parts += [_verdict(runs), "## Scores", _scores(runs, final=final)]
    for title, score, note in (
        ("Regret", "regret", "NLL minus that of the true density on the same rows: its KL."),
        ("CRPS and energy score", "crps,energy_score", "In the units of the targets."),
        ("Err_resim", "err_resim", "Squared distance of re-simulated draws to what was seen."),
        ("Worst row", "worst_nll", "The largest NLL of a row, mean over splits."),
        ("Seconds to fit", "fit_seconds", "One thread."),
        ("Seconds to predict", "predict_seconds", "Densities of all scored rows, one thread."),
    ):
        grid = _grid(runs, score.split(","))
        if grid:
            parts += [f"## {title}", note, grid]
    parts += ["## Coverage", _coverages(runs), _left_out(runs), _versions(runs)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _verdict(runs: Runs) -> str:
    if "condens" not in runs.methods:
        return ""
    found = standing(runs)
    lines = []
    if found.compared:
        lines.append(
            f"- condens is ahead of every peer on {found.ahead} of {found.compared} tasks (energy "
            "and enb are the same buildings and count as one)."
        )
    if found.behind:
        task, deficit = next(iter(found.behind.items()))
        lines.append(f"- Its largest deficit is {deficit:.3f} nats per target, on {task}.")
    if math.isfinite(found.off):
        far = ", ".join(f"{task} ({off:.2f})" for task, off in found.worst_off.items())
        lines.append(
            f"- Its 50 and 90 % regions are off by {found.off:.3f} on average, rows pooled over "
            f"splits; by more than {COVERAGE_ALLOWED} with {ROWS_FOR_COVERAGE} rows or more: "
            f"{far or 'none'}."
        )
    return "\n".join(lines)


def _scores(runs: Runs, *, final: bool) -> str:
    heads = ["task", "n", "D", "splits", "score", *runs.methods, "against the best peer"]
    published = any(task.published for task in runs.tasks)
    if published:
        heads.append("published" if final else "published, on test rows")
    rows = []
    for task in runs.tasks:
        score = primary(runs, task)
        found = runs.difference(task.name, "condens", score)
        gap = "–" if found is None else f"{found[0]:+.3g} ({found[1]})"
        cells = _cells(runs, task, score)
        row = [*_sizes(runs, task), NAMES[score], *cells, gap]
        if published:
            figures = sorted(task.published.items(), key=lambda item: item[1])
            row.append(", ".join(f"{figure:g} {source}" for source, figure in figures) or "–")
        rows.append(row)
    return _table(heads, rows)


def _sizes(runs: Runs, task: Task) -> list[str]:
    cells = {m: cell for (name, m), cell in runs.cells.items() if name == task.name}
    n_train = {record["n_train"] for cell in cells.values() for record in cell.values()}
    most = max(map(len, cells.values()))
    return [task.name, str(max(n_train)), str(task.dimensions), f"{most} of {task.n_splits}"]


def _cells(runs: Runs, task: Task, score: str) -> list[str]:
    splits = {method: len(runs.values(task.name, method, score)) for method in runs.methods}
    cells = []
    for method in runs.methods:
        value = runs.value(task.name, method, score)
        if value is None:
            cells.append("–")
            continue
        gaps = [runs.gap(task.name, method, other, score) for other in runs.methods]
        best = math.isfinite(value.mean) and not any(gap is not None and gap > 0 for gap in gaps)
        text = f"**{value}**" if best else str(value)
        fewer = splits[method] < max(splits.values())
        cells.append(f"{text} ({splits[method]})" if fewer else text)
    return cells


def _grid(runs: Runs, scores: list[str]) -> str:
    rows = []
    for task in runs.tasks:
        for score in scores:
            cells = _cells(runs, task, score)
            if any(cell != "–" for cell in cells):
                rows.append([*_sizes(runs, task)[:3], *cells])
    return _table(["task", "n", "D", *runs.methods], rows) if rows else ""


def _coverages(runs: Runs) -> str:
    rows = []
    for task in runs.tasks:
        cells, counts = [], [0]
        for method in runs.methods:
            pooled = [runs.coverage(task.name, method, level) for level in LEVELS]
            cells.append(" / ".join(f"{p[0]:.2f}" for p in pooled if p) or "–")
            counts += [p[1] for p in pooled if p]
        if max(counts):
            rows.append([task.name, str(max(counts)), *cells])
    note = "Part of the rows inside the 50 and 90 % highest-density regions, pooled over splits."
    return f"{note}\n\n" + _table(["task", "rows", *runs.methods], rows)


def _left_out(runs: Runs) -> str:
    by_reason: dict[tuple[str, str], list[str]] = {}
    for (task, method), reason in runs.reasons.items():
        by_reason.setdefault((method, reason), []).append(task)
    lines = [f"- {m} on {', '.join(tasks)}: {why}" for (m, why), tasks in by_reason.items()]
    return "## Left out\n\n" + "\n".join(lines) if lines else ""


def _versions(runs: Runs) -> str:
    lines = []
    for method in runs.methods:
        tasks: dict[str, list[str]] = {}
        for task, _ in (place for place in runs.cells if place[1] == method):
            tasks.setdefault(runs.versions[task, method], []).append(task)
        lines += [
            f"- {method}: {version}" + (f" ({', '.join(of)})" if len(tasks) > 1 else "")
            for version, of in tasks.items()
        ]
    sources = (
        "Published figures: test NLL on the standard UCI splits, of Deep Ensembles, NGBoost, Deep "
        "Evidential regression, TreeFlow and TabResFlow; Parkinsons from the MOMoGP arrangement; "
        "C2ST of sbibm (Lueckmann et al. 2021); Err_post of Kruse et al. (2021) and a later "
        "replication."
    )
    return "\n".join(["## Versions and sources", "", *lines, "", sources])


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def load(directory: Path, *, final: bool) -> Runs:
    """Return the runs of a directory."""
    return Runs(read(directory / ("final.jsonl" if final else "runs.jsonl")))


def write(directory: Path, *, final: bool = False) -> Path | None:
    """Write results.md, or final.md, if there are runs."""
    runs = load(directory, final=final)
    if not runs.tasks:
        return None
    uses = len(read(directory / "final_uses.jsonl"))
    path = directory / ("final.md" if final else "results.md")
    path.write_text(markdown(runs, final=final, uses=uses))
    return path


def options(description: str) -> Mapping[str, Any]:
    """Read the command line of the table and of the picture."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--final", action="store_true", help="of the test rows")
    return vars(parser.parse_args())


if __name__ == "__main__":
    print(json.dumps({"written": str(write(**options(__doc__.split("\n")[0])))}))
