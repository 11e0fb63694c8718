"""Entries on their way to the replicas: the active half of a succession, on the node that serves or is about to.

An entry is proposed, written to the own disk together with all others of `append_us`, posted to each present replica behind
that write, and committed when the own disk and every present replica hold it. The own disk answers like a replica: each
write is followed by a `Held` posted to the node itself, which its surroundings hand back (through `Succession.step`) once
what stands before it is durable.

A replica is told to replace what it holds (`Install`) unless it holds the log that the master began with; from then on it gets
every entry once, and again from what it last held when the link was reset. While it asks for the pieces of a large state, it gets
no entries.

| a replica | what happens | next |
|---|---|---|
| not present | `present` names it | the log is on its way: Install; or Append of the rest, if it holds the beginning |
| the log is on its way | Held, at least up to its end | it follows |
| | Held of less | what it had to say before: nothing |
| | it says that its own log is above one that was not proven then and is now | Install once more |
| follows | entries are flushed, or more is committed | Append of what it was not sent, and how far all is committed |
| | Held of more | commits up to what everybody holds |
| | Held of less than before; the link was reset | Append from there, or Install where the state is past that |
| any | `present` does not name it | not present: nobody waits for it |

Invariants (`check`): the log is one of this ballot, which is the highest promised here; of each replica what it acknowledged is
at most what it was sent, and that at most what the log has; whoever has acknowledged anything, the own disk too, holds all that
is applied; entries that are proposed and not flushed are within `room`.
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
    """Rings once, `span` µs after it was set. A clock that steps back does not make it wait longer than its span."""

    __slots__ = ("at", "span")

    def __init__(self) -> None:
        self.at: int | None = None
        self.span = 0

    def set(self, now: int, span: int) -> None:
        self.at, self.span = now + span, span

    def stop(self) -> None:
        self.at = None

    def rings(self, now: int) -> bool:
        """Whether it is time; it is stopped then."""
        if self.at is None:
            return False
        self.at = min(self.at, now + self.span)
        if now < self.at:
            return False
        self.at = None
        return True


class Peer:
    """A present replica. held: last entry that it acknowledged under this ballot, -1 none; sent: last one posted, -1 none;
    told: the committed index that it was told; expects: a log with this index is on its way, lower answers are older; proven:
    that log's; waits: it travels in pieces, and entries behind it are not sent before it is there; taken: how many pieces at the
    last look."""

    __slots__ = ("expects", "held", "proven", "sent", "taken", "told", "waits")

    def __init__(self) -> None:
        self.proven: Ballot = NO_BALLOT
        self.held = self.sent = self.told = self.expects = -1
        self.waits, self.taken = False, 0


class Replication:
    """Of one ballot. `known`: who holds how much of the log as it was before. Nothing is proposed before `serve`."""

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
        """Of the last entry proposed."""
        return self.replica.log.index + len(self.pending)

    @property
    def room(self) -> int:
        """How many more entries may be proposed before some are committed."""
        return self.replica.snapshot_entries - len(self.replica.log.tail) - len(self.pending)

    def present(self, nodes: Sequence[NodeId]) -> list[Effect]:
        """These are the replicas now: commits wait for them and for nobody else."""
        out = self.flush() if any(node not in self.peers for node in nodes) else []
        for node in self.peers.keys() - nodes:
            self.replica.outgoing.pop(node, None)
        self.peers = {node: self.peers.get(node) or Peer() for node in nodes}
        for node, peer in self.peers.items():
            if peer.sent < 0:
                out += self._begin(node, peer)
        return out

    def serve(self) -> list[Effect]:
        """From now on the log is one that was served under this ballot: so do all replicas note."""
        log, self.known = self.replica.log, {}
        record = self.replica.write(log.extend(self.ballot, self.ballot, log.index + 1, ()))
        for peer in self.peers.values():
            peer.told = -1
        return [record, *self._send_all()]

    def own(self) -> Post:
        """Asks the own disk: comes back as soon as what stands before it is durable."""
        return Post(self.me, Held(self.replica.job, self.ballot, self.replica.log.index))

    def propose(self, entry: Any, now: int) -> int:
        """Its index. Raises InternalError when there is no `room`."""
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
        """What was proposed goes to the disk, and behind that to the replicas."""
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
        """The entries it was not sent yet; without any, how far all is committed, if it does not know."""
        log = self.replica.log
        if peer.waits or (peer.sent == log.index and peer.told == log.applied):
            return []
        # Before this node serves, the log is one of an earlier ballot still.
        previous = NO_BALLOT if log.last == self.ballot else log.last
        rest = log.after(peer.sent)
        message = Append(self.replica.job, self.ballot, peer.sent + 1, rest, log.applied, previous)
        peer.sent, peer.told = log.index, log.applied
        return [Post(node, message)]

    def _begin(self, node: NodeId, peer: Peer) -> list[Effect]:
        """The whole log, or the rest of it for one who told that it holds the beginning."""
        log, known = self.replica.log, self.known.pop(node, -1)
        peer.sent, peer.told = log.index, log.applied
        if log.applied <= known <= log.index:
            rest = log.after(known)
            return [Post(node, Append(self.replica.job, self.ballot, known + 1, rest, log.applied, log.last))]
        peer.expects, peer.proven = log.index, log.proven
        message = self.replica.send_all(node, self.ballot)
        peer.waits = is_in_pieces(message)
        return [Post(node, message)]

    def refused(self, node: NodeId, proven: Ballot) -> list[Effect]:
        """A replica kept a log of its own since that was proven, and this one was not when it was sent; by now it is."""
        peer = self.peers.get(node)
        if peer is None or peer.held >= 0 or not peer.proven < proven <= self.replica.log.proven:
            return []
        return self._begin(node, peer)

    def held(self, source: NodeId, index: int) -> list[Effect]:
        """An acknowledgement under this ballot, or word of a replica that has less than it was thought to have."""
        if source == self.me:
            self.durable = max(self.durable, index)
            return []
        peer = self.peers.get(source)
        if peer is None or index < peer.expects:
            return []
        if index > peer.sent:  # perhaps another process with its key did get them
            text = f"{short(source)} claims entries of the log that it was not sent; it is not believed. Look at that agent"
            return [Notice("unsound", text, source)]
        if index < max(0, peer.held):
            return self._again(source, peer, index)
        peer.held, peer.expects = index, -1
        if not peer.waits:
            return []
        peer.waits = False
        return self._send(source, peer)

    def link_reset(self, node: NodeId) -> list[Effect]:
        """What was on its way is lost: again from what it last held."""
        peer = self.peers.get(node)
        return [] if peer is None else self._again(node, peer, peer.held)

    def _again(self, node: NodeId, peer: Peer, held: int) -> list[Effect]:
        log = self.replica.log
        peer.held, peer.told, peer.expects, peer.waits = held, -1, -1, False
        if held < log.applied:
            peer.held = -1  # it has lost what it held, or is another process with the same key
            return self._begin(node, peer)
        peer.sent = held
        return self._send(node, peer)

    def lacking(self) -> list[NodeId]:
        """Replicas that have not acknowledged all that there is."""
        index = self.replica.log.index
        return [node for node, peer in self.peers.items() if peer.held < index]

    def acknowledged(self) -> dict[NodeId, int]:
        """Up to where each replica holds the log; all of it, of one that has asked for more pieces since the last call."""
        held: dict[NodeId, int] = {}
        for node, peer in self.peers.items():
            outgoing = self.replica.outgoing.get(node)
            before, peer.taken = peer.taken, outgoing.reading.at if outgoing is not None else 0
            held[node] = self.replica.log.index if peer.taken > before else peer.held
        return held

    def everywhere(self) -> int:
        """Rule 6*: nothing counts as committed before the own disk and every present replica hold it and all before it."""
        return min([self.durable, *(peer.held for peer in self.peers.values())])

    def commit(self, now: int) -> list[tuple[int, Any]]:
        """Apply what has become committed, and see to it that the replicas hear of it."""
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
