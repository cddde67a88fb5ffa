"""Tables in files: what is recognised, what comes out, what is refused and in which words."""

import codecs
import csv
import datetime
import gzip
import io
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import condens.data
from condens.data import TableEncoder, read_batches, read_table, text
from condens.errors import (
    ArgumentError,
    KindError,
    TableFileError,
    TableFileNotFoundError,
)

TABLE = pa.table({"size": [1.5, None, -2.0], "town": ["Ulm", "Zürich", None], "n": [1, 2, 3]})
CELL = "Correct the cell, empty it if the value is missing, or leave the column out."
DATES = (
    'Convert them to numbers first, such as the year, the month or seconds, pass dates="seconds", '
    "or leave the column out."
)
LINE = "Correct that line (cells that hold the delimiter are quoted), or pass the delimiter."
KNOWN = "but CSV, TSV, Parquet, Arrow or JSON lines was expected."
SAVE = "Save the table in one of these formats; gzip is the only compression read."
NO_TEXT = "Check that it is a table; of UTF-16 without a mark at its beginning, pass the encoding."
WRITTEN = "Check how the file was written."
COMPLETE = "Check that the file is complete, and its format."
LIST = "but a list of names was expected. Pass a list, of a single name too."
SINGLE = (
    "but a single character was expected that is no letter, digit, quote or line end. Leave it out "
    "to recognise it."
)
OBJECTS = (
    "but an object of JSON in every line was expected, with values of one kind in each column. "
    "Correct that line, or write one object a line."
)


def as_csv(delimiter=",", decimal=".", end="\n"):
    rows = [["size", "town", "n"], ["1.5", "Ulm", "1"], ["", "Zürich", "2"], ["-2.0", "NA", "3"]]
    rows = [[cell.replace(".", decimal) for cell in row] for row in rows]
    return end.join(map(delimiter.join, rows)) + end


def as_stream(table):
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    return sink.getvalue()


def as_feather(table):
    sink = io.BytesIO()
    pa.feather.write_feather(table, sink)
    return sink.getvalue()


def as_parquet(table):
    sink = io.BytesIO()
    pa.parquet.write_table(table, sink)
    return sink.getvalue()


JSON = (
    '{"size": 1.5, "town": "Ulm", "n": 1}\n\n{"town": "Zürich", "n": 2}\n'
    '{"size": -2, "town": null, "n": 3}\n'
)
SAME = {
    "comma.csv": as_csv().encode(),
    "semicolon.csv": as_csv(";", ",").encode(),
    "point.csv": as_csv(";").encode(),
    "tab.tsv": as_csv("\t", ",").encode(),
    "comma.tsv": as_csv().encode(),
    "pipe.txt": as_csv("|").encode(),
    "windows.csv": as_csv(end="\r\n").encode("cp1252"),
    "mac.csv": as_csv(end="\r").encode(),
    "open.csv": as_csv().encode().rstrip(),
    "bom.csv": codecs.BOM_UTF8 + as_csv().encode(),
    "utf16.csv": as_csv(";", ",").encode("utf-16"),
    "utf16be.csv": codecs.BOM_UTF16_BE + as_csv().encode("utf-16-be"),
    "utf32.csv": as_csv().encode("utf-32"),
    "blanks.csv": as_csv(" , ").encode(),
    "lines.csv": ("\n\n" + as_csv(end="\n\n")).encode(),
    "quoted.csv": b'"size","town","n"\n"1.5","Ulm","1"\n,"Z\xc3\xbcrich",2\n-2.0,,"3"\n',
    "text.csv.gz": gzip.compress(as_csv().encode()),
    "hidden.csv": gzip.compress(as_csv("\t").encode()),
    "nothing": as_csv().encode(),
    "table.parquet": as_parquet(TABLE),
    "parquet.csv": as_parquet(TABLE),
    "zipped.parquet": gzip.compress(as_parquet(TABLE)),
    "table.feather": as_feather(TABLE),
    "table.arrow": as_stream(TABLE),
    "table.jsonl": JSON.encode(),
    "table.ndjson": codecs.BOM_UTF8 + JSON.encode(),
    "table.json": JSON.encode("utf-16"),
}


@pytest.mark.parametrize("name", SAME)
def test_every_format_gives_the_same_table(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(SAME[name])
    assert read_table(path).to_pydict() == TABLE.to_pydict()
    assert read_table(str(path), columns=["n", "size"]).to_pydict() == {
        "n": [1, 2, 3],
        "size": [1.5, None, -2.0],
    }
    assert read_table(io.BytesIO(SAME[name])).to_pydict() == TABLE.to_pydict()
    found = pa.concat_tables(read_batches(path, numeric=["size", "n"]))
    assert found.to_pydict() == TABLE.to_pydict()
    assert found.schema.types == [pa.float64(), pa.string(), pa.float64()]


@pytest.mark.parametrize("name", ["comma.csv", "text.csv.gz", "table.parquet", "table.arrow"])
def test_standard_input_is_read(name, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SAME[name])))
    assert read_table("-").to_pydict() == TABLE.to_pydict()
    with pytest.raises(TableFileError, match="standard input is empty"):
        read_table("-")


def test_text_becomes_what_it_holds(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "whole,real,truth,words,mixed,none,big,zero,code\n"
        "1,1,true,a,1,,9007199254740993,007,0x1\n"
        "-2, 2.5e3 ,FALSE,b,x,NA,1,1,0x2\n"
        "+3,null,None,true,3,,2,2,1\n"
    )
    table = read_table(path)
    assert table.to_pydict() == {
        "whole": [1.0, -2.0, 3.0],
        "real": [1.0, 2500.0, None],
        "truth": [True, False, None],
        "words": ["a", "b", "true"],
        "mixed": ["1", "x", "3"],
        "none": [None, None, None],
        "big": [9007199254740993, 1, 2],
        "zero": [7, 1, 2],
        "code": ["0x1", "0x2", "1"],
    }
    chosen = read_table(path, columns=["truth", "whole"], numeric=["truth", "whole"])
    assert chosen.schema.types == [pa.float64(), pa.float64()]
    assert chosen["truth"].to_pylist() == [1.0, 0.0, None]


def test_a_table_that_was_read_is_that_of_pandas(tmp_path):
    frame = pd.DataFrame({"a": [1, 2, 3], "b": ["u", None, "v"], "c": [0.1, None, 1e300]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert TableEncoder.fit(read_table(tmp_path / "t.csv")) == TableEncoder.fit(frame)


DAY = 86400.0


@pytest.mark.parametrize(
    ("cells", "seconds"),
    [
        (["1970-01-02", "1969-12-31"], [DAY, -DAY]),
        (["1970-01-01T00:00:01.5", "1970-01-02 00:00"], [1.5, DAY]),
        (["1970-01-01T01:00:00+01:00", "1970-01-02T00:00Z"], [0.0, DAY]),
        (["9:30", "23:59:59.25"], [34200.0, 86399.25]),
        (["2500-01-01", ""], [16725225600.0, None]),
    ],
)
def test_dates_become_seconds_if_asked_to(cells, seconds, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("when,n\n" + "".join(f"{cell},1\n" for cell in cells))
    assert read_table(path, dates="seconds")["when"].to_pylist() == seconds
    (batch,) = read_batches(path, dates="seconds", numeric=["when"])
    assert batch["when"].to_pylist() == seconds
    (batch,) = read_batches(path)
    assert batch["when"].to_pylist() == [cell or None for cell in cells]
    with pytest.raises(TableFileError, match="holds dates or times in column 'when'"):
        read_table(path)


@pytest.mark.parametrize(
    ("column", "seconds"),
    [
        (pa.array([DAY * 1000], pa.timestamp("ms")), DAY),
        (pa.array([1_500_000_000], pa.timestamp("ns", "Europe/Berlin")), 1.5),
        (pa.array([datetime.date(1970, 1, 2)]), DAY),
        (pa.array([datetime.time(0, 1)]), 60.0),
        (pa.array([90], pa.duration("s")), 90.0),
    ],
)
def test_dates_of_typed_files(column, seconds):
    data = as_stream(pa.table({"when": column}))
    for numeric in ([], ["when"]):
        found = read_table(io.BytesIO(data), dates="seconds", numeric=numeric)
        assert found["when"].to_pylist() == [seconds]
        with pytest.raises(TableFileError, match="holds dates or times in column 'when'"):
            read_table(io.BytesIO(data), numeric=numeric)
    (batch,) = read_batches(io.BytesIO(data))
    assert batch["when"].type == column.type


def test_typed_columns_as_numbers():
    table = pa.table(
        {
            "text": ["1.5", " NA "],
            "codes": pa.array([5, None]).dictionary_encode(),
            "words": pa.array(["7", "8"]).dictionary_encode(),
            "truth": [True, None],
            "price": pa.array([1, 2]).cast(pa.decimal128(21, 2)),
            "none": pa.nulls(2),
        }
    )
    found = read_table(io.BytesIO(as_stream(table)), numeric=table.column_names)
    assert found.schema.types == [pa.float64()] * 6
    assert [column.to_pylist() for column in found.columns] == [
        [1.5, None],
        [5.0, None],
        [7.0, 8.0],
        [1.0, None],
        [1.0, 2.0],
        [None, None],
    ]
    assert read_table(io.BytesIO(as_stream(table))).schema == table.schema


# Name of the file, its bytes, arguments, and the message after the name.
BROKEN = {
    "empty": ("t.csv", b"", {}, f"is empty, but a table was expected. {WRITTEN}"),
    "blank": ("t.csv", b" \n\r\n", {}, f"is empty, but a table was expected. {WRITTEN}"),
    "no objects": ("t.jsonl", b"\n", {}, "has no rows, but at least one was expected below the "
                   f"names of the columns. {WRITTEN}"),
    "only a mark": ("t.csv", codecs.BOM_UTF8, {}, f"is empty, but a table was expected. {WRITTEN}"),
    "header": ("t.csv", b"a,b\n", {}, "has no rows, but at least one was expected below the names "
               f"of the columns. {WRITTEN}"),
    "no header": ("t.csv", b"1.5,2\n3,4\n", {}, "has numbers alone in line 1, but the names of the "
                  "columns were expected in the first row. Add a header."),
    "no name": ("t.csv", b",b\n1,2\n", {}, "has no name for column 1, but every column needs one "
                "in the header. Name it, or say which columns to read (pandas writes an index "
                "without a name: to_csv(index=False) leaves it out)."),
    "twins": ("t.csv", b"a, a\n1,2\n", {}, "has 2 columns 'a', but distinct names were expected. "
              "Rename or remove one."),
    "short": ("t.csv", b"a,b\n1,2\n\n3\n", {}, "has 1 cell(s) in line 4, but its header has 2, "
              f"separated by ','. {LINE}"),
    "long": ("t.csv", b'a;b\n"1\n2";2\n3;4;5\n', {}, "has 3 cell(s) in line 4, but its header has "
             f"2, separated by ';'. {LINE}"),
    "stray": ("t.csv", b"price,b\n" + b"1,2\n" * 15 + b"abc,2\n", {"numeric": ["price"]},
              f"holds 'abc' in line 17, column 'price', but numbers were expected. {CELL}"),
    "after lines": ("t.csv", b'a,b\n1,"x\r\ny"\n\nz,1\n', {"numeric": ["a"]},
                    f"holds 'z' in line 5, column 'a', but numbers were expected. {CELL}"),
    "two points": ("t.csv", b"a;b\n1.234,5;2,5\n", {"numeric": ["a"]},
                   f"holds '1.234,5' in line 2, column 'a', but numbers were expected. {CELL}"),
    "two decimals": ("t.csv", b"a;b\n1,5;2.5\n", {}, "holds numbers with a comma (1,5) and with a "
                     'point (2.5), but one decimal separator was expected. Pass decimal="," or '
                     'decimal=".": cells with the other one are text.'),
    "decimal": ("t.csv", b'a,b\n"1,5",2.5\n', {"numeric": ["a"]}, "holds '1,5' in line 2, column "
                "'a', but numbers were expected. Pass decimal=',' if that is the decimal "
                "separator."),
    "infinite": ("t.csv", b"a\n1\n-inf\n", {"numeric": ["a"]}, "is -inf in line 3, column 'a', but "
                 "finite numbers were expected. Correct the cell, or empty it if the value is "
                 "missing."),
    "date": ("t.csv", b"a\n2020-01-01\n", {"numeric": ["a"]}, "holds '2020-01-01' in line 2, "
             f"column 'a', but numbers were expected. {DATES}"),
    "dates": ("t.csv", b"a\n2020-01-01\n", {"columns": ["a"]}, "holds dates or times in column "
              f"'a', but numbers or categories were expected. {DATES}"),
    "dates and numbers": ("t.csv", b"a\n2020-01-01\n7\n", {"numeric": ["a"], "dates": "seconds"},
                          "holds '7' in line 3, column 'a', but dates of one form were expected. "
                          f"{CELL}"),
    "lacks": ("t.csv", b"price,b\n1,2\n", {"columns": ["prize"]}, "lacks the column 'prize', but "
              "its columns are 'price', 'b'. Did you mean 'price'?"),
    "lacks a number": ("t.parquet", as_parquet(TABLE), {"numeric": ["x"]}, "lacks the column 'x', "
                       "but its columns are 'size', 'town', 'n'. Check the names, and the "
                       "delimiter."),
    "quote": ("t.csv", b'a,b\n1,2\n3,"4\n5,6\n', {}, "has a quote in line 3 that does not end, but "
              "rows on lines of their own were expected. Close the quote."),
    "long quote": ("t.csv", b'a,b\n1,"2\n' + b"3,4\n" * 50_000, {}, "has an endless cell in line "
                   "32770, but cells of at most 131072 characters, and a line for every row, were "
                   "expected. Close the quote before it."),
    "return": ("t.csv", b'a,b\n1\r,"2"\n', {}, "has a carriage return in line 2, but cells of at "
               "most 131072 characters, and a line for every row, were expected. Quote the cell, "
               "or remove it."),
    "rubbish": ("t.csv", b"a,b\n" + bytes(range(256)), {}, "holds bytes in line 2 that are no "
                f"text, {KNOWN} {NO_TEXT}"),
    "controls": ("t.csv", b"a,b\n\x02\xff\xfe\xfa,2\n", {}, "holds bytes in line 2 that are no "
                 f"text, {KNOWN} {NO_TEXT}"),
    "no mark": ("t.csv", "a,b\n1,2\n".encode("utf-16-le"), {}, "holds bytes in line 1 that are no "
                f"text, {KNOWN} {NO_TEXT}"),
    "two encodings": ("t.csv", "a,b\n1,ü\n".encode() + b"2,\xfc\n", {}, "is UTF-8 up to line 3, "
                      "which is not, but one encoding was expected. Correct that line, or pass the "
                      "encoding."),
    "encoding": ("t.csv", b"a\n\xfc\n", {"encoding": "utf-8"}, "is not text in the encoding utf-8, "
                 "but every byte of it must be. Pass the encoding that it was written in."),
    "half a character": ("t.csv", "a\n1\n".encode("utf-16") + b"x", {}, "is not text in the "
                         "encoding utf-16-le, but every byte of it must be. Pass the encoding that "
                         "it was written in."),
    "workbook": ("t.xlsx", b"PK\x03\x04", {}, "is an Excel workbook or a ZIP archive, "
                 f"{KNOWN} {SAVE}"),
    "web page": ("t.csv", b"\n<!DOCTYPE html>", {}, f"is a web page, {KNOWN} {SAVE}"),
    "cut gzip": ("t.csv.gz", gzip.compress(b"a,b\n1,2\n")[:-9], {}, "cannot be read (Compressed "
                 "file ended before the end-of-stream marker was reached), but a table was "
                 f"expected. {COMPLETE}"),
    "cut parquet": ("t.parquet", as_parquet(TABLE)[:-9], {}, "cannot be read (Parquet magic bytes "
                    "not found in footer. Either the file is corrupted or this is not a parquet "
                    f"file), but a Parquet file was expected. {COMPLETE}"),
    "cut feather": ("t.feather", as_feather(TABLE)[:-9], {}, "cannot be read (Not an Arrow file), "
                    f"but an Arrow or Feather file was expected. {COMPLETE}"),
    "text in parquet": ("t.parquet", as_parquet(TABLE), {"numeric": ["town"]}, "holds 'Ulm' in row "
                        f"0, column 'town', but numbers were expected. {CELL}"),
    "nested": ("t.parquet", as_parquet(pa.table({"a": [[1]]})), {"numeric": ["a"]}, "holds "
               "list<element: int64> in column 'a', but numbers or categories were expected. "
               "Convert it to columns of numbers or text, or leave the column out."),
    "no JSON": ("t.jsonl", b'{"a": 1}\n\nx\n', {}, "cannot be read in line 3 (no object "
                f"begins there), {OBJECTS}"),
    "null": ("t.jsonl", b'null\n{"a": 1}\n', {}, "cannot be read in line 1 (no object begins "
             f"there), {OBJECTS}"),
    "cut JSON": ("t.jsonl", b'{"a": 1}\n{"a": 2\n', {}, "cannot be read in line 2 (Missing a comma "
                 f"or '}}' after an object member), {OBJECTS}"),
    "kinds": ("t.jsonl", b'{"a": 1}\n{"a": "x"}\n', {}, "cannot be read in line 2 (Column(/a) "
              f"changed from number to string), {OBJECTS}"),
    "array": ("t.json", b'[{"a": 1}]\n', {}, "cannot be read in line 1 (no object begins "
              f"there), {OBJECTS}"),
    "JSON text": ("t.jsonl", b'{"a": "1"}\n{"a": "x"}\n', {"numeric": ["a"]}, "holds 'x' in line "
                  f"2, column 'a', but numbers were expected. {CELL}"),
    "terminal": ("t.csv", b"\x1b[31m,b\n\x1b]0;\x07,2\n", {"numeric": ["\x1b[31m"]}, "holds "
                 r"'\x1b]0;\x07' in line 2, column '\x1b[31m', but numbers were expected. " + CELL),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_read_is_named(case, tmp_path, monkeypatch):
    name, data, arguments, message = BROKEN[case]
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(data)
    readers = (
        [read_table] if case == "dates" else [read_table, lambda *a, **k: [*read_batches(*a, **k)]]
    )
    for read in readers:
        with pytest.raises(TableFileError) as raised:
            read(name, **arguments)
        assert str(raised.value) == f"{name} {message}"
        assert str(raised.value).isprintable()


def test_places_that_hold_no_file_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    (tmp_path / "link.csv").symlink_to("nowhere")
    regular = (
        "but a regular file was expected. Name a file, or pass - and pipe the table into standard "
        "input."
    )
    absent = "does not exist, but a file was expected. Check the path."
    for path, message in {
        ".": f"is a directory, {regular}",
        "pipe": f"is a device, a pipe or a socket, {regular}",
        os.devnull: f"is a device, a pipe or a socket, {regular}",
        "no.csv": absent,
        "link.csv": absent,
        "\x1b.csv": absent,
    }.items():
        with pytest.raises(TableFileError) as raised:
            read_table(path)
        assert str(raised.value) == f"{path} {message}".replace("\x1b", "\ufffd")
        assert isinstance(raised.value, FileNotFoundError) == (message == absent)
        assert isinstance(raised.value, TableFileNotFoundError) == (message == absent)


def test_permission_is_needed(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("condens.data.sources.open_regular", refuse)  # root may read everything
    with pytest.raises(TableFileError, match=r"t.csv may not be read, .* Change its permissions"):
        read_table(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"columns": "a"}, KindError, f"columns is 'a', {LIST}"),
        ({"numeric": 3}, KindError, f"numeric is 3, {LIST}"),
        ({"columns": []}, ArgumentError, "columns is [], but at least one name was expected. Leave "
         "it out for all columns."),
        ({"columns": ["a", "a"]}, ArgumentError, "columns is ['a', 'a'], but distinct names were "
         "expected. Name each column once."),
        ({"columns": ["a"], "numeric": ["b"]}, ArgumentError, "numeric is ['b'], but names among "
         "columns were expected. Name them in both."),
        ({"format": "xls"}, ArgumentError, "format is 'xls', but one of ('csv', 'tsv', 'parquet', "
         "'arrow', 'jsonl', None) was expected. Leave it out to recognise the format."),
        ({"decimal": ";"}, ArgumentError, "decimal is ';', but one of ('.', ',', None) was "
         "expected. Leave it out to recognise it."),
        ({"delimiter": "ab"}, ArgumentError, f"delimiter is 'ab', {SINGLE}"),
        ({"delimiter": "\n"}, ArgumentError, rf"delimiter is '\n', {SINGLE}"),
        ({"encoding": "rot13"}, ArgumentError, "encoding is 'rot13', but an encoding that Python "
         "knows was expected. Pass one such as utf-8, utf-16 or cp1252."),
        ({"dates": "days"}, ArgumentError, "dates is 'days', but one of ('refuse', 'seconds') was "
         'expected. Pass dates="seconds" for numbers.'),
        ({"source": 5}, KindError, "source is 5, but a path was expected. Pass a path, a stream of "
         "bytes, or - for standard input."),
        ({"source": io.StringIO("a")}, KindError, "source is a stream of text, but a stream of "
         'bytes was expected. Open the file with mode="rb"; of sys.stdin, pass sys.stdin.buffer.'),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(arguments, error, message):
    for read in (read_table, read_batches):
        with pytest.raises(error) as raised:
            read(**{"source": io.BytesIO(b"a\n1\n"), **arguments})
        assert str(raised.value) == message


@pytest.mark.parametrize(
    ("data", "table"),
    [
        ("x, m;y, m\n1,5;2,5\n", {"x, m": [1.5], "y, m": [2.5]}),
        ("a,b|c\n1,u|v\n2,w|x\n", {"a": [1, 2], "b|c": ["u|v", "w|x"]}),
        ("a;b\n1;x,y\n2;z\n", {"a": [1, 2], "b": ["x,y", "z"]}),
        ("a\n1\n", {"a": [1]}),
        ("a,b\n1,2", {"a": [1], "b": [2]}),
        ("a;b\n1,5;2", {"a": [1.5], "b": [2]}),
        ("a;b\n", None),
    ],
)
def test_the_delimiter_is_the_one_that_fits_best(data, table):
    if table is None:
        with pytest.raises(
            TableFileError, match="lacks the column 'x', but its columns are 'a', 'b'"
        ):
            read_table(io.BytesIO(data.encode()), columns=["x"])
    else:
        assert read_table(io.BytesIO(data.encode())).to_pydict() == table


def test_what_is_said_is_not_guessed(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('a,b\n"1,5",x;y\n')
    assert read_table(path, decimal=",").to_pydict() == {"a": [1.5], "b": ["x;y"]}
    path.write_text("a;b\n1,5;2.5\n")
    assert read_table(path, decimal=",").to_pydict() == {"a": [1.5], "b": ["2.5"]}
    path.write_text("a:b\n1:2\n")
    assert read_table(path, delimiter=":").to_pydict() == {"a": [1], "b": [2]}
    path.write_bytes("ж\nя\n".encode("koi8-r"))
    assert read_table(path, encoding="koi8-r").to_pydict() == {"ж": ["я"]}
    path.write_text('{"a\n1\n')
    assert read_table(path, format="csv", delimiter=";").column_names == ['{"a']


NUMBERS = st.none() | st.floats(allow_nan=False, allow_infinity=False)
WORDS = st.text(
    st.characters(codec="cp1252", exclude_categories=["Cc"]), max_size=6
) | st.sampled_from(['a "b"', "x;y,z|\tw", "two\nlines", "cr\r\nlf"])
MISSING = {
    "NA",
    "N/A",
    "n/a",
    "#N/A",
    "#NA",
    "<NA>",
    "NaN",
    "nan",
    "-NaN",
    "-nan",
    "NULL",
    "null",
    "None",
    "",
}


@given(
    st.lists(st.tuples(NUMBERS, WORDS, NUMBERS), min_size=1, max_size=8),
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from([".", ","]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252"]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    st.sampled_from([text.BLOCK_BYTES, 64]),
)
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read(rows, delimiter, decimal, encoding, end, quoting, block):
    written = io.StringIO(newline="")
    writer = csv.writer(written, delimiter=delimiter, lineterminator=end, quoting=quoting)
    writer.writerow(["first", "wörd", "last"])
    for first, word, last in rows:
        cells = ["" if cell is None else repr(cell).replace(".", decimal) for cell in (first, last)]
        writer.writerow([cells[0], word, cells[1]])
    data = written.getvalue().encode(encoding)
    numeric = ["first", "last"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "BLOCK_BYTES", block)
        batches = list(
            read_batches(
                io.BytesIO(data),
                numeric=numeric,
                delimiter=delimiter,
                decimal=decimal,
                encoding=encoding if encoding == "cp1252" else None,
            )
        )
    found = pa.concat_tables(batches).to_pydict()
    words = [word.strip() for _, word, _ in rows]
    assert found["first"] == [first for first, _, _ in rows]
    assert found["wörd"] == [None if word in MISSING else word for word in words]
    assert found["last"] == [last for _, _, last in rows]


@given(
    st.lists(st.tuples(*[st.floats(-1e6, 1e6)] * 3), min_size=2, max_size=6),
    st.sampled_from([(",", "."), (";", "."), (";", ","), ("\t", "."), ("\t", ","), ("|", ".")]),
)
@settings(max_examples=40, deadline=None)
def test_layouts_are_recognised(rows, layout):
    delimiter, decimal = layout
    lines = [delimiter.join(f"{cell:.3f}".replace(".", decimal) for cell in row) for row in rows]
    data = "\n".join([delimiter.join("abc"), *lines]).encode()
    found = np.array(read_table(io.BytesIO(data)).columns)
    np.testing.assert_array_equal(found.T, [[round(cell, 3) for cell in row] for row in rows])


@given(st.binary(max_size=200), st.sampled_from(["csv", "tsv", "jsonl", "arrow", "parquet", None]))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_read_or_refused(data, kind):
    for read in (read_table, read_batches):
        with suppress(TableFileError):
            found = read(io.BytesIO(data), format=kind)
            assert all(len(part) for part in ([found] if read is read_table else found))


LARGER = pa.table(
    {
        "x": [i / 7 for i in range(40)],
        "y": [f"town {i}" for i in range(40)],
        "z": [*range(40)],
    }
)
FORMAT = {as_parquet: "parquet", as_feather: "arrow", as_stream: "arrow"}


@pytest.mark.parametrize("write", FORMAT)
def test_damaged_files_are_read_or_refused(write):
    data, random = write(LARGER), np.random.default_rng(0)
    refused = 0
    for _ in range(150):
        broken = bytearray(data)
        for place in random.integers(len(data), size=3):
            broken[place] = random.integers(256)
        try:
            found = read_table(io.BytesIO(broken), columns=[*"xyz"], numeric=["x"])
        except TableFileError as error:
            refused += 1
            message = str(error)
            assert message.startswith("stream ")
            assert message.isprintable()
            continue
        # What is damaged unseen is a table nevertheless, of what was asked for.
        found.validate(full=True)
        assert (found.column_names, len(found) > 0) == ([*"xyz"], True)
        assert found.schema.field("x").type == pa.float64()
        assert found.to_pydict().keys() == {*"xyz"}
    # Most damage shows, and some is only to a number.
    assert 100 < refused < 150


@pytest.mark.parametrize("write", FORMAT)
def test_files_that_end_early_are_refused(write):
    data = write(LARGER)
    assert read_table(io.BytesIO(data)).to_pydict() == LARGER.to_pydict()
    # Without its last mark a stream still has all rows.
    for end in range(1, len(data) - 16, 11):
        with pytest.raises(TableFileError, match=r"^stream "):
            read_table(io.BytesIO(data[:end]), format=FORMAT[write])


def test_types_stay_the_same_from_batch_to_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "BLOCK_BYTES", 64)
    path = tmp_path / "t.csv"
    path.write_text("code,x\n" + "1,2\n" * 50 + "A1,2.5\n" * 50 + ",\n" * 50)
    batches = list(read_batches(path, numeric=["x"]))
    assert len(batches) > 5
    assert {batch.schema.to_string() for batch in batches} == {"code: string\nx: double"}
    path = tmp_path / "t.jsonl"
    path.write_text('{"c": 1, "x": 1}\n' * 9 + '{"c": 2.5, "x": 0.5}\n' * 9 + '{"x": null}\n' * 9)
    batches = list(read_batches(path, numeric=["x"]))
    assert {batch.schema.to_string() for batch in batches} == {"c: string\nx: double"}
    assert read_table(path)["c"].to_pylist() == [1.0] * 9 + [2.5] * 9 + [None] * 9
    path.write_text('{"c": 1, "longer": 1}\n' * 9 + '{"c": "A", "longer": 1}\n' * 9)
    for read in (read_table, lambda *a: [*read_batches(*a)]):
        with pytest.raises(TableFileError, match=r"changed from|holds string .* hold numbers"):
            read(path)


def test_lines_are_counted_from_block_to_block(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "BLOCK_BYTES", 64)
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + '1,"two\nlines"\n' * 40 + "\n\nx,1\n" + "1,2\n" * 40)
    with pytest.raises(TableFileError, match="holds 'x' in line 84, column 'a'"):
        list(read_batches(path, numeric=["a"]))
    path.write_text("a,b\n" + '1,"two\nlines"\n' * 40 + "1\n" + "1,2\n" * 40)
    with pytest.raises(TableFileError, match="1 cell\\(s\\) in line 82"):
        list(read_batches(path))


def test_the_kind_of_dates_stays_from_batch_to_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "BLOCK_BYTES", 64)
    path = tmp_path / "t.csv"
    path.write_text("a\n" + "2020-01-01\n" * 20 + "2020\n" * 20)
    with pytest.raises(TableFileError, match="holds '2020' in line 22"):
        list(read_batches(path, numeric=["a"], dates="seconds"))


def test_a_file_is_closed_when_batches_are_left(tmp_path, monkeypatch):
    def opened():
        return len([*Path("/proc/self/fd").iterdir()])

    monkeypatch.setattr(text, "BLOCK_BYTES", 64)
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "1,2\n" * 100)
    before = opened()
    batches = read_batches(path)
    next(batches)
    del batches
    assert opened() == before


def test_a_stream_is_left_open():
    stream = io.BytesIO(b"a\n1\n")
    read_table(stream)
    assert not stream.closed


def test_without_pyarrow_it_says_what_to_install(monkeypatch):
    monkeypatch.delattr(condens.data, "formats")
    monkeypatch.setitem(sys.modules, "condens.data.formats", None)
    with pytest.raises(ImportError, match=r"read_table needs pyarrow.*'condens\[data\]'"):
        read_table("t.csv")


@pytest.mark.slow
@pytest.mark.parametrize("town", ["Ulm", '"Ulm, Aix"'])
def test_a_million_rows_take_little_memory(town, tmp_path):
    path = tmp_path / "t.csv"
    with path.open("w") as file:
        file.write("a,b,town,d\n")
        for i in range(100):
            file.write("".join(f"{i}.{j:04d},{j},{town},{-j}\n" for j in range(10_000)))
    code = f"""
import resource
import condens.data.formats
from condens.data import read_batches
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
rows = sum(len(batch) for batch in read_batches({str(path)!r}, numeric=["a", "b", "d"]))
print(rows, peak() - before)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rows, megabytes = run.stdout.split()
    assert int(rows) == 1_000_000
    assert float(megabytes) < 200
