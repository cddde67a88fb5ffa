"""Low-rank mixtures from low-rank mixtures, on every subset of dimensions."""

from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from helpers.reference import assert_same, condition, dense_low_rank, marginal, random_low_rank
from torch.testing import assert_close

from condens import LowRankMixture

SUBSETS = [list(s) for size in range(1, 5) for s in combinations(range(4), size)]
PROPER = [s for s in SUBSETS if len(s) < 4]
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def mixture_of(batch=(), n_components=3, dimensions=4, rank=2, seed=0, **options):
    return LowRankMixture(
        *random_low_rank(batch, n_components, dimensions, rank, seed=seed), **options
    )


def assert_equal(first, second):
    """Compare component by component: loadings are unique up to a rotation only."""
    assert first.names == second.names
    assert first.batch_shape == second.batch_shape
    for name in ("weights", "means", "covariance_matrices"):
        assert_close(getattr(first, name), getattr(second, name), **CLOSE)


@pytest.mark.parametrize("rank", [1, 2, 6])
@pytest.mark.parametrize("n_components", [1, 3])
def test_marginals_and_conditionals_on_every_subset(n_components, rank):
    mixture = mixture_of((), n_components, 4, rank)
    full, twin = mixture.to_full(), dense_low_rank(*mixture.parameters)
    values = np.array([0.3, -0.7, 1.1, 0.2])
    for dims in SUBSETS:
        kept = mixture.marginal(dims)
        assert type(kept) is LowRankMixture
        assert_equal(kept, full.marginal(dims))
        assert_same(kept, *marginal(*twin, dims))
    for dims in PROPER:
        fixed = {d: float(values[d]) for d in dims}
        given = mixture.condition(fixed)
        assert type(given) is LowRankMixture
        assert_equal(given, full.condition(fixed))
        assert_same(given, *condition(*twin, dims, values[dims]))


def test_marginal_in_every_order():
    mixture = mixture_of(names=list("abcd"))
    for dims in permutations(range(4), 3):
        assert_equal(mixture.marginal(dims), mixture.to_full().marginal(dims))


def test_joint_is_marginal_times_conditional():
    mixture = mixture_of()
    x = torch.randn(6, 4, dtype=torch.float64)
    for dims in PROPER:
        free = [d for d in range(4) if d not in dims]
        given = mixture.condition({d: x[:, d] for d in dims})
        assert given.batch_shape == (6,)
        total = mixture.marginal(dims).log_prob(x[:, dims]) + given.log_prob(x[:, free])
        assert_close(total, mixture.log_prob(x), **CLOSE)


def test_marginal_of_conditional_is_conditional_of_marginal():
    mixture = mixture_of((2,))
    for fixed in PROPER:
        free = [d for d in range(4) if d not in fixed]
        for kept in [s for size in range(1, len(free) + 1) for s in combinations(free, size)]:
            first = mixture.condition(dict.fromkeys(fixed, 0.4))
            first = first.marginal([free.index(d) for d in kept])
            both = sorted([*kept, *fixed])
            second = mixture.marginal(both).condition({both.index(d): 0.4 for d in fixed})
            assert_equal(first, second)


def test_conditioning_in_two_steps_in_any_order_and_by_name():
    mixture = mixture_of(names=list("abcd"))
    at_once = mixture.condition({"a": 0.1, "c": -0.3})
    assert at_once.names == ("b", "d")
    assert_equal(mixture.condition({"c": -0.3}).condition({"a": 0.1}), at_once)
    assert_equal(mixture.condition({-2: -0.3, 0: 0.1}), at_once)
    assert mixture.marginal(["d", "b"]).names == ("d", "b")


def test_values_broadcast_against_the_batch():
    mixture = mixture_of((3,))
    value = torch.linspace(-1, 1, 7, dtype=torch.float64)[:, None]
    together = mixture.condition({1: value, 3: 0.2})
    assert together.batch_shape == (7, 3)
    for i in range(7):
        assert_equal(together[i], mixture.condition({1: float(value[i]), 3: 0.2}))


def test_far_evidence_still_gives_weights():
    mixture = mixture_of().to(torch.float32)
    given = mixture.condition({0: 1e6})
    twin = mixture.to(torch.float64).condition({0: 1e6})
    assert_close(given.weights.double(), twin.weights, rtol=1e-5, atol=1e-6)
    assert mixture.to(torch.float64).condition({0: 1e200}).weights.isfinite().all()


# Maps and other mixtures.


def test_affine_is_that_of_the_full_mixture_and_carries_the_jacobian():
    mixture = mixture_of((2,), names=list("abcd"))
    scale = torch.tensor([2.0, -0.5, 1e3, 1.0], dtype=torch.float64)
    loc = torch.randn(2, 4, dtype=torch.float64)
    moved = mixture.affine(scale, loc)
    assert_equal(moved, mixture.to_full().affine(scale, loc))
    x = torch.randn(5, 2, 4, dtype=torch.float64)
    expected = mixture.log_prob(x) - scale.abs().log().sum()
    assert_close(moved.log_prob(x * scale + loc), expected, **CLOSE)
    assert_equal(mixture.affine(2.0), mixture.to_full().affine(2.0))


def test_affine_and_condition_commute():
    mixture = mixture_of()
    scale = torch.tensor([2.0, -0.5, 10.0, 0.1], dtype=torch.float64)
    for dims in PROPER:
        free = [d for d in range(4) if d not in dims]
        values = {d: 0.3 * d - 0.5 for d in dims}
        moved = {d: float(scale[d] * v + 1) for d, v in values.items()}
        first = mixture.affine(scale, 1.0).condition(moved)
        assert_equal(first, mixture.condition(values).affine(scale[free], 1.0))


def test_projection_is_that_of_the_full_mixture():
    mixture = mixture_of((2,), 3, 1, names=["a"])
    assert mixture.project([2.0]).names is None
    mixture = mixture_of((2,))
    for direction in ([0.5, -2.0, 1.0, 0.0], torch.randn(3, 2, 4, dtype=torch.float64)):
        projected = mixture.project(direction)
        assert projected.event_shape == (1,)
        assert_equal(projected, mixture.to_full().project(direction))


def test_ensemble_of_different_ranks_is_the_average_density():
    members = [mixture_of((5,), 2, 4, 1), mixture_of((), 4, 4, 3, seed=1)]
    x = torch.randn(6, 5, 4, dtype=torch.float64)
    densities = torch.stack([m.log_prob(x).exp() for m in members])
    whole = LowRankMixture.ensemble(members, weights=[3.0, 1.0])
    assert (whole.batch_shape, whole.n_components, whole.rank) == ((5,), 6, 3)
    expected = 0.75 * densities[0] + 0.25 * densities[1]
    assert_close(whole.log_prob(x).exp(), expected, rtol=1e-10, atol=1e-14)
