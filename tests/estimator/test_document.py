"""Files of regressors: to the bit, alive after loading, refused by name where damaged."""

import pickle
import random

import numpy as np
import pytest
import torch
from helpers import model_files as files
from helpers import mutants
from helpers.regressors import MIXED, NAMED, Bent, X, Y, deep, regressor
from numpy.testing import assert_array_equal
from sklearn.base import clone

from condens import MDNRegressor
from condens.errors import ArgumentError, ModelFileError
from condens.loading import load
from condens.persistence import save
from condens.training import Settings
from condens.transforms import Integer, Interval, Positive, Real

# A model fitted on one row, and one of a changed file, may find every other row far out.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*explained by no component"),
    pytest.mark.filterwarnings("ignore::condens.errors.ExtrapolationWarning"),
]

GAPS = NAMED.mask(np.random.default_rng(3).random(NAMED.shape) < 0.1)
COUNTS = NAMED.round().assign(fraction=lambda frame: 0.5 + 0.4 * np.tanh(frame["price"] - 1))

# Every covariance, members, transforms, categories, calibrations, names and backbones.
KINDS = {
    "full": lambda: regressor().fit(X, Y),
    "diagonal": lambda: regressor(covariance="diagonal", n_members=2).fit(X, Y),
    "isotropic": lambda: regressor(covariance="isotropic", calibration_fraction=0.3).fit(X, Y),
    "tied": lambda: regressor(covariance="tied", calibration_fraction=0.3).fit(MIXED, NAMED),
    "groups": lambda: regressor(calibration_fraction=0.6).fit(X, Y, groups=np.arange(240) // 7),
    "low rank": lambda: regressor(covariance="low_rank", calibration_fraction=0.3).fit(X, Y),
    "low rank members": lambda: regressor(covariance="low_rank", n_members=2).fit(MIXED, NAMED),
    "vector": lambda: regressor(calibration_fraction=0.3).fit(X, Y[:, 0]),
    "one named": lambda: regressor().fit(MIXED, NAMED["price"]),
    "positive": lambda: regressor(
        target_transform="positive", n_members=2, calibration_fraction=0.3
    ).fit(MIXED, GAPS),
    "counts": lambda: regressor(
        target_transform=["count", None, (0, 1)], calibration_fraction=0.3
    ).fit(MIXED, COUNTS),
    "whole": lambda: regressor(target_transform=["count", "integer"]).fit(MIXED, NAMED.round()),
    "real": lambda: regressor(target_transform="real").fit(X, Y),
    "backbone": lambda: regressor(backbone=Bent, calibration_fraction=0.3).fit(MIXED, NAMED),
    "backbones": lambda: regressor(backbone=Bent, n_members=2).fit(X, Y),
    "known backbone": lambda: regressor(backbone=deep).fit(X, Y),
    "numpy's numbers": lambda: regressor(
        np.int64(3),
        width=np.int32(8),
        dropout=np.float32(0.25),
        n_members=np.int64(2),
        random_state=np.random.RandomState(0),
        settings=Settings(epochs=2, condition_noise="rule", batch_size=np.int64(40)),
    ).fit(X, Y),
    "going on": lambda: regressor().partial_fit(X, Y).partial_fit(X, Y),
    "one row": lambda: regressor().fit(X[:1], Y[:1]),
}
BACKBONES = {"backbone": Bent, "backbones": Bent, "known backbone": deep}


def table(model):
    """Return rows as the model was fitted to them."""
    x = X if model.encoder_.feature_names is None else MIXED
    if model.inputs_.flat:
        return x, Y[:, 0]
    if model.n_targets_ == 3:
        return x, COUNTS.to_numpy()
    discrete = any(transform.discrete for transform in model.transforms_)
    return x, NAMED.round().to_numpy() if discrete else np.exp(Y)


def answers(model):
    """Return the bytes of what a model answers."""
    x, y = table(model)
    parts = [model.predict(x), *model.predict(x, return_cov=True), model.score_samples(x, y)]
    parts += [model.predict_quantiles(x), model.sample(x, 3, random_state=0)]
    if hasattr(model, "calibration_"):
        region = model.predict_region(x, 0.8)
        parts += [region.log_threshold.numpy(), region.lower.numpy(), region.upper.numpy()]
    return [part.tobytes() for part in parts]


@pytest.fixture(scope="module")
def models():
    """Return the models of every kind, each fitted once."""
    made = {}

    def model(kind):
        if kind not in made:
            made[kind] = KINDS[kind]()
        return made[kind]

    return model


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_back_is_the_same_to_the_bit(models, kind, tmp_path):
    model, path, again = models(kind), tmp_path / "one", tmp_path / "two"
    model.save(path)
    loaded = MDNRegressor.load(path, backbone=BACKBONES.get(kind))
    assert answers(loaded) == answers(model)
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()
    ours, theirs = loaded.get_params(), model.get_params()
    for name in ("n_components", "covariance", "width", "depth", "dropout", "settings", "backbone"):
        assert ours[name] == theirs[name]
    for name in (
        "n_features_in_",
        "n_targets_",
        "inputs_",
        "n_components_",
        "loss_curve_",
        "history_",
    ):
        assert getattr(loaded, name) == getattr(model, name)
    assert_array_equal(
        getattr(loaded, "feature_names_in_", None), getattr(model, "feature_names_in_", None)
    )
    assert loaded.predict_dist(table(model)[0]).names == model.target_names_


# The others go the same ways as these.
QUICK = ("full", "going on", "groups")


@pytest.mark.parametrize(
    "kind",
    [k if k in QUICK else pytest.param(k, marks=pytest.mark.slow) for k in KINDS],
)
def test_a_loaded_model_lives(models, kind, tmp_path):
    model = models(kind)
    model.save(tmp_path / "one")
    loaded = MDNRegressor.load(tmp_path / "one", backbone=BACKBONES.get(kind))
    x, y = table(model)
    assert answers(pickle.loads(pickle.dumps(loaded))) == answers(model)
    going = [pickle.loads(pickle.dumps(model)), loaded]
    first, second = (m.partial_fit(x, y).predict(x) for m in going)
    assert_array_equal(first, second)
    first, second = (m.set_params(warm_start=True).fit(x, y).predict(x) for m in going)
    assert_array_equal(first, second)
    # A state that draws its seeds is not in the file.
    anew = [clone(m).set_params(random_state=5, warm_start=False).fit(x, y) for m in going]
    assert_array_equal(*(m.predict(x) for m in anew))
    assert anew[1].predict_dist(x).n_components == model.predict_dist(x).n_components


def test_transforms_come_back(models, tmp_path):
    models("counts").save(tmp_path / "m")
    loaded = MDNRegressor.load(tmp_path / "m")
    assert loaded.target_transform == [Integer(lower=0), Real(), Interval(0.0, 1.0)]
    models("positive").save(tmp_path / "m")
    assert MDNRegressor.load(tmp_path / "m").transforms_ == (Positive(), Positive())


def test_backbones_are_asked_for_by_name(models, tmp_path):
    path = tmp_path / "m"
    models("backbone").save(path)
    with pytest.raises(ModelFileError, match=r"its backbone is not one of condens.*backbone="):
        MDNRegressor.load(path)
    with pytest.raises(
        ArgumentError, match=r"(?s)backbone is Bent.*, but a function that makes a module"
    ):
        MDNRegressor.load(path, backbone=Bent(4))
    with pytest.raises(ModelFileError, match=r"tensor .* but"):
        MDNRegressor.load(path, backbone=lambda columns: Bent(columns, 6))
    with pytest.raises(
        ArgumentError, match=r"backbone failed \(ZeroDivisionError.*Pass the function"
    ):
        MDNRegressor.load(path, backbone=lambda columns: columns / 0)
    models("full").save(path)
    with pytest.raises(ArgumentError, match=r"backbone was given.*fitted without one.*Leave"):
        MDNRegressor.load(path, backbone=Bent)


def test_parameters_that_were_set_since_the_fit(tmp_path):
    """A file that is written can be read, whatever the parameters are by then."""
    model = regressor(backbone=Bent).fit(X, Y)
    expected = model.predict(X)
    model.set_params(backbone=None, width=9, covariance="tied", target_transform="positive")
    model.save(tmp_path / "m")
    loaded = MDNRegressor.load(tmp_path / "m", backbone=Bent)
    assert_array_equal(loaded.predict(X), expected)
    assert loaded.backbone is Bent
    assert loaded.width == 9
    before = (tmp_path / "m").read_bytes()
    with pytest.raises(ArgumentError, match=r"^settings is a dict.*Settings\(epochs=3\)"):
        model.set_params(settings={"epochs": 3}).save(tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == before


def test_a_known_backbone_may_be_left_out_until_a_fit(models, tmp_path):
    model, path = models("known backbone"), tmp_path / "m"
    model.save(path)
    loaded = MDNRegressor.load(path)
    assert answers(loaded) == answers(model)
    with pytest.raises(ArgumentError, match=r"backbone is not known.*set_params\(backbone=...\)"):
        loaded.fit(X, Y)
    assert answers(loaded) == answers(model)
    again = loaded.set_params(backbone=deep).fit(X, Y)
    assert_array_equal(again.predict(X), clone(model).fit(X, Y).predict(X))


def test_other_models_are_told_apart(models, tmp_path):
    path = tmp_path / "m"
    save(files.small(), path)
    with pytest.raises(ModelFileError, match=r"m: its kind is 'network', but a regressor.*load"):
        MDNRegressor.load(path)
    models("full").save(path)
    assert isinstance(load(path), MDNRegressor)


# Damage.

SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("positive", "counts", "low rank")]
DAMAGED = [pytest.param("tied", marks=pytest.mark.slow), "backbone", *SLOW]


@pytest.fixture(scope="module")
def originals(models, tmp_path_factory):
    """Return the bytes of files, small enough to be damaged by the thousand."""
    path = tmp_path_factory.mktemp("files") / "m"

    def original(kind):
        models(kind).save(path)
        return path.read_bytes()

    return original


def outcome(path, data, kind):
    """Return the model, or None where the file is refused by name."""
    path.write_bytes(data)
    model, text = None, f"{path}: "
    try:
        model = MDNRegressor.load(path, backbone=BACKBONES.get(kind))
    except ModelFileError as error:
        text = str(error)
    except ArgumentError as error:
        # Such a file says that the model was fitted without the backbone that is passed.
        text = text if kind in BACKBONES and "Leave it out" in str(error) else str(error)
    assert text.startswith(f"{path}: ")
    assert len(text) < 1000
    return model


def assert_is_what_the_file_says(model, data, path):
    model.save(path)
    (ours, one), (theirs, two) = map(files.arrays, (path.read_bytes(), data))
    assert files.canonical(ours["document"]) == files.canonical(theirs["document"])
    assert one.keys() == two.keys()
    for name, array in one.items():
        assert array.dtype == two[name].dtype
        assert array.shape == two[name].shape
        assert array.tobytes() == two[name].tobytes()


def usable(model):
    """Ask for regions, which calibrations of few rows may refuse."""
    parts = (model.calibration_.ranks, *model.calibration_.levels)
    if min(map(len, parts)) > 10:
        model.predict_region(table(model)[0][:3], 0.5)


def search(tmp_path, original, kind, count, seed):
    """Change documents and tensors, the hash being right; return how many were loaded."""
    generator, loaded = random.Random(seed), 0
    first = outcome(tmp_path / "first", original, kind)
    for _ in range(count):
        data = mutants.of_document(original, generator)
        model = outcome(tmp_path / "mutant", data, kind)
        if model is not None:
            loaded += 1
            assert_is_what_the_file_says(model, data, tmp_path / "again")
            pickle.dumps(model)
            if hasattr(model, "calibration_") and model.encoder_ == first.encoder_:
                usable(model)
    return loaded


@pytest.mark.parametrize("kind", DAMAGED)
def test_documents_with_a_right_hash(tmp_path, originals, kind):
    assert 0 < search(tmp_path, originals(kind), kind, 60, seed=1) < 45


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("kind", DAMAGED)
def test_many_documents(tmp_path, originals, kind, seed):
    search(tmp_path, originals(kind), kind, 1000, seed)


def test_truncated_and_flipped(tmp_path, originals):
    original, generator = originals("tied"), random.Random(7)
    for length in [0, 1, 8, 9, *generator.sample(range(len(original)), 60), len(original) - 1]:
        assert outcome(tmp_path / "m", original[:length], "tied") is None
    for place in generator.sample(range(8 * len(original)), 200):
        data = bytearray(original)
        data[place // 8] ^= 1 << place % 8
        assert outcome(tmp_path / "m", bytes(data), "tied") is None
    assert outcome(tmp_path / "m", original, "tied") is not None


def change(record, *place, to):
    *above, last = place
    for name in above:
        record = record[name]
    record[last] = to


CHANGES = {
    "another encoder": ("encoder", "feature_names", ["a", "b"]),
    "flat and two targets": ("flat", True),
    "flat is a number": ("flat", 0),
    "seed below zero": ("seed", -1),
    "seed too large": ("seed", 2**31),
    "a fractional seed": ("seed", 0.5),
    "transforms for no target": ("network", "transforms", []),
    "an unknown parameter": ("parameters", "ranks", 3),
    "unknown settings": ("settings", {"epochs": 3, "magic": True}),
    "settings that cannot be": ("settings", {"epochs": 0}),
    "a history of words": ("history", "epochs", ["long"]),
    "a best epoch of half": ("history", "best_epoch", 0.5),
    "warnings of numbers": ("history", "warnings", [1]),
    "a backbone of one": ("backbone", 1),
}


@pytest.mark.parametrize("case", CHANGES)
def test_parts_that_do_not_belong_together(tmp_path, originals, case):
    record, tensors = files.arrays(originals("tied"))
    *place, value = CHANGES[case]
    change(record["document"], *place, to=value)
    path = tmp_path / "m"
    path.write_bytes(files.sealed(record, tensors))
    with pytest.raises(ModelFileError, match=r"m: .*, but .*\. Restore the file from a copy"):
        MDNRegressor.load(path)


def test_codes_that_would_be_scaled(tmp_path, originals):
    for name, value in (("location", 1.0), ("scale", 2.0)):
        record, tensors = files.arrays(originals("tied"))
        tensors[f"network.condition_scaling.{name}"][-1] = value
        (tmp_path / "m").write_bytes(files.sealed(record, tensors))
        with pytest.raises(ModelFileError, match=r"condition_scaling changes codes"):
            MDNRegressor.load(tmp_path / "m")


@pytest.mark.parametrize(
    ("column", "lower", "upper"), [(0, 2.0, 1.0), (-1, 0.0, 3.0), (0, np.finfo(float).max, 0.0)]
)
def test_ranges_that_are_none(tmp_path, originals, column, lower, upper):
    record, tensors = files.arrays(originals("tied"))
    tensors["network.condition_scaling.lower"][column] = lower
    tensors["network.condition_scaling.upper"][column] = upper
    (tmp_path / "m").write_bytes(files.sealed(record, tensors))
    with pytest.raises(
        ModelFileError, match=r"condition_scaling has bounds that are no range, but"
    ):
        MDNRegressor.load(tmp_path / "m")


def test_categories_that_the_network_has_no_code_for(tmp_path, originals):
    record, tensors = files.arrays(originals("tied"))
    record["document"]["encoder"]["features"][1]["values"].append("Łódź!")
    (tmp_path / "m").write_bytes(files.sealed(record, tensors))
    with pytest.raises(ModelFileError, match=r"has a network for \(4,\) codes.*has \[5\]"):
        MDNRegressor.load(tmp_path / "m")


def test_members_with_other_names(tmp_path, originals):
    for place in (("names",), ("members", 1, "names")):
        record, tensors = files.arrays(originals("positive"))
        change(record["document"]["network"], *place, to=["a", "b"])
        (tmp_path / "m").write_bytes(files.sealed(record, tensors))
        with pytest.raises(ModelFileError, match=r"its architecture .*(names|would be written)"):
            MDNRegressor.load(tmp_path / "m")


@pytest.mark.parametrize("value", [-1.0, -1e-300])
def test_levels_that_are_none(tmp_path, originals, value):
    record, tensors = files.arrays(originals("tied"))
    tensors["scores.interval.0"][3] = value
    (tmp_path / "m").write_bytes(files.sealed(record, tensors))
    with pytest.raises(ModelFileError, match="has an invalid calibration"):
        MDNRegressor.load(tmp_path / "m")


@pytest.mark.parametrize("value", [0.0, -1.0, 1.5])
def test_weights_that_are_none(tmp_path, originals, value):
    record, tensors = files.arrays(originals("groups"))
    tensors["weights.interval.0"][3] = value
    (tmp_path / "m").write_bytes(files.sealed(record, tensors))
    with pytest.raises(ModelFileError, match="has an invalid calibration"):
        MDNRegressor.load(tmp_path / "m")


def test_weights_of_groups_come_back(tmp_path, originals):
    (tmp_path / "m").write_bytes(originals("groups"))
    loaded, made = MDNRegressor.load(tmp_path / "m"), KINDS["groups"]()
    for one, other in zip(loaded.calibration_.weights, made.calibration_.weights, strict=True):
        assert torch.equal(one, other)
    assert_array_equal(
        loaded.predict_interval(X, 0.8, calibrated=True),
        made.predict_interval(X, 0.8, calibrated=True),
    )


def test_scores_beyond_all_numbers_are_kept(tmp_path):
    model = regressor().fit(X, Y)
    model.calibrate(X[:20], np.full((20, 2), 1e200))
    assert bool(model.calibration_.ranks.isinf().all())
    model.save(tmp_path / "m")
    loaded = MDNRegressor.load(tmp_path / "m")
    assert torch.equal(loaded.calibration_.ranks, model.calibration_.ranks)
    for one, other in zip(loaded.calibration_.levels, model.calibration_.levels, strict=True):
        assert torch.equal(one, other)
    assert answers(loaded) == answers(model)
