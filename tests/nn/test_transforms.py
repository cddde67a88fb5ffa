"""Networks over targets that are not any real number."""

import math

import pytest
import torch
from torch.testing import assert_close

from condens import GaussianMixture, TransformedMixture
from condens.data import Rows
from condens.errors import ArgumentError, RunDirectoryError
from condens.nn import Ensemble, MixtureNetwork
from condens.training import Settings, train
from condens.training.batches import Batches
from condens.transforms import Integer, Interval, Positive, Real

TRANSFORMS = (Positive(), Real(), Interval(-1.0, 3.0))


def rows(count=200, transforms=TRANSFORMS):
    generator = torch.Generator().manual_seed(3)
    condition = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    real = condition.sum(1, keepdim=True) + torch.randn(
        count, len(transforms), generator=generator, dtype=torch.float64
    )
    target = [
        transform.from_real(x) for transform, x in zip(transforms, real.unbind(1), strict=True)
    ]
    return condition, torch.stack(target, 1)


def network_of(transforms=TRANSFORMS, **options):
    torch.manual_seed(0)
    return MixtureNetwork.of(
        2, len(transforms), n_components=3, transforms=transforms, **options
    ).double()


def test_both_doors_agree_in_the_targets_own_units():
    condition, target = rows()
    network = network_of().prepare(condition, target)
    target[::3, 1] = torch.nan
    target[::4, 2] = torch.nan
    mixture = network(condition)
    assert isinstance(mixture, TransformedMixture)
    assert mixture.transforms == TRANSFORMS
    weights = torch.rand(200, dtype=torch.float64)
    each = mixture.observed_log_prob(target)
    assert_close(network.loss(condition, target), -each.mean(), rtol=1e-9, atol=1e-9)
    assert_close(network.loss(condition, target, weights), -each @ weights, rtol=1e-9, atol=1e-9)
    assert_close(network.nll(condition, target), -each, rtol=1e-9, atol=1e-9)


def test_the_loss_of_positive_targets_is_that_of_their_logarithms():
    condition, target = rows(transforms=(Positive(),))
    network = network_of((Positive(),)).prepare(condition, target)
    torch.manual_seed(0)
    plain = MixtureNetwork.of(2, 1, n_components=3).double().prepare(condition, target.log())
    jacobian = target.log().mean()
    assert_close(
        network.loss(condition, target),
        plain.loss(condition, target.log()) + jacobian,
        rtol=1e-12,
        atol=1e-12,
    )


@pytest.mark.parametrize("transform", [Integer(), Integer(lower=0)], ids=str)
def test_whole_numbers_have_probabilities(transform):
    condition, target = rows(transforms=(transform,))
    network = network_of((transform,)).prepare(condition, target)
    mixture = network(condition)
    assert_close(network.loss(condition, target), -mixture.log_prob(target).mean())
    assert_close(network.nll(condition, target), -mixture.log_prob(target))
    # What training minimises, the density anywhere in the cell, is an upper bound of it.
    batches = Batches(network, Rows.of(condition, target))
    anywhere = network.standard_loss(*batches.rows) + batches.offsets[0]
    bound = float((anywhere - network.loss(condition, target)).detach())
    assert -0.01 < bound < 0.15


def test_whole_numbers_lie_elsewhere_in_their_cells_in_every_epoch():
    condition, target = rows(transforms=(Integer(lower=0),))
    network = network_of((Integer(lower=0),)).prepare(condition, target)
    batches = Batches(network, Rows.of(condition, target))

    def cells(epoch, start=0):
        drawn = [batch.rows.target[0] for batch in batches.shuffled(0, epoch, start, 64)]
        real = torch.cat(drawn) * network.target_scaling.scale + network.target_scaling.location
        return real.exp()

    first, again, other = cells(0), cells(0), cells(1)
    assert torch.equal(first, again)
    assert torch.equal(first[64:], cells(0, 1))
    assert_close(first.floor().sort(0).values, target.sort(0).values)
    assert not torch.equal(first.sort(0).values, other.sort(0).values)
    inside = first - first.floor()
    assert 0.4 < float(inside.mean()) < 0.6


@pytest.mark.parametrize(
    "transforms", [TRANSFORMS, (Integer(lower=0), Real())], ids=["continuous", "whole"]
)
def test_resumed_training_gives_the_same_bytes(tmp_path, transforms):
    condition, target = rows(transforms=transforms)
    settings = Settings(epochs=4, batch_size=32)
    straight = network_of(transforms)
    train(straight, (condition, target), settings)

    class KilledError(Exception):
        pass

    def kill(epoch):
        if epoch.epoch == 1:
            raise KilledError

    with pytest.raises(KilledError):
        train(
            network_of(transforms),
            (condition, target),
            settings,
            directory=tmp_path,
            checkpoint_seconds=0,
            callbacks=kill,
        )
    resumed = network_of(transforms)
    train(resumed, (condition, target), settings, directory=tmp_path)
    for name, tensor in straight.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name])
    with pytest.raises(RunDirectoryError):
        train(
            network_of((Real(),) * len(transforms)),
            (condition, target),
            settings,
            directory=tmp_path,
        )


@pytest.mark.slow
def test_training_learns_counts():
    generator = torch.Generator().manual_seed(0)
    condition = torch.rand(4000, 1, generator=generator) * 2
    target = torch.poisson(condition.exp(), generator=generator)
    network = MixtureNetwork.of(1, 1, n_components=5, transforms=[Integer(lower=0)])
    train(network, (condition, target), Settings(epochs=25))
    with torch.no_grad():
        at = network(torch.tensor([[0.5], [1.5]], dtype=torch.float64))
    counts = torch.arange(30.0, dtype=torch.float64)
    found = at.log_prob(counts[:, None, None]).exp()
    rate = torch.tensor([0.5, 1.5], dtype=torch.float64).exp()
    truth = torch.distributions.Poisson(rate).log_prob(counts[:, None]).exp()
    assert float((found - truth).abs().sum(0).max()) < 0.15
    assert_close(found.sum(0), torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-3)


def test_members_have_the_same_transforms():
    condition, target = rows()
    members = [network_of(), network_of()]
    ensemble = Ensemble(members).prepare(condition, target)
    assert ensemble(condition).transforms == TRANSFORMS
    assert ensemble(condition).n_components == 6
    with pytest.raises(ArgumentError, match=r"members have transforms .*the same"):
        Ensemble([network_of(), network_of((Real(), Real(), Real()))])


def test_named_errors():
    condition, target = rows()
    target[5, 0] = -1.0
    with pytest.raises(ArgumentError, match=r"target 0 has -1 at index \[5\].*above 0"):
        network_of().prepare(condition, target)
    named = network_of(names=["price", "x", "y"])
    with pytest.raises(ArgumentError, match=r"target price has -1"):
        named.loss(condition, target)
    with pytest.raises(ArgumentError, match=r"head is low_rank.*leave transforms out"):
        MixtureNetwork.of(2, 3, covariance="low_rank", transforms=TRANSFORMS)
    with pytest.raises(ArgumentError, match=r"transforms is .*but 3 "):
        MixtureNetwork.of(2, 3, transforms=TRANSFORMS[:2])


def test_observed_log_prob_is_that_of_the_marginals():
    torch.manual_seed(0)
    mixture = GaussianMixture(
        torch.randn(4, 2), torch.randn(4, 2, 3), torch.randn(4, 2, 6), names=["a", "b", "c"]
    ).to(torch.float64)
    value = torch.randn(5, 4, 3, dtype=torch.float64)
    value[torch.rand(value.shape) < 0.4] = math.nan
    value[0, 0] = math.nan
    found = mixture.observed_log_prob(value)
    for i in range(5):
        for j in range(4):
            seen = [d for d in range(3) if not value[i, j, d].isnan()]
            expected = mixture[j].marginal(seen).log_prob(value[i, j, seen]) if seen else 0.0
            assert_close(float(found[i, j]), float(expected), rtol=1e-12, atol=1e-12)
    assert float(mixture[0].observed_log_prob([math.nan] * 3)) == 0
