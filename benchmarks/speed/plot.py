"""Draw how the time of loss and gradients grows with D, K and b, from results.json.

python benchmarks/speed/plot.py benchmarks/speed/results
"""

import json
import sys
from pathlib import Path

from matplotlib.figure import Figure

STYLES = {
    "torch prec": "C5",
    "FrEIA": "C1",
    "sbi": "C2",
    "torch tril": "C4",
    "zuko": "C3",
    "condens eager": "C9",
    "condens": "C0",
    "condens batch-last": "navy",
    "copy": "0.5",
}


def draw(directory: Path) -> Path:
    """Write growth.png beside results.json."""
    results = json.loads((directory / "results.json").read_text())
    loss, growth = results.get("loss", []), results.get("growth", {"K": [], "b": []})
    panels = [
        ("D", "dimensions D", [r for r in loss if r["b"] == 256 and r["K"] == 5]),
        ("D", "dimensions D", [r for r in loss if r["b"] == 4096 and r["K"] == 5]),
        ("K", "components K", growth["K"]),
        ("b", "batch b", growth["b"]),
    ]
    figure = Figure(figsize=(10, 8.5), layout="constrained")
    for axes, (axis, label, rows) in zip(figure.subplots(2, 2).flat, panels, strict=True):
        if not rows:
            axes.set_axis_off()
            continue
        values = [r[axis] for r in rows]
        for name, colour in STYLES.items():
            mine = [r for r in rows if name in r]
            style = "--" if name == "copy" else "-"
            width = 2.5 if name.startswith("condens") else 1.2
            points = [r[axis] for r in mine], [1e3 * r[name] for r in mine]
            axes.plot(*points, style, color=colour, lw=width, marker=".", label=name)
        fixed = ", ".join(f"{k} = {rows[0][k]}" for k in "bKD" if k != axis)
        axes.set(xscale="log", yscale="log", xlabel=label, title=fixed)
        axes.set_xticks(values, [str(value) for value in values])
        axes.set_xticks([], minor=True)
        axes.set_ylabel("loss and gradients, ms")
        axes.grid(which="both", alpha=0.25)
        legend = axes.get_legend_handles_labels()
    figure.legend(*legend, loc="outside lower center", ncols=5, frameon=False)
    path = directory / "growth.png"
    figure.savefig(path, dpi=110)
    return path


if __name__ == "__main__":
    print(draw(Path(sys.argv[1])))
