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

from typing import TYPE_CHECKING

from condens._version import __version__

__all__ = [
    "Estimate",
    "GaussianMixture",
    "LowRankMixture",
    "MDNRegressor",
    "Mixture",
    "Modes",
    "TransformedMixture",
    "__version__",
    "data",
    "distributions",
    "errors",
    "estimator",
    "evaluation",
    "functional",
    "inference",
    "integrations",
    "kernels",
    "load",
    "nn",
    "persistence",
    "plots",
    "training",
    "transforms",
    "tuning",
]

# Torch takes seconds to load, so a name is imported when it is first used (SPEC 1 of Scientific
# Python). Editors and mypy read the first branch; a test holds the two together.
if TYPE_CHECKING:
    from condens import (
        data,
        distributions,
        errors,
        estimator,
        evaluation,
        functional,
        inference,
        integrations,
        kernels,
        nn,
        persistence,
        plots,
        training,
        transforms,
        tuning,
    )
    from condens.distributions.base import Mixture
    from condens.distributions.gaussian import GaussianMixture
    from condens.distributions.low_rank import LowRankMixture
    from condens.distributions.transformed import TransformedMixture
    from condens.estimator.regressor import MDNRegressor
    from condens.functional.estimates import Estimate
    from condens.functional.modes import Modes
    from condens.loading import load
else:
    _MODULES = {
        "Estimate": "condens.functional.estimates",
        "GaussianMixture": "condens.distributions.gaussian",
        "LowRankMixture": "condens.distributions.low_rank",
        "MDNRegressor": "condens.estimator",
        "Mixture": "condens.distributions.base",
        "Modes": "condens.functional.modes",
        "TransformedMixture": "condens.distributions.transformed",
        "load": "condens.loading",
    }

    def __getattr__(name):
        """Import a public name when it is first used."""
        from importlib import import_module

        from condens.laziness import importing

        if name not in __all__:
            raise AttributeError(f"module 'condens' has no attribute {name!r}")
        with importing:
            if name in _MODULES:
                value = getattr(import_module(_MODULES[name]), name)
            else:
                value = import_module(f"condens.{name}")
        globals()[name] = value
        return value

    def __dir__():
        """Return the public names, imported or not."""
        return [*__all__]
