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
from elf.srt.messages.messages import Adopt, Ballot, Leave, Message, Path, Refuse, Size, TreeJoin
from elf.srt.tree.deadlines import NEVER, Deadlines
from elf.srt.tree.place import Place
from elf.srt.tree.subtree import Subtree

if TYPE_CHECKING:
    from random import Random

    from elf.srt.messages.parameters import Parameters

PASSING_MAX = 3  # a node outside the tree enters it at so many passing joins, to combine their bundles


class Changes(msgspec.Struct, frozen=True):
    """Changes for the reducer: a new parent (or none, or the same one again), children that joined (or joined again) and left."""

    parent: bool
    joined: tuple[NodeId, ...]
    gone: tuple[NodeId, ...]


class TreeSeat:
    """One job's seat on one node.

    Public attributes, to be read only: `parent` (None: root, searching or outside), `is_root`, `place` (above it), `subtree`
    (below it), `children` (of the subtree).
    """

    __slots__ = (
        "_attempt",
        "_due",
        "_parameters",
        "_parent_changed",
        "_passed",
        "_rng",
        "_searching",
        "children",
        "incarnation",
        "is_root",
        "job",
        "me",
        "parent",
        "place",
        "subtree",
        "wanted",
    )

    def __init__(self, job: JobId, me: NodeId, incarnation: int, parameters: Parameters, rng: Random) -> None:
        self.job, self.me, self.incarnation = job, me, incarnation
        self._parameters, self._rng = parameters, rng
        self.wanted = self.is_root = False
        self.parent: NodeId | None = None
        self.place = Place(job, me, parameters.children_max)
        self.subtree = Subtree()
        self.children = self.subtree.children
        self._attempt = self._passed = 0
        self._searching = self._parent_changed = False
        self._due = Deadlines()

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
        parent, (joined, gone) = self._parent_changed, self.subtree.take_changes()
        self._parent_changed = False
        return Changes(parent, joined, gone) if parent or joined or gone else None

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
        return effects + self._leave_tree_if_idle()

    def _leave_tree_if_idle(self) -> list[Effect]:
        if self.present:
            return []
        self._stop_searching()
        self._passed = 0
        return self._move(None)

    def lost(self, node: NodeId, now: int) -> list[Effect]:
        """That neighbour has left, is dead or has restarted, or its link was reset."""
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
        self.is_root = is_root
        if is_root:
            effects = self._move(None)
            self.place.detach(is_root=True)
            self.place.count(self.subtree.size)
            self._stop_searching()
            return effects + self._announce(now)
        if not self.present:
            self.place.detach()
            return []
        return self._orphaned(now)

    def raise_ballot(self, ballot: Ballot, now: int) -> list[Effect]:
        """A master's ballot became known other than by a Path (by a Commit or a Control, or this node serves)."""
        self._due.set_clock(now)
        return self._announce(now) if self.place.raise_ballot(ballot) else []

    def watch(self, watched: bool, now: int) -> list[Effect]:
        """The master, at the root, knows whether somebody reads open windows: announce a change at once."""
        self._due.set_clock(now)
        return self._announce(now) if self.is_root and self.place.watch(watched) else []

    def heard(self, source: NodeId, now: int) -> None:
        """Another message of this job came from that node: a sign of life as well."""
        if source == self.parent:
            self._due.parent = now + self._parameters.parent_timeout_us

    def stranger(self, source: NodeId) -> list[Effect]:
        """A node that is no child sent what a child sends: let it know, lest it waits for an answer."""
        return [Post(source, Refuse(self.job, 0))]

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
        if join.child in self.place.path:
            return handed, [Post(join.child, Refuse(self.job, join.attempt))] if handed else []
        if not (handed or self._may_adopt_on_the_way(join)):
            return False, effects
        return True, effects + self._take(join, now)

    def _may_adopt_on_the_way(self, join: TreeJoin) -> bool:
        if self.is_root or self.parent is None or join.child in self.children:
            return True
        below = 1 if len(self.children) < self._parameters.children_max else 2
        return self.place.rooted and self.place.has_room(below + join.height - 1)

    def _take(self, join: TreeJoin, now: int) -> list[Effect]:
        children = self.children
        if join.child in children or len(children) < self._parameters.children_max:
            return self._adopt(join, now)
        replaced = self.subtree.to_replace(join, self.place.has_room(1 + join.height))
        if replaced is None:
            return [Send(self.subtree.redirect(join.size), join)]
        size = children[replaced].size
        self._forget_child(replaced, now)
        other = self.subtree.redirect(size)
        return [Post(replaced, Refuse(self.job, 0, other)), *self._adopt(join, now)]

    def _adopt(self, join: TreeJoin, now: int) -> list[Effect]:
        self.subtree.adopt(join)
        if self._due.path == NEVER:
            self._due.path = now + self._parameters.life_us
        self._resized(now)
        down = self.place.announcement()
        adopt = Adopt(self.job, join.attempt, down.path, down.ballot, down.rooted, down.total, down.watched)
        return [Post(join.child, adopt)]

    def _forget_child(self, node: NodeId, now: int) -> None:
        self.subtree.forget(node)
        if not self.children:
            self._due.path = NEVER
        self._resized(now)

    # Messages.

    def step(self, source: NodeId, message: Message, now: int) -> list[Effect]:
        """An `Adopt`, `Path`, `Refuse`, `Size` or `Leave` from the link."""
        self._due.set_clock(now)
        if isinstance(message, Path):
            return self._follow(message, now) if source == self.parent else [Post(source, Leave(self.job))]
        if isinstance(message, Size):
            return self._on_size(source, message, now)
        if isinstance(message, Adopt):
            return self._on_adopt(source, message, now)
        if isinstance(message, Refuse):
            return self._on_refuse(source, message, now)
        return self.lost(source, now) if isinstance(message, Leave) else []

    def _on_adopt(self, source: NodeId, message: Adopt, now: int) -> list[Effect]:
        effects: list[Effect] = []
        if source != self.parent:
            if not self._welcomes(source, message):
                return [Post(source, Leave(self.job))]
            effects = self._move(source)
        self._stop_searching()
        self.subtree.reported = (0, 0)  # the parent may have answered an older join
        return effects + self._report_size() + self._follow(message, now)

    def _welcomes(self, source: NodeId, message: Adopt) -> bool:
        """Whether the adoption was requested, makes no loop, and is better than the present place."""
        if not self._searching or source in self.children or not self.place.is_sound(source, message):
            return False
        if self.parent is None:
            return True
        return message.attempt == self._attempt and message.rooted and len(message.path) < self.place.depth

    def _stop_searching(self) -> None:
        self._searching, self._due.join = False, NEVER

    def _follow(self, message: Adopt | Path, now: int) -> list[Effect]:
        """Take over the parent's path to the root; announce it to the children if it has changed. If it is a loop, leave the
        parent, and search again after a random wait, as the others of the loop do."""
        assert self.parent is not None
        if not self.place.is_sound(self.parent, message):
            wait_us = self._rng.randint(1, self._parameters.tree_retry_us)
            return self._move(None) + self._orphaned(now, wait_us=wait_us)
        self._due.parent = now + self._parameters.parent_timeout_us
        if not self.place.follow(message):
            return []
        self._watch_depth(now)
        return self._announce(now)

    def _on_size(self, source: NodeId, message: Size, now: int) -> list[Effect]:
        if source not in self.children:
            return self.stranger(source)
        self.subtree.resize(source, message.size, message.height)
        self._resized(now)
        return []

    def _on_refuse(self, source: NodeId, message: Refuse, now: int) -> list[Effect]:
        instead = b"" if message.instead == self.me else message.instead
        if source == self.parent:
            return self._orphaned(now, instead)
        if not self._searching or message.attempt != self._attempt:
            return []
        if self.parent is not None and not instead:
            self._stop_searching()
        return self._search(now, instead) if instead else []

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
        return self._move(None) + self._orphaned(now)

    # Upwards and downwards.

    def _search(self, now: int, node: NodeId = b"") -> list[Effect]:
        """Search for a parent, at `node` or on the way to the job's id."""
        retry = self._parameters.tree_retry_us
        self._attempt += 1
        self._searching = True
        self._due.join = now + retry + self._rng.randint(1, retry // 2)
        size, height = self.subtree.size, self.subtree.height
        join = TreeJoin(self.job, self.me, self.incarnation, self._attempt, size, height)
        return [Send(node, join) if node else Route(self.job, join)]

    def _orphaned(self, now: int, instead: NodeId = b"", wait_us: int = 0) -> list[Effect]:
        """The parent is lost. The subtree stays together: only this node searches."""
        self._set_parent(None)
        if not self.present:
            return self._leave_tree_if_idle()
        if not wait_us:
            return self._search(now, instead) + self._announce(now)
        self._searching, self._due.join = False, now + wait_us
        return self._announce(now)

    def _move(self, parent: NodeId | None) -> list[Effect]:
        """Leave the present parent, if there is one."""
        effects: list[Effect] = [] if self.parent is None else [Post(self.parent, Leave(self.job))]
        self._set_parent(parent)
        return effects

    def _set_parent(self, parent: NodeId | None) -> None:
        self._parent_changed = self._parent_changed or parent is not None or self.parent is not None
        self.parent = parent
        self.place.detach()
        self._due.parent = self._due.size = self._due.repair = NEVER

    def _announce(self, now: int) -> list[Effect]:
        if not self.children:
            return []
        self._due.path = now + self._parameters.life_us
        return self.multicast(self.place.announcement())

    def _resized(self, now: int) -> None:
        """The subtree has changed: report large changes soon, small ones later."""
        size, height = self.subtree.size, self.subtree.height
        if self.is_root:
            if self.place.count(size) and self.children:
                self._due.path = min(self._due.path, now + self._parameters.size_us)
        elif self.parent is not None and (size, height) != self.subtree.reported:
            reported_size, reported_height = self.subtree.reported
            large = height != reported_height or 4 * abs(size - reported_size) > reported_size
            wait = self._parameters.size_us if large else self._parameters.path_us
            self._due.size = min(self._due.size, now + wait)
            self._watch_depth(now)

    def _report_size(self) -> list[Effect]:
        self._due.size = NEVER
        if self.parent is None or not self.subtree.take_report():
            return []
        return [Post(self.parent, Size(self.job, *self.subtree.reported))]

    # Depth.

    def _watch_depth(self, now: int) -> None:
        """Schedule a repair if this node or one below it is too deep.

        The uppermost overweight node repairs first, since that improves its children's places too. Of single nodes that are too
        deep only the uppermost ones search for a better place, and late: the others move along, and the tree may be repaired by
        then.
        """
        path_us, is_overweight = self._parameters.path_us, self.place.is_overweight(self.subtree)
        if not (is_overweight or self.place.is_too_deep()):
            self._due.repair = NEVER
        elif self._due.repair == NEVER:
            wait_us = path_us + (self.place.depth - 1) * path_us // 4
            self._due.repair = now + (
                wait_us if is_overweight else 2 * path_us + self._rng.randint(1, 3 * path_us)
            )

    def _repair_depth(self, now: int) -> list[Effect]:
        self._due.repair = NEVER
        if self.place.is_overweight(self.subtree):
            return self._shed_children(now)
        if not self.place.is_too_deep() or self._searching:
            return []
        self._watch_depth(now)
        return self._search(now, self.place.path[-1])

    def _shed_children(self, now: int) -> list[Effect]:
        """Send the largest children to the parent until the subtree fits its place."""
        assert self.parent is not None
        effects: list[Effect] = []
        while self.children and self.place.is_overweight(self.subtree):
            child = self.subtree.largest()
            self._forget_child(child, now)
            effects.append(Post(child, Refuse(self.job, 0, self.parent)))
        return effects + self._leave_tree_if_idle()

    def check(self) -> None:
        """Raise AssertionError unless all invariants hold. O(children + depth)."""
        self.place.check()
        self.subtree.check()
        assert len(self.children) <= self._parameters.children_max
        assert self.me not in self.children
        assert self.parent not in self.children
        assert self.place.path[:1] == (() if self.parent is None else (self.parent,))
        assert self.parent is None or not self.is_root
        assert self.place.rooted or not self.is_root
        assert (self._due.path != NEVER) == bool(self.children)
        assert (self._due.parent != NEVER) == (self.parent is not None)
        assert self.present or (self.parent is None and self.deadline is None), (
            "a node outside the tree has a deadline"
        )
        if self.present and not self.is_root and self.parent is None:
            assert self._due.join != NEVER, "a searching node has no retry scheduled"
