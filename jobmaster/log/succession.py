"""Which node is master of a job, with which log: a state machine for each job and node that is, or may become, master or replica.

The node closest to the job's id asks its neighbours which logs they hold, takes the highest log, raises the ballot, installs the
log on its replicas, and only then serves. A closer node that joins later gets the log from the serving node.

| phase   | what happens                              | next                                                        |
|---------|-------------------------------------------|-------------------------------------------------------------|
| REST    | not closest; follows a master, or idle    | closest -> QUERY                                            |
| QUERY   | asks all neighbours, without a promise    | one serves -> WAIT; all reported, or `2 ask_us` -> PROMISE  |
| WAIT    | waits for the serving node's handover     | Handover -> INSTALL; it no longer serves -> QUERY;          |
|         |                                           | another log has a later majority, or `transfer_us_max`      |
|         |                                           | -> PROMISE                                                  |
| PROMISE | asks all under a new ballot; they promise | all reported, or `ask_us_max`: another's is higher -> FETCH,|
|         | it and report their logs                  | none is -> INSTALL; one promised a higher ballot -> QUERY   |
| FETCH   | the highest log is being transferred      | complete -> INSTALL; its holder left, or `FETCH_SPANS`      |
|         |                                           | have passed -> FETCH of the next highest                    |
| INSTALL | the log, under the new ballot, goes to    | all hold it -> SERVE; one reports a higher one -> PROMISE   |
|         | the disks of all present replicas         |                                                             |
| SERVE   | entries are proposed and committed        | not closest, the closest has all committed entries -> DRAIN |
|         |                                           | a log with a later majority is found -> PROMISE             |
| DRAIN   | takes no new entries, commits the rest    | all committed -> Handover, REST; closest again -> SERVE     |

In every phase: a higher ballot is promised. A node that asked, served or drained under a lower one starts again (QUERY, after
a `Pause`, if it is the closest; otherwise REST). No longer closest: QUERY … INSTALL -> REST. Others see the phase as a `Role`.

A ballot is *proven* in a log when more than half of the agents have reported to its master: the log has a majority under it. When
a replica leaves, the majority is recorded anew, so that the former replica's copy is lower than the log that went on without it.

Invariants
- At most one process serves under a ballot: a ballot names its node and process, and is on that node's disk before it is sent.
- Once a ballot served, its logs are prefixes of one another: only its node appends entries, and a replica first installs the
  whole log.
- An entry is committed when the own disk and all present replicas hold it and every entry before it. So of the logs that a new
  master reaches, the highest (`job_log.rank`: by last proven ballot, then by last ballot that served, then by index) has every
  entry that was committed under that ballot. The new master also keeps the uncommitted entries of this log, and commits them
  before it serves. The nodes that it asked have promised its ballot, and accept nothing under lower ballots.
- `Proven` is itself an entry, and counts only where it is known to be committed. A log that lacks an entry committed before it
  cannot have it, and rightful successors of the log have it too (`job_log`). So it decides only between logs of which neither
  continues the other: those of two sides of a partition, or a log and another that was begun anew by nodes that did not reach it.
  A node that holds the higher log does not yield it to a node that serves the lower one, nor wait for that: whichever node holds
  the higher log, or learns of it, takes a higher ballot.
- A node that does not serve yet proves nothing: the logs that it installed keep their rank, and a replica with a higher log
  reports it instead of replacing it. So a node that dies while it takes over hides no entry.
- Not promised: entries that were committed on a side of a partition that the next master did not reach, or whose log is lower.
- A log without entries has committed nothing. A master that begins with one (`Serve.fresh`) rebuilds, and should make the start
  of the rebuild its first entry, so that a successor finds more than an empty log.

What the caller owes: a `Held` posted to the node itself comes back through `step` once the effects before it in its list are
durable; after each call it takes the committed entries from `news`, then the changes, and appends the effects of both to the
returned list. A node that lost its disk comes back with another id, or only after it was given (`heard_ballot`) the highest
ballot under which it ever asked or served.

Prior art: Viewstamped Replication Revisited (Liskov and Cowling, 2012); Raft's pre-vote (Ongaro, 2014, section 9.6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from elf.errors import InternalError
from elf.jobmaster.log.alarm import Alarm
from elf.jobmaster.log.answers import Answers, rank_of
from elf.jobmaster.log.job_log import NO_MAJORITY, LogRecord, Majority, NewState, rank
from elf.jobmaster.log.phases import News, Pause, Phase, Role, Serve, StepDown
from elf.jobmaster.log.replica import Replica, is_in_pieces
from elf.jobmaster.log.replication import Replication
from elf.srt.messages.effects import Effect, Post, Send
from elf.srt.messages.ids import JobId, NodeId, maker
from elf.srt.messages.messages import (
    COUNT_MAX,
    NO_BALLOT,
    Append,
    Ballot,
    Fetch,
    Handover,
    Held,
    Install,
    Message,
    PieceRequest,
    StatePiece,
    StateReport,
    StateRequest,
    node_of,
)
from elf.srt.messages.parameters import Parameters

FETCH_SPANS = 5
"""A fetch times out after this many times `transfer_us_max`, half a minute: its holder does not receive the requests."""

_ROLES = {Phase.SERVE: Role.SERVING, Phase.DRAIN: Role.HANDING_OVER}


class Succession:
    """See the module. Memory: the replica's log; answers and peers are bounded by the leaf set."""

    __slots__ = (
        "_again",
        "_answers",
        "_bound",
        "_handed_on",
        "_maker",
        "_pause",
        "_proven",
        "_server",
        "ballot",
        "is_closest",
        "job",
        "me",
        "neighbours",
        "news",
        "parameters",
        "phase",
        "replica",
        "replication",
    )

    def __init__(
        self, job: JobId, me: NodeId, parameters: Parameters, new_state: NewState, instance: int = 0
    ) -> None:
        """instance: identifies this process (`elf.srt.messages.messages.Instance`) in its ballots."""
        self.job, self.me, self.parameters = job, me, parameters
        self._maker = maker(me, instance)
        self.replica = Replica(job, new_state, parameters.snapshot_entries, parameters.piece_bytes)
        self.replication: Replication | None = None
        self.phase = Phase.REST
        self.ballot: Ballot = NO_BALLOT
        """The ballot under which this node asks or serves; NO_BALLOT when it does neither."""
        self._handed_on: Ballot = NO_BALLOT  # own ballot under which it took over a log that lacks nothing
        self.is_closest = False
        self.neighbours: tuple[NodeId, ...] = ()
        self._answers = Answers(me)
        self._server: NodeId = b""
        self._proven: Majority = NO_MAJORITY  # of the log that this node waits for
        self._pause = Pause()
        self._again, self._bound = Alarm(), Alarm()
        self.news = News()

    # Status.

    @property
    def role(self) -> Role:
        if self.phase is Phase.REST:
            return Role.IDLE if self.replica.log.state is None else Role.REPLICA
        return _ROLES.get(self.phase, Role.ASKING)

    @property
    def highest(self) -> Ballot:
        """The highest ballot that this node has seen; on disk."""
        return self.replica.highest

    @property
    def room(self) -> int:
        """The number of entries that may be proposed now; 0 unless serving."""
        return self.replication.room if self.replication and self.phase is Phase.SERVE else 0

    @property
    def losses(self) -> int:
        """How often under this ballot a node was lost that might serve another log; 0 while none of them is missing."""
        return self.replication.failures.losses if self.replication else 0

    @property
    def left(self) -> int:
        """How many replicas have left under this ballot: each may still hold its log, up to then."""
        return self.replication.left if self.replication else 0

    @property
    def deadline(self) -> int | None:
        if self.phase is Phase.REST:
            return None
        alarms = [self._again, self._bound]
        if self.replication:
            alarms += [self.replication.alarm, self.replication.failures.alarm]
        return min((alarm.at for alarm in alarms if alarm.at is not None), default=None)

    # Events.

    def restore(self, records: Iterable[LogRecord]) -> None:
        """After a restart, before anything else: the records of ("log", job), in order, and of ("ballot", job)."""
        for record in records:
            self.replica.restore(record)
            del record  # otherwise it stays in memory while the next one is read

    def closest(self, is_closest: bool, neighbours: Sequence[NodeId], now: int) -> list[Effect]:
        """The overlay's view, at the start and when it changes: whether no live node is closer to the job's id, and the live
        members of the leaf set without this node, ordered by that closeness."""
        before = set(self.neighbours)
        self.is_closest, self.neighbours = is_closest, tuple(node for node in neighbours if node != self.me)
        self._answers.keep_only(self.neighbours)
        if self.phase.is_replicating:
            return self._present(now)
        if not is_closest:
            return [*self._rest(), *self.replica.report_to(set(self.neighbours) - before)]
        if self.phase is Phase.REST or (self.phase is Phase.WAIT and self._server not in self.neighbours):
            return self._query(now)
        if self.phase is Phase.FETCH and self._server not in self.neighbours:
            return self._choose(now)
        return [*self._ask(), *self._heard_all(now)] if not self._pause.is_on else []

    def step(self, source: NodeId, message: Message, now: int) -> list[Effect]:
        """Raises KeyError for a message that is none of this machine's."""
        return _STEPS[type(message)](self, source, message, now)

    def heard_ballot(self, ballot: Ballot, now: int) -> list[Effect]:
        """A ballot that the directory, the tree, a sink's fence or a neighbour reports: as `_follow`, and report this node's log
        to the ballot's node, which may not have asked for it."""
        out = self._follow(ballot, now)
        return [*out, *self.replica.report_to(self.neighbours)] if out else []

    def resign(self) -> list[Effect]:
        """This node's disk writes fail: others serve and replicate until the next call of `closest`. The log is kept."""
        self.is_closest, self.neighbours = False, ()
        return self._rest()

    def link_reset(self, peer: NodeId, now: int) -> list[Effect]:
        """One end of the link began a new life; messages in flight are lost."""
        self.replica.link_reset(peer)
        if self.replication:
            return self.replication.link_reset(peer)
        if self.phase is Phase.FETCH and peer == self._server:
            return [Send(peer, Fetch(self.job, self.ballot))]
        return self.replica.report_to((peer,))

    def propose(self, entry: Any, now: int) -> int:
        """Append an entry; returns the index that it has if it is committed. Also accepted during a handover, when `room` is 0.

        The proposal of a master that has not yet taken its StepDown is ignored. Raises InternalError if this node does not serve
        otherwise, and past the replicas' bound.
        """
        if self.replication is not None and self.phase in (Phase.SERVE, Phase.DRAIN):
            return self.replication.propose(entry, now)
        if not any(isinstance(change, StepDown) for change in self.news.changes):
            raise InternalError(f"job {self.job.hex()}: an entry was proposed to a node that does not serve")
        return self.replica.log.index + 1

    def tick(self, now: int) -> list[Effect]:
        out = self.replication.tick(now) if self.replication else []
        if self._again.rings(now):
            out += self._repeat(now)
        if self._bound.rings(now):  # go on without the nodes that have not answered in time
            self._answers.ranks.pop(self._server, None)
            self._server = b""
            out += self._choose(now) if self.phase in (Phase.PROMISE, Phase.FETCH) else self._promise(now)
        if self.replication and self.replication.looks(now):
            out += self._present(now)
        if self.replication:
            self.replication.watch(now)
        return out

    # Ballots.

    def _follow(self, ballot: Ballot, now: int) -> list[Effect]:
        """Promise the ballot if it is the highest so far, and stop asking or serving under a lower one."""
        if not self.replica.outranks(ballot, self.replica.highest):
            return []
        out: list[Effect] = [self.replica.promise(ballot)]
        return out + self._stop(now) if self.phase.is_under_own_ballot else out

    def _stop(self, now: int) -> list[Effect]:
        """Stop serving and asking under this ballot; the closest node starts again a little later, so that two do not race."""
        pause_us = self._pause.begin(now, self.parameters.ask_us)
        return self._rest() + (self._query(now, pause_us) if self.is_closest else [])

    def _rest(self, *, handed_on: bool = False) -> list[Effect]:
        if self.phase in (Phase.SERVE, Phase.DRAIN):
            self.news.changes.append(StepDown(self.ballot, handed_on))
        if self.phase is Phase.FETCH:
            self.replica.incoming = None
        self.phase, self.ballot, self.replication = Phase.REST, NO_BALLOT, None
        self._answers.ranks.clear()
        self._server, self._pause.is_on, self._proven = b"", False, NO_MAJORITY
        self._again.stop()
        self._bound.stop()
        return []

    # Asking.

    def _query(self, now: int, pause_us: int = 0) -> list[Effect]:
        self._rest()
        self.phase, self._pause.is_on = Phase.QUERY, pause_us > 0
        self._again.set(now, pause_us or self.parameters.ask_us)
        self._bound.set(now, pause_us + 2 * self.parameters.ask_us)
        return [] if pause_us else [*self._ask(), *self._heard_all(now)]

    def _promise(self, now: int) -> list[Effect]:
        self._rest()
        self.phase, self.ballot = Phase.PROMISE, (min(self.replica.highest[0] + 1, COUNT_MAX), self._maker)
        self._answers.own = self.replica.log.rank
        self._again.set(now, self.parameters.ask_us)
        self._bound.set(now, self.parameters.ask_us_max)
        return [*self._ask(), *self._heard_all(now)]

    def _ask(self) -> list[Effect]:
        """Ask the neighbours that have not answered. An own ballot is on the disk before the request leaves."""
        if self.phase not in (Phase.QUERY, Phase.PROMISE):
            return []
        ask = StateRequest(self.job, self.ballot)
        asks = [Send(node, ask) for node in self._answers.lacking(self.neighbours)]
        return [self.replica.promise(self.ballot), *asks] if self.phase is Phase.PROMISE else [*asks]

    def _repeat(self, now: int) -> list[Effect]:
        """`ask_us` have passed and answers are missing: ask again."""
        self._again.set(now, self.parameters.ask_us)
        if self.phase is Phase.WAIT:
            return [Send(self._server, StateRequest(self.job, NO_BALLOT))]
        if self.phase is Phase.FETCH:
            return [Send(self._server, Fetch(self.job, self.ballot))]
        was_paused, self._pause.is_on = self._pause.is_on, False
        return [*self._ask(), *(self._heard_all(now) if was_paused else [])]

    def _heard_all(self, now: int) -> list[Effect]:
        if self._answers.lacking(self.neighbours):
            return []
        if self.phase is Phase.QUERY:
            return self._promise(now)
        return self._choose(now) if self.phase is Phase.PROMISE else []

    def _on_report(self, source: NodeId, message: StateReport, now: int) -> list[Effect]:
        out = self.heard_ballot(message.highest, now)
        if message.asked != self.ballot or source not in self.neighbours or self._pause.is_on:
            return out
        if self.phase is Phase.WAIT:
            return out + self._report_while_waiting(source, message, now)
        if self.phase in (Phase.QUERY, Phase.PROMISE, Phase.FETCH):
            # The served log is not waited for if another one has a later majority.
            known = max(self.replica.log.proven, self._answers.proven)
            if message.serving and known <= message.majority:
                return out + self._wait(source, now, message.majority)
            self._answers.ranks[source] = rank_of(message)
            return out + (self._choose(now) if self.phase is Phase.FETCH else self._heard_all(now))
        return out + self._report_of_more(source, message, now)

    def _report_while_waiting(self, source: NodeId, message: StateReport, now: int) -> list[Effect]:
        if source == self._server:
            if not message.serving:
                return self._query(now)
            self._proven = max(self._proven, message.majority)
        better = message.index > 0 and message.majority > self._proven
        return self._promise(now) if better or self.replica.has_later_majority(self._proven) else []

    def _report_of_more(self, source: NodeId, message: StateReport, now: int) -> list[Effect]:
        """During INSTALL a higher log, or while serving one with a later majority, makes this node ask again."""
        if self.replication is None:
            return []
        theirs, own = rank_of(message), self.replica.log.rank
        is_higher = theirs > own if self.phase is Phase.INSTALL else theirs[0] > own[0]
        if is_higher and not self._answers.has_yielded_to(source, theirs):
            if not self.is_closest:
                return self._rest()
            self._answers.yield_to(source, theirs)
            out = self._promise(now)
            self._answers.ranks[source] = theirs
            return out
        return self.replication.refused(source, theirs[0])

    def _wait(self, server: NodeId, now: int, proven: Majority) -> list[Effect]:
        self._rest()
        self.phase, self._server, self._proven = Phase.WAIT, server, proven
        self._again.set(now, self.parameters.ask_us)
        self._bound.set(now, self.parameters.transfer_us_max)
        return []

    # Taking over.

    def _choose(self, now: int) -> list[Effect]:
        best = self._answers.best(self.replica.log.rank)
        if best == self.me:
            return self._raise([self.replica.adopt(self.ballot)], now)
        if self.phase is Phase.FETCH and best == self._server:
            return []
        self.phase, self._server, self.replica.incoming = Phase.FETCH, best, None
        self._again.set(now, self.parameters.ask_us)
        self._bound.set(now, FETCH_SPANS * self.parameters.transfer_us_max)
        return [Send(best, Fetch(self.job, self.ballot))]

    def _fetched(self, source: NodeId, message: Install, now: int) -> list[Effect]:
        """The requested log. If its holder restarted with less, another node's log may now be the highest."""
        if source != self._server:
            return []  # it left, or was too slow: another node's log is on its way
        self._answers.ranks[source] = rank(
            message.majority, message.previous, message.index + len(message.tail)
        )
        if self._answers.best(self.replica.log.rank) != source:
            return self._choose(now)
        if is_in_pieces(message):
            return self.replica.request_pieces(source, message)
        log, last = self.replica.log, message.previous
        record = log.install(self.ballot, last, message.index, message.state, message.tail)
        return self._raise([self.replica.write(record, replace=True)], now)

    def _raise(self, writes: list[Effect], now: int) -> list[Effect]:
        """The log now belongs to the own ballot: send it to the replicas."""
        log = self.replica.log
        known = self._answers.holding(log)
        if self._answers.is_whole(log):
            self._handed_on = self.ballot
        self._again.stop()
        self._bound.stop()
        self.phase, self.replica.incoming = Phase.INSTALL, None
        self._answers.ranks.clear()
        self.replication = Replication(self.replica, self.me, self.ballot, self.parameters, known)
        return [*writes, self.replication.own(), *self._present(now)]

    # Serving.

    def _present(self, now: int) -> list[Effect]:
        """Choose the replicas; a node closer than this one is always one."""
        assert self.replication is not None
        if self.phase is Phase.INSTALL and not self.is_closest:
            return self._rest()
        out = self.replication.present(self.neighbours, int(not self.is_closest), now)
        return [*out, *self._progress(now)]

    def _progress(self, now: int) -> list[Effect]:
        """Commit what all replicas hold; then serve, or hand over, if that is possible now."""
        replication, log = self.replication, self.replica.log
        assert replication is not None
        done = replication.commit(now)
        if self.phase is not Phase.INSTALL:
            self.news.committed += done
        out = self.replica.compact() if done else []
        if self.phase is Phase.INSTALL and replication.everywhere() == log.index:
            former, self.phase = log.last, Phase.SERVE  # the ballot that served before
            out += replication.serve()
            assert log.state is not None
            handed_on = self._handed_on == self.ballot
            self.news.changes.append(Serve.after(former, self.ballot, log.state, log.index, handed_on))
        return out + self._hand_over(now)

    def _hand_over(self, now: int) -> list[Effect]:
        """To the closer neighbour, once it holds all committed entries and nothing is left to commit."""
        replication, log = self.replication, self.replica.log
        assert replication is not None
        if self.is_closest or not self.neighbours:
            self.phase = Phase.SERVE if self.phase is Phase.DRAIN else self.phase
            return []
        heir, out = self.neighbours[0], list[Effect]()
        if self.phase is Phase.SERVE and replication.peers[heir].held >= log.applied:
            self.phase = Phase.DRAIN
            out = replication.flush()
        if self.phase is not Phase.DRAIN or log.tail or replication.pending:
            return out
        return [*out, Post(heir, Handover(self.job, self.ballot, log.index)), *self._rest(handed_on=True)]

    def _on_held(self, source: NodeId, message: Held, now: int) -> list[Effect]:
        if message.refused:
            return self.heard_ballot(message.ballot, now)
        if self.replication is None or message.ballot != self.ballot:
            return []
        return [*self.replication.held(source, message.index), *self._progress(now)]

    # Following.

    def _on_log(self, source: NodeId, message: Append | Install, now: int) -> list[Effect]:
        """A master's entries or log: accepted unless this node has promised a higher ballot."""
        replica = self.replica
        if isinstance(message, Install) and self.phase is Phase.FETCH and message.ballot == self.ballot:
            return self._fetched(source, message, now)
        if node_of(message.ballot) != source:
            return []
        if replica.outranks(replica.highest, message.ballot):
            return replica.refuse(source)
        out = self._follow(message.ballot, now)
        if self.phase.is_under_own_ballot:  # the master's ballot was promised before
            out += self._stop(now)
        news = isinstance(message, Install) or source != self._server
        serves = isinstance(message, Install) and message.previous == message.ballot
        if self.is_closest and serves and replica.has_more(message):
            return out + self._promise(now)
        if self.is_closest and news:
            proven = message.majority if isinstance(message, Install) else replica.log.proven
            out += self._wait(source, now, proven)
        if isinstance(message, Install):
            return out + replica.install(source, message)
        return out + replica.append(source, message)

    def _on_piece(self, source: NodeId, message: StatePiece, now: int) -> list[Effect]:
        spans = FETCH_SPANS if self.phase is Phase.FETCH else 1
        if self.phase in (Phase.FETCH, Phase.WAIT) and source == self._server:
            self._bound.set(now, spans * self.parameters.transfer_us_max)
        if self.phase is not Phase.FETCH or message.ballot != self.ballot:
            return self.replica.on_piece(source, message) if node_of(message.ballot) == source else []
        out, whole = self.replica.take_piece(source, message)
        return out + (self._raise(self.replica.install_pieces(whole, self.ballot), now) if whole else [])

    def _on_handover(self, source: NodeId, message: Handover, now: int) -> list[Effect]:
        """The source no longer serves under this ballot, and this node holds its whole log."""
        log = self.replica.log
        whole = message.ballot == log.held == self.replica.highest and message.index == log.index
        if not whole or not self.is_closest or node_of(message.ballot) != source:
            return []
        self._rest()
        self.ballot = self._handed_on = (min(message.ballot[0] + 1, COUNT_MAX), self._maker)
        self._answers.ranks = dict.fromkeys(self.neighbours, log.rank)  # assumed; they refuse if it is wrong
        return [self.replica.promise(self.ballot), *self._raise([self.replica.adopt(self.ballot)], now)]

    def _on_request(self, source: NodeId, message: StateRequest, now: int) -> list[Effect]:
        out: list[Effect] = []
        if message.ballot != NO_BALLOT:
            out = [*self._follow(message.ballot, now), self.replica.promise(message.ballot)]
        serving = self.phase.is_replicating
        return [*out, Send(source, self.replica.report(message.ballot, serving))]

    def _on_fetch(self, source: NodeId, message: Fetch, now: int) -> list[Effect]:
        return [*self._follow(message.ballot, now), *self.replica.fetch(source, message)]

    def check(self) -> None:
        self.replica.check()
        own = self.phase.is_under_own_ballot
        assert own == (self.ballot != NO_BALLOT)
        assert not own or self.ballot == self.replica.highest
        assert self.phase.is_replicating == (self.replication is not None)
        assert len(self._answers.ranks) <= len(self.neighbours)
        self.news.check()
        assert self.is_closest or self.phase in (Phase.REST, Phase.SERVE, Phase.DRAIN)
        if self.replication:
            self.replication.check()


_STEPS: dict[type[Message], Callable[[Succession, NodeId, Any, int], list[Effect]]] = {
    Append: Succession._on_log,
    Install: Succession._on_log,
    PieceRequest: lambda core, source, message, now: core.replica.piece_requested(source, message),
    StatePiece: Succession._on_piece,
    Held: Succession._on_held,
    StateRequest: Succession._on_request,
    StateReport: Succession._on_report,
    Fetch: Succession._on_fetch,
    Handover: Succession._on_handover,
}

OF_LOGS = frozenset(_STEPS)
"""Messages whose answers promise something, and promises are written to disk."""
