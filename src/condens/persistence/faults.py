"""How a file that is not what it should be is named."""

import os
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager

from condens.errors import ModelFileError


def short(value: object) -> str:
    """Return what a file holds, cut to what a message can.

    >>> len(short("x" * 10_000))
    30
    """
    return reprlib.repr(value)[:200]


def reason(error: BaseException) -> str:
    """Return what an error says, cut to what a message can hold."""
    return f"{type(error).__name__}: {str(error)[:200]}"


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Put the file before the message of every fault found in it."""
    try:
        yield
    except ModelFileError as error:
        raise type(error)(f"{os.fspath(path)}: {error}") from error.__cause__
