"""The start: components on the data, whatever the data."""

import pytest
import torch
from torch.testing import assert_close

from condens.functional.triangular import unpack
from condens.nn.initialise import spread

CENTRES = torch.tensor(
    [[-2.0, -2.0, 0.0], [2.0, -2.0, 0.0], [0.0, 2.0, -1.0], [0.0, 0.0, 3.0]], dtype=torch.float64
)


def place(targets, n_components, floor=1e-3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    start = spread(targets, n_components, floor=floor, generator=generator)
    upper = unpack(start.factors, targets.shape[1])
    return start.means, torch.linalg.inv(upper.mT @ upper)


def clusters(rows=200, scale=0.1, seed=1):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(CENTRES), rows, 3, dtype=torch.float64, generator=generator)
    return CENTRES.unsqueeze(1) + scale * noise


@pytest.mark.parametrize("seed", range(5))
def test_one_component_on_each_separated_cluster(seed):
    groups = clusters()
    means, covariances = place(groups.flatten(0, 1), 4, seed=seed)
    distance = torch.cdist(groups.mean(1), means)
    assert distance.amin(1).max() < 1e-6, "k-means ends at the clusters' means"
    assert distance.argmin(1).unique().numel() == 4
    # The second moments of a cluster and the common ones are both 0.01 · identity here.
    expected = 0.01 * torch.eye(3, dtype=torch.float64).expand(4, 3, 3)
    assert_close(covariances, expected, atol=0.002, rtol=0)


def test_the_few_rows_of_a_cluster_count_less_than_the_common_covariance():
    """By hand: (sum of the cluster + w·common) / (n + w) with w = 10·D rows."""
    generator = torch.Generator().manual_seed(2)
    wide = 0.3 * torch.randn(300, 2, dtype=torch.float64, generator=generator)
    narrow = 4.5 + 0.01 * torch.randn(5, 2, dtype=torch.float64, generator=generator)
    means, covariances = place(torch.cat([wide, narrow]), 2)
    groups = [wide, narrow]
    offsets = [g - g.mean(0) for g in groups]
    sums = [o.T @ o for o in offsets]
    common = sum(sums) / 305 + 1e-6 * torch.eye(2, dtype=torch.float64)
    order = means[:, 0].argsort()
    expected = torch.stack(
        [(s + 20 * common) / (len(g) + 20) for s, g in zip(sums, groups, strict=True)]
    )
    assert_close(means[order], torch.stack([g.mean(0) for g in groups]), atol=1e-9, rtol=0)
    assert_close(covariances[order], expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("n_components", [1, 4, 7])
def test_one_dimension_is_a_grid_of_quantiles(n_components):
    targets = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    shuffled = targets[torch.randperm(2001)].unsqueeze(1)
    means, _ = place(shuffled, n_components)
    expected = -1 + 2 * (torch.arange(n_components, dtype=torch.float64) + 0.5) / n_components
    assert_close(means[:, 0], expected, rtol=0, atol=1e-9)


def test_seeded():
    targets = torch.randn(7000, 3)
    one, again, other = (place(targets, 5, seed=seed)[0] for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("dimensions", [1, 2, 5])
@pytest.mark.parametrize("floor", [0.0, 1e-3, 0.1])
@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.randn(3, d),
        lambda d: torch.randn(1, d),
        lambda d: torch.randn(2, d).repeat(50, 1),
        lambda d: torch.zeros(20, d),
        lambda d: torch.randn(50, 1).expand(50, d),
        lambda d: torch.full((20, d), torch.nan),
        lambda d: 1e12 * torch.randn(50, d),
    ],
    ids=["few", "one", "duplicates", "constant", "collinear", "missing", "far"],
)
def test_whatever_the_data_the_covariances_are_definite(dimensions, floor, make):
    means, covariances = place(make(dimensions), 6, floor=floor)
    assert means.isfinite().all()
    assert means.abs().max() <= 5
    assert covariances.isfinite().all()
    # The floor enters with the common covariance, of weight 10·D against at most 100 rows.
    scales = torch.linalg.cholesky(covariances).diagonal(dim1=-2, dim2=-1)
    assert (scales > 0.25 * floor).all()


def test_more_components_than_rows_sit_on_the_rows():
    rows = torch.tensor([[-1.0, 0.0], [1.0, 0.5], [0.0, 2.0]], dtype=torch.float64)
    means, _ = place(rows, 8)
    distance = torch.cdist(rows, means)
    assert distance.amin(0).max() < 1e-9
    assert distance.amin(1).max() < 1e-9


def test_missing_entries_count_as_the_centre():
    targets = torch.randn(500, 3, dtype=torch.float64)
    gaps = torch.rand(500, 3) < 0.3
    with_gaps = place(targets.masked_fill(gaps, torch.nan), 4)
    with_zeros = place(targets.masked_fill(gaps, 0.0), 4)
    assert_close(with_gaps, with_zeros, rtol=0, atol=0)
    assert with_gaps[0].isfinite().all()
