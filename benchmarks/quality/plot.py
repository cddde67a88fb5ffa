"""Draw how far every method is from the best peer, task by task.

python benchmarks/quality/plot.py benchmarks/quality/results [--final]
"""

import math
from pathlib import Path

from matplotlib.figure import Figure
from table import Runs, load, options

# Okabe and Ito's colours, told apart by shape as well.
STYLES = {
    "condens": ("#0072B2", "o", 70),
    "condens-1": ("#56B4E9", "o", 28),
    "linear": ("#555555", "|", 60),
    "diagonal": ("#999999", "x", 26),
    "sbi-mdn": ("#E69F00", "s", 20),
    "sbi-nsf": ("#D55E00", "^", 24),
    "zuko-nsf": ("#CC79A7", "v", 24),
    "ngboost": ("#009E73", "D", 18),
    "lightgbm": ("#000000", "+", 36),
}
# Nats per target: a deficit that is allowed, and where the axis becomes logarithmic.
ALLOWED, LINEAR = 0.02, 0.1


def points(runs: Runs) -> dict[str, dict[str, float]]:
    """Return, by task and method, nats per target beyond the best peer's; the lowest task last.

    All are placed by their differences from condens, each on the splits of both: the best peer
    lies at zero.
    """
    found = {}
    for task in runs.tasks:
        best = runs.difference(task.name, "condens", "nll")
        if best is None or not math.isfinite(best[0]):
            continue
        gaps = {method: runs.gap(task.name, "condens", method, "nll") for method in STYLES}
        found[task.name] = {
            method: (best[0] - gap) / task.dimensions
            for method, gap in gaps.items()
            if gap is not None and math.isfinite(gap)
        }
    return dict(sorted(found.items(), key=lambda item: -item[1]["condens"]))


def draw(directory: Path, *, final: bool = False) -> Path | None:
    """Write results.png, or final.png, if there is anything to compare."""
    found = points(load(directory, final=final))
    if not found:
        return None
    figure = Figure(figsize=(8, 1.9 + 0.24 * len(found)), layout="constrained")
    axes = figure.subplots()
    axes.axvspan(-ALLOWED, ALLOWED, color="0.92", zorder=0)
    axes.axvline(0, color="0.4", lw=1, zorder=1)
    for method, (colour, marker, size) in STYLES.items():
        rows = [(each[method], y) for y, each in enumerate(found.values()) if method in each]
        if rows:
            over = 4 if method == "condens" else 3
            axes.scatter(
                *zip(*rows, strict=True), s=size, c=colour, marker=marker, label=method, zorder=over
            )
    axes.set_xscale("symlog", linthresh=LINEAR)
    ends = [value for each in found.values() for value in each.values()]
    axes.set_xlim(min(-0.1, 1.3 * min(ends)), min(30.0, max(0.2, 1.3 * max(ends))))
    ticks = [-10, -1, -0.1, 0, 0.1, 1, 10]
    low, high = axes.get_xlim()
    ticks = [tick for tick in ticks if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}".replace("-", "−") for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(found)), found)
    axes.set_ylim(-0.7, len(found) - 0.3)
    axes.grid(axis="y", alpha=0.3)
    which = "test rows" if final else "inner rows"
    axes.set_xlabel(f"NLL beyond the best peer, nats per target, {which} (left is better)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=5, frameon=False)
    path = directory / ("final.png" if final else "results.png")
    figure.savefig(path, dpi=120)
    return path


if __name__ == "__main__":
    print(draw(**options(__doc__.split("\n")[0])))
