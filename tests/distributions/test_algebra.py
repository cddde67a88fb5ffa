"""Affine images, projections, products, quotients and ensembles."""

import numpy as np
import pytest
import torch
from helpers.reference import COVARIANCES, assert_same, dense, random_parameters
from scipy import stats
from scipy.special import softmax
from torch.distributions import Independent, MultivariateNormal, Normal
from torch.testing import assert_close

from condens import GaussianMixture
from condens.errors import ArgumentError, NotADensityError, NotPositiveDefiniteError, ShapeError
from condens.functional import algebra

SIZES = [(1, 1), (3, 2), (3, 5), (20, 5), (3, 20)]


def mixture_of(n_components=3, dimensions=3, covariance="full", batch=(), seed=0, **options):
    parameters = random_parameters(
        batch, n_components, dimensions, covariance=covariance, seed=seed
    )
    return GaussianMixture(*parameters, **options)


def gaussian_of(dimensions, seed=9, width=1.0, batch=()):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(*batch, dimensions, dimensions, dtype=torch.float64, generator=generator)
    covariance = width**2 * (root @ root.mT / dimensions + torch.eye(dimensions))
    loc = torch.randn(*batch, dimensions, dtype=torch.float64, generator=generator)
    return MultivariateNormal(loc, covariance)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize(("n_components", "dimensions"), SIZES)
def test_affine_by_matrix_against_dense(n_components, dimensions, covariance):
    mixture = mixture_of(n_components, dimensions, covariance)
    weights, means, covariances = dense(*mixture.parameters)
    for rows in {1, (dimensions + 1) // 2, dimensions}:
        matrix = torch.randn(rows, dimensions, dtype=torch.float64)
        loc = torch.randn(rows, dtype=torch.float64)
        a = matrix.numpy()
        expected = (weights, means @ a.T + loc.numpy(), a @ covariances @ a.T)
        assert_same(mixture.affine(matrix, loc), *expected, tolerance=1e-8)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_affine_by_scale_is_affine_by_diagonal_matrix_and_keeps_structure(covariance):
    mixture = mixture_of(covariance=covariance, names=["a", "b", "c"])
    scale = torch.tensor([2.0, -0.5, 1e3], dtype=torch.float64)
    ours = mixture.affine(scale, 1.0)
    twin = mixture.affine(torch.diag(scale), torch.ones(3))
    assert covariance in repr(ours)
    assert ours.names == ("a", "b", "c")
    assert twin.names is None
    assert_close(ours.means, twin.means, rtol=1e-12, atol=1e-12)
    assert_close(ours.covariance_matrices, twin.covariance_matrices, rtol=1e-10, atol=1e-10)
    assert_close(
        mixture.affine(2.0).covariance_matrix, 4 * mixture.covariance_matrix, rtol=1e-12, atol=0
    )


def test_log_prob_of_an_affine_image_carries_the_jacobian():
    mixture = mixture_of(batch=(2,))
    matrix, loc = torch.randn(3, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    expected = mixture.log_prob(x) - torch.linalg.slogdet(matrix).logabsdet
    assert_close(
        mixture.affine(matrix, loc).log_prob(x @ matrix.T + loc), expected, rtol=1e-9, atol=1e-9
    )


def test_batched_loc_moves_members_of_the_batch_not_components():
    mixture = mixture_of(3, 2, batch=(3,))
    loc = torch.arange(6.0, dtype=torch.float64).reshape(3, 2)
    moved = mixture.affine(1.0, loc)
    assert_close(moved.means, mixture.means + loc[:, None], rtol=1e-12, atol=1e-12)
    by_matrix = mixture.affine(torch.eye(2), loc)
    assert_close(by_matrix.means, moved.means, rtol=1e-12, atol=1e-12)
    wider = mixture[0].affine(2.0, loc)
    assert wider.batch_shape == (3,)


def test_a_matrix_of_very_different_scales_or_a_tight_mixture_is_no_lack_of_rank():
    mixture = mixture_of(3, 2)
    scale = torch.tensor([1e-20, 1e20], dtype=torch.float64)
    ours, twin = mixture.affine(torch.diag(scale)), mixture.affine(scale)
    assert_close(ours.factors, twin.factors, rtol=1e-9, atol=1e-9)
    # Rows that differ only in the tiny unit of a very wide dimension.
    matrix = torch.tensor([[1.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    there_and_back = mixture.affine(1 / scale).affine(matrix * scale)
    assert_close(there_and_back.factors, mixture.affine(matrix).factors, rtol=1e-9, atol=1e-9)
    tight = GaussianMixture(
        torch.zeros(1, dtype=torch.float64),
        torch.zeros(1, 2, dtype=torch.float64),
        torch.tensor([[16.0, -16.0, 9e6]], dtype=torch.float64),
    )
    same = tight.affine(torch.eye(2, dtype=torch.float64))
    assert_close(same.factors, tight.factors, rtol=1e-9, atol=1e-9)


def test_a_rank_lost_in_float32_is_refused():
    mixture = mixture_of().to(torch.float32)
    row = torch.rand(3)
    with pytest.raises(NotPositiveDefiniteError, match="full row rank"):
        mixture.affine(torch.stack([row, row / 3]))


@pytest.mark.parametrize(("n_components", "dimensions"), SIZES)
def test_products_and_quotients_against_dense_formulas(n_components, dimensions):
    mixture = mixture_of(n_components, dimensions)
    weights, means, covariances = dense(*mixture.parameters)
    for sign, width in ((1, 1.0), (-1, 30.0)):
        gaussian = gaussian_of(dimensions, width=width)
        loc, other = gaussian.loc.numpy(), np.linalg.inv(gaussian.covariance_matrix.numpy())
        precisions = np.linalg.inv(covariances)
        new = np.linalg.inv(precisions + sign * other)
        pull = np.einsum("kij,kj->ki", precisions, means) + sign * other @ loc
        centres = np.einsum("kij,kj->ki", new, pull)
        # At any point, weight · new density ∝ old weight · p · N^±1: evaluate at each new mean.
        log_weights = [
            np.log(w)
            + stats.multivariate_normal(m, c).logpdf(x)
            + sign * gaussian.log_prob(torch.from_numpy(x)).item()
            - stats.multivariate_normal(x, n).logpdf(x)
            for w, m, c, x, n in zip(weights, means, covariances, centres, new, strict=True)
        ]
        ours = mixture.multiply(gaussian) if sign == 1 else mixture.divide(gaussian)
        assert_same(ours, softmax(log_weights), centres, new, tolerance=1e-7)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_float32_factors_of_very_different_scales(covariance):
    """Log-diagonals of ±8 in one factor: float32 arithmetic would lose most digits."""
    torch.manual_seed(3)
    factors = torch.randn(2, 6 if covariance == "full" else 3)
    factors[:, :3] = torch.tensor([8.0, -8.0, 4.0])
    mixture = GaussianMixture(torch.zeros(2), torch.randn(2, 3), factors)
    exact = mixture.to(torch.float64)
    matrix = torch.tensor([[1.0, 2.0, 0.5], [0.0, 1.0, -1.0]])
    wide = GaussianMixture(torch.zeros(1), torch.ones(1, 3), torch.full((1, 3), -12.0))
    narrow = GaussianMixture(torch.zeros(1), torch.ones(1, 3), torch.ones(1, 3))
    for ours, reference in (
        (mixture.affine(matrix), exact.affine(matrix)),
        (mixture.project([1.0, -1.0, 2.0]), exact.project([1.0, -1.0, 2.0])),
        (mixture.multiply(narrow), exact.multiply(narrow)),
        (mixture.divide(wide), exact.divide(wide)),
    ):
        assert ours.dtype == torch.float32
        assert_close(ours.factors.double(), reference.factors, rtol=1e-5, atol=1e-5)
        assert_close(ours.means.double(), reference.means, rtol=1e-5, atol=1e-5)
        assert_close(ours.weights.double(), reference.weights, rtol=1e-4, atol=1e-6)
    spread = mixture.covariance_matrices.double()
    assert_close(spread, exact.covariance_matrices, rtol=1e-5, atol=0)


def test_a_barely_possible_quotient_keeps_its_digits_in_float32():
    unit = GaussianMixture(torch.zeros(1), torch.ones(1, 1), torch.zeros(1, 1))
    divisor = GaussianMixture(torch.zeros(1), torch.zeros(1, 1), torch.full((1, 1), -1e-4))
    expected = unit.to(torch.float64).divide(divisor.to(torch.float64)).mean
    assert_close(unit.divide(divisor).mean.double(), expected, rtol=1e-6, atol=0)


DERIVED = {
    "affine by matrix": lambda m: m.affine(torch.tensor([[1.0, 2.0], [-0.5, 1.0]]), 0.3),
    "affine to fewer": lambda m: m.affine(torch.tensor([[1.0, 2.0]])),
    "affine by scale": lambda m: m.affine([2.0, -0.5], [1.0, 0.0]),
    "multiply": lambda m: m.multiply(gaussian_of(2)),
    "divide": lambda m: m.divide(gaussian_of(2, width=9.0)),
    "ensemble": lambda m: type(m).ensemble([m, m.affine(2.0)], [1.0, 3.0]),
    "precisions": lambda m: type(m).from_precisions(
        m.weights, m.means, m.precision_factors.mT @ m.precision_factors
    ),
    "covariances": lambda m: type(m).from_covariances(m.weights, m.means, m.covariance_matrices),
    "scale_tril": lambda m: type(m).from_scale_tril(
        m.weights, m.means, torch.linalg.cholesky(m.covariance_matrices)
    ),
}


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("name", DERIVED)
def test_derived_mixtures_have_right_derivatives(name, covariance):
    inputs = [p.requires_grad_() for p in random_parameters((), 2, 2, covariance=covariance)]

    def density(*parameters):
        derived = DERIVED[name](GaussianMixture(*parameters))
        x = torch.linspace(-1, 1, 2 * derived.dimensions, dtype=torch.float64)
        return derived.log_prob(x.reshape(2, -1))

    assert torch.autograd.gradcheck(density, inputs)
    assert torch.autograd.gradgradcheck(density, inputs)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_moments_and_exact_divergence_have_right_derivatives(covariance):
    inputs = [p.requires_grad_() for p in random_parameters((), 2, 2, covariance=covariance)]
    other = gaussian_of(2)

    def numbers(*parameters):
        mixture = GaussianMixture(*parameters)
        single = GaussianMixture(*(p[:1] for p in parameters))
        moments = (mixture.mean, mixture.variance, mixture.covariance_matrix)
        # One output: gradcheck passes over those that carry no gradient.
        answers = (*moments, single.kl_divergence(other).value)
        return torch.cat([answer.flatten() for answer in answers])

    assert torch.autograd.gradcheck(numbers, inputs)
    assert torch.autograd.gradgradcheck(numbers, inputs)


def test_affine_extremes_of_scale_survive():
    mixture = mixture_of(2, 2)
    there = mixture.affine([1e-30, 1e30], [5.0, -1e31])
    back = there.affine([1e30, 1e-30], [-5e30, 10.0])
    assert_close(back.factors, mixture.factors, rtol=1e-12, atol=1e-12)


def test_batched_matrix_and_loc():
    mixture = mixture_of(batch=(4,))
    matrix = torch.randn(4, 2, 3, dtype=torch.float64)
    loc = torch.randn(4, 2, dtype=torch.float64)
    together = mixture.affine(matrix, loc)
    for i in range(4):
        alone = mixture[i].affine(matrix[i], loc[i])
        assert_close(together[i].factors, alone.factors, rtol=1e-12, atol=1e-12)
        assert_close(together[i].means, alone.means, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_projection(covariance):
    mixture = mixture_of(covariance=covariance)
    weights, means, covariances = dense(*mixture.parameters)
    w = np.array([0.5, -2.0, 1.0])
    variance = np.einsum("i,kij,j->k", w, covariances, w)[:, None, None]
    projected = mixture.project(w)
    assert projected.event_shape == (1,)
    assert_same(projected, weights, (means @ w)[:, None], variance)
    unit = mixture.project([0.0, 1.0, 0.0])
    assert_same(unit, *dense(*mixture.marginal([1]).parameters))


def test_several_directions_at_once_of_one_dimension():
    # As many directions as components, of one dimension: no axis tells them apart.
    mixture = mixture_of(n_components=2, dimensions=1)
    both = mixture.project([2.0, -0.5])
    assert both.batch_shape == (2,)
    for i, scale in enumerate((2.0, -0.5)):
        assert_same(both[i], *dense(*mixture.affine(scale).parameters))


def log_normaliser(mixture, gaussian, sign):
    """Return log ∫ p(x) N(x)^±1 dx, by quadrature in two dimensions."""
    axis = torch.linspace(-40, 40, 1601, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    terms = mixture.log_prob(grid) + sign * gaussian.log_prob(grid)
    return torch.logsumexp(terms, 0) + 2 * (axis[1] - axis[0]).log()


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_product_is_the_normalised_product_of_densities(covariance):
    mixture, gaussian = mixture_of(3, 2, covariance), gaussian_of(2)
    product = mixture.multiply(gaussian)
    constant = log_normaliser(mixture, gaussian, 1)
    x = torch.randn(10, 2, dtype=torch.float64)
    expected = mixture.log_prob(x) + gaussian.log_prob(x) - constant
    assert_close(product.log_prob(x), expected, rtol=1e-9, atol=1e-9)
    given = (gaussian.loc, mixture._gaussian(gaussian)[1])
    assert_close(algebra.multiply(*mixture.parameters, *given)[1], constant, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_quotient_is_the_normalised_quotient_of_densities(covariance):
    mixture, gaussian = mixture_of(3, 2, covariance), gaussian_of(2, width=6.0)
    quotient = mixture.divide(gaussian)
    x = torch.randn(10, 2, dtype=torch.float64)
    expected = mixture.log_prob(x) - gaussian.log_prob(x) - log_normaliser(mixture, gaussian, -1)
    assert_close(quotient.log_prob(x), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("n_components", "dimensions"), SIZES)
def test_division_undoes_multiplication(n_components, dimensions):
    mixture, gaussian = mixture_of(n_components, dimensions, batch=(2,)), gaussian_of(dimensions)
    back = mixture.multiply(gaussian).divide(gaussian)
    x = torch.randn(5, 2, dimensions, dtype=torch.float64)
    assert_close(back.log_prob(x), mixture.log_prob(x), rtol=1e-7, atol=1e-7)


def test_product_with_each_kind_of_gaussian_and_with_a_batch():
    mixture = mixture_of(batch=(4,))
    loc, scale = torch.randn(3, dtype=torch.float64), torch.rand(3, dtype=torch.float64) + 0.5
    kinds = [
        MultivariateNormal(loc, torch.diag(scale**2)),
        Independent(Normal(loc, scale), 1),
        GaussianMixture(torch.zeros(1, dtype=torch.float64), loc[None], -scale.log()[None]),
    ]
    products = [mixture.multiply(kind) for kind in kinds]
    for product in products[1:]:
        assert_close(product.factors, products[0].factors, rtol=1e-10, atol=1e-10)
        assert_close(product.weights, products[0].weights, rtol=1e-10, atol=1e-10)
    batched = gaussian_of(3, batch=(4,))
    together = mixture.multiply(batched)
    alone = mixture[2].multiply(MultivariateNormal(batched.loc[2], batched.covariance_matrix[2]))
    assert_close(together[2].means, alone.means, rtol=1e-10, atol=1e-10)


def test_quotient_that_is_no_density_is_refused():
    with pytest.raises(NotADensityError, match=r"not wider than the component at index \[\d\]"):
        mixture_of(3, 2).divide(gaussian_of(2, width=0.1))
    single = mixture_of(1, 2)
    itself = MultivariateNormal(single.means[0], single.covariance_matrices[0])
    with pytest.raises(NotADensityError):
        single.divide(itself)


def test_products_refuse_what_is_no_gaussian_of_their_size():
    with pytest.raises(ArgumentError, match=r"gaussian is .* single Gaussian"):
        mixture_of(3, 2).multiply(mixture_of(3, 2))
    with pytest.raises(ShapeError, match=r"gaussian has event shape \[3\]"):
        mixture_of(3, 2).divide(gaussian_of(3))


@pytest.mark.parametrize("covariances", [("full", "full"), ("full", "diagonal"), ("diagonal",) * 2])
def test_ensemble_is_the_average_density(covariances):
    members = [
        mixture_of(k, 3, s, batch=b, seed=k)
        for k, s, b in zip((2, 4), covariances, ((5,), ()), strict=True)
    ]
    x = torch.randn(6, 5, 3, dtype=torch.float64)
    densities = torch.stack([m.log_prob(x).exp() for m in members])
    equal = GaussianMixture.ensemble(members)
    assert equal.batch_shape == (5,)
    assert equal.n_components == 6
    assert_close(equal.log_prob(x).exp(), densities.mean(0), rtol=1e-10, atol=1e-14)
    weighted = GaussianMixture.ensemble(members, weights=[3.0, 1.0])
    expected = 0.75 * densities[0] + 0.25 * densities[1]
    assert_close(weighted.log_prob(x).exp(), expected, rtol=1e-10, atol=1e-14)


def test_ensemble_commutes_with_marginal_and_condition():
    members = [mixture_of(k, 3, seed=k, names=["a", "b", "c"]) for k in (2, 3)]
    whole = GaussianMixture.ensemble(members)
    x = torch.randn(8, 2, dtype=torch.float64)
    first = whole.marginal(["c", "a"]).log_prob(x)
    second = GaussianMixture.ensemble([m.marginal(["c", "a"]) for m in members]).log_prob(x)
    assert_close(first, second, rtol=1e-10, atol=1e-10)
    # Conditioning re-weights the members by how well each predicted the value.
    evidence = torch.stack([m.marginal("b").log_prob(torch.tensor([0.5])) for m in members]).exp()
    given = GaussianMixture.ensemble([m.condition({"b": 0.5}) for m in members], evidence)
    assert_close(whole.condition({"b": 0.5}).log_prob(x), given.log_prob(x), rtol=1e-9, atol=1e-9)


def test_bad_affine_maps_are_refused():
    mixture = mixture_of()
    with pytest.raises(ArgumentError, match=r"matrix_or_scale has a zero.*marginal"):
        mixture.affine([1.0, 0.0, 1.0])
    with pytest.raises(NotPositiveDefiniteError, match="full row rank"):
        mixture.affine(torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]))
    with pytest.raises(ShapeError, match="More outputs than dimensions"):
        mixture.affine(torch.randn(4, 3))
    with pytest.raises(ShapeError, match=r"loc has shape \[2\]"):
        mixture.affine(2.0, torch.zeros(2))
    with pytest.raises(ShapeError, match=r"direction has shape \[\]"):
        mixture.project(1.0)
