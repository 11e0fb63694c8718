"""Finished rows of a window on the wire: tuples of cells, with types that plain MessagePack would lose or widen.

NULL, booleans, integers, doubles and text are plain MessagePack. Extensions encode the other types: 1 a decimal as text, 2 a
tuple (a window), 3 a list (an array); tuples and lists are arrays of cells.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
from msgspec.msgpack import Ext

from elf.errors import PeerError

DECIMAL, TUPLE, LIST = 1, 2, 3
DEPTH_MAX = 8
"""Depth of arrays of arrays."""
DECIMAL_CHARS_MAX = 80
"""Sign, 38 digits, point, exponent, twice."""

Cell = None | bool | int | float | str | Ext
WireRows = tuple[tuple[Cell, ...], ...]

_encoder = msgspec.msgpack.Encoder()
_cells = msgspec.msgpack.Decoder(list[Cell])
_PLAIN = {type(None), bool, int, float, str}


def pack_rows(rows: Iterable[tuple[Any, ...]]) -> WireRows:
    """O(cells)."""
    return tuple(tuple(map(_pack, row)) for row in rows)


def _pack(cell: Any) -> Cell:
    kind = type(cell)
    if kind in _PLAIN:
        return cell  # type: ignore[no-any-return]
    if kind is Decimal:
        return Ext(DECIMAL, str(cell).encode())
    if kind in (tuple, list):
        return Ext(TUPLE if kind is tuple else LIST, _encoder.encode([_pack(each) for each in cell]))
    raise TypeError(f"a cell of type {kind.__name__}")


def unpack_rows(rows: WireRows) -> tuple[tuple[Any, ...], ...]:
    """Raises PeerError. O(cells)."""
    if len({len(row) for row in rows}) > 1:
        raise PeerError("window: rows of different lengths")
    return tuple(tuple(_unpack(cell, 0) if type(cell) is Ext else cell for cell in row) for row in rows)


def _unpack(cell: Cell, depth: int) -> Any:
    if not isinstance(cell, Ext):
        return cell
    if cell.code == DECIMAL and len(bytes(cell.data)) <= DECIMAL_CHARS_MAX:
        return _decimal(bytes(cell.data))
    if cell.code not in (TUPLE, LIST) or depth == DEPTH_MAX:
        raise PeerError("window: a cell of unknown type, or nested too deeply")
    try:
        cells = [_unpack(each, depth + 1) for each in _cells.decode(cell.data)]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PeerError(f"window: {error}") from error
    return tuple(cells) if cell.code == TUPLE else cells


def _decimal(text: bytes) -> Decimal:
    try:
        return Decimal(text.decode("ascii"))
    except (InvalidOperation, UnicodeDecodeError) as error:
        raise PeerError("window: a malformed decimal") from error
