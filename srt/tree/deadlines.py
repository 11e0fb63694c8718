"""The deadlines of one seat in a tree."""

from __future__ import annotations

NEVER = 1 << 62


class Deadlines:
    """Microseconds of the node's clock; NEVER: that deadline does not run.

    join: next attempt to find a parent. parent: the parent has been silent for too long. size: report to the parent. path:
    announcement to the children. repair: the seat has been too deep for long.
    """

    __slots__ = ("_now", "join", "parent", "path", "repair", "size")

    def __init__(self) -> None:
        self._now = 0
        self.join = self.parent = self.size = self.path = self.repair = NEVER

    @property
    def first(self) -> int | None:
        """The earliest one; None if none runs."""
        due = min(self.join, self.parent, self.size, self.path, self.repair)
        return None if due == NEVER else due

    def set_clock(self, now: int) -> None:
        """Where the clock steps back, shift all deadlines by that step, so that running timeouts keep their length."""
        back = self._now - now
        self._now = now
        if back > 0:
            self.join, self.parent, self.size, self.path, self.repair = (
                due if due == NEVER else due - back
                for due in (self.join, self.parent, self.size, self.path, self.repair)
            )
