"""Targets: what is taken, whether it was flat, what it is called, what is refused."""

import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from condens.data import TargetColumns
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
