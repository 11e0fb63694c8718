"""Compares messages about a job's log with the log itself, when they arrive.

| receiver | message | must hold |
|---|---|---|
| a child | `Commit` of a bundle | all that the bundle covers is committed, if that master still serves |
| a worker | `Control`, a schedule | the schedule is in the log of that master |
| a sink | a final window | FINAL of that revision is in the log; its master is the highest that the sink knows; a window that was
final before a new log began has all agents |
| a replica | FINAL with agents missing | more than half of the roster have reported in the log under that ballot, before it |
| a replica | `Append` with a committed index | every present replica has acknowledged that index |
| a master | `Held`, an acknowledgement of a replica that still runs | the replica holds the log up to there |
| any node | a promised ballot | is never forgotten, unless the disk is lost |
| any node | a higher ballot of a job | at most `BALLOTS_MAX` in `BALLOTS_US`: each takeover raises it once, and so does each try
of a node at which the job fails, which are not counted |

Most violations of these rules would repair themselves, since the access logs can be read again, and a window in a sink that no
log contains would be found only by chance. So each message is checked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from elf.agent.simulator.checks.oracle import Violation
from elf.jobmaster.log.entries import (
    Accept,
    Add,
    AnyEntry,
    Begin,
    ControlEntry,
    Final,
    Forget,
    Gone,
    Left,
    Serve,
)
from elf.jobmaster.log.positions import Place
from elf.jobmaster.log.schedule import AFTER_ALL, number_of, speaks_for
from elf.jobmaster.master.master import Master
from elf.srt.link.link import HANG_UPS_MAX
from elf.srt.messages.ids import JobId, NodeId, short
from elf.srt.messages.messages import (
    CLOSED,
    GAP,
    NO_BALLOT,
    Append,
    Ballot,
    Commit,
    Control,
    Fetch,
    Frame,
    Held,
    Install,
    Micros,
    Revision,
    Schedule,
    Slot,
    Span,
    StateReport,
    StateRequest,
    node_of,
)
from elf.srt.messages.results import WITHDRAWN, AlertPut, AlertReply, Put, PutReply

if TYPE_CHECKING:
    from elf.agent.node.job_seat import JobSeat
    from elf.agent.simulator.world.places import Actor
    from elf.agent.simulator.world.world import World

DONE = (Place.BEHIND, Place.IDLE)
BALLOTS_MAX, BALLOTS_US = 12, 6_000_000
"""A job's ballot rises less often than this: a takeover takes seconds, even where faults come close together, and raises it once.
Two masters that outbid each other, or one that outbids itself, do so several times a second."""


class LoggedEntries:
    """The log of one ballot, from the `Append`s to its replicas, in order: an entry that arrives early waits for the ones before
    it. An entry that replicas receive only as part of a state is missing, and so are the entries after it."""

    def __init__(self, ballot: Ballot) -> None:
        self._ballot = ballot
        self.reported: dict[NodeId, int] = {}
        """Workers that have reported, and the index of the first entry with a report."""
        self.added: dict[NodeId, int] = {}
        self.gone: dict[NodeId, int] = {}
        self._next: int | None = None
        self._early: dict[int, AnyEntry] = {}

    def take(self, first: int, entries: Sequence[AnyEntry]) -> Iterator[tuple[int, AnyEntry]]:
        """Each entry once, from Begin or Serve on: earlier ones were logged under other ballots."""
        for index, entry in enumerate(entries, first):
            if self._next is None and isinstance(entry, Begin | Serve) and entry.ballot == self._ballot:
                self._next = index
            if self._next is None or index >= self._next:
                self._early[index] = entry
        while self._next is not None and self._next in self._early:
            yield self._next, self._early.pop(self._next)
            self._next += 1

    def note(self, index: int, entry: AnyEntry) -> None:
        if isinstance(entry, Accept) and entry.promises:
            for worker, _, _ in entry.contributions:
                self.reported.setdefault(worker, index)
        elif isinstance(entry, Add):
            self.added.update((worker, index) for worker in entry.workers)
        elif isinstance(entry, Left | Gone | Forget):
            self.gone.setdefault(entry.worker, index)


class Promises:
    """An observer of a world. O(contributions) for each Commit, O(1) for other messages."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._promised: dict[tuple[NodeId, JobId], Ballot] = {}
        self._finals: dict[
            tuple[NodeId, JobId, str, Micros], Ballot
        ] = {}  # the ballot of the last publication of a window, by sink
        self._logs: dict[tuple[JobId, Ballot], LoggedEntries] = {}
        self._schedules: dict[JobId, set[Schedule]] = {}  # replaced by a change
        self._epochs: dict[JobId, int] = {}
        self._raised: dict[JobId, deque[int]] = {}  # when ballots rose
        self._delivered: dict[tuple[JobId, Ballot, str, str, Micros], Revision] = {}
        """By job, master, sink and window: what an agent has acknowledged to have delivered."""
        self._heard: dict[tuple[JobId, Ballot, str, Ballot], int] = {}
        """By job, master, sink and log: the last change of an alert that an agent has acknowledged to have delivered."""

    def observe(self, now_us: int, what: str, who: Actor | None, about: Any) -> None:
        """Check an event. Raises Violation. Nodes with a key that two processes used are skipped: it is unknown which process
        sent a message."""
        if what == "deliver":
            source, message = about
            if source in self._world.twinned or (who is not None and who.id in self._world.twinned):
                return
            if type(message) is Frame:
                if type(message.message) is Held and self._is_of_earlier_life(source, message):
                    return
                message = message.message
            check = _CHECKS.get(type(message))
            if check is not None and who is not None:
                check(self, who, source, message)
        elif what == "put":
            self._published(about)
        elif what == "repeat":
            assert who is not None
            self._repeated(who, *about)
        elif what == "heard again":
            if who is not None:
                self._heard_again(who, *about)
        elif what == "sink" and about.keeps != "all":
            for key in [key for key in self._finals if key[0] == self._world.sink_at(about.sink)]:
                del self._finals[key]
        elif who is not None and (what == "restore" or (what == "crash" and about)):
            for promised in [key for key in self._promised if key[0] == who.id]:
                del self._promised[promised]

    def _is_of_earlier_life(self, source: NodeId, frame: Frame) -> bool:
        """Whether a process sent it that has ended: the one that runs now may have another disk, and its log is another one."""
        actor = self._world.actors.get(source)
        return actor is not None and frame.session[0] // HANG_UPS_MAX != actor.life

    def _seat(self, node: NodeId, job: JobId) -> JobSeat | None:
        actor = self._world.actors.get(node) if node not in self._world.twinned else None
        return actor.node.seats.get(job) if actor is not None and actor.node is not None else None

    def _master(self, job: JobId, ballot: Ballot) -> Master | None:
        """The master of that ballot, if it still serves."""
        seat = self._seat(node_of(ballot), job)
        master = seat.master if seat is not None else None
        return master if master is not None and master.ballot == ballot else None

    def _committed(self, who: Actor, source: NodeId, message: Commit) -> None:
        master, seat = self._master(message.job, message.ballot), self._seat(who.id, message.job)
        if master is None or seat is None:
            return
        positions = master.state.positions
        for bundle in filter(None, map(seat.reducer.kept, message.ids)):
            for slot, span in bundle.contributions.items():
                says_nothing = span[0] == span[1] and not span[2] & (CLOSED | GAP)
                is_retired = positions.position(slot) is None and positions.retained_us > positions.since_us
                if says_nothing or is_retired or self._is_reopened(slot, span):
                    continue
                if positions.place(slot, span) not in DONE:
                    raise Violation(
                        f"{who.name} got a Commit of {bundle.id[2]} of {short(bundle.id[0])}, which is not committed"
                    )

    def _is_reopened(self, slot: Slot, span: Span) -> bool:
        """Whether the span only closes a file of an agent that has a twin: the twin, which lacks the file, closes it where the
        agent reads on. If both spans are merged on their way, the later one decides, and the log never has the file closed."""
        return slot[0] in self._world.twinned and span[0] == span[1] and bool(span[2] & CLOSED)

    def _announced(self, who: Actor, source: NodeId, message: Control) -> None:
        master = self._master(message.job, message.ballot)
        if master is not None and number_of(master.state.schedule) < number_of(message.schedule):
            raise Violation(
                f"{who.name} got a schedule that the log of {short(node_of(message.ballot))} does not have"
            )

    def _published(self, put: Put) -> None:
        sink = self._world.taking
        ledger = self._world.sinks.get(sink, {}).get(
            put.job
        )  # None: agents with ledgers of their own serve it
        fence = ledger.fence if ledger is not None else NO_BALLOT
        if put.ballot < fence:
            raise Violation(
                f"a sink that serves {fence[0]}.{short(node_of(fence))} took a window of {put.ballot[0]}"
            )
        master, key = self._master(put.job, put.ballot), (put.version, put.start)
        at_sink = (sink, put.job, *key)
        if put.status == "open":
            return
        if put.status == WITHDRAWN:
            if master is not None and not self._was_withdrawn(master, *key):
                raise Violation(f"window {put.start} was withdrawn, but is in the log's schedule")
            # The sink has no result of it any more that could be the better one.
            self._finals.pop(at_sink, None)
            return
        final_under, self._finals[at_sink] = self._finals.get(at_sink), put.ballot
        if master is None:
            return
        known, begun = master.state.finals.get(key), master.state.ballot
        is_known = known is not None and known.revision >= put.revision
        # The log may have withdrawn or forgotten the window while it was sent: the withdrawal follows.
        if not (is_known or master.state.is_withdrawn(*key) or master.state.is_past(*key)):
            raise Violation(
                f"window {put.start} was published as {put.status}, but the log has no such revision"
            )
        is_before = final_under is not None and final_under < begun and ledger is not None
        if is_before and put.agents_reporting < put.agents_expected:
            raise Violation(
                f"window {put.start} was final before the log began anew, and is published with agents missing"
            )

    def _acknowledged(self, who: Actor, source: NodeId, reply: PutReply) -> None:
        """An agent that delivers for others says what it has delivered."""
        seat = self._seat(who.id, reply.job) if reply.sink in self._world.carriers.receivers else None
        master = seat.master if seat is not None else None
        if master is not None and master.outbox.node_of(reply.sink) == source:
            window = (reply.job, master.ballot, reply.sink, reply.version, reply.start)
            self._delivered[window] = max(reply.revision, self._delivered.get(window, reply.revision))

    def _repeated(self, who: Actor, put: Put, got: Revision) -> None:
        """Rule Moving: a receiver got a window again. One that was paused, and resumes, may deliver what it had before; and a
        change of the job may take a window away and bring it back before the sink hears of it."""
        master = self._master(put.job, put.ballot)
        if master is None or master.outbox.node_of(put.sink) != who.id or len(master.state.schedule) > 1:
            return
        known = self._delivered.get((put.job, put.ballot, put.sink, put.version, put.start))
        if known is not None and known >= got:
            raise Violation(f"window {put.start} was delivered again, although its master knew of it")

    def _alert_acknowledged(self, who: Actor, source: NodeId, reply: AlertReply) -> None:
        seat = self._seat(who.id, reply.job) if reply.sink in self._world.carriers.receivers else None
        master = seat.master if seat is not None else None
        if master is not None and master.alert_outbox.node_of(reply.sink) == source:
            log = (reply.job, master.ballot, reply.sink, reply.log)
            self._heard[log] = max(reply.number, self._heard.get(log, 0))

    def _heard_again(self, who: Actor, put: AlertPut, number: int) -> None:
        """Rule Moving: a receiver got a change of an alert again."""
        master = self._master(put.job, put.ballot)
        if master is None or master.alert_outbox.node_of(put.sink) != who.id:
            return
        if self._heard.get((put.job, put.ballot, put.sink, put.log), 0) >= number:
            raise Violation(
                f"change {number} of an alert was delivered again, although its master knew of it"
            )

    def _was_withdrawn(self, master: Master, version: str, start: Micros) -> bool:
        """Whether the log withdrew the window; also True if, while the Put was in transit, another change brought the version
        back, or the log forgot earlier times."""
        state = master.state
        if start < max(state.schedule[0].from_us, state.positions.since_us):
            return True
        shape = state.positions.shapes.get(version)
        return state.is_withdrawn(version, start) or any(
            shape is not None and not speaks_for(schedule, version, start, start + shape.size_us)
            for schedule in self._schedules.get(state.job, ())
        )

    def _appended(self, who: Actor, source: NodeId, message: Append) -> None:
        self._remembered(who, source, message)
        seat = self._seat(source, message.job)
        if seat is None or seat.master is None or seat.master.ballot != message.ballot:
            return
        self._check_entries(message, seat.master)
        replication = seat.succession.replication
        peers = replication.peers.items() if replication is not None else ()
        for node, peer in peers:
            if 0 <= peer.held < message.committed:
                raise Violation(
                    f"entry {message.committed} is announced as committed: replica {short(node)} acknowledged {peer.held}"
                )

    def _check_entries(self, message: Append, master: Master) -> None:
        """Check the entries that a master may log only after enough reports."""
        if any(isinstance(entry, ControlEntry) for entry in message.entries):
            self._schedules.setdefault(message.job, set()).add(master.state.schedule)
        logged = self._logs.setdefault((message.job, message.ballot), LoggedEntries(message.ballot))
        for index, entry in logged.take(message.first, message.entries):
            if isinstance(entry, Final) and entry.revision[:2] == message.ballot:
                self._check_majority(entry, master, logged)
            else:
                logged.note(index, entry)

    def _check_majority(self, final: Final, master: Master, logged: LoggedEntries) -> None:
        """Compare with the log as of the entry at which the window was read. A window that was final before may be published
        again."""
        state, key = master.state, (final.version, final.start)
        if final.passed == final.expected or key in state.finals or state.is_past(*key):
            return
        members = [
            worker
            for worker, member in state.positions.roster.items()
            if (member.until_us == AFTER_ALL or logged.gone.get(worker, 0) > final.at)
            and logged.added.get(worker, 0) <= final.at
        ]
        reported = sum(logged.reported.get(worker, final.at + 1) <= final.at for worker in members)
        if 2 * reported <= len(members):
            raise Violation(
                f"window {final.start} is final with {final.passed} of {final.expected} agents, by a master to which "
                f"{reported} of {len(members)} have reported"
            )

    def _held(self, who: Actor, source: NodeId, message: Held) -> None:
        self._promise(source, message.job, message.ballot)
        seat = self._seat(source, message.job)
        if seat is None or message.refused:
            return
        log = seat.succession.replica.log
        if log.held == message.ballot and log.index < message.index:
            raise Violation(f"{short(source)} acknowledged entry {message.index}: it holds {log.index}")

    def _state_reported(self, who: Actor, source: NodeId, message: StateReport) -> None:
        self._promise(source, message.job, message.highest)

    def _promise(self, node: NodeId, job: JobId, ballot: Ballot) -> None:
        """Record a promised ballot, unless it was promised before the disk was lost."""
        seat, key = self._seat(node, job), (node, job)
        if seat is not None and seat.succession.highest >= ballot:
            self._promised[key] = max(ballot, self._promised.get(key, ballot))

    def _remembered(
        self, who: Actor, source: NodeId, message: Append | Fetch | Install | StateRequest
    ) -> None:
        self._note_raised(message.job, message.ballot)
        seat, promised = self._seat(who.id, message.job), self._promised.get((who.id, message.job))
        if seat is not None and promised is not None and seat.succession.highest < promised:
            raise Violation(
                f"{who.name} has forgotten its promise of ballot {promised[0]}.{short(promised[1])}"
            )

    def _note_raised(self, job: JobId, ballot: Ballot) -> None:
        """Note a higher ballot, unless its node takes the job up again after a failure of its seat: each change of the job ends
        the pause between two tries."""
        epoch, actor = ballot[0], self._world.actors.get(node_of(ballot))
        if epoch <= self._epochs.get(job, 0):
            return
        self._epochs[job], now_us = epoch, self._world.now_us
        if actor is not None and actor.node is not None and job in actor.node.vacancies:
            return
        raised = self._raised.setdefault(job, deque(maxlen=BALLOTS_MAX))
        raised.append(now_us)
        if len(raised) == BALLOTS_MAX and now_us - raised[0] < BALLOTS_US:
            span_s = (now_us - raised[0]) / 1e6
            raise Violation(
                f"ballots of job {short(job)} rose to {epoch}, {BALLOTS_MAX} times in {span_s:.1f} s"
            )


_CHECKS: dict[type, Any] = {
    AlertReply: Promises._alert_acknowledged,
    Append: Promises._appended,
    Commit: Promises._committed,
    Control: Promises._announced,
    Fetch: Promises._remembered,
    Held: Promises._held,
    Install: Promises._remembered,
    PutReply: Promises._acknowledged,
    StateRequest: Promises._remembered,
    StateReport: Promises._state_reported,
}
