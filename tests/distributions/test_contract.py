"""What torch and its users expect of every Distribution, asked of our three."""

import copy
import inspect
import pickle

import pytest
import torch
from helpers.reference import random_low_rank, random_parameters
from helpers.transformed import KINDS, MIXED, mixture_of
from torch.distributions import (
    Distribution,
    Independent,
    MultivariateNormal,
    TransformedDistribution,
    biject_to,
    constraints,
    kl_divergence,
    transform_to,
)
from torch.testing import assert_close

from condens import GaussianMixture, LowRankMixture, TransformedMixture
from condens.distributions import Mixture
from condens.errors import CondensError, NoClosedFormError, NotFiniteError
from condens.transforms import Integer, Interval, Positive, Real

NAN = float("nan")
CONTINUOUS = [Positive(-1.0), Interval(-2.0, 3.0), Real()]
LOGIT = [Positive(-1.0), Interval(-2.0, 3.0, link="logit"), Real()]
MIXTURES = {
    "full": lambda *batch: GaussianMixture(*random_parameters(batch, 3, 3)),
    "diagonal": lambda *batch: GaussianMixture(
        *random_parameters(batch, 3, 3, covariance="diagonal")
    ),
    "low_rank": lambda *batch: LowRankMixture(*random_low_rank(batch, 3, 3, 1)),
    "continuous": lambda *batch: mixture_of(CONTINUOUS, batch=batch),
    "mixed": lambda *batch: mixture_of(MIXED, batch=batch),
}
every = pytest.mark.parametrize("name", MIXTURES)


@every
def test_shapes_and_flags(name):
    m = MIXTURES[name](4)
    assert isinstance(m, Distribution)
    assert m.batch_shape == (4,)
    assert m.event_shape == (m.dimensions,)
    assert not m.has_enumerate_support
    assert isinstance(m.has_rsample, bool)
    assert m.sample().shape == (4, m.dimensions)
    assert m.sample(torch.Size([2, 3])).shape == (2, 3, 4, m.dimensions)
    assert m.log_prob(m.sample((7,))).shape == (7, 4)
    assert m.mean.shape == m.variance.shape == m.stddev.shape == (4, m.dimensions)
    assert_close(m.stddev, m.variance.sqrt())
    assert m.entropy().value.shape == (4,)
    with pytest.raises(NoClosedFormError, match=r"perplexity.*entropy\(\)\.value\.exp\(\)"):
        m.perplexity()
    for parameter, constraint in m.arg_constraints.items():
        assert constraint.check(getattr(m, parameter)).all()
    assert not m.sample().requires_grad


@every
def test_expand(name):
    m = MIXTURES[name](1, 3)
    wide = m.expand(torch.Size([5, 2, 3]))
    assert type(wide) is type(m)
    assert wide.batch_shape == (5, 2, 3)
    assert wide.sample().shape == (5, 2, 3, m.dimensions)
    x = wide.sample()
    assert_close(wide.log_prob(x), m.log_prob(x), rtol=1e-12, atol=1e-12)
    assert_close(wide.mean, m.mean.expand(5, 2, 3, -1), rtol=1e-12, atol=1e-12)
    assert wide._validate_args == m._validate_args
    again = wide.expand((4, 5, 2, 3))
    assert again.batch_shape == (4, 5, 2, 3)


@every
def test_subclasses_expand_into_their_own_instance(name):
    """torch's protocol: `expand` fills the instance that a subclass brings."""
    m = MIXTURES[name](3)
    kind = type("Own", (type(m),), {})
    instance = kind.__new__(kind)
    wide = m.expand((2, 3), instance)
    assert wide is instance
    assert wide.batch_shape == (2, 3)


@every
def test_copies(name):
    m = MIXTURES[name](4)
    x = m.sample()
    for twin in (copy.copy(m), copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        assert type(twin) is type(m)
        assert repr(twin) == repr(m)
        assert torch.equal(twin.log_prob(x), m.log_prob(x))
        assert repr(twin.support) == repr(m.support)


@every
def test_enumeration_and_modes_are_refused_as_torch_does(name):
    m = MIXTURES[name]()
    with pytest.raises(NotImplementedError, match="support is infinite"):
        m.enumerate_support()
    if name in ("low_rank", "mixed"):
        with pytest.raises(NotImplementedError, match="mode"):
            _ = m.mode
    if not m.has_rsample:
        with pytest.raises(NotImplementedError):
            m.rsample()


def test_all_mixtures_have_the_same_methods_and_properties():
    kinds = (GaussianMixture, LowRankMixture, TransformedMixture)
    # What a kind is made of, and is made from, it has for itself.
    made_of = {"factors", "log_scales", "loadings", "scales", "rank", "base"}
    common = {name for name in dir(Mixture) if not name.startswith("_")}
    for kind in kinds:
        public = {name for name in dir(kind) if not name.startswith(("_", "from_"))}
        assert public - made_of == common
        assert all(inspect.getdoc(getattr(kind, name)) for name in public - {"arg_constraints"})


def test_no_closed_form_is_not_implemented():
    assert issubclass(NoClosedFormError, NotImplementedError)
    assert issubclass(NoClosedFormError, CondensError)


@every
def test_divergences_are_exact_or_refused(name):
    m = MIXTURES[name]()
    with pytest.raises(NotImplementedError):
        kl_divergence(m, m)
    with pytest.raises(NotImplementedError):
        kl_divergence(m, MultivariateNormal(torch.zeros(m.dimensions), torch.eye(m.dimensions)))


@every
def test_validation_can_be_switched(name):
    m = MIXTURES[name]()
    gap = torch.full((m.dimensions,), NAN)
    with pytest.raises(ValueError, match="value has NaN"):
        m.log_prob(gap)
    if name in ("continuous", "mixed"):
        free = TransformedMixture(m.base, m.transforms, validate_args=False)
        assert m.base._validate_args, "the mixture that came is left alone"
        checked = TransformedMixture(free.base, m.transforms, validate_args=True)
        assert TransformedMixture(m.base, m.transforms)._validate_args
    else:
        free = type(m)(*m.parameters, validate_args=False)
        checked = type(m)(*m.parameters, validate_args=True)
    assert free.log_prob(gap).isnan()
    for derived in (free.expand((2,)), free.marginal([0]), free.condition({0: 1.0}), free[None]):
        assert derived._validate_args is False
    with pytest.raises(NotFiniteError):
        checked.marginal([0]).log_prob(gap[:1])


def test_validation_is_made_up_for():
    bad = GaussianMixture(
        torch.zeros(1), torch.full((1, 1), NAN), torch.zeros(1, 1), validate_args=False
    )
    assert TransformedMixture(bad, [Real()]).mean.isnan()
    with pytest.raises(NotFiniteError, match="means has 1 value"):
        TransformedMixture(bad, [Real()], validate_args=True)


# The support.


@every
def test_draws_lie_in_the_support(name):
    m = MIXTURES[name](4)
    assert m.support.event_dim == 1
    assert type(m).support.event_dim == 1
    assert m.support.is_discrete == (name == "mixed")
    inside = m.support.check(m.sample((5,)))
    assert inside.shape == (5, 4)
    assert inside.all()


@pytest.mark.parametrize("transform", KINDS.values(), ids=KINDS)
def test_the_support_is_where_the_density_is(transform):
    m = mixture_of([transform, Real()])
    values = torch.tensor([-3.0, -2.5, -2.1, -1.5, -1.0, -0.5, 0.0, 1.0, 2.0, 2.5, 4.0, NAN])
    points = torch.stack([values, torch.zeros_like(values)], -1).double()
    points = points[~points.isnan().any(-1)]
    assert torch.equal(m.support.check(points), m.log_prob(points) > -torch.inf)
    assert not m.support.check(torch.tensor([NAN, 0.0]))


@pytest.mark.parametrize("registry", [biject_to, transform_to], ids=["biject", "transform"])
@pytest.mark.parametrize("transforms", [CONTINUOUS, LOGIT, [Positive(2.0)] * 2, [Real()]], ids=str)
def test_the_bijection_is_our_map(transforms, registry):
    m = mixture_of(transforms, batch=(4,))
    to_support = registry(m.support)
    x = torch.randn(7, 4, len(transforms), dtype=torch.float64)
    y = to_support(x)
    assert m.support.check(y).all()
    assert_close(to_support.inv(y), x, rtol=1e-9, atol=1e-9)
    ours = torch.stack(
        [transform.from_real(x[..., d]) for d, transform in enumerate(transforms)], -1
    )
    assert_close(y, ours, rtol=1e-12, atol=1e-12)
    slope = to_support.log_abs_det_jacobian(x, y)
    assert slope.shape == (7, 4)
    # On the real line the density is that of the mixture inside.
    assert_close(m.log_prob(y) + slope, m.base.log_prob(x), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("registry", [biject_to, transform_to], ids=["biject", "transform"])
@pytest.mark.parametrize("transform", [Integer(), Integer(3)], ids=str)
def test_whole_numbers_have_no_bijection(transform, registry):
    for transforms in ([transform], [Positive(), transform]):
        with pytest.raises(NoClosedFormError, match=r"whole numbers.*marginal\(dims\)") as caught:
            registry(mixture_of(transforms).support)
        assert isinstance(caught.value, NotImplementedError)


@every
def test_independent_and_transformed_distributions_over_it(name):
    m = MIXTURES[name](4)
    together, x = Independent(m, 1), m.sample((2,))
    assert together.event_shape == (4, m.dimensions)
    assert together.support.check(x).all()
    assert_close(together.log_prob(x), m.log_prob(x).sum(-1))
    assert_close(together.expand((3,)).mean, m.mean.expand(3, 4, -1))
    if name != "mixed":
        moved = TransformedDistribution(m, [torch.distributions.AffineTransform(1.0, 2.0)])
        expected = m.log_prob(x) - m.dimensions * torch.tensor(2.0).double().log()
        assert_close(moved.log_prob(1 + 2 * x), expected)


def test_plain_supports_stay_plain():
    assert MIXTURES["full"]().support is constraints.real_vector
    real = mixture_of([Real(), Real()]).support
    assert isinstance(real.base_constraint, type(constraints.real))
