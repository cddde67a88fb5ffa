"""Calls that reach C, by every door: strides, overlaps, lengths, dtypes, edits, threads."""

import copy
import math
import resource
import threading

import pytest
import torch
from helpers import independent as references
from helpers.search import Refused, Wrong, finite, near, need, no_nan, property_of, refused

from condens import GaussianMixture, functional
from condens.errors import CondensError
from condens.nn import HEADS, MixtureNetwork

pytestmark = pytest.mark.slow

FLOATS = {"float32": torch.float32, "float64": torch.float64}
# What torch says of tensors that do not broadcast.
TORCH_SHAPE = ("must match", "shape", "broadcast", "size")


def view_of(d, name, shape, dtype, leaf=None):
    """Return a leaf and a function that views it as `shape`, with strides of many kinds."""
    kinds = ["plain", "wide", "steps", "turned", "expanded"]
    if len(shape) > 1:
        kinds.append("windows")
    kind = d.choice(f"{name} view", kinds)
    axis = d.random.randrange(len(shape))
    if kind == "wide":
        extra, start = d.random.randint(1, 40), d.random.randint(0, 3)
        size = (*shape[:-1], shape[-1] + start + extra)
        return size, lambda t: t[..., start : start + shape[-1]]
    if kind == "steps":
        size = tuple(3 * n if a == axis else n for a, n in enumerate(shape))
        index = tuple(slice(1, None, 3) if a == axis else slice(None) for a in range(len(shape)))
        return size, lambda t: t[index]
    if kind == "turned":
        order = d.random.sample(range(len(shape)), len(shape))
        back = [order.index(a) for a in range(len(shape))]
        return tuple(shape[a] for a in order), lambda t: t.permute(back)
    if kind == "expanded":
        axes = [a for a in range(len(shape)) if d.random.random() < 0.6] or [axis]
        return tuple(1 if a in axes else n for a, n in enumerate(shape)), lambda t: t.expand(shape)
    if kind == "windows":
        step = d.random.randint(1, 2)
        size = (*shape[:-2], shape[-1] + step * (shape[-2] - 1))
        return size, lambda t: t.unfold(-1, shape[-1], step)
    return tuple(shape), lambda t: t


def sizes(d, most=9):
    n = d.integer("rows", 1, 300)
    return n, d.integer("n_components", 1, 5), d.integer("dimensions", 1, most)


def packed(d, dimensions):
    full = d.flag("full")
    return dimensions * (dimensions + 1) // 2 if full else dimensions


def compare_gradients(d, leaves, twins, got, expected, dtype):
    """Compare a loss and the gradients of its leaves with those of float64 twins."""
    tolerance = 1e-9 if dtype is torch.float64 else 2e-3
    near(got, expected, "loss", rtol=tolerance, atol=tolerance)
    upstream = d.random.choice([1.0, 0.5, -3.0])
    found = torch.autograd.grad(got, leaves, torch.full_like(got, upstream), allow_unused=True)
    wanted = torch.autograd.grad(expected, twins, torch.full_like(expected, upstream))
    for i, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        need(ours is not None, f"leaf {i} has no gradient")
        size = max(1.0, float(theirs.abs().max()))
        near(ours, theirs, f"gradient of leaf {i}", rtol=tolerance, atol=tolerance * size)


def leaves_of(d, sizes_and_views, dtype):
    """Return leaves, their float64 twins, and the views of both."""
    leaves = [(0.6 * d.normal(*size)).to(dtype).requires_grad_() for size, _ in sizes_and_views]
    twins = [leaf.detach().double().requires_grad_() for leaf in leaves]
    views = [view(leaf) for leaf, (_, view) in zip(leaves, sizes_and_views, strict=True)]
    plain = [
        view(twin).contiguous() for twin, (_, view) in zip(twins, sizes_and_views, strict=True)
    ]
    return leaves, twins, views, plain


@property_of(700, refusals=False)
def test_losses_of_strided_views(d):
    """Whatever the strides, losses and gradients are those of contiguous copies."""
    dtype = d.choice("dtype", FLOATS)
    n, k, dim = sizes(d)
    t = packed(d, dim)
    named = {"target": (n, dim), "logits": (n, k), "means": (n, k, dim), "factors": (n, k, t)}
    parts = [view_of(d, name, shape, dtype) for name, shape in named.items()]
    leaves, twins, views, plain = leaves_of(d, parts, dtype)
    weights = d.normal(n).abs()
    door = d.choice("door", ["nll", "loss", "mean"])
    rows = references.nll(*plain)
    if door == "nll":
        got, expected = functional.nll(*views), rows
        got, expected = (got * weights.to(dtype)).sum(), (expected * weights).sum()
    elif door == "loss":
        got = functional.loss(*views, weights.to(dtype))
        expected = (rows * weights).sum()
    else:
        got, expected = functional.loss(*views), rows.mean()
    compare_gradients(d, leaves, twins, got, expected, dtype)


@property_of(350, refusals=False)
def test_losses_of_views_that_share_memory(d):
    """One tensor passed in several places gets the sum of the gradients."""
    dtype = d.choice("dtype", FLOATS)
    n, k, dim = sizes(d, 5)
    t = packed(d, dim)
    widths = (dim, k, k * dim, k * t)
    wide = max(widths) + d.random.randint(0, 5)
    starts = [d.random.randint(0, wide - width) for width in widths]
    rolling = d.flag("windows")
    size = (n + wide - 1,) if rolling else (n, wide)
    leaf = (0.6 * d.normal(*size)).to(dtype).requires_grad_()
    twin = leaf.detach().double().requires_grad_()

    def views(base):
        base = base.unfold(0, wide, 1) if rolling else base
        parts = [base[:, s : s + w] for s, w in zip(starts, widths, strict=True)]
        return parts[0], parts[1], parts[2].unflatten(1, (k, dim)), parts[3].unflatten(1, (k, t))

    loss = functional.loss if d.flag("fused") else lambda *v: functional.nll(*v).mean()
    expected = references.nll(*(v.contiguous() for v in views(twin))).mean()
    compare_gradients(d, [leaf], [twin], loss(*views(leaf)), expected, dtype)


@property_of(600, refusals=False)
def test_heads_with_strided_features_and_targets(d):
    """The fused head gives the gradients of the mixture it makes."""
    dtype = d.choice("dtype", FLOATS)
    n, k, dim = sizes(d, 6)
    f = d.integer("features", 1, 8)
    kind = d.choice("head", list(HEADS))
    torch.manual_seed(d.random.getrandbits(30))
    head = HEADS[kind](f, dim, k).to(dtype)
    exact = copy.deepcopy(head).double()
    parts = [view_of(d, name, shape, dtype) for name, shape in
             {"features": (n, f), "target": (n, dim)}.items()]  # fmt: skip
    leaves, twins, views, plain = leaves_of(d, parts, dtype)
    weights = d.choice("weights", ["none", "plain", "strided"])
    given = (
        None
        if weights == "none"
        else d.normal(2 * n).abs()[:: 2 if weights == "strided" else 1][:n]
    )
    door = d.choice("door", ["loss", "nll"])
    rows = references.mixture_nll(exact(plain[0]), plain[1])
    expected = rows.mean() if given is None else (rows * given).sum()
    if door == "loss":
        cast = None if given is None else given.to(dtype)
        got = head.loss(*views, cast)
    else:
        got = head.nll(*views)
        got = got.mean() if given is None else (got * given.to(dtype)).sum()
    compare_gradients(
        d, [*leaves, *head.parameters()], [*twins, *exact.parameters()], got, expected, dtype
    )


def wrong_length(d, right):
    """Return a length that is neither right nor one."""
    others = [n for n in (0, 2, right // 2, right - 1, right + 1, 3 * right) if n not in (1, right)]
    return d.choice("length", [n for n in others if n >= 0])


def torch_says_so(call, what):
    """Need a named error, or torch's own about shapes."""
    try:
        answer = call()
    except CondensError as error:
        raise Refused from error
    except (RuntimeError, IndexError) as error:
        need(any(word in str(error) for word in TORCH_SHAPE), f"{what}: bare {error}")
        raise Refused from error
    raise Wrong(f"{what}: answered {str(answer)[:120]} where lengths do not match")


@property_of(500)
def test_lengths_that_do_not_match(d):
    """Tensors of other lengths are refused before C reads them."""
    dtype = d.choice("dtype", FLOATS)
    n, k, dim, f = d.integer("rows", 2, 400), d.integer("k", 1, 4), d.integer("dim", 1, 4), 3
    t = packed(d, dim)
    door = d.choice("door", ["head.loss", "head.nll", "linear_loss", "nll", "loss",
                             "sample", "rsample", "network.loss", "mixture"])  # fmt: skip
    wrong = wrong_length(d, n)
    make = lambda *s: (0.3 * d.normal(*s)).to(dtype)  # noqa: E731
    if door in ("head.loss", "head.nll", "network.loss"):
        kind = d.choice("head", list(HEADS))
        head = HEADS[kind](f, dim, k).to(dtype)
        part = d.choice("wrong", ["features", "target"] + ["weights"] * (door != "head.nll"))
        lengths = {p: wrong if p == part else n for p in ("features", "target", "weights")}
        x, y = make(lengths["features"], f), make(lengths["target"], dim)
        w = make(lengths["weights"]).abs() if part == "weights" or d.flag("weighted") else None
        owner = MixtureNetwork(torch.nn.Identity(), head) if door == "network.loss" else head
        if door == "head.nll":
            refused(lambda: head.nll(x, y), door)
        else:
            refused(lambda: owner.loss(x, y, w).backward(), f"{door} with wrong {part}")
    elif door == "linear_loss":
        outputs = k * (1 + dim + t)
        shapes = {"features": [n, f], "weight": [outputs, f], "bias": [outputs], "target": [n, dim],
                  "weights": [n]}  # fmt: skip
        part = d.choice("wrong", list(shapes))
        axis = d.random.randrange(len(shapes[part]))
        if part == "target":
            axis = 0
        right = shapes[part][axis]
        shapes[part][axis] = right + 1 if wrong == right or right != n else wrong
        given = {p: make(*shape) for p, shape in shapes.items()}
        torch_says_so(
            lambda: functional.linear_loss(given["features"], given["weight"], given["bias"],
                                       given["target"], k, given["weights"].abs()),
            f"linear_loss with wrong {part}",
        )  # fmt: skip
    else:
        shapes = {"target": [n, dim], "logits": [n, k], "means": [n, k, dim], "factors": [n, k, t],
                  "weights": [n]}  # fmt: skip
        names = list(shapes)[:4] + ["weights"] * (door == "loss")
        names = names[1:] if door in ("sample", "rsample", "mixture") else names
        part = d.choice("wrong", names)
        shapes[part][0] = wrong
        given = {p: make(*shape) for p, shape in shapes.items()}
        four = [given[p] for p in ("target", "logits", "means", "factors")]
        calls = {
            "nll": lambda: functional.nll(*four),
            "loss": lambda: functional.loss(
                *four, given["weights"].abs() if part == "weights" else None
            ),
            "sample": lambda: functional.sample(*four[1:]),
            "rsample": lambda: functional.rsample(*four[1:]),
            "mixture": lambda: GaussianMixture(*four[1:]),
        }
        torch_says_so(calls[door], f"{door} with {wrong} for {n} rows of {part}")


@property_of(300)
def test_single_rows_broadcast_or_are_refused(d):
    """A batch of one beside a batch of many is broadcast, never read beyond its end."""
    dtype = d.choice("dtype", FLOATS)
    n, k, dim = d.integer("rows", 2, 300), d.integer("k", 1, 3), d.integer("dim", 1, 4)
    t = packed(d, dim)
    shapes = {"target": (n, dim), "logits": (n, k), "means": (n, k, dim), "factors": (n, k, t)}
    single = {p: d.choice(p, ["many", "one", "axis-free"]) for p in shapes}
    given = {}
    for p, shape in shapes.items():
        size = {"many": shape, "one": (1, *shape[1:]), "axis-free": shape[1:]}[single[p]]
        given[p] = (0.3 * d.normal(*size)).to(dtype)
    door = d.choice("door", ["nll", "loss", "log_prob", "sample"])
    wide = torch.broadcast_shapes(
        *(v.shape[: v.dim() - len(shapes[p]) + 1] for p, v in given.items())
    )
    if door == "sample":
        # Tight components: every draw is at a mean.
        given["factors"][..., :dim] = 14.0
        given["factors"][..., dim:] = 0.0
        draws = functional.sample(given["logits"], given["means"], given["factors"])
        batch = torch.broadcast_shapes(
            given["logits"].shape[:-1], given["means"].shape[:-2], given["factors"].shape[:-2]
        )
        need(draws.shape == (*batch, dim), f"draws of shape {list(draws.shape)}")
        gap = (draws.unsqueeze(-2) - given["means"]).abs().amax(-1).amin(-1)
        need(float(gap.max()) < 1e-3, f"a draw is {float(gap.max()):g} from every mean")
        return
    four = [given[p] for p in shapes]
    expected = references.nll(*(v.double() for v in four))
    tolerance = 1e-9 if dtype is torch.float64 else 1e-3
    if door == "loss":
        got, expected = functional.loss(*four), expected.mean()
    elif door == "nll":
        got = functional.nll(*four)
    else:
        got = -functional.log_prob(*four)
    need(door == "loss" or got.shape == wide, f"shape {list(got.shape)} for {list(wide)}")
    near(got, expected, door, rtol=tolerance, atol=tolerance)


@property_of(250)
def test_sizes_of_zero(d):
    """No size of zero ends the process; an empty batch is answered by an empty answer."""
    dtype = d.choice("dtype", FLOATS)
    n = d.choice("rows", [0, 0, 1, 7])
    k, dim = d.choice("k", [0, 1, 3]), d.choice("dim", [0, 1, 2])
    t = packed(d, dim)
    door = d.choice("door", ["nll", "loss", "log_prob", "sample", "rsample", "linear_loss",
                             "head", "mixture", "icdf", "partial", "crps"])  # fmt: skip
    make = lambda *s: torch.zeros(*s, dtype=dtype, requires_grad=True)  # noqa: E731
    four = make(n, dim), make(n, k), make(n, k, dim), make(n, k, t)
    valid = k > 0 and dim > 0
    try:
        if door == "head":
            head = HEADS[d.choice("head", list(HEADS))](3, max(dim, 1), max(k, 1)).to(dtype)
            got = head.loss(make(n, 3), make(n, max(dim, 1)))
            got.backward()
            valid = True
        elif door == "linear_loss":
            outputs = k * (1 + dim + t)
            got = functional.linear_loss(make(n, 3), make(outputs, 3), make(outputs), four[0], k)
            got.backward()
        elif door == "mixture":
            got = GaussianMixture(*four[1:]).log_prob(four[0])
        elif door in ("sample", "rsample"):
            shape = d.choice("shape", [(), (0,), (3,), (2, 0)])
            got = getattr(functional, door)(*four[1:], shape)
            need(got.shape == (*shape, n, dim), f"{door}: shape {list(got.shape)}")
        elif door == "icdf":
            got = functional.icdf(torch.full((n,), 0.5, dtype=dtype), *four[1:])
        elif door == "crps":
            got = functional.crps(*four)
        elif door == "partial":
            got = functional.partial_log_prob(*four)
        else:
            got = {"nll": functional.nll, "loss": functional.loss,
                   "log_prob": functional.log_prob}[door](*four)  # fmt: skip
            if got.requires_grad:
                got.sum().backward()
    except CondensError as error:
        empty_mean = n == 0 and door in ("head", "linear_loss", "loss")
        if valid and not empty_mean and not (door in ("icdf", "crps") and dim != 1):
            raise Wrong(f"{door}: refused an empty batch of a good mixture") from None
        raise Refused from error
    except (RuntimeError, IndexError, ValueError, ZeroDivisionError) as error:
        if door in ("icdf", "crps") and dim != 1:
            raise Refused from error  # functions of one dimension, asked of another
        raise Wrong(f"{door}: bare {type(error).__name__}: {error}") from None
    if valid and n:
        no_nan(got, door)


@property_of(400)
def test_mixed_dtypes(d):
    """Tensors of several dtypes are promoted or refused, never read as what they are not."""
    kinds = {**FLOATS, "float16": torch.float16, "bfloat16": torch.bfloat16, "int64": torch.int64}
    n, k, dim = d.integer("rows", 1, 20), d.integer("k", 1, 3), d.integer("dim", 1, 3)
    t = packed(d, dim)
    door = d.choice("door", ["sample", "rsample", "nll", "loss", "log_prob", "partial",
                             "cdf", "crps", "mixture", "head"])  # fmt: skip
    dim, t = (1, 1) if door in ("cdf", "crps") else (dim, t)
    shapes = {"target": (n, dim), "logits": (n, k), "means": (n, k, dim), "factors": (n, k, t)}
    dtypes = {p: d.choice(p, kinds) for p in shapes}
    # Whole numbers: every dtype holds them.
    exact = {p: (2 * d.normal(*s)).round() for p, s in shapes.items()}
    if door in ("sample", "rsample"):
        exact["factors"].zero_()
        exact["factors"][..., :dim] = 12.0
    given = [exact[p].to(dtypes[p]) for p in shapes]
    try:
        if door in ("sample", "rsample"):
            draws = getattr(functional, door)(*given[1:], (5,))
            gap = (draws.double().unsqueeze(-2) - exact["means"]).abs().amax(-1).amin(-1)
            need(float(gap.max()) < 0.05, f"a draw is {float(gap.max()):g} from every mean")
            return
        if door == "head":
            head = HEADS["full"](2, dim, k).double()
            x = d.normal(n, 2)
            with torch.no_grad():
                expected = references.mixture_nll(head(x), exact["target"]).mean()
            near(head.loss(x, given[0]), expected, door, rtol=1e-6, atol=1e-6)
            return
        call = {
            "nll": lambda: functional.nll(*given),
            "loss": lambda: functional.loss(*given),
            "log_prob": lambda: -functional.log_prob(*given),
            "partial": lambda: -functional.partial_log_prob(*given),
            "mixture": lambda: -GaussianMixture(*given[1:]).log_prob(given[0]),
            "cdf": lambda: functional.cdf(*given),
            "crps": lambda: functional.crps(*given),
        }[door]
        got = call()
    except CondensError:
        raise
    except (TypeError, RuntimeError) as error:
        told = str(error).lower()
        words = ("type", "half", "not implemented for")
        need(any(word in told for word in words), f"{door}: bare {error}")
        raise Refused from error
    no_nan(got, door)
    if door in ("cdf", "crps"):
        wide = [exact[p] for p in shapes]
        expected = getattr(GaussianMixture(*wide[1:]), door)(wide[0])
    else:
        expected = references.nll(*exact.values())
        expected = expected.mean() if door == "loss" else expected
    if got.dtype in (torch.float32, torch.float64):
        near(got, expected, door, rtol=1e-3, atol=1e-3)


@property_of(300, refusals=False)
def test_edits_between_forward_and_backward(d):
    """A tensor edited in between is noticed by autograd, or the gradient is the old one."""
    dtype = d.choice("dtype", FLOATS)
    n, k, dim, f = d.integer("rows", 1, 60), d.integer("k", 1, 3), d.integer("dim", 1, 3), 3
    t = packed(d, dim)
    door = d.choice("door", ["nll", "loss", "linear_loss", "head.loss", "head.nll"])
    make = lambda *s: (0.5 * d.normal(*s)).to(dtype).requires_grad_()  # noqa: E731
    if door in ("nll", "loss"):
        inputs = {"target": make(n, dim), "logits": make(n, k), "means": make(n, k, dim),
                  "factors": make(n, k, t)}  # fmt: skip
        loss = functional.nll if door == "nll" else functional.loss
        call = lambda *v: loss(*v).sum()  # noqa: E731
    else:
        outputs = k * (1 + dim + t)
        inputs = {"features": make(n, f), "target": make(n, dim), "weight": make(outputs, f),
                  "bias": make(outputs)}  # fmt: skip
        covariance = "full" if t != dim or dim == 1 else "diagonal"

        def call(features, target, weight, bias):
            if door == "linear_loss":
                return functional.linear_loss(features, weight, bias, target, k)
            head = HEADS[covariance](f, dim, k).to(dtype)
            del head.linear.weight, head.linear.bias
            head.linear.weight, head.linear.bias = weight, bias
            one = head.loss if door == "head.loss" else head.nll
            return one(features, target).sum()

    edited = d.choice("edited", list(inputs))
    right = torch.autograd.grad(call(*inputs.values()), list(inputs.values()))
    got = call(*inputs.values())
    with torch.no_grad():
        inputs[edited].add_(1.0)
    try:
        found = torch.autograd.grad(got, list(inputs.values()))
    except RuntimeError as error:
        need("modified by an inplace operation" in str(error), f"bare {error}")
        return
    for name, ours, theirs in zip(inputs, found, right, strict=True):
        near(ours, theirs, f"gradient of {name}", rtol=1e-5, atol=1e-5)


@property_of(120, refusals=False)
def test_thread_counts(d):
    """However many threads, the answer is the same and right."""
    dtype = d.choice("dtype", FLOATS)
    n, k, dim = d.integer("rows", 1, 3000), d.integer("k", 1, 4), d.integer("dim", 1, 6)
    t = packed(d, dim)
    shapes = ((n, dim), (n, k), (n, k, dim), (n, k, t))
    given = [(0.5 * d.normal(*s)).to(dtype).requires_grad_() for s in shapes]
    before = torch.get_num_threads()
    answers = []
    for threads in (1, d.choice("threads", [2, 3, 4, 7, 16])):
        torch.set_num_threads(threads)
        need(torch.get_num_threads() == threads, "threads not set")
        rows = functional.nll(*given)
        draws = functional.sample(*(g.detach() for g in given[1:]),
                                  generator=torch.Generator().manual_seed(5))  # fmt: skip
        answers.append([rows, draws, *torch.autograd.grad(rows.sum(), given)])
    torch.set_num_threads(before)
    for one, other in zip(*answers, strict=True):
        near(one, other, "another number of threads", rtol=1e-6, atol=1e-6)
    tolerance = 1e-9 if dtype is torch.float64 else 1e-3
    near(answers[0][0], references.nll(*(g.double() for g in given)), "loss", rtol=tolerance,
         atol=tolerance)  # fmt: skip


def resident():
    """Return the megabytes that this process has in memory."""
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


@property_of(6, refusals=False)
def test_threads_give_their_memory_back(d):
    """Short threads leave no scratch behind."""
    k, dim, n = d.integer("k", 8, 20), d.integer("dim", 15, 30), 300
    t = dim * (dim + 1) // 2
    given = [0.1 * d.normal(*s) for s in ((n, dim), (n, k), (n, k, dim), (n, k, t))]

    def work():
        inputs = [g.clone().requires_grad_() for g in given]
        functional.loss(*inputs).backward()
        functional.sample(*(g[:5] for g in given[1:]), (10,))

    def burst(count):
        for _ in range(count):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()

    burst(15)
    grown = []
    for _ in range(3):
        before = resident()
        burst(60)
        grown.append(resident() - before)
    # The allocator may keep some once; what is lost is lost in every burst.
    need(min(grown) < 10, f"60 threads left {min(grown):.0f} MB, every time")


@property_of(60, refusals=False)
def test_threads_at_once(d):
    """Calls in several threads at a time do not touch each other's scratch."""
    dtype = d.choice("dtype", FLOATS)
    problems = []
    for _ in range(4):
        n, k, dim = d.random.randint(1, 400), d.random.randint(1, 5), d.random.randint(1, 8)
        t = dim * (dim + 1) // 2
        shapes = ((n, dim), (n, k), (n, k, dim), (n, k, t))
        problems.append([(0.4 * d.normal(*s)).to(dtype) for s in shapes])
    answers = [[] for _ in problems]

    def work(i):
        for _ in range(5):
            answers[i].append(functional.nll(*problems[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(problems))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tolerance = 1e-9 if dtype is torch.float64 else 1e-3
    for given, got in zip(problems, answers, strict=True):
        expected = references.nll(*(g.double() for g in given))
        for one in got:
            near(one, expected, "loss in a thread", rtol=tolerance, atol=tolerance)


@property_of(200)
def test_huge_strides_and_offsets(d):
    """Views deep inside large storages, with strides far beyond their sizes."""
    dtype = d.choice("dtype", FLOATS)
    n, k, dim = d.integer("rows", 1, 64), d.integer("k", 1, 3), d.integer("dim", 1, 4)
    t = packed(d, dim)
    base = (0.4 * d.normal(400_000)).to(dtype).requires_grad_()
    twin = base.detach().double().requires_grad_()
    plans = []
    for shape in ((n, dim), (n, k), (n, k, dim), (n, k, t)):
        strides = [d.random.choice([0, 1, 3, 17, 1000]) for _ in shape]
        span = sum((s - 1) * step for s, step in zip(shape, strides, strict=True))
        plans.append((shape, strides, d.random.randint(0, 399_999 - span)))
    d.note("plans", plans)
    views = [base.as_strided(*plan) for plan in plans]
    plain = [twin.as_strided(*plan).contiguous() for plan in plans]
    fused = d.flag("fused")
    got = functional.loss(*views) if fused else functional.nll(*views).mean()
    compare_gradients(d, [base], [twin], got, references.nll(*plain).mean(), dtype)
    finite(math.log(1 + float(got.detach().abs())), "loss")
