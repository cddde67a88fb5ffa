"""Defaults by dataset size, tuned on small tables."""

import math

from condens.scalars import as_whole
from condens.training.batches import batch_size
from condens.training.settings import Settings

# Steps that a network needs at least, and the limits of the epochs it gets for them.
MIN_STEPS = 4000
MIN_EPOCHS, MAX_EPOCHS = 100, 1000
# Fraction of the epochs without a better validation loss before training ends.
PATIENCE_FRACTION = 0.15
# Largest noise on the condition, in standard deviations.
MAX_NOISE = 0.1


def default_settings(n_rows: int) -> Settings:
    """Return settings for a number of rows.

    Few rows get more epochs, for enough steps, and more noise on the condition, 2/√n_rows of its
    standard deviation but at most 0.1, which keeps the network from learning them by heart.

    >>> default_settings(500).epochs, default_settings(100_000).epochs
    (250, 100)
    """
    n_rows = as_whole("n_rows", n_rows, 1, fix="Pass the number of training rows.")
    steps = math.ceil(n_rows / batch_size(Settings(), n_rows))
    epochs = min(max(MIN_STEPS // steps, MIN_EPOCHS), MAX_EPOCHS)
    return Settings(
        epochs=epochs,
        patience=math.ceil(PATIENCE_FRACTION * epochs),
        condition_noise=min(MAX_NOISE, 2 / math.sqrt(n_rows)),
    )


def default_components(n_rows: int) -> int:
    """Return a number of components: 3 below 500 rows, 5 below 5000, 10 from there on."""
    return 3 if n_rows < 500 else 5 if n_rows < 5000 else 10
