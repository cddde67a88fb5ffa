"""Calibrated regions: coverage whatever the model, against binomial bounds and exact cases."""

import math
import pickle
from fractions import Fraction
from functools import cache

import mpmath
import pytest
import torch
from helpers.reference import random_parameters
from scipy import stats
from torch.testing import assert_close

from condens import GaussianMixture, LowRankMixture, TransformedMixture
from condens.errors import ArgumentError, ShapeError
from condens.evaluation import Calibration
from condens.evaluation.conformal import POINTS
from condens.transforms import Integer, Interval, Positive, Real


def normal(batch, dimensions=1, scale=1.0):
    """Return standard normals with a scale that may be wrong."""
    factors = torch.zeros(batch, 1, dimensions * (dimensions + 1) // 2, dtype=torch.float64)
    factors[..., :dimensions] = -math.log(scale)
    means = torch.zeros(batch, 1, dimensions, dtype=torch.float64)
    return GaussianMixture(torch.zeros(batch, 1), means, factors)


@cache
def rescaled(scale, rows=4000):
    """Return standard normals with a wrong scale, calibrated on true targets, and more of those."""
    seed = torch.Generator().manual_seed(1)
    truth, model = normal(rows, 2), normal(rows, 2, scale)
    calibration = Calibration.of(model, truth.sample(generator=seed))
    return model, calibration, truth.sample(generator=seed)


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0], ids=["narrow", "right", "wide"])
@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_a_wrong_scale_is_corrected(scale, coverage):
    model, calibration, target = rescaled(scale)
    rows, region = len(target), calibration.region(model, coverage)
    inside = region.contains(target)
    # Random are the rows on either side: four standard errors.
    error = math.sqrt(2 * coverage * (1 - coverage) / rows)
    assert abs(float(inside.double().mean()) - coverage) < 4 * error
    # The threshold is the density of the model where the true χ² has this coverage.
    radius = stats.chi2(2).ppf(coverage)
    expected = stats.norm(scale=scale).logpdf(0) * 2 - radius / scale**2 / 2
    # The error of the calibration rows, on the scale of the density.
    spread = math.sqrt(coverage * (1 - coverage) / rows) / stats.chi2(2).pdf(radius)
    tolerance = 4 * spread / scale**2 / 2
    assert_close(float(region.log_threshold.median()), expected, rtol=0, atol=tolerance)
    end = stats.norm.ppf(0.5 + coverage / 2)
    assert_close(region.upper, torch.full_like(region.upper, end), rtol=0, atol=0.12)
    assert_close(region.lower, -region.upper, rtol=0, atol=1e-9)
    assert_close(
        torch.stack(calibration.interval(model, coverage)),
        torch.stack([region.lower, region.upper]),
        rtol=0,
        atol=0,
    )


def test_coverage_is_at_least_what_was_asked_for_on_average_over_small_calibrations():
    # Ranks of equal laws: P(covered) = ⌈(m+1)c⌉/(m+1) exactly, up to equal ranks.
    seed, hits, rounds, m, coverage = torch.Generator().manual_seed(2), 0, 100, 19, 0.9
    for _ in range(rounds):
        model = normal(m + 25, 1, 0.5)
        target = normal(m + 25).sample(generator=seed)
        lower, upper = Calibration.of(model[:m], target[:m]).interval(model[m:], coverage)
        inside = (lower <= target[m:]) & (target[m:] <= upper)
        hits += int(inside.sum())
    expected = math.ceil((m + 1) * coverage) / (m + 1)
    # Rows of one round share their calibration, whose coverage is Beta(18, 2).
    error = math.sqrt(stats.beta(18, 2).var() / rounds + expected * (1 - expected) / rounds / 25)
    assert abs(hits / rounds / 25 - expected) < 4 * error


# Every kind of target, the values of each with atoms.
KINDS = {
    "real": (Real(), [-1.5, 0.0, 0.3, 7.0]),
    "positive": (Positive(), [0.01, 1.0, 2.5, 400.0]),
    "from a bound": (Positive(1e6), [1e6 + 0.1, 1e6 + 1.0, 1e6 + 30.0]),
    "unit": (Interval(0.0, 1.0), [0.001, 0.5, 0.7, 0.999]),
    "logit": (Interval(0.0, 1.0, link="logit"), [0.001, 0.5, 0.7, 0.999]),
    "interval": (Interval(1e9, 1e9 + 4.0, link="logit"), [1e9 + 0.5, 1e9 + 2.0, 1e9 + 3.875]),
    "count": (Integer(lower=0), [0.0, 1.0, 2.0, 30.0]),
    "integer": (Integer(), [-3.0, 0.0, 1.0, 12.0]),
}


@cache
def tied(kind, rows=200):
    """Return densities of two targets, some equal, targets, many equal, and the calibration."""
    torch.manual_seed(0)
    transform, atoms = KINDS[kind]
    parameters = [part.repeat_interleave(4, 0) for part in random_parameters((rows // 4,), 3, 2)]
    model = TransformedMixture(GaussianMixture(*parameters), [transform, Real()])
    target = model.sample()
    at = torch.randint(len(atoms), (rows,))
    target[:, 0] = torch.where(
        torch.rand(rows) < 0.7, torch.tensor(atoms).double()[at], target[:, 0]
    )
    target[:, 1] = torch.where(torch.rand(rows) < 0.5, 0.25, target[:, 1])
    return model, target, Calibration.of(model, target)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("coverage", [0.02, 0.3, 0.5, 0.9, 0.99])
def test_regions_and_intervals_hold_exactly_the_scores(kind, coverage):
    model, target, calibration = tied(kind)
    place = math.ceil(Fraction(str(coverage)) * 201)
    # The same rows again, in another order and other batches.
    order = torch.randperm(200)
    for rows in (order[:7], order[7:]):
        region = calibration.region(model[rows], coverage)
        limit = calibration.ranks.sort().values[place - 1]
        assert torch.equal(region.contains(target[rows]), calibration.ranks[rows] <= limit)
        lower, upper = calibration.interval(model[rows], coverage)
        inside = (lower <= target[rows]) & (target[rows] <= upper)
        for dim, scores in enumerate(calibration.levels):
            limit = scores.sort().values[place - 1]
            assert torch.equal(inside[:, dim], scores[rows] <= limit)


@pytest.mark.parametrize("kind", KINDS)
def test_intervals_are_the_quantiles_of_their_score(kind):
    model, target, calibration = tied(kind)
    alone = model.marginal(0)
    # P(Y ≤ y) and P(Y ≥ y) by the distribution function, where it has all digits.
    below = alone.cdf(target[:, :1])
    above = 1 - (alone.cdf(target[:, :1] - 1) if model.transforms[0].discrete else below)
    expected = -(2 * torch.minimum(below, above)).log().clamp(max=0)
    usual = torch.minimum(below, above) > 1e-6
    assert_close(calibration.levels[0][usual], expected[usual], rtol=0, atol=1e-9)
    lower, upper = calibration.interval(model, 0.7)
    tail = 0.5 * math.exp(-float(calibration.levels[0].sort().values[math.ceil(201 * 0.7) - 1]))
    if not model.transforms[0].discrete:
        for ends, expected in ((lower, tail), (upper, 1 - tail)):
            # By the probit, numbers nearer to a bound have too few digits left to tell.
            far = model.transforms[0].to_real(ends[:, 0]).abs() < 5
            far |= model.transforms[0].slope_growth == 0
            found = alone.cdf(ends[:, :1])[far]
            assert len(found) > 100
            assert_close(found, torch.full_like(found, expected), rtol=1e-6, atol=0)
        return
    # The smallest with P(Y ≤ y) ≥ tail and the largest with P(Y ≥ y) ≥ tail, equality included.
    least = tail * (1 - 1e-8)
    assert bool((alone.cdf(lower[:, :1]) >= least).all())
    assert bool((alone.cdf(lower[:, :1] - 1) < least).all())
    assert bool((1 - alone.cdf(upper[:, :1] - 1) >= least).all())
    assert bool((1 - alone.cdf(upper[:, :1]) < least).all())


def test_the_smallest_and_the_largest_share():
    model = normal(50)
    target = model.sample(generator=torch.Generator().manual_seed(0))
    calibration = Calibration.of(model, target)
    for coverage, place in ((1e-12, 0), (1e-300, 0), (1 / 51, 0), (0.5, 25), (50 / 51, 49)):
        # 1/51 and 50/51 are not decimals: the nearest ones below them.
        coverage = math.nextafter(coverage, 0)
        _, upper = calibration.interval(model[:1], coverage)
        score = calibration.levels[0].sort().values[place]
        assert_close(float(upper), float(stats.norm.isf(0.5 * math.exp(-score))), rtol=0, atol=1e-8)
        inside = calibration.region(model, coverage).contains(target)
        assert int(inside.sum()) == place + 1
    nine = Calibration.of(model[:9], target[:9])
    assert float(nine.interval(model[:1], 0.9)[1]) == pytest.approx(
        float(stats.norm.isf(0.5 * math.exp(-nine.levels[0].max()))), rel=1e-7
    )


FAR = (40.0, 1e3, 1e6, 1e100, 1e150)


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("side", [-1, 1])
def test_targets_where_a_probability_has_no_digits(far, side):
    model = normal(99)
    target = side * far * torch.linspace(1, 2, 99, dtype=torch.float64)[:, None]
    calibration = Calibration.of(model, target)
    lower, upper = calibration.interval(model, 0.5)
    # The 50th of them: as far on either side of the median.
    assert_close(upper, torch.full_like(upper, far * 1.5), rtol=1e-8, atol=0)
    assert_close(lower, -upper, rtol=1e-12, atol=0)
    inside = (lower <= target) & (target <= upper)
    assert int(inside.sum()) == 50
    assert int(calibration.region(model, 0.5).contains(target).sum()) == 50


def test_far_tails_are_those_of_the_widest_component_with_any_weight():
    logits = torch.tensor([[0.0, -300.0]]).double()
    factors = torch.tensor([[[0.0], [-4.0]]]).double()
    model = GaussianMixture(logits, torch.zeros(1, 2, 1).double(), factors).expand((49,))
    target = torch.linspace(20, 3000, 49, dtype=torch.float64)[:, None]
    calibration = Calibration.of(model, target)
    for row in (0, 24, 48):
        at = mpmath.mpf(float(target[row]))
        tail = mpmath.ncdf(-at) + mpmath.exp(-300) * mpmath.ncdf(-at / mpmath.exp(4))
        expected = -mpmath.log(2 * tail / (1 + mpmath.exp(-300)))
        assert_close(float(calibration.levels[0][row]), float(expected), rtol=1e-12, atol=0)
    _, upper = calibration.interval(model, 0.5)
    assert_close(upper, target[24].expand_as(upper), rtol=1e-8, atol=0)


def test_thresholds_have_their_coverage():
    # The points that densities are ranked among spread over them: of a right model's probability
    # a region holds what it is asked for, to the error of as many independent draws.
    model = GaussianMixture(*random_parameters((60,), 3, 2))
    calibration = Calibration(torch.arange(1.0, 128.0).double(), [])
    for coverage in (0.25, 0.5, 0.9):
        region = calibration.region(model, coverage)
        held = region.contains(model.sample((4000,))).double().mean(0)
        error = math.sqrt(coverage * (1 - coverage) / POINTS)
        assert float((held - coverage).abs().max()) < 4 * error
        assert float((held - coverage).abs().mean()) < error


def test_one_density_has_one_threshold_in_whatever_batch():
    model = GaussianMixture(*random_parameters((50,), 3, 2))
    calibration = Calibration.of(model, model.sample())
    whole = calibration.region(model, 0.8).log_threshold
    alone = torch.cat(
        [calibration.region(part, 0.8).log_threshold for part in (model[:1], model[1:])]
    )
    assert_close(alone, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dimensions", [1, 3])
def test_low_rank_regions_are_those_of_the_full_density(dimensions):
    generator = torch.Generator().manual_seed(4)
    logits, means, log_scales, loadings = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((80, 2), (80, 2, dimensions), (80, 2, dimensions), (80, 2, dimensions, 1))
    )
    model = LowRankMixture(logits, means, log_scales, loadings)
    target = model.sample(generator=generator)
    ours, full = Calibration.of(model, target), Calibration.of(model.to_full(), target)
    for one, other in zip(ours.levels, full.levels, strict=True):
        assert_close(one, other, rtol=1e-9, atol=1e-9)
    # Other points, but as evenly spread.
    assert float((ours.ranks - full.ranks).abs().mean()) < POINTS / 10
    inside = ours.region(model, 0.7).contains(target)
    assert int(inside.sum()) == math.ceil(81 * 0.7)


def test_nothing_is_computed_before_it_is_asked_for():
    model = normal(30, 2)
    region = Calibration.of(model, model.sample()).region(model, 0.5)
    assert set(vars(region)) == {"mixture", "coverage", "calibration"}
    assert region.log_threshold is region.log_threshold
    assert region.lower.shape == region.upper.shape == (30, 2)
    assert pickle.loads(pickle.dumps(region)).log_threshold.equal(region.log_threshold)


def test_volume():
    # A disc in two dimensions, whose radius its threshold tells.
    model = normal(3, 2)
    target = normal(99, 2).sample(generator=torch.Generator().manual_seed(1))
    region = Calibration.of(normal(99, 2), target).region(model, 0.8)
    area = 2 * math.pi * (stats.norm.logpdf(0) * 2 - region.log_threshold)
    estimate = region.volume(n_samples=100_000, generator=torch.Generator().manual_seed(0))
    assert bool(((estimate.value - area).abs() < 4 * estimate.standard_error).all())
    assert bool((estimate.standard_error < 0.05).all())


def test_missing_targets_count_where_they_were_observed():
    model = normal(50, 2)
    target = model.sample()
    target[:10, 0] = torch.nan
    target[10:15] = torch.nan
    calibration = Calibration.of(model, target)
    assert calibration.ranks.shape == (35,)
    assert [len(levels) for levels in calibration.levels] == [35, 45]


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.83, 6 / 7])
def test_groups_count_once_each(coverage):
    """Against the definition in exact arithmetic: mass 1/(K+1) for each group and for a new one."""
    draw = torch.Generator().manual_seed(7)
    sizes = [1, 2, 3, 7, 30, 11, 1]
    groups = torch.arange(7).repeat_interleave(torch.tensor(sizes))[
        torch.randperm(55, generator=draw)
    ]
    target = torch.randn(55, 2, generator=draw, dtype=torch.float64)
    target[::9, 1] = math.nan
    calibration = Calibration.of(normal(55, 2), target, groups)
    seen = ~target[:, 1].isnan()
    for some, scores, place in (
        (seen, calibration.ranks, 0),
        (seen | True, calibration.levels[0], 1),
        (seen, calibration.levels[1], 2),
    ):
        of, exact = groups[some].tolist(), Fraction(str(coverage))
        count = len(set(of))
        mass = dict.fromkeys(scores.tolist(), Fraction(0))
        for score, group in zip(scores.tolist(), of, strict=True):
            mass[score] += Fraction(1, (count + 1) * of.count(group))
        reached = [s for s in mass if sum(m for o, m in mass.items() if o <= s) >= exact]
        if reached:
            assert calibration._threshold(place, coverage) == min(reached)
        else:
            with pytest.raises(ArgumentError, match=rf"with {count} groups to calibrate on"):
                calibration._threshold(place, coverage)


def test_rows_of_a_group_are_not_counted_as_independent():
    # Six groups of equal rows: a new group is below the fifth in 5 of 7 cases, too few for 0.8.
    ends = torch.tensor([0.3, -0.5, 0.9, 1.4, -2.0, 3.0], dtype=torch.float64)
    target, groups = ends.repeat_interleave(20)[:, None], torch.arange(6).repeat_interleave(20)
    for given, end in ((None, 2.0), (groups, 3.0)):
        calibration = Calibration.of(normal(120), target, given)
        lower, upper = calibration.interval(normal(1), 0.8)
        assert_close(upper.item(), end, rtol=1e-7, atol=0)
        assert_close(lower.item(), -end, rtol=1e-7, atol=0)
        region = calibration.region(normal(1), 0.8)
        assert region.contains([end]).item()
        assert not region.contains([end + 0.01]).item()


def test_groups_of_one_row_are_rows():
    target = torch.randn(99, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows, groups = (Calibration.of(normal(99, 2), target, g) for g in (None, torch.arange(99)))
    for coverage in (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
        for place in range(3):
            assert rows._threshold(place, coverage) == groups._threshold(place, coverage)


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
    calibration = Calibration.of(model, target)
    assert bool((calibration.ranks > POINTS).all())
    region = calibration.region(model, 0.5)
    assert bool(region.contains(torch.full((400, 1), 69.0)).all())
    assert not bool(region.contains(torch.full((400, 1), 71.0)).any())


def test_targets_without_any_density_give_everything():
    model = normal(20)
    calibration = Calibration.of(model, torch.full((20, 1), 1e200, dtype=torch.float64))
    region = calibration.region(model, 0.9)
    assert bool(region.log_threshold.isneginf().all())
    assert bool(region.contains(torch.full((20, 1), 1e6)).all())
    assert region.volume().value.tolist() == [math.inf] * 20
    assert bool((region.lower == -math.inf).all())
    assert bool((region.upper == math.inf).all())


@pytest.mark.parametrize("grouped", [False, True])
def test_parts_of_the_rows_score_as_all_of_them(grouped):
    seed = torch.Generator().manual_seed(0)
    model = normal(50, 2)
    target = model.sample(generator=seed)
    target[::4, 1], target[3] = math.nan, math.nan
    groups = torch.arange(50) // 3 if grouped else None
    whole = Calibration.of(model, target, groups)
    parts = [(model[rows], target[rows]) for rows in torch.arange(50).split(7)]
    made = Calibration.of_parts(parts, groups)
    assert (made.weights is None) == (whole.weights is None)
    for ours, theirs in (
        ([made.ranks], [whole.ranks]),
        (made.levels, whole.levels),
        (made.weights or (), whole.weights or ()),
    ):
        assert len(ours) == len(theirs)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
