"""Tables of conditions: what comes out of them, what is refused and in which words."""

import datetime
import json
import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from condens.data import TableEncoder
from condens.errors import ArgumentError, DimensionError, KindError, NotFiniteError, ShapeError

NAN, INF = math.nan, math.inf
ROWS = [[1.0, 0.0], [2.0, 1.0], [-3.0, 1.0]]

DENSE = "but a dense table was expected, not a sparse one."
CELLS = "The argument must be a table with a string (in a DataFrame) or a number in every cell."
DATES = "Derive numbers such as the year, the day of the year, or seconds since an origin."
PARTS = "Complex data not supported: pass the real and the imaginary part as two columns."
TEXT = (
    "Encode it as numbers; where X is a DataFrame, MDNRegressor reads its columns of text as "
    "categories."
)
AS_TEXT = (
    "These are numbers read as text: convert them, by .astype(float) or pandas.to_numeric(…, "
    'errors="coerce") where some are not.'
)
DECODE = "Decode it to text, which is read as categories, or encode it as numbers."
KINDS = "but numbers or categories were expected."
REAL = "but real numbers were expected."
RESHAPE = (
    "Reshape your data either using array.reshape(-1, 1) if your data has a single feature or "
    "array.reshape(1, -1) if it contains a single sample."
)


def mixed():
    """Return a pandas frame with every kind of column, and what it encodes to."""
    frame = pd.DataFrame(
        {
            "town": ["Ulm", None, "Aix"],
            "age": [30, 41, 52],
            "size": pd.array([3, None, 10], dtype="Int64"),
            "grade": pd.Categorical([2, 10, 2], categories=[10, 2, 7]),
            "new": pd.array([None, True, False], dtype="boolean"),
            "old": [True, False, True],
        }
    )
    expected = [
        # age, size, new, old, size missing, new missing, town, grade
        [30.0, 3.0, 0.5, 1.0, 0.0, 1.0, 2.0, 1.0],
        [41.0, 6.5, 1.0, 0.0, 1.0, 0.0, 3.0, 2.0],
        [52.0, 10.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0],
    ]
    return frame, expected


def in_polars(frame):
    """Return the same frame of polars, numbers that are categories as text."""
    columns = {}
    for label in frame:
        series, dtype = frame[label], str(frame[label].dtype)
        values = [None if pd.isna(value) else value for value in series.tolist()]
        if dtype == "category":
            values = [None if value is None else str(value) for value in values]
            columns[label] = pl.Series(values, dtype=pl.Enum(sorted({*values} - {None})))
        else:
            columns[label] = pl.Series(values)
    return pl.DataFrame(columns)


class TestEncoding:
    def test_is_what_the_order_of_columns_and_codes_says(self):
        frame, expected = mixed()
        encoder = TableEncoder.fit(frame)
        assert encoder.encode(frame).tolist() == expected
        assert encoder.feature_names == ("town", "age", "size", "grade", "new", "old")
        assert (encoder.n_features, encoder.columns, encoder.numeric) == (6, 8, 6)
        assert encoder.categories == [4, 3]

    @pytest.mark.parametrize(
        "table",
        [
            ROWS,
            np.array(ROWS),
            np.asfortranarray(ROWS),
            np.array(ROWS)[::-1][::-1],
            np.array(ROWS, dtype=np.float16),
            np.array(ROWS, dtype=np.float32),
            np.array(ROWS, dtype=np.longdouble),
            np.array(ROWS, dtype=">f8"),
            np.array(ROWS, dtype=">i2"),
            np.array(ROWS, dtype=np.int8),
            np.array(ROWS, dtype=object),
            [[1, False], [2, True], [-3, True]],
            torch.tensor(ROWS),
            torch.tensor(ROWS, dtype=torch.bfloat16, requires_grad=True),
            torch.tensor(ROWS).T.contiguous().T,
            pd.DataFrame(ROWS),
            pd.DataFrame({"a": pd.array([1, 2, -3], dtype="Int8"), "b": [False, True, True]}),
            pd.DataFrame(ROWS, dtype="Float32"),
            pd.DataFrame(ROWS, dtype=object),
            pl.DataFrame({"a": [1, 2, -3], "b": [False, True, True]}),
            pl.DataFrame({"a": pl.Series([1, 2, -3], dtype=pl.Decimal(8, 2)), "b": [0.0, 1, 1]}),
        ],
        ids=lambda table: type(table).__module__.split(".")[0],
    )
    def test_is_the_same_for_all_that_hold_the_same(self, table):
        encoder = TableEncoder.fit(table)
        found = encoder.encode(table)
        assert found.dtype == torch.float64
        assert found.is_contiguous()
        assert found.tolist() == ROWS
        assert (encoder.columns, encoder.numeric, encoder.categories) == (2, 2, [])

    def test_of_a_read_only_array_is_a_copy(self):
        table = np.array(ROWS)
        table.flags.writeable = False
        TableEncoder.fit(table).encode(table)[0, 0] = 7.0
        assert table[0, 0] == 1.0

    def test_keeps_every_digit(self):
        third = np.float32(1 / 3)
        for frame in (pd.DataFrame({"a": [third]}), pl.DataFrame({"a": [third]})):
            assert TableEncoder.fit(frame).encode(frame).item() == float(third)
        exact = pd.DataFrame({"a": pd.array([2**53 - 1, None], dtype="Int64")})
        assert TableEncoder.fit(exact).encode(exact)[0, 0].item() == 2.0**53 - 1

    @pytest.mark.parametrize(
        "table",
        [
            [[1.0, 5.0], [None, 5.0], [2.0, 5.0], [9.0, 5.0]],
            np.array([[1.0, 5.0], [NAN, 5.0], [2.0, 5.0], [9.0, 5.0]]),
            np.array([[1.0, 5.0], [pd.NA, 5], [2.0, 5.0], [9.0, 5.0]], dtype=object),
            np.ma.masked_array(
                [[1.0, 5.0], [0.0, 5.0], [2.0, 5.0], [9.0, 5.0]],
                [[False, False], [True, False], [False, False], [False, False]],
            ),
            pd.DataFrame({"a": [1.0, None, 2.0, 9.0], "b": 5}),
            pd.DataFrame({"a": pd.Series([1.0, pd.NA, 2.0, 9.0], dtype=object), "b": 5}),
            pl.DataFrame({"a": [1, None, 2, 9], "b": [5] * 4}),
            pl.DataFrame({"a": [1.0, NAN, 2, 9], "b": [5] * 4}),
        ],
    )
    def test_fills_gaps_with_the_median_and_tells_them(self, table):
        expected = [[1.0, 5.0, 0.0], [2.0, 5.0, 1.0], [2.0, 5.0, 0.0], [9.0, 5.0, 0.0]]
        assert TableEncoder.fit(table).encode(table).tolist() == expected

    def test_tells_gaps_where_there_are_none_any_more(self):
        encoder = TableEncoder.fit([[1.0], [NAN]])
        assert encoder.encode([[4.0]]).tolist() == [[4.0, 0.0]]

    def test_the_median_of_the_largest_numbers_is_finite(self):
        table = [[1.7e308], [1.6e308], [NAN]]
        found = TableEncoder.fit(table).encode(table)
        assert found[2, 0].item() == pytest.approx(1.65e308)

    def test_unknown_and_missing_categories(self):
        known = pd.DataFrame({"a": ["u", "v"]})
        gaps = pd.DataFrame({"a": ["u", None, "v"]})
        for new in (pd.DataFrame({"a": ["w", None, "u"]}), pl.DataFrame({"a": ["w", None, "u"]})):
            assert TableEncoder.fit(known).encode(new).flatten().tolist() == [0.0, 0.0, 1.0]
            assert TableEncoder.fit(gaps).encode(new).flatten().tolist() == [0.0, 3.0, 1.0]

    @pytest.mark.parametrize("empty", [[None], [NAN], pd.array([None], dtype="Int64")])
    def test_a_column_of_gaps_has_no_kind(self, empty):
        encoder = TableEncoder.fit(pd.DataFrame({"a": ["u", None, "v"], "b": [1.0, NAN, 3.0]}))
        found = encoder.encode(pd.DataFrame({"a": empty, "b": pd.Series([None], dtype=object)}))
        assert found.tolist() == [[2.0, 1.0, 3.0]]

    def test_declared_categories_that_did_not_occur_are_unknown(self):
        frame = pd.DataFrame({"a": pd.Categorical(["u", "w"], categories=["w", "v", "u"])})
        encoder = TableEncoder.fit(frame)
        assert encoder.categories == [3]
        assert encoder.encode(pd.DataFrame({"a": ["u", "v", "w"]})).flatten().tolist() == [1, 0, 2]

    def test_numbers_as_categories_are_equal_whatever_their_type(self):
        # A gap makes floats of whole numbers.
        encoder = TableEncoder.fit(pd.DataFrame({"a": pd.Series([10, 2, None]).astype("category")}))
        whole = pd.DataFrame({"a": pd.Categorical([2, 10, 3])})
        assert encoder.encode(whole).flatten().tolist() == [1.0, 2.0, 0.0]

    def test_text_of_another_class_is_the_text(self):
        import enum

        class Colour(str, enum.Enum):  # noqa: UP042  # prints another text than it is
            RED = "red"

        frame = pd.DataFrame({"a": pd.Series([Colour.RED, "blue"], dtype=object)})
        encoder = TableEncoder.fit(frame)
        assert encoder.features[0].values == ("blue", "red")
        assert type(encoder.features[0].values[1]) is str

    def test_names_that_are_no_text_are_none(self):
        assert TableEncoder.fit(pd.DataFrame(ROWS)).feature_names is None
        assert TableEncoder.fit(pd.DataFrame(ROWS, columns=["a", "b"])).feature_names == ("a", "b")

    def test_an_array_fits_where_names_were_given_and_a_frame_where_none_were(self):
        frame = pd.DataFrame(ROWS, columns=["a", "b"])
        assert TableEncoder.fit(frame).encode(ROWS).tolist() == ROWS
        assert TableEncoder.fit(ROWS).encode(frame).tolist() == ROWS


NUMBER = st.floats(-1e300, 1e300) | st.integers(-(2**53), 2**53).map(float)
WORD = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)


@st.composite
def frames(draw):
    """Return pandas frames of numbers, booleans and words, some missing but never all."""
    rows = draw(st.integers(1, 8))

    def column(values, gap):
        some = st.lists(values | st.just(gap), min_size=rows, max_size=rows)
        return draw(some.filter(lambda cells: any(cell is not gap for cell in cells)))

    made = {}
    for i in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["number", "boolean", "word", "category"]))
        if kind == "number":
            made[f"c{i}"] = pd.Series(column(NUMBER, None), dtype="float64")
        elif kind == "boolean":
            made[f"c{i}"] = pd.array(column(st.booleans(), None), dtype="boolean")
        else:
            words = pd.Series(column(WORD, None), dtype="str" if kind == "word" else "category")
            made[f"c{i}"] = words
    return pd.DataFrame(made)


def by_hand(frame):
    """Return the code of every cell, from the definition, cell by cell."""
    numbers, gaps, codes = [], [], []
    for label in frame:
        cells = [None if pd.isna(cell) else cell for cell in frame[label].tolist()]
        held = sorted({cell for cell in cells if cell is not None})
        missing = [float(cell is None) for cell in cells]
        if isinstance(held[0], str):
            known = {cell: float(code) for code, cell in enumerate(held, 1)}
            codes.append([known.get(cell, len(held) + 1.0) for cell in cells])
            continue
        fill = np.median([float(cell) for cell in cells if cell is not None])
        numbers.append([float(fill if cell is None else cell) for cell in cells])
        gaps += [missing] if any(missing) else []
    return np.array([*numbers, *gaps, *codes]).T


class TestLaws:
    @given(frames())
    @settings(max_examples=150, deadline=None)
    def test_every_cell_is_as_defined(self, frame):
        encoder = TableEncoder.fit(frame)
        found = encoder.encode(frame)
        np.testing.assert_array_equal(found.numpy(), by_hand(frame))
        assert found.shape[1] == encoder.columns == encoder.numeric + len(encoder.categories)
        codes = found[:, encoder.numeric :]
        assert (codes < torch.tensor(encoder.categories)).all()

    @given(frames(), st.randoms(use_true_random=False))
    @settings(max_examples=60, deadline=None)
    def test_the_order_of_rows_is_kept_and_changes_nothing(self, frame, random):
        order = list(range(len(frame)))
        random.shuffle(order)
        shuffled = frame.iloc[order]
        encoder = TableEncoder.fit(frame)
        assert TableEncoder.fit(shuffled) == encoder
        assert torch.equal(encoder.encode(shuffled), encoder.encode(frame)[order])

    @given(frames())
    @settings(max_examples=60, deadline=None)
    def test_polars_and_pandas_agree(self, frame):
        twin = in_polars(frame)
        encoder = TableEncoder.fit(frame)
        assert TableEncoder.fit(twin) == encoder
        assert torch.equal(encoder.encode(twin), encoder.encode(frame))

    @given(frames())
    @settings(max_examples=60, deadline=None)
    def test_json_keeps_everything(self, frame):
        encoder = TableEncoder.fit(frame)
        made = TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict(), allow_nan=False)))
        assert made == encoder
        assert torch.equal(made.encode(frame), encoder.encode(frame))


def test_json_keeps_the_type_of_categories():
    frame, _ = mixed()
    frame["yes"] = pd.Categorical([True, False, True])
    frame["share"] = pd.Categorical([1.0, 0.5, 1.0])
    encoder = TableEncoder.fit(frame)
    made = TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    types = [[type(v) for v in f.values] for f in made.features if hasattr(f, "values")]
    assert types == [[str, str], [int, int], [bool, bool], [float, float]]
    assert torch.equal(made.encode(frame), encoder.encode(frame))


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        "encoder",
        {},
        {"features": [], "feature_names": None},
        {"features": [{"fill": None}]},
        {"features": [{"fill": None}], "feature_names": None, "more": 1},
        {"features": [{"fill": None}], "feature_names": "a"},
        {"features": [{"fill": None}], "feature_names": [1]},
        {"features": [{"fill": None}], "feature_names": ["a", "b"]},
        {"features": [{"fill": None}, {"fill": None}], "feature_names": ["a", "a"]},
        {"features": ["fill"], "feature_names": None},
        {"features": [{}], "feature_names": None},
        {"features": [{"fill": "1"}], "feature_names": None},
        {"features": [{"fill": True}], "feature_names": None},
        {"features": [{"fill": NAN}], "feature_names": None},
        {"features": [{"fill": INF}], "feature_names": None},
        {"features": [{"fill": 10**400}], "feature_names": None},
        {"features": [{"values": ["a"]}], "feature_names": None},
        {"features": [{"values": [], "missing": False}], "feature_names": None},
        {"features": [{"values": "ab", "missing": False}], "feature_names": None},
        {"features": [{"values": ["a"], "missing": 1}], "feature_names": None},
        {"features": [{"values": ["b", "a"], "missing": False}], "feature_names": None},
        {"features": [{"values": ["a", "a"], "missing": False}], "feature_names": None},
        {"features": [{"values": ["a", 1], "missing": False}], "feature_names": None},
        {"features": [{"values": [True, 2], "missing": False}], "feature_names": None},
        {"features": [{"values": [["a"]], "missing": False}], "feature_names": None},
        {"features": [{"values": [None], "missing": False}], "feature_names": None},
        {"features": [{"values": [NAN], "missing": False}], "feature_names": None},
    ],
)
def test_a_record_that_is_none_is_refused(record):
    with pytest.raises(ArgumentError, match=r"^encoder does not describe an encoder, but"):
        TableEncoder.from_dict(record)


SHAPE = "while a minimum of 1 is required. Pass some data."


@pytest.mark.parametrize(
    ("table", "error", "text"),
    [
        (np.zeros(3), ShapeError, f"X has shape [3], but [rows, columns] was expected. {RESHAPE}"),
        (
            pd.Series([1.0]),
            ShapeError,
            f"X has shape [1], but [rows, columns] was expected. {RESHAPE}",
        ),
        (
            np.zeros((2, 2, 2)),
            ShapeError,
            f"X has shape [2, 2, 2], but [rows, columns] was expected. {RESHAPE}",
        ),
        (np.zeros((0, 2)), ShapeError, f"X has 0 sample(s) (shape=(0, 2)) {SHAPE}"),
        (np.zeros((2, 0)), ShapeError, f"X has 0 feature(s) (shape=(2, 0)) {SHAPE}"),
        (pd.DataFrame({"a": []}), ShapeError, f"X has 0 sample(s) (shape=(0, 1)) {SHAPE}"),
        (pd.DataFrame(index=[1, 2]), ShapeError, f"X has 0 feature(s) (shape=(2, 0)) {SHAPE}"),
        (pl.DataFrame(), ShapeError, f"X has 0 sample(s) (shape=(0, 0)) {SHAPE}"),
        (
            [[1, 2], [3]],
            ShapeError,
            "X has rows of different lengths, but a table was expected. "
            "Give every row the same length.",
        ),
        ([["a", 1]], ArgumentError, f"X holds <U21, {REAL} {TEXT}"),
        (
            np.array([[1.0], ["1.0"]], dtype=object),
            ArgumentError,
            f"X holds str at [1, 0], {REAL} {AS_TEXT}",
        ),
        (np.array([[{}]]), ArgumentError, f"X holds dict at [0, 0], {REAL} {CELLS}"),
        ([[1j]], ArgumentError, f"X holds complex128, {REAL} {PARTS}"),
        (torch.ones(1, 1) * 1j, ArgumentError, f"X holds torch.complex64, {REAL} {PARTS}"),
        (
            np.array([["2020-01-01"]], dtype="datetime64[D]"),
            ArgumentError,
            f"X holds datetime64[D], {REAL} {DATES}",
        ),
        (
            [[datetime.date(2020, 1, 1)]],
            ArgumentError,
            f"X holds date at [0, 0], {REAL} {DATES}",
        ),
        (
            [[10**400]],
            NotFiniteError,
            "X holds a number that a double cannot hold, but finite numbers were expected. "
            "Scale the column, or pass it as text if it names something.",
        ),
        (
            [[1.0, 2.0], [NAN, -INF]],
            NotFiniteError,
            "X is -inf in row 1, column 1, but finite numbers were expected. Remove the row, or "
            "mark the entry as missing with NaN.",
        ),
        (
            pd.DataFrame({"a": ["u"], "b": [INF]}),
            NotFiniteError,
            "X is inf in row 0, column 'b', but finite numbers were expected. Remove the row, or "
            "mark the entry as missing with NaN.",
        ),
        (
            scipy.sparse.csr_array(np.eye(2)),
            ArgumentError,
            f"X holds csr_array, {DENSE} Convert it by .toarray().",
        ),
        (
            torch.eye(2).to_sparse(),
            ArgumentError,
            f"X holds torch.sparse_coo, {DENSE} Convert it by .to_dense().",
        ),
        (
            pd.DataFrame({"a": pd.arrays.SparseArray([0, 1])}),
            ArgumentError,
            f"X holds Sparse[int64, 0] in column 'a', {DENSE} Convert it by .sparse.to_dense().",
        ),
        (
            pd.DataFrame({"a": np.array(["2020"], dtype="datetime64[ns]")}),
            ArgumentError,
            f"X holds datetime64[ns] in column 'a', {KINDS} {DATES}",
        ),
        (
            pd.DataFrame({"a": pd.period_range("2020", periods=1, freq="D")}),
            ArgumentError,
            f"X holds period[D] in column 'a', {KINDS} {DATES}",
        ),
        (
            pd.DataFrame({"a": pd.Series([datetime.date(2020, 1, 1)], dtype=object)}),
            ArgumentError,
            f"X holds date in column 'a', {KINDS} {DATES}",
        ),
        (
            pd.DataFrame({"a": np.array([5], dtype="timedelta64[ns]")}),
            ArgumentError,
            f"X holds timedelta64[ns] in column 'a', {KINDS} {DATES}",
        ),
        (
            pl.DataFrame({"a": [datetime.date(2020, 1, 1)]}),
            ArgumentError,
            f"X holds Date in column 'a', {KINDS} {DATES}",
        ),
        (
            pd.DataFrame({"a": [1j]}),
            ArgumentError,
            f"X holds complex128 in column 'a', {KINDS} {PARTS}",
        ),
        (
            pd.DataFrame({"a": [[1], [2]]}),
            ArgumentError,
            f"X holds lists or the like in column 'a', {KINDS} {CELLS}",
        ),
        (
            pl.DataFrame({"a": [[1], [2]]}),
            ArgumentError,
            f"X holds List(Int64) in column 'a', {KINDS} {CELLS}",
        ),
        (
            pd.DataFrame({"a": pd.cut([1, 2, 3], 2)}),
            ArgumentError,
            f"X holds Interval in column 'a', {KINDS} {CELLS}",
        ),
        (
            pd.DataFrame({"a": pd.Series(["u", 1], dtype=object)}),
            ArgumentError,
            "X holds int and str in column 'a', but text alone, numbers alone or booleans alone "
            "were expected. Convert the column: .astype(str) makes categories, "
            'pandas.to_numeric(…, errors="coerce") numbers.',
        ),
        (
            pd.DataFrame({"a": [b"u", b"v"]}),
            KindError,
            f"X holds bytes in column 'a', {KINDS} {DECODE}",
        ),
        (
            pl.DataFrame({"a": [b"u", b"v"]}),
            KindError,
            f"X holds Binary in column 'a', {KINDS} {DECODE}",
        ),
        (
            pd.DataFrame({"a": [1, 2], "b": [None, None]}),
            ArgumentError,
            "X has no value at all in column 'b', but at least one is needed. Drop the column.",
        ),
        (
            [[NAN], [NAN]],
            ArgumentError,
            "X has no value at all in column 0, but at least one is needed. Drop the column.",
        ),
        (
            pd.DataFrame({"a": [f"name {i}" for i in range(51)]}),
            ArgumentError,
            "X has 51 categories in 51 rows of column 'a', but at most 1000 were expected, and "
            "fewer than rows. If it identifies the rows, drop the column; otherwise group the rare "
            "ones.",
        ),
        (
            pd.DataFrame({"a": [str(i) for i in range(1001)] * 2}),
            ArgumentError,
            "X has 1001 categories in 2002 rows of column 'a', but at most 1000 were expected, and "
            f"fewer than rows. {AS_TEXT}",
        ),
        (
            pl.DataFrame({"a": ["n/a", *(str(i / 7) for i in range(60))]}),
            ArgumentError,
            "X has 61 categories in 61 rows of column 'a', but at most 1000 were expected, and "
            f"fewer than rows. {AS_TEXT}",
        ),
        (
            pd.DataFrame({"a": pd.date_range("2020", periods=60).astype(str)}),
            ArgumentError,
            "X has 60 categories in 60 rows of column 'a', but at most 1000 were expected, and "
            f"fewer than rows. These are dates read as text. {DATES}",
        ),
        (np.array([["1.5"], ["2"]]), KindError, f"X holds <U3, {REAL} {AS_TEXT}"),
        (
            pd.DataFrame([[1, 2]], columns=["a", "a"]),
            ArgumentError,
            "X has 2 columns 'a', but distinct names were expected. Rename or drop them.",
        ),
        (
            pd.DataFrame([[1, 2]], columns=["a", 1]),
            ArgumentError,
            "X has columns named by str and by int, but text alone was expected. Rename them, such "
            "as by X.columns = X.columns.astype(str).",
        ),
        (
            pl.LazyFrame({"a": [1]}),
            ArgumentError,
            "X is a polars LazyFrame, but an array, a DataFrame of pandas or polars, or a pyarrow "
            "Table was expected. Convert it, or collect it if lazy.",
        ),
    ],
)
def test_what_cannot_be_learnt_is_named(table, error, text):
    with pytest.raises(error) as raised:
        TableEncoder.fit(table, "X")
    assert isinstance(raised.value, error)
    assert str(raised.value) == text


def test_as_many_categories_as_rows_are_taken_where_rows_are_few():
    frame = pd.DataFrame({"a": [str(i) for i in range(50)]})
    assert TableEncoder.fit(frame).categories == [51]
    frame = pd.DataFrame({"a": [str(i) for i in range(1000)] * 2})
    assert TableEncoder.fit(frame).categories == [1001]


FITTED = pd.DataFrame({"a": [1.0, 2.0], "b": ["u", "v"], "c": pd.Categorical([1, 2])})


@pytest.mark.parametrize(
    ("table", "error", "text"),
    [
        (
            [[1.0, 2.0]],
            ShapeError,
            "X has 2 columns, but 3 were fitted (a, b, c). Pass those columns, or fit again.",
        ),
        (
            FITTED[["b", "a", "c"]],
            DimensionError,
            "X has b as column 0, but a was fitted there. Pass them in the order a, b, c, or fit "
            "again.",
        ),
        (
            FITTED.rename(columns={"b": "d"}),
            DimensionError,
            "X lacks the columns b and has the unknown columns d, but the columns that were fitted "
            "are needed. Pass them in the order a, b, c, or fit again.",
        ),
        (
            FITTED.assign(d=1),
            DimensionError,
            "X has the unknown columns d, but the columns that were fitted are needed. Pass them "
            "in the order a, b, c, or fit again.",
        ),
        (
            FITTED.assign(a=[3.0, NAN]),
            NotFiniteError,
            "X lacks a number in row 1, column 'a', but none was missing there when fitted, so "
            "what it means was never learned. Fill it, drop the row, or fit on a table in which "
            "some are missing.",
        ),
        (
            FITTED.assign(a=["1.0", "2.0"]),
            ArgumentError,
            "X holds categories (text) in column 'a', but numbers were fitted. Pass numbers there, "
            "such as by .astype(float), or fit again.",
        ),
        (
            FITTED.assign(a=pd.Categorical([1.0, 2.0])),
            ArgumentError,
            "X holds categories (numbers) in column 'a', but numbers were fitted. Pass numbers "
            "there, such as by .astype(float), or fit again.",
        ),
        (
            FITTED.assign(b=[1, 2]),
            ArgumentError,
            "X holds numbers in column 'b', but categories (text) were fitted. Pass the same kind, "
            'such as by .astype("category") for numbers, or fit again.',
        ),
        (
            FITTED.assign(c=["1", "2"]),
            ArgumentError,
            "X holds text in column 'c', but categories (numbers) were fitted. Pass the same kind, "
            'such as by .astype("category") for numbers, or fit again.',
        ),
        (
            FITTED.assign(c=pd.Categorical([True, False])),
            ArgumentError,
            "X holds booleans in column 'c', but categories (numbers) were fitted. Pass the same "
            'kind, such as by .astype("category") for numbers, or fit again.',
        ),
    ],
)
def test_what_does_not_fit_is_named(table, error, text):
    with pytest.raises(error) as raised:
        TableEncoder.fit(FITTED).encode(table, "X")
    assert isinstance(raised.value, error)
    assert str(raised.value) == text


def test_long_lists_of_names_are_cut():
    names = [f"c{i}" for i in range(30)]
    encoder = TableEncoder.fit(pd.DataFrame([range(30)], columns=names))
    with pytest.raises(DimensionError, match="order c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, …, or"):
        encoder.encode(pd.DataFrame([range(30)], columns=names[::-1]))


def test_an_array_of_doubles_is_not_copied():
    table = np.array(ROWS)
    assert TableEncoder.fit(table).encode(table).data_ptr() == table.ctypes.data
