"""Detects a source whose lines cannot be parsed: a wrong format must not look like a quiet server."""

from __future__ import annotations

from collections import Counter

from elf.agent.formats.batch import Reject
from elf.agent.formats.fields import Reason
from elf.agent.work.feed import Totals
from elf.sinks.console.cells import escape

EVERY_US = 10_000_000
LINES_MIN = 10
"""Lines compared at least; fewer prove nothing, since at night a scanner's garbage may be the only traffic."""
SHARE_MAX = 0.5
"""A source with a larger fraction of rejected lines among the recent ones is in trouble."""
SAMPLE_BYTES = 120
"""Bytes of a rejected line that are shown: the mismatch with the format is mostly at its beginning."""


class Unparsed:
    """Compares the totals of one source from time to time; reports when none of its lines parse, and when they parse again.

    format: of the source, as in its configuration.
    share: the fraction of recent lines that were rejected. sample: one rejected line, safe to print; it stays the same until
    lines parse again.
    """

    def __init__(self, name: str, format: str = "auto") -> None:
        self._name, self._format = name, format
        self._since_us: int | None = None
        self._lines = self._parsed = 0
        self._rejects: Counter[Reason] = Counter()
        self._is_reported = False
        self.share = 0.0
        self.sample = self.reason = ""

    def look(self, now_us: int, totals: Totals, path: str, rejected: Reject | None = None) -> str | None:
        """A notice, if one is due now. path: where the last lines came from. rejected: the last rejected line."""
        if self._since_us is None:
            self._since_us = now_us
        reasons = totals.rejects - self._rejects
        # The lines of other programs in a syslog file are no trouble.
        all_lines = totals.lines - totals.rejects[Reason.PROGRAM]
        lines, parsed = all_lines - self._lines, totals.parsed - self._parsed
        if now_us - self._since_us < EVERY_US or lines < LINES_MIN:
            return None
        del reasons[Reason.PROGRAM]
        self._since_us, self._lines, self._parsed = now_us, all_lines, totals.parsed
        self._rejects = Counter(totals.rejects)
        self._note(1 - parsed / lines, reasons, rejected)
        if (not parsed) == self._is_reported:
            return None
        self._is_reported = not parsed
        if parsed:
            return f"{self._name}: lines can be parsed again"
        reason = f"{self._name}: none of the last {lines:,} lines could be parsed: {self.reason}"
        import shlex

        format = "" if self._format == "auto" else f" --format {shlex.quote(self._format)}"
        return f"{reason}; see where with: elf parse {shlex.quote(path)}{format}"

    def _note(self, share: float, reasons: Counter[Reason], rejected: Reject | None) -> None:
        was_fine, self.share = self.share <= SHARE_MAX, share
        if share <= SHARE_MAX:
            self.sample = self.reason = ""
        elif was_fine:
            self.reason = max(reasons, key=lambda each: reasons[each]).value
            self.sample = sample_text(rejected.line) if rejected is not None else ""

    @property
    def trouble(self) -> str:
        """What is wrong, for operators, or ""."""
        if self.share <= SHARE_MAX:
            return ""
        return (
            f"source {self._name}: {self.share:.0%} of the recent lines are rejected ({self.reason}), such as: {self.sample}; "
            "set its format to what the server writes (elf parse shows where lines stop matching)"
        )


def sample_text(line: bytes) -> str:
    """The beginning of a rejected line: bounded, on one line, without control characters."""
    text = escape(line[:SAMPLE_BYTES].decode("utf-8", "backslashreplace"))
    return text + ("…" if len(line) > SAMPLE_BYTES else "")
