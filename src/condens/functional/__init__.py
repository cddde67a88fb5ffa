"""Gaussian mixtures as functions on plain tensors.

For any batch shape, dtype and device; differentiable. The order of arguments is target,
logits, means, factors, as far as a function takes them.
"""

from condens.functional import implicit, losses, mixture, scores, triangular, univariate
from condens.functional.fused import loss, nll
from condens.functional.fused_linear import linear_loss
from condens.functional.missing import partial_log_prob
from condens.functional.sampling import rsample, sample
from condens.functional.shapes import checked, checked_factors

# Functions that reach C check their arguments themselves. The others are checked here, because
# the methods of a mixture call them with tensors that have been checked.
cdf = checked(univariate.cdf, dimensions=1)
component_log_prob = checked(mixture.component_log_prob)
conditional_cdfs = checked(implicit.conditional_cdfs)
crps = checked(scores.crps, dimensions=1)
icdf = checked(univariate.icdf, dimensions=1)
log_prob = checked(mixture.log_prob)
report_printed_form = checked(losses.report_printed_form)
responsibilities = checked(mixture.responsibilities)
uniform_bound = checked(losses.uniform_bound)
weighted_bound = checked(losses.weighted_bound)
bounded_scales = checked_factors(triangular.bounded_scales)
log_determinant = checked_factors(triangular.log_determinant)
pack = checked_factors(triangular.pack)
packed_size = checked_factors(triangular.packed_size)
unpack = checked_factors(triangular.unpack)
unwhiten = checked_factors(triangular.unwhiten)
whiten = checked_factors(triangular.whiten)

__all__ = [
    "bounded_scales",
    "cdf",
    "component_log_prob",
    "conditional_cdfs",
    "crps",
    "icdf",
    "linear_loss",
    "log_determinant",
    "log_prob",
    "loss",
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
