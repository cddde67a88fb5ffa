import math

import pytest
import torch
from helpers.reference import COVARIANCES, random_parameters
from torch.testing import assert_close

from condens import GaussianMixture


def build(means, deviation, weights=None, dtype=torch.float64):
    means = torch.tensor(means, dtype=dtype)
    count, dimensions = means.shape
    weights = torch.tensor(weights or [1.0] * count, dtype=dtype)
    covariances = deviation**2 * torch.eye(dimensions, dtype=dtype).expand(count, -1, -1)
    return GaussianMixture.from_covariances(weights, means, covariances)


def grid_maxima(mixture, low=-12.0, high=12.0, points=4001):
    """Count the local maxima of a one-dimensional density on a fine grid."""
    x = torch.linspace(low, high, points, dtype=torch.float64)
    density = mixture.log_prob(x[:, None])
    peak = (density[1:-1] > density[:-2]) & (density[1:-1] > density[2:])
    return x[1:-1][peak], density[1:-1][peak]


@pytest.mark.parametrize("seed", range(20))
def test_one_dimension_finds_exactly_the_maxima_of_a_grid(seed):
    mixture = GaussianMixture(*random_parameters((), 5, 1, seed=seed, spread=2.5))
    points, log_density = mixture.modes()
    expected, _ = grid_maxima(mixture)
    assert points.shape == (len(expected), 1)
    assert_close(points.squeeze(-1).sort().values, expected, rtol=0, atol=0.004)
    assert_close(log_density, mixture.log_prob(points), rtol=1e-12, atol=1e-12)
    assert (log_density.diff() <= 0).all()


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_modes_are_strict_maxima_and_distinct(dimensions, covariance):
    mixture = GaussianMixture(*random_parameters((), 6, dimensions, covariance=covariance, seed=2))
    points, _ = mixture.modes()
    for x in points:
        gradient = torch.func.grad(mixture.log_prob)(x)
        hessian = torch.autograd.functional.hessian(mixture.log_prob, x)
        assert gradient.abs().max() < 1e-8
        assert torch.linalg.eigvalsh(hessian).max() < 0
    if len(points) > 1:
        assert torch.pdist(points).min() > 1e-2


@pytest.mark.parametrize("batch", [(), (7,)])
def test_climbing_from_one_mean_at_a_time_finds_the_same(batch, monkeypatch):
    """Starts and members that rest early, or have a saddle to leave, do not disturb others."""
    mixture = GaussianMixture(*random_parameters(batch, 9, 2, spread=4.0))
    together = mixture.modes()
    assert together.points.shape[-2] > 1
    monkeypatch.setattr("condens.functional.modes._NUMBERS_AT_A_TIME", 1)
    for ours, theirs in zip(mixture.modes(), together, strict=True):
        assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_two_components_merge_below_two_deviations():
    """Two equal Gaussians have two modes if and only if they are more than 2σ apart."""
    assert len(build([[0.0], [1.99]], 1.0).modes().points) == 1
    assert len(build([[0.0], [2.0]], 1.0).modes().points) == 1
    # Just apart: the two modes are a tenth of a deviation from each other.
    assert len(build([[0.0], [2.001]], 1.0).modes().points) == 2
    circle = [[math.cos(t * math.pi / 2), math.sin(t * math.pi / 2)] for t in range(4)]
    assert len(build(circle, 0.70711).modes().points) == 1
    apart = build([[0.0], [2.05]], 1.0).modes()
    assert len(apart.points) == 2
    assert_close(apart.log_density[0], apart.log_density[1], rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_an_almost_flat_ridge_has_no_modes_without_a_dip_between():
    """Thirty Gaussians 0.9 deviations apart: the density varies by 1e-9 along the ridge."""
    points, _ = build([[0.9 * k] for k in range(30)], 1.0).modes()
    ordered = points.squeeze(-1).sort().values
    middle = 0.5 * (ordered[1:] + ordered[:-1])
    mixture = build([[0.9 * k] for k in range(30)], 1.0)
    heights = mixture.log_prob(ordered[:, None])
    between = mixture.log_prob(middle[:, None])
    assert (between < torch.minimum(heights[1:], heights[:-1])).all()


def test_a_mean_on_a_saddle_is_left():
    """The middle mean is a critical point by symmetry, but a minimum along the line."""
    mixture = build([[-3.0, 0.0], [0.0, 0.0], [3.0, 0.0]], 1.0, weights=[1.0, 1e-3, 1.0])
    points, _ = mixture.modes()
    assert len(points) == 2
    assert_close(points[:, 0].abs(), torch.full((2,), 3.0, dtype=torch.float64), rtol=0, atol=0.1)
    assert_close(points[:, 1], torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-6)


def test_highest_first_with_log_density():
    mixture = build([[0.0], [20.0], [-20.0]], 1.0, weights=[0.2, 0.5, 0.3])
    points, log_density = mixture.modes()
    assert_close(points.squeeze(-1), torch.tensor([20.0, -20.0, 0.0], dtype=torch.float64))
    expected = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log() - 0.5 * math.log(
        2 * math.pi
    )
    assert_close(log_density, expected, rtol=1e-9, atol=1e-9)
    assert_close(mixture.mode, points[0])


def test_units_do_not_matter():
    mixture = GaussianMixture(*random_parameters((), 5, 3, seed=8, spread=3.0))
    scale = torch.tensor([1e-9, 1.0, 1e9], dtype=torch.float64)
    plain, scaled = mixture.modes(), mixture.affine(scale).modes()
    assert_close(scaled.points / scale, plain.points, rtol=1e-8, atol=1e-8)


def test_a_batch_is_padded_with_repeats_of_minus_infinity():
    one, two = build([[0.0], [0.5]], 1.0), build([[0.0], [9.0]], 1.0)
    pairs = zip(one.parameters, two.parameters, strict=True)
    both = GaussianMixture(*(torch.stack(pair) for pair in pairs))
    points, log_density = both.modes()
    assert points.shape == (2, 2, 1)
    assert log_density.isneginf().tolist() == [[False, True], [False, False]]
    assert points.isfinite().all()
    assert_close(points[0, 0], one.mode)


@pytest.mark.parametrize("coupling", [3.0, math.exp(10)])
def test_factors_of_very_different_scales(coupling):
    for dtype in (torch.float32, torch.float64):
        factors = torch.tensor([[20.0, -20.0, coupling]], dtype=dtype)
        mixture = GaussianMixture(
            torch.zeros(1, dtype=dtype), torch.zeros(1, 2, dtype=dtype), factors
        )
        points, log_density = mixture.modes()
        assert_close(points, torch.zeros(1, 2, dtype=dtype), rtol=0, atol=0)
        assert_close(log_density, mixture.log_prob(points), rtol=1e-6, atol=1e-6)


# Logits, means and log-precisions, found by random search.
TREACHEROUS = {
    "a full Newton step leaps into another basin": (
        [-0.3158466939027828, -1.7116864589989798, 0.704877935560439],
        [-2.0519647179377545, -0.8992835623745604, 0.7992610390747813],
        [0.9283462859496752, 0.6945329091873287, -0.5253575444831781],
    ),
    "a Newton step goes down": (
        [2.3462884950612444, -3.8320572783145193],
        [-0.04068375318929333, -1.6684771314638553],
        [-2.2579539910573674, 0.00554768785710745],
    ),
}


@pytest.mark.parametrize("name", TREACHEROUS)
def test_newton_is_not_trusted_blindly(name):
    logits, means, factors = (torch.tensor(t, dtype=torch.float64) for t in TREACHEROUS[name])
    mixture = GaussianMixture(logits, means[:, None], factors[:, None])
    expected, _ = grid_maxima(mixture)
    points, _ = mixture.modes()
    assert len(points) == len(expected)
    assert_close(points.squeeze(-1).sort().values, expected, rtol=0, atol=0.01)


def test_float32():
    mixture = GaussianMixture(*random_parameters((), 4, 2, seed=3, spread=3.0)).to(torch.float32)
    points, log_density = mixture.modes()
    exact = mixture.to(torch.float64).modes()
    assert points.dtype == torch.float32
    assert_close(points.double(), exact.points, rtol=1e-5, atol=1e-5)
    assert_close(log_density.double(), exact.log_density, rtol=1e-5, atol=1e-5)
