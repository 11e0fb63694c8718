"""Orderly stops at a signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType


class SignalEvent(threading.Event):
    """An event that a signal handler may set.

    `threading.Event` has a lock that is not reentrant: a handler that runs between two steps of `wait`, in the same thread, would
    wait for that lock for ever. `SimpleQueue.put` is safe in a handler.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False
        self._news: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._news.put(None)

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            with suppress(Empty):
                self._news.get(timeout=timeout)
        return self._is_set


class Stop:
    """Whether a signal asked to stop. `exit_code` is 130 after SIGINT, 143 after SIGTERM, else 0."""

    def __init__(self) -> None:
        self.event = SignalEvent()
        self.exit_code = 0

    def ask(self, number: int, frame: FrameType | None) -> None:
        """The first signal requests the stop and restores the default handler, so that a second one ends the process at once."""
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
