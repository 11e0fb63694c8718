"""The routing table: one node for each length of a shared prefix and each next digit.

A key that shares r digits with me is forwarded to the node in row r under the key's next digit, which shares at least one digit
more. With N nodes about log16 N rows are filled, so the cells are kept in a dict.

Invariants: a node is only in the cell that its id determines; my own id is in none. Prior art: Pastry (Middleware 2001), section
2.1.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import attrgetter

from elf.srt.messages.ids import DIGITS, ID_BYTES, RING, NodeId
from elf.srt.messages.messages import Contact

_BITS = 8 * ID_BYTES
_by_id = attrgetter("id")


class RoutingTable:
    """At most 32 rows of 15 nodes; all queries O(1)."""

    __slots__ = ("_cells", "_number", "me")

    def __init__(self, me: NodeId) -> None:
        self.me = me
        self._number = int.from_bytes(me)
        self._cells: dict[int, NodeId] = {}

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[NodeId]:
        return iter(self._cells.values())

    def __contains__(self, node: object) -> bool:
        return isinstance(node, bytes) and node != self.me and self._cells.get(self.cell(node)) == node

    def cell(self, node: bytes) -> int:
        """The cell of a node: row times 16 plus digit. Not for my own id."""
        row = (_BITS - (int.from_bytes(node) ^ self._number).bit_length()) >> 2
        byte = node[row >> 1]
        return row << 4 | (byte & 15 if row & 1 else byte >> 4)

    def get(self, key: bytes) -> NodeId | None:
        """The known node that shares one digit more with `key` than I do. Not for my own id."""
        return self._cells.get(self.cell(key))

    def put(self, node: NodeId) -> NodeId | None:
        """Put the node into its cell. Returns the other node that was there, or None."""
        cell = self.cell(node)
        old = self._cells.get(cell)
        self._cells[cell] = node
        return old if old != node else None

    def discard(self, node: NodeId) -> bool:
        """Remove a node. Returns whether it was in the table."""
        if node not in self:
            return False
        del self._cells[self.cell(node)]
        return True

    def row_of(self, node: NodeId) -> int:
        return self.cell(node) >> 4

    def row(self, number: int) -> list[NodeId]:
        """The nodes of one row, by digit; [] for an invalid number."""
        if not 0 <= number < DIGITS:
            return []
        cells = self._cells
        return [cells[cell] for cell in range(number << 4, (number + 1) << 4) if cell in cells]

    def check(self) -> None:
        assert self.me not in self._cells.values()
        assert all(self.cell(node) == cell for cell, node in self._cells.items())


def warm_tables(contacts: Sequence[Contact], index: int, leaves: int) -> tuple[list[Contact], list[Contact]]:
    """Leaf set and routing table of node `index` in a settled mesh; `contacts` is sorted by id.

    O(log N) per cell, so O(log² N) for a node. The choice among a cell's nodes depends on the id, so that no node is in all
    tables.
    """
    size = len(contacts)
    around = [*range(index - leaves // 2, index), *range(index + 1, index + leaves // 2 + 1)]
    nearest = {place % size for place in around} - {index}
    return [contacts[place] for place in sorted(nearest)], _warm_rows(contacts, index)


def _warm_rows(contacts: Sequence[Contact], index: int) -> list[Contact]:
    me = int.from_bytes(contacts[index].id)
    found: list[Contact] = []
    low, high = 0, len(contacts)
    for row in range(DIGITS):
        shift = _BITS - 4 * (row + 1)
        prefix = me >> (shift + 4) << 4
        bounds = [low]
        for digit in range(1, 16):
            first = ((prefix | digit) << shift).to_bytes(ID_BYTES)
            bounds.append(bisect_left(contacts, first, bounds[-1], high, key=_by_id))
        bounds.append(high)
        mine = me >> shift & 15
        for digit in range(16):
            count = bounds[digit + 1] - bounds[digit]
            if digit != mine and count:
                found.append(contacts[bounds[digit] + (me * 0x9E3779B1 + digit) % RING % count])
        low, high = bounds[mine], bounds[mine + 1]
        if high - low == 1:
            break
    return found
