"""Joint densities of the targets given a condition, as Gaussian mixtures.

>>> import torch
>>> from condens import GaussianMixture
>>> mixture = GaussianMixture(
...     logits=torch.zeros(2),
...     means=torch.tensor([[0.0, 0.0], [3.0, 3.0]]),
...     factors=torch.zeros(2, 3),
... )
>>> mixture.mean
tensor([1.5000, 1.5000])
"""

from typing import Any

from condens import errors, functional
from condens._version import __version__
from condens.distributions.gaussian import GaussianMixture
from condens.distributions.low_rank import LowRankMixture
from condens.distributions.transformed import TransformedMixture
from condens.functional.estimates import Estimate
from condens.functional.modes import Modes

__all__ = [
    "Estimate",
    "GaussianMixture",
    "LowRankMixture",
    "MDNRegressor",
    "Modes",
    "TransformedMixture",
    "__version__",
    "errors",
    "functional",
]


def __getattr__(name: str) -> Any:
    # Scikit-learn is imported by those who use it.
    if name == "MDNRegressor":
        try:
            from condens.estimator.regressor import MDNRegressor
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "sklearn":
                raise
            told = "MDNRegressor needs scikit-learn. Install it: pip install 'condens[sklearn]'."
            raise ImportError(told) from error
        return MDNRegressor
    raise AttributeError(f"module 'condens' has no attribute {name!r}")
