"""Interruption: Ctrl-C that waits for the batch to end."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from condens.training.history import History


class _Handler(threading.Event):
    """An event that the first signal sets; a second one interrupts at once."""

    def __call__(self, *_: Any) -> None:
        if self.is_set():
            raise KeyboardInterrupt
        self.set()


@contextmanager
def interruption() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event; a second one interrupts at once.

    Within another interruption its event is shared, so that a loop of runs sees that one was
    stopped. The event is never set outside the main thread, which alone gets signals, nor where
    the signal is ignored or somebody else handles it.
    """
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if main else None
    handler = before if isinstance(before, _Handler) else _Handler()
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, handler)
    try:
        yield handler
    finally:
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, before)


def how_far(history: History) -> str:
    """Return where an interrupted run was, and which weights it leaves, for a message."""
    if not history.epochs:
        return "before its first epoch ended"
    best = f"of epoch {history.best_epoch + 1}" if history.best_epoch >= 0 else "the first ones"
    return f"after epoch {len(history.epochs)}, with the best weights so far, {best}"
