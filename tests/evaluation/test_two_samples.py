"""C2ST and MMD²: against sbi's, closed forms, and laws over seeds."""

import math
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import Generator

from condens.errors import ArgumentError, DimensionError, NotFiniteError, ShapeError
from condens.evaluation import two_samples
from condens.evaluation.two_samples import c2st, mmd_squared


def normals(n, dimensions=2, *, seed, loc=0.0, scale=1.0):
    generator = Generator().manual_seed(seed)
    return loc + scale * torch.randn(n, dimensions, generator=generator, dtype=torch.float64)


# The classifier.


def test_c2st_is_that_of_sbibm():
    """sbi has the same code, but for its defaults: those of sbibm go in by name."""
    from sbi.utils.metrics import c2st as theirs

    first, second = 3 + normals(80, 1, seed=0), 3 + normals(80, 1, seed=1, loc=0.5, scale=1.5)
    expected = theirs(
        first,
        second,
        classifier="mlp",
        classifier_kwargs={
            "activation": "relu",
            "hidden_layer_sizes": (10, 10),
            "max_iter": 10_000,
            "solver": "adam",
        },
    )
    assert c2st(first, second).value == pytest.approx(float(expected), abs=1e-12)


def test_c2st_finds_what_the_best_classifier_finds():
    """Of normals a distance δ apart, Φ(δ/2) can be told."""
    found = c2st(normals(400, 1, seed=0), normals(400, 1, seed=1, loc=1.5))
    exact = stats.norm.cdf(0.75)
    assert found.value == pytest.approx(exact, abs=3 * found.standard_error)
    assert found.standard_error == pytest.approx(math.sqrt(exact * (1 - exact) / 800), rel=0.05)


def test_c2st_takes_a_constant_column_and_other_orders():
    first = pd.DataFrame({"a": normals(30, 1, seed=0)[:, 0], "b": 1.0})
    second = pd.DataFrame({"b": 1.0, "a": normals(30, 1, seed=1)[:, 0] + 30})
    assert c2st(first, second).value == 1.0
    same = c2st(first, first[["b", "a"]])
    assert same.value <= 0.5  # every draw is in both


# The kernel.


def direct(first, second, bandwidth):
    def kernel(a, b):
        return math.exp(-float(((a - b) ** 2).sum()) / (2 * bandwidth**2))

    m, n = len(first), len(second)
    within = sum(kernel(a, b) for i, a in enumerate(first) for b in first[:i]) / (m * (m - 1) / 2)
    other = sum(kernel(a, b) for i, a in enumerate(second) for b in second[:i])
    between = sum(kernel(a, b) for a in first for b in second) / (m * n)
    return within + other / (n * (n - 1) / 2) - 2 * between


def test_mmd_is_that_of_sbi_and_of_the_sum():
    from sbi.utils.metrics import unbiased_mmd_squared

    first, second = normals(40, seed=0), normals(30, seed=1, loc=0.4)
    found = mmd_squared(first, second)
    assert found.value == pytest.approx(float(unbiased_mmd_squared(first, second)), rel=1e-9)
    assert found.value == pytest.approx(direct(first, second, found.bandwidth), rel=1e-9)
    given = mmd_squared(first, second, bandwidth=0.3, n_permutations=0)
    assert given.value == pytest.approx(direct(first, second, 0.3), rel=1e-9)
    assert math.isnan(given.p_value)
    theirs = float(unbiased_mmd_squared(first, second, scale=0.3))
    assert given.value == pytest.approx(theirs, rel=1e-9)


def test_mmd_is_unbiased_with_the_standard_error_stated():
    """E k(X, Y) = h/√(h² + σ² + τ²) exp(−δ²/2(h² + σ² + τ²)) of normals with scales σ and τ."""

    def expected(variances, gap=0.0):
        total = 1 + variances
        return math.exp(-(gap**2) / (2 * total)) / math.sqrt(total)

    exact = expected(2.0) + expected(2 * 0.49) - 2 * expected(1.49, 0.5)
    found = [
        mmd_squared(
            normals(60, 1, seed=2 * seed),
            normals(40, 1, seed=2 * seed + 1, loc=0.5, scale=0.7),
            bandwidth=1.0,
            n_permutations=0,
        )
        for seed in range(400)
    ]
    values = np.array([one.value for one in found])
    assert values.mean() == pytest.approx(exact, abs=4 * values.std() / 20)
    errors = np.array([one.standard_error for one in found])
    # The second-order terms, which it leaves out, and its own noise.
    assert errors.mean() == pytest.approx(values.std(), rel=0.15)


def test_p_values_of_equal_distributions_are_uniform():
    p_values = [
        mmd_squared(normals(20, seed=2 * s), normals(15, seed=2 * s + 1), n_permutations=39).p_value
        for s in range(300)
    ]
    counts = np.bincount((np.array(p_values) * 40 - 0.5).astype(int) // 4, minlength=10)
    assert stats.chisquare(counts).pvalue > 0.001
    apart = mmd_squared(normals(50, seed=0), normals(50, seed=1, scale=2.0))
    assert apart.p_value == 1 / 201


def test_blocks_and_shifts_change_nothing(monkeypatch):
    first, second = normals(50, seed=0), normals(40, seed=1, loc=0.2)
    whole = mmd_squared(first, second)
    monkeypatch.setattr(two_samples, "ENTRIES_PER_BLOCK", 7 * 90)
    parts = mmd_squared(first + 1e6, second + 1e6)
    assert parts.value == pytest.approx(whole.value, abs=1e-8)
    assert parts.standard_error == pytest.approx(whole.standard_error, rel=1e-6)
    assert parts.p_value == whole.p_value


def test_the_bandwidth_of_many_draws_is_near_the_median_of_all(monkeypatch):
    first, second = normals(400, seed=0), normals(400, seed=1)
    exact = mmd_squared(first, second, n_permutations=0).bandwidth
    monkeypatch.setattr(two_samples, "DRAWS_FOR_BANDWIDTH", 300)
    near = mmd_squared(first, second, n_permutations=0).bandwidth
    assert near != exact
    assert near == pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda a: c2st(a, a[:20]), ShapeError, "guessing"),
        (lambda a: c2st(a, a[:, :1]), ShapeError, "1 columns"),
        (lambda a: c2st(a, a, n_folds=1), ArgumentError, "n_folds"),
        (lambda a: c2st(a, a, seed=-1), ArgumentError, "seed"),
        (lambda a: c2st(a.log(), a), NotFiniteError, "first is NaN in row"),
        (lambda a: mmd_squared(a, a[:1]), ShapeError, "one draw"),
        (lambda a: mmd_squared(a, a * math.inf), NotFiniteError, "second"),
        (lambda a: mmd_squared(a * 0, a * 0), ArgumentError, "bandwidth"),
        (lambda a: mmd_squared(a, a, bandwidth=0), ArgumentError, "bandwidth is 0"),
        (lambda a: mmd_squared(a, a, n_permutations=-1), ArgumentError, "n_permutations"),
        (
            lambda a: mmd_squared(
                pd.DataFrame(a, columns=["a", "b"]), pd.DataFrame(a, columns=["a", "c"])
            ),
            DimensionError,
            "a, c",
        ),
    ],
)
def test_mistakes_are_named(call, error, words):
    with pytest.raises(error) as caught:
        call(normals(30, seed=0))
    assert words in str(caught.value)


def test_the_error_without_scikit_learn_names_the_extra(monkeypatch):
    for name in ("sklearn", "sklearn.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"condens\[evaluation\]"):
        c2st(normals(9, seed=0), normals(9, seed=1))
