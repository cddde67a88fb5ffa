"""Gaussian mixtures as objects: one abstract class and three kinds of it."""

from condens.distributions.base import Mixture
from condens.distributions.entropies import Entropies
from condens.distributions.gaussian import GaussianMixture
from condens.distributions.low_rank import LowRankMixture
from condens.distributions.transformed import TransformedMixture

__all__ = ["Entropies", "GaussianMixture", "LowRankMixture", "Mixture", "TransformedMixture"]
