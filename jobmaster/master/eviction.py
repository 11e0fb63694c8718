"""Workers that nobody has heard of for so long that they are forgotten: whose watermark does not move any more.

    at a look                                      | the wait
    -----------------------------------------------+-------------------------------------------------
    a worker that is expected and was not before   | begins
    its watermark is another, or the clock is back | begins anew
    it is `forget_us` old                          | the worker is named, at each look until it is expected no more
    the worker is expected no more                 | is over

Invariant (`check`): no wait begins after the last look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from elf.jobmaster.log.positions import Member
from elf.jobmaster.log.schedule import AFTER_ALL
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Micros

LOOKS = 16
"""How often in that span it is looked at: so much of it a worker may be forgotten late."""


class Eviction:
    """Watermarks as they were seen last, and since when they are that. Memory: one entry per worker."""

    def __init__(self, forget_us: int) -> None:
        self._forget_us = forget_us
        self._seen: dict[NodeId, tuple[Micros, int]] = {}
        self._looked_at = 0

    @property
    def look_us(self) -> int:
        return self._forget_us // LOOKS

    def look(
        self, roster: Mapping[NodeId, Member], marks: Mapping[NodeId, Micros], now: int
    ) -> Iterator[NodeId]:
        """Who is to be forgotten. A clock that went back starts the wait anew. O(workers)."""
        seen, self._seen, self._looked_at = self._seen, {}, now
        for worker, member in roster.items():
            if member.until_us != AFTER_ALL:
                continue
            mark = marks.get(worker, member.from_us)
            known, since = seen.get(worker, (mark, now))
            if known != mark or now < since:
                since = now
            self._seen[worker] = (mark, since)
            if now - since >= self._forget_us:
                yield worker

    def check(self) -> None:
        """Raise AssertionError unless the invariant holds. O(workers)."""
        assert all(since <= self._looked_at for _, since in self._seen.values())
