"""The MLP: what each option changes, against the equation written out."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from condens.errors import ArgumentError
from condens.nn import MLP, TableMLP, backbone_from_dict
from condens.nn.backbones import ACTIVATIONS


def written_out(network, x, activation, normalise):
    """Return h ← act(Wx + b), then h ← h + act(W·norm(h) + b), from the weights alone."""
    linear = [m for m in network.modules() if isinstance(m, nn.Linear)]
    h = activation(x @ linear[0].weight.T + linear[0].bias)
    for layer in linear[1:]:
        inner = h
        if normalise:
            centred = h - h.mean(-1, keepdim=True)
            inner = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        h = h + activation(inner @ layer.weight.T + layer.bias)
    return h


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_is_the_equation(activation, normalise, depth):
    network = MLP(3, 8, depth, activation=activation, normalise=normalise, dropout=0.5)
    network = network.double().eval()
    x = torch.randn(5, 3, dtype=torch.float64)
    function = {
        "silu": lambda t: t * torch.sigmoid(t),
        "relu": lambda t: t.clamp(min=0),
        "tanh": torch.tanh,
        "gelu": lambda t: 0.5 * t * (1 + torch.erf(t / 2**0.5)),
    }[activation]
    assert_close(network(x), written_out(network, x, function, normalise), rtol=1e-10, atol=1e-10)


def test_depth_counts_linear_layers_and_width_the_features():
    network = MLP(3, width=7, depth=4)
    layers = [m for m in network.modules() if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in layers] == [(3, 7), (7, 7), (7, 7), (7, 7)]
    assert network.features == 7


def test_dropout_acts_in_training_alone_and_on_blocks_alone():
    network, x = MLP(3, 64, 2, dropout=0.5), torch.randn(200, 3)
    first = network.layers[1](network.layers[0](x))
    change = network.train()(x) - first
    dropped = (change == 0).double().mean()
    # 12800 coins: five standard deviations are 0.022.
    assert abs(dropped - 0.5) < 0.03
    assert torch.equal(network.eval()(x), network(x))


@pytest.mark.parametrize("bins", [0, 3])
def test_a_shortcut_appends_what_is_read(bins):
    x = torch.randn(7, 2)
    plain, both = (
        MLP(2, 5, bins=bins, shortcut=shortcut, generator=torch.Generator().manual_seed(0))
        for shortcut in (False, True)
    )
    assert (plain.features, both.features) == (5, 7)
    assert torch.equal(both(x), torch.cat([plain(x), x], -1))
    assert torch.equal(both.shortcut_of(x), x)
    table = TableMLP(2, [4], 5, bins=bins, shortcut=True)
    codes = torch.tensor([[0.0], [1.0], [3.0]])
    found = table(torch.cat([x[:3], codes], -1))
    embedded = table.embeddings[0]
    known = torch.stack([embedded.mean(0), embedded[0], embedded[2]])
    assert found.shape[1] == table.features == 5 + 2 + embedded.shape[1]
    assert_close(found[:, 5:], torch.cat([x[:3], known], -1))


@pytest.mark.parametrize(
    "options",
    [
        {
            "width": 128,
            "depth": 2,
            "activation": "silu",
            "normalise": False,
            "dropout": 0.0,
            "bins": 0,
            "shortcut": False,
        },
        {
            "width": 5,
            "depth": 3,
            "activation": "tanh",
            "normalise": True,
            "dropout": 0.25,
            "bins": 4,
            "shortcut": True,
        },
    ],
)
def test_to_dict_makes_another_like_it(options):
    network = MLP(3, **options)
    assert network.to_dict() == {"kind": "mlp", "inputs": 3, **options}
    again = backbone_from_dict(network.to_dict())
    assert repr(again) == repr(network)
    network.to_dict()["width"] = 7
    assert network.to_dict()["width"] == options["width"]


def test_numbers_of_numpy_become_plain():
    network = MLP(
        np.int64(3), np.int32(8), np.uint8(2), normalise=np.True_, dropout=np.float32(0.25)
    )
    assert json.dumps(network.to_dict()) == json.dumps(
        MLP(3, 8, 2, normalise=True, dropout=0.25).to_dict()
    )
    assert type(network.features) is int


def test_unknown_activation_is_named():
    with pytest.raises(ArgumentError) as raised:
        MLP(3, activation="swish")
    assert str(raised.value) == (
        "activation is 'swish', but one of ('silu', 'relu', 'tanh', 'gelu') was expected. Pass one "
        "of these names."
    )


FIXES = {
    "inputs": "Pass the number of columns of the condition.",
    "width": "Pass the number of units of a layer, such as 128.",
    "depth": "Pass the number of layers, such as 2.",
    "normalise": "Pass True for a LayerNorm in each block.",
    "dropout": "Pass 0 for none, or a fraction such as 0.1.",
}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"inputs": 0}, "inputs is 0, but at least 1 was expected."),
        ({"width": 0}, "width is 0, but at least 1 was expected."),
        ({"depth": 0}, "depth is 0, but at least 1 was expected."),
        (
            {"dropout": 1.0},
            "dropout is 1.0, but a fraction from 0 to below 1 was expected.",
        ),
        ({"inputs": 2.0}, "inputs is 2.0, but a whole number was expected."),
        ({"width": "8"}, "width is '8', but a whole number was expected."),
        ({"width": None}, "width is None, but a whole number was expected."),
        ({"depth": True}, "depth is True, but a whole number was expected."),
        ({"depth": math.nan}, "depth is nan, but a whole number was expected."),
        ({"normalise": 1}, "normalise is 1, but True or False was expected."),
        ({"dropout": "0.1"}, "dropout is '0.1', but a number was expected."),
        ({"dropout": True}, "dropout is True, but a number was expected."),
        (
            {"dropout": math.nan},
            "dropout is nan, but a fraction from 0 to below 1 was expected.",
        ),
        (
            {"activation": ["silu"]},
            "activation is ['silu'], but one of ('silu', 'relu', 'tanh', 'gelu') was expected. "
            "Pass one of these names.",
        ),
        (
            {"dropout": -0.1},
            "dropout is -0.1, but a fraction from 0 to below 1 was expected.",
        ),
    ],
)
def test_impossible_options_are_named(options, text):
    with pytest.raises(ArgumentError) as raised:
        MLP(**{"inputs": 3, **options})
    assert str(raised.value) == " ".join(
        [text, *(FIXES[name] for name in options if name in FIXES)]
    )
