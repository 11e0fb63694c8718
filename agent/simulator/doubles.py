"""Faults in which two users share one thing: two processes one key, a copied or restored state folder, two agents one host's
logs. `elf.agent.simulator.faults.Faults` begins and ends them."""

from __future__ import annotations

from functools import partial

import msgspec

from elf.agent.simulator.checks.servers import ALWAYS, Server
from elf.agent.simulator.mesh import Mesh
from elf.agent.simulator.scenario import scenario as s
from elf.agent.simulator.world.disk import Disk
from elf.agent.simulator.world.places import EPOCH_US, Actor
from elf.agent.simulator.world.sources import VirtualSource


class Doubles:
    """Prepares such faults before a run begins, and performs them."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._sources: dict[int, VirtualSource] = {}  # by the fault's number
        self._copies: dict[int, tuple[Disk, frozenset[int]]] = {}
        mesh.world.admissions.admitted.append(self._admitted)
        for number, fault in enumerate(mesh.scenario.faults):
            if isinstance(fault, s.Twin):
                self._make_source(number, fault)
            elif isinstance(fault, s.Share):
                self._share(fault)

    def _admitted(self, who: Actor) -> None:
        """From now on the oracle allows for the twin; before its admission the twin must have no effect."""
        self._mesh.oracle.double(self._mesh.number_of(who))

    def _make_source(self, number: int, fault: s.Twin) -> None:
        """Make the logs of the twin's machine, which are lost with it."""
        mesh = self._mesh
        host, server = mesh.hosts[fault.host], mesh.servers[fault.host]
        source = VirtualSource(
            host.id,
            mesh.scenario.seed,
            mesh.scenario.traffic,
            fault.at_us,
            fault.until_us,
            host.clock_us,
            salt=bytes([number]),
        )
        source.files = source.files if fault.logs else []
        for file in source.files:
            file.gone_us = file.given_up_us = fault.until_us
        self._sources[number] = source
        if source.files:
            mesh.servers.append(Server(server.number, source, ALWAYS, server.ahead_us))

    def _share(self, fault: s.Share) -> None:
        servers = self._mesh.servers
        mine, theirs = servers[fault.host], servers[fault.other]
        mine.source.files = theirs.source.files
        servers[fault.host] = msgspec.structs.replace(
            mine,
            known_us=max(mine.known_us, theirs.known_us),
            ahead_us=max(mine.ahead_us, theirs.ahead_us, EPOCH_US),
        )

    def plan(self) -> None:
        """Schedule the copies of state folders."""
        for number, fault in enumerate(self._mesh.scenario.faults):
            if isinstance(fault, s.Restore):
                self._mesh.world.at(fault.from_us, partial(self._copy, number, fault.host))

    def _copy(self, number: int, host: int) -> None:
        actor = self._mesh.hosts[host]
        assert actor.source is not None
        self._copies[number] = actor.disk.copy(), actor.source.notes

    def twin(self, number: int, fault: s.Twin) -> None:
        mesh, actor = self._mesh, self._mesh.hosts[fault.host]
        if actor.id in mesh.world.twins:
            return
        mesh.world.notify("twin", actor, fault)
        disk = actor.disk.copy()
        if fault.keeps == "nothing":
            disk.wipe()
        if not fault.beside and actor.node is not None:
            mesh.take_down(actor, fault.back_us)
        mesh.world.start_twin(actor, disk, self._sources[number], mesh.seeds)

    def twin_ends(self, number: int, fault: s.Twin) -> None:
        mesh, actor = self._mesh, self._mesh.hosts[fault.host]
        twin = mesh.world.twins.get(actor.id)
        if twin is not None and twin.source is self._sources[number]:
            mesh.world.end_twin(twin)

    def restore(self, number: int, fault: s.Restore) -> None:
        mesh, actor = self._mesh, self._mesh.hosts[fault.host]
        if actor.node is None or number not in self._copies:
            return
        mesh.take_down(actor, fault.until_us)
        disk, notes = self._copies[number]
        disk.is_full = actor.disk.is_full
        actor.disk = disk
        assert actor.source is not None
        actor.source.restart(notes)
        mesh.world.notify("restore", actor, fault)
