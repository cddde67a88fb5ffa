"""Datasets and loaders of torch, map-style and iterable."""

import math

import numpy as np
import pytest
import torch
from helpers import processes, runs
from torch import nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
)

from condens.errors import ArgumentError, NotFiniteError, ShapeError
from condens.nn import Ensemble, FullHead, MixtureNetwork
from condens.training import train
from condens.training.distributed import Group
from condens.training.loaders import LoadedRows

X, Y = runs.problem(500)["data"]


class Images(torch.utils.data.Dataset):
    """Images whose brightness is the target."""

    def __len__(self):
        return 300

    def __getitem__(self, number):
        generator = torch.Generator().manual_seed(number)
        image = torch.randn(1, 6, 6, generator=generator)
        return image, image.mean().reshape(1) + 0.01 * torch.randn(1, generator=generator)


class Endless(IterableDataset):
    def __init__(self, rows=(X, Y)):
        self.rows = rows

    def __iter__(self):
        return iter(zip(*self.rows, strict=True))


def images_network():
    backbone = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten())
    return MixtureNetwork(backbone, FullHead(4 * 16, 1, 2))


def dataset_task(members):
    """Train on a dataset, in as many processes as there are."""
    made = [runs.network(seed) for seed in range(members)]
    network = made[0] if members == 1 else Ensemble(made)
    history = train(network, TensorDataset(X, Y), runs.settings())
    return processes.outcome(network, history)


def iterable_task():
    network = runs.network()
    history = train(network, DataLoader(Endless(), batch_size=50), runs.settings())
    return processes.outcome(network, history)


@pytest.mark.slow
def test_images_are_learned_from_a_dataset_with_workers(tmp_path):
    network = images_network()
    loader = DataLoader(Images(), batch_size=32, num_workers=1, shuffle=True)
    settings = runs.settings(
        epochs=8, learning_rate=0.01, batch_size="rule", condition_noise=0.0, target_noise=0.0
    )
    history = train(network, loader, settings)
    assert history.rows == 270
    assert history.validation_rows == 30
    assert history.epochs[0].steps == 9
    assert history.best_nll < history.epochs[0].validation_nll - 0.3


@pytest.mark.slow
@pytest.mark.parametrize("members", [1, 2])
def test_a_dataset_is_learned_as_rows_in_memory_are(members):
    settings = runs.settings(epochs=20, condition_noise=0.0, target_noise=0.0)
    losses = []
    for data in ((X, Y), TensorDataset(X, Y)):
        made = [runs.network(seed, dropout=0.0) for seed in range(members)]
        network = made[0] if members == 1 else Ensemble(made)
        history = train(network, data, settings, warn=False)
        losses.append(network.loss(X, Y).item())
    assert history.validation_rows == 50
    assert losses[0] == pytest.approx(losses[1], abs=0.15)


def test_every_row_is_loaded_once_and_processes_share_a_batch():
    made = LoadedRows(TensorDataset(X, Y), None, runs.settings(), 1)
    network = runs.network()
    made.prepare(network, runs.settings())
    batches, held = made.batches(network)
    whole = list(batches.shuffled(5, 1, 0, 64))
    seen = torch.cat([batch.rows.condition[0] for batch in whole])
    assert len(seen) == 450
    assert len(held) == 50
    every = torch.cat([seen, held.rows.condition])
    expected = network.standardise_condition(X)
    assert torch.equal(every.sort(0).values, expected.sort(0).values)
    parts = [list(batches.shuffled(5, 1, 2, 64, Group(rank, 3))) for rank in range(3)]
    for number, batch in enumerate(whole[2:]):
        joined = torch.cat([part[number].rows.condition for part in parts], 1)
        assert torch.equal(joined, batch.rows.condition)
        assert [part[number].total for part in parts] == [batch.total] * 3
        assert parts[1][number].first == batch.first + len(parts[0][number])


@pytest.mark.parametrize(
    "task",
    [
        pytest.param((dataset_task, 1), marks=pytest.mark.slow, id="one"),
        pytest.param((dataset_task, 2), id="members"),
        pytest.param((iterable_task,), marks=pytest.mark.slow, id="iterable"),
    ],
)
def test_two_processes_give_the_bits_of_one(tmp_path, task):
    (one,), _ = processes.together(tmp_path / "one", 1, *task)
    two, _ = processes.together(tmp_path / "two", 2, *task)
    assert two[0] == two[1]
    assert two[0]["weights"] == one["weights"]
    np.testing.assert_allclose(two[0]["curve"], one["curve"], rtol=1e-6)


class TestIterable:
    def test_is_counted_and_keeps_its_order(self):
        made = LoadedRows(DataLoader(Endless(), batch_size=50), None, runs.settings(), 1)
        network = runs.network()
        made.prepare(network, runs.settings())
        batches, held = made.batches(network)
        assert held is None
        assert len(batches) == 500
        seen = torch.cat([b.rows.condition[0] for b in batches.shuffled(0, 0, 0, 50)])
        assert torch.equal(seen, network.standardise_condition(X))
        later = list(batches.shuffled(0, 0, 7, 50))
        assert len(later) == 3
        assert later[0].first == 350

    def test_validates_on_rows_that_are_passed_or_on_none(self):
        loader = DataLoader(Endless(), batch_size=50)
        history = train(runs.network(), loader, runs.settings(), warn=False)
        assert history.validation_rows == 0
        assert history.best_nll == min(epoch.train_nll for epoch in history.epochs)
        history = train(
            runs.network(), loader, runs.settings(), validation=(X[:40], Y[:40]), warn=False
        )
        assert history.validation_rows == 40

    def test_a_sampler_of_its_own_is_kept(self):
        data = TensorDataset(X, Y)
        sampler = WeightedRandomSampler(
            torch.ones(500), 200, generator=torch.Generator().manual_seed(0)
        )
        made = LoadedRows(DataLoader(data, 50, sampler=sampler), None, runs.settings(), 1)
        assert not made.mapped
        assert made.n_rows == 200

    def test_one_that_ends_for_good_is_refused(self):
        class Once(IterableDataset):
            def __iter__(self):
                return iter(())

        with pytest.raises(ShapeError, match="data yields 0 rows"):
            train(runs.network(), Once(), runs.settings())


def test_a_run_goes_on_in_the_middle_of_an_epoch(tmp_path):
    from condens.training import loop

    def fit(directory=None):
        network = runs.network()
        history = train(
            network,
            TensorDataset(X, Y),
            runs.settings(),
            directory=directory,
            checkpoint_seconds=0.0,
        )
        return processes.outcome(network, history)

    step, count = loop._Loop._step, []

    def dies(self, batch):
        count.append(1)
        if len(count) == 12:
            raise InterruptedError
        step(self, batch)

    loop._Loop._step = dies
    try:
        with pytest.raises(InterruptedError):
            fit(tmp_path)
    finally:
        loop._Loop._step = step
    assert fit(tmp_path) == fit()


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (TensorDataset(X), ArgumentError, "data yields a list of 1, but "),
        (TensorDataset(X[:0], Y[:0]), ShapeError, "data has no rows"),
        (TensorDataset(X[:, :1], Y), ShapeError, "condition has shape"),
        (TensorDataset(X / 0, Y), NotFiniteError, "condition is"),
    ],
)
def test_what_cannot_be_trained_on_is_named(data, error, message):
    with pytest.raises(error, match=message):
        train(runs.network(), data, runs.settings())


def test_weights_of_items_count():
    weights = torch.zeros(500)
    weights[:250] = 1.0
    far = Y.clone()
    far[250:] += 100
    network = runs.network(dropout=0.0)
    train(network, TensorDataset(X, far, weights), runs.settings(epochs=5), warn=False)
    assert network.loss(X[:250], far[:250]).item() < 8


class Unsized(torch.utils.data.Dataset):
    def __getitem__(self, number):
        return X[number], Y[number]


class Once(IterableDataset):
    def __init__(self):
        self.left = iter(list(zip(X, Y, strict=True)))

    def __iter__(self):
        return self.left


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (Unsized(), ArgumentError, "without a length"),
        (Once(), ShapeError, "yields no rows in epoch"),
        (TensorDataset(X, Y, torch.zeros(len(X))), ArgumentError, "no row that counts"),
        (TensorDataset(X, Y * torch.nan), ArgumentError, "no row that counts"),
    ],
)
def test_data_that_nothing_is_learned_from_are_refused(data, error, message):
    with pytest.raises(error, match=message):
        train(runs.network(), data, runs.settings())


@pytest.mark.parametrize("members", [1, 2])
def test_weights_count_by_their_ratio_and_rows_without_a_target_not_at_all(members):
    """The loss is a mean over the rows that count, whatever the unit of the weights."""

    def curve(*tensors):
        made = [runs.network(seed) for seed in range(members)]
        network = made[0] if members == 1 else Ensemble(made)
        settings = runs.settings(epochs=1, learning_rate=1e-300, clip=math.inf, batch_size=50)
        history = train(network, TensorDataset(*tensors), settings, warn=False)
        return history.epochs[0].train_nll

    plain, heavy = curve(X, Y), curve(X, Y, torch.full((500,), 7.0))
    assert heavy == pytest.approx(plain, rel=1e-5)
    gaps = Y.clone()
    gaps[::2] = torch.nan
    # Of other rows, whose mean differs; it would be half if the others counted.
    assert curve(X, gaps) == pytest.approx(plain, rel=0.2)
