"""The leaf set: the L nodes nearest to me on the ring, half of them on each side.

One list of ids, sorted by clockwise distance from me: the first half are my successors, the last half my predecessors, and an id
that makes the list too long pushes out the one in the middle. A list that is not full has all nodes that I know, so it covers the
whole ring.

Invariants: sorted, no id twice, never me, at most L. Prior art: Pastry (Rowstron and Druschel, Middleware 2001), section 2.1.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from elf.srt.messages.ids import RING, NodeId

_MASK = RING - 1
_ODD = 0x9E3779B97F4A7C15
"""2^64 / golden ratio: spreads the bits of ids that differ little."""
_WORD = (1 << 64) - 1


def leaves_digest(nodes: Iterable[NodeId]) -> int:
    """64-bit digest of a set of ids, independent of order; 0 for none."""
    digest = 0
    for node in nodes:
        digest ^= (int.from_bytes(node[:8]) * _ODD + int.from_bytes(node[8:])) & _WORD
    return digest


class LeafSet:
    """`size` is L, even. Adding and removing cost O(L), queries O(log L)."""

    __slots__ = ("_half", "_nodes", "_offsets", "_origin", "_size", "digest", "left", "me", "right")

    def __init__(self, me: NodeId, size: int) -> None:
        self.me = me
        self._origin = int.from_bytes(me)
        self._size = size
        self._half = size // 2
        self._nodes: list[NodeId] = []
        self._offsets: list[int] = []
        self.digest = 0
        self.left: NodeId = b""
        """My nearest predecessor; b"" while I am alone."""
        self.right: NodeId = b""
        """My nearest successor; b"" while I am alone."""

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node: object) -> bool:
        return node in self._nodes

    @property
    def full(self) -> bool:
        return len(self._nodes) == self._size

    def clockwise(self) -> list[NodeId]:
        """All, from my successor round to my predecessor. The list itself: not to be changed."""
        return self._nodes

    def by_id(self) -> list[NodeId]:
        return sorted(self._nodes)

    def edges(self) -> list[NodeId]:
        """The farthest successor and the farthest predecessor; of a set that is not full, up to one more in the middle."""
        nodes = self._nodes
        if self.full:
            return nodes[self._half - 1 : self._half + 1]
        middle = len(nodes) // 2
        return nodes[max(middle - 1, 0) : middle + 2]

    def fits(self, node: NodeId) -> bool:
        """Whether `add` would keep it. Never true for me; true for a node that is in already."""
        offsets = self._offsets
        offset = (int.from_bytes(node) - self._origin) & _MASK
        if len(offsets) < self._size:
            return offset != 0
        return offset >= offsets[self._half] or 0 < offset <= offsets[self._half - 1]

    def add(self, node: NodeId) -> NodeId | None:
        """Add a node. Returns the node that it replaced; `node` itself if that is too far away; else None."""
        offset = (int.from_bytes(node) - self._origin) & _MASK
        at = bisect_left(self._offsets, offset)
        if offset == 0 or (at < len(self._offsets) and self._offsets[at] == offset):
            return None
        self._offsets.insert(at, offset)
        self._nodes.insert(at, node)
        out = None
        if len(self._nodes) > self._size:
            del self._offsets[self._half]
            out = self._nodes.pop(self._half)
        if out is not node:
            self._changed()
        return out

    def fill(self, nodes: Iterable[NodeId]) -> None:
        """Add many at once, in O(n log n)."""
        found = self._with(nodes)
        self._offsets = list(found)
        self._nodes = list(found.values())
        self._changed()

    def lacks(self, nodes: Iterable[NodeId]) -> list[NodeId]:
        """The nodes that are not in the set, but would be if all of `nodes` were added. O(n log n)."""
        return [node for node in self._with(nodes).values() if node not in self._nodes]

    def _with(self, nodes: Iterable[NodeId]) -> dict[int, NodeId]:
        """Offset -> node, in order, of the leaf set that would result from adding these."""
        found = {(int.from_bytes(node) - self._origin) & _MASK: node for node in (*self._nodes, *nodes)}
        found.pop(0, None)
        offsets = sorted(found)
        if len(offsets) > self._size:
            offsets = offsets[: self._half] + offsets[-self._half :]
        return {offset: found[offset] for offset in offsets}

    def discard(self, node: NodeId) -> bool:
        """Remove a node. Returns whether it was in the set."""
        if node not in self._nodes:
            return False
        at = self._nodes.index(node)
        del self._nodes[at]
        del self._offsets[at]
        self._changed()
        return True

    def covers(self, key: bytes) -> bool:
        """Whether the node closest to `key` must be me or a leaf, as far as this node knows."""
        offsets = self._offsets
        if len(offsets) < self._size:
            return True
        offset = (int.from_bytes(key) - self._origin) & _MASK
        return offset <= offsets[self._half - 1] or offset >= offsets[self._half]

    def closest(self, key: bytes) -> NodeId:
        """The closest to `key`, by `ids.closeness`, of me and the leaves."""
        nodes = self._nodes
        offset = (int.from_bytes(key) - self._origin) & _MASK
        at = bisect_right(self._offsets, offset)
        before, behind = (nodes[at - 1], offset - self._offsets[at - 1]) if at else (self.me, offset)
        after, ahead = (
            (nodes[at], self._offsets[at] - offset) if at < len(nodes) else (self.me, RING - offset)
        )
        if behind == ahead:
            return min(before, after)
        return before if behind < ahead else after

    def nearest(self, key: bytes, count: int) -> list[NodeId]:
        """The `count` closest to `key` of me and the leaves, closest first. O(count + log L)."""
        nodes = (self.me, *self._nodes)
        offsets = (0, *self._offsets)
        size = len(nodes)
        offset = (int.from_bytes(key) - self._origin) & _MASK
        after = bisect_right(offsets, offset)
        before = after - 1
        found: list[NodeId] = []
        while len(found) < min(count, size):
            left, right = before % size, after % size
            behind, ahead = (offset - offsets[left]) & _MASK, (offsets[right] - offset) & _MASK
            if behind < ahead or (behind == ahead and nodes[left] <= nodes[right]):
                found.append(nodes[left])
                before -= 1
            else:
                found.append(nodes[right])
                after += 1
        return found

    def _changed(self) -> None:
        nodes = self._nodes
        self.right, self.left = (nodes[0], nodes[-1]) if nodes else (b"", b"")
        self.digest = leaves_digest(nodes)

    def check(self) -> None:
        assert len(self._nodes) == len(self._offsets) <= self._size
        assert self._offsets == sorted(set(self._offsets))
        assert all(
            (int.from_bytes(node) - self._origin) & _MASK == offset
            for node, offset in zip(self._nodes, self._offsets, strict=True)
        )
        assert self.me not in self._nodes
        assert self.digest == leaves_digest(self._nodes)
