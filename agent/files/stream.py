"""A pipe on standard input: its lines are taken as they come, until it ends."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator

from elf.agent.files.blocks import Block, Cutter, FileKey, fingerprint
from elf.agent.files.content import Content, open_content
from elf.agent.files.inputs import Lost, fill
from elf.errors import SourceError

NAME = "-"
HEAD_BYTES = 64 << 10
HEAD_S = 0.2
"""The head, from which a format is detected, is gathered for so long from the first line on."""


class Stream:
    """The lines of a pipe, a socket or a terminal.

    A read never waits for more bytes, except within compressed ones. lost: called with bytes that cannot be read.
    """

    name = NAME

    def __init__(self, descriptor: int, lost: Lost) -> None:
        self.ended = self.is_over = False  # no more bytes will come; the last block was returned
        self._descriptor, self._lost = descriptor, lost
        self._content: Content | None = None
        self._cutter = Cutter()
        self._key, self._start = FileKey(1, 0), 0
        self._head = b""
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def gather_head(self) -> bytes:
        """Wait for the first lines, and return them: at most 64 KiB."""
        until: float | None = None
        held = self._cutter
        while held.held < HEAD_BYTES and not self.ended:
            if until is None and held.buffer.find(b"\n", 0, held.stop) >= 0:
                until = time.monotonic() + HEAD_S
            if not self._poll.poll(None if until is None else max(0.0, until - time.monotonic()) * 1e3):
                break
            self.ended = not self._fill()
        head = bytes(held.view[: min(held.stop, HEAD_BYTES)])
        self._head = head if self.ended else head[: head.rfind(b"\n") + 1]
        return self._head

    @property
    def has_whole_head(self) -> bool:
        """Whether no more lines will come to the head."""
        return self.ended or self._cutter.held >= HEAD_BYTES

    def head(self, key: FileKey | None = None) -> bytes:
        return self._head

    def blocks(self) -> Iterator[Block]:
        """All lines to the end, as they come. A block is valid until the next one is read."""
        while not self.is_over:
            if (block := self.read()) is not None:
                yield block
            else:
                self._poll.poll()

    def read(self) -> Block | None:
        """The next whole lines; None while there are none, and after the last block."""
        if self.is_over:
            return None
        data = self._cutter.cut()
        while not data and not self.ended:
            if not self._is_readable():
                return None
            self.ended = not self._fill()
            data = self._cutter.cut()
        self.is_over = not data
        return self._block(data if data else self._cutter.rest())

    def _is_readable(self) -> bool:
        return (self._content is not None and self._content.compressed) or bool(self._poll.poll(0))

    def _fill(self) -> bool:
        try:
            if self._content is None:
                self._content = open_content(os.dup(self._descriptor))
            return fill(self._content, self._cutter, NAME, self._lost)
        except SourceError as error:
            self._lost(f"{NAME}: {error}")
            return False

    def _block(self, data: memoryview) -> Block:
        too_long, skipped = self._cutter.take_skipped()
        start, self._start = self._start, self._start + skipped + len(data)
        if start == 0:
            self._key = FileKey(1, fingerprint(bytes(data[:256])))
        if start <= len(self._head) < HEAD_BYTES:
            self._head += bytes(data[len(self._head) - start : HEAD_BYTES - start])
        done = self._content.disk_bytes if self._content is not None else 0
        return Block(self._key, NAME, start, self._start, data, too_long, start == 0, self.is_over, done)

    def close(self) -> None:
        if self._content is not None:
            os.close(self._content.descriptor)
            self._content = None
