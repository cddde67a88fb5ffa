"""Scores of whole densities, for scikit-learn's model selection; higher is better.

>>> from sklearn.model_selection import GridSearchCV
>>> from condens import MDNRegressor
>>> search = GridSearchCV(
...     MDNRegressor(), {"n_components": [2, 5, 10]}, scoring=log_likelihood_scorer
... )
"""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.metadata_routing import MetadataRequest, get_routing_for_object
from torch import Tensor

from condens.data import Rows, TableLike
from condens.estimator.predictions import Predictions
from condens.evaluation.models import unwrapped
from condens.nn import DensityNetwork
from condens.nn.randomness import seeded_generator

# Rows scored at a time by the energy score, each with thousands of draws.
ROWS_PER_BLOCK = 500


class Scorer:
    """The weighted mean of a score of each row, called as scikit-learn calls its scorers.

    The model is an `MDNRegressor`, alone, as the last step of a pipeline, or in a search.

    Args:
        name: of the scorer.
        scores: returns the scores [n] of the observed entries of rows, from a network and rows.
            Rows without any observed target are left out.
    """

    def __init__(self, name: str, scores: Callable[[DensityNetwork, Rows], Tensor]) -> None:
        self.name, self.scores = name, scores
        self._request = MetadataRequest(owner=name)
        self._request.score.add_request(param="sample_weight", alias=None)

    def __call__(
        self,
        estimator: BaseEstimator,
        X: TableLike,  # noqa: N803
        y: TableLike,
        sample_weight: ArrayLike | None = None,
    ) -> float:
        """Return the mean score of rows X, [n, F], and y, [n] or [n, D]."""
        model, X = unwrapped(estimator, X)  # noqa: N806
        # Rows of weight zero are left out: 0 · (−inf) is NaN.
        rows = model.read_rows(X, y, sample_weight).observed("y")
        scores = self.scores(model.network_, rows)
        return float(np.average(scores.numpy(), weights=rows.normalised_weights))

    def set_score_request(self, *, sample_weight: bool | str | None) -> Self:
        """Return a scorer that requests weights, where metadata routing is enabled."""
        asking = type(self)(self.name, self.scores)
        asking._request.score.add_request(param="sample_weight", alias=sample_weight)
        return asking

    def get_metadata_routing(self) -> Any:
        """Return the metadata that the scorer requests."""
        return get_routing_for_object(self._request)

    def __repr__(self) -> str:
        return self.name


def _log_likelihoods(network: DensityNetwork, rows: Rows) -> Tensor:
    return torch.from_numpy(Predictions(network, rows.condition, flat=False).log_prob(rows.target))


@torch.no_grad()
def _energy_scores(network: DensityNetwork, rows: Rows) -> Tensor:
    # The same draws in every fold: models are compared, not luck.
    generator = seeded_generator(0)
    condition, target, _ = rows
    scores = torch.empty(len(target), dtype=torch.float64)
    patterns, pattern = (~target.isnan()).unique(dim=0, return_inverse=True)
    for number, seen in enumerate(patterns):
        dims = seen.nonzero().flatten().tolist()
        for some in (pattern == number).nonzero().flatten().split(ROWS_PER_BLOCK):
            density = network(condition[some], tail=False).marginal(dims)
            scores[some] = -density.energy_score(target[some][:, dims], generator=generator).value
    return scores


log_likelihood_scorer = Scorer("log_likelihood_scorer", _log_likelihoods)
"""The mean log density of y, the tail included."""

energy_scorer = Scorer("energy_scorer", _energy_scores)
"""Minus the mean energy score (the CRPS where there is one target), in the units of y.

Of a row's observed targets, where some are missing, and of the density without its tail.
"""
