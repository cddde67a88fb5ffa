"""Our mixtures as sites of Pyro's models."""

import copy
import pickle
import warnings

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Pyro's own imports
    import pyro
    from pyro import distributions as dist
    from pyro.distributions.torch_distribution import TorchDistributionMixin
    from pyro.infer import MCMC, NUTS, SVI, Importance, Trace_ELBO
    from pyro.infer.autoguide import AutoNormal
    from pyro.infer.mcmc.util import initialize_model

from condens import GaussianMixture, LowRankMixture, TransformedMixture
from condens.errors import ArgumentError
from condens.integrations.pyro import for_pyro
from condens.transforms import Integer, Interval, Positive, Real


def mixture(*batch, dimensions=2):
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape):
        return torch.randn(*batch, *shape, dtype=torch.float64, generator=generator)

    size = dimensions * (dimensions + 1) // 2
    return GaussianMixture(numbers(3), numbers(3, dimensions), 0.5 * numbers(3, size))


MIXTURES = {
    "full": lambda: mixture(4),
    "low_rank": lambda: LowRankMixture(
        torch.zeros(4, 2), torch.ones(4, 2, 3), torch.zeros(4, 2, 3), torch.ones(4, 2, 3, 1)
    ),
    "transformed": lambda: TransformedMixture(mixture(4), [Positive(), Positive()]),
}


@pytest.fixture(autouse=True)
def fresh():
    pyro.clear_param_store()
    with torch.random.fork_rng(devices=[]):
        pyro.set_rng_seed(0)
        yield


@pytest.mark.parametrize("name", MIXTURES)
def test_a_site_has_our_density(name):
    ours = MIXTURES[name]()

    def model():
        with pyro.plate("rows", 4):
            return pyro.sample("y", for_pyro(ours))

    trace = pyro.poutine.trace(model).get_trace()
    value = trace.nodes["y"]["value"]
    assert value.shape == (4, ours.dimensions)
    torch.testing.assert_close(trace.log_prob_sum(), ours.log_prob(value).sum())
    given = pyro.poutine.trace(pyro.condition(model, {"y": value})).get_trace()
    torch.testing.assert_close(given.log_prob_sum(), ours.log_prob(value).sum())


def test_plates_expand_and_masks_mask():
    ours, mask = mixture(), torch.tensor([True, False, True])

    def model():
        with pyro.plate("rows", 3), pyro.poutine.mask(mask=mask):
            return pyro.sample("y", for_pyro(ours))

    trace = pyro.poutine.trace(model).get_trace()
    value = trace.nodes["y"]["value"]
    assert value.shape == (3, 2)
    torch.testing.assert_close(trace.log_prob_sum(), ours.log_prob(value)[mask].sum())


def test_it_stays_a_mixture():
    ours = for_pyro(mixture(4))
    assert isinstance(ours, GaussianMixture)
    assert isinstance(ours.marginal(1), TorchDistributionMixin)
    assert type(for_pyro(ours)) is type(ours)
    assert repr(ours) == repr(mixture(4))
    with pytest.raises(ArgumentError, match="mixture is Normal"):
        for_pyro(torch.distributions.Normal(0.0, 1.0))


def test_importance_sampling_finds_the_posterior():
    prior, noise = mixture(), 0.5 * torch.eye(2, dtype=torch.float64)
    seen = torch.tensor([0.3, -0.4], dtype=torch.float64)

    def model():
        x = pyro.sample("x", for_pyro(prior))
        pyro.sample("y", dist.MultivariateNormal(x, noise), obs=seen)
        return x

    run = Importance(model, num_samples=400).run()
    weights = torch.stack(run.log_weights).softmax(0)
    draws = torch.stack([trace.nodes["x"]["value"] for trace in run.exec_traces])
    exact = prior.multiply(torch.distributions.MultivariateNormal(seen, noise))
    mean = (weights[:, None] * draws).sum(0)
    error = (weights.square().sum() * exact.variance).sqrt()  # of a mean of weighted draws
    assert ((mean - exact.mean).abs() < 4 * error).all()


def test_a_guide_learns_by_the_elbo():
    target = mixture(dimensions=1)

    def model():
        pyro.sample("x", for_pyro(target))

    def guide():
        start = {"logits": (2,), "means": (2, 1), "factors": (2, 1)}
        transform = [
            pyro.param(name, lambda shape=shape: torch.linspace(-1, 1, 2).double().view(shape))
            for name, shape in start.items()
        ]
        pyro.sample("x", for_pyro(GaussianMixture(*transform)))

    elbo = Trace_ELBO(num_particles=64, vectorize_particles=True)
    step = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), elbo).step
    losses = [step() for _ in range(200)]
    # The ELBO's loss is KL(guide ‖ target) here, as the target is normalised.
    assert sum(losses[-20:]) / 20 < 0.2 * sum(losses[:5]) / 5
    assert abs(sum(losses[-20:]) / 20) < 0.05


TRANSFORMS = [Positive(1.0), Interval(-1.0, 2.0), Real()]


def constrained():
    ours = TransformedMixture(mixture(dimensions=3), TRANSFORMS)

    def model():
        return pyro.sample("y", for_pyro(ours))

    return ours, model


def test_hamiltonians_see_the_mixture_on_the_real_line():
    """There our density is that of the mixture inside, and its gradient with it."""
    ours, model = constrained()
    _, potential, transforms, _ = initialize_model(model)
    x = torch.randn(3, dtype=torch.float64)
    torch.testing.assert_close(potential({"y": x}), -ours.base.log_prob(x), rtol=1e-9, atol=1e-9)
    y = transforms["y"].inv(x)
    torch.testing.assert_close(transforms["y"](y), x, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_nuts_draws_from_constrained_mixtures():
    ours, model = constrained()
    run = MCMC(NUTS(model, max_tree_depth=3), 60, warmup_steps=30, disable_progbar=True)
    run.run()
    draws = run.get_samples()["y"]
    assert draws.shape == (60, 3)
    assert ours.support.check(draws).all()
    assert ours.log_prob(draws).isfinite().all()


def test_automatic_guides_learn_constrained_mixtures():
    ours, model = constrained()
    guide = AutoNormal(model)
    elbo = Trace_ELBO(num_particles=16, vectorize_particles=True, max_plate_nesting=0)
    step = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), elbo).step
    losses = [step() for _ in range(80)]
    assert sum(losses[-20:]) < sum(losses[:20])
    assert ours.support.check(guide.median()["y"])


@pytest.mark.parametrize(
    "infer", [lambda model: initialize_model(model), lambda m: AutoNormal(m)()]
)
def test_whole_numbers_are_refused_by_name(infer):
    ours = TransformedMixture(mixture(), [Positive(), Integer(0)])

    def model():
        return pyro.sample("y", for_pyro(ours))

    # Pyro sees from the support that they are discrete, and tells what to do in its own words.
    with pytest.raises((ValueError, NotImplementedError), match="discrete sample site 'y'"):
        infer(model)


SHAPES = {
    "full": {"logits": (3,), "means": (4, 3, 2), "factors": (3, 3)},
    "low_rank": {
        "logits": (2,),
        "means": (2, 3),
        "log_scales": (2, 3),
        "loadings": (5, 1, 2, 3, 1),
    },
    "transformed": {"logits": (3,), "means": (3, 2), "factors": (6, 3, 2)},
}


@pytest.mark.parametrize("name", MIXTURES)
def test_shapes_are_inferred_from_those_of_the_parameters(name):
    kind = type(for_pyro(MIXTURES[name]()))
    plain = LowRankMixture if name == "low_rank" else GaussianMixture
    made = plain(*(torch.zeros(shape) for shape in SHAPES[name].values()))
    assert kind.infer_shapes(**SHAPES[name]) == (made.batch_shape, made.event_shape)
    with pytest.raises(ArgumentError, match=r"arg_shapes names .*Pass the shape of each"):
        kind.infer_shapes(logits=(3,))
    with pytest.raises(ArgumentError, match="7 components"):
        kind.infer_shapes(**{**SHAPES[name], "logits": (7,)})


@pytest.mark.parametrize("name", MIXTURES)
def test_it_is_copied_and_pickled(name):
    ours = for_pyro(MIXTURES[name]())
    x = ours.sample()
    for twin in (copy.copy(ours), copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert type(twin) is type(ours)
        assert torch.equal(twin.log_prob(x), ours.log_prob(x))
