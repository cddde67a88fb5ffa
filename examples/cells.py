"""Joint densities by scikit-learn's fit, on one of its data sets.

From the radius and texture of cell nuclei and the diagnosis: the joint density of three other
measurements, all positive, two of them strongly dependent. The picture shows it for two
samples (regions of coverage 50 and 90 %), and how it changes once the smoothness is known.

    python examples/cells.py OUTPUT_DIRECTORY
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from condens import MDNRegressor
from condens.training import Settings

CONDITIONS = ["mean radius", "mean texture", "diagnosis"]
TARGETS = ["mean smoothness", "mean compactness", "mean fractal dimension"]
PLANE = TARGETS[1:]


def tables() -> tuple[Any, Any]:
    """Return the conditions, one of them a category, and the targets."""
    data = load_breast_cancer(as_frame=True)
    frame = data.frame.assign(diagnosis=data.target_names[data.target])
    return frame[CONDITIONS], frame[TARGETS]


def draw(axes: Any, density: Any, point: Any, smoothness: float) -> None:
    """Draw one sample's density, and the density given its smoothness."""
    x = torch.linspace(0.01, 0.3, 200, dtype=torch.float64)
    y = torch.linspace(0.048, 0.085, 200, dtype=torch.float64)
    grid = torch.cartesian_prod(x, y)
    for mixture, colour, name in (
        (density.marginal(PLANE), "tab:blue", "the density"),
        (density.condition({TARGETS[0]: smoothness}), "tab:orange", "given the smoothness"),
    ):
        height = mixture.log_prob(grid).exp().reshape(200, 200).T
        levels = [float(mixture.hpd_threshold(coverage).value.exp()) for coverage in (0.9, 0.5)]
        axes.contour(x, y, height, levels=levels, colors=colour, linewidths=[1, 1.6])
        axes.plot([], [], color=colour, label=name)
    axes.plot(*point[PLANE], "k+", ms=12, label="the sample itself")
    axes.legend(frameon=False, loc="lower right")
    axes.set(xlabel=PLANE[0], ylabel=PLANE[1])


def main() -> None:
    """Fit, calibrate, check on fresh rows, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", type=Path, help="directory for the picture")
    parser.add_argument("--epochs", type=int, help="fewer than the default")
    options = parser.parse_args()
    conditions, targets = tables()
    rest_x, test_x, rest_y, test_y = train_test_split(conditions, targets, random_state=0)
    train_x, held_x, train_y, held_y = train_test_split(rest_x, rest_y, random_state=0)
    settings = Settings(epochs=options.epochs) if options.epochs else None
    model = MDNRegressor(target_transform="positive", settings=settings, random_state=0)
    model.fit(train_x, train_y).calibrate(held_x, held_y)

    scores = model.score_samples(test_x, test_y)
    alone = MDNRegressor(
        target_transform="positive", covariance="diagonal", settings=settings, random_state=0
    ).fit(train_x, train_y)
    print(f"test NLL {-scores.mean():.3f}, with a diagonal covariance ", end="")
    print(f"{-alone.score_samples(test_x, test_y).mean():.3f}")
    region = model.predict_region(test_x, coverage=0.9)
    inside = region.contains(test_y).double().mean()
    print(f"{len(test_x)} test samples: {inside:.0%} inside their 90 % region")

    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, kind in zip(figure.subplots(1, 2), ("benign", "malignant"), strict=True):
        row = int(np.flatnonzero(test_x["diagnosis"] == kind)[1])
        sample, point = test_x.iloc[[row]], test_y.iloc[row]
        draw(axes, model.predict_dist(sample)[0], point, float(point[TARGETS[0]]))
        axes.set_title(f"{kind}, radius {sample['mean radius'].iloc[0]:.1f}")
    options.output.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.output / "cells.png", dpi=120)
    print(options.output / "cells.png")


if __name__ == "__main__":
    main()
