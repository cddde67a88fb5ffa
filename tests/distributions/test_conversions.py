"""Torch's own mixtures to ours and back, and torch's transforms over ours."""

import pytest
import torch
from torch import distributions as dist

from condens import GaussianMixture, TransformedMixture
from condens.errors import ArgumentError
from condens.transforms import Interval, Positive, Real


def numbers(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def weights(*shape):
    return dist.Categorical(logits=numbers(*shape, seed=1))


def root(*shape):
    lower = numbers(*shape, shape[-1], seed=2).tril(-1)
    return lower + torch.diag_embed(numbers(*shape, seed=3).exp())


THEIRS = {
    "full": lambda k, d: dist.MultivariateNormal(numbers(4, k, d), scale_tril=root(4, k, d)),
    "covariance": lambda k, d: dist.MultivariateNormal(
        numbers(4, k, d), root(4, k, d) @ root(4, k, d).mT
    ),
    "diagonal": lambda k, d: dist.Independent(
        dist.Normal(numbers(4, k, d), numbers(4, k, d, seed=3).exp()), 1
    ),
}


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dimensions", [1, 2, 5])
@pytest.mark.parametrize("n_components", [1, 3])
@pytest.mark.parametrize("family", THEIRS)
def test_theirs_to_ours_and_back(family, n_components, dimensions):
    theirs = dist.MixtureSameFamily(
        weights(4, n_components), THEIRS[family](n_components, dimensions)
    )
    ours = GaussianMixture.from_mixture_same_family(theirs)
    back = ours.to_mixture_same_family()
    value = 2 * numbers(6, 4, dimensions, seed=4)
    close(ours.log_prob(value), theirs.log_prob(value))
    close(back.log_prob(value), theirs.log_prob(value))
    close(ours.mean, theirs.mean)
    close(ours.variance, theirs.variance)
    covariances = THEIRS["full"](n_components, dimensions).covariance_matrix
    if family != "diagonal":
        close(ours.covariance_matrices, covariances)
        if dimensions > 1:
            close(back.component_distribution.covariance_matrix, covariances)
            close(back.component_distribution.scale_tril, root(4, n_components, dimensions))


def test_univariate_normals():
    parts = dist.Normal(numbers(4, 3), numbers(4, 3, seed=3).exp())
    theirs = dist.MixtureSameFamily(weights(4, 3), parts)
    ours = GaussianMixture.from_mixture_same_family(theirs, names=["x"])
    assert (ours.dimensions, ours.names) == (1, ("x",))
    value = numbers(6, 4, seed=4)
    close(ours.log_prob(value.unsqueeze(-1)), theirs.log_prob(value))
    close(ours.cdf(value.unsqueeze(-1)), theirs.cdf(value))


def test_gradients_go_both_ways():
    parameters = [numbers(3), numbers(3, 2, seed=1), numbers(3, 3, seed=2)]
    value = numbers(2, seed=3)

    def there_and_back(*given):
        theirs = GaussianMixture(*given).to_mixture_same_family()
        return GaussianMixture.from_mixture_same_family(theirs).log_prob(value)

    leaves = [p.requires_grad_() for p in parameters]
    ours = torch.autograd.grad(GaussianMixture(*leaves).log_prob(value), leaves)
    for one, other in zip(ours, torch.autograd.grad(there_and_back(*leaves), leaves), strict=True):
        close(other, one)


@pytest.mark.parametrize(
    ("given", "got"),
    [
        (dist.Normal(0.0, 1.0), "mixture is Normal"),
        (
            dist.MixtureSameFamily(
                dist.Categorical(torch.ones(2)), dist.Laplace(torch.zeros(2), torch.ones(2))
            ),
            "mixture is a mixture of Laplace",
        ),
        (
            dist.MixtureSameFamily(
                dist.Categorical(torch.ones(2)),
                dist.Independent(dist.Normal(torch.zeros(2, 2, 2), torch.ones(2, 2, 2)), 2),
            ),
            "mixture is a mixture of Independent",
        ),
        (GaussianMixture(torch.zeros(1), torch.zeros(1, 1), torch.zeros(1, 1)), "GaussianMixture"),
    ],
)
def test_other_families_are_refused(given, got):
    with pytest.raises(ArgumentError, match=rf"{got}.*MixtureSameFamily of MultivariateNormal"):
        GaussianMixture.from_mixture_same_family(given)


TRANSFORMS = {
    "affine": (dist.AffineTransform(1.0, -2.0, event_dim=1), Real()),
    "exp": (dist.ExpTransform(), Positive()),
    "sigmoid": (dist.SigmoidTransform(), Interval(0.0, 1.0, link="logit")),
    "probit": (dist.CumulativeDistributionTransform(dist.Normal(0.0, 1.0)), Interval(0.0, 1.0)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_torch_transforms_agree_with_ours(name):
    theirs, transform = TRANSFORMS[name]
    base = GaussianMixture(numbers(4, 3), numbers(4, 3, 2, seed=1), numbers(4, 3, 3, seed=2))
    ours = TransformedMixture(base, [transform, transform])
    if name == "affine":
        ours = TransformedMixture(base.affine(-2.0, 1.0), [transform, transform])
    if theirs.domain.event_dim == 0:
        theirs = dist.IndependentTransform(theirs, 1)
    twin = dist.TransformedDistribution(base, [theirs])
    value = theirs(numbers(6, 4, 2, seed=5))
    close(ours.log_prob(value), twin.log_prob(value))
    # Theirs are rounded to the bounds.
    assert transform.contains(transform.nearest(twin.sample((100,)))).all()
