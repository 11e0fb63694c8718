"""One job's places in the files of a source, live or in a lane, and the rows it has gathered since its last cut."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from elf.agent.files.blocks import Block
from elf.agent.formats.batch import Batch
from elf.agent.work.file_notes import FileNote
from elf.agent.work.job_rows import NEVER_US, Before, JobRows, Unread
from elf.jobmaster.log.schedule import AFTER_ALL
from elf.srt.messages.bundles import hull
from elf.srt.messages.effects import Read
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import CLOSED, FIRST, GAP, Micros, Period, Position, Schedule, Slot, Span

UNREAD_MAX = 64
"""Periods without parsed lines, at most. Each delays a promise by one cut; if there are more, the two oldest are merged."""

LOST_STATE = 1
"""The identity of an empty file that is closed with a gap. It represents lines from before the disk was lost."""


class Place(msgspec.Struct):
    """A job's place in one file. part: see `FileNote.bases`. stop: the offset where a lane ends. last_us: time of the last line
    read. over: closed, and reported as closed. is_broken: no line begins at the offset, so the file has changed. is_known: the
    job's log has a position of it, so no line from there on was counted."""

    note: FileNote
    part: int
    slot: Slot
    offset: int
    stop: int | None = None
    last_us: Micros | None = None
    over: bool = False
    is_broken: bool = False
    is_known: bool = False

    @property
    def end_of_part(self) -> int | None:
        """Where this part was closed, if the file continued after that."""
        bases = self.note.bases
        return bases[self.part + 1] if self.part + 1 < len(bases) else None


class Reading:
    """One job's reading. A `Read` that resumes where the last cut ended gets the rows gathered since; any other starts again."""

    def __init__(self, read: Read, schedule: Schedule, worker: NodeId, counts_all: bool = True) -> None:
        """counts_all: see `Notes.counts_all`."""
        self.job = read.job
        self.lane, self.ends, self.since_us = read.lane, read.ends, read.since_us
        self.given = dict(read.positions)
        self.rows = JobRows(schedule, read.since_us)
        self.places: dict[int, Place] = {}
        self.spans: dict[Slot, Span] = {}
        self.latest_us: Micros | None = None
        self.watermark_us: Micros = 0
        self._unread = Unread()
        # Periods with whole panes of which no line was parsed.
        self._unparsed: list[Period] = []
        self._new_unparsed: Period | None = None
        self.read_s, self.at_line, self.awaits_file = (
            0.0,
            False,
            False,
        )  # the last: see `MeshSource.awaits_file`
        self.error: Exception | None = None
        """The failure after which the rows are invalid."""
        self.worker, self.counts_all = worker, counts_all

    def is_resumed_by(self, read: Read, schedule: Schedule) -> bool:
        """Whether that `Read` resumes this reading. O(files)."""
        asked = (read.positions, read.since_us, read.ends, schedule)
        return asked == (self.given, self.since_us, self.ends, self.rows.schedule)

    def take_place(self, note: FileNote, front: int | None, is_done: bool) -> None:
        """Take a place in a file where it has none. front: how far the file can be read; None: unknown."""
        for part, base in enumerate(note.bases):
            slot = (self.worker, note.identity(part), self.lane)
            given = self.given.get(slot)
            if self.lane and slot not in self.ends:
                continue
            if given is not None and given.closed and (self.lane or not self._has_more(note, part, given)):
                continue
            stop = self.ends.get(slot)
            if given is not None:
                self._place_at(note, part, slot, given.offset, 0, stop)
                self.places[note.generation].is_known = True
                return
            low = self._low(note, front, part)
            if stop is not None:
                self._place_in_lane(note, part, slot, low, stop)
                return
            if low is None or (is_done and low == front):
                continue
            self._place_at(note, part, slot, max(low, base), FIRST, None)
            return
        place = Place(
            note, len(note.bases) - 1, (self.worker, note.identity(len(note.bases) - 1), self.lane), 0
        )
        given = self.given.get(place.slot)
        place.offset = given.offset if given is not None else AFTER_ALL if front is None else front
        place.over = True
        self.places[note.generation] = place

    def _place_in_lane(self, note: FileNote, part: int, slot: Slot, low: int | None, stop: int) -> None:
        """Take a place for a lane, which stays open until all its slots are closed: also where no requested lines are. low: see
        `_low`."""
        end = note.bases[part + 1] if part + 1 < len(note.bases) else stop
        is_skipped = part == 0 and note.begin < 0 and not self.counts_all and note.over_us is None
        begin = min(stop if low is None else max(low, note.bases[part]), stop, end)
        self._place_at(note, part, slot, begin, FIRST | (GAP if is_skipped else 0), stop)

    @staticmethod
    def _has_more(note: FileNote, part: int, given: Position) -> bool:
        """Whether a closed part is known to continue past that position; `MeshSource` looks at the last part itself."""
        return part + 1 < len(note.bases) and given.offset < note.bases[part + 1]

    def _low(self, note: FileNote, front: int | None, part: int) -> int | None:
        """The offset where the requested lines begin in that part; None if it has none."""
        if note.over_us is not None and note.over_us < self.since_us:
            return None
        low = note.low(self.since_us, front or 0)
        if part == 0 and not self.counts_all:
            if note.begin < 0:
                return None
            low = max(low, note.begin)
        return None if part + 1 < len(note.bases) and low >= note.bases[part + 1] else low

    def _place_at(
        self, note: FileNote, part: int, slot: Slot, offset: int, flags: int, stop: int | None
    ) -> None:
        self.places[note.generation] = Place(note, part, slot, offset, stop)
        self.spans[slot] = offset, offset, flags

    def take(self, place: Place, block: Block, batch: Batch, before: Before) -> None:
        """Take the next block of a file; the place is at the block's start."""
        self.rows.add(batch, before, block.too_long, place.is_known and not self.lane)
        for from_us, until_us in self._unread.take(batch, before, block.too_long):
            self._note_unparsed(from_us, until_us)
        start, _, flags = self.spans[place.slot]
        self.spans[place.slot] = start, block.end, flags
        place.offset = block.end
        if batch.rows:
            times = batch.columns["time"].values
            place.last_us, latest = int(times[-1]), int(times.max())
            self.latest_us = latest if self.latest_us is None else max(self.latest_us, latest)

    def _note_unparsed(self, from_us: Micros, until_us: Micros) -> None:
        if not self.rows.has_whole_pane(from_us, until_us):
            return
        if from_us > NEVER_US:  # else the job's log may know lines of other files before that
            self._new_unparsed = hull(self._new_unparsed, (from_us, until_us))
        if not self.lane:
            self._unparsed.append((from_us, until_us))
            if len(self._unparsed) > UNREAD_MAX:
                (from_us, _), (_, until_us) = self._unparsed[:2]
                self._unparsed[:2] = [(from_us, until_us)]

    def promise(self, watermark_us: Micros) -> tuple[Micros, bool]:
        """The watermark that one cut may promise, up to `watermark_us`, and whether the promise is a gap. One cut promises
        either a gap, or a period in which lines were parsed."""
        while self._unparsed:
            from_us, until_us = self._unparsed[0]
            if until_us <= self.watermark_us:
                del self._unparsed[0]
            elif self.watermark_us < from_us:
                return min(watermark_us, from_us), False
            else:
                return min(watermark_us, until_us), watermark_us > self.watermark_us
        return watermark_us, False

    def take_unparsed(self, promise: Period | None) -> Period | None:
        """The time since the last cut of which no line could be parsed. promise: one more such period; None: no other."""
        found, self._new_unparsed = hull(self._new_unparsed, promise), None
        return found

    def close(self, place: Place, flags: int) -> None:
        """Close this part of a file: it has no more lines."""
        start, end, before = self.spans[place.slot]
        self.spans[place.slot] = start, end, before | flags | CLOSED
        place.over = True

    def reopen(self, place: Place) -> None:
        """Reopen a closed file at its offset (rule 10*). For a job whose log does not know the file, the file begins there."""
        place.over = place.is_broken = False
        self.spans[place.slot] = place.offset, place.offset, 0 if place.slot in self.given else FIRST

    def continue_in_next_part(self, place: Place, note: FileNote, flags: int = 0) -> None:
        """Continue in the next part of the file."""
        place.part += 1
        place.over = place.is_broken = place.is_known = False
        place.offset = note.bases[place.part]
        place.slot = (self.worker, note.identity(place.part), self.lane)
        self.spans[place.slot] = place.offset, place.offset, FIRST | flags

    def take_spans(self) -> dict[Slot, Span]:
        """The spans of a cut. The spans of the next cut begin where these end."""
        spans, self.spans = self.spans, {}
        for slot, (_, end, flags) in spans.items():
            closed = bool(flags & CLOSED)
            self.given[slot] = Position(end, closed)
            if not closed:
                self.spans[slot] = end, end, 0
        return spans

    def open_places(self) -> Sequence[Place]:
        """Places in files that are not closed."""
        return [place for place in self.places.values() if not place.over]
