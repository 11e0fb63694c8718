"""Nodes with a `Succession` each, on links, datagrams and disks that fail under one seed, and the oracle that watches them.

Disks: what a list holds behind a `Write` waits until the disk has done it; a crash loses what waits, and what is written last
may or may not have arrived. Links keep order and lose everything when reset. Datagrams are lost, repeated, overtaken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

from elf.jobmaster.log.job_log import NO_MAJORITY, Base, LogRecord, Majorities, Majority, More, Rank
from elf.jobmaster.log.phases import Phase, Role, Serve
from elf.jobmaster.log.succession import Succession
from elf.srt.messages.effects import Effect, Post, Send, Write
from elf.srt.messages.ids import NodeId, closeness
from elf.srt.messages.messages import NO_BALLOT, Ballot, Handover, Held, Message, StateReport, node_of
from elf.srt.messages.parameters import Parameters

JOB = bytes(16)
PARAMETERS = Parameters(snapshot_entries=8)


class ListState:
    """A state that equals its entries, so that the content of a log is visible."""

    def __init__(self, snapshot: tuple[str, ...] | None) -> None:
        self.entries = list(snapshot or ())

    def apply(self, index: int, entry: str) -> None:
        assert index == len(self.entries) + 1, "an entry was left out or came twice"
        self.entries.append(entry)

    def snapshot(self) -> tuple[str, ...]:
        return tuple(self.entries)

    def parted(self, piece_bytes: int) -> None:
        """Whole in every record."""

    def add(self, piece: object) -> None:
        raise AssertionError("a piece of a state that is whole")

    def majorities(self, tail: Sequence[str]) -> Majorities:
        return majorities((*self.entries, *tail))


def majorities(entries: Sequence[str]) -> Majorities:
    """An entry "7B!2" says that more than half reported under 7B since two replicas had left. Which was said twice, and which
    at least once."""
    said = [_majority(*entry.split("!")) for entry in entries if "!" in entry]
    last = max(said, default=NO_MAJORITY)
    before = max((each for each in said if each != last), default=NO_MAJORITY)
    return (last if said.count(last) > 1 else before), last


def _majority(ballot: str, left: str) -> Majority:
    return (int(ballot[:-1]), _id("ABCDEFGHIJ".index(ballot[-1]) + 1)), int(left)


def _id(number: int) -> NodeId:
    return bytes(15) + bytes([number])


class Log(NamedTuple):
    """What a node holds: the ballot it follows, the last one under which the log was served, and all entries."""

    held: Ballot
    last: Ballot
    entries: tuple[str, ...]

    @property
    def proven(self) -> Majority:
        """What a later ballot served with was committed."""
        twice, once = majorities(self.entries)
        return once if once[0] < self.last else twice

    @property
    def rank(self) -> Rank:
        return (self.proven, self.last, len(self.entries)) if self.entries else (NO_MAJORITY, NO_BALLOT, 0)


def read_back(records: list[LogRecord]) -> Log:
    """What a disk holds, read without the code under test."""
    held, last, entries = NO_BALLOT, NO_BALLOT, list[str]()
    for record in records:
        if isinstance(record, Base):
            held, last, entries = record.ballot, record.last, [*(record.state or ()), *record.tail]
        elif isinstance(record, More):
            held, last = record.ballot, record.last
            entries = entries[: record.first - 1] + list(record.entries)
    return Log(held, last, tuple(entries))


class Node:
    def __init__(self, number: int) -> None:
        self.id = _id(number)
        self.name = "ABCDEFGHIJ"[number - 1]
        self.life = 0
        self.alive = False
        self.group = 0
        self.skew = 0
        self.disk: dict[str, list[LogRecord]] = {"log": [], "ballot": []}
        self.waiting: deque[Effect] = deque()
        self.core: Succession
        self.asked: Ballot = NO_BALLOT
        self.promised: Ballot = NO_BALLOT
        self.served_at = self.wiped_at = 0  # places in the story
        self.view: tuple[bool, tuple[NodeId, ...]] = (False, ())

    def write(self, effect: Write) -> None:
        records = self.disk[effect.key[0]]
        if effect.replace:
            records.clear()
        records.append(effect.record)

    @property
    def durable(self) -> Log:
        return read_back(self.disk["log"])

    @property
    def log(self) -> Log:
        log = self.core.replica.log
        state = log.state
        entries = state.entries if isinstance(state, ListState) else ()
        return Log(log.held, log.last, (*entries, *log.tail))


class World:
    """`honest`: views follow the truth at once, no partitions happen, and no answer comes after its bound, so nothing that is
    committed may be lost while a holder tells.
    Otherwise views come late, leave nodes out, and nodes are parted: two may serve, but under two ballots."""

    def __init__(
        self, seed: int, count: int = 5, *, honest: bool = True, core: type[Succession] = Succession
    ) -> None:
        self.rng, self.now, self.honest, self.kind = Random(seed), 1_000_000, honest, core
        self.nodes = [Node(number + 1) for number in range(count)]
        self.by_id = {node.id: node for node in self.nodes}
        self.links: dict[tuple[NodeId, NodeId], deque[Message]] = {}
        self.datagrams: list[tuple[NodeId, NodeId, Message]] = []
        self.story: list[str] = []
        self.logs: dict[Ballot, tuple[str, ...]] = {}
        self.servers: dict[Ballot, tuple[NodeId, int]] = {}
        self.tellers: dict[Ballot, dict[NodeId, tuple[int, Log]]] = {}
        self.bases: dict[Ballot, Rank] = {}
        self.handed: dict[Ballot, tuple[str, ...]] = {}
        self.committed: tuple[str, ...] = ()
        self.done: dict[Ballot, tuple[str, ...]] = {}
        self.forked = False
        self.commits = self.serves = self.fresh = self.transfers = self.proofs = self.count = (
            self.known_whole
        ) = 0

    # Lives.

    def start(self, node: Node) -> None:
        node.life += 1
        node.alive, node.view = True, (False, ())
        node.core = self.kind(JOB, node.id, PARAMETERS, ListState)
        node.core.restore([*node.disk["log"], *node.disk["ballot"]])
        self.tell_story(f"{node.name} starts with {show_log(node.log)}")
        for other in self.alive():
            if other is not node:
                self.reset(node, other, both=False)
        if not node.disk["ballot"] and node.asked != NO_BALLOT:
            self.perform(node, node.core.heard_ballot(node.asked, self.time(node)))
        self.look_all()

    def crash(self, node: Node, *, disk_lost: bool = False) -> None:
        self.tell_story(f"{node.name} dies{' with its disk' if disk_lost else ''}")
        if node.waiting and self.rng.random() < 0.5:
            effect = node.waiting.popleft()
            assert isinstance(effect, Write)
            node.write(effect)
        node.waiting.clear()
        node.alive = False
        if disk_lost:
            node.wiped_at, node.promised = len(self.story), NO_BALLOT
            node.disk = {"log": [], "ballot": []}
        for pair in [pair for pair in self.links if pair[0] == node.id]:
            self.links[pair].clear()
        self.look_all()

    def reset(self, one: Node, other: Node, *, both: bool = True) -> None:
        for pair in ((one.id, other.id), (other.id, one.id)):
            self.links.pop(pair, None)
        self.perform(other, other.core.link_reset(one.id, self.time(other)))
        if both:
            self.perform(one, one.core.link_reset(other.id, self.time(one)))

    def alive(self) -> list[Node]:
        return [node for node in self.nodes if node.alive]

    def time(self, node: Node) -> int:
        return self.now + node.skew

    def look_all(self) -> None:
        for node in self.alive() if self.honest else ():
            self.look(node)

    def look(self, node: Node, unseen: NodeId = b"") -> None:
        """Give a node the overlay's view, without `unseen`."""
        others = [
            each.id for each in self.alive() if each.group == node.group and each.id not in (node.id, unseen)
        ]
        others.sort(key=lambda each: closeness(JOB, each))
        closest = not others or closeness(JOB, node.id) < closeness(JOB, others[0])
        view = (closest, tuple(others))
        if view != node.view:
            node.view = view
            told = self.tellers.get(node.core.ballot, {})
            for gone in told.keys() - set(others):
                del told[gone]
            seen = "".join(self.by_id[each].name for each in others) or "nobody"
            self.tell_story(f"{node.name} sees {seen}{', is closest' if closest else ''}")
            self.perform(node, node.core.closest(closest, others, self.time(node)))

    # Effects.

    def perform(self, node: Node, effects: list[Effect]) -> None:
        behind = False
        for effect in effects:
            behind = behind or isinstance(effect, Write)
            if behind:
                node.waiting.append(effect)
            else:
                self.emit(node, effect)
        self.watch(node)

    def emit(self, node: Node, effect: Effect) -> None:
        if isinstance(effect, (Send, Post)):
            self.keeps_its_word(node, effect.message)
        if isinstance(effect, Send):
            self.datagrams.append((node.id, effect.to, effect.message))
        else:
            assert isinstance(effect, Post)
            self.links.setdefault((node.id, effect.to), deque()).append(effect.message)

    def keeps_its_word(self, node: Node, message: Message) -> None:
        """An answer that is no refusal promises the asker's ballot; nothing is acknowledged under a lower one after it."""
        if isinstance(message, StateReport) and message.asked >= message.highest:
            node.promised = max(node.promised, message.asked)
        if isinstance(message, Held) and not message.refused and message.index >= 0:
            assert message.ballot >= node.promised, (
                f"{node.name} broke its promise of {show_ballot(node.promised)}"
            )

    def sync(self, node: Node) -> None:
        """Complete the disk's pending write."""
        effect = node.waiting.popleft()
        assert isinstance(effect, Write)
        node.write(effect)
        self.logs[node.durable.held] = self.compare(node.durable)
        while node.waiting and not isinstance(node.waiting[0], Write):
            self.emit(node, node.waiting.popleft())

    def deliver(self, source: NodeId, to: NodeId, message: Message) -> None:
        node = self.by_id[to]
        if not node.alive or node.group != self.by_id[source].group:
            return
        self.tell_story(f"{self.by_id[source].name}->{node.name} {show(message)}")
        if isinstance(message, StateReport) and message.asked == node.core.ballot != NO_BALLOT:
            teller = self.by_id[source]
            if source in node.core.neighbours:
                self.tellers.setdefault(message.asked, {})[source] = (teller.life, teller.durable)
        before = node.core.ballot
        effects = node.core.step(source, message, self.time(node))
        if isinstance(message, Handover) and node.core.ballot != before:
            self.handed[node.core.ballot] = self.logs[message.ballot]
        self.perform(node, effects)

    def tick(self, node: Node) -> None:
        self.perform(node, node.core.tick(self.time(node)))

    def prove(self, node: Node) -> None:
        """The master on it has heard more than half since replicas left: said once, and when that is committed once more."""
        entry, log = f"{show_ballot(node.core.ballot)}!{node.core.left}", node.log
        if node.core.room <= 0 or node.core.replication is None:
            return
        said = [*log.entries, *node.core.replication.pending]
        if entry not in said or (
            said.count(entry) == 1 and said.index(entry) < node.core.replica.log.applied
        ):
            self.proofs += 1
            node.core.propose(entry, self.time(node))
            self.watch(node)

    def propose(self, node: Node) -> None:
        urgent = node.core.role is Role.HANDING_OVER and node.core.replication and node.core.replication.room
        if node.core.room > 0 or urgent:
            self.count += 1
            node.core.propose(f"{node.name}{self.count}", self.time(node))
            self.watch(node)

    # The oracle.

    def watch(self, node: Node) -> None:
        core = node.core
        core.check()
        node.asked = max(node.asked, core.ballot)
        if core.phase is Phase.INSTALL:
            self.bases[core.ballot] = node.log.rank
        self.compare(node.log)
        for index, entry in core.news.take_committed():
            self.on_commit(node, index, entry)
        for change in core.news.take_changes():
            if isinstance(change, Serve):
                self.on_serve(node, change)
            else:
                self.tell_story(f"{node.name} steps down from {show_ballot(change.ballot)}")

    def compare(self, log: Log) -> tuple[str, ...]:
        """Of two logs of one ballot one begins like the other. Returns the longer."""
        known = self.logs.get(log.held, ())
        short, long = sorted((known, log.entries), key=len)
        assert long[: len(short)] == short, f"two logs of ballot {show_ballot(log.held)}"
        return long

    def on_commit(self, node: Node, index: int, entry: str) -> None:
        self.commits += 1
        held, _, entries = node.log
        assert entries[index - 1] == entry
        self.done[held] = entries[:index]
        self.tell_story(f"{node.name} commits {index} {entry}")
        holders = [node.id, *(node.core.replication.peers if node.core.replication else ())]
        for holder in holders:
            ballot, _, kept = self.by_id[holder].durable
            present = self.by_id[holder].alive and self.by_id[holder].wiped_at <= node.served_at
            if present and ballot == held:
                assert kept[:index] == entries[:index], f"{self.by_id[holder].name} lacks a committed entry"
            assert not present or ballot >= held, f"{self.by_id[holder].name} lacks a committed log"
        if self.honest:
            assert self.committed[index - 1 : index] in ((), (entry,)), "two committed entries of one index"
            assert len(self.committed) >= index - 1, "a committed entry was left out"
            self.committed = (*self.committed[: index - 1], entry, *self.committed[index:])

    def on_serve(self, node: Node, change: Serve) -> None:
        self.serves += 1
        node.served_at = len(self.story)
        self.fresh += change.fresh
        self.tell_story(
            f"{node.name} serves under {show_ballot(change.ballot)} from {change.index}{' fresh' if change.fresh else ''}"
        )
        assert self.servers.setdefault(change.ballot, (node.id, node.life)) == (node.id, node.life)
        entries = node.log.entries
        assert len(entries) == change.index
        tellers = self.tellers.get(change.ballot, {})
        if change.ballot in self.handed:
            self.transfers += 1
            assert entries == self.handed[change.ballot], "the transfer left something out"
        if change.handed_on and change.former:
            self.known_whole += change.ballot not in self.handed
            for ballot, done in self.done.items():
                if (ballot[0] + 1, node_of(ballot)) == (change.ballot[0], change.former):
                    assert entries[: len(done)] == done, (
                        "who served before had committed more than it handed on"
                    )
        reached = [log for each, (life, log) in tellers.items() if self.lives(each, life)]
        best = max(reached, key=lambda log: log.rank, default=Log(NO_BALLOT, NO_BALLOT, ()))
        if entries[: len(best.entries)] != best.entries:
            assert self.bases[change.ballot] > best.rank, "not the highest log"
        if self.honest:
            self.nothing_lost(entries, reached, self.bases[change.ballot])

    def lives(self, each: NodeId, life: int) -> bool:
        return self.by_id[each].alive and self.by_id[each].life == life

    def nothing_lost(self, entries: tuple[str, ...], reached: list[Log], base: Rank) -> None:
        """Once it is (all that held it are gone, or down), or a higher log was down, what comes back may be of either side."""
        whole, lost = self.committed, entries[: len(self.committed)] != self.committed
        if lost and not self.forked:
            assert all(log.entries[: len(whole)] != whole for log in reached), "committed entries were lost"
        self.committed = entries
        self.forked = self.forked or lost or any(node.durable.rank > base for node in self.nodes)

    def tell_story(self, line: str) -> None:
        self.story.append(line)

    # Rest.

    def settle(self, rounds: int = 2_000) -> None:
        """Deliver, write and tick until nothing is left to do."""
        for _ in range(rounds):
            if not self.settle_once():
                return
        raise AssertionError("the nodes do not come to rest")

    def settle_once(self) -> bool:
        busy = False
        for node in self.alive():
            while node.waiting:
                self.sync(node)
                busy = True
        datagrams, self.datagrams = self.datagrams, []
        for each in datagrams:
            self.deliver(*each)
            busy = True
        for pair in list(self.links):
            while self.links.get(pair) and self.passes(pair):
                self.deliver(*pair, self.links[pair].popleft())
                busy = True
        return busy or self.next_tick()

    def passes(self, pair: tuple[NodeId, NodeId]) -> bool:
        source, to = (self.by_id[each] for each in pair)
        return to.alive and source.group == to.group

    def next_tick(self) -> bool:
        due = [
            (node.core.deadline - node.skew, node.id)
            for node in self.alive()
            if node.core.deadline is not None
        ]
        if not due:
            return False
        at, which = min(due)
        self.now = max(self.now, at)
        self.tick(self.by_id[which])
        return True

    def check_rest(self) -> None:
        """One serves, the closest one; all its replicas hold what it holds; and it can commit."""
        alive = sorted(self.alive(), key=lambda node: closeness(JOB, node.id))
        serving = [
            node for node in alive if node.core.role is not Role.REPLICA and node.core.role is not Role.IDLE
        ]
        assert [node.name for node in serving] == [alive[0].name], "not exactly the closest serves"
        master = serving[0]
        assert master.core.phase is Phase.SERVE
        before = self.commits
        self.propose(master)
        self.settle()
        assert self.commits == before + 1
        for replica in alive[1 : 1 + PARAMETERS.replicas]:
            assert replica.log == master.log == replica.durable
            assert replica.core.replica.log.tail == []


def show_ballot(ballot: Ballot) -> str:
    return f"{ballot[0]}{'ABCDEFGHIJ'[ballot[1][15] - 1]}" if ballot[1] else "-"


def show_log(log: Log) -> str:
    return f"{show_ballot(log.last)}:{len(log.entries)}"


def show(message: Message) -> str:
    """A message in a transcript: its kind, then ballots and indexes."""
    return " ".join([type(message).__name__, *_fields(message)])


def _fields(message: Message) -> Iterator[str]:
    for name in message.__struct_fields__:
        value: Any = getattr(message, name)
        if name in ("ballot", "held", "highest", "asked", "previous", "proven"):
            if value != NO_BALLOT or name in ("ballot", "asked"):
                yield f"{name}={show_ballot(value)}"
        elif name in ("first", "index", "committed"):
            yield f"{name}={value}"
        elif name in ("entries", "tail", "state"):
            yield f"{name}=[{' '.join(value)}]"
        elif value is True:
            yield name


class Explorer(World):
    """Random events, one after the other."""

    def run(self, steps: int) -> None:
        for node in self.nodes:
            self.start(node)
        for _ in range(steps):
            self.event()
        self.heal()

    def heal(self) -> None:
        for node in self.nodes:
            node.group = 0
            if not node.alive:
                self.start(node)
        for node in self.nodes:
            self.look(node)
        self.settle()
        self.check_rest()

    def event(self) -> None:
        pick = self.rng.random()
        if pick < 0.30:
            self.some_link()
        elif pick < 0.50:
            self.some_datagram()
        elif pick < 0.68:
            self.some_disk()
        elif pick < 0.78:
            self.some_tick()
        elif pick < 0.88:
            for node in self.alive():
                if node.core.role in (Role.SERVING, Role.HANDING_OVER):
                    self.propose(node)
                    if self.rng.random() < 0.3:
                        self.prove(node)
        elif pick < 0.97:
            self.some_look()
        else:
            self.fault()

    def some_tick(self) -> None:
        """Time passes; among the honest only when nothing is under way."""
        moving = self.datagrams or any(self.links[pair] and self.passes(pair) for pair in self.links)
        if not self.honest or not (moving or any(node.waiting for node in self.alive())):
            self.next_tick()

    def some_link(self) -> None:
        full = [pair for pair, messages in self.links.items() if messages and self.passes(pair)]
        if full:
            pair = self.rng.choice(full)
            for _ in range(self.rng.randint(1, 3)):
                if self.links.get(pair) and self.passes(pair):
                    self.deliver(*pair, self.links[pair].popleft())

    def some_datagram(self) -> None:
        if not self.datagrams:
            return
        at = self.rng.randrange(len(self.datagrams))
        fate = self.rng.random()
        each = self.datagrams[at] if fate < 0.1 else self.datagrams.pop(at)
        if fate < (0.98 if self.honest else 0.9):
            self.deliver(*each)

    def some_disk(self) -> None:
        slow = [node for node in self.alive() if node.waiting]
        if slow:
            self.sync(self.rng.choice(slow))

    def some_look(self) -> None:
        alive = self.alive()
        if alive:
            unseen = b"" if self.honest or self.rng.random() < 0.8 else self.rng.choice(self.nodes).id
            self.look(self.rng.choice(alive), unseen)

    def fault(self) -> None:
        rng, node = self.rng, self.rng.choice(self.nodes)
        pick = rng.random()
        if not node.alive:
            self.start(node)
        elif pick < 0.4:
            self.crash(node, disk_lost=rng.random() < 0.2)
        elif pick < 0.6:
            other = rng.choice(self.alive())
            if other is not node:
                self.reset(node, other)
        elif pick < 0.75:
            node.skew += rng.choice((-3_600_000_000, -500_000, 500_000))
        elif not self.honest:
            for each in self.nodes:
                each.group = rng.randrange(2) if pick < 0.87 else 0
