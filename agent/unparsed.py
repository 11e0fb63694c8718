"""Notices a source of which no line can be read any more: a wrong format must not look like a quiet server."""

from __future__ import annotations

from collections import Counter

from elf.agent.feed import Totals
from elf.agent.fields import Reason

EVERY_US = 10_000_000
LINES_MIN = 10
"""Fewer lines than these say nothing: a scanner's garbage may be all that comes at night."""


class Unparsed:
    """Compares the totals of one source from time to time; speaks when its lines stop to parse, and when they do again."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._since_us: int | None = None
        self._lines = self._parsed = 0
        self._rejects: Counter[Reason] = Counter()
        self._said = False

    def look(self, now_us: int, totals: Totals, path: str) -> str | None:
        """What is to be said at this time, if anything. path: where the last lines came from."""
        if self._since_us is None:
            self._since_us = now_us
        lines, parsed = totals.lines - self._lines, totals.parsed - self._parsed
        if now_us - self._since_us < EVERY_US or lines < LINES_MIN:
            return None
        reasons = totals.rejects - self._rejects
        self._since_us, self._lines, self._parsed = now_us, totals.lines, totals.parsed
        self._rejects = Counter(totals.rejects)
        if (not parsed) == self._said:
            return None
        self._said = not parsed
        if parsed:
            return f"{self._name}: lines can be read again"
        reason = max(reasons, key=lambda each: reasons[each]).value
        return f"{self._name}: none of the last {lines:,} lines could be read: {reason}; see where with: elf parse {path}"
