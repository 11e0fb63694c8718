"""Whether two agents read one file: each tells, when it is asked how it is, which files it follows; who asked compares.

A file is known by the host's kernel (its boot id), device and inode number, hashed: those of two hosts never meet, and those of
two containers on one host do. What cannot be told is not said: a file over NFS has another device on each host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path

from elf.srt.messages.messages import FILES_MAX, FileMark

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PATH_MAX = 300


@cache
def boot_id() -> bytes:
    """Of the kernel; b"" where it does not tell."""
    try:
        return BOOT_ID.read_bytes().strip()
    except OSError:
        return b""


def marks(files: Mapping[str, Mapping[str, tuple[int, int]]], boot: bytes) -> tuple[FileMark, ...]:
    """Of an agent's files, by source and path: (device, inode). So many as may be told, of each source its first ones."""
    if not boot:
        return ()
    found = []
    for source, inodes in sorted(files.items()):
        for path, (device, inode) in sorted(inodes.items()):
            text = b"%b %d %d" % (boot, device, inode)
            found.append((int.from_bytes(blake2b(text, digest_size=8).digest()), source, path[:PATH_MAX]))
    return tuple(found[:FILES_MAX])


def shared(told: Iterable[tuple[str, tuple[FileMark, ...]]]) -> list[str]:
    """(agent, its files): the files of one source that several agents read, a line each."""
    readers: dict[tuple[int, str], dict[str, str]] = {}
    for name, files in told:
        for mark, source, path in files[:FILES_MAX]:
            readers.setdefault((mark, source), {})[name] = path
    return [
        f"{' and '.join(sorted(names))} read one file: {names[min(names)]}; its lines count once for each of them"
        for names in readers.values()
        if len(names) > 1
    ]
