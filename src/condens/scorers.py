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
from numpy.typing import NDArray
from sklearn.utils.metadata_routing import MetadataRequest, get_routing_for_object
from torch import Generator

from condens.data import TargetColumns

Scores = Callable[[Any, Any, Any], NDArray[np.float64]]


class Scorer:
    """The weighted mean of a score of each row, called as scikit-learn calls its scorers.

    Args:
        name: what it is called.
        scores: returns the score of each row from a fitted model, X and y.
    """

    def __init__(self, name: str, scores: Scores) -> None:
        self.name, self.scores = name, scores
        self._request = MetadataRequest(owner=name)

    def __call__(
        self,
        estimator: Any,
        X: Any,  # noqa: N803
        y: Any,
        sample_weight: Any = None,
    ) -> float:
        """Return the mean score."""
        return float(np.average(self.scores(estimator, X, y), weights=sample_weight))

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


def _log_likelihoods(estimator: Any, X: Any, y: Any) -> NDArray[np.float64]:  # noqa: N803
    scores: NDArray[np.float64] = estimator.score_samples(X, y)
    return scores


def _energy_scores(estimator: Any, X: Any, y: Any) -> NDArray[np.float64]:  # noqa: N803
    density, target = estimator.predict_dist(X), TargetColumns.of(y, "y").values
    # The same draws in every fold: models are compared, not luck.
    estimate = density.energy_score(target, generator=Generator().manual_seed(0))
    scores: NDArray[np.float64] = -estimate.value.numpy()
    return scores


log_likelihood_scorer = Scorer("log_likelihood_scorer", _log_likelihoods)
"""The mean log density of y."""

energy_scorer = Scorer("energy_scorer", _energy_scores)
"""Minus the mean energy score (the CRPS where there is one target), in y's units."""
