"""Putting a window's rows in order when they come in several pieces, in bounded memory.

Each piece is already ordered; its rows get a key of bytes that compares as the plan's ORDER BY does, and pieces are merged by
it. Rows beyond the memory share wait in a temporary file that has no name.
"""

from __future__ import annotations

import heapq
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import zstandard

from elf.cbt import aggregates
from elf.jobmaster.plan import Order
from elf.jobmaster.vector import Kind, Vector

SLICE_ROWS = 256
"""Rows of each run that a merge holds as Python objects, some 150 KB: hundreds of runs fit beside a small cap."""
Row = tuple[Any, ...]


def order_bytes(order: Sequence[Order], vectors: Sequence[Vector], rows: int) -> list[bytes]:
    """One key per row: comparing keys bytewise is comparing rows by `order`. O(rows)."""
    parts = [_item_bytes(item, vector) for item, vector in zip(order, vectors, strict=True)]
    return [b"".join(row) for row in zip(*parts, strict=True)] if parts else [b""] * rows


def _item_bytes(item: Order, vector: Vector) -> list[bytes]:
    null = b"\x00" if item.nulls_first else b"\x02"
    valid = vector.is_valid().tolist()
    out = []
    for text, ok in zip(_value_bytes(vector), valid, strict=True):
        if not ok:
            out.append(null)
        else:
            out.append(b"\x01" + (text.translate(_COMPLEMENT) if item.descending else text))
    return out


_COMPLEMENT = bytes(255 - i for i in range(256))


def _value_bytes(vector: Vector) -> list[bytes]:
    values = vector.values
    if vector.type.kind is Kind.STRING:
        assert vector.strings is not None
        strings = vector.strings
        # 00 marks the end; a 00 within is followed by FF, so that a prefix comes first and no two texts meet.
        return [
            b"" if code < 0 else strings[code].replace(b"\x00", b"\x00\xff") + b"\x00\x00"
            for code in values.tolist()
        ]
    if values.dtype == np.float64:
        values = aggregates.order_double(values)
    if values.dtype == object:
        return [(value + (1 << 159)).to_bytes(20, "big") for value in values.tolist()]
    lifted = values.astype(np.int64).view(np.uint64) ^ np.uint64(1 << 63)
    raw = lifted.astype(">u8").tobytes()
    return [raw[i : i + 8] for i in range(0, len(raw), 8)]


class Spool:
    """Ordered runs of rows, merged when iterated; more than `memory_max` bytes of them wait in an unnamed file.

    Iterating may be repeated. `limit` cuts each run and the merged rows.
    """

    def __init__(self, memory_max: int, spill_dir: Path | None, limit: int | None) -> None:
        self._memory_max, self._spill_dir, self._limit = memory_max, spill_dir, limit
        self._runs: list[list[bytes] | list[tuple[int, int]]] = []
        self._file: IO[bytes] | None = None
        self._held = 0
        self._rows = 0
        self._decompress = zstandard.ZstdDecompressor().decompress  # one context for all runs: each is 150 KB

    def __len__(self) -> int:
        return self._rows if self._limit is None else min(self._rows, self._limit)

    @property
    def spilled_bytes(self) -> int:
        return 0 if self._file is None else self._file.tell()

    def add(self, keys: Sequence[bytes], rows: Sequence[Row]) -> None:
        """Add an ordered run. Raises OSError when the disk is full."""
        if self._limit is not None:
            keys, rows = keys[: self._limit], rows[: self._limit]
        self._rows += len(rows)
        compress = zstandard.ZstdCompressor(level=1).compress
        slices = [
            compress(pickle.dumps((keys[i : i + SLICE_ROWS], rows[i : i + SLICE_ROWS]), protocol=5))
            for i in range(0, len(rows), SLICE_ROWS)
        ]
        size = sum(map(len, slices))
        if self._held + size <= self._memory_max:
            self._held += size
            self._runs.append(slices)
        else:
            self._runs.append([self._write(part) for part in slices])

    def _write(self, part: bytes) -> tuple[int, int]:
        if self._file is None:
            import tempfile

            self._file = tempfile.TemporaryFile(dir=self._spill_dir, prefix="elf-order-")  # noqa: SIM115 (closed by `close`)
        at = self._file.seek(0, 2)
        self._file.write(part)
        return at, len(part)

    def _read(self, part: bytes | tuple[int, int]) -> bytes:
        if isinstance(part, bytes):
            return part
        assert self._file is not None
        self._file.seek(part[0])
        return self._file.read(part[1])

    def _run(self, parts: list[bytes] | list[tuple[int, int]]) -> Iterator[tuple[bytes, Row]]:
        for part in parts:
            # Written by this very process into a file nobody else can open.
            keys, rows = pickle.loads(self._decompress(self._read(part)))
            yield from zip(keys, rows, strict=True)

    def __iter__(self) -> Iterator[Row]:
        merged = heapq.merge(*(self._run(run) for run in self._runs), key=lambda pair: pair[0])
        for count, (_, row) in enumerate(merged):
            if count == self._limit:
                return
            yield row

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
