"""Baselines: right in the units of y, and never NaN or singular."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.distributions import Normal

from condens.errors import ArgumentError, ModelFileError, ShapeError
from condens.evaluation import Baselines
from condens.evaluation.linear import fit_linear
from condens.transforms import Integer, Interval, Positive, Real

RNG = np.random.default_rng(0)
C = torch.from_numpy(RNG.normal(size=(300, 3)))
NOISE = torch.from_numpy(RNG.normal(size=(300, 2)) @ [[0.3, 0.2], [0.0, 0.1]])
Y = C[:, :2] @ torch.tensor([[1.0, 0.5], [-1.0, 1.0]], dtype=torch.float64) + NOISE


def densities(baselines, condition):
    return baselines.linear(condition), baselines.marginal(len(condition))


def test_moments_of_a_large_sample():
    """Mean, covariance and coefficients are those of numpy, up to what rows left out change."""
    baselines = Baselines.fit(C, Y)
    linear, marginal = densities(baselines, C)
    assert_allclose(marginal.mean[0], Y.mean(0), rtol=1e-12)
    assert_allclose(marginal.covariance_matrix[0], np.cov(Y.T), rtol=0.02, atol=0.05)
    design = np.column_stack([np.ones(300), C])
    solution, *_ = np.linalg.lstsq(design, Y.numpy(), rcond=None)
    assert_allclose(linear.mean, design @ solution, atol=3e-3)
    residual = Y.numpy() - design @ solution
    assert_allclose(linear.covariance_matrix[0], np.cov(residual.T), rtol=0.05)
    assert linear.log_prob(Y).mean() > marginal.log_prob(Y).mean() + 1


def test_densities_carry_the_jacobian():
    plain = Baselines.fit(C, Y)
    positive = Baselines.fit(C, Y.exp(), transforms=[Positive(), Real()][:1] * 2)
    for ours, theirs in zip(densities(positive, C), densities(plain, C), strict=True):
        assert_allclose(ours.log_prob(Y.exp()), theirs.log_prob(Y) - Y.sum(1), rtol=1e-9)
    logits, normal = Y.sigmoid(), Normal(0.0, 1.0)
    scaled = 0.2 * Y  # of which Φ leaves digits
    narrow = Baselines.fit(C, scaled)
    for link, real, inside, slope, twin in (
        ("logit", Y, logits, (logits * (1 - logits)).log(), plain),
        ("probit", scaled, normal.cdf(scaled), normal.log_prob(scaled), narrow),
    ):
        bounded = Baselines.fit(C, inside, transforms=[Interval(0.0, 1.0, link)] * 2)
        for ours, theirs in zip(densities(bounded, C), densities(twin, C), strict=True):
            expected = theirs.log_prob(real) - slope.sum(1)
            assert_allclose(ours.log_prob(inside), expected, rtol=1e-7)


def test_whole_numbers_have_probabilities():
    counts = torch.poisson((C[:, :1] + 1).exp(), generator=torch.Generator().manual_seed(0))
    baselines = Baselines.fit(C, counts, transforms=[Integer(lower=0)])
    every = torch.arange(3000.0, dtype=torch.float64)[:, None, None]
    for density in densities(baselines, C[:5]):
        assert_allclose(density.log_prob(every.expand(3000, 5, 1)).exp().sum(0), 1, atol=1e-4)
    linear, marginal = densities(baselines, C)
    assert linear.log_prob(counts).mean() > marginal.log_prob(counts).mean()


@pytest.mark.parametrize("scale", [1e-130, 1e-30, 1e30, 1e130])
def test_units_change_nothing_but_the_units(scale):
    plain = Baselines.fit(C, Y)
    other = Baselines.fit(scale * C + 3 * scale, scale * Y - 5 * scale)
    pairs = zip(densities(other, scale * C + 3 * scale), densities(plain, C), strict=True)
    for ours, theirs in pairs:
        expected = theirs.log_prob(Y) - 2 * np.log(scale)
        assert_allclose(ours.log_prob(scale * Y - 5 * scale), expected, rtol=1e-8, atol=1e-8)


def test_weights_and_rows_that_do_not_count():
    weights = torch.ones(300, dtype=torch.float64)
    weights[200:] = 0.0
    other = Y.clone()
    other[150:160] = torch.nan
    other[200:] = 1e6
    kept = torch.cat([torch.arange(150), torch.arange(160, 200)])
    ours, theirs = Baselines.fit(C, other, weights), Baselines.fit(C[kept], Y[kept])
    assert ours.n_rows == theirs.n_rows == 190
    for one, two in zip(densities(ours, C), densities(theirs, C), strict=True):
        assert_allclose(one.log_prob(Y), two.log_prob(Y), rtol=1e-9)
    # Only their ratios count, however large.
    large = Baselines.fit(C, other, 1e300 * weights)
    assert_allclose(large.linear(C).log_prob(Y), ours.linear(C).log_prob(Y), rtol=1e-9)


def test_categories_are_columns_of_zeros_and_ones():
    codes = torch.from_numpy(RNG.integers(1, 4, 300)).double()
    target = Y + 2 * (codes == 2)[:, None]
    condition = torch.column_stack([C, codes])
    baselines = Baselines.fit(condition, target, categories=[4])
    shown = torch.column_stack([codes == code for code in (1, 2, 3)]).double()
    features = torch.cat([(C - C.mean(0)) / C.std(0, correction=0), shown], 1)
    mean, scale = target.mean(0), target.std(0, correction=0)
    model = fit_linear(
        features, (target - mean) / scale, torch.full((300,), 1 / 300, dtype=torch.float64)
    )
    expected = mean + scale * (model.intercept + features @ model.coefficients)
    assert_allclose(baselines.linear(condition).mean, expected, rtol=1e-8)
    # An unknown category is the average of the others.
    unknown = torch.column_stack([C, torch.zeros(300)])
    average = features.clone()
    average[:, 3:] = shown.mean(0)
    expected = mean + scale * (model.intercept + average @ model.coefficients)
    assert_allclose(baselines.linear(unknown).mean, expected, rtol=1e-8)
    with pytest.raises(ArgumentError, match="condition has codes that are no categories"):
        baselines.linear(torch.column_stack([C, torch.full((300,), 4.0)]))


def test_gaps_cost_little():
    """A third of the entries missing at random: nearly the same densities."""
    gaps = Y.clone()
    gaps[torch.from_numpy(RNG.random((300, 2)) < 0.3)] = torch.nan
    for ours, whole in zip(
        densities(Baselines.fit(C, gaps), C), densities(Baselines.fit(C, Y), C), strict=True
    ):
        assert ours.log_prob(Y).mean() > whole.log_prob(Y).mean() - 0.1


NAN = torch.nan
DEGENERATE = {
    "one row": (C[:1], Y[:1]),
    "two rows": (C[:2], Y[:2]),
    "two equal rows": (C[:1].repeat(2, 1), Y[:1].repeat(2, 1)),
    "one row of two is partial": (C[:2], torch.tensor([[1.0, NAN], [NAN, 2.0]]).double()),
    "a constant column": (torch.column_stack([C, torch.full((300,), 7.0)]), Y),
    "constant conditions": (torch.zeros(300, 2), Y),
    "equal columns": (torch.column_stack([C, C]), Y),
    "a constant target": (C, torch.column_stack([Y, torch.full((300,), 1e9)])),
    "equal targets": (C, torch.column_stack([Y, Y])),
    "a target that is a column": (C, C[:, :2]),
    "a target seen once": (C, torch.column_stack([Y, torch.where(torch.arange(300) == 3, 5, NAN)])),
    "a target never seen": (C, torch.column_stack([Y, torch.full((300,), NAN)])),
    "more columns than rows": (torch.randn(10, 400), Y[:10]),
    "numbers beyond squares": (1e200 * C, torch.column_stack([1e-200 * Y, 1e200 * Y])),
    "outliers": (torch.cat([C, 1e100 * C[:1]]), torch.cat([Y, -1e100 * Y[:1]])),
    "images": (C.reshape(100, 3, 3), Y[:100]),
    "whole numbers in single precision": (torch.arange(20)[:, None], torch.arange(20.0)[:, None]),
}  # fmt: skip


@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("gaps", [False, True])
def test_degenerate_rows_have_densities(case, gaps):
    condition, target = DEGENERATE[case]
    target = target.clone().double()
    if gaps and len(target) > 3:
        target[2, 0] = torch.nan
    baselines = Baselines.fit(condition, target)
    far = condition.double() * 1e3 + 1e3
    for density in (*densities(baselines, condition), baselines.linear(far.clamp(-1e307, 1e307))):
        assert bool(density.observed_log_prob(target.clamp(-1e299, 1e299)).isfinite().all())
        assert bool(density.covariance_matrix.isfinite().all())
        # The floor: no direction is narrower than 10⁻⁵ of its unit.
        upper = torch.linalg.inv(density.precision_factors[0, 0]) / baselines.scale[:, None]
        assert torch.linalg.svdvals(upper).min() > 0.99e-5


def test_noise_free_targets_reach_the_floor():
    linear = Baselines.fit(C, 3 * C[:, :2] - 1).linear(C)
    assert_allclose(linear.mean, 3 * C[:, :2] - 1, atol=1e-4)
    deviation = linear.stddev / (3 * C[:, :2]).std(0, correction=0)
    assert_allclose(deviation, 1e-5, rtol=0.01)


def test_refusals():
    with pytest.raises(ShapeError, match=r"target has shape \[2, 1\]"):
        Baselines.fit(torch.zeros(3, 1), torch.zeros(2, 1))
    with pytest.raises(ArgumentError, match="target has no row that counts"):
        Baselines.fit(torch.zeros(2, 1), torch.full((2, 1), torch.nan))
    with pytest.raises(ShapeError, match=r"condition has 2 columns, but .* fitted on 3"):
        Baselines.fit(C, Y).linear(C[:, :2])


# Files.


def again(tensors):
    return Baselines.from_tensors(tensors, 300, 4, [Real(), Real()], [4], ["a", "b"])


@pytest.fixture(scope="module")
def fitted():
    codes = torch.from_numpy(RNG.integers(1, 4, 300)).double()
    return torch.column_stack([C, codes]), Baselines.fit(
        torch.column_stack([C, codes]), Y, None, [Real(), Real()], [4], ["a", "b"]
    )


def test_round_trip(fitted):
    condition, baselines = fitted
    loaded = again(baselines.tensors())
    for one, two in zip(densities(loaded, condition), densities(baselines, condition), strict=True):
        assert torch.equal(one.log_prob(Y), two.log_prob(Y))
        assert one.names == ("a", "b")


DAMAGE = {
    "a NaN": ("location", lambda t: t.fill_(torch.nan), "hold NaN or infinity in location"),
    "a scale of zero": ("scale", torch.zero_, "have an impossible scale"),
    "a negative scale": ("scaling.scale", torch.neg, "have an impossible scaling.scale"),
    "codes that are scaled": ("scaling.location", lambda t: t + 1, "bounds that are no range"),
    "an empty range": ("scaling.lower", lambda t: t + 1e9, "bounds that are no range"),
    "frequencies": ("frequencies", lambda t: t + 1, "have frequencies outside 0 to 1"),
    "a wrong shape": ("sloped.coefficients", lambda t: t[:-1], r"\[5, 2\] as sloped.coefficients"),
    "another dtype": ("sloped.intercept", torch.Tensor.float, "torch.float32"),
    "a square factor": ("constant.factor", lambda t: t.new_zeros(4), r"\[4\] as constant.factor"),
    "a scale below the floor": ("constant.factor", lambda t: t + 20, "scale in constant"),
    "an endless scale": ("sloped.factor", lambda t: t - 1e4, "impossible scale in sloped"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_tensors_are_refused(fitted, case):
    name, change, message = DAMAGE[case]
    tensors = {key: value.clone() for key, value in fitted[1].tensors().items()}
    tensors[name] = change(tensors[name])
    with pytest.raises(ModelFileError, match=f"its baselines .*{message}"):
        again(tensors)


def test_missing_and_other_tensors_are_refused(fitted):
    tensors = fitted[1].tensors()
    for wrong in ({**tensors, "more": tensors["scale"]}, dict(list(tensors.items())[1:])):
        with pytest.raises(ModelFileError, match="its baselines are others"):
            again(wrong)
