"""Whole networks and steps of AdamW in the native kernel, against plain formulas by torch.

`make test-sanitised` runs this file too.
"""

import copy
import math

import pytest
import torch
from torch import Generator
from torch.testing import assert_close

from condens.errors import ArgumentError, CondensError
from condens.functional import bounded_scales, log_prob
from condens.kernels import native, networks
from condens.kernels.networks import (
    AdamW,
    Batch,
    Layer,
    Network,
    Schedule,
    Steps,
    Weights,
    mlp,
    mlp_nll,
)

pytestmark = pytest.mark.skipif(bool(native.missing), reason=native.missing)
HUGE = (-1, 2**45, 2**62, 2**63 - 1)
LEVELS = ["x86-64-v4", "x86-64-v3", "baseline"]


@pytest.fixture
def at_level(request):
    """Compute at a level of instructions, then with as many threads as before."""
    before, used = torch.get_num_threads(), native._module.level()
    if not native._module.use(request.param):
        pytest.skip("not on this machine")
    yield
    native._module.use(used)
    torch.set_num_threads(before)


def pieces(x, edge, slope):
    position = ((x.unsqueeze(-1) - edge) * slope).clamp(0, 1) - 0.5
    return torch.cat([x, torch.where(slope > 0, position, 0.0).flatten(-2)], -1)


def losses_of_rows(network, layers, numbers, vectors, target):
    """Return the losses [M, b], by formulas that autograd follows."""
    components, dimensions, packed = network.sizes
    h = torch.cat([pieces(numbers, network.edge, network.slope), vectors], -1)
    for place, (weight, bias, mask) in enumerate(layers[:-1]):
        made = torch.nn.functional.silu(h @ weight + bias)
        made = made if mask is None else mask * made
        h = made if not place else h + made
    x = torch.cat([numbers, vectors], -1)
    h = torch.cat([h, x], -1) if network.shortcut else h
    parts = (h @ layers[-1].weight + layers[-1].bias).split(
        [components, components * dimensions, components * packed], -1
    )
    shape = (*parts[0].shape[:2], components)
    factors = bounded_scales(
        parts[2].view(*shape, packed), dimensions, network.floor, network.ceiling
    )
    return -log_prob(target, parts[0], parts[1].view(*shape, dimensions), factors)


def made_network(members, rows, *, numbers=3, vectors=0, bins=0, width=5, depth=2, sizes=(2, 2, 3),
                 shortcut=False, masked=False, dtype=torch.float64):  # fmt: skip
    """Return a network, its layers, and rows; the bins of a number are one less than the last's."""
    generator = Generator().manual_seed(rows + 7 * width)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    edge = normal(numbers, bins).sort(1).values if bins else normal(numbers, 0)
    slope = torch.zeros_like(edge)
    if bins:
        slope[:, :-1] = 1 / edge.diff(dim=1)
        slope[:, -1] = 0.7
        for place in range(numbers):
            slope[place, bins - place % bins :] = 0
    outputs, inputs = sizes[0] * (1 + sizes[1] + sizes[2]), numbers + vectors
    layers, read = [], inputs + numbers * bins
    for place in range(depth):
        mask = 2.0 * torch.randint(2, (members, rows, width), generator=generator).to(dtype)
        layers.append(
            Layer(
                normal(members, read, width) / math.sqrt(read),
                normal(members, 1, width),
                mask if masked and place else None,
            )
        )
        read = width
    read = width + shortcut * inputs
    layers.append(
        Layer(normal(members, read, outputs) / math.sqrt(read), normal(members, 1, outputs))
    )
    network = Network(sizes, edge, slope, shortcut, 0.05, 3.0)
    given = normal(members, rows, numbers), normal(members, rows, vectors)
    return network, layers, *given, normal(members, rows, sizes[1])


def check_network(made, weights):
    network, layers, numbers, vectors, target = made
    tolerance = {"rtol": 1e-9, "atol": 1e-11}
    if target.dtype is torch.float32:
        tolerance = {"rtol": 2e-4, "atol": 2e-4}
    total, to_vectors, gradients = mlp(*made, weights, to_vectors=True)
    leaves = [t.detach().double().requires_grad_() for layer in layers for t in layer[:2]]
    read = vectors.double().requires_grad_()
    double = Network(network.sizes, network.edge.double(), network.slope.double(), *network[3:])
    masks = [None if layer.mask is None else layer.mask.double() for layer in layers]
    known = [Layer(*each) for each in zip(leaves[::2], leaves[1::2], masks, strict=True)]
    each = losses_of_rows(double, known, numbers.double(), read, target.double())
    some = torch.full_like(each, 1 / max(each.shape[1], 1)) if weights is None else weights.double()
    expected = (some * each).sum()
    found = torch.autograd.grad(expected, [read, *leaves], allow_unused=True)
    assert total == pytest.approx(expected.item(), rel=tolerance["rtol"], abs=tolerance["atol"])
    kind = target.dtype
    for gradient, exact in zip(gradients, found[1:], strict=True):
        # Sums over rows cancel: what rounding leaves is a part of the largest entry.
        part = 1e-13 if kind is torch.float64 else 2e-5
        largest = part * max(1.0, float(exact.abs().amax()))
        assert_close(gradient, exact.to(kind), rtol=tolerance["rtol"], atol=largest)
    if to_vectors is None:
        assert not vectors.shape[2]
    else:
        assert_close(to_vectors, found[0].to(kind), **tolerance)
    assert_close(mlp_nll(*made), each.detach().to(kind), **tolerance)


SHAPES = [
    {"rows": 1},
    {"rows": 7, "width": 1, "depth": 1},
    {"rows": 8, "bins": 1},
    {"rows": 15, "width": 16, "bins": 4, "shortcut": True},
    {"rows": 16, "width": 17, "vectors": 2},
    {"rows": 17, "width": 31, "vectors": 3, "bins": 5, "shortcut": True, "masked": True},
    {"rows": 33, "width": 33, "depth": 4, "masked": True},
    {"rows": 63, "numbers": 0, "vectors": 9, "shortcut": True},
    {"rows": 64, "sizes": (1, 1, 1), "bins": 24, "numbers": 1},
    {"rows": 65, "sizes": (7, 1, 1), "masked": True},
    {"rows": 129, "sizes": (3, 5, 15), "bins": 3, "vectors": 1, "shortcut": True, "masked": True},
    {"rows": 100, "sizes": (3, 4, 4), "width": 48},
]


@pytest.mark.parametrize("at_level", LEVELS, indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.usefixtures("at_level")
def test_networks_of_every_size(shape, dtype):
    made = made_network(3, dtype=dtype, **shape)
    weights = torch.rand(3, shape["rows"], generator=Generator().manual_seed(0)).to(dtype)
    weights[:, ::5] = 0
    check_network(made, None)
    check_network(made, weights)


def test_any_number_of_threads_gives_the_same_bits():
    made, before = made_network(5, 100, bins=4, masked=True, shortcut=True), torch.get_num_threads()
    found = []
    for threads in (1, 2, 3, 8):
        torch.set_num_threads(threads)
        total, _, gradients = mlp(*made, None, to_vectors=False)
        found.append((total, *(g.tolist() for g in gradients)))
    torch.set_num_threads(before)
    assert all(one == found[0] for one in found)


def test_no_rows_have_no_loss_and_no_gradient():
    total, to_vectors, gradients = mlp(*made_network(2, 0, vectors=1), None, to_vectors=True)
    assert total == 0
    assert to_vectors.shape == (2, 0, 1)
    assert not any(g.any() for g in gradients)
    assert mlp_nll(*made_network(2, 0)).shape == (2, 0)


def test_rows_are_read_where_they_are():
    """Slices of an epoch's rows, of which the last axis alone is contiguous, and others."""
    network, layers, numbers, vectors, target = made_network(2, 40, vectors=2)
    expected = mlp(network, layers, numbers, vectors, target, None, to_vectors=True)
    for change in (
        lambda t: torch.cat([t, t, t], 1)[:, 40:80],
        lambda t: torch.cat([t, t], 2)[..., : t.shape[2]],
        lambda t: t.movedim(1, 2).contiguous().movedim(2, 1),
        lambda t: torch._neg_view(-t),
    ):
        moved = (change(t) for t in (numbers, vectors, target))
        assert_close(mlp(network, layers, *moved, None, to_vectors=True), expected)


def test_a_row_without_weight_takes_no_part():
    network, layers, numbers, vectors, target = made_network(1, 3)
    weights = torch.tensor([[0.5, 0.0, 0.25]], dtype=torch.float64)
    target[0, 1] = 1e200
    total, _, gradients = mlp(network, layers, numbers, vectors, target, weights, to_vectors=False)
    rest = [t[:, ::2] for t in (numbers, vectors, target, weights)]
    expected, _, others = mlp(network, layers, *rest, to_vectors=False)
    assert total == pytest.approx(expected, rel=1e-12)
    assert_close(gradients, others, rtol=1e-10, atol=1e-14)


# AdamW.


def parameters(dtype, members=3):
    generator = Generator().manual_seed(3)
    shapes = [(4, 7), (1, 7), (33, 1), (128, 128)]
    return [torch.randn(members, *shape, generator=generator).to(dtype) for shape in shapes]


@pytest.mark.parametrize("at_level", LEVELS, indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.usefixtures("at_level")
def test_steps_are_those_of_torch(dtype, threads):
    """With each member's gradient clipped, and averages behind."""
    torch.set_num_threads(threads)
    ours, generator = parameters(dtype), Generator().manual_seed(4)
    decayed = [True, False, True, False]
    theirs = [copy.deepcopy(p).double().requires_grad_() for p in ours]
    averages = [p.clone() for p in ours]
    exact = [p.double().clone() for p in ours]
    first, second = ([torch.zeros_like(p) for p in ours] for _ in range(2))
    adamw = AdamW(
        [Weights(*each) for each in zip(ours, first, second, averages, strict=True)],
        decayed,
    )
    groups = [
        {"params": [p], "weight_decay": 0.3 if shrinks else 0.0}
        for p, shrinks in zip(theirs, decayed, strict=True)
    ]
    reference, clip = torch.optim.AdamW(groups, lr=0.01), 50.0
    for step in range(1, 8):
        scale = torch.tensor([0.1, 1.0, 10.0]).view(3, 1, 1)  # of members: some are clipped
        gradients = [(torch.randn(p.shape, generator=generator) * scale).to(dtype) for p in ours]
        rate, follow = 0.01 * step, 1 / (1 + step)
        lengths = adamw.step(gradients, step=step, rate=rate, decay=0.3, clip=clip, follow=follow)
        squares = sum(g.double().square().sum((1, 2)) for g in gradients)
        assert lengths == pytest.approx(squares.sqrt().tolist(), rel=1e-12)
        factors = (clip / (squares.sqrt() + 1e-6)).clamp(max=1)
        assert 0 < (factors < 1).sum() < 3
        for p, g in zip(theirs, gradients, strict=True):
            p.grad = g.double() * factors.view(3, 1, 1)
        for group in reference.param_groups:
            group["lr"] = rate
        reference.step()
        for mean, p in zip(exact, theirs, strict=True):
            mean.lerp_(p.detach(), follow)
    tolerance = {"rtol": 1e-11, "atol": 1e-13}
    if dtype is torch.float32:
        tolerance = {"rtol": 1e-4, "atol": 1e-5}
    assert_close([p.double() for p in ours], [p.detach() for p in theirs], **tolerance)
    assert_close([a.double() for a in averages], exact, **tolerance)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_nothing_changes_where_a_gradient_is_not_finite(wrong):
    ours = parameters(torch.float32)
    kept = [[torch.rand_like(p) for p in ours] for _ in range(3)]
    adamw = AdamW([Weights(*each) for each in zip(ours, *kept, strict=True)], [True] * 4)
    before = [t.clone() for t in (*ours, *kept[0], *kept[1], *kept[2])]
    gradients = [torch.ones_like(p) for p in ours]
    gradients[2][1, 3] = wrong
    lengths = adamw.step(gradients, step=1, rate=0.1, decay=0.1, clip=1.0, follow=0.5)
    assert [math.isfinite(length) for length in lengths] == [True, False, True]
    assert_close([*ours, *kept[0], *kept[1], *kept[2]], before, rtol=0, atol=0)


def test_averages_may_be_left_out_and_stay():
    ours, theirs = parameters(torch.float64), parameters(torch.float64)
    for made, follow in ((ours, False), (theirs, True)):
        moments = [[torch.zeros_like(p) for p in made] for _ in range(2)]
        still = [p.clone() for p in made]
        weights = zip(made, *moments, still if follow else [None] * 4, strict=True)
        adamw = AdamW([Weights(*each) for each in weights], [False] * 4)
        adamw.step([torch.ones_like(p) for p in made], step=1, rate=0.1, decay=0.0, clip=math.inf)
        assert_close(still, parameters(torch.float64), rtol=0, atol=0)
    assert_close(ours, theirs, rtol=0, atol=0)
    assert_close(ours, [p - 0.1 for p in parameters(torch.float64)], rtol=1e-6, atol=1e-7)


def test_memory_that_moved_is_refused_and_its_own_stays():
    weight, *rest = (torch.zeros(2, 3, 1) for _ in range(3))
    adamw, gradient = (
        AdamW([Weights(weight, *rest)], [False]),
        torch.ones(2, 3, 1),
    )
    options = {"step": 1, "rate": 0.1, "decay": 0.0, "clip": 9.0}
    assert adamw.holds([Weights(weight, *rest)])
    kept = weight.data
    weight.data = torch.zeros(2, 3, 1)
    assert not adamw.holds([Weights(weight, *rest)])
    adamw.step([gradient], **options)  # of the memory that it has
    assert not weight.any()
    assert kept.all()
    kept.untyped_storage().resize_(0)
    with pytest.raises(ArgumentError, match="weights has other memory"):
        adamw.step([gradient], **options)


@pytest.mark.parametrize("members", [0, 1])
def test_of_few_members(members):
    weight = torch.ones(members, 2, 2)
    adamw = AdamW([Weights(weight, torch.zeros_like(weight), torch.zeros_like(weight))], [True])
    lengths = adamw.step([torch.ones_like(weight)], step=1, rate=0.1, decay=0.0, clip=9.0)
    assert lengths == [2.0] * members
    with pytest.raises(ArgumentError, match="weights is empty"):
        AdamW([], [])


# Several steps in a call.


def training(members=3, dtype=torch.float32, **options):
    """Return steps, and all they change: weights, moments and averages."""
    network, layers, *_ = made_network(members, 1, masked=False, dtype=dtype, **options)
    weights = [tensor.clone() for layer in layers for tensor in layer[:2]]
    kept = [[torch.zeros_like(t) for t in weights] for _ in range(2)]
    kept.append([t.clone() for t in weights])
    adamw = AdamW(
        [Weights(*each) for each in zip(weights, *kept, strict=True)],
        [True, False] * len(layers),
    )
    state = [weights, *kept]
    return Steps(network, adamw), state


def batches(steps, sizes, *, members=3, weighted=False, dtype=torch.float32):
    generator, found, place = Generator().manual_seed(1), [], 5
    columns, dimensions = steps.network.edge.shape[0], steps.network.sizes[1]
    for rows in sizes:
        x = torch.randn(members, rows, columns, generator=generator).to(dtype)
        y = torch.randn(members, rows, dimensions, generator=generator).to(dtype)
        w = torch.rand(members, rows, generator=generator).to(dtype) if weighted else None
        found.append(Batch(place, x, y, w))
        place += rows
    return found


SCHEDULE = [Schedule(0.01 * number, 1 / (1 + number)) for number in range(1, 5)]
OPTIONS = {"step": 3, "decay": 0.1, "clip": 1.0}


def dropped_by(steps):
    return [None, *[6554] * (len(steps.layers) - 2), None]


def take(steps, given, *, bases=None, **changed):
    """Take steps on batches."""
    options = {"dropped": dropped_by(steps), "bases": torch.tensor([3, -4, 5]), **OPTIONS}
    schedule = changed.pop("schedule", SCHEDULE[: len(given)])
    options |= {"bases": options["bases"] if bases is None else bases}
    return steps.take(given, schedule, **options | changed)


def one_at_a_time(steps, given):
    """Return the losses of steps that are taken by a call for each part of each."""
    losses = []
    for number, (place, x, y, w) in enumerate(given):
        layers, calls = [], 0
        for layer, dropped in zip(steps.layers, dropped_by(steps), strict=True):
            mask = None
            if dropped is not None:
                calls += 1
                mask = native.mask(
                    *(torch.tensor([3, -4, 5]), x.shape[1], layer.bias.shape[-1]),
                    place=place, first=calls << 32, dropped=dropped, like=x,
                )  # fmt: skip
            layers.append(layer._replace(mask=mask))
        none = x[..., :0]
        total, _, gradients = mlp(steps.network, layers, x, none, y, w, to_vectors=False)
        changed = OPTIONS | {"step": OPTIONS["step"] + number}
        rate, follow = SCHEDULE[number]
        lengths = steps.adamw.step(gradients, rate=rate, follow=follow, **changed)
        assert all(map(math.isfinite, lengths))
        losses.append(total)
    return losses


@pytest.mark.parametrize("at_level", LEVELS, indirect=True)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.usefixtures("at_level")
def test_steps_in_one_call_have_the_bits_of_single_ones(weighted, dtype):
    """The last batch is smaller; masks, rates and corrections are those of each step."""
    options = {"dtype": dtype, "bins": 3, "depth": 3, "shortcut": True, "width": 19}
    (ours, found), (theirs, expected) = training(**options), training(**options)
    given = batches(ours, (32, 32, 33, 7), weighted=weighted, dtype=dtype)
    assert [sum(each) for each in take(ours, given)] == one_at_a_time(theirs, given)
    for ours_of, theirs_of in zip(found, expected, strict=True):
        assert_close(ours_of, theirs_of, rtol=0, atol=0)
    assert not torch.equal(found[0][0], training(**options)[1][0][0])


@pytest.mark.parametrize("wrong", ["a row", "a gradient"])
@pytest.mark.parametrize("at", [0, 2])
def test_steps_end_before_one_that_is_not_finite(wrong, at):
    """And change nothing more: what becomes of it is decided elsewhere."""
    (ours, found), (theirs, expected) = training(), training()
    given = batches(ours, (8, 8, 8, 8))
    if wrong == "a row":
        given[at].target[1, 3] = math.nan
    else:  # whose loss is finite
        given[at].target[1, 3] = 3e18
        given[at].numbers[1, 3] = 1e5
    losses = take(ours, given)
    assert len(losses) == at
    assert [sum(each) for each in losses] == one_at_a_time(theirs, given[:at])
    for ours_of, theirs_of in zip(found, expected, strict=True):
        assert_close(ours_of, theirs_of, rtol=0, atol=0)


def test_misuse_of_steps_is_refused_by_name():
    steps, _ = training()
    given, bases = batches(steps, (8, 8, 8, 8)), torch.arange(3)
    x, y, w = given[0].numbers, given[0].target, torch.rand(3, 8)
    wrong = [
        *(given[0]._replace(numbers=bad) for bad in (x[:2], x[0], x[..., :1], x.double(), None)),
        *(given[0]._replace(target=bad) for bad in (y[:, :7], y[..., :1], y.to_sparse(), 5.0)),
        *(given[0]._replace(weights=bad) for bad in (w[:2], w[:, :1], w.double(), w[..., None])),
        *(given[0]._replace(place=bad) for bad in (2**63, -1)),
    ]
    for one in wrong:
        with pytest.raises(CondensError):
            take(steps, [one])
    changes = [
        *({"bases": bad} for bad in (bases[:2], bases.float(), "a", bases.view(3, 1))),
        *({"decay": bad} for bad in (math.nan, math.inf, -1.0)),
        *({"clip": bad} for bad in (math.nan, -1.0)),
        {"step": 0},
        *({"schedule": bad} for bad in (SCHEDULE[1:], [Schedule(math.inf)] * 4)),
        *({"dropped": bad} for bad in ([65536] * 3, [-1] * 3, [None] * 2, [None] * 4)),
    ]
    for changed in changes:
        with pytest.raises(CondensError):
            take(steps, given, **changed)
    with pytest.raises(CondensError, match="batches has 65"):
        take(steps, given[:1] * 65, schedule=SCHEDULE[:1] * 65)
    assert take(steps, []) == []
    network, adamw = steps.network, steps.adamw
    for held in (adamw.held[::-1], adamw.held[:4], adamw.held[:5]):
        with pytest.raises(CondensError):
            Steps(network, AdamW(held, [True] * len(held)))
    with pytest.raises(CondensError):
        Steps(network._replace(edge=torch.zeros(5, 0), slope=torch.zeros(5, 0)), adamw)
    with pytest.raises(CondensError, match="decayed has 1, but 2 were expected"):
        AdamW(adamw.held[:2], [True])
    with pytest.raises(CondensError, match="gradients has 0"):
        adamw.step([], rate=0.1, **OPTIONS)


def test_steps_keep_the_memory_that_they_were_made_with():
    """Whatever becomes of the tensors by which they were told of it."""
    steps, (weights, *_) = training(bins=2)
    given, kept = batches(steps, (8,)), [t.data for t in weights]
    for tensor in weights:
        tensor.data = tensor.data[..., :0].contiguous()
    before = [t.clone() for t in kept]
    assert len(take(steps, given)) == 1
    assert not any(torch.equal(a, b) for a, b in zip(kept[::2], before[::2], strict=True))


@pytest.mark.parametrize("which", ["weight", "edge"])
def test_memory_that_became_less_is_refused(which):
    """By its size: after it grew and shrank again, it may be where it was."""
    steps, (weights, *_) = training(bins=2)
    given = batches(steps, (8,))
    memory = (weights[0] if which == "weight" else steps.network.edge).untyped_storage()
    memory.resize_(memory.nbytes() - 4)
    with pytest.raises(ArgumentError, match="memory"):
        take(steps, given)


def test_what_is_dropped_may_change():
    steps, _ = training()
    others, _ = training()
    given = batches(steps, (8, 8))
    first = take(steps, given[:1])
    take(others, given[:1])
    none, some = (
        take(one, given[1:], dropped=[None, count, None], step=4)
        for one, count in ((steps, None), (others, 30_000))
    )
    assert first
    assert none != some


def test_numbers_that_no_native_steps_are_made_of(monkeypatch):
    """Every number of the call but those that any value is right for."""
    steps, _ = training(bins=2)
    given, bases, told = batches(steps, (4,), weighted=True), torch.arange(3), []

    def keep(name, *numbers):
        told.append(numbers)
        return getattr(native._module, name)(*numbers)

    monkeypatch.setattr(networks, "call", keep)
    tables = []
    tensor = torch.tensor
    monkeypatch.setattr(
        torch, "tensor", lambda *a, **k: tables.append(tensor(*a, **k)) or tables[-1]
    )
    assert len(take(steps, given, bases=bases)) == 1
    (numbers,), table = told, next(t for t in tables if t.dim() == 2 and not t.is_floating_point())
    numbers = list(numbers)
    call, own = native._module.steps, torch.empty(1, 3)
    table[0, 11] = own.data_ptr()  # those of that call are gone
    assert call(*numbers) == 1
    depth = 2
    layers = 7 + 4 + 30
    masks = layers + 5 * (depth + 1)
    adamw = masks + depth + 1
    wrong = {
        **dict.fromkeys((0, 1, 2, 3, 4, 5), (math.nan, -1.0)),
        6: (math.nan, -1.0),
        7: (0, -1, 65, 2**62),
        8: (0, -8, 1),
        9: (0, -8, 1),
        10: (0, 1),
        11: (1,),  # of another precision than the optimiser
        12: (0, -1),
        13: (0, -1, 2, 4, 2**62),
        15: HUGE,
        17: HUGE,
        18: (0, *HUGE),
        19: (0, -1, 33),
        20: (0, *HUGE),
        21: (0, *HUGE),
        22: (0, 1, 4, *HUGE),
        26: (0, 1, 2, 3),
        27: (0, 1, 2, 3),
        32: (4096,),
        layers: (0, 1, 2),
        layers + 2: (4096,),
        layers + 3: (0, 1, 2),
        masks + 1: (-1, 65537, 2**40),
        adamw: (1,),
        adamw + 2: (2, 4),
        adamw + 3: (0, 5, 257),
        adamw + 5: (-1, 2**40),
        adamw + 8: (0, 1, 2),
    }
    for place, values in wrong.items():
        for value in values:
            with pytest.raises((ValueError, OverflowError)):
                call(*numbers[:place], value, *numbers[place + 1 :])
    for place, values in {
        0: (-1, 2**40),
        2: (0, 1, 2),
        3: (-1, 2**60),
        5: (0, 1, 2),
        8: (1, 2),
        11: (0, 1, 2),
    }.items():
        kept = int(table[0, place])
        for value in values:
            table[0, place] = value
            with pytest.raises((ValueError, OverflowError)):
                call(*numbers)
        table[0, place] = kept
    assert call(*numbers) == 1
