"""Draw and tabulate the lines of results.jsonl.

python benchmarks/scale/plot.py benchmarks/scale/results
"""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

Case = tuple[int, int, str]


def name(found: dict[str, Any]) -> str:
    """Return a source in words."""
    if found["source"] == "memory":
        return "in memory"
    return f"{found['source']}, {found['group_rows'] // 1000}k"


def wall(found: dict[str, Any]) -> float:
    """Return rows a second in the best epoch."""
    return found["rows"] / min(found["seconds"])


def cpu(found: dict[str, Any]) -> float:
    """Return rows a CPU second of all processes: the others take as long as the first."""
    return found["rows"] / (found["processes"] * min(found["cpu"]))


def words(found: dict[str, Any]) -> str:
    """Return a line about a measurement."""
    return (
        f"{found['processes']} x {name(found):13} batch {found['batch']:4}: {wall(found):8.0f} "
        f"rows/s, {cpu(found):8.0f} rows/CPU s, load {found['load']:.1f}"
    )


def best(directory: Path) -> tuple[dict[Case, tuple[float, float]], list[dict[str, Any]]]:
    """Return rows a second and a CPU second of each case, the best of the rounds; and all lines."""
    lines = (directory / "results.jsonl").read_text().splitlines()
    every = [json.loads(line) for line in lines]
    found: dict[Case, tuple[float, float]] = {}
    for one in every:
        case = one["processes"], one["batch"], name(one)
        known = found.get(case, (0.0, 0.0))
        found[case] = max(known[0], wall(one)), max(known[1], cpu(one))
    return found, every


def table(directory: Path) -> str:
    """Write results.md, and return it."""
    found, every = best(directory)
    loads = [one["load"] for one in every]
    lines = [
        "# Rows a second",
        "",
        f"{every[0]['cores']} cores, load {min(loads):.1f} to {max(loads):.1f}, "
        f"{every[0]['threads']} thread a process; {every[0]['columns']} conditions, 2 targets, "
        "10 components, width 128, depth 3. On a busy machine the rows a CPU second are the "
        "figure to compare: of a streamed loop they count the reading too, which has a core of its "
        "own elsewhere. Sources: format and rows of a row group.",
        "",
        "| processes | batch | source | rows/s | of memory | rows/CPU s | of memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in sorted(found):
        count, batch, source = case
        mine, whole = found[case], found[count, batch, "in memory"]
        lines.append(
            f"| {count} | {batch} | {source} | {mine[0]:.0f} | {100 * mine[0] / whole[0]:.0f} % "
            f"| {mine[1]:.0f} | {100 * mine[1] / whole[1]:.0f} % |"
        )
    text = "\n".join(lines) + "\n"
    (directory / "results.md").write_text(text)
    return text


def draw(directory: Path) -> Path:
    """Write results.png."""
    found, _ = best(directory)
    figure = Figure(figsize=(10, 4), layout="constrained")
    sources = sorted({source for _, _, source in found}, key=lambda one: (one != "in memory", one))
    pairs = sorted({(count, batch) for count, batch, _ in found})
    for axes, place, label in zip(
        figure.subplots(1, 2), (0, 1), ("rows a second", "rows a CPU second"), strict=True
    ):
        for number, source in enumerate(sources):
            values = [found.get((*pair, source), (0.0, 0.0))[place] for pair in pairs]
            at = [
                p + (number - len(sources) / 2 + 0.5) * 0.8 / len(sources)
                for p in range(len(pairs))
            ]
            axes.bar(at, values, 0.8 / len(sources), label=source, color=f"C{number}")
        ticks = [f"{count} process{'es' if count > 1 else ''}\nbatch {b}" for count, b in pairs]
        axes.set_xticks(range(len(pairs)), ticks)
        axes.set_ylabel(label)
        axes.grid(axis="y", alpha=0.25)
        handles = axes.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=5, frameon=False)
    path = directory / "results.png"
    figure.savefig(path, dpi=110)
    return path


if __name__ == "__main__":
    print(draw(Path(sys.argv[1])))
    print(table(Path(sys.argv[1])))
