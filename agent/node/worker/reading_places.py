"""How far a worker has read each of its files, in each lane, and which closed files the master has not committed yet.

moved by          at                                      closing (closed, and not committed as such)
----------------  --------------------------------------  ------------------------------------------------------------
begin             the positions of the Welcome            none
move              the ends of the cut                     adds the files that it closes
rewind            the given positions, else the starts    keeps those that are still closed and have no given position
                  of the kept bundles
take_lanes        drops finished lanes, adds new ones     drops those of finished lanes
ends_committed                                            drops the files that this bundle closed
name_ends_again                                           all closed files: another master may not know their ends
update_withheld   decides which files with a lost end may be named now
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import CLOSED, FIRST, GAP, Bundle, Micros, Position, Slot, Span, Welcome

CLOSED_FILES_MAX = 10_000
"""Closed files whose end is remembered, so that a source that still has them does not read them again: a year of hourly
rotation."""


class Lane(msgspec.Struct):
    """A stretch to be read again: rows at or past `from_us`, in each file up to its end."""

    from_us: Micros
    ends: dict[Slot, int]


class ReadingPlaces:
    """at: position at which reading of each file continues. lanes: the open ones, by number. closing: closed files whose end is
    not committed. lost: files that were closed with a loss of lines, and when that was detected; their spans carry GAP. withheld:
    live files among the lost ones whose end is not reported yet."""

    __slots__ = ("_left", "_me", "at", "closing", "lanes", "lost", "withheld")

    def __init__(self, me: NodeId) -> None:
        self._me = me
        self.at: dict[Slot, Position] = {}
        self.lanes: dict[int, Lane] = {}
        self.closing: set[Slot] = set()
        self.lost: dict[Slot, Micros] = {}
        self.withheld: set[Slot] = set()
        self._left: dict[Slot, int] = {}  # how far a file was read before this worker went back

    # Changes.

    def begin(self, welcome: Welcome) -> None:
        """Replace all positions with those of a Welcome."""
        self._leave()
        self.closing.clear()
        self.withheld.clear()
        self.at = {slot: at for slot, at in welcome.positions if slot[0] == self._me and slot[1]}
        self.lanes = {}
        self.take_lanes(welcome)

    def take_lanes(self, welcome: Welcome) -> None:
        """Add new lanes with the positions of a Welcome; keep open ones; drop finished ones."""
        ends: dict[int, dict[Slot, int]] = {}
        for slot, end in welcome.ends:
            ends.setdefault(slot[2], {})[slot] = end
        known = self.lanes
        self.lanes = {number: Lane(from_us, ends.get(number, {})) for number, from_us in welcome.lanes}
        over = [slot for slot in self.at if slot[2] and slot[2] not in self.lanes]
        for slot in over:
            del self.at[slot]
        self.closing.difference_update(over)
        for slot, position in welcome.positions:
            if slot[0] == self._me and slot[2] in self.lanes and slot[2] not in known:
                self.at[slot] = position

    def move(self, spans: Mapping[Slot, Span], latest: Micros) -> None:
        """Continue reading where this cut ends. latest: no line that is lost can be later."""
        for slot, (_, end, flags) in spans.items():
            closed = bool(flags & CLOSED)
            self.at[slot] = Position(end, closed)
            if slot in self.closing or slot in self.lost:  # it was closed, and continues
                self.closing.discard(slot)
                self.lost.pop(slot, None)
                self.withheld.discard(slot)
            if closed:
                self.closing.add(slot)
            if closed and flags & GAP:
                self.lost = {each: seen for each, seen in self.lost.items() if each in self.at}
                self.lost[slot] = latest
                if not slot[2]:
                    self.withheld.add(slot)
        if len(self.at) > CLOSED_FILES_MAX:
            over = [slot for slot, at in self.at.items() if at.closed and slot not in self.closing]
            for slot in over[: len(self.at) - CLOSED_FILES_MAX]:
                del self.at[slot]

    def rewind(self, bundles: Iterable[Bundle], positions: Mapping[Slot, Position]) -> None:
        """Rule 4*: go back to the committed positions: those given, else the start of the first of these bundles, which fits."""
        self._leave()
        known = dict(positions)
        for each in bundles:
            for slot, span in each.contributions.items():
                if slot in known:
                    continue
                known[slot] = Position(span[0])
                self.at.pop(slot, None)
                if not span[2] & FIRST:
                    self.at[slot] = known[slot]
        self.at.update(positions)
        self.closing = {
            slot for slot in self.closing if slot in self.at and self.at[slot].closed
        } - positions.keys()
        self.withheld &= self.closing

    def _leave(self) -> None:
        """Before reading goes back: one of two logs may have what was reported so far, whatever is read again for the other."""
        for slot, position in self.at.items():
            self._left[slot] = max(position.offset, self._left.get(slot, 0))
        if len(self._left) > CLOSED_FILES_MAX:
            self._left = {slot: end for slot, end in self._left.items() if slot in self.at}

    def ends_committed(self, spans: Mapping[Slot, Span]) -> None:
        """Files that these spans closed are committed as closed."""
        self.closing -= {
            slot
            for slot, (_, end, flags) in spans.items()
            if flags & CLOSED and slot in self.closing and self.at[slot].offset == end
        }
        self.withheld &= self.closing

    def name_ends_again(self) -> None:
        """Another master may not know the end of a file that its predecessor committed."""
        self.closing.update(slot for slot, at in self.at.items() if at.closed)
        self.withheld.update(slot for slot in self.closing & self.lost.keys() if not slot[2])

    def update_withheld(self, watermark: Micros, now: Micros, patience_us: Micros) -> bool:
        """Release withheld ends that may be reported now. Returns whether some are still withheld.

        Lost lines may be as late as the clock was when the loss was detected. So the file's end is reported once the watermark
        has passed that time: one report then covers the whole gap. If it took two, a crash between them would lose the second. An
        end is withheld for `patience_us` at most, since a source may log times of long ago."""
        self.withheld = {
            slot
            for slot in self.withheld
            if watermark < self.lost[slot] and abs(now - self.lost[slot]) < patience_us
        }
        return bool(self.withheld)

    # Queries.

    def covered(self, spans: Mapping[Slot, Span]) -> dict[Slot, Span]:
        """The spans for a bundle. Rule 2*: a watermark counts only if every file is at its committed position, so the bundle
        names each file, some only with an empty span.

        The same holds for a lane's bundle. A source without any file is at offset 0 of file 0. O(files).
        """
        covered = dict(spans)
        for slot in self.withheld & spans.keys():
            start, end, flags = spans[slot]
            covered[slot] = start, end, flags & ~(CLOSED | GAP)
        for slot, position in self.at.items():
            if slot in covered or slot in self.withheld or (position.closed and slot not in self.closing):
                continue
            if position.closed:
                flags = CLOSED | GAP if slot in self.lost else CLOSED
                covered[slot] = (position.offset, position.offset, flags)
            elif slot[2] == 0:
                covered[slot] = (position.offset, position.offset, 0)
        if not covered:
            covered[self._me, 0, 0] = (0, 0, FIRST)
        return covered

    def lost_until(self, covered: Mapping[Slot, Span]) -> Micros:
        """No lost line of these files is later than this; 0 if none is lost."""
        gone = (self.lost[slot] for slot, span in covered.items() if span[2] & GAP and slot in self.lost)
        return max(gone, default=0)

    def next_lane(self) -> int | None:
        """The number of a lane that is not read to its ends yet; None if there is none."""
        for number, lane in self.lanes.items():
            if any(self._short_of(slot, end) for slot, end in lane.ends.items()):
                return number
        return None

    def _short_of(self, slot: Slot, end: int) -> bool:
        position = self.at.get(slot)
        return position is None or not (position.closed or position.offset >= end)

    def is_past(self, slot: Slot, position: Position) -> bool:
        """Whether a position is past what this worker has read, and the log waits for more of the file or for its end."""
        at = self.at.get(slot)
        return at is not None and position.offset > at.offset and not (at.closed and position.closed)

    def was_left(self, slot: Slot, position: Position) -> bool:
        """Whether this worker had read so far, and went back since."""
        return position.offset <= self._left.get(slot, 0)

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold. O(files)."""
        assert all(self.at[slot].closed for slot in self.closing)
        assert self.withheld <= self.closing & self.lost.keys()
