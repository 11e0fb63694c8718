"""When which core has work next, without asking all of them each time."""

from __future__ import annotations

import heapq
from typing import Protocol


class Timed(Protocol):
    """Something with a `deadline`: the earliest moment at which its `tick` has work, or None."""

    @property
    def deadline(self) -> int | None: ...


class Timers:
    """The earliest deadlines first. `watch` a core whenever it may have a new one. O(log n) each.

    A deadline that moved back leaves its old entry behind, which is looked at, found early and put off.
    """

    __slots__ = ("_at", "_heap", "_made")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timed]] = []
        self._at: dict[int, int] = {}  # id of a core -> its earliest entry
        self._made = 0

    @property
    def next_us(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def watch(self, core: Timed) -> None:
        """Look at the core's deadline again."""
        deadline = core.deadline
        if deadline is None:
            return
        known = self._at.get(id(core))
        if known is None or deadline < known:
            self._at[id(core)] = deadline
            self._made += 1
            heapq.heappush(self._heap, (deadline, self._made, core))

    def due(self, now: int) -> list[Timed]:
        """Take out the cores whose deadline has come. Each must be watched again after its tick."""
        heap = self._heap
        out: list[Timed] = []
        while heap:
            at, _, core = heap[0]
            if self._at.get(id(core)) != at:  # an earlier one took its place
                heapq.heappop(heap)
                continue
            if at > now:
                break
            deadline = core.deadline
            if deadline is not None and deadline > now:
                self._at[id(core)] = deadline
                self._made += 1
                heapq.heapreplace(heap, (deadline, self._made, core))
                continue
            heapq.heappop(heap)
            del self._at[id(core)]
            if deadline is not None:
                out.append(core)
        return out
