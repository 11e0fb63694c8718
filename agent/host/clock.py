"""A node's clock: the host's wall clock in microseconds.

It has to be the wall's: a node's time is held against times in log lines (an idle source promises it, a job begins at it), and
against what other nodes say. Cores take what that brings. A clock that jumps ahead (a resumed laptop, a first NTP sync) counts
as one probe period lived at most, so nobody is accused for it; one that steps back takes the cores' timers along as soon
as they look at it, and `stepped_back` says when they must be made to look.
"""

from __future__ import annotations

import time

STEP_US = 50_000
"""Less is slewing or noise: no timer is late by more than this for it."""


class Clock:
    """One node's."""

    def __init__(self) -> None:
        self._latest_us = 0

    def now_us(self) -> int:
        """Since 1970 UTC. May step either way."""
        now = time.time_ns() // 1_000
        self._latest_us = max(self._latest_us, now)
        return now

    def stepped_back(self) -> bool:
        """Whether the clock shows less than it has shown; once for each step."""
        now = time.time_ns() // 1_000
        if now > self._latest_us - STEP_US:
            return False
        self._latest_us = now
        return True
