"""An agent's identity, as stored in its state_dir.

Without keys of a mesh it makes a CURVE pair there, so that its id is unique and stays the same, also when it gets keys later: an
authority issues them for this pair (`elf keys issue --id`).
"""

from __future__ import annotations

import os
from pathlib import Path

from elf.errors import StateError, UsageError
from elf.srt.messages.addresses import KEY_BYTES
from elf.srt.messages.ids import NodeId, node_id, short

FILE = "id"
"""The public key; earlier versions made 32 random bytes instead of a pair."""
SECRET = "id.secret"
CLAIM = "node"


def own_key(folder: Path) -> bytes:
    """Read the public key, or make the pair at the first start. Raises StateError."""
    path = folder / FILE
    if path.exists():
        key = _kept(path, b"")
    else:
        from elf.srt.security.pairs import curve_pair

        pair = curve_pair()
        (folder / SECRET).unlink(missing_ok=True)  # of a start that ended before it had an id
        _kept(folder / SECRET, pair.secret)
        key = _kept(path, pair.public)
    if len(key) != KEY_BYTES:
        raise StateError(
            f"{path}: {len(key)} bytes instead of {KEY_BYTES}; delete it to start as a new agent"
        )
    return key


def read_secret(path: Path) -> bytes:
    """The secret key of an agent without keys, from the file `SECRET` of its state_dir. Raises UsageError."""
    try:
        with path.open("rb") as file:
            secret = file.read(KEY_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"--id: {path}: {error.strerror}; it is the file {SECRET} in the agent's state_dir"
        ) from error
    if len(secret) != KEY_BYTES or path.name == FILE:  # a public key has as many bytes
        raise UsageError(
            f"--id: {path}: expected the file {SECRET} of an agent's state_dir, of {KEY_BYTES} bytes"
        )
    return secret


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
            with open(
                os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb"
            ) as file:
                file.write(first)
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
    if held != me.hex() and (folder / SECRET).exists() and held == node_id(own_key(folder)).hex():
        raise StateError(
            f"{folder}: holds the state of agent {held[:6]}, which ran without keys, but the keys are of agent {short(me)}, "
            f"for which all lines would be counted again; issue keys for its id: elf keys issue --id {folder / SECRET} …"
        )
    if held != me.hex():
        raise StateError(
            f"{folder}: holds the state of agent {held[:6]}, but the keys are those of agent {short(me)}, for which all lines "
            "would be counted again; start the agent with its own keys (elf keys renew keeps them). For a new agent: elf mesh "
            "leave, take the old logs away, and delete this folder"
        )
