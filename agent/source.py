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
filled again beyond the old position with the same 64 bytes before it, unseen in between, is taken for the old one.

No clocks and no sleeping: `now` is seconds on any clock that does not go back, the same one in all calls.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from elf.agent import names
from elf.agent.blocks import BLOCK_BYTES, LINE_MAX, Block, Cutter, FileKey
from elf.agent.content import Content, Plain, open_content
from elf.agent.follow import Followed, Inode, Replaced
from elf.agent.identity import PROOF_BYTES, FileState, gzip_holds, is_start_of, same_head
from elf.agent.inotify import Inotify
from elf.agent.listing import Listing, Seen, reason, writable
from elf.agent.recognise import Continues, common, continues, exactly, head_of, reading
from elf.errors import SourceError

GRACE_S = 10.0
OPEN_MAX = 64
"""Descriptors held by one source. An open file is one whose inode number cannot be reused and which can be read when deleted."""
GONE_MAX = 64
"""Files that are read and gone from disk, remembered in case they come back compressed."""
NOTICES_MAX = 256
REPLACED_MAX = 8
POLL_S, POLL_WITH_INOTIFY_S = 0.25, 1.0
GLANCE_S = 5.0
HEAD_OF_FILE_BYTES = 64 * 1024


class SourceState(msgspec.Struct, array_like=True):
    """Where a source stands: `msgspec.msgpack.encode` it, keep it, give it back to `Source`."""

    files: list[FileState] = []
    generation: int = 0  # of the newest file


class Twin(msgspec.Struct):
    """An unknown file whose content is, so far, that of a followed one."""

    of: int  # generation
    signature: tuple[int, int]
    since: float  # when it last changed
    compared: int = 0  # uncompressed bytes that were found equal


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
        self.name, self.grace_s = name, grace_s
        self.notices: list[str] = []
        """One line each, for the log; the caller empties it."""
        self.lost_bytes = 0
        """Bytes that were known of and vanished before they could be read."""
        self.idle_since: float | None = None
        self.complete_until: float | None = None
        """Every line that was written before this time has been handed out (the last scan's `now`, while `at_end`)."""
        self._files: dict[int, Followed] = {}
        self._generation = state.generation if state else 0
        self._to_end = state is None and start == "end"
        self._resuming = state is not None  # until the first scan
        self._also_wanted: set[Inode] = set()  # files that came and went while nobody looked
        self._twins: dict[Inode, Twin] = {}
        self._denied: dict[Inode, int | None] = {}  # where to begin once it can be read; None: at its start
        self._writable: set[Inode] = set()  # files that their writer may still have open by name
        self._cutter = Cutter(block_bytes, line_max)
        self._listing = Listing(patterns, self._notice)
        self._inotify = Inotify()
        self._scanned_at: float | None = None
        self._looked_at = 0.0
        self._turn = 0
        for saved in state.files if state else ():
            self._files[saved.generation] = Followed(
                msgspec.structs.replace(saved, marks=list(saved.marks)), 0.0
            )

    # What the caller sees.

    @property
    def at_end(self) -> bool:
        """Whether, since the last scan, every file was read to its end and nothing older is pending."""
        return self.complete_until is not None

    def fileno(self) -> int:
        """A descriptor that is readable when something changed, for `select`; -1 without inotify. Wait with `poll_s`."""
        return self._inotify.fileno()

    @property
    def poll_s(self) -> float:
        """How long to wait at most before the next scan."""
        return POLL_S if self._inotify.fileno() < 0 or self._inotify.failed else POLL_WITH_INOTIFY_S

    def wake(self) -> bool:
        """Take the events that made `fileno` readable; whether there were any."""
        return self._inotify.drain()

    def lag_bytes(self) -> dict[str, int]:
        """Bytes not handed out yet by path, of files that are not complete; of compressed files those on disk."""
        return {file.path: file.lag_bytes for file in self._files.values() if not file.state.done}

    def unread(self) -> set[int]:
        """Generations of the files that, when last looked at, held more than was handed out. O(files).

        A file that may not be read does not count, nor the start of a line whose end is awaited.
        """
        return {generation for generation, file in self._files.items() if file.is_unread}

    def positions(self) -> SourceState:
        """What was handed out so far. O(files)."""
        files = [file.saved() for file in self._files.values()]
        return SourceState(files, self._generation)

    def head(self, key: FileKey | None = None) -> bytes:
        """The first whole lines (of at most 64 KiB) of a file, or of the newest that has any: for headers and detection."""
        files = [
            file for file in self._files.values() if key is None or file.state.generation == key.generation
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

    def close(self) -> None:
        """Close every descriptor. Idempotent."""
        for file in self._files.values():
            file.close()
        self._inotify.close()

    def _notice(self, text: str) -> None:
        if len(self.notices) < NOTICES_MAX:
            self.notices.append(f"{self.name}: {text}")

    # Looking.

    def scan(self, now: float) -> None:
        """Look at the folders: new, renamed, emptied, vanished files. Reads little unless a copy appears.

        O(files in them); while inotify says that nothing came or went, O(files that are not complete), for at most
        `GLANCE_S`.
        """
        self._inotify.drain()
        if not self._glance(now):
            self._look(now)
        self._scanned_at = now
        self.complete_until = None

    def _glance(self, now: float) -> bool:
        """Whether all is as it was at the last look, but for files that grew."""
        if self._inotify.moved or self._inotify.failed or self._inotify.fileno() < 0:
            return False
        if self._listing.is_deep or self._twins or self._denied:
            return False
        active = [file for file in self._files.values() if not file.state.done]
        written, self._inotify.written = self._inotify.written, set()
        if now - self._looked_at >= GLANCE_S or not written <= {
            os.path.basename(file.path) for file in active
        }:
            return False
        return all(file.content is not None and file.inode is not None and file.intact() for file in active)

    def _look(self, now: float) -> None:
        self._inotify.moved = False
        seen = self._listing.look([file.path for file in self._files.values()])
        self._inotify.watch(self._listing.folders)
        here = {one.inode: one for one in seen}
        self._writable = writable(seen)
        for file in list(self._files.values()):
            self._locate(file, here, now)
        self._locate_on_new_device(seen, now)
        self._resolve_unknown(seen, now)
        if any(file.is_lost for file in self._files.values()):
            self._resolve_unknown(
                seen, now
            )  # one of them was emptied just now: then its inode is another file
        self._twins = {inode: twin for inode, twin in self._twins.items() if inode in here}
        self._also_wanted &= here.keys()
        self._denied = {inode: begin for inode, begin in self._denied.items() if inode in here}
        self._retire(now)
        self._forget_gone()
        self._to_end = self._resuming = False
        self._looked_at = now

    def _locate(self, file: Followed, here: dict[Inode, Seen], now: float) -> None:
        """Where is a known file now, and is it still the one that was read?"""
        inode = file.inode or (file.state.device, file.state.inode)
        one = here.get(inode) if inode[1] else None
        if one is not None:
            if not self._is_same(file, one):
                self._displace(file)
            else:
                self._place(file, one, now)
        elif file.content is None:
            file.inode = None
            if not file.state.offset:
                file.state.inode = (
                    0  # by the time it comes back the number may be another file's, and no content would tell
                )
        elif not file.intact():
            self._displace(file)
        else:
            if file.inode is not None and not os.fstat(file.content.descriptor).st_nlink:
                self._notice(f"{file.path}: deleted; reading what is left of it")
            file.inode = None
            file.look(os.fstat(file.content.descriptor), now)

    def _place(self, file: Followed, one: Seen, now: float) -> None:
        if file.inode is not None and one.path != file.path:
            self._notice(f"{file.path}: renamed to {one.path}")
        file.place(one.path, one.inode, one.status, now)
        if file.state.done and not file.packed and file.size > file.state.offset:
            file.state.done = False
            file.retired_at = None
        if file.denied and os.access(file.path, os.R_OK, effective_ids=True):
            self._notice(f"{file.path}: can be read now")
            file.denied = False
        if (
            not (file.state.done or file.packed or file.denied or file.content)
            and self._open_count() < OPEN_MAX
        ):
            self._hold(file)

    def _hold(self, file: Followed) -> None:
        """Open it before there is something to read: an open file keeps its inode number, and can be read when deleted."""
        try:
            file.open()
        except Replaced:
            self._displace(file)
        except FileNotFoundError:
            pass  # renamed just now
        except (OSError, SourceError) as error:
            self._deny(file, error)

    def _is_same(self, file: Followed, one: Seen) -> bool:
        if file.content is not None:
            return file.intact()
        if file.inode is not None and (file.size, file.mtime_ns) == one.signature:
            return True
        if not file.packed and one.status.st_size < file.state.offset:
            return False
        try:
            with reading(one.path) as content:
                if isinstance(content, Plain):
                    return not file.packed and file.confirm(content.descriptor) is not None
            return file.packed and same_head(head_of(one.path), file.state)
        except (OSError, SourceError):
            return True  # nothing speaks against it; reading will tell

    def _displace(self, file: Followed) -> None:
        self._notice(
            f"{file.path}: emptied or replaced after byte {file.state.offset}; reading it from its start"
        )
        file.displace()

    def _locate_on_new_device(self, seen: list[Seen], now: float) -> None:
        """Device numbers may change when a machine starts: the same inode number at the same path, confirmed by content."""
        lost = {
            (file.path, file.state.inode): file
            for file in self._files.values()
            if file.inode is None and not file.content
        }
        taken = {file.inode for file in self._files.values()}
        for one in seen if lost else ():
            file = lost.get((one.path, one.status.st_ino))
            if file is not None and one.inode not in taken and self._is_same(file, one):
                self._place(file, one, now)

    def _retire(self, now: float) -> None:
        for file in self._files.values():
            if file.inode in self._writable:
                file.retired_at = None
            elif file.retired_at is None:
                file.retired_at = now

    def _forget_gone(self) -> None:
        empty = [n for n, file in self._files.items() if file.is_lost and not file.state.head_size]
        for generation in empty:
            del self._files[generation]
        gone = [
            file.state.generation for file in self._files.values() if file.state.done and file.inode is None
        ]
        for generation in gone[: max(len(gone) - GONE_MAX, 0)]:
            del self._files[generation]

    # Unknown files.

    def _resolve_unknown(self, seen: list[Seen], now: float) -> None:
        """All unknown files, the oldest first.

        After a restart, what is younger than a file that was read came while nobody looked: it is read under any name.
        """
        chains: set[str] = set()
        known = {file.inode for file in self._files.values()}
        for one in seen:
            if one.inode not in known:
                if one.family in chains:
                    self._also_wanted.add(one.inode)
                one.wanted |= one.inode in self._also_wanted
                self._resolve(one, now)
                known = {file.inode for file in self._files.values()}
            if self._resuming and one.inode in known:
                chains.add(one.family)

    def _resolve(self, one: Seen, now: float) -> None:
        """What is a file with an unknown inode? One that was read elsewhere, a copy in the making, or a new one."""
        if one.status.st_size == 0 and one.rotated:
            return  # perhaps a copy that begins
        if not (one.wanted or self._resuming or any(file.is_lost for file in self._files.values())):
            return
        content = self._try_open(one)
        if content is None:
            return
        try:
            known = self._continue(one, content, now) or not one.wanted or self._is_twin(one, content, now)
            if not known:
                self._follow(one, content, now)
        except Replaced:
            for file in self._files.values():
                if file.content is content:
                    self._displace(file)
            return
        except (OSError, SourceError) as error:
            self._notice(f"{one.path}: {reason(error)}")
        if all(file.content is not content for file in self._files.values()):
            os.close(content.descriptor)

    def _try_open(self, one: Seen) -> Content | None:
        try:
            content = open_content(one.path)
        except FileNotFoundError:
            return None
        except (OSError, SourceError) as error:
            if one.wanted and one.inode not in self._denied:
                self._denied[one.inode] = one.status.st_size if self._to_end else None
                self._notice(f"{one.path}: {reason(error)}; waiting until it can be read")
            return None
        one.status = os.fstat(content.descriptor)
        return content

    def _continue(self, one: Seen, content: Content, now: float) -> bool:
        """Is it a file that was read before and is nowhere else now? Then go on in it."""
        for file in self._files.values():
            if file.inode is not None or file.content is not None or names.family(file.path) != one.family:
                continue
            if file.state.done and not (one.wanted or self._resuming):
                continue
            answer = continues(one, content, file)
            if answer is Continues.NO:
                continue
            if answer is Continues.MORE:
                self._notice(f"{file.path}: continued in {one.path} at byte {file.state.offset}")
                file.state.done = False
            file.place(one.path, one.inode, one.status, now)
            file.state.packed_bytes = one.status.st_size if content.compressed else 0
            if isinstance(content, Plain) and not file.state.done and self._open_count() < OPEN_MAX:
                file.adopt(content)
            self._twins.pop(one.inode, None)
            return True
        return False

    def _is_twin(self, one: Seen, content: Content, now: float) -> bool:
        """Is its content that of a file which is still there: a copy or an archive, perhaps in the making?"""
        if not (one.rotated or content.compressed):
            return False
        twin = self._twins.pop(one.inode, None)
        for file in list(self._files.values()):
            if names.family(file.path) == one.family and self._resembles(one, content, file, twin, now):
                return True
        return False

    def _resembles(self, one: Seen, content: Content, file: Followed, twin: Twin | None, now: float) -> bool:
        generation = file.state.generation
        if file.inode is None and (file.content is None or file.packed):
            # Lines that were read between the copy's end and the emptying make the copy shorter than what was read.
            copied = not content.compressed and is_start_of(
                content.descriptor, one.status.st_size, file.state
            )
            if copied:
                self._count_as_read(one, content, now)
            return copied
        if file.denied or (names.looks_rotated(file.path) and not content.compressed):
            return False
        alike = file.intact()
        if twin is None or twin.of != generation or twin.signature != one.signature:
            start = twin.compared if twin is not None and twin.of == generation else 0
            compared = common(one, file, start, thorough=False) if alike else None
            alike = compared is not None
            twin = Twin(generation, one.signature, now, compared or 0)
        elif alike and now - twin.since >= self.grace_s and not file.lag_bytes:
            alike = self._is_copy(one, content, file)
            if alike:
                self._notice(f"{one.path}: the same content as {file.path}; counted once")
                self._count_as_read(one, content, now)
                return True
        if alike:
            self._twins[one.inode] = twin
        elif self._was_emptied(file):
            return self._continue(one, content, now) or self._resembles(one, content, file, None, now)
        return alike

    @staticmethod
    def _is_copy(one: Seen, content: Content, file: Followed) -> bool:
        """After the grace period: a whole archive or a long copy is one for good; a short equal start is no evidence."""
        if not content.compressed:
            return one.status.st_size >= PROOF_BYTES
        held = bool(file.state.offset) and gzip_holds(content.descriptor, one.status.st_size, file.state)
        return held or common(one, file, thorough=True) is not None

    def _count_as_read(self, one: Seen, content: Content, now: float) -> None:
        """All its lines were handed out from another file: remember it as one that is done."""
        self._new(one, now).take_as_read(content, one.status.st_size, unseen=False)

    def _was_emptied(self, file: Followed) -> bool:
        """Whether a file that should resemble another does not because it was emptied meanwhile."""
        if file.content is None or file.intact():
            return False
        self._displace(file)
        return True

    def _new(self, one: Seen, now: float) -> Followed:
        self._generation += 1
        file = Followed(FileState(self._generation, 0, one.path, *one.inode), now)
        file.place(one.path, one.inode, one.status, now)
        self._files[self._generation] = file
        return file

    def _follow(self, one: Seen, content: Content, now: float) -> None:
        """A new file."""
        file = self._new(one, now)
        size = one.status.st_size if self._to_end else 0
        if one.inode in self._denied:
            size = self._denied.pop(one.inode) or 0
            self._notice(f"{one.path}: can be read now")
        if size and (content.compressed or one.inode not in self._writable):
            file.take_as_read(content, size, unseen=True)
        elif size and isinstance(content, Plain):
            file.start_at(content, min(size, one.status.st_size), self._cutter.line_max)
        elif content.compressed:
            file.state.packed_bytes = one.status.st_size
        elif self._open_count() < OPEN_MAX:
            file.adopt(content)

    def _open_count(self) -> int:
        return sum(file.content is not None for file in self._files.values())

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
        for file in sorted((file for file in self._files.values() if not file.state.done), key=self._order):
            try:
                block = self._read_file(file, now)
            except Replaced:
                self._displace(file)
                replaced = self._inotify.moved = True
            except FileNotFoundError:
                continue  # moved since the scan; the next one finds it
            except SourceError as error:
                self._notice(f"{file.path}: {error}; not reading further")
                block = file.end(self._cutter)
                file.close()
                return block, False
            except OSError as error:
                self._deny(file, error)
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
            self._notice(f"{file.path}: gone with {file.lag_bytes} bytes that were not read")
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
                self._notice(f"{file.path}: the compressed data ends early (truncated); read up to there")
                return True
            return False
        return file.retired_at is not None and now - max(file.retired_at, file.grown_at) >= self.grace_s

    def _deny(self, file: Followed, error: Exception) -> None:
        self._notice(
            f"{file.path}: {reason(error)} at byte {file.state.offset}; waiting until it can be read"
        )
        file.close()
        file.denied = True

    def _make_room(self, file: Followed) -> None:
        """Keep the number of descriptors bounded: the file that was read longest ago is opened again when it is its turn."""
        while file.content is None and self._open_count() >= OPEN_MAX:
            opened = [
                other
                for other in self._files.values()
                if other.content is not None and other.inode is not None
            ]
            if not opened:
                return
            min(
                opened, key=lambda other: (other.packed, other.inode in self._writable, other.read_turn)
            ).close()

    def _order(self, file: Followed) -> tuple[bool, int, int]:
        """Rotated ones before those that are written, the longest unmodified first; written ones in turn."""
        if file.inode in self._writable:
            return True, file.read_turn, 0
        return False, file.mtime_ns, names.age(file.path)

    def _judge_end(self, now: float) -> None:
        if (
            self._scanned_at is None
            or any(self._is_pending(file, now) for file in self._files.values())
            or self._twins
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
