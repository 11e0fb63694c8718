"""Settings of the process's memory allocator. No-ops where the C library is not glibc."""

from __future__ import annotations

import ctypes
import os
import re
from functools import cache
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
SMALL_BYTES = 128 * 1024
"""glibc's initial value. By default it grows with every large block freed, until the process keeps megabytes."""
KEEP_BYTES = 32 << 20
KEEP_FROM = 1 << 30
"""Below this memory cap, freed memory is returned to the system."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
LARGE_PAGE_BYTES = 2 << 20
_DONTNEED, _HUGEPAGE, _COLLAPSE = 4, 14, 25
_MAPPING = re.compile(r"^(\w+)-(\w+) r-[x-]p \w+ \S+ \d+ +/.*\n((?:[A-Z].*\n)*)", re.MULTILINE)
"""Of /proc/self/smaps: private mappings of files that cannot be written."""
_COUNTED = re.compile(r"^(Anonymous|Swap): +(\d+) kB$", re.MULTILINE)
_WRITTEN = {"Anonymous", "Swap"}
"""Pages of a mapping that differ from the file: those that were written before it became read-only."""


def stay_small() -> None:
    """For a process that runs for months beside a web server: 5 MB less after a minute of work. Call before it has threads.

    All threads share one heap: one can use what another has freed, and they seldom run at the same time.
    """
    _set_thresholds(SMALL_BYTES)
    _set_option(_ARENA_MAX, 1)


def keep_freed_memory() -> None:
    """For a process that reads whole files: reuse blocks of up to 32 MiB instead of getting zeroed ones from the kernel again.

    A group-by with many groups frees and allocates arrays of a few MiB all the time: this saves a sixth of its CPU time.
    """
    _set_thresholds(KEEP_BYTES)


def give_back() -> None:
    """After work that needed much memory: return free memory between used blocks to the system. About a millisecond."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


def unmap_libraries() -> None:
    """Call when all is loaded: unmap the pages of libraries. Those that are used again come back from the page cache. 5 ms.

    Some 7 to 10 MB of them are read while libraries load, and never again. Linux keeps them mapped until memory is short. No-op
    once there are threads, since what another one writes to a library that it loads meanwhile would be lost.
    """
    advise = _function("madvise")
    if advise is None or _has_threads():
        return
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, end in _unwritten():
        advise(start, end - start, _DONTNEED)


def _has_threads() -> bool:
    """Whether the process has threads beside this one, of Python or not; True if unknown."""
    try:
        return len(os.listdir("/proc/self/task")) > 1
    except OSError:
        return True


def _unwritten() -> list[tuple[int, int]]:
    """(start, end) of mappings of files whose pages are all as they are in the file, and stay so."""
    try:
        with open("/proc/self/smaps", encoding="ascii", errors="replace") as file:
            found = _MAPPING.finditer(file.read())
    except OSError:
        return []
    return [
        (int(start, 16), int(end, 16))
        for start, end, about in map(re.Match[str].groups, found)
        if (counted := dict(_COUNTED.findall(about))).keys() == _WRITTEN
        and not any(map(int, counted.values()))
    ]


@cache
def _function(name: str) -> Any:
    """A function of the C library; None if there is none of that name. Cached: a CDLL makes types, 4 KB in cycles that the
    collector does not reach for most of an hour, and `free_bytes` is called each second."""
    return getattr(ctypes.CDLL(None), name, None)


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2`."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names.split())


def free_bytes() -> int:
    """Free bytes in the heap, returned to the system or not; 0 if unknown (before glibc 2.33)."""
    mallinfo = _function("mallinfo2")
    if mallinfo is None:
        return 0
    mallinfo.restype = _Mallinfo
    return int(mallinfo().fordblks)


def resident_bytes() -> int:
    """The resident memory of this process; 0 if unknown. Some 2 microseconds, since the file stays open."""
    return _pages()[0] * PAGE_BYTES


def own_bytes() -> int:
    """That memory without pages of files, which libraries have: what only this process has, since it has written it."""
    resident, of_files = _pages()
    return (resident - of_files) * PAGE_BYTES


def _pages() -> tuple[int, int]:
    """Resident pages, and those of files and of shared memory among them."""
    try:
        _, resident, shared, *_ = os.pread(_statm(), 128, 0).split()
    except OSError:
        return 0, 0
    return int(resident), int(shared)


@cache
def _statm() -> int:
    """The file that counts this process's pages. A child that is forked has another one."""
    os.register_at_fork(after_in_child=_statm.cache_clear)
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)


def use_large_pages() -> None:
    """Move this process's present memory to pages of 2 MiB, where Linux can (6.1 or later). O(memory), 1 ms per MiB at most.

    For a process that visits millions of small objects in random order: otherwise most visits cost a walk of the page tables.
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
    """(start, end) of the heap and of anonymous mappings."""
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
