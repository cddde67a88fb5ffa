"""Defaults by dataset size."""

import math

from condens.scalars import as_whole
from condens.training.batches import batch_size
from condens.training.settings import Settings

# Below the first number of rows, below the second, and for more: the learning rate, and the steps
# that a network alone and the members of an ensemble, which overfit less, get at least. A high rate
# finds flatter minima, in fewer steps. Nearly noiseless tables gain from every step; others stop
# early.
SMALL_ROWS, LARGE_ROWS = 3000, 40_000
SMALL, MEDIUM, LARGE = (1.2e-2, 4500, 7000), (8e-3, 6000, 10_000), (3e-3, 6000, 10_000)
MIN_EPOCHS, MAX_EPOCHS = 100, 800
# Steps that are enough: from a million rows on there are fewer epochs, of more rows.
MAX_STEPS = 200_000
# Fraction of the epochs without a better validation loss before training ends.
PATIENCE_FRACTION = 0.12
# Rows that a member of an ensemble validates on: a fraction of all, but some at least, and not too
# many. The members' folds differ, so that together they use every row.
MEMBER_FRACTION, MIN_MEMBER_ROWS, MAX_MEMBER_FRACTION = 0.05, 10, 0.2


def default_settings(n_rows: int, n_members: int = 1) -> Settings:
    """Return settings for a number of rows, and of members of an ensemble.

    Few rows get more epochs, for enough steps, and a higher rate. Members validate on a twentieth
    of the rows each, a single network on a tenth.

    >>> [default_settings(n).epochs for n in (500, 100_000, 10_000_000)]
    [281, 100, 11]
    """
    n_rows = as_whole("n_rows", n_rows, 1, fix="Pass the number of training rows.")
    steps = math.ceil(n_rows / batch_size(Settings(), n_rows))
    validation = Settings().validation_fraction
    if n_members > 1:
        validation = min(max(MEMBER_FRACTION, MIN_MEMBER_ROWS / n_rows), MAX_MEMBER_FRACTION)
    rate, alone, members = (
        SMALL if n_rows < SMALL_ROWS else MEDIUM if n_rows < LARGE_ROWS else LARGE
    )
    least = alone if n_members == 1 else members
    epochs = min(max(least // steps, MIN_EPOCHS), MAX_EPOCHS, math.ceil(MAX_STEPS / steps))
    return Settings(
        epochs=epochs,
        learning_rate=rate,
        patience=math.ceil(PATIENCE_FRACTION * epochs),
        validation_fraction=validation,
    )


def default_components(n_rows: int) -> int:
    """Return a number of components: 3, 5 from 500 rows on, 10 from 10 000, 20 from 40 000."""
    return 3 if n_rows < 500 else 5 if n_rows < 10_000 else 10 if n_rows < 40_000 else 20
