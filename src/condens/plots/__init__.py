"""Plots, drawn with matplotlib on given axes or those of a new figure."""

from typing import TYPE_CHECKING

__all__ = [
    "calibration_figure",
    "corner",
    "coverage_curve",
    "differences",
    "effect",
    "joint",
    "marginal",
    "pit_histogram",
    "plot_losses",
    "predictions",
    "rank_histogram",
    "slices",
    "training_diagnostics",
]

# Torch and numpy are imported when a name is first used.
if TYPE_CHECKING:
    from condens.plots.calibration import (
        calibration_figure,
        coverage_curve,
        pit_histogram,
        rank_histogram,
    )
    from condens.plots.comparison import differences
    from condens.plots.density import corner, joint, marginal
    from condens.plots.prediction import effect, predictions, slices
    from condens.plots.training import plot_losses, training_diagnostics
else:

    def __getattr__(name):
        """Import a public name when it is first used."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from condens.laziness import importing

        with importing:
            from condens.plots import calibration, comparison, density, prediction, training
        files = (calibration, comparison, density, prediction, training)
        own = {key: file for file in files for key in __all__ if key in vars(file)}
        return getattr(own[name], name)

    def __dir__():
        """Return the public names, imported or not."""
        return [*__all__]
