"""Independent answers: dense formulas by plain autograd, and mpmath with many digits."""

import math

import mpmath
import torch

DIGITS = 60


def unpack(factors, dimensions):
    """Return upper triangles from packed ones [..., T]: log-diagonals, then rows."""
    upper = torch.diag_embed(factors[..., :dimensions].exp())
    if factors.shape[-1] > dimensions:
        i, j = torch.triu_indices(dimensions, dimensions, 1)
        strict = torch.zeros_like(upper)
        strict[..., i, j] = factors[..., dimensions:]
        upper = upper + strict
    return upper


def nll(target, logits, means, factors):
    """Return −log p by dense products, differentiable in all."""
    dimensions = means.shape[-1]
    offset = (target.unsqueeze(-2) - means).unsqueeze(-1)
    z = (unpack(factors, dimensions) @ offset).squeeze(-1)
    log_det = factors[..., :dimensions].sum(-1)
    each = log_det - 0.5 * z.square().sum(-1) - 0.5 * dimensions * math.log(2 * math.pi)
    return -torch.logsumexp(torch.log_softmax(logits, -1) + each, -1)


def low_rank_nll(target, logits, means, log_scales, loadings):
    """Return −log p of diagonal plus low-rank covariances, made dense."""
    covariance = torch.diag_embed((2 * log_scales).exp()) + loadings @ loadings.mT
    each = torch.distributions.MultivariateNormal(means, covariance, validate_args=False)
    log_each = each.log_prob(target.unsqueeze(-2))
    return -torch.logsumexp(torch.log_softmax(logits, -1) + log_each, -1)


def mixture_nll(mixture, target):
    """Return −log p of a mixture that a head made."""
    form = low_rank_nll if hasattr(mixture, "loadings") else nll
    return form(target, *mixture.parameters)


class Exact:
    """One Gaussian mixture in mpmath: logits [K], means [K, D], packed factors [K, T]."""

    def __init__(self, logits, means, factors):
        mpmath.mp.dps = DIGITS
        mp = mpmath.mpf
        logits = [mp(float(x)) for x in logits]
        self.top = max(logits)
        rest = mpmath.fsum(mpmath.e ** (x - self.top) for x in logits)
        self.log_weights = [x - self.top - mpmath.log(rest) for x in logits]
        self.means = [mpmath.matrix([mp(float(x)) for x in row]) for row in means]
        self.dimensions = len(means[0])
        self.covariances = [_covariance([mp(float(x)) for x in row], self.dimensions)
                            for row in factors]  # fmt: skip

    def marginal_terms(self, dims, x):
        """Return log πₖ + log pₖ(x_dims) of every component."""
        terms = []
        for log_weight, mean, covariance in zip(
            self.log_weights, self.means, self.covariances, strict=True
        ):
            part = mpmath.matrix(len(dims), len(dims))
            offset = mpmath.matrix(len(dims), 1)
            for a, i in enumerate(dims):
                offset[a] = mpmath.mpf(float(x[a])) - mean[i]
                for b, j in enumerate(dims):
                    part[a, b] = covariance[i, j]
            root = mpmath.cholesky(part)
            z = mpmath.lu_solve(root, offset)
            log_det = 2 * mpmath.fsum(mpmath.log(root[a, a]) for a in range(len(dims)))
            square = mpmath.fsum(v**2 for v in z)
            normal = -(square + log_det + len(dims) * mpmath.log(2 * mpmath.pi)) / 2
            terms.append(log_weight + normal)
        return terms

    def marginal_log_prob(self, dims, x):
        return log_sum(self.marginal_terms(dims, x)) if dims else mpmath.mpf(0)


def log_sum(terms):
    """Return log Σ exp of mpmath numbers."""
    top = max(terms)
    return top + mpmath.log(mpmath.fsum(mpmath.e ** (term - top) for term in terms))


def _covariance(packed, dimensions):
    upper = mpmath.matrix(dimensions, dimensions)
    place = dimensions
    for i in range(dimensions):
        upper[i, i] = mpmath.e ** packed[i]
        if len(packed) > dimensions:
            for j in range(i + 1, dimensions):
                upper[i, j] = packed[place]
                place += 1
    inverse = mpmath.inverse(upper)
    return inverse * inverse.T


def normal_mass(lower, upper):
    """Return log(Φ(upper) − Φ(lower)) without cancellation."""
    if lower > 0:
        lower, upper = -upper, -lower
    return mpmath.log(mpmath.ncdf(upper) - mpmath.ncdf(lower))


def lognormal_crps(y, weights, mu, sigma):
    """Return the CRPS of a mixture of lognormals at y, in closed form."""
    weights, mu, sigma = ([mpmath.mpf(float(v)) for v in part] for part in (weights, mu, sigma))
    y, total = mpmath.mpf(float(y)), mpmath.fsum(weights)
    means = [mpmath.e ** (m + s**2 / 2) for m, s in zip(mu, sigma, strict=True)]
    score = mpmath.mpf(0)
    for w, m, s, mean in zip(weights, mu, sigma, means, strict=True):
        if y > 0:
            at = (mpmath.log(y) - m) / s
            distance = y * (2 * mpmath.ncdf(at) - 1) + mean * (1 - 2 * mpmath.ncdf(at - s))
        else:
            distance = mean - y
        score += w / total * distance
    for i, w in enumerate(weights):
        for j, v in enumerate(weights):
            s = mpmath.sqrt(sigma[i] ** 2 + sigma[j] ** 2)
            first = means[i] * (2 * mpmath.ncdf((mu[i] - mu[j] + sigma[i] ** 2) / s) - 1)
            second = means[j] * (2 * mpmath.ncdf((mu[j] - mu[i] + sigma[j] ** 2) / s) - 1)
            score -= w * v / total**2 * (first + second) / 2
    return score
