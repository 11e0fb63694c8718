"""Following log files: bytes of whole lines out, each exactly once, whatever is done to the files meanwhile.

**Goal.** The lines of all files that the patterns match, each line once, also across a restart from `positions()`, while the
files are renamed, copied and emptied, compressed, deleted and made anew under the same name or inode number.

**How.** `scan` lists the folders and holds what it finds against what it knows, in this order: the same inode (confirmed by
content wherever the inode number could have been reused); a file that vanished or was emptied and of which all that was read is
found again, byte for byte by checksum, in an unknown file of its family: its copy, its `.gz`, itself on another disk; a copy
that is being made (`copytruncate`, `gzip`) of a file that is still there, which waits as a *twin* until it is plain what it
is; and only then a new file. Files of the same family that the patterns do not match are looked at for the second purpose
only, so the rest of a file that was rotated while nobody looked is found even if the pattern is just `access.log`.

**Order.** Rotated files before live ones, the longest unmodified first; live ones in turn.

**What no reader can mend.** Lines that a copytruncate tool loses between its copy and its truncation, and those that were
written and deleted without ever being seen. The latter are reported where their number of bytes is known. An emptied file that is
filled again beyond the old position with the same 64 bytes before it, unseen in between, is taken for the old one. A log that
lost its end in a power failure is read from where it ends when it is next looked at.

No clocks and no sleeping: `now` is seconds on any clock that does not go back, the same one in all calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from elf.agent.files import names
from elf.agent.files.blocks import BLOCK_BYTES, LINE_MAX, Block, Cutter, FileKey
from elf.agent.files.content import Plain
from elf.agent.files.finding import Finder
from elf.agent.files.first_seen import FirstSeen
from elf.agent.files.follow import Followed, Inode, Replaced
from elf.agent.files.identity import FileState
from elf.agent.files.known import Known
from elf.agent.files.listing import Seen
from elf.agent.files.recognise import exactly, reading
from elf.errors import SourceError

GRACE_S = 10.0
REPLACED_MAX = 8
POLL_S, POLL_WITH_INOTIFY_S = 0.25, 1.0
HEAD_OF_FILE_BYTES = 64 * 1024


class SourceState(msgspec.Struct, array_like=True):
    """Where a source stands: `msgspec.msgpack.encode` it, keep it, give it back to `Source`."""

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
        """`start` ("beginning" or "end") counts for files that are there at the first scan when there is no `state`.

        grace_s: how long a rotated file is still watched for more after it last grew.
        """
        self.name, self.grace_s, self._line_max = name, grace_s, line_max
        self.lost_bytes = 0
        """Bytes that were known of and vanished before they could be read."""
        self.cut_off: set[int] = set()
        """Generations of files whose end could not be read: damaged archives, and files that went while nobody looked."""
        self.idle_since: float | None = None
        self.complete_until: float | None = None
        """Every line that was written before this time has been handed out (the last scan's `now`, while `at_end`)."""
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

    # What the caller sees.

    @property
    def notices(self) -> list[str]:
        """One line each, for the log; the caller empties it."""
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
        """Take the events that made `fileno` readable; whether there were any."""
        return self._finder.inotify.drain()

    def is_still(self) -> bool:
        """Whether no file came or went since the last scan, as far as that is told without one."""
        inotify = self._finder.inotify
        inotify.drain()
        return inotify.fileno() >= 0 and not (inotify.moved or inotify.failed)

    def lag_bytes(self) -> dict[str, int]:
        """Bytes not handed out yet by path, of files that are not complete; of compressed files those on disk."""
        return {file.path: file.lag_bytes for file in self._known.files.values() if not file.state.done}

    def inodes(self) -> dict[str, tuple[int, int]]:
        """Of the files that are not complete, by path: (device, inode)."""
        files = self._known.files.values()
        return {file.path: file.inode for file in files if file.inode is not None and not file.state.done}

    def unread(self) -> set[int]:
        """Generations of the files that, when last looked at, held more than was handed out. O(files).

        A file that may not be read does not count, nor the start of a line whose end is awaited.
        """
        return {generation for generation, file in self._known.files.items() if file.is_unread}

    def positions(self) -> SourceState:
        """What was handed out so far. O(files)."""
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
                    data = exactly(content, memoryview(bytearray(HEAD_OF_FILE_BYTES)))
            except (OSError, SourceError):
                continue
            if stop := data.rfind(b"\n") + 1:
                return data[:stop]
        return b""

    def files(self) -> Mapping[int, Followed]:
        """The files that it knows, by generation: to be looked at."""
        return self._known.files

    def begin_at(self, firsts: Sequence[FirstSeen]) -> dict[int, int]:
        """Of these files, of which nothing was read, do not read what they held then. Where each begins, by generation; -1: that
        was all of it. O(n)."""
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
                file.content = None  # opened again where it is read
        return file.state.offset

    def pass_over(self, before_ns: int) -> list[Followed]:
        """Do not read rotated files last written before then and of which nothing was read. These are they. O(n)."""
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
        """Do not read what a file of which nothing was read holds. False if it cannot be read at all."""
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
        """Look at the folders: new, renamed, emptied, vanished files. Reads little unless a copy appears.

        O(files in them); while inotify says that nothing came or went, O(files that are not complete), for at most
        `finding.GLANCE_S`.
        """
        self._finder.scan(now)
        self._scanned_at = now
        self.complete_until = None

    # Reading.

    def read(self, now: float) -> Block | None:
        """The next block, or None when there is nothing more for now (`at_end` says whether that is all there is).

        Its data is valid until the next call. Looks at known files only; `scan` finds the others. Raises nothing for what
        happens to files: that is told in `notices`.
        """
        for _ in range(REPLACED_MAX):
            block, replaced = self._read_once(now)
            if block is not None:
                self.idle_since = self.complete_until = None
                return block
            if not replaced:
                break
            self.scan(now)
        self._judge_end(now)
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
        if file.denied:
            return None
        placed = file.inode is not None or file.content is not None
        if placed and not (file.content is None and file.drained == (file.size, file.mtime_ns)):
            self._make_room(file)
            block = file.read(self._cutter, now)
            if block is not None:
                return block
        if not self._is_over(file, now):
            return None
        if not placed and file.lag_bytes:
            self.lost_bytes += file.lag_bytes
            self._known.notice(f"{file.path}: gone with {file.lag_bytes} bytes that were not read")
        if not (placed or file.size):
            self.cut_off.add(file.state.generation)
        block = file.finish(self._cutter, now)
        if file.state.done:
            file.close()
        return block

    def _is_over(self, file: Followed, now: float) -> bool:
        """Whether nothing more can come: an archive at its end, or a rotated file that has not grown for the grace period."""
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
        """Keep the number of descriptors bounded: the file that was read longest ago is opened again when it is its turn."""
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
        """Rotated ones before those that are written, the longest unmodified first; written ones in turn."""
        if file.inode in self._known.writable:
            return True, file.read_turn, 0
        return False, file.mtime_ns, names.age(file.path)

    def _judge_end(self, now: float) -> None:
        if (
            self._scanned_at is None
            or any(self._is_pending(file, now) for file in self._known.files.values())
            or self._finder.twins
        ):
            self.complete_until = self.idle_since = None
            return
        self.complete_until = self._scanned_at
        if self.idle_since is None:
            self.idle_since = self._scanned_at

    def _is_pending(self, file: Followed, now: float) -> bool:
        """Whether lines may still come from what is already on disk. A file that may not be read does not count."""
        if file.state.done or file.denied:
            return False
        if file.packed or (file.drained is None and file.inode is not None):
            return True
        # The start of a line without its end: the rest is being written, unless it is left like that.
        return file.lag_bytes > 0 and now - file.grown_at < self.grace_s
