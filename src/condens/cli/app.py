"""All commands, and what they have in common: exit codes, errors in one line, warnings."""

import errno
import io
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
    tune,
)
from condens.cli.console import error_line, in_options, note, say, warning_line
from condens.cli.shards import Process

app = typer.Typer(
    name="condens",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="First steps: condens demo, or condens fit data.csv --target y -o model.condens",
)

COMMANDS = (
    *(demo.demo, fit.fit, tune.tune, evaluate.evaluate, predict.predict, sample.sample),
    *(
        query.query,
        plot.plot,
        explore.explore,
        explore.serve,
        compare.compare,
        info.info,
        export.export,
    ),
    doctor.doctor,
)
# Commands that several processes share, started by torchrun; others run in the first one alone.
SHARED = ("fit", "tune", "predict", "sample")


def _examples(function: object) -> str:
    """Return the examples that a command's help ends with: the last lines of its docstring."""
    _, *found = (function.__doc__ or "").split("Example:")
    return "\n\n".join(f"Example: {' '.join(text.split())}" for text in found)


for _command in COMMANDS:
    app.command(help=(_command.__doc__ or "").split("Example:", 1)[0], epilog=_examples(_command))(
        _command
    )


def _version(asked: bool) -> None:
    if asked:
        say(f"condens {__version__}")
        raise typer.Exit


@app.callback()
def condens(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001
        bool,
        typer.Option(
            "--version", help="Print the version and end.", is_eager=True, callback=_version
        ),
    ] = False,
    debug: Annotated[  # noqa: ARG001 `run` has read it
        bool, typer.Option("--debug", help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Learn the whole joint density of your targets, given a condition."""
    process = Process.current()
    if process.world > 1 and context.invoked_subcommand not in SHARED:
        if process.rank:
            raise typer.Exit
        note(f"{context.invoked_subcommand} is for one process: the others have nothing to do.")
        from condens.training.distributed import alone

        context.with_resource(alone())


def run(arguments: Sequence[str]) -> NoReturn:
    """Run a command and exit: 0, 1 for errors of the user's, 2 for usage, 130 after Ctrl-C.

    `--debug` may stand anywhere, and shows where an error came from.
    """
    debug, given = "--debug" in arguments, [a for a in arguments if a != "--debug"]
    _prepare_streams()
    _show_warnings_once()
    from condens.errors import CondensError

    try:
        app(given, prog_name="condens")
        sys.exit(0)
    except CondensError as error:
        if debug:
            raise
        error_line(in_options(str(error)))
        sys.exit(1)
    except ImportError as error:
        if debug:
            raise
        error_line(
            f"{str(error).rstrip('.')}. `condens doctor` says how to install what is missing."
        )
        sys.exit(1)
    except BrokenPipeError:
        _leave_quietly()
    except OSError as error:
        if debug:
            raise
        named = f"{error.filename}: " if error.filename else ""
        error_line(f"{named}{error.strerror or error}. {_remedy(error)}")
        sys.exit(1)
    except MemoryError:
        if debug:
            raise
        error_line("There is not enough memory. Ask for fewer rows or draws at a time.")
        sys.exit(1)


def _prepare_streams() -> None:
    """Let text be written to any terminal, and to a stream that the shell has closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115
        elif isinstance(stream, io.TextIOWrapper):
            # A ± or a name of a file may have no place in the terminal's encoding.
            stream.reconfigure(errors="backslashreplace")


def _show_warnings_once() -> None:
    """Show each warning in one line, and only the first of those that every part of a table has."""
    from condens.errors import ExtrapolationWarning

    seen: set[object] = set()

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        key = category if issubclass(category, ExtrapolationWarning) else str(message)
        if key not in seen:
            seen.add(key)
            warning_line(in_options(str(message)))

    warnings.showwarning = show
    warnings.simplefilter("always")
    # For those who develop with a library, not for those who use a command.
    for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)


def _remedy(error: OSError) -> str:
    """Return what to do about an error of the system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Make room, or write elsewhere."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "Change the permissions, or name another place."
    return "Check the path."


def _leave_quietly() -> NoReturn:
    """Exit after the reader of our output has gone, as `head` does."""
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), 1)
    sys.exit(141)
