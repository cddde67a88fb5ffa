"""Limit, spread and tail of a network: the density they make, and where it holds."""

import copy
import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy import stats
from torch import Generator, nn

from condens import GaussianMixture
from condens.functional.algebra import Parameters
from condens.nn import HEADS, Ensemble, MixtureNetwork
from condens.nn.adjustment import DECAY, SCALES, Limit, Trim, surround
from condens.nn.scaling import Standardiser
from condens.persistence import load, save
from condens.training import Settings, adjust, train
from condens.transforms import Integer, Interval, Positive, Real

T, EPSILON = 1.3, 0.02
SETTINGS = Settings(spread=T, tail=EPSILON)


def data(dimensions, count=60, seed=0):
    """Return conditions, and correlated targets of several scales."""
    generator = Generator().manual_seed(seed)
    x = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, dimensions, generator=generator, dtype=torch.float64)
    y = 3 + 10 * (x[:, :1] + noise @ torch.ones(dimensions, dimensions).triu().double())
    return x, y


def adjusted(covariance="full", dimensions=2, *, transforms=None, y=None, settings=SETTINGS):
    x, targets = data(dimensions)
    targets = targets if y is None else y
    network = MixtureNetwork.of(
        2,
        dimensions,
        n_components=3,
        covariance=covariance,
        width=8,
        transforms=transforms,
        generator=Generator().manual_seed(1),
    ).double()
    network.prepare(x, targets)
    # Components that differ, and by the condition.
    nn.init.normal_(network.head.linear.weight, std=0.3, generator=Generator().manual_seed(2))
    adjust(network, None, settings, training=(x, targets))
    return network.eval(), x, targets


def dense(mixture):
    """Return weights [K], means [K, D] and covariances [K, D, D] of one mixture."""
    return (
        mixture.weights.detach().numpy(),
        mixture.means.detach().numpy(),
        mixture.covariance_matrices.detach().numpy(),
    )


@pytest.mark.parametrize("covariance", [name for name in HEADS if name != "low_rank"])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_the_density_is_the_documented_one(covariance, dimensions):
    network, x, y = adjusted(covariance, dimensions)
    found = network(x[:1])[0]
    body = network(x[:1], tail=False)[0]
    network.drop_adjustment()
    weights, means, covariances = dense(network(x[:1])[0])
    assert_allclose(dense(body)[1], means, rtol=1e-12)
    assert_allclose(dense(body)[0], weights, rtol=1e-12)
    assert_allclose(dense(body)[2], T**2 * covariances, rtol=1e-9)
    values = y.numpy()
    wide = np.cov(values.T, bias=True).reshape(dimensions, dimensions)
    if covariance in ("diagonal", "isotropic"):
        wide = np.diag(wide.diagonal())  # standardised, all have variance one
    scales = 4.0 ** np.arange(11)
    parts = scales**-3.0 / (scales**-3.0).sum()
    points = np.concatenate([values[:3], values.mean(0) + 1e4 * values.std(0) * np.ones((1, 1))])
    expected = (1 - EPSILON) * sum(
        w * stats.multivariate_normal(m, T**2 * c).pdf(points)
        for w, m, c in zip(weights, means, covariances, strict=True)
    ) + EPSILON * sum(
        w * stats.multivariate_normal(values.mean(0), s**2 * wide).pdf(points)
        for w, s in zip(parts, scales, strict=True)
    )
    # A millionth of the covariances between targets is left out.
    assert_allclose(found.log_prob(torch.from_numpy(points)).exp().detach(), expected, rtol=1e-4)


@pytest.mark.parametrize("covariance", HEADS)
@pytest.mark.parametrize("dimensions", [1, 2, 4])
def test_no_component_is_wider_than_the_limit(covariance, dimensions):
    network, x, y = adjusted(covariance, dimensions, settings=Settings(spread=1, tail=0))
    free = network(x)
    found = free.covariance_matrices.detach().diagonal(dim1=-2, dim2=-1).sqrt()
    reach = (y - y.mean(0)).abs().amax(0)
    # Some of them are too wide for it, and not in all targets.
    factor = (found / reach).median().item()
    with_limit = Settings(spread=1, tail=0, limit=factor)
    adjust(network, None, with_limit, training=(x, y))
    mixture = network(x)
    excess = (found / (factor * reach)).clamp(min=1.0)
    assert 0.3 < (excess > 1).double().mean() < 0.7
    assert_allclose(
        mixture.covariance_matrices.detach(),
        free.covariance_matrices.detach() / (excess[..., None] * excess[..., None, :]),
        rtol=1e-9,
        atol=1e-12,
    )
    assert torch.equal(mixture.means, free.means)
    assert torch.equal(mixture.logits, free.logits)
    # Rows one by one, and all with a transform of torch.func, which looks at no values.
    for row in range(5):
        assert_allclose(
            network(x[row : row + 1]).covariance_matrices.detach(),
            mixture.covariance_matrices[row : row + 1].detach(),
            rtol=1e-9,
            atol=1e-12,
        )
    mapped = torch.func.vmap(lambda row: network(row[None]).covariance_matrices[0])(x)
    assert_allclose(mapped.detach(), mixture.covariance_matrices.detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("covariance", HEADS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e308])
@pytest.mark.parametrize("size", [1.0, 1e4, 300.0, 1e9])
def test_no_parameter_makes_the_limit_nan(covariance, dtype, factor, size):
    """Neither components beyond all numbers, nor limits below them; and no gradient is NaN."""
    generator = Generator().manual_seed(0)
    known = (
        HEADS[covariance](4, 3, 5, generator=generator)
        .to(dtype)
        .parameters_of(torch.randn(40, 4, generator=generator).to(dtype))
    )
    # Log-scales of some hundreds, and beyond what half precision holds.
    raw = [size * torch.randn(t.shape, generator=generator, dtype=torch.float64) for t in known]
    body = type(known)(*(tensor.to(dtype).requires_grad_() for tensor in raw))
    limit = Limit(factor, torch.ones(3))
    for traced in (False, True):
        some = (torch.func.vmap(limit) if traced else limit)(body)
        for before, now in zip(body, some, strict=True):
            assert torch.equal(before.isfinite(), now.isfinite())
        if all(tensor.isfinite().all() for tensor in body):
            slopes = torch.autograd.grad(sum(tensor.sum() for tensor in some), list(body))
            assert all(slope.isfinite().all() for slope in slopes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_squares_beyond_single_precision_are_limited(dtype):
    """The chain of two factors 10¹⁰ has a deviation of 10²⁰."""
    factors = torch.tensor([[0.0, 0.0, 0.0, 1e10, 0.0, 1e10]], dtype=dtype)
    body = Parameters(torch.zeros(1, dtype=dtype), torch.zeros(1, 3, dtype=dtype), factors)
    deviations = Limit(10.0, torch.ones(3))(body).to(torch.float64).deviations
    assert_allclose(deviations, [[10.0, 10.0, 1.0]], rtol=0.03)


@pytest.mark.parametrize("covariance", HEADS)
def test_every_target_has_its_own_limit(covariance):
    """Of targets with outliers the unit is a range of quartiles; isotropic tails have one scale."""
    x, y = data(2, 2000)
    y[::50, 1] *= 1e3
    network = MixtureNetwork.of(2, 2, n_components=2, width=4, covariance=covariance).double()
    network.prepare(x, y)
    adjust(network, None, Settings(), training=(x, y))
    standard = network.target_scaling(y)
    reach = (standard - standard.clamp(-20, 20).mean(0)).abs().amax(0)
    assert reach[1] > 100
    assert_allclose(network.limit.reach, reach, rtol=1e-6)
    # A row that counts nothing reaches nowhere, nor does a missing target.
    weights = torch.ones(2000, dtype=torch.float64)
    weights[standard[:, 1].abs() > 10] = 0.0
    assert network.reach_of(y, weights)[1] < 10
    y[weights == 0] = math.nan
    assert network.reach_of(y)[1] < 10
    assert torch.equal(network.reach_of(y[:1]), torch.ones(2).double())


def test_a_rare_wide_component_does_not_stretch_the_others_far_away():
    """Its width, which depends on the condition, is no width of the density."""
    generator = Generator().manual_seed(0)
    x, y = torch.randn(2, 2000, 1, generator=generator, dtype=torch.float64)
    network = MixtureNetwork.of(1, 1, n_components=2, width=4, depth=1).double().eval()
    network.prepare(x, y)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.head.linear.bias[1] = -9.2
    network.backbone = Widest(network.head.linear.in_features)
    for slope in (1.0, 3.0):
        with torch.no_grad():
            network.head.linear.weight[5, 0] = -slope
        adjust(network, None, Settings(spread=1.0, tail=0.0, trim=0.0), training=(x, y))
        upper = network.condition_scaling.upper
        deviations = network(torch.stack([upper * k for k in (1.0, 1.9, 2.2, 2.5, 10.0)])).stddev
        assert (deviations < 1.1).all()


class Widest(nn.Module):
    """The condition as the first feature, and no others."""

    def __init__(self, features):
        super().__init__()
        self.features = features

    def forward(self, condition):
        return nn.functional.pad(condition, (0, self.features - condition.shape[1]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_the_lightest_components_are_left_out(dtype):
    generator = Generator().manual_seed(0)
    logits = 3 * torch.randn(50, 8, generator=generator)
    logits[:2] = torch.tensor([[0.0], [-5.0]])  # equal weights: none is lightest
    logits[2] = torch.tensor([-2e4, 0.0, -1e4, *[-3e4] * 5])
    body = Parameters(logits.to(dtype), torch.zeros(50, 8, 1), torch.zeros(50, 8, 1))
    weights = torch.softmax(body.logits.double(), -1).numpy()
    for part in (1e-9, 0.002, 0.1, 0.9):
        found = torch.softmax(Trim(part)(body).logits.double(), -1)
        for ours, theirs in zip(weights, found.numpy(), strict=True):
            order = ours.argsort()
            kept = np.ones(8, dtype=bool)
            kept[order[np.cumsum(ours[order]) <= part]] = False
            # Those as light as one that stays do too.
            kept |= ours >= ours[kept].min()
            assert_allclose(theirs, np.where(kept, ours, 0) / ours[kept].sum(), rtol=1e-3)
            assert (theirs[~kept] == 0).all()
            assert ours[~kept].sum() <= part
        mapped = torch.func.vmap(Trim(part))(body)
        assert torch.equal(mapped.logits, Trim(part)(body).logits)
    heaviest = torch.softmax(Trim(1 - 2**-53)(body).logits.double(), -1)
    assert_allclose(heaviest[2:].amax(-1), 1.0, rtol=1e-12)
    alone = Parameters(*(tensor[:, :1] for tensor in body))
    assert torch.equal(Trim(0.9)(alone).logits, alone.logits)
    assert Trim(0.9)(Parameters(*(t[:0] for t in body))).logits.shape == (0, 8)


@pytest.mark.parametrize("covariance", HEADS)
def test_what_is_left_out_is_no_density(covariance):
    network, x, y = adjusted(covariance, settings=Settings(spread=1, tail=0, trim=0))
    with torch.no_grad():
        network.head.linear.bias[:3] = torch.tensor([0.0, -7.0, -8.0])
        network.head.linear.weight[:3] = 0.0
    before = network(x)
    adjust(network, None, Settings(spread=1, tail=0), training=(x, y))
    mixture = network(x)
    assert_allclose(mixture.weights[:, 0].detach(), 1.0, rtol=1e-12)
    assert torch.equal(mixture.weights[:, 1:], torch.zeros(60, 2, dtype=torch.float64))
    gain = (mixture.log_prob(y) - before.log_prob(y)).detach()
    assert (gain <= -math.log(1 - 0.002)).all()
    one = before.component_log_prob(y)[:, 0]
    assert_allclose(mixture.log_prob(y).detach(), one.detach(), rtol=1e-10)
    assert_allclose(network.nll(x, y).detach(), -one.detach(), rtol=1e-10)
    for tensor in (mixture.mean, mixture.stddev, mixture.sample(), mixture.entropy().value):
        assert tensor.isfinite().all()


def test_a_rare_wide_component_does_not_decide_the_deviation():
    network, x, y = adjusted(settings=Settings(trim=0))
    with torch.no_grad():
        network.head.linear.weight.zero_()
        before = network(x).stddev
        # After three logits and six means: hardly any weight, 3000 deviations wide.
        network.head.linear.bias[2] = -9.0
        network.head.linear.bias[9:].view(3, 3)[2, :2] = -8.0
        limited = network(x).stddev
        widest = network(x, tail=False).covariance_matrices.amax((0, 1)).diagonal().sqrt()
        network.limit = None
        assert (network(x).stddev > 10 * before).all()
    assert (limited < 1.2 * before).all()
    assert (widest < 1.001 * (y - y.mean(0)).abs().amax(0)).all()


def test_low_rank_has_the_largest_axes():
    network, x, y = adjusted("low_rank", 4)
    wide = network.target_scaling.inverse(
        network.form.mixture(network.tail.components, None)
    ).covariance_matrices.detach()
    expected = np.cov(y.numpy().T, bias=True)
    for scale, covariance in zip(SCALES.numpy(), wide.numpy(), strict=True):
        assert_allclose(covariance.diagonal(), scale**2 * expected.diagonal(), rtol=1e-9)
    # With rank 5 for 4 targets only the smallest axis is not exact.
    assert np.abs(wide[0].numpy() - expected).max() < 0.2 * expected.max()
    assert network(x).n_components == 14


@pytest.mark.parametrize("covariance", HEADS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("limit", [math.inf, 0.2])
def test_nll_loss_and_density_agree(covariance, dtype, limit):
    network, x, y = adjusted(covariance, 3, settings=dataclasses.replace(SETTINGS, limit=limit))
    gaps = y.clone()
    gaps[::2, 0] = gaps[1::3, 2] = math.nan
    gaps[5] = y.mean(0) + 1e3 * y.std(0)
    far = torch.cat([x[:-2], 1e3 * x[-2:]])
    network.to(dtype)
    tolerance = 1e-11 if dtype == torch.float64 else 2e-5
    weights = torch.linspace(0, 1, len(x), dtype=dtype)
    for condition, target in ((x, y), (x, gaps), (far, gaps)):
        found = network.nll(condition, target)
        expected = -network(condition).observed_log_prob(target)
        assert_allclose(found.detach(), expected.detach(), rtol=tolerance)
        loss = network.loss(condition, target, weights)
        assert_allclose(loss.detach(), (weights * found).sum().detach(), rtol=tolerance)


@pytest.mark.parametrize(
    "transforms",
    [
        (Positive(), Real()),
        (Interval(0.0, 1e4), Positive(-1.0)),
        (Integer(0), Real()),
    ],
    ids=str,
)
def test_constrained_targets(transforms):
    x, y = data(2)
    columns = [
        one.from_real(0.1 * column) if not isinstance(one, Real) else column
        for one, column in zip(transforms, (y - 3).unbind(1), strict=True)
    ]
    network, x, y = adjusted(transforms=transforms, y=torch.stack(columns, 1))
    y = y.clone()
    assert_allclose(network.nll(x, y).detach(), -network(x).log_prob(y).detach(), rtol=1e-9)
    y[::2, 1] = math.nan
    assert_allclose(
        network.nll(x, y).detach(), -network(x).observed_log_prob(y).detach(), rtol=1e-9
    )


def test_an_ensemble_has_its_own():
    members = [adjusted()[0] for _ in range(2)]
    nn.init.normal_(members[1].head.linear.weight, std=0.1)
    x, y = data(2)
    network = Ensemble(members)
    bodies = network(x)
    for member in members:
        assert member.spread is not None
    adjust(network, None, SETTINGS, training=(x, y))
    assert_allclose(
        network(x, tail=False).covariance_matrices.detach(),
        T**2 * bodies.covariance_matrices.detach(),
        rtol=1e-9,
    )
    assert network(x).n_components == 6 + 11
    assert_allclose(network.nll(x, y).detach(), -network(x).log_prob(y).detach(), rtol=1e-10)
    assert network.entropies(x[:2], n_samples=10).total.value.shape == (2,)
    network.drop_adjustment()
    for part in (network, *members):
        assert part.trim is part.limit is part.spread is part.tail is None


@pytest.mark.parametrize(
    ("covariance", "dimensions"),
    [("full", 1), ("full", 5), ("diagonal", 2), ("low_rank", 1), ("low_rank", 3)],
)
@pytest.mark.slow
def test_compiled_and_exported(covariance, dimensions):
    settings = dataclasses.replace(SETTINGS, limit=0.2)
    network, x, y = adjusted(covariance, dimensions, settings=settings)
    # Components too, and some conditions too far away.
    x = torch.cat([x, x[:5] * torch.tensor([100.0, 1.0])])
    y = torch.cat([y, y[:5]])
    if dimensions == 5:  # the slowest, and the others differ in the head alone
        compiled = torch.compile(network.nll, backend="eager")(x, y)
        assert_allclose(compiled.detach(), network.nll(x, y).detach(), rtol=1e-10)
    exported = torch.export.export(network, (x,), strict=False).module()(x)
    assert_allclose(exported.log_prob(y).detach(), network(x).log_prob(y).detach(), rtol=1e-10)


@pytest.mark.parametrize("transform", [Real(), Positive()], ids=str)
def test_one_dimension_integrates_to_one(transform):
    y = transform.from_real(data(1)[1].div(20))
    network, x, _ = adjusted(
        dimensions=1, transforms=(transform,), y=y, settings=Settings(tail=0.3)
    )
    ends = (-740, 300) if isinstance(transform, Positive) else (-1e4, 1e4)
    grid = torch.linspace(*ends, 400_001, dtype=torch.float64)
    value = transform.from_real(grid).unsqueeze(1)
    log_density = network(x[:1])[0].log_prob(value) - transform.log_slope_at(grid)
    # Beyond the ends are components with a weight of 0.3 · 64⁻³, half of one of them.
    assert torch.trapezoid(log_density.exp().detach(), grid) == pytest.approx(1, abs=2e-6)


def test_gradients_reach_the_body():
    network, x, y = adjusted()
    network.loss(x, y).backward()
    ours = network.head.linear.weight.grad.clone()
    network.zero_grad()
    (-network(x).log_prob(y).mean()).backward()
    assert_allclose(ours, network.head.linear.weight.grad, rtol=1e-8, atol=1e-12)


# What the tail costs.


@pytest.mark.parametrize("covariance", HEADS)
def test_a_surprise_is_affordable(covariance):
    generator = Generator().manual_seed(0)
    x, y = (torch.randn(500, n, generator=generator, dtype=torch.float64) for n in (2, 3))
    y = (y - y.mean(0)) / y.std(0, correction=0)
    network = MixtureNetwork.of(2, 3, covariance=covariance, width=8).double()
    network.prepare(x, y)
    assert network.nll(x[:1], torch.full((1, 3), 1e6).double()) > 1e4
    adjust(network, None, training=(x, y))
    for target in itertools.product([-1e6, 0.0, 1e6], repeat=3):
        cost = network.nll(x[:1], torch.tensor([target], dtype=torch.float64))
        assert cost < (120 if any(target) else 10)
    # The documented price.
    for distance in (10.0, 1e3, 1e5):
        target = torch.tensor([[distance, 0.0, 0.0]], dtype=torch.float64)
        price = math.log(1000) + (DECAY + 3) * math.log(distance) + 2
        assert network.nll(x[:1], target).item() == pytest.approx(price, abs=4)


def moments_of_tail(transform, y):
    """Return mean and variance of the tail around one column, in its own units."""
    real = transform.to_real(y)
    scaling = Standardiser(1).fit(real)
    logits, start = surround(scaling(real), None, (transform,), scaling)
    deviations = scaling.scale * start.scales
    means = scaling.location + scaling.scale * start.means
    mean = transform.mean(means, deviations).squeeze(-1)
    variance = transform.variance(means, deviations).squeeze(-1)
    weights = torch.softmax(logits, -1)
    centre = y.mean()
    return mean, (weights * (variance + (mean - centre).square())).sum()


@pytest.mark.parametrize("deviation", [0.01, 0.1, 0.5, 1.0, 2.0])
def test_the_tail_adds_as_much_to_a_positive_target_as_to_a_real_one(deviation):
    normal = torch.from_numpy(stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)).unsqueeze(1)
    _, real = moments_of_tail(Real(), normal)
    assert real.item() == pytest.approx(1.3125, rel=1e-3)
    x = 2 + deviation * normal
    mean, added = moments_of_tail(Positive(), x.exp())
    # The training variance as Gaussian logarithms have it.
    variance = math.expm1(deviation**2) * math.exp(4 + deviation**2)
    centre = math.exp(2 + deviation**2 / 2)
    slack = (x.exp().mean().item() - centre) ** 2 / variance
    assert mean.isfinite().all()
    assert added.item() / variance < 1.35 + 2 * slack
    # It reaches down to the smallest numbers, and up at a price of about 2 log y.
    network, x, _ = adjusted(
        dimensions=1,
        transforms=(Positive(),),
        y=(2 + deviation * data(1)[1].div(10)).exp(),
        settings=Settings(tail=0.001),
    )
    for value in (1e-100, 1e10):
        cost = network.nll(x[:1], torch.full((1, 1), value, dtype=torch.float64))
        # Of log y, without the change of units; the body's cost grows with its square.
        assert cost.item() - math.log(value) < 200


@pytest.mark.parametrize("transform", [None, Positive()], ids=str)
def test_deviations_hardly_grow(transform):
    """By 1 % of the training deviation at most, where predictions leave a half of it open."""
    x, _ = data(1, count=2000)
    noise = torch.randn(2000, 1, generator=Generator().manual_seed(3), dtype=torch.float64)
    y = 0.5 * x[:, :1] + 0.8 * noise
    y = y if transform is None else (0.5 * y).exp()
    network = MixtureNetwork.of(
        2, 1, n_components=1, width=8, transforms=None if transform is None else [transform]
    )
    train(network, (x, y), Settings(epochs=15))
    network.double()
    adjust(network, None, training=(x, y))
    with torch.no_grad():
        growth = network(x).stddev - network(x, tail=False).stddev
    assert growth.isfinite().all()
    assert growth.max() < 0.01 * y.std()


def test_extreme_logarithms_have_finite_moments():
    y = torch.linspace(-300, 300, 60, dtype=torch.float64).unsqueeze(1).exp()
    mean, _ = moments_of_tail(Positive(), y)
    assert mean.isfinite().all()


# States and files.


def test_files_keep_them_bit_for_bit(tmp_path):
    for covariance in HEADS:
        network, x, y = adjusted(covariance)
        for one in (network, Ensemble([network, network]), network.float()):
            save(one, tmp_path / "model")
            loaded = load(tmp_path / "model")
            for name, tensor in one.state_dict().items():
                assert torch.equal(loaded.state_dict()[name], tensor)
            assert torch.equal(loaded.nll(x, y), one.nll(x, y))


@pytest.mark.parametrize("n_members", [1, 2])
@pytest.mark.parametrize("covariance", HEADS)
@pytest.mark.parametrize("dimensions", [1, 2])
def test_a_state_brings_its_own_parts(covariance, dimensions, n_members):
    network, x, y = adjusted(covariance, dimensions)
    blank = MixtureNetwork.of(2, dimensions, n_components=3, width=8, covariance=covariance)
    other = blank.double().eval()
    if n_members > 1:
        network = Ensemble([network, adjusted(covariance, dimensions)[0]])
        adjust(network, None, SETTINGS, training=(x, y))
        other = Ensemble([other, copy.deepcopy(other)])
    other.load_state_dict(network.state_dict())
    for name, tensor in network.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)
    assert torch.equal(other.nll(x, y), network.nll(x, y))
    network.drop_adjustment()
    other.load_state_dict(network.state_dict())
    assert other.trim is other.limit is other.spread is other.tail is None


def test_they_are_never_rounded():
    settings = Settings(trim=0.01 / 7, limit=7 / 3, spread=1 / 3, tail=0.01 / 3)
    network, *_ = adjusted(settings=settings)
    parts = (network.trim, network.limit, network.spread, network.tail)
    kept = [tensor.clone() for part in parts for tensor in part.buffers()]
    network.half().double()
    for before, now in zip(kept, (now for part in parts for now in part.buffers()), strict=True):
        assert torch.equal(before, now)
    assert float(network.spread.factor) == 1 / 3


def test_a_changed_network_has_none():
    network, x, y = adjusted()
    assert network.with_components([0, 2]).tail is None
    assert network.tail is not None
    train(network, (x, y), Settings(epochs=1, start="keep"), warn=False)
    assert network.trim is network.limit is network.spread is network.tail is None
    network, x, y = adjusted()
    network.prepare(x, y)
    assert network.trim is network.limit is network.spread is network.tail is None


def test_missing_targets_and_weights_of_the_tail():
    generator = Generator().manual_seed(0)
    values = torch.randn(5000, 2, generator=generator, dtype=torch.float64)
    values[:, 1] = 0.6 * values[:, 0] + 0.8 * values[:, 1]
    weights = torch.rand(5000, generator=generator, dtype=torch.float64)
    _, start = surround(values, weights)
    expected = np.cov(values.numpy().T, aweights=weights.numpy(), bias=True)
    assert_allclose(start.covariances[0], expected, atol=1e-5)
    assert_allclose(start.means[0], np.average(values, axis=0, weights=weights), rtol=1e-12)
    values[::2, 0] = values[:, 1][1::2] = math.nan
    _, start = surround(values)
    for column in range(2):
        seen = values[:, column][~values[:, column].isnan()]
        assert start.means[0, column] == pytest.approx(seen.mean().item(), rel=1e-12)
        assert start.covariances[0, column, column] == pytest.approx(
            seen.var(correction=0).item(), rel=1e-12
        )
    # Never seen together, equal, constant, and with an outlier: all have a factor.
    assert start.factors.isfinite().all()
    values = torch.randn(100, 1, generator=generator, dtype=torch.float64)
    values = torch.cat([values, values, torch.ones_like(values)], 1)
    values[0, 0] = 1e9
    _, start = surround(values)
    assert start.factors.isfinite().all()
    assert start.scales[0, 0] < 5
    assert GaussianMixture(torch.zeros(11), start.means, start.factors).mean.isfinite().all()
