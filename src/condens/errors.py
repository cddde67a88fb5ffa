"""Exceptions and warnings that a user can meet.

Every message says what was passed, what was expected and what to do, and names the argument as
the user typed it. An exception builds its own message from these parts.
"""

from errno import ENOENT


class CondensError(Exception):
    """Base class of every error that condens raises on purpose.

    Args:
        subject: the argument, as the user typed it; or, alone, the whole message.
        got: what is wrong with it.
        expected: what would have been right.
        fix: what to do about it.

    >>> raise ShapeError("means", got="has shape [3]", expected="at least [K, D] was expected",
    ...                  fix="Add the component axis.")
    Traceback (most recent call last):
    condens.errors.ShapeError: means has shape [3], but at least [K, D] was expected. Add the \
component axis.
    """

    def __init__(self, subject: str, *, got: str = "", expected: str = "", fix: str = "") -> None:
        super().__init__(f"{subject} {got}, but {expected}. {fix}" if got else subject)


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
    """Training cannot go on: the loss or its gradient stays NaN or infinite.

    Args:
        reason: what happened, and what to do about it.
        outcome: what the caller is left with.
    """

    def __init__(self, reason: str, outcome: str = "") -> None:
        super().__init__(f"{reason} {outcome}".rstrip())
        self.reason = reason


class ProcessError(CondensError):
    """Another process of a run has ended, or does not answer."""


class RunDirectoryError(CondensError):
    """A run directory that is in use, damaged, or of another run."""


class StudyError(CondensError):
    """A study of `condens.tuning` that cannot be joined, or whose storage does not answer."""


class ModelFileError(CondensError):
    """A model file that cannot be read or written: absent, damaged, or of another kind."""

    def __init__(
        self,
        subject: str,
        *,
        got: str = "",
        expected: str = "",
        fix: str = "Restore the file from a copy, or save the model again.",
    ) -> None:
        super().__init__(subject, got=got, expected=expected, fix=fix)


class ModelFileNotFoundError(ModelFileError, FileNotFoundError):
    """A model file that does not exist."""

    errno = ENOENT


class TableFileError(ArgumentError):
    """A file of a table that cannot be read: damaged, of another kind, or with a wrong cell."""


class TableFileNotFoundError(TableFileError, FileNotFoundError):
    """A file of a table that does not exist."""

    errno = ENOENT


class CondensWarning(UserWarning):
    """Base class of every warning of condens."""


class ExtrapolationWarning(CondensWarning):
    """A prediction for conditions far outside the rows that the model was fitted on."""


class TargetWarning(CondensWarning):
    """Targets for which another `target_transform` would suit better."""


class TargetTransformWarning(CondensWarning):
    """Says which transforms `target_transform="auto"` chose."""


class CollapsedComponentsWarning(CondensWarning):
    """All components are alike: one would give the same density."""


class UnusedComponentsWarning(CondensWarning):
    """One component has nearly all the weight."""


class UnexplainedRowsWarning(CondensWarning):
    """Validation rows that lie far out in every component."""


class IllConditionedWarning(CondensWarning):
    """A covariance that is nearly singular."""


class ProcessWarning(CondensWarning):
    """A network that several processes train otherwise than one would."""


class InterruptedWarning(CondensWarning):
    """Training that Ctrl-C ended early."""


class KernelWarning(CondensWarning):
    """The native kernel is missing, or runs on one thread: results are the same, but slower."""
