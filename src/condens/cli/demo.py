"""`condens demo`: what the library is for, in a minute."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from condens.cli.console import note, say, show_table
from condens.cli.options import Force, Seed
from condens.cli.tables import place_for
from condens.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from condens.cli.arm import Array
    from condens.estimator.regressor import MDNRegressor

N_TRAIN, N_TEST, N_DRAWS = 12_000, 1_000, 200
N_COMPONENTS, EPOCHS = 12, 40
# Points that the hand is to reach: near, far, and high.
POINTS = ((1.2, 0.3), (1.85, -0.4), (1.0, 1.0))
FILES = ("arms.png", "corner.png", "calibration.png", "arm.condens", "arm.csv")


class Fitted(NamedTuple):
    """A model, and how it did on new rows."""

    model: "MDNRegressor"
    nll: float
    error: float
    seconds: float


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A directory for pictures, model and data.")
    ] = Path("demo"),
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """Show what this is for: a robot arm, and all the ways in which it can reach a point.

    Example: condens demo -o demo
    """
    if output.exists() and not output.is_dir():
        raise ArgumentError(
            str(output),
            got="is a file",
            expected="a directory was expected",
            fix="Pass another name.",
        )
    output.mkdir(parents=True, exist_ok=True)
    places = {name: place_for(output / name, force=force) for name in FILES}
    from condens.cli import arm

    note(f"Moving an arm {N_TRAIN} times, and noting where its hand is seen …")
    point, joints = arm.simulate(N_TRAIN, seed)
    new_point, new_joints = arm.simulate(N_TEST, seed + 1)
    found = {}
    for kind in ("full", "diagonal"):
        note(f"Learning the way back, with {kind} covariances …")
        found[kind] = _fit(kind, (point, joints), (new_point, new_joints), seed)
    best = -arm.exact_log_prob(new_point, new_joints).mean()
    note("Drawing …")
    _save(_arms(found), places["arms.png"])
    _save(_corner(found["full"].model), places["corner.png"])
    _save(_calibration(found["full"].model, new_point, new_joints), places["calibration.png"])
    found["full"].model.save(places["arm.condens"])
    _save_rows(places["arm.csv"], new_point, new_joints)
    _conclude(found, best, output)


def _fit(
    kind: str, train: tuple["Array", "Array"], new: tuple["Array", "Array"], seed: int
) -> Fitted:
    from condens.estimator.regressor import MDNRegressor

    began = time.monotonic()
    model = MDNRegressor(
        N_COMPONENTS,
        covariance=kind,
        n_members=1,
        shortcut=False,
        epochs=EPOCHS,
        random_state=seed,
        verbose=sys.stderr.isatty(),
    ).fit(*_frames(*train))
    seconds = time.monotonic() - began
    X, y = _frames(*new)  # noqa: N806
    nll = -float(model.score_samples(X, y).mean())
    return Fitted(model, nll, _distance(model, new[0], seed), seconds)


def _frames(point: "Array", joints: "Array") -> tuple[Any, Any]:
    """Return conditions and targets as tables with names."""
    import pyarrow as pa

    from condens.cli.arm import JOINTS, POINT

    return (
        pa.table(dict(zip(POINT, point.T, strict=True))),
        pa.table(dict(zip(JOINTS, joints.T, strict=True))),
    )


def _distance(model: "MDNRegressor", point: "Array", seed: int) -> float:
    """Return how far from the points the hands of drawn arms are, on average."""
    import numpy as np

    from condens.cli.arm import hand

    drawn = model.sample(_frames(point, np.zeros((len(point), 4)))[0], 20, random_state=seed)
    return float(np.linalg.norm(hand(drawn) - point, axis=-1).mean())


def _arms(found: dict[str, Fitted]) -> "Figure":
    import numpy as np
    from matplotlib.figure import Figure

    from condens.cli.arm import draw_arms

    figure = Figure(figsize=(10, 7), layout="compressed")
    grid = figure.subplots(len(found), len(POINTS))
    targets = np.array(POINTS)
    X, _ = _frames(targets, np.zeros((len(targets), 4)))  # noqa: N806
    for line, (kind, one) in zip(grid, found.items(), strict=True):
        drawn = one.model.sample(X, N_DRAWS, random_state=0)
        for place, axes in enumerate(line):
            draw_arms(axes, drawn[:, place], targets[place], f"{kind} covariances")
    figure.supxlabel("blue: arms that the model expects · red: the point that the hand is to reach")
    return figure


def _corner(model: "MDNRegressor") -> "Figure":
    import numpy as np
    from matplotlib.figure import Figure

    X, _ = _frames(np.array(POINTS[:1]), np.zeros((1, 4)))  # noqa: N806
    drawn = model.plot_density(X)
    assert isinstance(drawn, Figure)  # four targets fill a figure
    return drawn


def _calibration(model: "MDNRegressor", point: "Array", joints: "Array") -> "Figure":
    from matplotlib.figure import Figure

    drawn = model.plot_calibration(*_frames(point, joints))
    assert isinstance(drawn, Figure)
    return drawn


def _save(figure: "Figure", place: Path) -> None:
    from condens.files import writing

    with writing(place) as file:
        figure.savefig(file, format="png", dpi=110, bbox_inches="tight")


def _save_rows(place: Path, point: "Array", joints: "Array") -> None:
    from condens.cli.arm import JOINTS, POINT
    from condens.cli.tables import Writer, table_of

    columns = {**dict(zip(POINT, point.T, strict=True)), **dict(zip(JOINTS, joints.T, strict=True))}
    with Writer(place, "csv", force=True) as writer:
        writer.write(table_of(columns))


def _conclude(found: dict[str, Fitted], best: float, output: Path) -> None:
    rows = [
        (f"{kind} covariances", f"{one.nll:.2f}", f"{one.error:.3f}", f"{one.seconds:.0f} s")
        for kind, one in found.items()
    ]
    rows.append(("the exact answer", f"{best:.2f}", "", ""))
    heads = ("", "surprise at new arms (NLL)", "hand misses the point by", "time to learn")
    show_table("The way back from a point to the arm", heads, rows)
    full, diagonal = found["full"], found["diagonal"]
    say(
        f"Asked for an arm that reaches a point, the model with full covariances names arms whose\n"
        f"hand is {full.error:.2f} off on average (the point itself is only known to "
        f"{_noise():.2f}); without\ncorrelations between the joints they are {diagonal.error:.2f} "
        f"off. No answer can be less surprised\nthan {best:.2f}."
    )
    say(
        f"\nLook at {output / 'arms.png'}: many arms, one point.\n"
        f"{output / 'corner.png'} has all four joints for one point, "
        f"{output / 'calibration.png'} whether the\nprobabilities are right.\n\n"
        f"Next: condens explore {output / 'arm.condens'} --data {output / 'arm.csv'}"
    )


def _noise() -> float:
    """Return how far a point is seen from where it is, on average."""
    import math

    from condens.cli.arm import NOISE

    return NOISE * math.sqrt(math.pi / 2)
