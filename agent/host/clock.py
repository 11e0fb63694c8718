"""A node's clock: the host's wall clock in microseconds.

It has to be the wall clock: a node's time is compared with times in log lines (the watermark of an idle source follows it, a job
begins at it), and with times from other nodes. So cores have to accept steps. A step ahead (a resumed laptop, a first NTP sync)
counts as one probe period at most, so it makes no neighbour suspect. After a step back the cores shift their timers as soon as
they get the new time; `stepped_back` tells the host when to pass it to them.
"""

from __future__ import annotations

import time

STEP_US = 50_000
"""A smaller difference is slewing or noise, and makes no timer late by more than this."""


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
