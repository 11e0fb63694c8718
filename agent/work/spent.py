"""Processor time of one source's thread, by job."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from time import thread_time_ns

from elf.srt.messages.ids import JobId

READS_MAX = 4096
"""Amounts that wait to be taken. If nobody takes them, the oldest are dropped."""


class Spent:
    """Charges the time since the last call to the jobs that it was spent for. What several jobs share, as parsing a block, is
    divided evenly. `take` may be called in another thread; two clock reads a block and job, 1 µs each."""

    def __init__(self, clock_ns: Callable[[], int] = thread_time_ns) -> None:
        """clock_ns: processor time of the calling thread, in nanoseconds."""
        self._clock_ns = clock_ns
        self._at_ns = 0
        self._spent: deque[tuple[JobId, int]] = deque(maxlen=READS_MAX)

    def begin(self) -> None:
        """Work begins, in the thread whose time is charged."""
        self._at_ns = self._clock_ns()

    def charge(self, jobs: Sequence[JobId]) -> None:
        """Charge the time since the last call. Without jobs, the next call charges it."""
        if jobs:
            at_ns = self._clock_ns()
            share_ns = (at_ns - self._at_ns) // len(jobs)
            self._spent.extend((job, share_ns) for job in jobs)
            self._at_ns = at_ns

    def take(self) -> list[tuple[JobId, int]]:
        """Amounts since the last call: job, nanoseconds. A job may occur several times."""
        return [self._spent.popleft() for _ in range(len(self._spent))]
