"""The networks of a run, each with its own loss: the members of an ensemble, or one network."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_

from condens.data import Rows
from condens.errors import ArgumentError
from condens.kernels import native
from condens.kernels.choice import choose
from condens.kernels.networks import MAX_TENSORS
from condens.nn import DensityNetwork, Ensemble
from condens.nn.randomness import RowDraws
from condens.nn.stack import Stack
from condens.training.batches import Batches
from condens.training.diagnostics import (
    ROWS_DIAGNOSED,
    Diagnosis,
    combine,
    diagnose,
    diagnose_mixtures,
)
from condens.training.distributed import Group
from condens.training.objective import objective
from condens.training.settings import Settings

ROWS_VALIDATED_AT_A_TIME = 4096


class Members:
    """The networks of a run: computed at once where they are alike, one by one otherwise.

    Args:
        network: an `Ensemble`, whose members these are, or any other network, the only one.
        settings: with a bound or an entropy, members are computed one by one.
        small: steps are, so that a network alone gains from the native kernel too.
    """

    def __init__(self, network: DensityNetwork, settings: Settings, *, small: bool = False) -> None:
        self.network = network
        self.networks: list[DensityNetwork] = [network]
        self.prefixes = [""]
        if isinstance(network, Ensemble):
            self.networks = list(network.members)
            # By which the names of a member's state begin in the ensemble's.
            self.prefixes = [f"networks.{m}." for m in range(len(self.networks))]
        self.settings, self.scaling = settings, network.condition_scaling
        # The numbers of those that are computed: see `keep`.
        self.learning = list(range(len(self.networks)))
        plain = settings.bound is None and not settings.entropy
        self.stack = Stack.of(self.networks, alone=small) if plain else None
        every = list(network.parameters()) if self.stack is None else self.stack.parameters
        self.parameters: list[Tensor] = [p for p in every if p.requires_grad]
        # Known ones, in which nothing but a flag depends on the mode: faster than module by module.
        self._modules = [] if self.stack is None else list(network.modules())
        self._own = [[p for p in one.parameters() if p.requires_grad] for one in self.networks]
        # What weight decay shrinks: a bias places a component, and has no reason to be small.
        matrices = every if self.stack is None else self.stack.matrices
        self.matrices: list[Tensor] = [p for p in matrices if p.requires_grad and p.dim() > 1]

    def __len__(self) -> int:
        return len(self.networks)

    @property
    def native(self) -> bool:
        """Whether the native kernel takes the optimiser's steps."""
        kinds, count = {(p.dtype, p.device) for p in self.parameters}, len(self.parameters)
        known = self.stack is not None and len(kinds) == 1 and count <= MAX_TENSORS
        return known and choose(self.parameters[0]) is native

    def train(self, mode: bool = True) -> None:
        """Put the network into training mode, or into that of evaluation."""
        if self.stack is None:
            self.network.train(mode)
        for module in self._modules:
            vars(module)["training"] = mode

    def keep(self, learning: Sequence[int]) -> None:
        """Compute only these members of a stack from now on, in this order."""
        assert self.stack is not None  # others are not told apart
        self.stack.keep([self.learning.index(member) for member in learning])
        self.learning = list(learning)

    def release(self) -> None:
        """Give the networks' parameters memory of their own again, and turn to all of them."""
        if self.stack is not None:
            self.stack.release()
        if len(self.learning) < len(self):
            self.stack, self.learning = None, list(range(len(self)))

    def backward(
        self, epoch: int, batch: Rows, draws: RowDraws, *, complete: bool, part: float = 1.0
    ) -> float:
        """Add the gradient of part · the sum of the objectives of those that learn; return it.

        Each has its own rows of the batch [M, b, …].
        """
        if self.stack is not None:
            draws.choose(None)
            autocast = self.settings.autocast
            return self.stack.backward(*batch, complete=complete, autocast=autocast, part=part)
        losses = []
        for member, (network, own) in enumerate(zip(self.networks, _apart(batch), strict=True)):
            draws.choose(member)
            losses.append(objective(network, self.settings, epoch, own, complete=complete))
        loss = part * (losses[0] if len(losses) == 1 else torch.stack(losses).sum())
        if not loss.requires_grad:
            raise ArgumentError(
                "network",
                got="has a loss without a gradient",
                expected="training follows it",
                fix="Let a parameter that the loss depends on require a gradient.",
            )
        loss.backward()
        return loss.item()

    def gradient_lengths(self) -> Tensor:
        """Return the norm of the gradient of each that learns [M]."""
        if self.stack is None:
            return torch.stack([_length(own) for own in self._own])
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        parts = [torch.linalg.vector_norm(gradient, dim=(1, 2)) for gradient in gradients]
        return torch.linalg.vector_norm(torch.stack(parts), dim=0)

    def clip(self, lengths: Tensor) -> None:
        """Shorten each member's gradient, of these lengths, to the clip of the settings."""
        limit = self.settings.clip
        if self.stack is None:
            for own, length in zip(self._own, lengths, strict=True):
                clip_grads_with_norm_(own, limit, length)
            return
        factors = (limit / (lengths + 1e-6)).clamp(max=1.0)  # as clip_grads_with_norm_
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factors.view(-1, 1, 1))

    @torch.no_grad()
    def validate(self, rows: Batches, group: Group) -> list[float]:
        """Return the mean loss of each that learns on its rows, in original units."""
        device = self.parameters[0].device
        total = torch.zeros(len(self.learning), dtype=torch.float64, device=device)
        if self.stack is None:
            for member, network in enumerate(self.networks):
                total[member] = _mean_loss(network, rows, member, group)
        else:
            size = -(-ROWS_VALIDATED_AT_A_TIME // len(self.learning))
            for condition, target, weights in rows.aligned(size, group):
                assert weights is not None  # `aligned` always has some
                each = self._nll(self.stack, condition, target).double()
                total = total + torch.where(weights == 0, 0.0, weights * each).sum(1)
        found = group.sum(total).tolist()
        return [offset + loss for offset, loss in zip(rows.offsets, found, strict=True)]

    def _nll(self, stack: Stack, condition: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each row. Shapes: [M, b, C], [M, b, D] → [M, b]."""
        if self.scaling is None or self.scaling.holds(condition):
            return stack.nll(condition, target)
        members = zip(stack.members, condition, target, strict=True)
        return torch.stack([network.standard_nll(x, y) for network, x, y in members])

    @torch.no_grad()
    def diagnose(self, rows: Batches) -> Diagnosis:
        """Return the mean diagnosis of those that learn, each on some of its complete rows."""
        gaps = rows.rows.target.isnan().any(1)
        parts = [part if rows.complete else part[~gaps[part]] for part in rows.parts]
        # From all over the rows, which may be in order.
        parts = [part[:: -(-len(part) // ROWS_DIAGNOSED) or 1] for part in parts]
        if self.stack is not None and 0 < min(map(len, parts)) == max(map(len, parts)):
            condition, target, _ = rows.rows.take(torch.stack(parts))
            if self.scaling is None or self.scaling.holds(condition):
                parameters = self.stack.free_parameters(condition)
                return diagnose_mixtures(self.stack.head.mixture(parameters), target)
        each = [rows.rows.take(part) for part in parts]
        pairs = zip((self.networks[member] for member in self.learning), each, strict=True)
        return combine([diagnose(network, *part[:2]) for network, part in pairs])


def _mean_loss(network: DensityNetwork, rows: Batches, member: int, group: Group) -> float:
    """Return this process's part of the mean loss."""
    batches = rows.in_order(ROWS_VALIDATED_AT_A_TIME, member, group)
    total = sum(float(network.standard_loss(*batch)) * len(batch) for batch in batches)
    return total / len(rows.parts[member])


def _length(parameters: Iterable[Tensor]) -> Tensor:
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:  # of a member that is frozen
        return torch.zeros(())
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))


def _apart(batch: Rows) -> list[Rows]:
    """Return the batch of each member."""
    condition, target, weights = batch
    each = [None] * len(target) if weights is None else weights
    return [Rows(*part) for part in zip(condition, target, each, strict=True)]
