"""Tests of calibration: their level where a model is right, and what a wrong one fails."""

import itertools
import math
from functools import cache

import numpy as np
import pytest
import torch
from helpers.reference import random_parameters
from helpers.transformed import mixture_of
from scipy import stats

from condens import GaussianMixture
from condens.errors import ArgumentError, CondensError, NotFiniteError, ShapeError
from condens.evaluation import calibration
from condens.evaluation.calibration import (
    Bin,
    Bins,
    Coverage,
    Test,
    adjust,
    conditional_calibration,
    coverage_table,
    holm,
    normal_scores,
    uniformity_tests,
)
from condens.transforms import Integer

SEEDS = 200
NAMES = ["bias", "spread", "shape"]


def rng(seed=0):
    return np.random.default_rng(seed)


def outcomes(uniform, **options):
    """Return p-values and Holm's of three tests for rows [seeds, n], two arrays [seeds, 3]."""
    found = [adjust(uniformity_tests(row, **options)) for row in uniform]
    assert [test.name for test in found[0]] == NAMES
    return tuple(
        np.array([[getattr(test, field) for test in tests] for tests in found])
        for field in ("p_value", "adjusted")
    )


def assert_level(rejected):
    """A test of 5 % fails in 2 to 9 % of 200 seeds."""
    rates = np.atleast_1d(np.asarray(rejected, dtype=float).mean(0))
    assert ((rates >= 0.02) & (rates <= 0.09)).all(), rates


# Against independent implementations.


def test_plain_rows_have_the_textbook_tests():
    u = rng(1).random(60)
    z = stats.norm.ppf(u)
    bias, spread, shape = uniformity_tests(u, subject="price")
    student = stats.ttest_1samp(z, 0.0)
    assert bias.effect == pytest.approx(z.mean(), abs=1e-12)
    assert bias.statistic == pytest.approx(student.statistic, rel=1e-9)
    assert bias.p_value == pytest.approx(student.pvalue, rel=1e-9)
    assert (bias.lower, bias.upper) == pytest.approx(student.confidence_interval(), rel=1e-9)
    # These tails are lighter than normal ones, so that χ² has all its degrees of freedom.
    assert stats.kurtosis(z) < 0
    square, nu = z.var(ddof=1), 59
    sides = stats.chi2.cdf(nu * square, nu), stats.chi2.sf(nu * square, nu)
    assert spread.effect == pytest.approx(math.sqrt(square), rel=1e-12)
    assert spread.p_value == pytest.approx(2 * min(sides), rel=1e-9)
    ends = np.sqrt(nu * square / stats.chi2.ppf([0.975, 0.025], nu))
    assert (spread.lower, spread.upper) == pytest.approx(ends, rel=1e-9)
    kolmogorov = stats.kstest(u, "uniform")
    assert shape.effect == pytest.approx(kolmogorov.statistic, rel=1e-12)
    assert shape.p_value == pytest.approx(kolmogorov.pvalue, rel=1e-9)
    assert {test.subject for test in (bias, spread, shape)} == {"price"}


def test_an_interval_leaves_out_the_ideal_where_its_test_rejects():
    ideal = {"bias": 0.0, "spread": 1.0, "shape": 0.0}
    for seed, power in itertools.product(range(40), (1.0, 1.2)):
        for groups in (None, np.arange(80) // 2):
            for test in uniformity_tests(rng(seed).random(80) ** power, groups=groups):
                outside = not test.lower <= ideal[test.name] <= test.upper
                outside |= test.name == "shape" and test.lower > 0
                assert outside == (test.p_value < 0.05) or abs(test.p_value - 0.05) < 1e-3


def test_grouped_errors_are_those_of_sums_over_groups():
    u, groups, weights = rng(2).random(90), rng(3).integers(0, 25, 90), rng(4).random(90)
    z = stats.norm.ppf(u)
    mean = np.average(z, weights=weights)
    each = [(weights * (z - mean))[groups == g].sum() for g in np.unique(groups)]
    totals = np.array([weights[groups == g].sum() for g in np.unique(groups)])
    units = totals.sum() ** 2 / (totals**2).sum()
    error = math.sqrt(np.square(each).sum() * units / (units - 1)) / weights.sum()
    bias = uniformity_tests(u, weights, groups)[0]
    assert bias.effect == pytest.approx(mean, rel=1e-12)
    assert bias.statistic == pytest.approx(mean / error, rel=1e-9)
    assert bias.p_value == pytest.approx(2 * stats.t.sf(abs(mean / error), units - 1), rel=1e-9)
    labels = np.array([f"patient {g}" for g in groups], dtype=object)
    for one, other in zip(
        uniformity_tests(u, weights, labels), uniformity_tests(u, weights, groups), strict=True
    ):
        assert one.to_dict() == pytest.approx(other.to_dict())


def test_copies_of_rows_are_no_evidence():
    """Each row five times, in a group, is each row once; so is a weight, whatever its unit."""
    u = rng(5).random(50)
    once = uniformity_tests(u, groups=np.arange(50))
    again = uniformity_tests(np.repeat(u, 5), groups=np.repeat(np.arange(50), 5))
    weighted = uniformity_tests(u, np.full(50, 7.0), np.arange(50))
    for first, *others in zip(once, again, weighted, strict=True):
        for other in others:
            for field in ("effect", "lower", "upper", "statistic", "p_value"):
                assert getattr(other, field) == pytest.approx(getattr(first, field), rel=1e-6)
    counts = rng(6).integers(0, 4, 50)
    copied = uniformity_tests(np.repeat(u, counts), groups=np.repeat(np.arange(50), counts))
    weighted = uniformity_tests(u, counts, np.arange(50))
    for first, other in zip(copied, weighted, strict=True):
        assert other.effect == pytest.approx(first.effect, rel=1e-9)
        if first.name != "spread":  # whose squares have another number of rows
            assert other.p_value == pytest.approx(first.p_value, rel=1e-6)


def test_simulated_distances_agree_with_kolmogorovs():
    """Rows that are groups of their own, on a grid, against the exact distribution."""
    for power in (1.0, 1.4):
        u = rng(7).random(500) ** power
        exact, simulated = (uniformity_tests(u, groups=g)[2] for g in (None, np.arange(500)))
        assert simulated.effect <= exact.effect + 1e-12
        assert simulated.effect == pytest.approx(exact.effect, abs=1 / 64)
        assert simulated.upper - simulated.effect == pytest.approx(
            exact.upper - exact.effect, rel=0.08
        )


@pytest.mark.parametrize("seed", range(5))
def test_holm_is_the_closed_test_of_bonferroni(seed):
    p = rng(seed).random(6) ** 3
    expected = [
        max(
            min(1.0, len(some) * min(p[list(some)]))
            for size in range(1, 7)
            for some in itertools.combinations(range(6), size)
            if i in some
        )
        for i in range(6)
    ]
    np.testing.assert_allclose(holm(p), expected, rtol=1e-12)
    assert holm([]).shape == (0,)


@pytest.mark.parametrize("hits", [0, 3, 45, 49, 50])
def test_coverage_has_binomial_bounds(hits):
    needed = np.r_[np.full(hits, 0.1), np.full(50 - hits, 0.95)]
    (found,) = coverage_table(needed, [0.9], subject="all")
    ends = stats.binomtest(hits, 50).proportion_ci(0.95, "exact")
    assert found.observed == hits / 50
    assert (found.lower, found.upper) == pytest.approx((ends.low, ends.high), rel=1e-9)
    assert found.expected_lower * 50 == pytest.approx(stats.binom.ppf(0.025, 50, 0.9))
    assert found.expected_upper * 50 == pytest.approx(stats.binom.ppf(0.975, 50, 0.9))
    assert found.is_expected == (41 <= hits <= 49)
    p_value = calibration._coverage_test(found).p_value
    sides = stats.binom.cdf(hits, 50, 0.9), stats.binom.sf(hits - 1, 50, 0.9)
    assert p_value == pytest.approx(min(1.0, 2 * min(sides)), rel=1e-9)


def test_copies_are_covered_no_more_certainly():
    needed = rng(8).random(80)
    (once,) = coverage_table(needed, [0.8])
    (copied,) = coverage_table(np.repeat(needed, 6), [0.8], groups=np.repeat(np.arange(80), 6))
    assert copied.observed == once.observed
    # 80 units are worth 80 rows, less what they leave open about their own noise.
    assert 74 < copied.n_effective <= 80
    assert copied.upper - copied.lower == pytest.approx(once.upper - once.lower, rel=0.05)
    (weighted,) = coverage_table(needed, [0.8], weights=rng(9).random(80))
    assert weighted.n_effective < 80


# The level, where the model is right.


@pytest.mark.parametrize("dimensions", [1, 2, pytest.param(5, marks=pytest.mark.slow)])
def test_a_right_model_passes_in_every_dimension(dimensions):
    """Each coordinate of the transform is tested; all together fail in 5 % at most."""
    m = GaussianMixture(*random_parameters((120,), 3, dimensions, seed=1))
    generator = torch.Generator().manual_seed(4)
    u = m.rosenblatt(m.sample((SEEDS,), generator=generator)).numpy()
    rejected, any_adjusted = [], []
    for rows in u:
        tests = adjust(test for column in rows.T for test in uniformity_tests(column))
        rejected += np.reshape([test.p_value < 0.05 for test in tests], (-1, 3)).tolist()
        any_adjusted.append(min(test.adjusted for test in tests) < 0.05)
    assert_level(rejected)
    assert np.mean(any_adjusted) <= 0.09


def test_a_right_model_of_whole_numbers_passes():
    m = mixture_of([Integer(0)], n_components=2, batch=(150,), spread=0.5)
    generators = [torch.Generator().manual_seed(s) for s in (5, 6, 7)]
    y = m.sample((SEEDS,), generator=generators[0])
    u = m.rosenblatt(y, generator=generators[1]).squeeze(-1).numpy()
    assert_level(outcomes(u)[0] < 0.05)
    # Without randomisation these are steps, and the test sees them.
    steps = m.cdf(y).numpy()
    assert (outcomes(steps)[0][:, 2] < 0.05).mean() > 0.9


def test_a_right_model_covers_what_it_says():
    m = GaussianMixture(*random_parameters((100,), 3, 2, seed=2))
    generator = torch.Generator().manual_seed(8)
    y = m.sample((SEEDS,), generator=generator)
    needed = m.hpd_coverage(y, n_samples=99, generator=generator).numpy()
    assert_level(outcomes(needed)[0] < 0.05)
    missed = [[not c.is_expected for c in coverage_table(row, (0.5, 0.8, 0.9))] for row in needed]
    # Whole numbers of rows: 5 % at most.
    assert (np.mean(missed, 0) <= 0.09).all()


def correlated(seed, groups=40, size=5, within=0.5):
    """Return uniform numbers of which those of a group are correlated, and the groups."""
    own, shared = rng(seed).standard_normal((groups, size)), rng(seed + 10**6)
    z = math.sqrt(within) * shared.standard_normal((groups, 1)) + math.sqrt(1 - within) * own
    return stats.norm.cdf(z).ravel(), np.repeat(np.arange(groups), size)


def test_a_right_model_passes_with_weights():
    found = [
        uniformity_tests(rng(s).random(150), rng(s + 500).exponential(size=150))
        for s in range(SEEDS)
    ]
    assert_level([[test.p_value < 0.05 for test in tests] for tests in found])


@pytest.mark.parametrize(
    ("within", "weighted"),
    [
        (0.5, False),
        pytest.param(0.9, False, marks=pytest.mark.slow),
        pytest.param(0.5, True, marks=pytest.mark.slow),
    ],
)
def test_a_right_model_passes_with_correlated_groups(within, weighted):
    rejected, naive, missed = [], [], []
    for seed in range(SEEDS):
        u, groups = correlated(seed, within=within)
        weights = rng(seed).exponential(size=len(u)) if weighted else None
        tests = uniformity_tests(u, weights, groups)
        rejected.append([test.p_value < 0.05 for test in tests])
        naive.append(uniformity_tests(u)[0].p_value < 0.05)
        (found,) = coverage_table(u, [0.8], weights, groups)
        missed.append(not found.is_expected)
    assert_level(rejected)
    assert np.mean(missed) <= 0.09
    # As if rows were independent, a right model would fail much more often.
    assert np.mean(naive) > 0.15


# A wrong model fails the right tests.


def wrong(kind, seed=3, n=200):
    """Return the PIT [seeds, n] of targets under a model that is wrong in one way."""
    z = rng(seed).standard_normal((SEEDS, n))
    if kind == "over-confident":  # its deviations are two thirds of the true ones
        return stats.norm.cdf(1.5 * z)
    if kind == "under-confident":
        return stats.norm.cdf(z / 1.5)
    if kind == "biased":  # by half a deviation
        return stats.norm.cdf(z + 0.5)
    modes = rng(seed + 1).choice([-2.5, 2.5], (SEEDS, n), p=[0.3, 0.7])
    if kind == "drops a mode":  # predicts the right one of two only
        return stats.norm.cdf(modes + z - 2.5)
    # One Gaussian with the right mean and variance, without the modes.
    mean, variance = 2.5 * 0.4, 1 + 2.5**2 * (1 - 0.4**2)
    return stats.norm.cdf((modes + z - mean) / math.sqrt(variance))


@cache
def results(kind):
    """Return the three tests of every seed; several tests read them."""
    return [adjust(uniformity_tests(row)) for row in wrong(kind)]


@pytest.mark.parametrize(
    ("kind", "fails", "passes"),
    [
        ("over-confident", ["spread"], ["bias"]),
        ("under-confident", ["spread"], ["bias"]),
        ("biased", ["bias", "shape"], ["spread"]),
        ("drops a mode", ["bias", "spread", "shape"], []),
        ("merges modes", ["shape"], ["bias", "spread"]),
    ],
)
def test_a_wrong_model_fails_the_right_tests(kind, fails, passes):
    rejected = [[test.adjusted < 0.05 for test in tests] for tests in results(kind)]
    assert [test.name for test in results(kind)[0]] == NAMES
    rates = dict(zip(NAMES, np.mean(rejected, 0), strict=True))
    assert all(rates[name] > 0.95 for name in fails), rates
    assert all(rates[name] <= 0.09 for name in passes), rates


@pytest.mark.parametrize(
    ("kind", "name", "effect"),
    [
        ("over-confident", "spread", 1.5),
        ("under-confident", "spread", 1 / 1.5),
        ("biased", "bias", 0.5),
        ("biased", "spread", 1.0),
        ("merges modes", "spread", 1.0),
        ("merges modes", "bias", 0.0),
        ("biased", "shape", stats.norm.cdf(0.25) - stats.norm.cdf(-0.25)),
    ],
)
def test_intervals_hold_the_true_effect(kind, name, effect):
    """In 95 % of seeds: 91 to 100 % of 200."""
    found = [tests[NAMES.index(name)] for tests in results(kind)]
    assert np.mean([test.effect for test in found]) == pytest.approx(effect, abs=0.03)
    assert np.mean([test.lower <= effect <= test.upper for test in found]) >= 0.91


def test_heavy_tails_do_not_pass_for_certainty():
    """Student's t of four degrees, scaled to a variance of one, spreads by one."""
    t = rng(4).standard_t(4, (SEEDS, 300)) / math.sqrt(2)
    u = stats.norm.cdf(t.clip(-8, 8))
    found = [uniformity_tests(row)[1] for row in u]
    assert np.mean([test.p_value < 0.05 for test in found]) < 0.2
    # A χ² with all degrees of freedom would reject far more often.
    textbook = [
        2 * min(stats.chi2.cdf(s, 299), stats.chi2.sf(s, 299)) for s in 299 * t.var(1, ddof=1)
    ]
    assert np.mean(np.array(textbook) < 0.05) > 0.3


# Bins.


def table(seed, n=600):
    """Return columns, the PIT of a right model, and a column to plant errors by."""
    numbers = rng(seed).standard_normal((n, 2))
    columns = {
        "age": numbers[:, 0],
        "income": numbers[:, 1],
        "city": rng(seed + 1).choice(["Bern", "Oslo", "Rome"], n),
    }
    return columns, rng(seed + 2).random(n)


def test_no_alarm_where_the_model_is_right():
    alarms = []
    for seed in range(0, 3 * SEEDS, 3):
        columns, u = table(seed)
        bins = conditional_calibration(columns, {"price": u}, {"price": abs(2 * u - 1)})
        alarms.append(bins.alarm)
    assert np.mean(alarms) <= 0.09


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
def test_no_alarm_with_correlated_groups(weighted):
    alarms = []
    for seed in range(SEEDS):
        u, groups = correlated(seed, groups=200)
        weights = rng(seed).exponential(size=len(u)) if weighted else None
        age = rng(seed + 1).standard_normal(200)[groups] + rng(seed + 2).standard_normal(len(u))
        bins = conditional_calibration(
            {"age": age}, {"price": u}, {"price": abs(2 * u - 1)}, weights=weights, groups=groups
        )
        alarms.append(bins.alarm)
    assert np.mean(alarms) <= 0.09


@pytest.mark.parametrize("kind", ["bias", "spread", "category"])
def test_the_planted_bin_is_found_and_named(kind):
    hits = []
    for seed in range(0, 90, 3):
        columns, u = table(seed, 1000)
        z = stats.norm.ppf(u)
        top = columns["age"] >= np.quantile(columns["age"], 0.9, method="higher")
        if kind == "bias":
            z = np.where(top, z + 1, z)
        elif kind == "spread":
            z = np.where(top, 2 * z, z)
        else:
            z = np.where(columns["city"] == "Oslo", z / 2, z)
        u = stats.norm.cdf(z)
        bins = conditional_calibration(columns, {"price": u}, {"price": abs(2 * u - 1)})
        worst = bins.worst
        if kind == "category":
            named = (worst.column, worst.label) == ("city", "Oslo")
            right = worst.worst.name == "spread" and worst.worst.effect < 1
        else:
            named = worst.column == "age" and float(worst.label.split(" to ")[1]) == pytest.approx(
                columns["age"].max(), rel=0.01
            )
            right = worst.worst.name in (kind, "coverage")
        hits.append(bins.alarm and named and right and worst.worst.subject == "price")
        assert f"{worst.column}: {worst.label}" in str(bins)
    assert np.mean(hits) > 0.95


def test_bins_hold_every_row_once():
    n = 1003
    columns = {
        "number": np.where(np.arange(n) % 100 == 0, np.nan, rng().standard_normal(n)),
        "few": rng(1).integers(0, 3, n),
        "skewed": np.where(np.arange(n) < 700, 0.0, rng(2).random(n)),
        "word": rng(3).choice(np.array(["a", "<img>", None], dtype=object), n),
        "truth": rng(4).random(n) < 0.3,
        "huge": 1e9 + rng(5).random(n),
        "rare": np.array(["usual"] * 900 + [f"rare {i}" for i in range(103)]),
        "constant": np.zeros(n),
        "infinite": np.where(np.arange(n) % 3 == 0, np.inf, rng(6).random(n)),
    }
    u = rng(7).random(n)
    bins = conditional_calibration(columns, {"y": u}, {"y": u})
    for column in columns:
        mine = [one for one in bins.bins if one.column == column]
        assert sum(one.n_rows for one in mine) == n, column
        assert len({one.label for one in mine}) == len(mine)
        assert len(mine) <= 12
    labels = {
        one.column: [b.label for b in bins.bins if b.column == one.column] for one in bins.bins
    }
    assert labels["few"] == ["0", "1", "2"]
    assert labels["truth"] == ["False", "True"]
    assert labels["word"] == ["<img>", "a", "missing"]
    assert labels["rare"] == ["usual", "103 rare values"]
    assert labels["number"][-1] == "missing"
    assert len(labels["number"]) == 11
    sizes = [one.n_rows for one in bins.bins if one.column == "number"]
    assert max(sizes[:-1]) - min(sizes[:-1]) <= 1


def test_a_bin_is_tested_as_its_rows_alone():
    columns, u = table(11)
    groups, weights = rng(12).integers(0, 150, 600), rng(13).random(600)
    bins = conditional_calibration(
        columns, {"y": u}, {"y": u}, coverage=0.8, weights=weights, groups=groups
    )
    for one in bins.bins:
        if one.column == "city":
            rows = columns["city"] == one.label
            alone = uniformity_tests(u[rows], weights[rows], groups[rows], subject="y")[:2]
            for test, other in zip(one.tests, alone, strict=False):
                assert (test.name, test.effect) == (other.name, pytest.approx(other.effect))
                assert test.p_value == pytest.approx(other.p_value, rel=1e-9)
            (held,) = coverage_table(u[rows], [0.8], weights[rows], groups[rows], subject="y")
            assert one.coverages[0].to_dict() == pytest.approx(held.to_dict())
    p_values = [test.p_value for one in bins.bins for test in one.tests]
    adjusted = [test.adjusted for one in bins.bins for test in one.tests]
    np.testing.assert_allclose(adjusted, holm(p_values))


# Missing entries, extremes and mistakes.


def test_what_was_not_observed_is_left_out():
    u = rng().random(100)
    gaps = np.where(np.arange(150) % 3 == 0, np.nan, 0.0)
    gaps[~np.isnan(gaps)] = u
    assert uniformity_tests(gaps) == uniformity_tests(u)
    assert coverage_table(gaps, [0.5]) == coverage_table(u, [0.5])
    weights = np.r_[np.ones(100), np.zeros(5)]
    more = np.r_[u, np.zeros(5)]
    assert uniformity_tests(more, weights) == uniformity_tests(u)
    few = conditional_calibration({"a": np.arange(105.0)}, {"y": more}, {}, weights=weights)
    assert len(few.bins) == 2
    assert conditional_calibration({}, {}, {}).worst is None
    assert str(conditional_calibration({}, {}, {})) == "too few rows for bins"


def test_ends_are_not_infinite():
    z = normal_scores([0.0, 1e-300, 0.5, 1 - 2**-53, 1.0, np.nan])
    assert np.isfinite(z[:5]).all()
    assert np.isnan(z[5])
    np.testing.assert_allclose(z[:5], -z[[4, 4, 2, 0, 0]], rtol=0.02)
    for test in uniformity_tests(np.r_[0.0, 1.0, rng().random(50)]):
        assert all(math.isfinite(value) for value in (test.effect, test.lower, test.upper))


@pytest.mark.parametrize("value", [0.0, 0.3, 0.5, 1.0])
def test_rows_that_are_all_alike(value):
    """No error is divided by: whatever comes, it is no NaN."""
    for groups in (None, np.arange(20) // 2):
        for test in uniformity_tests(np.full(20, value), groups=groups):
            values = (test.effect, test.lower, test.upper, test.statistic, test.p_value)
            assert not any(math.isnan(one) for one in values), test
            assert test.p_value < 1e-3 or (test.name == "bias" and value == 0.5)


def test_plain_values_and_back():
    columns, u = table(20)
    bins = conditional_calibration(columns, {"y": u}, {"y": u})
    assert Bins.from_dict(bins.to_dict()) == bins
    one = bins.bins[0]
    assert Bin.from_dict(one.to_dict()) == one
    assert Test.from_dict(one.tests[0].to_dict()) == one.tests[0]
    assert Coverage.from_dict(one.coverages[0].to_dict()) == one.coverages[0]
    values = [value for test in one.tests for value in test.to_dict().values()]
    assert {type(value) for value in values} == {str, float}


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: uniformity_tests([0.5] * 7), ArgumentError, "at least 8"),
        (lambda: uniformity_tests([0.5] * 50, groups=[1] * 50), ArgumentError, "at least 8"),
        (lambda: uniformity_tests([0.5] * 20 + [1.5]), NotFiniteError, "1.5 at row 20"),
        (lambda: uniformity_tests([[0.5]] * 20), ShapeError, r"\[20, 1\]"),
        (lambda: uniformity_tests(["a"] * 20), ArgumentError, "numbers"),
        (lambda: uniformity_tests([0.5] * 20, [1.0] * 19), ArgumentError, "weights"),
        (lambda: uniformity_tests([0.5] * 20, [-1.0] * 20), ArgumentError, "negative"),
        (lambda: uniformity_tests([0.5] * 20, groups=[1, 2]), ShapeError, "20 rows"),
        (lambda: coverage_table([math.nan], [0.5]), ArgumentError, "observed"),
        (lambda: coverage_table([0.5], [1.5]), ArgumentError, "between 0 and 1"),
        (lambda: holm([0.5, 2.0]), ArgumentError, "outside"),
        (
            lambda: conditional_calibration({"a": [1.0]}, {"y": [0.5, 0.5]}, {}),
            ShapeError,
            r"\[1, 2\] rows",
        ),
        (
            lambda: conditional_calibration({"a": [[1.0]]}, {"y": [0.5]}, {}),
            ShapeError,
            r"\[1, 1\]",
        ),
        (lambda: conditional_calibration({}, {}, {}, n_bins=0), CondensError, "n_bins"),
    ],
)
def test_mistakes_have_names(call, error, text):
    with pytest.raises(error, match=text):
        call()
