"""The uncompressed bytes of a file on disk. Its compression is detected from its first bytes, not from its name."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import zlib
from collections.abc import Iterator
from typing import Any, Protocol

from elf.errors import SourceError

CHUNK_BYTES = 32 * 1024
GZIP_MAGIC = b"\x1f\x8b\x08"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# After a byte 0x50..0x5f: a frame to be skipped, written by parallel compressors.
ZSTD_SKIPPABLE = b"\x2a\x4d\x18"
XZ_MAGIC = b"\xfd7zX"
LZ4_MAGIC = b"\x04\x22\x4d\x18"
BZIP2_MAGIC = b"BZh"  # a digit and one of these follow: of a block, of the end
BZIP2_NEXT = (b"1AY&", b"\x17rE8")
BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")
PIPE_BYTES = 1 << 20


class Content(Protocol):
    """A forward reader of one open file. It owns `descriptor`."""

    descriptor: int
    compressed: bool

    @property
    def disk_bytes(self) -> int:
        """Bytes read from disk so far."""

    def readinto(self, view: memoryview) -> int:
        """Fill `view` from its start; how many bytes came, 0 at the end for now. Raises SourceError if corrupt, OSError."""

    def truncated(self) -> bool:
        """At the end: whether the compressed stream lacks its last part."""


def kind(lead: bytes) -> str:
    """ "gzip", "zstd", "xz", "bzip2", "lz4", "utf16" or "plain", by the first four bytes, or better eight."""
    if lead.startswith(GZIP_MAGIC):
        return "gzip"
    if lead.startswith(ZSTD_MAGIC) or (lead[1:4] == ZSTD_SKIPPABLE and 0x50 <= lead[0] <= 0x5F):
        return "zstd"
    if lead.startswith((XZ_MAGIC, LZ4_MAGIC)):
        return "xz" if lead.startswith(XZ_MAGIC) else "lz4"
    if lead.startswith(BZIP2_MAGIC) and lead[3:4].isdigit():
        return "bzip2" if any(text.startswith(lead[4:8]) for text in BZIP2_NEXT) else "plain"
    return "utf16" if lead.startswith(BYTE_ORDER_MARKS) else "plain"


def is_unsure(lead: bytes, size: int) -> bool:
    """Whether `lead`, the first bytes as they were read, is too short to detect the kind of a file that now has `size` bytes."""
    return not lead or len(lead) < min(8, size) or (len(lead) < 4 and GZIP_MAGIC.startswith(lead[:2]))


class _Raw:
    """Bytes of a descriptor, from an offset of its own (a seekable file) or in sequence."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        mode = os.fstat(descriptor).st_mode
        self.seekable = stat.S_ISREG(mode)
        self.offset = 0
        if stat.S_ISFIFO(mode):
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.lead = os.pread(descriptor, 8, 0) if self.seekable else os.read(descriptor, CHUNK_BYTES)
        self.pending = b"" if self.seekable else self.lead

    def readinto(self, view: memoryview) -> int:
        if self.pending:
            count = min(len(view), len(self.pending))
            view[:count] = self.pending[:count]
            self.pending = self.pending[count:]
        elif self.seekable:
            count = os.preadv(self.descriptor, [view], self.offset)
        else:
            count = os.readv(self.descriptor, [view])
        self.offset += count
        return count

    def chunk(self) -> bytes:
        buffer = bytearray(CHUNK_BYTES)
        return bytes(memoryview(buffer)[: self.readinto(memoryview(buffer))])

    def read(self, _size: int) -> bytes:
        """Called by zstandard for more input."""
        return self.chunk()


class Plain:
    """An uncompressed file; `raw.offset` may be set if the file is seekable."""

    compressed = False

    def __init__(self, raw: _Raw) -> None:
        self.descriptor, self.raw = raw.descriptor, raw

    def readinto(self, view: memoryview) -> int:
        return self.raw.readinto(view)

    @property
    def disk_bytes(self) -> int:
        return self.raw.offset

    def truncated(self) -> bool:
        return False


class Gzip:
    """RFC 1952, several members in a row; zero bytes after a member are padding."""

    compressed = True

    def __init__(self, raw: _Raw) -> None:
        self.descriptor, self.raw = raw.descriptor, raw
        self.member: Any = zlib.decompressobj(wbits=31)
        self.input = b""
        self.between = True  # no byte of the present member was read

    @property
    def disk_bytes(self) -> int:
        return self.raw.offset - len(self.input)

    def readinto(self, view: memoryview) -> int:
        while True:
            if self.member.eof:
                self._next_member()
            if not self.input:
                self.input = self.raw.chunk()
                if self.between:
                    self.input = self.input.lstrip(b"\0")
            if not self.input and self.between:
                return 0
            at_end = not self.input
            self.between = False
            try:
                data = self.member.decompress(self.input, len(view))
            except zlib.error as error:
                raise SourceError(f"corrupt gzip data before byte {self.raw.offset} ({error})") from error
            self.input = self.member.unconsumed_tail
            if data:
                view[: len(data)] = data
                return len(data)
            if at_end and not self.member.eof:
                return 0

    def _next_member(self) -> None:
        self.input = self.member.unused_data.lstrip(b"\0")
        self.member = zlib.decompressobj(wbits=31)
        self.between = True

    def truncated(self) -> bool:
        return not self.between and not self.member.eof


class Zstd:
    """RFC 8878, several frames in a row."""

    compressed = True

    def __init__(self, raw: _Raw) -> None:
        import zstandard

        self.descriptor, self.raw = raw.descriptor, raw
        # The garbage collector cannot see into zstandard's readers: one that refers to `self` would never be freed.
        source: Any = raw  # only `read` is called
        self.reader: Any = zstandard.ZstdDecompressor().stream_reader(
            source, read_size=CHUNK_BYTES, read_across_frames=True, closefd=False
        )
        self.error = zstandard.ZstdError

    @property
    def disk_bytes(self) -> int:
        return self.raw.offset

    def readinto(self, view: memoryview) -> int:
        try:
            return int(self.reader.readinto(view))
        except self.error as error:
            raise SourceError(f"corrupt zstd data before byte {self.raw.offset} ({error})") from error

    def truncated(self) -> bool:
        return self.raw.seekable and not zstd_complete(self.descriptor, os.fstat(self.descriptor).st_size)


def zstd_complete(descriptor: int, size: int) -> bool:
    """Whether the file ends with the end of a frame. Walks block headers only: O(size / 128 KiB) small reads."""
    at = 0
    while at < size:
        head = os.pread(descriptor, 18, at)
        if len(head) >= 8 and kind(head[:4]) == "zstd" and not head.startswith(ZSTD_MAGIC):
            at += 8 + int.from_bytes(head[4:8], "little")
            continue
        if len(head) < 6 or not head.startswith(ZSTD_MAGIC):
            return False
        descriptor_byte = head[4]
        single, checksum = descriptor_byte >> 5 & 1, descriptor_byte >> 2 & 1
        content = (1 if single else 0, 2, 4, 8)[descriptor_byte >> 6]
        at += 5 + (0 if single else 1) + (0, 1, 2, 4)[descriptor_byte & 3] + content
        last = False
        while not last:
            block = os.pread(descriptor, 3, at)
            if len(block) < 3:
                return False
            field = int.from_bytes(block, "little")
            last, raw_or_run, length = bool(field & 1), field >> 1 & 3, field >> 3
            at += 3 + (1 if raw_or_run == 1 else length)
        at += 4 * checksum
    return at == size


def open_content(path: str | int) -> Content:
    """Open a file (or take over a descriptor) and detect its compression. Raises OSError, or SourceError without its package."""
    descriptor = path if isinstance(path, int) else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        raw = _Raw(descriptor)
        compression = kind(raw.lead)
        if compression == "plain":
            return Plain(raw)
        if compression in ("gzip", "zstd"):
            return Gzip(raw) if compression == "gzip" else Zstd(raw)
        from elf.agent.files.packed import Packed, Utf16

        return Utf16(raw) if compression == "utf16" else Packed(raw, compression)
    except BaseException:
        os.close(descriptor)
        raise


@contextlib.contextmanager
def closing(content: Content) -> Iterator[Content]:
    """Close the file at the end of this context."""
    try:
        yield content
    finally:
        os.close(content.descriptor)


def reading(path: str | int) -> contextlib.AbstractContextManager[Content]:
    """Open a file's content at its start, for a context. A descriptor is duplicated. Raises as `open_content`."""
    return closing(open_content(os.dup(path) if isinstance(path, int) else path))


def exactly(content: Content, view: memoryview) -> bytes:
    """As many bytes as fit in `view`, fewer only at the end (or where it is corrupt)."""
    count = 0
    with contextlib.suppress(SourceError):
        while count < len(view) and (got := content.readinto(view[count:])):
            count += got
    return bytes(view[:count])


HOLE_MAX = 64 << 20
"""Bytes of a hole that are read to find the first line behind it, at some GB a second."""


def first_text(content: Content, size: int) -> bytes:
    """The first `size` bytes behind leading NULs: a hole, left where a log was cut while its writer kept its place. Of a hole
    of more than `HOLE_MAX` nothing."""
    skipped = 0
    while True:
        data = exactly(content, memoryview(bytearray(size)))
        text = data.lstrip(b"\0")
        if text or not data or skipped > HOLE_MAX:
            missing = len(data) - len(text)
            return text + (exactly(content, memoryview(bytearray(missing))) if text and missing else b"")
        skipped += len(data)
