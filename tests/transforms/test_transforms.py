"""Maps between a target's support and the real line, and the choice among them."""

import json

import mpmath
import numpy as np
import pytest
import torch
from scipy import special
from torch.testing import assert_close

from condens import GaussianMixture, TransformedMixture
from condens.errors import ArgumentError
from condens.transforms import TRANSFORMS, Integer, Interval, Positive, Real, Transform
from condens.transforms.choice import on_bounds, propose, resolve, spikes

NAN, INF = float("nan"), float("inf")
LINKS = ["probit", "logit"]
INTERVALS = [Interval(*ends, link) for link in LINKS for ends in ((0.0, 1.0), (-3.0, 11.0))]
CONTINUOUS = [Real(), Positive(), Positive(-2.5), *INTERVALS]
DISCRETE = [Integer(), Integer(0), Integer(-3)]
ALL = CONTINUOUS + DISCRETE


def reals(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("transform", CONTINUOUS, ids=repr)
def test_round_trip(transform):
    # Near an upper bound that is not 0, numbers have few digits left for the distance to it.
    x = torch.linspace(-8, 8, 33, dtype=torch.float64)
    x = x if not transform.slope_growth else 0.4 * x
    assert_close(transform.to_real(transform.from_real(x)), x, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("transform", CONTINUOUS, ids=repr)
def test_slope_against_autograd(transform):
    x = torch.linspace(-5, 5, 21, dtype=torch.float64)
    y = transform.from_real(x if not transform.slope_growth else 0.6 * x).requires_grad_()
    (slope,) = torch.autograd.grad(transform.to_real(y).sum(), y)
    assert_close(transform.log_slope(y), slope.log(), rtol=1e-10, atol=1e-10)


def test_known_values():
    assert_close(Positive(1.0).to_real(reals(3.0)), reals(np.log(2.0)))
    assert_close(Interval(2.0, 6.0, "logit").to_real(reals(3.0)), reals(special.logit(0.25)))
    assert_close(Interval(2.0, 6.0).to_real(reals(3.0)), reals(special.ndtri(0.25)))
    assert_close(Interval(2.0, 6.0).from_real(reals(-0.3)), reals(2 + 4 * special.ndtr(-0.3)))
    assert_close(Integer(0).to_real(reals(4.0)), reals(np.log(4.5)))
    assert_close(Integer().to_real(reals(-4.0)), reals(-3.5))


@pytest.mark.parametrize("log_share", [-0.7, -1.0, -5.0, -40.0, -300.0, -700.0, -720.0, -1400.0])
def test_the_probit_is_exact_near_both_ends(log_share):
    """Also where the share itself is no number: 10⁻⁶⁰⁰ of the width."""
    width = 1.0 if log_share > -600 else 1e300
    below = float(np.exp(log_share + (np.log(width) if width > 1 else 0.0)))
    with mpmath.workdps(60):
        share = mpmath.mpf(below) / mpmath.mpf(width)
        x = mpmath.mpf(-((-2 * log_share) ** 0.5))
        for _ in range(60):
            tail = mpmath.erfc(-x / mpmath.sqrt(2)) / 2
            x -= tail / mpmath.npdf(x) * mpmath.log(tail / share)
        slope = float(x**2 / 2 + mpmath.log(2 * mpmath.pi) / 2)
        exact = float(x)
    for transform, y, sign in (
        (Interval(0.0, width), below, 1),
        (Interval(-width, 0.0), -below, -1),
    ):
        x = transform.to_real(reals(y))
        assert_close(x, reals(sign * exact), rtol=1e-14, atol=0.0)
        expected = reals(slope - np.log(width))
        assert_close(transform.log_slope(reals(y)), expected, rtol=1e-13, atol=1e-13)
        if log_share > -700:
            back = transform.from_real(reals(sign * exact))
            assert_close(back, reals(y), rtol=2e-16 * exact**2 + 1e-15, atol=0.0)


def test_a_uniform_number_is_standard_normal_by_the_probit():
    uniform = TransformedMixture(
        GaussianMixture(reals(0.0), reals([0.0]), reals([0.0])), [Interval(-2.0, 6.0)]
    )
    y = torch.linspace(-2, 6, 101, dtype=torch.float64)[1:-1, None]
    assert_close(uniform.log_prob(y), torch.full((99,), -np.log(8.0)).double())
    assert_close(uniform.cdf(y), (y[:, 0] + 2) / 8, rtol=1e-14, atol=1e-15)
    assert_close(uniform.mean, reals(2.0), rtol=1e-15, atol=0)
    assert_close(uniform.variance, reals(64 / 12), rtol=1e-14, atol=0)
    assert_close(uniform.entropy().value, reals(np.log(8.0))[0])
    assert_close(uniform.crps(reals(0.0)), reals(8 * (0.25**3 + 0.75**3) / 3)[0])


def test_the_slope_at_the_middle_is_no_kink():
    for transform in INTERVALS:
        x = reals(0.0).requires_grad_()
        (slope,) = torch.autograd.grad(transform.from_real(x).sum(), x)
        assert_close(slope.log(), -transform.log_slope_at(reals(0.0)))


def test_the_logit_is_exact_near_both_ends():
    transform = Interval(0.0, 1.0, link="logit")
    assert_close(transform.to_real(reals(1e-300)), reals(-300 * np.log(10)), rtol=1e-15, atol=0.0)
    assert_close(transform.from_real(reals(-600.0)), torch.exp(reals(-600.0)), rtol=1e-14, atol=0.0)
    # The distance to the upper end is exact as well, as far as numbers near 1 allow.
    assert_close(1 - transform.from_real(reals(30.0)), torch.exp(reals(-30.0)), rtol=2e-3, atol=0.0)
    near = Interval(-1.0, 0.0, link="logit")
    assert_close(near.from_real(reals(600.0)), -torch.exp(reals(-600.0)), rtol=1e-14, atol=0.0)


@pytest.mark.parametrize("transform", DISCRETE, ids=repr)
def test_cells_tile_the_line(transform):
    y = torch.arange(0, 20, dtype=torch.float64) + (transform.lower or 0)
    low, high = transform.cell(y)
    assert_close(low[1:], high[:-1], rtol=0, atol=0)
    assert transform.lower is None or low[0] == -INF
    inside = torch.where(low.isinf(), high - 5, low + 0.4 * (high - low))
    assert_close(transform.from_real(inside), y, rtol=0, atol=0)
    assert ((transform.to_real(y) > low) & (transform.to_real(y) < high)).all()


@pytest.mark.parametrize("transform", DISCRETE, ids=repr)
def test_dequantised_values_fill_their_cell(transform):
    y = torch.full((20_000,), 2.0 + (transform.lower or 0), dtype=torch.float64)
    x = transform.dequantise(y, torch.Generator().manual_seed(1))
    low, high = transform.cell(y)
    assert ((x > low) & (x < high)).all()
    part = (x if transform.lower is None else x.exp() + transform.lower) - y
    # Kolmogorov–Smirnov at 0.1 %: 1.95/√n.
    gap = (part.sort().values - torch.linspace(0, 1, len(part), dtype=torch.float64)).abs().max()
    assert gap < 1.95 / len(part) ** 0.5
    assert_close(transform.from_real(x), y, rtol=0, atol=0)


@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_threshold_orders_as_the_values_do(transform):
    """{Y ≤ y} = {X ≤ x}, on a grid of x that holds the thresholds' neighbours."""
    x = torch.linspace(-6.003, 6.002, 401, dtype=torch.float64)
    y = transform.from_real(x)
    for level in (-100.0, -2.5, -2.2, 0.0, 0.3, 1.0, 2.7, 5.0, 100.0, INF, -INF):
        at = transform.threshold(reals(level))
        assert torch.equal(y <= level, x <= at), level


@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_description_as_json(transform):
    assert Transform.from_dict(json.loads(json.dumps(transform.to_dict()))) == transform
    assert TRANSFORMS[transform.to_dict()["kind"]] is type(transform)


def test_intervals_of_older_files_are_by_the_logit():
    old = {"kind": "interval", "lower": 0.0, "upper": 2.0}
    assert Transform.from_dict(old) == Interval(0.0, 2.0, link="logit")


OUTSIDE = {
    Real(): [INF],
    Positive(1.0): [1.0, 0.0, -3.0, INF],
    Interval(0.0, 2.0): [0.0, 2.0, -1.0, INF],
    Interval(0.0, 2.0, link="logit"): [0.0, 2.0, -1.0, INF],
    Integer(): [0.5, INF],
    Integer(0): [-1.0, 0.5],
}


@pytest.mark.parametrize("transform", OUTSIDE, ids=repr)
def test_check_names_the_value(transform):
    transform.check("y", transform.from_real(reals(0.0, 0.7)))
    transform.check("y", reals(NAN))
    for bad in OUTSIDE[transform]:
        with pytest.raises(ArgumentError, match=rf"y has {bad:g} at index \[1\].*, but .*expected"):
            transform.check("y", torch.cat([transform.from_real(reals(0.0)), reals(bad)]))


def test_values_on_a_bound_are_counted_and_advice_is_given():
    y = reals(0.0, 0.3, 0.0, 1.0, 0.7, NAN, 0.5, 0.6, 0.9)
    with pytest.raises(
        ArgumentError,
        match=r"y has 0 at index \[0\], and 25\.00% of the rows on 0 and 12\.50% of the rows on 1, "
        r"but numbers between 0 and 1.*classifier.*'count'.*widen the bounds",
    ):
        Interval(0.0, 1.0).check("y", y)
    with pytest.raises(
        ArgumentError, match=r"has 0 at index \[0\], and 25\.00% of the rows on 0, "
    ):
        Positive().check("y", y)
    with pytest.raises(ArgumentError, match=r"y has -1, but .*Correct the value"):
        Positive().check("y", reals(-1.0)[0])


def test_spikes_are_ends_of_the_range_with_many_values():
    random = torch.Generator().manual_seed(0)
    rest = torch.rand(900, generator=random).double() + 0.1
    zeros, top = torch.zeros(60).double(), torch.full((40,), 2.0).double()
    assert spikes(torch.cat([rest, zeros, top])) == {0.0: 0.06, 2.0: 0.04}
    assert spikes(torch.cat([rest, zeros, reals(NAN)]))[0.0] == 60 / 960
    assert spikes(rest) == {}
    assert spikes(torch.cat([rest, zeros[:18]])) == {}  # fewer than two of a hundred
    assert spikes(torch.cat([rest[:20], zeros[:4]])) == {}  # fewer than five
    assert spikes((10 * rest).round()) == {}  # every value has many
    assert spikes(torch.cat([zeros, top])) == {}  # labels
    assert spikes(reals()) == {}


def test_values_that_alone_keep_auto_from_a_bound():
    random = torch.Generator().manual_seed(0)
    share = torch.rand(200, generator=random).double() * 0.98 + 0.01
    assert on_bounds(torch.cat([share, reals(0.0, 0.0, 1.0, 1.0)])) == {
        0.0: round(2 / 204, 6),
        1.0: round(2 / 204, 6),
    }
    amounts = (2 * torch.randn(200, generator=random).double()).exp()
    assert on_bounds(torch.cat([amounts, reals(0.0)])) == {0.0: round(1 / 201, 6)}
    for column in (share, amounts, share - 0.5, torch.arange(5).double(), reals(), reals(0.0, 1.0)):
        assert on_bounds(column) == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_nearest_lies_inside(transform, dtype):
    extremes = transform.from_real(reals(-1e4, -800.0, -40.0, 0.0, 40.0, 800.0, 1e4)).to(dtype)
    assert transform.contains(transform.nearest(extremes)).all()


def test_bad_bounds():
    with pytest.raises(ArgumentError, match=r"upper is 1.0, but it must be above lower, 2.0"):
        Interval(2.0, 1.0)
    with pytest.raises(ArgumentError, match=r"link is 'cauchit', but one of \('logit', 'probit'\)"):
        Interval(0.0, 1.0, link="cauchit")
    with pytest.raises(ArgumentError, match=r"lower is nan, but a finite number"):
        Positive(NAN)
    with pytest.raises(ArgumentError, match=r"lower is 0.5, but a whole number"):
        Integer(0.5)
    with pytest.raises(ArgumentError, match=r"kind must be one of real, positive"):
        Transform.from_dict({"kind": "complex"})


def test_words_and_bounds():
    assert resolve("real") == Real()
    assert resolve("positive") == Positive()
    assert resolve("count") == Integer(0)
    assert resolve("integer") == Integer()
    assert resolve("unit") == Interval(0.0, 1.0)
    assert resolve((0, 5)) == Interval(0.0, 5.0)
    assert resolve(Positive(3.0)) == Positive(3.0)
    for bad in ("counts", 3, (1, 2, 3), ("a", "b"), None):
        with pytest.raises(ArgumentError, match=r"price is .*'count'.*pass 'real'"):
            resolve(bad, "price")
    with pytest.raises(ArgumentError, match="must be above lower"):
        resolve((5, 0))


def test_proposals():
    generator = np.random.default_rng(0)
    columns = {
        Integer(0): generator.poisson(3, 500),
        Integer(): generator.integers(-5, 5, 500),
        Interval(0.0, 1.0): generator.beta(2, 5, 500),
        Positive(): generator.lognormal(3, 1, 500),
        Real(): generator.normal(2, 1, 500),
    }
    for transform, column in columns.items():
        values = torch.tensor(column, dtype=torch.float64)
        assert propose(values) == transform
        assert propose(torch.cat([values, reals(NAN)])) == transform


@pytest.mark.parametrize(
    "column",
    [
        torch.arange(1000.0),  # whole, but too many
        torch.tensor([0.0, 1e6]),  # whole, but too far apart
        100 + torch.randn(500, generator=torch.Generator().manual_seed(0)),  # positive, symmetric
        torch.tensor([NAN, NAN]),
        torch.tensor([]),
        torch.tensor([0.5, INF]),
    ],
)
def test_everything_else_is_real(column):
    assert propose(column) == Real()


@pytest.mark.parametrize("transform", [Real(), Positive(2.0), *INTERVALS], ids=str)
def test_the_slope_is_the_same_from_either_side(transform):
    x = torch.linspace(-8, 8, 33, dtype=torch.float64)
    x = x if not transform.slope_growth else 0.5 * x
    assert_close(
        transform.log_slope_at(x), transform.log_slope(transform.from_real(x)), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("transform", [Integer(), Integer(lower=3)], ids=str)
def test_the_slope_in_a_cell_is_that_of_its_ends(transform):
    # ∫ dx/dz dz over a cell is its width in x.
    below, above = transform.cell(torch.tensor([5.0], dtype=torch.float64))
    z = 5 + (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    x = z if transform.lower is None else (z - transform.lower).log()
    assert_close(transform.log_slope_at(x).exp().mean(), (above - below)[0], rtol=1e-8, atol=0)
