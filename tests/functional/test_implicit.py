import numpy as np
import pytest
import torch
from helpers.reference import COVARIANCES, condition, dense, marginal, random_parameters
from scipy import stats
from torch.testing import assert_close

from condens.functional import algebra, conditional_cdfs, icdf
from condens.functional.implicit import attach_gradient


def inverse_rosenblatt(levels, *parameters):
    """Solve for x one dimension after the other, through marginals and conditionals.

    Levels [n, D]; parameters of one mixture, or of n.
    """
    dimensions, axes = parameters[1].shape[-1], (1, 2, 2)
    expanded = [
        p.expand(len(levels), *p.shape[-kept:]) for p, kept in zip(parameters, axes, strict=True)
    ]
    x = icdf(levels[:, -1], *algebra.marginal(*expanded, [dimensions - 1]))
    for i in reversed(range(dimensions - 1)):
        rest = algebra.marginal(*expanded, list(range(i, dimensions)))
        given = algebra.condition(*rest, list(range(1, dimensions - i)), x)
        x = torch.cat([icdf(levels[:, i], *given), x], -1)
    return x


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("n_components", [1, 3])
@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_conditional_cdfs_against_dense_conditionals(dimensions, n_components, covariance):
    parameters = random_parameters((), n_components, dimensions, covariance=covariance)
    twin = dense(*parameters)
    x = torch.randn(6, dimensions, dtype=torch.float64)
    ours = conditional_cdfs(x, *parameters)
    for n in range(6):
        for i in range(dimensions):
            rest = marginal(*twin, list(range(i, dimensions)))
            if i < dimensions - 1:
                rest = condition(*rest, list(range(1, dimensions - i)), x[n, i + 1 :].numpy())
            weights, means, covariances = rest
            expected = weights @ stats.norm.cdf(
                x[n, i].item(), means[:, 0], covariances[:, 0, 0] ** 0.5
            )
            np.testing.assert_allclose(ours[n, i], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("n_components", [1, 3])
@pytest.mark.parametrize("dimensions", [1, 2, 4])
def test_gradient_against_finite_differences_of_the_inverse(dimensions, n_components, covariance):
    parameters = random_parameters((), n_components, dimensions, covariance=covariance, spread=1.0)
    levels = torch.rand(5, dimensions, dtype=torch.float64) * 0.9 + 0.05
    x = inverse_rosenblatt(levels, *parameters)
    assert_close(conditional_cdfs(x, *parameters), levels, rtol=1e-12, atol=1e-12)
    cotangent = torch.randn_like(x)
    inputs = [t.clone().requires_grad_() for t in (levels, *parameters)]
    attached = attach_gradient(x, *inputs)
    assert_close(attached, x, rtol=0, atol=0)
    gradients = torch.autograd.grad((attached * cotangent).sum(), inputs)

    step = 1e-5
    for position, gradient in enumerate(gradients):
        # All entries at once, each shifted in a mixture of its own.
        count = gradient.numel()
        shifts = step * torch.eye(count, dtype=torch.float64).reshape(count, *gradient.shape)
        ends = []
        for sign in (1, -1):
            tensors = [t.expand(count, *t.shape).clone() for t in (levels, *parameters)]
            tensors[position] += sign * shifts
            given = (t.repeat_interleave(len(levels), 0) for t in tensors[1:])
            found = inverse_rosenblatt(tensors[0].flatten(0, 1), *given)
            ends.append((found.unflatten(0, (count, -1)) * cotangent).sum((1, 2)))
        slope = (ends[0] - ends[1]) / (2 * step)
        assert_close(gradient.flatten(), slope, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_second_derivatives_are_those_of_the_inverse(covariance):
    parameters = random_parameters((), 2, 2, covariance=covariance, spread=1.0)
    levels = torch.tensor([[0.3, 0.6], [0.8, 0.2]], dtype=torch.float64)
    inputs = [t.requires_grad_() for t in (levels, *parameters)]

    def implicit(*tensors):
        x = inverse_rosenblatt(*(t.detach() for t in tensors))
        return attach_gradient(x, *tensors)

    assert torch.autograd.gradcheck(implicit, inputs)
    assert torch.autograd.gradgradcheck(implicit, inputs)


def test_weights_keep_their_digits_beside_a_very_distant_coordinate():
    """The second component is 1e4 deviations away in the first coordinate alone."""
    logits = torch.zeros(2)
    means, factors = torch.tensor([[0.0, 0.0], [1e4, 1.0]]), torch.zeros(2, 3)
    x = torch.tensor([[0.5, 0.3]])
    exact = conditional_cdfs(*(t.double() for t in (x, logits, means, factors)))
    assert_close(conditional_cdfs(x, logits, means, factors).double(), exact, rtol=1e-5, atol=0)


def test_upper_tails_have_the_digits_of_lower_ones():
    """The mirror image of a mixture has the mirrored gradients, nine deviations out too."""
    logits = torch.tensor([0.3, -0.5], dtype=torch.float64)
    means = torch.tensor([[0.0], [0.5]], dtype=torch.float64)
    factors = torch.tensor([[0.0], [0.1]], dtype=torch.float64)
    x = torch.linspace(3, 12, 10, dtype=torch.float64)[:, None]
    results = []
    for sign in (1, -1):
        inputs = [t.clone().requires_grad_() for t in (logits, sign * means, factors)]
        attached = attach_gradient(sign * x, torch.zeros_like(x), *inputs)
        gradients = torch.autograd.grad(attached.sum(), inputs)
        results.append([sign * gradients[0], gradients[1], sign * gradients[2]])
    for upper, lower in zip(*results, strict=True):
        assert_close(upper, lower, rtol=1e-9, atol=0)


def test_gradient_keeps_its_digits_in_float32_tails():
    generator = torch.Generator().manual_seed(1)
    logits = torch.tensor([0.0, -1.0])
    means, factors = torch.tensor([[0.0], [1.0]]), torch.tensor([[20.0], [20.0]])
    means = means * torch.exp(-factors)
    # Samples up to six deviations out, on both sides, at a scale of exp(-20).
    x = torch.linspace(-6, 7, 40)[:, None] * torch.exp(torch.tensor(-20.0))
    cotangent = torch.randn(x.shape, generator=generator)
    results = []
    for dtype in (torch.float32, torch.float64):
        inputs = [t.to(dtype).requires_grad_() for t in (logits, means, factors)]
        attached = attach_gradient(x.to(dtype), torch.zeros_like(x, dtype=dtype), *inputs)
        results.append(torch.autograd.grad((attached * cotangent.to(dtype)).sum(), inputs))
    for single, double in zip(*results, strict=True):
        assert_close(single.double(), double, rtol=1e-4, atol=0)
