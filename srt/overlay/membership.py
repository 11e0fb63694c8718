"""Who lives: each node probes a few others in turn, asks third ones before it suspects, and gives the suspect time to object.

What is believed of a node, by the version (incarnation, refuted) of the claim:

    believed   hears                               becomes    and
    -          alive v, wanted by the overlay      alive v    change "joined"
    alive v    alive w > v, same incarnation       alive w
    alive v    becomes a leaf                      alive v    change "alive"
    alive v    alive w, higher incarnation         alive w    changes "dead" and "joined": it has restarted
    alive v    no Pong, directly or by others      suspect v  change "suspect"; told to everyone, to the suspect first
    alive v    suspect w >= v                      suspect w  change "suspect"
    suspect v  alive w > v                         alive w    change "alive": it has refuted
    suspect v  suspect_us go by                    dead v     change "dead"
    alive or suspect v   dead or left w >= v       dead w     change "dead" or "left"
    alive or suspect v   its process is gone       dead v     change "dead"; others are told "suspect", and look for themselves
    dead v     alive w > v                         alive w    change "joined"
    dead v     dead_us go by                       -
    (myself)   suspect, dead, left w >= mine       alive > w  I refute: `refuted` rises
    (myself)   another process, or a higher incarnation       `outlived` is told: the node begins anew above it, everywhere

What others say of another process than the one that is believed alive (`Contact.instance`; who speaks for itself has come through
the door, `elf.srt.transport.admission`):

    alive v    alive w > v                         alive v    v is challenged: where it does not answer, the change is as above
    alive v    suspect, dead, left                 alive v    it is not the process that is meant

Claims that change a belief are passed on with the next pings, `news_repeats` times; a claim about the addressee goes first.

Time is the time that this node has lived: a clock that stands or steps back adds nothing and one that jumps adds one probe period
at most, so that neither a paused process nor a stepped clock accuses others.

Invariants: a node is believed alive (or suspect) or dead, not both; suspects are members; everything is bounded.
Prior art: SWIM (Das, Gupta, Motivala, DSN 2002); no loss of precedence rules, no stable storage but the incarnation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from elf.srt.messages.effects import Effect, Send
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import COUNT_MAX, Contact, News, Ping, Pong, ProbeFor
from elf.srt.messages.parameters import Parameters

if TYPE_CHECKING:
    from random import Random

Change = tuple[str, Contact]
"""("joined" | "suspect" | "alive" | "dead" | "left", whom)."""

GRAVES_MAX = 64
"""Remembered dead: four leaf sets. What is pushed out can only be found again through seeds or others."""
NEWS_KEPT_MAX = 64
"""Claims waiting to be passed on: ten pings' worth."""
PROBES_MAX = 256
"""Outstanding at once, those asked for by others included; each lasts one probe period."""

DIRECT, INDIRECT, FOR_ANOTHER, ONCE, CHALLENGE = range(5)
"""Stages of a probe. ONCE: no answer means nothing (a seed, a dead member, a candidate for the routing table). CHALLENGE: no
answer means that another process has taken the member's place, as others say."""


def newer(one: Contact, other: Contact) -> bool:
    """Whether `one` is a later claim about the node than `other`."""
    if one.incarnation == other.incarnation:
        return one.refuted > other.refuted
    return one.incarnation > other.incarnation


def is_other_process(one: Contact, other: Contact) -> bool:
    """Whether these are known to be two processes."""
    return 0 != one.instance != other.instance != 0


class Probe:
    """One Ping that waits for its Pong. Times in lived µs."""

    __slots__ = ("asker", "asker_number", "due", "rival", "sent", "stage", "target")

    def __init__(self, target: Contact, stage: int, sent: int, due: int) -> None:
        self.target = target
        self.stage = stage
        self.sent = sent
        self.due = due
        self.asker = b""
        self.asker_number = 0
        self.rival: Contact | None = None


class Grave:
    """A dead member: its last contact, how it went, and until when (lived µs) it is remembered."""

    __slots__ = ("contact", "status", "until")

    def __init__(self, contact: Contact, status: str, until: int) -> None:
        self.contact = contact
        self.status = status
        self.until = until


class Membership:
    """What one node believes of others, and its open probes. `members` holds whom the overlay wants to know, alive or suspect."""

    __slots__ = (
        "_news",
        "_now",
        "_parameters",
        "_rng",
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
        self._rng = rng
        self._now: int | None = None
        self.lived = 0
        self.members: dict[NodeId, Contact] = {}
        self.suspects: dict[NodeId, int] = {}
        self.graves: dict[NodeId, Grave] = {}
        self.probes: dict[int, Probe] = {}
        self.changes: list[Change] = []
        self.leaving = False
        self.outlived: Contact | None = None
        """A claim about myself that is above anything I can say in this life, or of another process in it."""
        self._news: dict[NodeId, tuple[News, int]] = {}
        self.number = 0

    # Time.

    def live(self, now: int) -> int:
        """Lived µs at `now` of the node's clock."""
        last = self._now
        self._now = now
        if last is not None and now > last:
            self.lived += min(now - last, self._parameters.probe_us)
        return self.lived

    def clock_at(self, lived: int) -> int:
        """The node's clock when so much will have been lived."""
        return (self._now or 0) + lived - self.lived

    # Claims.

    def hear(self, contact: Contact) -> bool:
        """Someone runs, by its own word or another's. True: unknown, or back from the dead; `admit` it or leave it."""
        old = self.members.get(contact.id)
        if old is None or not old.incarnation:
            grave = self.graves.get(contact.id)
            return grave is None or newer(contact, grave.contact)
        if old is not contact and newer(contact, old):
            self._renew(old, contact)
        return False

    def admit(self, contact: Contact) -> None:
        self.members[contact.id] = contact
        self.graves.pop(contact.id, None)
        if contact.incarnation:
            self.changes.append(("joined", contact))

    def _renew(self, old: Contact, contact: Contact) -> None:
        self.members[contact.id] = contact
        suspected = self.suspects.pop(contact.id, None) is not None
        if contact.incarnation != old.incarnation:
            if old.incarnation:
                self.changes.append(("dead", old))
            self.changes.append(("joined", contact))
        elif suspected:
            self.changes.append(("alive", contact))
        self.spread(News(contact, "alive"))

    def suspect(self, contact: Contact) -> bool:
        """Begin to suspect a member, unless the claim is older than what is known of it. Whether that is new."""
        node = contact.id
        old = self.members.get(node)
        if old is None or newer(old, contact) or node in self.suspects or is_other_process(old, contact):
            return False
        self.members[node] = contact
        self.suspects[node] = self.lived + self._parameters.suspect_us
        self.changes.append(("suspect", contact))
        self.spread(News(contact, "suspect"))
        return True

    def bury(self, contact: Contact, status: str, announced: str) -> bool:
        """Believe a member "dead" or "left", unless the claim is older than what is known of it. Whether that is new. told: the
        claim that others hear."""
        old = self.members.get(contact.id)
        if old is None or newer(old, contact) or is_other_process(old, contact):
            return False
        self.forget(contact.id)
        while len(self.graves) >= GRAVES_MAX:
            del self.graves[next(iter(self.graves))]
        self.graves[contact.id] = Grave(contact, status, self.lived + self._parameters.dead_us)
        self.changes.append((status, contact))
        self.spread(News(contact, announced))
        return True

    def forget(self, node: NodeId) -> None:
        """No longer a member, though it may live."""
        self.members.pop(node, None)
        self.suspects.pop(node, None)

    def is_other(self, contact: Contact) -> bool:
        """Whether that is another process than the one that is believed to be a member."""
        old = self.members.get(contact.id)
        return old is not None and is_other_process(old, contact)

    def refute(self, claim: Contact, status: str) -> None:
        """A claim about myself. Contradicted with a newer version of me where it is wrong, or noted where I cannot."""
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
        """Tell it with the next `news_repeats` pings; a newer claim about the same node takes its place."""
        waiting = self._news
        waiting.pop(news.contact.id, None)
        while len(waiting) >= NEWS_KEPT_MAX:
            del waiting[next(iter(waiting))]
        waiting[news.contact.id] = (news, self._parameters.news_repeats)

    def news_for(self, node: NodeId) -> tuple[News, ...]:
        """What to tell that node now: what I believe of itself if that is bad, then what waits longest. O(1) in quiet times."""
        about = self._about(node) if self.suspects or self.graves else None
        waiting = self._news
        if not waiting:
            return () if about is None else (about,)
        told = [] if about is None else [about]
        for subject in list(waiting)[: self._parameters.news_max - len(told)]:
            news, repeats = waiting.pop(subject)
            if repeats > 1:
                waiting[subject] = (news, repeats - 1)
            if subject != node:
                told.append(news)
        return tuple(told)

    def _about(self, node: NodeId) -> News | None:
        if node in self.suspects:
            return News(self.members[node], "suspect")
        grave = self.graves.get(node)
        return None if grave is None else News(grave.contact, grave.status)

    # Probes.

    def probing(self, target: Contact, stage: int = DIRECT) -> int:
        """Begin a probe, whose Ping is still to be sent: its number; 0 where too many are open."""
        if len(self.probes) >= PROBES_MAX:
            return 0
        wait = self._parameters.probe_timeout_us if stage == DIRECT else self._parameters.probe_us
        self.number += 1
        self.probes[self.number] = Probe(target, stage, self.lived, self.lived + wait)
        return self.number

    def probe(self, target: Contact, digest: int, stage: int = DIRECT) -> Send:
        """The Ping to send now. Where too many probes are open it asks for no answer."""
        number = self.probing(target, stage)
        return Send(target.id, Ping(self.me, number, self.news_for(target.id), digest))

    def challenge(self, rival: Contact, digest: int) -> list[Effect]:
        """Others say that this process has taken a member's place: ask the member, unless that is under way."""
        node = rival.id
        if any(probe.stage == CHALLENGE and probe.target.id == node for probe in self.probes.values()):
            return []
        number = self.probing(self.members[node], CHALLENGE)
        if not number:
            return []
        self.probes[number].rival = rival
        return [Send(node, Ping(self.me, number, self.news_for(node), digest))]

    def probe_for(self, asked: ProbeFor, digest: int) -> Send:
        """Another node cannot reach the target: the Ping to send now."""
        number = self.probing(asked.target, FOR_ANOTHER)
        if number:
            probe = self.probes[number]
            probe.asker, probe.asker_number = asked.sender.id, asked.number
        target = asked.target.id
        return Send(target, Ping(self.me, number, self.news_for(target), digest))

    def answered(self, pong: Pong) -> Probe | None:
        """The probe that this Pong ends, if it is one of mine and about its target."""
        probe = self.probes.get(pong.number)
        if probe is None or probe.target.id != pong.about:
            return None
        del self.probes[pong.number]
        return probe

    def ask_others(self, number: int, probe: Probe, others: Iterable[NodeId], digest: int) -> list[Effect]:
        """No direct answer: try again, and have `indirect_probes` others try, for the rest of the probe period."""
        probe.stage = INDIRECT
        probe.due = max(
            probe.sent + self._parameters.probe_us, self.lived + self._parameters.probe_timeout_us
        )
        target = probe.target.id
        able = [node for node in others if node != target and node not in self.suspects]
        chosen = self._rng.sample(able, min(self._parameters.indirect_probes, len(able)))
        again = Send(target, Ping(self.me, number, self.news_for(target), digest))
        return [again, *(Send(node, ProbeFor(self.me, number, probe.target)) for node in chosen)]

    def is_asking_others(self, node: NodeId) -> bool:
        return any(probe.stage == INDIRECT and probe.target.id == node for probe in self.probes.values())

    def overdue(self) -> list[tuple[int, Probe]]:
        """Probes whose stage has lasted long enough."""
        return [(number, probe) for number, probe in self.probes.items() if probe.due <= self.lived]

    def condemned(self) -> list[Contact]:
        """Suspects that have had their time to refute."""
        return [self.members[node] for node, until in self.suspects.items() if until <= self.lived]

    def next_grave(self) -> Contact | None:
        """One of the dead to look for again, each in its turn; those past dead_us are forgotten on the way. O(1) amortized."""
        graves = self.graves
        while graves:
            node = next(iter(graves))
            grave = graves.pop(node)
            if grave.until > self.lived:
                graves[node] = grave
                return grave.contact
        return None

    def due(self) -> int | None:
        """Lived µs at which the first probe or suspicion is over."""
        times = [probe.due for probe in self.probes.values()]
        times.extend(self.suspects.values())
        return min(times, default=None)

    def check(self) -> None:
        assert self.me.id not in self.members
        assert self.me.id not in self.graves
        assert not self.members.keys() & self.graves.keys()
        assert self.suspects.keys() <= self.members.keys()
        assert len(self.graves) <= GRAVES_MAX
        assert len(self._news) <= NEWS_KEPT_MAX
        assert len(self.probes) <= PROBES_MAX
