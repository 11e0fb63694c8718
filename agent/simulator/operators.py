"""Operators who change, stop and start jobs in a simulation, as `elf job update`, `rollback`, `stop` and `start` do, and the rule
for what masters take.

An operator asks the agent of a host, whose directory says which version the job has. The agent sends the change to the job's
master, repeatedly. If it is refused, the operator makes it again from the master's answer; one who expects a version gives up
when the job has another one.

Each verdict is entered into the audit list. Checked: at the end all agents hold the same list, with every verdict of an agent
that has not ended since.

Checked (rule Order*): where a version comes into force by the word of the master that took its change, it replaces the version
that the change names; and no master takes two changes of one number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import msgspec
from msgspec.structs import replace

from elf.agent.control.audit import AuditList, Request
from elf.agent.control.changing import Submission
from elf.agent.simulator.checks.oracle import Violation
from elf.agent.simulator.mesh import Mesh, version_of
from elf.agent.simulator.scenario.scenario import Change, Revoke, Start, Stop, Tune
from elf.agent.simulator.signing import operator, revocation
from elf.agent.simulator.world.places import EPOCH_US, Actor
from elf.errors import UsageError
from elf.jobmaster.directory.audit import SLOTS, agent_of, decode_audited
from elf.jobmaster.directory.changes import next_spec_number, rank_of
from elf.jobmaster.directory.directory import Directory
from elf.jobmaster.directory.ending import end_of, finishing, stopped
from elf.jobmaster.directory.job_items import JobItems
from elf.jobmaster.directory.job_spec import END, JobSpec, Version, decode_job
from elf.jobmaster.directory.job_spec import Change as JobChange
from elf.jobmaster.directory.settings import Settings
from elf.jobmaster.directory.versions import changed, started
from elf.jobmaster.log.entries import AnyEntry, ControlEntry, SpecRank
from elf.jobmaster.log.job_state import JobState
from elf.srt.messages.changes import ChangeReport
from elf.srt.messages.ids import JobId, NodeId
from elf.srt.messages.messages import Item, Message, Micros

WAITS_US = 500_000
"""If no agent can take a job's change, the operator tries again after this."""
LOOK_US = 20_000
"""How soon an operator reads the answer."""
TRIES_MAX = 8
TERM_BITS = 16
"""The bits of a spec's number below the master's term."""


class _Asking(msgspec.Struct):
    """An operator who waits for a verdict. life: of the host's agent; number: of the request in it. version: that the job is to
    have; `END` to stop it. expected: the version that the job must have, or ""."""

    fault: Change | Stop | Tune
    host: Actor
    life: int
    number: int
    version: Version
    expected: str
    tries: int = 0
    spec: JobSpec | None = None
    submission: Submission | None = None
    request: Request | None = None


class _Host:
    """An agent as its audit list needs it."""

    def __init__(self, mesh: Mesh, actor: Actor) -> None:
        self._world, self._actor = mesh.world, actor
        self.life, self.entered = actor.life, list[Item]()

    def clock_us(self) -> int:
        return self._world.clock(self._actor)

    def announce(self, item: Item) -> None:
        self.entered.append(item)
        self._world.put(self._actor, item)

    def directory(self) -> Directory:
        assert self._actor.node is not None
        return self._actor.node.directory

    def lasts(self) -> bool:
        """Whether that agent has not ended since."""
        return self._actor.node is not None and self._actor.life == self.life


class Operators:
    """All operators of a run. taken, refused: how many changes; outrun: those whose operators expected another version.
    finishing: of each job that finishes or has finished, the spec with its end. began_us: when jobs were last started again."""

    def __init__(self, mesh: Mesh) -> None:
        self.finishing: dict[JobId, JobSpec] = {}
        self.began_us: dict[JobId, Micros] = {}
        self.watch_end: Callable[[JobId], None] = lambda job: None
        """Called with a job whose end was taken."""
        self.taken = self.refused = self.outrun = 0
        self._mesh = mesh
        self._asking: list[_Asking] = []
        self._auditing: list[_Host] = []
        self._numbers = 0
        self._made = dict.fromkeys(range(len(mesh.specs)), 0)
        self._signed: dict[SpecRank, JobSpec] = {}
        self._places: dict[tuple[JobId, int], JobChange] = {}  # the change that was taken with a number

    # Asking.

    def change(self, fault: Change | Stop | Start | Tune) -> None:
        """Ask the host of the fault, or the next one that runs and knows the job."""
        mesh, job = self._mesh, self._mesh.specs[fault.job].id
        for step in range(len(mesh.hosts)):
            host = mesh.hosts[(fault.host + step) % len(mesh.hosts)]
            if host.node is not None and not host.is_paused and job in host.node.seats:
                self._begin(fault, host)
                return
        mesh.world.at(mesh.world.now_us + WAITS_US, partial(self.change, fault))

    def _begin(self, fault: Change | Stop | Start | Tune, host: Actor) -> None:
        spec = self._present(fault.job, host)
        if spec is not None and isinstance(fault, Start):
            self._start(fault, spec, host)
            return
        if spec is None or isinstance(fault, Start) or spec.stopped:
            return
        if isinstance(fault, Stop) and fault.at_once:
            number = next_spec_number(self._held(fault.job, host).ballot(), spec.number)
            self._mesh.world.start_job(host, stopped(spec, number))
            return
        if spec.is_finishing:
            return
        self._numbers += 1
        version = spec.versions[-1] if isinstance(fault, Tune) else self._version(fault, spec)
        expected = spec.versions[-1].digest if isinstance(fault, Change) and fault.expects else ""
        each = _Asking(fault, host, host.life, self._numbers, version, expected)
        self._asking.append(each)
        self._ask(each, None)

    def _start(self, fault: Start, former: JobSpec, host: Actor) -> None:
        """Start a job that has ended; ask again later while it has not."""
        world = self._mesh.world
        if not former.stopped:
            if world.now_us < fault.until_us:
                world.at(world.now_us + WAITS_US, partial(self.change, fault))
            return
        since_us = max(world.clock(host), former.since_us)
        first, version = self._mesh.specs[fault.job], self._new_version(fault.job)
        about = {
            "number": former.number + 1,
            "versions": (version,),
            "line_us": since_us,
            "since_us": since_us,
        }
        spec = started(replace(first, **about))
        self._signed[rank_of(spec)] = spec
        self.finishing.pop(spec.id, None)
        self.began_us[spec.id] = max(since_us, self.began_us.get(spec.id, 0))
        world.start_job(host, spec)

    def _present(self, job: int, host: Actor) -> JobSpec | None:
        item = self._held(job, host).item()
        return decode_job(item) if item is not None else None

    def _held(self, job: int, host: Actor) -> JobItems:
        assert host.node is not None
        return JobItems(host.node.directory, self._mesh.specs[job].id)

    def _version(self, fault: Change | Stop, spec: JobSpec) -> Version:
        if isinstance(fault, Stop):
            return end_of(spec.versions[-1])
        if fault.back and len(spec.versions) > 1:
            version = spec.whole[-2]
            self._mesh.oracle.came_back.add((spec.id, version.digest))
            return version
        return self._new_version(fault.job)

    def _new_version(self, job: int) -> Version:
        self._made[job] += 1
        count, windows = self._made[job], self._mesh.scenario.jobs[job].windows
        version = version_of(windows[count % len(windows)], count)
        self._mesh.oracle.numbers[version.digest] = count
        return version

    def _ask(self, each: _Asking, refused: ChangeReport | None) -> None:
        """Make the change of the version that is in force, as far as the operator knows, and sign it."""
        world, spec = self._mesh.world, self._present(each.fault.job, each.host)
        held = self._held(each.fault.job, each.host)
        if spec is None or spec.stopped or spec.is_finishing or each.tries >= TRIES_MAX:
            self._asking.remove(each)
            return
        number, former = next_spec_number(held.ballot(), spec.number), spec.versions[-1].digest
        if refused is not None:
            number, former = max(number, refused.next), refused.version
        if isinstance(each.fault, Tune):
            each.version = spec.versions[-1]
            is_outrun = former != each.version.digest or self._tuned(each.fault, spec) == spec.settings
        else:
            is_outrun = (bool(each.expected) and former != each.expected) or former == each.version.digest
        if is_outrun or former == END:
            self.outrun += former != each.version.digest
            self._asking.remove(each)
            return
        about = EPOCH_US + world.now_us, held.schedule(), number, former
        try:
            if isinstance(each.fault, Stop):
                made = finishing(spec, *about)
            elif isinstance(each.fault, Tune):
                made = changed(spec, each.version, "split", *about, self._tuned(each.fault, spec))
            else:
                made = changed(spec, each.version, each.fault.mode, *about)
        except UsageError:  # too many versions
            self._asking.remove(each)
            return
        each.spec, each.tries = made, each.tries + 1
        self._signed[rank_of(made)] = made
        self._numbers += 1
        each.number = self._numbers  # an answer to the former request is none to this one
        item = world.signatures.sign(made, each.fault.host)
        each.submission = Submission(made.id, each.number, item, world.clock(each.host))
        host = _Host(self._mesh, each.host)
        self._auditing.append(host)
        each.request = AuditList(host, host.directory, each.host.id).request(made, item)
        self._look(each, each.submission)

    def _tuned(self, fault: Tune, spec: JobSpec) -> Settings:
        first = self._mesh.specs[fault.job]
        sinks = first.sinks[fault.sink :][:1] if fault.sink >= 0 else first.sinks
        lateness_us, keep_us = fault.lateness_us or spec.lateness_us, fault.keep_us or spec.keep_us
        return replace(spec.settings, lateness_us=lateness_us, keep_us=keep_us, sinks=sinks)

    def _look(self, each: _Asking, submission: Submission) -> None:
        """Read the verdict, or send the change again."""
        world, host = self._mesh.world, each.host
        if each.submission is not submission or each not in self._asking:
            return
        if host.node is None or host.life != each.life or submission.is_over(world.clock(host)):
            self._asking.remove(each)
            return
        if submission.report is not None:
            self._told(each, submission.report)
            return
        if not host.is_paused and (submission.deadline is None or submission.deadline <= world.clock(host)):
            world.carry(host, submission.tick(world.clock(host)))
        world.at(world.now_us + LOOK_US, partial(self._look, each, submission))

    def _told(self, each: _Asking, report: ChangeReport) -> None:
        assert each.spec is not None
        assert each.request is not None
        if report.taken:
            each.request.taken()
            self.taken += 1
            self._asking.remove(each)
            self._check_place(each.spec)
            if each.spec.is_finishing:
                self.finishing[each.spec.id] = each.spec
                self.watch_end(each.spec.id)
            self._mesh.world.start_job(each.host, each.spec)
            return
        self.refused += 1
        each.request.refused(f"the job has version {report.version}")
        for item in report.items:
            self._mesh.world.start_job(each.host, decode_job(item))
        self._ask(each, report)

    def revoke(self, fault: Revoke) -> None:
        """Revoke an operator's certificate at the host of the fault, or the next one that runs."""
        mesh, name = self._mesh, operator(fault.operator)
        for step in range(len(mesh.hosts)):
            host = mesh.hosts[(fault.host + step) % len(mesh.hosts)]
            if host.node is not None and not host.is_paused:
                mesh.world.signatures.revoked.add(name)
                mesh.world.put(host, revocation(name, EPOCH_US + mesh.world.now_us))
                return
        mesh.world.at(mesh.world.now_us + WAITS_US, partial(self.revoke, fault))

    def check_fallback(self, spec: JobSpec, state: JobState, newest: JobSpec) -> str:
        """Why a job goes on under a version whose signer counts no more; "" if it does not."""
        if state.signer not in self._mesh.world.signatures.revoked or rank_of(newest) >= state.spec:
            return ""
        if newest.versions[-1].digest == state.schedule[-1].version:
            return ""
        return f"job {spec.name}: version {state.schedule[-1].version[:6]} is in force, signed by one who was revoked"

    def receive(self, host: Actor, source: NodeId, message: Message) -> None:
        """A message for an operator at that host."""
        for each in self._asking:
            if each.host is host and each.life == host.life and each.submission is not None:
                each.submission.step(source, message, self._mesh.world.clock(host))

    # Checks.

    def unrest(self) -> str:
        """Why agents do not hold the same audit list; "" if they do, and it has what was entered."""
        entered = Counter(agent_of(item) for host in self._auditing if host.lasts() for item in host.entered)
        nodes = [host.node for host in self._mesh.hosts if host.node is not None]
        lists = {frozenset(node.directory.items("audit")) for node in nodes} if entered else set()
        if len(lists) > 1:
            return "agents hold different audit lists"
        listed = Counter[NodeId]()
        for item in next(iter(lists), ()):
            listed[agent_of(item)] += decode_audited(item).times
        if any(listed[agent] < min(count, SLOTS) for agent, count in entered.items()):
            return "a verdict is not in the audit list"
        return ""

    def _check_place(self, spec: JobSpec) -> None:
        """Raises Violation."""
        change = replace(spec.changes[-1], from_us=0)
        if self._places.setdefault((spec.id, spec.number), change) != change:
            raise Violation(f"job {spec.name}: two changes with number {spec.number} were taken")

    def check_entry(self, state: JobState, entry: AnyEntry) -> None:
        """An entry is about to be applied. Raises Violation."""
        if not isinstance(entry, ControlEntry):
            return
        spec = self._signed.get(entry.spec)
        term = next_spec_number(state.served, 0) >> TERM_BITS
        if spec is None or spec.number >> TERM_BITS != term:
            return
        # All but the last of the changes that the log lacks waited for a lane, and are superseded. Those of another master may be
        # of the other side of a partition, of which this one knew nothing, or of a log that it continues; then they come before
        # its own. Those of older agents name no former version, and are in no history.
        former, known = state.schedule[-1].version, {each.version for each in spec.changes}
        own = former  # without those of other masters
        for change in (each for each in spec.changes if each.number >= state.spec[0]):
            is_new, is_own = change.number > state.spec[0], change.number >> TERM_BITS == term
            if is_new and is_own and change.former in known and change.former not in (former, own):
                raise Violation(
                    f"job {spec.name}: version {change.version[:6]} changes {change.former[:6]}, and replaces {former[:6]}"
                )
            if is_new or not change.former:
                former = change.version
                own = former if is_own or not is_new else own
