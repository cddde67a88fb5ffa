"""Where a plot is drawn."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def new_axes(width: float = 6.0, height: float = 4.0) -> "Axes":
    """Return the axes of a new pyplot figure of this size, in inches."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            "A plot needs matplotlib. Install it: pip install 'condens[plot]'."
        ) from error
    _, axes = pyplot.subplots(figsize=(width, height), layout="constrained")
    return axes
