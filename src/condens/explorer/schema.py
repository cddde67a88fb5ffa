"""Requests as JSON: what they may hold, in JSON Schema, and the check of every one against it.

The same schemas are the server's OpenAPI document: what it says is what is checked.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from condens._version import __version__
from condens.errors import CondensError
from condens.scalars import printable

Schema = dict[str, Any]
Value = dict[str, Any]

MAX_BODY_BYTES = 64 * 1024
MAX_DEPTH = 8
# Digits of a whole number that are read as such; a longer one is a real number.
MAX_DIGITS = 15
MAX_TEXT = 1000
MAX_SHOWN = 80
MAX_SAMPLES, MAX_QUESTIONS, MAX_LEVELS, MAX_NEAR = 10_000, 32, 50, 500
# Targets of one corner plot.
MAX_TARGETS = 8
MAX_POINTS, MAX_PIXELS = 400, 100
LEVELS = (0.025, 0.05, 0.25, 0.5, 0.75, 0.95, 0.975)
COVERAGES = (0.5, 0.9)
_STRINGS, _BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"'), re.compile(r"[\[\]{}]")


class RequestError(CondensError):
    """A request that is refused, with the status of its response.

    Args:
        subject: the field, as a path such as `condition.area`.
        status: of HTTP.
        code: a word for programs.
        got, expected, fix: as those of every error of condens.
    """

    def __init__(
        self,
        subject: str,
        *,
        status: int = 422,
        code: str = "invalid",
        got: str = "",
        expected: str = "",
        fix: str = "",
    ) -> None:
        super().__init__(subject, got=got, expected=expected, fix=fix)
        self.status, self.code, self.field = status, code, subject if got else None


@dataclass(frozen=True)
class Column:
    """A condition: its name, and the categories it may have; None for numbers."""

    name: str
    categories: tuple[Any, ...] | None
    may_miss: bool

    @property
    def schema(self) -> Schema:
        """Return what a value may be."""
        if self.categories is None:
            types = ["number", "boolean"]
        else:
            first = self.categories[0]
            types = ["string" if isinstance(first, str) else "number"]
            types = ["boolean"] if isinstance(first, bool) else types
        return {"type": [*types, "null"] if self.may_miss else types, "maxLength": MAX_TEXT}


# Reading.


def read_json(body: bytes) -> Any:
    """Return the value of a JSON text; refuse numbers that are not finite, and deep nesting.

    >>> read_json(b'{"x": [1, 2.5]}')
    {'x': [1, 2.5]}
    >>> read_json(b'[1e400]')
    Traceback (most recent call last):
    condens.explorer.schema.RequestError: the body holds 1e400, but finite numbers were expected. \
Leave it out, or send null where a value is missing.
    """
    try:
        text = body.decode("utf-8")
        _check_depth(text)
        return json.loads(
            text,
            parse_constant=_not_finite,
            parse_float=_real,
            parse_int=_whole,
            object_pairs_hook=_members,
        )
    except RequestError:
        raise
    except (ValueError, RecursionError) as error:
        raise RequestError(
            "the body",
            status=400,
            code="not_json",
            got=f"cannot be read ({shown(str(error))})",
            expected="JSON in UTF-8 was expected",
            fix="Send an object as /openapi.json describes it.",
        ) from None


def _not_finite(text: str) -> Any:
    raise RequestError(
        "the body",
        status=400,
        code="not_finite",
        got=f"holds {shown(text)}",
        expected="finite numbers were expected",
        fix="Leave it out, or send null where a value is missing.",
    )


def _real(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else float(_not_finite(text))


def _whole(text: str) -> float:
    return int(text) if len(text) <= MAX_DIGITS else _real(text)


def _members(pairs: list[tuple[str, Any]]) -> Value:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice in an object")
    return found


def _check_depth(text: str) -> None:
    """Refuse deep nesting before it is parsed; brackets within strings do not count."""
    depth = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            raise RequestError(
                "the body",
                status=400,
                code="too_deep",
                got=f"is nested deeper than {MAX_DEPTH} levels",
                expected="less was expected",
                fix="Send an object as /openapi.json describes it.",
            )


def shown(value: object) -> str:
    """Return a value of a request as it may stand in a message.

    >>> shown("a" * 1000)[-3:]
    'aa…'
    """
    text = value if isinstance(value, str) else repr(value)
    return printable(text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…")


# Checking.

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}


def check(value: Any, schema: Schema, path: str = "the body") -> Any:
    """Return a value with its defaults filled in; refuse what a schema does not allow.

    A small part of JSON Schema: type, enum, bounds, items, properties, required, default, and
    oneOf told apart by one property. No other property than those listed is allowed.

    >>> check({"n": 3}, {"type": "object", "properties": {"n": {"type": "integer", "maximum": 2}}})
    Traceback (most recent call last):
    condens.explorer.schema.RequestError: n is 3, but at most 2 was expected. See /openapi.json.
    """
    if "oneOf" in schema:
        return _check_one_of(value, schema, path)
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    kind = next((name for name in types if _is(value, name)), None)
    if kind is None:
        raise _refused(path, value, f"a value of type {' or '.join(types)}")
    if "enum" in schema and value not in schema["enum"]:
        raise _refused(path, value, f"one of {', '.join(map(shown, schema['enum']))}")
    if kind in ("number", "integer"):
        _check_bounds(value, schema, path)
        return float(value) if kind == "number" else value
    if kind == "string" and len(value) > schema.get("maxLength", MAX_TEXT):
        raise _refused(path, value, f"at most {schema.get('maxLength', MAX_TEXT)} characters")
    if kind == "array":
        low, high = schema.get("minItems", 0), schema["maxItems"]
        if not low <= len(value) <= high:
            raise _refused(path, f"a list of {len(value)}", f"a list of {low} to {high}")
        return [check(v, schema["items"], f"{path}[{i}]") for i, v in enumerate(value)]
    return _check_object(value, schema, path) if kind == "object" else value


def _is(value: Any, name: str) -> bool:
    return isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def _check_bounds(value: float, schema: Schema, path: str) -> None:
    bounds = (
        ("minimum", value < schema.get("minimum", value), "at least"),
        ("maximum", value > schema.get("maximum", value), "at most"),
        ("exclusiveMinimum", value <= schema.get("exclusiveMinimum", -math.inf), "more than"),
        ("exclusiveMaximum", value >= schema.get("exclusiveMaximum", math.inf), "less than"),
    )
    for name, wrong, words in bounds:
        if wrong:
            raise _refused(path, value, f"{words} {schema[name]}")


def _check_object(value: Value, schema: Schema, path: str) -> Value:
    properties = schema["properties"]
    prefix = "" if path == "the body" else f"{path}."
    for name in value:
        if name not in properties:
            listed = ", ".join(map(shown, list(properties)[:20])) or "none"
            raise RequestError(
                f"{prefix}{shown(name)}",
                code="unknown_field",
                got="is not known",
                expected=f"only these were expected: {listed}",
                fix="Leave it out.",
            )
    for name in schema.get("required", ()):
        if name not in value:
            raise RequestError(
                f"{prefix}{shown(name)}",
                code="missing_field",
                got="is missing",
                expected="it is required",
                fix="See /openapi.json.",
            )
    return {
        name: check(value[name], inner, f"{prefix}{shown(name)}")
        if name in value
        else inner["default"]
        for name, inner in properties.items()
        if name in value or "default" in inner
    }


def _check_one_of(value: Any, schema: Schema, path: str) -> Any:
    key = schema["discriminator"]["propertyName"]
    words = [option["properties"][key]["enum"][0] for option in schema["oneOf"]]
    word = value.get(key) if isinstance(value, dict) else None
    if not isinstance(word, str) or word not in words:
        raise _refused(f"{path}.{key}", word, f"one of {', '.join(words)}")
    return check(value, schema["oneOf"][words.index(word)], path)


def _refused(path: str, value: Any, expected: str) -> RequestError:
    return RequestError(
        path,
        got=f"is {shown(value)}",
        expected=f"{expected} was expected",
        fix="See /openapi.json.",
    )


# What may be asked.

NUMBER: Schema = {"type": "number"}
FRACTION: Schema = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}


def _object(properties: Schema, required: Sequence[str] = ()) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _whole_number(low: int, high: int, default: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high, "default": default}


def _fractions(default: Sequence[float], most: int) -> Schema:
    return {
        "type": "array",
        "items": FRACTION,
        "minItems": 1,
        "maxItems": most,
        "default": list(default),
    }


@dataclass(frozen=True)
class Requests:
    """The schemas of the requests that a model can answer.

    Args:
        conditions: the columns of X.
        targets: the names of the columns of y.
    """

    conditions: tuple[Column, ...]
    targets: tuple[str, ...]

    @property
    def view(self) -> Schema:
        """What every request has: a condition, and targets whose values are given."""
        names = [column.name for column in self.conditions]
        return {
            "condition": _object(
                {column.name: column.schema for column in self.conditions}, required=names
            ),
            "given": {**self._by_target(NUMBER), "default": {}},
        }

    @property
    def density(self) -> Schema:
        """A request of `/api/density`."""
        ends = {"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 2}
        names = {"type": "string", "enum": list(self.targets)}
        return _object(
            {
                **self.view,
                "targets": {
                    "type": "array",
                    "items": names,
                    "maxItems": MAX_TARGETS,
                    "default": [],
                },
                "coverages": _fractions(COVERAGES, 5),
                "levels": _fractions(LEVELS, MAX_LEVELS),
                "limits": {**self._by_target(ends), "default": {}},
                "points": _whole_number(8, MAX_POINTS, 120),
                "pixels": _whole_number(8, MAX_PIXELS, 40),
                "near": _whole_number(0, MAX_NEAR, 0),
                "encoding": {
                    "type": "string",
                    "enum": ["numbers", "base64"],
                    "default": "numbers",
                },
            },
            required=["condition"],
        )

    @property
    def sample(self) -> Schema:
        """A request of `/api/sample`."""
        return _object(
            {
                **self.view,
                "n_samples": _whole_number(1, MAX_SAMPLES, 1000),
                "seed": _whole_number(0, 2**31 - 1, 0),
            },
            required=["condition"],
        )

    @property
    def query(self) -> Schema:
        """A request of `/api/query`."""
        target = {"target": {"type": "string", "enum": list(self.targets)}}
        box = self._by_target(NUMBER)

        def ask(
            word: str, properties: Schema | None = None, required: Sequence[str] = ()
        ) -> Schema:
            named = {"ask": {"type": "string", "enum": [word]}, **(properties or {})}
            return _object(named, required=["ask", *required])

        questions = [
            ask("mean"),
            ask("stddev"),
            ask("covariance"),
            ask("quantiles", {**target, "levels": _fractions(LEVELS, MAX_LEVELS)}, ["target"]),
            ask("interval", {**target, "coverage": {**FRACTION, "default": 0.9}}, ["target"]),
            ask("cdf", {**target, "value": NUMBER}, ["target", "value"]),
            ask("log_prob", {"value": box}, ["value"]),
            ask("probability", {n: {**box, "default": {}} for n in ("lower", "upper")}),
            ask("calibrated_intervals", {"coverage": {**FRACTION, "default": 0.9}}),
            ask("novelty"),
        ]
        return _object(
            {
                **self.view,
                "questions": {
                    "type": "array",
                    "items": {"oneOf": questions, "discriminator": {"propertyName": "ask"}},
                    "minItems": 1,
                    "maxItems": MAX_QUESTIONS,
                },
            },
            required=["condition", "questions"],
        )

    def _by_target(self, schema: Schema) -> Schema:
        return _object(dict.fromkeys(self.targets, schema))


def openapi(requests: Requests) -> Value:
    """Return the OpenAPI document of a server for one model."""
    error = _object(
        {
            "error": _object(
                {
                    "code": {"type": "string"},
                    "field": {"type": ["string", "null"]},
                    "message": {"type": "string"},
                },
                required=["code", "message"],
            )
        },
        required=["error"],
    )
    refusals = {
        "400": "The body is no JSON, or holds a number that is not finite.",
        "401": "Neither the token nor the cookie is right.",
        "408": "The body came too slowly.",
        "413": f"The body has more than {MAX_BODY_BYTES} bytes.",
        "415": "The content type is not application/json.",
        "422": "A field is missing, unknown, or has a value that it cannot have.",
        "503": "Too many requests wait; ask again after Retry-After seconds.",
    }
    failures = {
        status: {"description": words, "content": {"application/json": {"schema": error}}}
        for status, words in refusals.items()
    }

    def post(name: str, summary: str, schema: Schema) -> Value:
        return {
            "post": {
                "operationId": name,
                "summary": summary,
                "security": [{"token": []}],
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": schema}},
                },
                "responses": {
                    "200": {
                        "description": "The answer.",
                        "content": {"application/json": {"schema": {"type": "object"}}},
                    },
                    **failures,
                },
            }
        }

    return {
        "openapi": "3.1.0",
        "info": {
            "title": "condens",
            "version": __version__,
            "description": "The joint density of a model's targets given a condition.",
        },
        "paths": {
            "/api/density": post(
                "density", "Marginals, pairs and numbers of the density.", requests.density
            ),
            "/api/sample": post("sample", "Draws of the targets.", requests.sample),
            "/api/query": post("query", "Several questions about one density.", requests.query),
            "/healthz": {
                "get": {
                    "operationId": "health",
                    "summary": "Whether the server is alive.",
                    "responses": {"200": {"description": "It is."}},
                }
            },
        },
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }
