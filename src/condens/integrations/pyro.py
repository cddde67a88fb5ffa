"""Mixtures in Pyro's models."""

from functools import cache
from typing import Any, TypeVar

import torch

from condens.distributions.base import Mixture
from condens.errors import ArgumentError
from condens.functional import shapes

MixtureT = TypeVar("MixtureT", bound=Mixture)


def for_pyro(mixture: MixtureT) -> MixtureT:
    """Return the same mixture as Pyro takes it: for `pyro.sample`, plates and guides.

    It shares the parameters, and is still what it was: all that a mixture answers it
    answers, and the mixtures it makes are Pyro's too.

    Args:
        mixture: a `GaussianMixture`, `LowRankMixture` or `TransformedMixture`.

    >>> import pyro  # doctest: +SKIP
    >>> with pyro.plate("rows", len(condition)):  # doctest: +SKIP
    ...     pyro.sample("y", for_pyro(network(condition)), obs=target)
    """
    if not isinstance(mixture, Mixture):
        raise ArgumentError(
            "mixture",
            got=f"is {type(mixture).__name__}",
            expected="a mixture of condens was expected",
            fix="Pass what a network returns.",
        )
    return _as(_pyro_class(type(mixture)), mixture)


def _as(kind: Any, mixture: Any) -> Any:
    """Return the same mixture as an object of another class, which shares the parameters."""
    made = kind.__new__(kind)
    vars(made).update(vars(mixture))
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

    def reduce(mixture: Any) -> tuple[Any, ...]:
        # Pickle does not find a class that is made here: it rebuilds the mixture by for_pyro.
        return for_pyro, (_as(kind, mixture),)

    return type(
        kind.__name__,
        (kind, TorchDistributionMixin),
        {
            "__module__": __name__,
            "__reduce__": reduce,
            "infer_shapes": classmethod(_infer_shapes),
        },
    )


def _infer_shapes(kind: Any, /, **arg_shapes: Any) -> tuple[torch.Size, torch.Size]:
    """Return the batch and the event shape that parameters of these shapes give.

    Those of a `TransformedMixture` are the parameters of its mixture.
    """
    axes = kind._axes
    if set(arg_shapes) != set(axes):
        raise ArgumentError(
            "arg_shapes",
            got=f"names {sorted(arg_shapes)}",
            expected=f"the parameters are {list(axes)}",
            fix="Pass the shape of each.",
        )
    tensors = {name: torch.empty(shape, device="meta") for name, shape in arg_shapes.items()}
    shapes.check_sizes(tensors, axes)
    return shapes.check_batch(tensors, axes), tensors["means"].shape[-1:]
