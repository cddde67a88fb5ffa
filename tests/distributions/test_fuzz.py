"""Long random searches for a wrong answer, run by `make test-slow`."""

import mpmath
import numpy as np
import pytest
import torch
from helpers.reference import (
    COVARIANCES,
    condition,
    dense,
    log_density,
    marginal,
    random_parameters,
)

from condens import GaussianMixture

pytestmark = pytest.mark.slow
mpmath.mp.dps = 50


def test_quantiles_of_random_hard_mixtures_have_their_probability():
    """Scales from 1e-6 to 1e6, gaps up to 1e6, weights down to 1e-12; checked to fifty digits."""
    generator = np.random.default_rng(0)
    for _ in range(500):
        count = int(generator.integers(1, 7))
        weights = 10 ** generator.uniform(-12, 0, count)
        weights = (weights / weights.sum()).tolist()
        means = (generator.normal(size=count) * 10 ** generator.uniform(-2, 6)).tolist()
        deviations = (10 ** generator.uniform(-6, 6, count)).tolist()
        mixture = GaussianMixture(
            torch.tensor(weights, dtype=torch.float64).log(),
            torch.tensor(means, dtype=torch.float64)[:, None],
            -torch.tensor(deviations, dtype=torch.float64).log()[:, None],
        )
        levels = np.concatenate([10 ** generator.uniform(-20, -0.1, 4), generator.uniform(size=4)])
        quantiles = mixture.icdf(levels).squeeze(-1).tolist()
        total = mpmath.fsum(weights)
        for level, x in zip(levels.tolist(), quantiles, strict=True):
            # A quantile is right if one rounding of it, and of the parameters, brackets the level.
            margin = 1e-14 * (abs(x) + max(map(abs, means))) + 1e-14 * min(deviations)
            below, above = (
                mpmath.fsum(
                    w * mpmath.ncdf((x + sign * margin - m) / s)
                    for w, m, s in zip(weights, means, deviations, strict=True)
                )
                / total
                for sign in (-1, 1)
            )
            assert below * (1 - 1e-13) - 1e-300 <= level <= above * (1 + 1e-13) + 2e-16


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("seed", range(30))
def test_random_chains_of_operations_equal_dense_ones(seed, covariance):
    """Affine, marginal, condition in turn: errors do not build up."""
    generator = np.random.default_rng(seed)
    parameters = random_parameters((), 4, 8, covariance=covariance, seed=seed)
    mixture, twin = GaussianMixture(*parameters), dense(*parameters)
    while mixture.dimensions > 2:
        dimensions = mixture.dimensions
        matrix = generator.normal(size=(dimensions, dimensions)) + 2 * np.eye(dimensions)
        loc = generator.normal(size=dimensions)
        mixture = mixture.affine(torch.from_numpy(matrix), torch.from_numpy(loc))
        weights, means, covariances = twin
        twin = (weights, means @ matrix.T + loc, matrix @ covariances @ matrix.T)
        fixed = int(generator.integers(dimensions))
        value = float(twin[0] @ twin[1][:, fixed] + generator.normal())
        mixture, twin = mixture.condition({fixed: value}), condition(*twin, [fixed], [value])
        kept = generator.permutation(dimensions - 1)[: max(2, dimensions - 2)].tolist()
        mixture, twin = mixture.marginal(kept), marginal(*twin, kept)
    x = twin[1][0] + generator.normal(size=(20, 2))
    expected = log_density(x, *twin)
    np.testing.assert_allclose(mixture.log_prob(x), expected, rtol=1e-6, atol=1e-6)
