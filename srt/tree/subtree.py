"""What a seat knows about the subtrees below it, and how deep a tree may be."""

from __future__ import annotations

from collections.abc import Mapping

from elf.srt.messages.ids import NodeId

SIZE_MAX = 1 << 32  # more than any mesh has, so that sums over children stay small integers
HEIGHT_MAX = 64  # a tree of 16^15 nodes has 16 levels
OVERWEIGHT = 2  # a subtree is too large for its place if it has so many times its fair share of nodes


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


Children = Mapping[NodeId, Child]


def least(children: Children) -> NodeId:
    """The child with the smallest subtree, redirected nodes included. O(children)."""
    return min(children, key=lambda node: (children[node].size + children[node].redirected, node))


def lowest(children: Children) -> NodeId:
    """The child with the lowest subtree; of several the one with the fewest nodes. O(children)."""
    return min(children, key=lambda node: (children[node].height, children[node].size, node))


def largest(children: Children) -> NodeId:
    return max(children, key=lambda node: (children[node].size, node))


def measure(children: Children) -> tuple[int, int]:
    """Size and height of the subtree of these children's parent, the parent included. O(children)."""
    size = height = 1
    for child in children.values():
        size += child.size
        height = max(height, child.height + 1)
    return size, height


def depth_max(total: int, children_max: int) -> int:
    """ceil(log N) + 1 links below the root, for a tree of N nodes: one level more than a perfectly filled tree has. O(log N)."""
    depth, room = 1, 1
    while room < total:
        room *= children_max
        depth += 1
    return depth


def is_overweight(size: int, depth: int, total: int, children_max: int) -> bool:
    """Whether a subtree is much larger than it would be at this depth in an evenly filled tree."""
    return size * int(children_max**depth) > OVERWEIGHT * total
