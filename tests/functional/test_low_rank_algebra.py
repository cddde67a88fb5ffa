import mpmath
import numpy as np
import pytest
import torch
from helpers.reference import condition, dense_low_rank, random_low_rank

from condens.functional import unpack
from condens.functional.low_rank import algebra as low_rank_algebra
from condens.functional.low_rank import mixture as low_rank

SIZES = [(k, d, r) for k in (1, 3) for d in (1, 2, 5) for r in (1, 2, 5)]
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


@pytest.mark.parametrize(("n_components", "dimensions", "rank"), SIZES)
def test_full_factors_are_those_of_the_inverse_covariance(n_components, dimensions, rank):
    parameters = random_low_rank((), n_components, dimensions, rank)
    upper = unpack(low_rank_algebra.full_factors(*parameters[2:]), dimensions).numpy()
    expected = np.linalg.inv(dense_low_rank(*parameters)[2])
    np.testing.assert_allclose(upper.swapaxes(-1, -2) @ upper, expected, **CLOSE)


def test_derivatives_of_a_conditional():
    parameters = [p.requires_grad_() for p in random_low_rank((2,), 2, 4, 2)]
    value = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)

    def given(logits, means, log_scales, loadings, value):
        new = low_rank_algebra.condition(logits, means, log_scales, loadings, [2, 0], value)
        covariances = low_rank.component_covariances(new.log_scales, new.loadings)
        # One output: gradcheck passes over those that carry no gradient.
        parts = (torch.softmax(new.logits, -1), new.means, covariances)
        return torch.cat([part.flatten() for part in parts])

    assert torch.autograd.gradcheck(given, (*parameters, value))
    assert torch.autograd.gradgradcheck(given, (*parameters, value))


@pytest.mark.parametrize(("dimensions", "rank"), [(2, 1), (5, 2), (5, 5), (3, 6), (40, 4)])
def test_conditional_against_dense_formulas(dimensions, rank):
    parameters = random_low_rank((), 3, dimensions, rank)
    dims = list(range(0, dimensions, 2))[: dimensions - 1]
    value = torch.randn(len(dims), dtype=torch.float64)
    given = low_rank_algebra.condition(*parameters, dims, value)
    twin = condition(*dense_low_rank(*parameters), dims, value.numpy())
    for ours, expected in zip(dense_low_rank(*given), twin, strict=True):
        np.testing.assert_allclose(ours, expected, **CLOSE)


def test_conditionals_of_extreme_scales_against_sixty_digits():
    log_scales = torch.tensor([[-13.8, -2.0, -13.8, 0.0]], dtype=torch.float64)
    loadings = 1e3 * torch.randn(1, 4, 2, dtype=torch.float64)
    means = torch.zeros(1, 4, dtype=torch.float64)
    value = (loadings[0, [0, 2]] @ torch.randn(2, dtype=torch.float64)).contiguous()
    given = low_rank_algebra.condition(torch.zeros(1), means, log_scales, loadings, [0, 2], value)
    ours = given.loadings[0] @ given.loadings[0].mT
    with mpmath.workdps(60):
        v = mpmath.matrix(loadings[0].tolist())
        covariance = v * v.T
        for i, entry in enumerate(log_scales[0].tolist()):
            covariance[i, i] += mpmath.exp(2 * mpmath.mpf(entry))

        def block(rows, columns):
            return mpmath.matrix([[covariance[i, j] for j in columns] for i in rows])

        gain = block([1, 3], [0, 2]) * block([0, 2], [0, 2]) ** -1
        centre = gain * mpmath.matrix(value.tolist())
        left = block([1, 3], [1, 3]) - gain * block([0, 2], [1, 3])
        noise = [mpmath.exp(2 * mpmath.mpf(log_scales[0, d].item())) for d in (1, 3)]
        left -= mpmath.diag(noise)
        expected = [[float(left[i, j]) for j in range(2)] for i in range(2)]
    # 10⁻¹², what is left of the 10⁶ that the dense formula subtracts.
    assert abs(expected[0][0]) < 1e-9
    np.testing.assert_allclose(ours, expected, rtol=1e-6)
    np.testing.assert_allclose(given.means[0], [float(c) for c in centre], rtol=1e-9)
