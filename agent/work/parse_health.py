"""Whether the latest lines of a source can be read at all: of none of those that cannot is known when it was."""

from __future__ import annotations

from elf.agent.work.unparsed import LINES_MIN
from elf.srt.messages.messages import Micros


class ParseHealth:
    """line_s: when a line was read last, and could be; before the first one, when that was tried first."""

    def __init__(self) -> None:
        self.line_s: float | None = None
        self._rejected, self._rejected_us = 0, 0  # lines in a row, and the clock at the last of them
        self._can_read = False  # any line so far

    def begin(self, now_s: float) -> None:
        """There is a first look."""
        if self.line_s is None:
            self.line_s = now_s

    def read(self, now_s: float) -> None:
        """A block had lines that could be read."""
        self.line_s, self._rejected, self._can_read = now_s, 0, True

    def rejected(self, count: int, clock_us: Micros) -> None:
        """A block had only such lines as could not."""
        self._rejected += count
        self._rejected_us = clock_us

    @property
    def is_failing(self) -> bool:
        """Whether none of the last lines could be read."""
        return self._rejected >= (LINES_MIN if self._can_read else 1)

    def may_cover_rejects(self, before_us: Micros, watermark_us: Micros) -> bool:
        """Whether what is promised now may hold some of these lines."""
        return self.is_failing and before_us < watermark_us and before_us <= self._rejected_us
