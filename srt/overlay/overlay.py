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
    a neighbour's digest has changed     LeavesRequest to it (only the nearest on each side: their leaf sets cover mine)
    LeavesReport                         take in the contacts that fit; probe those that I consider dead
    a process is gone, or restarted      seen on my own connections, not reported by others: dead; or alive in a later life
    a member dies                        remove it from all tables; LeavesRequest to the ends of the leaf set, or to one of its
                                         row: a node that answers gets its place; probe the whole leaf set at once
    each probe_us                        a turn: see `rounds`

For members and routing see `neighbours`.

Invariants: `check`. Prior art: Pastry (Middleware 2001); SWIM (DSN 2002).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
from elf.srt.overlay.leafset import leaves_digest
from elf.srt.overlay.membership import DIRECT, FOR_ANOTHER, INDIRECT, ONCE, Change, Membership, Probe, newer
from elf.srt.overlay.neighbours import Neighbours
from elf.srt.overlay.rounds import SOON_TRIES, Rounds

if TYPE_CHECKING:
    from random import Random

KNOWN_MAX = 160
"""Contacts in a JoinMesh: eight hops with a row of 15 and themselves, and a leaf set."""
STRANGERS_MAX = 64
"""Addresses of nodes that are not members but were answered."""


class Overlay:
    """`rng`: for the order of probes and the choice of indirect probers. `proximity`: a node's round trip in µs, if the host
    knows it; without it, probes measure round trips."""

    __slots__ = (
        "_ask_at",
        "_due",
        "_joining",
        "_members",
        "_near",
        "_parameters",
        "_rounds",
        "_strangers",
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
        self._rounds = Rounds(self._members, self._near, rng)
        self._joining = Joining(parameters.join_retry_us)
        self._strangers: dict[NodeId, Contact] = {}
        self._ask_at = 0
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

    def is_alive(self, node: NodeId) -> bool:
        """Whether it is a member and not suspect. O(1)."""
        return node in self._members.members and node not in self._members.suspects

    def is_member(self, node: NodeId) -> bool:
        """Whether it is a member, alive or suspect. O(1)."""
        return node in self._members.members

    def member(self, node: NodeId) -> Contact | None:
        """The latest contact of a member. O(1)."""
        return self._members.members.get(node)

    def incarnation_of(self, node: NodeId) -> int | None:
        """The latest known incarnation of a member; refutations do not change it."""
        contact = self._members.members.get(node)
        return contact.incarnation if contact is not None and contact.incarnation else None

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

    def next_hop(self, key: bytes) -> NodeId | None:
        """The next hop to the node closest to `key`; None if that is me. Each hop is strictly closer."""
        return self._near.next_hop(key)

    # Events.

    def join(self, seeds: Sequence[Contact], now: int) -> list[Effect]:
        """Join the mesh of any of the seeds; me among them is ignored."""
        self._live(now)
        self._joining.begin(seeds, self.me.id)
        return self._try_join() if self._joining.seeds else []

    def warm(self, contacts: Iterable[Contact], now: int) -> None:
        """Start as a node that has known these for long (`warm_tables` picks them). O(n log n)."""
        self._live(now)
        self._near.warm(contacts)
        self._joining.stop()

    def watch(self, node: NodeId) -> None:
        """Probe a neighbour in a tree as well, until `unwatch` was called as often."""
        members = self._members
        if node == self.me.id:
            return
        self._near.watch(node)
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
        lived = self._live(now)
        members = self._members
        contact = members.members.get(node)
        if contact is None or members.is_asking_others(node):
            return []
        out: list[Effect] = []
        number = members.probing(contact)
        if number:
            self._ask_others(number, members.probes[number], out)
        self._wake(lived + self._parameters.probe_us)
        return out

    def process_gone(self, node: NodeId, life: Life, now: int) -> list[Effect]:
        """Rule: only a node that has seen a host close a process's sockets and refuse connections considers the process dead.
        Others see that for themselves, or suspect it on my claim, which it may refute."""
        self._live(now)
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
        self._live(now)
        out: list[Effect] = []
        self._heard_from(contact, out)
        return out

    def left(self, now: int) -> list[Effect]:
        """I leave for good: notify the leaf set and the watched nodes."""
        self._live(now)
        members = self._members
        members.leaving = True
        members.spread(News(self.me, "left"))
        nodes = dict.fromkeys((*self._near.leaves.clockwise(), *self._near.watched))
        news = (News(self.me, "left"),)
        return [Send(node, Ping(self.me, 0, news)) for node in nodes if node in members.members]

    # Steps.

    def step(self, source: NodeId, message: Message, now: int) -> list[Effect]:
        self._live(now)
        out: list[Effect] = []
        if isinstance(message, Ping):
            self._on_ping(source, message, out)
        elif isinstance(message, Pong):
            self._on_pong(source, message, out)
        elif isinstance(message, JoinMesh):
            self._on_join(message, out)
        elif (
            isinstance(message, ProbeFor | LeavesRequest | LeavesReport | JoinReply)
            and message.sender.id == source
        ):
            self._heard_from(message.sender, out)
            self._on_rare(message, out)
        return out

    def _on_rare(
        self, message: ProbeFor | LeavesRequest | LeavesReport | JoinReply, out: list[Effect]
    ) -> None:
        """A message whose sender has been recorded as alive already."""
        if isinstance(message, ProbeFor):
            if message.target.id != self.me.id:
                out.append(self._members.probe_for(message, self._near.leaves.digest))
        elif isinstance(message, LeavesRequest):
            out.append(self._report_leaves(message))
        elif isinstance(message, LeavesReport):
            self._rounds.holes = False
            self._heard_about_all((*message.leaves, *message.row), out)
            self._note_seen(message)
        else:
            self._heard_about_all(message.known, out)
            has_pending = bool(self._rounds.soon)
            self._joining.answered(self._members.lived + self._parameters.probe_us if has_pending else None)

    def tick(self, now: int) -> list[Effect]:
        lived = self._live(now)
        out: list[Effect] = []
        if lived < self._due:
            return out
        members = self._members
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
            self._turn_at = max(self._turn_at + self._parameters.probe_us, lived + 1)
        self._rearm()
        return out

    def _live(self, now: int) -> int:
        return self._members.live(now)

    def _wake(self, at: int) -> None:
        self._due = min(self._due, at)

    def _rearm(self) -> None:
        due = self._turn_at
        join_due = self._joining.due
        if join_due is not None and join_due < due:
            due = join_due
        if self._members.probes or self._members.suspects:
            first = self._members.due()
            if first is not None and first < due:
                due = first
        self._due = due

    # Pings.

    def _on_ping(self, source: NodeId, ping: Ping, out: list[Effect]) -> None:
        sender = ping.sender
        if sender.id != source:
            return
        members = self._members
        if members.members.get(source) is not sender or source in self._rounds.soon:
            self._heard_from(sender, out)
        if ping.news:
            self._take_news(source, ping.news, out)
        leaves = self._near.leaves
        if source in (leaves.left, leaves.right) and ping.leaves_digest != self._rounds.seen.get(source):
            self._compare(source, out)
        if ping.number:
            me = members.me
            out.append(Send(source, Pong(me, ping.number, me.id, members.news_for(source), leaves.digest)))

    def _on_pong(self, source: NodeId, pong: Pong, out: list[Effect]) -> None:
        sender = pong.sender
        if sender.id != source:
            return
        members = self._members
        probe = members.answered(pong)
        direct = probe is not None and probe.stage != FOR_ANOTHER and pong.about == source
        if probe is not None and direct:
            self._near.measured(source, members.lived - probe.sent)
        if members.members.get(source) is not sender or source in self._rounds.soon:
            self._heard_from(sender, out)
        if direct:
            self._near.compete(source)
        if pong.news:
            self._take_news(source, pong.news, out)
        leaves = self._near.leaves
        if source in (leaves.left, leaves.right) and pong.leaves_digest != self._rounds.seen.get(source):
            self._compare(source, out)
        if self._joining.settled_at is not None and not self._rounds.soon:
            self._joining.settled()
        if probe is not None:
            if probe.stage == FOR_ANOTHER:
                self._pass_on(probe, sender, out)
            self._rearm()

    def _pass_on(self, probe: Probe, target: Contact, out: list[Effect]) -> None:
        """Report to the node that requested the probe that the target lives, and its version."""
        about = Pong(
            self.me, probe.asker_number, target.id, (News(target, "alive"),), self._near.leaves.digest
        )
        out.append(Send(probe.asker, about))

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
                if members.suspect(contact):
                    self._on_suspect(contact, out)
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

    def _on_suspect(self, contact: Contact, out: list[Effect]) -> None:
        """Notify the suspect at once, so that it can refute: the Ping carries the claim."""
        out.append(self._members.probe(contact, self._near.leaves.digest, ONCE))

    def _end_probes(self, out: list[Effect]) -> None:
        members = self._members
        for number, probe in members.overdue():
            if probe.stage == DIRECT and probe.target.id in members.members:
                self._ask_others(number, probe, out)
                continue
            del members.probes[number]
            if probe.rival is not None and members.is_other(probe.rival):
                members.hear(probe.rival)
            if probe.stage == INDIRECT and members.suspect(probe.target):
                self._on_suspect(probe.target, out)

    def _ask_others(self, number: int, probe: Probe, out: list[Effect]) -> None:
        """Rule: a node is suspected only after others have tried to reach it too."""
        digest = self._near.leaves.digest
        out.extend(self._members.ask_others(number, probe, self._near.leaves.clockwise(), digest))

    # Contacts.

    def _heard_from(self, contact: Contact, out: list[Effect]) -> None:
        """A node has reported itself alive."""
        node = contact.id
        members = self._members
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
            self._remember(contact)

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

    def _remember(self, contact: Contact) -> None:
        strangers = self._strangers
        strangers.pop(contact.id, None)
        while len(strangers) >= STRANGERS_MAX:
            del strangers[next(iter(strangers))]
        strangers[contact.id] = contact

    def _contact_of(self, node: NodeId) -> Contact | None:
        grave = self._members.graves.get(node)
        return (
            self._members.members.get(node)
            or self._strangers.get(node)
            or next(
                (probe.target for probe in self._members.probes.values() if probe.target.id == node), None
            )
            or (grave.contact if grave is not None else None)
            or next((seed for seed in self._joining.seeds if seed.id == node), None)
        )

    def _bury(self, contact: Contact, status: str, out: list[Effect], announced: str = "") -> None:
        """A member is gone: remove it from the tables, and search for nodes in its place. announced: the status that others get,
        if it is not `status`."""
        node = contact.id
        if not self._members.bury(contact, status, announced or status):
            return
        self._rounds.seen.pop(node, None)
        was_leaf, row = self._near.drop(node)
        if was_leaf:
            self._rounds.holes = True
            self._rounds.seen.clear()
            out.extend(self._rounds.ask_edges())
            for fitting in self._near.would_be_leaves():
                self._rounds.ask_now(fitting, out)
            self._rounds.ask_all_soon()
        if row >= 0:
            others = self._near.table.row(row) or self._near.leaves.clockwise()
            out.extend(Send(other, LeavesRequest(self.me, row)) for other in others[:1])

    # Leaf sets of others.

    def _compare(self, neighbour: NodeId, out: list[Effect]) -> None:
        """A neighbour's leaf set differs from the one that I saw last: request it, but at most four times in repair_us."""
        lived = self._members.lived
        if lived >= self._ask_at:
            self._ask_at = lived + self._parameters.repair_us // 4
            out.append(Send(neighbour, LeavesRequest(self.me)))

    def _note_seen(self, report: LeavesReport) -> None:
        nearest = (self._near.leaves.left, self._near.leaves.right)
        self._rounds.seen = {node: self._rounds.seen[node] for node in nearest if node in self._rounds.seen}
        if report.sender.id in nearest:
            self._rounds.seen[report.sender.id] = leaves_digest([contact.id for contact in report.leaves])

    def _report_leaves(self, ask: LeavesRequest) -> Send:
        members = self._members.members
        row = tuple(members[node] for node in self._near.table.row(ask.row))
        leaves = tuple([members[node] for node in self._near.leaves.clockwise()])
        return Send(ask.sender.id, LeavesReport(self.me, leaves, row))

    # Joining.

    def _try_join(self) -> list[Effect]:
        seed = self._joining.attempt(self._members.lived)
        assert self._joining.retry_at is not None
        self._wake(self._joining.retry_at)
        return [Send(seed.id, JoinMesh(self.me))]

    def _on_join(self, join: JoinMesh, out: list[Effect]) -> None:
        """Forward a join towards the joiner's own id, skipping the joiner, whose former life may be in my tables; or answer
        it."""
        joiner = join.joiner
        if joiner.id == self.me.id:
            return
        known = (*join.known, *self._what_serves(joiner.id))[:KNOWN_MAX]
        hop = self._near.hop_past(joiner.id)
        if hop is not None:
            out.append(Send(hop, JoinMesh(joiner, known)))
            return
        members = self._members.members
        leaves = [members[node] for node in self._near.leaves.clockwise() if node != joiner.id]
        self._remember(joiner)
        self._heard_from(joiner, out)
        out.append(Send(joiner.id, JoinReply(self.me, tuple(dict.fromkeys((*known, *leaves))))))

    def _what_serves(self, joiner: NodeId) -> list[Contact]:
        members = self._members.members
        row = self._near.table.row(self._near.table.row_of(joiner))
        return [self.me, *(members[node] for node in row if node != joiner)]

    def check(self) -> None:
        self._members.check()
        self._near.check()
        self._rounds.check()
        assert len(self._strangers) <= STRANGERS_MAX
