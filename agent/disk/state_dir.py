"""The folder of an agent's durable state."""

from __future__ import annotations

from pathlib import Path

from elf.errors import StateError


def make(folder: Path) -> None:
    """Make the folder if it does not exist. Raises StateError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(
            f"{folder}: {error.strerror}; name another state_dir, or make it writable"
        ) from error
