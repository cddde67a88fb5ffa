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
from condens.distribution import GaussianMixture
from condens.functional.estimates import Estimate
from condens.functional.modes import Modes
from condens.low_rank import LowRankMixture
from condens.transformed import TransformedMixture

__all__ = [
    "Estimate",
    "GaussianMixture",
    "LowRankMixture",
    "Modes",
    "TransformedMixture",
    "__version__",
    "errors",
    "functional",
]
