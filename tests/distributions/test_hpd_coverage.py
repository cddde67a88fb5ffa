"""`hpd_coverage`: the place of a point's density among those of draws."""

import math

import pytest
import torch
from helpers.reference import random_low_rank, random_parameters
from helpers.transformed import MIXED, mixture_of, reals
from scipy import stats
from torch.testing import assert_close

from condens import GaussianMixture, LowRankMixture
from condens.distributions import base
from condens.errors import ArgumentError
from condens.functional.estimates import hpd_coverage
from condens.transforms import Integer, Interval, Positive

NAN = math.nan


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_place_among_draws_by_counting():
    levels = reals(-3.0, -1.0, -1.0, -0.5, -1.0 + 1e-13)
    for level, above, equal in ((-1.0, 1, 3), (-2.0, 4, 0), (0.0, 0, 0), (-math.inf, 5, 0)):
        for place in (0.0, 0.25, 0.999):
            found = hpd_coverage(reals(level)[0], levels, reals(place)[0])
            assert_close(float(found), (above + place * (1 + equal)) / 6)
    impossible = torch.full((5,), -math.inf, dtype=torch.float64)
    assert float(hpd_coverage(impossible[0], impossible, reals(0.5)[0])) == 0.5


MIXTURES = {
    "full": lambda n: GaussianMixture(*random_parameters((n,), 3, 2)),
    "one": lambda n: GaussianMixture(*random_parameters((n,), 3, 1)),
    "five": lambda n: GaussianMixture(*random_parameters((n,), 2, 5)).to(torch.float32),
    "low_rank": lambda n: LowRankMixture(*random_low_rank((n,), 3, 5, 2)),
    "continuous": lambda n: mixture_of([Positive(), Interval(0.0, 1.0)], batch=(n,)),
    "counts": lambda n: mixture_of([Integer(0)], n_components=2, batch=(n,), spread=0.3),
    "mixed": lambda n: mixture_of(MIXED[2:4], n_components=2, batch=(n,), tight=1.0),
}


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("n_samples", [2, 19])
def test_draws_have_uniform_coverage_whatever_the_number(name, n_samples):
    """At 10⁻⁴ each; with two draws, too."""
    m = MIXTURES[name](2000)
    u = m.hpd_coverage(m.sample(generator=seeded(1)), n_samples=n_samples, generator=seeded(2))
    assert u.dtype is torch.float64
    assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-4


@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_of_a_gaussian_it_is_chi_squared(dimensions):
    """Within 4.5 standard errors, and on the marginal of what was observed."""
    m = GaussianMixture(*random_parameters((), 1, dimensions))
    y = m.sample((6,), generator=seeded(1))
    y[4, 0], y[5] = NAN, NAN
    count = 20_000
    found = m.hpd_coverage(y, n_samples=count, generator=seeded(2))
    for row, u in zip(y, found, strict=True):
        seen = (~row.isnan()).nonzero().flatten()
        if not len(seen):
            assert u.isnan()
            continue
        offset = row[seen] - m.mean[seen]
        inner = m.covariance_matrix[seen][:, seen]
        expected = stats.chi2.cdf(float(offset @ torch.linalg.solve(inner, offset)), len(seen))
        error = math.sqrt(expected * (1 - expected) / count)
        assert abs(float(u) - expected) < 4.5 * error + 1 / count


def test_of_whole_numbers_by_their_probabilities():
    m = mixture_of([Integer(0)], n_components=2, spread=0.3)
    each = m.log_prob(torch.arange(2000.0).double()).exp()
    count = 40_000
    for y in range(3):
        u = m.hpd_coverage(reals(float(y)).expand(200, 1), n_samples=199, generator=seeded(y))
        above = float(each[each > each[y] * (1 + 1e-9)].sum())
        # Uniform over the step that this number makes.
        assert_close(float(u.mean()), above + 0.5 * float(each[y]), rtol=0, atol=0.12)
        (one,) = m.hpd_coverage(reals(float(y))[None], n_samples=count, generator=seeded(y))
        slack = 4.5 * 0.5 / math.sqrt(count)
        assert above - slack <= float(one) <= above + float(each[y]) + slack


def test_shapes_blocks_and_what_lies_outside(monkeypatch):
    m = mixture_of([Positive()], batch=(3, 2))
    y = m.sample((4,), generator=seeded())
    whole = m.hpd_coverage(y, generator=seeded())
    assert whole.shape == (4, 3, 2)
    monkeypatch.setattr(base, "NUMBERS_PER_BLOCK", 199 * 3 * 24)
    assert_close(m.hpd_coverage(y, generator=seeded()), whole, rtol=0, atol=0)
    monkeypatch.setattr(base, "NUMBERS_PER_BLOCK", 1)
    assert m.hpd_coverage(y).shape == (4, 3, 2)
    assert m[:0].hpd_coverage(y[:, :0]).shape == (4, 0, 2)
    assert (m.hpd_coverage(torch.full((4, 3, 2, 1), -5.0)) > 199 / 200).all()
    with pytest.raises(ArgumentError, match="n_samples"):
        m.hpd_coverage(y, n_samples=1)
