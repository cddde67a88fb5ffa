"""The tasks: which rows are fitted, which are scored, and by what.

Real tables give up a fifth of their training rows for inner scores. Tasks that are drawn draw
rows for them, so that the fit has all of its training rows. Test rows are others in any case.
"""

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import problems
from numpy.random import Generator
from numpy.typing import NDArray
from problems import Array

Part = Literal["inner", "test"]
# Rows that are scored, of more, and observations whose posteriors are compared.
INNER_FRACTION, MAX_INNER_ROWS = 0.2, 10_000


class Rows(NamedTuple):
    """Conditions [n, C], or a data frame of them, and targets [n, D]."""

    X: Any
    y: Array

    def take(self, places: NDArray[np.int64]) -> "Rows":
        """Return some of the rows."""
        X = self.X.iloc[places] if hasattr(self.X, "iloc") else self.X[places]  # noqa: N806
        return Rows(X, self.y[places])


class AbsentError(Exception):
    """The data of a task are not there."""


@dataclass(frozen=True)
class References:
    """Posterior draws that a method's own are compared with.

    Args:
        observations: [m, C].
        draws: true draws [n, D] for an observation, by its number.
        forward: simulates without noise, [..., D] → [..., C], for Err_resim.
        measure: `c2st`, or `mmd` with the kernel of the replication.
        n_samples: drawn for each observation.
    """

    observations: Array
    draws: Callable[[int], Array]
    measure: Literal["c2st", "mmd"]
    n_samples: int
    forward: Callable[[Array], Array] | None = None


@dataclass(frozen=True)
class Data:
    """What one part of one split of a task is fitted to and scored by.

    Args:
        train: rows to fit.
        scored: rows to score; None where the density is not a number to compare.
        truth: log p(y | x) of rows, where it is known.
        references: for tasks that are judged by draws.
    """

    train: Rows
    scored: Rows | None
    truth: Callable[[Array, Array], Array] | None = None
    references: References | None = None


@dataclass(frozen=True)
class Task:
    """One task with its fixed protocol.

    Args:
        name: of the task.
        load: from a part, a split and the data directory to the rows.
        n_splits: of the protocol.
        dimensions: of the target.
        kind: `table` for `MDNRegressor`, `posterior` for `condens.inference.posterior`.
        primary: the score by which methods are compared: `nll`, `c2st` or `err_post`; inner
            scores of `c2st` tasks are compared by it as well.
        target_transform: what condens is told about the targets.
        bounds: of the targets; peers that know none are cut there.
        whole: targets that are whole numbers; draws are rounded there.
        building: tasks with the same one count as one.
        published: figures of the same protocol on test rows, by source.
        gaps: targets have gaps, which most peers cannot read.
        revision: counts changes of the protocol; earlier results no longer count.
    """

    name: str
    load: Callable[[Part, int, Path | None], Data]
    n_splits: int
    dimensions: int
    kind: Literal["table", "posterior"] = "table"
    primary: Literal["nll", "c2st", "err_post"] = "nll"
    target_transform: Any = None
    bounds: tuple[float, float] | None = None
    whole: tuple[int, ...] = ()
    building: str = ""
    published: Mapping[str, float] = field(default_factory=dict)
    gaps: bool = False
    revision: int = 1


# Real tables.


def standard_splits(n: int, count: int = 20) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return training and test rows of the standard UCI splits, 90/10."""
    rng = np.random.RandomState(1)
    order = [rng.choice(range(n), n, replace=False) for _ in range(count)]
    size = round(0.9 * n)
    return [(p[:size], p[size:]) for p in order]


def random_splits(n: int, count: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return training and test rows of random splits, 80/20."""
    order = [np.random.default_rng([80, split]).permutation(n) for split in range(count)]
    size = round(0.8 * n)
    return [(p[:size], p[size:]) for p in order]


def divided(train: Rows, test: Rows, part: Part, split: int) -> Data:
    """Return the data of a part: a fifth of the training rows stand in for the test rows."""
    if part == "test":
        return Data(train, test)
    order = np.random.default_rng([1, split]).permutation(len(train.y))
    size = min(MAX_INNER_ROWS, round(INNER_FRACTION * len(order)))
    return Data(train.take(order[size:]), train.take(order[:size]))


def directory(data_dir: Path | None, *parts: str) -> Path:
    """Return a path below the data directory."""
    path = None if data_dir is None else data_dir.joinpath(*parts)
    if path is None or not path.exists():
        raise AbsentError(f"{'/'.join(parts)} is not in --data-dir")
    return path


def numbers(path: Path) -> tuple[list[str], Array]:
    """Return names and values of a CSV file of numbers."""
    with path.open(newline="") as file:
        header = next(csv.reader(file))
        return header, np.loadtxt(file, delimiter=",", ndmin=2)


def uci(name: str, part: Part, split: int, data_dir: Path | None) -> Data:
    """Load one of the UCI tables."""
    table = numbers(directory(data_dir, "uci", f"{name}.csv"))[1]
    rows = Rows(table[:, :-1], table[:, -1:])
    train, test = standard_splits(len(table))[split]
    return divided(rows.take(train), rows.take(test), part, split)


def parkinsons(part: Part, split: int, data_dir: Path | None) -> Data:
    """Load Parkinsons Telemonitoring with its given split."""
    paths = [directory(data_dir, "multi", f"parkinsons_{end}.csv") for end in ("train", "test")]
    tables = [numbers(path)[1] for path in paths]
    train, test = (Rows(table[:, :-2], table[:, -2:]) for table in tables)
    return divided(train, test, part, split)


def enb(part: Part, split: int, data_dir: Path | None) -> Data:
    """Load the energy building with two targets."""
    table = numbers(directory(data_dir, "multi", "enb.csv"))[1]
    return _random(Rows(table[:, :-2], table[:, -2:]), part, split, 20)


HOUSEHOLD_TARGETS = ["inc", "food", "house", "utili"]
HOUSEHOLD_NUMBERS = ["age_ref", "transport", "health", "enter"]
# An identifier twice, and the income in another form.
HOUSEHOLD_UNUSED = ["", "newid", "inc.a"]


def households(part: Part, split: int, data_dir: Path | None) -> Data:
    """Load the expenditure survey: four numeric columns, all others are categories."""
    import pandas as pd

    path = directory(data_dir, "multi", "households.csv")
    with path.open(newline="") as file:
        header, *lines = list(csv.reader(file))
    table = pd.DataFrame(lines, columns=header).drop(columns=HOUSEHOLD_UNUSED)
    y = table[HOUSEHOLD_TARGETS].astype(float).to_numpy()
    X = table.drop(columns=HOUSEHOLD_TARGETS)  # noqa: N806
    kinds = {name: float if name in HOUSEHOLD_NUMBERS else "category" for name in X}
    return _random(Rows(X.astype(kinds), y), part, split, 5)


def bundled(name: str, part: Part, split: int, _: Path | None) -> Data:
    """Load a table that comes with scikit-learn."""
    from sklearn import datasets

    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)  # noqa: N806
    return _random(Rows(X, y.reshape(len(X), -1).astype(float)), part, split, 10)


def cancer(part: Part, split: int, _: Path | None) -> Data:
    """Load breast cancer: radius and area, which are nearly a function of the other columns."""
    from sklearn import datasets

    table = datasets.load_breast_cancer().data
    targets = [0, 3]
    return _random(Rows(np.delete(table, targets, 1), table[:, targets]), part, split, 10)


def _random(rows: Rows, part: Part, split: int, count: int) -> Data:
    train, test = random_splits(len(rows.y), count)[split]
    return divided(rows.take(train), rows.take(test), part, split)


# Tasks that are drawn.


def streams(name: str, split: int) -> dict[str, Generator]:
    """Return generators for training, inner and test rows of a task's split."""
    key = [*name.encode(), split]
    return {w: np.random.default_rng([n, *key]) for n, w in enumerate(("train", "inner", "test"))}


def drawn(
    name: str,
    problem: Callable[[int], problems.Problem],
    n: int,
    n_scored: int,
    part: Part,
    split: int,
    _: Path | None,
    *,
    gaps: float = 0.0,
) -> Data:
    """Draw the rows of a problem, which may depend on the split."""
    made, rngs = problem(split), streams(name, split)
    train, scored = Rows(*made.draw(n, rngs["train"])), Rows(*made.draw(n_scored, rngs[part]))
    if gaps:
        missing = rngs["train"].random(train.y.shape) < gaps
        train = Rows(train.X, np.where(missing, np.nan, train.y))
    truth = getattr(made, "log_prob", None)
    if isinstance(made, problems.Surprise):
        scored, truth = Rows(scored.X, made.contaminate(scored.y, rngs[part])), None
    return Data(train, scored, truth)


def replication(
    problem: Any,
    tolerance: float,
    n: int,
    part: Part,
    split: int,
    _: Path | None,
) -> Data:
    """Draw noiseless kinematics or ballistics in the replication's protocol.

    Given y, x lies on a surface: it has no density, and only draws are compared. 1000
    observations and 1000 draws each on test rows, 100 observations for inner scores.
    """
    rngs = streams(type(problem).__name__, split)
    train = Rows(*problem.draw(n, rngs["train"]))
    observations = problem.draw(1000 if part == "test" else 100, rngs[part])[0]
    seeds = rngs[part].spawn(len(observations))

    def draws(place: int) -> Array:
        return problem.posterior(observations[place], 1000, tolerance, seeds[place])

    return Data(
        train, None, references=References(observations, draws, "mmd", 1000, problem.forward)
    )


def sbibm(name: str, problem: Any, n: int, part: Part, split: int, data_dir: Path | None) -> Data:
    """Draw simulations of a task of sbibm, and compare with its reference draws.

    Inner scores are from three new observations with 2000 draws of the exact posterior each.
    """
    rngs = streams(f"{name}-{n}", split)
    train, scored = (Rows(*problem.draw(k, rngs[w])) for k, w in ((n, "train"), (2000, part)))
    if part == "inner":
        observations = problem.draw(3, rngs[part])[0]
        true = [problem.posterior(x, 2000, rngs[part]) for x in observations]
    else:
        folders = [
            directory(data_dir, "sbibm", name, f"num_observation_{i + 1}") for i in range(10)
        ]
        found = [numbers(folder / "observation.csv")[1] for folder in folders]
        observations = np.concatenate(found)
        true = [reference_draws(folder) for folder in folders]
    references = References(observations, true.__getitem__, "c2st", len(true[0]))
    return Data(train, scored, getattr(problem, "log_prob", None), references)


def reference_draws(folder: Path) -> Array:
    """Return the reference posterior draws of an observation."""
    import bz2

    with bz2.open(folder / "reference_posterior_samples.csv.bz2", "rt") as file:
        next(file)
        return np.loadtxt(file, delimiter=",", ndmin=2)


# The registry.

UCI_SOURCES = ("Deep Ensembles", "NGBoost", "Deep Evidential", "TreeFlow", "TabResFlow")
UCI_FIGURES = {
    "concrete": (3.06, 3.04, 3.01, 3.02, 2.90),
    "energy": (1.38, 0.60, 1.39, 0.85, 0.77),
    "kin8nm": (-1.20, -0.49, -1.24, -1.03, -1.29),
    "power": (2.79, 2.79, 2.81, 2.65, 2.60),
}
PARKINSONS_FIGURES = {
    "independent NGBoost": 6.861,
    "unconditional Gaussian": 6.173,
    "linear": 6.098,
    "multivariate NGBoost": 5.851,
    "TreeFlow": 5.477,
}
SBIBM_FIGURES = {
    "gaussian_linear": {"NPE-NSF": (0.694, 0.552, 0.506), "NPE-MAF": (0.694, 0.564, 0.513)},
    "gaussian_mixture": {"NPE-NSF": (0.716, 0.615, 0.548)},
    "two_moons": {"NPE-NSF": (0.725, 0.606, 0.542), "NPE-MAF": (0.872, 0.814, 0.770)},
}
KINEMATICS_FIGURES = {"published MDN": 0.007, "MDN, replicated": 0.0031, "flow matching": 0.0016}
BALLISTICS_FIGURES = {"published MDN": 0.048, "MDN, replicated": 0.0071, "flow matching": 0.0071}
ROUNDED = {"MDN, replicated, v0 rounded": 0.0012}
SIMULATIONS = (1_000, 10_000, 100_000)


def _real_tasks() -> list[Task]:
    found = [
        Task(
            name,
            partial(uci, name),
            20 if name in ("concrete", "energy") else 5,
            1,
            building="energy" if name == "energy" else "",
            published=dict(zip(UCI_SOURCES, figures, strict=True)),
        )
        for name, figures in UCI_FIGURES.items()
    ]
    return [
        *found,
        Task("parkinsons", parkinsons, 1, 2, published=PARKINSONS_FIGURES),
        Task("enb", enb, 20, 2, building="energy"),
        Task("households", households, 5, 4),
        Task("diabetes", partial(bundled, "diabetes"), 10, 1),
        Task("linnerud", partial(bundled, "linnerud"), 10, 3),
        Task("cancer", cancer, 10, 2),
    ]


def _made_task(
    name: str,
    problem: Callable[[int], Any],
    n: int,
    dimensions: int = 2,
    n_splits: int = 3,
    n_scored: int = 10_000,
    *,
    gaps: float = 0.0,
    **more: Any,
) -> Task:
    load = partial(drawn, name, problem, n, n_scored, gaps=gaps)
    return Task(name, load, n_splits, dimensions, gaps=gaps > 0, **more)


def _joint_task(dimensions: int, n: int, name: str, *, gaps: float = 0.0) -> Task:
    problem = partial(problems.JointMixture, targets=dimensions)
    return _made_task(name, problem, n, dimensions, n_scored=20_000, gaps=gaps)


def _drawn_tasks() -> list[Task]:
    def always(problem: Any) -> Callable[[int], Any]:
        return lambda _: problem

    return [
        _joint_task(2, 10_000, "joint-2"),
        _joint_task(5, 10_000, "joint-5"),
        _joint_task(5, 6_000, "joint-5-6000"),
        _joint_task(5, 10_000, "joint-5-gaps", gaps=0.3),
        _joint_task(6, 10_000, "joint-6"),
        _joint_task(10, 10_000, "joint-10"),
        *(
            _made_task(
                name,
                always(problems.Arm(noise)),
                n_rows,
                4,
                n_splits=2,
                kind="posterior",
            )
            for name, noise, n_rows in (
                ("arm-0.05", 0.05, 50_000),
                ("arm-0.05-100000", 0.05, 100_000),
                ("arm-0.1", 0.1, 50_000),
            )
        ),
        _made_task("noiseless", always(problems.Noiseless()), 400),
        _made_task("heavy-tails", always(problems.HeavyTails()), 1_000),
        _made_task("surprise", always(problems.Surprise()), 1_000),
        _made_task("irrelevant", always(problems.Irrelevant()), 1_500),
        _made_task("steps", always(problems.Steps()), 2_000),
        _made_task("ring", always(problems.Ring()), 1_600),
        _made_task("rows-200", always(problems.Noisy()), 200, n_splits=10),
        _made_task("rows-100000", always(problems.TwoBranches()), 100_000, n_splits=1),
        _made_task(
            "bounded",
            always(problems.Bounded()),
            5_000,
            n_scored=2_000,
            kind="posterior",
            bounds=problems.Bounded.bounds,
            target_transform=problems.Bounded.bounds,
        ),
    ]


def _posterior_tasks() -> list[Task]:
    arm, ball = problems.Arm(), problems.Ballistics()
    given = {"n_splits": 1, "dimensions": 4, "kind": "posterior", "primary": "err_post"}
    throws = partial(replication, ball, 0.02, 100_000)
    found = [
        Task(
            "kinematics",
            partial(replication, arm, 0.01, 100_000),
            published=KINEMATICS_FIGURES,
            **given,
        ),
        Task("ballistics", throws, published=BALLISTICS_FIGURES, **given),
        # Draws of v0 rounded, as in the replication; and condens told that it is a count.
        Task("ballistics-integer", throws, whole=(3,), published=ROUNDED, revision=2, **given),
        Task(
            "ballistics-count",
            throws,
            target_transform=[None, None, None, "count"],
            whole=(3,),
            published=ROUNDED,
            **given,
        ),
    ]
    classes = {
        "gaussian_linear": (problems.GaussianLinear(), 10),
        "gaussian_mixture": (problems.GaussianMixture(), 2),
        "two_moons": (problems.TwoMoons(), 2),
    }
    for name, (problem, dimensions) in classes.items():
        figures = SBIBM_FIGURES[name]
        for place, n in enumerate(SIMULATIONS):
            task = Task(
                f"{name}-{n}",
                partial(sbibm, name, problem, n),
                1,
                dimensions,
                kind="posterior",
                primary="c2st",
                bounds=problem.bounds,
                published={source: each[place] for source, each in figures.items()},
            )
            found.append(task)
            if problem.bounds and n == 10_000:  # condens told of the bounds, too
                told = {"name": f"{name}-box-{n}", "target_transform": problem.bounds}
                found.append(Task(**(vars(task) | told)))
    return found


TASKS: dict[str, Task] = {
    task.name: task for task in (*_real_tasks(), *_drawn_tasks(), *_posterior_tasks())
}
# Small ones for `make quality-quick`, none of which needs --data-dir.
QUICK_TASKS = ("diabetes", "linnerud", "rows-200", "noiseless", "bounded", "gaussian_mixture-1000")
