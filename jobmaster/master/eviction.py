"""Evicts silent workers: those whose watermark has not moved for `forget_us`.

    at a look                                      | the worker's silence
    -----------------------------------------------+-------------------------------------------------
    the worker is newly expected                   | begins
    its watermark moved, or the clock stepped back | begins anew
    the silence has lasted `forget_us`             | continues; `look` returns the worker, each time
    the worker is no longer expected               | ends

Invariant (`check`): no silence begins after the last look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from elf.jobmaster.log.positions import Member
from elf.jobmaster.log.schedule import AFTER_ALL
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Micros

LOOKS = 16
"""The number of looks in `forget_us`: an eviction is late by at most a sixteenth of that."""


class Eviction:
    """Each expected worker's last watermark, and since when it has not moved. Memory: one entry per worker."""

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
        """The workers to evict. If the clock steps back, silences begin anew. O(workers)."""
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
