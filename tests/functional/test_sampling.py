import math

import pytest
import torch
from reference import STRUCTURES, random_parameters
from scipy import stats
from torch.testing import assert_close

from condens.functional import conditional_cdfs, rsample, sample, unpack, unwhiten, whiten
from condens.functional.mixture import component_covariances, covariance, mean
from condens.functional.sampling import sample_components
from condens.kernels import native


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("components", [1, 3])
@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_samples_follow_the_density(dimensions, components, structure):
    """Rosenblatt's transform of right samples is uniform: 1 in 10 000 right samplers fails."""
    parameters = random_parameters((2,), components, dimensions, structure=structure)
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


def test_a_component_without_weight_is_never_drawn():
    logits = torch.tensor([-torch.inf, 0.0, -torch.inf])
    means = torch.tensor([[-1e6], [0.0], [1e6]])
    draws = sample(logits, means, torch.zeros(3, 1), (100_000,))
    assert draws.abs().max() < 10


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


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("dimensions", [1, 3])
def test_gradients_of_first_and_second_moments_are_exact(dimensions, structure):
    parameters = random_parameters((), 3, dimensions, structure=structure, spread=1.0)
    direction = torch.randn(dimensions, dtype=torch.float64)

    def first(draws):
        return draws @ direction

    def second(draws):
        return (draws @ direction).square()

    def exact_first(logits, means, factors):
        return mean(logits, means) @ direction + 0 * factors.sum()

    def exact_second(logits, means, factors):
        spread = direction @ covariance(logits, means, factors) @ direction
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
@pytest.mark.parametrize("components", [1, 2])
def test_gradients_of_extreme_scales_are_never_nan(components, scale, dtype):
    torch.manual_seed(1)
    factors = torch.tensor([[scale, scale, 1.0]], dtype=dtype).expand(components, -1).clone()
    inputs = [
        torch.zeros(components, dtype=dtype),
        torch.randn(components, 2, dtype=dtype) * math.exp(-scale),
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


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(1, 1, 1), (5, 3, 2), (300, 20, 2), (700, 3, 17)], ids=str)
def test_every_implementation_draws_the_same(size, dtype, structure, monkeypatch):
    draws, components, dimensions = size
    parameters = random_parameters((3, 2), components, dimensions, structure=structure)
    parameters = [p.to(dtype) for p in parameters]
    results = []
    for name in ("reference", "native") if not native.missing else ("reference", "eager"):
        monkeypatch.setenv("CONDENS_KERNEL", name)
        generator = torch.Generator().manual_seed(5)
        results.append(sample(*parameters, (draws,), generator=generator))
    tolerance = (
        {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-11}
    )
    assert_close(*results, **tolerance)


@pytest.mark.skipif(bool(native.missing), reason=native.missing)
def test_threads_do_not_change_a_draw():
    parameters = random_parameters((50,), 4, 3)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            generator = torch.Generator().manual_seed(5)
            results.append(sample(*parameters, (300,), generator=generator))
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
