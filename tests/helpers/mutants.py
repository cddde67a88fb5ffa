"""Damaged model files without end: bytes changed at random, and documents with a right hash."""

import copy
import struct

import numpy as np
from helpers import model_files as files

VALUES = (
    *(None, True, False, 0, 1, -1, 2, 3, 4, 7, 2**31, 2**63, 10**12, 10**40, 0.0, -0.0, 0.5, 1.5),
    *(1e-5, 1e308, -1.0, 5e-324, "", "a", "silu", "full", "tied", "low_rank", "float64", "mlp"),
    *("network", "mixture", "ensemble", "custom", "regressor", "__class__", "os.system", "é", "\0"),
    *([], [1], ["a", "b"], [[]], {}, {"kind": "custom"}, {"kind": "mlp"}, {"a": {"b": []}}),
)
LENGTHS = (0, 1, 2, 7, 8, 9, 255, 2**16, 2**24, 2**24 + 1, 2**31, 2**32, 2**60, 2**63, 2**64 - 1)


def of_bytes(data, random):
    """Return a file some of whose bytes are others, more or fewer."""
    data = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        random.choice(BYTES)(data, random)
    if random.random() < 0.3:
        _repair(data)
    return bytes(data)


def of_document(data, random):
    """Return a file whose document or tensors are others, with a hash that is right."""
    record, tensors = files.arrays(data)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if random.random() < 0.6:
            _change(record, random)
        else:
            random.choice(TENSORS)(tensors, random)
    return files.sealed(record, tensors)


def _place(data, random):
    # Half of them in the header, which has more to get wrong.
    end = min(len(data), 2000) if random.random() < 0.5 else len(data)
    return random.randrange(end + 1)


def _flip(data, random):
    if data:
        data[min(_place(data, random), len(data) - 1)] ^= 1 << random.randrange(8)


def _set(data, random):
    if data:
        byte = random.choice((*b'{}[]",:0123456789-eE\\u \t\0\xff', random.randrange(256)))
        data[min(_place(data, random), len(data) - 1)] = byte


def _insert(data, random):
    place = _place(data, random)
    some = (b" ", b"\0", b"{", b'"', b"[" * 50, b"\\ud800", b"9" * 30, random.randbytes(8))
    data[place:place] = random.choice(some)


def _delete(data, random):
    place = _place(data, random)
    del data[place : place + random.choice((1, 1, 2, 8, 100))]


def _splice(data, random):
    begin, place, length = _place(data, random), _place(data, random), random.randrange(1, 200)
    piece = data[begin : begin + length]
    data[place : place + random.choice((0, length))] = piece


def _truncate(data, random):
    del data[_place(data, random) :]


def _length(data, random):
    (now,) = struct.unpack("<Q", bytes(data[:8]).ljust(8, b"\0"))
    near = now + random.choice((-8, -2, -1, 1, 2, 8))
    data[:8] = struct.pack("<Q", random.choice((near % 2**64, *LENGTHS)))


def _repair(data):
    """Make the length of the header end where its last brace is."""
    end = bytes(data).rfind(b"]}}")
    if end > 8:
        data[:8] = struct.pack("<Q", end + 3 - 8)


BYTES = (_flip, _set, _insert, _delete, _splice, _truncate, _length)


def _parents(value):
    if isinstance(value, dict | list) and value:
        yield value
        for child in value.values() if isinstance(value, dict) else value:
            yield from _parents(child)


def _change(record, random):
    parent = random.choice(list(_parents(record)))
    key = random.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
    value = copy.deepcopy(random.choice((*VALUES, *_parents(record))))
    kind = random.random()
    if kind < 0.6:
        parent[key] = value
    elif kind < 0.7:
        del parent[key]
    elif kind < 0.8 and type(parent[key]) in (int, float):
        parent[key] += random.choice((-1, 1, 0.5, 1e-9))
    elif isinstance(parent, dict):
        parent[random.choice(("more", "rank", "depth", "names", key + "x"))] = value
    else:
        parent.insert(key, value)


def _drop(tensors, random):
    tensors.pop(random.choice(list(tensors)), None) if tensors else None


def _rename(tensors, random):
    if tensors:
        name = random.choice(list(tensors))
        other = random.choice((*tensors, "", ".", f"{name}.", f"networks.0.{name}", "é"))
        tensors[other] = tensors.pop(name)


def _reshape(tensors, random):
    if tensors:
        name = random.choice(list(tensors))
        array = tensors[name]
        flat = array.reshape(-1)
        shapes = (array.T, flat, array[None], array[..., None], flat[1:], flat[:0])
        tensors[name] = np.ascontiguousarray(random.choice(shapes))


def _retype(tensors, random):
    if tensors:
        name = random.choice(list(tensors))
        kind = random.choice(list(files.KINDS.values()))
        with np.errstate(over="ignore", invalid="ignore"):
            tensors[name] = tensors[name].astype(kind)


def _revalue(tensors, random):
    full = [name for name, array in tensors.items() if array.size and array.dtype.kind == "f"]
    if full:
        array = tensors[random.choice(full)].reshape(-1)
        value = random.choice((np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0, 1e-40, 3.0))
        array[random.randrange(array.size)] = value


def _add(tensors, random):
    name = random.choice(("more", "backbone.more", "head.linear.bias", "__metadata"))
    tensors[name] = np.zeros(random.choice(((), (0,), (3,), (10_000,))), "float32")


TENSORS = (_drop, _rename, _reshape, _retype, _revalue, _add)
