"""Decides by content whether an unknown file on disk is a known one; `identity.py` describes what is remembered of content."""

from __future__ import annotations

import os
from enum import Enum

from elf.agent.files.content import Content, Plain, exactly, reading
from elf.agent.files.follow import Followed, Inode
from elf.agent.files.identity import HEAD_BYTES, PROOF_BYTES, gzip_holds, same_head, seek
from elf.agent.files.listing import Seen

COMPARE_BYTES = 256 * 1024


def head_of(path: str | int) -> bytes:
    """The first `HEAD_BYTES` uncompressed bytes. Raises OSError, SourceError."""
    with reading(path) as content:
        return exactly(content, memoryview(bytearray(HEAD_BYTES)))


def is_inode(descriptor: int, inode: Inode) -> bool:
    """Whether an open file has that inode. A path may lead to another file by the time it is opened."""
    status = os.fstat(descriptor)
    return (status.st_dev, status.st_ino) == inode


class Continues(Enum):
    NO = "no"
    MORE = "more"  # the same file, and there may be more to read
    READ = "read"  # the same file, read to its end


def continues(one: Seen, content: Content, file: Followed) -> Continues:
    """Whether the unknown file `one` is `file`, which is not on disk elsewhere: whether it has all that was read of it.

    For a live file of that name, in any folder, an equal start shorter than 1 KiB is no evidence; for a rotated one of the same
    family it is, since that can only be a copy or an archive. Raises OSError.
    """
    state, size = file.state, one.status.st_size
    is_named_so = os.path.basename(one.path) == os.path.basename(file.path)
    if not (one.rotated or content.compressed or (is_named_so and state.offset >= PROOF_BYTES)):
        return Continues.NO
    if not content.compressed and size < state.offset:
        return Continues.NO
    if not same_head(head_of(content.descriptor), state):
        return Continues.NO
    if content.compressed and state.done and state.offset and gzip_holds(content.descriptor, size, state):
        return Continues.READ
    if not (state.offset or state.done):
        return _begins_alike(content, file)
    # An archive that was skipped because it existed before the first start.
    if state.done and not state.offset:
        return Continues.READ if content.compressed and state.packed_bytes == size else Continues.NO
    with reading(content.descriptor) as fresh:
        if not seek(fresh, state):
            return Continues.NO
        more = not state.done or bool(exactly(fresh, memoryview(bytearray(1))))
        return Continues.MORE if more else Continues.READ


def _begins_alike(content: Content, file: Followed) -> Continues:
    """The answer for a file of which only the start was seen before it was emptied."""
    head = head_of(content.descriptor)
    return Continues.MORE if file.state.head_size and same_head(head, file.state) else Continues.NO


def is_rest_of(descriptor: int, size: int, file: Followed) -> bool:
    """Whether an uncompressed file of `size` bytes is what a power failure left of `file`, which was longer and is lost.

    The positions were on disk and the last lines were not, so all of the rest was read before. Decides by an equal start of
    1 KiB. Raises OSError, SourceError.
    """
    state = file.state
    if not (file.is_lost and state.offset > size >= state.head_size >= PROOF_BYTES):
        return False
    return same_head(head_of(descriptor), state)


def common(content: Content, file: Followed, start: int = 0, *, thorough: bool) -> int | None:
    """The uncompressed length of `content` if it equals the start (or all) of `file`, which is on disk too; else None.

    start: the number of bytes known to be equal (used if both are uncompressed). thorough: compare compressed content to its
    end, not only the first 1 KiB. Reads up to the first difference. Raises OSError; FileNotFoundError if the file was just moved.
    """
    opened = file.content.descriptor if file.content is not None else file.path
    with reading(content.descriptor) as mine, reading(opened) as theirs:
        if file.inode is not None and not is_inode(theirs.descriptor, file.inode):
            raise FileNotFoundError(file.path)
        length = 0
        if isinstance(mine, Plain) and isinstance(theirs, Plain):
            length = mine.raw.offset = theirs.raw.offset = start
            thorough = True
        view = memoryview(bytearray(COMPARE_BYTES if thorough else HEAD_BYTES))
        while True:
            data, other = exactly(mine, view), exactly(theirs, view)
            if not other.startswith(data):
                return None
            length += len(data)
            if len(data) < len(view) or not thorough:
                return length
