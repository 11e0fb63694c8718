"""What one task of Spark reads: pieces of log files, cut at the ends of lines.

    files -> `pieces`: parts of plain files, whole files -> `tasks`: as many for each as there is work -> `blocks`

A line belongs to the piece that holds its first byte, so a piece ends with the line that begins in it, wherever its last byte is.
Whole files are those that cannot be entered in their middle: compressed ones and UTF-16, those whose header names the columns of
the lines below it, and all files of a log whose lines a container's runtime may divide.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from elf.agent.files import inputs, names
from elf.agent.files.blocks import Block, Cutter, fingerprint
from elf.agent.files.content import Content, Plain, reading
from elf.agent.formats.fields import Format
from elf.errors import SourceError

PIECE_BYTES_MAX = 128 << 20
"""As Spark's own `spark.sql.files.maxPartitionBytes`: the bytes of a task."""
PIECE_BYTES_MIN = 4 << 20
"""Starting a task costs as much as parsing this."""
BLOCK_BYTES = 4 << 20
"""A block is a batch of some 15,000 rows: with blocks of 1 MiB Spark's Python processes take twice the time."""
SCAN_BYTES = 64 << 10
DIVIDED = ("cri", "docker")
"""Envelopes that may hold a line in parts, in one file or in two."""


class Piece(msgspec.Struct, frozen=True):
    """Lines of the files `paths`, which are read one after the other. start, end: offsets in a plain file, of which the lines are
    read that begin within; end None: all. head: the fingerprint of that file's first line."""

    paths: tuple[str, ...]
    formats: tuple[Format, ...]
    size: int
    start: int = 0
    end: int | None = None
    head: int = 0


def piece_bytes(total: int, parallel: int) -> int:
    """The size of pieces of `total` bytes that keeps `parallel` tasks busy."""
    return max(PIECE_BYTES_MIN, min(PIECE_BYTES_MAX, -(-total // max(1, parallel))))


def pieces(formats: Mapping[str, Format], size: int) -> Iterator[Piece]:
    """Pieces of at most `size` bytes, as far as files can be cut. formats: of each file, by its path. Opens every file once."""
    together: dict[tuple[str, str], list[str]] = {}
    for path, format in formats.items():
        if format.envelope in DIVIDED:
            together.setdefault((os.path.dirname(path), names.family(path)), []).append(path)
            continue
        total = os.stat(path).st_size
        with reading(path) as content:
            is_plain = isinstance(content, Plain) and not format.header
            head = _head(content) if is_plain else 0
        if not is_plain:
            yield Piece((path,), (format,), total)
            continue
        for start in range(0, total, size):
            yield Piece((path,), (format,), size, start, min(total, start + size), head)
    for paths in together.values():
        total = sum(os.stat(path).st_size for path in paths)
        yield Piece(tuple(paths), tuple(formats[path] for path in paths), total)


def tasks(found: Sequence[Piece], size: int) -> list[list[Piece]]:
    """The pieces, small ones together, in tasks of about `size` bytes."""
    filled: list[list[Piece]] = []
    room = 0
    for piece in found:
        cost = piece.size + PIECE_BYTES_MIN // 16  # opening a file
        if cost > room or not filled:
            filled.append([])
            room = size
        filled[-1].append(piece)
        room -= cost
    return filled


def blocks(piece: Piece) -> Iterator[Block]:
    """The lines of a piece, as `elf.agent.files.inputs.read` gives those of files. Raises SourceError if some cannot be read:
    then a task fails, since rows that are missing would not be seen."""

    def lost(what: str) -> None:
        raise SourceError(what)

    try:
        if piece.end is None:
            yield from inputs.read(
                [Path(path) for path in piece.paths],
                block_bytes=BLOCK_BYTES,
                notices=lambda _: None,
                lost=lost,
            )
            return
        path = piece.paths[0]
        with reading(path) as content:
            if not isinstance(content, Plain) or _head(content) != piece.head:
                lost(
                    f"{path}: another file than when the query was planned; was it rotated? read the logs again"
                )
            begin, end = (_line_start(content.descriptor, at) for at in (piece.start, piece.end))
            part = _Part(content.descriptor, begin, end)
            for block in inputs.read_file(part, Cutter(BLOCK_BYTES), 1, path, lost):
                yield msgspec.structs.replace(block, start=block.start + begin, end=block.end + begin)
    except OSError as error:
        raise SourceError(f"{error.filename or piece.paths[0]}: {error.strerror or error}") from error


class _Part:
    """The bytes [at, end) of a plain file, as `Content`."""

    compressed = False

    def __init__(self, descriptor: int, at: int, end: int) -> None:
        self.descriptor, self.at, self.end = descriptor, at, end

    @property
    def disk_bytes(self) -> int:
        return self.at

    def readinto(self, view: memoryview) -> int:
        count = os.preadv(self.descriptor, [view[: self.end - self.at]], self.at)
        self.at += count
        return count

    def truncated(self) -> bool:
        return False


def _head(content: Content) -> int:
    """The fingerprint of the first line, complete or not; of one that grows it is another, so only the complete one counts."""
    first = os.pread(content.descriptor, 256, 0)
    return fingerprint(first) if len(first) == 256 or b"\n" in first else 0


def _line_start(descriptor: int, at: int) -> int:
    """Where the first line begins that begins at `at` or later; the size of the file if there is none."""
    if at == 0:
        return 0
    at -= 1  # the byte before a line's first is a newline
    while data := os.pread(descriptor, SCAN_BYTES, at):
        newline = data.find(b"\n")
        if newline >= 0:
            return at + newline + 1
        at += len(data)
    return at
