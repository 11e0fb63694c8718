"""Failure detection: each node probes a few others in turn. Before it suspects one, it requests probes from third nodes; a
suspect has time to refute.

The state of a node, by the version (incarnation, refuted) of the claim about it:

    state      event                               becomes    effect
    -          alive v, wanted by the overlay      alive v    change "joined"
    alive v    alive w > v, same incarnation       alive w
    alive v    becomes a leaf                      alive v    change "alive"
    alive v    alive w, higher incarnation         alive w    changes "dead" and "joined": it has restarted
    alive v    no Pong, direct or indirect         suspect v  change "suspect"; sent to all, to the suspect first
    alive v    suspect w >= v                      suspect w  change "suspect"
    suspect v  alive w > v                         alive w    change "alive": it has refuted
    suspect v  suspect_us go by, or more           dead v     change "dead"; more if it was slow to refute before (`Patience`)
    alive or suspect v   dead or left w >= v       dead w     change "dead" or "left"
    alive or suspect v   its process is gone       dead v     change "dead"; others get "suspect", and check for themselves
    dead v     alive w > v                         alive w    change "joined"
    dead v     dead_us go by                       -
    (myself)   suspect, dead, left w >= mine       alive > w  I refute: `refuted` rises
    (myself)   another process, or a higher incarnation       `outlived` is set: the node restarts with a higher incarnation

Claims of others about another process than the one that is believed alive (`Contact.instance`; a process that reports itself has
passed `elf.srt.transport.admission`):

    alive v    alive w > v                         alive v    v is challenged: if it does not answer, the change is as above
    alive v    suspect, dead, left                 alive v    none: the claim is about that other process

Claims that change a state are forwarded with the next pings, `news_repeats` times; a claim about the addressee goes first.

Timeouts count *lived* time, in µs since the node started: a clock that stops or steps back adds nothing to it, and a clock that
jumps adds at most one probe period. So neither a paused process nor a stepped clock makes a node suspect others.

Invariants: a node is alive (or suspect) or dead, not both; suspects are members; everything is bounded.
Prior art: SWIM (Das, Gupta, Motivala, DSN 2002), with its precedence rules; only the incarnation is on stable storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from elf.srt.messages.bounded import put_last
from elf.srt.messages.effects import Effect, Send
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import COUNT_MAX, Contact, News, Ping, Pong, ProbeFor
from elf.srt.messages.parameters import Parameters
from elf.srt.overlay.leafset import LeafSet
from elf.srt.overlay.patience import Patience

if TYPE_CHECKING:
    from random import Random

Change = tuple[str, Contact]
"""("joined" | "suspect" | "alive" | "dead" | "left", node)."""

GRAVES_MAX = 64
"""Dead members that are remembered: four leaf sets. Forgotten ones can be found again only through seeds or other nodes."""
NEWS_KEPT_MAX = 64
"""Claims waiting to be forwarded: ten pings' worth."""
STRANGERS_MAX = 64
"""Contacts of nodes that are not members but were answered."""
CALM_PERIODS = 2
"""Probe periods between the turns of a node without a job's tree, in a mesh without suspects and dead members."""
PROBES_MAX = 256
"""Probes outstanding at once, including those that others requested; each lasts one probe period."""

DIRECT, INDIRECT, FOR_ANOTHER, ONCE, CHALLENGE = range(5)
"""Stages of a probe. ONCE: a missing answer has no consequence (a seed, a dead member, a candidate for the routing table).
CHALLENGE: a missing answer means that another process has taken the member's place, as others claim."""


def newer(one: Contact, other: Contact) -> bool:
    """Whether `one` is a newer claim about the node than `other`."""
    if one.incarnation == other.incarnation:
        return one.refuted > other.refuted
    return one.incarnation > other.incarnation


def is_other_process(one: Contact, other: Contact) -> bool:
    """Whether the two are known to be different processes."""
    return 0 != one.instance != other.instance != 0


class Probe(msgspec.Struct):
    """One Ping that waits for its Pong. Times in lived µs."""

    target: Contact
    stage: int
    sent: int
    due: int
    asker: NodeId = b""
    asker_number: int = 0
    rival: Contact | None = None


class Grave(msgspec.Struct, frozen=True):
    """A dead member: its last contact, "dead" or "left", and until when (lived µs) it is remembered."""

    contact: Contact
    status: str
    until: int


class Membership:
    """The states of other nodes as one node sees them, and its open probes. `members`: nodes that the overlay keeps, alive or
    suspect."""

    __slots__ = (
        "_news",
        "_now",
        "_parameters",
        "_patience",
        "_rng",
        "_strangers",
        "changes",
        "graves",
        "leaving",
        "lived",
        "me",
        "members",
        "number",
        "outlived",
        "probes",
        "suspects",
    )

    def __init__(self, me: Contact, parameters: Parameters, rng: Random) -> None:
        self.me = me
        self._parameters = parameters
        self._patience = Patience(parameters)
        self._rng = rng
        self._now: int | None = None
        self.lived = 0
        self.members: dict[NodeId, Contact] = {}
        self.suspects: dict[NodeId, int] = {}
        self.graves: dict[NodeId, Grave] = {}
        self._strangers: dict[NodeId, Contact] = {}
        self.probes: dict[int, Probe] = {}
        self.changes: list[Change] = []
        self.leaving = False
        self.outlived: Contact | None = None
        """A claim about myself that I cannot refute in this life: of a higher incarnation, or of another process in this one."""
        self._news: dict[NodeId, tuple[News, int]] = {}
        self.number = 0

    # Time.

    def live(self, now: int) -> int:
        """Advance lived time to `now` of the node's clock, and return it."""
        last = self._now
        self._now = now
        if last is not None and now > last:
            periods = CALM_PERIODS if self.is_calm and not self.probes else 1
            self.lived += min(now - last, self._parameters.probe_us * periods)
        return self.lived

    @property
    def is_calm(self) -> bool:
        """Nobody is suspect or remembered as dead."""
        return not (self.suspects or self.graves)

    def clock_at(self, lived: int) -> int:
        """The time of the node's clock at which lived time will reach `lived`, if the clock runs evenly."""
        return (self._now or 0) + lived - self.lived

    # Claims.

    def hear(self, contact: Contact) -> bool:
        """Take a claim, by the node or by others, that a node is alive. True: the node is unknown or was dead; the caller may
        `admit` it."""
        old = self.members.get(contact.id)
        if old is None or not old.incarnation:
            grave = self.graves.get(contact.id)
            return grave is None or newer(contact, grave.contact)
        if old is not contact and newer(contact, old):
            self._renew(old, contact)
        return False

    def admit(self, contact: Contact) -> None:
        self.members[contact.id] = contact
        grave = self.graves.pop(contact.id, None)
        if grave is not None and grave.contact.incarnation == contact.incarnation:
            self._patience.refuted(contact.id, self.lived)
        elif grave is not None:
            self._patience.forget(contact.id)
        if contact.incarnation:
            self.changes.append(("joined", contact))

    def _renew(self, old: Contact, contact: Contact) -> None:
        self.members[contact.id] = contact
        suspected = self.suspects.pop(contact.id, None) is not None
        if contact.incarnation != old.incarnation:
            self._patience.forget(contact.id)
            if old.incarnation:
                self.changes.append(("dead", old))
            self.changes.append(("joined", contact))
        elif suspected:
            self._patience.refuted(contact.id, self.lived)
            self.changes.append(("alive", contact))
        self.spread(News(contact, "alive"))

    def suspect(self, contact: Contact) -> bool:
        """Begin to suspect a member, unless a newer claim about it is known. Returns whether its state changed."""
        node = contact.id
        old = self.members.get(node)
        if old is None or newer(old, contact) or node in self.suspects or is_other_process(old, contact):
            return False
        self.members[node] = contact
        self.suspects[node] = self._patience.suspected(node, self.lived)
        self.changes.append(("suspect", contact))
        self.spread(News(contact, "suspect"))
        return True

    def bury(self, contact: Contact, status: str, announced: str) -> bool:
        """Mark a member "dead" or "left", unless a newer claim about it is known. Returns whether its state changed. announced:
        the status in the claim that others get."""
        old = self.members.get(contact.id)
        if old is None or newer(old, contact) or is_other_process(old, contact):
            return False
        self.forget(contact.id)
        if status == "left":
            self._patience.forget(contact.id)
        grave = Grave(contact, status, self.lived + self._parameters.dead_us)
        put_last(self.graves, contact.id, grave, GRAVES_MAX)
        self.changes.append((status, contact))
        self.spread(News(contact, announced))
        return True

    def forget(self, node: NodeId) -> None:
        """Remove a member, which may still be alive, without a change or a claim."""
        self.members.pop(node, None)
        self.suspects.pop(node, None)

    def remember(self, stranger: Contact) -> None:
        """Keep the contact of a node that is no member, so that messages can be sent to it."""
        put_last(self._strangers, stranger.id, stranger, STRANGERS_MAX)

    def contact_of(self, node: NodeId) -> Contact | None:
        """The contact of a member, a stranger, a node under probe or a dead one. O(probes)."""
        found = self.members.get(node) or self._strangers.get(node)
        if found is None:
            targets = (probe.target for probe in self.probes.values())
            found = next((target for target in targets if target.id == node), None)
        if found is None and node in self.graves:
            found = self.graves[node].contact
        return found

    def is_other(self, contact: Contact) -> bool:
        """Whether the contact is another process than the known member."""
        old = self.members.get(contact.id)
        return old is not None and is_other_process(old, contact)

    def refute(self, claim: Contact, status: str) -> None:
        """Take a claim about myself: refute it with a newer version of me, or record it in `outlived` if I cannot."""
        me = self.me
        if claim.incarnation > me.incarnation or (
            claim.incarnation == me.incarnation and is_other_process(me, claim)
        ):
            self.outlived = claim
        elif status != "alive" and not self.leaving and not newer(me, claim):
            refuted = min(claim.refuted + 1, COUNT_MAX)
            self.me = Contact(me.id, me.incarnation, me.address, refuted, me.instance)
            self.spread(News(self.me, "alive"))

    # News.

    def spread(self, news: News) -> None:
        """Send a claim with the next `news_repeats` pings; it replaces an older claim about the same node."""
        put_last(self._news, news.contact.id, (news, self._parameters.news_repeats), NEWS_KEPT_MAX)

    def news_for(self, node: NodeId) -> tuple[News, ...]:
        """The claims for the next ping to that node: first the claim that it is suspect or dead, if there is one, then the oldest
        waiting claims. O(1) when none wait."""
        about = self._about(node) if self.suspects or self.graves else None
        waiting = self._news
        if not waiting:
            return () if about is None else (about,)
        claims = [] if about is None else [about]
        for subject in list(waiting)[: self._parameters.news_max - len(claims)]:
            news, repeats = waiting.pop(subject)
            if repeats > 1:
                waiting[subject] = (news, repeats - 1)
            if subject != node:
                claims.append(news)
        return tuple(claims)

    def _about(self, node: NodeId) -> News | None:
        if node in self.suspects:
            return News(self.members[node], "suspect")
        grave = self.graves.get(node)
        return None if grave is None else News(grave.contact, grave.status)

    # Probes.

    def probing(self, target: Contact, stage: int = DIRECT) -> int:
        """Begin a probe, whose Ping the caller sends. Returns its number; 0 if too many are open."""
        if len(self.probes) >= PROBES_MAX:
            return 0
        wait = self._parameters.probe_timeout_us if stage == DIRECT else self._parameters.probe_us
        self.number += 1
        self.probes[self.number] = Probe(target, stage, self.lived, self.lived + wait)
        return self.number

    def probe(self, target: Contact, digest: int, stage: int = DIRECT) -> Send:
        """Begin a probe and return its Ping. If too many probes are open, the Ping has number 0, which requests no answer."""
        number = self.probing(target, stage)
        return Send(target.id, Ping(self.me, number, self.news_for(target.id), digest))

    def challenge(self, rival: Contact, digest: int) -> list[Effect]:
        """Others claim that the process `rival` has taken a member's place: probe the member, unless that is under way."""
        node = rival.id
        if any(probe.stage == CHALLENGE and probe.target.id == node for probe in self.probes.values()):
            return []
        number = self.probing(self.members[node], CHALLENGE)
        if not number:
            return []
        self.probes[number].rival = rival
        return [Send(node, Ping(self.me, number, self.news_for(node), digest))]

    def probe_for(self, asked: ProbeFor, digest: int) -> Send:
        """The Ping to send for another node, which cannot reach the target itself."""
        number = self.probing(asked.target, FOR_ANOTHER)
        if number:
            probe = self.probes[number]
            probe.asker, probe.asker_number = asked.sender.id, asked.number
        target = asked.target.id
        return Send(target, Ping(self.me, number, self.news_for(target), digest))

    def answer_for(self, probe: Probe, target: Contact, digest: int) -> Send:
        """The Pong to the node that requested this probe: the target lives, and its version."""
        news = (News(target, "alive"),)
        return Send(probe.asker, Pong(self.me, probe.asker_number, target.id, news, digest))

    def answered(self, pong: Pong) -> Probe | None:
        """The probe that this Pong ends; None if the Pong matches no open probe."""
        probe = self.probes.get(pong.number)
        if probe is None or probe.target.id != pong.about:
            return None
        del self.probes[pong.number]
        return probe

    def ask_others(self, number: int, probe: Probe, leaves: LeafSet) -> list[Effect]:
        """No direct answer came: ping again, and request pings from `indirect_probes` leaves, for the rest of the period.

        Rule: a node is suspected only after others have tried to reach it too."""
        probe.stage = INDIRECT
        probe.due = max(
            probe.sent + self._parameters.probe_us, self.lived + self._parameters.probe_timeout_us
        )
        target = probe.target.id
        able = [node for node in leaves.clockwise() if node != target and node not in self.suspects]
        chosen = self._rng.sample(able, min(self._parameters.indirect_probes, len(able)))
        again = Send(target, Ping(self.me, number, self.news_for(target), leaves.digest))
        return [again, *(Send(node, ProbeFor(self.me, number, probe.target)) for node in chosen)]

    def is_asking_others(self, node: NodeId) -> bool:
        return any(probe.stage == INDIRECT and probe.target.id == node for probe in self.probes.values())

    def overdue(self) -> list[tuple[int, Probe]]:
        """Probes whose present stage has timed out."""
        return [(number, probe) for number, probe in self.probes.items() if probe.due <= self.lived]

    def condemned(self) -> list[Contact]:
        """Suspects that have not refuted in time."""
        return [self.members[node] for node, until in self.suspects.items() if until <= self.lived]

    def next_grave(self) -> Contact | None:
        """The next dead member to probe again, in turn; those older than dead_us are forgotten. O(1) amortised."""
        graves = self.graves
        while graves:
            node = next(iter(graves))
            grave = graves.pop(node)
            if grave.until > self.lived:
                graves[node] = grave
                return grave.contact
        return None

    def due(self) -> int | None:
        """Lived µs at which the first probe or suspicion ends."""
        times = [probe.due for probe in self.probes.values()]
        times.extend(self.suspects.values())
        return min(times, default=None)

    def check(self) -> None:
        assert self.me.id not in self.members
        assert self.me.id not in self.graves
        assert not self.members.keys() & self.graves.keys()
        assert self.suspects.keys() <= self.members.keys()
        assert len(self.graves) <= GRAVES_MAX
        self._patience.check()
        assert len(self._news) <= NEWS_KEPT_MAX
        assert len(self._strangers) <= STRANGERS_MAX
        assert len(self.probes) <= PROBES_MAX
