"""One progress line on a terminal, written over and over."""

import sys
import time
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Self, TextIO

BAR_CHARACTERS = 24
# Work that takes less leaves no line.
SECONDS_BEFORE_A_LINE = 1.0
SECONDS_BETWEEN_LINES = 0.1


class Line:
    """A line that covers the one before it."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self._length = 0

    def write(self, text: str, end: str = "") -> None:
        """Write over the line; with a line feed as `end` it stays."""
        self.stream.write("\r" + text.ljust(self._length) + end)
        self.stream.flush()
        self._length = len(text)

    def clear(self) -> None:
        """Remove the line."""
        if self._length:
            self.stream.write("\r" + " " * self._length + "\r")
            self.stream.flush()
            self._length = 0


class Progress:
    """Shows how much of some work is done, after its first second, and removes the line at the end.

    A thread keeps the line fresh while a piece takes long.

    Args:
        what: the work, in a word or two.
        total: how many pieces it has; may be set later.
        show: None for where stderr is a terminal.

    >>> with Progress("evaluating", 10, show=False) as progress:
    ...     progress.advance(5)
    """

    def __init__(
        self, what: str, total: int = 0, show: bool | None = None, stream: TextIO | None = None
    ) -> None:
        self.what, self.total, self.done = what, total, 0
        self._line, self._lock = Line(stream), Lock()
        self.show = self._line.stream.isatty() if show is None else show
        self._began = self._shown = time.monotonic()
        self._over = Event()
        self._ticker = Thread(target=self._tick, name=f"progress of {what}", daemon=True)

    def advance(self, count: int = 1) -> None:
        """Count pieces that are done."""
        self.done += count
        now = time.monotonic()
        wait = SECONDS_BETWEEN_LINES if self._shown > self._began else SECONDS_BEFORE_A_LINE
        if self.show and now - self._shown >= wait:
            self._write(now)

    def _tick(self) -> None:
        while not self._over.wait(SECONDS_BEFORE_A_LINE):
            self._write(time.monotonic())

    def _write(self, now: float) -> None:
        with self._lock:
            self._shown, past = now, now - self._began
            fraction = min(self.done / max(self.total, 1), 1.0)
            # What is left is known from what is done.
            left = f"{clock(past * (1 - fraction) / fraction)} left" if fraction else clock(past)
            self._line.write(f"{bar(fraction)} {self.what} {fraction:.0%}  {left}")

    def __enter__(self) -> Self:
        if self.show:
            self._ticker.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        if self.show:
            self._ticker.join()
        self._line.clear()


def bar(fraction: float) -> str:
    """Return a bar of which a fraction is full.

    >>> bar(0.25)
    '██████··················'
    """
    full = round(BAR_CHARACTERS * fraction)
    return "█" * full + "·" * (BAR_CHARACTERS - full)


def clock(seconds: float) -> str:
    """Return a duration in minutes and seconds, with hours where there are some.

    >>> clock(75), clock(3600)
    ('1:15', '1:00:00')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
