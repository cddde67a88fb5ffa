"""Several networks that predict one mixture."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from condens.errors import ArgumentError, message
from condens.kernels.passes import weighted_sum
from condens.nn.density import DensityNetwork
from condens.nn.head import Mixture
from condens.nn.network import MixtureNetwork


class Ensemble(DensityNetwork):
    """The average density of M networks, as one mixture of all their components.

    Trained together, each member by its own loss: one optimiser step serves all, and the
    validation loss is that of the average. Members differ by their first weights and by where
    their components start.

    Args:
        members: networks over the same targets.

    >>> members = [MixtureNetwork.of(3, 2, components=4) for _ in range(5)]
    >>> Ensemble(members)(torch.zeros(7, 3)).components
    20
    """

    def __init__(self, members: Iterable[MixtureNetwork]) -> None:
        members = list(members)
        if not members or any(m.dimensions != members[0].dimensions for m in members):
            came = f"have {[m.dimensions for m in members]} targets"
            expected = "one network or more over the same targets was expected"
            raise ArgumentError(message("members", came, expected, "Make them alike."))
        first = members[0]
        for what in ("condition_codes", "maps", "names"):
            found = [getattr(member, what) for member in members]
            if any(one != found[0] for one in found):
                came, expected = f"have {what} {found}", "the same were expected"
                raise ArgumentError(message("members", came, expected, "Make them alike."))
        scaling = first.condition_scaling
        columns = None if scaling is None else len(scaling.location)
        super().__init__(first.dimensions, columns, first.names, first.condition_codes, first.maps)
        self.networks = nn.ModuleList(members)

    @property
    def members(self) -> Sequence[MixtureNetwork]:
        """The networks."""
        return [network for network in self.networks if isinstance(network, MixtureNetwork)]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first member."""
        return self.members[0].dtype

    def mixture_of(self, condition: Tensor) -> Mixture:
        """Return the mixture of all members' components."""
        parts: list[Any] = [member.mixture_of(condition) for member in self.members]
        made: Mixture = type(parts[0]).ensemble(parts)
        return made

    def row_loss(self, condition: Tensor, target: Tensor) -> Tensor:
        """Return the negative log-likelihood of each standardised row."""
        each = torch.stack([member.row_loss(condition, target) for member in self.members])
        return math.log(len(each)) - torch.logsumexp(-each, 0)

    def loss(self, condition: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the negative log-likelihood of the average density."""
        return weighted_sum(self.row_loss(condition, target), weights)

    def start(self, target: Tensor, generator: Generator) -> None:
        """Place every member's components, each from other seeds."""
        for member in self.members:
            member.start(target, generator)
            member.target_scaling.load_state_dict(self.target_scaling.state_dict())
            if self.condition_scaling is not None and member.condition_scaling is not None:
                member.condition_scaling.load_state_dict(self.condition_scaling.state_dict())
