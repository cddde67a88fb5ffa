"""Defaults by dataset size."""

import math

from condens.scalars import as_whole
from condens.training.batches import batch_size
from condens.training.settings import Settings

# Steps that a network alone and the members of an ensemble, which overfit less, get at least, and
# the limits of the epochs for them. Nearly noiseless tables gain from every step (energy an NLL of
# 0.16 with 6000, 0.13 with 8000 and 0.09 with 10 000 of them); noisy ones stop early.
MIN_STEPS, MIN_MEMBER_STEPS = 6000, 10_000
MIN_EPOCHS, MAX_EPOCHS = 100, 800
# Steps that are enough: from a million rows on there are fewer epochs, of more rows.
MAX_STEPS = 200_000
# Up to so many rows a high rate gains more than it costs: it finds flatter minima, in fewer steps.
LEARNING_RATE, MAX_RATE_ROWS = 8e-3, 40_000
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
    [375, 100, 11]
    """
    n_rows = as_whole("n_rows", n_rows, 1, fix="Pass the number of training rows.")
    steps = math.ceil(n_rows / batch_size(Settings(), n_rows))
    validation = Settings().validation_fraction
    if n_members > 1:
        validation = min(max(MEMBER_FRACTION, MIN_MEMBER_ROWS / n_rows), MAX_MEMBER_FRACTION)
    least = MIN_STEPS if n_members == 1 else MIN_MEMBER_STEPS
    epochs = min(max(least // steps, MIN_EPOCHS), MAX_EPOCHS, math.ceil(MAX_STEPS / steps))
    return Settings(
        epochs=epochs,
        learning_rate=LEARNING_RATE if n_rows < MAX_RATE_ROWS else Settings().learning_rate,
        patience=math.ceil(PATIENCE_FRACTION * epochs),
        validation_fraction=validation,
    )


def default_components(n_rows: int) -> int:
    """Return a number of components: 3, 5 from 500 rows on, 10 from 10 000, 20 from 40 000."""
    return 3 if n_rows < 500 else 5 if n_rows < 10_000 else 10 if n_rows < 40_000 else 20
