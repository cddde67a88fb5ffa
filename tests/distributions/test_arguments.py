"""Bad arguments: each error names the argument and what to do."""

import pytest
import torch
from helpers.reference import random_parameters
from torch.distributions import Independent, Normal

from condens import GaussianMixture, errors
from condens.errors import (
    ArgumentError,
    CondensError,
    DimensionError,
    NotFiniteError,
    NotPositiveDefiniteError,
    ShapeError,
)


def mixture_of(batch=(), n_components=3, dimensions=2, **options):
    return GaussianMixture(*random_parameters(batch, n_components, dimensions), **options)


def z(*shape, **options):
    return torch.zeros(*shape, **options)


NAN, INF = float("nan"), float("inf")
EYE = torch.eye(2).expand(3, 2, 2)

# Call, error, words the message must have: the argument, what is wrong, what to do.
# fmt: off
CONSTRUCTION = {
    "logits without components": (lambda: GaussianMixture(z(()), z(1, 2), z(1, 3)), ShapeError, r"logits has shape \[\].*\[\.\.\., K\].*K = 1"),
    "means without component axis": (lambda: GaussianMixture(z(1), z(2), z(1, 3)), ShapeError, r"means has shape \[2\].*\[\.\.\., K, D\]"),
    "no component": (lambda: GaussianMixture(z(0), z(0, 2), z(0, 3)), ShapeError, r"means has shape \[0, 2\].*K ≥ 1"),
    "too few logits": (lambda: GaussianMixture(z(2), z(3, 2), z(3, 3)), ShapeError, r"logits has 2 components.*means has 3.*one entry"),
    "too few factors": (lambda: GaussianMixture(z(3), z(3, 2), z(2, 3)), ShapeError, r"factors has 2 components"),
    "factors of the printed size": (lambda: GaussianMixture(z(3), z(3, 4), z(3, 6)), ShapeError, r"factors has 6 numbers.*need 10.*or 4"),
    "batches that do not broadcast": (lambda: GaussianMixture(z(4, 3), z(5, 3, 2), z(3, 3)), ShapeError, r"logits, means and factors have shapes \[4, 3\], \[5, 3, 2\]"),
    "complex numbers": (lambda: GaussianMixture(z(3), z(3, 2, dtype=torch.complex64), z(3, 3)), ArgumentError, r"means is complex.*two dimensions"),
    "words": (lambda: GaussianMixture(["a"], z(1, 2), z(1, 3)), ArgumentError, r"logits is list.*list of numbers"),
    "NaN logits": (lambda: GaussianMixture(torch.tensor([0.0, NAN, -INF]), z(3, 2), z(3, 3)), NotFiniteError, r"logits has 1 value.*index \[1\].*computed from"),
    "infinite logit": (lambda: GaussianMixture(torch.tensor([0.0, 0.0, INF]), z(3, 2), z(3, 3)), NotFiniteError, r"logits .*index \[2\]"),
    "no weight at all": (lambda: GaussianMixture(z(3) - INF, z(3, 2), z(3, 3)), NotFiniteError, r"logits is −inf for every component.*finite logit"),
    "NaN means": (lambda: GaussianMixture(z(3), z(3, 2) + NAN, z(3, 3)), NotFiniteError, r"means has 6 value.*index \[0, 0\]"),
    "infinite factors": (lambda: GaussianMixture(z(3), z(3, 2), z(3, 3) + INF), NotFiniteError, r"factors has 9 value"),
    "a scale beyond the precision": (lambda: GaussianMixture(z(3), z(3, 2), z(3, 3) + 60), NotFiniteError, r"log-diagonal of 60.*Standardise the target, or use float64"),
    "too few names": (lambda: mixture_of(names=["a"]), DimensionError, r"names is \['a'\].*2 distinct"),
    "a word for names": (lambda: mixture_of(names="ab"), DimensionError, r"names is 'ab'"),
    "numbers for names": (lambda: mixture_of(names=[0, 1]), DimensionError, r"names is \[0, 1\]"),
    "too few weights": (lambda: GaussianMixture.from_covariances(z(2) + 1, z(3, 2), EYE), ShapeError, r"weights has 2 entries.*means has 3.*one weight"),
    "one matrix in one axis": (lambda: GaussianMixture.from_covariances(z(3) + 1, z(3, 2), z(4)), ShapeError, r"covariances has shape \[4\]"),
    "a number among members": (lambda: GaussianMixture.ensemble([mixture_of(), 3]), ArgumentError, r"members is .*nothing else"),
    "members that fit the first only": (lambda: GaussianMixture.ensemble([mixture_of((1,)), mixture_of((3,)), mixture_of((4,))]), ShapeError, r"members has shape \[4\]"),
    "equal names": (lambda: mixture_of(names=["a", "a"]), DimensionError, r"names .*distinct"),
    "negative weight": (lambda: GaussianMixture.from_covariances(torch.tensor([1.0, -1.0, 1.0]), z(3, 2), EYE), ArgumentError, r"weights has an entry that is negative.*exp of log weights"),
    "NaN weight": (lambda: GaussianMixture.from_covariances(torch.tensor([1.0, NAN, 1.0]), z(3, 2), EYE), ArgumentError, r"weights"),
    "weights of zero": (lambda: GaussianMixture.from_covariances(z(3), z(3, 2), EYE), ArgumentError, r"weights .*sums to zero"),
    "covariances of the wrong shape": (lambda: GaussianMixture.from_covariances(z(3) + 1, z(3, 2), torch.eye(3)), ShapeError, r"covariances has shape \[3, 3\].*one D×D matrix"),
    "NaN covariance": (lambda: GaussianMixture.from_covariances(z(3) + 1, z(3, 2), EYE * NAN), NotFiniteError, r"covariances has 12 value"),
    "singular covariance": (lambda: GaussianMixture.from_covariances(z(3) + 1, z(3, 2), torch.ones(3, 2, 2)), NotPositiveDefiniteError, r"covariances at index \[0\] has the smallest eigenvalue.*multiple of the identity"),
    "asymmetric covariance": (lambda: GaussianMixture.from_covariances(z(3) + 1, z(3, 2), EYE + torch.tensor([[0.0, 0.5], [0.0, 0.0]])), NotPositiveDefiniteError, r"covariances is not symmetric.*matrix\.mT"),
    "indefinite precision": (lambda: GaussianMixture.from_precisions(z(3) + 1, z(3, 2), -EYE), NotPositiveDefiniteError, r"precisions at index \[0\].*-1"),
    "upper scale_tril": (lambda: GaussianMixture.from_scale_tril(z(3) + 1, z(3, 2), torch.ones(3, 2, 2)), NotPositiveDefiniteError, r"scale_tril is not lower triangular.*from_covariances"),
    "no members": (lambda: GaussianMixture.ensemble([]), ArgumentError, r"members is \[\].*list of mixtures"),
    "members of other dimensions": (lambda: GaussianMixture.ensemble([mixture_of(), mixture_of(dimensions=3)]), DimensionError, r"members has .*marginal"),
    "members of other names": (lambda: GaussianMixture.ensemble([mixture_of(names=["a", "b"]), mixture_of(names=["b", "a"])]), DimensionError, r"reorder with marginal"),
    "members of other batches": (lambda: GaussianMixture.ensemble([mixture_of((2,)), mixture_of((3,))]), ShapeError, r"members has shape \[3\]"),
    "too many ensemble weights": (lambda: GaussianMixture.ensemble([mixture_of()], [1.0, 1.0]), ShapeError, r"weights has shape \[2\]"),
}

NAMED = mixture_of(names=["lat", "lon"])
PLAIN = mixture_of((4,))
ONE = mixture_of((), 3, 1)

QUESTIONS = {
    "value without the dimensions": (lambda: PLAIN.log_prob(z(4)), ShapeError, r"value has shape \[4\].*2 dimension.*marginal"),
    "a grid for a batch": (lambda: mixture_of((4,), 3, 1).log_prob(z(200)), ShapeError, r"value has shape \[200\].*End it in \[4, 1\].*or in \[1, 1\]"),
    "rows of another number": (lambda: mixture_of((4,), 3, 1).cdf(z(3, 1)), ShapeError, r"value has shape \[3, 1\].*End it in \[4, 1\]"),
    "an axis of one that may be either": (lambda: mixture_of((4, 1), 3, 1).crps(z(4, 1)), ShapeError, r"value has shape \[4, 1\].*may be the event's or not.*value\[\.\.\., None\].*value\.reshape\(\[4, 1, 1, 1\]\)"),
    "value of another batch": (lambda: PLAIN.log_prob(z(3, 2)), ShapeError, r"value has shape \[3, 2\].*batch shape \[4\]"),
    "value of NaN": (lambda: PLAIN.log_prob(z(4, 2) + NAN), NotFiniteError, r"value has NaN.*marginal"),
    "value of words": (lambda: PLAIN.log_prob("a"), ArgumentError, r"value is str.*numbers"),
    "no value": (lambda: PLAIN.log_prob(None), ArgumentError, r"value is NoneType"),
    "complex value": (lambda: PLAIN.log_prob(z(4, 2, dtype=torch.complex64)), ArgumentError, r"value is complex"),
    "infinite value to score": (lambda: ONE.crps([INF]), NotFiniteError, r"value has 1 value"),
    "number of draws as shape": (lambda: PLAIN.sample(3), ShapeError, r"sample_shape is 3.*\(1000,\)"),
    "negative shape": (lambda: PLAIN.rsample((-1,)), ShapeError, r"sample_shape is \(-1,\)"),
    "shape of fractions": (lambda: PLAIN.sample((2.0,)), ShapeError, r"sample_shape is \(2\.0,\).*whole numbers.*\(1000,\)"),
    "shape of words": (lambda: PLAIN.sample("ab"), ShapeError, r"sample_shape is 'ab'"),
    "no shape": (lambda: PLAIN.sample(None), ShapeError, r"sample_shape is None"),
    "shape beyond all sizes": (lambda: PLAIN.sample((2**63,)), ShapeError, r"sample_shape is \(9223372036854775808,\).*no process can have the 2\*\*69 bytes.*less at a time"),
    "shape beyond all memory": (lambda: PLAIN.rsample((2**30, 2**20)), ShapeError, r"sample_shape is \(1073741824, 1048576\).*bytes"),
    "shape beyond all sizes, of nothing": (lambda: PLAIN[:0].sample((2**63, 0)), ShapeError, r"sample_shape .*bytes"),
    "draws beyond all memory": (lambda: PLAIN.entropy(n_samples=2**62), ShapeError, r"n_samples is 4611686018427387904.*bytes"),
    "a seed for a generator": (lambda: PLAIN.sample(generator=0), ArgumentError, r"generator is int.*manual_seed\(0\)"),
    "a batch that does not expand": (lambda: PLAIN.expand((3,)), ShapeError, r"batch_shape is \[3\].*has \[4\].*in front"),
    "a batch that shrinks": (lambda: PLAIN.expand(()), ShapeError, r"batch_shape is \[\]"),
    "mask for dimensions": (lambda: PLAIN.marginal([True, False]), DimensionError, r"dims has True.*index or a name"),
    "unknown index": (lambda: PLAIN.marginal([0, 2]), DimensionError, r"dims has 2.*2 dimension.*from 0 to 1"),
    "unknown negative index": (lambda: PLAIN.marginal(-3), DimensionError, r"dims has -3"),
    "unknown name": (lambda: NAMED.marginal(["lat", "height"]), DimensionError, r"dims has 'height'.*lat, lon"),
    "name of nameless": (lambda: PLAIN.condition({"lat": 1.0}), DimensionError, r"values has 'lat'.*no names.*indices"),
    "no dimension at all": (lambda: PLAIN.marginal([]), DimensionError, r"dims is empty.*0 to 1"),
    "repeated": (lambda: PLAIN.marginal([1, 1]), DimensionError, r"dims names dimension 1 twice"),
    "repeated as name and index": (lambda: NAMED.condition({"lat": 0.0, 0: 1.0}), DimensionError, r"values names dimension 'lat' twice"),
    "fraction of a dimension": (lambda: PLAIN.marginal([0.5]), DimensionError, r"dims has 0\.5.*index or a name"),
    "nothing fixed": (lambda: PLAIN.condition({}), DimensionError, r"values is empty"),
    "everything fixed": (lambda: PLAIN.condition({0: 1.0, 1: 1.0}), DimensionError, r"values fixes all 2.*log_prob"),
    "fixed to NaN": (lambda: NAMED.condition({"lat": NAN}), NotFiniteError, r"values\['lat'\]"),
    "a list of values": (lambda: PLAIN.condition([1.0]), ArgumentError, r"values is list.*\{dimension: value"),
    "values of two shapes": (lambda: mixture_of(dimensions=3).condition({0: z(2), 1: z(3)}), ShapeError, r"values has values of shapes \[\[2\], \[3\]\]"),
    "values of another batch": (lambda: PLAIN.condition({0: z(3)}), ShapeError, r"values has shape \[3\].*batch shape \[4\]"),
    "cdf of two dimensions": (lambda: PLAIN.cdf(z(4, 2)), DimensionError, r"2 dimensions.*cdf needs exactly one.*marginal\(dim\) or project"),
    "icdf of two dimensions": (lambda: PLAIN.icdf(0.5), DimensionError, r"icdf"),
    "interval of two dimensions": (lambda: PLAIN.interval(0.5), DimensionError, r"interval"),
    "crps of two dimensions": (lambda: PLAIN.crps(z(4, 2)), DimensionError, r"crps"),
    "probability above one": (lambda: ONE.icdf(1.1), ArgumentError, r"value has an entry outside \[0, 1\].*0\.5"),
    "probability of NaN": (lambda: ONE.icdf(NAN), ArgumentError, r"value"),
    "probabilities of another batch": (lambda: PLAIN.marginal(0).icdf(z(3)), ShapeError, r"value has shape \[3\]"),
    "coverage of one": (lambda: ONE.interval(1.0), ArgumentError, r"coverage is 1\.0.*pass 0\.9"),
    "coverage of zero": (lambda: PLAIN.hpd_threshold(0.0), ArgumentError, r"coverage is 0\.0"),
    "coverages of another batch": (lambda: PLAIN.marginal(0).interval(z(2) + 0.5), ShapeError, r"coverage has shape \[2\].*batch shape \[4\]"),
    "coverage of two numbers": (lambda: PLAIN.hpd_threshold(z(2) + 0.5), ArgumentError, r"coverage is tensor.*one number"),
    "draws as a fraction": (lambda: PLAIN.entropy(n_samples=1e4), ArgumentError, r"n_samples is 10000\.0.*Pass an int"),
    "no number of draws for the coverage": (lambda: PLAIN.hpd_threshold(5e-324), ArgumentError, r"n_samples is 10000.*nearer to one half"),
    "too few draws for the coverage": (lambda: PLAIN.hpd_threshold(0.9999), ArgumentError, r"n_samples is 10000.*at least 100001"),
    "KL to a number": (lambda: PLAIN.kl_divergence(3), ArgumentError, r"other is int"),
    "KL to another batch": (lambda: PLAIN.kl_divergence(mixture_of((3,))), ShapeError, r"other has shape \[3\]"),
    "product with another batch": (lambda: PLAIN.multiply(mixture_of((3,), 1)), ShapeError, r"gaussian has shape \[3\]"),
    "product with a number": (lambda: PLAIN.divide(3), ArgumentError, r"gaussian is int"),
    "product with a batch of normals": (lambda: PLAIN.multiply(Independent(Normal(z(5, 2), 1.0), 2)), ShapeError, r"gaussian has event shape \[5, 2\]"),
    "product with normals of no event": (lambda: PLAIN.multiply(Independent(Normal(z(2), 1.0), 0)), ShapeError, r"gaussian has event shape \[\]"),
    "direction of zero": (lambda: PLAIN.project(z(2)), ArgumentError, r"direction is zero"),
    "direction of other dimensions": (lambda: PLAIN.project(z(3) + 1), ShapeError, r"direction has shape \[3\]"),
    "matrix of zero": (lambda: PLAIN.affine(z(2, 2)), NotPositiveDefiniteError, r"matrix_or_scale .*full row rank"),
    "loc of another batch": (lambda: PLAIN.affine(torch.eye(2), z(3, 2)), ShapeError, r"loc has shape \[3, 2\]"),
    "one draw": (lambda: PLAIN.entropy(n_samples=1), ArgumentError, r"n_samples is 1.*1000"),
    "KL of other dimensions": (lambda: PLAIN.kl_divergence(ONE), ShapeError, r"other has event shape \[1\]"),
    "matrix of other dimensions": (lambda: PLAIN.affine(z(2, 3) + 1), ShapeError, r"matrix_or_scale has shape \[2, 3\]"),
    "matrix of NaN": (lambda: PLAIN.affine(z(2, 2) + NAN), NotFiniteError, r"matrix_or_scale"),
    "matrix of another batch": (lambda: PLAIN.affine(torch.eye(2).expand(3, 2, 2)), ShapeError, r"matrix_or_scale has shape \[3, 2, 2\]"),
}
# fmt: on


@pytest.mark.parametrize("name", CONSTRUCTION | QUESTIONS)
def test_error_names_argument_and_fix(name):
    call, kind, words = (CONSTRUCTION | QUESTIONS)[name]
    with pytest.raises(kind, match=rf"(?s){words}") as caught:
        call()
    assert isinstance(caught.value, CondensError)
    assert isinstance(caught.value, ValueError)


def test_every_error_is_one_of_ours():
    kinds = [k for k in vars(errors).values() if isinstance(k, type)]
    assert all(issubclass(k, CondensError | errors.CondensWarning) for k in kinds)
