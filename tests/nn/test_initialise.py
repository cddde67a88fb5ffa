"""The start: components on the data, whatever the data."""

import pytest
import torch
from torch.testing import assert_close

from condens.functional.triangular import unpack
from condens.nn.initialise import PENALTIES, _price, ridge, spread

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


@pytest.mark.parametrize("dimensions", [1, 2, 6])
def test_one_cloud_of_rows_has_components_around_its_middle(dimensions):
    """Components for parts of it would say nothing about new rows."""
    generator = torch.Generator().manual_seed(3)
    root = torch.randn(dimensions, dimensions, dtype=torch.float64, generator=generator)
    noise = torch.randn(60, dimensions, dtype=torch.float64, generator=generator)
    rows = 0.3 * noise @ root + 0.5
    centre, sums = rows.mean(0), (rows - rows.mean(0)).T @ (rows - rows.mean(0))
    common = (sums + sums.diagonal().diag() / 60) / 61
    found = [place(rows, 4, floor=0.0, seed=seed) for seed in range(400)]
    means, covariances = (torch.stack(part) for part in zip(*found, strict=True))
    assert_close(means.mean(1), centre.expand(400, -1), rtol=0, atol=1e-9)
    each = (1 - 0.36 / dimensions) * common
    assert_close(covariances, each.expand(400, 4, -1, -1), rtol=1e-6, atol=1e-9)
    offsets = torch.linalg.solve_triangular(
        torch.linalg.cholesky(common), (means - centre).mT, upper=False
    )
    sizes = offsets.square().sum((1, 2)) / 4
    assert_close(sizes, torch.full_like(sizes, 0.36), rtol=1e-6, atol=0)
    # On average, together they have the covariance of the rows.
    offsets = (means - centre).flatten(0, 1)
    between = offsets.T @ offsets / len(offsets)
    torch.testing.assert_close(between, 0.36 / dimensions * common, rtol=0.2, atol=0.02)


def test_clusters_need_rows_enough_to_count():
    """By Akaike's criterion: two clusters of 3 rows are a cloud, of 300 they are two."""
    generator = torch.Generator().manual_seed(4)
    centres = torch.tensor([-1.4, 1.4], dtype=torch.float64).view(2, 1, 1)
    for rows, apart in ((3, False), (300, True)):
        noise = torch.randn(2, rows, 4, dtype=torch.float64, generator=generator)
        _, covariances = place((noise + centres).flatten(0, 1), 2, floor=0.0)
        assert torch.allclose(covariances[0], covariances[1]) != apart


@pytest.mark.parametrize(("rows", "apart"), [(4999, False), (5000, True)])
def test_many_rows_of_one_cloud_have_components_of_their_own(rows, apart):
    """The means of components that start close together are 0.6 deviations from their centre."""
    cloud = torch.randn(rows, 2, generator=torch.Generator().manual_seed(5))
    means, _ = place(cloud, 8, floor=0.0)
    assert (means.square().sum(1).mean().sqrt() > 0.7) == apart


@pytest.mark.parametrize(("n_components", "rows", "dimensions"), [(3, 100, 2), (5, 400, 6)])
def test_the_price_is_half_the_difference_of_the_corrected_criterion(
    n_components, rows, dimensions
):
    def criterion(p):
        return 2 * p + 2 * p * (p + 1) / (rows - p - 1)

    each = dimensions + dimensions * (dimensions + 1) // 2  # a mean and a covariance
    many = n_components * each + n_components - 1  # and weights that sum to one
    expected = (criterion(many) - criterion(each)) / (2 * rows)
    assert _price(n_components, rows, dimensions) == pytest.approx(expected, rel=1e-12)
    assert _price(n_components, many + 1, dimensions) == float("inf")
    assert _price(1, rows, dimensions) == 0


class TestRidge:
    @staticmethod
    def rows(n=40, columns=5, targets=3, seed=0):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(n, columns, dtype=torch.float64, generator=generator) * 3 + 1
        weights = 0.3 * torch.randn(targets, columns, dtype=torch.float64, generator=generator)
        noise = torch.randn(n, targets, dtype=torch.float64, generator=generator)
        return x, 0.2 * (x @ weights.T + noise)

    @staticmethod
    def solved(x, y, penalty, keep):
        """Return weights and level of some rows, in the scales of all, by the normal equations."""
        scale, centre, mean = x.std(0, correction=0), x.mean(0), y.mean()
        z = torch.cat([(x - centre) / scale, torch.ones(len(x), 1)], 1)[keep]
        gram = z.T @ z
        gram[:-1, :-1] += penalty * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
        *_, level = solution = torch.linalg.solve(gram, z.T @ (y[keep] - mean))
        weights = solution[:-1] / scale
        return weights, level + mean - weights @ centre

    def test_each_target_has_the_penalty_that_is_best_for_rows_left_out(self):
        x, y = self.rows()
        weights, bias, residuals = ridge(x, y)
        every = torch.arange(len(x))
        for target, column in enumerate(y.unbind(1)):
            left_out = []
            for penalty in PENALTIES.tolist():
                fits = [self.solved(x, column, penalty, every != row) for row in every]
                left_out.append(
                    torch.stack([column[i] - w @ x[i] - b for i, (w, b) in enumerate(fits)])
                )
            best = min(range(len(PENALTIES)), key=lambda i: left_out[i].square().mean())
            w, level = self.solved(x, column, float(PENALTIES[best]), every >= 0)
            assert_close(weights[target], w, rtol=1e-8, atol=1e-10)
            assert_close(bias[target], level, rtol=1e-8, atol=1e-10)
            assert_close(residuals[:, target], left_out[best], rtol=1e-8, atol=1e-9)

    def test_noise_has_no_weights_to_speak_of(self):
        x, _ = self.rows(200, 8)
        noise = torch.randn(200, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
        weights, _, residuals = ridge(x, noise)
        assert ((x - x.mean(0)) @ weights.T).std() < 0.2
        assert residuals.var() > 0.95 * noise.var()

    def test_columns_that_say_nothing_and_targets_that_are_missing(self):
        x, y = self.rows(60)
        x = torch.cat([x, torch.full((60, 1), 7.0)], 1)
        gaps = torch.rand(60, 3, generator=torch.Generator().manual_seed(1)) < 0.3
        weights, bias, residuals = ridge(x, y.masked_fill(gaps, torch.nan))
        assert (weights[:, -1] == 0).all()
        assert torch.equal(residuals.isnan(), gaps)
        for target in range(3):
            seen = ~gaps[:, target]
            alone = ridge(x[seen], y[seen, target : target + 1])
            assert_close(weights[target], alone[0][0])
            assert_close(bias[target], alone[1][0])
            assert_close(residuals[seen, target], alone[2][:, 0])

    @pytest.mark.parametrize("n", [1, 2, 4])
    def test_more_columns_than_rows(self, n):
        assert all(part.isfinite().all() for part in ridge(*self.rows(n, 9)))


def test_missing_entries_count_as_the_centre():
    targets = torch.randn(500, 3, dtype=torch.float64)
    gaps = torch.rand(500, 3) < 0.3
    with_gaps = place(targets.masked_fill(gaps, torch.nan), 4)
    with_zeros = place(targets.masked_fill(gaps, 0.0), 4)
    assert_close(with_gaps, with_zeros, rtol=0, atol=0)
    assert with_gaps[0].isfinite().all()
