"""A node's clock, the host's wall clock in microseconds, and its timer.

It has to be the wall clock: a node's time is compared with times in log lines (the watermark of an idle source follows it, a job
begins at it), and with times from other nodes. So cores have to accept steps. A step ahead (a resumed laptop, a first NTP sync)
counts as one probe period at most, so it makes no neighbour suspect. After a step back the cores shift their timers as soon as
they get the new time; `stepped_back` says when the host must pass it to them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

STEP_US = 50_000
"""A smaller difference is slewing or noise, and makes no timer late by more than this."""
LOOP_US = 1_000
"""The resolution of uvloop's timers, which it rounds: without a margin it wakes too early, again and again, four times for each
deadline."""
MOVE_S_MIN = 0.02
"""A deadline that moved later by less keeps its wake."""
SLEEP_S_MAX = 1.0
"""The longest sleep, so that a step of the clock is noticed."""


class Clock:
    """The clock of one node."""

    def __init__(self) -> None:
        self._latest_us = 0

    def now_us(self) -> int:
        """Microseconds since 1970 UTC. May step either way."""
        now = time.time_ns() // 1_000
        self._latest_us = max(self._latest_us, now)
        return now

    def stepped_back(self) -> bool:
        """Whether the clock went back since the last call; true once for each step."""
        now = time.time_ns() // 1_000
        if now > self._latest_us - STEP_US:
            return False
        self._latest_us = now
        return True


class Timer:
    """Calls `wake` on the loop at the deadline that was set last. clock_us: the clock of the deadlines."""

    def __init__(self, clock_us: Callable[[], int], wake: Callable[[], None]) -> None:
        self._clock_us, self._wake = clock_us, wake
        self._call: asyncio.TimerHandle | None = None
        self._at_s, self._deadline_us = 0.0, 0

    def set(self, deadline_us: int) -> None:
        """Wake at that deadline instead of an earlier one, or after `SLEEP_S_MAX`; not before it, and at most 2 ms after;
        but a wake that is due a little earlier stays, since moving it costs more. O(log calls)."""
        if self._call is not None and deadline_us == self._deadline_us:
            return
        self._deadline_us = deadline_us
        loop = asyncio.get_running_loop()
        wait_us = max(0, deadline_us - self._clock_us())
        at_s = loop.time() + min((wait_us // LOOP_US + 2) * LOOP_US / 1e6, SLEEP_S_MAX)
        if self._call is not None:
            if 0 <= at_s - self._at_s < MOVE_S_MIN:
                return
            self._call.cancel()
        self._call, self._at_s = loop.call_at(at_s, self._ring), at_s

    def _ring(self) -> None:
        self._call = None
        self._wake()

    def cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()
