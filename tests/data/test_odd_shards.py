"""Shards whose files differ in what no reader should stumble over, and those to be refused."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from condens import MDNRegressor
from condens.data.stream import Shards
from condens.data.survey import Roles, TableColumns
from condens.errors import ArgumentError, CondensError, TableFileError
from condens.training.streaming import Stream

TEXT = pa.array(["a", "b", "c"] * 20)
NUMBERS = pa.array([1, 2, 3] * 20)


def columns(seed=0, **others):
    x = np.random.default_rng(seed).normal(size=60)
    return {"x": pa.array(x), "y": pa.array(x + 1), **others}


def write(folder, *tables):
    for number, table in enumerate(tables):
        made = pa.table(table)
        path = folder / f"{number}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, made.schema) as writer:
            writer.write_table(made, max_chunksize=20)
    return folder


def opened(folder, *tables, targets=("y",), **options):
    return Stream.open(Shards(write(folder, *tables)), targets=targets, **options)


@pytest.mark.parametrize(
    "other",
    [
        TEXT.dictionary_encode(),
        TEXT.cast(pa.large_string()),
        TEXT.cast(pa.string_view()),
        pa.nulls(60),
        pa.nulls(60, pa.string()),
        pa.array(["a"] * 20 + [None] * 40),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_categories_are_stored_in_any_way(tmp_path, other, first):
    files = columns(c=TEXT), columns(1, c=other)
    made = opened(tmp_path, *files[:: 1 if first else -1])
    assert made.survey.encoder.features[1].values == ("a", "b", "c")
    assert made.sample.rows.condition.isfinite().all()


@pytest.mark.parametrize("others", [{}, {"c": TEXT}])
@pytest.mark.parametrize("first", [True, False])
def test_numbers_are_of_any_precision(tmp_path, first, others):
    # A tenth in single precision is not the one in double: it must stay what the file holds.
    single = columns(x=pa.array(np.float32(0.1) * np.arange(60, dtype=np.float32)), **others)
    double = {n: c if n == "c" else c.cast(pa.float64()) for n, c in single.items()}
    other = columns(1, **others)
    found = []
    for name, one in (("single", single), ("double", double)):
        (folder := tmp_path / name).mkdir()
        found.append(opened(folder, *(one, other)[:: 1 if first else -1]))
    for mine, theirs in zip(*(made.sample.rows[:2] for made in found), strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.equal(theirs)
    mine, theirs = (made.survey.statistics() for made in found)
    assert all((mine[name] == theirs[name]).all() for name in mine)


def test_categories_of_two_types_are_refused(tmp_path):
    files = columns(c=NUMBERS.dictionary_encode()), columns(c=TEXT)
    with pytest.raises(TableFileError, match=r"holds categories in column 'c'.*of int64"):
        Shards(write(tmp_path, *files))


def test_columns_may_have_any_name(tmp_path):
    names = ("role", "role\0", "fold", "sample\0")
    made = opened(tmp_path, columns(**dict.fromkeys(names, NUMBERS)))
    assert made.sample.rows.condition.shape[1] == 5


@pytest.mark.parametrize("row", [3, 17, 31, 44])
def test_a_number_may_be_missing_in_any_row(tmp_path, row):
    x = columns()["x"].to_pylist()
    x[row] = None
    made = opened(tmp_path, columns(x=pa.array(x)), test=0.3, calibration=0.3)
    for part in ("test", "calibration", "validation"):
        assert made.apart(part) is None or made.apart(part).rows.condition.shape[1] == 2


@pytest.mark.parametrize("weight", [1e308, 1.0, 1e-320])
def test_weights_may_be_of_any_size(tmp_path, weight):
    made = opened(tmp_path, columns(w=pa.array([weight] * 60)), weights="w")
    assert np.isfinite(made.survey.weights).all()
    assert made.survey.weights[-1] / 60 == pytest.approx(0.5, abs=0.5)
    scaled = made.survey.scaled(np.array([weight]))
    np.testing.assert_allclose(scaled * 60, made.survey.weights[-1], rtol=1e-12)


def test_members_share_folds_where_few_fit():
    assert Roles.of(40, seed=0, fold=0.2, n_folds=7).n_folds == 5
    assert Roles.of(40, seed=0, test=0.2, fold=0.95, n_folds=7).n_folds == 1


def test_members_train_on_shared_folds(tmp_path):
    model = MDNRegressor(
        epochs=1, n_members=3, validation_fraction=0.5, n_bins=0, n_components=1, random_state=0
    )
    model.fit_shards(write(tmp_path, columns(), columns(1)), ["y"])
    assert np.isfinite(model.predict(pa.table({"x": [0.0]}))).all()


def test_one_group_cannot_be_divided(tmp_path):
    # The hash of a single group decides which of the two errors comes.
    with pytest.raises(ArgumentError, match=r"no row to|too few"):
        MDNRegressor(n_members=3, epochs=1).fit_shards(
            write(tmp_path, columns(g=pa.array(["a"] * 60))), ["y"], groups="g"
        )


@pytest.mark.parametrize("calibration", [0.0, 0.5])
def test_targets_outside_are_named_by_file_and_row(tmp_path, calibration):
    last = pa.array([0.5] * 55 + [1.5] * 5)
    model = MDNRegressor(
        target_transform=[(0, 1)], calibration_fraction=calibration, epochs=1, random_state=0
    )
    folder = write(tmp_path, columns(y=pa.array([0.5] * 60)), columns(y=last))
    with pytest.raises(ArgumentError, match=r"1\.arrow has 1\.5 in row 55, column 'y', but"):
        model.fit_shards(folder, ["y"])


@pytest.mark.parametrize(
    ("targets", "options", "message"),
    [
        ("y", {}, r"targets is 'y'.*Pass \['y'\]"),
        (None, {}, "targets is None"),
        ([["y"]], {}, "targets is"),
        ([], {}, "targets is empty"),
        (["y"], {"conditions": "x"}, "conditions is 'x'"),
        (["y"], {"conditions": ["x", "y"]}, "'y' is a target, and also"),
        (["y"], {"weights": "y"}, "'y' is a target, and also"),
        (["y"], {"weights": ["x"]}, "weights is"),
        (["x", "y"], {}, "no column beside"),
    ],
)
def test_columns_are_checked(tmp_path, targets, options, message):
    with pytest.raises(ArgumentError, match=message):
        opened(tmp_path, columns(), targets=targets, **options)


def test_targets_without_any_value_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="no value at all in column 'z'"):
        opened(tmp_path, columns(z=pa.nulls(60)), targets=["y", "z"])


@pytest.mark.parametrize("source", [5, None, [1], b"x", "a\0b", "a" * 5000, ["a\0b"]])
def test_paths_are_checked(source):
    with pytest.raises(CondensError):
        Shards(source)


def test_names_are_utf8(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.parquet")
    try:
        with open(path, "wb") as file:  # noqa: PTH123
            pq.write_table(pa.table(columns()), file)
    except OSError:
        pytest.skip("the file system has no such names")
    with pytest.raises(TableFileError, match="not UTF-8"):
        Shards(tmp_path)


@pytest.mark.parametrize("change", ["gone", "shorter", "pipe"])
def test_files_that_change_are_named(tmp_path, change):
    shards = Shards(write(tmp_path, columns()))
    path = tmp_path / "0.arrow"
    path.unlink()
    if change == "shorter":
        path.write_bytes(b"ARROW1")
    elif change == "pipe":
        os.mkfifo(path)
    with pytest.raises(TableFileError, match="is gone, or of another size"):
        list(shards.read(shards.pieces[0], TableColumns.of(["y"]).targets))
