"""An agent's identity, as stored in its state_dir.

Without CURVE its key is 32 random bytes stored there, so that its id is unique and stays the same.
"""

from __future__ import annotations

import os
from pathlib import Path

from elf.errors import StateError
from elf.srt.messages.addresses import KEY_BYTES
from elf.srt.messages.ids import NodeId, short

FILE = "id"
CLAIM = "node"


def own_key(folder: Path) -> bytes:
    """Read the key, or make it at the first start. Raises StateError."""
    path = folder / FILE
    key = _kept(path, os.urandom(KEY_BYTES))
    if len(key) != KEY_BYTES:
        raise StateError(
            f"{path}: {len(key)} bytes instead of {KEY_BYTES}; delete it to start as a new agent"
        )
    return key


def claimant(folder: Path) -> str:
    """The id of the agent whose state the folder holds, in hexadecimal; "" if it holds none, or cannot be read."""
    try:
        return (folder / CLAIM).read_text("ascii", "replace").strip()
    except OSError:
        return ""


def _kept(path: Path, first: bytes) -> bytes:
    """The file's content, which is `first` from the first start on. Raises StateError."""
    try:
        if not path.exists():
            new = path.with_name(path.name + ".new")
            new.write_bytes(first)
            os.replace(new, path)
        return path.read_bytes()
    except OSError as error:
        raise StateError(
            f"{path}: {error.strerror}; give the agent a state_dir that it can write to"
        ) from error


def claim(folder: Path, me: NodeId) -> None:
    """Record at the first start whose state the folder holds. Raises StateError if it is another agent's.

    Under another id the mesh would treat the lines of these logs as those of a new host, and count them again.
    """
    path = folder / CLAIM
    held = _kept(path, me.hex().encode()).decode("ascii", "replace").strip()
    if len(held) != len(me.hex()) or not held.isascii() or not held.isalnum():
        raise StateError(
            f"{path}: damaged; if this folder has always belonged to {short(me)}, delete that file and start again"
        )
    if held != me.hex():
        raise StateError(
            f"{folder}: holds the state of agent {held[:6]}, but the keys are those of agent {short(me)}, for which all lines "
            "would be counted again; start the agent with its own keys (elf keys renew keeps them). For a new agent: elf mesh "
            "leave, take the old logs away, and delete this folder"
        )
