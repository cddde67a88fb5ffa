"""Whatever `save` accepts, `load` returns equal: every parameter of all that a file can hold.

The parameters are those of the signatures and fields themselves. One that is added later is
drawn too; until this file knows how, `test_every_parameter_can_be_drawn` fails.
"""

import dataclasses
import inspect
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn
from torch import nn

from condens import MDNRegressor
from condens.data.encoder import Categories, Numbers, TableEncoder
from condens.data.rows import Rows
from condens.errors import CondensError
from condens.estimator.document import Fitted
from condens.estimator.inputs import Inputs
from condens.estimator.summary import Summary
from condens.evaluation import Baselines, Calibration, Novelty
from condens.nn import BACKBONES, HEADS, Ensemble, MixtureNetwork
from condens.persistence import load, read, save, write
from condens.training import Adjustment, Epoch, History, Settings
from condens.transforms import TRANSFORMS

# The failing assertion says where the two differ; making the example smaller takes minutes.
COMMON = {"suppress_health_check": list(HealthCheck), "phases": [Phase.explicit, Phase.generate]}
QUICK = settings(max_examples=25, **COMMON)
THOROUGH = settings(max_examples=700, **COMMON)


def both(function, **drawn):
    """Return a test on a few examples, and one on many for when time is no matter."""
    return QUICK(given(**drawn)(function)), pytest.mark.slow(THOROUGH(given(**drawn)(function)))


# Numbers as users write them: of Python or numpy, whole where a real one belongs, at the edges.

TEXT = st.text(st.characters(exclude_categories=()), max_size=8)
BITS = (np.int8, np.int32, np.int64, np.uint8)


def wholes(least, most):
    plain = st.integers(least, most)
    return plain | st.builds(lambda n, kind: _fitting(n, kind), plain, st.sampled_from(BITS))


def _fitting(number, kind):
    return kind(number) if np.iinfo(kind).min <= number <= np.iinfo(kind).max else number


EDGES = (0, 1, -1, -0.0, -3, 10**6, 5e-324, 2**53, 2**53 + 1, Fraction(1, 4), np.float16(0.1))


def reals(least, most):
    """Return strategies for numbers in a range, of every type that numbers have."""
    plain = st.floats(least, most)
    edges = [edge for edge in EDGES if least <= float(edge) <= most]
    single = st.floats(max(least, -1e38), min(most, 1e38)).map(np.float32)
    single = single.filter(lambda x: least <= float(x) <= most)
    return plain | plain.map(np.float64) | single | st.sampled_from(edges)


REALS, POSITIVE, SCALES = reals(-1e308, 1e308), reals(1e-40, 1e300), reals(0, 1e300)
FRACTIONS = reals(0, 1 - 2**-53)
ANY_REAL = st.floats() | st.integers(-5, 5) | st.floats(width=32).map(np.float32)
TRUTH = st.booleans() | st.sampled_from((np.True_, np.False_))

# For every class that a file can hold, how to draw each of its parameters.

SETTINGS = {
    "epochs": wholes(1, 2**63 - 1),
    "batch_size": wholes(1, 2**63 - 1) | st.just("rule"),
    "accumulation": wholes(1, 2**63 - 1),
    "learning_rate": POSITIVE,
    "schedule": st.sampled_from(("cosine", "plateau", "constant", np.str_("plateau"))),
    "warmup_steps": wholes(0, 2**63 - 1),
    "weight_decay": SCALES,
    "clip": POSITIVE | st.just(math.inf),
    "condition_noise": SCALES | st.just("rule"),
    "target_noise": SCALES | st.just(np.str_("rule")),
    "average": FRACTIONS,
    "validation_fraction": FRACTIONS,
    "patience": wholes(1, 2**63 - 1),
    "bound": st.sampled_from((None, "weighted", "uniform", "printed")),
    "bound_epochs": wholes(0, 2**63 - 1),
    "entropy": SCALES,
    "start": st.sampled_from(("data", "zero", "keep")),
    "autocast": TRUTH,
    "trim": FRACTIONS,
    "limit": reals(1e-6, 1e308) | st.just(math.inf),
    "spread": POSITIVE | st.just("fit"),
    "tail": FRACTIONS | st.just(np.str_("fit")),
    "seed": wholes(-(2**63), 2**64 - 1),
}
STRATEGIES = {
    "real": {},
    "positive": {"lower": REALS},
    "interval": {
        "lower": reals(-1e308, 0),
        "upper": POSITIVE,
        "link": st.sampled_from(("probit", "logit")),
    },
    "integer": {"lower": wholes(-(2**53), 2**53) | st.none()},
}
EPOCH = {
    "epoch": wholes(0, 2**40),
    "steps": wholes(0, 2**40),
    "rate": ANY_REAL,
    "train_nll": ANY_REAL,
    "validation_nll": ANY_REAL,
    "seconds": ANY_REAL,
    "skipped_steps": wholes(0, 2**40),
    "used_components": ANY_REAL,
    "distinct_components": ANY_REAL,
    "largest_condition_number": ANY_REAL,
    "unexplained_fraction": ANY_REAL,
    "usage": st.lists(ANY_REAL, max_size=3),
}
ADJUSTMENT = {
    "spread": ANY_REAL,
    "standard_error": ANY_REAL,
    "tail": ANY_REAL,
    "nll_before": ANY_REAL,
    "nll_after": ANY_REAL,
    "rows": wholes(0, 2**40),
}
HISTORY = {
    "epochs": st.lists(st.builds(Epoch, **EPOCH), max_size=3),
    "best_epoch": wholes(-1, 2**40),
    "best_nll": ANY_REAL,
    "stopped": TEXT,
    # As many as there are classes.
    "warnings": st.lists(TEXT, min_size=2, max_size=2),
    "warning_classes": st.lists(
        st.sampled_from(("UnusedComponentsWarning", "IllConditionedWarning")),
        min_size=2,
        max_size=2,
    ),
    "rows": wholes(0, 2**40),
    "validation_rows": wholes(0, 2**40),
    "rows_left_out": wholes(0, 2**40),
    "member_epochs": st.lists(wholes(-1, 2**40), max_size=3),
    "member_nlls": st.lists(ANY_REAL, max_size=3),
    "adjustment": st.none() | st.builds(Adjustment, **ADJUSTMENT),
}
LAYERS = {
    "width": wholes(1, 6),
    "depth": wholes(1, 4),
    "activation": st.sampled_from(("silu", "relu", "tanh", "gelu", np.str_("tanh"))),
    "normalise": TRUTH,
    "dropout": FRACTIONS,
    "bins": wholes(0, 3),
    "shortcut": TRUTH,
}
NETWORK_BACKBONES = {
    "mlp": {"inputs": wholes(1, 4), **LAYERS},
    "table": {
        "numeric": wholes(0, 3),
        "categories": st.lists(wholes(2, 5), min_size=1, max_size=2),
        **LAYERS,
    },
}
HEAD = {
    "features": None,  # the backbone's
    "dimensions": wholes(1, 3),
    "n_components": wholes(1, 3),
    "floor": SCALES,
    "ceiling": st.none() | SCALES,
}
NETWORK_HEADS = dict.fromkeys(HEADS, HEAD) | {"low_rank": {**HEAD, "rank": wholes(0, 4)}}
NETWORK = {
    "backbone": None,  # drawn by their kinds
    "head": None,
    "condition_columns": None,
    "condition_codes": None,
    "names": None,
    "transforms": None,
    "unused": None,
}
REGRESSOR = {
    "n_components": wholes(1, 50) | st.sampled_from((None, "auto")),
    "covariance": st.sampled_from(tuple(HEADS)),
    "rank": wholes(1, 50) | st.none(),
    "floor": SCALES | st.none(),
    "width": wholes(1, 500),
    "depth": wholes(1, 50),
    "dropout": FRACTIONS | st.none(),
    "n_bins": wholes(0, 50) | st.just("auto"),
    "shortcut": TRUTH | st.just("auto"),
    "select_columns": st.sampled_from(("auto", False)),
    "n_members": wholes(1, 20),
    "target_transform": None,  # the network's
    "backbone": None,
    "epochs": SETTINGS["epochs"] | st.none(),
    "batch_size": SETTINGS["batch_size"] | st.none(),
    "learning_rate": SETTINGS["learning_rate"] | st.none(),
    "validation_fraction": FRACTIONS | st.none(),
    "calibration_fraction": FRACTIONS,
    "splitter": None,  # code, as the callbacks are
    "settings": st.none() | st.builds(Settings, **SETTINGS),
    "directory": None,  # of one machine
    "device": st.sampled_from(("cpu", "cuda:1", None)),
    "callbacks": None,
    "store_summary": TRUTH,
    "warm_start": TRUTH,
    "verbose": TRUTH,
    "random_state": wholes(0, 2**32 - 1) | st.none(),
}
CATEGORY = st.one_of(
    *(
        st.lists(each, min_size=1, max_size=4, unique=True).map(sorted).map(tuple)
        for each in (TEXT, st.integers(), st.floats(allow_nan=False, allow_infinity=False))
    ),
    st.sampled_from(((False,), (True,), (False, True))),
)
FEATURES = {
    Numbers: {"fill": st.none() | st.floats(allow_nan=False, allow_infinity=False)},
    Categories: {"values": CATEGORY, "missing": st.booleans()},
}
ENCODER = {"features": None, "feature_names": None}
CALIBRATION = {"ranks": None, "levels": None, "weights": None}

KNOWN = {
    Settings: SETTINGS,
    Adjustment: ADJUSTMENT,
    Epoch: EPOCH,
    History: HISTORY,
    MixtureNetwork: NETWORK,
    MDNRegressor: REGRESSOR,
    TableEncoder: ENCODER,
    Calibration: CALIBRATION,
    Ensemble: {"members": None},
    **FEATURES,
    **{TRANSFORMS[kind]: STRATEGIES.get(kind) for kind in TRANSFORMS},
    **{BACKBONES[kind]: NETWORK_BACKBONES.get(kind) for kind in BACKBONES},
    **{HEADS[kind]: NETWORK_HEADS.get(kind) for kind in HEADS},
}


@pytest.mark.parametrize("kind", KNOWN, ids=lambda kind: kind.__name__)
def test_every_parameter_can_be_drawn(kind):
    assert KNOWN[kind] is not None, f"say how to draw the parameters of {kind.__name__}"
    assert not parameters(kind) - KNOWN[kind].keys()


def parameters(kind):
    """Return what one of a class is made with, but for what only draws its first weights."""
    return inspect.signature(kind).parameters.keys() - {"generator"}


# Drawing.


def made(draw, kind, **given):
    """Return one of a class with every other parameter drawn; leave the example if refused."""
    asked = [name for name in KNOWN[kind] if name in parameters(kind) - given.keys()]
    options = {name: draw(KNOWN[kind][name], label=name) for name in asked}
    try:
        return kind(**given, **options)
    except CondensError:
        assume(False)


@st.composite
def named(draw, count):
    return draw(st.none() | st.lists(TEXT, min_size=count, max_size=count, unique=True))


@st.composite
def members(draw, columns=None, codes=()):
    """Return networks that can be members of one ensemble."""
    dimensions = draw(st.integers(1, 3))
    names = draw(named(dimensions))
    covariance = draw(st.sampled_from(tuple(HEADS)))
    transforms = None
    if covariance != "low_rank" and draw(st.booleans()):
        kinds = draw(
            st.lists(st.sampled_from(tuple(TRANSFORMS)), min_size=dimensions, max_size=dimensions)
        )
        transforms = [made(draw, TRANSFORMS[kind]) for kind in kinds]
    known = columns is not None
    columns = columns if known else draw(st.integers(1, 3))
    scaled = known or draw(st.booleans())
    dtype = draw(st.sampled_from((torch.float32, torch.float64, torch.float16, torch.bfloat16)))

    numbers = columns - len(codes) if scaled else 0
    unused = draw(st.lists(st.integers(0, numbers - 1), unique=True)) if numbers > 0 else []

    def network():
        if codes:
            backbone = made(
                draw, BACKBONES["table"], numeric=columns - len(codes), categories=list(codes)
            )
        else:
            backbone = made(draw, BACKBONES["mlp"], inputs=columns)
        head = made(draw, HEADS[covariance], features=backbone.features, dimensions=dimensions)
        built = MixtureNetwork(
            backbone,
            head,
            condition_columns=columns if scaled else None,
            condition_codes=len(codes) if scaled else 0,
            names=names,
            transforms=transforms,
            unused=unused,
        )
        return shaken(draw, built.to(dtype))

    return [network() for _ in range(draw(st.integers(1, 3)))]


def shaken(draw, network):
    """Give a network weights of any size that its precision has."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    size = draw(st.sampled_from((1.0, 1e-8, 1e4)))
    with torch.no_grad():
        for parameter in network.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_((size * drawn).to(parameter.dtype))
        for scaling in (network.target_scaling, network.condition_scaling):
            if scaling is not None:
                free = scaling.free
                scaling.location[:free] = size * torch.randn(free, generator=generator).double()
                scaling.scale[:free] = (
                    size * torch.rand(free, generator=generator).double() + 1e-300
                )
    return network.eval()


@st.composite
def networks(draw, **options):
    found = draw(members(**options))
    return found[0] if len(found) == 1 and draw(st.booleans()) else Ensemble(found)


@st.composite
def encoders(draw):
    kinds = draw(st.lists(st.sampled_from((Numbers, Categories)), min_size=1, max_size=3))
    features = tuple(made(draw, kind) for kind in kinds)
    names = draw(named(len(features)))
    return TableEncoder(features, None if names is None else tuple(names))


@st.composite
def calibrations(draw, targets):
    """Return scores as they come of densities: an end of a scale may be off by a rounding."""
    scores = st.floats(0, 1e300) | st.sampled_from((math.inf, math.nextafter(0.5, 1)))
    ranks, *levels = (
        torch.from_numpy(draw(hn.arrays(float, draw(st.integers(0, 4)), elements=scores)))
        for _ in range(1 + targets)
    )
    if not draw(st.booleans()):
        return Calibration(ranks, levels)
    sizes = (hn.arrays(int, len(part), elements=st.integers(1, 99)) for part in (ranks, *levels))
    return Calibration(ranks, levels, [1 / torch.from_numpy(draw(size)).double() for size in sizes])


def simple_densities(n_rows, encoder, network, transforms):
    """Return what a fit to random rows keeps of them."""
    generator = torch.Generator().manual_seed(n_rows)
    codes = torch.tensor(encoder.categories, dtype=torch.float64)
    numbers = encoder.columns - len(codes)
    drawn = torch.rand(n_rows, len(codes), generator=generator, dtype=torch.float64)
    condition = torch.cat(
        [
            torch.randn(n_rows, numbers, generator=generator, dtype=torch.float64),
            (drawn * codes).floor(),
        ],
        1,
    )
    for _, missing in encoder.gaps:
        condition[:, missing] = (condition[:, missing] > 0).double()
    real = torch.randn(n_rows, len(transforms), generator=generator, dtype=torch.float64)
    target = torch.stack(
        [
            transform.from_real(column)
            for transform, column in zip(transforms, real.unbind(1), strict=True)
        ],
        1,
    )
    categories = encoder.categories
    return (
        Baselines.fit(condition, target, None, transforms, categories, network.names),
        Novelty.fit(condition, None, categories, encoder.gaps),
        Summary.of(Rows(condition, target), encoder),
    )


@st.composite
def regressors(draw):
    """Return a regressor as a fit leaves it, without the fit."""
    encoder = draw(encoders())
    network = draw(networks(columns=encoder.columns, codes=tuple(encoder.categories))).double()
    chosen = {
        name: draw(drawn, label=name) for name, drawn in REGRESSOR.items() if drawn is not None
    }
    transforms = network.transforms
    model = MDNRegressor(
        **chosen, target_transform=None if transforms is None else list(transforms)
    )
    flat = network.dimensions == 1 and draw(st.booleans())
    real = (TRANSFORMS["real"](),) * network.dimensions
    *references, summary = simple_densities(
        draw(st.integers(1, 20)), encoder, network, transforms or real
    )
    model._set(
        Fitted(
            Inputs(encoder, network.names, flat, transforms or real),
            network,
            made(draw, History),
            *references,
            draw(st.integers(0, 2**31 - 1)),
            draw(st.sampled_from([None, summary])),
            draw(st.none() | calibrations(network.dimensions)),
        )
    )
    return model


# Comparing: by what the objects hold, not by what they say of themselves.


def assert_equal(one, other, where=""):
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, where
        assert one.shape == other.shape, where
        # Concatenated: a single number may have any stride.
        bits = [torch.cat([t.detach().reshape(-1)]).view(torch.uint8) for t in (one, other)]
        assert torch.equal(*bits), where
    elif isinstance(one, nn.Module):
        assert type(one) is type(other), where
        assert_equal(dict(one.state_dict()), dict(other.state_dict()), where)
        assert [n for n, _ in one.named_modules()] == [n for n, _ in other.named_modules()], where
        assert str(one) == str(other), where
        for name, module in one.named_modules():
            assert_equal(held(module), held(other.get_submodule(name)), f"{where}.{name}")
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key, value in one.items():
            assert_equal(value, other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        assert type(one) is type(other), where
        assert len(one) == len(other), where
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_equal(a, b, f"{where}.{number}")
    elif isinstance(one, np.ndarray):
        assert one.tolist() == other.tolist(), where
    elif dataclasses.is_dataclass(one) or isinstance(one, Calibration):
        assert type(one) is type(other), where
        assert_equal(vars(one), vars(other), where)
    elif isinstance(one, float | np.floating) and math.isnan(one):
        assert math.isnan(other), where
    else:
        assert one == other, where
        if isinstance(one, float):
            assert math.copysign(1, one) == math.copysign(1, other), where


def held(module):
    """Return what a module keeps beside weights, caches left out."""
    return {
        name: value
        for name, value in vars(module).items()
        if name not in (*vars(nn.Module()), "_known") and not isinstance(value, nn.Module)
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("files") / "model"


def comes_back(model, path):
    """Save a model and compare what is loaded; one that is refused by name leaves no file."""
    path.unlink(missing_ok=True)
    regressor = isinstance(model, MDNRegressor)
    try:
        model.save(path) if regressor else save(model, path)
    except CondensError:
        assert not list(path.parent.iterdir())
        return
    loaded = MDNRegressor.load(path) if regressor else load(path)
    if regressor:
        assert_equal(vars(model), vars(loaded))
        assert type(loaded.settings) is type(model.settings)
    else:
        assert_equal(model, loaded)


def document_comes_back(path, document, tensors):
    tensors = {name: torch.from_numpy(array) for name, array in tensors.items()}
    path.unlink(missing_ok=True)
    try:
        write(path, document, tensors)
    except CondensError:
        assert not list(path.parent.iterdir())
        return
    found, others = read(path)
    assert_equal(document, found)
    assert_equal(tensors, others)


DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
ARRAYS = hn.arrays(
    st.sampled_from((np.float32, np.float64, np.int64, np.bool_, np.uint8)),
    hn.array_shapes(min_dims=0, min_side=0, max_side=3),
)

test_networks, test_many_networks = both(
    comes_back,
    model=networks() | networks(columns=3, codes=(2, 4)),
)
test_regressors, test_many_regressors = both(comes_back, model=regressors())
test_documents, test_many_documents = both(
    document_comes_back,
    document=st.dictionaries(TEXT, DOCUMENTS, max_size=3),
    tensors=st.dictionaries(TEXT, ARRAYS, max_size=3),
)


# What is too rare to be drawn.


@pytest.mark.parametrize(
    ("kind", "bounds"),
    [
        ("integer", (-3,)),
        ("integer", (10**6,)),
        ("integer", (np.int64(2**53),)),
        ("interval", (-1, 1)),
        ("interval", (np.float32(0.1), 2)),
        ("interval", (0, 2, "logit")),
        ("positive", (-5,)),
        ("positive", (Fraction(-1, 3),)),
        ("positive", (-0.0,)),
    ],
)
def test_bounds_given_as_anything(path, kind, bounds):
    transforms = [TRANSFORMS[kind](*bounds)]
    comes_back(MixtureNetwork.of(2, 1, width=2, n_components=1, transforms=transforms).eval(), path)
    assert path.exists()


@pytest.mark.parametrize("name", ["", ".", "a.b", "__metadata__", "é", "\ud800", "\0", "\n" * 3])
def test_tensors_of_any_name(path, name):
    path.unlink(missing_ok=True)
    try:
        write(path, {}, {name: torch.ones(2)})
    except CondensError:
        assert not path.exists()
    else:
        assert_equal(read(path)[1], {name: torch.ones(2)})
