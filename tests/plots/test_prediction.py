"""Effects, slices and predictions against quantiles and conditionals."""

import numpy as np
import pytest
import torch
from helpers.pictures import heat_map, mixture
from matplotlib.collections import LineCollection
from scipy.optimize import brentq
from scipy.stats import norm

from condens import GaussianMixture
from condens.errors import ArgumentError, DimensionError, ShapeError
from condens.plots import differences, effect, predictions, slices, training_diagnostics

RNG = np.random.default_rng(0)


def quantile(one, level, dim):
    """Return a quantile by bisection of scipy's distribution functions."""
    weights, means = one.weights.numpy(), one.means[:, dim].numpy()
    deviations = one.covariance_matrices[:, dim, dim].sqrt().numpy()
    return brentq(lambda x: weights @ norm.cdf(x, means, deviations) - level, -50, 50, xtol=1e-12)


def test_the_lines_of_an_effect_are_quantiles():
    batch, x = mixture(2, batch=(12,), names=["a", "b"]), np.linspace(0, 1, 12)
    shuffled = torch.randperm(12)
    axes = effect(batch[shuffled], x[shuffled], "b", name="dose", quantiles=(0.1, 0.5, 0.9))
    for line, level in zip(axes.get_lines(), (0.1, 0.5, 0.9), strict=True):
        assert line.get_xdata() == pytest.approx(x)
        expected = [quantile(one, level, 1) for one in batch]
        assert line.get_ydata() == pytest.approx(expected, abs=1e-8)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("dose", "b")
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert words == ["10 and 90 %", "median"]


@pytest.mark.parametrize("kind", ["real", "positive", "unit", "count"])
def test_the_heat_map_of_an_effect_is_the_density(kind):
    batch = mixture(1, batch=(5,), kinds=[kind], spread=0.5, scale=0.5)
    axes = effect(batch, range(5))
    x, y, values = heat_map(axes)
    assert x == pytest.approx(range(5))
    asked = torch.from_numpy(y.round() if kind == "count" else y)
    for column, one in zip(values.T, batch, strict=True):
        assert np.allclose(column, one.log_prob(asked[:, None]).exp(), rtol=1e-6, atol=1e-12)
    if kind == "count":
        assert {line.get_drawstyle() for line in axes.get_lines()} == {"steps-mid"}


def test_on_a_logarithmic_axis_colours_are_densities_per_decade():
    batch = mixture(1, batch=(4,), kinds=["positive"], spread=1.0, scale=1.5)
    axes = effect(batch, range(4))
    assert axes.get_yscale() == "log"
    _, y, values = heat_map(axes)
    # By the distribution function, a little up and down the axis.
    step = 1e-4
    ends = [torch.from_numpy(10 ** (np.log10(y) + side * step)) for side in (-0.5, 0.5)]
    for column, one in zip(values.T, batch, strict=True):
        low, high = (one.cdf(end[:, None]) for end in ends)
        assert np.allclose(column, (high - low) / step, rtol=1e-5, atol=1e-8)


def test_texts_have_columns():
    batch = mixture(1, batch=(3,))
    axes = effect(batch, ["red", "$gr_een", "<b>"], data=(["red", "<b>", "none"], [0.1, 0.2, 0.3]))
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["red", r"\$gr_een", "<b>"]
    lines = [one for one in axes.collections if isinstance(one, LineCollection)]
    for level, drawn in zip((0.05, 0.25, 0.5, 0.75, 0.95), lines, strict=True):
        heights = [segment[0, 1] for segment in drawn.get_segments()]
        assert heights == pytest.approx([quantile(one, level, 0) for one in batch], abs=1e-8)
    dots = [one.get_offsets() for one in axes.collections if len(one.get_offsets()) == 2]
    assert np.round(dots[0][:, 0]).tolist() == [0, 2]
    assert dots[0][:, 1].tolist() == [0.1, 0.2]


def test_slices_are_conditionals():
    """Of one Gaussian: μₐ + Σₐᵦ/Σᵦᵦ (v − μᵦ), and variance Σₐₐ − Σₐᵦ²/Σᵦᵦ."""
    covariance = np.array([[2.0, 0.3, 1.1], [0.3, 1.0, 0.2], [1.1, 0.2, 1.5]])
    one = GaussianMixture.from_covariances(
        [1.0], torch.tensor([[1.0, 5.0, -1.0]]).double(), covariance[None], names=["a", "b", "c"]
    )
    axes = slices(one, "a", given="c", values=[-2.0, 0.5])
    deviation = np.sqrt(2.0 - 1.1**2 / 1.5)
    centres = [1.0 + 1.1 / 1.5 * (value + 1.0) for value in (-2.0, 0.5)]
    expected = [(centre, deviation) for centre in centres] + [(1.0, np.sqrt(2.0))]
    for line, (centre, width) in zip(axes.get_lines(), expected, strict=True):
        x, heights = line.get_data()
        assert heights == pytest.approx(norm.pdf(x, centre, width), rel=1e-9)
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert words == ["given c = −2", "given c = 0.5", "any c"]
    assert len(slices(one, 0, given=1).get_lines()) == 4


def test_slices_of_whole_numbers_have_bars():
    one = mixture(2, kinds=["count", "count"], scale=0.4)
    axes = slices(one, 0, given=1, values=[1])
    heights = np.array([bar.get_height() for bar in axes.patches])
    n = len(heights) // 2
    given = one.condition({1: 1.0}).log_prob(torch.arange(n)[:, None].double()).exp()
    assert heights[:n] == pytest.approx(given.numpy(), rel=1e-9)


def test_predictions_are_medians_and_intervals_at_the_observed_values():
    batch = mixture(2, batch=(40,), names=["a", "b"])
    observed = batch.sample().numpy()
    observed[3, 1] = np.nan
    axes = predictions(batch, observed, "b", coverage=0.8)
    seen = [i for i in range(40) if i != 3]
    (bars,) = [one for one in axes.collections if isinstance(one, LineCollection)]
    low, high = ([quantile(batch[i], level, 1) for i in seen] for level in (0.1, 0.9))
    for segment, row, start, end in zip(bars.get_segments(), seen, low, high, strict=True):
        assert segment[:, 0] == pytest.approx(observed[row, 1])
        assert segment[:, 1] == pytest.approx([start, end], abs=1e-8)
    held = np.mean(
        [start <= observed[i, 1] <= end for i, start, end in zip(seen, low, high, strict=True)]
    )
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert words[2] == f"median, observed value inside: {round(100 * held, 1):.4g} %"
    dots = np.concatenate(
        [one.get_offsets() for one in axes.collections if len(one.get_offsets()) > 1]
    )
    medians = [quantile(batch[i], 0.5, 1) for i in seen]
    assert sorted(dots[:, 1]) == pytest.approx(sorted(medians), abs=1e-8)
    assert axes.get_xlim() == axes.get_ylim()


def test_of_thousands_of_predictions_some_are_drawn():
    batch = mixture(1, batch=(6000,))
    axes = predictions(batch, batch.sample())
    (bars,) = [one for one in axes.collections if isinstance(one, LineCollection)]
    assert len(bars.get_segments()) == 150
    assert axes.get_xlabel() == "observed value (5000 of 6000 rows)"


def test_differences_are_filled_where_they_leave_out_zero():
    axes = differences(
        ["full", "_b", "c"], [0.5, 0.1, np.nan], [0.2, -0.3, 0], [0.8, 0.5, 0], reference="$lin"
    )
    spans, marks = axes.get_lines()[:-1:2], axes.get_lines()[1:-1:2]
    assert [line.get_xdata().tolist() for line in spans] == [[0.2, 0.8], [-0.3, 0.5]]
    assert [mark.get_xdata()[0] for mark in marks] == [0.5, 0.1]
    assert [mark.get_markerfacecolor() == "white" for mark in marks] == [False, True]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["full", "_b", "c"]
    assert axes.yaxis_inverted()
    assert axes.get_xlabel().endswith(r"against \$lin")


def test_training_is_drawn_with_its_components():
    names = ("train_nll", "validation_nll", "used_components", "distinct_components")
    names += ("largest_condition_number", "unexplained_fraction")
    epochs = [
        dict(zip(names, RNG.uniform(0.1, 1, 6), strict=True)) | {"usage_0": u, "usage_1": 1 - u}
        for u in (0.5, 0.4, 0.3)
    ]
    figure = training_diagnostics(epochs, best_epoch=1)
    losses, counts, usage, trouble, unexplained = figure.axes
    for axes, places in ((losses, names[:2]), (counts, names[2:4]), (trouble, names[4:5])):
        for line, name in zip(axes.get_lines(), places, strict=False):
            assert line.get_ydata().tolist() == [epoch[name] for epoch in epochs]
    assert unexplained.get_lines()[0].get_ydata().tolist() == [e[names[5]] for e in epochs]
    # The component that is most used in the end lies at the bottom.
    bottom = usage.collections[0].get_paths()[0].vertices
    assert {round(y, 9) for x, y in bottom if x == 2} == {0.0, 0.7}
    assert losses.get_lines()[2].get_xdata()[0] == 1
    assert training_diagnostics([])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: effect(mixture(1), [1.0]), ShapeError, "a batch"),
        (lambda: effect(mixture(1, batch=(3,)), [1.0]), ShapeError, "each of 3 densities"),
        (lambda: effect(mixture(2, batch=(1,)), [1.0]), DimensionError, "dim is None"),
        (lambda: effect(mixture(1, batch=(2,)), [1.0, np.nan]), ShapeError, "a finite number"),
        (lambda: effect(mixture(1, batch=(1,)), [1.0], quantiles=(5,)), ArgumentError, "is 5"),
        (lambda: effect(mixture(1, batch=(1,)), [1.0], data=([1], [1, 2])), ShapeError, "pairs"),
        (lambda: slices(mixture(2), 0, 0), ArgumentError, "two dimensions"),
        (lambda: slices(mixture(2), 0, 1, range(9)), ArgumentError, "1 to 6 can be told apart"),
        (lambda: slices(mixture(2, batch=(2,)), 0, 1), ShapeError, "one density"),
        (lambda: predictions(mixture(1, batch=(2,)), [1.0]), ShapeError, "2 densities"),
        (lambda: predictions(mixture(1, batch=(1,)), [np.nan]), ArgumentError, "no value"),
        (lambda: differences(["a"], [1.0, 2.0], [0.0], [1.0]), ShapeError, "1 names"),
        (lambda: differences([], [], [], []), ShapeError, "0 names"),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_one_value_of_the_condition_is_a_column():
    density = mixture(1, batch=(1,))
    axes = effect(density, [3.0], quantiles=(0.5,))
    x, y, values = heat_map(axes)
    assert x.min() < 3 < x.max()
    expected = density[0].log_prob(torch.from_numpy(y)[:, None]).exp()
    assert np.allclose(values[:, 0], expected, rtol=1e-5)
    low, high = axes.get_xlim()
    assert (low, high) == (2.5, 3.5)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["3"]


def test_slices_call_a_dimension_by_its_number_and_tell_values_apart():
    axes = slices(mixture(2), 0, 1, [1.0, 1.0000001])
    assert axes.get_xlabel() == "dimension 0"
    assert len(axes.get_lines()) == 3
