"""The exceptions a user can meet, and how their messages are built.

Every message says what came, what was expected and what to do, and names the
argument as the user typed it.
"""

from errno import ENOENT


class CondensError(Exception):
    """Base class of every error that condens raises on purpose."""


class ArgumentError(CondensError, ValueError):
    """An argument that cannot be used as it is."""


class ShapeError(ArgumentError):
    """A tensor whose shape does not fit the others."""


class NotFiniteError(ArgumentError):
    """A number that is NaN or infinite, or too large for its precision."""


class KindError(ArgumentError, TypeError):
    """Values of a kind that cannot be computed with, such as dates or text among numbers."""


class DimensionError(ArgumentError):
    """A dimension that is unknown, repeated or missing, or one too many."""


class NotPositiveDefiniteError(ArgumentError):
    """A matrix that is not symmetric positive definite, or not of full rank."""


class NotADensityError(ArgumentError):
    """A result that would not be a density, such as a quotient that grows without bound."""


class NoClosedFormError(CondensError, NotImplementedError):
    """An exact answer was asked for where only an estimate exists, or none at all."""


class TrainingError(CondensError):
    """Training cannot go on: the loss or its gradient stays NaN or infinite."""


class RunDirectoryError(CondensError):
    """A run directory that is in use, damaged, or of another run."""


class ModelFileError(CondensError):
    """A model file that cannot be read or written: absent, damaged, or of another kind."""


class ModelFileNotFoundError(ModelFileError, FileNotFoundError):
    """A model file that is not there."""

    errno = ENOENT


class CondensWarning(UserWarning):
    """Base class of the warnings that can be filtered by what they warn of."""


class ExtrapolationWarning(CondensWarning):
    """A prediction for conditions far outside the rows that the model was fitted on."""


class TargetWarning(CondensWarning):
    """Targets for which another `target_transform` would suit better."""


def message(argument: str, came: str, expected: str, remedy: str) -> str:
    """Build the text of an error.

    >>> message("means", "has shape [3]", "at least [K, D] was expected", "Add the component axis.")
    'means has shape [3], but at least [K, D] was expected. Add the component axis.'
    """
    return f"{argument} {came}, but {expected}. {remedy}"
