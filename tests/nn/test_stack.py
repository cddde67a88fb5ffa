"""Alike networks as one: the same numbers as one by one."""

import copy

import pytest
import torch
from torch import Generator, nn
from torch.testing import assert_close

from condens.functional import fused_linear
from condens.kernels import native, networks
from condens.nn import HEADS, MLP, Ensemble, FullHead, MixtureNetwork
from condens.nn import stack as stacks
from condens.nn.embeddings import PiecewiseLinear
from condens.nn.randomness import RowDraws, drawing_from
from condens.nn.stack import Stack

MEMBERS, ROWS, CODES = 3, 10, (4, 2)


def network(seed=0, *, covariance="full", conditions=4, **options):
    options = {"n_components": 3, "width": 8, "depth": 3, **options}
    made = MixtureNetwork.of(
        conditions, 3, covariance=covariance, generator=Generator().manual_seed(seed), **options
    ).double()
    with torch.no_grad():
        made.head.linear.bias.normal_(generator=Generator().manual_seed(seed))
    return made


def members(**options):
    return [network(seed, **options) for seed in range(MEMBERS)]


def rows(*, codes=False, gaps=False, weights=False):
    generator = Generator().manual_seed(5)
    condition = torch.randn(MEMBERS, ROWS, 4, generator=generator, dtype=torch.float64)
    target = torch.randn(MEMBERS, ROWS, 3, generator=generator, dtype=torch.float64)
    if codes:
        condition[..., 2] = torch.randint(4, (MEMBERS, ROWS), generator=generator)
        condition[..., 3] = torch.randint(2, (MEMBERS, ROWS), generator=generator)
    if gaps:  # not the same number in every member
        target[0, ::3, 1] = target[2, 4:, 0] = torch.nan
    w = torch.rand(MEMBERS, ROWS, generator=generator, dtype=torch.float64)
    w[:, 2] = 0
    return condition, target, w if weights else None


def one_by_one(networks, condition, target, weights):
    """Return the sum of the members' own losses, and the gradients of all their parameters."""
    each = [None] * MEMBERS if weights is None else weights
    losses = [
        member.head.loss(member.features(x), y, w)
        for member, x, y, w in zip(networks, condition, target, each, strict=True)
    ]
    total = torch.stack(losses).sum()
    parameters = [p for member in networks for p in member.parameters()]
    return total, torch.autograd.grad(total, parameters)


def at_once(networks, condition, target, weights):
    stack = Stack.of(networks)
    total = stack.loss(condition, target, weights, complete=False)
    total.backward()
    stack.show_gradients()
    return total, [p.grad for member in networks for p in member.parameters()]


CASES = {
    "plain": {},
    "weights": {"weights": True},
    "gaps": {"gaps": True},
    "gaps and weights": {"gaps": True, "weights": True},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("covariance", HEADS)
def test_losses_and_gradients_are_those_of_the_members(covariance, case):
    networks, given = members(covariance=covariance, normalise=True), rows(**CASES[case])
    expected, found = one_by_one(networks, *given), at_once(networks, *given)
    assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("covariance", ["full", "low_rank"])
def test_categories_are_those_of_the_members(covariance):
    """Also of a column with a single known category, whose table is a row."""
    networks, given = members(covariance=covariance, categories=CODES), rows(codes=True)
    expected, found = one_by_one(networks, *given), at_once(networks, *given)
    assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kernel", ["eager", "reference"])
@pytest.mark.parametrize("case", CASES)
def test_every_kernel(case, kernel, monkeypatch):
    networks, given = members(), rows(**CASES[case])
    expected = one_by_one(networks, *given)
    monkeypatch.setenv("CONDENS_KERNEL", kernel)
    assert_close(at_once(networks, *given), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("case", CASES)
def test_many_outputs_go_member_by_member(case, monkeypatch):
    networks, given = members(), rows(**CASES[case])
    expected = one_by_one(networks, *given)
    monkeypatch.setattr(fused_linear, "MAX_STACKED_OUTPUTS", 0)
    assert_close(at_once(networks, *given), expected, rtol=1e-10, atol=1e-12)


needs_native = pytest.mark.skipif(bool(native.missing), reason=native.missing)


@pytest.fixture
def computed(monkeypatch):
    """What the native kernel was called for, whole networks at once."""
    found = []
    for name in ("mlp", "mlp_nll"):
        whole = getattr(networks, name)

        def counted(*given, name=name, whole=whole, **options):
            found.append(name)
            return whole(*given, **options)

        monkeypatch.setattr(networks, name, counted)
    return found


def natively(stack, condition, target, weights, *, part=1.0, complete=True):
    for leaf in stack.parameters:
        leaf.grad = None
    total = stack.backward(condition, target, weights, complete=complete, part=part)
    stack.show_gradients()
    return total, [p.grad for member in stack.members for p in member.parameters()]


KINDS = {
    "plain": {},
    "one block": {"depth": 2},
    "one layer": {"depth": 1},
    "odd width": {"width": 37},
    "diagonal": {"covariance": "diagonal"},
    "bounds": {"floor": 0.05, "ceiling": 4.0},
    "shortcut": {"shortcut": True},
    "bins": {"bins": 5},
    "bins and a shortcut": {"bins": 5, "shortcut": True},
    "categories": {"categories": CODES},
    "categories, bins and a shortcut": {"categories": CODES, "bins": 4, "shortcut": True},
    "categories alone": {"categories": CODES, "conditions": 2, "shortcut": True},
}


def prepared(**options):
    """Return networks with bins where the rows are, and some of these rows."""
    condition, target, weights = rows(codes="categories" in options, weights=True)
    condition = condition[..., -options.get("conditions", 4) :]
    networks = members(**options)
    if "bins" in options:
        condition[..., 1] = condition[..., 1].round()  # some bins less than others
        fitted = Ensemble(networks).prepare(condition.flatten(0, 1), target.flatten(0, 1))
        networks = list(fitted.members)
    return networks, condition, target, weights


@needs_native
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_whole_networks_in_one_call(kind, weighted, computed):
    networks, condition, target, weights = prepared(**KINDS[kind])
    weights = weights if weighted else None
    expected = one_by_one(networks, condition, target, weights)
    stack = Stack.of(networks)
    total, gradients = natively(stack, condition, target, weights)
    assert computed == ["mlp"]
    assert total == pytest.approx(expected[0].item(), rel=1e-12)
    assert_close(gradients, list(expected[1]), rtol=1e-9, atol=1e-13)
    part, parts = natively(stack, condition, target, weights, part=0.25)
    assert part == pytest.approx(0.25 * total, rel=1e-12)
    assert_close(parts, [0.25 * g for g in gradients], rtol=1e-12, atol=0)
    # Another part is added, and the loss of rows is the same without gradients.
    stack.backward(condition, target, weights, complete=True)
    stack.show_gradients()
    added = [p.grad for member in networks for p in member.parameters()]
    assert_close(added, [1.25 * g for g in gradients], rtol=1e-10, atol=1e-14)
    each = [
        one.head.nll(one.features(x), y)
        for one, x, y in zip(networks, condition, target, strict=True)
    ]
    assert_close(stack.nll(condition, target), torch.stack(each), rtol=1e-11, atol=1e-11)
    assert computed[-1] == "mlp_nll"


@needs_native
@pytest.mark.parametrize("kind", ["plain", "bins and a shortcut", "categories"])
def test_dropout_of_whole_networks_is_that_of_torch(kind, computed):
    networks, condition, target, _ = prepared(dropout=0.4, **KINDS[kind])
    stack, draws = Stack.of(networks), RowDraws(range(MEMBERS))
    stack.backbone.train()
    with drawing_from(networks[0], draws):
        draws.begin(epoch=2, first=5, rows=ROWS)
        expected = stack.loss(condition, target, None, complete=True)
        gradients = torch.autograd.grad(expected, stack.parameters)
        draws.begin(epoch=2, first=5, rows=ROWS)
        total, _ = natively(stack, condition, target, None)
    assert computed == ["mlp"]
    assert total == pytest.approx(expected.item(), rel=1e-12)
    found = [leaf.grad for leaf in stack.parameters]
    assert_close(found, list(gradients), rtol=1e-9, atol=1e-13)


def bent_edges(networks):
    """Move an edge, so that two bins overlap."""
    for one in networks:
        pieces = next(m for m in one.modules() if isinstance(m, PiecewiseLinear))
        pieces.edge[0, 1] -= 0.3


def bounded(networks):
    for one in networks:
        one.backbone.layers[1] = nn.Tanh()


OTHERWISE = {
    "gaps": ({}, None, {"gaps": True}),
    "low rank": ({"covariance": "low_rank"}, None, {}),
    "tied": ({"covariance": "tied"}, None, {}),
    "norms": ({"normalise": True}, None, {}),
    "another activation": ({}, bounded, {}),
    "bins that overlap": ({"bins": 4}, bent_edges, {}),
}


@pytest.mark.parametrize("kind", OTHERWISE)
def test_what_the_kernel_does_not_know_is_left_to_torch(kind, computed):
    options, change, given = OTHERWISE[kind]
    networks, *_ = prepared(**options)
    condition, target, weights = rows(weights=True, **given)
    if change is not None:
        change(networks)
    expected = one_by_one(networks, condition, target, weights)
    total, gradients = natively(Stack.of(networks), condition, target, weights, complete=not given)
    assert total == pytest.approx(expected[0].item(), rel=1e-10)
    assert_close(gradients, list(expected[1]), rtol=1e-9, atol=1e-12)
    each = [
        one.head.nll(one.features(x), y)
        for one, x, y in zip(networks, condition, target, strict=True)
    ]
    found = Stack.of(networks).nll(condition, target)
    assert_close(found, torch.stack(each), rtol=1e-10, atol=1e-10)
    assert not computed


@needs_native
def test_a_layer_that_is_frozen_keeps_no_gradient(computed):
    networks, condition, target, _ = prepared()
    for one in networks:
        one.backbone.layers[0].weight.requires_grad_(False)
    stack = Stack.of(networks)
    stack.backward(condition, target, None, complete=True)
    assert computed == ["mlp"]
    assert [leaf.grad is None for leaf in stack.parameters].count(True) == 1


def test_gradients_of_targets_and_of_gradients():
    _, target, weights = rows(weights=True)
    generator = Generator().manual_seed(1)
    features, weight, bias = (
        0.3 * torch.randn(2, *shape, generator=generator, dtype=torch.float64)
        for shape in ((4, 3), (3, 9), (1, 9))
    )
    inputs = [features, weight, bias, target[:2, :4, :1].contiguous()]
    for tensor in inputs:
        tensor.requires_grad_()

    def loss(*tensors):
        return fused_linear.stacked_linear_loss(
            *tensors, fused_linear.Layout(3, 1, 1), weights[:2, :4].contiguous(), floor=0.1
        )

    assert torch.autograd.gradcheck(loss, inputs)
    assert torch.autograd.gradgradcheck(loss, inputs)


def test_dropout_draws_a_mask_of_its_own_for_each_member():
    networks = members(dropout=0.4)
    stack, (condition, *_) = Stack.of(networks), rows()
    draws = RowDraws(range(MEMBERS))
    draws.begin(epoch=2, first=5, rows=ROWS)
    with drawing_from(networks[0], draws):
        found = stack.features(condition)
    draws.begin(epoch=2, first=5, rows=ROWS)
    first, second = (draws.kept([MEMBERS, ROWS, 8], 0.4, torch.float64) for _ in range(2))
    assert len({str(mask) for mask in (*first, *second)}) == 2 * MEMBERS
    for m, member in enumerate(networks):
        linear, act, one, other = member.backbone.layers
        hidden = act(linear(condition[m]))
        for block, mask in ((one, first[m]), (other, second[m])):
            hidden = hidden + mask * act(block.change[0](hidden))
        assert_close(found[m], hidden, rtol=1e-12, atol=1e-14)
    assert not torch.equal(first[0], first[1])


@pytest.mark.skipif(bool(native.missing), reason=native.missing)
@pytest.mark.parametrize("member", [None, 0, 2])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_kernel_makes_the_same_masks(member, p, dtype, monkeypatch):
    """Of later layers, epochs and rows too, and of part of the rows as of all of them."""

    def masks(kernel, first, rows):
        monkeypatch.setenv("CONDENS_KERNEL", kernel)
        draws = RowDraws([5, 6, 7])
        draws.begin(epoch=1, first=0, rows=4)
        draws.kept([3, 4, 2], 0.5, dtype)  # of an epoch before
        draws.begin(epoch=2, first=first, rows=rows)
        draws.choose(member)
        shape = [3, rows, 5, 2] if member is None else [rows, 5, 2]
        return torch.stack([draws.kept(shape, p, dtype) for _ in range(3)])

    whole = masks("native", 10, 9)
    assert torch.equal(whole, masks("eager", 10, 9))
    assert torch.equal(whole.narrow(-3, 4, 5), masks("native", 14, 5))
    kept = 0.0 if p == 1 else 65536 / (65536 - round(p * 65536))
    allowed = torch.tensor([0.0, kept], dtype=dtype)
    assert torch.isin(whole, allowed).all()
    assert p in (0.0, 1.0) or not torch.equal(whole[0], whole[1])


def test_parameters_are_views_until_they_are_released():
    networks, (condition, *_) = members(), rows()
    before = [member.features(condition[0]) for member in networks]
    held = [list(member.parameters()) for member in networks]
    stack = Stack.of(networks)
    assert_close([member.features(condition[0]) for member in networks], before)
    with torch.no_grad():
        for leaf in stack.parameters:
            leaf[1] += 1
    assert_close(networks[0].features(condition[0]), before[0])
    assert (networks[1].features(condition[0]) - before[1]).abs().max() > 0.1
    assert_close(stack.features(condition)[1], networks[1].features(condition[1]))
    # Elsewhere, as when averaged weights take their place for a while.
    for leaf in stack.parameters:
        leaf.data = torch.zeros_like(leaf)
    stack.attach()
    assert not any(p.any() for member in networks for p in member.parameters())
    stack.release()
    with torch.no_grad():
        for leaf in stack.parameters:
            leaf += 1
    for member, own in zip(networks, held, strict=True):
        assert all(a is b for a, b in zip(member.parameters(), own, strict=True))
        for parameter in own:
            assert not parameter.any()
            assert parameter.is_contiguous()
            assert parameter.untyped_storage().nbytes() == parameter.nbytes


def test_the_form_of_parameters():
    stack = Stack.of(members(covariance="tied"))
    mixture = stack.head.mixture(stack.free_parameters(rows()[0]))
    assert mixture.batch_shape == (MEMBERS, ROWS)
    for m, member in enumerate(stack.members):
        alone = member.form.mixture(member.free_parameters(rows()[0][m]))
        assert_close(mixture[m].mean, alone.mean)


class Bent(nn.Module):
    features = 8

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 8)

    def forward(self, x):
        return self.linear(x).tanh()


def hooked(made):
    made.backbone.layers[0].register_forward_hook(lambda *_: None)


def overridden(made):
    made.backbone.forward = lambda x: x


def frozen(made):
    made.backbone.layers[0].weight.requires_grad_(False)


def without_bias(made):
    made.backbone.layers[0] = nn.Linear(4, 8, bias=False).double()


def other_layer(made):
    made.backbone.layers[1] = nn.ReLU()


def other_rate(made):
    made.backbone.layers[2].change[2].p = 0.3


def other_kind(made):
    made.backbone = Bent().double()


def normalised(made):
    made.backbone.layers[0] = nn.utils.parametrizations.weight_norm(made.backbone.layers[0])


CHANGES = {
    "hook": hooked,
    "forward": overridden,
    "frozen": frozen,
    "bias": without_bias,
    "activation": other_layer,
    "dropout": other_rate,
    "backbone": other_kind,
    "parametrised": normalised,
    "dtype": lambda made: made.backbone.float(),
}
OTHERS = {
    "width": {"width": 9},
    "depth": {"depth": 2},
    "components": {"n_components": 2},
    "floor": {"floor": 0.1},
    "norm": {"normalise": True},
}


class TestUnlikeNetworks:
    @pytest.mark.parametrize("change", CHANGES)
    def test_one_was_changed(self, change):
        networks = members(dropout=0.1)
        CHANGES[change](networks[1])
        assert Stack.of(networks) is None

    @pytest.mark.parametrize("other", OTHERS)
    def test_one_was_made_otherwise(self, other):
        assert Stack.of([network(), network(**OTHERS[other])]) is None

    def test_users_own_backbones(self):
        own = [MixtureNetwork(Bent(), FullHead(8, 3, 2)) for _ in range(2)]
        assert Stack.of(own) is None

    def test_weights_are_shared(self):
        one, other = members()[:2]
        other.backbone = one.backbone
        assert Stack.of([one, other]) is None

    def test_one_network_and_networks_of_another_class(self):
        class Own(MixtureNetwork):
            pass

        assert Stack.of(members()[:1]) is None
        assert (Stack.of(members()[:1], alone=True) is None) == bool(native.missing)
        other = members(covariance="low_rank")[:1]
        assert Stack.of(other, alone=True) is None
        assert all(p.is_contiguous() for p in other[0].parameters())
        assert Stack.of([Own(one.backbone, one.head) for one in members()]) is None
        assert Stack.of([Ensemble(members()), Ensemble(members())]) is None

    def test_alike_ones_are_stacked(self):
        assert Stack.of(members(dropout=0.1, normalise=True)) is not None
        assert Stack.of([copy.deepcopy(one) for one in members()]) is not None


@pytest.mark.parametrize("codes", [False, True])
def test_linear_pieces_are_shared(codes):
    networks = members(bins=3, categories=CODES if codes else ())
    condition, target, _ = rows(codes=codes)
    together = Ensemble(networks).prepare(condition.flatten(0, 1), target.flatten(0, 1)).members
    found = Stack.of(together).features(condition)
    for m, member in enumerate(together):
        assert_close(found[m], member.features(condition[m]))
    # Fitted to other rows, a member has other edges.
    together[1].prepare(condition[1], target[1])
    assert Stack.of(together) is None


class Doubled(nn.Module):
    """A module without parameters that condens does not know."""

    def forward(self, x):
        return torch.cat([x, -x], -1)


def test_further_modules_can_be_made_known(monkeypatch):
    backbones = [nn.Sequential(Doubled(), MLP(8, 8)) for _ in range(2)]
    networks = [MixtureNetwork(backbone, FullHead(8, 3, 2)).double() for backbone in backbones]
    assert Stack.of(networks) is None
    monkeypatch.setattr(stacks, "STACKABLE", {*stacks.STACKABLE, Doubled})
    found = Stack.of(networks).features(rows()[0][:2])
    for m, member in enumerate(networks):
        assert_close(found[m], member.features(rows()[0][m]))
