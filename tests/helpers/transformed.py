"""Transformed mixtures, for the tests."""

import math

import torch
from helpers.reference import random_parameters

from condens import GaussianMixture, TransformedMixture
from condens.transforms import Integer, Interval, Positive, Real

KINDS = {
    "real": Real(),
    "positive": Positive(-1.0),
    "probit": Interval(-2.0, 3.0),
    "logit": Interval(-2.0, 3.0, link="logit"),
    "integer": Integer(),
    "count": Integer(0),
}
MIXED = [Real(), Positive(), Interval(0.0, 10.0), Integer(), Integer(0)]


def reals(*values):
    return torch.tensor(values, dtype=torch.float64)


def mixture_of(transforms, n_components=3, batch=(), seed=0, spread=1.0, tight=0.0, **options):
    """Return a mixture with dense covariances; e^tight divides all their deviations."""
    logits, means, factors = random_parameters(
        batch, n_components, len(transforms), seed=seed, spread=spread
    )
    factors = torch.cat(
        [
            factors[..., : len(transforms)] + tight,
            factors[..., len(transforms) :] * math.exp(tight),
        ],
        -1,
    )
    return TransformedMixture(GaussianMixture(logits, means, factors, **options), transforms)


def gaussian(transforms, mean, covariance):
    base = GaussianMixture.from_covariances(
        torch.ones(1, dtype=torch.float64),
        torch.tensor([mean], dtype=torch.float64),
        torch.tensor([covariance], dtype=torch.float64),
    )
    return TransformedMixture(base, transforms)
