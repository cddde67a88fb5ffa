"""Make the pictures of the page on plotting: the same bytes whenever the code is the same.

python docs/figures/plots.py docs/_static
"""

import argparse
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from condens import MDNRegressor, plots

TARGETS = ["mean smoothness", "mean compactness", "mean concavity"]


def cells() -> tuple[Any, ...]:
    """Return measurements of cell nuclei: conditions and targets, to fit and to test."""
    data = load_breast_cancer(as_frame=True)
    frame = data.frame.assign(diagnosis=data.target_names[data.target])
    # The concavity is zero in some: its transform leaves zero out.
    frame = frame[frame["mean concavity"] > 0]
    conditions = frame[["mean radius", "mean texture", "diagnosis"]]
    return tuple(train_test_split(conditions, frame[TARGETS], random_state=0))


def goals() -> tuple[Any, Any]:
    """Return attacks and goals of 2000 made-up matches: a count that grows with a condition."""
    rng = np.random.default_rng(0)
    attacks = rng.uniform(0, 10, 2000)
    table = pd.DataFrame({"attacks": attacks, "rain in mm": rng.exponential(3, 2000)})
    return table, pd.DataFrame({"goals": rng.poisson(0.2 + 0.05 * attacks**2)})


def main() -> None:
    """Fit and draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path, help="where the pictures go")
    directory = parser.parse_args().directory
    mpl.use("agg")
    train_x, test_x, train_y, test_y = cells()
    model = MDNRegressor(target_transform="positive", random_state=0).fit(train_x, train_y)

    def save(name: str) -> None:
        plt.savefig(directory / f"plot_{name}.png", dpi=80, metadata={"Software": None})
        plt.close("all")

    row = slice(7, 8)
    model.plot_density(test_x[row], test_y[row])
    save("corner")
    one = MDNRegressor(target_transform="positive", n_members=1, random_state=0)
    density = one.fit(train_x, train_y).predict_dist(test_x[row])
    plots.joint(density, TARGETS[1:], truth=test_y[row])
    save("joint")
    model.plot_slices(test_x[row], TARGETS[1], given=TARGETS[2])
    save("slices")
    model.plot_effect(test_x, "mean radius", TARGETS[2], y=test_y)
    save("effect")
    model.plot_predictions(test_x, test_y, TARGETS[1])
    save("predictions")
    model.plot_calibration(test_x, test_y)
    save("calibration")
    model.plot_diagnostics()
    save("training")
    table, counts = goals()
    counting = MDNRegressor(target_transform="count", random_state=0).fit(table, counts)
    _, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    counting.plot_density(table[:1], counts[:1], axes=left)
    counting.plot_effect(table[:200], "attacks", y=counts[:200], axes=right)
    save("counts")


if __name__ == "__main__":
    main()
