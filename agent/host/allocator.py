"""What a process asks of its memory allocator. All no-ops where the C library is not glibc."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
SMALL_BYTES = 128 * 1024
"""glibc's own first value. Left alone it grows with every large block freed, until megabytes stay with the process."""
KEEP_BYTES = 32 << 20
KEEP_FROM = 1 << 30
"""Memory caps below this are meant seriously: there, what is freed goes back."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
LARGE_PAGE_BYTES = 2 << 20
_HUGEPAGE, _COLLAPSE = 14, 25


def stay_small() -> None:
    """For a process that lives for months beside a web server: 5 MB less after a minute of work. Before it has threads.

    All threads share one heap: what one of them has freed another can use, and they seldom run at the same time.
    """
    _set_thresholds(SMALL_BYTES)
    _set_option(_ARENA_MAX, 1)


def keep_freed_memory() -> None:
    """For a process that reads whole files: reuse blocks of up to 32 MiB instead of having the kernel zero them anew.

    A group-by with many groups frees and allocates arrays of a few MiB all the time: this saves a sixth of its CPU time.
    """
    _set_thresholds(KEEP_BYTES)


def give_back() -> None:
    """After work that needed much memory: what is free between what is in use goes back to the system. About a millisecond."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


@cache
def _function(name: str) -> Any:
    """Of the C library; None where it has none of that name. Once each: a CDLL makes types, 4 KB in cycles that the collector
    leaves alone for most of an hour, and free memory is asked for each second."""
    return getattr(ctypes.CDLL(None), name, None)


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def free_bytes() -> int:
    """What is free in the heap, given back to the system or not; 0 where nobody tells (before glibc 2.33)."""
    tell = _function("mallinfo2")
    if tell is None:
        return 0
    tell.restype = _Mallinfo
    return int(tell().fordblks)


def resident_bytes() -> int:
    """The memory that this process has now; 0 where the system does not tell. Some 10 microseconds."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read(128).split()[1]) * PAGE_BYTES
    except OSError:
        return 0


def use_large_pages() -> None:
    """Put what this process has by now onto pages of 2 MiB, where Linux can (6.1 or later). O(memory), 1 ms per MiB at most.

    For a process whose millions of small objects are visited in no order: most visits cost a walk of the page tables otherwise.
    """
    advise = _function("madvise")
    if advise is None:
        return
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, end in _own_memory():
        first = -(-start // LARGE_PAGE_BYTES) * LARGE_PAGE_BYTES
        length = (end - first) // LARGE_PAGE_BYTES * LARGE_PAGE_BYTES
        if length > 0:
            advise(first, length, _HUGEPAGE)
            advise(first, length, _COLLAPSE)


def _own_memory() -> list[tuple[int, int]]:
    """Where the heap and anonymous mappings begin and end."""
    try:
        with open("/proc/self/maps", encoding="ascii", errors="replace") as file:
            mappings = [line.split() for line in file]
    except OSError:
        return []
    found: list[tuple[int, int]] = []
    for span, access, _, _, inode, *name in mappings:
        if access == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
            start, end = span.split("-")
            found.append((int(start, 16), int(end, 16)))
    return found


def _set_thresholds(size: int) -> None:
    _set_option(_MMAP_THRESHOLD, size)
    _set_option(_TRIM_THRESHOLD, size)


def _set_option(option: int, value: int) -> None:
    set_option = _function("mallopt")
    if set_option is not None:
        set_option(option, value)
