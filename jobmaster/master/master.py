"""The master of a job: which bundles are accepted, when windows are final, and what is published. Only the node that serves has
one.

The machine in one sentence: bundles, hellos, specs and time go in; entries for the log come out at once, and the messages that
depend on them (commits, welcomes, multicasts, windows) come out only when the log has them.

Its parts are separate modules: proposed entries (`proposals`), which bundles are accepted (`intake`), the expected workers
(`roster`), changes of the job (`amendments`), its end (`finish`), windows (`publication`), their delivery to sinks (`outbox`),
the alerts that these cause (`alerting`). This module connects them.

Invariant (`check`): `ahead` is `state` plus the proposed entries; and those of the parts.

Prior art: windows and watermarks are those of MillWheel, with a watermark for each worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from msgspec.structs import replace

from elf.cbt.budget import Budget
from elf.jobmaster.delivery.alert_outbox import AlertOutbox, NodesOf
from elf.jobmaster.delivery.outbox import Outbox
from elf.jobmaster.delivery.sink_queue import Target
from elf.jobmaster.delivery.watchers import Watchers, without_panes
from elf.jobmaster.directory.changes import first_entry
from elf.jobmaster.directory.job_spec import AgentAdvert, JobSpec
from elf.jobmaster.directory.known_schedule import KnownSchedule
from elf.jobmaster.log.entries import Accept, AnyEntry, ControlEntry, Final, Judged, Retire, Revision, Serve
from elf.jobmaster.log.handover import Unshared
from elf.jobmaster.log.job_state import JobState, WindowKey
from elf.jobmaster.log.schedule import number_of
from elf.jobmaster.master.alerting import Alerting
from elf.jobmaster.master.amendments import Amendments
from elf.jobmaster.master.emission import Emission
from elf.jobmaster.master.finish import Finish
from elf.jobmaster.master.intake import Intake
from elf.jobmaster.master.proposals import ROOM_KEPT, Proposals
from elf.jobmaster.master.publication import Publication
from elf.jobmaster.master.ready import Ready
from elf.jobmaster.master.roster import Roster
from elf.jobmaster.master.window_settings import WindowSettings
from elf.srt.messages.bundles import has_lines
from elf.srt.messages.effects import Effect
from elf.srt.messages.ids import NodeId
from elf.srt.messages.messages import Ballot, Bundle, Control, Goodbye, Hello, Message, Micros, Schedule
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.results import WITHDRAWN, AlertReply, LedgerReport, PartReply, Put, PutReply, Watch


def _has_lakes(names: Sequence[str], outbox: Outbox) -> bool:
    """Whether the states of panes are needed for one of these sinks; also for one that no agent serves at present."""
    return outbox.stores_states or not set(names) <= set(outbox.names)


def is_time(at: int | None, now: int, span: int) -> bool:
    """Whether `at` has come, or is more than `span` away because the clock stepped back."""
    return at is not None and (now >= at or at > now + span)


FINALS_MAX = 256
"""Windows that are read and logged as final at a time: a fifth of a second, in which the node does nothing else."""
BEHIND_US = 100_000
"""When the next of a backlog's windows are made final."""


class Master:
    """Serves one job under `ballot`.

    propose: appends an entry to the log and returns its index; the entry takes effect when `committed` is called with it. room:
    the number of entries that may be proposed now; without room bundles wait, and other entries are proposed later. sinks: those
    that keep a ledger; stores_states: whether they store the states of panes, not only rows. known_schedule: the schedule of an
    earlier log, according to the directory, which a new log continues. losses, left: see `Succession`; unshared: entries that an
    earlier master on this node kept. handed_on: the former master has published nothing that is not in the log. signer, is_void:
    see `Amendments`; alert_nodes: see `AlertOutbox`. Every public method takes the node's clock and returns effects. `fence`: a
    higher ballot that a sink reported; the node must step down."""

    def __init__(
        self,
        spec: JobSpec,
        state: JobState,
        ballot: Ballot,
        parameters: Parameters,
        propose: Callable[[AnyEntry], int],
        budget: Budget,
        sinks: Sequence[Target] = (),
        room: Callable[[], int] = lambda: ROOM_KEPT << 16,
        stores_states: bool = False,
        known_schedule: KnownSchedule | None = None,
        losses: Callable[[], int] = lambda: 0,
        left: Callable[[], int] = lambda: 0,
        unshared: Unshared | None = None,
        handed_on: bool = False,
        signer: Callable[[], bytes] = bytes,
        is_void: Callable[[bytes, Micros], bool] = lambda signer, now: False,
        alert_nodes: NodesOf = lambda name: (),
    ) -> None:
        self.spec, self.state, self.ballot, self.parameters = spec, state, ballot, parameters
        self.job = state.job
        self.log = Proposals(state.positions, state.index, parameters.park_bytes_max, propose, room)
        self.ahead = self.log.ahead
        about = state, ballot, self.log, spec.source, parameters.forget_us
        self.roster = Roster(*about, self._add_effect)
        self.intake = Intake(state, ballot, parameters, self.log, self.roster, self._add_effect)
        self.publication = Publication(
            state,
            ballot,
            parameters,
            budget,
            settings=WindowSettings(state, spec.base),
            stores_states=stores_states,
        )
        self.alerting = Alerting(state, self.publication, self.log, lambda: self.log.room() > 0)
        self.alert_outbox = AlertOutbox(self.job, spec.name, ballot, alert_nodes)
        self._stores_states = stores_states
        self.outbox = Outbox(
            self.job,
            ballot,
            sinks,
            parameters,
            self._reread,
            with_open=not stores_states,
            name=spec.name,
            is_before=self.publication.earlier.is_before,
        )
        self.publication.contents.stores_states = stores_states and _has_lakes(
            self.publication.settings.sinks, self.outbox
        )
        self.watchers = Watchers(self.job, ballot, parameters, self._reread, self.publication.newest_finals)
        self._out: list[Effect] = []
        self._known_schedule = known_schedule if not state.schedule else None
        job = spec, state, ballot, self.log, self.publication
        times = parameters.ask_us_max, parameters.hold_us_max
        self.amendments = Amendments(*job, *times, self._known_schedule, signer, is_void)
        self._signer = signer
        self.finish = Finish(
            state, self.roster, self.publication, self.outbox, self.watchers, self._has_ledgers, parameters
        )
        self.unshared = unshared or Unshared.by(parameters)
        self.unshared.begin(state.positions)
        self._losses, self._left = losses, left
        self._has_all = handed_on or ballot[0] <= 1
        self._ledgers = 0  # number of reported ledgers that wait for the log
        self._emission = Emission()
        self._read_at: int | None = None
        self._hold_at: int | None = None  # when a window is due without the workers for which it is held
        self._readers = (False, False)  # whether open windows are wanted, and all ledgers are known
        self._forget_at: int | None = None
        self.awaits_bundles = False
        """Whether the last bundle joined others of its beat that wait for more, so that nothing else has changed."""

    def _add_effect(self, effect: Effect) -> None:
        self._out.append(effect)

    # ---- beginning ----

    def begin(self, now: int) -> list[Effect]:
        """The first call: begins an empty log, requests the sinks' ledgers, and looks for windows to publish."""
        if not self.state.schedule:
            self.roster.is_new = True
            begin = first_entry(self.spec, self.ballot, now, self._known_schedule)
            self.log.propose(replace(begin, signer=self._signer()))
        self.log.propose(Serve(self.ballot, self._unknown_us(now)))
        self.amendments.propose_due(now)
        self._forget_at = now + self.roster.eviction.look_us
        self.publication.resume()
        self.alerting.begin(now)
        self.alert_outbox.changed(self.state.alerts)
        self._look_again(now)
        return self._end(now)

    def _unknown_us(self, now: int) -> Micros:
        """Rule Final*: up to which time an earlier master may have published windows that this log lacks: those due by now,
        unless it is known that it did not; if its log was lost, all that have ended."""
        if self._has_all:
            return 0
        known = (*self.publication.settings.every, self.spec.settings)
        return now - (0 if self.roster.is_new else min(each.lateness_us for each in known))

    # ---- the log ----

    def committed(self, entries: Iterable[tuple[int, AnyEntry]], now: int) -> list[Effect]:
        """These entries are in the log, held by every replica: apply them, in their order."""
        for index, entry in entries:
            if index > self.state.index:
                self.state.apply(index, entry)
            self._react(index, entry, now)
            self.log.committed(index)
        self._propose_delayed(now)
        return self._end(now)

    def _propose_delayed(self, now: int) -> None:
        """Propose the entries that had no room in the log, or waited for another entry."""
        self.roster.add_wanted()
        self.roster.record_majority(self._left())
        self.amendments.propose_due(now)
        self.intake.retry_parked(now)
        self.alerting.look(now)
        self._look_again(now)

    def _react(self, index: int, entry: AnyEntry, now: int) -> None:
        """The master's own reaction to a committed entry."""
        if isinstance(entry, Accept):
            self._emission.accepted(has_lines(entry.contributions))
            if self.is_asked:
                self._emission.hurry(now, self._emit_us)
            self._out += self.unshared.keep(entry, self._losses(), now)
            self.publication.accepted(index, entry)
            self.amendments.note(entry)
            if entry.promises:
                self.roster.reported(entry.contributions)
        elif isinstance(entry, Final):
            ready = self.publication.committed(entry)
            if ready is not None:
                self.alerting.published(ready)
                self._publish(ready)
        elif isinstance(entry, Judged):
            self.alerting.committed()
            self.alert_outbox.changed(self.state.alerts)
        elif isinstance(entry, ControlEntry):
            self.amendments.committed(index)
            finals, opened = self.publication.schedule_changed(index)
            for put in finals:
                self.withdraw(put)
            for put in opened:
                self._out += self.watchers.publish(put)
                if self.outbox.takes_open:
                    self.outbox.put(put, self.outbox.names)
            self._emission.within(now, self._emit_us)
        elif isinstance(entry, Retire):
            self.publication.retired()
            self.roster.retired()
            self._out += self.outbox.retired(self.state.is_past)

    def _end(self, now: int) -> list[Effect]:
        """The effects of this call."""
        out, self._out = [*self._out, *self.intake.take_commits()], []
        positions = self.state.positions
        out += self.alert_outbox.tick(self.state.alerts, self.state.ballot, now)
        # A window may begin before the retained panes and overlap them.
        out += self.outbox.tick(now, max(0, positions.retained_us - positions.longest_us))
        self._look_again(now)  # the outbox may have found that a window has changed
        return out

    def bundle(self, child: NodeId, bundle: Bundle, now: int) -> list[Effect]:
        """A bundle has reached the root. It is taken with others of its beat. O(contributions)."""
        if bundle.elsewhere:
            unheard = any(not self.roster.has_reported(worker) for worker, _, _ in bundle.contributions)
            is_new = unheard and not self._has_all
            self.publication.elsewhere.note(bundle, self.state.whole, is_new, now)
        self.intake.bundle(child, bundle, now)
        self.awaits_bundles = self.intake.round.is_joined and not bundle.elsewhere
        return [] if self.awaits_bundles else self._end(now)

    # ---- workers ----

    def hello(self, message: Hello, now: int) -> list[Effect]:
        """A worker requests its positions."""
        self.intake.take_round(now)
        self.roster.hello(message, now)
        return self._end(now)

    def goodbye(self, message: Goodbye, now: int) -> list[Effect]:
        """A worker leaves after its last line was committed."""
        self.intake.take_round(now)
        self.roster.goodbye(message, now)
        return self._end(now)

    def adverts(self, adverts: Iterable[tuple[NodeId, AgentAdvert]], now: int) -> list[Effect]:
        """The agents that advertise a source, according to the directory."""
        self.roster.adverts(adverts, self.spec.needs)
        return self._end(now)

    def forget(self, workers: Iterable[NodeId], now: int) -> list[Effect]:
        """The operator has revoked the certificates of these workers: they will not come back."""
        for worker in sorted(workers):
            self.roster.forget(worker)
        return self._end(now)

    # ---- changes of the job ----

    def spec_changed(self, spec: JobSpec, now: int) -> list[Effect]:
        """The directory has another spec, maybe with a version that is not in force yet."""
        if self.amendments.spec_changed(spec):
            self.spec, self.publication.settings.base = spec, spec.base
            self.publication.is_unfinished = True
            self.amendments.propose_due(now)
        return self._end(now)

    def take_multicast(self) -> list[Control]:
        """Messages to multicast down the tree, once each."""
        return self.amendments.take_controls()

    def take_schedule(self) -> Schedule:
        """The log's schedule for the directory, once after each change; () if it has not changed."""
        return self.amendments.take_news()

    def take_end(self) -> bool:
        """Whether the job was finishing, and has come to its end; once each time that this is found."""
        has_come, self.finish.has_come = self.finish.has_come, False
        return has_come

    # ---- windows ----

    def _look_again(self, now: int) -> None:
        """Schedule the next emission if there may be windows to publish, and the next step of a window that is being read."""
        if self.publication.contents.is_reading and self._read_at is None:
            self._read_at = now + self.parameters.read_us
        readers = self._wants_open, self._has_ledgers()
        if readers != self._readers:
            self._readers = readers
            self.publication.is_unfinished = True
        if self.publication.has_work or self.amendments.lane_wait.has_ended(now):
            soon_us = min(self._emit_us, BEHIND_US)
            self._emission.within(now, soon_us if self.publication.has_more else self._emit_us)

    def _emit(self, now: int) -> None:
        self._emission.emitted(now, self._emit_us, self._wants_open)
        self.roster.look_again()
        if not self.amendments.is_under_way and self.log.has_room and self.roster.is_complete:
            self.publication.has_ledgers = self._has_ledgers()
            most = min(self.log.room() - ROOM_KEPT, FINALS_MAX)
            backlog_max = 0 if self._ledgers else self.outbox.backlog.room
            due, opened = self.publication.emit(
                now, self.roster.has_majority(), most, backlog_max, self._wants_open
            )
            for ready in opened:
                self._publish_open(ready)
            for ready in due:
                self.log_final(ready)
            if self.log.room() > 0:
                self._retire()
            wait = self.amendments.lane_wait
            if wait.has_ended(now) and not self.publication.is_behind:
                self.log.when_committed(wait.release, number_of(self.state.schedule))
                self.amendments.propose_due(now)
        self._hold_at = self.publication.held.next_end(now)
        self._look_again(now)

    @property
    def _wants_open(self) -> bool:
        """Whether to publish open windows: not while a reported ledger waits for the log, because its final windows must not be
        published as open."""
        return not self._ledgers and self.is_asked

    @property
    def is_asked(self) -> bool:
        """Whether a watcher or a sink wants open windows."""
        return len(self.watchers) > 0 or self.outbox.wants_open

    @property
    def _emit_us(self) -> int:
        return self.publication.settings.newest.emit_us or self.parameters.emit_us

    def log_final(self, ready: Ready) -> None:
        """Windows*: FINAL is replicated first; `committed` then publishes the window."""
        self.log.propose(ready.entry)

    def _publish(self, ready: Ready) -> None:
        put = ready.as_put(self.job, self.ballot)
        self.outbox.put(put, self.outbox.route(self.publication.settings.of(ready.key)))
        if not ready.coverage.is_whole and not self.publication.earlier.may_be_partial(ready.key):
            return
        self._out += self.watchers.publish(without_panes(put))

    def withdraw(self, put: Put) -> None:
        """Windows*: one version per result. A window that is no longer a result is withdrawn from all its readers."""
        self.outbox.put(put, self.outbox.names)
        self._out += self.watchers.publish(put)

    def _publish_open(self, ready: Ready) -> None:
        put = ready.as_put(self.job, self.ballot)
        self._out += self.outbox.open(put, self.outbox.route(self.publication.settings.of(ready.key)))
        self._out += self.watchers.publish(put)

    def _retire(self) -> None:
        """Propose Retire in steps of a sixteenth of retention: an entry for each pane would cost as much as the panes. Proposed
        lines are published first: after Retire they would be in no window, and would not be counted as late."""
        self.publication.has_ledgers = self._has_ledgers()
        if self._ledgers:
            return  # what the sinks lack is known soon
        least = self.ahead.retained_us + self.publication.settings.newest.keep_us // 16 + 1
        before = self.publication.retire_at(self.outbox.oldest_us, self.outbox.backlog.oldest_us)
        if (
            before is not None
            and before >= least
            and (before := min(before, self.log.first_start())) >= least
        ):
            self.log.propose(Retire(before))

    # ---- watchers ----

    def watch(self, message: Watch, now: int) -> list[Effect]:
        """A watcher subscribes to the windows, or renews its subscription."""
        is_new, effects = self.watchers.watch(message, now)
        self._out += effects
        if is_new:
            self.publication.republish_open()
            if self.is_asked:
                self._emission.hurry(now, self._emit_us)
        return self._end(now)

    # ---- sinks ----

    def serve_sinks(self, sinks: Sequence[Target], now: int) -> list[Effect]:
        """Set the job's sinks, and request at once the ledgers of new ones."""
        self.outbox.serve(sinks)
        self.alert_outbox.moved()
        self.publication.contents.stores_states = self._stores_states and _has_lakes(
            self.publication.settings.sinks, self.outbox
        )
        return self._end(now)

    def _reread(self, key: WindowKey, status: str) -> Put | Literal["later"] | None:
        """Read a window again for the outbox or a watcher, which do not keep rows."""
        if status == WITHDRAWN:
            return self.publication.withdrawn(key)
        ready = self.publication.reread(key)
        return ready.as_put(self.job, self.ballot) if isinstance(ready, Ready) else ready

    def ledger_reported(self, source: NodeId, message: LedgerReport, now: int) -> list[Effect]:
        """A sink reports its ledger."""
        entries = self.outbox.ledger_reported(source, message)
        if entries is not None:
            self._ledgers += 1
            self.log.when_committed(self._compare_ledger, self.outbox.named(source, message.sink), entries)
        self._look_again(now)
        return self._end(now)

    def _has_ledgers(self) -> bool:
        """Whether every sink has reported its ledger, and the windows that differ there are known."""
        return self.outbox.has_ledgers and not self._ledgers

    def _compare_ledger(self, sink: str, entries: Sequence[tuple[WindowKey, Revision, int]]) -> None:
        self._ledgers -= 1

        def takes(key: WindowKey) -> bool:
            return sink in self.outbox.route(self.publication.settings.of(key))

        withdrawals, lacking = self.publication.ledger_reported(entries, self.outbox.is_late(sink), takes)
        for put in withdrawals:
            self.outbox.put(put, (sink,))
        for key in lacking:
            known = self.state.finals[key]
            self.outbox.lacks(sink, key, (known.revision, known.digest, known.status))

    def put_acknowledged(self, source: NodeId, message: PutReply, now: int) -> list[Effect]:
        """A sink acknowledges a window, or refuses this master."""
        self.outbox.acknowledged(source, message)
        return self._end(now)

    def part_acknowledged(self, source: NodeId, message: PartReply, now: int) -> list[Effect]:
        """A sink acknowledges a part of a large window."""
        self._out += self.outbox.part_acknowledged(source, message)
        return self._end(now)

    @property
    def fence(self) -> Ballot | None:
        """A higher ballot that a sink serves: this master must step down."""
        return self.outbox.fence

    # ---- time ----

    def step(self, source: NodeId, message: Message, now: int) -> list[Effect]:
        """Handle a message for a master; others are ignored."""
        if isinstance(message, Bundle):
            return self.bundle(source, message, now)
        if isinstance(message, Hello):
            return self.hello(message, now)
        if isinstance(message, Goodbye):
            return self.goodbye(message, now)
        if isinstance(message, LedgerReport):
            return self.ledger_reported(source, message, now)
        if isinstance(message, PutReply):
            return self.put_acknowledged(source, message, now)
        if isinstance(message, PartReply):
            return self.part_acknowledged(source, message, now)
        if isinstance(message, AlertReply):
            self.alert_outbox.acknowledged(source, message, self.state.ballot)
            return self._end(now)
        if isinstance(message, Watch):
            return self.watch(message, now)
        return []

    def tick(self, now: int) -> list[Effect]:
        """Publish windows that are due, split bundles that were parked for too long, repeat messages."""
        self.intake.look(now)
        self.intake.expire(now)
        is_held_over = is_time(self._hold_at, now, self.parameters.hold_us_max)
        if is_held_over:
            self.publication.is_unfinished = True
        if is_held_over or is_time(self._emission.at, now, self._emit_us):
            self._emit(now)
        if is_time(self._read_at, now, self.parameters.read_us):
            self.publication.contents.read_on()  # one step of a large window; other work is done between the steps
            self._read_at = None
        self._out += self.watchers.tick(now)
        self.alerting.tick(now)
        self.amendments.tick(now)
        self.finish.tick(self.spec, now)
        if is_time(self._forget_at, now, self.roster.eviction.look_us):
            self._forget_at = now + self.roster.eviction.look_us
            self.roster.evict_silent(now)
            self.publication.settle()
            if self.log.room() > 0 and not self.amendments.is_under_way:
                self._retire()  # if no lines arrive, `_emit` is not called
        self.roster.add_wanted()
        return self._end(now)

    @property
    def deadline(self) -> int | None:
        """The next time at which `tick` has work."""
        times = [
            self._emission.at,
            self._hold_at,
            self._read_at,
            self.amendments.deadline,
            self.finish.deadline,
            self._forget_at,
            self.intake.round.deadline,
            self.intake.parking.deadline,
            self.outbox.deadline(),
            self.alerting.deadline,
            self.alert_outbox.deadline,
            self.watchers.deadline,
        ]
        return min((time for time in times if time is not None), default=None)

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        self.state.check()
        self.log.check()
        self.intake.check()
        self.roster.check()
        self.amendments.check()
        self.publication.check()
        self.outbox.check()
        self.alert_outbox.check()
        self.watchers.check()
        self.unshared.check()
        if self.log.is_empty:
            assert self.ahead.snapshot() == self.state.positions.snapshot()
