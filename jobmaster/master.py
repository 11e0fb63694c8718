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

"Committed" above means: by the log and by what is proposed (`ahead`). What is said to others is only ever what the log has
(`state`): each answer waits behind the entries that were proposed before it (`after_log`).

Invariants (`check`): `ahead` is `state` plus the proposed entries; answers wait in the order of the log; parking and state check.

Prior art: the commit rule is that of a log of a replicated state machine (Viewstamped Replication); windows and watermarks are
those of MillWheel, kept per worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from elf.cbt.budget import Budget
from elf.jobmaster.changes import first_entry, next_boundary, rank_of
from elf.jobmaster.entries import (
    Accept,
    Add,
    AnyEntry,
    ControlEntry,
    Final,
    Forget,
    Gone,
    Left,
    Retire,
    Serve,
    SpecRank,
)
from elf.jobmaster.job_spec import AgentAdvert, JobSpec
from elf.jobmaster.job_state import JobState, WindowKey
from elf.jobmaster.outbox import Outbox
from elf.jobmaster.parking import Parking
from elf.jobmaster.positions import Fit, Place, Positions
from elf.jobmaster.publication import Publication, Ready
from elf.jobmaster.schedule import AFTER_ALL, lane_from, next_number
from elf.jobmaster.silence import Silence
from elf.sinks.result import Window
from elf.srt.effects import Effect, Notice, Post, Send
from elf.srt.ids import NodeId, short
from elf.srt.messages import (
    Ballot,
    Bundle,
    BundleId,
    Commit,
    Control,
    Farewell,
    Goodbye,
    Hello,
    LedgerTell,
    Line,
    Message,
    Micros,
    Put,
    PutTell,
    Slot,
    Split,
    Welcome,
)
from elf.srt.parameters import Parameters
from elf.srt.sizes import bundle_bytes

SPLIT_POSITIONS_MAX = 64
"""A Split tells so many positions of files that do fit as well, where only the schedule is wrong: a lone worker needs them."""

ROOM_KEPT = 16
"""Entries that bundles, windows and workers leave to changes of the job and to retention."""

Answer = Callable[..., None]


class Master:
    """Serves one job under `ballot`.

    propose: puts an entry into the log and returns its index; it counts when it comes back through `committed`. room: how many
    more may be proposed now; without room bundles wait, and the rest is taken up again later. sinks: durable ones, which keep a
    ledger. Every public method takes the node's clock and returns effects; `fence` is a higher ballot that a
    sink told: the node must step down.
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
    ) -> None:
        self.spec, self.state, self.ballot, self.parameters = spec, state, ballot, parameters
        self.job = state.job
        self.is_watched = False  # whether `take_published` is read
        self.ahead = Positions.of(state.positions.snapshot())
        self.parking = Parking(parameters.park_bytes_max, parameters.park_us)
        self.outbox = Outbox(self.job, ballot, sinks, parameters, self._again)
        self.publication = Publication(
            state, ballot, parameters, budget, lateness_us=spec.lateness_us, keep_us=spec.keep_us
        )
        self._propose, self._room = propose, room
        self._proposed = self._committed = state.index
        self._answers: deque[tuple[int, Answer, tuple[Any, ...]]] = deque()
        self._commits: dict[NodeId, list[BundleId]] = {}
        self._out: list[Effect] = []
        self._multicast: list[Control] = []
        self._published: list[Window] = []
        self._reported: set[NodeId] = set()
        members = state.positions.roster.items()
        self._known = {
            worker for worker, member in members if member.until_us == AFTER_ALL or member.has_left
        }
        self._control_index = 0  # a CONTROL that is proposed and not committed, or 0
        self._is_new = False
        self._spec_rank: SpecRank = state.spec
        self._emit_at: int | None = None
        self._repeat_at: int | None = None
        self._forget_at: int | None = None
        self._wanted: dict[NodeId, Micros] = {}  # expected from then on; not proposed yet
        self._asked: dict[NodeId, Hello] = {}  # the last one of each worker that waits for the log
        self._sizes: deque[tuple[int, int]] = (
            deque()
        )  # (index, bytes) of bundles that are proposed and not committed
        self._proposed_bytes = 0
        self._silence = Silence(parameters.forget_us)

    # ---- beginning ----

    def begin(self, now: int) -> list[Effect]:
        """The first call: a log that is empty begins, sinks are asked, and what the log holds is looked at."""
        if not self.state.schedule:
            self._is_new = True
            self._enter(first_entry(self.spec, self.ballot, now))
        self._enter(Serve(self.ballot))
        self._spec_rank = max(self._spec_rank, rank_of(self.spec))
        if self._is_due():
            self._control(now)
        self._forget_at = now + self._silence.look_us
        self.publication.resume()
        self._look_again(now)
        return self._end(now)

    # ---- the log ----

    def _enter(self, entry: AnyEntry) -> int:
        self._proposed = self._propose(entry)
        self.ahead.apply(entry)
        return self._proposed

    def _has_room(self) -> bool:
        """Whether the log takes more: replicas that are slow make bundles wait."""
        return self._room() > ROOM_KEPT and self._proposed_bytes <= self.parameters.park_bytes_max

    def after_log(self, answer: Answer, *about: Any) -> None:
        """Rule 6*: nothing is acknowledged, multicast or published before all that is proposed by now is in the log."""
        if self._proposed <= self._committed:
            answer(*about)
        else:
            self._answers.append((self._proposed, answer, about))

    def committed(self, entries: Iterable[tuple[int, AnyEntry]], now: int) -> list[Effect]:
        """These entries are in the log, held by every replica: they count, in their order."""
        for index, entry in entries:
            if index > self.state.index:
                self.state.apply(index, entry)
            self._committed = index
            self._follow(index, entry)
            while self._sizes and self._sizes[0][0] <= index:
                self._proposed_bytes -= self._sizes.popleft()[1]
            while self._answers and self._answers[0][0] <= index:
                _, answer, about = self._answers.popleft()
                answer(*about)
        self._take_up(now)
        return self._end(now)

    def _take_up(self, now: int) -> None:
        """What had no room in the log, or waited for an entry."""
        self._add_wanted()
        if self._is_due():
            self._control(now)
        self._retry_parked(now)
        self._look_again(now)

    def _follow(self, index: int, entry: AnyEntry) -> None:
        """What the master itself draws from an entry."""
        if isinstance(entry, Accept):
            self.publication.accepted(index, entry)
            if len(self._reported) < len(self._known):
                self._reported.update(slot[0] for slot in entry.contributions)
        elif isinstance(entry, Final):
            ready = self.publication.committed(entry)
            if ready is not None:
                self._publish(ready)
        elif isinstance(entry, ControlEntry):
            self._control_index = 0 if index >= self._control_index else self._control_index
            self.publication.schedule_changed(index)
        elif isinstance(entry, Retire):
            self.publication.retired()
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
        if fit is Fit.BEHIND:
            self.after_log(self._commit, child, bundle.id)
        elif fit is Fit.MIXED:
            self._split(child, bundle, self.ahead.misfits(bundle.contributions))
        elif not self._is_sound(bundle) or not self.ahead.rows_belong(bundle.schedule, bundle.parts):
            self._split(child, bundle, list(bundle.contributions)[:SPLIT_POSITIONS_MAX])
        elif fit is Fit.FITS and self._has_room():
            self._accept(child, bundle)
            return True
        elif not self.parking.put(child, bundle, now):
            self._split(child, bundle, self.ahead.misfits(bundle.contributions))
        return False

    def _is_sound(self, bundle: Bundle) -> bool:
        """Rows of another shape than their version's would spoil the panes of all."""
        for version, part in bundle.parts.items():
            panes = self.state.panes.get(version)
            if panes is None or part.ops != tuple(panes.ops) or len(part.rows) != len(panes.ops):
                return False
        return True

    def _accept(self, child: NodeId, bundle: Bundle) -> None:
        self._expect(bundle.contributions)
        parts = {version: part for version, part in bundle.parts.items() if len(part.rows[1])}
        index = self._enter(
            Accept(
                bundle.schedule,
                bundle.contributions,
                bundle.watermark,
                bundle.lagging,
                parts,
                self.promises(bundle),
            )
        )
        self._sizes.append((index, bundle_bytes(bundle)))
        self._proposed_bytes += self._sizes[-1][1]
        self.after_log(self._commit, child, bundle.id)

    def promises(self, bundle: Bundle) -> bool:
        """Rule 2*: a watermark counts only inside a contribution that names every file of the worker which this master may lack:
        what was cut under another master leaves out those that one has committed to their ends."""
        return bundle.ballot == self.ballot

    def _expect(self, contributions: Iterable[Slot]) -> None:
        """Who reports without having been advertised, or after it was forgotten, is expected from here on."""
        known = self._known
        for worker, _, _ in contributions:
            if worker not in known:
                self._want(worker, max(self.state.front_us, self.ahead.since_us))
        self._add_wanted()

    def _want(self, worker: NodeId, from_us: Micros) -> None:
        self._known.add(worker)
        self._wanted[worker] = from_us

    def _add_wanted(self) -> None:
        """ADD, for all at once that are expected from the same time on."""
        while self._wanted and self._has_room():
            from_us = min(self._wanted.values())
            workers = [worker for worker, since in self._wanted.items() if since == from_us]
            self._enter(Add(tuple(workers), from_us))
            for worker in workers:
                del self._wanted[worker]

    def _retry_parked(self, now: int) -> None:
        """Positions moved: what waited may fit now, and what fits may let others fit."""
        moved = True
        while moved and len(self.parking):
            moved = False
            for parked in self.parking:
                fit = self.ahead.judge(parked.bundle.contributions)
                if fit is not Fit.AHEAD and (fit is not Fit.FITS or self._has_room()):
                    self.parking.take(parked.bundle.id)
                    moved |= self._judge(parked.child, parked.bundle, now)

    def _commit(self, child: NodeId, bundle_id: BundleId) -> None:
        self._commits.setdefault(child, []).append(bundle_id)

    def _split(self, child: NodeId, bundle: Bundle, slots: Sequence[Slot]) -> None:
        self.after_log(self._tell_split, child, bundle, slots)

    def _tell_split(self, child: NodeId, bundle: Bundle, slots: Sequence[Slot]) -> None:
        """A worker that goes on in the middle of a file which the log does not know is told no position at all, so that it asks:
        of a slot that is not named it would think that it fits."""
        state = self.state.positions
        at = [(slot, position) for slot in slots if (position := state.position(slot)) is not None]
        unknown = [slot for slot in slots if state.position(slot) is None]
        lost = {slot[0] for slot in unknown if state.place(slot, bundle.contributions[slot]) is Place.AHEAD}
        told = tuple((slot, position) for slot, position in at if slot[0] not in lost)
        self._out.append(Post(child, Split(self.job, self.ballot, bundle.id, state.schedule, told)))

    # ---- workers ----

    def hello(self, message: Hello, now: int) -> list[Effect]:
        """A worker asks where to go on."""
        if message.worker not in self._known:
            self._want(message.worker, self._expected_from(now))
            self._add_wanted()
        if message.worker not in self._wanted:
            waits = message.worker in self._asked
            self._asked[message.worker] = message
            if not waits:
                self.after_log(self._welcome, message.worker)
        return self._end(now)

    def _welcome(self, worker: NodeId) -> None:
        """Files that the log does not know begin with the oldest retained pane: what is before that cannot count."""
        message, positions = self._asked.pop(worker), self.state.positions
        lane = positions.lane
        ends = positions.lane_ends_of(worker)
        lanes = ((lane.number, lane.from_us),) if lane is not None and ends else ()
        self._out.append(
            Send(
                worker,
                Welcome(
                    self.job,
                    self.ballot,
                    message.incarnation,
                    positions.schedule,
                    positions.retained_us,
                    positions.files_of(worker),
                    lanes,
                    ends,
                ),
            )
        )

    def has_all_of(self, message: Goodbye) -> bool:
        """Whether it was this master that committed the last line of a worker which leaves."""
        return message.ballot == self.ballot

    def goodbye(self, message: Goodbye, now: int) -> list[Effect]:
        """A worker leaves, its last line committed. If that was by another master, whose log may have been another, it is told
        from where on to read to the end once more."""
        if not self.has_all_of(message):
            return self.hello(Hello(message.job, message.worker, message.incarnation), now)
        member = self.ahead.roster.get(message.worker)
        if member is not None and member.until_us == AFTER_ALL:
            if not self._has_room():
                return self._end(now)  # it says so again
            self._enter(Left(message.worker, message.until_us))
        self.after_log(self._farewell, message.worker)
        return self._end(now)

    def _farewell(self, worker: NodeId) -> None:
        self._out.append(Send(worker, Farewell(self.job, worker)))

    def adverts(self, adverts: Iterable[tuple[NodeId, AgentAdvert]], now: int) -> list[Effect]:
        """Rule Roster*: expected is who advertises the source in the directory, whether or not it has reported."""
        for worker, advert in adverts:
            if self.spec.source not in advert.sources:
                continue
            if advert.until_us:
                self._note_gone(worker, advert)
            elif self._is_new_life(worker, advert):
                self._want(worker, self._expected_from(advert.since_us))
        self._add_wanted()
        return self._end(now)

    def _note_gone(self, worker: NodeId, advert: AgentAdvert) -> None:
        """Rule 8: who left while another log was served is missing in this one, and its windows say so."""
        member = self.ahead.roster.get(worker)
        is_here = member is not None and member.until_us == AFTER_ALL
        was_never = member is None and advert.until_us > self.ahead.retained_us
        if (is_here or was_never) and self._room() > 0:
            self._wanted.pop(worker, None)
            self._known.add(worker)
            self._enter(Gone(worker, self.ahead.since_us, advert.until_us))

    def _is_new_life(self, worker: NodeId, advert: AgentAdvert) -> bool:
        member = self.ahead.roster.get(worker)
        if worker in self._wanted:
            return False
        return member is None or (member.until_us != AFTER_ALL and advert.since_us >= member.until_us)

    def _expected_from(self, since_us: Micros) -> Micros:
        """A log that begins anew does not know who was there before: everybody is expected from its beginning."""
        return self.ahead.since_us if self._is_new else max(self.ahead.since_us, since_us)

    def forget(self, worker: NodeId, now: int) -> list[Effect]:
        """The operator says that a worker will not come back."""
        member = self.ahead.roster.get(worker)
        if member is not None and member.until_us == AFTER_ALL:
            self._forget(worker)
        return self._end(now)

    def _forget(self, worker: NodeId) -> None:
        self._known.discard(worker)
        self._reported.discard(worker)
        mark = self.state.watermarks.get(worker)
        self._enter(Forget(worker, self.ahead.roster[worker].from_us if mark is None else mark))

    def _forget_silent(self, now: int) -> None:
        """Rule "Windows": who was silent for `forget_us` is expected no more."""
        self._forget_at = now + self._silence.look_us
        for worker in list(self._silence.look(self.ahead.roster, self.state.watermarks, now)):
            if self._has_room():
                self._out.append(Notice("forgotten", f"{short(worker)} was silent and is forgotten", worker))
                self._forget(worker)

    # ---- changes of the job ----

    def spec_changed(self, spec: JobSpec, now: int) -> list[Effect]:
        """The directory has another spec: maybe with a version that is not in force yet."""
        rank = rank_of(spec)
        if rank <= self._spec_rank:
            return self._end(now)
        self._spec_rank, self.spec = rank, spec
        self.publication.lateness_us, self.publication.keep_us = spec.lateness_us, spec.keep_us
        if self._is_due():
            self._control(now)
        return self._end(now)

    def _is_due(self) -> bool:
        """Whether the spec's last version is to come into force, and the log can take it. One change at a time."""
        last = self.spec.versions[-1].digest
        has_come = last == self.ahead.schedule[-1].version
        is_ready = bool(self.state.schedule) and not self._control_index and self._room() > 0
        return is_ready and not has_come and self._spec_rank > self.state.spec

    def _control(self, now: int) -> None:
        """Propose the line and its lane."""
        last, retained = self.spec.versions[-1], self.ahead.retained_us
        line_us = max(self._line_us(now), retained + 1)
        number = next_number(self.ballot, self.ahead.schedule)
        lane_us = lane_from(self.ahead.schedule, self.ahead.shapes, self.reread_from(line_us))
        line = Line(number, last.digest, line_us, last.plan)
        self._control_index = self._enter(ControlEntry(line, lane_us, self._spec_rank))
        self.announce()

    def reread_from(self, line_us: Micros) -> Micros:
        """Rule Lane*: where a lane is open, the new one covers it too, for it is cut anew."""
        return line_us if self.ahead.lane is None else min(line_us, self.ahead.lane.from_us)

    def announce(self) -> None:
        """CONTROL*: the line is in the log before anybody hears of it."""
        self.after_log(self._tell_control)

    def _line_us(self, now: int) -> Micros:
        """Where the new version begins, by the spec's mode."""
        spec = self.spec
        at = spec.line_us or now
        if spec.mode == "restate":
            return self.publication.oldest_open(at)
        if spec.mode == "next":
            return next_boundary((self.ahead.schedule[-1].plan, spec.versions[-1].plan), at)
        return at

    def _tell_control(self) -> None:
        """Now, and again while workers have lines to read again: an idle one may not have heard."""
        lane = self.state.positions.lane
        self._multicast.append(
            Control(self.job, self.ballot, self.state.schedule, lane.from_us if lane is not None else 0)
        )

    def take_multicast(self) -> list[Control]:
        """Messages for the tree's multicast, once each."""
        out, self._multicast = self._multicast, []
        return out

    # ---- windows ----

    def _look_again(self, now: int) -> None:
        """There may be windows to publish at the next emit interval."""
        soon = now + self.parameters.emit_us
        if self.publication.has_work and (self._emit_at is None or self._emit_at > soon):
            self._emit_at = soon

    def _emit(self, now: int) -> None:
        self._emit_at = None
        if not self._control_index and self._has_room():
            self.publication.is_told = self.outbox.is_told
            due, opened = self.publication.emit(now, self.has_majority(), self._room() - ROOM_KEPT)
            for ready in opened:
                self._publish_open(ready)
            for ready in due:
                self.log_final(ready)
            if self._room() > 0:
                self._retire()
        self._look_again(now)

    def log_final(self, ready: Ready) -> None:
        """Windows*: FINAL is replicated before it is published; `committed` does that."""
        self._enter(ready.entry)

    def has_majority(self) -> bool:
        """Windows*: only who was reported to by more than half of the roster, under this ballot, may close with less than all."""
        members = self.state.positions.roster
        active = [worker for worker, member in members.items() if member.until_us == AFTER_ALL]
        heard = sum(1 for worker in active if worker in self._reported)
        return 2 * heard > len(active)

    def _publish(self, ready: Ready) -> None:
        self.outbox.put(self.publication.as_put(self.job, ready))
        if self.is_watched:
            self._published.append(self.publication.as_window(ready))

    def _publish_open(self, ready: Ready) -> None:
        self._out += self.outbox.open(self.publication.as_put(self.job, ready))
        if self.is_watched:
            self._published.append(self.publication.as_window(ready))

    def take_published(self) -> list[Window]:
        """Windows for the watcher on this node, in order, once each."""
        out, self._published = self._published, []
        return out

    def _retire(self) -> None:
        """Retention in steps of a sixteenth: an entry for each pane would be as dear as the panes."""
        before = self.publication.retire_at()
        if before is not None and before >= self.ahead.retained_us + self.spec.keep_us // 16 + 1:
            self._enter(Retire(before))

    # ---- sinks ----

    def serve_sinks(self, sinks: Sequence[NodeId], now: int) -> list[Effect]:
        """The durable sinks of the present spec: a new one is asked for its ledger at once."""
        self.outbox.serve(sinks)
        return self._end(now)

    def _again(self, key: WindowKey, status: str) -> Put | None:
        """A window for the outbox, which did not keep its rows."""
        ready = self.publication.again(key, status)
        return self.publication.as_put(self.job, ready) if ready is not None else None

    def ledger_told(self, source: NodeId, message: LedgerTell, now: int) -> list[Effect]:
        """A sink answers with what it holds."""
        entries = self.outbox.told(source, message)
        if entries is not None:
            self.after_log(self.publication.ledger_told, entries, self.outbox.is_late(source))
        self._look_again(now)
        return self._end(now)

    def put_told(self, source: NodeId, message: PutTell, now: int) -> list[Effect]:
        """A sink acknowledges a window, or refuses this master."""
        self.outbox.acknowledged(source, message)
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
        return []

    def tick(self, now: int) -> list[Effect]:
        """What time brings: windows, parked bundles that waited too long, repetitions."""
        for parked in self.parking.expired(now):
            self._split(parked.child, parked.bundle, self.ahead.misfits(parked.bundle.contributions))
        if self._is_time(self._emit_at, now, self.parameters.emit_us):
            self._emit(now)
        if self.state.positions.lane is None:
            self._repeat_at = None
        elif self._is_time(self._repeat_at, now, self.parameters.ask_us_max) or self._repeat_at is None:
            if self._repeat_at is not None:
                self._tell_control()
            self._repeat_at = now + self.parameters.ask_us_max
        if self._is_time(self._forget_at, now, self._silence.look_us):
            self._forget_silent(now)
        self._add_wanted()
        return self._end(now)

    def _is_time(self, at: int | None, now: int, span: int) -> bool:
        """Whether `at` has come; or the clock went back, and it would be further away than it can be."""
        return at is not None and (now >= at or at > now + span)

    @property
    def deadline(self) -> int | None:
        """When `tick` has work next."""
        times = [
            self._emit_at,
            self._repeat_at,
            self._forget_at,
            self.parking.deadline,
            self.outbox.deadline(),
        ]
        if self._repeat_at is None and self.state.positions.lane is not None:
            times.append(0)
        return min((time for time in times if time is not None), default=None)

    def check(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        self.state.check()
        self.ahead.check()
        self.parking.check()
        self.publication.check()
        assert self._committed <= self._proposed
        indices = [index for index, _, _ in self._answers]
        assert indices == sorted(indices)
        if self._committed == self._proposed:
            assert self.ahead.snapshot() == self.state.positions.snapshot()
