"""The progress line of a run, on a terminal."""

import sys
import time
from typing import TextIO

from condens.training.history import Epoch

BAR_CHARACTERS = 24


class Progress:
    """Writes one line over and over: epoch, losses, steps a second, time left."""

    def __init__(self, epochs: int, stream: TextIO | None = None) -> None:
        self.epochs = epochs
        self.stream = sys.stderr if stream is None else stream
        self._began = time.monotonic()
        self._first: int | None = None
        self._length = 0

    def show(self, epoch: Epoch) -> None:
        """Show an epoch that has ended."""
        if self._first is None:
            self._first = epoch.epoch
        full = round(BAR_CHARACTERS * (epoch.epoch + 1) / self.epochs)
        spent = time.monotonic() - self._began
        fraction = (epoch.epoch + 1 - self._first) / max(self.epochs - self._first, 1)
        left = spent * (1 - fraction) / fraction if fraction else 0.0
        bar = "█" * full + "·" * (BAR_CHARACTERS - full)
        rate = epoch.steps / epoch.seconds if epoch.seconds else 0.0
        self._line(
            f"{bar} epoch {epoch.epoch + 1}/{self.epochs}  train {epoch.train_nll:.4g}  "
            f"validation {epoch.validation_nll:.4g}  {rate:.0f} steps/s  {_clock(left)} left"
        )

    def close(self, text: str) -> None:
        """Leave a last line behind."""
        self._line(text, end="\n")

    def _line(self, text: str, end: str = "") -> None:
        self.stream.write("\r" + text.ljust(self._length) + end)
        self.stream.flush()
        self._length = len(text)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
