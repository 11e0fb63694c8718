"""Follows log files: returns the bytes of whole lines, each exactly once, whatever happens to the files meanwhile.

**Goal.** The lines of all files that the patterns match, each line once, also across a restart from `positions()`, while the
files are renamed, copied and emptied, compressed, deleted and created again under the same name or inode number.

**How.** `scan` lists the folders and identifies each file, in this order: the same inode as a known file (confirmed by content
wherever the inode number could have been reused); a known file that vanished or was emptied, if an unknown file of its family
has all bytes that were read of it, by checksum: its copy, its `.gz`, the file moved to another disk or folder (after a restart,
a file in a folder that no pattern names any more counts as vanished); a copy of an existing file that is still being made
(`copytruncate`, `gzip`), which waits as a *twin* until it is certain; and only then a new file. Files of the same family that
the patterns do not match are candidates for the second case only, so the rest of a file that was rotated while the agent was
down is found even if the pattern is just `access.log`.

**Order.** Rotated files before live ones, the longest unmodified first; live ones in turn.

**What no reader can repair.** Lines that a copytruncate tool loses between its copy and its truncation, and lines that were
written and deleted between two scans. The latter are reported if their number of bytes is known. If a file is emptied and filled
again past the old position, with the same 64 bytes before it, and no scan in between, it is treated as the old one. A log that
lost its end in a power failure is read from its end at the next scan.

No clocks and no sleeping: `now` is seconds on any clock that does not go back, the same one in all calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from elf.agent.files import names
from elf.agent.files.blocks import BLOCK_BYTES, LINE_MAX, Block, Cutter, FileKey
from elf.agent.files.content import Plain, first_text, reading
from elf.agent.files.divided import same_log
from elf.agent.files.finding import Finder
from elf.agent.files.first_seen import FirstSeen
from elf.agent.files.follow import Followed, Inode, Replaced
from elf.agent.files.identity import FileState
from elf.agent.files.known import Known
from elf.agent.files.listing import Seen
from elf.errors import SourceError

GRACE_S = 10.0
REPLACED_MAX = 8
POLL_S, POLL_WITH_INOTIFY_S = 0.25, 1.0
HEAD_OF_FILE_BYTES = 64 * 1024


class SourceState(msgspec.Struct, array_like=True):
    """The state of a source, to be encoded with `msgspec.msgpack`, saved, and passed to `Source` again."""

    files: list[FileState] = []
    generation: int = 0  # of the newest file


class Source:
    """One followed log stream across its rotations. Holds one block's memory and at most 64 descriptors; not thread-safe."""

    def __init__(
        self,
        name: str,
        patterns: Sequence[str],
        *,
        state: SourceState | None = None,
        start: str = "end",
        line_max: int = LINE_MAX,
        block_bytes: int = BLOCK_BYTES,
        grace_s: float = GRACE_S,
    ) -> None:
        """`start` ("beginning" or "end") applies to files that exist at the first scan, if there is no `state`.

        grace_s: how long a rotated file is still watched for more after it last grew.
        """
        self.name, self.grace_s, self._line_max = name, grace_s, line_max
        self.lost_bytes = 0
        """Bytes that were seen, and vanished before they were read."""
        self.cut_off: set[int] = set()
        """Generations of files whose end could not be read: damaged archives, and files that vanished between scans."""
        self.complete_until: float | None = None
        """Every line written before this time has been returned (the last scan's `now`, while `at_end`)."""
        self._known = Known(name, state.generation if state else 0, state.files if state else ())
        self._finder = Finder(
            self._known,
            patterns,
            to_end=state is None and start == "end",
            resuming=state is not None,
            grace_s=grace_s,
            line_max=line_max,
        )
        self._cutter = Cutter(block_bytes, line_max)
        self._scanned_at: float | None = None
        self._turn = 0
        self._divided: set[int] = set()
        """Files, by generation, whose present end is within a line of several parts; mostly none."""

    # For the caller.

    @property
    def notices(self) -> list[str]:
        """Notices for the log, one line each; the caller clears the list."""
        return self._known.notices

    @property
    def at_end(self) -> bool:
        """Whether, since the last scan, every file was read to its end and nothing older is pending."""
        return self.complete_until is not None

    def fileno(self) -> int:
        """A descriptor that is readable when something changed, for `select`; -1 without inotify. Wait with `poll_s`."""
        return self._finder.inotify.fileno()

    @property
    def poll_s(self) -> float:
        """How long to wait at most before the next scan."""
        return (
            POLL_S
            if self._finder.inotify.fileno() < 0 or self._finder.inotify.failed
            else POLL_WITH_INOTIFY_S
        )

    def wake(self) -> bool:
        """Read the events that made `fileno` readable. Returns whether there were any."""
        return self._finder.inotify.drain()

    def is_still(self) -> bool:
        """Whether no file appeared or vanished since the last scan, according to inotify."""
        inotify = self._finder.inotify
        inotify.drain()
        return inotify.fileno() >= 0 and not (inotify.moved or inotify.failed)

    def lag_bytes(self) -> dict[str, int]:
        """Bytes not returned yet, by path, for files that are not complete; for compressed files, bytes on disk."""
        return {file.path: file.lag_bytes for file in self._known.files.values() if not file.state.done}

    def inodes(self) -> dict[str, tuple[int, int]]:
        """(device, inode) by path, for files that are not complete."""
        files = self._known.files.values()
        return {file.path: file.inode for file in files if file.inode is not None and not file.state.done}

    def unread(self) -> set[int]:
        """Generations of the files that had more bytes than were returned, at the last scan. O(files).

        A file that cannot be read does not count, nor the start of an incomplete line.
        """
        return {generation for generation, file in self._known.files.items() if file.is_unread}

    def positions(self) -> SourceState:
        """The state of what was returned so far. O(files)."""
        files = [file.saved() for file in self._known.files.values()]
        return SourceState(files, self._known.generation)

    def head(self, key: FileKey | None = None) -> bytes:
        """The first whole lines (of at most 64 KiB) of a file, or of the newest that has any: for headers and detection."""
        files = [
            file
            for file in self._known.files.values()
            if key is None or file.state.generation == key.generation
        ]
        for file in sorted(files, key=self._order, reverse=True):
            try:
                opened = file.content.descriptor if isinstance(file.content, Plain) else file.path
                with reading(opened) as content:
                    data = first_text(content, HEAD_OF_FILE_BYTES)
            except (OSError, SourceError):
                continue
            if stop := data.rfind(b"\n") + 1:
                return data[:stop]
        return b""

    def files(self) -> Mapping[int, Followed]:
        """The known files by generation, to be read only."""
        return self._known.files

    def begin_at(self, firsts: Sequence[FirstSeen]) -> dict[int, int]:
        """Skip the content that these files had when they were noted, unless some of it was read.

        Returns, by generation, the offset where reading begins; -1 for a file that is skipped whole. O(n).
        """
        begun = {}
        by_inode = {(first.device, first.inode): first for first in firsts}
        for file in self._known.files.values():
            untouched = not (file.state.offset or file.state.done or file.denied)
            first = by_inode.get(file.inode) if file.inode is not None else None
            if not untouched or first is None or file.size < first.size or not first.begins(file.path):
                continue
            try:
                begin = self._begin_behind(file, first.size)
            except (OSError, SourceError) as error:
                self._known.deny(file, error)
            else:
                if begin:
                    begun[file.state.generation] = begin
        return begun

    def _begin_behind(self, file: Followed, size: int) -> int:
        file.close()
        with reading(file.path) as content:
            if file.size == size and (
                not isinstance(content, Plain) or file.inode not in self._known.writable
            ):
                file.take_as_read(content, size, unseen=True)
                return -1
            if isinstance(content, Plain):
                file.start_at(content, size, self._line_max)
                file.content = None  # opened again when it is read
        return file.state.offset

    def pass_over(self, before_ns: int) -> list[Followed]:
        """Skip rotated files that were last written before `before_ns` and not read at all. Returns these files. O(n)."""
        passed = []
        for file in self._known.files.values():
            untouched = not (file.state.offset or file.state.done or file.denied)
            if (
                untouched
                and file.inode not in self._known.writable
                and file.mtime_ns < before_ns
                and file.size
                and self.skip(file)
            ):
                passed.append(file)
        return passed

    def skip(self, file: Followed) -> bool:
        """Skip the present content of a file of which nothing was read. False if it cannot be read at all."""
        try:
            with reading(file.path) as content:
                file.close()
                file.take_as_read(content, file.size, unseen=True)
        except (OSError, SourceError) as error:
            self._known.deny(file, error)
            return False
        return True

    def claim(self, claim: Callable[[Sequence[Seen]], set[Inode]] | None) -> None:
        """See `Finder.claim`."""
        self._finder.claim(claim)

    def close(self) -> None:
        """Close every descriptor. Idempotent."""
        self._known.close()
        self._finder.inotify.close()

    def scan(self, now: float) -> None:
        """List the folders: new, renamed, emptied, vanished files. Reads little unless a copy appears.

        O(files in them); while inotify reports no change, O(files that are not complete), for at most
        `finding.GLANCE_S`.
        """
        self._finder.scan(now)
        self._scanned_at = now
        self.complete_until = None

    # Reading.

    def read(self, now: float) -> Block | None:
        """The next block, or None if there is none for now (`at_end` says whether that is the end of all files). A file that was
        read to its end at this `now` is read further at a later one only, so that a busy log does not end in many small blocks.

        Its data is valid until the next call. Reads known files only; `scan` finds others. Errors of files are not raised but
        reported in `notices`.
        """
        for _ in range(REPLACED_MAX):
            block, replaced = self._read_once(now)
            if block is not None:
                self.complete_until = None
                return block
            if not replaced:
                break
            self.scan(now)
        self._update_end(now)
        return None

    def _read_once(self, now: float) -> tuple[Block | None, bool]:
        replaced = False
        for file in sorted(
            (file for file in self._known.files.values() if not file.state.done), key=self._order
        ):
            try:
                block = self._read_file(file, now)
            except Replaced:
                self._known.displace(file)
                replaced = self._finder.inotify.moved = True
            except FileNotFoundError:
                continue  # moved since the scan; the next one finds it
            except SourceError as error:
                self._known.notice(f"{file.path}: {error}; not reading further")
                self.cut_off.add(file.state.generation)
                block = file.end(self._cutter)
                file.close()
                return block, False
            except OSError as error:
                self._known.deny(file, error)
            else:
                if block is not None:
                    self._turn += 1
                    file.read_turn = self._turn
                    return block, False
        return None, replaced

    def _read_file(self, file: Followed, now: float) -> Block | None:
        if file.denied or (self._divided and not file.state.offset and self._may_be_divided(file)):
            return None
        placed = file.inode is not None or file.content is not None
        is_read = file.drained is not None and file.drained_s == now
        if placed and not (is_read or (file.content is None and file.drained == (file.size, file.mtime_ns))):
            self._make_room(file)
            block = file.read(self._cutter, now)
            self._note_end(file)
            if block is not None:
                return block
        if not self._is_over(file, now):
            return None
        if not placed and file.lag_bytes:
            self.lost_bytes += file.lag_bytes
            self._known.notice(f"{file.path}: gone with {file.lag_bytes} bytes that were not read")
        if not (placed or file.size):
            self.cut_off.add(file.state.generation)
        block = file.finish(self._cutter, now, self._heir(file))
        self._note_end(file)
        if file.state.done:
            file.close()
        return block

    def _note_end(self, file: Followed) -> None:
        if file.ends_open and not file.state.done:
            self._divided.add(file.state.generation)
        else:
            self._divided.discard(file.state.generation)

    def _may_be_divided(self, file: Followed) -> bool:
        """Whether its first line may have begun in an older file that is not complete yet: then it waits for that one."""
        age = names.age(file.path)
        older = [
            other
            for other in self._known.files.values()
            if names.age(other.path) < age and same_log(other.path, file.path)
        ]
        last = max(older, key=lambda other: names.age(other.path), default=None)
        if last is None or last.state.done:
            return False
        return last.ends_open or (not last.state.offset and self._may_be_divided(last))

    def _heir(self, file: Followed) -> Followed | None:
        """The file in which the log of `file` goes on, if nothing of it was read yet. Of files that one scan finds only the
        names say which is older."""
        age = names.age(file.path)
        younger = [
            other
            for other in self._known.files.values()
            if names.age(other.path) > age and same_log(other.path, file.path)
        ]
        first = min(younger, key=lambda other: names.age(other.path), default=None)
        return None if first is None or first.state.offset or first.state.done else first

    def _is_over(self, file: Followed, now: float) -> bool:
        """Whether a file is complete: an archive at its end, or a rotated file that has not grown for the grace period."""
        if file.packed and file.content is not None:
            if not file.content.truncated():
                return True
            if now - file.grown_at >= self.grace_s:
                self._known.notice(
                    f"{file.path}: the compressed data ends early (truncated); read up to there"
                )
                self.cut_off.add(file.state.generation)
                return True
            return False
        return file.retired_at is not None and now - max(file.retired_at, file.grown_at) >= self.grace_s

    def _make_room(self, file: Followed) -> None:
        """Bound the number of descriptors: close the file that was read longest ago; it is opened again at its turn."""
        while file.content is None and not self._known.has_room():
            opened = [
                other
                for other in self._known.files.values()
                if other.content is not None and other.inode is not None
            ]
            if not opened:
                return
            min(
                opened, key=lambda other: (other.packed, other.inode in self._known.writable, other.read_turn)
            ).close()

    def _order(self, file: Followed) -> tuple[bool, int, int]:
        """Rotated files before live ones, the longest unmodified first; live ones in turn."""
        if file.inode in self._known.writable:
            return True, file.read_turn, 0
        return False, file.mtime_ns, names.age(file.path)

    def _update_end(self, now: float) -> None:
        if (
            self._scanned_at is None
            or any(self._is_pending(file, now) for file in self._known.files.values())
            or self._finder.twins
        ):
            self.complete_until = None
        else:
            self.complete_until = self._scanned_at

    def _is_pending(self, file: Followed, now: float) -> bool:
        """Whether lines may still come from what is already on disk. A file that cannot be read does not count."""
        if file.state.done or file.denied:
            return False
        if file.packed or (file.drained is None and file.inode is not None):
            return True
        # An incomplete line: its writer has the grace period to complete it.
        return file.lag_bytes > 0 and now - file.grown_at < self.grace_s
