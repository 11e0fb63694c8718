"""Notes on each file of a source, besides how far it was read: its identity, and the event times reached at its offsets.

An identity must be the same after a restart, and after the agent has lost its disk, so it is derived from the file: a hash of its
first line, and a number for the second and further files that begin alike. No two files get the same identity. A file that is
found shorter than it was read therefore continues under another identity, derived also from the offset where it ended: this is
another *part* of it. Nothing else begins a part: if a job's log has closed a file and the file grows, the offsets continue.

`low(P)` is where the running maximum of event time first reached P. Marks record it sparsely: the offset returned may be earlier
by the distance of two marks.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from elf.agent.files.first_seen import FirstSeen
from elf.agent.files.identity import real_path
from elf.agent.files.source import SourceState

LINE_BYTES = 1024
"""Bytes of a first line that are hashed at most."""
MARKS_MAX = 512
"""Marks of one file, 16 bytes each. When there are more, every second one is dropped: in 1 GB, one each 2 to 4 MB is left."""
MARK_BYTES = 64 << 10
JOBS_MAX = 1_000
BEGUN_MAX = 10_000
"""First lines whose files are counted, 12 bytes each."""
NEVER_US = -(1 << 62)
MAGIC = b"elf-notes-1 "

Offset = Annotated[int, Meta(ge=0, lt=1 << 62)]
Time = Annotated[int, Meta(ge=-(1 << 62), lt=1 << 62)]


class FileNote(msgspec.Struct, array_like=True):
    """The note of one file.

    generation: the file's number in the `Source`. fingerprint: hash of its first line; 0 until there is one. ordinal: how many
    other files had begun alike. bases: offset 0, and the offsets where it continued after it was cut short. highest_us: the
    highest event time read; marks: (offset, highest event time before it). length: once known. lost: the file disappeared before
    its end was read. over_us: no line in it is later (of a file that was skipped, since it was last written before the requested
    time). begin: lines before this offset existed when the agent was first started, and do not count (-1: the whole first part).
    """

    generation: int
    fingerprint: int = 0
    ordinal: int = 0
    bases: Annotated[list[Offset], Meta(min_length=1)] = msgspec.field(default_factory=lambda: [0])
    length: Offset | None = None
    highest_us: Time | None = None
    marks: list[tuple[Offset, Time]] = []
    lost: bool = False
    over_us: Time | None = None
    begin: Annotated[int, Meta(ge=-1, lt=1 << 62)] = 0

    def identity(self, part: int = 0) -> int:
        """The identity of the part that begins at `bases[part]`: 63 bits, not 0."""
        return identity_of(self.fingerprint, self.ordinal, self.bases[part])

    def low(self, event_us: int, front: int) -> int:
        """An offset before which every line is older than `event_us`; lines up to `front` were read. O(marks)."""
        if self.highest_us is None:
            return 0
        if self.highest_us < event_us:
            return front
        below = [offset for offset, highest in self.marks if highest < event_us]
        return below[-1] if below else 0

    def read_to(self, start: int, latest_us: int) -> None:
        """Note a block that was read: it began at `start`, and its highest event time is `latest_us`."""
        if self.highest_us is not None:
            offset, highest = self.marks[-1] if self.marks else (-MARK_BYTES, None)
            if start - offset >= MARK_BYTES and (highest is None or self.highest_us > highest):
                self.marks.append((start, self.highest_us))
                if len(self.marks) > MARKS_MAX:
                    del self.marks[::2]
        if self.highest_us is None or latest_us > self.highest_us:
            self.highest_us = latest_us


class Saved(msgspec.Struct, array_like=True):
    """The content of the file that `Notes.save` writes.

    source: None until its first read. begun: by fingerprint, how many files had it. copies: by generation of a copy or archive,
    that of the file whose lines it holds. firsts: files that existed when the agent was first started. joined: by job that was
    ever read, whether the mesh already knew files of this agent in it. lacks_us: see `Notes`.
    """

    source: SourceState | None
    notes: list[FileNote]
    begun: dict[int, int]
    time_max: Time | None = None
    copies: dict[int, int] = {}
    firsts: list[FirstSeen] = []
    joined: dict[bytes, bool] = {}
    lacks_us: Annotated[int, Meta(ge=0, lt=1 << 62)] = 0


def first_line(head: bytes, whole: bool) -> bytes | None:
    """The line that identifies a file: its first one that is not a comment, without its end. None while there is none.

    whole: `head` will not grow, since the file is complete, or since no more of it is read.
    """
    at = 0
    while (newline := head.find(b"\n", at)) >= 0:
        if head[at : at + 1] != b"#":
            return head[at : min(newline, at + LINE_BYTES)]
        at = newline + 1
    return (head[at : at + LINE_BYTES] or head[:LINE_BYTES]) if whole and head else None


def fingerprint_of(line: bytes) -> int:
    return int.from_bytes(blake2b(line, digest_size=8).digest()) >> 1 or 1


def identity_of(fingerprint: int, ordinal: int, base: int = 0) -> int:
    """See `FileNote.identity`."""
    text = b"%d %d %d" % (fingerprint, ordinal, base)
    return int.from_bytes(blake2b(text, digest_size=8).digest()) >> 1 or 1


def is_sound(source: SourceState | None) -> bool:
    """Whether a source can have written this state; another state must not be used. O(files)."""
    for file in source.files if source is not None else ():
        numbers = (file.base, file.offset, file.packed_bytes, file.device, file.inode, *chain(*file.marks))
        sizes = file.head_size, file.tail_size
        if not all(0 <= number < 1 << 63 for number in numbers) or not all(
            0 <= size <= LINE_BYTES for size in sizes
        ):
            return False
        try:
            real_path(file.path)
        except ValueError:
            return False
    return True


class Notes:
    """The notes of one source, by generation, and the file that stores them."""

    def __init__(self, path: Path, notice: Callable[[str], None]) -> None:
        self._path, self._notice = path, notice
        saved = self._load()
        self.source = saved.source if saved else None
        """The source's state when it was saved; None if it has never been read."""
        self.is_new = saved is None
        self.firsts = saved.firsts if saved else []
        self._joined = saved.joined if saved else {}
        self.lacks_us = saved.lacks_us if saved else 0
        """An earlier life that this folder has no record of may have counted lines until this time; 0: there was none."""
        self.time_max = saved.time_max if saved else None
        self._begun = saved.begun if saved else {}
        self.files = {note.generation: note for note in saved.notes} if saved else {}
        self.copies = saved.copies if saved else {}
        self.by_identity: dict[int, tuple[FileNote, int]] = {}
        for note in self.files.values():
            self._index(note)

    def _index(self, note: FileNote) -> None:
        if note.fingerprint:
            for part in range(len(note.bases)):
                self.by_identity[note.identity(part)] = note, part

    def of(self, generation: int) -> FileNote:
        """The note of that file; a new one if there is none."""
        note = self.files.get(generation)
        if note is None:
            note = self.files[generation] = FileNote(generation)
        return note

    def alike(self, line: bytes) -> list[FileNote]:
        """Notes of the files whose first line is `line`. O(files)."""
        fingerprint = fingerprint_of(line)
        return [note for note in self.files.values() if note.fingerprint == fingerprint]

    def begun(self, fingerprint: int) -> int:
        """How many files had that fingerprint, if the count is still kept, else 0."""
        return self._begun.get(fingerprint, 0)

    def identify(self, note: FileNote, line: bytes, ordinal: int | None = None) -> None:
        """Note the first line of a file. ordinal: from the job's log, if this agent has lost its own count. O(1)."""
        note.fingerprint = fingerprint = fingerprint_of(line)
        begun = self._begun.pop(fingerprint, 0)
        note.ordinal = begun if ordinal is None else ordinal
        self._begun[fingerprint] = max(begun, note.ordinal + 1)
        if len(self._begun) > BEGUN_MAX:
            del self._begun[next(iter(self._begun))]
        self._index(note)

    def cut_short(self, note: FileNote, base: int) -> None:
        """Begin a part at `base`, where a file now ends that was read further before."""
        note.bases.append(base)
        self._index(note)

    def begin_behind(self, note: FileNote, base: int | None, ordinal: int) -> None:
        """Read the file from `base` on (None: not at all), since it is unknown which earlier lines were counted."""
        for part in range(len(note.bases)):
            self.by_identity.pop(note.identity(part), None)
        note.ordinal, note.bases = ordinal, [base or 0]
        if base is None:
            note.over_us = NEVER_US
        self._begun[note.fingerprint] = max(self.begun(note.fingerprint), ordinal + 1)
        self._index(note)

    def part_from(self, copy: int, line: bytes, base: int) -> FileNote:
        """Begin a note for a copy that has grown past `base`: later lines were not read from another file."""
        del self.copies[copy]
        note = self.files[copy] = FileNote(copy, bases=[base])
        self.identify(note, line)
        return note

    def forget(self, generations: set[int]) -> None:
        """Drop the notes of all files but these and the originals of these."""
        self.copies = {copy: of for copy, of in self.copies.items() if copy in generations}
        for generation in self.files.keys() - generations - set(self.copies.values()):
            note = self.files.pop(generation)
            for part in range(len(note.bases)):
                self.by_identity.pop(note.identity(part), None)

    def counts_all(self, job: bytes, has_files: bool) -> tuple[bool, bool]:
        """Whether lines before `FileNote.begin` count for a job, and whether that was already decided.

        has_files: the mesh has files of this agent in the job. If so, and the job is read here for the first time, the notes of
        an earlier life are lost, and only the job's log knows where to begin.
        """
        known = job in self._joined
        if not known:
            self._joined[job] = has_files
            if len(self._joined) > JOBS_MAX:
                del self._joined[next(iter(self._joined))]
        return self._joined[job], known

    def count_all(self, job: bytes) -> None:
        """From now on, lines before `FileNote.begin` count for that job."""
        self._joined[job] = True

    def save(self, source: SourceState | None, time_max: int | None) -> None:
        """Replace the file with the present notes. What a crash loses is recovered from the log files."""
        data = msgspec.msgpack.encode(
            Saved(
                source,
                list(self.files.values()),
                self._begun,
                time_max,
                self.copies,
                self.firsts,
                self._joined,
                self.lacks_us,
            )
        )
        new = self._path.with_suffix(".new")
        try:
            new.write_bytes(MAGIC + zlib.crc32(data).to_bytes(4) + data)
            os.replace(new, self._path)
        except OSError as error:
            self._notice(f"{self._path}: {error.strerror or error}; positions are not saved")

    def _load(self) -> Saved | None:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._notice(f"{self._path}: {error.strerror or error}; files are identified again")
            return None
        data = content[len(MAGIC) + 4 :]
        if (
            content[: len(MAGIC)] == MAGIC
            and zlib.crc32(data).to_bytes(4) == content[len(MAGIC) : -len(data) or None]
        ):
            try:
                saved = msgspec.msgpack.decode(data, type=Saved)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                saved = None
            if saved is not None and is_sound(saved.source):
                return saved
        self._notice(f"{self._path}: damaged; files are identified again")
        return None
