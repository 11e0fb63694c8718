"""The place of a seat in its job's tree: taken from its parent's announcements, and announced to its children."""

from __future__ import annotations

from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import NO_BALLOT, Adopt, Ballot, Path
from elf.srt.tree.subtree import HEIGHT_MAX, Subtree

PATH_MAX = HEIGHT_MAX  # a longer path is a loop that still grows
DEPTH_SMALL = 3  # depth of trees of up to 256 nodes: down to it there is room, however few nodes the root has counted so far
OVERWEIGHT = 2  # a subtree with more than this multiple of its fair share of nodes is too large for its depth


def depth_max(total: int, children_max: int) -> int:
    """ceil(log N) + 1 links below the root, for a tree of N nodes: one level more than a perfectly filled tree has. O(log N)."""
    depth, room = 1, 1
    while room < total:
        room *= children_max
        depth += 1
    return depth


class Place:
    """Public attributes, to be read only: `path` (parent, its parent, …; empty without a parent), `rooted` (the path ends in the
    root), `total` (nodes of the tree, as the root counts), `ballot` (the highest one known), `watched` (whether somebody reads
    open windows)."""

    __slots__ = (
        "_announcement",
        "_children_max",
        "_job",
        "_me",
        "ballot",
        "path",
        "rooted",
        "total",
        "watched",
    )

    def __init__(self, job: JobId, me: NodeId, children_max: int) -> None:
        self._job, self._me, self._children_max = job, me, children_max
        self.path: tuple[NodeId, ...] = ()
        self.rooted = False
        self.total = 0
        self.watched = True
        self.ballot: Ballot = NO_BALLOT
        self._announcement: Path | None = None

    @property
    def depth(self) -> int:
        """Links to the root, or to the node where the known path ends."""
        return len(self.path)

    @property
    def depth_max(self) -> int:
        """The depth that a node of this tree may have."""
        return depth_max(self.total, self._children_max)

    # Changes.

    def is_sound(self, parent: NodeId, message: Adopt | Path) -> bool:
        """Whether that path begins at the parent and makes no loop."""
        path = message.path
        return path[:1] == (parent,) and self._me not in path and len(path) <= PATH_MAX

    def follow(self, message: Adopt | Path) -> bool:
        """Take over what the parent announces. Returns whether to announce the change to the children at once."""
        before = self.path, self.rooted, self.ballot, self.depth_max, self.watched
        self.path, self.rooted, self.total = message.path, message.rooted, message.total
        self.ballot, self.watched = max(self.ballot, message.ballot), message.watched
        self._announcement = None
        return before != (self.path, self.rooted, self.ballot, self.depth_max, self.watched)

    def detach(self, *, is_root: bool = False) -> None:
        """The seat has no parent, or none that has announced its path yet."""
        self.path, self.rooted, self._announcement = (), is_root, None

    def count(self, total: int) -> bool:
        """At the root: set the size of the tree. Returns whether to announce the change to the children soon."""
        before = self.depth_max
        self.total, self._announcement = total, None
        return before != self.depth_max

    def watch(self, watched: bool) -> bool:
        """At the root: whether somebody reads open windows. Returns whether that is new."""
        if watched == self.watched:
            return False
        self.watched, self._announcement = watched, None
        return True

    def raise_ballot(self, ballot: Ballot) -> bool:
        """Take over a ballot if it is higher than the known one. Returns whether it is."""
        if ballot <= self.ballot:
            return False
        self.ballot, self._announcement = ballot, None
        return True

    def announcement(self) -> Path:
        """The Path for the children."""
        if self._announcement is None:
            path = (self._me, *self.path)
            self._announcement = Path(self._job, path, self.ballot, self.rooted, self.total, self.watched)
        return self._announcement

    # Depth.

    def has_room(self, levels: int) -> bool:
        """Whether `levels` levels fit below this place."""
        return self.depth + levels <= max(self.depth_max, DEPTH_SMALL)

    def is_too_deep(self) -> bool:
        """Whether this seat is the uppermost one on its path that is too deep."""
        return self.rooted and self.depth == self.depth_max + 1

    def is_overweight(self, subtree: Subtree) -> bool:
        """Whether the subtree is too deep, and much larger than it would be at this depth in an evenly filled tree."""
        deepest = self.depth_max
        if not self.rooted or not 0 < self.depth <= deepest or self.depth + subtree.height - 1 <= deepest:
            return False
        return subtree.size * int(self._children_max**self.depth) > OVERWEIGHT * self.total

    def check(self) -> None:
        """Raise AssertionError unless all invariants hold. O(depth)."""
        assert self._me not in self.path
        assert len(self.path) <= PATH_MAX
        announced, self._announcement = self._announcement, None
        assert announced in (None, self.announcement())
