"""Independent twins of the library's answers: numpy and scipy on dense covariances."""

import numpy as np
import torch
from scipy import stats
from scipy.special import logsumexp, softmax

COVARIANCES = ("full", "diagonal")


def random_parameters(
    batch=(), n_components=3, dimensions=2, *, covariance="full", seed=0, spread=2.0
):
    """Return float64 logits, means and packed factors with dense, well-conditioned triangles."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*batch, *shape, dtype=torch.float64, generator=generator)

    off_diagonal = dimensions * (dimensions - 1) // 2 if covariance == "full" else 0
    diagonal = 0.4 * normal(n_components, dimensions)
    # Off-diagonals shrink with D: the condition number stays moderate at D = 20.
    strict = normal(n_components, off_diagonal) / dimensions**0.5
    return (
        normal(n_components),
        spread * normal(n_components, dimensions),
        torch.cat([diagonal, strict], -1),
    )


def random_low_rank(batch=(), n_components=3, dimensions=2, rank=1, *, seed=0, spread=2.0):
    """Return float64 logits, means, log_scales and loadings with correlations of order one."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*batch, *shape, dtype=torch.float64, generator=generator)

    return (
        normal(n_components),
        spread * normal(n_components, dimensions),
        0.4 * normal(n_components, dimensions),
        normal(n_components, dimensions, rank) / rank**0.5,
    )


def dense_low_rank(logits, means, log_scales, loadings):
    """Return weights, means and covariances of one diagonal plus low-rank mixture."""
    logits, means, log_scales, loadings = (
        np.asarray(t, dtype=np.float64) for t in (logits, means, log_scales, loadings)
    )
    covariances = [
        np.diag(np.exp(own) ** 2) + sum(np.outer(column, column) for column in columns.T)
        for own, columns in zip(log_scales, loadings, strict=True)
    ]
    return softmax(logits), means, np.stack(covariances)


def dense(logits, means, factors):
    """Return weights, means and covariances of one mixture as numpy arrays, by plain loops."""
    logits, means, factors = (np.asarray(t, dtype=np.float64) for t in (logits, means, factors))
    n_components, dimensions = means.shape
    covariances = []
    for k in range(n_components):
        upper = np.diag(np.exp(factors[k, :dimensions]))
        position = dimensions
        if factors.shape[-1] > dimensions:
            for i in range(dimensions):
                for j in range(i + 1, dimensions):
                    upper[i, j] = factors[k, position]
                    position += 1
        covariances.append(np.linalg.inv(upper.T @ upper))
    return softmax(logits), means, np.stack(covariances)


def log_density(x, weights, means, covariances):
    """Return the log density of one dense mixture at points x [..., D]."""
    parts = [
        np.log(w) + stats.multivariate_normal(m, c).logpdf(x)
        for w, m, c in zip(weights, means, covariances, strict=True)
    ]
    return logsumexp(np.stack(parts, -1), axis=-1)


def marginal(weights, means, covariances, dims):
    return weights, means[:, dims], covariances[:, dims][:, :, dims]


def condition(weights, means, covariances, dims, values):
    """Return the dense conditional of the other dimensions, component by component."""
    free = [d for d in range(means.shape[1]) if d not in dims]
    new_means, new_covariances, evidence = [], [], []
    for w, m, c in zip(weights, means, covariances, strict=True):
        gain = c[np.ix_(free, dims)] @ np.linalg.inv(c[np.ix_(dims, dims)])
        new_means.append(m[free] + gain @ (values - m[dims]))
        new_covariances.append(c[np.ix_(free, free)] - gain @ c[np.ix_(dims, free)])
        own = stats.multivariate_normal(m[dims], c[np.ix_(dims, dims)])
        evidence.append(np.log(w) + own.logpdf(values))
    return softmax(evidence), np.stack(new_means), np.stack(new_covariances)


def assert_same(mixture, weights, means, covariances, tolerance=1e-9):
    """Compare a GaussianMixture without batch axes to a dense one, component by component."""
    np.testing.assert_allclose(mixture.weights, weights, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(mixture.means, means, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(
        mixture.covariance_matrices, covariances, rtol=tolerance, atol=tolerance
    )
