"""Ensembles: several networks that predict one mixture."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from condens.errors import ArgumentError
from condens.nn.base import DensityNetwork
from condens.nn.heads.base import Head, Parameters
from condens.nn.initialise import Start
from condens.nn.network import MixtureNetwork


class Ensemble(DensityNetwork):
    """The average density of M networks, as one mixture of all their components.

    Members are trained at once, each as it would be alone: see `condens.training.train`. They
    differ in their initial weights, in where their components start, in the order of their rows
    and in the rows that they are validated on. A `trim`, a `limit`, a `spread` and a `tail` are the
    ensemble's own: those of a member hold where it is used alone.

    Args:
        members: networks over the same targets.

    >>> members = [MixtureNetwork.of(3, 2, n_components=4) for _ in range(5)]
    >>> Ensemble(members)(torch.zeros(7, 3)).n_components
    20
    """

    def __init__(self, members: Iterable[MixtureNetwork]) -> None:
        members = list(members)
        if not members or any(m.dimensions != members[0].dimensions for m in members):
            raise ArgumentError(
                "members",
                got=f"have {[m.dimensions for m in members]} targets",
                expected="one network or more over the same targets was expected",
                fix="Pass at least one, and give all the same number of targets.",
            )
        first = members[0]
        for what in ("condition_codes", "transforms", "names", "unused"):
            found = [getattr(member, what) for member in members]
            if any(one != found[0] for one in found):
                raise ArgumentError(
                    "members",
                    got=f"have {what} {found}",
                    expected="the same were expected",
                    fix=f"Make all members with the same {what}.",
                )
        if any(member.form.join is not first.form.join for member in members):
            raise ArgumentError(
                "members",
                got=f"have covariances {[member.head.covariance for member in members]}",
                expected="their components do not fit into one mixture",
                fix="Make all members with the same covariance.",
            )
        super().__init__(
            first.dimensions,
            first.condition_columns,
            first.names,
            first.condition_codes,
            first.transforms,
            first.unused,
        )
        self.networks = nn.ModuleList(members)

    @property
    def members(self) -> Sequence[MixtureNetwork]:
        """The networks."""
        return [network for network in self.networks if isinstance(network, MixtureNetwork)]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first member."""
        return self.members[0].dtype

    @property
    def form(self) -> type[Head[Any]]:
        """The class of the first member's head."""
        return self.members[0].form

    @property
    def member_sizes(self) -> list[int]:
        """The number of components of each member."""
        return [member.head.n_components for member in self.members]

    def free_parameters(self, condition: Tensor) -> Parameters:
        """Return the parameters of all members' components."""
        parts = [member.free_parameters(condition) for member in self.members]
        log_weights = parts[0].means.new_full((len(parts),), -math.log(len(parts)))
        return self.form.join(parts, log_weights)

    def _free_nll(self, condition: Tensor, target: Tensor) -> Tensor:
        each = [member._free_nll(condition, target) for member in self.members]
        return math.log(len(each)) - torch.logsumexp(-torch.stack(each), 0)

    def components(self, logits: Tensor, start: Start) -> Parameters:
        """Return components [S] of the first member's form."""
        return self.members[0].components(logits, start)

    def drop_adjustment(self) -> None:
        """Drop `trim`, `limit`, `spread` and `tail`, and those of the members."""
        super().drop_adjustment()
        for member in self.members:
            member.drop_adjustment()

    def start(
        self,
        condition: Tensor,
        target: Tensor,
        generator: Generator,
        parts: Sequence[Tensor] | None = None,
    ) -> None:
        """Place the components of every member, each by its own draws and its own rows."""
        for number, member in enumerate(self.members):
            own = None if parts is None else [parts[number]]
            member.start(condition, target, generator, own)

    def _share_scaling(self) -> None:
        """Give every member the scales, so that it can be used alone."""
        for member in self.members:
            member.target_scaling.load_state_dict(self.target_scaling.state_dict())
            if self.condition_scaling is not None and member.condition_scaling is not None:
                member.condition_scaling.load_state_dict(self.condition_scaling.state_dict())
