"""Transformed mixtures: quantiles, samples, scores, gradients, batches, errors."""

import itertools
import math

import numpy as np
import pytest
import torch
from helpers.reference import random_parameters
from helpers.transformed import KINDS, MIXED, gaussian, mixture_of, reals
from scipy import integrate, stats
from torch.testing import assert_close

from condens import GaussianMixture, TransformedMixture
from condens.errors import ArgumentError, DimensionError, NoClosedFormError, NotFiniteError
from condens.transforms import Integer, Interval, Positive, Real

INF, NAN = float("inf"), float("nan")


# Real dimensions only: the mixture itself.


def test_real_transforms_change_nothing():
    for dtype in (torch.float32, torch.float64):
        base = GaussianMixture(*random_parameters((4,), 3, 2), names=["a", "b"]).to(dtype)
        same = TransformedMixture(base, [Real(), Real()])
        value = torch.randn(4, 2, dtype=dtype)
        for ours, theirs in (
            (same.log_prob(value), base.log_prob(value)),
            (same.responsibilities(value), base.responsibilities(value)),
            (same.marginal("b").cdf(value[:, 1:]), base.marginal("b").cdf(value[:, 1:])),
            (same.marginal("a").icdf(0.3), base.marginal("a").icdf(0.3)),
            (same.marginal("a").interval(0.9)[1], base.marginal("a").interval(0.9)[1]),
            (same.condition({"a": 0.2}).base.means, base.condition({"a": 0.2}).means),
            (same.marginal("a").crps(value[:, :1]), base.marginal("a").crps(value[:, :1])),
        ):
            assert torch.equal(ours, theirs)
        for name in ("mean", "variance", "stddev", "covariance_matrix"):
            assert_close(getattr(same, name), getattr(base, name))
        draws = [m.sample((5,), generator=torch.Generator().manual_seed(3)) for m in (same, base)]
        assert torch.equal(*draws)


# Quantiles.


@pytest.mark.parametrize("transform", KINDS.values(), ids=KINDS)
def test_quantiles(transform):
    # By the probit, numbers near the upper bound have few digits left for their distance to it.
    m = mixture_of([transform], batch=(3,), spread=0.8, tight=transform.slope_growth)
    p = torch.tensor([1e-12, 0.01, 0.2, 0.5, 0.9, 0.999], dtype=torch.float64)[:, None]
    y = m.icdf(p)
    if transform.discrete:
        assert torch.equal(y, y.floor())
        assert (m.cdf(y) >= p).all()
        assert (m.cdf(y - 1) < p).all()
    else:
        assert_close(m.cdf(y), p.expand(6, 3), rtol=1e-8, atol=0)
    low, high = m.interval(0.8)
    assert_close(low, m.icdf(0.1), rtol=1e-10, atol=1e-10)
    assert_close(high, m.icdf(0.9), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("transform", [Integer(), Integer(0)], ids=repr)
def test_quantiles_at_the_end_of_a_cell(transform):
    """Asked for the very probability that a cell ends with, the cell answers."""
    for dtype in (torch.float32, torch.float64):
        m = mixture_of([transform], spread=0.8).to(dtype)
        y = torch.arange(0, 5, dtype=torch.float64)[:, None]
        wide = m.to(torch.float64)
        assert torch.equal(wide.icdf(wide.cdf(y)), y)
        assert torch.equal(m.icdf(wide.cdf(y)), y.to(dtype))


def test_quantiles_at_zero_and_one():
    for transform, ends in ((Positive(2.0), (2.0, INF)), (Interval(0.0, 3.0), (0.0, 3.0)),
                      (Integer(0), (0.0, INF)), (Integer(), (-INF, INF))):  # fmt: skip
        m = mixture_of([transform])
        assert m.icdf(reals(0.0, 1.0)).flatten().tolist() == list(ends)


# Samples.


@pytest.mark.parametrize("transform", KINDS.values(), ids=KINDS)
def test_samples_match_the_cdf(transform):
    m = mixture_of([transform])
    draws = m.sample((20_000,), generator=torch.Generator().manual_seed(5))
    assert transform.contains(draws).all()
    levels = draws.unique()
    seen = (
        (draws.flatten().sort().values[:, None] <= levels).double().mean(0)
        if transform.discrete
        else (torch.arange(1, len(draws) + 1, dtype=torch.float64) / len(draws))
    )
    at = levels if transform.discrete else draws.flatten().sort().values
    # Kolmogorov–Smirnov at 0.1 %; conservative for whole numbers.
    assert (m.cdf(at[:, None]) - seen).abs().max() < 1.95 / len(draws) ** 0.5


def test_samples_stay_inside_where_rounding_would_not():
    base = GaussianMixture(torch.zeros(1), torch.tensor([[-200.0, 60.0, 200.0]]), torch.zeros(1, 3))
    m = TransformedMixture(base, [Positive(5.0), Interval(0.0, 1.0), Positive()])
    draws = m.sample((100,))
    for transform, column in zip(m.transforms, draws.unbind(-1), strict=True):
        assert transform.contains(column).all()


def test_pathwise_gradients():
    inputs = [p.requires_grad_() for p in random_parameters((), 2, 2)]

    def draw(*parameters):
        base = GaussianMixture(*parameters, validate_args=False)
        m = TransformedMixture(base, [Positive(), Interval(0.0, 1.0)])
        return m.rsample((2,), generator=torch.Generator().manual_seed(1))

    value = draw(*inputs)
    (slope,) = torch.autograd.grad(value[..., 0].log().sum(), inputs[1])
    base = GaussianMixture(*inputs)
    plain = base.rsample((2,), generator=torch.Generator().manual_seed(1))
    (twin,) = torch.autograd.grad(plain[..., 0].sum(), inputs[1])
    assert_close(slope, twin, rtol=1e-10, atol=1e-12)
    with pytest.raises(NoClosedFormError, match=r"whole numbers in dimension\(s\) \[1\]"):
        mixture_of([Real(), Integer()]).rsample()
    assert not mixture_of([Real(), Integer()]).has_rsample
    assert mixture_of([Real(), Positive()]).has_rsample


# Scores and estimates.


def crps_by_integration(m, y, lower, upper):
    def squared(t):
        return float(m.cdf(reals(t)) - float(t >= y)) ** 2

    middle = min(max(y, lower), upper)
    ends = sorted({lower, middle, upper, *(middle + s for s in (1.0, 5.0, 30.0, 300.0))})
    ends = [end for end in ends if end <= upper]
    return sum(
        integrate.quad(squared, *pair, epsabs=1e-12, limit=200)[0]
        for pair in itertools.pairwise(ends)
    ) + abs(min(y - lower, 0.0))


@pytest.mark.parametrize("y", [-0.5, 1.2, 1.7, 6.0])
def test_crps_of_positive_numbers_is_exact(y):
    m = mixture_of([Positive(1.0)], spread=0.5, tight=0.5)
    assert_close(float(m.crps(reals(y))), crps_by_integration(m, y, 1.0, 1e4), rtol=1e-9, atol=0)


@pytest.mark.parametrize("y", [-0.3, 0.4, 1.7, 2.5])
@pytest.mark.parametrize("tight", [-1.0, 1.0, 6.0])
@pytest.mark.parametrize("link", ["probit", "logit"])
def test_crps_of_an_interval_by_quadrature(y, tight, link):
    m = mixture_of([Interval(0.0, 2.0, link)], tight=tight)
    expected = crps_by_integration(m, y, 0.0, 2.0) + max(y - 2.0, 0.0)
    assert_close(float(m.crps(reals(y))), expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("y", [-2.0, 0.0, 3.0, 2.25, 700.0])
@pytest.mark.parametrize("tight", [0.5, 2.0, 6.0])
@pytest.mark.parametrize("lower", [0, None])
def test_crps_of_whole_numbers_is_a_sum(y, tight, lower):
    """CRPS = Σₙ (F(n) − 1(n ≥ y))², and linear in y between whole numbers."""
    m = mixture_of([Integer(lower)], spread=0.5, tight=tight)
    n = torch.arange(-1000, 200_000).double()
    below, part = m.cdf(n[:, None]), (y - n).clamp(0, 1)
    expected = (part * below.square() + (1 - part) * (1 - below).square()).sum()
    assert_close(m.crps(reals(y)), expected, rtol=1e-9, atol=0)


def test_crps_of_a_batch_is_that_of_its_members():
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.randn(3, 2, *a, generator=generator).double() for a in ((), (1,), (1,))]
    for transform in (Interval(0.0, 2.0), Interval(0.0, 2.0, link="logit"), Integer(0)):
        m = TransformedMixture(GaussianMixture(*parameters), [transform])
        y = torch.tensor([[0.3], [1.0]]).double()
        each = torch.stack([one.crps(y) for one in m], -1)
        assert_close(m.crps(y.unsqueeze(1)), each, rtol=1e-13, atol=0)
        assert m.to(torch.float32).crps(y.unsqueeze(1)).dtype is torch.float32


def test_entropy_and_highest_density():
    m = gaussian([Positive()], [0.2], [[0.25]])
    value, error = m.entropy()
    assert_close(float(value), stats.lognorm(0.5, scale=np.exp(0.2)).entropy(), rtol=1e-9, atol=0)
    assert error == 0
    counts = gaussian([Integer(0)], [1.0], [[0.25]])
    y = torch.arange(0, 60).double()[:, None]
    log_p = counts.log_prob(y)
    value, error = counts.entropy(n_samples=100_000, generator=torch.Generator().manual_seed(0))
    assert abs(value + (log_p.exp() * log_p).sum()) < 4 * error
    threshold = m.hpd_threshold(0.8, n_samples=100_000).value
    inside = m.log_prob(m.sample((100_000,))) >= threshold
    assert abs(inside.double().mean() - 0.8) < 0.008
    assert m.hpd_contains(reals(1.0), 0.8)
    assert not m.hpd_contains(reals(20.0), 0.8)


def test_energy_score_of_mixed_targets():
    m = mixture_of(MIXED)
    value, error = m.energy_score(m.sample(), n_samples=1000)
    assert value.isfinite()
    assert error > 0


# Gradients.


@pytest.mark.parametrize(
    ("transforms", "value"),
    [
        ([Positive(), Interval(0.0, 2.0)], [0.7, 1.9]),
        ([Interval(0.0, 2.0), Interval(0.0, 2.0, link="logit")], [0.7, 1.9]),
        ([Real(), Integer()], [0.7, 1.0]),
        ([Real(), Integer(0)], [0.7, 0.0]),
        ([Integer(0), Positive()], [3.0, 0.2]),
        ([Integer()], [40.0]),
        ([Integer(), Integer(0)], [1.0, 0.0]),
    ],
    ids=str,
)
def test_gradients_of_log_prob(transforms, value):
    inputs = [p.requires_grad_() for p in random_parameters((2,), 2, len(transforms))]

    def log_prob(*parameters):
        base = GaussianMixture(*parameters, validate_args=False)
        return TransformedMixture(base, transforms).log_prob(reals(*value))

    assert torch.autograd.gradcheck(log_prob, inputs)


@pytest.mark.parametrize(
    "answer",
    ["mean", "variance", pytest.param("covariance_matrix", marks=pytest.mark.slow), "condition"],
)
def test_gradients_of_moments_and_conditionals(answer):
    inputs = [p.requires_grad_() for p in random_parameters((), 2, 4, seed=3, spread=0.5)]
    transforms = [Positive(), Integer(0), Interval(0.0, 1.0, link="logit"), Integer()]

    def function(*parameters):
        base = GaussianMixture(*parameters, validate_args=False)
        m = TransformedMixture(base, transforms)
        if answer == "condition":
            return m.condition({1: 2, 3: 0}).log_prob(reals(1.0, 0.4))
        return getattr(m, answer)

    assert torch.autograd.gradcheck(function, inputs)


def test_gradients_outside_the_support_are_zero():
    inputs = [p.requires_grad_() for p in random_parameters((), 2, 3)]
    m = TransformedMixture(GaussianMixture(*inputs), [Positive(), Interval(0.0, 1.0), Integer(0)])
    value = reals([-1.0, 0.5, 1.0], [1.0, 2.0, 1.0], [1.0, 0.5, -1.0]).requires_grad_()
    log_prob = m.log_prob(value)
    assert (log_prob == -INF).all()
    for gradient in torch.autograd.grad(log_prob.exp().sum(), [*inputs, value]):
        assert (gradient == 0).all()


# The batch.


def test_batches():
    m = mixture_of(MIXED, batch=(4,))
    y = m.sample((3,))
    assert y.shape == (3, 4, 5)
    together = m.log_prob(y)
    for i, one in enumerate(m):
        assert_close(one.log_prob(y[:, i]), together[:, i], rtol=1e-10, atol=1e-10)
    assert len(m) == 4
    assert m[1:3].batch_shape == (2,)
    assert m[0].expand((2, 3)).batch_shape == (2, 3)
    assert m.to(torch.float32).dtype == torch.float32
    assert m.to(torch.float32).log_prob(y).dtype == torch.float32
    assert "transforms=(Real(), Positive(lower=0.0)" in repr(m)
    assert m.mean.shape == (4, 5)
    assert m.covariance_matrix.shape == (4, 5, 5)


def test_empty_batches():
    m = mixture_of([Real(), Integer(), Integer(0)], batch=(0,))
    assert m.log_prob(torch.zeros(0, 3)).shape == (0,)
    assert m.condition({1: 2}).batch_shape == (0,)
    assert m.covariance_matrix.shape == (0, 3, 3)
    assert m.sample().shape == (0, 3)


def test_ensembles():
    first, second = mixture_of(MIXED, seed=1), mixture_of(MIXED, n_components=2, seed=2)
    both = TransformedMixture.ensemble([first, second], [1.0, 3.0])
    y = first.sample((5,))
    exact = torch.logaddexp(first.log_prob(y) + math.log(0.25), second.log_prob(y) + math.log(0.75))
    assert_close(both.log_prob(y), exact, rtol=1e-9, atol=1e-9)
    with pytest.raises(ArgumentError, match=r"members has .*transforms=.* the first member is"):
        TransformedMixture.ensemble([first, mixture_of([Real()] * 5)])
    with pytest.raises(ArgumentError, match="at least one TransformedMixture"):
        TransformedMixture.ensemble([])


# Errors.


def test_bad_arguments():
    m = mixture_of([Positive(), Integer(0)], names=["price", "rooms"])
    with pytest.raises(ArgumentError, match=r"values\['rooms'\] has 2.5, but whole numbers from 0"):
        m.condition({"rooms": 2.5})
    with pytest.raises(
        ArgumentError, match=r"values\['price'\] has -1, but finite numbers above 0"
    ):
        m.condition({"price": -1.0})
    with pytest.raises(NotFiniteError, match="value has NaN"):
        m.log_prob(reals(NAN, 1.0))
    with pytest.raises(DimensionError, match=r"cdf needs exactly one. Take marginal\(dim\)"):
        m.cdf(reals(1.0, 1.0))
    with pytest.raises(ArgumentError, match=r"transforms is .*, but 2 transform\(s\) were"):
        TransformedMixture(m.base, [Real()])
    with pytest.raises(ArgumentError, match=r"transforms is 'ab'"):
        TransformedMixture(m.base, "ab")
    with pytest.raises(ArgumentError, match="mixture is int, but a GaussianMixture"):
        TransformedMixture(3, [Real()])


def test_scores_of_draws_beyond_all_numbers():
    # In float32 a draw of such a deviation of the logarithm is often infinite.
    base = GaussianMixture(torch.zeros(1), torch.zeros(1, 2), torch.full((1, 2), -4.0))
    score = TransformedMixture(base, [Positive(), Positive()]).energy_score([1.0, 1.0])
    assert not any(part.isnan() for part in score)
    assert score.value > 1e30
