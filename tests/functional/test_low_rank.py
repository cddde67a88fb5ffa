import math

import numpy as np
import pytest
import torch
from helpers.reference import dense_low_rank, log_density, random_low_rank
from scipy import stats
from torch.distributions import (
    Categorical,
    LowRankMultivariateNormal,
    MixtureSameFamily,
    MultivariateNormal,
)
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from condens.functional import conditional_cdfs
from condens.functional.low_rank import algebra as low_rank_algebra
from condens.functional.low_rank import mixture as low_rank

SIZES = [(k, d, r) for k in (1, 3) for d in (1, 2, 5) for r in (1, 2, 5)]
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


@pytest.mark.parametrize(("n_components", "dimensions", "rank"), SIZES)
def test_log_prob_against_scipy(n_components, dimensions, rank):
    parameters = random_low_rank((), n_components, dimensions, rank)
    x = 3 * torch.randn(50, dimensions, dtype=torch.float64)
    expected = log_density(x.numpy(), *dense_low_rank(*parameters)).reshape(50)
    np.testing.assert_allclose(low_rank.log_prob(x, *parameters), expected, **CLOSE)


@pytest.mark.parametrize(("n_components", "dimensions", "rank"), SIZES)
def test_batched_log_prob_against_torch(n_components, dimensions, rank):
    logits, means, log_scales, loadings = random_low_rank((4, 2), n_components, dimensions, rank)
    covariances = torch.diag_embed((2 * log_scales).exp()) + loadings @ loadings.mT
    x = 3 * torch.randn(3, 4, 2, dimensions, dtype=torch.float64)
    for twin in (
        MultivariateNormal(means, covariances),
        LowRankMultivariateNormal(means, loadings, (2 * log_scales).exp()),
    ):
        expected = MixtureSameFamily(Categorical(logits=logits), twin).log_prob(x)
        ours = low_rank.log_prob(x, logits, means, log_scales, loadings)
        assert_close(ours, expected, **CLOSE)
        each = low_rank.component_log_prob(x, means, log_scales, loadings)
        assert_close(each, twin.log_prob(x.unsqueeze(-2)), **CLOSE)


def test_batch_axes_broadcast():
    logits, means, log_scales, loadings = random_low_rank((4,), 3, 2, 2)
    x = torch.randn(5, 1, 2, dtype=torch.float64)
    together = low_rank.log_prob(x, logits[:1], means, log_scales[0], loadings)
    assert together.shape == (5, 4)
    for i in range(5):
        for j in range(4):
            alone = low_rank.log_prob(x[i, 0], logits[0], means[j], log_scales[0], loadings[j])
            assert_close(together[i, j], alone, rtol=1e-12, atol=1e-12)
    assert low_rank.sample(logits[0], means, log_scales[:1], loadings, (6,)).shape == (6, 4, 2)
    assert low_rank_algebra.full_factors(log_scales[0], loadings).shape == (4, 3, 3)


@pytest.mark.parametrize(("dimensions", "rank"), [(3, 2), (2, 3)])
def test_first_and_second_derivatives(dimensions, rank):
    parameters = [p.requires_grad_() for p in random_low_rank((2,), 2, dimensions, rank)]
    x = torch.randn(2, dimensions, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(low_rank.log_prob, (x, *parameters))
    assert torch.autograd.gradgradcheck(low_rank.log_prob, (x, *parameters))


def test_derivatives_without_loadings():
    """At V = 0 the columns of V depend on each other, as at the start of a training."""
    logits, means, log_scales, loadings = random_low_rank((2,), 2, 3, 2)
    x = torch.randn(2, 3, dtype=torch.float64)
    inputs = [
        p.requires_grad_() for p in (x, logits, means, log_scales, torch.zeros_like(loadings))
    ]
    assert torch.autograd.gradcheck(low_rank.log_prob, inputs)
    assert torch.autograd.gradgradcheck(low_rank.log_prob, inputs)


def dense_log_prob(x, logits, means, log_scales, loadings):
    covariances = torch.diag_embed((2 * log_scales).exp()) + loadings @ loadings.mT
    each = MultivariateNormal(means, covariances, validate_args=False)
    return torch.logsumexp(torch.log_softmax(logits, -1) + each.log_prob(x.unsqueeze(-2)), -1)


def test_works_under_functional_transforms_to_the_third_order():
    parameters = random_low_rank((6,), 3, 3, 2)
    x = torch.randn(6, 3, dtype=torch.float64)
    rowwise = torch.func.vmap(low_rank.log_prob)(x, *parameters)
    assert_close(rowwise, low_rank.log_prob(x, *parameters), rtol=1e-12, atol=1e-12)
    one, jacrev = [p[0] for p in (x, *parameters)], torch.func.jacrev
    for position in range(5):
        for derive in (
            lambda f, i=position: torch.func.grad(f, i),
            lambda f, i=position: jacrev(torch.func.grad(f, i), i),
            lambda f, i=position: jacrev(jacrev(torch.func.grad(f, i), i), i),
        ):
            ours, twin = derive(low_rank.log_prob)(*one), derive(dense_log_prob)(*one)
            assert_close(ours, twin, rtol=1e-8, atol=1e-8)


def test_works_under_compilation():
    """Traced, not optimised: the graph is the same for every backend."""
    parameters = random_low_rank((6,), 3, 3, 2)
    x = torch.randn(6, 3, dtype=torch.float64)
    compiled = torch.compile(low_rank.log_prob, backend="eager", fullgraph=True)
    expected = low_rank.log_prob(x, *parameters)
    assert_close(compiled(x, *parameters), expected, rtol=1e-12, atol=1e-12)


def test_order_of_components_and_rotation_of_factors_do_not_matter():
    logits, means, log_scales, loadings = random_low_rank((2,), 5, 3, 2)
    x = torch.randn(7, 2, 3, dtype=torch.float64)
    expected = low_rank.log_prob(x, logits, means, log_scales, loadings)
    order = torch.randperm(5)
    shuffled = [p[:, order] for p in (logits, means, log_scales, loadings)]
    assert_close(low_rank.log_prob(x, *shuffled), expected, rtol=1e-12, atol=1e-12)
    rotation = torch.linalg.qr(torch.randn(2, 2, dtype=torch.float64)).Q
    turned = low_rank.log_prob(x, logits, means, log_scales, loadings @ rotation)
    assert_close(turned, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rank", [1, 3])
def test_integrates_to_one(rank):
    for dimensions, points in ((1, 4001), (2, 801)):
        parameters = random_low_rank((), 3, dimensions, rank, spread=1.0)
        axis = torch.linspace(-40, 40, points, dtype=torch.float64)
        grid = torch.cartesian_prod(*[axis] * dimensions).reshape(-1, dimensions)
        # The trapezoidal rule on a smooth function that vanishes at the edges: spectral accuracy.
        density = low_rank.log_prob(grid, *parameters).exp()
        integral = density.sum() * (axis[1] - axis[0]) ** dimensions
        assert_close(integral.item(), 1.0, rtol=0, atol=1e-9)


def test_responsibilities_are_bayes_rule():
    parameters = random_low_rank((), 3, 4, 2)
    weights, means, covariances = dense_low_rank(*parameters)
    x = torch.randn(20, 4, dtype=torch.float64)
    joint = np.stack(
        [
            w * stats.multivariate_normal(m, c).pdf(x.numpy())
            for w, m, c in zip(weights, means, covariances, strict=True)
        ],
        -1,
    )
    expected = joint / joint.sum(-1, keepdims=True)
    ours = low_rank.responsibilities(x, *parameters)
    np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("n_components", "dimensions", "rank"), SIZES)
def test_moments_against_dense_formulas(n_components, dimensions, rank):
    parameters = random_low_rank((), n_components, dimensions, rank)
    weights, means, covariances = dense_low_rank(*parameters)
    centre = weights @ means
    offset = means - centre
    expected = np.einsum("k,kij->ij", weights, covariances) + np.einsum(
        "k,ki,kj->ij", weights, offset, offset
    )
    np.testing.assert_allclose(low_rank.covariance(*parameters), expected, **CLOSE)
    np.testing.assert_allclose(low_rank.variance(*parameters), np.diag(expected), **CLOSE)
    each = low_rank.component_covariances(*parameters[2:])
    np.testing.assert_allclose(each, covariances, **CLOSE)


def test_entropy_of_one_gaussian_is_exact():
    logits, means, log_scales, loadings = random_low_rank((4,), 1, 5, 2)
    value, error = low_rank.entropy(logits, means, log_scales, loadings, 2)
    covariances = low_rank.component_covariances(log_scales, loadings).squeeze(-3)
    expected = MultivariateNormal(means.squeeze(-2), covariances).entropy()
    assert_close(value, expected, **CLOSE)
    assert (error == 0).all()


# Draws.


@pytest.mark.parametrize("n_components", [1, 3])
@pytest.mark.parametrize(("dimensions", "rank"), [(1, 2), (3, 1), (5, 2), (2, 5)])
def test_samples_follow_the_density(dimensions, rank, n_components):
    """Rosenblatt's transform of right samples is uniform: 1 in 10 000 right samplers fails."""
    parameters = random_low_rank((2,), n_components, dimensions, rank)
    draws = low_rank.sample(*parameters, (20_000,), generator=torch.Generator().manual_seed(7))
    factors = low_rank_algebra.full_factors(*parameters[2:])
    uniform = conditional_cdfs(draws, *parameters[:2], factors)
    for member in range(2):
        for i in range(dimensions):
            assert stats.kstest(uniform[:, member, i].numpy(), "uniform").pvalue > 1e-4 / 10
        # Uniform margins do not show dependence: correlations of n draws are N(0, 1/n).
        if dimensions > 1:
            correlation = torch.corrcoef(uniform[:, member].T) - torch.eye(dimensions)
            assert correlation.abs().max() < 4.5 / math.sqrt(20_000)


def test_moments_of_draws_in_many_dimensions():
    """Whitened draws of one Gaussian: 50 means and 1275 products, each beyond 5 σ once in 10⁶."""
    logits, means, log_scales, loadings = random_low_rank((), 1, 50, 3)
    count = 40_000
    for draws in (
        low_rank.sample(
            logits,
            means,
            log_scales,
            loadings,
            (count,),
            generator=torch.Generator().manual_seed(1),
        ),
        low_rank.sample_components(
            means, log_scales, loadings, count, generator=torch.Generator().manual_seed(2)
        )[:, 0],
    ):
        root = torch.linalg.cholesky(low_rank.component_covariances(log_scales, loadings)[0])
        white = torch.linalg.solve_triangular(root, (draws - means[0]).T, upper=False)
        assert white.mean(1).abs().max() < 5 / math.sqrt(count)
        deviation = white @ white.T / count - torch.eye(50)
        # A product of two has variance one, a square two.
        assert (deviation.abs() < 5 * math.sqrt(1 / count) * (1 + 0.42 * torch.eye(50))).all()


def test_shapes_generator_and_no_gradient():
    parameters = [p.requires_grad_() for p in random_low_rank((4, 2), 3, 5, 2)]
    first = low_rank.sample(*parameters, (6, 7), generator=torch.Generator().manual_seed(3))
    second = low_rank.sample(*parameters, (6, 7), generator=torch.Generator().manual_seed(3))
    assert first.shape == (6, 7, 4, 2, 5)
    assert not first.requires_grad
    assert torch.equal(first, second)
    assert low_rank.sample(*parameters).shape == (4, 2, 5)
    assert low_rank.sample(*parameters, (0,)).shape == (0, 4, 2, 5)


def test_a_component_without_weight_is_never_drawn():
    logits = torch.tensor([-torch.inf, 0.0, -torch.inf])
    means = torch.tensor([[-1e6], [0.0], [1e6]])
    loadings = torch.tensor([1e6, 1.0, 1e6]).reshape(3, 1, 1)
    draws = low_rank.sample(logits, means, torch.zeros(3, 1), loadings, (100_000,))
    assert draws.abs().max() < 10


class LargestTensor(TorchDispatchMode):
    """Remember the size of the largest tensor that any operation returns."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, torch.Tensor):
                # What is stored, not what an expanded view pretends to hold.
                stored = value.untyped_storage().nbytes() // value.element_size()
                self.numbers = max(self.numbers, stored)
        return result


def test_a_thousand_dimensions_take_memory_in_proportion_to_the_loadings():
    batch, n_components, dimensions, rank = 64, 5, 1000, 10
    parameters = [
        p.float().requires_grad_()
        for p in random_low_rank((batch,), n_components, dimensions, rank)
    ]
    stacked = batch * n_components * (dimensions + rank) * rank
    assert stacked < batch * n_components * dimensions**2 / 50
    observed = list(range(0, dimensions, 3))
    with LargestTensor() as largest:
        x = low_rank.sample(*parameters, (3,))
        value = low_rank.log_prob(x, *parameters)
        value.sum().backward()
        given = low_rank_algebra.condition(*parameters, observed, x[0][:, observed])
        kept = low_rank_algebra.marginal(*given, [5, 1, 3])
        low_rank.variance(*parameters)
        low_rank.responsibilities(x, *parameters)
    assert value.isfinite().all()
    assert all(p.grad.isfinite().all() for p in parameters)
    assert kept.loadings.shape == (batch, n_components, 3, rank)
    assert largest.numbers <= stacked
    with LargestTensor() as largest:
        low_rank.covariance(*(p[:1] for p in parameters))
    assert largest.numbers >= dimensions**2
