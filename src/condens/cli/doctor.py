"""`condens doctor`: what is installed, and what is missing."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from condens._version import __version__
from condens.cli.console import say, show_table

# What each extra brings, by the package that it is recognised by.
EXTRAS = {
    "sklearn": ("scikit-learn", "MDNRegressor"),
    "evaluation": ("scipy", "verdicts and reports"),
    "plot": ("matplotlib", "pictures"),
    "data": ("pyarrow", "tables in files"),
    "cli": ("typer", "this command line"),
    "explore": ("starlette", "condens explore and condens serve"),
    "tune": ("optuna", "condens tune"),
    "onnx": ("onnx", "condens export"),
    "freia": ("FrEIA", "the invertible block in FrEIA"),
    "sbi": ("sbi", "density estimators for sbi"),
    "arviz": ("arviz-base", "draws for ArviZ"),
}


def doctor() -> None:
    """Show versions, the active kernel, threads, graphics cards, and extras that are missing.

    Example: condens doctor
    """
    import torch

    from condens.kernels import active

    cards = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    show_table(
        None,
        ("", ""),
        [
            ("condens", __version__),
            ("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
            ("torch", torch.__version__),
            ("kernel", active()),
            ("threads", f"{torch.get_num_threads()} of {os.cpu_count()} cores"),
            ("graphics cards", ", ".join(cards) or "none"),
        ],
        right=False,
    )
    found = {extra: _version(package) for extra, (package, _) in EXTRAS.items()}
    rows = [(e, f"{EXTRAS[e][0]} {v or 'is missing'}", EXTRAS[e][1]) for e, v in found.items()]
    show_table(None, ("extra", "package", "for"), rows, right=False)
    missing = [extra for extra, found_version in found.items() if found_version is None]
    if missing:
        say(f"To install what is missing: pip install 'condens[{','.join(missing)}]'")
    else:
        say("Nothing is missing.")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
