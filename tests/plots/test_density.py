"""Pictures of densities against the densities themselves."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers.pictures import contours, heat_map, inside, mixture
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse, Polygon, Rectangle
from scipy import special
from scipy.stats import multivariate_normal, norm

from condens import GaussianMixture, LowRankMixture, TransformedMixture
from condens.errors import ArgumentError, DimensionError, KindError, ShapeError
from condens.plots import corner, joint, marginal
from condens.transforms import Integer, Positive

FRESH = torch.Generator().manual_seed(1)


def enclosed(axes, density, coverages, n_samples=100_000):
    """Return the fraction of fresh draws inside each contour, the largest coverage first."""
    FRESH.manual_seed(1)
    points = density.sample((n_samples,), generator=FRESH).numpy()
    (found,) = contours(axes)
    assert len(found) == len(coverages)
    return [inside(found[level], points).mean() for level in sorted(found)]


@pytest.mark.parametrize(
    "kinds",
    [
        None,
        ["positive", "real"],
        pytest.param(["unit", "real"], marks=pytest.mark.slow),
        pytest.param(["positive", "positive"], marks=pytest.mark.slow),
    ],
)
def test_contours_enclose_the_stated_coverage(kinds):
    density = mixture(2, kinds=kinds, seed=3, spread=1.0)
    # Within the support: at its edge a region has no outline.
    axes = joint(density, coverages=(0.5, 0.8, 0.9), components=False)
    assert enclosed(axes, density, (0.5, 0.8, 0.9)) == pytest.approx([0.9, 0.8, 0.5], abs=0.01)


def test_contours_of_narrow_components_enclose_it_too():
    """One of two components is 300 times as wide as the other: even grids would not see it."""
    covariances = torch.stack([torch.eye(2), 1e-5 * torch.tensor([[1.0, 0.9], [0.9, 1.0]])])
    density = GaussianMixture.from_covariances(
        torch.ones(2), torch.tensor([[0.0, 0.0], [1.0, 1.0]]), covariances.double()
    )
    axes = joint(density, coverages=(0.3, 0.9))
    assert enclosed(axes, density, (0.3, 0.9)) == pytest.approx([0.9, 0.3], abs=0.01)


def test_contours_of_one_gaussian_are_ellipses():
    """{(x − μ)ᵀΣ⁻¹(x − μ) ≤ −2 log(1 − coverage)}, in two dimensions."""
    covariance = np.array([[2.0, 1.2], [1.2, 1.5]])
    density = GaussianMixture.from_covariances(
        torch.ones(1), torch.tensor([[1.0, -2.0]]), torch.from_numpy(covariance)[None]
    )
    (found,) = contours(joint(density, coverages=(0.5, 0.9)))
    for level, coverage in zip(sorted(found), (0.9, 0.5), strict=True):
        away = found[level].vertices - [1.0, -2.0]
        squares = np.einsum("ni,ij,nj->n", away, np.linalg.inv(covariance), away)
        assert squares == pytest.approx(-2 * math.log(1 - coverage), rel=0.02)


def test_the_corner_has_contours_of_every_plane():
    density = mixture(3, kinds=["real", "positive", "unit"], names=list("abc"), seed=5, spread=0.8)
    figure = corner(density, coverages=(0.5, 0.9))
    below = {(1, 0): 1, (2, 0): 3, (2, 1): 4}
    for (row, column), place in below.items():
        plane = density.marginal([column, row])
        found = enclosed(figure.axes[place], plane, (0.5, 0.9))
        assert found == pytest.approx([0.9, 0.5], abs=0.01)


@pytest.mark.slow
def test_the_corner_of_many_dimensions_has_them_too():
    """In ten dimensions grids are coarser, and draws fewer."""
    density = mixture(10, 4, seed=2)
    figure = corner(density)
    assert len(figure.axes) == 55
    places = [(i, j) for i in range(10) for j in range(i + 1)]
    for place in (22, 53):
        row, column = places[place]
        found = enclosed(figure.axes[place], density.marginal([column, row]), (0.5, 0.9), 40_000)
        assert found == pytest.approx([0.9, 0.5], abs=0.01)


def test_the_diagonal_of_a_corner_is_the_integral_of_the_plane():
    density = mixture(2, kinds=["unit", "real"], seed=4, scale=0.4)
    axes = corner(density).axes
    for place, panel in ((0, axes[0]), (1, axes[2])):
        (line,) = panel.get_lines()
        x, heights = line.get_data()
        other = np.linspace(*[(-20, 20), (-7, 7)][place], 8001)
        for at in (60, 150):
            value = np.full_like(other, x[at])
            # Over the real coordinate of the bounded number, whose density grows at its ends.
            point = (value, other) if place == 0 else (norm.cdf(other), value)
            levels = density.log_prob(torch.from_numpy(np.stack(point, -1))).exp().numpy()
            levels = levels if place == 0 else levels * norm.pdf(other)
            total = levels.sum() * (other[1] - other[0])
            assert heights[at] == pytest.approx(total, rel=1e-6)


def test_several_densities_are_overlaid_with_a_legend():
    one, other = mixture(2, seed=0), mixture(2, seed=1, spread=0.5)
    figure = corner({"prior": one, "_posterior $": other}, truth=[0.0, 0.0])
    plane = figure.axes[1]
    first, second = contours(plane)
    for found, density in ((first, one), (second, other)):
        points = density.sample((40_000,)).numpy()
        reached = [inside(found[level], points).mean() for level in sorted(found)]
        assert reached == pytest.approx([0.9, 0.5], abs=0.012)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["prior", r"_posterior \$", "truth"]
    assert figure.legends[0].get_title().get_text() == "regions: 50 %, 90 %"
    # Two colours, and two dashes for readers of a print in grey.
    lines = figure.axes[0].get_lines()[:2]
    assert len({line.get_color() for line in lines}) == 2
    assert len({line.get_linestyle() for line in lines}) == 2


# Components.


def test_ellipses_have_the_axes_of_the_covariances():
    root = torch.randn(3, 2, 2, dtype=torch.float64)
    covariances = (root @ root.mT + 0.1 * torch.eye(2)).numpy()
    means = torch.randn(3, 2, dtype=torch.float64)
    density = GaussianMixture.from_covariances(
        torch.tensor([0.2, 0.5, 0.3]), means, torch.from_numpy(covariances)
    )
    axes = joint(density)
    drawn = [patch for patch in axes.patches if isinstance(patch, Ellipse)]
    assert len(drawn) == 6
    for place, patch in enumerate(drawn):
        component, radius = divmod(place, 2)
        assert patch.center == pytest.approx(means[component].tolist())
        values, vectors = np.linalg.eigh(covariances[component])
        assert patch.width == pytest.approx(2 * (radius + 1) * math.sqrt(values[1]))
        assert patch.height == pytest.approx(2 * (radius + 1) * math.sqrt(values[0]))
        angle = math.radians(patch.angle)
        along = np.array([math.cos(angle), math.sin(angle)])
        assert abs(along @ vectors[:, 1]) == pytest.approx(1.0)
    labels = [text.get_text() for text in axes.texts[-3:]]
    assert labels == [f"{weight:.2f}" for weight in density.weights]


def test_low_rank_components_have_ellipses():
    density = LowRankMixture(
        torch.zeros(1), torch.zeros(1, 3), torch.zeros(1, 3), torch.tensor([[[1.0], [2.0], [0.5]]])
    )
    axes = joint(density, dims=[0, 1])
    (one, _) = [patch for patch in axes.patches if isinstance(patch, Ellipse)]
    values = np.linalg.eigvalsh(np.array([[2.0, 2.0], [2.0, 5.0]]))
    assert [one.height, one.width] == pytest.approx(2 * np.sqrt(values), rel=1e-6)


def test_ellipses_of_transformed_targets_bend_with_them():
    density = mixture(2, 2, kinds=["positive", "unit"], seed=1)
    axes = joint(density)
    drawn = [patch for patch in axes.patches if isinstance(patch, Polygon)]
    assert len(drawn) == 4
    for place, patch in enumerate(drawn):
        component, radius = divmod(place, 2)
        y = patch.get_xy()
        x = np.stack([np.log(y[:, 0]), special.ndtri(y[:, 1])], -1)
        base = density.base
        away = x - base.means[component].numpy()
        precision = np.linalg.inv(base.covariance_matrices[component].numpy())
        squares = np.einsum("ni,ij,nj->n", away, precision, away)
        assert squares == pytest.approx((radius + 1) ** 2, rel=1e-6)


def test_light_components_have_no_ellipse():
    density = GaussianMixture(torch.tensor([0.0, -6.0]), torch.randn(2, 2), torch.zeros(2, 3))
    axes = joint(density)
    assert len([patch for patch in axes.patches if isinstance(patch, Ellipse)]) == 2
    assert not joint(density, components=False).patches


@pytest.mark.parametrize(("n_components", "drawn"), [(8, 16), (9, 0)])
def test_many_components_are_drawn_if_asked_for_only(n_components, drawn):
    density = GaussianMixture(
        torch.zeros(n_components), torch.randn(n_components, 2), torch.zeros(n_components, 3)
    )
    assert len(joint(density).patches) == drawn
    assert len(joint(density, components=True).patches) == 2 * n_components


# Heat maps and curves.


def test_the_heat_map_is_the_density():
    density = mixture(2, seed=7, names=["a", "b"])
    axes = joint(density)
    x, y, values = heat_map(axes)
    parts = (density.weights, density.means, density.covariance_matrices)
    grid = np.stack(np.meshgrid(x, y), -1)
    expected = sum(
        weight * multivariate_normal(mean, covariance).pdf(grid)
        for weight, mean, covariance in zip(*(part.numpy() for part in parts), strict=True)
    )
    assert np.allclose(values, expected, rtol=1e-6, atol=1e-12)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("a", "b")


def test_limits_are_those_asked_and_the_density_fills_them():
    density = mixture(2, seed=7)
    axes = joint(density, limits=((-30, 30), (-20.0, 1.0)))
    assert (axes.get_xlim(), axes.get_ylim()) == ((-30, 30), (-20, 1))
    x, y, _ = heat_map(axes)
    assert x.min() <= -30
    assert x.max() >= 30
    assert y.min() <= -20


def test_the_curve_is_the_density():
    density = mixture(1, seed=3)
    (line,) = marginal(density).get_lines()
    x, heights = line.get_data()
    deviations = density.covariance_matrices[:, 0, 0].sqrt().numpy()
    expected = (
        norm.pdf(x[:, None], density.means[:, 0].numpy(), deviations) @ density.weights.numpy()
    )
    assert heights == pytest.approx(expected, rel=1e-9)
    assert np.trapezoid(heights, x) == pytest.approx(1 - 2e-3, abs=1e-3)


def test_shaded_intervals_end_at_the_quantiles():
    density = mixture(1, seed=3)
    axes = marginal(density, coverages=(0.5, 0.9))
    # The first is the area under the curve.
    _, wide, narrow = axes.collections
    for shade, coverage in ((wide, 0.9), (narrow, 0.5)):
        x = shade.get_paths()[0].vertices[:, 0]
        reached = density.cdf(torch.tensor([[x.min()], [x.max()]]))
        assert reached.tolist() == pytest.approx([0.5 - coverage / 2, 0.5 + coverage / 2], abs=1e-9)


def test_a_positive_target_that_spans_decades_has_a_logarithmic_axis():
    density = TransformedMixture(
        GaussianMixture(torch.zeros(1), torch.ones(1, 1), torch.full((1, 1), -math.log(2.0))),
        [Positive()],
    )
    axes = marginal(density)
    assert axes.get_xscale() == "log"
    assert axes.get_ylabel() == "density per decade"
    x, heights = axes.get_lines()[0].get_data()
    # log₁₀ Y ~ N(1/log 10, (2/log 10)²)
    expected = norm.pdf(np.log10(x), 1 / math.log(10), 2 / math.log(10))
    assert heights == pytest.approx(expected, rel=1e-6)
    narrow = TransformedMixture(
        GaussianMixture(torch.zeros(1), torch.ones(1, 1), torch.full((1, 1), 1.0)), [Positive()]
    )
    axes = marginal(narrow)
    assert axes.get_xscale() == "linear"
    assert axes.get_xlim()[0] >= 0


def test_bounded_targets_are_not_drawn_beyond_their_bounds():
    density = mixture(2, kinds=["unit", "positive"], seed=2, spread=2.0)
    figure = corner(density)
    x = figure.axes[0].get_lines()[0].get_xdata()
    assert x.min() > 0
    assert x.max() < 1
    assert np.all(np.array(figure.axes[1].get_xlim()) == [0.0, 1.0])
    assert figure.axes[1].get_ylim()[0] >= 0
    axes = joint(density)
    assert np.all(np.array(axes.get_xlim()) == [0.0, 1.0])


# Whole numbers.


def test_whole_numbers_have_bars_of_their_probability():
    density = mixture(1, kinds=["count"], seed=1, scale=0.5)
    axes = marginal(density, truth=[3.0])
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    centres = np.array([bar.get_x() + bar.get_width() / 2 for bar in bars])
    assert np.all(np.round(centres, 9) == np.arange(len(bars)))
    expected = density.log_prob(torch.from_numpy(centres.round())[:, None]).exp()
    assert [bar.get_height() for bar in bars] == pytest.approx(expected.tolist(), rel=1e-9)
    assert axes.get_ylabel() == "probability"
    # No curve: the only line is that at the truth.
    assert [line.get_xdata()[0] for line in axes.get_lines()] == [3.0]


def test_of_many_whole_numbers_a_bar_stands_for_several():
    base = GaussianMixture(torch.zeros(1), torch.full((1, 1), 8.0), torch.full((1, 1), 1.0))
    density = TransformedMixture(base.to(torch.float64), [Integer(lower=0)])
    bars = marginal(density).patches
    assert len(bars) <= 200
    bar = bars[len(bars) // 3]
    first = round(bar.get_x() + 0.5)
    values = torch.arange(first, first + round(bar.get_width()), dtype=torch.float64)
    assert len(values) > 1
    total = float(density.log_prob(values[:, None]).exp().sum())
    assert bar.get_height() * len(values) == pytest.approx(total, rel=1e-6)
    assert sum(one.get_height() * one.get_width() for one in bars) == pytest.approx(0.99, abs=3e-3)


def test_bars_of_several_densities_stand_beside_one_another():
    first, second = (mixture(1, kinds=["whole"], seed=seed) for seed in (1, 2))
    axes = marginal([first, second])
    boxes = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches)
    assert all(one[1] <= two[0] + 1e-9 for one, two in pairwise(boxes))


def test_regions_of_whole_numbers_are_cells():
    density = mixture(2, 2, kinds=["count", "whole"], seed=6, spread=0.7, scale=0.6)
    (found,) = contours(joint(density, coverages=(0.5, 0.9)))
    x, y = torch.meshgrid(torch.arange(0.0, 60), torch.arange(-40.0, 40), indexing="ij")
    cells = torch.stack([x, y], -1).reshape(-1, 2).double()
    probabilities = density.log_prob(cells).exp().numpy()
    for level, coverage in zip(sorted(found), (0.9, 0.5), strict=True):
        drawn = inside(found[level], cells.numpy())
        # The most probable numbers that reach the coverage, and no more.
        assert probabilities[drawn].min() >= probabilities[~drawn].max()
        assert probabilities[drawn].sum() >= coverage - 0.01
        assert probabilities[drawn].sum() - probabilities[drawn].min() < coverage + 0.01
        # Lines run along the edges of cells only.
        away = np.abs(found[level].vertices - np.floor(found[level].vertices) - 0.5)
        assert (away < 1e-3).any(-1).all()


def test_a_plane_of_a_count_and_a_number_has_strips():
    density = mixture(2, 2, kinds=["count", "real"], seed=6, spread=0.7, scale=0.6)
    (found,) = contours(joint(density, coverages=(0.5, 0.9)))
    FRESH.manual_seed(2)
    points = density.sample((100_000,), generator=FRESH).numpy()
    reached = [inside(found[level], points).mean() for level in sorted(found)]
    assert reached == pytest.approx([0.9, 0.5], abs=0.01)


# Truth and samples.


def test_truth_and_samples_are_drawn_where_they_are():
    density = mixture(2, names=["a", "b"])
    points = density.sample((300,)).numpy()
    figure = corner(density, truth={"b": 1.5}, samples=points)
    assert not figure.axes[0].get_lines()[1:]
    assert figure.axes[2].get_lines()[1].get_xdata()[0] == 1.5
    dots = figure.axes[1].collections[0].get_offsets()
    assert np.array_equal(dots, points)
    (stairs,) = [patch for patch in figure.axes[0].patches if hasattr(patch, "get_data")]
    heights, edges, _ = stairs.get_data()
    share = np.mean((points[:, 0] >= edges[0]) & (points[:, 0] <= edges[-1]))
    assert np.sum(heights * np.diff(edges)) == pytest.approx(share)
    figure = corner(density, truth=[9.0, 9.0])
    assert figure.axes[1].get_xlim()[1] > 9


def test_thousands_of_samples_are_thinned():
    density = mixture(2)
    axes = joint(density, samples=density.sample((50_000,)))
    dots = [one for one in axes.collections if one.get_offsets().shape[0] > 1]
    assert len(dots[0].get_offsets()) == 2000


# Doors.


def test_a_mixture_draws_itself_by_its_dimensions():
    axes = mixture(1).plot(truth=0.5)
    assert axes.figure is plt.gcf()
    assert len(axes.get_lines()) == 2
    assert len(mixture(2).plot().patches) == 6
    assert len(mixture(4).plot().axes) == 10
    given = Figure().subplots()
    assert mixture(2).plot(axes=given) is given
    assert mixture(1).plot(axes=given) is given
    with pytest.raises(DimensionError, match="corner plot takes a figure"):
        mixture(3).plot(axes=given)
    assert not mixture(2, kinds=["count", "real"]).plot().patches


def test_a_batch_is_refused_unless_overlaid():
    batch = mixture(1, batch=(3,))
    with pytest.raises(ShapeError, match=r"batch shape \[3\].*mixtures\[0\].*overlay=True"):
        batch.plot()
    axes = batch.plot(overlay=True)
    for line, one in zip(axes.get_lines(), batch, strict=True):
        x, heights = line.get_data()
        expected = one.log_prob(torch.from_numpy(x)[:, None]).exp()
        assert heights == pytest.approx(expected.numpy())
    assert len(mixture(2, batch=(2, 2)).plot(overlay=True).axes) == 3
    assert mixture(2, batch=(1,)).plot()
    with pytest.raises(ArgumentError, match="has 9 entries, but 1 to 7 can be told apart"):
        mixture(1, batch=(9,)).plot(overlay=True)
    with pytest.raises(ArgumentError, match="has 0 entries"):
        mixture(1, batch=(0,)).plot(overlay=True)


def test_single_precision_and_gradients_do_not_matter():
    density = GaussianMixture(
        torch.zeros(2, requires_grad=True), torch.randn(2, 2, requires_grad=True), torch.zeros(2, 3)
    )
    assert joint(density)
    assert corner(density)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: corner(mixture(11)), DimensionError, r"11 dimensions.*dims=\[0, 1, 2\]"),
        (lambda: joint(mixture(3)), DimensionError, r"a plane has two.*corner\(mixture\)"),
        (lambda: marginal(mixture(2)), DimensionError, "dim is None"),
        (lambda: marginal(mixture(2), 5), DimensionError, "has 5"),
        (lambda: joint(mixture(2), coverages=(90,)), ArgumentError, "For 90 %, pass 0.9"),
        (lambda: joint(mixture(2), truth=[1.0]), ShapeError, r"truth has shape \[1\]"),
        (lambda: joint(mixture(2), truth=[[1.0, 2], [3, 4]]), ShapeError, "one point"),
        (lambda: joint(mixture(2), samples=[[1.0, 2, 3]]), ShapeError, "samples has shape"),
        (lambda: corner({}), ArgumentError, "has 0 entries"),
        (lambda: corner([mixture(2), mixture(3)]), DimensionError, "the first one is"),
        (lambda: corner("density"), KindError, "a mixture was expected"),
        (lambda: marginal([mixture(1)] * 2, coverages=(0.5,)), ArgumentError, "draw one density"),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
    assert not plt.get_fignums()
