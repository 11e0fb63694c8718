"""What a node has promised and holds of a job's log, and how it follows a master: the passive half of a succession.

`Succession.step` promises a message's ballot first, or has it refused where a higher one is promised (`refuse`). Then:

| message | and what is held | what follows |
|---|---|---|
| Append | a log of that ballot, at least to the entry before | its entries are taken, written, and `Held` up to there is said |
| | the log that it goes on from, to exactly that place | likewise, and it is one of that ballot from now on |
| | a log of that ballot that lacks entries before | `Held` up to where it goes: the master begins there again |
| | the log that it goes on from, and further | `StateTell`: this one holds more, and does not give it up |
| | another log, or none | `Held` -1: the master sends all (Install) |
| Install | less, or what fewer stood behind | it takes the place of what was held; written, and `Held` is said |
| | the same log, at least as far | nothing changes; `Held` is said |
| | more, or what more stood behind | `StateTell` |
| Fetch | a log, under the highest ballot promised | all of it (Install), once for each asker and ballot |
| | none, or another ballot was promised | `StateTell` |

What is said waits until what was written before it is durable (`agent/held_back.py`).

Invariants (`check`): the ballot of the log that is held is at most the highest promised, which never falls; a log is held
together with its state and its ballot, or not at all. Under one ballot a log only grows; it gives way to another where `has_more`
says so.

Prior art: Viewstamped Replication Revisited (Liskov and Cowling, 2012), with ballots for views, and all present replicas
in place of a majority: what is lost with all of them is rebuilt from the access logs.
"""

from __future__ import annotations

from elf.jobmaster.job_log import Base, JobLog, LogRecord, More, NewState, Promise, rank
from elf.srt.effects import Effect, Post, Send, Write
from elf.srt.ids import JobId, NodeId
from elf.srt.messages import NO_BALLOT, Append, Ballot, Fetch, Held, Install, StateTell


class Replica:
    """`highest`: the ballot it promised, on disk before anybody is told. `log`: what it holds."""

    __slots__ = ("answered", "highest", "job", "log", "snapshot_entries")

    def __init__(self, job: JobId, new_state: NewState, snapshot_entries: int) -> None:
        self.job, self.snapshot_entries = job, snapshot_entries
        self.highest: Ballot = NO_BALLOT
        self.log = JobLog(new_state)
        self.answered: tuple[NodeId, Ballot] | None = None

    @staticmethod
    def outranks(one: Ballot, other: Ballot) -> bool:
        """Rule 7*: ballots are compared in order, epoch and then node, so that no two nodes' are equal."""
        return one > other

    def restore(self, record: LogRecord) -> None:
        if not isinstance(record, Promise):
            self.log.restore(record)
        if self.outranks(record.ballot, self.highest):
            self.highest = record.ballot

    def promise(self, ballot: Ballot) -> Write:
        """Rule 7*: the highest ballot seen is on disk before a promise leaves.

        Written again for each answer: the first write may still be under way, and only what stands behind a write waits for it.
        """
        if self.outranks(ballot, self.highest):
            self.highest = ballot
        return Write(("ballot", self.job), Promise(self.highest), replace=True)

    def write(self, record: LogRecord, *, replace: bool = False) -> Write:
        return Write(("log", self.job), record, replace)

    def refuse(self, to: NodeId) -> list[Effect]:
        """Rule 7*: every refusal carries the refuser's ballot."""
        return [Post(to, Held(self.job, self.highest, -1, refused=True))]

    def continues(self, message: Append) -> bool:
        """Rule 6*: entry i is taken, and so acknowledged, only by a log that holds every entry before it, of that ballot (or of
        the one that it took over from, to exactly the same place)."""
        log = self.log
        if message.ballot == log.held:
            return message.first <= log.index + 1
        return message.previous == log.last != NO_BALLOT and message.first == log.index + 1

    def has_more(self, message: Append | Install) -> bool:
        """Whether a log that is offered by a node which does not serve yet holds less than this one, or more than half have stood
        behind this one, and not behind that of a node that does."""
        log = self.log
        if isinstance(message, Append):  # of any other log than the same one its `Install` says more
            end = message.first + len(message.entries)
            return message.previous == log.last != NO_BALLOT and log.index >= end
        if message.previous == message.ballot:
            return self.stands_above(message.proven)
        return log.rank > rank(message.proven, message.previous, message.index + len(message.tail))

    def stands_above(self, proven: Ballot) -> bool:
        """Rule 7*: between two logs that do not go on from one another the one wins that most agents have reported to."""
        return self.log.proven > proven

    def append(self, source: NodeId, message: Append) -> list[Effect]:
        """Take entries of the promised ballot, or say from where on they are missing."""
        log = self.log
        out: list[Effect] = []
        if not self.continues(message):
            return self._missing(source, message)
        last = message.ballot if message.previous == NO_BALLOT else log.last
        if message.entries or (message.ballot, last) != (log.held, log.last):
            out += self._hold(source, log.extend(message.ballot, last, message.first, message.entries))
        if log.commit(message.committed):
            out += self.cut()
        return out

    def _hold(self, source: NodeId, record: More | Base) -> list[Effect]:
        """Also when the record adds nothing: the write before may still be under way."""
        held = Held(self.job, self.log.held, self.log.index)
        return [self.write(record, replace=isinstance(record, Base)), Post(source, held)]

    def _missing(self, source: NodeId, message: Append) -> list[Effect]:
        log = self.log
        if log.held == message.ballot:
            return self._hold(source, log.raised(message.ballot))
        if self.has_more(message):
            return self._tell_more(source)
        return [Post(source, Held(self.job, message.ballot, -1))]

    def _tell_more(self, source: NodeId) -> list[Effect]:
        return [self.promise(self.highest), Post(source, self.told(self.highest))]

    def install(self, source: NodeId, message: Install) -> list[Effect]:
        """In place of all that was held; or of nothing, where the same log is held already and goes as far."""
        if self.has_more(message):
            return self._tell_more(source)
        log, last = self.log, message.previous
        if log.held == message.ballot and message.index + len(message.tail) <= log.index:
            return self._hold(source, log.extend(message.ballot, max(log.last, last), log.index + 1, ()))
        return self._hold(
            source, log.install(message.ballot, last, message.index, message.state, message.tail)
        )

    def cut(self) -> list[Effect]:
        """A snapshot in place of the records, when they have become many."""
        if self.log.recorded - len(self.log.tail) < self.snapshot_entries:
            return []
        return [self.write(self.log.base(), replace=True)]

    def told(self, asked: Ballot, serving: bool = False) -> StateTell:
        """What is held and promised."""
        log = self.log
        return StateTell(self.job, asked, self.highest, log.last, log.index, serving, log.proven)

    def fetch(self, source: NodeId, message: Fetch) -> list[Effect]:
        """All that is held, once for each ballot of the asker: a link loses nothing."""
        log = self.log
        if message.ballot != self.highest or log.state is None:
            return [self.promise(message.ballot), Send(source, self.told(message.ballot))]
        if self.answered == (source, message.ballot):
            return []
        self.answered = (source, message.ballot)
        whole = log.applied, log.image(), log.last, tuple(log.tail), log.proven
        return [Post(source, Install(self.job, message.ballot, *whole))]

    def link_reset(self, peer: NodeId) -> None:
        if self.answered and self.answered[0] == peer:
            self.answered = None

    def check(self) -> None:
        self.log.check()
        assert not self.outranks(self.log.held, self.highest)
