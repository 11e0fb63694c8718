"""The files in a source's folders at the agent's very first start: with `start = "end"` no job counts their lines.

A job may begin much later, and the source is not read before. So the offset where reading begins is noted at once, and used at
the first read; until then no file is held open, and each may be renamed, emptied or replaced.

If the mesh knows an earlier life of the agent, its disk was lost, and this was not its first start: see
`MeshSource.state_was_lost` and `LogFiles.counts_all`.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from elf.agent.files.identity import HEAD_BYTES
from elf.agent.files.listing import Listing

FILES_MAX = 10_000
"""Files noted at most, the newest ones; 50 bytes each."""


class FirstSeen(msgspec.Struct, array_like=True, frozen=True):
    """A file at that time: its inode, its size, and a checksum of its first bytes on disk."""

    device: int
    inode: int
    size: Annotated[int, Meta(ge=1, lt=1 << 62)]
    head_size: Annotated[int, Meta(ge=0, le=HEAD_BYTES)] = 0
    head_crc: int = 0

    def begins(self, path: str) -> bool:
        """Whether the file at `path` has the same first bytes."""
        return zlib.crc32(_head(path, self.head_size)) == self.head_crc


def first_seen(patterns: Sequence[str]) -> list[FirstSeen]:
    """All files that are not empty now. O(files in the folders)."""
    found = []
    for one in Listing(patterns, lambda notice: None).look(())[-FILES_MAX:]:
        size = one.status.st_size
        if size:
            head = _head(one.path, min(size, HEAD_BYTES))
            found.append(FirstSeen(*one.inode, size, len(head), zlib.crc32(head)))
    return found


def _head(path: str, size: int) -> bytes:
    """The first bytes; b"" for a file that cannot be read, which is then recognised by its inode alone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, size, 0)
    finally:
        os.close(descriptor)
