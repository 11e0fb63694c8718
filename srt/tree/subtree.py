"""The children of a seat, and the subtree that they form with it."""

from __future__ import annotations

from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import TreeJoin

SIZE_MAX = 1 << 32  # more than any mesh has, so that sums over children stay small integers
HEIGHT_MAX = 64  # a tree of 16^15 nodes has 16 levels


class Child:
    """What a parent knows about a child. redirected: nodes that were sent to it and that it has not reported yet."""

    __slots__ = ("height", "incarnation", "redirected", "size")

    def __init__(self, incarnation: int, size: int, height: int) -> None:
        self.incarnation = incarnation
        self.resize(size, height)

    def resize(self, size: int, height: int) -> None:
        """The child has reported its subtree. A peer's numbers are forced into bounds."""
        self.size = min(max(1, size), SIZE_MAX)
        self.height = min(max(1, height), HEIGHT_MAX)
        self.redirected = 0


class Subtree:
    """Public attributes, to be read only: `children` (in order of adoption), `size` and `height` (the seat included), `reported`
    (size and height that the parent knows). All operations are O(children)."""

    __slots__ = ("_gone", "_joined", "children", "height", "reported", "size")

    def __init__(self) -> None:
        self.children: dict[NodeId, Child] = {}
        self.size = self.height = 1
        self.reported = (0, 0)
        self._joined: list[NodeId] = []
        self._gone: list[NodeId] = []

    def take_changes(self) -> tuple[tuple[NodeId, ...], tuple[NodeId, ...]]:
        """Children that joined (or joined again) and left since the last call."""
        joined, gone = tuple(self._joined), tuple(self._gone)
        self._joined.clear()
        self._gone.clear()
        return joined, gone

    def adopt(self, join: TreeJoin) -> None:
        known = self.children.get(join.child)
        if known is not None and known.incarnation == join.incarnation:
            self.resize(join.child, join.size, join.height)
            return
        self._joined.append(join.child)
        self.children[join.child] = Child(join.incarnation, join.size, join.height)
        self._measure()

    def resize(self, node: NodeId, size: int, height: int) -> None:
        self.children[node].resize(size, height)
        self._measure()

    def forget(self, node: NodeId) -> None:
        del self.children[node]
        self._gone.append(node)
        self._measure()

    def _measure(self) -> None:
        children = self.children.values()
        self.size = 1 + sum([child.size for child in children])
        self.height = 1 + max([child.height for child in children], default=0)

    def redirect(self, size: int) -> NodeId:
        """Choose a child for a joiner with a subtree of `size` nodes: the child with the smallest subtree, including nodes that
        were redirected to it before."""
        smallest = self._smallest()
        self.children[smallest].redirected += size
        return smallest

    def to_replace(self, join: TreeJoin, has_room: bool) -> NodeId | None:
        """The child that a joiner replaces, and that moves further down; None if none. It is the lowest child, if there is no
        room for the joiner's subtree below a child; or the smallest child, if the joiner's subtree is much larger."""
        children = self.children
        if not has_room:
            lowest = min(children, key=lambda node: (children[node].height, children[node].size, node))
            return lowest if children[lowest].height < join.height else None
        smallest = self._smallest()
        return smallest if join.size > 2 * children[smallest].size else None

    def _smallest(self) -> NodeId:
        children = self.children
        return min(children, key=lambda node: (children[node].size + children[node].redirected, node))

    def largest(self) -> NodeId:
        return max(self.children, key=lambda node: (self.children[node].size, node))

    def take_report(self) -> bool:
        """Record the present size and height as reported. Returns whether the parent knew others."""
        before, self.reported = self.reported, (self.size, self.height)
        return before != self.reported

    def check(self) -> None:
        before = self.size, self.height
        self._measure()
        assert before == (self.size, self.height)
