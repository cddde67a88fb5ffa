"""The progress line of a run, on a terminal."""

import time
from typing import TextIO

from condens.progress import Line, bar, clock
from condens.training.history import Epoch


class Progress:
    """Writes one line over and over: epoch, losses, steps a second, time left."""

    def __init__(self, epochs: int, stream: TextIO | None = None) -> None:
        self.epochs = epochs
        self._line = Line(stream)
        self._began = time.monotonic()
        self._first: int | None = None

    def show(self, epoch: Epoch) -> None:
        """Show an epoch that has ended."""
        if self._first is None:
            self._first = epoch.epoch
        spent = time.monotonic() - self._began
        fraction = (epoch.epoch + 1 - self._first) / max(self.epochs - self._first, 1)
        left = spent * (1 - fraction) / fraction if fraction else 0.0
        rate = epoch.steps / epoch.seconds if epoch.seconds else 0.0
        self._line.write(
            f"{bar((epoch.epoch + 1) / self.epochs)} epoch {epoch.epoch + 1}/{self.epochs}  "
            f"train {epoch.train_nll:.4g}  validation {epoch.validation_nll:.4g}  "
            f"{rate:.0f} steps/s  {clock(left)} left"
        )

    def close(self, text: str) -> None:
        """Leave a last line behind."""
        self._line.write(text, end="\n")
