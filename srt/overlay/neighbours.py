"""The nodes that a node keeps: its leaf set, its routing table and the watched ones; and which of them is nearest to a key.

The next hop: where the leaf set covers the key, its closest node; else the routing table's node, else the nearest known node.
Each hop is strictly closer to the key (`ids.closeness`), whatever the tables contain. So no message loops, even while the tables
of different nodes disagree; only a hop past nodes that are no destination may be farther away than such a node. In few cases
this costs a hop: near a boundary of digits, the routing table's node may share a longer prefix but be farther away; then the next
hop is the nearest known node on this side.

A suspect stays in the leaf set and still gets the messages routed to it: suspicion alone moves no job to another master. A
suspect in the routing table is skipped if another node is closer than this one.

Of two nodes for one cell the table prefers the one whose round trip is shorter by a quarter, so that cells rarely change.

Only a node that has itself sent a message enters the leaf set. Reports of others suffice for the table, whose nodes are verified
when used.

Invariants: every member is a leaf, in the table, or watched; the tables contain only members.
Prior art: Pastry (Rowstron and Druschel, Middleware 2001), sections 2.3 and 2.5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

from elf.srt.messages.ids import NodeId, closeness, distance
from elf.srt.messages.messages import Contact
from elf.srt.overlay.leafset import LeafSet
from elf.srt.overlay.membership import Membership
from elf.srt.overlay.routing import RoutingTable


class Neighbours:
    """Decides which nodes are `members`, and nothing else."""

    __slots__ = ("_members", "_proximity", "_round_trips", "candidate", "leaves", "table", "used", "watched")

    def __init__(
        self, members: Membership, leaves: int, proximity: Callable[[NodeId], int] | None = None
    ) -> None:
        self._members = members
        self._proximity = proximity
        self._round_trips: dict[NodeId, int] = {}
        self.leaves = LeafSet(members.me.id, leaves)
        self.table = RoutingTable(members.me.id)
        self.watched: dict[NodeId, int] = {}
        """Node -> number of `watch` calls without an `unwatch`."""
        self.candidate: Contact | None = None
        """A node whose cell another node has, and whose round trip is not measured yet."""
        self.used: NodeId | None = None
        """The last hop outside the leaf set. This node probes it, since possibly no other node does."""

    # Routing.

    def next_hop(self, key: bytes, without: Set[NodeId] = frozenset()) -> NodeId | None:
        """The next hop to the node closest to `key`; None if that is me. O(log L), seldom O(members).

        without: nodes that are no destination. Where the leaf set covers the key, the hop is the closest of the others.
        """
        leaves = self.leaves
        if leaves.covers(key):
            hop = leaves.closest(key)
            if hop in without:
                near = leaves.nearest(key, len(leaves) + 1)
                hop = next((node for node in near if node not in without), leaves.me)
            return None if hop == leaves.me else hop
        found = self.table.get(key)
        if found is None or found in self._members.suspects or not self.is_closer(key, found):
            found = self._nearest_known(key)
        self.used = found
        return found

    def hop_past(self, key: NodeId) -> NodeId | None:
        """The next hop as if the node `key` did not exist. O(members)."""
        if self.leaves.covers(key):
            hop: NodeId | None = next(node for node in self.leaves.nearest(key, 2) if node != key)
            return hop if hop != self.leaves.me else None
        hop = self.next_hop(key)
        return hop if hop != key else self._nearest_known(key, but=key)

    def is_closer(self, key: bytes, node: NodeId) -> bool:
        """Rule: a hop must be strictly closer to the key than I am."""
        return closeness(key, node) < closeness(key, self.leaves.me)

    def _nearest_known(self, key: bytes, but: NodeId = b"") -> NodeId | None:
        suspects = self._members.suspects
        best = me = self.leaves.me
        best_distance = distance(key, me)
        for node in self._members.members:
            far = distance(key, node)
            if far > best_distance or node == but or (far == best_distance and node > best):
                continue
            if node not in suspects or node in self.leaves:
                best, best_distance = node, far
        return best if best != me else None

    # Members.

    def take_in(self, contact: Contact, *, heard: bool) -> bool:
        """Put a live node where it fits: leaf set, table. heard: the node itself reported. Returns whether it is a new leaf."""
        node = contact.id
        fits = heard and node not in self.leaves and self.leaves.fits(node)
        old = self._members.members.get(node)
        holder = self.table.get(node)
        wanted = holder is None or (holder != node and self._is_nearer(node, holder))
        if not (fits or wanted or self._is_kept(node)):
            if self._proximity is None:
                self.candidate = contact
            return False
        if old is None or not old.incarnation:
            self._members.admit(contact)
        elif fits:
            self._members.changes.append(("alive", old))
        if wanted:
            self._put(node)
        if fits:
            pushed_out = self.leaves.add(node)
            if pushed_out is not None:
                self._release(pushed_out)
        return fits

    def warm(self, contacts: Iterable[Contact]) -> None:
        """Start with these members, without reporting changes. O(n log n)."""
        members = self._members.members
        for contact in contacts:
            if contact.id != self.leaves.me:
                members[contact.id] = contact
        self.leaves.fill(members)
        for node in members:
            if self.table.get(node) is None:
                self.table.put(node)
        for node in [node for node in members if not self._is_kept(node)]:
            del members[node]

    def drop(self, node: NodeId) -> tuple[bool, int]:
        """Remove a former member from the tables: (whether it was a leaf, its row in the table or -1)."""
        self._round_trips.pop(node, None)
        was_leaf = self.leaves.discard(node)
        return was_leaf, self.table.row_of(node) if self.table.discard(node) else -1

    def would_be_leaves(self) -> list[Contact]:
        """Members for which the leaf set has room; they enter it once they answer. O(n log n)."""
        members = self._members.members
        proper = [node for node, member in members.items() if member.incarnation]
        return [members[node] for node in self.leaves.lacks(proper)]

    def watch(self, node: NodeId) -> None:
        self.watched[node] = self.watched.get(node, 0) + 1

    def unwatch(self, node: NodeId) -> None:
        count = self.watched.pop(node, 0)
        if count > 1:
            self.watched[node] = count - 1
        elif count:
            self._release(node)

    def _put(self, node: NodeId) -> None:
        pushed_out = self.table.put(node)
        if pushed_out is not None:
            self._round_trips.pop(pushed_out, None)
            self._release(pushed_out)

    def _release(self, node: NodeId) -> None:
        """The node has lost one of its places: forget it, unless it has another place, or its cell in the table is free."""
        members = self._members
        if self._is_kept(node) or node not in members.members:
            return
        if self.table.get(node) is None and members.members[node].incarnation:
            self.table.put(node)
        else:
            members.forget(node)

    def _is_kept(self, node: NodeId) -> bool:
        return node in self.leaves or node in self.watched or node in self.table

    # Round trips.

    def measured(self, node: NodeId, round_trip_us: int) -> None:
        """Record a round trip, smoothed as in TCP, by an eighth. Call `compete` when the node was heard."""
        if self._proximity is None:
            old = self._round_trips.get(node, round_trip_us)
            self._round_trips[node] = old + (round_trip_us - old) // 8

    def compete(self, node: NodeId) -> None:
        """Give a measured node its cell if it is nearer than the holder; round trips of nodes outside the table are dropped."""
        holder = self.table.get(node)
        if holder == node:
            return
        if node in self._members.members and (holder is None or self._is_nearer(node, holder)):
            self._put(node)
        else:
            self._round_trips.pop(node, None)
        if self.candidate is not None and self.candidate.id == node:
            self.candidate = None

    def _is_nearer(self, node: NodeId, holder: NodeId) -> bool:
        one, other = self._round_trip(node), self._round_trip(holder)
        return one is not None and other is not None and 4 * one < 3 * other

    def _round_trip(self, node: NodeId) -> int | None:
        return self._round_trips.get(node) if self._proximity is None else self._proximity(node)

    def check(self) -> None:
        self.leaves.check()
        self.table.check()
        members = self._members.members
        tables = {*self.leaves.clockwise(), *self.table}
        assert tables <= members.keys() <= tables | self.watched.keys()
        assert self._round_trips.keys() <= set(self.table)
