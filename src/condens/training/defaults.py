"""What suits a number of rows, found on small tables of measurements and kept for others."""

import math

from condens.errors import ArgumentError
from condens.training.batches import batch_size
from condens.training.settings import Settings

# Steps that a network needs at least, and the epochs it gets for them.
STEPS = 4000
FEWEST, MOST = 100, 1000
# Share of the epochs without a better validation loss before training ends.
PATIENCE = 0.15


def default_settings(rows: int) -> Settings:
    """Return settings for a number of rows.

    Few rows get more epochs, for enough steps, and more noise on the condition, 2/√rows of its
    standard deviation but at most 0.1, which keeps the network from learning them by heart.

    >>> default_settings(500).epochs, default_settings(100_000).epochs
    (250, 100)
    """
    if rows < 1:
        raise ArgumentError(
            "rows",
            got=f"is {rows}",
            expected="at least 1 was expected",
            fix="Count those of the training.",
        )
    steps = math.ceil(rows / batch_size(Settings(), rows))
    epochs = min(max(STEPS // steps, FEWEST), MOST)
    noise = min(0.1, 2 / math.sqrt(rows))
    patience = math.ceil(PATIENCE * epochs)
    return Settings(epochs=epochs, patience=patience, condition_noise=noise)


def default_components(rows: int) -> int:
    """Return a number of components: 3 below 500 rows, 5 below 5000, 10 from there on."""
    return 3 if rows < 500 else 5 if rows < 5000 else 10
