"""The overlay of one node: it owns membership, leaf set and routing table, joins, probes and repairs.

Transitions (see `membership` for what is believed of a node):

    on                                   does
    join, no other seed                  joined: I am the first
    join with seeds                      JoinMesh to one seed after the other until a JoinReply comes, ever more rarely
    JoinMesh                             adds what it knows and hands on; the closest takes the joiner in and answers JoinReply
    JoinReply                             takes all in that fit, pings its leaf set, which takes it in
    Ping                                 Pong; its sender and its news are heard
    Pong                                 ends a probe, learns the round trip; passed on if the probe was for another
    ProbeFor                             Ping to the target
    a neighbour's digest has changed     LeavesRequest to it (only the nearest on each side: their leaf sets cover mine)
    LeavesReport                           takes in who fits; whom I hold for dead is asked
    a process is gone, restarted         its own connections tell a node, not others: dead; a later life is met
    a member dies                        out of all tables; LeavesRequest to the ends of the leaf set, or to one of the row: who
                                         answers gets its place; the whole leaf set is probed at once
    each probe_us                        a turn: see `rounds`

Who is kept, and routing: see `neighbours`.

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
from elf.srt.overlay.leafset import leaves_digest
from elf.srt.overlay.membership import DIRECT, FOR_ANOTHER, INDIRECT, ONCE, Change, Membership, Probe, newer
from elf.srt.overlay.neighbours import Neighbours
from elf.srt.overlay.rounds import SOON_TRIES, Rounds

if TYPE_CHECKING:
    from random import Random

KNOWN_MAX = 160
"""Contacts in a JoinMesh: eight hops with a row of 15 and themselves, and a leaf set."""
STRANGERS_MAX = 64
"""Addresses of nodes that are no members and got an answer."""
JOIN_BACKOFF_MAX = 16
"""A node that nobody answers tries again after up to so many join_retry_us: 8 s."""


class Overlay:
    """`rng` is used for the order of probes and the choice of indirect probers. `proximity` gives a node's round trip in µs where
    the surroundings know it; without it, it is learned from probes."""

    __slots__ = (
        "_ask_at",
        "_due",
        "_join_at",
        "_join_wait",
        "_members",
        "_near",
        "_parameters",
        "_rounds",
        "_seeds",
        "_settled_at",
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
        self._seeds: tuple[Contact, ...] = ()
        self._strangers: dict[NodeId, Contact] = {}
        self._join_at: int | None = None
        self._settled_at: int | None = None
        self._join_wait = parameters.join_retry_us
        self._ask_at = 0
        self._turn_at = rng.randrange(parameters.probe_us)
        self._due = self._turn_at

    # What the node asks.

    @property
    def me(self) -> Contact:
        """My contact; it changes when I refute a claim about me."""
        return self._members.me

    @property
    def deadline(self) -> int | None:
        return self._members.clock_at(self._due)

    @property
    def joined(self) -> bool:
        """Part of a mesh, or the first of one: only then does `next_hop` of None mean that I am the closest.

        False until a seed's mesh has answered and the leaf set that it named has, too, or one probe period has passed since;
        and while seeds are asked and none has answered for about 8 s.
        """
        if self._join_at is None:
            return self._settled_at is None
        return self._join_wait >= self._join_wait_max

    @property
    def _join_wait_max(self) -> int:
        return JOIN_BACKOFF_MAX * self._parameters.join_retry_us

    def leaves(self) -> Sequence[Contact]:
        """The leaf set by id, both halves, suspects included. O(L log L)."""
        members = self._members.members
        return [members[node] for node in self._near.leaves.by_id()]

    def acquaintances(self) -> list[NodeId]:
        """Every member that is kept, near and far on the ring: gossip that goes to all of them is everywhere in a few steps."""
        return list(self._members.members)

    def closest(self, key: bytes, count: int) -> list[NodeId]:
        """The `count` nodes closest to `key` of my leaf set and me, closest first. O(L log L)."""
        return self._near.leaves.nearest(key, count)

    def is_alive(self, node: NodeId) -> bool:
        """Known, and neither suspect nor dead. O(1)."""
        return node in self._members.members and node not in self._members.suspects

    def is_member(self, node: NodeId) -> bool:
        """Whether it is kept, alive or suspect. O(1)."""
        return node in self._members.members

    def member(self, node: NodeId) -> Contact | None:
        """What is believed of a member. O(1)."""
        return self._members.members.get(node)

    def incarnation_of(self, node: NodeId) -> int | None:
        """Of the latest life of a member that I have heard of; refutations do not change it."""
        contact = self._members.members.get(node)
        return contact.incarnation if contact is not None and contact.incarnation else None

    def address_of(self, node: NodeId) -> str | None:
        """Where any node to which an effect is addressed can be found; None if only a link to it could tell."""
        contact = self._contact_of(node)
        return contact.address if contact is not None and contact.address else None

    def rejoining(self, parameters: Parameters, rng: Random) -> tuple[Overlay, list[Contact]]:
        """For a node that has `left` and comes back in the same life: one that knows nobody yet, and whom to ask for the mesh.

        It is a newer version of me than the one that left, so that everybody takes it in again.
        """
        me = replace(self.me, refuted=min(self.me.refuted + 1, COUNT_MAX))
        return Overlay(me, parameters, rng), list(dict.fromkeys((*self._seeds, *self.leaves())))

    def take_outlived(self) -> Contact | None:
        """Of a later life of this node than this one, or of another process in it, that others have heard of."""
        outlived, self._members.outlived = self._members.outlived, None
        return outlived

    def take_changes(self) -> list[Change]:
        """What has become of members since the last call, in order. `warm` gives none."""
        members = self._members
        if not members.changes:
            return []
        changes, members.changes = members.changes, []
        return changes

    def next_hop(self, key: bytes) -> NodeId | None:
        """To whom to hand what is meant for the node closest to `key`; None if that is me. Each hop is strictly closer."""
        return self._near.next_hop(key)

    # What the node tells.

    def join(self, seeds: Sequence[Contact], now: int) -> list[Effect]:
        """Into the mesh of any of the seeds; they may name me."""
        self._live(now)
        self._seeds = tuple(seed for seed in seeds if seed.id != self.me.id)
        if not self._seeds:
            return []
        return self._try_join()

    def warm(self, contacts: Iterable[Contact], now: int) -> None:
        """Begin as a node that has known these for long (`warm_tables` picks them). O(n log n)."""
        self._live(now)
        self._near.warm(contacts)
        self._join_at = self._settled_at = None

    def watch(self, node: NodeId) -> None:
        """A neighbour in a tree: probe it as well, until `unwatch` was called as often."""
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
        """A node gives no sign of life: probe it at once, directly and through others."""
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
        """Rule: that process is dead for who has seen its host close its sockets and refuse others, and for nobody else: they see
        it for themselves, or suspect it on my word, which it may refute."""
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
        """A later life of a neighbour has proven to me who it is."""
        self._live(now)
        out: list[Effect] = []
        self._heard_from(contact, out)
        return out

    def left(self, now: int) -> list[Effect]:
        """I leave for good: tell the leaf set and the watched."""
        self._live(now)
        members = self._members
        members.leaving = True
        members.spread(News(self.me, "left"))
        nodes = dict.fromkeys((*self._near.leaves.clockwise(), *self._near.watched))
        news = (News(self.me, "left"),)
        return [Send(node, Ping(self.me, 0, news)) for node in nodes if node in members.members]

    # The machine.

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
        """Whose sender has been met already."""
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
            if self._join_at is not None:
                self._join_at = None
                self._settled_at = (
                    self._members.lived + self._parameters.probe_us if self._rounds.soon else None
                )
                self._join_wait = self._parameters.join_retry_us

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
        if self._join_at is not None and lived >= self._join_at:
            out.extend(self._try_join())
        if self._settled_at is not None and lived >= self._settled_at:
            self._settled_at = None
        if lived >= self._turn_at:
            self._rounds.take(self._seeds if self._join_at is None else (), out)
            self._turn_at = max(self._turn_at + self._parameters.probe_us, lived + 1)
        self._rearm()
        return out

    def _live(self, now: int) -> int:
        return self._members.live(now)

    def _wake(self, at: int) -> None:
        self._due = min(self._due, at)

    def _rearm(self) -> None:
        due = self._turn_at
        if self._join_at is not None and self._join_at < due:
            due = self._join_at
        if self._settled_at is not None and self._settled_at < due:
            due = self._settled_at
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
        if self._settled_at is not None and not self._rounds.soon:
            self._settled_at = None
        if probe is not None:
            if probe.stage == FOR_ANOTHER:
                self._pass_on(probe, sender, out)
            self._rearm()

    def _pass_on(self, probe: Probe, target: Contact, out: list[Effect]) -> None:
        """Tell who asked for it that the target lives, and which version of it."""
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
        """Rule: who is reported suspect or dead and lives says so, with a higher version, first to the one who told it."""
        before = self.me
        self._members.refute(claim, status)
        if self.me is not before and source != self.me.id:
            out.append(
                Send(source, Ping(self.me, 0, self._members.news_for(source), self._near.leaves.digest))
            )

    def _on_suspect(self, contact: Contact, out: list[Effect]) -> None:
        """Tell the suspect at once, so that it can refute: the Ping bears the claim."""
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
        """Rule: nobody is suspected before others have tried to reach it too."""
        digest = self._near.leaves.digest
        out.extend(self._members.ask_others(number, probe, self._near.leaves.clockwise(), digest))

    # Who is known.

    def _heard_from(self, contact: Contact, out: list[Effect]) -> None:
        """A node lives, by its own word."""
        node = contact.id
        members = self._members
        if node == self.me.id:
            members.refute(contact, "alive")
            return
        strange = members.hear(contact)
        if members.is_other(contact):
            news = News(members.members[node], "alive")  # above which it has to be heard by others
            out.append(Send(node, Ping(self.me, 0, (news,), self._near.leaves.digest)))
        if strange or (self._rounds.soon.pop(node, None) is not None and node in members.members):
            self._rounds.soon.pop(node, None)
            if self._near.take_in(contact, heard=True):
                members.spread(News(contact, "alive"))
        if node not in members.members:
            self._remember(contact)

    def _heard_about(self, contact: Contact, fits: bool, out: list[Effect]) -> None:
        """Rule: into the leaf set comes only who was heard, so that the dead do not come back by hearsay."""
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
        """The same of many, of whom only those are asked that all together leave a place for. O(n log n)."""
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
            or next((seed for seed in self._seeds if seed.id == node), None)
        )

    def _bury(self, contact: Contact, status: str, out: list[Effect], announced: str = "") -> None:
        """A member is gone: out of the tables, and look for others in its place. told: what others hear, if it is not that."""
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
        """Its leaf set is another than the one I saw last: look at it, but not more than four times in repair_us."""
        lived = self._members.lived
        if lived >= self._ask_at:
            self._ask_at = lived + self._parameters.repair_us // 4
            out.append(Send(neighbour, LeavesRequest(self.me)))

    def _note_seen(self, tell: LeavesReport) -> None:
        nearest = (self._near.leaves.left, self._near.leaves.right)
        self._rounds.seen = {node: self._rounds.seen[node] for node in nearest if node in self._rounds.seen}
        if tell.sender.id in nearest:
            self._rounds.seen[tell.sender.id] = leaves_digest([contact.id for contact in tell.leaves])

    def _report_leaves(self, ask: LeavesRequest) -> Send:
        members = self._members.members
        row = tuple(members[node] for node in self._near.table.row(ask.row))
        leaves = tuple([members[node] for node in self._near.leaves.clockwise()])
        return Send(ask.sender.id, LeavesReport(self.me, leaves, row))

    # Joining.

    def _try_join(self) -> list[Effect]:
        seed = self._seeds[0]
        self._seeds = (*self._seeds[1:], seed)
        self._join_at = self._members.lived + self._join_wait
        self._join_wait = min(2 * self._join_wait, self._join_wait_max)
        self._wake(self._join_at)
        return [Send(seed.id, JoinMesh(self.me))]

    def _on_join(self, join: JoinMesh, out: list[Effect]) -> None:
        """Routed towards the joiner's own id, past the joiner itself, whose former life may be in my tables."""
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
