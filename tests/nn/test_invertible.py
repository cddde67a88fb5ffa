"""The invertible block beside FrEIA's, in FrEIA's networks, and without FrEIA."""

import math
import subprocess
import sys

import FrEIA.framework as ff
import pytest
import torch
from FrEIA.modules import AllInOneBlock, GaussianMixtureModel, InvertibleModule
from helpers.reference import COVARIANCES, dense, log_density, random_parameters
from scipy import stats
from torch.testing import assert_close

from condens.errors import ArgumentError, KindError, NotFiniteError, ShapeError
from condens.functional import nll, uniform_bound
from condens.functional.sampling import from_latent
from condens.kernels.choice import VARIABLE
from condens.nn import FullHead, GaussianMixtureBlock

ROWS, COMPONENTS = 7, 3


@pytest.fixture
def double():
    """FrEIA makes its triangles in the default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def case(
    dimensions=3, *, covariance="full", dtype=torch.float64, rows=ROWS, n_components=COMPONENTS
):
    """Return a block, logits, and [w, mu, U]."""
    parameters = random_parameters((rows,), n_components, dimensions, covariance=covariance)
    logits, means, factors = (t.to(dtype) for t in parameters)
    block = GaussianMixtureBlock([(dimensions,)], [])
    return block, logits, [block.normalize_weights(logits), means, factors]


def index(rows=ROWS, n_components=COMPONENTS):
    return torch.arange(rows) * 2 % n_components


# Maps and their determinants


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("choice", [None, 5, index()], ids=["all", "seed", "index"])
@pytest.mark.parametrize("dimensions", [1, 2, 5, 20])
def test_round_trip_in_float32(dimensions, choice, covariance):
    block, _, mixture = case(dimensions, covariance=covariance, dtype=torch.float32)
    x = torch.randn(ROWS, dimensions)
    z, forward = block([x], [*mixture, choice])
    (back,), reverse = block(z, [*mixture, choice], rev=True)
    assert z[0].dtype == back.dtype == forward.dtype == torch.float32
    assert_close(back, x.unsqueeze(1).expand_as(back) if choice is None else x, rtol=0, atol=1e-5)
    assert_close(forward, -reverse, rtol=0, atol=0)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("rev", [False, True])
@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_log_determinant_is_that_of_autograd(dimensions, rev, covariance):
    block, _, mixture = case(dimensions, covariance=covariance)
    x = torch.randn(ROWS, dimensions, dtype=torch.float64)

    def total(choice):
        # Rows do not depend on each other: the Jacobian of the sum over rows is that of each.
        return lambda x: block([x], [*mixture, choice], rev=rev)[0][0].sum(0)

    chosen = torch.autograd.functional.jacobian(total(index()), x).movedim(1, 0)
    expected = torch.linalg.slogdet(chosen).logabsdet
    assert_close(block([x], [*mixture, index()], rev=rev)[1], expected, rtol=1e-10, atol=1e-10)
    every = torch.autograd.functional.jacobian(total(None), x).permute(2, 0, 1, 3)
    expected = torch.linalg.slogdet(every).logabsdet
    assert_close(block([x], [*mixture, None], rev=rev)[1], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kernel", ["native", "reference"])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_reverse_is_the_same_with_and_without_gradients(kernel, covariance, monkeypatch):
    monkeypatch.setenv(VARIABLE, kernel)
    block, _, (w, means, factors) = case(5, covariance=covariance)
    z = torch.randn(ROWS, 5, dtype=torch.float64)
    plain = block([z], [w, means, factors, index()], rev=True)[0][0]
    watched = block([z], [w, means, factors.requires_grad_(), index()], rev=True)[0][0]
    assert watched.requires_grad
    assert not plain.requires_grad
    assert_close(plain, watched.detach(), rtol=1e-12, atol=1e-12)


def test_latent_may_lie_in_any_order_in_memory():
    _, means, factors = random_parameters((), 6, 4)
    z = torch.randn(4, 6, dtype=torch.float64).T
    before = z.clone()
    assert_close(from_latent(z, means, factors), from_latent(z.contiguous(), means, factors))
    assert_close(z, before, rtol=0, atol=0)


def test_reverse_in_mixed_precision_and_under_vmap():
    _, means, factors = random_parameters((ROWS,), 1, 4)
    z = torch.randn(ROWS, 1, 4, dtype=torch.float64)
    expected = from_latent(z, means, factors)
    mixed = from_latent(z, means.float(), factors.float())
    assert mixed.dtype == torch.float64
    assert_close(mixed, expected, rtol=1e-5, atol=1e-5)
    assert_close(torch.func.vmap(from_latent)(z, means, factors), expected, rtol=1e-12, atol=1e-12)


def test_a_small_code_that_is_the_difference_of_large_numbers():
    block = GaussianMixtureBlock([(2,)], [])
    w, means = torch.ones(1, 1), torch.tensor([[[0.3, 0.0]]])
    (z,), _ = block([torch.full((1, 2), 1e8)], [w, means, torch.tensor([[[0.0, 0.0, -1.0]]])])
    assert_close(z, torch.tensor([[[-0.3, 1e8]]]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("rev", [False, True])
def test_gradients_of_every_argument(rev):
    block, logits, (_, means, factors) = case(2)
    inputs = [torch.randn(ROWS, 2, dtype=torch.float64), means, factors]
    inputs = [t.requires_grad_() for t in inputs]

    def run(x, means, factors):
        (z,), log_jacobian = block([x], [logits, means, factors, index()], rev=rev)
        return z, log_jacobian

    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


# Beside FrEIA's


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("choice", [None, 11, index()], ids=["all", "seed", "index"])
@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_equals_freia(dimensions, choice):
    block, _, mixture = case(dimensions)
    theirs = GaussianMixtureModel([(dimensions,)], [])
    shape = (ROWS, COMPONENTS, dimensions) if choice is None else (ROWS, dimensions)
    x = torch.randn(shape)
    for rev in (False, True):
        (ours,), log_jacobian = block([x], [*mixture, choice], rev=rev)
        (expected,), determinant = theirs([x], [*mixture, choice], rev=rev)
        assert_close(ours, expected, rtol=1e-11, atol=1e-11)
        assert_close(log_jacobian, determinant, rtol=1e-11, atol=1e-11)
    if choice is None:  # one x for all components
        ours, expected = (b([x[:, 0]], [*mixture, None])[0][0] for b in (block, theirs))
        assert_close(ours, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_losses_equal_freias_where_asked_to(dimensions):
    block, _, mixture = case(dimensions)
    x = torch.randn(ROWS, dimensions)
    (z,), log_jacobian = block([x], [*mixture, None])
    for ours, theirs in (
        (block.nll_loss, GaussianMixtureModel.nll_loss),
        (block.nll_upper_bound, GaussianMixtureModel.nll_upper_bound),
    ):
        old = ours(mixture[0], z, log_jacobian, freia_compatible=True)
        assert_close(old, theirs(mixture[0], z, log_jacobian), rtol=1e-11, atol=1e-11)


def test_weights_equal_freias():
    logits = 10 * torch.randn(5, 4)
    ours = GaussianMixtureBlock.normalize_weights(logits)
    assert_close(ours, GaussianMixtureModel.normalize_weights(logits))
    # FrEIA subtracts the largest logit of the whole batch, and loses digits of other rows.
    shifted = GaussianMixtureBlock.normalize_weights(torch.tensor([[0.0, 0.5], [1e8, 1e8]]))
    assert_close(shifted[0], torch.tensor([0.0, 0.5]).softmax(-1), rtol=0, atol=0)


def test_a_seed_picks_as_freia_does():
    w = torch.softmax(torch.randn(2000, 6), -1)
    ours = GaussianMixtureBlock.pick_mixture_component(w, seed=4)
    theirs = GaussianMixtureModel.pick_mixture_component(w, seed=4)
    assert ours.dtype == theirs.dtype
    # Ties within rounding are picked otherwise once in some 10⁶ rows.
    assert (ours != theirs).sum() <= 1
    assert_close(ours, GaussianMixtureBlock.pick_mixture_component(w, seed=4), rtol=0, atol=0)
    assert (ours != GaussianMixtureBlock.pick_mixture_component(w, seed=5)).any()


def test_picks_follow_the_weights():
    """1 in 10 000 right ways to pick fails."""
    weights = torch.tensor([0.05, 0.0, 0.6, 0.25, 0.1])
    w = weights.expand(100_000, 5)
    torch.manual_seed(3)
    for seed in (None, 8):
        picked = GaussianMixtureBlock.pick_mixture_component(w, seed)
        counts = picked.bincount(minlength=5).double()
        assert counts[1] == 0
        some = weights > 0
        expected = weights[some].double() / weights[some].double().sum() * 100_000
        assert stats.chisquare(counts[some].numpy(), expected.numpy()).pvalue > 1e-4


def test_picks_never_leave_the_components():
    # Sums below one by rounding: FrEIA's index can be K, one too many.
    w = torch.full((200_000, 3), 0.333)
    picked = GaussianMixtureBlock.pick_mixture_component(w, seed=0)
    assert picked.max() == 2
    assert GaussianMixtureModel.pick_mixture_component(w, seed=0).max() == 3


def test_picks_resolve_weights_below_a_float32():
    # Thresholds half a step of float32 above FrEIA's random numbers.
    coarse = torch.rand(4000, generator=torch.Generator().manual_seed(2)).double()
    threshold = coarse + 2.0**-25
    w = torch.stack([threshold, 1 - threshold], 1)
    fraction = GaussianMixtureBlock.pick_mixture_component(w, seed=2).double().mean().item()
    assert abs(fraction - 0.5) < 4 * 0.5 / math.sqrt(4000)


def test_torch_seeds_a_choice_without_a_seed():
    w = torch.full((100, 4), 0.25)
    torch.manual_seed(1)
    first = GaussianMixtureBlock.pick_mixture_component(w)
    torch.manual_seed(1)
    assert_close(GaussianMixtureBlock.pick_mixture_component(w), first, rtol=0, atol=0)


# Losses


@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_loss_is_the_exact_normalised_one(dimensions):
    block, logits, mixture = case(dimensions)
    x = torch.randn(ROWS, dimensions, dtype=torch.float64)
    (z,), log_jacobian = block([x], mixture)
    loss = block.nll_loss(mixture[0], z, log_jacobian)
    for row in range(ROWS):
        parameters = dense(logits[row], *(t[row] for t in mixture[1:]))
        expected = -log_density(x[row].numpy(), *parameters)
        assert loss[row].item() == pytest.approx(expected, rel=1e-9)
    bound = block.nll_upper_bound(mixture[0], z, log_jacobian)
    exact = uniform_bound(x, logits, *mixture[1:])
    assert_close(bound, exact, rtol=1e-10, atol=1e-10)
    assert (bound >= loss).all()


def test_freias_upper_bound_is_none():
    w, z = torch.tensor([[0.5, 0.5]]), torch.zeros(1, 2, 1)
    log_jacobian = torch.full((1, 2), math.log(6) + 0.5 * math.log(2 * math.pi))
    exact = GaussianMixtureBlock.nll_loss(w, z, log_jacobian).item()
    assert exact == pytest.approx(-1.791759, abs=1e-6)
    old = GaussianMixtureBlock.nll_upper_bound(w, z, log_jacobian, freia_compatible=True)
    assert old.item() + math.log(2 * math.pi) < exact
    assert GaussianMixtureBlock.nll_upper_bound(w, z, log_jacobian).item() >= exact


def test_loss_through_the_block_has_the_gradients_of_the_loss():
    block, logits, (_, means, factors) = case(3)
    leaves = [t.requires_grad_() for t in (logits, means, factors)]
    x = torch.randn(ROWS, 3, dtype=torch.float64)
    w = block.normalize_weights(logits)
    (z,), log_jacobian = block([x], [w, means, factors, None])
    ours = torch.autograd.grad(block.nll_loss(w, z, log_jacobian).sum(), leaves)
    expected = torch.autograd.grad(nll(x, *leaves).sum(), leaves)
    for gradient, known in zip(ours, expected, strict=True):
        assert_close(gradient, known, rtol=1e-9, atol=1e-11)


def test_a_weight_of_zero_takes_no_part():
    z, log_jacobian = torch.randn(ROWS, 3, 2), torch.randn(ROWS, 3)
    w = torch.tensor([0.4, 0.0, 0.6]).expand(ROWS, 3)
    loss = GaussianMixtureBlock.nll_loss(w, z, log_jacobian)
    some = [0, 2]
    expected = GaussianMixtureBlock.nll_loss(w[:, some], z[:, some], log_jacobian[:, some])
    assert_close(loss, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("logit", "far", "log_scale"),
    [
        (0.0, 1e4, 0.0),
        (-95.0, 100.0, 0.0),  # a weight below the smallest normal float32
        (-800.0, 100.0, 0.0),  # a weight of zero
        (0.0, 1.0, 60.0),
        (0.0, 1.0, 2000.0),
        (0.0, 1.0, -2000.0),
        (300.0, 1e30, 20.0),
    ],
)
@pytest.mark.parametrize("loss", ["nll_loss", "nll_upper_bound"])
def test_gradients_are_finite_at_extremes(loss, logit, far, log_scale, dtype):
    block = GaussianMixtureBlock([(2,)], [])
    logits = torch.tensor([[0.0, logit]], dtype=dtype, requires_grad=True)
    means = torch.tensor([[[0.0, 0.0], [far, far]]], dtype=dtype, requires_grad=True)
    factors = torch.full((1, 2, 3), log_scale, dtype=dtype)
    factors[..., 2] = 0.5
    factors.requires_grad_()
    w = block.normalize_weights(logits)
    (z,), log_jacobian = block([torch.full((1, 2), far, dtype=dtype)], [w, means, factors])
    value = getattr(block, loss)(w, z, log_jacobian)
    assert not value.isnan().any()
    for gradient in torch.autograd.grad(value.sum(), [logits, means, factors]):
        assert gradient.isfinite().all()


def test_far_from_every_component_the_loss_is_finite_where_freias_is_not():
    block, _, mixture = case(2, dtype=torch.float32)
    (z,), log_jacobian = block([torch.full((ROWS, 2), 500.0)], mixture)
    assert GaussianMixtureModel.nll_loss(mixture[0], z, log_jacobian).isinf().all()
    assert block.nll_loss(mixture[0], z, log_jacobian).isfinite().all()


# Forms of the condition


def test_every_form_of_a_condition_means_the_same():
    block, logits, mixture = case(3)
    packed = block.pack(logits, *mixture[1:])
    x = torch.randn(ROWS, 3, dtype=torch.float64)
    for choice in (None, 9, index(), index().int()):
        expected, determinant = block([x], [*mixture, choice])
        for c in ([packed, choice], [[*mixture, choice]], [(packed, choice)]):
            (z,), log_jacobian = block([x], c)
            assert_close(z, expected[0], rtol=0, atol=0)
            assert_close(log_jacobian, determinant, rtol=0, atol=0)
    for c in (mixture, [packed], packed, [mixture]):
        assert_close(block([x], c)[0], block([x], [*mixture, None])[0], rtol=0, atol=0)


def test_packed_is_what_a_head_puts_out():
    head = FullHead(4, 3, COMPONENTS, floor=0.0, ceiling=None)
    features, x = torch.randn(ROWS, 4), torch.randn(ROWS, 3)
    block = GaussianMixtureBlock([(3,)], [])
    outputs = head.linear(features)
    assert_close(block.pack(*head.parameters_of(features)), outputs, rtol=0, atol=0)
    (z,), log_jacobian = block([x], [outputs])
    loss = block.nll_loss(block.normalize_weights(outputs[:, :COMPONENTS]), z, log_jacobian)
    assert_close(loss, -head(features).log_prob(x))


def test_diagonal_factors_are_packed_as_full_ones():
    block, logits, mixture = case(3, covariance="diagonal")
    x = torch.randn(ROWS, 3, dtype=torch.float64)
    packed = block.pack(logits, *mixture[1:])
    assert_close(block([x], [packed])[0][0], block([x], mixture)[0][0], rtol=1e-14, atol=1e-14)


# In FrEIA's networks


def graph(kind, **options):
    """Return a network of a coupling and the block, and the block's five conditions."""
    start = ff.InputNode(3, name="input")
    shapes = [(COMPONENTS,), (COMPONENTS, 3), (COMPONENTS, 6), (1,)]
    conditions = [ff.ConditionNode(*shape) for shape in shapes]
    coupling = ff.Node(start, AllInOneBlock, {"subnet_constructor": subnet})
    mixture = ff.Node(coupling, GaussianMixtureBlock, {}, conditions=conditions)
    nodes = [start, *conditions, coupling, mixture, ff.OutputNode(mixture)]
    return kind(nodes, verbose=False, **options)


def subnet(inputs, outputs):
    return torch.nn.Sequential(
        torch.nn.Linear(inputs, 8), torch.nn.Tanh(), torch.nn.Linear(8, outputs)
    )


def check_network(run, x):
    """Check a network's round trip and its log-determinant by autograd's, both ways."""
    z, forward = run(x, rev=False)
    back, reverse = run(z, rev=True)
    assert_close(back, x, rtol=0, atol=1e-5)
    assert_close(forward, -reverse, rtol=0, atol=1e-5)
    for given, determinant, rev in ((x, forward, False), (z.detach(), reverse, True)):
        jacobian = torch.autograd.functional.jacobian(
            lambda x, rev=rev: run(x, rev=rev)[0].sum(0), given
        )
        expected = torch.linalg.slogdet(jacobian.movedim(1, 0)).logabsdet
        assert_close(determinant, expected, rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore:ReversibleGraphNet:DeprecationWarning")
@pytest.mark.parametrize("kind", [ff.GraphINN, ff.ReversibleGraphNet])
@pytest.mark.parametrize("choice", [6, index()], ids=["seed", "index"])
def test_in_a_graph(kind, choice):
    _, _, mixture = case(3, dtype=torch.float32)
    network = graph(kind)
    check_network(lambda x, rev: network(x, c=[*mixture, choice], rev=rev), torch.randn(ROWS, 3))


@pytest.mark.parametrize("form", ["packed", "list"])
def test_in_a_sequence(form):
    block, logits, mixture = case(3, dtype=torch.float32)
    packed = block.pack(logits, *mixture[1:])
    network = ff.SequenceINN(3)
    network.append(AllInOneBlock, subnet_constructor=subnet)
    network.append(GaussianMixtureBlock, cond=0, cond_shape=(packed.shape[1],))
    condition = [packed, index()] if form == "packed" else [*mixture, index()]
    check_network(lambda x, rev: network(x, c=[condition], rev=rev), torch.randn(ROWS, 3))
    assert network(torch.randn(ROWS, 3), c=[condition], jac=False)[0].shape == (ROWS, 3)


def test_alone_in_a_sequence_with_a_packed_condition():
    block, logits, mixture = case(3)
    packed = block.pack(logits, *mixture[1:])
    network = ff.SequenceINN(3)
    network.append(GaussianMixtureBlock, cond=0, cond_shape=(packed.shape[1],))
    x = torch.randn(ROWS, 3, dtype=torch.float64)
    z, log_jacobian = network(x, c=[packed])
    loss = block.nll_loss(mixture[0], z, log_jacobian)
    assert_close(loss, nll(x, logits, *mixture[1:]), rtol=1e-10, atol=1e-10)


def test_it_is_one_of_freias_modules_without_state():
    block = GaussianMixtureBlock([(3,)], [(4,)])
    assert isinstance(block, InvertibleModule)
    assert (block.dims_in, block.dims_c, block.output_dims([(3,)])) == ([(3,)], [(4,)], [(3,)])
    assert not block.state_dict()


@pytest.mark.slow
def test_works_without_freia_and_imports_it_only_for_the_block():
    code = (
        "import sys, condens.nn; assert 'FrEIA' not in sys.modules\n"
        "sys.modules['FrEIA'] = None\n"
        "import torch; from condens.nn import GaussianMixtureBlock\n"
        "block = GaussianMixtureBlock([(2,)], [])\n"
        "w, mu, U = torch.ones(1, 1), torch.ones(1, 1, 2), torch.tensor([[[0.0, 0.0, 5.0]]])\n"
        "z, j = block([torch.tensor([[2.0, 3.0]])], [w, mu, U, 0])\n"
        "assert z[0].tolist() == [[11.0, 2.0]]\n"
        "x, j = block(z, c=[w, mu, U, 0], rev=True, jac=True)\n"
        "assert x[0].tolist() == [[2.0, 3.0]] and block.dims_in == [(2,)]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Errors


def test_what_is_refused():
    block, _, (w, means, factors) = case(3)
    x, every = torch.zeros(ROWS, 3, dtype=torch.float64), [w, means, factors]
    over, wide = torch.arange(ROWS).clamp(max=COMPONENTS), [w, means, factors - 400]
    pick, loss = block.pick_mixture_component, block.nll_loss
    (z,), log_jacobian = block([x], every)
    for error, text, call in (
        (ShapeError, r"dims_in is \[\(3, 4\)\]", lambda: GaussianMixtureBlock([(3, 4)], [])),
        (ShapeError, "dims_in is", lambda: GaussianMixtureBlock([(3,), (3,)], [])),
        (ArgumentError, "x is a tensor", lambda: block(x, every)),
        (ArgumentError, "x has 2 inputs", lambda: block([x, x], every)),
        (ShapeError, r"x has shape \[6, 3\]", lambda: block([x[1:]], every)),
        (ShapeError, "x has shape", lambda: block([means], [*every, index()])),
        (ArgumentError, "c has 0 entries", lambda: block([x], None)),
        (ArgumentError, "c has 5 entries", lambda: block([x], [*every, None, None])),
        (KindError, "mu is NoneType", lambda: block([x], [w, None, factors, None])),
        (KindError, "w is torch.int64", lambda: block([x], [index(), means, factors])),
        (ShapeError, r"w has shape \[7\]", lambda: block([x], [w[:, 0], means, factors])),
        (ShapeError, "mu has shape", lambda: block([x], [w, means[:, 1:], factors])),
        (ShapeError, "U has shape", lambda: block([x], [w, means, factors[..., 1:]])),
        (ShapeError, r"\[b, 10·K\] was expected", lambda: block([x], [x])),
        (ShapeError, "i has shape", lambda: block([x], [*every, index()[1:]])),
        (ShapeError, "dtype torch.float32", lambda: block([x], [*every, index().float()])),
        (ArgumentError, "from 0 to 3, but", lambda: block([x], [*every, over])),
        (ArgumentError, "from -1 to", lambda: block([x], [*every, index() - 1])),
        (ArgumentError, "seed is 1.5", lambda: block([x], [*every, 1.5])),
        (ArgumentError, "seed is 'a'", lambda: pick(w, "a")),
        (ArgumentError, "seed is 1180591620717411303424", lambda: pick(w, 2**70)),
        (NotFiniteError, "normalize_weights", lambda: pick(w.log())),
        (NotFiniteError, "normalize_weights", lambda: loss(2 * w, z, log_jacobian)),
        (NotFiniteError, "from -1 and sums from 1 to 1", lambda: pick(torch.tensor([[-1.0, 2]]))),
        (NotFiniteError, "nan", lambda: loss(w * math.nan, z, log_jacobian)),
        (ShapeError, r"\[7, 3, D\] and \[7, 3\] go with w", lambda: loss(w, x, log_jacobian)),
        (ShapeError, "z and log_jacobian", lambda: loss(w, z, log_jacobian[:, 0])),
        (NotFiniteError, "U has a log-diagonal", lambda: block([x], wide, rev=True)),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            call()


def test_no_rows():
    block, _, mixture = case(2, rows=1)
    w, means, factors = (t[:0] for t in mixture)
    x = torch.zeros(0, 2, dtype=torch.float64)
    for choice in (None, 3, torch.zeros(0, dtype=torch.int64)):
        for rev in (False, True):
            (z,), _ = block([x], [w, means, factors, choice], rev=rev)
            assert z.shape == ((0, 3, 2) if choice is None else (0, 2))
    (z,), log_jacobian = block([x], [w, means, factors])
    assert block.nll_loss(w, z, log_jacobian).shape == (0,)
