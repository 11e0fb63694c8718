"""Where files end for a job: read to the end, cut short, copied in part, or missing. Closes them in the job's `Reading`."""

from __future__ import annotations

from elf.agent.work.counters import Counters
from elf.agent.work.log_files import LogFiles
from elf.agent.work.losses import Losses
from elf.agent.work.reading import LOST_STATE, Place, Reading
from elf.srt.messages.messages import CLOSED, FIRST, GAP


class FileEnds:
    """Decides for all readings of one source where files end."""

    def __init__(self, files: LogFiles, losses: Losses, counters: Counters) -> None:
        self._files, self._losses, self._counters = files, losses, counters

    def is_settled(self, reading: Reading, place: Place, at_end: bool) -> bool:
        """Whether no more lines are expected at that place now. Closes the file at its end, or if its rest is lost."""
        self.enter_next_part(reading, place)
        if place.stop is not None and place.offset >= place.stop:
            reading.close(place, 0)
            return True
        if reading.lane and place.end_of_part is not None and place.offset >= place.end_of_part:
            reading.close(place, GAP)  # the file was cut short there: the lines up to `stop` are lost
            return True
        note, front, is_done = place.note, self._files.front_of(place.note), self._files.is_done(place.note)
        file = self._files.on_disk(note)
        is_whole = place.offset == front and place.stop is None
        if is_whole and not is_done:
            return True
        if place.is_broken and front is not None:
            self._handle_shorter(reading, place, is_done, front)
            return True
        if is_done and is_whole:
            reading.close(place, GAP if note.lost else 0)
            return True
        if file is None:
            self._files.seek()
            if is_done and self._losses.is_given_up(place.slot[1]):
                self._losses.gone(
                    place.slot[1], place.offset, self._files.source.files().get(note.generation)
                )
                reading.close(place, GAP)
                return True
            return False
        if file.denied:
            return True
        if is_done and front is not None and self._files.end_of(note, front) <= place.offset < front:
            if self._files.is_damaged(file):
                self._losses.damaged(file, place.slot[1], place.offset, front)
            else:
                self._losses.behind_copy(file, place.slot[1], place.offset, front)
            reading.close(place, GAP)
            return True
        if at_end and front is not None and place.offset >= front:
            self._handle_shorter(reading, place, is_done, front)
            return True
        return False

    def has_missing(self, reading: Reading) -> bool:
        """Wait for files that have a position but are not known here, then give them up. Returns whether any is still awaited."""
        is_missing = False
        wanted = dict.fromkeys(reading.ends, 0)
        wanted.update({slot: at.offset for slot, at in reading.given.items() if slot[1] and not at.closed})
        for slot, offset in wanted.items():
            if slot[1] in self._files.notes.by_identity or slot == (reading.worker, LOST_STATE, 0):
                continue  # the latter: see `MeshSource._withhold_lost`
            given = reading.given.get(slot)
            if given is not None and given.closed:
                continue
            flags = 0 if given is not None else FIRST
            if slot[1] == LOST_STATE:
                reading.spans[slot] = offset, offset, flags | GAP | CLOSED
            elif self._files.has_no_such_part(slot[1], offset):
                reading.spans[slot] = offset, offset, flags | CLOSED
            elif self._losses.is_given_up(slot[1]):
                self._losses.gone(slot[1], offset, None)
                reading.spans[slot] = offset, offset, flags | GAP | CLOSED
            else:
                is_missing = True
                if given is not None:
                    reading.spans[slot] = offset, offset, 0
        return is_missing

    def detect_cut_short(self, reading: Reading) -> None:
        """Detect live files that a job's log closed past their present end: they were cut short."""
        for place in reading.places.values():
            if not place.over or self._files.is_done(place.note):
                continue
            front, file = self._files.front_of(place.note), self._files.on_disk(place.note)
            if front is not None and place.offset > front and file is not None and not file.denied:
                self._handle_shorter(reading, place, False, front)

    def _handle_shorter(self, reading: Reading, place: Place, is_done: bool, front: int) -> None:
        """Handle a file that ends before the place: the lines in between are lost, and new lines at its end are a new part."""
        self._counters.beyond += place.offset > front
        if place.offset > front or place.is_broken:
            self._losses.short(self._files.on_disk(place.note), place.slot[1], place.offset, front)
        was_over = place.over
        if not was_over:
            reading.close(place, GAP)
        if not (reading.lane or is_done or front in place.note.bases):
            self._files.notes.cut_short(place.note, front)
            self._files.is_dirty = True
            reading.continue_in_next_part(place, place.note, GAP if was_over else 0)

    def enter_next_part(self, reading: Reading, place: Place) -> None:
        """Continue in the next part if this part of the file has ended."""
        end = place.end_of_part
        while not reading.lane and end is not None and place.offset >= end:
            reading.close(place, GAP if place.offset > end else 0)
            reading.continue_in_next_part(place, place.note)
            end = place.end_of_part
