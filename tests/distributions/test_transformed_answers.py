"""Transformed mixtures: modes, divergences, affine images, components, and what is refused."""

import math

import numpy as np
import pytest
import torch
from helpers.reference import dense, log_density, random_low_rank, random_parameters
from helpers.transformed import gaussian, mixture_of, reals
from scipy import integrate, optimize, stats
from torch.distributions import (
    Independent,
    LogNormal,
    MultivariateNormal,
    Normal,
    Poisson,
    Uniform,
    kl_divergence,
)
from torch.testing import assert_close

from condens import GaussianMixture, LowRankMixture, TransformedMixture
from condens.errors import ArgumentError, NoClosedFormError, ShapeError
from condens.transforms import Integer, Interval, Positive, Real

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
CONTINUOUS = {
    "positive": [Positive(-1.0)],
    "probit": [Interval(-2.0, 3.0)],
    "logit": [Interval(-2.0, 3.0, link="logit")],
    "two": [Positive(), Interval(0.0, 1.0)],
    "five": [
        Positive(),
        Interval(0.0, 1.0, link="logit"),
        Real(),
        Interval(-3.0, 9.0),
        Positive(2.0),
    ],
}
LINE = [Real(), Positive(), Interval(0.0, 1.0), Integer(0)]
every = pytest.mark.parametrize("name", CONTINUOUS)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# Modes.


def climb(m, start):
    """Return the local maximum of log p(y) above a start, by x = f⁻¹(y) and dense formulas."""
    twin = dense(*m.base.parameters)

    def loss(x):
        slope = 0.0
        for value, transform in zip(x, m.transforms, strict=True):
            if isinstance(transform, Positive):
                slope -= value
            elif isinstance(transform, Interval):
                slope += (
                    2 * np.log(2 * np.cosh(value / 2))
                    if transform.link == "logit"
                    else -stats.norm.logpdf(value)
                ) - np.log(transform.width)
        return -float(np.ravel(log_density(x[None], *twin))[0]) - slope

    options = {"gtol": 1e-10, "maxiter": 2000}
    found = optimize.minimize(loss, start, method="BFGS", options=options)
    return found.x, -found.fun


@every
@pytest.mark.parametrize("n_components", [1, 3])
def test_modes_against_numerical_ascent(name, n_components):
    # By the probit, components wider than the standard normal have no maximum.
    bounded = any(one.slope_growth for one in CONTINUOUS[name])
    m = mixture_of(
        CONTINUOUS[name], n_components=n_components, spread=1.5, tight=2.0 if bounded else 0.5
    )
    points, levels = m.modes()
    assert_close(m.log_prob(points), levels, **CLOSE)
    assert (levels.diff() <= 0).all()
    real = torch.stack(
        [one.to_real(y) for one, y in zip(m.transforms, points.unbind(-1), strict=True)], -1
    )
    for x, level in zip(real, levels, strict=True):
        top, height = climb(m, x.numpy() + 1e-3)
        assert height == pytest.approx(float(level), rel=1e-9, abs=1e-9)
        np.testing.assert_allclose(top, x, rtol=0, atol=1e-4)
    random = np.random.default_rng(0)
    for _ in range(5):
        _, height = climb(m, random.normal(size=m.dimensions, scale=2.0))
        assert height <= float(levels[0]) + 1e-9
    assert_close(m.mode, points[0])


def test_modes_have_a_closed_form_for_single_positive_numbers():
    m = gaussian([Positive(1.0), Positive()], [0.3, -0.2], [[0.5, 0.2], [0.2, 0.7]])
    exact = 1.0 + np.exp(0.3 - 0.7), np.exp(-0.2 - 0.9)
    assert_close(m.mode, reals(*exact), **CLOSE)


def test_a_wide_interval_has_a_mode_at_either_end():
    m = gaussian([Interval(0.0, 1.0, link="logit")], [0.4], [[9.0]])
    points, log_density = m.modes()
    assert points.shape == (2, 1)
    grid = torch.special.expit(torch.linspace(-30, 30, 600_001).double())
    level = m.log_prob(grid[:, None])
    inner = (level[1:-1] > level[:-2]) & (level[1:-1] > level[2:])
    assert_close(log_density.sort().values, level[1:-1][inner].sort().values, rtol=1e-8, atol=0)


def test_modes_of_batches_and_of_single_precision():
    m = mixture_of(CONTINUOUS["two"], batch=(3,), tight=1.5)
    for i, one in enumerate(m):
        found = one.modes()
        count = len(found.log_density)
        assert_close(m.modes().log_density[i, :count], found.log_density, **CLOSE)
    single = m.to(torch.float32).modes()
    assert single.points.dtype is single.log_density.dtype is torch.float32


def test_modes_of_whole_numbers_are_refused_until_these_are_given():
    m = mixture_of([Positive(), Integer()], n_components=1, tight=-1.0)
    with pytest.raises(NoClosedFormError, match=r"whole numbers in dim.*\[1\].*Condition"):
        m.modes()
    points, log_density = m.condition({1: 2}).modes()
    assert_close(m.condition({1: 2}).log_prob(points), log_density, **CLOSE)
    grid = torch.linspace(1e-3, 20, 20_001).double()[:, None]
    assert m.condition({1: 2}).log_prob(grid).max() <= log_density[0] + 1e-9
    with pytest.raises(NoClosedFormError, match=r"more than six intervals.*marginal"):
        mixture_of([Interval(0.0, 1.0, link="logit")] * 7).modes()


@pytest.mark.parametrize("dimensions", [1, 2, 8])
def test_the_mode_of_one_component_by_the_probit_has_a_closed_form(dimensions):
    m = mixture_of([Interval(0.0, 1.0)] * dimensions, n_components=1, tight=3.0)
    precision = torch.linalg.inv(m.base.covariance_matrices[0])
    x = torch.linalg.solve(precision - torch.eye(dimensions).double(), precision @ m.base.means[0])
    points, levels = m.modes()
    assert points.shape == (1, dimensions)
    assert_close(points[0], torch.special.ndtr(x), **CLOSE)
    assert_close(levels, m.log_prob(points), **CLOSE)


def test_a_uniform_number_is_as_likely_everywhere():
    points, levels = gaussian([Interval(0.0, 4.0)], [0.0], [[1.0]]).modes()
    assert (points > 0).all()
    assert (points < 4).all()
    assert_close(levels, torch.full_like(levels, -math.log(4)), **CLOSE)


def test_a_bound_towards_which_the_density_grows_is_no_mode():
    """A narrow component has its mode; a wide one has none, alone or beside it."""
    base = GaussianMixture(reals(0.0, -1.0), reals([0.4], [-0.2]), -reals([0.1], [2.0]).log())
    m = TransformedMixture(base, [Interval(0.0, 1.0)])
    points, levels = m.modes()
    grid = torch.linspace(1e-6, 1 - 1e-6, 100_001).double()[:, None]
    level = m.log_prob(grid)
    inner = (level[1:-1] > level[:-2]) & (level[1:-1] > level[2:])
    assert_close(levels, level[1:-1][inner], rtol=1e-7, atol=0)
    assert_close(points, grid[1:-1][inner], rtol=0, atol=2e-5)
    wide = gaussian([Real(), Interval(0.0, 1.0)], [0.0, 0.3], [[1.0, 0.2], [0.2, 1.5]])
    for one in (wide, wide.expand((2,))):
        with pytest.raises(
            NoClosedFormError, match=r"modes\(\).*without a maximum.*dimension.*\[1\]"
        ):
            one.modes()
    with pytest.raises(NotImplementedError, match="without a maximum"):
        _ = wide.mode
    # Of a batch, those without any are named by the error, not answered for.
    nearly = gaussian([Interval(0.0, 1.0)], [0.1], [[1.0001]])
    with pytest.raises(NoClosedFormError, match="without a maximum"):
        nearly.modes()


# Divergences.


@every
def test_divergence_is_that_of_the_real_numbers(name):
    first = mixture_of(CONTINUOUS[name], n_components=1, seed=1)
    second = mixture_of(CONTINUOUS[name], n_components=1, seed=2)
    value, error = first.kl_divergence(second)
    assert error == 0
    means, covariances = (
        [m.base.means[0] for m in (first, second)],
        [m.base.covariance_matrices[0] for m in (first, second)],
    )
    normals = [MultivariateNormal(*pair) for pair in zip(means, covariances, strict=True)]
    assert_close(value, kl_divergence(*normals), **CLOSE)
    assert_close(kl_divergence(first, second), value, **CLOSE)


def test_divergence_of_mixtures_against_quadrature():
    first, second = (mixture_of([Positive()], seed=seed, spread=0.5) for seed in (1, 2))
    other = gaussian([Real()], [1.5], [[4.0]])

    def by_quadrature(q):
        def integrand(x):
            y = torch.tensor([[x]], dtype=torch.float64).exp()
            p = first.log_prob(y)
            return float((p + x).exp() * (p - q.log_prob(y)))

        return integrate.quad(integrand, -15, 15, limit=500, epsabs=1e-10)[0]

    for q in (second, other):
        value, error = first.kl_divergence(q, n_samples=40_000, generator=seeded())
        assert 0 < error < 0.1 * (1 + value)
        assert abs(float(value) - by_quadrature(q)) < 5 * float(error)
    outside = gaussian([Positive(1e6)], [0.0], [[1.0]])
    value, error = first.kl_divergence(outside, n_samples=100)
    assert value == torch.inf
    assert error == 0


def test_divergence_of_counts_is_not_that_of_the_real_numbers():
    first, second = (gaussian([Integer(0)], [mean], [[0.4]]) for mean in (1.0, 1.5))
    n = torch.arange(400.0).double()[:, None]
    p, q = first.log_prob(n), second.log_prob(n)
    exact = torch.where(p > -700, p.exp() * (p - q), 0.0).nan_to_num().sum()
    value, error = first.kl_divergence(second, n_samples=40_000, generator=seeded())
    assert 0 < error < 0.02
    assert abs(value - exact) < 5 * error


def test_whole_numbers_have_no_density_and_numbers_no_probability():
    """One is a probability and the other one per unit: their quotient is no divergence."""
    count = gaussian([Integer()], [1.0], [[4.0]])
    # Beyond 2⁵³ every draw is a whole number, but no density knows.
    line = gaussian([Real()], [1e17], [[4.0]])
    normal = Independent(Normal(reals(1.0), reals(2.0)), 1)
    poisson = Independent(Poisson(reals(3.0)), 1)
    pairs = ((count, line), (line, count), (count, line.base), (count, normal), (line, poisson))
    for first, second in pairs:
        value, error = first.expand((2,)).kl_divergence(second)
        assert (value == torch.inf).all()
        assert (error == 0).all()
        assert value.shape == (2,)
    near = gaussian([Integer(0)], [1.0], [[0.01]])
    n = torch.arange(100.0).double()[:, None]
    p, q = near.log_prob(n), poisson.log_prob(n)
    value, error = near.kl_divergence(poisson, n_samples=40_000, generator=seeded())
    assert abs(value - (p.exp() * (p - q)).nan_to_num().sum()) < 5 * error


KINDS = {
    "full": lambda m: m.base,
    "low rank": lambda m: LowRankMixture(
        m.logits, m.base.means, -m.base.factors, torch.zeros(2, 1, 1).double()
    ),
    "transformed": lambda m: m,
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_excludes_a_draw_is_infinitely_far(kind):
    m = KINDS[kind](mixture_of([Real()], n_components=2, spread=0.1))
    state = torch.get_rng_state()
    narrow = Uniform(reals(-0.5), reals(0.5))
    wide = Uniform(reals(-1e3), reals(1e3))
    both = Uniform(reals(-0.5, -1e3)[:, None], reals(0.5, 1e3)[:, None])
    logs = LogNormal(reals(0.0), reals(1.0))
    free = LogNormal(reals(0.0), reals(1.0), validate_args=False)
    others = (narrow, logs, free)
    for other in (gaussian([Positive()], [0.0], [[1.0]]), *(Independent(o, 1) for o in others)):
        value, error = m.kl_divergence(other, n_samples=100, generator=seeded())
        assert value == torch.inf
        assert error == 0
    value, error = m.kl_divergence(Independent(both, 1), n_samples=1_000, generator=seeded())
    assert value[0] == torch.inf
    assert error[0] == 0
    alone = m.kl_divergence(Independent(wide, 1), n_samples=1_000, generator=seeded(1))
    assert abs(value[1] - alone.value) < 5 * (error[1] + alone.standard_error)
    assert 0 < error[1] < 0.2
    assert torch.equal(torch.get_rng_state(), state)
    assert m.expand((0,)).kl_divergence(Independent(wide, 1)).value.shape == (0,)
    single = m.to(torch.float32).kl_divergence(Independent(wide, 1), n_samples=10)
    assert single.value.dtype is single.standard_error.dtype is torch.float32


# Entropies.


@pytest.mark.parametrize(("mean", "deviation"), [(0.3, 0.2), (-2.0, 0.99), (1.5, 4.0), (45.0, 1.0)])
@pytest.mark.parametrize("transform", [
        Positive(1e6),
        Interval(-1.0, 2.5),
        Interval(-1.0, 2.5, link="logit"),
        Interval(1e6, 1e6 + 1),
        Interval(1e6, 1e6 + 1, link="logit"),
    ])  # fmt: skip
def test_entropy_of_one_component_is_exact(transform, mean, deviation):
    """Also where every draw would be rounded to the bound."""

    def log_rate(x):
        if isinstance(transform, Positive):
            return x
        if transform.link == "probit":
            return math.log(transform.width) + stats.norm.logpdf(x)
        return (
            math.log(transform.upper - transform.lower) - np.logaddexp(0, x) - np.logaddexp(0, -x)
        )

    def integrand(z):
        log_p = -0.5 * z**2 - 0.5 * math.log(2 * math.pi)
        x = mean + deviation * z
        return math.exp(log_p) * (math.log(deviation) - log_p + log_rate(x))

    exact = integrate.quad(integrand, -12, 12, epsabs=1e-12, limit=500)[0]
    m = gaussian([transform], [mean], [[deviation**2]])
    value, error = m.entropy()
    assert error == 0
    assert_close(float(value), exact, **CLOSE)
    assert_close(float(m.to(torch.float32).entropy().value), exact, rtol=1e-6, atol=1e-6)


def test_entropy_of_several_is_that_of_their_density():
    bounded = [Interval(0.0, 1.0), Interval(0.0, 1.0, link="logit")]
    m = mixture_of([Positive(), *bounded], n_components=3)
    value, error = m.entropy(n_samples=40_000, generator=seeded())
    surprise = -m.log_prob(m.sample((40_000,), generator=seeded()))
    spread = surprise.std() / 200
    assert 0 < error < spread
    assert abs(value - surprise.mean()) < 5 * spread


def test_entropy_has_a_gradient():
    transforms = [Positive(), Interval(0.0, 1.0), Interval(0.0, 1.0, link="logit")]
    logits, means, factors = (t.requires_grad_() for t in random_parameters((), 1, 3, seed=4))

    def entropy(means, factors):
        base = GaussianMixture(logits, means, factors)
        return TransformedMixture(base, transforms).entropy().value

    assert torch.autograd.gradcheck(entropy, (means, factors))


def test_entropy_of_counts_takes_draws_that_are_whole():
    """Near 3·10⁷ single precision has every other whole number only."""
    m = gaussian([Integer()], [3e7], [[1.0]]).to(torch.float32)
    value, error = m.entropy(n_samples=40_000, generator=seeded())
    assert value.dtype is torch.float32
    p = stats.norm.cdf(np.arange(-20, 20) + 1.0) - stats.norm.cdf(np.arange(-20, 20))
    assert abs(float(value) - stats.entropy(p)) < 5 * float(error)


def test_divergence_of_low_rank_gaussians_is_exact():
    first, second = (LowRankMixture(*random_low_rank((3,), 1, 4, 2, seed=s)) for s in (1, 2))
    normals = [
        MultivariateNormal(m.means[:, 0], m.covariance_matrices[:, 0]) for m in (first, second)
    ]
    expected = kl_divergence(*normals)
    for p, q in (
        (first, second),
        (first, second.to_full()),
        (first.to_full(), second),
        (first, normals[1]),
        (normals[0], second),
    ):
        assert_close(kl_divergence(p, q), expected, **CLOSE)
    value, error = first.to(torch.float32).kl_divergence(second.to(torch.float32))
    assert value.dtype is torch.float32
    assert (error == 0).all()
    assert_close(value.double(), expected, rtol=1e-5, atol=1e-5)


def test_divergence_of_low_rank_mixtures():
    first, second = (LowRankMixture(*random_low_rank((), 2, 3, 1, seed=seed)) for seed in (1, 2))
    expected = first.to_full().kl_divergence(second.to_full(), n_samples=40_000, generator=seeded())
    value, error = first.kl_divergence(second, n_samples=40_000, generator=seeded())
    assert 0 < error < 0.2 * value
    assert abs(value - expected.value) < 5 * torch.hypot(error, expected.standard_error)
    assert first.expand((4,)).kl_divergence(second, n_samples=10).value.shape == (4,)


# Affine images.


@pytest.mark.parametrize("scale", [2.5, 0.3, -1.5])
def test_affine_moves_bounds(scale):
    both = [Interval(0.0, 2.0, link) for link in ("probit", "logit")]
    transforms = [Real(), *both] + ([Positive(1.0)] if scale > 0 else [])
    m = mixture_of(transforms, names=list("abcd")[: len(transforms)])
    loc = reals(*[0.7, -3.0, 1.0, 4.0][: len(transforms)])
    scales = reals(*[scale, scale, -scale, 2 * scale][: len(transforms)])
    moved, y = m.affine(scales, loc), m.sample((20,), generator=seeded())
    expected = m.log_prob(y) - scales.abs().log().sum()
    assert_close(moved.log_prob(scales * y + loc), expected, **CLOSE)
    assert_close(moved.mean, scales * m.mean + loc, **CLOSE)
    assert_close(moved.covariance_matrix, m.covariance_matrix * scales * scales[:, None], **CLOSE)
    assert moved.names == m.names
    ends = sorted((scale * 0.0 - 3.0, scale * 2.0 - 3.0))
    assert moved.transforms[1] == Interval(*ends)
    assert moved.transforms[2].link == "logit"


def test_affine_shifts_whole_numbers():
    for transform in (Integer(2), Integer()):
        m = mixture_of([transform])
        n = torch.arange(2.0, 30.0).double()[:, None]
        assert_close(m.affine(1.0, 5.0).log_prob(n + 5), m.log_prob(n), **CLOSE)
    with pytest.raises(NoClosedFormError, match=r"affine by 2 and 0.*keeps them whole"):
        mixture_of([Integer(0)]).affine(2.0)
    with pytest.raises(NoClosedFormError, match=r"affine by 1 and 0\.5"):
        mixture_of([Integer()]).affine(1.0, 0.5)
    with pytest.raises(NoClosedFormError, match=r"negative scale.*absolute value"):
        mixture_of([Positive()]).affine(-1.0)
    with pytest.raises(ShapeError, match="bounds are those of the whole batch"):
        mixture_of([Positive()], batch=(3,)).affine(1.0, torch.zeros(3, 1))


# Components.


def test_component_densities_add_up():
    m = mixture_of([Positive(), Interval(0.0, 1.0), Integer(0)])
    y = m.sample((6,), generator=seeded())
    each = m.component_log_prob(y)
    for k in range(m.n_components):
        parts = [part[k : k + 1] for part in m.base.parameters]
        alone = TransformedMixture(GaussianMixture(*parts), m.transforms)
        assert_close(each[:, k], alone.log_prob(y), **CLOSE)
        assert_close(m.means[k], alone.mean, **CLOSE)
        assert_close(m.covariance_matrices[k], alone.covariance_matrix, **CLOSE)
    assert_close(torch.logsumexp(m.weights.log() + each, -1), m.log_prob(y), **CLOSE)
    posterior = torch.softmax(m.weights.log() + each, -1)
    assert_close(m.responsibilities(y), posterior, **CLOSE)
    empty = m.parameters._replace(logits=reals(0.0, 0.0, -torch.inf))
    without = TransformedMixture(GaussianMixture(*empty), m.transforms)
    assert_close(without.component_log_prob(y), each, **CLOSE)


# What needs Gaussians.

NEEDS_GAUSSIANS = {
    "project": lambda m: m.project(torch.ones(2)),
    "multiply": lambda m: m.multiply(MultivariateNormal(torch.zeros(2), torch.eye(2))),
    "divide": lambda m: m.divide(MultivariateNormal(torch.zeros(2), 1e6 * torch.eye(2))),
    "affine": lambda m: m.affine(torch.ones(1, 2), 3.0),
    "precision_factors": lambda m: m.precision_factors,
    "to_mixture_same_family": lambda m: m.to_mixture_same_family().component_distribution.loc,
    "to_full": lambda m: m.to_full(),
    "peak_log_prob": lambda m: m.peak_log_prob(),
    "largest_condition_number": lambda m: m.largest_condition_number(1000),
}


@pytest.mark.parametrize("name", NEEDS_GAUSSIANS)
def test_what_needs_gaussians_is_answered_for_real_targets_only(name):
    call = NEEDS_GAUSSIANS[name]
    with pytest.raises(NoClosedFormError, match=rf"{name}.* was asked of a Trans.*base\.{name}"):
        call(mixture_of([Real(), Positive()]))
    real = mixture_of([Real(), Real()])
    ours, theirs = call(real), call(real.base)
    if isinstance(theirs, GaussianMixture):
        assert ours.transforms == (Real(),) * theirs.dimensions
        ours, theirs = ours.parameters, theirs.parameters
    assert_close(ours, theirs)


# Numbers about components.


@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_peaks_and_condition_numbers(dimensions):
    full = GaussianMixture(*random_parameters((4,), 3, dimensions))
    low = LowRankMixture(*random_low_rank((4,), 3, dimensions, 2))
    for m in (full, low):
        peaks = torch.stack(
            [m.component_log_prob(m.means[..., k, :])[..., k] for k in range(3)], -1
        )
        assert_close(m.peak_log_prob(), peaks, **CLOSE)
        largest = float(torch.linalg.cond(m.covariance_matrices).max())
        if m is full:
            assert m.largest_condition_number(10**9) == pytest.approx(largest, rel=1e-6)
            one = float(torch.linalg.cond(m.covariance_matrices[0]).max())
            assert m.largest_condition_number(1) == pytest.approx(one, rel=1e-6)
        else:
            assert m.largest_condition_number(1) >= largest * (1 - 1e-9)
        assert m[:0].largest_condition_number(1) == 1.0
        with pytest.raises(ArgumentError, match="max_multiplications"):
            m.largest_condition_number("many")


@pytest.mark.parametrize("transform", [*LINE, Interval(0.0, 1.0, "logit")])
def test_log_tails_and_the_interval_they_leave(transform):
    m = mixture_of([transform], batch=(4,))
    lower, upper = m.tail_interval(-3.0)
    y = m.sample(generator=seeded())
    below, above = m.log_tails(y)
    assert_close(below.exp(), m.cdf(y), **CLOSE)
    before = y - 1 if transform.discrete else y
    assert_close(above.exp(), 1 - m.cdf(before), **CLOSE)
    inside = (torch.minimum(below, above) >= -3.0).unsqueeze(-1)
    assert (inside == ((y >= lower) & (y <= upper))).all()
    whole = m.tail_interval(-torch.inf)
    ends = transform.from_real(reals(-torch.inf, torch.inf))
    assert_close(torch.stack(whole)[:, 0, 0], ends)


@pytest.mark.parametrize("transform", [Integer(), Integer(0)])
def test_log_tails_between_whole_numbers(transform):
    m = mixture_of([transform], tight=-1.0)
    y = torch.arange(-3.0, 12.0).double()[:, None]
    for part in (0.001, 0.5, 0.999):
        below, above = m.log_tails(y + part)
        assert_close(below.exp(), m.cdf(y), **CLOSE)
        assert_close(above.exp(), 1 - m.cdf(y), **CLOSE)


@pytest.mark.parametrize("transform", LINE)
def test_tail_intervals_of_tails_that_are_none(transform):
    m = mixture_of([transform])
    for bad in (math.nan, 0.0, -0.69, 1.0, math.inf, "x", None, reals(-3.0, -4.0)):
        with pytest.raises(ArgumentError, match=r"log_tail is .*math\.log\(0\.05\)"):
            m.tail_interval(bad)
    median = torch.stack(m.tail_interval(math.log(0.5)))
    assert_close(median, m.icdf(0.5).expand(2, 1), rtol=1e-7, atol=0)
    for far in (-1e290, -9.9e306, -1.1e307, -1.7e308):
        lower, upper = m.tail_interval(far)
        assert (lower <= upper).all()


def test_points_spread_over_a_density_take_one_batch_axis():
    for m in (mixture_of([Real()]), mixture_of([Integer()], batch=(2, 3))):
        with pytest.raises(ShapeError, match=r"the mixture has batch shape .*\[n\]"):
            m.stratified_log_prob(8)
    for bad in (0, 2.5, "x"):
        with pytest.raises(ArgumentError, match="n_points is "):
            mixture_of([Real()], batch=(2,)).stratified_log_prob(bad)


@pytest.mark.parametrize("transform", [Interval(0.0, 2.0), Interval(0.0, 2.0, "logit"), Integer(0)])
def test_affine_images_whose_bounds_no_number_holds(transform):
    m = mixture_of([transform])
    for loc in (2.0**60, 1e300):
        with pytest.raises(ArgumentError, match=r"matrix_or_scale and loc are .*by less"):
            m.affine(1.0, loc)


def test_transforms_are_one_to_each_dimension():
    with pytest.raises(ArgumentError, match=r"transforms is .*2 transform\(s\)"):
        TransformedMixture(GaussianMixture(*random_parameters((), 1, 2)), [Real()])
    assert GaussianMixture(*random_parameters((), 1, 2)).transforms == (Real(), Real())
