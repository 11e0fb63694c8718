"""Windows as lines of files: one JSON object a line, in a file for each job and day (UTC) on which they were written.

    FOLDER/JOB.2026-11-24.jsonl          FOLDER/JOB.alert.2026-11-24.jsonl, of changes of alerts

A line is on the disk before it is acknowledged. What a crash or a full disk left of a line is removed before the next one is
written, so a file has whole lines only. Nothing here removes a file: `find FOLDER -mtime +30 -delete` does.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from urllib.parse import quote

from elf.sinks.delivery.contract import DeliveryError, WindowMessage

TAIL_BYTES = 64 << 10


def _today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


class JsonlCarrier:
    """Appends to files. See `Carrier`. day: today, as in the names of files."""

    def __init__(self, folder: Path, day: Callable[[], str] = _today) -> None:
        self._folder, self._day = folder, day
        self._turn = asyncio.Lock()  # in the order of the calls
        self._writes = Lock()  # also while a thread ends whose `deliver` was cancelled

    async def connect(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _failure(error) from None

    async def deliver(self, message: WindowMessage) -> None:
        async with self._turn:
            try:
                await asyncio.get_running_loop().run_in_executor(None, self._append, message)
            except OSError as error:
                raise _failure(error) from None

    async def gone(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        """A thread may still write: the next line waits for it."""

    def _append(self, message: WindowMessage) -> None:
        """Raises OSError. A line break in a window separates rows: JSON escapes those in values."""
        line = message.body.replace(b"\n", b"") + b"\n"
        kind = "" if message.kind == "window" else f"{message.kind}."
        path = self._folder / f"{quote(message.job, safe='')}.{kind}{self._day()}.jsonl"
        with self._writes, _opened(path) as file:
            size = os.fstat(file).st_size
            whole = _whole_lines(file, size)
            if whole < size:
                os.ftruncate(file, whole)
            written = 0
            while written < len(line):
                written += os.pwrite(file, line[written:], whole + written)
            os.fsync(file)
            if not whole:
                _sync_folder(self._folder)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Raises OSError, also for what is no regular file: a line that was written to a pipe is on no disk."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        yield file
    finally:
        os.close(file)


def _whole_lines(file: int, size: int) -> int:
    """Bytes up to the end of the last whole line. Raises OSError."""
    end = size
    while end:
        start = max(0, end - TAIL_BYTES)
        at = os.pread(file, end - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _failure(error: OSError) -> DeliveryError:
    where = f"{error.filename}: " if error.filename else ""
    return DeliveryError(f"{where}{error.strerror or error}")
