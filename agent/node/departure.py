"""The departure of a node that leaves for good: the time in which its last advert spreads."""

from __future__ import annotations

from elf.srt.messages.effects import Effect


class Departure:
    """Begins when all of the node's lines are committed; `is_over` after `span_us`. It has a deadline, as cores have."""

    def __init__(self, span_us: int) -> None:
        self._span_us = span_us
        self.deadline: int | None = None
        self.is_over = False

    def begin(self, now: int) -> None:
        self.deadline = now + self._span_us

    def tick(self, now: int) -> list[Effect]:
        """The departure is over."""
        self.is_over, self.deadline = True, None
        return []
