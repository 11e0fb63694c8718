"""When a master publishes next: an emit interval after windows changed, or at once when accepted lines have waited long enough.

Bundles arrive five times a second. With emissions at fixed times, a bundle that is a little late would delay watchers by a whole
interval, and after a takeover they have already waited long. So accepted lines are published one emit interval after the last
emission with accepted lines, or at once if that is over: the first line after a pause does not wait. Bundles without lines are
accepted too, and change only the coverage of windows; for them any emission counts. Emissions that follow each other may come a
tenth of the interval sooner, and after a late one half of it: else one late bundle would delay all that follow.

    at             | event                 | next
    ---------------+-----------------------+-------------------------------------------------------------------
    none, or later | windows changed       | one interval from now at the latest
    any            | lines accepted        | now, or one interval after the last such emission
    any            | other bundle accepted | now, or one interval after the last emission
    reached        | emitted               | none
"""

from __future__ import annotations


class Emission:
    """`at`: the next emission, or None. All times are in microseconds; `emit_us` is the job's interval, which may change."""

    def __init__(self) -> None:
        self.at: int | None = None
        self._has_accepted = False
        self._emitted_us: int | None = None  # time of the last emission
        self._is_news = False  # lines were accepted since the last emission with open windows
        self._published_us: int | None = None  # time of the last such emission that had accepted lines

    def accepted(self, has_lines: bool) -> None:
        """A bundle was accepted."""
        self._has_accepted = True
        self._is_news |= has_lines

    def within(self, now: int, emit_us: int) -> None:
        """Windows have changed: emit one interval from now at the latest."""
        if self.at is None or self.at > now + emit_us:
            self.at = now + emit_us

    def hurry(self, now: int, emit_us: int) -> None:
        """A reader wants open windows: if bundles were accepted, emit as soon as they may be published."""
        if self._has_accepted:
            soon, last_us = now, self._published_us if self._is_news else self._emitted_us
            if last_us is not None:
                soon = min(max(soon, last_us + emit_us), now + emit_us)
            self.at = soon if self.at is None else min(soon, self.at)

    def emitted(self, now: int, emit_us: int, with_open: bool) -> None:
        """Windows are published now, with open ones if `with_open`."""
        self.at, self._emitted_us = None, _counted(self._emitted_us, now, emit_us)
        if self._is_news and with_open:
            self._is_news, self._published_us = False, _counted(self._published_us, now, emit_us)


def _counted(last_us: int | None, now: int, emit_us: int) -> int:
    """The time at which an emission counts."""
    return now if last_us is None else min(now, max(last_us + emit_us * 9 // 10, now - emit_us // 2))
