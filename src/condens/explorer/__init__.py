"""A local web page and a JSON API that answer what a fitted model predicts.

`run` starts both; `condens explore` and `condens serve` call it. Needs the extra `explore`.
"""

from typing import TYPE_CHECKING

__all__ = ["run"]

# Starlette and uvicorn are imported when the server is first used.
if TYPE_CHECKING:
    from condens.explorer.server import run
else:

    def __getattr__(name):
        """Import a public name when it is first used."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from condens.laziness import importing

        try:
            with importing:
                from condens.explorer import server
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in ("starlette", "uvicorn", "sklearn", "h11"):
                raise
            raise ImportError(
                f"The explorer needs {package}. Install it: pip install 'condens[explore]'."
            ) from error
        return getattr(server, name)

    def __dir__():
        """Return the public names, imported or not."""
        return [*__all__]
