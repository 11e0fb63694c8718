"""The longer windows of a report: their length, which panes make them up, and SQL that finds a pane's window.

Windows begin at the multiples of their length in UTC. Windows of whole days begin at those of the calendar of a time zone, so
that a day has 23 or 25 hours where the clock changes, as with `elf run --display-timezone`. Panes are of UTC. They make up days
of a zone if no day begins inside a pane: if their length divides each offset that the zone has in the lake's time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from math import gcd

import msgspec

from elf.errors import UsageError
from elf.jobmaster.values.zones import DAY_US, SECOND_US, zone_named
from elf.sinks.lake.layout import HOUR_US

MINUTE_US = 60 * SECOND_US
UNITS_US = {"s": SECOND_US, "m": MINUTE_US, "h": HOUR_US, "d": DAY_US, "w": 7 * DAY_US}
YEAR_US = 366 * DAY_US
_WORDS = (
    (DAY_US, "day"),
    (HOUR_US, "hour"),
    (MINUTE_US, "minute"),
    (SECOND_US, "second"),
    (1, "microsecond"),
)

Span = tuple[int, int]
"""From and until, microseconds UTC."""
Offsets = list[tuple[int, int]]
"""(since, microseconds east of UTC), in order; the first offset holds before its time, too."""


def interval_us(text: str) -> int:
    """`1h`, `15m`, `1d` in microseconds. Raises UsageError."""
    found = re.fullmatch(r"\s*([1-9]\d{0,5})\s*([smhdw])\s*", text)
    if found is None:
        raise UsageError(
            f"--every {text!r} is not an interval; give a number and s, m, h, d or w, such as 15m, 1h or 1d"
        )
    return int(found[1]) * UNITS_US[found[2]]


class Every(msgspec.Struct, frozen=True):
    """Windows of `us` microseconds. zone: whose days they are, if they are of whole days."""

    us: int
    zone: str = "UTC"

    def offsets(self, span: Span, around: int = 0) -> Offsets:
        """Those of the calendar that the windows follow, within `span` and so long before and after it."""
        if self.zone == "UTC" or self.us % DAY_US:
            return [(span[0], 0)]
        return zone_named(self.zone).offsets(span[0] - around, span[1] + around)

    def start_of(self, at: int) -> int:
        """The begin of the window with that moment."""
        if self.zone == "UTC" or self.us % DAY_US:
            return at - at % self.us
        zone = zone_named(self.zone)
        local = zone.local_of(at)
        return zone.utc_of(local - local % self.us)

    def misfit(self, pane_us: int, span: Span) -> str | None:
        """Why panes of this length do not make up such windows in `span`; None if they do."""
        if self.us % pane_us:
            return f"--every must be a multiple of {pane_us / SECOND_US:g} s, the length of its panes"
        cut = next((at for at in self._cuts(span) if at % pane_us), None)
        if cut is None:
            return None
        minute = cut % DAY_US // MINUTE_US
        return (
            f"days of {self.zone} begin at {minute // 60:02}:{minute % 60:02} UTC, inside its panes of {words(pane_us)}; "
            f"such days need a query with window(time, '{words(finest_us(self.zone, span))}')"
        )

    def _cuts(self, span: Span) -> Iterator[int]:
        """Where windows begin, but for multiples of their length: for each offset, and for each change to another window."""
        before: int | None = None
        for since, offset in self.offsets(span):
            yield -offset
            if before is not None and (since - 1 + before) // self.us != (since + offset) // self.us:
                yield since
            before = offset


def finest_us(zone: str, span: Span) -> int:
    """The longest panes, of an hour at most, that make up the zone's days within `span` and a year around it."""
    return gcd(HOUR_US, *Every(DAY_US, zone)._cuts((span[0] - YEAR_US, span[1] + YEAR_US)))


def words(length_us: int) -> str:
    """A length as a query has it: `15 minutes`."""
    unit, name = next(each for each in _WORDS if length_us % each[0] == 0)
    return f"{length_us // unit} {name}{'s' if length_us != unit else ''}"


def local_sql(time: str, offsets: Offsets) -> str:
    """SQL of the calendar's time at `time`, SQL of microseconds UTC."""
    cases = [f"WHEN {time} >= {since}L THEN {time} + {offset}L" for since, offset in reversed(offsets[1:])]
    return _case(cases, time, offsets[0][1])


def utc_sql(local: str, offsets: Offsets) -> str:
    """SQL of the first moment at which the calendar has reached `local`, also where it skips that: as `Zone.utc_of`."""
    cases = [
        f"WHEN {local} >= {since + before}L THEN greatest({since}L, {local} - {offset}L)"
        for (_, before), (since, offset) in pairwise(offsets)
    ]
    return _case(cases[::-1], local, -offsets[0][1])


def _case(cases: list[str], time: str, shift: int) -> str:
    other = f"{time} + {shift}L" if shift else time
    return f"CASE {' '.join(cases)} ELSE {other} END" if cases else f"({other})"
