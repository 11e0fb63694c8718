"""What a log file's name shows about rotation: its family, whether it looks rotated, and its age among its siblings.

`access.log`, `access.log.1`, `access.log.2.gz`, `access.log-20240131`, `access-2024-01-31.log` and `access.1.log` are one
family, `access.log`. Names only select candidates; inode and content decide whether two files are the same.
"""

from __future__ import annotations

import functools
import os
import re

CACHE_MAX = 4096
_COMPRESSED = r"(?i:\.(gz|gzip|zst|zstd|xz|bz2|lz4)([-.~]?(tmp|temp|part|partial|new))?)$"
"""Endings of compressed files, and of archives that are renamed when they are complete."""
_MARK = (
    r"[-._](?P<mark>\d{4}([-_.]?\d\d){2}([-_.T]?\d\d([-_.:]?\d\d){0,2})?|\d{9,14}|\d{1,5}|old)"
    r"(?P<extension>\.[A-Za-z]{2,5})?$"
)
"""Compiled at first use: a run of one file has none."""


def unpacked(path: str) -> str:
    """`path` without the ending that says how it is compressed."""
    return re.sub(_COMPRESSED, "", path)


@functools.lru_cache(CACHE_MAX)
def family(path: str) -> str:
    """The base name that a file and its rotations share."""
    name = unpacked(os.path.basename(path))
    while match := re.search(_MARK, name):
        name = name[: match.start()] + (match["extension"] or "")
    return name


@functools.lru_cache(CACHE_MAX)
def looks_rotated(path: str) -> bool:
    """Whether the name carries a number, a date or a compression: a file that is probably not written any more."""
    return family(path) != os.path.basename(path)


@functools.lru_cache(CACHE_MAX)
def age(path: str) -> int:
    """Among siblings of one modification time: the lower, the older. Numbers count backwards, dates forwards."""
    match = re.search(_MARK, unpacked(os.path.basename(path)))
    if match is None:
        return 1 << 62
    if match["mark"] == "old":
        return -1
    digits = int(re.sub(r"\D", "", match["mark"]))
    return -digits if len(match["mark"]) <= 5 else digits
