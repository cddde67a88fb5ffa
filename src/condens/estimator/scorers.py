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
from numpy.typing import NDArray
from sklearn.utils.metadata_routing import MetadataRequest, get_routing_for_object
from torch import Generator

from condens.data import Rows

Scores = Callable[[Any, Any, Any], NDArray[np.float64]]

# Rows scored at a time, each by thousands of draws.
BLOCK = 500


class Scorer:
    """The weighted mean of a score of each row, called as scikit-learn calls its scorers.

    The model may be the last step of a pipeline, or what a search has found.

    Args:
        name: what it is called.
        scores: returns the score of each row from a fitted model, X and y, of the observed
            entries where some are NaN; NaN where all are, and the row is left out.
    """

    def __init__(self, name: str, scores: Scores) -> None:
        self.name, self.scores = name, scores
        self._request = MetadataRequest(owner=name)
        self._request.score.add_request(param="sample_weight", alias=None)

    def __call__(
        self,
        estimator: Any,
        X: Any,  # noqa: N803
        y: Any,
        sample_weight: Any = None,
    ) -> float:
        """Return the mean score of rows X, [n, F], and y, [n] or [n, D]."""
        scores = self.scores(*_innermost(estimator, X), y)
        place = np.arange(len(scores))
        # Nothing was observed where a score is NaN.
        told = np.where(np.isnan(scores), np.nan, place)
        rows = Rows.of(place, told, sample_weight, names=("X", "y", "sample_weight")).observed("y")
        # Rows of weight zero are left out: nothing times minus infinity is NaN.
        counted = scores[rows.condition[:, 0].numpy()]
        return float(np.average(counted, weights=rows.shares))

    def set_score_request(self, *, sample_weight: bool | str | None) -> Self:
        """Return a scorer that asks for weights, where metadata routing is enabled."""
        asking = type(self)(self.name, self.scores)
        asking._request.score.add_request(param="sample_weight", alias=sample_weight)
        return asking

    def get_metadata_routing(self) -> Any:
        """Return what the scorer asks for."""
        return get_routing_for_object(self._request)

    def __repr__(self) -> str:
        return self.name


def _innermost(estimator: Any, X: Any) -> tuple[Any, Any]:  # noqa: N803
    """Return the model in searches and pipelines, and X as it reaches it."""
    while True:
        if hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        elif hasattr(estimator, "steps"):
            if len(estimator.steps) > 1:
                X = estimator[:-1].transform(X)  # noqa: N806
            estimator = estimator[-1]
        else:
            return estimator, X


def _log_likelihoods(estimator: Any, X: Any, y: Any) -> NDArray[np.float64]:  # noqa: N803
    target = estimator._rows(X, y, None, reset=False).target
    scores: NDArray[np.float64] = estimator.score_samples(X, y)
    return np.where(target.isnan().all(1).numpy(), np.nan, scores)


def _energy_scores(estimator: Any, X: Any, y: Any) -> NDArray[np.float64]:  # noqa: N803
    condition, target, _ = estimator._rows(X, y, None, reset=False)
    # The same draws in every fold: models are compared, not luck.
    generator = Generator().manual_seed(0)
    scores = torch.full((len(target),), torch.nan, dtype=torch.float64)
    patterns, pattern = (~target.isnan()).unique(dim=0, return_inverse=True)
    for number, seen in enumerate(patterns):
        dims = seen.nonzero().flatten().tolist()
        for rows in (pattern == number).nonzero().flatten().split(BLOCK) if dims else ():
            density = estimator._densities(condition[rows]).marginal(dims)
            found = density.energy_score(target[rows][:, dims], generator=generator)
            scores[rows] = -found.value
    return scores.numpy()


log_likelihood_scorer = Scorer("log_likelihood_scorer", _log_likelihoods)
"""The mean log density of y."""

energy_scorer = Scorer("energy_scorer", _energy_scores)
"""Minus the mean energy score (the CRPS where there is one target), in y's units.

Of a row's observed targets, where some are missing.
"""
