"""Columns that are checked, but not read."""

import copy

import pytest
import torch
from torch.testing import assert_close

from condens.errors import ArgumentError, NotFiniteError
from condens.nn import MLP, Ensemble, FullHead, MixtureNetwork
from condens.nn.scaling import ConditionScaling

DOUBLE = torch.float64


def rows(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = 5 + 3 * torch.randn(50, 4, generator=generator, dtype=DOUBLE)
    return x, x[:, :2]


def network(**options):
    generator = torch.Generator().manual_seed(0)
    made = MixtureNetwork.of(
        4, 2, n_components=2, width=16, unused=(1, 3), generator=generator, **options
    )
    return made.double().prepare(*rows()).eval()


CASES = {
    "plain": {},
    "bins": {"bins": 3},
    "a linear part": {"shortcut": True},
    "codes": {"categories": [4]},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_they_change_nothing_however_far_they_are(options):
    x, y = rows()
    unused = [1, 3]
    if "categories" in options:
        x[:, 3] = torch.arange(50) % 4
        unused = [1]
        made = MixtureNetwork.of(4, 2, width=16, unused=unused, **options).double().prepare(x, y)
    else:
        made = network(**options)
    other = x.clone()
    other[:, unused] = torch.tensor([1e9, -1e300], dtype=DOUBLE)[: len(unused)]
    assert torch.equal(made.nll(x, y), made.nll(other, y))
    for ours, theirs in zip(made(x).parameters, made(other).parameters, strict=True):
        assert torch.equal(ours, theirs)
    moved = x.clone()
    moved[:, 0] += 1.0
    assert not torch.equal(made.nll(x, y), made.nll(moved, y))


def test_others_are_read_as_without_them():
    x, _ = rows()
    whole, part = ConditionScaling(4).fit(x), ConditionScaling(4, unused=(1, 3)).fit(x)
    far = x.clone()
    far[:5] = 1e6
    for values in (x, far, x[0]):
        assert torch.equal(part(values)[..., ::2], whole(values)[..., ::2])
        assert (part(values)[..., 1::2] == 0).all()
    assert part(x, torch.float32).dtype == torch.float32
    assert torch.equal(part.outside(far)[:, ::2], whole.outside(far)[:, ::2])
    assert whole.outside(far)[:5].all()
    assert not part.outside(far)[:, 1::2].any()


def test_no_gradient_reaches_their_weights():
    made = network()
    made.loss(*rows()).backward()
    first = made.backbone.layers[0].weight.grad
    assert (first[:, [1, 3]] == 0).all()
    assert (first[:, [0, 2]] != 0).any(0).all()


def test_they_are_checked_all_the_same():
    x, _ = rows()
    x[3, 1] = torch.nan
    with pytest.raises(NotFiniteError, match="condition"):
        network()(x)


def test_an_ensemble_has_those_of_its_members():
    members = [network(), network()]
    made = Ensemble(members)
    assert made.unused == (1, 3)
    assert copy.deepcopy(made).unused == (1, 3)
    with pytest.raises(ArgumentError, match="members have unused"):
        Ensemble([network(), MixtureNetwork.of(4, 2, n_components=2, width=16)])


@pytest.mark.parametrize("unused", [(4,), (-1,), (0.5,), (True,), ("x",)])
def test_other_positions_are_refused(unused):
    with pytest.raises(ArgumentError, match=r"unused is .*of the 4 columns of numbers"):
        MixtureNetwork.of(4, 2, unused=unused)


def test_codes_and_conditions_of_other_shapes_have_none():
    with pytest.raises(ArgumentError, match="of the 2 columns"):
        MixtureNetwork.of(3, 2, categories=[4], unused=[2])
    with pytest.raises(ArgumentError, match="of the 0 columns"):
        MixtureNetwork(MLP(3, 8), FullHead(8, 2, 2), unused=[0])


def test_compiled_and_exported(recwarn):
    made, (x, y) = network(), rows()

    class Nll(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = made

        def forward(self, condition, target):
            return self.network.nll(condition, target)

    program = torch.export.export(Nll(), (x, y))
    assert_close(program.module()(x, y), made.nll(x, y))
