"""One job's places in the files of a source, live or in a lane, and the rows it has gathered since its last cut."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from elf.agent.files.blocks import Block
from elf.agent.formats.batch import Batch
from elf.agent.work.file_notes import FileNote
from elf.agent.work.job_rows import Before, JobRows, Unread
from elf.jobmaster.log.schedule import AFTER_ALL
from elf.srt.messages.effects import Read
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import CLOSED, FIRST, Micros, Position, Schedule, Slot, Span

UNREAD_MAX = 64
"""Stretches without parsed lines. Each delays a promise by one cut; of more, the two oldest are merged."""


class Place(msgspec.Struct):
    """A job's place in one file. part: see `FileNote.bases`. stop: where a lane ends in it. last_us: time of the last line
    taken. over: closed, and reported as closed. is_broken: no line begins at the offset, so the file has changed."""

    note: FileNote
    part: int
    slot: Slot
    offset: int
    stop: int | None = None
    last_us: Micros | None = None
    over: bool = False
    is_broken: bool = False

    @property
    def end_of_part(self) -> int | None:
        """Where this part was closed, if the file continued after that."""
        bases = self.note.bases
        return bases[self.part + 1] if self.part + 1 < len(bases) else None


class Reading:
    """One job's reading. A `Read` that resumes where the last cut ended gets the rows gathered since; any other starts anew."""

    def __init__(self, read: Read, schedule: Schedule, worker: NodeId, counts_all: bool = True) -> None:
        """counts_all: see `Notes.counts_all`."""
        self.lane, self.ends, self.since_us = read.lane, read.ends, read.since_us
        self.given = dict(read.positions)
        self.rows = JobRows(schedule, read.since_us)
        self.places: dict[int, Place] = {}
        self.spans: dict[Slot, Span] = {}
        self.latest_us: Micros | None = None
        self.watermark_us: Micros = 0
        self._unread = Unread()
        self._lacks: list[
            tuple[Micros, Micros]
        ] = []  # stretches with whole panes of which no line was parsed
        self.read_s = 0.0
        self.error: Exception | None = None
        """Why it failed; its rows are invalid then."""
        self._worker, self.counts_all = worker, counts_all

    def is_resumed_by(self, read: Read, schedule: Schedule) -> bool:
        """Whether that `Read` resumes this reading. O(files)."""
        asked = (read.positions, read.since_us, read.ends, schedule)
        return asked == (self.given, self.since_us, self.ends, self.rows.schedule)

    def take_place(self, note: FileNote, front: int | None, is_done: bool) -> None:
        """Take a place in a file where it has none. front: how far the file can be read; None: unknown."""
        for part, base in enumerate(note.bases):
            slot = (self._worker, note.identity(part), self.lane)
            given = self.given.get(slot)
            if self.lane and slot not in self.ends:
                continue
            if given is not None and given.closed and (self.lane or not self._has_more(note, part, given)):
                continue
            stop = self.ends.get(slot)
            if given is not None:
                self._stand(note, part, slot, given.offset, 0, stop)
                return
            low = self._low(note, front, part)
            if low is None or (is_done and not self.lane and low == front):
                continue
            self._stand(
                note, part, slot, max(low, base) if stop is None else min(max(low, base), stop), FIRST, stop
            )
            return
        place = Place(
            note, len(note.bases) - 1, (self._worker, note.identity(len(note.bases) - 1), self.lane), 0
        )
        given = self.given.get(place.slot)
        place.offset = given.offset if given is not None else AFTER_ALL if front is None else front
        place.over = True
        self.places[note.generation] = place

    @staticmethod
    def _has_more(note: FileNote, part: int, given: Position) -> bool:
        """Whether a closed part is known to continue past that position; `MeshSource` looks at the last part itself."""
        return part + 1 < len(note.bases) and given.offset < note.bases[part + 1]

    def _low(self, note: FileNote, front: int | None, part: int) -> int | None:
        """Where the requested lines begin in that part; None if it has none."""
        if note.over_us is not None and note.over_us < self.since_us:
            return None
        low = note.low(self.since_us, front or 0)
        if part == 0 and not self.counts_all:
            if note.begin < 0:
                return None
            low = max(low, note.begin)
        return None if part + 1 < len(note.bases) and low >= note.bases[part + 1] else low

    def _stand(
        self, note: FileNote, part: int, slot: Slot, offset: int, flags: int, stop: int | None
    ) -> None:
        self.places[note.generation] = Place(note, part, slot, offset, stop)
        self.spans[slot] = offset, offset, flags

    def take(self, place: Place, block: Block, batch: Batch, before: Before) -> None:
        """Take the next block of a file, at whose start its place is."""
        self.rows.add(batch, before, block.too_long)
        for from_us, until_us in self._unread.take(batch, before, block.too_long):
            self._lack(from_us, until_us)
        start, _, flags = self.spans[place.slot]
        self.spans[place.slot] = start, block.end, flags
        place.offset = block.end
        if batch.rows:
            times = batch.columns["time"].values
            place.last_us, latest = int(times[-1]), int(times.max())
            self.latest_us = latest if self.latest_us is None else max(self.latest_us, latest)

    def _lack(self, from_us: Micros, until_us: Micros) -> None:
        if not self.lane and self.rows.lacks(from_us, until_us):
            self._lacks.append((from_us, until_us))
            if len(self._lacks) > UNREAD_MAX:
                (from_us, _), (_, until_us) = self._lacks[:2]
                self._lacks[:2] = [(from_us, until_us)]

    def promise(self, watermark_us: Micros) -> tuple[Micros, bool]:
        """How much of that watermark one cut may promise, and whether it promises a gap. Gaps are promised apart from the times
        in between, in which lines were parsed."""
        while self._lacks:
            from_us, until_us = self._lacks[0]
            if until_us <= self.watermark_us:
                del self._lacks[0]
            elif self.watermark_us < from_us:
                return min(watermark_us, from_us), False
            else:
                return min(watermark_us, until_us), watermark_us > self.watermark_us
        return watermark_us, False

    def close(self, place: Place, flags: int) -> None:
        """This part of a file has no more lines."""
        start, end, before = self.spans[place.slot]
        self.spans[place.slot] = start, end, before | flags | CLOSED
        place.over = True

    def reopen(self, place: Place) -> None:
        """Rule 10*: a file continues where it was closed; in a job's log that does not know it, it begins there."""
        place.over = place.is_broken = False
        self.spans[place.slot] = place.offset, place.offset, 0 if place.slot in self.given else FIRST

    def continue_in_next_part(self, place: Place, note: FileNote, flags: int = 0) -> None:
        """Continue in the next part of the file."""
        place.part += 1
        place.over = place.is_broken = False
        place.offset = note.bases[place.part]
        place.slot = (self._worker, note.identity(place.part), self.lane)
        self.spans[place.slot] = place.offset, place.offset, FIRST | flags

    def take_spans(self) -> dict[Slot, Span]:
        """The spans of a cut. Those of the next cut begin where these end."""
        spans, self.spans = self.spans, {}
        for slot, (_, end, flags) in spans.items():
            closed = bool(flags & CLOSED)
            self.given[slot] = Position(end, closed)
            if not closed:
                self.spans[slot] = end, end, 0
        return spans

    def standing(self) -> Sequence[Place]:
        """Places in files that are not closed."""
        return [place for place in self.places.values() if not place.over]
