"""What answers and gaps cost `MDNRegressor`, as ratios of the plain case.

    python benchmarks/speed/estimator.py [--rows 20000] [--rounds 3] [--threads 1]

Calibrated intervals and regions beside plain intervals, for transformed targets; and a fit
with gaps in a tenth of the rows of y beside one without. The rounds are interleaved and the best
of them counts.
"""

import argparse
import warnings

import numpy as np
import torch
from timing import best_times

from condens import MDNRegressor
from condens.training import Settings


def answers(kinds: list[str], rows: int, rounds: int) -> str:
    """Return a line about intervals and regions of so many rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 3))  # noqa: N806
    made = {"positive": np.exp(X[:, 0] + rng.normal(size=1000)), "count": rng.poisson(3, 1000)}
    y = np.column_stack([made[kind] for kind in kinds])
    settings = Settings(epochs=20)
    model = MDNRegressor(
        5, target_transform=kinds, calibration_fraction=0.3, settings=settings, random_state=0
    ).fit(X, y)
    new = rng.normal(size=(rows, 3))
    jobs = {
        "interval": lambda: model.predict_interval(new),
        "calibrated": lambda: model.predict_interval(new, calibrated=True),
        "region": lambda: model.predict_region(new).log_threshold,
    }
    best = best_times(jobs, seconds=0.0, rounds=rounds)
    ratios = [f"{name} {best[name] / best['interval']:.1f}×" for name in ("calibrated", "region")]
    return f"{' + '.join(kinds)}: interval {best['interval']:.2f} s, {', '.join(ratios)}"


def gaps(rounds: int) -> str:
    """Return a line about fits with gaps in a tenth of the rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 8))  # noqa: N806
    y = np.tanh(X @ rng.normal(size=(8, 4))) + 0.3 * rng.normal(size=(5000, 4))
    gapped = y.copy()
    some = rng.permutation(5000)[:500]
    gapped[some, rng.integers(4, size=500)] = np.nan
    model = MDNRegressor(random_state=0, settings=Settings(epochs=10, patience=10))
    jobs = {"whole": lambda: model.fit(X, y), "gaps": lambda: model.fit(X, gapped)}
    best = best_times(jobs, seconds=0.0, rounds=rounds)
    ratio = best["gaps"] / best["whole"]
    return f"fit: {best['whole']:.2f} s, with gaps in a tenth of the rows {ratio:.2f}×"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    for kinds in (["positive"], ["count"], ["positive", "count"], ["count", "count"]):
        print(answers(kinds, options.rows, options.rounds), flush=True)
    print(gaps(options.rounds), flush=True)


if __name__ == "__main__":
    main()
