"""All commands, and what they have in common: exit codes, errors in one line, warnings."""

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from condens._version import __version__
from condens.cli import (
    compare,
    demo,
    doctor,
    evaluate,
    explore,
    export,
    fit,
    info,
    plot,
    predict,
    query,
    sample,
)
from condens.cli.console import error_line, note, say

app = typer.Typer(
    name="condens",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="First steps: condens demo, or condens fit data.csv --target y -o model.condens",
)

COMMANDS = (
    *(demo.demo, fit.fit, evaluate.evaluate, predict.predict, sample.sample, query.query),
    *(plot.plot, explore.explore, explore.serve, compare.compare, info.info, export.export),
    doctor.doctor,
)


def _example(function: object) -> str:
    """Return the example that a command's help ends with: the last lines of its docstring."""
    text = (function.__doc__ or "").split("Example:", 1)
    return f"Example: {' '.join(text[1].split())}" if len(text) > 1 else ""


for _command in COMMANDS:
    app.command(help=(_command.__doc__ or "").split("Example:", 1)[0], epilog=_example(_command))(
        _command
    )


def _version(asked: bool) -> None:
    if asked:
        say(f"condens {__version__}")
        raise typer.Exit


@app.callback()
def condens(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and end.", is_eager=True, callback=_version
        ),
    ] = False,
    debug: Annotated[  # `run` has read it
        bool, typer.Option("--debug", help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Learn the whole joint density of your targets, given a condition."""


def run(arguments: Sequence[str]) -> NoReturn:
    """Run a command and exit: 0, 1 for errors of the user's, 2 for usage, 130 after Ctrl-C.

    `--debug` may stand anywhere, and shows where an error came from.
    """
    debug, given = "--debug" in arguments, [a for a in arguments if a != "--debug"]
    warnings.showwarning = lambda message, *_, **__: note(f"Warning: {message}")
    # Once for each text, whatever line of ours it comes from.
    warnings.simplefilter("default")
    from condens.errors import CondensError

    try:
        app(given, prog_name="condens")
        sys.exit(0)
    except CondensError as error:
        if debug:
            raise
        error_line(str(error))
        sys.exit(1)
    except ModuleNotFoundError as error:
        if debug:
            raise
        error_line(f"{error}. `condens doctor` says how to install what is missing.")
        sys.exit(1)
    except BrokenPipeError:
        _leave_quietly()
    except OSError as error:
        if debug:
            raise
        named = f"{error.filename}: " if error.filename else ""
        error_line(f"{named}{error.strerror or error}.")
        sys.exit(1)
    except MemoryError:
        if debug:
            raise
        error_line("There is not enough memory. Ask for fewer rows or draws at a time.")
        sys.exit(1)


def _leave_quietly() -> NoReturn:
    """Exit after the reader of our output has gone, as `head` does."""
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), 1)
    sys.exit(141)
