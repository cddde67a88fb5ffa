"""Spread and tail, set on held-out rows."""

import copy
import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy import optimize, stats
from torch import Generator

from condens.errors import ArgumentError
from condens.nn import HEADS, Ensemble, MixtureNetwork
from condens.training import Adjustment, History, Settings, adjust, train
from condens.transforms import Integer, Positive


def network_and_rows(n_rows, *, factor=1.0, dimensions=2, covariance="full", seed=0):
    """Return a network and rows of its own density, about the means widened by a factor."""
    generator = Generator().manual_seed(seed)
    network = MixtureNetwork.of(
        1, dimensions, n_components=2, covariance=covariance, width=8, generator=generator
    ).double()
    y = torch.randn(200, dimensions, generator=generator, dtype=torch.float64)
    x = torch.randn(200, 1, generator=generator, dtype=torch.float64)
    network.prepare(x, y @ torch.ones(dimensions, dimensions).triu().double())
    x = torch.randn(n_rows, 1, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        density = network(x)
    wide = density.parameters.scaled(torch.full((dimensions,), factor, dtype=torch.float64))
    y = type(density)(*wide).sample(generator=generator)
    return network.eval(), x, y


@pytest.mark.parametrize("covariance", HEADS)
@pytest.mark.parametrize("factor", [0.5, 1.6])
def test_a_known_spread_is_found(covariance, factor):
    network, x, y = network_and_rows(2000, factor=factor, covariance=covariance)
    found = adjust(network, (x, y))
    # Within four standard errors, at most 0.02: an error of one in 16,000 a case.
    assert abs(math.log(found.spread / factor)) < 4 * found.standard_error
    assert found.standard_error < 0.02
    assert found.nll_after < found.nll_before
    assert found.nll_after == pytest.approx(network.nll(x, y).mean().item(), rel=1e-9)
    network.drop_adjustment()
    assert found.nll_before == pytest.approx(network.nll(x, y).mean().item(), rel=1e-9)


@pytest.mark.slow
def test_a_right_spread_stays():
    """It is drawn towards what is usual for a hundred rows, -0.02, and errs less for it."""
    found = [adjust(*rows_of(seed)) for seed in range(50)]
    logs = np.log([one.spread for one in found])
    raw = np.array([likeliest(*rows_of(seed)) for seed in range(50)])
    assert np.square(logs).mean() < 0.7 * np.square(raw).mean()
    assert abs(logs.mean()) < 0.03
    assert np.median([one.tail for one in found]) < 0.002


def rows_of(seed):
    network, x, y = network_and_rows(100, seed=seed)
    return network, (x, y)


def likeliest(network, rows, tail=0.001):
    """Return the log t of the largest likelihood, by scipy."""
    other = copy.deepcopy(network)

    def value(place):
        adjust(other, None, Settings(spread=math.exp(place), tail=tail), training=rows)
        return float(other.nll(*rows).sum().detach())

    return optimize.minimize_scalar(value, bounds=(-1.3, 1.3), options={"xatol": 1e-6}).x


def test_the_standard_error_is_honest():
    """That of log t over samples, without what is usual."""
    samples = [network_and_rows(150, factor=1.8, seed=seed) for seed in range(40)]
    errors = [adjust(network, (x, y)).standard_error for network, x, y in samples]
    raw = [likeliest(network, (x, y)) for network, x, y in samples]
    scores = (np.array(raw) - math.log(1.8)) / errors
    low, high = stats.chi2.ppf([5e-4, 1 - 5e-4], 39) / 39
    assert low < scores.var(ddof=1) < 1.3 * high
    assert abs(scores.mean()) < 4 / math.sqrt(40) + 0.1  # of 150 rows a maximum is biased a little


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "least"), [(1.0, -0.02), (1.3, 0.05)])
def test_few_rows_lose_little_and_gain_where_there_is_something_to_gain(factor, least):
    """With 27 rows, on average over samples."""
    losses = []
    for seed in range(40):
        network, x, y = network_and_rows(2027, dimensions=3, factor=factor, seed=seed)
        found = adjust(network, (x[:27], y[:27]))
        after = network.nll(x[27:], y[27:]).mean().item()
        network.drop_adjustment()
        losses.append(after - network.nll(x[27:], y[27:]).mean().item())
        assert found.rows == 27
    assert np.mean(losses) < -least
    assert max(losses) < 0.15


def log_densities(network, x, y, places):
    """Return the rows' log densities under the body at each log t, and under the tail."""
    other = copy.deepcopy(network)

    def log_prob(place, tail):
        settings = Settings(spread=math.exp(place), tail=tail, limit=math.inf)
        adjust(other, None, settings, training=(x, y))
        return -other.nll(x, y).detach().numpy()

    body = np.stack([log_prob(place, 0.0) for place in places])
    half = log_prob(places[0], 0.5)
    return body, half + np.log(2 - np.exp(body[0] - half))


def posterior_mean(network, x, y, usual):
    """Return the mean of log t and its standard error, by sums over the network's own density."""
    places, step = np.linspace(-1.386, 1.386, 331, retstep=True)
    body, wide = log_densities(network, x, y, places)

    def both(tail, own):
        return np.logaddexp(np.log1p(-tail) + own, np.log(tail) + wide)

    def lost(tail, own):
        prior = 100 * (0.001 * math.log(tail) + 0.999 * math.log1p(-tail))
        return -both(tail, own).sum() - prior

    within = {"bounds": (1e-3, 0.05), "options": {"xatol": 1e-6}}
    tails = [optimize.minimize_scalar(lost, args=(own,), **within).x for own in body]
    totals = np.array([both(*pair).sum() for pair in zip(tails, body, strict=True)])
    top = totals.argmax()
    below, here, above = both(tails[top], body[top - 1 : top + 2])
    curvature = -(below - 2 * here + above).sum() / step**2
    variation = np.square((above - below) / (2 * step)).sum()
    power = (1 - 1 / len(x)) * min(1.0, curvature / variation)
    chances = np.exp(power * (totals - totals.max())) / (1 + ((places - usual) / 0.05) ** 2)
    return (chances @ places) / chances.sum(), (power * curvature) ** -0.5


@pytest.mark.parametrize(("n_rows", "factor"), [(8, 1.0), (60, 1.4), (60, 0.5), (400, 0.9)])
def test_it_is_the_mean_under_the_likelihood_and_what_is_usual(n_rows, factor):
    network, x, y = network_and_rows(n_rows, factor=factor)
    y[: n_rows // 30] += 30
    found = adjust(network, (x, y))
    mean, error = posterior_mean(network, x, y, -0.04 + min(2 / n_rows, 0.2))
    assert math.log(found.spread) == pytest.approx(mean, abs=2e-3)
    assert found.standard_error == pytest.approx(error, rel=0.03)


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
def test_members_that_differ_ask_for_less_spread(scale):
    """By as much as they widen the average, 0.3 at most, and by 0.04."""
    network, x, y = network_and_rows(20, dimensions=1)
    members = [copy.deepcopy(network) for _ in range(3)]
    generator = Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in (p for member in members for p in member.head.parameters()):
            parameter += scale * 0.3 * torch.randn(parameter.shape, generator=generator)
    ensemble = Ensemble(members).double()
    for scaling in ("target_scaling", "condition_scaling"):
        state = getattr(network, scaling).state_dict()
        getattr(ensemble, scaling).load_state_dict(state)
    with torch.no_grad():
        alone = torch.stack([member(x).variance.log() / 2 for member in members]).mean(0)
        widening = (ensemble(x).variance.log() / 2 - alone).clamp(max=0.3).mean().item()
    least, most = {0.0: (-1e-9, 1e-9), 1.0: (0.02, 0.2), 30.0: (0.29, 0.3)}[scale]
    assert least <= widening <= most
    found = adjust(ensemble, (x, y), Settings(limit=math.inf))
    mean, error = posterior_mean(ensemble, x, y, -0.04 + 0.1 - 0.04 - widening)
    assert math.log(found.spread) == pytest.approx(mean, abs=2e-3)
    assert found.standard_error == pytest.approx(error, rel=0.03)


def test_outliers_ask_for_a_tail_and_not_for_wider_components():
    network, x, y = network_and_rows(1000)
    plain = adjust(network, (x, y))
    # Predictions that are much sharper than the targets of all rows: otherwise the tail is
    # another body.
    calm = (x, 20 * y)
    wild = y.clone()
    wild[:30] += 100
    found = adjust(network, (x, wild), training=calm)
    assert plain.tail < 0.003
    # Thirty surprises and 0.1 of the prior, among 1100.
    assert found.tail == pytest.approx(30.1 / 1100, rel=0.05)
    assert abs(math.log(found.spread)) < 0.05
    assert float(network.tail.weight) == found.tail
    without = adjust(network, (x, wild), Settings(tail=0), training=calm)
    assert without.spread > 2.5
    assert network.tail is None
    wild[:200] += 100
    assert adjust(network, (x, wild), training=calm).tail == pytest.approx(0.05, rel=1e-6)
    # One in ten rows is no reason for a tail of a tenth.
    wild = torch.cat([y[:9], y[:1] + 100])
    few = adjust(network, (x[:10], wild), Settings(spread=1.0), training=calm)
    assert few.tail == pytest.approx(1.1 / 110, rel=0.05)


@pytest.mark.parametrize("covariance", HEADS)
def test_missing_targets_count_by_their_marginal(covariance):
    network, x, y = network_and_rows(3000, factor=1.5, dimensions=3, covariance=covariance)
    gaps = y.masked_fill(torch.rand(y.shape, generator=Generator().manual_seed(1)) < 0.3, math.nan)
    found = adjust(network, (x, gaps))
    assert abs(math.log(found.spread / 1.5)) < 4 * found.standard_error
    seen = ~gaps.isnan().all(1)
    assert found.rows == int(seen.sum())
    assert found.nll_after == pytest.approx(network.nll(x[seen], gaps[seen]).mean().item(), 1e-9)


def test_weights_are_those_of_rows():
    network, x, y = network_and_rows(200, factor=1.5)
    other = network_and_rows(200, factor=0.6)[2]
    weights = torch.cat([torch.ones(200), torch.zeros(200)])
    both = adjust(network, (torch.cat([x, x]), torch.cat([y, other]), weights))
    alone = adjust(network, (x, y))
    assert both == alone
    heavy = torch.ones(400, dtype=torch.float64)
    heavy[:200] = 3
    mixed = adjust(network, (torch.cat([x, x]), torch.cat([y, other]), heavy))
    # As if the rows were there three times, but with the error of those that are there.
    copies = adjust(
        network, (torch.cat([x, x, x, x]), torch.cat([y, y, y, other])), Settings(tail=0.001)
    )
    assert mixed.spread == pytest.approx(copies.spread, rel=0.01)
    assert mixed.standard_error > copies.standard_error


@pytest.mark.parametrize("factor", [0.6, 1.5])
def test_rows_of_little_weight_are_little(factor):
    network, x, y = network_and_rows(600, factor=1.2)
    other = network_and_rows(600, factor=factor)[2]
    weights = torch.ones(600, dtype=torch.float64)
    weights[5:] = 1e-9
    few = adjust(network, (x[:5], y[:5]), training=(x, y))
    both = adjust(network, (x, torch.cat([y[:5], other[5:]]), weights), training=(x, y))
    assert both.spread == pytest.approx(few.spread, rel=1e-5)
    assert both.standard_error == pytest.approx(few.standard_error, rel=1e-5)


def test_an_error_leaves_all_as_it_was():
    network, x, y = network_and_rows(30, factor=1.5)
    adjust(network, (x, y))
    parts = network.trim, network.limit, network.spread, network.tail
    network.train()

    def fail(*_):
        raise RuntimeError("no")

    handle = network.backbone.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="no"):
        adjust(network, (x, y))
    handle.remove()
    assert network.training
    assert network.backbone.training
    assert (network.trim, network.limit, network.spread, network.tail) == parts


def test_nothing_else_changes_and_nothing_is_random():
    network, x, y = network_and_rows(200, factor=1.3)
    network.train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    state = torch.get_rng_state()
    one = adjust(network, (x, y))
    assert network.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(network.state_dict()[name], t) for name, t in before.items())
    assert adjust(network, (x, y)) == one
    assert adjust(network.float(), (x, y)).spread == pytest.approx(one.spread, rel=1e-5)


@pytest.mark.parametrize("transform", [Positive(), Integer(0)])
def test_constrained_targets(transform):
    generator = Generator().manual_seed(0)
    x = torch.randn(1500, 1, generator=generator, dtype=torch.float64)
    noise = torch.randn(1500, 1, generator=generator, dtype=torch.float64)
    y = transform.from_real(3 + x + 0.3 * noise)
    network = MixtureNetwork.of(1, 1, n_components=1, width=16, transforms=[transform])
    history = train(network, (x[:700], y[:700]), Settings(epochs=60), adjustment=(x[700:], y[700:]))
    assert history.adjustment.rows == 800
    # Where the network is too sure or not sure enough, its rows are better off with t.
    assert history.adjustment.nll_after <= history.adjustment.nll_before + 0.002
    wide = adjust(network, (x[700:], y[700:]), Settings(tail=0.01, spread=2.0))
    assert wide.nll_after > history.adjustment.nll_after


def test_train_sets_them_if_asked():
    network, x, y = network_and_rows(300)
    settings = Settings(epochs=2)
    assert train(network, (x, y), settings).adjustment is None
    assert network.tail is None
    history = train(network, (x[:200], y[:200]), settings, adjustment=(x[200:], y[200:]))
    assert history.adjustment == adjust(network, (x[200:], y[200:]), training=(x[:200], y[:200]))
    assert network.tail is not None
    assert History.from_dict(history.to_dict()) == history
    ensemble = Ensemble([network, copy.deepcopy(network)])
    train(ensemble, (x[:200], y[:200]), settings, adjustment=(x[200:], y[200:]))
    assert ensemble.tail is not None
    assert all(member.tail is None for member in ensemble.members)


def test_a_run_that_goes_on_ends_the_same(tmp_path):
    network, x, y = network_and_rows(200)
    ends = []
    for _ in range(2):
        one = copy.deepcopy(network)
        history = train(
            one, (x, y), Settings(epochs=2), adjustment=(x, y), directory=tmp_path / "run"
        )
        ends.append((history.adjustment, one.state_dict()))
    assert ends[0][0] == ends[1][0]
    for name, tensor in ends[0][1].items():
        assert torch.equal(tensor, ends[1][1][name])


def test_rows_that_no_component_can_hold():
    network, x, y = network_and_rows(100)
    y[0] = 1e200
    for settings in (Settings(), Settings(tail=0)):
        found = adjust(network, (x, y), settings)
        assert math.isfinite(found.spread)
        assert 0.25 <= found.spread <= 4


def test_one_row_tells_nothing():
    network, x, y = network_and_rows(2)
    for value in (y[:1], network(x[:1]).means[:, 0].detach(), y[:1] + 100):
        found = adjust(network, (x[:1], value), training=(x, y))
        assert math.log(found.spread) == pytest.approx(0.16, abs=0.01)  # usual, within the bounds
        assert found.standard_error == math.inf


@pytest.mark.parametrize("n_rows", [10, 100, 1000])
@pytest.mark.parametrize("factor", [0.1, 1e-2, 1e-4, 0.0, 30.0])
def test_a_spread_beyond_the_bounds_is_the_bound(factor, n_rows):
    network = MixtureNetwork.of(1, 3, n_components=1, width=8).double().eval()
    generator = Generator().manual_seed(0)
    x, noise = (torch.randn(n_rows, d, generator=generator).double() for d in (1, 3))
    network.prepare(x, noise)
    density = network(x)
    y = (density.mean + factor * density.stddev * noise).detach()
    found = adjust(network, (x, y), Settings(tail=0))
    assert found.spread == pytest.approx(4.0 if factor > 1 else 0.25, rel=0.15)
    assert found.nll_after < found.nll_before - (1 if factor > 1 else 2)


@pytest.mark.parametrize("factor", [0.3, 3.0])
def test_many_rows_that_say_something_unusual_are_believed(factor):
    network, x, y = network_and_rows(30_000, factor=factor)
    found = adjust(network, (x, y), Settings(tail=0.001))
    apart = math.log(found.spread) - likeliest(network, (x, y))
    assert abs(apart) < 0.15 * found.standard_error


def test_without_rows_the_settings_decide():
    network, x, y = network_and_rows(10)
    found = adjust(network, None, training=(x, y))
    assert (found.spread, found.tail, found.rows) == (1.0, 0.001, 0)
    assert network.spread is None
    assert_allclose(float(network.tail.weight), 0.001)
    with pytest.raises(ArgumentError, match="training is None, as rows are"):
        adjust(network, None)
    with pytest.raises(ArgumentError, match=r'spread is -1.*above 0, or "fit"'):
        Settings(spread=-1)
    with pytest.raises(ArgumentError, match=r"tail is .*auto"):
        Settings(tail="auto")


def test_records():
    one = Adjustment(1.1, math.nan, 0.001, 1.0, 0.9, 3)
    assert History.from_dict(History(adjustment=one).to_dict()).adjustment.spread == 1.1
    with pytest.raises(ArgumentError, match="adjustment has"):
        History.from_dict({**History().to_dict(), "adjustment": {"spread": 1.0}})
