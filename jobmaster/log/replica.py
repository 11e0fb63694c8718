"""What a node has promised and holds of a job's log, and how it follows a master: the passive half of a succession.

`Succession.step` promises a message's ballot first, or has it refused where a higher one is promised (`refuse`). Then:

| message | and what is held | what follows |
|---|---|---|
| Append | a log of that ballot, at least to the entry before | its entries are taken, written, and `Held` up to there is said |
| | the log that it goes on from, to exactly that place | likewise, and it is one of that ballot from now on |
| | a log of that ballot that lacks entries before | `Held` up to where it goes: the master begins there again |
| | the log that it goes on from, and further | `StateReport`: this one holds more, and does not give it up |
| | another log, or none | `Held` -1: the master sends all (Install) |
| Install | less, or what fewer stood behind | it takes the place of what was held; written, and `Held` is said |
| | the same log, at least as far | nothing changes; `Held` is said |
| | more, or what more stood behind | `StateReport` |
| | less, and its state comes in pieces | they are asked for (PieceRequest), some ahead; until all are there nothing changes |
| StatePiece | the next piece of that state | written, and another one is asked for; with the last one as Install |
| PieceRequest | the state was offered to whoever asks | its next piece (StatePiece) |
| Fetch | a log, under the highest ballot promised | all of it (Install), once for each asker and ballot |
| | none, or another ballot was promised | `StateReport` |

What is said waits until what was written before it is durable (`agent/node/write_barrier.py`).

A large state is written to the own disk in pieces too, some with each call that commits entries: nothing ever is all of it.

Invariants (`check`): the ballot of the log that is held is at most the highest promised, which never falls; a log is held
together with its state and its ballot, or not at all. Under one ballot a log only grows; it gives way to another where `has_more`
says so.

Prior art: Viewstamped Replication Revisited (Liskov and Cowling, 2012), with ballots for views, and all present replicas
in place of a majority: what is lost with all of them is rebuilt from the access logs.
"""

from __future__ import annotations

from typing import Any

from elf.errors import PeerError
from elf.jobmaster.log.job_log import (
    Base,
    JobLog,
    LogRecord,
    More,
    NewState,
    Promise,
    Rows,
    State,
    Whole,
    rank,
)
from elf.jobmaster.log.state_rows import Reading, RowPiece
from elf.srt.messages.effects import Effect, Notice, Post, Send, Write
from elf.srt.messages.ids import JobId, NodeId, short
from elf.srt.messages.messages import (
    NO_BALLOT,
    Append,
    Ballot,
    Fetch,
    Held,
    Install,
    PieceRequest,
    StatePiece,
    StateReport,
)

COMPACTED_PIECES = 2
"""Are written of a state with each call that commits entries: 2 MiB unpacked, 20 ms of packing and a third of it on disk."""
PIECES_AHEAD = 8
"""Are asked for before the first one is on disk: 2 to 3 MiB on their way."""


class Compaction:
    """The own state on its way to the disk."""

    def __init__(self, number: int, reading: Reading) -> None:
        self.number, self.reading = number, reading


class Outgoing:
    """The own state on its way to another node."""

    def __init__(self, ballot: Ballot, index: int, reading: Reading) -> None:
        self.ballot, self.index, self.reading = ballot, index, reading


class Incoming:
    """Another node's state on its way here. state: what came of it; at: the number of the next piece."""

    def __init__(self, source: NodeId, message: Install, state: State, number: int) -> None:
        self.source, self.message, self.state, self.number = source, message, state, number
        self.at = 0

    def awaits(self, source: NodeId, message: StatePiece) -> bool:
        about = self.source, self.message.ballot, self.message.index, self.at
        return about == (source, message.ballot, message.index, message.at)


def is_in_pieces(message: Any) -> bool:
    """Whether the rows of an Install's state come behind it."""
    return bool(getattr(message.state, "in_pieces", False))


class Replica:
    """`highest`: the ballot it promised, on disk before anybody is told. `log`: what it holds."""

    __slots__ = (
        "_numbers",
        "answered",
        "compaction",
        "highest",
        "incoming",
        "job",
        "log",
        "outgoing",
        "snapshot_entries",
    )

    def __init__(self, job: JobId, new_state: NewState, snapshot_entries: int, piece_bytes: int) -> None:
        self.job, self.snapshot_entries = job, snapshot_entries
        self.highest: Ballot = NO_BALLOT
        self.log = JobLog(new_state, piece_bytes)
        self.answered: tuple[NodeId, Ballot] | None = None
        self.compaction: Compaction | None = None
        self.incoming: Incoming | None = None
        self.outgoing: dict[NodeId, Outgoing] = {}
        self._numbers = 0

    @staticmethod
    def outranks(one: Ballot, other: Ballot) -> bool:
        """Rule 7*: ballots are compared in order, epoch and then node, so that no two nodes' are equal."""
        return one > other

    def restore(self, record: LogRecord) -> None:
        if not isinstance(record, Promise):
            self.log.restore(record)
        if isinstance(record, Base | More | Promise) and self.outranks(record.ballot, self.highest):
            self.highest = record.ballot

    def promise(self, ballot: Ballot) -> Write:
        """Rule 7*: the highest ballot seen is on disk before a promise leaves.

        Written again for each answer: the first write may still be under way, and only what stands behind a write waits for it.
        """
        if self.outranks(ballot, self.highest):
            self.highest, self.incoming = ballot, None
            self.outgoing.clear()
        return Write(("ballot", self.job), Promise(self.highest), replace=True)

    def write(self, record: LogRecord, *, replace: bool = False) -> Write:
        if replace:  # with all that is written of states that are not whole
            self.compaction = self.incoming = None
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
            return self.has_later_majority(message.proven)
        return log.rank > rank(message.proven, message.previous, message.index + len(message.tail))

    def has_later_majority(self, proven: Ballot) -> bool:
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
            out += self.compact()
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
            return self._report_more(source)
        return [Post(source, Held(self.job, message.ballot, -1))]

    def _report_more(self, source: NodeId) -> list[Effect]:
        return [self.promise(self.highest), Post(source, self.report(self.highest))]

    def install(self, source: NodeId, message: Install) -> list[Effect]:
        """In place of all that was held; or of nothing, where the same log is held already and goes as far."""
        if self.has_more(message):
            return self._report_more(source)
        log, last = self.log, message.previous
        if log.held == message.ballot and message.index + len(message.tail) <= log.index:
            return self._hold(source, log.extend(message.ballot, max(log.last, last), log.index + 1, ()))
        if is_in_pieces(message):
            return self.request_pieces(source, message)
        return self._hold(
            source, log.install(message.ballot, last, message.index, message.state, message.tail)
        )

    def compact(self) -> list[Effect]:
        """A snapshot in place of the records, when they have become many; of a large state some pieces at a time."""
        if self.compaction is not None:
            return self._compact_on(self.compaction)
        if self.log.recorded - len(self.log.tail) < self.snapshot_entries or self.incoming is not None:
            return []
        rows = self.log.rows()
        if rows is None:
            return [self.write(self.log.base(), replace=True)]
        self.compaction = Compaction(self._number(), Reading(rows))
        return [self.write(self.log.base(self.compaction.number)), *self._compact_on(self.compaction)]

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _compact_on(self, compaction: Compaction) -> list[Effect]:
        number, reading = compaction.number, compaction.reading
        out: list[Effect] = []
        while not reading.is_over and len(out) < COMPACTED_PIECES:
            out.append(self.write(Rows(number, reading.at, reading.take())))
        if reading.is_over:
            self.compaction = None
            out.append(self.write(Whole(number, reading.at)))
        return out

    # States in pieces, between nodes.

    def send_all(self, to: NodeId, ballot: Ballot) -> Install:
        """All that is held, for a node that is to hold it under that ballot. A large state's rows it asks for."""
        log = self.log
        rows = log.rows()
        self.outgoing.pop(to, None)
        if rows is not None:
            self.outgoing[to] = Outgoing(ballot, log.applied, Reading(rows))
        whole = log.applied, log.image(), log.last, tuple(log.tail), log.proven
        return Install(self.job, ballot, *whole)

    def request_pieces(self, source: NodeId, message: Install) -> list[Effect]:
        """Ask for the pieces of that state, in place of any that is on its way."""
        self.incoming = Incoming(source, message, self.log.new_state(message.state), self._number())
        asks = (PieceRequest(self.job, message.ballot, message.index, at) for at in range(PIECES_AHEAD))
        return [Post(source, ask) for ask in asks]

    def piece_requested(self, source: NodeId, message: PieceRequest) -> list[Effect]:
        """Somebody wants the next piece. Who asks past the end has not heard of it yet."""
        outgoing = self.outgoing.get(source)
        if outgoing is None or (outgoing.ballot, outgoing.index, outgoing.reading.at) != (
            message.ballot,
            message.index,
            message.at,
        ):
            return []
        piece = outgoing.reading.take()
        if outgoing.reading.is_over:
            del self.outgoing[source]
        about = message.ballot, message.index, message.at, outgoing.reading.is_over
        return [Post(source, StatePiece(self.job, *about, piece.version, piece.tree, piece.frame))]

    def take_piece(self, source: NodeId, message: StatePiece) -> tuple[list[Effect], Incoming | None]:
        """A piece came: what follows, and the state if that was the last one. Raises PeerError: a piece of another state."""
        incoming = self.incoming
        if incoming is None or not incoming.awaits(source, message):
            return [], None
        piece = RowPiece(message.version, message.tree, message.frame)
        try:
            incoming.state.add(piece)
        except PeerError as error:
            self.incoming = None
            text = f"{short(source)} sent a piece of a log that is none of it ({error}); look at that agent"
            return [Notice("unsound", text, source)], None
        out: list[Effect] = [self.write(Rows(incoming.number, message.at, piece))]
        incoming.at += 1
        if self.is_whole(message):
            self.incoming = None
            return out, incoming
        ask = PieceRequest(self.job, message.ballot, message.index, message.at + PIECES_AHEAD)
        return [*out, Post(source, ask)], None

    @staticmethod
    def is_whole(message: StatePiece) -> bool:
        """Rule 6*: a state is taken, and so acknowledged, with all of its pieces or not at all."""
        return message.last

    def install_pieces(self, incoming: Incoming, ballot: Ballot) -> list[Effect]:
        """All pieces are there: it takes the place of what was held, under that ballot."""
        message = incoming.message
        self.compaction = None
        self.log.place(ballot, message.previous, message.index, incoming.state, message.tail)
        about = ballot, message.previous, message.index, message.state, message.tail, incoming.number
        return [self.write(Base(*about)), self.write(Whole(incoming.number, incoming.at))]

    def on_piece(self, source: NodeId, message: StatePiece) -> list[Effect]:
        """A piece of the log of who serves, or is about to."""
        out, incoming = self.take_piece(source, message)
        if incoming is None:
            return out
        if self.has_more(incoming.message):
            return out + self._report_more(source)
        held = Held(self.job, message.ballot, incoming.message.index + len(incoming.message.tail))
        return [*out, *self.install_pieces(incoming, message.ballot), Post(source, held)]

    def report(self, asked: Ballot, serving: bool = False) -> StateReport:
        """What is held and promised."""
        log = self.log
        return StateReport(self.job, asked, self.highest, log.last, log.index, serving, log.proven)

    def fetch(self, source: NodeId, message: Fetch) -> list[Effect]:
        """All that is held, once for each ballot of the asker: a link loses nothing."""
        log = self.log
        if message.ballot != self.highest or log.state is None:
            return [self.promise(message.ballot), Send(source, self.report(message.ballot))]
        if self.answered == (source, message.ballot):
            return []
        self.answered = (source, message.ballot)
        return [Post(source, self.send_all(source, message.ballot))]

    def link_reset(self, peer: NodeId) -> None:
        self.outgoing.pop(peer, None)
        if self.incoming is not None and self.incoming.source == peer:
            self.incoming = None
        if self.answered and self.answered[0] == peer:
            self.answered = None

    def check(self) -> None:
        self.log.check()
        assert not self.outranks(self.log.held, self.highest)
