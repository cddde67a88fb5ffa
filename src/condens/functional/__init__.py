"""Gaussian mixtures as functions on plain tensors.

For any batch shape, dtype and device; differentiable. The order of arguments is target,
logits, means, factors, as far as a function takes them.
"""

from condens.functional.implicit import conditional_cdfs
from condens.functional.losses import nll, report_printed_form, uniform_bound, weighted_bound
from condens.functional.mixture import component_log_prob, log_prob, responsibilities
from condens.functional.partial import partial_log_prob
from condens.functional.sampling import rsample, sample
from condens.functional.scores import crps
from condens.functional.triangular import (
    bounded_scales,
    log_determinant,
    pack,
    packed_size,
    unpack,
    unwhiten,
    whiten,
)
from condens.functional.univariate import cdf, icdf

__all__ = [
    "bounded_scales",
    "cdf",
    "component_log_prob",
    "conditional_cdfs",
    "crps",
    "icdf",
    "log_determinant",
    "log_prob",
    "nll",
    "pack",
    "packed_size",
    "partial_log_prob",
    "report_printed_form",
    "responsibilities",
    "rsample",
    "sample",
    "uniform_bound",
    "unpack",
    "unwhiten",
    "weighted_bound",
    "whiten",
]
