"""Mixtures in Pyro's models."""

import copy
from functools import cache
from typing import Any

from condens.distribution import GaussianMixture
from condens.errors import ArgumentError, message
from condens.low_rank import LowRankMixture
from condens.transformed import TransformedMixture


def for_pyro(mixture: Any) -> Any:
    """Return the same mixture as Pyro takes it: for `pyro.sample`, plates and guides.

    It shares the parameters, and is still what it was: all that a mixture answers it
    answers, and the mixtures it makes are Pyro's too.

    Args:
        mixture: a `GaussianMixture`, `LowRankMixture` or `TransformedMixture`.

    >>> import pyro  # doctest: +SKIP
    >>> with pyro.plate("rows", len(condition)):  # doctest: +SKIP
    ...     pyro.sample("y", for_pyro(network(condition)), obs=target)
    """
    if not isinstance(mixture, GaussianMixture | LowRankMixture | TransformedMixture):
        came, expected = f"is {type(mixture).__name__}", "a mixture of condens was expected"
        raise ArgumentError(message("mixture", came, expected, "Pass what a network returns."))
    made = copy.copy(mixture)
    made.__class__ = _pyro_class(type(mixture))
    return made


@cache
def _pyro_class(kind: type) -> type:
    """Return the class of mixtures that Pyro can call, mask and expand in plates."""
    try:
        from pyro.distributions.torch_distribution import TorchDistributionMixin
    except ModuleNotFoundError as error:
        raise ImportError("for_pyro needs Pyro. Install it: pip install pyro-ppl.") from error
    if issubclass(kind, TorchDistributionMixin):
        return kind
    return type(kind.__name__, (kind, TorchDistributionMixin), {"__module__": __name__})
