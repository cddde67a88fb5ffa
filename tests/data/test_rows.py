"""Rows: what is taken, what is refused and in which words, what counts, how they are split."""

import math

import numpy as np
import pytest
import torch

from condens.data import Rows
from condens.errors import ArgumentError, KindError, NotFiniteError, ShapeError

NAN, INF = math.nan, math.inf
TABLE = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]

FILL = "Drop such rows, or fill the entries and add a column that says which were filled."
NEGATIVE = "finite numbers that are not negative were expected. Use zero to leave a row out."
NUMBERS = "real numbers were expected."
ENCODE = (
    "Encode it as numbers; where X is a DataFrame, MDNRegressor reads its columns of text as "
    "categories."
)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            ([[1.0]], [[[1.0]]]),
            ShapeError,
            "target has shape [1, 1, 1], but [rows, targets] was expected. "
            "Pass one column for each target.",
        ),
        (
            ([[1.0], [2.0]], [1.0]),
            ShapeError,
            "target has 1 rows, but condition has 2. Pass one row for each.",
        ),
        (([], []), ShapeError, "target has no rows, but at least one is needed. Pass some data."),
        (
            ([[1.0, 2.0], [3.0, NAN]], [1.0, 2.0]),
            NotFiniteError,
            f"condition is nan at [1, 1], but finite numbers were expected. {FILL}",
        ),
        (
            ([[[1.0], [-INF]]], [1.0]),
            NotFiniteError,
            f"condition is -inf at [0, 1, 0], but finite numbers were expected. {FILL}",
        ),
        (
            ([1.0, 2.0], [[NAN, 1.0], [2.0, INF]]),
            NotFiniteError,
            "target is inf at [1, 1], but finite numbers were expected. Drop the row, or mark the "
            "entry missing with NaN.",
        ),
        (
            ([1.0, 2.0], [1.0, 2.0], [1.0, -0.5]),
            NotFiniteError,
            f"weights is -0.5 in row 1, but {NEGATIVE}",
        ),
        (
            ([1.0, 2.0], [1.0, 2.0], [NAN, 1.0]),
            NotFiniteError,
            f"weights is nan in row 0, but {NEGATIVE}",
        ),
        (
            ([1.0, 2.0], [1.0, 2.0], [1.0, INF]),
            NotFiniteError,
            f"weights is inf in row 1, but {NEGATIVE}",
        ),
        (
            ([1.0, 2.0], [1.0, 2.0], [[1.0], [1.0]]),
            ShapeError,
            "weights has shape [2, 1], but there are 2 rows. Pass one weight a row.",
        ),
        (
            ([[1.0], [1.0, 2.0]], [1.0, 2.0]),
            ShapeError,
            "condition has rows of different lengths, but a table was expected. "
            "Give every row the same length.",
        ),
        ((["a", "b"], [1.0, 2.0]), KindError, f"condition holds <U1, but {NUMBERS} {ENCODE}"),
        (
            ([1.0, 2.0], [1.0, {}]),
            KindError,
            f"target holds dict at [1], but {NUMBERS} The argument must be a table with a string "
            "(in a DataFrame) or a number in every cell.",
        ),
        (
            ([1.0], np.array(["2020-01-01"], "M8[D]")),
            KindError,
            f"target holds datetime64[D], but {NUMBERS} Derive numbers such as the year, the day "
            "of the year, or seconds since an origin.",
        ),
        (([1.0], [1.0], ["heavy"]), KindError, f"weights holds <U5, but {NUMBERS} {ENCODE}"),
        (
            ([1.0], torch.tensor([1j])),
            KindError,
            f"target holds torch.complex64, but {NUMBERS} Complex data not supported: pass the "
            "real and the imaginary part as two columns.",
        ),
        (
            (torch.ones(1, 1).to_sparse(), [1.0]),
            KindError,
            "condition holds torch.sparse_coo, but a dense table was expected, not a sparse one. "
            "Convert it by .to_dense().",
        ),
    ],
)
def test_what_is_refused_and_in_which_words(arguments, error, text):
    with pytest.raises(error) as raised:
        Rows.of(*arguments)
    assert type(raised.value) is error
    assert str(raised.value) == text


def test_none_is_missing():
    rows = Rows.of([1, 2], [[1.0, None], [None, 2]])
    expected = torch.tensor([[1.0, NAN], [NAN, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(rows.target, expected, equal_nan=True, rtol=0, atol=0)


def frozen(array):
    array.setflags(write=False)
    return array


@pytest.mark.parametrize(
    "given",
    [
        TABLE,
        tuple(map(tuple, TABLE)),
        torch.tensor(TABLE),
        torch.tensor(TABLE, requires_grad=True),
        np.array(TABLE),
        np.array(TABLE, np.float32),
        np.array(TABLE, ">f8"),
        np.array(TABLE, np.longdouble),
        np.asfortranarray(TABLE),
        np.array(TABLE[::-1])[::-1],
        frozen(np.array(TABLE)),
        np.array(TABLE, np.uint16),
    ],
    ids=lambda given: f"{type(given).__name__}-{getattr(given, 'dtype', '')}",
)
def test_lists_arrays_and_tensors_are_taken(given):
    rows = Rows.of(given, given, [1, 2, 3])
    for tensor in rows[:2]:
        assert not tensor.requires_grad
        assert tensor.double().tolist() == TABLE
    assert rows.target.is_floating_point()
    assert rows.weights.tolist() == [1.0, 2.0, 3.0]
    assert len(rows) == 3


def test_tensors_are_not_copied():
    condition, target = torch.zeros(3, 2, dtype=torch.float16), torch.zeros(3, 1)
    rows = Rows.of(condition, target)
    assert rows.condition.data_ptr() == condition.data_ptr()
    assert rows.target.data_ptr() == target.data_ptr()
    assert rows.weights is None


def test_flat_and_whole_numbers():
    rows = Rows.of([1, 2, 3], [2**53 - 1, 5, 6])
    assert rows.condition.shape == rows.target.shape == (3, 1)
    # Double precision: float32 would round the first.
    assert rows.target.dtype == torch.float64
    assert int(rows.target[0, 0]) == 2**53 - 1
    assert not rows.condition.is_floating_point()


def test_a_single_number_is_a_row():
    assert Rows.of(3.0, 1.0).condition.tolist() == [[3.0]]
    assert Rows.of(torch.tensor(3.0), torch.tensor(1.0)).target.tolist() == [[1.0]]


def test_rows_go_through_unchanged():
    rows = Rows.of(TABLE, [1.0, NAN, 3.0], [1.0, 0.0, 2.0])
    assert Rows.given(rows) is rows
    for before, after in zip(rows, Rows.of(*rows), strict=True):
        assert torch.equal(before.nan_to_num(), after.nan_to_num())


def test_take_keeps_rows_together():
    rows = Rows.of(TABLE, [[1.0], [3.0], [5.0]], [1.0, 3.0, 5.0]).take(torch.tensor([2, 0]))
    assert rows.condition.tolist() == [[5.0, 6.0], [1.0, 2.0]]
    assert rows.target.tolist() == [[5.0], [1.0]]
    assert rows.weights.tolist() == [5.0, 1.0]


class TestObserved:
    def test_rows_that_tell_something_stay(self):
        target = [[1.0, NAN], [NAN, NAN], [NAN, 3.0], [4.0, 4.0], [5.0, 5.0]]
        rows = Rows.of([0.0, 1.0, 2.0, 3.0, 4.0], target, [1, 1, 0.5, 0, 1e-300]).observed()
        assert rows.condition.flatten().tolist() == [0.0, 2.0, 4.0]
        assert rows.weights.tolist() == [1.0, 0.5, 1e-300]

    def test_without_weights(self):
        rows = Rows.of([0.0, 1.0], [NAN, 1.0]).observed()
        assert rows.condition.flatten().tolist() == [1.0]
        assert rows.weights is None

    def test_everything_observed_is_not_copied(self):
        rows = Rows.of([0.0, 1.0], [[1.0, NAN], [NAN, 1.0]], [1, 2])
        assert rows.observed() is rows

    @pytest.mark.parametrize(
        "arguments",
        [
            ([0.0, 1.0], [NAN, NAN]),
            ([0.0, 1.0], [1.0, 2.0], [0, 0]),
            ([0.0, 1.0], [NAN, 2.0], [1, 0]),
        ],
    )
    def test_nothing_left_is_refused(self, arguments):
        with pytest.raises(ArgumentError) as raised:
            Rows.of(*arguments).observed()
        assert str(raised.value) == (
            "target has no row that counts, but at least one is needed. Pass rows with an "
            "observed target and a weight above zero."
        )


class TestSplit:
    @pytest.mark.parametrize("fraction", [0.001, 0.1, 0.25, 0.5, 0.999])
    @pytest.mark.parametrize("count", [2, 3, 10, 101])
    def test_disjoint_and_complete(self, count, fraction):
        numbers = torch.arange(float(count))
        rest, held_out = Rows.of(numbers, 10 * numbers, 1 + numbers).split(fraction, seed=3)
        together = torch.cat([rest.condition, held_out.condition]).flatten()
        assert together.sort().values.tolist() == numbers.tolist()
        assert abs(len(held_out) - fraction * count) <= 1
        assert min(len(rest), len(held_out)) >= 1
        for part in (rest, held_out):
            assert torch.equal(part.target, 10 * part.condition)
            assert torch.equal(part.weights, 1 + part.condition.flatten().double())

    def test_seeded_and_random(self):
        rows = Rows.of(torch.arange(1000.0), torch.arange(1000.0))
        before = torch.get_rng_state()
        one, again, other = (rows.split(0.2, seed)[1].condition for seed in (1, 1, 2))
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.equal(one, again)
        assert not torch.equal(one, other)
        # Rows from everywhere: a head or a tail of the data has mean 99.5 or 899.5.
        assert abs(one.mean() - 499.5) < 5 * 289 / math.sqrt(200)


@pytest.mark.parametrize("size", [1e306, 1.0, 1e-306])
def test_weights_whose_sum_overflows_are_normalised(size):
    weights = size * (torch.arange(1.0, 401.0, dtype=torch.float64) / 400)
    normalised = Rows.of(torch.zeros(400, 1), torch.zeros(400, 1), weights).normalised_weights
    expected = torch.arange(1.0, 401.0, dtype=torch.float64) / (200 * 401)
    torch.testing.assert_close(normalised, expected, rtol=1e-13, atol=0)


def test_rows_are_taken_by_number_in_any_shape_and_by_mask():
    rows = Rows.of(torch.randn(6, 2, 3), torch.randn(6, 2), torch.rand(6))
    numbers = torch.tensor([[5, 0], [2, 2], [1, 5]])
    mask = torch.tensor([True, False, False, True, True, False])
    for index in (numbers, numbers[0], mask, ~mask & mask):
        for mine, theirs in zip(rows.take(index), rows, strict=True):
            assert torch.equal(mine, theirs[index])
