"""The head for many targets."""

import pytest
import torch
from torch.testing import assert_close

from condens import LowRankMixture
from condens.errors import ArgumentError, ShapeError
from condens.nn import LowRankHead, MixtureNetwork
from condens.nn.initialise import Start
from condens.training import Settings, train


def factor_model(rows, dimensions=30, rank=2):
    generator = torch.Generator().manual_seed(0)
    loadings = torch.randn(rank, dimensions, generator=generator)
    condition = torch.randn(rows, 2, generator=generator)
    factors = torch.randn(rows, rank, generator=generator)
    noise = 0.3 * torch.randn(rows, dimensions, generator=generator)
    return condition, condition.sum(1, keepdim=True) + factors @ loadings + noise


@pytest.mark.parametrize("rank", [1, 3, 7])
def test_starts_with_the_covariances_of_the_clusters(rank):
    """Exactly, where they are of the kind; r may exceed D."""
    loadings = torch.randn(2, 5, rank, dtype=torch.float64) if rank < 5 else torch.zeros(2, 5, 1)
    identity = torch.eye(5, dtype=torch.float64)
    covariances = loadings.double() @ loadings.double().mT + 0.5 * identity
    head = LowRankHead(3, 5, 2, floor=0.0, rank=rank).double()
    torch.nn.init.zeros_(head.linear.weight)
    head.start_from(Start(torch.zeros(2, 5, dtype=torch.float64), covariances))
    mixture = head(torch.zeros(1, 3, dtype=torch.float64))
    assert_close(mixture.covariance_matrices[0], covariances, atol=1e-2, rtol=0)


@pytest.mark.filterwarnings("ignore::UserWarning")  # eight epochs are few
def test_learns_correlations_that_a_diagonal_one_cannot():
    data, test = factor_model(1000), factor_model(1500)
    held_out = tuple(t[1000:] for t in test)
    losses = {}
    for covariance, rank in (("low_rank", 2), ("diagonal", None)):
        torch.manual_seed(0)
        network = MixtureNetwork.of(
            2, 30, n_components=2, covariance=covariance, rank=rank, width=32
        )
        train(network, data, Settings(epochs=8, learning_rate=3e-3))
        losses[covariance] = float(network.loss(*held_out).detach())
    assert losses["low_rank"] < losses["diagonal"] - 5


def test_a_thousand_targets():
    torch.manual_seed(0)
    network = MixtureNetwork.of(2, 1000, n_components=2, covariance="low_rank", rank=3, width=16)
    condition, target = factor_model(64, dimensions=1000)
    network.prepare(condition, target, from_data=False)
    loss = network.loss(condition, target)
    loss.backward()
    assert all(p.grad.isfinite().all() for p in network.parameters())
    mixture = network(condition[:2])
    assert isinstance(mixture, LowRankMixture)
    assert mixture.sample((3,)).shape == (3, 2, 1000)


def test_there_is_no_bound_for_it():
    network = MixtureNetwork.of(2, 3, n_components=2, covariance="low_rank", rank=1, width=8)
    data = factor_model(50, dimensions=3)
    with pytest.raises(ArgumentError, match=r"bound is 'uniform'.*low_rank"):
        train(network, data, Settings(epochs=1, bound="uniform"))


@pytest.mark.parametrize("rank", [0, -1, 2.0, True])
def test_an_impossible_rank_is_named(rank):
    with pytest.raises(ArgumentError, match=r"^rank is .* Pass the number of columns of V"):
        LowRankHead(4, 3, 2, rank=rank)


def test_rows_that_do_not_match_are_refused():
    head = LowRankHead(4, 3, 2, rank=1)
    for rows, columns in ((5, 3), (1, 3), (6, 2)):
        with pytest.raises(ShapeError, match=r"target has shape .*, but \[6, 3\] was expected"):
            head.nll(torch.zeros(6, 4), torch.zeros(rows, columns))
