"""Settings: each field plain and in its range, or refused by its name."""

import dataclasses
import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from helpers import runs

from condens.errors import ArgumentError
from condens.training import Settings, choose_components, train

NAN, INF = math.nan, math.inf
FIELDS = {field.name: field for field in dataclasses.fields(Settings)}
WHOLE = (
    *("epochs", "warmup_steps", "patience", "bound_epochs", "seed", "batch_size"),
    "accumulation",
)
REAL = (
    *("learning_rate", "weight_decay", "clip", "average", "validation_fraction", "entropy"),
    *("condition_noise", "target_noise", "trim", "limit", "spread", "tail"),
)
WORDS = ("schedule", "bound", "start")

# What nothing of the kind may be.
NEVER = {
    **dict.fromkeys(
        WHOLE, (True, 1.5, 5.0, "5", NAN, INF, [1], (), {}, 2**64, 10**5000, np.bool_(1), b"1")
    ),
    **dict.fromkeys(REAL, (True, "5", NAN, -INF, -1, [1.0], (), {}, 1j, 10**400, object)),
    **dict.fromkeys(WORDS, (True, 1, "", "Data", [], ["data"], np.zeros(2), {}, b"data", str)),
    "limit": (NAN, -INF, 0.0, 1e-7, "10", True, None, [1.0]),
    "autocast": (1, 0, 1.0, "True", "no", [], np.zeros(2), torch.tensor(True), None),
}
# What becomes a plain value.
WELCOME = {
    **dict.fromkeys(WHOLE, (1, np.int64(3), np.uint8(7), np.int32(2))),
    **dict.fromkeys(REAL, (0.5, np.float32(0.25), np.float64(0.125), Fraction(1, 2))),
    "schedule": ("cosine", "plateau", "constant", np.str_("plateau")),
    "bound": (None, "weighted", "uniform", "printed"),
    "start": ("data", "zero", "keep"),
    "autocast": (True, False, np.bool_(1), np.False_),
}


@pytest.mark.parametrize("name", FIELDS)
def test_what_is_refused_is_named(name):
    bad = [*NEVER[name], *({None, object()} - {None if name == "bound" else ...})]
    for value in bad:
        with pytest.raises(ArgumentError) as raised:
            Settings(**{name: value})
        text = str(raised.value)
        assert text.startswith(f"{name} is "), (name, value)
        assert " was expected. Leave it out for the default, " in text
        assert len(text) < 300


@pytest.mark.parametrize("name", FIELDS)
def test_what_is_welcome_becomes_plain(name):
    kinds = (int,) if name in WHOLE else (float,) if name in REAL else (str, bool, type(None))
    for value in WELCOME[name]:
        settings = Settings(**{name: value})
        held = getattr(settings, name)
        assert type(held) in kinds, (name, value)
        assert held == value
        again = Settings.from_dict(json.loads(json.dumps(settings.to_dict(), allow_nan=False)))
        assert again == settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", 2**64 - 1),
        ("seed", -(2**63)),
        ("epochs", 2**63 - 1),
        ("warmup_steps", 2**63 - 1),
        ("patience", 2**63 - 1),
        ("batch_size", 2**63 - 1),
        ("accumulation", 2**63 - 1),
        ("clip", INF),
        ("clip", 5e-324),
        ("limit", INF),
        ("limit", 1e-6),
        ("batch_size", "rule"),
        ("condition_noise", "rule"),
        ("target_noise", np.str_("rule")),
        ("learning_rate", 1e-300),
    ],
)
def test_the_ends_of_the_ranges_train(name, value):
    more = {"epochs": 1, name: value} if name != "epochs" else {name: value, "patience": 1}
    settings = Settings(**{**more, "average": 0.0})

    class EnoughError(Exception):
        pass

    def stop(epoch):
        raise EnoughError

    with pytest.raises(EnoughError):
        train(runs.network(), runs.problem(30)["data"], settings, callbacks=stop)
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_a_seed_of_more_bits(seed):
    with pytest.raises(ArgumentError, match=r"seed is -?\d+, but at (least|most) -?\d+ was expe"):
        Settings(seed=seed)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"epochs": 5, "schedule": "plateau"},
            "settings is a dict, but condens.training.Settings was expected. "
            "Pass Settings(epochs=5, schedule='plateau').",
        ),
        (5, "settings is a int, but condens.training.Settings was expected. "),
        (Settings, "settings is the class, but condens.training.Settings was expected. Call it"),
        ("fast", "settings is a str, but condens.training.Settings was expected. "),
    ],
)
def test_settings_that_are_none(settings, text):
    data = runs.problem(30)["data"]
    for door in (
        lambda: train(runs.network(), data, settings),
        lambda: choose_components(lambda k: runs.network(n_components=k), data, settings),
    ):
        with pytest.raises(ArgumentError) as raised:
            door()
        assert str(raised.value).startswith(text)


@pytest.mark.parametrize("values", [None, 3, "x", [], [("epochs", 3)]])
def test_records_that_are_none(values):
    with pytest.raises(ArgumentError, match=r"settings is .*, but what to_dict returns"):
        Settings.from_dict(values)
