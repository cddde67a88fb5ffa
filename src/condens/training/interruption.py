"""Ctrl-C that waits for the batch to end."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruption() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event; a second one interrupts at once.

    In another thread than the main one, which gets no signals, the event never comes.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(*_: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
