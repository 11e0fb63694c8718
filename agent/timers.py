"""When which core has work next, without asking all of them each time."""

from __future__ import annotations

import heapq
from typing import Protocol


class Timed(Protocol):
    """Something with a `deadline`: the earliest moment at which its `tick` has work, or None."""

    @property
    def deadline(self) -> int | None: ...


class Timers:
    """The earliest deadlines first. `watch` a core whenever it may have an earlier one. O(log n) each.

    A deadline that moved away leaves its entry where it was; `refresh` puts it off, or `due` does when its time comes. One that
    came closer gets a second entry; the first counts no more.
    """

    __slots__ = ("_at", "_heap", "_made")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timed, object]] = []
        self._at: dict[int, int] = {}  # id of a core -> its earliest entry
        self._made = 0

    @property
    def next_us(self) -> int | None:
        """When something may be due. Amortised O(log n)."""
        heap, known = self._heap, self._at
        while heap:
            at, _, core, _ = heap[0]
            if known.get(id(core)) == at:
                return at
            heapq.heappop(heap)
        return None

    def watch(self, core: Timed, owner: object = None) -> None:
        """Look at the core's deadline again. `owner` comes back with it."""
        deadline = core.deadline
        if deadline is None:
            return
        known = self._at.get(id(core))
        if known is None or deadline < known:
            self._at[id(core)] = deadline
            self._made += 1
            heapq.heappush(self._heap, (deadline, self._made, core, owner))

    def refresh(self) -> None:
        """Put off what would be found early next. Called where many deadlines have moved away, it saves a node most of the times
        that it would wake up for nothing. O(log n) for each that is put off."""
        heap = self._heap
        while heap:
            at, _, core, owner = heap[0]
            if self._at.get(id(core)) != at:
                heapq.heappop(heap)
                continue
            deadline = core.deadline
            if deadline is None:
                heapq.heappop(heap)
                del self._at[id(core)]
            elif deadline > at:
                self._at[id(core)] = deadline
                self._made += 1
                heapq.heapreplace(heap, (deadline, self._made, core, owner))
            else:
                break

    def is_watched(self, core: Timed) -> bool:
        """Whether it will be found when its deadline comes."""
        deadline = core.deadline
        return deadline is None or self._at.get(id(core), deadline + 1) <= deadline

    def due(self, now: int) -> list[tuple[Timed, object]]:
        """Take out the cores whose deadline has come, with their owners. Each must be watched again after its tick."""
        heap = self._heap
        out: list[tuple[Timed, object]] = []
        while heap:
            at, _, core, owner = heap[0]
            if self._at.get(id(core)) != at:  # an earlier one took its place
                heapq.heappop(heap)
                continue
            if at > now:
                break
            deadline = core.deadline
            if deadline is not None and deadline > now:
                self._at[id(core)] = deadline
                self._made += 1
                heapq.heapreplace(heap, (deadline, self._made, core, owner))
                continue
            heapq.heappop(heap)
            del self._at[id(core)]
            if deadline is not None:
                out.append((core, owner))
        return out
