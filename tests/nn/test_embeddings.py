"""Piecewise-linear columns."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import condens
from condens.errors import ArgumentError
from condens.nn import Ensemble, MixtureNetwork, PiecewiseLinear
from condens.training import Settings, train


def rows(n=400, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, dtype=torch.float64, generator=generator)
    x[:, 1] = (x[:, 1] > 0).double()  # a flag
    x[:, 2] = x[:, 2].clamp(min=0)  # half of it is one value
    return x


def test_it_is_numpy_between_the_edges():
    x, bins = rows(), 8
    embedding = PiecewiseLinear(3, bins).double().fit(x)
    found = embedding(x)
    assert_close(found[:, :3], x, rtol=0, atol=0)
    edges = np.unique(np.quantile(x[:, 0].numpy(), np.linspace(0, 1, bins + 1)))
    for j in range(bins):
        expected = np.interp(x[:, 0].numpy(), edges[j : j + 2], [-0.5, 0.5])
        assert_close(found[:, 3 + j], torch.from_numpy(expected), rtol=0, atol=1e-12)


def test_a_linear_layer_after_it_is_every_piecewise_linear_function():
    x = rows()[:, :1]
    embedding = PiecewiseLinear(1, 6).double().fit(x)
    edges = torch.quantile(x[:, 0], torch.linspace(0, 1, 7, dtype=x.dtype))
    heights = torch.tensor([0.0, 2.0, -1.0, 5.0, 5.0, 0.0, 1.0], dtype=x.dtype)
    wanted = np.interp(x[:, 0].numpy(), edges.numpy(), heights.numpy())
    design = torch.cat([embedding(x), torch.ones_like(x)], 1)
    solved = torch.linalg.lstsq(design, torch.from_numpy(wanted)[:, None], driver="gelsd").solution
    assert_close(design @ solved, torch.from_numpy(wanted)[:, None], rtol=0, atol=1e-9)


def test_equal_quantiles_are_merged_and_flags_have_no_bins():
    embedding = PiecewiseLinear(3, 8).double().fit(rows())
    found = embedding(rows(seed=1))[:, 3:].unflatten(1, (3, 8))
    assert (found[:, 1] == 0).all()
    live = (embedding.slope[2] > 0).sum()
    assert 2 <= live <= 5
    assert (found[:, 2, live:] == 0).all()
    assert embedding.slope.isfinite().all()


@pytest.mark.parametrize("value", [1e300, -1e300, 1e9, -1e9])
def test_far_away_nothing_grows(value):
    x = rows()
    embedding = PiecewiseLinear(3, 8).double().fit(x)
    far = torch.full((1, 3), value, dtype=x.dtype)
    end = (x.amax(0) if value > 0 else x.amin(0))[None]
    assert_close(embedding(far)[:, 3:], embedding(end)[:, 3:], rtol=0, atol=1e-12)


def network(categories=(), members=1):
    made = [
        MixtureNetwork.of(
            3,
            1,
            n_components=2,
            width=16,
            bins=8,
            categories=categories,
            generator=torch.Generator().manual_seed(m),
        )
        for m in range(members)
    ]
    return made[0] if members == 1 else Ensemble(made)


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("categories", [(), (4,)])
def test_the_edges_are_those_of_the_training_rows_alone(categories, members, tmp_path):
    x = rows()
    if categories:
        x[:, 2] = torch.arange(len(x)) % 4
    y = (x[:, :1] > 0.2).double() + 0.05 * torch.randn(len(x), 1, dtype=x.dtype)
    net, validation = network(categories, members), (1e3 * x[:50], y[:50])
    if categories:
        validation[0][:, 2] = x[:50, 2]
    train(net, (x[50:], y[50:]), Settings(epochs=2, batch_size=64), validation=validation)
    read = net.standardise_condition(x[50:])
    edges = torch.quantile(read[:, 0].double(), torch.linspace(0, 1, 9, dtype=torch.float64))
    found = [module for module in net.modules() if isinstance(module, PiecewiseLinear)]
    assert len(found) == members
    for module in found:
        assert_close(module.edge[0], edges[:-1].float(), rtol=1e-6, atol=1e-6)
    condens.persistence.save(net, tmp_path / "net")
    again = condens.load(tmp_path / "net")
    assert torch.equal(again(x[:9]).means, net(x[:9]).means)


@pytest.mark.slow
def test_a_step_is_learned_sharply():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2000, 1, generator=generator)
    y = (x > 0.37).float() + 0.02 * torch.randn(2000, 1, generator=generator)
    scores = {}
    for bins in (0, 24):
        net = MixtureNetwork.of(
            1, 1, n_components=2, width=32, bins=bins, generator=torch.Generator().manual_seed(0)
        )
        scores[bins] = train(net, (x, y), Settings(epochs=20)).best_nll
    assert scores[24] < scores[0]


@pytest.mark.parametrize("bins", [-1, 2.5, "many"])
def test_other_numbers_are_refused(bins):
    with pytest.raises(ArgumentError, match="bins"):
        MixtureNetwork.of(3, 1, bins=bins)
