"""Answers without a closed form: estimated by sampling, each with its standard error."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from condens.functional.fused import log_density
from condens.functional.mixture import joint_log_prob
from condens.functional.normal import LOG_2PI
from condens.functional.precision import widen
from condens.functional.sampling import sample_components
from condens.functional.triangular import inverse_factors, log_determinant, log_diagonal

# What equal log densities may differ by, relative to 1 + their size.
_LEVEL_SLACK = 1e-9


class Estimate(NamedTuple):
    """An estimate and its standard error; an error of zero says that the value is exact."""

    value: Tensor
    standard_error: Tensor

    def to(self, dtype: torch.dtype) -> "Estimate":
        """Return the estimate in another dtype."""
        return Estimate(self.value.to(dtype), self.standard_error.to(dtype))


def standard_error(values: Tensor) -> Tensor:
    """Return the standard error of the mean over the first axis. Shapes: [N, ...] → [...].

    Zero where the mean is infinite: one infinite value settles it.
    """
    values = values.detach()
    mean = values.mean(0)
    settled = mean.isinf()
    spread = torch.where(settled, 0.0, values) - torch.where(settled, 0.0, mean)
    return length(spread, 0) / math.sqrt(len(values) * (len(values) - 1))


def length(vectors: Tensor, axis: int = -1) -> Tensor:
    """Return the Euclidean norms along an axis, of numbers whose squares may overflow."""
    size = vectors.detach().abs().amax(axis, keepdim=True)
    size = size.clamp(min=torch.finfo(vectors.dtype).tiny)
    return (vectors / size).norm(dim=axis) * size.squeeze(axis)


def _stratified(values: Tensor, weights: Tensor) -> Estimate:
    """Combine draws from every component. Shapes: values [N, ..., K], weights [..., K] → [...]."""
    # Draws from a component without weight do not count, even infinite ones.
    values = torch.where(weights > 0, values, 0.0)
    total = (weights * values.mean(0)).sum(-1)
    errors = (weights.detach() * standard_error(values)).norm(dim=-1)
    return Estimate(total, torch.where(total.detach().isinf(), 0.0, errors))


def _per_component(count: int, components: int) -> int:
    return max(2, math.ceil(count / components))


def entropy(
    logits: Tensor,
    means: Tensor,
    factors: Tensor,
    count: int,
    *,
    generator: Generator | None = None,
) -> Estimate:
    """Estimate −E[log p(X)]; exact for one component and where components do not overlap.

    H(X) = Σₖ πₖ Hₖ + H(π) − H(k | X): the entropies of the Gaussians and of the weights
    are exact, and only what x leaves open about the component, a number in [0, log K],
    is estimated, with equally many draws from every component. Where components touch only
    in their far tails (8 to 12 σ apart) that number is below 10⁻⁴ and rests on rare draws:
    the stated error may then be too small. Differentiable. Shapes: → [...].
    """

    def joint(number: int) -> Tensor:
        draws = sample_components(means, factors, number, generator=generator)
        return joint_log_prob(draws.movedim(-2, 1), logits, means, factors)

    dimensions = means.shape[-1]
    return mixture_entropy(logits, -log_determinant(factors, dimensions), dimensions, joint, count)


def mixture_entropy(
    logits: Tensor, log_root: Tensor, dimensions: int, joint: Callable[[int], Tensor], count: int
) -> Estimate:
    """Return Σₖ πₖ Hₖ + H(π) − H(k | X), the last of them estimated.

    Hₖ = ½D(1 + log 2π) + ½ log|Σₖ|

    Shapes: logits and log_root = ½ log|Σₖ| [..., K] → [...]; joint(n) returns
    log πₖ + log pₖ(x), [n, K, ..., K], at n draws x from each component.
    """
    components, log_weights = logits.shape[-1], torch.log_softmax(logits, -1)
    weights, gaussian = log_weights.exp(), 0.5 * dimensions * (1 + LOG_2PI) + log_root
    exact = (weights * gaussian).sum(-1) + categorical_entropy(log_weights)
    if components == 1:
        return Estimate(exact, torch.zeros_like(exact))
    posteriors = torch.log_softmax(joint(_per_component(count, components)), -1)
    doubt = categorical_entropy(posteriors).to(logits.dtype).movedim(1, -1)
    estimate = _stratified(doubt, weights)
    return Estimate(exact - estimate.value, estimate.standard_error)


def categorical_entropy(log_probabilities: Tensor) -> Tensor:
    """Return −Σₖ pₖ log pₖ. Shapes: log p [..., K] → [...]."""
    # A probability of zero contributes nothing; −inf · 0 would be NaN, also backwards.
    safe = torch.where(log_probabilities.isneginf(), 0.0, log_probabilities)
    return -(log_probabilities.exp() * safe).sum(-1)


def kl_divergence(
    logits: Tensor,
    means: Tensor,
    factors: Tensor,
    other_log_prob: Callable[[Tensor], Tensor],
    count: int,
    *,
    generator: Generator | None = None,
) -> Estimate:
    """Estimate E_p[log p(X) − log q(X)] with equally many draws from every component of p.

    Differentiable in p, logits included, and in q. Shapes: → [...].
    """
    draws = sample_components(
        means, factors, _per_component(count, means.shape[-2]), generator=generator
    ).movedim(-2, 1)
    ratio = log_density(draws, logits, means, factors) - other_log_prob(draws)
    return _stratified(ratio.movedim(1, -1), torch.softmax(logits, -1))


def gaussian_kl(loc: Tensor, factor: Tensor, other_loc: Tensor, other_upper: Tensor) -> Tensor:
    """Return the exact KL(N(μ, Σ) ‖ N(m, (VᵀV)⁻¹)).

    ½(‖V Ū⁻¹‖² + ‖V(m − μ)‖² − D) + log|Ū| − log|V|

    Shapes: loc [..., D], packed factor [..., T], other_loc [..., D], V [..., D, D] → [...].
    """
    dimensions, dtype = loc.shape[-1], loc.dtype
    loc, factor, other_loc, other_upper = widen(loc, factor, other_loc, other_upper)
    stretch = (other_upper @ inverse_factors(factor, dimensions)).square().sum((-1, -2))
    shift = (other_upper @ (other_loc - loc).unsqueeze(-1)).square().sum((-1, -2))
    log_ratio = log_determinant(factor, dimensions) - log_diagonal(other_upper)
    return (0.5 * (stretch + shift - dimensions) + log_ratio).to(dtype)


def hpd_coverage(level: Tensor, levels: Tensor, uniform: Tensor) -> Tensor:
    """Return the coverage of the highest-density region through a point of log density `level`.

    u = (draws above + v·(1 + draws level with it))/(N + 1)

    by the log densities of N independent draws and v uniform on [0, 1): for a point that is itself
    a draw, its place among N + 1 is random and u is uniform, whatever N. Levels that differ by no
    more than rounding count as equal. Shapes: level [...], levels [N, ...], uniform [...] → [...].

    >>> hpd_coverage(torch.tensor(-1.0), torch.tensor([-3.0, -2.0, -0.5]), torch.tensor(0.5))
    tensor(0.3750)
    """
    slack = _LEVEL_SLACK * (1 + level.abs())
    slack = torch.where(level.isinf(), 0.0, slack)
    above = (levels > level + slack).sum(0)
    equal = (levels >= level - slack).sum(0) - above
    return (above + uniform * (1 + equal)) / (len(levels) + 1)


def hpd_threshold(levels: Tensor, coverage: float) -> Estimate:
    """Estimate the log density t whose region {x : log p(x) ≥ t} has the given probability.

    t is a quantile of log p(X), read off its values at N draws. The standard error of the
    probability p inside is √(p(1 − p)/N); that of t follows from the spacing of the order
    statistics two such errors to either side. Needs some ten draws on either side of the
    quantile. Shapes: levels [N, ...] → [...].
    """
    count, levels = len(levels), levels.sort(0).values
    spread = math.sqrt(coverage * (1 - coverage) / count)
    low, middle, high = (
        levels[min(max(round(p * count) - 1, 0), count - 1)]
        for p in (1 - coverage - 2 * spread, 1 - coverage, 1 - coverage + 2 * spread)
    )
    return Estimate(middle, 0.25 * (high - low))
