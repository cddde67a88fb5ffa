"""Which axis of a value is the event's: of one-dimensional mixtures it may be left out."""

import itertools
import math
import re

import pytest
import torch
from helpers.reference import random_low_rank, random_parameters
from torch.testing import assert_close

from condens import GaussianMixture, LowRankMixture, TransformedMixture
from condens.errors import ShapeError
from condens.evaluation import Region
from condens.transforms import Integer, Positive, Real

MIXTURES = {
    "full": lambda batch: GaussianMixture(*random_parameters(batch, 3, 1)),
    "low_rank": lambda batch: LowRankMixture(*random_low_rank(batch, 3, 1, 1)),
    "transformed": lambda batch: TransformedMixture(
        GaussianMixture(*random_parameters(batch, 3, 1)), [Real()]
    ),
}


def region(mixture):
    """Return the points of a log density from −1 on, which no rows were calibrated for."""
    made = Region(mixture, 0.9, None)
    vars(made)["log_threshold"] = torch.tensor(-1.0)
    return made


ASK = {
    "log_prob": lambda m, x: m.log_prob(x),
    "observed_log_prob": lambda m, x: m.observed_log_prob(x),
    "responsibilities": lambda m, x: m.responsibilities(x),
    "cdf": lambda m, x: m.cdf(x),
    "crps": lambda m, x: m.crps(x),
    "energy_score": lambda m, x: m.energy_score(x).value,
    "region": lambda m, x: region(m).contains(x),
}

# Batch shape, shape of the value, the shape it is read as; None where it is refused.
READINGS = [
    ((), (), (1,)),
    ((), (1,), (1,)),
    ((), (200,), (200, 1)),
    ((), (200, 1), (200, 1)),
    ((), (2, 3), (2, 3, 1)),
    ((), (0,), (0, 1)),
    ((4,), (), (1,)),
    ((4,), (1,), (1,)),
    ((4,), (4,), (4, 1)),
    ((4,), (4, 1), (4, 1)),
    ((4,), (5, 4), (5, 4, 1)),
    ((4,), (5, 1, 1), (5, 1, 1)),
    ((4,), (5, 4, 1), (5, 4, 1)),
    ((4,), (200,), None),
    ((4,), (3, 1), None),
    ((4,), (4, 5), None),
    ((1,), (), (1,)),
    ((1,), (1,), (1,)),
    ((1,), (200,), (200, 1)),
    ((1,), (200, 1), (200, 1)),
    ((1,), (200, 1, 1), (200, 1, 1)),
    ((3, 4), (4,), (4, 1)),
    ((3, 4), (3, 4), (3, 4, 1)),
    ((3, 4), (4, 1), (4, 1)),
    ((3, 4), (3, 1, 1), (3, 1, 1)),
    ((3, 4), (3,), None),
    ((4, 1), (4, 1, 1), (4, 1, 1)),
    ((4, 1), (3, 4, 1), (3, 4, 1, 1)),
    ((4, 1), (7, 1), (7, 1)),
    ((4, 1), (4, 3), (4, 3, 1)),
    ((4, 1), (4, 1), None),
    ((2, 1), (2, 2, 1), None),
    ((0,), (0,), (0, 1)),
    ((0,), (0, 1), (0, 1)),
    ((0,), (5,), None),
]


def numbers(shape):
    return torch.randn(shape, dtype=torch.float64)


def ids(case):
    return " ".join(map(str, case)).replace(", ", ",")


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("case", READINGS, ids=ids)
def test_every_shape_with_one_reading_is_taken(name, case):
    batch, shape, read = case
    mixture, value = MIXTURES[name](batch), numbers(shape)
    for ask in ASK.values():
        if read is None:
            with pytest.raises(ShapeError, match=re.escape(f"value has shape {list(shape)}")):
                ask(mixture, value)
        else:
            got, expected = ask(mixture, value), ask(mixture, value.reshape(read))
            assert_close(got, expected, rtol=0, atol=0)
            answered = torch.broadcast_shapes(batch, read[:-1])
            assert got.shape[: len(answered)] == answered


def test_every_reading_is_the_one_by_hand():
    """Where the axis is left out, element by element against each member's own answer."""
    for batch, shape, read in READINGS:
        if read is None:
            continue
        mixture, value = MIXTURES["full"](batch), numbers(shape)
        got = mixture.log_prob(value)
        points = value.reshape(read)[..., 0].expand(got.shape)
        members = torch.arange(math.prod(batch)).reshape(batch)
        members = members.expand(got.shape)
        rows = [p.reshape(-1, *p.shape[len(batch) :]) for p in mixture.parameters]
        for index in itertools.product(*map(range, got.shape)):
            transform = GaussianMixture(*(p[members[index]] for p in rows))
            assert_close(transform.log_prob(points[index].reshape(1)), got[index])


SIZES = (1, 2, 3)
SHAPES = [shape for n in range(4) for shape in itertools.product(SIZES, repeat=n)]


def sizes(text):
    return [int(number) for number in re.findall(r"\d+", text)]


@pytest.mark.parametrize("batch", [s for s in SHAPES if len(s) < 3], ids=str)
def test_the_advice_of_a_refusal_is_taken(batch):
    mixture, refused = MIXTURES["full"](batch), {}
    for shape in SHAPES:
        try:
            mixture.log_prob(numbers(shape))
        except ShapeError as error:
            refused[shape] = str(error)
    for shape, text in refused.items():
        if "value[..., None]" in text:
            mixture.log_prob(numbers(shape)[..., None])
            mixture.log_prob(numbers(shape).reshape(sizes(text.split("reshape")[1])))
        else:
            *_, each, same = re.findall(r"in (\[[\d, ]+\])", text)
            mixture.log_prob(numbers((7, *sizes(each))))
            mixture.log_prob(numbers((7, *sizes(same))))
    assert refused or all(size == 1 for size in batch)


def test_coverages_broadcast_as_probabilities_do():
    for name, make in MIXTURES.items():
        mixture = make((4,))
        coverages = torch.tensor([[0.5], [0.9]], dtype=torch.float64)
        low, high = mixture.interval(coverages)
        assert low.shape == high.shape == (2, 4, 1), name
        assert_close(mixture.cdf(high) - mixture.cdf(low), coverages.expand(2, 4))
        for row, coverage in zip(low, (0.5, 0.9), strict=True):
            assert_close(row, mixture.interval(coverage)[0], rtol=0, atol=0)
        assert make(()).interval([0.5, 0.8, 0.9])[0].shape == (3, 1)


def test_whole_and_positive_numbers_come_without_their_axis_too():
    for transform in (Positive(), Integer(0)):
        mixture = TransformedMixture(MIXTURES["full"](()), [transform])
        y = torch.arange(1.0, 6.0, dtype=torch.float64)
        assert_close(mixture.log_prob(y), mixture.log_prob(y[:, None]), rtol=0, atol=0)
        assert_close(mixture.cdf(y), mixture.cdf(y[:, None]), rtol=0, atol=0)


def test_a_single_mixture_is_observed_too():
    for transform, seen in ((Positive(), 2.0), (Integer(), 3.0)):
        mixture = TransformedMixture(MIXTURES["full"](()), [transform])
        assert_close(
            mixture.observed_log_prob([seen]), mixture.log_prob([seen]), rtol=1e-14, atol=0
        )
        assert mixture.observed_log_prob([torch.nan]) == 0


def test_empty_batches_are_observed_too():
    for make in (
        lambda: GaussianMixture(*random_parameters((0,), 3, 2)),
        lambda: LowRankMixture(*random_low_rank((0,), 3, 2, 1)),
        lambda: TransformedMixture(
            GaussianMixture(*random_parameters((0,), 3, 2)), [Positive(), Integer()]
        ),
    ):
        assert make().observed_log_prob(torch.zeros(0, 2)).shape == (0,)
        assert make().observed_log_prob(torch.zeros(3, 0, 2)).shape == (3, 0)
