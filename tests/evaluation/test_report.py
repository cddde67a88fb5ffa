"""Reports as text, HTML, JSON and CSV; names of any kind."""

import csv
import html
import io
import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Generator

from condens import GaussianMixture
from condens.errors import ArgumentError
from condens.evaluation import Report, compare, evaluate
from condens.evaluation.report import compared, harmless, percent
from condens.evaluation.statistics import Score

HOSTILE = ["<img src=x onerror=alert(1)>", "=cmd|' /C calc'!A0", "joint", "\x1b[2Jnan"]


@pytest.fixture(scope="module")
def judged():
    generator = Generator().manual_seed(0)
    x = torch.randn(120, 1, 4, dtype=torch.float64, generator=generator)
    density = GaussianMixture(torch.zeros(120, 1).double(), x, torch.zeros(120, 1, 10).double())
    y = density.sample(generator=generator).numpy()
    y[5, 2] = math.nan
    index = [f"@row{i}" for i in range(120)]
    frame = pd.DataFrame(y, columns=HOSTILE, index=index)
    conditions = pd.DataFrame(x[:, 0, :1].numpy(), columns=["<b>"], index=index)
    return (
        density,
        conditions,
        frame,
        evaluate(density, conditions, frame, train=(conditions, frame)),
    )


def test_json_and_back(judged, tmp_path):
    report = judged[3]

    def refuse(word):
        raise AssertionError(word)

    text = report.to_json(tmp_path / "report.json")
    assert (tmp_path / "report.json").read_text() == text
    plain = json.loads(text, parse_constant=refuse)
    assert plain == json.loads(json.dumps(report.to_dict()))
    again = Report.from_dict(plain)
    assert again.to_dict() == report.to_dict()
    assert str(again) == str(report)
    assert again.scores == report.scores
    assert again.bins == report.bins
    np.testing.assert_array_equal(again.rows["target"], report.rows["target"])
    brief = report.to_dict(rows=False)
    assert "rows" not in brief
    assert Report.from_dict(brief).tests == report.tests


def test_every_figure_is_in_the_table_of_csv(judged, tmp_path):
    report = judged[3]
    text = report.to_csv(tmp_path / "report.csv")
    assert (tmp_path / "report.csv").read_bytes().decode() == text
    lines = list(csv.DictReader(io.StringIO(text, newline="")))
    (found,) = [
        line for line in lines
        if (line["section"], line["name"]) == ("scores", "log_likelihood")
    ]  # fmt: skip
    assert float(found["value"]) == report.scores["log_likelihood"].value
    assert float(found["standard_error"]) == report.scores["log_likelihood"].standard_error
    (found,) = [line for line in lines if (line["section"], line["name"]) == ("linear", "gain")]
    assert float(found["value"]) == report.baselines["linear"].gain.value


def test_no_cell_is_a_formula(judged):
    for text in (judged[3].to_csv(), comparison(judged).to_csv()):
        for line in csv.reader(io.StringIO(text, newline="")):
            for cell in line:
                number = cell.replace("-", "", 1).replace("e-", "").replace(".", "").isdigit()
                assert number or cell in ("nan", "inf", "-inf") or cell[:1] not in tuple("=+-@")
                assert cell.isprintable()
    assert "'=cmd" in judged[3].to_csv()
    assert "'@row" in judged[3].to_csv()


@pytest.mark.parametrize("name", ["=1", "+1", "-1", "@x", "\t=1", "\r=1", "a\x00", "a\nb"])
def test_harmless(name):
    assert harmless(name)[0] == "'"
    assert harmless(name).isprintable()


def comparison(judged):
    density, conditions, frame, _ = judged
    return compare({"<b>=1": density, "=2": density.affine(1.0, 0.5)}, conditions, frame)


def test_names_are_escaped_in_notebooks(judged):
    for thing in (judged[3], comparison(judged)):
        page = thing._repr_html_()
        assert "<img" not in page
        assert "<b>" not in page
        assert "&lt;" in page
    assert html.escape(HOSTILE[0]) in judged[3]._repr_html_()


def test_names_leave_a_terminal_as_it_is(judged):
    text = str(judged[3])
    assert "\x1b" not in text
    assert HOSTILE[1] in text
    assert all(len(line) == len(line.rstrip()) for line in text.splitlines())


def test_a_target_called_joint_is_a_target(judged):
    report = judged[3]
    assert report.targets["joint"]["crps"].value > 0
    subjects = [one.subject for one in report.coverage]
    assert subjects.count("joint") == subjects.count("joint density") == 4


def test_the_text_has_every_section(judged):
    text = str(judged[3])
    for title in ("Scores", "Coverage", "Calibration", "Worst bins", "Worst rows"):
        assert f"\n{title}" in text
    assert text.startswith(judged[3].verdict.splitlines()[0])
    assert "linear" in text
    assert str(judged[3].scores["energy_score"]) in text


def test_a_file_is_written_whole_or_not_at_all(judged, tmp_path):
    for write in (judged[3].to_json, judged[3].to_csv):
        with pytest.raises(ArgumentError, match="is a directory"):
            write(tmp_path)
        with pytest.raises(ArgumentError, match="is in no directory"):
            write(tmp_path / "none" / "file")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        (Score(0.6213, 0.0312), "Better than it by 0.62 ± 0.03 nats a row"),
        (Score(-0.6213, 0.0312), "Worse than it by 0.62 ± 0.03 nats a row"),
        (Score(0.05, 0.03), "Not better than it, within chance (0.050 ± 0.030 nats a row)"),
        (Score(0.05), "Not better than it, within chance (0.05 nats a row)"),
        (Score(math.inf), "Better than it, which finds some rows impossible"),
        (Score(-math.inf), "Worse than it: some rows are impossible under the model"),
    ],
)
def test_differences_in_words(gain, expected):
    assert compared(gain, "it") == expected


def test_per_cent():
    assert [percent(x) for x in (0.9, 0.8949, 1.0, 0.5)] == ["90 %", "89.5 %", "100 %", "50 %"]
