"""Bad arguments of low-rank mixtures: each error names the argument and what to do."""

import pytest
import torch
from helpers.reference import random_low_rank

from condens import LowRankMixture
from condens.errors import ArgumentError, CondensError, DimensionError, NotFiniteError, ShapeError


def mixture_of(batch=(), **options):
    return LowRankMixture(*random_low_rank(batch, 3, 2, 1), **options)


def z(*shape):
    return torch.zeros(*shape)


def build(logits=(3,), means=(3, 2), log_scales=(3, 2), loadings=(3, 2, 1), **options):
    tensors = [z(*t) if isinstance(t, tuple) else t for t in (logits, means, log_scales, loadings)]
    return LowRankMixture(*tensors, **options)


NAN, INF = float("nan"), float("inf")
PLAIN, NAMED = mixture_of((4,)), mixture_of(names=["lat", "lon"])

# fmt: off
BAD = {
    "logits without components": (lambda: build(logits=z(())), ShapeError, r"logits has shape \[\]"),
    "loadings without the axis of factors": (lambda: build(loadings=(3, 2)), ShapeError, r"loadings has shape \[3, 2\].*\[\.\.\., K, D, r\]"),
    "no factor": (lambda: build(loadings=(3, 2, 0)), ShapeError, r"loadings has shape \[3, 2, 0\].*r ≥ 1.*GaussianMixture"),
    "too few scales": (lambda: build(log_scales=(3, 1)), ShapeError, r"log_scales has 1 dimensions.*means has 2"),
    "loadings transposed": (lambda: build(loadings=(3, 1, 2)), ShapeError, r"loadings has 1 dimensions.*one entry of loadings"),
    "too few components": (lambda: build(loadings=(2, 2, 1)), ShapeError, r"loadings has 2 components.*means has 3"),
    "batches that do not broadcast": (lambda: build((4, 3), (5, 3, 2)), ShapeError, r"logits, means, log_scales and loadings have shapes \[4, 3\], \[5, 3, 2\]"),
    "NaN loadings": (lambda: build(loadings=z(3, 2, 1) + NAN), NotFiniteError, r"loadings has 6 value.*index \[0, 0, 0\]"),
    "infinite scales": (lambda: build(log_scales=z(3, 2) + INF), NotFiniteError, r"log_scales has 6 value"),
    "no weight at all": (lambda: build(logits=z(3) - INF), NotFiniteError, r"logits is −inf for every component"),
    "a scale beyond the precision": (lambda: build(log_scales=z(3, 2) - 60), NotFiniteError, r"log_scales has a log scale of 60.*Standardise"),
    "a loading beyond the precision": (lambda: build(log_scales=z(3, 2) + 40, loadings=z(3, 2, 1) - 1e20), NotFiniteError, r"loadings has an entry of 1e\+20.*float64"),
    "a loading that hides its scale": (lambda: build(log_scales=z(3, 2) - 20, loadings=z(3, 2, 1) - 1e6), NotFiniteError, r"loadings has an entry 4\.9e\+14 times its scale.*floor"),
    "words": (lambda: build(loadings=["a"]), ArgumentError, r"loadings is list"),
    "too few names": (lambda: build(names=["a"]), DimensionError, r"names is \['a'\]"),
    "a full member": (lambda: LowRankMixture.ensemble([NAMED, NAMED.to_full()]), ArgumentError, r"members is .*at least one LowRankMixture, and nothing else"),
    "members of other names": (lambda: LowRankMixture.ensemble([PLAIN, NAMED]), DimensionError, r"reorder with marginal"),
    "value without the dimensions": (lambda: PLAIN.log_prob(z(4)), ShapeError, r"value has shape \[4\]"),
    "value of NaN": (lambda: PLAIN.log_prob(z(4, 2) + NAN), NotFiniteError, r"value has NaN"),
    "number of draws as shape": (lambda: PLAIN.sample(3), ShapeError, r"sample_shape is 3"),
    "unknown name": (lambda: NAMED.marginal(["height"]), DimensionError, r"dims has 'height'.*lat, lon"),
    "everything fixed": (lambda: PLAIN.condition({0: 1.0, 1: 1.0}), DimensionError, r"values fixes all 2"),
    "fixed to NaN": (lambda: NAMED.condition({"lat": NAN}), NotFiniteError, r"values\['lat'\]"),
    "a scale of zero": (lambda: PLAIN.affine([1.0, 0.0]), ArgumentError, r"matrix_or_scale has a zero"),
    "loc of another size": (lambda: PLAIN.affine(1.0, z(3)), ShapeError, r"loc has shape \[3\]"),
    "direction of zero": (lambda: PLAIN.project(z(2)), ArgumentError, r"direction is zero"),
    "cdf of two dimensions": (lambda: PLAIN.cdf(z(4, 2)), DimensionError, r"cdf needs exactly one"),
    "icdf of two dimensions": (lambda: PLAIN.icdf(0.5), DimensionError, r"icdf needs exactly one"),
    "interval of two dimensions": (lambda: PLAIN.interval(0.5), DimensionError, r"interval needs exactly one"),
    "crps of two dimensions": (lambda: PLAIN.crps(z(4, 2)), DimensionError, r"crps needs exactly one"),
    "one draw": (lambda: PLAIN.entropy(n_samples=1), ArgumentError, r"n_samples is 1"),
    "coverage of one": (lambda: PLAIN.hpd_threshold(1.0), ArgumentError, r"coverage is 1\.0"),
}
# fmt: on


@pytest.mark.parametrize("name", BAD)
def test_error_names_argument_and_fix(name):
    call, kind, words = BAD[name]
    with pytest.raises(kind, match=rf"(?s){words}") as caught:
        call()
    assert isinstance(caught.value, CondensError)
