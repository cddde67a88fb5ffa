"""The joint density of the targets behind scikit-learn's `fit`."""

from condens.estimator.regressor import MDNRegressor
from condens.estimator.scorers import Scorer, energy_scorer, log_likelihood_scorer

__all__ = ["MDNRegressor", "Scorer", "energy_scorer", "log_likelihood_scorer"]
