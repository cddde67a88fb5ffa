"""What `save` takes, `load` returns; what neither wrote is refused by name and quickly."""

import copy
import hashlib
import json
import math
import os
import resource
import signal
import struct
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.model_files import Convolution, arrays, sealed
from helpers.search import Wrong, finite, need, no_nan, property_of, refused
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of

from condens import MDNRegressor, persistence
from condens.errors import CondensError, ModelFileError, RunDirectoryError
from condens.nn import HEADS, MLP, Ensemble, FullHead, MixtureNetwork
from condens.training import Settings, train
from condens.transforms import Integer, Interval, Positive, Real

pytestmark = pytest.mark.slow


@contextmanager
def place():
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def answers(network, columns):
    """Return the bytes of what a network answers."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, columns, generator=generator, dtype=torch.float64)
    codes = network.condition_codes
    if codes:
        x[:, -codes:] = 1
    network.eval()
    with torch.no_grad():
        mixture = network(x)
        parts = [mixture.mean, mixture.variance, *getattr(mixture, "base", mixture).parameters]
    return mixture.names, [p.contiguous().double().numpy().tobytes() for p in parts]


def saved_and_loaded(network, columns, backbone=None):
    """Need `load` to return what `save` took, and `save` to make the same file of it."""
    with place() as folder:
        path = folder / "model"
        persistence.save(network, path)  # a refusal here is fair
        try:
            again = persistence.load(path, backbone=backbone)
        except CondensError as error:
            raise Wrong(f"saved, then refused: {str(error).partition('model: ')[2]}") from None
        need(answers(again, columns) == answers(network, columns), "loaded answers differ")
        need(
            again.transforms == network.transforms,
            f"maps {again.transforms} for {network.transforms}",
        )
        persistence.save(again, folder / "again")
        need(path.read_bytes() == (folder / "again").read_bytes(), "saved again, another file")
        return again


def number(d, name, low=-8, high=8):
    """Return a number of one of the types that users pass."""
    size = d.random.choice([0.0, 1.0, d.power(f"{name} size", low, high)])
    value = size * d.random.choice([-1, 1])
    kind = d.choice(f"{name} as", {"float": float, "int": lambda v: int(min(max(v, -(2**62)), 2**62)),
                                   "float64": np.float64, "float32": np.float32, "bool": bool,
                                   "int64": lambda v: np.int64(min(max(v, -(2**62)), 2**62)),
                                   "large int": lambda v: 10 ** d.random.randint(1, 25)})  # fmt: skip
    return d.note(name, kind(value))


@property_of(300)
def test_maps_survive_files(d):
    """Bounds given as any kind of number."""
    transforms = []
    for i in range(d.integer("targets", 1, 3)):
        kind = d.choice(f"map {i}", ["integer", "interval", "positive", "real"])
        if kind == "integer":
            transforms.append(Integer(d.random.choice([None, number(d, f"lower {i}")])))
        elif kind == "interval":
            transforms.append(Interval(number(d, f"lower {i}"), number(d, f"upper {i}")))
        elif kind == "positive":
            transforms.append(Positive(number(d, f"lower {i}")))
        else:
            transforms.append(Real())
    network = MixtureNetwork.of(2, len(transforms), n_components=2, width=4, transforms=transforms)
    again = saved_and_loaded(network, 2)
    for one, other in zip(again.transforms, transforms, strict=True):
        need(one == other and hash(one) == hash(other), f"{one} for {other}")


@property_of(250)
def test_networks_survive_files(d):
    """Every parameter of every network, as any kind of number and text."""
    whole = d.choice("whole numbers", {"int": int, "int64": np.int64, "int32": np.int32})
    covariance = d.choice("covariance", list(HEADS))
    c, t = d.integer("conditions", 1, 4), d.integer("targets", 1, 3)
    categories = [d.random.randint(2, 5) for _ in range(d.random.randint(0, c - 1))]
    d.note("categories", categories)
    names = d.choice("names", [None, "plain", "odd"])
    if names is not None:
        odd = [
            "",
            " ",
            "größe",
            "a\nb",
            "🙂",
            '"',
            "\\",
            "x" * 300,
            "__metadata__",
            "0",
            "\x00",
            "Ω",
        ]
        pool = odd if names == "odd" else ["lat", "lon", "price"]
        names = d.note("names", d.random.sample(pool, t))
    options = {
        "n_components": whole(d.integer("n_components", 1, 4)), "covariance": covariance,
        "width": whole(d.integer("width", 1, 6)), "depth": whole(d.integer("depth", 1, 3)),
        "normalise": d.choice("normalise", [True, False, 1, 0, np.bool_(True)]),
        "dropout": d.choice("dropout", [0, 0.0, 0.25, np.float32(0.1), 1 - 1e-12, 1e-300]),
        "floor": d.choice("floor", [0, 1, 1e-3, 1e-300, np.float64(0.1), np.float32(1e-3), 5]),
        "rank": whole(d.integer("rank", 1, 3)), "categories": [whole(n) for n in categories],
        "names": names,
    }  # fmt: skip
    if d.flag("transforms", 0.3) and covariance != "low_rank":
        options["transforms"] = [Positive()] * t
    network = MixtureNetwork.of(c, t, **options)
    backbone = None
    if d.flag("own backbone", 0.1):
        c, backbone = 3, Convolution()
        network = MixtureNetwork(backbone, FullHead(5, t, 2), condition_columns=3, names=names)
    elif d.flag("ensemble", 0.3):
        network = Ensemble([copy.deepcopy(network) for _ in range(d.random.randint(1, 3))])
    dtype = d.choice("dtype", {"float32": torch.float32, "float64": torch.float64})
    saved_and_loaded(network.to(dtype), c, backbone)


SETTINGS = {
    "clip": [math.inf, 1e308, 5, np.float32(2)], "learning_rate": [1e-3, np.float64(1e-4)],
    "weight_decay": [0, 1e-300, 0.5], "entropy": [0, 0.1, 1], "average": [0, 0.5, np.float32(0.9)],
    "validation_fraction": [0, 0.1, 0.5], "patience": [1, 2**40, np.int64(7)], "batch_size": [1, 8, "rule", np.int64(16)],
    "schedule": ["plateau", "constant", "cosine"], "bound": [None, "weighted", "uniform", "printed"],
    "bound_epochs": [0, 1, 2**33], "start": ["data", "zero"], "warmup_steps": [0, 3, 2**40],
    "condition_noise": ["rule", 0, 0.1, 1], "target_noise": ["rule", 0, 0.01], "seed": [0, 2**31, -1, 2**63 - 1, 2**64],
}  # fmt: skip


@property_of(45)
def test_regressors_survive_files(d):
    """Every parameter of a regressor, its settings and its calibration."""
    n = d.integer("rows", 30, 80)
    x, y = d.rng.normal(size=(n, 2)), d.rng.normal(size=(n, d.integer("targets", 1, 2)))
    chosen = {name: d.choice(name, values) for name, values in SETTINGS.items()
              if d.random.random() < 0.3}  # fmt: skip
    transform = d.choice(
        "transform", [None, "positive", "bounds", "integer", "count", "int bounds"]
    )
    spec = transform
    if transform == "positive":
        y, spec = np.exp(y), d.random.choice(["positive", Positive(-5), Positive(np.float64(-1))])
    elif transform == "bounds":
        y, spec = np.tanh(y), d.random.choice([(-1, 1), Interval(-1, 1), Interval(-3, 2.5)])
    elif transform == "int bounds":
        y, spec = np.tanh(y), [Interval(-(10**6), 10**6)] * y.shape[1]
    elif transform == "integer":
        y, spec = np.round(3 * y), d.random.choice(["integer", Integer(), Integer(-40)])
    elif transform == "count":
        y, spec = np.round(np.exp(y)), d.random.choice(["count", Integer(0), Integer(lower=-3)])
    model = MDNRegressor(
        n_components=d.choice("n_components", [1, 5, np.int64(3), None, 13]), width=4,
        covariance=d.choice("covariance", ["full", "diagonal", "tied", "isotropic"]),
        depth=d.choice("depth", [1, np.int32(2)]), dropout=d.choice("dropout", [0, 0.1, np.float32(0.2)]),
        n_members=d.choice("n_members", [1, 2]), target_transform=spec,
        calibration_fraction=d.choice("calibration_fraction", [0, 0.2, np.float64(0.3)]),
        settings=Settings(**{"epochs": 1, **chosen}), warm_start=d.flag("warm"),
        random_state=d.choice("random_state", [None, 0, np.int64(3), 2**32 - 1]),
    ).fit(x, y)  # fmt: skip
    if d.flag("calibrate"):
        far = y if transform else y * d.random.choice([1, 1e3, 1e8])
        model.calibrate(x, far)
    with place() as folder:
        model.save(folder / "model")
        try:
            again = MDNRegressor.load(folder / "model")
        except CondensError as error:
            raise Wrong(f"saved, then refused: {str(error).partition('model: ')[2]}") from None
        need(np.array_equal(model.predict(x), again.predict(x)), "predictions differ")
        if hasattr(model, "calibration_"):
            one, other = (m.predict_region(x, 0.5) for m in (model, again))
            need(torch.equal(one.log_threshold, other.log_threshold), "regions differ")
            need(torch.equal(one.upper, other.upper), "intervals differ")
        again.save(folder / "again")
        same = (folder / "model").read_bytes() == (folder / "again").read_bytes()
        need(same, "saved again, another file")
        for name, value in model.get_params().items():
            need(again.get_params()[name] == value or name == "target_transform",
                 f"{name} is {again.get_params()[name]!r} for {value!r}")  # fmt: skip


SIZE = 15 << 20
# Nested as deeply as a header may be.
GROUP = "[" * 28 + "]" * 28 + ","


def header(d):
    """Return some 15 MB that might be a header: 16 are the most that is read."""
    kind = d.choice("header", ["keys", "brackets", "braces", "text", "digits", "numbers", "spaces",
                               "escapes", "floats", "same keys", "nested text", "nulls", "tensors", "groups",
                               "objects", "lists", "long names"])  # fmt: skip
    made = {
        "keys": lambda: "{" + ",".join(f'"{i}":0' for i in range(SIZE // 11)) + "}",
        "brackets": lambda: '{"a":' + "[" * SIZE,
        "braces": lambda: '{"a":' * (SIZE // 5),
        "text": lambda: '{"a":"' + "x" * SIZE + '"}',
        "digits": lambda: '{"a":' + "9" * SIZE + "}",
        "numbers": lambda: '{"a":[' + ",".join(["1"] * (SIZE // 2)) + "]}",
        "spaces": lambda: "{" + " " * SIZE + "}",
        "escapes": lambda: '{"a":"' + "\\u00e9" * (SIZE // 6) + '"}',
        "floats": lambda: '{"a":1.' + "7" * SIZE + "}",
        "same keys": lambda: "{" + ",".join(['"a":0'] * (SIZE // 6)) + "}",
        "nested text": lambda: json.dumps({"__metadata__": {"condens": "[" * SIZE}}),
        "groups": lambda: '{"a":[' + GROUP * (SIZE // len(GROUP)) + "[]]}",
        "objects": lambda: '{"a":[' + "{}," * (SIZE // 3) + "{}]}",
        "lists": lambda: '{"a":[' + "[]," * (SIZE // 3) + "[]]}",
        "long names": lambda: "{" + ",".join(f'"{i:09d}{"x" * 10**5}":[]' for i in range(SIZE // 100_015)) + "}",
        "nulls": lambda: '{"a":[' + ",".join(["null"] * (SIZE // 5)) + "]}",
        "tensors": lambda: "{" + ",".join(
            f'"{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for i in range(SIZE // 55)
        ) + "}",
    }[kind]().encode()  # fmt: skip
    if d.flag("as metadata", 0.4):
        inside = json.dumps({"__metadata__": {"condens": made.decode()}}).encode()
        made = inside if len(inside) < 16 << 20 else made
    return made


@property_of(20, seconds=12)
def test_large_headers_are_refused_quickly(d):
    """Whatever 15 MB a file begins with, it is refused in about a second."""
    with place() as folder:
        path, made = folder / "model", header(d)
        path.write_bytes(struct.pack("<Q", len(made)) + made)
        began = time.process_time()
        try:
            persistence.load(path)
        except ModelFileError:
            spent = time.process_time() - began
            need(spent < 1.5, f"refused after {spent:.1f} s of computing")
            raise
        raise Wrong("loaded")


@cache
def file_of(kind):
    """Return the bytes of a model file."""
    torch.manual_seed(3)
    with place() as folder:
        path = folder / "model"
        if kind == "regressor":
            rng = np.random.default_rng(0)
            x, y = rng.normal(size=(40, 2)), np.exp(rng.normal(size=(40, 2)))
            MDNRegressor(2, n_members=1, width=4, settings=Settings(epochs=1), random_state=0, target_transform="positive",
                         calibration_fraction=0.3).fit(x, y).save(path)  # fmt: skip
        else:
            transforms = [Integer(0), Interval(0.0, 1.0)] if kind == "transforms" else None
            network = MixtureNetwork.of(
                2, 2, n_components=2, width=3, transforms=transforms, names=["a", "b"]
            )
            persistence.save(Ensemble([network]) if kind == "ensemble" else network, path)
        return path.read_bytes()


KINDS = ["network", "transforms", "ensemble", "regressor"]


@property_of(600)
def test_damaged_files(d):
    """Bytes changed, lost, added or moved: the file is refused."""
    data = bytearray(file_of(d.choice("kind", KINDS)))
    how = d.choice("how", ["flip", "cut", "insert", "move", "zero", "length", "empty"])
    at = d.note("at", d.random.randrange(len(data)))
    if how == "flip":
        data[at] ^= 1 << d.random.randrange(8)
    elif how == "cut":
        del data[at:]
    elif how == "insert":
        data[at:at] = d.rng.bytes(d.random.randint(1, 40))
    elif how == "move":
        piece = data[at : at + 16]
        del data[at : at + 16]
        data += piece
    elif how == "zero":
        data[at : at + 8] = b"\x00" * 8
    elif how == "length":
        data[:8] = struct.pack("<Q", d.random.choice([0, 1, 2**63, 2**64 - 1, len(data), 10**9]))
    else:
        data = bytearray(d.random.choice([b"", b"\x00" * 8, b"PK\x03\x04", b"\x80\x04."]))
    with place() as folder:
        path = folder / "model"
        path.write_bytes(data)
        if bytes(data) != file_of(d.facts["kind"]):
            refused(lambda: persistence.load(path), f"a file with {how} at {at}")


VALUES = [None, True, False, 0, -1, 1, 2**63, 2**64, -(2**63), 10**30, 1e308, -0.0, 0.5, "", "x",
          "nan", "inf", "Infinity", [], [0], [[]], {}, {"a": 1}, "full", "real", 1.5, 3, [1, 2, 3]]  # fmt: skip


def leaves(value, path=()):
    """Return the paths of everything in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in inner:
        yield (*path, key)
        if isinstance(child, dict | list):
            yield from leaves(child, (*path, key))


def change(d, document):
    """Replace, remove or add one thing in a JSON value."""
    path = d.random.choice(list(leaves(document)))
    d.note("path", "/".join(map(str, path)))
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    how = d.choice("how", ["replace", "remove", "add"])
    if how == "replace":
        parent[path[-1]] = d.note("value", d.random.choice(VALUES))
    elif how == "remove":
        del parent[path[-1]]
    elif isinstance(parent, dict):
        parent["more"] = d.note("value", d.random.choice(VALUES))
    else:
        parent.append(d.note("value", d.random.choice(VALUES)))


@property_of(400)
def test_files_with_a_right_hash_and_wrong_contents(d):
    """A document or a tensor changed, and sealed again: refused, or a model that works."""
    kind = d.choice("kind", KINDS)
    record, tensors = arrays(file_of(kind))
    if d.flag("tensor", 0.3):
        name = d.note("name", d.random.choice(sorted(tensors)))
        how = d.choice("how", ["nan", "inf", "shape", "dtype", "drop", "empty", "huge"])
        if how in ("nan", "inf", "huge"):
            if tensors[name].dtype.kind == "f" and tensors[name].size:
                tensors[name].reshape(-1)[0] = {"nan": math.nan, "inf": math.inf, "huge": 1e38}[how]
        elif how == "shape":
            tensors[name] = tensors[name].reshape(-1)[: max(1, tensors[name].size - 1)]
        elif how == "dtype":
            tensors[name] = tensors[name].astype("int64")
        elif how == "empty":
            tensors[name] = tensors[name].reshape(-1)[:0]
        else:
            del tensors[name]
    else:
        change(d, record)
    try:
        data = sealed(record, tensors)
    except (OverflowError, ValueError):
        return
    with place() as folder:
        path = folder / "model"
        path.write_bytes(data)
        model = persistence.load(path)
        if isinstance(model, MDNRegressor):
            model.predict_interval(np.zeros((2, 2)))
            answer = model.predict(np.zeros((2, 2)))
            model.predict_region(np.zeros((2, 2)), 0.5)
        else:
            with torch.no_grad():
                answer = model(torch.zeros(2, 2)).mean
        if d.facts.get("how") != "huge":
            no_nan(answer, "prediction of a loaded model")


@property_of(60)
def test_files_that_are_not_there(d):
    """A missing file is a FileNotFoundError too; a directory, a link to nothing are refused."""
    door = d.choice("door", {"load": persistence.load, "regressor": MDNRegressor.load,
                             "read": persistence.read})  # fmt: skip
    with place() as folder:
        what = d.choice("what", ["missing", "no folder", "directory", "dangling", "empty name"])
        path = folder / "model"
        if what == "no folder":
            path = folder / "a" / "b"
        elif what == "directory":
            path.mkdir()
        elif what == "dangling":
            path.symlink_to(folder / "nothing")
        given = str(path) if d.flag("text") else path
        given = "" if what == "empty name" else given
        try:
            door(given)
        except ModelFileError as error:
            if what in ("missing", "no folder"):
                need(isinstance(error, FileNotFoundError), "no FileNotFoundError")
            raise
        raise Wrong("loaded")


def problem(d, n=60):
    x = d.normal(n, 2)
    return x, x.sin() + 0.3 * d.normal(n, 2)


def network_of(**options):
    torch.manual_seed(5)
    return MixtureNetwork.of(2, 2, **{"n_components": 2, "width": 4, **options})


@cache
def run_state():
    """Return the files of a run that can go on."""
    with place() as folder:
        generator = torch.Generator().manual_seed(4)
        x = torch.randn(60, 2, generator=generator, dtype=torch.float64)
        stop = {"left": 2}

        def callback(epoch):
            stop["left"] -= 1
            if not stop["left"]:
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):
            train(network_of(), (x, x.sin()), Settings(epochs=4), directory=folder,
                  checkpoint_seconds=0.0, callbacks=callback)  # fmt: skip
        return x, {file.name: file.read_bytes() for file in folder.iterdir()}


@property_of(180)
def test_states_of_runs_with_wrong_contents(d):
    """A state with a right hash whose fields are changed or gone is refused by name."""
    x, files = run_state()
    with place() as folder:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        states = sorted(folder.glob("state-*.json"))
        need(states, "the run left no state")
        for other in states[:-1]:
            other.unlink()
        record = json.loads(states[-1].read_text())
        beside = states[-1].with_suffix(".safetensors")
        data = beside.read_bytes()
        if d.flag("tensors", 0.4):
            tensors = tensors_of(data)
            name = d.note("name", d.random.choice(sorted(tensors)))
            how = d.choice("how", ["drop", "shape", "dtype", "nan"])
            if how == "drop":
                del tensors[name]
            elif how == "shape":
                tensors[name] = tensors[name].reshape(-1)[:-1].clone()
            elif how == "dtype":
                tensors[name] = tensors[name].to(torch.int64)
            else:
                tensors[name] = torch.full_like(tensors[name].double(), math.nan)
            data = bytes_of(tensors)
            beside.write_bytes(data)
        else:
            change(d, record["values"])
        text = json.dumps(record["values"]).encode()
        record["sha256"] = hashlib.sha256(data + text).hexdigest()
        states[-1].write_text(json.dumps(record, indent=1))
        network = network_of()
        history = train(network, (x, x.sin()), Settings(epochs=4), directory=folder)
        need(len(history.epochs) >= 1, "no epochs")
        with torch.no_grad():
            finite(network(x[:2]).mean, "the network's mean")


@property_of(30)
def test_links_beside_files_are_not_followed(d):
    """A link planted where a file is written beside its place keeps its target."""
    names, watching = set(), [True]

    def hook(event, arguments):
        if event == "open" and watching[0] and isinstance(arguments[0], str | os.PathLike):
            names.add(Path(os.fspath(arguments[0])).name)

    sys.addaudithook(hook)
    door = d.choice("door", ["train", "save"])

    def write(folder):
        if door == "save":
            persistence.save(network_of(), folder / "model")
        else:
            data = problem(d)
            train(network_of(), data, Settings(epochs=2), directory=folder, checkpoint_seconds=0.0)

    with place() as folder:
        write(folder)
        made = {file.name for file in folder.iterdir()}
    watching[0] = False
    suffix = [name + end for name in made for end in (".part", ".tmp", "~")]
    guesses = {n for n in names if "part" in n or "tmp" in n or "state" in n} | set(suffix)
    with place() as folder, place() as outside:
        victim = outside / "victim"
        victim.write_bytes(b"precious")
        for name in guesses - made:
            (folder / name).symlink_to(victim)
        with suppress(RunDirectoryError):
            write(folder)
        need(victim.read_bytes() == b"precious", "the target of a planted link was overwritten")


@property_of(60)
def test_resuming_another_run(d):
    """A run goes on only with the network, the data and the settings that it began with."""
    x, files = run_state()
    y = x.sin()
    change = d.choice("change", {
        "dropout": {"dropout": d.number("share", 0.05, 0.6)}, "width": {"width": 5}, "depth": {"depth": 3},
        "floor": {"floor": d.power("floor", -6, -1)}, "normalise": {"normalise": True},
        "n_components": {"n_components": 3}, "covariance": {"covariance": "diagonal"}, "transforms": {"transforms": [Real(), Interval(-2, 2)]},
        "settings": {}, "data": {}, "weights": {}, "order": {}, "activation": {},
    })  # fmt: skip
    settings, data = Settings(epochs=4), (x, y)
    if d.facts["change"] == "settings":
        name, value = d.random.choice([("learning_rate", 1e-4), ("average", 0.5), ("seed", 9), ("entropy", 0.1),
                                       ("batch_size", 8), ("clip", 1.0), ("weight_decay", 0.1)])  # fmt: skip
        settings = Settings(**{"epochs": 4, d.note("setting", name): value})
    elif d.facts["change"] == "data":
        data = (x, y.index_fill(0, torch.tensor([d.random.randrange(60)]), 0.1))
    elif d.facts["change"] == "weights":
        data = (x, y, torch.rand(60))
    elif d.facts["change"] == "order":
        data = (x.flip(0), y.flip(0))
    network = network_of(**change)
    if d.facts["change"] == "activation":
        network = MixtureNetwork(
            MLP(2, 4, activation="tanh"), FullHead(4, 2, 2), condition_columns=2
        )
    with place() as folder:
        for name, content in files.items():
            (folder / name).write_bytes(content)
        refused(lambda: train(network, data, settings, directory=folder), "resuming")


@property_of(40)
def test_places_that_cannot_be_written(d):
    """Full disks and bad paths are named errors of every writer."""
    what = d.choice(
        "what", ["too large", "directory", "no folder", "device", "dangling", "file as folder"]
    )
    door = d.choice("door", ["save", "train"])
    with place() as folder:
        path = folder / "model"
        if what == "directory":
            path.mkdir()
        elif what == "no folder":
            path = folder / "a" / "b"
        elif what == "device":
            path = Path("/dev/full")
        elif what == "dangling":
            path.symlink_to(folder / "x" / "y")
        elif what == "file as folder":
            path.write_text("")
            path = path / "model"
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        if what == "too large":
            resource.setrlimit(resource.RLIMIT_FSIZE, (700, hard))
        try:
            if door == "save":
                persistence.save(network_of(), path)
            else:
                train(network_of(), problem(d), Settings(epochs=1), directory=path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@property_of(1, seconds=180)
def test_onnx_on_full_disks(d):
    """An export that the disk refuses is a named error, and leaves nothing."""
    from condens.integrations.onnx import export

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with place() as folder:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
        try:
            export(network_of(), folder / "model.onnx", "log_density")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            left = [file.name for file in folder.iterdir()]
            need(not left, f"left {left} behind")
