"""The expected workers, and how far each of their files is committed: this decides whether a bundle fits.

`JobState` has one `Positions` after the committed entries; `Master` has a second one that is ahead by the proposed entries. Both
apply the same entries by the same code, so they cannot disagree.

    file of a worker:   unknown --FIRST, or from 0--> open at an offset --CLOSED--> closed (a tombstone, until retention passes)
                        closed at its offset --more from there on--> open, or closed further on
    file in a lane:     waits (ends) --FIRST, or from 0--> open at an offset --end reached--> done

The process that closes a file need not be the one that read it, and may never have had it. So a closed file's end is only the
last committed offset, and a span that starts there continues the file.

Invariants (`check`): an offset only grows; a closed file is not open; a lane's offset is at most its end; there is at most one
lane, and the schedule has its control line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum

import msgspec

from elf.jobmaster.log.entries import (
    NO_LANE,
    Accept,
    Add,
    AnyEntry,
    Begin,
    ControlEntry,
    Forget,
    Gone,
    Left,
    Retire,
)
from elf.jobmaster.log.schedule import (
    AFTER_ALL,
    BEFORE_ALL,
    Shape,
    first_unknown,
    interval,
    number_of,
    plan_of,
    with_line,
    without_past,
)
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import CLOSED, FIRST, NO_WATERMARK, Micros, Position, Schedule, Slot, Span
from elf.srt.messages.partial import Part

AHEAD_US_MAX = 24 * 3600 * 1_000_000
"""A log line whose time is later than its worker's watermark by more than this does not prolong how long a closed file's position
is kept."""


UNABLE_US = AFTER_ALL - 1
"""The end of a worker that cannot take part in the job until its elf is upgraded: all windows expect it, none waits for it."""


class Fit(Enum):
    """How a bundle's contributions compare to the committed positions."""

    FITS = "fits"
    BEHIND = "behind"  # all of it is in the log
    AHEAD = "ahead"  # something before it is missing
    MIXED = "mixed"  # some of each, or a span that straddles its position


class Place(Enum):
    """How one contribution compares to its file's position."""

    IDLE = 0  # empty, at the committed position: it adds nothing, like one that is behind
    FITS = 1
    BEHIND = 2
    AHEAD = 3
    BAD = 4


class Member(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A worker of the roster: windows that overlap [from_us, until_us) expect it. has_left: it sent a Goodbye, with all its lines
    committed. keep_us: its positions are kept until retention has passed this time."""

    from_us: Micros
    until_us: Micros = AFTER_ALL
    has_left: bool = False
    keep_us: Micros = AFTER_ALL

    @property
    def is_here(self) -> bool:
        """Whether it is expected now, able or not."""
        return self.until_us >= UNABLE_US

    @property
    def is_unable(self) -> bool:
        return self.until_us == UNABLE_US


class Lane(msgspec.Struct, frozen=True):
    """Log lines that workers read again after a change. ends: the offset at which that ends, for each unfinished file; open: how
    many unfinished files each worker has. Both shrink."""

    number: int
    from_us: Micros
    ends: dict[Slot, int]
    open: dict[NodeId, int]

    @classmethod
    def of(cls, number: int, from_us: Micros, ends: dict[Slot, int]) -> Lane:
        return cls(number, from_us, ends, Counter(worker for worker, _, _ in ends))


class PositionsState(msgspec.Struct, frozen=True, array_like=True):
    """`Positions` as a value."""

    since_us: Micros
    retained_us: Micros
    newest_us: Micros
    schedule: Schedule
    at: dict[Slot, int]
    closed: dict[Slot, tuple[int, Micros]]
    roster: dict[NodeId, Member]
    lane: tuple[int, Micros, dict[Slot, int]] | None
    reported_us: Micros = NO_WATERMARK


class Positions:
    """Positions, roster and schedule after some entry of the log."""

    def __init__(self) -> None:
        self.since_us = self.retained_us = BEFORE_ALL
        self.newest_us = BEFORE_ALL  # no committed row is at or past it
        self.reported_us = BEFORE_ALL
        """No committed line is later, and no watermark; NO_WATERMARK: unknown."""
        self.schedule: Schedule = ()
        self.at: dict[Slot, int] = {}
        self.closed: dict[Slot, tuple[int, Micros]] = {}  # (end, time after which retention drops it)
        self.roster: dict[NodeId, Member] = {}
        self.lane: Lane | None = None
        self.shapes: dict[str, Shape] = {}
        self._files: dict[NodeId, list[Slot]] = {}
        self._intervals: dict[str, tuple[Micros, Micros]] = {}
        self._numbers: set[int] = set()  # of the schedule's lines

    # ---- judging ----

    def judge(self, contributions: Mapping[Slot, Span]) -> Fit:
        """Compare a bundle to the positions. O(contributions), with one look-up for each if all fit."""
        if self.lane is not None or not contributions:
            return self._classify(contributions)
        at = self.at.get
        for slot, (start, end, _) in contributions.items():
            if at(slot) != start or end < start:
                return self._classify(contributions)
        return Fit.FITS

    def _classify(self, contributions: Mapping[Slot, Span]) -> Fit:
        found = {self.place(slot, span) for slot, span in contributions.items()}
        if Place.BAD in found:
            return Fit.MIXED
        if Place.BEHIND in found:
            return Fit.MIXED if found & {Place.FITS, Place.AHEAD} else Fit.BEHIND
        if Place.AHEAD in found:
            return Fit.AHEAD
        return Fit.FITS if found else Fit.BEHIND

    def place(self, slot: Slot, span: Span) -> Place:
        """Compare one contribution to its file's position."""
        start, end, flags = span
        _, file, lane = slot
        if not 0 <= start <= end or (not file and end):
            return Place.BAD
        if lane:
            wanted = self._lane_end(slot)
            if wanted is None and lane <= number_of(self.schedule):  # done, or replaced by a newer lane
                return Place.BEHIND if end > start else Place.IDLE
            if wanted is None:
                return Place.BAD
            if end > wanted:
                return Place.BAD
        at = self.at.get(slot)
        if at is None:
            return self._unknown(slot, span)
        if start == at:
            return Place.FITS if end > start or flags & CLOSED else Place.IDLE
        if start > at:
            return Place.AHEAD
        return Place.BEHIND if end < at or (end == at and not flags & CLOSED) else Place.BAD

    def _lane_end(self, slot: Slot) -> int | None:
        lane = self.lane
        return lane.ends.get(slot) if lane is not None and slot[2] == lane.number else None

    def _unknown(self, slot: Slot, span: Span) -> Place:
        start, end, flags = span
        tomb = self.closed.get(slot)
        if tomb is not None:
            return self._at_end(start, end, tomb[0])
        if not slot[1]:
            return Place.IDLE
        return Place.FITS if self.may_open(start, flags) else Place.AHEAD

    def _at_end(self, start: int, end: int, length: int) -> Place:
        """Compare a contribution to a closed file."""
        if self.may_reopen(start, length):
            return Place.FITS if end > start else Place.IDLE
        if start > length:
            return Place.AHEAD
        return Place.BAD if end > length else Place.BEHIND

    def may_reopen(self, start: int, length: int) -> bool:
        """Rule 10*: a closed file continues at its end, and nowhere else."""
        return start == length

    def may_open(self, start: int, flags: int) -> bool:
        """Rule 4: only a span that no line of the job precedes opens an unknown file."""
        return bool(flags & FIRST) or start == 0

    def misfits(self, contributions: Mapping[Slot, Span]) -> list[Slot]:
        """The files whose spans are not at their committed position."""
        fine = (Place.FITS, Place.IDLE)
        return [slot for slot, span in contributions.items() if self.place(slot, span) not in fine]

    def rows_belong(self, number: int, parts: Mapping[str, Part], newest: Micros = NO_WATERMARK) -> bool:
        """Rule Schedule*: whether every row's version is the schedule's for its time, on both sides of each control line.

        A bundle that was cut under an older schedule is accepted if no line is at or past the first control line that the older
        schedule lacks; where that is unknown, if no row is at or past that line's pane. O(versions).
        """
        if number > number_of(self.schedule) or (
            self.is_of_another_log(number) and any(map(_has_rows, parts.values()))
        ):
            return False
        limit = first_unknown(self.schedule, number)
        limit = AFTER_ALL if newest < limit else limit
        return all(self._belongs(version, part, limit) for version, part in parts.items())

    def is_of_another_log(self, number: int) -> bool:
        """Rule Schedule*: whether a schedule with that number has a line that this log lacks, as after a partition in which both
        sides went back to one version, each at a time of its own."""
        return bool(self.schedule) and self.schedule[0].number < number not in self._numbers

    def _belongs(self, version: str, part: Part, limit: Micros) -> bool:
        lines = part.rows[1]
        if not len(lines):
            return not any(len(rows) for rows in part.rows)
        if version not in self._intervals:
            return False
        low, until = self._intervals[version]
        shape = self.shapes[version]
        if not shape.pane_us:
            return limit == AFTER_ALL
        first, last = int(lines.pane[0]), int(lines.pane[-1])
        return (low <= 0 or first >= shape.floor(low)) and last < until and last + shape.pane_us <= limit

    # ---- entries ----

    def apply(self, entry: AnyEntry) -> None:
        """Apply an entry to positions, roster and schedule; entries of other kinds are ignored."""
        kind = type(entry)
        if kind is Accept:
            self._accept(entry)  # type: ignore[arg-type]
        elif isinstance(entry, Begin):
            self.since_us = self.retained_us = entry.since_us
            self._set_schedule(entry.schedule)
        elif isinstance(entry, ControlEntry):
            self._control(entry)
        elif isinstance(entry, Retire):
            self._retire(entry.before_us)
        elif isinstance(entry, Add):
            self._add(entry)
        elif isinstance(entry, Left):
            self._end(entry.worker, entry.until_us, has_left=True)
        elif isinstance(entry, Gone):
            self.roster.setdefault(entry.worker, Member(entry.from_us))
            self._end(entry.worker, entry.until_us, has_left=False)
        elif isinstance(entry, Forget):
            self._end(entry.worker, entry.until_us, has_left=False)

    def _accept(self, entry: Accept) -> None:
        at, reported_us = self.at, max(entry.newest, *entry.lagging.values(), self.reported_us)
        if reported_us < entry.watermark < NO_WATERMARK:
            reported_us = entry.watermark
        self.reported_us = reported_us
        for version, part in entry.parts.items():
            if len(part.rows[1]):
                self.newest_us = max(self.newest_us, self._newest_us(version, part, entry))
        for slot, (_, end, flags) in entry.contributions.items():
            if flags or slot[2] or slot not in at:
                self._move(slot, end, flags, entry.watermark)
            else:
                at[slot] = end

    def _newest_us(self, version: str, part: Part, entry: Accept) -> Micros:
        """An upper bound of the rows' times. Rows without panes have no times: they are assumed to be at most a day past the
        watermarks, as far as a wrong clock may be."""
        shape = self.shapes.get(version)
        if shape is None or shape.pane_us:
            return int(part.rows[1].pane[-1]) + 1
        marks = (entry.watermark, *entry.lagging.values())
        return max((mark + AHEAD_US_MAX for mark in marks if mark < NO_WATERMARK), default=BEFORE_ALL)

    def _move(self, slot: Slot, end: int, flags: int, watermark: Micros) -> None:
        if slot[2] and self._lane_end(slot) is None:
            return
        if slot in self.closed:
            if end <= self.closed[slot][0]:
                return
            del self.closed[slot]
        elif slot not in self.at:
            self._files.setdefault(slot[0], []).append(slot)
        self.at[slot] = end
        if slot[2]:
            self._move_lane(slot, end, flags)
        elif flags & CLOSED:
            self._close(slot, end, watermark)

    def _close(self, slot: Slot, length: int, watermark: Micros) -> None:
        del self.at[slot]
        self.closed[slot] = (length, self.latest_us(watermark))

    def latest_us(self, watermark: Micros) -> Micros:
        """An upper bound of the times of committed log lines, rounded up by a pane, without lines a day past `watermark`."""
        longest = max((shape.pane_us for shape in self.shapes.values()), default=0)
        return min(self.newest_us, watermark + AHEAD_US_MAX) + longest

    def _move_lane(self, slot: Slot, end: int, flags: int) -> None:
        """A lane's position moves. A file that is closed before its lane's end is lost: its worker will send no more of it."""
        lane = self.lane
        assert lane is not None
        if end < lane.ends[slot] and not flags & CLOSED:
            return
        worker = slot[0]
        del lane.ends[slot]
        self._drop(slot)
        lane.open[worker] -= 1
        if not lane.open[worker]:
            del lane.open[worker]
        if not lane.open:
            self.lane = None

    def _drop(self, slot: Slot) -> None:
        self.at.pop(slot, None)
        self.closed.pop(slot, None)
        files = self._files.get(slot[0])
        if files is not None and slot in files:
            files.remove(slot)
            if not files:
                del self._files[slot[0]]

    def _control(self, entry: ControlEntry) -> None:
        if self.lane is not None:
            for slot in list(self.lane.ends):
                self._drop(slot)
        if entry.lane_us <= self.retained_us and self.is_whole:
            self.since_us = max(self.since_us, self.retained_us)  # rows of earlier lines are lost
        self._set_schedule(with_line(self.schedule, entry.line))
        if entry.lane_us >= NO_LANE:
            return
        number = entry.line.number
        ends = {(*slot[:2], number): end for slot, end in self.at.items() if self._needs_lane(slot, end)}
        for slot, (length, until) in self.closed.items():
            if until > entry.lane_us and self._needs_lane(slot, length):
                ends[(*slot[:2], number)] = length
        self.lane = Lane.of(number, entry.lane_us, ends) if ends else None

    def _needs_lane(self, slot: Slot, end: int) -> bool:
        member = self.roster.get(slot[0])
        return bool(slot[1]) and end > 0 and (member is None or member.until_us == AFTER_ALL)

    def lost_to_lane(self, lane_us: Micros) -> dict[NodeId, Micros]:
        """Workers that have left, or take no part, and so cannot read again the lines that a lane from `lane_us` discards; and a
        bound of the times of their lines."""
        return {
            worker: self.latest_us(AFTER_ALL >> 1) if member.is_unable else member.keep_us
            for worker, member in self.roster.items()
            if member.until_us != AFTER_ALL and member.keep_us > lane_us and worker in self._files
        }

    def _leave_lane(self, worker: NodeId) -> None:
        """The worker's lines will not be read again."""
        lane = self.lane
        if lane is None or lane.open.pop(worker, None) is None:
            return
        for slot in [slot for slot in lane.ends if slot[0] == worker]:
            del lane.ends[slot]
            self._drop(slot)
        if not lane.open:
            self.lane = None

    @property
    def is_whole(self) -> bool:
        """Whether a version has no windows: a change then discards all its rows, and workers read the retained lines again."""
        return any(not shape.pane_us for shape in self.shapes.values())

    def _set_schedule(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._numbers = {line.number for line in schedule}
        self.shapes = {line.version: Shape.of(plan_of(line.plan)) for line in schedule}
        self._intervals = {version: interval(schedule, version) for version in self.shapes}

    def _add(self, entry: Add) -> None:
        for worker in entry.workers:
            known = self.roster.get(worker)
            self.roster[worker] = Member(
                entry.from_us if known is None else min(known.from_us, entry.from_us)
            )

    def _end(self, worker: NodeId, until_us: Micros, *, has_left: bool) -> None:
        member = self.roster.get(worker)
        if member is None or not member.is_here:
            return
        keep = self.latest_us(AFTER_ALL >> 1)
        self.roster[worker] = Member(member.from_us, until_us, has_left, max(keep, until_us))
        self._leave_lane(worker)

    def _retire(self, before_us: Micros) -> None:
        self.retained_us = max(self.retained_us, before_us)
        self._set_schedule(without_past(self.schedule, before_us, self.longest_us))
        past_us = self.reread_us  # lines before it are in no retained pane
        for slot in [slot for slot, (_, until) in self.closed.items() if until <= past_us]:
            self._drop(slot)
        for worker in [worker for worker, member in self.roster.items() if member.keep_us <= past_us]:
            for slot in list(self._files.get(worker, ())):
                self._drop(slot)
            del self.roster[worker]

    # ---- queries ----

    @property
    def reread_us(self) -> Micros:
        """The start of the oldest retained pane. Retention may end inside that pane; all its lines count nevertheless."""
        oldest = min(
            (shape.floor(self.retained_us) for shape in self.shapes.values() if shape.pane_us),
            default=self.retained_us,
        )
        return max(self.since_us, oldest)

    @property
    def longest_us(self) -> Micros:
        """The size of the longest windows; 0 without windows."""
        return max((shape.size_us for shape in self.shapes.values()), default=0)

    def files_of(self, worker: NodeId) -> tuple[tuple[Slot, Position], ...]:
        """The position of each known file of a worker, lanes included. O(its files)."""
        return tuple(
            (slot, position) for slot in self._files.get(worker, ()) if (position := self.position(slot))
        )

    def position(self, slot: Slot) -> Position | None:
        if slot in self.closed:
            return Position(self.closed[slot][0], closed=True)
        at = self.at.get(slot)
        return None if at is None else Position(at)

    def lane_ends_of(self, worker: NodeId) -> tuple[tuple[Slot, int], ...]:
        """The offset up to which each file of the worker is read again."""
        if self.lane is None or worker not in self.lane.open:
            return ()
        return tuple((slot, end) for slot, end in self.lane.ends.items() if slot[0] == worker)

    def snapshot(self) -> PositionsState:
        """O(files)."""
        lane = self.lane
        return PositionsState(
            self.since_us,
            self.retained_us,
            self.newest_us,
            self.schedule,
            dict(self.at),
            dict(self.closed),
            dict(self.roster),
            None if lane is None else (lane.number, lane.from_us, dict(lane.ends)),
            self.reported_us,
        )

    @classmethod
    def of(cls, state: PositionsState) -> Positions:
        """Positions that continue from a snapshot, which they do not change."""
        new = cls()
        new.since_us, new.retained_us, new.newest_us = state.since_us, state.retained_us, state.newest_us
        new.reported_us = state.reported_us
        new._set_schedule(state.schedule)
        new.at, new.closed, new.roster = dict(state.at), dict(state.closed), dict(state.roster)
        for slot in (*new.at, *new.closed):
            new._files.setdefault(slot[0], []).append(slot)
        if state.lane is not None:
            number, from_us, ends = state.lane
            new.lane = Lane.of(number, from_us, dict(ends))
        return new

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        assert not self.at.keys() & self.closed.keys()
        known = {slot for files in self._files.values() for slot in files}
        assert known == self.at.keys() | self.closed.keys()
        assert all(at >= 0 for at in self.at.values())
        assert all(not at for slot, at in self.at.items() if not slot[1])
        lines = [line.from_us for line in self.schedule]
        assert lines == sorted(set(lines))
        lanes = {slot for slot in known if slot[2]}
        if self.lane is None:
            assert not lanes
            return
        assert lanes <= self.lane.ends.keys()
        assert all(self.at[slot] < self.lane.ends[slot] for slot in lanes)
        assert sum(self.lane.open.values()) == len(self.lane.ends)
        assert min(self.lane.open.values()) > 0


def _has_rows(part: Part) -> bool:
    return any(len(rows) for rows in part.rows)
