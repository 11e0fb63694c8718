"""Finds files again by their first lines: files that a job's log knows and this agent's notes lack, as after a lost disk.

The job's log identifies a file by its first line and by how many files had begun alike before (`file_notes`). While the agent was
down, the file may have been renamed, copied or compressed, so every file of its families is opened and uncompressed, whatever its
name. A file is accepted only if it is the only candidate: one file on disk begins like that (not counting copies and
archives of it), and the log knows only one that does. If two begin alike, it is unknown how far each of them was counted: then
neither is accepted, and a notice reports that. Files younger than one that was found were logged after it and are read too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache

from elf.agent.files.content import Content, Plain, exactly, kind, reading
from elf.agent.files.follow import Followed, Inode
from elf.agent.files.listing import Seen, reason
from elf.agent.files.recognise import COMPARE_BYTES, is_inode
from elf.agent.work.file_notes import FileNote, Notes, fingerprint_of, first_line, identity_of
from elf.errors import SourceError
from elf.srt.messages.messages import Position, Slot

ORDINALS_MAX = 1_000
"""Ordinals tried for each first line, which takes 1 ms."""
EXPECTED_MAX = 10_000
"""Identities that jobs' logs know, 40 bytes each."""
HEAD_BYTES = 64 << 10

Place = tuple[str, Inode]
"""Where a look found a file. By the time it is opened, the path may lead to another file."""


class Moved(Exception):  # noqa: N818 (an event, not a failure)
    """A file was moved meanwhile: try again."""


@lru_cache(maxsize=16)
def _identities(fingerprint: int) -> tuple[int, ...]:
    """Of files with that fingerprint, by ordinal. A job that expects more files asks for the same ones again."""
    return tuple(identity_of(fingerprint, ordinal) for ordinal in range(ORDINALS_MAX))


class Rediscovery:
    """Expects the identities that jobs' logs know. unread: files of the families that could not be opened, and why."""

    def __init__(self, notes: Notes, notice: Callable[[str], None]) -> None:
        self._notes, self._notice = notes, notice
        self._expected: dict[int, None] = {}
        self._ordinals: dict[int, dict[int, int]] = {}  # of a first line: expected identities, by ordinal
        # Signature and fingerprint of files that are not followed.
        self._heads: dict[Inode, tuple[tuple[int, int], int]] = {}
        self._ambiguous: set[int] = set()
        self.unread: dict[str, str] = {}

    def expect(self, positions: Mapping[Slot, Position], ends: Iterable[Slot]) -> None:
        """Expect the files that a job's log knows."""
        identities = dict.fromkeys(slot[1] for slot in (*positions, *ends) if slot[1])
        if not identities.keys() <= self._expected.keys():
            self._expected = dict(list((self._expected | identities).items())[-EXPECTED_MAX:])
            self._ordinals.clear()

    def ordinals(self, fingerprint: int) -> dict[int, int]:
        """The identities of the expected files with that fingerprint, by ordinal. O(ORDINALS_MAX) once."""
        found = self._ordinals.get(fingerprint)
        if found is None:
            found = self._ordinals[fingerprint] = {
                n: identity
                for n, identity in enumerate(_identities(fingerprint))
                if identity in self._expected
            }
        return found

    def ordinal(self, line: bytes) -> int | None:
        """The ordinal of a file with that first line that has no identity yet.

        It is that of an expected file if only one file can be meant, else one above all expected ordinals; None if no file with
        that first line is expected.
        """
        fingerprint = fingerprint_of(line)
        expected = self.ordinals(fingerprint)
        if not expected:
            return None
        missing = [n for n, identity in expected.items() if identity not in self._notes.by_identity]
        if (
            len(expected) == 1
            and missing
            and fingerprint not in self._ambiguous
            and not self._notes.alike(line)
        ):
            return missing[0]
        return max(max(expected) + 1, self._notes.begun(fingerprint))

    def pick(self, unknown: Sequence[Seen]) -> set[Inode]:
        """The unknown files (oldest first) that are to be followed: expected ones, and those logged after them. Raises Moved."""
        alike: dict[int, list[Seen]] = {}
        self.unread.clear()
        for one in unknown:
            if (fingerprint := self._fingerprint(one)) is not None:
                alike.setdefault(fingerprint, []).append(one)
        self._heads = {one.inode: self._heads[one.inode] for one in unknown if one.inode in self._heads}
        found = [
            chosen
            for fingerprint, ones in alike.items()
            if (chosen := self._choose(fingerprint, ones)) is not None
        ]
        picked = {one.inode for one in found}
        begun = {fingerprint for fingerprint, ones in alike.items() if any(one in found for one in ones)}
        for first in found:
            younger = unknown[unknown.index(first) + 1 :]
            picked |= {
                one.inode
                for one in younger
                if one.family == first.family
                and self._known_fingerprint(one) not in begun
                and not self._is_known(one)
            }
        return picked

    def paths_of(self, fingerprint: int, unknown: Sequence[Seen]) -> list[str]:
        """The paths of the files with that fingerprint."""
        return [one.path for one in unknown if self._fingerprint(one) == fingerprint]

    def _known_fingerprint(self, one: Seen) -> int | None:
        return self._heads[one.inode][1] if one.inode in self._heads else None

    def _is_known(self, one: Seen) -> bool:
        """Whether `one` begins like a followed file, so that it may be a copy of that file."""
        fingerprint = self._known_fingerprint(one)
        return fingerprint is None or any(
            note.fingerprint == fingerprint for note in self._notes.files.values()
        )

    def _fingerprint(self, one: Seen) -> int | None:
        held = self._heads.get(one.inode)
        if held is not None and held[0] == one.signature:
            return held[1]
        try:
            with reading(one.path) as content:
                if not is_inode(content.descriptor, one.inode):
                    return None
                head = exactly(content, memoryview(bytearray(HEAD_BYTES)))
                if not head and content.compressed:
                    content.readinto(memoryview(bytearray(1)))  # raises what is wrong with it
        except FileNotFoundError:
            return None
        except (OSError, SourceError) as error:
            self.unread[one.path] = reason(error)
            return None
        line = first_line(head, one.rotated or len(head) == HEAD_BYTES)
        if line is None:
            return None
        fingerprint = fingerprint_of(line)
        self._heads[one.inode] = one.signature, fingerprint
        return fingerprint

    def _choose(self, fingerprint: int, ones: Sequence[Seen]) -> Seen | None:
        """Which of the files that begin alike is the expected one: the uncompressed one, if there is one."""
        expected = self.ordinals(fingerprint)
        missing = [identity for identity in expected.values() if identity not in self._notes.by_identity]
        if not missing or any(note.fingerprint == fingerprint for note in self._notes.files.values()):
            return None
        if len(expected) > 1 or not _are_alike([(one.path, one.inode) for one in ones]):
            self._report_ambiguous(fingerprint, [one.path for one in ones])
            return None
        return min(ones, key=lambda one: (_is_packed(one.path), -one.status.st_size))

    def ambiguous(
        self, notes: Iterable[FileNote], files: Mapping[int, Followed], unknown: Sequence[Seen]
    ) -> list[FileNote]:
        """After a lost disk: the files that may each be any of several expected files. Raises Moved."""
        alike: dict[int, list[FileNote]] = {}
        for note in notes:
            if note.fingerprint:
                alike.setdefault(note.fingerprint, []).append(note)
        found = []
        for fingerprint, of in alike.items():
            expected = self.ordinals(fingerprint)
            others = [(one.path, one.inode) for one in unknown if self._fingerprint(one) == fingerprint]
            there = [files[note.generation] for note in of if note.generation in files]
            places = [(file.path, file.inode) for file in there if file.inode is not None] + others
            is_one = len(of) == 1 and (not others or _are_alike(places))
            if expected and not (is_one and set(expected) == {of[0].ordinal}):
                self._report_ambiguous(fingerprint, [path for path, _ in places])
                found += of
        return found

    def _report_ambiguous(self, fingerprint: int, paths: Sequence[str]) -> None:
        if fingerprint in self._ambiguous:
            return
        self._ambiguous.add(fingerprint)
        self._notice(
            f"{', '.join(paths)}: the state folder was lost, and several logs begin with the same line, so it is unknown how far "
            "each of them was counted; the lines that they hold now are left out, and windows that lack them do not count "
            "this agent; keep state_dir"
        )


def _is_packed(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return kind(file.read(8)) != "plain"
    except OSError:
        return True


def _are_alike(places: Sequence[Place]) -> bool:
    """Whether of any two of the files, uncompressed, the shorter one is the start of the longer one. O(their bytes). Raises
    Moved."""
    return all(_is_start(places[0], place) for place in places[1:])


def _is_start(place: Place, other: Place) -> bool:
    view = memoryview(bytearray(COMPARE_BYTES))
    try:
        with _reading(place) as mine, _reading(other) as theirs:
            while True:
                data, its = exactly(mine, view), exactly(theirs, view)
                if not (data.startswith(its) or its.startswith(data)):
                    return False
                if len(data) < len(view) or len(its) < len(view):
                    return True
    except (OSError, SourceError):
        return False


@contextmanager
def _reading(place: Place) -> Iterator[Content]:
    """Raises Moved, OSError, SourceError. A compressor ends, and a rotation renames the archive, within a millisecond."""
    path, inode = place
    try:
        with reading(path) as content:
            if not is_inode(content.descriptor, inode):
                raise Moved(path)
            yield content
    except FileNotFoundError as error:
        raise Moved(path) from error


def present_end(file: Followed) -> int:
    """The end of the last whole line in a file now; 0 for a compressed file. Raises Moved, OSError, SourceError."""
    if file.inode is None:
        raise FileNotFoundError(file.path)
    with _reading((file.path, file.inode)) as content:
        if not isinstance(content, Plain):
            return 0
        size = os.fstat(content.descriptor).st_size
        tail = os.pread(content.descriptor, min(size, HEAD_BYTES), max(size - HEAD_BYTES, 0))
        return size - len(tail) + (tail.rfind(b"\n") + 1 or len(tail))
