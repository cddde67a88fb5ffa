"""Whatever a kernel is called with, by whichever door: a named error, never someone's memory.

`make test-sanitised` runs this file against a build that stops at the first byte out of place.
"""

import math
import os
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from condens.errors import ArgumentError, CondensError
from condens.functional import (
    bounded_scales,
    linear_loss,
    log_prob,
    loss,
    nll,
    partial_log_prob,
    rsample,
    sample,
)
from condens.kernels import native, networks
from condens.nn import DiagonalHead, FullHead, IsotropicHead, LowRankHead, TiedHead

# Set by `make test-sanitised`: where the sanitised build is, which alone would prove anything.
SANITISED = os.environ.get("CONDENS_SANITISED", "")
pytestmark = pytest.mark.skipif(bool(native.missing) and not SANITISED, reason=native.missing)

ROWS, K, D, T, F = 100, 3, 3, 6, 4


def mixture(rows=ROWS, k=K, d=D):
    return {
        "target": torch.randn(rows, d),
        "logits": torch.randn(rows, k),
        "means": torch.randn(rows, k, d),
        "factors": torch.randn(rows, k, d * (d + 1) // 2),
        "weights": torch.rand(rows),
    }


def layer(rows=ROWS, k=K, d=D):
    outputs = k * (1 + d + d * (d + 1) // 2)
    return {
        "features": torch.randn(rows, F),
        "weight": torch.randn(outputs, F),
        "bias": torch.randn(outputs),
        "target": torch.randn(rows, d),
        "row_weights": torch.rand(rows),
    }


def rows_of_features(rows=ROWS):
    made = {"features": torch.randn(rows, F), "target": torch.randn(rows, D)}
    return {**made, "weights": torch.rand(rows)}


def outputs(rows=ROWS):
    return {
        "outputs": torch.randn(K * (1 + D + T), rows),
        "pulled": torch.empty(K * (1 + D + T), rows),
        "target": torch.randn(rows, D),
        "to_target": torch.empty(rows, D),
        "weights": torch.rand(rows),
    }


def network(rows=ROWS):
    """Two members with numbers, bins, vectors, a mask, and a head that reads all of them."""
    bins, vectors, width, outputs = 3, 2, 5, K * (1 + D + T)
    edge = torch.arange(bins).float().repeat(F, 1)
    return {
        "numbers": torch.randn(2, rows, F),
        "vectors": torch.randn(2, rows, vectors),
        "target": torch.randn(2, rows, D),
        "weights": torch.rand(2, rows),
        "edge": edge,
        "slope": torch.ones_like(edge),
        "first": torch.randn(2, F * (1 + bins) + vectors, width),
        "first bias": torch.randn(2, 1, width),
        "hidden": torch.randn(2, width, width),
        "hidden bias": torch.randn(2, 1, width),
        "mask": torch.randint(2, (2, rows, width)).float(),
        "head": torch.randn(2, width + F + vectors, outputs),
        "head bias": torch.randn(2, 1, outputs),
    }


def of_network(function, **options):
    """Call a function of a network that is given by its parts."""

    def call(*, edge, slope, numbers, vectors, target, weights, **parts):
        first, hidden, head = (
            networks.Layer(parts[name], parts[f"{name} bias"], parts["mask"] if masked else None)
            for name, masked in (("first", False), ("hidden", True), ("head", False))
        )
        made = networks.Network((K, D, T), edge, slope, True, 0.0, math.inf)
        given = (numbers, vectors, target, *((weights,) if options else ()))
        return function(made, [first, hidden, head], *given, **options)

    return call


def parameter_of_members(_rows=ROWS):
    return {
        **{name: torch.randn(2, 3, 4) for name in ("weight", "first")},
        **{name: torch.rand(2, 3, 4) for name in ("second", "average", "gradient")},
    }


def take_step(*, gradient, **parts):
    adamw = networks.AdamW([networks.Weights(**parts)], [True])
    return adamw.step([gradient], step=1, rate=0.1, decay=0.1, clip=1.0, follow=0.1)


def draws(rows=ROWS):
    return {
        "noise": torch.randn(7, rows, D),
        "uniform": torch.rand(7, rows, dtype=torch.float64),
        "cumulative": torch.rand(rows, K, dtype=torch.float64).cumsum(-1),
        "means": torch.randn(rows, K, D),
        "factors": torch.randn(rows, K, T),
    }


def parameters(rows=ROWS):
    return {name: mixture(rows)[name] for name in ("logits", "means", "factors")}


def through(function):
    """Call a function of the inputs, without weights."""
    return lambda *, weights, **inputs: function(*inputs.values())  # noqa: ARG005


def through_tuple(function):
    """Call a function of one sequence of tensors."""
    return lambda *inputs: function(inputs)


def head_nll(head, *, grad=True):
    def call(features, target, weights):
        with torch.set_grad_enabled(grad):
            return head.loss(features, target, weights, complete=True)

    return call


def with_gaps(make):
    """Return arguments of which every second target lacks an entry."""

    def made(*args, **kwargs):
        arguments = make(*args, **kwargs)
        arguments["target"][::2, :1] = torch.nan
        return arguments

    return made


mixture_with_gaps, layer_with_gaps = with_gaps(mixture), with_gaps(layer)
features_with_gaps = with_gaps(rows_of_features)


# Where batch axes and dtypes may differ, as long as they broadcast.
LENIENT = {
    "functional.nll": (mixture, through(nll)),
    "functional.loss": (mixture, loss),
    "partial_log_prob": (mixture_with_gaps, through(partial_log_prob)),
    "native.partial": (
        mixture_with_gaps,
        lambda target, logits, means, factors, weights: native.partial(
            (target, logits, means, factors), weights=weights, gradients=True
        ),
    ),
    "functional.sample": (parameters, sample),
    "functional.rsample": (parameters, rsample),
}
STRICT = {
    "ops.nll": (mixture, through(torch.ops.condens.nll)),
    "ops.nll_backward": (
        mixture,
        lambda target, logits, means, factors, weights: torch.ops.condens.nll_backward(
            weights, target, logits, means, factors
        ),
    ),
    "native.forward": (mixture, through(through_tuple(native.forward))),
    "native.total": (
        mixture,
        lambda target, logits, means, factors, weights: native.total(
            (target, logits, means, factors), weights=weights, to_target=True
        ),
    ),
    "native.backward": (
        mixture,
        lambda target, logits, means, factors, weights: native.backward(
            (target, logits, means, factors), (), weights, True
        ),
    ),
    "native.from_outputs": (
        outputs,
        lambda outputs, pulled, target, to_target, weights: native.from_outputs(
            outputs, pulled, target, to_target, (K, D, T), weights, 0.0, math.inf
        ),
    ),
    "networks.mlp": (network, of_network(networks.mlp, to_vectors=True)),
    "networks.mlp_nll": (network, of_network(networks.mlp_nll)),
    "networks.AdamW": (parameter_of_members, take_step),
    "native.draw": (draws, native.draw),
    "ops.draw": (draws, torch.ops.condens.draw),
    "linear_loss": (
        layer,
        lambda features, weight, bias, target, row_weights: linear_loss(
            features, weight, bias, target, K, row_weights
        ),
    ),
    "linear_loss with gaps": (
        layer_with_gaps,
        lambda features, weight, bias, target, row_weights: linear_loss(
            features, weight, bias, target, K, row_weights, gaps=True
        ),
    ),
    "FullHead.loss with gaps": (features_with_gaps, FullHead(F, D, K).loss),
    "FullHead.loss": (rows_of_features, head_nll(FullHead(F, D, K))),
    "FullHead.loss without gradients": (rows_of_features, head_nll(FullHead(F, D, K), grad=False)),
    "DiagonalHead.loss": (rows_of_features, head_nll(DiagonalHead(F, D, K))),
    "IsotropicHead.loss": (rows_of_features, head_nll(IsotropicHead(F, D, K))),
    "TiedHead.loss": (rows_of_features, head_nll(TiedHead(F, D, K))),
    "LowRankHead.loss": (rows_of_features, head_nll(LowRankHead(F, D, K, rank=1))),
}
DOORS = LENIENT | STRICT

MISUSE = {
    "half the rows": lambda t: t[: len(t) // 2],
    "one row too few": lambda t: t[:-1],
    "twice the rows": lambda t: torch.cat([t, t]),
    "no rows": lambda t: t[:0],
    "last axis cut": lambda t: t[..., :-1],
    "last axis empty": lambda t: t[..., :0],
    "a number": lambda _: torch.tensor(1.0),
    "not a tensor": lambda t: t.tolist(),
    "none": lambda _: None,
    "sparse": lambda t: t.to_sparse(),
    "without memory": lambda t: t.to("meta"),
    "complex": lambda t: t.to(torch.complex64),
}
# These a lenient door understands.
STRICTLY = {
    "one row": lambda t: t[:1],
    "another precision": lambda t: t.float() if t.dtype is torch.float64 else t.double(),
    "half precision": lambda t: t.half(),
    "whole numbers": lambda t: t.long(),
    "one more axis": lambda t: t.unsqueeze(0),
}


UNREAD = ("functional.nll", "ops.nll", "native.forward", "partial_log_prob", "networks.mlp_nll")
CONVERTED = ("another precision", "half precision", "whole numbers")
BROADCAST = ("a number", "one row")
BROADCASTING = ("functional.loss", "linear_loss", "linear_loss with gaps")


def is_a_use(door, argument, misuse):
    """Tell whether a door knows what is meant after all."""
    if argument in ("to_target", "mask", "average"):
        return misuse == "none"
    if door.startswith("ops.") and misuse == "without memory":
        return True  # torch asks for the shape alone
    if door == "ops.draw" and argument in ("noise", "means", "factors"):
        return misuse in CONVERTED and (argument != "noise" or misuse != "whole numbers")
    if argument not in ("weights", "row_weights"):
        return False
    return (
        door in UNREAD
        or (misuse == "none" and door != "ops.nll_backward")
        or (misuse in CONVERTED and (door.startswith("linear_loss") or "Head" in door))
        or (misuse in BROADCAST and (door in BROADCASTING or "Head" in door))
    )


@pytest.mark.parametrize(
    ("door", "argument"), [(door, name) for door, (make, _) in DOORS.items() for name in make()]
)
def test_misuse_is_refused_by_name(door, argument):
    make, call = DOORS[door]
    accepted, raw = [], {}
    for misuse, change in (MISUSE if door in LENIENT else MISUSE | STRICTLY).items():
        arguments = make()
        arguments[argument] = change(arguments[argument])
        if is_a_use(door, argument, misuse):
            call(**arguments)
            continue
        try:
            call(**arguments)
            accepted.append(misuse)
        except CondensError:
            pass
        except Exception as error:
            # What is no tensor torch itself keeps from an operator.
            if not (door.startswith("ops.") and misuse in ("not a tensor", "none")):
                raw[misuse] = error
    assert not accepted
    assert not raw


@pytest.mark.skipif(not SANITISED, reason="the build is the normal one")
def test_the_build_is_the_sanitised_one():
    assert Path(native._module.__file__).is_relative_to(Path(SANITISED).resolve())


@pytest.mark.parametrize("door", DOORS)
def test_every_door_opens_to_what_is_right(door):
    make, call = DOORS[door]
    call(**make())


@pytest.mark.parametrize("door", DOORS)
def test_no_rows_are_no_misuse(door):
    make, call = DOORS[door]
    call(**make(0))


@pytest.mark.parametrize("sizes", [{"k": 0}, {"d": 0}, {"k": 0, "d": 0}], ids=str)
@pytest.mark.parametrize("door", [name for name, (make, _) in DOORS.items() if make is mixture])
def test_mixtures_without_components_or_dimensions_are_refused(door, sizes):
    with pytest.raises(CondensError):
        DOORS[door][1](**mixture(**sizes))


@pytest.mark.parametrize("sizes", [{"k": 0}, {"d": 0}], ids=str)
def test_empty_layers_and_draws_are_refused(sizes):
    with pytest.raises(CondensError):
        linear_loss(**layer(**sizes), n_components=sizes.get("k", K))
    made = mixture(**sizes)
    for function in (sample, rsample):
        with pytest.raises(CondensError):
            function(made["logits"], made["means"], made["factors"], (5,))


@pytest.mark.parametrize("count", [0, -1, 2.5, "3", None, True, 2**63, 2**100], ids=str)
@pytest.mark.parametrize("name", ["n_components", "chunk"])
def test_counts_that_are_none(name, count):
    with pytest.raises(CondensError, match=f"{name} is |outputs"):
        linear_loss(**layer(), **{"n_components": K, name: count})


@pytest.mark.parametrize(
    "shape",
    [(-1,), (2**63,), (2**40, 2**40), (2**30, 2**30), (2.5,), ("a",), (True,), 5, None, "ab"],
    ids=str,
)
@pytest.mark.parametrize("function", [sample, rsample])
def test_numbers_of_draws_that_are_none(function, shape):
    with pytest.raises(ArgumentError, match="shape"):
        function(**parameters(), shape=shape)


@pytest.mark.parametrize("sizes", [(0, D, T), (K, 0, 0), (K, D, 4), (K, -1, T), (2**40, D, T)])
def test_sizes_that_outputs_do_not_have(sizes):
    made = outputs()
    with pytest.raises(CondensError):
        native.from_outputs(
            made["outputs"],
            made["pulled"],
            made["target"],
            None,
            sizes,
            None,
            0.0,
            math.inf,
        )


def test_what_is_written_shares_no_memory():
    def write(**changed):
        made = {**outputs(), **changed}
        return native.from_outputs(
            *(made[name] for name in ("outputs", "pulled", "target", "to_target")),
            (K, D, T),
            None,
            0.0,
            math.inf,
        )

    write()
    whole, both = torch.randn(3 * ROWS, D), torch.randn(K * (1 + D + T) + D, ROWS)
    for shared in (
        {"target": whole[:ROWS], "to_target": whole[:ROWS]},
        {"target": whole[:ROWS], "to_target": whole[ROWS // 2 : ROWS // 2 + ROWS]},
        {"outputs": both[:-D], "pulled": both[:-D]},
        {"outputs": both[:-D], "pulled": both[D:]},
        {"pulled": both[:-D], "to_target": both[-D - 1 : -1].view(ROWS, D)},
    ):
        with pytest.raises(ArgumentError, match="shares memory"):
            write(**shared)
    for bad in (
        torch.empty(1, D).expand(ROWS, D),
        torch.empty(ROWS, 2 * D)[:, ::2],
        torch.empty(D, ROWS).T,
    ):
        with pytest.raises(CondensError):
            write(to_target=bad)
    noise = torch.randn(7, ROWS, D)
    for bad in (noise[:3], noise.flatten()[: ROWS * K * D]):
        made = draws()
        made |= {"noise": noise, "means": bad.reshape(-1)[: ROWS * K * D // 2].repeat(2)}
        made["means"] = noise.flatten()[: ROWS * K * D].view(ROWS, K, D)
        with pytest.raises(ArgumentError, match="shares memory"):
            native.draw(**made)


@pytest.mark.parametrize("which", range(4), ids=["target", "logits", "means", "factors"])
def test_tensors_whose_memory_was_given_back_are_refused(which):
    inputs = list(mixture().values())[:4]
    inputs[which].untyped_storage().resize_(0)
    for call in (nll, loss, through_tuple(native.forward), torch.ops.condens.nll):
        with pytest.raises(ArgumentError, match="an address"):
            call(*inputs)


def valid_numbers():
    """Return the tensors and the numbers of a call that C accepts."""
    target, logits, means, factors = (
        torch.randn(*shape) for shape in ((5, 2), (5, 3), (5, 3, 2), (5, 3, 3))
    )
    loss = torch.empty(5)
    tensors = (target, logits, means, factors)
    addresses = [t.data_ptr() for t in tensors]
    strides = [step for t in tensors for step in t.stride()]
    numbers = [0, 1, 5, 3, 2, 3, *addresses, 0, loss.data_ptr(), 0, 0, 0, 0, 0, *strides, 0]
    return (*tensors, loss), [0.2, 0.0, 0.0, *numbers]


HUGE = (-1, 2**45, 2**62, 2**63 - 1)


@pytest.mark.parametrize(
    ("place", "values"),
    [
        *((i, (float("nan"), -1.0, float("inf"))) for i in (1, 2)),
        (4, (0, -1, -(2**62))),
        (5, (-1, -(2**63), 2**60, 2**63 - 1)),
        *((i, (0, *HUGE)) for i in (6, 7)),
        (8, (0, 1, 4, *HUGE)),
        *((i, (0, 1, 2, 3)) for i in range(9, 13)),
        (14, (0, 1, 2)),
        *((i, (4096,)) for i in range(16, 20)),
        *((i, (-1, 2**56, 2**63 - 1)) for i in range(20, 30)),
    ],
)
def test_numbers_that_no_loss_is_made_of(place, values):
    kept, numbers = valid_numbers()
    native._module.nll(*numbers)
    assert kept[-1].isfinite().all()
    for value in values:
        with pytest.raises((ValueError, OverflowError)):
            native._module.nll(*numbers[:place], value, *numbers[place + 1 :])


@pytest.mark.parametrize(
    ("place", "values"),
    [
        (1, (0, -1)),
        (2, (-1, 2**60, 2**63 - 1)),
        (3, (-1, 2**60, 2**63 - 1)),
        *((i, (0, *HUGE)) for i in (4, 5)),
        (6, (0, 1, 4, *HUGE)),
        *((i, (0, 1, 2, 3)) for i in range(7, 12)),
        *((i, (-1, 2**56, 2**63 - 1)) for i in range(12, 18)),
    ],
)
def test_numbers_that_no_draws_are_made_of(place, values):
    made = draws(5)
    tensors = list(made.values())
    strides = [*made["means"].stride(), *made["factors"].stride()]
    numbers = [0, 1, 7, 5, K, D, T, *(t.data_ptr() for t in tensors), *strides]
    native._module.sample(*numbers)
    for value in values:
        with pytest.raises((ValueError, OverflowError)):
            native._module.sample(*numbers[:place], value, *numbers[place + 1 :])


def network_numbers(each=False):
    """Return the tensors and the numbers of a call that C accepts: see `mlp_checked`."""
    made = {name: t.contiguous() for name, t in network(5).items()}
    outputs, inputs = K * (1 + D + T), F + 2
    sizes = [2, 5, F, 2, 3, 5, 2, K, D, T, 1]
    losses, rows, pulled = torch.empty(2), torch.empty(2, 5), torch.empty(2, 5, 2)
    written = [0, 0, rows.data_ptr()] if each else [losses.data_ptr(), pulled.data_ptr(), 0]
    read = [made[name].data_ptr() for name in ("numbers", "vectors", "edge", "slope", "target")]
    strides = [5 * F, F, 10, 2, 5 * D, D, 5, 1]
    gradients, layers = [], []
    for name in ("first", "hidden", "head"):
        own = [torch.empty_like(made[name]), torch.empty_like(made[f"{name} bias"])]
        gradients += own
        layers += [made[name].data_ptr(), made[f"{name} bias"].data_ptr()]
        layers += [made["mask"].data_ptr() if name == "hidden" else 0]
        layers += [0, 0] if each else [t.data_ptr() for t in own]
    assert made["head"].shape == (2, 5 + inputs, outputs)
    numbers = [0.0, 0.0, 0, 1, *sizes, *read, made["weights"].data_ptr(), *written, *strides]
    return (*made.values(), losses, rows, pulled, *gradients), [*numbers, *layers]


@pytest.mark.parametrize(
    ("place", "values"),
    [
        *((i, (math.nan, -1.0, math.inf)) for i in (0, 1)),
        (3, (0, -1)),
        *((i, (0, *HUGE)) for i in (4, 9, 11, 12)),
        *((i, HUGE) for i in (5, 6, 7, 8)),
        (10, (0, -1, 33, 2**62)),
        (13, (0, 1, 4, *HUGE)),
        (14, (2, -1)),
        *((i, (0, 1, 2, 3)) for i in (15, 16, 17, 18, 19, 21)),
        (22, (1, 2, 3)),
        *((i, (-1, 2**56, 2**63 - 1)) for i in range(24, 32)),
        *((i, (0, 1, 2, 3)) for i in (32, 33, 35, 36, 37, 38, 40, 41, 42, 43, 45, 46)),
        *((i, (4096,)) for i in (34, 44)),  # a mask of the first layer, and of the head
    ],
)
def test_numbers_that_no_network_is_made_of(place, values):
    kept, numbers = network_numbers()
    native._module.mlp(*numbers)
    assert all(t.isfinite().all() for t in kept[-6:])
    for value in values:
        with pytest.raises((ValueError, OverflowError)):
            native._module.mlp(*numbers[:place], value, *numbers[place + 1 :])


def test_a_network_writes_losses_of_rows_or_gradients_and_nothing_twice():
    kept, numbers = network_numbers(each=True)
    native._module.mlp(*numbers)
    assert kept[14].isfinite().all()
    for place in (21, 22, 35, 46):  # a loss, or a gradient, beside those of rows
        with pytest.raises(ValueError, match="address"):
            native._module.mlp(*numbers[:place], kept[0].data_ptr(), *numbers[place + 1 :])
    kept, numbers = network_numbers()
    for place, other in ((21, 36), (22, 15), (35, 32), (36, 41), (46, 17)):
        with pytest.raises(ValueError, match="shares memory"):
            native._module.mlp(*numbers[:place], numbers[other], *numbers[place + 1 :])


@pytest.mark.parametrize(
    ("place", "values"),
    [
        *((i, (math.nan, -1.0, math.inf)) for i in (0, 1, 2, 3, 4, 6)),
        (5, (math.nan, -1.0)),
        *((i, (math.nan, -1.0, 0.0, math.inf)) for i in (7, 8)),
        (10, (0, -1)),
        (11, (-1, 2**40, 2**62)),
        (12, (0, -1, 257, 2**62)),
        (13, (0, 1, 2, 3)),
        (14, (-1, 2**40, 2**62)),
        *((i, (0, 1, 2, 3)) for i in range(16, 20)),
        (20, (1, 2, 3)),
    ],
)
def test_numbers_that_no_step_is_made_of(place, values):
    made = parameter_of_members()
    order = ("gradient", "weight", "first", "second", "average")
    lengths, addresses = torch.empty(2).double(), [made[name].data_ptr() for name in order]
    reals = [0.1, 0.9, 0.999, 1e-8, 0.1, 1.0, 0.1, 0.1, 0.001]
    numbers = [*reals, 0, 1, 2, 1, lengths.data_ptr(), 12, 1, *addresses]
    native._module.adamw(*numbers)
    for value in values:
        with pytest.raises((ValueError, OverflowError)):
            native._module.adamw(*numbers[:place], value, *numbers[place + 1 :])
    for place in range(17, 21):
        with pytest.raises(ValueError, match="shares memory"):
            native._module.adamw(*numbers[:place], addresses[0], *numbers[place + 1 :])


@pytest.mark.parametrize(
    ("place", "values"),
    [
        (0, (0.0, -1.0, math.nan)),
        (1, (0, -1)),
        (2, (-1, 2**60, 2**63 - 1)),
        *((i, (0, *HUGE)) for i in (3, 4)),
        (5, (0, 1, 4, *HUGE)),
        *((i, (0, 1, 2, 3)) for i in (6, 7, 8, 9, 11)),
        (10, (1, 2, 3)),
        *((i, (0, 1, 2, 3)) for i in range(12, 16)),
    ],
)
def test_numbers_that_no_partial_density_is_made_of(place, values):
    tensors = [t.double() for t in mixture(5).values()]
    made = [torch.empty(5, dtype=torch.float64), *(torch.empty_like(t) for t in tensors[:4])]
    numbers = [1e154, 1, 5, K, D, T, *(t.data_ptr() for t in (*tensors, *made))]
    native._module.partial(*numbers)
    for value in values:
        with pytest.raises((ValueError, OverflowError)):
            native._module.partial(*numbers[:place], value, *numbers[place + 1 :])


def hashed(word):
    """Return SplitMix64's hash, in whole numbers."""
    word %= 2**64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return word ^ word >> 31


@pytest.mark.parametrize("level", ["x86-64-v4", "x86-64-v3", "baseline"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [1, 3, 4, 255, 256, 261])
def test_native_masks_are_made_of_the_bits_of_splitmix(level, dtype, columns):
    golden, bases, place, first, dropped = 0x9E3779B97F4A7C15, [3, -5], 7, 2 << 32, 20_000
    used = native._module.level()
    if not native._module.use(level):
        pytest.skip("not on this machine")
    try:
        mask = native.mask(
            torch.tensor(bases),
            3,
            columns,
            place=place,
            first=first,
            dropped=dropped,
            like=torch.empty(0, dtype=dtype),
        )
    finally:
        native._module.use(used)
    kept = torch.tensor(65536 / (65536 - dropped), dtype=dtype).item()
    for member, base in enumerate(bases):
        for row in range(3):
            key = hashed(base + (place + row) * golden)
            words = [hashed(key + (first + j) * golden) for j in range(-(-columns // 4))]
            bits = b"".join(word.to_bytes(8, sys.byteorder) for word in words)
            halves = [
                int.from_bytes(bits[i : i + 2], sys.byteorder, signed=True)
                for i in range(0, 2 * columns, 2)
            ]
            expected = [0.0 if half < dropped - 32768 else kept for half in halves]
            assert mask[member, row].tolist() == expected


@pytest.mark.parametrize(
    "changed",
    [
        *({"bases": wrong} for wrong in ([1], None, torch.tensor(1), torch.zeros(2))),
        {"bases": torch.zeros(2, 2, dtype=torch.int64)},
        {"bases": torch.zeros(2, dtype=torch.int64).to_sparse()},
        {"bases": torch.zeros(2, dtype=torch.int64, device="meta")},
        {"like": torch.empty(0, dtype=torch.float16)},
        {"like": torch.empty(0, device="meta")},
        *({"dropped": wrong} for wrong in (-1, 65536)),
        *({"place": wrong} for wrong in (2**63, -(2**63) - 1)),
    ],
    ids=str,
)
def test_misuse_of_a_mask_is_refused_by_name(changed):
    given = {"bases": torch.tensor([1, 2]), "like": torch.empty(0), "place": 0, "first": 0}
    native.mask(rows=3, columns=5, **{**given, "dropped": 9})
    with pytest.raises(CondensError):
        native.mask(rows=3, columns=5, **{**given, "dropped": 9, **changed})


@pytest.mark.parametrize(
    ("place", "values"),
    [
        *((i, (-1, 2**56, 2**63 - 1)) for i in (2, 3, 4)),
        (7, (-32769, 32769, 2**40)),
        *((i, (0, 1, 2, 3)) for i in (8, 9)),
    ],
)
def test_numbers_that_no_native_mask_is_made_of(place, values):
    bases, mask = torch.tensor([1, 2]), torch.empty(2, 3, 5)
    numbers = [1.0, 0, 2, 3, 5, 0, 0, 0, bases.data_ptr(), mask.data_ptr()]
    native._module.mask(*numbers)
    for value in values:
        with pytest.raises((ValueError, OverflowError)):
            native._module.mask(*numbers[:place], value, *numbers[place + 1 :])
    with pytest.raises(ValueError, match="shares memory"):
        native._module.mask(*numbers[:8], mask.data_ptr(), mask.data_ptr())


@pytest.mark.parametrize(
    "wrong", [(), (1,), ("a",) * 31, (0.2, 0.0, 0.0, *range(29)), (None,) * 31]
)
def test_calls_with_other_things_than_numbers(wrong):
    module = native._module
    for function in (
        *(module.nll, module.sample, module.partial),
        module.mask,
        module.mlp,
        module.adamw,
        module.steps,
    ):
        with pytest.raises((TypeError, ValueError)):
            function(*wrong)


def slices(t):
    """Return the numbers of t as a view with gaps in every axis."""
    for axis in range(t.dim()):
        t = t.repeat_interleave(3, axis)
    return t[(slice(1, None, 3),) * t.dim()]


def misaligned(t):
    """Return the numbers of t one byte off where numbers may begin."""
    room = bytearray(t.numel() * t.element_size() + 1)
    return torch.frombuffer(room, dtype=t.dtype, offset=1).view(t.shape).copy_(t)


VIEWS = {
    "gaps everywhere": slices,
    "columns of a wide tensor": lambda t: torch.cat([t] * 25, -1)[..., : t.shape[-1]],
    "batch last": lambda t: t.movedim(0, -1).contiguous().movedim(-1, 0),
    "negated lazily": lambda t: torch._neg_view(-t),
    "one byte off": misaligned,
    "large gaps": lambda t: torch.cat([t.unsqueeze(1)] * 40, 1)[:, 7],
}


@pytest.mark.parametrize("which", [0, 1, 2, 3], ids=["target", "logits", "means", "factors"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("view", VIEWS)
def test_any_view_is_read_and_its_gradient_written_where_it_belongs(view, dtype, which):
    made = mixture(130)
    inputs = [made[name].to(dtype) for name in ("target", "logits", "means", "factors")]
    inputs[which] = VIEWS[view](inputs[which])
    for function in (lambda *a: nll(*a).sum(), lambda *a: 130 * loss(*a)):
        leaves = [t.detach().requires_grad_() for t in inputs]
        value = function(*leaves)
        reference = [t.detach().double().requires_grad_() for t in inputs]
        expected = -log_prob(*reference).sum()
        assert_close(value.double(), expected, rtol=1e-5, atol=1e-5)
        gradients = torch.autograd.grad(value, leaves)
        exact = torch.autograd.grad(expected, reference)
        tolerance = {"rtol": 2e-4, "atol": 1e-3} if dtype is torch.float32 else {}
        assert_close(gradients, [g.to(dtype) for g in exact], **tolerance)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("which", ["features", "target"])
def test_any_view_of_rows_for_a_head(view, which):
    head = FullHead(F, D, K).double()
    made = {"features": torch.randn(300, F).double(), "target": torch.randn(300, D).double()}
    exact = {name: t.clone().requires_grad_() for name, t in made.items()}
    expected = -log_prob(exact["target"], *head.parameters_of(exact["features"])).mean()
    made[which] = VIEWS[view](made[which])
    made = {name: t.detach().requires_grad_() for name, t in made.items()}
    value = head.loss(made["features"], made["target"])
    assert_close(value, expected)
    assert_close(
        torch.autograd.grad(value, list(made.values())),
        torch.autograd.grad(expected, list(exact.values())),
    )


def test_columns_of_a_wide_tensor_get_their_gradient_by_a_head():
    """The gradient's memory is that of two columns, not of the fifty they are taken from."""
    whole = torch.randn(200, 50, requires_grad=True)
    head, features = FullHead(4, 2, 2), torch.randn(200, 4)
    head.loss(features, whole[:, :2]).backward()
    target = whole.detach()[:, :2].clone().requires_grad_()
    (-log_prob(target, *head.parameters_of(features))).mean().backward()
    assert_close(whole.grad[:, :2], target.grad, rtol=1e-4, atol=1e-7)
    assert not whole.grad[:, 2:].any()


@pytest.mark.parametrize("level", ["x86-64-v4", "x86-64-v3", "baseline"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sizes_around_every_block(level, dtype):
    """Every remainder of rows, components and dimensions, at every level of instructions."""
    before, used = torch.get_num_threads(), native._module.level()
    if not native._module.use(level):
        pytest.skip("not on this machine")
    try:
        for rows, threads in ((1, 1), (7, 1), (8, 1), (9, 1), (63, 1), (64, 1), (65, 1), (129, 2)):
            torch.set_num_threads(threads)
            for k, d in ((1, 1), (2, 3), (9, 4), (3, 8), (5, 9), (1, 17)):
                made = [t.to(dtype) for t in mixture(rows, k, d).values()]
                target, logits, means, factors, weights = made
                for packed in (factors, factors[..., :d]):
                    inputs = (target, logits, means, bounded_scales(packed, d, 0.1))
                    value, gradients = native.total(inputs, weights=weights, to_target=True)
                    losses = -log_prob(*(t.double() for t in inputs))
                    exact = (losses * weights).sum().to(dtype)
                    assert_close(value, exact, rtol=1e-4, atol=1e-4)
                    assert all(gradient.isfinite().all() for gradient in gradients)
                    draws = sample(*inputs[1:], (9,))
                    assert draws.isfinite().all()
                    assert draws.shape == (9, rows, d)
    finally:
        native._module.use(used)
        torch.set_num_threads(before)
