"""Mixtures with diagonal plus low-rank covariances, as functions on plain tensors."""

from condens.functional.low_rank.mixture import (
    component_covariances,
    component_log_prob,
    covariance,
    entropy,
    log_prob,
    partial_log_prob,
    responsibilities,
    sample,
    variance,
)

__all__ = [
    "component_covariances",
    "component_log_prob",
    "covariance",
    "entropy",
    "log_prob",
    "partial_log_prob",
    "responsibilities",
    "sample",
    "variance",
]
