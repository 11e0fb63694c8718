"""Sets by their theta sketches, which `sketch.theta_sketch` makes: their size, their unions, and what two have in common."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elf.sinks.lake.sketch import ENTRIES, IS_EMPTY, SEED_HASH, THETA_FAMILY, THETA_SERIAL

PACKED_SERIAL = 4
"""Of sketches with packed entries, as Spark makes them."""
ALL = 2**63 - 1
"""The theta of a sketch that has all hashes."""
Hashes = NDArray[np.int64]


def hashes_of(sketch: bytes) -> Hashes:
    """The hashes of a sketch, sorted: its entries, and theta if it has not all. It is one of `theta_sketch`, or a union of such.

    Raises ValueError for other bytes.
    """
    longs, serial, family, bits, size, flags, seed = struct.unpack_from("<BBBBBBH", sketch.ljust(8, b"\0"))
    is_empty = bool(flags & IS_EMPTY)  # then Java writes no seed
    if (
        family != THETA_FAMILY
        or not (is_empty or seed == SEED_HASH)
        or serial not in (THETA_SERIAL, PACKED_SERIAL)
    ):
        raise ValueError("no compact theta sketch of the seed 9001")
    if is_empty:
        return np.empty(0, np.int64)
    if serial == PACKED_SERIAL:
        has_theta = longs > 1
        entries = _unpacked(sketch[8 * longs :], bits, size)
    else:
        has_theta = longs > 2
        entries = np.sort(np.frombuffer(sketch, "<i8", offset=8 * longs).astype(np.int64))
    if not has_theta:
        return entries
    if len(entries) != ENTRIES:
        raise ValueError("a theta sketch of other than 4,096 entries that has not all hashes")
    return np.append(entries, np.int64(struct.unpack_from("<q", sketch, 8 * longs - 8)[0]))


def _unpacked(body: bytes, bits: int, size: int) -> Hashes:
    """The entries of a packed sketch: their number in `size` bytes, then how much each is above the one before, in `bits` bits,
    the highest first."""
    count = int.from_bytes(body[:size], "little")
    stream = np.unpackbits(np.frombuffer(body, np.uint8, offset=size), count=count * bits)
    digits = stream.reshape(count, bits).astype(np.int64)
    differences: Hashes = digits @ (np.int64(1) << np.arange(bits - 1, -1, -1, dtype=np.int64))
    return np.cumsum(differences)


def united(*sets: Hashes) -> Hashes:
    """The hashes of the union: at most `ENTRIES` + 1."""
    return np.unique(np.concatenate(sets))[: ENTRIES + 1] if sets else np.empty(0, np.int64)


def estimate(hashes: Hashes) -> int:
    """How many values the hashes of a sketch are of: exact up to 4,096, else with a standard error of 1.6 %."""
    if len(hashes) <= ENTRIES:
        return len(hashes)
    return _scaled(ENTRIES, int(hashes[ENTRIES]))


def common(one: Hashes, other: Hashes) -> int:
    """How many values two sets have in common, by their hashes below the lesser theta."""
    theta = min(_theta(one), _theta(other))
    both: Any = np.intersect1d(one[one < theta], other[other < theta], assume_unique=True)
    return len(both) if theta == ALL else _scaled(len(both), theta)


def _theta(hashes: Hashes) -> int:
    return ALL if len(hashes) <= ENTRIES else int(hashes[ENTRIES])


def _scaled(count: int, theta: int) -> int:
    return int(count * (float(2**63) / theta) + 0.5)
