"""Model files of the commands."""

from pathlib import Path
from typing import TYPE_CHECKING

from condens.errors import ArgumentError

if TYPE_CHECKING:
    from condens.estimator.regressor import MDNRegressor


def load_model(path: Path) -> "MDNRegressor":
    """Return the regressor in a file; refuse a bare network, which knows no columns."""
    from condens.estimator.regressor import MDNRegressor
    from condens.loading import load

    model = load(path)
    if not isinstance(model, MDNRegressor):
        raise ArgumentError(
            str(path),
            got="holds a network alone",
            expected="a model with its columns was expected",
            fix="Fit one with `condens fit`, or use condens.load in Python.",
        )
    return model
