"""Where one job stands in the files of a source, live or in a lane, and what it has been given since its last cut."""

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
"""Each holds a promise up by one cut; of more, the oldest are told as one."""


class Place(msgspec.Struct):
    """In one file. part: see `FileNote.bases`. stop: where a lane ends in it. last_us: time of the last line given. over: closed,
    and told so. is_broken: no line begins there, so the file is not what it was."""

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
        """Where the file had been closed once, if it went on."""
        bases = self.note.bases
        return bases[self.part + 1] if self.part + 1 < len(bases) else None


class Reading:
    """One job's reading. A `Read` that goes on where the last cut ended finds what came meanwhile; any other begins anew."""

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
        self._lacks: list[tuple[Micros, Micros]] = []  # in which whole panes have no line that could be read
        self.read_s = 0.0
        self.error: Exception | None = None
        """It failed, and what it has gathered is void."""
        self._worker, self.counts_all = worker, counts_all

    def goes_on(self, read: Read, schedule: Schedule) -> bool:
        """Whether that is the next read of this one. O(files)."""
        asked = (read.positions, read.since_us, read.ends, schedule)
        return asked == (self.given, self.since_us, self.ends, self.rows.schedule)

    def meet(self, note: FileNote, front: int | None, is_done: bool) -> None:
        """Take a place in a file that it has none in. front: how far it can be read; None: that is not known."""
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
        told = self.given.get(place.slot)
        place.offset = told.offset if told is not None else AFTER_ALL if front is None else front
        place.over = True
        self.places[note.generation] = place

    @staticmethod
    def _has_more(note: FileNote, part: int, given: Position) -> bool:
        """Whether a part that was closed is known to go on behind that place; of the last one `MeshSource` looks."""
        return part + 1 < len(note.bases) and given.offset < note.bases[part + 1]

    def _low(self, note: FileNote, front: int | None, part: int) -> int | None:
        """Where what is asked for begins in that part; None if it is not in it."""
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
        """The next block of a file in which it stands at its start."""
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
        """How much of that may be promised at once, and whether what this promises is a gap: what lies between lines that could
        be read is promised apart, for it is none."""
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
        """Nothing more comes of this part of a file; if it has another one, that begins."""
        start, end, before = self.spans[place.slot]
        self.spans[place.slot] = start, end, before | flags | CLOSED
        place.over = True

    def reopen(self, place: Place) -> None:
        """Rule 10*: a file goes on where it was closed; in a log that does not know it, it begins there."""
        place.over = place.is_broken = False
        self.spans[place.slot] = place.offset, place.offset, 0 if place.slot in self.given else FIRST

    def go_on(self, place: Place, note: FileNote, flags: int = 0) -> None:
        """In the next part of a file."""
        place.part += 1
        place.over = place.is_broken = False
        place.offset = note.bases[place.part]
        place.slot = (self._worker, note.identity(place.part), self.lane)
        self.spans[place.slot] = place.offset, place.offset, FIRST | flags

    def take_spans(self) -> dict[Slot, Span]:
        """Of the cut. The next one begins where they end."""
        spans, self.spans = self.spans, {}
        for slot, (_, end, flags) in spans.items():
            closed = bool(flags & CLOSED)
            self.given[slot] = Position(end, closed)
            if not closed:
                self.spans[slot] = end, end, 0
        return spans

    def standing(self) -> Sequence[Place]:
        """Its places in files that are not over."""
        return [place for place in self.places.values() if not place.over]
