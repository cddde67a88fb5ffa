import itertools
import math

import pytest
import torch
from helpers.implementations import IMPLEMENTATIONS, forced
from helpers.reference import COVARIANCES, random_parameters
from scipy import stats
from torch.testing import assert_close

from condens import GaussianMixture, functional
from condens.errors import KindError, ShapeError
from condens.functional import (
    conditional_cdfs,
    rsample,
    sample,
    sampling,
    unpack,
    unwhiten,
    whiten,
)
from condens.functional.low_rank import mixture as low_rank
from condens.functional.mixture import component_covariances, mean
from condens.functional.sampling import sample_components
from condens.functional.triangular import pack
from condens.kernels import native


@pytest.fixture(params=[*IMPLEMENTATIONS[:-1], "reference"])
def implementation(request, monkeypatch):
    yield from forced(request.param, monkeypatch)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("n_components", [1, 3])
@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_samples_follow_the_density(dimensions, n_components, covariance):
    """Rosenblatt's transform of right samples is uniform: 1 in 10 000 right samplers fails."""
    parameters = random_parameters((2,), n_components, dimensions, covariance=covariance)
    generator = torch.Generator().manual_seed(7)
    draws = sample(*parameters, (20_000,), generator=generator)
    uniform = conditional_cdfs(draws, *parameters)
    for member in range(2):
        for i in range(dimensions):
            assert stats.kstest(uniform[:, member, i].numpy(), "uniform").pvalue > 1e-4 / 10
        # Uniform margins do not show dependence: correlations of n draws are N(0, 1/n).
        if dimensions > 1:
            correlation = torch.corrcoef(uniform[:, member].T) - torch.eye(dimensions)
            assert correlation.abs().max() < 4.5 / math.sqrt(20_000)


def test_the_test_above_rejects_the_transposed_factor():
    parameters = random_parameters((), 1, 3, seed=4)
    _, means, factors = parameters
    noise = torch.randn(20_000, 3, dtype=torch.float64)
    wrong = means[0] + noise @ torch.linalg.inv(unpack(factors, 3))[0]
    uniform = conditional_cdfs(wrong, *parameters)
    assert min(stats.kstest(uniform[:, i].numpy(), "uniform").pvalue for i in range(3)) < 1e-8


def test_shapes_generator_and_no_gradient():
    parameters = [p.requires_grad_() for p in random_parameters((4, 2), 3, 5)]
    first = sample(*parameters, (6, 7), generator=torch.Generator().manual_seed(3))
    second = sample(*parameters, (6, 7), generator=torch.Generator().manual_seed(3))
    assert first.shape == (6, 7, 4, 2, 5)
    assert not first.requires_grad
    assert_close(first, second, rtol=0, atol=0)
    assert sample(*parameters).shape == (4, 2, 5)
    assert sample(*parameters, (0,)).shape == (0, 4, 2, 5)


def test_weights_that_are_nan_make_draws_that_are(implementation):
    logits, means, factors = random_parameters((3,), 2, 2)
    logits[1, 0] = math.nan
    loadings = torch.ones(3, 2, 2, 1).double()
    for draws in (
        functional.sample(logits, means, factors, (5,)),
        functional.rsample(logits, means, factors, (5,)),
        low_rank.sample(logits, means, means, loadings, (5,)),
    ):
        assert draws[:, 1].isnan().all()
        assert draws[:, ::2].isfinite().all()


def test_what_is_not_a_generator_is_refused():
    for function in (functional.sample, functional.rsample):
        with pytest.raises(KindError, match=r"generator is int.*torch\.Generator"):
            function(*random_parameters((), 2, 2), (5,), generator=3)


def test_a_component_without_weight_is_never_drawn():
    logits = torch.tensor([-torch.inf, 0.0, -torch.inf])
    means = torch.tensor([[-1e6], [0.0], [1e6]])
    draws = sample(logits, means, torch.zeros(3, 1), (100_000,))
    assert draws.abs().max() < 10


@pytest.mark.usefixtures("implementation")
def test_a_uniform_number_on_a_bound_never_draws_a_component_without_weight(monkeypatch):
    """Of five components, only the second and fourth have weight; the sum has lost a tenth."""
    cumulative = torch.tensor([0, 0.5, 0.5, 0.9, 0.9], dtype=torch.float64)
    uniform = torch.tensor([0, 0.52, 0.6, 1], dtype=torch.float64)
    monkeypatch.setattr(sampling, "randomness", lambda *_: (cumulative, uniform, torch.zeros(4, 1)))
    means = torch.arange(5.0).unsqueeze(-1)
    draws = sample(torch.zeros(5), means, torch.zeros(5, 1), (4,))
    assert draws.flatten().tolist() == [1, 1, 3, 3]


def expectation_gradient(function, parameters, exact):
    """Compare the gradient of a sample average with the exact one, in standard errors."""
    inputs = [p.clone().requires_grad_() for p in parameters]
    expected = torch.autograd.grad(exact(*inputs), inputs, allow_unused=True)
    blocks = []
    for block in range(40):
        generator = torch.Generator().manual_seed(block)
        draws = rsample(*inputs, (5_000,), generator=generator)
        blocks.append(torch.autograd.grad(function(draws).mean(), inputs))
    for position, reference in enumerate(expected):
        values = torch.stack([b[position] for b in blocks])
        error = values.std(0) / math.sqrt(len(blocks))
        reference = torch.zeros_like(values[0]) if reference is None else reference
        # 40 blocks: Student's t with 39 degrees of freedom exceeds 5 once in 80 000.
        assert ((values.mean(0) - reference).abs() <= 5 * error + 1e-9).all()
        # The comparison has power: the gradients stand out from their errors.
        if reference.abs().max() > 0:
            assert (reference.abs().max() / error.max()) > 5


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("dimensions", [1, 3])
def test_gradients_of_first_and_second_moments_are_exact(dimensions, covariance):
    parameters = random_parameters((), 3, dimensions, covariance=covariance, spread=1.0)
    direction = torch.randn(dimensions, dtype=torch.float64)

    def first(draws):
        return draws @ direction

    def second(draws):
        return (draws @ direction).square()

    def exact_first(logits, means, factors):
        return mean(logits, means) @ direction + 0 * factors.sum()

    def exact_second(logits, means, factors):
        spread = direction @ functional.mixture.covariance(logits, means, factors) @ direction
        return spread + exact_first(logits, means, factors).square()

    expectation_gradient(first, parameters, exact_first)
    expectation_gradient(second, parameters, exact_second)


def test_gradient_of_a_curved_function():
    """E[cos(aᵀx)] has the closed form of a characteristic function."""
    parameters = random_parameters((), 3, 2, spread=1.0, seed=5)
    a = torch.tensor([0.7, -0.4], dtype=torch.float64)

    def exact(logits, means, factors):
        spread = torch.einsum("i,kij,j->k", a, component_covariances(factors, 2), a)
        return (torch.softmax(logits, -1) * torch.cos(means @ a) * torch.exp(-0.5 * spread)).sum()

    expectation_gradient(lambda draws: torch.cos(draws @ a), parameters, exact)


def test_one_component_is_the_plain_pathwise_gradient():
    logits, means, factors = random_parameters((2,), 1, 3)
    inputs = [t.clone().requires_grad_() for t in (logits, means, factors)]
    draws = rsample(*inputs, (6,), generator=torch.Generator().manual_seed(2))
    noise = whiten(draws.detach().unsqueeze(-2) - means, factors)
    plain = (inputs[1] + unwhiten(noise, inputs[2])).squeeze(-2)
    cotangent = torch.randn_like(draws)
    ours = torch.autograd.grad((draws * cotangent).sum(), inputs)
    expected = torch.autograd.grad((plain * cotangent).sum(), inputs[1:])
    assert_close(ours[0], torch.zeros_like(logits), rtol=0, atol=1e-12)
    assert_close(ours[1:], expected, rtol=1e-9, atol=1e-9)


def test_draws_from_every_component():
    _, means, factors = random_parameters((2,), 3, 2)
    draws = sample_components(means, factors, 50_000)
    assert draws.shape == (50_000, 2, 3, 2)
    exact = component_covariances(factors, 2)
    error = exact.diagonal(dim1=-2, dim2=-1).sqrt() / math.sqrt(50_000)
    assert ((draws.mean(0) - means).abs() < 5 * error).all()
    centred = draws - draws.mean(0)
    spread = torch.einsum("n...i,n...j->...ij", centred, centred) / 50_000
    size = exact.abs().amax((-1, -2), keepdim=True)
    assert ((spread - exact).abs() < 5 * size * math.sqrt(2 / 50_000)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [-40.0, -30.0, 30.0, 40.0])
@pytest.mark.parametrize("n_components", [1, 2])
def test_gradients_of_extreme_scales_are_never_nan(n_components, scale, dtype):
    torch.manual_seed(1)
    factors = torch.tensor([[scale, scale, 1.0]], dtype=dtype).expand(n_components, -1).clone()
    inputs = [
        torch.zeros(n_components, dtype=dtype),
        torch.randn(n_components, 2, dtype=dtype) * math.exp(-scale),
        factors,
    ]
    inputs = [t.requires_grad_() for t in inputs]
    draws = rsample(*inputs, (100,))
    gradients = torch.autograd.grad(draws.sum(), inputs)
    assert not any(g.isnan().any() for g in gradients)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_samples_are_those_of_rsample_in_every_dtype(dtype):
    parameters = [p.to(dtype).requires_grad_() for p in random_parameters((2,), 3, 2)]
    first = sample(*parameters, (4,), generator=torch.Generator().manual_seed(1))
    second = rsample(*parameters, (4,), generator=torch.Generator().manual_seed(1))
    assert first.dtype == second.dtype == dtype
    assert_close(first, second.detach())
    second.sum().backward()
    assert all(p.grad.isfinite().all() for p in parameters)


# Batch, components, dimensions, draws: around the widths of vectors, blocks, tiles and turns.
SIZES = [
    ((), 1, 1, 1),
    ((), 1, 3, 33),
    ((8,), 1, 16, 31),
    ((3, 2), 3, 2, 65),
    ((2, 1, 3), 70, 3, 40),
    ((9,), 5, 4, 64),
    ((17,), 20, 8, 300),
    ((2,), 5, 9, 1025),
    ((3,), 4, 10, 100),
    ((4,), 3, 30, 33),
    ((5,), 3, 30, 1),
    ((5,), 3, 70, 7),
    ((), 40, 2, 3000),
    ((), 5, 17, 2100),
    ((0,), 3, 2, 5),
    ((2, 0), 3, 2, 5),
    ((2,), 3, 2, 0),
]


def one_by_one(logits, means, factors, draws, seed):
    """Return draws, each solved alone with its own dense factor, and what one σ of each is.

    The contract between the implementations: uniform numbers choose the components, then
    row s of the noise becomes draw s.
    """
    generator = torch.Generator().manual_seed(seed)
    batch, dimensions = means.shape[:-2], means.shape[-1]
    uniform = torch.rand((draws, *batch), dtype=torch.float64, generator=generator)
    noise = torch.randn((draws, *batch, dimensions), dtype=means.dtype, generator=generator)
    bounds = torch.softmax(logits.double(), -1).cumsum(-1)
    index = (uniform.unsqueeze(-1) >= bounds).sum(-1)[..., None, None]
    variance = component_covariances(factors.double(), dimensions).diagonal(dim1=-2, dim2=-1)
    centre, sigma = (
        torch.take_along_dim(t[None], index, -2).squeeze(-2)
        for t in (means.double(), variance.sqrt())
    )
    upper = unpack(factors.double(), dimensions)
    chosen = torch.take_along_dim(upper[None], index.unsqueeze(-1), -3).squeeze(-3)
    return centre + torch.linalg.solve(chosen, noise.double()), sigma


def assert_same_draws(draws, exact, sigma):
    """The arithmetic is in double: the result is off by one rounding, and hardly more."""
    rounding = torch.finfo(draws.dtype).eps / 2
    allowed = rounding * exact.abs() * (1 + 1e-6) + 1e-12 * (sigma + exact.abs())
    assert draws.shape == exact.shape
    assert ((draws.double() - exact).abs() <= allowed).all()


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.usefixtures("implementation")
def test_every_draw_is_the_one_solved_alone(size, dtype, covariance):
    batch, n_components, dimensions, draws = size
    logits, means, factors = random_parameters(
        batch, n_components, dimensions, covariance=covariance
    )
    if n_components > 3:
        logits[..., 0] = logits[..., -1] = -torch.inf
    parameters = [p.to(dtype) for p in (logits, means, factors)]
    result = sample(*parameters, (draws,), generator=torch.Generator().manual_seed(5))
    assert_same_draws(result, *one_by_one(*parameters, draws, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("correlation", [0.9, 0.999999])
@pytest.mark.parametrize("draws", [2, 300])
@pytest.mark.usefixtures("implementation")
def test_strong_correlations_and_different_units(draws, correlation, dtype):
    """Coordinates are small differences of large numbers: with float32 sums, digits are lost."""
    dimensions, n_components = 10, 3
    distance = (torch.arange(dimensions)[:, None] - torch.arange(dimensions)).abs()
    units = torch.logspace(-3, 3, dimensions, dtype=torch.float64)
    precision = torch.linalg.inv(correlation ** distance.double())
    upper = torch.linalg.cholesky(precision).mT / units
    factors = pack(torch.stack([upper, 3 * upper, upper / 7])).to(dtype)
    means = (units * torch.arange(n_components)[:, None]).to(dtype)
    parameters = (torch.zeros(n_components, dtype=dtype), means, factors)
    result = sample(*parameters, (draws,), generator=torch.Generator().manual_seed(2))
    assert_same_draws(result, *one_by_one(*parameters, draws, 2))


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.usefixtures("implementation")
def test_parameters_may_lie_anyhow_in_memory(covariance):
    parameters = random_parameters((3, 4), 3, 5, covariance=covariance)
    last = [p.movedim((0, 1), (-1, -2)).contiguous().movedim((-1, -2), (0, 1)) for p in parameters]
    assert not any(p.is_contiguous() for p in last)
    result = sample(*last, (70,), generator=torch.Generator().manual_seed(5))
    assert_same_draws(result, *one_by_one(*parameters, 70, 5))


def test_chunks_of_blocks_do_not_change_a_draw(monkeypatch):
    monkeypatch.setenv("CONDENS_KERNEL", "reference")
    parameters = random_parameters((3,), 4, 3)
    for numbers in (1, 500):
        monkeypatch.setattr(sampling, "NUMBERS_PER_CHUNK", numbers)
        result = sample(*parameters, (150,), generator=torch.Generator().manual_seed(5))
        assert_same_draws(result, *one_by_one(*parameters, 150, 5))


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.usefixtures("implementation")
def test_components_come_as_often_and_as_wide_as_they_should(covariance):
    """Counts and whitened moments of each component: 1 in 10 000 right samplers fails."""
    members, n_components, dimensions, draws = 3, 6, 4, 20_000
    parameters = random_parameters((members,), n_components, dimensions, covariance=covariance)
    logits, means, factors = parameters
    logits[:, 2] = -torch.inf
    # So far apart that every draw tells its component.
    means += 1e4 * torch.arange(n_components)[:, None]
    result = sample(*parameters, (draws,), generator=torch.Generator().manual_seed(11))
    index = (result[..., 0] / 1e4).round().long()
    tests = 2 * members * n_components
    for member in range(members):
        counts = torch.bincount(index[:, member], minlength=n_components)
        assert counts[2] == 0
        expected = draws * torch.softmax(logits[member], -1)
        drawn = expected > 0
        p = stats.chisquare(counts[drawn].numpy(), expected[drawn].numpy()).pvalue
        assert p > 1e-4 / tests
        for k in drawn.nonzero().flatten():
            chosen = result[index[:, member] == k, member]
            z = whiten(chosen - means[member, k], factors[member, k])
            mean_score = len(z) * z.mean(0).square().sum()
            assert stats.chi2(dimensions).sf(mean_score) > 1e-4 / tests
            second = z.T @ z / len(z) - torch.eye(dimensions)
            # Entries have variance 1/n, those of the diagonal 2/n.
            error = (1 + torch.eye(dimensions)).sqrt() / math.sqrt(len(z))
            assert (second.abs() < 5.5 * error).all()


def test_without_the_kernel_draws_are_one_graph(monkeypatch):
    monkeypatch.setenv("CONDENS_KERNEL", "reference")
    parameters = random_parameters((2,), 3, 2)
    results = []
    for function in (sample, torch.compile(sample, backend="eager", fullgraph=True)):
        torch.manual_seed(3)
        results.append(function(*parameters, (50,)))
    assert_close(*results, rtol=1e-12, atol=1e-12)


@pytest.mark.skipif(bool(native.missing), reason=native.missing)
@pytest.mark.parametrize(("batch", "draws"), [((50,), 300), ((), 5000)], ids=str)
def test_threads_do_not_change_a_draw(batch, draws):
    parameters = random_parameters(batch, 4, 3)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            generator = torch.Generator().manual_seed(5)
            results.append(sample(*parameters, (draws,), generator=generator))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


def test_draws_are_exchangeable():
    """Draws that share a factor are solved together, but must not come out together."""
    logits, means = torch.zeros(2), torch.tensor([[-100.0], [100.0]])
    draws = sample(logits, means, torch.zeros(2, 1), (10_000,)).squeeze(-1)
    positive = (draws > 0).double()
    runs = 1 + (positive.diff() != 0).sum()
    # Of a fair coin: n/2 runs, with a deviation of √n/2.
    assert abs(runs.item() - 5_000) < 5 * 50


def test_parameters_of_different_batches_broadcast():
    logits, means, factors = random_parameters((4,), 3, 2)
    assert sample(logits[0], means, factors[:1], (5,)).shape == (5, 4, 2)
    assert rsample(logits[0], means, factors[:1], (5,)).shape == (5, 4, 2)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("dtypes", [*itertools.product([torch.float32, torch.float64], repeat=3)])
def test_every_parameter_has_its_own_precision(dtypes):
    parameters = [p.to(d) for p, d in zip(random_parameters((3,), 3, 4), dtypes, strict=True)]
    result = sample(*parameters, (40,), generator=torch.Generator().manual_seed(5))
    assert result.dtype is dtypes[1]
    assert_same_draws(result, *one_by_one(*parameters, 40, 5))


@pytest.mark.parametrize("function", [sample, rsample])
def test_means_and_factors_are_not_broadcast_over_components(function):
    logits, means, factors = random_parameters((2,), 300, 3)
    with pytest.raises(ShapeError, match="factors has 1 components, but means has 300"):
        function(logits, means, factors[:, :1], (50,))
    with pytest.raises(ShapeError, match="logits has 300 components, but means has 1"):
        function(logits, means[:, :1], factors, (50,))


def draw_three(*parameters):
    return sample(*parameters, (3,))


class Draws(torch.nn.Module):
    """As a module, for torch.export and torch.jit."""

    forward = staticmethod(draw_three)


GRAPHS = {
    "trace": lambda *examples: torch.jit.trace(draw_three, examples, check_trace=False),
    "export": lambda *examples: torch.export.export(Draws(), examples).module(),
    "compile": lambda *_: torch.compile(draw_three, backend="aot_eager", fullgraph=True),
}


@pytest.mark.usefixtures("implementation")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("way", GRAPHS)
def test_graphs_draw_from_the_parameters_they_are_given(way):
    """Made with one mixture, asked about another: the draws are the other's, by the seed."""
    examples = [p.float() for p in random_parameters((4,), 3, 2)]
    graph = GRAPHS[way](*examples)
    others = [p.float() for p in random_parameters((4,), 3, 2, seed=9)]
    others[1] += 1000
    torch.manual_seed(3)
    expected = draw_three(*others)
    torch.manual_seed(3)
    assert_close(graph(*others), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_traced_mixture_draws_from_what_it_is_given():
    def draw(means):
        mixture = GaussianMixture(
            torch.zeros(3, 1), means.unsqueeze(1), torch.zeros(3, 1, 3), validate_args=False
        )
        return mixture.sample()

    traced = torch.jit.trace(draw, torch.zeros(3, 2), check_trace=False)
    assert (traced(torch.full((3, 2), 1000.0)) > 900).all()


def test_an_exported_graph_draws_for_any_batch():
    batch = torch.export.Dim("batch")

    class Module(torch.nn.Module):
        def forward(self, logits, means, factors):
            return sample(logits, means, factors, (3,))

    shapes = {name: {0: batch} for name in ("logits", "means", "factors")}
    examples = tuple(p.float() for p in random_parameters((4,), 3, 2))
    graph = torch.export.export(Module(), examples, dynamic_shapes=shapes).module()
    assert graph(*(torch.cat([p, p, p]) for p in examples)).shape == (3, 12, 2)


@pytest.mark.skipif(bool(native.missing), reason=native.missing)
def test_the_operator_is_well_formed():
    logits, means, factors = random_parameters((4,), 3, 2)
    cumulative = torch.softmax(logits, -1).cumsum(-1)
    uniform = torch.rand(5, 4, dtype=torch.float64)
    noise = torch.randn(5, 4, 2, dtype=torch.float64)
    torch.library.opcheck(torch.ops.condens.draw, (noise, uniform, cumulative, means, factors))


@pytest.mark.usefixtures("implementation")
class TestVmap:
    """Mapped draws are those of the members, and the noise follows torch's rules."""

    def test_the_same_noise_for_every_member(self):
        parameters = random_parameters((5, 2), 3, 2)
        torch.manual_seed(3)
        mapped = torch.vmap(draw_three, randomness="same", out_dims=1)(*parameters)
        for i in range(5):
            torch.manual_seed(3)
            expected = draw_three(*(p[i] for p in parameters))
            assert_close(mapped[:, i], expected, rtol=1e-12, atol=1e-12)

    def test_noise_of_its_own_for_every_member(self):
        logits, means, factors = random_parameters((2,), 3, 2)
        centres = means + 1e6 * torch.arange(5)[:, None, None, None]
        mapped = torch.vmap(draw_three, in_dims=(None, 0, None), randomness="different")
        draws = mapped(logits, centres, factors)
        assert draws.shape == (5, 3, 2, 2)
        offset = draws - 1e6 * torch.arange(5)[:, None, None, None]
        assert offset.abs().max() < 1e4
        assert len(offset.flatten(1).unique(dim=0)) == 5

    def test_torch_refuses_noise_nobody_asked_for(self):
        with pytest.raises(RuntimeError, match="randomness"):
            torch.vmap(draw_three)(*random_parameters((5,), 3, 2))

    def test_maps_of_maps(self):
        parameters = random_parameters((4, 5), 3, 2)
        inner = torch.vmap(draw_three, randomness="different", out_dims=1)
        outer = torch.vmap(inner, in_dims=(1, 1, 1), randomness="different", out_dims=0)
        assert outer(*parameters).shape == (5, 3, 4, 2)

    @pytest.mark.filterwarnings("ignore:There is a performance drop")
    def test_gradients_of_mapped_draws(self):
        parameters = random_parameters((4,), 3, 2)

        def gradient(*member):
            def loss(member):
                return rsample(*member, (3,)).square().sum()

            return torch.func.grad(loss)(member)

        torch.manual_seed(3)
        mapped = torch.vmap(gradient, randomness="same")(*parameters)
        for i in range(4):
            torch.manual_seed(3)
            alone = gradient(*(p[i] for p in parameters))
            assert_close([m[i] for m in mapped], list(alone), rtol=1e-9, atol=1e-9)
