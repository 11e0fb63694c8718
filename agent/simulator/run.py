"""`simulate`: makes a world of a scenario, runs it, and has the oracle check its windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from itertools import chain
from time import process_time
from typing import Any

import msgspec

from elf.agent.node.mesh_node import MeshNode
from elf.agent.simulator.bugs import Bugs
from elf.agent.simulator.checks.alerting import AlertSinks
from elf.agent.simulator.checks.invariants import where
from elf.agent.simulator.checks.oracle import Log, Stretch, Violation, check_schedule
from elf.agent.simulator.checks.promises import Promises
from elf.agent.simulator.checks.readers import Readers
from elf.agent.simulator.doubles import Doubles
from elf.agent.simulator.faults import Faults
from elf.agent.simulator.mesh import EVERY, SINK_NAME, Mesh, version_of
from elf.agent.simulator.operators import WAITS_US, Operators
from elf.agent.simulator.scenario import scenario as s
from elf.agent.simulator.world.disk import Disk
from elf.agent.simulator.world.places import EPOCH_US, Actor
from elf.jobmaster.directory.changes import rank_of
from elf.jobmaster.directory.ending import stopped
from elf.jobmaster.directory.job_spec import END, JobSpec, decode_job
from elf.jobmaster.directory.settings import Settings, settings_at
from elf.jobmaster.directory.versions import with_shared_plans
from elf.jobmaster.log.entries import ControlEntry, Retire, Serve
from elf.jobmaster.log.job_state import JobState
from elf.jobmaster.log.schedule import AFTER_ALL, Shape, plan_of
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Ballot, Frame, Message, Micros

SETTLE_US = 2_000_000
"""Windows that are found exact must still be exact after this."""
ENDS_US = 20_000
"""How often the log of a job that is finishing is looked at."""


class Outcome(msgspec.Struct, kw_only=True):
    """The result of a simulation. violation: "" if every window is exact. digest: of all deliveries, in order. messages: by
    type."""

    seed: int
    violation: str
    at_us: int
    digest: str
    delivered: int
    messages: dict[str, int]
    finals: int
    revisions: int
    opens: int
    lines: int
    cpu_s: float

    @property
    def is_exact(self) -> bool:
        return not self.violation


def simulate(
    scenario: s.Scenario,
    *,
    every: int = EVERY,
    prepare: Callable[[Run], None] | None = None,
    coded: type[Disk] | None = None,
) -> Outcome:
    """Run a scenario to its end, or to the first violation. prepare: may add observers before the start. coded: see
    `World`, by default `Disk` where a bug needs it; takes twice as long."""
    begun = process_time()
    run = Run(scenario, every, coded=coded)
    if prepare is not None:
        prepare(run)
    violation = ""
    try:
        run.to_the_end()
    except Violation as found:
        violation = str(found)
    except Exception as error:  # any error of a core is a finding
        violation = f"a core failed: {where(error)}"
    return run.outcome(violation, process_time() - begun)


class Run(Mesh):
    """One simulation."""

    def __init__(self, scenario: s.Scenario, every: int = EVERY, *, coded: type[Disk] | None = None) -> None:
        super().__init__(scenario, every, coded=coded or (Disk if scenario.is_coded else None))
        self.messages: Counter[str] = Counter()
        self._leaving: set[NodeId] = set()
        self._trace = blake2b(digest_size=16)
        self._ends: dict[JobId, tuple[Log | None, int]] = {}
        """Of a job that is finishing: the log that has its end, if the highest master's has, and when that was seen."""
        self._former: dict[tuple[JobId, Ballot], Ballot] = {}
        """By whom a log was served before a master took it over."""
        self._in_force: dict[JobId, set[tuple[Micros, str]]] = {}  # since when, and the version, in any log
        self._retired: list[tuple[JobId, Ballot, int, Micros]] = []
        self.doubles = Doubles(self)
        self.make_jobs()
        self.oracle.gone |= set(scenario.older)
        self.alert_sinks = AlertSinks()
        self.world.take_alert = self.alert_sinks.take
        self.alert_sinks.again = lambda by, *about: self.world.notify("heard again", by, about)
        self.bugs = Bugs(self)
        jobs = [spec.id for spec in self.specs]
        self.readers = Readers(self.world, self.hosts, jobs, scenario.readers)
        self.operators = Operators(self)
        self.operators.watch_end = self._watch_end
        self.bugs.check_entry = self._check_entry
        self.faults = Faults(self, self.doubles, self.bugs, self.readers, self._change, self._revoke)
        self.world.node_observers.append(self._listen)
        self.world.observers += [self._observe, Promises(self.world).observe, self.readers.observe]

    # Running.

    def to_the_end(self) -> None:
        """Raises Violation."""
        world, scenario = self.world, self.scenario
        for number, host in enumerate(self.hosts[: scenario.hosts]):
            world.at(number * 1_000, partial(self.start, host))
        for number, job in enumerate(scenario.jobs):
            world.at(job.start_us, partial(self._submit, number % len(self.hosts), self.specs[number]))
        for number, fault in enumerate(scenario.faults):
            self.faults.plan(number, fault)
        self.doubles.plan()
        world.at(s.CALM_US, self._find_unknown)
        world.at(scenario.trouble_us, self.faults.heal)
        world.run_until(scenario.trouble_us + scenario.after_us)
        self._rest()

    def _find_unknown(self) -> None:
        """Agents whose attempts to join were all lost until now: no master expects them yet."""
        running = [(host.id, host.node) for host in self.hosts if host.node is not None]
        for number, host in enumerate(self.hosts[: self.scenario.hosts]):
            knowing = sum(node.overlay.is_member(host.id) for each, node in running if each != host.id)
            if 2 * knowing < len(running) - 1:
                self.oracle.unknown(number)

    def _rest(self) -> None:
        world = self.world
        end = world.now_us + self.scenario.rest_us
        while True:
            wrong = self._unfinished()
            if not wrong:
                world.run_until(world.now_us + SETTLE_US)
                wrong = self._unfinished()
                if wrong:
                    raise Violation(f"after all windows were exact: {wrong}")
                break
            if world.now_us >= end:
                raise Violation(wrong)
            world.run_until(world.now_us + 500_000)
        for actor in self.hosts:
            self.invariants.check(actor)
        self.bugs.check_spared()

    def _unfinished(self) -> str:
        for spec in self.specs:
            if self._newest(spec).has_ended(EPOCH_US + self.world.now_us):
                if wrong := self.invariants.remains(spec.id) or self._unfinished_at_end(spec):
                    return wrong
                continue
            if self._newest(spec).is_finishing and not self._waits_for_departed(spec):
                return f"job {spec.name} is finishing, and has not ended"
            wrong = self.invariants.unrest(spec.id)
            # An end is awaited as by a watcher.
            if self.scenario.finals_only and not self._newest(spec).is_finishing:
                wrong = wrong or self.invariants.misheard(spec.id, self.readers.wants_open(spec.id))
            if wrong:
                return wrong
            self._check_begin(spec)
            log = self._log(spec)
            check_schedule(log.schedule)
            # After a partition the job may go on that one side had stopped: from that stop on no line was taken.
            stretches = [each for each in log.schedule if each.version != END]
            log = msgspec.structs.replace(log, schedule=stretches)
            if wrong := self._not_in_force(spec):
                return wrong
            for sink in self.sinks:
                if sink in self.world.sinks_away:
                    continue  # rule Alone*: all others have their windows nevertheless
                wrong = self.oracle.unfinished(log, self.world.now_us, sink)
                if wrong:
                    return wrong
            if spec.alerts:
                about = self._state(spec), self.oracle, self.sinks, EPOCH_US + self.world.now_us
                if wrong := self.alert_sinks.problem(spec, *about):
                    return wrong
        return self.operators.unrest()

    def _waits_for_departed(self, spec: JobSpec) -> bool:
        """Whether a job's end waits, up to its `keep`, for an agent that the log expects, and that is gone for good: another
        process had its key after it had left."""
        here = {actor.id for actor in self.hosts if actor.node is not None}
        masters = self.invariants.masters(spec.id)
        roster = self._state(spec).positions.roster if masters else {}
        return any(worker not in here and member.until_us == AFTER_ALL for worker, member in roster.items())

    def _watch_end(self, job: JobId) -> None:
        """Keep what the log of a job that is finishing says, as long as there is one: with the job's end it is gone."""
        masters = self.invariants.masters(job)
        spec = next(each for each in self.specs if each.id == job)
        if masters and (schedule := self._state(spec).schedule) and schedule[-1].version == END:
            self._ends[job] = self._log(spec), self.world.now_us
        if not self._newest(spec).stopped:
            self.world.at(self.world.now_us + ENDS_US, partial(self._watch_end, job))
        else:
            log = self._ends[job][0] if job in self._ends else None
            self._ends[job] = log, self.world.now_us

    def _unfinished_at_end(self, spec: JobSpec) -> str:
        """The first error in the last windows of a job that has ended with all windows final; "" if it was stopped at once."""
        last, newest = self.operators.finishing.get(spec.id), self._newest(spec)
        if last is None or newest != stopped(last, last.number):
            return ""
        log, ended_us = self._ends[spec.id]
        # A master that finds no log begins one in which the line is where the operator asked for it.
        ahead_us = sum(max(0, each.by_us) for each in self.scenario.faults if isinstance(each, s.Step))
        line_us = last.line_us if log is None else min(last.line_us, log.schedule[-1].from_us)
        asked_us = line_us - max(0, *self.scenario.skews) - ahead_us
        if EPOCH_US + ended_us >= asked_us + newest.lateness_us + newest.keep_us:
            return ""  # it did not wait any longer; this may be a master that no other reached
        if log is None:
            return f"job {spec.name} has ended, and no log had its end"
        # A job that was stopped at once and started again has two ends: no line between the first and the start was taken.
        stretches = [each for each in log.schedule[:-1] if each.version != END]
        log = msgspec.structs.replace(log, schedule=[*stretches, log.schedule[-1]])
        wrong = (self.oracle.unfinished_at_end(log, ended_us, sink) for sink in self.sinks)
        return next(filter(None, wrong), "")

    def _not_in_force(self, spec: JobSpec) -> str:
        """Why the newest version is not in force; "" if it is, or if only the log has its change."""
        newest, state = self._newest(spec), self._state(spec)
        if wrong := self.operators.check_fallback(spec, state, newest):
            return wrong
        if rank_of(newest) < state.spec:
            return ""
        if newest.versions[-1].digest == state.schedule[-1].version:
            in_force = settings_at(state.schedule, AFTER_ALL, newest.base)
            return "" if in_force == newest.settings else f"job {spec.name}: its settings are not in force"
        return f"job {spec.name}: version {newest.versions[-1].digest[:6]} is not in force"

    def _check_begin(self, spec: JobSpec) -> None:
        """A log that starts again begins with the job, or with what was retained then; or after a version that the spec lacks,
        whose plan nobody knows: a rival's, or one of the other side of a partition. After a partition a change of one side may be
        in force in the log of the other side, where the job had been started again."""
        state, newest = self._state(spec), self._newest(spec)
        since = state.positions.since_us
        latest_us = max(self.world.clock(actor) for actor in self.hosts) - self.oracle.keep_us[spec.id]
        begin_us = max(newest.since_us, self.operators.began_us.get(spec.id, 0))
        known, in_force = {version.digest for version in newest.whole}, self._in_force.get(spec.id, set())
        lacks_one = any(begin_us <= at <= since for at, version in in_force if version not in known)
        if lacks_one and since == state.schedule[0].from_us:
            return
        if since > max(begin_us, latest_us):
            raise Violation(f"job {spec.name}: the log begins at {since}, the job at {begin_us}")

    def _log(self, spec: JobSpec) -> Log:
        state = self._state(spec)
        ends = None
        # A log may have versions that the newest spec lacks, from the other side of a partition.
        if len(self._newest(spec).versions) == 1 == len({line.version for line in state.schedule}):
            workers = [server.source.worker for server in self.servers]
            ends = dict(chain.from_iterable(map(state.positions.files_of, workers)))
        left = frozenset(worker for worker, member in state.positions.roster.items() if member.has_left)
        is_for = partial(self._is_for, state, self._newest(spec).base)
        line = self._line_of(state)
        retired = [(at, before) for job, by, at, before in self._retired if job == spec.id and by in line]
        about = self.schedule(spec), ends, state.is_past, left, is_for, state.served, retired
        return Log(
            spec.id, state.ballot, *about, partial(_lacks, state), self._waits_for_departed(spec), line
        )

    def _line_of(self, state: JobState) -> set[Ballot]:
        """The masters that have served with that log."""
        line, ballot = set[Ballot](), state.served
        while ballot not in line:
            line.add(ballot)
            ballot = self._former.get((state.job, ballot), ballot)
        return line

    def _is_for(self, state: JobState, base: Settings, sink: NodeId, version: str, start: int) -> bool:
        """Rule Settings*: whether a window is for that sink, by the log's schedule."""
        name = f"{SINK_NAME}{self.sinks.index(sink) or ''}"
        return name in settings_at(state.schedule, state.covers(version, start)[0], base).sinks

    def schedule(self, spec: JobSpec) -> list[Stretch]:
        """The job's schedule in the serving master's log."""
        state = self._state(spec)
        lines, since = state.schedule, state.positions.since_us
        out: list[Stretch] = []
        for number, line in enumerate(lines):
            shape = Shape.of(plan_of(line.plan))
            until = lines[number + 1].from_us if number + 1 < len(lines) else AFTER_ALL
            if out and out[-1].version == line.version:  # it goes on, with other settings
                out[-1] = msgspec.structs.replace(out[-1], to_us=until)
                continue
            out.append(Stretch(line.version, shape.size_us, shape.slide_us, max(since, line.from_us), until))
        return out

    def _state(self, spec: JobSpec) -> JobState:
        """The serving master's state."""
        node = self.invariants.masters(spec.id)[0].node
        assert node is not None
        master = node.seats[spec.id].master
        assert master is not None
        return master.state

    # Observing.

    def _check_entry(self, state: JobState, entry: Any) -> None:
        if isinstance(entry, Serve):
            self._former[state.job, entry.ballot] = state.served
        elif isinstance(entry, Retire):
            self._retired.append((state.job, state.served, self.world.now_us, entry.before_us))
        elif isinstance(entry, ControlEntry):
            self._in_force.setdefault(state.job, set()).add((entry.line.from_us, entry.line.version))
        self.operators.check_entry(state, entry)
        self.alert_sinks.check_entry(state, entry)

    def _listen(self, actor: Actor, node: MeshNode) -> None:
        """Bring the node's messages for operators and readers to them."""

        def receive(source: NodeId, message: Message) -> None:
            self.readers.receive(actor, source, message)
            self.operators.receive(actor, source, message)

        node.listener = receive

    def _observe(self, now_us: int, what: str, who: Actor | None, about: Any) -> None:
        if what == "deliver":
            assert who is not None
            source, message = about
            kind = type(message).__name__
            trace: tuple[object, ...] = (now_us, who.name, source, kind)
            if isinstance(message, Frame):
                inner = type(message.message).__name__
                trace += (
                    inner,
                    message.session,
                    message.sequence,
                    message.acknowledged,
                    message.credit,
                )
                kind = inner if message.message is not None else kind
            self.messages[kind] += 1
            self._trace.update(repr(trace).encode())
        elif what == "left":
            assert who is not None
            self.oracle.gone.add(self.number_of(who))
        elif what == "leave":
            assert who is not None
            self._leaving.add(who.id)
        elif what == "crash" and who is not None:
            if about:
                self.alert_sinks.forget(who.id)
                if who.id in self.world.carriers.hosts:
                    self.oracle.carried.ledger_lost(self.oracle.counts, now_us)
            if who.id in self._leaving:
                self.oracle.returned.add(self.number_of(who))
        elif what == "put":
            self._trace.update(repr((now_us, about.start, about.revision, about.digest)).encode())
            self.oracle.accepted(about, now_us, self.world.taking)

    def outcome(self, violation: str, cpu_s: float) -> Outcome:
        oracle = self.oracle
        return Outcome(
            seed=self.scenario.seed,
            violation=violation,
            at_us=self.world.now_us,
            digest=self._trace.hexdigest(),
            delivered=self.world.delivered,
            messages=dict(self.messages.most_common()),
            finals=oracle.finals,
            revisions=oracle.revisions,
            opens=oracle.opens,
            lines=oracle.lines,
            cpu_s=cpu_s,
        )

    # Changes of jobs.

    def _submit(self, host: int, spec: JobSpec) -> None:
        """Submit at that host, or the next one that runs. A change needs an agent that knows the job, so it may happen later."""
        for step in range(len(self.hosts)):
            actor = self.hosts[(host + step) % len(self.hosts)]
            node = actor.node
            if node is not None and not actor.is_paused and (spec.number == 1 or spec.id in node.seats):
                self.world.start_job(actor, spec)
                return
        self.world.at(self.world.now_us + WAITS_US, partial(self._submit, host, spec))

    def _change(self, fault: s.Change | s.Stop | s.Start | s.Tune) -> None:
        if isinstance(fault, s.Stop | s.Start | s.Tune) or not fault.rival:
            self.operators.change(fault)
            if isinstance(fault, s.Stop) and not fault.at_once:
                self._watch_end(self.specs[fault.job].id)
            return
        newest = self._newest(self.specs[fault.job])
        if newest.stopped or newest.is_finishing:
            return
        self.specs[fault.job] = newest
        specs = [self._next_spec(fault, rival) for rival in range(2)]
        self.specs[fault.job] = max(specs, key=rank_of)
        for step, spec in enumerate(specs):
            self._submit(fault.host + step, spec)

    def _revoke(self, fault: s.Revoke) -> None:
        self.world.notify("revoke", None, fault)
        for spec in self.specs:  # any of its versions may come back
            self.oracle.came_back |= {(spec.id, each.digest) for each in self._newest(spec).versions}
        self.operators.revoke(fault)

    def _newest(self, spec: JobSpec) -> JobSpec:
        """The highest spec of the job that any agent holds."""
        nodes = [actor.node for actor in self.hosts if actor.node is not None]
        items = [item for node in nodes if (item := node.directory.get("job", spec.id)) is not None]
        return max([spec, *map(decode_job, items)], key=rank_of)

    def _next_spec(self, fault: s.Change, rival: int) -> JobSpec:
        """A change that no master has judged."""
        spec, job = self.specs[fault.job], self.scenario.jobs[fault.job]
        number = spec.number + 100 * (rival + 1)
        version = version_of(job.windows[(len(spec.versions) + rival) % len(job.windows)], number)
        self.oracle.numbers[version.digest] = number
        return msgspec.structs.replace(
            spec,
            number=spec.number + 1,
            versions=with_shared_plans(
                (*(each for each in spec.whole if each.digest != version.digest), version)
            ),
            mode=fault.mode,
            line_us=EPOCH_US + self.world.now_us,
        )


def _lacks(state: JobState, version: str, start: Micros) -> bool:
    """Whether a window is final in that log with agents missing."""
    known = state.finals.get((version, start))
    return known is not None and known.passed < known.expected
