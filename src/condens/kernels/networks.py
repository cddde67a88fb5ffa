"""Whole networks in the native kernel: their loss with all gradients, and steps of training.

A step of a small network is calls and bookkeeping more than arithmetic. Here a call goes through
all layers of several networks and back, and another takes steps one after the other.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from condens.errors import ArgumentError
from condens.kernels.checks import check, check_strided
from condens.kernels.native import (
    HALVES,
    address,
    as_bases,
    as_weights,
    call,
    check_contiguous,
    check_served,
    in_lines,
    threads,
)

# Of training in one call.
MAX_STEPS = 64
# What the kernel serves: parameters of a step, members, rows of one, and what a layer reads.
MAX_TENSORS, MAX_MEMBERS, MAX_ROWS, MAX_INPUTS = 256, 1 << 10, 1 << 24, 1 << 20


class Layer(NamedTuple):
    """A linear layer of M members. Shapes: weight [M, F, P], bias [M, 1, P], mask [M, b, P].

    The mask multiplies what a hidden layer but the first makes; None for none.
    """

    weight: Tensor
    bias: Tensor
    mask: Tensor | None = None


class Network(NamedTuple):
    """What M networks are made of, besides their weights.

    Args:
        sizes: components K, dimensions D and packed entries T of a factor.
        edge, slope: of the bins of each number [N, bins], see `condens.nn.embeddings`; the bins of
            a number lie side by side, and those that do not exist have slope 0 and come last.
        shortcut: whether the head reads numbers and vectors beside the last hidden layer.
        floor, ceiling: bounds of the scales, as `from_outputs` has them.
    """

    sizes: tuple[int, int, int]
    edge: Tensor
    slope: Tensor
    shortcut: bool
    floor: float
    ceiling: float


def mlp(
    network: Network,
    layers: Sequence[Layer],
    numbers: Tensor,
    vectors: Tensor,
    target: Tensor,
    weights: Tensor | None,
    *,
    to_vectors: bool,
) -> tuple[float, Tensor | None, list[Tensor]]:
    """Return Σ weights · loss of networks, its gradient by vectors, and those by the layers.

        h = silu(W x + c),  h ← h + mask · silu(W h + c),  outputs = W [h, x] + c

    x are numbers, their bins, and vectors; the last layer is the head, whose outputs are K logits,
    K×D means and K×T factors. Gradients of the layers come in their order, weight and bias in turn.
    Shapes: numbers [M, b, N], vectors [M, b, V], target [M, b, D], weights [M, b], one over b where
    None → [], [M, b, V] if wanted, those of the layers.
    """
    numbers, vectors, target = _readable_network(network, layers, numbers, vectors, target)
    weights = as_weights(weights, target)
    losses = target.new_empty(len(target))
    pulled = vectors.new_empty(vectors.shape) if to_vectors and vectors.shape[2] else None
    gradients = [torch.empty_like(t) for layer in layers for t in layer[:2]]
    made = (losses, pulled, None, gradients)
    _run_network(network, layers, numbers, vectors, target, weights, made)
    return sum(losses.tolist()), pulled, gradients


def mlp_nll(
    network: Network,
    layers: Sequence[Layer],
    numbers: Tensor,
    vectors: Tensor,
    target: Tensor,
) -> Tensor:
    """Return the loss of each row [M, b] of networks; see `mlp`."""
    numbers, vectors, target = _readable_network(network, layers, numbers, vectors, target)
    each = target.new_empty(target.shape[:2])
    if each.numel():
        nothing = [None] * (2 * len(layers))
        _run_network(network, layers, numbers, vectors, target, None, (None, None, each, nothing))
    return each


def _readable_network(
    network: Network,
    layers: Sequence[Layer],
    numbers: Tensor,
    vectors: Tensor,
    target: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Check what `mlp` is called with; return numbers, vectors and target as C can read them."""
    for name, tensor in (("numbers", numbers), ("vectors", vectors), ("target", target)):
        check_strided(name, tensor, 3)
    check_served(target)
    check_strided("edge", network.edge, 2)
    components, dimensions, packed = network.sizes
    (members, rows, columns), added = numbers.shape, vectors.shape[2]
    bins, depth = network.edge.shape[1], len(layers) - 1
    if depth < 1:
        raise ArgumentError(
            "layers",
            got=f"has {depth + 1}",
            expected="a hidden layer and the head were expected",
            fix="Pass two or more.",
        )
    check_strided("weight", layers[0].weight, 3)
    width, inputs = layers[0].weight.shape[2], columns + added
    outputs = components * (1 + dimensions + packed)
    named: list[tuple[str, Any, tuple[int, ...]]] = [
        ("numbers", numbers, (members, rows, columns)),
        ("vectors", vectors, (members, rows, added)),
        ("target", target, (members, rows, dimensions)),
        ("edge", network.edge, (columns, bins)),
        ("slope", network.slope, (columns, bins)),
    ]
    for place, (weight, bias, mask) in enumerate(layers):
        head = place == depth
        made = outputs if head else width
        read = inputs + columns * bins if not place else width + head * network.shortcut * inputs
        named += [("weight", weight, (members, read, made)), ("bias", bias, (members, 1, made))]
        if mask is not None:
            named.append(("mask", mask, (members, rows, made)))
    check(named, target)
    for name, tensor, _ in named[3:]:
        check_contiguous(name, tensor)
    numbers, vectors, target = (in_lines(tensor) for tensor in (numbers, vectors, target))
    return numbers, vectors, target


def _run_network(
    network: Network,
    layers: Sequence[Layer],
    numbers: Tensor,
    vectors: Tensor,
    target: Tensor,
    weights: Tensor | None,
    made: tuple[Tensor | None, Tensor | None, Tensor | None, Sequence[Tensor | None]],
) -> None:
    """Write losses, the gradient by vectors, the losses of rows, and gradients by the layers."""
    losses, pulled, each, gradients = made
    addresses: list[int] = []
    for place, (weight, bias, mask) in enumerate(layers):
        own = gradients[2 * place : 2 * place + 2]
        addresses += [weight.data_ptr(), bias.data_ptr(), address(mask), *map(address, own)]
    call(
        "mlp",
        network.floor,
        _tightness(network),
        target.dtype is torch.float64,
        threads(),
        *(*numbers.shape, vectors.shape[2], network.edge.shape[1]),
        *_sizes(network, layers),
        *(numbers.data_ptr(), vectors.data_ptr()),
        *(network.edge.data_ptr(), network.slope.data_ptr(), target.data_ptr()),
        *(address(weights), address(losses), address(pulled), address(each)),
        *(*numbers.stride()[:2], *vectors.stride()[:2], *target.stride()[:2]),
        *((0, 0) if weights is None else weights.stride()),
        *addresses,
    )


def _tightness(network: Network) -> float:
    """Return what C is told of the largest scale."""
    return 1 / network.ceiling if network.ceiling else math.inf


def _sizes(network: Network, layers: Sequence[Layer]) -> tuple[int, ...]:
    """Return width, depth, K, D, T, and whether there is a shortcut."""
    return layers[0].weight.shape[2], len(layers) - 1, *network.sizes, network.shortcut


class Weights(NamedTuple):
    """A parameter [M, …] of M members, and all that AdamW changes with it.

    All are contiguous, of one shape and dtype; `average` is None where none follows.
    """

    weight: Tensor
    first: Tensor
    second: Tensor
    average: Tensor | None = None


class AdamW:
    """Steps of AdamW for the parameters of M members, each with a clip of its own, and averages.

    Reads and writes the memory that the tensors have now: made anew where they have other memory.

    Args:
        weights: of each parameter.
        decayed: which of them weight decay shrinks.

    >>> weight, first, second = torch.ones(2, 1, 1), torch.zeros(2, 1, 1), torch.zeros(2, 1, 1)
    >>> adamw = AdamW([Weights(weight, first, second)], [True])
    >>> adamw.step([weight * 3], step=1, rate=0.1, decay=0.0, clip=1.0)
    [3.0, 3.0]
    >>> weight.flatten()
    tensor([0.9000, 0.9000])
    """

    # As torch has them.
    BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8

    def __init__(self, weights: Sequence[Weights], decayed: Sequence[bool]) -> None:
        if not weights:
            raise ArgumentError(
                "weights",
                got="is empty",
                expected="a parameter was expected",
                fix="Pass those of a network.",
            )
        like = weights[0].weight
        check_strided("weight", like)
        check_served(like)
        self.like, self.members = like, like.shape[0] if like.dim() else 0
        # Of their own, so that the memory stays theirs whatever becomes of the others.
        self.held: list[Weights] = []
        self._numbers: list[int] = []
        _check_count("decayed", decayed, len(weights))
        for own, shrinks in zip(weights, decayed, strict=True):
            for name, tensor in own._asdict().items():
                if tensor is not None or name != "average":
                    check_strided(name, tensor)
                    shape = (self.members, *own.weight.shape[1:])
                    check(((name, tensor, shape),), like)
                    check_contiguous(name, tensor)
            self.held.append(Weights(*(None if t is None else t.detach() for t in own)))  # type: ignore[arg-type]
            self._numbers += [own.weight.numel() // max(self.members, 1), bool(shrinks), 0]
            self._numbers += map(address, own)
        self._addresses = [address(t) for own in self.held for t in own]
        self._memory = self._places()
        self._lengths = torch.empty(self.members, dtype=torch.float64)

    def holds(self, weights: Sequence[Weights]) -> bool:
        """Tell whether tensors are still where those were that this was made with."""
        return [address(t) for own in weights for t in own] == self._addresses

    def step(
        self,
        gradients: Sequence[Tensor],
        *,
        step: int,
        rate: float,
        decay: float,
        clip: float,
        follow: float = 0.0,
    ) -> list[float]:
        """Take a step in place; return the length of each member's gradient.

        A longer gradient than `clip` is shortened to it, member by member. Averages then follow
        their parameters by a fraction `follow`. Nothing changes where a length is not finite.

        Args:
            gradients: of each parameter.
            step: the number of this one, from 1.
            rate: of learning.
            decay: of the weights.
            clip: largest length.
            follow: 0 where averages stay as they are.
        """
        _check_count("gradients", gradients, len(self.held))
        for own, gradient in zip(self.held, gradients, strict=True):
            check((("gradient", gradient, own.weight.shape),), self.like)
            check_contiguous("gradient", gradient)
        call(
            "adamw",
            *(rate, self.BETA_1, self.BETA_2, self.EPSILON, decay, clip, follow),
            *self.corrections(step),
            *self.told(gradients),
        )
        found: list[float] = self._lengths.tolist()
        return found

    def corrections(self, step: int) -> tuple[float, float]:
        """Return by what the moments of a step are divided: they begin at 0."""
        return 1 - self.BETA_1**step, 1 - self.BETA_2**step

    def told(self, gradients: Sequence[Tensor]) -> list[int]:
        """Return the whole numbers of a call, for gradients that were checked."""
        if self._memory != self._places():
            raise ArgumentError(
                "weights",
                got="has other memory than it had",
                expected="that of the beginning was expected",
                fix="Make another AdamW.",
            )
        for place, gradient in enumerate(gradients):
            self._numbers[2 + place * (3 + len(Weights._fields))] = gradient.data_ptr()
        double, lengths = self.like.dtype is torch.float64, self._lengths.data_ptr()
        return [double, threads(), self.members, len(self.held), lengths, *self._numbers]

    def _places(self) -> list[tuple[int, int]]:
        return _memory_of([t for own in self.held for t in own if t is not None])


class Batch(NamedTuple):
    """Rows of M networks for a step: their place in the epoch, and what `mlp` takes of them."""

    place: int
    numbers: Tensor
    target: Tensor
    weights: Tensor | None = None


class Schedule(NamedTuple):
    """What changes from step to step: the learning rate, and the fraction averages follow by."""

    rate: float
    follow: float = 0.0


class Steps:
    """Steps of training M networks, several in a call: masks of dropout, `mlp`, and `AdamW`.

    The same numbers as with a call for each, without what Python does between them.

    Args:
        network: what the networks are made of; they read numbers alone.
        adamw: takes the steps of the weight and the bias of every layer, in turn.
    """

    def __init__(self, network: Network, adamw: AdamW) -> None:
        held = [weights.weight for weights in adamw.held]
        self.layers = [Layer(*pair) for pair in zip(held[::2], held[1::2], strict=False)]
        # Aliases, whose sizes stay what they are.
        edge, slope = (t.detach() for t in (network.edge, network.slope))
        self.network, self.adamw = network._replace(edge=edge, slope=slope), adamw
        self._memory = _memory_of([edge, slope])
        _check_count("the weights of adamw", held, 2 * len(self.layers))
        sizes = edge.shape[0], 0, network.sizes[1]
        none = (adamw.like.new_empty(adamw.members, 0, size) for size in sizes)
        _readable_network(self.network, self.layers, *none)
        self._gradients = [torch.empty_like(tensor) for tensor in held]
        self._masks: list[Tensor | None] = [None] * len(self.layers)

    def take(
        self,
        batches: Sequence[Batch],
        schedule: Sequence[Schedule],
        *,
        dropped: Sequence[int | None],
        bases: Tensor,
        step: int,
        decay: float,
        clip: float,
    ) -> list[list[float]]:
        """Take steps until one is not finite; return the members' losses in each that was taken.

        Args:
            batches: MAX_STEPS at most.
            schedule: of each of them.
            dropped: of each layer, how many of 65536 values its mask drops; None where it has none.
            bases: of the masks' bits, see `condens.kernels.native.mask` [M].
            step: the number of the first, from 1.
            decay: of the weights.
            clip: largest length of a member's gradient.
        """
        if len(batches) > MAX_STEPS:
            raise ArgumentError(
                "batches",
                got=f"has {len(batches)}",
                expected=f"at most {MAX_STEPS} were expected",
                fix="Take them in turns.",
            )
        adamw, edge, slope = self.adamw, self.network.edge, self.network.slope
        _check_count("schedule", schedule, len(batches))
        _check_count("dropped", dropped, len(self.layers))
        for count in dropped:
            if count is not None and not 0 <= count < HALVES:
                raise ArgumentError(
                    "dropped",
                    got=f"has {count}",
                    expected=f"0 to {HALVES - 1} was expected",
                    fix="Pass how many of as many values are dropped.",
                )
        if self._memory != _memory_of([edge, slope]):
            raise ArgumentError(
                "network",
                got="has bins in other memory than they were",
                expected="that of the beginning was expected",
                fix="Make other Steps.",
            )
        bases = as_bases(bases)
        check((("bases", bases, (adamw.members,)),), bases)
        if not batches:
            return []
        losses = adamw.like.new_empty(len(batches), adamw.members)
        table, kept = self._table(batches, losses)
        rates = torch.tensor(
            [
                [*own, *adamw.corrections(number)]
                for number, own in zip(range(step, step + len(batches)), schedule, strict=True)
            ],
            dtype=torch.float64,
        )
        taken = call(
            "steps",
            *(self.network.floor, _tightness(self.network)),
            *(adamw.BETA_1, adamw.BETA_2, adamw.EPSILON, decay, clip),
            *(len(batches), table.data_ptr(), rates.data_ptr(), bases.data_ptr()),
            # Those of `mlp`: 0 is what the table has, or what no step has.
            *(edge.dtype is torch.float64, threads(), adamw.members, 0, len(edge), 0),
            *(edge.shape[1], *_sizes(self.network, self.layers)),
            *(0, 0, edge.data_ptr(), slope.data_ptr(), 0, 0, 0, 0, 0),
            *(0, 0, 0, 0, 0, 0, 0, 0),
            *self._addresses(dropped, max(rows for rows, *_ in table.tolist())),
            *(count or 0 for count in dropped),
            *adamw.told(self._gradients),
        )
        del kept
        found: list[list[float]] = losses[:taken].tolist()
        return found

    def _table(
        self, batches: Sequence[Batch], losses: Tensor
    ) -> tuple[Tensor, list[tuple[Tensor | None, ...]]]:
        """Return what differs from step to step, and the tensors whose addresses are in it."""
        like, members = self.adamw.like, self.adamw.members
        columns, dimensions = self.network.edge.shape[0], self.network.sizes[1]
        lines, kept = [], list[tuple[Tensor | None, ...]]()
        for own, (place, numbers, target, weights) in zip(losses, batches, strict=True):
            check_strided("numbers", numbers, 3)
            if not 0 <= place < 1 << 62:
                raise ArgumentError(
                    "place",
                    got=f"is {place}",
                    expected="0 to 2^62 was expected",
                    fix="Pass how many rows of the epoch come before.",
                )
            rows = numbers.shape[1]
            check((("numbers", numbers, (members, rows, columns)),), like)
            check((("target", target, (members, rows, dimensions)),), like)
            x, y, w = in_lines(numbers), in_lines(target), as_weights(weights, target)
            line = [rows, place, x.data_ptr(), *x.stride()[:2], y.data_ptr(), *y.stride()[:2]]
            line += (0, 0, 0) if w is None else (w.data_ptr(), *w.stride())
            lines.append([*line, own.data_ptr()])
            kept.append((x, y, w))
        return torch.tensor(lines, dtype=torch.int64), kept

    def _addresses(self, dropped: Sequence[int | None], rows: int) -> list[int]:
        """Return where layers, their gradients, and masks of so many rows are."""
        found, width = list[int](), self.layers[0].bias.shape[2]
        for place, (layer, count) in enumerate(zip(self.layers, dropped, strict=True)):
            mask = None if count is None else self._masks[place]
            if count is not None and (mask is None or mask.shape[1] < rows):
                mask = self.adamw.like.new_empty(self.adamw.members, rows, width)
                self._masks[place] = mask
            own = self._gradients[2 * place : 2 * place + 2]
            found += map(address, (*layer[:2], mask, *own))
        return found


def _memory_of(tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Return where tensors are, and how many bytes the memory has that they are in."""
    return [(t.data_ptr(), t.untyped_storage().nbytes()) for t in tensors]


def _check_count(name: str, given: Sequence[Any], expected: int) -> None:
    """Raise a named error unless there are as many as expected."""
    if len(given) != expected:
        raise ArgumentError(
            name,
            got=f"has {len(given)}",
            expected=f"{expected} were expected",
            fix="Pass one for each.",
        )
