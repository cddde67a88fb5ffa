"""Shards: looked at before anything is trained, read in an order that no process count changes."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import processes

from condens.data import Shards
from condens.data.stream import expand, hash_rows, hash_values, is_many
from condens.data.survey import (
    ADJUSTMENT,
    CALIBRATION,
    TEST,
    Roles,
    Segment,
    Survey,
    TableColumns,
    segments,
    survey_segment,
)
from condens.errors import ArgumentError, TableFileError, TableFileNotFoundError

COLUMNS = TableColumns(("x0", "x1", "x2"), ("u", "v"))


def survey(shards, columns=COLUMNS, roles=None):
    roles = roles or Roles.of(shards.n_rows, seed=0, fold=0.1)
    found = Segment(weights=np.zeros(roles.n_folds + 1))
    for pieces in segments(shards):
        found.merge(survey_segment(shards, pieces, columns, roles))
    return Survey(shards, columns, roles, found)


class TestFaults:
    def faults(self, folder):
        with pytest.raises(TableFileError) as raised:
            Shards(str(folder / "*.parquet"))
        return str(raised.value)

    def test_all_are_named_in_one_error(self, tmp_path):
        whole = processes.table(300)
        processes.write_shards(tmp_path, whole, files=2)
        good = (tmp_path / "part-00.parquet").read_bytes()
        (tmp_path / "a-truncated.parquet").write_bytes(good[:-200])
        (tmp_path / "b-empty.parquet").write_bytes(b"")
        pq.write_table(whole.slice(0, 0), tmp_path / "c-no-rows.parquet")
        pq.write_table(whole.drop_columns(["x1"]), tmp_path / "part-lacks.parquet")
        text = pa.array(["much"] * len(whole))
        drifted = whole.set_column(0, "x0", text)
        pq.write_table(drifted, tmp_path / "part-text.parquet")
        pq.write_table(whole.append_column("y", text), tmp_path / "part-more.parquet")
        (tmp_path / "part-random.parquet").write_bytes(os.urandom(1000))
        message = self.faults(tmp_path)
        assert message.startswith("7 of 9 files cannot be used")
        for name, reason in {
            "a-truncated": "cannot be read",
            "b-empty": "has no rows",
            "c-no-rows": "has no rows",
            "part-lacks": "lacks the column 'x1'",
            "part-text": "holds categories in column 'x0'",
            "part-more": "has the column 'y'",
            "part-random": "cannot be read",
        }.items():
            line = next(line for line in message.splitlines() if f"{name}.parquet" in line)
            assert reason in line

    def test_not_too_many_are_listed(self, tmp_path):
        for number in range(30):
            (tmp_path / f"{number:02d}.parquet").touch()
        message = self.faults(tmp_path)
        assert "… and 20 files more" in message
        assert len(message.splitlines()) == 12

    def test_missing_ones(self, tmp_path):
        with pytest.raises(TableFileNotFoundError, match="matches no file"):
            Shards(str(tmp_path / "*.parquet"))
        with pytest.raises(TableFileNotFoundError, match="holds none"):
            Shards(tmp_path)
        with pytest.raises(TableFileError, match=r"gone\.parquet does not exist"):
            Shards([tmp_path / "gone.parquet"])
        with pytest.raises(ArgumentError, match="source is empty"):
            Shards([])

    def test_other_files(self, tmp_path):
        (tmp_path / "table.csv").write_text("a,b\n1,2\n")
        with pytest.raises(TableFileError, match="is no Parquet or Arrow file"):
            Shards([tmp_path / "table.csv"])

    def test_dates_are_refused_or_seconds(self, tmp_path):
        whole = processes.table(100)
        whole = whole.append_column("day", pa.array(np.arange(100).astype("datetime64[D]")))
        pattern = processes.write_shards(tmp_path, whole)
        with pytest.raises(TableFileError, match="holds dates or times in column 'day'"):
            Shards(pattern)
        shards = Shards(pattern, dates="seconds")
        part = next(shards.read(shards.pieces[0], ["day"]))
        assert part.table["day"].to_pylist()[:2] == [0.0, 86400.0]

    def test_a_file_that_changes_while_it_is_read(self, tmp_path):
        pattern = processes.write_shards(tmp_path, processes.table(300), files=1, group=300)
        shards = Shards(pattern)
        pq.write_table(processes.table(200), tmp_path / "part-00.parquet")
        with pytest.raises(TableFileError, match="is gone, or of another size"):
            list(shards.read(shards.pieces[0], ["u"]))

    @pytest.mark.parametrize("dtype", [np.float64, np.float32])
    def test_infinite_numbers_and_wrong_weights_are_named_with_their_row(self, tmp_path, dtype):
        whole = processes.table(300)
        for place, value, message in (
            ("x0", np.inf, "is inf in row 250, column 'x0'"),
            ("u", -np.inf, "is -inf in row 250, column 'u'"),
            ("w", -1.0, "has the weight -1 in row 250"),
            ("w", np.nan, "has the weight nan in row 250"),
        ):
            columns = {name: np.array(whole[name]).astype(dtype) for name in whole.column_names}
            columns |= {"w": np.ones(300, dtype)}
            columns[place][250] = value
            pattern = processes.write_shards(tmp_path / place, pa.table(columns), files=1)
            with pytest.raises(TableFileError, match=message):
                survey(Shards(pattern), COLUMNS._replace(weights="w"))


def test_a_directory_a_pattern_and_files_are_the_same(tmp_path):
    pattern = processes.write_shards(tmp_path, processes.table(300))
    (tmp_path / "notes.txt").write_text("no shard")
    files = sorted(tmp_path.glob("*.parquet"))
    assert expand(pattern) == expand(tmp_path) == expand(files) == files
    assert is_many(pattern)
    assert is_many(str(tmp_path))
    assert not is_many(str(files[0]))
    (tmp_path / "odd[1].parquet").write_bytes(files[0].read_bytes())
    assert not is_many(str(tmp_path / "odd[1].parquet"))


class TestSurvey:
    @pytest.mark.parametrize("form", ["parquet", "arrow"])
    def test_statistics_are_those_of_the_rows(self, tmp_path, form):
        whole = processes.table(1500, gaps=True)
        pattern = processes.write_shards(tmp_path, whole, form=form)
        found = survey(Shards(pattern), roles=Roles(fold=0.0, n_folds=1))
        frame = whole.to_pandas()
        frame = frame[~frame[["u", "v"]].isna().all(axis=1)]
        filled = frame["x1"].fillna(found.encoder.features[1].fill)
        columns = [frame["x0"], filled, frame["x2"], frame["x1"].isna(), frame["u"], frame["v"]]
        numbers = found.statistics()
        for place, column in enumerate(columns):
            assert numbers["mean"][place] == pytest.approx(column.mean(), rel=1e-12)
            assert numbers["deviation"][place] == pytest.approx(column.std(ddof=0), rel=1e-12)
            assert numbers["lower"][place] == column.min()
            assert numbers["upper"][place] == column.max()
            exact = np.quantile(column.dropna(), [0.25, 0.5, 0.9], method="inverted_cdf")
            got = found.quantiles([0.25, 0.5, 0.9])[:, place]
            if place != 3:
                np.testing.assert_array_equal(got, exact)
            else:
                np.testing.assert_array_equal(got, exact.astype(float))

    def test_the_encoder_is_that_of_the_whole_table(self, tmp_path):
        from condens.data import TableEncoder

        whole = processes.table(1500, town=True)
        pattern = processes.write_shards(tmp_path, whole)
        columns = COLUMNS._replace(conditions=("x0", "town", "x1"))
        found = survey(Shards(pattern), columns)
        assert found.encoder == TableEncoder.fit(whole.select(["x0", "town", "x1"]))

    def test_too_many_categories_are_refused(self, tmp_path):
        whole = processes.table(3000)
        names = pa.array([f"id {number}" for number in range(3000)])
        pattern = processes.write_shards(tmp_path, whole.append_column("name", names))
        with pytest.raises(ArgumentError, match="more than 1000 categories in column 'name'"):
            survey(Shards(pattern), COLUMNS._replace(conditions=("x0", "name")))

    def test_what_is_set_apart_is_apart(self, tmp_path):
        whole = processes.table(3000)
        pattern = processes.write_shards(tmp_path, whole, files=4)
        roles = Roles(5, test=0.1, calibration=0.1, adjustment=0.05, fold=0.1, n_folds=3)
        found = survey(Shards(pattern), roles=roles)
        names = ("test", "calibration", "adjustment", "validation", "sample")
        parts = {name: set(found.apart(name).table["x0"].to_pylist()) for name in names}
        for one, other in (("test", "calibration"), ("test", "adjustment"), ("test", "sample")):
            assert not parts[one] & parts[other]
        # The sample is all of the rest here, validation rows of members included.
        assert parts["validation"] < parts["sample"]
        held = parts["test"] | parts["calibration"] | parts["adjustment"]
        assert held | parts["sample"] == set(whole["x0"].to_pylist())
        assert len(parts["test"]) == pytest.approx(300, abs=4 * np.sqrt(3000 * 0.1 * 0.9))
        folds = found.apart("validation").folds
        assert set(folds) == {0, 1, 2}
        assert found.found.rows == len(parts["sample"])

    def test_groups_stay_together(self, tmp_path):
        whole = processes.table(3000)
        groups = pa.array([f"patient {number % 200}" for number in range(3000)])
        pattern = processes.write_shards(tmp_path, whole.append_column("patient", groups))
        roles = Roles(test=0.2, fold=0.2, n_folds=2)
        found = survey(Shards(pattern), COLUMNS._replace(groups="patient"), roles)
        parts = [set(found.apart(n).table["patient"].to_pylist()) for n in ("test", "sample")]
        assert not parts[0] & parts[1]
        held = found.apart("validation")
        labels = np.array(held.table["patient"].to_pylist())
        assert not set(labels[held.folds == 0]) & set(labels[held.folds == 1])

    def test_seeds_hold_out_other_rows(self):
        rows = np.arange(20_000)
        numbers = [hash_rows(seed, file, rows) for seed in (0, 1) for file in (0, 1)]
        for place, one in enumerate(numbers):
            assert np.histogram(one, 10, (0, 1))[0] == pytest.approx(2000, abs=200)
            for other in numbers[place + 1 :]:
                assert abs(np.corrcoef(one, other)[0, 1]) < 4 / np.sqrt(len(rows))
        assert set(Roles(test=0.5, adjustment=0.3, calibration=0.2).assign(numbers[0])) == {
            *(TEST, CALIBRATION, ADJUSTMENT)
        }

    def test_equal_values_hash_alike_whatever_they_are(self):
        for values in ([1, 2, None, 1], ["a", "b", None, "a"], [0.5, 1.5, None, 0.5]):
            found = hash_values(3, pa.chunked_array([values[:2], values[2:]]))
            assert found[0] == found[3]
            assert len(set(found)) == 3
