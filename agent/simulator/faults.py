"""The faults of a scenario: what happens to the network, the disks, the clocks, the agents and the sinks, and when."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from elf.agent.simulator.bugs import Bugs
from elf.agent.simulator.checks.readers import Readers
from elf.agent.simulator.doubles import Doubles
from elf.agent.simulator.mesh import Mesh
from elf.agent.simulator.scenario import scenario as s
from elf.agent.simulator.world.network import Weather
from elf.agent.simulator.world.places import Actor
from elf.srt.messages.ids import JobId

KNOWING_US = 4_000_000
"""An agent that has run for this long has the whole directory by gossip."""


class Faults:
    """Begins and ends each fault at its time. change, revoke: perform what operators do, which a scenario lists among its
    faults."""

    def __init__(
        self,
        mesh: Mesh,
        doubles: Doubles,
        bugs: Bugs,
        readers: Readers,
        change: Callable[[s.Change | s.Stop | s.Start | s.Tune], None],
        revoke: Callable[[s.Revoke], None],
    ) -> None:
        self._mesh, self._world, self._hosts, self._sinks = mesh, mesh.world, mesh.hosts, mesh.sinks
        self._doubles, self._bugs, self._readers, self._change = doubles, bugs, readers, change
        self._revoke = revoke
        self._absences: dict[int, list[s.SinkCrash]] = {}  # of sinks that are away
        self._cuts = 0

    def plan(self, number: int, fault: s.AnyFault) -> None:
        """Schedule the begin of a fault, and its end. number: of the fault, different for each."""
        begin, end = _FAULTS[type(fault)]
        self._world.at(fault.at_us, partial(begin, self, number, fault))
        if end is not None and fault.until_us:
            self._world.at(fault.until_us, partial(end, self, number, fault))

    def heal(self) -> None:
        """End all faults."""
        world = self._world
        world.network.weather = Weather()
        world.notify("heal", None, None)
        self._bugs.clear()
        for number in range(self._cuts):
            world.network.heal(number)
        for twin in list(world.twins.values()):
            world.end_twin(twin)
        for actor in self._hosts:
            world.network.slow(actor.id, 0)
            if actor.disk.is_full:
                world.fill_disk(actor, False)
            if actor.is_paused:
                world.resume(actor)
            if actor.id in self._mesh.down:
                self._mesh.start(actor)

    # The network.

    def _storm(self, number: int, fault: s.Storm) -> None:
        self._world.notify("weather", None, fault.weather)
        self._world.network.weather = fault.weather

    def _end_storm(self, number: int, fault: s.Storm) -> None:
        self._world.notify("weather", None, self._mesh.scenario.weather)
        self._world.network.weather = self._mesh.scenario.weather

    def _cut(self, number: int, fault: s.Cut) -> None:
        everyone = {*(actor.id for actor in self._hosts), *self._sinks}
        everyone |= {f"{actor.name}'".encode() for actor in self._hosts}  # twins run on machines of their own
        inside = {self._hosts[host].id for host in fault.hosts if 0 <= host < len(self._hosts)}
        inside |= {self._sinks[s.SINK - host] for host in fault.hosts if s.SINK - len(self._sinks) < host < 0}
        self._mesh.oracle.were_away |= set(self._sinks)
        outside = everyone - inside
        self._world.notify("cut", None, fault)
        if fault.outward:
            self._world.network.cut(2 * number, frozenset(inside), frozenset(outside))
        if fault.inward:
            self._world.network.cut(2 * number + 1, frozenset(outside), frozenset(inside))
        self._cuts = max(self._cuts, 2 * number + 2)

    def _end_cut(self, number: int, fault: s.Cut) -> None:
        self._world.notify("mend", None, fault)
        self._world.network.heal(2 * number)
        self._world.network.heal(2 * number + 1)

    def _slow(self, number: int, fault: s.Slow) -> None:
        self._world.notify("slow", self._hosts[fault.host], fault.extra_us)
        self._world.network.slow(self._hosts[fault.host].id, fault.extra_us)

    def _end_slow(self, number: int, fault: s.Slow) -> None:
        self._world.notify("slow", self._hosts[fault.host], 0)
        self._world.network.slow(self._hosts[fault.host].id, 0)

    # Processes, disks and clocks.

    def _pause(self, number: int, fault: s.Pause) -> None:
        actor = self._hosts[fault.host]
        if actor.node is not None and not actor.is_paused:
            self._world.pause(actor)

    def _resume(self, number: int, fault: s.Pause) -> None:
        actor = self._hosts[fault.host]
        if actor.node is not None and actor.is_paused:
            self._world.resume(actor)

    def _fill(self, number: int, fault: s.FullDisk) -> None:
        self._world.fill_disk(self._hosts[fault.host], True)

    def _free(self, number: int, fault: s.FullDisk) -> None:
        if self._hosts[fault.host].disk.is_full:
            self._world.fill_disk(self._hosts[fault.host], False)

    def _step(self, number: int, fault: s.Step) -> None:
        actor = self._hosts[fault.host]
        self._world.notify("clock", actor, fault.by_us)
        actor.clock_us += fault.by_us

    def _lose(self, number: int, fault: s.Lose) -> None:
        """Notify observers only: the source was made with its losses."""
        self._world.notify("lose", self._hosts[fault.host], fault.loss)

    # Sinks.

    def _sink_away(self, number: int, fault: s.SinkCrash) -> None:
        if fault.sink < len(self._sinks):
            self._absences[fault.sink] = [*self._absences.get(fault.sink, ()), fault]
            self._world.sink_away(self._sinks[fault.sink])
            self._mesh.oracle.were_away.add(self._sinks[fault.sink])
            self._world.notify("sink away", None, fault)

    def _sink_back(self, number: int, fault: s.SinkCrash) -> None:
        """End an absence of a sink. The sink is back when the last of several overlapping absences ends, with what the worst of
        them keeps."""
        absences = self._absences.get(fault.sink, [])
        if absences and fault is max(
            absences, key=lambda each: each.until_us or self._mesh.scenario.trouble_us + 1
        ):
            sink, kept = self._sinks[fault.sink], {each.keeps for each in self._absences.pop(fault.sink)}
            keeps = next(keeps for keeps in s.KEPT if keeps in kept)
            self._world.sink_back(sink, keeps)
            self._world.notify("sink", None, msgspec.structs.replace(fault, keeps=keeps))
            if keeps == "nothing":
                self._mesh.oracle.emptied(sink)

    # Crashes.

    def _crash(self, number: int, fault: s.Crash) -> None:
        victims = self._victims(fault)
        wipe = fault.wipe and self._others_know(victims, fault.until_us or self._mesh.scenario.trouble_us)
        if fault.target == "circle":
            for spec in self._mesh.specs:
                circle = self._circle(spec.id)
                if circle and set(circle) <= set(victims):
                    self._readers.revisions.orphan(spec.id)
        for actor in victims:
            if actor.node is not None:
                self._mesh.take_down(actor, fault.until_us, wipe=wipe, process=fault.process)

    def _others_know(self, victims: list[Actor], back_us: int) -> bool:
        """Whether another agent has long known the jobs and agents, stays until the victims are back and know them too, and keeps
        its state folder (no twin or restore makes it obsolete). Otherwise a wipe would destroy the last copy."""
        long_ago, known_us = self._world.now_us - KNOWING_US, back_us + KNOWING_US
        leaving = {
            self._hosts[fault.host]
            for fault in self._mesh.scenario.faults
            if isinstance(fault, s.Twin | s.Restore) or (isinstance(fault, s.Part) and fault.at_us < known_us)
        }
        return any(
            actor.node is not None and actor not in leaving and self._mesh.started[actor.id] <= long_ago
            for actor in self._hosts
            if actor not in victims
        )

    def _victims(self, fault: s.Crash) -> list[Actor]:
        if fault.target == "mesh":
            return list(self._hosts)
        if fault.target == "host":
            return [self._hosts[fault.host]]
        job = self._mesh.specs[fault.job].id
        return self._circle(job) if fault.target == "circle" else self._mesh.invariants.masters(job)[:1]

    def _circle(self, job: JobId) -> list[Actor]:
        """A job's master and its replicas; empty while no node serves the job."""
        circle = self._mesh.invariants.masters(job)[:1]
        for master in list(circle):
            assert master.node is not None
            replication = master.node.seats[job].succession.replication
            circle += [self._world.actors[node] for node in (replication.peers if replication else ())]
        return circle

    # Agents that come and go, and bugs.

    def _join(self, number: int, fault: s.Join) -> None:
        self._mesh.start(self._hosts[fault.host])

    def _part(self, number: int, fault: s.Part) -> None:
        actor = self._hosts[fault.host]
        if actor.node is not None and not actor.is_paused:
            self._world.stop(actor)

    def _upgrade(self, number: int, fault: s.Upgrade) -> None:
        actor = self._hosts[fault.host]
        self._world.notify("upgrade", actor, None)
        actor.features = b""
        self._mesh.oracle.gone.discard(fault.host)
        # A change may have discarded lines of it, for others to read again.
        self._mesh.oracle.returned.add(fault.host)
        if actor.node is not None:
            self._world.crash(actor, process=True)
            self._mesh.start(actor)

    def _plant(self, number: int, fault: s.Bug) -> None:
        self._world.notify("bug", None, fault)
        self._bugs.begin(fault)

    def _end_bug(self, number: int, fault: s.Bug) -> None:
        self._bugs.end(fault)


_FAULTS: dict[
    type[s.Fault], tuple[Callable[[Faults, int, Any], None], Callable[[Faults, int, Any], None] | None]
] = {
    s.Storm: (Faults._storm, Faults._end_storm),
    s.Cut: (Faults._cut, Faults._end_cut),
    s.Slow: (Faults._slow, Faults._end_slow),
    s.Pause: (Faults._pause, Faults._resume),
    s.FullDisk: (Faults._fill, Faults._free),
    s.Step: (Faults._step, None),
    s.Lose: (Faults._lose, None),
    s.SinkCrash: (Faults._sink_away, Faults._sink_back),
    s.Crash: (Faults._crash, None),
    s.Join: (Faults._join, None),
    s.Part: (Faults._part, None),
    s.Change: (lambda faults, number, fault: faults._change(fault), None),
    s.Revoke: (lambda faults, number, fault: faults._revoke(fault), None),
    s.Upgrade: (Faults._upgrade, None),
    s.Tune: (lambda faults, number, fault: faults._change(fault), None),
    s.Stop: (lambda faults, number, fault: faults._change(fault), None),
    s.Start: (lambda faults, number, fault: faults._change(fault), None),
    s.Bug: (Faults._plant, Faults._end_bug),
    s.Twin: (
        lambda faults, number, fault: faults._doubles.twin(number, fault),
        lambda faults, number, fault: faults._doubles.twin_ends(number, fault),
    ),
    s.Restore: (lambda faults, number, fault: faults._doubles.restore(number, fault), None),
    s.Reject: (
        lambda faults, number, fault: faults._world.notify("reject", faults._hosts[fault.host], fault),
        None,
    ),
    s.Share: (
        lambda faults, number, fault: faults._world.notify("share", faults._hosts[fault.host], fault),
        None,
    ),
}
