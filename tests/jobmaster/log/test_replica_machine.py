"""A replica compared with plain lists: changing masters, a slow disk, crashes at any time."""

from __future__ import annotations

from typing import TypeGuard

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from elf.jobmaster.log.job_log import Base, LogRecord, More, Promise
from elf.jobmaster.log.replica import Replica
from elf.srt.messages.effects import Effect, Post, Send, Write
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import NO_BALLOT, Append, Ballot, Fetch, Held, Install, Message, StateReport
from tests.rigs.succession_world import JOB, ListState, Log, read_back

A, B = bytes(15) + b"\1", bytes(15) + b"\2"
NAMES = {A: "A", B: "B"}
SNAPSHOT_ENTRIES = 4


class Master:
    """The master of one ballot: a list that only grows once it serves. `last`: the ballot under which its beginning was
    served."""

    def __init__(self, ballot: Ballot, last: Ballot, entries: list[str]) -> None:
        self.ballot, self.last, self.entries = ballot, last, entries
        self.beginning = len(entries)
        self.committed = 0

    @property
    def serves(self) -> bool:
        return self.last == self.ballot

    def install(self) -> Install:
        done, rest = tuple(self.entries[: self.committed]), tuple(self.entries[self.committed :])
        proven = Log(self.ballot, self.last, tuple(self.entries)).proven
        return Install(JOB, self.ballot, self.committed, done, self.last, rest, *proven)

    def append(self, first: int, count: int) -> Append:
        entries = tuple(self.entries[first - 1 : first - 1 + count])
        previous = NO_BALLOT if self.serves else self.last
        return Append(JOB, self.ballot, first, entries, self.committed, previous)


class Model:
    """The expected log and answers of a replica, according to the rules."""

    def __init__(self) -> None:
        self.promised: Ballot = NO_BALLOT
        self.held: Ballot = NO_BALLOT
        self.last: Ballot = NO_BALLOT
        self.entries: list[str] = []
        self.applied = 0

    @property
    def log(self) -> Log:
        return Log(self.held, self.last, tuple(self.entries))

    def report(self) -> StateReport:
        log = self.log
        return StateReport(JOB, self.promised, self.promised, log.last, len(log.entries), False, *log.proven)

    def appended(self, master: Master, message: Append) -> Message | None:
        end, length = message.first - 1 + len(message.entries), len(self.entries)
        is_same_log = message.previous == self.last != NO_BALLOT
        if message.ballot == self.held:
            if message.first > length + 1:
                return Held(JOB, self.held, length)
        elif not is_same_log or message.first != length + 1:
            return self.report() if is_same_log and length > end else Held(JOB, message.ballot, -1)
        assert self.entries == master.entries[:length], "what is gone on from is another log"
        before = self.held, self.last
        self.held = message.ballot
        self.last = self.last if message.previous != NO_BALLOT else message.ballot
        self.entries = master.entries[: max(length, end)]
        self.applied = max(self.applied, min(message.committed, len(self.entries)))
        is_news = bool(message.entries) or before != (self.held, self.last)
        return Held(JOB, self.held, len(self.entries)) if is_news else None

    def installed(self, master: Master) -> Message:
        offered = Log(master.ballot, master.last, tuple(master.entries))
        mine, theirs = self.log, offered
        if mine.proven > theirs.proven if master.serves else mine.rank > theirs.rank:
            return self.report()
        if self.held == master.ballot and len(theirs.entries) <= len(mine.entries):
            self.last = max(self.last, master.last)
        else:
            self.held, self.last, self.entries = master.ballot, master.last, [*master.entries]
            self.applied = master.committed
        return Held(JOB, self.held, len(self.entries))


class Disk:
    """The writes in order, of which the first `done` are durable. Effects after a write leave when it is durable."""

    def __init__(self) -> None:
        self.writes: list[tuple[Write, list[Message]]] = []
        self.done = 0

    def records(self, key: str, count: int | None = None) -> list[LogRecord]:
        found: list[LogRecord] = []
        for write, _ in self.writes[:count]:
            if write.key == (key, JOB):
                found = [write.record] if write.replace else [*found, write.record]
        return found

    def promised(self) -> Ballot:
        """Restore a replica from the durable records."""
        records = self.records("ballot", self.done) + self.records("log", self.done)
        ballots = (record.ballot for record in records if isinstance(record, Base | More | Promise))
        return max(ballots, default=NO_BALLOT)


def is_log(record: LogRecord) -> TypeGuard[Base | More]:
    """Whether it is more than a promise."""
    return isinstance(record, Base | More)


class ReplicaAgainstLists(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk, self.model = Disk(), Model()
        self.replica = Replica(JOB, ListState, SNAPSHOT_ENTRIES, 1 << 20)
        self.masters = [Master((1, A), NO_BALLOT, [])]
        self.word: Ballot = NO_BALLOT  # the highest ballot that it promised
        self.answered: tuple[NodeId, Ballot] | None = None
        self.made = 0

    # Masters.

    @rule(
        which=st.integers(0, 3), cut=st.integers(0, 3), node=st.sampled_from([A, B]), higher=st.integers(0, 1)
    )
    def begin(self, which: int, cut: int, node: NodeId, higher: int) -> None:
        """A node is about to serve with some node's copy of a log that was served, or without any."""
        ballot = max(master.ballot for master in self.masters)[0] + higher, node
        if any(master.ballot == ballot for master in self.masters):
            return
        served = [master for master in self.masters if master.serves and master.ballot < ballot][-3:]
        if which < len(served):
            of = served[which]
            entries = of.entries[: max(of.beginning, len(of.entries) - cut)]
            self.masters.append(Master(ballot, of.ballot, entries))
        else:
            self.masters.append(Master(ballot, NO_BALLOT, []))

    def master(self, which: int) -> Master:
        """Usually the newest master."""
        return self.masters[max(0, len(self.masters) - 1 - max(0, which - 2))]

    @rule(which=st.integers(0, 4), count=st.integers(0, 4), proves=st.booleans(), commits=st.booleans())
    def propose(self, which: int, count: int, proves: bool, commits: bool) -> None:
        """The master serves from now on, if it did not; `proves`: and more than half have reported."""
        master = self.master(which)
        master.last = master.ballot
        for _ in range(count):
            self.made += 1
            master.entries.append(f"e{self.made}")
        if proves:
            master.entries.append(f"{master.ballot[0]}{NAMES[master.ballot[1]]}!")
        if commits:
            master.committed = len(master.entries) - count // 2

    @rule(count=st.integers(0, 4), late=st.integers(0, 2))
    def go_on(self, count: int, late: int) -> None:
        """The newest master serves, and its whole log arrives, of which it knows most to be committed."""
        self.propose(0, count, False, False)
        master = self.master(0)
        master.committed = max(master.committed, len(master.entries) - late)
        self.append(0, 0, len(master.entries))

    @rule(step=st.sampled_from([-1, 0, 0, 1]), count=st.integers(0, 2))
    def take_over(self, step: int, count: int) -> None:
        """Another node, which held as much or a little more or less, continues the log and does not serve yet."""
        model = self.model
        held = next((master for master in self.masters if master.ballot == model.last), None)
        if held is not None:
            entries = held.entries[: max(held.beginning, len(model.entries) + count - 1)]
            ballot = max(master.ballot for master in self.masters)[0] + 1, A
            self.masters.append(Master(ballot, held.ballot, entries))
            self.append(0, step, 5)

    @rule(which=st.integers(0, 4), step=st.sampled_from([-3, -1, 0, 0, 0, 0, 1, 2]), count=st.integers(0, 5))
    def append(self, which: int, step: int, count: int) -> None:
        """Entries that follow the held ones (0), repeat some of them, or leave a hole."""
        master = self.master(which)
        if not master.serves and master.last == NO_BALLOT:
            return  # no node holds the beginning of a new log
        first = min(max(1, len(self.model.entries) + 1 + step), len(master.entries) + 1)
        message = master.append(first, count)
        if self.follows(master):
            expected = self.model.appended(master, message)
            self.perform(self.replica.append(master.ballot[1], message), expected)
            snapshots = self.replica.log.recorded - len(self.replica.log.tail)
            assert snapshots < SNAPSHOT_ENTRIES

    @rule(which=st.integers(0, 4))
    def install(self, which: int) -> None:
        master = self.master(which)
        if self.follows(master):
            expected = self.model.installed(master)
            self.perform(self.replica.install(master.ballot[1], master.install()), expected)

    def follows(self, master: Master) -> bool:
        """As in `Succession`: a message of a lower ballot is refused, a higher one is promised first."""
        if master.ballot < self.model.promised:
            refusal = Held(JOB, self.model.promised, -1, refused=True)
            self.perform(self.replica.refuse(master.ballot[1]), refusal)
            return False
        if master.ballot > self.model.promised:
            self.bow(master.ballot)
        return True

    def bow(self, ballot: Ballot) -> None:
        self.model.promised = max(self.model.promised, ballot)
        self.perform([self.replica.promise(ballot)], None)

    # Nodes that want to serve.

    @rule(epoch=st.integers(0, 2), node=st.sampled_from([A, B]))
    def ask(self, epoch: int, node: NodeId) -> None:
        ballot = max(1, self.model.promised[0] + epoch - 1), node
        self.model.promised = max(self.model.promised, ballot)
        promise = self.replica.promise(ballot)
        asked = max(ballot, self.replica.highest)
        self.perform([promise, Send(node, self.replica.report(asked))], self.model.report())

    @rule(higher=st.sampled_from([False, False, True]), node=st.sampled_from([A, B]))
    def fetch(self, higher: bool, node: NodeId) -> None:
        promised = self.model.promised
        ballot = (promised[0] + 1, node) if higher or promised == NO_BALLOT else promised
        if ballot > promised:
            self.bow(ballot)
        self.fetched(node, ballot)

    def fetched(self, node: NodeId, ballot: Ballot) -> None:
        """Expect the whole log, once; without a log, the report of none."""
        model = self.model
        effects = self.replica.fetch(node, Fetch(JOB, ballot))
        if model.held == NO_BALLOT:
            self.perform(effects, model.report())
        elif (node, ballot) == self.answered:
            assert effects == []
        else:
            self.answered = node, ballot
            done, rest = tuple(model.entries[: model.applied]), tuple(model.entries[model.applied :])
            log = model.log
            whole = Install(JOB, ballot, model.applied, done, log.last, rest, *log.proven)
            self.perform(effects, whole)

    @precondition(lambda self: self.answered and self.answered[1] == self.model.promised)
    @rule(node=st.sampled_from([A, B]))
    def reset(self, node: NodeId) -> None:
        """A link is reset, and the node that had fetched asks again."""
        assert self.answered is not None
        asker, ballot = self.answered
        self.replica.link_reset(node)
        if asker == node:
            self.answered = None
        self.fetched(asker, ballot)

    # The disk.

    def perform(self, effects: list[Effect], expected: Message | None) -> None:
        """Exactly the expected message leaves, after all writes before it in the list."""
        said: list[Message] = []
        behind: list[Message] | None = None
        for effect in effects:
            if isinstance(effect, Write):
                behind = []
                self.disk.writes.append((effect, behind))
            else:
                assert isinstance(effect, Post | Send)
                said.append(effect.message)
                if behind is None:
                    self.leaves(effect.message, behind_write=False)
                else:
                    behind.append(effect.message)
        assert said == ([] if expected is None else [expected])

    @precondition(lambda self: self.disk.done < len(self.disk.writes))
    @rule(count=st.integers(1, 6))
    def sync(self, count: int) -> None:
        for _, behind in self.disk.writes[self.disk.done : self.disk.done + count]:
            self.disk.done += 1
            for message in behind:
                self.leaves(message, behind_write=True)

    def leaves(self, message: Message, behind_write: bool) -> None:
        """Rules 6 and 7: entries that are acknowledged, and ballots that are promised, are on the disk by then."""
        if isinstance(message, Held) and message.index >= 0:
            assert behind_write
            durable = read_back(self.disk.records("log", self.disk.done))
            [master] = [each for each in self.masters if each.ballot == message.ballot]
            assert durable.held == message.ballot
            assert durable.entries[: message.index] == tuple(master.entries[: message.index])
            assert len(durable.entries) >= message.index
            self.word = max(self.word, message.ballot)
        elif isinstance(message, StateReport):
            assert behind_write
            assert self.disk.promised() >= message.highest
            self.word = max(self.word, message.highest)

    @rule(survive=st.integers(0, 6))
    def restart(self, survive: int) -> None:
        """The first few of the pending writes arrive, and the effects after them do not leave."""
        disk, model = self.disk, self.model
        disk.done = min(disk.done + survive, len(disk.writes))
        del disk.writes[disk.done :]
        model.held, model.last, entries = read_back(disk.records("log"))
        model.entries = [*entries]
        applied = (r.index if isinstance(r, Base) else r.committed for r in disk.records("log") if is_log(r))
        model.applied = max(applied, default=0)
        model.promised = disk.promised()
        assert model.promised >= self.word
        self.replica = Replica(JOB, ListState, SNAPSHOT_ENTRIES, 1 << 20)
        for record in disk.records("log") + disk.records("ballot"):
            self.replica.restore(record)
        self.answered = None

    @invariant()
    def holds_what_the_lists_say(self) -> None:
        replica, model, log = self.replica, self.model, self.replica.log
        replica.check()
        state = log.state.entries if isinstance(log.state, ListState) else []
        assert [*state, *log.tail] == model.entries
        assert (log.held, log.last, log.applied) == (model.held, model.last, model.applied)
        assert replica.highest == model.promised
        assert (log.proven, log.rank) == (model.log.proven, model.log.rank)
        written = self.disk.records("log")
        assert read_back(written) == model.log
        assert log.recorded == sum(
            len(record.tail) if isinstance(record, Base) else len(record.entries)
            for record in written
            if is_log(record)
        )


TestReplicaAgainstLists = pytest.mark.slow(ReplicaAgainstLists.TestCase)
TestReplicaAgainstLists.settings = settings(
    max_examples=60, stateful_step_count=40, derandomize=True, deadline=None
)
