"""Blocks for the tokenizer: whole lines, with their file and offsets, and what was skipped.

Cutting does not depend on how the bytes arrive: a line is too long when it has more than `line_max` bytes before its
newline, wherever the reads happened to end. Nor does a block end between the parts of a line that a container's runtime
wrote in parts (parts.h).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec

from elf.agent.files._parts import clean_end

BLOCK_BYTES = 1 << 20
LINE_MAX = 256 * 1024
FINGERPRINT_BYTES = 256
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class FileKey(msgspec.Struct, frozen=True, array_like=True):
    """The identity of one file of a source, for its whole life: through renames, copies and compression.

    generation: counts the files of one source, so it alone is unique there. fingerprint: 64 bits of BLAKE2b over the first
    line (at most its first 256 bytes) that was returned from this file.
    """

    generation: int
    fingerprint: int

    def __str__(self) -> str:
        return f"{self.generation}-{self.fingerprint:016x}"


class Block(msgspec.Struct):
    """Whole lines of one file. Blocks of one file follow one another without a gap: `start` is the `end` of the one before.

    file: the file of the lines. path: where they were read. start, end: byte offsets in the uncompressed file.
    data: the lines, each ended by a newline, except that the last line of a finished file may lack it; a view of a reused
    buffer, **valid until the next block is requested**; empty if only `last` or `too_long` is left to report.
    At most max(block_bytes, line_max + 1) bytes. too_long: lines over `line_max` that were skipped before `data` (their bytes
    are within [start, end)). first: the file starts here. last: the file is complete. size_done: bytes of the file on disk
    that have been read so far (compressed ones for `.gz`, `.zst`), for progress.
    """

    file: FileKey
    path: str
    start: int
    end: int
    data: memoryview | bytes
    too_long: int
    first: bool
    last: bool
    size_done: int = 0

    @property
    def lines(self) -> memoryview | bytes:
        """`data`, without a byte order mark at the file's beginning."""
        marked = self.start == 0 and bytes(self.data[:3]) == BYTE_ORDER_MARK
        return self.data[3:] if marked else self.data


def fingerprint(data: bytes) -> int:
    """64 bits of BLAKE2b of the first line in `data`, or of its first 256 bytes."""
    line = data[:FINGERPRINT_BYTES]
    newline = line.find(b"\n")
    line = line if newline < 0 else line[: newline + 1]
    return int.from_bytes(hashlib.blake2b(line, digest_size=8).digest(), "little")


def whole_lines(buffer: bytearray, start: int, end: int, line_max: int) -> tuple[int, bool]:
    """Where the whole lines of `buffer[start:end]` end, and whether the line that starts there is already too long.

    Searches backwards in steps of `line_max`: O(length of the last lines), not O(end - start).
    """
    at = start
    while end - at > line_max:
        newline = buffer.rfind(b"\n", at, at + line_max + 1)
        if newline < 0:
            return at, True
        at = newline + 1
    newline = buffer.rfind(b"\n", at, end)
    return (at if newline < 0 else newline + 1), False


class Cutter:
    """Bytes of one file in, runs of whole lines out, in one reused buffer of max(block_bytes, line_max + 1) bytes.

    The caller repeats `fill`, then `cut` until it returns nothing; at the end of the file it calls `rest`. The buffer keeps an
    incomplete line until its newline comes, and nothing of a line that is too long: `on_skip` gets the bytes of that.
    `held`: bytes in the buffer that were not returned yet.
    """

    def __init__(
        self,
        block_bytes: int = BLOCK_BYTES,
        line_max: int = LINE_MAX,
        on_skip: Callable[[memoryview], None] | None = None,
    ) -> None:
        self.line_max = line_max
        self.on_skip = on_skip
        self.buffer = bytearray(max(block_bytes, line_max + 1))
        self.view = memoryview(self.buffer)
        self.begin = self.stop = 0
        self.skipping = False
        self.skipped_bytes = 0
        self.too_long = 0

    @property
    def held(self) -> int:
        return self.stop - self.begin

    def fill(self, readinto: Callable[[memoryview], int]) -> int:
        """Append the bytes of one call of `readinto` to those held. Returns their number; 0 at the present end."""
        if self.begin:
            self.view[: self.held] = self.view[self.begin : self.stop]
            self.begin, self.stop = 0, self.held
        if self.stop == len(self.buffer):
            return 0
        got = readinto(self.view[self.stop :])
        self.stop += got
        return got

    def put(self, lines: bytes) -> None:
        """Hold these whole lines before the file's own bytes; at most `line_max` of them, while nothing is held."""
        self.begin, self.stop = 0, len(lines)
        self.view[: self.stop] = lines

    def cut(self) -> memoryview:
        """The next run of whole lines among the bytes held; empty when more bytes are needed (or a line was skipped)."""
        while not self.skipping or self._skip():
            start = self.begin
            end, self.skipping = whole_lines(self.buffer, start, self.stop, self.line_max)
            if not self.skipping:
                end = clean_end(self.buffer, start, end, self.stop, self.line_max)
            self.begin = end
            if self.begin > start or not self.skipping:
                return self.view[start : self.begin]
        return self.view[:0]

    def _skip(self) -> bool:
        """Drop bytes of the line that is too long; True once its end was found."""
        newline = self.buffer.find(b"\n", self.begin, self.stop)
        until = self.stop if newline < 0 else newline + 1
        self._drop(until)
        if newline >= 0:
            self.skipping = False
            self.too_long += 1
        return newline >= 0

    def _drop(self, until: int) -> None:
        self.skipped_bytes += until - self.begin
        if self.on_skip is not None:
            self.on_skip(self.view[self.begin : until])
        self.begin = until

    def rest(self) -> memoryview:
        """At the end of a finished file: its last line without newline, if any."""
        if self.skipping:
            self._drop(self.stop)
            self.skipping = False
            self.too_long += 1
        data = self.view[self.begin : self.stop]
        self.begin = self.stop
        return data

    def take_skipped(self) -> tuple[int, int]:
        """(lines, bytes) skipped since the last call."""
        taken = self.too_long, self.skipped_bytes
        self.too_long = self.skipped_bytes = 0
        return taken

    def clear(self) -> None:
        """Forget what is held."""
        self.begin = self.stop = self.skipped_bytes = self.too_long = 0
        self.skipping = False
