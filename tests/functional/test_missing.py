"""Densities of partly observed rows against the dense formulas, on every pattern."""

import math
from itertools import product

import mpmath
import pytest
import torch
from helpers.reference import (
    COVARIANCES,
    dense_low_rank,
    log_density,
    random_low_rank,
    random_parameters,
)
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from condens import GaussianMixture, LowRankMixture, TransformedMixture
from condens.errors import ShapeError
from condens.functional import linear_loss, log_prob, partial_log_prob
from condens.functional.algebra import marginal
from condens.functional.low_rank import mixture as low_rank
from condens.functional.mixture import component_covariances
from condens.kernels import native
from condens.transforms import Integer, Interval, Positive, Real

PATTERNS = list(product([False, True], repeat=4))
KERNELS = ["reference"] if native.missing else ["native", "reference"]


@pytest.fixture(params=KERNELS)
def kernel(request, monkeypatch):
    monkeypatch.setenv("CONDENS_KERNEL", request.param)


def exact(target, factors):
    """Return the log density of what is not NaN under one Gaussian at zero, to 800 digits."""
    with mpmath.workdps(800):
        dimensions, packed = len(target), iter(factors[len(target) :])
        upper = mpmath.diag([mpmath.exp(u) for u in factors[:dimensions]])
        for i in range(dimensions):
            for j in range(i + 1, dimensions):
                upper[i, j] = mpmath.mpf(next(packed))
        seen = [j for j in range(dimensions) if not math.isnan(target[j])]
        root = upper**-1
        covariance = mpmath.matrix(
            [[mpmath.fdot(root[i, :], root[j, :]) for j in seen] for i in seen]
        )
        x = mpmath.matrix([mpmath.mpf(target[j]) for j in seen])
        energy = mpmath.fdot(x, mpmath.lu_solve(covariance, x))
        determinant = mpmath.det(covariance) * (2 * mpmath.pi) ** len(seen)
        return float(-(energy + mpmath.log(determinant)) / 2)


def with_gaps(batch, dimensions, fraction=0.4):
    target = torch.randn(batch, dimensions, dtype=torch.float64)
    return torch.where(torch.rand(batch, dimensions) < fraction, torch.nan, target)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("observed", PATTERNS, ids=str)
def test_every_pattern_is_the_dense_marginal(observed, covariance):
    logits, means, factors = random_parameters((3,), 3, 4, covariance=covariance)
    target = torch.randn(3, 4, dtype=torch.float64)
    kept = [d for d in range(4) if observed[d]]
    covariances = component_covariances(factors, 4)[..., kept, :][..., kept]
    expected = torch.zeros(3, dtype=torch.float64)
    if kept:
        normal = MultivariateNormal(means[..., kept], covariances)
        each = normal.log_prob(target[:, None, kept])
        expected = (torch.log_softmax(logits, -1) + each).logsumexp(-1)
    target[:, [d for d in range(4) if not observed[d]]] = torch.nan
    value = partial_log_prob(target, logits, means, factors)
    assert_close(value, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_rows_of_different_patterns_side_by_side(covariance):
    logits, means, factors = random_parameters((40,), 3, 5, covariance=covariance)
    target = with_gaps(40, 5)
    value = partial_log_prob(target, logits, means, factors)
    for row in range(40):
        dims = (~target[row].isnan()).nonzero().flatten().tolist()
        if dims:
            kept = marginal(logits[row], means[row], factors[row], dims)
            assert_close(value[row], log_prob(target[row, dims], *kept), rtol=1e-9, atol=1e-9)


def test_a_complete_row_has_its_density():
    parameters = random_parameters((7,), 3, 4)
    target = torch.randn(7, 4, dtype=torch.float64)
    assert_close(
        partial_log_prob(target, *parameters), log_prob(target, *parameters), rtol=1e-11, atol=1e-11
    )


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_gradients(covariance):
    parameters = random_parameters((4,), 2, 3, covariance=covariance)
    nan = torch.nan
    target = torch.tensor(
        [[0.3, nan, -1.0], [nan] * 3, [1.0, 0.2, nan], [nan, nan, 0.4]], dtype=torch.float64
    )
    seen = ~target.isnan()
    inputs = [t.clone().requires_grad_() for t in (target[seen], *parameters)]

    def density(values, *tensors):
        return partial_log_prob(target.masked_scatter(seen, values), *tensors)

    assert torch.autograd.gradcheck(density, inputs)
    assert torch.autograd.gradgradcheck(density, inputs)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("entry", [1e8, 1e9, 1e12])
@pytest.mark.parametrize(
    "missing", [[1], [0], [2], [0, 1], [1, 2], [0, 2], [1, 3], [0, 1, 3]], ids=str
)
def test_strong_dependence_keeps_its_digits(entry, missing):
    """The precision's own entries are squares of these: 1e16 and more, beside ones."""
    factors = torch.tensor([0.3, -0.2, 0.5, 0.1, entry, 0.7, -1.0, 0.5 * entry, 2.0, 0.9]).double()
    target = torch.tensor([0.4, -0.3, 0.8, 1.1]).double()
    # At distances of the order of each dimension's own deviation: 1e8 for the first ones.
    target = target * torch.linalg.inv(
        GaussianMixture(torch.zeros(1), torch.zeros(1, 4), factors[None]).precision_factors[0]
    ).norm(dim=-1)
    target[missing] = torch.nan
    zero = torch.zeros(1, 4, dtype=torch.float64)
    value = partial_log_prob(target, zero[:, 0], zero, factors[None])
    expected = exact(target.tolist(), factors.tolist())
    assert float(value) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("size", [-354.0, 354.0])
def test_scales_at_the_ends_of_the_range(size):
    factors = torch.tensor([size, 0.0, -size, 0.3, 0.1, 0.2], dtype=torch.float64)
    target = torch.tensor([math.exp(-size), torch.nan, 0.5 * math.exp(size)], dtype=torch.float64)
    zero = torch.zeros(1, 3, dtype=torch.float64)
    value = partial_log_prob(target, zero[:, 0], zero, factors[None])
    expected = exact(target.tolist(), factors.tolist())
    assert float(value) == pytest.approx(expected, rel=1e-13)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_beyond_the_precision_there_is_no_density_and_no_gradient(covariance):
    parameters = [t.requires_grad_() for t in random_parameters((2,), 2, 3, covariance=covariance)]
    target = torch.tensor([[1e300, torch.nan, 0.0], [torch.inf, 1.0, torch.nan]]).double()
    value = partial_log_prob(target, *parameters)
    assert value.isneginf().all()
    for gradient in torch.autograd.grad(value.sum(), parameters):
        assert (gradient == 0).all()


def test_a_component_without_weight_takes_no_part():
    logits, means, factors = random_parameters((3,), 3, 3)
    target = with_gaps(3, 3)
    kept = partial_log_prob(target, logits[:, :2], means[:, :2], factors[:, :2])
    logits[:, 2] = -torch.inf
    parameters = [t.requires_grad_() for t in (logits, means, factors)]
    value = partial_log_prob(target, *parameters)
    assert_close(value, kept, rtol=1e-12, atol=1e-12)
    for gradient in torch.autograd.grad(value.sum(), parameters):
        assert gradient.isfinite().all()


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("bad", [[-math.inf] * 2, [math.inf] * 2, [math.inf, 0.0], [math.nan, 0.0]])
def test_logits_that_are_no_weights_hide_nowhere(bad):
    """As in `log_prob`; −inf would say that the target is impossible."""
    _, means, factors = random_parameters((3,), 2, 2)
    logits = torch.tensor(bad, dtype=torch.float64).expand(3, 2).clone().requires_grad_()
    target = torch.tensor([[0.1, 0.2], [math.nan, 0.2], [math.nan] * 2], dtype=torch.float64)
    value = partial_log_prob(target, logits, means, factors)
    (gradient,) = torch.autograd.grad(value[:2].sum(), logits)
    assert value[:2].isnan().all()
    assert gradient[:2].isnan().all()
    assert value[2] == 0


def test_axes_broadcast_and_batches_may_be_empty():
    logits, means, factors = random_parameters((), 3, 4)
    target = with_gaps(6, 4).view(2, 3, 4)
    value = partial_log_prob(target, logits, means, factors)
    rows = [partial_log_prob(x, logits, means, factors) for x in target.flatten(0, 1)]
    assert_close(value, torch.stack(rows).view(2, 3), rtol=1e-12, atol=1e-12)
    assert partial_log_prob(target[:, :0], logits, means, factors).shape == (2, 0)


@pytest.mark.usefixtures("kernel")
def test_one_row_at_a_time_by_vmap():
    parameters = random_parameters((5,), 2, 3)
    target = with_gaps(5, 3)
    mapped = torch.func.vmap(partial_log_prob)(target, *parameters)
    assert_close(mapped, partial_log_prob(target, *parameters), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("wrong", range(3))
def test_sizes_that_do_not_fit_are_refused(wrong):
    logits, means, factors = random_parameters((2,), 3, 4)
    target = with_gaps(2, 4)
    tensors = [
        (target[:, :3], logits, means, factors),
        (target, logits[:, :2], means, factors),
        (target, logits, means, factors[:, :2]),
    ][wrong]
    with pytest.raises(ShapeError):
        partial_log_prob(*tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("floor", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [4, 100])
def test_a_linear_layer_with_gaps_has_the_loss_of_its_parts(dtype, covariance, floor, chunk):
    """Against the plain composition, in every gradient; a row without weight is left out."""
    n_components, dimensions, features = 3, 4, 5
    packed = dimensions * (dimensions + 1) // 2 if covariance == "full" else dimensions
    outputs = n_components * (1 + dimensions + packed)
    generator = torch.Generator().manual_seed(0)
    given = [
        (0.5 * torch.randn(*shape, generator=generator)).to(dtype).requires_grad_()
        for shape in ((11, features), (outputs, features), (outputs,))
    ]
    target = with_gaps(11, dimensions).to(dtype)
    target[0] = torch.nan
    target[1] = 1.0
    weights = torch.rand(11, generator=generator).to(dtype)
    weights[3] = 0

    def composed(h, weight, bias):
        out = torch.nn.functional.linear(h.double(), weight.double(), bias.double())
        logits, means, factors = out.split(
            [n_components, n_components * dimensions, n_components * packed], -1
        )
        factors = factors.unflatten(-1, (n_components, packed))
        if floor:
            diagonal = -((-factors[..., :dimensions]).exp() + floor).log()
            factors = torch.cat([diagonal, factors[..., dimensions:]], -1)
        density = partial_log_prob(
            target.double(), logits, means.unflatten(-1, (n_components, dimensions)), factors
        )
        return -(weights * density).sum()

    loss = linear_loss(*given, target, n_components, weights, floor=floor, chunk=chunk, gaps=True)
    size = 1e-9 if dtype is torch.float64 else 1e-4
    assert_close(loss.double(), composed(*given), rtol=size, atol=size)
    expected = torch.autograd.grad(composed(*given), given)
    for ours, theirs in zip(torch.autograd.grad(loss, given), expected, strict=True):
        assert_close(ours, theirs, rtol=size, atol=size)


def test_a_linear_layer_with_gaps_has_higher_derivatives():
    generator = torch.Generator().manual_seed(0)
    given = [
        torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()
        for shape in ((3, 2), (12, 2), (12,))
    ]
    target = torch.tensor([[0.2, torch.nan], [0.1, 0.5], [torch.nan, -1.0]], dtype=torch.float64)

    def loss(*tensors):
        return linear_loss(*tensors, target, 2, gaps=True)

    assert torch.autograd.gradcheck(loss, given)
    assert torch.autograd.gradgradcheck(loss, given)


@pytest.mark.parametrize("observed", PATTERNS, ids=str)
def test_low_rank_is_the_dense_marginal_on_every_pattern(observed):
    parameters = random_low_rank((), 3, 4, rank=2)
    target = torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    kept = [d for d in range(4) if observed[d]]
    weights, means, covariances = dense_low_rank(*parameters)
    expected = 0.0
    if kept:
        parts = covariances[:, kept][:, :, kept]
        expected = log_density(target[kept].numpy(), weights, means[:, kept], parts)
    target[[d for d in range(4) if not observed[d]]] = torch.nan
    value = low_rank.partial_log_prob(target, *parameters)
    assert float(value) == pytest.approx(float(expected), rel=1e-12, abs=1e-12)


def observed_cases():
    full = GaussianMixture(*random_parameters((5,), 3, 3))
    yield "full", full
    yield "low rank", LowRankMixture(*random_low_rank((5,), 3, 3, rank=2))
    yield "transformed", TransformedMixture(full, [Real(), Positive(), Interval(0.0, 1.0)])


@pytest.mark.parametrize(("name", "mixture"), list(observed_cases()))
def test_what_was_observed_has_the_marginal_density(name, mixture):
    value = mixture.sample().double()
    for row, seen in enumerate(([0, 1, 2], [0], [1, 2], [], [0, 2])):
        value[row, [d for d in range(3) if d not in seen]] = torch.nan
    found = mixture.observed_log_prob(value)
    for row in range(5):
        dims = (~value[row].isnan()).nonzero().flatten().tolist()
        expected = mixture[row].marginal(dims).log_prob(value[row, dims]) if dims else 0.0
        assert float(found[row]) == pytest.approx(float(expected), rel=1e-12, abs=1e-12)
    assert mixture[:0].observed_log_prob(value[:0]).shape == (0,)
    if name == "transformed":
        value[0, 1] = -1.0
        assert float(mixture.observed_log_prob(value)[0]) == -math.inf
        value[0, 0] = value[0, 2] = torch.nan
        assert float(mixture.observed_log_prob(value)[0]) == -math.inf


def test_an_empty_batch_with_whole_numbers_has_no_density():
    mixture = TransformedMixture(
        GaussianMixture(*random_parameters((0,), 2, 2)), [Real(), Integer(0)]
    )
    assert mixture.observed_log_prob(torch.empty(0, 2)).shape == (0,)


def test_nothing_observed_says_nothing():
    parameters = [t.requires_grad_() for t in random_parameters((2,), 3, 4)]
    value = partial_log_prob(torch.full((2, 4), torch.nan), *parameters)
    assert_close(value, torch.zeros_like(value), atol=1e-12, rtol=0)
    for gradient in torch.autograd.grad(value.sum(), parameters):
        assert_close(gradient, torch.zeros_like(gradient), atol=1e-12, rtol=0)


def test_float32_far_away():
    parameters = [t.float() for t in random_parameters((5,), 3, 4)]
    target = 1e3 * with_gaps(5, 4).float()
    value = partial_log_prob(target, *parameters)
    expected = partial_log_prob(target.double(), *(t.double() for t in parameters))
    assert_close(value.double(), expected, rtol=1e-6, atol=1e-5)
