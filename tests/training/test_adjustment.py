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
    found = [adjust(*rows_of(seed)) for seed in range(50)]
    logs = np.log([one.spread for one in found])
    errors = np.array([one.standard_error for one in found])
    low, high = stats.chi2.ppf([5e-4, 1 - 5e-4], 50) / 50
    assert low < np.mean((raw_logs(found) / errors) ** 2) < 1.3 * high
    # All are nearer to 0.1 than the rows alone have them.
    assert (np.abs(logs - 0.1) < np.abs(raw_logs(found) - 0.1)).all()
    part = np.mean(1 / (1 + errors**2 / 0.15**2))
    assert abs(logs.mean() - (1 - part) * 0.1) < 4 * errors.mean() / math.sqrt(50)
    assert np.median([one.tail for one in found]) < 0.002


def rows_of(seed):
    network, x, y = network_and_rows(100, seed=seed)
    return network, (x, y)


def test_the_standard_error_is_honest():
    """That of log t over samples, by the raw estimates."""
    found = [
        adjust(network, (x, y))
        for network, x, y in (network_and_rows(150, factor=1.8, seed=seed) for seed in range(40))
    ]
    errors = np.array([one.standard_error for one in found])
    scores = (raw_logs(found) - math.log(1.8)) / errors
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


def test_it_is_the_maximum():
    """Against scipy on the network's own likelihood, with the prior of the tail."""
    network, x, y = network_and_rows(300, factor=1.4)
    y[:9] += 30
    found = adjust(network, (x, y))
    (place,) = raw_logs([found])
    other = copy.deepcopy(network)

    def value(arguments):
        spread, tail = math.exp(arguments[0]), 1e-3 + 0.049 / (1 + math.exp(-arguments[1]))
        adjust(other, None, Settings(spread=spread, tail=tail), training=(x, y))
        prior = 100 * (0.001 * math.log(tail) + 0.999 * math.log1p(-tail))
        return float(other.nll(x, y).sum().detach()) - prior

    best = optimize.minimize(value, [0.3, -1.0], method="Nelder-Mead", tol=1e-9)
    assert best.x[0] == pytest.approx(place, abs=1e-4)


def raw_logs(found):
    """Return every log t of one network before a prior of mean 0.1 and deviation 0.15."""
    drawn = np.log([one.spread for one in found]) - 0.1
    return 0.1 + drawn * (1 + np.array([one.standard_error for one in found]) ** 2 / 0.15**2)


@pytest.mark.parametrize(("n_rows", "between"), [(5, 0.1), (19, 0.1), (20, 0.2), (300, 0.2)])
def test_an_ensemble_is_drawn_to_a_smaller_spread_than_one_network(n_rows, between):
    """The same rows, the same densities, the same error; by the formula."""
    network, x, y = network_and_rows(n_rows)
    ensembles = [Ensemble([copy.deepcopy(network) for _ in range(count)]) for count in (1, 2)]
    for made in ensembles:
        made.target_scaling.load_state_dict(network.target_scaling.state_dict())
        made.condition_scaling.load_state_dict(network.condition_scaling.state_dict())
    one, alone, several = (adjust(made, (x, y)) for made in (network, *ensembles))
    assert alone.spread == pytest.approx(one.spread, rel=1e-9)  # no average of several
    assert several.standard_error == pytest.approx(one.standard_error, rel=1e-9)
    kept = 1 / (1 + one.standard_error**2 / 0.15**2)
    assert math.log(one.spread / several.spread) == pytest.approx(between * (1 - kept), rel=1e-6)


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
    assert raw_logs([mixed]) == pytest.approx(raw_logs([copies]), abs=1e-3)
    assert mixed.standard_error > copies.standard_error


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
    assert adjust(network, (x[1:2], y[1:2])).spread == 1.0


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
