"""Whether the latest lines of a source can be parsed. Rejected lines have no event time."""

from __future__ import annotations

from elf.agent.work.unparsed import LINES_MIN
from elf.srt.messages.messages import Micros


class ParseHealth:
    """Counts rejected lines in a row. line_s: when a line was parsed last; before the first one, when reading started."""

    def __init__(self) -> None:
        self.line_s: float | None = None
        self._rejected, self._rejected_us = 0, 0  # lines in a row, and the clock at the last of them
        self._can_read = False  # any line so far

    def begin(self, now_s: float) -> None:
        """Note that reading starts."""
        if self.line_s is None:
            self.line_s = now_s

    def read(self, now_s: float) -> None:
        """Note a block with parsed lines."""
        self.line_s, self._rejected, self._can_read = now_s, 0, True

    def rejected(self, count: int, clock_us: Micros) -> None:
        """Note a block with rejected lines only."""
        self._rejected += count
        self._rejected_us = clock_us

    @property
    def is_failing(self) -> bool:
        """Whether the last lines were all rejected."""
        return self._rejected >= (LINES_MIN if self._can_read else 1)

    def may_cover_rejects(self, before_us: Micros, watermark_us: Micros) -> bool:
        """Whether rejected lines may have event times between the last watermark and this one."""
        return self.is_failing and before_us < watermark_us and before_us <= self._rejected_us
