"""Identifies files for `Source.scan`: compares the files in the folders with the known ones.

It first finds the present paths of the known files, then identifies the unknown ones. `agent/files/source.py` describes the order
and the reasons.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import msgspec

from elf.agent.files import names
from elf.agent.files.content import Content, Plain, is_unsure, open_content, reading
from elf.agent.files.follow import Followed, Inode, Replaced
from elf.agent.files.identity import PROOF_BYTES, gzip_holds, is_start_of, same_head
from elf.agent.files.inotify import Inotify
from elf.agent.files.known import Known
from elf.agent.files.listing import Listing, Seen, reason, writable
from elf.agent.files.packed import Utf16
from elf.agent.files.recognise import Continues, common, continues, head_of, is_inode, is_rest_of
from elf.errors import SourceError

GLANCE_S = 5.0


class Twin(msgspec.Struct):
    """An unknown file whose content so far equals that of a followed one."""

    of: int  # generation
    signature: tuple[int, int]
    since: float  # when it last changed
    compared: int = 0  # uncompressed bytes that were found equal


class Finder:
    """Finds the files of the patterns and keeps `known` up to date. to_end: files that exist at the first look begin at their
    end; resuming: positions were saved by an earlier run."""

    def __init__(
        self,
        known: Known,
        patterns: Sequence[str],
        *,
        to_end: bool,
        resuming: bool,
        grace_s: float,
        line_max: int,
    ) -> None:
        self.known, self.grace_s, self._line_max = known, grace_s, line_max
        self.inotify = Inotify()
        self.twins: dict[Inode, Twin] = {}
        self._to_end, self._resuming = to_end, resuming  # until the first look
        self._also_wanted: set[Inode] = set()  # files that appeared and were rotated between looks
        # Rotated files, to be followed if no rotation is in progress in their family.
        self._new: list[Seen] = []
        self._denied: dict[Inode, int | None] = {}  # where to begin once it can be read; None: at its start
        self._claim: Callable[[Sequence[Seen]], set[Inode]] | None = None
        # Generations of files in folders that no pattern names any more, at the first look.
        self._left: set[int] = set()
        self._left_inodes: set[Inode] = set()  # where those were that are followed in another folder since
        self._listing = Listing(patterns, known.notice)
        self._looked_at = 0.0

    def scan(self, now: float) -> None:
        """See `Source.scan`."""
        self.inotify.drain()
        if not self._is_unchanged(now):
            self._look(now)

    def claim(self, claim: Callable[[Sequence[Seen]], set[Inode]] | None) -> None:
        """From the next scan on, pass the unknown files of the families that are not empty to `claim`, oldest first.

        The scan follows those that it returns, even if no pattern matches them, and compares them with the read files that are
        gone from disk. None ends this.
        """
        self._claim = claim
        self.inotify.moved |= claim is not None

    def _is_unchanged(self, now: float) -> bool:
        """Whether nothing has changed since the last look, except that files grew."""
        if self.inotify.moved or self.inotify.failed or self.inotify.fileno() < 0:
            return False
        if self._listing.is_deep or self.twins or self._denied:
            return False
        active = [file for file in self.known.files.values() if not file.state.done]
        written, self.inotify.written = self.inotify.written, set()
        if now - self._looked_at >= GLANCE_S or not written <= {
            os.path.basename(file.path) for file in active
        }:
            return False
        return all(file.content is not None and file.inode is not None and file.intact() for file in active)

    def _look(self, now: float) -> None:
        self.inotify.moved = False
        seen = self._listing.look([file.path for file in self.known.files.values()])
        self.inotify.watch(self._listing.folders)
        here = {one.inode: one for one in seen}
        self.known.writable = writable(seen)
        for file in list(self.known.files.values()):
            self._locate(file, here, now)
        self._locate_on_new_device(seen, now)
        self._left = self._left_behind() if self._resuming else set()
        self._resolve_unknown(seen, now)
        if any(file.is_lost for file in self.known.files.values()):
            # One of them was emptied just now: its inode counts as an unknown file from then on.
            self._resolve_unknown(seen, now)
        self.twins = {inode: twin for inode, twin in self.twins.items() if inode in here}
        self._also_wanted &= here.keys()
        self._denied = {inode: begin for inode, begin in self._denied.items() if inode in here}
        self.known.retire(now)
        self.known.forget_gone()
        self._to_end, self._resuming = False, self._resuming and self.inotify.moved
        self._looked_at = now

    def _locate(self, file: Followed, here: dict[Inode, Seen], now: float) -> None:
        """Find a known file, and check that it is still the one that was read."""
        inode = file.inode or (file.state.device, file.state.inode)
        one = here.get(inode) if inode[1] else None
        if one is not None:
            if not self._is_same(file, one):
                self.known.displace(file)
            else:
                self._place(file, one, now)
        elif file.content is None:
            file.inode = None
            if not file.state.offset:
                # The number may be reused, and nothing was read to compare another file with.
                file.state.inode = 0
        elif not file.intact():
            self.known.displace(file)
        else:
            if file.inode is not None and not os.fstat(file.content.descriptor).st_nlink:
                self.known.notice(f"{file.path}: deleted; reading what is left of it")
            file.inode = None
            file.look(os.fstat(file.content.descriptor), now)

    def _place(self, file: Followed, one: Seen, now: float) -> None:
        # Archives are renamed at each rotation: not worth a notice once they are read to their end.
        if file.inode is not None and one.path != file.path and not file.state.done:
            self.known.notice(f"{file.path}: renamed to {one.path}")
        file.place(one.path, one.inode, one.status, now)
        if file.state.done and not file.packed and file.size > file.state.offset:
            file.state.done = False
            file.retired_at = None
        if file.denied and os.access(file.path, os.R_OK, effective_ids=True):
            self.known.notice(f"{file.path}: can be read now")
            file.denied = False
        if not (file.state.done or file.packed or file.denied or file.content) and self.known.has_room():
            self._open_early(file)

    def _open_early(self, file: Followed) -> None:
        """Open it before there is anything to read: an open file keeps its inode number, and can be read after it is deleted."""
        try:
            file.open()
        except Replaced:
            self.known.displace(file)
        except FileNotFoundError:
            pass  # renamed just now
        except (OSError, SourceError) as error:
            self.known.deny(file, error)

    def _is_same(self, file: Followed, one: Seen) -> bool:
        if file.content is not None:
            return file.intact()
        if file.inode is not None and (file.size, file.mtime_ns) == one.signature:
            return True
        if not file.packed and one.status.st_size < file.state.offset:
            return False
        try:
            with reading(one.path) as content:
                if not is_inode(content.descriptor, one.inode):
                    return True  # moved since the look; the next one finds it
                if isinstance(content, Plain):
                    return not file.packed and file.confirm(content.descriptor) is not None
                return file.packed and same_head(head_of(content.descriptor), file.state)
        except (OSError, SourceError):
            return True  # no evidence against it; reading will show

    def _locate_on_new_device(self, seen: list[Seen], now: float) -> None:
        """Device numbers may change when a machine starts: the same inode number at the same path, confirmed by content."""
        lost = {
            (file.path, file.state.inode): file
            for file in self.known.files.values()
            if file.inode is None and not file.content
        }
        taken = {file.inode for file in self.known.files.values()}
        for one in seen if lost else ():
            file = lost.get((one.path, one.status.st_ino))
            if file is not None and one.inode not in taken and self._is_same(file, one):
                self._place(file, one, now)

    def _left_behind(self) -> set[int]:
        """The generations of known files in folders that no pattern names. The logs may have been copied to another folder, or
        the machine with them, and the patterns changed: then the copies continue them."""
        there = (file for file in self.known.files.values() if file.inode is not None)
        return {file.state.generation for file in there if not self._is_named(file.path)}

    def _is_named(self, path: str) -> bool:
        return self._listing.is_named(os.path.dirname(path))

    # Unknown files.

    def _resolve_unknown(self, seen: list[Seen], now: float) -> None:
        """Identify all unknown files: plain names first, since a rotated name may be a copy in progress of one of them.

        After a restart the oldest first: files younger than one that was read were logged while the agent was down, and are read
        under any name. Last those of folders that no pattern names: they may continue a known file, but none is new.
        """
        chains: set[str] = set()
        others: list[Seen] = []
        known = {file.inode for file in self.known.files.values()}
        for one in seen if self._resuming else sorted(seen, key=lambda one: one.rotated):
            if one.inode in self._left_inodes:
                continue
            if one.inode not in known and not self._is_named(one.path):
                others.append(one)
            elif one.inode not in known:
                if one.family in chains:
                    self._also_wanted.add(one.inode)
                one.wanted |= one.inode in self._also_wanted
                self._resolve(one, now)
                known = {file.inode for file in self.known.files.values()}
            if self._resuming and (one.inode in known or one in self._new):
                chains.add(one.family)
        for one in others:
            self._resolve(one, now)
        self._resolve_claimed(seen, now)
        self._resolve_new(seen, now)

    def _resolve_claimed(self, seen: list[Seen], now: float) -> None:
        if self._claim is None:
            return
        known = {file.inode for file in self.known.files.values()} | self._left_inodes
        unknown = [one for one in seen if one.inode not in known and one.status.st_size]
        claimed = self._claim(unknown)
        for one in unknown:
            if one.inode in claimed and not one.wanted:
                one.wanted = True
                self._also_wanted.add(one.inode)
                self._resolve(one, now)

    def _resolve(self, one: Seen, now: float, *, is_at_rest: bool = False) -> None:
        """Identify a file with an unknown inode: one that was read elsewhere, a copy in progress, or a new one."""
        if one.status.st_size == 0 and one.rotated:
            return  # perhaps a copy that has just begun
        if not (
            one.wanted
            or self._resuming
            or self._claim
            or any(file.is_lost for file in self.known.files.values())
        ):
            return
        content = self._try_open(one)
        if content is None:
            return
        try:
            known = self._continue(one, content, now) or not one.wanted or self._is_twin(one, content, now)
            if not known and one.rotated and not (is_at_rest or self._to_end):
                self._new.append(one)
            elif not known:
                self._follow(one, content, now)
        except Replaced:
            for file in self.known.files.values():
                if file.content is content:
                    self.known.displace(file)
            return
        except FileNotFoundError:
            # The file it was compared with was moved just now: the next look decides.
            self.inotify.moved = True
        except (OSError, SourceError) as error:
            self.known.notice(
                f"{one.path}: cannot be compared with the known files ({reason(error)}); the next scan compares it again; "
                "if this notice repeats, check whether the file can be read"
            )
        if all(file.content is not content for file in self.known.files.values()):
            os.close(content.descriptor)

    def _resolve_new(self, seen: list[Seen], now: float) -> None:
        """Follow rotated files that resemble no known one, unless a rotation is in progress in their family.

        During a rotation the files they were compared with may have been copied, emptied or renamed: then the next look decides.
        """
        new, self._new = self._new, []
        if not new:
            return
        names_then = _names(seen)
        names_now = _names(self._listing.look([file.path for file in self.known.files.values()]))
        for one in new:
            if names_now.get(one.family) == names_then[one.family]:
                self._resolve(one, now, is_at_rest=True)

    def _try_open(self, one: Seen) -> Content | None:
        try:
            content = _opened(one.path)
        except FileNotFoundError:
            return None
        except (OSError, SourceError) as error:
            if one.wanted and one.inode not in self._denied:
                self._denied[one.inode] = one.status.st_size if self._to_end else None
                self.known.notice(f"{one.path}: {reason(error)}; waiting until it can be read")
            return None
        is_it = is_inode(content.descriptor, one.inode)
        one.status = os.fstat(content.descriptor)
        # An archive in progress may have been opened before its first bytes were written.
        unsure = (
            one.rotated and isinstance(content, Plain) and is_unsure(content.raw.lead, one.status.st_size)
        )
        if not is_it or unsure:
            os.close(content.descriptor)
            return None
        return content

    def _continue(self, one: Seen, content: Content, now: float) -> bool:
        """If it is a file that was read before and is not on disk elsewhere, resume in it."""
        for file in self.known.files.values():
            is_left = one.wanted and file.state.generation in self._left
            if names.family(file.path) != one.family:
                continue
            if not is_left and (file.inode is not None or file.content is not None):
                continue
            if file.state.done and not (one.wanted or self._resuming or self._claim):
                continue
            answer = continues(one, content, file)
            if answer is Continues.NO:
                continue
            if is_left and file.inode is not None:
                self._left.discard(file.state.generation)
                self._left_inodes.add(file.inode)
                file.close()
            if answer is Continues.MORE:
                self.known.notice(f"{file.path}: continued in {one.path} at byte {file.state.offset}")
                file.state.done = False
            file.place(one.path, one.inode, one.status, now)
            file.state.packed_bytes = one.status.st_size if content.compressed else 0
            if isinstance(content, Plain) and not file.state.done and self.known.has_room():
                file.adopt(content)
            self.twins.pop(one.inode, None)
            return True
        return False

    def _is_twin(self, one: Seen, content: Content, now: float) -> bool:
        """Whether its content equals that of an existing file: a copy or an archive, perhaps in progress."""
        if not (one.rotated or content.compressed):
            return False
        twin = self.twins.pop(one.inode, None)
        for file in list(self.known.files.values()):
            if names.family(file.path) == one.family and self._resembles(one, content, file, twin, now):
                return True
        return False

    def _resembles(self, one: Seen, content: Content, file: Followed, twin: Twin | None, now: float) -> bool:
        generation = file.state.generation
        if file.inode is None and (file.content is None or file.packed):
            # Lines read between the copying and the emptying make the copy shorter than what was read.
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
            compared = common(content, file, start, thorough=False) if alike else None
            alike = compared is not None
            twin = Twin(generation, one.signature, now, compared or 0)
        elif alike and now - twin.since >= self.grace_s and not file.lag_bytes:
            alike = self._is_copy(one, content, file)
            if alike:
                self.known.notice(f"{one.path}: the same content as {file.path}; counted once")
                self._count_as_read(one, content, now)
                return True
        if alike:
            self.twins[one.inode] = twin
        elif self._was_emptied(file):
            # A copy is whole when the original is emptied, not before.
            one.status = os.fstat(content.descriptor)
            return self._continue(one, content, now) or self._resembles(one, content, file, None, now)
        return alike

    @staticmethod
    def _is_copy(one: Seen, content: Content, file: Followed) -> bool:
        """Decide after the grace period: a whole archive or a long copy is certain; a short equal start is no evidence."""
        if not content.compressed:
            return one.status.st_size >= PROOF_BYTES
        held = bool(file.state.offset) and gzip_holds(content.descriptor, one.status.st_size, file.state)
        return held or common(content, file, thorough=True) is not None

    def _count_as_read(self, one: Seen, content: Content, now: float) -> None:
        """All its lines were read from another file: note it as complete."""
        self.known.new(one, now).take_as_read(content, one.status.st_size, unseen=False)

    def _was_emptied(self, file: Followed) -> bool:
        """Whether `file` was emptied since it was read, which explains why the other file differs from it."""
        if file.content is None or file.intact():
            return False
        self.known.displace(file)
        return True

    def _follow(self, one: Seen, content: Content, now: float) -> None:
        """Follow a new file, or the rest of one that was read."""
        size = one.status.st_size
        if isinstance(content, Plain):
            for longer in self.known.files.values():
                if names.family(longer.path) == one.family and is_rest_of(content.descriptor, size, longer):
                    self._follow_rest(one, content, longer, now)
                    return
        file = self.known.new(one, now)
        size = size if self._to_end else 0
        if one.inode in self._denied:
            size = self._denied.pop(one.inode) or 0
            self.known.notice(f"{one.path}: can be read now")
        if size and (content.compressed or one.inode not in self.known.writable):
            file.take_as_read(content, size, unseen=True)
        elif size and isinstance(content, Plain):
            file.start_at(content, min(size, one.status.st_size), self._line_max)
        elif content.compressed:
            file.state.packed_bytes = one.status.st_size
        elif self.known.has_room():
            file.adopt(content)

    def _follow_rest(self, one: Seen, content: Plain, longer: Followed, now: float) -> None:
        size = one.status.st_size
        self.known.notice(
            f"{one.path}: {longer.state.offset} bytes of it were read, and it now has only the first {size} of them: it lost its "
            "end, as after a power failure; lines are read from its present end on"
        )
        self._denied.pop(one.inode, None)
        self.known.new(one, now).start_at(content, size, self._line_max)


def _opened(path: str) -> Content:
    """As `open_content`. Raises SourceError for UTF-16, too: what follows half a character is no place to resume at."""
    content = open_content(path)
    if not isinstance(content, Utf16):
        return content
    os.close(content.descriptor)
    raise SourceError(
        "text in UTF-16 is not followed, only read whole (elf run without --follow); have it written as UTF-8"
    )


def _names(seen: Sequence[Seen]) -> dict[str, set[tuple[str, Inode]]]:
    """The names of each family, with their inodes."""
    found: dict[str, set[tuple[str, Inode]]] = {}
    for one in seen:
        found.setdefault(one.family, set()).add((one.path, one.inode))
    return found
