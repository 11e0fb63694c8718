"""A fleet as an operator plans it: N agents that already know each other, J jobs from second 0, and agents that die.

The mesh, its traffic and its faults are a function of `Plan` alone, so the same seed gives the same figures on any machine.

    second -2      0                                    seconds                                   the end
      | warm mesh  | jobs start, traffic, loss, kills     | no more faults; dead agents restart    | every window is final
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from elf.agent.host.allocator import use_large_pages
from elf.agent.simulator.checks.oracle import Log, Oracle, Stretch, Violation
from elf.agent.simulator.checks.servers import Server
from elf.agent.simulator.fleet.measure import Measure
from elf.agent.simulator.fleet.report import FleetReport, Plan
from elf.agent.simulator.mesh import version_of
from elf.agent.simulator.world.network import Weather
from elf.agent.simulator.world.places import EPOCH_US, Actor
from elf.agent.simulator.world.sources import Traffic, VirtualSource
from elf.agent.simulator.world.world import PATHS, World
from elf.jobmaster.directory.job_spec import JobSpec
from elf.jobmaster.log.schedule import AFTER_ALL
from elf.srt.messages.ids import JobId, node_id
from elf.srt.messages.messages import NO_BALLOT, Contact
from elf.srt.messages.parameters import SECOND, Parameters
from elf.srt.messages.results import Put

CALM_US = 2 * SECOND
"""Time before second 0, in which probes and gossip become regular; event time then begins at a window's start."""
WINDOW_US = 2 * SECOND
LATENESS_US = 3 * SECOND
RESTART_US = 5 * SECOND
"""As in the unit file: `RestartSec=5`."""
MASTERS = 10
"""The first of each this many kills hits a job's master."""
SLICE_US = SECOND // 20
"""Virtual time between two calls of `progress`."""
REST_US_MAX = 180 * SECOND
"""Time after the last fault for windows to become final: three times the longest wait for a missing agent."""
LARGE_NODES = 2_000
"""From this many agents on, memory is moved to large pages, which saves a tenth to a sixth of the time."""
LARGE_PAGES_US = (SECOND, CALM_US + SECOND, CALM_US + 4 * SECOND)
"""When memory is moved: the mesh has started; agents have their seats; their memory is fully used."""
JOINING = 5
"""Seeds of a restarted agent."""
SINK = "lake"


Progress = Callable[[int, int, int], bool]
"""(microseconds since second 0, microseconds in all or 0 if unknown, messages so far) -> whether to continue."""


class Fleet:
    """One run. `world` and `measure` are for observers; `run` once, then `report`."""

    def __init__(self, plan: Plan, parameters: Parameters | None = None) -> None:
        self.plan, self.parameters = plan, parameters or Parameters()
        self.world = World(plan.seed, self.parameters)
        self.end_us = CALM_US + plan.seconds * SECOND
        self.hosts = [self._host(number) for number in range(plan.nodes)]
        self.world.add_sink(SINK)
        self.specs = [self._spec(number) for number in range(plan.jobs)]
        self.oracle = Oracle(
            (Server(n, host.source, EPOCH_US, EPOCH_US) for n, host in enumerate(self.hosts) if host.source),
            PATHS.paths,
        )
        for spec in self.specs:
            self.oracle.lateness_us[spec.id] = spec.lateness_us
        self.measure = Measure(self.world, self.hosts, [spec.id for spec in self.specs], CALM_US, self.end_us)
        self.measure.learn_lines(WINDOW_US)
        self.world.observers.append(self.measure.observe)
        self.world.put_observers.append(self._judge)
        self.wrong = ""
        """The first violation, or what was wrong at the end."""
        self.is_over = False
        self._rng = Random(plan.seed + 2)
        self._killed: set[bytes] = set()

    def _host(self, number: int) -> Actor:
        name = f"web{number}"
        traffic = Traffic(lines_per_s=self.plan.lines_per_s)
        source = VirtualSource(
            node_id(name.encode()), self.plan.seed, traffic, CALM_US, self.end_us, EPOCH_US
        )
        return self.world.add_host(name, source)

    def _spec(self, number: int) -> JobSpec:
        return JobSpec(
            f"job{number}",
            1,
            "access",
            (version_of(f"{WINDOW_US // SECOND} seconds", 0),),
            "split",
            EPOCH_US + CALM_US,
            lateness_us=LATENESS_US,
            sinks=(SINK,),
        )

    # Running.

    def run(self, progress: Progress = lambda now_us, end_us, messages: True) -> bool:
        """Run to the end, or until `progress` returns False: then return False."""
        world = self.world
        world.start_warm(self.hosts)
        world.at(CALM_US, self._begin)
        if self.plan.nodes >= LARGE_NODES:
            for moment in LARGE_PAGES_US:
                world.at(moment, use_large_pages)
        for number, moment in enumerate(self._moments()):
            world.at(moment, partial(self._kill, number))
        world.at(self.end_us, self._calm)
        while not self.is_over:
            total = self.plan.seconds * SECOND if world.now_us < self.end_us else 0
            if not progress(max(0, world.now_us - CALM_US), total, world.delivered):
                return False
            world.run_until(world.now_us + SLICE_US)
            if world.now_us >= self.end_us and world.now_us % SECOND == 0:
                self._look()
        return True

    def _begin(self) -> None:
        self.world.network.weather = Weather(loss=self.plan.loss)
        for spec in self.specs:
            self.world.start_job(self.hosts[0], spec)
        self.measure.begin()

    def _calm(self) -> None:
        self.world.network.weather = Weather()
        self.measure.end()

    def _look(self) -> None:
        """Whether the run is over: all windows are exact, or it has taken too long."""
        wrong = next(filter(None, map(self._unfinished, self.specs)), "")
        all_run = all(host.node is not None for host in self.hosts)
        if (all_run and not wrong) or self.world.now_us > self.end_us + REST_US_MAX:
            self.wrong = self.wrong or wrong
            self.is_over = True

    def _unfinished(self, spec: JobSpec) -> str:
        """The oracle's first error; "" for none. No agent leaves for good here, so it does not matter when a log began."""
        stretch = Stretch(spec.versions[0].digest, WINDOW_US, WINDOW_US, spec.line_us, AFTER_ALL)
        return self.oracle.unfinished(Log(spec.id, NO_BALLOT, [stretch]), self.world.now_us)

    def _judge(self, put: Put, now_us: int) -> None:
        try:
            self.oracle.accepted(put, now_us)
        except Violation as violation:
            self.wrong = self.wrong or str(violation)

    # Faults.

    def _moments(self) -> list[int]:
        """The times of kills: random, after the jobs have started."""
        first = CALM_US + min(2 * SECOND, self.plan.seconds * SECOND // 4)
        return sorted(self._rng.randrange(first, self.end_us) for _ in range(self.plan.kill))

    def _kill(self, number: int) -> None:
        victim = self._a_master() if number % MASTERS == 0 else None
        if victim is None:
            alive = [host for host in self.hosts if host.id not in self._killed and host.node is not None]
            victim = self._rng.choice(alive)
        self._killed.add(victim.id)
        self.measure.killed(victim)
        self.world.crash(victim)
        self.world.at(self.world.now_us + RESTART_US, partial(self._restart, victim))

    def _a_master(self) -> Actor | None:
        """The master of a random job that has one."""
        masters = self.measure.masters()
        for spec in self._rng.sample(self.specs, len(self.specs)):
            for host in masters.get(spec.id, ()):
                if host.id not in self._killed:
                    return host
        return None

    def _restart(self, host: Actor) -> None:
        others = [other for other in self.hosts if other is not host and other.node is not None]
        known = self._rng.sample(others, min(JOINING, len(others)))
        self.world.start(host, [Contact(other.id, 0) for other in known])

    # Results.

    def name_of(self, job: JobId) -> str:
        return next(spec.name for spec in self.specs if spec.id == job)

    def report(self) -> FleetReport:
        """The figures of the run; `exact` is None if it was stopped before the end."""
        return self.measure.report(self.plan, self.parameters, self.wrong, self.is_over)
