"""The files of one source: the identity of each, how far it was read, and where its lines are on disk now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from elf.agent.files.blocks import Block
from elf.agent.files.content import closing, exactly
from elf.agent.files.first_seen import first_seen
from elf.agent.files.follow import Followed, Inode
from elf.agent.files.listing import Listing, Seen
from elf.agent.files.source import Source
from elf.agent.work import source_bounds as bounds
from elf.agent.work.file_notes import FileNote, Notes, first_line, identity_of
from elf.agent.work.held import Held
from elf.agent.work.parsers import FUTURE_US
from elf.agent.work.reading import LOST_STATE
from elf.agent.work.rediscovery import Moved, Rediscovery, present_end
from elf.agent.work.rescan import Rescan, holds, open_known
from elf.errors import SourceError
from elf.srt.messages.effects import Read
from elf.srt.messages.messages import Micros, Position, Slot

SCAN_S = 0.02
"""Reads of several jobs at one flush scan the folders once, unless a change is known."""
SAVE_S = 5.0
HEAD_BYTES = 64 << 10
SEEK_S = 600.0
"""Time for which a missing file is searched: compressing or moving it may take a while."""
SEEK_EVERY_S = 1.0
LOOKS_MAX = 16
"""Scans in a row at most, while files are renamed during each of them."""


Stamp = tuple[Inode | None, int, int]
"""(inode, size, time of the last write): they change when a damaged file is replaced."""


class LogFiles:
    """A `Source`, which reads each byte once, and the notes of its files.

    start: whether files that exist at the very first start count from their "end" or their "beginning". clock_us, now_s: times of
    the last `look`; scan_clock_us, scan_s: of the last scan.
    """

    def __init__(
        self,
        name: str,
        patterns: Sequence[str],
        state_dir: Path,
        notice: Callable[[str], None],
        *,
        line_max: int,
        block_bytes: int,
        grace_s: float,
        start: str,
    ) -> None:
        self._line_max, self._block_bytes = line_max, block_bytes
        self._name, self._notice = name, notice
        self.held = Held()
        self.notes = Notes(state_dir / f"source-{name}", notice)
        if self.notes.is_new and start == "end":
            self.notes.firsts = first_seen(patterns)
            self.notes.save(None, None)
        self.source = Source(
            name,
            patterns,
            state=self.notes.source,
            start="beginning",
            line_max=line_max,
            block_bytes=block_bytes,
            grace_s=grace_s,
        )
        self._rediscovery = Rediscovery(self.notes, notice)
        self._sought_s: float | None = None
        self._unknown: Sequence[Seen] = ()
        self._ends: dict[int, int] = {}  # by generation: no whole line follows that offset
        # Archives, by generation: the stamp, and since when.
        self._damaged: dict[int, tuple[Stamp, float]] = {}
        self._has_lost_state = False
        self._grace_s = grace_s
        self.clock_us = self.scan_clock_us = 0
        self.now_s = self.save_s = 0.0
        self.scan_s: float | None = None
        self.is_dirty = False
        """Whether something changed that is not saved yet."""

    def look(self, clock_us: Micros, now_s: float, since_us: Micros, is_lost: bool = False) -> None:
        """Scan the folders, unless nothing can have changed.

        since_us: the very first scan skips files that were last written before it. is_lost: the agent is not new but lost its
        state folder; files that exist at the very first scan then count from their start.
        """
        self.clock_us, self.now_s = clock_us, now_s
        is_first = self.scan_s is None
        if self.scan_s is not None and now_s - self.scan_s < SCAN_S and self.source.is_still():
            return
        self.scan_s, self.scan_clock_us = now_s, clock_us
        if self._sought_s is not None and now_s - self._sought_s >= SEEK_S:
            self._sought_s = None
            self.source.claim(None)
        self.source.scan(now_s)
        if is_first:
            self.save_s = now_s
            if self.notes.source is None:
                self._has_lost_state |= is_lost
                firsts = [] if is_lost else self.notes.firsts
                for generation, begin in self.source.begin_at(firsts).items():
                    self.notes.of(generation).begin = begin
                self.notes.firsts = []
                lacks_us, self.notes.lacks_us = self.notes.lacks_us, 0
                self.note_lost(lacks_us)
                for file in self.source.pass_over((since_us - FUTURE_US) * 1000):
                    note = self.notes.of(file.state.generation)
                    note.over_us = file.mtime_ns // 1000 + FUTURE_US
        self._identify_all()

    def _identify_all(self) -> None:
        files = self.source.files()
        for generation in files:
            self.identify(generation)
        self.notes.forget(set(files))
        self._ends = {generation: end for generation, end in self._ends.items() if generation in files}
        for generation, (stamp, _) in list(self._damaged.items()):
            if generation not in files or stamp != _stamp(files[generation]):
                del self._damaged[generation]
                self._ends.pop(generation, None)

    def note_lost(self, lost_us: Micros) -> None:
        """Note that an earlier life, of which the folder has no record, may have counted lines that this one skips
        (`elf.agent.files.first_seen`). lost_us: the time now; 0 if no such life is known."""
        notes = self.notes
        is_skipped = any(note.begin for note in notes.files.values())
        if not lost_us or notes.lacks_us or not (notes.firsts or is_skipped):
            return
        notes.lacks_us, self.is_dirty = lost_us, True
        if is_skipped:
            self._notice(f"{self._name}: {bounds.STATE_LOST}")

    def counts_all(self, read: Read) -> tuple[bool, bool]:
        """Whether lines that this agent skips count for the job, as its log knows files of an earlier life; and whether that was
        found just now.

        The log may be found later than the job's first read: until then, a master that did not reach the log may have begun
        another one. Then the log has positions in lines that no job of this life has read.
        """
        has_files = any(slot[1] for slot in read.positions)
        counts_all, is_known = self.notes.counts_all(read.job, has_files)
        is_found = counts_all and not is_known
        if not counts_all and any(self._is_skipped(*each) for each in read.positions.items()):
            self.notes.count_all(read.job)
            is_found = True
        self.is_dirty |= is_found or not is_known
        if is_found or (not counts_all and any(self._is_foreign(*each) for each in read.positions.items())):
            self.note_lost(self.clock_us)
        return counts_all or is_found, is_found

    def _is_skipped(self, slot: Slot, at: Position) -> bool:
        note, part = self.notes.by_identity.get(slot[1], (None, 0))
        return note is not None and not part and (note.begin < 0 or at.offset < note.begin)

    def _is_foreign(self, slot: Slot, at: Position) -> bool:
        """Whether it is an open file that this life does not know."""
        return slot[1] not in (0, LOST_STATE) and not at.closed and slot[1] not in self.notes.by_identity

    def find_again(
        self, positions: Mapping[Slot, Position], ends: Iterable[Slot] = (), *, is_lost: bool = False
    ) -> None:
        """Search, now and at each later scan, for files that a job's log knows and this agent does not. is_lost: the agent lost
        its notes, so identities that it has assigned since may be wrong."""
        self._has_lost_state |= is_lost
        given = [slot for slot, at in positions.items() if slot[1] and not at.closed]
        if not (is_lost or any(slot[1] not in self.notes.by_identity for slot in (*given, *ends))):
            return
        self._rediscovery.expect(positions, ends)
        for _ in range(LOOKS_MAX):
            self._sought_s = None
            self.seek()
            self.source.scan(self.now_s)
            self._identify_all()
            try:
                if is_lost:
                    self._skip_ambiguous()
            except Moved:
                continue
            break

    def has_no_such_part(self, identity: int, offset: int) -> bool:
        """Whether that is the part of a known file that begins at `offset`, with no line counted yet, and the file was never
        that short here: another machine, with a copy of the state and the logs, began it. An agent that lost its state does not
        know how short its files were. O(files)."""
        return not self._has_lost_state and any(
            note.fingerprint and identity_of(note.fingerprint, note.ordinal, offset) == identity
            for note in self.notes.files.values()
        )

    def gone_us(self) -> Micros:
        """The latest event time of lines that were read and cannot be read again, since their file is gone; 0 if none is, as far
        as it is remembered (`known.GONE_MAX`). O(files)."""
        files = self.source.files()
        times = (
            note.highest_us
            for generation, note in self.notes.files.items()
            if (file := files.get(generation)) is not None and file.inode is None and file.content is None
        )
        return max((time for time in times if time is not None), default=0)

    def seek(self) -> None:
        """Search for a missing file: the next scan, and for a while each later one, opens every file of the families."""
        if self._sought_s is None or self.now_s - self._sought_s >= SEEK_EVERY_S:
            self._sought_s = self.now_s
            self.source.claim(self._pick)

    def _pick(self, unknown: Sequence[Seen]) -> set[Inode]:
        self._unknown = unknown
        try:
            return self._rediscovery.pick(unknown)
        except Moved:
            return set()  # the next scan decides

    def _skip_ambiguous(self) -> None:
        """Read files from their present end on if it is unknown which of their lines were counted."""
        files = self.source.files()
        known = [note for note in self.notes.files.values() if note.generation in files]
        followed = {file.inode for file in files.values()}
        unknown = [one for one in self._unknown if one.inode not in followed]
        for note in self._rediscovery.ambiguous(known, files, unknown):
            file = files[note.generation]
            try:
                base = present_end(file) or None
            except (OSError, SourceError):
                base = None
            if base is None and not file.state.done:
                self.source.skip(file)
            ordinal = max(self._rediscovery.ordinals(note.fingerprint), default=-1) + 1
            self.notes.begin_behind(note, base, max(ordinal, self.notes.begun(note.fingerprint)))
            self.is_dirty = True

    def begins_like(self, file: Followed) -> list[str]:
        """Paths of files that are not followed and begin like `file`, but do not hold all that was read of it."""
        there = Listing([file.path], lambda notice: None).look(())
        followed = {each.inode for each in self.source.files().values()}
        unknown = [one for one in there if one.inode not in followed]
        return self._rediscovery.paths_of(self.notes.of(file.state.generation).fingerprint, unknown)

    @property
    def unread(self) -> Mapping[str, str]:
        """Files that may be the missing ones and cannot be read: the reason by path."""
        return self._rediscovery.unread

    def identify(self, generation: int, *, is_read: bool = False) -> None:
        """Assign a file its identity, if it has a first line. is_read: it is not a copy of another one."""
        note = self.notes.files.get(generation)
        if generation in self.notes.copies or (note is not None and note.fingerprint):
            return
        file = self.source.files()[generation]
        line = self._first_line(file)
        if note is None and file.state.done and not is_read:
            try:
                original = self._original_of(file, line) if line is not None else None
            except FileNotFoundError:
                line = original = None
            if line is None:
                return  # A rotation renames it at this moment: the next look decides whether it is a copy.
            if original is not None:
                self.notes.copies[generation] = original.generation
                self.is_dirty = True
                return
        note = self.notes.of(generation)
        if line is not None:
            self.notes.identify(note, line, self._rediscovery.ordinal(line))
            self.is_dirty = True
            if file.state.base and not (note.begin or file.state.done):
                # The file is what is left of a longer one. Its lines were counted, so the source resumes at its end.
                self.notes.begin_behind(note, file.state.base, note.ordinal)

    def _original_of(self, copy: Followed, line: bytes) -> FileNote | None:
        """The file in which the source has already read all of this copy. Raises FileNotFoundError if the copy has just moved."""
        alike = self.notes.alike(line)
        if len(alike) > 1:
            files = self.source.files()
            alike = [
                note for note in alike if note.generation in files and holds(copy, files[note.generation])
            ]
        return alike[-1] if alike else None

    @staticmethod
    def _first_line(file: Followed) -> bytes | None:
        if file.denied or not (file.size or file.state.offset):
            return None
        try:
            with closing(open_known(file)) as content:
                head = exactly(content, memoryview(bytearray(HEAD_BYTES)))
        except (OSError, SourceError):
            return None
        return first_line(head, file.state.done or len(head) == HEAD_BYTES)

    def note_of(self, block: Block) -> FileNote:
        """The note of the file that the source has just read from."""
        file = self.source.files()[block.file.generation]
        generation = block.file.generation
        if generation in self.notes.copies and block.end > block.start:
            return self.notes.part_from(generation, self._first_line(file) or b"", block.start)
        self.identify(generation, is_read=True)
        return self.notes.of(generation)

    def front_of(self, note: FileNote) -> int | None:
        """How far the source has read a file, but for lines that are held; None if it skipped the file without reading
        its length: an archive that existed before the first start, or a file that is too old."""
        held = self.held.front_of(note.generation)
        if held is not None:
            return held
        file = self.source.files().get(note.generation)
        if file is None or (note.length is not None and file.state.done):
            return note.length
        is_passed = note.over_us is not None or (note.begin < 0 and file.packed)
        return None if is_passed and file.state.done else file.state.offset

    def behind(self) -> set[int]:
        """Generations of the files with lines that no job has yet: not read, or held."""
        return self.source.unread() | self.held.files

    def is_done(self, note: FileNote) -> bool:
        """Whether the source has read it to its end."""
        file = self.source.files().get(note.generation)
        return file is None or file.state.done

    def on_disk(self, note: FileNote) -> Followed | None:
        """The file on disk from which the note's lines can be read now: the file itself, or a copy."""
        files = self.source.files()
        of = [
            note.generation,
            *(copy for copy, original in self.notes.copies.items() if original == note.generation),
        ]
        there = [files[generation] for generation in of if generation in files]
        return next((file for file in there if file.inode is not None or file.content is not None), None)

    def ends_at(self, file: Followed, offset: int) -> None:
        """Note that no whole line begins at that offset or later, although more was read before."""
        self._ends[file.state.generation] = min(offset, self._ends.get(file.state.generation, offset))

    def damaged_at(self, file: Followed, offset: int) -> None:
        """Note that an archive cannot be read past that offset, although more was read before. After two grace periods the offset
        counts as its end, until the file on disk changes."""
        generation, stamp = file.state.generation, _stamp(file)
        before, since_s = self._damaged.setdefault(generation, (stamp, self.now_s))
        if before != stamp:
            self._damaged[generation] = stamp, self.now_s
        elif self.now_s - since_s >= 2 * self._grace_s:
            self.ends_at(file, offset)

    def is_damaged(self, file: Followed) -> bool:
        return file.state.generation in self._damaged

    def end_of(self, note: FileNote, front: int) -> int:
        """The offset up to which the note's lines can be read now; the source has read `front` bytes. A copy that was made before
        the last lines were written (copytruncate) ends earlier: those lines are in no file."""
        file = self.on_disk(note)
        if file is None:
            return front
        end = min(front, self._ends.get(file.state.generation, front))
        if file.state.generation == note.generation:
            return end if self.is_damaged(file) else front
        return min(end, file.state.offset or front)

    def open(self, file: Followed, offset: int) -> Rescan:
        """Open the file for reading again from there. Raises EndsBefore, OSError, SourceError."""
        return Rescan(file, offset, self._block_bytes, self._line_max)

    def save(self, time_max: Micros | None) -> None:
        """Save positions and notes; before the first scan, the positions as they were."""
        for file in self.source.files().values():
            file.intact()  # reads the start of a file that was not read yet, by which the file is recognised later
        self.notes.save(self.notes.source if self.scan_s is None else self.source.positions(), time_max)
        self.save_s, self.is_dirty = self.now_s, False


def _stamp(file: Followed) -> Stamp:
    return file.inode, file.size, file.mtime_ns
