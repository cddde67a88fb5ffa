"""Moments and quantiles of parts against those of the whole."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose

from condens.data.statistics import BUFFER_VALUES, Moments, Sketch

RANDOM = np.random.default_rng(0)
COLUMNS = {
    "normal": RANDOM.normal(size=5000),
    "seconds since 1970": 1.7e9 + RANDOM.normal(size=5000),
    "huge": 1e300 * RANDOM.normal(size=5000),
    "tiny": 1e-300 * RANDOM.normal(size=5000),
    "constant": np.full(5000, 0.1),
    "gaps": np.where(RANDOM.random(5000) < 0.5, np.nan, RANDOM.normal(size=5000)),
    "nothing": np.full(5000, np.nan),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("ends", [[0, 5000], [0, 1, 2, 4000, 5000], [0, 0, 2500, 2500, 5000]])
def test_moments_of_parts_are_those_of_the_whole(name, ends):
    column = COLUMNS[name]
    found = None
    for low, high in pairwise(ends):
        part = Moments.of(column[low:high, None])
        found = part if found is None else found.merged(part)
    seen = column[~np.isnan(column)]
    assert found.count[0] == len(seen)
    if not len(seen):
        assert found.deviation[0] == 0
        return
    unit = np.abs(seen).max()
    assert_allclose(found.mean[0] / unit, (seen / unit).mean(), rtol=1e-13, atol=1e-15)
    assert_allclose(found.deviation[0] / unit, (seen / unit).std(), rtol=1e-8, atol=1e-16)
    assert (found.lower[0], found.upper[0]) == (seen.min(), seen.max())


ORDERS = {
    "random": lambda n: np.random.default_rng(1).permutation(n).astype(float),
    "rising": lambda n: np.arange(n, dtype=float),
    "falling": lambda n: np.arange(n, dtype=float)[::-1].copy(),
    "in turns": lambda n: np.concatenate([np.arange(0, n, 2), np.arange(1, n, 2)]).astype(float),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("passed", [False, True])
def test_ranks_are_right_to_a_thousandth(order, passed):
    n = 40 * BUFFER_VALUES + 77
    values, levels = ORDERS[order](n), np.linspace(0, 1, 513)
    sketch = Sketch()
    for part in np.array_split(values, 13):
        if passed:
            one = Sketch()
            for some in np.array_split(part, 3):
                one.add(some)
            sketch.take(one.passed_on())
        else:
            sketch.add(part)
    # A value is its own rank.
    assert np.abs(sketch.quantiles(levels) / (n - 1) - levels).max() < 1e-3


def test_few_values_are_exact_and_gaps_left_out():
    sketch = Sketch()
    sketch.add(np.array([5.0, np.nan, 1.0, 3.0]))
    assert sketch.quantiles([0.0, 0.5, 1.0]).tolist() == [1.0, 3.0, 5.0]
    assert sketch.quantiles([0.5], repeated=(9.0, 10)).tolist() == [9.0]
    assert np.isnan(Sketch().quantiles([0.5])).all()


def test_memory_grows_with_the_logarithm_of_the_values():
    sketch = Sketch()
    for _ in range(100):
        sketch.add(RANDOM.normal(size=BUFFER_VALUES))
    assert len(sketch.points()[0]) <= 8 * BUFFER_VALUES
