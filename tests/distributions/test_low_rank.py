"""LowRankMixture: the contract of a distribution, with the full mixture as twin."""

import copy
import pickle

import numpy as np
import pytest
import torch
from helpers.reference import dense_low_rank, log_density, random_low_rank, random_parameters
from torch.distributions import Distribution, Independent, MultivariateNormal, constraints
from torch.testing import assert_close

import condens
from condens import GaussianMixture, LowRankMixture
from condens.errors import NoClosedFormError

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def mixture_of(batch=(), n_components=3, dimensions=4, rank=2, seed=0, **options):
    return LowRankMixture(
        *random_low_rank(batch, n_components, dimensions, rank, seed=seed), **options
    )


# The contract of a torch Distribution.


def test_is_a_torch_distribution():
    mixture = mixture_of((4, 5), 3, 6, 2)
    assert isinstance(mixture, Distribution)
    assert mixture.batch_shape == (4, 5)
    assert mixture.event_shape == (6,)
    assert (mixture.n_components, mixture.dimensions, mixture.rank) == (3, 6, 2)
    assert not mixture.has_rsample
    assert set(mixture.arg_constraints) == {"logits", "means", "log_scales", "loadings"}
    for name, constraint in mixture.arg_constraints.items():
        assert constraint.check(getattr(mixture, name)).all()
    assert mixture.support is constraints.real_vector
    assert mixture.sample((7,)).shape == (7, 4, 5, 6)
    assert mixture.log_prob(mixture.sample((7,))).shape == (7, 4, 5)
    assert mixture.component_log_prob(mixture.sample()).shape == (4, 5, 3)
    assert_close(mixture.stddev, mixture.variance.sqrt())
    assert_close(mixture.scales, mixture.log_scales.exp())
    together = Independent(mixture, 1)
    x = mixture.sample()
    assert_close(together.log_prob(x), mixture.log_prob(x).sum(-1))


def test_expand_shares_memory():
    mixture = mixture_of((1, 3), names=list("abcd"))
    wide = mixture.expand((5, 2, 3))
    assert type(wide) is LowRankMixture
    assert wide.batch_shape == (5, 2, 3)
    assert wide.names == tuple("abcd")
    assert wide.loadings.data_ptr() == mixture.loadings.data_ptr()
    x = torch.randn(5, 2, 3, 4, dtype=torch.float64)
    assert_close(wide.log_prob(x), mixture.log_prob(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "index",
    [0, -1, slice(1, 3), (0, 1), (..., 1), None, [0, 2], torch.tensor([True, False, True, False])],
)
def test_indexing_is_that_of_a_tensor_of_the_batchs_shape(index):
    mixture = mixture_of((4, 3), names=list("abcd"))
    x = torch.randn(4, 3, 4, dtype=torch.float64)
    position = torch.arange(12).reshape(4, 3)[index]
    part, expected = mixture[index], mixture.log_prob(x)[index]
    assert part.batch_shape == expected.shape
    assert part.names == tuple("abcd")
    assert_close(part.log_prob(x.reshape(12, 4)[position]), expected, rtol=1e-12, atol=1e-12)


def test_length_iteration_and_empty_batches():
    mixture = mixture_of((4, 3))
    assert len(mixture) == 4
    assert [part.batch_shape for part in mixture] == [(3,)] * 4
    empty = mixture_of((4,))[:0]
    assert empty.sample((3,)).shape == (3, 0, 4)
    assert empty.log_prob(torch.zeros(0, 4)).shape == (0,)
    assert empty.marginal([1]).icdf(0.5).shape == (0, 1)
    assert empty.condition({0: 0.0}).batch_shape == (0,)


def test_repr_copies_and_pickles():
    mixture = mixture_of((4,), names=list("abcd"))
    assert repr(mixture) == (
        "LowRankMixture(batch_shape=[4], n_components=3, dimensions=4, rank=2, "
        "names=('a', 'b', 'c', 'd'))"
    )
    x = torch.randn(4, 4, dtype=torch.float64)
    for twin in (copy.deepcopy(mixture), pickle.loads(pickle.dumps(mixture))):
        assert twin.names == mixture.names
        assert torch.equal(twin.log_prob(x), mixture.log_prob(x))


ANSWERS = {
    "log_prob": lambda m: m.log_prob([0.1, 0.2]),
    "component_log_prob": lambda m: m.component_log_prob([0.1, 0.2]),
    "responsibilities": lambda m: m.responsibilities([0.1, 0.2]),
    "mean": lambda m: m.mean,
    "variance": lambda m: m.variance,
    "covariance_matrix": lambda m: m.covariance_matrix,
    "covariance_matrices": lambda m: m.covariance_matrices,
    "precision_factors": lambda m: m.precision_factors,
    "sample": lambda m: m.sample((3,)),
    "marginal": lambda m: m.marginal([0]).loadings,
    "condition": lambda m: m.condition({0: 0.5}).means,
    "affine": lambda m: m.affine(np.array([2.0, 3.0]), 1.0).means,
    "project": lambda m: m.project([1.0, 1.0]).log_scales,
    "cdf": lambda m: m.marginal(0).cdf([0.5]),
    "icdf": lambda m: m.marginal(0).icdf([0.1, 0.9]),
    "interval": lambda m: m.marginal(0).interval(0.9)[1],
    "crps": lambda m: m.marginal(0).crps([0.5]),
    "entropy": lambda m: m.entropy(n_samples=100).value,
    "energy_score": lambda m: m.energy_score([0.1, 0.2]).value,
    "hpd_threshold": lambda m: m.hpd_threshold(0.5).value,
    "ensemble": lambda m: LowRankMixture.ensemble([m, m]).loadings,
    "to_full": lambda m: m.to_full().factors,
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ANSWERS)
def test_every_answer_has_the_mixtures_dtype_and_a_gradient(name, dtype):
    inputs = [p.to(dtype).requires_grad_() for p in random_low_rank((), 3, 2, 2)]
    answer = ANSWERS[name](LowRankMixture(*inputs))
    assert answer.dtype == dtype
    assert answer.isfinite().all()
    if name not in ("sample", "energy_score", "hpd_threshold"):
        answer.flatten()[0].backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in inputs)
        assert any(p.grad is not None and p.grad.any() for p in inputs)


def test_precision_is_the_widest_of_the_arguments():
    mixture = LowRankMixture(
        torch.zeros(2), torch.zeros(2, 1), torch.zeros(2, 1), torch.ones(2, 1, 1).double()
    )
    assert mixture.dtype == torch.float64
    assert mixture.logits.dtype == mixture.log_scales.dtype == torch.float64
    assert mixture.to(torch.float32).dtype == torch.float32
    assert mixture.device == torch.device("cpu")


@pytest.mark.parametrize("rank", [1, 2, 5])
@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_full_mixture_has_the_same_density_and_moments(dimensions, rank):
    mixture = mixture_of((3,), 2, dimensions, rank)
    full = mixture.to_full()
    assert type(full) is GaussianMixture
    x = 3 * torch.randn(7, 3, dimensions, dtype=torch.float64)
    for name in ("log_prob", "component_log_prob", "responsibilities"):
        assert_close(getattr(mixture, name)(x), getattr(full, name)(x), **CLOSE)
    for name in ("mean", "variance", "covariance_matrix", "precision_factors"):
        assert_close(getattr(mixture, name), getattr(full, name), **CLOSE)
    expected = log_density(x[:, 0].numpy(), *dense_low_rank(*mixture[0].parameters))
    np.testing.assert_allclose(mixture[0].log_prob(x[:, 0]), expected.reshape(7), **CLOSE)


def test_names_follow_into_the_full_mixture():
    assert mixture_of(names=list("abcd")).to_full().names == tuple("abcd")


# One dimension, and what is estimated.


def test_one_dimension_against_the_mixture_of_the_summed_variances():
    mixture = mixture_of((3,)).marginal(2)
    deviation = (mixture.scales.square() + mixture.loadings.square().sum(-1)).sqrt()
    twin = GaussianMixture(mixture.logits, mixture.means, -deviation.log())
    y = torch.linspace(-3, 3, 9, dtype=torch.float64)[:, None, None]
    assert_close(mixture.cdf(y), twin.cdf(y), **CLOSE)
    assert_close(mixture.crps(y), twin.crps(y), **CLOSE)
    levels = torch.tensor([[0.01], [0.5], [0.99]], dtype=torch.float64)
    assert_close(mixture.icdf(levels), twin.icdf(levels), **CLOSE)
    assert_close(mixture.interval(0.9), twin.interval(0.9), **CLOSE)
    value, error = mixture.energy_score(y)
    assert_close(value, twin.crps(y), **CLOSE)
    assert (error == 0).all()


def test_estimates_agree_with_those_of_the_full_mixture():
    """Two independent estimates differ by less than 5 of their errors, but once in 10⁶."""
    mixture = LowRankMixture(*random_low_rank((2,), 3, 4, 2, spread=0.7))
    full, x = mixture.to_full(), torch.randn(5, 2, 4, dtype=torch.float64)
    for ask in (
        lambda m, g: m.entropy(n_samples=30_000, generator=g),
        lambda m, g: m.energy_score(x, n_samples=10_000, generator=g),
        lambda m, g: m.hpd_threshold(0.8, n_samples=20_000, generator=g),
    ):
        ours = ask(mixture, torch.Generator().manual_seed(1))
        twin = ask(full, torch.Generator().manual_seed(2))
        error = torch.hypot(ours.standard_error, twin.standard_error)
        assert ((ours.value - twin.value).abs() < 5 * error).all()
        assert (error < 0.1 * ours.value.abs()).all()


def test_entropy_of_one_component_is_exact_and_its_gradient_that_of_the_full_mixture():
    single = mixture_of((), 1)
    twin = MultivariateNormal(single.means[0], single.covariance_matrices[0])
    value, error = single.entropy()
    assert_close(value, twin.entropy(), **CLOSE)
    assert error == 0
    generator = torch.Generator()
    inputs = [p.requires_grad_() for p in random_low_rank((), 2, 2, 1, spread=0.5)]

    def gradients(build):
        blocks = []
        for seed in range(20):
            estimate = build(*inputs).entropy(
                n_samples=4_000, generator=generator.manual_seed(seed)
            )
            blocks.append(
                torch.cat([g.flatten() for g in torch.autograd.grad(estimate.value, inputs)])
            )
        stacked = torch.stack(blocks)
        return stacked.mean(0), stacked.std(0) / 20**0.5

    ours, error = gradients(LowRankMixture)
    twin, twin_error = gradients(lambda *p: LowRankMixture(*p).to_full())
    # Student's t with some 38 degrees of freedom exceeds 6 less than once in 10⁶.
    assert ((ours - twin).abs() <= 6 * torch.hypot(error, twin_error) + 1e-9).all()


def test_hpd_region_has_its_coverage():
    mixture = mixture_of((), 3, 30, 3)
    fresh = mixture.sample((20_000,), generator=torch.Generator().manual_seed(1))
    inside = mixture.hpd_contains(fresh, 0.8, generator=torch.Generator().manual_seed(2))
    # The errors of the threshold (10 000 draws) and of the count (20 000), five of them.
    assert abs(inside.double().mean().item() - 0.8) < 5 * 0.4 * (1 / 10_000 + 1 / 20_000) ** 0.5


# What is refused.


REFUSED = {
    "rsample": lambda m: m.rsample((3,)),
    "modes": lambda m: m.modes(),
    "mode": lambda m: m.mode,
    "multiply": lambda m: m.multiply(m.to_full()),
    "divide": lambda m: m.divide(m.to_full()),
    "to_mixture_same_family": lambda m: m.to_mixture_same_family(),
    "affine by a matrix": lambda m: m.affine(torch.eye(4)),
}


# A mode is the highest of the modes, by a matrix goes through affine.
NAMED = {"mode": "modes", "affine by a matrix": r"affine\(…\) by a matrix"}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_full_covariances_names_the_way_there(name):
    with pytest.raises(
        NoClosedFormError,
        match=rf"{NAMED.get(name, name)}.* was asked .*Call to_full\(\)\.{name[:4]}",
    ):
        REFUSED[name](mixture_of())
    if name != "affine by a matrix":
        assert hasattr(GaussianMixture, name)


def test_every_question_to_a_full_mixture_is_answered_or_refused():
    constructors = {name for name in dir(GaussianMixture) if name.startswith("from_")}
    asked = {name for name in dir(GaussianMixture) if not name.startswith("_")}
    assert asked - constructors <= set(dir(LowRankMixture)) | {"factors"}


def test_validation_can_be_switched_off():
    bad = torch.full((3, 2, 1), torch.nan)
    free = LowRankMixture(
        torch.zeros(3), torch.zeros(3, 2), torch.zeros(3, 2), bad, validate_args=False
    )
    assert free.loadings.isnan().all()
    assert free.marginal([0]).loadings.isnan().all()


def test_a_full_mixture_estimates_its_divergence_from_this_one():
    mixture = mixture_of()
    value, error = mixture.to_full().kl_divergence(mixture, n_samples=1_000)
    assert_close(value, torch.zeros_like(value), **CLOSE)
    other = GaussianMixture(*random_parameters((), 2, 4))
    assert other.kl_divergence(mixture).value > 5 * error


def test_is_public():
    assert "LowRankMixture" in condens.__all__
