"""One file of a source: how far it was read, where it is now, and reading from there.

A file outlives its path: it is renamed, copied, compressed, emptied under its name. `Followed` is the file in that sense, and
`content` is the descriptor through which it is read now, if it is open. Reading is positional: a block is returned only if the 64
bytes before it are still the ones that were read before.
"""

from __future__ import annotations

import os
import zlib

import msgspec

from elf.agent.files.blocks import Block, Cutter, FileKey, fingerprint
from elf.agent.files.content import Content, Plain, open_content
from elf.agent.files.divided import ends_open, takes
from elf.agent.files.identity import (
    HEAD_BYTES,
    TAIL_BYTES,
    FileState,
    Trace,
    same_head,
    saved_path,
    seek,
    tail_hash,
    tail_of,
    thin,
)

COPY_BYTES = 256 * 1024
Inode = tuple[int, int]
"""(device, inode number)."""


class Replaced(Exception):  # noqa: N818 (an event, not a failure)
    """The bytes before the position are no longer those that were read: the file was emptied, or another took its place."""


class Followed:
    """One file, from when it was first seen until it is read to its end and gone."""

    def __init__(self, state: FileState, now: float) -> None:
        self.state = state
        self.trace: Trace | None = None if state.offset or state.done else Trace()
        self.content: Content | None = None
        self.inode: Inode | None = None  # None: not on disk, as far as known
        self.size = 0  # on disk, when last looked at
        self.mtime_ns = 0
        self.drained: tuple[int, int] | None = None  # (size, mtime) when no whole line was left
        self.drained_s: float | None = None  # when that was found
        self.ends_open = False  # then: what was left are parts of a line
        self.grown_at = now
        self.retired_at: float | None = None  # since when the writer does not open it by name
        self.denied = False
        self.cutter: Cutter | None = None  # for compressed content only
        self.read_turn = 0
        self._forget_skipped()

    def _forget_skipped(self) -> None:
        self.ahead: Trace | None = None  # checksums that include the skipped part of a line that is too long
        self.skipping = False
        self.skipped_bytes = self.skipped_lines = 0

    @property
    def key(self) -> FileKey:
        return FileKey(self.state.generation, self.state.fingerprint)

    @property
    def path(self) -> str:
        return self.state.path

    @property
    def packed(self) -> bool:
        return self.state.packed_bytes > 0

    @property
    def is_lost(self) -> bool:
        """Whether it was not read to its end, and cannot be found."""
        return self.inode is None and self.content is None and not self.state.done

    @property
    def is_unread(self) -> bool:
        """Whether it has changed since it was last read to its end, and can be read."""
        if self.state.done or self.denied or self.is_lost:
            return False
        return self.packed or self.drained != (self.size, self.mtime_ns)

    @property
    def lag_bytes(self) -> int:
        """Bytes not returned yet; for compressed content, bytes on disk."""
        if self.state.done:
            return 0
        if self.packed:
            return max(self.size - (self.content.disk_bytes if self.content else 0), 0)
        return max(self.size - self.state.offset, 0)

    def place(self, path: str, inode: Inode, status: os.stat_result, now: float) -> None:
        """Note that it was found at `path`."""
        if self.inode != inode:
            self.drained = None
        self.state.path, self.inode = path, inode
        self.state.device, self.state.inode = inode
        self.look(status, now)

    def look(self, status: os.stat_result, now: float) -> None:
        if (status.st_size, status.st_mtime_ns) != (self.size, self.mtime_ns):
            self.size, self.mtime_ns = status.st_size, status.st_mtime_ns
            self.grown_at = now

    def displace(self) -> None:
        """Note that it is not on disk any more (its inode is gone, or holds other bytes)."""
        self.close()
        self.inode = self.drained = None
        self.state.device = self.state.inode = 0

    def close(self) -> None:
        if self.content is not None:
            os.close(self.content.descriptor)
        self.content = self.cutter = None
        self._forget_skipped()

    def adopt(self, content: Content) -> None:
        """Continue to read through `content`, which should be this file. Raises Replaced if it is not, OSError."""
        self.close()
        self.content = content
        if isinstance(content, Plain):
            self.state.packed_bytes = 0
            tail = self.confirm(content.descriptor)
            if tail is None:
                raise Replaced
            self._resume(tail)
            if not self.intact():
                raise Replaced
        else:
            self.state.packed_bytes = max(self.size, 1)
            if not seek(content, self.state):
                raise Replaced
            self._resume(b"")

    def open(self) -> None:
        """Open it at its path. Raises Replaced, OSError, SourceError."""
        if self.content is None:
            content = open_content(self.state.path)
            status = os.fstat(content.descriptor)
            if self.inode is not None and (status.st_dev, status.st_ino) != self.inode:
                os.close(content.descriptor)
                # Renamed since it was looked at; the next scan finds it.
                raise FileNotFoundError(self.state.path)
            self.adopt(content)

    def confirm(self, descriptor: int) -> bytes | None:
        """The bytes before the position in an uncompressed file, if they and its start are the remembered ones."""
        head = os.pread(descriptor, HEAD_BYTES, 0)
        return tail_of(descriptor, self.state) if same_head(head, self.state) else None

    def _resume(self, tail: bytes) -> None:
        state = self.state
        trace = self.trace or Trace(state.base)
        if state.offset:
            trace.offset, trace.crc, trace.head_size = state.offset, state.crc, state.head_size
            trace.head_crc, trace.tail = state.head_crc, tail or trace.tail
        self.trace = trace

    def start_at(self, content: Plain, size: int, line_max: int) -> None:
        """Begin after the last whole line in the first `size` bytes, which are skipped."""
        descriptor = content.descriptor
        window = os.pread(descriptor, min(size, line_max + 1), max(size - line_max - 1, 0))
        newline = window.rfind(b"\n")
        self.skipping = newline < 0 and len(window) > line_max
        offset = size if self.skipping else size - len(window) + newline + 1
        trace = Trace(offset)
        head = os.pread(descriptor, min(HEAD_BYTES, offset), 0)
        trace.head_size, trace.head_crc = len(head), zlib.crc32(head)
        trace.tail = os.pread(descriptor, min(TAIL_BYTES, offset), max(offset - TAIL_BYTES, 0))
        self.content, self.trace, self.state.base = content, trace, offset
        self._save(trace)

    def take_as_read(self, content: Content, size: int, *, unseen: bool) -> None:
        """Skip the first `size` bytes: they are from before the start (`unseen`), or were read from another file."""
        view = memoryview(bytearray(COPY_BYTES))
        if not isinstance(content, Plain):
            got = content.readinto(view[:HEAD_BYTES])
            self.state.head_size, self.state.head_crc = got, zlib.crc32(view[:got])
            self.state.packed_bytes = size
        elif unseen:
            self.start_at(content, size, 0)
            self.content, self.skipping = None, False
        else:
            trace = Trace()
            while trace.offset < size and (got := content.readinto(view[: size - trace.offset])):
                trace.absorb(view[:got])
            self._save(trace)
            self.trace = trace
        self.state.done = True

    def _save(self, trace: Trace) -> None:
        state = self.state
        state.offset, state.crc = trace.offset, trace.crc
        state.head_size, state.head_crc = trace.head_size, trace.head_crc
        if trace.tail:
            state.tail_size, state.tail_hash = len(trace.tail), tail_hash(trace.tail)

    def saved(self) -> FileState:
        """A copy of the state, to be saved."""
        return msgspec.structs.replace(
            self.state, path=saved_path(self.state.path), marks=list(self.state.marks)
        )

    def intact(self) -> bool:
        """Whether the open file still has the bytes that were read (or seen, if none was read yet). O(1)."""
        if self.content is None or self.trace is None or self.packed:
            return True
        tail = self.trace.tail
        if self.state.offset == 0:
            start = os.pread(self.content.descriptor, HEAD_BYTES, 0)
            if not same_head(start, self.state):
                return False
            self.state.head_size, self.state.head_crc = len(start), zlib.crc32(start)
        return os.pread(self.content.descriptor, len(tail), self.state.offset - len(tail)) == tail

    def read(self, shared: Cutter, now: float) -> Block | None:
        """The next block, or None if there is none for now. Raises Replaced, OSError, SourceError."""
        self.open()
        assert self.content is not None
        assert self.trace is not None
        if isinstance(self.content, Plain):
            return self._read_plain(self.content, shared, now)
        return self._read_packed(self.content, shared)

    def _read_plain(self, content: Plain, cutter: Cutter, now: float) -> Block | None:
        status = os.fstat(content.descriptor)
        self.look(status, now)
        if status.st_size < self.state.offset:
            raise Replaced
        if self.drained == (status.st_size, status.st_mtime_ns):
            return None
        cutter.clear()
        self._load(cutter)
        content.raw.offset = self.state.offset + self.skipped_bytes
        data = _next_lines(content, cutter)
        status = os.fstat(content.descriptor)
        if not self.intact() or status.st_size < content.raw.offset:
            raise Replaced
        if len(data) == 0 and (cutter.skipping or cutter.too_long == 0):
            self._keep_skipped(cutter)
            self.ends_open = not cutter.skipping and ends_open(cutter.view[cutter.begin : cutter.stop])
            self._drain(status, now)
            return None
        block = self._hand_out(cutter, data)
        if block.end == status.st_size:
            self._drain(status, now)
        return block

    def _drain(self, status: os.stat_result, now: float) -> None:
        """Note that no whole line is left in a file of that status."""
        self.look(status, now)
        self.drained, self.drained_s = (self.size, self.mtime_ns), now

    def _read_packed(self, content: Content, shared: Cutter) -> Block | None:
        if self.cutter is None:
            self.cutter = Cutter(len(shared.buffer), shared.line_max)
            self._load(self.cutter)
        data = self.cutter.cut()
        if len(data) == 0:
            data = _next_lines(content, self.cutter)
        if len(data) == 0:
            return None
        return self._hand_out(self.cutter, data)

    def _load(self, cutter: Cutter) -> None:
        """Resume within a line that is too long."""
        assert self.trace is not None
        if not self.state.offset and self.state.carry:
            cutter.put(self.state.carry)
        self.ahead = self.ahead or self.trace.copy()
        cutter.on_skip = self.ahead.absorb
        cutter.skipping, cutter.skipped_bytes, cutter.too_long = (
            self.skipping,
            self.skipped_bytes,
            self.skipped_lines,
        )

    def _keep_skipped(self, cutter: Cutter) -> None:
        self.skipping, self.skipped_bytes, self.skipped_lines = (
            cutter.skipping,
            cutter.skipped_bytes,
            cutter.too_long,
        )

    def _hand_out(self, cutter: Cutter, data: memoryview, last: bool = False) -> Block:
        trace = self.ahead
        assert trace is not None
        too_long, skipped = cutter.take_skipped()
        start = self.state.offset
        own = data if start else data[len(self.state.carry) :]
        trace.absorb(own)
        if not self.state.fingerprint and len(own):
            self.state.fingerprint = fingerprint(bytes(own[:256]))
        self.trace, self.ends_open = trace, False
        self._save(trace)
        if not self.state.base:
            self.state.marks = thin([*self.state.marks, (trace.offset, trace.crc)], trace.offset)
        self._forget_skipped()
        if self.cutter is not None:
            self._renew_checksums(self.cutter)
        assert trace.offset == start + skipped + len(own)
        disk_bytes = self.content.disk_bytes if self.content and self.packed else trace.offset
        return Block(self.key, self.path, start, trace.offset, data, too_long, start == 0, last, disk_bytes)

    def _renew_checksums(self, cutter: Cutter) -> None:
        """Let the file's own cutter add the bytes that it skips next to a new copy of the checksums."""
        assert self.trace is not None
        self.ahead = self.trace.copy()
        cutter.on_skip = self.ahead.absorb

    def finish(self, shared: Cutter, now: float, heir: Followed | None = None) -> Block:
        """The file is complete: its last line without newline, if any, as a block that is `last`. heir: the file after it, to
        which it gives the parts of a line that does not end in it.

        If whole lines have come since the last read, they are returned instead. Raises Replaced, OSError.
        """
        block = None
        if self.content is not None:
            self.drained = None
            block = self.read(shared, now)
        return block or self.end(shared, heir)

    def end(self, shared: Cutter, heir: Followed | None = None) -> Block:
        """The `last` block, with the bytes held."""
        block = self._last_block(shared)
        if heir is not None and ends_open(block.data) and takes(heir.path, block.data, shared.line_max):
            heir.state.carry, self.state.given, block.data = bytes(block.data), len(block.data), b""
        self.state.done = True
        self.state.marks = []
        return block

    def _last_block(self, shared: Cutter) -> Block:
        cutter = self.cutter or shared
        if self.content is None or self.ahead is None:
            at = self.state.offset
            return Block(self.key, self.path, at, at, b"", 0, at == 0, True, self.size)
        cutter.skipping, cutter.skipped_bytes, cutter.too_long = self._skipped(cutter)
        return self._hand_out(cutter, cutter.rest(), last=True)

    def _skipped(self, cutter: Cutter) -> tuple[bool, int, int]:
        if self.cutter is not None:
            return cutter.skipping, cutter.skipped_bytes, cutter.too_long
        return self.skipping, self.skipped_bytes, self.skipped_lines


def _next_lines(content: Content, cutter: Cutter) -> memoryview:
    """Read until there is a whole line, or to the present end."""
    while True:
        got = cutter.fill(content.readinto)
        data = cutter.cut()
        if len(data) or not got:
            return data
