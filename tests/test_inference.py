"""Posteriors in one call, against those that are known."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from condens import GaussianMixture, TransformedMixture
from condens.errors import ArgumentError, NotFiniteError, ShapeError
from condens.inference import posterior
from condens.training import Settings

QUICK = Settings(epochs=2)


def gaussian(rows):
    """Return parameters, observations, and the exact posterior of an observation."""
    mixing = torch.tensor([[1.0, 0.5], [-0.3, 2.0], [0.8, 0.0]])
    theta = torch.randn(rows, 2) * torch.tensor([1.0, 2.0]) + torch.tensor([0.0, 5.0])
    x = theta @ mixing.T + 0.5 * torch.randn(rows, 3)
    precision = torch.diag(torch.tensor([1.0, 0.25])) + 4 * mixing.T @ mixing

    def exact(observation):
        shift = torch.tensor([0.0, 1.25]) + 4 * mixing.T @ observation
        return MultivariateNormal(precision.inverse() @ shift, precision.inverse())

    return theta, x, exact


def test_the_posterior_of_a_linear_simulator():
    theta, x, exact = gaussian(4000)
    learnt = posterior(theta, x, n_components=1, settings=Settings(epochs=40, batch_size=256))
    for observation in x[:3]:
        ours, known = learnt.given(observation), exact(observation)
        assert isinstance(ours, GaussianMixture)
        deviation = known.variance.sqrt()
        assert ((ours.mean - known.mean).abs() < 0.15 * deviation).all()
        assert_close(ours.covariance_matrix.float(), known.covariance_matrix, rtol=0.1, atol=0.01)
        drawn = learnt.sample((500,), observation)
        assert_close(learnt.log_prob(drawn, observation), ours.log_prob(drawn))
    assert learnt.history.epochs


def test_bounded_parameters_stay_in_their_bounds():
    generator = torch.Generator().manual_seed(0)
    theta = torch.rand(2000, 2, generator=generator) * torch.tensor([3.0, 1.0])
    table = pd.DataFrame(theta.numpy(), columns=["rate", "share"])
    x = theta + 0.5 * torch.randn(2000, 2, generator=generator)
    bounds = {"rate": "positive", "share": (0, 1)}
    learnt = posterior(table, x, target_transform=bounds, settings=Settings(epochs=10))
    found = learnt.given([0.0, 1.0])
    assert isinstance(found, TransformedMixture)
    drawn = learnt.sample((5000,), [0.0, 1.0], generator=generator)
    assert (drawn > 0).all()
    assert (drawn[:, 1] < 1).all()
    assert found.marginal("share").log_prob([0.5]).isfinite()
    steps = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    mass = found.marginal("share").log_prob(steps[:, None]).exp().mean()
    assert_close(mass, torch.tensor(1.0).double(), rtol=0, atol=1e-3)


def test_observations_of_any_shape_and_batches_of_them():
    theta, x, _ = gaussian(100)
    learnt = posterior(theta, x, settings=QUICK)
    images = torch.cat([x, x], 1).reshape(100, 2, 3)
    seen = posterior(theta, images, settings=QUICK)
    assert seen.given(images[0]).batch_shape == ()
    assert seen.given(images[:4]).batch_shape == (4,)
    assert_close(learnt.given(x[:4])[2].mean, learnt.given(x[2]).mean)
    assert posterior(theta, x[:, 0], settings=QUICK).given([0.5]).batch_shape == ()
    assert posterior(theta[:, 0], x, settings=QUICK).given(x[0]).event_shape == (1,)


def test_the_same_seed_gives_the_same_bytes():
    theta, x, _ = gaussian(100)
    state = torch.get_rng_state()
    one, same, other = (posterior(theta, x, settings=QUICK, random_state=s) for s in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one.given(x[0]).means, same.given(x[0]).means)
    assert not torch.equal(one.given(x[0]).means, other.given(x[0]).means)


THETA, X, _ = gaussian(20)
GAP = X.clone()
GAP[3, 1] = math.nan
REFUSED = {
    "rows": (THETA, X[:7], {}, ShapeError, "parameters has 20 rows.*observations has 7"),
    "gap": (THETA, GAP, {}, NotFiniteError, r"observations is nan at \[3, 1\]"),
    "text": (THETA, np.full((20, 3), "a"), {}, ArgumentError, "observations holds"),
    "names": (THETA, X, {"names": ["a"]}, ShapeError, "names has 1, but parameters has 2"),
    "none": (THETA, X, {"n_components": 0}, ArgumentError, "components"),
    "maps": (THETA, X, {"target_transform": ["positive"]}, ShapeError, "there are 2 target"),
    "bounds": (THETA, X, {"target_transform": "unit"}, ArgumentError, "parameters, column 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    theta, x, options, kind, told = REFUSED[case]
    with pytest.raises(kind, match=told):
        posterior(theta, x, settings=QUICK, **options)


def test_observations_that_do_not_fit_are_refused():
    learnt = posterior(THETA, X, settings=QUICK)
    with pytest.raises(ShapeError, match=r"observation has shape \[2\], but \[3\] was expected"):
        learnt.given([1.0, 2.0])
    with pytest.raises(ShapeError, match=r"observation has shape \[1, 1, 3\]"):
        learnt.given([[[1.0, 2.0, 3.0]]])
    with pytest.raises(NotFiniteError, match="observation has an entry that is NaN"):
        learnt.given([1.0, 2.0, math.nan])
