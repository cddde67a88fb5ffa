"""A file of tensors and one JSON document, which knows nothing of networks.

It is a safetensors file. Its metadata hold one entry, `condens`: a JSON text with the format's
version, the document, the versions of the libraries, and a SHA-256 of all that and of every
tensor's name, dtype, shape and bytes. The same content gives the same bytes.
"""

import hashlib
import os
import stat
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from condens._version import __version__
from condens.errors import (
    ArgumentError,
    ModelFileError,
    ModelFileNotFoundError,
    NotFiniteError,
    message,
)
from condens.files import cannot_hold, open_regular, write_whole
from condens.persistence.faults import damaged, naming, short
from condens.persistence.header import (
    DTYPES,
    LARGEST_HEADER,
    MOST_TENSORS,
    Entry,
    canonical,
    check_count,
    check_depth,
    entries,
    parse,
)
from condens.persistence.upgrades import UPGRADES

FORMAT = 2

Document = dict[str, Any]
Tensors = dict[str, Tensor]


def write(
    path: str | os.PathLike[str], document: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write a document and tensors to a file, whole or not at all.

    A link is followed: the file it points to is replaced, and the link stays.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     write(f"{place}/x.condens", {"kind": "numbers"}, {"x": torch.ones(2)})
    ...     read(f"{place}/x.condens")
    ({'kind': 'numbers'}, {'x': tensor([1., 1.])})
    """
    store(path, pack(document, tensors))


def store(path: str | os.PathLike[str], data: bytes) -> None:
    """Write bytes to a file, whole or not at all, or raise `ModelFileError`."""
    with naming(path):
        try:
            write_whole(_target(Path(path)), data)
        except (OSError, ValueError, RuntimeError) as error:  # the last: links in a circle
            reason = getattr(error, "strerror", None) or error
            remedy = "Make room there, or name another place; what was there before is unchanged."
            came = f"cannot be written ({reason})"
            raise damaged("the file", came, "a model goes there", remedy) from error


def read(path: str | os.PathLike[str]) -> tuple[Document, Tensors]:
    """Return the document and the tensors of a file, or raise `ModelFileError`.

    Nothing in the file is run, and nothing is taken from it before it is checked.
    """
    with naming(path):
        try:
            with _open(Path(path)) as file:
                header, size = _header(file)
                text, record = _record(header)
                tensors = {e.name: _tensor(e, file) for e in entries(header, size)}
        except (OSError, ValueError) as error:
            absent = isinstance(error, FileNotFoundError)
            came = f"cannot be read ({getattr(error, 'strerror', None) or error})"
            remedy = "Check the path and who may read it."
            text = message("the file", came, "a model file was expected", remedy)
            raise (ModelFileNotFoundError if absent else ModelFileError)(text) from error
        _check_digest(text, record, tensors)
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                came = "holds NaN or infinity"
                raise damaged(f"tensor {short(name)}", came, "finite numbers were expected")
        return _upgraded(record, tensors)


def pack(document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """Return the bytes of a file."""
    plain = {name: _plain(name, tensor) for name, tensor in tensors.items()}
    record = {
        "document": document,
        "format": FORMAT,
        "versions": {"condens": __version__, "torch": str(torch.__version__)},
    }
    if len(plain) > MOST_TENSORS:
        came, expected = f"has {len(plain)} tensors", f"at most {MOST_TENSORS} go into a file"
        raise ArgumentError(message("model", came, expected, "Save it in parts."))
    try:
        check_depth("document", record)
        _check_keys(record)
        text = canonical(record)
        text = canonical({**record, "sha256": _digest(text, plain)})
    except (TypeError, ValueError, RecursionError, ModelFileError) as error:
        came, expected = f"cannot be JSON ({error})", "a file holds JSON and tensors"
        remedy = "Use numbers that are finite, strings, lists and dictionaries of them."
        raise ArgumentError(message("document", came, expected, remedy)) from error
    data: bytes = safetensors.torch.save(plain, metadata={"condens": text})
    length = int.from_bytes(data[:8], "little")
    if length > LARGEST_HEADER:
        came, expected = "is too large", f"at most {LARGEST_HEADER} bytes go before the tensors"
        raise ArgumentError(message("document", came, expected, "Keep less in it."))
    try:
        check_count("document", data[8 : 8 + length])
    except ModelFileError as error:
        raise ArgumentError(str(error)) from None
    return data


def _check_keys(value: Any) -> None:
    """Refuse keys that would come back as other ones, such as numbers."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {short(key)} is no text")
            _check_keys(part)
    elif isinstance(value, list | tuple):
        for part in value:
            _check_keys(part)


def _plain(name: str, tensor: Tensor) -> Tensor:
    """Return a copy that shares no memory, checked to be one that a file can hold."""
    if not isinstance(tensor, Tensor) or tensor.dtype not in DTYPES.values():
        came = f"is {getattr(tensor, 'dtype', type(tensor).__name__)}"
        expected = "a file holds tensors of real numbers"
        remedy = "Keep other things out of the model's state."
        raise ArgumentError(message(name, came, expected, remedy))
    if tensor.is_meta or tensor.layout != torch.strided:
        came = "has no memory" if tensor.is_meta else f"is {tensor.layout}"
        remedy = "Make it a dense tensor with values first."
        raise ArgumentError(message(name, came, "a file holds numbers one by one", remedy))
    # The format's own word, and letters that no encoding has.
    if name == "__metadata__" or name != name.encode(errors="ignore").decode():
        came, expected = f"has the name {name!r}", "a file cannot hold it under that"
        raise ArgumentError(message("a tensor", came, expected, "Rename it."))
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        remedy = "Train again from finite weights; keep masks out of the state (persistent=False)."
        raise NotFiniteError(
            message(name, "holds NaN or infinity", "a model is saved with finite numbers", remedy)
        )
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _target(path: Path) -> Path:
    """Return the regular file to write, which need not exist yet."""
    fault = cannot_hold(path)
    if fault is not None:
        raise damaged("the path", *fault)
    return path.resolve()


def _open(path: Path) -> BufferedReader:
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        came = "is a directory" if stat.S_ISDIR(mode) else "is a device, a pipe or a socket"
        raise damaged("the path", came, "a regular file was expected", "Name a model file.")
    return os.fdopen(open_regular(path), "rb")


def _header(file: BufferedReader) -> tuple[Document, int]:
    """Return the header and how many bytes follow it."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(9)
    _refuse_pickle(start)
    length = int.from_bytes(start[:8], "little")
    if size < 10:
        raise damaged("the file", f"has {size} bytes", "a model file was expected")
    if not 2 <= length <= min(LARGEST_HEADER, size - 8):
        came, expected = f"is said to have {length} bytes", f"2 to {LARGEST_HEADER} were expected"
        raise damaged("its header", came, f"{expected} in a file of {size}")
    text = start[8:] + file.read(length - 1)
    return parse("its header", text), size - 8 - length


def _refuse_pickle(start: bytes) -> None:
    # A length may begin with the same bytes; then a brace follows it.
    pickled = start[:1] == b"\x80" and start[1:2] in (b"\2", b"\3", b"\4", b"\5")
    if start[8:] != b"{" and (pickled or start.startswith(b"PK")):
        came = "is a pickle" if pickled else "is a zip file, as torch.save makes them of pickles"
        expected = "a pickle could run code when it is opened, and condens opens none"
        remedy = "Load it where it was made, and save it with condens.persistence.save."
        raise damaged("the file", came, expected, remedy)


def _record(header: Document) -> tuple[str, Document]:
    """Take the metadata off a header; return the text of condens in it, and what it says."""
    metadata = header.pop("__metadata__", None)
    text = metadata.get("condens") if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        came, expected = "has no entry of condens", "a model of condens was expected"
        raise damaged("its header", came, expected, "Name a file that condens saved.")
    record = parse("the entry of condens", text)
    version = record.get("format")
    if type(version) is int and version > FORMAT:
        came = f"has format {short(version)}, made by a newer condens"
        expected = f"condens {__version__} reads formats up to {FORMAT}"
        raise damaged("the file", came, expected, "Upgrade condens.")
    fields = {"document": dict, "format": int, "sha256": str, "versions": dict}
    if {name: type(value) for name, value in record.items()} != fields:
        came, expected = f"holds {short(sorted(record))}", f"{', '.join(fields)} were expected"
        raise damaged("the entry of condens", came, expected)
    return text, record


def _tensor(entry: Entry, file: BufferedReader) -> Tensor:
    owner = f"tensor {short(entry.name)}"
    try:
        tensor = torch.empty(entry.shape, dtype=entry.dtype, device="cpu")
    except (RuntimeError, MemoryError) as error:
        came, expected = f"needs {entry.end - entry.begin} bytes", "there is less memory"
        raise damaged(owner, came, expected, "Free some, or use a larger machine.") from error
    data = _bytes(tensor)
    if file.readinto(data.numpy().data) != len(data):
        raise damaged(owner, "ends before its last byte", "the whole of it was expected")
    if entry.dtype == torch.bool and bool((data > 1).any()):
        raise damaged(owner, "holds a byte other than 0 and 1", "truth values were expected")
    return tensor


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _digest(text: str, tensors: Tensors) -> str:
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(canonical([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(_bytes(tensor).numpy().data)
    return digest.hexdigest()


def _check_digest(text: str, record: Document, tensors: Tensors) -> None:
    # The text itself must be the canonical one: 1e-5 and 1E-5 are the same number.
    rest = {name: value for name, value in record.items() if name != "sha256"}
    try:
        same = canonical(record) == text and _digest(canonical(rest), tensors) == record["sha256"]
    except ValueError:  # a number too large for a double
        same = False
    if not same:
        came, expected = "has changed since it was saved", "its SHA-256 was expected to agree"
        raise damaged("the file", came, expected)


def _upgraded(record: Document, tensors: Tensors) -> tuple[Document, Tensors]:
    document = record["document"]
    for version in range(record["format"], FORMAT):
        if version not in UPGRADES:
            came, expected = f"has format {short(version)}", "this condens cannot upgrade that"
            raise damaged("the file", came, expected, "Open it with the condens that made it.")
        document, tensors = UPGRADES[version](document, tensors)
    return document, tensors
