"""Detects files that two agents read: each reports, with its status, the files that it follows; the asking agent compares.

A file is identified by the kernel's boot id, device and inode number, hashed: equal for two containers on one host, never for two
hosts. So a file shared over NFS is not detected: it has another device on each host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path

from elf.srt.messages.reports import FILES_MAX, FileMark

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PATH_MAX = 300


@cache
def boot_id() -> bytes:
    """The kernel's boot id; b"" if it cannot be read."""
    try:
        return BOOT_ID.read_bytes().strip()
    except OSError:
        return b""


def marks(files: Mapping[str, Mapping[str, tuple[int, int]]], boot: bytes) -> tuple[FileMark, ...]:
    """The marks of an agent's files. files: by source and path, (device, inode). At most `FILES_MAX`, the first ones by name."""
    if not boot:
        return ()
    found = []
    for source, inodes in sorted(files.items()):
        for path, (device, inode) in sorted(inodes.items()):
            text = b"%b %d %d" % (boot, device, inode)
            found.append((int.from_bytes(blake2b(text, digest_size=8).digest()), source, path[:PATH_MAX]))
    return tuple(found[:FILES_MAX])


def shared(reported: Iterable[tuple[str, tuple[FileMark, ...]]]) -> list[str]:
    """Files of one source that several agents read, a line each. reported: (agent, its files)."""
    readers: dict[tuple[int, str], dict[str, str]] = {}
    for name, files in reported:
        for mark, source, path in files[:FILES_MAX]:
            readers.setdefault((mark, source), {})[name] = path
    return [
        f"{' and '.join(sorted(names))} read one file: {names[min(names)]}; its lines count once for each of them"
        for names in readers.values()
        if len(names) > 1
    ]
