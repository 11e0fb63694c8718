"""A window that is too large for one message, in parts: each part is a message of its own, with some of the rows and panes.

    window -> parts: rows first, then panes, each about `part_bytes` -> payloads, made one after the other when they are sent
    payload = compressed(a Put of that window and revision with these rows and panes)

Memory: the window itself, whose rows and states may be on disk, and the payloads that may have to be sent again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from msgspec.structs import replace

from elf.errors import PeerError
from elf.jobmaster.values.columns import ColumnRows
from elf.srt.codec.wire import MIB, decode, encode
from elf.srt.messages.compression import compress, decompress
from elf.srt.messages.results import PaneParts, Put

ROW_BYTES = 500
"""Assumed bytes of a row whose columns have no known size: eight cells as objects, and a tuple."""
PANE_BYTES = 100
"""Bytes of a pane without groups."""
PAYLOAD_BYTES_MAX = 64 * MIB
"""Bytes of an unpacked payload. A part of a pane is never divided."""
PARTS_MAX = 1 << 16
"""Parts of one window: 32 GiB in frames of 512 KiB."""

PartRange = tuple[int, int, int]
"""(index of a pane, index of the first of its parts, index after the last)."""


def rows_bytes(put: Put) -> int:
    """Approximate memory of a window's rows, or, of rows on disk, the memory that they would take. O(columns)."""
    held = int(put.rows.nbytes) if isinstance(put.rows, ColumnRows) else 0
    return held or len(put.rows) * ROW_BYTES


def sizes_of(pane: PaneParts) -> Sequence[int]:
    """Bytes of each part of a pane. O(parts)."""
    known: Sequence[int] | None = getattr(pane.parts, "sizes", None)
    return [len(part) for part, _ in pane.parts] if known is None else known


def panes_bytes(put: Put) -> int:
    """O(parts)."""
    return sum(sum(sizes_of(pane)) for pane in put.panes)


def put_bytes(put: Put) -> int:
    """Bytes of rows and of panes' states. O(columns + parts)."""
    return rows_bytes(put) + panes_bytes(put)


def whole(put: Put) -> Put:
    """The window as one message, with all its parts in memory. O(bytes)."""
    if all(type(pane.parts) is tuple for pane in put.panes):
        return put
    return replace(put, panes=tuple(replace(pane, parts=tuple(pane.parts)) for pane in put.panes))


class ChunkedWindow:
    """One window's payloads. They are made in order, and kept until `free`."""

    def __init__(self, put: Put, part_bytes: int) -> None:
        self.put, self.nbytes = put, put_bytes(put)
        self._each = max(1, len(put.rows) * part_bytes // max(rows_bytes(put), 1))
        self._row_parts = -(-len(put.rows) // self._each)
        self._panes = list(_pane_cuts(put.panes, part_bytes))
        self.restart()

    @property
    def of(self) -> int:
        """The number of parts."""
        return max(1, self._row_parts + len(self._panes))

    def restart(self) -> None:
        """Start again from the first part."""
        self._rows: Iterator[Any] = iter(self.put.rows)
        self._made: dict[int, bytes] = {}
        self._next = 0

    def payload(self, at: int) -> bytes:
        """The payload of a part that was made and not freed, or of the next part. O(bytes)."""
        if at == self._next:
            self._made[at] = compress(encode(self._fragment(at)))
            self._next += 1
        return self._made[at]

    def free(self, at: int) -> None:
        """Free a part that was received. The last part is kept: it is sent again to request the outcome."""
        if at != self.of - 1:
            self._made.pop(at, None)

    @property
    def held_bytes(self) -> int:
        """Bytes of the kept payloads."""
        return sum(map(len, self._made.values()))

    def _fragment(self, at: int) -> Put:
        if at < self._row_parts:
            return replace(self.put, rows=tuple(islice(self._rows, self._each)), panes=())
        cut = self._panes[at - self._row_parts] if self._panes else ()
        return replace(self.put, rows=(), panes=tuple(_in_range(self.put.panes, each) for each in cut))


def _in_range(panes: Sequence[PaneParts], wanted: PartRange) -> PaneParts:
    pane, low, high = wanted
    return replace(panes[pane], parts=tuple(panes[pane].parts[i] for i in range(low, high)))


def _pane_cuts(panes: Sequence[PaneParts], part_bytes: int) -> Iterator[list[PartRange]]:
    cut: list[PartRange] = []
    room = part_bytes
    for number, pane in enumerate(panes):
        low, room = 0, room - PANE_BYTES
        for at, size in enumerate(sizes_of(pane)):
            if size > room and (cut or at > low):
                yield cut if at == low else [*cut, (number, low, at)]
                cut, low, room = [], at, part_bytes
            room -= size
        cut.append((number, low, len(pane.parts)))
    if cut:
        yield cut


def fragment_of(payload: bytes) -> Put:
    """The rows and panes of a payload. Raises PeerError. O(bytes)."""
    put = decode(decompress(payload, PAYLOAD_BYTES_MAX))
    if type(put) is not Put:
        raise PeerError("a part of a window contains another kind of message than Put")
    return put
