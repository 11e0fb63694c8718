"""Sends entries to the replicas: the active half of a succession, on the node that serves or is about to.

An entry is proposed, written to the own disk together with all others of `append_us`, posted to each present replica after that
write, and committed when the own disk and every present replica hold it. The own disk acknowledges like a replica: after each
write a `Held` is posted to the node itself, which the caller passes back (through `Succession.step`) once the effects before it
are durable.

A replica first replaces its log (`Install`), unless it holds the log with which the master began. From then on each entry is sent
to it once, and after a reset of the link again from the last one that it acknowledged. While it requests the pieces of a large
state, no entries are sent.

| a replica | what happens | next |
|---|---|---|
| not present | `present` names it | installing: Install; or Append of the rest, if it holds the beginning |
| installing | Held, at least up to the log's end | it follows |
| | Held with a lower index | an older answer: ignored |
| | it reports a higher log, but this one has become proven since | Install once more |
| follows | entries are flushed, or more are committed | Append of the new entries, with the committed index |
| | Held with a higher index | commits the entries that all replicas hold |
| | Held with a lower index; the link was reset | Append from there, or Install if the state is past that |
| any | `present` does not name it | not present: commits do not wait for it |

Invariants (`check`): the log is one of this ballot, which is the highest promised here; each replica has acknowledged at most
what it was sent, and was sent at most what the log has; a replica that has acknowledged anything, and the own disk, holds all
applied entries; entries that are proposed and not flushed are within `room`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elf.errors import InternalError
from elf.jobmaster.log.replica import Replica, is_in_pieces
from elf.srt.messages.effects import Effect, Notice, Post
from elf.srt.messages.ids import NodeId, short
from elf.srt.messages.messages import NO_BALLOT, Append, Ballot, Held


class Alarm:
    """Rings once, `span` µs after it was set. If the clock steps back, it waits no longer than its span."""

    __slots__ = ("at", "span")

    def __init__(self) -> None:
        self.at: int | None = None
        self.span = 0

    def set(self, now: int, span: int) -> None:
        self.at, self.span = now + span, span

    def stop(self) -> None:
        self.at = None

    def rings(self, now: int) -> bool:
        """Whether the time has come; if so, the alarm is stopped."""
        if self.at is None:
            return False
        self.at = min(self.at, now + self.span)
        if now < self.at:
            return False
        self.at = None
        return True


class Peer:
    """A present replica. held: the last entry that it acknowledged under this ballot, -1 none; sent: the last one posted, -1
    none; committed_sent: the last committed index that was sent; expects: the index of a log that is being installed, lower
    answers are older; proven: that log's; waits: the log is sent in pieces, and entries after it must wait for them; taken: the
    number of pieces at the last look."""

    __slots__ = ("committed_sent", "expects", "held", "proven", "sent", "taken", "waits")

    def __init__(self) -> None:
        self.proven: Ballot = NO_BALLOT
        self.held = self.sent = self.committed_sent = self.expects = -1
        self.waits, self.taken = False, 0


class Replication:
    """Replication under one ballot. `known`: how many entries of the earlier log each node holds. No proposals before `serve`."""

    __slots__ = (
        "alarm",
        "append_us",
        "ballot",
        "durable",
        "known",
        "me",
        "peers",
        "pending",
        "replica",
    )

    def __init__(
        self,
        replica: Replica,
        me: NodeId,
        ballot: Ballot,
        append_us: int,
        known: Mapping[NodeId, int],
    ) -> None:
        self.replica, self.me, self.ballot, self.append_us = replica, me, ballot, append_us
        self.known = dict(known)
        self.peers: dict[NodeId, Peer] = {}
        self.pending: list[Any] = []
        self.durable = -1
        self.alarm = Alarm()

    @property
    def index(self) -> int:
        """The index of the last entry proposed."""
        return self.replica.log.index + len(self.pending)

    @property
    def room(self) -> int:
        """The number of entries that may be proposed before some are committed."""
        return self.replica.snapshot_entries - len(self.replica.log.tail) - len(self.pending)

    def present(self, nodes: Sequence[NodeId]) -> list[Effect]:
        """Set the replicas: commits wait for these nodes and for no others."""
        out = self.flush() if any(node not in self.peers for node in nodes) else []
        for node in self.peers.keys() - nodes:
            self.replica.outgoing.pop(node, None)
        self.peers = {node: self.peers.get(node) or Peer() for node in nodes}
        for node, peer in self.peers.items():
            if peer.sent < 0:
                out += self._begin(node, peer)
        return out

    def serve(self) -> list[Effect]:
        """Record on the own disk and on all replicas that the log is served under this ballot."""
        log, self.known = self.replica.log, {}
        record = self.replica.write(log.extend(self.ballot, self.ballot, log.index + 1, ()))
        for peer in self.peers.values():
            peer.committed_sent = -1
        return [record, *self._send_all()]

    def own(self) -> Post:
        """The own disk's acknowledgement: it comes back once the effects before it are durable."""
        return Post(self.me, Held(self.replica.job, self.ballot, self.replica.log.index))

    def propose(self, entry: Any, now: int) -> int:
        """Returns the entry's index. Raises InternalError when there is no `room`."""
        if self.room <= 0:
            raise InternalError(
                f"job {self.replica.job.hex()}: {len(self.replica.log.tail)} entries wait for replicas"
            )
        self.pending.append(entry)
        self._wake(now)
        return self.index

    def _wake(self, now: int) -> None:
        if self.alarm.at is None:
            self.alarm.set(now, self.append_us)

    def tick(self, now: int) -> list[Effect]:
        if not self.alarm.rings(now):
            return []
        return self.flush() or self._send_all()

    def flush(self) -> list[Effect]:
        """Write the proposed entries to the disk, then send them to the replicas."""
        if not self.pending:
            return []
        log = self.replica.log
        record = log.extend(self.ballot, self.ballot, log.index + 1, self.pending)
        self.pending = []
        return [self.replica.write(record), *self._send_all(), self.own()]

    def _send_all(self) -> list[Effect]:
        out: list[Effect] = []
        for node, peer in self.peers.items():
            out += self._send(node, peer)
        return out

    def _send(self, node: NodeId, peer: Peer) -> list[Effect]:
        """Send the entries that it was not sent, or the committed index if only that is new."""
        log = self.replica.log
        if peer.waits or (peer.sent == log.index and peer.committed_sent == log.applied):
            return []
        # Before this node serves, `last` is an earlier ballot.
        previous = NO_BALLOT if log.last == self.ballot else log.last
        rest = log.after(peer.sent)
        message = Append(self.replica.job, self.ballot, peer.sent + 1, rest, log.applied, previous)
        peer.sent, peer.committed_sent = log.index, log.applied
        return [Post(node, message)]

    def _begin(self, node: NodeId, peer: Peer) -> list[Effect]:
        """Send the whole log, or only its rest to a replica that reported its beginning."""
        log, known = self.replica.log, self.known.pop(node, -1)
        peer.sent, peer.committed_sent = log.index, log.applied
        if log.applied <= known <= log.index:
            rest = log.after(known)
            return [Post(node, Append(self.replica.job, self.ballot, known + 1, rest, log.applied, log.last))]
        peer.expects, peer.proven = log.index, log.proven
        message = self.replica.send_all(node, self.ballot)
        peer.waits = is_in_pieces(message)
        return [Post(node, message)]

    def refused(self, node: NodeId, proven: Ballot) -> list[Effect]:
        """A replica kept its own log, which was proven later than this one when this was sent; by now this one may win."""
        peer = self.peers.get(node)
        if peer is None or peer.held >= 0 or not peer.proven < proven <= self.replica.log.proven:
            return []
        return self._begin(node, peer)

    def held(self, source: NodeId, index: int) -> list[Effect]:
        """An acknowledgement under this ballot, maybe of a replica that holds less than was assumed."""
        if source == self.me:
            self.durable = max(self.durable, index)
            return []
        peer = self.peers.get(source)
        if peer is None or index < peer.expects:
            return []
        if index > peer.sent:  # perhaps another process with its key did get them
            text = f"{short(source)} acknowledges log entries that were not sent to it; this is ignored. Check that agent"
            return [Notice("unsound", text, source)]
        if index < max(0, peer.held):
            return self._again(source, peer, index)
        peer.held, peer.expects = index, -1
        if not peer.waits:
            return []
        peer.waits = False
        return self._send(source, peer)

    def link_reset(self, node: NodeId) -> list[Effect]:
        """Messages in flight are lost: send again from the last acknowledged entry."""
        peer = self.peers.get(node)
        return [] if peer is None else self._again(node, peer, peer.held)

    def _again(self, node: NodeId, peer: Peer, held: int) -> list[Effect]:
        log = self.replica.log
        peer.held, peer.committed_sent, peer.expects, peer.waits = held, -1, -1, False
        if held < log.applied:
            peer.held = -1  # it lost its log, or is another process with the same key
            return self._begin(node, peer)
        peer.sent = held
        return self._send(node, peer)

    def lacking(self) -> list[NodeId]:
        """Replicas that have not acknowledged the whole log."""
        index = self.replica.log.index
        return [node for node, peer in self.peers.items() if peer.held < index]

    def acknowledged(self) -> dict[NodeId, int]:
        """The last entry that each replica holds; the log's last for a replica that requested pieces since the last call."""
        held: dict[NodeId, int] = {}
        for node, peer in self.peers.items():
            outgoing = self.replica.outgoing.get(node)
            before, peer.taken = peer.taken, outgoing.reading.at if outgoing is not None else 0
            held[node] = self.replica.log.index if peer.taken > before else peer.held
        return held

    def everywhere(self) -> int:
        """Rule 6*: an entry is committed only when the own disk and every present replica hold it and all before it."""
        return min([self.durable, *(peer.held for peer in self.peers.values())])

    def commit(self, now: int) -> list[tuple[int, Any]]:
        """Apply newly committed entries, and schedule a message about them to the replicas."""
        done = self.replica.log.commit(self.everywhere())
        if done:
            self._wake(now)
        return done

    def check(self) -> None:
        log = self.replica.log
        assert log.held == self.ballot == self.replica.highest
        assert self.room >= 0 or not self.pending
        assert self.durable < 0 or log.applied <= self.durable <= log.index
        for peer in self.peers.values():
            assert peer.held <= peer.sent <= log.index
            assert peer.held < 0 or log.applied <= peer.held
