"""The contract of a torch Distribution, and the constructors."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from helpers.reference import COVARIANCES, assert_same, dense, random_parameters
from torch.distributions import (
    AffineTransform,
    Distribution,
    ExpTransform,
    Independent,
    TransformedDistribution,
    constraints,
)
from torch.testing import assert_close

import condens
from condens import GaussianMixture
from condens.errors import DimensionError


def mixture_of(batch=(), n_components=3, dimensions=2, covariance="full", **options):
    parameters = random_parameters(batch, n_components, dimensions, covariance=covariance)
    return GaussianMixture(*parameters, **options)


def test_is_a_torch_distribution():
    mixture = mixture_of((4, 5), 3, 2)
    assert isinstance(mixture, Distribution)
    assert mixture.batch_shape == (4, 5)
    assert mixture.event_shape == (2,)
    assert mixture.has_rsample
    assert set(mixture.arg_constraints) == {"logits", "means", "factors"}
    for name, constraint in mixture.arg_constraints.items():
        assert constraint.check(getattr(mixture, name)).all()
    assert mixture.support is constraints.real_vector
    assert mixture.support.check(mixture.sample()).all()
    assert mixture.sample((7,)).shape == (7, 4, 5, 2)
    assert mixture.rsample(torch.Size([7])).shape == (7, 4, 5, 2)
    assert mixture.log_prob(mixture.sample((7,))).shape == (7, 4, 5)
    assert mixture.component_log_prob(mixture.sample()).shape == (4, 5, 3)
    assert mixture.responsibilities(mixture.sample()).shape == (4, 5, 3)
    assert_close(mixture.stddev, mixture.variance.sqrt())


def test_one_dimension_keeps_its_axis():
    mixture = mixture_of((4,), 3, 1)
    assert mixture.event_shape == (1,)
    assert mixture.sample().shape == (4, 1)
    assert mixture.log_prob(torch.zeros(4, 1)).shape == (4,)
    assert mixture.cdf(torch.zeros(4, 1)).shape == (4,)
    assert mixture.icdf(0.5).shape == (4, 1)
    low, high = mixture.interval(0.9)
    assert low.shape == high.shape == (4, 1)
    inside = mixture.cdf(high) - mixture.cdf(low)
    assert_close(inside, torch.full((4,), 0.9, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    assert_close(mixture.cdf(low), torch.full((4,), 0.05, dtype=torch.float64))


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_expand(covariance):
    mixture = mixture_of((1, 3), covariance=covariance, names=["a", "b"])
    wide = mixture.expand((5, 2, 3))
    assert type(wide) is GaussianMixture
    assert wide.batch_shape == (5, 2, 3)
    assert wide.names == ("a", "b")
    assert wide.factors.data_ptr() == mixture.factors.data_ptr()
    x = torch.randn(5, 2, 3, 2, dtype=torch.float64)
    assert_close(wide.log_prob(x), mixture.log_prob(x), rtol=1e-12, atol=1e-12)
    assert wide.rsample().shape == (5, 2, 3, 2)


@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        slice(1, 3),
        (0, 1),
        (slice(None), 1),
        (..., 1),
        (1, ...),
        None,
        [0, 2],
        torch.tensor([2, 0]),
        torch.tensor([True, False, True, False]),
    ],
)
def test_indexing_is_that_of_a_tensor_of_the_batchs_shape(index):
    mixture = mixture_of((4, 3), names=["a", "b"])
    x = torch.randn(4, 3, 2, dtype=torch.float64)
    expected = mixture.log_prob(x)[index]
    part = mixture[index]
    position = torch.arange(12).reshape(4, 3)[index]
    assert part.batch_shape == expected.shape
    assert part.names == ("a", "b")
    picked = x.reshape(12, 2)[position]
    assert_close(part.log_prob(picked), expected, rtol=1e-12, atol=1e-12)


def test_length_iteration_and_indices_out_of_range():
    mixture = mixture_of((4, 3))
    assert len(mixture) == 4
    assert [part.batch_shape for part in mixture] == [(3,)] * 4
    with pytest.raises(IndexError):
        mixture[4]
    with pytest.raises(IndexError):
        mixture[0, 0, 0]
    with pytest.raises(TypeError, match="no length"):
        len(mixture[0, 0])
    assert mixture[0, 0]
    assert mixture[:0]


@pytest.mark.parametrize("n_components", [1, 3, 20])
@pytest.mark.parametrize("dimensions", [1, 2, 5, 20])
def test_constructors_agree(n_components, dimensions):
    original = mixture_of((), n_components, dimensions)
    weights, means = original.weights, original.means
    covariances = original.covariance_matrices
    twin = dense(*original.parameters)
    assert_same(original, *twin)
    upper = original.precision_factors
    built = [
        GaussianMixture.from_covariances(weights, means, covariances),
        GaussianMixture.from_precisions(weights, means, upper.mT @ upper),
        GaussianMixture.from_scale_tril(weights, means, torch.linalg.cholesky(covariances)),
    ]
    for mixture in built:
        assert_same(mixture, *twin)
        assert_close(mixture.factors, original.factors, rtol=1e-7, atol=1e-7)


def test_constructors_carry_gradients():
    original = mixture_of((), 2, 3)
    x = torch.randn(3, dtype=torch.float64)
    root = torch.linalg.cholesky(original.covariance_matrices)

    def density(weights, means, root):
        covariances = root @ root.mT
        build = GaussianMixture.from_covariances(weights, means, covariances, validate_args=False)
        return build.log_prob(x)

    inputs = (original.weights, original.means, root)
    assert torch.autograd.gradcheck(density, [t.detach().requires_grad_() for t in inputs])


def test_weights_of_zero_and_unnormalised_weights():
    means, covariances = torch.randn(3, 2), torch.eye(2).expand(3, 2, 2)
    weights = torch.tensor([2.0, 0.0, 6.0], requires_grad=True)
    mixture = GaussianMixture.from_covariances(weights, means, covariances)
    assert_close(mixture.weights, torch.tensor([0.25, 0.0, 0.75]))
    x = torch.zeros(2)
    mixture.log_prob(x).backward()
    assert weights.grad.isfinite().all()
    for answer in (
        mixture.mean,
        mixture.covariance_matrix,
        mixture.marginal([1]).icdf(0.3),
        mixture.condition({0: 0.1}).weights,
        mixture.modes().points,
        mixture.entropy().value,
        mixture.rsample((5,)),
        mixture.marginal([0]).crps(torch.zeros(1)),
    ):
        assert not answer.isnan().any()
    again = GaussianMixture.from_covariances(weights, means, covariances)
    (gradient,) = torch.autograd.grad(again.rsample((5,)).sum(), weights)
    assert gradient.isfinite().all()


ANSWERS = {
    "log_prob": lambda m: m.log_prob([0.1, 0.2]),
    "log_prob of float64": lambda m: m.log_prob(torch.zeros(2, dtype=torch.float64)),
    "responsibilities": lambda m: m.responsibilities([0.1, 0.2]),
    "mean": lambda m: m.mean,
    "covariance_matrix": lambda m: m.covariance_matrix,
    "covariance_matrices": lambda m: m.covariance_matrices,
    "rsample": lambda m: m.rsample((3,)),
    "marginal": lambda m: m.marginal([0]).factors,
    "condition": lambda m: m.condition({0: 0.5}).means,
    "affine by scale": lambda m: m.affine(np.array([2.0, 3.0]), 1.0).means,
    "affine by matrix": lambda m: m.affine(np.eye(2)).factors,
    "project": lambda m: m.project([1.0, 1.0]).means,
    "cdf": lambda m: m.marginal(0).cdf([0.5]),
    "icdf": lambda m: m.marginal(0).icdf([0.1, 0.9]),
    "interval": lambda m: m.marginal(0).interval(0.9)[1],
    "crps": lambda m: m.marginal(0).crps([0.5]),
    "entropy": lambda m: m.entropy().value,
    "energy_score": lambda m: m.energy_score([0.1, 0.2]).value,
    "ensemble": lambda m: GaussianMixture.ensemble([m, m]).logits,
    "from_covariances": lambda m: (
        GaussianMixture.from_covariances(m.weights, m.means, m.covariance_matrices).factors
    ),
    "modes": lambda m: m.modes().points,
}


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ANSWERS)
def test_every_answer_has_the_mixtures_dtype_and_a_gradient(name, dtype, covariance):
    inputs = [
        p.to(dtype).requires_grad_() for p in random_parameters((), 3, 2, covariance=covariance)
    ]
    answer = ANSWERS[name](GaussianMixture(*inputs))
    assert answer.dtype == dtype
    assert answer.isfinite().all()
    if answer.requires_grad:
        answer.sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in inputs)


def test_precision_is_the_widest_of_the_arguments():
    mixture = GaussianMixture(
        torch.zeros(2), torch.zeros(2, 1, dtype=torch.float64), torch.zeros(2, 1)
    )
    assert mixture.dtype == torch.float64
    assert mixture.logits.dtype == mixture.factors.dtype == torch.float64
    assert mixture.to(torch.float32).dtype == torch.float32
    assert mixture.device == torch.device("cpu")


def test_names_follow_the_dimensions():
    mixture = mixture_of((), 3, 4, names=["a", "b", "c", "d"])
    assert mixture.marginal(["d", "b"]).names == ("d", "b")
    assert mixture.marginal("c").names == ("c",)
    assert mixture.marginal([-1, 0]).names == ("d", "a")
    assert mixture.condition({"b": 0.0}).names == ("a", "c", "d")
    by_name, by_index = mixture.condition({"b": 0.5, 3: 1.0}), mixture.condition({1: 0.5, 3: 1.0})
    assert_close(by_name.means, by_index.means, rtol=0, atol=0)
    assert mixture.project(torch.ones(4)).names is None


def test_arrays_and_lists_serve_as_values():
    mixture = mixture_of((), 3, 2)
    x = np.array([[0.5, -0.5], [1.0, 2.0]])
    expected = mixture.log_prob(torch.from_numpy(x))
    assert_close(mixture.log_prob(x), expected)
    assert_close(mixture.log_prob(x.tolist()), expected)
    assert_close(mixture.log_prob(torch.tensor([[0, 1]])), mixture.log_prob([[0.0, 1.0]]))
    given = mixture.condition({np.int64(0): np.array([0.1, 0.2, 0.3])})
    assert given.batch_shape == (3,)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_columns_of_a_frame_are_taken_by_name(library):
    frames = pytest.importorskip(library)
    m = GaussianMixture(*random_parameters((4,), 3, 2), names=["lat", "lon"])
    values = torch.randn(4, 2, dtype=torch.float64)
    columns = {"lon": values[:, 1].numpy(), "lat": values[:, 0].numpy()}
    assert_close(m.log_prob(frames.DataFrame(columns)), m.log_prob(values), rtol=0, atol=0)
    with pytest.raises(DimensionError, match=r"columns \['lon'\].*\['lat', 'lon'\].*just these"):
        m.log_prob(frames.DataFrame(columns)[["lon"]])
    nameless = GaussianMixture(*m.parameters)
    swapped = nameless.log_prob(frames.DataFrame(columns))
    assert_close(swapped, m.log_prob(values.flip(-1)), rtol=0, atol=0)


def test_quantiles_by_dimension():
    m = GaussianMixture(*random_parameters((4,), 3, 2), names=["lat", "lon"])
    levels = torch.tensor([[0.1], [0.9]], dtype=torch.float64)
    expected = m.marginal(1).icdf(levels)[..., 0]
    assert_close(m.quantile(levels, "lon"), expected, rtol=0, atol=0)
    assert_close(m.marginal("lon").quantile(levels), expected, rtol=0, atol=0)
    with pytest.raises(DimensionError, match="icdf needs exactly one"):
        m.quantile(levels)


def test_empty_batches_are_ordinary():
    mixture = mixture_of((4,))[:0]
    assert mixture.sample((3,)).shape == (3, 0, 2)
    assert mixture.log_prob(torch.zeros(0, 2)).shape == (0,)
    assert mixture.marginal([1]).icdf(0.5).shape == (0, 1)
    assert mixture.condition({0: 0.0}).batch_shape == (0,)


def test_repr_tells_shape_and_structure():
    assert repr(mixture_of((4,), 3, 2)) == (
        "GaussianMixture(batch_shape=[4], n_components=3, dimensions=2, covariance='full')"
    )
    diagonal = mixture_of((), 3, 2, "diagonal", names=["lat", "lon"])
    assert repr(diagonal) == (
        "GaussianMixture(batch_shape=[], n_components=3, dimensions=2, covariance='diagonal', "
        "names=('lat', 'lon'))"
    )


def test_transformed_and_independent_distributions_over_it():
    mixture = mixture_of((4,), 3, 2)
    x = torch.rand(4, 2, dtype=torch.float64) + 0.5
    positive = TransformedDistribution(mixture, [ExpTransform()])
    expected = mixture.log_prob(x.log()) - x.log().sum(-1)
    assert_close(positive.log_prob(x), expected, rtol=1e-10, atol=1e-10)
    moved = TransformedDistribution(mixture, [AffineTransform(1.0, 2.0)])
    assert_close(moved.log_prob(x), mixture.affine(2.0, 1.0).log_prob(x), rtol=1e-10, atol=1e-10)
    together = Independent(mixture, 1)
    assert_close(together.log_prob(x), mixture.log_prob(x).sum())


def test_copies_and_pickles():
    mixture = mixture_of((4,), names=["a", "b"])
    x = torch.randn(4, 2, dtype=torch.float64)
    buffer = io.BytesIO()
    pickle.dump(mixture, buffer)
    buffer.seek(0)
    for twin in (copy.deepcopy(mixture), pickle.load(buffer)):
        assert twin.names == mixture.names
        assert_close(twin.log_prob(x), mixture.log_prob(x), rtol=0, atol=0)


def test_validation_follows_torchs_switch():
    bad = (torch.zeros(1), torch.full((1, 1), torch.nan), torch.zeros(1, 1))
    with pytest.raises(ValueError, match="means"):
        GaussianMixture(*bad)
    assert GaussianMixture(*bad, validate_args=False).means.isnan().all()
    Distribution.set_default_validate_args(False)
    try:
        assert GaussianMixture(*bad).means.isnan().all()
    finally:
        Distribution.set_default_validate_args(True)


def test_version_is_written_once():
    from importlib.metadata import version

    assert condens.__version__ == version("condens")
