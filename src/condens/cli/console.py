"""What people read: messages on stderr, results on stdout, plain where nobody looks."""

import os
import re
import sys
from collections.abc import Iterable, Sequence

# What a terminal would take as a command. Names in a user's file may hold anything.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def harmless(text: str) -> str:
    r"""Return text without characters that a terminal would obey.

    >>> harmless("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return _CONTROLS.sub(lambda found: repr(found.group())[1:-1], text)


# What the library calls by another name than the command line does.
_OPTIONS = {
    "n_components": "--components",
    "n_members": "--members",
    "calibration_fraction": "--calibrate",
    "random_state": "--seed",
    "target_transform": "--transform",
    "sample_weight": "--weights",
    "groups": "--groups",
    "quantiles": "--quantile",
    "delimiter": "--delimiter",
    "decimal": "--decimal",
    "encoding": "--encoding",
    "dates": "--dates",
    "epochs": "--epochs",
    "covariance": "--covariance",
    "validation_fraction": "--validation",
    "grace_seconds": "--grace",
    "trials": "--trials",
    "minutes": "--minutes",
    "name": "--study",
    "dim": "--target",
    "X": "The table",
    "y": "The table",
}
# Arguments of the readers, within a sentence.
_ASSIGNED = re.compile(r"\b(delimiter|decimal|encoding|dates)=(['\"])([^'\"]*)\2")
_SUBJECT = re.compile(rf"({'|'.join(_OPTIONS)})(?=[ ,])")


def in_options(message: str) -> str:
    """Return a message of the library about an argument in the words of the command line.

    >>> in_options("n_members is 0, but at least 1 was expected.")
    '--members is 0, but at least 1 was expected.'
    >>> in_options('Pass dates="seconds" for numbers.')
    'Pass --dates seconds for numbers.'
    """
    message = _ASSIGNED.sub(lambda found: f"{_OPTIONS[found[1]]} {found[3]}", message)
    found = _SUBJECT.match(message)
    return message if found is None else _OPTIONS[found.group()] + message[found.end() :]


def note(text: str) -> None:
    """Write a message to stderr."""
    sys.stderr.write(harmless(text) + "\n")


def error_line(text: str) -> None:
    """Write an error to stderr, in one line; of several processes, with the number of this one."""
    rank = os.environ.get("RANK", "0")
    of = f" (process {rank})" if rank != "0" else ""
    note(f"Error{of}: " + " ".join(text.split()))


def warning_line(text: str) -> None:
    """Write a warning to stderr, in one line."""
    note("Warning: " + " ".join(text.split()))


def say(text: str = "") -> None:
    """Write a result to stdout."""
    sys.stdout.write(harmless(text) + "\n")


def show_table(
    title: str | None, heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: bool = True
) -> None:
    """Write a table to stdout; all columns but the first are numbers, if `right`."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=None if title is None else Text(harmless(title)), title_justify="left")
    for place, head in enumerate(heads):
        shown = Text(harmless(head))
        table.add_column(shown, justify="right" if right and place else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(harmless(cell)) for cell in row))
    # Without a terminal nothing is cut to its width.
    wide = None if sys.stdout.isatty() else 10_000
    Console(width=wide, soft_wrap=wide is not None).print(table)


def number(value: float) -> str:
    """Return a number in a few digits.

    >>> number(1234.5678), number(0.000012345)
    ('1234.57', '1.2345e-05')
    """
    return f"{value:.6g}"
