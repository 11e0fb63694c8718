"""The overlay of one node: it owns membership, leaf set and routing table, joins, probes and repairs.

Transitions (see `membership` for the states of other nodes):

    event                                action
    join, no other seed                  joined: I am the first node
    join with seeds                      JoinMesh to one seed after the other, with growing pauses, until a JoinReply comes
    JoinMesh                             add known contacts and forward it; the closest node answers JoinReply
    JoinReply                            take in the contacts that fit, ping those of the leaf set, which then take me in
    Ping                                 Pong; take its sender and its claims
    Pong                                 end the probe, record the round trip; forward it if the probe was for another node
    ProbeFor                             Ping to the target
    a neighbour's digest has changed     see `repair`
    LeavesReport                         take in the contacts that fit; probe those that I consider dead
    a process is gone, or restarted      seen on my own connections, not reported by others: dead; or alive in a later life
    a member dies                        remove it from all tables; LeavesRequest to the ends of the leaf set, or to one of its
                                         row: a node that answers gets its place; probe the whole leaf set at once
    each probe_us, or two while calm     a turn: see `rounds`

For members and routing see `neighbours`.

Invariants: `check`. Prior art: Pastry (Middleware 2001); SWIM (DSN 2002).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from typing import TYPE_CHECKING

from msgspec.structs import replace

from elf.srt.messages.effects import Effect, Send
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import (
    COUNT_MAX,
    Contact,
    JoinMesh,
    JoinReply,
    LeavesReport,
    LeavesRequest,
    Life,
    Message,
    News,
    Ping,
    Pong,
    ProbeFor,
)
from elf.srt.messages.parameters import Parameters
from elf.srt.overlay.joining import Joining
from elf.srt.overlay.membership import (
    CALM_PERIODS,
    DIRECT,
    FOR_ANOTHER,
    INDIRECT,
    ONCE,
    Change,
    Membership,
    newer,
)
from elf.srt.overlay.neighbours import Neighbours
from elf.srt.overlay.repair import Repair
from elf.srt.overlay.rounds import SOON_TRIES, Rounds

if TYPE_CHECKING:
    from random import Random

KNOWN_MAX = 160
"""Contacts in a JoinMesh: eight hops with a row of 15 and themselves, and a leaf set."""
_FROM_SENDERS = (Ping, Pong, ProbeFor, LeavesRequest, LeavesReport, JoinReply)
"""Not forwarded: the sender of the datagram is that of the message."""


class Overlay:
    """`rng`: for the order of probes and the choice of indirect probers. `proximity`: a node's round trip in µs, if the host
    knows it; without it, probes measure round trips."""

    __slots__ = (
        "_due",
        "_joining",
        "_members",
        "_near",
        "_parameters",
        "_repair",
        "_rounds",
        "_turn_at",
    )

    def __init__(
        self,
        me: Contact,
        parameters: Parameters,
        rng: Random,
        *,
        proximity: Callable[[NodeId], int] | None = None,
    ) -> None:
        self._parameters = parameters
        self._members = Membership(me, parameters, rng)
        self._near = Neighbours(self._members, parameters.leaves, proximity)
        self._repair = Repair(self._members, self._near, parameters.repair_us)
        self._rounds = Rounds(self._members, self._near, self._repair, rng)
        self._joining = Joining(parameters.join_retry_us)
        self._turn_at = rng.randrange(parameters.probe_us)
        self._due = self._turn_at

    # Queries.

    @property
    def me(self) -> Contact:
        """My contact; it changes when I refute a claim about me."""
        return self._members.me

    @property
    def deadline(self) -> int | None:
        return self._members.clock_at(self._due)

    @property
    def joined(self) -> bool:
        """Whether this node is part of a mesh, or its first node: only then does a `next_hop` of None mean that I am the closest.

        False until a seed's mesh has answered, and then also the leaf set that it named, or a probe period has passed. True again
        after about 8 s in which no seed has answered.
        """
        return self._joining.is_joined

    def leaves(self) -> Sequence[Contact]:
        """The leaf set by id, both halves, suspects included. O(L log L)."""
        members = self._members.members
        return [members[node] for node in self._near.leaves.by_id()]

    def acquaintances(self) -> list[NodeId]:
        """All members, near and far on the ring: gossip to all of them is everywhere within a few steps."""
        return list(self._members.members)

    def closest(self, key: bytes, count: int) -> list[NodeId]:
        """The `count` nodes closest to `key`, of my leaf set and me, closest first. O(L log L)."""
        return self._near.leaves.nearest(key, count)

    def is_member(self, node: NodeId) -> bool:
        """Whether it is a member, alive or suspect. O(1)."""
        return node in self._members.members

    def member(self, node: NodeId) -> Contact | None:
        """The latest contact of a member. O(1)."""
        return self._members.members.get(node)

    def address_of(self, node: NodeId) -> str | None:
        """The address of any node to which this overlay sends; None if it is unknown here."""
        contact = self._contact_of(node)
        return contact.address if contact is not None and contact.address else None

    def rejoining(self, parameters: Parameters, rng: Random) -> tuple[Overlay, list[Contact]]:
        """For a node that has `left` and returns in the same life: an overlay without members, and the seeds to join through.

        It is a newer version of me than the one that left, so that all nodes take it in again.
        """
        me = replace(self.me, refuted=min(self.me.refuted + 1, COUNT_MAX))
        return Overlay(me, parameters, rng), list(dict.fromkeys((*self._joining.seeds, *self.leaves())))

    def take_outlived(self) -> Contact | None:
        """A claim of others about a later life of this node, or about another process in this life; then None until the next
        one."""
        outlived, self._members.outlived = self._members.outlived, None
        return outlived

    def take_changes(self) -> list[Change]:
        """Changes of members since the last call, in order. `warm` makes none."""
        members = self._members
        if not members.changes:
            return []
        changes, members.changes = members.changes, []
        return changes

    def next_hop(self, key: bytes, without: Set[NodeId] = frozenset()) -> NodeId | None:
        """The next hop to the node closest to `key`, `without` those that are no destination; None if that is me."""
        return self._near.next_hop(key, without)

    # Events.

    def join(self, seeds: Sequence[Contact], now: int) -> list[Effect]:
        """Join the mesh of any of the seeds; me among them is ignored."""
        self._members.live(now)
        self._joining.begin(seeds, self.me.id)
        return self._try_join() if self._joining.seeds else []

    def warm(self, contacts: Iterable[Contact], now: int) -> None:
        """Start as a node that has known these for long (`warm_tables` picks them). O(n log n)."""
        self._members.live(now)
        self._near.warm(contacts)
        self._joining.stop()

    def watch(self, node: NodeId) -> None:
        """Probe a neighbour in a tree as well, until `unwatch` was called as often."""
        members = self._members
        if node == self.me.id:
            return
        self._near.watch(node)
        self._turn_at = min(self._turn_at, members.lived + self._parameters.probe_us)
        self._rearm()
        if node in members.members:
            return
        contact = self._contact_of(node) or Contact(node, 0)
        if contact.incarnation and members.hear(contact):
            self._near.take_in(contact, heard=False)
        elif node not in members.graves:
            members.admit(contact)
        self._rounds.ask_soon(contact, SOON_TRIES)

    def unwatch(self, node: NodeId) -> None:
        self._near.unwatch(node)

    def probe_now(self, node: NodeId, now: int) -> list[Effect]:
        """A node shows no sign of life: probe it at once, directly and through others."""
        members = self._members
        members.live(now)
        contact = members.members.get(node)
        if contact is None or members.is_asking_others(node):
            return []
        number = members.probing(contact)
        return members.ask_others(number, members.probes[number], self._near.leaves) if number else []

    def process_gone(self, node: NodeId, life: Life, now: int) -> list[Effect]:
        """Rule: only a node that has seen a host close a process's sockets and refuse connections considers the process dead.
        Others see that for themselves, or suspect it on my claim, which it may refute."""
        self._members.live(now)
        out: list[Effect] = []
        contact = self._members.members.get(node)
        if contact is not None and contact.incarnation <= life:
            if contact.incarnation < life:
                contact = Contact(node, life, contact.address)
            self._bury(contact, "dead", out, announced="suspect")
            self._rearm()
        return out

    def restarted(self, contact: Contact, now: int) -> list[Effect]:
        """A neighbour has proven its identity to me in a later life."""
        self._members.live(now)
        out: list[Effect] = []
        self._heard_from(contact, out)
        return out

    def left(self, now: int) -> list[Effect]:
        """I leave for good: notify the leaf set and the watched nodes."""
        members = self._members
        members.live(now)
        members.leaving = True
        news = News(self.me, "left")
        members.spread(news)
        nodes = dict.fromkeys((*self._near.leaves.clockwise(), *self._near.watched))
        return [Send(node, Ping(self.me, 0, (news,))) for node in nodes if node in members.members]

    # Steps.

    def step(self, source: NodeId, message: Message, now: int) -> list[Effect]:
        self._members.live(now)
        out: list[Effect] = []
        if isinstance(message, JoinMesh):
            self._on_join(message, out)
        elif isinstance(message, _FROM_SENDERS) and message.sender.id == source:
            if isinstance(message, Ping):
                self._on_ping(message, out)
            elif isinstance(message, Pong):
                self._on_pong(message, out)
            else:
                self._on_rare(message, out)
        return out

    def _on_rare(
        self, message: ProbeFor | LeavesRequest | LeavesReport | JoinReply, out: list[Effect]
    ) -> None:
        self._heard_from(message.sender, out)
        if isinstance(message, ProbeFor):
            if message.target.id != self.me.id:
                out.append(self._members.probe_for(message, self._near.leaves.digest))
        elif isinstance(message, LeavesRequest):
            out.append(self._repair.report(message))
        elif isinstance(message, LeavesReport):
            self._repair.reported(message)
            self._heard_about_all((*message.leaves, *message.row), out)
        else:
            self._heard_about_all(message.known, out)
            has_pending = bool(self._rounds.soon)
            self._joining.answered(self._members.lived + self._parameters.probe_us if has_pending else None)

    def tick(self, now: int) -> list[Effect]:
        members = self._members
        lived = members.live(now)
        out: list[Effect] = []
        if lived < self._due:
            return out
        if members.probes:
            self._end_probes(out)
        if members.suspects:
            for contact in members.condemned():
                self._bury(contact, "dead", out)
        joining = self._joining
        if joining.retry_at is not None and lived >= joining.retry_at:
            out.extend(self._try_join())
        if joining.settled_at is not None and lived >= joining.settled_at:
            joining.settled()
        if lived >= self._turn_at:
            self._rounds.take(joining.seeds if joining.retry_at is None else (), out)
            periods = CALM_PERIODS if self._rounds.is_calm else 1
            self._turn_at = max(self._turn_at + self._parameters.probe_us * periods, lived + 1)
        self._rearm()
        return out

    def _rearm(self) -> None:
        dues = (self._turn_at, self._joining.due, self._members.due())
        self._due = min([due for due in dues if due is not None])

    # Pings.

    def _on_ping(self, ping: Ping, out: list[Effect]) -> None:
        source = ping.sender.id
        self._heard_from(ping.sender, out)
        self._take_news(source, ping.news, out)
        self._repair.compare(source, ping.leaves_digest, out)
        if ping.number:
            me, news = self.me, self._members.news_for(source)
            out.append(Send(source, Pong(me, ping.number, me.id, news, self._near.leaves.digest)))

    def _on_pong(self, pong: Pong, out: list[Effect]) -> None:
        source = pong.sender.id
        members = self._members
        probe = members.answered(pong)
        direct = probe is not None and probe.stage != FOR_ANOTHER and pong.about == source
        if probe is not None and direct:
            self._near.measured(source, members.lived - probe.sent)
        self._heard_from(pong.sender, out)
        if direct:
            self._near.compete(source)
        self._take_news(source, pong.news, out)
        self._repair.compare(source, pong.leaves_digest, out)
        if self._joining.settled_at is not None and not self._rounds.soon:
            self._joining.settled()
        if probe is not None:
            if probe.stage == FOR_ANOTHER:
                out.append(members.answer_for(probe, pong.sender, self._near.leaves.digest))
            self._rearm()

    def _take_news(self, source: NodeId, claims: tuple[News, ...], out: list[Effect]) -> None:
        members = self._members
        for news in claims:
            contact = news.contact
            if contact.id == members.me.id:
                self._refute(source, contact, news.status, out)
            elif news.status == "alive":
                leaves = self._near.leaves
                self._heard_about(contact, contact.id not in leaves and leaves.fits(contact.id), out)
            elif news.status == "suspect":
                self._suspect(contact, out)
            elif news.status in ("dead", "left"):
                self._bury(contact, news.status, out)

    def _refute(self, source: NodeId, claim: Contact, status: str, out: list[Effect]) -> None:
        """Rule: a live node that is reported suspect or dead refutes with a higher version, first to the node that reported
        it."""
        before = self.me
        self._members.refute(claim, status)
        if self.me is not before and source != self.me.id:
            out.append(
                Send(source, Ping(self.me, 0, self._members.news_for(source), self._near.leaves.digest))
            )

    def _suspect(self, contact: Contact, out: list[Effect]) -> None:
        """Notify the suspect at once, so that it can refute: the Ping carries the claim."""
        if self._members.suspect(contact):
            out.append(self._members.probe(contact, self._near.leaves.digest, ONCE))

    def _end_probes(self, out: list[Effect]) -> None:
        members = self._members
        for number, probe in members.overdue():
            if probe.stage == DIRECT and probe.target.id in members.members:
                out.extend(members.ask_others(number, probe, self._near.leaves))
                continue
            del members.probes[number]
            if probe.rival is not None and members.is_other(probe.rival):
                members.hear(probe.rival)
            if probe.stage == INDIRECT:
                self._suspect(probe.target, out)

    # Contacts.

    def _heard_from(self, contact: Contact, out: list[Effect]) -> None:
        """A node has reported itself alive."""
        node = contact.id
        members = self._members
        if members.members.get(node) is contact and node not in self._rounds.soon:
            return
        if node == self.me.id:
            members.refute(contact, "alive")
            return
        strange = members.hear(contact)
        if members.is_other(contact):
            news = News(members.members[node], "alive")  # it must refute this claim to be accepted by others
            out.append(Send(node, Ping(self.me, 0, (news,), self._near.leaves.digest)))
        if strange or (self._rounds.soon.pop(node, None) is not None and node in members.members):
            self._rounds.soon.pop(node, None)
            if self._near.take_in(contact, heard=True):
                members.spread(News(contact, "alive"))
        if node not in members.members:
            members.remember(contact)

    def _heard_about(self, contact: Contact, fits: bool, out: list[Effect]) -> None:
        """A node is reported alive by another one. Rule: only a node that was heard itself enters the leaf set, so that the dead
        do not return through reports of others."""
        members = self._members
        if contact.id == self.me.id:
            members.refute(contact, "alive")
            return
        if members.is_other(contact):
            if newer(contact, members.members[contact.id]):
                out.extend(members.challenge(contact, self._near.leaves.digest))
            return
        strange = members.hear(contact)
        if contact.id in members.graves and not strange:
            self._rounds.ask_soon(contact)
        elif fits:
            self._rounds.ask_now(contact, out)
        elif strange:
            self._near.take_in(contact, heard=False)

    def _heard_about_all(self, contacts: Iterable[Contact], out: list[Effect]) -> None:
        """The same for many nodes; only those that would be leaves if all were added are probed. O(n log n)."""
        members = self._members
        running = [
            each.id
            for each in contacts
            if members.is_other(each) or each.id in members.members or members.hear(each)
        ]
        fitting = set(self._near.leaves.lacks(running))
        for contact in contacts:
            self._heard_about(contact, contact.id in fitting, out)

    def _contact_of(self, node: NodeId) -> Contact | None:
        seeds = self._joining.seeds
        return self._members.contact_of(node) or next((seed for seed in seeds if seed.id == node), None)

    def _bury(self, contact: Contact, status: str, out: list[Effect], announced: str = "") -> None:
        """A member is gone: remove it from the tables, and search for nodes in its place. announced: the status that others get,
        if it is not `status`."""
        node = contact.id
        if not self._members.bury(contact, status, announced or status):
            return
        self._repair.forget(node)
        was_leaf, row = self._near.drop(node)
        if was_leaf:
            out.extend(self._repair.lost_leaf())
            for fitting in self._near.would_be_leaves():
                self._rounds.ask_now(fitting, out)
            self._rounds.ask_all_soon()
        if row >= 0:
            others = self._near.table.row(row) or self._near.leaves.clockwise()
            out.extend(Send(other, LeavesRequest(self.me, row)) for other in others[:1])

    # Joining.

    def _try_join(self) -> list[Effect]:
        seed = self._joining.attempt(self._members.lived)
        assert self._joining.retry_at is not None
        self._due = min(self._due, self._joining.retry_at)
        return [Send(seed.id, JoinMesh(self.me))]

    def _on_join(self, join: JoinMesh, out: list[Effect]) -> None:
        """Forward a join towards the joiner's own id, skipping the joiner, whose former life may be in my tables; or answer
        it."""
        joiner = join.joiner
        if joiner.id == self.me.id:
            return
        members, table = self._members.members, self._near.table
        row = [members[node] for node in table.row(table.row_of(joiner.id)) if node != joiner.id]
        known = (*join.known, self.me, *row)[:KNOWN_MAX]
        hop = self._near.hop_past(joiner.id)
        if hop is not None:
            out.append(Send(hop, JoinMesh(joiner, known)))
            return
        leaves = [members[node] for node in self._near.leaves.clockwise() if node != joiner.id]
        self._members.remember(joiner)
        self._heard_from(joiner, out)
        out.append(Send(joiner.id, JoinReply(self.me, tuple(dict.fromkeys((*known, *leaves))))))

    def check(self) -> None:
        self._members.check()
        self._near.check()
        self._repair.check()
        self._rounds.check()
