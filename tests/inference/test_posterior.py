"""Posteriors in one call, against known ones."""

import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
import torch.distributions as dist
from helpers.reference import random_parameters
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from condens import GaussianMixture, TransformedMixture
from condens.errors import (
    ArgumentError,
    DimensionError,
    NotFiniteError,
    ShapeError,
    TargetTransformWarning,
)
from condens.inference import posterior
from condens.inference.priors import transforms_of
from condens.training import Settings
from condens.transforms import Integer, Interval, Positive, Real

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
    settings = Settings(epochs=40, batch_size=256)
    learned = posterior(theta, x, n_components=1, n_members=1, settings=settings)
    for observation in x[:3]:
        ours, known = learned.given(observation), exact(observation)
        assert isinstance(ours, GaussianMixture)
        deviation = known.variance.sqrt()
        assert ((ours.mean - known.mean).abs() < 0.15 * deviation).all()
        assert_close(ours.covariance_matrix.float(), known.covariance_matrix, rtol=0.1, atol=0.01)
        drawn = learned.sample((500,), observation)
        assert_close(learned.log_prob(drawn, observation), ours.log_prob(drawn))
    assert learned.history.epochs


@pytest.mark.parametrize("limit", [3.0, math.inf])
def test_no_component_is_wider_than_the_parameters_by_far(limit):
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(500, 2, generator=generator) * torch.tensor([1.0, 5.0])
    settings = Settings(epochs=2, limit=limit)
    learned = posterior(theta, theta, n_members=1, settings=settings)
    network = learned.network
    assert network.spread is network.tail is None
    if limit == math.inf:
        assert network.limit is None
    else:
        assert network.limit.factor == 3
        standard = (theta - theta.mean(0)) / theta.std(0, correction=0)
        assert_close(network.limit.reach, standard.abs().amax(0).double(), rtol=0.02, atol=0)


def test_bounded_parameters_stay_in_their_bounds():
    generator = torch.Generator().manual_seed(0)
    theta = torch.rand(2000, 2, generator=generator) * torch.tensor([3.0, 1.0])
    table = pd.DataFrame(theta.numpy(), columns=["rate", "fraction"])
    x = theta + 0.5 * torch.randn(2000, 2, generator=generator)
    bounds = {"rate": "positive", "fraction": (0, 1)}
    learned = posterior(table, x, target_transform=bounds, n_members=2, settings=Settings(epochs=5))
    found = learned.given([0.0, 1.0])
    assert isinstance(found, TransformedMixture)
    drawn = learned.sample((5000,), [0.0, 1.0], generator=generator)
    assert (drawn > 0).all()
    assert (drawn[:, 1] < 1).all()
    assert found.marginal("fraction").log_prob([0.5]).isfinite()
    steps = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    coverage = found.marginal("fraction").log_prob(steps[:, None]).exp().mean()
    assert_close(coverage, torch.tensor(1.0).double(), rtol=0, atol=1e-3)


class Joined(dist.Distribution):
    """Several distributions beside each other, as sbi's MultipleIndependent."""

    def __init__(self, parts):
        self.parts, self.sizes = parts, [part.batch_shape.numel() for part in parts]
        super().__init__(event_shape=torch.Size([sum(self.sizes)]), validate_args=False)

    @property
    def support(self):
        each = [part.support for part in self.parts]
        return dist.constraints.independent(dist.constraints.cat(each, 0, self.sizes), 1)


BOX = torch.tensor([0.0, -2.0, 5.0]), torch.tensor([1.0, 2.0, 5.5])
INTERVALS = tuple(Interval(*pair) for pair in zip(*(end.tolist() for end in BOX), strict=True))
UNDERSTOOD = {
    "bounds": (BOX, INTERVALS),
    "one pair": ((-1, 2), (Interval(-1.0, 2.0),) * 3),
    "lists": (([0, -2, 5], [1, 2, 5.5]), INTERVALS),
    "uniform": (dist.Uniform(*BOX), INTERVALS),
    "independent": (dist.Independent(dist.Uniform(*BOX), 1), INTERVALS),
    "scalar": (dist.Uniform(-1.0, 2.0), (Interval(-1.0, 2.0),) * 3),
    "beta": (dist.Beta(torch.ones(3), 2.0), (Interval(0.0, 1.0),) * 3),
    "normal": (dist.MultivariateNormal(torch.zeros(3), torch.eye(3)), (Real(),) * 3),
    "lognormal": (dist.LogNormal(torch.zeros(3), 1.0), (Positive(),) * 3),
    "pareto": (dist.Pareto(torch.tensor([1.0, 2.0, 3.0]), 1.0), tuple(map(Positive, (1, 2, 3)))),
    "poisson": (dist.Poisson(torch.ones(3)), (Integer(0),) * 3),
    "several": (
        [dist.Gamma(1.0, 1.0), dist.Uniform(0.0, 3.0), dist.StudentT(4.0)],
        (Positive(), Interval(0.0, 3.0), Real()),
    ),
    "mixture": (
        TransformedMixture(GaussianMixture(*random_parameters((), 2, 3)), INTERVALS),
        INTERVALS,
    ),
    "joined": (
        Joined([dist.Gamma(torch.ones(2), 1.0), dist.Uniform(torch.zeros(1), 3.0)]),
        (Positive(), Positive(), Interval(0.0, 3.0)),
    ),
}


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_the_support_of_the_prior_gives_the_transforms(name):
    prior, expected = UNDERSTOOD[name]
    assert transforms_of(prior, 3) == expected


MISUNDERSTOOD = {
    "simplex": dist.Dirichlet(torch.ones(3)),
    "yes or no": dist.Bernoulli(torch.full((3,), 0.5)),
    "bounded above": dist.Binomial(5, torch.full((3,), 0.5)),
    "mixed list": [dist.Normal(0.0, 1.0), (0, 1), (0, 1)],
    "word": "uniform",
    "three": (0, 1, 2),
    "none of it": object(),
}


@pytest.mark.parametrize("name", MISUNDERSTOOD)
def test_other_priors_are_refused_by_name(name):
    with pytest.raises(ArgumentError, match=r"prior.* is .*torch distribution.*target_transform"):
        transforms_of(MISUNDERSTOOD[name], 3)


def test_priors_that_do_not_fit_the_parameters_are_refused():
    theta, x, _ = gaussian(50)
    with pytest.raises(ArgumentError, match=r"prior is over 3 parameter\(s\), but .*2 column"):
        posterior(theta, x, prior=dist.Normal(torch.zeros(3), 1.0))
    with pytest.raises(ArgumentError, match="prior goes with target_transform"):
        posterior(theta, x, prior=(-9, 9), target_transform="real")
    with pytest.raises(ArgumentError, match=r"parameters, column 0, has .*between -0.1 and 0.1"):
        posterior(theta, x, prior=(-0.1, 0.1))
    with pytest.raises(ArgumentError, match="must be above lower"):
        posterior(theta, x, prior=(1, -1))


def test_draws_rounded_to_the_bounds_of_the_prior_are_kept_but_spikes_are_refused():
    theta = torch.rand(2000, 1, generator=torch.Generator().manual_seed(0))
    theta[7], theta[8] = 0.0, 1.0
    learned = posterior(theta, theta, prior=(0, 1), settings=QUICK)
    # Half a step of single precision: nowhere near the edge of double precision, −38.
    assert 0 < float(learned.network.target_scaling.scale) < 1.1
    theta[:300] = 0.0
    with pytest.raises(ArgumentError, match=r"has 0 at .*15\.00% of the rows on 0, .*classifier"):
        posterior(theta, theta, prior=(0, 1), settings=QUICK)


def test_where_an_observation_says_nothing_the_posterior_is_the_prior():
    generator = torch.Generator().manual_seed(0)
    theta = 4 * torch.rand(2000, 2, generator=generator) - 1
    x = torch.randn(2000, 1, generator=generator)
    prior = dist.Uniform(-torch.ones(2), 3 * torch.ones(2))
    learned = posterior(
        theta, x, prior=prior, n_components=1, n_members=2, settings=Settings(epochs=10)
    )
    found = learned.given([0.3])
    grid = (torch.arange(40, dtype=torch.float64) + 0.5) / 10 - 1
    level = found.log_prob(torch.cartesian_prod(grid, grid))
    # KL from the uniform density, which is exactly one component.
    assert float(-(level + math.log(16)).mean()) < 0.005


@pytest.mark.slow
def test_a_posterior_centred_on_a_bound_is_learned():
    """Truncated normals: by the probit to a divergence below 0.02 also at the bound itself."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.rand(3000, 1, generator=generator, dtype=torch.float64)
    x = theta + 0.1 * torch.randn(3000, 1, generator=generator, dtype=torch.float64)
    learned = posterior(theta, x, prior=dist.Uniform(0.0, 1.0), settings=Settings(epochs=30))
    grid = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    for at in (0.0, 0.5, 1.0):
        log_p = -0.5 * ((grid - at) / 0.1).square()
        log_p = log_p - log_p.exp().mean().log()
        log_q = learned.log_prob(grid[:, None], [at])
        assert float((log_p.exp() * (log_p - log_q)).mean()) < 0.02


def test_chosen_transforms_are_announced():
    theta = torch.rand(100, 1, generator=torch.Generator().manual_seed(0))
    with pytest.warns(TargetTransformWarning, match="'auto' chose {0: Interval"):
        posterior(theta, theta, target_transform="auto", settings=QUICK)


def test_observations_of_any_shape_and_batches_of_them():
    theta, x, _ = gaussian(100)
    learned = posterior(theta, x, settings=QUICK)
    images = torch.cat([x, x], 1).reshape(100, 2, 3)
    seen = posterior(theta, images, settings=QUICK)
    assert seen.given(images[0]).batch_shape == ()
    assert seen.given(images[:4]).batch_shape == (4,)
    assert_close(learned.given(x[:4])[2].mean, learned.given(x[2]).mean)
    assert posterior(theta, x[:, 0], settings=QUICK).given([0.5]).batch_shape == ()
    assert posterior(theta[:, 0], x, settings=QUICK).given(x[0]).event_shape == (1,)


def test_the_same_seed_gives_the_same_bytes():
    theta, x, _ = gaussian(100)
    state = torch.get_rng_state()
    one, same, other = (posterior(theta, x, settings=QUICK, random_state=s) for s in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one.given(x[0]).means, same.given(x[0]).means)
    assert not torch.equal(one.given(x[0]).means, other.given(x[0]).means)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
def test_names_are_heeded(frame):
    theta, x, _ = gaussian(200)
    parameters = frame({"a": theta[:, 0].numpy(), "b": theta[:, 1].numpy()})
    names = ["u", "v", "w"]
    table = frame({name: x[:, i].numpy() for i, name in enumerate(names)})
    learned = posterior(parameters, table, settings=QUICK)
    plain = posterior(theta, x, settings=QUICK)
    assert learned.observation_names == ("u", "v", "w")
    expected = plain.given(x).mean
    for order in (names, names[::-1], ["v", "u", "w"]):
        assert torch.equal(learned.given(table[order]).mean, expected)
    assert torch.equal(learned.given(x).mean, expected)
    density = learned.given(table[names[::-1]])
    both = learned.log_prob(parameters[["b", "a"]], table[names[::-1]])
    assert torch.equal(both, density.log_prob(theta.double()))
    drawn = learned.sample((3,), table[names[::-1]], generator=torch.Generator().manual_seed(0))
    assert torch.equal(drawn, plain.sample((3,), x, generator=torch.Generator().manual_seed(0)))
    other = table.rename(columns={"u": "z"}) if frame is pd.DataFrame else table.rename({"u": "z"})
    with pytest.raises(
        DimensionError, match=r"observation has columns z, v, w, but u, v, w were trained"
    ):
        learned.given(other)
    with pytest.raises(
        DimensionError, match=r"observation has columns u, v, but u, v, w were trained"
    ):
        learned.given(table[["u", "v"]])


def test_a_row_of_a_frame_is_read_by_its_index():
    theta, x, _ = gaussian(100)
    table = pd.DataFrame(x.numpy(), columns=["u", "v", "w"])
    learned = posterior(theta, table, settings=QUICK)
    row = table.iloc[3]
    assert learned.given(row).batch_shape == ()
    assert torch.equal(learned.given(row[["w", "u", "v"]]).mean, learned.given(x[3]).mean)
    with pytest.raises(DimensionError, match="observation has columns u, v, z"):
        learned.given(row.rename({"w": "z"}))
    # Rows that have names say nothing of columns.
    named = pd.Series(x[:, 0].numpy(), index=[f"run {i}" for i in range(100)])
    assert posterior(theta, named, settings=QUICK).observation_names is None


THETA, X, _ = gaussian(20)
GAP = X.clone()
GAP[3, 1] = math.nan
REFUSED = {
    "rows": (THETA, X[:7], {}, ShapeError, "parameters has 20 rows.*observations has 7"),
    "gap": (THETA, GAP, {}, NotFiniteError, r"observations is nan at \[3, 1\]"),
    "text": (THETA, np.full((20, 3), "a"), {}, ArgumentError, "observations holds"),
    "names": (THETA, X, {"names": ["a"]}, ArgumentError, r"names is \['a'\], but 2 distinct"),
    "no names": (THETA, X, {"names": 3}, ArgumentError, "names is 3, but 2 distinct"),
    "none": (THETA, X, {"n_components": 0}, ArgumentError, "n_components is 0.*Pass a number"),
    "auto": (THETA, X, {"n_components": "auto"}, ArgumentError, "n_components is 'auto'"),
    "array": (THETA, X, {"n_components": np.ones(2)}, ArgumentError, "n_components is array"),
    "seed": (THETA, X, {"random_state": None}, ArgumentError, "random_state is None"),
    "large seed": (THETA, X, {"random_state": 2**64}, ArgumentError, "random_state is 1844"),
    "settings": (
        THETA,
        X,
        {"settings": {"epochs": 5}},
        ArgumentError,
        r"settings is .*Settings\(epochs=5\)",
    ),
    "transforms": (THETA, X, {"target_transform": ["positive"]}, ShapeError, "there are 2 target"),
    "bounds": (THETA, X, {"target_transform": "unit"}, ArgumentError, "parameters, column 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    theta, x, options, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message):
        posterior(theta, x, **{"settings": QUICK, **options})


def test_observations_that_do_not_fit_are_refused():
    learned = posterior(THETA, X, settings=QUICK)
    with pytest.raises(ShapeError, match=r"observation has shape \[2\], but \[3\] was expected"):
        learned.given([1.0, 2.0])
    with pytest.raises(ShapeError, match=r"observation has shape \[1, 1, 3\]"):
        learned.given([[[1.0, 2.0, 3.0]]])
    with pytest.raises(NotFiniteError, match="observation has an entry that is NaN"):
        learned.given([1.0, 2.0, math.nan])
