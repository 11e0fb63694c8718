"""Columns of 64-bit numbers as bytes, and a hash over pairs of them that can be summed. All vectorised.

A column is one byte, its width w (0 to 8), then w planes of n bytes, lowest first; n comes from elsewhere. Width 0: all numbers
are 0. A column of no numbers takes no byte. Small numbers with a few large ones among them cost little once compressed, since a
plane of zeros nearly vanishes. Varints compress as well, but have no fixed places, so numpy could not decode them at once.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from elf.errors import PeerError

Words = NDArray[np.uint64]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)


def pack_column(values: Words) -> bytes:
    """The numbers as a column. O(n)."""
    n = len(values)
    if not n:
        return b""
    width = (int(values.max()).bit_length() + 7) // 8
    if n == 1:
        return bytes((width,)) + int(values[0]).to_bytes(width, "little")
    planes = values.astype("<u8", copy=False).view(np.uint8).reshape(n, 8)[:, :width]
    return bytes((width,)) + planes.T.tobytes()


def unpack_column(data: bytes, n: int) -> Words:
    """The n values. Raises PeerError unless `data` is exactly one column of that length. O(n)."""
    if not n and not data:
        return np.empty(0, np.uint64)
    width = data[0] if data and n else 9
    if width > 8 or len(data) != 1 + width * n:
        raise PeerError(f"column: {len(data)} bytes are not one of {n} numbers")
    wide = np.zeros((n, 8), np.uint8)
    if width:
        wide[:, :width] = np.frombuffer(data, np.uint8, offset=1).reshape(width, n).T
    values: Words = wide.reshape(n * 8).view("<u8")
    return values if sys.byteorder == "little" else values.astype(np.uint64)


def pack_places(places: NDArray[np.int64]) -> bytes:
    """Ascending indexes, as a column of the gaps between them."""
    if not len(places):
        return b""
    return pack_column(np.diff(places, prepend=-1).astype(np.uint64) - _ONE)


def unpack_places(data: bytes, n: int, stop: int) -> NDArray[np.int64]:
    """n ascending indexes, all below `stop`. Raises PeerError."""
    gaps = unpack_column(data, n)
    if n and int(gaps.max()) >= stop:
        raise PeerError("column: a place beyond the end")
    places = np.cumsum(gaps.astype(np.int64) + 1) - 1
    if n and not 0 <= int(places[-1]) < stop:
        raise PeerError("column: places beyond the end")
    return places


def zigzag(values: NDArray[np.int64]) -> Words:
    """Signed numbers as unsigned ones: small ones of either sign stay small."""
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def unzigzag(values: Words) -> NDArray[np.int64]:
    return ((values >> _ONE) ^ (~(values & _ONE) + _ONE)).view(np.int64)


def mix(values: Words) -> Words:
    """A bijection that spreads every bit over all (splitmix64: Steele, Lea, Flood, OOPSLA 2014)."""
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))


def pair_hash(keys: Words, values: Words) -> int:
    """64-bit hash of a set of pairs (key, value), of keys that are hashes: the sum of the pairs' hashes. So the hash of a union
    of disjoint sets is the sum of their hashes. It detects two sides that have diverged, but does not resist an adversary.
    O(n)."""
    return int(mix(mix(keys + _STEP) + values * _STEP).sum(dtype=np.uint64))
