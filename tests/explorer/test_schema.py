"""Requests are what the schema says, or are refused by the name of the field."""

import json

import pytest

from condens.explorer.schema import Column, RequestError, Requests, check, openapi, read_json

REQUESTS = Requests(
    (Column("x", None, False), Column("gap", None, True), Column("town", ("a", "b"), True)),
    ("p", "q"),
)
CONDITION = {"x": 1, "gap": None, "town": "a"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "not_json"),
        (b"{", "not_json"),
        (b"\xff\xfe", "not_json"),
        (b"nothing", "not_json"),
        (b'{"a": 1, "a": 2}', "not_json"),
        (b'{"a": NaN}', "not_finite"),
        (b'{"a": -Infinity}', "not_finite"),
        (b'{"a": 1e400}', "not_finite"),
        (b'{"a": ' + b"9" * 400 + b"}", "not_finite"),
        (b"[" * 9 + b"]" * 9, "too_deep"),
        (b'{"a":' * 10_000, "too_deep"),
    ],
)
def test_what_is_no_json(body, code):
    with pytest.raises(RequestError) as caught:
        read_json(body)
    assert (caught.value.status, caught.value.code) == (400, code)
    assert len(str(caught.value)) < 400


def test_brackets_in_strings_do_not_count():
    text = json.dumps({"a": '[[[[[[[[[[[["\\'})
    assert read_json(text.encode()) == {"a": '[[[[[[[[[[[["\\'}


def density(**changes):
    return check({"condition": CONDITION, **changes}, REQUESTS.density)


def test_defaults_are_filled_in():
    found = density()
    assert found["condition"] == {"x": 1.0, "gap": None, "town": "a"}
    assert (found["given"], found["coverages"], found["near"]) == ({}, [0.5, 0.9], 0)
    assert density(condition={**CONDITION, "x": True})["condition"]["x"] is True


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"condition": 3}, "condition"),
        ({"condition": {}}, "condition.x"),
        ({"condition": {**CONDITION, "y": 1}}, "condition.y"),
        ({"condition": {**CONDITION, "x": None}}, "condition.x"),
        ({"condition": {**CONDITION, "x": "1"}}, "condition.x"),
        ({"condition": {**CONDITION, "town": 1}}, "condition.town"),
        ({"condition": {**CONDITION, "town": "a" * 2000}}, "condition.town"),
        ({"given": {"r": 1}}, "given.r"),
        ({"given": {"p": None}}, "given.p"),
        ({"given": {"p": True}}, "given.p"),
        ({"coverages": []}, "coverages"),
        ({"coverages": [0.5] * 6}, "coverages"),
        ({"coverages": [1]}, "coverages[0]"),
        ({"levels": [0.0]}, "levels[0]"),
        ({"limits": {"p": [0]}}, "limits.p"),
        ({"points": 10**9}, "points"),
        ({"pixels": 41.5}, "pixels"),
        ({"pixels": -1}, "pixels"),
        ({"near": True}, "near"),
        ({"encoding": "pickle"}, "encoding"),
        ({"targets": ["r"]}, "targets[0]"),
        ({"path": "/etc/passwd"}, "path"),
    ],
)
def test_a_wrong_field_is_named(changes, field):
    with pytest.raises(RequestError) as caught:
        density(**changes)
    assert (caught.value.status, caught.value.field) == (422, field)


@pytest.mark.parametrize(
    ("question", "field"),
    [
        (3, "questions[0].ask"),
        ({}, "questions[0].ask"),
        ({"ask": "eval"}, "questions[0].ask"),
        ({"ask": ["mean"]}, "questions[0].ask"),
        ({"ask": "cdf", "target": "p"}, "questions[0].value"),
        ({"ask": "mean", "target": "p"}, "questions[0].target"),
    ],
)
def test_a_wrong_question_is_named(question, field):
    with pytest.raises(RequestError) as caught:
        check({"condition": CONDITION, "questions": [question]}, REQUESTS.query)
    assert caught.value.field == field


def test_a_message_is_short_and_has_no_control_characters():
    name = "\u202e\x1b[31m" + "x" * 500
    with pytest.raises(RequestError) as caught:
        density(**{name: 1})
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_the_document_has_the_schemas_that_are_checked():
    document = openapi(REQUESTS)
    json.dumps(document, allow_nan=False)
    post = document["paths"]["/api/density"]["post"]
    assert post["requestBody"]["content"]["application/json"]["schema"] == REQUESTS.density
    assert post["security"] == [{"token": []}]
    assert set(document["paths"]) == {"/api/density", "/api/sample", "/api/query", "/healthz"}
