"""The command line: `condens`, or `python -m condens`.

Commands parse, call and print. They import what takes time to load when they run, so that help is
there at once.
"""

import sys


def main() -> None:
    """Run the command that the arguments name, and exit."""
    try:
        from condens.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"The command line needs {error.name}. Install it: pip install 'condens[cli]'.")
    run(sys.argv[1:])
