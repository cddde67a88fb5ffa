"""Interruption: signals that wait for the batch to end."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from condens.training.history import History


class _Handler(threading.Event):
    """An event that the first signal sets; a second one interrupts at once."""

    ended = False

    def __call__(self, number: int, *_: Any) -> None:
        if self.is_set():
            raise KeyboardInterrupt
        self.ended = number == signal.SIGTERM
        self.set()


@contextmanager
def interruption() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C or SIGTERM into an event; a second one interrupts at once.

    Within another interruption its event is shared, so that a loop of runs sees that one was
    stopped. The event is never set outside the main thread, which alone gets signals, nor where
    the signal is ignored or somebody else handles it. At the end the process ends by SIGTERM if
    that was the signal: schedulers send it to take a machine back.
    """
    main = threading.current_thread() is threading.main_thread()
    plain: dict[int, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
    }
    before = {number: signal.getsignal(number) for number in plain} if main else {}
    shared = next((one for one in before.values() if isinstance(one, _Handler)), None)
    handler = shared or _Handler()
    ours = [number for number, one in before.items() if one is plain[number]]
    for number in ours:
        signal.signal(number, handler)
    try:
        yield handler
    finally:
        for number in ours:
            signal.signal(number, plain[number])
        if handler.ended and signal.SIGTERM in ours:
            signal.raise_signal(signal.SIGTERM)


def how_far(history: History) -> str:
    """Return where an interrupted run was, and which weights it leaves, for a message."""
    if not history.epochs:
        return "before its first epoch ended"
    best = f"of epoch {history.best_epoch + 1}" if history.best_epoch >= 0 else "the first ones"
    return f"after epoch {len(history.epochs)}, with the best weights so far, {best}"
