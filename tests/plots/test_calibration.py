"""Bands against scipy, bars and curves against counts."""

import numpy as np
import pytest
from matplotlib.collections import FillBetweenPolyCollection
from scipy import stats

from condens.errors import ArgumentError, NotFiniteError, ShapeError
from condens.plots import calibration_figure, coverage_curve, pit_histogram, rank_histogram
from condens.plots.calibration import binomial_quantiles

RNG = np.random.default_rng(0)


def band(axes):
    """Return the corners of the band as {x: (low, high)}."""
    (shade,) = [one for one in axes.collections if isinstance(one, FillBetweenPolyCollection)]
    corners = shade.get_paths()[0].vertices
    return {x: (y[0], y[1]) for x in np.unique(corners[:, 0]) if (y := ends(corners, x)).size == 2}


def ends(corners, x):
    found = np.sort(corners[corners[:, 0] == x, 1])
    return found[[0, -1]]


@pytest.mark.parametrize("n", [1, 7, 100, 5000, 10**6])
@pytest.mark.parametrize("p", [1e-6, 0.01, 0.05, 0.5, 0.9, 0.999])
def test_binomial_quantiles_are_those_of_scipy(n, p):
    levels = [1e-6, 0.00125, 0.025, 0.31, 0.5, 0.975, 0.99875]
    assert binomial_quantiles(n, p, levels) == stats.binom.ppf(levels, n, p).tolist()


@pytest.mark.parametrize("simultaneous", [True, False])
def test_the_band_of_a_histogram_is_binomial(simultaneous):
    u = RNG.uniform(size=700)
    axes = pit_histogram(u, n_bins=10, coverage=0.9, simultaneous=simultaneous)
    tail = 0.05 / (10 if simultaneous else 1)
    expected = stats.binom.ppf([tail, 1 - tail], 700, 0.1) / 70
    for low, high in band(axes).values():
        assert [low, high] == pytest.approx(expected)
    counts = [int(((u >= low) & (u < low + 0.1)).sum()) for low in np.arange(10) / 10]
    assert [bar.get_height() for bar in axes.patches] == pytest.approx(np.array(counts) / 70)
    words = "all bars together" if simultaneous else "each bar alone"
    assert axes.get_legend().get_texts()[1].get_text() == f"90 % band, {words}"


def test_the_simultaneous_band_holds_all_bars():
    """In 2000 calibrated models at least 95 %, and no more than Bonferroni's bound allows for."""
    low, high = binomial_quantiles(1000, 0.05, (0.025 / 20, 1 - 0.025 / 20))
    counts = RNG.multinomial(1000, np.full(20, 0.05), size=2000)
    held = ((counts >= low) & (counts <= high)).all(1).mean()
    assert 0.94 < held < 0.99


def test_bars_of_unequal_ranks_have_bands_of_their_own():
    ranks = RNG.integers(0, 11, size=500)
    axes = rank_histogram(ranks, 10, n_bins=4, simultaneous=False)
    edges = [0, 3, 6, 8, 11]  # 11 ranks in four bars
    drawn = [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in axes.patches]
    found = band(axes)
    for (x, width, height), first, last in zip(drawn, edges[:-1], edges[1:], strict=True):
        p = (last - first) / 11
        assert (x, width) == (first - 0.5, last - first)
        assert height == pytest.approx(((ranks >= first) & (ranks < last)).sum() / (500 * p))
        low, high = stats.binom.ppf([0.025, 0.975], 500, p) / (500 * p)
        assert found[first - 0.5][0] <= low + 1e-9
        assert found[first - 0.5][1] >= high - 1e-9
    assert axes.get_xlabel() == "rank among 10 draws"


def test_ranks_are_divided_evenly_where_they_can_be():
    axes = rank_histogram(RNG.integers(0, 100, size=5000), 99)
    assert {bar.get_width() for bar in axes.patches} == {5.0}
    assert len(rank_histogram([0, 1, 1], 1).patches) == 2


def test_weights_count_as_rows():
    u = RNG.uniform(size=50)
    repeats = RNG.integers(0, 4, size=50)
    weighted = pit_histogram(u, weights=repeats, n_bins=5)
    repeated = pit_histogram(u.repeat(repeats), n_bins=5)
    heights = [[bar.get_height() for bar in axes.patches] for axes in (weighted, repeated)]
    assert heights[0] == pytest.approx(heights[1])
    effective = int(repeats.sum() ** 2 / (repeats**2).sum())
    expected = stats.binom.ppf([0.005, 0.995], effective, 0.2) / (0.2 * effective)
    assert next(iter(band(weighted).values())) == pytest.approx(tuple(expected))
    equal = pit_histogram(u, weights=np.full(50, 0.1), n_bins=5)
    assert band(equal) == band(pit_histogram(u, n_bins=5))


def test_the_curve_is_the_distribution_of_the_coverages():
    c = RNG.beta(1, 1.5, size=400)
    axes = coverage_curve({"one": c, "two": np.append(c, np.nan)}, coverage=0.8)
    asked, observed = axes.get_lines()[0].get_data()
    assert observed == pytest.approx([(c <= level).mean() for level in asked])
    assert axes.get_lines()[1].get_ydata() == pytest.approx(observed)
    for x, (low, high) in band(axes).items():
        assert [low, high] == pytest.approx(stats.binom.ppf([0.1, 0.9], 400, x) / 400)
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert words == ["one", "two", "80 % band, pointwise"]


def test_the_figure_has_a_histogram_a_target_and_the_curves():
    u = RNG.uniform(size=(300, 3))
    figure = calibration_figure(u, regions=u[:, 0], names=["a", "$b$", "_c"])
    drawn = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in drawn] == ["a", r"\$b\$", "_c", ""]
    curve = drawn[-1]
    asked, observed = curve.get_lines()[1].get_data()
    assert observed == pytest.approx([(abs(2 * u[:, 1] - 1) <= level).mean() for level in asked])
    _, joint = curve.get_lines()[3].get_data()
    assert joint == pytest.approx([(u[:, 0] <= level).mean() for level in asked])
    assert len(calibration_figure(u[:, 0]).axes) == 2
    assert len(calibration_figure(RNG.uniform(size=(50, 12)), regions=u[:50, 0]).axes) >= 13


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: pit_histogram([0.2, 1.2]), ArgumentError, r"has 1.2, but numbers from 0 to 1"),
        (lambda: pit_histogram([[0.2]]), ShapeError, r"shape \[1, 1\]"),
        (lambda: pit_histogram([np.nan]), NotFiniteError, "no entry that counts"),
        (lambda: pit_histogram([]), NotFiniteError, "no entry that counts"),
        (lambda: pit_histogram([0.5], weights=[-1.0]), NotFiniteError, "negative"),
        (lambda: pit_histogram([0.5], weights=[1.0, 2.0]), ShapeError, "there are 1 rows"),
        (lambda: pit_histogram([0.5], coverage=95), ArgumentError, "For 90 %, pass 0.9"),
        (lambda: pit_histogram([0.5], n_bins=1), ArgumentError, "n_bins is 1"),
        (lambda: rank_histogram([5], 4), ArgumentError, "Check n_samples"),
        (lambda: coverage_curve({}), ArgumentError, "0 entries"),
        (lambda: calibration_figure(np.ones((2, 13))), ShapeError, "up to 12"),
        (lambda: calibration_figure(np.ones((2, 2)), names=["a"]), ShapeError, "2 targets"),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
