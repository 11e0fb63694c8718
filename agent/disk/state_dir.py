"""The folder of an agent's durable state."""

from __future__ import annotations

import errno
from pathlib import Path

from elf.errors import StateError

JOURNAL = "mesh"
FORMER = "journal"
RETRY_S = 1.0
"""Between two starts on a full disk."""


def make(folder: Path) -> None:
    """Make the folder if it does not exist. Raises StateError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(
            f"{folder}: {error.strerror}; name another state_dir, or make it writable"
        ) from error


def check(folder: Path) -> None:
    """Raises StateError for a state in the form of before, which cannot be read: its windows would begin anew, without the lines
    that are read already."""
    if (folder / FORMER).exists() and not (folder / JOURNAL).exists():
        raise StateError(
            f"{folder / FORMER}: the journal of an agent of an earlier elf, which this one cannot read; move it away, and the "
            "agent begins as a new one"
        )


def is_full(error: StateError) -> bool:
    """Whether the only reason is that the disk, or the share of it that the agent may use, is full."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.ENOSPC, errno.EDQUOT)


def waiting(folder: Path, error: StateError) -> str:
    """The notice of an agent that finds its disk full at its start."""
    assert isinstance(error.__cause__, OSError)
    return (
        f"{folder}: {error.__cause__.strerror}; the agent waits until there is room, and tries again every {RETRY_S:.0f} s: "
        "free space"
    )
