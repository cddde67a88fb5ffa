"""Calibrated regions: coverage whatever the model, against binomial bounds and exact cases."""

import math

import pytest
import torch
from reference import random_parameters
from scipy import stats
from torch.testing import assert_close

from condens import GaussianMixture
from condens.conformal import DRAWS, Calibration, Region
from condens.errors import ArgumentError, ShapeError


def normal(batch, dimensions=1, scale=1.0):
    """Return standard normals with a scale that may be wrong."""
    factors = torch.zeros(batch, 1, dimensions * (dimensions + 1) // 2, dtype=torch.float64)
    factors[..., :dimensions] = -math.log(scale)
    means = torch.zeros(batch, 1, dimensions, dtype=torch.float64)
    return GaussianMixture(torch.zeros(batch, 1), means, factors)


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0], ids=["narrow", "right", "wide"])
@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_a_wrong_scale_is_corrected(scale, coverage):
    seed = torch.Generator().manual_seed(1)
    truth, rows = normal(4000, 2), 4000
    model = normal(rows, 2, scale)
    calibration = Calibration.of(model, truth.sample(generator=seed), generator=seed)
    region = calibration.region(model, coverage, generator=seed)
    inside = region.contains(truth.sample(generator=seed))
    # Random are the rows on either side: four standard errors.
    error = math.sqrt(2 * coverage * (1 - coverage) / rows)
    assert abs(float(inside.double().mean()) - coverage) < 4 * error
    # The threshold is the density of the model where the true χ² has this much mass.
    radius = stats.chi2(2).ppf(coverage)
    expected = stats.norm(scale=scale).logpdf(0) * 2 - radius / scale**2 / 2
    # A narrow model's lowest draw, which its levels are counted from, varies itself.
    tolerance = 0.15 if scale >= 1 else 2.0
    assert_close(float(region.log_threshold.median()), expected, rtol=0, atol=tolerance)
    end = stats.norm.ppf(0.5 + coverage / 2)
    assert_close(region.upper, torch.full_like(region.upper, end), rtol=0, atol=0.12)
    assert_close(region.lower, -region.upper, rtol=0, atol=1e-9)


def test_coverage_is_at_least_what_was_asked_for_on_average_over_small_calibrations():
    # Ranks of equal laws: P(covered) = ⌈(m+1)c⌉/(m+1) exactly, up to equal ranks.
    seed, hits, rounds, m, coverage = torch.Generator().manual_seed(2), 0, 400, 19, 0.9
    for _ in range(rounds):
        model = normal(m + 25, 1, 0.5)
        target = normal(m + 25).sample(generator=seed)
        calibration = Calibration.of(model[:m], target[:m], generator=seed)
        region = calibration.region(model[m:], coverage, generator=seed)
        inside = (region.lower <= target[m:]) & (target[m:] <= region.upper)
        hits += int(inside.sum())
    expected = math.ceil((m + 1) * coverage) / (m + 1)
    # Rows of one round share their calibration, whose coverage is Beta(18, 2).
    error = math.sqrt(stats.beta(18, 2).var() / rounds + expected * (1 - expected) / rounds / 25)
    assert abs(hits / rounds / 25 - expected) < 4 * error


def test_the_region_is_that_of_the_scores():
    model = GaussianMixture(*random_parameters((300,), 3, 2))
    calibration = Calibration.of(model, model.sample())
    fresh = GaussianMixture(*random_parameters((200,), 3, 2))
    point = fresh.sample()
    region = calibration.region(fresh, 0.8, generator=torch.Generator().manual_seed(5))
    again = Calibration.of(fresh, point, generator=torch.Generator().manual_seed(5))
    place = math.ceil(301 * 0.8)
    limit = calibration.ranks.sort().values[place - 1]
    assert torch.equal(region.contains(point), again.ranks <= limit)


def test_volume():
    # A disc of radius r in two dimensions, an interval in one.
    level = stats.norm.logpdf(0) * 2 - 2.0
    nothing = torch.zeros(3, 2)
    disc = Region(normal(3, 2), torch.full((3,), level), nothing, nothing, 0.9)
    estimate = disc.volume(n_samples=100_000, generator=torch.Generator().manual_seed(0))
    assert bool(((estimate.value - 4 * math.pi).abs() < 4 * estimate.standard_error).all())
    assert bool((estimate.standard_error < 0.05).all())
    far = Region(normal(2, 1), torch.tensor([-math.inf, 0.0]), nothing, nothing, 0.9)
    assert far.volume().value.tolist() == [math.inf, 0.0]


def test_missing_targets_count_where_they_were_observed():
    model = normal(50, 2)
    target = model.sample()
    target[:10, 0] = torch.nan
    target[10:15] = torch.nan
    calibration = Calibration.of(model, target)
    assert calibration.ranks.shape == (35,)
    assert [len(levels) for levels in calibration.levels] == [35, 45]


def test_named_errors():
    model = normal(50, 2)
    calibration = Calibration.of(model, model.sample())
    with pytest.raises(ArgumentError, match=r"0.99, with 50 rows.*at least 99.*more rows"):
        calibration.region(model, 0.99)
    with pytest.raises(ArgumentError, match=r"coverage"):
        calibration.region(model, 1.5)
    with pytest.raises(ShapeError, match=r"target has shape \[3, 2\]"):
        Calibration.of(model, model.sample()[:3])
    # With 9 rows nine tenths is just possible: the largest score.
    few = Calibration.of(model[:9], model[:9].sample())
    assert float(few.region(model, 0.9).upper.max()) > 0
    with pytest.raises(ArgumentError, match="at least 9"):
        Calibration.of(model[:8], model[:8].sample()).region(model, 0.9)


def test_scores_beyond_all_draws_are_told_apart():
    model = normal(400)
    target = torch.linspace(50, 90, 400, dtype=torch.float64)[:, None]
    calibration = Calibration.of(model, target, generator=torch.Generator().manual_seed(0))
    assert bool((calibration.ranks > DRAWS).all())
    region = calibration.region(model, 0.5, generator=torch.Generator().manual_seed(1))
    assert bool(region.contains(torch.full((400, 1), 69.0)).all())
    assert not bool(region.contains(torch.full((400, 1), 71.0)).any())


def test_targets_without_any_density_give_everything():
    model = normal(20)
    calibration = Calibration.of(model, torch.full((20, 1), 1e200, dtype=torch.float64))
    region = calibration.region(model, 0.9)
    assert bool(region.log_threshold.isneginf().all())
    assert bool(region.contains(torch.full((20, 1), 1e6)).all())
