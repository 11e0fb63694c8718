"""Stopping in good order when a signal asks for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Whether a signal asked to stop. `exit_code` is 130 after SIGINT, 143 after SIGTERM, else 0."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.exit_code = 0

    def ask(self, number: int, frame: FrameType | None) -> None:
        """The first signal asks; the handler is then gone, so a second one ends the process at once."""
        del frame
        self.exit_code = 128 + number
        self.event.set()
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """SIGINT and SIGTERM set the event within. Outside the main thread nothing is installed."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, action in before.items():
            signal.signal(number, action)
