"""Data that break other libraries: a finite, sensible model or a named error, never NaN."""

import math
import warnings
from contextlib import suppress

import pytest
import torch

from condens.errors import CondensError
from condens.nn import HEADS, MixtureNetwork
from condens.training import Settings, train

NAN = math.nan
# Welcome here; any other warning is an error.
ADVICE = ".*(are alike|explained by no component|condition number|Nearly all weight)"


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def ridge(rows=300, scale=1.0):
    """Return a condition and two targets that depend on it."""
    x = normal(rows, 2)
    y = torch.stack([x[:, 0], x.prod(1)], 1) + 0.3 * normal(rows, 2, seed=1)
    return x, scale * y


def with_outlier(value):
    x, y = ridge()
    y[17, 0] = value
    return x, y


def with_gaps(fraction):
    x, y = ridge()
    generator = torch.Generator().manual_seed(2)
    return x, y.masked_fill(torch.rand(y.shape, generator=generator) < fraction, NAN)


def cauchy():
    x, _ = ridge()
    return x, x + normal(300, 2, seed=3) / normal(300, 2, seed=4)


def mixed_scales():
    x, y = ridge()
    return x, y * torch.tensor([1e-30, 1e30], dtype=torch.float64)


def condition_column(column):
    x, y = ridge()
    return torch.cat([x, column(x).expand(len(x), 1)], 1), y


def weighted():
    x, y = ridge()
    weights = torch.rand(300, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    weights[::2] = 0
    y[::2] = 1e6
    return x, y, weights


# What each gives, and whether a single Gaussian is a fair rival on it.
CASES = {
    "constant target": (lambda: (normal(200, 2), torch.full((200, 2), 3.0)), False),
    "one constant column": (lambda: (normal(200, 2), normal(200, 2) * torch.tensor([0, 1])), False),
    "all rows the same": (lambda: (torch.ones(200, 2), torch.full((200, 2), 0.1)), False),
    "few rows many times": (lambda: tuple(t[:3].repeat(70, 1) for t in ridge()), False),
    "collinear targets": (lambda: (normal(200, 2), normal(200, 1).expand(200, 2)), False),
    "one row": (lambda: ridge(1), False),
    "two rows": (lambda: ridge(2), False),
    "fewer rows than components": (lambda: ridge(5), False),
    "scale 1e-30": (lambda: ridge(scale=1e-30), True),
    "scale 1e30": (lambda: ridge(scale=1e30), True),
    "both scales": (mixed_scales, True),
    "far from zero": (lambda: (ridge()[0], 1e9 + ridge()[1]), True),
    "outlier": (lambda: with_outlier(1e12), False),
    "Cauchy tails": (cauchy, False),
    "whole numbers": (lambda: (ridge()[0], (3 * ridge()[1]).round().long()), False),
    "condition all the same": (lambda: (torch.ones(300, 2), ridge()[1]), True),
    "condition column of 1e12": (
        lambda: condition_column(lambda x: torch.tensor([[1e12]], dtype=x.dtype)),
        True,
    ),
    "condition column around 1e12": (
        lambda: condition_column(lambda x: 1e12 + 1e6 * x[:, :1]),
        True,
    ),
    "90 % missing": (lambda: with_gaps(0.9), False),
    "a column never observed": (lambda: (ridge()[0], ridge()[1] * torch.tensor([1, NAN])), False),
    "rows without weight": (weighted, False),
}


def fit(data, covariance="full", settings=None, **options):
    """Train; check what must always hold, also after a named error."""
    condition, target = (torch.as_tensor(t) for t in data[:2])
    torch.manual_seed(1)
    network = MixtureNetwork.of(
        condition.shape[1],
        target.shape[1],
        **{"n_components": 8, "width": 16, "covariance": covariance} | options,
    )
    history = None
    with warnings.catch_warnings(), suppress(CondensError):
        warnings.filterwarnings("ignore", ADVICE)
        history = train(
            network, data, Settings(**{"epochs": 8, "batch_size": 32} | (settings or {}))
        )
    for name, tensor in network.state_dict().items():
        assert tensor.isfinite().all(), name
    with torch.no_grad():
        mixture = network(condition.double())
        assert mixture.sample((20,)).isfinite().all()
        counts = torch.ones(len(target), dtype=torch.bool) if len(data) < 3 else data[2] > 0
        assert network.loss(condition[counts], target[counts]).isfinite()
        whole = counts & ~target.isnan().any(1)
        assert mixture.log_prob(target.double())[whole].isfinite().all()
    return network, history


def single_gaussian(target):
    """Return the mean NLL of a single Gaussian with the targets' own moments."""
    scale = target.std(0)
    correlation = torch.corrcoef(target.T)
    flat = 0.5 * torch.logdet(2 * math.pi * math.e * correlation)
    return float(flat + scale.log().sum())


@pytest.mark.parametrize("case", CASES)
def test_hard_data(case):
    make, fair = CASES[case]
    data = make()
    network, history = fit(data)
    assert history is not None
    assert math.isfinite(history.best_nll)
    assert all(math.isfinite(epoch.train_nll) for epoch in history.epochs)
    if fair:
        assert network.loss(*data).item() < single_gaussian(data[1]) + 0.1


@pytest.mark.parametrize("covariance", HEADS)
@pytest.mark.parametrize(
    "case", ["all rows the same", "collinear targets", "outlier", "90 % missing", "one row"]
)
def test_hard_data_for_every_structure(covariance, case):
    _, history = fit(CASES[case][0](), covariance, {"epochs": 4})
    assert math.isfinite(history.best_nll)


@pytest.mark.parametrize("covariance", HEADS)
@pytest.mark.parametrize("rate", [10.0, pytest.param(1e6, marks=pytest.mark.slow), 1e30])
@pytest.mark.parametrize("case", ["scale 1e30", "90 % missing", "few rows many times"])
def test_an_absurd_rate_ends_with_the_best_or_a_name(covariance, rate, case):
    """At worst the network is what it was before the first step."""
    data = CASES[case][0]()
    network, _ = fit(data, covariance, {"learning_rate": rate, "warmup_steps": 0, "epochs": 5})
    if case == "scale 1e30":
        assert network.loss(*data).item() < single_gaussian(data[1]) + 1.0


@pytest.mark.parametrize("case", ["all rows the same", "collinear targets", "few rows many times"])
def test_without_a_floor(case):
    """The likelihood has no bound here: the best so far, or a named error."""
    fit(CASES[case][0](), "full", {"learning_rate": 0.1}, floor=0.0)


def test_a_hundred_dimensions():
    mixing = torch.eye(100, dtype=torch.float64) + 0.1 * normal(100, 100, seed=7)
    condition = normal(200, 2)
    target = normal(200, 100, seed=8) @ mixing + condition[:, :1]
    _, history = fit((condition, target), "full", {"epochs": 2, "batch_size": 100}, n_components=2)
    assert math.isfinite(history.best_nll)


def test_a_spike_in_the_condition_spoils_no_other_row():
    x, y = ridge()
    spiked = x.clone()
    spiked[5, 0] = 1e12
    torch.manual_seed(1)
    network = MixtureNetwork.of(2, 2, n_components=4, width=16)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ADVICE)
        train(network, (spiked, y), Settings(epochs=8, batch_size=32))
    assert all(t.isfinite().all() for t in network.state_dict().values())
    assert network.loss(x, y).item() < single_gaussian(y) + 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_precisions_on_a_wide_column(dtype):
    x, y = ridge(scale=1e30)
    network = MixtureNetwork.of(2, 2, n_components=3, width=16).to(dtype)
    history = train(network, (x, y), Settings(epochs=5, batch_size=32))
    assert abs(network.loss(x, y).item() - single_gaussian(y)) < 3
    assert math.isfinite(history.best_nll)
