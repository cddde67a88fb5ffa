"""Initial components, spread over the data before the first step."""

import math
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from condens.functional.triangular import from_upper_root

# Rows used to place the components; more would not move them.
MAX_ROWS = 5000
# Rows from which on components always start apart: there are enough to move those that should meet,
# and those that start close together seldom part (noisy arms: on training rows a regret of 0.05 for
# 0.02; two moons: 4 of 10 components used for 5).
MIN_APART_ROWS = 5_000
LLOYD_STEPS = 25
# Weight of the common covariance against that of a cluster's rows, in rows per dimension.
SHRINKAGE_ROWS = 10.0
# Root mean square distance of components that start close together from their centre, in
# deviations. Two of them have one mode.
CLOSENESS = 0.6
# Smallest scale, even with no floor: a singular covariance has no factor.
MIN_SCALE = 1e-6
# Rows and columns of a linear fit at most, and its penalties to choose from, in units of the
# features' variance.
MAX_LINEAR_ROWS, MAX_LINEAR_COLUMNS = 50_000, 1000
PENALTIES = torch.logspace(-6, 2, 17, dtype=torch.float64)


class Linear(NamedTuple):
    """A linear fit: weights [D, F], bias [D], and the residuals of rows left out of it [n, D]."""

    weights: Tensor
    bias: Tensor
    residuals: Tensor


class Start(NamedTuple):
    """Initial components: means [K, D] and covariances [K, D, D]."""

    means: Tensor
    covariances: Tensor

    @property
    def scales(self) -> Tensor:
        """The standard deviations of every component [K, D]."""
        return self.covariances.diagonal(dim1=-2, dim2=-1).sqrt()

    @property
    def factors(self) -> Tensor:
        """The packed factors of the covariances [K, D(D+1)/2]."""
        # The Cholesky factor of the flipped matrix, flipped back, is upper.
        return from_upper_root(torch.linalg.cholesky(self.covariances.flip(-1, -2)).flip(-1, -2))


@torch.no_grad()
def spread(targets: Tensor, n_components: int, *, floor: float, generator: Generator) -> Start:
    """Place components by k-means (quantiles for D = 1), with the covariances of the clusters.

    Where clusters explain the rows no better than one Gaussian, as few rows or many dimensions make
    likely, components are placed around the middle of all rows, close together; of 40 000 rows or
    more never.

    A cluster's covariance is shrunk towards the common one, more strongly the fewer rows it has;
    `floor` keeps both from being singular. Missing entries count as the centre of their column.

    Shapes: targets [n, D], standardised.
    """
    many = len(targets) >= MIN_APART_ROWS
    if len(targets) > MAX_ROWS:
        targets = targets[torch.randperm(len(targets), generator=generator)[:MAX_ROWS]]
    # A few far rows should not get a component each.
    targets = targets.double().nan_to_num(nan=0.0).clamp(-5.0, 5.0)
    if targets.shape[1] == 1:
        levels = (torch.arange(n_components, dtype=targets.dtype) + 0.5) / n_components
        means = torch.quantile(targets[:, 0], levels).unsqueeze(-1)
    else:
        means = _k_means(targets, n_components, generator)
    apart = Start(means, _covariances(targets, means, floor))
    one = _one(targets, floor)
    gain = _log_likelihood(targets, apart) - _log_likelihood(targets, one)
    if many or gain > _price(n_components, *targets.shape):
        return apart
    return _around(one, n_components, generator)


def _price(n_components: int, rows: int, dimensions: int) -> float:
    """Return what separate components must add to the mean log density of one.

    The difference of Akaike's criterion, corrected for few rows (Hurvich and Tsai, 1989).
    """
    one = dimensions * (dimensions + 3) / 2
    many = n_components * (1 + one) - 1
    if rows <= many + 1:
        return math.inf
    return many / (rows - many - 1) - one / (rows - one - 1)


def _one(targets: Tensor, floor: float) -> Start:
    """Return one component with the mean and the covariance of all rows."""
    centre = targets.mean(0)
    rest = targets - centre
    sums = rest.T @ rest
    # One row of independent targets: fewer rows than targets have no covariance.
    common = (sums + sums.diagonal().diag() / len(rest)) / (len(rest) + 1)
    common = common + max(floor, MIN_SCALE) ** 2 * torch.eye(len(centre), dtype=common.dtype)
    return Start(centre.unsqueeze(0), common.unsqueeze(0))


def _around(one: Start, n_components: int, generator: Generator) -> Start:
    """Return components around a single one: its mean and, averaged over draws, its covariance."""
    dimensions = one.means.shape[1]
    noise = torch.randn(n_components, dimensions, generator=generator, dtype=one.means.dtype)
    offset = noise - noise.mean(0)
    # A single component has no offset.
    offset = CLOSENESS * offset / offset.square().sum(1).mean().sqrt().clamp(min=MIN_SCALE)
    rest = 1 - offset.square().sum() / (n_components * dimensions)
    root = torch.linalg.cholesky(one.covariances[0])
    return Start(one.means + offset @ root.mT, rest * one.covariances.expand(n_components, -1, -1))


def _log_likelihood(targets: Tensor, start: Start) -> float:
    """Return the mean log density of rows under components of equal weights."""
    normal = torch.distributions.MultivariateNormal(
        start.means, start.covariances, validate_args=False
    )
    joint = normal.log_prob(targets.unsqueeze(1)) - math.log(len(start.means))
    return float(joint.logsumexp(1).mean())


@torch.no_grad()
def ridge(features: Tensor, targets: Tensor) -> Linear:
    """Fit a ridge regression.

    Each target has the penalty whose squared residuals of rows left out, in closed form
    r/(1 − h) with h the leverage, are least. Missing targets are left out, and stay missing.

    Shapes: features [n, F], targets [n, D].
    """
    features, targets = features.double(), targets.double()
    complete = bool(targets.isfinite().all())
    columns = torch.arange(targets.shape[1])
    groups = [columns] if complete else list(columns[:, None])
    weights = targets.new_zeros(targets.shape[1], features.shape[1])
    bias, residuals = torch.zeros_like(weights[:, 0]), targets.clone()
    for group in groups:
        rows = targets[:, group].isfinite().all(1).nonzero()[:, 0]
        if len(rows) > 1:
            found = _ridge(features[rows], targets[rows][:, group])
            weights[group], bias[group], residuals[rows[:, None], group] = found
    return Linear(weights, bias, residuals)


def _ridge(features: Tensor, targets: Tensor) -> Linear:
    n = len(features)
    deviation = features.std(0, correction=0)
    scale = torch.where(deviation > 1e-9, deviation.clamp(min=1e-300), torch.inf)
    centre, level = features.mean(0), targets.mean(0)
    x, y = (features - centre) / scale, (targets - level).clamp(-5.0, 5.0)
    values, vectors = torch.linalg.eigh(x.T @ x / n)
    values = values.clamp(min=0.0)
    turned = x @ vectors
    along = turned.T @ y / n
    best = torch.full_like(level, torch.inf)
    weights, left = torch.zeros_like(vectors @ along), y
    for penalty in PENALTIES.to(values):
        kept = 1 / (values + penalty)
        leverage = (turned.square() @ kept / n + 1 / n).clamp(max=1 - 1e-6)
        residual = (y - turned @ (kept[:, None] * along)) / (1 - leverage)[:, None]
        error = residual.square().mean(0)
        better = error < best
        best = torch.where(better, error, best)
        weights = torch.where(better, vectors @ (kept[:, None] * along), weights)
        left = torch.where(better, residual, left)
    better = y.square().mean(0) < best  # than any linear fit is none
    weights = (torch.where(better, 0.0, weights) / scale[:, None]).T
    left = torch.where(better, y, left)
    return Linear(weights, level - weights @ centre, left)


def _k_means(targets: Tensor, n_components: int, generator: Generator) -> Tensor:
    """Return centres [K, D] by Lloyd's steps from k-means++ seeds."""
    centres = targets[torch.randint(len(targets), (1,), generator=generator)]
    for _ in range(n_components - 1):
        distance = torch.cdist(targets, centres).amin(1).square()
        # The small constant lets rows repeat where there are fewer rows than components.
        seed = torch.multinomial(distance + 1e-12, 1, generator=generator)
        centres = torch.cat([centres, targets[seed]])
    for _ in range(LLOYD_STEPS):
        count, total, _ = _clusters(targets, centres)
        moved = torch.where(count > 0, total / count.clamp(min=1), centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres


def _clusters(targets: Tensor, centres: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the number of rows nearest to each centre [K, 1], their sum, and all labels."""
    label = torch.cdist(targets, centres).argmin(1)
    member = torch.nn.functional.one_hot(label, len(centres)).to(targets.dtype)
    return member.sum(0).unsqueeze(-1), member.T @ targets, label


def _covariances(targets: Tensor, means: Tensor, floor: float) -> Tensor:
    n_components, dimensions = means.shape
    count, _, label = _clusters(targets, means)
    offset = targets - means[label]
    common = offset.T @ offset / len(targets)
    common = common + max(floor, MIN_SCALE) ** 2 * torch.eye(dimensions, dtype=common.dtype)
    sums = torch.stack([offset[label == k].T @ offset[label == k] for k in range(n_components)])
    weight = SHRINKAGE_ROWS * dimensions
    return (sums + weight * common) / (count.unsqueeze(-1) + weight)
