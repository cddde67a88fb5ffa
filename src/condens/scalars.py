"""Checks of single numbers and words: what a user passes becomes a plain Python value.

Plain values go into a file and come back equal: numpy's numbers become Python's, a whole number
where a real one belongs becomes a float, and a truth value is not a number.
"""

import math
import reprlib
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from condens.errors import ArgumentError, KindError

# The largest integer of torch.
MAX_INT64 = 2**63 - 1
# Numbers that JSON lacks, and how they are written.
_NUMBER_WORDS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def as_whole(
    name: str, value: Any, least: int = -MAX_INT64, most: int = MAX_INT64, *, fix: str
) -> int:
    """Return a whole number as an int.

    >>> as_whole("depth", 0, 1, fix="Pass the number of hidden layers.")
    Traceback (most recent call last):
    condens.errors.ArgumentError: depth is 0, but at least 1 was expected. Pass the number of \
hidden layers.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise refused(name, value, "a whole number was expected", fix)
    number = int(value)
    if not least <= number <= most:
        limit = f"at least {least}" if number < least else f"at most {most}"
        raise refused(name, value, f"{limit} was expected", fix)
    return number


def as_real(
    name: str,
    value: Any,
    expected: str = "a finite number was expected",
    fits: Callable[[float], bool] = math.isfinite,
    *,
    fix: str,
) -> float:
    """Return a number that fits as a float.

    >>> as_real("lower", -5, fix="Pass the least target.")
    -5.0
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise refused(name, value, "a number was expected", fix)
    try:
        number = float(value)
    except OverflowError:
        raise refused(name, value, "a number of double precision was expected", fix) from None
    if not fits(number):
        raise refused(name, value, expected, fix)
    return number


def as_fraction(name: str, value: Any, *, fix: str) -> float:
    """Return a fraction, from 0 to below 1.

    >>> as_fraction("dropout", 0, fix="Pass 0 for none.")
    0.0
    """
    return as_real(
        name, value, "a fraction from 0 to below 1 was expected", lambda x: 0 <= x < 1, fix=fix
    )


def as_levels(name: str, values: Any) -> tuple[float, ...]:
    """Return probabilities strictly between 0 and 1: of a list, of an array, or a single one.

    >>> as_levels("coverages", 0.9), as_levels("coverages", [0.5, 0.9])
    ((0.9,), (0.5, 0.9))
    """
    # Arrays and tensors, of any library, become numbers of Python.
    given = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(given, Real):
        given = [given]
    fix = "For 90 %, pass 0.9."
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise refused(name, values, "numbers between 0 and 1 were expected", fix)
    expected = "a number between 0 and 1, both excluded, was expected"
    return tuple(
        as_real(f"{name}[{place}]", value, expected, lambda number: 0 < number < 1, fix=fix)
        for place, value in enumerate(given)
    )


def as_function(name: str, value: Any, *, fix: str) -> Any:
    """Return a function as it is, or refuse what cannot be called."""
    if not callable(value):
        raise KindError(
            name, got=f"is {reprlib.repr(value)}", expected="a function was expected", fix=fix
        )
    return value


def as_truth(name: str, value: Any, *, fix: str) -> bool:
    """Return a truth value of Python or numpy as a bool."""
    if not is_truth(value):
        raise refused(name, value, "True or False was expected", fix)
    return bool(value)


def is_truth(value: object) -> bool:
    """Return whether a value is True or False, of Python or numpy."""
    # By name: this layer does not import numpy, whose truth values are no bool.
    return type(value).__name__ in ("bool", "bool_")


def as_choice(name: str, value: Any, choices: tuple[str | None, ...], *, fix: str) -> Any:
    """Return the choice that equals a word, or None."""
    for choice in choices:
        if value is choice or (isinstance(value, str) and value == choice):
            return choice
    raise refused(name, value, f"one of {choices} was expected", fix)


def encode_floats(value: Any) -> Any:
    """Return a value with the numbers that JSON lacks as words.

    >>> encode_floats({"clip": float("inf"), "usage": [0.5, float("nan")]})
    {'clip': 'inf', 'usage': [0.5, 'nan']}
    """
    if isinstance(value, Mapping):
        return {key: encode_floats(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [encode_floats(part) for part in value]
    return str(float(value)) if isinstance(value, float) and not math.isfinite(value) else value


def decode_float(value: Any) -> Any:
    """Return the number that a word of `encode_floats` stands for, and anything else as it is.

    >>> decode_float("inf"), decode_float("rule"), decode_float(3)
    (inf, 'rule', 3)
    """
    return _NUMBER_WORDS.get(value, value) if isinstance(value, str) else value


def printable(text: str) -> str:
    """Return text without characters that control how others are shown.

    >>> len(printable("a" + chr(10) + "b").splitlines())
    1
    """
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def refused(name: str, value: Any, expected: str, fix: str) -> ArgumentError:
    """Return the error for a value, which may be too long to print."""
    # Python prints no integer of thousands of digits.
    huge = isinstance(value, int) and value.bit_length() > 200
    text = f"about 2^{value.bit_length()}" if huge else reprlib.repr(value)
    return ArgumentError(name, got=f"is {text}", expected=expected, fix=fix)
