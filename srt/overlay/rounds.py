"""The periodic probes and requests of a node: one turn in each probe period.

    every turn      one leaf, in a random order that is drawn anew each round; one watched node that is no leaf; up to
                    `SOON_PER_TURN` of `soon`
    turn mod 4 = 0  one node of the routing table: the last hop used, else in turn (each eighth turn a candidate for a cell)
    turn mod 4 = 1  one watched node, also if it is a leaf; the ends of the leaf set, while it has `holes`
    turn mod 4 = 2  the last hop used
    turn mod 4 = 3  one dead member, while any is remembered
    turn mod 64     request one row of a node's routing table, from a node of the own table
    turn mod 64     the seeds that are no members: JoinMesh through them again; turn mod 8 while the node is alone

So a node sends 2 + 1/2 pings a second (and 2 more while it watches nodes that are no leaves), and each node is probed twice a
second by its leaf set as a whole; half as often where no job's tree needs it and nothing is out of order. Leaves hear of each
other's death from any that finds out; so where all nodes of a small mesh watch a master, 15 of them need not probe it twice a
second each. Invariants: `soon` is bounded. Prior art: SWIM (DSN 2002), section 4.3, for the order of probes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elf.srt.messages.effects import Effect, Send
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Contact, JoinMesh, LeavesRequest
from elf.srt.overlay.membership import DIRECT, ONCE, Membership
from elf.srt.overlay.neighbours import Neighbours
from elf.srt.overlay.repair import Repair

if TYPE_CHECKING:
    from random import Random

SOON_MAX = 32
"""Nodes to be probed out of turn: two leaf sets."""
SOON_TRIES = 3
"""Pings, a probe period apart, to a node that is reported alive: at 5 % loss one node in a thousand is missed, and probed again
later."""
SOON_PER_TURN = 8
"""So all of `SOON_MAX` are probed in four probe periods. With the two pings of every turn, a turn sends ten, 2 KB."""
TABLE_TURNS, ROW_TURNS, SEED_TURNS, ALONE_TURNS = 4, 64, 64, 8
"""In turns, of which there are two a second, or one while calm: a node of the routing table every 2 s; every half minute a row,
and the seeds, which may be in another half of the mesh; every 4 to 8 s where the node is alone, as one that joins."""
SEEDS_MAX = 4
"""Seeds that are asked in one turn."""


class Rounds:
    """The schedule of probes and requests.

    soon: node -> (contact, tries left), oldest first.
    """

    __slots__ = ("_members", "_near", "_order", "_repair", "_rng", "_turn", "soon")

    def __init__(self, members: Membership, near: Neighbours, repair: Repair, rng: Random) -> None:
        self._members = members
        self._near = near
        self._repair = repair
        self._rng = rng
        self._turn = rng.randrange(2 * SEED_TURNS)
        self._order: list[NodeId] = []
        self.soon: dict[NodeId, tuple[Contact, int]] = {}

    @property
    def is_calm(self) -> bool:
        """No tree depends on this node's probes, and nothing is out of order: turns may come half as often."""
        is_whole = self._members.is_calm and not self._repair.holes
        return is_whole and not (self._near.watched or self.soon)

    def ask_now(self, contact: Contact, out: list[Effect]) -> None:
        """Ping a node that would be a leaf, unless that is under way."""
        if contact.id in self.soon:
            return
        if len(self.soon) < SOON_MAX:
            self.soon[contact.id] = (contact, SOON_TRIES - 1)
            out.append(self._members.probe(contact, self._near.leaves.digest, ONCE))
        else:
            self._repair.holes = True

    def ask_soon(self, contact: Contact, tries: int = 1) -> None:
        """Ping a node in one of the next turns."""
        if contact.id not in self.soon and len(self.soon) < SOON_MAX:
            self.soon[contact.id] = (contact, tries)

    def ask_all_soon(self) -> None:
        """After the death of a leaf, ping the whole leaf set within two turns: others in the same rack may have died too."""
        members = self._members.members
        for leaf in self._near.leaves.clockwise():
            self.ask_soon(members[leaf])

    def take(self, seeds: tuple[Contact, ...], out: list[Effect]) -> None:
        """One turn. `seeds`: every `SEED_TURNS` turns, send JoinMesh to those of them that are no members."""
        self._turn += 1
        near = self._near
        self._probe(self._next_leaf(), out)
        quarter = self._turn % TABLE_TURNS
        if near.watched:
            node = self._next_watched()
            if quarter == 1 or node not in near.leaves:
                self._probe(node, out)
        if self.soon:
            self._ask_the_next(out)
        if quarter == 0 or (quarter == 2 and near.used is not None):
            self._probe_table(out)
        elif quarter == 1 and self._repair.holes:
            out.extend(self._repair.request_edges())
        if self._members.graves and (quarter == 3 or not near.leaves):
            self._look_for_dead(out)
        if self._turn % (SEED_TURNS if near.leaves else ALONE_TURNS) == 0:
            self._look_for_seeds(seeds, out)
        if self._turn % ROW_TURNS == 0 and near.table:
            node = self._rng.choice(list(near.table))
            out.append(Send(node, LeavesRequest(self._members.me, near.table.row_of(node))))

    def _probe(self, node: NodeId | None, out: list[Effect]) -> None:
        contact = None if node is None else self._members.members.get(node)
        if contact is not None:
            out.append(self._members.probe(contact, self._near.leaves.digest))

    def _next_leaf(self) -> NodeId | None:
        """In a random order that is drawn anew each round: each leaf is probed once a round."""
        leaves, order = self._near.leaves, self._order
        while order:
            node = order.pop()
            if node in leaves:
                return node
        order.extend(leaves.clockwise())
        self._rng.shuffle(order)
        return order.pop() if order else None

    def _next_watched(self) -> NodeId:
        watched = self._near.watched
        node = next(iter(watched))
        watched[node] = watched.pop(node)
        return node

    def _ask_the_next(self, out: list[Effect]) -> None:
        members = self._members
        for node in list(self.soon)[:SOON_PER_TURN]:
            contact, tries = self.soon.pop(node)
            member = members.members.get(node)
            stage = ONCE if member is None else DIRECT
            out.append(members.probe(member or contact, self._near.leaves.digest, stage))
            if tries > 1:
                self.soon[node] = (contact, tries - 1)
            elif member is None and node not in members.graves:
                self._repair.forget_reports()

    def _probe_table(self, out: list[Effect]) -> None:
        near = self._near
        used, near.used = near.used, None
        if used is not None and used in self._members.members:
            self._probe(used, out)
        elif near.candidate is not None and self._turn % (2 * TABLE_TURNS) == 0:
            out.append(self._members.probe(near.candidate, near.leaves.digest, ONCE))
            near.candidate = None
        elif near.table:
            nodes = list(near.table)
            self._probe(nodes[self._turn // TABLE_TURNS % len(nodes)], out)

    def _look_for_dead(self, out: list[Effect]) -> None:
        """Rule: dead members are probed now and then, so that the halves of a partitioned mesh find each other again."""
        contact = self._members.next_grave()
        if contact is not None:
            out.append(self._members.probe(contact, self._near.leaves.digest, ONCE))

    def _look_for_seeds(self, seeds: tuple[Contact, ...], out: list[Effect]) -> None:
        """All of them: some may have gone for good."""
        strange = [seed for seed in seeds if seed.id not in self._members.members]
        if len(strange) > SEEDS_MAX:
            strange = self._rng.sample(strange, SEEDS_MAX)
        out += [Send(seed.id, JoinMesh(self._members.me)) for seed in strange]

    def check(self) -> None:
        assert len(self.soon) <= SOON_MAX
        assert self._members.me.id not in self.soon
