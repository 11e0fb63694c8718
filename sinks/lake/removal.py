"""Removes whole day folders of a lake, each in one step for readers of plain files: a rename to a hidden name, then the files."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

HIDDEN = "expired"
"""A removed folder's name begins with a dot, and ends so."""


def remove_day(folder: Path) -> tuple[int, int]:
    """Remove a day folder, once no compaction and no reader of withdrawals works in it. Returns the files and bytes that were in
    it; (0, 0) if another process was first. Raises OSError."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0, 0
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        hidden = folder.with_name(f".{folder.name}.{os.urandom(4).hex()}.{HIDDEN}")
        try:
            os.rename(folder, hidden)
        except FileNotFoundError:
            return 0, 0
    finally:
        os.close(fd)
    _sync(folder.parent)
    return _delete(hidden)


def remove_hidden(version: Path) -> None:
    """Delete what a removal that was interrupted has left in a version's folder, and that folder if it is empty."""
    for hidden in version.glob(f".date=*.{HIDDEN}"):
        _delete(hidden)
    with suppress(OSError):
        version.rmdir()


def _delete(hidden: Path) -> tuple[int, int]:
    files = size = 0
    with suppress(FileNotFoundError):  # another process deletes it too
        for path in sorted(hidden.iterdir()):
            size += path.stat().st_size
            files += not path.name.startswith(".")
            path.unlink(missing_ok=True)
    with suppress(
        OSError
    ):  # another process has deleted it, or a writer is at its end in it: then the next removal does it
        hidden.rmdir()
    _sync(hidden.parent)
    return files, size


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
