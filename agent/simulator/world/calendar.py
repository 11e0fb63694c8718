"""The event queue of a simulated mesh: events in order of time; events of one moment in the order in which they were added.

A calendar queue (Brown, CACM 1988): a page for each millisecond, unordered until its time comes, then sorted at once. A mesh of
10,000 nodes has hundreds of thousands of events waiting, a thousand to a page: adding one is an append, and sorting pages takes a
third of the time that one large heap would.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Iterator
from typing import Any

Event = tuple[int, int, Callable[[Any, Any], None], Any, Any]
"""(time in µs, how many were added before, function, its two arguments)."""

PAGE_BITS = 10
"""A page covers 1,024 µs."""


class Calendar:
    """Future events. No event may be added before the time of the one taken last."""

    __slots__ = ("_at", "_made", "_number", "_numbers", "_page", "_pages")

    def __init__(self) -> None:
        self._pages: dict[int, list[Event]] = {}
        self._numbers: list[int] = []  # heap of the pages' numbers
        self._page: list[Event] = []  # the one being read, in order
        self._at = 0  # how far it has been read
        self._number = -1
        self._made = 0

    def add(self, time_us: int, do: Callable[[Any, Any], None], a: Any, b: Any) -> None:
        """Call `do(a, b)` at that time. O(1); within the page being read O(events in it), which is rare."""
        self._made += 1
        number = time_us >> PAGE_BITS
        if number == self._number:
            insort(self._page, (time_us, self._made, do, a, b), self._at)
            return
        page = self._pages.get(number)
        if page is None:
            self._pages[number] = [(time_us, self._made, do, a, b)]
            heapq.heappush(self._numbers, number)
        else:
            page.append((time_us, self._made, do, a, b))

    def upto(self, until_us: int) -> Iterator[Event]:
        """Take the events up to that time, in order, including those added meanwhile. O(log events of a page) each."""
        while True:
            page = self._page
            while self._at < len(page):
                event = page[self._at]
                if event[0] > until_us:
                    return
                self._at += 1
                yield event
            if not self._numbers or self._numbers[0] << PAGE_BITS > until_us:
                return
            self._number = heapq.heappop(self._numbers)
            self._page, self._at = self._pages.pop(self._number), 0
            self._page.sort()
