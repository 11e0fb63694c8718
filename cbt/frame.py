"""Rows as bytes: one frame for disk and wire.

Layout: b"ELFR", version byte, then one zstd frame (content size and checksum on) of the body:

    u32 rows, u8 number of operations, u8 per operation, u64 key bytes,
    columns: pane (differences), group key length, member key length, each lane,
    the key bytes.

All little-endian. A column is u8 kind, i64 base, then planes: kind 0: every row has the base; kind w (1 to 8): w byte planes of n
bytes each, lowest first, of value - base. Hashes are computed, not stored. So a count of 1 everywhere or an empty upper half of a
128-bit sum costs nine bytes, and planes that are mostly zero nearly vanish when compressed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from elf.cbt._arrays import OP_CODES
from elf.cbt._kernel import first_disorder, pack_columns, unpack_rows
from elf.cbt.rows import Op, Rows
from elf.cbt.zstd import compress, decompress
from elf.errors import PeerError

MAGIC = b"ELFR"
VERSION = 1
FRAME_BYTES_MAX = 64 << 20
"""The default bound of the memory of a frame's unpacked rows."""

SMALL, FAST = 1, -1
"""Levels of zstd. FAST omits entropy coding: keys of random digits take twice the bytes and a tenth of the time."""

_HEAD = struct.Struct("<IB")
_ROW_BYTES = 36  # pane, hash, sub, split, ends
_OPS = {code: Op(name) for name, code in OP_CODES.items()}


def pack(rows: Rows, ops: Sequence[Op], level: int = SMALL) -> bytes:
    """A frame of ordered, folded rows, or, for `unpack_scattered`, of several such runs in sequence. O(bytes)."""
    parts: list[Any] = [
        _HEAD.pack(len(rows), len(ops)),
        bytes(OP_CODES[op.value] for op in ops),
        struct.pack("<Q", len(rows.keys)),
        pack_columns(rows).data,
        np.ascontiguousarray(rows.keys).data,
    ]
    return MAGIC + bytes((VERSION,)) + compress(b"".join(parts), level, has_checksum=True)


def unpack(data: bytes, bytes_max: int = FRAME_BYTES_MAX) -> tuple[Rows, tuple[Op, ...]]:
    """The rows and operations of a frame. Checks all bounds and the order, so the bytes may come from anywhere.

    `bytes_max` bounds the memory that the rows take. Raises PeerError. O(bytes).
    """
    rows, ops = _unpack(data, bytes_max)
    if (at := first_disorder(rows)) < len(rows):
        raise PeerError(f"rows frame: row {at} is out of order")
    return rows, ops


def unpack_scattered(data: bytes, bytes_max: int = FRAME_BYTES_MAX) -> Rows:
    """Like `unpack`, but the rows may be several ordered runs in sequence."""
    return _unpack(data, bytes_max)[0]


def _unpack(data: bytes, bytes_max: int) -> tuple[Rows, tuple[Op, ...]]:
    body = _Body(_decompress(data, bytes_max))
    count, n_ops = _HEAD.unpack(body.take(_HEAD.size))
    ops, n_lanes = _ops_of(bytes(body.take(n_ops)))
    (key_bytes,) = struct.unpack("<Q", body.take(8))
    if count * (_ROW_BYTES + 8 * n_lanes) + key_bytes > bytes_max:
        raise PeerError(f"rows frame: {count} rows are more than the {bytes_max} bytes allowed")
    return unpack_rows(body.left, count, n_lanes, key_bytes), ops


@lru_cache(maxsize=256)
def _ops_of(codes: bytes) -> tuple[tuple[Op, ...], int]:
    """The operations with these codes, one tuple for all frames that have them, and the number of their lanes."""
    if any(code not in _OPS for code in codes):
        raise PeerError("rows frame: an unknown operation")
    ops = tuple(_OPS[code] for code in codes)
    return ops, sum(op.lanes for op in ops)


def _decompress(data: bytes, bytes_max: int) -> bytes:
    if data[:4] != MAGIC or len(data) < 6:
        raise PeerError("rows frame: wrong magic")
    if data[4] != VERSION:
        raise PeerError(f"rows frame: version {data[4]}, this build reads {VERSION}")
    return decompress(memoryview(data)[5:], bytes_max, "rows frame")


class _Body:
    """Reads the head of a body. Raises PeerError if the body is too short."""

    def __init__(self, body: bytes) -> None:
        self.left = memoryview(body)

    def take(self, size: int) -> memoryview:
        if size > len(self.left):
            raise PeerError("rows frame: ends too early")
        taken, self.left = self.left[:size], self.left[size:]
        return taken
