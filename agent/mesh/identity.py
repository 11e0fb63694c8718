"""The key of an agent without CURVE: 32 random bytes, so that its id is its own and stays the same."""

from __future__ import annotations

import os
from pathlib import Path

from elf.errors import StateError
from elf.srt.addresses import KEY_BYTES

FILE = "id"


def own_key(folder: Path) -> bytes:
    """Read it, or make it at the first start. Raises StateError."""
    path = folder / FILE
    try:
        if not path.exists():
            new = path.with_name(FILE + ".new")
            new.write_bytes(os.urandom(KEY_BYTES))
            os.replace(new, path)
        key = path.read_bytes()
    except OSError as error:
        raise StateError(
            f"{path}: {error.strerror}; give the agent a state_dir that it can write to"
        ) from error
    if len(key) != KEY_BYTES:
        raise StateError(
            f"{path}: {len(key)} bytes instead of {KEY_BYTES}; delete it, and the agent is a new one"
        )
    return key
