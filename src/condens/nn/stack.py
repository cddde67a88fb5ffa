"""Alike networks as one: batched matrix products in place of a loop over members.

A step of a small network is calls and bookkeeping more than arithmetic; several members that take
it together pay for that once.
"""

import copy
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from condens.functional.fused import loss
from condens.functional.fused_linear import Layout, stacked_linear_loss
from condens.nn.backbones import ACTIVATIONS, MLP, Block, TableMLP
from condens.nn.base import DensityNetwork
from condens.nn.embeddings import PiecewiseLinear
from condens.nn.heads import HEADS
from condens.nn.heads.base import Head, Parameters
from condens.nn.heads.triangular import TriangularHead
from condens.nn.network import MixtureNetwork
from condens.nn.randomness import Dropout

# Modules that compute the same with a further axis in front. Those without parameters are taken
# from the first member, and may keep buffers that are equal in all; those with parameters read
# them from an axis in front too.
STACKABLE: set[type[nn.Module]] = {
    *(MLP, TableMLP, Block, PiecewiseLinear, Dropout),
    *(nn.Sequential, nn.ParameterList, nn.Linear, nn.LayerNorm),
    *(type(make()) for make in ACTIVATIONS.values()),
    *HEADS.values(),
}


class _Linear(nn.Module):
    """M linear layers. Shapes: [M, b, F] → [M, b, P]."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, features: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, features, self.weight)


class _LayerNorm(nn.Module):
    """M layer norms over the last axis."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = weight, bias, eps

    def forward(self, features: Tensor) -> Tensor:
        normal = nn.functional.layer_norm(features, features.shape[-1:], eps=self.eps)
        return torch.addcmul(self.bias, normal, self.weight)


class Stack:
    """The networks of an ensemble, computed at once; made by `Stack.of`.

    Every parameter has an axis for the member in front: matrices of linear layers as [M, F, P],
    vectors as [M, 1, F]. Until `release`, the members' own parameters are views of these.

    >>> members = [MixtureNetwork.of(3, 2, n_components=4) for _ in range(5)]
    >>> stack = Stack.of(members)
    >>> stack.features(torch.zeros(5, 7, 3)).shape
    torch.Size([5, 7, 128])
    """

    def __init__(self, members: Sequence[MixtureNetwork]) -> None:
        self.members = members
        # A stacked parameter, those of the members, and whether these are its transpose.
        self._held: list[tuple[nn.Parameter, list[Tensor], bool]] = []
        self._views: dict[tuple[int, int], list[Tensor]] = {}
        self.backbone = self._join([member.backbone for member in members])
        self.head: Head[Any] = self._join([member.head for member in members])  # type: ignore[assignment]
        self.attach()

    @classmethod
    def of(cls, members: Sequence[DensityNetwork]) -> Self | None:
        """Return the stack of two networks or more; None where they differ by more than weights."""
        networks = [member for member in members if type(member) is MixtureNetwork]
        if len(networks) < max(2, len(members)) or not _alike(networks):
            return None
        return cls(networks)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The stacked parameters."""
        return [leaf for leaf, *_ in self._held]

    @property
    def matrices(self) -> list[nn.Parameter]:
        """Those of them that are matrices in each member."""
        return [leaf for leaf, owners, _ in self._held if owners[0].dim() > 1]

    def features(self, condition: Tensor) -> Tensor:
        """Return the backbones' features. Shapes: [M, b, C] → [M, b, F]."""
        features: Tensor = self.backbone(condition)
        return features.to(self.members[0].dtype)

    def loss(
        self, features: Tensor, target: Tensor, weights: Tensor | None, *, complete: bool
    ) -> Tensor:
        """Return the sum of the members' losses, as `Head.loss` computes each.

        Shapes: target [M, b, D], weights [M, b] → [].
        """
        head, gaps = self.head, not complete and bool(target.isnan().any())
        if isinstance(head, TriangularHead) and head.packed:
            layer, outputs = head.linear, head._scale_outputs // head.n_components
            return stacked_linear_loss(
                features,
                layer.weight,
                layer.bias,
                target,
                Layout(head.n_components, head.dimensions, outputs),
                weights,
                floor=head.floor,
                ceiling=head.ceiling,
                gaps=gaps,
            )
        parameters = head.parameters_of(features)
        if weights is None:
            weights = target.new_full((), 1 / target.shape[1]).expand(target.shape[:2])
        if isinstance(head, TriangularHead) and not gaps:
            logits, means, factors = parameters
            return loss(target, logits, means, factors, weights)
        each = head.nll_of(parameters, target)
        return torch.where(weights == 0, 0.0, weights * each).sum()

    def free_parameters(self, condition: Tensor) -> Parameters:
        """Return the parameters [M, b, K, …] for standardised conditions [M, b, C]."""
        found: Parameters = self.head.parameters_of(self.features(condition))
        return found

    def attach(self) -> None:
        """Let the members' parameters be views of the stacked ones, wherever these are now."""
        for number, (leaf, owners, turned) in enumerate(self._held):
            key = number, leaf.data_ptr()
            if key not in self._views:
                self._views[key] = _slices(leaf.detach(), owners, turned)
            for parameter, view in zip(owners, self._views[key], strict=True):
                parameter.data = view

    def keep(self, places: Sequence[int]) -> None:
        """Go on with some of the members; the parameters of the others get memory of their own."""
        self.members = [self.members[place] for place in places]
        self._views.clear()
        for number, (leaf, owners, turned) in enumerate(self._held):
            kept = [owners[place] for place in places]
            for parameter in owners:
                if all(parameter is not one for one in kept):
                    parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
            leaf.grad = None
            leaf.data = leaf.data[list(places)]
            self._held[number] = leaf, kept, turned
        self.attach()

    def show_gradients(self) -> None:
        """Give the members' parameters their gradients."""
        for leaf, owners, turned in self._held:
            if leaf.grad is not None:
                gradients = _slices(leaf.grad, owners, turned)
                for parameter, gradient in zip(owners, gradients, strict=True):
                    parameter.grad = gradient

    def release(self) -> None:
        """Give the members' parameters memory of their own."""
        for _, owners, _ in self._held:
            for parameter in owners:
                parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)

    def _join(self, modules: Sequence[nn.Module]) -> nn.Module:
        """Return a module that computes all of them."""
        first = modules[0]
        if next(first.parameters(), None) is None:
            return first
        if isinstance(first, nn.Linear | nn.LayerNorm):
            turned = isinstance(first, nn.Linear)
            weight = self._leaf([module.weight for module in modules], turned=turned)
            bias = self._leaf([module.bias for module in modules])
            if isinstance(first, nn.LayerNorm):
                return _LayerNorm(weight, bias, first.eps)
            return _Linear(weight, bias)
        made = copy.copy(first)
        made._parameters = {
            name: self._leaf([module._parameters[name] for module in modules])
            for name in first._parameters
        }
        made._modules = {
            name: self._join([module.get_submodule(name) for module in modules])
            for name in first._modules
        }
        return made

    def _leaf(self, parameters: Sequence[Any], *, turned: bool = False) -> nn.Parameter:
        stacked = torch.stack([parameter.detach() for parameter in parameters])
        stacked = stacked.unsqueeze(1) if stacked.dim() == 2 else stacked
        leaf = nn.Parameter(
            stacked.transpose(1, 2).contiguous() if turned else stacked,
            requires_grad=parameters[0].requires_grad,
        )
        self._held.append((leaf, list(parameters), turned))
        return leaf


def _slices(stacked: Tensor, owners: Sequence[Tensor], turned: bool) -> list[Tensor]:
    """Return what belongs to each member, in the shape it has there."""
    pairs = zip(stacked, owners, strict=True)
    return [part.T if turned else part.view(owner.shape) for part, owner in pairs]


def _alike(members: Sequence[MixtureNetwork]) -> bool:
    """Tell whether networks are made of known modules and differ in their weights alone."""
    parameters = [list(member.parameters()) for member in members]
    if len({id(p) for own in parameters for p in own}) < sum(map(len, parameters)):
        return False  # some share weights
    forms = [_form(member) for member in members]
    return None not in forms and all(form == forms[0] for form in forms)


def _form(member: MixtureNetwork) -> list[Any] | None:
    """Return all that makes a network beside its weights; None where something is unknown."""
    parts: list[Any] = [member.head.to_dict()]
    for part in (member.backbone, member.head):
        for name, module in part.named_modules():
            own = vars(module)
            hooks = any(own.get(kind) for kind in own if kind.endswith("_hooks"))
            if type(module) not in STACKABLE or hooks or "forward" in own:
                return None
            if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is None:
                return None
            parts.append((name, type(module), module.extra_repr()))
        parts += [
            (name, p.shape, p.dtype, p.device, p.requires_grad)
            for name, p in part.named_parameters()
        ]
        parts += [(name, buffer.tolist()) for name, buffer in part.named_buffers()]
    return parts
