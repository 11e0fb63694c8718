"""Sends entries to the replicas: the active half of a succession, on the node that serves or is about to.

An entry is proposed, written to the own disk together with the others of that call, or of `append_us` since the last write,
posted to each present replica after that write, and committed when the own disk and every present replica hold it. The own disk
acknowledges like a replica: after each write a `Held` is posted to the node itself, which the caller passes back (through
`Succession.step`) once the effects before it are durable.

A replica first replaces its log (`Install`), unless it holds the log with which the master began. From then on it receives each
entry once; after a reset of the link, all entries after the last one that it acknowledged are sent again. While it requests the
pieces of a large state, it receives no entries.

| a replica | what happens | next |
|---|---|---|
| not present | `present` names it | installing: Install; or Append of the rest, if it holds the beginning |
| installing | Held, at least up to the log's end | it follows |
| | Held with a lower index | an older answer: ignored |
| | it reports a log of a later majority, which this log has reached since | Install once more |
| follows | entries are flushed, or more are committed | Append of the new entries, with the committed index |
| | Held with a higher index | commits the entries that all replicas hold |
| | Held with a lower index; the link was reset | Append from there, or Install if the state is past that |
| any | `present` does not name it | not present: commits do not wait for it |

Invariants (`check`): the log is one of this ballot, which is the highest promised here; each replica has acknowledged at most
what it was sent, and was sent at most what the log has; the own disk, and each replica that has acknowledged anything, hold all
applied entries; the proposed entries that are not flushed are within `room`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elf.errors import InternalError
from elf.jobmaster.log.alarm import Alarm
from elf.jobmaster.log.job_log import NO_MAJORITY, Majority
from elf.jobmaster.log.replica import Replica, is_in_pieces
from elf.jobmaster.log.replica_failures import ReplicaFailures
from elf.srt.messages.effects import Effect, Notice, Post
from elf.srt.messages.ids import NodeId, short
from elf.srt.messages.messages import NO_BALLOT, Append, Ballot, Held, node_of
from elf.srt.messages.parameters import Parameters


class Peer:
    """A present replica. held: the index of the last entry that it acknowledged under this ballot; sent: that of the last entry
    posted; -1: none. committed_sent: the last committed index that was sent. expects: the index of a log that is being installed;
    lower acknowledgements are older. proven: that log's last majority. waits: that log is sent in pieces, and entries wait until
    it is installed. taken: the number of pieces sent at the last look."""

    __slots__ = ("committed_sent", "expects", "held", "proven", "sent", "taken", "waits")

    def __init__(self) -> None:
        self.proven: Majority = NO_MAJORITY
        self.held = self.sent = self.committed_sent = self.expects = -1
        self.waits, self.taken = False, 0


class Replication:
    """Replication under one ballot. `known`: how many entries of the earlier log each node holds. `failures`: those of its
    replicas. Call `serve` before any `propose`."""

    __slots__ = (
        "alarm",
        "ballot",
        "durable",
        "failures",
        "is_serving",
        "known",
        "left",
        "me",
        "parameters",
        "peers",
        "pending",
        "replica",
        "sent_at",
    )

    def __init__(
        self,
        replica: Replica,
        me: NodeId,
        ballot: Ballot,
        parameters: Parameters,
        known: Mapping[NodeId, int],
    ) -> None:
        self.replica, self.me, self.ballot, self.parameters = replica, me, ballot, parameters
        self.known = dict(known)
        self.failures = ReplicaFailures(me, parameters.transfer_us_max)
        self.is_serving = False
        self.left = 0
        self.peers: dict[NodeId, Peer] = {}
        self.pending: list[Any] = []
        self.durable = -1
        self.alarm = Alarm()
        self.sent_at = 0  # time of the last write

    @property
    def index(self) -> int:
        """The index of the last entry proposed."""
        return self.replica.log.index + len(self.pending)

    @property
    def room(self) -> int:
        """The number of entries that may be proposed before some are committed."""
        return self.replica.snapshot_entries - len(self.replica.log.tail) - len(self.pending)

    def present(self, neighbours: Sequence[NodeId], heirs: int, now: int) -> list[Effect]:
        """Choose the present replicas: the first `heirs` of the neighbours, which are closer to the job than this node, and the
        nearest usable others. Commits wait for these nodes only."""
        self.failures.neighbours(neighbours)
        usable = self.failures.usable(neighbours[heirs:])
        nodes = (*neighbours[:heirs], *usable)[: max(self.parameters.replicas, heirs)]
        self.failures.note_lost(self.peers.keys() - nodes)
        out = self.flush() if any(node not in self.peers for node in nodes) else []
        for node in self.peers.keys() - nodes:
            self.left += 1
            self.replica.outgoing.pop(node, None)
        self.peers = {node: self.peers.get(node) or Peer() for node in nodes}
        for node, peer in self.peers.items():
            if peer.sent < 0:
                out += self._begin(node, peer)
        self.watch(now)
        return out

    def serve(self) -> list[Effect]:
        """Record on the own disk and on all replicas that the log is served under this ballot."""
        log, self.known, self.is_serving = self.replica.log, {}, True
        self.failures.note_lost((node_of(log.last),))  # the node that served before
        record = self.replica.write(log.extend(self.ballot, self.ballot, log.index + 1, ()))
        for peer in self.peers.values():
            peer.committed_sent = -1
        return [record, *self._send_all()]

    def own(self) -> Post:
        """The own disk's acknowledgement: this node receives it when the effects before it are durable."""
        return Post(self.me, Held(self.replica.job, self.ballot, self.replica.log.index))

    def propose(self, entry: Any, now: int) -> int:
        """Returns the entry's index. Raises InternalError when there is no `room`."""
        if self.room <= 0:
            raise InternalError(
                f"job {self.replica.job.hex()}: {len(self.replica.log.tail)} entries wait for replicas"
            )
        self.pending.append(entry)
        self._within(now, max(0, min(self.sent_at - now, 0) + self.parameters.append_us))
        return self.index

    def _within(self, now: int, span: int) -> None:
        """Send within that span."""
        if self.alarm.at is None or self.alarm.at > now + span:
            self.alarm.set(now, span)

    def tick(self, now: int) -> list[Effect]:
        if not self.alarm.rings(now):
            return []
        self.sent_at = now
        return self.flush() or self._send_all()

    def looks(self, now: int) -> bool:
        """Whether it has just looked for failures: other nodes may be usable now."""
        if not self.failures.alarm.rings(now):
            return False
        self.failures.look(self._acknowledged(), self.replica.log.index)
        return True

    def watch(self, now: int) -> None:
        """Watch for stuck replicas; not before this node serves, when a replica that does not answer may hold a higher log."""
        if self.is_serving:
            index = self.replica.log.index
            self.failures.watch([node for node, peer in self.peers.items() if peer.held < index], now)

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
        """Send the entries that were not sent to this replica, or only the committed index if just that is new."""
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
        """Send the whole log; to a replica that holds its beginning, only the rest."""
        log, known = self.replica.log, self.known.pop(node, -1)
        peer.sent, peer.committed_sent = log.index, log.applied
        if log.applied <= known <= log.index:
            rest = log.after(known)
            return [Post(node, Append(self.replica.job, self.ballot, known + 1, rest, log.applied, log.last))]
        peer.expects, peer.proven = log.index, log.proven
        message = self.replica.send_all(node, self.ballot)
        peer.waits = is_in_pieces(message)
        return [Post(node, message)]

    def refused(self, node: NodeId, proven: Majority) -> list[Effect]:
        """A replica kept its own log, which had a later majority than this log when this log was sent. Send this log again if
        it has that majority, or a later one, now."""
        peer = self.peers.get(node)
        if peer is None or peer.held >= 0 or not peer.proven < proven <= self.replica.log.proven:
            return []
        return self._begin(node, peer)

    def held(self, source: NodeId, index: int) -> list[Effect]:
        """An acknowledgement under this ballot; the replica may hold less than was assumed."""
        if source == self.me:
            self.durable = max(self.durable, index)
            return []
        peer = self.peers.get(source)
        if peer is None or index < peer.expects:
            return []
        if index > peer.sent:  # perhaps they were sent to another process with its key
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
            peer.held = -1  # the replica lost its log, or is another process with the same key
            return self._begin(node, peer)
        peer.sent = held
        return self._send(node, peer)

    def _acknowledged(self) -> dict[NodeId, int]:
        """The last entry that each replica has acknowledged. For a replica that requested pieces since the last call, which is
        not stuck, it is the log's last entry."""
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
        """Apply the newly committed entries, and return them. Replicas, if there are any, learn it with the next entries, or by a
        message of its own if there are none for two beats."""
        done = self.replica.log.commit(self.everywhere())
        if done and self.peers:
            self._within(now, 2 * self.parameters.flush_us)
        return done

    def check(self) -> None:
        self.failures.check()
        log = self.replica.log
        assert log.held == self.ballot == self.replica.highest
        assert self.room >= 0 or not self.pending
        assert self.durable < 0 or log.applied <= self.durable <= log.index
        for peer in self.peers.values():
            assert peer.held <= peer.sent <= log.index
            assert peer.held < 0 or log.applied <= peer.held
