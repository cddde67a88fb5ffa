"""Graphs that torch records of us, and its function transforms."""

import io

import pytest
import torch
from helpers.reference import random_low_rank, random_parameters
from torch.testing import assert_close

from condens import GaussianMixture, LowRankMixture, TransformedMixture
from condens.errors import NoClosedFormError, ShapeError
from condens.functional.tracing import checks_values
from condens.nn import Ensemble, MixtureNetwork
from condens.transforms import Integer, Interval, Positive, Real

NAN = float("nan")
NETWORKS = {
    "full": {},
    "tied": {"covariance": "tied"},
    "low_rank": {"covariance": "low_rank", "rank": 1},
    "transformed": {"transforms": [Positive(), Interval(0.0, 1.0)]},
    "whole": {"transforms": [Positive(), Integer(0)]},
    "categories": {"categories": [4]},
}
MIXTURES = {
    "full": lambda *batch: GaussianMixture(*random_parameters(batch, 3, 2), names=["a", "b"]),
    "low_rank": lambda *batch: LowRankMixture(*random_low_rank(batch, 3, 2, 1)),
    "transformed": lambda *batch: TransformedMixture(
        GaussianMixture(*random_parameters(batch, 3, 2)), [Positive(), Interval(0.0, 1.0)]
    ),
}

# The other covariances and transforms go the same ways as these.
SOME_SLOW = [
    name if name in ("low_rank", "whole") else pytest.param(name, marks=pytest.mark.slow)
    for name in NETWORKS
]


def network(name):
    made = MixtureNetwork.of(3, 2, n_components=3, width=8, **NETWORKS[name])
    return made.double()


def rows(name, count=6):
    condition = torch.randn(count, 3, dtype=torch.float64)
    target = torch.rand(count, 2, dtype=torch.float64)
    if name == "categories":
        condition[:, 2] = torch.arange(count) % 4
    if name == "whole":
        target[:, 1] = torch.arange(count) % 3
    return condition, target


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function):
    return torch.compile(function, backend="eager", fullgraph=True)


@pytest.mark.parametrize("name", SOME_SLOW)
def test_compiled_networks_answer_as_they_do(name):
    net, (condition, target) = network(name), rows(name)
    exact = net.loss(condition, target)
    loss = compiled(net.loss)(condition, target)
    assert_close(loss, exact, rtol=1e-12, atol=1e-12)
    ours, theirs = (
        torch.autograd.grad(value, list(net.head.parameters())) for value in (loss, exact)
    )
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "name", ["full", *(pytest.param(n, marks=pytest.mark.slow) for n in ("low_rank", "whole"))]
)
def test_compiled_densities_answer_as_they_do(name):
    net, (condition, target) = network(name), rows(name)
    density = compiled(lambda x, y: net(x).log_prob(y))(condition, target)
    assert_close(density, net(condition).log_prob(target), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "name",
    ["full", *(pytest.param(n, marks=pytest.mark.slow) for n in ("low_rank", "transformed"))],
)
def test_compiled_losses_leave_out_what_was_not_observed(name):
    net, (condition, target) = network(name), rows(name)
    target[0, 1] = target[2] = target[4, 0] = NAN
    weights = torch.rand(len(target), dtype=torch.float64)
    loss = compiled(net.loss)(condition, target, weights)
    assert_close(loss, net.loss(condition, target, weights), rtol=1e-10, atol=1e-10)
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.slow
def test_compiled_losses_of_whole_numbers_show_gaps():
    """Gaps cannot be told from numbers there; NaN is seen, a wrong loss would not be."""
    net, (condition, target) = network("whole"), rows("whole")
    target[0, 1] = NAN
    assert net.loss(condition, target).isfinite()
    assert compiled(net.loss)(condition, target).isnan()


@pytest.mark.slow
def test_compiled_ensembles():
    net = Ensemble([network("full"), network("full")])
    condition, target = rows("full")
    assert_close(compiled(net.loss)(condition, target), net.loss(condition, target))


def test_shapes_are_checked_while_compiling():
    net, (condition, target) = network("full"), rows("full")
    with pytest.raises((ShapeError, torch._dynamo.exc.TorchDynamoException)):
        compiled(net.loss)(condition, target[:, :1])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of inductor itself
def test_compiled_by_inductor():
    net, (condition, target) = network("full"), rows("full")
    loss = torch.compile(net.loss, fullgraph=True)(condition, target)
    assert_close(loss, net.loss(condition, target), rtol=1e-10, atol=1e-10)


class Loss(torch.nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, condition, target):
        return self.network.loss(condition, target)


@pytest.mark.parametrize(
    "name", [n if n == "low_rank" else pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS]
)
def test_exported_networks_return_mixtures(name):
    net, (condition, target) = network(name), rows(name, 8)
    dynamic = {0: torch.export.Dim("rows", min=2, max=1000)}
    program = torch.export.export(net, (condition,), dynamic_shapes=(dynamic,))
    mixture = program.module()(condition[:5])
    assert type(mixture) is type(net(condition))
    assert repr(mixture) == repr(net(condition[:5]))
    exact = net(condition[:5]).log_prob(target[:5])
    assert_close(mixture.log_prob(target[:5]), exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "name", ["full", *(pytest.param(n, marks=pytest.mark.slow) for n in ("low_rank", "whole"))]
)
def test_exported_losses_are_those_of_the_networks(name):
    net, given = network(name), rows(name, 8)
    dynamic = {0: torch.export.Dim("rows", min=2, max=1000)}
    program = torch.export.export(Loss(net), given, dynamic_shapes=(dynamic, dynamic))
    fewer = [part[:5] for part in given]
    assert_close(program.module()(*fewer), net.loss(*fewer), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["full", "transformed"])
@pytest.mark.slow
def test_exported_networks_are_saved(name):
    net, (condition, target) = network(name), rows(name)
    file = io.BytesIO()
    torch.export.save(torch.export.export(net, (condition,)), file)
    file.seek(0)
    mixture = torch.export.load(file).module()(condition)
    assert repr(mixture) == repr(net(condition))
    assert_close(mixture.log_prob(target), net(condition).log_prob(target))


@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_are_trees_of_tensors(name):
    mixture = MIXTURES[name](4)
    leaves, spec = torch.utils._pytree.tree_flatten(mixture)
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    again = torch.utils._pytree.tree_unflatten(leaves, spec)
    assert type(again) is type(mixture)
    assert (repr(again), again.batch_shape) == (repr(mixture), mixture.batch_shape)
    assert again._validate_args == mixture._validate_args
    x = mixture.sample()
    assert torch.equal(again.log_prob(x), mixture.log_prob(x))
    emptied = torch.utils._pytree.tree_map(lambda _: None, mixture)
    assert type(emptied) is type(mixture)


class Draws(torch.nn.Module):
    """Draws from a mixture whose means come in."""

    def __init__(self, make, validate):
        super().__init__()
        self.make, self.validate = make, validate

    def forward(self, means):
        base = GaussianMixture(
            torch.zeros(2), means, torch.full((2, 3), 9.0), validate_args=self.validate
        )
        return self.make(base).sample((3,))


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize("transformed", [False, True])
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("how", ["compile", "export", "trace"])
def test_draws_follow_the_parameters_of_a_graph(how, transformed, validate):
    transforms = [Real(), Positive()]
    draws = Draws(
        lambda base: TransformedMixture(base, transforms) if transformed else base, validate
    )
    means = torch.zeros(2, 2)
    if how == "compile":
        torch._dynamo.reset()
        graph = torch.compile(draws, backend="eager", fullgraph=True)
    elif how == "export":
        graph = torch.export.export(draws, (means,)).module()
    else:
        graph = torch.jit.trace(draws, means, check_trace=False)
    drawn = graph(means + 5.0)
    assert drawn.shape == (3, 2)
    expected = torch.tensor([5.0, 5.0]).exp() if transformed else torch.tensor([5.0, 5.0])
    assert_close(drawn[:, 1], expected[1:].expand(3), rtol=0.01, atol=0.01)


ANSWERS = {
    "log_prob": lambda m, x: m.log_prob(x),
    "observed_log_prob": lambda m, x: m.observed_log_prob(x),
    "responsibilities": lambda m, x: m.responsibilities(x),
    "mean": lambda m, _: m.mean,
    "covariance_matrix": lambda m, _: m.covariance_matrix,
    "marginal": lambda m, x: m.marginal(0).log_prob(x[..., :1]),
    "condition": lambda m, x: m.condition({0: x[..., 0]}).log_prob(x[..., 1:]),
    "cdf": lambda m, x: m.marginal(1).cdf(x[..., 1:]),
}


@pytest.mark.parametrize("ask", ANSWERS)
@pytest.mark.parametrize("name", MIXTURES)
def test_vmap_over_mixtures(name, ask):
    mixture = MIXTURES[name](4)
    x = mixture.sample()
    expected = ANSWERS[ask](mixture, x)
    assert_close(torch.vmap(ANSWERS[ask])(mixture, x), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", MIXTURES)
def test_vmap_leaves_out_what_was_not_observed(name):
    mixture = MIXTURES[name](4)
    x = mixture.sample()
    x[0, 1] = x[1, 0] = x[2] = NAN
    expected = mixture.observed_log_prob(x)
    got = torch.vmap(lambda m, value: m.observed_log_prob(value))(mixture, x)
    assert_close(got, expected, rtol=1e-10, atol=1e-10)


def test_gaps_among_whole_numbers_are_refused_by_name():
    mixture = TransformedMixture(MIXTURES["full"](4), [Real(), Integer()])
    with pytest.raises(NoClosedFormError, match=r"whole numbers.*log_prob on rows without gaps"):
        torch.vmap(lambda m, value: m.observed_log_prob(value))(mixture, mixture.sample())


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_values_are_not_looked_at_while_traced():
    def ask(x):
        return x + float(checks_values())

    zero = torch.zeros(2)
    assert torch.equal(ask(zero), zero + 1)
    for traced in (
        torch.vmap(ask),
        torch.jit.trace(ask, zero, check_trace=False),
        compiled(ask),
    ):
        assert torch.equal(traced(zero), zero)


def test_shapes_alone_make_a_mixture():
    mixture = GaussianMixture(*(p.to("meta") for p in random_parameters((4,), 3, 2)))
    assert mixture.log_prob(torch.empty(4, 2, device="meta")).shape == (4,)
    assert mixture.covariance_matrix.shape == (4, 2, 2)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of sizes, which stay
def test_jit_traces_of_densities_serve_other_values():
    first, other = random_parameters((), 3, 2), random_parameters((), 3, 2, seed=5)
    x = torch.randn(5, 2, dtype=torch.float64)

    def density(x, *parameters):
        return GaussianMixture(*parameters).log_prob(x)

    traced = torch.jit.trace(density, (x, *first))
    # torch.jit records sizes as tensors, and what is computed from them in float32.
    assert_close(traced(x + 1, *other), density(x + 1, *other), rtol=1e-7, atol=1e-7)
