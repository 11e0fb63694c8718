"""Which version of a job an event time belongs to, and which lines a change of the schedule must read again. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from elf.jobmaster.plan.codec import decode
from elf.jobmaster.plan.plan import Plan
from elf.srt.messages.messages import Ballot, Line, Micros, Schedule

BEFORE_ALL = -(1 << 62)
AFTER_ALL = 1 << 62
EPOCH_MAX = (1 << 29) - 1
"""Of the epochs that numbers distinguish: a number has less than 62 bits."""


@lru_cache(maxsize=256)
def plan_of(data: bytes) -> Plan:
    """The plan of a line, decoded and validated once. Raises PeerError."""
    return decode(data)


class Shape(msgspec.Struct, frozen=True, gc=False):
    """The shape of a version's windows. pane_us 0: the query has no windows, and all lines are in one pane."""

    pane_us: int
    size_us: int
    slide_us: int

    @classmethod
    def of(cls, plan: Plan) -> Shape:
        window = plan.window
        return cls(window.pane_us, window.size_us, window.slide_us) if window else cls(0, 0, 0)

    def floor(self, time_us: Micros) -> Micros:
        """The start of the pane of that time."""
        return time_us - time_us % self.pane_us if self.pane_us else BEFORE_ALL

    def stored_with(self, pane: Micros) -> Micros:
        """The start of the window with which a lake stores that pane: the first one that ends after it ends."""
        return (
            (pane + self.slide_us - self.size_us) // self.slide_us * self.slide_us if self.pane_us else pane
        )

    def is_before(self, pane: Micros, time_us: Micros) -> bool:
        """Whether the whole pane lies before that time."""
        return bool(self.pane_us) and pane + self.pane_us <= time_us

    def first_in_time(self, retained_us: Micros) -> Micros:
        """The start of the first window that is retained whole; rows before it are in no retained window."""
        if not self.pane_us:
            return BEFORE_ALL
        first = self.floor(retained_us)
        return first + -first % self.slide_us


def number_of(schedule: Schedule) -> int:
    return schedule[-1].number if schedule else 0


def next_number(ballot: Ballot, schedule: Schedule) -> int:
    """A number for a new line: higher than all in the log, and different from those of other masters, even in the same epoch."""
    return number_after(ballot, number_of(schedule))


def number_after(ballot: Ballot, last: int) -> int:
    """The first number above `last` of the master of that ballot: numbers of a later ballot are higher. O(1)."""
    epoch, node = ballot
    mine = min(epoch, EPOCH_MAX) << 32 | int.from_bytes(blake2b(node, digest_size=2).digest()) << 16
    return max(mine, last) + 1


def with_line(schedule: Schedule, line: Line) -> Schedule:
    """The schedule after `line`: versions that would begin at or past it never come into force."""
    return (*(each for each in schedule if each.from_us < line.from_us), line)


def without_past(schedule: Schedule, before_us: Micros, longest_us: Micros = 0) -> Schedule:
    """The schedule without the lines that were replaced at or before that time, so that no window of `longest_us` reaches over
    it: the version may come back within such a window, which then still covers both parts. Their settings go on. Where a version
    went on, with other settings, the two lines become one."""
    while len(schedule) > 1:
        first, second = schedule[:2]
        if second.from_us + longest_us > before_us:
            break
        from_us = first.from_us if first.version == second.version else second.from_us
        merged = replace(second, from_us=from_us, settings=second.settings or first.settings)
        schedule = (merged, *schedule[2:])
    return schedule


def interval(schedule: Schedule, version: str) -> tuple[Micros, Micros]:
    """The interval in which a version is in force; if it came back, from its first beginning to its last end. Raises KeyError."""
    found = [i for i, line in enumerate(schedule) if line.version == version]
    if not found:
        raise KeyError(version)
    first, last = found[0], found[-1] + 1
    until = schedule[last].from_us if last < len(schedule) else AFTER_ALL
    return schedule[first].from_us, until


def times_within(schedule: Schedule, version: str, start: Micros, end: Micros) -> tuple[Micros, Micros]:
    """The times of [start, end) at which a version is in force: the outer bounds, if it came back within them; an empty interval
    at one of the ends if it is in force at none of them. Raises KeyError. O(lines)."""
    first, _ = interval(schedule, version)
    if len(schedule) == 1:
        return (end, end) if first >= end else (max(start, first), end)
    until = [*(line.from_us for line in schedule[1:]), AFTER_ALL]
    spans = [
        (line.from_us, stop)
        for line, stop in zip(schedule, until, strict=True)
        if line.version == version and line.from_us < end and start < stop
    ]
    if not spans:
        return (end, end) if first >= end else (start, start)
    return max(start, spans[0][0]), min(end, spans[-1][1])


def speaks_for(schedule: Schedule, version: str, start: Micros, end: Micros) -> bool:
    """Whether a version is in force at some time of [start, end). O(lines)."""
    until = [*(line.from_us for line in schedule[1:]), AFTER_ALL]
    return any(
        line.version == version and line.from_us < end and start < stop
        for line, stop in zip(schedule, until, strict=True)
    )


def in_force(schedule: Schedule, time_us: Micros) -> Line:
    """The line in force at `time_us`; the first one for earlier times."""
    found = schedule[0]
    for line in schedule:
        if line.from_us <= time_us:
            found = line
    return found


def first_unknown(schedule: Schedule, number: int) -> Micros:
    """The time from which an earlier schedule, of that number, differs from this one."""
    return next((line.from_us for line in schedule if line.number > number), AFTER_ALL)


def lane_from(schedule: Schedule, shapes: Mapping[str, Shape], line_us: Micros) -> Micros:
    """The time from which log lines are read again when a new control line is at `line_us`.

    A pane with rows on both sides of it cannot be divided: it is discarded and filled again from its start, each log line under
    its own version. A version that came back may have an earlier interval in that pane, which moves the time further back.
    """
    low = line_us
    while True:
        reach = min(
            (_reach(schedule, line, shapes[line.version].floor(low), low) for line in schedule), default=low
        )
        if reach >= low:
            return low
        low = reach


def past(schedule: Schedule, line_us: Micros) -> list[Line]:
    """The lines that are in force at some time at or past `line_us`."""
    until = [*(line.from_us for line in schedule[1:]), AFTER_ALL]
    return [line for line, stop in zip(schedule, until, strict=True) if stop > line_us]


def counts_alike(schedule: Schedule, shapes: Mapping[str, Shape], new: bytes, line_us: Micros) -> bool:
    """Whether a plan that comes into force at `line_us` counts as all do that it replaces, and no pane is divided: so rows change
    hands (rule Keep*)."""
    plan, replaced = plan_of(new), past(schedule, line_us)
    return (
        all(plan.counts_as(plan_of(line.plan)) for line in replaced)
        and all(shapes[line.version].floor(line_us) == line_us for line in replaced)
        and lane_from(schedule, shapes, line_us) == line_us
    )


def _reach(schedule: Schedule, of: Line, pane: Micros, low: Micros) -> Micros:
    """The earliest time at which the line's version has rows in its panes from `pane` on, if it is in force at all after
    `low`."""
    bounds = [*(line.from_us for line in schedule[1:]), AFTER_ALL]
    spans = [
        (line.from_us, until)
        for line, until in zip(schedule, bounds, strict=True)
        if line.version == of.version and until > pane
    ]
    if not spans or spans[-1][1] <= low:
        return low
    return max(spans[0][0], pane)
