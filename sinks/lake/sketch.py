"""State as sketches of Apache DataSketches, as Spark and other systems have them: registers as an HLL sketch (lgK 12, HLL_8),
hashes as a theta sketch (lgK 12, compact, ordered).

An HLL sketch always has all registers, 4,136 bytes: a shorter one has coupons, which need more of a value's hash than registers
keep. It is the sketch of a union, whose bytes depend on the values alone: merging gives the same bytes in any order.
A theta sketch of up to 4,096 hashes has all of them; one of more has the 4,096 least, and the next one as theta: all hashes below
theta are in it. So its bytes depend on the values alone, too.
Values are hashed as DataSketches does (`elf.cbt._sketch`), so a sketch merges with those that Spark makes of the same values.
The lake's writer imports this: no numpy here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

REGISTERS = 4096
PREAMBLE_INTS, SERIAL, FAMILY, LG_K, HLL_8_DENSE = 10, 1, 7, 12, 0x0A
OUT_OF_ORDER = 0x10
"""The flag of a union: its estimate comes from the registers, not from the order in which values came."""
EMPTY = bytes((2, SERIAL, FAMILY, LG_K, 3, 0x0C, 0, 8))
"""A compact list of no coupons: the sketch of no values."""
SKETCH_BYTES = 40 + REGISTERS


def sketch(registers: Mapping[int, int]) -> bytes:
    """The sketch of registers [0, 4096) with values [1, 63]."""
    if not registers:
        return EMPTY
    body = bytearray(REGISTERS)
    for register, value in registers.items():
        body[register] = value
    counts = [body.count(value) for value in range(64)]
    low, high = (sum(counts[v] * 2.0**-v for v in part) for part in (range(32), range(32, 64)))
    head = bytes((PREAMBLE_INTS, SERIAL, FAMILY, LG_K, 0, OUT_OF_ORDER, 0, HLL_8_DENSE))
    return head + struct.pack("<dddII", 0.0, low, high, counts[0], 0) + body


ENTRIES = 4096
THETA_SERIAL, THETA_FAMILY = 3, 3
SEED_HASH = 0x93CC
"""Of the seed 9001, by which a reader knows that two sketches go together."""
READ_ONLY, IS_EMPTY, COMPACT, ORDERED = 2, 4, 8, 16


def theta_sketch(hashes: Iterable[int]) -> bytes:
    """The sketch of some hashes, each in [1, 2^63), in any order and number. O(n log n)."""
    least = sorted(set(hashes) - {0})[: ENTRIES + 1]  # a sketch has no hash 0
    if not least:
        return _theta_head(1, IS_EMPTY)
    if len(least) == 1:
        return _theta_head(1, 0) + struct.pack("<q", *least)
    if len(least) <= ENTRIES:
        return _theta_head(2, 0) + struct.pack(f"<II{len(least)}q", len(least), 0, *least)
    return _theta_head(3, 0) + struct.pack(f"<II{len(least)}q", ENTRIES, 0, least[-1], *least[:-1])


def _theta_head(longs: int, flags: int) -> bytes:
    flags |= READ_ONLY | COMPACT | ORDERED
    return struct.pack("<BBBBBBH", longs, THETA_SERIAL, THETA_FAMILY, 0, 0, flags, SEED_HASH)
