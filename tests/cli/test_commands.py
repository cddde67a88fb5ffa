"""Every command on real files, against what the library answers in Python."""

import csv
import io
import json
import os
import re
import shlex
import shutil
import signal
import urllib.request
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.commands import started, write_houses
from helpers.runs import PATIENCE, wait_for

import condens
from condens.cli.app import COMMANDS, app

TARGETS = ["lat", "lon"]
CONDITIONS = ["rooms", "kind", "price"]


def examples_of(name):
    """Return the arguments in each of the examples of a command's help."""
    (command,) = [each for each in COMMANDS if each.__name__ == name]
    found = []
    for text in command.__doc__.split("Example:")[1:]:
        program, *arguments = shlex.split(" ".join(text.split()))
        assert (program, arguments[0]) == ("condens", name)
        found.append(arguments)
    return found


def example_of(name):
    """Return the arguments in the only example of a command's help."""
    (only,) = examples_of(name)
    return only


def parsed(text):
    return pd.read_csv(io.StringIO(text))


@pytest.fixture
def model(houses):
    return condens.load(houses / "model.condens")


@pytest.fixture
def new(houses):
    return pd.read_csv(houses / "new.csv")


class TestHelp:
    @pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
    def test_ends_with_an_example(self, call, command):
        code, out, _ = call(command.__name__, "--help")
        assert code == 0
        shown = " ".join(out.split())
        for arguments in examples_of(command.__name__) or [None]:
            assert f"Example: condens {' '.join(arguments)}" in shown.replace("'", "")

    @pytest.mark.parametrize(
        "command",
        [each for each in COMMANDS if each.__name__ not in ("explore", "serve", "demo", "export")],
        ids=lambda command: command.__name__,
    )
    def test_the_examples_run(self, call, houses, command):
        (houses / "shards").mkdir()
        for name in ("a", "b"):
            shutil.copy("new.csv", f"shards/{name}.csv")
        more = {
            "fit": ["--members", "1", "--epochs", "2", "--force"],
            "tune": ["--members", "1", "--epochs", "1", "--trials", "1"],
        }
        for arguments in examples_of(command.__name__):
            code, _, err = call(*arguments, *more.get(arguments[0], []))
            assert (code, "Error" in err) == (0, False), err

    def test_all_commands_are_there(self):
        assert {each.name or each.callback.__name__ for each in app.registered_commands} == {
            command.__name__ for command in COMMANDS
        }

    def test_without_a_command(self, call):
        code, out, err = call()
        assert code == 2
        assert "Usage: condens" in out + err

    def test_version(self, call):
        assert call("--version") == (0, f"condens {condens.__version__}\n", "")


class TestFit:
    def test_ends_with_a_verdict(self, call, tmp_path):
        data = write_houses(tmp_path / "houses.csv")
        place = tmp_path / "m.condens"
        code, out, err = call(
            *("fit", data, "-t", "lat", "-t", "lon", "--ignore", "price"),
            *("--members", "1", "--epochs", "30", "-o", place),
        )
        assert (code, err) == (0, "")
        assert out.startswith("Judged by 24 rows that were not fitted:\n")
        assert "than a linear model" in out
        assert "gained over\n  " in out
        assert "one Gaussian for all rows: " in out
        assert f"The model is in {place}. What to try next:" in out
        model = condens.load(place)
        assert (list(model.feature_names_in_), model.target_names_) == (
            ["rooms", "kind"],
            ("lat", "lon"),
        )
        assert {path.name for path in tmp_path.iterdir()} == {"houses.csv", "m.condens"}

    def test_few_rows_have_no_verdict(self, call, tmp_path):
        data = write_houses(tmp_path / "few.csv", rows=60)
        code, out, _ = call(
            *("fit", data, "-t", "lat", "-c", "rooms", "--members", "1", "--epochs", "2"),
            *("-o", tmp_path / "m.condens"),
        )
        assert code == 0
        assert out.startswith(
            "No verdict: it needs 20 rows, and --test 0.1 keeps fewer. Pass a larger"
        )

    def test_options_reach_the_model(self, call, houses):
        (houses / "settings.toml").write_text(
            '[model]\nwidth = 16\ncovariance = "diagonal"\n[training]\nclip = 3.0\nepochs = 2\n'
        )
        code, _, err = call(
            *("fit", "houses.csv", "-t", "price", "--transform", "price=positive"),
            *("--components", "2", "--members", "2", "--covariance", "full", "--seed", "5"),
            *("--settings", "settings.toml", "-o", "p.condens"),
        )
        assert code == 0, err
        model = condens.load(houses / "p.condens")
        assert (model.width, model.n_components, model.n_members) == (16, 2, 2)
        assert (model.covariance, model.settings.clip, model.random_state) == ("full", 3.0, 5)
        assert str(model.transforms_[0]) == "Positive(lower=0.0)"
        assert model.inputs_.encoder.feature_names == ("rooms", "kind", "lat", "lon")

    @pytest.mark.usefixtures("houses")
    def test_whole_groups_are_kept_for_the_verdict(self, call):
        table = pd.read_csv("houses.csv")
        table["street"] = np.arange(len(table)) // 30
        table.to_csv("streets.csv", index=False)
        code, out, err = call(
            *("fit", "streets.csv", "-t", "lat", "--groups", "street", "--test", "0.3"),
            *("--members", "1", "--epochs", "2", "-o", "g.condens"),
        )
        assert code == 0, err
        assert out.startswith("Judged by 60 rows")
        assert list(condens.load("g.condens").feature_names_in_) == [
            "rooms",
            "kind",
            "price",
            "lon",
        ]

    @pytest.mark.usefixtures("houses")
    def test_info_tells_of_it(self, call):
        code, out, _ = call("info", "model.condens", "--json")
        found = json.loads(out)
        assert code == 0
        assert found["conditions"] == {"rooms": "number", "kind": "2 categories", "price": "number"}
        assert (found["data"]["source"], found["data"]["rows"]) == ("houses.csv", 240)
        assert found["held_out"]["rows"] == 24
        assert re.fullmatch("[0-9a-f]{64}", found["data"]["sha256"])
        assert found["versions"]["condens"] == condens.__version__
        assert found["settings"]["calibration_fraction"] == 0.2
        assert "held-out" in call("info", "model.condens").out

    @pytest.mark.usefixtures("houses")
    def test_info_of_any_notes(self, call):
        model = condens.load("model.condens")
        model.notes_ = {"conditions": "mine", "list": [1, {"a": None}], "text": "\x1b[31m"}
        model.save("noted.condens")
        code, out, _ = call("info", "noted.condens")
        assert code == 0
        assert "\x1b" not in out
        found = json.loads(call("info", "noted.condens", "--json").out)
        assert (found["list"], found["conditions"]["rooms"]) == ({"": [1, {"a": None}]}, "number")

    def test_the_fingerprint_is_that_of_the_values(self, call, houses):
        """The same table with semicolons and decimal commas is the same data."""
        text = (houses / "houses.csv").read_text()
        (houses / "german.csv").write_text(text.replace(",", ";").replace(".", ","))
        options = ["-t", "lat", "-t", "lon", "--members", "1", "--epochs", "1", "-o"]
        assert call("fit", "german.csv", *options, "german.condens").code == 0
        first, second = (
            json.loads(call("info", f"{name}.condens", "--json").out)["data"]["sha256"]
            for name in ("model", "german")
        )
        assert first == second


class TestPredict:
    def test_is_what_the_model_predicts(self, call, model, new):
        code, out, err = call(
            *("predict", "model.condens", "new.csv", "-q", "0.25", "-i", "0.9", "--log-density"),
            *("--conformal", "0.8", "--keep", "rooms"),
        )
        assert (code, err) == (0, "")
        found, X, y = parsed(out), new[CONDITIONS], new[TARGETS]  # noqa: N806
        mean, deviation = model.predict(X, return_std=True)
        region = model.predict_region(X, 0.8)
        expected = {
            "rooms": X["rooms"],
            "lat_mean": mean[:, 0],
            "lon_std": deviation[:, 1],
            "lat_q0.25": model.predict_quantiles(X, [0.25])[:, 0, 0],
            "lon_low0.9": model.predict_interval(X, 0.9)[:, 1, 0],
            "lon_high0.9": model.predict_interval(X, 0.9)[:, 1, 1],
            "lat_conformal_low0.8": region.lower[:, 0],
            "region_log_density0.8": region.log_threshold,
            "in_region0.8": region.contains(y.to_numpy()),
            "log_density": model.score_samples(X, y),
        }
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-9, err_msg=name)

    @pytest.mark.parametrize("ending", ["tsv", "jsonl", "json", "parquet", "arrow"])
    @pytest.mark.usefixtures("houses")
    def test_all_formats_hold_the_same(self, call, ending):
        first = parsed(call("predict", "model.condens", "new.csv").out)
        assert call("predict", "model.condens", "new.csv", "-o", f"out.{ending}").code == 0
        read = {
            "tsv": lambda path: pd.read_csv(path, sep="\t"),
            "jsonl": lambda path: pd.read_json(path, lines=True, precise_float=True),
            "json": lambda path: pd.read_json(path, precise_float=True),
            "parquet": pd.read_parquet,
            "arrow": pd.read_feather,
        }
        pd.testing.assert_frame_equal(read[ending](f"out.{ending}"), first)

    @pytest.mark.usefixtures("houses")
    def test_conformal_without_calibration_has_a_remedy(self, call):
        code, out, err = call("predict", "other.condens", "new.csv", "--conformal", "0.9")
        assert (code, out) == (1, "")
        assert err == (
            "Error: --conformal was asked of a model without calibration, but rows that were kept "
            "for it were expected. Fit it again with --calibrate 0.1.\n"
        )

    def test_missing_and_unseen_columns_are_named(self, call, houses):
        (houses / "half.csv").write_text("rooms,price\n3,200000\n")
        code, _, err = call("predict", "model.condens", "half.csv")
        assert code == 1
        assert "'kind'" in err


class TestSample:
    def test_draws_are_those_of_the_densities(self, call, model, new):
        out = call("sample", "model.condens", "new.csv", "-n", "200").out
        found = parsed(out)
        assert list(found.columns) == ["row", "draw", "lat", "lon"]
        assert found["row"].tolist() == np.repeat(np.arange(40), 200).tolist()
        assert found["draw"].tolist() == [*range(200)] * 40
        mean = found.groupby("row")[TARGETS].mean().to_numpy()
        deviation = model.predict(new[CONDITIONS], return_std=True)[1]
        assert (np.abs(mean - model.predict(new[CONDITIONS])) < 6 * deviation / 200**0.5).all()
        assert call("sample", "model.condens", "new.csv", "-n", "200").out == out

    def test_no_two_rows_or_seeds_share_a_draw(self, call, new, monkeypatch):
        """Of rows that are all alike, so that equal random numbers would be equal draws."""
        monkeypatch.setattr("condens.cli.sample.NUMBERS_PER_BLOCK", 4 * 5 * 2)  # 4 rows at a time
        Path("same").mkdir()
        for name in "ab":
            new.iloc[[0] * 23].to_csv(f"same/{name}.csv", index=False)
        drawn = []
        for seed in (0, 1, 4, 8, 2**32 - 1):
            options = ["-n", "5", "--seed", str(seed)]
            found = parsed(call("sample", "model.condens", "same/a.csv", *options).out)
            assert len(found) == 23 * 5
            drawn += found["lat"].tolist()
        assert call("sample", "model.condens", "same", "-n", "5", "-o", "out").code == 0
        for name in "ab":  # in many tables, each has draws of its own
            drawn += pd.read_csv(f"out/{name}.csv")["lat"].tolist()
        assert len(drawn) == 7 * 23 * 5
        assert len({*drawn}) == len(drawn)

    def test_draws_depend_on_no_format_and_no_batches(self, call, new, monkeypatch):
        from condens.data import formats, text

        monkeypatch.setattr("condens.cli.sample.NUMBERS_PER_BLOCK", 7 * 3 * 2)  # 7 rows at a time
        first = call("sample", "model.condens", "new.csv", "-n", "3").out
        new.to_parquet("new.parquet", row_group_size=11)
        new.to_feather("new.arrow")
        new.to_json("new.jsonl", orient="records", lines=True)
        monkeypatch.setattr(text, "BLOCK_BYTES", 300)
        monkeypatch.setattr(formats, "ROWS_PER_BATCH", 9)
        for ending in ("csv", "parquet", "arrow", "jsonl"):
            found = call("sample", "model.condens", f"new.{ending}", "-n", "3")
            assert (found.code, found.out) == (0, first), ending


class TestQuery:
    GIVEN = ("-g", "rooms=3", "-g", "kind=flat", "-g", "price=250000")

    def test_is_the_conditional(self, call, model):
        code, out, err = call("query", "model.condens", *self.GIVEN, "-g", "lon=11.1")
        assert (code, err) == (0, "")
        row = pd.DataFrame({"rooms": [3], "kind": ["flat"], "price": [250000.0]})
        density = model.predict_dist(row, tail=False).condition({"lon": 11.1})
        found = parsed(out)
        assert found["target"].tolist() == ["lat"]
        assert found["mean"][0] == pytest.approx(density.mean.item())
        assert found["std"][0] == pytest.approx(density.stddev.item())
        low, high = density.interval(0.9)
        assert (found["low0.9"][0], found["high0.9"][0]) == pytest.approx((low.item(), high.item()))

    def test_of_several_has_correlations(self, call, model):
        out = call("query", "model.condens", *self.GIVEN, "--ask", "lon,lat").out
        row = pd.DataFrame({"rooms": [3], "kind": ["flat"], "price": [250000.0]})
        covariance = model.predict_dist(row, tail=False).covariance_matrix[0]
        expected = (covariance[0, 1] / (covariance[0, 0] * covariance[1, 1]).sqrt()).item()
        found = parsed(out)
        assert found["target"].tolist() == ["lon", "lat"]
        assert found["correlation with lon"].tolist() == pytest.approx([1, expected])

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                ["-g", "height=3"],
                "--given names 'height', but the columns are 'rooms', 'kind', 'price', 'lat', "
                "'lon'. Use one of these.",
            ),
            (["-g", "rooms"], "--given is 'rooms', but name=value was expected. Write --given"),
            (["-g", "lat=north"], "--given lat is 'north', but a number was expected."),
            (
                ["-g", "lat=48", "-g", "lon=11"],
                "--given names every target, but one to ask for must be left. Give fewer.",
            ),
            (["-g", "rooms=3", "-g", "rooms=4"], "--given names 'rooms' twice, but each may be"),
            (["--ask", "lat,lat"], "--ask names 'lat' twice, but each may be named once."),
            (
                ["-g", "rooms=3", "-g", "kind=flat"],
                "--given lacks the condition 'price', but it was never missing in the table that "
                "was fitted. Add --given price=…",
            ),
            (["--ask", "price"], "--ask names 'price', but 'lat', 'lon' can be asked for."),
        ],
    )
    @pytest.mark.usefixtures("houses")
    def test_refuses(self, call, arguments, message):
        code, out, err = call("query", "model.condens", *arguments)
        assert (code, out) == (1, "")
        assert err.startswith(f"Error: {message}")


def test_evaluate_says_what_the_report_says(call, houses, model, new):
    from condens.evaluation import evaluate

    report = evaluate(model, new[CONDITIONS], new[TARGETS])
    code, out, err = call("evaluate", "model.condens", "new.csv", "--json", "r.json")
    assert (code, err) == (0, "The figures are in r.json.\n")
    assert out.startswith(report.verdict)
    written = json.loads((houses / "r.json").read_text())
    value = written["scores"]["log_likelihood"]["value"]
    assert value == pytest.approx(report.scores["log_likelihood"].value)
    assert json.loads(call("evaluate", "model.condens", "new.csv", "--json", "-").out) == written


def test_compare_names_the_better(call, houses):
    code, out, _ = call("compare", "model.condens", "other.condens", "--data", "new.csv")
    assert code == 0
    assert "model.condens" in out
    assert "other.condens" in out
    found = json.loads(
        call("compare", "model.condens", "other.condens", "--data", "new.csv", "--json").out
    )
    assert found


@pytest.mark.parametrize(
    "arguments",
    [
        ["--kind", "density", "--row", "2"],
        ["--kind", "calibration"],
        ["--kind", "predictions", "--target", "lon"],
        ["--kind", "effect", "--column", "rooms", "--target", "lat"],
        ["--kind", "history"],
    ],
    ids=lambda arguments: arguments[1],
)
def test_pictures_are_drawn(call, houses, arguments):
    code, _, err = call("plot", "model.condens", "new.csv", *arguments, "-o", "p.png")
    assert (code, err) == (0, "The picture is p.png.\n")
    assert (houses / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_an_export_is_an_onnx_file(call, houses):
    import onnx

    (houses / "numbers.condens").replace(houses / "model.condens")  # which are all that it takes
    assert call(*example_of("export")).code == 0
    onnx.checker.check_model(onnx.load(houses / "model.onnx"))


def test_a_doctor_knows_all_extras(call):
    import tomllib

    from condens.cli.doctor import EXTRAS

    code, out, _ = call("doctor")
    assert code == 0
    assert "Nothing is missing." in out
    from helpers.architecture import ROOT

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*EXTRAS} == {*project["optional-dependencies"]} - {"test", "docs", "bench", "dev"}


def test_csv_of_names_with_commas_is_read_back(call, houses):
    table = pd.read_csv("houses.csv").rename(columns={"lat": 'la,t "x"'})
    table.to_csv("odd.csv", index=False)
    options = ["-t", 'la,t "x"', "--members", "1", "--epochs", "1", "-o", "odd.condens"]
    assert call("fit", "odd.csv", *options).code == 0
    out = call("predict", "odd.condens", "odd.csv").out
    assert next(csv.reader(io.StringIO(out))) == ['la,t "x"_mean', 'la,t "x"_std']


@pytest.mark.parametrize(
    ("name", "more"), [("explore", ["--no-browser"]), ("serve", ["--port", "0"])]
)
def test_servers_answer_until_they_are_told_to_stop(houses, name, more):
    said = houses / "err"
    with started([*example_of(name), *more], houses) as process:
        wait_for(lambda: said.exists() and re.search(r"http://127.0.0.1:\d+\D", said.read_text()))
        port = re.search(r"http://127.0.0.1:(\d+)", said.read_text())[1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz") as answer:
            assert answer.status == 200
        os.kill(process.pid, signal.SIGTERM)
        process.join(PATIENCE)
        assert process.exitcode == -signal.SIGTERM  # after it has drained
    assert "Traceback" not in said.read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_demo_ends_with_what_to_do_next(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(*example_of("demo"))
    assert code == 0
    assert out.endswith("Next: condens explore demo/arm.condens --data demo/arm.csv\n")
    full, diagonal, exact = (
        float(re.search(rf"{name}\D*?(-?[\d.]+)", out)[1])
        for name in ("full covariances", "diagonal covariances", "the exact answer")
    )
    assert exact < full < diagonal - 1
    for name in ("arms.png", "corner.png", "calibration.png", "arm.condens", "arm.csv"):
        assert (tmp_path / "demo" / name).stat().st_size > 1000
    assert "exists" in call("demo", "-o", "demo").err
