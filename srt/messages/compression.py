"""Bytes, compressed if that makes them smaller: b"\\0" and the bytes, or b"\\1" and one zstd frame that states its size."""

from __future__ import annotations

from elf.cbt import zstd
from elf.errors import PeerError

SMALL = 200
"""Up to this size compression saves less than it costs."""


def compress(data: bytes) -> bytes:
    """O(bytes)."""
    if len(data) > SMALL:
        packed = zstd.compress(data, 1, has_checksum=False)
        if len(packed) < len(data):
            return b"\1" + packed
    return b"\0" + data


def decompress(data: bytes, bytes_max: int) -> bytes:
    """The inverse of `compress`. Raises PeerError if `data` is malformed, or its content exceeds `bytes_max`. O(bytes)."""
    if data[:1] == b"\0" and len(data) <= bytes_max:
        return data[1:]
    if data[:1] != b"\1":
        raise PeerError("section: neither plain nor compressed, or too long")
    return zstd.decompress(memoryview(data)[1:], bytes_max, "section")
