"""The joint density of the targets behind scikit-learn's `fit`."""

from typing import TYPE_CHECKING

__all__ = ["MDNRegressor", "Scorer", "energy_scorer", "log_likelihood_scorer"]

# Scikit-learn is imported when a name is first used: `condens.inference` builds its networks by
# `construction`, and does without.
if TYPE_CHECKING:
    from condens.estimator.regressor import MDNRegressor
    from condens.estimator.scorers import Scorer, energy_scorer, log_likelihood_scorer
else:

    def __getattr__(name):
        """Import a public name when it is first used."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from condens.laziness import importing

        try:
            with importing:
                from condens.estimator import regressor, scorers
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "sklearn":
                raise
            raise ImportError(
                f"{name} needs scikit-learn. Install it: pip install 'condens[sklearn]'."
            ) from error
        return getattr(regressor if name == "MDNRegressor" else scorers, name)

    def __dir__():
        """Return the public names, imported or not."""
        return [*__all__]
