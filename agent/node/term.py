"""The term of a trial: the time at which it ends by itself, at each node (rule Trials*)."""

from __future__ import annotations

from elf.srt.messages.effects import Effect
from elf.srt.messages.messages import Micros


class Term:
    """A deadline at `until_us`, once. The seat compares the clock with its spec then: the clock may have stepped back."""

    def __init__(self, until_us: Micros) -> None:
        self.until_us = until_us
        self.deadline: int | None = until_us

    def tick(self, now: int) -> list[Effect]:
        """Before `until_us`, where a clock stepped, the deadline stays."""
        self.deadline = None if now >= self.until_us else self.until_us
        return []

    def check(self) -> None:
        """Raise AssertionError unless the invariant holds."""
        assert self.deadline in (None, self.until_us)
