"""JSON in model files: one text for one value, within limits that keep reading it quick."""

import json
import reprlib
from collections.abc import Callable
from itertools import chain
from typing import Any

from condens.errors import CondensError, ModelFileError

# Far more than models need, and read in less than a second.
MAX_HEADER_BYTES = 16 * 2**20
MAX_JSON_VALUES = 2**19
MAX_JSON_DEPTH = 32
MAX_TENSORS = 2**12
MAX_AXES = 16


def canonical(value: Any) -> str:
    """Return the one text that a value has as JSON.

    >>> canonical({"b": 1.0, "a": [None]})
    '{"a":[null],"b":1.0}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def parse(what: str, text: str | bytes) -> dict[str, Any]:
    """Return the object that a JSON text holds."""
    check_count(what, text)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(
            what, got=f"cannot be read ({reason(error)})", expected="JSON was expected"
        ) from error
    if not isinstance(value, dict):
        raise ModelFileError(
            what, got=f"is {type(value).__name__}", expected="a JSON object was expected"
        )
    check_depth(what, value)
    return value


def check_count(
    what: str, text: str | bytes, refuse: Callable[..., CondensError] = ModelFileError
) -> None:
    """Refuse a JSON text with so many values that reading them takes long, before any is read."""
    # A value is the first of its list or object or follows a comma; some are within strings.
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    count = sum(map(data.count, (b"[", b"{", b",")))
    if count > MAX_JSON_VALUES:
        raise refuse(
            what,
            got=f"holds about {count} values",
            expected=f"at most {MAX_JSON_VALUES} are read",
        )


def check_depth(what: str, value: Any) -> None:
    """Refuse values nested so deeply that walking through them could exhaust the stack.

    Refuses keys too that JSON would turn into text, such as numbers.
    """
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        for key in chain.from_iterable(v for v in level if isinstance(v, dict)):
            if not isinstance(key, str):
                raise ModelFileError(f"the key {short(key)} is no text")
        children = (v.values() if isinstance(v, dict) else v for v in level)
        level = [v for v in chain.from_iterable(children) if isinstance(v, dict | list | tuple)]
        if not level:
            return
    raise ModelFileError(
        what, got=f"is nested deeper than {MAX_JSON_DEPTH} levels", expected="less was expected"
    )


def short(value: object) -> str:
    """Return a value from a file, cut to a length that fits into a message.

    >>> len(short("x" * 10_000))
    30
    """
    return reprlib.repr(value)[:200]


def reason(error: BaseException) -> str:
    """Return the class and the text of an error, cut to a length that fits into a message."""
    return f"{type(error).__name__}: {str(error)[:200]}"
