"""The linear model with Gaussian noise of full covariance, fitted to rows with gaps.

z = b + fB + ε,  ε ~ N(0, Σ)

b and B maximise the exact density of the observed entries under a ridge. The leave-one-out
residuals, in closed form, choose the ridge and give Σ, which therefore suits new rows, also where
there are many columns and few rows.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from condens.functional.normal import LOG_2PI
from condens.functional.triangular import from_upper_root

# Smallest standard deviation of the noise in any direction, in standard deviations of the targets.
FLOOR = 1e-5
# Least ratio of its eigenvalues: a Cholesky factor of double precision needs some.
MIN_RATIO = 1e-12
# Ridges to choose from, where features have about unit variance and weights sum to one.
RIDGES = torch.logspace(4, -12, 33, dtype=torch.float64)
# Fractions to choose from, by which the covariances of the noise are shrunk to zero.
SHRINKAGES = (0.0, 1e-5, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
SHRINKAGES_WITH_GAPS = (0.0, 0.001, 0.01, 0.1, 0.3, 1.0)
# Rows for each entry of the covariance beyond which none is tried where targets have gaps.
MANY_ROWS = 100
# Expectation-maximisation ends when the mean log density of the rows rises by less than this,
TOLERANCE = 1e-5
# or after this many steps.
MAX_STEPS = 50
# Steps for each shrinkage that is tried, from the last one on.
MAX_TRIAL_STEPS = 10
# Targets whose leave-one-out errors choose the ridge, where each has gaps of its own,
MAX_JUDGES = 8
# and rows that choose ridge and shrinkage.
MAX_JUDGED_ROWS = 10_000
MAX_JUDGED_ROWS_WITH_GAPS = 2000
# Numbers in memory at a time, for covariances of patterns of gaps and for squared features.
NUMBERS_PER_BLOCK = 2_000_000
# Least part of itself that a row must leave unexplained. Below, its leave-one-out residual is
# rounding over rounding.
MIN_REST = 1e-6


class LinearGaussian(NamedTuple):
    """Intercept b [D], coefficients B [F, D] and the packed factor of Σ [D(D+1)/2]."""

    intercept: Tensor
    coefficients: Tensor
    factor: Tensor


def fit_linear(features: Tensor, target: Tensor, weights: Tensor) -> LinearGaussian:
    """Fit the model to rows, each with an observed entry.

    Args:
        features: [n, F], of about unit scale; F may be 0.
        target: [n, D], standardised, NaN where it was not observed.
        weights: [n], with sum one.
    """
    centre = weights @ features
    rotation, sizes = principal_axes(features - centre, weights)
    scores, seen = (features - centre) @ rotation, ~target.isnan()
    groups = _groups(scores, target, weights, sizes)
    ridge = _choose_ridge(groups)
    if bool(seen.all()):
        intercept, slopes = _regress(scores, target, weights, sizes, ridge)
    else:
        usual = torch.ones(target.shape[1], dtype=torch.float64)
        for group in groups:
            error = _left_out_errors(group, ridge[None])[0] + FLOOR**2
            usual[group.dims] = torch.where(error.isfinite(), error, 1.0)
        intercept, slopes, *_ = maximum_likelihood(
            scores, target, weights, sizes, ridge, usual, strength=_strength(target, weights)
        )
    residual, rest = target - intercept - scores @ slopes, torch.ones_like(weights)
    for group in groups:
        rest[group.rows] = (1 - _leverages(group, ridge[None])[:, 0]).clamp(min=MIN_REST)
        residual[group.rows[:, None], group.dims] /= rest[group.rows, None]
    covariance = noise_covariance(residual, weights, rest)
    # A target that was seen once says nothing about its spread: it keeps its unit of scale.
    alone = seen.sum(0) < 2
    covariance = torch.where(alone | alone[:, None], torch.diag(alone.double()), covariance)
    coefficients = rotation @ slopes
    return LinearGaussian(intercept - centre @ coefficients, coefficients, factor_of(covariance))


def factor_of(covariance: Tensor) -> Tensor:
    """Return the packed factor of a covariance. Shapes: [D, D] → [D(D+1)/2]."""
    upper = torch.linalg.cholesky(covariance.flip(-1, -2)).flip(-1, -2)
    return from_upper_root(upper)


def principal_axes(features: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return orthonormal V [F, R] and s [R] with V diag(s) Vᵀ = Σᵢ wᵢ fᵢfᵢᵀ, R ≤ min(n, F)."""
    count, columns = features.shape
    rooted = weights.sqrt()[:, None] * features
    if columns <= count:
        sizes, axes = torch.linalg.eigh(rooted.mT @ rooted)
        return axes, sizes.clamp(min=0.0)
    sizes, left = torch.linalg.eigh(rooted @ rooted.mT)
    kept = sizes > 1e-12 * sizes[-1:].clamp(min=torch.finfo(sizes.dtype).tiny)
    sizes, left = sizes[kept], left[:, kept]
    return rooted.mT @ (left / sizes.sqrt()), sizes


def effective_count(weights: Tensor) -> float:
    """Return 1/Σw², the number of rows of equal weight that tell as much."""
    return float(1 / weights.square().sum())


# The mean, and its leave-one-out residuals.


class _Group(NamedTuple):
    """Targets that were observed in the same rows, and the features of these rows.

    Args:
        dims: [d], the numbers of the targets.
        rows: [m], the rows.
        target: [m, d].
        scores: [m, R], centred and orthogonal over these rows.
        sizes: [R], Σᵢ wᵢ scoresᵢᵣ².
        weights: [m], with sum one.
        total: their part of the weights of all rows.
    """

    dims: Tensor
    rows: Tensor
    target: Tensor
    scores: Tensor
    sizes: Tensor
    weights: Tensor
    total: float


def _groups(scores: Tensor, target: Tensor, weights: Tensor, sizes: Tensor) -> list[_Group]:
    seen = ~target.isnan()
    found: dict[bytes, list[int]] = {}
    for dim, column in enumerate(seen.unbind(1)):
        found.setdefault(column.numpy().tobytes(), []).append(dim)
    groups = []
    for places in found.values():
        dims, rows = torch.tensor(places), seen[:, places[0]].nonzero().flatten()
        some, own, size = weights[rows], scores, sizes
        total = float(some.sum())
        if not len(rows):
            continue
        if len(rows) < len(seen):
            some = some / total
            own = scores[rows] - some @ scores[rows]
            axes, size = principal_axes(own, some)
            own = own @ axes
        groups.append(_Group(dims, rows, target[rows][:, dims], own, size, some, total))
    return groups


def _leverages(group: _Group, ridges: Tensor, part: slice = slice(None)) -> Tensor:
    """Return Hᵢᵢ, where H maps targets to fitted values. Shapes: ridges [L] → [m, L]."""
    blocks = group.scores[part].split(max(1, NUMBERS_PER_BLOCK // max(1, len(group.sizes))))
    shrunk = 1 / (group.sizes[:, None] + ridges)
    explained = torch.cat([block.square() @ shrunk for block in blocks])
    return group.weights[part, None] * (1 + explained)


def _left_out_errors(group: _Group, ridges: Tensor) -> Tensor:
    """Return mean squared leave-one-out residuals, for ridges [L] → [L, d].

    Leaving row i out of the fit makes its residual eᵢ into eᵢ / (1 − Hᵢᵢ). Infinite for a ridge
    that leaves nothing of a row.
    """
    some = slice(None, None, 1 + len(group.rows) // MAX_JUDGED_ROWS)
    weights = group.weights[some] / group.weights[some].sum()
    centred = group.target - group.weights @ group.target
    products = group.scores.mT @ (group.weights[:, None] * centred)
    slopes = products[:, None] / (group.sizes[:, None] + ridges)[..., None]
    fitted = group.scores[some] @ slopes.flatten(1)
    rest = 1 - _leverages(group, ridges, some)
    residual = centred[some, None] - fitted.unflatten(1, slopes.shape[1:])
    errors = torch.einsum("m,mld->ld", weights, (residual / rest[..., None]).square())
    return torch.where((rest < MIN_REST).any(0)[:, None], torch.inf, errors)


def _choose_ridge(groups: list[_Group]) -> Tensor:
    """Return the λ with the least log leave-one-out error, summed over targets.

    The largest of equal ones.
    """
    judges = [group for group in groups if len(group.rows) > 1 and len(group.sizes)]
    largest = max((float(judge.sizes.max()) for judge in judges), default=0.0)
    # Eigenvalues are known to some 10⁻¹⁶ of the largest.
    ridges = RIDGES.clamp(min=1e-14 * largest)
    loss = torch.zeros_like(ridges)
    for judge in judges[:: 1 + len(judges) // MAX_JUDGES]:
        loss += judge.total * (_left_out_errors(judge, ridges) + FLOOR**2).log().sum(-1)
    return ridges[loss.argmin()]


def _regress(
    scores: Tensor, target: Tensor, weights: Tensor, sizes: Tensor, ridge: Tensor
) -> tuple[Tensor, Tensor]:
    """Return intercept [D] and slopes [R, D] for complete targets."""
    products = scores.mT @ (weights[:, None] * target)
    return weights @ target, products / (sizes + ridge)[:, None]


def _strength(target: Tensor, weights: Tensor) -> float:
    """Return the weight of the prior of Σ: that of one row more than there are targets."""
    return (target.shape[1] + 1) / effective_count(weights)


def maximum_likelihood(
    scores: Tensor,
    target: Tensor,
    weights: Tensor,
    sizes: Tensor,
    ridge: Tensor,
    usual: Tensor,
    *,
    strength: float = 0.0,
    tolerance: float = TOLERANCE,
    max_steps: int = MAX_STEPS,
) -> tuple[Tensor, Tensor, Tensor, list[float]]:
    """Maximise the log density of the observed entries by expectation-maximisation.

    Σᵢ wᵢ log N(zᵢₒ; (b + pᵢB)ₒ, Σₒₒ) − ½λ tr(BΣ⁻¹Bᵀ) − ½ν (log|Σ| + Σⱼ tⱼ (Σ⁻¹)ⱼⱼ)

    The scores p [n, R] are centred and orthogonal, with sizes Σᵢ wᵢpᵢᵣ² [R]; ν is the strength of
    a prior that keeps Σ near the usual variances t [D]. Returns b, B, Σ and the value at every
    step, which never falls; no eigenvalue of Σ is below `FLOOR`².
    """
    gaps = _Gaps(~target.isnan(), weights)
    intercept, slopes = _regress(scores, target.nan_to_num(nan=0.0), weights, sizes, ridge)
    covariance, values = torch.diag(usual), list[float]()
    for _ in range(max_steps):
        fitted = intercept + scores @ slopes
        found = gaps.fill(target - fitted, covariance)
        inverse = torch.linalg.inv(covariance)
        penalty = ridge * torch.trace(slopes @ inverse @ slopes.mT) + strength * (
            torch.logdet(covariance) + usual @ inverse.diagonal()
        )
        values.append(float(weights @ found.log_prob - 0.5 * penalty))
        if len(values) > 1 and values[-1] - values[-2] < tolerance:
            break
        whole = fitted + found.filled
        intercept, slopes = _regress(scores, whole, weights, sizes, ridge)
        residual = whole - intercept - scores @ slopes
        moment = residual.mT @ (weights[:, None] * residual) + ridge * slopes.mT @ slopes
        moment = moment + found.spread + strength * torch.diag(usual)
        covariance = above_floor(moment / (1 + strength))
    return intercept, slopes, covariance, values


# The noise.


class _Filled(NamedTuple):
    """Residuals with gaps, completed under N(0, Σ).

    Args:
        filled: [n, D], the observed entries and the means of the others given these.
        spread: [D, D], the weighted mean of the covariances of the others given these.
        distance: [n], xₒᵀΣₒₒ⁻¹xₒ.
        log_determinant: [n], of Σₒₒ.
        observed: [n], how many entries.
    """

    filled: Tensor
    spread: Tensor
    distance: Tensor
    log_determinant: Tensor
    observed: Tensor

    @property
    def log_prob(self) -> Tensor:
        """The log density of the observed entries [n]."""
        return -0.5 * (self.distance + self.log_determinant + LOG_2PI * self.observed)


class _Gaps:
    """The rows by their patterns of observed entries: seen [n, D], weights [n]."""

    def __init__(self, seen: Tensor, weights: Tensor) -> None:
        if bool(seen.all()):
            patterns, place = seen[:1], torch.zeros(len(seen), dtype=torch.int64)
        else:
            patterns, place = seen.unique(dim=0, return_inverse=True)
        self.patterns, self.place = patterns.double(), place
        self.count = seen.sum(1).double()
        self.mass = torch.zeros(len(patterns), dtype=torch.float64).index_add(0, place, weights)

    def fill(self, residual: Tensor, covariance: Tensor) -> _Filled:
        """Complete residuals [n, D], NaN where not observed, under a covariance [D, D]."""
        known, seen = residual.nan_to_num(nan=0.0), ~residual.isnan()
        logs, inverses, spread = [], [], torch.zeros_like(covariance)
        size = max(1, NUMBERS_PER_BLOCK // covariance.numel())
        for observed, mass in zip(self.patterns.split(size), self.mass.split(size), strict=True):
            both = observed[:, :, None] * observed[:, None]
            # Ones in place of what is missing change no determinant.
            root = torch.linalg.cholesky(covariance * both + torch.diag_embed(1 - observed))
            inverse = torch.cholesky_inverse(root) * both
            logs.append(2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1))
            inverses.append(inverse)
            # Exactly zero where either is observed, which rounding would hide.
            missing = (1 - observed[:, :, None]) * (1 - observed[:, None])
            left = (covariance - covariance @ inverse @ covariance) * missing
            spread += torch.einsum("p,pde->de", mass, left)
        solved = self._solve(known, torch.cat(inverses))
        return _Filled(
            torch.where(seen, known, solved @ covariance),
            spread,
            (known * solved).sum(1),
            torch.cat(logs)[self.place],
            self.count,
        )

    def _solve(self, known: Tensor, inverses: Tensor) -> Tensor:
        """Return Σₒₒ⁻¹xₒ, zero where not observed."""
        if len(inverses) == 1:
            return known @ inverses[0]
        if len(inverses) > 32:
            size = max(1, NUMBERS_PER_BLOCK // inverses[0].numel())
            blocks = zip(known.split(size), self.place.split(size), strict=True)
            return torch.cat([torch.einsum("nd,nde->ne", x, inverses[p]) for x, p in blocks])
        solved = torch.empty_like(known)
        for number, inverse in enumerate(inverses):
            rows = (self.place == number).nonzero().flatten()
            solved[rows] = known[rows] @ inverse
        return solved


def noise_covariance(residual: Tensor, weights: Tensor, rest: Tensor) -> Tensor:
    """Return a covariance [D, D] for new rows, from leave-one-out residuals [n, D].

    (1 + 2/(N − 3)) · ((1 − α) S + α diag(S))

    S is that of maximum likelihood; α is the shrinkage under which rows that were left out are
    most likely, so that there may be fewer rows than targets. With N rows of equal weight the
    factor gives the best Gaussian for new rows in one dimension. NaN was not observed; weights
    [n] sum to one; `rest` [n] is 1 − Hᵢᵢ of complete rows. No eigenvalue is below `FLOOR`².
    """
    factor = 1 + 2 / max(effective_count(weights) - 3, 0.5)
    if not bool(residual.isnan().any()):
        return above_floor(factor * _shrunk(residual, weights, rest))
    gaps, usual = _Gaps(~residual.isnan(), weights), _usual(residual, weights)
    # With so many rows shrinking would gain less than a hundredth of a nat.
    many = effective_count(weights) > MANY_ROWS * residual.shape[1] ** 2
    shrinkage = 0.0 if many else _choose_shrinkage(residual, weights)
    return above_floor(factor * _covariance_with_gaps(gaps, residual, weights, usual, shrinkage))


def _shrunk(residual: Tensor, weights: Tensor, rest: Tensor) -> Tensor:
    """Return the covariance of complete residuals, shrunk."""
    covariance = residual.mT @ (weights[:, None] * residual)
    diagonal = torch.diag(covariance.diagonal())
    if len(covariance) == 1 or len(residual) < 3:
        return diagonal
    some = slice(None, None, 1 + len(residual) // MAX_JUDGED_ROWS)
    candidates = [above_floor(torch.lerp(covariance, diagonal, a)) for a in SHRINKAGES]
    judged = [
        left_out_log_prob(residual[some], weights[some], rest[some], each, shrinkage)
        for each, shrinkage in zip(candidates, SHRINKAGES, strict=True)
    ]
    return candidates[int(torch.stack(judged).argmax())]


def left_out_log_prob(
    residual: Tensor, weights: Tensor, rest: Tensor, covariance: Tensor, shrinkage: float
) -> Tensor:
    """Return the weighted sum of log densities of rows, each under the covariance of the others.

    Without row i, M = (1 − α)S + α diag(S) becomes g(M − c xxᵀ) with g = 1/(1 − wᵢ) and
    c = (1 − α)wᵢ/(1 − Hᵢᵢ), since the other residuals change too, and q = xᵀM⁻¹x becomes
    q / (g(1 − cq)); the diagonal of S is kept (after Hoffbeck & Landgrebe, 1996). Constants are
    left out.
    """
    root = torch.linalg.cholesky(covariance)
    distance = torch.linalg.solve_triangular(root, residual.mT, upper=False).square().sum(0)
    growth = -torch.log1p(-weights.clamp(max=1 - MIN_REST))
    left = (1 - (1 - shrinkage) * weights / rest * distance).clamp(min=MIN_REST)
    log_determinant = 2 * root.diagonal().log().sum() + left.log() + len(covariance) * growth
    return -0.5 * weights @ (distance / left * (-growth).exp() + log_determinant)


def _usual(residual: Tensor, weights: Tensor) -> Tensor:
    """Return the variances of the observed entries [D]."""
    share = weights[:, None] * (~residual.isnan()).double()
    tiny = torch.finfo(share.dtype).tiny
    square = residual.nan_to_num(nan=0.0).square()
    return (share * square).sum(0) / share.sum(0).clamp(min=tiny) + FLOOR**2


def _choose_shrinkage(residual: Tensor, weights: Tensor) -> float:
    """Return the α under which either half of the rows is most likely by the other half."""
    some = slice(None, None, 1 + len(residual) // MAX_JUDGED_ROWS_WITH_GAPS)
    residual, weights = residual[some], weights[some]
    loss = torch.zeros(len(SHRINKAGES_WITH_GAPS), dtype=torch.float64)
    for start in (0, 1):
        ours, own = residual[start::2], weights[start::2]
        theirs, other = residual[1 - start :: 2], weights[1 - start :: 2]
        if not len(theirs) or not len(ours):
            return SHRINKAGES_WITH_GAPS[-1]
        usual, gaps = _usual(ours, own), _Gaps(~theirs.isnan(), other)
        own = own / own.sum()
        known, covariance = _Gaps(~ours.isnan(), own), torch.diag(usual)
        for place in reversed(range(len(loss))):  # from the diagonal on, each a start of the next
            covariance = _covariance_with_gaps(
                known,
                ours,
                own,
                usual,
                SHRINKAGES_WITH_GAPS[place],
                start=covariance,
                max_steps=MAX_TRIAL_STEPS,
            )
            loss[place] -= other @ gaps.fill(theirs, covariance).log_prob
    return SHRINKAGES_WITH_GAPS[int(loss.argmin())]


def _covariance_with_gaps(
    gaps: _Gaps,
    residual: Tensor,
    weights: Tensor,
    usual: Tensor,
    shrinkage: float,
    *,
    start: Tensor | None = None,
    max_steps: int = MAX_STEPS,
) -> Tensor:
    """Return the covariance of residuals with mean zero by expectation-maximisation.

    Every step takes (1 − α) times the expected moments and α times the usual variances.
    """
    covariance = torch.diag(usual) if start is None else start
    if shrinkage == 1.0:
        return torch.diag(usual)
    value = -torch.inf
    for _ in range(max_steps):
        found = gaps.fill(residual, covariance)
        inverse = torch.linalg.inv(covariance)
        prior = torch.logdet(covariance) + usual @ inverse.diagonal()
        last, value = value, float((1 - shrinkage) * (weights @ found.log_prob))
        value -= 0.5 * shrinkage * float(prior)
        if value - last < TOLERANCE:
            break
        moment = found.filled.mT @ (weights[:, None] * found.filled) + found.spread
        covariance = above_floor(torch.lerp(moment, torch.diag(usual), shrinkage))
    return covariance


def above_floor(covariance: Tensor) -> Tensor:
    """Return the covariance with no eigenvalue below `FLOOR`², or 10⁻¹² of the largest.

    Of all such ones it has the highest likelihood.
    """
    even = 0.5 * (covariance + covariance.mT)
    sizes, axes = torch.linalg.eigh(even)
    least = max(FLOOR**2, MIN_RATIO * float(sizes[-1]))
    return even if sizes[0] >= least else (axes * sizes.clamp(min=least)) @ axes.mT
