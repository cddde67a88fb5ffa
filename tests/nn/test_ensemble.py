"""Several networks as one mixture."""

import pytest
import torch
from torch.testing import assert_close

from condens import GaussianMixture
from condens.errors import ArgumentError
from condens.nn import Ensemble, MixtureNetwork
from condens.training import Settings, train


def make(members=3):
    torch.manual_seed(0)
    return Ensemble(MixtureNetwork.of(2, 3, n_components=4, width=16) for _ in range(members))


def data(rows=400):
    generator = torch.Generator().manual_seed(0)
    condition = torch.randn(rows, 2, generator=generator)
    return condition, condition.sum(1, keepdim=True) + torch.randn(rows, 3, generator=generator)


def test_predicts_the_average_density_of_its_members():
    network = make().prepare(*data())
    condition, target = data(7)
    average = torch.stack([m(condition).log_prob(target) for m in network.members]).logsumexp(0)
    mixture = network(condition)
    assert isinstance(mixture, GaussianMixture)
    assert mixture.n_components == 12
    assert_close(mixture.log_prob(target), average - torch.tensor(3.0).log())
    assert_close(network.loss(condition, target), -mixture.log_prob(target).mean())


def test_missing_entries():
    network = make().prepare(*data())
    condition, target = data(5)
    target[:, 1] = torch.nan
    marginal = network(condition).marginal([0, 2]).log_prob(target[:, [0, 2]])
    assert_close(network.loss(condition, target), -marginal.mean())


def test_members_train_as_they_would_alone():
    """One optimiser for all: a step of one member does not depend on the others."""
    settings = Settings(epochs=2, clip=1e9, batch_size=100, average=0.0, weight_decay=0.0)
    together, alone = make(2), make(2).members[0]
    generator = torch.Generator().manual_seed(0)
    condition, target = data()
    together.prepare(condition, target, generator=generator)
    alone.load_state_dict(together.members[0].state_dict())
    keep = {**settings.to_dict(), "start": "keep", "patience": 100}
    last = Settings.from_dict(keep)
    train(together, (condition, target), last, validation=(condition[:50], target[:50]))
    train(alone, (condition, target), last, validation=(condition[:50], target[:50]))
    for ours, theirs in zip(together.members[0].parameters(), alone.parameters(), strict=True):
        assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_members_start_apart_and_training_helps():
    network = make()
    before = network.prepare(*data()).loss(*data())
    starts = [m.head.linear.bias.clone() for m in network.members]
    assert not torch.equal(starts[0], starts[1])
    history = train(network, data(), Settings(epochs=10, learning_rate=3e-3))
    assert network.loss(*data()) < before
    assert history.epochs[0].usage.__len__() == 12


def test_members_must_be_alike():
    with pytest.raises(ArgumentError, match=r"members have \[2, 3\] targets"):
        Ensemble([MixtureNetwork.of(1, 2), MixtureNetwork.of(1, 3)])
    with pytest.raises(ArgumentError, match="members have"):
        Ensemble([])


def test_entropies_are_those_of_its_members(monkeypatch):
    """Aleatoric is the mean entropy of the members; rows are worked on in blocks."""
    network = make().prepare(*data()).double()
    with torch.no_grad():
        for number, member in enumerate(network.members):
            member.head.linear.bias += 0.4 * number
    condition = data(8)[0].double()
    monkeypatch.setattr("condens.nn.base.NUMBERS_PER_BLOCK", 200_000)
    generator = torch.Generator().manual_seed(1)
    found = network.entropies(condition, n_samples=2000, generator=generator)
    exact = [member(condition).entropy(n_samples=4000) for member in network.members]
    mean = torch.stack([one.value for one in exact]).mean(0)
    error = torch.stack([one.standard_error for one in exact]).norm(dim=0) / 3
    whole = network(condition).entropy(n_samples=4000)
    for ours, value, theirs in (
        (found.aleatoric, mean, error),
        (found.total, whole.value, whole.standard_error),
    ):
        assert ours.value.shape == (8,)
        allowed = 5 * (ours.standard_error**2 + theirs**2).sqrt() + 1e-9
        assert bool(((ours.value - value).abs() < allowed).all())
    assert bool((found.epistemic.value > 0).all())
    assert_close(found.total.value, found.aleatoric.value + found.epistemic.value)


def test_a_single_network_has_no_epistemic_entropy():
    network = make().members[0].prepare(*data())
    found = network.entropies(data(7)[0], n_samples=50)
    assert bool((found.epistemic.value == 0).all())
    assert torch.equal(found.total.value, found.aleatoric.value)
    with pytest.raises(ArgumentError, match="n_samples is 1, but at least 2"):
        network.entropies(data(7)[0], n_samples=1)
