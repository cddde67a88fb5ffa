"""The linear Gaussian model: against refits without each row, and against direct maximisation."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal

from condens.evaluation import linear
from condens.evaluation.linear import FLOOR, RIDGES, SHRINKAGES, fit_linear, maximum_likelihood
from condens.functional.triangular import unpack


def problem(n, columns, targets, seed=0, gaps=0.0):
    """Return features, standardised targets of correlated noise, and uneven weights."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, columns)) @ rng.normal(size=(columns, columns))
    mixing = np.eye(targets) + 0.4 * rng.normal(size=(targets, targets))
    noise = rng.normal(size=(n, targets)) @ mixing
    target = features @ rng.normal(size=(columns, targets)) / 2 + noise
    target[rng.random(target.shape) < gaps] = np.nan
    target = target[~np.isnan(target).all(1)]
    features = features[: len(target)]
    target = (target - np.nanmean(target, 0)) / np.nanstd(target, 0)
    weights = rng.uniform(0.5, 2, len(target))
    return features, target, weights / weights.sum()


def ridge_fit(features, target, weights, ridge):
    """Minimise Σ w (z − b − fB)² + λ‖B‖² by the normal equations, the intercept free."""
    design = np.column_stack([np.ones(len(features)), features])
    penalty = np.diag([0.0] + [ridge] * features.shape[1])
    gram = design.T @ (weights[:, None] * design) + penalty
    return np.linalg.solve(gram, design.T @ (weights[:, None] * target))


def left_out(features, target, weights, ridge):
    """Return residuals of rows from fits without them."""
    found = np.empty_like(target)
    for row in range(len(target)):
        kept = np.arange(len(target)) != row
        solution = ridge_fit(features[kept], target[kept], weights[kept], ridge)
        found[row] = target[row] - np.r_[1.0, features[row]] @ solution
    return found


def leverages(features, weights, ridge):
    """Return what each target contributes to its own fitted value."""
    unit = ridge_fit(features, np.eye(len(features)), weights, ridge)
    return np.diag(np.column_stack([np.ones(len(features)), features]) @ unit)


def left_out_density(residual, weights, own, shrinkage):
    """Return the mean log density of rows under the shrunk covariance of the other rows."""
    total, moment = 0.0, residual.T @ (weights[:, None] * residual)
    diagonal = np.diag(np.diag(moment))
    for x, weight, leverage in zip(residual, weights, own, strict=True):
        rest = moment - weight / (1 - leverage) * np.outer(x, x)
        matrix = ((1 - shrinkage) * rest + shrinkage * diagonal) / (1 - weight)
        if np.linalg.eigvalsh(matrix)[0] < 1e-9:
            return -np.inf
        total += weight * multivariate_normal(np.zeros(len(x)), matrix).logpdf(x)
    return total


def test_a_covariance_without_a_row_is_that_of_the_other_rows():
    """Without features and weights the formula for rows left out is exact."""
    _, target, _ = problem(15, 0, 3)
    weights = np.full(15, 1 / 15)
    residual = left_out(target[:, :0], target, weights, 1.0)
    total = 0.0
    for row in range(15):
        others = np.delete(target, row, 0)
        # In units of leave-one-out residuals, which are 15/14 times the deviations.
        matrix = (15 / 14) ** 2 * np.cov(others.T, bias=True)
        total += multivariate_normal(np.zeros(3), matrix).logpdf(residual[row]) / 15
    moment = residual.T @ residual / 15
    given = map(torch.from_numpy, (residual, weights, 1 - weights, moment))
    found = linear.left_out_log_prob(*given, 0.0) - 1.5 * np.log(2 * np.pi)
    assert_allclose(found, total, rtol=1e-10)


@pytest.mark.parametrize(("n", "columns", "targets"), [(40, 3, 2), (25, 15, 3), (30, 0, 4)])
def test_complete_rows_against_refits_without_each(n, columns, targets):
    features, target, weights = problem(n, columns, targets)
    residuals = [left_out(features, target, weights, ridge) for ridge in RIDGES.numpy()]
    errors = [np.log(weights @ r**2 + FLOOR**2).sum() for r in residuals]
    best = int(np.argmin(errors)) if columns else 0
    chosen, residual = float(RIDGES[best]), residuals[best]
    own = leverages(features, weights, chosen)
    values = [left_out_density(residual, weights, own, a) for a in SHRINKAGES]
    shrinkage = SHRINKAGES[int(np.argmax(values))]
    moment = residual.T @ (weights[:, None] * residual)
    moment = (1 - shrinkage) * moment + shrinkage * np.diag(np.diag(moment))
    factor = 1 + 2 / (1 / (weights**2).sum() - 3)

    model = fit_linear(*map(torch.from_numpy, (features, target, weights)))
    solution = ridge_fit(features, target, weights, chosen)
    assert_allclose(model.intercept, solution[0], atol=1e-9)
    assert_allclose(model.coefficients, solution[1:], atol=1e-9)
    upper = unpack(model.factor, targets).numpy()
    assert_allclose(np.linalg.inv(upper.T @ upper), factor * moment, rtol=1e-8, atol=1e-10)


def test_more_columns_than_rows_against_refits_without_each():
    features, target, weights = problem(12, 30, 2)
    given = tuple(map(torch.from_numpy, (features, target, weights)))
    centred = given[0] - given[2] @ given[0]
    axes, sizes = linear.principal_axes(centred, given[2])
    assert axes.shape[1] <= 12
    groups = linear._groups(centred @ axes, given[1], given[2], sizes)
    ridges = torch.tensor([10.0, 0.1], dtype=torch.float64)
    errors = linear._left_out_errors(groups[0], ridges)
    for ridge, error in zip(ridges.tolist(), errors, strict=True):
        expected = weights @ left_out(features, target, weights, ridge) ** 2
        assert_allclose(error, expected, rtol=1e-8)


def observed_log_prob(target, mean, covariance):
    """Return the log density of the observed entries of each row, by scipy's formula in torch."""
    values = []
    for row, centre in zip(target, mean, strict=True):
        seen = ~row.isnan()
        normal = torch.distributions.MultivariateNormal(
            centre[seen], covariance_matrix=covariance[seen][:, seen]
        )
        values.append(normal.log_prob(row[seen]))
    return torch.stack(values)


@pytest.mark.parametrize(("ridge", "strength"), [(0.0, 0.0), (0.3, 0.2)])
def test_gaps_reach_a_maximum_of_the_exact_density(ridge, strength):
    features, target, weights = map(torch.from_numpy, problem(60, 2, 3, gaps=0.3))
    centred = features - weights @ features
    axes, sizes = linear.principal_axes(centred, weights)
    scores, usual = centred @ axes, torch.tensor([0.5, 0.4, 0.7], dtype=torch.float64)
    penalty = torch.tensor(ridge, dtype=torch.float64)
    intercept, slopes, covariance, values = maximum_likelihood(
        scores, target, weights, sizes, penalty, usual,
        strength=strength, tolerance=-1.0, max_steps=800,
    )  # fmt: skip
    # Never falls, but for the last digits.
    assert (np.diff(values) > -1e-12).all()

    free = [part.clone().requires_grad_() for part in (intercept, slopes, covariance)]
    inverse = torch.linalg.inv(free[2])
    prior = strength * (torch.logdet(free[2]) + usual @ inverse.diagonal())
    penalised = 0.5 * (ridge * torch.trace(free[1] @ inverse @ free[1].T) + prior)
    value = weights @ observed_log_prob(target, free[0] + scores @ free[1], free[2]) - penalised
    value.backward()
    assert values[-1] == pytest.approx(value.item(), abs=1e-10)
    # A maximum: no gradient in any number.
    assert max(part.grad.abs().max() for part in free) < 1e-8


def test_covariance_with_gaps_reaches_a_maximum_of_the_exact_density():
    _, residual, weights = problem(200, 1, 3, gaps=0.25, seed=4)
    residual, weights = torch.from_numpy(residual), torch.from_numpy(weights)
    gaps, usual = linear._Gaps(~residual.isnan(), weights), linear._usual(residual, weights)
    found = linear._covariance_with_gaps(gaps, residual, weights, usual, 0.0, max_steps=20)
    # A maximum: the gradient in every entry is zero.
    polished = linear._covariance_with_gaps(
        gaps, residual, weights, usual, 0.0, start=found, max_steps=20
    )
    for _ in range(200):
        filled = gaps.fill(residual, polished)
        polished = filled.filled.T @ (weights[:, None] * filled.filled) + filled.spread
    matrix = polished.clone().requires_grad_()
    (weights @ observed_log_prob(residual, torch.zeros_like(residual), matrix)).backward()
    assert matrix.grad.abs().max() < 1e-9
    assert_allclose(found, polished, atol=0.01)
    assert_allclose(
        gaps.fill(residual, polished).log_prob,
        observed_log_prob(residual, torch.zeros_like(residual), polished),
        rtol=1e-10,
    )


@pytest.mark.parametrize("gaps", [0.0, 0.3])
def test_fewer_rows_than_targets(gaps):
    """A covariance for new rows: far better than the sample's, which has none."""
    features, target, weights = problem(12, 0, 20, gaps=gaps, seed=2)
    model = fit_linear(*map(torch.from_numpy, (features, target, weights)))
    deviations = torch.from_numpy(np.random.default_rng(1).normal(size=(500, 20)))
    log_prob = torch.distributions.MultivariateNormal(
        model.intercept, precision_matrix=(u := unpack(model.factor, 20)).T @ u
    ).log_prob(deviations)
    assert log_prob.mean() > -60  # 20 independent standard normals have −28


def test_ridge_saves_many_columns():
    """200 columns of 50 rows: not worse than none, where least squares would fail."""
    rng = np.random.default_rng(3)
    features, target = rng.normal(size=(2050, 200)), rng.normal(size=(2050, 2))
    target += features[:, :1]
    features, target = torch.from_numpy(features), torch.from_numpy(target)
    weights = torch.full((50,), 0.02, dtype=torch.float64)

    def judged(columns):
        model = fit_linear(features[:50, :columns], target[:50], weights)
        mean = model.intercept + features[50:, :columns] @ model.coefficients
        upper = unpack(model.factor, 2)
        return (
            torch.distributions.MultivariateNormal(mean, precision_matrix=upper.T @ upper)
            .log_prob(target[50:])
            .mean()
        )

    assert judged(200) > judged(0) - 0.1
    assert judged(5) > judged(0) + 0.2
