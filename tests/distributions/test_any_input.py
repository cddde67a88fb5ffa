"""Whatever is passed to a public method, what comes out is an answer or an error that is named."""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.reference import random_low_rank, random_parameters
from torch.testing import assert_close

from condens import GaussianMixture, LowRankMixture, TransformedMixture, functional
from condens.errors import ArgumentError, CondensError, KindError, ShapeError
from condens.transforms import Integer, Interval, Positive, Real

NAN, INF = float("nan"), float("inf")


def wrong():
    """Return values of every sort; some of them are right for some arguments."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls nested tensors a prototype
        nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    zero, array = torch.zeros(4, 2), np.zeros((4, 2))
    return [
        *(None, "abc", "", b"a", {}, {1, 2}, object(), len, int, range(2), (x for x in [0.0])),
        *(True, 3, -1, 0.5, NAN, INF, -INF, 1j, 2**70, 10**400),
        *([[0.0, 1.0]] * 4, [[0.0], [0.0, 1.0]], [None, None], [torch.zeros(2)] * 4, [], [[]]),
        *(torch.zeros(shape) for shape in ((), 1, 2, 3, 0, (2, 4), (5, 4, 2), (4, 0), (0, 2))),
        *(zero, zero + NAN, zero + INF, zero.to_sparse(), nested, zero.to("meta")),
        *(zero.to(dtype) for dtype in (torch.int64, torch.bool, torch.uint8, torch.half)),
        *(zero.to(torch.complex64), zero.double() + 1e300, zero.clone().requires_grad_()),
        *(torch.zeros(2, 4).T, zero[:1].expand(4, 2), torch.nn.Parameter(zero)),
        *(np.array(["a", "b"], dtype=object), np.array(["1"]), np.array(["2020"], dtype="M8[D]")),
        *(array, array[::-1], np.asfortranarray(array), array.astype(">f8")),
        *(array.astype(np.longdouble), array.astype(np.uint64), np.ma.masked_equal(array, 0.0)),
        np.zeros(4, dtype=[("a", "f4"), ("b", "f4")]),
        pd.DataFrame({"a": [0.0] * 4, "b": [1.0] * 4}),
        pd.DataFrame({"a": ["x"] * 4, "b": ["y"] * 4}),
        pd.DataFrame({"a": pd.array([1, None, 2, 3], dtype="Int64"), "b": [1.0] * 4}),
        pd.Series([0.0, 1.0]),
    ]


FULL, LOW = random_parameters((4,), 3, 2), random_low_rank((4,), 3, 2, 1)
MIXTURES = {
    "full": GaussianMixture(*FULL),
    "full, one dimension": GaussianMixture(*random_parameters((4,), 3, 1)),
    "full, with names": GaussianMixture(*FULL, names=["a", "b"]),
    "low_rank": LowRankMixture(*LOW),
    "low_rank, one dimension": LowRankMixture(*random_low_rank((4,), 3, 1, 1)),
    "transformed": TransformedMixture(GaussianMixture(*FULL), [Positive(), Integer(0)]),
    "transformed, one dimension": TransformedMixture(
        GaussianMixture(*random_parameters((4,), 3, 1)), [Interval(0.0, 1.0)]
    ),
}
METHODS = [
    *("log_prob", "component_log_prob", "responsibilities", "observed_log_prob"),
    *("cdf", "icdf", "crps", "interval", "quantile", "energy_score", "hpd_threshold"),
    *("marginal", "condition", "affine", "project", "multiply", "divide", "kl_divergence"),
    *("expand", "sample", "rsample", "narrowed"),
    *("rosenblatt", "hpd_coverage", "probability"),
]
DOORS = {name: lambda m, w, name=name: getattr(m, name)(w) for name in METHODS} | {
    "condition on": lambda m, w: m.condition({0: w}),
    "affine, loc": lambda m, w: m.affine(1.0, w),
    "quantile, dim": lambda m, w: m.quantile(0.5, w),
    "hpd_contains": lambda m, w: m.hpd_contains(w, 0.5, n_samples=50),
    "hpd_contains, coverage": lambda m, w: m.hpd_contains(m.sample(), w, n_samples=50),
    "entropy, n_samples": lambda m, w: m.entropy(n_samples=w),
    "entropy, generator": lambda m, w: m.entropy(n_samples=10, generator=w),
    "energy_score, generator": lambda m, w: m.energy_score(m.sample(), generator=w),
    "hpd_coverage, n_samples": lambda m, w: m.hpd_coverage(m.sample(), n_samples=w),
    "probability, upper": lambda m, w: m.probability(0.0, w, n_samples=50),
    "probability, n_samples": lambda m, w: m.probability(0.0, n_samples=w),
    "expectation, values": lambda m, w: m.expectation(lambda _: w, n_samples=5),
    "rosenblatt, generator": lambda m, w: m.rosenblatt(m.sample(), generator=w),
    "hpd_threshold, n_samples": lambda m, w: m.hpd_threshold(0.5, n_samples=w),
    "sample, generator": lambda m, w: m.sample((2,), generator=w),
    "sample, a size": lambda m, w: m.sample((w,)),
    "ensemble": lambda m, w: type(m).ensemble(w),
    "ensemble, a member": lambda m, w: type(m).ensemble([m, w]),
    "ensemble, weights": lambda m, w: type(m).ensemble([m, m], w),
}


def raw_errors(call):
    """Return what is raised that is not ours, for every value."""
    found = []
    for value in wrong():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # numpy's of NaN
                call(value)
        except CondensError:
            pass
        except Exception as error:
            found.append((type(value).__name__, getattr(value, "shape", value), repr(error)))
    return found


CASES = [
    (name, door)
    for name, mixture in MIXTURES.items()
    for door in DOORS
    if hasattr(type(mixture), door.replace(",", "").split()[0])
]


@pytest.mark.parametrize(("name", "door"), CASES)
def test_methods_answer_or_name_the_error(name, door):
    mixture = MIXTURES[name]
    assert raw_errors(lambda value: DOORS[door](mixture, value)) == []


def replaced(function, arguments, place):
    return lambda value: function(*arguments[:place], value, *arguments[place + 1 :])


MATRICES = MIXTURES["full"].covariance_matrices
GIVEN = (MIXTURES["full"].weights, MIXTURES["full"].means, MATRICES)
MAKERS = {
    "GaussianMixture": (GaussianMixture, FULL),
    "LowRankMixture": (LowRankMixture, LOW),
    "names": (lambda names: GaussianMixture(*FULL, names=names), [None]),
    "validate_args": (lambda flag: GaussianMixture(*FULL, validate_args=flag), [None]),
    "TransformedMixture": (TransformedMixture, [MIXTURES["full"], [Real(), Real()]]),
    "a transform": (
        lambda transform: TransformedMixture(MIXTURES["full"], [Real(), transform]),
        [None],
    ),
    "from_covariances": (GaussianMixture.from_covariances, GIVEN),
    "from_precisions": (GaussianMixture.from_precisions, GIVEN),
    "from_scale_tril": (
        GaussianMixture.from_scale_tril,
        (*GIVEN[:2], torch.linalg.cholesky(MATRICES)),
    ),
    "from_mixture_same_family": (GaussianMixture.from_mixture_same_family, [None]),
    "Positive": (Positive, [0.0]),
    "Interval": (Interval, [0.0, 1.0]),
    "Integer": (Integer, [0]),
}


@pytest.mark.parametrize("name", MAKERS)
def test_constructors_build_or_name_the_error(name):
    function, arguments = MAKERS[name]
    for place in range(len(arguments)):
        assert raw_errors(replaced(function, arguments, place)) == []


# The functions on plain tensors.

TENSORS = {
    "target": torch.randn(4, 2, dtype=torch.float64),
    **dict(zip(("logits", "means", "factors"), FULL, strict=True)),
}
FUNCTIONS = {
    name: ["target", "logits", "means", "factors"]
    for name in [
        *("log_prob", "responsibilities", "nll", "partial_log_prob", "conditional_cdfs"),
        *("weighted_bound", "uniform_bound", "report_printed_form"),
    ]
} | {
    "component_log_prob": ["target", "means", "factors"],
    "sample": ["logits", "means", "factors"],
    "rsample": ["logits", "means", "factors"],
}
SHAPES = [
    *((), (1,), (2,), (3,), (0,), (4, 1), (4, 2), (4, 3), (3, 2), (1, 3), (4, 0), (5, 4, 2)),
    *((4, 3, 1), (4, 3, 2), (4, 1, 2), (4, 1, 3), (4, 3, 3), (4, 3, 6), (4, 0, 2), (4, 3, 0)),
]
# What each tensor may be, beside any leading axes that broadcast.
EVENT = {"target": [(2,)], "logits": [(3,)], "means": [(3, 2)], "factors": [(3, 3), (3, 2)]}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_never_answer_for_another_mixture(name):
    """What torch would broadcast over dimensions or components is refused by name."""
    function, names = getattr(functional, name), FUNCTIONS[name]
    for changed in names:
        events = list(EVENT[changed])
        if changed == "means" and "target" not in names:
            events.append((3, 3))  # three dimensions, for which the factors are diagonal
        for shape in SHAPES:
            given = {n: TENSORS[n] for n in names} | {changed: torch.zeros(shape).double()}
            fits = any(
                shape[-len(event) :] == event and set(shape[: -len(event)][-1:]) <= {1, 4}
                for event in events
            )
            if fits:
                answer = function(*given.values())
                assert answer.shape[: len(shape) - 2] == shape[:-2] or len(shape) < 3
            else:
                # Against means that do not fit, the others are what is refused.
                with pytest.raises(ShapeError, match=None if changed == "means" else changed):
                    function(*given.values())
                with pytest.raises(ShapeError):
                    function(**given)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_answer_or_name_the_error(name):
    function, names = getattr(functional, name), FUNCTIONS[name]
    for place in range(len(names)):
        for value in (None, "a", [0.0], np.zeros((4, 2)), torch.zeros(4, 2, dtype=torch.int64)):
            with pytest.raises(KindError, match=f"{names[place]} is .* real numbers"):
                replaced(function, [TENSORS[n] for n in names], place)(value)
    with pytest.raises(TypeError):
        function()


@pytest.mark.parametrize("name", ["cdf", "icdf", "crps"])
def test_functions_of_one_dimension_take_no_more(name):
    logits, means, factors = random_parameters((4,), 3, 1)
    function = getattr(functional, name)
    asked = torch.rand((4,) if name == "icdf" else (4, 1), dtype=torch.float64)
    assert function(asked, logits, means, factors).shape[0] == 4
    with pytest.raises(ShapeError, match="means has 2 dimensions, but 1 was expected"):
        function(torch.rand(4, 2) if name != "icdf" else torch.rand(4), *FULL)
    with pytest.raises(ShapeError, match="logits, means and factors have shapes"):
        function(asked[:3], logits, means, factors)


# What the doors make of the forms that numbers come in.


def test_arrays_of_every_layout_are_the_numbers_they_hold():
    x = np.arange(8.0).reshape(4, 2)
    m = MIXTURES["full"]
    expected = m.log_prob(torch.from_numpy(x))
    forms = [x[::-1][::-1], np.asfortranarray(x), x.astype(">f8"), x.astype(np.longdouble),
             x.astype(np.uint16), x.astype(">f4"), pd.DataFrame(x), x.tolist()]  # fmt: skip
    for form in forms:
        assert_close(m.log_prob(form), expected, rtol=1e-12, atol=1e-12)
        made = GaussianMixture(np.zeros(4), form, np.zeros((4, 2)))
        assert_close(made.means.double(), torch.from_numpy(x), rtol=0, atol=0)


def test_masked_numbers_are_not_observed():
    m, x = MIXTURES["full"], np.ones((4, 2))
    masked = np.ma.masked_array(x, mask=[[0, 1]] * 4)
    with pytest.raises(ArgumentError, match="value has NaN"):
        m.log_prob(masked)
    alone = m.marginal(0).log_prob(torch.ones(4, 1))
    assert_close(m.observed_log_prob(masked), alone, rtol=1e-10, atol=1e-10)


def test_devices_are_told_apart():
    elsewhere = torch.zeros(4, 2, device="meta")
    for m in MIXTURES.values():
        if m.dimensions == 2:
            with pytest.raises(ArgumentError, match=r"value is on meta.*value\.to\('cpu'\)"):
                m.log_prob(elsewhere)
    with pytest.raises(ArgumentError, match=r"are on cpu, meta, cpu.*Move them to one"):
        GaussianMixture(FULL[0], FULL[1].to("meta"), FULL[2])
    with pytest.raises(ArgumentError, match=r"generator draws on .*torch\.Generator\('meta'\)"):
        GaussianMixture(*(p.to("meta") for p in FULL)).sample(generator=torch.Generator())


def test_mixtures_stay_real_numbers():
    for m in MIXTURES.values():
        with pytest.raises(KindError, match=r"dtype is torch\.int64"):
            m.to(torch.int64)


OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")


@pytest.mark.skipif(
    not OVERCOMMIT.exists() or OVERCOMMIT.read_text().strip() == "1",
    reason="the system promises memory that it does not have",
)
@pytest.mark.parametrize("name", ["full", "low_rank", "transformed"])
def test_draws_beyond_memory_are_named(name):
    """Ten terabytes: no size is too large to write down, but there is no room for them."""
    m, many = MIXTURES[name], 10**11
    with pytest.raises(ShapeError, match=r"the draws do not fit into memory.*fewer at a time"):
        m.sample((many,))
    with pytest.raises(ShapeError, match="the draws do not fit into memory"):
        m.entropy(n_samples=3 * many)
    with pytest.raises(ShapeError, match="the draws do not fit into memory"):
        m.hpd_threshold(0.5, n_samples=many)
