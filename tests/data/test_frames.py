"""Tables of pyarrow: the same numbers and categories as in pandas, and what is refused."""

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from numpy.testing import assert_array_equal

from condens import GaussianMixture, MDNRegressor
from condens.data import TableEncoder, TargetColumns
from condens.data.frames import columns_of, names_of, select, take_rows
from condens.errors import ArgumentError, KindError
from condens.evaluation.permutation import importance
from condens.evaluation.simulators import _rows_of

KINDS = "but numbers or categories were expected."
CELLS = "The argument must be a table with a string (in a DataFrame) or a number in every cell."
DATES = "Derive numbers such as the year, the day of the year, or seconds since an origin."
DECODE = "Decode it to text, which is read as categories, or encode it as numbers."


def twins():
    """Return the same table of pyarrow and of pandas, with every kind of column."""
    table = pa.table(
        {
            "town": ["Ulm", None, "Aix"],
            "age": pa.array([30, 41, 52], pa.int8()),
            "size": pa.array([3, None, 10], pa.uint64()),
            "half": pa.array([0.5, None, 2], pa.float16()),
            "price": pa.array([1, None, 3]).cast(pa.decimal128(21, 2)),
            "grade": pa.array([10, 2, None]).dictionary_encode(),
            "shop": pa.chunked_array(
                [pa.array(["b", "a"]).dictionary_encode(), pa.array(["c"]).dictionary_encode()]
            ),
            "view": pa.array(["u", None, "u"], pa.string_view()),
            "runs": pc.run_end_encode(pa.array([1.0, 1.0, None])),
            "new": [None, True, False],
        }
    )
    frame = pd.DataFrame(
        {
            "town": ["Ulm", None, "Aix"],
            "age": [30, 41, 52],
            "size": [3, None, 10],
            "half": [0.5, None, 2],
            "price": [1, None, 3],
            "grade": pd.array([10, 2, None], dtype="Int64"),
            "shop": ["b", "a", "c"],
            "view": ["u", None, "u"],
            "runs": [1.0, 1.0, None],
            "new": pd.array([None, True, False], dtype="boolean"),
        }
    )
    return table, frame.astype({"grade": "category"})


def test_is_the_same_as_in_pandas():
    table, frame = twins()
    encoder = TableEncoder.fit(frame)
    for twin in (
        table,
        table.combine_chunks().to_batches()[0],
        pa.concat_tables([table[:1], table[1:]]),
    ):
        assert TableEncoder.fit(twin) == encoder
        assert torch.equal(encoder.encode(twin), encoder.encode(frame))


def test_whole_numbers_beyond_a_double_are_rounded():
    table = pa.table({"a": pa.array([2**64 - 1], pa.uint64())})
    assert TableEncoder.fit(table).encode(table).item() == 2.0**64


def test_a_column_of_nulls_has_no_kind():
    encoder = TableEncoder.fit(pa.table({"a": ["u", None], "b": [1.0, None]}))
    gaps = pa.table({"a": pa.nulls(1), "b": pa.nulls(1)})
    assert encoder.encode(gaps).tolist() == [[1.0, 1.0, 2.0]]


def test_targets():
    table = pa.table({"u": [1, None], "v": [True, False]})
    found = TargetColumns.of(table)
    assert_array_equal(found.values.numpy(), [[1.0, 1.0], [np.nan, 0.0]])
    assert (found.names, found.flat) == (("u", "v"), False)
    for column in (table["u"], table["u"].combine_chunks()):
        found = TargetColumns.of(column)
        assert_array_equal(found.values.numpy(), [[1.0], [np.nan]])
        assert (found.names, found.flat) == (None, True)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pa.array([datetime.date(2020, 1, 1)]), f"date32[day] in column 'a', {KINDS} {DATES}"),
        (pa.array([1], pa.timestamp("s")), f"timestamp[s] in column 'a', {KINDS} {DATES}"),
        (pa.array([1], pa.duration("s")), f"duration[s] in column 'a', {KINDS} {DATES}"),
        (pa.array([1], pa.time32("s")), f"time32[s] in column 'a', {KINDS} {DATES}"),
        (pa.array([b"x"]), f"binary in column 'a', {KINDS} {DECODE}"),
        (pa.array([b"x"]).dictionary_encode(), f"binary in column 'a', {KINDS} {DECODE}"),
        (pa.array([[1]]), f"list<item: int64> in column 'a', {KINDS} {CELLS}"),
        (pa.array([{"\x1b": 1}]), f"struct<\ufffd: int64> in column 'a', {KINDS} {CELLS}"),
        (
            pa.array([b"\xff"]).view(pa.string()),
            f"text that is not UTF-8 in column 'a', {KINDS} {DECODE}",
        ),
    ],
)
def test_what_is_no_number_is_named(column, text):
    with pytest.raises(KindError) as raised:
        TableEncoder.fit(pa.table({"a": column}), "X")
    assert str(raised.value) == f"X holds {text}"


def test_names_must_differ():
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    with pytest.raises(ArgumentError, match="X has 2 columns 'a'"):
        TableEncoder.fit(table, "X")


def test_a_mixture_takes_columns_by_name():
    mixture = GaussianMixture(
        torch.zeros(1), torch.tensor([[1.0, 5.0]]), torch.zeros(1, 2), names=("u", "v")
    )
    swapped = pa.table({"v": [4.0], "u": [2.0]})
    assert_array_equal(mixture.log_prob(swapped), mixture.log_prob([[2.0, 4.0]]))


@pytest.fixture(scope="module")
def regressors():
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"x": random.normal(size=80), "town": random.choice(["a", "b"], 80)})
    y = pd.DataFrame({"u": frame["x"] + random.normal(size=80), "v": random.normal(size=80)})
    tables = [pa.Table.from_pandas(each, preserve_index=False) for each in (frame, y)]
    settings = {"n_components": 1, "epochs": 2, "n_members": 1, "random_state": 0}
    return [(MDNRegressor(**settings).fit(*data), *data) for data in ((frame, y), tables)]


def test_a_regressor_takes_either(regressors):
    (one, x, y), (two, table, target) = regressors
    assert two.feature_names_in_.tolist() == ["x", "town"]
    assert_array_equal(one.predict(x), two.predict(table))
    assert_array_equal(one.predict(table), two.predict(table.to_batches()[0]))
    assert_array_equal(one.predict_dist(x).means, two.predict_dist(table).means)
    assert one.score(x, y) == two.score(table, target.select(["v", "u"]))
    with pytest.raises(ArgumentError, match="town"):
        two.predict(table.select(["town", "x"]))


def test_evaluation_takes_either(regressors):
    (one, x, y), (two, table, target) = regressors
    found = [importance(m, *data) for m, *data in ((one, x, y), (two, table, target))]
    assert list(found[1].columns) == ["x", "town"]
    assert found[0].to_dict() == found[1].to_dict()


def test_rows_of_observations_are_taken_by_position():
    columns = {"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0]}
    table = pa.table(columns)
    for frame in (pd.DataFrame(columns, index=[7, 8, 9]), table, table.to_batches()[0]):
        taken = _rows_of(frame, 3)(torch.tensor([2, 0]))
        assert_array_equal(TargetColumns.of(taken).values, [[3.0, 6.0], [1.0, 4.0]])


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_some_columns_and_rows(kind):
    columns = {"a": [1, 2, 3], "b": [4, 5, 6], "c": [7, 8, 9]}
    make = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}[kind]
    found = take_rows(select(make(columns), ("c", "a")), np.array([2, 0]))
    assert names_of(found) == ["c", "a"]
    assert [list(column) for column in columns_of(found, "X")[1]] == [[9, 7], [3, 1]]
