"""Tables, compact or not; targets: what is taken, whether it was flat, what is refused."""

import math

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from condens.data import Table, TargetColumns
from condens.errors import ArgumentError, NotFiniteError, ShapeError

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("target", "values", "names", "flat"),
    [
        ([1, 2], [[1.0], [2.0]], None, True),
        ([True, False], [[1.0], [0.0]], None, True),
        ([[1, None], [2, 3]], [[1.0, NAN], [2.0, 3.0]], None, False),
        (np.array([1, None, 2.5], dtype=object), [[1.0], [NAN], [2.5]], None, True),
        (np.array([[1.0, 2.0]], dtype=">f4"), [[1.0, 2.0]], None, False),
        (torch.tensor([1, 2]), [[1.0], [2.0]], None, True),
        (pd.Series([1.0, NAN]), [[1.0], [NAN]], None, True),
        (pd.Series([1, None], dtype="Int64", name="y"), [[1.0], [NAN]], ("y",), True),
        (pd.Series([1, pd.NA], dtype=object, name="y"), [[1.0], [NAN]], ("y",), True),
        (pl.Series([1, None]), [[1.0], [NAN]], None, True),
        (pl.Series("y", [True, None]), [[1.0], [NAN]], ("y",), True),
        (pd.DataFrame({"u": [1], "v": [True]}), [[1.0, 1.0]], ("u", "v"), False),
        (pl.DataFrame({"u": [1], "v": [0.5]}), [[1.0, 0.5]], ("u", "v"), False),
        (pd.DataFrame([[1, 2]]), [[1.0, 2.0]], None, False),
        (np.ma.masked_array([1.0, 2.0], [False, True]), [[1.0], [NAN]], None, True),
    ],
)
def test_what_comes_out(target, values, names, flat):
    found = TargetColumns.of(target)
    assert found.values.dtype == torch.float64
    np.testing.assert_array_equal(found.values.numpy(), values)
    assert (found.names, found.flat) == (names, flat)


SHAPES = "but [rows] or [rows, targets] was expected. Pass one column for each target."
ENCODE = "but real numbers were expected. Encode it as numbers, or drop the column."


@pytest.mark.parametrize(
    ("target", "error", "text"),
    [
        (3.0, ShapeError, f"y has shape [], {SHAPES}"),
        (np.zeros((1, 1, 1)), ShapeError, f"y has shape [1, 1, 1], {SHAPES}"),
        (
            [],
            ShapeError,
            "y has 0 sample(s) (shape=(0, 1)) while a minimum of 1 is required. Pass some data.",
        ),
        (
            [[1], [2, 3]],
            ShapeError,
            "y has rows of different lengths, but a table was expected. "
            "Give every row the same length.",
        ),
        (
            [1.0, INF],
            NotFiniteError,
            "y is inf in row 1, column 0, but finite numbers were expected. Remove the row, or "
            "mark the entry as missing with NaN.",
        ),
        (
            ["a", "b"],
            ArgumentError,
            "y holds <U1, but real numbers were expected. Encode it as numbers; where X is "
            "a DataFrame, MDNRegressor reads its columns of text as categories.",
        ),
        (
            pd.Series(["a", "b"], name="t"),
            ArgumentError,
            f"y holds categories (text) in column 't', {ENCODE}",
        ),
        (
            pd.DataFrame({"t": pd.Categorical([1, 2])}),
            ArgumentError,
            f"y holds categories (numbers) in column 't', {ENCODE}",
        ),
        (
            pd.Series(np.array(["2020"], dtype="datetime64[s]"), name="t"),
            ArgumentError,
            "y holds datetime64[s] in column 't', but numbers or categories were expected. Derive "
            "numbers such as the year, the day of the year, or seconds since an origin.",
        ),
        (
            [[1.0, NAN], [2.0, NAN]],
            ArgumentError,
            "y has no value at all in column 1, but at least one is needed. Drop the target.",
        ),
    ],
)
def test_what_cannot_be_a_target_is_named(target, error, text):
    with pytest.raises(error) as raised:
        TargetColumns.of(target, "y")
    assert isinstance(raised.value, error)
    assert str(raised.value) == text


def test_a_target_that_is_only_asked_about_may_have_no_value():
    assert TargetColumns.of([[1.0, NAN]], observed=False).values[0].isnan().tolist() == [0, 1]


@pytest.mark.parametrize(
    ("table", "dtype"),
    [
        (np.zeros((2, 1), np.float32), np.float32),
        (np.zeros((2, 1), np.float16), np.float32),
        (np.zeros((2, 1), np.int16), np.float32),
        (np.zeros((2, 1), np.int32), np.float64),
        (np.zeros((2, 1)), np.float64),
        ([[0.0], [0.0]], np.float64),
        (np.ma.zeros((2, 1), np.float32), np.float32),
        (torch.zeros(2, 1, dtype=torch.bfloat16), np.float32),
        (torch.zeros(2, 1, dtype=torch.int32), np.float64),
        (pd.DataFrame({"a": [0.0, 0.0]}, dtype=np.float32), np.float32),
        (pd.DataFrame({"a": [0.0, 0.0]}, dtype="Float32"), np.float32),
        (pd.DataFrame({"a": np.zeros(2, np.float32), "b": [0, 0]}), np.float64),
        (pl.DataFrame({"a": pl.Series([0.0, 0.0], dtype=pl.Float32)}), np.float32),
        (pa.table({"a": pa.array([0.0, None], pa.float32())}), np.float32),
        (pa.table({"a": pa.array([0.0, 0.0], pa.float16())}), np.float64),
    ],
    ids=lambda given: None if isinstance(given, type) else type(given).__module__.split(".")[0],
)
def test_compact_numbers_are_in_single_precision_where_it_is_exact(table, dtype):
    assert Table.read_compact(table, "X").numbers.dtype == dtype
    found = Table.read(table, "X").numbers
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, Table.read_compact(table, "X").numbers)


def test_a_compact_array_is_not_copied():
    table = np.zeros((2, 1), np.float32)
    assert np.shares_memory(Table.read_compact(table, "X").numbers, table)


def test_infinities_are_found_in_the_last_rows_too():
    table = np.zeros((40_000, 2), np.float32)
    table[39_000, 1] = -np.inf
    with pytest.raises(NotFiniteError, match="-inf in row 39000, column 1"):
        Table.read(table, "X")
