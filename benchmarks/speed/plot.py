"""Draw how the time of loss and gradients grows with D, from results.json.

python benchmarks/speed/plot.py benchmarks/speed/results
"""

import json
import sys
from pathlib import Path

from matplotlib.figure import Figure

NAMES = ("FrEIA", "sbi", "torch tril", "zuko", "condens rows", "condens", "copy")


def draw(directory: Path) -> Path:
    """Write growth.png beside results.json."""
    rows = json.loads((directory / "results.json").read_text())["loss"]
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    for axes, batch in zip(figure.subplots(1, 2, sharey=True), (256, 4096), strict=True):
        for name in NAMES:
            mine = [r for r in rows if r["b"] == batch and r["K"] == 5 and name in r]
            style = "--" if name == "copy" else "-"
            width = 2.5 if name.startswith("condens") else 1.2
            times = [1e3 * r[name] for r in mine]
            axes.plot([r["D"] for r in mine], times, style, lw=width, marker=".", label=name)
        axes.set(xscale="log", yscale="log", xlabel="dimensions D", title=f"b = {batch}, K = 5")
        axes.grid(which="both", alpha=0.25)
    figure.axes[0].set_ylabel("loss and gradients, ms")
    figure.axes[0].legend(frameon=False)
    path = directory / "growth.png"
    figure.savefig(path, dpi=110)
    return path


if __name__ == "__main__":
    print(draw(Path(sys.argv[1])))
