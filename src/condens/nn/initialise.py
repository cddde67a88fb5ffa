"""Initial components, spread over the data before the first step."""

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from condens.functional.triangular import from_upper_root

# Rows used to place the components; more would not move them.
MAX_ROWS = 5000
LLOYD_STEPS = 25
# Weight of the common covariance against that of a cluster's rows, in rows per dimension.
SHRINKAGE_ROWS = 10.0
# Smallest scale, even with no floor: a singular covariance has no factor.
MIN_SCALE = 1e-6


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

    A cluster's covariance is shrunk towards the common one, more strongly the fewer rows it has;
    `floor` keeps both from being singular. Missing entries count as the centre of their column.

    Shapes: targets [n, D], standardised.
    """
    targets = targets.double().nan_to_num(nan=0.0)
    if len(targets) > MAX_ROWS:
        targets = targets[torch.randperm(len(targets), generator=generator)[:MAX_ROWS]]
    # A few far rows should not get a component each.
    targets = targets.clamp(-5.0, 5.0)
    if targets.shape[1] == 1:
        levels = (torch.arange(n_components, dtype=targets.dtype) + 0.5) / n_components
        means = torch.quantile(targets[:, 0], levels).unsqueeze(-1)
    else:
        means = _k_means(targets, n_components, generator)
    return Start(means, _covariances(targets, means, floor))


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
