"""The native kernel, called with addresses and strides.

C cannot know how large a tensor is. These functions check whatever they are called with, unless
it comes as `Rows`, which have been checked; and they write to tensors that they allocate, or that
they have found to have the right shape and to overlap no other.
"""

import importlib
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from condens.errors import ArgumentError, KindError
from condens.kernels import memory
from condens.kernels.checks import (
    Rows,
    as_rows,
    check,
    check_draws,
    check_kind,
    check_strided,
)


def _load() -> tuple[ModuleType | None, str]:
    try:
        return importlib.import_module("condens.kernels._native"), ""
    except ImportError as error:  # not built, or built for a machine with OpenMP
        return None, str(error)


_module, missing = _load()
_DOUBLE = torch.empty(0, dtype=torch.float64, device="cpu")
_WORDS = torch.empty(0, dtype=torch.int64, device="cpu")
# Values of 16 random bits.
HALVES = 1 << 16
# Of training in one call.
MAX_STEPS = 64
single_threaded = _module is not None and not _module.openmp


def describe() -> str:
    """Say which instructions the kernel uses, or why there is none."""
    if _module is None:
        return f"not available: {missing}"
    return f"{_module.level()}, " + (
        "one thread: built without OpenMP" if single_threaded else "OpenMP"
    )


def serves(target: Tensor) -> bool:
    """Tell whether the kernel takes tensors like this one."""
    return (
        _module is not None
        and target.is_cpu
        and (target.dtype is torch.float32 or target.dtype is torch.float64)
    )


def forward(inputs: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the loss of each row, and what `backward` needs besides the inputs: nothing.

    Reading the factors a second time costs less than writing and reading what would spare it.
    """
    rows = _readable_rows(inputs)
    loss = rows.target.new_empty(rows.target.shape[0])
    _run(rows, loss)
    return loss, ()


def backward(
    inputs: Sequence[Tensor], _state: tuple[Tensor, ...], weights: Tensor, to_target: bool
) -> tuple[Tensor | None, ...]:
    """Return the gradients of Σ weights · loss."""
    return total(inputs, weights=weights, to_target=to_target)[1]


def total(
    inputs: Sequence[Tensor], *, weights: Tensor | None, to_target: bool
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return Σ weights · loss and its gradients, in one pass; the mean where weights is None."""
    # Gradients are written with the strides of what they are gradients of.
    rows = Rows(
        *(t if t.is_contiguous() or _compact(t) else t.contiguous() for t in _readable_rows(inputs))
    )
    target, *others = rows
    made = (_like(target) if to_target else None, *map(_like, others))
    value = target.new_empty(())
    _run(rows, target.new_empty(target.shape[0]), value, made, _weights(weights, target))
    return value, made


def from_outputs(
    outputs: Tensor,
    pulled: Tensor,
    target: Tensor,
    to_target: Tensor | None,
    sizes: tuple[int, int, int],
    weights: Tensor | None,
    floor: float,
    ceiling: float,
) -> Tensor:
    """Return Σ weights · loss of a linear layer's outputs; write their gradient to `pulled`.

    No part is viewed as a tensor: for small mixtures, making views takes longer than the rest.
    Shapes: outputs and pulled [P, b]: K logits, K×D means and K×T factors; target and
    to_target [b, D]; all but the target contiguous. Sizes (K, D, T). With a further axis in front
    of all of them, [M, P, b] and so on, the sum over the M losses.
    """
    check_strided("target", target)
    check_strided("target", target, 3 if target.dim() == 3 else 2)
    _check_served(target)
    (*lead, rows), (components, dimensions, packed) = target.shape[:-1], sizes
    outer = (*lead, components * (1 + dimensions + packed), rows)
    inner = (*lead, rows, dimensions)
    named = [("outputs", outputs, outer), ("pulled", pulled, outer), ("target", target, inner)]
    if to_target is not None:
        named.append(("to_target", to_target, inner))
    check(named, target)
    for name, tensor in (("outputs", outputs), ("pulled", pulled), ("to_target", to_target)):
        if tensor is not None:
            _check_contiguous(name, tensor)
    target = _readable(target if target.is_contiguous() else target.contiguous())
    weights = _weights(weights, target)
    step, size = 0 if weights is None else weights.stride(-1), target.element_size()
    line, members = rows * size, lead[0] if lead else 1
    starts = (0, components * line, components * (1 + dimensions) * line)
    strides = (dimensions, 1, 1, rows, 1, dimensions * rows, rows, 1, packed * rows, rows)
    values, losses = target.new_empty(members), target.new_empty(rows)
    # The addresses of the first member, and how far apart the members are.
    places = [
        (target.data_ptr(), dimensions * line),
        *((outputs.data_ptr() + start, outer[-2] * line) for start in starts),
        (0, 0) if weights is None else (weights.data_ptr(), weights.stride(0) * size),
        (losses.data_ptr(), 0),
        (values.data_ptr(), size),
        (0, 0) if to_target is None else (to_target.data_ptr(), dimensions * line),
        *((pulled.data_ptr() + start, outer[-2] * line) for start in starts),
    ]
    numbers = _numbers((rows, *sizes), losses, floor, 1 / ceiling if ceiling else math.inf)
    for m in range(members):
        addresses = [first + m * apart for first, apart in places]
        _native("nll", *numbers, *addresses, *strides, step)
    return values.sum() if lead else values.squeeze(0)


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
    weights = _weights(weights, target)
    losses = target.new_empty(len(target))
    pulled = vectors.new_empty(vectors.shape) if to_vectors and vectors.shape[2] else None
    gradients = [torch.empty_like(t) for layer in layers for t in layer[:2]]
    made = (losses, pulled, None, gradients)
    _run_network(network, layers, numbers, vectors, target, weights, made)
    return math.fsum(losses.tolist()), pulled, gradients


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
    _check_served(target)
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
        _check_contiguous(name, tensor)
    numbers, vectors, target = (_in_lines(tensor) for tensor in (numbers, vectors, target))
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
        addresses += [weight.data_ptr(), bias.data_ptr(), _address(mask), *map(_address, own)]
    _native(
        "mlp",
        network.floor,
        1 / network.ceiling if network.ceiling else math.inf,
        target.dtype is torch.float64,
        _threads(),
        *(*numbers.shape, vectors.shape[2], network.edge.shape[1]),
        *(layers[0].weight.shape[2], len(layers) - 1, *network.sizes, network.shortcut),
        *(numbers.data_ptr(), vectors.data_ptr()),
        *(network.edge.data_ptr(), network.slope.data_ptr(), target.data_ptr()),
        *(_address(weights), _address(losses), _address(pulled), _address(each)),
        *(*numbers.stride()[:2], *vectors.stride()[:2], *target.stride()[:2]),
        *((0, 0) if weights is None else weights.stride()),
        *addresses,
    )


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
        _check_served(like)
        self._like, self._members = like, like.shape[0] if like.dim() else 0
        # Of their own, so that the memory stays theirs whatever becomes of the others.
        self._held: list[Weights] = []
        self._numbers: list[int] = []
        for own, shrinks in zip(weights, decayed, strict=True):
            for name, tensor in own._asdict().items():
                if tensor is not None or name != "average":
                    check_strided(name, tensor)
                    shape = (self._members, *own.weight.shape[1:])
                    check(((name, tensor, shape),), like)
                    _check_contiguous(name, tensor)
            self._held.append(Weights(*(None if t is None else t.detach() for t in own)))  # type: ignore[arg-type]
            self._numbers += [own.weight.numel() // max(self._members, 1), bool(shrinks), 0]
            self._numbers += map(_address, own)
        self._addresses = self._places()
        self._lengths = torch.empty(self._members, dtype=torch.float64)

    def holds(self, weights: Sequence[Weights]) -> bool:
        """Tell whether tensors are still where those were that this was made with."""
        return [_address(t) for own in weights for t in own] == self._addresses

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
        for own, gradient in zip(self._held, gradients, strict=True):
            check((("gradient", gradient, own.weight.shape),), self._like)
            _check_contiguous("gradient", gradient)
        _native(
            "adamw",
            *(rate, self.BETA_1, self.BETA_2, self.EPSILON, decay, clip, follow),
            *self._corrections(step),
            *self._told(gradients),
        )
        found: list[float] = self._lengths.tolist()
        return found

    def _corrections(self, step: int) -> tuple[float, float]:
        return 1 - self.BETA_1**step, 1 - self.BETA_2**step

    def _told(self, gradients: Sequence[Tensor]) -> list[int]:
        """Return the whole numbers of a call, for gradients that were checked."""
        if self._addresses != self._places():
            raise ArgumentError(
                "weights",
                got="has other memory than it had",
                expected="that of the beginning was expected",
                fix="Make another AdamW.",
            )
        for place, gradient in enumerate(gradients):
            self._numbers[2 + place * (3 + len(Weights._fields))] = gradient.data_ptr()
        double, lengths = self._like.dtype is torch.float64, self._lengths.data_ptr()
        return [double, _threads(), self._members, len(self._held), lengths, *self._numbers]

    def _places(self) -> list[int]:
        return [_address(t) for own in self._held for t in own]


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
        network: what the networks are made of.
        layers: hidden ones and the head, without masks; they read numbers alone.
        dropped: of each layer, the values of 65536 that its mask drops; None where it has none.
        adamw: takes the steps of the layers' weights and biases, in this order.
    """

    def __init__(
        self,
        network: Network,
        layers: Sequence[Layer],
        dropped: Sequence[int | None],
        adamw: AdamW,
    ) -> None:
        self.network, self.layers, self.adamw = network, list(layers), adamw
        like = adamw._like
        sizes = network.edge.shape[0], 0, network.sizes[1]
        none = (like.new_empty(adamw._members, 0, size) for size in sizes)
        _readable_network(network, layers, *none)
        own = [tensor for layer in layers for tensor in layer[:2]]
        held = [weights.weight for weights in adamw._held]
        if [(_address(t), t.shape) for t in own] != [(_address(t), t.shape) for t in held]:
            raise ArgumentError(
                "adamw",
                got="has other weights than the layers",
                expected="theirs were expected, in their order",
                fix="Make it of the layers' weights and biases.",
            )
        for count in dropped:
            if count is not None and not 0 <= count < HALVES:
                raise ArgumentError(
                    "dropped",
                    got=f"has {count}",
                    expected=f"0 to {HALVES - 1} was expected",
                    fix="Pass how many of as many values are dropped.",
                )
        self.dropped = [count for count, _ in zip(dropped, layers, strict=True)]
        self._gradients = [torch.empty_like(tensor) for tensor in held]
        self._masks: list[Tensor | None] = [None] * len(self.layers)

    def take(
        self,
        batches: Sequence[Batch],
        schedule: Sequence[Schedule],
        *,
        bases: Tensor,
        step: int,
        decay: float,
        clip: float,
    ) -> list[list[float]]:
        """Take steps until one is not finite; return the members' losses in each that was taken.

        Args:
            batches: MAX_STEPS at most.
            schedule: of each of them.
            bases: of the masks' bits, see `mask` [M].
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
        adamw, like, members = self.adamw, self.adamw._like, self.adamw._members
        bases = _readable_bases(bases)
        check((("bases", bases, (members,)),), bases)
        if not batches:
            return []
        columns, dimensions = self.network.edge.shape[0], self.network.sizes[1]
        losses, kept = like.new_empty(len(batches), members), []
        table, numbers = [], []
        for number, (place, given, target, weights) in enumerate(batches):
            check_strided("numbers", given, 3)
            if not 0 <= place < 1 << 62:
                raise ArgumentError(
                    "place",
                    got=f"is {place}",
                    expected="0 to 2^62 was expected",
                    fix="Pass how many rows of the epoch come before.",
                )
            rows = given.shape[1]
            check((("numbers", given, (members, rows, columns)),), like)
            check((("target", target, (members, rows, dimensions)),), like)
            read = _in_lines(given), _in_lines(target), _weights(weights, target)
            kept.append(read)  # copies too live as long as the call
            line = [rows, place]
            line += (read[0].data_ptr(), *read[0].stride()[:2])
            line += (read[1].data_ptr(), *read[1].stride()[:2])
            line += (0, 0, 0) if read[2] is None else (read[2].data_ptr(), *read[2].stride())
            table.append([*line, losses.data_ptr() + number * members * like.element_size()])
        self._make_masks(max(line[0] for line in table))
        for place, (layer, mask) in enumerate(zip(self.layers, self._masks, strict=True)):
            own = self._gradients[2 * place : 2 * place + 2]
            numbers += [*map(_address, (*layer[:2], mask, *own))]
        wide = torch.tensor(table, dtype=torch.int64)
        floor, ceiling = self.network.floor, self.network.ceiling
        rates = torch.tensor(
            [
                [*own, *adamw._corrections(number)]
                for number, own in zip(range(step, step + len(batches)), schedule, strict=True)
            ],
            dtype=torch.float64,
        )
        double = like.dtype is torch.float64
        taken = _native(
            "steps",
            *(floor, 1 / ceiling if ceiling else math.inf),
            *(adamw.BETA_1, adamw.BETA_2, adamw.EPSILON, decay, clip),
            *(len(batches), wide.data_ptr(), rates.data_ptr(), bases.data_ptr()),
            *(double, _threads(), members, 0, columns, 0, self.network.edge.shape[1]),
            *(self.layers[0].weight.shape[2], len(self.layers) - 1, *self.network.sizes),
            *(self.network.shortcut, 0, 0, self.network.edge.data_ptr()),
            *(self.network.slope.data_ptr(), 0, 0, 0, 0, 0, *(0,) * 8),
            *numbers,
            *(count or 0 for count in self.dropped),
            *adamw._told(self._gradients),
        )
        found: list[list[float]] = losses[:taken].tolist()
        return found

    def _make_masks(self, rows: int) -> None:
        """Make room for the masks of so many rows."""
        members, width = self.adamw._members, self.layers[0].weight.shape[2]
        for place, count in enumerate(self.dropped):
            known = self._masks[place]
            if count is not None and (known is None or known.shape[1] < rows):
                self._masks[place] = self.adamw._like.new_empty(members, rows, width)


def _address(tensor: Tensor | None) -> int:
    """Return where a tensor is; 0 for none."""
    return 0 if tensor is None else tensor.data_ptr()


def _threads() -> int:
    return 1 if single_threaded else torch.get_num_threads()


def _in_lines(tensor: Tensor) -> Tensor:
    """Return the tensor as C can read it, contiguous in its last axis."""
    return _readable(
        tensor if tensor.stride(-1) == 1 or not tensor.numel() else tensor.contiguous()
    )


def partial(
    inputs: Sequence[Tensor], *, weights: Tensor | None = None, gradients: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return weights · log density of the entries that are not NaN [R], and gradients if wanted.

    Shapes: target [R, D], logits [R, K], means [R, K, D], factors [R, K, T], weights [R], in
    any dtype; all results are in double precision.
    """
    for name, tensor in zip(Rows._fields, inputs, strict=True):
        check_strided(name, tensor)
    wide = _readable_rows([tensor.double().contiguous() for tensor in inputs])
    if weights is not None:
        check_strided("weights", weights)
        weights = _weights(weights.double().contiguous(), wide.target)
    value = wide.target.new_empty(wide.target.shape[0])
    made = tuple(torch.empty_like(tensor) for tensor in wide) if gradients else ()
    _native(
        "partial",
        float(torch.finfo(inputs[2].dtype).max ** 0.5),
        _threads(),
        *wide.means.shape,
        wide.factors.shape[2],
        *(tensor.data_ptr() for tensor in wide),
        0 if weights is None else weights.data_ptr(),
        *(tensor.data_ptr() for tensor in (value, *made)),
        *[0] * (4 - len(made)),
    )
    return value, made


def partial_total(
    inputs: Sequence[Tensor], *, weights: Tensor, to_target: bool
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """Return what `total` does, for rows of which NaN entries were not observed."""
    value, made = partial(inputs, weights=-weights, gradients=True)
    return value.sum(), (made[0] if to_target else None, *made[1:])


def draw(
    noise: Tensor, uniform: Tensor, cumulative: Tensor, means: Tensor, factors: Tensor
) -> None:
    """Turn standard normal noise into draws, in place.

    Shapes: noise [S, B, D], uniform [S, B] and cumulative weights [B, K] in double, all
    contiguous; means [B, K, D], factors [B, K, T].
    """
    check_draws(noise, uniform, cumulative, means, factors)
    for name, tensor, like in (
        ("means", means, noise),
        ("factors", factors, noise),
        ("cumulative", cumulative, _DOUBLE),
    ):
        check_kind(name, tensor, like)
    _check_served(noise)
    for name, tensor in (("noise", noise), ("uniform", uniform), ("cumulative", cumulative)):
        _check_contiguous(name, tensor)
    means, factors = _readable(means), _readable(factors)
    _native(
        "sample",
        noise.dtype is torch.float64,
        _threads(),
        noise.shape[0],
        *means.shape,
        factors.shape[2],
        noise.data_ptr(),
        uniform.data_ptr(),
        cumulative.data_ptr(),
        means.data_ptr(),
        factors.data_ptr(),
        *means.stride(),
        *factors.stride(),
    )


def mask(
    bases: Tensor, rows: int, columns: int, *, place: int, first: int, dropped: int, like: Tensor
) -> Tensor:
    """Return a mask of dropout: 0 for `dropped` of 65536 values of 16 bits, else their inverse.

    An entry's bits are a quarter of SplitMix64's hash of its row's key and its word's number,
    counted from `first`; the key is that of its member's base and its row's number, counted from
    `place`. Shapes: bases [M] of 64 bits → [M, rows, columns], of the dtype of `like`.
    """
    _check_served(like)
    bases = _readable_bases(bases)
    if not 0 <= dropped < HALVES:
        raise ArgumentError(
            "dropped",
            got=f"is {dropped}",
            expected=f"0 to {HALVES - 1} was expected",
            fix="Pass how many of as many values are dropped.",
        )
    made = like.new_empty(bases.shape[0], rows, columns)
    _native(
        "mask",
        HALVES / (HALVES - dropped),
        like.dtype is torch.float64,
        *made.shape,
        place,
        first,
        dropped - HALVES // 2,
        bases.data_ptr(),
        made.data_ptr(),
    )
    return made


def _readable_bases(bases: Tensor) -> Tensor:
    check_strided("bases", bases, 1)
    check_kind("bases", bases, _WORDS)
    return _readable(bases.contiguous())


def _run(
    rows: Rows,
    loss: Tensor,
    value: Tensor | None = None,
    gradients: Sequence[Tensor | None] = (None,) * 4,
    weights: Tensor | None = None,
) -> None:
    target, logits, means, factors = rows
    _native(
        "nll",
        *_numbers((*means.shape, factors.shape[2]), loss),
        *(target.data_ptr(), logits.data_ptr(), means.data_ptr(), factors.data_ptr()),
        0 if weights is None else weights.data_ptr(),
        loss.data_ptr(),
        0 if value is None else value.data_ptr(),
        *(0 if gradient is None else gradient.data_ptr() for gradient in gradients),
        *(*target.stride(), *logits.stride(), *means.stride(), *factors.stride()),
        0 if weights is None else weights.stride(0),
    )


def _numbers(
    sizes: tuple[int, ...], like: Tensor, floor: float = 0.0, tightness: float = 0.0
) -> tuple[float, ...]:
    """Return what the kernel is told before the addresses."""
    return 1 / max(sizes[0], 1), floor, tightness, like.dtype is torch.float64, _threads(), *sizes


def _native(name: str, *numbers: float) -> Any:
    """Call a function of the extension; raise its refusals as errors of condens."""
    try:
        return getattr(_module, name)(*numbers)
    except (ValueError, OverflowError) as error:
        raise ArgumentError(*error.args) from None


def _readable_rows(inputs: Sequence[Tensor]) -> Rows:
    """Return checked inputs as C can read them."""
    rows = inputs if isinstance(inputs, Rows) else as_rows(*inputs)
    target, logits, means, factors = rows
    _check_served(target)
    start = target.data_ptr() | logits.data_ptr() | means.data_ptr() | factors.data_ptr()
    negated = target.is_neg() or logits.is_neg() or means.is_neg() or factors.is_neg()
    if negated or start % target.element_size():
        return Rows(*map(_readable, rows))
    return rows


def _weights(weights: Tensor | None, target: Tensor) -> Tensor | None:
    if weights is None:
        return None
    check((("weights", weights, target.shape[:-1]),), target)
    return _readable(weights)


def _readable(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy where memory does not hold its numbers as they are."""
    if tensor.is_neg() or tensor.data_ptr() % tensor.element_size():
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor


def _compact(tensor: Tensor) -> bool:
    """Tell whether no two entries share their memory, and gaps take up no more than they do."""
    reach = 0
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if step <= reach:
                return False
            reach += (size - 1) * step
    return reach < 2 * tensor.numel() or not tensor.numel()


def _like(tensor: Tensor) -> Tensor:
    # Not empty_like, which would lay out a view with gaps anew.
    if tensor.numel() * tensor.element_size() >= memory.MIN_BYTES:
        return memory.scratch(tensor.shape, tensor, tensor.stride())
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


def _check_served(tensor: Tensor) -> None:
    if not serves(tensor):
        raise KindError(
            "a tensor",
            got=f"is {tensor.dtype} on {tensor.device}",
            expected=f"the native kernel ({describe()}) takes float32 and float64 on the CPU",
            fix="Call condens.functional, which serves every dtype and device.",
        )


def _check_contiguous(name: str, tensor: Tensor) -> None:
    if not tensor.is_contiguous() or tensor.is_neg():
        raise ArgumentError(
            name,
            got=f"has the strides {tensor.stride()}",
            expected="contiguous memory was expected",
            fix=f"Pass {name}.contiguous().",
        )
