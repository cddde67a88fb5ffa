import numpy as np
import pytest
import torch
from helpers.reference import COVARIANCES, dense, log_density, random_parameters
from scipy import stats
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal
from torch.testing import assert_close

from condens.functional import component_log_prob, log_prob, mixture, responsibilities, unpack
from condens.functional.mixture import mean, variance

SIZES = [(k, d) for k in (1, 3, 20) for d in (1, 2, 5, 20)]


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize(("n_components", "dimensions"), SIZES)
def test_log_prob_against_scipy(n_components, dimensions, covariance):
    parameters = random_parameters((), n_components, dimensions, covariance=covariance)
    x = 3 * torch.randn(50, dimensions, dtype=torch.float64)
    expected = log_density(x.numpy().reshape(50, dimensions), *dense(*parameters))
    np.testing.assert_allclose(log_prob(x, *parameters), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize(("n_components", "dimensions"), SIZES)
def test_batched_log_prob_against_torch(n_components, dimensions, covariance):
    logits, means, factors = random_parameters(
        (4, 2), n_components, dimensions, covariance=covariance
    )
    upper = unpack(factors, dimensions)
    twin = MixtureSameFamily(
        Categorical(logits=logits), MultivariateNormal(means, precision_matrix=upper.mT @ upper)
    )
    x = 3 * torch.randn(3, 4, 2, dimensions, dtype=torch.float64)
    assert_close(log_prob(x, logits, means, factors), twin.log_prob(x), rtol=1e-8, atol=1e-8)


def test_batch_axes_broadcast():
    logits, means, factors = random_parameters((4,), 3, 2)
    x = torch.randn(5, 1, 2, dtype=torch.float64)
    together = log_prob(x, logits[:1], means, factors)
    assert together.shape == (5, 4)
    for i in range(5):
        for j in range(4):
            alone = log_prob(x[i, 0], logits[0], means[j], factors[j])
            assert_close(together[i, j], alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_first_and_second_derivatives(covariance):
    parameters = [p.requires_grad_() for p in random_parameters((2,), 3, 3, covariance=covariance)]
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(log_prob, (x, *parameters))
    assert torch.autograd.gradgradcheck(log_prob, (x, *parameters))


def test_works_under_functional_transforms():
    logits, means, factors = random_parameters((6,), 3, 3)
    x = torch.randn(6, 3, dtype=torch.float64)
    rowwise = torch.func.vmap(log_prob)(x, logits, means, factors)
    assert_close(rowwise, log_prob(x, logits, means, factors), rtol=1e-12, atol=1e-12)
    gradient = torch.func.vmap(torch.func.grad(log_prob, argnums=3))(x, logits, means, factors)
    factors.requires_grad_()
    (expected,) = torch.autograd.grad(log_prob(x, logits, means, factors).sum(), factors)
    assert_close(gradient, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_works_under_compilation(covariance):
    """Traced, not optimised: the graph is the same for every backend."""
    logits, means, factors = random_parameters((6,), 3, 3, covariance=covariance)
    x = torch.randn(6, 3, dtype=torch.float64)
    compiled = torch.compile(log_prob, backend="eager", fullgraph=True)
    expected = log_prob(x, logits, means, factors)
    assert_close(compiled(x, logits, means, factors), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_order_of_components_does_not_matter(covariance):
    logits, means, factors = random_parameters((2,), 5, 3, covariance=covariance)
    x = torch.randn(7, 2, 3, dtype=torch.float64)
    order = torch.randperm(5)
    shuffled = (logits[:, order], means[:, order], factors[:, order])
    expected = log_prob(x, logits, means, factors)
    assert_close(log_prob(x, *shuffled), expected, rtol=1e-12, atol=1e-12)


def test_shifted_logits_are_the_same_mixture():
    logits, means, factors = random_parameters((2,), 5, 3)
    x = torch.randn(7, 2, 3, dtype=torch.float64)
    shifted = log_prob(x, logits + 1000.0, means, factors)
    assert_close(shifted, log_prob(x, logits, means, factors), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("n_components", [1, 3])
def test_integrates_to_one(n_components, covariance):
    for dimensions, points in ((1, 4001), (2, 801)):
        parameters = random_parameters(
            (), n_components, dimensions, covariance=covariance, spread=1.0
        )
        axis = torch.linspace(-40, 40, points, dtype=torch.float64)
        grid = torch.cartesian_prod(*[axis] * dimensions).reshape(-1, dimensions)
        # The trapezoidal rule on a smooth function that vanishes at the edges: spectral accuracy.
        integral = log_prob(grid, *parameters).exp().sum() * (axis[1] - axis[0]) ** dimensions
        assert_close(integral.item(), 1.0, rtol=0, atol=1e-9)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_responsibilities_are_bayes_rule(covariance):
    parameters = random_parameters((), 3, 2, covariance=covariance)
    weights, means, covariances = dense(*parameters)
    x = torch.randn(20, 2, dtype=torch.float64)
    joint = np.stack(
        [
            w * stats.multivariate_normal(m, c).pdf(x.numpy())
            for w, m, c in zip(weights, means, covariances, strict=True)
        ],
        -1,
    )
    expected = joint / joint.sum(-1, keepdims=True)
    np.testing.assert_allclose(responsibilities(x, *parameters), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize(("n_components", "dimensions"), SIZES)
def test_moments_against_dense_formulas(n_components, dimensions, covariance):
    parameters = random_parameters((), n_components, dimensions, covariance=covariance)
    weights, means, covariances = dense(*parameters)
    expected_mean = weights @ means
    second = np.einsum("k,kij->ij", weights, covariances) + np.einsum(
        "k,ki,kj->ij", weights, means, means
    )
    expected = second - np.outer(expected_mean, expected_mean)
    np.testing.assert_allclose(mean(*parameters[:2]), expected_mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(mixture.covariance(*parameters), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(variance(*parameters), np.diag(expected), rtol=1e-9, atol=1e-9)


def test_moments_do_not_cancel_far_from_the_origin():
    logits, means, factors = random_parameters((), 3, 2)
    for dtype, offset, tolerance in (
        (torch.float64, 2.0**30, 1e-6),
        (torch.float32, 2.0**20, 1e-6),
    ):
        there = [t.to(dtype) for t in (logits, means + offset, factors)]
        # The same mixture moved back: an exact shift of the rounded means.
        back = [there[0], there[1] - offset, there[2]]
        assert_close(variance(*there), variance(*back), rtol=tolerance, atol=0)
        assert_close(mixture.covariance(*there), mixture.covariance(*back), rtol=tolerance, atol=0)


def test_a_component_without_weight_adds_nothing_to_the_moments():
    logits = torch.tensor([0.0, -torch.inf])
    means, factors = torch.tensor([[0.0], [1e30]]), torch.zeros(2, 1)
    assert variance(logits, means, factors) == 1
    assert mixture.covariance(logits, means, factors) == 1


def test_component_log_prob_leaves_the_weights_out():
    logits, means, factors = random_parameters((), 3, 2)
    x = torch.randn(2, dtype=torch.float64)
    each = component_log_prob(x, means, factors)
    alone = [log_prob(x, logits[:1], means[k : k + 1], factors[k : k + 1]) for k in range(3)]
    assert_close(each, torch.stack(alone), rtol=1e-12, atol=1e-12)
