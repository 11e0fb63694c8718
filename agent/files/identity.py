"""The identity of a file: what is remembered of the bytes that were read, and how other files are compared with it.

Inode numbers are reused, copies have new ones, `.gz` copies hold other bytes, and two logs may begin alike. So a file is
remembered by a running CRC-32 of **all** that was read of it (7 GB/s, so the cost is negligible; gzip has the same sum in its
trailer), by that sum at lengths that get sparser towards the start, by its first 1 KiB, and by the 64 bytes before the position,
which show at once that a file was emptied and filled again.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Sequence

import msgspec

from elf.agent.files.content import Content, Plain
from elf.errors import SourceError

HEAD_BYTES = 1024
TAIL_BYTES = 64
PROOF_BYTES = 1024
"""An equal start shorter than this is no evidence: logs of quiet servers begin alike."""
MARKS_MAX = 48
READ_BYTES = 256 * 1024


class FileState(msgspec.Struct, array_like=True):
    """The saved state of one file: some 100 bytes, and up to 48 marks while it is read.

    generation, fingerprint: its `FileKey`. path, device, inode: where it was last. base: where reading began (0, or the end at
    that time). offset: how far its lines were returned, in uncompressed bytes. crc: CRC-32 of [base, offset). head_size,
    head_crc: of its first bytes that were read, or seen while none was read. tail_size, tail_hash: of the bytes before offset.
    marks: (length, CRC-32 of [base, length)), ascending. done: it was read to its end and closed. packed_bytes: size on disk if
    it is compressed. carry: the parts of its first line that stand at the end of the file before it. given: bytes at its end that
    are the next file's carry.
    """

    generation: int
    fingerprint: int
    path: str
    device: int
    inode: int
    base: int = 0
    offset: int = 0
    crc: int = 0
    head_size: int = 0
    head_crc: int = 0
    tail_size: int = 0
    tail_hash: int = 0
    marks: list[tuple[int, int]] = []
    done: bool = False
    packed_bytes: int = 0
    carry: bytes = b""
    given: int = 0


def saved_path(path: str) -> str:
    """The path as text for saving: a name on disk may be any bytes."""
    return path if path.isascii() or _is_text(path) else "\0" + os.fsencode(path).hex()


def real_path(saved: str) -> str:
    """The path from its saved text. Raises ValueError if it is none."""
    path = os.fsdecode(bytes.fromhex(saved[1:])) if saved.startswith("\0") else saved
    if "\0" in path:
        raise ValueError(f"no path: {path!r}")
    return path


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def tail_hash(tail: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(tail, digest_size=8).digest(), "little")


class Trace:
    """Checksums over the bytes read of one file, in order. `absorb` is O(length), the rest O(1)."""

    __slots__ = ("base", "crc", "head_crc", "head_size", "offset", "tail")

    def __init__(self, base: int = 0) -> None:
        self.base = self.offset = base
        self.crc = self.head_size = self.head_crc = 0
        self.tail = b""

    def copy(self) -> Trace:
        """Another one that continues from here. Called at each read of a file."""
        other = Trace(self.base)
        other.offset, other.crc, other.tail = self.offset, self.crc, self.tail
        other.head_size, other.head_crc = self.head_size, self.head_crc
        return other

    def absorb(self, data: memoryview) -> None:
        """Add the next bytes after `offset`."""
        self.crc = zlib.crc32(data, self.crc)
        if self.head_size == self.offset < HEAD_BYTES:
            start = data[: HEAD_BYTES - self.head_size]
            self.head_crc = zlib.crc32(start, self.head_crc)
            self.head_size += len(start)
        self.offset += len(data)
        self.tail = (self.tail + bytes(data[-TAIL_BYTES:]))[-TAIL_BYTES:]


def thin(marks: Sequence[tuple[int, int]], offset: int) -> list[tuple[int, int]]:
    """One mark for each power of two of distance from `offset`: near ones dense, far ones sparse."""
    kept: list[tuple[int, int]] = []
    last_class = -1
    for mark in reversed(marks):
        distance_class = (offset - mark[0]).bit_length()
        if distance_class != last_class:
            kept.append(mark)
            last_class = distance_class
    return kept[:MARKS_MAX][::-1]


def same_head(head: bytes, state: FileState) -> bool:
    """Whether the first bytes of a file (`HEAD_BYTES`, or all of them) start like the remembered ones."""
    return len(head) >= state.head_size and zlib.crc32(head[: state.head_size]) == state.head_crc


def tail_of(descriptor: int, state: FileState) -> bytes | None:
    """The bytes before the position if they are the remembered ones, else None (the file was emptied or replaced)."""
    if not state.tail_size:
        return b""
    tail = os.pread(descriptor, state.tail_size, state.offset - state.tail_size)
    return tail if len(tail) == state.tail_size and tail_hash(tail) == state.tail_hash else None


def seek(content: Content, state: FileState) -> bool:
    """Move `content` (just opened) to the position, if all bytes before it are those that were read; else its offset is
    undefined.

    Reads [base, offset), of compressed content everything before it. Raises OSError.
    """
    trace = Trace()
    if isinstance(content, Plain):
        if (
            not same_head(os.pread(content.descriptor, HEAD_BYTES, 0), state)
            or tail_of(content.descriptor, state) is None
        ):
            return False
        content.raw.offset = trace.offset = state.base
    elif not _absorb(content, trace, state.base):
        return False
    trace.crc = 0
    if not _absorb(content, trace, state.offset) or trace.crc != state.crc:
        return False
    if content.compressed and trace.head_size == state.head_size and trace.head_crc != state.head_crc:
        return False
    return (
        isinstance(content, Plain)  # whose tail was read before
        or state.offset - state.base >= state.tail_size
        or tail_hash(trace.tail[-state.tail_size :]) == state.tail_hash
    )


def _absorb(content: Content, trace: Trace, stop: int) -> bool:
    """Read up to the offset `stop`; False if the content ends before, or is corrupt."""
    view = memoryview(bytearray(min(READ_BYTES, max(stop - trace.offset, 1))))
    while trace.offset < stop:
        try:
            got = content.readinto(view[: stop - trace.offset])
        except SourceError:
            return False
        if not got:
            return False
        trace.absorb(view[:got])
    return True


def is_start_of(descriptor: int, size: int, state: FileState) -> bool:
    """Whether an uncompressed file that is shorter than what was read equals the start of what was read.

    Compares up to the longest mark within the file, which must be at least half of it. False unless reading began at byte 0.
    """
    length, crc = max((mark for mark in state.marks if mark[0] <= size), default=(0, 0))
    if state.base or length == 0 or length * 2 < size:
        return False
    view = memoryview(bytearray(READ_BYTES))
    at = found = 0
    while at < length:
        got = os.preadv(descriptor, [view[: length - at]], at)
        if not got:
            return False
        found = zlib.crc32(view[:got], found)
        at += got
    return found == crc


def gzip_holds(descriptor: int, size: int, state: FileState) -> bool:
    """Whether a `.gz` holds exactly what was read, by its trailer (RFC 1952: CRC-32, length modulo 2^32).

    If reading did not begin at the start, only the length is compared. O(1); the caller has compared the head.
    """
    if size < 18:
        return False
    trailer = os.pread(descriptor, 8, size - 8)
    if trailer[4:] != (state.offset & 0xFFFFFFFF).to_bytes(4, "little"):
        return False
    return state.base > 0 or trailer[:4] == state.crc.to_bytes(4, "little")
