"""Standard input as files that an agent follows: its lines are appended to one, which is renamed when it is full, as log rotation
does.

Two full files are kept at most, and no pipe is read further ahead of the agent than one of them; so the disk holds what the agent
may read again, within bounds. What it would have to read again beyond that is a gap, and windows say so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import BinaryIO

from elf.agent.files.blocks import LINE_MAX, Block
from elf.errors import ElfError

SEGMENT_BYTES = 128 << 20
LOOK_S = 0.02
TOO_LONG = b"\xff" * (LINE_MAX + 1) + b"\n"
"""In place of a line that is too long to be held: it is rejected for that reason again."""


class Spool:
    """One pipe. `begin` once; the lines come from a thread."""

    def __init__(self, blocks: Iterator[Block], folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        folder.mkdir()
        self._blocks, self._path, self._segment_bytes = blocks, folder / "input.log", segment_bytes
        self.pattern = f"{self._path}*"
        self._path.touch()
        self._written = 0
        self._is_closed = False
        self._over = asyncio.Event()
        self._read_bytes: Callable[[], int] = lambda: 0
        self._failure: OSError | None = None

    def begin(self, read_bytes: Callable[[], int]) -> None:
        """read_bytes: how many bytes the agent has read."""
        self._read_bytes = read_bytes
        ends = partial(asyncio.get_running_loop().call_soon_threadsafe, self._over.set)
        Thread(target=self._run, args=(ends,), name="elf-spool", daemon=True).start()

    def named(self, notices: Callable[[str], None]) -> Callable[[str], None]:
        """The notices, with `-` for the file, and without those about its rotation, which is our own."""

        def say(text: str) -> None:
            if f"{self._path}.1" not in text:
                notices(text.replace(str(self._path), "-"))

        return say

    async def is_read(self) -> None:
        """Wait until the pipe is over and the agent has read all of it. Raises ElfError if the disk is full."""
        await self._over.wait()
        while self._failure is None and self._read_bytes() < self._written:
            await asyncio.sleep(LOOK_S)
        if self._failure is not None:
            error = self._failure
            raise ElfError(
                f"{self._path.parent.parent}: {error.strerror}; the lines of a pipe are kept there for a while: name "
                "another folder with TMPDIR"
            ) from error

    def close(self) -> None:
        """Write nothing more."""
        self._is_closed = True

    def _run(self, ends: Callable[[], object]) -> None:
        """In the thread. ends: called at the end."""
        try:
            file, size = self._opened(), 0
            for block in self._blocks:
                data = TOO_LONG * block.too_long + bytes(block.data)
                data += b"" if data.endswith(b"\n") or not data else b"\n"
                if size and size + len(data) > self._segment_bytes:
                    file.close()
                    file, size = self._rotated(), 0
                size += len(data)
                file.write(data)
                file.flush()
                self._written += len(data)
                while self._written - self._read_bytes() > self._segment_bytes and not self._is_closed:
                    time.sleep(LOOK_S)
                if self._is_closed:
                    break
            file.close()
        except OSError as error:
            self._failure = error
        with suppress(RuntimeError):  # the loop has ended: nobody waits
            ends()

    def _rotated(self) -> BinaryIO:
        """The next file, empty. The one before the last is read by now, and committed but for what is under way."""
        self._path.rename(f"{self._path}.1")
        return self._opened()

    def _opened(self) -> BinaryIO:
        return self._path.open("ab")
