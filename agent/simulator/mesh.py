"""The mesh that a scenario describes, in its initial state: hosts with their logs, jobs, sinks, and the oracle."""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import compress

from elf.agent.simulator.checks.invariants import Invariants
from elf.agent.simulator.checks.oracle import Oracle
from elf.agent.simulator.checks.servers import ALWAYS, Server
from elf.agent.simulator.scenario import scenario as s
from elf.agent.simulator.world.disk import Disk
from elf.agent.simulator.world.places import EPOCH_US, Actor
from elf.agent.simulator.world.sources import Loss, VirtualSource
from elf.agent.simulator.world.world import PATHS, World
from elf.jobmaster.alerts.alert import Alert
from elf.jobmaster.directory.job_spec import JobSpec, Trial, Version
from elf.jobmaster.directory.limits import Limits
from elf.jobmaster.plan import codec as plans
from elf.jobmaster.plan.features import known, packed
from elf.srt.messages.ids import NodeId, node_id
from elf.srt.messages.messages import Contact

SEEDS = 3
"""Hosts that all agents know from the beginning."""
SINK_NAME = "lake"
NEVER_US = 1 << 50
OLDER = packed(known() - {"field parameter"})
"""The features of an older agent."""
EVERY = 100
"""At each of this many events, all cores of the event's node are checked, which takes a tenth of a run. Checking after every
event makes a run seven times as slow; some seeds do that. Publications, promises and ballots are checked at every event."""


SHOWN = " HAVING"


@lru_cache
def version_of(window: str, number: int) -> Version:
    """A job's version `number`: lines and bytes by path, for windows like "2 seconds/1 second". All but the first return their
    number too, as the value of a parameter, so that versions with equal windows differ in that value alone. With `SHOWN` behind
    the windows, only HAVING uses it, and all rows pass."""
    from elf.jobmaster.compile.query import compile as compile_query
    from elf.jobmaster.values.sql_types import BIGINT, STRING, TIMESTAMP

    is_shown, window = window.endswith(SHOWN), window.removesuffix(SHOWN)
    span = ", ".join(f"'{part}'" for part in window.split("/"))
    value = ", :number AS number" if number and not is_shown else ""
    having = " HAVING count(*) > -:number" if number and is_shown else ""
    text = (
        f"SELECT window, path, count(*) AS hits_0, sum(bytes) AS bytes{value} FROM access "
        f"GROUP BY window(time, {span}), path{having}"
    )
    values = {"number": str(number)} if number else {}
    plan = compile_query(text, {"access": {"time": TIMESTAMP, "path": STRING, "bytes": BIGINT}}, values)
    return Version(plans.digest(plan), plans.encode(plan), text)


@lru_cache
def alerts_of(job: s.Job) -> tuple[Alert, ...]:
    """The job's alert, if it has one."""
    from elf.jobmaster.compile.condition import compile_condition

    if not job.alert:
        return ()
    when = f"hits_0 >= {job.alert}"
    plan = plans.decode(version_of(job.windows[0], 0).plan)
    condition = plans.encode_any(compile_condition(when, plan))
    return (Alert("many", when, condition, job.alert_for_us, text="{path}: {hits_0}"),)


def trial_of(job: s.Job) -> Trial | None:
    """What makes that job a trial; None if it is none."""
    if not job.agents and not job.until_us:
        return None
    return Trial("tried", "0", job.agents, EPOCH_US + (job.until_us or NEVER_US))


class Mesh:
    """`world` and `oracle` are for observers. started: when each host's agent last started, in world time. down: hosts that
    crashed and wait for their restart."""

    oracle: Oracle
    sinks: list[NodeId]

    def __init__(self, scenario: s.Scenario, every: int = EVERY, *, coded: type[Disk] | None = None) -> None:
        self.scenario = scenario
        self.world = World(scenario.seed, scenario.parameters, scenario.weather, coded=coded)
        self.invariants = Invariants(self.world, every)
        self.world.inspect = self.invariants.touched
        self.hosts: list[Actor] = []
        self.specs: list[JobSpec] = []
        self.started: dict[NodeId, int] = {}
        self.down: set[NodeId] = set()
        self._make_hosts()

    def _make_hosts(self) -> None:
        scenario = self.scenario
        joins = {fault.host: fault for fault in scenario.faults if isinstance(fault, s.Join)}
        parts = {fault.host: fault.at_us for fault in scenario.faults if isinstance(fault, s.Part)}
        ahead: dict[int, int] = {}
        steps: dict[int, list[tuple[int, int]]] = {}
        losses: dict[int, list[tuple[int, Loss]]] = {}
        rejects: dict[int, list[tuple[int, int, float]]] = {}
        for fault in scenario.faults:
            if isinstance(fault, s.Reject):
                rejects.setdefault(fault.host, []).append((fault.at_us, fault.until_us, fault.share))
            elif isinstance(fault, s.Step):
                ahead[fault.host] = ahead.get(fault.host, 0) + max(0, fault.by_us)
                if fault.logs:
                    steps.setdefault(fault.host, []).append((fault.at_us, fault.by_us))
            elif isinstance(fault, s.Lose):
                losses.setdefault(fault.host, []).append((fault.at_us, fault.loss))
        self.servers: list[Server] = []
        for host in range(max((scenario.hosts - 1, *joins)) + 1):
            if host >= scenario.hosts and host not in joins:
                continue
            name = f"web{host}"
            begin = max(0, joins[host].at_us - joins[host].backlog_us) if host in joins else 0
            stop = parts.get(host, scenario.trouble_us + scenario.after_us)
            skew = scenario.skews[host % len(scenario.skews)]
            source = VirtualSource(
                node_id(name.encode()),
                scenario.seed,
                scenario.traffic,
                begin,
                stop,
                EPOCH_US + skew,
                steps=steps.get(host, ()),
                losses=losses.get(host, ()),
                rejects=rejects.get(host, ()),
            )
            known = ALWAYS if host in joins else EPOCH_US + s.CALM_US
            self.servers.append(
                Server(len(self.hosts), source, known, EPOCH_US + max(0, skew) + ahead.get(host, 0))
            )
            actor = self.world.add_host(name, source)
            actor.clock_us = EPOCH_US + skew
            if host in scenario.older:
                actor.features = OLDER
            self.hosts.append(actor)

    def make_jobs(self) -> None:
        """Make the oracle, which needs the lines of all servers, the sinks, and the jobs."""
        self.oracle = Oracle(self.servers, PATHS.paths)
        names = [f"{SINK_NAME}{n or ''}" for n in range(self.scenario.sinks)]
        carriers = self.world.carriers
        carriers.hosts |= {self.hosts[host].id for host in self.scenario.carriers}
        self.sinks = [
            carriers.add(name) if carriers.hosts else self.world.add_sink(name, self.scenario.beside)
            for name in names
        ]
        self.oracle.carried.receivers |= set(carriers.receivers.values())
        for number, job in enumerate(self.scenario.jobs):
            spec = JobSpec(
                f"job{number}",
                1,
                "access",
                (version_of(job.windows[0], 0),),
                "split",
                EPOCH_US + job.line_us,
                lateness_us=job.lateness_us,
                keep_us=job.keep_us,
                sinks=tuple(names),
                since_us=EPOCH_US + job.line_us,
                trial=trial_of(job),
                limits=Limits(job.sample, others=job.sample > 0),
                alerts=alerts_of(job),
            )
            if job.sample:
                self.oracle.sample[spec.id] = job.sample
                self.oracle.hashes = dict(zip(PATHS.paths, PATHS.hash, strict=True))
            self.specs.append(spec)
            if job.agents:
                names = [self.hosts[server.number].name for server in self.servers]
                taking = [spec.takes(name, ("access",)) for name in names]
                self.oracle.narrow(spec.id, list(compress(self.servers, taking)))
            tunes = [
                fault for fault in self.scenario.faults if isinstance(fault, s.Tune) and fault.job == number
            ]
            lateness = (job.lateness_us, *(fault.lateness_us or job.lateness_us for fault in tunes))
            keep = (job.keep_us, *(fault.keep_us or job.keep_us for fault in tunes))
            self.oracle.lateness_us[spec.id], self.oracle.keep_us[spec.id] = min(lateness), min(keep)

    def number_of(self, actor: Actor) -> int:
        """The number of the host whose key that process has."""
        return next(number for number, host in enumerate(self.hosts) if host.id == actor.id)

    @property
    def seeds(self) -> list[Contact]:
        return [Contact(host.id, 0) for host in self.hosts[:SEEDS]]

    def start(self, actor: Actor) -> None:
        self.down.discard(actor.id)
        self.started[actor.id] = self.world.now_us
        self.world.start(actor, self.seeds)

    def take_down(self, actor: Actor, back_us: int, *, wipe: bool = False, process: bool = False) -> None:
        """Crash a running agent until `back_us` (0, or too late: until all faults end)."""
        self.world.crash(actor, wipe=wipe, process=process)
        self.down.add(actor.id)
        if back_us and back_us < self.scenario.trouble_us:
            self.world.at(back_us, partial(self.revive, actor))

    def revive(self, actor: Actor) -> None:
        if actor.node is None and actor.id in self.down:
            self.start(actor)
