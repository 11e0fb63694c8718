"""A deadline of a core that is set again and again."""

from __future__ import annotations


class Alarm:
    """Rings once, `span` µs after it was set. If the clock steps back, it waits no longer than its span."""

    __slots__ = ("at", "span")

    def __init__(self) -> None:
        self.at: int | None = None
        self.span = 0

    def set(self, now: int, span: int) -> None:
        self.at, self.span = now + span, span

    def stop(self) -> None:
        self.at = None

    def rings(self, now: int) -> bool:
        """Whether the time has come; if so, the alarm is stopped."""
        if self.at is None:
            return False
        self.at = min(self.at, now + self.span)
        if now < self.at:
            return False
        self.at = None
        return True
