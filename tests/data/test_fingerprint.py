"""Different tables have different digests, and the same table has one, wherever it came from."""

import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from condens.data.fingerprint import fingerprint
from condens.data.readers import read_table

# No two of these are alike: bytes that run together, kinds that print alike, and order.
DIFFERENT = {
    "one text": {"x": ["a", "b"]},
    "joined by a null character": {"x": ["a\0b", ""]},
    "a null character more": {"x": ["a\0", "b"]},
    "text moved to the next row": {"x": ["", "ab"]},
    "a missing cell": {"x": ["a", None]},
    "the mark of a missing cell": {"x": ["a", "\1"]},
    "an empty cell": {"x": ["a", ""]},
    "text of None": {"x": ["a", "None"]},
    "another order": {"x": ["b", "a"]},
    "another name": {"y": ["a", "b"]},
    "a name that holds the values": {"xa": ["", "b"]},
    "two columns": {"x": ["a"], "y": ["b"]},
    "columns in another order": {"y": ["b"], "x": ["a"]},
    "columns and cells swapped": {"x": ["b"], "y": ["a"]},
    "numbers": {"x": [1.0, 0.0]},
    "text of numbers": {"x": ["1.0", "0.0"]},
    "text of whole numbers": {"x": ["1", "0"]},
    "booleans": {"x": [True, False]},
    "text of booleans": {"x": ["True", "False"]},
    "categories of numbers": {"x": pa.array([1, 0]).dictionary_encode()},
    "categories of other numbers": {"x": pa.array([0, 1]).dictionary_encode()},
    "categories of floats": {"x": pa.array([1.5, 0.5]).dictionary_encode()},
    "a missing number": {"x": [1.0, None]},
    "no numbers": {"x": pa.array([None, None], pa.float64())},
    "no rows": {"x": pa.array([], pa.float64())},
    "one row more": {"x": [1.0, 0.0, 0.0]},
    "the bytes of doubles": {"x": ["\0\0\0\0\0\0\u00f0?", "\0" * 8]},
    "the next double": {"x": [1.0000000000000002, 0.0]},
}


def test_different_tables_differ():
    alike = {}
    for name, columns in DIFFERENT.items():
        alike.setdefault(fingerprint(pa.table(columns)), []).append(name)
    assert [names for names in alike.values() if len(names) > 1] == []


def test_where_a_table_ends_counts():
    a, b = pa.table({"a": [1.0]}), pa.table({"b": ["x"]})
    both = pa.table({"a": [1.0], "b": ["x"]})
    found = {fingerprint(*tables) for tables in ((a, b), (b, a), (both,), (a,), (a, b, a), ())}
    assert len(found) == 6


@pytest.mark.parametrize(
    "alike",
    [
        [pa.array([1, 2, None], kind) for kind in (pa.int8(), pa.int64(), pa.float32())],
        [pa.array(["a", None, "b"], kind) for kind in (pa.string(), pa.large_string())]
        + [pa.array(["a", None, "b"], pa.string_view())],
        [
            pa.DictionaryArray.from_arrays(pa.array([0, None, 1]), ["a", "b"]),
            pa.DictionaryArray.from_arrays(pa.array([1, None, 2], pa.int8()), ["z", "a", "b"]),
            pa.array(["a", None, "b"]),
        ],
        [pa.array([1.0, None]), pa.array([1.0, float("nan")])],
        [pa.array([None, None], kind) for kind in (pa.null(), pa.bool_(), pa.string())],
        [pa.chunked_array([["a"], ["b", "a"]]), pa.chunked_array([["a", "b", "a"]])],
        [pa.chunked_array([[1.0], [2.0]]), pa.chunked_array([[1, 2]])],
    ],
)
def test_values_count_and_not_how_they_are_stored(alike):
    assert len({fingerprint(pa.table({"x": column})) for column in alike}) == 1


def test_files_of_the_same_table_agree(tmp_path):
    table = pd.DataFrame(
        {
            "rooms": [3, 4, 5],
            "size": [70.25, None, 1e-9],
            "town": ["Ulm", "Aix \N{SNOWMAN}", None],
            "new": [True, False, True],
        }
    )
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_csv(tmp_path / "t.tsv", index=False, sep="\t", decimal=",")
    table.to_parquet(tmp_path / "t.parquet")
    table.to_json(tmp_path / "t.jsonl", orient="records", lines=True, double_precision=15)
    coded = pa.Table.from_pandas(table.astype({"town": "category"}))
    pa.parquet.write_table(coded, tmp_path / "coded.parquet", row_group_size=2)
    pa.feather.write_feather(coded, tmp_path / "coded.feather")
    found = {fingerprint(read_table(path)) for path in tmp_path.iterdir()}
    assert len(found) == 1
