"""The seats of a node, each behind a guard: the failure of one job affects only that job, and only at this node.

In one sentence: every call of a seat goes through `_call`. A call that raises ends the seat, like a crash of this job at this
node: a vacancy takes its place, until a new seat starts from what the disk holds.

    what happens                          | what follows
    --------------------------------------+----------------------------------------------------------------------------------
    a call of a seat raises               | its effects are dropped; those of earlier calls stay, also those that wait for a
                                          | write. Neighbours get `Away`, on links that stay up; the seat is emptied
    encoding one of its messages raises   | the same, at the end of the node's call; on that link no message of the job goes
                                          | before `Away`, and none of other jobs is lost. The same holds for datagrams
    a message for a vacant job            | dropped; its sender gets `Away`, once
    a vacancy's wait is over              | once all writes of the job are durable, they are read back, and a new seat starts
                                          | with them, in the same life, with higher numbers. Neighbours get `Away(False)`
    the job has changed meanwhile         | the node tries to start it at once
    the job was stopped                   | an empty seat takes the place, and the job's log on the disk is dropped
    a seat follows one that had ended     | neighbours whose messages the ended one dropped get `Away(False)`, and send again
    `Away` comes from a neighbour         | the seat treats the link as reset; the neighbour is no replica or child any more

The node stays responsible for the job meanwhile, and no other node takes over: a bug would only move from agent to agent. So
`Away` of a node that is closer to the job does not change which node serves it.

Records are encoded here, within the guard. Exceptions of overlay, directory, links, or of the node itself are not caught: they
end the process.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from elf.agent.node.abilities import Abilities
from elf.agent.node.job_seat import JobSeat
from elf.agent.node.job_sinks import SinkOf, Taking
from elf.agent.node.linked_node import LinkedNode, Outer, Standing, is_for_disk
from elf.agent.node.neighbours import Neighbours
from elf.agent.node.timers import Timed
from elf.agent.node.vacancy import Phase, Vacancy
from elf.cbt.budget import Budget
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.job_items import JobItems
from elf.jobmaster.directory.job_spec import JobSpec, decode_job, over_item
from elf.jobmaster.directory.limits import LIMIT, LimitPassed, Limits, Over
from elf.jobmaster.log.job_log import Base, More, Promise
from elf.jobmaster.log.record_codec import RecordEncoder
from elf.jobmaster.log.succession import OF_LOGS
from elf.srt.codec.wire import LogForm
from elf.srt.messages import messages as m
from elf.srt.messages.effects import Effect, Notice, Post, Recall, Write
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Contact, Item
from elf.srt.messages.parameters import Parameters
from elf.srt.messages.reports import Failing
from elf.srt.overlay.overlay import Overlay

if TYPE_CHECKING:
    from random import Random

Records = Mapping[tuple[str, bytes], Sequence[Any]]

FAILING = "failing"
"""Kind of the notice about a job that fails here."""
FAILING_MAX = 100
"""Failing jobs in one status report."""


class SeatedNode(LinkedNode):
    """Base of `elf.agent.node.mesh_node.MeshNode`, above its links; see there for the arguments."""

    name: str
    overlay: Overlay
    directory: Directory
    abilities: Abilities
    sources: tuple[str, ...]

    def __init__(
        self,
        me: Contact,
        parameters: Parameters,
        rng: Random,
        *,
        budget: Budget,
        sink_of: SinkOf | None,
        stores_states: bool,
        coded: LogForm | None,
        has_room: Callable[[NodeId], bool],
        encoder: RecordEncoder | None,
        sign: Callable[[Item], Item],
        caps: Limits,
    ) -> None:
        super().__init__(me, parameters, coded, has_room)
        self.seats: dict[JobId, JobSeat] = {}
        self.vacancies: dict[JobId, Vacancy] = {}
        """Jobs that failed here recently, with or without a seat now."""
        self.failures: Counter[str] = Counter()
        """Counts in this life, by job name."""
        self.make_seat: Callable[..., JobSeat] = JobSeat
        self.seat_failed: Callable[[Exception, bool], None] = lambda error, is_news: None
        """Called with each exception of a seat, and whether its reason differs from the last one of that job."""
        self.served_anew: Callable[[JobId], None] = lambda job: None
        """Called as soon as this node learns that another master serves the job; it must not call this node."""
        self.charge: Callable[[JobId | None], JobId | None] = lambda job: None
        """Called where work for a job begins, with the job, and where it ends, with the answer to the former call."""
        self._rng, self._sign = rng, sign
        self._budget, self._sink_of, self._caps = budget, sink_of, caps
        self._taking: Taking | None = None
        self._stores_states = stores_states  # sinks of this mesh take the states of panes
        self._encoder = encoder
        self._joined = False
        self._watched: dict[JobId, tuple[NodeId, ...]] = {}  # parents in trees, and nodes of a master's sinks
        self._ballots: dict[JobId, m.Ballot] = {}  # of each job's master, as the tree reports it
        self._revoked: set[NodeId] = set()  # revoked agents: at most one for each revocation
        self._neighbours = Neighbours(me.id)
        self._dropped: dict[JobId, set[NodeId]] = {}  # neighbours whose messages a stopped job's seat dropped

    @abstractmethod
    def _seat_opened(self, seat: JobSeat, now: int, out: list[Outer]) -> None:
        """A job has a new seat."""

    @abstractmethod
    def _directory_changed(self, now: int, out: list[Outer]) -> None:
        """The directory has new items."""

    # The guard.

    def _call(
        self,
        seat: JobSeat,
        now: int,
        out: list[Outer],
        do: Callable[..., list[Effect]],
        *about: Any,
        source: NodeId | None = None,
    ) -> None:
        """Call a seat, perform its effects, and apply its changes. source: the sender, if the call is about a message."""
        if self.seats.get(seat.job) is not seat:
            return
        former = self.charge(seat.job)
        try:
            self._guarded(seat, now, out, do, *about, source=source)
        finally:
            self.charge(former)

    def _guarded(
        self,
        seat: JobSeat,
        now: int,
        out: list[Outer],
        do: Callable[..., list[Effect]],
        *about: Any,
        source: NodeId | None,
    ) -> None:
        try:
            effects = self._ready(seat.job, do(*about))
        except Exception as error:
            self._failed(seat.spec, error, now, out, source)
            return
        self._do(effects, now, out, seat.job)
        self._seat_changed(seat, now, out, source)

    def _ready(self, job: JobId, effects: list[Effect]) -> list[Effect]:
        """Rule Seats*: a call returns all its effects, and its records are encoded, before any of them is performed."""
        if not effects:
            return effects
        if self.standing is Standing.OUT:
            effects = [effect for effect in effects if not is_for_disk(effect)]
        if self._encoder is None:
            return effects
        encode = self._encoder.encode
        return [replace(each, encoded=encode(each)) if type(each) is Write else each for each in effects]

    def _seat_changed(self, seat: JobSeat, now: int, out: list[Outer], source: NodeId | None = None) -> None:
        """Pass changes of one core to the others of its seat, and to the node."""
        while self.seats.get(seat.job) is seat:
            try:
                settled = seat.settle(now)
                effects = self._ready(seat.job, settled)
                if not settled:
                    items, tree = seat.take_items() if seat.is_stirred else [], seat.tree
                    for core in seat.take_stirred():
                        self._timers.watch(core, seat)
                    break
            except Exception as error:
                self._failed(seat.spec, error, now, out, source)
                return
            self._do(effects, now, out, seat.job)
        else:
            return
        for item in items:
            is_operators = item.kind == "job"
            self.directory.put(item if is_operators else self._sign(item), now)
            self._timers.watch(self.directory)
            if is_operators:
                self._directory_changed(now, out)
        if tree.place.ballot != self._ballots.get(seat.job, m.NO_BALLOT):
            self._ballots[seat.job] = tree.place.ballot
            self.served_anew(seat.job)
        watched: tuple[NodeId, ...] = () if tree.parent is None else (tree.parent,)
        if seat.master is not None:
            watched += seat.sinks.moving
        if watched != self._watched.get(seat.job, ()):
            self._watch(seat.job, watched)

    def _each_seat(self) -> Iterator[JobSeat]:
        """The present seats, without those that fail meanwhile."""
        for seat in list(self.seats.values()):
            if self.seats.get(seat.job) is seat:
                yield seat

    def _due(self, now: int, out: list[Outer]) -> list[tuple[Timed, object]]:
        """Cores whose deadline has come. Where computing the deadline of a seat's core raises, that seat fails, and all are
        checked again."""
        try:
            return self._timers.due(now)
        except Exception:
            if not self._fail_faulty_deadlines(now, out):
                raise
        for core in self._unseated():
            self._timers.watch(core)
        return self._timers.due(now)

    def _refresh(self, now: int, out: list[Outer]) -> None:
        """Update the timers for deadlines that have moved later."""
        try:
            self._timers.refresh()
        except Exception:
            if not self._fail_faulty_deadlines(now, out):
                raise

    @abstractmethod
    def _unseated(self) -> list[Timed]:
        """Cores that belong to no seat."""

    def _fail_faulty_deadlines(self, now: int, out: list[Outer]) -> bool:
        """Fail the seats whose deadline raises. Returns whether there was one."""
        found = False
        for seat in self._each_seat():
            try:
                for core in seat.cores:
                    self._timers.watch(core, seat)
            except Exception as error:
                found = True
                self._failed(seat.spec, error, now, out)
        return found

    # Failures.

    def _failed(
        self, spec: JobSpec, error: Exception, now: int, out: list[Outer], source: NodeId | None = None
    ) -> None:
        """A job's seat has failed: its state may be half changed, so it is not called any more."""
        job, seat = spec.id, self.seats.pop(spec.id, None)
        vacancy = self.vacancies.get(job)
        if vacancy is None:
            p = self.parameters
            vacancy = self.vacancies[job] = Vacancy(spec, p.seat_retry_us, p.seat_retry_us_max)
        vacancy.spec = spec
        self.failures[spec.name] += 1
        is_news = vacancy.failed(error, now, source if source != self.id else None)
        if seat is not None:
            self._release(seat)
            vacancy.former = seat
        if self._encoder is not None:
            self._encoder.lost(("log", job))
        self._watch(job, ())
        self._timers.watch(vacancy)
        self._announce_away(vacancy, now, out)
        if is_news:
            out.append(Notice(FAILING, vacancy.described(error, now)))
        self.seat_failed(error, is_news)
        if spec.trial is not None and isinstance(error, LimitPassed):
            self._end_trial(spec, Over(self.name, vacancy.reason), now, out)

    def _end_trial(self, spec: JobSpec, over: Over, now: int, out: list[Outer]) -> None:
        """End a trial at all nodes, with the present version that runs beside it."""
        for item in list(self.directory.items("job")):
            beside = decode_job(item)
            if beside.trial == spec.trial:
                self.directory.put(self._sign(over_item(beside, over)), now)
        self._timers.watch(self.directory)
        self._directory_changed(now, out)

    def over_limit(self, job: JobId, reason: str, now: int) -> list[Outer]:
        """The host has measured that a job costs more than its limits allow: it fails here."""
        out: list[Outer] = []
        seat = self.seats.get(job)
        if seat is not None and not seat.is_stopped:
            self._failed(seat.spec, LimitPassed(f"{LIMIT}{reason}"), now, out)
        return self._end(now, out)

    def _fail_unsent(self, now: int, out: list[Outer]) -> None:
        """Fail the seats whose messages could not be encoded. Their other effects are performed, before `Away`."""
        while self._unsent:
            job, error = self._unsent.popitem()
            seat, vacancy = self.seats.get(job), self.vacancies.get(job)
            if seat is None and vacancy is None:
                raise error
            self._failed(seat.spec if seat is not None else vacancy.spec, error, now, out)  # type: ignore[union-attr]

    def _release(self, seat: JobSeat) -> None:
        for core in seat.cores:
            self._timers.forget(core)
        try:
            seat.empty()
        except Exception as error:  # it may be broken in any way
            self.seat_failed(error, True)

    def _announce_away(self, vacancy: Vacancy, now: int, out: list[Outer]) -> None:
        """Send `Away` to all neighbours with a link, after the effects of earlier calls of the seat."""
        peers = [peer for peer in self.links if peer not in vacancy.knows]
        vacancy.notified(peers)
        job = vacancy.spec.id
        self._do([Post(peer, m.Away(job, True)) for peer in peers], now, out, job)

    def _for_vacancy(self, vacancy: Vacancy, source: NodeId, now: int, out: list[Outer]) -> None:
        """Notify the sender of a message for a vacant job, so that it does not wait."""
        if source in self.links and source not in vacancy.knows:
            vacancy.notified([source])
            self._do([Post(source, m.Away(vacancy.spec.id, True))], now, out, vacancy.spec.id)

    # Restarting.

    def _vacancy_due(self, vacancy: Vacancy, now: int, out: list[Outer]) -> None:
        job = vacancy.spec.id
        if self.vacancies.get(job) is not vacancy or vacancy.deadline is None:
            return
        if vacancy.phase is Phase.SEATED:
            self._recovered(vacancy, now, out)
            return
        if self.standing is Standing.IN and self._is_written(job):
            vacancy.read()
            out.append(Recall(job))
        else:
            vacancy.put_off(now, self.parameters.ask_us)
            self._timers.watch(vacancy)

    def _is_written(self, job: JobId) -> bool:
        """Rule Seats*: a new seat starts with all that the former one wrote."""
        return job not in self._barrier.last

    def _recovered(self, vacancy: Vacancy, now: int, out: list[Outer]) -> None:
        """The job has run for `seat_retry_us_max` without a failure: forget its failures."""
        del self.vacancies[vacancy.spec.id]
        self._forgive(vacancy, now, out)
        span_s = self.parameters.seat_retry_us_max / 1e6
        out.append(Notice(FAILING, f"job {vacancy.spec.name} has run for {span_s:.0f} s without a failure"))

    def _forgive(self, vacancy: Vacancy, now: int, out: list[Outer]) -> None:
        """Accept messages of refused neighbours again."""
        peers, job = vacancy.forgive(), vacancy.spec.id
        self._do([Post(peer, m.Away(job, False)) for peer in peers], now, out, job)
        seat = self.seats.get(job)
        if peers and seat is not None:
            for peer in peers:
                self._call(seat, now, out, seat.link_reset, peer, now)
            self._closest(seat, now, out)

    def not_encoded(self, job: JobId, error: Exception, now: int) -> list[Outer]:
        """A datagram of the job could not be encoded."""
        self._unsent.setdefault(job, error)
        return self._end(now, [])

    def recalled(self, job: JobId, records: Records | Exception, now: int) -> list[Outer]:
        """The answer to a `Recall`: the job's records on the disk, or why they cannot be read."""
        out: list[Outer] = []
        vacancy = self.vacancies.get(job)
        if vacancy is not None and vacancy.phase is Phase.READING:
            item = self.directory.get("job", job)
            spec = decode_job(item) if item is not None else vacancy.spec
            if isinstance(records, Exception):
                self._failed(spec, records, now, out)
            else:
                self._open(spec, records, now, out)
                self._vacant_changed(now, out)  # the job may have ended meanwhile
        return self._end(now, out)

    @abstractmethod
    def _end(self, now: int, out: list[Outer]) -> list[Outer]:
        """A call of the node ends."""

    def _open(self, spec: JobSpec, records: Records, now: int, out: list[Outer]) -> None:
        """Create a seat for that job, with its records on the disk."""
        vacancy = self.vacancies.get(spec.id)
        former = self.seats.get(spec.id)
        if vacancy is not None and vacancy.is_vacant:
            former = vacancy.former
        seat: JobSeat | None = None
        self._taking = self._taking or Taking(self.directory, self._neighbours.is_dead)
        try:
            seat = self.make_seat(
                spec,
                self.id,
                self.life,
                self.parameters,
                self._rng,
                self.directory,
                instance=self.instance,
                works=spec.takes(self.name, self.sources),
                is_able=self.abilities.is_able,
                budget=self._budget,
                sink_of=self._sink_of,
                taking=self._taking,
                stores_states=self._stores_states,
                has_credit=self._has_credit,
                former=former,
                revoked=self._revoked,
                ended=self._neighbours.ended.keys(),
                caps=self._caps,
            )
            if vacancy is not None:
                seat.succession.restore([Promise(vacancy.promise)])
            seat.restore(records)
            effects = self._ready(spec.id, seat.start(now))
        except Exception as error:
            if seat is not None:
                self._release(seat)
            self._failed(spec, error, now, out)
            self.vacancies[spec.id].promise = promised(spec.id, records)
            return
        self.seats[spec.id] = seat
        if vacancy is not None:
            self._seated_again(vacancy, now, out)
        self._do(effects, now, out, spec.id)
        self._seat_changed(seat, now, out)
        self._closest(seat, now, out)
        self._seat_opened(seat, now, out)

    def _seated_again(self, vacancy: Vacancy, now: int, out: list[Outer]) -> None:
        """Send `Away(False)` first on each link: the messages after it are for the new seat."""
        job = vacancy.spec.id
        peers = vacancy.seated(now)
        self._timers.watch(vacancy)
        known = {*self.links, *self.overlay.acquaintances()}
        self._do([Post(peer, m.Away(job, False)) for peer in peers if peer in known], now, out, job)

    def _has_ended(self, spec: JobSpec, now: int) -> bool:
        return JobItems(self.directory, spec.id).has_ended(spec, now)

    def _vacant_changed(self, now: int, out: list[Outer]) -> None:
        """Jobs without a seat may have changed or ended in the directory."""
        for vacancy in list(self.vacancies.values()):
            item = self.directory.get("job", vacancy.spec.id)
            spec = decode_job(item) if item is not None else vacancy.spec
            if item is None or self._has_ended(spec, now):
                if vacancy.is_vacant:
                    self._open(spec, {}, now, out)
                if not vacancy.is_vacant:
                    self._forgive(vacancy, now, out)
                    del self.vacancies[spec.id]
            elif spec.encode() != vacancy.spec.encode():
                self._forgive(vacancy, now, out)
                vacancy.hurry(spec, now)
                self._timers.watch(vacancy)

    # Neighbours.

    def _heard_away(self, source: NodeId, message: m.Away, now: int, out: list[Outer]) -> None:
        """A neighbour's seat of that job has failed or started again: treat the link as reset, for this job."""
        self._neighbours.heard_away(message.job, source, message.away)
        seat = self.seats.get(message.job)
        if seat is not None and not seat.is_stopped:
            self._call(seat, now, out, seat.link_reset, source, now)
            self._closest(seat, now, out)

    def _closest(self, seat: JobSeat, now: int, out: list[Outer]) -> None:
        """Report to a seat whether this node is the closest. A node that has not joined owns no key, and reports nothing;
        otherwise it would restart jobs that others serve."""
        if not self._joined or self.is_aside or self.seats.get(seat.job) is not seat:
            return
        nearest = self.overlay.closest(seat.job, self.parameters.leaves + 1)
        unable = self.abilities.note_unable(seat.spec, nearest)
        neighbours = [node for node in nearest if node != self.id and node not in unable]
        vacancy = self.vacancies.get(seat.job)
        if vacancy is not None or self._neighbours.are_away(seat.job):
            refused = vacancy.refused if vacancy is not None else ()
            may_hold_log = partial(self._neighbours.may_hold_log, seat.job, refused=refused)
            neighbours = [node for node in neighbours if may_hold_log(node)]
        is_closest = self.overlay.next_hop(seat.job, unable) is None
        self._call(seat, now, out, seat.closest, is_closest, neighbours, now)

    def _abilities_changed(self, now: int, out: list[Outer]) -> None:
        """Jobs or adverts have changed: other nodes may be able to take part."""
        if self._joined and not self.is_aside:
            for seat in self._each_seat():
                nearest = self.overlay.closest(seat.job, self.parameters.leaves + 1)
                if self.abilities.unable(seat.spec, nearest) != self.abilities.noted(seat.job):
                    self._closest(seat, now, out)

    def _link_lost(self, peer: NodeId, now: int, out: list[Outer]) -> None:
        """Messages in transit to and from that neighbour are lost, and its `Away`s are void."""
        super()._link_lost(peer, now, out)
        were_away = self._neighbours.link_lost(peer)
        for vacancy in self.vacancies.values():
            vacancy.knows.discard(peer)
        for seat in self._each_seat():
            self._call(seat, now, out, seat.link_reset, peer, now)
        for job in were_away:
            if job in self.seats:
                self._closest(self.seats[job], now, out)

    def _gateway(self) -> NodeId | None:
        """A random one of the nodes that this node knew in the ring."""
        known = self.overlay.acquaintances()
        return self._rng.choice(known) if known else None

    # Messages.

    def _to_seat(self, source: NodeId, message: Any, now: int, out: list[Outer]) -> None:
        """Pass a message to its job's seat; drop it if the job is unknown."""
        job: JobId = message.job
        if type(message) is m.Away:
            self._heard_away(source, message, now, out)
            return
        vacancy = self.vacancies.get(job)
        if vacancy is not None and (vacancy.is_vacant or source in vacancy.refused):
            self._for_vacancy(vacancy, source, now, out)
            return
        seat = self.seats.get(job)
        if seat is None or (self.is_aside and type(message) in OF_LOGS):
            return
        self._call(seat, now, out, seat.step, source, message, now, source=source)

    def _passing(self, join: m.TreeJoin, origin: NodeId, is_root: bool, now: int, out: list[Outer]) -> bool:
        """A TreeJoin passes this node. Returns whether the node has handled it. A vacant job is in no tree here."""
        seat, vacancy = self.seats.get(join.job), self.vacancies.get(join.job)
        if seat is None or (vacancy is not None and not vacancy.refused.isdisjoint((origin, join.child))):
            return False
        taken: list[bool] = []

        def passing(at: JobSeat) -> list[Effect]:
            is_taken, effects = at.passing(join, origin, now, is_root=is_root)
            taken.append(is_taken)
            return effects

        self._call(seat, now, out, passing, seat, source=origin)
        return taken == [True]

    def _watch(self, job: JobId, nodes: tuple[NodeId, ...]) -> None:
        """Have the overlay probe these nodes like leaves, so that their deaths are detected as fast."""
        for node in nodes:
            self.overlay.watch(node)
        for node in self._watched.pop(job, ()):
            self.overlay.unwatch(node)
        if nodes:
            self._watched[job] = nodes
            self._timers.watch(self.overlay)

    def known_jobs(self) -> list[JobSpec]:
        """Jobs that have a seat or a vacancy here."""
        seats = [seat.spec for seat in self.seats.values()]
        return [*seats, *(vacancy.spec for vacancy in self.vacancies.values() if vacancy.is_vacant)]

    def failing(self, now: int) -> tuple[Failing, ...]:
        """Jobs that fail here, vacant ones first. A job that was changed or started again has not failed since."""
        failed = [vacancy for vacancy in self.vacancies.values() if vacancy.failures]
        listed = sorted(failed, key=lambda each: (not each.is_vacant, each.spec.name))
        return tuple(each.report(now) for each in listed[:FAILING_MAX])


def promised(job: JobId, records: Records) -> m.Ballot:
    """The highest ballot in a job's records. O(records)."""
    all_of_it = (record for kind in ("ballot", "log") for record in records.get((kind, job), ()))
    named = (record.ballot for record in all_of_it if isinstance(record, Base | More | Promise))
    return max(named, default=m.NO_BALLOT)
