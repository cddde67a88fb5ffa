import math
from itertools import permutations

import mpmath
import pytest
import torch
from helpers.reference import COVARIANCES, random_parameters
from torch.testing import assert_close

from condens import GaussianMixture, functional
from condens.errors import ArgumentError, KindError, ShapeError
from condens.functional import log_determinant, pack, packed_size, unpack, unwhiten, whiten
from condens.functional.triangular import (
    as_full,
    between,
    blend,
    block,
    bounded_scales,
    component_deviations,
    component_variances,
    deviation_bounds,
    from_square_root,
    inverse_factors,
    reorder,
    rescale,
    whiten_gradient,
)

SIZES = (1, 2, 5, 20)


def factors_of(dimensions, covariance="full", batch=()):
    return random_parameters(batch, 3, dimensions, covariance=covariance, seed=dimensions)[2]


def precision(factors, dimensions):
    upper = unpack(factors, dimensions)
    return upper.mT @ upper


def test_packing_is_log_diagonals_then_rows_of_the_strict_triangle():
    packed = torch.tensor([0.1, 0.2, 0.3, 12.0, 13.0, 23.0], dtype=torch.float64)
    expected = torch.tensor([[0.1, 12, 13], [0, 0.2, 23], [0, 0, 0.3]], dtype=torch.float64)
    expected.diagonal().exp_()
    assert_close(unpack(packed, 3), expected, rtol=0, atol=0)


@pytest.mark.parametrize("dimensions", SIZES)
def test_pack_inverts_unpack(dimensions):
    factors = factors_of(dimensions, batch=(4,))
    assert factors.shape[-1] == packed_size(dimensions)
    assert_close(pack(unpack(factors, dimensions)), factors, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("dimensions", SIZES)
def test_whiten_is_the_matrix_product_and_unwhiten_its_inverse(dimensions, covariance):
    factors = factors_of(dimensions, covariance)
    x = torch.randn(7, 3, dimensions, dtype=torch.float64)
    z = whiten(x, factors)
    expected = torch.einsum("kij,nkj->nki", unpack(factors, dimensions), x)
    assert_close(z, expected, rtol=1e-12, atol=1e-12)
    assert_close(unwhiten(z, factors), x, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_vectors_with_more_axes_than_factors_agree_with_expanded_factors(covariance):
    factors = factors_of(3, covariance, batch=(2,))
    x = torch.randn(4, 5, 2, 3, 3, dtype=torch.float64)
    expanded = factors.expand(4, 5, *factors.shape)
    assert_close(whiten(x, factors), whiten(x, expanded), rtol=1e-13, atol=1e-13)
    assert_close(unwhiten(x, factors), unwhiten(x, expanded), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_log_determinant_is_that_of_the_jacobian(dimensions, covariance):
    factor = factors_of(dimensions, covariance)[0]
    x = torch.randn(dimensions, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda v: whiten(v, factor), x)
    assert_close(
        log_determinant(factor, dimensions),
        torch.linalg.slogdet(jacobian).logabsdet,
        rtol=1e-12,
        atol=1e-12,
    )


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_whiten_gradient_is_autograds(covariance):
    factors = factors_of(4, covariance, batch=(2,)).requires_grad_()
    x, h = torch.randn(2, 6, 2, 3, 4, dtype=torch.float64)
    (expected,) = torch.autograd.grad((h * whiten(x, factors)).sum(), factors)
    assert_close(whiten_gradient(h, x, factors), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_whitening_has_right_first_and_second_derivatives(covariance):
    factors = factors_of(3, covariance).requires_grad_()
    x = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    for function in (whiten, unwhiten):
        assert torch.autograd.gradcheck(function, (x, factors))
        assert torch.autograd.gradgradcheck(function, (x, factors))


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_reorder_permutes_the_precision_for_every_order(covariance):
    factors = factors_of(4, covariance)
    original = precision(factors, 4)
    for order in permutations(range(4)):
        index = list(order)
        expected = original[:, index][:, :, index]
        assert_close(precision(reorder(factors, index), 4), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_leading_block_is_conditional_and_trailing_block_marginal(covariance):
    factors = factors_of(5, covariance)
    lead, trail = block(factors, 5, 0, 2), block(factors, 5, 2, 5)
    full = precision(factors, 5)
    assert_close(precision(lead, 2), full[:, :2, :2], rtol=1e-12, atol=1e-12)
    covariance = torch.linalg.inv(full)[:, 2:, 2:]
    assert_close(torch.linalg.inv(precision(trail, 3)), covariance, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_rescale_with_signs(covariance):
    factors = factors_of(3, covariance)
    scale = torch.tensor([2.0, -0.5, 3.0], dtype=torch.float64)
    expected = precision(factors, 3) / torch.outer(scale, scale)
    assert_close(precision(rescale(factors, scale), 3), expected, rtol=1e-12, atol=1e-12)


def test_from_square_root_of_a_wide_dense_matrix():
    root = torch.randn(4, 3, 6, dtype=torch.float64)
    expected = torch.linalg.inv(root @ root.mT)
    assert_close(precision(from_square_root(root), 3), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("dimensions", SIZES)
@pytest.mark.parametrize("batch", [(), (0,), (7,), (900, 2)])
def test_deviations_are_the_roots_of_variances(dimensions, covariance, batch):
    factors = factors_of(dimensions, covariance, batch)
    expected = component_variances(factors, dimensions).sqrt()
    assert_close(component_deviations(factors, dimensions), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("dimensions", SIZES)
def test_deviation_bounds_hold_and_are_exact_where_nothing_adds_up(dimensions, covariance):
    factors = factors_of(dimensions, covariance, batch=(50,))
    deviations = component_variances(factors, dimensions).sqrt()
    bounds = deviation_bounds(factors, dimensions)
    assert (bounds >= deviations * (1 - 1e-12)).all()
    exact = (
        range(dimensions) if covariance == "diagonal" else range(max(dimensions - 2, 0), dimensions)
    )
    assert_close(bounds[..., list(exact)], deviations[..., list(exact)], rtol=1e-12, atol=0)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_derivatives_of_deviations(covariance):
    factors = factors_of(4, covariance, (2,)).requires_grad_()
    assert torch.autograd.gradcheck(lambda f: component_deviations(f, 4), factors)
    mapped = torch.func.vmap(torch.func.vmap(lambda f: component_deviations(f, 4)))(factors)
    assert_close(mapped, component_deviations(factors, 4))
    # Below all numbers.
    small = torch.full((5,), 800.0, dtype=torch.float64).requires_grad_()
    component_deviations(torch.cat([small, small.new_zeros(10)]), 5).sum().backward()
    assert torch.equal(small.grad, torch.zeros(5, dtype=torch.float64))


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("dimensions", SIZES)
def test_between_two_factors_no_deviation_is_above_both(dimensions, covariance):
    first, second = factors_of(dimensions, covariance, (40, 2)).unbind(1)
    # As what a limit has scaled down: large entries of a packed factor, and little width.
    second = rescale(second, torch.full((dimensions,), 1e-3, dtype=torch.float64))
    most = torch.maximum(*(component_deviations(f, dimensions) for f in (first, second)))
    for part in (0.0, 0.1, 0.5, 0.999, 1.0):
        at = torch.full((40,), part, dtype=torch.float64)
        found = blend(first, second, at, dimensions)
        assert (component_deviations(found, dimensions) <= most * (1 + 1e-9)).all()
        if part in (0.0, 1.0):
            assert torch.equal(found, second if part else first)
        elif covariance != "diagonal" and dimensions > 1:
            roots = [inverse_factors(f, dimensions) for f in (first, second, found)]
            assert_close(roots[2], (1 - part) * roots[0] + part * roots[1], rtol=1e-8, atol=1e-8)


def test_where_the_part_is_none_the_second_may_be_anything():
    first = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    second = torch.tensor([[math.inf, math.nan], [5.0, 8.0]], dtype=torch.float64)
    part = torch.tensor([0.0, 0.25], dtype=torch.float64)
    expected = torch.tensor([[1.0, 2.0], [3.5, 5.0]], dtype=torch.float64)
    assert torch.equal(between(first, second, part), expected)


def test_near_either_end_a_wild_factor_is_hardly_rounded():
    """Numbers hold the inverse, of 10²⁰, but none of the digits of the factor in it."""
    generator = torch.Generator().manual_seed(0)
    wild = 100 * torch.randn(50, 55, generator=generator, dtype=torch.float64)
    wild[..., :10] /= 100
    plain = torch.zeros_like(wild)
    part = torch.full((50,), 1e-15, dtype=torch.float64)
    assert_close(blend(wild, plain, part, 10), wild, rtol=1e-9, atol=1e-9)
    assert_close(blend(plain, wild, 1 - part, 10), wild, rtol=1e-9, atol=1e-9)


def test_between_factors_that_no_number_holds_the_inverse_of():
    wild = torch.tensor([0.0, 0.0, 0.0, 1e200, 3.0, 1e200], dtype=torch.float64)
    plain = torch.ones(6, dtype=torch.float64)
    for pair in ((wild, plain), (plain, wild)):
        found = blend(*pair, torch.tensor(0.5, dtype=torch.float64), 3)
        assert_close(found, (wild + plain) / 2)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_inverse_factors_and_full_packing(covariance):
    factors = factors_of(5, covariance)
    identity = torch.eye(5, dtype=torch.float64).expand(3, 5, 5)
    product = inverse_factors(factors, 5) @ unpack(factors, 5)
    assert_close(product, identity, rtol=1e-10, atol=1e-10)
    assert_close(unpack(as_full(factors, 5), 5), unpack(factors, 5), rtol=0, atol=0)


def test_half_precision_round_trip():
    factors = factors_of(3).bfloat16()
    z = torch.randn(3, 3).bfloat16()
    back = whiten(unwhiten(z, factors).float(), factors.float())
    assert unwhiten(z, factors).dtype == torch.bfloat16
    assert_close(back, z.float(), rtol=0.1, atol=0.1)


def test_length_that_fits_no_structure_is_refused():
    with pytest.raises(ShapeError, match=r"4 dimensions need 10 \(full.*or 4 \(diagonal\)"):
        whiten(torch.zeros(4), torch.zeros(7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bounds", [(0.0, math.inf), (0.3, math.inf), (0.0, 2.0), (1e-3, 50.0)])
def test_bounded_scales_to_the_ends_of_the_range(bounds, dtype):
    """floor + 1/(eᵘ + 1/ceiling) and its slope, against many digits."""
    floor, ceiling = bounds
    entries = [-1e4, -800.0, -90.0, -5.0, 0.0, 5.0, 40.0, 90.0, 800.0, 1e4]
    u = torch.tensor(entries, dtype=dtype, requires_grad=True)
    made = bounded_scales(u, len(entries), floor, ceiling)
    slope = torch.autograd.grad(made.sum(), u)[0]
    with mpmath.workdps(4_500):
        powers = [mpmath.exp(mpmath.mpf(entry)) for entry in entries]
        scales = [1 / (e + 1 / mpmath.mpf(ceiling)) for e in powers]
        value = [float(-mpmath.log(floor + s)) for s in scales]
        slopes = [float(s / (floor + s) * (e * s)) for e, s in zip(powers, scales, strict=True)]
    digits = 1e-13 if dtype is torch.float64 else 1e-6
    assert_close(made, torch.tensor(value, dtype=dtype), rtol=digits, atol=digits)
    assert_close(slope, torch.tensor(slopes, dtype=dtype), rtol=60 * digits, atol=1e-37)


def test_without_bounds_the_factors_are_the_same_tensor():
    factors = torch.randn(4, 3)
    assert bounded_scales(factors, 2) is factors


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_derivatives_of_bounded_scales(covariance):
    factors = random_parameters((2,), 2, 3, covariance=covariance)[2].requires_grad_()

    def bounded(factors):
        return bounded_scales(factors, 3, 0.2, 1.5)

    assert torch.autograd.gradcheck(bounded, factors)
    assert torch.autograd.gradgradcheck(bounded, factors)


def test_reordering_keeps_what_a_long_column_would_lose():
    # The last entry of the new diagonal is 10²⁵ times shorter than its column.
    upper = torch.tensor(
        [
            [0.9, -8e4, -7e5, 1e6],
            [0.0, 3e-5, -1.2e6, -2.5e6],
            [0.0, 0.0, 0.85, -8e4],
            [0.0, 0.0, 0.0, 3e-5],
        ],
        dtype=torch.float64,
    )
    order = [2, 3, 0, 1]
    with mpmath.workdps(100):
        columns = mpmath.matrix(upper[:, order].tolist())
        root = mpmath.cholesky(columns.T * columns).T
        expected = torch.tensor(
            [float(mpmath.log(root[i, i])) for i in range(4)], dtype=torch.float64
        )
    packed = reorder(pack(upper), order)
    assert_close(packed[:4], expected, rtol=1e-9, atol=1e-9)
    factors = pack(upper).requires_grad_()
    (gradient,) = torch.autograd.grad(reorder(factors, order)[:4].sum(), factors)
    # No order of the dimensions changes the determinant, nor how it depends on the factor.
    assert_close(gradient, torch.tensor([1.0] * 4 + [0.0] * 6, dtype=torch.float64))


NUMBERS = torch.zeros(4, 3)
NOT_NUMBERS = {
    "nothing": None,
    "a list": [0.0, 0.0, 0.0],
    "an array": NUMBERS.numpy(),
    "whole numbers": NUMBERS.long(),
    "complex numbers": NUMBERS.to(torch.complex64),
    "a sparse tensor": NUMBERS.to_sparse(),
    "eight bits": NUMBERS.to(torch.float8_e5m2),
}


@pytest.mark.parametrize("wrong", NOT_NUMBERS)
def test_what_is_not_a_tensor_of_real_numbers_is_refused(wrong):
    bad, factors = NOT_NUMBERS[wrong], torch.zeros(4, 3)
    calls = {
        "upper": lambda: pack(bad),
        "factors": lambda: unpack(bad, 2),
        "difference": lambda: whiten(bad, factors),
        "latent": lambda: unwhiten(bad, factors),
    }
    for name, call in calls.items():
        with pytest.raises(KindError, match=f"^{name} (is|has the layout)"):
            call()
    for call in (log_determinant, functional.bounded_scales):
        with pytest.raises(KindError, match=r"^factors (is|has the layout)"):
            call(bad, dimensions=2)


def test_eight_bits_are_no_parameters():
    bits = torch.zeros(1, 1).to(torch.float8_e5m2)
    with pytest.raises(KindError, match=r"^means is .*eight bits.*means\.float"):
        GaussianMixture(torch.zeros(1), bits, torch.zeros(1, 1))
    with pytest.raises(KindError, match=r"^value is .*eight bits"):
        GaussianMixture(torch.zeros(1), torch.zeros(1, 1), torch.zeros(1, 1)).log_prob(bits)


def test_shapes_that_do_not_fit_are_refused():
    factors = torch.zeros(4, 3)
    for bad in (torch.zeros(()), torch.zeros(2), torch.zeros(2, 3)):
        with pytest.raises(ShapeError, match=r"^upper has shape"):
            pack(bad)
    for function in (whiten, unwhiten):
        with pytest.raises(ShapeError, match=r"^(difference|latent) has shape"):
            function(torch.tensor(0.0), factors)
        with pytest.raises(ShapeError, match=r"^factors has 3 numbers"):
            function(torch.zeros(4, 5), factors)
        with pytest.raises(ShapeError, match="must broadcast"):
            function(torch.zeros(5, 2), factors)
        with pytest.raises(KindError, match=r"is torch\.float64.*torch\.float32 was expected"):
            function(torch.zeros(4, 2).double(), factors)
        assert function(torch.zeros(7, 1, 2), factors).shape == (7, 4, 2)
    for size in (0, -1, 1.5, "2", None, True):
        for function in (unpack, log_determinant, functional.bounded_scales):
            with pytest.raises(ArgumentError, match=r"^dimensions is"):
                function(factors, size)
        with pytest.raises(ArgumentError, match=r"^dimensions is"):
            packed_size(size)
