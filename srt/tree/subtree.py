"""What a seat knows of the subtrees below it, and the arithmetic of how deep a tree may be."""

from __future__ import annotations

from collections.abc import Mapping

from elf.srt.messages.ids import NodeId

SIZE_MAX = 1 << 32  # more than any mesh has: sums of children stay small integers
HEIGHT_MAX = 64  # of 16^15 nodes a tree has 16 levels
OVERWEIGHT = 2  # times its fair share: then a subtree is too large for its place


class Child:
    """What a parent knows of a child. redirected: nodes sent there of which the child has not told yet."""

    __slots__ = ("height", "incarnation", "redirected", "size")

    def __init__(self, incarnation: int, size: int, height: int) -> None:
        self.incarnation = incarnation
        self.resize(size, height)

    def resize(self, size: int, height: int) -> None:
        """What the child says of its subtree; a peer's numbers, so within bounds."""
        self.size = min(max(1, size), SIZE_MAX)
        self.height = min(max(1, height), HEIGHT_MAX)
        self.redirected = 0


Children = Mapping[NodeId, Child]


def least(children: Children) -> NodeId:
    """The child with the smallest subtree, those that were sent there included. O(children)."""
    return min(children, key=lambda node: (children[node].size + children[node].redirected, node))


def lowest(children: Children) -> NodeId:
    """The child with the fewest levels below it; of several the one with the smallest subtree. O(children)."""
    return min(children, key=lambda node: (children[node].height, children[node].size, node))


def largest(children: Children) -> NodeId:
    return max(children, key=lambda node: (children[node].size, node))


def measure(children: Children) -> tuple[int, int]:
    """Size and height of the subtree of these children's parent, itself included. O(children)."""
    size = height = 1
    for child in children.values():
        size += child.size
        height = max(height, child.height + 1)
    return size, height


def depth_max(total: int, children_max: int) -> int:
    """ceil(log N) + 1 links below the root, N the tree's size: one level more than a perfectly filled tree has. O(log N)."""
    depth, room = 1, 1
    while room < total:
        room *= children_max
        depth += 1
    return depth


def is_overweight(size: int, depth: int, total: int, children_max: int) -> bool:
    """Much larger than the share of a node at this depth, if all were filled alike."""
    return size * int(children_max**depth) > OVERWEIGHT * total
