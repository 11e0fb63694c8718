"""A node's seat in the tree of one job: joins and changes of neighbours in, signs of life, sizes and paths out.

Scribe (Castro et al., 2002) with a cap on children. A join is routed towards the job's id, and the first node on the way that is
in the tree takes it. What Scribe leaves open is decided by three values that the signs of life carry: the path to the root (so
that no node adopts an ancestor, and a loop made of stale paths is detected), the size and height of each subtree (upwards), and
the size of the whole tree (downwards; it determines how deep a node may be).

    state     | meaning                    | event                                        | next
    ----------+----------------------------+----------------------------------------------+--------------------------------
    outside   | not wanted, no children    | enter; a third join passes                   | searching
    searching | no parent; TreeJoin sent,  | Adopt                                        | seated
              | again every tree_retry_us; | root_changed(True), own join is routed back  | root
              | keeps its children         | Refuse(instead)                              | searching there
    seated    | has a parent               | parent lost or silent, Leave, Refuse, loop   | searching
              |                            | too deep for long                            | seated, searching a better place
    root      | overlay reports it closest | root_changed(False)                          | searching

A join is taken
- by the root: always. A full node keeps its largest subtrees: it forwards the joiner to its smallest child, or, if the joiner's
  subtree is much larger than that child's, adopts it in place of that child, which it sends to another child.
- on the way by a rooted node, unless the joiner's subtree would be too deep there; by a node that searches itself (so that nodes
  that join at the same time need not all go to the root); not by a node below a searching one, since it may be below the joiner.
- by a node to which it was forwarded: always, except by a descendant of the joiner.

Depth: if joiners follow the smallest child of full nodes, the subtree at depth d has at most N / children_max^d nodes, so a
single node finds room at depth ceil(log N) + 1 at the latest. A node that is deeper requests a better place from the root, and
keeps its parent meanwhile. Before that, a node whose subtree is too deep and overweight sends its largest children to its parent
(so a new root that gets the old one as its only child soon has the old one's children).

Invariants: `check`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from elf.srt.messages.effects import Effect, Post, Route, Send
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import NO_BALLOT, Adopt, Ballot, Leave, Message, Path, Refuse, Size, TreeJoin
from elf.srt.tree.deadlines import NEVER, Deadlines
from elf.srt.tree.subtree import HEIGHT_MAX, Child, depth_max, is_overweight, largest, least, lowest, measure

if TYPE_CHECKING:
    from random import Random

    from elf.srt.messages.parameters import Parameters

PATH_MAX = HEIGHT_MAX  # a longer path is a loop that still grows
PASSING_MAX = 3  # a node outside the tree enters it at so many passing joins, to combine their bundles
DEPTH_SMALL = 3  # of trees of up to 256 nodes: joins are taken on the way down to here, whatever the root has counted so far


class Changes(msgspec.Struct, frozen=True):
    """Changes for the reducer: a new parent (or none, or the same one again), children that joined (or joined again) and left."""

    parent: bool
    joined: tuple[NodeId, ...]
    gone: tuple[NodeId, ...]


class TreeSeat:
    """One job's seat on one node.

    Public attributes, to be read only: `parent` (None: root, searching or outside), `is_root`, `rooted` (the path ends in the
    root), `children` (in order of adoption), `path` (parent, its parent, …), `size` and `height` (of this subtree, this node
    included), `total` (nodes of the tree, as the root counts), `ballot` (the highest one known). `depth` is 0 at the root.
    """

    __slots__ = (
        "_attempt",
        "_down",
        "_due",
        "_gone",
        "_joined",
        "_parameters",
        "_parent_changed",
        "_passed",
        "_reported",
        "_rng",
        "_searching",
        "ballot",
        "children",
        "height",
        "incarnation",
        "is_root",
        "job",
        "me",
        "parent",
        "path",
        "rooted",
        "size",
        "total",
        "wanted",
    )

    def __init__(self, job: JobId, me: NodeId, incarnation: int, parameters: Parameters, rng: Random) -> None:
        self.job, self.me, self.incarnation = job, me, incarnation
        self._parameters, self._rng = parameters, rng
        self.wanted = self.is_root = self.rooted = False
        self.parent: NodeId | None = None
        self.path: tuple[NodeId, ...] = ()
        self.children: dict[NodeId, Child] = {}
        self.ballot: Ballot = NO_BALLOT
        self.size = self.height = 1
        self.total = 0
        self._reported = (0, 0)
        self._attempt = self._passed = 0
        self._searching = False
        self._down: Path | None = None
        self._due = Deadlines()
        self._parent_changed = False
        self._joined: list[NodeId] = []
        self._gone: list[NodeId] = []

    @property
    def depth(self) -> int:
        """Links to the root, or to the node where the known path ends."""
        return len(self.path)

    @property
    def present(self) -> bool:
        """Whether this node is part of the tree, or about to be."""
        return self.wanted or self.is_root or bool(self.children)

    @property
    def deadline(self) -> int | None:
        """When `tick` has work next."""
        return self._due.first

    def take_changes(self) -> Changes | None:
        """Changes since the last call; None if there are none."""
        if not (self._parent_changed or self._joined or self._gone):
            return None
        changes = Changes(self._parent_changed, tuple(self._joined), tuple(self._gone))
        self._parent_changed, self._joined, self._gone = False, [], []
        return changes

    # Entering and leaving.

    def enter(self, now: int) -> list[Effect]:
        """This node wants to be in the job's tree."""
        self._due.set_clock(now)
        if self.wanted:
            return []
        self.wanted = True
        return [] if self.is_root or self.parent is not None or self._searching else self._search(now)

    def continue_from(self, former: TreeSeat) -> None:
        """This life had a seat in the job's tree before: continue its numbers, so that answers to it do not match."""
        self._attempt = former._attempt

    def leave(self, now: int) -> list[Effect]:
        """This node no longer wants to be in the tree. It sends its children to its parent; a root stays the root."""
        self._due.set_clock(now)
        self.wanted = False
        if self.is_root:
            return []
        effects: list[Effect] = []
        instead = self.parent or b""
        for child in list(self.children):
            effects.append(Post(child, Refuse(self.job, 0, instead)))
            self._forget_child(child, now)
        return effects + self._leave_tree()

    def _leave_tree(self) -> list[Effect]:
        effects: list[Effect] = [] if self.parent is None else [Post(self.parent, Leave(self.job))]
        self._set_parent(None)
        self._searching, self._passed = False, 0
        self._due.join = self._due.path = NEVER
        return effects

    def lost(self, node: NodeId, now: int) -> list[Effect]:
        """That neighbour is dead or has restarted, or its link was reset."""
        self._due.set_clock(now)
        effects: list[Effect] = []
        if node in self.children:
            self._forget_child(node, now)
            effects += self._leave_tree_if_idle()
        if node == self.parent:
            effects += self._orphaned(now)
        return effects

    def root_changed(self, is_root: bool, now: int) -> list[Effect]:
        """According to the overlay, this node is (no longer) the closest to the job's id."""
        self._due.set_clock(now)
        if is_root == self.is_root:
            return []
        if is_root:
            effects: list[Effect] = [] if self.parent is None else [Post(self.parent, Leave(self.job))]
            self._set_parent(None)
            self.is_root = self.rooted = True
            self.total, self._searching, self._due.join = self.size, False, NEVER
            return effects + self._announce(now)
        self.is_root = False
        if not self.present:
            self.rooted = False
            return []
        return self._orphaned(now)

    def raise_ballot(self, ballot: Ballot, now: int) -> list[Effect]:
        """A master's ballot became known other than by a Path (by a Commit or a Control, or this node serves)."""
        self._due.set_clock(now)
        if ballot <= self.ballot:
            return []
        self.ballot = ballot
        return self._announce(now)

    def heard(self, source: NodeId, now: int) -> None:
        """Another message of this job came from that node: a sign of life as well."""
        if source == self.parent:
            self._due.parent = now + self._parameters.parent_timeout_us

    def multicast(self, message: Message) -> list[Effect]:
        """The message for each child."""
        return [Post(child, message) for child in self.children]

    # Joins of others.

    def passing(self, join: TreeJoin, origin: NodeId, now: int, is_root: bool) -> tuple[bool, list[Effect]]:
        """A join that is routed through this node, or was sent to it. True: it is handled; False: route it on.

        origin: the sender of the datagram. The joiner itself, if the join is routed; another node has forwarded it, and then it
        is never routed on, so that it cannot loop. is_root: this node is the closest to the job's id.
        """
        self._due.set_clock(now)
        effects = self.root_changed(True, now) if is_root and not self.is_root else []
        if join.child == self.me:
            return is_root, effects
        known = self.children.get(join.child)
        if known is not None and join.incarnation < known.incarnation:
            return True, effects  # a late one of an earlier life
        handed = origin != join.child
        if not self.present:
            self._passed += 1
            if not handed and self._passed < PASSING_MAX:
                return False, effects
            effects += self._search(now)
        if self._is_ancestor(join.child):
            return handed, [Post(join.child, Refuse(self.job, join.attempt))] if handed else []
        if not (handed or self._may_adopt_on_the_way(join)):
            return False, effects
        return True, effects + self._place(join, now)

    def _is_ancestor(self, node: NodeId) -> bool:
        return node in self.path

    def _may_adopt_on_the_way(self, join: TreeJoin) -> bool:
        if self.is_root or self.parent is None or join.child in self.children:
            return True
        below = 1 if len(self.children) < self._parameters.children_max else 2
        return self.rooted and self.depth + below + join.height - 1 <= max(self._depth_max(), DEPTH_SMALL)

    def _depth_max(self) -> int:
        return depth_max(self.total, self._parameters.children_max)

    def _place(self, join: TreeJoin, now: int) -> list[Effect]:
        children = self.children
        if join.child in children or len(children) < self._parameters.children_max:
            return self._adopt(join, now)
        replaced = self._child_to_replace(join)
        if replaced is None:
            smallest = least(children)
            children[smallest].redirected += join.size
            return [Send(smallest, join)]
        size = children[replaced].size
        self._forget_child(replaced, now)
        other = least(children)
        children[other].redirected += size
        return [Post(replaced, Refuse(self.job, 0, other)), *self._adopt(join, now)]

    def _child_to_replace(self, join: TreeJoin) -> NodeId | None:
        """The child that a joiner replaces, and that moves further down; None if none. The lowest child, if the joiner's subtree
        would be too deep below a child; or the smallest child, if the joiner's subtree is much larger."""
        children = self.children
        if self.depth + 1 + join.height > max(self._depth_max(), DEPTH_SMALL):
            low = lowest(children)
            return low if children[low].height < join.height else None
        smallest = least(children)
        return smallest if join.size > 2 * children[smallest].size else None

    def _adopt(self, join: TreeJoin, now: int) -> list[Effect]:
        known = self.children.get(join.child)
        if known is None or known.incarnation != join.incarnation:
            self._joined.append(join.child)
            self.children[join.child] = Child(join.incarnation, join.size, join.height)
        else:
            known.resize(join.size, join.height)
        if self._due.path == NEVER:
            self._due.path = now + self._parameters.path_us
        self._resized(now)
        down = self._downwards()
        adopt = Adopt(self.job, join.attempt, down.path, down.ballot, down.rooted, down.total)
        return [Post(join.child, adopt)]

    def _forget_child(self, node: NodeId, now: int) -> None:
        del self.children[node]
        self._gone.append(node)
        if not self.children:
            self._due.path = NEVER
        self._resized(now)

    def _leave_tree_if_idle(self) -> list[Effect]:
        return [] if self.present else self._leave_tree()

    # Messages.

    def step(self, source: NodeId, message: Message, now: int) -> list[Effect]:
        """An `Adopt`, `Path`, `Refuse`, `Size` or `Leave` from the link."""
        self._due.set_clock(now)
        if isinstance(message, Path):
            return self._on_path(source, message, now)
        if isinstance(message, Size):
            return self._on_size(source, message, now)
        if isinstance(message, Adopt):
            return self._on_adopt(source, message, now)
        if isinstance(message, Refuse):
            return self._on_refuse(source, message, now)
        if isinstance(message, Leave):
            return self._on_leave(source, now)
        return []

    def _on_adopt(self, source: NodeId, message: Adopt, now: int) -> list[Effect]:
        effects: list[Effect] = []
        if source != self.parent:
            if not self._welcomes(source, message):
                return [Post(source, Leave(self.job))]
            if self.parent is not None:
                effects.append(Post(self.parent, Leave(self.job)))
            self._set_parent(source)
        self._stop_searching()
        self._reported = (0, 0)  # the parent may have answered an older join
        return effects + self._report_size() + self._follow(message, now)

    def _welcomes(self, source: NodeId, message: Adopt) -> bool:
        """Whether the adoption was requested, makes no loop, and is better than the present place."""
        if not self._searching or source in self.children or not self._is_sound(source, message):
            return False
        if self.parent is None:
            return True
        return message.attempt == self._attempt and message.rooted and len(message.path) < self.depth

    def _stop_searching(self) -> None:
        self._searching, self._due.join = False, NEVER

    def _is_sound(self, source: NodeId, message: Adopt | Path) -> bool:
        path = message.path
        return path[:1] == (source,) and self.me not in path and len(path) <= PATH_MAX

    def _on_path(self, source: NodeId, message: Path, now: int) -> list[Effect]:
        if source != self.parent:
            return [Post(source, Leave(self.job))]
        return self._follow(message, now)

    def _follow(self, message: Adopt | Path, now: int) -> list[Effect]:
        """Take over the parent's path to the root; announce it to the children if it has changed."""
        assert self.parent is not None
        if not self._is_sound(self.parent, message):
            return self._break_loop(now)
        self._due.parent = now + self._parameters.parent_timeout_us
        news = message.path != self.path or message.rooted != self.rooted or message.ballot > self.ballot
        if message.total != self.total:
            before = self._depth_max()
            self.total, self._down = message.total, None
            news = news or before != self._depth_max()
        if not news:
            return []
        self.path, self.rooted = message.path, message.rooted
        self.ballot = max(self.ballot, message.ballot)
        self._watch_depth(now)
        return self._announce(now)

    def _break_loop(self, now: int) -> list[Effect]:
        """The parent's path leads through this node: leave it, and search again after a random wait, as the others of the loop
        do."""
        parent = self.parent
        assert parent is not None
        effects = self._orphaned(now, self._jitter(self._parameters.tree_retry_us))
        return [Post(parent, Leave(self.job)), *effects]

    def _on_size(self, source: NodeId, message: Size, now: int) -> list[Effect]:
        child = self.children.get(source)
        if child is None:
            return [Post(source, Refuse(self.job, 0))]
        child.resize(message.size, message.height)
        self._resized(now)
        return []

    def _on_refuse(self, source: NodeId, message: Refuse, now: int) -> list[Effect]:
        instead = b"" if message.instead == self.me else message.instead
        if source == self.parent:
            self._set_parent(None)
            return self._search(now, instead) + self._announce(now)
        if not self._searching or message.attempt != self._attempt:
            return []
        if self.parent is not None and not instead:
            self._stop_searching()
        return self._search(now, instead) if instead else []

    def _on_leave(self, source: NodeId, now: int) -> list[Effect]:
        if source in self.children:
            self._forget_child(source, now)
            return self._leave_tree_if_idle()
        return self._orphaned(now) if source == self.parent else []

    # Time.

    def tick(self, now: int) -> list[Effect]:
        self._due.set_clock(now)
        effects: list[Effect] = []
        if now >= self._due.parent:
            effects += self._parent_timed_out(now)
        if now >= self._due.join:
            if self.parent is None:
                effects += self._search(now)
            else:
                self._stop_searching()
        if now >= self._due.size:
            effects += self._report_size()
        if now >= self._due.path:
            for child in self.children.values():
                child.redirected = 0
            self._watch_depth(now)
            effects += self._announce(now)
        if now >= self._due.repair:
            effects += self._repair_depth(now)
        return effects

    def _parent_timed_out(self, now: int) -> list[Effect]:
        late = now - self._due.parent
        if late > self._parameters.path_us:  # this node was paused, or its clock jumped
            self._due.parent = now + self._parameters.parent_timeout_us
            return []
        parent = self.parent
        assert parent is not None
        return [Post(parent, Leave(self.job)), *self._orphaned(now)]

    def _jitter(self, span_us: int) -> int:
        return self._rng.randrange(1, span_us + 1)

    # Upwards and downwards.

    def _search(self, now: int, node: NodeId = b"") -> list[Effect]:
        """Search for a parent, at `node` or on the way to the job's id."""
        retry = self._parameters.tree_retry_us
        self._attempt += 1
        self._searching = True
        self._due.join = now + retry + self._jitter(retry // 2)
        join = TreeJoin(self.job, self.me, self.incarnation, self._attempt, self.size, self.height)
        return [Send(node, join) if node else Route(self.job, join)]

    def _orphaned(self, now: int, wait_us: int = 0) -> list[Effect]:
        """The parent is lost. The subtree stays together: only this node searches."""
        self._set_parent(None)
        if not self.present:
            return self._leave_tree()
        if not wait_us:
            return self._search(now) + self._announce(now)
        self._searching, self._due.join = False, now + wait_us
        return self._announce(now)

    def _set_parent(self, parent: NodeId | None) -> None:
        self._parent_changed = self._parent_changed or parent is not None or self.parent is not None
        self.parent = parent
        self.path, self.rooted, self._down = (), False, None
        self._due.parent = self._due.size = self._due.repair = NEVER

    def _downwards(self) -> Path:
        if self._down is None:
            self._down = Path(self.job, (self.me, *self.path), self.ballot, self.rooted, self.total)
        return self._down

    def _announce(self, now: int) -> list[Effect]:
        self._down = None
        if not self.children:
            return []
        self._due.path = now + self._parameters.path_us
        return self.multicast(self._downwards())

    def _resized(self, now: int) -> None:
        """Measure the subtree again; report large changes soon, small ones later. O(children)."""
        size, height = self.size, self.height = measure(self.children)
        if self.is_root:
            self._count(now)
        elif self.parent is not None and (size, height) != self._reported:
            reported_size, reported_height = self._reported
            large = height != reported_height or 4 * abs(size - reported_size) > reported_size
            wait = self._parameters.size_us if large else self._parameters.path_us
            self._due.size = min(self._due.size, now + wait)

    def _count(self, now: int) -> None:
        before = self._depth_max()
        self.total, self._down = self.size, None
        if self.children and self._depth_max() != before:
            self._due.path = min(self._due.path, now + self._parameters.size_us)

    def _report_size(self) -> list[Effect]:
        self._due.size = NEVER
        if self.parent is None or self._reported == (self.size, self.height):
            return []
        self._reported = (self.size, self.height)
        return [Post(self.parent, Size(self.job, self.size, self.height))]

    # Depth.

    def _watch_depth(self, now: int) -> None:
        """Schedule a repair if this node or one below it is too deep.

        The uppermost overweight node repairs first, since that improves its children's places too. Of single nodes that are too
        deep only the uppermost ones search for a better place, and late: the others move along, and the tree may be repaired by
        then.
        """
        path_us = self._parameters.path_us
        if not (self._is_too_deep() or self._is_overweight()):
            self._due.repair = NEVER
        elif self._due.repair == NEVER:
            wait_us = path_us + (self.depth - 1) * path_us // 4
            self._due.repair = now + (
                wait_us if self._is_overweight() else 2 * path_us + self._jitter(3 * path_us)
            )

    def _is_too_deep(self) -> bool:
        return self.rooted and self.depth == self._depth_max() + 1

    def _is_overweight(self) -> bool:
        """Whether the subtree is too deep, and larger than its share of the places at this depth."""
        deepest = self._depth_max()
        if not self.rooted or not 0 < self.depth <= deepest or self.depth + self.height - 1 <= deepest:
            return False
        return is_overweight(self.size, self.depth, self.total, self._parameters.children_max)

    def _repair_depth(self, now: int) -> list[Effect]:
        self._due.repair = NEVER
        if self._is_overweight():
            return self._shed_children(now)
        if not self._is_too_deep() or self._searching:
            return []
        self._watch_depth(now)
        return self._search(now, self.path[-1])

    def _shed_children(self, now: int) -> list[Effect]:
        """Send the largest children to the parent until the subtree fits its place."""
        assert self.parent is not None
        effects: list[Effect] = []
        while self.children and self._is_overweight():
            child = largest(self.children)
            self._forget_child(child, now)
            effects.append(Post(child, Refuse(self.job, 0, self.parent)))
        return effects + self._leave_tree_if_idle()

    def check(self) -> None:
        """Raise AssertionError unless all invariants hold. O(children + depth)."""
        assert len(self.children) <= self._parameters.children_max
        assert self.me not in self.children
        assert self.me not in self.path
        assert self.parent not in self.children
        assert self.path[:1] == (() if self.parent is None else (self.parent,))
        assert self.parent is None or not self.is_root
        assert self.rooted or not self.is_root
        assert self.size == 1 + sum(child.size for child in self.children.values())
        assert (self._due.path != NEVER) == bool(self.children)
        assert (self._due.parent != NEVER) == (self.parent is not None)
        assert self.present or (self.parent is None and self.deadline is None), (
            "a node outside the tree has a deadline"
        )
        if self.present and not self.is_root and self.parent is None:
            assert self._due.join != NEVER, "a searching node has no retry scheduled"
