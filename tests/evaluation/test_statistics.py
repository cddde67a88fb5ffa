"""Means, errors and R² against plain numpy, scikit-learn and simulation."""

import math

import numpy as np
import pytest
from sklearn.metrics import r2_score

from condens.evaluation.statistics import (
    Mean,
    Score,
    explained_variance,
    paired_difference,
    plus_minus,
    root_mean_square,
    weighted_mean,
)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_without_weights_it_is_the_textbook_error(rng):
    values = rng.exponential(size=50)
    expected = values.mean(), values.std(ddof=1) / math.sqrt(50)
    assert weighted_mean(values) == pytest.approx(expected, rel=1e-13)


def by_hand(values, weights, groups):
    """Return the mean and the clustered error, by loops over groups and rows."""
    total = sum(weights)
    mean = sum(w * v for w, v in zip(weights, values, strict=True)) / total
    sums = {}
    for value, weight, group in zip(values, weights, groups, strict=True):
        if weight > 0:
            sums[group] = sums.get(group, 0.0) + weight * (value - mean)
    count = len(sums)
    return mean, math.sqrt(count / (count - 1) * sum(s * s for s in sums.values())) / total


@pytest.mark.parametrize("clustered", [False, True])
def test_weights_and_groups(rng, clustered):
    values, weights = rng.normal(size=60), rng.exponential(size=60)
    weights[::7] = 0.0
    groups = rng.integers(9, size=60) if clustered else np.arange(60)
    found = weighted_mean(values, weights, groups if clustered else None)
    assert found == pytest.approx(by_hand(values, weights, groups), rel=1e-12)


def test_blocks_and_missing_entries(rng):
    values, weights = rng.normal(size=(90, 2, 3)) + 1e9, rng.exponential(size=90)
    groups = rng.integers(12, size=90)
    values[rng.random(values.shape) < 0.2] = math.nan
    for n_groups, labels in ((None, None), (12, groups)):
        mean = Mean(n_groups)
        for rows in np.split(np.arange(90), [7, 40, 41]):
            mean.add(values[rows], weights[rows], None if labels is None else labels[rows])
        for place in np.ndindex(2, 3):
            column = values[(slice(None), *place)]
            seen = ~np.isnan(column)
            of = np.arange(90) if labels is None else labels
            expected = by_hand(column[seen] - 1e9, weights[seen], of[seen])
            found = mean.score(*place)
            assert found.value - 1e9 == pytest.approx(expected[0], abs=1e-6)
            assert found.standard_error == pytest.approx(expected[1], rel=1e-6)


def test_the_clustered_error_is_that_of_repetitions(rng):
    """Rows of a group share a shift: the error of independent rows would be a third of it."""
    groups = np.repeat(np.arange(30), 20)
    shifts, noise = rng.normal(size=(1500, 30, 1)), rng.normal(size=(1500, 30, 20))
    values = (shifts + 0.5 * noise).reshape(1500, 600)
    found = np.array([weighted_mean(row, None, groups) for row in values])
    # Of 1500 repetitions the standard deviation has an error of 1.8 %.
    assert np.sqrt((found[:, 1] ** 2).mean()) == pytest.approx(found[:, 0].std(), rel=0.06)
    assert weighted_mean(values[0]).standard_error < 0.4 * found[0, 1]


def test_one_row_or_group_has_no_error():
    assert math.isnan(weighted_mean([3.0]).standard_error)
    assert math.isnan(weighted_mean([3.0, 4.0], None, np.zeros(2, int)).standard_error)
    assert math.isnan(weighted_mean([math.nan]).value)


def test_infinite_values():
    value, error = weighted_mean([1.0, -math.inf, 2.0])
    assert value == -math.inf
    assert math.isnan(error)
    # Of weight zero they do not count.
    assert weighted_mean([1.0, -math.inf, 3.0], np.array([1.0, 0.0, 1.0])).value == 2.0


def test_equal_values_have_no_error():
    assert weighted_mean([0.1] * 10) == Score(0.1, 0.0)


@pytest.mark.parametrize("weighted", [False, True])
def test_r2_is_that_of_scikit_learn(rng, weighted):
    y, weights = rng.normal(size=80), rng.exponential(size=80) if weighted else None
    mean = y + 0.5 * rng.normal(size=80)
    assert explained_variance(y, mean, weights).value == pytest.approx(
        r2_score(y, mean, sample_weight=weights), rel=1e-12
    )


def test_the_error_of_r2_is_that_of_repetitions(rng):
    y = rng.normal(size=(1500, 100))
    found = np.array([explained_variance(row, 0.7 * row + e) for row, e in
                      zip(y, 0.4 * rng.normal(size=y.shape), strict=True)])  # fmt: skip
    assert found[:, 1].mean() == pytest.approx(found[:, 0].std(), rel=0.06)


def test_a_constant_target_has_no_r2():
    assert math.isnan(explained_variance(np.full(9, 0.3), np.arange(9.0)).value)


def test_the_root_mean_square_and_its_error(rng):
    errors = 3 * rng.normal(size=(4000, 100))
    found = [root_mean_square(each) for each in errors]
    values = [score.value for score in found]
    np.testing.assert_allclose(values, np.sqrt((errors**2).mean(1)), rtol=1e-12)
    mean = np.mean([score.standard_error for score in found])
    assert mean == pytest.approx(np.std(values), rel=0.05)


@pytest.mark.parametrize("scale", [1e-200, 1e-160, 1e120, 1e200])
def test_every_scale_has_the_same_figures(rng, scale):
    """Squares of such numbers are zero or infinite in double precision."""
    y, mean = rng.normal(size=(2, 50))
    weights, groups = rng.uniform(size=50), rng.integers(0, 9, 50)
    for about in ((), (weights,), (weights, groups)):
        for ask in (weighted_mean, root_mean_square):
            there, here = ask(scale * y, *about), ask(y, *about)
            np.testing.assert_allclose(np.array(there) / scale, here, rtol=1e-9)
        expected = explained_variance(y, mean, *about)
        assert explained_variance(scale * y, scale * mean, *about) == pytest.approx(expected)


def test_infinite_errors_have_an_infinite_mean_square():
    assert root_mean_square(np.array([1.0, np.inf])).value == np.inf
    assert explained_variance(np.array([1.0, 2.0]), np.array([1.0, np.inf])).value == -np.inf


def test_a_row_that_is_impossible_under_both_makes_no_difference():
    first, second = np.array([-np.inf, 1.0, -np.inf]), np.array([-np.inf, 3.0, 0.0])
    assert paired_difference(first, second).tolist() == [0.0, -2.0, -np.inf]


@pytest.mark.parametrize(
    ("value", "error", "expected"),
    [
        (-1.2346, 0.0123, "-1.235 ± 0.012"),
        (1234.5, 67.8, "1234 ± 68"),
        (98765.0, 1234.0, "98800 ± 1200"),
        (2e-9, 3e-10, "2e-09 ± 3e-10"),
        (-math.inf, math.nan, "-inf"),
        (0.25, 0.0, "0.25"),
    ],
)
def test_numbers_are_rounded_by_their_error(value, error, expected):
    assert plus_minus(value, error) == expected
    assert str(Score(value, error)) == expected
