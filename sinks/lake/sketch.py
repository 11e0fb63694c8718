"""Registers as an HLL sketch of Apache DataSketches, as Spark's `hll_sketch_agg` and other systems have it: lgK 12, HLL_8.

Such a sketch always has all registers, 4,136 bytes: a shorter one has coupons, which need more of a value's hash than registers
keep. It is the sketch of a union, whose bytes depend on the values alone: merging gives the same bytes in any order.
Values are hashed as DataSketches does (`elf.cbt._sketch`), so a sketch merges with those that Spark makes of the same values.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

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
