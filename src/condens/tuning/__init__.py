"""Searches over parameters, by Optuna."""

from typing import TYPE_CHECKING

__all__ = ["Dimension", "Range", "Space", "Study", "Trial", "Tuned", "default_space", "tune"]

# Optuna is imported when a name is first used.
if TYPE_CHECKING:
    from condens.tuning.space import Dimension, Range, Space, default_space
    from condens.tuning.study import Study, Trial, Tuned, tune
else:

    def __getattr__(name):
        """Import a public name when it is first used."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from condens.laziness import importing

        try:
            with importing:
                # First: without Optuna nothing else is loaded.
                import condens.tuning.storage  # noqa: F401
                from condens.tuning import space, study
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in ("optuna", "sqlalchemy", "sklearn"):
                raise
            raise ImportError(
                f"{name} needs {package}. Install it: pip install 'condens[tune]'."
            ) from error
        return getattr(space if hasattr(space, name) else study, name)

    def __dir__():
        """Return the public names, imported or not."""
        return [*__all__]
