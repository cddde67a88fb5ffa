"""What all pictures have in common: figures, names, colours, dependencies."""

import sys

import matplotlib as mpl
import numpy as np
import pytest
from helpers.pictures import mixture, texts
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from condens import plots
from condens.errors import CondensError
from condens.plots import rows
from condens.plots.style import COLOURS, density_map, literal

HOSTILE = [r"$\frac{", "_x$y_{$\n\x00=cmd()", "<img onerror=alert(1)>" * 20]
U = np.linspace(0.01, 0.99, 60)
EPOCH = dict.fromkeys(
    ("train_nll", "validation_nll", "used_components", "distinct_components",
     "largest_condition_number", "unexplained_fraction", "usage_0"), 1.0,
)  # fmt: skip
ON_AXES = {
    "marginal": lambda **options: plots.marginal(mixture(1), coverages=(0.5,), **options),
    "joint": lambda **options: plots.joint(mixture(2), truth=[0, 0], **options),
    "effect": lambda **options: plots.effect(mixture(1, batch=(4,)), range(4), **options),
    "slices": lambda **options: plots.slices(mixture(2), 0, 1, **options),
    "predictions": lambda **options: plots.predictions(mixture(1, batch=(4,)), range(4), **options),
    "pit_histogram": lambda **options: plots.pit_histogram(U, **options),
    "rank_histogram": lambda **options: plots.rank_histogram([0, 1, 2], 9, **options),
    "coverage_curve": lambda **options: plots.coverage_curve(U, **options),
    "differences": lambda **options: plots.differences(["a"], [1], [0], [2], **options),
    "plot_losses": lambda **options: plots.plot_losses([1, 2], [2, 3], best_epoch=1, **options),
}
ON_FIGURES = {
    "corner": lambda **options: plots.corner(mixture(3), samples=np.zeros((3, 3)), **options),
    "calibration_figure": lambda **options: plots.calibration_figure(U, **options),
    "training_diagnostics": lambda **options: plots.training_diagnostics([EPOCH] * 2, **options),
}
ALL = {**ON_AXES, **ON_FIGURES}


def test_every_plot_is_here():
    assert sorted(ALL) == sorted(plots.__all__) == dir(plots)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        plots.nothing  # noqa: B018


@pytest.mark.parametrize("name", ALL)
def test_it_draws_on_a_new_figure_of_pyplot_and_changes_no_setting(name):
    before = dict(mpl.rcParams)
    found = ALL[name]()
    assert found.figure is plt.gcf()
    plt.gcf().canvas.draw()
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize("name", ON_AXES)
def test_it_draws_on_given_axes(name):
    axes = Figure().subplots()
    assert ON_AXES[name](axes=axes) is axes
    assert axes.has_data()
    assert not plt.get_fignums()


@pytest.mark.parametrize("name", ON_FIGURES)
def test_it_draws_on_a_given_figure_or_part_of_one(name):
    figure = Figure()
    assert ON_FIGURES[name](figure=figure) is figure
    left, right = Figure().subfigures(1, 2)
    assert ON_FIGURES[name](figure=right) is right
    assert right.axes
    assert not left.axes
    assert not plt.get_fignums()


@pytest.mark.parametrize("name", ALL)
def test_it_names_the_extra_where_matplotlib_is_missing(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"needs matplotlib.*pip install 'condens\[plot\]'"):
        ALL[name]()


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_drawn_as_they_are(name):
    """No mathematics, no error, and no line of the legend that is left out."""
    pair = [name, "other"]
    one = mixture(2, names=pair)
    batch = mixture(2, names=pair, batch=(2,))
    figures = [
        plots.corner({name: one, "b": one}, truth=[0, 0]),
        plots.marginal({name: one, "b": one}, name).figure,
        plots.effect(batch, [name, "b"], name, name=name, data=([name], [0.0])).figure,
        plots.predictions(batch, [0.0, 1.0], name).figure,
        plots.pit_histogram(U, name=name).figure,
        plots.differences([name], [1], [0], [2], reference=name).figure,
    ]
    for figure in figures:
        figure.canvas.draw()
        shown = [text.replace(r"\$", "$") for text in texts(figure)]
        assert any(name[:8].split("\n")[0] in text for text in shown)
        assert max(map(len, shown)) < 120


WRONG = [
    lambda: plots.marginal(None),
    lambda: plots.marginal(mixture(1), coverages=None),
    lambda: plots.marginal(mixture(1), coverages=[90]),
    lambda: plots.marginal(mixture(1), axes=plt),
    lambda: plots.marginal(mixture(1), axes=[1]),
    lambda: plots.corner(mixture(1), figure="mine"),
    lambda: plots.joint(mixture(2), truth={0: "a"}),
    lambda: plots.joint(mixture(2), limits=(0, 1)),
    lambda: plots.joint(mixture(2), limits=((0, np.nan), (0, 1))),
    lambda: plots.joint(mixture(2), limits=((1, 1), (0, 1))),
    lambda: plots.joint(mixture(2), limits="ab"),
    lambda: plots.effect(mixture(1, batch=(3,)), None),
    lambda: plots.effect(mixture(1, batch=(3,)), range(3), quantiles=[50]),
    lambda: plots.effect(mixture(1, batch=(3,)), range(3), data=[1.0, 2.0, 3.0]),
    lambda: plots.predictions(mixture(2, batch=(3,)), np.zeros((3, 1)), 1),
    lambda: plots.pit_histogram(U, coverage=2),
    lambda: plots.calibration_figure(np.full((9, 2), np.nan)),
    lambda: plots.differences(None, [0], [0], [0]),
    lambda: plots.differences("ab", [0, 1], [0, 1], [0, 1]),
    lambda: rows.residuals("a", "b", "c"),
]


@pytest.mark.parametrize("draw", WRONG)
def test_what_cannot_be_drawn_is_named_and_leaves_no_figure(draw):
    with pytest.raises(CondensError):
        draw()
    assert not plt.get_fignums()


def test_a_figure_that_was_there_stays_where_a_plot_fails():
    figure = plt.figure()
    with pytest.raises(CondensError):
        plots.pit_histogram(U, coverage=2, axes=figure.subplots())
    assert plt.get_fignums() == [figure.number]


def test_what_is_empty_is_left_out():
    assert plots.effect(mixture(1, batch=(3,)), range(3), data=([], [])).has_data()
    assert plots.marginal(mixture(1), coverages=0.9).has_data()
    figure = plots.calibration_figure(np.stack([U, U * np.nan], 1), names=["a", "b"])
    assert [axes.get_title() for axes in figure.axes] == ["a", ""]
    # Weights of any size.
    drawn = [plots.pit_histogram(U, weights=np.full(60, size)) for size in (1.0, 1e308)]
    heights = [[bar.get_height() for bar in axes.patches] for axes in drawn]
    assert heights[0] == pytest.approx(heights[1])


def test_long_names_are_shortened_in_the_middle():
    assert literal("x" * 500 + "end") == "x" * 16 + "…" + "x" * 12 + "end"
    assert literal("short") == "short"
    assert literal(r"\$") == r"\\$"
    with mpl.rc_context({"text.usetex": True}):
        assert literal("a_b & 5 % $") == r"a\_b \& 5 \% \$"


def test_names_that_are_shortened_stay_different():
    for names in (
        [f"target_{d} in $" for d in range(6)],
        [f"{'x' * 20}{d}{'y' * 20}" for d in range(6)],
        [f"{'x' * d}y{'x' * (40 - d)}" for d in range(15, 21)],
    ):
        figure = plots.corner(mixture(6, names=names))
        shown = [axes.get_xlabel() for axes in figure.axes if axes.get_xlabel()]
        assert len(shown) == len(set(shown)) == 6


def lab(colours):
    """Return CIELAB of sRGB colours."""
    rgb = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    matrix = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = rgb @ np.array(matrix).T / [0.9505, 1.0, 1.089]
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], -1)


def test_equal_steps_of_density_look_equal():
    colours = lab(density_map()(np.linspace(0, 1, 17))[:, :3])
    steps = np.linalg.norm(np.diff(colours, axis=0), axis=1)
    assert steps.min() > 0.85 * steps.max()
    # In a print in grey too: the lightness falls from white by nearly equal steps.
    fall = -np.diff(colours[:, 0])
    assert fall.min() > 0.6 * fall.max()
    assert colours[0, 0] > 99


def test_the_colours_of_lines_are_apart_for_colour_blind_readers():
    """Seen without the cones for red or green (Viénot 1999), no two of the first four are alike."""
    rgb = np.array([mpl.colors.to_rgb(colour) for colour in COLOURS[:4]])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    for row in ([0.11238, 0.88762, 0.0], [0.29275, 0.70725, 0.0]):
        blue = [0.00401, -0.00401, 1.0] if row[0] < 0.2 else [-0.02234, 0.02234, 1.0]
        seen = np.clip(linear @ np.array([row, row, blue]).T, 0, 1)
        srgb = np.where(seen <= 0.0031308, 12.92 * seen, 1.055 * seen ** (1 / 2.4) - 0.055)
        points = lab(srgb)
        apart = np.linalg.norm(points[:, None] - points[None], axis=-1)
        assert apart[np.triu_indices(4, 1)].min() > 10
