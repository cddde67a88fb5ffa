"""States whose hash is right and whose content is not: refused by name, never raw."""

import copy
import hashlib
import json
import random

import pytest
import safetensors.torch
import torch
from helpers import runs

from condens.errors import RunDirectoryError
from condens.training import train

pytestmark = pytest.mark.filterwarnings("ignore:.*(Nearly all weight|are alike|explained by no)")

DATA = runs.problem(60)["data"]
SETTINGS = runs.settings(epochs=3, batch_size=30)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return the state of a run in the middle of its second epoch."""
    place = tmp_path_factory.mktemp("run")

    class StoppedError(Exception):
        pass

    def stop(epoch):
        raise StoppedError

    with pytest.raises(StoppedError):
        train(
            runs.network(),
            DATA,
            SETTINGS,
            directory=place,
            callbacks=lambda epoch: None if epoch.epoch < 1 else stop(epoch),
            checkpoint_seconds=0.0,
        )
    last = max(place.glob("state-*.json"))
    values = json.loads(last.read_text())["values"]
    return safetensors.torch.load_file(last.with_suffix(".safetensors")), values


def outcome(place, tensors, values):
    """Go on from a state; return the message it is refused with, or None."""
    place.mkdir()
    data = safetensors.torch.save(tensors)
    digest = hashlib.sha256(data + json.dumps(values).encode()).hexdigest()
    (place / "state-00000000.safetensors").write_bytes(data)
    (place / "state-00000000.json").write_text(json.dumps({"sha256": digest, "values": values}))
    text = None
    try:
        train(runs.network(), DATA, SETTINGS, directory=place, checkpoint_seconds=1e9)
    except RunDirectoryError as error:
        text = str(error)
    assert text is None or len(text) < 1000
    return text


def test_the_state_itself_goes_on(tmp_path, written):
    assert outcome(tmp_path / "run", *written) is None


def test_every_tensor(tmp_path, written):
    tensors, values = written
    assert {name.partition(".")[0] for name in tensors} >= {"now", "good", "best"}
    for number, name in enumerate(tensors):
        rest = {other: t for other, t in tensors.items() if other != name}
        text = outcome(tmp_path / f"{number} gone", rest, values)
        assert f"lacks {name}" in text
        for kind, changed in (
            ("shape", tensors[name].unsqueeze(0).repeat(2, *[1] * tensors[name].dim())),
            ("dtype", tensors[name].to(torch.int16)),
        ):
            text = outcome(tmp_path / f"{number} {kind}", {**tensors, name: changed}, values)
            assert f"has {name} as torch." in text, name


@pytest.mark.parametrize("name", ["more", "now.network.more", "now.average.99", "good.more", ""])
def test_unknown_tensors(tmp_path, written, name):
    tensors, values = written
    text = outcome(tmp_path / "run", {**tensors, name: torch.zeros(2)}, values)
    assert f"that cannot be read (it has an unknown {name!r}), but a run goes on from what" in text


def test_generators_that_are_none(tmp_path, written):
    tensors, values = written
    for name, tensor in tensors.items():
        if tensor.dtype == torch.uint8:
            changed = torch.full_like(tensor, 255)
            assert outcome(tmp_path / name, {**tensors, name: changed}, values) is not None


@pytest.mark.parametrize("count", [-1.0, float("nan"), float("inf")])
def test_counts_of_steps_that_are_none(tmp_path, written, count):
    tensors, values = written
    (name, *_) = (name for name in tensors if name.endswith(".step"))
    changed = tensors | {name: torch.full_like(tensors[name], count)}
    assert f"it has {name} as {count}" in outcome(tmp_path / "run", changed, values)


@pytest.mark.parametrize("factor", [-1.0, float("nan"), 3.0])
def test_rates_that_are_none(tmp_path, written, factor):
    tensors, values = written
    made = changed(values, ("position", "rate_factor"), factor)
    assert "rate_factor" in outcome(tmp_path / "run", tensors, made)


OTHERS = (None, True, -1, 3, 10**30, 0.5, float("nan"), "", "inf", [], [1], {}, {"a": 1}, [[]])


def places(value, path=()):
    """Yield where every value of a document lies."""
    yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, child in items:
            yield from places(child, (*path, key))


def changed(values, path, new):
    if not path:
        return new
    made = copy.deepcopy(values)
    parent = made
    for key in path[:-1]:
        parent = parent[key]
    if new is KeyError:
        del parent[path[-1]]
    else:
        parent[path[-1]] = new
    return made


def search(tmp_path, written, count, seed):
    tensors, values = written
    chance, outcomes = random.Random(seed), []
    known = [path for path in places(values) if path[:1] != ("identity",)]
    for number in range(count):
        path, new = chance.choice(known), chance.choice((*OTHERS, KeyError))
        made = changed(values, path, None if new is KeyError and not path else new)
        outcomes.append(outcome(tmp_path / f"{number}", tensors, made))
    return outcomes


def test_every_value_is_needed(tmp_path, written):
    tensors, values = written
    for number, path in enumerate(p for p in places(values) if p and isinstance(p[-1], str)):
        text = outcome(tmp_path / f"{number}", tensors, changed(values, path, KeyError))
        assert text is not None, path


def test_values_of_other_kinds(tmp_path, written):
    outcomes = search(tmp_path, written, 60, seed=1)
    assert sum(text is not None for text in outcomes) > 30


@pytest.mark.slow
def test_many_values_of_other_kinds(tmp_path, written):
    search(tmp_path, written, 2000, seed=2)


@pytest.mark.parametrize("values", [None, [], 3, "x", {}, {"identity": {}}], ids=str)
def test_values_that_are_none(tmp_path, written, values):
    assert "holds a run with other" in outcome(tmp_path / "run", written[0], values)
