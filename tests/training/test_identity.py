"""Whatever changes what is learned makes another run, which is refused by name."""

import dataclasses
import functools
import inspect
import json

import pytest
import torch
from helpers import runs
from torch import nn

from condens.data import Rows
from condens.errors import RunDirectoryError
from condens.nn import HEADS, MLP, Ensemble, FullHead, MixtureNetwork
from condens.training import Settings, train
from condens.training.run_directory import check_same, identity
from condens.training.sources import RowsInMemory
from condens.transforms import Integer, Interval, Positive, Real

pytestmark = pytest.mark.filterwarnings("ignore:.*(Nearly all weight|are alike|explained by no)")

X, Y = runs.problem(40)["data"]
Y = Y.abs()

# Another value for every field, and for every option of a network that has two forms.
OTHER_SETTINGS = {
    "epochs": 4,
    "batch_size": 32,
    "accumulation": 2,
    "learning_rate": 0.1,
    "schedule": "constant",
    "warmup_steps": 3,
    "weight_decay": 0.5,
    "clip": float("inf"),
    "condition_noise": "rule",
    "target_noise": 0.25,
    "average": 0.5,
    "validation_fraction": 0.25,
    "patience": 7,
    "bound": "uniform",
    "bound_epochs": 3,
    "entropy": 0.5,
    "start": "zero",
    "autocast": True,
    "trim": 0.01,
    "limit": 3.0,
    "spread": 1.5,
    "tail": 0.0,
    "seed": 99,
}
OTHER_OPTIONS = {
    "conditions": None,  # the data's
    "targets": None,
    "n_components": (4, "head.linear.weight"),
    "covariance": ("diagonal", "head.linear.weight"),
    "width": (13, "backbone.layers.0.weight"),
    "depth": (3, "backbone.layers.3.change.0.weight"),
    "normalise": (True, "backbone.layers.2.change.0.weight"),
    "dropout": (0.3, "backbone.dropout"),
    "bins": (4, "backbone.layers.0.edge"),
    "shortcut": (True, "head.linear.weight"),
    "floor": (0.5, "head.floor"),
    "ceiling": (50.0, "head.ceiling"),
    "rank": None,  # below
    "categories": None,
    "names": None,  # nothing is learned of them
    "generator": None,  # the state has the weights
    "transforms": ([Real(), Positive()], "transforms"),
    "unused": ([0], "condition_scaling.unused"),
}


def trained(place, network, **changes):
    settings = runs.settings(epochs=1, **changes)
    return train(network, (X, Y), settings, directory=place, checkpoint_seconds=1e9)


def refusal(place, network, **changes):
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    with pytest.raises(RunDirectoryError) as raised:
        trained(place, network, **changes)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before
    return str(raised.value).removeprefix(f"{place} holds ")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return the directory of a run, which no refused one changes."""
    place = tmp_path_factory.mktemp("run")
    train(runs.network(), (X, Y), runs.settings(), directory=place)
    return place


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Settings)])
def test_every_setting(place, name):
    with pytest.raises(RunDirectoryError, match=f"holds a run with other {name}, but"):
        train(
            runs.network(), (X, Y), runs.settings(**{name: OTHER_SETTINGS[name]}), directory=place
        )


@pytest.mark.parametrize("name", inspect.signature(MixtureNetwork.of).parameters)
def test_every_option_of_a_network(place, name):
    if OTHER_OPTIONS[name] is None:
        return
    value, part = OTHER_OPTIONS[name]
    with pytest.raises(RunDirectoryError) as raised:
        train(runs.network(**{name: value}), (X, Y), runs.settings(), directory=place)
    assert f"holds another network (see {part}), but a run keeps its network" in str(raised.value)


def test_the_same_is_the_same(place):
    train(runs.network(), (X, Y), runs.settings(), directory=place)
    train(runs.network(), (X, Y), runs.settings(), directory=place, progress=True, callbacks=print)
    named = runs.network(names=["a", "b"])
    train(named, (X, Y), runs.settings(), directory=place, checkpoint_seconds=1.0)
    assert named(X).names == ("a", "b")


@pytest.mark.parametrize(
    ("one", "other", "part"),
    [
        (MLP(2, 5, activation="relu"), MLP(2, 5, activation="tanh"), "backbone.activation"),
        (nn.Sequential(nn.Linear(2, 5), nn.Dropout(0.1)),) * 2 + (None,),
        (
            nn.Sequential(nn.Linear(2, 5), nn.Dropout(0.1)),
            nn.Sequential(nn.Linear(2, 5), nn.Dropout(0.2)),
            "backbone.1.p",
        ),
        (
            nn.Sequential(nn.Linear(2, 5), nn.ReLU()),
            nn.Sequential(nn.Linear(2, 5), nn.Tanh()),
            "backbone.1.class",
        ),
        (
            nn.Sequential(nn.Linear(2, 5), nn.LayerNorm(5)),
            nn.Sequential(nn.Linear(2, 5), nn.LayerNorm(5, eps=0.1)),
            "backbone.1.eps",
        ),
    ],
)
def test_modules_of_torch(tmp_path, one, other, part):
    trained(tmp_path, MixtureNetwork(one, FullHead(5, 2, 2), condition_columns=2))
    second = MixtureNetwork(other, FullHead(5, 2, 2), condition_columns=2)
    if part is None:
        trained(tmp_path, second)
    else:
        assert refusal(tmp_path, second).startswith(f"another network (see {part}), but")


class Own(nn.Module):
    """A module that keeps what it is made with as users do."""

    def __init__(self, **held):
        super().__init__()
        self.linear = nn.Linear(2, 5)
        for name, value in held.items():
            setattr(self, name, value)

    def forward(self, condition):
        return self.linear(condition)


class Plain:
    def __init__(self, rate):
        self.rate = rate


def double(x):
    return 2 * x


KEPT = {
    "a number": (0.1, 0.2),
    "a word": ("mean", "sum"),
    "a private one": ("_rate", 0.1, 0.2),
    "a list": ([1, 2], [2, 1]),
    "a dictionary": ({"p": [0.1]}, {"p": [0.2]}),
    "a function": (torch.relu, torch.tanh),
    "a partial one": (functools.partial(double, x=1), functools.partial(double, x=2)),
    "a tensor": (torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0])),
    "a dtype": (torch.float32, torch.bfloat16),
    "an object": (Plain(0.1), Plain(0.2)),
    "a set": ({"a", "b"}, {"a", "c"}),
}


@pytest.mark.parametrize("kind", KEPT)
def test_what_a_module_keeps(tmp_path, kind):
    *name, one, other = KEPT[kind]
    name = name[0] if name else "kept"

    def network(value):
        return MixtureNetwork(Own(**{name: value}), FullHead(5, 2, 2), condition_columns=2)

    trained(tmp_path, network(one))
    trained(tmp_path, network(one))
    text = refusal(tmp_path, network(other))
    assert text.startswith(f"another network (see backbone.{name}), but")


def buffered(value, persistent):
    network = MixtureNetwork(Own(), FullHead(5, 2, 2), condition_columns=2)
    network.backbone.register_buffer("mask", torch.tensor(value), persistent=persistent)
    return network


def test_buffers_that_no_state_keeps(tmp_path):
    trained(tmp_path, buffered(1.0, False))
    assert "(see backbone.mask)" in refusal(tmp_path, buffered(2.0, False))


def test_buffers_of_the_state_come_from_it(tmp_path):
    trained(tmp_path, buffered(1.0, True))
    network = buffered(2.0, True)
    trained(tmp_path, network)
    assert float(network.backbone.mask) == 1.0


def test_frozen_weights(tmp_path):
    def network(*, train):
        made = runs.network()
        made.backbone.layers[0].weight.requires_grad_(train)
        return made

    trained(tmp_path, network(train=False))
    text = refusal(tmp_path, network(train=True))
    assert text.startswith("another network (see backbone.layers.0.weight)")


def test_hooks(tmp_path):
    def hooked(hook):
        made = runs.network()
        made.backbone.register_forward_hook(hook)
        return made

    trained(tmp_path, hooked(lambda *_: None))
    assert "_forward_hooks" in refusal(tmp_path, runs.network())


@pytest.mark.parametrize(
    "transforms", [[Real(), Integer(0)], [Real(), Interval(-1.0, 99.0)]], ids=str
)
def test_transforms(tmp_path, transforms):
    trained(tmp_path, runs.network(transforms=[Real(), Positive(-1.0)]))
    with pytest.raises(RunDirectoryError, match=r"see transforms"):
        train(
            runs.network(transforms=transforms),
            (X, Y.round()),
            runs.settings(epochs=1),
            directory=tmp_path,
        )


def test_ranks_and_members(tmp_path):
    trained(tmp_path / "rank", runs.network(covariance="low_rank", rank=1))
    other = runs.network(covariance="low_rank", rank=2)
    assert "see head.linear.weight" in refusal(tmp_path / "rank", other)
    trained(tmp_path / "members", Ensemble([runs.network(), runs.network(dropout=0.3)]))
    other = Ensemble([runs.network(), runs.network(dropout=0.4)])
    assert "see networks.1.backbone.dropout" in refusal(tmp_path / "members", other)


@pytest.mark.parametrize("covariance", HEADS)
def test_is_the_same_in_every_process_and_through_json(covariance):
    def made():
        network = runs.network(covariance=covariance)
        return identity(network, runs.settings(), "digest")

    assert json.loads(json.dumps(made())) == made()
    assert " at 0x" not in json.dumps(made())


def test_compiled_backbones_and_devices_are_the_same_in_every_process():
    def made(number):
        backbone = Own(place=torch.device("cuda", number))
        backbone = torch.compile(backbone, backend="eager")
        network = MixtureNetwork(backbone, FullHead(5, 2, 2), condition_columns=2)
        return backbone, identity(network, runs.settings(), "digest")

    (one, first), (other, second) = made(0), made(1)
    assert one is not other
    assert first == second


def test_rows_and_validation_are_told_apart(tmp_path):
    with_validation = train(
        runs.network(), (X, Y), runs.settings(), validation=(X, Y), directory=tmp_path
    )
    assert with_validation.validation_rows == len(X)
    with pytest.raises(RunDirectoryError, match="holds a run on other data"):
        train(runs.network(), (X, Y), runs.settings(), directory=tmp_path)


@pytest.mark.parametrize("theirs", [None, [], {}, "x", {"settings": 3, "network": []}], ids=str)
def test_an_identity_that_is_none(tmp_path, theirs):
    ours = identity(runs.network(), runs.settings(), "digest")
    with pytest.raises(RunDirectoryError, match="holds a run with other epochs"):
        check_same(tmp_path, theirs, ours)


def test_numbers_are_the_same_data_in_single_and_in_double_precision():
    def digest(x, y):
        return RowsInMemory(Rows.of(x, y), None, None, Settings(), 1).digest()

    single, double = (
        digest(X.float().to(dtype), Y.float().to(dtype)) for dtype in (torch.float32, torch.float64)
    )
    assert single == double
    assert digest(X.float().nextafter(torch.tensor(9.0)), Y.float()) != double
