"""Pictures of rows: the artists are the numbers."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from condens.errors import ShapeError
from condens.plots.rows import coverage_by_bin, residuals, spread_histogram
from condens.plots.style import BLUE, ORANGE

HOSTILE = "$<img onerror=1>_^ " + "x" * 100
RNG = np.random.default_rng(0)


@pytest.fixture
def axes():
    return Figure().subplots()


def test_residuals_are_drawn_where_they_are(axes):
    mean, spread = RNG.normal(size=500), RNG.uniform(0.5, 1, 500)
    observed = mean + spread * RNG.standard_t(2, size=500)
    observed[:7] = np.nan
    assert residuals(mean, spread, observed, name="price", axes=axes) is axes
    near, far = (points.get_offsets().data for points in axes.collections)
    both = np.vstack([near, far])
    expected = np.column_stack([mean, observed])[7:]
    np.testing.assert_allclose(both[np.argsort(both[:, 0])], expected[np.argsort(expected[:, 0])])
    outside = (np.abs(observed - mean) > 3 * spread).sum()
    assert len(far) == outside > 0
    np.testing.assert_allclose(*axes.lines[0].get_data())
    assert axes.get_title() == "price"


def test_of_many_rows_some_are_drawn(axes):
    mean = RNG.normal(size=100_000)
    residuals(mean, np.ones_like(mean), mean, axes=axes)
    assert len(axes.collections[0].get_offsets()) == 1000


def test_spreads_are_counted(axes):
    spread = np.concatenate([RNG.uniform(1, 2, 997), [500.0], [np.nan, np.inf]])
    spread_histogram(spread, overall=3.0, axes=axes)
    bars = axes.patches
    edges = np.array([bar.get_x() for bar in bars] + [bars[-1].get_x() + bars[-1].get_width()])
    heights = np.array([bar.get_height() for bar in bars])
    np.testing.assert_array_equal(heights, np.histogram(spread[:997], edges)[0])
    assert heights.sum() == 998 - 5  # the 0.5 % to the right
    assert axes.lines[0].get_xdata()[0] == 3.0
    assert "(5 more to the right)" in axes.get_legend().get_texts()[0].get_text()


def test_bins_are_drawn_from_the_top(axes):
    observed, lower, upper = [0.9, 0.5, 0.95], [0.85, 0.4, 0.8], [0.95, 0.6, 1.0]
    coverage_by_bin(["a", "b", HOSTILE], observed, lower, upper, coverage=0.9, axes=axes)
    (lines,) = axes.collections
    np.testing.assert_allclose(
        lines.get_segments(),
        [[[lo, y], [hi, y]] for y, lo, hi in zip(range(3), lower, upper, strict=True)],
    )
    assert [to_hex(colour) for colour in lines.get_colors()] == [
        BLUE.lower(),
        ORANGE.lower(),
        BLUE.lower(),
    ]
    inside, outside, stated = axes.lines
    np.testing.assert_allclose(inside.get_xydata(), [[0.9, 0], [0.95, 2]])
    np.testing.assert_allclose(outside.get_xydata(), [[0.5, 1]])
    assert set(stated.get_xdata()) == {0.9}
    low, high = axes.get_ylim()
    assert low > high
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels[:2] == ["a", "b"]
    assert len(labels[2]) < 30


def test_hostile_names_are_drawn_as_they_are(axes):
    spread_histogram([1.0, 2.0], name=HOSTILE, axes=axes)
    axes.figure.savefig("/dev/null", format="svg")  # as mathematics it would not be drawn
    assert axes.get_title().startswith(r"\$<img")


@pytest.mark.parametrize("empty", [[], [np.nan], [np.inf]])
def test_nothing_to_draw_is_drawn(empty, axes):
    spread_histogram(empty, overall=np.nan, axes=axes)
    residuals(empty, empty, empty, axes=axes)
    axes.figure.savefig("/dev/null", format="svg")


def test_mistakes_are_named():
    with pytest.raises(ShapeError, match="spread has shape"):
        residuals([1.0, 2.0], [1.0], [1.0, 2.0])
    with pytest.raises(ShapeError, match=r"spread has shape \[2, 2\]"):
        spread_histogram(np.ones((2, 2)))
    with pytest.raises(ShapeError, match="labels has 1"):
        coverage_by_bin(["a"], [1, 1], [1, 1], [1, 1], coverage=0.9)
