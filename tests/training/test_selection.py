"""The number of components that validation asks for."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

from condens.data import Rows
from condens.nn import HEADS, MixtureNetwork
from condens.training import Settings, choose_components
from condens.training.selection import _without

SETTINGS = Settings(epochs=12, learning_rate=3e-3, seed=1)


def modes(count, rows=1500, spread=3.0):
    """Targets around `count` centres that move with the condition."""
    generator = torch.Generator().manual_seed(0)
    condition = torch.randn(rows, 1, generator=generator)
    angle = 6.2831853 / count * torch.randint(count, (rows,), generator=generator)
    centre = spread * torch.stack([angle.cos(), angle.sin()], 1)
    noise = 0.4 * torch.randn(rows, 2, generator=generator)
    return condition, centre + 0.5 * condition + noise


@pytest.mark.parametrize("count", [1, 3])
def test_finds_the_number_of_modes(count):
    torch.manual_seed(0)
    network, history, trials = choose_components(
        lambda k: MixtureNetwork.of(1, 2, n_components=k, width=32),
        modes(count),
        SETTINGS,
        max_components=8,
    )
    assert network.head.n_components == count
    assert trials[0].n_components == 8
    assert all(a.n_components > b.n_components for a, b in pairwise(trials))
    accepted = next(trial for trial in trials if trial.n_components == count)
    assert accepted.worse <= accepted.standard_error
    assert history.best_nll == pytest.approx(accepted.nll)


@pytest.mark.parametrize("covariance", HEADS)
def test_a_network_without_some_components_is_their_mixture(covariance):
    network = MixtureNetwork.of(2, 3, n_components=5, covariance=covariance, width=8).double()
    condition = torch.randn(4, 2, dtype=torch.float64)
    whole, part = network(condition), network.with_components([3, 0])(condition)
    for ours, theirs in zip(part.parameters, whole.parameters, strict=True):
        assert_close(ours, theirs[:, [3, 0]])


def test_targets_that_are_all_incomplete():
    """No row is whole: the marginals say which components matter."""
    condition, target = modes(3)
    target[torch.arange(len(target)), torch.randint(2, (len(target),))] = torch.nan
    torch.manual_seed(0)
    network, _, trials = choose_components(
        lambda k: MixtureNetwork.of(1, 2, n_components=k, width=16),
        (condition, target),
        replace(SETTINGS, epochs=6),
        max_components=6,
    )
    assert network.head.n_components >= 2
    assert all(math.isfinite(trial.nll) for trial in trials)


def test_the_component_that_matters_least_goes_first():
    network = MixtureNetwork.of(1, 2, n_components=4, width=8).prepare(*modes(3))
    with torch.no_grad():
        network.head.linear.bias[1] -= 20.0  # a weight of e⁻²⁰
    found = _without(network, Rows.of(*modes(3)))
    gone = network.head.linear.bias[:4][1]
    assert found.head.n_components < 4
    assert not (found.head.linear.bias[: found.head.n_components] == gone).any()


def test_goes_on_from_its_directory_to_the_same_bytes(tmp_path):
    def choose(seed):
        torch.manual_seed(seed)  # other first weights: what is kept takes their place
        return choose_components(
            lambda k: MixtureNetwork.of(1, 2, n_components=k, width=8),
            modes(2, rows=300),
            replace(SETTINGS, epochs=3),
            max_components=4,
            directory=tmp_path,
        )

    first, again = choose(0), choose(1)
    assert first.trials == again.trials
    for ours, theirs in zip(first.network.parameters(), again.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert (tmp_path / "4" / "log.jsonl").exists()
