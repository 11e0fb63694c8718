"""Reads a file again, beside the `Source` that follows it: from any start of a line up to where the source has read.

Blocks are cut in the same way as the source's, so both see the same lines.
"""

from __future__ import annotations

import os

from elf.agent.files.blocks import Block, Cutter
from elf.agent.files.content import Content, Plain, closing, open_content
from elf.agent.files.follow import Followed, Inode
from elf.agent.files.identity import is_start_of, same_head, seek
from elf.agent.files.recognise import head_of
from elf.agent.work.parsers import ParseState
from elf.errors import SourceError

SKIP_BYTES = 256 << 10


class EndsBefore(FileNotFoundError):  # noqa: N818 (an event, not a failure)
    """An archive ends before the requested offset."""


def open_known(file: Followed) -> Content:
    """Open a file that the source knows, at its start. Raises FileNotFoundError if it is not at its path (now), OSError,
    SourceError."""
    if isinstance(file.content, Plain):
        content = open_content(os.dup(file.content.descriptor))
    elif file.inode is None:
        raise FileNotFoundError(file.path)
    else:
        content = open_content(file.path)
    try:
        if not _is_it(file, content):
            raise FileNotFoundError(file.path)
    except BaseException:
        os.close(content.descriptor)
        raise
    return content


def _is_it(file: Followed, content: Content) -> bool:
    """Whether this is still that file: since the last look it may have been renamed or emptied, and its inode number reused."""
    if inode_of(content.descriptor) != _inode(file):
        return False
    if isinstance(content, Plain):
        return file.confirm(content.descriptor) is not None
    return same_head(head_of(content.descriptor), file.state)


def _inode(file: Followed) -> Inode | None:
    return inode_of(file.content.descriptor) if file.content is not None else file.inode


def inode_of(descriptor: int) -> Inode:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def holds(copy: Followed, original: Followed) -> bool:
    """Whether a file holds what was read of another one, or its start, if copied before the last lines came. O(file).

    Raises FileNotFoundError if the copy is not at its path now.
    """
    if not original.state.offset:
        return False
    try:
        with closing(open_known(copy)) as content:
            if seek(content, original.state):
                return True
            return isinstance(content, Plain) and is_start_of(content.descriptor, copy.size, original.state)
    except FileNotFoundError:
        raise
    except (OSError, SourceError):
        return False


class Rescan:
    """Blocks of one file from `offset` on. `state`: the state of parsing at `offset`; the caller sets it.

    Holds one buffer and one descriptor. Raises EndsBefore, OSError, SourceError.
    """

    def __init__(self, file: Followed, offset: int, block_bytes: int, line_max: int) -> None:
        self.file, self.offset = file, offset
        self.state: ParseState | None = None
        self._content = open_known(file)
        self._cutter = Cutter(min(block_bytes, line_max + 1), line_max)
        self._read = 0  # bytes of the content that were read
        self._before = b""  # the byte before `offset`, of compressed content
        try:
            self._skip(offset)
            if not offset:
                self._cutter.put(file.state.carry)
        except BaseException:
            self.close()
            raise

    def _skip(self, offset: int) -> None:
        if isinstance(self._content, Plain):
            self._content.raw.offset = self._read = offset
            return
        view = memoryview(bytearray(SKIP_BYTES))
        while self._read < offset:
            got = self._content.readinto(view[: offset - self._read])
            if not got:
                self._check_whole()
                raise EndsBefore(self.file.path)
            self._read += got
            self._before = bytes(view[got - 1 : got])

    def begins_line(self) -> bool:
        """Whether a line begins at `offset`. Only valid before the first `next`."""
        return (self.tail(1) or self._before) in (b"", b"\n")

    def tail(self, size: int) -> bytes | None:
        """Up to `size` bytes before `offset`; None where that needs a read from the start."""
        if not isinstance(self._content, Plain):
            return None
        start = max(self.offset - size, 0)
        return os.pread(self._content.descriptor, self.offset - start, start)

    def next(self, stop: int | None) -> Block | None:
        """The next lines before `stop`, if any. stop: where a line begins or the file ends; None: its end on disk."""
        if stop is not None and self.offset >= stop:
            return None
        while True:
            data = self._cutter.cut()
            if len(data):
                return self._block(data)
            if stop is not None and self._read >= stop:
                break
            got = self._cutter.fill(lambda view: self._fill(view, stop))
            if not got:
                if stop is None:
                    break
                self._check_whole()
                return None  # shorter than it was: the next scan finds out why
        data = self._cutter.rest()
        block = self._block(data) if len(data) or self._cutter.too_long else None
        if block is not None and self.file.state.given and self.offset == self.file.state.offset:
            block.data = b""  # it is read with the next file
        return block

    def _check_whole(self) -> None:
        if self._content.truncated():
            raise SourceError("the archive is cut short")

    def _fill(self, view: memoryview, stop: int | None) -> int:
        got = self._content.readinto(view if stop is None else view[: stop - self._read])
        self._read += got
        return got

    def _block(self, data: memoryview) -> Block:
        too_long, skipped = self._cutter.take_skipped()
        start, own = self.offset, len(data) - (0 if self.offset else len(self.file.state.carry))
        self.offset = start + skipped + own
        return Block(self.file.key, self.file.path, start, self.offset, data, too_long, start == 0, False)

    def is_true(self) -> bool:
        """Whether the bytes read are, as far as can be detected, those of this file: another may have replaced it meanwhile."""
        return inode_of(self._content.descriptor) == _inode(self.file) and self.file.intact()

    def close(self) -> None:
        os.close(self._content.descriptor)
