"""The master of a job: which bundles are accepted, when windows are final, and what goes out. Only on the node that serves.

The machine in one sentence: bundles, hellos, specs and time go in; entries for the log come out at once, and what they promise
(commits, welcomes, multicasts, windows) comes out only when the log has them.

| bundle lies | then (rule 4) |
|---|---|
| all at the committed positions | ACCEPT is proposed; COMMIT when it is in the log |
| all behind | dropped; COMMIT again, when what is proposed so far is in the log |
| some ahead, none behind | parked, until positions move; SPLIT after `park_us`, or when there is no room |
| mixed, or a span straddles | SPLIT with the committed positions of those that do not fit |
| rows of the wrong version for their time | SPLIT with the schedule |
| rows of another shape, or of no bytes | SPLIT, and told: no agent sends such |

A worker's first word of some bytes is hardly ever behind them (a former life's, or what was read again); if it is, the worker
is told its places directly, past all reducers: one that somebody else has moved is then noticed by whose it is.

"Committed" above means: by the log and by what is proposed (`ahead`). What is said to others is only ever what the log has
(`state`): each answer waits behind the entries that were proposed before it (`Proposals.after_log`).

Its parts are modules of their own: what is proposed (`proposals`), bundles that wait (`parking`), who is expected
(`attendance`), how the job changes (`amendments`), windows (`publication`), their way to sinks (`outbox`). Here is what goes
between them.

Invariant (`check`): `ahead` is `state` plus the proposed entries; and those of the parts.

Prior art: windows and watermarks are those of MillWheel, kept per worker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal

from elf.cbt.budget import Budget
from elf.jobmaster.amendments import Amendments
from elf.jobmaster.attendance import Attendance
from elf.jobmaster.changes import first_entry
from elf.jobmaster.entries import (
    Accept,
    AnyEntry,
    ControlEntry,
    Final,
    Retire,
    Revision,
    Serve,
)
from elf.jobmaster.handover import Unshared
from elf.jobmaster.job_spec import AgentAdvert, JobSpec
from elf.jobmaster.job_state import JobState, WindowKey
from elf.jobmaster.outbox import READ_US, Outbox
from elf.jobmaster.parking import Parking
from elf.jobmaster.positions import Fit, Place
from elf.jobmaster.proposals import ROOM_KEPT, Proposals
from elf.jobmaster.publication import Publication, Ready
from elf.jobmaster.told_schedule import ToldSchedule
from elf.jobmaster.watchers import Watchers, without_panes
from elf.sinks.result import Window
from elf.srt.effects import Effect, Notice, Post, Send
from elf.srt.ids import NodeId, short
from elf.srt.messages import (
    FIRST,
    Ballot,
    Bundle,
    BundleId,
    Commit,
    Control,
    Goodbye,
    Hello,
    Message,
    Micros,
    Position,
    Schedule,
    Slot,
    Split,
)
from elf.srt.parameters import Parameters
from elf.srt.partial import Parts
from elf.srt.results import WITHDRAWN, LedgerTell, PartTell, Put, PutTell, Watch
from elf.srt.sizes import bundle_bytes

SPLIT_POSITIONS_MAX = 64
"""A Split tells so many positions of files that do fit as well, where only the schedule is wrong: a lone worker needs them."""
TOLD_MAX = 4_096
"""Workers of which is remembered when they were told their places."""


class Master:
    """Serves one job under `ballot`.

    propose: puts an entry into the log and returns its index; it counts when it comes back through `committed`. room: how many
    more may be proposed now; without room bundles wait, and the rest is taken up again later. sinks: durable ones, which keep a
    ledger; stores_states: they take the states of panes, not only rows. told: the schedule of an earlier log, as the directory
    has it: a log that begins goes on with it. losses: see `Succession.losses`; unshared: what a master on this node kept before.
    Every public method takes the node's clock and returns effects; `fence` is a higher ballot that a sink told: the node must
    step down.
    """

    def __init__(
        self,
        spec: JobSpec,
        state: JobState,
        ballot: Ballot,
        parameters: Parameters,
        propose: Callable[[AnyEntry], int],
        budget: Budget,
        sinks: Sequence[NodeId] = (),
        room: Callable[[], int] = lambda: ROOM_KEPT << 16,
        stores_states: bool = False,
        told: ToldSchedule | None = None,
        losses: Callable[[], int] = lambda: 0,
        unshared: Unshared | None = None,
    ) -> None:
        self.spec, self.state, self.ballot, self.parameters = spec, state, ballot, parameters
        self.job = state.job
        self.is_watched = False  # whether `take_published` is read
        self.log = Proposals(state.positions, state.index, parameters.park_bytes_max, propose, room)
        self.ahead = self.log.ahead
        self.parking = Parking(parameters.park_bytes_max, parameters.park_us)
        self.attendance = Attendance(state, ballot, self.log, spec.source, parameters.forget_us, self._tell)
        self.publication = Publication(
            state,
            ballot,
            parameters,
            budget,
            lateness_us=spec.lateness_us,
            keep_us=spec.keep_us,
            emit_us=self._emit_us,
            stores_states=stores_states and bool(spec.sinks),
        )
        self.outbox = Outbox(
            self.job,
            ballot,
            sinks,
            parameters,
            self._again,
            with_open=not stores_states,
            name=spec.name,
            is_before=self.publication.is_before,
        )
        self.watchers = Watchers(self.job, ballot, parameters, self._again, self.publication.newest_finals)
        self._commits: dict[NodeId, list[BundleId]] = {}
        self._out: list[Effect] = []
        self._told = told if not state.schedule else None
        self.amendments = Amendments(
            spec, state, ballot, self.log, self.publication, parameters.ask_us_max, self._told
        )
        self.unshared = unshared or Unshared.by(parameters)
        self.unshared.begin(state.positions)
        self._losses = losses
        self._published: list[Window] = []
        self._told_at: dict[NodeId, int] = {}  # when a worker was told its places
        self._ledgers = 0  # that were told, and wait for the log
        self._emit_at: int | None = None
        self._read_at: int | None = None
        self._forget_at: int | None = None

    def _tell(self, effect: Effect) -> None:
        self._out.append(effect)

    # ---- beginning ----

    def begin(self, now: int) -> list[Effect]:
        """The first call: a log that is empty begins, sinks are asked, and what the log holds is looked at."""
        if not self.state.schedule:
            self.attendance.is_new = True
            self.log.enter(first_entry(self.spec, self.ballot, now, self._told))
        self.log.enter(Serve(self.ballot))
        self.amendments.go_on(now)
        self._forget_at = now + self.attendance.silence.look_us
        self.publication.resume()
        self._look_again(now)
        return self._end(now)

    # ---- the log ----

    def committed(self, entries: Iterable[tuple[int, AnyEntry]], now: int) -> list[Effect]:
        """These entries are in the log, held by every replica: they count, in their order."""
        for index, entry in entries:
            if index > self.state.index:
                self.state.apply(index, entry)
            self._follow(index, entry, now)
            self.log.committed(index)
        self._take_up(now)
        return self._end(now)

    def _take_up(self, now: int) -> None:
        """What had no room in the log, or waited for an entry."""
        self.attendance.add_wanted()
        self.attendance.vouch()
        self.amendments.go_on(now)
        self._retry_parked(now)
        self._look_again(now)

    def _follow(self, index: int, entry: AnyEntry, now: int) -> None:
        """What the master itself draws from an entry."""
        if isinstance(entry, Accept):
            self._out += self.unshared.keep(entry, self._losses(), now)
            self.publication.accepted(index, entry)
            if entry.promises:
                self.attendance.reported(entry.contributions)
        elif isinstance(entry, Final):
            ready = self.publication.committed(entry)
            if ready is not None:
                self._publish(ready)
        elif isinstance(entry, ControlEntry):
            self.amendments.committed(index)
            finals, opened = self.publication.schedule_changed(index)
            for put in finals:
                self.withdraw(put)
            for put in opened:
                self._out += self.watchers.tell(put)
                if self.outbox.with_open:
                    self.outbox.put(put)
        elif isinstance(entry, Retire):
            self.publication.retired()
            self.attendance.retired()
            self._out += self.outbox.retired(self.state.is_past)

    def _end(self, now: int) -> list[Effect]:
        """The effects of this call."""
        for child, ids in self._commits.items():
            self._out.append(Post(child, Commit(self.job, self.ballot, tuple(ids))))
        self._commits.clear()
        out, self._out = self._out, []
        out += self.outbox.tick(now, self._oldest_told())
        self._look_again(now)  # the outbox may have found a window that is another one now
        return out

    def _oldest_told(self) -> Micros:
        """Ledgers tell from here on: a window that begins before what is retained may reach into it."""
        longest = max((shape.size_us for shape in self.state.positions.shapes.values()), default=0)
        return max(0, self.state.positions.retained_us - longest)

    # ---- bundles ----

    def bundle(self, child: NodeId, bundle: Bundle, now: int) -> list[Effect]:
        """A bundle has reached the root. O(contributions)."""
        if self._judge(child, bundle, now):
            self._retry_parked(now)
        return self._end(now)

    def _judge(self, child: NodeId, bundle: Bundle, now: int) -> bool:
        """Rule 4*: accept, drop, park or split; returns whether positions moved."""
        fit = self.ahead.judge(bundle.contributions)
        if fit in (Fit.BEHIND, Fit.MIXED) and not bundle.again:
            self._tell_places(bundle, now)
        if fit is Fit.BEHIND:
            self.log.after_log(self._commit, child, bundle.id)
        elif fit is Fit.MIXED:
            self._split(child, bundle, self.ahead.misfits(bundle.contributions))
        elif not (self._is_sound(child, bundle) and self._rows_count(bundle)):
            self._split(child, bundle, list(bundle.contributions)[:SPLIT_POSITIONS_MAX])
        elif fit is Fit.FITS and self.log.has_room:
            self._accept(child, bundle)
            return True
        elif not self.parking.put(child, bundle, now):
            self._split(child, bundle, self.ahead.misfits(bundle.contributions))
        return False

    def _is_sound(self, child: NodeId, bundle: Bundle) -> bool:
        """Rows of another shape than their version's would spoil the panes of all, and rows come from bytes."""
        rows = 0
        for version, part in bundle.parts.items():
            panes = self.state.panes.get(version)
            if panes is None or part.ops != tuple(panes.ops) or len(part.rows) != len(panes.ops):
                return False
            rows += len(part.rows[1])
        if rows and not any(end > start for start, end, _ in bundle.contributions.values()):
            self._doubt(child, "rows of no line of any log")
            return False
        if not bundle.lagging.keys() <= {slot[0] for slot in bundle.contributions}:
            self._doubt(child, "promises of workers that are not in it")
            return False
        return True

    def _rows_count(self, bundle: Bundle) -> bool:
        """Its rows are those that this log wants: of versions in force, and all of them."""
        return self.has_all_rows(bundle) and self.ahead.rows_belong(bundle.schedule, bundle.parts)

    def has_all_rows(self, bundle: Bundle) -> bool:
        """Rule 8*: lines before the oldest retained pane are left out, and of two logs one may retain more than the other: what a
        worker left out for another master may count here."""
        return bundle.since_us <= self.ahead.reread_us

    def _doubt(self, child: NodeId, what: str) -> None:
        text = (
            f"{short(child)} passed on a bundle with {what}; it is refused. An agent below it is broken or lies: "
            "look at it, and at those below it in `elf mesh tree`"
        )
        self._out.append(Notice("unsound", text, child))

    def _tell_places(self, bundle: Bundle, now: int) -> None:
        """To whom some of these bytes were said to be before it had read them, how far its files are committed."""
        state, moved = self.state.positions, dict[NodeId, list[tuple[Slot, Position]]]()
        for slot, (_, end, _) in bundle.contributions.items():
            at = state.position(slot)
            if at is not None and (end < at.offset or at.closed):
                moved.setdefault(slot[0], []).append((slot, at))
        for worker, places in moved.items():
            if 0 <= now - self._told_at.get(worker, -self.parameters.park_us) < self.parameters.park_us:
                continue
            if len(self._told_at) >= TOLD_MAX:
                del self._told_at[next(iter(self._told_at))]
            self._told_at[worker] = now
            tell = Split(self.job, self.ballot, (worker, 0, 0), (), tuple(places[:SPLIT_POSITIONS_MAX]))
            self._out.append(Send(worker, tell))

    def _accept(self, child: NodeId, bundle: Bundle) -> None:
        self.attendance.expect(bundle.contributions)
        parts = self._parts_in_time(bundle) if self._may_be_forgotten(bundle) else bundle.parts
        parts = {version: part for version, part in parts.items() if len(part.rows[1])}
        entry = Accept(
            bundle.schedule,
            bundle.contributions,
            bundle.watermark,
            bundle.lagging,
            parts,
            self.promises(bundle),
            bundle.since_us,
        )
        self.log.enter(entry, bundle_bytes(bundle))
        self.log.after_log(self._commit, child, bundle.id)

    def _may_be_forgotten(self, bundle: Bundle) -> bool:
        """Whether this log may have had it: it remembers nothing of files that ended before what is retained, and what comes
        again, or from under another master, may be all of one."""
        is_fresh = not bundle.again and self.promises(bundle)
        return not is_fresh and any(flags & FIRST for _, _, flags in bundle.contributions.values())

    def _parts_in_time(self, bundle: Bundle) -> Parts:
        """Its rows that are in time; others would be counted as late, and may be in windows."""
        retained, shapes = self.ahead.retained_us, self.ahead.shapes
        return {
            version: part.since(shapes[version].first_in_time(retained))
            for version, part in bundle.parts.items()
        }

    def promises(self, bundle: Bundle) -> bool:
        """Rule 2*: a watermark counts only inside a contribution that names every file of the worker which this master may lack:
        what was cut under another master leaves out those that one has committed to their ends."""
        return bundle.ballot == self.ballot

    def _retry_parked(self, now: int) -> None:
        """Positions moved: what waited may fit now, and what fits may let others fit."""
        moved = True
        while moved and len(self.parking):
            moved = False
            for parked in self.parking:
                fit = self.ahead.judge(parked.bundle.contributions)
                if fit is not Fit.AHEAD and (fit is not Fit.FITS or self.log.has_room):
                    self.parking.take(parked.bundle.id)
                    moved |= self._judge(parked.child, parked.bundle, now)

    def _commit(self, child: NodeId, bundle_id: BundleId) -> None:
        self._commits.setdefault(child, []).append(bundle_id)

    def _split(self, child: NodeId, bundle: Bundle, slots: Sequence[Slot]) -> None:
        self.log.after_log(self._tell_split, child, bundle, slots)

    def _tell_split(self, child: NodeId, bundle: Bundle, slots: Sequence[Slot]) -> None:
        """A worker that goes on in the middle of a file which the log does not know is told no position at all, so that it asks:
        of a slot that is not named it would think that it fits."""
        state = self.state.positions
        at = [(slot, position) for slot in slots if (position := state.position(slot)) is not None]
        unknown = [slot for slot in slots if state.position(slot) is None]
        lost = {slot[0] for slot in unknown if state.place(slot, bundle.contributions[slot]) is Place.AHEAD}
        told = tuple((slot, position) for slot, position in at if slot[0] not in lost)
        split = Split(self.job, self.ballot, bundle.id, state.schedule, told, state.reread_us)
        self._out.append(Post(child, split))

    # ---- workers ----

    def hello(self, message: Hello, now: int) -> list[Effect]:
        """A worker asks where to go on."""
        self.attendance.hello(message, now)
        return self._end(now)

    def goodbye(self, message: Goodbye, now: int) -> list[Effect]:
        """A worker leaves, its last line committed."""
        self.attendance.goodbye(message, now)
        return self._end(now)

    def adverts(self, adverts: Iterable[tuple[NodeId, AgentAdvert]], now: int) -> list[Effect]:
        """Who advertises a source, as the directory has it."""
        self.attendance.adverts(adverts)
        return self._end(now)

    def forget(self, workers: Iterable[NodeId], now: int) -> list[Effect]:
        """The operator has said that these workers will not come back, by revoking their certificates."""
        for worker in sorted(workers):
            self.attendance.forget(worker)
        return self._end(now)

    # ---- changes of the job ----

    def spec_changed(self, spec: JobSpec, now: int) -> list[Effect]:
        """The directory has another spec: maybe with a version that is not in force yet."""
        if self.amendments.heard(spec):
            self.spec = spec
            self.publication.lateness_us, self.publication.keep_us = spec.lateness_us, spec.keep_us
            self.amendments.go_on(now)
        return self._end(now)

    def take_multicast(self) -> list[Control]:
        """Messages for the tree's multicast, once each."""
        return self.amendments.take_words()

    def take_schedule(self) -> Schedule:
        """What the directory should hear of the log's schedule, once each; () for nothing."""
        return self.amendments.take_news()

    # ---- windows ----

    def _look_again(self, now: int) -> None:
        """There may be windows to publish at the next emit interval, and one may be being read."""
        if self.publication.is_reading and self._read_at is None:
            self._read_at = now + READ_US
        soon = now + self._emit_us
        if self.publication.has_work and (self._emit_at is None or self._emit_at > soon):
            self._emit_at = soon

    def _emit(self, now: int) -> None:
        self._emit_at = None
        self.attendance.look_again()
        if not self.amendments.is_under_way and self.log.has_room:
            self.publication.is_told = self.outbox.is_told and not self._ledgers
            due, opened = self.publication.emit(
                now, self.attendance.has_majority(), self.log.room() - ROOM_KEPT, self._wants_open
            )
            for ready in opened:
                self._publish_open(ready)
            for ready in due:
                self.log_final(ready)
            if self.log.room() > 0:
                self._retire()
        self._look_again(now)

    def _read_on(self, now: int) -> None:
        """A large window is read a step at a time, and all else comes between."""
        if self._is_time(self._read_at, now, READ_US):
            self.publication.read_on()
            self._read_at = None

    @property
    def _wants_open(self) -> bool:
        """Not while a ledger waits for the log: what it calls final must not be told as open."""
        return not self._ledgers and (self.is_watched or len(self.watchers) > 0 or self.outbox.wants_open)

    @property
    def _emit_us(self) -> int:
        return self.spec.emit_us or self.parameters.emit_us

    def log_final(self, ready: Ready) -> None:
        """Windows*: FINAL is replicated before it is published; `committed` does that."""
        self.log.enter(ready.entry)

    def _publish(self, ready: Ready) -> None:
        put = self.publication.as_put(self.job, ready)
        self.outbox.put(put)
        if not ready.coverage.is_whole and not self.publication.may_be_partial(ready.key):
            return
        self._out += self.watchers.tell(without_panes(put))
        if self.is_watched:
            self._published.append(self.publication.as_window(ready))

    def withdraw(self, put: Put) -> None:
        """Windows*: one version per result. A window that is none any more is taken back wherever it was told."""
        self.outbox.put(put)
        self._out += self.watchers.tell(put)

    def _publish_open(self, ready: Ready) -> None:
        put = self.publication.as_put(self.job, ready)
        self._out += self.outbox.open(put)
        self._out += self.watchers.tell(put)
        if self.is_watched:
            self._published.append(self.publication.as_window(ready))

    def take_published(self) -> list[Window]:
        """Windows for the watcher on this node, in order, once each."""
        out, self._published = self._published, []
        return out

    def _retire(self) -> None:
        """Retention in steps of a sixteenth: an entry for each pane would be as dear as the panes. Lines that are on their way
        into the log are published first: behind Retire they would be in no window, and not counted as late."""
        self.publication.is_told = self.outbox.is_told and not self._ledgers
        before, least = self.publication.retire_at(), self.ahead.retained_us + self.spec.keep_us // 16 + 1
        if (
            before is not None
            and before >= least
            and (before := min(before, self.log.first_start())) >= least
        ):
            self.log.enter(Retire(before))

    # ---- those who watch ----

    def watch(self, message: Watch, now: int) -> list[Effect]:
        """Somebody wants to see the windows, or still does."""
        is_new, effects = self.watchers.watch(message, now)
        self._out += effects
        if is_new:
            self.publication.tell_open()
        return self._end(now)

    # ---- sinks ----

    def serve_sinks(self, sinks: Sequence[NodeId], now: int, fresh: Collection[NodeId] = ()) -> list[Effect]:
        """The durable sinks of the present spec: a new one is asked for its ledger at once, and so are those that have a lake
        more than they had, `fresh`."""
        self.outbox.serve(sinks, fresh)
        return self._end(now)

    def _again(self, key: WindowKey, status: str) -> Put | Literal["later"] | None:
        """A window for the outbox, which did not keep its rows."""
        if status == WITHDRAWN:
            return self.publication.withdrawn(key)
        ready = self.publication.again(key, status)
        return self.publication.as_put(self.job, ready) if isinstance(ready, Ready) else ready

    def ledger_told(self, source: NodeId, message: LedgerTell, now: int) -> list[Effect]:
        """A sink answers with what it holds."""
        entries = self.outbox.told(source, message)
        if entries is not None:
            self._ledgers += 1
            self.log.after_log(self._heard_ledger, source, entries)
        self._look_again(now)
        return self._end(now)

    def _heard_ledger(self, source: NodeId, entries: Sequence[tuple[WindowKey, Revision, int]]) -> None:
        self._ledgers -= 1
        for put in self.publication.ledger_told(entries, self.outbox.is_late(source)):
            self.outbox.put(put, source)

    def put_told(self, source: NodeId, message: PutTell, now: int) -> list[Effect]:
        """A sink acknowledges a window, or refuses this master."""
        self.outbox.acknowledged(source, message)
        return self._end(now)

    def part_told(self, source: NodeId, message: PartTell, now: int) -> list[Effect]:
        """A part of a large window came at a sink."""
        self._out += self.outbox.part_told(source, message)
        return self._end(now)

    @property
    def fence(self) -> Ballot | None:
        """A higher ballot that a sink serves: step down."""
        return self.outbox.fence

    # ---- time ----

    def step(self, source: NodeId, message: Message, now: int) -> list[Effect]:
        """Any message for a master, by its type; others are ignored."""
        if isinstance(message, Bundle):
            return self.bundle(source, message, now)
        if isinstance(message, Hello):
            return self.hello(message, now)
        if isinstance(message, Goodbye):
            return self.goodbye(message, now)
        if isinstance(message, LedgerTell):
            return self.ledger_told(source, message, now)
        if isinstance(message, PutTell):
            return self.put_told(source, message, now)
        if isinstance(message, PartTell):
            return self.part_told(source, message, now)
        if isinstance(message, Watch):
            return self.watch(message, now)
        return []

    def tick(self, now: int) -> list[Effect]:
        """What time brings: windows, parked bundles that waited too long, repetitions."""
        for parked in self.parking.expired(now):
            self._split(parked.child, parked.bundle, self.ahead.misfits(parked.bundle.contributions))
        if self._is_time(self._emit_at, now, self._emit_us):
            self._emit(now)
        self._read_on(now)
        self._out += self.watchers.tick(now)
        self.amendments.tick(now)
        if self._is_time(self._forget_at, now, self.attendance.silence.look_us):
            self._forget_at = now + self.attendance.silence.look_us
            self.attendance.forget_silent(now)
            self.publication.settle()
            if self.log.room() > 0 and not self.amendments.is_under_way:
                self._retire()  # also where no line comes, so that no window is looked at
        self.attendance.add_wanted()
        return self._end(now)

    def _is_time(self, at: int | None, now: int, span: int) -> bool:
        """Whether `at` has come; or the clock went back, and it would be further away than it can be."""
        return at is not None and (now >= at or at > now + span)

    @property
    def deadline(self) -> int | None:
        """When `tick` has work next."""
        times = [
            self._emit_at,
            self._read_at,
            self.amendments.deadline,
            self._forget_at,
            self.parking.deadline,
            self.outbox.deadline(),
            self.watchers.deadline,
        ]
        return min((time for time in times if time is not None), default=None)

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        self.state.check()
        self.log.check()
        self.parking.check()
        self.publication.check()
        self.watchers.check()
        self.unshared.check()
        if self.log.is_empty:
            assert self.ahead.snapshot() == self.state.positions.snapshot()
