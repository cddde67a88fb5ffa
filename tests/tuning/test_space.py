"""Search spaces: what may stand in one, what is refused by name, and what `fit` reads of it."""

import math
import tomllib
from dataclasses import fields

import optuna
import pytest

from condens import MDNRegressor
from condens.errors import ArgumentError
from condens.training import Settings, default_settings
from condens.tuning import Range, Space, default_space
from condens.tuning.space import MODEL_NAMES, TRAINING_NAMES, default_values, to_toml


@pytest.mark.parametrize("n_rows", [1, 30, 1000, 10**6])
def test_every_value_of_the_default_space_is_a_parameter(n_rows):
    space = Space(default_space(n_rows))
    assert not space.fixed
    parameters, settings = MDNRegressor().get_params(), {each.name for each in fields(Settings)}
    assert {*space.searched} <= {*parameters} | settings
    defaults = default_values(n_rows)
    # Otherwise the search would not learn from the first trial.
    assert all(space.holds(name, defaults[name]) for name in space.searched)


def test_defaults_are_those_of_a_network():
    defaults, settings = default_values(1000), default_settings(1000)
    model = MDNRegressor()
    for name in {*defaults} & {*MODEL_NAMES}:
        given = getattr(model, name)
        assert given in (None, "auto") or defaults[name] == given
    for name in {*defaults} & {*TRAINING_NAMES} - {"batch_size"}:
        assert defaults[name] == getattr(settings, name)


def test_suggestions_lie_in_the_space():
    space = Space({"depth": Range(1, 3), "dropout": Range(0.1, 0.2), "width": [8, 16]})
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(20):
        trial = study.ask()
        for name in space.searched:
            value = space.suggest(trial, name)
            assert space.holds(name, value)
            assert isinstance(value, float if name == "dropout" else int)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "space has nothing to search"),
        ({"width": 64}, "space has nothing to search"),
        ([1], "space is .1., but a mapping"),
        ({"witdh": [1, 2]}, "space has 'witdh', but .*width.* were expected"),
        ({"n_members": [1, 2]}, "space has 'n_members', but every trial is one network"),
        ({"random_state": [1, 2]}, "is an argument of the search"),
        ({"seed": [1, 2]}, "space has 'seed'"),
        ({"width": []}, "width is .., but a list of different values"),
        ({"width": [8, 8]}, "width is .8, 8., but a list of different"),
        ({"width": [8, [9]]}, "width is .9., but a value, a list"),
        ({"width": [8, 0]}, "width is 0, but at least 1"),
        ({"width": Range(0, 8)}, "width is 0, but at least 1"),
        ({"width": Range(8, 4)}, r"width is \(8, 4\), but a range has low below high"),
        ({"width": Range(1.5, 4)}, "width is 1.5, but a whole number"),
        ({"width": Range(True, 4)}, "width is True, but the end of a range"),
        ({"dropout": Range(0.0, 1.0)}, "dropout is 1.0, but a fraction"),
        ({"dropout": Range(0.0, 0.5, log=True)}, "in the logarithm is above 0"),
        ({"learning_rate": Range(1e-3, math.inf)}, "learning_rate is inf"),
        ({"clip": [1.0, -1.0]}, "clip is -1.0"),
        ({"covariance": ["full", "round"]}, "covariance is 'round'"),
    ],
)
def test_what_no_space_may_hold_is_refused_by_name(given, message):
    with pytest.raises(ArgumentError, match=message):
        Space(given)


def test_a_file_has_ranges_choices_and_values(tmp_path):
    path = tmp_path / "space.toml"
    path.write_text(
        '[model]\nwidth = [8, 16]\ndepth = {low = 1, high = 3}\ncovariance = "diagonal"\n'
        "[training]\nlearning_rate = {low = 1e-3, high = 1e-2, log = true}\nclip = 3\n"
    )
    space = Space.read(path)
    assert space.searched == {
        "width": (8, 16),
        "depth": Range(1, 3),
        "learning_rate": Range(1e-3, 1e-2, log=True),
    }
    assert space.fixed == {"covariance": "diagonal", "clip": 3.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[model", "cannot be read"),
        ("[model]\nclip = [1, 2]", r"space.toml: \[model\] has 'clip', but .*width"),
        ("[training]\nwidth = [1, 2]", r"space.toml: \[training\] has 'width'"),
        ("[other]\nwidth = [1, 2]", r"space.toml has 'other', but the tables \[model\]"),
        ("model = 3", "space.toml: model is 3"),
        ("[model]\nwidth = {low = 1}", "width is {'low': 1}, but a value"),
        ("[model]\nwidth = {low = 1, high = 2, step = 1}", "width is .*, but a value"),
        ("[model]\nwidth = 1979-05-27", "width is .*, but a value"),
    ],
)
def test_a_file_with_something_else_is_refused(tmp_path, text, message):
    (tmp_path / "space.toml").write_text(text)
    with pytest.raises(ArgumentError, match=message):
        Space.read(tmp_path / "space.toml")


def test_toml_gives_the_values_back():
    values = {"width": 8, "shortcut": True, "n_members": 2, "batch_size": "rule", "dropout": 1e-7}
    found = tomllib.loads(to_toml({**values, "clip": math.inf, "bound": None}))
    assert {**found["model"], **found["training"]} == {**values, "clip": math.inf}
