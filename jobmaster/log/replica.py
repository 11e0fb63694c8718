"""A node's promised ballot and its copy of a job's log, and how it follows a master: the passive half of a succession.

`Succession.step` promises a message's ballot first, or refuses it if a higher one is promised (`refuse`). Then:

| message | this node holds | what follows |
|---|---|---|
| Append | a log of that ballot with the entry before the first | entries are appended, written, and acknowledged (`Held`) |
| | the log that it continues, up to exactly that entry | likewise, and the log is raised to that ballot |
| | a log of that ballot that lacks earlier entries | `Held` with its last index: the master resumes there |
| | the log that it continues, and more entries | `StateReport`: this log is longer, and is kept |
| | another log, or none | `Held` -1: the master sends the whole log (Install) |
| Install | a lower log | it is replaced, written and acknowledged (`Held`) |
| | the same log, at least as long | nothing changes; `Held` |
| | a higher log (`has_more`) | `StateReport` |
| | a lower log, and the new state comes in pieces | requests them (PieceRequest), some ahead; replaced with the last one |
| StatePiece | the earlier pieces of that state | written; requests another piece; after the last one as Install |
| PieceRequest | the state that was offered to the asker | its next piece (StatePiece) |
| Fetch | a log, and that ballot is the highest promised | the whole log (Install), once for each asker and ballot |
| | no log, or has promised another ballot | `StateReport` |

Messages wait until the records written before them are durable (`agent/node/write_barrier.py`).

A large state is also written to the own disk in pieces, a few with each call that commits entries: it is never packed whole in
memory.

Invariants (`check`): the ballot of the held log is at most the highest promised ballot, which never falls; a log is held together
with its state and its ballot, or not at all. Under one ballot a log only grows; another log replaces it unless `has_more`.

Prior art: Viewstamped Replication Revisited (Liskov and Cowling, 2012), with ballots for views, and all present replicas in place
of a majority: entries lost with all of them are rebuilt from the access logs.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from elf.errors import PeerError
from elf.jobmaster.log.job_log import (
    NO_MAJORITY,
    Base,
    JobLog,
    LogRecord,
    Majority,
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
    node_of,
)

COMPACTED_PIECES = 2
"""Pieces of the own state written with each call that commits entries: 2 MiB unpacked, 20 ms of packing, a third of the size on
disk."""
PIECES_AHEAD = 8
"""Pieces of another node's state that are requested before the first one is on disk: 2 to 3 MiB in flight."""


class Compaction:
    """The own state while it is written to the disk."""

    def __init__(self, number: int, reading: Reading) -> None:
        self.number, self.reading = number, reading


class Outgoing:
    """The own state while it is sent to another node."""

    def __init__(self, ballot: Ballot, index: int, reading: Reading) -> None:
        self.ballot, self.index, self.reading = ballot, index, reading


class Incoming:
    """Another node's state while it is received. state: made of the pieces so far; at: the number of the next piece."""

    def __init__(self, source: NodeId, message: Install, state: State, number: int) -> None:
        self.source, self.message, self.state, self.number = source, message, state, number
        self.at = 0

    def awaits(self, source: NodeId, message: StatePiece) -> bool:
        about = self.source, self.message.ballot, self.message.index, self.at
        return about == (source, message.ballot, message.index, message.at)


def is_in_pieces(message: Any) -> bool:
    """Whether the rows of an Install's state follow it as pieces."""
    return bool(getattr(message.state, "in_pieces", False))


class Replica:
    """`highest`: the highest promised ballot, on disk before any answer contains it. `log`: the held log."""

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
        """Rule 7*: ballots are compared by epoch, then by node, so no ballots of two nodes are equal."""
        return one > other

    def restore(self, record: LogRecord) -> None:
        if not isinstance(record, Promise):
            self.log.restore(record)
        if isinstance(record, Base | More | Promise) and self.outranks(record.ballot, self.highest):
            self.highest = record.ballot

    def promise(self, ballot: Ballot) -> Write:
        """Rule 7*: the highest ballot seen is on disk before a promise leaves.

        Called for each answer: the first write may still be in progress, and only effects after a write wait for that write.
        """
        if self.outranks(ballot, self.highest):
            self.highest, self.incoming = ballot, None
            self.outgoing.clear()
        return Write(("ballot", self.job), Promise(self.highest), replace=True)

    def write(self, record: LogRecord, *, replace: bool = False) -> Write:
        if replace:  # this also makes the pieces of incomplete states obsolete
            self.compaction = self.incoming = None
        return Write(("log", self.job), record, replace)

    def adopt(self, ballot: Ballot) -> Write:
        """Take the held log over under that ballot, or begin a log if this one has no entry."""
        if self.log.index:
            return self.write(self.log.raised(ballot))
        return self.write(self.log.begin(ballot), replace=True)

    def refuse(self, to: NodeId) -> list[Effect]:
        """Rule 7*: every refusal carries the refuser's ballot."""
        return [Post(to, Held(self.job, self.highest, -1, refused=True))]

    def continues(self, message: Append) -> bool:
        """Rule 6*: an entry is appended, and so acknowledged, only to a log that holds all entries before it: of that ballot, or
        of the ballot before it, up to exactly the entry before."""
        log = self.log
        if message.ballot == log.held:
            return message.first <= log.index + 1
        return message.previous == log.last != NO_BALLOT and message.first == log.index + 1

    def has_more(self, message: Append | Install) -> bool:
        """Whether to keep this log: it is higher than the log of a sender that does not serve yet, or it has a later majority
        than the log of a sender that serves."""
        log = self.log
        if isinstance(message, Append):  # other logs are compared when their `Install` comes
            end = message.first + len(message.entries)
            return message.previous == log.last != NO_BALLOT and log.index >= end
        if message.previous == message.ballot:
            return self.has_later_majority(message.majority)
        return log.rank > rank(message.majority, message.previous, message.index + len(message.tail))

    def has_later_majority(self, proven: Majority) -> bool:
        """Rule 7*: of two logs of which neither continues the other, the one with the later majority of agents wins."""
        return self.log.proven > proven

    def append(self, source: NodeId, message: Append) -> list[Effect]:
        """Append entries of the promised ballot, or answer from which entry on they are missing."""
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
        """Write and acknowledge, even if the record adds nothing: the previous write may still be in progress."""
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
        """Replace the held log, unless it is the same log and at least as long."""
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
        """When there are many records, replace them by a snapshot; write a large state's snapshot a few pieces at a time."""
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
        """The whole log, for a node that will hold it under that ballot. That node requests the rows if the state is large."""
        log = self.log
        rows = log.rows()
        self.outgoing.pop(to, None)
        if rows is not None:
            self.outgoing[to] = Outgoing(ballot, log.applied, Reading(rows))
        whole = log.applied, log.image(), log.last, tuple(log.tail), *log.proven
        return Install(self.job, ballot, *whole)

    def request_pieces(self, source: NodeId, message: Install) -> list[Effect]:
        """Request the pieces of that state, instead of any other that is being received."""
        self.incoming = Incoming(source, message, self.log.new_state(message.state), self._number())
        asks = (PieceRequest(self.job, message.ballot, message.index, at) for at in range(PIECES_AHEAD))
        return [Post(source, ask) for ask in asks]

    def piece_requested(self, source: NodeId, message: PieceRequest) -> list[Effect]:
        """A node requests the next piece. Requests past the end were sent ahead, and are ignored."""
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
        """A piece has arrived. Returns effects, and the state if this was its last piece. A piece of another state ends the
        transfer."""
        incoming = self.incoming
        if incoming is None or not incoming.awaits(source, message):
            return [], None
        piece = RowPiece(message.version, message.tree, message.frame)
        try:
            incoming.state.add(piece)
        except PeerError as error:
            self.incoming = None
            text = f"{short(source)} sent a piece that does not belong to its log ({error}): it is ignored; check that agent"
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
        """Rule 6*: a state is installed, and so acknowledged, with all of its pieces or not at all."""
        return message.last

    def install_pieces(self, incoming: Incoming, ballot: Ballot) -> list[Effect]:
        """All pieces have arrived: the state replaces the held log, under that ballot."""
        message = incoming.message
        self.compaction = None
        self.log.place(ballot, message.previous, message.index, incoming.state, message.tail)
        about = ballot, message.previous, message.index, message.state, message.tail, incoming.number
        return [self.write(Base(*about)), self.write(Whole(incoming.number, incoming.at))]

    def on_piece(self, source: NodeId, message: StatePiece) -> list[Effect]:
        """A piece of the log of a node that serves, or is about to."""
        out, incoming = self.take_piece(source, message)
        if incoming is None:
            return out
        if self.has_more(incoming.message):
            return out + self._report_more(source)
        held = Held(self.job, message.ballot, incoming.message.index + len(incoming.message.tail))
        return [*out, *self.install_pieces(incoming, message.ballot), Post(source, held)]

    def report(self, asked: Ballot, serving: bool = False) -> StateReport:
        """The held log and the promised ballot."""
        log = self.log
        return StateReport(self.job, asked, self.highest, log.last, log.index, serving, *log.proven)

    def report_to(self, nodes: Collection[NodeId]) -> list[Effect]:
        """Report the log, if it is proven and of another ballot, to the highest ballot's node if `nodes` has it."""
        log, node = self.log, node_of(self.highest)
        if node not in nodes or log.held == self.highest or log.proven == NO_MAJORITY:
            return []
        return self._report_more(node)

    def fetch(self, source: NodeId, message: Fetch) -> list[Effect]:
        """Send the whole log, once for each ballot of the node that requests it: links lose no message."""
        log = self.log
        if self.outranks(self.highest, message.ballot):
            return [Send(source, self.report(message.ballot))]
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
