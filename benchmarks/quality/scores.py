"""One run: a method is fitted to a task's rows and scored by others."""

import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from methods import Method, Predict, UnsuitedError, fit
from tasks import AbsentError, Data, Part, References, Task

from condens.evaluation import c2st, evaluate

COVERAGES = (0.5, 0.9)
# Rows for scores that need draws.
MAX_DRAWN_ROWS = 2000
BANDWIDTHS = (0.05, 0.2, 0.9)
PACKAGES = ("condens", "torch", "numpy", "scikit-learn")

Record = dict[str, Any]


def run(task: Task, split: int, method: Method, part: Part, data_dir: Path | None) -> Record:
    """Fit and score; a task without data, or one that a method cannot do, has a reason."""
    record: Record = {
        "task": task.name,
        "split": split,
        "method": method.name,
        "version": method.version,
        "part": part,
        "revision": task.revision,
    }
    try:
        data = task.load(part, split, data_dir)
        return record | measure(task, split, method, data)
    except (AbsentError, UnsuitedError) as reason:
        return record | {"skipped": str(reason)}
    except Exception as error:
        return record | {"failed": f"{type(error).__name__}: {error}"[:300]}


def measure(task: Task, split: int, method: Method, data: Data) -> Record:
    """Return sizes, times and scores."""
    start = time.perf_counter()
    predict = fit(method, data.train, task, split)
    record: Record = {
        "n_train": len(data.train.y),
        "dimensions": task.dimensions,
        "threads": torch.get_num_threads(),
        "fit_seconds": time.perf_counter() - start,
        "versions": dict(_versions()),
    }
    torch.manual_seed(split)  # peers draw from torch's own generator
    if data.scored is not None:
        record |= score_rows(predict, data)
    if data.references is not None:
        record |= score_draws(predict, data.references, task.whole)
    return {name: _plain(value) for name, value in record.items()}


def score_rows(predict: Predict, data: Data) -> Record:
    """Return the scores of densities at rows."""
    X, y = data.scored  # noqa: N806
    start = time.perf_counter()
    nll = -predict(X).log_prob(torch.from_numpy(y)).detach().double().numpy()
    seconds = time.perf_counter() - start
    some = slice(MAX_DRAWN_ROWS)
    report = evaluate(
        predict(X[some]),
        None,
        y[some],
        coverages=COVERAGES,
        quantiles=(0.5,),
        progress=False,
    )
    needed = report.rows["hpd_coverage"]
    found: Record = {
        "n_scored": len(y),
        "predict_seconds": seconds,
        "nll": nll.mean(),
        "nll_error": nll.std() / np.sqrt(len(nll)),
        "worst_nll": nll.max(),
        "crps" if y.shape[1] == 1 else "energy_score": report.scores["energy_score"].value,
        "n_drawn": report.n_rows,
        **{f"coverage_{c:.0%}".rstrip("%"): (needed <= c).mean() for c in COVERAGES},
    }
    if data.truth is not None:
        regret = nll + data.truth(X, y)
        found |= {"regret": regret.mean(), "regret_error": regret.std() / np.sqrt(len(nll))}
    return found


def score_draws(predict: Predict, references: References, whole: tuple[int, ...]) -> Record:
    """Return how far draws are from those of the true posteriors, means over observations."""
    start = time.perf_counter()
    with torch.no_grad():
        # [n, m, D] → [m, n, D]
        drawn = predict(references.observations).sample((references.n_samples,)).double()
    drawn[..., list(whole)] = drawn[..., list(whole)].round()
    drawn, seconds = drawn.transpose(0, 1), time.perf_counter() - start
    distances = []
    for place, mine in enumerate(drawn):
        true = torch.from_numpy(references.draws(place))
        if references.measure == "c2st":
            distances.append(c2st(true, mine, progress=False).value)
        else:
            distances.append(mmd_squared(mine, true))
    name = "c2st" if references.measure == "c2st" else "err_post"
    found: Record = {
        "sample_seconds": seconds,
        "n_observations": len(distances),
        name: np.mean(distances),
        f"{name}_error": np.std(distances) / np.sqrt(len(distances)),
    }
    if references.forward is not None:
        gap = references.forward(drawn.numpy()) - references.observations[:, None]
        found["err_resim"] = np.nanmean((gap**2).sum(-1))
    return found


def mmd_squared(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the unbiased MMD² with kernel Σ 1/(1 + d²/h²) in raw units."""

    def kernel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        square = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square_()
        return sum(1 / (1 + square / h**2) for h in BANDWIDTHS)

    m, n = len(first), len(second)
    # A point and itself are no pair: their kernel is the number of bandwidths.
    own = len(BANDWIDTHS)
    within_first = (kernel(first, first).sum() - own * m) / (m * (m - 1))
    within_second = (kernel(second, second).sum() - own * n) / (n * (n - 1))
    return float(within_first + within_second - 2 * kernel(first, second).mean())


def _versions() -> list[tuple[str, str]]:
    found = []
    for name in PACKAGES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            found.append((name, "not installed"))
    return found


def _plain(value: Any) -> Any:
    """Return numbers as JSON holds them: those that are not finite as words."""
    if isinstance(value, float | np.floating):
        return float(f"{value:.7g}") if np.isfinite(value) else str(float(value))
    return value
