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
)
from condens.files import cannot_hold, open_regular, write_whole
from condens.persistence.faults import naming, short
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
            raise ModelFileError(
                "the file",
                got=f"cannot be written ({reason})",
                expected="a model goes there",
                fix="Make room there, or name another place; what was there before is unchanged.",
            ) from error


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
            raise (ModelFileNotFoundError if absent else ModelFileError)(
                "the file",
                got=f"cannot be read ({getattr(error, 'strerror', None) or error})",
                expected="a model file was expected",
                fix="Check the path and who may read it.",
            ) from error
        _check_digest(text, record, tensors)
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise ModelFileError(
                    f"tensor {short(name)}",
                    got="holds NaN or infinity",
                    expected="finite numbers were expected",
                )
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
        raise ArgumentError(
            "model",
            got=f"has {len(plain)} tensors",
            expected=f"at most {MOST_TENSORS} go into a file",
            fix="Save it in parts.",
        )
    try:
        check_depth("document", record)
        _check_keys(record)
        text = canonical(record)
        text = canonical({**record, "sha256": _digest(text, plain)})
    except (TypeError, ValueError, RecursionError, ModelFileError) as error:
        raise ArgumentError(
            "document",
            got=f"cannot be JSON ({error})",
            expected="a file holds JSON and tensors",
            fix="Use numbers that are finite, strings, lists and dictionaries of them.",
        ) from error
    data: bytes = safetensors.torch.save(plain, metadata={"condens": text})
    length = int.from_bytes(data[:8], "little")
    if length > LARGEST_HEADER:
        raise ArgumentError(
            "document",
            got="is too large",
            expected=f"at most {LARGEST_HEADER} bytes go before the tensors",
            fix="Keep less in it.",
        )
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
        raise ArgumentError(
            name,
            got=f"is {getattr(tensor, 'dtype', type(tensor).__name__)}",
            expected="a file holds tensors of real numbers",
            fix="Keep other things out of the model's state.",
        )
    if tensor.is_meta or tensor.layout != torch.strided:
        raise ArgumentError(
            name,
            got="has no memory" if tensor.is_meta else f"is {tensor.layout}",
            expected="a file holds numbers one by one",
            fix="Make it a dense tensor with values first.",
        )
    # The format's own word, and letters that no encoding has.
    if name == "__metadata__" or name != name.encode(errors="ignore").decode():
        raise ArgumentError(
            "a tensor",
            got=f"has the name {name!r}",
            expected="a file cannot hold it under that",
            fix="Rename it.",
        )
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise NotFiniteError(
            name,
            got="holds NaN or infinity",
            expected="a model is saved with finite numbers",
            fix="Train again from finite weights; keep masks out of the state (persistent=False).",
        )
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _target(path: Path) -> Path:
    """Return the regular file to write, which need not exist yet."""
    fault = cannot_hold(path)
    if fault is not None:
        raise ModelFileError("the path", **fault)
    return path.resolve()


def _open(path: Path) -> BufferedReader:
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise ModelFileError(
            "the path",
            got="is a directory" if stat.S_ISDIR(mode) else "is a device, a pipe or a socket",
            expected="a regular file was expected",
            fix="Name a model file.",
        )
    return os.fdopen(open_regular(path), "rb")


def _header(file: BufferedReader) -> tuple[Document, int]:
    """Return the header and how many bytes follow it."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(9)
    _refuse_pickle(start)
    length = int.from_bytes(start[:8], "little")
    if size < 10:
        raise ModelFileError(
            "the file", got=f"has {size} bytes", expected="a model file was expected"
        )
    if not 2 <= length <= min(LARGEST_HEADER, size - 8):
        expected = f"2 to {LARGEST_HEADER} were expected"
        raise ModelFileError(
            "its header",
            got=f"is said to have {length} bytes",
            expected=f"{expected} in a file of {size}",
        )
    text = start[8:] + file.read(length - 1)
    return parse("its header", text), size - 8 - length


def _refuse_pickle(start: bytes) -> None:
    # A length may begin with the same bytes; then a brace follows it.
    pickled = start[:1] == b"\x80" and start[1:2] in (b"\2", b"\3", b"\4", b"\5")
    if start[8:] != b"{" and (pickled or start.startswith(b"PK")):
        raise ModelFileError(
            "the file",
            got="is a pickle" if pickled else "is a zip file, as torch.save makes them of pickles",
            expected="a pickle could run code when it is opened, and condens opens none",
            fix="Load it where it was made, and save it with condens.persistence.save.",
        )


def _record(header: Document) -> tuple[str, Document]:
    """Take the metadata off a header; return the text of condens in it, and what it says."""
    metadata = header.pop("__metadata__", None)
    text = metadata.get("condens") if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise ModelFileError(
            "its header",
            got="has no entry of condens",
            expected="a model of condens was expected",
            fix="Name a file that condens saved.",
        )
    record = parse("the entry of condens", text)
    version = record.get("format")
    if type(version) is int and version > FORMAT:
        raise ModelFileError(
            "the file",
            got=f"has format {short(version)}, made by a newer condens",
            expected=f"condens {__version__} reads formats up to {FORMAT}",
            fix="Upgrade condens.",
        )
    fields = {"document": dict, "format": int, "sha256": str, "versions": dict}
    if {name: type(value) for name, value in record.items()} != fields:
        raise ModelFileError(
            "the entry of condens",
            got=f"holds {short(sorted(record))}",
            expected=f"{', '.join(fields)} were expected",
        )
    return text, record


def _tensor(entry: Entry, file: BufferedReader) -> Tensor:
    owner = f"tensor {short(entry.name)}"
    try:
        tensor = torch.empty(entry.shape, dtype=entry.dtype, device="cpu")
    except (RuntimeError, MemoryError) as error:
        raise ModelFileError(
            owner,
            got=f"needs {entry.end - entry.begin} bytes",
            expected="there is less memory",
            fix="Free some, or use a larger machine.",
        ) from error
    data = _bytes(tensor)
    if file.readinto(data.numpy().data) != len(data):
        raise ModelFileError(
            owner, got="ends before its last byte", expected="the whole of it was expected"
        )
    if entry.dtype == torch.bool and bool((data > 1).any()):
        raise ModelFileError(
            owner, got="holds a byte other than 0 and 1", expected="truth values were expected"
        )
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
        raise ModelFileError(
            "the file",
            got="has changed since it was saved",
            expected="its SHA-256 was expected to agree",
        )


def _upgraded(record: Document, tensors: Tensors) -> tuple[Document, Tensors]:
    document = record["document"]
    for version in range(record["format"], FORMAT):
        if version not in UPGRADES:
            raise ModelFileError(
                "the file",
                got=f"has format {short(version)}",
                expected="this condens cannot upgrade that",
                fix="Open it with the condens that made it.",
            )
        document, tensors = UPGRADES[version](document, tensors)
    return document, tensors
