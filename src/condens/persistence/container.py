"""The file format: a safetensors file with tensors and one JSON document.

The metadata hold one entry, `condens`: a JSON text with the format's version, the document, the
versions of the libraries, and a SHA-256 of all that and of every tensor's name, dtype, shape and
bytes. The same content gives the same bytes. What the document means is left to the callers.
"""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from io import BufferedReader
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
from condens.files import as_path, cannot_hold, open_regular, write_whole
from condens.persistence.header import (
    MAX_AXES,
    MAX_HEADER_BYTES,
    MAX_TENSORS,
    canonical,
    check_count,
    check_depth,
    parse,
    reason,
    short,
)

FORMAT = 9
DTYPES = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
}

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
    place = as_path("path", path)
    with naming(path):
        try:
            if fault := cannot_hold(place):
                raise ModelFileError("the path", **fault)
            write_whole(place.resolve(), data)
        except (OSError, ValueError, RuntimeError) as error:  # the last: links in a circle
            raise ModelFileError(
                "the file",
                got=f"cannot be written ({getattr(error, 'strerror', None) or error})",
                expected="a model goes there",
                fix="Make room there, or name another place; what was there before is unchanged.",
            ) from error


def read(path: str | os.PathLike[str]) -> tuple[Document, Tensors]:
    """Return the document and the tensors of a file, or raise `ModelFileError`.

    Nothing in the file is run, and nothing is returned before it is checked.
    """
    with naming(path), _opened(path) as file:
        start, header = _header(file)
        text, record = _record(header)
        tensors = _tensors(start + file.read(), len(header) - 1)
        _check_digest(text, record, tensors)
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise ModelFileError(
                    f"tensor {short(name)}",
                    got="holds NaN or infinity",
                    expected="finite numbers were expected",
                )
        return record["document"], tensors


def kind_of(path: str | os.PathLike[str]) -> object:
    """Return the kind of model that a file says it holds; whether it does, `read` checks."""
    with naming(path), _opened(path) as file:
        return _record(_header(file)[1])[1]["document"].get("kind")


def versions_of(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the versions of the libraries that a file says it was written with."""
    with naming(path), _opened(path) as file:
        return {**_record(_header(file)[1])[1]["versions"]}


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Put the path before the message of every `ModelFileError`."""
    try:
        yield
    except ModelFileError as error:
        raise type(error)(f"{os.fspath(path)}: {error}") from error.__cause__


def pack(document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """Return the bytes of a file."""
    plain = {name: _plain(name, tensor) for name, tensor in tensors.items()}
    record = {
        "document": document,
        "format": FORMAT,
        "versions": {"condens": __version__, "torch": str(torch.__version__)},
    }
    if len(plain) > MAX_TENSORS:
        raise ArgumentError(
            "model",
            got=f"has {len(plain)} tensors",
            expected=f"at most {MAX_TENSORS} go into a file",
            fix="Save it in parts.",
        )
    try:
        check_depth("document", record)
        text = canonical({**record, "sha256": _digest(canonical(record), plain)})
    except (TypeError, ValueError, RecursionError, ModelFileError) as error:
        raise ArgumentError(
            "document",
            got=f"cannot be JSON ({error})",
            expected="a file holds JSON and tensors",
            fix="Use numbers that are finite, strings, lists and dictionaries of them.",
        ) from error
    data: bytes = safetensors.torch.save(plain, metadata={"condens": text})
    length = int.from_bytes(data[:8], "little")
    refuse = partial(ArgumentError, fix="Keep less in it.")
    if length > MAX_HEADER_BYTES:
        raise refuse(
            "document",
            got="is too large",
            expected=f"at most {MAX_HEADER_BYTES} bytes go before the tensors",
        )
    check_count("document", data[8 : 8 + length], refuse)
    return data


def _plain(name: str, tensor: Tensor) -> Tensor:
    """Return a copy that shares no memory, checked to be one that a file can hold."""
    if not isinstance(tensor, Tensor) or tensor.dtype not in DTYPES:
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
    # A reserved name of safetensors, and letters that UTF-8 cannot encode.
    if name == "__metadata__" or name != name.encode(errors="ignore").decode():
        raise ArgumentError(
            "a tensor",
            got=f"has the name {name!r}",
            expected="safetensors cannot hold that name",
            fix="Rename the attribute of the module.",
        )
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise NotFiniteError(
            name,
            got="holds NaN or infinity",
            expected="a model is saved with finite numbers",
            fix="Train again from finite weights; keep masks out of the state (persistent=False).",
        )
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[BufferedReader]:
    """Open a regular file to read from; raise `ModelFileError` for what the system refuses."""
    place = as_path("path", path)
    try:
        mode = place.stat().st_mode
        if not stat.S_ISREG(mode):
            raise ModelFileError(
                "the path",
                got="is a directory" if stat.S_ISDIR(mode) else "is a device, a pipe or a socket",
                expected="a regular file was expected",
                fix="Name a model file.",
            )
        with os.fdopen(open_regular(place), "rb") as file:
            yield file
    except (OSError, ValueError) as error:
        absent = isinstance(error, FileNotFoundError)
        raise (ModelFileNotFoundError if absent else ModelFileError)(
            "the file",
            got=f"cannot be read ({getattr(error, 'strerror', None) or error})",
            expected="a model file was expected",
            fix="Check the path and the permissions.",
        ) from error


def _header(file: BufferedReader) -> tuple[bytes, Document]:
    """Return the bytes up to the end of the header, and what it says."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(9)
    # A length may begin with the bytes of a pickle; then a brace follows it.
    pickled = start[:1] == b"\x80" and start[1:2] in (b"\2", b"\3", b"\4", b"\5")
    if start[8:] != b"{" and (pickled or start.startswith(b"PK")):
        raise ModelFileError(
            "the file",
            got="is a pickle" if pickled else "is a zip file, as torch.save makes them of pickles",
            expected="a pickle could run code when it is opened, and condens opens none",
            fix="Load it where it was made, and save it with condens.persistence.save.",
        )
    length = int.from_bytes(start[:8], "little")
    if size < 10:
        raise ModelFileError(
            "the file", got=f"has {size} bytes", expected="a model file was expected"
        )
    if start[8:] != b"{":
        raise ModelFileError(
            "the file",
            got="does not begin as a model file does",
            expected="a file that condens saved was expected",
            fix="Check that it is the model and not the table, or restore it from a copy.",
        )
    if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
        raise ModelFileError(
            "its header",
            got=f"is said to have {length} bytes",
            expected=f"2 to {MAX_HEADER_BYTES} were expected in a file of {size}",
        )
    start += file.read(length - 1)
    return start, parse("its header", start[8:])


def _record(header: Document) -> tuple[str, Document]:
    """Return the text of condens in a header, and what it says."""
    metadata = header.get("__metadata__")
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
    if type(version) is int and version != FORMAT:
        newer = version > FORMAT
        raise ModelFileError(
            "the file",
            got=f"has format {short(version)}, of {'a newer' if newer else 'an older'} condens",
            expected=f"condens {__version__} reads format {FORMAT}",
            fix="Upgrade condens." if newer else "Fit the model again, and save it.",
        )
    fields = {"document": dict, "format": int, "sha256": str, "versions": dict}
    if {name: type(value) for name, value in record.items()} != fields:
        raise ModelFileError(
            "the entry of condens",
            got=f"holds {short(sorted(record))}",
            expected=f"{', '.join(fields)} were expected",
        )
    return text, record


def _tensors(data: bytes, count: int) -> Tensors:
    """Return the tensors that safetensors finds, of kinds and sizes that condens writes."""
    if count > MAX_TENSORS:
        raise ModelFileError(
            "its header",
            got=f"lists {count} tensors",
            expected=f"at most {MAX_TENSORS} are read",
        )
    try:
        tensors: Tensors = safetensors.torch.load(data)
    except MemoryError as error:
        raise ModelFileError(
            "the file",
            got=f"holds {len(data)} bytes",
            expected="there is less memory",
            fix="Free some, or use a larger machine.",
        ) from error
    except Exception as error:  # a header may be wrong in any way
        raise ModelFileError(
            "the file",
            got=f"cannot be read ({reason(error)})",
            expected="tensors that fill it were expected",
        ) from error
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES or tensor.dim() > MAX_AXES:
            raise ModelFileError(
                f"tensor {short(name)}",
                got=f"is {tensor.dtype} with {tensor.dim()} axes",
                expected=f"real numbers with at most {MAX_AXES} axes were expected",
            )
        if tensor.dtype == torch.bool and bool((_bytes(tensor) > 1).any()):
            raise ModelFileError(
                f"tensor {short(name)}",
                got="holds a byte other than 0 and 1",
                expected="truth values were expected",
            )
    return tensors


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
