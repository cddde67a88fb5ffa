"""Alike networks as one: batched matrix products in place of a loop over members.

A step of a small network is calls and bookkeeping more than arithmetic; several members that take
it together pay for that once, and the native kernel takes many steps in a call.
"""

import copy
from collections.abc import Sequence
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from condens.functional.fused import loss
from condens.functional.fused_linear import Layout, stacked_linear_loss
from condens.kernels import native, networks
from condens.kernels.choice import choose
from condens.kernels.native import HALVES
from condens.nn.backbones import ACTIVATIONS, MLP, Block, TableMLP
from condens.nn.base import DensityNetwork
from condens.nn.embeddings import PiecewiseLinear
from condens.nn.heads import HEADS
from condens.nn.heads.base import Head, Parameters
from condens.nn.heads.triangular import TriangularHead
from condens.nn.network import MixtureNetwork
from condens.nn.randomness import Dropout, RowDraws

# Modules that compute the same with a further axis in front. Those without parameters are taken
# from the first member, and may keep buffers that are equal in all; those with parameters read
# them from an axis in front too.
STACKABLE: set[type[nn.Module]] = {
    *(MLP, TableMLP, Block, PiecewiseLinear, Dropout),
    *(nn.Sequential, nn.ParameterList, nn.Linear, nn.LayerNorm),
    *(type(make()) for make in ACTIVATIONS.values()),
    *HEADS.values(),
}


# Of networks that the native kernel computes at once. Beyond these sizes products of matrices are
# all that takes time, and torch's are as fast.
MAX_WIDTH, MAX_OUTPUTS, MAX_DEPTH = 512, 4096, 32


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
        self._fused = _Fused.of(self.backbone, self.head)
        self._steps: networks.Steps | None = None
        self.attach()

    @classmethod
    def of(cls, members: Sequence[DensityNetwork], *, alone: bool = False) -> Self | None:
        """Return the stack of two networks or more; None where they differ by more than weights.

        A network `alone` has one if the native kernel computes it at once.
        """
        known = [member for member in members if type(member) is MixtureNetwork]
        if len(known) < max(1 if alone else 2, len(members)) or not _alike(known):
            return None
        made = cls(known)
        if len(known) == 1 and made._fused is None:
            made.release()
            return None
        return made

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
        self,
        condition: Tensor,
        target: Tensor,
        weights: Tensor | None,
        *,
        complete: bool,
        autocast: bool = False,
    ) -> Tensor:
        """Return the sum of the members' losses, as `Head.loss` computes each.

        Args:
            condition: standardised [M, b, C].
            target: standardised [M, b, D].
            weights: [M, b]; one over b where None.
            complete: no target is missing.
            autocast: run the backbones in bfloat16.
        """
        head, gaps = self.head, not complete and bool(target.isnan().any())
        with torch.autocast(condition.device.type, torch.bfloat16, enabled=autocast):
            features = self.features(condition)
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

    def backward(
        self,
        condition: Tensor,
        target: Tensor,
        weights: Tensor | None,
        *,
        complete: bool,
        autocast: bool = False,
        part: float = 1.0,
    ) -> float:
        """Add the gradient of part · `loss` to those of the parameters; return part · `loss`."""
        fused = self._fused
        if fused is not None and complete and not autocast and fused.serves(condition, target):
            return fused.backward(condition, target, weights, part)
        total = part * self.loss(condition, target, weights, complete=complete, autocast=autocast)
        total.backward()
        return total.item()

    @torch.no_grad()
    def nll(self, condition: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each row, without gradients. Shapes: [M, b, C], [M, b, D] → [M, b]."""
        fused = self._fused
        known = fused is not None and fused.serves(condition, target)
        if fused is not None and known and not bool(target.isnan().any()):
            return fused.nll(condition, target)
        return self.head.nll_of(self.free_parameters(condition), target)

    def steps(
        self, adamw: networks.AdamW, condition: Tensor, target: Tensor, draws: RowDraws
    ) -> tuple[networks.Steps, list[int | None]] | None:
        """Return what takes steps on rows like these [M, b, …], and what each layer drops out.

        None where the kernel does not know how. Steps are the same as long as `adamw` is.
        """
        fused = self._fused
        if fused is None or not fused.serves(condition, target):
            return None
        dropped = fused.dropped(draws)
        if dropped is None or not fused.has_all(self.parameters):
            return None
        if self._steps is None or self._steps.adamw is not adamw:
            self._steps = networks.Steps(fused.network, adamw)
        return self._steps, dropped

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


class _Fused:
    """A stack that the native kernel computes in one call, from the condition to all gradients.

    Args:
        table: the backbone, where it reads categories.
        layers: hidden ones, and the head's.
        dropouts: after each of them, if there is one.
        network: all that the kernel is told besides.
    """

    def __init__(
        self,
        table: TableMLP | None,
        layers: Sequence[_Linear],
        dropouts: Sequence[Dropout | None],
        network: networks.Network,
    ) -> None:
        self.table, self.layers, self.dropouts = table, layers, dropouts
        self.network = network

    @classmethod
    def of(cls, backbone: nn.Module, head: Head[Any]) -> "_Fused | None":
        """Return None where the kernel does not know some part, or would be no faster."""
        table = backbone if isinstance(backbone, TableMLP) else None
        mlp = backbone if table is None else table.mlp
        if not (isinstance(mlp, MLP) and isinstance(head, TriangularHead) and head.packed):
            return None
        modules = list(mlp.layers)
        pieces = None if table is None else table.numbers
        if table is None and modules and isinstance(modules[0], PiecewiseLinear):
            pieces = cast("PiecewiseLinear", modules.pop(0))
        numeric = mlp.inputs if table is None else table.numeric
        hidden, last = _hidden(modules), cast("nn.Module", head.linear)
        if not (hidden and isinstance(last, _Linear) and (pieces is None or pieces.side_by_side)):
            return None
        added = 0 if table is None else sum(known.shape[-1] for known in table.embeddings)
        inputs, width = numeric + added, hidden[0][0].bias.shape[-1]
        shortcut = cast("MLP | TableMLP", backbone).shortcut > 0
        layers = [*(layer for layer, _ in hidden), last]
        read = inputs + numeric * (0 if pieces is None else pieces.bins)
        reads = [read, *[width] * (len(hidden) - 1), width + shortcut * inputs]
        if (
            [layer.weight.shape[1] for layer in layers] != reads
            or any(layer.bias.shape[-1] != width for layer in layers[:-1])
            or len(last.weight) > networks.MAX_MEMBERS
            or max(reads) > networks.MAX_INPUTS
            or len(hidden) > MAX_DEPTH
            or width > MAX_WIDTH
            or last.bias.shape[-1] > MAX_OUTPUTS
        ):
            return None
        none = last.bias.new_zeros(numeric, 0)
        sizes = head.n_components, head.dimensions, head._scale_outputs // head.n_components
        network = networks.Network(
            sizes,
            none if pieces is None else pieces.edge,
            none if pieces is None else pieces.slope,
            shortcut,
            head.floor,
            head.ceiling,
        )
        return cls(table, layers, [*(dropout for _, dropout in hidden), None], network)

    def serves(self, condition: Tensor, target: Tensor) -> bool:
        """Tell whether the kernel takes rows like these [M, b, …]."""
        weight = self.layers[0].weight
        return (
            choose(weight) is native
            and condition.dtype is target.dtype is weight.dtype is self.network.edge.dtype
            and condition.device == target.device == weight.device == self.network.edge.device
            and condition.shape[1] <= networks.MAX_ROWS
            and all(
                one.draws is not None and one.draws.knows(condition.shape)
                for one in self.dropouts
                if one is not None and one.training
            )
        )

    def backward(
        self, condition: Tensor, target: Tensor, weights: Tensor | None, part: float
    ) -> float:
        """Add the gradient of part · loss to those of the parameters; return part · loss."""
        layers, numbers, vectors = self._parts(condition, target)
        total, to_vectors, made = networks.mlp(
            self.network,
            layers,
            numbers,
            vectors.detach(),
            target,
            weights,
            to_vectors=vectors.requires_grad,
        )
        leaves = [leaf for layer in self.layers for leaf in (layer.weight, layer.bias)]
        for leaf, gradient in zip(leaves, made, strict=True):
            if part != 1:
                gradient.mul_(part)
            if leaf.grad is not None:
                leaf.grad.add_(gradient)
            elif leaf.requires_grad:
                leaf.grad = gradient
        if to_vectors is not None:
            vectors.backward(to_vectors if part == 1 else to_vectors.mul_(part))
        return part * total

    def dropped(self, draws: RowDraws) -> list[int | None] | None:
        """Return how many of 65536 values each layer drops, if it does, by numbers of `draws`."""
        found = [None if one is None else round(one.p * HALVES) for one in self.dropouts]
        known = all(one is None or one.draws is draws for one in self.dropouts)
        return found if known and HALVES not in found else None

    def has_all(self, parameters: Sequence[Tensor]) -> bool:
        """Tell whether these are the weights and biases in their order, none of them frozen."""
        leaves = [leaf for layer in self.layers for leaf in (layer.weight, layer.bias)]
        return len(leaves) == len(parameters) and all(
            ours is theirs and ours.requires_grad
            for ours, theirs in zip(leaves, parameters, strict=True)
        )

    def nll(self, condition: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each row [M, b]."""
        return networks.mlp_nll(self.network, *self._parts(condition, target), target)

    def _parts(
        self, condition: Tensor, target: Tensor
    ) -> tuple[list[networks.Layer], Tensor, Tensor]:
        """Return the layers, with new masks where they drop out, and the numbers and vectors."""
        numeric, table = len(self.network.edge), self.table
        vectors = condition[..., :0] if table is None else table.vectors_of(condition)
        shape = (*condition.shape[:2], self.layers[0].bias.shape[-1])
        layers = [
            networks.Layer(
                layer.weight.detach(),
                layer.bias.detach(),
                one.mask(shape, target) if one is not None and one.training else None,
            )
            for layer, one in zip(self.layers, self.dropouts, strict=True)
        ]
        return layers, condition[..., :numeric], vectors


def _hidden(modules: Sequence[nn.Module]) -> list[tuple[_Linear, Dropout | None]] | None:
    """Return the layers of an MLP and what follows each; None where it has other parts."""
    blocks = modules[2:]
    if not all(isinstance(block, Block) for block in blocks):
        return None
    found: list[tuple[_Linear, Dropout | None]] = []
    for parts in (modules[:2], *(list(cast("Block", block).change) for block in blocks)):
        dropout = parts[2] if len(parts) == 3 else None
        kinds = [type(part) for part in parts[:2]]
        if kinds != [_Linear, nn.SiLU] or not (len(parts) == 2 or isinstance(dropout, Dropout)):
            return None
        found.append((cast("_Linear", parts[0]), cast("Dropout | None", dropout)))
    return found


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
