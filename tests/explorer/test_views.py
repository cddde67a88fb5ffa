"""Answers are what direct calls of the mixture give."""

import base64
import json
import math
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from helpers.explorers import CONDITION, CONDITIONS, DATA, FORMULA, SCRIPT, TARGETS, TURNED, fitted
from helpers.regressors import X, Y, regressor
from numpy.testing import assert_allclose

from condens.errors import ArgumentError
from condens.explorer import views
from condens.explorer.schema import RequestError, check
from condens.functional.estimates import hpd_threshold

ROW = pd.DataFrame({name: [value] for name, value in CONDITION.items()})


@pytest.fixture(scope="module")
def model():
    return fitted()


@pytest.fixture(scope="module")
def subject(model):
    return views.Subject.of(model, "small.condens", DATA)


@pytest.fixture(scope="module")
def direct(model):
    return model.predict_dist(ROW, tail=False)[0]


def ask(subject, kind, **request):
    schema = getattr(subject.requests, "density" if kind == "python" else kind)
    asked = check({"condition": CONDITION, **request}, schema)
    answer = views.answer(subject, kind, asked)
    json.dumps(answer, allow_nan=False)
    return answer


def test_numbers_of_each_target(subject, direct):
    found = ask(subject, "density", levels=[0.1, 0.5], coverages=[0.5, 0.9])
    assert [one["name"] for one in found["targets"]] == ["price", FORMULA, TURNED]
    for dim, one in enumerate(found["targets"]):
        line = direct.marginal(dim)
        assert_allclose([one["mean"]], line.mean, rtol=1e-9)
        assert_allclose([one["stddev"]], line.stddev, rtol=1e-9)
        assert_allclose(
            one["quantiles"],
            line.quantile(torch.tensor([0.1, 0.5], dtype=torch.float64)),
            rtol=1e-9,
        )
        ends = [torch.cat(line.interval(coverage)) for coverage in (0.5, 0.9)]
        assert_allclose(one["intervals"], torch.stack(ends), rtol=1e-9)
        density = line.log_prob(torch.tensor(one["points"], dtype=torch.float64)[:, None]).exp()
        assert_allclose(one["density"], density, rtol=1e-9)


def test_pairs(subject, direct):
    found = ask(subject, "density", pixels=12)
    assert [(pair["x"], pair["y"]) for pair in found["pairs"]] == [
        ("price", FORMULA),
        ("price", TURNED),
        (FORMULA, TURNED),
    ]
    drawn = direct.sample((views.LEVEL_DRAWS,), generator=torch.Generator().manual_seed(0))
    for pair, dims in zip(found["pairs"], ([0, 1], [0, 2], [1, 2]), strict=True):
        axes = [found["targets"][dim]["axis"] for dim in dims]
        assert [axis["low"] for axis in axes] == [axis["low"] for axis in pair["axes"]]
        ends = [found["targets"][dim]["points"] for dim in dims]
        x, y = (torch.linspace(e[0], e[-1], 12, dtype=torch.float64) for e in ends)
        points = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)
        plane = direct.marginal(dims)
        logs = plane.log_prob(points)
        assert pair["log_peak"] == pytest.approx(float(logs.max()), abs=1e-9)
        assert_allclose(pair["density"], (logs - logs.max()).exp(), rtol=1e-7, atol=1e-12)
        levels = plane.log_prob(drawn[:, dims])
        for mark, coverage in zip(pair["levels"], (0.5, 0.9), strict=True):
            level = math.log(mark) + pair["log_peak"]
            assert ((levels >= level).double().mean() - coverage).abs() < 2 / views.LEVEL_DRAWS


def test_ellipses_are_one_standard_deviation(subject, direct):
    pair = ask(subject, "density")["pairs"][1]
    base = direct.base.marginal([0, 2])
    for weight, rim in zip(pair["ellipses"]["weights"], pair["ellipses"]["points"], strict=True):
        k = int((base.weights - weight).abs().argmin())
        assert weight == pytest.approx(float(base.weights[k]))
        points = torch.tensor(rim)
        latent = torch.stack([points[:, 0], points[:, 1].log()], -1) - base.means[k]
        inverse = torch.linalg.inv(base.covariance_matrices[k])
        distances = torch.einsum("ni,ij,nj->n", latent, inverse, latent)
        assert_allclose(distances, torch.ones(len(rim)), rtol=1e-6)


def test_what_if(subject, direct):
    given = {"price": 1.0, TURNED: 1.1}
    found = ask(subject, "density", given=given)
    (one,) = found["targets"]
    rest = direct.condition({0: 1.0, 2: 1.1})
    assert one["name"] == FORMULA
    assert_allclose([one["mean"]], rest.mean, rtol=1e-9)
    assert found["pairs"] == []
    expected = direct.marginal([0, 2]).log_prob(torch.tensor([1.0, 1.1], dtype=torch.float64))
    assert found["log_prob_given"] == pytest.approx(float(expected), rel=1e-9)
    levels = rest.log_prob(rest.sample((1000,), generator=torch.Generator().manual_seed(0)))
    assert found["region"][1]["log_threshold"] == pytest.approx(
        float(hpd_threshold(levels, 0.9).value)
    )


def test_what_if_refuses(subject):
    with pytest.raises(RequestError, match="every target"):
        ask(subject, "density", given={"price": 0, FORMULA: 0, TURNED: 1})
    with pytest.raises(RequestError, match="above"):
        ask(subject, "density", given={TURNED: -1})


def test_base64_holds_the_same_numbers(subject):
    plain, coded = (ask(subject, "density", encoding=one) for one in ("numbers", "base64"))
    for one, other in zip(plain["pairs"], coded["pairs"], strict=True):
        values = np.frombuffer(base64.b64decode(other["density"]), "<f4").reshape(other["shape"])
        assert_allclose(values, one["density"], atol=1e-6)


def test_axes_that_are_held(subject):
    found = ask(subject, "density", limits={"price": [-4, 4], FORMULA: [3, 3]})
    assert [found["targets"][0]["axis"][end] for end in ("low", "high")] == [-4, 4]
    assert found["targets"][1]["axis"]["low"] < 3


def test_targets_chosen(subject):
    found = ask(subject, "density", targets=[TURNED])
    assert [("axis" in one) for one in found["targets"]] == [False, False, True]
    assert found["pairs"] == []


def test_samples(subject, direct):
    found = ask(subject, "sample", n_samples=50, seed=3)["samples"]
    drawn = direct.sample((50,), generator=torch.Generator().manual_seed(3))
    assert_allclose(np.stack(list(found.values()), 1), drawn, rtol=1e-12)


def test_questions(subject, direct, model):
    questions = [
        {"ask": "mean"},
        {"ask": "stddev"},
        {"ask": "covariance"},
        {"ask": "quantiles", "target": "price", "levels": [0.3]},
        {"ask": "interval", "target": TURNED, "coverage": 0.8},
        {"ask": "cdf", "target": "price", "value": 0.7},
        {"ask": "log_prob", "value": {TURNED: 1.2, "price": 0.7}},
        {"ask": "probability", "lower": {"price": 0.0}, "upper": {TURNED: 1.0}},
        {"ask": "novelty"},
        {"ask": "calibrated_intervals", "coverage": 0.8},
    ]
    found = ask(subject, "query", questions=questions)["answers"]
    assert_allclose(found[0], direct.mean, rtol=1e-9)
    assert_allclose(found[1], direct.stddev, rtol=1e-9)
    assert_allclose(found[2], direct.covariance_matrix, rtol=1e-9)
    assert_allclose(
        found[3], [direct.quantile(torch.tensor(0.3, dtype=torch.float64), "price")], rtol=1e-9
    )
    assert_allclose(found[4], torch.cat(direct.marginal(2).interval(0.8)), rtol=1e-9)
    assert_allclose(found[5], direct.marginal(0).cdf(np.array([0.7])), rtol=1e-9)
    point = torch.tensor([1.2, 0.7], dtype=torch.float64)
    assert_allclose(found[6], direct.marginal([2, 0]).log_prob(point), rtol=1e-9)
    assert_allclose(found[7]["value"], direct.probability({0: 0.0}, {2: 1.0}).value, rtol=1e-9)
    assert_allclose(found[8], model.novelty(ROW)[0], rtol=1e-9)
    expected = model.predict_interval(ROW, 0.8, calibrated=True)[0]
    assert_allclose(list(found[9].values()), expected, rtol=1e-9)
    with pytest.raises(RequestError, match="among the given"):
        ask(subject, "query", given={"price": 0}, questions=[questions[3]])


def test_a_batch_has_the_answers_of_each_alone(subject):
    asked = []
    for number in (-1.0, 0.0, 2.0):
        condition = {**CONDITION, "number": number}
        request = {"condition": condition, "questions": [{"ask": "mean"}]}
        asked.append(("query", check(request, subject.requests.query)))
    for one, together in zip(asked, views.answer_all(subject, asked), strict=True):
        alone = views.answer(subject, *one)
        assert_allclose(together["answers"][0], alone["answers"][0], rtol=1e-12)
        assert together["novelty"] == alone["novelty"]


def test_how_far_it_may_be_trusted(subject):
    def about(**changes):
        schema = subject.requests.sample
        request = check({"condition": {**CONDITION, **changes}, "n_samples": 1}, schema)
        return views.answer(subject, "sample", request)

    assert about()["outside"] == about()["unknown"] == []
    assert about(number=1e6)["outside"] == ["number"]
    assert about(number=1e6)["novelty"] > 1
    assert about(town="Paris")["unknown"] == ["town"]


def test_data_near_the_condition(subject):
    condition = {"number": 0.4, SCRIPT: 0.0, "town": "Bern"}
    near = ask(subject, "density", near=500, condition=condition)["near"]
    assert near["n_rows"] == len(DATA)
    assert len(near["distances"]) == 20
    assert near["distances"] == sorted(near["distances"])
    rows = DATA[DATA["price"].isin(near["targets"]["price"])]
    assert len(rows) == 20
    assert (rows["town"] == "Bern").all()
    assert (rows["number"] - 0.4).abs().mean() < 0.4
    closer = ask(subject, "density", near=500, condition=condition, given={"price": 4.0})["near"]
    taken = DATA["price"][DATA[FORMULA].isin(closer["targets"][FORMULA])]
    assert (taken - 4).abs().mean() < (rows["price"] - 4).abs().mean()


def test_without_data_no_row_is_shown(model):
    bare = views.Subject.of(model, "m")
    assert ask(bare, "density", near=500)["near"] is None
    with pytest.raises(RequestError, match="--data"):
        _ = bare.report


def test_the_description_holds_no_row(model):
    text = json.dumps(views.describe(views.Subject.of(model, "m")), allow_nan=False)
    for column in (*CONDITIONS[["number", SCRIPT]].T.to_numpy(), *TARGETS.T.to_numpy()):
        for value in column:
            assert math.isnan(value) or repr(float(value)) not in text


@pytest.mark.slow
def test_the_report(model):
    text = views.Subject.of(model, "m", DATA[:60]).report
    assert text.startswith("<!doctype html>")
    assert "<img src=x" not in text


def test_polars(model, subject):
    other = views.Subject.of(model, "m", pl.from_pandas(DATA))
    assert torch.equal(other.rows.condition, subject.rows.condition)
    assert other.judged[1].shape == (400, 3)


def test_data_that_do_not_fit(model):
    with pytest.raises(ArgumentError, match="lacks the columns price"):
        views.Subject.of(model, "m", DATA.drop(columns="price"))
    with pytest.raises(ArgumentError, match="data frame"):
        views.Subject.of(model, "m", [[1.0]])


def test_columns_without_names():
    plain = regressor().fit(X, Y)
    subject = views.Subject.of(plain, "m", pd.DataFrame(np.column_stack([X, Y])))
    assert subject.targets == ("0", "1")
    condition = {"0": 0.1, "1": 0.2, "2": 0.3}
    request = check({"condition": condition, "given": {"1": 0.5}}, subject.requests.density)
    found = views.answer(subject, "density", request)
    direct = plain.predict_dist([[0.1, 0.2, 0.3]], tail=False)[0].condition({1: 0.5})
    assert_allclose(found["targets"][0]["mean"], direct.mean[0], rtol=1e-9)
    code = views.answer(subject, "python", request)["code"]
    assert "X = [[0.1, 0.2, 0.3]]" in code
    assert "condition({1: 0.5})" in code


@pytest.mark.parametrize("summarised", [True, False])
def test_whole_numbers_flat_targets_and_no_summary(summarised):
    counts = np.random.default_rng(0).poisson(3, 240)
    plain = regressor(target_transform="count", store_summary=summarised).fit(X, counts)
    subject = views.Subject.of(plain, "m")
    described = views.describe(subject)
    assert bool(described["conditions"][0]["counts"]) == summarised
    assert described["conditions"][0]["low"] < described["conditions"][0]["start"]
    request = check({"condition": {"0": 0, "1": 0, "2": 0}}, subject.requests.density)
    (found,) = views.answer(subject, "density", request)["targets"]
    assert found["axis"]["step"] == 1
    direct = plain.predict_dist([[0, 0, 0]], tail=False)[0]
    assert_allclose(found["intervals"][1], torch.cat(direct.interval(0.9)))


def test_pairs_of_whole_numbers():
    y = np.stack([np.random.default_rng(0).poisson(3, 240), Y[:, 0]], 1)
    subject = views.Subject.of(regressor(target_transform=["count", None]).fit(X, y), "m")
    request = check({"condition": {"0": 0, "1": 0, "2": 0}}, subject.requests.density)
    (pair,) = views.answer(subject, "density", request)["pairs"]
    low, high = (pair["axes"][0][end] for end in ("low", "high"))
    assert pair["shape"] == [40, round(high - low)]
    assert pair["ellipses"]["weights"] == []


def test_the_program_makes_the_same_view(subject, model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model.save("small.condens")
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: None)
    request = {"given": {"price": 1.0}}
    code = ask(subject, "python", **request)["code"]
    assert TURNED not in code  # written with escapes
    names = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(code, names)
    found = ask(subject, "density", **request)["targets"]
    assert_allclose([one["mean"] for one in found], names["density"].mean, rtol=1e-9)
    assert len(capsys.readouterr().out.splitlines()) > 2
