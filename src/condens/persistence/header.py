"""The header of a safetensors file: strict JSON, and tensors that fill the data exactly."""

import json
import math
from itertools import chain
from typing import Any, NamedTuple

import torch

from condens.errors import ModelFileError
from condens.persistence.faults import reason, short

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
# So much a header may hold: what is read in a second or less, and more than models need.
LARGEST_HEADER = 16 * 2**20
MOST_VALUES = 2**19
MOST_TENSORS = 2**12
DEEPEST = 32
MOST_AXES = 16
# Beyond this the strides of even an empty tensor leave 64 bits.
MOST_ELEMENTS = 2**48


class Entry(NamedTuple):
    """Where a tensor lies in the data."""

    begin: int
    end: int
    name: str
    dtype: torch.dtype
    shape: list[int]


def canonical(value: Any) -> str:
    """Return the one text that a value has as JSON.

    >>> canonical({"b": 1.0, "a": [None]})
    '{"a":[null],"b":1.0}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def parse(what: str, text: str | bytes) -> dict[str, Any]:
    """Return the object that a JSON text holds: every key once, every number finite."""
    check_count(what, text)
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refused)
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


def check_count(what: str, text: str | bytes) -> None:
    """Refuse a JSON text of so many values that reading them takes long, before any is read."""
    # A value is the first of its list or object or follows a comma; some are within strings.
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    count = sum(map(data.count, (b"[", b"{", b",")))
    if count > MOST_VALUES:
        raise ModelFileError(
            what, got=f"holds about {count} values", expected=f"{MOST_VALUES} at most are read"
        )


def check_depth(what: str, value: Any) -> None:
    """Refuse what is nested so deeply that reading it could exhaust the stack."""
    level = [value]
    for _ in range(DEEPEST):
        children = (v.values() if isinstance(v, dict) else v for v in level)
        level = [v for v in chain.from_iterable(children) if isinstance(v, dict | list | tuple)]
        if not level:
            return
    raise ModelFileError(
        what, got=f"is nested deeper than {DEEPEST} levels", expected="less was expected"
    )


def entries(header: dict[str, Any], size: int) -> list[Entry]:
    """Return the tensors of a header in the order they lie in, checked to fill `size` bytes."""
    if len(header) > MOST_TENSORS:
        raise ModelFileError(
            "its header",
            got=f"tells of {len(header)} tensors",
            expected=f"{MOST_TENSORS} at most are read",
        )
    listed = sorted(_entry(name, value) for name, value in header.items())
    position = 0
    for entry in listed:
        if entry.begin != position:
            raise ModelFileError(
                f"tensor {short(entry.name)}",
                got=f"begins at byte {short(entry.begin)} of the data",
                expected=f"{position} was expected",
            )
        position = entry.end
    if position != size:
        raise ModelFileError(
            "the file", got=f"has {size} bytes of data", expected=f"its header tells of {position}"
        )
    return listed


def _entry(name: str, value: Any) -> Entry:
    owner = f"tensor {short(name)}"
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise ModelFileError(
            owner, got=f"is {short(value)}", expected="dtype, shape and data_offsets were expected"
        )
    kind, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(kind, str) or kind not in DTYPES:
        raise ModelFileError(
            owner,
            got=f"has dtype {short(kind)}",
            expected=f"one of {', '.join(DTYPES)} was expected",
        )
    if not _whole(shape) or len(shape) > MOST_AXES:
        raise ModelFileError(
            owner, got=f"has shape {short(shape)}", expected="sizes of at least 0 were expected"
        )
    if math.prod(max(n, 1) for n in shape) > MOST_ELEMENTS:
        raise ModelFileError(
            owner, got=f"has shape {short(shape)}", expected="no file holds so many numbers"
        )
    if not _whole(offsets) or len(offsets) != 2:
        raise ModelFileError(
            owner, got=f"has offsets {short(offsets)}", expected="a begin and an end were expected"
        )
    (begin, end), count = offsets, math.prod(shape) * DTYPES[kind].itemsize
    if end - begin != count:
        raise ModelFileError(
            owner, got=f"has {short(end - begin)} bytes", expected=f"its shape needs {count}"
        )
    return Entry(begin, end, name, DTYPES[kind], shape)


def _whole(values: Any) -> bool:
    return isinstance(values, list) and all(type(n) is int and n >= 0 for n in values)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice")
    return value


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not a number of JSON")
